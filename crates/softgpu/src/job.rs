//! Work that a method starts: grids, once their code is there, copies, invalidates; in units for workers, none of them
//! long.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gpu_spec::notifier::{Code as ErrorCode, Reason};
use ptx::launch::{Control, Exception, Launch, MAX_SHARED_BYTES, Step};
use ptx_jit::{Batch, Code, EngineKind, Grid, compiler};

use crate::budget::{Budgets, Charge, Compilation, Need};
use crate::children::{Family, Launched, Parent};
use crate::chip::Chip;
use crate::copy::Transfer;
use crate::error::ChannelError;
use crate::host::{Invalidate, Release};
use crate::program::{Prepared, Shape, out_of_resources};
use crate::space::Space;

/// Time that a batch of CTAs should take, nanoseconds, and most CTAs of one: long enough to make the lock cheap, short against a slice.
const BATCH: (u64, u64) = (50_000, 256);
/// The same where no other channel has had anything of the GPU for a while: neighbours among CTAs share lines of memory, and should have one cache.
const BATCH_ALONE: (u64, u64) = (400_000, 512);
/// A batch that took so long may have written memory for the first time.
const LONG: Duration = Duration::from_micros(10);
/// Most batches of an ordinary grid that are started and wait (each holds a stack and registers).
const MAX_WAITING: usize = 256;

/// A grid to be launched.
#[derive(Debug)]
pub(crate) struct LaunchRequest {
    /// Address of the program's entry.
    pub(crate) program: u64,
    pub(crate) launch: Launch,
    /// Bytes of a thread's stack, for kernels that have one.
    pub(crate) stack_bytes: u32,
    pub(crate) cooperative: bool,
    pub(crate) release: Option<Release>,
    /// Address >> 8 of the descriptor that is launched at the end.
    pub(crate) dependent: Option<u32>,
    /// A kernel has launched it, and no method of its channel's.
    pub(crate) child: bool,
}

impl LaunchRequest {
    /// What the kernel's code is made for.
    pub(crate) fn shape(&self) -> Shape {
        Shape { block: self.launch.block, stack_bytes: self.stack_bytes }
    }
}

/// What a channel has in hand.
#[derive(Debug)]
pub(crate) enum Job {
    /// A grid whose code is not there yet.
    Prepare(Box<Preparation>),
    /// A grid.
    Grid(Box<GridJob>),
    /// A transfer.
    Copy(Arc<Transfer>),
    /// A TLB invalidate.
    Invalidate(Invalidate),
}

/// A grid whose code is not there yet. Nothing of it is a worker's: the channel waits, as for a semaphore.
#[derive(Debug)]
pub(crate) struct Preparation {
    pub(crate) request: LaunchRequest,
    pub(crate) stage: Stage,
    /// How often something was begun.
    pub(crate) attempts: u64,
}

/// How far a preparation has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nothing was begun, or it waits until more may be under way.
    New,
    /// The kernel is being read from GPU memory, for as long as this lives.
    #[expect(dead_code, reason = "held so that the load goes on")]
    Loading(usize, Arc<()>),
    /// A compiler has it.
    Compiling(Compiling),
}

/// A compilation under way.
#[derive(Debug)]
pub(crate) struct Compiling {
    pub(crate) job: Box<dyn compiler::Job>,
    /// TSG in whose name it was begun.
    pub(crate) tsg: usize,
    /// Processor time that was charged.
    pub(crate) charged: Duration,
    /// Of the address space's programs when it began.
    pub(crate) generation: u64,
    pub(crate) charge: Charge,
    #[expect(dead_code, reason = "counts while it lives")]
    pub(crate) counted: Compilation,
}

impl Preparation {
    pub(crate) fn new(request: LaunchRequest) -> Preparation {
        Preparation { request, stage: Stage::New, attempts: 0 }
    }

    /// The number of what is begun now.
    pub(crate) fn attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// The TSG in whose name something is under way.
    pub(crate) fn tsg(&self) -> Option<usize> {
        match &self.stage {
            Stage::New => None,
            Stage::Loading(tsg, _) => Some(*tsg),
            Stage::Compiling(compiling) => Some(compiling.tsg),
        }
    }
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
    /// How far a transfer was handed out, and an invalidate done.
    position: u64,
}

