//! The kernel as nodes: blocks, cut so that every operation that joins the lanes of a warp or CTA begins a node.

use ptx::ir::{Inst, Kernel, Op, Operand, PredRef, Term};

use super::lockstep::Cuts;
use crate::run::matrix::is_quick;

/// An index of a [`Node`].
pub(crate) type NodeId = usize;

/// How a node ends.
#[derive(Clone, Debug)]
pub(crate) enum NodeTerm {
    Jump(NodeId),
    Cond {
        p: PredRef,
        then: NodeId,
        els: NodeId,
    },
    /// Goes to the target whose number is `(index - base) >> shift`, or the last one if there is none with it.
    Index {
        index: Operand,
        base: u32,
        shift: u32,
        targets: Vec<NodeId>,
    },
    Exit,
}

/// A run of instructions of one block.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) block: usize,
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// So many instructions at its beginning are performed for all lanes of a warp (or the CTA) at once, whatever the
    /// guard: the branch to this node has taken care of that. More than one only of matrices, which all lanes have come for.
    pub(crate) joints: usize,
    /// Lanes of a warp wait for one another before it: it begins a region.
    pub(crate) together: bool,
    pub(crate) term: NodeTerm,
}

impl Node {
    pub(crate) fn successors(&self) -> Vec<NodeId> {
        let mut list = match &self.term {
            NodeTerm::Jump(to) => vec![*to],
            NodeTerm::Cond { then, els, .. } => vec![*then, *els],
            NodeTerm::Index { targets, .. } => targets.clone(),
            NodeTerm::Exit => Vec::new(),
        };
        list.dedup();
        list
    }

    /// The instructions that lanes run by themselves.
    pub(crate) fn body<'k>(&self, kernel: &'k Kernel) -> &'k [Inst] {
        &kernel.blocks[self.block].insts[self.begin + self.joints..self.end]
    }

    /// The operation that joins lanes, if the node begins with one; of several the first.
    pub(crate) fn joint<'k>(&self, kernel: &'k Kernel) -> Option<&'k Inst> {
        self.joints(kernel).first()
    }

    /// The operations that join lanes.
    pub(crate) fn joints<'k>(&self, kernel: &'k Kernel) -> &'k [Inst] {
        &kernel.blocks[self.block].insts[self.begin..self.begin + self.joints]
    }
}

/// Does the operation need lanes beyond its own?
pub(super) fn joins_lanes(op: &Op) -> bool {
    matches!(
        op,
        Op::Bar { .. }
            | Op::BarWarp { .. }
            | Op::Shfl { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Redux { .. }
            | Op::Activemask { .. }
            | Op::Elect { .. }
    ) || ptx::warp::is_matrix(op)
}

/// Most operations that join lanes in a node.
const MAX_JOINTS: usize = 64;

/// May operations on matrices that stand behind one another be one node's? A node is not interrupted, so a product that takes long
/// is one by itself.
fn go_together(joints: &[Inst], next: &Inst) -> bool {
    let alike = |inst: &Inst| inst.guard.is_none() && ptx::warp::is_matrix(&inst.op) && !takes_long(&inst.op);
    joints.len() < MAX_JOINTS && joints.first().is_some_and(alike) && alike(next)
}

fn takes_long(op: &Op) -> bool {
    matches!(op, Op::Mma { product, .. } if !is_quick(product))
}

/// Cuts the blocks of `kernel`, at operations that join lanes and at `cuts`; node 0 is the entry.
pub(crate) fn cut(kernel: &Kernel, cuts: &Cuts) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut first = Vec::with_capacity(kernel.blocks.len());
    for (index, block) in kernel.blocks.iter().enumerate() {
        first.push(nodes.len());
        let mut begin = 0;
        let mut joints = 0;
        let mut together = false;
        for (at, inst) in block.insts.iter().enumerate() {
            if cuts.contains(index, at) {
                if at > begin {
                    let term = NodeTerm::Jump(nodes.len() + 1);
                    nodes.push(Node { block: index, begin, end: at, joints, together, term });
                }
                (begin, joints, together) = (at, 0, true);
            }
            if !joins_lanes(&inst.op) {
                continue;
            }
            if at == begin + joints && go_together(&block.insts[begin..at], inst) {
                joints += 1;
                continue;
            }
            // The entry stays a node of its own, so that it has no joint operation.
            if at > begin || nodes.is_empty() || inst.guard.is_some() {
                let next = nodes.len() + 1;
                let term = match inst.guard {
                    Some(p) => NodeTerm::Cond { p, then: next, els: next + 1 },
                    None => NodeTerm::Jump(next),
                };
                nodes.push(Node { block: index, begin, end: at, joints, together, term });
            }
            (begin, joints, together) = (at, 1, false);
            if inst.guard.is_some() {
                let next = nodes.len() + 1;
                nodes.push(Node { block: index, begin, end: at + 1, joints, together, term: NodeTerm::Jump(next) });
                (begin, joints) = (at + 1, 0);
            }
        }
        nodes.push(Node { block: index, begin, end: block.insts.len(), joints, together, term: NodeTerm::Exit });
    }
    let last: Vec<NodeId> = (0..first.len()).map(|b| first.get(b + 1).copied().unwrap_or(nodes.len()) - 1).collect();
    for (block, &node) in last.iter().enumerate() {
        nodes[node].term = match &kernel.blocks[block].term {
            Term::Bra(to) => NodeTerm::Jump(first[to.0 as usize]),
            Term::CondBra { then, els, .. } if then == els => NodeTerm::Jump(first[then.0 as usize]),
            Term::CondBra { p, then, els, .. } => {
                NodeTerm::Cond { p: *p, then: first[then.0 as usize], els: first[els.0 as usize] }
            }
            Term::BrIdx { index, targets } => {
                let targets = targets.iter().map(|t| first[t.0 as usize]).collect();
                NodeTerm::Index { index: *index, base: 0, shift: 0, targets }
            }
            Term::Exit => NodeTerm::Exit,
        };
    }
    nodes
}

