//! Stream memory operations: words of memory written and waited for in stream order.

use gpu::{Command, Compare, DevAddr};

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::values::MemOp;
use crate::work::copy::on_gpu;

/// `CU_STREAM_WAIT_VALUE_FLUSH`: remote writes are to be flushed, of which there are none.
const FLUSH: u32 = 1 << 30;

/// How `CU_STREAM_WAIT_VALUE_*` compares.
fn compare(flags: u32) -> Result<Compare> {
    match flags & !FLUSH {
        0 => Ok(Compare::CyclicGeq),
        1 => Ok(Compare::Equal),
        2 => Ok(Compare::And),
        3 => Ok(Compare::Nor),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

impl Driver {
    /// Where a GPU finds a word.
    fn word(&self, gpu: u32, address: DevAddr, wide: bool) -> Result<DevAddr> {
        let bytes = if wide { 8 } else { 4 };
        let (at, _) = on_gpu(&self.memory, gpu, address, bytes)?;
        if at.0.is_multiple_of(bytes) { Ok(at) } else { Err(CudaError::INVALID_VALUE) }
    }

    fn command(&self, gpu: u32, operation: MemOp) -> Result<Option<Command<'static>>> {
        Ok(match operation {
            MemOp::Wait { address, value, wide, flags } => {
                let compare = compare(flags)?;
                Some(Command::WaitValue { at: self.word(gpu, address, wide)?, value, wide, compare })
            }
            MemOp::Write { flags: 2.., .. } => return Err(CudaError::INVALID_VALUE),
            MemOp::Write { address, value, wide, .. } => {
                Some(Command::WriteValue { at: self.word(gpu, address, wide)?, value, wide })
            }
            MemOp::Nothing => None,
        })
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
        self.stream_batch_mem_op(stream, &[MemOp::Write { address, value, wide, flags }], 0)
    }

    /// Waits in stream order until memory compares to a value as `flags` (`CU_STREAM_WAIT_VALUE_*`) say, whoever writes it.
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
        self.stream_batch_mem_op(stream, &[MemOp::Wait { address, value, wide, flags }], 0)
    }

    /// Several operations, in order; all of them or none.
    ///
    /// # Errors
    /// As `stream_write_value`.
    pub fn stream_batch_mem_op(&self, stream: Stream, operations: &[MemOp], flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let stream = self.stream(stream)?;
        let commands =
            operations.iter().filter_map(|operation| self.command(stream.core.gpu.ordinal, *operation).transpose());
        stream.submit(&commands.collect::<Result<Vec<_>>>()?)
    }
}
