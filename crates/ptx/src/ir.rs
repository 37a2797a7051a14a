//! The typed intermediate representation of one kernel.
//!
//! A kernel is a control-flow graph of [`Block`]s over mutable, typed virtual registers (not SSA: masked SIMT
//! execution merges values by writing lanes of a register, and both engines keep block-crossing values in arrays
//! indexed by register). Calls are inlined, or branches that return by an indexed branch; all symbols are resolved (globals and constants to GPU virtual
//! addresses, shared and local variables to byte offsets), so an engine needs nothing but the kernel and the launch.
//!
//! Rules that [`crate::verify`] checks are written at the items they concern, each as a line starting `Rule:`.

#![expect(missing_docs, reason = "fields are named for the operands of the PTX instruction they belong to")]

use serde::{Deserialize, Serialize};

use crate::matrix::Product;
use crate::program::Origin;
use crate::sources::Sources;
use crate::tensor::Transfer;

/// A virtual register: an index into [`Kernel::regs`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reg(pub u32);

/// A basic block: an index into [`Kernel::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub u32);

/// What a register holds: a predicate or so many bits. Interpretation is the instruction's business.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RegTy {
    /// One bit.
    Pred,
    /// 16 bits; PTX's 8-bit registers live here too, zero-extended.
    B16,
    /// 32 bits.
    B32,
    /// 64 bits.
    B64,
    /// 128 bits.
    B128,
}

/// The type an instruction works in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F32x2,
    F64,
}

impl Ty {
    /// Width in bits (1 for predicates).
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Ty::Pred => 1,
            Ty::B8 | Ty::U8 | Ty::S8 => 8,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::BF16 => 16,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::F16x2 | Ty::BF16x2 | Ty::F32 => 32,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F32x2 | Ty::F64 => 64,
            Ty::B128 => 128,
        }
    }
    /// Width in bytes as stored in memory (predicates are not stored: 0).
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.bits() / 8
    }
    /// True for `.s*`.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }
    /// True for floating-point types, packed ones included.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Ty::F16 | Ty::F16x2 | Ty::BF16 | Ty::BF16x2 | Ty::F32 | Ty::F32x2 | Ty::F64)
    }
    /// The register class that holds a value of this type.
    #[must_use]
    pub fn reg(self) -> RegTy {
        match self.bits() {
            1 => RegTy::Pred,
            8 | 16 => RegTy::B16,
            32 => RegTy::B32,
            64 => RegTy::B64,
            _ => RegTy::B128,
        }
    }
}

/// A source operand.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// An immediate as raw bits of the instruction's type (f32 as its 32 bits), upper bits zero.
    /// Rule: bits above the type's width are zero.
    Imm(u64),
}

/// A special register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum SReg {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    /// `%envreg0` … `%envreg31`.
    Env(u8),
    DynamicSmemSize,
    TotalSmemSize,
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaId(u8),
    ClusterNCtaId(u8),
    ClusterCtaRank,
    ClusterNCtaRank,
    /// 1 if the launch has clusters of more than one CTA.
    IsExplicitCluster,
}

/// State space of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Space {
    /// A 64-bit generic address: shared and local windows, else global.
    Generic,
    /// A GPU virtual address.
    Global,
    /// A GPU virtual address; read only.
    Const,
    /// Offset into the CTA's shared memory (32-bit meaning, whatever the register width).
    Shared,
    /// Offset into the thread's local memory.
    Local,
    /// Offset into the kernel's parameter block; read only.
    Param,
}

/// Rounding. For integer results of conversions the `*i` modifiers map to the same names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Round {
    /// To nearest even.
    Rn,
    /// Towards zero.
    Rz,
    /// Towards minus infinity.
    Rm,
    /// Towards plus infinity.
    Rp,
    /// To nearest, ties away from zero (`.rna`).
    Rna,
}

