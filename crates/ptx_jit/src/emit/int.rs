//! Integers and predicates in machine code; building blocks that scalars and vectors share.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, InstructionData, Opcode, Type, Value, types};
use ptx::ir::{Cmp, IntOp, IntUnOp, MulPart, Op, Operand, RegTy, Ty};

use super::Emit;
use super::alu::Parts;
use crate::analysis::classes::Class;

impl Emit<'_, '_> {
    // Building blocks for native code: scalars and vectors alike.

    pub(super) fn band_const(&mut self, v: Value, mask: u32) -> Value {
        let c = self.constant(v, u64::from(mask));
        self.b.ins().band(v, c)
    }

    /// A constant of the type of `like`.
    pub(super) fn constant(&mut self, like: Value, v: u64) -> Value {
        match self.b.func.dfg.value_type(like) {
            types::I32X4 => self.vector_const([v as u32; 4]),
            types::I64X2 => self.vector_const64([v; 2]),
            types::I32 => self.i32(v as i64),
            types::I8 => self.b.ins().iconst(types::I8, (v & 1) as i64),
            _ => self.i64(v as i64),
        }
    }

    pub(super) fn is_vector(&self, v: Value) -> bool {
        self.b.func.dfg.value_type(v).is_vector()
    }

    /// `c ? a : b`, c a comparison's result.
    pub(super) fn pick(&mut self, c: Value, a: Value, b: Value) -> Value {
        if !self.is_vector(a) {
            return self.b.ins().select(c, a, b);
        }
        match self.opposite(c) {
            Some(c) => self.b.ins().bitselect(c, b, a),
            None => self.b.ins().bitselect(c, a, b),
        }
    }

    /// Bits of both: of vectors, lanes in which both comparisons hold.
    pub(super) fn both(&mut self, a: Value, b: Value) -> Value {
        if let Some(a) = self.opposite(a) {
            return self.b.ins().band_not(b, a);
        }
        match self.opposite(b) {
            Some(b) => self.b.ins().band_not(a, b),
            None => self.b.ins().band(a, b),
        }
    }

    /// Where two vectors are equal, of where they are not, which takes the processor twice as long to find out.
    fn opposite(&mut self, v: Value) -> Option<Value> {
        let dfg = &self.b.func.dfg;
        let v = dfg.resolve_aliases(v);
        let [a, b] = match dfg.insts[dfg.value_def(v).inst()?] {
            InstructionData::IntCompare { cond: IntCC::NotEqual, args, .. } if self.is_vector(args[0]) => args,
            _ => return None,
        };
        let here = (self.b.current_block()?, v);
        if let Some(&equal) = self.opposites.get(&here) {
            return Some(equal);
        }
        let equal = self.b.ins().icmp(IntCC::Equal, a, b);
        self.opposites.insert(here, equal);
        Some(equal)
    }

    /// The number that all lanes of words are, if that is plain to see.
    fn known_word(&self, v: Value) -> Option<u32> {
        let dfg = &self.b.func.dfg;
        if let InstructionData::UnaryConst { opcode: Opcode::Vconst, constant_handle } =
            dfg.insts[dfg.value_def(dfg.resolve_aliases(v)).inst()?]
        {
            let (words, _) = dfg.constants.get(constant_handle).as_slice().as_chunks::<4>();
            return words.iter().all(|word| *word == words[0]).then(|| u32::from_le_bytes(words[0]));
        }
        self.known(v).map(|v| v as u32)
    }

