//! How many lanes a chunk has.
//!
//! What is done once per chunk, scalar operations, checks of addresses, branches, costs least with many lanes. But the
//! values of all lanes have to find room in the processor's registers, lanes that branch apart make all of them slow, and
//! code is there once for every four lanes, so that a large kernel takes too long to compile with many.

use ptx::ir::{Kernel, RegTy};

use super::classes::{self, Class, Shape};
use super::graph::NodeTerm;
use super::regset::RegSet;
use super::{Plan, operands, plan};

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
/// Regions have about `region` vector instructions at most.
pub(crate) fn plan_widest(kernel: &Kernel, block: [u32; 3], region: usize) -> Result<Plan, String> {
    let instructions = kernel.blocks.iter().map(|block| block.insts.len()).sum::<usize>();
    let threads: u32 = block.iter().product();
    let small = |lanes: u32| instructions * lanes as usize <= LARGE;
    for lanes in [32, 16] {
        let shape = Shape { block, lanes };
        if small(lanes) && threads >= lanes && shape.rowed() {
            let plan = plan(kernel, shape, limit(region, lanes))?;
            if stays_together(kernel, &plan) && pressure(kernel, &plan) * lanes as usize / 4 <= VECTORS {
                return Ok(plan);
            }
        }
    }
    let lanes = if small(8) && threads > 4 { 8 } else { 4 };
    plan(kernel, Shape { block, lanes }, limit(region, lanes))
}

/// Vector instructions of a region, for a kernel of so many instructions.
pub(crate) fn region(instructions: usize) -> usize {
    if instructions <= ORDINARY { usize::MAX } else { REGION }
}

/// Most instructions of a region.
fn limit(region: usize, lanes: u32) -> usize {
    if region == usize::MAX { usize::MAX } else { (region * 4 / lanes as usize).max(1) }
}

/// Do lanes part only where an index meets a bound, that is in few chunks of many?
fn stays_together(kernel: &Kernel, plan: &Plan) -> bool {
    let mut parting = RegSet::default();
    for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
        for r in operands::writes(&inst.op) {
            if kernel.regs[r.0 as usize] == RegTy::Pred && classes::bound(inst, r, &plan.classes).is_none() {
                parting.insert(r);
            }
        }
    }
    plan.nodes.iter().zip(&plan.divergent).all(|(node, divergent)| match &node.term {
        NodeTerm::Cond { p, .. } => !divergent || !parting.contains(p.reg),
        _ => !divergent,
    })
}

/// Most values of a lane, in units of 32 bits, that are alive at once.
fn pressure(kernel: &Kernel, plan: &Plan) -> usize {
    let size = |r: ptx::ir::Reg| match (plan.classes[r.0 as usize], kernel.regs[r.0 as usize]) {
        (Class::Varying, RegTy::B128) => 4,
        (Class::Varying, RegTy::B64) => 2,
        (Class::Varying, _) => 1,
        _ => 0,
    };
    let mut most = 0;
    for node in &plan.nodes {
        let mut live = RegSet::default();
        for s in node.successors() {
            live.add(&plan.live.live_in[s]);
        }
        let mut now: usize = live.iter().map(size).sum();
        most = most.max(now);
        for inst in node.body(kernel).iter().rev() {
            if inst.guard.is_none() {
                for r in operands::writes(&inst.op) {
                    now -= if live.remove(r) { size(r) } else { 0 };
                }
            }
            operands::inst_reads(inst, &mut |r| now += if live.insert(r) { size(r) } else { 0 });
            most = most.max(now);
        }
    }
    most
}
