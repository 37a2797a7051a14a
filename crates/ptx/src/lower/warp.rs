//! Barriers and operations among the lanes of a warp.

use super::body::Body;
use super::mods::Mods;
use super::operand::Arg;
use crate::error::PtxError;
use crate::ir::{BarKind, BarRed, Op, Operand, ReduxOp, Reg, RegTy, ShflMode, Ty, VoteMode};

impl Body<'_, '_> {
    pub(super) fn bar(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if m.take("warp") {
            if !m.take("sync") {
                return Err(self.invalid("bar.warp lacks .sync"));
            }
            self.count(1..=1)?;
            let mask = self.src(0, Ty::B32)?;
            self.emit(Op::BarWarp { mask })?;
            return Ok(());
        }
        if m.take("cluster") {
            return self.bar_cluster(m);
        }
        m.take("cta");
        m.take("aligned");
        if m.take("red") {
            return self.bar_red(m);
        }
        let kind = if m.take("arrive") {
            BarKind::Arrive
        } else if m.take("sync") {
            BarKind::Sync
        } else {
            return Err(self.invalid("a barrier without .sync, .arrive or .red"));
        };
        self.count(if kind == BarKind::Arrive { 2..=2 } else { 1..=2 })?;
        let id = self.src(0, Ty::U32)?;
        let count = if self.args.len() > 1 { Some(self.src(1, Ty::U32)?) } else { None };
        self.emit(Op::Bar { kind, id, count, pred: None, dst: None })?;
        Ok(())
    }

    /// `bar.red.op.type d, a{, b}, {!}c`.
    fn bar_red(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let red = m.find(|w| match w {
            "popc" => Some(BarRed::Popc),
            "and" => Some(BarRed::And),
            "or" => Some(BarRed::Or),
            _ => None,
        });
        let red = red.ok_or_else(|| self.invalid("bar.red without an operation"))?;
        let ty = self.ty_in(m, if red == BarRed::Popc { &[Ty::U32] } else { &[Ty::Pred] })?;
        self.count(3..=4)?;
        let dst = Some(self.dst(0, ty)?);
        let id = self.src(1, Ty::U32)?;
        let count = if self.args.len() > 3 { Some(self.src(2, Ty::U32)?) } else { None };
        let pred = Some(self.pred(self.args.len() - 1)?);
        self.emit(Op::Bar { kind: BarKind::Red(red), id, count, pred, dst })?;
        Ok(())
    }

    /// The lanes taking part: operand `at` of a `.sync` form; without `.sync` those that execute the instruction.
    fn mask(&mut self, sync: bool, at: usize) -> Result<Operand, PtxError> {
        if sync {
            return self.src(at, Ty::B32);
        }
        let dst = self.new_reg(RegTy::B32)?;
        self.emit(Op::Activemask { dst })?;
        Ok(Operand::Reg(dst))
    }

    fn or_scratch(&mut self, reg: Option<Reg>, class: RegTy) -> Result<Reg, PtxError> {
        match reg {
            Some(reg) => Ok(reg),
            None => self.new_reg(class),
        }
    }

    pub(super) fn shfl(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let sync = m.take("sync");
        let mode = m.find(|w| match w {
            "up" => Some(ShflMode::Up),
            "down" => Some(ShflMode::Down),
            "bfly" => Some(ShflMode::Bfly),
            "idx" => Some(ShflMode::Idx),
            _ => None,
        });
        let mode = mode.ok_or_else(|| self.invalid("shfl without a mode"))?;
        let ty = self.ty_in(m, &[Ty::B32])?;
        let count = 4 + usize::from(sync);
        self.count(count..=count)?;
        let (dst, pred) = self.dst_pair(0, ty)?;
        let dst = self.or_scratch(dst, RegTy::B32)?;
        let (a, b, c) = (self.src(1, ty)?, self.src(2, ty)?, self.src(3, ty)?);
        let mask = self.mask(sync, 4)?;
        self.emit(Op::Shfl { mode, dst, pred, a, b, c, mask })?;
        Ok(())
    }

