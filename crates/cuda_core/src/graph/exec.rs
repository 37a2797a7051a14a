//! Executable graphs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use gpu::Command;
use parking_lot::Mutex;

use crate::context_core::{ContextCore, GpuCore};
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::graph::conditional::{Chosen, Condition, Side};
use crate::graph::encode::{Repeated, Step, encode, with_params};
use crate::graph::node::Work;
use crate::graph::store::Store;
use crate::graph::user_object::References;
use crate::handle::{Graph, GraphNode};
use crate::memory::graph_memory::{Launching, Use};
use crate::memory::heap::Memory;
use crate::memory::memories::Memories;
use crate::work::queues::{Held, Point};
use crate::work::stream::StreamState;

/// A node of an executable graph, with those of graphs in nodes behind it.
#[derive(Clone, Debug)]
pub(crate) struct ExecNode {
    /// The node of the graph that was instantiated.
    pub(crate) node: GraphNode,
    pub(crate) work: Work,
    /// Places of the nodes that it depends on.
    before: BTreeSet<usize>,
    enabled: bool,
    pub(crate) steps: Vec<Step>,
    /// What the graphs in it refer to.
    pub(crate) references: References,
    /// The place behind the nodes of the graphs in it, or behind itself.
    pub(crate) end: usize,
    /// The places behind each of its bodies, if it is a conditional node.
    pub(crate) bodies: Vec<usize>,
    /// It is in the body of one.
    in_body: bool,
}

impl ExecNode {
    pub(crate) fn before(&self) -> impl Iterator<Item = usize> + '_ {
        self.before.iter().copied()
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether it and a node of another graph, whose first node would be at `from`, choose in the same way between as much.
    fn chooses_as(&self, other: &ExecNode, from: usize) -> bool {
        let choice = |work: &Work| if let Work::Conditional(of) = work { Some(of.choice) } else { None };
        choice(&self.work) == choice(&other.work)
            && self.bodies.iter().map(|end| end - from).eq(other.bodies.iter().copied())
    }

    fn condition(&self) -> Option<&Arc<Condition>> {
        if let Work::Conditional(conditional) = &self.work { Some(&conditional.condition) } else { None }
    }
}

/// Why a graph cannot be instantiated, and which node is in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Obstacle {
    /// `CUgraphInstantiateResult`.
    pub(crate) result: u32,
    pub(crate) node: GraphNode,
    pub(crate) error: CudaError,
}

/// Numbers of `CUgraphInstantiateResult`.
const INSTANTIATE_ERROR: u32 = 1;
const INVALID_STRUCTURE: u32 = 2;
const OPERATION_NOT_SUPPORTED: u32 = 3;
const MULTIPLE_CONTEXTS: u32 = 4;
const CONDITIONAL_HANDLE_UNUSED: u32 = 5;

/// Why a graph cannot take the place of the one that was instantiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    /// `CUgraphExecUpdateResult`.
    pub(crate) result: u32,
    /// The node of the new graph.
    pub(crate) node: GraphNode,
    /// What it depends on, if that is what differs.
    pub(crate) from: GraphNode,
}

/// Numbers of `CUgraphExecUpdateResult`.
const TOPOLOGY_CHANGED: u32 = 2;
const KIND_CHANGED: u32 = 3;
const UNSUPPORTED_FUNCTION_CHANGE: u32 = 7;
const PARAMETERS_CHANGED: u32 = 5;
const UPDATE_NOT_SUPPORTED: u32 = 6;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE_ON_LAUNCH: u64 = 1;

/// An executable graph.
#[derive(Debug)]
pub(crate) struct ExecState {
    pub(crate) id: u32,
    pub(crate) flags: u64,
    /// Whose work it is; `None` if it has none that is a context's.
    pub(crate) core: Option<Arc<ContextCore>>,
    /// What it does with memory of graphs, in order.
    memory: Option<Uses>,
    /// It has conditional nodes.
    conditional: bool,
    /// As long as this is there, graphs with nodes that allocate or free, or conditional ones, have no other executable graph.
    _only: Arc<()>,
    contents: Mutex<Contents>,
}

/// Blocks that are allocated and freed, which the nodes keep.
#[derive(Debug)]
struct Uses {
    memory: Arc<Memory>,
    all: Vec<(u64, Use)>,
}

