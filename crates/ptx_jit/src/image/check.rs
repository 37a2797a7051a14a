//! Does everything in an image fit: each other, the code, and the layout of a CTA's memory?

use ptx::ir::{Kernel, Op, RegTy};
use ptx::launch::{MAX_CTA_BYTES, MAX_PARAM_BYTES, MAX_THREADS_PER_CTA, WARP};

use super::{Facts, Machine, Region, Relocation, Target};
use crate::abi::joint::{Matrix, Meeting, Site, Slot, goes_straight};
use crate::abi::place::Place;
use crate::abi::{self, Attached, MAX_ATTACHED, MAX_ELEMENTS, OfLine};
use crate::{CompileError, MAX_STACK_BYTES};

type Checked = Result<(), CompileError>;

fn fits(condition: bool, what: &str) -> Checked {
    if condition { Ok(()) } else { Err(CompileError::Damaged(what.to_owned())) }
}

/// Is this a CTA that can be run at all? A kernel may ask for another, so this is no damage.
pub(super) fn shape(facts: &Facts, block: [u32; 3]) -> Checked {
    let refused = |what| Err(CompileError::Unsupported { line: 0, what });
    let threads = block.iter().try_fold(1_u32, |n, &d| n.checked_mul(d));
    let Some(threads) = threads.filter(|n| (1..=MAX_THREADS_PER_CTA).contains(n)) else {
        return refused(format!("a block of {block:?}"));
    };
    let local = u64::from(facts.local_bytes) * u64::from(threads);
    if local > MAX_CTA_BYTES {
        return refused(format!("{local} bytes of local memory in a CTA"));
    }
    if u64::from(facts.shared_bytes) > MAX_CTA_BYTES || facts.param_bytes > MAX_PARAM_BYTES.next_multiple_of(64) {
        return refused("too much shared memory, or too many parameters".to_owned());
    }
    fits(facts.sources.is_small(), "more places in the source than a kernel has")?;
    let aligned = facts.shared_align.is_power_of_two() && facts.local_bytes.is_multiple_of(16);
    fits(aligned && u64::from(facts.shared_align) <= MAX_CTA_BYTES, "memory without its alignment")
}

/// Rules of the IR that the interpreter relies on.
pub(super) fn interpreted(kernel: &Kernel, facts: &Facts) -> Checked {
    ptx::verify::verify(kernel).map_err(|e| CompileError::Damaged(e.to_string()))?;
    fits(kernel.sources == facts.sources, "another kernel's places in the source")?;
    let same = (kernel.param_bytes, kernel.shared_bytes, kernel.shared_align, kernel.local_bytes)
        == (facts.param_bytes, facts.shared_bytes, facts.shared_align, facts.local_bytes);
    fits(same, "facts of another kernel")
}

pub(super) fn machine(machine: &Machine) -> Checked {
    let Machine { lanes, frame_bytes, zeroed, regions, loops, code, places, relocations, .. } = machine;
    fits(matches!(lanes, 1 | 4 | 8 | 16 | 32), "a chunk of that many lanes")?;
    fits(*frame_bytes >= 64 && u64::from(*frame_bytes) <= MAX_CTA_BYTES, "a warp's frame of that size")?;
    for &(offset, bytes) in zeroed {
        fits(inside(offset, bytes.into(), *frame_bytes), "a register outside the frame")?;
    }
    fits(i32::try_from(code.len()).is_ok(), "code of that length")?;
    fits((1..=MAX_ATTACHED).contains(&regions.len()), "that many regions")?;
    for region in regions {
        fits((region.begin as usize) < code.len(), "a region outside the code")?;
        fits(region.stack_bytes <= MAX_STACK_BYTES, "a region that needs too much stack")?;
        fits(region.exits.iter().all(|&to| (to as usize) < regions.len()), "an exit to no region")?;
        fits(!region.sole || region.exits.len() == 1, "a region with an only exit, and others")?;
        fits(region.around.is_none_or(|l| (l as usize) < loops.len()), "a region in no loop")?;
        attachments(region, *lanes, *frame_bytes)?;
    }
    for (at, l) in loops.iter().enumerate() {
        fits(l.first <= l.last && (l.last as usize) < regions.len(), "a loop of no regions")?;
        fits(l.outer.is_none_or(|outer| (outer as usize) < at), "a loop in no loop")?;
    }
    let inside = |&(at, _): &(u32, Place)| (at as usize) < code.len();
    fits(places.iter().all(inside) && places.is_sorted_by_key(|place| place.0), "accesses outside the code")?;
    references(relocations, code)
}

fn inside(offset: u32, bytes: u64, whole: u32) -> bool {
    u64::from(offset) + bytes <= u64::from(whole)
}

/// References lie in the code, one behind the other, and lead to something.
fn references(relocations: &[Relocation], code: &[u8]) -> Checked {
    let mut from = 0;
    for relocation in relocations {
        let at = relocation.at as usize;
        fits(at >= from && at + 8 <= code.len(), "an address outside the code")?;
        from = at + 8;
        if let Target::Code(to) = relocation.target {
            fits((to as usize) < code.len(), "an address of something outside the code")?;
        }
    }
    Ok(())
}

