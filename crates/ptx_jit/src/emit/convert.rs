//! Conversions between 32- and 64-bit numbers and narrow integers; halves go through the helper.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{RegTy, Round, Ty};

use super::Emit;
use super::alu::Parts;

impl Emit<'_, '_> {
    #[expect(clippy::too_many_arguments, reason = "the modifiers of one instruction")]
    pub(super) fn convert(
        &mut self,
        reg: RegTy,
        dst: Ty,
        src: Ty,
        round: Option<Round>,
        to_integral: bool,
        flush: bool,
        sat: bool,
        quiet: bool,
        a: &Parts,
        vector: bool,
    ) -> Option<Parts> {
        match (dst.is_float(), src.is_float()) {
            (false, false) if !sat => self.integer_to_integer(reg, dst, src, a, vector),
            (true, true) if !sat => self.float_to_float(dst, src, round, to_integral, flush, quiet, a, vector),
            (false, true) => self.float_to_integer(dst, src, round.unwrap_or(Round::Rz), flush, a, vector),
            (true, false) if !sat && round.unwrap_or(Round::Rn) == Round::Rn => {
                self.integer_to_float(dst, src, a, vector)
            }
            _ => None,
        }
    }

    fn integer_to_integer(&mut self, reg: RegTy, dst: Ty, src: Ty, a: &Parts, vector: bool) -> Option<Parts> {
        let (from, to) = (src.bits(), dst.bits());
        if from == 128 || to == 128 || from == 1 || to == 1 {
            return None;
        }
        // The value in 32-bit lanes, or in 64-bit lanes where the source has those.
        let signed = src.is_signed();
        let mut parts = a.clone();
        // A narrow source may sit in a wider register.
        let wide_source = matches!(self.b.func.dfg.value_type(a[0]), types::I64 | types::I64X2);
        if wide_source && from < 64 {
            parts = self.truncate(&parts, vector);
        }
        if from < 32 {
            let by = i64::from(32 - from);
            parts = self.map1(&parts, |e, v| {
                let v = e.b.ins().ishl_imm_u(v, by);
                if signed { e.b.ins().sshr_imm_u(v, by) } else { e.b.ins().ushr_imm_u(v, by) }
            });
        }
        if to == 64 && reg != RegTy::B64 {
            return None;
        }
        if to == 64 {
            if from == 64 {
                return Some(parts);
            }
            if !vector {
                return Some(vec![if signed {
                    self.b.ins().sextend(types::I64, parts[0])
                } else {
                    self.b.ins().uextend(types::I64, parts[0])
                }]);
            }
            return Some(parts.into_iter().flat_map(|v| self.widen(v, signed)).collect());
        }
        if from == 64 {
            parts = self.truncate(&parts, vector);
        }
        if to < 32 {
            let by = i64::from(32 - to);
            let to_signed = dst.is_signed();
            parts = self.map1(&parts, |e, v| {
                let v = e.b.ins().ishl_imm_u(v, by);
                let v = if to_signed { e.b.ins().sshr_imm_u(v, by) } else { e.b.ins().ushr_imm_u(v, by) };
                if reg == RegTy::B16 { e.band_const(v, 0xffff) } else { v }
            });
        }
        match (reg, vector) {
            (RegTy::B64, true) => {
                let to_signed = dst.is_signed();
                Some(parts.into_iter().flat_map(|v| self.widen(v, to_signed)).collect())
            }
            (RegTy::B64, false) if dst.is_signed() => Some(vec![self.b.ins().sextend(types::I64, parts[0])]),
            (RegTy::B64, false) => Some(vec![self.b.ins().uextend(types::I64, parts[0])]),
            _ => Some(parts),
        }
    }

    /// The low halves of 64-bit lanes.
    fn truncate(&mut self, parts: &Parts, vector: bool) -> Parts {
        if vector {
            parts.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect()
        } else {
            vec![self.b.ins().ireduce(types::I32, parts[0])]
        }
    }

