//! A guest's address space, and its shadow.

use std::collections::HashMap;
use std::ops::Range;

use gmmu::{
    Access, Changes, Progress, Reflection, Shadow, ShadowError, Target, Tracked, Tracking, TrackingCounts, Work,
    translate,
};
use gpu_driver::{Lease, NotLetGo};
use gpu_spec::mmu::{HUGE_PAGE, PhysAddr, Rights};

use crate::channel::{MAPPED, SLOT_BYTES};
use crate::memory::{GuestMemory, HostPage};
use crate::tables::ShadowTables;
use crate::watch::{TableWatch, TrackedPages};

/// Shadow channels of a space.
pub(crate) const SLOTS: u32 = 128;
/// Addresses behind the window that belong to the mediator.
const OWN_BYTES: u64 = (SLOTS as u64 * SLOT_BYTES).next_multiple_of(HUGE_PAGE);
/// Tables of a space.
const MOST_TABLES: u32 = 1 << 16;
/// Entries scanned in one go.
const BUDGET: u64 = 1 << 16;
/// Most goes: a guest whose tables are larger than that has them shown in part, and the rest faults until the next time.
const GOES: u32 = 256;

/// Most addresses of all windows of a guest: the device's process has 2^47 for everybody's.
const MOST_WINDOWS: u64 = 1 << 44;

/// Whether a guest may have one more space, with such a window.
pub(crate) fn has_room(spaces: &HashMap<PhysAddr, Space>, (_, bytes): (u64, u64)) -> bool {
    let held: u64 = spaces.values().map(|space| space.shadow_window().1).sum();
    bytes.checked_add(held + OWN_BYTES).is_some_and(|all| all <= MOST_WINDOWS)
}

/// A guest's address space.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) shadow: Shadow,
    /// The guest's window.
    window: (u64, u64),
    /// First address of the mediator's own, from the first channel on.
    own: Option<u64>,
    slots: Vec<bool>,
    /// What the device has not been told of.
    pub(crate) changes: Changes,
    /// Channels that use it.
    pub(crate) channels: u32,
    /// Hypercalls have made it, and end it.
    pub(crate) entered: bool,
    /// Stores into the guest's tables are noticed, or looked for.
    tracked: Option<Tracked>,
    /// As of the last time that somebody asked.
    counted: TrackedPages,
}

/// Why a guest's address space cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum SpaceError {
    #[error("the window {0:#x}+{1:#x} is none that the device has")]
    Window(u64, u64),
    #[error("the GPFIFO at {0:#x} is too far from the end of the window, or from the space's first")]
    Gpfifo(u64),
    #[error(transparent)]
    Shadow(#[from] ShadowError),
    #[error(transparent)]
    Device(#[from] NotLetGo),
}

impl SpaceError {
    /// The device may still have translations of what was to be taken away.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self, SpaceError::Device(_) | SpaceError::Shadow(ShadowError::Damaged(_)))
    }
}

/// Whether the mediator's own pages can be at `at`: in the TiB of the GPFIFO, of whose address parts of commands take the upper
/// bits.
fn suits(at: u64, gpfifo: u64) -> bool {
    const TIB: u64 = 1 << 40;
    let last = at.checked_add(OWN_BYTES - 1);
    at / TIB == gpfifo / TIB && last.is_some_and(|last| last / TIB == gpfifo / TIB)
}

/// Where the mediator's own pages go: behind the window, or before it.
fn own_range((lo, bytes): (u64, u64), gpfifo: u64) -> Option<u64> {
    let end = lo.checked_add(bytes)?;
    let before = lo.checked_sub(OWN_BYTES).filter(|at| *at > 0);
    [Some(end), before].into_iter().flatten().find(|at| suits(*at, gpfifo))
}

impl Space {
    /// A shadow for what lies below `root`; all of it is stale. With `entered`, hypercalls decide.
    pub(crate) fn new(
        tables: &mut ShadowTables,
        root: PhysAddr,
        window: (u64, u64),
        entered: bool,
    ) -> Result<Space, SpaceError> {
        let end = window.0.checked_add(window.1).ok_or(SpaceError::Window(window.0, window.1))?;
        let range = window.0..end;
        let shadow = if entered {
            Shadow::entered(tables, range, MOST_TABLES)?
        } else {
            Shadow::new(tables, root, range, MOST_TABLES)?
        };
        let (slots, changes) = (vec![false; SLOTS as usize], Changes::default());
        Ok(Space {
            shadow,
            window,
            own: None,
            slots,
            changes,
            channels: 0,
            entered,
            tracked: None,
            counted: TrackedPages::default(),
        })
    }

