//! Operations over the lanes of a warp, with their operands resolved to places in the warp's frame.

use ptx::ir::{Op, RegTy};
use serde::{Deserialize, Serialize};

/// Where an operand's lanes are, relative to the warp's frame. What chunks of so many lanes share has 16 bytes for each
/// chunk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Slot {
    Absent,
    Imm(u64),
    Lanes32(u32),
    Lanes64(u32),
    /// The same in all lanes of a chunk.
    Same {
        offset: u32,
        chunk: u32,
        ty: RegTy,
    },
    /// 32 bits: base + stride * lane.
    Affine {
        offset: u32,
        chunk: u32,
        stride: i32,
    },
    /// 64 bits: c + k * extend(b + stride * lane); b lies before c.
    Wide {
        offset: u32,
        chunk: u32,
        stride: i32,
        k: i64,
        signed: bool,
    },
    /// 64 bits: base + step * lane; the base lies before the step.
    Linear {
        offset: u32,
        chunk: u32,
    },
    /// 64 bits: c + extend(b + step * lane); b, the step and c lie one behind the other.
    Extended {
        offset: u32,
        chunk: u32,
    },
}

/// A warp operation at the head of a region, which waits for the lanes of its mask.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Meeting {
    pub(crate) site: Site,
    /// Lanes may meet others that are at another operation.
    pub(crate) partners: bool,
    /// Such an operation is on another side of a branch: lanes may wait even if others of their chunk do not.
    pub(crate) beside: bool,
}

/// A joint operation with its operands resolved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) op: Op,
    pub(crate) a: Slot,
    pub(crate) b: Slot,
    pub(crate) c: Slot,
    pub(crate) mask: Slot,
    pub(crate) negate: bool,
    pub(crate) dst: Option<(u32, RegTy)>,
    pub(crate) pred: Option<(u32, RegTy)>,
}

/// An operation on matrices that a warp holds, with its operands resolved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Matrix {
    pub(crate) op: Op,
    /// In the order of [`ptx::operands::sources`].
    pub(crate) srcs: Vec<Slot>,
    /// In the order of [`ptx::operands::writes`].
    pub(crate) dsts: Vec<Option<(u32, RegTy)>>,
    /// Results may be written to the frame before all that a product works on has been read.
    pub(crate) straight: bool,
}

impl Matrix {
    pub(crate) fn new(op: Op, srcs: Vec<Slot>, dsts: Vec<Option<(u32, RegTy)>>) -> Matrix {
        let straight = goes_straight(&op, &srcs, &dsts);
        Matrix { op, srcs, dsts, straight }
    }
}

/// May results be written to the frame before all that a product works on has been read? If each is only written where the same
/// part of the sums has been.
pub(crate) fn goes_straight(op: &Op, srcs: &[Slot], dsts: &[Option<(u32, RegTy)>]) -> bool {
    let Op::Mma { product, .. } = op else { return false };
    let sums = srcs.len() - dsts.len().min(srcs.len());
    let free = |(at, dst): (usize, &Option<(u32, RegTy)>)| {
        let Some((to, RegTy::B32)) = *dst else { return false };
        let others = srcs.iter().enumerate().filter(|&(i, _)| i != sums + at);
        others.into_iter().all(|(_, src)| !matches!(*src, Slot::Lanes32(from) if from == to))
    };
    product.c == product.d && dsts.iter().enumerate().all(free)
}