/// A piece of a job for one worker.
#[derive(Debug)]
pub(crate) enum Work {
    Ctas { grid: Arc<Grid>, resident: Box<Resident> },
    Copy { transfer: Arc<Transfer>, part: Range<u64> },
    Invalidate { invalidate: Invalidate, from: u64 },
}

/// What a job has for a worker.
#[derive(Debug)]
pub(crate) enum Take {
    Work(Work),
    /// Nothing now.
    Nothing,
    /// Something, but its budget has no room for what it needs.
    Full(Need),
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ctas(Ctas),
    Copied(Result<(), ChannelError>),
    /// How far the invalidate came.
    Invalidated(u64),
}

/// A batch, and what its memory and stack are charged for.
#[derive(Debug)]
pub(crate) struct Resident {
    batch: Batch,
    #[expect(dead_code, reason = "given back when it is dropped")]
    charge: Option<Charge>,
}

/// What came of CTAs.
#[derive(Debug)]
pub(crate) struct Ctas {
    /// CTAs that ended.
    pub(crate) done: u64,
    /// CTAs that were not started.
    pub(crate) rest: Range<u64>,
    /// A batch that stopped on the way; `true` if it was asked to.
    pub(crate) parked: Option<(Box<Resident>, bool)>,
    /// How the last of them failed, and where in the kernel.
    pub(crate) exception: Option<(Exception, String)>,
    /// None could be begun: the host had no memory for it.
    pub(crate) starved: bool,
    /// Time spent, nanoseconds.
    pub(crate) elapsed: u64,
    /// Were all those that ended begun in that time?
    pub(crate) afresh: bool,
}

/// A grid in progress.
#[derive(Debug)]
pub(crate) struct GridJob {
    pub(crate) grid: Arc<Grid>,
    #[expect(dead_code, reason = "charged while it runs, though the space may have forgotten it")]
    prepared: Arc<Prepared>,
    /// Host memory of one CTA, bytes; from here on a CTA is a cluster, if there are clusters.
    cta_bytes: u64,
    /// Entries of the host's memory map that it takes.
    cta_maps: u64,
    total: u64,
    done: u64,
    /// CTAs not started, the lowest last.
    unstarted: Vec<Range<u64>>,
    /// CTAs that were preempted: they go on first.
    preempted: VecDeque<Box<Resident>>,
    /// CTAs that wait for something and gave way.
    yielded: VecDeque<Box<Resident>>,
    /// Whose turn it is: a new CTA, or one that gave way.
    resume_next: bool,
    cooperative: bool,
    /// The charge for all CTAs of a cooperative grid: they are resident together, or not at all.
    whole: Option<Charge>,
    /// Nanoseconds that a CTA took of the latest batch that has told.
    cta_ns: u64,
    /// CTAs handed out at once, at most: one before it is known how long they take, and where they wait for others.
    most: u64,
    pub(crate) release: Option<Release>,
    /// Address >> 8 of the descriptor that is launched at the end.
    pub(crate) dependent: Option<u32>,
    /// A kernel has launched it.
    child: bool,
    /// What its threads launch.
    pub(crate) launched: Arc<Launched>,
    /// Address of its program's entry.
    program: u64,
    stack_bytes: u32,
}

impl Active {
    pub(crate) fn new(job: Job, id: u64) -> Active {
        Active { id, job, in_flight: 0, handed: 0, position: 0 }
    }

    /// The next unit of work, if there is one to hand out; what it needs is charged to `budget`. `alone`: no other channel wants
    /// the GPU, or has had anything of it for a while.
    pub(crate) fn take(&mut self, chip: &Chip, budget: u32, alone: bool) -> Take {
        if !self.has_work() {
            return Take::Nothing;
        }
        let work = match &mut self.job {
            Job::Prepare(_) => return Take::Nothing,
            Job::Invalidate(invalidate) => Work::Invalidate { invalidate: invalidate.clone(), from: self.position },
            // A transfer of nothing still takes one unit.
            Job::Copy(transfer) => {
                let part = self.position..(self.position + transfer.part()).min(transfer.total());
                self.position = part.end;
                Work::Copy { transfer: Arc::clone(transfer), part }
            }
            Job::Grid(grid) => match grid.take(chip, budget, alone) {
                Take::Work(work) => work,
                other => return other,
            },
        };
        self.handed += 1;
        self.in_flight += 1;
        Take::Work(work)
    }

