//! Copies of one run of bytes.
//!
//! - Between places that the GPU sees, its copy engine works, in stream order.
//! - From the program's own memory, a little goes along with the command, and so does somewhat more behind work that is not
//!   done; the rest is written at once, after the work that must come before.
//! - Between places of which the stream's GPU does not see one: [`between`](crate::work::between).
//! - To the program's own memory: read at once, after the work that must come before.
//!
//! Thus copies of pageable memory block, as CUDA lets them, and the bytes are moved once.

use std::sync::Arc;

use gpu::{Command, DevAddr, MAX_INLINE_BYTES};
use hostmem::HostRange;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::heap::Memory;
use crate::memory::memories::Memories;
use crate::memory::table::Residency;
use crate::work::between::{Line, Site, copy_in_order};
use crate::work::queues::Length;
use crate::work::stream::StreamState;

/// Least bytes that are written at once while the GPU has nothing to do: from there on that costs less than having the bytes go
/// through the queue, even where an answer has to be waited for.
const AT_ONCE: usize = 16 << 10;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// An address that the stream's GPU may use; the host may too if `shared`.
    Gpu { at: DevAddr, shared: bool },
    /// One that another GPU may use, whose memory this is.
    Away { memory: &'a Arc<Memory>, at: DevAddr, shared: bool },
    /// The program's own memory.
    Host(HostRange<'a>),
}

impl End<'_> {
    /// Where it is, if a GPU sees it.
    pub(crate) fn site(self, stream: &StreamState) -> Option<Site> {
        self.site_of(&stream.core)
    }

    /// As `site`, for work of a context.
    pub(crate) fn site_of(self, core: &ContextCore) -> Option<Site> {
        match self {
            End::Gpu { at, shared } => Some(Site { memory: Arc::clone(core.memory()), at, shared }),
            End::Away { memory, at, shared } => Some(Site { memory: Arc::clone(memory), at, shared }),
            End::Host(_) => None,
        }
    }

    /// Whether it is out of the reach of the stream's GPU.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, End::Away { .. })
    }
}

/// A run of bytes as one line.
pub(crate) fn run(dst: DevAddr, src: DevAddr, bytes: u64) -> Command<'static> {
    Command::Copy { dst, src, width: bytes, height: 1, dst_pitch: bytes, src_pitch: bytes }
}

/// What is at an address, as the GPU `here` sees it; `None`: something of the program's own.
fn found(memory: &Memories, here: u32, residency: Residency, bytes: u64) -> Option<End<'_>> {
    let (at, gpu, shared) = match residency {
        Residency::Device(at, gpu) => (at, gpu, false),
        Residency::HostVisible(at, gpu) => (at, gpu, true),
        Residency::Pageable => return None,
    };
    let away = gpu != here && !(shared && memory.sees(here, at, bytes));
    Some(if away { End::Away { memory: memory.of(gpu), at, shared } } else { End::Gpu { at, shared } })
}

/// Tells by the address what a range is, for a stream of the GPU `here`.
///
/// # Errors
/// `INVALID_VALUE` if it is a GPU address, but not all of it allocated.
pub(crate) fn end_of<'a>(memory: &'a Memories, here: u32, range: HostRange<'a>) -> Result<End<'a>> {
    let bytes = range.len() as u64;
    let residency = memory.locate(range.address() as u64, bytes)?;
    Ok(found(memory, here, residency, bytes).unwrap_or(End::Host(range)))
}

/// An address that must be one that a GPU may use.
///
/// # Errors
/// `INVALID_VALUE` if not all of it is allocated.
pub(crate) fn on_some_gpu(memory: &Memories, here: u32, address: DevAddr, bytes: u64) -> Result<End<'_>> {
    found(memory, here, memory.locate(address.0, bytes)?, bytes).ok_or(CudaError::INVALID_VALUE)
}

/// An address that must be one the GPU `here` may use; whether the host may too.
///
/// # Errors
/// `INVALID_VALUE` if not all of it is allocated, or only another GPU may use it.
pub(crate) fn on_gpu(memory: &Memories, here: u32, address: DevAddr, bytes: u64) -> Result<(DevAddr, bool)> {
    match on_some_gpu(memory, here, address, bytes)? {
        End::Gpu { at, shared } => Ok((at, shared)),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// Copies in stream order; `wait` says that host-visible memory must have its content at return.
pub(crate) fn transfer(stream: &StreamState, dst: End<'_>, src: End<'_>, bytes: u64, wait: bool) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let core = &stream.core;
    let length = Length::of_copy(bytes as usize);
    match (dst, src) {
        (End::Gpu { at: dst, shared: to }, End::Gpu { at: src, shared: from }) => {
            stream.submit(&[run(dst, src, bytes)])?;
            if wait && (to || from) { stream.synchronize() } else { Ok(()) }
        }
        (End::Gpu { at, shared }, End::Host(range)) => {
            if range.len() < AT_ONCE || range.len() <= MAX_INLINE_BYTES && !stream.context_idle() {
                let mut data = vec![0; range.len()];
                range.read(&mut data);
                stream.submit(&[Command::Write { dst: at, data: &data }])?;
                return if wait && shared { stream.synchronize() } else { Ok(()) };
            }
            stream.run_here(length, || {
                core.check()?;
                core.memory().write_now(at, range, shared)
            })
        }
        (End::Host(range), End::Gpu { at, shared }) => stream.run_here(length, || {
            stream.print();
            core.check()?;
            core.memory().read_now(range, at, shared)
        }),
        (End::Away { memory, at, shared }, End::Host(range)) => stream.run_here(Length::Long, || {
            core.check()?;
            memory.write_now(at, range, shared)
        }),
        (End::Host(range), End::Away { memory, at, shared }) => stream.run_here(Length::Long, || {
            core.check()?;
            memory.read_now(range, at, shared)
        }),
        (dst @ (End::Away { .. } | End::Gpu { .. }), src @ (End::Away { .. } | End::Gpu { .. })) => {
            let lines = std::iter::once(Line { dst: 0, src: 0, bytes });
            let (Some(dst), Some(src)) = (dst.site(stream), src.site(stream)) else { return Err(CudaError::UNKNOWN) };
            copy_in_order(stream, dst, src, lines)?;
            if wait { stream.synchronize() } else { Ok(()) }
        }
        (End::Host(dst), End::Host(src)) => stream.run_here(length, || {
            core.check()?;
            dst.copy_from(src);
            Ok(())
        }),
    }
}
