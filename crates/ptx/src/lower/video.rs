//! Video instructions: scalar ones, of which the operands may be bytes and halves of registers, and packed ones, on two halves or four
//! bytes at once.
//!
//! Scalar ones are lowered to arithmetic in 64 bits, which holds what the manual computes in 34. Recent hardware has no such
//! instructions: what the driver's compiler makes of them is not the manual's in these points, and is what is made of them here:
//!
//! - `.sat` to `.u32` makes negative results zero, but larger ones wrap, except of shifts, whose results have 34 bits first.
//! - `.sat` to a part of a signed destination takes the result as unsigned, so a negative one becomes the largest.
//! - The part `.h1` of the destination gets the upper half of the result, not its lower one.
//! - The third operand of `vset` has the type of the first.
//! - `vmad` extends its third operand by its sign also where all types are unsigned, and shifts zeros in there.
//!
//! Source: PTX ISA, "Video instructions"; what differs: an H200 with driver 580.159.04. Parts of the destination were measured of
//! arithmetic with signed results only: that `.h1` is the same for shifts and `vset` is inferred, and saturation of unsigned parts is the
//! manual's.

use super::body::Body;
use super::mods::Mods;
use super::operand::Arg;
use crate::error::PtxError;
use crate::ir::{Cmp, IntOp, IntUnOp, MulPart, Op, Operand, PredRef, RegTy, Ty, VideoOp};
use crate::lexer::clip;

/// What a scalar video instruction does first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scalar {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    Shl,
    Shr,
    Set,
}

impl Scalar {
    fn shifts(self) -> bool {
        matches!(self, Scalar::Shl | Scalar::Shr)
    }
}

/// A scalar instruction but for its operands.
struct ScalarForm {
    op: Scalar,
    /// Of `vset`.
    cmp: Cmp,
    /// Of shifts; `.wrap` if not.
    clamp: bool,
    /// The types of result and third operand, and of the first two.
    signed: bool,
    a_signed: bool,
    b_signed: bool,
    sat: bool,
    /// The second operation, with the third operand.
    second: Option<IntOp>,
    /// The part of the destination that is written; the rest is the third operand's.
    part: Option<Part>,
}

/// A byte or a half of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    at: u8,
    bits: u8,
}

/// The upper half.
const H1: Part = Part { at: 16, bits: 16 };

/// The operands of a packed instruction: lane `i` of `a` and `b` is what is selected for lane `i` of the result.
struct Lanes {
    a: Operand,
    b: Operand,
    c: Operand,
    /// Lanes of the result that come not from `c`.
    mask: u8,
}