    /// Whether what the guest stores into its tables is noticed or looked for, rather than announced by the guest.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked.is_some()
    }

    /// From now on stores into the guest's tables are noticed or looked for, if the guest is not to announce them.
    pub(crate) fn track(&mut self, watch: &TableWatch) {
        self.tracked = watch
            .how()
            .map(|(policy, notices, costs)| Tracked::new(&mut self.shadow, Tracking::new(policy, notices, costs)));
    }

    /// Nothing is noticed any more. `root` is the guest's.
    pub(crate) fn end_tracking(&mut self, root: PhysAddr, watch: &mut TableWatch) {
        self.count(watch);
        let Some(tracked) = self.tracked.take() else { return };
        tracked.end(&mut self.shadow, &mut watch.of(root));
        // Its pages are gone, what it has counted stays.
        let counted = std::mem::take(&mut self.counted);
        watch.counts.replace(&TrackedPages { counts: TrackingCounts::default(), ..counted }, &TrackedPages::default());
    }

    /// Adds what tracking has taken since this was last called.
    fn count(&mut self, watch: &mut TableWatch) {
        let Some(tracked) = &self.tracked else { return };
        let (strict, relaxed) = tracked.tracking.pages();
        let now = TrackedPages { strict: strict as u64, relaxed: relaxed as u64, counts: tracked.tracking.counts };
        watch.counts.replace(&std::mem::replace(&mut self.counted, now), &now);
    }

    /// The guest's window.
    pub(crate) fn window(&self) -> (u64, u64) {
        self.window
    }

    /// The window of the shadow: the guest's, and the mediator's own pages.
    pub(crate) fn shadow_window(&self) -> (u64, u64) {
        (self.own.map_or(self.window.0, |own| own.min(self.window.0)), self.window.1 + OWN_BYTES)
    }

    /// Maps the rings of the shadow of a channel whose GPFIFO is at `gpfifo`; gives their address and the slot.
    ///
    /// # Errors
    /// Nothing is mapped, unless it [is left](SpaceError::is_left).
    pub(crate) fn map_channel(
        &mut self,
        tables: &mut ShadowTables,
        lease: &Lease,
        vram: u64,
        gpfifo: u64,
    ) -> Result<Option<(u64, u32)>, SpaceError> {
        let own = self.own.or_else(|| own_range(self.window, gpfifo)).filter(|own| suits(*own, gpfifo));
        let own = own.ok_or(SpaceError::Gpfifo(gpfifo))?;
        let Some(slot) = self.slots.iter().position(|used| !used) else { return Ok(None) };
        self.own = Some(own);
        self.slots[slot] = true;
        let va = own + slot as u64 * SLOT_BYTES;
        let rights = Rights { read_only: true, ..Rights::default() };
        let mapped = MAPPED.iter().try_for_each(|(offset, bytes)| {
            let at = PhysAddr::vram(vram + offset);
            self.shadow.map_own(va + offset, *bytes, at, rights, tables, &mut self.changes)
        });
        match mapped.map_err(SpaceError::from).and_then(|()| self.publish(tables, lease).map(drop)) {
            Ok(()) => Ok(Some((va, slot as u32))),
            // One of the parts may be there, of memory that is going to be somebody else's.
            Err(error) => Err(self.unmap_channel(tables, lease, slot as u32).err().unwrap_or(error)),
        }
    }

    /// Takes a shadow channel's rings away.
    pub(crate) fn unmap_channel(
        &mut self,
        tables: &mut ShadowTables,
        lease: &Lease,
        slot: u32,
    ) -> Result<(), SpaceError> {
        let Some(own) = self.own else { return Ok(()) };
        let va = own + u64::from(slot) * SLOT_BYTES;
        for (offset, bytes) in MAPPED {
            self.shadow.unmap_own(va + offset, bytes, tables, &mut self.changes)?;
        }
        self.publish(tables, lease)?;
        self.slots[slot as usize] = false;
        Ok(())
    }

    /// Makes the shadow follow the guest's tables where they were invalidated; `all`: everywhere, entry by entry.
    pub(crate) fn reflect(
        &mut self,
        tables: &mut ShadowTables,
        lease: &Lease,
        memory: &GuestMemory,
        all: bool,
    ) -> Result<Work, SpaceError> {
        let mut done = Ok(Progress::Done);
        for go in 0..GOES {
            done = if all && go == 0 {
                self.shadow.rescan(memory, memory, tables, BUDGET, &mut self.changes)
            } else {
                self.shadow.reflect(memory, memory, tables, BUDGET, &mut self.changes)
            };
            if done != Ok(Progress::More) {
                break;
            }
        }
        let work = self.publish(tables, lease)?;
        done?;
        Ok(work)
    }

    /// As [`Space::reflect`], where stores are noticed or looked for. `submitted`: what was not told is looked for.
    pub(crate) fn follow_stores(
        &mut self,
        (root, submitted): (PhysAddr, bool),
        tables: &mut ShadowTables,
        lease: &Lease,
        memory: &GuestMemory,
        watch: &mut TableWatch,
    ) -> Result<Work, SpaceError> {
        let Some(tracked) = &mut self.tracked else { return Ok(Work::default()) };
        let mut with = Reflection { guest: memory, mem: tables, budget: BUDGET, changes: &mut self.changes };
        let mut done = Ok(Progress::More);
        for go in 0..GOES {
            done = if go == 0 && submitted {
                tracked.submit(&mut self.shadow, &mut watch.of(root), &mut with)
            } else {
                tracked.reflect(&mut self.shadow, &mut watch.of(root), &mut with)
            };
            if done != Ok(Progress::More) {
                break;
            }
        }
        self.count(watch);
        let work = self.publish(tables, lease)?;
        done?;
        Ok(work)
    }

    /// The guest has stored into tables of this space, in one page, and that has trapped. True if the shadow has to follow.
    pub(crate) fn stored(&mut self, root: PhysAddr, part: (PhysAddr, u64), watch: &mut TableWatch) -> bool {
        let Some(tracked) = &mut self.tracked else { return false };
        tracked.stored(part, &mut self.shadow, &mut watch.of(root))
    }

    /// A page that was protected has been stored into: nobody says where.
    pub(crate) fn written(&mut self, page: PhysAddr) {
        if let Some(tracked) = &mut self.tracked {
            tracked.tracking.written(page);
        }
    }

    /// Takes over what there is of a trap, and the policy, from now on.
    pub(crate) fn change_tracking(&mut self, root: PhysAddr, watch: &mut TableWatch) {
        if let (Some(tracked), Some((policy, notices, costs))) = (&mut self.tracked, watch.how()) {
            tracked.change(policy, (notices, costs), &mut self.shadow, &mut watch.of(root));
        }
    }

    /// Takes out all that leads to memory of the host's which the guest no longer has.
    pub(crate) fn revoke(
        &mut self,
        tables: &mut ShadowTables,
        lease: &Lease,
        lost: &[(PhysAddr, u64)],
    ) -> Result<(), SpaceError> {
        for (at, bytes) in lost {
            self.shadow.revoke(*at, *bytes, tables, &mut self.changes)?;
        }
        self.publish(tables, lease).map(drop)
    }

    /// Has the device forget what has changed since it was last told; tables that were freed on the way can be used again
    /// then. What it does not forget now it is told of the next time.
    pub(crate) fn publish(&mut self, tables: &mut ShadowTables, lease: &Lease) -> Result<Work, SpaceError> {
        if !self.changes.ranges().is_empty()
            && let Err(error) = lease.invalidate(self.shadow.root(), self.changes.ranges())
        {
            tables.lose();
            return Err(error.into());
        }
        tables.settle();
        let found = self.changes.found.take();
        let work = std::mem::take(&mut self.changes).work;
        self.changes.found = found;
        Ok(work)
    }

    /// Ends a space that no channel is bound to.
    pub(crate) fn end(
        mut self,
        guest_root: PhysAddr,
        tables: &mut ShadowTables,
        lease: &Lease,
        watch: &mut TableWatch,
    ) {
        self.end_tracking(guest_root, watch);
        let root = self.shadow.root();
        self.shadow.destroy(tables);
        match lease.invalidate_all(root) {
            Ok(()) => tables.settle(),
            Err(error) => {
                log_limit::error!(%error, "shadow page tables are not used again");
                tables.lose();
            }
        }
    }
}

