#![expect(unsafe_code, reason = "runs generated machine code on tenant memory, and handles its faults")]
//! PTX IR to machine code: a Cranelift engine that vectorises across the threads of a CTA.
//!
//! # How a kernel becomes code
//!
//! - `analysis`: a value that shares a register with others gets one of its own where it alone is read (`ranges`); what nobody reads is dropped; blocks are cut before every operation that joins lanes (barriers,
//!   shuffles, votes, products of matrices), and before an access that may touch what another chunk of the warp has (`lockstep`); the resulting
//!   nodes are grouped into **regions**, each entered at one node only and, in large kernels, of bounded size (`regions`).
//!   Every register is classed over the lanes of a **chunk** (4 to 32 consecutive threads, as is good for the kernel; or one
//!   thread, where lanes read at places of their own and none can see another): the same in all lanes, affine in the lane
//!   number, by a step that is known or one that is a parameter, or varying.
//! - `emit`: one function per region, which runs chunk after chunk. Same and affine values are scalars; varying ones are
//!   128-bit vectors in registers. A chunk all of whose lanes are there runs plain code; one that a branch has split runs
//!   masked code on its part of the warp's frame, until its lanes meet again, or, in a loop of one block that lanes leave one by
//!   one, code that keeps registers where they are. Regions that only whole chunks can come to have plain code alone. Contiguous accesses are vector accesses
//!   after one bounds check; rare operations are evaluated lane by lane by [`ptx::math::eval()`]. What fast paths call
//!   rarely changes no register (`emit::transparent`), so that they keep theirs.
//! - `compile` drives both, several regions side by side where a large kernel may have several threads, and gives an [`Image`]: machine code that can lie anywhere, with what it takes to run it, as a
//!   plain value. `code` installs images. `abi` is what emitted and running code agree on.
//! - `run`: a batch of CTAs is a coroutine that runs one after another on its stack, or some of a row by turns (`emit::warps`). A CTA's scheduler always runs the next
//!   region in program order with pending lanes, for all of these, and stays in a loop until nothing is left in it;
//!   registers that live across regions lie in the frames of the warps. Lanes that all go to one region, with nobody
//!   else left, go on there at once. Of a launch with clusters a batch is of clusters, whose CTAs take turns (`run::cluster`).
//!
//! # What holds
//!
//! - Results are those of [`ptx::interp`], bit by bit, but for what PTX leaves open (clocks, races between warps).
//! - Lanes of a warp that have not diverged see each other's stores in program order.
//! - **A kernel cannot leave its memory.** Global addresses are checked against the window, shared, local and parameter
//!   offsets against their space; register homes are constants. A page that is not mapped, or is read-only, is a SIGSEGV
//!   that the handler in `run::trap` turns into the CTA's exception; an address before that is exact. What is written to a
//!   sparse page faults, too; the handler performs the instruction in the processor's place (`run::store`).
//! - An exception has its line, CTA and thread ([`Batch::fault_site`]): of every instruction that accesses a tenant's memory the code
//!   tells for which line and lanes it does (`abi::place`), helpers note whose turn it is, and `run::site` puts that together.
//! - A CTA gives its thread back at a loop's next iteration when [`ptx::launch::Control`] asks for it, when it sleeps, and
//!   when its threads spin on memory; it can be resumed on any thread, and dropped at any time.
//! - Compiling takes time and memory in proportion to the kernel's size, whatever its shape, and can be given up. The stack
//!   that a region takes is known before it runs; below a CTA's stack nothing can be touched for longer than any step.
//!
//! # Limits
//!
//! x86-64 with AVX2 and FMA. What is not compiled ([`Code::is_machine_code`]: 128-bit loads, stores and atomics, kernels
//! of absurd shape, other processors) the interpreter runs behind the same interface. Half precision, `fma` with directed
//! rounding (but in f32) and rare integer operations go through the helper and are slow.

mod abi;
mod analysis;
mod code;
mod compile;
pub mod compiler;
mod emit;
mod image;
mod reference;
mod run;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use compiler::{Stop, Watch};
use hostmem::Window;
use image::Body;
use ptx::PtxErrorKind;
use ptx::check::Checker;
use ptx::children::Launcher;
use ptx::ir::Kernel;
use ptx::launch::{Control, FaultSite, Launch, Step, shared_bytes};

pub use image::{ENGINE_VERSION, Facts, Form, Image};

/// Which engine runs a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// Machine code.
    Jit,
    /// The reference interpreter.
    Interpreter,
}

/// A kernel compiled for one CTA shape, installed in this process.
#[derive(Debug)]
pub struct Code {
    facts: Arc<Facts>,
    /// Bytes of host memory that the code takes.
    bytes: u64,
    /// Bytes of a CTA for local memory, registers and scheduling.
    cta_bytes: u64,
    engine: Engine,
}

