//! Loads, stores, atomics, copies, fences.

use super::body::Body;
use super::mods::Mods;
use super::opcodes::atom_op;
use super::operand::{Arg, Place, fits};
use crate::error::PtxError;
use crate::ir::{Address, AtomOp, Op, Operand, Order, RegTy, Space, Ty};

/// Does an atomic flush subnormals in global memory? It keeps them in shared memory.
fn flushes(op: AtomOp, ty: Ty) -> bool {
    op == AtomOp::Add && ty == Ty::F32
}

impl Body<'_, '_> {
    /// The space of an access: as written, or else that of the variable it names.
    pub(super) fn access_space(&self, written: Option<Space>, place: &Place) -> Result<Space, PtxError> {
        let space = match (written, place.space) {
            // In a function, and for the arguments of a call, parameters are variables in local memory.
            (Some(Space::Param), Some(Space::Local)) => Space::Local,
            (Some(Space::Param), None) if self.ret.is_some() => Space::Local,
            (Some(written), Some(actual)) if written != actual => {
                return Err(self.invalid(format!("the variable is in {actual:?} memory, not in {written:?} memory")));
            }
            (Some(space), _) | (None, Some(space)) => space,
            (None, None) => Space::Generic,
        };
        if let Operand::Reg(reg) = place.address.base
            && self.inst.graph.ty(reg) == RegTy::B32
            && matches!(space, Space::Generic | Space::Global | Space::Const)
        {
            return Err(self.unsupported("32-bit generic and global addresses are not supported"));
        }
        Ok(space)
    }

    /// Element type and number of elements of a load or store.
    fn elements_ty(&self, m: &mut Mods<'_>) -> Result<(Ty, usize), PtxError> {
        let lanes = m.vector();
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        if ty == Ty::Pred || lanes as u32 * ty.bits() > 256 {
            return Err(self.invalid("no access of this type and length"));
        }
        Ok((ty, lanes))
    }

