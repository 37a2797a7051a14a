//! The device without its front end, as all its parts use it: memory, time, interrupts, counters, and the way to the
//! threads beside the workers. No lock of it is held while another is taken, except that the front end's lock comes before
//! all.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use gmmu::FaultBuffer;
use gpu_spec::regs::{accounting, metering, vector};
use parking_lot::Mutex;
use ptx::check::Checker;
use ptx_jit::EngineKind;
use ptx_jit::compiler::Compiler;

use crate::background::Background;
use crate::budget::Budgets;
use crate::clock::Clock;
use crate::device::Device;
use crate::doorbells::Doorbells;

use crate::interrupts::Interrupts;
use crate::memory::Memory;
use crate::space::Spaces;

/// Address spaces of devices of this process, so far.
static SPACES: AtomicU64 = AtomicU64::new(0);
/// Modules that devices of this process have read, so far.
static SOURCES: AtomicU64 = AtomicU64::new(0);

/// The device without its front end.
#[derive(Debug)]
pub(crate) struct Chip {
    pub(crate) memory: Memory,
    pub(crate) spaces: Spaces,
    pub(crate) clock: Clock,
    pub(crate) interrupts: Interrupts,
    pub(crate) faults: Mutex<FaultBuffer>,
    pub(crate) doorbells: Doorbells,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) totals: Vec<Totals>,
    pub(crate) engine: EngineKind,
    pub(crate) checker: Option<Arc<dyn Checker>>,
    pub(crate) compiler: Arc<dyn Compiler>,
    pub(crate) background: Background,
    pub(crate) workers: u64,
    /// Where other threads tell the front end something.
    pub(crate) device: Weak<Device>,
    /// Something of the device cannot be trusted any more: it answers no more, like a card that fell off the bus.
    pub(crate) lost: AtomicBool,
    next_job: AtomicU64,
    next_grid: AtomicU64,
}

/// What a TSG has had.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Nanoseconds of workers, and of compilations.
    pub(crate) worker_ns: AtomicU64,
    pub(crate) grids: AtomicU32,
    pub(crate) copies: AtomicU32,
    /// Interrupts that were asked for.
    pub(crate) interrupts: AtomicU32,
    /// The part of `worker_ns` that no worker has spent.
    pub(crate) prepare_ns: AtomicU64,
    /// Bytes copied from system memory into VRAM, and back.
    pub(crate) moved: [AtomicU64; 2],
    pub(crate) waited_ns: AtomicU64,
    /// See [`metering::WAITS`].
    pub(crate) waits: [AtomicU32; metering::WAIT_COUNTS as usize],
}

impl Totals {
    /// A grid or a copy has waited so long.
    pub(crate) fn waited(&self, ns: u64) {
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
        self.waits[metering::wait_index(ns) as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes were copied.
    pub(crate) fn moved(&self, [into, out]: [u64; 2]) {
        for (total, bytes) in self.moved.iter().zip([into, out]) {
            if bytes > 0 {
                total.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }
}

impl Chip {
    pub(crate) fn new(
        memory: Memory,
        (engine, checker): (EngineKind, Option<Arc<dyn Checker>>),
        compiler: Arc<dyn Compiler>,
        workers: u64,
        device: Weak<Device>,
    ) -> Chip {
        let budgets = Arc::new(Budgets::new());
        Chip {
            memory,
            spaces: Spaces::default(),
            clock: Clock::new(),
            interrupts: Interrupts::default(),
            faults: Mutex::default(),
            doorbells: Doorbells::default(),
            budgets,
            totals: (0..accounting::TSGS).map(|_| Totals::default()).collect(),
            engine,
            checker,
            compiler,
            background: Background::default(),
            workers,
            device,
            lost: AtomicBool::new(false),
            next_job: AtomicU64::new(1),
            next_grid: AtomicU64::new(1),
        }
    }

    /// A TSG has asked for so many interrupts.
    pub(crate) fn interrupt(&self, tsg: usize, times: u32) {
        if times > 0 {
            // Whoever is interrupted finds it counted.
            self.totals[tsg].interrupts.fetch_add(times, Ordering::SeqCst);
            self.interrupts.raise(vector::NON_STALL);
        }
    }

    /// A number that no other job has.
    pub(crate) fn next_job(&self) -> u64 {
        self.next_job.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that no other grid has.
    pub(crate) fn next_grid(&self) -> u64 {
        self.next_grid.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that no other address space of this process has, nor had.
    pub(crate) fn next_space(&self) -> u64 {
        SPACES.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that no other module of this process has.
    pub(crate) fn next_source(&self) -> u64 {
        SOURCES.fetch_add(1, Ordering::Relaxed)
    }
}
