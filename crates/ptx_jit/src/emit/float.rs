//! Floating point in f32 and f64, rounded to nearest or as [`super::directed`] says, but for `fma`: in f32, rounded down or up (CUDA's
//! `expf` has one). Everything else goes through the helper.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use ptx::ir::{Cmp, FloatOp, FloatUnOp, Op, Operand, Precision, Reg, Round, Ty};
use ptx::math::lanes::{Lanes, Lanes64};
use ptx::math::{NAN_F32, NAN_F64, approx};

use super::Emit;
use super::alu::Parts;
use super::directed::Directed;
use crate::analysis::floats::Nans;

/// The approximations' machine: one scalar or one vector at a time.
struct Machine<'e, 'a, 'f> {
    e: &'e mut Emit<'a, 'f>,
    vector: bool,
    /// Operands that are not to be flushed, since they are.
    flushed: [Option<Value>; 2],
}

impl Machine<'_, '_, '_> {
    fn float_ty(&self) -> Type {
        if self.vector { types::F32X4 } else { types::F32 }
    }
    fn int_ty(&self) -> Type {
        if self.vector { types::I32X4 } else { types::I32 }
    }
}

impl Lanes for Machine<'_, '_, '_> {
    type F = Value;
    type I = Value;
    type M = Value;

    fn f(&mut self, v: f32) -> Value {
        let bits = self.i(v.to_bits());
        self.float(bits)
    }
    fn i(&mut self, v: u32) -> Value {
        if self.vector { self.e.vector_const([v; 4]) } else { self.e.i32(i64::from(v)) }
    }
    fn bits(&mut self, a: Value) -> Value {
        let ty = self.int_ty();
        self.e.cast(ty, a)
    }
    fn float(&mut self, a: Value) -> Value {
        let ty = self.float_ty();
        self.e.cast(ty, a)
    }
    fn int_to_float(&mut self, a: Value) -> Value {
        let ty = self.float_ty();
        self.e.b.ins().fcvt_from_sint(ty, a)
    }
    fn add(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fadd(a, b)
    }
    fn sub(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fsub(a, b)
    }
    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fmul(a, b)
    }
    fn div(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fdiv(a, b)
    }
    fn sqrt(&mut self, a: Value) -> Value {
        self.e.b.ins().sqrt(a)
    }
    fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.e.b.ins().fma(a, b, c)
    }
    fn min(&mut self, a: Value, b: Value) -> Value {
        let m = self.e.b.ins().fcmp(FloatCC::LessThan, a, b);
        self.e.float_pick(m, a, b)
    }
    fn max(&mut self, a: Value, b: Value) -> Value {
        let m = self.e.b.ins().fcmp(FloatCC::LessThan, b, a);
        self.e.float_pick(m, a, b)
    }
    fn lt(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fcmp(FloatCC::LessThan, a, b)
    }
    fn le(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fcmp(FloatCC::LessThanOrEqual, a, b)
    }
    fn select(&mut self, m: Value, a: Value, b: Value) -> Value {
        self.e.float_pick(m, a, b)
    }
    fn iadd(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().iadd(a, b)
    }
    fn isub(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().isub(a, b)
    }
    fn and(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().band(a, b)
    }
    fn or(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().bor(a, b)
    }
    fn xor(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().bxor(a, b)
    }
    fn shl(&mut self, a: Value, n: u32) -> Value {
        self.e.b.ins().ishl_imm_u(a, i64::from(n))
    }
    fn sar(&mut self, a: Value, n: u32) -> Value {
        self.e.b.ins().sshr_imm_u(a, i64::from(n))
    }
    fn flush(&mut self, a: Value) -> Value {
        if self.flushed.contains(&Some(a)) { a } else { self.e.flush(a) }
    }
}