/// What runs a kernel's CTAs.
#[derive(Debug)]
enum Engine {
    Machine(Arc<code::Compiled>),
    Interpreter(Arc<Kernel>),
}

/// Why there is no code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Something in the kernel is not implemented.
    #[error("line {line}: not supported: {what}")]
    Unsupported {
        /// PTX line.
        line: u32,
        /// Instruction or feature.
        what: String,
    },
    /// The text is no PTX.
    #[error(transparent)]
    Invalid(ptx::PtxError),
    /// The front end does not take the kernel.
    #[error(transparent)]
    Refused(ptx::PtxError),
    /// The module has no such kernel.
    #[error("the program has no kernel {name:?}")]
    NoEntry {
        /// Its name.
        name: String,
    },
    /// It was ended before there was code.
    #[error("compiling was stopped")]
    Stopped(#[source] Stop),
    /// The compiler itself failed.
    #[error("{what}")]
    Failed {
        /// How.
        what: String,
    },
    /// Bytes that are no image of this engine for this processor.
    #[error("damaged image: {0}")]
    Damaged(String),
    /// The host has no memory for the code.
    #[error("no memory for the code")]
    NoMemory(#[source] std::io::Error),
}

impl From<ptx::PtxError> for CompileError {
    fn from(error: ptx::PtxError) -> CompileError {
        match error.kind {
            PtxErrorKind::Invalid | PtxErrorKind::UnknownForm => CompileError::Invalid(error),
            PtxErrorKind::Unsupported => CompileError::Refused(error),
        }
    }
}

impl From<Stop> for CompileError {
    fn from(stop: Stop) -> CompileError {
        CompileError::Stopped(stop)
    }
}

/// A name that a tenant has chosen, or a text with such names, as long as lines of the log may be.
#[must_use]
pub fn shortened(text: &str) -> &str {
    text.char_indices().nth(100).map_or(text, |(end, _)| &text[..end])
}

/// Most bytes of stack that a region may take; helpers need some, too.
pub(crate) const MAX_STACK_BYTES: u32 = 64 << 10;

impl Code {
    /// Compiles `kernel` for CTAs of `block` threads, here and now, without bounds; falls back to the interpreter for what
    /// cannot be compiled.
    ///
    /// # Errors
    /// A block that is empty, or larger than [`ptx::launch::MAX_THREADS_PER_CTA`]; a CTA of more than [`ptx::launch::MAX_CTA_BYTES`].
    pub fn compile(kernel: Arc<Kernel>, block: [u32; 3], engine: EngineKind) -> Result<Arc<Code>, CompileError> {
        Code::compile_within(kernel, block, engine, &Watch::unbounded())
    }

    /// As [`Code::compile`], as long as `watch` lets it go on.
    ///
    /// # Errors
    /// As there, and [`CompileError::Stopped`].
    pub fn compile_within(
        kernel: Arc<Kernel>,
        block: [u32; 3],
        engine: EngineKind,
        watch: &Watch,
    ) -> Result<Arc<Code>, CompileError> {
        Code::install(Image::compile(kernel, block, engine, watch)?)
    }

    /// Installs an image in this process.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn install(image: Image) -> Result<Arc<Code>, CompileError> {
        let (bytes, cta_bytes) = (image.host_bytes(), image.cta_bytes());
        let Image { facts, block, body } = image;
        let facts = Arc::new(facts);
        let engine = match body {
            Body::Machine(machine) => {
                let compiled = code::Compiled::install(Arc::clone(&facts), block, machine);
                Engine::Machine(Arc::new(compiled.map_err(CompileError::NoMemory)?))
            }
            Body::Interpreted { kernel, why } => {
                if let Some(why) = why {
                    let (kernel, why) = (shortened(&facts.name), shortened(&why));
                    log_limit::warn!(kernel, why, "not compiled: the interpreter runs it");
                }
                Engine::Interpreter(Arc::from(kernel))
            }
        };
        Ok(Arc::new(Code { facts, bytes, cta_bytes, engine }))
    }

    /// Was the kernel compiled? Else the interpreter runs it.
    #[must_use]
    pub fn is_machine_code(&self) -> bool {
        matches!(self.engine, Engine::Machine(_))
    }

    /// Host memory of a CTA under way, with `dynamic_shared` bytes of shared memory, its stack and what the host keeps of
    /// both included.
    #[must_use]
    pub fn cta_bytes(&self, dynamic_shared: u32) -> u64 {
        let shared = shared_bytes(self.facts.shared_bytes, self.facts.shared_align, dynamic_shared);
        let shared = shared + u64::from(self.facts.param_bytes);
        let stack = if self.is_machine_code() { run::stack::STACK_BYTES as u64 } else { 0 };
        self.cta_bytes + shared + stack + hostmem::PAGE
    }

    /// Entries of the host's memory map of a CTA under way, at most: its stack with the guard, and its memory.
    #[must_use]
    pub fn cta_maps(&self) -> u32 {
        if self.is_machine_code() { 3 } else { 0 }
    }

    /// What is known of the kernel.
    #[must_use]
    pub fn kernel(&self) -> &Facts {
        &self.facts
    }

    /// Bytes of host memory that the code takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A launch of compiled code in an address space: what all its CTAs share.
#[derive(Debug)]
pub struct Grid {
    /// The code, compiled for `launch.block`.
    pub code: Arc<Code>,
    /// What to run.
    pub launch: Launch,
    /// The address space's host image.
    pub window: Arc<Window>,
    /// GPU virtual address of the window's offset 0.
    pub window_lo: u64,
    /// [`ptx::launch::Control`]: polled at loop back-edges; may be shared by several grids.
    pub control: Arc<AtomicU32>,
    /// Who checks what the kernel does: the interpreter asks him, machine code does not.
    pub checker: Option<Arc<dyn Checker>>,
    /// Who takes what its threads launch; without, that is an error of theirs.
    pub launcher: Option<Arc<dyn Launcher>>,
}

impl Grid {
    /// Are running CTAs asked to stop?
    fn stops(&self) -> bool {
        self.control.load(Ordering::Relaxed) != Control::RUN
    }
}

/// Consecutive CTAs of a grid that run one after another, in increasing order, on the same stack and memory; where threads cannot tell, a few
/// dozen of them begin together, and end together: read these for one CTA under way in what follows. They can be
/// resumed on any thread; dropping them abandons what has not ended. Of a launch with clusters it is these that run one after another,
/// the CTAs of each in turn: read "cluster" for "CTA" in what follows.
#[derive(Debug)]
pub struct Batch {
    progress: Progress,
    inner: Inner,
}

/// How far a batch has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Linear indices of the CTAs that have not begun.
    pub(crate) rest: Range<u64>,
    /// CTAs that have begun.
    pub(crate) begun: u64,
    /// CTAs that have ended well.
    pub(crate) ended: u64,
    /// Where one has failed, if one has.
    pub(crate) fault_site: Option<FaultSite>,
}