fn attachments(region: &Region, lanes: u32, frame: u32) -> Checked {
    let Attached { sites, runs, ops, joints, matrices, images } = &region.attached;
    let most = sites.len().max(runs.len()).max(ops.len()).max(joints.len()).max(matrices.len()).max(images.len());
    fits(most <= MAX_ATTACHED, "that many attachments")?;
    for OfLine { what: site, .. } in sites {
        // Rows in the scratch slot: addresses, and elements.
        fits((1..=MAX_ELEMENTS).contains(&site.count), "an access of that many elements")?;
    }
    for OfLine { what: run, .. } in runs {
        // There are 16 bytes for each lane in the context.
        let bytes = run.site.count.checked_mul(run.site.ty.bytes());
        fits(bytes.is_some_and(|n| (1..=16).contains(&n)), "an access of that many bytes")?;
    }
    for joint in joints.iter().map(|joint| &joint.what).chain(&region.barrier) {
        self::joint(joint, lanes, frame)?;
    }
    let transfers = |op: &Op| !matches!(op, Op::Transfer { transfer, .. } if !transfer.is_valid());
    fits(ops.iter().all(|op| transfers(&op.what)), "a bulk copy that there is not")?;
    for OfLine { what: abi::image::Site { access, rows }, .. } in images {
        let fine = matches!(rows.lanes, 4 | 8 | 16 | 32) && rows.lanes <= lanes as usize;
        let exists = access.is_valid() && fine && *rows == abi::image::Rows::new(access, rows.lanes);
        fits(exists, "an access to a texture or surface that there is not")?;
    }
    for OfLine { what: matrix, .. } in matrices {
        self::matrix(matrix, lanes, frame)?;
    }
    if let Some(barrier) = &region.barrier {
        fits(matches!(barrier.op, Op::Bar { .. }), "a barrier that is none")?;
    }
    match &region.meeting {
        Some(Meeting { site, .. }) => joint(site, lanes, frame),
        None => Ok(()),
    }
}

fn joint(site: &Site, lanes: u32, frame: u32) -> Checked {
    let Site { op: _, a, b, c, mask, negate: _, dst, pred } = site;
    for &operand in [a, b, c, mask] {
        slot(operand, lanes, frame)?;
    }
    for &(offset, ty) in [dst, pred].into_iter().flatten() {
        fits(inside(offset, u64::from(WARP * abi::lane_bytes(ty)), frame), "a result outside the frame")?;
    }
    Ok(())
}

/// As many operands and results as the operation has, of its registers' widths.
fn matrix(site: &Matrix, lanes: u32, frame: u32) -> Checked {
    let Matrix { op, srcs, dsts, straight } = site;
    let (sources, results, ty) = match op {
        Op::Mma { product, .. } => {
            fits(product.check().is_ok(), "a matrix product that is none")?;
            let [a, b, c, d] = product.registers();
            (a + b + c + usize::from(product.sparse.is_some()), d, product.d.reg())
        }
        Op::LdMatrix { dsts, .. } => (1, dsts.len(), RegTy::B32),
        Op::StMatrix { srcs, .. } => (srcs.len() + 1, 0, RegTy::B32),
        Op::MovMatrix { .. } => (1, 1, RegTy::B32),
        _ => return fits(false, "an operation on matrices that is none"),
    };
    let memory = matches!(op, Op::LdMatrix { .. } | Op::StMatrix { .. });
    fits(!memory || matches!(sources.max(results + 1), 2 | 3 | 5), "an access to that many matrices")?;
    fits((srcs.len(), dsts.len()) == (sources, results), "that many registers of matrices")?;
    fits(*straight == goes_straight(op, srcs, dsts), "a product whose results come too soon")?;
    srcs.iter().try_for_each(|&operand| slot(operand, lanes, frame))?;
    for &(offset, of) in dsts.iter().flatten() {
        fits(of == ty, "a matrix in registers of another width")?;
        fits(inside(offset, u64::from(WARP * abi::lane_bytes(ty)), frame), "a result outside the frame")?;
    }
    Ok(())
}

fn slot(slot: Slot, lanes: u32, frame: u32) -> Checked {
    let by_lane = |offset, ty| inside(offset, u64::from(WARP * abi::lane_bytes(ty)), frame);
    let by_chunk = |offset, chunk| chunk == lanes && inside(offset, 16 * u64::from(WARP / lanes), frame);
    let within = match slot {
        Slot::Absent | Slot::Imm(_) => true,
        Slot::Lanes32(offset) => by_lane(offset, RegTy::B32),
        Slot::Lanes64(offset) => by_lane(offset, RegTy::B64),
        Slot::Same { offset, chunk, .. }
        | Slot::Affine { offset, chunk, .. }
        | Slot::Wide { offset, chunk, .. }
        | Slot::Linear { offset, chunk }
        | Slot::Extended { offset, chunk } => by_chunk(offset, chunk),
    };
    fits(within, "an operand outside the frame")
}
