//! Numbers that look random, and can be had again.

use gpu_spec::mmu::{Pde, PhysAddr, Pte, Rights};

/// A generator.
#[derive(Clone, Copy, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 16) ^ self.0 << 40
    }

    /// One below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.any() >> 8) % bound
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// So many words.
    pub fn words(&mut self, count: u64) -> Vec<u32> {
        (0..count).map(|_| self.any() as u32).collect()
    }

    /// A word as it might stand in a page table: mostly valid, of memory that is and is not the guest's.
    pub fn entry(&mut self, vram: u64) -> u64 {
        let offset = self.below(4 * vram) & !0xfff;
        let address = self.pick(&[offset, offset, self.0 >> 20 & !0xfff, 1 << 33, 0, 1 << 47]);
        let at = if self.once_in(4) { PhysAddr::system(address) } else { PhysAddr::vram(address) };
        match self.below(8) {
            0 => self.any(),
            1..4 => Pde::to_table(at).0,
            4 => 0,
            _ => Pte::to_page(at, Rights { read_only: self.once_in(3), ..Rights::default() }).0,
        }
    }

    /// Changes some words of commands: bits, words, their order and their number.
    pub fn mutate(&mut self, words: &mut Vec<u32>) {
        for _ in 0..=self.below(3) {
            if words.is_empty() {
                return;
            }
            let at = self.below(words.len() as u64) as usize;
            match self.below(8) {
                0 => words[at] = self.any() as u32,
                1 => drop(words.remove(at)),
                2 => words.insert(at, self.any() as u32),
                3 => words.swap(at, 0),
                4 => words.truncate(at),
                5 => words[at] = self.pick(&[0, u32::MAX, 1 << 31, 0xffff]),
                _ => words[at] ^= 1 << self.below(32),
            }
        }
    }
}
