//! The waist: what any GPU does for a CUDA implementation, as one small trait over plain data.
//!
//! Above it, `cuda_core` implements CUDA once. Below it stand the native driver of a GPU (`gpu_driver`) and a session with
//! a daemon (`remote_gpu`); the daemon's side of a session wraps a driver in quotas (`tenancy`), again as this trait.
//!
//! Principles:
//! - **The client names things.** Identifiers ([`AllocId`], [`QueueId`], …) are chosen by the caller, so that nothing
//!   has to wait for an answer to go on. They are valid in their session only.
//! - **Memory is mapped.** An allocation has no address; the client maps it where it wants, inside the address range it
//!   announced ([`Request::SetAddressRange`]). GPU addresses of host-visible memory equal the client's host addresses.
//! - **Commands are data**, queued in order per queue; they complete asynchronously. Progress is seen in semaphore slots
//!   that live in memory shared with the GPU: looking costs a load.
//! - **Errors of asynchronous work** stick to the context of the queue ([`context_error`]).

use std::sync::Arc;
use std::time::Duration;

use hostmem::{HostRange, Mapping, Memfd};
use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub struct $name(pub u32);
    )*};
}

ids! {
    /// A context: queues that share their fate (a fault in one ends all), scheduled as one.
    ContextId,
    /// A queue of commands: a hardware channel.
    QueueId,
    /// A memory allocation.
    AllocId,
    /// A loaded module.
    ModuleId,
    /// A semaphore slot: an index below [`SEMAPHORE_SLOTS`].
    SlotId,
}

/// A GPU virtual address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DevAddr(pub u64);

/// Semaphore slots of a session.
pub const SEMAPHORE_SLOTS: u32 = 65536;
/// Bytes of a slot: u64 payload, u64 timestamp in nanoseconds of GPU time.
pub const SLOT_BYTES: usize = 16;
/// Offset of the semaphore area's header: u32 interrupt count (a futex), u32 number of waiters, u32 count of context
/// errors so far, u32 whether signals interrupt (0: not yet). It lies behind the slots.
///
/// Who sleeps counts itself among the waiters, reads the fourth word, calls [`Gpu::kick`] if it is 0, looks at the slot once
/// more, and waits on the count. A signal of before the kick that it has not seen wakes it, too.
pub const SEMAPHORE_HEADER: usize = SEMAPHORE_SLOTS as usize * SLOT_BYTES;
/// Bytes of the whole semaphore area.
pub const SEMAPHORE_AREA_BYTES: usize = SEMAPHORE_HEADER + 4096;
/// Mapping granularity of addresses, sizes and offsets, bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Mapping in units of this size, from addresses aligned to it, is fastest.
pub const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// Smallest address range ([`Request::SetAddressRange`]), bytes.
pub const MIN_RANGE_BYTES: u64 = 256 << 20;
/// Largest address range, bytes.
pub const MAX_RANGE_BYTES: u64 = 1 << 40;

/// How many of the `bytes` of an announced address range the client may map, from its beginning: all but the last
/// sixteenth, or 64 MiB if that is more. Whole 2 MiB.
#[must_use]
pub const fn client_bytes(bytes: u64) -> u64 {
    let sixteenth = bytes / 16;
    let driver = if sixteenth < 64 << 20 { 64 << 20 } else { sixteenth.next_multiple_of(LARGE_PAGE_BYTES) };
    bytes.saturating_sub(driver)
}

/// Most bytes in one [`Command::Write`].
pub const MAX_INLINE_BYTES: usize = 64 * 1024;
/// Most bytes of kernel parameters.
pub const MAX_PARAM_BYTES: usize = 32764;

