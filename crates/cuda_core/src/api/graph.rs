//! Graphs: made, looked at, changed, destroyed; what of the program's lives as long as they do.

use std::sync::Arc;

use gpu::DevAddr;

use crate::context_core::ContextCore;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::conditional::{ASSIGN_DEFAULT, Choice, Condition, Conditional};
use crate::graph::dot;
use crate::graph::encode::encode;
use crate::graph::node::{KernelWork, Work};
use crate::graph::store::{Store, WantedAlloc};
use crate::graph::user_object::release_from;
use crate::handle::{Context, Device, Graph, GraphNode, UserObject};
use crate::memory::allocation::Kind;
use crate::memory::heap::Memory;
use crate::values::{AccessFlags, GraphEdge, HostCall, Location, MemoryProps, NodeInfo, NodeParams};
use crate::work::launch::{block, cluster_blocks};

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER_DIMENSION: u32 = 4;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = 8;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: u32 = 1;

/// Attributes of kernels that are kept and read back: access policy, priority, domains, carveout.
const KEPT: [u32; 5] = [1, PRIORITY, 9, 10, 14];

impl Driver {
    /// A context that a node names; null: the current one.
    fn core_of(&self, context: Context) -> Result<Arc<ContextCore>> {
        let context = if context.is_null() { self.current()? } else { self.context(context)? };
        context.check()?;
        Ok(Arc::clone(&context.core))
    }

    /// What parameters say, checked as at the work's own call.
    pub(crate) fn work(&self, params: NodeParams<'_>) -> Result<Work> {
        let work = match params {
            NodeParams::Kernel { function: given, config, params, context } => {
                let function = match (Driver::is_kernel(given.0), context.is_null()) {
                    (true, false) => self.function_in(&self.context(context)?.core, given)?,
                    _ => self.function(given)?,
                };
                let block = block(&function, &config, params)?;
                Work::Kernel(Arc::new(KernelWork::new(given, &function, config, block, Vec::new())))
            }
            NodeParams::Copy { copy, context } => Work::Copy { copy, core: self.core_of(context)? },
            // A call that fills nothing is right; a node is not.
            NodeParams::Fill { fill, .. } if fill.width == 0 || fill.height == 0 => {
                return Err(CudaError::INVALID_VALUE);
            }
            NodeParams::Fill { fill, context } => Work::Fill { fill, core: self.core_of(context)? },
            NodeParams::Host(function) => Work::Host(function),
            NodeParams::Graph { graph, .. } => Work::Graph(graph),
            NodeParams::Empty => Work::Empty,
            NodeParams::WaitEvent(event) => Work::WaitEvent(event, self.event(event)?),
            NodeParams::RecordEvent(event) => Work::RecordEvent(event, self.event(event)?),
            NodeParams::MemOps { operations, flags, context } => {
                if flags != 0 {
                    return Err(CudaError::INVALID_VALUE);
                }
                Work::mem_ops(&operations, flags, self.core_of(context)?)
            }
            // Only new nodes have these.
            NodeParams::MemAlloc { .. } | NodeParams::MemFree(_) | NodeParams::Conditional { .. } => {
                return Err(CudaError::NOT_SUPPORTED);
            }
        };
        // What a stream would refuse is refused here; the steps are made when the graph is instantiated.
        if !matches!(work, Work::Kernel(_)) {
            encode(&self.memory, &work)?;
        }
        Ok(work)
    }

    /// An allocation of a node, on a device that is there.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for memory of the host's or shared between processes; `INVALID_VALUE`, `INVALID_DEVICE`.
    pub(crate) fn wanted_alloc(
        &self,
        props: MemoryProps,
        bytes: u64,
        accesses: &[(Location, AccessFlags)],
        descriptors: Box<[[u32; 3]]>,
    ) -> Result<WantedAlloc> {
        self.ready()?;
        let Location::Device(ordinal) = props.location else {
            let none = props.location == Location::Invalid;
            return Err(if none { CudaError::INVALID_VALUE } else { CudaError::NOT_SUPPORTED });
        };
        if props.handle_types != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let device = self.device(Device(ordinal))?;
        self.check_access(ordinal, accesses)?;
        Ok(WantedAlloc { memory: Arc::clone(&device.core.memory), bytes, descriptors })
    }

    /// What graphs have allocated at an address, on whichever device.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is nothing.
    pub(crate) fn graph_memory_at(&self, address: DevAddr) -> Result<&Arc<Memory>> {
        let found = self.memory.find(address.0).filter(|found| found.kind == Kind::Graph && found.base == address.0);
        found.map(|found| self.memory.of(found.gpu)).ok_or(CudaError::INVALID_VALUE)
    }

