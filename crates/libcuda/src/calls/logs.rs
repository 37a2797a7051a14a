//! The errors that programs can read: those who are told of each, and what is kept of them.

use std::io::Write as _;

use cuda_abi::{CUlogsCallbackHandle, CUresult, HostAddr};

use crate::callback;
use crate::decode::{InOut, Out, Text};
use crate::entry::{Answer, Refusal, refuse};
use crate::error_log::LOG;

pub(crate) fn register_callback(function: HostAddr, data: HostAddr, handle: Out<CUlogsCallbackHandle>) -> Answer {
    handle.set_plain(LOG.register(callback::log(function, data)?));
    Ok(())
}

pub(crate) fn unregister_callback(handle: CUlogsCallbackHandle) -> Answer {
    if LOG.unregister(handle) { Ok(()) } else { refuse(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

pub(crate) fn current(iterator: Out<u32>, flags: u32) -> Answer {
    no_flags(flags)?;
    iterator.required()?;
    iterator.set(LOG.end());
    Ok(())
}

pub(crate) fn dump_to_file(iterator: InOut<u32>, path: Text, flags: u32) -> Answer {
    no_flags(flags)?;
    let (text, end) = LOG.since(start(iterator), usize::MAX).unwrap_or_default();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path.get()?);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|_| Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?;
    iterator.output().set(end);
    Ok(())
}

pub(crate) fn dump_to_memory(iterator: InOut<u32>, buffer: Out<u8>, size: InOut<usize>, flags: u32) -> Answer {
    no_flags(flags)?;
    buffer.required()?;
    let room = size.input().get()?;
    // One byte is for the NUL.
    let dumped = room.checked_sub(1).and_then(|room| LOG.since(start(iterator), room));
    let Some((text, end)) = dumped else {
        size.output().set(0_usize);
        if room > 0 {
            buffer.set(0_u8);
        }
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the C caller promised a buffer of `room` bytes, which text and NUL are no longer than (`decode`).
        unsafe { buffer.set_at(index, byte) };
    }
    size.output().set(text.len());
    iterator.output().set(end);
    Ok(())
}

/// Where a dump begins; `None`: with the oldest.
fn start(iterator: InOut<u32>) -> Option<u32> {
    iterator.input().get().ok()
}

fn no_flags(flags: u32) -> Answer {
    if flags == 0 { Ok(()) } else { refuse(CUresult::CUDA_ERROR_INVALID_VALUE) }
}