/// Where a block's end leads to.
pub(super) fn targets(term: &Term) -> impl Iterator<Item = usize> {
    let (list, more) = match term {
        Term::Bra(to) => ([Some(*to), None], &[][..]),
        Term::CondBra { then, els, .. } => ([Some(*then), Some(*els)], &[][..]),
        Term::BrIdx { targets, .. } => ([None, None], &targets[..]),
        Term::Exit => ([None, None], &[][..]),
    };
    list.into_iter().flatten().chain(more.iter().copied()).map(|to| to.0 as usize)
}

/// Targets of one branch by index, as a power of two; one with more goes by way of groups of so many.
const GROUP_SHIFT: u32 = 6;

/// The same graph, but without nodes that are large beside `limit` instructions: long ones become several, and branches
/// with many targets go in two steps.
pub(crate) fn shortened(nodes: Vec<Node>, limit: usize) -> Vec<Node> {
    let most = (limit / 4).max(1);
    let is_large = |node: &Node| {
        let wide = matches!(&node.term, NodeTerm::Index { targets, .. } if targets.len() > 1 << GROUP_SHIFT);
        node.end - node.begin > most || wide
    };
    if limit == usize::MAX || !nodes.iter().any(is_large) {
        return nodes;
    }
    let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
    let mut first = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        first.push(out.len());
        while node.end - node.begin > most {
            let middle = node.begin + most.max(node.joints);
            // Where it goes is known at once, and stays: it is no node of the old graph.
            out.push(Node { end: middle, term: NodeTerm::Exit, ..node });
            node = Node { begin: middle, joints: 0, together: false, ..node };
        }
        out.push(node);
    }
    let mut last: Vec<NodeId> = first.iter().skip(1).map(|&n| n - 1).collect();
    last.extend(out.len().checked_sub(1));
    for (n, node) in out.iter_mut().enumerate() {
        if last.binary_search(&n).is_err() {
            node.term = NodeTerm::Jump(n + 1);
        }
    }
    for n in last {
        match &mut out[n].term {
            NodeTerm::Jump(to) => *to = first[*to],
            NodeTerm::Cond { then, els, .. } => (*then, *els) = (first[*then], first[*els]),
            NodeTerm::Index { targets, .. } => targets.iter_mut().for_each(|to| *to = first[*to]),
            NodeTerm::Exit => {}
        }
        group(&mut out, n);
    }
    out
}

/// Lets a branch with many targets go to new nodes, each of which goes on to some of them.
fn group(nodes: &mut Vec<Node>, n: NodeId) {
    let NodeTerm::Index { index, base, shift: 0, targets } = &nodes[n].term else { return };
    if targets.len() <= 1 << GROUP_SHIFT {
        return;
    }
    let (index, base, targets) = (*index, *base, targets.clone());
    let (block, end) = (nodes[n].block, nodes[n].end);
    let mut groups = Vec::new();
    for (at, targets) in targets.chunks(1 << GROUP_SHIFT).enumerate() {
        groups.push(nodes.len());
        let base = base + ((at as u32) << GROUP_SHIFT);
        let term = NodeTerm::Index { index, base, shift: 0, targets: targets.to_vec() };
        nodes.push(Node { block, begin: end, end, joints: 0, together: false, term });
    }
    nodes[n].term = NodeTerm::Index { index, base, shift: GROUP_SHIFT, targets: groups };
}

/// Nodes in an order in which loops are contiguous and forward edges go forward (a weak topological order).
#[derive(Debug)]
pub(crate) struct Ordering {
    /// Nodes by position.
    pub(crate) nodes: Vec<NodeId>,
    /// Positions by node.
    pub(crate) position: Vec<usize>,
    /// Loops as first (header) and last position, outer before inner, in the order of the first.
    pub(crate) loops: Vec<(usize, usize)>,
    /// By node, the innermost loop that it is in.
    pub(crate) innermost: Vec<Option<(usize, usize)>>,
}

