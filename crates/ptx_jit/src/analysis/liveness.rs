//! Which registers are live where, and post-dominators.

use ptx::ir::{Kernel, Operand, Reg};

use super::graph::{Node, NodeId, NodeTerm};
use super::operands;

/// A set of registers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RegSet(Vec<u64>);

impl RegSet {
    pub(crate) fn new(regs: usize) -> RegSet {
        RegSet(vec![0; regs.div_ceil(64)])
    }
    pub(crate) fn insert(&mut self, r: Reg) -> bool {
        let (word, bit) = (r.0 as usize / 64, 1 << (r.0 % 64));
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }
    pub(crate) fn remove(&mut self, r: Reg) -> bool {
        let had = self.contains(r);
        self.0[r.0 as usize / 64] &= !(1 << (r.0 % 64));
        had
    }
    pub(crate) fn contains(&self, r: Reg) -> bool {
        self.0[r.0 as usize / 64] >> (r.0 % 64) & 1 != 0
    }
    /// Adds all of `other`; true if that changed something.
    pub(crate) fn add(&mut self, other: &RegSet) -> bool {
        let mut changed = false;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            changed |= *b & !*a != 0;
            *a |= b;
        }
        changed
    }
    pub(crate) fn and(&self, other: &RegSet) -> RegSet {
        RegSet(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect())
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = Reg> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            (0..64_u32).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| Reg(word as u32 * 64 + bit))
        })
    }
}

/// Per node: registers live at its beginning, read before written, and written.
#[derive(Debug)]
pub(crate) struct Liveness {
    pub(crate) live_in: Vec<RegSet>,
    pub(crate) exposed: Vec<RegSet>,
    pub(crate) defined: Vec<RegSet>,
}

/// Computes liveness of `nodes`, given in `order`.
pub(crate) fn liveness(kernel: &Kernel, nodes: &[Node], order: &[NodeId]) -> Liveness {
    let regs = kernel.regs.len();
    let mut exposed = Vec::with_capacity(nodes.len());
    let mut killed = Vec::with_capacity(nodes.len());
    let mut defined = Vec::with_capacity(nodes.len());
    for node in nodes {
        let (mut exp, mut kill, mut def) = (RegSet::new(regs), RegSet::new(regs), RegSet::new(regs));
        for (at, inst) in kernel.blocks[node.block].insts[node.begin..node.end].iter().enumerate() {
            let joint = node.sync && at == 0;
            operands::inst_reads(inst, &mut |r| {
                if !kill.contains(r) {
                    exp.insert(r);
                }
            });
            for r in operands::writes(&inst.op) {
                // A guarded write keeps the old value in some lanes.
                if inst.guard.is_some() && !joint {
                    if !kill.contains(r) {
                        exp.insert(r);
                    }
                } else {
                    kill.insert(r);
                }
                def.insert(r);
            }
        }
        let mut read = |r: Reg| {
            if !kill.contains(r) {
                exp.insert(r);
            }
        };
        match &node.term {
            NodeTerm::Cond { p, .. } => read(p.reg),
            NodeTerm::Index { index: Operand::Reg(r), .. } => read(*r),
            _ => {}
        }
        exposed.push(exp);
        killed.push(kill);
        defined.push(def);
    }
    let mut live_in = exposed.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for &n in order.iter().rev() {
            for s in nodes[n].successors() {
                let mut through = live_in[s].clone();
                for (a, k) in through.0.iter_mut().zip(&killed[n].0) {
                    *a &= !k;
                }
                changed |= live_in[n].add(&through);
            }
        }
    }
    Liveness { live_in, exposed, defined }
}

/// Immediate post-dominators; `None` where only the end of the thread post-dominates (or an endless loop).
pub(crate) fn post_dominators(successors: &[Vec<NodeId>], order: &[NodeId]) -> Vec<Option<NodeId>> {
    let count = successors.len();
    let exit = count;
    // Reverse post-order of the reversed graph, by depth-first search from the exits.
    let mut predecessors = vec![Vec::new(); count];
    for (n, list) in successors.iter().enumerate() {
        for &s in list {
            predecessors[s].push(n);
        }
    }
    let mut number = vec![usize::MAX; count + 1];
    let mut finished = Vec::with_capacity(count);
    let mut seen = vec![false; count];
    for &root in order.iter().filter(|&&n| successors[n].is_empty()) {
        let mut work = vec![(root, 0)];
        seen[root] = true;
        while let Some(&mut (n, ref mut edge)) = work.last_mut() {
            if let Some(&p) = predecessors[n].get(*edge) {
                *edge += 1;
                if !seen[p] {
                    seen[p] = true;
                    work.push((p, 0));
                }
            } else {
                finished.push(n);
                work.pop();
            }
        }
    }
    finished.push(exit);
    finished.reverse();
    for (at, &n) in finished.iter().enumerate() {
        number[n] = at;
    }
    let mut parent = vec![usize::MAX; count + 1];
    parent[exit] = exit;
    let mut changed = true;
    while changed {
        changed = false;
        for &n in &finished[1..] {
            let mut best = if successors[n].is_empty() { exit } else { usize::MAX };
            for &s in &successors[n] {
                if number[s] == usize::MAX || parent[s] == usize::MAX {
                    continue;
                }
                if best == usize::MAX {
                    best = s;
                    continue;
                }
                let (mut a, mut b) = (s, best);
                while a != b {
                    while number[a] > number[b] {
                        a = parent[a];
                    }
                    while number[b] > number[a] {
                        b = parent[b];
                    }
                }
                best = a;
            }
            if best != usize::MAX && parent[n] != best {
                parent[n] = best;
                changed = true;
            }
        }
    }
    (0..count).map(|n| (parent[n] < count).then_some(parent[n])).collect()
}
