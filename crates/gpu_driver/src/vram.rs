//! VRAM: which pages are whose, and that nobody sees another's bytes.

use std::ops::Deref;
use std::sync::Arc;

use device_io::{DeviceBacking, VramOffset};
use gpu::{GpuError, VramLedger, VramUse};
use gpu_spec::mmu::{BIG_PAGE, HUGE_PAGE, SMALL_PAGE};
use intervals::FreeRanges;
use parking_lot::{Mutex, MutexGuard};

/// Freed runs of at least this many bytes go back to the host; shorter ones are overwritten.
const DISCARD_BYTES: u64 = 64 << 10;
/// Most runs taken or given back in one go, while everybody else waits.
const RUNS_AT_ONCE: usize = 128;

/// A run of VRAM: offset and length, whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Whose runs are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The driver's own, or a lease's.
    Device,
    /// A client's.
    Client(VramUse),
}

/// The pages of VRAM.
///
/// Invariant: every free page reads as zero. Pages are scrubbed when they are given back, by whoever gives them back, before
/// they can be taken again.
pub(crate) struct Vram {
    backing: Arc<dyn DeviceBacking>,
    /// The innermost lock: nothing else is locked while it is held.
    pages: Mutex<Pages>,
    total: u64,
}

/// What is free, and what those have who were asked for.
#[derive(Default)]
struct Pages {
    free: FreeRanges,
    /// Bytes of clients that count against their limits, and those that do not.
    limited: u64,
    upkeep: u64,
    /// Bytes that could not be scrubbed, or that a device which does not stop may still write: never used again.
    quarantined: u64,
}

impl Pages {
    fn count(&mut self, of: Owner) -> Option<&mut u64> {
        match of {
            Owner::Device => None,
            Owner::Client(VramUse::Upkeep) => Some(&mut self.upkeep),
            Owner::Client(_) => Some(&mut self.limited),
        }
    }

    fn taken(&mut self, of: Owner, bytes: u64) {
        if let Some(count) = self.count(of) {
            *count += bytes;
        }
    }

    fn given(&mut self, of: Owner, bytes: u64) {
        if let Some(count) = self.count(of) {
            *count -= bytes;
        }
    }
}

impl Vram {
    /// Takes over all of the device's VRAM; unless it `is_zero`, as after a reset, it is scrubbed.
    pub(crate) fn new(backing: Arc<dyn DeviceBacking>, is_zero: bool) -> Vram {
        let total = backing.vram_bytes() / SMALL_PAGE * SMALL_PAGE;
        let vram = Vram { backing, pages: Mutex::default(), total };
        let all = [Run { offset: 0, bytes: total }];
        if is_zero {
            vram.put_clean(&all, Owner::Device)
        } else {
            vram.put(&all, Owner::Device)
        }
        vram
    }

    /// All of it, bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.pages.lock().free.free()
    }

    /// Bytes lost to the quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.pages.lock().quarantined
    }

    /// Bytes that count against clients' limits, and those that clients take beside.
    pub(crate) fn of_clients(&self) -> (u64, u64) {
        let pages = self.pages.lock();
        (pages.limited, pages.upkeep)
    }

    /// Bytes that are neither free nor a client's.
    pub(crate) fn beside_clients(&self) -> u64 {
        // One look: what is given back meanwhile is in one of them.
        let pages = self.pages.lock();
        self.total - pages.free.free() - pages.limited - pages.upkeep
    }

    /// Takes `bytes` (whole pages) in one run, aligned to `align`; all zero.
    pub(crate) fn take_run(&self, bytes: u64, align: u64, of: Owner) -> Option<Run> {
        let mut pages = self.pages.lock();
        let offset = pages.free.take(bytes, align)?;
        pages.taken(of, bytes);
        Some(Run { offset, bytes })
    }

    /// Takes `bytes` (whole pages), all zero, in few runs, aligned so that large pages can map them. Where VRAM is in pieces
    /// there may be many: others take theirs in between.
    pub(crate) fn take(&self, bytes: u64, of: Owner) -> Option<Vec<Run>> {
        let mut runs = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let mut pages = self.pages.lock();
            let before = runs.len();
            while left > 0 && runs.len() < before + RUNS_AT_ONCE {
                let Some(run) = take_from(&mut pages.free, left) else { break };
                pages.taken(of, run.bytes);
                left -= run.bytes;
                runs.push(run);
            }
            MutexGuard::unlock_fair(pages);
            if runs.len() == before {
                self.put_clean(&runs, of);
                return None;
            }
        }
        Some(runs)
    }

    /// Makes runs free that nobody has written.
    pub(crate) fn put_clean(&self, runs: &[Run], of: Owner) {
        for runs in runs.chunks(RUNS_AT_ONCE) {
            let mut pages = self.pages.lock();
            for run in runs {
                pages.free.give(run.offset, run.bytes);
                pages.given(of, run.bytes);
            }
            MutexGuard::unlock_fair(pages);
        }
    }

    /// Scrubs runs and makes them free. The device must have no translation to them any more.
    pub(crate) fn put(&self, runs: &[Run], of: Owner) {
        for run in runs {
            if self.scrub(*run) {
                self.put_clean(&[*run], of);
            } else {
                self.quarantine(&[*run], of);
            }
        }
    }

    /// Gives runs up for good, because the device may still use them.
    pub(crate) fn quarantine(&self, runs: &[Run], of: Owner) {
        let bytes = sum(runs);
        {
            let mut pages = self.pages.lock();
            pages.quarantined += bytes;
            pages.given(of, bytes);
        }
        log_limit::error!(bytes, "VRAM is lost until the device is reset");
    }

    fn scrub(&self, run: Run) -> bool {
        if run.bytes >= DISCARD_BYTES && self.backing.discard_vram(VramOffset(run.offset), run.bytes).is_ok() {
            return true;
        }
        let Ok(bytes) = usize::try_from(run.bytes) else { return false };
        self.backing.fill_vram(VramOffset(run.offset), bytes, 0);
        true
    }

    /// The device.
    pub(crate) fn backing(&self) -> &Arc<dyn DeviceBacking> {
        &self.backing
    }
}

