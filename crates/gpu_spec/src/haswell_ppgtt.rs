//! Intel's per-process page tables (PPGTT, "local page table") of Haswell, generation 7.5: a 31-bit virtual address, two
//! levels, pages of 4 KiB in system memory.
//!
//! | level | address bits | entries | entry | holds |
//! |---|---|---|---|---|
//! | directory | 30:22 | 512 | 4 B | [`Pde`] |
//! | table | 21:12 | 1,024 | 4 B | [`Pte`] |
//!
//! Entries say whether they are valid, an address, and, for pages, how they are cached; there are no rights. On the chip the
//! directory is 2 KiB of the global page table's own memory, at the offset in PP_DIR_BASE.
//!
//! Source: Linux, `drivers/gpu/drm/i915/gt/intel_gtt.h` (`GEN6_PDE_ADDR_ENCODE`, `HSW_PTE_ADDR_ENCODE`,
//! `HSW_CACHEABILITY_CONTROL`) and `gen6_ppgtt.c`; bit 1 of directory entries as its older `intel-gtt.h` has it
//! (`GEN6_PDE_LARGE_PAGE`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of a virtual address.
pub const VA_BITS: u32 = 31;
/// Lowest address bit that the directory resolves.
pub const DIRECTORY_SHIFT: u32 = 22;
/// Entries of the directory.
pub const DIRECTORY_ENTRIES: u64 = 512;
/// Size of the directory, bytes.
pub const DIRECTORY_BYTES: u64 = 2048;
/// Entries of a table.
pub const TABLE_ENTRIES: u64 = 1024;
/// Bits of the physical address of a table.
pub const TABLE_ADDRESS_BITS: u32 = 40;
/// Bits of the physical address of a page.
pub const PAGE_ADDRESS_BITS: u32 = 39;

const VALID: u32 = 1;
const LARGE_PAGES: u32 = 1 << 1;
/// Bits 31:12 of an address stand where they are.
const LOW: u32 = 0xffff_f000;

/// An entry of the directory: the address of a table, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Pde(pub u32);

impl Pde {
    /// Points nowhere.
    pub const INVALID: Pde = Pde(0);

    /// Points at a table (4 KiB aligned, within [`TABLE_ADDRESS_BITS`]).
    #[must_use]
    pub const fn to_table(at: u64) -> Pde {
        Pde(VALID | at as u32 & LOW | (at >> 28) as u32 & 0xff0)
    }

    /// The table. There is none for an entry that asks for pages of 32 KiB (bit 1), which no driver is known to use.
    #[must_use]
    pub const fn table(self) -> Option<u64> {
        if self.0 & (VALID | LARGE_PAGES) == VALID {
            Some((self.0 & LOW) as u64 | (self.0 as u64 & 0xff0) << 28)
        } else {
            None
        }
    }
}

/// A page table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Pte(pub u32);

impl Pte {
    /// No page.
    pub const INVALID: Pte = Pte(0);

    /// A page (4 KiB aligned, within [`PAGE_ADDRESS_BITS`]), and the four bits that say how it is cached.
    #[must_use]
    pub const fn to_page(at: u64, caching: u8) -> Pte {
        let caching = caching as u32;
        Pte(VALID | at as u32 & LOW | (at >> 28) as u32 & 0x7f0 | (caching & 7) << 1 | (caching & 8) << 8)
    }

    /// Is there a page?
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// Where the page lies. Meaningless unless valid.
    #[must_use]
    pub const fn address(self) -> u64 {
        (self.0 & LOW) as u64 | (self.0 as u64 & 0x7f0) << 28
    }

    /// How it is cached: the low three bits stand in 3:1, the fourth in 11.
    #[must_use]
    pub const fn caching(self) -> u8 {
        (self.0 >> 1 & 7 | self.0 >> 8 & 8) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_have_the_documented_bits() {
        let at = 0x7f_1234_5000;
        assert_eq!(Pte::to_page(at, 0), Pte(0x1234_5000 | 0x7f << 4 | 1));
        assert_eq!(Pte::to_page(at, 2), Pte(0x1234_5000 | 0x7f << 4 | 2 << 1 | 1), "write back, age 3");
        assert_eq!(Pte::to_page(at, 8), Pte(0x1234_5000 | 1 << 11 | 0x7f << 4 | 1), "write back, eLLC too");
        for caching in 0..16 {
            let pte = Pte::to_page(at, caching);
            assert_eq!((pte.is_valid(), pte.address(), pte.caching()), (true, at, caching));
        }
        assert!(!Pte(0xffff_fffe).is_valid());

        let at = 0xff_1234_5000;
        assert_eq!(Pde::to_table(at), Pde(0x1234_5000 | 0xff << 4 | 1));
        assert_eq!(Pde::to_table(at).table(), Some(at));
        assert_eq!((Pde::INVALID.table(), Pde(Pde::to_table(at).0 | 2).table()), (None, None));
    }

    #[test]
    fn tables_are_as_large_as_what_they_hold() {
        assert_eq!(DIRECTORY_ENTRIES * size_of::<Pde>() as u64, DIRECTORY_BYTES);
        assert_eq!(TABLE_ENTRIES * size_of::<Pte>() as u64, crate::mmu::TABLE_BYTES);
        assert_eq!(TABLE_ENTRIES * crate::mmu::SMALL_PAGE, 1 << DIRECTORY_SHIFT);
        assert_eq!(DIRECTORY_ENTRIES << DIRECTORY_SHIFT, 1 << VA_BITS);
    }
}
