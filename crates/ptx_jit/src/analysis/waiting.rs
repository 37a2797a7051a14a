//! Loops in which a thread may be waiting for another one.
//!
//! Such a loop gives way now and then, to other lanes, warps and CTAs. What counts: reading memory in a way that shows what
//! others write (volatile or stronger, an atomic with a result, a weak load in a loop with a fence, a barrier or another
//! operation that lanes meet at). For the
//! plainest signs of waiting (volatile loads, exchanges, sleeping) it is enough that they are there; for what loops do for
//! other reasons, too, whether the loop goes on must depend on the value read.

use std::collections::HashSet;

use ptx::ir::{AtomOp, Inst, Kernel, Op, Operand, Order, Reg, Space};

use texture::Access;

use super::graph::{self, Node, NodeId, NodeTerm, Ordering};
use super::{PATIENCE, operands};

/// Rounds until a dependence that still grows is taken for granted.
const MAX_ROUNDS: usize = 6;

/// Is a loop with this operation taken to wait?
fn waits(op: &Op) -> bool {
    match op {
        Op::Ld { order, .. } => *order != Order::Weak,
        Op::Atom { op, dst, .. } => dst.is_some() && matches!(op, AtomOp::Cas | AtomOp::Exch),
        Op::Nanosleep { .. } => true,
        _ => false,
    }
}

/// What shows the operation of others' writes, in a loop with a fence or without.
fn looks(op: &Op, fenced: bool) -> bool {
    match op {
        Op::Atom { dst, .. } => dst.is_some(),
        Op::LdMatrix { .. } => true,
        Op::Image { access: Access::Load { .. }, .. } => fenced,
        Op::Ld { space: Space::Global | Space::Generic | Space::Shared, .. } => fenced,
        _ => false,
    }
}

fn fences(op: &Op) -> bool {
    matches!(op, Op::Fence) || graph::joins_lanes(op)
}

/// Does it keep something in memory?
fn stores(op: &Op) -> bool {
    match op {
        Op::St { .. } | Op::Atom { .. } | Op::StMatrix { .. } | Op::Transfer { .. } => true,
        Op::Image { access, .. } => access.writes(),
        _ => false,
    }
}

/// Searches for what branches decide, over all loops.
struct Sides {
    /// By node, the search that has seen it last.
    seen: Vec<usize>,
    stamp: usize,
    /// Instructions that may still be looked at; when there are none left, loops are taken to wait.
    patience: usize,
}

/// The kernel's loops and what is in them.
struct Loops<'a> {
    kernel: &'a Kernel,
    nodes: &'a [Node],
    successors: &'a [Vec<NodeId>],
    ordering: &'a Ordering,
    post: &'a [Option<NodeId>],
}

/// By node: is it the header of such a loop?
pub(crate) fn headers(
    kernel: &Kernel,
    nodes: &[Node],
    successors: &[Vec<NodeId>],
    ordering: &Ordering,
    post: &[Option<NodeId>],
) -> Vec<bool> {
    let all = Loops { kernel, nodes, successors, ordering, post };
    let mut sides = Sides { seen: vec![0; nodes.len()], stamp: 0, patience: PATIENCE };
    let mut header = vec![false; nodes.len()];
    // Positions whose waiting an inner loop accounts for.
    let mut settled = vec![false; nodes.len()];
    // Inner loops first.
    for &(begin, end) in ordering.loops.iter().rev() {
        if all.plain(begin, end, &settled) || all.depends(begin, end, &settled, &mut sides) {
            header[ordering.nodes[begin]] = true;
            settled[begin..=end].fill(true);
        }
    }
    header
}

