//! Values of a chunk: one for all lanes, affine, or a vector.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{Operand, Reg, RegTy};

use super::Emit;
use crate::analysis::classes::Class;

/// A value over the lanes of a chunk; see [`Class`].
#[derive(Clone, Debug)]
pub(crate) enum Val {
    /// One scalar: i8 (0 or 1) for predicates, i32 (16-bit values zero-extended), i64.
    Same(Value),
    Affine {
        base: Value,
        stride: i32,
    },
    Wide {
        b: Value,
        c: Value,
        stride: i32,
        k: i64,
        signed: bool,
    },
    /// Both i64.
    Linear {
        base: Value,
        step: Value,
    },
    /// `parts` is an i64: the step in its upper half, b in its lower one.
    Extended {
        parts: Value,
        c: Value,
    },
    Lanes(Vec<Value>),
}

impl Emit<'_, '_> {
    /// An operand of a register class.
    pub(super) fn operand(&mut self, o: Operand, ty: RegTy) -> Val {
        match o {
            Operand::Reg(r) => self.get(r),
            Operand::Imm(v) => {
                let ty = match ty {
                    RegTy::Pred => types::I8,
                    RegTy::B16 | RegTy::B32 => types::I32,
                    _ => types::I64,
                };
                let v = match ty {
                    types::I8 => (v & 1) as i64,
                    types::I32 => (v & 0xffff_ffff) as i64,
                    _ => v as i64,
                };
                Val::Same(self.b.ins().iconst(ty, v))
            }
        }
    }

    /// A value as vectors of lanes.
    pub(super) fn lanes(&mut self, val: &Val, ty: RegTy) -> Vec<Value> {
        match val {
            Val::Lanes(list) => list.clone(),
            Val::Same(s) => {
                let s = *s;
                match ty {
                    RegTy::Pred => {
                        let wide = self.b.ins().uextend(types::I32, s);
                        let mask = self.b.ins().ineg(wide);
                        let v = self.b.ins().splat(types::I32X4, mask);
                        vec![v; self.vectors]
                    }
                    RegTy::B16 | RegTy::B32 => {
                        let v = match self.known(s) {
                            Some(n) => self.vector_const([n as u32; 4]),
                            None => self.b.ins().splat(types::I32X4, s),
                        };
                        vec![v; self.vectors]
                    }
                    RegTy::B64 => {
                        let v = self.b.ins().splat(types::I64X2, s);
                        vec![v; self.vectors * 2]
                    }
                    RegTy::B128 => {
                        let low = self.b.ins().splat(types::I64X2, s);
                        let high = self.vector_const64([0, 0]);
                        let mut list = vec![low; self.vectors * 2];
                        list.extend(vec![high; self.vectors * 2]);
                        list
                    }
                }
            }
            Val::Affine { base, stride } => self.affine_lanes(*base, *stride),
            Val::Wide { b, c, stride, k, signed } => {
                let (c, k) = (*c, *k);
                let index = self.affine_lanes(*b, *stride);
                let c = self.b.ins().splat(types::I64X2, c);
                let mut out = Vec::with_capacity(self.vectors * 2);
                for v in index {
                    for half in self.widen(v, *signed) {
                        let scaled = if k == 1 {
                            half
                        } else if k > 0 && (k as u64).is_power_of_two() {
                            self.b.ins().ishl_imm_u(half, i64::from(k.trailing_zeros()))
                        } else {
                            let k = self.vector_const64([k as u64; 2]);
                            self.b.ins().imul(half, k)
                        };
                        out.push(self.b.ins().iadd(scaled, c));
                    }
                }
                out
            }
            Val::Linear { base, step } => self.linear_lanes(*base, *step),
            Val::Extended { parts, c } => {
                let (b, step) = self.extended_parts(*parts);
                let step = self.b.ins().ireduce(types::I32, step);
                let c = self.b.ins().splat(types::I64X2, *c);
                let [one, four] = [1, 4].map(|by| self.times(step, by));
                let mut first = vec![b];
                for lane in 1..4 {
                    first.push(self.b.ins().iadd(first[lane - 1], one));
                }
                let mut index = self.gather(&first, RegTy::B32)[0];
                let four = self.b.ins().splat(types::I32X4, four);
                let mut out = Vec::with_capacity(self.vectors * 2);
                for _ in 0..self.vectors {
                    let halves = self.widen(index, true);
                    out.extend(halves.map(|half| self.b.ins().iadd(half, c)));
                    index = self.b.ins().iadd(index, four);
                }
                out
            }
        }
    }

