//! Comparison, selection, moves and conversions.

use super::arith::INTS;
use super::body::{Body, Name};
use super::mods::Mods;
use super::narrow::fp8;
use super::operand::{Arg, special};
use crate::error::PtxError;
use crate::ir::{BoolOp, Cmp, IntOp, Op, Operand, PredRef, Reg, RegTy, Round, Space, Ty};

/// A comparison, and whether it is one of the unsigned forms `lo`, `ls`, `hi`, `hs`.
fn comparison(word: &str) -> Option<(Cmp, bool)> {
    Some(match word {
        "eq" => (Cmp::Eq, false),
        "ne" => (Cmp::Ne, false),
        "lt" => (Cmp::Lt, false),
        "le" => (Cmp::Le, false),
        "gt" => (Cmp::Gt, false),
        "ge" => (Cmp::Ge, false),
        "lo" => (Cmp::Lt, true),
        "ls" => (Cmp::Le, true),
        "hi" => (Cmp::Gt, true),
        "hs" => (Cmp::Ge, true),
        "equ" => (Cmp::Equ, false),
        "neu" => (Cmp::Neu, false),
        "ltu" => (Cmp::Ltu, false),
        "leu" => (Cmp::Leu, false),
        "gtu" => (Cmp::Gtu, false),
        "geu" => (Cmp::Geu, false),
        "num" => (Cmp::Num, false),
        "nan" => (Cmp::Nan, false),
        _ => return None,
    })
}

/// A type of `cvt.pack`: its bits, and whether it is signed.
fn packed_int(word: &str) -> Option<(u64, bool)> {
    let (sign, bits) = word.split_at_checked(1)?;
    let width = ["2", "4", "8", "16"].contains(&bits).then(|| bits.parse().ok()).flatten()?;
    match sign {
        "u" => Some((width, false)),
        "s" => Some((width, true)),
        _ => None,
    }
}

fn bool_op(word: &str) -> Option<BoolOp> {
    match word {
        "and" => Some(BoolOp::And),
        "or" => Some(BoolOp::Or),
        "xor" => Some(BoolOp::Xor),
        _ => None,
    }
}

const MOVABLE: [Ty; 19] = [
    Ty::Pred,
    Ty::B8,
    Ty::U8,
    Ty::S8,
    Ty::B16,
    Ty::B32,
    Ty::B64,
    Ty::B128,
    Ty::U16,
    Ty::U32,
    Ty::U64,
    Ty::S16,
    Ty::S32,
    Ty::S64,
    Ty::F16,
    Ty::F16x2,
    Ty::BF16,
    Ty::F32,
    Ty::F64,
];