    /// Rounds floats to integral values.
    fn integral(&mut self, v: Value, round: Round) -> Option<Value> {
        Some(match round {
            Round::Rn => self.b.ins().nearest(v),
            Round::Rz => self.b.ins().trunc(v),
            Round::Rm => self.b.ins().floor(v),
            Round::Rp => self.b.ins().ceil(v),
            Round::Rna => return None,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the modifiers of one instruction")]
    fn float_to_float(
        &mut self,
        dst: Ty,
        src: Ty,
        round: Option<Round>,
        to_integral: bool,
        flush: bool,
        quiet: bool,
        a: &Parts,
        vector: bool,
    ) -> Option<Parts> {
        if !matches!(src, Ty::F32 | Ty::F64) || !matches!(dst, Ty::F32 | Ty::F64) {
            return None;
        }
        if dst == src {
            if !to_integral && round.is_some_and(|r| r != Round::Rn) || round == Some(Round::Rna) {
                return None;
            }
            return Some(self.map1(a, |e, v| {
                let mut x = e.float_operand(v, flush && src == Ty::F32);
                if to_integral {
                    x = e.integral(x, round.unwrap_or(Round::Rn)).unwrap_or(x);
                }
                let x = if quiet { x } else { e.canonical(x) };
                e.integer_bits(x)
            }));
        }
        if to_integral || (dst == Ty::F32 && round.unwrap_or(Round::Rn) != Round::Rn) {
            return None;
        }
        let finish = |e: &mut Self, v: Value| {
            let v = if flush && dst == Ty::F32 { e.flush(v) } else { v };
            let v = if quiet { v } else { e.canonical(v) };
            e.integer_bits(v)
        };
        let mut out = Vec::new();
        match (dst, vector) {
            (Ty::F64, false) => {
                let x = self.float_operand(a[0], flush);
                let x = self.b.ins().fpromote(types::F64, x);
                out.push(finish(self, x));
            }
            (Ty::F64, true) => {
                for &v in a {
                    let x = self.float_operand(v, flush);
                    let low = self.b.ins().fvpromote_low(x);
                    let words = self.cast(types::I64X2, x);
                    let swapped = self.upper_half(words);
                    let swapped = self.cast(types::F32X4, swapped);
                    let high = self.b.ins().fvpromote_low(swapped);
                    out.push(finish(self, low));
                    out.push(finish(self, high));
                }
            }
            (_, false) => {
                let x = self.floating(a[0]);
                let x = self.b.ins().fdemote(types::F32, x);
                out.push(finish(self, x));
            }
            (_, true) => {
                for two in a.chunks(2) {
                    let halves = [two[0], two[1]].map(|v| {
                        let x = self.floating(v);
                        let x = self.b.ins().fvdemote(x);
                        self.cast(types::I64X2, x)
                    });
                    let v = self.lower_halves(halves[0], halves[1]);
                    let v = self.cast(types::F32X4, v);
                    out.push(finish(self, v));
                }
            }
        }
        Some(out)
    }

    /// The upper 64 bits moved to the lower.
    fn upper_half(&mut self, v: Value) -> Value {
        let high = self.b.ins().extractlane(v, 1);
        self.b.ins().splat(types::I64X2, high)
    }

    /// The lower 64 bits of two vectors.
    fn lower_halves(&mut self, a: Value, b: Value) -> Value {
        let high = self.b.ins().extractlane(b, 0);
        self.b.ins().insertlane(a, high, 1)
    }

    fn integer_to_float(&mut self, dst: Ty, src: Ty, a: &Parts, vector: bool) -> Option<Parts> {
        if !matches!(dst, Ty::F32 | Ty::F64) || src.bits() == 1 {
            return None;
        }
        let signed = src.is_signed();
        let parts = if src.bits() < 32 {
            let wide = if signed { Ty::S32 } else { Ty::U32 };
            self.integer_to_integer(RegTy::B32, wide, src, a, vector)?
        } else {
            a.clone()
        };
        if vector && dst == Ty::F32 && src.bits() <= 32 {
            return Some(self.map1(&parts, |e, v| {
                let x = if signed {
                    e.b.ins().fcvt_from_sint(types::F32X4, v)
                } else {
                    e.b.ins().fcvt_from_uint(types::F32X4, v)
                };
                e.cast(types::I32X4, x)
            }));
        }
        let (ty, out) = if dst == Ty::F32 { (types::F32, RegTy::B32) } else { (types::F64, RegTy::B64) };
        let from = if src.bits() == 64 { RegTy::B64 } else { RegTy::B32 };
        Some(self.lanewise(&[(&parts, from)], out, vector, |e, s| {
            let x = if signed { e.b.ins().fcvt_from_sint(ty, s[0]) } else { e.b.ins().fcvt_from_uint(ty, s[0]) };
            e.integer_bits(x)
        }))
    }

    fn float_to_integer(
        &mut self,
        dst: Ty,
        src: Ty,
        round: Round,
        flush: bool,
        a: &Parts,
        vector: bool,
    ) -> Option<Parts> {
        if !matches!(src, Ty::F32) || dst.bits() != 32 || round == Round::Rna {
            return None;
        }
        let signed = dst.is_signed();
        let ty = if vector { types::I32X4 } else { types::I32 };
        Some(self.map1(a, |e, v| {
            let x = e.float_operand(v, flush);
            let x = if round == Round::Rz { x } else { e.integral(x, round).unwrap_or(x) };
            if signed { e.b.ins().fcvt_to_sint_sat(ty, x) } else { e.b.ins().fcvt_to_uint_sat(ty, x) }
        }))
    }
}