/// What a GPU is; facts that never change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Properties {
    /// Product name.
    pub name: String,
    /// UUID.
    pub uuid: [u8; 16],
    /// PCI domain, bus, device.
    pub pci: [u32; 3],
    /// Compute capability.
    pub compute_capability: [u32; 2],
    /// CUDA driver version, as 13050.
    pub driver_version: u32,
    /// Multiprocessors: CTAs that run at once.
    pub multiprocessors: u32,
    /// Memory this client may use, bytes: its limit, or the whole of the GPU's.
    pub memory_bytes: u64,
    /// Core clock, kHz.
    pub clock_khz: u32,
    /// Memory clock, kHz.
    pub memory_clock_khz: u32,
    /// Memory bus width, bits.
    pub memory_bus_bits: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
}

/// Where an allocation lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemoryKind {
    /// The GPU's own memory; counts against the limit.
    Vram,
    /// Host memory that client and GPU both see ([`Gpu::host_memory`]).
    Host,
}

/// What the GPU may do with mapped pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MapAccess {
    /// Read.
    Read,
    /// Read, write, atomics.
    ReadWrite,
}

/// Something the client asks for and waits for. All of it is also ordered with what was submitted before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Announces the addresses that will be mapped; once, before the first `Alloc`, `Map`, `CreateContext` or `LoadModule`. Whole
    /// 2 MiB units, below 2^47.
    ///
    /// The client maps in the first [`client_bytes`] of the range. The rest is the driver's: module variables and code,
    /// queues, semaphores; the client keeps it reserved and maps nothing there, neither here nor in its process.
    SetAddressRange {
        /// First address.
        lo: u64,
        /// Bytes, from [`MIN_RANGE_BYTES`] to 2^40.
        bytes: u64,
    },
    /// How much memory is free and what the limit is. → [`Response::Memory`]
    MemoryInfo,
    /// Allocates zero-filled memory of whole pages.
    Alloc {
        /// Its name from now on.
        id: AllocId,
        /// Size.
        bytes: u64,
        /// Place.
        kind: MemoryKind,
    },
    /// Gives an allocation back; its mappings must be gone.
    Free {
        /// Which.
        id: AllocId,
    },
    /// Maps part of an allocation. Ranges are whole pages; nothing may be mapped there already.
    Map {
        /// GPU address.
        at: DevAddr,
        /// Allocation.
        id: AllocId,
        /// Offset in it.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Rights.
        access: MapAccess,
    },
    /// Removes the mappings in a range; what runs meanwhile may fault.
    Unmap {
        /// First address.
        at: DevAddr,
        /// Length.
        bytes: u64,
    },
    /// Creates a context.
    CreateContext {
        /// Its name.
        id: ContextId,
        /// printf FIFO (mapped memory, laid out as `ptx::launch::DriverArea` says), or 0.
        printf: u64,
        /// Device heap, or 0.
        heap: u64,
        /// Its size.
        heap_bytes: u64,
    },
    /// Ends a context: stops and destroys its queues.
    DestroyContext {
        /// Which.
        id: ContextId,
    },
    /// Creates a queue.
    CreateQueue {
        /// Its name.
        id: QueueId,
        /// Its context.
        context: ContextId,
        /// Priority as CUDA counts: lower numbers are more urgent; 0 is the default.
        priority: i32,
    },
    /// Destroys a queue after its commands have completed.
    DestroyQueue {
        /// Which.
        id: QueueId,
    },
    /// Loads PTX text (no fatbin, not compressed). → [`Response::Module`]
    LoadModule {
        /// Its name.
        id: ModuleId,
        /// PTX.
        ptx: Vec<u8>,
        /// Global variables that the client has placed itself, by name: each lies in memory that it has mapped, and the
        /// client gives it its initial value. The driver places and initialises all others.
        placed: Vec<(String, DevAddr)>,
    },
    /// Unloads a module; its launches must have completed.
    UnloadModule {
        /// Which.
        id: ModuleId,
    },
    /// Compiles a kernel now, as its first launch would. → [`Response::Kernel`]
    PrepareKernel {
        /// Module.
        module: ModuleId,
        /// Index in [`ModuleInfo::kernels`].
        kernel: u32,
    },
    /// What went wrong in a context. → [`Response::ContextError`]
    ContextError {
        /// Which.
        id: ContextId,
    },
}

