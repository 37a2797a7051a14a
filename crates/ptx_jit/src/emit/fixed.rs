//! What is computed where a function begins, for all its CTAs: registers that are the same in the whole grid, and how far indices of the
//! arrays that they point to may go.

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};
use ptx::ir::{Inst, IntOp, MulPart, Op, Operand, Reg, Ty};

use super::alu::Parts;
use super::{Emit, Val, trusted};
use crate::analysis::classes::Class;
use crate::analysis::operands;
use crate::analysis::pointers::{Base, Extension, Pointer, parameter};

/// Accesses by an index from a base on, in the window: what is limited alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reach {
    /// The address of the lowest access of index 0.
    pub(super) base: Base,
    pub(super) scale: i64,
    pub(super) signed: bool,
    /// Bytes of an access, to which it is aligned; a power of two.
    pub(super) size: i64,
    /// Bytes from the lowest address of an index to the end of the highest access.
    pub(super) span: i64,
    /// By how much the highest index is more than the one that is compared: in a chunk that of the first lane, in a series the one to which
    /// numbers are added.
    pub(super) ahead: i64,
}

/// How far an index may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Host address of the lowest access of index 0.
    at: Value,
    /// What is added to a signed index, extended, before it is compared.
    bias: Value,
    /// The first index that is too high.
    pub(super) limit: Value,
    lanes: LaneRoom,
}

impl Room {
    /// The same, up to a lower limit.
    pub(super) fn to(self, limit: Value) -> Room {
        Room { limit, ..self }
    }
}

/// The same for lanes that have each an index of its own.
#[derive(Clone, Copy, Debug)]
struct LaneRoom {
    /// The lowest index that may be accessed, and how many from there on, i32 without a sign.
    low: Value,
    count: Value,
    /// Host address of the lowest access of that one.
    host: Value,
}

/// How far behind a load its value may be used as an index, and be loaded as one.
const NEAR: usize = 16;

/// Most of each that a function keeps.
const MAX_ROOMS: usize = 12;

