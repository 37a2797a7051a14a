//! Conversions to formats narrower than f32 that saturate: tf32, the 8-bit formats, ue8m0 among them, and the scalar half formats.

use super::body::Body;
use super::mods::Mods;
use crate::error::PtxError;
use crate::ir::{Cmp, Fp8, IntOp, Op, Operand, PredRef, Reg, RegTy, Round, Ty};

/// Bits of an infinite f32, which are those of its exponent.
const INFINITY: u64 = 0x7f80_0000;
/// The bits of f32 that tf32 has, and the last of them.
const TF32_BITS: u64 = 0xffff_e000;
const TF32_STEP: u64 = 0x2000;
const SIGN: u64 = 0x8000_0000;

/// The NaN of ue8m0.
const NAN_UE8M0: u64 = 0xff;
/// 2^-127 as bf16, which has no exponent for it, and the NaN.
const LEAST_UE8M0: u64 = 0x40;
const NAN_BF16: u64 = 0x7fff;

/// An 8-bit format, as the word of two of its numbers.
pub(super) fn fp8(word: &str) -> Option<Fp8> {
    match word {
        "e4m3x2" => Some(Fp8::E4M3),
        "e5m2x2" => Some(Fp8::E5M2),
        _ => None,
    }
}

impl Body<'_, '_> {
    /// `cvt.rn.satfinite{.relu}.e4m3x2.f32 d, a, b`, `cvt.rn.satfinite{.relu}.e4m3x2.f16x2 d, a`, and
    /// `cvt.rn{.relu}.f16x2.e4m3x2 d, a` or `.bf16x2`; the same with e5m2.
    pub(super) fn cvt_fp8(
        &mut self,
        m: &mut Mods<'_>,
        format: Fp8,
        round: Option<Round>,
        relu: bool,
    ) -> Result<(), PtxError> {
        if round != Some(Round::Rn) {
            return Err(self.invalid("the conversion lacks .rn"));
        }
        let satfinite = m.take("satfinite");
        let ty = self.ty_in(m, &[Ty::F32, Ty::F16x2, Ty::BF16x2])?;
        // What is left tells the direction: the first type is the destination.
        if ty != Ty::F32 && !satfinite {
            self.count(2..=2)?;
            let (dst, a) = (self.dst(0, Ty::B32)?, self.src(1, Ty::B16)?);
            if ty == Ty::F16x2 {
                self.emit(Op::CvtFromFp8 { format, relu, dst, a })?;
                return Ok(());
            }
            // Both halves exist in either format.
            let halves = self.new_reg(RegTy::B32)?;
            self.emit(Op::CvtFromFp8 { format, relu, dst: halves, a })?;
            let [low, high] = [self.new_reg(RegTy::B16)?, self.new_reg(RegTy::B16)?];
            self.emit(Op::Unpack { dsts: vec![Some(low), Some(high)], src: Operand::Reg(halves) })?;
            let mut wide = |half: Reg| self.converted(Operand::Reg(half), Ty::F16, Ty::F32);
            let (a, b) = (wide(high)?, wide(low)?);
            let (dst_ty, src_ty, round) = (Ty::BF16x2, Ty::F32, Round::Rn);
            self.emit(Op::CvtPack { dst_ty, src_ty, round, sat: false, relu: false, dst, a, b })?;
            return Ok(());
        }
        if !satfinite {
            return Err(self.invalid("the conversion lacks .satfinite"));
        }
        let operands = if ty == Ty::F32 { 3 } else { 2 };
        self.count(operands..=operands)?;
        let (dst, a) = (self.dst(0, Ty::B16)?, self.src(1, ty)?);
        let b = if ty == Ty::F32 { self.src(2, ty)? } else { Operand::Imm(0) };
        self.emit(Op::CvtToFp8 { format, src_ty: ty, relu, dst, a, b })?;
        Ok(())
    }

