//! mbarrier objects and bulk copies, by atomics and loops on ordinary memory.
//!
//! The object is what [`crate::mbarrier`] says. Each operation is one atomic change, which ends the phase if it completes it: lanes of a
//! warp that arrive together may complete several. A state is the phase at the arrival, and what was pending before it. Copies are made
//! at once, by the thread that asks for them; so they may complete before they are waited for, but never late.

use super::body::Body;
use super::mods::Mods;
use super::operand::{Arg, Place};
use crate::error::PtxError;
use crate::ir::{Address, AtomOp, BoolOp, Cmp, IntOp, Op, Operand, Order, PredRef, Reg, RegTy, Space, Term, Ty};
use crate::mbarrier::{BYTES, COUNT, EXPECTED, PHASE};

/// Which bytes of each 16 a bulk copy moves.
#[derive(Clone, Copy)]
enum Part {
    All,
    /// Those at these offsets of the whole copy, the second excluded.
    Between(Operand, Operand),
    /// Those whose bit is set.
    Mask(Operand),
}

impl Body<'_, '_> {
    /// `mbarrier.pending_count.b64 count, state`
    fn pending_count(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.ty_in(m, &[Ty::B64])?;
        self.count(2..=2)?;
        let (dst, state) = (self.dst(0, Ty::U32)?, self.src(1, Ty::B64)?);
        let pending = self.int64(IntOp::And, state, Operand::Imm(COUNT))?;
        let (round, to_integral, ftz, sat, relu) = (None, false, false, false, false);
        let (dst_ty, src_ty) = (Ty::U32, Ty::U64);
        self.emit(Op::Cvt { dst_ty, src_ty, round, to_integral, ftz, sat, relu, dst, a: pending })?;
        Ok(())
    }

    pub(super) fn mbarrier(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let actions = [
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "expect_tx",
            "complete_tx",
            "test_wait",
            "try_wait",
            "pending_count",
        ];
        let action = m.find(|w| actions.iter().position(|a| *a == w));
        let action =
            action.map(|at| actions[at]).ok_or_else(|| self.unsupported("this mbarrier operation is not supported"))?;
        if action == "pending_count" {
            return self.pending_count(m);
        }
        let arrives = action.starts_with("arrive");
        let expect = arrives && m.take("expect_tx");
        let parity = action.ends_with("wait") && m.take("parity");
        // A promise of the program.
        let promised = arrives && !expect && m.take("noComplete");
        m.order();
        let space = m.space();
        self.ty_in(m, &[Ty::B64])?;
        match action {
            "init" => {
                self.count(2..=2)?;
                let (space, address) = self.object(m, 0, space)?;
                let count = self.widened(1)?;
                let expected = self.int64(IntOp::Shl, count, Operand::Imm(EXPECTED))?;
                let word = self.int64(IntOp::Or, expected, count)?;
                self.emit(Op::St { space, ty: Ty::B64, order: Order::Volatile, srcs: vec![word], addr: address })?;
            }
            "inval" => {
                self.count(1..=1)?;
                self.object(m, 0, space)?;
            }
            "arrive" | "arrive_drop" => {
                self.count(2 + usize::from(expect || promised)..=3)?;
                let state = self.dst(0, Ty::B64)?;
                let (space, address) = self.object(m, 1, space)?;
                let third = if self.args.len() > 2 { Some(self.widened(2)?) } else { None };
                let (bytes, mut count) = match third {
                    Some(bytes) if expect => (self.int64(IntOp::Shl, bytes, Operand::Imm(BYTES))?, Operand::Imm(1)),
                    count => (Operand::Imm(0), count.unwrap_or(Operand::Imm(1))),
                };
                if action == "arrive_drop" {
                    // Not expected any more from the next phase on.
                    let dropped = self.int64(IntOp::Shl, count, Operand::Imm(EXPECTED))?;
                    count = self.int64(IntOp::Add, count, dropped)?;
                }
                let delta = self.int64(IntOp::Sub, bytes, count)?;
                let old = self.update(space, address, delta)?;
                let (ty, a, b) = (Ty::B64, Operand::Reg(old), Operand::Imm(1 << PHASE | COUNT));
                self.emit(Op::Int { op: IntOp::And, ty, sat: false, dst: state, a, b })?;
            }
            "expect_tx" | "complete_tx" => {
                self.count(2..=2)?;
                let (space, address) = self.object(m, 0, space)?;
                let bytes = self.widened(1)?;
                let mut delta = self.int64(IntOp::Shl, bytes, Operand::Imm(BYTES))?;
                if action == "complete_tx" {
                    delta = self.int64(IntOp::Sub, Operand::Imm(0), delta)?;
                }
                self.update(space, address, delta)?;
            }
            _ => self.wait(m, space, parity)?,
        }
        Ok(())
    }

