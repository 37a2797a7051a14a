#![expect(unsafe_code, reason = "runs generated machine code on tenant memory, and handles its faults")]
//! PTX IR to machine code: a Cranelift engine that vectorises across the threads of a CTA.
//!
//! # How a kernel becomes code
//!
//! - `analysis`: what nobody reads is dropped; blocks are cut before every operation that joins lanes (barriers,
//!   shuffles, votes); the resulting nodes are grouped into **regions**, each entered at one node only. Every register is
//!   classed over the lanes of a **chunk** (4 to 32 consecutive threads, as is good for the kernel): the same in all lanes,
//!   affine in the lane number, or varying.
//! - `emit`: one function per region, which runs chunk after chunk. Same and affine values are scalars; varying ones are
//!   128-bit vectors in registers. A chunk all of whose lanes are there runs plain code; one that a branch has split runs
//!   masked code on its part of the warp's frame, until its lanes meet again. Contiguous accesses are vector accesses
//!   after one bounds check; rare operations are evaluated lane by lane by [`ptx::math::eval()`]. What fast paths call
//!   rarely changes no register (`transparent`), so that they keep theirs.
//! - `run`: a batch of CTAs is a coroutine that runs one after another on its stack. A CTA's scheduler always runs the first
//!   region in program order with pending lanes, for all of these; registers that live across regions lie in the frames of
//!   the warps.
//!
//! # What holds
//!
//! - Results are those of [`ptx::interp`], bit by bit, but for what PTX leaves open (clocks, races).
//! - **A kernel cannot leave its memory.** Global addresses are checked against the window, shared, local and parameter
//!   offsets against their space; register homes are constants. A page that is not mapped, or is read-only, is a SIGSEGV
//!   that the handler in `run::trap` turns into the CTA's exception; an address before that is exact. What is written to a
//!   sparse page faults, too; the handler performs the instruction in the processor's place (`run::store`).
//! - A CTA gives its thread back at a loop's next iteration when [`ptx::launch::Control`] asks for it, when it sleeps, and
//!   when its threads spin on memory; it can be resumed on any thread, and dropped at any time.
//!
//! # Limits
//!
//! x86-64 with AVX2 and FMA. What is not compiled ([`Code::is_machine_code`]: 128-bit loads, stores and atomics, kernels
//! of absurd shape, other processors) the interpreter runs behind the same interface. Half precision, directed rounding
//! (but for `fma` in f32) and rare integer operations go through the helper and are slow. Threads of a warp that
//! communicate through shared memory without a barrier, relying on lockstep, do not see each other's writes in time. A
//! warp barrier that lanes meet at different places in the program does not hold them.

mod analysis;
mod code;
mod emit;
mod reference;
mod run;
mod transparent;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hostmem::Window;
use ptx::ir::Kernel;
use ptx::launch::{Control, Launch, Step};

/// Which engine runs a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// Machine code.
    Jit,
    /// The reference interpreter.
    Interpreter,
}

/// A kernel compiled for one CTA shape.
#[derive(Debug)]
pub struct Code {
    kernel: Arc<Kernel>,
    /// None: the interpreter runs it.
    compiled: Option<Arc<code::Compiled>>,
}

/// Why a kernel could not be compiled.
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
}

/// Most bytes that a CTA may have for its local memory, its registers while they are not in use, and the rest of its
/// state: 64 KiB of local memory for each of 1,024 threads.
///
/// A line of PTX asks for half a gigabyte, `.local .b8 a[500000];` in a block of 1,024 threads, for every CTA under way,
/// zeroed, in the process that serves all tenants; a few launches would exhaust its memory. Such a kernel is refused when
/// it is compiled.
pub const MAX_CTA_BYTES: u64 = 64 << 20;

impl Code {
    /// Compiles `kernel` for CTAs of `block` threads; falls back to the interpreter for what cannot be compiled.
    ///
    /// # Errors
    /// A block that is empty, or larger than [`ptx::launch::MAX_THREADS_PER_CTA`]; a CTA of more than [`MAX_CTA_BYTES`].
    pub fn compile(kernel: Arc<Kernel>, block: [u32; 3], engine: EngineKind) -> Result<Arc<Code>, CompileError> {
        let threads = block.iter().try_fold(1_u32, |n, &d| n.checked_mul(d));
        let refused = |what| Err(CompileError::Unsupported { line: 0, what });
        let Some(threads) = threads.filter(|n| (1..=ptx::launch::MAX_THREADS_PER_CTA).contains(n)) else {
            return refused(format!("a block of {block:?}"));
        };
        let local = u64::from(kernel.local_bytes) * u64::from(threads);
        if local > MAX_CTA_BYTES {
            return refused(format!("{local} bytes of local memory in a CTA"));
        }
        let compiled = match engine {
            EngineKind::Jit => match code::compile(Arc::clone(&kernel), block) {
                Ok(compiled) => Some(Arc::new(compiled)),
                Err(error) => {
                    tracing::debug!(kernel = kernel.name, %error, "left to the interpreter");
                    None
                }
            },
            EngineKind::Interpreter => None,
        };
        let registers = match &compiled {
            Some(compiled) => compiled.state_bytes(),
            None => reference::register_bytes(&kernel) * u64::from(threads),
        };
        if local + registers > MAX_CTA_BYTES {
            return refused(format!("{} bytes of local memory and registers in a CTA", local + registers));
        }
        Ok(Arc::new(Code { kernel, compiled }))
    }

    /// Was the kernel compiled? Else the interpreter runs it.
    #[must_use]
    pub fn is_machine_code(&self) -> bool {
        self.compiled.is_some()
    }

    /// The kernel.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
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
}

impl Grid {
    /// Are running CTAs asked to stop?
    fn stops(&self) -> bool {
        self.control.load(Ordering::Relaxed) != Control::RUN
    }
}

/// Consecutive CTAs of a grid that run one after another, in increasing order, on the same stack and memory. They can be
/// resumed on any thread; dropping them abandons what has not ended.
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
}

#[derive(Debug)]
enum Inner {
    Machine(run::cta::JitBatch),
    Interpreted(Box<reference::InterpretedBatch>),
}

impl Batch {
    /// Prepares the CTAs of the grid with linear indices `range`, x fastest; nothing runs yet. Each finds shared and local
    /// memory and registers zero.
    #[must_use]
    pub fn new(grid: Arc<Grid>, range: Range<u64>) -> Batch {
        let inner = match grid.code.compiled.clone() {
            Some(compiled) => Inner::Machine(run::cta::JitBatch::new(grid, compiled)),
            None => Inner::Interpreted(Box::new(reference::InterpretedBatch::new(grid))),
        };
        Batch { progress: Progress { rest: range, begun: 0, ended: 0 }, inner }
    }

    /// Runs until all are done, or one is preempted or fails. Asked to stop, it does so between two CTAs as well, but not
    /// before it has come some way.
    pub fn resume(&mut self) -> Step {
        match &mut self.inner {
            Inner::Machine(batch) => batch.resume(&mut self.progress),
            Inner::Interpreted(batch) => batch.resume(&mut self.progress),
        }
    }

    /// CTAs that have ended well.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.progress.ended
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
