//! What registers do to channels, TSGs and runlists: binding, enabling, listing, preempting.

use gpu_spec::fault::{AccessType, EngineId, Fault, FaultType};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, vector};

use super::{Front, Hold, Trash};
use crate::channel::Channel;
use crate::shared::Shared;

impl Front {
    /// Unbinds a channel: its instance block has its state then. What it cannot hold is gone.
    pub(crate) fn unbind(&mut self, shared: &Shared, id: u32) {
        let port = &mut self.ports[id as usize];
        port.inst = 0;
        port.pbdma_faulted = false;
        port.eng_faulted = false;
        if let Some(old) = port.channel.take() {
            old.save(&shared.memory);
            if let Some(active) = &old.job {
                active.preempt();
            }
            self.trash.push(Trash::Channel(old));
        }
        self.waiting.retain(|other| *other != id);
    }

    /// Binds a channel that is not bound, or tells that its instance block cannot be used.
    pub(crate) fn bind(&mut self, shared: &Shared, id: u32, inst: u32, channel: Option<Result<Channel, PhysAddr>>) {
        // Somebody else may have bound it in between.
        self.unbind(shared, id);
        let port = &mut self.ports[id as usize];
        port.inst = inst;
        match channel {
            Some(Ok(channel)) => {
                port.channel = Some(Box::new(channel));
                self.look(shared, id);
            }
            Some(Err(instance)) => {
                port.eng_faulted = true;
                let fault = Fault {
                    instance,
                    address: 0,
                    timestamp: shared.clock.now(),
                    engine: EngineId::HOST,
                    fault: FaultType::UNBOUND_INST_BLOCK,
                    access: AccessType::PHYS_READ,
                    gpc: false,
                };
                self.report(shared, &fault);
                shared.interrupts.raise(vector::CHANNEL_ERROR);
            }
            None => {}
        }
    }

    /// A write to a channel's state register.
    pub(crate) fn control_channel(&mut self, shared: &Shared, id: u32, value: u32) {
        let port = &mut self.ports[id as usize];
        if regs::CHANNEL_ENABLE_SET.is_set(value) {
            port.enabled = true;
        }
        if regs::CHANNEL_ENABLE_CLR.is_set(value) {
            port.enabled = false;
            self.park(id);
        }
        self.clear_faults(id, regs::CHANNEL_PBDMA_FAULTED.is_set(value), regs::CHANNEL_ENG_FAULTED.is_set(value));
        self.resume(shared, id);
    }

    fn clear_faults(&mut self, id: u32, pbdma: bool, engine: bool) {
        let port = &mut self.ports[id as usize];
        port.pbdma_faulted &= !pbdma;
        port.eng_faulted &= !engine;
        if (pbdma || engine)
            && !port.pbdma_faulted
            && !port.eng_faulted
            && let Some(channel) = port.channel.as_mut()
        {
            channel.stopped = false;
        }
    }

    /// Lets a channel run on, if nothing holds it.
    pub(crate) fn resume(&mut self, shared: &Shared, id: u32) {
        if !self.may_run(id) {
            return;
        }
        let held = self.ports[id as usize].channel.as_mut().is_some_and(|channel| {
            let has_job = channel.job.is_some();
            has_job || channel.look(shared)
        });
        if held {
            self.enqueue(id);
        }
        self.released = true;
    }

    /// Takes a channel off the workers; its work waits.
    pub(super) fn park(&self, id: u32) {
        if let Some(active) = self.ports[id as usize].channel.as_ref().and_then(|channel| channel.job.as_ref()) {
            active.preempt();
        }
    }

    /// Replaces what a runlist names: TSGs with their slices and channels.
    pub(crate) fn set_runlist(&mut self, shared: &Shared, runlist: usize, list: Vec<(usize, u64, Vec<u32>)>) {
        let before: Vec<usize> = (0..self.tsgs.len()).filter(|tsg| self.tsgs[*tsg].runlist == Some(runlist)).collect();
        let mut gone: Vec<u32> = Vec::new();
        for tsg in before {
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
            self.shares.set_slice(tsg, slice.saturating_mul(shared.workers));
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
        self.requeue();
        for channel in here {
            self.resume(shared, channel);
        }
    }

    /// Builds all queues anew after channels changed their TSGs.
    fn requeue(&mut self) {
        let mut queued = Vec::new();
        for tsg in 0..self.tsgs.len() {
            queued.extend(self.tsgs[tsg].queue.drain(..));
            self.shares.deactivate(tsg);
        }
        for channel in queued {
            self.ports[channel as usize].queued = false;
            self.enqueue(channel);
        }
    }

    /// `PREEMPT`: takes a channel or TSG off the workers, and holds it until it is off.
    pub(crate) fn preempt(&mut self, shared: &Shared, hold: Hold) {
        let members = match hold {
            Hold::Channel(channel) => vec![channel],
            Hold::Tsg(tsg) => self.tsgs[tsg].channels.clone(),
        };
        members.iter().for_each(|channel| self.park(*channel));
        let before = self.hold.replace(hold);
        if before.is_some_and(|before| before != hold) {
            self.requeue_all(shared);
        }
        self.release_holds(shared);
    }

    /// `RUNLIST_PREEMPT`: the same for whole runlists.
    pub(crate) fn preempt_runlists(&mut self, shared: &Shared, runlists: u32) {
        for tsg in 0..self.tsgs.len() {
            if self.tsgs[tsg].runlist.is_some_and(|runlist| runlists >> runlist & 1 != 0) {
                self.tsgs[tsg].channels.iter().for_each(|channel| self.park(*channel));
            }
        }
        self.hold_runlists |= runlists;
        self.release_holds(shared);
    }

    /// `SCHED_DISABLE`.
    pub(crate) fn disable_runlists(&mut self, shared: &Shared, runlists: u32) {
        self.disabled_runlists = runlists;
        for tsg in 0..self.tsgs.len() {
            if self.tsgs[tsg].runlist.is_some_and(|runlist| runlists >> runlist & 1 != 0) {
                self.tsgs[tsg].channels.iter().for_each(|channel| self.park(*channel));
            }
        }
        self.requeue_all(shared);
    }

    /// Ends preemptions whose targets are off the workers; their instance blocks have their state then.
    pub(super) fn release_holds(&mut self, shared: &Shared) {
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
                channel.save(&shared.memory);
            }
            self.enqueue(channel);
        }
    }

    fn requeue_all(&mut self, shared: &Shared) {
        let channels: Vec<u32> = self.tsgs.iter().flat_map(|tsg| tsg.channels.iter().copied()).collect();
        for channel in channels {
            self.resume(shared, channel);
        }
    }
}
