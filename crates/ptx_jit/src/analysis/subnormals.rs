//! Which registers hold no subnormal f32, so that operations with `.ftz` need not flush them.
//!
//! Such operations flush all their operands and their result, each of which takes as long as a few additions. But their results are
//! operands of others; and what is loaded can be flushed once, if all that read it would flush it, so that nobody sees the difference.

use ptx::ir::{FloatOp, FloatUnOp, Kernel, Op, Operand, Reg, RegTy, Ty};

use super::floats::{MAX_ROUNDS, candidates, read_blindly};
use super::operands;

/// What is known of subnormals in a kernel's registers.
#[derive(Debug)]
pub(crate) struct Subnormals {
    /// Registers that hold none.
    flushed: Vec<bool>,
    /// Those of them for which that is so because loads flush what they write there.
    by_loads: Vec<bool>,
}

impl Subnormals {
    pub(crate) fn of(kernel: &Kernel) -> Subnormals {
        let worth = worth(kernel, &unseen(kernel));
        let flushed = flushed(kernel, &worth);
        let by_loads = worth.into_iter().zip(&flushed).map(|(worth, &flushed)| worth && flushed).collect();
        Subnormals { flushed, by_loads }
    }

    /// May an operand in f32 be subnormal?
    pub(crate) fn may_be(&self, o: Operand) -> bool {
        !is_flushed(o, &self.flushed)
    }

    /// Are loads to the register to flush what they write?
    pub(crate) fn by_loads(&self, r: Reg) -> bool {
        self.by_loads[r.0 as usize]
    }
}

fn is_flushed(o: Operand, flushed: &[bool]) -> bool {
    match o {
        Operand::Reg(r) => flushed[r.0 as usize],
        Operand::Imm(bits) => !f32::from_bits(bits as u32).is_subnormal(),
    }
}

/// Does the operation flush all the words it reads, before anything else?
fn flushes(op: &Op) -> bool {
    match op {
        Op::Float { op, ty: Ty::F32, ftz: true, .. } => *op != FloatOp::Copysign,
        Op::FloatUn { op, ty: Ty::F32, ftz: true, .. } => *op != FloatUnOp::Tanh,
        Op::Fma { ty: Ty::F32, ftz: true, .. }
        | Op::Setp { ty: Ty::F32, ftz: true, .. }
        | Op::Set { ty: Ty::F32, ftz: true, .. } => true,
        // To f16 none does.
        Op::Cvt { src_ty: Ty::F32, dst_ty, ftz: true, .. } => *dst_ty != Ty::F16,
        _ => false,
    }
}

/// Registers of which nobody sees whether they are flushed: all that read them flush them, or hand them on to such registers, at most
/// with another sign.
fn unseen(kernel: &Kernel) -> Vec<bool> {
    read_blindly(kernel, &[RegTy::B32], |inst, unseen| match inst.op {
        Op::Mov { dst, .. }
        | Op::Selp { dst, .. }
        | Op::FloatUn { op: FloatUnOp::Abs | FloatUnOp::Neg, ty: Ty::F32, ftz: false, dst, .. } => {
            unseen[dst.0 as usize]
        }
        ref op => flushes(op),
    })
}

/// Registers that are loaded in no more places than they are read in, if nobody sees what loads make of subnormals.
fn worth(kernel: &Kernel, unseen: &[bool]) -> Vec<bool> {
    let mut reads = vec![0_i64; kernel.regs.len()];
    let mut loaded = vec![false; kernel.regs.len()];
    for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
        operands::inst_reads(inst, &mut |r| reads[r.0 as usize] += 1);
        if let Op::Ld { dsts, .. } = &inst.op {
            for r in dsts.iter().flatten().map(|r| r.0 as usize) {
                reads[r] -= 1;
                loaded[r] = true;
            }
        }
    }
    (0..kernel.regs.len()).map(|r| unseen[r] && loaded[r] && reads[r] >= 0).collect()
}

/// Registers to which no subnormal is written, if loads to those of `worth` flush. They are zero at the start.
fn flushed(kernel: &Kernel, worth: &[bool]) -> Vec<bool> {
    let mut flushed = candidates(kernel, &[RegTy::B32]);
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
            for r in operands::writes(&inst.op) {
                if flushed[r.0 as usize] && !writes_flushed(&inst.op, r, &flushed, worth) {
                    flushed[r.0 as usize] = false;
                    changed = true;
                }
            }
        }
        if !changed {
            return flushed;
        }
    }
    vec![false; kernel.regs.len()]
}

