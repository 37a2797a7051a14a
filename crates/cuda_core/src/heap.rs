//! Allocations: what is at an address, and how memory for it is got and given back.
//!
//! Small device allocations share chunks of 2 MiB; larger ones have memory of their own. Host-visible memory is mapped
//! into the window at the address that the GPU uses.
//!
//! Locks: `heap` is held over requests to the GPU, so that allocations follow one another; `table` only for a look.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gpu::{AllocId, ContextId, DevAddr, LARGE_PAGE_BYTES, MapAccess, MemoryKind, PAGE_BYTES, Request};
use hostmem::{HostRange, Protection};
use parking_lot::{Mutex, RwLock};

use crate::arena::{Arena, Ranges};
use crate::error::{CudaError, Result};
use crate::handle::MemPool;
use crate::shared::Shared;

/// Alignment of every allocation, bytes: enough for textures.
pub(crate) const ALIGN: u64 = 512;
/// Larger allocations have memory of their own, bytes.
const SMALL: u64 = 1 << 20;

/// What an allocation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`.
    Pool,
    /// A variable of a module; its memory is the module's.
    Variable,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
    /// A managed variable of a module; its memory is the module's.
    ManagedVariable,
    /// `cuMemMap` of device memory.
    Mapped,
    /// `cuMemMap` of host memory.
    MappedHost,
    /// Of this library's own.
    Internal,
}

impl Kind {
    /// The host can access it, at the GPU's address.
    pub(crate) fn host_visible(self) -> bool {
        matches!(self, Kind::Pinned | Kind::Registered | Kind::MappedHost) || self.managed()
    }

    /// Host and GPU may use it at any time, at one address.
    pub(crate) fn managed(self) -> bool {
        matches!(self, Kind::Managed | Kind::ManagedVariable)
    }
}

/// One allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// GPU address.
    pub(crate) base: u64,
    /// As asked for.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) context: ContextId,
    /// A number never used again.
    pub(crate) number: u64,
    /// The flags it was made with.
    pub(crate) flags: u32,
    /// The program's own pages, if registered.
    pub(crate) host: Option<HostRange>,
    pub(crate) pool: MemPool,
    pub(crate) sync_memops: AtomicBool,
    memory: Backing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// Memory of its own, so many bytes mapped.
    Own(AllocId, u64),
    /// Part of a chunk, so many bytes.
    Chunk(u64),
    /// Somebody else's.
    None,
}

impl Allocation {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// How far inside an address is, the program's or the GPU's.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        let on_host = address.wrapping_sub(self.host_address());
        if on_host < self.bytes { on_host } else { address.wrapping_sub(self.base) }
    }

    /// Where the program sees it: for registered memory not where the GPU does.
    pub(crate) fn host_address(&self) -> u64 {
        self.host.map_or(self.base, |range| range.address() as u64)
    }
}

/// What an address is, for a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// GPU memory that the host does not see.
    Device(DevAddr),
    /// Memory that both see; the address is the GPU's.
    Shared(DevAddr),
    /// The program's own memory.
    Pageable,
}

#[derive(Debug)]
struct Heap {
    addresses: Ranges,
    chunks: BTreeMap<u64, Chunk>,
}

#[derive(Debug)]
struct Chunk {
    id: AllocId,
    free: Ranges,
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    pub(crate) context: ContextId,
    pub(crate) flags: u32,
    pub(crate) pool: MemPool,
}

impl Wanted {
    pub(crate) fn new(bytes: u64, kind: Kind, context: ContextId) -> Wanted {
        Wanted { bytes, kind, context, flags: 0, pool: MemPool::NULL }
    }
}

/// All memory of a process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    arena: OnceLock<Arena>,
    heap: Mutex<Option<Heap>>,
    table: RwLock<Tables>,
    next_number: AtomicU64,
}

#[derive(Debug, Default)]
struct Tables {
    /// By GPU address.
    by_address: BTreeMap<u64, Arc<Allocation>>,
    /// Registered memory by the program's address.
    registered: BTreeMap<u64, Arc<Allocation>>,
}

fn around(table: &BTreeMap<u64, Arc<Allocation>>, address: u64) -> Option<&Arc<Allocation>> {
    table.range(..=address).next_back().map(|entry| entry.1)
}

