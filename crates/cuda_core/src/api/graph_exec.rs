//! Executable graphs: instantiated, changed, launched.

use std::collections::HashMap;
use std::sync::Arc;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::exec::{ExecNode, ExecState, Released};
use crate::graph::node::Work;
use crate::graph::store::{PLAIN, Store};
use crate::handle::{self, Graph, GraphExec, GraphNode, Stream, Tag};
use crate::values::{GraphOutcome, NodeParams};
use crate::work::queues::Point;
use crate::work::stream::{NON_BLOCKING, StreamState};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const DEVICE_LAUNCH: u64 = 4;
/// All flags of an instantiation: free at launch, upload, launch by kernels, priorities of nodes.
const FLAGS: u64 = 15;

impl Driver {
    fn exec(&self, exec: GraphExec) -> Result<Arc<ExecState>> {
        self.ready()?;
        self.graphs.execs.get(exec.0).map_err(|_| CudaError::INVALID_VALUE)
    }

    /// An executable graph of what a graph is now. If there is none, what was in the way.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, no graph, circles, and a graph with memory that has an executable one; `NOT_SUPPORTED` for launches by kernels and work of several
    /// contexts; those of the work.
    pub fn graph_instantiate(
        &self,
        graph: Graph,
        flags: u64,
    ) -> std::result::Result<GraphExec, (CudaError, GraphOutcome)> {
        let refused = |error, result| (error, GraphOutcome { result, ..GraphOutcome::default() });
        self.ready().map_err(|error| refused(error, 1))?;
        if flags & !FLAGS != 0 {
            return Err(refused(CudaError::INVALID_VALUE, 1));
        }
        if flags & DEVICE_LAUNCH != 0 {
            return Err(refused(CudaError::NOT_SUPPORTED, 1));
        }
        let made = ExecState::new(&mut self.graphs.state.lock().store, &self.memory, graph, flags);
        let made = made.map_err(|obstacle| {
            (obstacle.error, GraphOutcome { result: obstacle.result, error_node: obstacle.node, ..Default::default() })
        })?;
        let handle = GraphExec(handle::fresh(Tag::GraphExec));
        self.graphs.execs.insert(handle.0, Arc::new(made));
        Ok(handle)
    }