impl<'a> Body<'a, '_> {
    /// A type, true if it is signed.
    fn video_type(&self, m: &mut Mods<'_>) -> Result<bool, PtxError> {
        Ok(self.ty_in(m, &[Ty::U32, Ty::S32])?.is_signed())
    }

    /// Takes the selector, `b1` of `%r2.b1`, off operand `at`. A vector register's element is no selector.
    fn take_selector(&mut self, at: usize) -> Result<Option<&'a str>, PtxError> {
        let Arg::Word(word) = self.arg(at)? else { return Ok(None) };
        let Some((name, selector)) = word.rsplit_once('.') else { return Ok(None) };
        if self.lookup(word)?.is_some() || !self.is_reg(name)? {
            return Ok(None);
        }
        self.args[at] = Arg::Word(name);
        Ok(Some(selector))
    }

    /// Takes the sign off operand `at`: was there one?
    fn take_negation(&mut self, at: usize) -> Result<bool, PtxError> {
        let Arg::Negated(word) = self.arg(at)? else { return Ok(false) };
        self.args[at] = Arg::Word(word);
        Ok(true)
    }

    fn bad_selector(&self, selector: &str) -> PtxError {
        self.invalid(format!("selector '.{}' is not allowed", clip(selector)))
    }

    /// The part of a register that operand `at` selects.
    fn part(&mut self, at: usize) -> Result<Option<Part>, PtxError> {
        let Some(selector) = self.take_selector(at)? else { return Ok(None) };
        let part = match selector {
            "b0" => Part { at: 0, bits: 8 },
            "b1" => Part { at: 8, bits: 8 },
            "b2" => Part { at: 16, bits: 8 },
            "b3" => Part { at: 24, bits: 8 },
            "h0" => Part { at: 0, bits: 16 },
            "h1" => H1,
            _ => return Err(self.bad_selector(selector)),
        };
        Ok(Some(part))
    }

    /// Operand `at`, or the part of it that is selected, as a number of 64 bits.
    fn video_source(&mut self, at: usize, signed: bool) -> Result<Operand, PtxError> {
        let part = self.part(at)?;
        self.number(at, part, signed)
    }

    /// Operand `at`, or a part of it, as a number of 64 bits.
    fn number(&mut self, at: usize, part: Option<Part>, signed: bool) -> Result<Operand, PtxError> {
        let (ty, wide) = if signed { (Ty::S32, Ty::S64) } else { (Ty::U32, Ty::U64) };
        let mut value = self.src(at, ty)?;
        if let Some(part) = part {
            value = self.field(ty, value, part)?;
        }
        self.converted(value, ty, wide)
    }

    /// A field of a word, extended to a word.
    fn field(&mut self, ty: Ty, a: Operand, part: Part) -> Result<Operand, PtxError> {
        let dst = self.new_reg(RegTy::B32)?;
        self.emit(Op::Bfe { ty, dst, a, pos: Operand::Imm(part.at.into()), len: Operand::Imm(part.bits.into()) })?;
        Ok(Operand::Reg(dst))
    }

    /// `b` with `a` in place of a field.
    fn inserted(&mut self, a: Operand, b: Operand, part: Part) -> Result<Operand, PtxError> {
        self.insert(a, b, part.at.into(), part.bits.into())
    }

    /// 1 where the comparison holds, else 0.
    fn holds(&mut self, cmp: Cmp, ty: Ty, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let (reg, dst) = (self.test(cmp, ty, a, b)?, self.new_reg(ty.reg())?);
        let p = PredRef { reg, negate: false };
        self.emit(Op::Selp { ty, dst, a: Operand::Imm(1), b: Operand::Imm(0), p })?;
        Ok(Operand::Reg(dst))
    }

    /// `vadd` and its kin, shifts, and `vset`.
    pub(super) fn scalar_video(&mut self, m: &mut Mods<'_>, op: Scalar) -> Result<(), PtxError> {
        let form = self.scalar_form(m, op)?;
        let count = 3 + usize::from(form.second.is_some() || form.part.is_some());
        self.count(count..=count)?;
        let (a, b) = (self.video_source(1, form.a_signed)?, self.video_source(2, form.b_signed)?);
        let mut value = self.first(&form, a, b)?;
        if form.sat {
            value = self.saturated(&form, value)?;
        }
        if let Some(second) = form.second {
            let c = self.number(3, None, form.signed)?;
            value = self.int(second, Ty::S64, value, c)?;
        }
        self.give_part(value, form.part)
    }

    /// What the modifiers and the destination's selector say.
    fn scalar_form(&mut self, m: &mut Mods<'_>, op: Scalar) -> Result<ScalarForm, PtxError> {
        let cmp = if op == Scalar::Set { self.video_comparison(m)? } else { Cmp::Eq };
        let signed = self.video_type(m)?;
        // `vset` has no type for its result.
        let a_signed = if op == Scalar::Set { signed } else { self.video_type(m)? };
        let b_signed = if op.shifts() { self.ty_in(m, &[Ty::U32])?.is_signed() } else { self.video_type(m)? };
        let clamp = op.shifts() && self.clamp(m)?;
        let sat = op != Scalar::Set && m.take("sat");
        let (second, part) = (second(m), self.part(0)?);
        if second.is_some() && part.is_some() {
            return Err(self.invalid("a second operation, and a part of the destination"));
        }
        Ok(ScalarForm { op, cmp, clamp, signed, a_signed, b_signed, sat, second, part })
    }

    /// The first operation.
    fn first(&mut self, form: &ScalarForm, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        match form.op {
            Scalar::Add => self.int(IntOp::Add, Ty::S64, a, b),
            Scalar::Sub => self.int(IntOp::Sub, Ty::S64, a, b),
            Scalar::AbsDiff => self.distance(a, b),
            Scalar::Min => self.int(IntOp::Min, Ty::S64, a, b),
            Scalar::Max => self.int(IntOp::Max, Ty::S64, a, b),
            Scalar::Shl => self.video_shift(IntOp::Shl, Ty::B64, form.clamp, a, b),
            Scalar::Shr => self.video_shift(IntOp::Shr, Ty::S64, form.clamp, a, b),
            Scalar::Set => self.holds(form.cmp, Ty::S64, a, b),
        }
    }

    /// `.sat`, as far as it goes.
    fn saturated(&mut self, form: &ScalarForm, value: Operand) -> Result<Operand, PtxError> {
        let value = if form.op.shifts() { self.of_34_bits(value)? } else { value };
        match form.part {
            None if !form.signed && !form.op.shifts() => self.int(IntOp::Max, Ty::S64, value, Operand::Imm(0)),
            Some(part) if form.signed => self.int(IntOp::Min, Ty::U64, value, Operand::Imm((1 << (part.bits - 1)) - 1)),
            part => self.clamped(value, part.map_or(32, |part| part.bits), form.signed),
        }
    }

    fn distance(&mut self, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let difference = self.int(IntOp::Sub, Ty::S64, a, b)?;
        let dst = self.new_reg(RegTy::B64)?;
        self.emit(Op::IntUn { op: IntUnOp::Abs, ty: Ty::S64, dst, a: difference })?;
        Ok(Operand::Reg(dst))
    }

    /// `a` is shifted by 32 at most with `.clamp`, else by the low 5 bits of `b`.
    fn video_shift(&mut self, op: IntOp, ty: Ty, clamp: bool, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let by = self.converted(b, Ty::U64, Ty::U32)?;
        let by = if clamp {
            self.int(IntOp::Min, Ty::U32, by, Operand::Imm(32))?
        } else {
            self.int(IntOp::And, Ty::B32, by, Operand::Imm(31))?
        };
        self.int(op, ty, a, by)
    }

    /// The low 34 bits, as a signed number.
    fn of_34_bits(&mut self, value: Operand) -> Result<Operand, PtxError> {
        let top = self.int(IntOp::Shl, Ty::B64, value, Operand::Imm(30))?;
        self.int(IntOp::Shr, Ty::S64, top, Operand::Imm(30))
    }

    /// The nearest number of so many bits.
    fn clamped(&mut self, value: Operand, bits: u8, signed: bool) -> Result<Operand, PtxError> {
        let (low, high) = if signed { (-1_i64 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let value = self.int(IntOp::Max, Ty::S64, value, Operand::Imm(low.cast_unsigned()))?;
        self.int(IntOp::Min, Ty::S64, value, Operand::Imm(high))
    }

    /// The destination gets the low word, or its part gets its part of that and the rest is the third operand's.
    fn give_part(&mut self, value: Operand, part: Option<Part>) -> Result<(), PtxError> {
        let mut word = self.converted(value, Ty::U64, Ty::U32)?;
        if let Some(part) = part {
            let c = self.src(3, Ty::B32)?;
            word = match part {
                H1 => self.inserted(c, word, Part { at: 0, bits: 16 })?,
                part => self.inserted(word, c, part)?,
            };
        }
        self.give(word)
    }

    /// The destination gets this word.
    fn give(&mut self, src: Operand) -> Result<(), PtxError> {
        let dst = self.dst(0, Ty::B32)?;
        self.emit(Op::Mov { ty: Ty::B32, dst, src })?;
        Ok(())
    }

    /// `vmad`: a product and a sum, shifted, saturated. Its first type says nothing: what is signed follows from the operands.
    pub(super) fn vmad(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.video_type(m)?;
        let (a_signed, b_signed) = (self.video_type(m)?, self.video_type(m)?);
        let (sat, plus_one) = (m.take("sat"), m.take("po"));
        let scale = m.find(|w| match w {
            "shr7" => Some(7),
            "shr15" => Some(15),
            _ => None,
        });
        self.count(4..=4)?;
        if self.take_selector(0)?.is_some() {
            return Err(self.invalid("vmad writes no part of a register"));
        }
        let negate = self.take_negation(1)? != self.take_negation(2)?;
        let negate_c = self.take_negation(3)?;
        if [plus_one, negate, negate_c].into_iter().filter(|one| *one).count() > 1 {
            return Err(self.invalid("vmad negates the product or the summand, and neither with .po"));
        }
        let product = self.video_product(a_signed, b_signed, sat)?;
        let c = self.number(3, None, true)?;
        let (op, a, b) = match (negate, negate_c) {
            (true, _) => (IntOp::Sub, c, product),
            (_, true) => (IntOp::Sub, product, c),
            _ => (IntOp::Add, product, c),
        };
        let mut value = self.int(op, Ty::S64, a, b)?;
        if plus_one {
            value = self.int(IntOp::Add, Ty::S64, value, Operand::Imm(1))?;
        }
        let signed = a_signed || b_signed || negate || negate_c;
        if let Some(scale) = scale {
            value = self.int(IntOp::Shr, if signed { Ty::S64 } else { Ty::U64 }, value, Operand::Imm(scale))?;
        }
        if sat {
            value = self.clamped(value, 32, signed)?;
        }
        self.give_part(value, None)
    }

    /// The product of operands 1 and 2. With `sat` only what is below every limit counts, so none is so large that the sum overflows.
    fn video_product(&mut self, a_signed: bool, b_signed: bool, sat: bool) -> Result<Operand, PtxError> {
        let (a, b) = (self.video_source(1, a_signed)?, self.video_source(2, b_signed)?);
        let dst = self.new_reg(RegTy::B64)?;
        self.emit(Op::Mul { part: MulPart::Lo, ty: Ty::S64, dst, a, b })?;
        let product = Operand::Reg(dst);
        if a_signed || b_signed || !sat {
            return Ok(product);
        }
        self.int(IntOp::Min, Ty::U64, product, Operand::Imm(1 << 62))
    }

    /// The comparison of `vset` and its kin.
    fn video_comparison(&self, m: &mut Mods<'_>) -> Result<Cmp, PtxError> {
        let cmp = m.find(|w| match w {
            "eq" => Some(Cmp::Eq),
            "ne" => Some(Cmp::Ne),
            "lt" => Some(Cmp::Lt),
            "le" => Some(Cmp::Le),
            "gt" => Some(Cmp::Gt),
            "ge" => Some(Cmp::Ge),
            _ => None,
        });
        cmp.ok_or_else(|| self.invalid("a comparison operator is missing"))
    }

    /// The operands of a packed instruction.
    fn lanes(&mut self, lanes: u8) -> Result<Lanes, PtxError> {
        self.count(4..=4)?;
        let mask = self.lane_mask(lanes)?;
        let selectors = [self.lane_selector(1, lanes)?, self.lane_selector(2, lanes)?];
        let [a, b, c] = [1, 2, 3].map(|at| self.src(at, Ty::B32));
        let (a, b, c) = (a?, b?, c?);
        let [a, b] = [(a, selectors[0]), (b, selectors[1])].map(|(whole, selector)| match selector {
            None => Ok(whole),
            Some(selector) => {
                let dst = self.new_reg(RegTy::B32)?;
                self.emit(Op::Prmt { mode: None, dst, a, b, c: Operand::Imm(selector) })?;
                Ok(Operand::Reg(dst))
            }
        });
        Ok(Lanes { a: a?, b: b?, c, mask })
    }

    /// The lanes that a selector names, the highest one first.
    fn lane_numbers(&self, selector: &str, lanes: u8, below: u8) -> Result<Vec<u8>, PtxError> {
        let digits = selector.strip_prefix(if lanes == 2 { 'h' } else { 'b' }).unwrap_or_default();
        let numbers = digits.bytes().map(|digit| digit.checked_sub(b'0').filter(|n| *n < below));
        let numbers: Option<Vec<u8>> = numbers.collect();
        numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(|| self.bad_selector(selector))
    }

    /// The lanes of the destination that are written: `%r1.h0`.
    fn lane_mask(&mut self, lanes: u8) -> Result<u8, PtxError> {
        let Some(selector) = self.take_selector(0)? else { return Ok((1 << lanes) - 1) };
        let numbers = self.lane_numbers(selector, lanes, lanes)?;
        if !numbers.is_sorted_by(|a, b| a > b) {
            return Err(self.bad_selector(selector));
        }
        Ok(numbers.iter().fold(0, |mask, lane| mask | 1 << lane))
    }

    /// The lanes of both sources together that operand `at` selects, `%r2.h32`, as `prmt` wants them.
    fn lane_selector(&mut self, at: usize, lanes: u8) -> Result<Option<u64>, PtxError> {
        let Some(selector) = self.take_selector(at)? else { return Ok(None) };
        let numbers = self.lane_numbers(selector, lanes, 2 * lanes)?;
        if numbers.len() != usize::from(lanes) {
            return Err(self.bad_selector(selector));
        }
        let control = numbers.iter().map(|&lane| u64::from(lane)).fold(0, |control, lane| {
            if lanes == 4 { control << 4 | lane } else { control << 8 | (2 * lane + 1) << 4 | (2 * lane) }
        });
        Ok(Some(control))
    }

    /// `vadd2`, `vadd4` and their kin.
    pub(super) fn packed_video(&mut self, m: &mut Mods<'_>, op: VideoOp, lanes: u8) -> Result<(), PtxError> {
        let (d_signed, a_signed, b_signed) = (self.video_type(m)?, self.video_type(m)?, self.video_type(m)?);
        let (sat, accumulate) = (m.take("sat"), m.take("add"));
        if sat && accumulate {
            return Err(self.invalid("a sum of lanes is not saturated"));
        }
        let Lanes { a, b, c, mask } = self.lanes(lanes)?;
        let dst = self.dst(0, Ty::B32)?;
        self.emit(Op::Video { op, lanes, a_signed, b_signed, d_signed, sat, accumulate, mask, dst, a, b, c })?;
        Ok(())
    }

    /// `vset2` and `vset4`: lanes are compared one by one.
    pub(super) fn packed_set(&mut self, m: &mut Mods<'_>, lanes: u8) -> Result<(), PtxError> {
        let cmp = self.video_comparison(m)?;
        let [a_ty, b_ty] = [self.ty_in(m, &[Ty::U32, Ty::S32])?, self.ty_in(m, &[Ty::U32, Ty::S32])?];
        let accumulate = m.take("add");
        let Lanes { a, b, c, mask } = self.lanes(lanes)?;
        let bits = 32 / lanes;
        let mut result = c;
        for lane in (0..lanes).filter(|lane| mask >> lane & 1 != 0) {
            let part = Part { at: lane * bits, bits };
            let (x, y) = (self.field(a_ty, a, part)?, self.field(b_ty, b, part)?);
            // Extended, both are signed numbers of 17 bits at most.
            let one = self.holds(cmp, Ty::S32, x, y)?;
            result = if accumulate {
                self.int(IntOp::Add, Ty::U32, result, one)?
            } else {
                self.inserted(one, result, part)?
            };
        }
        self.give(result)
    }
}

/// The operation on words that comes behind the first one, if there is one.
fn second(m: &mut Mods<'_>) -> Option<IntOp> {
    m.find(|w| match w {
        "add" => Some(IntOp::Add),
        "min" => Some(IntOp::Min),
        "max" => Some(IntOp::Max),
        _ => None,
    })
}
