//! Operations that only compute: scalar where the class allows it, else on vectors, else lane by lane in a helper.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{IntOp, MulPart, Op, Operand, Reg, RegTy, Ty};
use ptx::math::{Source, shape};

use super::{Emit, Val};
use crate::abi::Helper;
use crate::analysis::classes::{self, Class};
use crate::analysis::floats::Nans;

/// Cranelift values of an operand: one scalar, or the vectors of a chunk.
pub(super) type Parts = Vec<Value>;

impl Emit<'_, '_> {
    /// Emits one operation for the lanes of the mask.
    pub(super) fn op(&mut self, op: &Op) {
        match op {
            Op::Mov { ty, dst, src } => {
                let val = self.operand(*src, ty.reg());
                let val = if self.floats.nans[dst.0 as usize] == Nans::Any { val } else { self.settled_val(*src, val) };
                self.set(*dst, val);
            }
            Op::Special { dst, sreg, ty } => {
                let val = self.special(*sreg, *ty);
                self.set(*dst, val);
            }
            Op::Pack { dst, srcs } => self.pack(*dst, srcs),
            Op::Unpack { dsts, src } => self.unpack(dsts, *src),
            Op::Selp { ty, dst, a, b, p } => {
                let val = self.selp(*ty, *dst, *a, *b, *p);
                self.set(*dst, val);
            }
            Op::Cvta { space, to_generic, dst, a } => self.cvta(*space, *to_generic, *dst, *a),
            Op::Isspacep { space, dst, a } => self.isspacep(*space, *dst, *a),
            Op::Ld { dsts, .. } => {
                self.memory(op);
                dsts.iter().flatten().for_each(|&dst| self.flush_loaded(dst));
            }
            Op::St { .. } | Op::Atom { .. } | Op::CpAsync { .. } => self.memory(op),
            Op::Image { access, dsts, srcs } => self.image(access, dsts, srcs),
            Op::Transfer { transfer, srcs } => self.transfer(op, transfer, srcs),
            Op::Fence => {
                self.b.ins().fence();
            }
            Op::Call { .. } | Op::Nanosleep { .. } | Op::Trap => self.service(op),
            _ => self.compute(op),
        }
    }

    /// The register class in which an operation takes its `i`th source when that is an immediate.
    pub(super) fn source_ty(op: &Op, i: usize) -> RegTy {
        match op {
            Op::Int { op: IntOp::Shl | IntOp::Shr, .. } if i == 1 => RegTy::B32,
            Op::Mad { part: MulPart::Wide, ty, .. } | Op::MadCarry { part: MulPart::Wide, ty, .. } if i == 2 => {
                if ty.bits() == 16 { RegTy::B32 } else { RegTy::B64 }
            }
            Op::Bfe { .. } if i > 0 => RegTy::B32,
            Op::Bfi { .. } if i > 1 => RegTy::B32,
            Op::Slct { cty, .. } if i == 2 => cty.reg(),
            Op::CvtFromFp8 { .. } => RegTy::B16,
            Op::Cvt { src_ty, .. } | Op::CvtPack { src_ty, .. } => src_ty.reg(),
            Op::Int { ty, .. }
            | Op::Mul { ty, .. }
            | Op::Mad { ty, .. }
            | Op::AddCarry { ty, .. }
            | Op::MadCarry { ty, .. }
            | Op::Sad { ty, .. }
            | Op::IntUn { ty, .. }
            | Op::Bfe { ty, .. }
            | Op::Bfi { ty, .. }
            | Op::Float { ty, .. }
            | Op::Fma { ty, .. }
            | Op::FloatUn { ty, .. }
            | Op::Testp { ty, .. }
            | Op::Setp { ty, .. }
            | Op::Set { ty, .. }
            | Op::Slct { ty, .. } => ty.reg(),
            _ => RegTy::B32,
        }
    }

