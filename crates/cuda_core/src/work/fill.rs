//! Fills: lines of elements.

use gpu::{Command, DevAddr};

use crate::error::{CudaError, Result};
use crate::memory::memories::Memories;
use crate::values::Fill;
use crate::work::copy::on_gpu;

impl Fill {
    /// The command, for the GPU `here`, and whether the host sees the memory too; `None` if there is nothing to fill.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not allocated or not aligned to an element, or the pitch is below the width.
    pub(crate) fn command(&self, memory: &Memories, here: u32) -> Result<Option<(Command<'static>, bool)>> {
        let Fill { dst, pitch, value, element, width, height } = *self;
        if !matches!(element, 1 | 2 | 4) {
            return Err(CudaError::INVALID_VALUE);
        }
        if width == 0 || height == 0 {
            return Ok(None);
        }
        let unit = u64::from(element);
        let line = width.checked_mul(unit).ok_or(CudaError::INVALID_VALUE)?;
        let aligned = dst.0.is_multiple_of(unit) && (height == 1 || pitch.is_multiple_of(unit));
        if !aligned || (height > 1 && pitch < line) {
            return Err(CudaError::INVALID_VALUE);
        }
        let all = (height - 1).checked_mul(pitch).and_then(|lines| lines.checked_add(line));
        let (at, shared) = on_gpu(memory, here, DevAddr(dst.0), all.ok_or(CudaError::INVALID_VALUE)?)?;
        let pitch = if height == 1 { line } else { pitch };
        Ok(Some((Command::Fill { dst: at, value, element, width, height, pitch }, shared)))
    }
}
