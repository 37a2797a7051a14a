//! Places for descriptors in a context's memory.
//!
//! ```text
//!          take                      give back                many                work of before is over
//! free ───────────► a descriptor ───────────────► left alone ────────► watched ──────────────────────────► free
//! ```
//! Programs destroy textures behind launches that use them: a place is left alone until no kernel can look at it any more.
//! Nobody waits for that: a kernel may wait for the very thread that makes a texture.

use hostmem::{Mapping, Memfd};
use parking_lot::Mutex;
use texture::Descriptor;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::work::queues::Queues;
use gpu::DevAddr;

/// Bytes that are taken of the context's memory at once.
const SLAB: u64 = 4096;
/// So many places are worth to be watched.
const MANY: usize = 16;

/// The descriptors of a context. Its memory goes with the context.
#[derive(Debug, Default)]
pub(crate) struct Descriptors(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    free: Vec<DevAddr>,
    left_alone: Vec<DevAddr>,
    /// Those that were left alone, and what is to be reached before they are free.
    watched: Option<(Vec<DevAddr>, Vec<Mark>)>,
    /// Through which descriptors are written.
    buffer: Option<Mapping>,
}

impl Descriptors {
    /// Puts a descriptor somewhere: it is there for whatever is launched from now on.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; the context's error.
    pub(crate) fn put(&self, core: &ContextCore, queues: &Queues, descriptor: &Descriptor) -> Result<DevAddr> {
        let mut places = self.0.lock();
        if places.free.is_empty() {
            places.gather(core);
        }
        if places.free.is_empty() && places.watched.is_none() && places.left_alone.len() >= MANY {
            let left_alone = std::mem::take(&mut places.left_alone);
            // To ask for signals may take its time, where queues are full.
            drop(places);
            let marks = queues.whole().tails();
            places = self.0.lock();
            match (marks, &places.watched) {
                (Ok(marks), None) => places.watched = Some((left_alone, marks)),
                // Somebody else was faster, or the context fails.
                _ => places.left_alone.extend(left_alone),
            }
            places.gather(core);
        }
        if places.free.is_empty() {
            // Others of the program may have to give theirs back before there is memory.
            drop(places);
            let slab = core.memory().alloc_internal(core.id, SLAB, &|| core.dead())?;
            places = self.0.lock();
            let ends = (slab..slab + SLAB).step_by(Descriptor::BYTES);
            places.free.extend(ends.map(DevAddr));
        }
        let place = places.free.pop().ok_or(CudaError::UNKNOWN)?;
        let written = places.write(core, place, &descriptor.encode());
        if written.is_err() {
            places.free.push(place);
        }
        written.map(|()| place)
    }

    /// Stores a handle, or none, in a variable that no work looks at.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; the context's error.
    pub(crate) fn write_handle(&self, core: &ContextCore, variable: DevAddr, handle: Option<DevAddr>) -> Result<()> {
        let handle = handle.map_or(0, |handle| handle.0);
        self.0.lock().write(core, variable, &handle.to_le_bytes())
    }

    /// The descriptor there is none any more.
    pub(crate) fn give_back(&self, place: DevAddr) {
        self.0.lock().left_alone.push(place);
    }
}

impl Places {
    /// Those watched are free once what they wait for is reached.
    fn gather(&mut self, core: &ContextCore) {
        let over = |marks: &Vec<Mark>| marks.iter().all(|mark| core.slots().reached(mark));
        if let Some((places, _)) = self.watched.take_if(|(_, marks)| over(marks)) {
            self.free.extend(places);
        }
    }

    fn write(&mut self, core: &ContextCore, at: DevAddr, data: &[u8]) -> Result<()> {
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => {
                let file = Memfd::create("cuda-descriptors", hostmem::PAGE);
                none.insert(file.and_then(|file| file.map()).map_err(|_| CudaError::OUT_OF_MEMORY)?)
            }
        };
        buffer.write(0, data);
        core.memory().write_now(at, buffer.range(0, data.len()), false)
    }
}