impl Memory {
    /// The addresses, reserved at the first call.
    pub(crate) fn arena(&self, shared: &Shared) -> Result<&Arena> {
        if let Some(arena) = self.arena.get() {
            return Ok(arena);
        }
        let mut heap = self.heap.lock();
        if let Some(arena) = self.arena.get() {
            return Ok(arena);
        }
        let arena = Arena::reserve(shared)?;
        *heap = Some(Heap { addresses: Ranges::new(arena.lo, arena.bytes), chunks: BTreeMap::new() });
        Ok(self.arena.get_or_init(|| arena))
    }

    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes addresses out of the arena.
    pub(crate) fn take_addresses(&self, shared: &Shared, bytes: u64, align: u64, at: Option<u64>) -> Result<u64> {
        self.arena(shared)?;
        let mut heap = self.heap.lock();
        let heap = heap.as_mut().ok_or(CudaError::OUT_OF_MEMORY)?;
        if let Some(at) = at
            && at % align == 0
            && heap.addresses.take_at(at, bytes)
        {
            return Ok(at);
        }
        heap.addresses.take(bytes, align).ok_or(CudaError::OUT_OF_MEMORY)
    }

    pub(crate) fn give_addresses(&self, at: u64, bytes: u64) {
        if let Some(heap) = self.heap.lock().as_mut() {
            heap.addresses.give(at, bytes);
        }
    }

    /// Allocates memory and makes it known.
    pub(crate) fn alloc(&self, shared: &Shared, wanted: Wanted) -> Result<Arc<Allocation>> {
        let allocation = Arc::new(self.make(shared, wanted, None)?);
        self.table.write().by_address.insert(allocation.base, Arc::clone(&allocation));
        Ok(allocation)
    }

    /// Allocates memory in which its owner makes parts known.
    pub(crate) fn alloc_unlisted(&self, shared: &Shared, wanted: Wanted) -> Result<Allocation> {
        self.make(shared, wanted, None)
    }

    /// Device memory for the library itself; only `free_context` gives it back.
    pub(crate) fn alloc_internal(&self, shared: &Shared, context: ContextId, bytes: u64) -> Result<u64> {
        self.alloc(shared, Wanted::new(bytes, Kind::Internal, context)).map(|made| made.base)
    }

    fn make(&self, shared: &Shared, wanted: Wanted, host: Option<HostRange>) -> Result<Allocation> {
        let Wanted { bytes, kind, context, flags, pool } = wanted;
        // The arena is far below this; the test keeps sums in range.
        if bytes == 0 || bytes > 1 << 46 {
            return Err(if bytes == 0 { CudaError::INVALID_VALUE } else { CudaError::OUT_OF_MEMORY });
        }
        let arena = self.arena(shared)?;
        let mut heap = self.heap.lock();
        let heap = heap.as_mut().ok_or(CudaError::OUT_OF_MEMORY)?;
        let place = if kind.host_visible() { MemoryKind::Host } else { MemoryKind::Vram };
        let in_chunk = place == MemoryKind::Vram && bytes <= SMALL;
        let (base, memory) = match in_chunk.then(|| from_chunk(shared, heap, bytes)) {
            Some(Ok(base)) => (base, Backing::Chunk(bytes.next_multiple_of(ALIGN))),
            // Where a whole chunk does not fit the limit any more, a few pages may.
            Some(Err(error)) if error != CudaError::OUT_OF_MEMORY => return Err(error),
            _ => {
                let whole = host.map_or(bytes, |range| range.pages().1 as u64);
                let unit = if whole > SMALL { LARGE_PAGE_BYTES } else { PAGE_BYTES };
                let mapped = whole.next_multiple_of(if place == MemoryKind::Host { PAGE_BYTES } else { unit });
                let (base, id) = own(shared, heap, mapped, unit, place)?;
                (base, Backing::Own(id, mapped))
            }
        };
        if let Backing::Own(id, mapped) = memory
            && place == MemoryKind::Host
        {
            let shown = shared.note(shared.gpu.host_memory(id)).and_then(|file| {
                let shown = arena.window.map(base - arena.lo, &file, 0, mapped, Protection::ReadWrite);
                // Registered memory moves into the file before the program's pages show it.
                let moved = shown.and_then(|()| host.map_or(Ok(()), |range| range.show(&file, 0)));
                moved.map_err(|_| CudaError::OPERATING_SYSTEM)
            });
            if let Err(error) = shown {
                give_own(shared, arena, heap, base, id, mapped, place);
                return Err(error);
            }
        }
        // Registered memory need not begin at a page.
        let base = base + host.map_or(0, |range| range.pages().0 as u64);
        let number = self.number();
        let sync_memops = AtomicBool::new(false);
        Ok(Allocation { base, bytes, kind, context, number, flags, host, pool, sync_memops, memory })
    }

