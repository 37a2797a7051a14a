//! Stream memory operations: words of memory written and waited for in stream order.

use std::sync::Arc;

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::node::Work;
use crate::handle::Stream;
use crate::values::MemOp;
use crate::work::value_ops::command;

impl Driver {
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
        if let Some(capture) = self.captured(stream)? {
            let core = Arc::clone(&capture.stream.core);
            for operation in operations {
                command(&self.memory, core.gpu.ordinal, *operation)?;
            }
            return capture.add(Work::mem_ops(operations, flags, core));
        }
        let stream = self.stream(stream)?;
        let gpu = stream.core.gpu.ordinal;
        let commands = operations.iter().filter_map(|operation| command(&self.memory, gpu, *operation).transpose());
        stream.submit(&commands.collect::<Result<Vec<_>>>()?)
    }
}
