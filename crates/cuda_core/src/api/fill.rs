//! Fills of linear and pitched memory (`cuMemset*`).

use gpu::{Command, DevAddr};

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::work::copy::on_gpu;

/// Lines of elements.
#[derive(Clone, Copy)]
struct Fill {
    dst: DevAddr,
    pitch: u64,
    value: u32,
    element: u32,
    width: u64,
    height: u64,
}

impl Driver {
    /// Fills `count` elements of 1, 2 or 4 bytes (`cuMemsetD8` …); `stream` is a default stream. Waits if the host sees
    /// the memory too.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not allocated or not aligned to an element; the context's error.
    pub fn memset(&self, dst: DevAddr, value: u32, element: u32, count: u64, stream: Stream) -> Result<()> {
        self.fill(Fill { dst, pitch: 0, value, element, width: count, height: 1 }, stream, true)
    }

    /// As `memset`, in stream order.
    ///
    /// # Errors
    /// As `memset`, and `INVALID_HANDLE`.
    pub fn memset_async(&self, dst: DevAddr, value: u32, element: u32, count: u64, stream: Stream) -> Result<()> {
        self.fill(Fill { dst, pitch: 0, value, element, width: count, height: 1 }, stream, false)
    }

    /// Fills lines of `width` elements, `pitch` bytes apart.
    ///
    /// # Errors
    /// As `memset`, and `INVALID_VALUE` if the pitch is below the width.
    #[expect(clippy::too_many_arguments, reason = "as many as the CUDA function has")]
    pub fn memset_2d(
        &self,
        dst: DevAddr,
        pitch: u64,
        value: u32,
        element: u32,
        width: u64,
        height: u64,
        stream: Stream,
    ) -> Result<()> {
        self.fill(Fill { dst, pitch, value, element, width, height }, stream, true)
    }

    /// As `memset_2d`, in stream order.
    ///
    /// # Errors
    /// As `memset_2d`, and `INVALID_HANDLE`.
    #[expect(clippy::too_many_arguments, reason = "as many as the CUDA function has")]
    pub fn memset_2d_async(
        &self,
        dst: DevAddr,
        pitch: u64,
        value: u32,
        element: u32,
        width: u64,
        height: u64,
        stream: Stream,
    ) -> Result<()> {
        self.fill(Fill { dst, pitch, value, element, width, height }, stream, false)
    }

    fn fill(&self, fill: Fill, stream: Stream, wait: bool) -> Result<()> {
        let stream = self.stream(stream)?;
        let Fill { dst, pitch, value, element, width, height } = fill;
        if !matches!(element, 1 | 2 | 4) {
            return Err(CudaError::INVALID_VALUE);
        }
        if width == 0 || height == 0 {
            return Ok(());
        }
        let unit = u64::from(element);
        let line = width.checked_mul(unit).ok_or(CudaError::INVALID_VALUE)?;
        let aligned = dst.0.is_multiple_of(unit) && (height == 1 || pitch.is_multiple_of(unit));
        if !aligned || (height > 1 && pitch < line) {
            return Err(CudaError::INVALID_VALUE);
        }
        let all = (height - 1).checked_mul(pitch).and_then(|lines| lines.checked_add(line));
        let (at, shared) = on_gpu(&self.memory, stream.core.gpu.ordinal, dst, all.ok_or(CudaError::INVALID_VALUE)?)?;
        let pitch = if height == 1 { line } else { pitch };
        stream.submit(&[Command::Fill { dst: at, value, element, width, height, pitch }])?;
        if wait && shared { stream.synchronize() } else { Ok(()) }
    }
}
