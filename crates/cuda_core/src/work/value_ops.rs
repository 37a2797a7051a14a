//! Commands of stream memory operations: words written and waited for.

use gpu::{Command, Compare, DevAddr};

use crate::error::{CudaError, Result};
use crate::memory::memories::Memories;
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

/// Where a GPU finds a word.
fn word(memory: &Memories, gpu: u32, address: DevAddr, wide: bool) -> Result<DevAddr> {
    let bytes = if wide { 8 } else { 4 };
    let (at, _) = on_gpu(memory, gpu, address, bytes)?;
    if at.0.is_multiple_of(bytes) { Ok(at) } else { Err(CudaError::INVALID_VALUE) }
}

/// The command of an operation, for a GPU; `None` if there is nothing to do.
///
/// # Errors
/// `INVALID_VALUE` if the address is not allocated or not aligned, or flags are unknown.
pub(crate) fn command(memory: &Memories, gpu: u32, operation: MemOp) -> Result<Option<Command<'static>>> {
    Ok(match operation {
        MemOp::Wait { address, value, wide, flags } => {
            let compare = compare(flags)?;
            Some(Command::WaitValue { at: word(memory, gpu, address, wide)?, value, wide, compare })
        }
        MemOp::Write { flags: 2.., .. } => return Err(CudaError::INVALID_VALUE),
        MemOp::Write { address, value, wide, .. } => {
            Some(Command::WriteValue { at: word(memory, gpu, address, wide)?, value, wide })
        }
        MemOp::Nothing(_) => None,
    })
}
