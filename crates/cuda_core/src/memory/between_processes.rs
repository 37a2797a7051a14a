//! Memory of other processes: where it is, and what of it is open here.
//!
//! ```text
//!   exporter: allocation ─► its file, and where in it ─► a handle ═══► importer: the file ─► its own GPU and host
//! ```
//! What handles are, and whom they are believed of, is in [`handles`](crate::memory::handles).

use std::collections::HashMap;
use std::sync::Arc;

use gpu::{AllocId, ContextId, DevAddr, HostMemory, LARGE_PAGE_BYTES, MapAccess, PAGE_BYTES, Request};
use hostmem::{Memfd, Protection};

use crate::error::{CudaError, Result};
use crate::handle::MemPool;
use crate::memory::allocation::{Allocation, Backing, Kind, Wanted};
use crate::memory::handles::{Exported, Refused};
use crate::memory::heap::Memory;

/// What of other processes a context has open: where it is here, and how often it was opened.
#[derive(Debug, Default)]
pub(crate) struct Opened(HashMap<(ContextId, Exported), Open>);

#[derive(Debug)]
struct Open {
    address: u64,
    /// The allocation's number here.
    number: u64,
    count: u64,
}

impl Opened {
    /// Counts one that is open, if it is.
    pub(crate) fn again(&mut self, context: ContextId, what: &Exported) -> Option<DevAddr> {
        let open = self.0.get_mut(&(context, *what))?;
        open.count += 1;
        Some(DevAddr(open.address))
    }

    pub(crate) fn insert(&mut self, context: ContextId, what: Exported, made: &Allocation) {
        let open = Open { address: made.base, number: made.number, count: 1 };
        self.0.insert((context, what), open);
    }

    /// A context ended, and has taken what it had open along.
    pub(crate) fn forget_context(&mut self, context: ContextId) {
        self.0.retain(|(of, _), _| *of != context);
    }

    /// Closes what begins at an address once; true if nobody has it open any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing is open there.
    pub(crate) fn close(&mut self, address: u64, number: u64) -> Result<bool> {
        let found = self.0.iter_mut().find(|(_, open)| (open.address, open.number) == (address, number));
        let (key, open) = found.ok_or(CudaError::INVALID_VALUE)?;
        open.count -= 1;
        let (key, last) = (*key, open.count == 0);
        if last {
            self.0.remove(&key);
        }
        Ok(last)
    }
}

/// What tells a pool from the others of its driver.
pub(crate) fn pool_number(pool: MemPool) -> u32 {
    pool.0 as u32
}

impl Memory {
    /// Whether there is a file that shows an allocation.
    pub(crate) fn is_shown(&self, allocation: &Allocation) -> bool {
        self.file_of(allocation).is_some()
    }

    /// The file that shows an allocation, if there is one.
    pub(crate) fn file_of(&self, allocation: &Allocation) -> Option<Arc<Memfd>> {
        let (id, _) = self.backing_of(allocation)?;
        self.link().gpu().host_memory(id).ok().map(|memory| memory.file)
    }

    /// Where other processes find an allocation.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if nothing of it can be shown to them.
    pub(crate) fn export(&self, allocation: &Allocation) -> Result<Exported> {
        let (id, inside) = self.backing_of(allocation).ok_or(CudaError::NOT_SUPPORTED)?;
        self.link().usable()?;
        let HostMemory { file, offset } = self.shown(id)?;
        let name = file.name().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        let Allocation { bytes, number, .. } = *allocation;
        let pool = pool_number(allocation.pool);
        Ok(Exported { file: name, offset: offset + inside, bytes, number, pool })
    }

    /// The file that shows what has a name of the GPU's.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if there is none, as the GPU shows no memory; `OUT_OF_MEMORY` if there was no room for this to be shown, or too few
    /// entries of the host's memory map.
    pub(crate) fn shown(&self, id: AllocId) -> Result<HostMemory> {
        let gpu = self.link().gpu();
        gpu.host_memory(id).map_err(|error| {
            if gpu.shows_memory() {
                tracing::warn!(%error, "so much memory is shown already that this cannot be shared with another process");
                CudaError::OUT_OF_MEMORY
            } else {
                tracing::warn!(%error, "memory that only this process's GPU sees cannot be shared with another");
                CudaError::NOT_SUPPORTED
            }
        })
    }

    /// Has the GPU and the host see memory of another process.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is not there, or another user's; `OUT_OF_MEMORY`; `NOT_SUPPORTED` if the GPU cannot.
    pub(crate) fn import(&self, what: &Exported, context: ContextId) -> Result<Arc<Allocation>> {
        let file = what.open().map_err(Refused::of_handle)?;
        self.import_from(file, what, context, MemPool::NULL)
    }

    /// As [`Memory::import`], of a file that is open; `pool` is the one that it is known to be in.
    pub(crate) fn import_from(
        &self,
        file: Arc<Memfd>,
        what: &Exported,
        context: ContextId,
        pool: MemPool,
    ) -> Result<Arc<Allocation>> {
        let arena = self.arena()?;
        let inside = what.offset % PAGE_BYTES;
        let offset = what.offset - inside;
        let bytes = (inside + what.bytes).next_multiple_of(PAGE_BYTES);
        if offset.checked_add(bytes).is_none_or(|end| end > file.bytes()) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let unit = if bytes >= LARGE_PAGE_BYTES { LARGE_PAGE_BYTES } else { PAGE_BYTES };
        let base = self.space().take(bytes, unit, None)?;
        let id = AllocId(self.link().fresh_id());
        let memory = HostMemory { file, offset };
        let imported = self.link().outcome(self.link().gpu().import(id, &memory, bytes)).and_then(|()| {
            let map = Request::Map { at: DevAddr(base), id, offset: 0, bytes, access: MapAccess::ReadWrite };
            let mapped = self.link().request(map).map(drop).and_then(|()| {
                let shown = arena.window.map(base - arena.lo, &memory.file, offset, bytes, Protection::ReadWrite);
                shown.map_err(|_| {
                    self.link().give_back(Request::Unmap { at: DevAddr(base), bytes });
                    CudaError::OPERATING_SYSTEM
                })
            });
            mapped.inspect_err(|_| self.link().give_back(Request::Free { id }))
        });
        imported.inspect_err(|_| self.space().give(base, bytes))?;
        let wanted = Wanted { pool, ..Wanted::new(what.bytes, Kind::Imported, context) };
        Ok(self.known(base + inside, wanted, Backing::Own(id, bytes)))
    }
}
