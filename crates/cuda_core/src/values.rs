//! Values that cross the API: what the C edge decodes its structures into.

use std::sync::Arc;

use cuda_abi::CUarray_format;
use gpu::DevAddr;
use hostmem::HostRange;

use crate::handle::{Array, Context, Event, Function, Graph, GraphNode, MipmappedArray, Stream};

/// What the process around the library provides.
#[derive(Clone, Copy, Debug)]
pub struct HostServices {
    /// Writes text that kernels printed to the program's standard output.
    pub print: fn(&[u8]),
    /// A context was destroyed, or the primary context reset: what others keep per context must go.
    pub context_destroyed: fn(Context),
}

/// Memory, for a [`MemoryWatcher`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchedMemory {
    /// What it is, in words; as programs ask for it, if they do.
    pub name: &'static str,
    /// Kernels may access it by its address.
    pub addressed: bool,
    /// It has a value from the beginning, or may get one unseen.
    pub filled: bool,
}

/// Somebody who is told which memory there is that kernels may access, and what the program and its copies write to it.
///
/// What streams allocate and free in their order is told when the functions are called: work must be immediate
/// ([`Driver::be_immediate`](crate::Driver::be_immediate)).
pub trait MemoryWatcher: std::fmt::Debug + Send + Sync {
    /// There is memory, of so many bytes as were asked for, in place of what was there.
    fn allocated(&self, base: u64, bytes: u64, memory: WatchedMemory);

    /// The memory that begins there goes; it may have gone already.
    fn freed(&self, base: u64);

    /// Bytes were written, or will be before a kernel that comes later.
    fn written(&self, address: u64, bytes: u64);
}

/// An image of code: bytes whose end only their own headers tell.
pub trait Image {
    /// Copies `out.len()` bytes at `offset`; false where the image is known to end before.
    ///
    /// The parser asks only for what the headers read so far say is there.
    fn read(&self, offset: u64, out: &mut [u8]) -> bool;

    /// As [`Image::read`], of what nothing promises to be there: false then, too. That is [`Image::read`] where the end is known.
    fn try_read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.read(offset, out)
    }

    /// The image at a pointer found in this one (a fatbin wrapper holds pointers); `None` if that makes no sense here.
    fn follow(&self, pointer: u64) -> Option<Box<dyn Image + '_>>;

    /// The bytes before the first NUL, or before the known end, at most `most`.
    fn text(&self, most: u64) -> Vec<u8>;

    /// All bytes, where the end is known and they are at most `most`.
    fn whole(&self, _most: u64) -> Option<Vec<u8>> {
        None
    }
}

impl Image for &[u8] {
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let part = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..out.len()));
        part.map(|part| out.copy_from_slice(part)).is_some()
    }

    fn follow(&self, _pointer: u64) -> Option<Box<dyn Image + '_>> {
        None
    }

    fn text(&self, most: u64) -> Vec<u8> {
        let most = self.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        ptx::before_nul(&self[..most]).to_vec()
    }

    fn whole(&self, most: u64) -> Option<Vec<u8>> {
        (self.len() as u64 <= most).then(|| self.to_vec())
    }
}

/// What is asked of the JIT at one load, and its logs for the caller's buffers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JitLog {
    /// `CU_JIT_FMA`, `CU_JIT_MAX_REGISTERS`.
    pub options: ptx::JitOptions,
    /// The caller has a buffer for what the compiler has to tell: it is asked about every kernel, which takes its time.
    pub ask: bool,
    /// `CU_JIT_INFO_LOG_BUFFER`.
    pub info: String,
    /// `CU_JIT_ERROR_LOG_BUFFER`.
    pub error: String,
}

/// `CUdevprop`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as in CUDA")]
pub struct DeviceProperties {
    pub max_threads_per_block: i32,
    pub max_threads_dim: [i32; 3],
    pub max_grid_size: [i32; 3],
    pub shared_mem_per_block: i32,
    pub total_constant_memory: i32,
    pub simd_width: i32,
    pub mem_pitch: i32,
    pub regs_per_block: i32,
    pub clock_rate: i32,
    pub texture_align: i32,
}

/// Where kernel parameters come from.
pub enum Params<'a> {
    /// `kernelParams`: copies parameter `index` into the slice, which has the parameter's size; false if there is none.
    Each(&'a mut dyn FnMut(usize, &mut [u8]) -> bool),
    /// `CU_LAUNCH_PARAM_BUFFER_POINTER`: the whole block.
    Packed(HostRange<'a>),
}

impl Params<'_> {
    /// The same parameters, for a launch that may be followed by others.
    pub(crate) fn again(&mut self) -> Params<'_> {
        match self {
            Params::Each(copy) => Params::Each(&mut **copy),
            Params::Packed(range) => Params::Packed(*range),
        }
    }
}

