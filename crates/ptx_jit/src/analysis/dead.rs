//! Instructions whose results nobody reads, and such results of atomic operations.

use std::sync::Arc;

use ptx::ir::{Inst, Kernel, Op, Operand, Term};

use super::operands;
use super::regset::RegSet;

/// Does the operation nothing but write registers? Loads may fault, and what joins lanes may make them wait.
pub(super) fn only_computes(op: &Op) -> bool {
    match op {
        Op::Mov { .. }
        | Op::Special { .. }
        | Op::Pack { .. }
        | Op::Unpack { .. }
        | Op::Selp { .. }
        | Op::Cvta { .. }
        | Op::Isspacep { .. } => true,
        _ => ptx::math::shape(op).is_some(),
    }
}

/// The kernel without what is never used, wherever control flows: computations, and what atomic operations find.
pub(crate) fn without_dead_code(kernel: Arc<Kernel>) -> Arc<Kernel> {
    let mut used = RegSet::default();
    for block in &kernel.blocks {
        match &block.term {
            Term::CondBra { p, .. } => _ = used.insert(p.reg),
            Term::BrIdx { index: Operand::Reg(r), .. } => _ = used.insert(*r),
            _ => {}
        }
    }
    let needed = |inst: &Inst, used: &RegSet| {
        !only_computes(&inst.op) || operands::writes(&inst.op).into_iter().any(|r| used.contains(r))
    };
    let mut changed = true;
    while changed {
        changed = false;
        // Backwards, so that straight-line code takes one round.
        for inst in kernel.blocks.iter().rev().flat_map(|block| block.insts.iter().rev()) {
            if needed(inst, &used) {
                operands::inst_reads(inst, &mut |r| changed |= used.insert(r));
            }
        }
    }
    let unread = |op: &Op| matches!(op, Op::Atom { dst: Some(old), .. } if !used.contains(*old));
    if kernel.blocks.iter().all(|block| block.insts.iter().all(|inst| needed(inst, &used) && !unread(&inst.op))) {
        return kernel;
    }
    let mut kernel = (*kernel).clone();
    for block in &mut kernel.blocks {
        block.insts.retain(|inst| needed(inst, &used));
        for Inst { op, .. } in &mut block.insts {
            if unread(op)
                && let Op::Atom { dst, .. } = op
            {
                *dst = None;
            }
        }
    }
    Arc::new(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_the_end_stays() {
        let text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a) {\n\
                    .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p;\n\
                    ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r1, 1; mov.b64 %rd1, {%r0, %r1};\n\
                    add.u32 %r2, %r0, 2; add.u32 %r3, %r2, 3; mov.u32 %r4, 0;\n\
                    LOOP: add.u32 %r4, %r4, %r0; mul.lo.u32 %r5, %r5, %r4; setp.lt.u32 %p, %r4, 9; @%p bra LOOP;\n\
                    st.global.u32 [%rd0], %r4; ret;\n}\n";
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
        let ops = |kernel: &Kernel| kernel.blocks.iter().map(|block| block.insts.len()).sum::<usize>();
        let left = without_dead_code(Arc::clone(&kernel));
        // The pack with its part, the two sums, and the product that nothing but itself reads.
        assert_eq!(ops(&kernel) - ops(&left), 5);
        assert!(Arc::ptr_eq(&left, &without_dead_code(Arc::clone(&left))));
    }

    #[test]
    fn what_atomic_operations_find_is_kept_where_it_is_read() {
        let text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a) {\n\
                    .reg .b64 %rd<4>; .reg .b32 %r<8>;\n\
                    ld.param.u64 %rd0, [a]; atom.global.add.u32 %r0, [%rd0], 1; atom.global.max.u32 %r1, [%rd0], 7;\n\
                    add.u32 %r2, %r0, 1; st.global.u32 [%rd0+4], %r1; ret;\n}\n";
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = without_dead_code(Arc::new(program.lower(0, &|_| None).unwrap()));
        let is_kept = |inst: &Inst| if let Op::Atom { dst, .. } = &inst.op { Some(dst.is_some()) } else { None };
        let kept: Vec<bool> = kernel.blocks.iter().flat_map(|block| &block.insts).filter_map(is_kept).collect();
        assert_eq!(kept, [false, true]);
        assert!(Arc::ptr_eq(&kernel, &without_dead_code(Arc::clone(&kernel))));
    }
}
