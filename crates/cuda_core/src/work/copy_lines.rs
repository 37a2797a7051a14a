//! Copies of lines and slices.
//!
//! The copy engine copies the lines of a slice between any two places that the GPU sees. Lines of the program's own
//! memory are gathered in, or scattered from, a staging buffer that both sides see.

use std::sync::Arc;

use gpu::{Command, DevAddr};
use hostmem::HostRange;
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, NOBODY, Wanted};
use crate::memory::heap::Memory;
use crate::memory::memories::Memories;
use crate::values::{Copy3D, CopyEnd, CopyMemory};
use crate::work::between::{Line, copy as copy_sites, copy_in_order};
use crate::work::copy::{End, end_of, on_some_gpu, run, transfer};
use crate::work::queues::Length;
use crate::work::stream::StreamState;

/// Size of the staging buffer, bytes.
const STAGING: u64 = 4 << 20;
/// Commands submitted at once.
const BATCH: usize = 64;

/// The staging buffers that nobody uses just now.
#[derive(Debug, Default)]
pub(crate) struct Staging(Mutex<Vec<Arc<Allocation>>>);

impl Staging {
    /// Most buffers that are kept.
    const MOST: usize = 2;

    /// Calls `f` with a buffer that nobody else uses.
    fn with<R>(&self, memory: &Memory, f: impl FnOnce(u64) -> Result<R>) -> Result<R> {
        let kept = self.0.lock().pop();
        let buffer = match kept {
            Some(buffer) => buffer,
            None => memory.alloc_host(Wanted::new(STAGING, Kind::InternalHost, NOBODY))?,
        };
        let result = f(buffer.base);
        let mut kept = self.0.lock();
        if kept.len() < Staging::MOST {
            kept.push(buffer);
        } else {
            drop(kept);
            memory.free(buffer.base);
        }
        result
    }
}

/// Lines that follow one another with a pitch, within one slice.
#[derive(Clone, Copy)]
struct Lines {
    width: u64,
    height: u64,
}

/// Copies in stream order; `wait` says that host-visible memory must have its content at return.
pub(crate) fn copy_lines(
    stream: &StreamState,
    memory: &Memories,
    staging: &Staging,
    copy: &Copy3D<'_>,
    wait: bool,
) -> Result<()> {
    let &Copy3D { width, height, depth, .. } = copy;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let copy = &memory.arrays.flat(copy)?;
    let (src, dst) = ends(stream, memory, copy)?;
    // Lines without gaps are one run.
    if let Some(bytes) = run_of(copy)? {
        let (from, to) = (line(src, &copy.src, 0, 0, bytes)?, line(dst, &copy.dst, 0, 0, bytes)?);
        return transfer(stream, to, from, bytes, wait);
    }
    match (dst, src) {
        (End::Gpu { at: to, shared: a }, End::Gpu { at: from, shared: b }) => {
            let mut batch = Vec::with_capacity(BATCH.min(depth as usize));
            for command in slices(copy, to, from) {
                batch.push(command?);
                if batch.len() == BATCH {
                    stream.submit(&batch)?;
                    batch.clear();
                }
            }
            stream.submit(&batch)?;
            if wait && (a || b) { stream.synchronize() } else { Ok(()) }
        }
        (End::Host(to), End::Host(from)) => stream.run_here(Length::Long, || {
            stream.core.check()?;
            each_line(copy, |dst, src| {
                to.part(dst, width as usize).copy_from(from.part(src, width as usize));
                Ok(())
            })
        }),
        (away @ End::Away { .. }, End::Host(range)) => stream.run_here(Length::Long, || {
            stream.core.check()?;
            let site = away.site(stream).ok_or(CudaError::UNKNOWN)?;
            each_line(copy, |dst, src| site.write(dst as u64, range.part(src, width as usize)))
        }),
        (End::Host(range), away @ End::Away { .. }) => stream.run_here(Length::Long, || {
            stream.core.check()?;
            let site = away.site(stream).ok_or(CudaError::UNKNOWN)?;
            each_line(copy, |dst, src| site.read(range.part(dst, width as usize), src as u64))
        }),
        (dst @ (End::Away { .. } | End::Gpu { .. }), src @ (End::Away { .. } | End::Gpu { .. })) => {
            let (Some(dst), Some(src)) = (dst.site(stream), src.site(stream)) else { return Err(CudaError::UNKNOWN) };
            let (to, from) = (Lattice::of(&copy.dst), Lattice::of(&copy.src));
            let all = (0..depth).flat_map(move |slice| (0..height).map(move |line| (line, slice)));
            let lines = all.map(move |at| Line { dst: to.offset(at), src: from.offset(at), bytes: width });
            copy_in_order(stream, dst, src, lines)?;
            if wait { stream.synchronize() } else { Ok(()) }
        }
        (End::Gpu { at, .. }, End::Host(range)) => {
            stream.run_here(Length::Long, || stage(stream, staging, copy, at, range, true))
        }
        (End::Host(range), End::Gpu { at, .. }) => {
            stream.run_here(Length::Long, || stage(stream, staging, copy, at, range, false))
        }
    }
}

