//! What a node does.

use std::sync::Arc;

use gpu::DevAddr;

use crate::code::function::FunctionState;
use crate::context_core::ContextCore;
use crate::graph::conditional::Conditional;
use crate::handle::{Event, Function, Graph};
use crate::memory::graph_memory::{GraphBlock, Use};
use crate::values::{Copy3D, Fill, HostCall, LaunchConfig, MemOp, NodeInfo};
use crate::work::event::EventState;

/// The parameters of a kernel.
#[derive(Debug)]
pub(crate) struct KernelParams {
    pub(crate) block: Box<[u8]>,
    /// Where in `block` each parameter lies, as addresses of this process: what `kernelParams` is when asked for.
    pub(crate) pointers: Box<[u64]>,
}

/// A kernel with its shape and parameters.
#[derive(Debug)]
pub(crate) struct KernelWork {
    /// What the program named: a function, or a kernel.
    pub(crate) given: Function,
    pub(crate) function: Arc<FunctionState>,
    pub(crate) config: LaunchConfig,
    /// Lasts until the node gets other ones, whatever else changes.
    pub(crate) params: Arc<KernelParams>,
    /// `CUlaunchAttributeValue`s that were set and change nothing but what is read back.
    pub(crate) attributes: Vec<(u32, [u8; 64])>,
}

impl KernelWork {
    pub(crate) fn new(
        given: Function,
        function: &Arc<FunctionState>,
        config: LaunchConfig,
        params: Vec<u8>,
        attributes: Vec<(u32, [u8; 64])>,
    ) -> KernelWork {
        let block = params.into_boxed_slice();
        let base = block.as_ptr().expose_provenance() as u64;
        let pointers = function.info.params.iter().map(|&(offset, _)| base + u64::from(offset)).collect();
        let params = Arc::new(KernelParams { block, pointers });
        KernelWork { given, function: Arc::clone(function), config, params, attributes }
    }

    /// The same with another configuration and other attributes.
    pub(crate) fn with(&self, config: LaunchConfig, attributes: Vec<(u32, [u8; 64])>) -> Arc<KernelWork> {
        let (function, params) = (Arc::clone(&self.function), Arc::clone(&self.params));
        Arc::new(KernelWork { given: self.given, function, config, params, attributes })
    }

    /// The same with the attributes of another.
    pub(crate) fn with_attributes_of(&self, of: &KernelWork) -> Arc<KernelWork> {
        let config = LaunchConfig { cooperative: of.config.cooperative, cluster: of.config.cluster, ..self.config };
        self.with(config, of.attributes.clone())
    }
}

/// An allocation.
#[derive(Debug)]
pub(crate) struct AllocWork {
    pub(crate) block: Arc<GraphBlock>,
    /// As asked for.
    pub(crate) bytes: u64,
    /// `CUmemAccessDesc`s, as they were given; they last as long as the node.
    pub(crate) descriptors: Box<[[u32; 3]]>,
}

/// What a node does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Kernel(Arc<KernelWork>),
    Copy {
        copy: Copy3D<'static>,
        core: Arc<ContextCore>,
    },
    Fill {
        fill: Fill,
        core: Arc<ContextCore>,
    },
    Host(HostCall),
    /// A graph that belongs to the node.
    Graph(Graph),
    Empty,
    WaitEvent(Event, Arc<EventState>),
    RecordEvent(Event, Arc<EventState>),
    MemOps {
        operations: Arc<[MemOp]>,
        /// The same as `CUstreamBatchMemOpParams`s.
        shown: Arc<[[u64; 6]]>,
        flags: u32,
        core: Arc<ContextCore>,
    },
    Alloc(Arc<AllocWork>),
    Free(Arc<GraphBlock>),
    Conditional(Arc<Conditional>),
}

