//! What an atomic instruction stores.

use super::{float, int};
use crate::ir::{AtomOp, FloatOp, Round, Ty};

/// The value that replaces `old`; for `Cas` `b` is the comparand and `c` the new value. `None` if there is no such atomic.
#[must_use]
pub fn atomic(op: AtomOp, ty: Ty, ftz: bool, old: u64, b: u64, c: u64) -> Option<u64> {
    let mask = int::mask(ty);
    let (old, b, c) = (old & mask, b & mask, c & mask);
    if let (true, AtomOp::Add | AtomOp::Min | AtomOp::Max) = (ty.is_float(), op) {
        let op = match op {
            AtomOp::Add => FloatOp::Add,
            AtomOp::Min => FloatOp::Min,
            _ => FloatOp::Max,
        };
        return float::binary(op, ty, Round::Rn, ftz, false, old, b);
    }
    let (x, y) = (int::value(ty, old), int::value(ty, b));
    Some(match op {
        AtomOp::Add => old.wrapping_add(b) & mask,
        AtomOp::Min => x.min(y) as u64 & mask,
        AtomOp::Max => x.max(y) as u64 & mask,
        AtomOp::And => old & b,
        AtomOp::Or => old | b,
        AtomOp::Xor => old ^ b,
        AtomOp::Exch => b,
        AtomOp::Arrive => crate::mbarrier::added(old, b),
        AtomOp::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomOp::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomOp::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    })
}
