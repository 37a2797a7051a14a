//! The front end: channels, runlists, and the choice of what workers do next. All of it under one lock, held shortly:
//! memory is copied, programs are compiled and kernels run outside.
//!
//! A channel that may have something to do stands in its TSG's queue, and a TSG with a queue is active in [`Shares`].
//! [`Front::next`] asks the TSGs in the order of their shares, and the channels of each in turn: a channel with a job
//! gives a unit of it; one without reads its pushbuffer until it has one.

mod control;

use std::collections::VecDeque;

use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{Code, Reason};
use gpu_spec::regs::{CHANNELS, accounting, vector};

use crate::channel::{Advanced, Channel};
use crate::error::{ChannelError, Unit};
use crate::job::{Active, Ctas, GridJob, Job, Outcome, Work};
use crate::schedule::Shares;
use crate::shared::Shared;
use crate::space::Space;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of a pushbuffer that a channel may process before others have their turn.
const TURN_WORDS: u32 = 1024;
/// How long a CTA keeps a worker while another of its own TSG waits for one, nanoseconds.
const ROTATION_NS: u64 = 1_000_000;
/// How long a unit may keep a thread that lent itself, nanoseconds, if it turns out not to be short.
const LENT_NS: u64 = 100_000;

/// A channel's place: its registers, and what is bound to it.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// `PCCSR_INST`.
    pub(crate) inst: u32,
    pub(crate) enabled: bool,
    pub(crate) pbdma_faulted: bool,
    pub(crate) eng_faulted: bool,
    pub(crate) channel: Option<Box<Channel>>,
    /// The TSG through which a runlist names the channel.
    pub(crate) tsg: Option<usize>,
    /// Units that workers have, also of jobs that are gone.
    pub(crate) in_flight: u32,
    /// Stands in its TSG's queue.
    queued: bool,
}

/// A TSG that a runlist names.
#[derive(Debug, Default)]
pub(crate) struct Tsg {
    /// The runlist, if one names it.
    pub(crate) runlist: Option<usize>,
    pub(crate) channels: Vec<u32>,
    /// Units that workers have in its name, also of channels that have left it.
    in_flight: u32,
    queue: VecDeque<u32>,
}

/// What a worker is to do.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) space: Arc<Space>,
    channel: u32,
    tsg: usize,
    job: u64,
}

/// Answer to a worker that wants work.
#[derive(Debug)]
pub(crate) enum Next {
    Task(Box<Task>),
    /// Something went on, but there is no unit yet: ask again.
    Again,
    Nothing,
}

/// What a thread that asks for work would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wants {
    Any,
    /// Only what should be done soon ([`crate::short`]), and belongs to this TSG: whoever lends a thread works for itself.
    ShortOf(usize),
}

/// What a worker does at the moment.
#[derive(Clone, Copy, Debug)]
struct Running {
    channel: u32,
    tsg: usize,
    job: u64,
    /// Begin of the unit, device time.
    start: u64,
    /// Until when its time is charged.
    charged: u64,
}

/// A pending `PREEMPT`: what it names gets no worker until nothing of it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    Channel(u32),
    Tsg(usize),
}

/// The state behind the front end's lock.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) ports: Vec<Port>,
    pub(crate) tsgs: Vec<Tsg>,
    pub(crate) hold: Option<Hold>,
    /// Runlists that a `RUNLIST_PREEMPT` holds.
    pub(crate) hold_runlists: u32,
    /// Runlists that `SCHED_DISABLE` stops.
    pub(crate) disabled_runlists: u32,
    shares: Shares,
    /// What workers do, and behind them as many threads that lend themselves. No more than there are workers at once.
    running: Vec<Option<Running>>,
    workers: usize,
    /// Channels that wait for a semaphore.
    waiting: Vec<u32>,
    /// A semaphore may have changed since they last looked.
    released: bool,
    order: Vec<usize>,
    /// The ticker looks now and then, and need not be woken.
    pub(crate) ticking: bool,
    /// What is to be dropped when the lock is released: it may hold much memory.
    trash: Vec<Trash>,
}

/// Something to drop outside the lock.
#[derive(Debug)]
#[expect(dead_code, reason = "held only to be dropped")]
pub(crate) enum Trash {
    Job(Active),
    Channel(Box<Channel>),
}

