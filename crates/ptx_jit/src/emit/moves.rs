//! Operations that move bits without computing: special registers, packing, selection, address spaces.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{Operand, Reg, RegTy, SReg, Space, Ty};
use ptx::launch::{CLUSTER_WINDOW_BYTES, LOCAL_WINDOW, LOCAL_WINDOW_BYTES, SHARED_WINDOW, SHARED_WINDOW_BYTES};

use super::alu::Parts;
use super::{Emit, Val, own, trusted};
use crate::abi::Helper;
use crate::abi::context::{self, at};
use crate::analysis::classes::{self, Class};

impl Emit<'_, '_> {
    /// A special register.
    pub(super) fn special(&mut self, sreg: SReg, ty: Ty) -> Val {
        let block = self.plan.shape.block;
        let fixed = |e: &mut Self, index: usize| {
            // Not read-only: a region that goes on to the next CTA changes some.
            let offset = at::FIXED + 4 * index as i32;
            e.b.ins().load(types::I32, trusted(), e.inv.ctx, offset)
        };
        let constant = |e: &mut Self, v: u32| e.i32(i64::from(v));
        let value = match sreg {
            SReg::Tid(axis) if block[usize::from(axis.min(2))] == 1 => constant(self, 0),
            SReg::Tid(axis) => match classes::special(sreg, self.plan.shape) {
                Class::Varying => {
                    let list = self.thread_lanes(axis);
                    return self.sized(Val::Lanes(list), ty);
                }
                class => {
                    let base = self.first_tid(axis);
                    match class {
                        Class::Affine { stride } => return self.sized(Val::Affine { base, stride }, ty),
                        _ => base,
                    }
                }
            },
            SReg::Ntid(axis) => constant(self, block[usize::from(axis.min(2))]),
            SReg::Ctaid(axis) => fixed(self, context::CTAID + usize::from(axis.min(2))),
            SReg::Nctaid(axis) => fixed(self, context::NCTAID + usize::from(axis.min(2))),
            SReg::ClusterId(axis) => fixed(self, context::CLUSTER_ID + usize::from(axis.min(2))),
            SReg::NClusterId(axis) => fixed(self, context::NCLUSTER_ID + usize::from(axis.min(2))),
            SReg::ClusterCtaId(axis) => fixed(self, context::CLUSTER_CTAID + usize::from(axis.min(2))),
            SReg::ClusterNCtaId(axis) => fixed(self, context::CLUSTER_NCTAID + usize::from(axis.min(2))),
            SReg::ClusterCtaRank => fixed(self, context::CLUSTER_RANK),
            SReg::ClusterNCtaRank => fixed(self, context::CLUSTER_RANKS),
            SReg::IsExplicitCluster => fixed(self, context::EXPLICIT_CLUSTER),
            SReg::LaneId => {
                let lanes = i64::from(self.plan.lanes());
                let sub = self.b.ins().ireduce(types::I32, self.chunk.index);
                let base = self.b.ins().imul_imm_s(sub, lanes);
                return self.sized(Val::Affine { base, stride: 1 }, ty);
            }
            SReg::LanemaskEq | SReg::LanemaskLe | SReg::LanemaskLt | SReg::LanemaskGe | SReg::LanemaskGt => {
                let list = self.lane_masks(sreg);
                return self.sized(Val::Lanes(list), ty);
            }
            SReg::WarpId => self.b.ins().ireduce(types::I32, self.chunk.warp),
            SReg::NWarpId => constant(self, self.plan.shape.threads().div_ceil(32)),
            SReg::SmId => constant(self, 0),
            SReg::NSmId => constant(self, 1),
            SReg::GridId if ty.bits() == 64 => {
                let offset = at::FIXED + 4 * context::GRID_LO as i32;
                return Val::Same(self.b.ins().load(types::I64, own(), self.inv.ctx, offset));
            }
            SReg::GridId => fixed(self, context::GRID_LO),
            SReg::Clock
            | SReg::ClockHi
            | SReg::Clock64
            | SReg::GlobalTimer
            | SReg::GlobalTimerLo
            | SReg::GlobalTimerHi => {
                let global = matches!(sreg, SReg::GlobalTimer | SReg::GlobalTimerLo | SReg::GlobalTimerHi);
                let function = if global { Helper::GlobalTimer } else { Helper::Clock };
                let Some(mut v) = self.call(function, &[], &[types::I64]) else { return Val::Lanes(vec![]) };
                if matches!(sreg, SReg::ClockHi | SReg::GlobalTimerHi) {
                    v = self.b.ins().ushr_imm_u(v, 32);
                }
                if ty.bits() == 64 {
                    return Val::Same(v);
                }
                self.b.ins().ireduce(types::I32, v)
            }
            SReg::Env(n) => fixed(self, context::ENV + usize::from(n.min(31))),
            SReg::DynamicSmemSize => fixed(self, context::DYNAMIC_SHARED),
            SReg::TotalSmemSize => fixed(self, context::TOTAL_SHARED),
        };
        self.sized(Val::Same(value), ty)
    }

