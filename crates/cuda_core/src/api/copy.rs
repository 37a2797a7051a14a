//! Copies, of one run of bytes and of lines and slices.

use std::sync::Arc;

use gpu::DevAddr;
use hostmem::HostRange;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::encode::encode;
use crate::graph::node::Work;
use crate::handle::{Context, Stream};
use crate::values::Copy3D;
use crate::work::copy::{End, end_of, on_some_gpu, transfer};
use crate::work::copy_lines::{copy_lines, ends};

/// One end of a copy, as the call names it.
enum Named<'a> {
    /// GPU memory.
    Gpu(DevAddr),
    /// Any memory: the address tells.
    Any(HostRange<'a>),
}

impl Driver {
    /// Records a copy, if the stream is being captured; else it is for the other functions.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `STREAM_CAPTURE_INVALIDATED`; those of the copy.
    pub fn capture_copy<E: From<CudaError>>(
        &self,
        stream: Stream,
        copy: impl FnOnce() -> std::result::Result<Copy3D<'static>, E>,
    ) -> std::result::Result<bool, E> {
        let Some(capture) = self.captured(stream)? else { return Ok(false) };
        let work = Work::Copy { copy: copy()?, core: Arc::clone(&capture.stream.core) };
        encode(&self.memory, &work)?;
        capture.add(work)?;
        Ok(true)
    }

    /// Finds both ends and copies.
    fn copy(&self, dst: Named<'_>, src: Named<'_>, bytes: u64, stream: Stream, wait: bool) -> Result<()> {
        if wait {
            self.potentially_unsafe()?;
        }
        let stream = self.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let here = stream.core.gpu.ordinal;
        let find = |named| match named {
            Named::Gpu(address) => on_some_gpu(&self.memory, here, address, bytes),
            Named::Any(range) if range.len() as u64 == bytes => end_of(&self.memory, here, range),
            Named::Any(_) => Err(CudaError::INVALID_VALUE),
        };
        let (dst, src) = (find(dst)?, find(src)?);
        if wait {
            self.others_come_first([dst, src])?;
        }
        transfer(&stream, dst, src, bytes, wait)
    }

    /// A copy of a default stream begins when all devices that it concerns have done what they were told before. The stream's own
    /// order says so for its device; this waits for the others.
    fn others_come_first(&self, ends: [End<'_>; 2]) -> Result<()> {
        if !ends.iter().any(|end| end.is_away()) {
            return Ok(());
        }
        let concerned =
            |gpu: u32| ends.iter().any(|end| matches!(end, End::Away { memory, .. } if memory.gpu() == gpu));
        let contexts = self.contexts.all();
        for context in contexts.iter().filter(|context| concerned(context.core.gpu.ordinal) && !context.dead()) {
            // A context that failed runs nothing any more.
            let _ = context.queues.whole().synchronize();
        }
        Ok(())
    }

    /// Copies between any two places, told apart by address; an address in the GPU's range is only looked up, so its
    /// range need not be valid for the host. Waits as CUDA's rules say; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` if sizes differ or GPU addresses are not allocated; the context's error.
    pub fn memcpy(&self, dst: HostRange<'_>, src: HostRange<'_>, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Any(src), dst.len().max(src.len()) as u64, stream, true)
    }

    /// As `memcpy`, in stream order.
    ///
    /// # Errors
    /// As `memcpy`, and `INVALID_HANDLE`.
    pub fn memcpy_async(&self, dst: HostRange<'_>, src: HostRange<'_>, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Any(src), dst.len().max(src.len()) as u64, stream, false)
    }

    /// Host to device; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the destination is not allocated; the context's error.
    pub fn memcpy_htod(&self, dst: DevAddr, src: HostRange<'_>, stream: Stream) -> Result<()> {
        self.copy(Named::Gpu(dst), Named::Any(src), src.len() as u64, stream, true)
    }

    /// Host to device, in stream order.
    ///
    /// # Errors
    /// As `memcpy_htod`, and `INVALID_HANDLE`.
    pub fn memcpy_htod_async(&self, dst: DevAddr, src: HostRange<'_>, stream: Stream) -> Result<()> {
        self.copy(Named::Gpu(dst), Named::Any(src), src.len() as u64, stream, false)
    }

    /// Device to host; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the source is not allocated; the context's error.
    pub fn memcpy_dtoh(&self, dst: HostRange<'_>, src: DevAddr, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Gpu(src), dst.len() as u64, stream, true)
    }

    /// Device to host, in stream order.
    ///
    /// # Errors
    /// As `memcpy_dtoh`, and `INVALID_HANDLE`.
    pub fn memcpy_dtoh_async(&self, dst: HostRange<'_>, src: DevAddr, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Gpu(src), dst.len() as u64, stream, false)
    }

    /// Device to device; `stream` is a default stream. Does not wait, as in CUDA.
    ///
    /// # Errors
    /// `INVALID_VALUE` if a range is not allocated; the context's error.
    pub fn memcpy_dtod(&self, dst: DevAddr, src: DevAddr, bytes: u64, stream: Stream) -> Result<()> {
        self.copy(Named::Gpu(dst), Named::Gpu(src), bytes, stream, true)
    }

    /// Device to device, in stream order.
    ///
    /// # Errors
    /// As `memcpy_dtod`, and `INVALID_HANDLE`.
    pub fn memcpy_dtod_async(&self, dst: DevAddr, src: DevAddr, bytes: u64, stream: Stream) -> Result<()> {
        self.copy(Named::Gpu(dst), Named::Gpu(src), bytes, stream, false)
    }

    /// Between contexts; `stream` is a default stream. Each address names its device.
    ///
    /// # Errors
    /// As `memcpy_dtod`, and `INVALID_CONTEXT`.
    pub fn memcpy_peer(
        &self,
        dst: DevAddr,
        dst_context: Context,
        src: DevAddr,
        src_context: Context,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        self.context(dst_context)?;
        self.context(src_context)?;
        self.memcpy_dtod(dst, src, bytes, stream)
    }

    /// Between contexts, in stream order.
    ///
    /// # Errors
    /// As `memcpy_peer`, and `INVALID_HANDLE`.
    pub fn memcpy_peer_async(
        &self,
        dst: DevAddr,
        dst_context: Context,
        src: DevAddr,
        src_context: Context,
        bytes: u64,
        stream: Stream,
    ) -> Result<()> {
        self.context(dst_context)?;
        self.context(src_context)?;
        self.memcpy_dtod_async(dst, src, bytes, stream)
    }

    /// Copies lines (`cuMemcpy2D`, `cuMemcpy2DUnaligned`: depth 1) and slices; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` for pitches below the width or memory that is not allocated, arrays that there are not, and
    /// copies that are not inside them or cut their elements; the context's error.
    pub fn memcpy_3d(&self, copy: &Copy3D<'_>, stream: Stream) -> Result<()> {
        self.potentially_unsafe()?;
        let stream = self.stream(stream)?;
        let (src, dst) = ends(&stream, &self.memory, copy)?;
        self.others_come_first([dst, src])?;
        copy_lines(&stream, &self.memory, &self.devices.of(&stream.core.gpu).staging, copy, true)
    }

    /// As `memcpy_3d`, in stream order.
    ///
    /// # Errors
    /// As `memcpy_3d`, and `INVALID_HANDLE`.
    pub fn memcpy_3d_async(&self, copy: &Copy3D<'_>, stream: Stream) -> Result<()> {
        let stream = self.stream(stream)?;
        copy_lines(&stream, &self.memory, &self.devices.of(&stream.core.gpu).staging, copy, false)
    }
}
