//! Work that a method starts and workers do: compilations, grids, copies, invalidates.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ptx::launch::{Control, Exception, Launch, MAX_SHARED_BYTES, Step};
use ptx_jit::{Batch, Code, Grid};

use crate::copy::Transfer;
use crate::error::ChannelError;
use crate::host::{Invalidate, Release};
use crate::shared::Shared;
use crate::space::Space;

/// Time that a batch of CTAs should take, nanoseconds: long enough to make the lock cheap, short against a slice.
const BATCH_NS: u64 = 50_000;
/// Most CTAs of a batch.
const MAX_BATCH: u64 = 256;
/// Most CTAs of an ordinary grid that are started and wait (each holds its stack and registers).
const MAX_WAITING: usize = 256;

/// A grid to be launched.
#[derive(Debug)]
pub(crate) struct LaunchRequest {
    /// Address of the program's entry.
    pub(crate) program: u64,
    pub(crate) launch: Launch,
    pub(crate) cooperative: bool,
    pub(crate) release: Option<Release>,
    /// Address >> 8 of the descriptor that is launched at the end.
    pub(crate) dependent: Option<u32>,
}

/// What a channel has in hand.
#[derive(Debug)]
pub(crate) enum Job {
    /// A grid whose code is not there yet.
    Compile(Box<LaunchRequest>),
    /// A grid.
    Grid(Box<GridJob>),
    /// A transfer.
    Copy(Arc<Transfer>),
    /// A TLB invalidate.
    Invalidate(Invalidate),
}

/// A job with its progress.
#[derive(Debug)]
pub(crate) struct Active {
    /// Unique number: results of a job that is gone are dropped.
    pub(crate) id: u64,
    pub(crate) job: Job,
    /// Units handed out and not back.
    pub(crate) in_flight: u32,
    /// Units handed out so far.
    handed: u64,
    /// How far a transfer was handed out.
    position: u64,
}

/// A piece of a job for one worker.
#[derive(Debug)]
pub(crate) enum Work {
    Compile { program: u64, block: [u32; 3] },
    Ctas { grid: Arc<Grid>, batch: Box<Batch> },
    Copy { transfer: Arc<Transfer>, part: Range<u64> },
    Invalidate { root: Option<gpu_spec::mmu::PhysAddr>, range: Range<u64>, own: Option<Arc<Space>> },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Compiled(Result<Arc<Code>, ChannelError>),
    Ctas(Ctas),
    Copied(Result<(), ChannelError>),
    Invalidated,
}

/// What came of CTAs.
#[derive(Debug)]
pub(crate) struct Ctas {
    /// CTAs that ended.
    pub(crate) done: u64,
    /// CTAs that were not started.
    pub(crate) rest: Range<u64>,
    /// A CTA that stopped on the way; `true` if it was asked to.
    pub(crate) parked: Option<(Box<Batch>, bool)>,
    /// How the last of them failed.
    pub(crate) exception: Option<Exception>,
    /// Time spent, nanoseconds.
    pub(crate) elapsed: u64,
}

/// A grid in progress.
#[derive(Debug)]
pub(crate) struct GridJob {
    pub(crate) grid: Arc<Grid>,
    total: u64,
    done: u64,
    /// CTAs not started, the lowest last.
    unstarted: Vec<Range<u64>>,
    /// CTAs that were preempted: they go on first.
    preempted: VecDeque<Box<Batch>>,
    /// CTAs that wait for something and gave way.
    yielded: VecDeque<Box<Batch>>,
    /// Whose turn it is: a new CTA, or one that gave way.
    resume_next: bool,
    cooperative: bool,
    /// CTAs handed out at once.
    batch: u64,
    pub(crate) release: Option<Release>,
    /// Address >> 8 of the descriptor that is launched at the end.
    pub(crate) dependent: Option<u32>,
}