    pub(super) fn vote(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let sync = m.take("sync");
        let mode = m.find(|w| match w {
            "all" => Some(VoteMode::All),
            "any" => Some(VoteMode::Any),
            "uni" => Some(VoteMode::Uni),
            "ballot" => Some(VoteMode::Ballot),
            _ => None,
        });
        let mode = mode.ok_or_else(|| self.invalid("vote without a mode"))?;
        let ty = self.ty_in(m, if mode == VoteMode::Ballot { &[Ty::B32] } else { &[Ty::Pred] })?;
        let count = 2 + usize::from(sync);
        self.count(count..=count)?;
        let dst = self.dst(0, ty)?;
        let p = self.pred(1)?;
        let mask = self.mask(sync, 2)?;
        self.emit(Op::Vote { mode, dst, p, mask })?;
        Ok(())
    }

    pub(super) fn match_lanes(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let all = m.find(|w| match w {
            "all" => Some(true),
            "any" => Some(false),
            _ => None,
        });
        let all = all.ok_or_else(|| self.invalid("match without .any or .all"))?;
        if !m.take("sync") {
            return Err(self.invalid("match lacks .sync"));
        }
        let ty = self.ty_in(m, &[Ty::B32, Ty::B64])?;
        self.count(3..=3)?;
        let (dst, pred) = self.dst_pair(0, Ty::B32)?;
        if pred.is_some() && !all {
            return Err(self.invalid("match.any has no predicate"));
        }
        let dst = self.or_scratch(dst, RegTy::B32)?;
        let (a, mask) = (self.src(1, ty)?, self.src(2, Ty::B32)?);
        self.emit(Op::Match { all, ty, dst, pred, a, mask })?;
        Ok(())
    }

    pub(super) fn redux(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let op = m.find(|w| match w {
            "add" => Some(ReduxOp::Add),
            "min" => Some(ReduxOp::Min),
            "max" => Some(ReduxOp::Max),
            "and" => Some(ReduxOp::And),
            "or" => Some(ReduxOp::Or),
            "xor" => Some(ReduxOp::Xor),
            _ => None,
        });
        let op = op.ok_or_else(|| self.invalid("redux without an operation"))?;
        if !m.take("sync") {
            return Err(self.invalid("redux lacks .sync"));
        }
        let ty = m.ty().map_err(|e| self.invalid(e))?;
        let logical = matches!(op, ReduxOp::And | ReduxOp::Or | ReduxOp::Xor);
        match ty {
            Ty::B32 if logical => {}
            Ty::U32 | Ty::S32 if !logical => {}
            Ty::F32 if matches!(op, ReduxOp::Min | ReduxOp::Max) => {
                return Err(self.unsupported("redux on f32 is not supported"));
            }
            _ => return Err(self.invalid(format!("no redux {op:?} on {ty:?}"))),
        }
        self.count(3..=3)?;
        let (dst, a, mask) = (self.dst(0, ty)?, self.src(1, ty)?, self.src(2, Ty::B32)?);
        self.emit(Op::Redux { op, ty, dst, a, mask })?;
        Ok(())
    }

    pub(super) fn activemask(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        let ty = self.ty_in(m, &[Ty::B32])?;
        self.count(1..=1)?;
        let dst = self.dst(0, ty)?;
        self.emit(Op::Activemask { dst })?;
        Ok(())
    }

    pub(super) fn elect(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        if !m.take("sync") {
            return Err(self.invalid("elect lacks .sync"));
        }
        self.count(2..=2)?;
        if !matches!(self.arg(0)?, Arg::Pair(..)) {
            return Err(self.invalid("elect lacks its predicate"));
        }
        let (dst, pred) = self.dst_pair(0, Ty::B32)?;
        let pred = self.or_scratch(pred, RegTy::Pred)?;
        let mask = self.src(1, Ty::B32)?;
        self.emit(Op::Elect { dst, pred, mask })?;
        Ok(())
    }

    pub(super) fn nanosleep(&mut self, m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.ty_in(m, &[Ty::U32])?;
        self.count(1..=1)?;
        let ns = self.src(0, Ty::U32)?;
        self.emit(Op::Nanosleep { ns })?;
        Ok(())
    }

    pub(super) fn trap(&mut self, _m: &mut Mods<'_>) -> Result<(), PtxError> {
        self.count(0..=0)?;
        self.emit(Op::Trap)?;
        Ok(())
    }
}
