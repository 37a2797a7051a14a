//! NVIDIA's tables, written at random.

use std::ops::Range;

use gpu_spec::mmu::{DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, SMALL_PAGE};

use super::super::memory::Guest;
use super::{Attack, Input};
use crate::Gmmu2;
use crate::shadow::UNKNOWN;

fn table(page: u64) -> PhysAddr {
    PhysAddr::vram(page * SMALL_PAGE)
}

impl Attack for Gmmu2 {
    const WINDOW: Range<u64> = 2 * HUGE_PAGE..(1 << 47) + (1 << 38) + 3 * HUGE_PAGE;

    fn vram(at: u64) -> PhysAddr {
        PhysAddr::vram(at)
    }

    fn interesting() -> Vec<u64> {
        let mut out = Vec::new();
        for level3 in [0, 1, 3] {
            for level2 in [0, 1, 511] {
                for level1 in [0, 1] {
                    for unit in [0, 1, 2, 3, 255] {
                        for page in [0, 1, 16, 17, 511] {
                            out.push(level3 << 47 | level2 << 38 | level1 << 29 | unit << 21 | page << 12);
                        }
                    }
                }
            }
        }
        out
    }

    /// At two places that the same tables lead to.
    fn narrow() -> Vec<u64> {
        let places = [1 << 29, 1 << 38 | 1 << 29].map(|place: u64| [2, 3].map(|unit: u64| place | unit << 21));
        places
            .as_flattened()
            .iter()
            .flat_map(|unit| [0, 1, 2, 15, 16, 31, 511].map(|page: u64| unit | page << 12))
            .collect()
    }

    /// A path to each size of pages.
    fn begin(guest: &Guest, is_narrow: bool) {
        let few: [Range<u64>; 3] = if is_narrow { [0..1, 0..2, 1..2] } else { [0..2, 0..2, 0..2] };
        for ((at, to), indices) in [(0, 1), (1, 2), (2, 3)].into_iter().zip(few) {
            for index in indices {
                guest.put(table(at).offset(index * 8), Pde::to_table(table(to)).0);
            }
        }
        for unit in [0, 2, 3] {
            let dual = DualPde::to_tables(Some(table(4)), Some(table(5)));
            guest.put(table(3).offset(unit * 16), dual.big);
            guest.put(table(3).offset(unit * 16 + 8), dual.small);
        }
    }

    fn write_wide(guest: &Guest, input: &mut Input<'_>) {
        let table = input.table::<Gmmu2>();
        let index = input.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 31, 32, 255, 510, 511]);
        let (slot, aperture) = (table.offset(index * 8), input.byte());
        let put = |word: u64| guest.put(slot, word);
        match aperture % 16 {
            0..=3 => put(Pde::to_table(input.table::<Gmmu2>()).0),
            4 => {
                let dual = DualPde::to_tables(
                    Some(input.table::<Gmmu2>().offset(input.byte() % 16 * 256)),
                    Some(input.table::<Gmmu2>()),
                );
                guest.put(table.offset(index / 2 * 16), dual.big);
                guest.put(table.offset(index / 2 * 16 + 8), dual.small);
            }
            5..=7 => put(Pte::to_page(input.memory::<Gmmu2>(), input.rights()).0),
            8 => put(0),
            9 => put(Pte::SPARSE.0),
            10 => put(Pte::NO_SMALL.0),
            // Not a kind that is known; the values that a shadow uses for itself; another's memory.
            11 => put(input.pick(&[UNKNOWN, 0xff << 56 | 1, u64::MAX, 3, 1 << 3 | 1 << 1])),
            12 => put(input.word()),
            13 => put(Pde::to_table(input.memory::<Gmmu2>()).0),
            _ => {
                let (at, rights) = (input.memory::<Gmmu2>(), input.rights());
                for skip in 0..input.byte() % 40 {
                    let page = Pte::to_page(at.offset(skip * SMALL_PAGE), rights);
                    guest.put(table.offset((index + skip) % 512 * 8), page.0);
                }
            }
        }
    }

    fn write_narrow(guest: &Guest, input: &mut Input<'_>) {
        let nowhere = table(1 << 20);
        match input.byte() % 16 {
            0 => {
                let level = input.byte() % 3;
                let next = Pde::to_table(table(level + 1)).0;
                let to = input.pick(&[next, next, next, Pde::SPARSE.0, 0, Pde::to_table(nowhere).0]);
                guest.put(table(level).offset(input.pick(&[[0, 0], [0, 1], [1, 1]][level as usize]) * 8), to);
            }
            1..=3 => {
                let big = input.pick(&[None, Some(4), Some(4), Some(6), Some(1 << 20)]);
                let small = input.pick(&[None, Some(5), Some(5), Some(7), Some(1 << 20)]);
                let page = DualPde::to_page(Pte::to_page(input.narrow_memory::<Gmmu2>(), input.rights()));
                let tables = DualPde::to_tables(big.map(table), small.map(table));
                let unknown = DualPde { big: UNKNOWN, small: 0 };
                let dual = input.pick(&[tables, tables, tables, tables, page, page, DualPde::SPARSE, unknown]);
                let slot = table(3).offset(input.pick(&[2, 3]) * 16);
                guest.put(slot, dual.big);
                guest.put(slot.offset(8), dual.small);
            }
            kind => {
                let big = kind < 9;
                let at = if big { table(input.pick(&[4, 4, 6])) } else { table(input.pick(&[5, 5, 7])) };
                let index = input.pick(if big { &[0, 1] } else { &[0, 1, 2, 15, 16, 31, 511][..] });
                let page = Pte::to_page(input.narrow_memory::<Gmmu2>(), input.rights()).0;
                let to = [page, page, page, 0, 0, Pte::SPARSE.0, Pte::NO_SMALL.0, UNKNOWN];
                guest.put(at.offset(index * 8), input.pick(&to));
            }
        }
    }
}
