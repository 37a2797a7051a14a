//! What clients and leases have had of the GPU, in full: for whoever keeps accounts. [`crate::Usage`] is the part that
//! scheduling needs, at any time and for little.

use gpu_spec::regs::{accounting, metering};

use crate::driver::Driver;
use crate::mmio::{Mmio, Stuck};

/// Ranges of waits that are told apart: [`metering::WAITS`] says which.
pub const WAITS: usize = metering::WAIT_COUNTS as usize;

/// What somebody has had of the GPU so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Metered {
    /// Time of the GPU's multiprocessors, divided by their number, nanoseconds: with everybody else's and [`Unused`] it is the
    /// time that went by.
    pub engine_ns: u64,
    /// Processor time of reading and compiling kernels, nanoseconds.
    pub prepare_ns: u64,
    /// Bytes copied from the host's memory into the GPU's, by the GPU and by the driver. What a program stores there itself,
    /// and what kernels load, is not seen.
    pub bytes_in: u64,
    /// Bytes copied the other way.
    pub bytes_out: u64,
    /// Kernels that have ended.
    pub kernels: u64,
    /// Copies and fills that have ended.
    pub copies: u64,
    /// What kernels and copies have waited for a multiprocessor when nothing else held them, in all, nanoseconds.
    pub waited_ns: u64,
    /// How many of them for how long.
    pub waits: [u64; WAITS],
}

/// Time of a GPU that nobody has had, nanoseconds since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unused {
    /// There was nothing to do.
    pub idle_ns: u64,
    /// Somebody had something to do, and waited for the GPU to turn to it.
    pub overhead_ns: u64,
}

/// The device's counters of a TSG.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readings {
    engine: u64,
    prepare: u64,
    bytes_in: u64,
    bytes_out: u64,
    waited: u64,
    grids: u32,
    copies: u32,
    waits: [u32; WAITS],
}

impl Readings {
    pub(crate) fn take(mmio: &Mmio, tsg: u32) -> Result<Readings, Stuck> {
        let at = |word| metering::word(tsg, word);
        let long = |lo, hi| mmio.read_long(at(lo), at(hi));
        let mut waits = [0; WAITS];
        for (index, count) in waits.iter_mut().enumerate() {
            *count = mmio.read(at(metering::WAITS + 4 * index as u32))?;
        }
        Ok(Readings {
            engine: long(metering::ENGINE_LO, metering::ENGINE_HI)?,
            prepare: long(metering::PREPARE_LO, metering::PREPARE_HI)?,
            bytes_in: long(metering::BYTES_IN_LO, metering::BYTES_IN_HI)?,
            bytes_out: long(metering::BYTES_OUT_LO, metering::BYTES_OUT_HI)?,
            waited: long(metering::WAITED_LO, metering::WAITED_HI)?,
            grids: mmio.read(accounting::word(tsg, accounting::GRIDS))?,
            copies: mmio.read(accounting::word(tsg, accounting::COPIES))?,
            waits,
        })
    }
}

impl Metered {
    /// What a TSG has had between two readings.
    pub(crate) fn add(&mut self, from: &Readings, to: &Readings) {
        self.engine_ns += to.engine.saturating_sub(from.engine);
        self.prepare_ns += to.prepare.saturating_sub(from.prepare);
        self.bytes_in += to.bytes_in.saturating_sub(from.bytes_in);
        self.bytes_out += to.bytes_out.saturating_sub(from.bytes_out);
        self.waited_ns += to.waited.saturating_sub(from.waited);
        self.kernels += u64::from(to.grids.wrapping_sub(from.grids));
        self.copies += u64::from(to.copies.wrapping_sub(from.copies));
        for (sum, (to, from)) in self.waits.iter_mut().zip(to.waits.iter().zip(&from.waits)) {
            *sum += u64::from(to.wrapping_sub(*from));
        }
    }
}

impl Driver {
    /// Time that nobody has had; `None` if the device is lost.
    #[must_use]
    pub fn unused(&self) -> Option<Unused> {
        let mmio = &self.device.mmio;
        let idle_ns = mmio.read_long(metering::IDLE_LO, metering::IDLE_HI).ok()?;
        let overhead_ns = mmio.read_long(metering::OVERHEAD_LO, metering::OVERHEAD_HI).ok()?;
        Some(Unused { idle_ns, overhead_ns })
    }
}
