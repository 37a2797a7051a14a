//! The device: its front end and the rest, and how threads come to the front end and are woken by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostmem::Freed;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::background::{Rubbish, Trash};
use crate::bar0::{Identity, Latches};
use crate::chip::Chip;
use crate::front::{Front, Next, Task, Wants};
use crate::short::SHORT_NS;

/// The device: what the register boundary and the threads share.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) chip: Chip,
    pub(crate) front: Mutex<Front>,
    pub(crate) latches: Latches,
    pub(crate) identity: Identity,
    /// Wakes workers.
    pub(crate) work: Condvar,
    /// Wakes the ticker.
    pub(crate) tick: Condvar,
    stop: AtomicBool,
    /// Threads that ring doorbells do short work.
    lend: bool,
    /// What the process keeps of freed memory, if it is to give it back.
    freed: Option<Arc<Freed>>,
}

/// Whoever changes the device holds one outside of its locks: if it panics, the device is lost.
#[derive(Debug)]
pub(crate) struct Guard<'a>(pub(crate) &'a Device);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.chip.lost.store(true, Ordering::SeqCst);
            self.0.shut_down();
        }
    }
}

impl Device {
    pub(crate) fn new(chip: Chip, identity: Identity, lend: bool, freed: Option<Arc<Freed>>) -> Device {
        let workers = chip.workers as usize;
        let front = Mutex::new(Front::new(workers, chip.clock));
        Device {
            chip,
            front,
            latches: Latches::default(),
            identity,
            work: Condvar::new(),
            tick: Condvar::new(),
            stop: AtomicBool::new(false),
            lend,
            freed,
        }
    }

    /// Rings a channel's doorbell.
    pub(crate) fn ring(&self, channel: u32) {
        if self.lend && self.work_here(channel) {
            return;
        }
        let bells = &self.chip.doorbells;
        bells.ring(channel);
        // Workers that are busy look when they are done, and the ticker looks while they are busy.
        if !bells.spinning.load(Ordering::SeqCst) && bells.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.front.lock());
            self.work.notify_one();
        } else if self.lend {
            // Who had the front end may have let it go before it rang.
            self.hear();
        }
    }

    /// Hears a doorbell on the thread that rings it, and does what is short; the rest is left to workers, who leave what has had
    /// its time for it. False if another thread has the front end.
    fn work_here(&self, channel: u32) -> bool {
        // Dropped after the lock: what it does takes the lock.
        let _guard = Guard(self);
        let Some(mut front) = self.front.try_lock() else { return false };
        front.doorbell(&self.chip, channel);
        let until = Instant::now() + Duration::from_nanos(2 * SHORT_NS);
        while let Some(place) = front.place()
            && let Some(tsg) = front.ports[channel as usize].tsg
            && Instant::now() < until
            && !self.stopping()
        {
            match front.next(&self.chip, place, Wants::ShortOf(tsg)) {
                Next::Task(task) => self.run(&mut front, place, *task),
                Next::Again => MutexGuard::bump(&mut front),
                Next::Nothing => break,
            }
        }
        front.make_way(&self.chip);
        self.watch(&mut front);
        let trash = front.take_trash(&self.chip);
        self.wake(&front);
        drop(front);
        self.hear();
        self.discard(trash);
        true
    }

    /// Whoever lets the front end go hears what rang meanwhile: whoever rang found it taken, and went away. Where all workers are
    /// busy nobody else would listen before the next tick. Little is done with the front end taken, but it may take long: who
    /// has it wakes others, and Linux gives them its processor at once. What rings from now on finds it free, or is heard by
    /// who has it then.
    fn hear(&self) {
        /// Whoever rings on and on finds it free in between.
        const TIMES: usize = 4;
        for _ in 0..TIMES {
            if !self.chip.doorbells.any() {
                return;
            }
            let Some(mut front) = self.front.try_lock() else { return };
            front.take_doorbells(&self.chip);
            front.make_way(&self.chip);
            self.wake(&front);
        }
    }

    /// Does a unit, without the lock.
    pub(crate) fn run(&self, front: &mut MutexGuard<'_, Front>, place: usize, task: Task) {
        self.share_work(front);
        let trash = front.take_trash(&self.chip);
        let (origin, outcome) = MutexGuard::unlocked(front, || {
            self.hear();
            self.discard(trash);
            let (work, space, origin) = task.open();
            let outcome = work.run(&self.chip);
            // Its channel may be gone meanwhile, and the space be this thread's to drop.
            if Arc::strong_count(&space) == 1 {
                self.discard(Rubbish::new(&self.chip.budgets, vec![Trash::Space(space)]));
            }
            (origin, outcome)
        });
        front.complete(&self.chip, place, origin, outcome);
    }

    /// Changes the front end, and lets what became possible happen.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Front, &Chip) -> R) -> R {
        let _guard = Guard(self);
        let mut front = self.front.lock();
        let result = change(&mut front, &self.chip);
        let trash = front.take_trash(&self.chip);
        self.watch(&mut front);
        self.wake(&front);
        drop(front);
        self.hear();
        self.discard(trash);
        result
    }

    /// Drops what is quickly dropped; the rest is done in the background.
    pub(crate) fn discard(&self, rubbish: Rubbish) {
        if rubbish.is_heavy() {
            self.chip.background.discard(rubbish);
        }
    }

    /// The life of the thread that reads programs.
    pub(crate) fn read_in_background(&self) {
        let _guard = Guard(self);
        self.chip.background.read(&self.chip, |loaded| self.change(|front, chip| front.loaded(chip, loaded)));
    }

    /// The life of the thread that frees memory.
    pub(crate) fn free_in_background(&self) {
        let _guard = Guard(self);
        self.chip.background.free(&self.chip, self.freed.as_deref(), || self.change(|_, _| ()));
    }

    /// Makes a worker look at the front end, if there is something to see.
    pub(crate) fn wake(&self, front: &Front) {
        let bells = &self.chip.doorbells;
        if !front.has_queue(&self.chip) {
            return;
        }
        if bells.spinning.load(Ordering::SeqCst) {
            bells.poked.store(true, Ordering::SeqCst);
        } else if bells.sleepers.load(Ordering::SeqCst) > 0 {
            self.work.notify_one();
        }
    }

    /// Ends the threads: all kernels stop.
    pub(crate) fn shut_down(&self) {
        let mut front = self.front.lock();
        self.stop.store(true, Ordering::SeqCst);
        front.shut_down();
        drop(front);
        self.work.notify_all();
        self.tick.notify_all();
        self.chip.background.end();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.chip.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || self.is_lost()
    }

    /// Wakes the ticker if somebody has to look at what channels wait for, or to charge for compilations.
    pub(crate) fn watch(&self, front: &mut Front) {
        if front.is_ticker_late(&self.chip) {
            self.tick.notify_one();
        }
    }
}
