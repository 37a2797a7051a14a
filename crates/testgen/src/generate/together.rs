//! What lanes of a warp do with one another: exchanges without a barrier, in lock step; warp operations that meet at different
//! places; threads that wait for others.
//!
//! Each place in the program that exchanges has words of memory for itself, so that what lanes elsewhere do does not show, and
//! every lane of an exchange finds the same partner. Whatever lanes have diverged, those that are here come in one group.

use ptx::ir::{
    Address, AtomOp, BlockId, Cmp, IntOp, IntUnOp, MulPart, Op, Operand, Order, PredRef, ReduxOp, Reg, RegTy, ShflMode,
    Space, Term, Ty, VoteMode,
};

use super::{Builder, CELLS, Pool, SLOT_BYTES, reg};

/// Exchanges of a kernel; each has a word per thread in shared memory, and one in the thread's slot.
const EXCHANGES: u32 = 6;
/// Places of a kernel where threads wait for each other in turn; each has words in shared memory, and in a slot.
const WAITS: u32 = 2;
/// Bytes of shared memory for a place where threads wait: a turn and a sum, for each of the warps.
const WAIT_BYTES: u32 = 8 * 4;
/// Where the slot's words for exchanges begin, and those for waiting.
const SLOT_EXCHANGE: u32 = 448;
const SLOT_WAIT: u32 = SLOT_EXCHANGE + 4 * EXCHANGES;
const ALL: Operand = Operand::Imm(0xffff_ffff);

/// Shared memory behind what all kernels have.
pub(super) fn shared_bytes(threads: u32) -> u32 {
    EXCHANGES * 4 * threads + WAITS * WAIT_BYTES
}

fn yes(reg: Reg) -> PredRef {
    PredRef { reg, negate: false }
}