    /// Destroys an executable graph. Launches that are under way go on.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_exec_destroy(&self, exec: GraphExec) -> Result<()> {
        self.ready()?;
        self.graphs.execs.remove(exec.0).map_err(|_| CudaError::INVALID_VALUE)?.retire();
        Ok(())
    }

    /// Nothing is left to be done before a launch: all is made at the instantiation.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, `INVALID_HANDLE`.
    pub fn graph_upload(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        self.exec(exec)?;
        self.stream(stream).map(drop)
    }

    /// Launches an executable graph in a stream; one that is being captured gets a node with what it does.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or allocates what is still allocated, or frees what is not, or would have to be copied into a
    /// capture with memory or conditions of its own; `INVALID_HANDLE`, `OUT_OF_MEMORY`; the context's error.
    pub fn graph_launch(&self, exec: GraphExec, stream: Stream) -> Result<()> {
        let exec = self.exec(exec)?;
        if let Some(capture) = self.captured(stream)? {
            if exec.is_single() {
                // Nodes that allocate or free cannot be copied, nor conditional ones.
                return Err(CudaError::INVALID_VALUE);
            }
            let (nodes, references) = exec.parts();
            return capture.add_node(|state, _, _| {
                let child = state.store.create();
                state.store.graph_mut(child)?.references.clone_from(&references);
                rebuild(&mut state.store, child, &nodes, 0, nodes.len())?;
                Ok(Work::Graph(child))
            });
        }
        let stream = self.stream(stream)?;
        let Some(core) = exec.core.as_ref().filter(|core| !Arc::ptr_eq(core, &stream.core)) else {
            return exec.launch(&stream, &|| self.devices.of(&stream.core.gpu).pools.squeeze());
        };
        // The work is another context's: it runs there, in the place of a command of the stream.
        core.check()?;
        let own = exec.own_stream(|| {
            let context = self.contexts.get(core.handle.0).map_err(|_| CudaError::CONTEXT_IS_DESTROYED)?;
            Ok(StreamState::created(&context.queues, NON_BLOCKING, 0))
        })?;
        let behind = |later: &StreamState, earlier: &StreamState| match earlier.point()? {
            Some(mark) => later.wait_for(&Point { core: Arc::clone(&earlier.core), mark }),
            None => Ok(()),
        };
        behind(&own, &stream)?;
        exec.launch(&own, &|| self.devices.of(&core.gpu).pools.squeeze())?;
        behind(&stream, &own)
    }

    /// The flags it was instantiated with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_exec_get_flags(&self, exec: GraphExec) -> Result<u64> {
        self.exec(exec).map(|exec| exec.flags)
    }

    /// A small number that no other graph of the process has.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn graph_exec_get_id(&self, exec: GraphExec) -> Result<u32> {
        self.exec(exec).map(|exec| exec.id)
    }

    /// Gives other work to a node of later launches. A graph in a node must have the shape of the one that it replaces.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it has no such node, or one of another kind; `GRAPH_EXEC_UPDATE_FAILURE`; those of the work.
    pub fn graph_exec_node_set_params(&self, exec: GraphExec, node: GraphNode, params: NodeParams<'_>) -> Result<()> {
        let exec = self.exec(exec)?;
        if let NodeParams::Graph { graph, .. } = params {
            let state = self.graphs.state.lock();
            state.store.graph(graph)?;
            let updated = exec.update(&state.store, &self.memory, graph, Some(node));
            drop(state);
            return updated.map(Released::let_go).map_err(|(error, _)| error);
        }
        exec.set(&self.memory, node, self.work(params)?)
    }

    /// Takes over what the nodes of a graph of the same shape do. If it cannot, why.
    ///
    /// # Errors
    /// `GRAPH_EXEC_UPDATE_FAILURE`; `INVALID_VALUE` if one of them is none.
    pub fn graph_exec_update(
        &self,
        exec: GraphExec,
        graph: Graph,
    ) -> std::result::Result<(), (CudaError, GraphOutcome)> {
        let refused = |error| (error, GraphOutcome { result: 1, ..GraphOutcome::default() });
        let exec = self.exec(exec).map_err(refused)?;
        let state = self.graphs.state.lock();
        state.store.graph(graph).map_err(refused)?;
        let updated = exec.update(&state.store, &self.memory, graph, None);
        drop(state);
        updated.map(Released::let_go).map_err(|(error, mismatch)| {
            let (error_node, error_from_node) = (mismatch.node, mismatch.from);
            (error, GraphOutcome { result: mismatch.result, error_node, error_from_node })
        })
    }

    /// Whether launches do what a node says.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it has no such node, or one that is no kernel, copy or fill.
    pub fn graph_node_get_enabled(&self, exec: GraphExec, node: GraphNode) -> Result<bool> {
        self.exec(exec)?.is_enabled(node)
    }

    /// Has later launches leave a node out, or not.
    ///
    /// # Errors
    /// As `graph_node_get_enabled`.
    pub fn graph_node_set_enabled(&self, exec: GraphExec, node: GraphNode, enabled: bool) -> Result<()> {
        self.exec(exec)?.enable(node, enabled)
    }
}

/// Makes a graph again of a part of an executable one.
fn rebuild(store: &mut Store, graph: Graph, nodes: &[ExecNode], from: usize, to: usize) -> Result<()> {
    let mut names: HashMap<usize, GraphNode> = HashMap::new();
    let mut place = from;
    while let Some(node) = nodes.get(place).filter(|_| place < to) {
        let before: Vec<_> = node.before().filter_map(|place| Some((*names.get(&place)?, PLAIN))).collect();
        let work = match node.work {
            Work::Graph(_) => {
                let child = store.create();
                store.graph_mut(child)?.references.clone_from(&node.references);
                rebuild(store, child, nodes, place + 1, node.end)?;
                Work::Graph(child)
            }
            Work::Conditional(_) => return Err(CudaError::INVALID_VALUE),
            _ if !node.is_enabled() => Work::Empty,
            _ => node.work.clone(),
        };
        names.insert(place, store.add(graph, &before, work)?);
        place = node.end;
    }
    Ok(())
}
