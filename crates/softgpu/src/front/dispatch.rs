//! The choice of what a worker does next.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Front, Origin, Running, Task};
use crate::channel::{Advanced, Effects, TURN_NS};
use crate::chip::Chip;
use crate::job::{Job, Take};

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

impl Front {
    /// The next unit of work for a thread.
    pub(crate) fn next(&mut self, chip: &Chip, worker: usize, wants: Wants) -> Next {
        self.take_doorbells(chip);
        if chip.budgets.take_freed() {
            self.retry_residency(chip);
        }
        if self.is_full() {
            return Next::Nothing;
        }
        let mut order = std::mem::take(&mut self.order);
        self.shares.order(&mut order);
        let mut found = Next::Nothing;
        // Whoever waits for the lock is not to wait for the turns of all channels.
        let until = chip.clock.now() + TURN_NS;
        for &tsg in &order {
            if matches!(wants, Wants::ShortOf(own) if own != tsg) {
                continue;
            }
            found = self.next_of(chip, tsg, worker, wants, until);
            if !matches!(found, Next::Nothing) {
                break;
            }
        }
        self.order = order;
        found
    }

    /// All multiprocessors are in use.
    pub(super) fn is_full(&self) -> bool {
        self.idle() == 0
    }

    /// Multiprocessors that have nothing to do.
    pub(super) fn idle(&self) -> usize {
        self.workers.saturating_sub(self.running.iter().flatten().count())
    }

    /// A place for a thread that lends itself.
    pub(crate) fn place(&self) -> Option<usize> {
        let free = || (self.workers..self.running.len()).find(|place| self.running[*place].is_none());
        if self.is_full() { None } else { free() }
    }

    /// Handles the doorbells that rang.
    pub(crate) fn take_doorbells(&mut self, chip: &Chip) {
        if !chip.doorbells.any() {
            return;
        }
        let mut rang = Vec::new();
        chip.doorbells.take(|channel| rang.push(channel));
        let mut spaces = Vec::new();
        for channel in rang {
            self.fetch_put(chip, channel);
            spaces.extend(self.waiters.space_of(&self.ports, channel));
        }
        spaces.sort_unstable();
        spaces.dedup();
        for space in spaces {
            self.poll_space(chip, space);
        }
    }

    /// A channel's doorbell rang.
    pub(crate) fn doorbell(&mut self, chip: &Chip, channel: u32) {
        self.fetch_put(chip, channel);
        // Whoever rings may have stored to a semaphore before.
        if let Some(space) = self.waiters.space_of(&self.ports, channel) {
            self.poll_space(chip, space);
        }
    }

    /// Puts a channel into the queue if its GPFIFO has entries.
    pub(super) fn fetch_put(&mut self, chip: &Chip, channel: u32) {
        let found = self.ports[channel as usize].channel.as_mut().is_some_and(|channel| channel.fetch_put(chip));
        if found {
            self.enqueue(channel);
        }
    }

    fn next_of(&mut self, chip: &Chip, tsg: usize, worker: usize, wants: Wants, until: u64) -> Next {
        for _ in 0..self.tsgs[tsg].queue.len() {
            let Some(id) = self.tsgs[tsg].queue.pop_front() else { break };
            self.ports[id as usize].queued = false;
            if !self.may_run(id) {
                // It comes back when what holds it is gone.
                continue;
            }
            match self.next_unit(chip, id, wants) {
                Next::Task(task) => {
                    let now = chip.clock.now();
                    self.note(now);
                    self.served.note(id, now);
                    self.running[worker] = Some(Running { origin: task.origin, start: now, charged: now });
                    self.enqueue_if_work(id);
                    self.settle(tsg);
                    return Next::Task(task);
                }
                Next::Again => {
                    self.enqueue(id);
                    return Next::Again;
                }
                Next::Nothing => {}
            }
            if chip.clock.now() >= until {
                self.settle(tsg);
                return Next::Again;
            }
        }
        self.settle(tsg);
        Next::Nothing
    }

