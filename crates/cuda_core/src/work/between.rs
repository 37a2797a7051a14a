//! Copies to and from memory that the GPU of a stream does not see: of another GPU, or of the host but seen by another GPU only.
//!
//! They go through this process, in blocks. Those that a stream makes in its order, a thread of the stream makes: the caller
//! does not wait, and the other GPU's queues are not touched. Events order it with what the other GPU does.

use std::sync::Arc;

use gpu::DevAddr;
use hostmem::{HostRange, Mapping, Memfd};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::heap::Memory;
use crate::work::stream::StreamState;

/// Most bytes that are on the way at once: they stay in the cache of a core.
const BLOCK: usize = 1 << 20;

/// Memory of a GPU, with the GPU that it is of.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) memory: Arc<Memory>,
    pub(crate) at: DevAddr,
    /// The host sees it, too.
    pub(crate) shared: bool,
}

impl Site {
    fn behind(&self, bytes: u64) -> DevAddr {
        DevAddr(self.at.0 + bytes)
    }

    /// Writes here, and now.
    pub(crate) fn write(&self, offset: u64, src: HostRange<'_>) -> Result<()> {
        self.memory.write_now(self.behind(offset), src, self.shared)
    }

    /// Reads here, and now.
    pub(crate) fn read(&self, dst: HostRange<'_>, offset: u64) -> Result<()> {
        self.memory.read_now(dst, self.behind(offset), self.shared)
    }
}

/// Lines to copy: at which offsets of either site, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) bytes: u64,
}

/// Copies lines between two sites, here and now.
pub(crate) fn copy(dst: &Site, src: &Site, lines: impl Iterator<Item = Line>) -> Result<()> {
    let mut buffer: Option<Mapping> = None;
    for line in lines {
        let mut done = 0;
        while done < line.bytes {
            let bytes = (line.bytes - done).min(BLOCK as u64) as usize;
            let (to, from) = (line.dst + done, line.src + done);
            let mut moved = Err(CudaError::UNKNOWN);
            // What the host sees needs no buffer.
            let direct = src.shared
                && src.memory.on_host(src.behind(from), bytes, false, |range| moved = dst.write(to, range))
                || dst.shared && dst.memory.on_host(dst.behind(to), bytes, true, |range| moved = src.read(range, from));
            if !direct {
                let buffer = match &buffer {
                    Some(buffer) => buffer,
                    None => buffer.insert(block().ok_or(CudaError::OUT_OF_MEMORY)?),
                };
                let block = buffer.range(0, bytes);
                moved = src.read(block, from).and_then(|()| dst.write(to, block));
            }
            moved?;
            done += bytes as u64;
        }
    }
    Ok(())
}

fn block() -> Option<Mapping> {
    Memfd::create("cuda-between", BLOCK as u64).and_then(|file| file.map()).ok()
}

/// Copies lines between two sites in a stream's order. If that fails, so does the stream's context.
pub(crate) fn copy_in_order(
    stream: &StreamState,
    dst: Site,
    src: Site,
    lines: impl Iterator<Item = Line> + Send + 'static,
) -> Result<()> {
    let core: Arc<ContextCore> = Arc::clone(&stream.core);
    stream.run_on_host(Box::new(move |ready: Result<()>| {
        // A context that failed, or is no more, copies nothing.
        if ready.is_err() {
            return;
        }
        if let Err(error) = copy(&dst, &src, lines) {
            core.stick(
                error,
                || tracing::error!(context = core.id.0, %error, "a copy between GPUs failed, and its context with it"),
            );
        }
    }))
}
