//! Operations over the lanes of a warp: the helper finds operands and results in the frame.

use cranelift_codegen::ir::Value;
use ptx::ir::{Kernel, Op, Operand, PredRef, Reg, RegTy};

use super::Emit;
use crate::abi::Helper;
use crate::abi::joint::{Matrix, Meeting, Site, Slot};
use crate::analysis::Plan;
use crate::analysis::classes::Class;
use crate::analysis::graph::NodeId;

impl Emit<'_, '_> {
    /// Performs the joint operation of the region's head for the lanes `bits` of a warp.
    pub(super) fn joint(&mut self, op: &Op, bits: Value) {
        // Barriers are the scheduler's; a warp barrier has been met by arriving here.
        if matches!(op, Op::Bar { .. } | Op::BarWarp { .. }) {
            return;
        }
        if ptx::warp::is_matrix(op) {
            let key = self.key(self.attached.matrices.len());
            self.attached.matrices.push(self.of_line(matrix(op, self.k, self.plan)));
            let args = [self.inv.ctx, key, self.chunk.frame, bits];
            self.call(Helper::Matrix, &args, &[]);
            return;
        }
        let key = self.key(self.attached.joints.len());
        self.attached.joints.push(self.of_line(site(op, self.k, self.plan)));
        let args = [self.inv.ctx, key, self.chunk.frame, bits];
        self.call(Helper::Joint, &args, &[]);
    }
}

/// Where the operand is; 0 if it has no home.
fn slot(o: Operand, k: &Kernel, plan: &Plan) -> Slot {
    let r = match o {
        Operand::Imm(v) => return Slot::Imm(v),
        Operand::Reg(r) => r,
    };
    let Some(home) = plan.home(r) else { return Slot::Imm(0) };
    let (offset, chunk, ty) = (home.offset, plan.lanes(), k.regs[r.0 as usize]);
    match (plan.classes[r.0 as usize], ty) {
        (Class::Varying, RegTy::B64) => Slot::Lanes64(offset),
        (Class::Varying, RegTy::B128) => Slot::Imm(0),
        (Class::Varying, _) => Slot::Lanes32(offset),
        (Class::Affine { stride }, _) => Slot::Affine { offset, chunk, stride },
        (Class::Wide { stride, k, signed, .. }, _) => Slot::Wide { offset, chunk, stride, k, signed },
        (Class::Linear, _) => Slot::Linear { offset, chunk },
        (Class::Extended, _) => Slot::Extended { offset, chunk },
        (Class::Same | Class::Unknown, ty) => Slot::Same { offset, chunk, ty },
    }
}

/// An operation on matrices with its operands resolved.
fn matrix(op: &Op, k: &Kernel, plan: &Plan) -> Matrix {
    let srcs = ptx::operands::sources(op).into_iter().map(|o| slot(o, k, plan)).collect();
    let home = |r: Reg| plan.home(r).map(|h| (h.offset, k.regs[r.0 as usize]));
    Matrix::new(op.clone(), srcs, ptx::operands::writes(op).into_iter().map(home).collect())
}

/// A joint operation with its operands resolved.
pub(crate) fn site(op: &Op, k: &Kernel, plan: &Plan) -> Site {
    let slot = |o: &Operand| slot(*o, k, plan);
    let pred_slot = |p: &PredRef| slot(&Operand::Reg(p.reg));
    let home = |r: Reg| plan.home(r).map(|h| (h.offset, k.regs[r.0 as usize]));
    let mut site = Site {
        op: op.clone(),
        a: Slot::Absent,
        b: Slot::Absent,
        c: Slot::Absent,
        mask: Slot::Absent,
        negate: false,
        dst: None,
        pred: None,
    };
    if let Some(mask) = ptx::warp::mask(op) {
        site.mask = slot(&mask);
    }
    match op {
        Op::Shfl { dst, pred, a, b, c, .. } => {
            site.a = slot(a);
            site.b = slot(b);
            site.c = slot(c);
            site.dst = home(*dst);
            site.pred = pred.and_then(home);
        }
        Op::Vote { dst, p, .. } => {
            site.a = pred_slot(p);
            site.negate = p.negate;
            site.dst = home(*dst);
        }
        Op::Match { dst, pred, a, .. } => {
            site.a = slot(a);
            site.dst = home(*dst);
            site.pred = pred.and_then(home);
        }
        Op::Redux { dst, a, .. } => {
            site.a = slot(a);
            site.dst = home(*dst);
        }
        Op::Activemask { dst } => site.dst = home(*dst),
        Op::Elect { dst, pred, .. } => {
            site.dst = dst.and_then(home);
            site.pred = home(*pred);
        }
        Op::Bar { id, count, pred, dst, .. } => {
            site.a = slot(id);
            site.b = count.as_ref().map_or(Slot::Absent, slot);
            if let Some(p) = pred {
                site.c = pred_slot(p);
                site.negate = p.negate;
            }
            site.dst = dst.and_then(home);
        }
        _ => {}
    }
    site
}

/// What is known of the warp operation at the head of node `n`.
pub(crate) fn meeting(n: NodeId, k: &Kernel, plan: &Plan) -> Option<Meeting> {
    let op = &plan.nodes[n].joint(k)?.op;
    ptx::warp::mask(op)?;
    let (partners, beside) = (plan.meetings.partners[n], plan.meetings.beside[n]);
    Some(Meeting { site: site(op, k, plan), partners, beside })
}