/// A space as the device sees it for a channel, as long as nothing changes its shadow. Pages that were read last are not looked
/// up again.
pub(crate) struct View<'a> {
    space: &'a Space,
    tables: &'a ShadowTables,
    memory: &'a GuestMemory,
    /// That of the GPFIFO and that of the pushbuffer, mostly: the last first.
    pages: [Option<Page>; 2],
}

/// A page that the shadow shows.
struct Page {
    range: Range<u64>,
    /// `None`: it is sparse.
    memory: Option<HostPage>,
}

impl<'a> View<'a> {
    pub(crate) fn new(space: &'a Space, tables: &'a ShadowTables, memory: &'a GuestMemory) -> View<'a> {
        View { space, tables, memory, pages: [None, None] }
    }

    /// Reads as the device would; false if it may not.
    pub(crate) fn read(&mut self, va: u64, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = va.checked_add(done as u64) else { return false };
            let memory = self.memory;
            let Some(page) = self.page(at) else { return false };
            let part = (page.range.end - at).min((out.len() - done) as u64) as usize;
            let part = &mut out[done..done + part];
            match &page.memory {
                None => part.fill(0),
                Some(host) => host.read(memory, at - page.range.start, part),
            }
            done += part.len();
        }
        true
    }

    /// The page at an address.
    fn page(&mut self, va: u64) -> Option<&Page> {
        let has = |page: &Option<Page>| page.as_ref().is_some_and(|page| page.range.contains(&va));
        if !has(&self.pages[0]) {
            self.pages.swap(0, 1);
        }
        if !has(&self.pages[0]) {
            self.pages[0] = Some(self.find(va)?);
        }
        self.pages[0].as_ref()
    }

