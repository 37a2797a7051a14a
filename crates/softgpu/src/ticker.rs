//! The ticker: it ends time slices, charges for what runs, and looks at what channels wait for when nobody tells.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hostmem::prefer_short_slices;
use parking_lot::MutexGuard;

use crate::device::{Device, Guard};
use crate::front::ROOM_NS;

/// Time between two looks of the ticker while work waits for workers, and while they are merely busy.
const TICK: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(1));
/// How long the ticker goes on looking when no worker is busy any more: waking it costs more than a few looks.
const LINGER: Duration = Duration::from_millis(20);

impl Device {
    /// The life of the ticker.
    pub(crate) fn tick(&self) {
        let _guard = Guard(self);
        prefer_short_slices();
        let bells = &self.chip.doorbells;
        let mut front = self.front.lock();
        let mut room_at = Instant::now();
        let mut busy_until = Instant::now();
        while !self.stopping() {
            // A spinning worker hears doorbells sooner.
            let spinning = bells.spinning.load(Ordering::SeqCst);
            front.tick(&self.chip, !spinning);
            let now = Instant::now();
            front.poll_due(&self.chip);
            if front.waits_for_room() && now >= room_at {
                front.retry_residency(&self.chip);
                room_at = now + Duration::from_nanos(ROOM_NS);
            }
            self.wake(&front);
            let trash = front.take_trash(&self.chip);
            if !trash.is_empty() {
                MutexGuard::unlocked(&mut front, || self.discard(trash));
            }
            if front.is_busy() {
                busy_until = now + LINGER;
            }
            let tick = if front.is_contended() { TICK.0 } else { TICK.1 };
            let busy = (now < busy_until).then_some(now + tick);
            let clock = self.chip.clock.now();
            let next = front.next_tick(&self.chip).map(|next| now + Duration::from_nanos(next.saturating_sub(clock)));
            let until = [busy, next].into_iter().flatten().min();
            // Whoever finds this flag down wakes the ticker: it is not to miss the end of a slice.
            front.ticking = now < busy_until;
            front.ticker_wakes = until.map_or(u64::MAX, |until| clock + (until - now).as_nanos() as u64);
            match until {
                Some(until) => drop(self.tick.wait_until(&mut front, until)),
                None => self.tick.wait(&mut front),
            }
        }
        // Of a device that is lost, kernels may still run.
        front.shut_down();
    }
}
