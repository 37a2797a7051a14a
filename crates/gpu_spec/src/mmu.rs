//! GMMU page tables, second version (`NV_MMU_VER2`, Pascal to Ampere): a 49-bit virtual address, five levels.
//!
//! | level | address bits | entries | entry | holds |
//! |---|---|---|---|---|
//! | PDE3 (root) | 48:47 | 4 | 8 B | [`Pde`] |
//! | PDE2 | 46:38 | 512 | 8 B | [`Pde`] |
//! | PDE1 | 37:29 | 512 | 8 B | [`Pde`] |
//! | PDE0 | 28:21 | 256 | 16 B | [`DualPde`]: a table of 64 KiB pages and one of 4 KiB pages, or a 2 MiB page |
//! | PTE, big | 20:16 | 32 | 8 B | [`Pte`] of 64 KiB |
//! | PTE, small | 20:12 | 512 | 8 B | [`Pte`] of 4 KiB |
//!
//! Tables are 4 KiB but that of big pages (256 B). A valid big entry hides the small entries below it; an invalid one
//! leaves the address to them, unless it is sparse or marked as ending the walk.
//!
//! Entries of all levels can be sparse (not valid, but volatile): no memory, and yet accesses are no errors; reads give
//! zero, writes vanish.
//!
//! Source: NVIDIA open-gpu-doc, `manuals/turing/tu104/dev_mmu.ref.txt`; sparse directory entries as Linux's nouveau writes
//! them (`nvkm/subdev/mmu/vmmgp100.c`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of a GPU virtual address.
pub const VA_BITS: u32 = 49;
/// First address behind the GPU virtual address space.
pub const VA_END: u64 = 1 << VA_BITS;
/// Size of a page directory or of a table of small pages, bytes.
pub const TABLE_BYTES: u64 = 4096;
/// Size of a table of big pages, bytes.
pub const BIG_TABLE_BYTES: u64 = 256;
/// Small page, bytes.
pub const SMALL_PAGE: u64 = 4 << 10;
/// Big page, bytes.
pub const BIG_PAGE: u64 = 64 << 10;
/// Huge page, bytes: a leaf in the last directory.
pub const HUGE_PAGE: u64 = 2 << 20;
/// The ordinary kind of a page's memory: pitch-linear, not compressed (`NV_MMU_PTE_KIND_GENERIC_MEMORY`).
pub const KIND_GENERIC: u8 = 0x06;

/// Which memory a physical address lies in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Aperture {
    /// The GPU's own memory.
    Vram,
    /// System memory, by its address on the bus (coherent and non-coherent are one here).
    System,
}

/// A physical address as the GPU sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PhysAddr {
    /// Memory.
    pub aperture: Aperture,
    /// Byte address in it.
    pub address: u64,
}

impl PhysAddr {
    /// A place in VRAM.
    #[must_use]
    pub const fn vram(address: u64) -> PhysAddr {
        PhysAddr { aperture: Aperture::Vram, address }
    }

    /// A place in system memory.
    #[must_use]
    pub const fn system(address: u64) -> PhysAddr {
        PhysAddr { aperture: Aperture::System, address }
    }

    /// `bytes` further; wraps at the end of the address space.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> PhysAddr {
        PhysAddr { aperture: self.aperture, address: self.address.wrapping_add(bytes) }
    }
}

/// Bits `hi:lo` of an entry.
const fn bits(value: u64, hi: u32, lo: u32) -> u64 {
    (value >> lo) & (u64::MAX >> (63 - (hi - lo)))
}

/// Decodes the aperture and address of a table; `unit` is the shift of the address field that begins at bit `low`.
const fn table(value: u64, low: u32, unit: u32) -> Option<PhysAddr> {
    match bits(value, 2, 1) {
        1 => Some(PhysAddr::vram(bits(value, 32, low) << unit)),
        2 | 3 => Some(PhysAddr::system(bits(value, 53, low) << unit)),
        _ => None,
    }
}

const fn table_entry(at: PhysAddr, low: u32, unit: u32) -> u64 {
    let (aperture, top) = match at.aperture {
        Aperture::Vram => (1, 32),
        Aperture::System => (2, 53),
    };
    aperture << 1 | bits(at.address >> unit, top - low, 0) << low
}

/// An entry of the three upper levels: the address of the next table, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Pde(pub u64);

impl Pde {
    /// Points nowhere.
    pub const INVALID: Pde = Pde(0);
    /// Points nowhere, and all that lies there is sparse.
    pub const SPARSE: Pde = Pde(1 << 3);

    /// Points at a table (4 KiB aligned).
    #[must_use]
    pub const fn to_table(at: PhysAddr) -> Pde {
        Pde(table_entry(at, 8, 12))
    }

    /// The next table. An entry marked as a page (bit 0), which has no meaning in these levels, points nowhere.
    #[must_use]
    pub const fn table(self) -> Option<PhysAddr> {
        if self.0 & 1 != 0 { None } else { table(self.0, 8, 12) }
    }

    /// True if all that lies there is sparse: no table, and the volatile bit.
    #[must_use]
    pub const fn is_sparse(self) -> bool {
        bits(self.0, 3, 0) == 1 << 3
    }
}

/// An entry of the last directory: two tables for the same 2 MiB, or one page of that size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DualPde {
    /// Table of big pages (or, with bit 0 set, a [`Pte`]).
    pub big: u64,
    /// Table of small pages.
    pub small: u64,
}

impl DualPde {
    /// Points nowhere.
    pub const INVALID: DualPde = DualPde { big: 0, small: 0 };
    /// Points nowhere, and the whole 2 MiB are sparse.
    pub const SPARSE: DualPde = DualPde { big: 1 << 3, small: 0 };