    /// `base + step * lane`.
    fn linear_lanes(&mut self, base: Value, step: Value) -> Vec<Value> {
        let second = self.b.ins().iadd(base, step);
        let mut two = self.gather(&[base, second], RegTy::B64)[0];
        let by = self.times(step, 2);
        let by = self.b.ins().splat(types::I64X2, by);
        let mut out = Vec::with_capacity(self.vectors * 2);
        for _ in 0..self.vectors * 2 {
            out.push(two);
            two = self.b.ins().iadd(two, by);
        }
        out
    }

    /// What [`Val::Extended`] keeps in one: b, i32, and the step, extended.
    pub(super) fn extended_parts(&mut self, parts: Value) -> (Value, Value) {
        (self.b.ins().ireduce(types::I32, parts), self.b.ins().sshr_imm_u(parts, 32))
    }

    fn affine_lanes(&mut self, base: Value, stride: i32) -> Vec<Value> {
        let splat = self.b.ins().splat(types::I32X4, base);
        (0..self.vectors)
            .map(|i| {
                let steps = [0, 1, 2, 3].map(|l| (4 * i as u32 + l).wrapping_mul(stride as u32));
                let steps = self.vector_const(steps);
                self.b.ins().iadd(splat, steps)
            })
            .collect()
    }

    /// Four 32-bit lanes as twice two 64-bit lanes.
    pub(super) fn widen(&mut self, v: Value, signed: bool) -> [Value; 2] {
        if signed {
            [self.b.ins().swiden_low(v), self.b.ins().swiden_high(v)]
        } else {
            [self.b.ins().uwiden_low(v), self.b.ins().uwiden_high(v)]
        }
    }

    /// The low (or high) halves of two times two 64-bit lanes as four 32-bit lanes.
    pub(super) fn narrow(&mut self, low: Value, high: Value, upper: bool) -> Value {
        let a = self.cast(types::I8X16, low);
        let b = self.cast(types::I8X16, high);
        let first = if upper { 4_u8 } else { 0 };
        let mut mask = [0_u8; 16];
        for (i, m) in mask.iter_mut().enumerate() {
            *m = first + (i as u8 / 4) * 8 + i as u8 % 4;
        }
        let mask = self.b.func.dfg.immediates.push(mask.to_vec().into());
        let v = self.b.ins().shuffle(a, b, mask);
        self.cast(types::I32X4, v)
    }

    /// The Cranelift values that hold `val` in a register of `r`'s class.
    pub(super) fn coerce(&mut self, val: Val, r: Reg) -> Vec<Value> {
        let ty = self.reg_ty(r);
        match (self.class(r), val) {
            (Class::Varying, val) => self.lanes(&val, ty),
            (Class::Affine { .. }, Val::Affine { base, .. }) => vec![base],
            (Class::Wide { .. }, Val::Wide { b, c, .. }) => vec![b, c],
            (Class::Linear, Val::Linear { base, step }) => vec![base, step],
            (Class::Extended, Val::Extended { parts, c }) => vec![parts, c],
            (Class::Same | Class::Unknown | Class::Affine { .. }, val) => vec![self.first(&val, ty)],
            // Only for a value that is never defined on a path that is taken.
            (Class::Wide { .. }, val) => {
                let c = self.first(&val, ty);
                vec![self.i32(0), c]
            }
            (Class::Linear, val) => {
                let base = self.first(&val, ty);
                vec![base, self.i64(0)]
            }
            (Class::Extended, val) => {
                let c = self.first(&val, ty);
                vec![self.i64(0), c]
            }
        }
    }