    /// `test_wait` and `try_wait`, which need not wait: is the phase over?
    fn wait(&mut self, m: &Mods<'_>, space: Option<Space>, parity: bool) -> Result<(), PtxError> {
        self.count(3..=4)?;
        let done = self.dst(0, Ty::Pred)?;
        let (space, address) = self.object(m, 1, space)?;
        let word = self.new_reg(RegTy::B64)?;
        let dsts = vec![Some(word)];
        self.emit(Op::Ld { space, ty: Ty::B64, order: Order::Acquire, dsts, addr: address })?;
        let now = self.int64(IntOp::And, Operand::Reg(word), Operand::Imm(1 << PHASE))?;
        let then = if parity {
            let wide = self.widened(2)?;
            let low = self.int64(IntOp::And, wide, Operand::Imm(1))?;
            self.int64(IntOp::Shl, low, Operand::Imm(PHASE))?
        } else {
            let state = self.src(2, Ty::B64)?;
            self.int64(IntOp::And, state, Operand::Imm(1 << PHASE))?
        };
        self.compare(Cmp::Ne, Ty::B64, done, now, then, None)
    }

    /// The space and address of the object named by operand `at`.
    pub(super) fn object(
        &mut self,
        m: &Mods<'_>,
        at: usize,
        space: Option<Space>,
    ) -> Result<(Space, Address), PtxError> {
        let place = self.address(at)?;
        if let Some((slot, _)) = place.slot {
            self.inst.slots.escape(slot);
        }
        match self.access_space(space, &place)? {
            space @ (Space::Shared | Space::Generic) => self.of_cluster(m, space, place.address),
            _ => Err(self.invalid("an mbarrier object lies in shared memory")),
        }
    }

