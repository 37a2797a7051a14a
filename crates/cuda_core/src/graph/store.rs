//! Graphs, their nodes and edges.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use crate::error::{CudaError, Result};
use crate::graph::conditional::Condition;
use crate::graph::node::{AllocWork, Work};
use crate::graph::user_object::References;
use crate::handle::{self, Graph, GraphNode, Tag};
use crate::memory::graph_memory::Use;
use crate::memory::heap::Memory;

/// `CUgraphEdgeData`, as it is in memory; all zero: plain order.
pub(crate) type EdgeData = [u8; 8];

pub(crate) const PLAIN: EdgeData = [0; 8];

/// Most graphs in each other: what walks over them does so on the stack of the program's thread.
const MOST_LEVELS: usize = 512;

#[derive(Debug)]
pub(crate) struct GraphState {
    /// A small number of its own.
    pub(crate) id: u32,
    /// In the order of their making.
    pub(crate) nodes: Vec<GraphNode>,
    /// The node to which it belongs.
    pub(crate) parent: Option<GraphNode>,
    pub(crate) references: References,
    /// It, or a graph in it, has nodes that allocate or free: nothing is taken out of it, and it is not copied.
    pub(crate) has_memory: bool,
    /// Those that were made for conditional nodes in it, or in graphs in it.
    pub(crate) conditions: Vec<Arc<Condition>>,
    /// The executable graph of one with memory or conditional nodes, as long as there is one.
    pub(crate) instance: Weak<()>,
    /// Levels of graphs in its nodes; those of nodes that were taken out count as well.
    levels: usize,
    /// The number of the next node in it.
    next: u32,
}

#[derive(Debug)]
pub(crate) struct NodeState {
    pub(crate) graph: Graph,
    /// Its number in the graph.
    pub(crate) number: u32,
    pub(crate) work: Work,
    /// What it depends on, in the order in which that was said.
    pub(crate) before: Vec<(GraphNode, EdgeData)>,
    /// What depends on it.
    pub(crate) after: Vec<(GraphNode, EdgeData)>,
    /// The node that it was cloned from.
    original: Option<GraphNode>,
}

/// What was taken out, to be dropped without a lock: the program's functions may be called then.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Taken {
    graphs: Vec<GraphState>,
    nodes: Vec<NodeState>,
    work: Vec<Work>,
}

/// What an allocation is to be.
#[derive(Debug)]
pub(crate) struct WantedAlloc {
    pub(crate) memory: Arc<Memory>,
    pub(crate) bytes: u64,
    pub(crate) descriptors: Box<[[u32; 3]]>,
}

/// All graphs of a process.
#[derive(Debug, Default)]
pub(crate) struct Store {
    graphs: HashMap<Graph, GraphState>,
    nodes: HashMap<GraphNode, NodeState>,
    next_id: u32,
}

impl Store {
    pub(crate) fn create(&mut self) -> Graph {
        let graph = Graph(handle::fresh(Tag::Graph));
        self.next_id += 1;
        let (nodes, references) = (Vec::new(), References::new());
        let (id, instance) = (self.next_id, Weak::new());
        let (parent, has_memory, conditions) = (None, false, Vec::new());
        let state = GraphState { id, nodes, parent, references, has_memory, conditions, instance, levels: 0, next: 0 };
        self.graphs.insert(graph, state);
        graph
    }

    /// A number that no graph has.
    pub(crate) fn fresh_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn graph(&self, graph: Graph) -> Result<&GraphState> {
        self.graphs.get(&graph).ok_or(CudaError::INVALID_VALUE)
    }

    pub(crate) fn graph_mut(&mut self, graph: Graph) -> Result<&mut GraphState> {
        self.graphs.get_mut(&graph).ok_or(CudaError::INVALID_VALUE)
    }

    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn node(&self, node: GraphNode) -> Result<&NodeState> {
        self.nodes.get(&node).ok_or(CudaError::INVALID_VALUE)
    }

    pub(crate) fn node_mut(&mut self, node: GraphNode) -> Result<&mut NodeState> {
        self.nodes.get_mut(&node).ok_or(CudaError::INVALID_VALUE)
    }