    /// An operation of [`ptx::math::eval`].
    pub(super) fn compute(&mut self, op: &Op) {
        let Some(shape) = shape(op) else {
            self.fail(format!("{op:?}"));
            return;
        };
        let dests: Vec<Option<Reg>> = shape.dests.to_vec();
        let mut class = Class::Same;
        for dst in dests.iter().flatten() {
            match classes::result(self.k, &self.plan.classes, op, *dst, self.plan.shape) {
                Class::Same | Class::Unknown => {}
                other => class = other,
            }
        }
        if let Some(dst) = dests[0]
            && self.class(dst) == Class::Extended
            && let Some(val) = self.of_upper_half(op)
        {
            self.set(dst, val);
            return;
        }
        if !matches!(class, Class::Same | Class::Varying)
            && let Some(dst) = dests[0]
        {
            if let Some(val) = self.affine(op, class) {
                self.set(dst, val);
                return;
            }
            class = Class::Varying;
        }
        let vector = class == Class::Varying;
        let mut sources: Vec<(Parts, RegTy)> = Vec::new();
        for (i, source) in shape.sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let (ty, val) = match source {
                Source::Operand(o) => {
                    let o = *o;
                    let ty = match o {
                        Operand::Reg(r) => self.reg_ty(r),
                        Operand::Imm(_) => Self::source_ty(op, i),
                    };
                    (ty, self.operand(o, ty))
                }
                Source::Pred(p) => {
                    let val = self.get(p.reg);
                    let val = if p.negate { self.negated(&val) } else { val };
                    (RegTy::Pred, val)
                }
            };
            let parts = if vector { self.lanes(&val, ty) } else { vec![self.first(&val, ty)] };
            sources.push((parts, ty));
        }
        let parts: Vec<Parts> = sources.iter().map(|s| s.0.clone()).collect();
        // A float result in a register of another width is left to the helper.
        let odd = match (op, dests[0]) {
            (Op::Cvt { dst_ty, src_ty, .. }, Some(dst)) if dst_ty.is_float() || src_ty.is_float() => {
                self.reg_ty(dst) != dst_ty.reg() || sources.iter().any(|s| s.1 != src_ty.reg())
            }
            _ => false,
        };
        let native = if odd { None } else { self.native(op, &parts, vector) };
        let results = match native {
            Some(results) => results,
            None => self.by_helper(op, &shape.sources, &sources, &dests, vector),
        };
        for (dst, parts) in dests.into_iter().zip(results) {
            if let Some(dst) = dst {
                let val = if vector { Val::Lanes(parts) } else { Val::Same(parts[0]) };
                self.set(dst, val);
            }
        }
    }

    pub(super) fn negated(&mut self, val: &Val) -> Val {
        match val {
            Val::Lanes(list) => Val::Lanes(list.iter().map(|&v| self.b.ins().bnot(v)).collect()),
            other => {
                let v = self.first(other, RegTy::Pred);
                Val::Same(self.b.ins().bxor_imm_u(v, 1))
            }
        }
    }

    /// Evaluates lane by lane in Rust, by the interpreter's own definition.
    pub(super) fn by_helper(
        &mut self,
        op: &Op,
        order: &[Option<Source>; 4],
        sources: &[(Parts, RegTy)],
        dests: &[Option<Reg>],
        vector: bool,
    ) -> Vec<Parts> {
        let lanes = if vector { self.lanes_per_chunk() } else { 1 };
        let row = 8 * lanes as i32;
        let mut given = sources.iter();
        for (i, source) in order.iter().enumerate() {
            let base = row * i as i32;
            let Some((parts, ty)) = source.and_then(|_| given.next()) else { continue };
            self.store_row(parts, *ty, base, vector);
        }
        let op = self.op_key(op);
        let present = order.iter().enumerate().filter(|(_, s)| s.is_some()).fold(0, |m, (i, _)| m | 1 << i);
        let present = self.i64(present);
        let (args, lanes_value) = (self.scratch_address(0), self.i64(lanes as i64));
        self.call(Helper::Eval, &[self.inv.ctx, op, args, lanes_value, present], &[]);
        let mut results = Vec::new();
        for (i, dst) in dests.iter().enumerate() {
            let base = row * (4 + i as i32);
            match dst {
                Some(dst) => results.push(self.load_row(self.reg_ty(*dst), base, vector)),
                None => results.push(Vec::new()),
            }
        }
        results
    }

    /// Stores lanes (or a scalar) as 64-bit words into the scratch slot.
    pub(super) fn store_row(&mut self, parts: &[Value], ty: RegTy, base: i32, vector: bool) {
        if !vector {
            let v = match self.b.func.dfg.value_type(parts[0]) {
                types::I64 => parts[0],
                _ => self.b.ins().uextend(types::I64, parts[0]),
            };
            self.b.ins().stack_store(types::I64, v, self.scratch, base);
            return;
        }
        let mut at = base;
        for &part in parts.iter().take(self.vector_count(RegTy::B64)) {
            match ty {
                RegTy::B64 | RegTy::B128 => {
                    self.b.ins().stack_store(types::I64, part, self.scratch, at);
                    at += 16;
                }
                _ => {
                    let part = if ty == RegTy::Pred { self.b.ins().ushr_imm_u(part, 31) } else { part };
                    for half in self.widen(part, false) {
                        self.b.ins().stack_store(types::I64, half, self.scratch, at);
                        at += 16;
                    }
                }
            }
        }
    }

    /// Loads what a helper left as 64-bit words, truncated to the register.
    pub(super) fn load_row(&mut self, ty: RegTy, base: i32, vector: bool) -> Parts {
        if !vector {
            let v = self.b.ins().stack_load(types::I64, types::I64, self.scratch, base);
            return vec![match ty {
                RegTy::Pred => self.b.ins().ireduce(types::I8, v),
                RegTy::B16 => {
                    let v = self.b.ins().ireduce(types::I32, v);
                    self.b.ins().band_imm_u(v, 0xffff)
                }
                RegTy::B32 => self.b.ins().ireduce(types::I32, v),
                _ => v,
            }];
        }
        let words: Vec<Value> = (0..self.vectors * 2)
            .map(|i| self.b.ins().stack_load(types::I64, types::I64X2, self.scratch, base + 16 * i as i32))
            .collect();
        match ty {
            RegTy::B64 => words,
            RegTy::B128 => {
                let zero = self.vector_const64([0, 0]);
                let mut list = words;
                list.extend(vec![zero; self.vectors * 2]);
                list
            }
            _ => words
                .chunks(2)
                .map(|two| {
                    let v = self.narrow(two[0], two[1], false);
                    match ty {
                        RegTy::Pred => {
                            let zero = self.vector_const([0; 4]);
                            self.b.ins().icmp(IntCC::NotEqual, v, zero)
                        }
                        RegTy::B16 => self.band_const(v, 0xffff),
                        _ => v,
                    }
                })
                .collect(),
        }
    }

    /// Sums and products of affine values.
    pub(super) fn affine(&mut self, op: &Op, class: Class) -> Option<Val> {
        let scalar = |e: &mut Self, o: &Operand, ty: RegTy| e.operand(*o, ty);
        match op {
            Op::Int { op: op @ (IntOp::Add | IntOp::Sub), ty, a, b, .. } => {
                let (a, b) = (scalar(self, a, ty.reg()), scalar(self, b, ty.reg()));
                self.affine_sum(a, b, *op == IntOp::Sub, class)
            }
            Op::Int { op: IntOp::Shl, ty, a, b: Operand::Imm(n), .. } => {
                let a = scalar(self, a, ty.reg());
                Some(self.affine_scaled(&a, 1_i64.wrapping_shl(*n as u32), class))
            }
            Op::Mul { part, ty, a, b, .. } => self.affine_product(*part, *ty, *a, *b, class),
            Op::Mad { part, ty, a, b, c, .. } => {
                let whole = if *part == MulPart::Wide { 2 * ty.bits() } else { ty.bits() };
                let c_ty = if whole == 64 { RegTy::B64 } else { RegTy::B32 };
                let both = classes::operand(&self.plan.classes, *a) == Class::Same
                    && classes::operand(&self.plan.classes, *b) == Class::Same;
                let product = if both {
                    let x = scalar(self, a, ty.reg());
                    let y = scalar(self, b, ty.reg());
                    let (mut x, mut y) = (self.first(&x, ty.reg()), self.first(&y, ty.reg()));
                    match (*part, ty.bits()) {
                        (MulPart::Wide, 32) => [x, y] = [x, y].map(|v| self.extend(v, *ty)),
                        // In registers they are extended without a sign.
                        (MulPart::Wide, _) if ty.is_signed() => [x, y] = [x, y].map(|v| self.extended_half(v)),
                        _ => {}
                    }
                    Val::Same(self.scalar_product(x, y))
                } else {
                    self.affine_product(*part, *ty, *a, *b, class)?
                };
                let c = scalar(self, c, c_ty);
                self.affine_sum(product, c, false, class)
            }
            Op::Cvt { a, src_ty, .. } => {
                let a = scalar(self, a, src_ty.reg());
                match (a, class) {
                    (Val::Affine { base, stride }, Class::Wide { signed, .. }) => {
                        let c = self.i64(0);
                        Some(Val::Wide { b: base, c, stride, k: 1, signed })
                    }
                    (Val::Wide { b, c, k, .. }, Class::Affine { stride }) => {
                        let c = self.b.ins().ireduce(types::I32, c);
                        let scaled = self.times(b, i64::from(k as i32));
                        Some(Val::Affine { base: self.b.ins().iadd(c, scaled), stride })
                    }
                    (same, _) => Some(same),
                }
            }
            _ => None,
        }
    }

    /// What an instruction takes of the upper half of a register whose lower one is zero ([`Class::Extended`]); none if it is another one.
    fn of_upper_half(&mut self, op: &Op) -> Option<Val> {
        let Op::Int { op: IntOp::Shr, a: Operand::Reg(r), .. } = *op else { return None };
        let Val::Linear { base, step } = self.get(r) else { return None };
        let b = self.b.ins().ushr_imm_u(base, 32);
        let (parts, c) = (self.b.ins().bor(b, step), self.i64(0));
        Some(Val::Extended { parts, c })
    }

    /// A value as `base + step * lane`, if its index does not wrap; the step, if there is one.
    fn linear(&mut self, val: &Val) -> (Value, Option<Value>) {
        let base = self.first(val, RegTy::B64);
        let step = match *val {
            Val::Linear { step, .. } => Some(step),
            Val::Wide { stride, k, .. } => Some(self.i64(k.wrapping_mul(stride.into()))),
            _ => None,
        };
        (base, step)
    }

    /// The lower 16 bits of a number of 32 as one of 32, by their sign.
    fn extended_half(&mut self, v: Value) -> Value {
        let half = self.b.ins().ireduce(types::I16, v);
        self.b.ins().sextend(types::I32, half)
    }

    pub(super) fn extend(&mut self, v: Value, ty: Ty) -> Value {
        if ty.is_signed() { self.b.ins().sextend(types::I64, v) } else { self.b.ins().uextend(types::I64, v) }
    }

    pub(super) fn affine_sum(&mut self, a: Val, b: Val, subtract: bool, class: Class) -> Option<Val> {
        let combine = |e: &mut Self, x: Value, y: Value| match [x, y].map(|v| e.known(v)) {
            [_, Some(0)] => x,
            [Some(0), _] if !subtract => y,
            _ if subtract => e.b.ins().isub(x, y),
            _ => e.b.ins().iadd(x, y),
        };
        Some(match (a, b, class) {
            (a, b, Class::Linear) => {
                let ((x, step), (y, other)) = (self.linear(&a), self.linear(&b));
                let base = combine(self, x, y);
                let step = match (step, other) {
                    (Some(step), Some(other)) => combine(self, step, other),
                    (None, Some(other)) if subtract => self.b.ins().ineg(other),
                    (step, other) => step.or(other)?,
                };
                Val::Linear { base, step }
            }
            (Val::Extended { parts, c }, Val::Same(s), _) => Val::Extended { parts, c: combine(self, c, s) },
            (Val::Same(s), Val::Extended { parts, c }, _) => Val::Extended { parts, c: combine(self, s, c) },
            (
                Val::Affine { base: x, .. } | Val::Same(x),
                Val::Affine { base: y, .. } | Val::Same(y),
                Class::Affine { stride },
            ) => Val::Affine { base: combine(self, x, y), stride },
            (Val::Wide { b, c, stride, k, signed }, Val::Same(s), _) => {
                Val::Wide { b, c: combine(self, c, s), stride, k, signed }
            }
            (Val::Same(s), Val::Wide { b, c, stride, k, signed }, _) => {
                let k = if subtract { k.wrapping_neg() } else { k };
                Val::Wide { b, c: combine(self, s, c), stride, k, signed }
            }
            _ => return None,
        })
    }

    pub(super) fn affine_scaled(&mut self, a: &Val, by: i64, class: Class) -> Val {
        match (a, class) {
            (Val::Affine { base, .. }, Class::Affine { stride }) => {
                Val::Affine { base: self.times(*base, i64::from(by as i32)), stride }
            }
            (Val::Wide { b, c, stride, k, signed }, _) => {
                Val::Wide { b: *b, c: self.times(*c, by), stride: *stride, k: k.wrapping_mul(by), signed: *signed }
            }
            (Val::Linear { base, step }, _) => Val::Linear { base: self.times(*base, by), step: self.times(*step, by) },
            (other, _) => other.clone(),
        }
    }

    pub(super) fn affine_product(
        &mut self,
        part: MulPart,
        ty: Ty,
        a: Operand,
        b: Operand,
        class: Class,
    ) -> Option<Val> {
        let (a, by) = match (a, b) {
            (a, Operand::Imm(v)) | (Operand::Imm(v), a) => (self.operand(a, ty.reg()), v),
            _ if class == Class::Linear => {
                let [a, b] = [a, b].map(|o| self.operand(o, RegTy::B64));
                let ((x, step), (y, other)) = (self.linear(&a), self.linear(&b));
                let base = self.scalar_product(x, y);
                let step = match (step, other) {
                    (Some(step), None) => self.scalar_product(step, y),
                    (None, Some(other)) => self.scalar_product(x, other),
                    _ => return None,
                };
                return Some(Val::Linear { base, step });
            }
            _ => return None,
        };
        match (part, a) {
            (MulPart::Wide, Val::Affine { base, stride }) => {
                let k = if ty.is_signed() { i64::from(by as i32) } else { i64::from(by as u32) };
                let c = self.i64(0);
                Some(Val::Wide { b: base, c, stride, k, signed: ty.is_signed() })
            }
            (MulPart::Lo, a @ Val::Affine { stride, .. }) => {
                let stride = stride.wrapping_mul(by as i32);
                Some(self.affine_scaled(&a, by as i64, Class::Affine { stride }))
            }
            (MulPart::Lo, a @ (Val::Wide { .. } | Val::Linear { .. })) => {
                Some(self.affine_scaled(&a, by as i64, class))
            }
            _ => None,
        }
    }
}
