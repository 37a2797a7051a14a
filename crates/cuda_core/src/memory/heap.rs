//! How memory is got and given back.
//!
//! Small allocations share chunks of 2 MiB: a mapping, which costs entries of the host's memory map on both sides, is made
//! for many of them. One empty chunk of each kind is kept, so that who allocates and frees again and again asks nobody. Larger
//! ones have memory of their own. Host-visible memory is mapped into the window at the address that
//! the GPU uses.
//!
//! Each GPU has a [`Memory`]; addresses and what is at them are the process's ([`Space`]).
//!
//! Locks: `heap` is held over requests to the GPU, so that allocations follow one another, but not while one waits for memory; the
//! space's only for a look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpu::{
    AllocId, ContextId, DevAddr, GiveBack, LARGE_PAGE_BYTES, MapAccess, MemoryKind, PAGE_BYTES, Request, Response,
};
use hostmem::{HostRange, PagesKind, ProgramPages, Protection};
use intervals::FreeRanges;
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;
use crate::gpu_link::slots::Slots;
use crate::handle::MemPool;
use crate::memory::addresses::{Arena, Space};
use crate::memory::allocation::{Allocation, Backing, Kind, Wanted};
use crate::memory::graph_memory::GraphMemory;
use crate::memory::line::Place;
use crate::memory::shared::Piece;
use crate::values::MemoryWatcher;

/// Alignment of every allocation, bytes: enough for textures.
pub(crate) const ALIGN: u64 = 512;
/// Larger allocations have memory of their own, bytes.
pub(crate) const SMALL: u64 = 1 << 20;

/// Whether what is kept for later may help.
pub(crate) fn is_short(error: CudaError) -> bool {
    matches!(error, CudaError::OUT_OF_MEMORY | CudaError::NOT_READY)
}

/// The memory of a process on one GPU, and memory of the host's that it sees.
#[derive(Debug)]
pub(crate) struct Memory {
    link: Arc<GpuLink>,
    /// The GPU's ordinal.
    gpu: u32,
    space: Arc<Space>,
    /// The GPU knows the addresses.
    announced: AtomicBool,
    heap: Mutex<Heap>,
    pub(crate) graphs: GraphMemory,
}

#[derive(Debug, Default)]
struct Heap {
    chunks: BTreeMap<u64, Chunk>,
    /// Chunks in which nothing is: at most one of each kind.
    spare: Vec<u64>,
}

impl Heap {
    /// Ends a chunk in which nothing is, and gives its memory; with `keep` it stays, unless there is one of its kind.
    fn retire(&mut self, at: u64, keep: bool) -> Option<Own> {
        let kind = |at: &u64| self.chunks.get(at).map(|chunk| chunk.own.kind);
        if !keep || self.spare.iter().any(|spare| kind(spare) == kind(&at)) {
            return self.chunks.remove(&at).map(|chunk| chunk.own);
        }
        self.spare.push(at);
        None
    }

    /// Takes all chunks out in which nothing is.
    fn take_spare(&mut self) -> Vec<Own> {
        let spare = std::mem::take(&mut self.spare);
        spare.iter().filter_map(|at| self.chunks.remove(at)).map(|chunk| chunk.own).collect()
    }
}

/// 2 MiB that small allocations share.
#[derive(Debug)]
struct Chunk {
    own: Own,
    free: FreeRanges,
}

/// Memory of its own at addresses of its own: whole pages.
#[derive(Clone, Copy, Debug)]
struct Own {
    base: u64,
    id: AllocId,
    bytes: u64,
    kind: MemoryKind,
}

impl Memory {
    pub(crate) fn new(link: &Arc<GpuLink>, gpu: u32, space: &Arc<Space>, slots: &Arc<Slots>) -> Memory {
        Memory {
            link: Arc::clone(link),
            gpu,
            space: Arc::clone(space),
            announced: AtomicBool::new(false),
            heap: Mutex::default(),
            graphs: GraphMemory::new(Arc::clone(slots)),
        }
    }

