//! Memory of other processes: what says where it is, and what of it is open here.
//!
//! ```text
//!   exporter: allocation ─► its file, and where in it ─► 64 bytes ═══► importer: the file, through /proc ─► its own GPU and host
//! ```
//! The bytes name a descriptor of the exporter's ([`MemfdName`]). Whether that may be opened the operating system decides.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gpu::{AllocId, ContextId, DevAddr, HostMemory, LARGE_PAGE_BYTES, MapAccess, PAGE_BYTES, Request};
use hostmem::{Memfd, MemfdName, Protection};

use crate::error::{CudaError, Result};
use crate::handle::MemPool;
use crate::memory::allocation::{Allocation, Backing, Kind, Wanted};
use crate::memory::heap::Memory;

/// A handle that programs send to each other.
pub(crate) type Bytes = [u8; 64];

/// What the bytes begin with, so that what is no handle is told apart.
const MAGIC: u32 = 0x4c44_5331;

/// What a handle is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shared {
    Memory = 1,
    Event = 2,
    /// What was made by `cuMemCreate`.
    Physical = 3,
    Pool = 4,
    /// An allocation in a pool.
    PoolMemory = 5,
}

/// Where memory of a process is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exported {
    /// Which driver of its process: an importer is another one.
    pub(crate) driver: u32,
    pub(crate) file: MemfdName,
    /// Of its first byte in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The allocation's number, which tells it from a later one at the same place.
    pub(crate) number: u64,
    /// The pool that it is of, or 0.
    pub(crate) pool: u32,
}

impl Exported {
    pub(crate) fn encode(&self, kind: Shared) -> Bytes {
        let Exported { driver, file: MemfdName { process, descriptor, device, inode }, offset, bytes, number, pool } =
            *self;
        let mut out = [0; 64];
        let words = [MAGIC, kind as u32, driver, process, descriptor, pool].map(u32::to_le_bytes);
        let longs = [device, inode, offset, bytes, number].map(u64::to_le_bytes);
        for (place, byte) in out.iter_mut().zip(words.iter().flatten().chain(longs.iter().flatten())) {
            *place = *byte;
        }
        out
    }

    /// # Errors
    /// `INVALID_VALUE` if it is no such handle.
    pub(crate) fn decode(bytes: &Bytes, kind: Shared) -> Result<Exported> {
        let (words, longs) = bytes.split_at(24);
        let word = |at: usize| words[4 * at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let long = |at: usize| longs[8 * at..].first_chunk().map_or(0, |long| u64::from_le_bytes(*long));
        let in_a_pool = matches!(kind, Shared::Pool | Shared::PoolMemory);
        if [word(0), word(1)] != [MAGIC, kind as u32] || (word(5) != 0 && !in_a_pool) {
            return Err(CudaError::INVALID_VALUE);
        }
        let file = MemfdName { process: word(3), descriptor: word(4), device: long(0), inode: long(1) };
        let (driver, offset, bytes, number, pool) = (word(2), long(2), long(3), long(4), word(5));
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > i64::MAX.cast_unsigned()) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(Exported { driver, file, offset, bytes, number, pool })
    }

    /// Whether it is of this process, and this driver.
    pub(crate) fn is_of(&self, driver: u32) -> bool {
        self.file.process == std::process::id() && self.driver == driver
    }

    /// As [`Exported::open`], in the words of what is handed over by descriptors.
    ///
    /// # Errors
    /// `NOT_PERMITTED` if it is another user's; `INVALID_VALUE` if it is not there.
    pub(crate) fn open_shared(&self) -> Result<Arc<Memfd>> {
        let opened = self.look();
        opened.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => CudaError::NOT_PERMITTED,
            _ => CudaError::INVALID_VALUE,
        })
    }

    fn look(&self) -> std::io::Result<Arc<Memfd>> {
        let opened = Memfd::open(&self.file).inspect_err(|error| {
            tracing::warn!(process = self.file.process, %error, "memory of another process cannot be opened");
        });
        opened.map(Arc::new)
    }

    /// # Errors
    /// `INVALID_HANDLE` if it is not there, or another user's.
    fn open(&self) -> Result<Arc<Memfd>> {
        self.look().map_err(|_| CudaError::INVALID_HANDLE)
    }
}

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

/// A number for a driver of this process.
pub(crate) fn fresh_driver() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What tells a pool from the others of its driver.
pub(crate) fn pool_number(pool: MemPool) -> u32 {
    pool.0 as u32
}

impl Memory {
    /// Whether there is a file that shows an allocation.
    pub(crate) fn is_shown(&self, allocation: &Allocation) -> bool {
        self.backing_of(allocation).is_some_and(|(id, _)| self.link().gpu().host_memory(id).is_ok())
    }

    /// Where other processes find an allocation.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if nothing of it can be shown to them.
    pub(crate) fn export(&self, driver: u32, allocation: &Allocation) -> Result<Exported> {
        let (id, inside) = self.backing_of(allocation).ok_or(CudaError::NOT_SUPPORTED)?;
        self.link().usable()?;
        let HostMemory { file, offset } = self.shown(id)?;
        let name = file.name().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        let Allocation { bytes, number, .. } = *allocation;
        let pool = pool_number(allocation.pool);
        Ok(Exported { driver, file: name, offset: offset + inside, bytes, number, pool })
    }

    /// The file that shows what has a name of the GPU's.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if there is none.
    pub(crate) fn shown(&self, id: AllocId) -> Result<HostMemory> {
        let shown = self.link().gpu().host_memory(id).inspect_err(|error| {
            tracing::warn!(%error, "memory that only this process's GPU sees cannot be shared with another");
        });
        shown.map_err(|_| CudaError::NOT_SUPPORTED)
    }

    /// Has the GPU and the host see memory of another process.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is not there, or another user's; `OUT_OF_MEMORY`; `NOT_SUPPORTED` if the GPU cannot.
    pub(crate) fn import(&self, what: &Exported, context: ContextId) -> Result<Arc<Allocation>> {
        let file = what.open()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_as_they_were_written() {
        let file = MemfdName { process: 0x0102_0304, descriptor: 9, device: 0x0fed_cba9_8765_4321, inode: 77 };
        let (offset, bytes) = (0x12_3456_7890, 0x9876_5432);
        let pooled = Exported { driver: 3, file, offset, bytes, number: u64::MAX, pool: 0x1234_5678 };
        assert_eq!(Exported::decode(&pooled.encode(Shared::PoolMemory), Shared::PoolMemory), Ok(pooled));
        assert_eq!(Exported::decode(&pooled.encode(Shared::Memory), Shared::Memory), Err(CudaError::INVALID_VALUE));
        let exported = Exported { pool: 0, ..pooled };
        let bytes = exported.encode(Shared::Memory);
        assert_eq!(Exported::decode(&bytes, Shared::Memory), Ok(exported));
        assert_eq!(Exported::decode(&bytes, Shared::Event), Err(CudaError::INVALID_VALUE));
        assert_eq!(Exported::decode(&[0; 64], Shared::Memory), Err(CudaError::INVALID_VALUE));
        for wrong in [Exported { bytes: 0, ..exported }, Exported { offset: u64::MAX - 5, ..exported }] {
            assert!(Exported::decode(&wrong.encode(Shared::Memory), Shared::Memory).is_err());
        }
    }
}
