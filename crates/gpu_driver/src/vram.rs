//! VRAM: which pages are whose, and that nobody sees another's bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_io::{DeviceBacking, VramOffset};
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

/// The pages of VRAM.
///
/// Invariant: every free page reads as zero. Pages are scrubbed when they are given back, by whoever gives them back, before
/// they can be taken again.
pub(crate) struct Vram {
    backing: Arc<dyn DeviceBacking>,
    /// The innermost lock: nothing else is locked while it is held.
    free: Mutex<FreeRanges>,
    total: u64,
    /// Bytes that could not be scrubbed, or that a device which does not stop may still write: never used again.
    quarantined: AtomicU64,
    /// Bytes taken that count against clients' limits.
    charged: AtomicU64,
}

impl Vram {
    /// Takes over all of the device's VRAM; unless it `is_zero`, as after a reset, it is scrubbed.
    pub(crate) fn new(backing: Arc<dyn DeviceBacking>, is_zero: bool) -> Vram {
        let total = backing.vram_bytes() / SMALL_PAGE * SMALL_PAGE;
        let (quarantined, charged) = (AtomicU64::new(0), AtomicU64::new(0));
        let vram = Vram { backing, free: Mutex::default(), total, quarantined, charged };
        let all = [Run { offset: 0, bytes: total }];
        if is_zero {
            vram.put_clean(&all)
        } else {
            vram.put(&all)
        }
        vram
    }

    /// All of it, bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.free.lock().free()
    }

    /// Bytes lost to the quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// Bytes that count against clients' limits.
    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Counts bytes against a client's limit: before they are taken.
    pub(crate) fn charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Undoes [`Vram::charge`]: when they are free.
    pub(crate) fn refund(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` (whole pages) in one run, aligned to `align`; all zero.
    pub(crate) fn take_run(&self, bytes: u64, align: u64) -> Option<Run> {
        self.free.lock().take(bytes, align).map(|offset| Run { offset, bytes })
    }

    /// Takes `bytes` (whole pages), all zero, in few runs, aligned so that large pages can map them. Where VRAM is in pieces
    /// there may be many: others take theirs in between.
    pub(crate) fn take(&self, bytes: u64) -> Option<Vec<Run>> {
        let mut runs = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let mut free = self.free.lock();
            let before = runs.len();
            while left > 0 && runs.len() < before + RUNS_AT_ONCE {
                let Some(run) = take_from(&mut free, left) else { break };
                left -= run.bytes;
                runs.push(run);
            }
            MutexGuard::unlock_fair(free);
            if runs.len() == before {
                self.put_clean(&runs);
                return None;
            }
        }
        Some(runs)
    }

    /// Makes runs free that nobody has written.
    pub(crate) fn put_clean(&self, runs: &[Run]) {
        for runs in runs.chunks(RUNS_AT_ONCE) {
            let mut free = self.free.lock();
            runs.iter().for_each(|run| free.give(run.offset, run.bytes));
            MutexGuard::unlock_fair(free);
        }
    }

    /// Scrubs runs and makes them free. The device must have no translation to them any more.
    pub(crate) fn put(&self, runs: &[Run]) {
        for run in runs {
            if self.scrub(*run) {
                self.free.lock().give(run.offset, run.bytes);
            } else {
                self.quarantine(&[*run]);
            }
        }
    }

    /// Gives runs up for good, because the device may still use them.
    pub(crate) fn quarantine(&self, runs: &[Run]) {
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        self.quarantined.fetch_add(bytes, Ordering::Relaxed);
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
