//! Clusters: their barrier, and shared memory of other CTAs.
//!
//! A generic address below [`CLUSTER_WINDOW_BYTES`] from [`SHARED_WINDOW`] on is one of shared memory: of the CTA's own in the first
//! window, of CTA `rank` of its cluster in window `1 + rank`. An address of `.shared::cluster` is what is above `SHARED_WINDOW`, so
//! that one of `.shared::cta` is also one of these. Only `mapa` makes others: in a module without it, all are the CTA's own.

use super::body::Body;
use super::mods::Mods;
use super::operand::Arg;
use crate::error::PtxError;
use crate::ir::{Address, BarKind, Cmp, IntOp, Op, Operand, PredRef, Reg, RegTy, SReg, Space, Ty};
use crate::launch::{CLUSTER_WINDOW_BYTES, SHARED_WINDOW, SHARED_WINDOW_BYTES};

/// Bits of an address inside a window.
const INSIDE: u64 = SHARED_WINDOW_BYTES - 1;
const SHIFT: u64 = SHARED_WINDOW_BYTES.trailing_zeros() as u64;

impl Body<'_, '_> {
    /// `barrier.cluster.arrive` and `.wait`.
    pub(super) fn bar_cluster(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        m.take("aligned");
        m.order();
        self.count(0..=0)?;
        let kind = if m.take("arrive") {
            self.emit(Op::Fence)?;
            BarKind::ClusterArrive
        } else if m.take("wait") {
            BarKind::ClusterWait
        } else {
            return Err(self.invalid("a cluster barrier without .arrive or .wait"));
        };
        self.emit(Op::Bar { kind, id: Operand::Imm(0), count: None, pred: None, dst: None })?;
        Ok(())
    }

    /// The space and the address of an access that is written as one of `space`: generic if it may be another CTA's shared memory.
    pub(super) fn of_cluster(
        &mut self,
        m: &Mods<'_>,
        space: Space,
        address: Address,
    ) -> Result<(Space, Address), PtxError> {
        if !(m.names_cluster() && space == Space::Shared && self.inst.maps_clusters) {
            return Ok((space, address));
        }
        let wide = match address.base {
            Operand::Reg(reg) if self.inst.graph.ty(reg) == RegTy::B32 => {
                self.converted(address.base, Ty::U32, Ty::U64)?
            }
            base => base,
        };
        let base = self.int(IntOp::Add, Ty::U64, wide, Operand::Imm(SHARED_WINDOW))?;
        Ok((Space::Generic, Address { base, offset: address.offset }))
    }

    /// `isspacep.shared::cluster`: is the generic address in any of the windows?
    pub(super) fn is_of_cluster(&mut self, dst: Reg, a: Operand) -> Result<(), PtxError> {
        let offset = self.int(IntOp::Sub, Ty::U64, a, Operand::Imm(SHARED_WINDOW))?;
        let (cmp, combine, dst2) = (Cmp::Lt, None, None);
        let b = Operand::Imm(CLUSTER_WINDOW_BYTES);
        self.emit(Op::Setp { cmp, ty: Ty::U64, ftz: false, dst, dst2, a: offset, b, combine })?;
        Ok(())
    }

    /// `mapa{.shared::cluster}.type d, a, b`: the place of `a` in the shared memory of CTA `b`.
    pub(super) fn mapa(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let generic = self.cluster_space(m)?;
        let ty = self.ty_in(m, &[Ty::U32, Ty::U64])?;
        self.count(3..=3)?;
        if generic && ty == Ty::U32 {
            return Err(self.unsupported("32-bit generic addresses are not supported"));
        }
        let dst = self.dst(0, ty)?;
        let (a, rank) = (self.mapped(1, ty)?, self.src(2, Ty::U32)?);
        let window = self.int(IntOp::Add, Ty::U32, rank, Operand::Imm(1))?;
        let mut base = self.int(IntOp::Shl, Ty::B32, window, Operand::Imm(SHIFT))?;
        if ty == Ty::U64 {
            base = self.converted(base, Ty::U32, Ty::U64)?;
        }
        if generic {
            base = self.int(IntOp::Add, Ty::U64, base, Operand::Imm(SHARED_WINDOW))?;
        }
        let bits = if ty == Ty::U64 { Ty::B64 } else { Ty::B32 };
        let inside = self.int(IntOp::And, bits, a, Operand::Imm(INSIDE))?;
        self.emit(Op::Int { op: IntOp::Or, ty: bits, sat: false, dst, a: base, b: inside })?;
        Ok(())
    }

    /// `getctarank{.shared::cluster}.type d, a`: whose shared memory it is.
    pub(super) fn getctarank(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let generic = self.cluster_space(m)?;
        let ty = self.ty_in(m, &[Ty::U32, Ty::U64])?;
        self.count(2..=2)?;
        if generic && ty == Ty::U32 {
            return Err(self.unsupported("32-bit generic addresses are not supported"));
        }
        let (dst, a) = (self.dst(0, Ty::U32)?, self.mapped(1, ty)?);
        // What a generic address has above its lower half says only that it is one.
        let mut low = a;
        if ty == Ty::U64 {
            low = self.converted(a, Ty::U64, Ty::U32)?;
        }
        let window = self.int(IntOp::Shr, Ty::U32, low, Operand::Imm(SHIFT))?;
        let own = self.new_reg(RegTy::B32)?;
        self.emit(Op::Special { ty: Ty::U32, dst: own, sreg: SReg::ClusterCtaRank })?;
        let other = self.int(IntOp::Sub, Ty::U32, window, Operand::Imm(1))?;
        let is_own = self.new_reg(RegTy::Pred)?;
        let (cmp, combine, dst2) = (Cmp::Eq, None, None);
        let b = Operand::Imm(0);
        self.emit(Op::Setp { cmp, ty: Ty::U32, ftz: false, dst: is_own, dst2, a: window, b, combine })?;
        let p = PredRef { reg: is_own, negate: false };
        self.emit(Op::Selp { ty: Ty::B32, dst, a: Operand::Reg(own), b: other, p })?;
        Ok(())
    }

    /// `%is_explicit_cluster`, a predicate.
    pub(super) fn read_explicit_cluster(&mut self, dst: Reg) -> Result<(), PtxError> {
        let word = self.new_reg(RegTy::B32)?;
        self.emit(Op::Special { ty: Ty::U32, dst: word, sreg: SReg::IsExplicitCluster })?;
        let (cmp, combine, dst2) = (Cmp::Ne, None, None);
        let (a, b) = (Operand::Reg(word), Operand::Imm(0));
        self.emit(Op::Setp { cmp, ty: Ty::U32, ftz: false, dst, dst2, a, b, combine })?;
        Ok(())
    }

    /// True for generic addresses.
    fn cluster_space(&self, m: &mut Mods<'_>) -> Result<bool, PtxError> {
        match m.space() {
            None => Ok(true),
            Some(Space::Shared) if m.names_cluster() => Ok(false),
            Some(_) => Err(self.invalid("addresses are mapped from .shared::cluster, or generic ones")),
        }
    }

    /// Operand `at`: a register, a shared variable, or either with something added to it.
    fn mapped(&mut self, at: usize, ty: Ty) -> Result<Operand, PtxError> {
        match self.arg(at)? {
            Arg::Address(..) => Err(self.invalid("an address without brackets was expected")),
            _ => self.src(at, ty),
        }
    }
}
