//! The PCI configuration space of a virtual GPU.
//!
//! A TU104 by vendor and device, of the class of accelerators: no driver for displays takes it for its own. The client (QEMU)
//! places BARs, and keeps MSI-X tables, itself; what it writes here is remembered where a device would remember it.
//!
//! A function-level reset (of the capability "advanced features") is how a kernel in the guest resets the device, and the only
//! way in a virtual machine, whose connection outlives the programs in it. Whoever takes the device over begins with one: the
//! program before may have been killed, and has left what it had bound. The space itself stays as it is: the client keeps its
//! own view of it, and the kernel writes back what it had written.

use std::ops::Range;

/// Bytes of the space.
pub(crate) const CONFIG_BYTES: u64 = 256;
/// Bytes of BAR0: registers.
pub(crate) const BAR0_BYTES: u64 = 16 << 20;
/// Bytes of BAR4: MSI-X table, and pending bits.
pub(crate) const BAR4_BYTES: u64 = 8 << 10;
/// Where the pending bits begin.
const PBA: u32 = 4 << 10;

const VENDOR: u16 = 0x10de;
const DEVICE: u16 = 0x1eb8;
const REVISION: u8 = 0xa1;
/// Processing accelerators.
const CLASS: u32 = 0x12_0000;
const MSIX_AT: usize = 0x60;
/// The capability "advanced features"; in its fifth byte the bit that resets the function.
const AF_AT: usize = 0x70;
const AF_CONTROL: u64 = AF_AT as u64 + 4;
const AF_RESET: u8 = 1;
/// The upper byte of the command, and the bit that keeps the interrupt line down.
const COMMAND_HIGH: usize = 0x05;
const COMMAND_NO_INTX: u8 = 1 << 2;
/// The lower byte of the status, and the bit of a pending interrupt in it.
const STATUS: u64 = 0x06;
const STATUS_INTERRUPT: u8 = 1 << 3;

/// The space.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES as usize],
    bar1_bytes: u64,
}

