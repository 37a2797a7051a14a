//! The instance block of a channel: 4 KiB in physical memory. Its first 512 bytes are RAMFC, the host engine's state of the
//! channel; page directory and engine contexts follow.
//!
//! While a channel is not bound, the words that `dev_ram` gives to the registers of a PBDMA (`dev_pbdma`) hold what those
//! held: a channel can be bound again, under any number, and goes on.
//!
//! Source: TU104 `dev_ram`, `dev_pbdma`. Constants named without unit are word (32-bit) indices.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Field;
use crate::mmu::{Aperture, PhysAddr};

/// Size and alignment, bytes.
pub const INSTANCE_BLOCK_BYTES: u64 = 4096;
/// Size of RAMFC, bytes.
pub const RAMFC_BYTES: u64 = 512;

/// GP put index.
pub const GP_PUT: usize = 0;
/// Memory operation, word A.
pub const MEM_OP_A: usize = 1;
/// USERD: target in bits 1:0, address bits 31:9.
pub const USERD: usize = 2;
/// USERD: address bits 39:32.
pub const USERD_HI: usize = 3;
/// [`SIGNATURE_VALUE`], or the channel is not scheduled.
pub const SIGNATURE: usize = 4;
/// GP get index.
pub const GP_GET: usize = 5;
/// Pushbuffer get pointer.
pub const PB_GET: usize = 6;
/// Pushbuffer get pointer, high.
pub const PB_GET_HI: usize = 7;
/// Pushbuffer get pointer at the top level; there are no others here.
pub const TOP_LEVEL_GET: usize = 8;
/// Pushbuffer get pointer at the top level, high.
pub const TOP_LEVEL_GET_HI: usize = 9;
/// Reference count.
pub const REF: usize = 10;
/// How long an acquire may wait.
pub const ACQUIRE: usize = 12;
/// Semaphore address, high.
pub const SEM_ADDR_HI: usize = 14;
/// Semaphore address, low.
pub const SEM_ADDR_LO: usize = 15;
/// Semaphore payload, low.
pub const SEM_PAYLOAD_LO: usize = 16;
/// Semaphore operation.
pub const SEM_EXECUTE: usize = 17;
/// Virtual address of the GPFIFO, bits 31:3.
pub const GP_BASE: usize = 18;
/// Bits 39:32 of it in 7:0 (Sundial's own: 47:32 in 15:0), and log2 of its entries in 20:16.
pub const GP_BASE_HI: usize = 19;
/// GP entries fetched.
pub const GP_FETCH: usize = 20;
/// Pushbuffer fetch pointer.
pub const PB_FETCH: usize = 21;
/// Pushbuffer fetch pointer, high.
pub const PB_FETCH_HI: usize = 22;
/// End of the pushbuffer segment.
pub const PB_PUT: usize = 23;
/// End of the pushbuffer segment, high.
pub const PB_PUT_HI: usize = 24;
/// Memory operation, word B.
pub const MEM_OP_B: usize = 25;
/// Pushbuffer header in progress: fields `HEADER_…`.
pub const PB_HEADER: usize = 33;
/// Data words that remain of it ([`COUNT_VALUE`]).
pub const PB_COUNT: usize = 34;
/// Subdevice mask: fields `SUBDEVICE_…`. With 0, nothing is masked.
pub const SUBDEVICE: usize = 37;
/// Semaphore payload, high.
pub const SEM_PAYLOAD_HI: usize = 39;
/// Memory operation, word C.
pub const MEM_OP_C: usize = 40;
/// Target engine.
pub const TARGET: usize = 43;
/// A method that has yet to be executed: fields `METHOD_…`.
pub const METHOD0: usize = 48;
/// Its data.
pub const DATA0: usize = 49;
/// Host-driven copy engine control.
pub const HCE_CTRL: usize = 57;
/// Privilege and others.
pub const CONFIG: usize = 61;
/// Channel information: bits for the scheduler.
pub const SET_CHANNEL_INFO: usize = 63;
/// Page directory base, low: fields `PDB_…`.
pub const PAGE_DIR_BASE_LO: usize = 128;
/// Page directory base, high.
pub const PAGE_DIR_BASE_HI: usize = 129;

/// Sundial's own: first address of the channel's window, the part of the address space that anything may be mapped in
/// (2 MiB aligned): 64 bits, low word first. Channels that share a page directory must agree on the window; the first to
/// be bound decides.
pub const WINDOW_LO: usize = 512;
/// Sundial's own: bytes of the window (whole 2 MiB, at most 2^40): 64 bits, low word first. With 0 the window is made to
/// hold what the page directory maps when the channel is bound, which suits tests only.
pub const WINDOW_BYTES: usize = 514;
/// Sundial's own: physical address of the error notifier ([`crate::notifier`]): target in bits 1:0 (0 VRAM, 1 none, 2 and
/// 3 system memory), address bits 31:12; the next word holds bits 63:32.
pub const NOTIFIER: usize = 516;