    /// The addresses, reserved and announced to the GPU at the first call.
    pub(crate) fn arena(&self) -> Result<&Arena> {
        let arena = self.space.arena()?;
        if !self.announced.load(Ordering::Acquire) {
            let _once = self.heap.lock();
            if !self.announced.load(Ordering::Acquire) {
                let bytes = arena.announced(self.gpu);
                self.link.request(Request::SetAddressRange { lo: arena.lo, bytes })?;
                self.space.shared.announced(self.gpu, &self.link);
                self.announced.store(true, Ordering::Release);
            }
        }
        Ok(arena)
    }

    /// Who is told of memory that comes and goes, if somebody is.
    pub(crate) fn watcher(&self) -> Option<&dyn MemoryWatcher> {
        self.space.table.watcher()
    }

    /// Where an address is, told by the allocation that is nearest, if that can be found out in so short a time.
    pub(crate) fn near(&self, address: u64, within: Duration) -> Option<String> {
        self.space.table.near(address, within)
    }

    pub(crate) fn link(&self) -> &GpuLink {
        &self.link
    }

    /// The GPU's ordinal.
    pub(crate) fn gpu(&self) -> u32 {
        self.gpu
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// No place in line yet, for [`Memory::try_alloc`].
    pub(crate) fn place(&self) -> Place<'_> {
        Place::new(&self.link)
    }

    /// Allocates memory and makes it known.
    ///
    /// # Errors
    /// `NOT_READY`: others have it, and it stands in line at `place`; `OUT_OF_MEMORY`.
    pub(crate) fn try_alloc(&self, wanted: Wanted, place: &mut Place<'_>) -> Result<Arc<Allocation>> {
        let allocation = Arc::new(self.make(wanted, None, place)?);
        self.space.table.insert(&allocation);
        Ok(allocation)
    }

    /// Allocates memory and makes it known, if need be waits for it, but not when its context is `gone`.
    pub(crate) fn alloc(&self, wanted: Wanted, gone: &dyn Fn() -> bool) -> Result<Arc<Allocation>> {
        let mut place = self.place();
        loop {
            match self.try_alloc(wanted, &mut place) {
                Err(CudaError::NOT_READY) => place.wait(gone)?,
                other => return other,
            }
        }
    }

    /// Allocates memory that the host sees, for which nobody waits, and makes it known.
    pub(crate) fn alloc_host(&self, wanted: Wanted) -> Result<Arc<Allocation>> {
        debug_assert_eq!(wanted.kind.memory(), MemoryKind::Host, "memory of the host's");
        self.try_alloc(wanted, &mut self.place())
    }

    /// The same, in which its owner makes parts known.
    pub(crate) fn alloc_unlisted(&self, wanted: Wanted) -> Result<Allocation> {
        debug_assert_eq!(wanted.kind.memory(), MemoryKind::Host, "memory of the host's");
        self.make(wanted, None, &mut self.place())
    }

    /// Device memory for the library itself.
    pub(crate) fn alloc_internal(&self, context: ContextId, bytes: u64, gone: &dyn Fn() -> bool) -> Result<u64> {
        self.alloc(Wanted::new(bytes, Kind::Internal, context), gone).map(|made| made.base)
    }

