//! How many lanes a chunk has.
//!
//! What is done once per chunk, scalar operations, checks of addresses, branches, costs least with many lanes. But the
//! values of all lanes have to find room in the processor's registers, lanes that branch apart make all of them slow, and
//! code is there once for every four lanes, so that a large kernel takes too long to compile with many.
//!
//! Where lanes read memory each at places of its own, in loops that each leaves when it is done, a chunk is one lane: all is scalar,
//! nothing is masked, and each lane takes the trips that it needs.

use std::collections::HashSet;

use ptx::ir::{Inst, IntOp, IntUnOp, Kernel, Op, Operand, RegTy, Space, Ty};

use super::classes::{self, Class, Shape};
use super::dominators::post_dominators;
use super::graph::{Node, NodeId, NodeTerm};
use super::regset::RegSet;
use super::{Plan, lockstep, operands, plan};

/// Instructions times lanes from which on time to compile counts more than time to run.
const LARGE: usize = 16_000;
/// Kernels of so many instructions have regions of any size, which take longer to compile.
const ORDINARY: usize = 200;
/// In larger ones, vector instructions of a region, about.
pub(crate) const REGION: usize = 512;
/// Vector registers of the processor.
const VECTORS: usize = 16;

/// Analyses the kernel for chunks of as many lanes as are good for it.
///
/// Regions have about `region` vector instructions at most. Lanes run one after another where that is good, or, if `alone` asks for
/// it, wherever they may.
pub(crate) fn plan_widest(kernel: &Kernel, block: [u32; 3], region: usize, alone: bool) -> Result<Plan, String> {
    if alone && let Some(plan) = self::alone(kernel, block, region) {
        return Ok(plan);
    }
    let instructions = kernel.blocks.iter().map(|block| block.insts.len()).sum::<usize>();
    let threads: u32 = block.iter().product();
    let small = |lanes: u32| instructions * lanes as usize <= LARGE;
    for lanes in [32, 16] {
        let shape = Shape { block, lanes };
        if small(lanes) && threads >= lanes && shape.rowed() {
            let plan = plan(kernel, shape, limit(region, lanes))?;
            if stays_together(kernel, &plan) && finds_room(kernel, &plan) {
                return Ok(plan);
            }
        }
    }
    let lanes = if small(8) && threads > 4 { 8 } else { 4 };
    let plan = plan(kernel, Shape { block, lanes }, limit(region, lanes))?;
    if gathers_apart(kernel, &plan)
        && let Some(alone) = self::alone(kernel, block, region)
    {
        return Ok(alone);
    }
    Ok(plan)
}

/// Where at least one instruction of so many, in a loop that lanes leave one by one, reads memory at a place of each lane's own, lanes
/// are better run one after another: addresses are taken out of vectors and elements put into them one by one anyway, and lanes
/// that have left the loop cost as much as the others.
const GATHERING: usize = 6;

/// Is there such a loop?
fn gathers_apart(kernel: &Kernel, plan: &Plan) -> bool {
    let position = |n: NodeId| plan.ordering.position[n];
    plan.ordering.loops.iter().any(|&(begin, end)| {
        let inside = |n: NodeId| (begin..=end).contains(&position(n));
        let nodes = &plan.ordering.nodes[begin..=end];
        let parts =
            nodes.iter().any(|&n| plan.divergent[n] && plan.nodes[n].successors().into_iter().any(|s| !inside(s)));
        let insts = || nodes.iter().flat_map(|&n| plan.nodes[n].body(kernel));
        let own = |o: Operand| classes::operand(&plan.classes, o) == Class::Varying;
        let gathers = insts().filter(|inst| matches!(&inst.op, Op::Ld { addr, .. } if own(addr.base))).count();
        parts && gathers * GATHERING >= insts().count()
    })
}

