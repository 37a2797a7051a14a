//! Fills of linear and pitched memory (`cuMemset*`).

use std::sync::Arc;

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::Result;
use crate::graph::node::Work;
use crate::handle::Stream;
use crate::values::Fill;

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
        if let Some(capture) = self.captured(stream)? {
            let core = Arc::clone(&capture.stream.core);
            fill.command(&self.memory, core.gpu.ordinal)?;
            return capture.add(Work::Fill { fill, core });
        }
        let stream = self.stream(stream)?;
        let Some((command, shared)) = fill.command(&self.memory, stream.core.gpu.ordinal)? else { return Ok(()) };
        stream.submit(&[command])?;
        if wait && shared { stream.synchronize() } else { Ok(()) }
    }
}