    fn make(&self, wanted: Wanted, host: Option<ProgramPages>, place: &mut Place<'_>) -> Result<Allocation> {
        let Wanted { bytes, kind, context, flags, pool } = wanted;
        // The arena is far below this; the test keeps sums in range.
        if bytes == 0 || bytes > 1 << 46 {
            return Err(if bytes == 0 { CudaError::INVALID_VALUE } else { CudaError::OUT_OF_MEMORY });
        }
        let arena = self.arena()?;
        let heap = &mut *self.heap.lock();
        let memory_kind = kind.memory();
        // Nobody waits for a whole chunk: for a few pages, if there are none of either now.
        let in_chunk = host.is_none() && bytes <= SMALL && !place.is_standing();
        // Who watches sees what runs over the end.
        let room = if self.watcher().is_some() { bytes + ALIGN } else { bytes };
        let (base, memory) = match in_chunk.then(|| self.take_from_chunk(arena, heap, room, memory_kind, place)) {
            Some(Ok(base)) => (base, Backing::Chunk(room.next_multiple_of(ALIGN))),
            // Where a whole chunk does not fit the limit any more, or has to wait, a few pages may do.
            Some(Err(error)) if !is_short(error) => return Err(error),
            _ => {
                let whole = host.map_or(room, |pages| pages.covering().1 as u64);
                let own = self.take_memory(arena, whole, (memory_kind, host), place).or_else(|error| {
                    if is_short(error) && self.give_spare(arena, heap) {
                        return self.take_memory(arena, whole, (memory_kind, host), place);
                    }
                    Err(error)
                })?;
                (own.base, Backing::Own(own.id, own.bytes))
            }
        };
        // Registered memory need not begin at a page.
        let base = base + host.map_or(0, |pages| pages.covering().0 as u64);
        let (gpu, number) = (self.gpu, self.space.number());
        let sync_memops = AtomicBool::new(false);
        Ok(Allocation { base, bytes, kind, gpu, context, number, flags, host, pool, sync_memops, memory })
    }

