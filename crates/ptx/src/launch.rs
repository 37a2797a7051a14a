//! What an engine is given with a kernel, and what comes back: shared by the interpreter and the machine-code engine.

use std::ops::Range;

use crate::program::Origin;
use crate::sources::{SourceLine, Sources};

/// Generic addresses of the CTA's shared memory: outside every host address, inside the 49-bit GPU address space.
pub const SHARED_WINDOW: u64 = 1 << 48;
/// Size of the shared window, bytes.
pub const SHARED_WINDOW_BYTES: u64 = 1 << 24;
/// Most CTAs of a cluster.
pub const MAX_CLUSTER_CTAS: u32 = 16;
/// Size of the room for windows of shared memory, bytes: behind the CTA's own those of its cluster's CTAs by rank, its own once more
/// among them.
pub const CLUSTER_WINDOW_BYTES: u64 = LOCAL_WINDOW - SHARED_WINDOW;
/// Generic addresses of the thread's local memory.
pub const LOCAL_WINDOW: u64 = (1 << 48) + (1 << 32);
/// Size of the local window, bytes.
pub const LOCAL_WINDOW_BYTES: u64 = 1 << 24;
/// Addresses up to here are what comes of null pointers.
pub const NULL_BYTES: u64 = 1 << 16;
/// Threads in a warp.
pub const WARP: u32 = 32;
/// Most threads in a CTA.
pub const MAX_THREADS_PER_CTA: u32 = 1024;
/// Most shared memory of a CTA, static and dynamic, bytes (compute capability 12.0, opt-in).
pub const MAX_SHARED_BYTES: u32 = 99 * 1024;
/// Most bytes of local memory of a CTA, and as many of its registers while they are not in use: 64 KiB for each of 1,024
/// threads.
///
/// A line of PTX asks for half a gigabyte, `.local .b8 a[500000];` in a block of 1,024 threads, for every CTA under way,
/// zeroed, in the process that serves all tenants; a few launches would exhaust its memory.
pub const MAX_CTA_BYTES: u64 = 64 << 20;
/// Most bytes of kernel parameters.
pub const MAX_PARAM_BYTES: u32 = 32764;

/// Bytes of a cooperative grid's workspace that kernels may use.
pub const WORKSPACE_BYTES: u64 = 4096;

/// Stack of a thread whose kernel has recursive functions or `alloca`, bytes, if the program asks for no other: frames here
/// are larger than those of hardware, where 1,024 bytes are the default.
pub const STACK_BYTES: u32 = 2048;
/// Most bytes of a thread's stack.
pub const MAX_STACK_BYTES: u32 = 512 << 10;

/// The stack for a program that asks for `limit` bytes (CU_LIMIT_STACK_SIZE).
#[must_use]
pub fn stack_bytes(limit: u32) -> u32 {
    limit.saturating_mul(2).clamp(STACK_BYTES, MAX_STACK_BYTES).next_multiple_of(16)
}

/// What a thread of a kernel needs of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalMemory {
    /// Bytes, but for the stack.
    pub bytes: u32,
    /// A stack comes to it.
    pub has_stack: bool,
}

impl LocalMemory {
    /// Threads of a CTA that there is local memory for, with the stack for a program that asks for `limit` bytes; at most
    /// [`MAX_THREADS_PER_CTA`].
    #[must_use]
    pub fn most_threads(self, limit: u32) -> u32 {
        let stack = if self.has_stack { stack_bytes(limit) } else { 0 };
        let bytes = u64::from(self.bytes) + u64::from(stack);
        MAX_CTA_BYTES.checked_div(bytes).map_or(MAX_THREADS_PER_CTA, |most| most.min(MAX_THREADS_PER_CTA.into()) as u32)
    }
}

/// Device-side buffers of a context that builtins use; GPU virtual addresses, 0 = absent.
///
/// The printf FIFO begins with a header of four little-endian u32: `{ capacity, write, dropped, 0 }` (bytes; capacity
/// counts the records area only), then `capacity` bytes of records, each 8-aligned:
/// `{ u32 record_bytes, u32 format_bytes, format (no NUL, padded to 8), u64 argument slots… , string arguments… }`, where
/// a `%s` slot holds the offset of its NUL-terminated copy within the record. `write` is advanced atomically; a record
/// that does not fit is dropped and counted. The host resets `write` to 0 when it has drained the FIFO at a
/// synchronization.
///
/// The heap is `heap_bytes` at `heap`; its layout is the engine's own business; zero-filled at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverArea {
    /// printf FIFO.
    pub printf: u64,
    /// Device heap of `malloc`.
    pub heap: u64,
    /// Its size, bytes.
    pub heap_bytes: u64,
}