    /// An index of the chunk's first thread; the chunk does not reach over the end of a row of threads.
    fn first_tid(&mut self, axis: u8) -> Value {
        let [x, y, z] = self.plan.shape.block;
        // How many threads until the index grows, and how often it does before it is 0 again, if it is.
        let (threads, often) = match axis {
            0 => (1, (y * z > 1).then_some(x)),
            1 => (x, (z > 1).then_some(y)),
            _ => (x * y, None),
        };
        if !threads.is_power_of_two() || !often.is_none_or(u32::is_power_of_two) {
            let (base, offset) = self.thread_table(axis);
            return self.b.ins().load(types::I32, trusted().with_readonly().with_can_move(), base, offset);
        }
        if axis == 0 && x == self.plan.lanes() {
            return self.i32(0);
        }
        let grown = match threads {
            1 => self.chunk.thread,
            _ => self.b.ins().ushr_imm_u(self.chunk.thread, i64::from(threads.trailing_zeros())),
        };
        match often {
            Some(often) => self.b.ins().band_imm_u(grown, i64::from(often - 1)),
            None => grown,
        }
    }

    /// A 32-bit value as one of `ty`.
    pub(super) fn sized(&mut self, val: Val, ty: Ty) -> Val {
        match (ty.bits(), val) {
            (32, val) => val,
            (16, Val::Same(v)) => Val::Same(self.b.ins().band_imm_u(v, 0xffff)),
            (64, Val::Same(v)) => Val::Same(self.b.ins().uextend(types::I64, v)),
            (16, val) => {
                let list = self.lanes(&val, RegTy::B32);
                Val::Lanes(list.into_iter().map(|v| self.band_const(v, 0xffff)).collect())
            }
            (_, val) => {
                let list = self.lanes(&val, RegTy::B32);
                Val::Lanes(list.into_iter().flat_map(|v| self.widen(v, false)).collect())
            }
        }
    }

    pub(super) fn lane_masks(&mut self, sreg: SReg) -> Vec<Value> {
        let lanes = i64::from(self.plan.lanes());
        let sub = self.b.ins().ireduce(types::I32, self.chunk.index);
        let shift = self.b.ins().imul_imm_s(sub, lanes);
        (0..self.vectors)
            .map(|i| {
                let bit = self.vector_const([0, 1, 2, 3].map(|l| 1_u32 << (4 * i + l)));
                let bit = self.b.ins().ishl(bit, shift);
                let one = self.vector_const([1; 4]);
                let below = self.b.ins().isub(bit, one);
                match sreg {
                    SReg::LanemaskEq => bit,
                    SReg::LanemaskLt => below,
                    SReg::LanemaskLe => self.b.ins().bor(bit, below),
                    SReg::LanemaskGe => self.b.ins().bnot(below),
                    _ => {
                        let le = self.b.ins().bor(bit, below);
                        self.b.ins().bnot(le)
                    }
                }
            })
            .collect()
    }