    fn find(&self, va: u64) -> Option<Page> {
        let found = translate(self.tables, self.space.shadow.root(), va, Access::READ).ok()?;
        let start = va - va % found.page_bytes;
        let memory = match found.target {
            Target::Sparse => None,
            Target::Memory(host) => {
                let start = PhysAddr { address: host.address - va % found.page_bytes, ..host };
                Some(self.memory.host_page(start, found.page_bytes)?)
            }
        };
        Some(Page { range: start..start + found.page_bytes, memory })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gmmu::TableMemory;
    use gpu_driver::{Driver, HostCost};
    use gpu_spec::mmu::TABLE_BYTES;
    use softgpu::{Config, SoftGpu};

    use super::*;
    use crate::balloon::Balloon;
    use crate::channel::CHANNEL_BYTES;
    use crate::lines::Lines;

    #[test]
    fn a_channel_for_which_tables_are_missing_leaves_nothing() {
        const GIB: u64 = 1 << 30;
        let driver =
            Driver::start(SoftGpu::new(&Config { vram_bytes: 64 << 20, ..Config::default() }).unwrap()).unwrap();
        let budget = driver.budget(HostCost::default()).unwrap();
        let lease = Arc::new(driver.lease(budget, 1, Arc::new(Lines::new(Arc::new(Balloon::new(0))))));
        let mut failed = 0;
        for spare in 0..8 {
            let mut tables = ShadowTables::new(Arc::clone(&lease), 1 << 20);
            let mut space = Space::new(&mut tables, PhysAddr::vram(0), (1024 * GIB, GIB), false).unwrap();
            let channel = lease.take_vram(CHANNEL_BYTES, 64 << 10).unwrap();
            let taken: Vec<PhysAddr> = std::iter::from_fn(|| tables.alloc(TABLE_BYTES)).collect();
            taken[..spare].iter().for_each(|at| tables.free(*at, TABLE_BYTES));
            tables.settle();
            match space.map_channel(&mut tables, &lease, channel.offset, 1024 * GIB) {
                Ok(mapped) => assert_eq!(mapped, Some((1025 * GIB, 0))),
                Err(error) => {
                    assert!(!error.is_left());
                    failed += 1;
                    for (offset, _) in MAPPED {
                        let found = translate(&tables, space.shadow.root(), 1025 * GIB + offset, Access::READ);
                        assert!(found.is_err(), "with {spare} tables: {found:?}");
                    }
                }
            }
        }
        assert!((2..8).contains(&failed), "{failed}");
    }

    #[test]
    fn own_pages_are_in_the_tebibyte_of_the_gpfifo() {
        const TIB: u64 = 1 << 40;
        assert_eq!(own_range((TIB + HUGE_PAGE, 1 << 30), TIB + HUGE_PAGE), Some(TIB + HUGE_PAGE + (1 << 30)));
        // The window ends where the TiB does.
        assert_eq!(own_range((2 * TIB - (1 << 30), 1 << 30), 2 * TIB - 4096), Some(2 * TIB - (1 << 30) - OWN_BYTES));
        // It takes all of it.
        assert_eq!(own_range((TIB, TIB), 2 * TIB - 4096), None);
        assert_eq!(own_range((u64::MAX - 4096, 8192), 0), None);
        assert_eq!(own_range((u64::MAX - 4096, 4096), 0), None);
    }
}