    /// `cvt.{rz,rp}{.satfinite}.ue8m0x2.f32 d, a, b`, the same with `.bf16x2 d, a`, and `cvt.rn.bf16x2.ue8m0x2 d, a`: exponents alone, by integer
    /// arithmetic on the bits. Signs are lost.
    pub(super) fn cvt_ue8m0(&mut self, m: &mut Mods<'_>, round: Option<Round>) -> Result<(), PtxError> {
        let satfinite = m.take("satfinite");
        let ty = self.ty_in(m, &[Ty::F32, Ty::BF16x2])?;
        let up = match round {
            Some(Round::Rn) if ty == Ty::BF16x2 && !satfinite => return self.cvt_from_ue8m0(),
            Some(Round::Rz) => false,
            Some(Round::Rp) => true,
            _ => return Err(self.invalid("conversions to ue8m0 need .rz or .rp, those from it .rn")),
        };
        let operands = if ty == Ty::F32 { 3 } else { 2 };
        self.count(operands..=operands)?;
        let (dst, a) = (self.dst(0, Ty::B16)?, self.src(1, ty)?);
        let (high, low) = if ty == Ty::F32 {
            (a, self.src(2, ty)?)
        } else {
            (self.word(IntOp::And, a, Operand::Imm(0xffff_0000))?, self.word(IntOp::Shl, a, Operand::Imm(16))?)
        };
        let (high, low) = (self.exponent(high, up, satfinite)?, self.exponent(low, up, satfinite)?);
        let high = self.word(IntOp::Shl, high, Operand::Imm(8))?;
        let Operand::Reg(both) = self.word(IntOp::Or, high, low)? else { return Ok(()) };
        self.emit(Op::Unpack { dsts: vec![Some(dst), None], src: Operand::Reg(both) })?;
        Ok(())
    }

    /// The exponent of an f32 as ue8m0, of the next power of two above if `up`.
    fn exponent(&mut self, bits: Operand, up: bool, satfinite: bool) -> Result<Operand, PtxError> {
        let magnitude = self.word(IntOp::And, bits, Operand::Imm(!SIGN & 0xffff_ffff))?;
        let field = self.word(IntOp::Shr, magnitude, Operand::Imm(23))?;
        let mut result = field;
        if up {
            let fraction = self.word(IntOp::And, magnitude, Operand::Imm(0x7f_ffff))?;
            // The least number, 2^-127, is one half of the least normal f32.
            let subnormal = self.test(Cmp::Eq, Ty::B32, field, Operand::Imm(0))?;
            let limit = self.choose(subnormal, Operand::Imm(0x40_0000), Operand::Imm(0))?;
            let above = self.test(Cmp::Gt, Ty::U32, fraction, limit)?;
            let next = self.word(IntOp::Add, field, Operand::Imm(1))?;
            result = self.choose(above, next, field)?;
        }
        if satfinite {
            result = self.word(IntOp::Min, result, Operand::Imm(NAN_UE8M0 - 1))?;
        }
        let nan = self.test(Cmp::Gt, Ty::U32, magnitude, Operand::Imm(INFINITY))?;
        self.choose(nan, Operand::Imm(NAN_UE8M0), result)
    }