#[derive(Debug)]
struct Contents {
    nodes: Vec<ExecNode>,
    places: HashMap<GraphNode, usize>,
    /// What the outermost graph refers to; nodes have what those in them do.
    references: References,
    last: Option<Last>,
    /// For launches in streams of other contexts.
    own: Option<Arc<StreamState>>,
    /// Where bodies run, from the first launch on; launches that are under way keep theirs.
    side: Option<Arc<Side>>,
}

/// Where the last launch ends, and in which stream that was.
type Last = (Mark, Arc<StreamState>);

/// What an executable graph refers to no more. It goes when the last launch that may use it is over.
#[derive(Debug)]
#[must_use]
pub(crate) struct Released {
    references: Vec<References>,
    /// Kernels of the last launch may still set them.
    conditions: Vec<Arc<Condition>>,
    last: Option<Last>,
}

impl Released {
    /// To be called without the lock of the graphs: functions of the program may run.
    pub(crate) fn let_go(self) {
        let Released { references, conditions, last } = self;
        if let Some((mark, stream)) = last
            && (references.iter().any(|of_one| !of_one.is_empty()) || !conditions.is_empty())
            && !stream.core.slots().reached(&mark)
        {
            // A context that ends lets go all that waits in it.
            let _ = stream.run_on_host(Box::new(move |_| drop((references, conditions))));
        }
    }
}

/// What a graph is made into.
struct Prepared {
    /// In order, with the steps of each.
    nodes: Vec<ExecNode>,
    references: References,
    /// Whose work they are.
    core: Option<Arc<ContextCore>>,
    memory: Option<Uses>,
}

/// All nodes of a graph in order, each behind what it depends on; gives what the graph refers to.
fn flatten(
    store: &Store,
    graph: Graph,
    in_body: bool,
    nodes: &mut Vec<ExecNode>,
) -> std::result::Result<References, Obstacle> {
    let obstacle = |node, result, error| Obstacle { result, node, error };
    let state = store.graph(graph).map_err(|error| obstacle(GraphNode::NULL, INSTANTIATE_ERROR, error))?;
    let order = store.order(state);
    let order = order.map_err(|node| obstacle(node, INVALID_STRUCTURE, CudaError::INVALID_VALUE))?;
    let mut places = HashMap::new();
    for node in order {
        let found = store.node(node).map_err(|error| obstacle(node, INSTANTIATE_ERROR, error))?;
        let place = nodes.len();
        places.insert(node, place);
        let before = found.before.iter().filter_map(|(node, _)| places.get(node).copied()).collect();
        let work = found.work.clone();
        let (steps, references, bodies) = (Vec::new(), References::new(), Vec::new());
        nodes.push(ExecNode { node, work, before, enabled: true, steps, references, end: place + 1, bodies, in_body });
        let conditional = matches!(found.work, Work::Conditional(_));
        for child in found.work.graphs() {
            let references = flatten(store, *child, in_body || conditional, nodes)?;
            let end = nodes.len();
            let node = &mut nodes[place];
            node.references.extend(references);
            node.end = end;
            if conditional {
                node.bodies.push(end);
            }
        }
    }
    Ok(state.references.clone())
}

/// The first node that records an event of another GPU's, or is about memory there, which no stream of this one can.
fn of_another<'a>(nodes: &'a [ExecNode], gpu: &Arc<GpuCore>) -> Option<&'a ExecNode> {
    nodes.iter().find(|node| is_of_another(&node.work, gpu))
}

fn is_of_another(work: &Work, gpu: &Arc<GpuCore>) -> bool {
    match work {
        Work::RecordEvent(_, event) => !Arc::ptr_eq(&event.core.gpu, gpu),
        _ => work.block().is_some_and(|(block, _)| block.memory().gpu() != gpu.ordinal),
    }
}

/// What nodes do with memory of graphs.
///
/// # Errors
/// A node that does it on another GPU than the first.
fn uses(nodes: &[ExecNode]) -> std::result::Result<Option<Uses>, Obstacle> {
    let mut uses: Option<Uses> = None;
    for node in nodes {
        let Some((block, what)) = node.work.block() else { continue };
        let uses = uses.get_or_insert_with(|| Uses { memory: Arc::clone(block.memory()), all: Vec::new() });
        if !Arc::ptr_eq(&uses.memory, block.memory()) {
            return Err(several_contexts(node));
        }
        uses.all.push((block.base, what));
    }
    Ok(uses)
}

/// A graph, and all graphs in it.
fn all_graphs(graph: Graph, nodes: &[ExecNode]) -> impl Iterator<Item = Graph> + '_ {
    std::iter::once(graph).chain(nodes.iter().flat_map(|node| node.work.graphs()).copied())
}

