//! Copies of one run of bytes.
//!
//! - Between places that the GPU sees, its copy engine works, in stream order.
//! - From the program's own memory, a little goes along with the command, and so does somewhat more behind work that is not
//!   done; the rest is written at once, after the work that must come before.
//! - To the program's own memory: read at once, after the work that must come before.
//!
//! Thus copies of pageable memory block, as CUDA lets them, and the bytes are moved once.

use std::sync::Arc;

use gpu::{Command, DevAddr, MAX_INLINE_BYTES};
use hostmem::HostRange;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Context, Stream};
use crate::heap::Place;
use crate::stream::StreamState;

/// Least bytes that are written at once while the GPU has nothing to do: waiting for the answer costs less than having the
/// bytes go through the queue.
const AT_ONCE: usize = 16 << 10;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// An address the GPU may use; the host may too if `shared`.
    Gpu { at: DevAddr, shared: bool },
    /// The program's own memory.
    Host(HostRange),
}

/// One end of a copy, as the call names it.
enum Named {
    /// GPU memory.
    Gpu(DevAddr),
    /// Any memory: the address tells.
    Any(HostRange),
}

/// A run of bytes as one line.
pub(crate) fn run(dst: DevAddr, src: DevAddr, bytes: u64) -> Command<'static> {
    Command::Copy { dst, src, width: bytes, height: 1, dst_pitch: bytes, src_pitch: bytes }
}

impl Driver {
    /// Tells by the address what a range is.
    pub(crate) fn end(&self, range: HostRange) -> Result<End> {
        Ok(match self.shared.memory.locate(range.address() as u64, range.len() as u64)? {
            Place::Device(at) => End::Gpu { at, shared: false },
            Place::Shared(at) => End::Gpu { at, shared: true },
            Place::Pageable => End::Host(range),
        })
    }

    /// An address that must be one the GPU may use.
    pub(crate) fn device_end(&self, address: DevAddr, bytes: u64) -> Result<End> {
        match self.shared.memory.locate(address.0, bytes)? {
            Place::Device(at) => Ok(End::Gpu { at, shared: false }),
            Place::Shared(at) => Ok(End::Gpu { at, shared: true }),
            Place::Pageable => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Finds both ends and copies.
    fn copy(&self, dst: Named, src: Named, bytes: u64, stream: Stream, wait: bool) -> Result<()> {
        let stream = self.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let find = |named| match named {
            Named::Gpu(address) => self.device_end(address, bytes),
            Named::Any(range) if range.len() as u64 == bytes => self.end(range),
            Named::Any(_) => Err(CudaError::INVALID_VALUE),
        };
        self.transfer(find(dst)?, find(src)?, bytes, &stream, wait)
    }

    /// Copies; `wait` says that host-visible memory must have its content at return.
    pub(crate) fn transfer(&self, dst: End, src: End, bytes: u64, stream: &Arc<StreamState>, wait: bool) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match (dst, src) {
            (End::Gpu { at: dst, shared: to }, End::Gpu { at: src, shared: from }) => {
                stream.submit(&[run(dst, src, bytes)])?;
                if wait && (to || from) { stream.synchronize() } else { Ok(()) }
            }
            (End::Gpu { at, shared }, End::Host(range)) => {
                if range.len() < AT_ONCE || range.len() <= MAX_INLINE_BYTES && !stream.context.idle() {
                    let mut data = vec![0; range.len()];
                    range.read(&mut data);
                    stream.submit(&[Command::Write { dst: at, data: &data }])?;
                    return if wait && shared { stream.synchronize() } else { Ok(()) };
                }
                stream.fence()?;
                stream.context.check()?;
                self.write_now(at, range, shared)
            }
            (End::Host(range), End::Gpu { at, shared }) => {
                stream.fence()?;
                stream.context.print();
                stream.context.check()?;
                self.read_now(range, at, shared)
            }
            (End::Host(dst), End::Host(src)) => {
                stream.fence()?;
                stream.context.check()?;
                dst.copy_from(src);
                Ok(())
            }
        }
    }

    /// Copies to GPU memory, here and now.
    pub(crate) fn write_now(&self, dst: DevAddr, src: HostRange, shared: bool) -> Result<()> {
        if shared && self.on_host(dst, src.len(), true, |range| range.copy_from(src)) {
            return Ok(());
        }
        self.shared.note(self.shared.gpu.write(dst, src))
    }

    /// Copies from GPU memory, here and now.
    pub(crate) fn read_now(&self, dst: HostRange, src: DevAddr, shared: bool) -> Result<()> {
        if shared && self.on_host(src, dst.len(), false, |range| dst.copy_from(range)) {
            return Ok(());
        }
        self.shared.note(self.shared.gpu.read(dst, src))
    }

    /// Calls `f` with GPU memory as the host sees it, if it does.
    pub(crate) fn on_host(&self, at: DevAddr, bytes: usize, write: bool, f: impl FnOnce(HostRange)) -> bool {
        self.shared
            .memory
            .arena(&self.shared)
            .is_ok_and(|arena| arena.window.with(at.0 - arena.lo, bytes as u64, write, f).is_ok())
    }

    /// Copies between any two places, told apart by address; an address in the GPU's range is only looked up, so its
    /// range need not be valid for the host. Waits as CUDA's rules say; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` if sizes differ or GPU addresses are not allocated; the context's error.
    pub fn memcpy(&self, dst: HostRange, src: HostRange, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Any(src), dst.len().max(src.len()) as u64, stream, true)
    }

    /// As `memcpy`, in stream order.
    ///
    /// # Errors
    /// As `memcpy`, and `INVALID_HANDLE`.
    pub fn memcpy_async(&self, dst: HostRange, src: HostRange, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Any(src), dst.len().max(src.len()) as u64, stream, false)
    }

    /// Host to device; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the destination is not allocated; the context's error.
    pub fn memcpy_htod(&self, dst: DevAddr, src: HostRange, stream: Stream) -> Result<()> {
        self.copy(Named::Gpu(dst), Named::Any(src), src.len() as u64, stream, true)
    }

    /// Host to device, in stream order.
    ///
    /// # Errors
    /// As `memcpy_htod`, and `INVALID_HANDLE`.
    pub fn memcpy_htod_async(&self, dst: DevAddr, src: HostRange, stream: Stream) -> Result<()> {
        self.copy(Named::Gpu(dst), Named::Any(src), src.len() as u64, stream, false)
    }

    /// Device to host; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the source is not allocated; the context's error.
    pub fn memcpy_dtoh(&self, dst: HostRange, src: DevAddr, stream: Stream) -> Result<()> {
        self.copy(Named::Any(dst), Named::Gpu(src), dst.len() as u64, stream, true)
    }

    /// Device to host, in stream order.
    ///
    /// # Errors
    /// As `memcpy_dtoh`, and `INVALID_HANDLE`.
    pub fn memcpy_dtoh_async(&self, dst: HostRange, src: DevAddr, stream: Stream) -> Result<()> {
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

    /// Between contexts; `stream` is a default stream. All contexts of the device see the same memory.
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
}