    /// Integer comparison of scalars or vectors; vector results are masks of the operands' lanes.
    pub(super) fn compare(&mut self, cc: IntCC, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        let unsigned = matches!(
            cc,
            IntCC::UnsignedLessThan
                | IntCC::UnsignedLessThanOrEqual
                | IntCC::UnsignedGreaterThan
                | IntCC::UnsignedGreaterThanOrEqual
        );
        if ty == types::I64X2 && unsigned {
            // There is no unsigned comparison of 64-bit lanes: flip the sign bits.
            let flip = self.vector_const64([1 << 63; 2]);
            let (a, b) = (self.b.ins().bxor(a, flip), self.b.ins().bxor(b, flip));
            let cc = match cc {
                IntCC::UnsignedLessThan => IntCC::SignedLessThan,
                IntCC::UnsignedLessThanOrEqual => IntCC::SignedLessThanOrEqual,
                IntCC::UnsignedGreaterThan => IntCC::SignedGreaterThan,
                _ => IntCC::SignedGreaterThanOrEqual,
            };
            return self.b.ins().icmp(cc, a, b);
        }
        // Of words, one comparison with the lesser or the greater of both says that equal ones count, and another that they do not.
        if ty == types::I32X4
            && let IntCC::UnsignedLessThan | IntCC::UnsignedGreaterThan = cc
            && let Some(bound) = self.known_word(b)
        {
            let (cc, bound) = match cc {
                IntCC::UnsignedLessThan => (IntCC::UnsignedLessThanOrEqual, bound.checked_sub(1)),
                _ => (IntCC::UnsignedGreaterThanOrEqual, bound.checked_add(1)),
            };
            if let Some(bound) = bound {
                let bound = self.vector_const([bound; 4]);
                return self.b.ins().icmp(cc, a, bound);
            }
        }
        self.b.ins().icmp(cc, a, b)
    }

    pub(super) fn map1(&mut self, a: &Parts, mut f: impl FnMut(&mut Self, Value) -> Value) -> Parts {
        a.iter().map(|&a| f(self, a)).collect()
    }

    pub(super) fn map2(&mut self, a: &Parts, b: &Parts, mut f: impl FnMut(&mut Self, Value, Value) -> Value) -> Parts {
        a.iter().zip(b).map(|(&a, &b)| f(self, a, b)).collect()
    }

    pub(super) fn map3(
        &mut self,
        [a, b, c]: [&Parts; 3],
        mut f: impl FnMut(&mut Self, Value, Value, Value) -> Value,
    ) -> Parts {
        a.iter().zip(b).zip(c).map(|((&a, &b), &c)| f(self, a, b, c)).collect()
    }

    /// Runs scalar code for every lane of vectors (or once).
    pub(super) fn lanewise(
        &mut self,
        sources: &[(&Parts, RegTy)],
        out: RegTy,
        vector: bool,
        mut f: impl FnMut(&mut Self, &[Value]) -> Value,
    ) -> Parts {
        if !vector {
            let scalars: Vec<Value> = sources.iter().map(|(p, _)| p[0]).collect();
            return vec![f(self, &scalars)];
        }
        let mut results = Vec::new();
        for lane in 0..self.lanes_per_chunk() {
            let scalars: Vec<Value> = sources.iter().map(|(p, ty)| self.extract(p, *ty, lane)).collect();
            results.push(f(self, &scalars));
        }
        self.gather(&results, out)
    }

    /// Masks of 64-bit lanes as predicate lanes; 32-bit masks as they are.
    pub(super) fn as_predicate(&mut self, parts: Parts) -> Parts {
        match parts.first().map(|&p| self.b.func.dfg.value_type(p)) {
            Some(types::I64X2) => parts.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect(),
            _ => parts,
        }
    }

    /// Sign- or zero-extends 16-bit values that are held in 32-bit lanes, by the type's signedness.
    pub(super) fn widened16(&mut self, v: Value, ty: Ty) -> Value {
        if ty.is_signed() {
            let v = self.b.ins().ishl_imm_u(v, 16);
            self.b.ins().sshr_imm_u(v, 16)
        } else {
            v
        }
    }