/// All graphs that have one executable graph at most: with nodes that allocate or free, or conditional ones.
fn single(store: &Store, graph: Graph, nodes: &[ExecNode]) -> Vec<Graph> {
    let single = |graph: &Graph| store.graph(*graph).is_ok_and(|state| state.has_memory || store.is_conditional(state));
    all_graphs(graph, nodes).filter(single).collect()
}

/// # Errors
/// A node that the body of a conditional node cannot have; conditions without a conditional node.
fn check_bodies(store: &Store, graph: Graph, nodes: &[ExecNode]) -> std::result::Result<(), Obstacle> {
    if let Some(node) = nodes.iter().find(|node| node.in_body && !fits_a_body(&node.work, &node.steps)) {
        let (result, error) = (OPERATION_NOT_SUPPORTED, CudaError::NOT_SUPPORTED);
        return Err(Obstacle { result, node: node.node, error });
    }
    let used: HashSet<u64> = nodes.iter().filter_map(ExecNode::condition).map(|used| used.handle()).collect();
    let is_used = |condition: &Arc<Condition>| used.contains(&condition.handle());
    let all_used = |graph| store.graph(graph).is_ok_and(|state| state.conditions.iter().all(is_used));
    if all_graphs(graph, nodes).all(all_used) {
        return Ok(());
    }
    Err(Obstacle { result: CONDITIONAL_HANDLE_UNUSED, node: GraphNode::NULL, error: CudaError::INVALID_VALUE })
}

/// Whether the GPU does all of it, and it is of a kind that bodies may have.
fn fits_a_body(work: &Work, steps: &[Step]) -> bool {
    work.fits_a_body() && steps.iter().all(|step| matches!(step, Step::Run(..)))
}

fn prepare(store: &Store, memory: &Arc<Memories>, graph: Graph) -> std::result::Result<Prepared, Obstacle> {
    let mut nodes = Vec::new();
    let references = flatten(store, graph, false, &mut nodes)?;
    let mut owner: Option<Arc<ContextCore>> = None;
    for node in &mut nodes {
        if let Some(core) = node.work.core() {
            if owner.as_ref().is_some_and(|owner| !Arc::ptr_eq(owner, core)) {
                return Err(several_contexts(node));
            }
            owner.get_or_insert_with(|| Arc::clone(core));
        }
        node.steps = encode(memory, &node.work).map_err(|error| {
            let unsupported = error == CudaError::NOT_SUPPORTED;
            let result = if unsupported { OPERATION_NOT_SUPPORTED } else { INSTANTIATE_ERROR };
            Obstacle { result, node: node.node, error }
        })?;
    }
    check_bodies(store, graph, &nodes)?;
    let memory = uses(&nodes)?;
    match owner.as_ref().and_then(|core| of_another(&nodes, &core.gpu)) {
        Some(node) => Err(several_contexts(node)),
        None => Ok(Prepared { nodes, references, core: owner, memory }),
    }
}

fn several_contexts(node: &ExecNode) -> Obstacle {
    Obstacle { result: MULTIPLE_CONTEXTS, node: node.node, error: CudaError::NOT_SUPPORTED }
}

impl Contents {
    /// Where bodies run, for a launch in a stream.
    fn side(&mut self, stream: &StreamState) -> Arc<Side> {
        let same = self.side.take().filter(|side| side.priority() == stream.priority);
        Arc::clone(self.side.insert(same.unwrap_or_else(|| Arc::new(Side::new(stream)))))
    }
}

impl ExecState {
    /// An executable graph of what a graph is now.
    ///
    /// # Errors
    /// What is in the way.
    pub(crate) fn new(
        store: &mut Store,
        memory: &Arc<Memories>,
        graph: Graph,
        flags: u64,
    ) -> std::result::Result<ExecState, Obstacle> {
        let Prepared { nodes, references, core, memory } = prepare(store, memory, graph)?;
        let only = Arc::new(());
        let graphs = single(store, graph, &nodes);
        let error = |error| Obstacle { result: INSTANTIATE_ERROR, node: GraphNode::NULL, error };
        if graphs.iter().any(|graph| store.graph(*graph).is_ok_and(|state| state.instance.strong_count() != 0)) {
            return Err(error(CudaError::INVALID_VALUE));
        }
        for graph in graphs {
            store.graph_mut(graph).map_err(error)?.instance = Arc::downgrade(&only);
        }
        let places = nodes.iter().enumerate().map(|(place, node)| (node.node, place)).collect();
        let conditional = nodes.iter().any(|node| node.condition().is_some());
        let contents = Mutex::new(Contents { nodes, places, references, last: None, own: None, side: None });
        Ok(ExecState { id: store.fresh_id(), flags, core, memory, conditional, _only: only, contents })
    }

