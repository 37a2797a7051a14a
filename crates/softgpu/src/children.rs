//! What grids launch: dynamic parallelism.
//!
//! While a grid runs, its threads add to its list ([`Launched`]). When it has ended, what is on the list runs in its channel, one after
//! another in the order of the calls, tail launches last; each with all that it launches itself. Only then has the grid ended for
//! whoever waits for it. So nothing of a grid is held while its children run, and no child waits for memory that its parent has.
//!
//! ```text
//!   grid ends ──► its list becomes a level ──► first of the level runs, and ends ──► next of the level, …, tail launches
//!                         ▲                           │ it has launched something itself
//!                         └───────────────────────────┘
//!   a level is empty: its grid has ended: semaphore, and on with the level below
//! ```
//!
//! The last of a level takes the place of the level: a kernel that launches itself again and again needs no more memory than one
//! launch does. Where many wait, a grid that has CTAs left to begin is put aside as soon as none of its CTAs is under way, and goes
//! on when they have run.
//!
//! # What it costs
//! Each thing that waits is charged to the channel's budget, and each list of such things; there are at most [`MOST_PENDING`] things in a
//! channel: then, and where the budget has no room, the launch gives an error.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gpu_spec::program::Entry;
use parking_lot::Mutex;
use ptx::children::{Launcher, Refused, Work};
use ptx::launch::{DriverArea, Launch};

use crate::budget::{Budgets, Charge};
use crate::chip::Chip;
use crate::copy::Transfer;
use crate::host::Release;
use crate::job::{Active, GridJob, Job, LaunchRequest, Preparation};
use crate::space::Space;

/// Most launches of a channel's grids that wait, whatever a program asks for (`cudaLimitDevRuntimePendingLaunchCount`): a kernel of a
/// line could else have the device keep gigabytes, where the budget has no limit.
pub(crate) const MOST_PENDING: u32 = 1 << 16;
/// From so many on, what waits goes first where it can: as many as CUDA lets wait, unless a program asks for more.
const MANY_PENDING: u32 = 2048;
/// Levels up to which a grid is put aside: what is put aside is not charged.
const MOST_ASIDE: usize = 64;

/// Something that was launched and waits.
#[derive(Debug)]
struct Waiting {
    work: Work,
    #[expect(dead_code, reason = "given back when it is dropped")]
    charge: Charge,
    #[expect(dead_code, reason = "counts while it lives")]
    counted: Counted,
}

/// One of a channel's launches that wait.
#[derive(Debug)]
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn new(pending: &Arc<AtomicU32>) -> Option<Counted> {
        let more = |count: u32| (count < MOST_PENDING).then_some(count + 1);
        pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Counted(Arc::clone(pending)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Host memory for one that waits: a list that has grown is up to twice as long as what it holds.
const WAITING_BYTES: u64 = 2 * size_of::<Waiting>() as u64;
/// For the list itself, however short, and the level that it becomes.
const LIST_BYTES: u64 = (size_of::<Level>() + 8 * size_of::<Waiting>()) as u64;

#[derive(Debug, Default)]
struct Lists {
    first: VecDeque<Waiting>,
    tail: VecDeque<Waiting>,
    /// For [`LIST_BYTES`], from the first launch on.
    charge: Option<Charge>,
}

/// What the threads of a grid have launched.
#[derive(Debug)]
pub(crate) struct Launched {
    budgets: Arc<Budgets>,
    budget: u32,
    /// Of the channel.
    pending: Arc<AtomicU32>,
    /// The grid may be put aside.
    may_step_aside: bool,
    /// Held for some instructions only.
    lists: Mutex<Lists>,
}

impl Launched {
    pub(crate) fn new(budgets: &Arc<Budgets>, budget: u32, family: &Family) -> Launched {
        let (budgets, pending) = (Arc::clone(budgets), Arc::clone(&family.pending));
        let may_step_aside = family.levels.len() < MOST_ASIDE;
        Launched { budgets, budget, pending, may_step_aside, lists: Mutex::default() }
    }

    fn take(&self) -> Option<Lists> {
        let lists = std::mem::take(&mut *self.lists.lock());
        (!lists.first.is_empty() || !lists.tail.is_empty()).then_some(lists)
    }

    /// So many wait that they should go first, and something of this grid's is among them.
    pub(crate) fn is_crowded(&self) -> bool {
        let many = self.may_step_aside && self.pending.load(Ordering::Relaxed) >= MANY_PENDING;
        many && !self.lists.lock().first.is_empty()
    }

    /// Nothing waits at all.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.load(Ordering::Relaxed) == 0
    }
}

impl Launcher for Launched {
    fn launch(&self, work: Work, tail: bool) -> Result<(), Refused> {
        let counted = Counted::new(&self.pending).ok_or(Refused::TooMany)?;
        let charge = |bytes| {
            let mut charge = self.budgets.charge(self.budget, bytes).ok_or(Refused::NoMemory)?;
            // Nobody who waits for room is to count on it: it waits for the same channel.
            charge.keep();
            Ok(charge)
        };
        let charged = charge(WAITING_BYTES + work.bytes())?;
        let waiting = Waiting { work, charge: charged, counted };
        let mut lists = self.lists.lock();
        if lists.charge.is_none() {
            lists.charge = Some(charge(LIST_BYTES)?);
        }
        if tail {
            lists.tail.push_back(waiting)
        } else {
            lists.first.push_back(waiting)
        }
        Ok(())
    }
}

/// What a launch takes from the grid that makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    /// Address of its program's entry.
    pub(crate) program: u64,
    pub(crate) stack_bytes: u32,
    pub(crate) driver: DriverArea,
}

