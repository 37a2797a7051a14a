//! Operations over the lanes of a warp: the helper finds operands and results in the frame.

use cranelift_codegen::ir::Value;
use ptx::ir::Op;

use super::Emit;
use crate::run::joint;

impl Emit<'_, '_> {
    /// Performs the joint operation of the region's head for the lanes `bits` of a warp.
    pub(super) fn joint(&mut self, op: &Op, bits: Value) {
        // Barriers are the scheduler's; a warp barrier has been met by arriving here.
        if matches!(op, Op::Bar { .. } | Op::BarWarp { .. }) {
            return;
        }
        let site = joint::Site::new(op, self.k, self.plan);
        let site = Box::new(site);
        let address = self.i64(std::ptr::from_ref::<joint::Site>(&site).addr() as i64);
        self.attached.joints.push(site);
        let args = [address, self.chunk.frame, bits];
        self.call(joint::run as *const () as usize, &args, &[]);
    }
}