impl Active {
    pub(crate) fn new(job: Job, id: u64) -> Active {
        Active { id, job, in_flight: 0, handed: 0, position: 0 }
    }

    /// The next unit of work, if there is one to hand out.
    pub(crate) fn take(&mut self, workers: u64) -> Option<Work> {
        let work = match &mut self.job {
            Job::Compile(request) if self.handed == 0 => {
                Work::Compile { program: request.program, block: request.launch.block }
            }
            Job::Invalidate(invalidate) if self.handed == 0 => {
                Work::Invalidate { root: invalidate.root, range: invalidate.range.clone(), own: invalidate.own.clone() }
            }
            Job::Compile(_) | Job::Invalidate(_) => return None,
            // A transfer of nothing still takes one unit.
            Job::Copy(transfer) if self.handed == 0 || self.position < transfer.total() => {
                let part = self.position..(self.position + transfer.part()).min(transfer.total());
                self.position = part.end;
                Work::Copy { transfer: Arc::clone(transfer), part }
            }
            Job::Copy(_) => return None,
            Job::Grid(grid) => grid.take(workers)?,
        };
        self.handed += 1;
        self.in_flight += 1;
        Some(work)
    }

    /// True if a worker could be given something now.
    pub(crate) fn has_work(&self) -> bool {
        match &self.job {
            Job::Compile(_) | Job::Invalidate(_) => self.handed == 0,
            Job::Copy(transfer) => self.handed == 0 || self.position < transfer.total(),
            Job::Grid(grid) => grid.has_work(),
        }
    }

    /// All units were handed out and are back.
    pub(crate) fn is_done(&self) -> bool {
        self.in_flight == 0
            && match &self.job {
                Job::Grid(grid) => grid.done == grid.total,
                _ => !self.has_work(),
            }
    }

    /// True if the work may be started anew: nothing of it was begun, or it may be done twice.
    pub(crate) fn may_begin_again(&self) -> bool {
        match &self.job {
            Job::Compile(_) | Job::Copy(_) | Job::Invalidate(_) => true,
            Job::Grid(_) => self.handed == 0,
        }
    }

    /// Asks the CTAs that run to stop.
    pub(crate) fn preempt(&self) {
        if let Job::Grid(grid) = &self.job {
            grid.grid.control.store(Control::PREEMPT, Ordering::SeqCst);
        }
    }

    /// CTAs may run again.
    pub(crate) fn unpreempt(&self) {
        if let Job::Grid(grid) = &self.job {
            grid.grid.control.store(Control::RUN, Ordering::SeqCst);
        }
    }
}