/// Sundial's own: the channel's budget ([`crate::regs::budget`]); 0 has no limits.
pub const BUDGET: usize = 518;

/// Sundial's own: method state of the channel's engines while it is not bound, which hardware keeps in contexts of no
/// published layout. Only the device reads and writes it; all zero is the state of a new channel.
pub const ENGINE_STATE: usize = 576;
/// Words of [`ENGINE_STATE`].
pub const ENGINE_STATE_WORDS: usize = 64;

/// Method address in bytes >> 2, in [`PB_HEADER`].
pub const HEADER_METHOD: Field = Field::new(13, 2);
/// Subchannel, in [`PB_HEADER`].
pub const HEADER_SUBCHANNEL: Field = Field::new(18, 16);
/// Opcode as in [`crate::host::Header`], in [`PB_HEADER`].
pub const HEADER_TYPE: Field = Field::new(31, 29);
/// Data words that remain, in [`PB_COUNT`].
pub const COUNT_VALUE: Field = Field::new(12, 0);
/// Which subdevices the channel is, in [`SUBDEVICE`].
pub const SUBDEVICE_ID: Field = Field::new(11, 0);
/// The mask that was stored for later, in [`SUBDEVICE`].
pub const SUBDEVICE_STORED_MASK: Field = Field::new(27, 16);
/// Methods are executed, in [`SUBDEVICE`].
pub const SUBDEVICE_STATUS: Field = Field::bit(28);
/// Masks count, in [`SUBDEVICE`].
pub const SUBDEVICE_CHANNEL_DMA: Field = Field::bit(29);
/// Method address in bytes >> 2, in [`METHOD0`].
pub const METHOD_ADDR: Field = Field::new(13, 2);
/// Subchannel, in [`METHOD0`].
pub const METHOD_SUBCH: Field = Field::new(18, 16);
/// There is a method, in [`METHOD0`].
pub const METHOD_VALID: Field = Field::bit(31);

/// The channel may use physical addresses and invalidate foreign page directories, in [`CONFIG`].
pub const CONFIG_PRIVILEGED: Field = Field::bit(8);

/// What stands in [`SIGNATURE`].
pub const SIGNATURE_VALUE: u32 = 0xface;
/// Target of USERD: 0 VRAM, 2 coherent system memory, 3 non-coherent, in [`USERD`].
pub const USERD_TARGET: Field = Field::new(1, 0);
/// Address bits 31:9, in [`USERD`].
pub const USERD_ADDRESS: Field = Field::new(31, 9);
/// Virtual address bits 47:32, in [`GP_BASE_HI`].
pub const GP_BASE_UPPER: Field = Field::new(15, 0);
/// log2 of the number of entries, in [`GP_BASE_HI`].
pub const GP_BASE_LIMIT2: Field = Field::new(20, 16);
/// Aperture of the page directory, in [`PAGE_DIR_BASE_LO`]: 0 VRAM, 1 invalid, 2 coherent system memory, 3 non-coherent.
pub const PDB_TARGET: Field = Field::new(1, 0);
/// Bypasses the L2 cache, in [`PAGE_DIR_BASE_LO`].
pub const PDB_VOL: Field = Field::bit(2);
/// Replayable faults of texture units, in [`PAGE_DIR_BASE_LO`].
pub const PDB_FAULT_REPLAY_TEX: Field = Field::bit(4);
/// Replayable faults of GCC, in [`PAGE_DIR_BASE_LO`].
pub const PDB_FAULT_REPLAY_GCC: Field = Field::bit(5);
/// Version 2 page tables, in [`PAGE_DIR_BASE_LO`].
pub const PDB_VER2: Field = Field::bit(10);
/// Big pages have 64 KiB, in [`PAGE_DIR_BASE_LO`].
pub const PDB_BIG_PAGE_64K: Field = Field::bit(11);
/// Address bits 31:12, in [`PAGE_DIR_BASE_LO`].
pub const PDB_ADDRESS: Field = Field::new(31, 12);

/// The number of an aperture in this crate's `…_TARGET` fields: 0 VRAM, 2 (coherent) system memory.
#[must_use]
pub const fn target(aperture: Aperture) -> u32 {
    match aperture {
        Aperture::Vram => 0,
        Aperture::System => 2,
    }
}

/// The physical address with a `…_TARGET` number and two address words; `None` if the target is no memory.
#[must_use]
pub const fn place(target: u32, lo: u32, hi: u32) -> Option<PhysAddr> {
    let address = lo as u64 | (hi as u64) << 32;
    match target {
        0 => Some(PhysAddr::vram(address)),
        2 | 3 => Some(PhysAddr::system(address)),
        _ => None,
    }
}

/// An instance block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InstanceBlock {
    /// Its words; index with the constants of this module.
    pub words: [u32; 1024],
}

impl Default for InstanceBlock {
    fn default() -> InstanceBlock {
        InstanceBlock { words: [0; 1024] }
    }
}