    /// Moves a program's own pages into shared memory.
    pub(crate) fn register(
        &self,
        shared: &Shared,
        context: ContextId,
        range: HostRange,
        flags: u32,
    ) -> Result<Arc<Allocation>> {
        let start = range.address() as u64;
        let end = start + range.len() as u64;
        if self.overlaps_registered(start, end) || self.arena.get().is_some_and(|arena| arena.contains(start)) {
            return Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let mut wanted = Wanted::new(range.len() as u64, Kind::Registered, context);
        wanted.flags = flags;
        let allocation = Arc::new(self.make(shared, wanted, Some(range))?);
        let mut table = self.table.write();
        table.by_address.insert(allocation.base, Arc::clone(&allocation));
        table.registered.insert(start, Arc::clone(&allocation));
        Ok(allocation)
    }

    fn overlaps_registered(&self, start: u64, end: u64) -> bool {
        let table = self.table.read();
        table.registered.range(..end).next_back().is_some_and(|(at, found)| at + found.bytes > start)
    }

    /// Makes memory that is somebody else's known.
    pub(crate) fn announce(&self, base: u64, bytes: u64, kind: Kind, context: ContextId) {
        let allocation = Allocation {
            base,
            bytes,
            kind,
            context,
            number: self.number(),
            flags: 0,
            host: None,
            pool: MemPool::NULL,
            sync_memops: AtomicBool::new(false),
            memory: Backing::None,
        };
        self.table.write().by_address.insert(base, Arc::new(allocation));
    }

    /// Takes an allocation out of the tables, if `base` begins one that `f` wants.
    pub(crate) fn forget(&self, base: u64, f: impl FnOnce(&Allocation) -> bool) -> Option<Arc<Allocation>> {
        let mut table = self.table.write();
        if !f(table.by_address.get(&base)?) {
            return None;
        }
        let allocation = table.by_address.remove(&base)?;
        if let Some(range) = allocation.host {
            table.registered.remove(&(range.address() as u64));
        }
        Some(allocation)
    }

    /// Gives the memory of a forgotten allocation back. No work may use it any more.
    pub(crate) fn give_back(&self, shared: &Shared, allocation: &Allocation) {
        let Some(arena) = self.arena.get() else { return };
        let mut heap = self.heap.lock();
        let Some(heap) = heap.as_mut() else { return };
        if let Some(range) = allocation.host
            && let Err(error) = range.make_private()
        {
            tracing::error!(%error, "registered pages stay shared");
        }
        match allocation.memory {
            Backing::Own(id, mapped) => {
                let place = if allocation.kind.host_visible() { MemoryKind::Host } else { MemoryKind::Vram };
                let base = allocation.base / PAGE_BYTES * PAGE_BYTES;
                give_own(shared, arena, heap, base, id, mapped, place);
            }
            Backing::Chunk(bytes) => {
                let at = allocation.base / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
                let Some(chunk) = heap.chunks.get_mut(&at) else { return };
                chunk.free.give(allocation.base, bytes);
                if chunk.free.is_whole(LARGE_PAGE_BYTES)
                    && let Some(chunk) = heap.chunks.remove(&at)
                {
                    give_own(shared, arena, heap, at, chunk.id, LARGE_PAGE_BYTES, MemoryKind::Vram);
                }
            }
            Backing::None => {}
        }
    }

    /// Gives back all that a context had, but pools and physical memory, which belong to the device.
    pub(crate) fn free_context(&self, shared: &Shared, context: ContextId) {
        let bases: Vec<u64> = {
            let table = self.table.read();
            let of_context = |found: &&Arc<Allocation>| {
                found.context == context && !matches!(found.kind, Kind::Pool | Kind::Mapped | Kind::MappedHost)
            };
            table.by_address.values().filter(of_context).map(|found| found.base).collect()
        };
        for base in bases {
            if let Some(allocation) = self.forget(base, |_| true) {
                self.give_back(shared, &allocation);
            }
        }
    }

    /// The allocation around an address, GPU's or program's.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let table = self.table.read();
        if let Some(found) = around(&table.by_address, address).filter(|found| address < found.end()) {
            return Some(Arc::clone(found));
        }
        let found = around(&table.registered, address)?;
        (address - found.host_address() < found.bytes).then(|| Arc::clone(found))
    }

