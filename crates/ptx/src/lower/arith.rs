//! Arithmetic: integer, carry chains, floating point.

use super::body::Body;
use super::mods::Mods;
use super::opcodes::{Form, part};
use crate::error::PtxError;
use crate::ir::{FloatOp, FloatUnOp, IntOp, IntUnOp, MulPart, Op, Operand, Precision, Reg, RegTy, Round, Ty, VideoOp};

impl Body<'_, '_> {
    /// Takes the type, which must be one of these.
    pub(super) fn ty_in(&self, m: &mut Mods<'_>, allowed: &[Ty]) -> Result<Ty, PtxError> {
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        if allowed.contains(&ty) { Ok(ty) } else { Err(self.invalid(format!("type {ty:?} is not allowed"))) }
    }

    fn any_ty(&self, m: &mut Mods<'_>) -> Result<Ty, PtxError> {
        m.ty().map_err(|e| self.invalid(e))
    }

    /// Two operands of one type.
    pub(super) fn int2(&mut self, m: &mut Mods<'_>, op: IntOp) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &INTS)?;
        self.int2_of(op, ty, false)
    }

    fn int2_of(&mut self, op: IntOp, ty: Ty, sat: bool) -> Result<(), PtxError> {
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        self.emit(Op::Int { op, ty, sat, dst, a, b })?;
        Ok(())
    }

    pub(super) fn add_sub(&mut self, m: &mut Mods<'_>, sub: bool) -> Result<(), PtxError> {
        if let Some(signed) = m.find(packed_ints) {
            let op = if sub { VideoOp::Sub } else { VideoOp::Add };
            return self.packed(op, signed);
        }
        let ty = self.any_ty(m)?;
        if ty.is_float() {
            let op = if sub { FloatOp::Sub } else { FloatOp::Add };
            return self.float2(m, op, ty);
        }
        if !INTS.contains(&ty) {
            return Err(self.invalid(format!("type {ty:?} is not allowed")));
        }
        if m.take("cc") {
            return self.carry_of(ty, sub, false, true);
        }
        let sat = ty == Ty::S32 && m.take("sat");
        self.int2_of(if sub { IntOp::Sub } else { IntOp::Add }, ty, sat)
    }

    pub(super) fn add_sub_carry(&mut self, m: &mut Mods<'_>, sub: bool) -> Result<(), PtxError> {
        let cc = m.take("cc");
        let ty = self.ty_in(m, &[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        self.carry_of(ty, sub, true, cc)
    }

    fn carry_of(&mut self, ty: Ty, sub: bool, takes: bool, gives: bool) -> Result<(), PtxError> {
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        let (cc_in, cc_out) = self.carry(takes, gives)?;
        self.emit(Op::AddCarry { sub, ty, dst, a, b, cc_in, cc_out })?;
        Ok(())
    }

    /// The carry flag's register, where it is read and where it is written.
    fn carry(&mut self, takes: bool, gives: bool) -> Result<(Option<Reg>, Option<Reg>), PtxError> {
        let flag = match self.carry {
            Some(flag) => flag,
            None => self.new_reg(RegTy::Pred)?,
        };
        self.carry = Some(flag);
        Ok((takes.then_some(flag), gives.then_some(flag)))
    }

    /// Destination of a product of `ty`.
    fn product(&self, part: MulPart, ty: Ty) -> Result<Ty, PtxError> {
        match (part, ty) {
            (MulPart::Wide, Ty::U16) => Ok(Ty::U32),
            (MulPart::Wide, Ty::S16) => Ok(Ty::S32),
            (MulPart::Wide, Ty::U32) => Ok(Ty::U64),
            (MulPart::Wide, Ty::S32) => Ok(Ty::S64),
            (MulPart::Wide, _) => Err(self.invalid(".wide is for types of 16 and 32 bits")),
            _ => Ok(ty),
        }
    }

    pub(super) fn mul(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let Some(part) = m.find(part) else {
            let ty = self.ty_in(m, &FLOATS)?;
            return self.float2(m, FloatOp::Mul, ty);
        };
        let ty = self.ty_in(m, &INTS)?;
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, self.product(part, ty)?)?, self.src(1, ty)?, self.src(2, ty)?);
        self.emit(Op::Mul { part, ty, dst, a, b })?;
        Ok(())
    }

