//! The end of time slices: what the ticker does.

use super::{Front, Running};
use crate::chip::Chip;
use crate::job::Job;

/// The shortest time between two looks of the ticker at what channels wait for, nanoseconds.
const TICK_NS: u64 = 500_000;
/// Time between two tries of channels that wait for room, should nobody have told them, nanoseconds.
pub(crate) const ROOM_NS: u64 = 20_000_000;
/// How long a CTA keeps a worker while another of its own TSG waits for one, nanoseconds.
const ROTATION_NS: u64 = 1_000_000;
/// How long a unit may keep a thread that lent itself, nanoseconds, if it turns out not to be short.
const LENT_NS: u64 = 100_000;

impl Front {
    /// Preempts what has had its time. With `doorbells`, takes these first.
    pub(crate) fn tick(&mut self, chip: &Chip, doorbells: bool) {
        if doorbells {
            self.take_doorbells(chip);
        }
        let now = chip.clock.now();
        self.charge_running(chip, now);
        self.charge_compilations(chip);
        for (place, running) in self.running.iter().enumerate() {
            let Some(running) = running else { continue };
            let time = now.saturating_sub(running.start);
            let lent = place >= self.workers && time >= LENT_NS;
            let long = time >= ROTATION_NS;
            if lent || self.shares.should_yield(running.origin.tsg) || long && self.rotates(running) {
                self.park(running.origin.channel);
            }
        }
    }

    /// Preempts what is so far ahead of others that want the GPU that it should make room: somebody has just come who finds all
    /// workers busy. Who runs kernels much shorter than a tick, and waits for each, would else run one of them in each tick,
    /// however large its share.
    pub(crate) fn make_way(&mut self, chip: &Chip) {
        if !self.is_full() || self.shares.is_empty() {
            return;
        }
        self.charge_running(chip, chip.clock.now());
        for running in self.running.iter().flatten() {
            if self.shares.should_yield(running.origin.tsg) {
                self.park(running.origin.channel);
            }
        }
    }

    /// Charges what runs for its time until now.
    fn charge_running(&mut self, chip: &Chip, now: u64) {
        for worker in 0..self.running.len() {
            let Some(running) = self.running[worker] else { continue };
            self.charge(chip, running.origin.tsg, now.saturating_sub(running.charged));
            self.running[worker] = Some(Running { charged: now, ..running });
        }
    }

    /// True if a worker has a unit, or a compiler a kernel: time is to be charged.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.iter().any(Option::is_some) || !self.compiling.is_empty()
    }

    /// When the ticker is to look at what channels wait for, or at compilations, though no worker is busy; device time.
    pub(crate) fn next_tick(&self, chip: &Chip) -> Option<u64> {
        let compiling = (!self.compiling.is_empty()).then_some(TICK_NS);
        let room = self.waits_for_room().then_some(ROOM_NS);
        let soon = [compiling, room].into_iter().flatten().min();
        if soon.is_none() && self.next_due().is_none() {
            return None;
        }
        let now = chip.clock.now();
        // However many are due, not without end.
        let due = self.next_due().map(|due| due.max(now + TICK_NS));
        [soon.map(|wait| now + wait), due].into_iter().flatten().min()
    }

    /// True if the ticker would look later than it should: it has to be woken.
    pub(crate) fn is_ticker_late(&mut self, chip: &Chip) -> bool {
        let late = self.next_tick(chip).filter(|wanted| wanted + TICK_NS < self.ticker_wakes);
        self.ticker_wakes = late.unwrap_or(self.ticker_wakes);
        late.is_some()
    }

    /// True if work waits for a worker that another has.
    pub(crate) fn is_contended(&self) -> bool {
        let contended = |running: &Running| self.shares.others(running.origin.tsg) || self.rotates(running);
        self.running.iter().flatten().any(contended)
    }

    /// Another channel of the same TSG, or another CTA of the same grid, waits for a worker.
    fn rotates(&self, running: &Running) -> bool {
        let origin = running.origin;
        if self.tsgs[origin.tsg].queue.iter().any(|channel| *channel != origin.channel) {
            return true;
        }
        let channel = self.ports[origin.channel as usize].channel.as_ref();
        let active = channel.and_then(|channel| channel.job.as_ref()).filter(|active| active.id == origin.job);
        matches!(active.map(|active| &active.job), Some(Job::Grid(grid)) if grid.wants_rotation())
    }
}