    /// Adds a node behind others of its graph. A graph in `work` becomes the node's.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such graph, or a dependency is not one of its nodes, or is named twice; for memory in a graph of a
    /// node, unless that is a conditional one: those are told when they are instantiated. `OUT_OF_MEMORY` for too many graphs in each other.
    pub(crate) fn add(&mut self, graph: Graph, before: &[(GraphNode, EdgeData)], work: Work) -> Result<GraphNode> {
        self.graph(graph)?;
        let mut seen = HashSet::new();
        for (node, _) in before {
            if self.node(*node)?.graph != graph || !seen.insert(*node) {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        let has_memory = match work {
            Work::Graph(child) => self.graph(child)?.has_memory,
            _ => work.block().is_some(),
        };
        let levels = self.levels_with(graph, &work)?;
        let parent = self.graph(graph)?.parent.map(|node| self.node(node)).transpose()?;
        if has_memory && parent.is_some_and(|node| matches!(node.work, Work::Graph(_))) {
            return Err(CudaError::INVALID_VALUE);
        }
        let state = self.graph_mut(graph)?;
        state.has_memory |= has_memory;
        let handle = GraphNode(handle::fresh(Tag::GraphNode));
        match work.block() {
            Some((block, Use::Alloc)) => block.memory().graph_allocated(block.base),
            Some((block, Use::Free)) => block.memory().graph_freed_by(block.base, graph, handle),
            None => {}
        }
        self.adopt(graph, handle, &work, levels)?;
        let state = self.graph_mut(graph)?;
        state.nodes.push(handle);
        let number = state.next;
        state.next += 1;
        for &(node, data) in before {
            self.node_mut(node)?.after.push((handle, data));
        }
        let (before, after) = (before.to_vec(), Vec::new());
        self.nodes.insert(handle, NodeState { graph, number, work, before, after, original: None });
        Ok(handle)
    }

    /// Levels of graphs in a graph's node that does this.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a graph that is none, `OUT_OF_MEMORY` for too many in each other.
    fn levels_with(&self, graph: Graph, work: &Work) -> Result<usize> {
        let mut levels = 0;
        for child in work.graphs() {
            levels = levels.max(self.graph(*child)?.levels + 1);
        }
        let many = levels > 0 && self.around(graph).count() + levels > MOST_LEVELS;
        if many { Err(CudaError::OUT_OF_MEMORY) } else { Ok(levels) }
    }

    /// The graphs in `work`, so many levels of them, become a node's.
    fn adopt(&mut self, graph: Graph, node: GraphNode, work: &Work, levels: usize) -> Result<()> {
        for child in work.graphs() {
            self.graph_mut(*child)?.parent = Some(node);
        }
        if levels > 0 {
            for (around, inside) in self.around(graph).zip(levels..).collect::<Vec<_>>() {
                let state = self.graph_mut(around)?;
                state.levels = state.levels.max(inside);
            }
        }
        Ok(())
    }

    /// Gives a node other work of its kind, which neither allocates nor frees. A graph in it becomes the node's. What is nobody's now is
    /// taken out: the work before, or that.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is no such node, and for a graph that is another node's, around this one, or has nodes that allocate, free or
    /// choose; `OUT_OF_MEMORY` for too many graphs in each other.
    pub(crate) fn replace(&mut self, node: GraphNode, mut work: Work) -> (Taken, Result<()>) {
        let graph = self.node(node).map(|state| state.graph);
        let adopted = graph.and_then(|graph| {
            for child in work.graphs() {
                if self.graph(*child)?.has_memory || !self.can_be_in(graph, *child)? {
                    return Err(CudaError::INVALID_VALUE);
                }
            }
            self.adopt(graph, node, &work, self.levels_with(graph, &work)?)
        });
        let replaced = adopted.and_then(|()| {
            std::mem::swap(&mut self.node_mut(node)?.work, &mut work);
            Ok(())
        });
        if replaced.is_ok() {
            for before in work.graphs() {
                self.graphs.get_mut(before).into_iter().for_each(|state| state.parent = None);
            }
        }
        (self.discard(work), replaced)
    }

    /// Takes the graphs of work out that are no node's.
    pub(crate) fn discard(&mut self, work: Work) -> Taken {
        let mut taken = Taken::default();
        for graph in work.graphs() {
            if self.graphs.get(graph).is_some_and(|state| state.parent.is_none()) {
                self.take_graph(*graph, &mut taken);
            }
        }
        taken.work.push(work);
        taken
    }

    /// An allocation behind nodes of a graph: where one was that is freed before, or at new addresses.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub(crate) fn alloc(
        &self,
        graph: Graph,
        before: &[(GraphNode, EdgeData)],
        wanted: WantedAlloc,
    ) -> Result<AllocWork> {
        let WantedAlloc { memory, bytes, descriptors } = wanted;
        let earlier = OnceCell::new();
        let earlier = || earlier.get_or_init(|| self.up_to(before.iter().map(|edge| edge.0).collect()));
        let reused = memory.graph_reuse(graph, bytes, |free| earlier().contains(&free));
        let block = reused.map_or_else(|| memory.graph_reserve(graph, bytes), Ok)?;
        Ok(AllocWork { block, bytes, descriptors })
    }

    /// The condition with a handle that nodes of a graph may have: its own, or one of a graph around it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none.
    pub(crate) fn condition(&self, graph: Graph, handle: u64) -> Result<Arc<Condition>> {
        let made_for = |of: &GraphState| of.conditions.iter().find(|known| known.handle() == handle).cloned();
        let mut around = self.around(graph).filter_map(|graph| self.graphs.get(&graph));
        around.find_map(made_for).ok_or(CudaError::INVALID_VALUE)
    }

    /// Whether a graph has conditional nodes of its own.
    pub(crate) fn is_conditional(&self, graph: &GraphState) -> bool {
        let conditional = |node: &NodeState| matches!(node.work, Work::Conditional(_));
        graph.nodes.iter().any(|node| self.nodes.get(node).is_some_and(conditional))
    }

    /// Whether a graph or one in it has conditional nodes.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn has_conditional(&self, graph: Graph) -> Result<bool> {
        let state = self.graph(graph)?;
        let nodes = state.nodes.iter().filter_map(|node| self.nodes.get(node));
        let children = nodes.flat_map(|node| node.work.graphs());
        Ok(self.is_conditional(state) || children.map(|child| self.has_conditional(*child)).any(|has| has == Ok(true)))
    }