    /// What it does now, in order, and what it refers to beside what its nodes do.
    pub(crate) fn parts(&self) -> (Vec<ExecNode>, References) {
        let contents = self.contents.lock();
        (contents.nodes.clone(), contents.references.clone())
    }

    /// Whether it allocates or frees, or has conditional nodes: then it cannot be made into a graph again.
    pub(crate) fn is_single(&self) -> bool {
        self.memory.is_some() || self.conditional
    }

    /// A stream of the graph's context that is its own, made by `make`.
    pub(crate) fn own_stream(&self, make: impl FnOnce() -> Result<Arc<StreamState>>) -> Result<Arc<StreamState>> {
        let mut contents = self.contents.lock();
        if let Some(own) = &contents.own {
            return Ok(Arc::clone(own));
        }
        let own = make()?;
        contents.own = Some(Arc::clone(&own));
        Ok(own)
    }

    /// Launches it in a stream of its context: behind the stream's work, and behind its own last launch. Where memory is short, what
    /// `squeeze` can gives some back.
    ///
    /// # Errors
    /// The context's error; `OUT_OF_MEMORY`; `INVALID_HANDLE` if it records events of another GPU than the stream's, or allocates there;
    /// `INVALID_VALUE` if it allocates what is allocated, or frees what is not.
    pub(crate) fn launch(&self, stream: &Arc<StreamState>, squeeze: &dyn Fn() -> bool) -> Result<()> {
        let mut contents = self.contents.lock();
        // Where the work is a context's, this was found when the graph was made.
        if self.core.is_none() && of_another(&contents.nodes, &stream.core.gpu).is_some() {
            return Err(CudaError::INVALID_HANDLE);
        }
        if let Some((mark, at)) = contents.last.as_ref().filter(|(_, at)| !Arc::ptr_eq(at, stream)) {
            stream.wait_for(&Point { core: Arc::clone(&at.core), mark: *mark })?;
        }
        let side = self.conditional.then(|| contents.side(stream));
        let nodes = &contents.nodes;
        let again = self.flags & AUTO_FREE_ON_LAUNCH != 0;
        let used = match &self.memory {
            Some(Uses { memory, all }) => Some((memory, memory.graph_begin(all, again)?)),
            None => None,
        };
        let ready =
            used.as_ref().map_or(Ok(()), |(memory, launching)| prepare_memory(memory, launching, stream, squeeze));
        let launched = ready.and_then(|()| {
            stream.hold(|held| {
                submit(nodes, stream, held, side.as_ref())?;
                // Also who waits for the stream needs this point.
                held.tail()
            })
        });
        // Of a launch that failed a part may be under way; in any case the stream is behind the former launch now.
        let end = launched.as_ref().map_or_else(|_| stream.tail().ok().flatten(), |end| *end);
        if let Some((memory, launching)) = used {
            memory.graph_end(&launching, end, launched.is_ok());
        }
        if let Some(mark) = end {
            contents.last = Some((mark, Arc::clone(stream)));
        }
        launched.map(drop)
    }

    /// Gives another work to a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it has no such node, or one of another kind or context; `NOT_SUPPORTED` for an event of another GPU's;
    /// those of the work.
    pub(crate) fn set(&self, memory: &Arc<Memories>, node: GraphNode, mut work: Work) -> Result<()> {
        let mut contents = self.contents.lock();
        let place = *contents.places.get(&node).ok_or(CudaError::INVALID_VALUE)?;
        let found = contents.nodes.get_mut(place).ok_or(CudaError::INVALID_VALUE)?;
        if found.work.kind() != work.kind() || !found.work.shares_context(&work) || matches!(work, Work::Graph(_)) {
            return Err(CudaError::INVALID_VALUE);
        }
        if self.core.as_ref().is_some_and(|core| is_of_another(&work, &core.gpu)) {
            return Err(CudaError::NOT_SUPPORTED);
        }
        if let (Work::Kernel(new), Work::Kernel(old)) = (&mut work, &found.work) {
            *new = new.with_attributes_of(old);
        }
        let steps = encode(memory, &work)?;
        if found.in_body && !fits_a_body(&work, &steps) {
            return Err(CudaError::NOT_SUPPORTED);
        }
        (found.work, found.steps) = (work, steps);
        Ok(())
    }

