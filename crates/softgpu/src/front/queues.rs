//! Which channels stand for a worker.

use std::sync::atomic::Ordering;

use gpu_spec::regs;

use super::{Front, Hold};
use crate::chip::Chip;
use crate::job::Active;

impl Front {
    /// Nothing forbids the channel to run.
    pub(super) fn may_run(&self, id: u32) -> bool {
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

    /// What the state register says of a channel's work, whether or not it may run.
    pub(crate) fn status(&self, chip: &Chip, id: u32) -> u32 {
        let port = &self.ports[id as usize];
        let Some(channel) = &port.channel else { return regs::CHANNEL_STATUS_IDLE };
        let ready = match (&channel.waiting, &channel.job) {
            _ if port.in_flight > 0 => return regs::CHANNEL_STATUS_ON_ENGINE,
            _ if channel.stopped => return regs::CHANNEL_STATUS_IDLE,
            // If that cannot be read, there is an error to be found.
            (Some(acquire), _) => acquire.holds(chip, &channel.space).unwrap_or(true),
            (None, Some(active)) => active.has_work() && !self.residency.waits(id),
            (None, None) if channel.wants(chip) => true,
            (None, None) => return regs::CHANNEL_STATUS_IDLE,
        };
        if ready { regs::CHANNEL_STATUS_PENDING } else { regs::CHANNEL_STATUS_PENDING_ACQUIRE }
    }

    pub(super) fn enqueue(&mut self, id: u32) {
        let port = &mut self.ports[id as usize];
        if port.queued {
            return;
        }
        let now = self.clock.now();
        if port.channel.is_some() {
            // Who is held waits, too.
            port.ready.get_or_insert(now);
        }
        if !self.may_run(id) {
            return;
        }
        let port = &mut self.ports[id as usize];
        let Some(tsg) = port.tsg else { return };
        port.queued = true;
        self.tsgs[tsg].queue.push_back(id);
        if !self.shares.is_active(tsg) {
            self.note(now);
            self.shares.activate(tsg);
        }
    }

    /// Puts a channel into the queue whose job has something for a worker; one that waits for room does not.
    pub(super) fn enqueue_if_work(&mut self, id: u32) {
        let channel = self.ports[id as usize].channel.as_ref();
        let has_work = channel.and_then(|channel| channel.job.as_ref()).is_some_and(Active::has_work);
        if has_work && !self.residency.waits(id) {
            self.enqueue(id);
        }
    }

    /// A TSG without a queue wants nothing.
    pub(super) fn settle(&mut self, tsg: usize) {
        if self.tsgs[tsg].queue.is_empty() {
            self.shares.deactivate(tsg);
        }
    }

    /// Builds queues anew after channels of these TSGs, all that a runlist named, changed theirs.
    pub(super) fn requeue(&mut self, tsgs: &[usize]) {
        let mut queued = Vec::new();
        for &tsg in tsgs {
            queued.extend(self.tsgs[tsg].queue.drain(..));
            self.shares.deactivate(tsg);
        }
        for channel in queued {
            self.ports[channel as usize].queued = false;
            self.enqueue(channel);
        }
    }

    /// A TSG has used time of a processor.
    pub(super) fn charge(&mut self, chip: &Chip, tsg: usize, ns: u64) {
        self.shares.charge(tsg, ns);
        chip.totals[tsg].worker_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// A TSG has used time of a processor that is no multiprocessor's.
    pub(super) fn charge_preparing(&mut self, chip: &Chip, tsg: usize, ns: u64) {
        chip.totals[tsg].prepare_ns.fetch_add(ns, Ordering::Relaxed);
        self.charge(chip, tsg, ns);
    }

    /// True if asking for work may give some.
    pub(crate) fn has_queue(&self, chip: &Chip) -> bool {
        (!self.shares.is_empty() || chip.budgets.is_freed()) && !self.is_full()
    }
}