impl Front {
    pub(crate) fn new(workers: usize) -> Front {
        Front {
            ports: (0..CHANNELS).map(|_| Port::default()).collect(),
            tsgs: (0..accounting::TSGS).map(|_| Tsg::default()).collect(),
            hold: None,
            hold_runlists: 0,
            disabled_runlists: 0,
            shares: Shares::new(accounting::TSGS as usize),
            running: vec![None; 2 * workers],
            workers,
            waiting: Vec::new(),
            released: false,
            order: Vec::new(),
            ticking: false,
            trash: Vec::new(),
        }
    }

    /// What is to be dropped now that the lock will be released.
    pub(crate) fn take_trash(&mut self) -> Vec<Trash> {
        std::mem::take(&mut self.trash)
    }

    // What workers ask.

    /// The next unit of work for a thread.
    pub(crate) fn next(&mut self, shared: &Shared, worker: usize, wants: Wants) -> Next {
        self.hear(shared);
        if std::mem::take(&mut self.released) {
            self.retry(shared);
        }
        if self.is_full() {
            return Next::Nothing;
        }
        let mut order = std::mem::take(&mut self.order);
        self.shares.order(&mut order);
        let mut found = Next::Nothing;
        for &tsg in &order {
            if matches!(wants, Wants::ShortOf(own) if own != tsg) {
                continue;
            }
            match self.next_of(shared, tsg, worker, wants) {
                Next::Nothing => {}
                Next::Again => found = Next::Again,
                task @ Next::Task(_) => {
                    found = task;
                    break;
                }
            }
        }
        self.order = order;
        if matches!(found, Next::Nothing) && self.released {
            return Next::Again;
        }
        found
    }

    /// All multiprocessors are in use.
    fn is_full(&self) -> bool {
        self.running.iter().flatten().count() >= self.workers
    }

    /// A place for a thread that lends itself.
    pub(crate) fn place(&self) -> Option<usize> {
        let free = || (self.workers..self.running.len()).find(|place| self.running[*place].is_none());
        if self.is_full() { None } else { free() }
    }

    /// Takes the doorbells that rang.
    pub(crate) fn hear(&mut self, shared: &Shared) {
        if !shared.doorbells.any() {
            return;
        }
        let mut heard = Vec::new();
        shared.doorbells.take(|channel| heard.push(channel));
        for channel in heard {
            self.rang(shared, channel);
        }
    }

    /// A channel's doorbell rang.
    pub(crate) fn rang(&mut self, shared: &Shared, channel: u32) {
        self.look(shared, channel);
        // Whoever rings may have stored to a semaphore before.
        self.released = true;
    }

    /// Puts a channel into the queue if its GPFIFO has entries.
    fn look(&mut self, shared: &Shared, channel: u32) {
        let found = self.ports[channel as usize].channel.as_mut().is_some_and(|channel| channel.look(shared));
        if found {
            self.enqueue(channel);
        }
    }

    fn next_of(&mut self, shared: &Shared, tsg: usize, worker: usize, wants: Wants) -> Next {
        let mut again = false;
        for _ in 0..self.tsgs[tsg].queue.len() {
            let Some(id) = self.tsgs[tsg].queue.pop_front() else { break };
            self.ports[id as usize].queued = false;
            if !self.may_run(id) {
                // It comes back when what holds it is gone.
                continue;
            }
            match self.next_unit(shared, id, wants) {
                Next::Task(task) => {
                    let now = shared.clock.now();
                    self.running[worker] = Some(Running { channel: id, tsg, job: task.job, start: now, charged: now });
                    self.enqueue_if_work(id);
                    self.settle(tsg);
                    return Next::Task(task);
                }
                Next::Again => {
                    again = true;
                    self.enqueue(id);
                }
                Next::Nothing => {}
            }
        }
        self.settle(tsg);
        if again { Next::Again } else { Next::Nothing }
    }