    /// Whether a graph is another, or in one of its nodes, however deep.
    fn is_in(&self, graph: Graph, other: Graph) -> bool {
        self.around(graph).any(|around| around == other)
    }

    /// Whether a graph can become that of a node of another: it is nobody's, nor around that one, and has no conditional nodes.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn can_be_in(&self, graph: Graph, child: Graph) -> Result<bool> {
        let free = self.graph(child)?.parent.is_none() && !self.is_in(graph, child);
        Ok(free && !self.has_conditional(child)?)
    }

    /// A graph, and those in whose nodes it is, outwards.
    fn around(&self, graph: Graph) -> impl Iterator<Item = Graph> + '_ {
        std::iter::successors(Some(graph), |graph| {
            let parent = self.graphs.get(graph)?.parent?;
            Some(self.nodes.get(&parent)?.graph)
        })
    }

    /// Adds edges, all or none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for nodes of other graphs, a node behind itself, and edges that there are.
    pub(crate) fn connect(&mut self, graph: Graph, edges: &[(GraphNode, GraphNode, EdgeData)]) -> Result<()> {
        self.graph(graph)?;
        let mut seen = HashSet::new();
        for &(from, to, data) in edges {
            let (first, second) = (self.node(from)?, self.node(to)?);
            let own = first.graph == graph && second.graph == graph && from != to;
            if !own || first.after.contains(&(to, data)) || !seen.insert((from, to, data)) {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        for &(from, to, data) in edges {
            self.node_mut(from)?.after.push((to, data));
            self.node_mut(to)?.before.push((from, data));
        }
        Ok(())
    }

    /// Takes edges away, all or none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for edges that there are not, and of graphs with nodes that allocate or free.
    pub(crate) fn disconnect(&mut self, graph: Graph, edges: &[(GraphNode, GraphNode, EdgeData)]) -> Result<()> {
        if self.graph(graph)?.has_memory && !edges.is_empty() {
            return Err(CudaError::INVALID_VALUE);
        }
        for &(from, to, data) in edges {
            let first = self.node(from)?;
            if first.graph != graph || !first.after.contains(&(to, data)) {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        for &(from, to, data) in edges {
            self.node_mut(from)?.after.retain(|edge| *edge != (to, data));
            self.node_mut(to)?.before.retain(|edge| *edge != (from, data));
        }
        Ok(())
    }

    /// All edges of a graph, by the node from which they lead.
    pub(crate) fn edges(&self, graph: Graph) -> Result<Vec<(GraphNode, GraphNode, EdgeData)>> {
        let mut edges = Vec::new();
        for &from in &self.graph(graph)?.nodes {
            edges.extend(self.node(from)?.after.iter().map(|&(to, data)| (from, to, data)));
        }
        Ok(edges)
    }

    /// Takes a node out of its graph, and its edges.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or of a graph with nodes that allocate or free.
    pub(crate) fn destroy_node(&mut self, node: GraphNode) -> Result<Taken> {
        if self.graph(self.node(node)?.graph)?.has_memory {
            return Err(CudaError::INVALID_VALUE);
        }
        let state = self.nodes.remove(&node).ok_or(CudaError::INVALID_VALUE)?;
        for (other, _) in &state.before {
            self.node_mut(*other)?.after.retain(|(to, _)| *to != node);
        }
        for (other, _) in &state.after {
            self.node_mut(*other)?.before.retain(|(from, _)| *from != node);
        }
        self.graph_mut(state.graph)?.nodes.retain(|other| *other != node);
        let mut taken = Taken::default();
        for child in state.work.graphs() {
            self.take_graph(*child, &mut taken);
        }
        taken.nodes.push(state);
        Ok(taken)
    }

    /// Takes a graph out that belongs to no node.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or belongs to a node.
    pub(crate) fn destroy(&mut self, graph: Graph) -> Result<Taken> {
        if self.graph(graph)?.parent.is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut taken = Taken::default();
        self.take_graph(graph, &mut taken);
        Ok(taken)
    }

    fn take_graph(&mut self, graph: Graph, taken: &mut Taken) {
        let Some(state) = self.graphs.remove(&graph) else { return };
        for node in &state.nodes {
            let Some(node) = self.nodes.remove(node) else { continue };
            for child in node.work.graphs() {
                self.take_graph(*child, taken);
            }
            taken.nodes.push(node);
        }
        taken.graphs.push(state);
    }

    /// A copy of a graph and of all graphs in it. It refers to what the graph refers to.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or has nodes that allocate or free, or conditional ones.
    pub(crate) fn clone_graph(&mut self, graph: Graph) -> Result<Graph> {
        if self.has_conditional(graph)? {
            return Err(CudaError::INVALID_VALUE);
        }
        let (nodes, references) = {
            let state = self.graph(graph)?;
            if state.has_memory {
                return Err(CudaError::INVALID_VALUE);
            }
            (state.nodes.clone(), state.references.clone())
        };
        let clone = self.create();
        self.graph_mut(clone)?.references = references;
        let mut names = HashMap::new();
        for node in &nodes {
            let mut work = self.node(*node)?.work.clone();
            if let Work::Graph(child) = work {
                work = Work::Graph(self.clone_graph(child)?);
            }
            let copy = self.add(clone, &[], work)?;
            self.node_mut(copy)?.original = Some(*node);
            names.insert(*node, copy);
        }
        for node in &nodes {
            let rename = |edges: &[(GraphNode, EdgeData)]| {
                edges.iter().filter_map(|(node, data)| Some((*names.get(node)?, *data))).collect::<Vec<_>>()
            };
            let state = self.node(*node)?;
            let (before, after) = (rename(&state.before), rename(&state.after));
            if let Some(copy) = names.get(node) {
                let copy = self.node_mut(*copy)?;
                (copy.before, copy.after) = (before, after);
            }
        }
        Ok(clone)
    }

    /// The node of a clone that was made from `node`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none.
    pub(crate) fn find_in_clone(&self, node: GraphNode, clone: Graph) -> Result<GraphNode> {
        let made_from = |copy: &&GraphNode| self.node(**copy).is_ok_and(|copy| copy.original == Some(node));
        self.graph(clone)?.nodes.iter().find(made_from).copied().ok_or(CudaError::INVALID_VALUE)
    }

    /// Nodes of a graph so that each comes behind all that it depends on; of those that may come, the oldest first.
    ///
    /// # Errors
    /// A node of a circle.
    pub(crate) fn order(&self, graph: &GraphState) -> std::result::Result<Vec<GraphNode>, GraphNode> {
        let state = |node: &GraphNode| self.nodes.get(node);
        let mut missing: HashMap<GraphNode, usize> =
            graph.nodes.iter().filter_map(|node| Some((*node, state(node)?.before.len()))).collect();
        // Handles grow with age.
        let roots = graph.nodes.iter().filter(|node| missing.get(node) == Some(&0));
        let mut ready: std::collections::BTreeSet<GraphNode> = roots.copied().collect();
        let mut order = Vec::with_capacity(graph.nodes.len());
        while let Some(node) = ready.pop_first() {
            order.push(node);
            missing.remove(&node);
            for (next, _) in state(&node).map_or(&[][..], |state| &state.after) {
                if let Some(count) = missing.get_mut(next) {
                    *count -= 1;
                    if *count == 0 {
                        ready.insert(*next);
                    }
                }
            }
        }
        missing.keys().min().map_or(Ok(order), |node| Err(*node))
    }

    /// Whether every node of `these` is one of `last`, or before one of them.
    pub(crate) fn are_before(&self, these: &[GraphNode], last: &[GraphNode]) -> bool {
        let seen = self.up_to(last.to_vec());
        these.iter().all(|node| seen.contains(node))
    }

    /// These nodes and all before them.
    fn up_to(&self, last: Vec<GraphNode>) -> HashSet<GraphNode> {
        let (mut seen, mut left) = (HashSet::new(), last);
        while let Some(node) = left.pop() {
            if seen.insert(node) {
                left.extend(self.nodes.get(&node).into_iter().flat_map(|state| state.before.iter().map(|edge| edge.0)));
            }
        }
        seen
    }
}