fn sum(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.bytes).sum()
}

/// VRAM as one client has it: whatever is taken for it comes and goes by here. Its ledger, if it has one, is asked before, and told
/// behind, so that the ledger never knows of less than is taken.
#[derive(Clone, Debug)]
pub(crate) struct ClientVram {
    vram: Arc<Vram>,
    ledger: Option<Arc<dyn VramLedger>>,
}

impl ClientVram {
    pub(crate) fn new(vram: &Arc<Vram>, ledger: Option<Arc<dyn VramLedger>>) -> ClientVram {
        ClientVram { vram: Arc::clone(vram), ledger }
    }

    /// Asks for bytes that are [taken](ClientVram::take_booked) next.
    pub(crate) fn book(&self, bytes: u64, what: VramUse) -> Result<(), GpuError> {
        self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.take(bytes, what))
    }

    /// Undoes [`ClientVram::book`].
    pub(crate) fn unbook(&self, bytes: u64, what: VramUse) {
        if let Some(ledger) = self.ledger.as_ref().filter(|_| bytes > 0) {
            ledger.give(bytes, what);
        }
    }

    /// As [`Vram::take`], for bytes that are booked.
    pub(crate) fn take_booked(&self, bytes: u64, what: VramUse) -> Option<Vec<Run>> {
        self.vram.take(bytes, Owner::Client(what))
    }

    /// As [`Vram::take_run`], for upkeep.
    pub(crate) fn take_run(&self, bytes: u64, align: u64) -> Result<Run, GpuError> {
        self.book(bytes, VramUse::Upkeep)?;
        self.vram.take_run(bytes, align, Owner::Client(VramUse::Upkeep)).ok_or_else(|| {
            self.unbook(bytes, VramUse::Upkeep);
            GpuError::OutOfMemory { wanted: bytes, free: self.vram.free(), limit: self.vram.total() }
        })
    }

    /// As [`Vram::put`].
    pub(crate) fn put(&self, runs: &[Run], what: VramUse) {
        self.vram.put(runs, Owner::Client(what));
        self.unbook(sum(runs), what);
    }

    /// As [`Vram::put_clean`].
    pub(crate) fn put_clean(&self, runs: &[Run], what: VramUse) {
        self.vram.put_clean(runs, Owner::Client(what));
        self.unbook(sum(runs), what);
    }

    /// As [`Vram::quarantine`].
    pub(crate) fn quarantine(&self, runs: &[Run], what: VramUse) {
        self.vram.quarantine(runs, Owner::Client(what));
        self.unbook(sum(runs), what);
    }
}

impl Deref for ClientVram {
    type Target = Vram;

    fn deref(&self) -> &Vram {
        &self.vram
    }
}

/// One run of at most `most` bytes, as large as there is.
fn take_from(free: &mut FreeRanges, most: u64) -> Option<Run> {
    // Less is free than is wanted: nothing needs to be taken and given back.
    if free.free() < most {
        return None;
    }
    let align = match most {
        HUGE_PAGE.. => HUGE_PAGE,
        BIG_PAGE.. => BIG_PAGE,
        _ => SMALL_PAGE,
    };
    match free.take(most, align) {
        Some(offset) => Some(Run { offset, bytes: most }),
        None => free.take_largest(most, align).map(|(offset, bytes)| Run { offset, bytes }),
    }
}

impl std::fmt::Debug for Vram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vram").field("total", &self.total).field("free", &self.free()).finish_non_exhaustive()
    }
}