    /// Whether what is handed out next is the first of a grid or a copy.
    pub(crate) fn begins(&self) -> bool {
        self.handed == 0 && matches!(self.job, Job::Grid(_) | Job::Copy(_))
    }

    /// True if a worker could be given something now, or, of a preparation, something could be begun.
    pub(crate) fn has_work(&self) -> bool {
        match &self.job {
            Job::Prepare(preparation) => matches!(preparation.stage, Stage::New),
            Job::Invalidate(invalidate) => {
                self.in_flight == 0 && (self.handed == 0 || self.position < invalidate.end())
            }
            Job::Copy(transfer) => self.handed == 0 || self.position < transfer.total(),
            Job::Grid(grid) => grid.has_work(),
        }
    }

    /// An invalidate came so far.
    pub(crate) fn invalidated(&mut self, to: u64) {
        self.position = to;
    }

    /// All units were handed out and are back.
    pub(crate) fn is_done(&self) -> bool {
        self.in_flight == 0
            && match &self.job {
                Job::Prepare(_) => false,
                Job::Grid(grid) => grid.done == grid.total,
                _ => !self.has_work(),
            }
    }

    /// A grid of which nothing is under way makes room for what it has launched.
    pub(crate) fn steps_aside(&self) -> bool {
        self.in_flight == 0 && matches!(&self.job, Job::Grid(grid) if grid.steps_aside())
    }

