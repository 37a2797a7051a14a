//! The memory of all GPUs of a process, by address.

use std::sync::Arc;

use gpu::DevAddr;

use crate::error::Result;
use crate::memory::addresses::Space;
use crate::memory::allocation::Allocation;
use crate::memory::arrays::Arrays;
use crate::memory::descriptors::LentMemory;
use crate::memory::heap::Memory;
use crate::memory::table::Residency;

/// What is at an address, on whichever GPU.
#[derive(Debug)]
pub(crate) struct Memories {
    space: Arc<Space>,
    /// By ordinal.
    all: Vec<Arc<Memory>>,
    pub(crate) arrays: Arrays,
    pub(crate) lent: Arc<LentMemory>,
}

impl Memories {
    pub(crate) fn new(space: &Arc<Space>, all: Vec<Arc<Memory>>, lent: Arc<LentMemory>) -> Memories {
        Memories { space: Arc::clone(space), all, arrays: Arrays::default(), lent }
    }

    /// How many GPUs there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether there is a GPU with this ordinal.
    pub(crate) fn has(&self, ordinal: i32) -> bool {
        usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < self.all.len())
    }

    /// The memory of the GPU with an ordinal that there is.
    pub(crate) fn of(&self, gpu: u32) -> &Arc<Memory> {
        &self.all[gpu as usize]
    }

    /// The addresses of the process.
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// The allocation around an address, a GPU's or the program's.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        self.space.table.find(address)
    }

    pub(crate) fn is_managed(&self, address: u64) -> bool {
        self.find(address).is_some_and(|found| found.kind.managed())
    }

    /// What `bytes` at an address are. Neighbouring mappings may be crossed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is a GPU address, but not all of it allocated, on one GPU.
    pub(crate) fn locate(&self, address: u64, bytes: u64) -> Result<Residency> {
        let arena = self.space.existing();
        arena.map_or(Ok(Residency::Pageable), |arena| self.space.table.locate(arena, address, bytes))
    }

    /// Whether a GPU sees host memory that another has made.
    pub(crate) fn sees(&self, gpu: u32, at: DevAddr, bytes: u64) -> bool {
        self.space.shared.sees(gpu, at.0, bytes)
    }

    /// Takes an allocation out of what is known, if `base` begins one that `wanted` wants.
    pub(crate) fn forget(&self, base: u64, wanted: impl FnOnce(&Allocation) -> bool) -> Option<Arc<Allocation>> {
        self.space.table.remove(base, wanted)
    }

    /// Forgets an allocation and gives its memory back, unless that was done. No work may use it any more.
    pub(crate) fn release(&self, allocation: &Allocation) {
        self.of(allocation.gpu).release(allocation);
    }

    /// Gives the memory of a forgotten allocation back. No work may use it any more.
    pub(crate) fn give_back(&self, allocation: &Allocation) {
        self.of(allocation.gpu).give_back(allocation);
    }

    /// As [`Memories::give_back`], from somebody who may soon allocate again.
    pub(crate) fn recycle(&self, allocation: &Allocation) {
        self.of(allocation.gpu).recycle(allocation);
    }
}
