//! Copies of one run of bytes.
//!
//! - Between places that the GPU sees, its copy engine works, in stream order.
//! - From the program's own memory, a little goes along with the command, and so does somewhat more behind work that is not
//!   done; the rest is written at once, after the work that must come before.
//! - To the program's own memory: read at once, after the work that must come before.
//!
//! Thus copies of pageable memory block, as CUDA lets them, and the bytes are moved once.

use gpu::{Command, DevAddr, MAX_INLINE_BYTES};
use hostmem::HostRange;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::heap::Memory;
use crate::memory::table::Residency;
use crate::work::queues::Length;
use crate::work::stream::StreamState;

/// Least bytes that are written at once while the GPU has nothing to do: from there on that costs less than having the bytes go
/// through the queue, even where an answer has to be waited for.
const AT_ONCE: usize = 16 << 10;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End<'a> {
    /// An address the GPU may use; the host may too if `shared`.
    Gpu { at: DevAddr, shared: bool },
    /// The program's own memory.
    Host(HostRange<'a>),
}

/// A run of bytes as one line.
pub(crate) fn run(dst: DevAddr, src: DevAddr, bytes: u64) -> Command<'static> {
    Command::Copy { dst, src, width: bytes, height: 1, dst_pitch: bytes, src_pitch: bytes }
}

/// Tells by the address what a range is.
///
/// # Errors
/// `INVALID_VALUE` if it is a GPU address, but not all of it allocated.
pub(crate) fn end_of<'a>(memory: &Memory, range: HostRange<'a>) -> Result<End<'a>> {
    Ok(match memory.locate(range.address() as u64, range.len() as u64)? {
        Residency::Device(at) => End::Gpu { at, shared: false },
        Residency::HostVisible(at) => End::Gpu { at, shared: true },
        Residency::Pageable => End::Host(range),
    })
}

/// An address that must be one the GPU may use; whether the host may too.
///
/// # Errors
/// `INVALID_VALUE` if not all of it is allocated.
pub(crate) fn on_gpu(memory: &Memory, address: DevAddr, bytes: u64) -> Result<(DevAddr, bool)> {
    match memory.locate(address.0, bytes)? {
        Residency::Device(at) => Ok((at, false)),
        Residency::HostVisible(at) => Ok((at, true)),
        Residency::Pageable => Err(CudaError::INVALID_VALUE),
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
                write_now(core, at, range, shared)
            })
        }
        (End::Host(range), End::Gpu { at, shared }) => stream.run_here(length, || {
            stream.print();
            core.check()?;
            read_now(core, range, at, shared)
        }),
        (End::Host(dst), End::Host(src)) => stream.run_here(length, || {
            core.check()?;
            dst.copy_from(src);
            Ok(())
        }),
    }
}

/// Copies to GPU memory, here and now.
pub(crate) fn write_now(core: &ContextCore, dst: DevAddr, src: HostRange<'_>, shared: bool) -> Result<()> {
    if shared && core.memory().on_host(dst, src.len(), true, |range| range.copy_from(src)) {
        return Ok(());
    }
    core.link().outcome(core.link().gpu().write(dst, src))
}

/// Copies from GPU memory, here and now.
pub(crate) fn read_now(core: &ContextCore, dst: HostRange<'_>, src: DevAddr, shared: bool) -> Result<()> {
    if shared && core.memory().on_host(src, dst.len(), false, |range| dst.copy_from(range)) {
        return Ok(());
    }
    core.link().outcome(core.link().gpu().read(dst, src))
}
