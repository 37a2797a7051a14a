//! What compiled code and the code that runs it agree on: the layout of a CTA's state, the places that instructions leave
//! to helpers, the helpers' names. Emission and running both build on it, and it on neither.

pub(crate) mod context;
pub(crate) mod image;
pub(crate) mod joint;
pub(crate) mod place;

use ptx::ir::{Op, RegTy, Space, Ty};
use serde::{Deserialize, Serialize};

/// Bytes of a lane of a register in memory; predicates and 16-bit registers take 32 bits, as in vectors.
pub(crate) fn lane_bytes(ty: RegTy) -> u32 {
    match ty {
        RegTy::Pred | RegTy::B16 | RegTy::B32 => 4,
        RegTy::B64 => 8,
        RegTy::B128 => 16,
    }
}

/// A function of the engine that machine code calls. Code that is not yet installed knows no addresses: it names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Helper {
    /// A computing operation, lane by lane.
    Eval,
    /// The host address of an access that all lanes share.
    Resolve,
    /// A load, lane by lane.
    Load,
    /// A store, lane by lane.
    Store,
    /// Consecutive elements to the context.
    Collect,
    /// Consecutive elements from the context.
    Scatter,
    /// An atomic.
    Atomic,
    /// `cp.async`.
    CopyAsync,
    /// Builtins, sleep, trap.
    Service,
    /// An operation over the lanes of a warp.
    Joint,
    /// An operation on matrices that a warp holds.
    Matrix,
    /// Accesses to textures and surfaces.
    Image,
    /// Bulk copies.
    Transfer,
    /// Gives the thread back.
    Preempt,
    /// A cycle counter.
    Clock,
    /// The wall clock.
    GlobalTimer,
}

impl Helper {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Helper; 16] = [
        Helper::Eval,
        Helper::Resolve,
        Helper::Load,
        Helper::Store,
        Helper::Collect,
        Helper::Scatter,
        Helper::Atomic,
        Helper::CopyAsync,
        Helper::Service,
        Helper::Joint,
        Helper::Matrix,
        Helper::Image,
        Helper::Transfer,
        Helper::Preempt,
        Helper::Clock,
        Helper::GlobalTimer,
    ];
}

/// Most elements of an access.
pub(crate) const MAX_ELEMENTS: u32 = 8;

/// A memory access in the program, as its slow path must know it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) space: Space,
    pub(crate) ty: Ty,
    /// Elements per thread, at most [`MAX_ELEMENTS`].
    pub(crate) count: u32,
}

/// What [`Helper::Resolve`] is asked for beside an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resolve {
    pub(crate) write: bool,
    /// All lanes of the chunk access it.
    pub(crate) all: bool,
}

impl Resolve {
    pub(crate) fn bits(self) -> i64 {
        i64::from(self.write) | i64::from(self.all) << 1
    }

    pub(crate) fn from_bits(bits: u64) -> Resolve {
        Resolve { write: bits & 1 != 0, all: bits & 2 != 0 }
    }
}

/// An access whose addresses are `c + k * extend(b + stride * lane)`, the sum inside wrapping at 32 bits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) site: Site,
    pub(crate) stride: i32,
    pub(crate) k: i64,
    /// The index is extended as a signed number.
    pub(crate) signed: bool,
}

/// What machine code hands to a helper, and the line of PTX that it does so for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OfLine<T> {
    pub(crate) line: u32,
    pub(crate) what: T,
}

/// What the machine code of one region hands to helpers, by its place in these lists.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Attached {
    pub(crate) sites: Vec<OfLine<Site>>,
    pub(crate) runs: Vec<OfLine<Run>>,
    pub(crate) ops: Vec<OfLine<Op>>,
    pub(crate) joints: Vec<OfLine<joint::Site>>,
    pub(crate) matrices: Vec<OfLine<joint::Matrix>>,
    pub(crate) images: Vec<OfLine<image::Site>>,
}

/// Something attached: the region and the place in its list, in one number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(pub(crate) u32);

/// Most regions of a kernel, and most things in one list of a region.
pub(crate) const MAX_ATTACHED: usize = 1 << 16;

impl Key {
    /// The key of what comes next in a list; none if it is full.
    pub(crate) fn next(region: usize, list: usize) -> Option<Key> {
        (region < MAX_ATTACHED && list < MAX_ATTACHED).then_some(Key((region as u32) << 16 | list as u32))
    }

    pub(crate) fn region(self) -> usize {
        (self.0 >> 16) as usize
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}
