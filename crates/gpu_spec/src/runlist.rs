//! Runlists: what the host engine schedules, in order. A list is a row of 16-byte entries: each TSG entry is followed by
//! the entries of its channels.
//!
//! Source: TU104 `dev_ram`, "Runlist", and `dev_fifo`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Field;
use crate::mmu::PhysAddr;
use crate::ramfc::{place, target};

/// An entry of a runlist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RunlistEntry {
    /// Its words.
    pub words: [u32; 4],
}

/// A TSG's time slice in nanoseconds is `(timeout << scale)` times this.
pub const TIMESLICE_UNIT_NS: u64 = 1024;
/// Default time slice: timeout.
pub const TIMESLICE_DEFAULT_TIMEOUT: u32 = 128;
/// Default time slice: scale.
pub const TIMESLICE_DEFAULT_SCALE: u32 = 3;

impl RunlistEntry {
    /// Size, bytes.
    pub const BYTES: u64 = 16;
    /// 1: a TSG; 0: a channel; in word 0.
    pub const TYPE: Field = Field::bit(0);
    /// TSG: scale of the time slice, in word 0.
    pub const TIMESLICE_SCALE: Field = Field::new(19, 16);
    /// TSG: time slice, in word 0.
    pub const TIMESLICE_TIMEOUT: Field = Field::new(31, 24);
    /// TSG: number of channel entries that follow, in word 1.
    pub const TSG_LENGTH: Field = Field::new(7, 0);
    /// TSG: its id, in word 2.
    pub const TSG_ID: Field = Field::new(11, 0);
    /// Channel: which of the engine's runqueues, in word 0.
    pub const RUNQUEUE: Field = Field::bit(1);
    /// Channel: aperture of the instance block, in word 0.
    pub const INST_TARGET: Field = Field::new(5, 4);
    /// Channel: aperture of USERD, in word 0.
    pub const USERD_TARGET: Field = Field::new(7, 6);
    /// Channel: USERD address bits 31:8, in word 0.
    pub const USERD_LO: Field = Field::new(31, 8);
    /// Channel: its id, in word 2.
    pub const CHANNEL_ID: Field = Field::new(11, 0);
    /// Channel: instance block address bits 31:12, in word 2.
    pub const INST_LO: Field = Field::new(31, 12);
    /// Most channels of a TSG.
    pub const MAX_TSG_LENGTH: u32 = 128;

    /// A TSG of `length` channels; its time slice is rounded up to what the entry can say.
    #[must_use]
    pub const fn tsg(id: u32, length: u32, timeslice_ns: u64) -> RunlistEntry {
        let (timeout, scale) = encode_timeslice(timeslice_ns);
        RunlistEntry {
            words: [
                Self::TYPE.of(1) | Self::TIMESLICE_SCALE.of(scale) | Self::TIMESLICE_TIMEOUT.of(timeout),
                Self::TSG_LENGTH.of(length),
                Self::TSG_ID.of(id),
                0,
            ],
        }
    }

    /// A channel with the places of its USERD and its instance block.
    #[must_use]
    pub const fn channel(id: u32, userd: PhysAddr, inst: PhysAddr) -> RunlistEntry {
        RunlistEntry {
            words: [
                Self::INST_TARGET.of(target(inst.aperture))
                    | Self::USERD_TARGET.of(target(userd.aperture))
                    | (userd.address as u32 & Self::USERD_LO.mask() as u32),
                (userd.address >> 32) as u32,
                Self::CHANNEL_ID.of(id) | (inst.address as u32 & Self::INST_LO.mask() as u32),
                (inst.address >> 32) as u32,
            ],
        }
    }

    /// True for a TSG entry.
    #[must_use]
    pub const fn is_tsg(&self) -> bool {
        Self::TYPE.is_set(self.words[0])
    }

    /// The id of the TSG or the channel.
    #[must_use]
    pub const fn id(&self) -> u32 {
        Self::CHANNEL_ID.get(self.words[2])
    }

    /// Number of channel entries after a TSG entry.
    #[must_use]
    pub const fn length(&self) -> u32 {
        Self::TSG_LENGTH.get(self.words[1])
    }

    /// Time slice of a TSG entry, nanoseconds.
    #[must_use]
    pub const fn timeslice_ns(&self) -> u64 {
        let timeout = Self::TIMESLICE_TIMEOUT.get(self.words[0]) as u64;
        (timeout << Self::TIMESLICE_SCALE.get(self.words[0])) * TIMESLICE_UNIT_NS
    }

    /// The place of a channel's USERD; `None` if its target is no memory.
    #[must_use]
    pub const fn userd(&self) -> Option<PhysAddr> {
        let lo = self.words[0] & Self::USERD_LO.mask() as u32;
        place(Self::USERD_TARGET.get(self.words[0]), lo, self.words[1])
    }

    /// The place of a channel's instance block; `None` if its target is no memory.
    #[must_use]
    pub const fn inst(&self) -> Option<PhysAddr> {
        let lo = self.words[2] & Self::INST_LO.mask() as u32;
        place(Self::INST_TARGET.get(self.words[0]), lo, self.words[3])
    }
}

/// Timeout and scale of the shortest time slice that is at least `ns`; the longest there is, if none is.
#[must_use]
pub const fn encode_timeslice(ns: u64) -> (u32, u32) {
    let units = ns.div_ceil(TIMESLICE_UNIT_NS);
    let mut scale = 0;
    while scale < RunlistEntry::TIMESLICE_SCALE.max() as u32 {
        let timeout = units.div_ceil(1 << scale);
        if timeout <= RunlistEntry::TIMESLICE_TIMEOUT.max() {
            return (if timeout == 0 { 1 } else { timeout as u32 }, scale);
        }
        scale += 1;
    }
    let timeout = units.div_ceil(1 << scale);
    let max = RunlistEntry::TIMESLICE_TIMEOUT.max();
    (if timeout > max { max as u32 } else { timeout as u32 }, scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_parts() {
        let channel = RunlistEntry::channel(77, PhysAddr::system(0x12_3456_7800), PhysAddr::vram(0x1_2345_6000));
        assert!(!channel.is_tsg());
        assert_eq!(channel.id(), 77);
        assert_eq!(channel.userd(), Some(PhysAddr::system(0x12_3456_7800)));
        assert_eq!(channel.inst(), Some(PhysAddr::vram(0x1_2345_6000)));
        let tsg = RunlistEntry::tsg(5, 3, 2_000_000);
        assert!(tsg.is_tsg());
        assert_eq!((tsg.id(), tsg.length()), (5, 3));
        assert!((2_000_000..2_020_000).contains(&tsg.timeslice_ns()));
        assert_eq!(RunlistEntry::tsg(0, 0, u64::MAX).timeslice_ns(), (255 << 15) * 1024);
        assert_eq!(RunlistEntry::tsg(0, 0, 0).timeslice_ns(), 1024);
        let default = u64::from(TIMESLICE_DEFAULT_TIMEOUT << TIMESLICE_DEFAULT_SCALE) * TIMESLICE_UNIT_NS;
        assert_eq!(RunlistEntry::tsg(0, 0, default).timeslice_ns(), default);
    }
}