    pub(super) fn selp(&mut self, ty: Ty, dst: Reg, a: Operand, b: Operand, p: ptx::ir::PredRef) -> Val {
        let (a, b) = if p.negate { (b, a) } else { (a, b) };
        let reg = ty.reg();
        let (a, b) = (self.operand(a, reg), self.operand(b, reg));
        let p = self.get(p.reg);
        match (&a, &b, &p) {
            (Val::Same(x), Val::Same(y), Val::Same(c)) if self.class(dst) != Class::Varying => {
                Val::Same(self.b.ins().select(*c, *x, *y))
            }
            _ => {
                let (x, y, c) = (self.lanes(&a, reg), self.lanes(&b, reg), self.lanes(&p, RegTy::Pred));
                Val::Lanes(self.blend(&c, &x, &y, reg))
            }
        }
    }

    pub(super) fn pack(&mut self, dst: Reg, srcs: &[Operand]) {
        let ty = self.reg_ty(dst);
        let width = match ty {
            RegTy::B64 => 64,
            RegTy::B128 => 128,
            _ => 32,
        } / srcs.len() as u32;
        let part = match width {
            64 => RegTy::B64,
            32 => RegTy::B32,
            _ => RegTy::B16,
        };
        if self.class(dst) != Class::Varying
            && srcs.iter().all(|&s| classes::operand(&self.plan.classes, s) == Class::Same)
        {
            let whole = if ty == RegTy::B64 { types::I64 } else { types::I32 };
            let mut sum: Option<Value> = None;
            for (i, &s) in srcs.iter().enumerate() {
                let v = self.operand(s, part);
                let v = self.first(&v, part);
                let v = if self.b.func.dfg.value_type(v) == whole { v } else { self.b.ins().uextend(whole, v) };
                let v = if width == 8 { self.b.ins().band_imm_u(v, 0xff) } else { v };
                let v = if i == 0 { v } else { self.b.ins().ishl_imm_u(v, i64::from(i as u32 * width)) };
                sum = Some(match sum {
                    None => v,
                    Some(s) => self.b.ins().bor(s, v),
                });
            }
            if let Some(v) = sum {
                self.set(dst, Val::Same(v));
            }
            return;
        }
        let parts: Vec<Parts> = srcs.iter().map(|&s| self.operand_lanes(s, part)).collect();
        let list = match (ty, width) {
            (RegTy::B128, 64) => parts.concat(),
            (RegTy::B128, 32) => {
                let low = self.pair(&parts[0], &parts[1]);
                let high = self.pair(&parts[2], &parts[3]);
                [low, high].concat()
            }
            (RegTy::B64, 32) => self.pair(&parts[0], &parts[1]),
            (RegTy::B64, 16) => {
                let low = self.halves(&parts[0], &parts[1]);
                let high = self.halves(&parts[2], &parts[3]);
                self.pair(&low, &high)
            }
            (_, 16) => self.halves(&parts[0], &parts[1]),
            (RegTy::B32 | RegTy::B16, 8) => {
                let mut sum = Vec::new();
                for i in 0..self.vectors {
                    let mut v = self.band_const(parts[0][i], 0xff);
                    for (j, p) in parts.iter().enumerate().skip(1) {
                        let byte = self.band_const(p[i], 0xff);
                        let byte = self.b.ins().ishl_imm_u(byte, 8 * j as i64);
                        v = self.b.ins().bor(v, byte);
                    }
                    sum.push(v);
                }
                sum
            }
            _ => {
                self.fail("packing of this shape");
                return;
            }
        };
        self.set(dst, Val::Lanes(list));
    }

