//! What a client asks for and waits for, and the answers.

use std::sync::Arc;

use crate::{AllocId, ContextError, ContextId, DevAddr, ModuleId, QueueId};

/// Where an allocation lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// The GPU's own memory; counts against the limit.
    Vram,
    /// Host memory that client and GPU both see ([`crate::Gpu::host_memory`]).
    Host,
}

/// What the GPU may do with mapped pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// Loads only; a store or an atomic faults.
    Read,
    /// Read, write, atomics.
    ReadWrite,
}

/// Memory that the client has mapped for functions that CUDA provides to kernels. All 0: there is none, and kernels that
/// need it print nothing and get no memory.
///
/// The printf FIFO begins with four little-endian u32: `{ capacity, written, dropped, 0 }`, in bytes, of which the client sets
/// `capacity`. Then come `capacity` bytes of records, each a multiple of 8 bytes long:
/// `{ u32 bytes of the record, u32 bytes of the format, format (no NUL, padded to 8), u64 argument slots…, texts… }`; the slot of
/// a `%s` holds the offset in the record of its text, which ends with NUL. A record that does not fit is dropped and counted.
/// The client sets `written` to 0 when it has printed all, while nothing runs. A GPU whose own driver prints may leave the
/// FIFO empty.
///
/// What lies in the heap is the GPU's own affair; it is zero-filled at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntimeMemory {
    /// printf FIFO, or 0.
    pub printf: u64,
    /// Heap of `malloc` in kernels, or 0.
    pub heap: u64,
    /// Bytes of the heap; 0 if there is none.
    pub heap_bytes: u64,
}

/// A form of code. Open: a number without a name is a form that this side does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeFormat(pub u32);

impl CodeFormat {
    /// PTX text, not compressed.
    pub const PTX: CodeFormat = CodeFormat(1);
}

/// Code as a client hands it over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeImage {
    /// What it is.
    pub format: CodeFormat,
    /// The code, in its format; shared, since who waits for memory asks again.
    pub bytes: Arc<Vec<u8>>,
}

impl CodeImage {
    /// An image of PTX text.
    pub fn ptx(text: impl Into<Vec<u8>>) -> CodeImage {
        CodeImage { format: CodeFormat::PTX, bytes: Arc::new(text.into()) }
    }
}

/// Something the client asks for and waits for. All of it is also ordered with what was submitted before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Announces the addresses that will be mapped; once, before the first `Alloc`, `Map`, `CreateContext` or `LoadModule`. Whole
    /// 2 MiB units, below 2^47.
    ///
    /// The client maps in the first [`crate::client_bytes`] of the range. The rest is the driver's: module variables and code,
    /// queues, semaphores; the client keeps it reserved and maps nothing there, neither here nor in its process.
    SetAddressRange {
        /// First address of the range: a multiple of 2 MiB, not 0.
        lo: u64,
        /// Bytes, from [`crate::MIN_RANGE_BYTES`] to 2^40.
        bytes: u64,
    },
    /// How much memory is free and what the limit is. → [`Response::Memory`]
    MemoryInfo,
    /// Allocates zero-filled memory of whole pages.
    Alloc {
        /// Its name from now on.
        id: AllocId,
        /// Bytes: whole pages, more than none.
        bytes: u64,
        /// Where it lies, and who sees it.
        kind: MemoryKind,
    },
    /// Gives an allocation back; its mappings must be gone.
    Free {
        /// An allocation that nothing maps any more.
        id: AllocId,
    },
    /// Maps part of an allocation. Ranges are whole pages; nothing may be mapped there already.
    Map {
        /// First GPU address of the mapping, inside the client's part of the range.
        at: DevAddr,
        /// An allocation of this client.
        id: AllocId,
        /// Where in the allocation the mapping begins, bytes.
        offset: u64,
        /// Bytes mapped; they end inside the allocation.
        bytes: u64,
        /// What kernels and commands may do there.
        access: MapAccess,
    },
    /// Removes the mappings in a range; what runs meanwhile may fault.
    Unmap {
        /// First GPU address that is unmapped; mappings may be cut.
        at: DevAddr,
        /// Bytes unmapped; what is not mapped among them stays so.
        bytes: u64,
    },
    /// Creates a context.
    CreateContext {
        /// A name that no context of the client has; it stands until the context is destroyed.
        id: ContextId,
        /// What functions of the device's runtime library use in its kernels.
        runtime: RuntimeMemory,
    },
    /// Ends a context: stops and destroys its queues.
    DestroyContext {
        /// A context; its queues go with it.
        id: ContextId,
    },
    /// Creates a queue.
    CreateQueue {
        /// A name that no queue of the client has; it stands until the queue is destroyed.
        id: QueueId,
        /// A context of the client, with which the queue ends.
        context: ContextId,
        /// Priority as CUDA counts: lower numbers are more urgent; 0 is the default.
        priority: i32,
    },
    /// Destroys a queue after its commands have completed.
    DestroyQueue {
        /// A queue; what it was given runs to its end.
        id: QueueId,
    },
    /// Loads code. → [`Response::Module`]; [`crate::GpuError::Unsupported`] if the GPU does not take its format.
    LoadModule {
        /// A name that no module of the client has; it stands until the module is unloaded.
        id: ModuleId,
        /// What is loaded; the client may forget it.
        code: CodeImage,
        /// Global variables that the client has placed itself, by name: each lies in memory that it has mapped, and the
        /// client gives it its initial value. The driver places and initialises all others.
        placed: Vec<(String, DevAddr)>,
    },
    /// Unloads a module; its launches must have completed.
    UnloadModule {
        /// A module none of whose kernels is queued or runs.
        id: ModuleId,
    },
    /// How a kernel is launched from now on. Not whether it can be: whoever has its text finds that out, and in its own time; of a
    /// kernel that cannot run, the launch is what fails. → [`Response::Kernel`]
    PrepareKernel {
        /// A module of the client.
        module: ModuleId,
        /// Index in [`ModuleInfo::kernels`].
        kernel: u32,
        /// Bytes of a thread's stack for functions that call themselves (CU_LIMIT_STACK_SIZE); [`crate::STACK_BYTES`] before. No
        /// less than [`KernelInfo::local_bytes`] is given, so that each of them can be called once.
        stack_bytes: u32,
    },
    /// What went wrong in a context. → [`Response::ContextError`]
    ContextError {
        /// A context, dead or alive.
        id: ContextId,
    },
}

