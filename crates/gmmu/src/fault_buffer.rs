//! The buffer of non-replayable MMU faults.

use gpu_spec::fault::{Fault, PACKET_BYTES, Packet};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::ramfc::place;
use gpu_spec::regs::vf::{
    FAULT_BUFFER_ENABLE, FAULT_BUFFER_ENTRIES, FAULT_BUFFER_LO_ADDRESS, FAULT_BUFFER_LO_TARGET, FAULT_BUFFER_OVERFLOW,
    FAULT_BUFFER_PTR,
};
use zerocopy::IntoBytes;

use crate::PhysMem;

/// Registers of the buffer: a ring of packets in physical memory.
#[derive(Debug, Default)]
pub struct FaultBuffer {
    /// `FAULT_BUFFER_LO`.
    pub lo: u32,
    /// `FAULT_BUFFER_HI`.
    pub hi: u32,
    get: u32,
    put: u32,
    /// `FAULT_BUFFER_SIZE`.
    pub size: u32,
    overflow: bool,
}

impl FaultBuffer {
    /// `FAULT_BUFFER_GET` as it reads.
    #[must_use]
    pub fn get(&self) -> u32 {
        FAULT_BUFFER_PTR.of(self.get) | FAULT_BUFFER_OVERFLOW.of(self.overflow.into())
    }

    /// `FAULT_BUFFER_PUT` as it reads.
    #[must_use]
    pub fn put(&self) -> u32 {
        FAULT_BUFFER_PTR.of(self.put) | FAULT_BUFFER_OVERFLOW.of(self.overflow.into())
    }

    /// `FAULT_BUFFER_GET` is written.
    pub fn set_get(&mut self, value: u32) {
        self.get = FAULT_BUFFER_PTR.get(value);
        if FAULT_BUFFER_OVERFLOW.is_set(value) {
            self.overflow = false;
        }
    }

    /// Appends a packet; true if the driver is to be interrupted.
    pub fn push(&mut self, memory: &impl PhysMem, fault: &Fault) -> bool {
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
            let _ = memory.write(at.offset(PACKET_BYTES - 4), &last.to_le_bytes());
        }
        self.put = next;
        true
    }

    fn base(&self) -> Option<PhysAddr> {
        place(FAULT_BUFFER_LO_TARGET.get(self.lo), self.lo & FAULT_BUFFER_LO_ADDRESS.mask() as u32, self.hi)
    }
}
