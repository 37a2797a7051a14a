//! Copies of lines and slices.
//!
//! The copy engine copies the lines of a slice between any two places that the GPU sees. Lines of the program's own
//! memory are gathered in, or scattered from, a staging buffer that both sides see.

use std::sync::Arc;

use gpu::{Command, ContextId, DevAddr};
use hostmem::HostRange;
use parking_lot::Mutex;

use crate::copy::End;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::heap::{Allocation, Kind, Wanted};
use crate::stream::StreamState;
use crate::types::{Copy3D, CopyEnd, CopyMemory};

/// Size of the staging buffer, bytes.
const STAGING: u64 = 4 << 20;
/// Commands submitted at once.
const BATCH: usize = 64;

/// The staging buffer, made at its first use.
#[derive(Debug, Default)]
pub(crate) struct Staging(Mutex<Option<Arc<Allocation>>>);

/// Lines that follow one another with a pitch, within one slice.
#[derive(Clone, Copy)]
struct Lines {
    width: u64,
    height: u64,
}

impl Driver {
    /// Copies lines (`cuMemcpy2D`, `cuMemcpy2DUnaligned`: depth 1) and slices; `stream` is a default stream.
    ///
    /// # Errors
    /// `INVALID_VALUE` for pitches below the width or memory that is not allocated, `NOT_SUPPORTED` for arrays; the
    /// context's error.
    pub fn memcpy_3d(&self, copy: &Copy3D, stream: Stream) -> Result<()> {
        self.copy_lines(copy, stream, true)
    }

    /// As `memcpy_3d`, in stream order.
    ///
    /// # Errors
    /// As `memcpy_3d`, and `INVALID_HANDLE`.
    pub fn memcpy_3d_async(&self, copy: &Copy3D, stream: Stream) -> Result<()> {
        self.copy_lines(copy, stream, false)
    }

    fn copy_lines(&self, copy: &Copy3D, stream: Stream, wait: bool) -> Result<()> {
        let stream = self.stream(stream)?;
        let &Copy3D { width, height, depth, .. } = copy;
        if width == 0 || height == 0 || depth == 0 {
            return Ok(());
        }
        let src = self.resolve(&copy.src, width, height, depth)?;
        let dst = self.resolve(&copy.dst, width, height, depth)?;
        // Lines without gaps are one run.
        let dense =
            |end: &CopyEnd| (height == 1 && depth == 1) || (end.pitch == width && (depth == 1 || end.height == height));
        if dense(&copy.src) && dense(&copy.dst) {
            let bytes = width.checked_mul(height).and_then(|slice| slice.checked_mul(depth));
            let bytes = bytes.ok_or(CudaError::INVALID_VALUE)?;
            let (from, to) = (line(src, &copy.src, 0, 0, bytes)?, line(dst, &copy.dst, 0, 0, bytes)?);
            return self.transfer(to, from, bytes, &stream, wait);
        }
        match (dst, src) {
            (End::Gpu { at: to, shared: a }, End::Gpu { at: from, shared: b }) => {
                let mut batch = Vec::with_capacity(BATCH.min(depth as usize));
                for slice in 0..depth {
                    let offset = |end: &CopyEnd| end.offset(0, slice).ok_or(CudaError::INVALID_VALUE);
                    batch.push(Command::Copy {
                        dst: DevAddr(to.0 + offset(&copy.dst)?),
                        src: DevAddr(from.0 + offset(&copy.src)?),
                        width,
                        height,
                        dst_pitch: copy.dst.pitch,
                        src_pitch: copy.src.pitch,
                    });
                    if batch.len() == BATCH {
                        stream.submit(&batch)?;
                        batch.clear();
                    }
                }
                stream.submit(&batch)?;
                if wait && (a || b) { stream.synchronize() } else { Ok(()) }
            }
            (End::Host(to), End::Host(from)) => {
                stream.fence()?;
                stream.context.check()?;
                each_line(copy, |dst, src| {
                    to.part(dst, width as usize).copy_from(from.part(src, width as usize));
                    Ok(())
                })
            }
            (End::Gpu { at, .. }, End::Host(range)) => self.stage(copy, &stream, at, range, true),
            (End::Host(range), End::Gpu { at, .. }) => self.stage(copy, &stream, at, range, false),
        }
    }

