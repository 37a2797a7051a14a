//! The buffer of non-replayable MMU faults.

use gmmu::PhysMem;
use gpu_spec::fault::{Fault, PACKET_BYTES, Packet};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::ramfc::place;
use gpu_spec::regs::vf::{
    FAULT_BUFFER_ENABLE, FAULT_BUFFER_ENTRIES, FAULT_BUFFER_LO_ADDRESS, FAULT_BUFFER_LO_TARGET, FAULT_BUFFER_OVERFLOW,
    FAULT_BUFFER_PTR,
};
use zerocopy::IntoBytes;

use crate::memory::Memory;

/// Registers of the buffer: a ring of packets in physical memory.
#[derive(Debug, Default)]
pub(crate) struct FaultBuffer {
    pub(crate) lo: u32,
    pub(crate) hi: u32,
    get: u32,
    put: u32,
    pub(crate) size: u32,
    overflow: bool,
}

impl FaultBuffer {
    pub(crate) fn get(&self) -> u32 {
        FAULT_BUFFER_PTR.of(self.get) | FAULT_BUFFER_OVERFLOW.of(self.overflow.into())
    }

    pub(crate) fn put(&self) -> u32 {
        FAULT_BUFFER_PTR.of(self.put) | FAULT_BUFFER_OVERFLOW.of(self.overflow.into())
    }

    pub(crate) fn set_get(&mut self, value: u32) {
        self.get = FAULT_BUFFER_PTR.get(value);
        if FAULT_BUFFER_OVERFLOW.is_set(value) {
            self.overflow = false;
        }
    }

    /// Appends a packet; true if the driver is to be interrupted.
    pub(crate) fn push(&mut self, memory: &Memory, fault: &Fault) -> bool {
        let entries = FAULT_BUFFER_ENTRIES.get(self.size);
        if !FAULT_BUFFER_ENABLE.is_set(self.size) || entries < 2 {
            return false;
        }
        let put = self.put % entries;
        let next = (put + 1) % entries;
        if next == self.get % entries {
            self.overflow = true;
            return true;
        }
        let Some(at) = self.base().map(|base| base.offset(u64::from(put) * PACKET_BYTES)) else { return false };
        let mut packet = Packet::new(fault);
        let last = packet.0[7];
        packet.0[7] = 0;
        // Memory that is not there: nobody will look.
        if memory.write(at, packet.as_bytes()).is_ok() {
            memory.write_word(at.offset(PACKET_BYTES - 4), last);
        }
        self.put = next;
        true
    }

    fn base(&self) -> Option<PhysAddr> {
        place(FAULT_BUFFER_LO_TARGET.get(self.lo), self.lo & FAULT_BUFFER_LO_ADDRESS.mask() as u32, self.hi)
    }
}