    /// Whether launches do what a node says.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it has no such node, or one that cannot be left out.
    pub(crate) fn is_enabled(&self, node: GraphNode) -> Result<bool> {
        let contents = self.contents.lock();
        let place = contents.places.get(&node).ok_or(CudaError::INVALID_VALUE)?;
        let found = contents.nodes.get(*place).filter(|found| found.work.can_be_disabled());
        found.map(|found| found.enabled).ok_or(CudaError::INVALID_VALUE)
    }

    /// Has later launches leave a node out, or not.
    ///
    /// # Errors
    /// As `is_enabled`.
    pub(crate) fn enable(&self, node: GraphNode, enabled: bool) -> Result<()> {
        let mut contents = self.contents.lock();
        let place = *contents.places.get(&node).ok_or(CudaError::INVALID_VALUE)?;
        let found = contents.nodes.get_mut(place).filter(|found| found.work.can_be_disabled());
        found.ok_or(CudaError::INVALID_VALUE)?.enabled = enabled;
        Ok(())
    }

    /// Takes over what the nodes of a graph of the same shape do, and what it refers to: of all nodes, or of the graph in `node`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it has no such node; `GRAPH_EXEC_UPDATE_FAILURE` with what differs.
    pub(crate) fn update(
        &self,
        store: &Store,
        memory: &Arc<Memories>,
        graph: Graph,
        node: Option<GraphNode>,
    ) -> std::result::Result<Released, (CudaError, Mismatch)> {
        let failure = |result, node, from| (CudaError::GRAPH_EXEC_UPDATE_FAILURE, Mismatch { result, node, from });
        let invalid =
            || (CudaError::INVALID_VALUE, Mismatch { result: 1, node: GraphNode::NULL, from: GraphNode::NULL });
        let mut guard = self.contents.lock();
        let contents = &mut *guard;
        let (from, to) = match node {
            None => (0, contents.nodes.len()),
            Some(node) => {
                let place = *contents.places.get(&node).ok_or_else(invalid)?;
                let found = contents.nodes.get(place).filter(|found| matches!(found.work, Work::Graph(_)));
                (place + 1, found.ok_or_else(invalid)?.end)
            }
        };
        let Prepared { nodes: new, references, core, .. } = prepare(store, memory, graph).map_err(|obstacle| {
            let result = if obstacle.result == INVALID_STRUCTURE { TOPOLOGY_CHANGED } else { PARAMETERS_CHANGED };
            failure(result, obstacle.node, GraphNode::NULL)
        })?;
        let old = contents.nodes.get_mut(from..to).ok_or_else(invalid)?;
        // A node that the other graph lacks is nobody's.
        let surplus = new.get(old.len()).map_or(GraphNode::NULL, |node| node.node);
        for (one, other) in old.iter().zip(&new) {
            if one.work.kind() != other.work.kind() {
                return Err(failure(KIND_CHANGED, other.node, GraphNode::NULL));
            }
            let before: BTreeSet<usize> = one.before.iter().map(|place| place - from).collect();
            if before != other.before || one.end - from != other.end {
                let first = other.before.symmetric_difference(&before).next().and_then(|place| new.get(*place));
                return Err(failure(TOPOLOGY_CHANGED, other.node, first.map_or(GraphNode::NULL, |node| node.node)));
            }
            if !one.chooses_as(other, from) {
                return Err(failure(PARAMETERS_CHANGED, other.node, GraphNode::NULL));
            }
        }
        let block = |node: &ExecNode| node.work.block().map(|(block, _)| block.base);
        if let Some((_, other)) = old.iter().zip(&new).find(|(one, other)| block(one) != block(other)) {
            // Allocations keep their addresses.
            return Err(failure(UPDATE_NOT_SUPPORTED, other.node, GraphNode::NULL));
        }
        if old.len() != new.len() {
            return Err(failure(TOPOLOGY_CHANGED, surplus, GraphNode::NULL));
        }
        if let (Some(own), Some(core)) = (&self.core, &core)
            && !Arc::ptr_eq(own, core)
        {
            let kernel = new.iter().find(|node| node.work.core().is_some());
            let node = kernel.map_or(GraphNode::NULL, |node| node.node);
            return Err(failure(UNSUPPORTED_FUNCTION_CHANGE, node, GraphNode::NULL));
        }
        if let Some(node) = self.core.as_ref().and_then(|own| of_another(&new, &own.gpu)) {
            return Err(failure(PARAMETERS_CHANGED, node.node, GraphNode::NULL));
        }
        let conditions = old.iter().filter_map(ExecNode::condition).cloned().collect();
        let mut released = Vec::new();
        for (one, other) in old.iter_mut().zip(new) {
            (one.work, one.steps) = (other.work, other.steps);
            released.push(std::mem::replace(&mut one.references, other.references));
        }
        let around = match node {
            None => &mut contents.references,
            Some(_) => &mut contents.nodes.get_mut(from - 1).ok_or_else(invalid)?.references,
        };
        released.push(std::mem::replace(around, references));
        Ok(Released { references: released, conditions, last: contents.last.clone() })
    }

