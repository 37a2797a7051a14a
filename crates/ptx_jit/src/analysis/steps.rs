//! How much registers grow from a CTA to the one beside it along x, or from a trip of a loop to the next one: where warps of a row of CTAs run
//! by turns, or a lane goes through an array by itself, that tells what will be accessed. It is a guess, on which nothing but time depends:
//! numbers that wrap are not thought of.

use std::collections::HashMap;

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
pub(crate) struct Steps {
    /// Those that are written on the way, once an instruction that does so has been seen.
    written: HashMap<Reg, Option<Known>>,
    along: Along,
}

/// From where to where registers grow.
#[derive(Clone, Copy, Debug)]
enum Along {
    /// CTAs of this shape.
    Ctas([u32; 3]),
    Trips,
}

impl Steps {
    /// From a CTA to the next one.
    pub(crate) fn of(kernel: &Kernel, block: [u32; 3]) -> Steps {
        let mut steps = Steps { written: HashMap::new(), along: Along::Ctas(block) };
        // In the order of the text, which is mostly that in which one is made of another.
        kernel.blocks.iter().flat_map(|block| &block.insts).for_each(|inst| steps.see(inst));
        steps
    }

    /// From a trip of a loop, of which these are the instructions, to the next one.
    pub(crate) fn of_trips<'k>(insts: impl Iterator<Item = &'k Inst> + Clone) -> Steps {
        let mut writes: HashMap<Reg, u32> = HashMap::new();
        insts.clone().flat_map(|inst| operands::writes(&inst.op)).for_each(|r| *writes.entry(r).or_default() += 1);
        let counter = |inst: &Inst| counted(inst).filter(|(r, _)| writes[r] == 1);
        // What is written further down is not known further up, but for what counts.
        let mut written: HashMap<Reg, Option<Known>> = writes.keys().map(|&r| (r, None)).collect();
        written.extend(insts.clone().filter_map(counter).map(|(r, by)| (r, Some(Known::step(Some(by))))));
        let mut steps = Steps { written, along: Along::Trips };
        insts.filter(|inst| counter(inst).is_none()).for_each(|inst| steps.see(inst));
        steps
    }

    /// Notes what an instruction writes.
    fn see(&mut self, Inst { guard, op, .. }: &Inst) {
        let known = if guard.is_none() { self.result(op) } else { Known::default() };
        for r in operands::writes(op) {
            let before = self.written.insert(r, Some(known)).flatten();
            if before.is_some_and(|before| before != known) {
                self.written.insert(r, Some(Known::default()));
            }
        }
    }

    fn known(&self, r: Reg) -> Known {
        match (self.written.get(&r), self.along) {
            (Some(known), _) => known.unwrap_or_default(),
            (None, Along::Ctas(_)) => Known::default(),
            (None, Along::Trips) => Known::step(Some(0)),
        }
    }

    /// By how much a register grows.
    pub(crate) fn step(&self, r: Reg) -> Option<i64> {
        self.known(r).step
    }

    fn result(&self, op: &Op) -> Known {
        let of = |o: &Operand, ty: Ty| match *o {
            Operand::Imm(v) if ty.bits() == 32 => Known::number((v as i32).into()),
            Operand::Imm(v) => Known::number(v.cast_signed()),
            Operand::Reg(r) => self.known(r),
        };
        match op {
            Op::Special { sreg: SReg::Ctaid(0), .. } if let Along::Ctas(_) = self.along => Known::step(Some(1)),
            Op::Special { sreg: SReg::Ntid(axis), .. } if let Along::Ctas(block) = self.along => {
                Known::number(block[usize::from(*axis.min(&2))].into())
            }
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

/// The register to which an instruction adds a number, and the number.
fn counted(inst: &Inst) -> Option<(Reg, i64)> {
    let Op::Int { op, ty, dst, a: Operand::Reg(a), b: Operand::Imm(by), .. } = inst.op else { return None };
    let by = if ty.bits() == 32 { i64::from(by as i32) } else { by.cast_signed() };
    let by = match op {
        IntOp::Add => by,
        IntOp::Sub => by.checked_neg()?,
        _ => return None,
    };
    (dst == a && inst.guard.is_none()).then_some((dst, by))
}

#[cfg(test)]
mod tests {
    use ptx::ir::Address;

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

    #[test]
    fn addresses_grow_from_trip_to_trip() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 n) {\n\
                    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p;\n\
                    ld.param.u64 %rd0, [a]; ld.param.u32 %r7, [n]; mov.u32 %r0, 0; mov.u32 %r1, 7; mov.u64 %rd8, %rd0; mov.u32 %r4, 0;\n\
                    LOOP: mul.wide.u32 %rd1, %r0, 8; add.s64 %rd1, %rd0, %rd1; ld.global.u32 %r2, [%rd1];\n\
                    ld.global.u32 %r3, [%rd8+8]; add.s64 %rd8, %rd8, -32;\n\
                    mul.wide.u32 %rd2, %r2, 4; add.s64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r3;\n\
                    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd0, %rd3; st.global.u32 [%rd3], %r3;\n\
                    mul.wide.u32 %rd4, %r4, 4; add.s64 %rd4, %rd0, %rd4; st.global.u32 [%rd4], %r3;\n\
                    mul.wide.u32 %rd5, %r6, 4; add.s64 %rd5, %rd0, %rd5; st.global.u32 [%rd5], %r3;\n\
                    st.global.u32 [%rd0], %r3; mov.u32 %r6, %ctaid.x; mul.wide.u32 %rd6, %r6, 4; add.s64 %rd6, %rd0, %rd6; st.global.u32 [%rd6], %r3;\n\
                    add.u32 %r4, %r4, 1; setp.eq.u32 %p, %r2, 0; @%p add.u32 %r4, %r4, 1;\n\
                    sub.u32 %r0, %r0, 2; setp.lt.u32 %p, %r0, %r7; @%p bra LOOP;\nret;\n}\n";
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = program.lower(0, &|_| None).unwrap();
        let [_, trip, ..] = &kernel.blocks[..] else { panic!("a loop") };
        let steps = Steps::of_trips(trip.insts.iter());
        let addresses = trip.insts.iter().filter_map(|inst| match &inst.op {
            Op::Ld { addr: Address { base: Operand::Reg(r), .. }, .. }
            | Op::St { addr: Address { base: Operand::Reg(r), .. }, .. } => Some(steps.step(*r)),
            _ => None,
        });
        // By a counter; by itself; what was loaded; what stands still; what grows now and then; what the trip before wrote; the array; the CTA.
        let expected = [Some(-16), Some(-32), None, Some(0), None, None, Some(0), Some(0)];
        assert_eq!(addresses.collect::<Vec<_>>(), expected);
    }
}