    /// 64-bit lanes from low and high 32-bit lanes.
    pub(super) fn pair(&mut self, low: &[Value], high: &[Value]) -> Parts {
        let mut out = Vec::new();
        for (&l, &h) in low.iter().zip(high) {
            let (l2, h2) = (self.widen(l, false), self.widen(h, false));
            for (l, h) in l2.into_iter().zip(h2) {
                let h = self.b.ins().ishl_imm_u(h, 32);
                out.push(self.b.ins().bor(l, h));
            }
        }
        out
    }

    /// 32-bit lanes from low and high 16-bit lanes.
    pub(super) fn halves(&mut self, low: &[Value], high: &[Value]) -> Parts {
        let mut out = Vec::new();
        for (&l, &h) in low.iter().zip(high) {
            let h = self.b.ins().ishl_imm_u(h, 16);
            let l = self.band_const(l, 0xffff);
            out.push(self.b.ins().bor(l, h));
        }
        out
    }

    pub(super) fn unpack(&mut self, dsts: &[Option<Reg>], src: Operand) {
        let ty = match src {
            Operand::Reg(r) => self.reg_ty(r),
            Operand::Imm(_) => match (dsts.len(), dsts.iter().flatten().next().map(|&r| self.reg_ty(r))) {
                (2, Some(RegTy::B64)) => RegTy::B128,
                (4, Some(RegTy::B32)) => RegTy::B128,
                (2, Some(RegTy::B32)) | (4, Some(RegTy::B16)) => RegTy::B64,
                _ => RegTy::B32,
            },
        };
        let bits = match ty {
            RegTy::B64 => 64,
            RegTy::B128 => 128,
            RegTy::B16 => 16,
            _ => 32,
        };
        let width = bits / dsts.len() as u32;
        let val = self.operand(src, ty);
        for (i, dst) in dsts.iter().enumerate() {
            let Some(dst) = *dst else { continue };
            let shift = i as u32 * width;
            let out = match &val {
                Val::Same(v) if ty != RegTy::B128 && self.class(dst) != Class::Varying => {
                    let v = if shift == 0 { *v } else { self.b.ins().ushr_imm_u(*v, i64::from(shift)) };
                    let v = if bits == 64 { self.b.ins().ireduce(types::I32, v) } else { v };
                    Val::Same(if width < 32 { self.b.ins().band_imm_u(v, (1 << width) - 1) } else { v })
                }
                val => {
                    let list = self.lanes(val, ty);
                    let half = self.vectors * 2;
                    let list: Parts = match (ty, width) {
                        (RegTy::B128, 64) => list[i * half..(i + 1) * half].to_vec(),
                        (RegTy::B128, 32) => {
                            let from = &list[i / 2 * half..(i / 2 + 1) * half];
                            from.chunks(2).map(|two| self.narrow(two[0], two[1], i % 2 == 1)).collect()
                        }
                        (RegTy::B64, 32) => list.chunks(2).map(|two| self.narrow(two[0], two[1], i == 1)).collect(),
                        (RegTy::B64, _) => {
                            let words: Parts =
                                list.chunks(2).map(|two| self.narrow(two[0], two[1], shift >= 32)).collect();
                            words.into_iter().map(|w| self.field(w, shift % 32, width)).collect()
                        }
                        (RegTy::B128, _) => {
                            self.fail("unpacking of this shape");
                            return;
                        }
                        _ => list.into_iter().map(|w| self.field(w, shift, width)).collect(),
                    };
                    Val::Lanes(list)
                }
            };
            self.set(dst, out);
        }
    }

    pub(super) fn field(&mut self, v: Value, shift: u32, width: u32) -> Value {
        let v = if shift == 0 { v } else { self.b.ins().ushr_imm_u(v, i64::from(shift)) };
        self.band_const(v, (1 << width) - 1)
    }