    /// A unit of a channel's job; without a job, the channel reads its pushbuffer for one turn.
    fn next_unit(&mut self, shared: &Shared, id: u32, wants: Wants) -> Next {
        let port = &mut self.ports[id as usize];
        let (Some(channel), Some(tsg)) = (port.channel.as_mut(), port.tsg) else { return Next::Nothing };
        if channel.waiting.is_some() {
            if !self.waiting.contains(&id) {
                self.waiting.push(id);
                self.released = true;
            }
            return Next::Nothing;
        }
        if channel.job.is_none() {
            let before = shared.clock.now();
            let advanced = channel.advance(shared, &mut self.released, TURN_WORDS);
            self.charge(shared, tsg, shared.clock.now().saturating_sub(before));
            match advanced {
                Ok(Advanced::Job) => {}
                Ok(Advanced::Turn) => return Next::Again,
                Ok(Advanced::Idle) => return Next::Nothing,
                Ok(Advanced::Waiting) => {
                    self.waiting.push(id);
                    return Next::Nothing;
                }
                Err(error) => {
                    self.fail(shared, id, &error);
                    return Next::Nothing;
                }
            }
        }
        let port = &mut self.ports[id as usize];
        let Some(channel) = port.channel.as_mut() else { return Next::Nothing };
        let Some(active) = channel.job.as_mut() else { return Next::Nothing };
        // Once a worker compiles, its result starts the grid: the cache may know the code a moment earlier.
        if let Job::Compile(request) = &active.job
            && active.in_flight == 0
            && let Some(code) = channel.space.programs.get(request.program, request.launch.block)
        {
            self.compiled(shared, id, code);
        }
        self.unit(shared, id, wants)
    }

    fn unit(&mut self, shared: &Shared, id: u32, wants: Wants) -> Next {
        let port = &mut self.ports[id as usize];
        let (Some(channel), Some(tsg)) = (port.channel.as_mut(), port.tsg) else { return Next::Nothing };
        let Some(active) = channel.job.as_mut() else { return Next::Nothing };
        if wants != Wants::Any && !channel.pace.is_short(active) {
            // It stays for a worker.
            self.enqueue_if_work(id);
            return Next::Nothing;
        }
        let Some(work) = active.take(shared.workers) else { return Next::Nothing };
        active.unpreempt();
        port.in_flight += 1;
        self.tsgs[tsg].in_flight += 1;
        Next::Task(Box::new(Task { work, space: Arc::clone(&channel.space), channel: id, tsg, job: active.id }))
    }

    /// Takes back what a worker did.
    pub(crate) fn complete(&mut self, shared: &Shared, worker: usize, done: Done, outcome: Outcome) {
        let Done { channel: id, tsg, job } = done;
        if let Some(running) = self.running[worker].take() {
            self.charge(shared, tsg, shared.clock.now().saturating_sub(running.charged));
        }
        self.tsgs[tsg].in_flight -= 1;
        let port = &mut self.ports[id as usize];
        port.in_flight -= 1;
        let idle = port.in_flight == 0 || self.tsgs[tsg].in_flight == 0;
        // Results of a job that is gone are dropped.
        let active = port.channel.as_mut().and_then(|channel| channel.job.as_mut()).filter(|active| active.id == job);
        if let Some(active) = active {
            active.in_flight -= 1;
            match outcome {
                Outcome::Compiled(Ok(code)) => self.compiled(shared, id, code),
                Outcome::Compiled(Err(error)) | Outcome::Copied(Err(error)) => self.fail(shared, id, &error),
                Outcome::Copied(Ok(())) | Outcome::Invalidated => {}
                Outcome::Ctas(ctas) => self.ran(shared, id, ctas),
            }
            self.finish(shared, id, tsg);
        }
        if idle && (self.hold.is_some() || self.hold_runlists != 0) {
            self.release_holds(shared);
        }
    }

    /// CTAs of a channel's grid came back.
    fn ran(&mut self, shared: &Shared, id: u32, ctas: Ctas) {
        let Some(channel) = self.ports[id as usize].channel.as_mut() else { return };
        match (ctas.exception, channel.job.as_mut().map(|active| &mut active.job)) {
            (Some(exception), _) => {
                let space = Arc::clone(&channel.space);
                let refused = |va, access| space.refused(&shared.memory, va, 1, access);
                self.fail(shared, id, &ChannelError::exception(exception, refused));
            }
            (None, Some(Job::Grid(grid))) => {
                channel.pace.learn(&grid.grid.code, ctas.done, ctas.elapsed);
                grid.returned(ctas);
            }
            (None, _) => {}
        }
    }