/// Answer to a [`Request`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Response {
    /// Done.
    Done,
    /// To `MemoryInfo`, bytes.
    Memory {
        /// Free.
        free: u64,
        /// Limit.
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
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// Kernels (`.entry`), in the order of the text.
    pub kernels: Vec<KernelInfo>,
    /// Global and constant variables, visible by name.
    pub globals: Vec<GlobalInfo>,
    /// Notes for the JIT info log.
    pub log: String,
}

/// What is known of a kernel from its declaration.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Name, mangled.
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
    /// Most threads in a CTA.
    pub max_threads: u32,
    /// `.reqntid` / `.maxntid`.
    pub max_ntid: Option<[u32; 3]>,
    /// PTX ISA version as 95, target as 75.
    pub ptx_version: u32,
    /// Target, as 120.
    pub target: u32,
}

/// A module variable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GlobalInfo {
    /// Name.
    pub name: String,
    /// GPU address.
    pub address: DevAddr,
    /// Size, bytes.
    pub bytes: u64,
}

/// Asynchronous work of a queue. Borrowed: what it carries is copied at submission.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Command<'a> {
    /// Runs a kernel.
    Launch {
        /// Module.
        module: ModuleId,
        /// Kernel, an index in [`ModuleInfo::kernels`].
        kernel: u32,
        /// CTAs in x, y, z.
        grid: [u32; 3],
        /// Threads in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory, bytes.
        shared_bytes: u32,
        /// All CTAs must be able to wait for each other.
        cooperative: bool,
        /// The parameter block.
        params: &'a [u8],
    },
    /// Copies `height` lines of `width` bytes between mapped addresses.
    Copy {
        /// To.
        dst: DevAddr,
        /// From.
        src: DevAddr,
        /// Bytes in a line.
        width: u64,
        /// Lines.
        height: u64,
        /// Bytes from line to line at the destination.
        dst_pitch: u64,
        /// Bytes from line to line at the source.
        src_pitch: u64,
    },
    /// Fills `height` lines with `width` elements.
    Fill {
        /// To.
        dst: DevAddr,
        /// The element, in the low bytes.
        value: u32,
        /// Bytes of an element: 1, 2 or 4.
        element: u32,
        /// Elements in a line.
        width: u64,
        /// Lines.
        height: u64,
        /// Bytes from line to line.
        pitch: u64,
    },
    /// Writes bytes, at most [`MAX_INLINE_BYTES`].
    Write {
        /// To.
        dst: DevAddr,
        /// What.
        data: &'a [u8],
    },
    /// After all before it: stores `value` and the GPU's time into a slot and interrupts.
    Signal {
        /// Slot.
        slot: SlotId,
        /// Payload.
        value: u64,
    },
    /// Holds the queue until a slot's payload is at least `value`.
    Wait {
        /// Slot.
        slot: SlotId,
        /// Payload.
        value: u64,
    },
}

/// Why a context is dead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ContextError {
    /// Access to an address without a page, or against its rights.
    IllegalAddress {
        /// Address.
        address: u64,
        /// A write or atomic.
        write: bool,
    },
    /// Access not aligned to its size.
    Misaligned {
        /// Address.
        address: u64,
    },
    /// `trap`, or an engine's refusal at run time.
    LaunchFailed {
        /// Reason.
        reason: String,
    },
    /// A device-side assertion.
    Assert,
    /// A kernel could not be compiled at its first launch.
    InvalidKernel {
        /// The JIT error log.
        log: String,
        /// Not malformed, but not supported.
        unsupported: bool,
    },
    /// A malformed command reached the device.
    IllegalCommand {
        /// Reason.
        reason: String,
    },
}

