//! Operations of several lanes of a warp: which lanes they join.
//!
//! An operation with a mask is one for all lanes of the mask, even where these execute different instructions, if the
//! instructions agree in all but their registers: compilers make such code of a loop with a trip count per lane, by unrolling
//! it. A lane waits until all lanes of its mask that have not exited
//!
//! - are at its own instruction, whatever their masks; or else
//! - are at instructions that agree with its own, with the same mask.

use crate::ir::{Op, Operand, ShflMode};

/// The lanes that take part in the operation, if it says so.
#[must_use]
pub fn mask(op: &Op) -> Option<Operand> {
    match op {
        Op::BarWarp { mask }
        | Op::Shfl { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => Some(*mask),
        op if is_matrix(op) => Some(Operand::Imm(u32::MAX.into())),
        _ => None,
    }
}

/// Does it work on matrices that all lanes hold together? All execute one such instruction, then; none agrees with another.
#[must_use]
pub fn is_matrix(op: &Op) -> bool {
    matches!(op, Op::Mma { .. } | Op::LdMatrix { .. } | Op::StMatrix { .. } | Op::MovMatrix { .. })
}

/// Are these, at different places, one operation to lanes of the same mask?
#[must_use]
pub fn agree(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::BarWarp { .. }, Op::BarWarp { .. }) | (Op::Elect { .. }, Op::Elect { .. }) => true,
        (Op::Shfl { mode: a, .. }, Op::Shfl { mode: b, .. }) => a == b,
        (Op::Vote { mode: a, .. }, Op::Vote { mode: b, .. }) => a == b,
        (Op::Match { all: a, ty: t, .. }, Op::Match { all: b, ty: u, .. }) => (a, t) == (b, u),
        (Op::Redux { op: a, ty: t, .. }, Op::Redux { op: b, ty: u, .. }) => (a, t) == (b, u),
        _ => false,
    }
}

/// The lane that `lane` reads from in a shuffle, and whether it lies in the segment (else it is `lane` itself).
#[must_use]
pub fn shuffle_source(mode: ShflMode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let highest = (lane & segment) | (clamp & !segment);
    let lowest = lane & segment;
    let (source, inside) = match mode {
        // The comparison is of signed numbers: a source below lane 0 is outside.
        ShflMode::Up => (lane.wrapping_sub(b), lane.cast_signed() - b.cast_signed() >= highest.cast_signed()),
        ShflMode::Down => (lane + b, lane + b <= highest),
        ShflMode::Bfly => (lane ^ b, (lane ^ b) <= highest),
        ShflMode::Idx => {
            let source = lowest | (b & !segment);
            (source, source <= highest)
        }
    };
    if inside { (source & 31, true) } else { (lane, false) }
}