    /// It is destroyed. What of the program's it refers to goes when its last launch is over.
    pub(crate) fn retire(&self) {
        let mut contents = self.contents.lock();
        let mut references = vec![std::mem::take(&mut contents.references)];
        references.extend(contents.nodes.iter_mut().map(|node| std::mem::take(&mut node.references)));
        let conditions = contents.nodes.iter().filter_map(ExecNode::condition).cloned().collect();
        let (last, own, side) = (contents.last.take(), contents.own.take(), contents.side.take());
        drop(contents);
        drop(side);
        Released { references, conditions, last }.let_go();
        own.into_iter().for_each(|own| own.retire());
    }
}

/// Gives a launch its memory, and puts it behind what used that before.
fn prepare_memory(
    memory: &Memory,
    launching: &Launching,
    stream: &Arc<StreamState>,
    squeeze: &dyn Fn() -> bool,
) -> Result<()> {
    memory.graph_map(launching, squeeze, &|| stream.core.dead())?;
    for mark in &launching.behind {
        // A context that ended has no work.
        if let Some(core) = stream.core.gpu.context(mark.context) {
            stream.wait_for(&Point { core, mark: *mark })?;
        }
    }
    Ok(())
}

/// Appends all steps to a stream that is held. Commands that follow one another go together. What conditional nodes choose runs
/// beside the stream.
fn submit(nodes: &[ExecNode], stream: &Arc<StreamState>, held: &Held<'_>, side: Option<&Arc<Side>>) -> Result<()> {
    let mut batch: Vec<Command<'_>> = Vec::with_capacity(nodes.len());
    let Some(side) = side else {
        append(nodes, &mut batch, stream, held)?;
        return held.push(&batch);
    };
    batch.extend(nodes.iter().filter_map(|node| node.condition()?.assign()));
    let mut from = 0;
    for place in 0..nodes.len() {
        // What lies in a body comes with its node.
        let Some(chosen) = (place >= from).then(|| Chosen::new(nodes, place)).flatten() else { continue };
        append(&nodes[from..place], &mut batch, stream, held)?;
        held.push(&batch)?;
        batch.clear();
        let side = Arc::clone(side);
        held.run_work_on_host(Box::new(move |ready| {
            if ready.is_ok() {
                chosen.run_to_the_end(&side);
            }
        }))?;
        from = nodes[place].end;
    }
    append(&nodes[from..], &mut batch, stream, held)?;
    held.push(&batch)
}

/// Appends the steps of nodes to a batch; it goes to the stream first where something else than the GPU is to do them.
fn append<'a>(
    nodes: &'a [ExecNode],
    batch: &mut Vec<Command<'a>>,
    stream: &Arc<StreamState>,
    held: &Held<'_>,
) -> Result<()> {
    for step in nodes.iter().filter(|node| node.enabled).flat_map(|node| &node.steps) {
        match step {
            Step::Run(command, None) => batch.push(*command),
            Step::Run(command, Some(kernel)) => batch.push(with_params(command, kernel)),
            Step::Host(function) => {
                held.push(batch)?;
                batch.clear();
                let function: Repeated = Arc::clone(function);
                held.run_on_host(Box::new(move |ready| function(ready)))?;
            }
            Step::Record(event) => {
                held.push(batch)?;
                batch.clear();
                event.record_held(stream, held)?;
            }
            Step::Wait(event) => {
                held.push(batch)?;
                batch.clear();
                event.wait_held(stream, held)?;
            }
        }
    }
    Ok(())
}