impl Lanes64 for Machine<'_, '_, '_> {
    type F = Value;
    type M = Value;

    fn f(&mut self, v: f64) -> Value {
        if self.vector {
            let v = self.e.vector_const64([v.to_bits(); 2]);
            self.e.cast(types::F64X2, v)
        } else {
            self.e.b.ins().f64const(v)
        }
    }
    fn div(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fdiv(a, b)
    }
    fn sqrt(&mut self, a: Value) -> Value {
        self.e.b.ins().sqrt(a)
    }
    fn and(&mut self, a: Value, mask: u64) -> Value {
        let bits = self.e.integer_bits(a);
        let mask = self.e.constant(bits, mask);
        let v = self.e.b.ins().band(bits, mask);
        self.e.floating(v)
    }
    fn lt(&mut self, a: Value, b: Value) -> Value {
        self.e.b.ins().fcmp(FloatCC::LessThan, a, b)
    }
    fn select(&mut self, m: Value, a: Value, b: Value) -> Value {
        self.e.float_pick(m, a, b)
    }
}

impl Emit<'_, '_> {
    /// Integer lanes as floats of their width.
    pub(super) fn floating(&mut self, v: Value) -> Value {
        let ty = match self.b.func.dfg.value_type(v) {
            types::I32 => types::F32,
            types::I64 => types::F64,
            types::I32X4 => types::F32X4,
            types::I64X2 => types::F64X2,
            other => other,
        };
        self.cast(ty, v)
    }

    /// Floats as integer lanes of their width.
    pub(super) fn integer_bits(&mut self, v: Value) -> Value {
        let ty = match self.b.func.dfg.value_type(v) {
            types::F32 => types::I32,
            types::F64 => types::I64,
            types::F32X4 => types::I32X4,
            types::F64X2 => types::I64X2,
            other => other,
        };
        self.cast(ty, v)
    }

    pub(super) fn float_pick(&mut self, m: Value, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        if !ty.is_vector() {
            return self.b.ins().select(m, a, b);
        }
        let m = self.cast(ty, m);
        self.b.ins().bitselect(m, a, b)
    }

    pub(super) fn float_const(&mut self, like: Value, v: f64) -> Value {
        match self.b.func.dfg.value_type(like) {
            types::F32 => self.b.ins().f32const(v as f32),
            types::F32X4 => {
                let c = self.vector_const([(v as f32).to_bits(); 4]);
                self.cast(types::F32X4, c)
            }
            types::F64X2 => {
                let c = self.vector_const64([v.to_bits(); 2]);
                self.cast(types::F64X2, c)
            }
            _ => self.b.ins().f64const(v),
        }
    }

    /// Subnormals to zeros of the same sign (f32): what has no bit of the exponent keeps the sign only. Comparing floats would be no
    /// shorter, and is slow where subnormals are. A scalar is the first lane of a vector, whose other lanes nobody reads.
    pub(super) fn flush(&mut self, v: Value) -> Value {
        let scalar = !self.is_vector(v);
        let v = if scalar { self.b.ins().scalar_to_vector(types::F32X4, v) } else { v };
        let bits = self.integer_bits(v);
        let exponent = self.band_const(bits, 0x7f80_0000);
        let zero = self.vector_const([0; 4]);
        let small = self.b.ins().icmp(IntCC::Equal, exponent, zero);
        let magnitude = self.b.ins().ushr_imm_u(small, 1);
        let bits = self.b.ins().band_not(bits, magnitude);
        let v = self.floating(bits);
        if scalar { self.b.ins().extractlane(v, 0) } else { v }
    }

    /// Must an operation flush this operand?
    pub(super) fn flushes(&self, ty: Ty, ftz: bool, o: Operand) -> bool {
        ftz && ty == Ty::F32 && self.floats.subnormals.may_be(o)
    }

    /// An operand as a float, flushed if it is to be.
    pub(super) fn float_operand(&mut self, v: Value, flush: bool) -> Value {
        let v = self.floating(v);
        if flush { self.flush(v) } else { v }
    }

    /// Flushes what has been loaded to a register, if loads see to that.
    pub(super) fn flush_loaded(&mut self, r: Reg) {
        if !self.floats.subnormals.by_loads(r) {
            return;
        }
        for var in self.variables(r) {
            let bits = self.b.use_var(var);
            let ty = self.b.func.dfg.value_type(bits);
            let v = self.float_operand(bits, true);
            let v = self.cast(ty, v);
            self.b.def_var(var, v);
        }
    }