/// How many bytes are copied, if they are one run at either end.
fn run_of(copy: &Copy3D<'_>) -> Result<Option<u64>> {
    let &Copy3D { width, height, depth, .. } = copy;
    let dense =
        |end: &CopyEnd<'_>| (height == 1 && depth == 1) || (end.pitch == width && (depth == 1 || end.height == height));
    if !dense(&copy.src) || !dense(&copy.dst) {
        return Ok(None);
    }
    let bytes = width.checked_mul(height).and_then(|slice| slice.checked_mul(depth));
    bytes.ok_or(CudaError::INVALID_VALUE).map(Some)
}

/// The commands that copy between two places that the GPU sees.
pub(crate) fn commands(copy: &Copy3D<'_>, to: DevAddr, from: DevAddr) -> Result<Vec<Command<'static>>> {
    if copy.width == 0 || copy.height == 0 || copy.depth == 0 {
        return Ok(Vec::new());
    }
    let Some(bytes) = run_of(copy)? else { return slices(copy, to, from).collect() };
    let at = |base: DevAddr, end: &CopyEnd<'_>| Some(DevAddr(base.0.checked_add(end.offset(0, 0)?)?));
    let (to, from) = (at(to, &copy.dst), at(from, &copy.src));
    Ok(vec![run(to.ok_or(CudaError::INVALID_VALUE)?, from.ok_or(CudaError::INVALID_VALUE)?, bytes)])
}

/// Copies here and now, whatever the ends are.
pub(crate) fn copy_now(core: &ContextCore, copy: &Copy3D<'_>, dst: End<'_>, src: End<'_>) -> Result<()> {
    let width = copy.width as usize;
    let site = |end: End<'_>| end.site_of(core).ok_or(CudaError::UNKNOWN);
    match (dst, src) {
        (End::Host(to), End::Host(from)) => each_line(copy, |dst, src| {
            to.part(dst, width).copy_from(from.part(src, width));
            Ok(())
        }),
        (gpu, End::Host(range)) => {
            let site = site(gpu)?;
            each_line(copy, |dst, src| site.write(dst as u64, range.part(src, width)))
        }
        (End::Host(range), gpu) => {
            let site = site(gpu)?;
            each_line(copy, |dst, src| site.read(range.part(dst, width), src as u64))
        }
        (to, from) => {
            let (to, from) = (site(to)?, site(from)?);
            each_line(copy, |dst, src| {
                let line = Line { dst: dst as u64, src: src as u64, bytes: copy.width };
                copy_sites(&to, &from, std::iter::once(line))
            })
        }
    }
}

/// The commands that copy between two places that the GPU sees: one for each slice.
fn slices(copy: &Copy3D<'_>, to: DevAddr, from: DevAddr) -> impl Iterator<Item = Result<Command<'static>>> + use<> {
    let Copy3D { width, height, depth, src, dst } = *copy;
    let (dst, src) = (Lattice::of(&dst), Lattice::of(&src));
    (0..depth).map(move |slice| {
        Ok(Command::Copy {
            dst: DevAddr(to.0.checked_add(dst.offset((0, slice))).ok_or(CudaError::INVALID_VALUE)?),
            src: DevAddr(from.0.checked_add(src.offset((0, slice))).ok_or(CudaError::INVALID_VALUE)?),
            width,
            height,
            dst_pitch: dst.pitch,
            src_pitch: src.pitch,
        })
    })
}

/// Where the lines of an end that has been checked to be there begin.
#[derive(Clone, Copy)]
struct Lattice {
    first: u64,
    pitch: u64,
    slice: u64,
}

impl Lattice {
    fn of(end: &CopyEnd<'_>) -> Lattice {
        // What does not fit is multiplied by 0: the last line's end has been computed with checks.
        let slice = end.pitch.wrapping_mul(end.height);
        let first = end.z.wrapping_mul(slice).wrapping_add(end.y.wrapping_mul(end.pitch)).wrapping_add(end.x);
        Lattice { first, pitch: end.pitch, slice }
    }

    fn offset(&self, (line, slice): (u64, u64)) -> u64 {
        let lines = line.wrapping_mul(self.pitch).wrapping_add(slice.wrapping_mul(self.slice));
        self.first.wrapping_add(lines)
    }
}

/// What source and destination are; their bases, with all of them checked to be there.
pub(crate) fn ends<'a>(stream: &StreamState, memory: &'a Memories, copy: &Copy3D<'a>) -> Result<(End<'a>, End<'a>)> {
    ends_seen_by(stream.core.gpu.ordinal, memory, copy)
}

/// As [`ends`], as the GPU `here` sees them.
pub(crate) fn ends_seen_by<'a>(here: u32, memory: &'a Memories, copy: &Copy3D<'a>) -> Result<(End<'a>, End<'a>)> {
    let Copy3D { src, dst, width, height, depth } = memory.arrays.flat(copy)?;
    let src = resolve(memory, here, &src, width, height, depth)?;
    Ok((src, resolve(memory, here, &dst, width, height, depth)?))
}