impl std::fmt::Debug for Params<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Params::Each(_) => f.write_str("Each"),
            Params::Packed(range) => f.debug_tuple("Packed").field(range).finish(),
        }
    }
}

/// A function of the program that can be called again and again.
#[derive(Clone)]
pub struct HostCall {
    /// Calls it.
    pub call: Arc<dyn Fn() + Send + Sync>,
    /// Its address, for who asks; nothing is called by it.
    pub function: u64,
    /// What it is called with, for who asks.
    pub data: u64,
}

impl std::fmt::Debug for HostCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCall").field("function", &self.function).finish_non_exhaustive()
    }
}

/// What a node of a graph is to do.
#[derive(Debug)]
#[expect(missing_docs, reason = "named as in CUDA's parameters of nodes")]
pub enum NodeParams<'a> {
    /// `config.stream` and `config.event` are not looked at; `context` is a kernel's, null: the current one.
    Kernel {
        function: Function,
        config: LaunchConfig,
        params: Params<'a>,
        context: Context,
    },
    Copy {
        copy: Copy3D<'static>,
        context: Context,
    },
    Fill {
        fill: Fill,
        context: Context,
    },
    Host(HostCall),
    /// A copy of the graph becomes the node's, or, if it is `moved`, itself.
    Graph {
        graph: Graph,
        moved: bool,
    },
    Empty,
    WaitEvent(Event),
    RecordEvent(Event),
    MemOps {
        operations: Vec<MemOp>,
        flags: u32,
        context: Context,
    },
    /// `descriptors` are the `CUmemAccessDesc`s of `accesses`, for who asks.
    MemAlloc {
        props: MemoryProps,
        bytes: u64,
        accesses: Vec<(Location, AccessFlags)>,
        descriptors: Box<[[u32; 3]]>,
    },
    MemFree(DevAddr),
    /// `kind` and `size` are `CUDA_CONDITIONAL_NODE_PARAMS`'s; `context` is the handle's, null: the current one.
    Conditional {
        handle: u64,
        kind: u32,
        size: u32,
        context: Context,
    },
}

/// What a node of a graph does.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in CUDA's parameters of nodes")]
pub enum NodeInfo {
    /// `function` is what was given, which may be a kernel's value, and `in_context` the function that it is in the node's context.
    /// `params` is the address of an array of addresses, one for each parameter; both last until the node gets other parameters.
    Kernel {
        function: Function,
        in_context: Function,
        config: LaunchConfig,
        params: u64,
        context: Context,
    },
    Copy {
        copy: Copy3D<'static>,
        context: Context,
    },
    Fill {
        fill: Fill,
        context: Context,
    },
    Host(HostCall),
    Graph(Graph),
    Empty,
    WaitEvent(Event),
    RecordEvent(Event),
    /// `shown` is the address of so many `CUstreamBatchMemOpParams`s, which last until the node gets other parameters.
    MemOps {
        shown: (u64, u64),
        flags: u32,
        context: Context,
    },
    /// `descriptors` is the address of so many `CUmemAccessDesc`s, which last as long as the node.
    MemAlloc {
        device: i32,
        bytes: u64,
        address: DevAddr,
        descriptors: (u64, u64),
    },
    MemFree(DevAddr),
    /// `bodies` is the address of so many handles of graphs, which last as long as the node.
    Conditional {
        handle: u64,
        kind: u32,
        bodies: (u64, u64),
        context: Context,
    },
}

/// A node of a graph that is captured once more, with other parameters than before.
#[derive(Debug)]
pub struct Recaptured<'a> {
    /// The graph's node, which keeps its handle.
    pub node: GraphNode,
    /// `CUgraphNodeType`, which stays the same.
    pub kind: u32,
    /// What it did. Addresses in it are good until the call returns.
    pub before: &'a NodeInfo,
    /// What it is to do.
    pub now: &'a NodeInfo,
    /// Executable graphs made of the graph can be given that.
    pub eligible: bool,
}