    /// Makes a NaN canonical.
    pub(super) fn canonical(&mut self, v: Value) -> Value {
        let nan = self.b.ins().fcmp(FloatCC::Unordered, v, v);
        let bits = self.integer_bits(v);
        let wide = matches!(self.b.func.dfg.value_type(bits), types::I64 | types::I64X2);
        let canonical = self.constant(bits, if wide { NAN_F64 } else { u64::from(NAN_F32) });
        let canonical = self.floating(canonical);
        self.float_pick(nan, canonical, v)
    }

    /// The last steps of an operation: NaN, flushing, clamping; result as integer lanes.
    fn finish(&mut self, v: Value, flush: bool, sat: bool, quiet: bool) -> Value {
        let mut v = v;
        if sat {
            // NaN and everything not above zero become +0.
            let (zero, one) = (self.float_const(v, 0.0), self.float_const(v, 1.0));
            let above = self.b.ins().fcmp(FloatCC::GreaterThan, v, zero);
            v = self.float_pick(above, v, zero);
            let below = self.b.ins().fcmp(FloatCC::LessThan, v, one);
            v = self.float_pick(below, v, one);
        } else if !quiet {
            v = self.canonical(v);
        }
        if flush {
            v = self.flush(v);
        }
        self.integer_bits(v)
    }

