//! NVIDIA's format: entries are what they are.

use gpu_spec::mmu::{BIG_PAGE, DualPde, HUGE_PAGE, PhysAddr, Pte, Rights, TABLE_BYTES, VA_END};
use zerocopy::IntoBytes;

use super::{Format, Geometry, Level, Table};
use crate::{BadAddress, PhysMem};

/// The GMMU's second version, of NVIDIA's Pascal to Ampere ([`gpu_spec::mmu`]): five levels, pages of 4 KiB, 64 KiB and
/// 2 MiB, in VRAM or system memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gmmu2 {}

/// Where an entry stands in its table.
fn place(table: PhysAddr, of: Table, first: usize) -> PhysAddr {
    table.offset(first as u64 * Gmmu2::entry_bytes(of))
}

impl Format for Gmmu2 {
    type Words = [u64; (TABLE_BYTES / 8) as usize];

    const LEVELS: &'static [Level] = &[
        Level { shift: 47, entries: 4 },
        Level { shift: 38, entries: 512 },
        Level { shift: 29, entries: 512 },
        Level { shift: 21, entries: 256 },
    ];
    const DIRECTORY_BYTES: u64 = TABLE_BYTES;
    const LARGE_PAGES: &'static [u64] = &[HUGE_PAGE, BIG_PAGE];
    /// The kind, and the volatile bit.
    const CARRIED: u64 = 0xff << 56 | 1 << 3;

    fn entry_bytes(of: Table) -> u64 {
        if of == Table::Last { 16 } else { 8 }
    }

    fn read(mem: &impl PhysMem, table: PhysAddr, of: Table, first: usize, words: &mut [u64]) -> Result<(), BadAddress> {
        mem.read(place(table, of, first), words.as_mut_bytes())
    }

    fn write(mem: &impl PhysMem, table: PhysAddr, of: Table, first: usize, words: &[u64]) -> Result<(), BadAddress> {
        mem.write(place(table, of, first), words.as_bytes())
    }

    fn reaches(table: PhysAddr) -> bool {
        DualPde::to_tables(Some(table), None).big_table() == Some(table)
    }

    #[inline]
    fn to_page(at: PhysAddr, rights: Rights) -> Option<Pte> {
        Some(Pte::to_page(at, rights)).filter(|pte| pte.address() == Some(at))
    }
}

const _: () = assert!(Gmmu2::UNIT == HUGE_PAGE && Gmmu2::BIG_PAGE == BIG_PAGE && Gmmu2::VA_END == VA_END);