impl Work {
    pub(crate) fn mem_ops(operations: &[MemOp], flags: u32, core: Arc<ContextCore>) -> Work {
        let shown = operations.iter().map(MemOp::words).collect();
        Work::MemOps { operations: operations.into(), shown, flags, core }
    }

    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Work::Kernel(_) => 0,
            Work::Copy { .. } => 1,
            Work::Fill { .. } => 2,
            Work::Host(_) => 3,
            Work::Graph(_) => 4,
            Work::Empty => 5,
            Work::WaitEvent(..) => 6,
            Work::RecordEvent(..) => 7,
            Work::Alloc(_) => 10,
            Work::Free(_) => 11,
            Work::MemOps { .. } => 12,
            Work::Conditional(_) => 13,
        }
    }

    /// Whose work it is, if it is a context's.
    pub(crate) fn core(&self) -> Option<&Arc<ContextCore>> {
        match self {
            Work::Kernel(kernel) => Some(&kernel.function.core),
            Work::Copy { core, .. } | Work::Fill { core, .. } | Work::MemOps { core, .. } => Some(core),
            Work::Conditional(conditional) => Some(&conditional.condition.core),
            Work::WaitEvent(..) | Work::RecordEvent(..) | Work::Host(_) | Work::Graph(_) | Work::Empty => None,
            Work::Alloc(_) | Work::Free(_) => None,
        }
    }

    /// What is told of it.
    pub(crate) fn info(&self) -> NodeInfo {
        match self {
            Work::Kernel(kernel) => NodeInfo::Kernel {
                function: kernel.given,
                in_context: kernel.function.handle,
                config: kernel.config,
                params: kernel.params.pointers.as_ptr().expose_provenance() as u64,
                context: kernel.function.core.handle,
            },
            Work::Copy { copy, core } => NodeInfo::Copy { copy: *copy, context: core.handle },
            Work::Fill { fill, core } => NodeInfo::Fill { fill: *fill, context: core.handle },
            Work::Host(function) => NodeInfo::Host(function.clone()),
            Work::Graph(graph) => NodeInfo::Graph(*graph),
            Work::Empty => NodeInfo::Empty,
            Work::WaitEvent(event, _) => NodeInfo::WaitEvent(*event),
            Work::RecordEvent(event, _) => NodeInfo::RecordEvent(*event),
            Work::MemOps { shown, flags, core, .. } => {
                let shown = (shown.as_ptr().expose_provenance() as u64, shown.len() as u64);
                NodeInfo::MemOps { shown, flags: *flags, context: core.handle }
            }
            Work::Alloc(alloc) => NodeInfo::MemAlloc {
                device: alloc.block.memory().gpu().cast_signed(),
                bytes: alloc.bytes,
                address: DevAddr(alloc.block.base),
                descriptors: (alloc.descriptors.as_ptr().expose_provenance() as u64, alloc.descriptors.len() as u64),
            },
            Work::Free(block) => NodeInfo::MemFree(DevAddr(block.base)),
            Work::Conditional(conditional) => {
                let bodies = &conditional.bodies;
                NodeInfo::Conditional {
                    handle: conditional.condition.handle(),
                    kind: conditional.choice.number(),
                    bodies: (bodies.as_ptr().expose_provenance() as u64, bodies.len() as u64),
                    context: conditional.condition.core.handle,
                }
            }
        }
    }

    /// Whether both are the same context's, unless one is none's.
    pub(crate) fn shares_context(&self, other: &Work) -> bool {
        self.core().zip(other.core()).is_none_or(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// The graphs that belong to its node.
    pub(crate) fn graphs(&self) -> &[Graph] {
        match self {
            Work::Graph(graph) => std::slice::from_ref(graph),
            Work::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    /// Whether the body of a conditional node may have it.
    pub(crate) fn fits_a_body(&self) -> bool {
        match self {
            Work::Kernel(_) | Work::Copy { .. } | Work::Fill { .. } => true,
            Work::Graph(_) | Work::Empty | Work::Conditional(_) => true,
            Work::Host(_) | Work::WaitEvent(..) | Work::RecordEvent(..) | Work::MemOps { .. } => false,
            Work::Alloc(_) | Work::Free(_) => false,
        }
    }

    /// The memory that it allocates or frees, and which it does.
    pub(crate) fn block(&self) -> Option<(&Arc<GraphBlock>, Use)> {
        match self {
            Work::Alloc(alloc) => Some((&alloc.block, Use::Alloc)),
            Work::Free(block) => Some((block, Use::Free)),
            _ => None,
        }
    }

    /// Whether an executable graph may leave it out.
    pub(crate) fn can_be_disabled(&self) -> bool {
        matches!(self, Work::Kernel(_) | Work::Copy { .. } | Work::Fill { .. })
    }
}
