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
//! - **Commands are data**, queued in order per queue; they complete asynchronously. Progress is seen in the semaphore slots
//!   of the [`SemaphoreArea`]: looking costs a load.
//! - **Errors of asynchronous work** stick to the context of the queue ([`context_error`]).

mod command;
mod error;
mod request;
mod semaphores;

use std::sync::Arc;
use std::time::Duration;

pub use command::{Command, Compare};
pub use error::{ContextError, GpuError};
use hostmem::{HostRange, Memfd};
pub use request::{
    CodeFormat, CodeImage, GiveBack, GlobalInfo, KernelInfo, MapAccess, MemoryKind, ModuleInfo, Request, Response,
    RuntimeMemory,
};
pub use semaphores::{Look, SEMAPHORE_SLOTS, SemaphoreArea, Sleeper};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u32);
    )*};
}

ids! {
    /// A context: queues that share their fate (a fault in one ends all), scheduled as one.
    ContextId,
    /// A queue of commands.
    QueueId,
    /// A memory allocation.
    AllocId,
    /// A loaded module.
    ModuleId,
    /// A semaphore slot: an index below [`SEMAPHORE_SLOTS`].
    SlotId,
}

/// A GPU virtual address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DevAddr(pub u64);

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
/// Stack of a thread whose kernel has functions that call themselves, bytes, as CUDA counts them, if nobody asks for another.
pub const STACK_BYTES: u32 = 1024;

/// What a GPU is; facts that never change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// What users are shown (`cuDeviceGetName`).
    pub name: String,
    /// Tells this GPU from all others, as long as it exists (`cuDeviceGetUuid`).
    pub uuid: [u8; 16],
    /// PCI domain, bus, device.
    pub pci: [u32; 3],
    /// Major and minor compute capability: which PTX targets it takes.
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

/// Where memory lies that the client may map. Small allocations of a client share memory files. A file holds nothing of other clients.
#[derive(Clone, Debug)]
pub struct HostMemory {
    /// The file, to be mapped by the client.
    pub file: Arc<Memfd>,
    /// Offset of the allocation's first byte in it: whole pages.
    pub offset: u64,
}

/// A GPU, as one client sees it.
///
/// Implementors are shared between threads; calls of one thread keep their order.
pub trait Gpu: Send + Sync {
    /// What it is, asked once when the client was opened: costs nothing.
    fn properties(&self) -> &Properties;

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    fn request(&self, request: Request) -> Result<Response, GpuError>;

    /// Gives something back whose end nobody waits for: what is asked or submitted later comes behind it. A GPU that answers at
    /// once need not tell it from a request.
    ///
    /// # Errors
    /// As far as they are known: the session is gone, or as of the request.
    fn post(&self, what: GiveBack) -> Result<(), GpuError> {
        self.request(what.into()).map(drop)
    }

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

    /// The semaphore area: looking at a slot costs a load.
    fn semaphores(&self) -> &SemaphoreArea;

    /// Raises a slot's payload from the client's side, and so lets go what waits for it ([`Command::Wait`]). The area shows
    /// it when this returns.
    ///
    /// # Errors
    /// `InvalidId` if there is no such slot; the session is gone.
    fn release(&self, slot: SlotId, value: u64) -> Result<(), GpuError>;

    /// Asks that signals interrupt, because somebody has counted itself among the sleepers of the semaphore area.
    ///
    /// # Errors
    /// The session is gone.
    fn listen(&self) -> Result<(), GpuError>;

    /// Sleeps until `slot`'s payload is at least `value`, or its `context` has an error, or time is up.
    ///
    /// # Errors
    /// `Context`, `TimedOut` or `Lost`.
    fn wait(&self, context: ContextId, slot: SlotId, value: u64, timeout: Option<Duration>) -> Result<(), GpuError>;

    /// Copies client memory to mapped GPU memory at once, not ordered with queues. Any size.
    ///
    /// # Errors
    /// `InvalidValue` if a byte of the destination is not mapped writable.
    fn write(&self, dst: DevAddr, src: HostRange<'_>) -> Result<(), GpuError>;

    /// Copies mapped GPU memory to client memory at once, not ordered with queues. Any size.
    ///
    /// # Errors
    /// `InvalidValue` if a byte of the source is not mapped.
    fn read(&self, dst: HostRange<'_>, src: DevAddr) -> Result<(), GpuError>;

    /// Where an allocation lies: one of kind [`MemoryKind::Host`], or one that is [shown](Response::Shown).
    ///
    /// # Errors
    /// `InvalidId` if it is neither.
    fn host_memory(&self, id: AllocId) -> Result<HostMemory, GpuError>;

    /// Whether allocations in VRAM are [shown](Response::Shown), unless there is no room for it, in files that another process may be
    /// told of.
    fn shows_memory(&self) -> bool {
        false
    }

    /// Whether calls shall return only when the GPU has done what they asked for, so that errors show where they are made.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Gives a name to `bytes` of memory that the host and another GPU of the same program share ([`Gpu::host_memory`] there), so
    /// that it can be mapped here, too. `Free` gives the name back, and what is mapped may be used until then.
    ///
    /// # Errors
    /// `Unsupported` if this GPU cannot; `InvalidId` if the name is taken, `InvalidValue` if it is not whole pages of the file,
    /// `OutOfMemory`.
    fn import(&self, id: AllocId, memory: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        let _ = (id, memory, bytes);
        Err(GpuError::Unsupported { what: "memory that another GPU shares with the host".into() })
    }

    /// What tells of requests that wait for memory; `None` if none ever does.
    fn deferring(&self) -> Option<&dyn Deferring> {
        None
    }
}

/// A GPU on which a request may have to wait for memory that others have.
///
/// `Alloc` and `LoadModule` are answered with [`GpuError::Deferred`] then, and stand in line. Asked again with the same name when
/// there are news, they are done, or refused, or still stand in line. Until then the name is nobody's; `Free` and
/// `UnloadModule` of it give up waiting.
pub trait Deferring {
    /// Counts news: that a request may be asked again, that others wait for memory, or that nobody does any more.
    fn news(&self) -> u32;

    /// Sleeps until the count is another than `seen`, or for so long at most.
    ///
    /// # Errors
    /// `Lost`: there will be no news any more.
    fn wait_for_news(&self, seen: u32, most: Duration) -> Result<(), GpuError>;

    /// Whether somebody waits for memory: what is free and kept for later should be given back.
    fn is_wanted(&self) -> bool;
}

/// What memory of a GPU is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VramUse {
    /// What the client has asked for: it counts against its limit, and may have to wait.
    Asked,
    /// What work of the client needs at once: it counts against the limit, and never waits.
    Needed,
    /// What keeping a client takes beside that: page tables, channels, contexts. It has a bound of its own.
    Upkeep,
}

/// Who is asked before memory of a GPU is taken for a client, and told when it is free again: whoever divides a GPU between
/// clients has no other way to know what there is. Called by any thread that serves the client.
pub trait VramLedger: std::fmt::Debug + Send + Sync {
    /// Books `bytes`, which are taken next.
    ///
    /// # Errors
    /// `OutOfMemory`; [`GpuError::Deferred`] for what was [asked](VramUse::Asked) for, if it is to wait. Nothing may be taken then.
    fn take(&self, bytes: u64, what: VramUse) -> Result<(), GpuError>;

    /// `bytes` that were booked are free, or lost, and the client's no more.
    fn give(&self, bytes: u64, what: VramUse);
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
