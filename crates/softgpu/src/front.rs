//! The front end: channels, runlists, and the choice of what workers do next. All of it under one lock, held shortly:
//! memory is copied, programs are read and compiled, and kernels run outside.
//!
//! A channel that may have something to do stands in its TSG's queue, and a TSG with a queue is active in [`Shares`].
//! [`Front::next`] asks the TSGs in the order of their shares, and the channels of each in turn: a channel with a job
//! gives a unit of it; one without reads its pushbuffer until it has one.
//!
//! - `dispatch`: the choice of the next unit. `queues`: which channels stand for it.
//! - `completion`: what came of units, and the end of jobs.
//! - `preparation`: grids whose code is not there yet: reading and compiling, elsewhere.
//! - `waiters`: channels that wait for semaphores. `residency`: channels that wait for room in their budget.
//! - `slices`: the end of time slices. `failure`: errors of channels.
//! - `control`: binding and enabling channels. `runlists`: listing and preempting TSGs.

mod completion;
mod control;
mod dispatch;
mod failure;
mod preparation;
mod queues;
mod residency;
mod runlists;
mod slices;
mod waiters;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use gpu_spec::regs::{CHANNELS, accounting};

pub(crate) use self::dispatch::{Next, Wants};
pub(crate) use self::runlists::Hold;
pub(crate) use self::slices::ROOM_NS;

use self::residency::Residency;
use self::waiters::Waiters;
use crate::background::{Rubbish, Trash};
use crate::channel::{Channel, Effects};
use crate::chip::Chip;
use crate::clock::Clock;
use crate::job::Work;
use crate::occupancy::Occupancy;
use crate::schedule::{Served, Shares};
use crate::space::Space;

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
    /// Since when what comes next could begin, device time.
    ready: Option<u64>,
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
    /// Kernels that are being read or compiled in its name.
    preparing: u32,
    /// Channels that want to have more of that done than may be under way.
    postponed: BTreeSet<u32>,
}

/// What a worker is to do.
#[derive(Debug)]
pub(crate) struct Task {
    work: Work,
    /// The window that machine code runs in lives as long as the task.
    space: Arc<Space>,
    origin: Origin,
}

/// Where the outcome of a task belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    channel: u32,
    tsg: usize,
    job: u64,
}

impl Task {
    /// Splits a task into what to do and where the outcome belongs.
    pub(crate) fn open(self) -> (Work, Arc<Space>, Origin) {
        (self.work, self.space, self.origin)
    }
}

/// What a worker does at the moment.
#[derive(Clone, Copy, Debug)]
struct Running {
    origin: Origin,
    /// Begin of the unit, device time.
    start: u64,
    /// Until when its time is charged.
    charged: u64,
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
    served: Served,
    clock: Clock,
    occupancy: Occupancy,
    /// What workers do, and behind them as many threads that lend themselves. No more than there are workers at once.
    running: Vec<Option<Running>>,
    workers: usize,
    waiters: Waiters,
    residency: Residency,
    /// Channels whose kernels are being compiled.
    compiling: BTreeSet<u32>,
    order: Vec<usize>,
    /// Empty; kept for its memory.
    effects: Effects,
    /// Turns in which channels have read their pushbuffers (wraps).
    pub(crate) turns: u64,
    /// The ticker looks every millisecond, and need not be woken for what runs.
    pub(crate) ticking: bool,
    /// When it looks again by itself, device time.
    pub(crate) ticker_wakes: u64,
    /// What is to be dropped when the lock is released.
    trash: Vec<Trash>,
}

impl Front {
    pub(crate) fn new(workers: usize, clock: Clock) -> Front {
        Front {
            ports: (0..CHANNELS).map(|_| Port::default()).collect(),
            tsgs: (0..accounting::TSGS).map(|_| Tsg::default()).collect(),
            hold: None,
            hold_runlists: 0,
            disabled_runlists: 0,
            shares: Shares::new(accounting::TSGS as usize),
            served: Served::default(),
            clock,
            occupancy: Occupancy::new(workers, clock.now()),
            running: vec![None; 2 * workers],
            workers,
            waiters: Waiters::default(),
            residency: Residency::default(),
            compiling: BTreeSet::new(),
            order: Vec::new(),
            effects: Effects::default(),
            turns: 0,
            ticking: false,
            ticker_wakes: 0,
            trash: Vec::new(),
        }
    }

    /// Counts the time until now as what it was: to be called before that changes.
    fn note(&mut self, now: u64) {
        let busy = self.running.iter().flatten().count();
        self.occupancy.note(now, busy, self.shares.count());
    }

    /// How long multiprocessors had nothing to do, and how long others waited for them all the same; nanoseconds of the device.
    pub(crate) fn unused(&mut self) -> (u64, u64) {
        self.note(self.clock.now());
        self.occupancy.unused()
    }

    /// What is to be dropped now that the lock will be released.
    pub(crate) fn take_trash(&mut self, chip: &Chip) -> Rubbish {
        Rubbish::new(&chip.budgets, std::mem::take(&mut self.trash))
    }

    /// Stops everything, for the end of the device.
    pub(crate) fn shut_down(&mut self) {
        for id in 0..self.ports.len() as u32 {
            self.park(id);
            self.ports[id as usize].enabled = false;
        }
    }
}
