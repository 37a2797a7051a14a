//! The kernel as nodes: blocks, cut so that every operation that joins the lanes of a warp or CTA begins a node.

use ptx::ir::{AtomOp, Inst, Kernel, Op, Operand, Order, PredRef, Term};

/// An index of a [`Node`].
pub(crate) type NodeId = usize;

/// How a node ends.
#[derive(Clone, Debug)]
pub(crate) enum NodeTerm {
    Jump(NodeId),
    Cond { p: PredRef, then: NodeId, els: NodeId },
    Index { index: Operand, targets: Vec<NodeId> },
    Exit,
}

/// A run of instructions of one block.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) block: usize,
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// Its first instruction is performed for all lanes of a warp (or the CTA) at once, whatever its guard: the branch
    /// to this node has taken care of that.
    pub(crate) sync: bool,
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
        &kernel.blocks[self.block].insts[self.begin + usize::from(self.sync)..self.end]
    }

    /// The operation that joins lanes, if the node begins with one.
    pub(crate) fn joint<'k>(&self, kernel: &'k Kernel) -> Option<&'k Inst> {
        self.sync.then(|| &kernel.blocks[self.block].insts[self.begin])
    }
}

/// Does the operation need lanes beyond its own?
fn joins_lanes(op: &Op) -> bool {
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
    )
}

/// Can a loop around this operation be waiting for another thread?
pub(crate) fn may_wait(op: &Op) -> bool {
    match op {
        Op::Ld { order, .. } => *order != Order::Weak,
        Op::Atom { op, dst, .. } => dst.is_some() && matches!(op, AtomOp::Cas | AtomOp::Exch),
        Op::Nanosleep { .. } => true,
        _ => false,
    }
}

/// Cuts the blocks of `kernel`; node 0 is the entry.
pub(crate) fn cut(kernel: &Kernel) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut first = Vec::with_capacity(kernel.blocks.len());
    for (index, block) in kernel.blocks.iter().enumerate() {
        first.push(nodes.len());
        let mut begin = 0;
        let mut sync = false;
        for (at, inst) in block.insts.iter().enumerate() {
            if !joins_lanes(&inst.op) {
                continue;
            }
            // The entry stays a node of its own, so that it has no joint operation.
            if at > begin || sync || nodes.is_empty() || inst.guard.is_some() {
                let next = nodes.len() + 1;
                let term = match inst.guard {
                    Some(p) => NodeTerm::Cond { p, then: next, els: next + 1 },
                    None => NodeTerm::Jump(next),
                };
                nodes.push(Node { block: index, begin, end: at, sync, term });
            }
            begin = at;
            sync = true;
            if inst.guard.is_some() {
                let next = nodes.len() + 1;
                nodes.push(Node { block: index, begin, end: at + 1, sync, term: NodeTerm::Jump(next) });
                begin = at + 1;
                sync = false;
            }
        }
        nodes.push(Node { block: index, begin, end: block.insts.len(), sync, term: NodeTerm::Exit });
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
                NodeTerm::Index { index: *index, targets: targets.iter().map(|t| first[t.0 as usize]).collect() }
            }
            Term::Exit => NodeTerm::Exit,
        };
    }
    nodes
}

/// Nodes in an order in which loops are contiguous and forward edges go forward (a weak topological order).
#[derive(Debug)]
pub(crate) struct Ordering {
    /// Nodes by position.
    pub(crate) nodes: Vec<NodeId>,
    /// Positions by node.
    pub(crate) position: Vec<usize>,
    /// Loops as first (header) and last position, outer before inner.
    pub(crate) loops: Vec<(usize, usize)>,
}

/// Loops nested deeper are refused (a hostile kernel; real ones have a handful).
const MAX_NESTING: usize = 200;

/// Orders the nodes; `None` if loops nest too deeply.
pub(crate) fn order(successors: &[Vec<NodeId>]) -> Option<Ordering> {
    let count = successors.len();
    let mut out = Ordering { nodes: Vec::with_capacity(count), position: vec![0; count], loops: Vec::new() };
    let all: Vec<NodeId> = (0..count).collect();
    let mut member = vec![0_usize; count];
    let mut stamp = 0;
    emit(successors, &all, &mut member, &mut stamp, 0, &mut out)?;
    for (at, &node) in out.nodes.iter().enumerate() {
        out.position[node] = at;
    }
    Some(out)
}

/// Appends `set` in order: its strongly connected components in topological order, each header first, then the rest.
fn emit(
    successors: &[Vec<NodeId>],
    set: &[NodeId],
    member: &mut [usize],
    stamp: &mut usize,
    depth: usize,
    out: &mut Ordering,
) -> Option<()> {
    if depth > MAX_NESTING {
        return None;
    }
    *stamp += 1;
    let mine = *stamp;
    for &n in set {
        member[n] = mine;
    }
    let components = components(successors, set, &|n| member[n] == mine);
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
            emit(successors, &rest, member, stamp, depth + 1, out)?;
            out.loops[slot].1 = out.nodes.len() - 1;
            for &n in set {
                member[n] = mine;
            }
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
fn components(successors: &[Vec<NodeId>], set: &[NodeId], inside: &dyn Fn(NodeId) -> bool) -> Vec<Vec<NodeId>> {
    let count = successors.len();
    let mut index = vec![usize::MAX; count];
    let mut low = vec![0; count];
    let mut on_stack = vec![false; count];
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
                if !inside(s) {
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
