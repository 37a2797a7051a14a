//! Operations that flush subnormals, on numbers that are often such, in registers that hardly anything else reads.

use ptx::ir::{
    Address, Cmp, FloatOp, FloatUnOp, IntOp, Op, Operand, Order, Precision, Reg, RegTy, Round, SReg, Space, Ty,
};

use super::{Builder, Pool, reg};

/// Registers of a passage.
const OWN: u32 = 4;

impl Builder<'_> {
    /// Loads to registers of its own, in some of the threads or in all, and operations on these that mostly flush; what they come to
    /// goes into the pools. In a loop, what the last trip has left is read as well.
    pub(super) fn flushing(&mut self) {
        let own: [Reg; OWN as usize] = std::array::from_fn(|_| self.fresh(RegTy::B32));
        for _ in 0..1 + self.below(3) {
            self.load_numbers(own);
        }
        for _ in 0..1 + self.below(8) {
            let from = self.insts.len();
            self.flush_or_copy(own);
            let guard = self.chance(6).then(|| self.pred());
            self.insts[from..].iter_mut().for_each(|inst| inst.guard = guard);
        }
        let (dst, a, b) = (self.any(Pool::F32), self.number(own), self.number(own));
        self.emit(Op::Float { op: FloatOp::Add, ty: Ty::F32, round: Round::Rn, ftz: true, sat: false, dst, a, b });
    }

    fn own(&mut self, own: [Reg; OWN as usize]) -> Reg {
        own[self.below(OWN) as usize]
    }

    /// One of the registers, or sometimes a constant or a register of the pool.
    fn number(&mut self, own: [Reg; OWN as usize]) -> Operand {
        match self.below(8) {
            0 => Operand::Imm(self.pick(&[0, 1, 0x807f_ffff, 0x0080_0000, 0x3f80_0000, 0xbf00_0000, 0x7f80_0000])),
            1 => self.source(Pool::F32),
            _ => reg(self.own(own)),
        }
    }

    fn load_numbers(&mut self, own: [Reg; OWN as usize]) {
        let f = self.fixed;
        match self.below(4) {
            // The same for all threads, or at least for those of a CTA.
            0 => self.emit(Op::Special { ty: Ty::U32, dst: f.index, sreg: SReg::Ctaid(0) }),
            _ => self.emit(Op::Mov { ty: Ty::B32, dst: f.index, src: reg(f.gid) }),
        }
        let (a, b) = (reg(f.index), Operand::Imm(4 * u64::from(self.below(64))));
        self.int(IntOp::Add, Ty::U32, f.index, a, b);
        let (n, ty) = self.pick(&[(1, Ty::F32), (1, Ty::B32), (1, Ty::U16), (2, Ty::F32), (4, Ty::F32)]);
        self.input_address(ty.bytes().max(4) * n);
        let dsts = match n {
            1 => vec![Some(self.own(own))],
            _ => own.map(Some)[..n as usize].to_vec(),
        };
        let addr = Address { base: reg(f.address), offset: 0 };
        let guard = self.chance(4).then(|| self.pred());
        self.emit(Op::Ld { space: Space::Global, ty, order: Order::Weak, dsts, addr });
        self.insts.last_mut().into_iter().for_each(|inst| inst.guard = guard);
    }

    fn flush_or_copy(&mut self, own: [Reg; OWN as usize]) {
        let (ty, ftz) = (Ty::F32, !self.chance(12));
        let (dst, a, b, c) = (self.own(own), self.number(own), self.number(own), self.number(own));
        let (round, sat) = (self.pick(&[Round::Rn, Round::Rn, Round::Rn, Round::Rz, Round::Rm]), self.chance(8));
        match self.below(12) {
            0 | 1 => self.emit(Op::Fma { ty, round, ftz, sat, relu: false, dst, a, b, c }),
            2..=4 => {
                let op = self.pick(&[
                    FloatOp::Add,
                    FloatOp::Sub,
                    FloatOp::Mul,
                    FloatOp::Min,
                    FloatOp::Max,
                    FloatOp::MaxNan,
                    FloatOp::Div(Precision::Ieee(round)),
                    FloatOp::Div(Precision::Approx),
                    FloatOp::Div(Precision::Full),
                ]);
                let sat = sat && matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul);
                self.emit(Op::Float { op, ty, round, ftz, sat, dst, a, b });
            }
            5 | 6 => {
                let op = self.pick(&[
                    FloatUnOp::Abs,
                    FloatUnOp::Neg,
                    FloatUnOp::Sqrt(Precision::Ieee(round)),
                    FloatUnOp::Sqrt(Precision::Approx),
                    FloatUnOp::Rcp(Precision::Ieee(round)),
                    FloatUnOp::Rcp(Precision::Approx),
                    FloatUnOp::Rsqrt(Precision::Approx),
                    FloatUnOp::Ex2,
                    FloatUnOp::Lg2,
                    FloatUnOp::Sin,
                ]);
                self.emit(Op::FloatUn { op, ty, ftz, dst, a });
            }
            // Only the sign: what is subnormal stays so.
            7 => self.emit(Op::FloatUn { op: FloatUnOp::Neg, ty, ftz: false, dst, a }),
            8 => {
                let (cmp, dst) = (self.pick(&[Cmp::Lt, Cmp::Ge, Cmp::Eq, Cmp::Neu]), self.any(Pool::Pred));
                self.emit(Op::Setp { cmp, ty, ftz, dst, dst2: None, a, b, combine: None });
            }
            9 => {
                let p = self.pred();
                self.emit(Op::Selp { ty, dst, a, b, p });
            }
            10 => {
                let to_integral = self.chance(2);
                let round = to_integral.then_some(Round::Rm);
                let a = reg(self.own(own));
                self.emit(Op::Cvt { dst_ty: ty, src_ty: ty, round, to_integral, ftz, sat, relu: false, dst, a });
            }
            _ => self.emit(Op::Mov { ty, dst, src: a }),
        }
        // Their bits are seen, once in a while.
        if self.chance(24) {
            let (dst, src) = (self.any(Pool::F32), reg(self.own(own)));
            self.emit(Op::Mov { ty, dst, src });
        }
    }
}