    /// The value of the first lane.
    pub(super) fn first(&mut self, val: &Val, ty: RegTy) -> Value {
        match val {
            Val::Same(s) => *s,
            Val::Affine { base, .. } | Val::Linear { base, .. } => *base,
            Val::Wide { b, c, k, signed, .. } => self.wide_scalar(*b, *c, *k, *signed),
            Val::Extended { parts, c } => {
                let (b, _) = self.extended_parts(*parts);
                let b = self.b.ins().sextend(types::I64, b);
                self.b.ins().iadd(b, *c)
            }
            Val::Lanes(list) => self.extract(list, ty, 0),
        }
    }

    /// `c + k * extend(b)`.
    pub(super) fn wide_scalar(&mut self, b: Value, c: Value, k: i64, signed: bool) -> Value {
        let wide = self.extended(b, signed);
        let scaled = self.times(wide, k);
        self.b.ins().iadd(c, scaled)
    }

    /// The product of a scalar and a constant.
    pub(super) fn times(&mut self, v: Value, by: i64) -> Value {
        if by > 0 && by.cast_unsigned().is_power_of_two() {
            return if by == 1 { v } else { self.b.ins().ishl_imm_u(v, i64::from(by.trailing_zeros())) };
        }
        self.b.ins().imul_imm_s(v, by)
    }

    /// The product of two scalars.
    pub(super) fn scalar_product(&mut self, x: Value, y: Value) -> Value {
        match [x, y].map(|v| self.known(v).filter(|by| by.is_power_of_two())) {
            [_, Some(by)] => self.times(x, by.cast_signed()),
            [Some(by), _] => self.times(y, by.cast_signed()),
            _ => self.b.ins().imul(x, y),
        }
    }

    /// One lane as a scalar.
    pub(super) fn extract(&mut self, list: &[Value], ty: RegTy, lane: usize) -> Value {
        match ty {
            RegTy::Pred => {
                let v = self.b.ins().extractlane(list[lane / 4], (lane % 4) as u8);
                let v = self.b.ins().ireduce(types::I8, v);
                self.b.ins().band_imm_u(v, 1)
            }
            RegTy::B16 | RegTy::B32 => self.b.ins().extractlane(list[lane / 4], (lane % 4) as u8),
            RegTy::B64 | RegTy::B128 => self.b.ins().extractlane(list[lane / 2], (lane % 2) as u8),
        }
    }

    /// Vectors from one scalar per lane.
    pub(super) fn gather(&mut self, scalars: &[Value], ty: RegTy) -> Vec<Value> {
        match ty {
            RegTy::Pred => {
                let wide: Vec<Value> = scalars
                    .iter()
                    .map(|&s| {
                        let w = self.b.ins().uextend(types::I32, s);
                        self.b.ins().ineg(w)
                    })
                    .collect();
                self.gather(&wide, RegTy::B32)
            }
            RegTy::B16 | RegTy::B32 => scalars
                .chunks(4)
                .map(|four| {
                    let mut v = self.b.ins().scalar_to_vector(types::I32X4, four[0]);
                    for (i, &s) in four.iter().enumerate().skip(1) {
                        v = self.b.ins().insertlane(v, s, i as u8);
                    }
                    v
                })
                .collect(),
            RegTy::B64 | RegTy::B128 => scalars
                .chunks(2)
                .map(|two| {
                    let v = self.b.ins().scalar_to_vector(types::I64X2, two[0]);
                    self.b.ins().insertlane(v, two[1], 1)
                })
                .collect(),
        }
    }
}