impl Ordering {
    /// Is the node in a loop?
    pub(crate) fn is_looped(&self, n: NodeId) -> bool {
        self.innermost[n].is_some()
    }
}

/// Loops nested deeper are refused (a hostile kernel; real ones have a handful).
const MAX_NESTING: usize = 200;

/// Orders the nodes; `None` if loops nest too deeply.
pub(crate) fn order(successors: &[Vec<NodeId>]) -> Option<Ordering> {
    let count = successors.len();
    let mut out = Ordering {
        nodes: Vec::with_capacity(count),
        position: vec![0; count],
        loops: Vec::new(),
        innermost: vec![None; count],
    };
    let all: Vec<NodeId> = (0..count).collect();
    let mut search = Search {
        member: vec![0; count],
        stamp: 0,
        index: vec![usize::MAX; count],
        low: vec![0; count],
        on_stack: vec![false; count],
    };
    emit(successors, &all, &mut search, 0, &mut out)?;
    for (at, &node) in out.nodes.iter().enumerate() {
        out.position[node] = at;
    }
    for &(begin, end) in &out.loops {
        out.nodes[begin..=end].iter().for_each(|&n| out.innermost[n] = Some((begin, end)));
    }
    Some(out)
}

/// What searches for components share, by node.
struct Search {
    /// The set that the node is in.
    member: Vec<usize>,
    stamp: usize,
    index: Vec<usize>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
}

/// Appends `set` in order: its strongly connected components in topological order, each header first, then the rest.
fn emit(
    successors: &[Vec<NodeId>],
    set: &[NodeId],
    search: &mut Search,
    depth: usize,
    out: &mut Ordering,
) -> Option<()> {
    if depth > MAX_NESTING {
        return None;
    }
    search.stamp += 1;
    let mine = search.stamp;
    for &n in set {
        search.member[n] = mine;
    }
    let components = components(successors, set, search, mine);
    for component in components {
        let header = *component.first()?;
        let cyclic = component.len() > 1 || successors[header].contains(&header);
        let begin = out.nodes.len();
        out.nodes.push(header);
        if cyclic {
            let slot = out.loops.len();
            out.loops.push((begin, begin));
            let rest: Vec<NodeId> = component.iter().copied().filter(|&n| n != header).collect();
            // The rest in an order that begins at the header's successors, so that inner headers are entries.
            let rest = reachable_first(successors, header, &rest);
            emit(successors, &rest, search, depth + 1, out)?;
            out.loops[slot].1 = out.nodes.len() - 1;
        }
    }
    Some(())
}

/// `rest` by breadth-first distance from `from`.
fn reachable_first(successors: &[Vec<NodeId>], from: NodeId, rest: &[NodeId]) -> Vec<NodeId> {
    let mut left: std::collections::HashSet<NodeId> = rest.iter().copied().collect();
    let mut queue = std::collections::VecDeque::from([from]);
    let mut sorted = Vec::with_capacity(rest.len());
    while let Some(n) = queue.pop_front() {
        for &s in &successors[n] {
            if left.remove(&s) {
                sorted.push(s);
                queue.push_back(s);
            }
        }
    }
    sorted
}

/// Tarjan's strongly connected components of the nodes in `set`, in topological order; no recursion.
fn components(successors: &[Vec<NodeId>], set: &[NodeId], search: &mut Search, mine: usize) -> Vec<Vec<NodeId>> {
    let Search { member, index, low, on_stack, .. } = search;
    for &n in set {
        index[n] = usize::MAX;
    }
    let mut stack = Vec::new();
    let mut found = Vec::new();
    let mut next = 0;
    for &root in set {
        if index[root] != usize::MAX {
            continue;
        }
        let mut work = vec![(root, 0)];
        while let Some(&mut (n, ref mut edge)) = work.last_mut() {
            if *edge == 0 {
                index[n] = next;
                low[n] = next;
                next += 1;
                stack.push(n);
                on_stack[n] = true;
            }
            if let Some(&s) = successors[n].get(*edge) {
                *edge += 1;
                if member[s] != mine {
                    continue;
                }
                if index[s] == usize::MAX {
                    work.push((s, 0));
                } else if on_stack[s] {
                    low[n] = low[n].min(index[s]);
                }
                continue;
            }
            work.pop();
            if let Some(&(parent, _)) = work.last() {
                low[parent] = low[parent].min(low[n]);
            }
            if low[n] == index[n] {
                let mut component = Vec::new();
                while let Some(m) = stack.pop() {
                    on_stack[m] = false;
                    component.push(m);
                    if m == n {
                        break;
                    }
                }
                component.reverse();
                found.push(component);
            }
        }
    }
    found.reverse();
    found
}
