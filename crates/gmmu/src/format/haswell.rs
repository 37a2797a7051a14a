//! Intel's format, and how its entries look as NVIDIA's.

use gpu_spec::haswell_ppgtt::{
    self as ppgtt, DIRECTORY_BYTES, DIRECTORY_ENTRIES, DIRECTORY_SHIFT, PAGE_ADDRESS_BITS, TABLE_ADDRESS_BITS,
    TABLE_ENTRIES, VA_BITS,
};
use gpu_spec::mmu::{Aperture, DualPde, PhysAddr, Pte, Rights, SMALL_PAGE};
use zerocopy::IntoBytes;

use super::{Format, Geometry, Level, Table};
use crate::{BadAddress, PhysMem};

/// The per-process page tables of Intel's Haswell ([`gpu_spec::haswell_ppgtt`]): two levels, pages of 4 KiB in system memory,
/// without rights: memory that a guest may only read cannot be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HaswellPpgtt {}

/// How a page is cached takes the place of the bits volatile and encrypted, and of two that have no meaning.
const CACHING: [(u32, u64); 2] = [(3, 0b0011), (52, 0b1100)];

#[inline]
fn decode_table(pde: ppgtt::Pde) -> DualPde {
    DualPde::to_tables(None, pde.table().map(PhysAddr::system))
}

#[inline]
fn encode_table(dual: DualPde) -> ppgtt::Pde {
    dual.small_table().map_or(ppgtt::Pde::INVALID, |at| ppgtt::Pde::to_table(at.address))
}

#[inline]
fn decode_page(pte: ppgtt::Pte) -> Pte {
    let [low, high] = CACHING.map(|(shift, bits)| (u64::from(pte.caching()) & bits) << shift);
    let page = Pte(Pte::to_page(PhysAddr::system(pte.address()), Rights::default()).0 | low | high);
    if pte.is_valid() { page } else { Pte::INVALID }
}

#[inline]
fn encode_page(pte: Pte) -> ppgtt::Pte {
    let Some(at) = pte.address().filter(|_| pte.is_valid()) else { return ppgtt::Pte::INVALID };
    let [low, high] = CACHING.map(|(shift, bits)| (pte.0 >> shift & bits) as u8);
    ppgtt::Pte::to_page(at.address, low | high)
}

fn within(at: PhysAddr, bits: u32) -> bool {
    at.aperture == Aperture::System && at.address >> bits == 0 && at.address.is_multiple_of(SMALL_PAGE)
}

fn place(table: PhysAddr, first: usize) -> PhysAddr {
    table.offset(first as u64 * HaswellPpgtt::entry_bytes(Table::Small))
}

impl Format for HaswellPpgtt {
    type Words = [u64; TABLE_ENTRIES as usize];

    const LEVELS: &'static [Level] = &[Level { shift: DIRECTORY_SHIFT, entries: DIRECTORY_ENTRIES as usize }];
    const DIRECTORY_BYTES: u64 = DIRECTORY_BYTES;
    const LARGE_PAGES: &'static [u64] = &[];
    const CARRIED: u64 = CACHING[0].1 << CACHING[0].0 | CACHING[1].1 << CACHING[1].0;

    fn entry_bytes(_: Table) -> u64 {
        4
    }

    fn read(mem: &impl PhysMem, table: PhysAddr, of: Table, first: usize, words: &mut [u64]) -> Result<(), BadAddress> {
        let mut raw = [0; TABLE_ENTRIES as usize];
        match of {
            Table::Last => {
                let raw = &mut raw[..words.len() / 2];
                mem.read(place(table, first), raw.as_mut_bytes())?;
                for (words, pde) in words.chunks_exact_mut(2).zip(raw) {
                    let DualPde { big, small } = decode_table(ppgtt::Pde(*pde));
                    words.copy_from_slice(&[big, small]);
                }
            }
            Table::Small => {
                let raw = &mut raw[..words.len()];
                mem.read(place(table, first), raw.as_mut_bytes())?;
                for (word, pte) in words.iter_mut().zip(raw) {
                    *word = decode_page(ppgtt::Pte(*pte)).0;
                }
            }
            Table::Upper | Table::Big => unreachable!("the format has no such tables"),
        }
        Ok(())
    }

    fn write(mem: &impl PhysMem, table: PhysAddr, of: Table, first: usize, words: &[u64]) -> Result<(), BadAddress> {
        let mut raw = [0; TABLE_ENTRIES as usize];
        let raw = match of {
            Table::Last => {
                let raw = &mut raw[..words.len() / 2];
                for (pde, words) in raw.iter_mut().zip(words.chunks_exact(2)) {
                    *pde = encode_table(DualPde { big: words[0], small: words[1] }).0;
                }
                raw
            }
            Table::Small => {
                let raw = &mut raw[..words.len()];
                for (pte, word) in raw.iter_mut().zip(words) {
                    *pte = encode_page(Pte(*word)).0;
                }
                raw
            }
            Table::Upper | Table::Big => unreachable!("the format has no such tables"),
        };
        mem.write(place(table, first), raw.as_bytes())
    }

    fn reaches(table: PhysAddr) -> bool {
        within(table, TABLE_ADDRESS_BITS)
    }

    #[inline]
    fn to_page(at: PhysAddr, rights: Rights) -> Option<Pte> {
        (within(at, PAGE_ADDRESS_BITS) && rights == Rights::default()).then(|| Pte::to_page(at, rights))
    }
}

const _: () = assert!(HaswellPpgtt::SMALL_PAGES == TABLE_ENTRIES as usize && HaswellPpgtt::VA_END == 1 << VA_BITS);
