//! Bulk copies of tensors, to several CTAs, and those that reduce; stores that tell an mbarrier object.

use super::body::Body;
use super::mods::Mods;
use super::opcodes::atom_op;
use super::operand::{Arg, Place};
use crate::error::PtxError;
use crate::ir::{Address, AtomOp, IntOp, Op, Operand, Order, RegTy, Space, Ty};
use crate::launch::SHARED_WINDOW;
use crate::mbarrier::BYTES;
use crate::tensor::{Mode, Transfer};

/// The dimensions of a tensor, as a modifier.
fn rank(word: &str) -> Option<u8> {
    match word {
        "1d" => Some(1),
        "2d" => Some(2),
        "3d" => Some(3),
        "4d" => Some(4),
        "5d" => Some(5),
        _ => None,
    }
}

impl<'a> Body<'a, '_> {
    /// `cp{.reduce}.async.bulk.tensor` and `cp.async.bulk.prefetch.tensor`.
    pub(super) fn copy_tensor(&mut self, m: &mut Mods<'_>, reduce: bool) -> Result<(), PtxError> {
        for (word, what) in [
            ("tile::scatter4", ".tile::scatter4"),
            ("im2col::w", ".im2col::w"),
            ("im2col::w::128", ".im2col::w::128"),
            ("cta_group::1", ".cta_group::1"),
            ("cta_group::2", ".cta_group::2"),
        ] {
            if m.take(word) {
                return Err(self.unsupported(format!("tensor copies with {what} are not supported")));
            }
        }
        if m.take("prefetch") {
            // Nothing is fetched ahead; what is fetched then is checked then.
            m.drop_all(|_| true);
            return Ok(());
        }
        let op = self.reduction(m, reduce)?;
        let rank = m.find(rank).ok_or_else(|| self.invalid("a tensor copy without its dimensions"))?;
        let policy = usize::from(m.cache());
        let multicast = m.take("multicast::cluster");
        let tracked = m.take("mbarrier::complete_tx::bytes");
        let gathers = m.take("tile::gather4");
        let images = m.take("im2col") | m.take("im2col_no_offs");
        m.take("tile");
        let mode = match (gathers, images) {
            (true, _) => Mode::Gather4,
            (_, true) => Mode::Im2col,
            _ => Mode::Tile,
        };
        let spaces = (m.space(), m.space());
        let cluster = m.names_cluster();
        if gathers && cluster {
            return Err(self.unsupported("tensor copies with .tile::gather4 to .shared::cluster are not supported"));
        }
        let (transfer, tensor, to) = match spaces {
            (Some(Space::Shared), Some(Space::Global)) if tracked && op.is_none() && (cluster || !multicast) => {
                (Transfer::Load { mode, rank, multicast }, 1, 0)
            }
            (Some(Space::Global), Some(Space::Shared)) if m.take("bulk_group") && !tracked && !multicast => match op {
                None => (Transfer::Store { mode, rank }, 0, 1),
                Some(op) => (Transfer::Reduce { op, mode, rank }, 0, 1),
            },
            _ => return Err(self.invalid("no tensor copy between these state spaces")),
        };
        if !transfer.is_valid() {
            return Err(self.invalid("no tensor copy of this mode and so many dimensions"));
        }
        let offsets = matches!(transfer, Transfer::Load { mode: Mode::Im2col, .. });
        let count = 2 + usize::from(tracked) + usize::from(offsets) + usize::from(multicast) + policy;
        self.count(count..=count)?;
        let mut srcs = self.tensor_place(tensor, if gathers { 5 } else { rank.into() })?;
        if offsets {
            let elements = self.elements(3)?;
            if elements.len() != usize::from(rank) - 2 {
                return Err(self.invalid("the im2col offsets do not have the tensor's dimensions"));
            }
            for element in elements {
                let offset = self.source(element, Ty::U16)?;
                srcs.push(self.widened16(offset)?);
            }
        }
        if multicast {
            let mask = self.src(count - 1 - policy, Ty::U16)?;
            srcs.push(self.widened16(mask)?);
        }
        let place = self.address(to)?;
        srcs.push(self.shared_pointer(&place)?);
        if tracked {
            let object = self.address(2)?;
            srcs.push(self.shared_pointer(&object)?);
        }
        self.emit(Op::Transfer { transfer, srcs })?;
        Ok(())
    }

    /// `cp.async.bulk….multicast::cluster [to], [from], size, [object], mask`
    pub(super) fn copy_multicast(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let policy = usize::from(m.cache());
        let tracked = m.take("mbarrier::complete_tx::bytes");
        if (m.space(), m.space()) != (Some(Space::Shared), Some(Space::Global)) || !tracked || !m.names_cluster() {
            return Err(self.invalid("no multicast between these state spaces"));
        }
        self.count(5 + policy..=5 + policy)?;
        let (to, from, object) = (self.address(0)?, self.address(1)?, self.address(3)?);
        self.access_space(Some(Space::Global), &from)?;
        let mask = self.src(4, Ty::U16)?;
        let srcs = vec![
            self.pointer(&from)?,
            self.src(2, Ty::U32)?,
            self.widened16(mask)?,
            self.shared_pointer(&to)?,
            self.shared_pointer(&object)?,
        ];
        self.emit(Op::Transfer { transfer: Transfer::Multicast, srcs })?;
        Ok(())
    }

    /// `cp.reduce.async.bulk`
    pub(super) fn copy_reduce(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let op = self.reduction(m, true)?.ok_or_else(|| self.invalid("a reducing copy without an operation"))?;
        let policy = usize::from(m.cache());
        let tracked = m.take("mbarrier::complete_tx::bytes");
        let spaces = (m.space(), m.space());
        let to_cluster = spaces == (Some(Space::Shared), Some(Space::Shared)) && m.names_cluster() && tracked;
        let to_global = spaces == (Some(Space::Global), Some(Space::Shared)) && m.take("bulk_group") && !tracked;
        if !to_cluster && !to_global {
            return Err(self.invalid("no reducing copy between these state spaces"));
        }
        m.take("noftz");
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        let transfer = Transfer::Combine { op, ty, tracked };
        let narrow = matches!(ty, Ty::U32 | Ty::S32 | Ty::B32 | Ty::U64);
        if !transfer.is_valid() || tracked && (!narrow || ty == Ty::U64 && op != AtomOp::Add) {
            return Err(self.invalid(format!("no reducing copy {op:?} of {ty:?}")));
        }
        let count = 3 + usize::from(tracked) + policy;
        self.count(count..=count)?;
        let (to, from) = (self.address(0)?, self.address(1)?);
        self.access_space(Some(Space::Shared), &from)?;
        let to = if to_global { self.pointer(&to)? } else { self.shared_pointer(&to)? };
        let mut srcs = vec![to, self.src(2, Ty::U32)?, self.shared_pointer(&from)?];
        if tracked {
            let object = self.address(3)?;
            srcs.push(self.shared_pointer(&object)?);
        }
        self.emit(Op::Transfer { transfer, srcs })?;
        Ok(())
    }

    /// `tensormap.cp_fenceproxy [to], [from], 128`: a map that was changed in shared memory is copied to where it is used.
    pub(super) fn tensormap(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if !m.take("cp_fenceproxy") {
            return Err(self.unsupported("tensormap.replace is not supported"));
        }
        let spaces = (m.space(), m.space());
        m.drop_all(|w| matches!(w, "tensormap::generic" | "release" | "sync" | "aligned"));
        m.scope();
        self.count(3..=3)?;
        if spaces != (Some(Space::Global), Some(Space::Shared)) || self.arg(2)? != Arg::Int(128) {
            return Err(self.invalid("tensor maps are copied from .shared::cta to .global, 128 bytes of them"));
        }
        let (to, from) = (self.address(0)?, self.address(1)?);
        self.access_space(Some(Space::Global), &to)?;
        self.access_space(Some(Space::Shared), &from)?;
        for at in (0..128).step_by(16) {
            let regs = [self.new_reg(RegTy::B64)?, self.new_reg(RegTy::B64)?];
            let (dsts, srcs) = (regs.map(Some).to_vec(), regs.map(Operand::Reg).to_vec());
            let moved = |address: Address| Address { base: address.base, offset: address.offset.wrapping_add(at) };
            let (ty, order) = (Ty::B64, Order::Weak);
            self.emit(Op::Ld { space: Space::Shared, ty, order, dsts, addr: moved(from.address) })?;
            self.emit(Op::St { space: Space::Global, ty, order, srcs, addr: moved(to.address) })?;
        }
        self.emit(Op::Fence)?;
        Ok(())
    }

    /// `st.async` and `red.async`: what they do, and an mbarrier object told of it.
    pub(super) fn store_async(&mut self, m: &mut Mods<'_>, red: bool) -> Result<(), PtxError> {
        let op = self.reduction(m, red)?;
        let order = m.order();
        let tracked = m.take("mbarrier::complete_tx::bytes");
        let space = m.space();
        if !tracked || space.is_some_and(|space| space != Space::Shared || !m.names_cluster()) {
            return Err(self.unsupported("asynchronous stores of this kind are not supported"));
        }
        if order.is_some_and(|order| !matches!(order, Order::Weak | Order::Relaxed)) {
            return Err(self.invalid("no asynchronous store has this memory order"));
        }
        let lanes = m.vector();
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        self.count(3..=3)?;
        let known = match op {
            None => {
                let bits = matches!(ty, Ty::B32 | Ty::B64 | Ty::U32 | Ty::U64 | Ty::S32 | Ty::S64 | Ty::F32 | Ty::F64);
                bits && matches!(lanes, 1 | 2 | 4)
            }
            Some(AtomOp::Add) => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64) && lanes == 1,
            Some(AtomOp::Min | AtomOp::Max) => matches!(ty, Ty::U32 | Ty::S32) && lanes == 1,
            Some(AtomOp::And | AtomOp::Or | AtomOp::Xor) => ty == Ty::B32 && lanes == 1,
            Some(_) => ty == Ty::U32 && lanes == 1,
        };
        if !known {
            return Err(self.invalid("no asynchronous store of this type and length"));
        }
        let to = self.address(0)?;
        let to = self.access_space(Some(Space::Shared), &to).map(|_| to)?;
        let (space, addr) = self.of_cluster(m, Space::Shared, to.address)?;
        let mut srcs = Vec::with_capacity(lanes);
        for arg in self.elements(1)? {
            srcs.push(self.wide_source(arg, ty)?);
        }
        if srcs.len() != lanes {
            return Err(self.invalid("the vector does not have the instruction's length"));
        }
        match op {
            None => self.emit(Op::St { space, ty, order: Order::Weak, srcs, addr })?,
            Some(op) => {
                let (order, b) = (Order::Relaxed, srcs[0]);
                self.emit(Op::Atom { op, space, ty, order, ftz: false, dst: None, addr, b, c: None })?
            }
        };
        let (space, object) = self.object(m, 2, Some(Space::Shared))?;
        let bytes = u64::from(ty.bytes()) * lanes as u64;
        self.update(space, object, Operand::Imm((bytes << BYTES).wrapping_neg()))?;
        Ok(())
    }

    /// The operation of a reduction, if it is one.
    fn reduction(&self, m: &mut Mods<'_>, reduce: bool) -> Result<Option<AtomOp>, PtxError> {
        if !reduce {
            return Ok(None);
        }
        let op = m.find(atom_op).filter(|op| !matches!(op, AtomOp::Exch | AtomOp::Cas));
        op.map(Some).ok_or_else(|| self.invalid("a reduction without an operation"))
    }

    /// Operand `at`, `[map, {…}]`: the generic address of the map, and so many coordinates.
    fn tensor_place(&mut self, at: usize, coordinates: usize) -> Result<Vec<Operand>, PtxError> {
        let Arg::Coordinates(base, offset, from, len) = self.arg(at)? else {
            return Err(self.invalid("a tensor map and coordinates in brackets were expected"));
        };
        if len != coordinates {
            return Err(self.invalid("the coordinates do not have the tensor's dimensions"));
        }
        let place = self.based(base, offset)?;
        if self.access_space(None, &place)? == Space::Param {
            return Err(self.unsupported("a tensor map that is named as a parameter, not by a generic address"));
        }
        let mut srcs = vec![self.pointer(&place)?];
        for i in from..from + len {
            srcs.push(self.source(self.pool[i], Ty::S32)?);
        }
        Ok(srcs)
    }

    /// The generic address of shared memory.
    fn shared_pointer(&mut self, place: &Place) -> Result<Operand, PtxError> {
        self.access_space(Some(Space::Shared), place)?;
        let offset = self.pointer(place)?;
        let dst = self.new_reg(RegTy::B64)?;
        let (a, b) = (offset, Operand::Imm(SHARED_WINDOW));
        self.emit(Op::Int { op: IntOp::Add, ty: Ty::U64, sat: false, dst, a, b })?;
        Ok(Operand::Reg(dst))
    }

    /// 16 bits in 32.
    fn widened16(&mut self, a: Operand) -> Result<Operand, PtxError> {
        if let Operand::Imm(_) = a {
            return Ok(a);
        }
        self.converted(a, Ty::U16, Ty::U32)
    }
}
