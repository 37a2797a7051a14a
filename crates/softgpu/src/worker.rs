//! The threads: workers, which do what the front end gives them, and a ticker, which preempts.
//!
//! ```text
//!            doorbell, or work left over           front end has a unit
//!   Asleep ─────────────────────────────► Asking ───────────────────────► Working
//!     ▲                                   │  ▲  ◄───────────────────────
//!     │ nothing for a while               │  │         unit done
//!     └────────── Spinning ◄──────────────┘  │
//!                 (one worker at most) ──────┘ doorbell
//! ```
//! A thread that rings a doorbell may do what is short in place of a worker ([`crate::Config::lend`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostmem::Spin;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::bar0::{Identity, Latches};
use crate::front::{Front, Next, Task, Wants};
use crate::shared::Shared;
use crate::short::SHORT_NS;

/// Time between two looks of the ticker while work waits for workers, and while they are merely busy.
const TICK: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(1));
/// How long the ticker goes on looking when no worker is busy any more: waking it costs more than a few looks.
const LINGER: Duration = Duration::from_millis(20);
/// The shortest and longest time between two looks at semaphores that somebody waits for: nobody tells when the CPU or a
/// kernel stores to one.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The device: what the register boundary and the threads share.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) shared: Shared,
    pub(crate) front: Mutex<Front>,
    pub(crate) latches: Latches,
    pub(crate) identity: Identity,
    /// Wakes workers.
    work: Condvar,
    /// Wakes the ticker.
    tick: Condvar,
    stop: AtomicBool,
    /// A thread of the device panicked: it answers no more, like a card that fell off the bus.
    lost: AtomicBool,
    /// Threads that ring doorbells do short work.
    lend: bool,
}

/// Lost if dropped by a panic.
struct Guard<'a>(&'a Device);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lost.store(true, Ordering::SeqCst);
            self.0.shut_down();
        }
    }
}

impl Device {
    pub(crate) fn new(shared: Shared, identity: Identity, workers: usize, lend: bool) -> Device {
        Device {
            shared,
            front: Mutex::new(Front::new(workers)),
            latches: Latches::default(),
            identity,
            work: Condvar::new(),
            tick: Condvar::new(),
            stop: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            lend,
        }
    }

