//! Atomic operations: lane after lane, directly for integers whose addresses are right, else in the helper.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, Block, InstBuilder, Value, types};
use ptx::ir::{Address, AtomOp, Op, Operand, Reg, RegTy, Space, Ty};
use ptx::mbarrier::{BYTES, COUNT, EXPECTED, PHASE};

use super::alu::Parts;
use super::memory::tenant;
use super::{Emit, Val};
use crate::abi::Helper;
use crate::abi::place::Lanes;

impl Emit<'_, '_> {
    #[expect(clippy::too_many_arguments, reason = "the fields of one instruction")]
    pub(super) fn atomic(
        &mut self,
        op: &Op,
        space: Space,
        ty: Ty,
        dst: Option<Reg>,
        addr: Address,
        b: Operand,
        c: Option<Operand>,
    ) {
        if ty.bits() == 128 {
            self.fail("128-bit atomic");
            return;
        }
        let val = self.address(space, addr);
        let merge = self.b.create_block();
        let results: Parts = dst.map_or(Vec::new(), |dst| {
            let part = Self::vector_ty(self.reg_ty(dst));
            (0..self.vector_count(self.reg_ty(dst))).map(|_| self.b.append_block_param(merge, part)).collect()
        });
        self.direct_atomic(op, addr, dst, &val, [Some(b), c], merge);
        let addresses = self.slow_addresses(space, addr, &val);
        let row = 8 * self.lanes_per_chunk() as i32;
        self.store_row(&addresses, RegTy::B64, 0, true);
        self.operand_row(b, ty.reg(), row);
        if let Some(c) = c {
            self.operand_row(c, ty.reg(), 2 * row);
        }
        let site = self.op_key(op);
        let bits = self.mask_bits_or_full();
        let rows = self.scratch_address(0);
        let lanes = self.i64(self.lanes_per_chunk() as i64);
        let args = [self.inv.ctx, site, bits, self.chunk.thread, rows, lanes];
        self.call_rarely(Helper::Atomic, &args);
        let parts = dst.map_or(Vec::new(), |dst| self.load_row(self.reg_ty(dst), 3 * row, true));
        self.jump_with(merge, &parts);
        self.b.switch_to_block(merge);
        if let Some(dst) = dst {
            self.set(dst, Val::Lanes(results));
        }
    }

    /// An integer atomic without the helper, if at run time all addresses are right: lane after lane, in shared memory as
    /// plain accesses, since a CTA runs on one thread. Goes to `merge` with the old values; else code goes on here.
    fn direct_atomic(
        &mut self,
        op: &Op,
        addr: Address,
        dst: Option<Reg>,
        val: &Val,
        sources: [Option<Operand>; 2],
        merge: Block,
    ) {
        let &Op::Atom { op: ref kind, space, ty, .. } = op else { return };
        let width = match (ty.bits(), ty.is_float()) {
            (32, false) => types::I32,
            (64, false) => types::I64,
            _ => return,
        };
        let fits = |e: &Self, r: Reg| e.reg_ty(r) == ty.reg();
        let sources: Vec<Operand> = sources.into_iter().flatten().collect();
        let registers = sources.iter().filter_map(|s| if let Operand::Reg(r) = s { Some(*r) } else { None });
        let private = matches!(space, Space::Shared | Space::Local);
        let helped = matches!(kind, AtomOp::Inc | AtomOp::Dec) || *kind == AtomOp::Arrive && !private;
        if !registers.chain(dst).all(|r| fits(self, r)) || helped {
            return;
        }
        let Some((hosts, ok)) = self.lane_hosts(space, addr, ty.bytes().into(), val) else { return };
        let (fast, slow) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(ok, fast, &[], slow, &[]);
        self.b.switch_to_block(fast);
        let sources: Vec<Val> = sources.into_iter().map(|source| self.operand(source, ty.reg())).collect();
        let sources: Vec<Val> = sources.into_iter().map(|val| self.one_or_lanes(val, ty.reg())).collect();
        if !private {
            self.note_atomic(1);
        }
        let mut old = Vec::new();
        for lane in 0..self.lanes_per_chunk() {
            let host = self.lane_host(&hosts, lane);
            let b = self.of_lane(&sources[0], ty.reg(), lane);
            let c = sources.get(1).map(|c| self.of_lane(c, ty.reg(), lane));
            old.push(if private {
                let was = self.b.ins().load(width, super::own(), host, 0);
                let new = self.updated(*kind, ty, was, b, c);
                self.b.ins().store(super::own(), new, host, 0);
                was
            } else {
                let kind = match (kind, ty.is_signed()) {
                    (AtomOp::Add, _) => AtomicRmwOp::Add,
                    (AtomOp::And, _) => AtomicRmwOp::And,
                    (AtomOp::Or, _) => AtomicRmwOp::Or,
                    (AtomOp::Xor, _) => AtomicRmwOp::Xor,
                    (AtomOp::Min, true) => AtomicRmwOp::Smin,
                    (AtomOp::Min, false) => AtomicRmwOp::Umin,
                    (AtomOp::Max, true) => AtomicRmwOp::Smax,
                    (AtomOp::Max, false) => AtomicRmwOp::Umax,
                    _ => AtomicRmwOp::Xchg,
                };
                self.for_lanes(Lanes::One(lane as u32), |e| match c {
                    Some(new) => e.b.ins().atomic_cas(tenant(), host, b, new),
                    None => e.b.ins().atomic_rmw(width, tenant(), kind, host, b),
                })
            });
        }
        if !private {
            self.note_atomic(0);
        }
        let old = dst.map_or(Vec::new(), |dst| self.gather(&old, self.reg_ty(dst)));
        self.jump_with(merge, &old);
        self.b.switch_to_block(slow);
        self.b.set_cold_block(slow);
    }