impl Loops<'_> {
    /// The instructions of the nodes at these positions, joint ones included.
    fn insts(&self, begin: usize, end: usize) -> impl Iterator<Item = (usize, &Inst)> {
        (begin..=end).flat_map(move |at| {
            let node = &self.nodes[self.ordering.nodes[at]];
            self.kernel.blocks[node.block].insts[node.begin..node.end].iter().map(move |inst| (at, inst))
        })
    }

    /// Is there a plain sign of waiting?
    fn plain(&self, begin: usize, end: usize, settled: &[bool]) -> bool {
        self.insts(begin, end).any(|(at, inst)| !settled[at] && waits(&inst.op))
    }

    /// Does it depend on what others write whether the loop goes on?
    fn depends(&self, begin: usize, end: usize, settled: &[bool], sides: &mut Sides) -> bool {
        let fenced = self.insts(begin, end).any(|(_, inst)| fences(&inst.op));
        let mut seen: HashSet<Reg> = HashSet::new();
        for (_, inst) in self.insts(begin, end).filter(|(at, inst)| !settled[*at] && looks(&inst.op, fenced)) {
            seen.extend(operands::writes(&inst.op));
        }
        if seen.is_empty() {
            return false;
        }
        let inside = |n: NodeId| (begin..=end).contains(&self.ordering.position[n]);
        let mut kept = false;
        for _ in 0..MAX_ROUNDS {
            let before = (seen.len(), kept);
            for (_, inst) in self.insts(begin, end) {
                let mut reads = false;
                operands::inst_reads(inst, &mut |r| reads |= seen.contains(&r));
                // What is kept in memory, of which some may be the thread's own in any space.
                kept |= reads && stores(&inst.op);
                let from_memory =
                    matches!(inst.op, Op::Ld { space, .. } if !matches!(space, Space::Const | Space::Param));
                if reads || kept && from_memory {
                    seen.extend(operands::writes(&inst.op));
                }
            }
            for at in begin..=end {
                let n = self.ordering.nodes[at];
                let decides = match &self.nodes[n].term {
                    NodeTerm::Cond { p, .. } => seen.contains(&p.reg),
                    NodeTerm::Index { index: Operand::Reg(r), .. } => seen.contains(r),
                    _ => false,
                };
                if !decides {
                    continue;
                }
                if self.successors[n].iter().any(|&s| !inside(s)) {
                    return true;
                }
                kept |= self.decided(n, &inside, &mut seen, sides);
                if sides.patience == 0 {
                    return true;
                }
            }
            if (seen.len(), kept) == before {
                return false;
            }
        }
        true
    }

    /// Adds what is written on the sides of the branch at the end of `n`; is anything stored there?
    fn decided(&self, n: NodeId, inside: &dyn Fn(NodeId) -> bool, seen: &mut HashSet<Reg>, sides: &mut Sides) -> bool {
        let mut stored = false;
        sides.stamp += 1;
        sides.seen[n] = sides.stamp;
        let mut work = self.successors[n].clone();
        while let Some(side) = work.pop() {
            if self.post[n] == Some(side) || !inside(side) || sides.seen[side] == sides.stamp {
                continue;
            }
            sides.seen[side] = sides.stamp;
            let node = &self.nodes[side];
            sides.patience = sides.patience.saturating_sub(1 + node.end - node.begin);
            if sides.patience == 0 {
                break;
            }
            for inst in &self.kernel.blocks[node.block].insts[node.begin..node.end] {
                stored |= stores(&inst.op);
                seen.extend(operands::writes(&inst.op));
            }
            work.extend(&self.successors[side]);
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::classes::Shape;
    use crate::analysis::plan;

    /// Loops that wait, and loops that look like it.
    #[test]
    fn loops_wait_for_what_others_write() {
        let looped = |body: &str| format!("LOOP: {body} @%p0 bra LOOP;");
        let test = "setp.eq.u32 %p0, %r1, 0;";
        let counted = "add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 9;";
        let mut cases: Vec<(String, usize)> = Vec::new();
        for look in [
            "ld.volatile.global.u32 %r1, [%rd0];",
            "ld.acquire.gpu.global.u32 %r1, [%rd0];",
            "atom.global.cas.b32 %r1, [%rd0], 0, 1;",
            "atom.global.add.u32 %r1, [%rd0], 0;",
            "atom.global.or.b32 %r1, [%rd0], 0;",
            "atom.global.max.s32 %r1, [%rd0], 0;",
            "atom.acquire.gpu.global.and.b32 %r1, [%rd0], -1;",
            "ld.global.u32 %r1, [%rd0]; membar.gl;",
            "ld.shared.u32 %r1, [s]; bar.warp.sync 0xffffffff;",
            "ld.u32 %r1, [%rd0]; bar.sync 0;",
        ] {
            cases.push((looped(&format!("{look} {test}")), 1));
            // By way of a sum, a branch, and the thread's own memory.
            cases.push((looped(&format!("{look} add.u32 %r3, %r1, %r3; setp.lt.u32 %p0, %r3, 5;")), 1));
            cases.push((
                looped(&format!(
                    "{look} setp.eq.u32 %p1, %r1, 0; @%p1 bra ON; mov.u32 %r4, 1; st.global.u32 [%rd0], 1;\n\
                                 ON: setp.eq.u32 %p0, %r4, 0;"
                )),
                1,
            ));
            cases.push((
                looped(&format!("{look} st.local.u32 [l], %r1; ld.local.u32 %r4, [l]; setp.eq.u32 %p0, %r4, 0;")),
                1,
            ));
        }
        for body in [
            // A place in a list, a counter, what one reads but does not wait for.
            "atom.global.add.u32 %r1, [%rd0], 1; st.global.u32 [%rd0+4], %r1;",
            "atom.global.add.u32 %r1, [%rd0], 1; setp.lt.u32 %p1, %r1, 8; @%p1 st.global.u32 [%rd0+4], %r1;",
            "red.global.add.u32 [%rd0], 1;",
            "ld.global.u32 %r1, [%rd0]; membar.gl; st.global.u32 [%rd0], %r1;",
            "ld.shared.u32 %r1, [s]; bar.sync 0; st.global.u32 [%rd0], %r1;",
        ] {
            cases.push((looped(&format!("{body} {counted}")), 0));
        }
        cases.push((looped(&format!("ld.global.u32 %r1, [%rd0]; {test}")), 0));
        // A word of the thread's own that is written where the value read has not come, in every space.
        for (space, word) in [("local", "l"), ("shared", "s+4"), ("global", "%rd0+8")] {
            cases.push((
                looped(&format!(
                    "atom.global.add.u32 %r1, [%rd0], 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra ON; st.{space}.u32 [{word}], 1;\n\
                     ON: ld.{space}.u32 %r4, [{word}]; setp.eq.u32 %p0, %r4, 0;"
                )),
                1,
            ));
        }
        // Lanes that meet show one another what they have written.
        for meeting in [
            "vote.sync.any.pred %p2, %p1, -1;",
            "match.any.sync.b32 %r5, %r2, -1;",
            "redux.sync.add.u32 %r5, %r2, -1;",
            "shfl.sync.idx.b32 %r5, %r2, 0, 31, -1;",
        ] {
            cases.push((looped(&format!("{meeting} ld.global.u32 %r1, [%rd0]; {test}")), 1));
        }
        for (body, want) in cases {
            let text = format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
                 .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>; .shared .b32 s[2]; .local .b32 l;\n\
                 ld.param.u64 %rd0, [a]; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0;\n{body}\nret;\n}}\n"
            );
            let program = ptx::Program::parse(text.as_bytes()).unwrap();
            let kernel = program.lower(0, &|_| None).unwrap();
            let plan = plan(&kernel, Shape { block: [128, 1, 1], lanes: 8 }, 1000).unwrap();
            assert_eq!(plan.regions.iter().filter(|r| r.waits).count(), want, "{body}");
        }
    }
}
