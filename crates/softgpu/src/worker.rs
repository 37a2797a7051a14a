//! The workers, which do what the front end gives them.
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
use std::sync::atomic::Ordering;
use std::time::Instant;

use hostmem::Spin;
use parking_lot::MutexGuard;

use crate::device::{Device, Guard};
use crate::front::{Front, Next, Wants};

impl Device {
    /// The life of a worker.
    pub(crate) fn work(self: &Arc<Device>, worker: usize) {
        let _guard = Guard(self);
        hostmem::prefer_short_slices();
        let mut front = self.front.lock();
        let mut spin = Spin::default();
        let mut idle: Option<Instant> = None;
        while !self.stopping() {
            let turns = front.turns;
            let next = front.next(&self.chip, worker, Wants::Any);
            // What is small enough is done while it is read, and leaves nothing to do.
            if (front.turns != turns || !matches!(next, Next::Nothing))
                && let Some(since) = idle.take()
            {
                spin.learn(since.elapsed());
            }
            match next {
                Next::Task(task) => self.run(&mut front, worker, *task),
                Next::Again => MutexGuard::bump(&mut front),
                Next::Nothing => {
                    let trash = front.take_trash(&self.chip);
                    if !trash.is_empty() {
                        MutexGuard::unlocked(&mut front, || self.discard(trash));
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
    pub(crate) fn share_work(&self, front: &mut Front) {
        self.wake(front);
        if !std::mem::replace(&mut front.ticking, true) {
            self.tick.notify_one();
        }
    }

    /// Looks at the doorbells for a while, without the lock; true if one rang. One worker at a time.
    fn spin(&self, front: &mut MutexGuard<'_, Front>, until: Instant) -> bool {
        let bells = &self.chip.doorbells;
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
        let bells = &self.chip.doorbells;
        bells.sleepers.fetch_add(1, Ordering::SeqCst);
        self.watch(front);
        if !bells.any() && !front.has_queue(&self.chip) && !self.stopping() {
            self.work.wait(front);
        }
        bells.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