impl Emit<'_, '_> {
    fn at_entry(&mut self) -> FuncCursor<'_> {
        let entry = self.entry;
        let mut cursor = FuncCursor::new(self.b.func);
        cursor.goto_last_inst(entry);
        cursor
    }

    /// The value of a register that is the same in the whole grid ([`crate::analysis::pointers::Pointers::is_fixed`]).
    pub(super) fn fixed(&mut self, r: Reg) -> Value {
        if let Some(&v) = self.fixed.get(&r) {
            return v;
        }
        let pointers = self.pointers;
        let v = match pointers.definition(r) {
            Some(op) => self.fixed_result(op),
            None => self.at_entry().ins().iconst(types::I64, 0),
        };
        self.fixed.insert(r, v);
        v
    }

    fn fixed_operand(&mut self, o: Operand, ty: Ty) -> Value {
        match o {
            Operand::Reg(r) => self.fixed(r),
            Operand::Imm(v) if ty.bits() == 32 => self.at_entry().ins().iconst(types::I32, i64::from(v as u32)),
            Operand::Imm(v) => self.at_entry().ins().iconst(types::I64, v.cast_signed()),
        }
    }

    fn fixed_extended(&mut self, v: Value, ty: Ty) -> Value {
        let mut cursor = self.at_entry();
        if ty.is_signed() { cursor.ins().sextend(types::I64, v) } else { cursor.ins().uextend(types::I64, v) }
    }

    /// Operations that [`crate::analysis::pointers`] follows.
    fn fixed_result(&mut self, op: &Op) -> Value {
        match *op {
            Op::Ld { ty, .. } => {
                let at = parameter(self.k, op).unwrap_or(0);
                let (params, flags) = (self.inv.params, trusted().with_readonly().with_can_move());
                let ty = if ty.bits() == 32 { types::I32 } else { types::I64 };
                self.at_entry().ins().load(ty, flags, params, at.cast_signed())
            }
            Op::Mov { ty, src: a, .. } => self.fixed_operand(a, ty),
            Op::Cvta { a, .. } => self.fixed_operand(a, Ty::U64),
            Op::Cvt { src_ty, a, .. } => {
                let a = self.fixed_operand(a, src_ty);
                self.fixed_extended(a, src_ty)
            }
            Op::Int { op: IntOp::Shl, ty, a, b: Operand::Imm(n), .. } => {
                let a = self.fixed_operand(a, ty);
                self.at_entry().ins().ishl_imm_u(a, n.cast_signed())
            }
            Op::Int { op, ty, a, b, .. } => {
                let (a, b) = (self.fixed_operand(a, ty), self.fixed_operand(b, ty));
                let mut cursor = self.at_entry();
                if op == IntOp::Sub { cursor.ins().isub(a, b) } else { cursor.ins().iadd(a, b) }
            }
            Op::Mul { part, ty, a, b, .. } => {
                let (mut a, mut b) = (self.fixed_operand(a, ty), self.fixed_operand(b, ty));
                if part == MulPart::Wide {
                    (a, b) = (self.fixed_extended(a, ty), self.fixed_extended(b, ty));
                }
                self.at_entry().ins().imul(a, b)
            }
            _ => self.at_entry().ins().iconst(types::I64, 0),
        }
    }

    /// The address that a base is, if the function has computed it.
    pub(super) fn known_base(&self, base: &Base) -> Option<Value> {
        self.bases.iter().find(|(of, _)| of == base).map(|(_, v)| *v)
    }

    /// The address that a base is.
    pub(super) fn fixed_base(&mut self, base: &Base) -> Value {
        if let Some(v) = self.known_base(base) {
            return v;
        }
        let terms: Vec<Value> = base.terms.iter().map(|&r| self.fixed(r)).collect();
        let mut cursor = self.at_entry();
        let sum = terms.into_iter().reduce(|sum, term| cursor.ins().iadd(sum, term));
        let v = match sum {
            Some(sum) if base.number == 0 => sum,
            Some(sum) => cursor.ins().iadd_imm_s(sum, base.number),
            None => cursor.ins().iconst(types::I64, base.number),
        };
        self.bases.push((base.clone(), v));
        v
    }

    /// How far an index may go that is accessed so; none if that cannot be told for all indices at once, or if the function knows
    /// enough such numbers already.
    pub(super) fn room(&mut self, reach: &Reach) -> Option<Room> {
        if let Some((_, room)) = self.rooms.iter().find(|(of, _)| of == reach) {
            return Some(*room);
        }
        let shift =
            (reach.scale > 0 && reach.scale.cast_unsigned().is_power_of_two()).then(|| reach.scale.trailing_zeros())?;
        if reach.scale % reach.size != 0 || self.rooms.len() == MAX_ROOMS {
            return None;
        }
        let base = self.fixed_base(&reach.base);
        // One for all that is accessed from there, which is one register.
        let known = self.rooms.iter().find(|(of, _)| of.base == reach.base).map(|(_, room)| room.at);
        let (below, window, delta) = (self.inv.below_window, self.inv.window_bytes, self.inv.delta);
        let mut cursor = self.at_entry();
        // The offset in the window is (index + bias) * scale + rest.
        let offset = cursor.ins().iadd(base, below);
        let bias = cursor.ins().sshr_imm_u(offset, i64::from(shift));
        let rest = cursor.ins().band_imm_u(offset, reach.scale - 1);
        let most = cursor.ins().iadd_imm_s(window, -reach.span);
        let most = cursor.ins().isub(most, rest);
        let most = cursor.ins().sshr_imm_u(most, i64::from(shift));
        let all = cursor.ins().iadd_imm_s(most, 1);
        let zero = cursor.ins().iconst(types::I64, 0);
        let mut limit = all;
        if reach.signed {
            // The highest index is not to wrap.
            let wraps = cursor.ins().iadd_imm_s(bias, (1 << 31) - reach.ahead);
            limit = cursor.ins().smin(limit, wraps);
        } else {
            let wraps = cursor.ins().iconst(types::I64, (1 << 32) - reach.ahead);
            limit = cursor.ins().isub(limit, bias);
            limit = cursor.ins().smin(limit, wraps);
            // What lies below the window at index 0 is looked at one by one.
            let inside = cursor.ins().icmp(IntCC::SignedGreaterThanOrEqual, bias, zero);
            limit = cursor.ins().select(inside, limit, zero);
        }
        limit = cursor.ins().smax(limit, zero);
        // Indices are from `least` to before `end`; those in the window, from -`bias` on, `all` of them.
        let [least, end] = if reach.signed { [-1 << 31, 1 << 31] } else { [0, 1 << 32] };
        let [least, end] = [least, end].map(|number: i64| cursor.ins().iconst(types::I64, number));
        let first = cursor.ins().ineg(bias);
        let low = cursor.ins().smax(first, least);
        let low = cursor.ins().smin(low, end);
        // Where this overflows, the first one does not exist either.
        let behind = cursor.ins().isub(all, bias);
        let high = cursor.ins().smin(behind, end);
        let high = cursor.ins().smax(high, least);
        let count = cursor.ins().isub(high, low);
        let most = cursor.ins().iconst(types::I64, i64::from(u32::MAX));
        let count = cursor.ins().smin(count, most);
        let mut count = cursor.ins().smax(count, zero);
        if reach.size > 1 {
            let odd = cursor.ins().band_imm_u(offset, reach.size - 1);
            limit = cursor.ins().select(odd, zero, limit);
            count = cursor.ins().select(odd, zero, count);
        }
        let at = known.unwrap_or_else(|| cursor.ins().iadd(base, delta));
        let from_low = cursor.ins().ishl_imm_u(low, i64::from(shift));
        let lanes = LaneRoom {
            low: cursor.ins().ireduce(types::I32, low),
            count: cursor.ins().ireduce(types::I32, count),
            host: cursor.ins().iadd(at, from_low),
        };
        let room = Room { at, bias, limit, lanes };
        self.rooms.push((reach.clone(), room));
        Some(room)
    }

    /// An index of 32 bits as one of 64.
    pub(super) fn extended(&mut self, index: Value, signed: bool) -> Value {
        if let Some(&known) = self.loaded.get(&(self.b.func.dfg.resolve_aliases(index), signed)) {
            return known;
        }
        if signed { self.b.ins().sextend(types::I64, index) } else { self.b.ins().uextend(types::I64, index) }
    }

    /// Is what the current instruction writes to a register next read as an index, to be extended? By its sign, or without.
    pub(super) fn is_index(&self, r: Reg) -> Option<bool> {
        let reads = |inst: &&Inst| {
            let mut reads = false;
            operands::inst_reads(inst, &mut |read| reads |= read == r);
            reads
        };
        let next = self.upcoming.iter().skip(1).take(NEAR).find(reads)?;
        let &[to] = &operands::writes(&next.op)[..] else { return None };
        self.pointers.extension(to).filter(|extension| extension.index == r).map(|extension| extension.signed)
    }

    /// The lower one of limits.
    pub(super) fn least(&mut self, limits: &[Value]) -> Option<Value> {
        limits.iter().copied().reduce(|a, b| {
            if a == b {
                return a;
            }
            if let Some((_, least)) = self.least.iter().find(|(of, _)| *of == [a, b]) {
                return *least;
            }
            let least = self.at_entry().ins().smin(a, b);
            self.least.push(([a, b], least));
            least
        })
    }

    /// May all accesses of an index, extended, be? It is compared in that form, in which the address needs it, so that the one of 32 bits
    /// need not be kept beside it.
    pub(super) fn is_below(&mut self, room: Room, signed: bool, index: Value) -> Value {
        let biased = if signed { self.b.ins().iadd(index, room.bias) } else { index };
        self.b.ins().icmp(IntCC::UnsignedLessThan, biased, room.limit)
    }

    /// The host address of the lowest access of an index, extended.
    pub(super) fn host_of(&mut self, room: Room, reach: &Reach, index: Value) -> Value {
        let scaled = self.times(index, reach.scale);
        self.b.ins().iadd(room.at, scaled)
    }

    /// For lanes' indices of 32 bits: what they are ahead of the lowest one that may be accessed, without a sign; where the lowest access of
    /// that one is; and whether all may be accessed, those of the lanes of a mask.
    pub(super) fn all_in_room(&mut self, room: Room, indices: &Parts, mask: Option<&[Value]>) -> (Parts, Value, Value) {
        let LaneRoom { low, count, host } = room.lanes;
        let low = self.b.ins().splat(types::I32X4, low);
        let ahead = self.map1(indices, |e, index| e.b.ins().isub(index, low));
        let count = self.b.ins().splat(types::I32X4, count);
        // Zero is in range, if anything is.
        let asked = ahead.iter().enumerate().map(|(i, &ahead)| mask.map_or(ahead, |m| self.b.ins().band(ahead, m[i])));
        let asked: Parts = asked.collect();
        let most = asked.into_iter().reduce(|most, ahead| self.b.ins().umax(most, ahead)).unwrap_or(count);
        let fine = self.b.ins().icmp(IntCC::UnsignedLessThan, most, count);
        let fine = self.b.ins().vhigh_bits(types::I32, fine);
        (ahead, host, self.b.ins().icmp_imm_u(IntCC::Equal, fine, 0xf))
    }

    /// What the addresses of lanes in a register are made of, if that can be told, and their indices.
    pub(super) fn lane_pointer(&mut self, r: Reg) -> Option<(Pointer, Parts)> {
        let pointer = self.pointers.pointer(r)?;
        match self.indices.get(&r)? {
            (extended, Val::Lanes(indices)) if *extended == pointer.extended => Some((pointer, indices.clone())),
            _ => None,
        }
    }

    /// What the address in a register is made of, if that can be told, and its index in the first lane.
    pub(super) fn pointer(&mut self, r: Reg, val: &Val) -> Option<(Pointer, Value)> {
        let pointer = self.pointers.pointer(r)?;
        let index = match *val {
            Val::Wide { b, stride, k, signed, .. } => {
                (stride > 0 && (k, signed) == (pointer.scale, pointer.signed)).then_some(b)?
            }
            Val::Same(_) => {
                let &(extended, Val::Same(index)) = self.indices.get(&r)? else { return None };
                (extended == pointer.extended).then_some(index)?
            }
            _ => return None,
        };
        Some((pointer, index))
    }

    /// The same address, computed from its base and index: the register need not be kept for it then.
    pub(super) fn rebased(&mut self, r: Reg, val: Val) -> Val {
        let Some((pointer, index)) = self.pointer(r, &val) else { return val };
        if self.known_base(&pointer.base).is_none() && self.bases.len() >= MAX_ROOMS {
            return val;
        }
        let base = self.fixed_base(&pointer.base);
        match val {
            Val::Wide { b, stride, k, signed, .. } => Val::Wide { b, c: base, stride, k, signed },
            Val::Same(_) => Val::Same(self.wide_scalar(index, base, pointer.scale, pointer.signed)),
            other => other,
        }
    }

    /// Notes of which index a scalar, or what is different in all lanes, is made that an operation has just written: an address, or what
    /// one will be made of.
    pub(super) fn note_index(&mut self, op: &Op) {
        let (dst, noted) = match *op {
            Op::Mul { dst, .. } | Op::Cvt { dst, .. } => {
                let Some(Extension { index, .. }) = self.pointers.extension(dst) else { return };
                if !matches!(self.class(index), Class::Same | Class::Varying) {
                    return;
                }
                (dst, (dst, self.get(index)))
            }
            Op::Int { op: IntOp::Add | IntOp::Shl, dst, a, b, .. } => {
                let of = |o: Operand| match o {
                    Operand::Reg(r) => self.indices.get(&r).cloned(),
                    Operand::Imm(_) => None,
                };
                match (self.pointers.definition(dst), of(a), of(b)) {
                    (Some(_), Some(noted), None) | (Some(_), None, Some(noted)) => (dst, noted),
                    _ => return,
                }
            }
            _ => return,
        };
        if let (Class::Same, Val::Same(_)) | (Class::Varying, Val::Lanes(_)) = (self.class(dst), &noted.1) {
            self.indices.insert(dst, noted);
        }
    }
}
