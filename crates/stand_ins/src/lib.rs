#![expect(unsafe_code, reason = "stands before functions of C libraries, whose arguments are what C programs pass")]
//! `libsundial_stand_ins.so`: compilers that programs call at run time hand over PTX instead of machine code.
//!
//! The software GPU executes PTX. Programs that make their kernels at run time ask NVRTC or nvJitLink for machine code of the GPU
//! that they see, and hand that to the driver. `sundial run` preloads this library into the tenant's programs; it stands before the few
//! functions of those libraries that hand machine code over (`nvrtc`, `nvjitlink`), or take it (`nvfatbin`). The libraries themselves, whichever versions
//! the program finds by whatever path, are loaded as without it, and every other function of theirs is called as without it.
//!
//! # How it comes between
//! Programs reach such a library in two ways (`interpose`):
//! - `dlopen`, by any name, then `dlsym`. This library has a `dlsym`, which goes on to the C library's and exchanges the answer if
//!   the name is one of those few. It does not look at `dlopen`: whose search path counts stays as it is.
//! - linked with it. This library has functions by those names, which come first in the search order; each finds the library that its
//!   caller would have found.
//!
//! XLA's plugins are told by flags to leave their own compilers alone (`xla`).
//!
//! Either way the real function is known by its address, so that several versions may be in one process (`library`).
//!
//! # What it costs who does not need it
//! One more file to map when a program starts, and two comparisons of a byte for each `dlsym`.
//!
//! # Limits
//! Libraries in a namespace of their own (`dlmopen`) are left alone, and so is what beyond eight libraries is found. Programs
//! that carry NVRTC's code in themselves are not reached. x86-64 with the GNU C library.

mod image;
mod interpose;
mod library;
mod node;
mod nvfatbin;
mod nvjitlink;
mod nvrtc;
mod xla;

// The unwinder, of which there is one more in `libgcc_s.so.1`: without it that would be another file for every program to map.
#[link(name = "gcc_eh", kind = "static", modifiers = "+whole-archive,-bundle")]
unsafe extern "C" {}
