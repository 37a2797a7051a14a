//! Haswell's tables, written at random.

use std::ops::Range;

use gpu_spec::haswell_ppgtt::{DIRECTORY_SHIFT, Pde, Pte};
use gpu_spec::mmu::{PhysAddr, SMALL_PAGE};

use super::super::memory::Guest;
use super::{Attack, Input};
use crate::HaswellPpgtt;

const UNIT: u64 = 1 << DIRECTORY_SHIFT;

fn table(page: u64) -> PhysAddr {
    HaswellPpgtt::vram(page * SMALL_PAGE)
}

fn to_table(at: PhysAddr) -> u32 {
    Pde::to_table(at.address).0
}

fn to_page(at: PhysAddr, input: &mut Input<'_>) -> u32 {
    Pte::to_page(at.address, input.pick(&[0, 0, 2, 9, 15])).0
}

impl Attack for HaswellPpgtt {
    const WINDOW: Range<u64> = 2 * UNIT..256 * UNIT + 3 * UNIT;

    fn vram(at: u64) -> PhysAddr {
        PhysAddr::system((1 << 37) + at)
    }

    fn interesting() -> Vec<u64> {
        let units = [0, 1, 2, 3, 4, 255, 256, 258, 259, 511].map(|unit: u64| unit * UNIT);
        let pages = [0, 1, 2, 15, 16, 17, 31, 32, 511, 512, 1023].map(|page| page * SMALL_PAGE);
        units.iter().flat_map(|unit| pages.map(|page| unit + page)).collect()
    }

    fn narrow() -> Vec<u64> {
        let pages = [0, 1, 2, 15, 16, 31, 32, 511, 512, 1023].map(|page| page * SMALL_PAGE);
        [2, 3].iter().flat_map(|unit| pages.map(|page| unit * UNIT + page)).collect()
    }

    fn begin(guest: &Guest, _: bool) {
        for unit in [0, 2, 3, 256] {
            guest.put_half(table(0).offset(unit * 4), to_table(table(1)));
        }
    }

    fn write_wide(guest: &Guest, input: &mut Input<'_>) {
        let table = input.table::<HaswellPpgtt>();
        let index = input.pick(&[0, 1, 2, 3, 4, 15, 16, 17, 31, 32, 255, 256, 258, 259, 511, 512, 1023]);
        let put = |half: u32| guest.put_half(table.offset(index * 4), half);
        match input.byte() % 16 {
            0..=4 => put(to_table(input.table::<HaswellPpgtt>())),
            5..=7 => put(to_page(input.memory::<HaswellPpgtt>(), input)),
            8 => put(0),
            // Invalid, and yet an address; larger pages; another's memory.
            9 => put(to_table(input.table::<HaswellPpgtt>()) ^ input.pick(&[1, 2, 3])),
            10 => put(input.pick(&[u32::MAX, u32::MAX - 1, 1, 2])),
            11 => put(input.word() as u32),
            12 => put(to_table(input.memory::<HaswellPpgtt>())),
            _ => {
                let at = input.memory::<HaswellPpgtt>();
                for skip in 0..input.byte() % 40 {
                    let page = to_page(at.offset(skip * SMALL_PAGE), input);
                    guest.put_half(table.offset((index + skip) % 1024 * 4), page);
                }
            }
        }
    }

    fn write_narrow(guest: &Guest, input: &mut Input<'_>) {
        let nowhere = to_table(table(1 << 20));
        let tables = [1, 2].map(|page| to_table(table(page)));
        if input.byte().is_multiple_of(4) {
            let to =
                input.pick(&[tables[0], tables[0], tables[1], tables[1], 0, nowhere, tables[0] & !1, tables[1] | 2]);
            guest.put_half(table(0).offset(input.pick(&[2, 3]) * 4), to);
        } else {
            let index = input.pick(&[0, 1, 2, 15, 16, 31, 32, 511, 512, 1023]);
            let page = to_page(input.narrow_memory::<HaswellPpgtt>(), input);
            let to = input.pick(&[page, page, page, 0, page & !1]);
            guest.put_half(table(input.pick(&[1, 1, 2])).offset(index * 4), to);
        }
    }
}