fn resolve<'a>(
    memory: &'a Memories,
    here: u32,
    end: &CopyEnd<'a>,
    width: u64,
    height: u64,
    depth: u64,
) -> Result<End<'a>> {
    let lines = height > 1 || depth > 1 || end.y > 0 || end.z > 0;
    let pitched = end.x.checked_add(width).is_some_and(|line| line <= end.pitch);
    let sliced = depth == 1 && end.z == 0 || end.y.checked_add(height).is_some_and(|all| all <= end.height);
    if (lines && !pitched) || !sliced {
        return Err(CudaError::INVALID_VALUE);
    }
    let extent = end.extent(width, height, depth).ok_or(CudaError::INVALID_VALUE)?;
    match end.memory {
        CopyMemory::Device(at) => on_some_gpu(memory, here, at, extent),
        CopyMemory::Host(range) | CopyMemory::Unified(range) => {
            if (range.len() as u64) < extent {
                return Err(CudaError::INVALID_VALUE);
            }
            end_of(memory, here, range)
        }
        // Became memory before.
        CopyMemory::Array(_) => Err(CudaError::INVALID_VALUE),
    }
}

/// Copies between pitched host lines and GPU memory through a staging buffer, in the place of a command of the stream.
fn stage(
    stream: &StreamState,
    staging: &Staging,
    copy: &Copy3D<'_>,
    gpu: DevAddr,
    host: HostRange<'_>,
    to_gpu: bool,
) -> Result<()> {
    let &Copy3D { width, height, depth, .. } = copy;
    let (host_end, gpu_end) = if to_gpu { (&copy.src, &copy.dst) } else { (&copy.dst, &copy.src) };
    let core = &stream.core;
    core.check()?;
    if width > STAGING {
        return each_line(copy, |dst, src| {
            let (at, offset) = if to_gpu { (dst, src) } else { (src, dst) };
            let (at, part) = (DevAddr(gpu.0 + at as u64), host.part(offset, width as usize));
            if to_gpu { core.memory().write_now(at, part, false) } else { core.memory().read_now(part, at, false) }
        });
    }
    staging.with(core.memory(), |buffer| {
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
                    move_lines(core.memory(), buffer, lines, host, host_at, host_end.pitch, true)?;
                    stream.run_aside(&[between(at, DevAddr(buffer), gpu_end.pitch, width)])?;
                } else {
                    stream.run_aside(&[between(DevAddr(buffer), at, width, gpu_end.pitch)])?;
                    move_lines(core.memory(), buffer, lines, host, host_at, host_end.pitch, false)?;
                }
                first += lines.height;
            }
        }
        Ok(())
    })
}

/// Moves lines between the staging buffer and pitched host memory.
fn move_lines(
    memory: &Memory,
    buffer: u64,
    lines: Lines,
    host: HostRange<'_>,
    at: usize,
    pitch: u64,
    gather: bool,
) -> Result<()> {
    let bytes = (lines.width * lines.height) as usize;
    let width = lines.width as usize;
    let moved = memory.on_host(DevAddr(buffer), bytes, true, |staging| {
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

/// A line of an end, `bytes` long.
fn line<'a>(base: End<'a>, end: &CopyEnd<'_>, at: u64, slice: u64, bytes: u64) -> Result<End<'a>> {
    let offset = end.offset(at, slice).ok_or(CudaError::INVALID_VALUE)?;
    Ok(match base {
        End::Gpu { at, shared } => {
            End::Gpu { at: DevAddr(at.0.checked_add(offset).ok_or(CudaError::INVALID_VALUE)?), shared }
        }
        End::Away { memory, at, shared } => {
            End::Away { memory, at: DevAddr(at.0.checked_add(offset).ok_or(CudaError::INVALID_VALUE)?), shared }
        }
        End::Host(range) => End::Host(range.part(offset as usize, bytes as usize)),
    })
}

/// Calls `f` with the offsets of each line at the destination and at the source.
fn each_line(copy: &Copy3D<'_>, mut f: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    for slice in 0..copy.depth {
        for line in 0..copy.height {
            let dst = copy.dst.offset(line, slice).ok_or(CudaError::INVALID_VALUE)?;
            let src = copy.src.offset(line, slice).ok_or(CudaError::INVALID_VALUE)?;
            f(dst as usize, src as usize)?;
        }
    }
    Ok(())
}