/// Whether the program agrees that a node does something else. It may call anything of the driver's.
pub type Approve = Arc<dyn Fn(&Recaptured<'_>) -> bool + Send + Sync>;

/// An edge of a graph: from which node, to which, and its `CUgraphEdgeData`.
pub type GraphEdge = (GraphNode, GraphNode, [u8; 8]);

/// What became of an instantiation or an update: a number of `CUgraphInstantiateResult` or `CUgraphExecUpdateResult`, and the
/// nodes that were in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "named as in CUDA")]
pub struct GraphOutcome {
    pub result: u32,
    pub error_node: GraphNode,
    pub error_from_node: GraphNode,
}

/// What is known of a stream's capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureInfo {
    /// `CUstreamCaptureStatus`: 0 none, 1 active, 2 invalidated.
    pub status: u32,
    /// A number never used again in this process; 0 if there is none.
    pub id: u64,
    /// The graph that is being made.
    pub graph: Graph,
    /// The nodes behind which the stream's next one comes: address of an array that lasts until the stream is used again, and
    /// how many.
    pub before: (u64, u64),
    /// The `CUgraphEdgeData` of the edges from them: address of an array as long, which lasts as long.
    pub edges: u64,
    /// Those are all zero.
    pub plain: bool,
}

/// How a kernel is launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchConfig {
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    /// The stream that it is a command of.
    pub stream: Stream,
    /// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
    pub cooperative: bool,
    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`. 1 × 1 × 1: as the kernel says, which is one block by itself if it says nothing.
    pub cluster: [u32; 3],
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT` or `…_LAUNCH_COMPLETION_EVENT`: recorded behind the kernel.
    pub event: Event,
}

impl LaunchConfig {
    /// A plain launch.
    #[must_use]
    pub fn new(grid: [u32; 3], block: [u32; 3], shared_bytes: u32, stream: Stream) -> LaunchConfig {
        LaunchConfig { grid, block, shared_bytes, stream, cooperative: false, cluster: [1; 3], event: Event::NULL }
    }
}

/// One end of a two- or three-dimensional copy. Everything in bytes, lines and slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyEnd<'a> {
    /// What the memory is.
    pub memory: CopyMemory<'a>,
    /// Bytes to skip in each line.
    pub x: u64,
    /// Lines to skip in each slice.
    pub y: u64,
    /// Slices to skip.
    pub z: u64,
    /// Bytes from line to line; 0 where there is one line only.
    pub pitch: u64,
    /// Lines from slice to slice; 0 where there is one slice only.
    pub height: u64,
}

/// Kind of memory at one end of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMemory<'a> {
    /// `CU_MEMORYTYPE_HOST`: base pointer, [`CopyEnd::extent`] bytes long.
    Host(HostRange<'a>),
    /// `CU_MEMORYTYPE_DEVICE`.
    Device(DevAddr),
    /// `CU_MEMORYTYPE_UNIFIED`: what it is is found by the address; as long as `Host` if it turns out to be.
    Unified(HostRange<'a>),
    /// `CU_MEMORYTYPE_ARRAY`; pitch and height are the array's, those given are not looked at.
    Array(Array),
}

/// A copy of lines and slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy3D<'a> {
    /// What is copied.
    pub src: CopyEnd<'a>,
    /// Where it goes.
    pub dst: CopyEnd<'a>,
    /// Bytes of each line.
    pub width: u64,
    /// Lines of each slice.
    pub height: u64,
    /// Number of slices.
    pub depth: u64,
}

impl CopyEnd<'_> {
    /// Bytes from the base pointer to the end of the last byte touched by a copy of this shape; `None` if it cannot be.
    #[must_use]
    pub fn extent(&self, width: u64, height: u64, depth: u64) -> Option<u64> {
        if width == 0 || height == 0 || depth == 0 {
            return Some(0);
        }
        self.offset(height - 1, depth - 1)?.checked_add(width)
    }

    /// Offset of the first byte of a line from the base pointer.
    #[must_use]
    pub(crate) fn offset(&self, line: u64, slice: u64) -> Option<u64> {
        let lines = self.z.checked_add(slice)?.checked_mul(self.height)?.checked_add(self.y)?.checked_add(line)?;
        lines.checked_mul(self.pitch)?.checked_add(self.x)
    }
}

