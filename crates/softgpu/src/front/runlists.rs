//! What registers do to TSGs and runlists: listing and preempting.

use super::Front;
use crate::chip::Chip;

/// A pending `PREEMPT`: what it names gets no worker until nothing of it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    Channel(u32),
    Tsg(usize),
}

impl Front {
    /// Replaces what a runlist names: TSGs with their slices and channels.
    pub(crate) fn set_runlist(&mut self, chip: &Chip, runlist: usize, list: Vec<(usize, u64, Vec<u32>)>) {
        let before: Vec<usize> = (0..self.tsgs.len()).filter(|tsg| self.tsgs[*tsg].runlist == Some(runlist)).collect();
        let mut gone: Vec<u32> = Vec::new();
        for &tsg in &before {
            self.tsgs[tsg].runlist = None;
            for channel in std::mem::take(&mut self.tsgs[tsg].channels) {
                self.ports[channel as usize].tsg = None;
                gone.push(channel);
            }
        }
        let mut here = Vec::new();
        for (tsg, slice, channels) in list {
            if self.tsgs[tsg].runlist.is_some() {
                // Named twice: the first counts.
                continue;
            }
            self.shares.set_slice(tsg, slice.saturating_mul(chip.workers));
            self.tsgs[tsg].runlist = Some(runlist);
            for channel in channels {
                if self.ports[channel as usize].tsg.is_none() {
                    self.ports[channel as usize].tsg = Some(tsg);
                    self.tsgs[tsg].channels.push(channel);
                    here.push(channel);
                }
            }
        }
        for channel in gone {
            if self.ports[channel as usize].tsg.is_none() {
                self.park(channel);
            }
        }
        self.requeue(&before);
        for channel in here {
            self.resume(chip, channel);
        }
    }

    /// `PREEMPT`: takes a channel or TSG off the workers, and holds it until it is off.
    pub(crate) fn preempt(&mut self, chip: &Chip, hold: Hold) {
        let members = match hold {
            Hold::Channel(channel) => vec![channel],
            Hold::Tsg(tsg) => self.tsgs[tsg].channels.clone(),
        };
        members.iter().for_each(|channel| self.park(*channel));
        let before = self.hold.replace(hold);
        if before.is_some_and(|before| before != hold) {
            self.requeue_all(chip);
        }
        self.release_holds(chip);
    }

    /// `RUNLIST_PREEMPT`: the same for whole runlists.
    pub(crate) fn preempt_runlists(&mut self, chip: &Chip, runlists: u32) {
        for tsg in 0..self.tsgs.len() {
            if self.tsgs[tsg].runlist.is_some_and(|runlist| runlists >> runlist & 1 != 0) {
                self.tsgs[tsg].channels.iter().for_each(|channel| self.park(*channel));
            }
        }
        self.hold_runlists |= runlists;
        self.release_holds(chip);
    }

    /// `SCHED_DISABLE`.
    pub(crate) fn disable_runlists(&mut self, chip: &Chip, runlists: u32) {
        self.disabled_runlists = runlists;
        for tsg in 0..self.tsgs.len() {
            if self.tsgs[tsg].runlist.is_some_and(|runlist| runlists >> runlist & 1 != 0) {
                self.tsgs[tsg].channels.iter().for_each(|channel| self.park(*channel));
            }
        }
        self.requeue_all(chip);
    }

    /// Ends preemptions whose targets are off the workers; their instance blocks have their state then.
    pub(super) fn release_holds(&mut self, chip: &Chip) {
        let mut free = Vec::new();
        match self.hold {
            Some(Hold::Channel(channel)) if self.ports[channel as usize].in_flight == 0 => {
                self.hold = None;
                free.push(channel);
            }
            Some(Hold::Tsg(tsg)) if self.tsgs[tsg].in_flight == 0 => {
                self.hold = None;
                free.extend_from_slice(&self.tsgs[tsg].channels);
            }
            _ => {}
        }
        for runlist in 0..32 {
            if self.hold_runlists >> runlist & 1 == 0 {
                continue;
            }
            let members = || self.tsgs.iter().filter(|tsg| tsg.runlist == Some(runlist));
            if members().all(|tsg| tsg.in_flight == 0) {
                free.extend(members().flat_map(|tsg| tsg.channels.iter().copied()));
                self.hold_runlists &= !(1 << runlist);
            }
        }
        for channel in free {
            if let Some(channel) = &self.ports[channel as usize].channel {
                channel.save(&chip.memory);
            }
            self.enqueue(channel);
        }
    }

    fn requeue_all(&mut self, chip: &Chip) {
        let channels: Vec<u32> = self.tsgs.iter().flat_map(|tsg| tsg.channels.iter().copied()).collect();
        for channel in channels {
            self.resume(chip, channel);
        }
    }
}
