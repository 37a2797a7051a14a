//! A graph that is captured once more: what streams are given must be its nodes again, in the order of their making, and takes their
//! places. Of parameters that have become others the program is told, and may end the capture.
//!
//! Nodes that allocate or free do so as before, or the capture fails: their addresses have been given away. It fails too where the graph
//! would have another shape. From then on it is invalid, and the graph is partly the old one.

use std::sync::Arc;

use gpu::DevAddr;

use crate::error::{CudaError, Result};
use crate::graph::State;
use crate::graph::capture::{Captured, Member};
use crate::graph::node::{KernelWork, Work};
use crate::graph::store::{NodeState, PLAIN, Store, WantedAlloc};
use crate::handle::{Event, Graph, GraphNode, Stream};
use crate::memory::heap::Memory;
use crate::values::{Approve, LaunchConfig, Recaptured};

/// How far a capture of a graph that there is has come.
pub(crate) struct Recapture {
    /// The graph's nodes, in the order of their making.
    nodes: Vec<GraphNode>,
    /// So many of them have come again.
    come: usize,
    approve: Option<Approve>,
}

impl std::fmt::Debug for Recapture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recapture").field("nodes", &self.nodes).field("come", &self.come).finish_non_exhaustive()
    }
}

impl Recapture {
    pub(crate) fn new(nodes: Vec<GraphNode>, approve: Option<Approve>) -> Recapture {
        Recapture { nodes, come: 0, approve }
    }

    /// All nodes have come.
    pub(crate) fn is_complete(&self) -> bool {
        self.come == self.nodes.len()
    }
}

/// A node that is to do something else, and who is asked.
pub(super) struct Change {
    node: GraphNode,
    before: Work,
    now: Work,
    eligible: bool,
    approve: Option<Approve>,
}

impl Captured<'_> {
    /// The node that comes next where a graph is captured once more, if it `fits` and depends on what the stream was given before; `None`
    /// in other captures.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`; `GRAPH_RECAPTURE_FAILURE`, and the capture is invalid.
    fn next_again(&self, state: &mut State, id: u64, fits: impl FnOnce(&Work) -> bool) -> Result<Option<GraphNode>> {
        let State { store, captures } = state;
        let capture = captures.get(id)?;
        let Some(again) = &mut capture.again else { return Ok(None) };
        let next = again.nodes.get(again.come).copied();
        let member = Member::of(&mut capture.members, &self.stream)?;
        let found = next.filter(|node| {
            let Ok(NodeState { before, work, .. }) = store.node(*node) else { return false };
            are_same(&member.before, before) && fits(work)
        });
        let Some(node) = found else {
            capture.invalid = true;
            return Err(CudaError::GRAPH_RECAPTURE_FAILURE);
        };
        again.come += 1;
        member.before = vec![(node, PLAIN)];
        Ok(Some(node))
    }

    /// What is to change where a graph is captured once more, and `now` is what comes next; `None` if the node does so already.
    ///
    /// # Errors
    /// As [`Captured::next_again`].
    pub(super) fn compare(&self, state: &mut State, id: u64, now: Work) -> Result<Option<Change>> {
        let next = self.next_again(state, id, |before| before.kind() == now.kind());
        let changed = next.and_then(|node| {
            let node = node.ok_or(CudaError::ILLEGAL_STATE)?;
            let before = &state.store.node(node)?.work;
            let eligible = can_be_updated(&state.store, before, &now);
            Ok((!is_same(&state.store, before, &now)).then(|| (node, before.clone(), eligible)))
        });
        let Ok(Some((node, before, eligible))) = changed else {
            // It refers to what the caller does too: nothing of the program's is called.
            drop(state.store.discard(now));
            return changed.map(|_| None);
        };
        let approve = state.captures.get(id)?.again.as_ref().and_then(|again| again.approve.clone());
        Ok(Some(Change { node, before, now, eligible, approve }))
    }

    /// Has a node do something else, if the program agrees.
    ///
    /// # Errors
    /// `GRAPH_RECAPTURE_FAILURE`, and the capture is invalid.
    pub(super) fn change(&self, change: Change) -> Result<()> {
        let Change { node, before, now, eligible, approve } = change;
        let agreed = approve.is_none_or(|approve| {
            let (kind, before, now) = (now.kind(), &before.info(), &now.info());
            approve(&Recaptured { node, kind, before, now, eligible })
        });
        let mut state = self.driver.graphs.state.lock();
        // The program may have done anything meanwhile.
        let failure = Err(CudaError::GRAPH_RECAPTURE_FAILURE);
        let (taken, done) = if agreed { state.store.replace(node, now) } else { (state.store.discard(now), failure) };
        if let (Err(_), Ok(capture)) = (done, state.captures.get(self.stream.capture())) {
            capture.invalid = true;
        }
        drop(state);
        drop(taken);
        done.or(failure)
    }

    /// Adds a node that allocates; tells where. Where a graph is captured once more, that is where it was.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`, `GRAPH_RECAPTURE_FAILURE`, `OUT_OF_MEMORY`.
    pub(crate) fn alloc(&self, wanted: WantedAlloc) -> Result<DevAddr> {
        let as_before = |work: &Work| match work {
            Work::Alloc(alloc) => {
                let same = alloc.bytes == wanted.bytes && alloc.descriptors == wanted.descriptors;
                same && Arc::ptr_eq(alloc.block.memory(), &wanted.memory)
            }
            _ => false,
        };
        let again = self.with(|state, id| {
            let Some(node) = self.next_again(state, id, as_before)? else { return Ok(None) };
            Ok(state.store.node(node)?.work.block().map(|(block, _)| DevAddr(block.base)))
        })?;
        if let Some(address) = again {
            return Ok(address);
        }
        let mut address = DevAddr(0);
        self.add_node(|state, graph, before| {
            let alloc = state.store.alloc(graph, before, wanted)?;
            address = DevAddr(alloc.block.base);
            Ok(Work::Alloc(Arc::new(alloc)))
        })?;
        Ok(address)
    }

    /// Adds a node that frees what a node has allocated in `memory`.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`, `GRAPH_RECAPTURE_FAILURE`; `INVALID_VALUE` for what the graph may not free.
    pub(crate) fn free(&self, memory: &Arc<Memory>, address: DevAddr) -> Result<()> {
        let as_before = |work: &Work| matches!(work, Work::Free(block) if block.base == address.0);
        if self.with(|state, id| self.next_again(state, id, as_before))?.is_some() {
            return Ok(());
        }
        self.add_node(|_, graph, _| Ok(Work::Free(memory.graph_to_free(address.0, graph)?)))
    }
}