    pub(super) fn mad(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let Some(part) = m.find(part) else { return self.fma_of(m, Some(Round::Rn)) };
        if m.take("cc") {
            return self.mad_carry_of(m, part, false, true);
        }
        let ty = self.ty_in(m, &INTS)?;
        let sat = part == MulPart::Hi && ty == Ty::S32 && m.take("sat");
        self.count(4..=4)?;
        let wide = self.product(part, ty)?;
        let (dst, a, b, c) = (self.dst(0, wide)?, self.src(1, ty)?, self.src(2, ty)?, self.src(3, wide)?);
        self.emit(Op::Mad { part, ty, sat, dst, a, b, c })?;
        Ok(())
    }

    pub(super) fn mad_carry(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let part = m.find(part).ok_or_else(|| self.invalid("madc needs .lo or .hi"))?;
        let gives = m.take("cc");
        self.mad_carry_of(m, part, true, gives)
    }

    fn mad_carry_of(&mut self, m: &mut Mods<'_>, part: MulPart, takes: bool, gives: bool) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::U32, Ty::S32, Ty::U64, Ty::S64])?;
        if part == MulPart::Wide {
            return Err(self.invalid("a carry chain of .wide products"));
        }
        self.count(4..=4)?;
        let (dst, a, b, c) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?, self.src(3, ty)?);
        let (cc_in, cc_out) = self.carry(takes, gives)?;
        self.emit(Op::MadCarry { part, ty, dst, a, b, c, cc_in, cc_out })?;
        Ok(())
    }

    pub(super) fn mul24(&mut self, m: &mut Mods<'_>, add: bool) -> Result<(), PtxError> {
        let part = m.find(part).filter(|p| *p != MulPart::Wide);
        let part = part.ok_or_else(|| self.invalid("a 24-bit product needs .lo or .hi"))?;
        let ty = self.ty_in(m, &[Ty::U32, Ty::S32])?;
        let sat = add && part == MulPart::Hi && ty == Ty::S32 && m.take("sat");
        self.count(3 + usize::from(add)..=3 + usize::from(add))?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        let c = if add { Some(self.src(3, ty)?) } else { None };
        self.emit(Op::Mad24 { part, ty, sat, dst, a, b, c })?;
        Ok(())
    }

    pub(super) fn sad(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &INTS)?;
        self.count(4..=4)?;
        let (dst, a, b, c) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?, self.src(3, ty)?);
        self.emit(Op::Sad { ty, dst, a, b, c })?;
        Ok(())
    }

    pub(super) fn div(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.any_ty(m)?;
        if INTS.contains(&ty) {
            return self.int2_of(IntOp::Div, ty, false);
        }
        let precision = if m.take("full") && ty == Ty::F32 {
            Precision::Full
        } else if m.take("approx") && ty == Ty::F32 {
            Precision::Approx
        } else {
            let round = m.round().filter(|r| *r != Round::Rna && matches!(ty, Ty::F32 | Ty::F64));
            Precision::Ieee(round.ok_or_else(|| self.invalid("the division lacks a rounding modifier"))?)
        };
        self.float2(m, FloatOp::Div(precision), ty)
    }

    /// `ftz` where the type has it.
    fn ftz(&self, m: &mut Mods<'_>, ty: Ty) -> bool {
        ty != Ty::F64 && !matches!(ty, Ty::BF16 | Ty::BF16x2) && m.take("ftz")
    }

    fn float2(&mut self, m: &mut Mods<'_>, op: FloatOp, ty: Ty) -> Result<(), PtxError> {
        self.count(3..=3)?;
        let written = match op {
            FloatOp::Add | FloatOp::Sub | FloatOp::Mul => m.round(),
            _ => Some(Round::Rn),
        };
        let round = written.unwrap_or(Round::Rn);
        if round == Round::Rna || (round != Round::Rn && !matches!(ty, Ty::F32 | Ty::F64 | Ty::F32x2)) {
            return Err(self.invalid("this rounding is not allowed here"));
        }
        let ftz = self.ftz(m, ty);
        let saturates = matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul) && saturable(ty);
        let sat = saturates && m.take("sat");
        let narrow = if matches!((op, ty), (FloatOp::Add | FloatOp::Sub, Ty::F32)) { m.find(half) } else { None };
        let (dst, a, b) = (self.dst(0, ty)?, self.as_wide(1, ty, narrow)?, self.src(2, ty)?);
        let op = Op::Float { op, ty, round, ftz, sat, dst, a, b };
        match written {
            Some(_) => self.emit(op).map(|_| ()),
            None => self.emit_loose(op),
        }
    }

    /// An operand of `ty`, of a narrower type if it is said: that is extended, which loses nothing.
    fn as_wide(&mut self, at: usize, ty: Ty, narrow: Option<Ty>) -> Result<Operand, PtxError> {
        let Some(src_ty) = narrow else { return self.src(at, ty) };
        let (a, dst) = (self.src(at, src_ty)?, self.new_reg(ty.reg())?);
        let (round, to_integral, ftz, sat, relu) = (None, false, false, false, false);
        self.emit(Op::Cvt { dst_ty: ty, src_ty, round, to_integral, ftz, sat, relu, dst, a })?;
        Ok(Operand::Reg(dst))
    }

    pub(super) fn fma(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.fma_of(m, None)
    }

    /// `default` is the rounding where none is written: old PTX's `mad.f32`.
    fn fma_of(&mut self, m: &mut Mods<'_>, default: Option<Round>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &FLOATS)?;
        let round = m.round().or(default).filter(|r| *r != Round::Rna);
        let round = round.ok_or_else(|| self.invalid("the instruction lacks a rounding modifier"))?;
        if round != Round::Rn && !matches!(ty, Ty::F32 | Ty::F64 | Ty::F32x2) {
            return Err(self.invalid("this rounding is not allowed here"));
        }
        let ftz = self.ftz(m, ty);
        let sat = saturable(ty) && m.take("sat");
        let relu = !matches!(ty, Ty::F32 | Ty::F64 | Ty::F32x2) && m.take("relu");
        // Which NaN `.oob` takes for zero the manual does not say: none that was measured, the canonical one among them.
        if m.take("oob") && (ftz || sat || ty.bits() > 32 || ty == Ty::F32) {
            return Err(self.invalid(".oob goes with halves, and with neither .ftz nor .sat"));
        }
        self.count(4..=4)?;
        let narrow = if ty == Ty::F32 { m.find(half) } else { None };
        let (a, b) = (self.as_wide(1, ty, narrow)?, self.as_wide(2, ty, narrow)?);
        let (dst, c) = (self.dst(0, ty)?, self.src(3, ty)?);
        self.emit(Op::Fma { ty, round, ftz, sat, relu, dst, a, b, c })?;
        Ok(())
    }

    pub(super) fn min_max(&mut self, m: &mut Mods<'_>, max: bool) -> Result<(), PtxError> {
        if let Some(signed) = m.find(packed_ints) {
            let relu = signed && m.take("relu");
            self.packed(if max { VideoOp::Max } else { VideoOp::Min }, signed)?;
            return if relu { self.packed_relu() } else { Ok(()) };
        }
        let ty = self.any_ty(m)?;
        if INTS.contains(&ty) {
            let relu = ty == Ty::S32 && m.take("relu");
            self.int2_of(if max { IntOp::Max } else { IntOp::Min }, ty, false)?;
            if relu {
                let dst = self.dst(0, ty)?;
                let (a, b) = (Operand::Reg(dst), Operand::Imm(0));
                self.emit(Op::Int { op: IntOp::Max, ty, sat: false, dst, a, b })?;
            }
            return Ok(());
        }
        if !FLOATS.contains(&ty) || ty == Ty::F32x2 {
            return Err(self.invalid(format!("type {ty:?} is not allowed")));
        }
        let op = match (max, ty != Ty::F64 && m.take("NaN")) {
            (false, false) => FloatOp::Min,
            (true, false) => FloatOp::Max,
            (false, true) => FloatOp::MinNan,
            (true, true) => FloatOp::MaxNan,
        };
        if m.take("xorsign") {
            return self.xorsign(m, op, ty);
        }
        if self.args.len() != 4 {
            return self.float2(m, op, ty);
        }
        let ftz = self.ftz(m, ty);
        let magnitudes = ty == Ty::F32 && m.take("abs");
        let dst = self.dst(0, ty)?;
        let (mut a, mut b, mut c) = (self.src(1, ty)?, self.src(2, ty)?, self.src(3, ty)?);
        if magnitudes {
            for operand in [&mut a, &mut b, &mut c] {
                let absolute = self.new_reg(ty.reg())?;
                self.emit(Op::FloatUn { op: FloatUnOp::Abs, ty, ftz, dst: absolute, a: *operand })?;
                *operand = Operand::Reg(absolute);
            }
        }
        let pair = self.new_reg(ty.reg())?;
        self.emit(Op::Float { op, ty, round: Round::Rn, ftz, sat: false, dst: pair, a, b })?;
        self.emit(Op::Float { op, ty, round: Round::Rn, ftz, sat: false, dst, a: Operand::Reg(pair), b: c })?;
        Ok(())
    }

    /// `min.xorsign.abs d, a, b`: of the magnitudes, with the product's sign unless it is a NaN: times one of that sign.
    fn xorsign(&mut self, m: &mut Mods<'_>, op: FloatOp, ty: Ty) -> Result<(), PtxError> {
        if !m.take("abs") || ty == Ty::F64 {
            return Err(self.invalid(".xorsign goes with .abs, and not with f64"));
        }
        let ftz = self.ftz(m, ty);
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        let (bits, sign, one) = match ty {
            Ty::F32 => (Ty::B32, 0x8000_0000, 0x3f80_0000),
            Ty::F16x2 => (Ty::B32, 0x8000_8000, 0x3c00_3c00),
            Ty::BF16x2 => (Ty::B32, 0x8000_8000, 0x3f80_3f80),
            Ty::F16 => (Ty::B16, 0x8000, 0x3c00),
            _ => (Ty::B16, 0x8000, 0x3f80),
        };
        let [x, y, r, s, t, u] = [(); 6].map(|()| self.new_reg(ty.reg()));
        let [x, y, r, s, t, u] = [x?, y?, r?, s?, t?, u?];
        let absolute = |dst, a| Op::FloatUn { op: FloatUnOp::Abs, ty, ftz, dst, a };
        self.emit(absolute(x, a))?;
        self.emit(absolute(y, b))?;
        let (x, y) = (Operand::Reg(x), Operand::Reg(y));
        self.emit(Op::Float { op, ty, round: Round::Rn, ftz, sat: false, dst: r, a: x, b: y })?;
        let logic = |op, dst, a, b| Op::Int { op, ty: bits, sat: false, dst, a, b };
        self.emit(logic(IntOp::Xor, s, a, b))?;
        self.emit(logic(IntOp::And, t, Operand::Reg(s), Operand::Imm(sign)))?;
        self.emit(logic(IntOp::Or, u, Operand::Reg(t), Operand::Imm(one)))?;
        let (op, round) = (FloatOp::Mul, Round::Rn);
        self.emit(Op::Float { op, ty, round, ftz: false, sat: false, dst, a: Operand::Reg(r), b: Operand::Reg(u) })?;
        Ok(())
    }

    /// Negative lanes of the packed destination to zero.
    fn packed_relu(&mut self) -> Result<(), PtxError> {
        let dst = self.dst(0, Ty::B32)?;
        self.packed_of(VideoOp::Max, true, dst, Operand::Reg(dst), Operand::Imm(0))
    }

    /// Two 16-bit lanes in a b32 register.
    fn packed(&mut self, op: VideoOp, signed: bool) -> Result<(), PtxError> {
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, Ty::B32)?, self.src(1, Ty::B32)?, self.src(2, Ty::B32)?);
        self.packed_of(op, signed, dst, a, b)
    }

    fn packed_of(&mut self, op: VideoOp, signed: bool, dst: Reg, a: Operand, b: Operand) -> Result<(), PtxError> {
        self.emit(Op::Video {
            op,
            lanes: 2,
            a_signed: signed,
            b_signed: signed,
            d_signed: signed,
            sat: false,
            accumulate: false,
            mask: 0b11,
            dst,
            a,
            b,
            c: Operand::Imm(0),
        })?;
        Ok(())
    }

    pub(super) fn abs_neg(&mut self, m: &mut Mods<'_>, neg: bool) -> Result<(), PtxError> {
        let ty = self.any_ty(m)?;
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, ty)?, self.src(1, ty)?);
        if matches!(ty, Ty::S16 | Ty::S32 | Ty::S64) {
            self.emit(Op::IntUn { op: if neg { IntUnOp::Neg } else { IntUnOp::Abs }, ty, dst, a })?;
        } else if FLOATS.contains(&ty) && ty != Ty::F32x2 {
            let ftz = self.ftz(m, ty);
            self.emit(Op::FloatUn { op: if neg { FloatUnOp::Neg } else { FloatUnOp::Abs }, ty, ftz, dst, a })?;
        } else {
            return Err(self.invalid(format!("type {ty:?} is not allowed")));
        }
        Ok(())
    }

    pub(super) fn copysign(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::F32, Ty::F64])?;
        self.float2(m, FloatOp::Copysign, ty)
    }

    pub(super) fn root(&mut self, m: &mut Mods<'_>, form: Form) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::F32, Ty::F64])?;
        let precision = if m.take("approx") {
            Precision::Approx
        } else {
            let round = m.round().filter(|r| *r != Round::Rna);
            Precision::Ieee(round.ok_or_else(|| self.invalid("the instruction lacks a rounding modifier"))?)
        };
        let op = match (form, precision) {
            (Form::Rcp, p) => FloatUnOp::Rcp(p),
            (Form::Sqrt, p) if p != Precision::Approx || ty == Ty::F32 => FloatUnOp::Sqrt(p),
            (Form::Rsqrt, Precision::Approx) => FloatUnOp::Rsqrt(precision),
            _ => return Err(self.invalid("this precision is not allowed here")),
        };
        // `.approx.ftz.f64` flushes as the approximation of f64 always does.
        let ftz = m.take("ftz");
        self.unary(op, ty, ftz)
    }

    fn unary(&mut self, op: FloatUnOp, ty: Ty, ftz: bool) -> Result<(), PtxError> {
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, ty)?, self.src(1, ty)?);
        self.emit(Op::FloatUn { op, ty, ftz, dst, a })?;
        Ok(())
    }

    pub(super) fn transcendental(&mut self, m: &mut Mods<'_>, form: Form) -> Result<(), PtxError> {
        let halves = [Ty::F32, Ty::F16, Ty::F16x2, Ty::BF16, Ty::BF16x2];
        let (op, types) = match form {
            Form::Sin => (FloatUnOp::Sin, &halves[..1]),
            Form::Cos => (FloatUnOp::Cos, &halves[..1]),
            Form::Lg2 => (FloatUnOp::Lg2, &halves[..1]),
            Form::Ex2 => (FloatUnOp::Ex2, &halves[..]),
            _ => (FloatUnOp::Tanh, &halves[..]),
        };
        if !m.take("approx") {
            return Err(self.invalid("the instruction lacks .approx"));
        }
        let ty = self.ty_in(m, types)?;
        let ftz = op != FloatUnOp::Tanh && m.take("ftz");
        self.unary(op, ty, ftz)
    }

    pub(super) fn testp(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let class = m.find(|w| {
            ["finite", "infinite", "number", "notanumber", "normal", "subnormal"].iter().position(|c| *c == w)
        });
        let class = class.ok_or_else(|| self.invalid("testp lacks a class"))? as u8;
        let ty = self.ty_in(m, &[Ty::F32, Ty::F64])?;
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, Ty::Pred)?, self.src(1, ty)?);
        self.emit(Op::Testp { class, ty, dst, a })?;
        Ok(())
    }
}

/// Types of integer arithmetic.
pub(super) const INTS: [Ty; 6] = [Ty::U16, Ty::U32, Ty::U64, Ty::S16, Ty::S32, Ty::S64];
/// Types of floating-point arithmetic.
pub(super) const FLOATS: [Ty; 7] = [Ty::F16, Ty::F16x2, Ty::BF16, Ty::BF16x2, Ty::F32, Ty::F32x2, Ty::F64];

fn saturable(ty: Ty) -> bool {
    matches!(ty, Ty::F32 | Ty::F16 | Ty::F16x2)
}

/// Narrower types of operands of an f32 instruction.
fn half(word: &str) -> Option<Ty> {
    match word {
        "f16" => Some(Ty::F16),
        "bf16" => Some(Ty::BF16),
        _ => None,
    }
}

/// Two-lane integer types; true if signed.
fn packed_ints(word: &str) -> Option<bool> {
    match word {
        "s16x2" => Some(true),
        "u16x2" => Some(false),
        _ => None,
    }
}