/// One launch of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads per CTA in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory per CTA, bytes.
    pub dynamic_shared: u32,
    /// The parameter block, `Kernel::param_bytes` long.
    pub params: Vec<u8>,
    /// Buffers for builtins.
    pub driver: DriverArea,
    /// Unique number of the grid.
    pub grid_id: u64,
    /// `%envreg1/2` (cooperative grid workspace), `%envreg` 0..32.
    pub envregs: [u32; 32],
    /// CTAs of a cluster in x, y, z: not more than [`MAX_CLUSTER_CTAS`], and each a divisor of the grid's.
    pub cluster: [u32; 3],
}

impl Launch {
    /// CTAs of `block` threads, with the parameter block, and nothing else asked for.
    #[must_use]
    pub fn new(grid: [u32; 3], block: [u32; 3], params: Vec<u8>) -> Launch {
        Launch {
            grid,
            block,
            dynamic_shared: 0,
            params,
            driver: DriverArea::default(),
            grid_id: 0,
            envregs: [0; 32],
            cluster: [1; 3],
        }
    }

    /// Where the workspace of a cooperative grid is, of [`WORKSPACE_BYTES`]; nowhere, if it is none.
    #[must_use]
    pub fn workspace(&self) -> Option<u64> {
        let address = u64::from(self.envregs[1]) << 32 | u64::from(self.envregs[2]);
        (address != 0).then_some(address)
    }

    /// CTAs of a cluster.
    #[must_use]
    pub fn cluster_ctas(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Clusters in x, y, z.
    #[must_use]
    pub fn clusters(&self) -> [u32; 3] {
        [0, 1, 2].map(|i| self.grid[i] / self.cluster[i])
    }

    /// Where CTA `rank` of the cluster with linear index `index` is in the grid; x fastest in both.
    #[must_use]
    pub fn member(&self, index: u64, rank: u32) -> [u32; 3] {
        let [x, y, _] = self.clusters().map(u64::from);
        let cluster = [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32];
        let [a, b, _] = self.cluster;
        let inside = [rank % a, rank / a % b, rank / a / b];
        [0, 1, 2].map(|i| cluster[i] * self.cluster[i] + inside[i])
    }

    /// The linear index of a CTA, x fastest.
    #[must_use]
    pub fn linear(&self, [x, y, z]: [u32; 3]) -> u64 {
        let [width, height, _] = self.grid.map(u64::from);
        u64::from(x) + width * (u64::from(y) + height * u64::from(z))
    }

    /// The rank of a CTA in its cluster.
    #[must_use]
    pub fn rank(&self, ctaid: [u32; 3]) -> u32 {
        let [x, y, z] = [0, 1, 2].map(|i| ctaid[i] % self.cluster[i]);
        x + self.cluster[0] * (y + self.cluster[1] * z)
    }

    /// The CTA with linear index `index`, x fastest.
    #[must_use]
    pub fn ctaid(&self, index: u64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(u64::from);
        [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
    }
}

/// Unit in which CTAs have shared memory, bytes: that of devices of capability 8.0 and up. Compilers know of it: they widen loads beyond
/// what was declared.
pub const SHARED_UNIT: u64 = 128;

/// Bytes of shared memory that a CTA can access: what its kernel declares, so aligned, and what the launch adds, in whole units.
#[must_use]
pub fn shared_bytes(declared: u32, align: u32, dynamic: u32) -> u64 {
    let fixed = u64::from(declared).next_multiple_of(align.max(1).into());
    (fixed + u64::from(dynamic)).next_multiple_of(SHARED_UNIT)
}

/// Why an access was refused; the device turns it into a fault type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// No page there.
    Unmapped,
    /// A write or atomic to a read-only page.
    ReadOnly,
    /// Not a multiple of the access size.
    Misaligned,
    /// Outside the address space's window.
    OutOfWindow,
    /// Outside the CTA's shared memory.
    Shared,
    /// Outside the thread's local memory.
    Local,
    /// Outside the parameter block.
    Param,
    /// No texture or surface is described there, or not such a one.
    Image,
    /// There is a page, but nothing that is allocated: a checker's answer.
    NotAllocated,
}

/// What an access wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write.
    Atomic,
}

