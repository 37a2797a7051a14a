//! Errors of channels.

use gpu_spec::fault::Fault;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::vector;

use super::Front;
use crate::chip::Chip;
use crate::error::ChannelError;

impl Front {
    /// An error of a channel: its TSG stops, and everyone concerned is told.
    pub(crate) fn fail(&mut self, chip: &Chip, id: u32, error: &ChannelError) {
        let now = chip.clock.now();
        let port = &mut self.ports[id as usize];
        if error.is_host() {
            port.pbdma_faulted = true;
        } else {
            port.eng_faulted = true;
        }
        let instance = port.channel.as_ref().map_or(PhysAddr::vram(0), |channel| channel.inst);
        let tsg = port.tsg;
        if let Some(fault) = error.fault(instance, now) {
            self.report(chip, &fault);
        }
        let members = match tsg {
            Some(tsg) => self.tsgs[tsg].channels.clone(),
            None => vec![id],
        };
        for member in members {
            let Some(channel) = self.ports[member as usize].channel.as_mut() else { continue };
            channel.stopped = true;
            if let Some(notifier) = channel.notifier {
                error.notify(&chip.memory, notifier, id, now);
            }
            self.drop_job(chip, member);
            self.waiters.remove(member);
        }
        chip.interrupts.raise(vector::CHANNEL_ERROR);
    }

    /// Puts a packet into the fault buffer.
    pub(super) fn report(&self, chip: &Chip, fault: &Fault) {
        if chip.faults.lock().push(&chip.memory, fault) {
            chip.interrupts.raise(vector::FAULT);
        }
    }
}
