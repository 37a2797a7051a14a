//! Registers, and noticing that the device is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device_io::DeviceBacking;
use gpu_spec::regs;

/// What a register of a device reads as that is no longer there.
const GONE: u32 = u32::MAX;

/// Looks at a register for so long before the thread starts to sleep in between. In a guest each look is a round trip, which
/// takes as long.
const SPIN: Duration = Duration::from_micros(10);

/// The device has not let go of something in time, or no longer answers at all ([`Mmio::is_lost`] tells the two apart). What
/// it is about must not be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Stuck(pub(crate) &'static str);

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
    pub(crate) fn read(&self, offset: u32) -> Result<u32, Stuck> {
        let value = self.backing.read32(offset);
        if value == GONE && self.backing.read32(regs::PMC_BOOT_0) == GONE {
            self.lost.store(true, Ordering::Release);
            return Err(Stuck("the device does not answer"));
        }
        Ok(value)
    }

    /// Reads two registers that count as one of 64 bits, while the device may change them.
    pub(crate) fn read_long(&self, lo: u32, hi: u32) -> Result<u64, Stuck> {
        loop {
            let high = self.read(hi)?;
            let low = self.read(lo)?;
            if self.read(hi)? == high {
                return Ok(u64::from(high) << 32 | u64::from(low));
            }
        }
    }

    /// Writes a register; nothing tells whether the device is still there.
    pub(crate) fn write(&self, offset: u32, value: u32) {
        self.backing.write32(offset, value);
    }

    /// Writes a register, perhaps not before something else is written or read.
    pub(crate) fn write_late(&self, offset: u32, value: u32) {
        self.backing.write32_late(offset, value);
    }

    /// True once the device was found gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Gives the device up.
    pub(crate) fn give_up(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Reads a register until `done` likes it; false if it does not within `bound`.
    pub(crate) fn poll(&self, offset: u32, bound: Duration, done: impl Fn(u32) -> bool) -> Result<bool, Stuck> {
        let mut started = None;
        loop {
            if done(self.read(offset)?) {
                return Ok(true);
            }
            match started.get_or_insert_with(Instant::now).elapsed() {
                passed if passed > bound => return Ok(false),
                passed if passed < SPIN => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
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