    pub(super) fn ld(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let order = m.order().unwrap_or(Order::Weak);
        if !matches!(order, Order::Weak | Order::Volatile | Order::Relaxed | Order::Acquire) {
            return Err(self.invalid("no load has this memory order"));
        }
        // What nobody writes while the kernel runs.
        let constant = m.take("nc");
        let policy = usize::from(m.cache());
        let space = m.space();
        let (ty, lanes) = self.elements_ty(m)?;
        self.count(2..=2 + policy)?;
        let place = self.address(1)?;
        let space = match self.access_space(space, &place)? {
            Space::Global if constant => Space::Const,
            space => space,
        };
        let parts = self.elements(0)?;
        if parts.len() != lanes {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        let mut dsts = Vec::with_capacity(lanes);
        for arg in parts {
            dsts.push(match arg {
                Arg::Word("_") => None,
                Arg::Word(name) => Some(self.wide_reg(name, ty)?),
                Arg::Reg(reg) if fits(ty, self.inst.graph.ty(reg)) => Some(reg),
                _ => return Err(self.invalid("the destination is not a register")),
            });
        }
        let (space, addr) = self.of_cluster(m, space, place.address)?;
        let at = self.emit(Op::Ld { space, ty, order, dsts, addr })?;
        if let Some((slot, offset)) = place.slot {
            self.inst.slots.access(at, slot, offset);
        }
        Ok(())
    }

    pub(super) fn st(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if m.take("async") {
            return self.store_async(m, false);
        }
        if m.take("bulk") {
            return self.store_bulk(m);
        }
        let order = m.order().unwrap_or(Order::Weak);
        if !matches!(order, Order::Weak | Order::Volatile | Order::Relaxed | Order::Release) {
            return Err(self.invalid("no store has this memory order"));
        }
        let policy = usize::from(m.cache());
        let space = m.space();
        let (ty, lanes) = self.elements_ty(m)?;
        self.count(2..=2 + policy)?;
        let place = self.address(0)?;
        let space = self.access_space(space, &place)?;
        if matches!(space, Space::Const | Space::Param) {
            return Err(self.invalid("a store to read-only memory"));
        }
        let parts = self.elements(1)?;
        if parts.len() != lanes {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        let mut srcs = Vec::with_capacity(lanes);
        for arg in parts {
            srcs.push(self.wide_source(arg, ty)?);
        }
        let (space, addr) = self.of_cluster(m, space, place.address)?;
        let at = self.emit(Op::St { space, ty, order, srcs, addr })?;
        if let Some((slot, offset)) = place.slot {
            self.inst.slots.access(at, slot, offset);
        }
        Ok(())
    }

    pub(super) fn atom(&mut self, m: &mut Mods<'_>, red: bool) -> Result<(), PtxError> {
        if red && m.take("async") {
            return self.store_async(m, true);
        }
        let op = m.find(atom_op).ok_or_else(|| self.invalid("an atomic without an operation"))?;
        let order = m.order().unwrap_or(Order::Relaxed);
        m.scope();
        let policy = usize::from(m.cache());
        let space = m.space();
        let noftz = m.take("noftz");
        let lanes = m.vector();
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        if noftz && flushes(op, ty) {
            return Err(self.invalid("sums of f32 flush subnormals in global memory: they have no .noftz"));
        }
        self.check_atom(op, ty, red)?;
        let cas = op == AtomOp::Cas;
        let first = usize::from(!red);
        let operands = first + 2 + usize::from(cas);
        self.count(operands..=operands + policy)?;
        let mut place = self.address(first)?;
        if let Some((slot, _)) = place.slot {
            self.inst.slots.escape(slot);
        }
        let space = self.access_space(space, &place)?;
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Err(self.unsupported("atomics on this state space are not supported"));
        }
        let (space, address) = self.of_cluster(m, space, place.address)?;
        place.address = address;
        if lanes > 1 {
            return self.atom_vector(op, ty, space, order, lanes, red, &place);
        }
        let dst = match (red, self.arg(0)?) {
            (true, _) | (false, Arg::Word("_")) => None,
            _ => Some(self.dst(0, ty)?),
        };
        let b = self.src(first + 1, ty)?;
        let c = if cas { Some(self.src(first + 2, ty)?) } else { None };
        self.emit(Op::Atom { op, space, ty, order, ftz: flushes(op, ty), dst, addr: place.address, b, c })?;
        Ok(())
    }

    /// `red.v4.f32.add [a], {…}` and the like: each element is atomic, the vector is not.
    #[expect(clippy::too_many_arguments, reason = "the modifiers of one instruction")]
    fn atom_vector(
        &mut self,
        op: AtomOp,
        ty: Ty,
        space: Space,
        order: Order,
        lanes: usize,
        red: bool,
        place: &Place,
    ) -> Result<(), PtxError> {
        if !ty.is_float() || !matches!(op, AtomOp::Add | AtomOp::Min | AtomOp::Max) || lanes as u32 * ty.bits() > 128 {
            return Err(self.invalid("no vector atomic of this type and length"));
        }
        let srcs = self.elements(usize::from(!red) + 1)?;
        let dsts = if red { vec![Arg::Word("_"); lanes] } else { self.elements(0)? };
        if srcs.len() != lanes || dsts.len() != lanes {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        // All sources are read before the first destination is written.
        let mut values = Vec::with_capacity(lanes);
        for src in srcs {
            let (value, src) = (self.new_reg(ty.reg())?, self.source(src, ty)?);
            self.emit(Op::Mov { ty, dst: value, src })?;
            values.push(Operand::Reg(value));
        }
        let base = match place.address.base {
            Operand::Reg(reg) if red => Operand::Reg(reg),
            Operand::Imm(at) => Operand::Imm(at),
            // A destination may be the address itself.
            Operand::Reg(reg) => {
                let class = self.inst.graph.ty(reg);
                let (copy, ty) = (self.new_reg(class)?, if class == RegTy::B32 { Ty::B32 } else { Ty::B64 });
                self.emit(Op::Mov { ty, dst: copy, src: Operand::Reg(reg) })?;
                Operand::Reg(copy)
            }
        };
        for (at, (dst, b)) in dsts.into_iter().zip(values).enumerate() {
            let dst = match dst {
                Arg::Word("_") => None,
                Arg::Word(name) => Some(self.reg_of(name, ty.reg())?),
                Arg::Reg(reg) if self.inst.graph.ty(reg) == ty.reg() => Some(reg),
                _ => return Err(self.invalid("the destination is not a register")),
            };
            let offset = place.address.offset.wrapping_add(i64::from(ty.bytes()) * at as i64);
            let addr = Address { base, offset };
            self.emit(Op::Atom { op, space, ty, order, ftz: flushes(op, ty), dst, addr, b, c: None })?;
        }
        Ok(())
    }

    fn check_atom(&self, op: AtomOp, ty: Ty, red: bool) -> Result<(), PtxError> {
        use AtomOp::{Add, And, Arrive, Cas, Dec, Exch, Inc, Max, Min, Or, Xor};
        let ok = match op {
            Add => matches!(
                ty,
                Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::F32 | Ty::F64 | Ty::F16 | Ty::F16x2 | Ty::BF16 | Ty::BF16x2
            ),
            Min | Max => {
                matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::F16 | Ty::F16x2 | Ty::BF16 | Ty::BF16x2)
            }
            And | Or | Xor => matches!(ty, Ty::B32 | Ty::B64),
            Exch => matches!(ty, Ty::B32 | Ty::B64 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::U64 | Ty::S64) && !red,
            Cas => matches!(ty, Ty::B16 | Ty::B32 | Ty::B64 | Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) && !red,
            Inc | Dec => ty == Ty::U32,
            // No `atom` has it.
            Arrive => false,
        };
        match (ok, ty) {
            (true, _) => Ok(()),
            (false, Ty::B128) => Err(self.unsupported("128-bit atomics are not supported")),
            (false, _) => Err(self.invalid(format!("no atomic {op:?} on {ty:?}"))),
        }
    }

    /// `cp.async`: the copy is made at once, so there is nothing to commit or to wait for.
    pub(super) fn cp_async(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if !m.take("async") {
            return Err(self.invalid("cp without .async"));
        }
        let reduce = m.take("reduce");
        if m.take("bulk") {
            return match (m.take("tensor"), reduce) {
                (true, _) => self.copy_tensor(m, reduce),
                (false, true) => self.copy_reduce(m),
                (false, false) => self.copy_bulk(m),
            };
        }
        if reduce {
            return Err(self.invalid("a reducing copy is a bulk copy"));
        }
        if m.take("mbarrier") {
            return self.copy_arrival(m);
        }
        if m.take("commit_group") || m.take("wait_all") {
            return self.count(0..=0);
        }
        if m.take("wait_group") {
            return self.count(1..=1);
        }
        let policy = usize::from(m.cache());
        let to_shared = m.take("shared") | m.take("shared::cta");
        if !to_shared || !m.take("global") {
            return Err(self.invalid("cp.async copies from .global to .shared"));
        }
        self.count(3..=4 + policy)?;
        let (dst, src) = (self.address(0)?, self.address(1)?);
        self.access_space(Some(Space::Shared), &dst)?;
        self.access_space(Some(Space::Global), &src)?;
        let Arg::Int(bytes @ (4 | 8 | 16)) = self.arg(2)? else {
            return Err(self.invalid("cp.async copies 4, 8 or 16 bytes"));
        };
        let src_bytes = match self.args.get(3).copied() {
            Some(arg) if self.args.len() - policy > 3 => Some(match self.as_pred(arg)? {
                // A predicate: nothing is read where it holds.
                Some(p) => {
                    let count = self.new_reg(RegTy::B32)?;
                    let (a, b) = (Operand::Imm(0), Operand::Imm(bytes));
                    self.emit(Op::Selp { ty: Ty::B32, dst: count, a, b, p })?;
                    Operand::Reg(count)
                }
                None => self.source(arg, Ty::U32)?,
            }),
            _ => None,
        };
        self.emit(Op::CpAsync { bytes: bytes as u8, dst: dst.address, src: src.address, src_bytes })?;
        Ok(())
    }

    /// All fences are fences of the device, sequentially consistent.
    pub(super) fn fence(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        m.drop_all(|w| {
            matches!(
                w,
                "sc" | "acq_rel"
                    | "acquire"
                    | "release"
                    | "cta"
                    | "cluster"
                    | "gpu"
                    | "sys"
                    | "gl"
                    | "mbarrier_init"
                    | "proxy"
                    | "alias"
                    | "generic"
                    | "global"
                    | "shared::cta"
                    | "shared::cluster"
                    | "tensormap::generic"
            ) || w.starts_with("async")
                || w.starts_with("sync_restrict")
        });
        self.emit(Op::Fence)?;
        Ok(())
    }

    /// A cache policy is an opaque value; none of them changes a result.
    pub(super) fn createpolicy(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        m.drop_all(|_| true);
        let dst = self.dst(0, Ty::B64)?;
        self.emit(Op::Mov { ty: Ty::B64, dst, src: Operand::Imm(0) })?;
        Ok(())
    }

    /// Copies the kernel's parameter block to local memory, so that parameters have generic addresses.
    pub(super) fn copy_params(&mut self) -> Result<(), PtxError> {
        let bytes = self.inst.param_bytes;
        // As a tensor map among them must be.
        let copy = self.inst.slots.local(u64::from(bytes), 64, self.line)?;
        self.inst.param_copy = Some(copy);
        let mut at = 0;
        while at < bytes {
            // Whole words as long as they fit; what is left byte by byte.
            let ty = if bytes - at >= 8 { Ty::B64 } else { Ty::B8 };
            let value = self.new_reg(ty.reg())?;
            let fixed = |base: u64| Address { base: Operand::Imm(base), offset: 0 };
            let (from, to) = (fixed(u64::from(at)), fixed(copy + u64::from(at)));
            self.emit(Op::Ld { space: Space::Param, ty, order: Order::Weak, dsts: vec![Some(value)], addr: from })?;
            let srcs = vec![Operand::Reg(value)];
            self.emit(Op::St { space: Space::Local, ty, order: Order::Weak, srcs, addr: to })?;
            at += ty.bytes();
        }
        Ok(())
    }
}