impl InstanceBlock {
    /// Sets the page directory, of version 2 tables.
    pub const fn set_page_directory(&mut self, at: PhysAddr) {
        self.words[PAGE_DIR_BASE_LO] = PDB_TARGET.of(target(at.aperture))
            | PDB_VER2.of(1)
            | PDB_BIG_PAGE_64K.of(1)
            | (at.address as u32 & PDB_ADDRESS.mask() as u32);
        self.words[PAGE_DIR_BASE_HI] = (at.address >> 32) as u32;
    }

    /// The page directory; `None` if its target is no memory.
    #[must_use]
    pub const fn page_directory(&self) -> Option<PhysAddr> {
        let lo = self.words[PAGE_DIR_BASE_LO];
        place(PDB_TARGET.get(lo), lo & PDB_ADDRESS.mask() as u32, self.words[PAGE_DIR_BASE_HI])
    }

    /// Sets the place of USERD.
    pub const fn set_userd(&mut self, at: PhysAddr) {
        self.words[USERD] = USERD_TARGET.of(target(at.aperture)) | (at.address as u32 & USERD_ADDRESS.mask() as u32);
        self.words[USERD_HI] = (at.address >> 32) as u32;
    }

    /// The place of USERD; `None` if its target is no memory.
    #[must_use]
    pub const fn userd(&self) -> Option<PhysAddr> {
        let lo = self.words[USERD];
        place(USERD_TARGET.get(lo), lo & USERD_ADDRESS.mask() as u32, self.words[USERD_HI])
    }

    /// Sets the channel's window.
    pub const fn set_window(&mut self, lo: u64, bytes: u64) {
        self.words[WINDOW_LO] = lo as u32;
        self.words[WINDOW_LO + 1] = (lo >> 32) as u32;
        self.words[WINDOW_BYTES] = bytes as u32;
        self.words[WINDOW_BYTES + 1] = (bytes >> 32) as u32;
    }

    /// First address and bytes of the channel's window.
    #[must_use]
    pub const fn window(&self) -> (u64, u64) {
        (self.long(WINDOW_LO), self.long(WINDOW_BYTES))
    }

    const fn long(&self, at: usize) -> u64 {
        self.words[at] as u64 | (self.words[at + 1] as u64) << 32
    }

    /// Sets the place of the error notifier (4 KiB aligned), or none.
    pub const fn set_notifier(&mut self, at: Option<PhysAddr>) {
        let (lo, hi) = match at {
            Some(at) => (target(at.aperture) | at.address as u32 & !0xfff, (at.address >> 32) as u32),
            None => (1, 0),
        };
        self.words[NOTIFIER] = lo;
        self.words[NOTIFIER + 1] = hi;
    }

    /// The place of the error notifier, if there is one.
    #[must_use]
    pub const fn notifier(&self) -> Option<PhysAddr> {
        let lo = self.words[NOTIFIER];
        place(lo & 3, lo & !0xfff, self.words[NOTIFIER + 1])
    }

    /// Sets the channel's budget.
    pub const fn set_budget(&mut self, budget: u32) {
        self.words[BUDGET] = budget;
    }

    /// The channel's budget.
    #[must_use]
    pub const fn budget(&self) -> u32 {
        self.words[BUDGET]
    }

    /// Sets virtual address (8-byte aligned) and size of the GPFIFO.
    pub const fn set_gpfifo(&mut self, address: u64, log2_entries: u32) {
        self.words[GP_BASE] = address as u32;
        self.words[GP_BASE_HI] = GP_BASE_UPPER.of((address >> 32) as u32) | GP_BASE_LIMIT2.of(log2_entries);
    }

    /// Virtual address of the GPFIFO and log2 of its entries.
    #[must_use]
    pub const fn gpfifo(&self) -> (u64, u32) {
        let hi = self.words[GP_BASE_HI];
        let address = self.words[GP_BASE] as u64 & !7 | (GP_BASE_UPPER.get(hi) as u64) << 32;
        (address, GP_BASE_LIMIT2.get(hi))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_survive() {
        let mut block = InstanceBlock::default();
        assert_eq!(InstanceBlock { words: [1; 1024] }.page_directory(), None);
        block.set_page_directory(PhysAddr::vram(0x1_2345_6000));
        block.set_userd(PhysAddr::system(0x7f_0000_0200));
        block.set_gpfifo(0x7fff_1234_5678, 10);
        block.set_window(0x7000_0020_0000, 1 << 40);
        block.set_notifier(Some(PhysAddr::system(0x12_3456_7000)));
        assert_eq!(block.window(), (0x7000_0020_0000, 1 << 40));
        assert_eq!(block.notifier(), Some(PhysAddr::system(0x12_3456_7000)));
        block.set_notifier(None);
        assert_eq!(block.notifier(), None);
        assert_eq!(block.page_directory(), Some(PhysAddr::vram(0x1_2345_6000)));
        assert_eq!(block.userd(), Some(PhysAddr::system(0x7f_0000_0200)));
        assert_eq!(block.gpfifo(), (0x7fff_1234_5678, 10));
    }
}
