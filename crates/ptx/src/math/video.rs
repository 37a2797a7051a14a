//! Packed video instructions: two halfword or four byte lanes.

use super::int;
use crate::ir::{Ty, VideoOp};

/// The modifiers; fields as in [`crate::ir::Op::Video`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named for the modifiers of the instruction")]
pub struct Video {
    pub op: VideoOp,
    pub lanes: u8,
    pub a_signed: bool,
    pub b_signed: bool,
    pub d_signed: bool,
    pub sat: bool,
    pub accumulate: bool,
    pub mask: u8,
}

/// The result for raw `a`, `b` and `c`.
#[must_use]
pub fn video(v: Video, a: u32, b: u32, c: u32) -> u32 {
    let bits = if v.lanes == 2 { 16 } else { 8 };
    let ty = |signed| match (bits, signed) {
        (16, true) => Ty::S16,
        (16, false) => Ty::U16,
        (_, true) => Ty::S8,
        (_, false) => Ty::U8,
    };
    let mut result = c;
    for lane in 0..32 / bits {
        if v.mask >> lane & 1 == 0 {
            continue;
        }
        let shift = lane * bits;
        let x = int::value(ty(v.a_signed), u64::from(a >> shift));
        let y = int::value(ty(v.b_signed), u64::from(b >> shift));
        let r = match v.op {
            VideoOp::Add => x + y,
            VideoOp::Sub => x - y,
            // Halves round away from zero.
            VideoOp::Avrg => (x + y + i128::from(x + y >= 0)) >> 1,
            VideoOp::AbsDiff => (x - y).abs(),
            VideoOp::Min => x.min(y),
            VideoOp::Max => x.max(y),
        };
        let r = if v.sat { int::clamp(ty(v.d_signed), r) } else { r };
        if v.accumulate {
            result = result.wrapping_add(r as u32);
        } else {
            let field = (u32::MAX >> (32 - bits)) << shift;
            result = (result & !field) | (((r as u32) << shift) & field);
        }
    }
    result
}