impl Builder<'_> {
    fn behind(&self) -> u32 {
        8 * self.threads + 8 * CELLS
    }

    fn mov(&mut self, dst: Reg, src: Operand) {
        self.emit(Op::Mov { ty: Ty::B32, dst, src });
    }

    fn store(&mut self, space: Space, order: Order, addr: Address, src: Operand) {
        self.emit(Op::St { space, ty: Ty::U32, order, srcs: vec![src], addr });
    }

    fn load(&mut self, space: Space, order: Order, dst: Reg, addr: Address) {
        self.emit(Op::Ld { space, ty: Ty::U32, order, dsts: vec![Some(dst)], addr });
    }

    /// Lanes exchange words with a partner of their warp, whether it is here or not.
    pub(super) fn exchange(&mut self) {
        if self.exchanges == EXCHANGES || !self.whole_warps {
            return;
        }
        let (f, at) = (self.fixed, self.exchanges);
        self.exchanges += 1;
        let distance = Operand::Imm(u64::from(1 + self.below(31)));
        let partner = self.fresh(RegTy::B32);
        if self.chance(2) {
            self.int(IntOp::Xor, Ty::B32, partner, reg(f.tid), distance);
        } else {
            // Around the warp: tid + (((tid + distance) & 31) - (tid & 31)).
            let lane = self.fresh(RegTy::B32);
            self.int(IntOp::And, Ty::B32, lane, reg(f.tid), Operand::Imm(31));
            self.int(IntOp::Add, Ty::U32, partner, reg(f.tid), distance);
            self.int(IntOp::And, Ty::B32, partner, reg(partner), Operand::Imm(31));
            self.int(IntOp::Sub, Ty::U32, partner, reg(partner), reg(lane));
            self.int(IntOp::Add, Ty::U32, partner, reg(partner), reg(f.tid));
        }
        let (space, own, other) = if self.chance(2) {
            let other = self.fresh(RegTy::B64);
            self.int(IntOp::Sub, Ty::U32, partner, reg(partner), reg(f.tid));
            let (a, b, c) = (reg(partner), Operand::Imm(SLOT_BYTES.into()), reg(f.slot));
            self.emit(Op::Mad { part: MulPart::Wide, ty: Ty::S32, sat: false, dst: other, a, b, c });
            (self.pick(&[Space::Global, Space::Generic]), f.slot, other)
        } else {
            let own = self.fresh(RegTy::B32);
            self.int(IntOp::Shl, Ty::B32, own, reg(f.tid), Operand::Imm(2));
            self.int(IntOp::Shl, Ty::B32, partner, reg(partner), Operand::Imm(2));
            (Space::Shared, own, partner)
        };
        let offset = match space {
            Space::Shared => self.behind() + at * 4 * self.threads,
            _ => SLOT_EXCHANGE + 4 * at,
        };
        let [own, other] = [own, other].map(|base| Address { base: reg(base), offset: offset.into() });
        // In loops a volatile load would count as waiting, which lets other lanes pass.
        let order = if self.looping == 0 { self.pick(&[Order::Weak, Order::Volatile]) } else { Order::Weak };
        let (value, more) = (reg(self.any(Pool::I32)), self.source(Pool::I32));
        let (dst, seen) = (self.any(Pool::I32), self.any(Pool::I32));
        match self.below(4) {
            0 => {
                self.store(space, order, own, value);
                self.load(space, order, dst, other);
            }
            1 => {
                self.load(space, order, dst, other);
                self.store(space, order, own, value);
                self.load(space, order, seen, other);
            }
            2 => {
                self.store(space, order, own, value);
                self.store(space, order, other, more);
                self.load(space, order, dst, own);
            }
            _ if self.looping == 0 => {
                let (ty, order) = (Ty::B32, Order::Relaxed);
                let b = value;
                self.emit(Op::Atom {
                    op: AtomOp::Exch,
                    space,
                    ty,
                    order,
                    ftz: false,
                    dst: Some(dst),
                    addr: own,
                    b,
                    c: None,
                });
                let b = Operand::Imm(0);
                self.emit(Op::Atom {
                    op: AtomOp::Or,
                    space,
                    ty,
                    order,
                    ftz: false,
                    dst: Some(seen),
                    addr: other,
                    b,
                    c: None,
                });
            }
            _ => {
                let (op, ty, order) = (AtomOp::Add, Ty::U32, Order::Relaxed);
                self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: None, addr: other, b: value, c: None });
                self.load(space, Order::Weak, dst, own);
            }
        }
    }

    /// A warp operation of so many a kind.
    fn sync(&mut self, kind: u32, dst: Reg, value: Reg, mask: Operand) {
        let a = reg(value);
        match kind {
            // The lane read must take part: the first of the mask, if that is not known here.
            0 | 1 if mask != ALL => {
                let first = self.fresh(RegTy::B32);
                self.emit(Op::IntUn { op: IntUnOp::Brev, ty: Ty::B32, dst: first, a: mask });
                self.emit(Op::IntUn { op: IntUnOp::Clz, ty: Ty::B32, dst: first, a: reg(first) });
                let (b, c) = (reg(first), Operand::Imm(31));
                self.emit(Op::Shfl { mode: ShflMode::Idx, dst, pred: None, a, b, c, mask });
            }
            0 => {
                let c = Operand::Imm(31);
                self.emit(Op::Shfl { mode: ShflMode::Bfly, dst, pred: None, a, b: Operand::Imm(5), c, mask });
            }
            1 => {
                let (b, c) = (reg(value), Operand::Imm(31));
                self.emit(Op::Shfl { mode: ShflMode::Idx, dst, pred: None, a, b, c, mask });
            }
            2 => {
                let p = self.fresh(RegTy::Pred);
                self.compare(Cmp::Lt, Ty::S32, p, a, Operand::Imm(1000));
                self.emit(Op::Vote { mode: VoteMode::Ballot, dst, p: yes(p), mask });
            }
            3 => self.emit(Op::Redux { op: ReduxOp::Add, ty: Ty::U32, dst, a, mask }),
            4 => {
                let few = self.fresh(RegTy::B32);
                self.int(IntOp::And, Ty::B32, few, a, Operand::Imm(3));
                self.emit(Op::Match { all: false, ty: Ty::B32, dst, pred: None, a: reg(few), mask });
            }
            _ => {
                self.emit(Op::BarWarp { mask });
                self.mov(dst, a);
            }
        }
    }

    /// A warp operation that lanes meet at in different places: the sides of a branch, or an unrolled loop and its rest.
    pub(super) fn meeting(&mut self) {
        let kind = self.below(6);
        if self.chance(2) {
            self.meet_beside(kind);
        } else {
            self.meet_in_loop(kind);
        }
        // While some waited others may have gone past the place where all would have met: what follows is done in step.
        self.emit(Op::BarWarp { mask: ALL });
    }

    fn meet_beside(&mut self, kind: u32) {
        let (p, dst) = (self.pred(), self.any(Pool::I32));
        let head = self.blocks.len();
        let then = self.end(Term::Exit);
        let (result, value) = (self.fresh(RegTy::B32), self.any(Pool::I32));
        self.compute();
        self.sync(kind, result, value, ALL);
        self.mov(dst, reg(result));
        let els = self.end(Term::Exit);
        let value = self.any(Pool::I32);
        self.sync(kind, result, value, ALL);
        self.int(IntOp::Add, Ty::U32, dst, reg(result), Operand::Imm(1));
        let join = BlockId(self.next().0 + 1);
        self.end(Term::Bra(join));
        self.blocks[head].term = Term::CondBra { p, then, els, uniform: false };
        self.blocks[els.0 as usize - 1].term = Term::Bra(join);
    }

    /// A loop with a trip count per lane, up to three, and a mask per trip; two trips are unrolled.
    fn meet_in_loop(&mut self, kind: u32) {
        let [trips, at, sum, value, result, mask] = [(); 6].map(|()| self.fresh(RegTy::B32));
        let p = self.fresh(RegTy::Pred);
        let (from, source) = (reg(self.any(Pool::I32)), reg(self.any(Pool::I32)));
        self.int(IntOp::And, Ty::B32, trips, from, Operand::Imm(3));
        let masks = [0, 1, 2].map(|trip| {
            let mask = self.fresh(RegTy::B32);
            self.compare(Cmp::Gt, Ty::U32, p, reg(trips), Operand::Imm(trip));
            self.emit(Op::Vote { mode: VoteMode::Ballot, dst: mask, p: yes(p), mask: ALL });
            mask
        });
        self.mov(at, Operand::Imm(0));
        self.mov(sum, source);
        self.compare(Cmp::Ge, Ty::U32, p, reg(trips), Operand::Imm(2));
        let trip = |b: &mut Self, mask: Reg| {
            b.int(IntOp::Add, Ty::U32, value, source, reg(at));
            b.sync(kind, result, value, reg(mask));
            let (a, c) = (reg(sum), reg(result));
            b.emit(Op::Mad { part: MulPart::Lo, ty: Ty::U32, sat: false, dst: sum, a, b: Operand::Imm(3), c });
            b.int(IntOp::Add, Ty::U32, at, reg(at), Operand::Imm(1));
        };
        let main = BlockId(self.next().0 + 1);
        let rest = BlockId(main.0 + 1);
        self.end(Term::CondBra { p: yes(p), then: main, els: rest, uniform: false });
        trip(self, masks[0]);
        trip(self, masks[1]);
        self.end(Term::Bra(rest));
        self.compare(Cmp::Lt, Ty::U32, p, reg(at), reg(trips));
        let last = BlockId(self.next().0 + 1);
        let after = BlockId(last.0 + 1);
        self.end(Term::CondBra { p: yes(p), then: last, els: after, uniform: false });
        self.mov(mask, reg(masks[0]));
        for (trip, other) in [(1, masks[1]), (2, masks[2])] {
            self.compare(Cmp::Eq, Ty::U32, p, reg(at), Operand::Imm(trip));
            self.emit(Op::Selp { ty: Ty::B32, dst: mask, a: reg(other), b: reg(mask), p: yes(p) });
        }
        trip(self, mask);
        self.end(Term::Bra(rest));
        let dst = self.any(Pool::I32);
        self.mov(dst, reg(sum));
    }

    /// Threads go one after the other, of a warp or of the CTA: each waits for its turn, and gives the next one its.
    pub(super) fn wait(&mut self) {
        if self.waits == WAITS {
            return;
        }
        let (f, place) = (self.fixed, self.waits);
        self.waits += 1;
        let (me, next) = (self.fresh(RegTy::B32), self.fresh(RegTy::B32));
        let way = self.below(3);
        let (space, base, offset) = if way == 0 {
            // Words in the slot of the CTA's first thread.
            let (back, base) = (self.fresh(RegTy::B32), self.fresh(RegTy::B64));
            self.int(IntOp::Sub, Ty::U32, back, Operand::Imm(0), reg(f.tid));
            let (a, b, c) = (reg(back), Operand::Imm(SLOT_BYTES.into()), reg(f.slot));
            self.emit(Op::Mad { part: MulPart::Wide, ty: Ty::S32, sat: false, dst: base, a, b, c });
            (self.pick(&[Space::Global, Space::Generic]), base, SLOT_WAIT + 8 * place)
        } else {
            let base = self.fresh(RegTy::B32);
            self.int(IntOp::Shr, Ty::U32, base, reg(f.tid), Operand::Imm(if way == 1 { 5 } else { 31 }));
            self.int(IntOp::Shl, Ty::B32, base, reg(base), Operand::Imm(3));
            (Space::Shared, base, self.behind() + EXCHANGES * 4 * self.threads + place * WAIT_BYTES)
        };
        self.int(IntOp::And, Ty::B32, me, reg(f.tid), Operand::Imm(if way == 1 { 31 } else { 1023 }));
        self.int(IntOp::Add, Ty::U32, next, reg(me), Operand::Imm(1));
        let [turn, sum] = [0, 4].map(|at| Address { base: reg(base), offset: i64::from(offset + at) });
        let (seen, total, p) = (self.fresh(RegTy::B32), self.fresh(RegTy::B32), self.fresh(RegTy::Pred));
        let looks = BlockId(self.next().0 + 1);
        self.end(Term::Bra(looks));
        self.look(space, seen, turn);
        self.compare(Cmp::Ne, Ty::U32, p, reg(seen), reg(me));
        let go = BlockId(self.next().0 + 1);
        self.end(Term::CondBra { p: yes(p), then: looks, els: go, uniform: false });
        self.load(space, Order::Volatile, total, sum);
        let (a, c) = (reg(total), reg(self.any(Pool::I32)));
        self.emit(Op::Mad { part: MulPart::Lo, ty: Ty::U32, sat: false, dst: total, a, b: Operand::Imm(5), c });
        self.store(space, Order::Volatile, sum, reg(total));
        self.emit(Op::Fence);
        if self.chance(2) {
            self.store(space, Order::Volatile, turn, reg(next));
        } else {
            let (op, ty, order, b) = (AtomOp::Exch, Ty::B32, Order::Release, reg(next));
            self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: None, addr: turn, b, c: None });
        }
        let after = BlockId(self.next().0 + 1);
        self.end(Term::Bra(after));
        let dst = self.any(Pool::I32);
        self.mov(dst, reg(total));
        // Who has gone on must not be ahead of the others for ever: what follows is done in step.
        self.barrier();
    }

    /// Looks at a word, in one of the ways in which a loop may wait for it.
    fn look(&mut self, space: Space, dst: Reg, addr: Address) {
        let ways = [
            (AtomOp::Add, Ty::U32, 0),
            (AtomOp::Or, Ty::B32, 0),
            (AtomOp::Xor, Ty::B32, 0),
            (AtomOp::And, Ty::B32, 0xffff_ffff),
            (AtomOp::Max, Ty::U32, 0),
            (AtomOp::Min, Ty::U32, 0xffff_ffff),
            (AtomOp::Cas, Ty::B32, 0xffff_fffe),
        ];
        match self.below(11) {
            7 => self.load(space, Order::Volatile, dst, addr),
            8 => self.load(space, Order::Acquire, dst, addr),
            9 => {
                self.load(space, Order::Weak, dst, addr);
                self.emit(Op::Fence);
            }
            10 => {
                self.emit(Op::Fence);
                self.load(space, Order::Weak, dst, addr);
            }
            way => {
                let (op, ty, b) = ways[way as usize % ways.len()];
                let (b, order) = (Operand::Imm(b), self.pick(&[Order::Relaxed, Order::Acquire, Order::AcqRel]));
                let c = (op == AtomOp::Cas).then_some(Operand::Imm(5));
                self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: Some(dst), addr, b, c });
            }
        }
    }
}