    /// Native code of an operation, if there is.
    pub(super) fn native(&mut self, op: &Op, v: &[Parts], vector: bool) -> Option<Vec<Parts>> {
        let one = |p: Parts| Some(vec![p]);
        match op {
            Op::Int { op, ty, sat: false, b, .. } => one(self.int(*op, *ty, v, *b, vector)?),
            Op::Mul { part, ty, .. } => one(self.product(*part, *ty, &v[0], &v[1], vector)?),
            Op::Mad { part, ty, sat: false, .. } => {
                let product = self.product(*part, *ty, &v[0], &v[1], vector)?;
                let sum = self.map2(&product, &v[2], |e, a, b| e.b.ins().iadd(a, b));
                if ty.bits() == 16 && *part != MulPart::Wide {
                    return one(self.map1(&sum, |e, v| e.band_const(v, 0xffff)));
                }
                one(sum)
            }
            Op::IntUn { op, ty, .. } => one(self.int_unary(*op, *ty, &v[0], vector)?),
            Op::Bfe { ty, pos: Operand::Imm(pos), len: Operand::Imm(len), .. } => {
                let bits = u64::from(ty.bits());
                let kept = if bits == 64 { u64::from(u32::MAX) } else { 0xff };
                let (pos, len) = (*pos & kept, *len & kept);
                if len == 0 || pos + len > bits {
                    return self.native_fields(op, v, vector).map(|parts| vec![parts]);
                }
                let (up, down) = ((bits - pos - len) as i64, (bits - len) as i64);
                let signed = ty.is_signed();
                one(self.map1(&v[0], |e, x| {
                    let x = e.b.ins().ishl_imm_u(x, up);
                    if signed { e.b.ins().sshr_imm_u(x, down) } else { e.b.ins().ushr_imm_u(x, down) }
                }))
            }
            Op::Lop3 { lut, .. } => {
                let lut = *lut;
                one(self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| e.lop3(lut, a, b, c)))
            }
            Op::Shf { left, wrap, c: Operand::Imm(n), .. } => {
                let n = if *wrap { n & 31 } else { (*n).min(32) } as i64;
                let left = *left;
                one(self.map2(&v[0], &v[1], |e, a, b| match (left, n) {
                    (true, 0) | (false, 32) => b,
                    (true, 32) | (false, 0) => a,
                    (true, n) => {
                        let (h, l) = (e.b.ins().ishl_imm_u(b, n), e.b.ins().ushr_imm_u(a, 32 - n));
                        e.b.ins().bor(h, l)
                    }
                    (false, n) => {
                        let (h, l) = (e.b.ins().ishl_imm_u(b, 32 - n), e.b.ins().ushr_imm_u(a, n));
                        e.b.ins().bor(h, l)
                    }
                }))
            }
            Op::AddCarry { sub, ty, cc_in, cc_out, .. } if matches!(ty.bits(), 32 | 64) => {
                Some(self.add_carry(*sub, v, cc_in.is_some(), cc_out.is_some(), vector))
            }
            Op::Setp { cmp, ty, ftz, combine, a, b, .. } => {
                let hit = self.comparison(*cmp, *ty, [*a, *b].map(|o| self.flushes(*ty, *ftz, o)), &v[0], &v[1])?;
                let miss = self.map1(&hit, |e, h| if vector { e.b.ins().bnot(h) } else { e.b.ins().bxor_imm_u(h, 1) });
                let (mut first, mut second) = (hit, miss);
                if let Some((op, _)) = combine {
                    let op = *op;
                    first = self.map2(&first, &v[2], |e, a, b| e.bool_op(op, a, b));
                    second = self.map2(&second, &v[2], |e, a, b| e.bool_op(op, a, b));
                }
                Some(vec![first, second])
            }
            Op::Set { cmp, ty, ftz, combine, dst_ty, a, b, .. } if dst_ty.bits() == 32 => {
                let mut hit = self.comparison(*cmp, *ty, [*a, *b].map(|o| self.flushes(*ty, *ftz, o)), &v[0], &v[1])?;
                if let Some((op, _)) = combine {
                    let op = *op;
                    hit = self.map2(&hit, &v[2], |e, a, b| e.bool_op(op, a, b));
                }
                let ones = if *dst_ty == Ty::F32 { 1.0_f32.to_bits() } else { u32::MAX };
                one(self.map1(&hit, |e, h| {
                    if vector {
                        let c = e.vector_const([ones; 4]);
                        e.b.ins().band(h, c)
                    } else {
                        let (c, zero) = (e.i32(i64::from(ones)), e.i32(0));
                        e.b.ins().select(h, c, zero)
                    }
                }))
            }
            Op::Slct { ty, cty: Ty::S32, .. } if matches!(ty.bits(), 32) => {
                one(self.map3([&v[0], &v[1], &v[2]], |e, a, b, c| {
                    let zero = e.constant(c, 0);
                    let hit = e.compare(IntCC::SignedGreaterThanOrEqual, c, zero);
                    e.pick(hit, a, b)
                }))
            }
            _ => match self.native_fields(op, v, vector) {
                Some(parts) => one(parts),
                None => self.native_float(op, v, vector),
            },
        }
    }

    pub(super) fn bool_op(&mut self, op: ptx::ir::BoolOp, a: Value, b: Value) -> Value {
        match op {
            ptx::ir::BoolOp::And => self.both(a, b),
            ptx::ir::BoolOp::Or => self.b.ins().bor(a, b),
            ptx::ir::BoolOp::Xor => self.b.ins().bxor(a, b),
        }
    }

    pub(super) fn int(&mut self, op: IntOp, ty: Ty, v: &[Parts], b: Operand, vector: bool) -> Option<Parts> {
        let bits = ty.bits();
        if !matches!(bits, 1 | 16 | 32 | 64) {
            return None;
        }
        let (x, y) = (&v[0], &v[1]);
        let signed = ty.is_signed();
        let out = match op {
            IntOp::Add => self.map2(x, y, |e, a, b| e.b.ins().iadd(a, b)),
            IntOp::Sub => self.map2(x, y, |e, a, b| e.b.ins().isub(a, b)),
            IntOp::And => return Some(self.map2(x, y, Self::both)),
            IntOp::Or => return Some(self.map2(x, y, |e, a, b| e.b.ins().bor(a, b))),
            IntOp::Xor => return Some(self.map2(x, y, |e, a, b| e.b.ins().bxor(a, b))),
            IntOp::Min | IntOp::Max => {
                let less = if signed { IntCC::SignedLessThan } else { IntCC::UnsignedLessThan };
                self.map2(x, y, |e, a, b| {
                    let (a, b) = if bits == 16 { (e.widened16(a, ty), e.widened16(b, ty)) } else { (a, b) };
                    if bits == 64 && vector {
                        let hit = e.compare(less, a, b);
                        return if op == IntOp::Min { e.pick(hit, a, b) } else { e.pick(hit, b, a) };
                    }
                    match (op, signed) {
                        (IntOp::Min, true) => e.b.ins().smin(a, b),
                        (IntOp::Min, false) => e.b.ins().umin(a, b),
                        (_, true) => e.b.ins().smax(a, b),
                        (_, false) => e.b.ins().umax(a, b),
                    }
                })
            }
            IntOp::Shl | IntOp::Shr => {
                let x: Parts = if bits == 16 { self.map1(x, |e, a| e.widened16(a, ty)) } else { x.clone() };
                match b {
                    Operand::Imm(n) => {
                        let n = n & 0xffff_ffff;
                        let over = n >= u64::from(bits);
                        self.map1(&x, |e, a| match (op, over) {
                            (IntOp::Shl, true) => e.constant(a, 0),
                            (IntOp::Shl, false) => e.b.ins().ishl_imm_u(a, n as i64),
                            (_, true) if signed => e.b.ins().sshr_imm_u(a, i64::from(bits.max(32)) - 1),
                            (_, true) => e.constant(a, 0),
                            (_, false) if signed => e.b.ins().sshr_imm_u(a, n as i64),
                            (_, false) => e.b.ins().ushr_imm_u(a, n as i64),
                        })
                    }
                    Operand::Reg(r) if vector && self.class(r) == Class::Same => {
                        let amount = self.get(r);
                        let amount = self.first(&amount, RegTy::B32);
                        self.shifted_alike(op, ty, &x, amount)
                    }
                    Operand::Reg(_) => {
                        let reg = if bits == 64 { RegTy::B64 } else { RegTy::B32 };
                        self.lanewise(&[(&x, reg), (y, RegTy::B32)], reg, vector, |e, s| {
                            let (a, n) = (s[0], s[1]);
                            let limit = e.i32(i64::from(bits.max(32)) - 1);
                            if op == IntOp::Shr && signed {
                                let n = e.b.ins().umin(n, limit);
                                return e.b.ins().sshr(a, n);
                            }
                            let shifted = if op == IntOp::Shl { e.b.ins().ishl(a, n) } else { e.b.ins().ushr(a, n) };
                            let fits = e.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, n, limit);
                            let zero = e.constant(a, 0);
                            e.b.ins().select(fits, shifted, zero)
                        })
                    }
                }
            }
            IntOp::Div | IntOp::Rem if vector && bits <= 32 => self.map2(x, y, |e, a, b| e.divide_lanes(op, ty, a, b)),
            IntOp::Div | IntOp::Rem => {
                let reg = if bits == 64 { RegTy::B64 } else { RegTy::B32 };
                self.lanewise(&[(x, reg), (y, reg)], reg, vector, |e, s| e.divide(op, ty, s[0], s[1]))
            }
        };
        if bits == 16 {
            return Some(self.map1(&out, |e, v| e.band_const(v, 0xffff)));
        }
        Some(out)
    }

    /// Vectors shifted by an amount that all lanes share, an i32. Widths less than 32 bits are extended to that.
    fn shifted_alike(&mut self, op: IntOp, ty: Ty, x: &Parts, amount: Value) -> Parts {
        let limit = self.i32(i64::from(ty.bits().max(32)) - 1);
        if op == IntOp::Shr && ty.is_signed() {
            let amount = self.b.ins().umin(amount, limit);
            return self.map1(x, |e, v| e.b.ins().sshr(v, amount));
        }
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, amount, limit);
        let fits = self.b.ins().uextend(types::I64, fits);
        let fits = self.b.ins().ineg(fits);
        let fits = self.b.ins().splat(types::I64X2, fits);
        self.map1(x, |e, v| {
            let shifted = if op == IntOp::Shl { e.b.ins().ishl(v, amount) } else { e.b.ins().ushr(v, amount) };
            let fits = e.cast(e.b.func.dfg.value_type(v), fits);
            e.b.ins().band(shifted, fits)
        })
    }

    /// Quotients or remainders of four 32-bit lanes, in double precision: no double that is not whole is nearer to a
    /// quotient of 32-bit numbers than the next whole one is, so its whole part is that of the exact quotient.
    fn divide_lanes(&mut self, op: IntOp, ty: Ty, a: Value, b: Value) -> Value {
        let (mut x, mut y) = (a, b);
        if ty.bits() == 16 {
            (x, y) = (self.widened16(x, ty), self.widened16(y, ty));
        }
        let (xs, ys) = (self.doubles(x, ty), self.doubles(y, ty));
        let mut words = Vec::new();
        for (x, y) in xs.into_iter().zip(ys) {
            let quotient = self.b.ins().fdiv(x, y);
            let whole = self.b.ins().trunc(quotient);
            // 1.5 * 2^52: the sum has the whole number in its low bits.
            let shift = self.vector_const64([0x4338_0000_0000_0000; 2]);
            let shift = self.cast(types::F64X2, shift);
            let sum = self.b.ins().fadd(whole, shift);
            words.push(self.cast(types::I64X2, sum));
        }
        let mut result = self.narrow(words[0], words[1], false);
        if op == IntOp::Rem {
            let product = self.b.ins().imul(result, y);
            result = self.b.ins().isub(x, product);
        }
        let zero = self.vector_const([0; 4]);
        let by_zero = self.b.ins().icmp(IntCC::Equal, y, zero);
        self.b.ins().bor(result, by_zero)
    }

    /// Four 32-bit integers in double precision.
    fn doubles(&mut self, v: Value, ty: Ty) -> [Value; 2] {
        self.widen(v, ty.is_signed()).map(|half| {
            // 1.5 * 2^52 with the integer added in its low bits, less 1.5 * 2^52.
            let shift = self.vector_const64([0x4338_0000_0000_0000; 2]);
            let sum = self.b.ins().iadd(half, shift);
            let (sum, shift) = (self.cast(types::F64X2, sum), self.cast(types::F64X2, shift));
            self.b.ins().fsub(sum, shift)
        })
    }

    /// Scalar quotient or remainder as PTX defines them: no trap.
    pub(super) fn divide(&mut self, op: IntOp, ty: Ty, a: Value, b: Value) -> Value {
        let signed = ty.is_signed();
        let (mut x, mut y) = (a, b);
        if ty.bits() == 16 {
            x = self.widened16(x, ty);
            y = self.widened16(y, ty);
        }
        if ty.bits() < 64 {
            // In 64 bits no quotient of 32-bit numbers overflows.
            (x, y) = if signed {
                (self.b.ins().sextend(types::I64, x), self.b.ins().sextend(types::I64, y))
            } else {
                (self.b.ins().uextend(types::I64, x), self.b.ins().uextend(types::I64, y))
            };
        }
        let one = self.i64(1);
        let by_zero = self.b.ins().icmp_imm_u(IntCC::Equal, y, 0);
        let mut safe = self.b.ins().select(by_zero, one, y);
        let mut by_minus_one = None;
        if signed && ty.bits() == 64 {
            let hit = self.b.ins().icmp_imm_s(IntCC::Equal, y, -1);
            safe = self.b.ins().select(hit, one, safe);
            by_minus_one = Some(hit);
        }
        let result = match (op, signed) {
            (IntOp::Div, true) => self.b.ins().sdiv(x, safe),
            (IntOp::Div, false) => self.b.ins().udiv(x, safe),
            (_, true) => self.b.ins().srem(x, safe),
            (_, false) => self.b.ins().urem(x, safe),
        };
        let mut result = result;
        if let Some(hit) = by_minus_one {
            let other = if op == IntOp::Div { self.b.ins().ineg(x) } else { self.i64(0) };
            result = self.b.ins().select(hit, other, result);
        }
        let all_ones = self.i64(-1);
        let result = self.b.ins().select(by_zero, all_ones, result);
        if ty.bits() < 64 { self.b.ins().ireduce(types::I32, result) } else { result }
    }

    /// How often the other factor is doubled, if `b` is such a number, and one that can be seen to be.
    fn doublings(&self, part: MulPart, ty: Ty, b: &Parts) -> Option<i64> {
        let known = self.known(*b.first()?)?;
        let by = match (part, ty.bits()) {
            (MulPart::Lo | MulPart::Wide, 32) => known & u64::from(u32::MAX),
            (MulPart::Lo, 64) => known,
            _ => return None,
        };
        let positive = !ty.is_signed() || part == MulPart::Lo || by <= i32::MAX as u64;
        (by.is_power_of_two() && positive).then_some(by.trailing_zeros().into())
    }

    pub(super) fn product(&mut self, part: MulPart, ty: Ty, a: &Parts, b: &Parts, vector: bool) -> Option<Parts> {
        let signed = ty.is_signed();
        if let Some(n) = self.doublings(part, ty, b) {
            return Some(match part {
                MulPart::Lo => self.map1(a, |e, a| e.b.ins().ishl_imm_u(a, n)),
                _ if vector => {
                    let wide: Parts = a.iter().flat_map(|&a| self.widen(a, signed)).collect();
                    self.map1(&wide, |e, a| e.b.ins().ishl_imm_u(a, n))
                }
                _ => self.map1(a, |e, a| {
                    let a = e.extend(a, ty);
                    e.b.ins().ishl_imm_u(a, n)
                }),
            });
        }
        Some(match (part, ty.bits()) {
            (MulPart::Lo, 32 | 64) => self.map2(a, b, |e, a, b| e.b.ins().imul(a, b)),
            (_, 16) => self.map2(a, b, |e, a, b| {
                let (a, b) = (e.widened16(a, ty), e.widened16(b, ty));
                let p = e.b.ins().imul(a, b);
                match part {
                    MulPart::Wide => p,
                    MulPart::Lo => e.band_const(p, 0xffff),
                    MulPart::Hi => {
                        let p = e.b.ins().ushr_imm_u(p, 16);
                        e.band_const(p, 0xffff)
                    }
                }
            }),
            (MulPart::Wide | MulPart::Hi, 32) if vector => {
                let mut wide = Vec::new();
                for (&a, &b) in a.iter().zip(b) {
                    let (a, b) = (self.widen(a, signed), self.widen(b, signed));
                    let pair = [self.b.ins().imul(a[0], b[0]), self.b.ins().imul(a[1], b[1])];
                    if part == MulPart::Wide {
                        wide.extend(pair);
                    } else {
                        wide.push(self.narrow(pair[0], pair[1], true));
                    }
                }
                wide
            }
            (MulPart::Wide | MulPart::Hi, 32) => {
                let (a, b) = (self.extend(a[0], ty), self.extend(b[0], ty));
                let p = self.b.ins().imul(a, b);
                vec![if part == MulPart::Wide {
                    p
                } else {
                    let p = self.b.ins().ushr_imm_u(p, 32);
                    self.b.ins().ireduce(types::I32, p)
                }]
            }
            (MulPart::Hi, 64) => self.lanewise(&[(a, RegTy::B64), (b, RegTy::B64)], RegTy::B64, vector, |e, s| {
                if signed { e.b.ins().smulhi(s[0], s[1]) } else { e.b.ins().umulhi(s[0], s[1]) }
            }),
            _ => return None,
        })
    }

    pub(super) fn int_unary(&mut self, op: IntUnOp, ty: Ty, a: &Parts, vector: bool) -> Option<Parts> {
        let bits = ty.bits();
        let reg = ty.reg();
        Some(match (op, bits) {
            (IntUnOp::Not, 1) => {
                self.map1(a, |e, v| if vector { e.b.ins().bnot(v) } else { e.b.ins().bxor_imm_u(v, 1) })
            }
            (IntUnOp::Not, _) => self.map1(a, |e, v| {
                let v = e.b.ins().bnot(v);
                if bits == 16 { e.band_const(v, 0xffff) } else { v }
            }),
            (IntUnOp::Neg, 32 | 64) => self.map1(a, |e, v| e.b.ins().ineg(v)),
            (IntUnOp::Abs, 32) => self.map1(a, |e, v| e.b.ins().iabs(v)),
            (IntUnOp::Popc, 32 | 64) => self.lanewise(&[(a, reg)], RegTy::B32, vector, |e, s| {
                let n = e.b.ins().popcnt(s[0]);
                if bits == 64 { e.b.ins().ireduce(types::I32, n) } else { n }
            }),
            (IntUnOp::Clz, 32 | 64) => self.lanewise(&[(a, reg)], RegTy::B32, vector, |e, s| {
                let n = e.b.ins().clz(s[0]);
                if bits == 64 { e.b.ins().ireduce(types::I32, n) } else { n }
            }),
            (IntUnOp::Brev, 32 | 64) => self.lanewise(&[(a, reg)], reg, vector, |e, s| e.b.ins().bitrev(s[0])),
            _ => return None,
        })
    }

    /// A two-variable truth table (bit 2 * b + c).
    pub(super) fn table2(&mut self, table: u8, b: Value, c: Value) -> Value {
        match table & 15 {
            0 => self.constant(b, 0),
            1 => {
                let v = self.b.ins().bor(b, c);
                self.b.ins().bnot(v)
            }
            2 => self.b.ins().band_not(c, b),
            3 => self.b.ins().bnot(b),
            4 => self.b.ins().band_not(b, c),
            5 => self.b.ins().bnot(c),
            6 => self.b.ins().bxor(b, c),
            7 => {
                let v = self.b.ins().band(b, c);
                self.b.ins().bnot(v)
            }
            8 => self.b.ins().band(b, c),
            9 => {
                let v = self.b.ins().bxor(b, c);
                self.b.ins().bnot(v)
            }
            10 => c,
            11 => {
                let v = self.b.ins().bnot(b);
                self.b.ins().bor(v, c)
            }
            12 => b,
            13 => {
                let v = self.b.ins().bnot(c);
                self.b.ins().bor(b, v)
            }
            14 => self.b.ins().bor(b, c),
            _ => {
                let ones = self.constant(b, 0);
                self.b.ins().bnot(ones)
            }
        }
    }

    pub(super) fn lop3(&mut self, lut: u8, a: Value, b: Value, c: Value) -> Value {
        let (low, high) = (lut & 15, lut >> 4);
        let zero_when_clear = self.table2(low, b, c);
        if low == high {
            return zero_when_clear;
        }
        let when_set = self.table2(high, b, c);
        if low == !high & 15 {
            return self.b.ins().bxor(a, zero_when_clear);
        }
        let set = self.b.ins().band(a, when_set);
        let clear = self.b.ins().band_not(zero_when_clear, a);
        self.b.ins().bor(set, clear)
    }

    pub(super) fn add_carry(
        &mut self,
        sub: bool,
        v: &[Parts],
        carry_in: bool,
        carry_out: bool,
        vector: bool,
    ) -> Vec<Parts> {
        let (mut sums, mut carries) = (Vec::new(), Vec::new());
        for (i, (&a, &b)) in v[0].iter().zip(&v[1]).enumerate() {
            // The carry, of a subtraction the borrow, as a mask of the operands' type: 0 or -1.
            let carry = carry_in.then(|| {
                let ty: Type = self.b.func.dfg.value_type(a);
                let mask = match ty {
                    types::I32X4 => v[2][i],
                    types::I64X2 => {
                        let mask = v[2][i / 2];
                        if i % 2 == 0 { self.b.ins().swiden_low(mask) } else { self.b.ins().swiden_high(mask) }
                    }
                    _ => {
                        let wide = self.b.ins().uextend(ty, v[2][0]);
                        self.b.ins().ineg(wide)
                    }
                };
                if sub { self.b.ins().bnot(mask) } else { mask }
            });
            let first = if sub { self.b.ins().isub(a, b) } else { self.b.ins().iadd(a, b) };
            let overflow = |e: &mut Self, result: Value, before: Value| {
                if sub {
                    e.compare(IntCC::UnsignedGreaterThan, result, before)
                } else {
                    e.compare(IntCC::UnsignedLessThan, result, before)
                }
            };
            let mut flag = carry_out.then(|| overflow(self, first, a));
            let mut sum = first;
            if let Some(carry) = carry {
                // Subtracting a mask of all ones adds one.
                sum = if sub { self.b.ins().iadd(first, carry) } else { self.b.ins().isub(first, carry) };
                if let Some(f) = flag {
                    let second = overflow(self, sum, first);
                    flag = Some(self.b.ins().bor(f, second));
                }
            }
            sums.push(sum);
            if let Some(f) = flag {
                carries.push(match (sub, vector) {
                    (false, _) => f,
                    (true, true) => self.b.ins().bnot(f),
                    (true, false) => self.b.ins().bxor_imm_u(f, 1),
                });
            }
        }
        let carries = self.as_predicate(carries);
        vec![sums, carries]
    }

    /// A comparison as predicate lanes (or i8); of floats, some operands may have to be flushed.
    pub(super) fn comparison(&mut self, cmp: Cmp, ty: Ty, flush: [bool; 2], a: &Parts, b: &Parts) -> Option<Parts> {
        if ty.is_float() {
            return self.float_comparison(cmp, ty, flush, a, b);
        }
        if ty.bits() == 1 {
            return None;
        }
        let cc = condition(cmp, ty.is_signed())?;
        let hit = self.map2(a, b, |e, a, b| {
            let (a, b) = if ty.bits() == 16 { (e.widened16(a, ty), e.widened16(b, ty)) } else { (a, b) };
            e.compare(cc, a, b)
        });
        Some(self.as_predicate(hit))
    }
}

/// The comparison of integers.
pub(super) fn condition(cmp: Cmp, signed: bool) -> Option<IntCC> {
    Some(match (cmp, signed) {
        (Cmp::Eq | Cmp::Equ, _) => IntCC::Equal,
        (Cmp::Ne | Cmp::Neu, _) => IntCC::NotEqual,
        (Cmp::Lt, true) => IntCC::SignedLessThan,
        (Cmp::Le, true) => IntCC::SignedLessThanOrEqual,
        (Cmp::Gt, true) => IntCC::SignedGreaterThan,
        (Cmp::Ge, true) => IntCC::SignedGreaterThanOrEqual,
        (Cmp::Lt, false) => IntCC::UnsignedLessThan,
        (Cmp::Le, false) => IntCC::UnsignedLessThanOrEqual,
        (Cmp::Gt, false) => IntCC::UnsignedGreaterThan,
        (Cmp::Ge, false) => IntCC::UnsignedGreaterThanOrEqual,
        _ => return None,
    })
}