    /// Adds `delta` to the object, and ends the phase if that completes it; the object before.
    pub(super) fn update(&mut self, space: Space, addr: Address, delta: Operand) -> Result<Reg, PtxError> {
        let old = self.new_reg(RegTy::B64)?;
        let (op, ty, order) = (AtomOp::Arrive, Ty::U64, Order::AcqRel);
        self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: Some(old), addr, b: delta, c: None })?;
        Ok(old)
    }

    /// `a op b` in 64 bits, in a new register; the second operand of a shift is a small constant.
    fn int64(&mut self, op: IntOp, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let ty = match op {
            IntOp::And | IntOp::Or | IntOp::Shl | IntOp::Shr => Ty::B64,
            _ => Ty::U64,
        };
        self.int(op, ty, a, b)
    }

    /// Operand `at`, a u32, in 64 bits.
    fn widened(&mut self, at: usize) -> Result<Operand, PtxError> {
        match self.src(at, Ty::U32)? {
            reg @ Operand::Reg(_) => self.converted(reg, Ty::U32, Ty::U64),
            imm @ Operand::Imm(_) => Ok(imm),
        }
    }

    fn compare(
        &mut self,
        cmp: Cmp,
        ty: Ty,
        dst: Reg,
        a: Operand,
        b: Operand,
        combine: Option<(BoolOp, PredRef)>,
    ) -> Result<(), PtxError> {
        self.emit(Op::Setp { cmp, ty, ftz: false, dst, dst2: None, a, b, combine })?;
        Ok(())
    }

    /// `cp.async.mbarrier.arrive`: the copies before it have been made. Without `.noinc` the arrival is one that the
    /// count does not expect, so that nothing is left of it.
    pub(super) fn copy_arrival(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if !m.take("arrive") {
            return Err(self.invalid("cp.async.mbarrier lacks .arrive"));
        }
        let counted = m.take("noinc");
        let space = m.space();
        self.ty_in(m, &[Ty::B64])?;
        self.count(1..=1)?;
        let (space, address) = self.object(m, 0, space)?;
        if counted {
            self.update(space, address, Operand::Imm(u64::MAX))?;
        }
        Ok(())
    }

    /// `clusterlaunchcontrol`: no CTA that waits to be launched is ever handed over, and the answer says so.
    pub(super) fn launch_control(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if m.take("try_cancel") {
            m.drop_all(|_| true);
            self.count(2..=2)?;
            let to = self.address(0)?;
            let space = self.access_space(Some(Space::Shared), &to)?;
            let srcs = vec![Operand::Imm(0); 2];
            self.emit(Op::St { space, ty: Ty::B64, order: Order::Weak, srcs, addr: to.address })?;
            let (space, address) = self.object(m, 1, Some(Space::Shared))?;
            self.update(space, address, Operand::Imm((16u64 << BYTES).wrapping_neg()))?;
            return Ok(());
        }
        if !m.take("query_cancel") {
            return Err(self.invalid("clusterlaunchcontrol without an operation"));
        }
        if m.take("is_canceled") {
            m.drop_all(|w| matches!(w, "pred" | "b128"));
            let dst = self.dst(0, Ty::Pred)?;
            self.emit(Op::Mov { ty: Ty::Pred, dst, src: Operand::Imm(0) })?;
            return Ok(());
        }
        m.drop_all(|w| w.starts_with("get_first_ctaid") || matches!(w, "x" | "y" | "z" | "v4" | "b32" | "b128"));
        for arg in self.elements(0)? {
            if let Arg::Word(name) = arg
                && name != "_"
            {
                let dst = self.reg_of(name, RegTy::B32)?;
                self.emit(Op::Mov { ty: Ty::B32, dst, src: Operand::Imm(0) })?;
            }
        }
        Ok(())
    }

    /// `cp.async.bulk` between global and shared memory.
    pub(super) fn copy_bulk(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if m.take("commit_group") {
            return self.count(0..=0);
        }
        if m.take("wait_group") {
            m.take("read");
            return self.count(1..=1);
        }
        if m.take("prefetch") {
            m.drop_all(|_| true);
            return Ok(());
        }
        if m.take("multicast::cluster") {
            return self.copy_multicast(m);
        }
        let policy = usize::from(m.cache());
        let (masked, bounded) = (m.take("cp_mask"), m.take("ignore_oob"));
        let tracked = m.take("mbarrier::complete_tx::bytes");
        let (to, from) = (m.space(), m.space());
        let mut spaces = match (to, from) {
            (Some(Space::Shared), Some(Space::Global)) if tracked && !masked => [Space::Shared, Space::Global],
            // To another CTA of the cluster.
            (Some(Space::Shared), Some(Space::Shared)) if tracked && !masked && !bounded && m.names_cluster() => {
                [Space::Shared, Space::Shared]
            }
            (Some(Space::Global), Some(Space::Shared)) if m.take("bulk_group") && !tracked && !bounded => {
                [Space::Global, Space::Shared]
            }
            _ => return Err(self.unsupported("bulk copies of this kind are not supported")),
        };
        let count = 3 + usize::from(masked) + 2 * usize::from(bounded) + usize::from(tracked) + policy;
        self.count(count..=count)?;
        let (mut to, from) = (self.address(0)?, self.address(1)?);
        (spaces[0], to.address) = self.of_cluster(m, spaces[0], to.address)?;
        let size = self.src(2, Ty::U32)?;
        let part = match (bounded, masked) {
            (true, _) => Part::Between(self.src(3, Ty::U32)?, self.src(4, Ty::U32)?),
            (_, true) => Part::Mask(self.src(count - 1, Ty::U16)?),
            _ => Part::All,
        };
        let object = if tracked { Some(self.object(m, count - 1 - policy, Some(Space::Shared))?) } else { None };
        let after = self.around_guard();
        let (to, from) = (self.pointer(&to)?, self.pointer(&from)?);
        self.copy_loop(spaces, to, from, size, part)?;
        if let Some((space, address)) = object {
            let bytes = match size {
                Operand::Reg(reg) => self.converted(Operand::Reg(reg), Ty::U32, Ty::U64)?,
                imm @ Operand::Imm(_) => imm,
            };
            let bytes = self.int64(IntOp::Shl, bytes, Operand::Imm(BYTES))?;
            let delta = self.int64(IntOp::Sub, Operand::Imm(0), bytes)?;
            self.update(space, address, delta)?;
        }
        self.inst.graph.bind(after);
        Ok(())
    }

    /// `st.bulk`: zeros to shared memory, 8 bytes at a time.
    pub(super) fn store_bulk(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if !matches!(m.order(), None | Some(Order::Weak)) {
            return Err(self.invalid("st.bulk is weak"));
        }
        let space = m.space();
        self.count(3..=3)?;
        let place = self.address(0)?;
        let space = self.access_space(space, &place)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return Err(self.invalid("st.bulk stores to shared memory"));
        }
        let size = self.src(1, Ty::U64)?;
        if self.src(2, Ty::U64)? != Operand::Imm(0) {
            return Err(self.invalid("st.bulk stores zeros only"));
        }
        let after = self.around_guard();
        let (head, body) = (self.inst.graph.target(), self.inst.graph.target());
        let at = self.new_reg(RegTy::B64)?;
        let to = self.pointer(&place)?;
        self.emit(Op::Mov { ty: Ty::B64, dst: at, src: Operand::Imm(0) })?;
        self.inst.graph.bind(head);
        let over = self.new_reg(RegTy::Pred)?;
        self.compare(Cmp::Ge, Ty::U64, over, Operand::Reg(at), size, None)?;
        let p = PredRef { reg: over, negate: false };
        self.inst.graph.terminate(Term::CondBra { p, then: after.id(), els: body.id(), uniform: false });
        self.inst.graph.bind(body);
        let addr = Address { base: self.int64(IntOp::Add, to, Operand::Reg(at))?, offset: 0 };
        self.emit(Op::St { space, ty: Ty::B64, order: Order::Weak, srcs: vec![Operand::Imm(0)], addr })?;
        let (a, b) = (Operand::Reg(at), Operand::Imm(8));
        self.emit(Op::Int { op: IntOp::Add, ty: Ty::U64, sat: false, dst: at, a, b })?;
        self.inst.graph.terminate(Term::Bra(head.id()));
        self.inst.graph.bind(after);
        Ok(())
    }

    /// An address as a 64-bit value.
    pub(super) fn pointer(&mut self, place: &Place) -> Result<Operand, PtxError> {
        let base = match place.address.base {
            Operand::Reg(reg) if self.inst.graph.ty(reg) == RegTy::B32 => {
                self.converted(Operand::Reg(reg), Ty::U32, Ty::U64)?
            }
            base => base,
        };
        self.int64(IntOp::Add, base, Operand::Imm(place.address.offset.cast_unsigned()))
    }

    /// Copies `size` bytes, 16 at a time.
    fn copy_loop(
        &mut self,
        spaces: [Space; 2],
        to: Operand,
        from: Operand,
        size: Operand,
        part: Part,
    ) -> Result<(), PtxError> {
        let at = self.new_reg(RegTy::B32)?;
        let (head, body, done) = (self.inst.graph.target(), self.inst.graph.target(), self.inst.graph.target());
        self.emit(Op::Mov { ty: Ty::B32, dst: at, src: Operand::Imm(0) })?;
        let end = match part {
            Part::Between(_, right) => self.int32(IntOp::Sub, size, right)?,
            _ => size,
        };
        self.inst.graph.bind(head);
        let over = self.new_reg(RegTy::Pred)?;
        self.compare(Cmp::Ge, Ty::U32, over, Operand::Reg(at), size, None)?;
        let p = PredRef { reg: over, negate: false };
        self.inst.graph.terminate(Term::CondBra { p, then: done.id(), els: body.id(), uniform: false });
        self.inst.graph.bind(body);
        let offset = self.converted(Operand::Reg(at), Ty::U32, Ty::U64)?;
        let (to, from) = (self.int64(IntOp::Add, to, offset)?, self.int64(IntOp::Add, from, offset)?);
        let (whole, next) = (self.new_reg(RegTy::Pred)?, self.inst.graph.target());
        match part {
            Part::All => self.emit(Op::Mov { ty: Ty::Pred, dst: whole, src: Operand::Imm(1) }).map(|_| ())?,
            Part::Mask(mask) => self.compare(Cmp::Eq, Ty::U16, whole, mask, Operand::Imm(0xffff), None)?,
            Part::Between(left, _) => {
                let (inside, last) =
                    (self.new_reg(RegTy::Pred)?, self.int32(IntOp::Add, Operand::Reg(at), Operand::Imm(16))?);
                self.compare(Cmp::Ge, Ty::U32, inside, Operand::Reg(at), left, None)?;
                let inside = Some((BoolOp::And, PredRef { reg: inside, negate: false }));
                self.compare(Cmp::Le, Ty::U32, whole, last, end, inside)?;
            }
        }
        let whole = PredRef { reg: whole, negate: false };
        self.guard = Some(whole);
        self.copy_piece(spaces, to, from, 0, Ty::B64, 2)?;
        self.guard = None;
        if !matches!(part, Part::All) {
            let bytes = self.inst.graph.target();
            self.inst.graph.terminate(Term::CondBra { p: whole, then: next.id(), els: bytes.id(), uniform: false });
            self.inst.graph.bind(bytes);
            for byte in 0..16 {
                let p = self.wanted(part, at, end, byte)?;
                self.guard = Some(PredRef { reg: p, negate: false });
                self.copy_piece(spaces, to, from, byte, Ty::B8, 1)?;
                self.guard = None;
            }
        }
        self.inst.graph.bind(next);
        let (a, b) = (Operand::Reg(at), Operand::Imm(16));
        self.emit(Op::Int { op: IntOp::Add, ty: Ty::U32, sat: false, dst: at, a, b })?;
        self.inst.graph.terminate(Term::Bra(head.id()));
        self.inst.graph.bind(done);
        Ok(())
    }

    /// Is byte `byte` of the 16 at offset `at` to be copied?
    fn wanted(&mut self, part: Part, at: Reg, end: Operand, byte: u64) -> Result<Reg, PtxError> {
        let p = self.new_reg(RegTy::Pred)?;
        match part {
            Part::All => self.emit(Op::Mov { ty: Ty::Pred, dst: p, src: Operand::Imm(1) }).map(|_| ())?,
            Part::Mask(mask) => {
                let bit = self.new_reg(RegTy::B16)?;
                let (op, ty, b) = (IntOp::And, Ty::B16, Operand::Imm(1 << byte));
                self.emit(Op::Int { op, ty, sat: false, dst: bit, a: mask, b })?;
                self.compare(Cmp::Ne, Ty::B16, p, Operand::Reg(bit), Operand::Imm(0), None)?;
            }
            Part::Between(left, _) => {
                let (here, after) =
                    (self.int32(IntOp::Add, Operand::Reg(at), Operand::Imm(byte))?, self.new_reg(RegTy::Pred)?);
                self.compare(Cmp::Ge, Ty::U32, after, here, left, None)?;
                let after = Some((BoolOp::And, PredRef { reg: after, negate: false }));
                self.compare(Cmp::Lt, Ty::U32, p, here, end, after)?;
            }
        }
        Ok(p)
    }

    fn int32(&mut self, op: IntOp, a: Operand, b: Operand) -> Result<Operand, PtxError> {
        let dst = self.new_reg(RegTy::B32)?;
        self.emit(Op::Int { op, ty: Ty::U32, sat: false, dst, a, b })?;
        Ok(Operand::Reg(dst))
    }

    fn copy_piece(
        &mut self,
        [into, out_of]: [Space; 2],
        to: Operand,
        from: Operand,
        offset: u64,
        ty: Ty,
        lanes: usize,
    ) -> Result<(), PtxError> {
        let mut regs = Vec::with_capacity(lanes);
        for _ in 0..lanes {
            regs.push(self.new_reg(ty.reg())?);
        }
        let (dsts, srcs) = (regs.iter().map(|r| Some(*r)).collect(), regs.iter().map(|r| Operand::Reg(*r)).collect());
        let (from, to) = (Address { base: from, offset: offset as i64 }, Address { base: to, offset: offset as i64 });
        self.emit(Op::Ld { space: out_of, ty, order: Order::Weak, dsts, addr: from })?;
        self.emit(Op::St { space: into, ty, order: Order::Weak, srcs, addr: to })?;
        Ok(())
    }
}
