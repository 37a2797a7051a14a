//! How much registers grow from a CTA to the one beside it along x: where warps of a row of CTAs run by turns, that tells what the next
//! ones will access. It is a guess, on which nothing but time depends: numbers that wrap are not thought of.

use ptx::ir::{Inst, IntOp, Kernel, MulPart, Op, Operand, Reg, SReg, Ty};

use super::operands;

/// What is known of a register: its growth, and its value if that is the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Known {
    step: Option<i64>,
    number: Option<i64>,
}

impl Known {
    fn step(step: Option<i64>) -> Known {
        Known { step, number: None }
    }

    fn number(number: i64) -> Known {
        Known { step: Some(0), number: Some(number) }
    }

    fn plus(self, other: Known) -> Known {
        Known::step(self.step.zip(other.step).and_then(|(a, b)| a.checked_add(b)))
    }

    fn times(self, other: Known) -> Known {
        let step = match (self, other) {
            (Known { step: Some(0), .. }, Known { step: Some(0), .. }) => Some(0),
            (Known { step: Some(step), .. }, Known { number: Some(by), .. })
            | (Known { number: Some(by), .. }, Known { step: Some(step), .. }) => step.checked_mul(by),
            _ => None,
        };
        Known { step, number: self.number.zip(other.number).and_then(|(a, b)| a.checked_mul(b)) }
    }
}

/// The growth of each register, where it is known.
#[derive(Debug)]
pub(crate) struct Steps(Vec<Option<Known>>);

impl Steps {
    pub(crate) fn of(kernel: &Kernel, block: [u32; 3]) -> Steps {
        let mut steps = Steps(vec![None; kernel.regs.len()]);
        // In the order of the text, which is mostly that in which one is made of another.
        for Inst { guard, op, .. } in kernel.blocks.iter().flat_map(|block| &block.insts) {
            let known = if guard.is_none() { steps.result(op, block) } else { Known::default() };
            for r in operands::writes(op) {
                let before = steps.0[r.0 as usize].replace(known);
                if before.is_some_and(|before| before != known) {
                    steps.0[r.0 as usize] = Some(Known::default());
                }
            }
        }
        steps
    }

    /// By how much a register grows.
    pub(crate) fn step(&self, r: Reg) -> Option<i64> {
        self.0[r.0 as usize]?.step
    }

    fn result(&self, op: &Op, block: [u32; 3]) -> Known {
        let of = |o: &Operand, ty: Ty| match *o {
            Operand::Imm(v) if ty.bits() == 32 => Known::number((v as i32).into()),
            Operand::Imm(v) => Known::number(v.cast_signed()),
            Operand::Reg(r) => self.0[r.0 as usize].unwrap_or_default(),
        };
        match op {
            Op::Special { sreg: SReg::Ctaid(0), .. } => Known::step(Some(1)),
            Op::Special { sreg: SReg::Ntid(axis), .. } => Known::number(block[usize::from(*axis.min(&2))].into()),
            Op::Special { .. } => Known::step(Some(0)),
            Op::Ld { addr, .. } => Known::step(matches!(addr.base, Operand::Imm(_)).then_some(0)),
            Op::Mov { ty, src: a, .. } | Op::Cvt { src_ty: ty, a, .. } if !ty.is_float() => of(a, *ty),
            Op::Cvta { a, .. } => of(a, Ty::B64),
            // Bits that lie side by side are put together by either.
            Op::Int { op: IntOp::Add | IntOp::Or, ty, a, b, .. } => of(a, *ty).plus(of(b, *ty)),
            Op::Int { op: IntOp::Sub, ty, a, b, .. } => of(a, *ty).plus(of(b, *ty).times(Known::number(-1))),
            Op::Int { op: IntOp::Shl, ty, a, b: Operand::Imm(by @ 0..63), .. } => {
                of(a, *ty).times(Known::number(1 << by))
            }
            Op::Int { ty, a, b, .. } => {
                Known::step((of(a, *ty).step == Some(0) && of(b, *ty).step == Some(0)).then_some(0))
            }
            Op::Mul { part: MulPart::Lo | MulPart::Wide, ty, a, b, .. } => of(a, *ty).times(of(b, *ty)),
            Op::Mad { part: MulPart::Lo | MulPart::Wide, ty, a, b, c, .. } => {
                of(a, *ty).times(of(b, *ty)).plus(of(c, *ty))
            }
            _ => Known::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By how much the addresses of loads and stores grow, in the order of the text.
    fn steps(kernel: &Kernel, block: [u32; 3]) -> Vec<Option<i64>> {
        let steps = Steps::of(kernel, block);
        let insts = kernel.blocks.iter().flat_map(|block| &block.insts);
        let addresses = insts.filter_map(|inst| match &inst.op {
            Op::Ld { addr, .. } | Op::St { addr, .. } => match addr.base {
                Operand::Reg(r) => Some(steps.step(r)),
                Operand::Imm(_) => None,
            },
            _ => None,
        });
        addresses.collect()
    }

    #[test]
    fn addresses_grow_along_rows() {
        let text = include_bytes!("../../../sundial/kernels/engine.ptx");
        let program = ptx::Program::parse(text).unwrap();
        for (name, block, step) in [("stencil", [32, 8, 1], 128), ("saxpy", [256, 1, 1], 1024)] {
            let kernel = program.lower(program.find_entry(name).unwrap(), &|_| None).unwrap();
            let found = steps(&kernel, block);
            assert!(found.len() >= 3 && found.iter().all(|&found| found == Some(step)), "{name}: {found:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {\n\
                    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p;\n\
                    ld.param.u64 %rd0, [a]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.y;\n\
                    shl.b32 %r3, %r0, 5; or.b32 %r3, %r3, %r1; mul.wide.u32 %rd1, %r3, 4; add.s64 %rd1, %rd0, %rd1;\n\
                    st.global.u32 [%rd1], %r0;\n\
                    mad.lo.u32 %r4, %r2, 100, %r1; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r0;\n\
                    sub.u32 %r4, %r1, %r0; mul.wide.s32 %rd3, %r4, 4; add.s64 %rd3, %rd0, %rd3; ld.global.u32 %r5, [%rd3];\n\
                    mul.wide.u32 %rd4, %r5, 4; add.s64 %rd4, %rd0, %rd4; st.global.u32 [%rd4], %r0;\n\
                    mul.lo.u32 %r6, %r0, %r2; mul.wide.u32 %rd5, %r6, 4; add.s64 %rd5, %rd0, %rd5; st.global.u32 [%rd5], %r0;\n\
                    setp.eq.u32 %p, %r2, 0; mov.u32 %r7, %r0; @%p add.u32 %r7, %r7, %r0; mul.wide.u32 %rd6, %r7, 4;\n\
                    add.s64 %rd6, %rd0, %rd6; st.global.u32 [%rd6], %r0;\nret;\n}\n";
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = program.lower(0, &|_| None).unwrap();
        // Twice `%r4` is written, by what grows in other ways.
        assert_eq!(steps(&kernel, [32, 1, 1]), [Some(128), Some(0), None, None, None, None]);
    }
}