impl GridJob {
    /// A grid of compiled code.
    pub(crate) fn new(code: Arc<Code>, request: LaunchRequest, space: &Space) -> Result<GridJob, &'static str> {
        let kernel = code.kernel();
        let mut launch = request.launch;
        if let Some(bound) = kernel.max_ntid {
            let threads = |block: [u32; 3]| block.iter().map(|side| u64::from(*side)).product::<u64>();
            let fits = if kernel.exact_ntid { launch.block == bound } else { threads(launch.block) <= threads(bound) };
            if !fits {
                return Err("CTA shape differs from what the kernel requires");
            }
        }
        let dynamic = u64::from(kernel.shared_bytes).next_multiple_of(kernel.shared_align.max(1).into());
        if dynamic + u64::from(launch.dynamic_shared) > MAX_SHARED_BYTES.into() {
            return Err("too much shared memory");
        }
        launch.params.resize(kernel.param_bytes as usize, 0);
        let total = launch.grid.iter().map(|side| u64::from(*side)).product();
        let grid = Arc::new(Grid {
            code,
            launch,
            window: Arc::clone(space.window()),
            window_lo: space.window_lo(),
            control: Arc::new(AtomicU32::new(Control::RUN)),
        });
        Ok(GridJob {
            grid,
            total,
            done: 0,
            unstarted: std::iter::once(0..total).collect(),
            preempted: VecDeque::new(),
            yielded: VecDeque::new(),
            resume_next: false,
            cooperative: request.cooperative,
            batch: 1,
            release: request.release,
            dependent: request.dependent,
        })
    }

    fn has_work(&self) -> bool {
        !(self.unstarted.is_empty() && self.preempted.is_empty() && self.yielded.is_empty())
    }

    /// CTAs wait for each other: those that run should give way now and then.
    pub(crate) fn wants_rotation(&self) -> bool {
        !self.preempted.is_empty() || !self.yielded.is_empty() || self.cooperative && !self.unstarted.is_empty()
    }

    fn take(&mut self, workers: u64) -> Option<Work> {
        let work = |batch| Some(Work::Ctas { grid: Arc::clone(&self.grid), batch });
        // All CTAs of a cooperative grid have to be started before it pays to go on with one that was preempted.
        if (!self.cooperative || self.unstarted.is_empty())
            && let Some(cta) = self.preempted.pop_front()
        {
            return work(cta);
        }
        let full = !self.cooperative && self.yielded.len() >= MAX_WAITING;
        if self.unstarted.is_empty() || full || self.resume_next {
            self.resume_next = false;
            if let Some(cta) = self.yielded.pop_front() {
                return work(cta);
            }
        }
        let range = self.unstarted.last_mut()?;
        let left: u64 = range.end - range.start;
        let share = left.div_ceil(2 * workers);
        let count = self.batch.min(share).max(1);
        let part = range.start..range.start + count;
        range.start += count;
        if range.start == range.end {
            self.unstarted.pop();
        }
        self.resume_next = !self.yielded.is_empty();
        work(Box::new(Batch::new(Arc::clone(&self.grid), part)))
    }

    /// Takes back what a worker did.
    pub(crate) fn returned(&mut self, ctas: Ctas) {
        self.done += ctas.done;
        if let Some(per_cta) = ctas.elapsed.checked_div(ctas.done) {
            self.batch = (BATCH_NS / per_cta.max(1)).clamp(1, MAX_BATCH.min(self.batch * 4));
        }
        if !ctas.rest.is_empty() {
            let at = self.unstarted.partition_point(|range| range.start > ctas.rest.start);
            self.unstarted.insert(at, ctas.rest);
        }
        match ctas.parked {
            Some((cta, true)) => self.preempted.push_back(cta),
            Some((cta, false)) => self.yielded.push_back(cta),
            None => {}
        }
    }
}

impl Work {
    /// Does it. The caller holds no lock.
    pub(crate) fn run(self, shared: &Shared, space: &Space) -> Outcome {
        match self {
            Work::Compile { program, block } => {
                Outcome::Compiled(crate::program::compile(space, &shared.memory, program, block, shared.engine))
            }
            Work::Ctas { grid, batch } => Outcome::Ctas(run_batch(&grid, batch)),
            Work::Copy { transfer, part } => Outcome::Copied(transfer.run(&shared.memory, part)),
            Work::Invalidate { root, range, own } => {
                match own {
                    Some(space) => space.sync(&shared.memory, range),
                    None => shared.spaces.invalidate(&shared.memory, root, range),
                }
                Outcome::Invalidated
            }
        }
    }
}

/// Runs CTAs in increasing order, until one does not end.
fn run_batch(grid: &Grid, mut batch: Box<Batch>) -> Ctas {
    let start = std::time::Instant::now();
    let before = batch.ended();
    let step = batch.resume();
    let asked = grid.control.load(Ordering::Relaxed) != Control::RUN;
    Ctas {
        done: batch.ended() - before,
        rest: batch.take_rest(),
        exception: if let Step::Exception(exception) = step { Some(exception) } else { None },
        parked: (step == Step::Preempted && batch.is_under_way()).then_some((batch, asked)),
        elapsed: start.elapsed().as_nanos() as u64,
    }
}