    /// Registers a program's own pages: moves them into memory that the GPU sees. Pages that must stay what they are, since
    /// others see them too, or they may not be written, or another registration has moved them already, stay: the GPU does not
    /// see them, and copies go through the program's addresses.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what cannot be read, or cannot be written if not `read_only`; `HOST_MEMORY_ALREADY_REGISTERED`,
    /// `OUT_OF_MEMORY`; `NOT_SUPPORTED` if the GPU must see what stays (`on_gpu`).
    pub(crate) fn register(
        &self,
        pages: ProgramPages,
        wanted: Wanted,
        read_only: bool,
        on_gpu: bool,
    ) -> Result<Arc<Allocation>> {
        let start = pages.address() as u64;
        let last_page = u64::MAX / PAGE_BYTES * PAGE_BYTES;
        let end = start.checked_add(wanted.bytes).filter(|end| *end < last_page).ok_or(CudaError::INVALID_VALUE)?;
        let arena = self.arena()?;
        if arena.contains(start) || arena.contains(end - 1) {
            return Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // Before anything is done: two threads may register the same.
        let may_move = self.space.table.take(start..end)?;
        let made = pages.kind().map_err(|_| CudaError::OPERATING_SYSTEM).and_then(|kind| match kind {
            PagesKind::Unreadable => Err(CudaError::INVALID_VALUE),
            PagesKind::ReadOnly if !read_only => Err(CudaError::INVALID_VALUE),
            PagesKind::Private if may_move => {
                self.make(Wanted { kind: Kind::Registered, ..wanted }, Some(pages), &mut self.place())
            }
            _ if on_gpu => Err(CudaError::NOT_SUPPORTED),
            _ => Ok(Allocation {
                host: Some(pages),
                flags: wanted.flags,
                ..self.elsewhere(start, wanted.bytes, Kind::RegisteredInPlace, wanted.context)
            }),
        });
        match made {
            Ok(allocation) => {
                let allocation = Arc::new(allocation);
                self.space.table.insert(&allocation);
                Ok(allocation)
            }
            Err(error) => {
                self.space.table.release(start);
                Err(error)
            }
        }
    }

    /// Makes memory that is somebody else's known.
    pub(crate) fn announce(&self, base: u64, bytes: u64, kind: Kind, context: ContextId) {
        self.space.table.insert(&Arc::new(self.elsewhere(base, bytes, kind, context)));
    }

    /// Makes known what was put at an address by whoever asks.
    pub(crate) fn known(&self, base: u64, wanted: Wanted, memory: Backing) -> Arc<Allocation> {
        let Wanted { bytes, kind, context, pool, .. } = wanted;
        let known = Arc::new(Allocation { memory, pool, ..self.elsewhere(base, bytes, kind, context) });
        self.space.table.insert(&known);
        known
    }

    /// The memory that an allocation lies in, and how far inside.
    pub(crate) fn backing_of(&self, allocation: &Allocation) -> Option<(AllocId, u64)> {
        match allocation.memory {
            Backing::Own(id, _) => Some((id, allocation.base % PAGE_BYTES)),
            Backing::Chunk(_) => {
                let at = allocation.base / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
                let heap = self.heap.lock();
                heap.chunks.get(&at).map(|chunk| (chunk.own.id, allocation.base - at))
            }
            Backing::None => None,
        }
    }

    /// An allocation whose memory is somebody else's.
    fn elsewhere(&self, base: u64, bytes: u64, kind: Kind, context: ContextId) -> Allocation {
        Allocation {
            base,
            bytes,
            kind,
            context,
            gpu: self.gpu,
            number: self.space.number(),
            flags: 0,
            host: None,
            pool: MemPool::NULL,
            sync_memops: AtomicBool::new(false),
            memory: Backing::None,
        }
    }

    /// Takes an allocation out of what is known, if `base` begins one that `wanted` wants.
    pub(crate) fn forget(&self, base: u64, wanted: impl FnOnce(&Allocation) -> bool) -> Option<Arc<Allocation>> {
        self.space.table.remove(base, wanted)
    }

    /// Forgets an allocation and gives its memory back, unless that was done, as where its context ended. No work may use it any more.
    pub(crate) fn release(&self, allocation: &Allocation) {
        if self.forget(allocation.base, |found| found.number == allocation.number).is_some() {
            self.give_back(allocation);
        }
    }

    /// Gives the memory of a forgotten allocation back. No work may use it any more.
    pub(crate) fn give_back(&self, allocation: &Allocation) {
        self.give(allocation, false);
    }

    /// As [`Memory::give_back`], from somebody who may soon allocate again: unless others wait, something may be kept for that.
    pub(crate) fn recycle(&self, allocation: &Allocation) {
        let wanted = self.link.gpu().deferring().is_some_and(|deferring| deferring.is_wanted());
        self.give(allocation, !wanted);
    }

    fn give(&self, allocation: &Allocation, keep: bool) {
        let Some(arena) = self.space.existing() else { return };
        let heap = &mut *self.heap.lock();
        if let Some(pages) = allocation.host
            && allocation.kind == Kind::Registered
            && let Err(error) = pages.make_private()
        {
            // The program goes on writing to it, so nobody else may have it.
            tracing::error!(%error, "registered pages stay shared");
            return;
        }
        match allocation.memory {
            Backing::Own(id, bytes) => {
                let base = allocation.base / PAGE_BYTES * PAGE_BYTES;
                self.give_own(arena, Own { base, id, bytes, kind: allocation.kind.memory() });
            }
            Backing::Chunk(bytes) => {
                let at = allocation.base / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
                let Some(chunk) = heap.chunks.get_mut(&at) else { return };
                chunk.free.give(allocation.base, bytes);
                if chunk.free.is_whole(LARGE_PAGE_BYTES)
                    && let Some(own) = heap.retire(at, keep)
                {
                    self.give_own(arena, own);
                }
            }
            Backing::None => {}
        }
        if allocation.kind.registered() {
            self.space.table.release(allocation.host_address());
        }
    }

    /// Gives back all that a context had, but pools and physical memory, which belong to the device.
    pub(crate) fn free_context(&self, context: ContextId) {
        self.space.table.of_context(context).into_iter().for_each(|base| self.free(base));
        self.trim();
    }

    /// Gives back what is kept for allocations to come; false if that is nothing.
    pub(crate) fn trim(&self) -> bool {
        self.space.existing().is_some_and(|arena| self.give_spare(arena, &mut self.heap.lock()))
    }

    /// Makes a request that takes memory: what is kept for allocations to come is given back for it, if need be.
    ///
    /// # Errors
    /// As of the request.
    pub(crate) fn request(&self, request: Request) -> Result<Response> {
        self.ask(|| self.link.request(request.clone()))
    }

    /// The same, for whoever asks in another way.
    ///
    /// # Errors
    /// As of what is asked.
    pub(crate) fn ask<T>(&self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        ask().or_else(|error| if is_short(error) && self.trim() { ask() } else { Err(error) })
    }

    /// Device memory that is kept for allocations to come, bytes.
    pub(crate) fn spare_bytes(&self) -> u64 {
        let heap = self.heap.lock();
        let kept = heap.spare.iter().filter_map(|at| heap.chunks.get(at));
        kept.filter(|chunk| chunk.own.kind == MemoryKind::Vram).map(|chunk| chunk.own.bytes).sum()
    }

    /// As [`Memory::trim`]; false if there was nothing.
    fn give_spare(&self, arena: &Arena, heap: &mut Heap) -> bool {
        let spare = heap.take_spare();
        let some = !spare.is_empty();
        spare.into_iter().for_each(|own| self.give_own(arena, own));
        some
    }

    /// Frees what begins at an address, whatever it is. No work may use it any more.
    pub(crate) fn free(&self, base: u64) {
        if let Some(allocation) = self.forget(base, |_| true) {
            self.give_back(&allocation);
        }
    }

    /// Copies to memory of the GPU, here and now; `shared`: the host sees it too.
    pub(crate) fn write_now(&self, dst: DevAddr, src: HostRange<'_>, shared: bool) -> Result<()> {
        if let Some(watcher) = self.watcher() {
            watcher.written(dst.0, src.len() as u64);
        }
        if shared && self.on_host(dst, src.len(), true, |range| range.copy_from(src)) {
            return Ok(());
        }
        self.link.usable()?;
        self.link.outcome(self.link.gpu().write(dst, src))
    }

    /// Copies from memory of the GPU, here and now; `shared`: the host sees it too.
    pub(crate) fn read_now(&self, dst: HostRange<'_>, src: DevAddr, shared: bool) -> Result<()> {
        if shared && self.on_host(src, dst.len(), false, |range| dst.copy_from(range)) {
            return Ok(());
        }
        self.link.usable()?;
        self.link.outcome(self.link.gpu().read(dst, src))
    }

    /// Calls `f` with GPU memory as the host sees it; false if it does not.
    pub(crate) fn on_host(&self, at: DevAddr, bytes: usize, write: bool, f: impl FnOnce(HostRange<'_>)) -> bool {
        self.space.existing().is_some_and(|arena| arena.window.with(at.0 - arena.lo, bytes as u64, write, f).is_ok())
    }

    /// Reads memory that the host sees; false if it does not.
    pub(crate) fn read_on_host(&self, at: u64, out: &mut [u8]) -> bool {
        self.space.existing().is_some_and(|arena| arena.window.read(at - arena.lo, out).is_ok())
    }

    /// Changes an aligned word of 4 or 8 bytes that the host sees, at once; gives what was there, if the host does see it.
    pub(crate) fn update_on_host(&self, at: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Option<u64> {
        self.space.existing().and_then(|arena| arena.window.update(at - arena.lo, bytes, f).ok())
    }

    /// Writes memory that the host sees.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if it does not.
    pub(crate) fn write_on_host(&self, at: u64, data: &[u8]) -> Result<()> {
        let arena = self.arena()?;
        arena.window.write(at - arena.lo, data).map_err(|_| CudaError::OPERATING_SYSTEM)
    }

    /// Memory of its own at new addresses.
    fn take_own(&self, bytes: u64, align: u64, kind: MemoryKind, place: &mut Place<'_>) -> Result<Own> {
        let base = self.space.take(bytes, align, None)?;
        let made = self.back(base, bytes, kind, place).inspect_err(|_| self.space.give(base, bytes));
        made.map(|id| Own { base, id, bytes, kind })
    }

    /// Puts memory behind addresses.
    pub(crate) fn back(&self, base: u64, bytes: u64, kind: MemoryKind, place: &mut Place<'_>) -> Result<AllocId> {
        let id = place.allocation(bytes);
        let answer = self.link.request(Request::Alloc { id, bytes, kind });
        place.asked(id, bytes, &answer);
        answer?;
        let (at, access) = (DevAddr(base), MapAccess::ReadWrite);
        let mapped = self.link.request(Request::Map { at, id, offset: 0, bytes, access });
        mapped.inspect_err(|_| self.link.give_back(Request::Free { id }))?;
        Ok(id)
    }

    /// Addresses without memory, known as an allocation of `bytes`.
    pub(crate) fn reserve(&self, bytes: u64, whole: u64, align: u64, kind: Kind) -> Result<Arc<Allocation>> {
        let base = self.space.take(whole, align, None)?;
        let known = Arc::new(self.elsewhere(base, bytes, kind, ContextId(0)));
        self.space.table.insert(&known);
        Ok(known)
    }

    /// Gives such addresses back.
    pub(crate) fn unreserve(&self, known: &Allocation, whole: u64) {
        self.forget(known.base, |found| found.number == known.number);
        self.space.give(known.base, whole);
    }

    /// Memory of its own, mapped wherever it is seen; `host` are pages of the program that are to show it.
    fn take_memory(
        &self,
        arena: &Arena,
        bytes: u64,
        (kind, host): (MemoryKind, Option<ProgramPages>),
        place: &mut Place<'_>,
    ) -> Result<Own> {
        let unit = if bytes > SMALL { LARGE_PAGE_BYTES } else { PAGE_BYTES };
        if kind == MemoryKind::Vram {
            return self.take_own(bytes.next_multiple_of(unit), unit, kind, place);
        }
        let own = self.take_own(bytes.next_multiple_of(PAGE_BYTES), unit, kind, place)?;
        let shown = self.link.outcome(self.link.gpu().host_memory(own.id)).and_then(|part| {
            let at = own.base - arena.lo;
            let shown = arena.window.map(at, &part.file, part.offset, own.bytes, Protection::ReadWrite);
            // Registered memory moves into the file before the program's pages show it.
            let moved = shown.and_then(|()| host.map_or(Ok(()), |pages| pages.show(&part.file, part.offset)));
            moved.map_err(|_| CudaError::OPERATING_SYSTEM)?;
            self.space.shared.add(own.base, Piece { id: own.id, bytes: own.bytes, gpu: self.gpu, memory: part })
        });
        match shown {
            Ok(()) => Ok(own),
            Err(error) => {
                self.give_own(arena, own);
                Err(error)
            }
        }
    }

    fn give_own(&self, arena: &Arena, own: Own) {
        let Own { base, id, bytes, kind } = own;
        if kind == MemoryKind::Host {
            self.space.shared.remove(base);
            if let Err(error) = arena.window.unmap(base - arena.lo, bytes) {
                tracing::error!(%error, "host-visible pages stay mapped");
            }
        }
        self.link.post(GiveBack::Unmap { at: DevAddr(base), bytes });
        self.link.post(GiveBack::Free { id });
        self.space.give(base, bytes);
    }

    /// A part of a chunk with room, or of a new one. What the host sees of it is zero, as fresh pages are.
    fn take_from_chunk(
        &self,
        arena: &Arena,
        heap: &mut Heap,
        bytes: u64,
        kind: MemoryKind,
        place: &mut Place<'_>,
    ) -> Result<u64> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let alike = heap.chunks.values_mut().filter(|chunk| chunk.own.kind == kind);
        if let Some(base) = alike.flat_map(|chunk| chunk.free.take(bytes, ALIGN)).next() {
            let chunk = base / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
            heap.spare.retain(|spare| *spare != chunk);
            if kind == MemoryKind::Host {
                self.write_on_host(base, &vec![0; bytes as usize])?;
            }
            return Ok(base);
        }
        let own = self.take_memory(arena, LARGE_PAGE_BYTES, (kind, None), place)?;
        let mut free = FreeRanges::new(own.base, LARGE_PAGE_BYTES);
        let base = free.take(bytes, ALIGN).ok_or(CudaError::OUT_OF_MEMORY)?;
        heap.chunks.insert(own.base, Chunk { own, free });
        Ok(base)
    }
}
