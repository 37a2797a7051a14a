#![expect(unsafe_code, reason = "owns mappings of shared memory; every access is checked against the mapping's bounds")]
//! Host memory that is shared: memory files, mappings, reserved windows, and ranges that belong to somebody else.
//!
//! - [`Memfd`]: an anonymous memory file whose size is sealed, so that a mapping of it can never fault.
//! - [`Mapping`]: the whole of one mapped, with bounds-checked copies, atomics and futexes. Other processes may write it at
//!   any moment: bytes are copied out before they are looked at.
//! - [`Pinned`]: pages that the kernel does not move, for a device that knows where they are.
//! - [`DeviceMapping`]: registers and memory of a device, of which every access counts.
//! - [`Window`]: a reserved range of host addresses into which pages of memory files are mapped: the host image of a GPU
//!   address space.
//! - [`ForkMark`]: tells a forked child from the process that made it.
//! - [`HostRange`]: memory to copy from and to, with the lifetime of what keeps it valid: a mapping, or what a C caller
//!   promised; [`read_if_there`], where nobody did.
//! - [`ProgramPages`]: memory of the program, what it is ([`PagesKind`]), and how its pages are moved into a memory file while
//!   its threads use them; forked children get copies.
//! - [`Chain`]: a handler of faults among others; [`is_writable`], for faults that may be over.
//! - [`Freed`]: what the allocator keeps of freed memory, for the operating system.
//! - [`strangers`]: descriptors that somebody else has sent, of which closing may take for ever.
//! - [`Spin`]: how long who waits for a word of shared memory looks at it before it sleeps; and [`prefer_short_slices`], so that who slept is
//!   not late.
//!
//! Memory files get huge pages where much is written for the first time, if the process wants them ([`want_huge_pages`]) and who writes
//! says so before ([`Window::expect_writes`], [`Mapping::pieces_to_write`]) or
//! sees it on the way ([`Window::expect_more`]).
//!
//! The only crate, besides the engines and the C edges, with unsafe code. It knows nothing of GPUs.

mod chain;
mod device;
mod fork;
mod freed;
mod growth;
mod hints;
mod huge;
mod mapping;
mod maps;
mod memfd;
mod moving;
mod pin;
mod program;
mod range;
mod shown;
mod slices;
mod spin;
pub mod strangers;
mod window;

pub use chain::{Chain, FaultHandler, is_writable};
pub use device::DeviceMapping;
pub use fork::ForkMark;
pub use freed::Freed;
pub use hints::allow_hints;
pub use huge::want_huge_pages;
pub use mapping::Mapping;
pub use maps::read_if_there;
pub use memfd::{Memfd, MemfdName};
pub use pin::Pinned;
pub use program::{PagesKind, ProgramPages};
pub use range::HostRange;
pub use slices::prefer_short_slices;
pub use spin::Spin;
pub use window::{Protection, Window, WindowError};

/// Size of a host page, bytes (x86-64).
pub const PAGE: u64 = 4096;
