//! Stream memory operations: values written and waited for in stream order.
//!
//! A write is a command. The waist knows no wait for memory, so a wait is a function of the host that looks until the
//! value is there: meant for hand-overs between processes and devices, not for speed.

use std::sync::Arc;
use std::time::Duration;

use gpu::{Command, DevAddr};
use hostmem::Memfd;

use crate::copy::End;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::shared::Shared;
use crate::types::MemOp;

/// Kinds of comparison, `CU_STREAM_WAIT_VALUE_*`; bit 30 asks for a flush of remote writes, of which there are none.
const GEQ: u32 = 0;
const EQ: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;
const FLUSH: u32 = 1 << 30;
/// Pause between two looks: it doubles up to the second value.
const PAUSE: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Compares as `cuStreamWaitValue` does: the difference counts cyclically.
fn met(now: u64, value: u64, wide: bool, how: u32) -> bool {
    let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
    match how {
        GEQ if wide => now.wrapping_sub(value).cast_signed() >= 0,
        GEQ => (now as u32).wrapping_sub(value as u32).cast_signed() >= 0,
        EQ => now & mask == value & mask,
        AND => now & value & mask != 0,
        _ => !(now | value) & mask != 0,
    }
}

impl Driver {
    fn word(&self, address: DevAddr, wide: bool) -> Result<(DevAddr, u64)> {
        let bytes = if wide { 8 } else { 4 };
        let End::Gpu { at, .. } = self.device_end(address, bytes)? else { return Err(CudaError::INVALID_VALUE) };
        if at.0.is_multiple_of(bytes) { Ok((at, bytes)) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Writes a 32- or 64-bit value in stream order.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the address is not allocated or not aligned, `INVALID_HANDLE`.
    pub fn stream_write_value(
        &self,
        stream: Stream,
        address: DevAddr,
        value: u64,
        wide: bool,
        flags: u32,
    ) -> Result<()> {
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        let stream = self.stream(stream)?;
        let (dst, bytes) = self.word(address, wide)?;
        stream.submit(&[Command::Write { dst, data: &value.to_le_bytes()[..bytes as usize] }])
    }

    /// Waits in stream order until memory compares to a value as `flags` (`CU_STREAM_WAIT_VALUE_*`) say.
    ///
    /// # Errors
    /// As `stream_write_value`.
    pub fn stream_wait_value(
        &self,
        stream: Stream,
        address: DevAddr,
        value: u64,
        wide: bool,
        flags: u32,
    ) -> Result<()> {
        let how = flags & !FLUSH;
        if how > NOR {
            return Err(CudaError::INVALID_VALUE);
        }
        let stream = self.stream(stream)?;
        let (at, bytes) = self.word(address, wide)?;
        let shared = Arc::clone(&self.shared);
        let context = Arc::downgrade(&stream.context);
        stream.run_on_host(Box::new(move |before| {
            if before.is_err() {
                return;
            }
            let mut pause = PAUSE[0];
            while context.upgrade().is_some_and(|context| context.check().is_ok()) {
                match look(&shared, at, bytes) {
                    Ok(now) if met(now, value, wide, how) => return,
                    Ok(_) => std::thread::sleep(pause),
                    // Unmapped meanwhile, or the GPU is lost: nothing to wait for.
                    Err(_) => return,
                }
                pause = (pause * 2).min(PAUSE[1]);
            }
        }))
    }

    /// Several operations, in order.
    ///
    /// # Errors
    /// As `stream_write_value`; those before the failing one are under way.
    pub fn stream_batch_mem_op(&self, stream: Stream, operations: &[MemOp], flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        operations.iter().try_for_each(|operation| match *operation {
            MemOp::Wait { address, value, wide, flags } => self.stream_wait_value(stream, address, value, wide, flags),
            MemOp::Write { address, value, wide, flags } => {
                self.stream_write_value(stream, address, value, wide, flags)
            }
            MemOp::Nothing => Ok(()),
        })
    }
}

/// Reads a word of GPU memory now.
fn look(shared: &Shared, at: DevAddr, bytes: u64) -> Result<u64> {
    let mut word = [0; 8];
    if let Ok(arena) = shared.memory.arena(shared)
        && arena.window.read(at.0 - arena.lo, &mut word[..bytes as usize]).is_ok()
    {
        return Ok(u64::from_le_bytes(word));
    }
    let page = Memfd::create("value", 8).and_then(|file| file.map()).map_err(|_| CudaError::OPERATING_SYSTEM)?;
    shared.note(shared.gpu.read(page.range(0, bytes as usize), at))?;
    page.read(0, &mut word);
    Ok(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_cyclic_and_bitwise() {
        let minus = |n: u64| 0u64.wrapping_sub(n);
        // now, value, wide, how, met
        let table = [
            (5, 5, false, GEQ, true),
            (4, 5, false, GEQ, false),
            (2, 0xFFFF_FFFF, false, GEQ, true),
            (2, 0xFFFF_FFFF, true, GEQ, false),
            (2, minus(1), true, GEQ, true),
            (1 << 40, 0, false, EQ, true),
            (1 << 40, 0, true, EQ, false),
            (6, 2, false, AND, true),
            (5, 2, true, AND, false),
            (0xFFFF_FFF0, 0xF, false, NOR, false),
            (0xFFFF_FFF0, 0xE, false, NOR, true),
        ];
        for (now, value, wide, how, expect) in table {
            assert_eq!(met(now, value, wide, how), expect, "{now:#x} {value:#x} {wide} {how}");
        }
    }
}