    /// Rings a channel's doorbell.
    pub(crate) fn ring(&self, channel: u32) {
        if self.lend && self.work_here(channel) {
            return;
        }
        let bells = &self.shared.doorbells;
        bells.ring(channel);
        // Workers that are busy look when they are done, and the ticker looks while they are busy.
        if !bells.spinning.load(Ordering::SeqCst) && bells.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.front.lock());
            self.work.notify_one();
        }
    }

    /// Hears a doorbell on the thread that rings it, and does what is short; the rest is left to workers. False if another
    /// thread has the front end.
    fn work_here(&self, channel: u32) -> bool {
        let Some(mut front) = self.front.try_lock() else { return false };
        let _guard = Guard(self);
        front.rang(&self.shared, channel);
        let until = Instant::now() + Duration::from_nanos(2 * SHORT_NS);
        while let Some(place) = front.place()
            && let Some(tsg) = front.ports[channel as usize].tsg
            && Instant::now() < until
            && !self.stopping()
        {
            match front.next(&self.shared, place, Wants::ShortOf(tsg)) {
                Next::Task(task) => self.run(&mut front, place, *task),
                Next::Again => MutexGuard::bump(&mut front),
                Next::Nothing => break,
            }
        }
        self.watch(&mut front);
        let trash = front.take_trash();
        self.wake(&front);
        drop(front);
        drop(trash);
        true
    }

    /// Does a unit, without the lock.
    fn run(&self, front: &mut MutexGuard<'_, Front>, place: usize, task: Task) {
        self.share_work(front);
        let trash = front.take_trash();
        let (done, outcome) = MutexGuard::unlocked(front, || {
            drop(trash);
            let (work, space, done) = task.open();
            (done, work.run(&self.shared, &space))
        });
        front.complete(&self.shared, place, done, outcome);
    }

    /// Changes the front end, and lets what became possible happen.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Front, &Shared) -> R) -> R {
        let mut front = self.front.lock();
        let result = change(&mut front, &self.shared);
        let trash = front.take_trash();
        self.wake(&front);
        drop(front);
        drop(trash);
        result
    }

    /// Makes a worker look at the front end, if there is something to see.
    fn wake(&self, front: &Front) {
        let bells = &self.shared.doorbells;
        if !front.has_queue() {
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
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// The life of a worker.
    pub(crate) fn work(self: &Arc<Device>, worker: usize) {
        let _guard = Guard(self);
        let mut front = self.front.lock();
        let mut spin = Spin::default();
        let mut idle: Option<Instant> = None;
        while !self.stopping() {
            let next = front.next(&self.shared, worker, Wants::Any);
            if !matches!(next, Next::Nothing)
                && let Some(since) = idle.take()
            {
                spin.learn(since.elapsed());
            }
            match next {
                Next::Task(task) => self.run(&mut front, worker, *task),
                Next::Again => MutexGuard::bump(&mut front),
                Next::Nothing => {
                    let trash = front.take_trash();
                    if !trash.is_empty() {
                        MutexGuard::unlocked(&mut front, || drop(trash));
                        continue;
                    }
                    // A bell whose work was done already does not end the spinning.
                    let since = *idle.get_or_insert_with(Instant::now);
                    if self.spin(&mut front, since + spin.bound()) {
                        continue;
                    }
                    self.sleep(&mut front);
                }
            }
        }
    }

    /// Before a worker turns to a unit: wakes another if there is more to do, and the ticker.
    fn share_work(&self, front: &mut Front) {
        self.wake(front);
        if !std::mem::replace(&mut front.ticking, true) {
            self.tick.notify_one();
        }
    }

    /// Looks at the doorbells for a while, without the lock; true if one rang. One worker at a time.
    fn spin(&self, front: &mut MutexGuard<'_, Front>, until: Instant) -> bool {
        let bells = &self.shared.doorbells;
        if Instant::now() >= until || bells.spinning.swap(true, Ordering::SeqCst) {
            return false;
        }
        let rang = MutexGuard::unlocked(front, || {
            loop {
                if bells.any() || bells.poked.swap(false, Ordering::SeqCst) || self.stopping() {
                    break true;
                }
                if Instant::now() >= until {
                    break false;
                }
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
            }
        });
        bells.spinning.store(false, Ordering::SeqCst);
        // What rang before the flag went down woke nobody else.
        rang || bells.any()
    }

    fn sleep(&self, front: &mut MutexGuard<'_, Front>) {
        let bells = &self.shared.doorbells;
        bells.sleepers.fetch_add(1, Ordering::SeqCst);
        self.watch(front);
        if !bells.any() && !front.has_queue() && !self.stopping() {
            self.work.wait(front);
        }
        bells.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the ticker if channels wait for semaphores: somebody has to look at them.
    fn watch(&self, front: &mut Front) {
        if front.has_waiting() && !std::mem::replace(&mut front.ticking, true) {
            self.tick.notify_one();
        }
    }

    /// The life of the ticker.
    pub(crate) fn tick(&self) {
        let _guard = Guard(self);
        let bells = &self.shared.doorbells;
        let mut front = self.front.lock();
        let mut poll = POLL.0;
        let mut poll_at = Instant::now();
        let mut busy_until = Instant::now();
        while !self.stopping() {
            // A spinning worker hears doorbells sooner.
            let spinning = bells.spinning.load(Ordering::SeqCst);
            front.tick(&self.shared, !spinning);
            let now = Instant::now();
            if !front.has_waiting() {
                poll = POLL.0;
            } else if now >= poll_at {
                poll = if front.retry(&self.shared) { POLL.0 } else { (poll * 2).min(POLL.1) };
                poll_at = now + poll;
            }
            self.wake(&front);
            let trash = front.take_trash();
            if !trash.is_empty() {
                MutexGuard::unlocked(&mut front, || drop(trash));
            }
            if front.is_busy() {
                busy_until = now + LINGER;
            }
            let tick = if front.is_contended() { TICK.0 } else { TICK.1 };
            let until = match (now < busy_until, front.has_waiting()) {
                (true, true) => Some((now + tick).min(poll_at)),
                (true, false) => Some(now + tick),
                (false, true) => Some(poll_at),
                (false, false) => None,
            };
            // Whoever finds this flag down wakes the ticker: it is not to miss the end of a slice.
            front.ticking = now < busy_until;
            match until {
                Some(until) => drop(self.tick.wait_until(&mut front, until)),
                None => self.tick.wait(&mut front),
            }
        }
    }
}
