//! Noticing what a guest stores into its page tables.
//!
//! Full virtualization follows a guest's tables. What has changed in them it knows from the guest's own TLB invalidates
//! ([`Trap::Announced`]), as NVIDIA's hardware asks for them; or it finds out, as gVirt and gHyvi do, whose guests announce nothing
//! ([`gmmu::Tracked`]). Pages are protected for address spaces; several may share one.

use std::collections::BTreeMap;

use gmmu::{Costs, Notices, Policy, Rebuild, Shadowing, Tracking, TrackingCounts, WriteTrap};
use gpu_spec::mmu::{Aperture, PhysAddr, SMALL_PAGE};
use write_trap::Kind;

/// How stores into a guest's page tables are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Trap {
    /// They are not: the guest's TLB invalidates say what has changed.
    #[default]
    Announced,
    /// BAR1 is not mapped, and each store is a message: strict shadowing.
    Bar,
    /// They are not: all tables are compared at each submission, relaxed shadowing with full rebuilding.
    Snapshot,
    /// By what the guest sends for that ([`vfio_user::Device::watch_stores`]); as `Snapshot`, where it sends nothing.
    Watched(Kind),
}

/// How a guest's page tables are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watching {
    /// How stores into them are noticed.
    pub trap: Trap,
    /// What is protected, and what is compared, where there is a choice.
    pub policy: Policy,
    /// What that costs on this machine.
    pub costs: Costs,
}

impl Default for Watching {
    fn default() -> Watching {
        Watching::from(Trap::default())
    }
}

impl From<Trap> for Watching {
    /// With the usual policy, and all at the same cost.
    fn from(trap: Trap) -> Watching {
        let costs = Costs { trap: 1, release: 1, protect: 1, compare: 1 };
        Watching { trap, policy: Policy::default(), costs }
    }
}

/// What tracking has taken, and how it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrackedPages {
    /// Pages of tables that are protected.
    pub strict: u64,
    /// Pages of tables that are compared.
    pub relaxed: u64,
    /// What has happened.
    pub counts: TrackingCounts,
}

impl TrackedPages {
    /// What was counted as `before` is `now`.
    pub(crate) fn replace(&mut self, before: &TrackedPages, now: &TrackedPages) {
        self.strict = self.strict + now.strict - before.strict;
        self.relaxed = self.relaxed + now.relaxed - before.relaxed;
        self.counts.replace(&before.counts, &now.counts);
    }
}

/// Who notices stores into the tables of one guest.
#[derive(Debug, Default)]
pub(crate) struct TableWatch {
    pub(crate) watching: Watching,
    /// Of all spaces, and those that were.
    pub(crate) counts: TrackedPages,
    /// Pages that are protected, and the roots of the spaces that want it.
    strict: BTreeMap<PhysAddr, Vec<PhysAddr>>,
}

impl TableWatch {
    pub(crate) fn new(watching: Watching) -> TableWatch {
        TableWatch { watching, ..TableWatch::default() }
    }

    /// Who decides what is protected and compared in one space; `None` where the guest says what has changed.
    pub(crate) fn tracking(&self) -> Option<Tracking> {
        let Watching { trap, policy, costs } = self.watching;
        let (policy, notices) = match trap {
            Trap::Announced => return None,
            Trap::Bar => (Policy { shadowing: Shadowing::Strict, ..policy }, Notices::AllStores),
            Trap::Snapshot => (Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Full }, Notices::Nothing),
            Trap::Watched(_) => (policy, Notices::Nothing),
        };
        Some(Tracking::new(policy, notices, costs))
    }

    /// How stores are noticed now.
    pub(crate) fn in_effect(&self) -> Option<Trap> {
        Some(match self.watching.trap {
            Trap::Watched(_) => Trap::Snapshot,
            other => other,
        })
    }

    /// The trap of one space.
    pub(crate) fn of(&mut self, root: PhysAddr) -> SpaceTrap<'_> {
        SpaceTrap { watch: self, root }
    }

    /// The pages of a range that are protected, each with what of the range lies in it, and the space that wants it.
    pub(crate) fn strict_in(&self, at: PhysAddr, bytes: u64) -> Vec<(PhysAddr, u64, PhysAddr)> {
        let end = at.address.saturating_add(bytes);
        let first = PhysAddr { address: at.address & !(SMALL_PAGE - 1), ..at };
        let last = PhysAddr { address: end.saturating_sub(1), ..at };
        if bytes == 0 {
            return Vec::new();
        }
        let within =
            self.strict.range(first..=last).flat_map(|(page, roots)| roots.iter().map(move |root| (page, root)));
        let part = |page: &PhysAddr| {
            let from = page.address.max(at.address);
            (PhysAddr { address: from, ..at }, (page.address + SMALL_PAGE).min(end) - from)
        };
        within
            .map(|(page, root)| {
                let (from, bytes) = part(page);
                (from, bytes, *root)
            })
            .collect()
    }

    /// A space is gone.
    pub(crate) fn forget(&mut self, root: PhysAddr) {
        self.strict.retain(|_, roots| {
            roots.retain(|other| *other != root);
            !roots.is_empty()
        });
    }
}

/// The trap of one space of a guest: a page is protected as long as one space wants it.
#[derive(Debug)]
pub(crate) struct SpaceTrap<'a> {
    watch: &'a mut TableWatch,
    root: PhysAddr,
}

impl WriteTrap for SpaceTrap<'_> {
    fn protect(&mut self, pages: &[PhysAddr]) {
        for page in pages {
            let roots = self.watch.strict.entry(*page).or_default();
            if !roots.contains(&self.root) {
                roots.push(self.root);
            }
        }
    }

    fn release(&mut self, pages: &[PhysAddr]) {
        for page in pages {
            let Some(roots) = self.watch.strict.get_mut(page) else { continue };
            roots.retain(|other| *other != self.root);
            if roots.is_empty() {
                self.watch.strict.remove(page);
            }
        }
    }

    /// What the guest has in its own memory, it stores into unseen.
    fn reaches(&self, page: PhysAddr) -> bool {
        page.aperture == Aperture::Vram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_protected_as_long_as_a_space_wants_it() {
        let [one, two] = [1, 2].map(|root: u64| PhysAddr::vram(root << 20));
        let page = |number: u64| PhysAddr::vram(number << 12);
        let mut watch = TableWatch::default();
        watch.of(one).protect(&[page(5), page(6)]);
        watch.of(two).protect(&[page(6)]);
        watch.of(two).protect(&[page(6)]);
        let stored = |watch: &TableWatch, at: u64, bytes| watch.strict_in(PhysAddr::vram(at), bytes);
        assert_eq!(
            stored(&watch, 0x5ff8, 16),
            [(PhysAddr::vram(0x5ff8), 8, one), (page(6), 8, one), (page(6), 8, two)]
        );
        assert_eq!(stored(&watch, 0x4ff8, 8), []);
        assert_eq!(stored(&watch, 0x5000, 0), []);
        watch.of(one).release(&[page(6), page(9)]);
        assert_eq!(stored(&watch, 0x6000, 1), [(page(6), 1, two)]);
        watch.forget(two);
        assert_eq!(stored(&watch, 0, 1 << 30), [(page(5), 4096, one)]);
        assert!(!watch.of(one).reaches(PhysAddr::system(0)));
    }
}