    /// The code of a launch is there: the grid begins.
    fn compiled(&mut self, shared: &Shared, id: u32, code: Arc<ptx_jit::Code>) {
        let Some(channel) = self.ports[id as usize].channel.as_mut() else { return };
        let Some(Active { id: job, job: Job::Compile(request), .. }) =
            channel.job.take_if(|active| matches!(active.job, Job::Compile(_)))
        else {
            return;
        };
        match GridJob::new(code, *request, &channel.space) {
            Ok(grid) => channel.job = Some(Active::new(Job::Grid(Box::new(grid)), job)),
            Err(what) => {
                let error = ChannelError::new(Code::GR_EXCEPTION, Reason::ILLEGAL_COMMAND, what.to_owned());
                self.fail(shared, id, &error);
            }
        }
    }

    /// Ends the channel's job if all of it is done, and lets the channel go on.
    fn finish(&mut self, shared: &Shared, id: u32, tsg: usize) {
        let Some(channel) = self.ports[id as usize].channel.as_mut() else { return };
        let Some(active) = channel.job.take_if(|active| active.is_done()) else {
            self.enqueue_if_work(id);
            return;
        };
        let totals = &shared.totals[tsg];
        let mut dependent = None;
        let (release, interrupt, unit) = match &active.job {
            Job::Grid(grid) => {
                totals.grids.fetch_add(1, Ordering::Relaxed);
                // Kernels may store to semaphores as well.
                self.released = true;
                dependent = grid.dependent;
                (grid.release, false, Unit::Compute)
            }
            Job::Copy(transfer) => {
                totals.copies.fetch_add(1, Ordering::Relaxed);
                (transfer.finish.release, transfer.finish.interrupt, Unit::Copy)
            }
            Job::Compile(_) | Job::Invalidate(_) => (None, false, Unit::Host),
        };
        let released = release.map(|release| release.run(shared, &channel.space, unit));
        if let (Some(descriptor), None | Some(Ok(()))) = (dependent, &released) {
            channel.launch_next(descriptor);
        }
        self.trash.push(Trash::Job(active));
        if interrupt {
            shared.interrupts.raise(vector::NON_STALL);
        }
        match released {
            Some(Err(error)) => self.fail(shared, id, &error),
            Some(Ok(())) => {
                self.released = true;
                self.enqueue(id);
            }
            None => self.enqueue(id),
        }
    }

    // Errors.

    /// An error of a channel: its TSG stops, and everyone concerned is told.
    pub(crate) fn fail(&mut self, shared: &Shared, id: u32, error: &ChannelError) {
        let now = shared.clock.now();
        let port = &mut self.ports[id as usize];
        if error.is_host() {
            port.pbdma_faulted = true;
        } else {
            port.eng_faulted = true;
        }
        let instance = port.channel.as_ref().map_or(PhysAddr::vram(0), |channel| channel.inst);
        let tsg = port.tsg;
        if let Some(fault) = error.fault(instance, now) {
            self.report(shared, &fault);
        }
        let members = match tsg {
            Some(tsg) => self.tsgs[tsg].channels.clone(),
            None => vec![id],
        };
        for member in members {
            let port = &mut self.ports[member as usize];
            let Some(channel) = port.channel.as_mut() else { continue };
            channel.stopped = true;
            if let Some(active) = channel.job.take() {
                active.preempt();
                self.trash.push(Trash::Job(active));
            }
            if let Some(notifier) = channel.notifier {
                error.notify(&shared.memory, notifier, id, now);
            }
        }
        shared.interrupts.raise(vector::CHANNEL_ERROR);
    }

    fn report(&self, shared: &Shared, fault: &gpu_spec::fault::Fault) {
        if shared.faults.lock().push(&shared.memory, fault) {
            shared.interrupts.raise(vector::FAULT);
        }
    }

    // Queues.

    /// Nothing forbids the channel to run.
    fn may_run(&self, id: u32) -> bool {
        let port = &self.ports[id as usize];
        let Some(tsg) = port.tsg else { return false };
        let Some(runlist) = self.tsgs[tsg].runlist else { return false };
        let held = self.hold == Some(Hold::Channel(id)) || self.hold == Some(Hold::Tsg(tsg));
        let runlists = self.disabled_runlists | self.hold_runlists;
        port.enabled
            && !held
            && runlists >> runlist & 1 == 0
            && port.channel.as_ref().is_some_and(|channel| !channel.stopped)
    }

