//! An allocation: what it is, where it is, what its memory is.

use std::sync::atomic::AtomicBool;

use gpu::{AllocId, ContextId, MemoryKind};
use hostmem::ProgramPages;

use crate::handle::MemPool;
use crate::values::WatchedMemory;

/// The context of what belongs to none.
pub(crate) const NOBODY: ContextId = ContextId(0);

/// What an allocation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocAsync`.
    Pool,
    /// `cuMemAllocFromPoolAsync` of a pool of managed memory.
    ManagedPool,
    /// `cuMemAllocFromPoolAsync` of a pool of host memory.
    PinnedPool,
    /// `cuGraphAddMemAllocNode`: there is memory while launches of graphs need it.
    Graph,
    /// A variable of a module; its memory is the module's.
    Variable,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`: the program's pages show memory that the GPU sees.
    Registered,
    /// `cuMemHostRegister` of memory whose pages must stay what they are: the GPU does not see it. Copies go through the
    /// program's own addresses.
    RegisteredInPlace,
    /// `cuMemAllocManaged`.
    Managed,
    /// A managed variable of a module; its memory is the module's.
    ManagedVariable,
    /// `cuMemMap` of device memory.
    Mapped,
    /// `cuMemMap` of host memory.
    MappedHost,
    /// `cuIpcOpenMemHandle`, `cuMemPoolImportPointer`: memory of another process's GPU, which this one and the host see.
    Imported,
    /// An array, which programs know by a handle.
    Array,
    /// Of this library's own.
    Internal,
    /// The same of the host's.
    InternalHost,
}

impl Kind {
    /// The host can access it, at the GPU's address.
    pub(crate) fn host_visible(self) -> bool {
        let by_name =
            matches!(self, Kind::Pinned | Kind::PinnedPool | Kind::Registered | Kind::MappedHost | Kind::Imported);
        by_name || self.managed() || self == Kind::InternalHost
    }

    /// What its memory is.
    pub(crate) fn memory(self) -> MemoryKind {
        if self.host_visible() { MemoryKind::Host } else { MemoryKind::Vram }
    }

    /// Known by the program's address, which is not the GPU's.
    pub(crate) fn registered(self) -> bool {
        matches!(self, Kind::Registered | Kind::RegisteredInPlace)
    }

    /// Programs know no address of it.
    pub(crate) fn hidden(self) -> bool {
        matches!(self, Kind::Array | Kind::Internal | Kind::InternalHost)
    }

    /// What somebody is told who watches memory come and go.
    pub(crate) fn watched(self) -> WatchedMemory {
        let name = match self {
            Kind::Device => "cudaMalloc",
            Kind::Pool | Kind::PinnedPool | Kind::ManagedPool => "cudaMallocAsync",
            Kind::Graph => "of a graph",
            Kind::Variable | Kind::ManagedVariable => "a variable",
            Kind::Pinned => "cudaHostAlloc",
            Kind::Registered | Kind::RegisteredInPlace => "cudaHostRegister",
            Kind::Managed => "cudaMallocManaged",
            Kind::Mapped | Kind::MappedHost => "cuMemMap",
            Kind::Imported => "of another process",
            Kind::Array => "an array",
            Kind::Internal | Kind::InternalHost => "of the driver",
        };
        // What is the program's alone begins without a value. What graphs allocate goes and comes with launches, unseen.
        let filled = !matches!(self, Kind::Device | Kind::Pool);
        WatchedMemory { name, addressed: self != Kind::Array, filled }
    }

    /// The GPU can access it.
    pub(crate) fn on_gpu(self) -> bool {
        self != Kind::RegisteredInPlace
    }

    /// Host and GPU may use it at any time, at one address.
    pub(crate) fn managed(self) -> bool {
        matches!(self, Kind::Managed | Kind::ManagedPool | Kind::ManagedVariable)
    }

    /// Its memory is a pool's.
    pub(crate) fn pooled(self) -> bool {
        matches!(self, Kind::Pool | Kind::ManagedPool | Kind::PinnedPool)
    }
}

/// An allocation, or a part of somebody else's memory that programs know by its own name.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// GPU address; the program's where the GPU does not see it.
    pub(crate) base: u64,
    /// As asked for.
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// Ordinal of the GPU that has it, or that sees it.
    pub(crate) gpu: u32,
    pub(crate) context: ContextId,
    /// A number never used again.
    pub(crate) number: u64,
    /// The flags it was made with.
    pub(crate) flags: u32,
    /// The program's own pages, if registered.
    pub(crate) host: Option<ProgramPages>,
    pub(crate) pool: MemPool,
    pub(crate) sync_memops: AtomicBool,
    pub(crate) memory: Backing,
}

/// What holds an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
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

/// What is asked of [`Memory`](crate::memory::heap::Memory).
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
