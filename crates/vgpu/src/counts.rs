//! What mediation has taken.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::watch::{TrackedPages, Trap};

/// Counters of a guest, ever since it was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) traps: AtomicU64,
    pub(crate) looks: AtomicU64,
    pub(crate) shadow_updates: AtomicU64,
    pub(crate) entries_scanned: AtomicU64,
    pub(crate) hypercalls: AtomicU64,
    pub(crate) tracked: Mutex<TrackedPages>,
    /// How stores into tables are noticed now.
    pub(crate) trap: Mutex<Option<Trap>>,
}

/// The same, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Accesses to registers and memory of the device that came as messages or posted writes.
    pub traps: u64,
    /// Those of them that asked whether something has happened, at the interrupts: how many depends on time, not on work.
    pub looks: u64,
    /// Times that the shadow of an address space was brought in line with what the guest wants: after a scan of its tables, or for
    /// hypercalls in a row. What GPUvm calls updates of shadow page tables.
    pub shadow_updates: u64,
    /// Entries of the guest's tables that were looked at.
    pub entries_scanned: u64,
    /// Operations of para-virtualized drivers.
    pub hypercalls: u64,
    /// Pages of the guest's tables of which stores are noticed or looked for.
    pub tracked: TrackedPages,
    /// How stores there are noticed now: [`Trap::Snapshot`] as long as the guest has sent nothing for another; `None` where page
    /// tables are not followed.
    pub trap: Option<Trap>,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            traps: load(&self.traps),
            looks: load(&self.looks),
            shadow_updates: load(&self.shadow_updates),
            entries_scanned: load(&self.entries_scanned),
            hypercalls: load(&self.hypercalls),
            tracked: *self.tracked.lock(),
            trap: *self.trap.lock(),
        }
    }
}