/// Precision of a division, reciprocal, root or transcendental.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Precision {
    /// IEEE, with this rounding.
    Ieee(Round),
    /// `.approx`: within the ISA manual's bounds; bit-exact algorithm in [`crate::math`].
    Approx,
    /// `div.full`.
    Full,
}

/// Which part of a product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum MulPart {
    /// Low half.
    Lo,
    /// High half.
    Hi,
    /// Full product, twice as wide as the type.
    Wide,
}

/// Two-operand integer or bit operation, result of the same type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum IntOp {
    /// Wrapping; with `sat` (s32 only) clamped.
    Add,
    /// Wrapping; with `sat` (s32 only) clamped.
    Sub,
    /// Quotient; by zero: all ones (as hardware does); MIN / -1 wraps.
    Div,
    /// Remainder; by zero: all ones (as hardware does); MIN % -1 is 0.
    Rem,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Bitwise and (also predicates).
    And,
    /// Bitwise or (also predicates).
    Or,
    /// Bitwise xor (also predicates).
    Xor,
    /// Shift left; `b` is a u32, clamped to the width.
    Shl,
    /// Shift right, arithmetic for signed types; `b` is a u32, clamped to the width.
    Shr,
}

/// One-operand integer or bit operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum IntUnOp {
    /// Absolute value (MIN stays MIN).
    Abs,
    /// Two's complement negation.
    Neg,
    /// Bitwise not (also predicates).
    Not,
    /// 1 if zero, else 0.
    Cnot,
    /// Count of set bits; result u32.
    Popc,
    /// Leading zeros; result u32.
    Clz,
    /// Bit reversal.
    Brev,
    /// Position of the most significant non-sign bit, or all ones; result u32.
    Bfind,
    /// As `Bfind`, but the left shift that would bring that bit to the top; result u32.
    BfindShiftAmt,
}

/// Two-operand floating-point operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FloatOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient.
    Div(Precision),
    /// Minimum; a NaN operand yields the other operand.
    Min,
    /// Maximum; a NaN operand yields the other operand.
    Max,
    /// Minimum; NaN if an operand is NaN (`.NaN`).
    MinNan,
    /// Maximum; NaN if an operand is NaN (`.NaN`).
    MaxNan,
    /// `a`'s sign on `b`'s magnitude.
    Copysign,
}

/// One-operand floating-point operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FloatUnOp {
    Abs,
    Neg,
    Sqrt(Precision),
    Rcp(Precision),
    Rsqrt(Precision),
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
}

/// Comparison of `setp` and `set`. The `u` forms are true if an operand is NaN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// How `setp`/`set` combine the comparison with a predicate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// A predicate as read: the register, perhaps negated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PredRef {
    /// The register. Rule: of type [`RegTy::Pred`].
    pub reg: Reg,
    /// Read as its complement.
    pub negate: bool,
}

/// Memory ordering of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Order {
    Weak,
    Volatile,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
}

/// Atomic read-modify-write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
    /// Adds to an mbarrier object, and ends its phase if nothing is awaited then ([`crate::mbarrier::added`]).
    Arrive,
}

/// `shfl.sync` mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// `vote.sync` mode; `Ballot` has a b32 destination, the others a predicate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

/// `redux.sync` operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ReduxOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// `bar` / `barrier` kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BarKind {
    /// Wait until all (or `count`) threads have arrived.
    Sync,
    /// Arrive without waiting.
    Arrive,
    /// Arrive at the cluster's barrier without waiting.
    ClusterArrive,
    /// Wait until all threads of the cluster that have not ended have arrived, if the thread has arrived since it waited last.
    ClusterWait,
    /// Sync, and combine a predicate over the threads: `Popc` into a b32 register, `And`/`Or` into a predicate.
    Red(BarRed),
}

/// Combination of `bar.red`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BarRed {
    Popc,
    And,
    Or,
}