/// What is left to do at the end of a grid and all that it launched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    pub(crate) release: Option<Release>,
    /// Address >> 8 of the descriptor that is launched then.
    pub(crate) dependent: Option<u32>,
}

/// A grid that has ended, or was put aside, and what it launched.
#[derive(Debug)]
struct Level {
    parent: Parent,
    lists: Lists,
    end: End,
    /// The grid, if it has CTAs left to begin.
    aside: Option<Active>,
}

/// The grids of a channel that wait for what they launched, the outermost first.
#[derive(Debug, Default)]
pub(crate) struct Family {
    levels: Vec<Level>,
    pending: Arc<AtomicU32>,
}

/// How a channel goes on.
#[derive(Debug)]
pub(crate) enum Next {
    /// With this.
    Job(Job),
    /// With a grid that was put aside.
    Aside(Active),
    /// Not before this is done.
    End(End),
    /// With what the pushbuffer says.
    Nothing,
}

impl Family {
    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Drops all that waits.
    pub(crate) fn take(&mut self) -> Option<Family> {
        (!self.is_empty()).then(|| std::mem::take(self))
    }

    /// Takes what a grid that has ended, or is to be put aside, has launched; gives the job back with what is to be done at its end, which
    /// is nothing now if it has launched anything.
    pub(crate) fn push(&mut self, mut active: Active, ended: bool) -> (Option<Active>, End) {
        let Job::Grid(grid) = &mut active.job else { return (Some(active), End::default()) };
        let end = End { release: grid.release, dependent: grid.dependent };
        let Some(lists) = grid.launched.take() else { return (Some(active), end) };
        let parent = grid.parent();
        let (aside, back, end) = if ended { (None, Some(active), end) } else { (Some(active), None, End::default()) };
        self.levels.push(Level { parent, lists, end, aside });
        (back, End::default())
    }