/// Why a CTA stopped for good before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exception {
    /// An illegal access; `address` is the GPU virtual (or generic) address, for shared/local/param the offset.
    Access {
        /// Where.
        address: u64,
        /// What for.
        access: Access,
        /// What was wrong with the access.
        error: AccessError,
    },
    /// The `trap` instruction.
    Trap,
    /// A device-side assertion failed (its message is in the printf FIFO).
    Assert,
    /// Stack of the CTA overflowed, or the engine refused at run time (barrier misuse and the like).
    Illegal,
}

/// Most characters of a kernel's name that are told: those of C++ templates may have some hundred.
const MAX_NAME: usize = 1000;

/// Where in a kernel something went wrong, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultSite {
    /// Line of PTX; 0 if unknown.
    pub line: u32,
    /// The CTA.
    pub ctaid: [u32; 3],
    /// Linear index in it, x fastest, of the thread that did it: one, or the first of several of which one did, and behind the last.
    pub threads: Range<u32>,
}

impl FaultSite {
    /// The site in words, in a kernel of CTAs of `block` threads, made of lines that have these `origins`, if its text was linked, and
    /// `sources`, if its compiler has left them.
    #[must_use]
    pub fn told(&self, kernel: &str, block: [u32; 3], origins: &[Origin], sources: &Sources) -> String {
        let [x, y, _] = block.map(|side| side.max(1));
        let at = |[x, y, z]: [u32; 3]| format!("({x},{y},{z})");
        let tid = |thread: u32| at([thread % x, thread / x % y, thread / x / y]);
        let Range { start, end } = self.threads;
        let who = match end.saturating_sub(start) {
            1 => format!("thread {} of block {}", tid(start), at(self.ctaid)),
            2.. if (start, end) != (0, block.iter().product()) => {
                format!("one of threads {} to {} of block {}", tid(start), tid(end - 1), at(self.ctaid))
            }
            _ => format!("block {}", at(self.ctaid)),
        };
        // Names are what a tenant has chosen.
        let kernel = kernel.char_indices().nth(MAX_NAME).map_or(kernel, |(end, _)| &kernel[..end]);
        let ptx = match (self.line, Origin::of(origins, self.line)) {
            (0, _) => return format!("by {who}, in kernel {kernel}"),
            (line, None) => format!("line {line} of PTX"),
            (_, Some((module, line))) => format!("line {line} of PTX of {module}"),
        };
        match sources.at(self.line) {
            Some(SourceLine { file, line }) => format!("by {who}, at {file}:{line} ({ptx}), in kernel {kernel}"),
            None => format!("by {who}, at {ptx}, in kernel {kernel}"),
        }
    }
}

/// How far a resumed CTA came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// All its threads have exited.
    Done,
    /// It stopped because [`Control::PREEMPT`] was set, or at a spin or sleep; resume it later.
    Preempted,
    /// It ended with an exception.
    Exception(Exception),
}

/// The word by which the device stops running CTAs. Engines poll it at loop back-edges.
#[derive(Clone, Copy, Debug)]
pub struct Control;

impl Control {
    /// Run on.
    pub const RUN: u32 = 0;
    /// Give the worker back at the next poll, resumably.
    pub const PREEMPT: u32 = 1;
}

/// Memory as the interpreter sees it: checked accesses to GPU virtual addresses.
pub trait GlobalMemory {
    /// Reads `out.len()` bytes.
    ///
    /// # Errors
    /// Why the access is not allowed.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), AccessError>;
    /// Writes all of `data`.
    ///
    /// # Errors
    /// Why the access is not allowed.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), AccessError>;
    /// Atomically replaces the naturally aligned 2, 4 or 8 byte value `old` by `f(old)`; returns `old`. `f` may be
    /// called several times. 16-byte values (`b128`) are not supported.
    ///
    /// # Errors
    /// Why the access is not allowed.
    fn update(&self, address: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, AccessError>;
}