/// The plan for chunks of one lane, each of whose registers is a scalar; none if what the kernel does needs vectors, or lanes that
/// are run together.
fn alone(kernel: &Kernel, block: [u32; 3], region: usize) -> Option<Plan> {
    let fine = |inst: &Inst| match &inst.op {
        Op::Ld { space, .. } | Op::St { space, .. } => *space != Space::Local,
        Op::Special { .. } | Op::Cvta { .. } | Op::Cvt { .. } | Op::Mov { .. } | Op::Selp { .. } | Op::Setp { .. } => {
            true
        }
        Op::Int { .. } | Op::IntUn { .. } | Op::Mul { .. } | Op::Mad { .. } => true,
        Op::Float { .. } | Op::FloatUn { .. } | Op::Fma { .. } => true,
        _ => false,
    };
    let shape = Shape { block, lanes: 1 };
    let wide = kernel.regs.contains(&RegTy::B128);
    if kernel.local_bytes > 0 || wide || !kernel.blocks.iter().flat_map(|block| &block.insts).all(fine) {
        return None;
    }
    if lockstep::cuts(kernel, shape).count() > 0 {
        return None;
    }
    let plan = plan(kernel, shape, limit(region, 1)).ok()?;
    let scalar = plan.classes.iter().all(|class| *class == Class::Same);
    (scalar && !plan.regions.iter().any(|region| region.waits)).then_some(plan)
}

/// Vector instructions of a region, for a kernel of so many instructions.
pub(crate) fn region(instructions: usize) -> usize {
    if instructions <= ORDINARY { usize::MAX } else { REGION }
}

/// Most instructions of a region.
fn limit(region: usize, lanes: u32) -> usize {
    if region == usize::MAX { usize::MAX } else { (region * 4 / lanes as usize).max(1) }
}

/// Do lanes part only where an index meets bounds, that is in few chunks of many, or for a short while?
fn stays_together(kernel: &Kernel, plan: &Plan) -> bool {
    let parting = parting(kernel, &plan.classes);
    let branches = plan.nodes.iter().enumerate().filter(|&(n, _)| plan.divergent[n]);
    let mut apart =
        branches.filter(|(_, node)| !matches!(&node.term, NodeTerm::Cond { p, .. } if !parting.contains(p.reg)));
    let Some(first) = apart.next() else { return true };
    let successors: Vec<Vec<NodeId>> = plan.nodes.iter().map(Node::successors).collect();
    let post = post_dominators(&successors);
    let all: usize = plan.nodes.iter().map(length).sum();
    // What stands on the sides of all such branches runs masked, which is slow, but once and no more.
    let mut left = all / SHORT_PART;
    std::iter::once(first).chain(apart).all(|(n, _)| {
        let found = once_apart(plan, &successors, n, post[n], left);
        left -= found.unwrap_or(0);
        found.is_some()
    })
}

/// Lanes that part for at most one instruction of so many stay together.
const SHORT_PART: usize = 8;

/// Instructions of a node, with the one that ends it: no way through a kernel is for nothing, here either.
fn length(node: &Node) -> usize {
    node.end - node.begin + 1
}

/// Instructions that lanes which part at the end of `branch` run until they meet at `meeting`, if these are `most` at most, and if
/// no loop is around them or among them.
fn once_apart(
    plan: &Plan,
    successors: &[Vec<NodeId>],
    branch: NodeId,
    meeting: Option<NodeId>,
    most: usize,
) -> Option<usize> {
    let meeting = meeting?;
    let looped = |n: NodeId| plan.ordering.is_looped(n);
    let (mut seen, mut work, mut found) = (HashSet::from([meeting, branch]), successors[branch].clone(), 0);
    if looped(branch) {
        return None;
    }
    while let Some(n) = work.pop() {
        if !seen.insert(n) {
            continue;
        }
        found += length(&plan.nodes[n]);
        if found > most || looped(n) || plan.nodes[n].joints > 0 {
            return None;
        }
        work.extend(&successors[n]);
    }
    Some(found)
}

/// Predicates that are not the same in all lanes, nor comparisons of indices with bounds, nor made of such only.
fn parting(kernel: &Kernel, classes: &[Class]) -> RegSet {
    let insts = || kernel.blocks.iter().flat_map(|block| &block.insts);
    let mut parting = RegSet::default();
    // What is made of predicates that part, parts; which may be found out against the order of the text.
    loop {
        let mut changed = false;
        for inst in insts() {
            for r in operands::writes(&inst.op) {
                if kernel.regs[r.0 as usize] == RegTy::Pred
                    && classes[r.0 as usize] == Class::Varying
                    && !parting.contains(r)
                    && !(classes::bound(inst, r, classes).is_some() || is_made_of_others(kernel, inst, &parting))
                {
                    changed |= parting.insert(r);
                }
            }
        }
        if !changed {
            return parting;
        }
    }
}