#[derive(Debug)]
enum Inner {
    Machine(run::cta::JitBatch),
    Clusters(run::cluster::ClusterBatch),
    Interpreted(Box<reference::InterpretedBatch>),
}

impl Batch {
    /// Prepares the CTAs of the grid with linear indices `range`, x fastest; nothing runs yet. Each finds shared and local
    /// memory and registers zero.
    #[must_use]
    pub fn new(grid: Arc<Grid>, range: Range<u64>) -> Batch {
        let inner = match &grid.code.engine {
            Engine::Machine(compiled) => {
                let compiled = Arc::clone(compiled);
                if grid.launch.cluster_ctas() > 1 {
                    let batch = run::cluster::ClusterBatch::new(grid, compiled);
                    return Batch {
                        progress: Progress { rest: range, ..Progress::default() },
                        inner: Inner::Clusters(batch),
                    };
                }
                Inner::Machine(run::cta::JitBatch::new(grid, compiled))
            }
            Engine::Interpreter(kernel) => {
                let kernel = Arc::clone(kernel);
                Inner::Interpreted(Box::new(reference::InterpretedBatch::new(grid, kernel)))
            }
        };
        Batch { progress: Progress { rest: range, ..Progress::default() }, inner }
    }

    /// Runs until all are done, or one is preempted or fails. If the host has no memory for a stack now, nothing was begun:
    /// it is preempted, and none is under way. Asked to stop, it does so between two CTAs as well, but not
    /// before it has come some way.
    pub fn resume(&mut self) -> Step {
        match &mut self.inner {
            Inner::Machine(batch) => batch.resume(&mut self.progress),
            Inner::Clusters(batch) => batch.resume(&mut self.progress),
            Inner::Interpreted(batch) => batch.resume(&mut self.progress),
        }
    }

    /// CTAs that have ended well.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.progress.ended
    }

    /// Where it has failed, if it has.
    #[must_use]
    pub fn fault_site(&self) -> Option<&FaultSite> {
        self.progress.fault_site.as_ref()
    }

    /// Is a CTA under way? Only after a preemption.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.progress.begun > self.progress.ended
    }

    /// Takes the CTAs back that have not begun; at most one is left, under way.
    pub fn take_rest(&mut self) -> Range<u64> {
        std::mem::take(&mut self.progress.rest)
    }
}