    fn enqueue(&mut self, id: u32) {
        if !self.may_run(id) {
            return;
        }
        let port = &mut self.ports[id as usize];
        let Some(tsg) = port.tsg else { return };
        if !std::mem::replace(&mut port.queued, true) {
            self.tsgs[tsg].queue.push_back(id);
            self.shares.activate(tsg);
        }
    }

    fn enqueue_if_work(&mut self, id: u32) {
        let channel = self.ports[id as usize].channel.as_ref();
        if channel.and_then(|channel| channel.job.as_ref()).is_some_and(Active::has_work) {
            self.enqueue(id);
        }
    }

    /// A TSG without a queue wants nothing.
    fn settle(&mut self, tsg: usize) {
        if self.tsgs[tsg].queue.is_empty() {
            self.shares.deactivate(tsg);
        }
    }

    fn charge(&mut self, shared: &Shared, tsg: usize, ns: u64) {
        self.shares.charge(tsg, ns);
        shared.totals[tsg].worker_ns.fetch_add(ns, Ordering::Relaxed);
    }

    // What the ticker asks.

    /// Channels wait for semaphores.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tries all waiting channels again; true if one may go on.
    pub(crate) fn retry(&mut self, shared: &Shared) -> bool {
        let mut woken = false;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|id| {
            let Some(channel) = self.ports[*id as usize].channel.as_mut() else { return false };
            match channel.retry(shared) {
                Ok(true) => {
                    self.enqueue(*id);
                    woken = true;
                    false
                }
                Ok(false) => !channel.stopped,
                Err(error) => {
                    self.fail(shared, *id, &error);
                    false
                }
            }
        });
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
        woken
    }

    /// True if work waits for a worker that another has.
    pub(crate) fn is_contended(&self) -> bool {
        self.running.iter().flatten().any(|running| {
            self.shares.others(running.tsg)
                || self.tsgs[running.tsg].queue.iter().any(|channel| *channel != running.channel)
                || self.rotates(running)
        })
    }

    /// True if asking for work may give some.
    pub(crate) fn has_queue(&self) -> bool {
        (!self.shares.is_empty() || self.released) && !self.is_full()
    }

    fn rotates(&self, running: &Running) -> bool {
        let channel = self.ports[running.channel as usize].channel.as_ref();
        let active = channel.and_then(|channel| channel.job.as_ref()).filter(|active| active.id == running.job);
        matches!(active.map(|active| &active.job), Some(Job::Grid(grid)) if grid.wants_rotation())
    }

    /// True if a worker has a unit.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.iter().any(Option::is_some)
    }

    /// Preempts what has had its time. With `hear`, takes doorbells first.
    pub(crate) fn tick(&mut self, shared: &Shared, hear: bool) {
        if hear {
            self.hear(shared);
        }
        let now = shared.clock.now();
        for worker in 0..self.running.len() {
            let Some(running) = self.running[worker] else { continue };
            self.charge(shared, running.tsg, now.saturating_sub(running.charged));
            self.running[worker] = Some(Running { charged: now, ..running });
        }
        for (place, running) in self.running.iter().enumerate() {
            let Some(running) = running else { continue };
            let time = now.saturating_sub(running.start);
            let lent = place >= self.workers && time >= LENT_NS;
            let long = time >= ROTATION_NS;
            let siblings = || self.tsgs[running.tsg].queue.iter().any(|channel| *channel != running.channel);
            if lent || self.shares.should_yield(running.tsg) || long && (siblings() || self.rotates(running)) {
                self.park(running.channel);
            }
        }
    }

    /// Stops everything, for the end of the device.
    pub(crate) fn shut_down(&mut self) {
        for id in 0..self.ports.len() as u32 {
            self.park(id);
            self.ports[id as usize].enabled = false;
        }
    }
}

/// What is left of a task when its work was taken out: where the outcome belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    channel: u32,
    tsg: usize,
    job: u64,
}

impl Task {
    /// Splits a task into what to do and where the outcome belongs.
    pub(crate) fn open(self) -> (Work, Arc<Space>, Done) {
        (self.work, self.space, Done { channel: self.channel, tsg: self.tsg, job: self.job })
    }
}
