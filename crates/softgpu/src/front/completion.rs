//! What came of units, and the end of jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Front, Origin};
use crate::background::Trash;
use crate::children::{End, Next};
use crate::chip::Chip;
use crate::error::{ChannelError, Unit};
use crate::job::{Active, Ctas, Job, Outcome};

impl Front {
    /// Takes back what a worker did.
    pub(crate) fn complete(&mut self, chip: &Chip, worker: usize, origin: Origin, outcome: Outcome) {
        let Origin { channel: id, tsg, job } = origin;
        let now = chip.clock.now();
        self.note(now);
        if let Some(running) = self.running[worker].take() {
            self.charge(chip, tsg, now.saturating_sub(running.charged));
        }
        self.tsgs[tsg].in_flight -= 1;
        let port = &mut self.ports[id as usize];
        port.in_flight -= 1;
        let idle = port.in_flight == 0 || self.tsgs[tsg].in_flight == 0;
        // Results of a job that is gone are dropped.
        let active = port.channel.as_mut().and_then(|channel| channel.job.as_mut()).filter(|active| active.id == job);
        if let Some(active) = active {
            active.in_flight -= 1;
            let starved = matches!(&outcome, Outcome::Ctas(ctas) if ctas.starved);
            match outcome {
                Outcome::Copied(Err(error)) => self.fail(chip, id, &error),
                Outcome::Copied(Ok(())) => {}
                Outcome::Invalidated(to) => active.invalidated(to),
                Outcome::Ctas(ctas) => self.ran(chip, id, ctas),
            }
            // What came back may be what it waits for.
            self.residency.remove(&chip.budgets, id);
            if starved {
                self.wait_for_host(chip, id);
            }
            self.finish(chip, id, tsg, now);
        } else if let Outcome::Ctas(Ctas { parked: Some((resident, _)), .. }) = outcome {
            self.trash.push(Trash::Cta(resident));
        }
        if idle && (self.hold.is_some() || self.hold_runlists != 0) {
            self.release_holds(chip);
        }
    }

    /// CTAs of a channel's grid came back.
    fn ran(&mut self, chip: &Chip, id: u32, mut ctas: Ctas) {
        let Some(channel) = self.ports[id as usize].channel.as_mut() else { return };
        match (ctas.exception.take(), channel.job.as_mut().map(|active| &mut active.job)) {
            (Some((exception, site)), _) => {
                let space = Arc::clone(&channel.space);
                let refused = |va, access| space.refused(&chip.memory, va, 1, access);
                self.fail(chip, id, &ChannelError::exception(exception, site, refused));
            }
            (None, Some(Job::Grid(grid))) => {
                channel.pace.learn(&grid.grid.code, ctas.done, ctas.elapsed);
                grid.returned(ctas);
            }
            (None, _) => {}
        }
    }

    /// Ends the channel's job if all of it is done, and lets the channel go on.
    fn finish(&mut self, chip: &Chip, id: u32, tsg: usize, now: u64) {
        let port = &mut self.ports[id as usize];
        let Some(channel) = port.channel.as_mut() else { return };
        let Some(active) = channel.job.take_if(|active| active.is_done() || active.steps_aside()) else {
            self.enqueue_if_work(id);
            return;
        };
        port.ready = Some(now);
        let totals = &chip.totals[tsg];
        let (mut interrupt, mut unit) = (false, Unit::Host);
        let (active, mut end) = match &active.job {
            Job::Grid(_) => {
                let ended = active.is_done();
                totals.grids.fetch_add(ended.into(), Ordering::Relaxed);
                unit = Unit::Compute;
                channel.family.push(active, ended)
            }
            Job::Copy(transfer) => {
                totals.copies.fetch_add(1, Ordering::Relaxed);
                totals.moved(transfer.moved(&chip.memory));
                (interrupt, unit) = (transfer.finish.interrupt, Unit::Copy);
                let release = transfer.finish.release;
                (Some(active), End { release, dependent: None })
            }
            Job::Prepare(_) | Job::Invalidate(_) => (Some(active), End::default()),
        };
        let space = Arc::clone(&channel.space);
        let mut released = Vec::new();
        let result = loop {
            if let Some(release) = end.release {
                if let Err(error) = release.run(chip, &space, unit) {
                    break Err(error);
                }
                released.push(release.va);
            }
            if let Some(descriptor) = end.dependent {
                channel.launch_next(descriptor);
            }
            match channel.family.next(chip, &space) {
                Next::End(next) => (end, unit) = (next, Unit::Compute),
                Next::Job(job) => channel.job = Some(Active::new(job, chip.next_job())),
                Next::Aside(active) => channel.job = Some(active),
                Next::Nothing => break Ok(()),
            }
            if channel.job.is_some() {
                break Ok(());
            }
        };
        self.trash.extend(active.map(Trash::Job));
        chip.interrupt(tsg, interrupt.into());
        match result {
            Err(error) => self.fail(chip, id, &error),
            Ok(()) => {
                if !released.is_empty() {
                    self.released(chip, &space, &released);
                }
                self.enqueue(id);
            }
        }
        // Kernels and copies may store to semaphores as well.
        self.poll_space(chip, super::waiters::key(&space));
    }
}