/// The memory behind a texture or surface (`CUDA_RESOURCE_DESC`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// All of an array, or of a level of a mipmapped one.
    Array(Array),
    /// All levels.
    Mipmapped(MipmappedArray),
    /// Elements one behind another.
    Linear {
        /// The first element.
        at: DevAddr,
        /// What a channel of an element is.
        format: CUarray_format,
        /// Channels of an element.
        channels: u32,
        /// How long it is.
        bytes: u64,
    },
    /// Lines.
    Pitched {
        /// The first element.
        at: DevAddr,
        /// What a channel of an element is.
        format: CUarray_format,
        /// Channels of an element.
        channels: u32,
        /// Elements of a line.
        width: u64,
        /// How many lines.
        height: u64,
        /// From line to line, bytes.
        pitch: u64,
    },
}

/// Lines of elements to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The first element.
    pub dst: DevAddr,
    /// Bytes from line to line; any number where there is one line only.
    pub pitch: u64,
    /// The element, in the low bytes.
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u32,
    /// Elements of each line.
    pub width: u64,
    /// How many lines.
    pub height: u64,
}

/// Where physical memory of the virtual-memory-management functions lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as in CUDA")]
pub enum Location {
    Invalid,
    Device(i32),
    Host,
    HostNuma(i32),
    HostNumaCurrent,
}

/// Rights of `cuMemSetAccess` and of pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessFlags {
    /// `PROT_NONE`.
    None,
    /// `PROT_READ`.
    Read,
    /// `PROT_READWRITE`.
    ReadWrite,
}

/// `CUmemAllocationProp`, `CUmemPoolProps` in so far as they matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryProps {
    /// Whose memory it is.
    pub location: Location,
    /// `CUmemAllocationHandleType` bits asked for: `POSIX_FILE_DESCRIPTOR` or none.
    pub handle_types: u32,
    /// Most bytes of a pool; 0 is no limit.
    pub max_bytes: u64,
}

/// What the memory of a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PoolMemory {
    /// A device's: `CU_MEM_ALLOCATION_TYPE_PINNED` at a device.
    Device,
    /// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
    Managed,
    /// The host's: `CU_MEM_ALLOCATION_TYPE_PINNED` at the host or a node of it.
    Pinned,
}

/// `CUmemPool_attribute`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as in CUDA")]
pub enum PoolAttribute {
    ReuseFollowEventDependencies,
    ReuseAllowOpportunistic,
    ReuseAllowInternalDependencies,
    ReleaseThreshold,
    ReservedMemCurrent,
    ReservedMemHigh,
    UsedMemCurrent,
    UsedMemHigh,
}

/// A pointer attribute's value; the edge stores it in the width CUDA says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttributeValue {
    /// `int`, `unsigned int`, enumerations.
    U32(u32),
    /// Pointers, handles, sizes, 64-bit ids.
    U64(u64),
    /// `bool` (one byte).
    Bool(bool),
    /// `CUDA_POINTER_ATTRIBUTE_P2P_TOKENS`: two 64-bit words.
    Pair(u64, u64),
}

/// One operation of `cuStreamBatchMemOp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemOp {
    /// Waits until memory compares as `flags` (`CU_STREAM_WAIT_VALUE_*`) says.
    Wait {
        /// The word in GPU memory; a multiple of its size.
        address: DevAddr,
        /// What the word is compared with, in the low bits.
        value: u64,
        /// 64 bits instead of 32.
        wide: bool,
        /// `CU_STREAM_WAIT_VALUE_*`.
        flags: u32,
    },
    /// Stores a word, after all before it in the stream.
    Write {
        /// The word in GPU memory; a multiple of its size.
        address: DevAddr,
        /// What is stored, in the low bits.
        value: u64,
        /// 64 bits instead of 32.
        wide: bool,
        /// `CU_STREAM_WRITE_VALUE_*`.
        flags: u32,
    },
    /// `FLUSH_REMOTE_WRITES` and `BARRIER`: implied by the order of a stream. Type and flags as they lie in memory.
    Nothing(u64),
}

impl MemOp {
    /// `CUstreamBatchMemOpParams`.
    pub(crate) fn words(&self) -> [u64; 6] {
        match *self {
            MemOp::Wait { address, value, wide, flags } => {
                [if wide { 4 } else { 1 }, address.0, value, flags.into(), 0, 0]
            }
            MemOp::Write { address, value, wide, flags } => {
                [if wide { 5 } else { 2 }, address.0, value, flags.into(), 0, 0]
            }
            MemOp::Nothing(word) => [word, 0, 0, 0, 0, 0],
        }
    }
}

/// What `cuDevicePrimaryCtxGetState` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrimaryState {
    /// Those set for the next context, or of the active one.
    pub flags: u32,
    /// Somebody retains it.
    pub active: bool,
}
