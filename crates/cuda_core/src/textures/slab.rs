//! Places for descriptors in a context's memory.
//!
//! ```text
//!          take                      give back                  no work is under way
//! free ───────────► a descriptor ───────────────► left alone ─────────────────────────► free
//! ```
//! Programs destroy textures behind launches that use them: a place is left alone until no kernel can look at it any more.

use hostmem::{Mapping, Memfd};
use parking_lot::Mutex;
use texture::Descriptor;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::work::queues::Queues;
use gpu::DevAddr;

/// Bytes that are taken of the context's memory at once.
const SLAB: u64 = 4096;
/// So many places are left alone at most: then work is waited for.
const MOST_LEFT_ALONE: usize = 1024;

/// The descriptors of a context. Its memory goes with the context.
#[derive(Debug, Default)]
pub(crate) struct Descriptors(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    free: Vec<DevAddr>,
    left_alone: Vec<DevAddr>,
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
        if places.free.is_empty() && !places.left_alone.is_empty() {
            let many = places.left_alone.len() >= MOST_LEFT_ALONE;
            if many {
                queues.synchronize()?;
            }
            if many || queues.idle() {
                let left_alone = std::mem::take(&mut places.left_alone);
                places.free = left_alone;
            }
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
