#![expect(unsafe_code, reason = "owns mappings of shared memory; every access is checked against the mapping's bounds")]
//! Host memory that is shared: memory files, mappings, reserved windows, and ranges that belong to somebody else.
//!
//! - [`Memfd`]: an anonymous memory file whose size is sealed, so that a mapping of it can never fault.
//! - [`Mapping`]: the whole of one mapped, with bounds-checked copies, atomics and futexes. Other processes may write it at
//!   any moment: bytes are copied out before they are looked at.
//! - [`Window`]: a reserved range of host addresses into which pages of memory files are mapped: the host image of a GPU
//!   address space.
//! - [`ForkMark`]: tells a forked child from the process that made it.
//! - [`HostRange`]: memory of the program that called us, promised valid by the C caller. Its pages can be moved into a
//!   memory file while its threads use them.
//! - [`Chain`]: a handler of faults among others.
//! - [`Spin`]: how long who waits for a word of shared memory looks at it before it sleeps.
//!
//! The only crate, besides the engines and the C edges, with unsafe code. It knows nothing of GPUs.

mod chain;
mod fork;
mod mapping;
mod memfd;
mod moving;
mod range;
mod spin;
mod window;

pub use chain::{Chain, FaultHandler};
pub use fork::ForkMark;
pub use mapping::Mapping;
pub use memfd::Memfd;
pub use range::HostRange;
pub use spin::Spin;
pub use window::{Protection, Window, WindowError};

/// Size of a host page, bytes (x86-64).
pub const PAGE: u64 = 4096;