    /// Creates an empty graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for flags.
    pub fn graph_create(&self, flags: u32) -> Result<Graph> {
        self.ready()?;
        if flags != 0 { Err(CudaError::INVALID_VALUE) } else { Ok(self.graphs.state.lock().store.create()) }
    }

    /// Destroys a graph. Executable ones made of it stay.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or belongs to a node.
    pub fn graph_destroy(&self, graph: Graph) -> Result<()> {
        self.ready()?;
        let taken = self.graphs.state.lock().store.destroy(graph)?;
        drop(taken);
        Ok(())
    }

    /// A copy of a graph and of those in it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_clone(&self, graph: Graph) -> Result<Graph> {
        self.ready()?;
        self.graphs.state.lock().store.clone_graph(graph)
    }

    /// Adds a node behind others.
    ///
    /// # Errors
    /// `INVALID_VALUE` for graphs and nodes that there are not, or what the parameters say; those of the work. Of memory: `INVALID_VALUE`
    /// for what no node has allocated, or another node frees, for a graph of a node (in a conditional one's it is instantiating that says so),
    /// and to copy a graph that has any. Of conditional nodes: `INVALID_VALUE` for a handle that was made for a graph around none of this, or
    /// in another context, a number of bodies that the kind has not, and a graph with any that is to be a node's; `OUT_OF_MEMORY` for more
    /// than 65,536 bodies. The same for more than 512 graphs in each other.
    pub fn graph_add_node(
        &self,
        graph: Graph,
        before: &[(GraphNode, [u8; 8])],
        params: NodeParams<'_>,
    ) -> Result<GraphNode> {
        let moved = match params {
            NodeParams::MemAlloc { props, bytes, accesses, descriptors } => {
                let wanted = self.wanted_alloc(props, bytes, &accesses, descriptors)?;
                let store = &mut self.graphs.state.lock().store;
                let work = Work::Alloc(Arc::new(store.alloc(graph, before, wanted)?));
                return store.add(graph, before, work);
            }
            NodeParams::MemFree(address) => {
                self.ready()?;
                let memory = self.graph_memory_at(address)?;
                let store = &mut self.graphs.state.lock().store;
                return store.add(graph, before, Work::Free(memory.graph_to_free(address.0, graph)?));
            }
            NodeParams::Conditional { handle, kind, size, context } => {
                let core = self.core_of(context)?;
                let store = &mut self.graphs.state.lock().store;
                return add_conditional(store, graph, before, &core, handle, (kind, size));
            }
            NodeParams::Graph { moved, .. } => moved,
            _ => false,
        };
        let work = self.work(params)?;
        let store = &mut self.graphs.state.lock().store;
        store.graph(graph)?;
        let Work::Graph(child) = work else { return store.add(graph, before, work) };
        if moved {
            if !store.can_be_in(graph, child)? {
                return Err(CudaError::INVALID_VALUE);
            }
            return store.add(graph, before, work);
        }
        let clone = store.clone_graph(child)?;
        store.add(graph, before, Work::Graph(clone)).inspect_err(|_| {
            // The original refers to all that the clone does: nothing of the program's is called.
            store.destroy(clone).map(drop).unwrap_or_default();
        })
    }

    /// A value for conditional nodes of a graph, which kernels of the context set by `cudaGraphSetConditional`; gives its handle.
    /// Launches set it to `default` first, if `flags` say so.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such graph, and for unknown flags; `OUT_OF_MEMORY`; the context's error.
    pub fn graph_conditional_handle_create(
        &self,
        graph: Graph,
        context: Context,
        default: u32,
        flags: u32,
    ) -> Result<u64> {
        let core = self.core_of(context)?;
        if flags & !ASSIGN_DEFAULT != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.graphs.state.lock().store.graph(graph)?;
        let condition = Arc::new(Condition::new(&core, (flags == ASSIGN_DEFAULT).then_some(default))?);
        let handle = condition.handle();
        let mut state = self.graphs.state.lock();
        match state.store.graph_mut(graph) {
            Ok(found) => found.conditions.push(condition),
            Err(error) => {
                drop(state);
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// Takes a node out of its graph, with its edges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_destroy_node(&self, node: GraphNode) -> Result<()> {
        self.ready()?;
        let taken = self.graphs.state.lock().store.destroy_node(node)?;
        drop(taken);
        Ok(())
    }

    /// Adds edges, all or none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other graphs' nodes, a node behind itself, and edges that there are.
    pub fn graph_add_dependencies(&self, graph: Graph, edges: &[GraphEdge]) -> Result<()> {
        self.ready()?;
        self.graphs.state.lock().store.connect(graph, edges)
    }

    /// Takes edges away, all or none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for edges that there are not.
    pub fn graph_remove_dependencies(&self, graph: Graph, edges: &[GraphEdge]) -> Result<()> {
        self.ready()?;
        self.graphs.state.lock().store.disconnect(graph, edges)
    }

    /// All nodes, in the order of their making.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_get_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        self.ready()?;
        Ok(self.graphs.state.lock().store.graph(graph)?.nodes.clone())
    }

    /// The nodes that depend on none.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_get_root_nodes(&self, graph: Graph) -> Result<Vec<GraphNode>> {
        self.ready()?;
        let store = &self.graphs.state.lock().store;
        let root = |node: &&GraphNode| store.node(**node).is_ok_and(|node| node.before.is_empty());
        Ok(store.graph(graph)?.nodes.iter().filter(root).copied().collect())
    }

    /// All edges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_get_edges(&self, graph: Graph) -> Result<Vec<GraphEdge>> {
        self.ready()?;
        self.graphs.state.lock().store.edges(graph)
    }

    /// A small number that no other graph of the process has.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_get_id(&self, graph: Graph) -> Result<u32> {
        self.ready()?;
        Ok(self.graphs.state.lock().store.graph(graph)?.id)
    }

    /// Looks at a node.
    fn with_node<R>(&self, node: GraphNode, f: impl FnOnce(&Store, &crate::graph::store::NodeState) -> R) -> Result<R> {
        self.ready()?;
        let store = &self.graphs.state.lock().store;
        Ok(f(store, store.node(node)?))
    }

    /// What a node depends on.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_node_get_dependencies(&self, node: GraphNode) -> Result<Vec<(GraphNode, [u8; 8])>> {
        self.with_node(node, |_, node| node.before.clone())
    }

    /// What depends on a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_node_get_dependent_nodes(&self, node: GraphNode) -> Result<Vec<(GraphNode, [u8; 8])>> {
        self.with_node(node, |_, node| node.after.clone())
    }

    /// `CUgraphNodeType`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_node_get_type(&self, node: GraphNode) -> Result<u32> {
        self.with_node(node, |_, node| node.work.kind())
    }

    /// The graph that a node is in, and its number there.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_node_get_place(&self, node: GraphNode) -> Result<(Graph, u32)> {
        self.with_node(node, |_, node| (node.graph, node.number))
    }

    /// The node of a clone that was made from a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none.
    pub fn graph_node_find_in_clone(&self, node: GraphNode, clone: Graph) -> Result<GraphNode> {
        self.ready()?;
        self.graphs.state.lock().store.find_in_clone(node, clone)
    }

    /// What a node does.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_node_get_params(&self, node: GraphNode) -> Result<NodeInfo> {
        self.with_node(node, |_, node| node.work.info())
    }

    /// Gives other work to a node. Executable graphs do not change.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none or of another kind; `NOT_SUPPORTED` for memory; those of the work.
    pub fn graph_node_set_params(&self, node: GraphNode, params: NodeParams<'_>) -> Result<()> {
        let mut work = self.work(params)?;
        let mut state = self.graphs.state.lock();
        let found = state.store.node_mut(node)?;
        if found.work.kind() != work.kind() || matches!(work, Work::Graph(_)) {
            return Err(CudaError::INVALID_VALUE);
        }
        if let (Work::Kernel(new), Work::Kernel(old)) = (&mut work, &found.work) {
            *new = new.with_attributes_of(old);
        }
        let before = std::mem::replace(&mut found.work, work);
        drop(state);
        drop(before);
        Ok(())
    }

    /// Calls `f` with the kernel of a node, which may change it.
    fn with_kernel<R>(&self, node: GraphNode, f: impl FnOnce(&mut Arc<KernelWork>) -> Result<R>) -> Result<R> {
        self.ready()?;
        match &mut self.graphs.state.lock().store.node_mut(node)?.work {
            Work::Kernel(kernel) => f(kernel),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// A `CUlaunchAttributeValue` of a kernel.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no kernel, or has no such attribute.
    pub fn graph_kernel_node_get_attribute(&self, node: GraphNode, attribute: u32) -> Result<[u8; 64]> {
        self.with_kernel(node, |kernel| {
            let mut value = [0; 64];
            match attribute {
                COOPERATIVE => value[0] = u8::from(kernel.config.cooperative),
                CLUSTER_DIMENSION => {
                    for (bytes, size) in value.chunks_exact_mut(4).zip(kernel.config.cluster) {
                        bytes.copy_from_slice(&size.to_ne_bytes());
                    }
                }
                kept if KEPT.contains(&kept) => {
                    let set = kernel.attributes.iter().find(|(of, _)| *of == kept);
                    value = set.map_or(value, |(_, set)| *set);
                }
                _ => return Err(CudaError::INVALID_VALUE),
            }
            Ok(value)
        })
    }

    /// Sets a `CUlaunchAttributeValue` of a kernel.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no kernel, or has no such attribute.
    pub fn graph_kernel_node_set_attribute(&self, node: GraphNode, attribute: u32, value: &[u8; 64]) -> Result<()> {
        self.with_kernel(node, |kernel| {
            let (mut config, mut attributes) = (kernel.config, kernel.attributes.clone());
            match attribute {
                COOPERATIVE => config.cooperative = value[..4] != [0; 4],
                CLUSTER_DIMENSION => {
                    for (size, bytes) in config.cluster.iter_mut().zip(value.chunks_exact(4)) {
                        *size = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                    }
                    cluster_blocks(config.cluster)?;
                }
                kept if KEPT.contains(&kept) => {
                    attributes.retain(|(of, _)| *of != kept);
                    attributes.push((kept, *value));
                }
                _ => return Err(CudaError::INVALID_VALUE),
            }
            *kernel = kernel.with(config, attributes);
            Ok(())
        })
    }

    /// Copies all attributes of a kernel to another.
    ///
    /// # Errors
    /// `INVALID_VALUE` if one of them is no kernel.
    pub fn graph_kernel_node_copy_attributes(&self, dst: GraphNode, src: GraphNode) -> Result<()> {
        let from = self.with_kernel(src, |kernel| Ok(Arc::clone(kernel)))?;
        self.with_kernel(dst, |kernel| {
            *kernel = kernel.with_attributes_of(&from);
            Ok(())
        })
    }

    /// The graph as text that `dot` draws.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_debug_dot(&self, graph: Graph) -> Result<String> {
        self.ready()?;
        dot::draw(&self.graphs.state.lock().store, graph)
    }

    /// Something of the program's that `destroy` destroys when nobody refers to it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` without references, or for other flags than `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`.
    pub fn user_object_create(&self, destroy: HostCall, references: u32, flags: u32) -> Result<UserObject> {
        self.ready()?;
        if references == 0 || flags != 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(self.graphs.user_objects.lock().create(destroy, references))
    }

    /// Adds references of the program's.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none, or too many.
    pub fn user_object_retain(&self, object: UserObject, count: u32) -> Result<()> {
        self.ready()?;
        if count == 0 { Err(CudaError::INVALID_VALUE) } else { self.graphs.user_objects.lock().retain(object, count) }
    }

    /// Takes references of the program's away.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there are not so many.
    pub fn user_object_release(&self, object: UserObject, count: u32) -> Result<()> {
        self.ready()?;
        let last = self.graphs.user_objects.lock().release(object, count)?;
        drop(last);
        Ok(())
    }

    /// Gives references to a graph; those of the program's, if they are to be moved.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a graph or an object that is none, and for unknown flags.
    pub fn graph_retain_user_object(&self, graph: Graph, object: UserObject, count: u32, flags: u32) -> Result<()> {
        self.ready()?;
        if count == 0 || flags > MOVE {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut state = self.graphs.state.lock();
        let references = &mut state.store.graph_mut(graph)?.references;
        let mut objects = self.graphs.user_objects.lock();
        let found = objects.get(object)?;
        if flags == MOVE {
            // The graph's reference is there already: nothing ends here.
            drop(objects.release(object, count)?);
        }
        match references.iter_mut().find(|(of, ..)| *of == object) {
            Some((_, _, own)) => *own = own.checked_add(count).ok_or(CudaError::INVALID_VALUE)?,
            None => references.push((object, found, count)),
        }
        Ok(())
    }

    /// Takes references of a graph's away.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it has not so many.
    pub fn graph_release_user_object(&self, graph: Graph, object: UserObject, count: u32) -> Result<()> {
        self.ready()?;
        let last = release_from(&mut self.graphs.state.lock().store.graph_mut(graph)?.references, object, count)?;
        drop(last);
        Ok(())
    }
}

/// Most bodies of a node.
const MOST_BODIES: u32 = 1 << 16;

/// Adds a conditional node with empty bodies, so many of a kind.
fn add_conditional(
    store: &mut Store,
    graph: Graph,
    before: &[(GraphNode, [u8; 8])],
    core: &Arc<ContextCore>,
    handle: u64,
    (kind, size): (u32, u32),
) -> Result<GraphNode> {
    let condition = store.condition(graph, handle)?;
    let choice = Choice::new(kind, size).filter(|_| Arc::ptr_eq(core, &condition.core));
    let choice = choice.ok_or(CudaError::INVALID_VALUE)?;
    if size > MOST_BODIES {
        return Err(CudaError::OUT_OF_MEMORY);
    }
    let bodies: Box<[Graph]> = (0..size).map(|_| store.create()).collect();
    let conditional = Arc::new(Conditional { condition, choice, bodies });
    store.add(graph, before, Work::Conditional(Arc::clone(&conditional))).inspect_err(|_| {
        // They are empty.
        conditional.bodies.iter().for_each(|body| store.destroy(*body).map(drop).unwrap_or_default());
    })
}