impl<'a> Body<'a, '_> {
    fn comparison(&self, m: &mut Mods<'_>) -> Result<(Cmp, bool, Option<BoolOp>), PtxError> {
        let (cmp, unsigned) = m.find(comparison).ok_or_else(|| self.invalid("a comparison operator is missing"))?;
        Ok((cmp, unsigned, m.find(bool_op)))
    }

    /// Is this comparison defined for the type?
    fn check_compare(&self, cmp: Cmp, unsigned: bool, ty: Ty) -> Result<(), PtxError> {
        let ok = match ty {
            Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64 | Ty::F16x2 | Ty::BF16x2 => !unsigned,
            Ty::B16 | Ty::B32 | Ty::B64 => matches!(cmp, Cmp::Eq | Cmp::Ne),
            _ if INTS.contains(&ty) => {
                matches!(cmp, Cmp::Eq | Cmp::Ne | Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge)
                    && !(unsigned && ty.is_signed())
            }
            _ => false,
        };
        if ok { Ok(()) } else { Err(self.invalid(format!("comparison {cmp:?} is not allowed for {ty:?}"))) }
    }

    /// The predicate operand of a comparison with a Boolean operator.
    fn combine(&mut self, op: Option<BoolOp>) -> Result<Option<(BoolOp, PredRef)>, PtxError> {
        match op {
            Some(op) => {
                self.count(4..=4)?;
                Ok(Some((op, self.pred(3)?)))
            }
            None => {
                self.count(3..=3)?;
                Ok(None)
            }
        }
    }

    pub(super) fn setp(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let (cmp, unsigned, bool_op) = self.comparison(m)?;
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        self.check_compare(cmp, unsigned, ty)?;
        let ftz = matches!(ty, Ty::F16 | Ty::F16x2 | Ty::F32) && m.take("ftz");
        let combine = self.combine(bool_op)?;
        let (dst, dst2) = self.dst_pair(0, Ty::Pred)?;
        if matches!(ty, Ty::F16x2 | Ty::BF16x2) {
            return self.setp_halves(cmp, ty, ftz, [dst, dst2], combine);
        }
        let (a, b) = (self.src(1, ty)?, self.src(2, ty)?);
        let dst = match dst {
            Some(dst) => dst,
            None => self.new_reg(RegTy::Pred)?,
        };
        self.emit(Op::Setp { cmp, ty, ftz, dst, dst2, a, b, combine })?;
        Ok(())
    }

    /// Two comparisons of halves, one predicate each.
    fn setp_halves(
        &mut self,
        cmp: Cmp,
        ty: Ty,
        ftz: bool,
        dsts: [Option<Reg>; 2],
        combine: Option<(BoolOp, PredRef)>,
    ) -> Result<(), PtxError> {
        let half = if ty == Ty::F16x2 { Ty::F16 } else { Ty::BF16 };
        let mut parts = [[Operand::Imm(0); 2]; 2];
        for (operand, halves) in parts.iter_mut().enumerate() {
            let src = self.src(operand + 1, ty)?;
            let (low, high) = (self.new_reg(RegTy::B16)?, self.new_reg(RegTy::B16)?);
            self.emit(Op::Unpack { dsts: vec![Some(low), Some(high)], src })?;
            *halves = [Operand::Reg(low), Operand::Reg(high)];
        }
        // Both halves read the same predicate; the first result must not overwrite it.
        let first = self.new_reg(RegTy::Pred)?;
        for (lane, dst) in dsts.into_iter().enumerate() {
            let (a, b) = (parts[0][lane], parts[1][lane]);
            let to = if lane == 0 { Some(first) } else { dst };
            if let Some(dst) = to {
                self.emit(Op::Setp { cmp, ty: half, ftz, dst, dst2: None, a, b, combine })?;
            }
        }
        if let Some(dst) = dsts[0] {
            self.emit(Op::Mov { ty: Ty::Pred, dst, src: Operand::Reg(first) })?;
        }
        Ok(())
    }

    pub(super) fn set(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let (cmp, unsigned, bool_op) = self.comparison(m)?;
        let dst_ty =
            self.ty_in(m, &[Ty::U32, Ty::S32, Ty::F32, Ty::F16, Ty::BF16, Ty::U16, Ty::S16, Ty::F16x2, Ty::BF16x2])?;
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        self.check_compare(cmp, unsigned, ty)?;
        if matches!(ty, Ty::F16x2 | Ty::BF16x2) {
            return self.set_halves(m, cmp, dst_ty, ty, bool_op);
        }
        if matches!(dst_ty, Ty::F16x2 | Ty::BF16x2) {
            return Err(self.invalid("a packed result of a comparison that is not packed"));
        }
        let ftz = matches!(ty, Ty::F16 | Ty::F32) && m.take("ftz");
        let combine = self.combine(bool_op)?;
        let (dst, a, b) = (self.dst(0, dst_ty)?, self.src(1, ty)?, self.src(2, ty)?);
        self.emit(Op::Set { cmp, dst_ty, ty, ftz, dst, a, b, combine })?;
        Ok(())
    }

    /// Two comparisons of halves; each half of the result is all ones or 1.0, or zero.
    fn set_halves(
        &mut self,
        m: &mut Mods<'_>,
        cmp: Cmp,
        dst_ty: Ty,
        ty: Ty,
        bool_op: Option<BoolOp>,
    ) -> Result<(), PtxError> {
        let truth = match dst_ty {
            Ty::U32 | Ty::S32 => 0xffff,
            Ty::F16x2 => u64::from(half::f16::ONE.to_bits()),
            Ty::BF16x2 => u64::from(half::bf16::ONE.to_bits()),
            _ => return Err(self.invalid("the result of a packed comparison has 32 bits")),
        };
        let ftz = ty == Ty::F16x2 && m.take("ftz");
        let combine = self.combine(bool_op)?;
        let dst = self.dst(0, dst_ty)?;
        let preds = [self.new_reg(RegTy::Pred)?, self.new_reg(RegTy::Pred)?];
        self.setp_halves(cmp, ty, ftz, preds.map(Some), combine)?;
        let mut srcs = Vec::with_capacity(2);
        for reg in preds {
            let half = self.new_reg(RegTy::B16)?;
            let p = PredRef { reg, negate: false };
            self.emit(Op::Selp { ty: Ty::B16, dst: half, a: Operand::Imm(truth), b: Operand::Imm(0), p })?;
            srcs.push(Operand::Reg(half));
        }
        self.emit(Op::Pack { dst, srcs })?;
        Ok(())
    }

    pub(super) fn selp(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &MOVABLE[4..])?;
        self.count(4..=4)?;
        let (dst, a, b) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?);
        let p = self.pred(3)?;
        self.emit(Op::Selp { ty, dst, a, b, p })?;
        Ok(())
    }

    pub(super) fn slct(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &MOVABLE[4..])?;
        let cty = self.ty_in(m, &[Ty::S32, Ty::F32])?;
        let ftz = cty == Ty::F32 && m.take("ftz");
        self.count(4..=4)?;
        let (dst, a, b, c) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, ty)?, self.src(3, cty)?);
        self.emit(Op::Slct { ty, cty, ftz, dst, a, b, c })?;
        Ok(())
    }

    pub(super) fn mov(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let vector = m.vector();
        let ty = self.ty_in(m, &MOVABLE)?;
        self.count(2..=2)?;
        if vector > 1 {
            return self.mov_vector(vector, ty);
        }
        match (self.arg(0)?, self.arg(1)?) {
            (Arg::Vector(..), Arg::Vector(..)) => Err(self.invalid("mov of a vector needs .v2 or .v4")),
            (Arg::Vector(..), _) => self.unpack(ty),
            (_, Arg::Vector(..)) => self.pack(ty),
            (_, Arg::Word(name)) if self.lookup(name)?.is_none() && special(name).is_some() => {
                let dst = self.dst(0, ty)?;
                match special(name) {
                    Some((sreg, _)) => self.read_special(sreg, ty, dst),
                    None => Ok(()),
                }
            }
            _ => {
                let (dst, src) = (self.dst(0, ty)?, self.src(1, ty)?);
                self.emit(Op::Mov { ty, dst, src })?;
                Ok(())
            }
        }
    }

    /// `mov.v2.b32 {a, b}, {c, d}`, all sources read first.
    fn mov_vector(&mut self, lanes: usize, ty: Ty) -> Result<(), PtxError> {
        let (to, from) = (self.elements(0)?, self.elements(1)?);
        if to.len() != lanes || from.len() != lanes {
            return Err(self.invalid("the vectors do not have the instruction's length"));
        }
        let mut copies = Vec::with_capacity(lanes);
        for arg in from {
            let src = self.source(arg, ty)?;
            let copy = self.new_reg(ty.reg())?;
            self.emit(Op::Mov { ty, dst: copy, src })?;
            copies.push(copy);
        }
        for (arg, copy) in to.into_iter().zip(copies) {
            match arg {
                Arg::Word("_") => {}
                Arg::Word(name) => {
                    let dst = self.reg_of(name, ty.reg())?;
                    self.emit(Op::Mov { ty, dst, src: Operand::Reg(copy) })?;
                }
                Arg::Reg(dst) if self.inst.graph.ty(dst) == ty.reg() => {
                    self.emit(Op::Mov { ty, dst, src: Operand::Reg(copy) })?;
                }
                _ => return Err(self.invalid("the destination is not a register")),
            }
        }
        Ok(())
    }

    /// The type of each of `parts` parts of `ty`.
    fn part_ty(&self, ty: Ty, parts: usize) -> Result<Ty, PtxError> {
        match (ty.bits() as usize).checked_div(parts) {
            Some(8) => Ok(Ty::B8),
            Some(16) => Ok(Ty::B16),
            Some(32) => Ok(Ty::B32),
            Some(64) => Ok(Ty::B64),
            _ => Err(self.invalid("the vector does not have as many bits as the instruction")),
        }
    }

    fn unpack(&mut self, ty: Ty) -> Result<(), PtxError> {
        let parts = self.elements(0)?;
        let part = self.part_ty(ty, parts.len())?;
        let mut src = self.src(1, ty)?;
        if matches!(src, Operand::Imm(_)) {
            let whole = self.new_reg(ty.reg())?;
            self.emit(Op::Mov { ty, dst: whole, src })?;
            src = Operand::Reg(whole);
        }
        let mut dsts = Vec::with_capacity(parts.len());
        for arg in parts {
            dsts.push(match arg {
                Arg::Word("_") => None,
                Arg::Word(name) => Some(self.reg_of(name, part.reg())?),
                _ => return Err(self.invalid("the destination is not a register")),
            });
        }
        self.emit(Op::Unpack { dsts, src })?;
        Ok(())
    }

    fn pack(&mut self, ty: Ty) -> Result<(), PtxError> {
        let parts = self.elements(1)?;
        let part = self.part_ty(ty, parts.len())?;
        let dst = self.dst(0, ty)?;
        let mut srcs = Vec::with_capacity(parts.len());
        for arg in parts {
            srcs.push(self.source(arg, part)?);
        }
        self.emit(Op::Pack { dst, srcs })?;
        Ok(())
    }

    pub(super) fn cvt(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if m.take("pack") {
            return self.cvt_pack(m);
        }
        let integral = m.round_integral();
        let round = m.round();
        let (ftz, mut sat, relu) = (m.take("ftz"), m.take("sat"), m.take("relu"));
        if let Some(format) = m.find(fp8) {
            return self.cvt_fp8(m, format, round, relu);
        }
        if m.take("ue8m0x2") {
            return self.cvt_ue8m0(m, round);
        }
        let narrow = m.find(|w| {
            (w.starts_with("e4m3")
                || w.starts_with("e5m2")
                || w.starts_with("e2m")
                || w.starts_with("e3m2")
                || w == "rs"
                || w == "s2f6x2"
                || w == "scaled::n2::ue8m0")
                .then_some(())
        });
        if narrow.is_some() {
            let what = "conversions of fp6 and fp4 numbers, of four at once, scaled, or rounded by .rs";
            return Err(
                self.unsupported(format!("{what}, which are of sm_100a, sm_120a and their kin, are not supported"))
            );
        }
        if m.take("tf32") {
            return self.cvt_tf32(m, round, relu);
        }
        let dst_ty = m.ty().map_err(|e| self.invalid(e))?;
        let src_ty = m.ty().map_err(|e| self.invalid(e))?;
        let scalar =
            |ty: Ty| INTS.contains(&ty) || matches!(ty, Ty::U8 | Ty::S8 | Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64);
        if matches!(dst_ty, Ty::F16x2 | Ty::BF16x2) && src_ty == Ty::F32 {
            let round = match round {
                Some(r @ (Round::Rn | Round::Rz)) => r,
                _ => return Err(self.invalid("the conversion lacks a rounding modifier")),
            };
            sat |= m.take("satfinite");
            self.count(3..=3)?;
            let (dst, a, b) = (self.dst(0, dst_ty)?, self.src(1, src_ty)?, self.src(2, src_ty)?);
            self.emit(Op::CvtPack { dst_ty, src_ty, round, sat, relu, dst, a, b })?;
            return Ok(());
        }
        if !scalar(dst_ty) || !scalar(src_ty) {
            return Err(self.invalid(format!("no conversion from {src_ty:?} to {dst_ty:?}")));
        }
        if m.take("satfinite") {
            return self.cvt_satfinite(dst_ty, src_ty, round, relu);
        }
        let round = self.check_rounding(dst_ty, src_ty, round, integral)?;
        let to_integral = integral.is_some() && dst_ty.is_float();
        self.count(2..=2)?;
        let (dst, a) = (self.wide_dst(0, dst_ty)?, self.wide_src(1, src_ty)?);
        if !(to_integral || ftz || sat || relu) && self.cvt_bits(dst_ty, src_ty, dst, a)? {
            return Ok(());
        }
        self.emit(Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu, dst, a })?;
        Ok(())
    }

    /// Conversions that hand on all bits, those of NaNs too, as hardware does: between f32 or f64 and themselves, and of bf16 to f32.
    /// False for others, and where a register is wider than its type.
    fn cvt_bits(&mut self, dst_ty: Ty, src_ty: Ty, dst: Reg, src: Operand) -> Result<bool, PtxError> {
        let wide = |reg: Reg, ty: Ty| self.inst.graph.ty(reg) != ty.reg();
        if wide(dst, dst_ty) || matches!(src, Operand::Reg(src) if wide(src, src_ty)) {
            return Ok(false);
        }
        match (dst_ty, src_ty) {
            (Ty::F32, Ty::F32) | (Ty::F64, Ty::F64) => self.emit(Op::Mov { ty: dst_ty, dst, src })?,
            (Ty::F32, Ty::BF16) => {
                let (a, b) = (self.converted(src, Ty::U16, Ty::U32)?, Operand::Imm(16));
                self.emit(Op::Int { op: IntOp::Shl, ty: Ty::B32, sat: false, dst, a, b })?
            }
            _ => return Ok(false),
        };
        Ok(true)
    }

    /// `cvt.pack.sat`: `b` in the low bits, `a` above it, and above both the low bits of `c`, if there is room.
    fn cvt_pack(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let (width, signed) = m.find(packed_int).ok_or_else(|| self.invalid("cvt.pack lacks a type to convert to"))?;
        let ty = self.ty_in(m, &[Ty::S32])?;
        if !m.take("sat") {
            return Err(self.invalid("cvt.pack lacks .sat"));
        }
        let room = width < 16;
        if room {
            self.ty_in(m, &[Ty::B32])?;
        }
        self.count(3 + usize::from(room)..=3 + usize::from(room))?;
        let (dst, a, b) = (self.dst(0, Ty::B32)?, self.src(1, ty)?, self.src(2, ty)?);
        let mut whole = if room { self.src(3, Ty::B32)? } else { Operand::Imm(0) };
        if room {
            whole = self.int(IntOp::Shl, Ty::B32, whole, Operand::Imm(2 * width))?;
        }
        let (low, high) = if signed { (-1_i32 << (width - 1), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
        for (at, part) in [b, a].into_iter().enumerate() {
            let part = self.int(IntOp::Max, ty, part, Operand::Imm(low.cast_unsigned().into()))?;
            let part = self.int(IntOp::Min, ty, part, Operand::Imm(high))?;
            whole = self.insert(part, whole, at as u64 * width, width)?;
        }
        self.emit(Op::Mov { ty: Ty::B32, dst, src: whole })?;
        Ok(())
    }

    /// `b` with `a` in `len` bits at `pos`, in a register of its own.
    pub(super) fn insert(&mut self, a: Operand, b: Operand, pos: u64, len: u64) -> Result<Operand, PtxError> {
        let dst = self.new_reg(RegTy::B32)?;
        self.emit(Op::Bfi { ty: Ty::B32, dst, a, b, pos: Operand::Imm(pos), len: Operand::Imm(len) })?;
        Ok(Operand::Reg(dst))
    }

    /// The rounding in force, which is where the ISA wants one and nowhere else.
    fn check_rounding(
        &self,
        dst_ty: Ty,
        src_ty: Ty,
        round: Option<Round>,
        integral: Option<Round>,
    ) -> Result<Option<Round>, PtxError> {
        let missing = "rounding modifier required for instruction 'cvt'";
        match (src_ty.is_float(), dst_ty.is_float()) {
            (true, false) => match (integral, round) {
                (Some(r), None) => Ok(Some(r)),
                _ => Err(self.invalid(missing)),
            },
            (true, true) if src_ty == dst_ty => match (integral, round) {
                (Some(r), None) => Ok(Some(r)),
                (None, None) => Ok(None),
                _ => Err(self.invalid("this rounding is not allowed here")),
            },
            (true, true) => match (integral, round) {
                (None, Some(r)) => Ok(Some(r)),
                (None, None) if dst_ty.bits() > src_ty.bits() => Ok(None),
                (None, None) => Err(self.invalid(missing)),
                (Some(_), _) => Err(self.invalid("this rounding is not allowed here")),
            },
            (false, true) => match (integral, round) {
                (None, Some(r)) => Ok(Some(r)),
                _ => Err(self.invalid(missing)),
            },
            (false, false) => match (integral, round) {
                (None, None) => Ok(None),
                _ => Err(self.invalid("this rounding is not allowed here")),
            },
        }
    }

    /// Addresses of global and constant memory are generic addresses already; of the others, shared and local memory
    /// have windows, and a kernel's parameters are copied to local memory.
    pub(super) fn cvta(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let to_generic = !m.take("to");
        let space = m.space().ok_or_else(|| self.invalid("cvta lacks a state space"))?;
        let ty = self.ty_in(m, &[Ty::U64, Ty::U32])?;
        if ty == Ty::U32 {
            return Err(self.unsupported("32-bit generic addresses are not supported"));
        }
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, ty)?, self.src(1, ty)?);
        match space {
            Space::Global | Space::Const | Space::Generic => {
                self.emit(Op::Mov { ty: Ty::B64, dst, src: a })?;
            }
            Space::Shared | Space::Local => {
                self.emit(Op::Cvta { space, to_generic, dst, a })?;
            }
            Space::Param if self.ret.is_some() => {
                self.emit(Op::Cvta { space: Space::Local, to_generic, dst, a })?;
            }
            Space::Param if to_generic => {
                let copy = self.inst.param_copy.ok_or_else(|| self.invalid("a parameter's address in a function"))?;
                let at = self.new_reg(RegTy::B64)?;
                self.emit(Op::Int { op: IntOp::Add, ty: Ty::U64, sat: false, dst: at, a, b: Operand::Imm(copy) })?;
                self.emit(Op::Cvta { space: Space::Local, to_generic, dst, a: Operand::Reg(at) })?;
            }
            Space::Param => return Err(self.unsupported("cvta.to.param is not supported")),
        }
        Ok(())
    }

    pub(super) fn isspacep(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let space = m.space().ok_or_else(|| self.invalid("isspacep lacks a state space"))?;
        self.count(2..=2)?;
        let (dst, a) = (self.dst(0, Ty::Pred)?, self.src(1, Ty::U64)?);
        if m.names_cluster() {
            return self.is_of_cluster(dst, a);
        }
        match space {
            // No generic address is a parameter's: they are copied. Constants cannot be told from other globals.
            Space::Param | Space::Const => self.emit(Op::Mov { ty: Ty::Pred, dst, src: Operand::Imm(0) })?,
            _ => self.emit(Op::Isspacep { space, dst, a })?,
        };
        Ok(())
    }

    /// Does the name mean a register here?
    pub(super) fn is_reg(&mut self, name: &'a str) -> Result<bool, PtxError> {
        Ok(matches!(self.lookup(name)?, Some(Name::Reg(_))))
    }
}