    /// What an end is; its base, with all of it checked to be there.
    fn resolve(&self, end: &CopyEnd, width: u64, height: u64, depth: u64) -> Result<End> {
        let lines = height > 1 || depth > 1 || end.y > 0 || end.z > 0;
        let pitched = end.x.checked_add(width).is_some_and(|line| line <= end.pitch);
        let sliced = depth == 1 && end.z == 0 || end.y.checked_add(height).is_some_and(|all| all <= end.height);
        if (lines && !pitched) || !sliced {
            return Err(CudaError::INVALID_VALUE);
        }
        let extent = end.extent(width, height, depth).ok_or(CudaError::INVALID_VALUE)?;
        match end.memory {
            CopyMemory::Device(at) => self.device_end(at, extent),
            CopyMemory::Host(range) | CopyMemory::Unified(range) => {
                if (range.len() as u64) < extent {
                    return Err(CudaError::INVALID_VALUE);
                }
                self.end(range)
            }
            CopyMemory::Array(_) => Err(CudaError::NOT_SUPPORTED),
        }
    }

    /// Copies between pitched host lines and GPU memory through the staging buffer; complete at return.
    fn stage(
        &self,
        copy: &Copy3D,
        stream: &Arc<StreamState>,
        gpu: DevAddr,
        host: HostRange,
        to_gpu: bool,
    ) -> Result<()> {
        let &Copy3D { width, height, depth, .. } = copy;
        let (host_end, gpu_end) = if to_gpu { (&copy.src, &copy.dst) } else { (&copy.dst, &copy.src) };
        stream.fence()?;
        stream.context.check()?;
        if width > STAGING {
            return each_line(copy, |dst, src| {
                let (at, offset) = if to_gpu { (dst, src) } else { (src, dst) };
                let (at, part) = (DevAddr(gpu.0 + at as u64), host.part(offset, width as usize));
                if to_gpu { self.write_now(at, part, false) } else { self.read_now(part, at, false) }
            });
        }
        let mut staging = self.staging.0.lock();
        let buffer = match &*staging {
            Some(buffer) => buffer.base,
            None => {
                let wanted = Wanted::new(STAGING, Kind::Pinned, ContextId(0));
                staging.insert(self.shared.memory.alloc(&self.shared, wanted)?).base
            }
        };
        let most = (STAGING / width).max(1);
        for slice in 0..depth {
            let mut first = 0;
            while first < height {
                let lines = Lines { width, height: most.min(height - first) };
                let at = gpu_end.offset(first, slice).and_then(|offset| gpu.0.checked_add(offset));
                let at = DevAddr(at.ok_or(CudaError::INVALID_VALUE)?);
                let host_at = host_end.offset(first, slice).ok_or(CudaError::INVALID_VALUE)? as usize;
                let between = |dst, src, dst_pitch, src_pitch| Command::Copy {
                    dst,
                    src,
                    width,
                    height: lines.height,
                    dst_pitch,
                    src_pitch,
                };
                if to_gpu {
                    self.move_lines(buffer, lines, host, host_at, host_end.pitch, true)?;
                    stream.submit(&[between(at, DevAddr(buffer), gpu_end.pitch, width)])?;
                    stream.synchronize()?;
                } else {
                    stream.submit(&[between(DevAddr(buffer), at, width, gpu_end.pitch)])?;
                    stream.synchronize()?;
                    self.move_lines(buffer, lines, host, host_at, host_end.pitch, false)?;
                }
                first += lines.height;
            }
        }
        Ok(())
    }

    /// Moves lines between the staging buffer and pitched host memory.
    fn move_lines(
        &self,
        buffer: u64,
        lines: Lines,
        host: HostRange,
        at: usize,
        pitch: u64,
        gather: bool,
    ) -> Result<()> {
        let bytes = (lines.width * lines.height) as usize;
        let width = lines.width as usize;
        let moved = self.on_host(DevAddr(buffer), bytes, true, |staging| {
            for line in 0..lines.height as usize {
                let part = host.part(at + line * pitch as usize, width);
                let own = staging.part(line * width, width);
                if gather {
                    own.copy_from(part);
                } else {
                    part.copy_from(own);
                }
            }
        });
        if moved { Ok(()) } else { Err(CudaError::UNKNOWN) }
    }
}

/// A line of an end, `bytes` long.
fn line(base: End, end: &CopyEnd, at: u64, slice: u64, bytes: u64) -> Result<End> {
    let offset = end.offset(at, slice).ok_or(CudaError::INVALID_VALUE)?;
    Ok(match base {
        End::Gpu { at, shared } => {
            End::Gpu { at: DevAddr(at.0.checked_add(offset).ok_or(CudaError::INVALID_VALUE)?), shared }
        }
        End::Host(range) => End::Host(range.part(offset as usize, bytes as usize)),
    })
}

/// Calls `f` with the offsets of each line at the destination and at the source.
fn each_line(copy: &Copy3D, mut f: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    for slice in 0..copy.depth {
        for line in 0..copy.height {
            let dst = copy.dst.offset(line, slice).ok_or(CudaError::INVALID_VALUE)?;
            let src = copy.src.offset(line, slice).ok_or(CudaError::INVALID_VALUE)?;
            f(dst as usize, src as usize)?;
        }
    }
    Ok(())
}