    /// A unit of a channel's job; without a job, the channel reads its pushbuffer for one turn.
    fn next_unit(&mut self, chip: &Chip, id: u32, wants: Wants) -> Next {
        let port = &mut self.ports[id as usize];
        let (Some(channel), Some(tsg)) = (port.channel.as_mut(), port.tsg) else { return Next::Nothing };
        if channel.waiting.is_some() {
            port.ready = None;
            return if self.wait(chip, id) { Next::Again } else { Next::Nothing };
        }
        if channel.job.is_none() {
            let before = chip.clock.now();
            self.note(before);
            let port = &mut self.ports[id as usize];
            let Some(channel) = port.channel.as_mut() else { return Next::Nothing };
            self.turns = self.turns.wrapping_add(1);
            // Little may be done at once, and be no unit.
            self.served.note(id, before);
            let mut effects = std::mem::take(&mut self.effects);
            let advanced = channel.advance(chip, &mut effects);
            self.take_effects(chip, id, tsg, &mut effects);
            let after = chip.clock.now();
            self.charge(chip, tsg, after.saturating_sub(before));
            // For itself, and no longer one that waits.
            let busy = self.running.iter().flatten().count() + 1;
            self.occupancy.note(after, busy, self.shares.count().saturating_sub(1));
            self.effects = effects;
            if !matches!(advanced, Ok(Advanced::Job | Advanced::Turn)) {
                self.ports[id as usize].ready = None;
            }
            match advanced {
                Ok(Advanced::Job) => {}
                Ok(Advanced::Turn) => return Next::Again,
                Ok(Advanced::Idle) => return Next::Nothing,
                Ok(Advanced::Waiting) => return if self.wait(chip, id) { Next::Again } else { Next::Nothing },
                Err(error) => {
                    self.fail(chip, id, &error);
                    return Next::Nothing;
                }
            }
        }
        self.unit(chip, id, wants)
    }

    /// What methods of a channel did that concerns others.
    fn take_effects(&mut self, chip: &Chip, id: u32, tsg: usize, effects: &mut Effects) {
        let Effects { released, forgotten, copies, moved, interrupts } = effects;
        chip.totals[tsg].moved(std::mem::take(moved));
        chip.totals[tsg].copies.fetch_add(std::mem::take(copies), Ordering::Relaxed);
        chip.interrupt(tsg, std::mem::take(interrupts));
        if !released.is_empty() && !self.waiters.is_empty() {
            released.sort_unstable();
            released.dedup();
            if let Some(channel) = &self.ports[id as usize].channel {
                let space = Arc::clone(&channel.space);
                self.released(chip, &space, released);
            }
        }
        released.clear();
        self.trash.extend(forgotten.drain(..).filter(|old| !old.is_empty()).map(crate::background::Trash::Programs));
    }

    fn unit(&mut self, chip: &Chip, id: u32, wants: Wants) -> Next {
        let port = &mut self.ports[id as usize];
        let Some(active) = port.channel.as_mut().and_then(|channel| channel.job.as_mut()) else { return Next::Nothing };
        if matches!(active.job, Job::Prepare(_)) && !self.prepare(chip, id) {
            self.ports[id as usize].ready = None;
            return Next::Nothing;
        }
        let port = &mut self.ports[id as usize];
        let (Some(channel), Some(tsg)) = (port.channel.as_mut(), port.tsg) else { return Next::Nothing };
        let Some(active) = channel.job.as_mut() else { return Next::Nothing };
        if wants != Wants::Any && !channel.pace.is_short(active) {
            // It stays for a worker.
            self.enqueue_if_work(id);
            return Next::Nothing;
        }
        let begins = active.begins();
        let others = self.shares.others(tsg) || !self.tsgs[tsg].queue.is_empty();
        let alone = !others && self.served.is_alone(id, chip.clock.now());
        let work = match active.take(chip, channel.budget, alone) {
            Take::Work(work) => work,
            Take::Nothing => return Next::Nothing,
            Take::Full(need) => {
                port.ready = None;
                self.wait_for_room(chip, id, need, "a CTA", None);
                return Next::Nothing;
            }
        };
        active.unpreempt();
        if let Some(since) = port.ready.take().filter(|_| begins) {
            chip.totals[tsg].waited(chip.clock.now().saturating_sub(since));
        }
        port.in_flight += 1;
        self.tsgs[tsg].in_flight += 1;
        let origin = Origin { channel: id, tsg, job: active.id };
        Next::Task(Box::new(Task { work, space: Arc::clone(&channel.space), origin }))
    }
}
