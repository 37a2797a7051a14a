//! PTX: text to a verified, typed IR, and the reference interpreter over it.
//!
//! - [`Program`]: a module. [`Program::parse`] reads declarations and finds the bodies of functions, at the speed of
//!   memory nearly; [`Program::lower`] compiles one kernel's body, when it is first launched.
//!   [`JitOptions`] travel in the module's text.
//! - [`link`]: several modules made one.
//! - [`ir`]: the IR of one kernel; both engines run it. [`verify`]: its rules, checked after every compilation.
//! - [`operands`]: what its operations read and write.
//! - [`launch`]: what an engine gets with a kernel, and what comes back.
//! - [`math`]: what the arithmetic instructions compute, on raw bits. [`matrix`]: matrices in the registers of a warp.
//! - [`image`]: textures and surfaces, whose arithmetic is the crate `texture`.
//! - [`cluster`]: where the CTAs of a cluster meet.
//! - [`check`]: what somebody who checks kernels is told.
//! - [`interp`]: the reference interpreter. [`builtins`]: what the driver provides to kernels (printf, malloc, …).
//!
//! ```
//! let text = br#"
//! .version 8.5
//! .target sm_75
//! .address_size 64
//! .global .align 4 .b8 answer[4] = {42};
//! .visible .entry k(.param .u64 out)
//! {
//!     .reg .b32 %r<2>;
//!     .reg .b64 %rd<2>;
//!     ld.param.u64 %rd1, [out];
//!     ld.global.u32 %r1, [answer];
//!     st.global.u32 [%rd1], %r1;
//!     ret;
//! }
//! "#;
//! let program = ptx::Program::parse(text)?;
//! assert_eq!(program.entries()[0].name, "k");
//! assert_eq!(program.variables()[0].size, 4);
//! let kernel = program.lower(0, &|symbol| (symbol == "answer").then_some(0x7000_0000))?;
//! assert_eq!(kernel.param_bytes, 8);
//! # Ok::<(), ptx::PtxError>(())
//! ```
//!
//! Source: PTX ISA 9.x manual. This crate does no I/O and has no unsafe code; text comes from tenants, so nothing it says
//! may panic.

pub mod builtins;
pub mod check;
pub mod children;
pub mod cluster;
mod constant;
mod cooperative;
mod decl;
mod error;
pub mod image;
mod index;
pub mod interp;
pub mod ir;
mod ir_text;
pub mod launch;
mod lexer;
pub mod link;
mod lower;
pub mod math;
pub mod matrix;
pub mod mbarrier;
pub mod operands;
mod options;
mod program;
mod sources;
pub mod tensor;
pub mod verify;
pub mod warp;

pub use decl::{Linkage, Opaque};
pub use error::{PtxError, PtxErrorKind};
pub use options::JitOptions;
pub use program::{Entry, Origin, Program, Relocation, Resources, VarSpace, Variable, before_nul};
pub use sources::{SourceLine, Sources};
