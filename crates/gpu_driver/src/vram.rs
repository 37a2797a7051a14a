//! VRAM: which pages are whose, and that nobody sees another's bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_io::{DeviceBacking, VramOffset};
use gpu_spec::mmu::{BIG_PAGE, HUGE_PAGE, SMALL_PAGE};
use parking_lot::Mutex;

use crate::extents::Extents;

/// Freed runs of at least this many bytes go back to the host; shorter ones are overwritten.
const DISCARD_BYTES: u64 = 64 << 10;

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
    free: Mutex<Extents>,
    total: u64,
    /// Bytes that could not be scrubbed, or that a device which does not stop may still write: never used again.
    quarantined: AtomicU64,
}

impl Vram {
    /// Takes over all of the device's VRAM, which is scrubbed.
    pub(crate) fn new(backing: Arc<dyn DeviceBacking>) -> Vram {
        let total = backing.vram().len() as u64 / SMALL_PAGE * SMALL_PAGE;
        let vram = Vram { backing, free: Mutex::default(), total, quarantined: AtomicU64::new(0) };
        vram.put(&[Run { offset: 0, bytes: total }]);
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

    /// Takes `bytes` (whole pages) in one run, aligned to `align`; all zero.
    pub(crate) fn take_run(&self, bytes: u64, align: u64) -> Option<Run> {
        self.free.lock().take(bytes, align).map(|offset| Run { offset, bytes })
    }

    /// Takes `bytes` (whole pages), all zero, in few runs, aligned so that large pages can map them.
    pub(crate) fn take(&self, bytes: u64) -> Option<Vec<Run>> {
        let mut free = self.free.lock();
        if free.free() < bytes {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let align = match left {
                HUGE_PAGE.. => HUGE_PAGE,
                BIG_PAGE.. => BIG_PAGE,
                _ => SMALL_PAGE,
            };
            let run = match free.take(left, align) {
                Some(offset) => Run { offset, bytes: left },
                None => {
                    let (offset, bytes) = free.take_largest(left, align)?;
                    Run { offset, bytes }
                }
            };
            left -= run.bytes;
            runs.push(run);
        }
        Some(runs)
    }

    /// Scrubs runs and makes them free. The device must have no translation to them any more.
    pub(crate) fn put(&self, runs: &[Run]) {
        for run in runs {
            if self.scrub(*run) {
                self.free.lock().put(run.offset, run.bytes);
            } else {
                self.quarantine(&[*run]);
            }
        }
    }

    /// Gives runs up for good, because the device may still use them.
    pub(crate) fn quarantine(&self, runs: &[Run]) {
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        self.quarantined.fetch_add(bytes, Ordering::Relaxed);
        tracing::error!(bytes, "VRAM is lost until the device is reset");
    }

    fn scrub(&self, run: Run) -> bool {
        if run.bytes >= DISCARD_BYTES && self.backing.discard_vram(VramOffset(run.offset), run.bytes).is_ok() {
            return true;
        }
        let (Ok(offset), Ok(bytes)) = (usize::try_from(run.offset), usize::try_from(run.bytes)) else {
            return false;
        };
        self.backing.vram().fill(offset, bytes, 0);
        true
    }

    /// The device.
    pub(crate) fn backing(&self) -> &Arc<dyn DeviceBacking> {
        &self.backing
    }
}

impl std::fmt::Debug for Vram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vram").field("total", &self.total).field("free", &self.free()).finish_non_exhaustive()
    }
}