    /// A value as lanes, if these differ.
    fn one_or_lanes(&mut self, val: Val, ty: RegTy) -> Val {
        match val {
            Val::Same(_) => val,
            val => Val::Lanes(self.lanes(&val, ty)),
        }
    }

    /// What a lane has of that.
    fn of_lane(&mut self, val: &Val, ty: RegTy, lane: usize) -> Value {
        match val {
            Val::Lanes(list) => self.extract(list, ty, lane),
            one => self.first(one, ty),
        }
    }

    /// Tells the fault handler that an atomic is under way, or over.
    fn note_atomic(&mut self, on: i64) {
        let on = self.i32(on);
        self.b.ins().store(super::trusted(), on, self.inv.ctx, crate::abi::context::at::ATOMIC);
    }

    /// What an atomic leaves in memory; with `c`, a compare-and-swap.
    fn updated(&mut self, kind: AtomOp, ty: Ty, old: Value, b: Value, c: Option<Value>) -> Value {
        match (kind, c) {
            (_, Some(c)) => {
                let hit = self.b.ins().icmp(IntCC::Equal, old, b);
                self.b.ins().select(hit, c, old)
            }
            (AtomOp::Add, _) => self.b.ins().iadd(old, b),
            (AtomOp::Arrive, _) => {
                let after = self.b.ins().iadd(old, b);
                let awaited = self.i64((COUNT | !0 << BYTES).cast_signed());
                let rest = self.b.ins().band(after, awaited);
                let (count, phase) = (self.i64(COUNT.cast_signed()), self.i64(1 << PHASE));
                let expected = self.b.ins().ushr_imm_u(after, EXPECTED.cast_signed());
                let expected = self.b.ins().band(expected, count);
                let turned = self.b.ins().bxor(after, phase);
                let next = self.b.ins().iadd(turned, expected);
                self.b.ins().select(rest, after, next)
            }
            (AtomOp::And, _) => self.b.ins().band(old, b),
            (AtomOp::Or, _) => self.b.ins().bor(old, b),
            (AtomOp::Xor, _) => self.b.ins().bxor(old, b),
            (AtomOp::Min, _) if ty.is_signed() => self.b.ins().smin(old, b),
            (AtomOp::Max, _) if ty.is_signed() => self.b.ins().smax(old, b),
            (AtomOp::Min, _) => self.b.ins().umin(old, b),
            (AtomOp::Max, _) => self.b.ins().umax(old, b),
            _ => b,
        }
    }
}