    /// True if the method that has started the work may start it anew: nothing of it was begun, or it may be done twice. What kernels
    /// have launched it would start with them.
    pub(crate) fn may_begin_again(&self) -> bool {
        match &self.job {
            Job::Prepare(preparation) => !preparation.request.child,
            Job::Copy(_) | Job::Invalidate(_) => true,
            Job::Grid(grid) => self.handed == 0 && !grid.child,
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

    /// True if dropping it takes long: CTAs are under way.
    pub(crate) fn is_heavy(&self) -> bool {
        matches!(&self.job, Job::Grid(grid) if !grid.preempted.is_empty() || !grid.yielded.is_empty())
    }
}

impl GridJob {
    /// A grid of code that is there.
    pub(crate) fn new(
        chip: &Chip,
        budget: u32,
        prepared: Arc<Prepared>,
        request: LaunchRequest,
        space: &Space,
        family: &Family,
    ) -> Result<GridJob, ChannelError> {
        let code = Arc::clone(&prepared.code);
        let mut launch = request.launch;
        check(&code, &launch)
            .map_err(|what| ChannelError::new(ErrorCode::GR_EXCEPTION, Reason::ILLEGAL_COMMAND, what.to_owned()))?;
        launch.params.resize(code.kernel().param_bytes as usize, 0);
        // What is handed out is clusters: of one CTA, if there are none.
        let total: u64 = launch.clusters().iter().map(|side| u64::from(*side)).product();
        let ranks = u64::from(launch.cluster_ctas());
        let cta_bytes = code.cta_bytes(launch.dynamic_shared).saturating_mul(ranks);
        let cta_maps = ranks.saturating_mul(code.cta_maps().into());
        let resident = if request.cooperative { total.saturating_mul(cta_bytes) } else { cta_bytes };
        let ctas = if request.cooperative { total } else { 1 };
        let mapped = ctas.saturating_mul(cta_maps);
        if resident > chip.budgets.limit(budget) || mapped > chip.budgets.most_mapped() {
            let what = match (request.cooperative, ranks) {
                (true, _) => "a cooperative grid",
                (false, 1) => "a CTA",
                (false, _) => "a cluster",
            };
            return Err(out_of_resources(&chip.budgets, budget, resident, what));
        }
        if chip.engine == EngineKind::Jit && !code.is_machine_code() {
            chip.budgets.count_interpreted(budget);
        }
        let launched = Arc::new(Launched::new(&chip.budgets, budget, family));
        let grid = Arc::new(Grid {
            code,
            launch,
            window: Arc::clone(space.window()),
            window_lo: space.window_lo(),
            control: Arc::new(AtomicU32::new(Control::RUN)),
            checker: chip.checker.clone(),
            launcher: Some(Arc::clone(&launched) as Arc<_>),
        });
        Ok(GridJob {
            grid,
            prepared,
            cta_bytes,
            cta_maps,
            total,
            done: 0,
            unstarted: std::iter::once(0..total).collect(),
            preempted: VecDeque::new(),
            yielded: VecDeque::new(),
            resume_next: false,
            cooperative: request.cooperative,
            whole: None,
            cta_ns: 1,
            most: 1,
            release: request.release,
            dependent: request.dependent,
            child: request.child,
            launched,
            program: request.program,
            stack_bytes: request.stack_bytes,
        })
    }

    fn has_work(&self) -> bool {
        let begun = !(self.preempted.is_empty() && self.yielded.is_empty());
        begun || !self.unstarted.is_empty() && (self.cooperative || !self.launched.is_crowded())
    }

    /// No CTA of it is with anybody but a worker, and some have not begun. All those of a cooperative grid are under way together.
    pub(crate) fn has_only_unstarted(&self) -> bool {
        let begun = !(self.preempted.is_empty() && self.yielded.is_empty());
        !begun && !self.unstarted.is_empty() && !self.cooperative
    }

    /// What its launches take from it.
    pub(crate) fn parent(&self) -> Parent {
        let (program, stack_bytes) = (self.program, self.stack_bytes);
        Parent { program, stack_bytes, driver: self.grid.launch.driver }
    }

    /// CTAs wait for each other: those that run should give way now and then.
    pub(crate) fn wants_rotation(&self) -> bool {
        !self.preempted.is_empty() || !self.yielded.is_empty() || self.cooperative && !self.unstarted.is_empty()
    }

    fn take(&mut self, chip: &Chip, budget: u32, alone: bool) -> Take {
        let work = |grid: &Arc<Grid>, resident| Take::Work(Work::Ctas { grid: Arc::clone(grid), resident });
        // All CTAs of a cooperative grid have to be started before it pays to go on with one that was preempted.
        if (!self.cooperative || self.unstarted.is_empty())
            && let Some(cta) = self.preempted.pop_front()
        {
            return work(&self.grid, cta);
        }
        let full = !self.cooperative && self.yielded.len() >= MAX_WAITING;
        if self.unstarted.is_empty() || full || self.resume_next {
            self.resume_next = false;
            if let Some(cta) = self.yielded.pop_front() {
                return work(&self.grid, cta);
            }
        }
        if self.unstarted.is_empty() || !self.cooperative && self.launched.is_crowded() {
            return Take::Nothing;
        }
        let Ok(charge) = self.charge(&chip.budgets, budget) else {
            // Residency is limited: those that have begun go on first.
            return match self.preempted.pop_front().or_else(|| self.yielded.pop_front()) {
                Some(cta) => work(&self.grid, cta),
                None => Take::Full(self.need()),
            };
        };
        let Some(range) = self.unstarted.last_mut() else { return Take::Nothing };
        let left: u64 = range.end - range.start;
        let share = left.div_ceil(2 * chip.workers);
        let (time, most) = if alone { BATCH_ALONE } else { BATCH };
        let batch = (time / self.cta_ns).min(most).min(self.most).min(share).max(1);
        // Of those that launch one at a time: what waits is to be seen in time.
        let count = if self.launched.is_quiet() { batch } else { 1 };
        let part = range.start..range.start + count;
        range.start += count;
        if range.start == range.end {
            self.unstarted.pop();
        }
        self.resume_next = !self.yielded.is_empty();
        let batch = Batch::new(Arc::clone(&self.grid), part);
        work(&self.grid, Box::new(Resident { batch, charge }))
    }

    /// The charge for one more CTA under way; of a cooperative grid, for all of them at the first.
    fn charge(&mut self, budgets: &Arc<Budgets>, budget: u32) -> Result<Option<Charge>, ()> {
        if self.whole.is_some() {
            return Ok(None);
        }
        let charge = budgets.charge_mapped(budget, self.need()).ok_or(())?;
        if !self.cooperative {
            return Ok(Some(charge));
        }
        self.whole = Some(charge);
        Ok(None)
    }

    /// What has to be there before more of it begins. It is not more than one may have.
    fn need(&self) -> Need {
        let ctas = if self.cooperative { self.total } else { 1 };
        let maps = ctas.saturating_mul(self.cta_maps);
        Need { bytes: ctas.saturating_mul(self.cta_bytes), maps: maps.try_into().unwrap_or(u32::MAX) }
    }

    /// Takes back what a worker did.
    pub(crate) fn returned(&mut self, ctas: Ctas) {
        self.done += ctas.done;
        if let Some(per_cta) = ctas.elapsed.checked_div(ctas.done)
            && ctas.afresh
        {
            self.cta_ns = per_cta.max(1);
            self.most = self.most.max(4 * ctas.done);
        }
        if !ctas.rest.is_empty() {
            let at = self.unstarted.partition_point(|range| range.start > ctas.rest.start);
            self.unstarted.insert(at, ctas.rest);
        }
        match ctas.parked {
            Some((cta, true)) => self.preempted.push_back(cta),
            Some((cta, false)) => {
                self.most = 1;
                self.yielded.push_back(cta);
            }
            None => {}
        }
    }
}

/// Whether a kernel may be launched so.
fn check(code: &Code, launch: &Launch) -> Result<(), &'static str> {
    let kernel = code.kernel();
    if let Some(bound) = kernel.max_ntid {
        let threads = |block: [u32; 3]| block.iter().map(|side| u64::from(*side)).product::<u64>();
        let fits = if kernel.exact_ntid { launch.block == bound } else { threads(launch.block) <= threads(bound) };
        if !fits {
            return Err("CTA shape differs from what the kernel requires");
        }
    }
    let fixed = u64::from(kernel.shared_bytes).next_multiple_of(kernel.shared_align.max(1).into());
    if fixed + u64::from(launch.dynamic_shared) > MAX_SHARED_BYTES.into() {
        return Err("too much shared memory");
    }
    Ok(())
}

impl Work {
    /// Does it. The caller holds no lock.
    pub(crate) fn run(self, chip: &Chip) -> Outcome {
        match self {
            Work::Ctas { grid, resident } => Outcome::Ctas(run_batch(&grid, resident)),
            Work::Copy { transfer, part } => Outcome::Copied(transfer.run(&chip.memory, part)),
            Work::Invalidate { invalidate, from } => Outcome::Invalidated(invalidate.step(chip, from)),
        }
    }
}

/// Runs CTAs in increasing order, until one does not end.
fn run_batch(grid: &Grid, mut resident: Box<Resident>) -> Ctas {
    let start = std::time::Instant::now();
    let batch = &mut resident.batch;
    let (before, afresh) = (batch.ended(), !batch.is_under_way());
    let step = batch.resume();
    let elapsed = start.elapsed();
    let asked = grid.control.load(Ordering::Relaxed) != Control::RUN;
    if elapsed >= LONG && !asked {
        grid.window.expect_more();
    }
    let done = batch.ended() - before;
    let kernel = grid.code.kernel();
    let site =
        || batch.fault_site().map(|site| site.told(&kernel.name, grid.launch.block, &kernel.origins, &kernel.sources));
    let exception = match step {
        Step::Exception(exception) => Some((exception, site().unwrap_or_default())),
        _ => None,
    };
    Ctas {
        done,
        starved: step == Step::Preempted && done == 0 && !batch.is_under_way(),
        rest: batch.take_rest(),
        exception,
        parked: (step == Step::Preempted && batch.is_under_way()).then_some((resident, asked)),
        elapsed: elapsed.as_nanos() as u64,
        afresh,
    }
}
