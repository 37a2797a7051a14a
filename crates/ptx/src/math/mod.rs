//! The arithmetic of PTX as pure functions on raw bits, independent of the host's floating-point environment.
//!
//! - [`lanes`], [`approx`]: the approximate operations, written once over a trait that both engines implement.
//! - [`eval()`]: any computing instruction, by its IR; what the interpreter runs, and a code generator may call for the rare.
//! - [`int`], [`float`], [`convert`], [`fp8`], [`video`], [`matrix`]: the families. [`soft`]: IEEE arithmetic in integers.
//!
//! Every NaN result is canonical ([`NAN_F32`] and its kin): an engine may defer making it so until the bits are observed
//! by anything but another floating-point operation. `copysign`, selection and moves count as observers: they pass bits on.
//!
//! Flushing (`.ftz`) acts on operands and on the rounded result. Hardware flushing of x86 decides before the result is
//! rounded to a subnormal's places: it differs for the few results just below the least normal number that round up to it.

pub mod approx;
mod atomic;
pub mod convert;
mod eval;
pub mod float;
pub mod fp8;
pub mod int;
pub mod lanes;
pub mod matrix;
pub mod soft;
pub mod video;

pub use atomic::atomic;
pub use eval::{Shape, Source, eval, shape};

/// The NaN that f32 operations give.
pub const NAN_F32: u32 = 0x7fff_ffff;
/// The NaN that f64 operations give, but for those on upper words ([`approx::rcp_f64`]).
pub const NAN_F64: u64 = 0xfff8_0000_0000_0000;
/// The NaN that f16 and bf16 operations give.
pub const NAN_F16: u16 = 0x7fff;