    /// What comes next.
    pub(crate) fn next(&mut self, chip: &Chip, space: &Arc<Space>) -> Next {
        let Some(level) = self.levels.last_mut() else { return Next::Nothing };
        let tail = level.aside.is_none();
        let next = level.lists.first.pop_front().or_else(|| level.lists.tail.pop_front_if(|_| tail));
        let Some(Waiting { work, .. }) = next else {
            let Some(mut level) = self.levels.pop() else { return Next::Nothing };
            return match level.aside.take() {
                Some(mut active) => {
                    if let Job::Grid(grid) = &mut active.job {
                        grid.launched.put_back(level.lists);
                    }
                    Next::Aside(active)
                }
                None => Next::End(level.end),
            };
        };
        let parent = level.parent;
        let last = tail && level.lists.first.is_empty() && level.lists.tail.is_empty();
        match work {
            Work::Grid { kernel, grid, block, dynamic_shared, params } => {
                let entry = kernel.wrapping_mul(size_of::<Entry>() as i64);
                let end = if last { level.end } else { End::default() };
                if last {
                    self.levels.pop();
                }
                let launch = Launch {
                    grid,
                    block,
                    dynamic_shared,
                    params,
                    driver: parent.driver,
                    grid_id: chip.next_grid(),
                    // The device runtime has no launches with clusters.
                    cluster: [1; 3],
                    envregs: [0; 32],
                };
                let request = LaunchRequest {
                    program: parent.program.wrapping_add_signed(entry),
                    launch,
                    stack_bytes: parent.stack_bytes,
                    cooperative: false,
                    release: end.release,
                    dependent: end.dependent,
                    child: true,
                };
                Next::Job(Job::Prepare(Box::new(Preparation::new(request))))
            }
            Work::Copy { dst, src, bytes } => Next::Job(Job::Copy(Arc::new(Transfer::copying(space, dst, src, bytes)))),
            Work::Fill { dst, value, bytes } => {
                Next::Job(Job::Copy(Arc::new(Transfer::filling(space, dst, value, bytes))))
            }
        }
    }
}

impl Launched {
    /// Puts tail launches back, of a grid that goes on: they come after what it launches from now on.
    fn put_back(&self, lists: Lists) {
        let mut own = self.lists.lock();
        let later = std::mem::replace(&mut own.tail, lists.tail);
        own.tail.extend(later);
        own.charge = lists.charge.or(own.charge.take());
    }
}

impl GridJob {
    /// It has CTAs left to begin, none under way, and so much that it launched waits that this goes first.
    pub(crate) fn steps_aside(&self) -> bool {
        self.has_only_unstarted() && self.launched.is_crowded()
    }
}

#[cfg(test)]
mod tests {
    use gpu_spec::regs::budget;

    use super::*;

    fn work() -> Work {
        Work::Grid { kernel: 0, grid: [1; 3], block: [1; 3], dynamic_shared: 0, params: vec![0; 64] }
    }

    #[test]
    fn what_waits_is_bounded_and_paid_for() {
        let budgets = Arc::new(Budgets::new());
        let family = Family::default();
        let all = LIST_BYTES + 3 * (WAITING_BYTES + work().bytes());
        budgets.write(1, budget::BYTES_LIMIT_LO, all as u32);
        budgets.write(1, budget::BYTES_LIMIT_HI, 0);
        let launched = Launched::new(&budgets, 1, &family);
        for tail in [false, true, false] {
            assert_eq!(launched.launch(work(), tail), Ok(()));
        }
        assert_eq!(launched.launch(work(), false), Err(Refused::NoMemory));
        // Nobody waits for what waits for him.
        let need = crate::budget::Need { bytes: 1, maps: 0 };
        assert!(budgets.is_vain(1, need));
        let lists = launched.take().unwrap();
        assert_eq!((lists.first.len(), lists.tail.len(), budgets.room(1)), (2, 1, 0));
        drop(lists);
        assert_eq!((budgets.room(1), family.pending.load(Ordering::Relaxed)), (all, 0));

        // Of all grids of a channel together.
        let grids = [Launched::new(&budgets, 0, &family), Launched::new(&budgets, 0, &family)];
        for index in 0..MOST_PENDING {
            assert_eq!(grids[index as usize % 2].launch(work(), false), Ok(()));
        }
        assert_eq!(grids[0].launch(work(), true), Err(Refused::TooMany));
        assert!(grids[0].is_crowded());
        drop(grids[1].take());
        assert_eq!(grids[0].launch(work(), true), Ok(()));
        assert!(!grids[1].is_crowded(), "it has launched nothing that waits");
        // What is put aside is not paid for, so it is not much.
        let mut deep = Family { levels: Vec::new(), pending: Arc::clone(&family.pending) };
        let parent = Parent { program: 0, stack_bytes: 0, driver: DriverArea::default() };
        for _ in 0..MOST_ASIDE {
            let (lists, end) = (Lists::default(), End::default());
            deep.levels.push(Level { parent, lists, end, aside: None });
        }
        let launched = Launched::new(&budgets, 0, &deep);
        assert_eq!((launched.launch(work(), false), launched.is_crowded()), (Ok(()), false));
    }
}