    /// Points at tables of big pages (256-byte aligned) and of small pages (4 KiB aligned).
    #[must_use]
    pub const fn to_tables(big: Option<PhysAddr>, small: Option<PhysAddr>) -> DualPde {
        DualPde {
            big: match big {
                Some(at) => table_entry(at, 4, 8),
                None => 0,
            },
            small: match small {
                Some(at) => table_entry(at, 8, 12),
                None => 0,
            },
        }
    }

    /// A page of 2 MiB.
    #[must_use]
    pub const fn to_page(pte: Pte) -> DualPde {
        DualPde { big: pte.0, small: 0 }
    }

    /// The 2 MiB page that it is, if it is one.
    #[must_use]
    pub const fn page(self) -> Option<Pte> {
        if self.big & 1 != 0 { Some(Pte(self.big)) } else { None }
    }

    /// True if the whole 2 MiB are sparse: no tables, and the volatile bit.
    #[must_use]
    pub const fn is_sparse(self) -> bool {
        bits(self.big, 3, 0) == 1 << 3 && self.small_table().is_none()
    }

    /// The table of big pages.
    #[must_use]
    pub const fn big_table(self) -> Option<PhysAddr> {
        if self.big & 1 != 0 { None } else { table(self.big, 4, 8) }
    }

    /// The table of small pages.
    #[must_use]
    pub const fn small_table(self) -> Option<PhysAddr> {
        if self.big & 1 != 0 { None } else { table(self.small, 8, 12) }
    }
}

/// What a page allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights {
    /// Writes and atomics are refused.
    pub read_only: bool,
    /// Only the device itself and privileged channels may touch it.
    pub privileged: bool,
    /// Atomics are refused.
    pub atomic_disable: bool,
}

/// A page table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Pte(pub u64);

impl Pte {
    /// No page.
    pub const INVALID: Pte = Pte(0);
    /// No page, but accesses are not errors.
    pub const SPARSE: Pte = Pte(1 << 3);
    /// In a table of big pages: no page, and the small pages below it are not looked at either.
    pub const NO_SMALL: Pte = Pte(1 << 5);

    /// A page at `at` (aligned to its size).
    #[must_use]
    pub const fn to_page(at: PhysAddr, rights: Rights) -> Pte {
        let (aperture, field) = match at.aperture {
            Aperture::Vram => (0, bits(at.address >> 12, 24, 0)),
            Aperture::System => (2, bits(at.address >> 12, 45, 0)),
        };
        Pte(1
            | aperture << 1
            | (rights.privileged as u64) << 5
            | (rights.read_only as u64) << 6
            | (rights.atomic_disable as u64) << 7
            | field << 8
            | (KIND_GENERIC as u64) << 56)
    }

    /// Is there a page?
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & 1 != 0
    }

    /// Is it sparse: no page, accesses allowed?
    #[must_use]
    pub const fn is_sparse(self) -> bool {
        self.0 & (1 << 3 | 1) == 1 << 3
    }

    /// Does an invalid big entry hide the small pages below it?
    #[must_use]
    pub const fn hides_small(self) -> bool {
        self.0 & 1 != 0 || self.0 & (1 << 3 | 1 << 5) != 0
    }

    /// Where the page lies; `None` for a peer's memory, of which there is none. Meaningless unless valid.
    #[must_use]
    pub const fn address(self) -> Option<PhysAddr> {
        match bits(self.0, 2, 1) {
            0 => Some(PhysAddr::vram(bits(self.0, 32, 8) << 12)),
            2 | 3 => Some(PhysAddr::system(bits(self.0, 53, 8) << 12)),
            _ => None,
        }
    }

    /// What it allows.
    #[must_use]
    pub const fn rights(self) -> Rights {
        Rights {
            read_only: self.0 & (1 << 6) != 0,
            privileged: self.0 & (1 << 5) != 0,
            atomic_disable: self.0 & (1 << 7) != 0,
        }
    }

    /// Kind of the memory; [`KIND_GENERIC`] and 0 (pitch) are plain.
    #[must_use]
    pub const fn kind(self) -> u8 {
        bits(self.0, 63, 56) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_have_the_documented_bits() {
        let at = PhysAddr::vram(0x1_2345_6000);
        assert_eq!(Pde::to_table(at), Pde(0x12_3456 << 8 | 1 << 1));
        assert_eq!(Pde::to_table(at).table(), Some(at));
        let sys = PhysAddr::system(0x12_3456_7890_0000);
        assert_eq!(Pde::to_table(sys).table(), Some(sys));
        assert_eq!(Pde::INVALID.table(), None);

        let big = PhysAddr::vram(0x7_ff00);
        let dual = DualPde::to_tables(Some(big), Some(sys));
        assert_eq!(dual.big, 0x7ff << 4 | 1 << 1);
        assert_eq!((dual.big_table(), dual.small_table()), (Some(big), Some(sys)));
        assert_eq!(dual.page(), None);

        let rights = Rights { read_only: true, ..Rights::default() };
        let pte = Pte::to_page(at, rights);
        assert_eq!(pte.0, 0x06 << 56 | 0x12_3456 << 8 | 1 << 6 | 1);
        assert_eq!((pte.address(), pte.rights(), pte.kind()), (Some(at), rights, KIND_GENERIC));
        assert_eq!(Pte::to_page(sys, Rights::default()).address(), Some(sys));
        assert_eq!(DualPde::to_page(pte).page(), Some(pte));
        assert!(Pte::SPARSE.is_sparse() && !pte.is_sparse());
    }
}