impl ConfigSpace {
    /// For a BAR1 of that many bytes: a power of two.
    pub(crate) fn new(bar1_bytes: u64) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; CONFIG_BYTES as usize], bar1_bytes };
        space.put(0x00, &VENDOR.to_le_bytes());
        space.put(0x02, &DEVICE.to_le_bytes());
        // Status: there are capabilities.
        space.put(0x06, &0x10u16.to_le_bytes());
        space.put(0x08, &(CLASS << 8 | u32::from(REVISION)).to_le_bytes());
        // BAR1 has 64 bits and may be prefetched, BAR0 and BAR4 have 32.
        space.put(0x14, &0xcu32.to_le_bytes());
        space.put(0x2c, &VENDOR.to_le_bytes());
        space.put(0x2e, &DEVICE.to_le_bytes());
        space.put(0x34, &[MSIX_AT as u8]);
        // Interrupt pin A.
        space.put(0x3d, &[1]);
        // MSI-X: one vector, table at the beginning of BAR4, pending bits behind it.
        space.put(MSIX_AT, &[0x11, AF_AT as u8, 0, 0]);
        space.put(MSIX_AT + 4, &4u32.to_le_bytes());
        space.put(MSIX_AT + 8, &(PBA | 4).to_le_bytes());
        // Advanced features, six bytes: a function-level reset, and to tell whether transactions are pending; none ever is.
        space.put(AF_AT, &[0x13, 0, 6, 3]);
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Copies out; beyond the end, zeros. The status tells whether the interrupt line is `up`: by that bit a driver that shares
    /// the line with others knows whose interrupt it is.
    pub(crate) fn read(&self, offset: u64, up: bool, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            *byte = usize::try_from(at).ok().and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
            if at == STATUS && up {
                *byte |= STATUS_INTERRUPT;
            }
        }
    }

    /// Whether the guest has forbidden the interrupt line.
    pub(crate) fn wire_off(&self) -> bool {
        self.bytes[COMMAND_HIGH] & COMMAND_NO_INTX != 0
    }

    /// Whether a write asks for a function-level reset.
    pub(crate) fn resets(offset: u64, data: &[u8]) -> bool {
        let control = AF_CONTROL.checked_sub(offset).and_then(|at| data.get(usize::try_from(at).ok()?));
        control.is_some_and(|control| control & AF_RESET != 0)
    }

    /// Writes what can be written.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        /// Command, cache line and latency, interrupt line, MSI-X control.
        const PLAIN: [Range<u64>; 4] = [0x04..0x06, 0x0c..0x0e, 0x3c..0x3d, 0x62..0x64];
        for (at, byte) in (offset..).zip(data) {
            if PLAIN.iter().any(|range| range.contains(&at)) {
                self.bytes[at as usize] = *byte;
            }
        }
        // BARs: address bits below the size stay zero, so that writing ones tells the size.
        for (at, bytes, flags, high) in
            [(0x10, BAR0_BYTES, 0, false), (0x14, self.bar1_bytes, 0xc, true), (0x20, BAR4_BYTES, 0, false)]
        {
            let end = if high { at + 8 } else { at + 4 };
            if offset >= end as u64 || offset + data.len() as u64 <= at as u64 {
                continue;
            }
            let mut whole = [0; 8];
            whole[..end - at].copy_from_slice(&self.bytes[at..end]);
            for (from, byte) in (offset..).zip(data) {
                if let Some(to) =
                    from.checked_sub(at as u64).and_then(|to| whole.get_mut(..end - at)?.get_mut(to as usize))
                {
                    *to = *byte;
                }
            }
            let value = u64::from_le_bytes(whole) & !(bytes - 1) | flags;
            let bytes = value.to_le_bytes();
            self.bytes[at..end].copy_from_slice(&bytes[..end - at]);
        }
        // MSI-X: enable and mask can be written, the number of vectors not.
        self.bytes[MSIX_AT + 2] = 0;
        self.bytes[MSIX_AT + 3] &= 0xc0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut word = [0; 4];
        space.read(at, false, &mut word);
        u32::from_le_bytes(word)
    }

    #[test]
    fn the_status_tells_of_the_line_and_the_command_forbids_it() {
        let mut space = ConfigSpace::new(1 << 30);
        for (up, expected) in [(false, 0x10_0000), (true, 0x18_0000)] {
            let mut word = [0; 4];
            space.read(4, up, &mut word);
            assert_eq!(u32::from_le_bytes(word), expected);
        }
        assert!(!space.wire_off());
        space.write(4, &0x0407u16.to_le_bytes());
        assert!(space.wire_off());
        space.write(4, &0x0007u16.to_le_bytes());
        assert!(!space.wire_off());
    }

    #[test]
    fn bars_tell_their_size() {
        let mut space = ConfigSpace::new(1 << 30);
        assert_eq!(word(&space, 0), 0x1eb8_10de);
        assert_eq!(word(&space, 8), 0x1200_00a1);
        for at in [0x10, 0x14, 0x18, 0x20] {
            space.write(at, &[0xff; 4]);
        }
        assert_eq!(word(&space, 0x10), 0xff00_0000);
        assert_eq!((word(&space, 0x14), word(&space, 0x18)), (0xc000_000c, 0xffff_ffff));
        assert_eq!(word(&space, 0x20), 0xffff_e000);
        space.write(0x18, &[0x12, 0, 0, 0]);
        assert_eq!((word(&space, 0x14), word(&space, 0x18)), (0xc000_000c, 0x12));
        // The rest is as it was.
        space.write(0, &[0xff; 16]);
        assert_eq!(word(&space, 0), 0x1eb8_10de);
        assert_eq!(word(&space, 0x60), 0x7011);
        space.write(0x62, &[0xff, 0xff]);
        assert_eq!(word(&space, 0x60), 0xc000_7011);
    }

    #[test]
    fn a_kernel_finds_the_reset_where_it_looks() {
        let mut space = ConfigSpace::new(1 << 30);
        // From capability to capability, until the one of that number.
        let mut at = word(&space, 0x34) as u8;
        while word(&space, at.into()) as u8 != 0x13 {
            at = (word(&space, at.into()) >> 8) as u8;
            assert_ne!(at, 0);
        }
        let (capability, control) = (word(&space, at.into()), u64::from(at) + 4);
        assert_eq!(capability >> 24, 3, "it resets, and tells of transactions");
        assert_eq!(word(&space, control), 0, "none is pending");
        assert!(ConfigSpace::resets(control, &[1]) && ConfigSpace::resets(control - 2, &[0, 0, 1, 0]));
        assert!(!ConfigSpace::resets(control, &[0]) && !ConfigSpace::resets(control + 1, &[1]));
        assert!(!ConfigSpace::resets(control - 1, &[1]) && !ConfigSpace::resets(u64::MAX, &[1]));
        space.write(control, &[1]);
        assert_eq!(word(&space, control), 0, "the bit does not stay");
    }
}
