//! Noticing what a guest stores into its page tables.
//!
//! Full virtualization follows a guest's tables. What has changed in them it knows from the guest's own TLB invalidates
//! ([`Trap::Announced`]), as NVIDIA's hardware asks for them; or it finds out, as gVirt and gHyvi do, whose guests announce nothing
//! ([`gmmu::Tracked`]). Pages are protected for address spaces; several may share one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use gmmu::{Costs, Notices, Policy, Rebuild, Shadowing, TrackingCounts, WriteTrap};
use gpu_spec::mmu::{Aperture, PhysAddr, SMALL_PAGE};
use vfio_user::{Errno, StoreWatch, wire};
use write_trap::{DecodeParts, Fault, FaultParts, Kind, RemoteDecode, Tracker, TrackerParts};

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

/// Single stores into one page that are told each: with more, the page is compared as a whole.
const MOST_WORDS: u32 = 32;

/// Longest that a guest's process may take to do its part for [`Kind::Decode`], each time: it counts as dead afterwards.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The trap that a guest has sent. It notices what the guest stores through one mapping, at most: its word is needed for nothing
/// but its own good.
///
/// # Errors
/// It cannot be what it should be.
pub(crate) fn sent(wanted: Kind, watch: StoreWatch) -> Result<Box<dyn write_trap::WriteTrap>, Errno> {
    let StoreWatch { kind, address, bytes, fds, .. } = watch;
    if kind != number(wanted) {
        return Err(Errno::NOTSUP);
    }
    let refused = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    let mut trap: Box<dyn write_trap::WriteTrap> = match wanted {
        Kind::Tracker => {
            let [userfault, page_map] = exactly(fds)?;
            let parts = TrackerParts { userfault, page_map, address, bytes };
            Box::new(Tracker::from_parts(parts).map_err(refused)?)
        }
        Kind::Fault => {
            let [userfault] = exactly(fds)?;
            Box::new(Fault::from_parts(FaultParts { userfault, address, bytes }).map_err(refused)?)
        }
        Kind::Decode => {
            let [written, control] = exactly(fds)?;
            let parts = DecodeParts { written, control, address, bytes };
            Box::new(RemoteDecode::from_parts(parts, ANSWER_WITHIN).map_err(refused)?)
        }
    };
    // What does not work at all is not begun with.
    trap.protect(&[0]).and_then(|()| trap.release(&[0])).map_err(refused)?;
    Ok(trap)
}

fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Errno> {
    fds.try_into().map_err(|_| Errno::INVAL)
}

/// The kind in messages.
pub(crate) fn number(kind: Kind) -> u32 {
    match kind {
        Kind::Tracker => wire::WATCH_TRACKER,
        Kind::Fault => wire::WATCH_FAULT,
        Kind::Decode => wire::WATCH_DECODE,
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
    /// Those of them that are not, since something was stored there: each space is to protect them again. Invariant: some of
    /// `strict`.
    open: BTreeSet<PhysAddr>,
    /// What the guest has sent for [`Trap::Watched`], as long as it works, and how many pages it reaches.
    sent: Option<(Box<dyn write_trap::WriteTrap>, u64)>,
    /// The spaces do not know yet that there is another policy, or no trap any more.
    changed: bool,
}

/// What has been stored into protected pages, for each space that wants to know.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    /// Pages, of which single stores may be told besides.
    pub(crate) pages: Vec<(PhysAddr, PhysAddr)>,
    /// Words of 8 bytes.
    pub(crate) words: Vec<(PhysAddr, PhysAddr)>,
}

impl TableWatch {
    pub(crate) fn new(watching: Watching) -> TableWatch {
        TableWatch { watching, ..TableWatch::default() }
    }

    /// What decides about each space: `None` where the guest says what has changed.
    pub(crate) fn how(&self) -> Option<(Policy, Notices, Costs)> {
        let Watching { trap, policy, costs } = self.watching;
        let (policy, notices) = match trap {
            Trap::Announced => return None,
            Trap::Bar => (Policy { shadowing: Shadowing::Strict, ..policy }, Notices::AllStores),
            Trap::Snapshot => (Policy { shadowing: Shadowing::Relaxed, rebuild: Rebuild::Full }, Notices::Nothing),
            Trap::Watched(_) if self.sent.is_none() => (policy, Notices::Nothing),
            Trap::Watched(Kind::Tracker) => (policy, Notices::WhenAsked),
            Trap::Watched(Kind::Fault) => (policy, Notices::FirstStores),
            Trap::Watched(Kind::Decode) => (policy, Notices::StoresWhenAsked),
        };
        Some((policy, notices, costs))
    }

    /// How stores are noticed now.
    pub(crate) fn in_effect(&self) -> Trap {
        match self.watching.trap {
            Trap::Watched(_) if self.sent.is_none() => Trap::Snapshot,
            trap => trap,
        }
    }