/// Does the instruction combine predicates, none of which is one of `parting`?
fn is_made_of_others(kernel: &Kernel, inst: &Inst, parting: &RegSet) -> bool {
    let mut fine = matches!(
        &inst.op,
        Op::Int { op: IntOp::And | IntOp::Or | IntOp::Xor, ty: Ty::Pred, .. }
            | Op::IntUn { op: IntUnOp::Not, ty: Ty::Pred, .. }
            | Op::Mov { ty: Ty::Pred, .. }
    );
    operands::inst_reads(inst, &mut |r| fine &= kernel.regs[r.0 as usize] == RegTy::Pred && !parting.contains(r));
    fine
}

/// Scalar instructions of a chunk, about: of all, and of each access to memory.
const OF_CHUNK: usize = 32;
const OF_ACCESS: usize = 12;
/// Instructions for a vector that finds no register at one time, about.
const OF_SPILL: usize = 6;

/// Do the values of a chunk's lanes find room in registers? Outside of loops not all have to, if that costs less in all than what is done
/// once per chunk and would be done twice for chunks of half the lanes.
fn finds_room(kernel: &Kernel, plan: &Plan) -> bool {
    let vectors = plan.lanes() as usize / 4;
    let (mut price, mut saved) = (0, 0);
    for region in &plan.regions {
        let touched = region.touched(&plan.live);
        saved += OF_CHUNK;
        for &n in &region.nodes {
            let missing = (pressure(kernel, plan, n, &touched) * vectors).saturating_sub(VECTORS);
            let looped = plan.ordering.is_looped(n);
            if looped && missing > 0 {
                return false;
            }
            let accesses = plan.nodes[n].body(kernel).iter().filter(|inst| match &inst.op {
                Op::Ld { space, .. } | Op::St { space, .. } => *space != Space::Param,
                _ => false,
            });
            saved += if looped { 0 } else { OF_ACCESS * accesses.count() };
            price += missing * OF_SPILL;
        }
    }
    price <= saved
}

