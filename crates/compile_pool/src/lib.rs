//! Compiling in processes that can be ended, and keeping what they made.
//!
//! What a compilation takes, and what it may do to the compiler, is chosen by whoever wrote the kernel. So it happens in a
//! process of its own that has no files and no network, and a bound on its time and memory; the device process asks,
//! goes on, and gets back code as plain bytes ([`ptx_jit::Image`]), which it checks before it installs them.
//!
//! ```text
//!   control process ── starts ──► sundial compile ─┐  order: module (memory file), kernel, block, bounds
//!         │                                        ├◄─────────────────────────────────────────────┐
//!         │ hands over its socket, its pidfd,      └──────────────► answer: image (memory file)   │
//!         ▼ and the way to the cache                                                              │
//!   device process: Pool (a thread for each compiler) ────────────────────────────────────────────┘
//! ```
//!
//! - [`Pool`] is the device's side, a [`ptx_jit::compiler::Compiler`]. Some processes stand ready, so that a first kernel
//!   waits for none to start. Owners have equal turns; an owner with nothing under way gets a process at once, more than
//!   one only while there are idle processors; the operating system divides the time. A large kernel is compiled by several
//!   threads of its process where processors are left that no compilation has or waits for, and on which no kernel ran when it
//!   was asked for; they leave when they no longer have a processor for themselves. All of it is one compilation: one clock,
//!   one bound on memory, and one end. Whoever drops a job ends the process
//!   that works for it. **A process that has worked for one owner never works for another**: what a kernel could do to its
//!   compiler stays with that kernel's owner.
//! - [`compiler`] is the compiler process's side.
//! - [`cache`] keeps code between processes' lives: [`cache::Store`] is a directory, touched by the control process only;
//!   the device process asks it over a socket.
//!
//! A compiler that dies (bounds, a fault, a panic) is that kernel's misfortune: it is told in the log, and a second
//! process prepares the kernel for the interpreter, which takes little time and memory. If that fails, too, the kernel
//! cannot be launched.
//!
//! # Limits
//!
//! Believing an image means believing its machine code. A tenant who finds a way to run code of its choice in the compiler
//! can make an image that does as it likes in the device process; the sandbox of compilers is against what a compilation
//! *uses*, and makes that way longer, but does not end it. See `docs/threat-model.md`.

pub mod cache;
pub mod compiler;
mod modules;
mod pool;
mod process;
mod protocol;
mod queue;
mod state;

pub use pool::{Origin, Pool};
pub use process::Process;
