//! Bits: logic, shifts, fields, permutes, dot products.

use super::arith::INTS;
use super::body::Body;
use super::mods::Mods;
use crate::error::PtxError;
use crate::ir::{BoolOp, Cmp, IntOp, IntUnOp, Op, Operand, Ty};

const WORDS: [Ty; 2] = [Ty::B32, Ty::B64];
const FIELDS: [Ty; 4] = [Ty::U32, Ty::U64, Ty::S32, Ty::S64];

impl Body<'_, '_> {
    pub(super) fn logic(&mut self, m: &mut Mods<'_>, op: IntOp) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::Pred, Ty::B16, Ty::B32, Ty::B64])?;
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        self.emit(Op::Int { op, ty, sat: false, dst, a, b })?;
        Ok(())
    }

    pub(super) fn not(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::Pred, Ty::B16, Ty::B32, Ty::B64])?;
        self.int1(IntUnOp::Not, ty, ty)
    }

    pub(super) fn cnot(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::B16, Ty::B32, Ty::B64])?;
        self.int1(IntUnOp::Cnot, ty, ty)
    }

    fn int1(&mut self, op: IntUnOp, ty: Ty, result: Ty) -> Result<(), PtxError> {
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, result)?, self.src(1, ty)?);
        self.emit(Op::IntUn { op, ty, dst, a })?;
        Ok(())
    }

    pub(super) fn shift(&mut self, m: &mut Mods<'_>, op: IntOp) -> Result<(), PtxError> {
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        let bits = matches!(ty, Ty::B16 | Ty::B32 | Ty::B64);
        if !bits && (op == IntOp::Shl || !INTS.contains(&ty)) {
            return Err(self.invalid(format!("type {ty:?} is not allowed")));
        }
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, Ty::U32)?);
        self.emit(Op::Int { op, ty, sat: false, dst, a, b })?;
        Ok(())
    }

    pub(super) fn count_bits(&mut self, m: &mut Mods<'_>, op: IntUnOp) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &WORDS)?;
        self.int1(op, ty, if op == IntUnOp::Brev { ty } else { Ty::U32 })
    }

    pub(super) fn bfind(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let op = if m.take("shiftamt") { IntUnOp::BfindShiftAmt } else { IntUnOp::Bfind };
        let ty = self.ty_in(m, &FIELDS)?;
        self.int1(op, ty, Ty::U32)
    }

    pub(super) fn bfe(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &FIELDS)?;
        self.count(4..=4)?;
        let (dst, a) = (self.dst(0, ty)?, self.src(1, ty)?);
        let (pos, len) = (self.src(2, Ty::U32)?, self.src(3, Ty::U32)?);
        self.emit(Op::Bfe { ty, dst, a, pos, len })?;
        Ok(())
    }

    pub(super) fn bfi(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &WORDS)?;
        self.count(5..=5)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        let (pos, len) = (self.src(3, Ty::U32)?, self.src(4, Ty::U32)?);
        self.emit(Op::Bfi { ty, dst, a, b, pos, len })?;
        Ok(())
    }

    /// `.clamp` or `.wrap`, one of which must be there; true for clamp.
    pub(super) fn clamp(&self, m: &mut Mods<'_>) -> Result<bool, PtxError> {
        let mode = m.find(|w| match w {
            "clamp" => Some(true),
            "wrap" => Some(false),
            _ => None,
        });
        mode.ok_or_else(|| self.invalid("the instruction lacks .clamp or .wrap"))
    }

    pub(super) fn bmsk(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let clamp = self.clamp(m)?;
        let ty = self.ty_in(m, &[Ty::B32])?;
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, Ty::U32)?, self.src(2, Ty::U32)?);
        self.emit(Op::Bmsk { clamp, dst, a, b })?;
        Ok(())
    }

    pub(super) fn szext(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let clamp = self.clamp(m)?;
        let ty = self.ty_in(m, &[Ty::U32, Ty::S32])?;
        self.count(3..=3)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, Ty::U32)?);
        self.emit(Op::Szext { clamp, ty, dst, a, b })?;
        Ok(())
    }

    pub(super) fn fns(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::B32])?;
        self.count(4..=4)?;
        let (dst, mask) = (self.dst(0, ty)?, self.src(1, ty)?);
        let (base, offset) = (self.src(2, Ty::U32)?, self.src(3, Ty::S32)?);
        self.emit(Op::Fns { dst, mask, base, offset })?;
        Ok(())
    }

    pub(super) fn prmt(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let mode = m.find(|w| ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].iter().position(|c| *c == w));
        let mode = mode.map(|n| n as u8);
        let ty = self.ty_in(m, &[Ty::B32])?;
        self.count(4..=4)?;
        let (dst, a, b, c) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?, self.src(3, ty)?);
        self.emit(Op::Prmt { mode, dst, a, b, c })?;
        Ok(())
    }

    pub(super) fn shf(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let left = m.find(|w| match w {
            "l" => Some(true),
            "r" => Some(false),
            _ => None,
        });
        let left = left.ok_or_else(|| self.invalid("shf lacks .l or .r"))?;
        let wrap = !self.clamp(m)?;
        let ty = self.ty_in(m, &[Ty::B32])?;
        self.count(4..=4)?;
        let (dst, a, b, c) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?, self.src(3, Ty::U32)?);
        self.emit(Op::Shf { left, wrap, dst, a, b, c })?;
        Ok(())
    }

    /// `lop3.b32 d, a, b, c, lut` or `lop3.BoolOp.b32 d|p, a, b, c, lut, q`: p is (d != 0) BoolOp q.
    pub(super) fn lop3(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let combine = m.find(|w| match w {
            "or" => Some(BoolOp::Or),
            "and" => Some(BoolOp::And),
            _ => None,
        });
        let ty = self.ty_in(m, &[Ty::B32])?;
        let count = 5 + usize::from(combine.is_some());
        self.count(count..=count)?;
        let (dst, pred) = self.dst_pair(0, ty)?;
        let dst = match dst {
            Some(dst) => dst,
            None => self.new_reg(ty.reg())?,
        };
        let (a, b, c) = (self.src(1, ty)?, self.src(2, ty)?, self.src(3, ty)?);
        let Operand::Imm(lut) = self.src(4, Ty::B32)? else {
            return Err(self.invalid("the table of lop3 is not an immediate"));
        };
        let lut = u8::try_from(lut).map_err(|_| self.invalid("the table of lop3 has 8 bits"))?;
        self.emit(Op::Lop3 { lut, dst, a, b, c })?;
        match (combine, pred) {
            (Some(op), Some(p)) => {
                let q = self.pred(5)?;
                let (a, b) = (Operand::Reg(dst), Operand::Imm(0));
                let combine = Some((op, q));
                self.emit(Op::Setp { cmp: Cmp::Ne, ty: Ty::B32, ftz: false, dst: p, dst2: None, a, b, combine })?;
                Ok(())
            }
            (None, None) | (Some(_), None) => Ok(()),
            (None, Some(_)) => Err(self.invalid("lop3 with a predicate lacks .and or .or")),
        }
    }

    pub(super) fn dot(&mut self, m: &mut Mods<'_>, four: bool) -> Result<(), PtxError> {
        let half = m.find(|w| match w {
            "lo" => Some(false),
            "hi" => Some(true),
            _ => None,
        });
        let hi = match (four, half) {
            (true, None) => false,
            (false, Some(hi)) => hi,
            (true, Some(_)) => return Err(self.invalid("dp4a has no halves")),
            (false, None) => return Err(self.invalid("dp2a lacks .lo or .hi")),
        };
        let a_ty = self.ty_in(m, &[Ty::U32, Ty::S32])?;
        let b_ty = self.ty_in(m, &[Ty::U32, Ty::S32])?;
        self.count(4..=4)?;
        let (dst, a, b, c) = (self.dst(0, a_ty)?, self.src(1, a_ty)?, self.src(2, b_ty)?, self.src(3, a_ty)?);
        self.emit(Op::Dot { four, hi, a_signed: a_ty.is_signed(), b_signed: b_ty.is_signed(), dst, a, b, c })?;
        Ok(())
    }
}