    pub(crate) fn is_managed(&self, address: u64) -> bool {
        self.find(address).is_some_and(|found| found.kind.managed())
    }

    /// What `bytes` at an address are. Neighbouring mappings may be crossed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is a GPU address, but not all of it allocated.
    pub(crate) fn locate(&self, address: u64, bytes: u64) -> Result<Place> {
        let Some(arena) = self.arena.get() else { return Ok(Place::Pageable) };
        let table = self.table.read();
        if arena.contains(address) {
            let end = address.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
            let first = around(&table.by_address, address).ok_or(CudaError::INVALID_VALUE)?;
            let host = first.kind.host_visible();
            let mut at = address;
            let mut next = first;
            loop {
                if at >= next.end().max(next.base + 1) || next.kind.host_visible() != host {
                    return Err(CudaError::INVALID_VALUE);
                }
                at = next.end();
                if at >= end {
                    let address = DevAddr(address);
                    return Ok(if host { Place::Shared(address) } else { Place::Device(address) });
                }
                next = table.by_address.get(&at).ok_or(CudaError::INVALID_VALUE)?;
            }
        }
        let registered = around(&table.registered, address).filter(|found| {
            let offset = address - found.host_address();
            offset < found.bytes && bytes <= found.bytes - offset
        });
        Ok(match registered {
            Some(found) => Place::Shared(DevAddr(found.base + (address - found.host_address()))),
            None => Place::Pageable,
        })
    }
}

/// Memory of its own at new addresses.
fn own(shared: &Shared, heap: &mut Heap, bytes: u64, align: u64, kind: MemoryKind) -> Result<(u64, AllocId)> {
    let base = heap.addresses.take(bytes, align).ok_or(CudaError::OUT_OF_MEMORY)?;
    let id = AllocId(shared.id());
    let made = shared.request(Request::Alloc { id, bytes, kind }).and_then(|_| {
        let access = MapAccess::ReadWrite;
        let mapped = shared.request(Request::Map { at: DevAddr(base), id, offset: 0, bytes, access });
        mapped.inspect_err(|_| shared.give_back(Request::Free { id }))
    });
    match made {
        Ok(_) => Ok((base, id)),
        Err(error) => {
            heap.addresses.give(base, bytes);
            Err(error)
        }
    }
}

fn give_own(shared: &Shared, arena: &Arena, heap: &mut Heap, base: u64, id: AllocId, bytes: u64, kind: MemoryKind) {
    if kind == MemoryKind::Host
        && let Err(error) = arena.window.unmap(base - arena.lo, bytes)
    {
        tracing::error!(%error, "shared pages stay mapped");
    }
    shared.give_back(Request::Unmap { at: DevAddr(base), bytes });
    shared.give_back(Request::Free { id });
    heap.addresses.give(base, bytes);
}

/// A part of a chunk with room, or of a new one.
fn from_chunk(shared: &Shared, heap: &mut Heap, bytes: u64) -> Result<u64> {
    let bytes = bytes.next_multiple_of(ALIGN);
    if let Some(base) = heap.chunks.values_mut().find_map(|chunk| chunk.free.take(bytes, ALIGN)) {
        return Ok(base);
    }
    let (at, id) = own(shared, heap, LARGE_PAGE_BYTES, LARGE_PAGE_BYTES, MemoryKind::Vram)?;
    let mut free = Ranges::new(at, LARGE_PAGE_BYTES);
    let base = free.take(bytes, ALIGN).ok_or(CudaError::OUT_OF_MEMORY)?;
    heap.chunks.insert(at, Chunk { id, free });
    Ok(base)
}