    pub(super) fn cvta(&mut self, space: Space, to_generic: bool, dst: Reg, a: Operand) {
        let from = match a {
            Operand::Reg(r) => self.reg_ty(r),
            Operand::Imm(_) => RegTy::B64,
        };
        let window = match space {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            _ => 0,
        };
        let mut val = self.operand(a, from);
        if from != RegTy::B64 {
            let list = self.lanes(&val, from);
            val = match val {
                Val::Same(v) => Val::Same(self.b.ins().uextend(types::I64, v)),
                _ => Val::Lanes(list.into_iter().flat_map(|v| self.widen(v, false)).collect()),
            };
        }
        if window != 0 {
            let by = if to_generic { window } else { window.wrapping_neg() };
            val = match val {
                Val::Same(v) => Val::Same(self.b.ins().iadd_imm_s(v, by as i64)),
                Val::Wide { b, c, stride, k, signed } => {
                    Val::Wide { b, c: self.b.ins().iadd_imm_s(c, by as i64), stride, k, signed }
                }
                Val::Linear { base, step } => Val::Linear { base: self.b.ins().iadd_imm_s(base, by as i64), step },
                Val::Extended { parts, c } => Val::Extended { parts, c: self.b.ins().iadd_imm_s(c, by as i64) },
                other => {
                    let list = self.lanes(&other, RegTy::B64);
                    let by = self.vector_const64([by; 2]);
                    Val::Lanes(list.into_iter().map(|v| self.b.ins().iadd(v, by)).collect())
                }
            };
        }
        if self.reg_ty(dst) != RegTy::B64 {
            let parts = self.lanes(&val, RegTy::B64);
            val = match val {
                Val::Same(v) => Val::Same(self.b.ins().ireduce(types::I32, v)),
                _ => Val::Lanes(parts.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect()),
            };
        }
        self.set(dst, val);
    }

    pub(super) fn isspacep(&mut self, space: Space, dst: Reg, a: Operand) {
        let val = self.operand(a, RegTy::B64);
        let window = |space: Space| match space {
            Space::Shared => (SHARED_WINDOW, SHARED_WINDOW_BYTES),
            _ => (LOCAL_WINDOW, LOCAL_WINDOW_BYTES),
        };
        let inside = |e: &mut Self, list: &[Value], vector: bool, (base, bytes): (u64, u64)| -> Parts {
            list.iter()
                .map(|&v| {
                    if vector {
                        let base = e.vector_const64([base.wrapping_neg(); 2]);
                        let off = e.b.ins().iadd(v, base);
                        // Windows are powers of two: inside if no higher bit is set.
                        let high = e.vector_const64([!(bytes - 1); 2]);
                        let high = e.b.ins().band(off, high);
                        let zero = e.vector_const64([0; 2]);
                        e.b.ins().icmp(IntCC::Equal, high, zero)
                    } else {
                        let off = e.b.ins().iadd_imm_s(v, base.wrapping_neg() as i64);
                        e.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, off, bytes as i64)
                    }
                })
                .collect()
        };
        let vector = !matches!(val, Val::Same(_)) || self.class(dst) == Class::Varying;
        let list = if vector { self.lanes(&val, RegTy::B64) } else { vec![self.first(&val, RegTy::B64)] };
        let mut hit = match space {
            Space::Shared | Space::Local => inside(self, &list, vector, window(space)),
            _ => {
                let shared = inside(self, &list, vector, (SHARED_WINDOW, CLUSTER_WINDOW_BYTES));
                let local = inside(self, &list, vector, window(Space::Local));
                let either: Parts = shared.into_iter().zip(local).map(|(a, b)| self.b.ins().bor(a, b)).collect();
                let not = |e: &mut Self, v: Value| if vector { e.b.ins().bnot(v) } else { e.b.ins().bxor_imm_u(v, 1) };
                either.into_iter().map(|v| not(self, v)).collect()
            }
        };
        if vector {
            hit = hit.chunks(2).map(|two| self.narrow(two[0], two[1], false)).collect();
            self.set(dst, Val::Lanes(hit));
        } else {
            self.set(dst, Val::Same(hit[0]));
        }
    }
}