    fn cvt_from_ue8m0(&mut self) -> Result<(), PtxError> {
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, Ty::B32)?, self.src(1, Ty::B16)?);
        let pair = self.new_reg(RegTy::B32)?;
        self.emit(Op::Pack { dst: pair, srcs: vec![a, Operand::Imm(0)] })?;
        let mut number = |at: u64| {
            let byte = self.new_reg(RegTy::B32)?;
            let (a, pos, len) = (Operand::Reg(pair), Operand::Imm(at), Operand::Imm(8));
            self.emit(Op::Bfe { ty: Ty::U32, dst: byte, a, pos, len })?;
            let byte = Operand::Reg(byte);
            let least = self.test(Cmp::Eq, Ty::B32, byte, Operand::Imm(0))?;
            let nan = self.test(Cmp::Eq, Ty::B32, byte, Operand::Imm(NAN_UE8M0))?;
            let normal = self.word(IntOp::Shl, byte, Operand::Imm(7))?;
            let number = self.choose(least, Operand::Imm(LEAST_UE8M0), normal)?;
            self.choose(nan, Operand::Imm(NAN_BF16), number)
        };
        let (low, high) = (number(0)?, number(8)?);
        let high = self.word(IntOp::Shl, high, Operand::Imm(16))?;
        let both = self.word(IntOp::Or, high, low)?;
        self.emit(Op::Mov { ty: Ty::B32, dst, src: both })?;
        Ok(())
    }

    /// `cvt.rn.satfinite.f16.f32` and its kin: the packed conversion has the saturation, its lower half is the result.
    pub(super) fn cvt_satfinite(
        &mut self,
        dst_ty: Ty,
        src_ty: Ty,
        round: Option<Round>,
        relu: bool,
    ) -> Result<(), PtxError> {
        let packed = match dst_ty {
            Ty::F16 => Ty::F16x2,
            Ty::BF16 => Ty::BF16x2,
            _ => return Err(self.invalid(format!("no conversion to {dst_ty:?} with .satfinite"))),
        };
        let Some(round @ (Round::Rn | Round::Rz)) = round.filter(|_| src_ty == Ty::F32) else {
            return Err(self.invalid("a conversion with .satfinite is from f32, with .rn or .rz"));
        };
        self.count(2..=2)?;
        let (dst, b) = (self.dst(0, dst_ty)?, self.src(1, src_ty)?);
        let both = self.new_reg(RegTy::B32)?;
        self.emit(Op::CvtPack { dst_ty: packed, src_ty, round, sat: true, relu, dst: both, a: Operand::Imm(0), b })?;
        self.emit(Op::Unpack { dsts: vec![Some(dst), None], src: Operand::Reg(both) })?;
        Ok(())
    }

    /// f32 to tf32: the mantissa cut to 10 bits, by integer arithmetic on the bits. Infinity stays, but for `.satfinite`, which makes
    /// it the largest number; a NaN becomes canonical, but for `.rna`, which cuts it as a number (and takes one step off it with `.satfinite`).
    pub(super) fn cvt_tf32(&mut self, m: &mut Mods<'_>, round: Option<Round>, relu: bool) -> Result<(), PtxError> {
        let satfinite = m.take("satfinite");
        self.ty_in(m, &[Ty::F32])?;
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, Ty::B32)?, self.src(1, Ty::F32)?);
        let finite = self.new_reg(RegTy::Pred)?;
        self.emit(Op::Testp { class: 0, ty: Ty::F32, dst: finite, a })?;
        let sum = match round {
            Some(Round::Rna) => self.word(IntOp::Add, a, Operand::Imm(0x1000))?,
            Some(Round::Rn) => {
                let odd = self.new_reg(RegTy::B32)?;
                self.emit(Op::Bfe { ty: Ty::U32, dst: odd, a, pos: Operand::Imm(13), len: Operand::Imm(1) })?;
                let half = self.word(IntOp::Add, Operand::Reg(odd), Operand::Imm(0xfff))?;
                self.word(IntOp::Add, half, a)?
            }
            Some(Round::Rz) => a,
            _ => return Err(self.invalid("rounding modifier required for instruction 'cvt'")),
        };
        let rounded = self.choose(finite, sum, a)?;
        let mut result = self.word(IntOp::And, rounded, Operand::Imm(TF32_BITS))?;
        if satfinite {
            let exponent = self.word(IntOp::And, result, Operand::Imm(INFINITY))?;
            let beyond = self.test(Cmp::Eq, Ty::B32, exponent, Operand::Imm(INFINITY))?;
            let largest = self.word(IntOp::Sub, result, Operand::Imm(TF32_STEP))?;
            result = self.choose(beyond, largest, result)?;
        }
        if relu {
            let negative = self.test(Cmp::Lt, Ty::S32, result, Operand::Imm(0))?;
            result = self.choose(negative, Operand::Imm(0), result)?;
        }
        if round != Some(Round::Rna) {
            let nan = self.new_reg(RegTy::Pred)?;
            self.emit(Op::Testp { class: 3, ty: Ty::F32, dst: nan, a })?;
            let canonical = Operand::Imm(u64::from(crate::math::NAN_F32) & TF32_BITS);
            result = self.choose(nan, canonical, result)?;
        }
        self.emit(Op::Mov { ty: Ty::B32, dst, src: result })?;
        Ok(())
    }

    /// An operation on 32-bit words, in a register of its own.
    fn word(&mut self, op: IntOp, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let ty = if matches!(op, IntOp::And | IntOp::Or | IntOp::Xor) { Ty::B32 } else { Ty::U32 };
        self.int(op, ty, a, b)
    }

    /// Whether the comparison holds, in a register of its own.
    pub(super) fn test(&mut self, cmp: Cmp, ty: Ty, a: Operand, b: Operand) -> Result<Reg, PtxError> {
        let dst = self.new_reg(RegTy::Pred)?;
        self.emit(Op::Setp { cmp, ty, ftz: false, dst, dst2: None, a, b, combine: None })?;
        Ok(dst)
    }

    fn choose(&mut self, reg: Reg, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let dst = self.new_reg(RegTy::B32)?;
        self.emit(Op::Selp { ty: Ty::B32, dst, a, b, p: PredRef { reg, negate: false } })?;
        Ok(Operand::Reg(dst))
    }
}
