//! Which registers are live where.

use ptx::ir::{Kernel, Operand, Reg};

use super::graph::{Node, NodeId, NodeTerm};
use super::operands;
use super::regset::RegSet;

/// Per node: registers live at its beginning, read before written, and written.
#[derive(Debug)]
pub(crate) struct Liveness {
    pub(crate) live_in: Vec<RegSet>,
    pub(crate) exposed: Vec<RegSet>,
    pub(crate) defined: Vec<RegSet>,
}

/// What a node reads before it writes it, what it writes for sure, and what it may write.
fn node_sets(kernel: &Kernel, node: &Node) -> [RegSet; 3] {
    let [mut exposed, mut killed, mut defined] = [(); 3].map(|()| RegSet::default());
    for (at, inst) in kernel.blocks[node.block].insts[node.begin..node.end].iter().enumerate() {
        let joint = at < node.joints;
        operands::inst_reads(inst, &mut |r| {
            if !killed.contains(r) {
                exposed.insert(r);
            }
        });
        for r in operands::writes(&inst.op) {
            // A guarded write keeps the old value in some lanes.
            if inst.guard.is_some() && !joint {
                if !killed.contains(r) {
                    exposed.insert(r);
                }
            } else {
                killed.insert(r);
            }
            defined.insert(r);
        }
    }
    let mut read = |r: Reg| {
        if !killed.contains(r) {
            exposed.insert(r);
        }
    };
    match &node.term {
        NodeTerm::Cond { p, .. } => read(p.reg),
        NodeTerm::Index { index: Operand::Reg(r), .. } => read(*r),
        _ => {}
    }
    [exposed, killed, defined]
}

/// Computes liveness of `nodes`, given in `order`.
pub(crate) fn liveness(kernel: &Kernel, nodes: &[Node], order: &[NodeId]) -> Liveness {
    let mut exposed = Vec::with_capacity(nodes.len());
    let mut killed = Vec::with_capacity(nodes.len());
    let mut defined = Vec::with_capacity(nodes.len());
    for node in nodes {
        let [exp, kill, def] = node_sets(kernel, node);
        exposed.push(exp);
        killed.push(kill);
        defined.push(def);
    }
    let mut live_in = exposed.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for &n in order.iter().rev() {
            let mut mine = std::mem::take(&mut live_in[n]);
            for s in nodes[n].successors() {
                if s != n {
                    changed |= mine.add_but(&live_in[s], &killed[n]);
                }
            }
            live_in[n] = mine;
        }
    }
    Liveness { live_in, exposed, defined }
}