/// Functions that the driver provides to PTX.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Builtin {
    /// `vprintf(fmt: u64, args: u64) -> s32`.
    Vprintf,
    /// `__assertfail(message: u64, file: u64, line: u32, function: u64, char_size: u64)`; ends the grid.
    AssertFail,
    /// `malloc(bytes: u64) -> u64`.
    Malloc,
    /// `free(pointer: u64)`.
    Free,
    /// `cudaLaunchDeviceV2(buffer: u64, stream: u64) -> u32`: see [`crate::children`], also of the next two.
    Launch,
    /// `cudaMemcpyAsync(dst: u64, src: u64, bytes: u64, kind: u32, stream: u64) -> u32`.
    Copy,
    /// `cudaMemsetAsync(dst: u64, value: u32, bytes: u64, stream: u64) -> u32`.
    Fill,
}

/// A floating-point format of 8 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Fp8 {
    /// Exponent of 4 bits; no infinity.
    E4M3,
    /// Exponent of 5 bits.
    E5M2,
}

/// Packed byte/halfword video instructions (`vabsdiff4` and its kin), selected by lane width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum VideoOp {
    Add,
    Sub,
    Avrg,
    AbsDiff,
    Min,
    Max,
}

/// One operation. Unless said otherwise a destination register is of the operation type's class, and so are sources.
///
/// "Integer types" are u16 to u64 and s16 to s64, "bit types" b16 to b64, "float types" all that [`Ty::is_float`] names.
/// Rule: operands agree with the operation's type as said here; operations exist for the types said here only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// `dst = src`, any type.
    Mov { ty: Ty, dst: Reg, src: Operand },
    /// `dst = {srcs[0], srcs[1], …}`, lowest first; parts are `dst bits / srcs.len()` wide.
    /// Rule: parts are of 8, 16, 32 or 64 bits, in registers of the class that holds so many.
    Pack { dst: Reg, srcs: Vec<Operand> },
    /// The reverse; `None` parts are discarded. Rule: parts as in `Pack`; `src` is a register.
    Unpack { dsts: Vec<Option<Reg>>, src: Operand },
    /// Read a special register into a register of `ty`. Rule: not a float type; 16 to 64 bits.
    Special { ty: Ty, dst: Reg, sreg: SReg },

    /// Integer arithmetic and logic. Rule: `sat` only with Add/Sub in s32; And, Or, Xor on predicates and bit types, Shl
    /// on bit types, Shr on bit and integer types, the others on integer types.
    Int { op: IntOp, ty: Ty, sat: bool, dst: Reg, a: Operand, b: Operand },
    /// Integer product of integer types. Rule: with `Wide`, `dst` is twice as wide as `ty` (16 → 32, 32 → 64).
    Mul { part: MulPart, ty: Ty, dst: Reg, a: Operand, b: Operand },
    /// Integer product plus `c` (of the width of `dst`). Rule: `sat` only with `Hi` in s32.
    Mad { part: MulPart, ty: Ty, sat: bool, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// 24-bit product of the low 24 bits: bits 0..32 (`Lo`) or 16..48 (`Hi`), plus `c` if there. Rule: u32 or s32.
    Mad24 { part: MulPart, ty: Ty, sat: bool, dst: Reg, a: Operand, b: Operand, c: Option<Operand> },
    /// `a + b + carry`, or with `sub` `a + !b + carry`, which is `a - b` less the borrow that a clear carry stands for;
    /// without `cc_in` no carry, and no borrow. `cc_in`/`cc_out`: predicate registers standing for CC.CF.
    /// Rule: integer types of 32 and 64 bits; `cc_in` and `cc_out` may be the same register.
    AddCarry { sub: bool, ty: Ty, dst: Reg, a: Operand, b: Operand, cc_in: Option<Reg>, cc_out: Option<Reg> },
    /// `a * b (part) + c + carry`; `cc_in`/`cc_out` and types as in `AddCarry`. Rule: not `Wide`.
    MadCarry {
        part: MulPart,
        ty: Ty,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
        cc_in: Option<Reg>,
        cc_out: Option<Reg>,
    },
    /// `c + |a - b|` in integer types.
    Sad { ty: Ty, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// One-operand integer operation. Rule: Popc, Clz, Bfind write a b32 register; Abs and Neg are for signed types, Not
    /// for predicates and bit types, Cnot for bit types, Popc, Clz, Brev for b32 and b64, Bfind for 32 and 64 bits.
    IntUn { op: IntUnOp, ty: Ty, dst: Reg, a: Operand },
    /// Bit field extract: `len` bits of `a` at `pos` (both u32; of 32-bit types their low 8 bits), sign-extended for signed types.
    /// Rule: integer types of 32 and 64 bits.
    Bfe { ty: Ty, dst: Reg, a: Operand, pos: Operand, len: Operand },
    /// Bit field insert: `a` into `b` at `pos`, `len` bits, both as for `Bfe`. Rule: b32 or b64.
    Bfi { ty: Ty, dst: Reg, a: Operand, b: Operand, pos: Operand, len: Operand },
    /// Bit mask of width `b` at `a`; clamp or wrap.
    Bmsk { clamp: bool, dst: Reg, a: Operand, b: Operand },
    /// Sign- or zero-extend from bit `b`; clamp or wrap. Rule: u32 or s32.
    Szext { clamp: bool, ty: Ty, dst: Reg, a: Operand, b: Operand },
    /// Find the n-th set bit (`fns.b32`).
    Fns { dst: Reg, mask: Operand, base: Operand, offset: Operand },
    /// Byte permute; `mode` `None` is the default mode, else f4e, b4e, rc8, ecl, ecr, rc16 as 0..=5.
    Prmt { mode: Option<u8>, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// Funnel shift of `{b:a}` by `c`.
    Shf { left: bool, wrap: bool, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// Three-input logic by table. Optional predicate form is lowered by the front end.
    Lop3 { lut: u8, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// Four-way byte (`dp4a`) or two-way (`dp2a`, `hi` selects the upper half of b) dot product plus `c`.
    Dot { four: bool, hi: bool, a_signed: bool, b_signed: bool, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// Packed video instruction on 2 or 4 lanes: `ty` s32/u32 gives signedness of a, b and dst; `accumulate` adds the
    /// lanes to `c`, else results replace the lanes of `mask` in `c`; `sat` clamps a lane.
    Video {
        op: VideoOp,
        lanes: u8,
        a_signed: bool,
        b_signed: bool,
        d_signed: bool,
        sat: bool,
        accumulate: bool,
        mask: u8,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },

    /// Floating-point arithmetic in f16(x2), bf16(x2), f32(x2), f64. `sat` clamps to [0, 1], NaN to 0.
    /// Rule: Div and Copysign in f32 and f64 only, approximate Div in f32 only.
    Float { op: FloatOp, ty: Ty, round: Round, ftz: bool, sat: bool, dst: Reg, a: Operand, b: Operand },
    /// Fused multiply-add; `relu` clamps negative results (and NaN stays canonical NaN).
    Fma { ty: Ty, round: Round, ftz: bool, sat: bool, relu: bool, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// One-operand floating-point operation. Rule: Abs, Neg not in f32x2; Rcp, Sqrt, Rsqrt in f32 and f64; Sin, Cos, Lg2 in
    /// f32; Ex2, Tanh in f32 and the half types.
    FloatUn { op: FloatUnOp, ty: Ty, ftz: bool, dst: Reg, a: Operand },
    /// `testp`: class test in f32 or f64. 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal.
    Testp { class: u8, ty: Ty, dst: Reg, a: Operand },

    /// Compare; `dst` gets `cmp BOOL combine`, `dst2` gets `!cmp BOOL combine` (no combine: cmp and !cmp).
    /// Rule: destinations are predicates; `ty` is a bit type, an integer type or a scalar float type.
    Setp {
        cmp: Cmp,
        ty: Ty,
        ftz: bool,
        dst: Reg,
        dst2: Option<Reg>,
        a: Operand,
        b: Operand,
        combine: Option<(BoolOp, PredRef)>,
    },
    /// Compare into a register: all ones / 1.0f, or zero, of `dst_ty` (u32, s32, f32, f16…). Rule: `ty` as in `Setp`.
    Set {
        cmp: Cmp,
        dst_ty: Ty,
        ty: Ty,
        ftz: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
        combine: Option<(BoolOp, PredRef)>,
    },
    /// `dst = p ? a : b`. Rule: not a predicate.
    Selp { ty: Ty, dst: Reg, a: Operand, b: Operand, p: PredRef },
    /// `dst = c >= 0 ? a : b`. Rule: `cty` is s32 or f32.
    Slct { ty: Ty, cty: Ty, ftz: bool, dst: Reg, a: Operand, b: Operand, c: Operand },

    /// Conversion. `to_integral`: float to float of the same type rounds to an integral value (`.rni` …).
    /// Rule: `round` is meaningful for float results and float-to-int, and there between integers and floats; `sat`
    /// clamps. Narrow integer results are sign- or zero-extended to the destination register.
    /// Rule: both types are integer types, u8, s8 or scalar float types; `dst` and `a` may be registers wider than
    /// their types, of `a` the low bits count.
    Cvt {
        dst_ty: Ty,
        src_ty: Ty,
        round: Option<Round>,
        to_integral: bool,
        ftz: bool,
        sat: bool,
        relu: bool,
        dst: Reg,
        a: Operand,
    },
    /// Two floats into a packed half type: `a` to the upper, `b` to the lower half. Rule: from f32.
    CvtPack { dst_ty: Ty, src_ty: Ty, round: Round, sat: bool, relu: bool, dst: Reg, a: Operand, b: Operand },
    /// Two floats to an 8-bit format, the largest number for what is beyond it: `a` to the upper, `b` to the lower byte.
    /// Rule: `dst` is a b16; from f32, or from f16x2 and bf16x2, which are in `a` whole.
    CvtToFp8 { format: Fp8, src_ty: Ty, relu: bool, dst: Reg, a: Operand, b: Operand },
    /// Two numbers of an 8-bit format, a b16, to f16x2.
    CvtFromFp8 { format: Fp8, relu: bool, dst: Reg, a: Operand },
    /// Space address to generic address (`to_generic`), or back. Rule: space is Shared or Local; for the others both are
    /// the same, and the front end moves them.
    Cvta { space: Space, to_generic: bool, dst: Reg, a: Operand },
    /// Is the generic address in this space? Rule: `dst` is a predicate; space is Global, Shared or Local.
    Isspacep { space: Space, dst: Reg, a: Operand },

    /// Load `dsts.len()` elements of `ty`, each extended to its register (sign for signed types).
    /// Rule: 1, 2, 4 or 8 elements, 256 bits at most, no predicates; destinations may be wider than `ty`.
    /// Rule: the access is naturally aligned to `ty.bytes() * dsts.len()` at run time, else a misaligned fault.
    Ld { space: Space, ty: Ty, order: Order, dsts: Vec<Option<Reg>>, addr: Address },
    /// Store elements, truncated to `ty`. Rule: shapes as in `Ld`; space is not Const or Param.
    St { space: Space, ty: Ty, order: Order, srcs: Vec<Operand>, addr: Address },
    /// Atomic; without `dst` a reduction (`red`). `b` is the operand, for Cas the comparand with `c` the new value.
    /// F16/BF16 (packed) only with Add/Min/Max. `ftz` flushes, but only where the address turns out to be in global memory.
    /// Rule: space is Generic, Global or Shared; `ty` has 16, 32 or 64 bits; a float type only with Add, Min, Max, or f32
    /// with Exch; `c` if and only if Cas.
    Atom {
        op: AtomOp,
        space: Space,
        ty: Ty,
        order: Order,
        ftz: bool,
        dst: Option<Reg>,
        addr: Address,
        b: Operand,
        c: Option<Operand>,
    },
    /// Asynchronous copy global → shared (`cp.async`): performed at once. `src_bytes`: fewer bytes copied, rest zero.
    /// Rule: `bytes` is 4, 8 or 16.
    CpAsync { bytes: u8, dst: Address, src: Address, src_bytes: Option<Operand> },
    /// Memory barrier of any scope.
    Fence,

    /// CTA barrier. `id` and `count` as written; a missing count means all threads of the CTA. Rule: `pred` and `dst` if
    /// and only if `Red`; `Arrive` has a count. What a cluster's barrier has for an id does not count.
    Bar { kind: BarKind, id: Operand, count: Option<Operand>, pred: Option<PredRef>, dst: Option<Reg> },
    /// Warp barrier; also a memory fence among the warp's lanes.
    BarWarp { mask: Operand },
    /// Shuffle: `b` the offset or lane, `c` clamp and segment mask. `pred` gets "source lane in range".
    Shfl { mode: ShflMode, dst: Reg, pred: Option<Reg>, a: Operand, b: Operand, c: Operand, mask: Operand },
    /// Vote over the lanes of `mask`.
    Vote { mode: VoteMode, dst: Reg, p: PredRef, mask: Operand },
    /// `match.any` (mask of equal lanes) or `match.all` (mask or 0, and predicate). `ty` b32 or b64.
    /// Rule: `pred` only with `all`.
    Match { all: bool, ty: Ty, dst: Reg, pred: Option<Reg>, a: Operand, mask: Operand },
    /// Warp reduction. Rule: `ty` is b32, u32 or s32.
    Redux { op: ReduxOp, ty: Ty, dst: Reg, a: Operand, mask: Operand },
    /// Mask of the warp's lanes executing this.
    Activemask { dst: Reg },
    /// `elect.sync`: one leader among the lanes of `mask` (the lowest).
    Elect { dst: Option<Reg>, pred: Reg, mask: Operand },
    /// Product of matrices that the lanes of a warp hold, as [`crate::matrix`] says; `srcs` are the registers of A, B and C,
    /// and the metadata of a sparse one. What a lane holds that does not execute this is zero. Rule: [`Product::check`] and [`Product::registers`] hold.
    Mma { product: Product, dsts: Vec<Reg>, srcs: Vec<Operand> },
    /// `ldmatrix`: lane 8 i + j has the address of line j of matrix i, 16 bytes; `dsts[i]` is its tile, transposed with
    /// `trans` (as 8 × 8 elements of 16 bits). A line whose lane does not execute this is zero.
    /// Rule: 1, 2 or 4 matrices; space is Shared, or Generic, where the address must be in the shared window.
    LdMatrix { space: Space, trans: bool, dsts: Vec<Reg>, addr: Address },
    /// `stmatrix`: the reverse. Rule: as for `LdMatrix`.
    StMatrix { space: Space, trans: bool, srcs: Vec<Operand>, addr: Address },
    /// `movmatrix`: a transposed tile of 8 × 8 elements of 16 bits.
    MovMatrix { dst: Reg, a: Operand },

    /// An access to a texture or a surface: `srcs` are the handle, of 64 bits, and behind it what [`texture::Access`] says, 32 bits
    /// each but for the values of a store, which are read as by `St`, as results of a load are written as by `Ld`. A handle is the
    /// address of a [`texture::Descriptor`] in global memory. Rule: [`texture::Access::is_valid`].
    Image { access: texture::Access, dsts: Vec<Reg>, srcs: Vec<Operand> },

    /// A copy whose shape is known only when it runs, or to several CTAs, or that reduces: `srcs` are an address, and behind it what
    /// [`Transfer`] says: words, and addresses. All addresses are generic ones. Rule: [`Transfer::is_valid`].
    Transfer { transfer: Transfer, srcs: Vec<Operand> },

    /// A function that the driver provides. Rule: arguments and result as [`Builtin`] declares; the result may be unused.
    Call { builtin: Builtin, args: Vec<Operand>, dst: Option<Reg> },
    /// Sleep about `ns`: a scheduling hint (a good moment to let other CTAs run).
    Nanosleep { ns: Operand },
    /// `trap`: ends the grid with an error.
    Trap,
}

/// `[base + offset]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Address {
    /// The base: a 64-bit register (32-bit allowed for shared, local, param), or an immediate.
    pub base: Operand,
    /// Added to it, wrapping.
    pub offset: i64,
}

/// One instruction.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inst {
    /// Executed by the threads for which this holds.
    pub guard: Option<PredRef>,
    /// What to do.
    pub op: Op,
    /// Line in the PTX text, for errors and faults; 0 if unknown.
    pub line: u32,
}

/// How a block ends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Term {
    /// Go on there.
    Bra(BlockId),
    /// Threads with the predicate go to `then`, the others to `els`. `uniform`: PTX promised that all agree (`.uni`).
    CondBra { p: PredRef, then: BlockId, els: BlockId, uniform: bool },
    /// `brx.idx`: out of range is undefined; engines take the last target. Rule: there is a target; `index` is a u32.
    BrIdx { index: Operand, targets: Vec<BlockId> },
    /// The thread is done (`exit`, or `ret` of the kernel).
    Exit,
}

/// A basic block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// Straight-line part.
    pub insts: Vec<Inst>,
    /// End.
    pub term: Term,
}

/// One kernel parameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Param {
    /// Offset in the parameter block, bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// A kernel, ready for an engine.
///
/// Rule: block 0 is the entry and has no predecessors; every register and block index is in range; every block is
/// reachable; types agree as the operations say. Rule: `shared_align` is a power of two and at least 16; `local_bytes` is a
/// multiple of 16; parameters lie within `param_bytes`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name in PTX (mangled).
    pub name: String,
    /// Where its lines come from, if its text was linked.
    pub origins: Vec<Origin>,
    /// Where in the program's source they come from, if the text says so.
    pub sources: Sources,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Size of the parameter block, bytes.
    pub param_bytes: u32,
    /// Types of the registers.
    pub regs: Vec<RegTy>,
    /// The graph.
    pub blocks: Vec<Block>,
    /// Static shared memory, bytes; dynamic shared memory begins at the next multiple of `shared_align`.
    pub shared_bytes: u32,
    /// Alignment of dynamic shared memory (at least 16).
    pub shared_align: u32,
    /// Local memory per thread, bytes (16-byte aligned).
    pub local_bytes: u32,
    /// How much of it, at its end, is the stack of recursive functions and of `alloca`; 0 if there are none. What a launch
    /// wants it to be is [`Kernel::with_stack`]'s business.
    pub stack_bytes: u32,
    /// `.reqntid`, or else `.maxntid`.
    pub max_ntid: Option<[u32; 3]>,
    /// Is that bound exact (`.reqntid`)?
    pub exact_ntid: bool,
}

impl Kernel {
    /// The kernel with another stack, if it has one: so many bytes, as a program asks for by `cuCtxSetLimit`, and at least
    /// [`STACK_BYTES`](crate::launch::STACK_BYTES) in all.
    #[must_use]
    pub fn with_stack(&self, bytes: u32) -> Kernel {
        let stack = if self.stack_bytes == 0 { 0 } else { crate::launch::stack_bytes(bytes) };
        Kernel { local_bytes: self.local_bytes - self.stack_bytes + stack, stack_bytes: stack, ..self.clone() }
    }

    /// What a thread needs of local memory.
    #[must_use]
    pub fn local_memory(&self) -> crate::launch::LocalMemory {
        let bytes = self.local_bytes - self.stack_bytes;
        crate::launch::LocalMemory { bytes, has_stack: self.stack_bytes > 0 }
    }
}
