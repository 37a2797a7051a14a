//! Registers, and noticing that the device is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device_io::DeviceBacking;
use gpu_spec::regs;

/// What a register of a device reads as that is no longer there.
const GONE: u32 = u32::MAX;

/// Looks at a register so often before the thread starts to sleep in between.
const SPINS: u32 = 200;

/// The device no longer answers, or not in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lost(pub(crate) &'static str);

/// The device's registers.
pub(crate) struct Mmio {
    backing: Arc<dyn DeviceBacking>,
    lost: AtomicBool,
}

impl Mmio {
    pub(crate) fn new(backing: Arc<dyn DeviceBacking>) -> Mmio {
        Mmio { backing, lost: AtomicBool::new(false) }
    }

    /// Reads a register.
    pub(crate) fn read(&self, offset: u32) -> Result<u32, Lost> {
        let value = self.backing.read32(offset);
        if value == GONE && self.backing.read32(regs::PMC_BOOT_0) == GONE {
            self.lost.store(true, Ordering::Release);
            return Err(Lost("the device does not answer"));
        }
        Ok(value)
    }

    /// Writes a register; nothing tells whether the device is still there.
    pub(crate) fn write(&self, offset: u32, value: u32) {
        self.backing.write32(offset, value);
    }

    /// True once the device was found gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Gives the device up.
    pub(crate) fn give_up(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Reads a register until `done` likes it.
    pub(crate) fn poll(
        &self,
        offset: u32,
        bound: Duration,
        what: &'static str,
        done: impl Fn(u32) -> bool,
    ) -> Result<(), Lost> {
        let mut started = None;
        let mut spins = 0;
        loop {
            if done(self.read(offset)?) {
                return Ok(());
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let since = *started.get_or_insert_with(Instant::now);
            if since.elapsed() > bound {
                self.give_up();
                return Err(Lost(what));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    pub(crate) fn backing(&self) -> &Arc<dyn DeviceBacking> {
        &self.backing
    }
}

impl std::fmt::Debug for Mmio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mmio").field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}