    /// The guest's trap from now on, which reaches so many pages; or none. The spaces are to be told, of none before of another.
    pub(crate) fn set_sent(&mut self, sent: Option<(Box<dyn write_trap::WriteTrap>, u64)>) {
        self.sent = sent;
        self.open.clear();
        self.changed = true;
    }

    /// The guest's trap does not work: it is not asked again.
    fn lose(&mut self, error: &std::io::Error) {
        log_limit::warn!(%error, "a guest's trap of page tables has failed: they are compared");
        self.set_sent(None);
    }

    /// The spaces are told how it is now; what changes by that, they are to be told again.
    pub(crate) fn is_told(&mut self) {
        self.changed = false;
    }

    /// Whether the spaces are to be told that something is different, as this policy may be.
    pub(crate) fn takes_over(&mut self, policy: Policy) -> bool {
        let differs = std::mem::replace(&mut self.watching.policy, policy) != policy;
        self.changed | differs
    }

    /// What has been stored since the last time, as far as the guest's trap is one to be asked.
    pub(crate) fn take(&mut self) -> Stores {
        let mut stores = Stores::default();
        let TableWatch { strict, open, sent, .. } = &mut *self;
        let Some((trap, _)) = sent else { return stores };
        let known = |address: u64| {
            let page = PhysAddr::vram(address & !(SMALL_PAGE - 1));
            strict.get(&page).into_iter().flatten().map(move |root| (*root, PhysAddr::vram(address)))
        };
        let mut pages = Vec::new();
        let taken = trap.take_written(&mut pages);
        pages.into_iter().for_each(|page| stores.pages.extend(known(page * SMALL_PAGE)));
        if !trap.kind().stays_protected() {
            open.extend(stores.pages.iter().map(|(_, page)| *page));
        }
        // Of how many single stores a guest has us told, it decides itself.
        let (mut last, mut told) = (u64::MAX, 0);
        trap.take_stores(&mut |word| {
            let page = word & !(SMALL_PAGE - 1);
            told = if page == last { told + 1 } else { 1 };
            last = page;
            if told <= MOST_WORDS {
                stores.words.extend(known(word));
            } else if told == MOST_WORDS + 1 {
                stores.pages.extend(known(page));
            }
        });
        if let Err(error) = taken {
            self.lose(&error);
        }
        stores
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

    /// Has the guest's trap do something to pages, if there are any, and a trap.
    fn apply(
        &mut self,
        mut pages: Vec<PhysAddr>,
        act: fn(&mut dyn write_trap::WriteTrap, &[u64]) -> std::io::Result<()>,
    ) {
        let Some((trap, _)) = self.sent.as_mut().filter(|_| !pages.is_empty()) else { return };
        // Neighbours are cheaper together.
        pages.sort_unstable();
        let numbers: Vec<u64> = pages.iter().map(|page| page.address / SMALL_PAGE).collect();
        if let Err(error) = act(trap.as_mut(), &numbers) {
            self.lose(&error);
        }
    }
}

/// The trap of one space of a guest: a page is protected as long as one space wants it.
#[derive(Debug)]
pub(crate) struct SpaceTrap<'a> {
    watch: &'a mut TableWatch,
    root: PhysAddr,
}

impl WriteTrap for SpaceTrap<'_> {
    /// A page that another space wants protected is so already: to do it again would have its stores forgotten of which nobody has
    /// been told.
    fn protect(&mut self, pages: &[PhysAddr]) {
        let TableWatch { strict, open, .. } = &mut *self.watch;
        let mut anew = Vec::new();
        for page in pages {
            let roots = strict.entry(*page).or_default();
            if roots.is_empty() | open.remove(page) {
                anew.push(*page);
            }
            if !roots.contains(&self.root) {
                roots.push(self.root);
            }
        }
        self.watch.apply(anew, |trap, pages| trap.protect(pages));
    }

    fn release(&mut self, pages: &[PhysAddr]) {
        let TableWatch { strict, open, .. } = &mut *self.watch;
        let mut unwanted = Vec::new();
        for page in pages {
            let Some(roots) = strict.get_mut(page) else { continue };
            roots.retain(|other| *other != self.root);
            if roots.is_empty() {
                strict.remove(page);
                if !open.remove(page) {
                    unwanted.push(*page);
                }
            }
        }
        self.watch.apply(unwanted, |trap, pages| trap.release(pages));
    }

    /// What the guest has in its own memory, it stores into unseen.
    fn reaches(&self, page: PhysAddr) -> bool {
        let watched = match (self.watch.watching.trap, &self.watch.sent) {
            (Trap::Watched(_), None) => 0,
            (_, Some((_, pages))) => *pages,
            (_, None) => u64::MAX,
        };
        page.aperture == Aperture::Vram && page.address / SMALL_PAGE < watched
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
        watch.of(two).release(&[page(6)]);
        assert_eq!(stored(&watch, 0, 1 << 30), [(page(5), 4096, one)]);
        assert!(!watch.of(one).reaches(PhysAddr::system(0)));
    }
}