    pub(super) fn native_float(&mut self, op: &Op, v: &[Parts], vector: bool) -> Option<Vec<Parts>> {
        let quiet = |e: &Self, dst: Reg| e.floats.nans[dst.0 as usize] != Nans::Canonical;
        match *op {
            Op::Float { op, ty: ty @ (Ty::F32 | Ty::F64), round, ftz, sat, dst, a, b } => {
                let quiet = quiet(self, dst);
                let flush = [a, b].map(|o| self.flushes(ty, ftz, o));
                let mut out = Vec::new();
                for (&a, &b) in v[0].iter().zip(&v[1]) {
                    out.push(self.float_binary(op, ty, round, ftz, flush, sat, quiet, [a, b], vector)?);
                }
                Some(vec![out])
            }
            Op::Fma { ty: ty @ (Ty::F32 | Ty::F64), round, ftz, sat, relu: false, dst, a, b, c }
                if round == Round::Rn || vector && ty == Ty::F32 && matches!(round, Round::Rm | Round::Rp) =>
            {
                let quiet = quiet(self, dst);
                let flush = [a, b, c].map(|o| self.flushes(ty, ftz, o));
                Some(vec![self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| {
                    let [a, b, c] = [(a, flush[0]), (b, flush[1]), (c, flush[2])].map(|(v, f)| e.float_operand(v, f));
                    let r = match round {
                        // Cranelift puts the result in the first factor's register: better in one that is not needed any more.
                        Round::Rn if e.is_shared(a) => e.b.ins().fma(b, a, c),
                        Round::Rn => e.b.ins().fma(a, b, c),
                        _ => e.directed_fma([a, b, c], round == Round::Rp),
                    };
                    e.finish(r, ftz, sat, quiet)
                })])
            }
            Op::FloatUn { op, ty: ty @ (Ty::F32 | Ty::F64), ftz, dst, a } => {
                let quiet = quiet(self, dst);
                let flush = self.flushes(ty, ftz, a);
                let mut out = Vec::new();
                for &a in &v[0] {
                    out.push(self.float_unary(op, ty, ftz, flush, quiet, a, vector)?);
                }
                Some(vec![out])
            }
            Op::Slct { ty, cty: Ty::F32, ftz: false, .. } if ty.bits() == 32 => {
                Some(vec![self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| {
                    let c = e.floating(c);
                    let zero = e.float_const(c, 0.0);
                    let hit = e.b.ins().fcmp(FloatCC::GreaterThanOrEqual, c, zero);
                    e.pick(hit, a, b)
                })])
            }
            Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu: false, dst, a } => {
                let quiet = quiet(self, dst);
                // The operand, or else the result.
                let flush = self.flushes(src_ty, ftz, a) || ftz && src_ty == Ty::F64;
                Some(vec![self.convert(
                    self.reg_ty(dst),
                    dst_ty,
                    src_ty,
                    round,
                    to_integral,
                    flush,
                    sat,
                    quiet,
                    &v[0],
                    vector,
                )?])
            }
            _ => None,
        }
    }

    /// `a * b + c` of four lanes rounded towards minus infinity, or plus infinity (`up`).
    ///
    /// In double precision the product is exact, and the sum is known with its error. Rounded to the nearest f32, the
    /// sum is one step too high if that is above it, or equal to it with an error below zero.
    fn directed_fma(&mut self, [a, b, c]: [Value; 3], up: bool) -> Value {
        // Upwards is downwards with the opposite sign.
        let opposite = |e: &mut Self, v: Value| if up { e.b.ins().fneg(v) } else { v };
        let (a, c) = (opposite(self, a), opposite(self, c));
        let (mut nearest, mut steps) = (Vec::new(), Vec::new());
        for upper in [false, true] {
            let [a, b, c] = [a, b, c].map(|v| {
                let v = if upper { self.high_floats(v) } else { v };
                self.b.ins().fvpromote_low(v)
            });
            let product = self.b.ins().fmul(a, b);
            let sum = self.b.ins().fadd(product, c);
            let part = self.b.ins().fsub(sum, product);
            let rest = self.b.ins().fsub(sum, part);
            let (low, high) = (self.b.ins().fsub(product, rest), self.b.ins().fsub(c, part));
            let error = self.b.ins().fadd(low, high);
            let single = self.b.ins().fvdemote(sum);
            let rounded = self.b.ins().fvpromote_low(single);
            let above = self.b.ins().fcmp(FloatCC::LessThan, sum, rounded);
            let equal = self.b.ins().fcmp(FloatCC::Equal, sum, rounded);
            let zero = self.float_const(sum, 0.0);
            let less = self.b.ins().fcmp(FloatCC::LessThan, error, zero);
            let less = self.b.ins().band(equal, less);
            steps.push(self.b.ins().bor(above, less));
            // An exact zero is negative, unless both terms are positive zeros.
            let signs = self.integer_bits(product);
            let other = self.integer_bits(c);
            let signs = self.b.ins().bor(signs, other);
            let sign = self.constant(signs, 1 << 63);
            let signs = self.b.ins().band(signs, sign);
            let nothing = self.b.ins().fcmp(FloatCC::Equal, sum, zero);
            let signs = self.b.ins().band(signs, nothing);
            let signs = self.floating(signs);
            let negative = self.b.ins().fvdemote(signs);
            let (single, negative) = (self.integer_bits(single), self.integer_bits(negative));
            nearest.push(self.b.ins().bor(single, negative));
        }
        let [low, high] = [0, 1].map(|i| self.cast(types::I64X2, nearest[i]));
        let bits = self.zip64(low, high, false);
        let bits = self.cast(types::I32X4, bits);
        let step = self.narrow(steps[0], steps[1], false);
        // The next number below: towards zero if positive, away from it if negative, and the least one below zero.
        let one = self.vector_const([1; 4]);
        let (less, more) = (self.b.ins().isub(bits, one), self.b.ins().iadd(bits, one));
        let zero = self.vector_const([0; 4]);
        let negative = self.b.ins().icmp(IntCC::SignedLessThan, bits, zero);
        let below = self.b.ins().bitselect(negative, more, less);
        let magnitude = self.band_const(bits, 0x7fff_ffff);
        let is_zero = self.b.ins().icmp(IntCC::Equal, magnitude, zero);
        let least = self.vector_const([0x8000_0001; 4]);
        let below = self.b.ins().bitselect(is_zero, least, below);
        let bits = self.b.ins().bitselect(step, below, bits);
        let r = self.floating(bits);
        opposite(self, r)
    }

    /// The upper two lanes of four, as the lower ones.
    fn high_floats(&mut self, v: Value) -> Value {
        let v = self.cast(types::I64X2, v);
        let v = self.zip64(v, v, true);
        self.cast(types::F32X4, v)
    }

    #[expect(clippy::too_many_arguments, reason = "the modifiers of one instruction")]
    fn float_binary(
        &mut self,
        op: FloatOp,
        ty: Ty,
        round: Round,
        ftz: bool,
        flush: [bool; 2],
        sat: bool,
        quiet: bool,
        v: [Value; 2],
        vector: bool,
    ) -> Option<Value> {
        let approximate = matches!(op, FloatOp::Div(Precision::Approx | Precision::Full));
        let extreme = matches!(op, FloatOp::Min | FloatOp::Max | FloatOp::MinNan | FloatOp::MaxNan);
        let [x, y] = [0, 1].map(|i| self.float_operand(v[i], flush[i] && !approximate));
        let r = match op {
            FloatOp::Add if round == Round::Rn => self.b.ins().fadd(x, y),
            FloatOp::Sub if round == Round::Rn => self.b.ins().fsub(x, y),
            FloatOp::Mul if round == Round::Rn => self.b.ins().fmul(x, y),
            FloatOp::Div(Precision::Ieee(Round::Rn)) => self.b.ins().fdiv(x, y),
            FloatOp::Div(Precision::Approx | Precision::Full) if ty == Ty::F32 => {
                let flushed = [(x, flush[0]), (y, flush[1])].map(|(v, flush)| (!flush).then_some(v));
                approx::binary(&mut Machine { e: self, vector, flushed }, op, ftz, x, y)?
            }
            _ if extreme => {
                let (p, q) = (self.integer_bits(x), self.integer_bits(y));
                let equal = self.b.ins().fcmp(FloatCC::Equal, x, y);
                let min = matches!(op, FloatOp::Min | FloatOp::MinNan);
                // Equal numbers differ in the sign of a zero at most.
                let (cc, same) = if min {
                    (FloatCC::LessThan, self.b.ins().bor(p, q))
                } else {
                    (FloatCC::GreaterThan, self.b.ins().band(p, q))
                };
                let first = self.b.ins().fcmp(cc, x, y);
                let m = self.pick(first, p, q);
                let m = self.pick(equal, same, m);
                let m = if matches!(op, FloatOp::Min | FloatOp::Max) {
                    let alone = self.b.ins().fcmp(FloatCC::Unordered, y, y);
                    self.pick(alone, p, m)
                } else {
                    let either = self.b.ins().fcmp(FloatCC::Unordered, x, y);
                    let sum = self.b.ins().fadd(x, y);
                    let sum = self.integer_bits(sum);
                    self.pick(either, sum, m)
                };
                self.floating(m)
            }
            FloatOp::Add => self.directed(Directed::Add, round, x, y)?,
            FloatOp::Sub => {
                let y = self.b.ins().fneg(y);
                self.directed(Directed::Add, round, x, y)?
            }
            FloatOp::Mul => self.directed(Directed::Mul, round, x, y)?,
            FloatOp::Div(Precision::Ieee(round)) => self.directed(Directed::Div, round, x, y)?,
            _ => return None,
        };
        // One of two numbers is as flushed as they are, and approximations flush for themselves.
        Some(self.finish(r, ftz && !extreme && !approximate, sat, quiet))
    }

    #[expect(clippy::too_many_arguments, reason = "the modifiers of one instruction")]
    fn float_unary(
        &mut self,
        op: FloatUnOp,
        ty: Ty,
        ftz: bool,
        flush: bool,
        quiet: bool,
        a: Value,
        vector: bool,
    ) -> Option<Value> {
        let approximate = !matches!(
            op,
            FloatUnOp::Abs | FloatUnOp::Neg | FloatUnOp::Sqrt(Precision::Ieee(_)) | FloatUnOp::Rcp(Precision::Ieee(_))
        );
        let x = self.float_operand(a, flush && !approximate);
        if ty == Ty::F64 {
            let mut machine = Machine { e: self, vector, flushed: [None; 2] };
            match op {
                FloatUnOp::Rcp(Precision::Approx | Precision::Full) => {
                    // Its NaN is its own.
                    let r = approx::rcp_f64(&mut machine, x);
                    return Some(self.integer_bits(r));
                }
                FloatUnOp::Rsqrt(_) => {
                    let r = approx::rsqrt_f64(&mut machine, ftz, x);
                    return Some(if ftz { self.integer_bits(r) } else { self.finish(r, false, false, false) });
                }
                _ if approximate || ftz => return None,
                _ => {}
            }
        }
        if approximate {
            // The algorithms flush for themselves; flushing before is the same.
            let flushed = [(!flush).then_some(x), None];
            let r = approx::unary(&mut Machine { e: self, vector, flushed }, op, ftz, x)?;
            return Some(self.finish(r, false, false, quiet));
        }
        let r = match op {
            FloatUnOp::Abs | FloatUnOp::Neg => {
                let bits = self.integer_bits(x);
                let sign: u64 = if ty == Ty::F64 { 1 << 63 } else { 1 << 31 };
                let r = if op == FloatUnOp::Neg {
                    let c = self.constant(bits, sign);
                    self.b.ins().bxor(bits, c)
                } else {
                    let c = self.constant(bits, sign - 1);
                    self.b.ins().band(bits, c)
                };
                self.floating(r)
            }
            FloatUnOp::Sqrt(Precision::Ieee(Round::Rn)) => self.b.ins().sqrt(x),
            FloatUnOp::Rcp(Precision::Ieee(Round::Rn)) => {
                let one = self.float_const(x, 1.0);
                self.b.ins().fdiv(one, x)
            }
            FloatUnOp::Sqrt(Precision::Ieee(round)) => self.directed(Directed::Sqrt, round, x, x)?,
            FloatUnOp::Rcp(Precision::Ieee(round)) => {
                let one = self.float_const(x, 1.0);
                self.directed(Directed::Div, round, one, x)?
            }
            _ => return None,
        };
        // Signs and roots of what is flushed are so.
        Some(self.finish(r, ftz && matches!(op, FloatUnOp::Rcp(_)), false, quiet))
    }

    pub(super) fn float_comparison(
        &mut self,
        cmp: Cmp,
        ty: Ty,
        flush: [bool; 2],
        a: &Parts,
        b: &Parts,
    ) -> Option<Parts> {
        if !matches!(ty, Ty::F32 | Ty::F64) {
            return None;
        }
        let hit = self.map2(a, b, |e, a, b| {
            let [x, y] = [(a, flush[0]), (b, flush[1])].map(|(v, flush)| e.float_operand(v, flush));
            let not =
                |e: &mut Self, v: Value| if e.is_vector(v) { e.b.ins().bnot(v) } else { e.b.ins().bxor_imm_u(v, 1) };
            match cmp {
                Cmp::Eq => e.b.ins().fcmp(FloatCC::Equal, x, y),
                Cmp::Neu => e.b.ins().fcmp(FloatCC::NotEqual, x, y),
                Cmp::Lt => e.b.ins().fcmp(FloatCC::LessThan, x, y),
                Cmp::Le => e.b.ins().fcmp(FloatCC::LessThanOrEqual, x, y),
                Cmp::Gt => e.b.ins().fcmp(FloatCC::LessThan, y, x),
                Cmp::Ge => e.b.ins().fcmp(FloatCC::LessThanOrEqual, y, x),
                Cmp::Num => e.b.ins().fcmp(FloatCC::Ordered, x, y),
                Cmp::Nan => e.b.ins().fcmp(FloatCC::Unordered, x, y),
                Cmp::Geu => {
                    let v = e.b.ins().fcmp(FloatCC::LessThan, x, y);
                    not(e, v)
                }
                Cmp::Gtu => {
                    let v = e.b.ins().fcmp(FloatCC::LessThanOrEqual, x, y);
                    not(e, v)
                }
                Cmp::Leu => {
                    let v = e.b.ins().fcmp(FloatCC::LessThan, y, x);
                    not(e, v)
                }
                Cmp::Ltu => {
                    let v = e.b.ins().fcmp(FloatCC::LessThanOrEqual, y, x);
                    not(e, v)
                }
                Cmp::Ne | Cmp::Equ => {
                    let (less, more) =
                        (e.b.ins().fcmp(FloatCC::LessThan, x, y), e.b.ins().fcmp(FloatCC::LessThan, y, x));
                    let v = e.b.ins().bor(less, more);
                    if cmp == Cmp::Ne { v } else { not(e, v) }
                }
            }
        });
        Some(self.as_predicate(hit))
    }
}