/// Why a request or submission failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum GpuError {
    /// The limit, or the memory, is used up.
    #[error("out of memory: {wanted} bytes wanted, {free} free of {limit}")]
    OutOfMemory {
        /// Asked for.
        wanted: u64,
        /// Available to this client.
        free: u64,
        /// Limit.
        limit: u64,
    },
    /// Too many objects of a kind.
    #[error("too many {what} (limit {limit})")]
    TooMany {
        /// Kind.
        what: String,
        /// Limit.
        limit: u64,
    },
    /// An identifier that means nothing here, or is taken already.
    #[error("invalid {what} identifier {id}")]
    InvalidId {
        /// Kind.
        what: String,
        /// The identifier.
        id: u64,
    },
    /// A value that cannot be.
    #[error("invalid value: {what}")]
    InvalidValue {
        /// Which and why.
        what: String,
    },
    /// PTX that does not follow the language, or uses what is not supported.
    #[error("PTX rejected: {log}")]
    InvalidPtx {
        /// Line and reason.
        log: String,
        /// Not malformed, but not supported.
        unsupported: bool,
    },
    /// The context is dead.
    #[error("context failed: {0:?}")]
    Context(ContextError),
    /// The GPU or the session is gone.
    #[error("GPU lost: {reason}")]
    Lost {
        /// Why.
        reason: String,
    },
    /// Time ran out ([`Gpu::wait`]).
    #[error("timed out")]
    TimedOut,
}

/// A GPU, as one client sees it.
///
/// Implementors are shared between threads; calls of one thread keep their order.
pub trait Gpu: Send + Sync {
    /// Facts.
    fn properties(&self) -> &Properties;

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    fn request(&self, request: Request) -> Result<Response, GpuError>;

    /// Appends commands to a queue. They may wait in a buffer until [`Gpu::flush`], a request or a wait.
    ///
    /// # Errors
    /// What can be seen at once; what shows later ends in the context's error.
    fn submit(&self, queue: QueueId, commands: &[Command<'_>]) -> Result<(), GpuError>;

    /// Sends on what was submitted.
    ///
    /// # Errors
    /// The session is gone.
    fn flush(&self) -> Result<(), GpuError>;

    /// The semaphore area: slots and header, shared with the GPU. Clients read slots with plain loads; a client may also
    /// store a payload itself, followed by [`Gpu::kick`], to release a [`Command::Wait`].
    fn semaphores(&self) -> &Mapping;

    /// Tells the GPU that the client has stored a payload, or has begun to sleep while signals do not interrupt.
    ///
    /// # Errors
    /// The session is gone.
    fn kick(&self) -> Result<(), GpuError>;

    /// Sleeps until `slot`'s payload is at least `value`, or its `context` has an error, or time is up.
    ///
    /// # Errors
    /// `Context`, `TimedOut` or `Lost`.
    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError>;

    /// Copies client memory to mapped GPU memory at once, not ordered with queues. Any size.
    ///
    /// # Errors
    /// `InvalidValue` if a byte of the destination is not mapped writable.
    fn write(&self, dst: DevAddr, src: HostRange) -> Result<(), GpuError>;

    /// Copies mapped GPU memory to client memory at once, not ordered with queues. Any size.
    ///
    /// # Errors
    /// `InvalidValue` if a byte of the source is not mapped.
    fn read(&self, dst: HostRange, src: DevAddr) -> Result<(), GpuError>;

    /// The memory file of an allocation of kind [`MemoryKind::Host`], to be mapped by the client.
    ///
    /// # Errors
    /// `InvalidId` if it is none.
    fn host_memory(&self, id: AllocId) -> Result<Arc<Memfd>, GpuError>;
}

/// Asks for a context's error; `None` while it is well.
///
/// # Errors
/// As [`Gpu::request`].
pub fn context_error(gpu: &dyn Gpu, id: ContextId) -> Result<Option<ContextError>, GpuError> {
    match gpu.request(Request::ContextError { id })? {
        Response::ContextError(error) => Ok(error),
        other => Err(GpuError::Lost { reason: format!("unexpected answer {other:?}") }),
    }
}
