//! What registers do to channels: binding and enabling.

use gpu_spec::fault::{AccessType, EngineId, Fault, FaultType};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, vector};

use super::Front;
use crate::background::Trash;
use crate::channel::Channel;
use crate::chip::Chip;

impl Front {
    /// Unbinds a channel: its instance block has its state then. What it cannot hold is gone.
    pub(crate) fn unbind(&mut self, chip: &Chip, id: u32) {
        self.give_up_preparation(chip, id);
        self.residency.remove(&chip.budgets, id);
        self.waiters.remove(id);
        let port = &mut self.ports[id as usize];
        port.inst = 0;
        port.pbdma_faulted = false;
        port.eng_faulted = false;
        if let Some(mut old) = port.channel.take() {
            old.bound = None;
            old.save(&chip.memory);
            if let Some(active) = &old.job {
                active.preempt();
            }
            self.trash.push(Trash::Channel(old));
        }
    }

    /// Binds a channel that is not bound, or tells that its instance block cannot be used.
    pub(crate) fn bind(&mut self, chip: &Chip, id: u32, inst: u32, channel: Option<Result<Channel, PhysAddr>>) {
        // Somebody else may have bound it in between.
        self.unbind(chip, id);
        let port = &mut self.ports[id as usize];
        port.inst = inst;
        match channel {
            Some(Ok(channel)) => {
                port.channel = Some(Box::new(channel));
                port.ready = None;
                self.fetch_put(chip, id);
            }
            Some(Err(instance)) => {
                port.eng_faulted = true;
                let fault = Fault {
                    instance,
                    address: 0,
                    timestamp: chip.clock.now(),
                    engine: EngineId::HOST,
                    fault: FaultType::UNBOUND_INST_BLOCK,
                    access: AccessType::PHYS_READ,
                    gpc: false,
                };
                self.report(chip, &fault);
                chip.interrupts.raise(vector::CHANNEL_ERROR);
            }
            None => {}
        }
    }

    /// A write to a channel's state register.
    pub(crate) fn control_channel(&mut self, chip: &Chip, id: u32, value: u32) {
        let port = &mut self.ports[id as usize];
        if regs::CHANNEL_ENABLE_SET.is_set(value) {
            port.enabled = true;
        }
        if regs::CHANNEL_ENABLE_CLR.is_set(value) {
            port.enabled = false;
            self.park(id);
            // It may be a while until it is enabled again.
            self.give_up_preparation(chip, id);
        }
        self.clear_faults(id, regs::CHANNEL_PBDMA_FAULTED.is_set(value), regs::CHANNEL_ENG_FAULTED.is_set(value));
        self.resume(chip, id);
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
    pub(crate) fn resume(&mut self, chip: &Chip, id: u32) {
        if !self.may_run(id) {
            return;
        }
        let held = self.ports[id as usize].channel.as_mut().is_some_and(|channel| {
            let has_job = channel.job.is_some();
            has_job || channel.waiting.is_some() || channel.fetch_put(chip)
        });
        if held {
            self.enqueue(id);
        }
    }

    /// Takes a channel off the workers; its work waits.
    pub(super) fn park(&self, id: u32) {
        if let Some(active) = self.ports[id as usize].channel.as_ref().and_then(|channel| channel.job.as_ref()) {
            active.preempt();
        }
    }
}