/// What is given back without waiting for it ([`crate::Gpu::post`]): nothing comes of these requests but that they are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveBack {
    /// [`Request::Unmap`]
    Unmap {
        /// First GPU address that is unmapped.
        at: DevAddr,
        /// Bytes unmapped.
        bytes: u64,
    },
    /// [`Request::Free`]
    Free {
        /// An allocation that nothing maps any more.
        id: AllocId,
    },
}

impl From<GiveBack> for Request {
    fn from(what: GiveBack) -> Request {
        match what {
            GiveBack::Unmap { at, bytes } => Request::Unmap { at, bytes },
            GiveBack::Free { id } => Request::Free { id },
        }
    }
}

/// Answer to a [`Request`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// To requests that ask for nothing but that it is done.
    Done,
    /// To `Alloc` in VRAM: done, and a memory file shows the allocation, by which the client may reach it
    /// ([`crate::Gpu::host_memory`]). One file shows all those of a client.
    Shown {
        /// Of the allocation's first byte in the file: whole 2 MiB.
        offset: u64,
    },
    /// To `MemoryInfo`, bytes.
    Memory {
        /// Bytes that the client could still allocate.
        free: u64,
        /// Bytes that the client may have at most.
        total: u64,
    },
    /// To `LoadModule`.
    Module(ModuleInfo),
    /// To `PrepareKernel`.
    Kernel(KernelInfo),
    /// To `ContextError`.
    ContextError(Option<ContextError>),
}

/// What a module holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleInfo {
    /// Kernels (`.entry`), in the order of the text.
    pub kernels: Vec<KernelInfo>,
    /// Global and constant variables, visible by name.
    pub globals: Vec<GlobalInfo>,
    /// Notes for the JIT info log.
    pub log: String,
}

/// What is known of a kernel from its declaration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelInfo {
    /// As `.entry` has it: mangled, where the language does that.
    pub name: String,
    /// Offset and size of each parameter, bytes.
    pub params: Vec<(u32, u32)>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Static shared memory, bytes.
    pub shared_bytes: u32,
    /// Local memory per thread, bytes.
    pub local_bytes: u32,
    /// Constant memory of the module, bytes.
    pub const_bytes: u32,
    /// Registers per thread, as a compiler for hardware would report (an estimate).
    pub registers: u32,
    /// Most threads in a CTA, by what the kernel declares.
    pub max_threads: u32,
    /// `.reqntid`, `.maxntid`.
    pub max_ntid: Option<[u32; 3]>,
    /// The CTA must be exactly `max_ntid` (`.reqntid`).
    pub exact_ntid: bool,
    /// PTX ISA version as 95, target as 75.
    pub ptx_version: u32,
    /// Target, as 120.
    pub target: u32,
}

/// A module variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlobalInfo {
    /// As its declaration has it, mangled.
    pub name: String,
    /// Where it lies, in this client's address space.
    pub address: DevAddr,
    /// Bytes that it has; a variable may have none.
    pub bytes: u64,
}
