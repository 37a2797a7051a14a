//! Instructions that compute, of all families.

use ptx::ir::{Cmp, FloatOp, FloatUnOp, Fp8, IntOp, IntUnOp, MulPart, Op, Precision, Reg, Round, SReg, Ty, VideoOp};

use super::{Builder, Pool, reg};

const ROUNDS: [Round; 6] = [Round::Rn, Round::Rn, Round::Rn, Round::Rz, Round::Rm, Round::Rp];

impl Builder<'_> {
    /// One instruction, with one or two destinations in the pools.
    pub(super) fn compute(&mut self) {
        match self.below(12) {
            0..=2 => self.integer(),
            3 => self.product(),
            4 => self.bit_field(),
            5 | 6 => self.float(),
            7 => self.float_one(),
            8 => self.comparison(),
            9 => self.conversion(),
            10 => self.selection(),
            _ => self.movement(),
        }
    }

    fn integer_type(&mut self) -> (Pool, Ty) {
        self.pick(&[
            (Pool::I32, Ty::U32),
            (Pool::I32, Ty::S32),
            (Pool::I64, Ty::U64),
            (Pool::I64, Ty::S64),
            (Pool::I16, Ty::U16),
            (Pool::I16, Ty::S16),
        ])
    }

    fn float_type(&mut self) -> (Pool, Ty) {
        self.pick(&[
            (Pool::F32, Ty::F32),
            (Pool::F32, Ty::F32),
            (Pool::F64, Ty::F64),
            (Pool::F16, Ty::F16),
            (Pool::F16, Ty::BF16),
            (Pool::F16x2, Ty::F16x2),
        ])
    }

    fn bits_type(&mut self) -> (Pool, Ty) {
        self.pick(&[(Pool::I32, Ty::B32), (Pool::I64, Ty::B64)])
    }

    fn integer(&mut self) {
        let (mut pool, mut ty) = self.integer_type();
        let op = self.pick(&[
            IntOp::Add,
            IntOp::Sub,
            IntOp::Div,
            IntOp::Rem,
            IntOp::Min,
            IntOp::Max,
            IntOp::And,
            IntOp::Or,
            IntOp::Xor,
            IntOp::Shl,
            IntOp::Shr,
        ]);
        if matches!(op, IntOp::And | IntOp::Or | IntOp::Xor) {
            (pool, ty) =
                self.pick(&[(Pool::Pred, Ty::Pred), (Pool::I16, Ty::B16), (Pool::I32, Ty::B32), (Pool::I64, Ty::B64)]);
        }
        let sat = ty == Ty::S32 && matches!(op, IntOp::Add | IntOp::Sub) && self.chance(4);
        let shift = matches!(op, IntOp::Shl | IntOp::Shr);
        let (dst, a) = (self.any(pool), self.source(pool));
        let b = self.source(if shift { Pool::I32 } else { pool });
        self.emit(Op::Int { op, ty, sat, dst, a, b });
    }

    fn product(&mut self) {
        let (pool, ty) = self.integer_type();
        let part = self.pick(&[MulPart::Lo, MulPart::Hi, MulPart::Wide]);
        let part = if part == MulPart::Wide && pool == Pool::I64 { MulPart::Hi } else { part };
        let wide = match (part, pool) {
            (MulPart::Wide, Pool::I16) => Pool::I32,
            (MulPart::Wide, _) => Pool::I64,
            _ => pool,
        };
        let (a, b, c, dst) = (self.source(pool), self.source(pool), self.source(wide), self.any(wide));
        match self.below(6) {
            0 => self.emit(Op::Mul { part, ty, dst, a, b }),
            1 | 2 => self.emit(Op::Mad { part, ty, sat: false, dst, a, b, c }),
            3 => {
                let (dst, c) = (self.any(pool), self.source(pool));
                self.emit(Op::Sad { ty, dst, a, b, c });
            }
            4 => {
                let (ty, part) = (self.pick(&[Ty::U32, Ty::S32]), self.pick(&[MulPart::Lo, MulPart::Hi]));
                let (dst, a, b) = (self.any(Pool::I32), self.source(Pool::I32), self.source(Pool::I32));
                let c = self.chance(2).then(|| self.source(Pool::I32));
                self.emit(Op::Mad24 { part, ty, sat: false, dst, a, b, c });
            }
            _ => {
                let (pool, ty) = self.pick(&[(Pool::I32, Ty::U32), (Pool::I64, Ty::U64)]);
                let (dst, a, b) = (self.any(pool), self.source(pool), self.source(pool));
                let cc_in = self.chance(2).then(|| self.any(Pool::Pred));
                let cc_out = self.chance(2).then(|| self.any(Pool::Pred));
                let sub = self.chance(2);
                self.emit(Op::AddCarry { sub, ty, dst, a, b, cc_in, cc_out });
            }
        }
    }

    fn bit_field(&mut self) {
        let word = |b: &mut Self| b.source(Pool::I32);
        let (dst, a, b, c) = (self.any(Pool::I32), word(self), word(self), word(self));
        match self.below(14) {
            0 => {
                let (pool, ty) = self.pick(&[
                    (Pool::I32, Ty::U32),
                    (Pool::I32, Ty::S32),
                    (Pool::I64, Ty::U64),
                    (Pool::I64, Ty::S64),
                ]);
                let (dst, a) = (self.any(pool), self.source(pool));
                self.emit(Op::Bfe { ty, dst, a, pos: b, len: c });
            }
            1 => {
                let (pool, ty) = self.bits_type();
                let (dst, a, b2) = (self.any(pool), self.source(pool), self.source(pool));
                self.emit(Op::Bfi { ty, dst, a, b: b2, pos: b, len: c });
            }
            2 => {
                let clamp = self.chance(2);
                self.emit(Op::Bmsk { clamp, dst, a, b });
            }
            3 => {
                let (clamp, ty) = (self.chance(2), self.pick(&[Ty::U32, Ty::S32]));
                self.emit(Op::Szext { clamp, ty, dst, a, b });
            }
            4 => self.emit(Op::Fns { dst, mask: a, base: b, offset: c }),
            5 | 6 => {
                let mode = self.pick(&[None, None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]);
                self.emit(Op::Prmt { mode, dst, a, b, c });
            }
            7 => {
                let (left, wrap) = (self.chance(2), self.chance(2));
                self.emit(Op::Shf { left, wrap, dst, a, b, c });
            }
            8 | 9 => {
                let lut = self.below(256) as u8;
                self.emit(Op::Lop3 { lut, dst, a, b, c });
            }
            10 => {
                let [four, hi, a_signed, b_signed] = [0; 4].map(|_| self.chance(2));
                self.emit(Op::Dot { four, hi, a_signed, b_signed, dst, a, b, c });
            }
            11 => {
                let op = self.pick(&[
                    VideoOp::Add,
                    VideoOp::Sub,
                    VideoOp::Avrg,
                    VideoOp::AbsDiff,
                    VideoOp::Min,
                    VideoOp::Max,
                ]);
                let lanes = self.pick(&[2, 4]);
                let [a_signed, b_signed, d_signed, sat, accumulate] = [0; 5].map(|_| self.chance(2));
                let mask = self.below(1 << lanes) as u8;
                self.emit(Op::Video { op, lanes, a_signed, b_signed, d_signed, sat, accumulate, mask, dst, a, b, c });
            }
            _ => {
                let op = self.pick(&[
                    IntUnOp::Abs,
                    IntUnOp::Neg,
                    IntUnOp::Not,
                    IntUnOp::Cnot,
                    IntUnOp::Popc,
                    IntUnOp::Clz,
                    IntUnOp::Brev,
                    IntUnOp::Bfind,
                    IntUnOp::BfindShiftAmt,
                ]);
                let (pool, ty) = match op {
                    IntUnOp::Abs | IntUnOp::Neg => {
                        self.pick(&[(Pool::I16, Ty::S16), (Pool::I32, Ty::S32), (Pool::I64, Ty::S64)])
                    }
                    IntUnOp::Bfind | IntUnOp::BfindShiftAmt => {
                        self.pick(&[(Pool::I32, Ty::U32), (Pool::I32, Ty::S32), (Pool::I64, Ty::S64)])
                    }
                    IntUnOp::Not => self.pick(&[(Pool::Pred, Ty::Pred), (Pool::I16, Ty::B16), (Pool::I64, Ty::B64)]),
                    _ => self.bits_type(),
                };
                let counts = matches!(op, IntUnOp::Popc | IntUnOp::Clz | IntUnOp::Bfind | IntUnOp::BfindShiftAmt);
                let (dst, a) = (self.any(if counts { Pool::I32 } else { pool }), self.source(pool));
                self.emit(Op::IntUn { op, ty, dst, a });
            }
        }
    }

    fn float(&mut self) {
        let (pool, ty) = self.float_type();
        let half = !matches!(ty, Ty::F32 | Ty::F64);
        let round = if half { Round::Rn } else { self.pick(&ROUNDS) };
        let ftz = ty == Ty::F32 && self.chance(3);
        let sat = ty == Ty::F32 && self.chance(6);
        let (dst, a, b, c) = (self.any(pool), self.source(pool), self.source(pool), self.source(pool));
        if self.chance(3) {
            let relu = half && self.chance(3);
            self.emit(Op::Fma { ty, round, ftz, sat, relu, dst, a, b, c });
            return;
        }
        let op = self.pick(&[
            FloatOp::Add,
            FloatOp::Sub,
            FloatOp::Mul,
            FloatOp::Min,
            FloatOp::Max,
            FloatOp::MinNan,
            FloatOp::MaxNan,
            FloatOp::Div(Precision::Ieee(round)),
            FloatOp::Div(Precision::Approx),
            FloatOp::Div(Precision::Full),
            FloatOp::Copysign,
        ]);
        let exists = match op {
            FloatOp::Div(Precision::Ieee(_)) | FloatOp::Copysign => !half,
            FloatOp::Div(_) => ty == Ty::F32,
            FloatOp::MinNan | FloatOp::MaxNan => ty != Ty::F64,
            _ => true,
        };
        let op = if exists { op } else { FloatOp::Add };
        let arithmetic = matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul);
        let ftz = ftz && op != FloatOp::Copysign;
        self.emit(Op::Float { op, ty, round, ftz, sat: sat && arithmetic, dst, a, b });
    }

    fn float_one(&mut self) {
        let round = self.pick(&ROUNDS);
        let precision = self.pick(&[Precision::Ieee(round), Precision::Approx]);
        let (pool, ty) = self.float_type();
        let op = self.pick(&[
            FloatUnOp::Abs,
            FloatUnOp::Neg,
            FloatUnOp::Sqrt(precision),
            FloatUnOp::Rcp(precision),
            FloatUnOp::Rsqrt(Precision::Approx),
            FloatUnOp::Sin,
            FloatUnOp::Cos,
            FloatUnOp::Lg2,
            FloatUnOp::Ex2,
            FloatUnOp::Tanh,
        ]);
        let (pool, ty, op) = match (op, ty) {
            (FloatUnOp::Abs | FloatUnOp::Neg, _) => (pool, ty, op),
            (FloatUnOp::Ex2 | FloatUnOp::Tanh, Ty::F16 | Ty::F16x2 | Ty::F32) => (pool, ty, op),
            // Approximate roots do not exist in f64, reciprocals only flushing.
            (FloatUnOp::Sqrt(_), Ty::F64) => (pool, ty, FloatUnOp::Sqrt(Precision::Ieee(round))),
            (FloatUnOp::Rcp(_) | FloatUnOp::Rsqrt(_), Ty::F64) => (pool, ty, op),
            _ => (Pool::F32, Ty::F32, op),
        };
        let ftz = match (op, ty) {
            (FloatUnOp::Rcp(Precision::Approx), Ty::F64) => true,
            (FloatUnOp::Rsqrt(_), Ty::F64) => self.chance(2),
            (FloatUnOp::Tanh, _) => false,
            (_, Ty::F32) => self.chance(2),
            _ => false,
        };
        let (dst, a) = (self.any(pool), self.source(pool));
        self.emit(Op::FloatUn { op, ty, ftz, dst, a });
    }

    fn comparison(&mut self) {
        let float = self.chance(2);
        let (pool, ty, cmp) = if float {
            let (pool, ty) = self.pick(&[(Pool::F32, Ty::F32), (Pool::F64, Ty::F64), (Pool::F16, Ty::F16)]);
            let cmp = self.pick(&[
                Cmp::Eq,
                Cmp::Ne,
                Cmp::Lt,
                Cmp::Le,
                Cmp::Gt,
                Cmp::Ge,
                Cmp::Equ,
                Cmp::Neu,
                Cmp::Ltu,
                Cmp::Leu,
                Cmp::Gtu,
                Cmp::Geu,
                Cmp::Num,
                Cmp::Nan,
            ]);
            (pool, ty, cmp)
        } else {
            let (pool, ty) = self.integer_type();
            (pool, ty, self.pick(&[Cmp::Eq, Cmp::Ne, Cmp::Lt, Cmp::Le, Cmp::Gt, Cmp::Ge]))
        };
        let ftz = ty == Ty::F32 && self.chance(3);
        let (a, b, combine) = (self.source(pool), self.source(pool), self.combine());
        match self.below(4) {
            0 => {
                let (pool, dst_ty) = self.pick(&[(Pool::I32, Ty::U32), (Pool::F32, Ty::F32)]);
                let dst = self.any(pool);
                self.emit(Op::Set { cmp, dst_ty, ty, ftz, dst, a, b, combine });
            }
            1 if float => {
                let (pool, ty) = self.pick(&[(Pool::F32, Ty::F32), (Pool::F64, Ty::F64)]);
                let (class, dst, a) = (self.below(6) as u8, self.any(Pool::Pred), self.source(pool));
                self.emit(Op::Testp { class, ty, dst, a });
            }
            _ => {
                let dst = self.any(Pool::Pred);
                let dst2 = if self.chance(3) { Some(self.any(Pool::Pred)).filter(|d| *d != dst) } else { None };
                self.emit(Op::Setp { cmp, ty, ftz, dst, dst2, a, b, combine });
            }
        }
    }

    fn conversion(&mut self) {
        let types = [
            (Pool::I32, Ty::U32),
            (Pool::I32, Ty::S32),
            (Pool::I64, Ty::U64),
            (Pool::I64, Ty::S64),
            (Pool::I16, Ty::U16),
            (Pool::I16, Ty::S16),
            (Pool::I16, Ty::U8),
            (Pool::F32, Ty::F32),
            (Pool::F64, Ty::F64),
            (Pool::F16, Ty::F16),
            (Pool::F16, Ty::BF16),
        ];
        if self.chance(8) {
            let (dst_ty, relu) = (self.pick(&[Ty::F16x2, Ty::BF16x2]), self.chance(3));
            let (round, sat) = (self.pick(&[Round::Rn, Round::Rz]), self.chance(3));
            let (dst, a, b) = (self.any(Pool::F16x2), self.source(Pool::F32), self.source(Pool::F32));
            self.emit(Op::CvtPack { dst_ty, src_ty: Ty::F32, round, sat, relu, dst, a, b });
            return;
        }
        if self.chance(12) {
            let (format, relu) = (self.pick(&[Fp8::E4M3, Fp8::E5M2]), self.chance(3));
            if self.chance(2) {
                let (dst, a) = (self.any(Pool::F16x2), self.source(Pool::I16));
                self.emit(Op::CvtFromFp8 { format, relu, dst, a });
                return;
            }
            let (from, src_ty) =
                self.pick(&[(Pool::F32, Ty::F32), (Pool::F16x2, Ty::F16x2), (Pool::F16x2, Ty::BF16x2)]);
            let (dst, a, b) = (self.any(Pool::I16), self.source(from), self.source(from));
            self.emit(Op::CvtToFp8 { format, src_ty, relu, dst, a, b });
            return;
        }
        let ((to, dst_ty), (from, src_ty)) = (self.pick(&types), self.pick(&types));
        let (dst, a) = (self.any(to), reg(self.any(from)));
        let directed = self.pick(&[Round::Rn, Round::Rz, Round::Rm, Round::Rp]);
        let narrows = dst_ty.is_float() && src_ty.is_float() && dst_ty.bits() < src_ty.bits();
        let same = dst_ty == src_ty;
        let crossing = dst_ty.is_float() != src_ty.is_float();
        // Between the half formats the way leads through f32, which is another instruction.
        if !same && dst_ty.is_float() && src_ty.is_float() && dst_ty.bits() == src_ty.bits() {
            return;
        }
        let to_integral = same && matches!(dst_ty, Ty::F32 | Ty::F64 | Ty::F16) && self.chance(2);
        let round = if narrows && dst_ty.bits() == 16 {
            Some(self.pick(&[Round::Rn, Round::Rz]))
        } else if narrows || crossing || to_integral {
            Some(directed)
        } else {
            None
        };
        let ftz = (dst_ty == Ty::F32 || src_ty == Ty::F32) && self.chance(3);
        let sat = dst_ty != Ty::BF16 && self.chance(4);
        self.emit(Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu: false, dst, a });
    }

    fn selection(&mut self) {
        let (pool, ty) = self.pick(&[
            (Pool::I32, Ty::B32),
            (Pool::I64, Ty::B64),
            (Pool::F32, Ty::F32),
            (Pool::F64, Ty::F64),
            (Pool::I16, Ty::B16),
        ]);
        let (dst, a, b) = (self.any(pool), self.source(pool), self.source(pool));
        if self.chance(3) {
            let (from, cty) = self.pick(&[(Pool::I32, Ty::S32), (Pool::F32, Ty::F32)]);
            let (c, ftz) = (self.source(from), cty == Ty::F32 && self.chance(2));
            self.emit(Op::Slct { ty, cty, ftz, dst, a, b, c });
        } else {
            let p = self.pred();
            self.emit(Op::Selp { ty, dst, a, b, p });
        }
    }

    fn movement(&mut self) {
        match self.below(5) {
            0 => {
                let (dst, low, high) = (self.any(Pool::I64), self.source(Pool::I32), self.source(Pool::I32));
                self.emit(Op::Pack { dst, srcs: vec![low, high] });
            }
            1 => {
                let (low, high): (Reg, Reg) = (self.any(Pool::I32), self.any(Pool::I32));
                let low = (low != high).then_some(low);
                let src = reg(self.any(Pool::I64));
                self.emit(Op::Unpack { dsts: vec![low, Some(high)], src });
            }
            2 => {
                let sreg = self.pick(&[
                    SReg::Tid(0),
                    SReg::Tid(1),
                    SReg::Ntid(0),
                    SReg::Ctaid(0),
                    SReg::Nctaid(0),
                    SReg::LaneId,
                    SReg::WarpId,
                    SReg::LanemaskLt,
                    SReg::LanemaskGe,
                    SReg::LanemaskEq,
                ]);
                let dst = self.any(Pool::I32);
                self.emit(Op::Special { ty: Ty::U32, dst, sreg });
            }
            // Floats seen as integers, and back.
            3 => {
                let (dst, src) = (self.any(Pool::I32), self.source(Pool::F32));
                self.emit(Op::Mov { ty: Ty::B32, dst, src });
            }
            _ => {
                let (dst, src) = (self.any(Pool::F32), self.source(Pool::I32));
                self.emit(Op::Mov { ty: Ty::B32, dst, src });
            }
        }
    }
}