/// Do both do the same?
fn is_same(store: &Store, one: &Work, other: &Work) -> bool {
    one.shares_context(other)
        && match (one, other) {
            (Work::Kernel(one), Work::Kernel(other)) => is_same_kernel(one, other),
            (Work::Copy { copy: one, .. }, Work::Copy { copy: other, .. }) => one == other,
            (Work::Fill { fill: one, .. }, Work::Fill { fill: other, .. }) => one == other,
            (Work::Host(one), Work::Host(other)) => (one.function, one.data) == (other.function, other.data),
            (Work::Graph(one), Work::Graph(other)) => are_alike(store, *one, *other, is_same),
            (Work::WaitEvent(_, one), Work::WaitEvent(_, other))
            | (Work::RecordEvent(_, one), Work::RecordEvent(_, other)) => Arc::ptr_eq(one, other),
            (Work::MemOps { shown: one, .. }, Work::MemOps { shown: other, .. }) => one == other,
            (Work::Free(one), Work::Free(other)) => one.base == other.base,
            // Who allocates again, or chooses, is another.
            _ => matches!((one, other), (Work::Empty, Work::Empty)),
        }
}

fn is_same_kernel(one: &KernelWork, other: &KernelWork) -> bool {
    // The stream in which it came is no parameter, nor what is recorded behind it.
    let config = |kernel: &KernelWork| LaunchConfig { stream: Stream::NULL, event: Event::NULL, ..kernel.config };
    Arc::ptr_eq(&one.function, &other.function)
        && config(one) == config(other)
        && one.params.block == other.params.block
        && one.attributes == other.attributes
}

/// Whether executable graphs take the one for the other, as [`crate::graph::exec`] has it.
fn can_be_updated(store: &Store, one: &Work, other: &Work) -> bool {
    let shape = match (one, other) {
        (Work::Graph(one), Work::Graph(other)) => are_alike(store, *one, *other, can_be_updated),
        _ => one.kind() == other.kind(),
    };
    shape && one.shares_context(other)
}

/// Do two graphs have the same nodes and edges, as far as `alike` can tell what nodes do?
fn are_alike(store: &Store, one: Graph, other: Graph, alike: fn(&Store, &Work, &Work) -> bool) -> bool {
    let (Ok(one), Ok(other)) = (store.graph(one), store.graph(other)) else { return false };
    let place = |nodes: &[GraphNode], node: GraphNode| nodes.iter().position(|known| *known == node);
    one.nodes.len() == other.nodes.len()
        && one.nodes.iter().zip(&other.nodes).all(|(first, second)| {
            let (Ok(first), Ok(second)) = (store.node(*first), store.node(*second)) else { return false };
            let here = first.before.iter().map(|(node, data)| (place(&one.nodes, *node), *data)).collect::<Vec<_>>();
            let there = second.before.iter().map(|(node, data)| (place(&other.nodes, *node), *data));
            let there = there.collect::<Vec<_>>();
            are_same(&here, &there) && alike(store, &first.work, &second.work)
        })
}

/// Are these the same edges, each there once, in whatever order?
fn are_same<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.len() == other.len() && one.iter().all(|edge| other.contains(edge))
}