/// Is what the operation writes to the register, of 32 bits, never a subnormal?
fn writes_flushed(op: &Op, r: Reg, flushed: &[bool], worth: &[bool]) -> bool {
    match *op {
        Op::Mov { src: a, .. }
        | Op::FloatUn { op: FloatUnOp::Abs | FloatUnOp::Neg, ty: Ty::F32, ftz: false, a, .. } => is_flushed(a, flushed),
        Op::Selp { a, b, .. }
        | Op::Float {
            op: FloatOp::Min | FloatOp::Max | FloatOp::MinNan | FloatOp::MaxNan,
            ty: Ty::F32,
            ftz: false,
            a,
            b,
            ..
        } => is_flushed(a, flushed) && is_flushed(b, flushed),
        Op::Float { op, ty: Ty::F32, ftz, .. } => ftz && op != FloatOp::Copysign,
        Op::FloatUn { op, ty: Ty::F32, ftz, .. } => ftz && op != FloatUnOp::Tanh,
        Op::Fma { ty: Ty::F32, ftz, .. } => ftz,
        // Integers are large enough, and so is the least f16.
        Op::Cvt { dst_ty: Ty::F32, src_ty, ftz, to_integral, .. } => {
            ftz || to_integral || src_ty == Ty::F16 || !src_ty.is_float()
        }
        Op::Ld { .. } => worth[r.0 as usize],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The registers `%f0` to `%f7` that hold no subnormal, and those where loads see to that, in a kernel with this body.
    fn known(body: &str) -> [Vec<usize>; 2] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
             .reg .f32 %f<8>; .reg .b64 %rd0; .reg .b32 %r<2>; .reg .pred %p;\n\
             mov.f32 %f0, 0f00000001; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;\n\
             mov.f32 %f4, %f0; mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;\n\
             ld.param.u64 %rd0, [a];\n{body}\nret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let mut kernel = program.lower(0, &|_| None).unwrap();
        // Registers are numbered as they first appear; the rest of the text is what counts.
        let first = operands::writes(&kernel.blocks[0].insts[0].op)[0].0 as usize;
        kernel.blocks[0].insts.drain(..8);
        let known = Subnormals::of(&kernel);
        let numbers = |of: &[bool]| (0..8).filter(|&r| of[first + r]).collect();
        [numbers(&known.flushed), numbers(&known.by_loads)]
    }

    #[test]
    fn loads_flush_if_nobody_sees_it() {
        let two = "ld.global.f32 %f0, [%rd0]; ld.global.f32 %f1, [%rd0+4]; fma.rn.ftz.f32 %f2, %f0, %f1, %f0;";
        let rest = vec![3, 4, 5, 6, 7];
        let with = |some: &[usize]| [some, &rest].concat();
        for (seen, flushed, by_loads) in [
            ("", with(&[0, 1, 2]), vec![0, 1]),
            ("st.global.f32 [%rd0], %f2;", with(&[0, 1, 2]), vec![0, 1]),
            ("st.global.f32 [%rd0], %f0;", with(&[1, 2]), vec![1]),
            ("add.f32 %f2, %f0, %f0;", with(&[1]), vec![1]),
            ("neg.f32 %f2, %f1; mul.ftz.f32 %f2, %f2, %f2;", with(&[0, 1, 2]), vec![0, 1]),
            ("neg.f32 %f2, %f1; st.global.f32 [%rd0], %f2;", with(&[0]), vec![0]),
            ("mov.f32 %f1, 0f00000001;", with(&[0, 2]), vec![0]),
            ("@%p mov.f32 %f1, 0f3F800000;", with(&[0, 1, 2]), vec![0, 1]),
            ("ld.global.f32 %f1, [%rd0]; @%p ld.global.f32 %f1, [%rd0];", with(&[0, 2]), vec![0]),
        ] {
            assert_eq!(known(&format!("{two}{seen}")), [flushed, by_loads], "{seen}");
        }
    }

    /// Around a loop, too.
    #[test]
    fn what_is_copied_is_as_flushed_as_its_source() {
        let text = |step: &str| {
            format!(
                "ld.global.f32 %f0, [%rd0]; mov.f32 %f1, 0f00000000; mov.f32 %f2, %f0;\n\
                 LOOP: mov.f32 %f3, %f2; ld.global.f32 %f2, [%rd0+4]; {step} mov.f32 %f1, %f4;\n\
                 setp.lt.ftz.f32 %p, %f1, %f3; @%p bra LOOP;"
            )
        };
        let flushing = text("fma.rn.ftz.f32 %f4, %f3, %f0, %f1;");
        assert_eq!(known(&flushing), [(0..8).collect::<Vec<_>>(), vec![0, 2]]);
        let other = text("fma.rn.f32 %f4, %f3, %f0, %f1;");
        assert_eq!(known(&other), [vec![5, 6, 7], vec![]]);
    }

    #[test]
    fn results_that_cannot_be_subnormal() {
        for (op, is_flushed) in [
            ("cvt.rn.f32.s32 %f1, %r0;", true),
            ("cvt.rmi.f32.f32 %f1, %f0;", true),
            ("cvt.sat.f32.f32 %f1, %f0;", false),
            ("add.ftz.sat.f32 %f1, %f0, %f0;", true),
            ("ex2.approx.f32 %f1, %f0;", false),
            ("min.f32 %f1, %f2, 0f00000001;", false),
            ("min.f32 %f1, %f2, 0f3F800000;", true),
            ("copysign.f32 %f1, %f2, %f0;", false),
            ("mov.b32 %f1, %r0;", false),
        ] {
            let body = format!(
                "ld.global.u32 %r0, [%rd0]; ld.global.f32 %f0, [%rd0+4]; {op} st.global.v2.f32 [%rd0], {{%f0, %f1}};"
            );
            assert_eq!(known(&body)[0].contains(&1), is_flushed, "{op}");
        }
    }
}
