//! MMU fault packets: what the device writes to the fault buffer, 32 bytes each.
//!
//! | dword | bits |
//! |---|---|
//! | 0, 1 | instance block: aperture 9:8, address 31:12 and the upper half |
//! | 2, 3 | faulting address: aperture 1:0, address 31:12 and the upper half |
//! | 4, 5 | time, nanoseconds |
//! | 6 | engine 8:0 |
//! | 7 | fault type 4:0, client 14:8, access type 19:16, client type 20, GPC 28:24, valid 31 |
//!
//! The valid bit is written last; whoever consumes a packet clears it. Addresses are known to the page; the exact address
//! stands in the channel's error notifier, where it has one.
//!
//! Source: NVIDIA open-gpu-doc, `manuals/turing/tu104/dev_mmu_fault.ref.txt`, `dev_fault.ref.txt`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mmu::{Aperture, PhysAddr};

/// Size of a packet, bytes.
pub const PACKET_BYTES: u64 = 32;

/// Why the MMU refused (`NV_PFAULT_FAULT_TYPE`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct FaultType(pub u8);

#[expect(missing_docs, reason = "named as in the manual")]
impl FaultType {
    pub const PDE: FaultType = FaultType(0);
    pub const PDE_SIZE: FaultType = FaultType(1);
    pub const PTE: FaultType = FaultType(2);
    pub const VA_LIMIT_VIOLATION: FaultType = FaultType(3);
    pub const UNBOUND_INST_BLOCK: FaultType = FaultType(4);
    pub const PRIV_VIOLATION: FaultType = FaultType(5);
    pub const RO_VIOLATION: FaultType = FaultType(6);
    pub const WO_VIOLATION: FaultType = FaultType(7);
    pub const PITCH_MASK_VIOLATION: FaultType = FaultType(8);
    pub const WORK_CREATION: FaultType = FaultType(9);
    pub const UNSUPPORTED_APERTURE: FaultType = FaultType(0xa);
    pub const COMPRESSION_FAILURE: FaultType = FaultType(0xb);
    pub const UNSUPPORTED_KIND: FaultType = FaultType(0xc);
    pub const REGION_VIOLATION: FaultType = FaultType(0xd);
    pub const POISONED: FaultType = FaultType(0xe);
    pub const ATOMIC_VIOLATION: FaultType = FaultType(0xf);
}

/// What the access wanted (`NV_PFAULT_ACCESS_TYPE`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct AccessType(pub u8);

#[expect(missing_docs, reason = "named as in the manual")]
impl AccessType {
    pub const VIRT_READ: AccessType = AccessType(0);
    pub const VIRT_WRITE: AccessType = AccessType(1);
    pub const VIRT_ATOMIC: AccessType = AccessType(2);
    pub const VIRT_PREFETCH: AccessType = AccessType(3);
    pub const PHYS_READ: AccessType = AccessType(8);
    pub const PHYS_WRITE: AccessType = AccessType(9);
    pub const PHYS_ATOMIC: AccessType = AccessType(0xa);
}

/// The unit that made the access (`ENGINE_ID`; numbers of Sundial's device).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct EngineId(pub u16);

impl EngineId {
    /// Graphics and compute.
    pub const GRAPHICS: EngineId = EngineId(0x40);
    /// The copy engine.
    pub const COPY: EngineId = EngineId(0x0f);
    /// Host: pushbuffer fetch, semaphores.
    pub const HOST: EngineId = EngineId(0x20);
}

/// A fault, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The channel's instance block.
    pub instance: PhysAddr,
    /// Virtual address, rounded down to 4 KiB.
    pub address: u64,
    /// Device time, nanoseconds.
    pub timestamp: u64,
    /// Unit.
    pub engine: EngineId,
    /// Why the access was refused.
    pub fault: FaultType,
    /// Access.
    pub access: AccessType,
    /// Made by a GPC (compute) rather than by a hub client.
    pub gpc: bool,
}

/// A packet as it lies in the fault buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Packet(pub [u32; 8]);

/// Bit of dword 7 that says that the packet is complete.
pub const VALID: u32 = 1 << 31;

impl Packet {
    /// Encodes, the valid bit set.
    #[must_use]
    pub fn new(fault: &Fault) -> Packet {
        let aperture = match fault.instance.aperture {
            Aperture::Vram => 0,
            Aperture::System => 2,
        };
        Packet([
            aperture << 8 | (fault.instance.address as u32 & !0xfff),
            (fault.instance.address >> 32) as u32,
            fault.address as u32 & !0xfff,
            (fault.address >> 32) as u32,
            fault.timestamp as u32,
            (fault.timestamp >> 32) as u32,
            u32::from(fault.engine.0) & 0x1ff,
            u32::from(fault.fault.0) & 0x1f
                | (u32::from(fault.access.0) & 0xf) << 16
                | u32::from(!fault.gpc) << 20
                | VALID,
        ])
    }

    /// Decodes; `None` if the packet is not valid.
    #[must_use]
    pub fn decode(&self) -> Option<Fault> {
        let d = &self.0;
        if d[7] & VALID == 0 {
            return None;
        }
        let instance = u64::from(d[1]) << 32 | u64::from(d[0] & !0xfff);
        Some(Fault {
            instance: if d[0] >> 8 & 3 == 0 { PhysAddr::vram(instance) } else { PhysAddr::system(instance) },
            address: u64::from(d[3]) << 32 | u64::from(d[2] & !0xfff),
            timestamp: u64::from(d[5]) << 32 | u64::from(d[4]),
            engine: EngineId((d[6] & 0x1ff) as u16),
            fault: FaultType((d[7] & 0x1f) as u8),
            access: AccessType((d[7] >> 16 & 0xf) as u8),
            gpc: d[7] & 1 << 20 == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip() {
        let fault = Fault {
            instance: PhysAddr::system(0x12_3456_7000),
            address: 0x7f12_3456_7000,
            timestamp: 0x0123_4567_89ab_cdef,
            engine: EngineId::GRAPHICS,
            fault: FaultType::RO_VIOLATION,
            access: AccessType::VIRT_WRITE,
            gpc: true,
        };
        let mut packet = Packet::new(&fault);
        assert_eq!(packet.decode(), Some(fault));
        packet.0[7] &= !VALID;
        assert_eq!(packet.decode(), None);
    }
}