/// Most values of a lane, in units of 32 bits, that are alive at once in a node, of registers that its region touches: others stay in the
/// frame.
fn pressure(kernel: &Kernel, plan: &Plan, n: NodeId, touched: &RegSet) -> usize {
    let size = |r: ptx::ir::Reg| match (plan.classes[r.0 as usize], kernel.regs[r.0 as usize]) {
        (Class::Varying, RegTy::B128) => 4,
        (Class::Varying, RegTy::B64) => 2,
        (Class::Varying, _) => 1,
        _ => 0,
    };
    let node = &plan.nodes[n];
    let mut live = RegSet::default();
    for s in node.successors() {
        live.add(&plan.live.live_in[s].and(touched));
    }
    let mut now: usize = live.iter().map(size).sum();
    let mut most = now;
    for inst in node.body(kernel).iter().rev() {
        if inst.guard.is_none() {
            for r in operands::writes(&inst.op) {
                now -= if live.remove(r) { size(r) } else { 0 };
            }
        }
        operands::inst_reads(inst, &mut |r| now += if live.insert(r) { size(r) } else { 0 });
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn lanes(text: &str, name: &str, block: [u32; 3]) -> u32 {
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = program.lower(program.find_entry(name).unwrap(), &|_| None).unwrap();
        plan_widest(&kernel, block, usize::MAX, false).unwrap().lanes()
    }

    /// Bounds in two directions do not part lanes for long, nor does a short branch behind much that they do together.
    #[test]
    fn kernels_get_chunks_that_are_good_for_them() {
        let text = include_str!("../../../sundial/kernels/engine.ptx");
        for (name, block, want) in [
            ("saxpy", [256, 1, 1], 32),
            ("stencil", [32, 8, 1], 32),
            ("radix_scatter", [256, 1, 1], 32),
            ("divergent", [128, 1, 1], 8),
            ("spmv", [128, 1, 1], 1),
        ] {
            assert_eq!(lanes(text, name, block), want, "{name}");
        }
    }

    /// Arrays whose strides are parameters, as Numba and CuPy pass them: indices and addresses are no values of each lane's own, and chunks as wide
    /// as if they were known.
    #[test]
    fn strides_that_are_parameters_are_no_gathers() {
        let kernel = |body: &str| {
            format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 s, .param .u64 n) {{\n\
                 .reg .b64 %rd<20>; .reg .b32 %r<8>; .reg .pred %p<4>; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [s]; ld.param.u64 %rd2, [n];\n\
                 mov.u32 %r0, %tid.x; cvt.u64.u32 %rd3, %r0; mov.u32 %r1, %ntid.x; mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd4, %r1, %r2;\n\
                 add.s64 %rd5, %rd4, %rd3; setp.ge.s64 %p0, %rd5, %rd2; @%p0 bra END;\n{body}\nEND: ret; }}\n"
            )
        };
        let products = "mad.lo.s64 %rd6, %rd1, %rd5, %rd0; ld.b32 %r3, [%rd6]; add.u32 %r3, %r3, 1; mad.lo.s64 %rd7, %rd5, %rd1, %rd2; st.b32 [%rd7], %r3;";
        let halves = "mul.lo.s64 %rd6, %rd1, %rd5; shl.b64 %rd7, %rd6, 32; mul.lo.s64 %rd8, %rd1, %rd4; shl.b64 %rd9, %rd8, 32;\n\
                      LOOP: shr.s64 %rd10, %rd7, 32; add.s64 %rd11, %rd0, %rd10; ld.global.b32 %r3, [%rd11]; add.u32 %r3, %r3, 1; st.global.b32 [%rd11+64], %r3;\n\
                      add.s64 %rd7, %rd7, %rd9; add.s64 %rd5, %rd5, %rd4; setp.lt.s64 %p1, %rd5, %rd2; @%p1 bra LOOP;";
        for (body, classes) in [(products, (2, 0)), (halves, (2, 2))] {
            let program = ptx::Program::parse(kernel(body).as_bytes()).unwrap();
            let kernel = super::super::ranges::split(Arc::new(program.lower(0, &|_| None).unwrap()));
            let plan = plan_widest(&kernel, [128, 1, 1], usize::MAX, false).unwrap();
            let count = |class: Class| plan.classes.iter().filter(|&&of| of == class).count();
            assert_eq!(
                (plan.lanes(), count(Class::Linear), count(Class::Extended)),
                (32, classes.0, classes.1),
                "{body}"
            );
        }
    }

    /// A loop with a gather for a row of each lane, and what keeps lanes from being run one after another.
    #[test]
    fn lanes_run_alone_only_where_nobody_can_tell() {
        let kernel = |before: &str, inside: &str| {
            format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b) {{\n\
                 .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<4>; \n\
                 ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4;\n\
                 add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2; ld.global.u32 %r1, [%rd3]; {before}\n\
                 LOOP: mul.wide.u32 %rd5, %r1, 4; add.s64 %rd6, %rd0, %rd5; ld.global.u32 %r1, [%rd6]; {inside}\n\
                 setp.ne.u32 %p0, %r1, 0; @%p0 bra LOOP; st.global.u32 [%rd4], %r1; ret; }}\n"
            )
        };
        let many = "add.u32 %r2, %r2, %r1;".repeat(12);
        let cases = [
            ("", "", 1),
            ("", "st.global.u32 [%rd4], %r1;", 1),
            ("", "mov.u32 %r3, %laneid; add.u32 %r2, %r2, %r3;", 1),
            // Few gathers; atomics, whose results differ; memory of each thread's own; a store that others might read; barriers.
            ("", many.as_str(), 8),
            ("", "atom.global.add.u32 %r2, [%rd4], 1;", 8),
            (".local .b32 l;", "st.local.u32 [l], %r1;", 8),
            ("", "st.global.u32 [%rd3], %r1;", 8),
            ("bar.sync 0;", "", 8),
            ("activemask.b32 %r3;", "", 8),
        ];
        for (before, inside, want) in cases {
            assert_eq!(lanes(&kernel(before, inside), "k", [64, 1, 1]), want, "{before} {inside}");
        }
    }
}
