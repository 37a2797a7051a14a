//! Compiling as something that is started, takes its time elsewhere, and can be given up.
//!
//! What a compilation costs is chosen by whoever wrote the kernel. So the device never compiles on a thread that others
//! wait for: it hands a [`Request`] to a [`Compiler`], goes on, and hears the [`Outcome`] later. Where that runs (threads
//! of this process, sandboxed processes) is the compiler's affair.

mod helpers;
mod threads;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use helpers::Helpers;
pub use threads::Threads;
pub(crate) use watch::{HELPER_STACK_BYTES, Pace};
pub use watch::{Stop, Watch, Working};

use crate::{Code, CompileError, EngineKind};

/// A module as its container in GPU memory says it: what kernels are compiled from.
#[derive(Debug)]
pub struct Source {
    /// A number that no other module of this process has: compilers keep parsed modules by it.
    pub id: u64,
    /// PTX.
    pub text: Arc<str>,
    /// GPU virtual addresses of the module's variables.
    pub symbols: HashMap<String, u64>,
}

/// Most that one compilation may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Processor time, of all its threads together.
    pub time: Duration,
    /// Threads. Those beside the first are for processors that nothing else uses: they leave when one of all does not have a
    /// processor for itself.
    pub threads: usize,
}

/// A kernel to be compiled for CTAs of one shape.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who pays for it: tenants have equal turns. What one of them asks for runs one after another or side by side, as the
    /// compiler likes.
    pub tenant: u64,
    /// For which of the tenant's programs it is: what works for one is not used for another.
    pub owner: u64,
    /// Module.
    pub source: Arc<Source>,
    /// Name of the kernel.
    pub entry: String,
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// Bytes of a thread's stack, for kernels that have one.
    pub stack_bytes: u32,
    /// What is to run the kernel.
    pub engine: EngineKind,
    /// What it may cost.
    pub bounds: Bounds,
}

/// How a compilation ended.
#[derive(Debug)]
pub struct Outcome {
    /// The code, or why there is none.
    pub code: Result<Arc<Code>, CompileError>,
    /// Processor time that it took.
    pub cpu: Duration,
}

/// Told once when a compilation has ended, on a thread of the compiler; not at all if the job was dropped before.
pub type Done = Box<dyn FnOnce(Outcome) + Send>;

/// A compilation under way. Dropping it gives it up: what it uses is given back soon.
pub trait Job: fmt::Debug + Send + Sync {
    /// Processor time so far, for the account of whoever wanted the kernel.
    fn cpu(&self) -> Duration;
}

/// Something that compiles.
pub trait Compiler: fmt::Debug + Send + Sync {
    /// Begins a compilation; never waits for it.
    fn start(&self, request: Request, done: Done) -> Box<dyn Job>;
}
