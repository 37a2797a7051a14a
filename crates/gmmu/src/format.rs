//! Page table formats.
//!
//! Walks and shadows know entries in one form, whatever the format: NVIDIA's ([`gpu_spec::mmu`]), as words of 64 bits. A
//! [`Format`] says how its tables lie, and turns what they hold into that form and back. What it lacks of NVIDIA's (large
//! pages, sparse entries, rights) never appears; what it has beside them goes along in bits that mean nothing there.

mod gmmu2;
mod haswell;

use std::fmt::Debug;

use gpu_spec::mmu::{PhysAddr, Pte, Rights, SMALL_PAGE};

pub use self::gmmu2::Gmmu2;
pub use self::haswell::HaswellPpgtt;
use crate::{BadAddress, PhysMem};

/// Big pages in a unit, in formats that have them; in others, as many parts of a unit.
pub(crate) const BIG_PAGES: usize = 32;

/// One level of directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// Lowest address bit that it resolves.
    pub shift: u32,
    /// Entries in a directory.
    pub entries: usize,
}

impl Level {
    /// Bytes of addresses that one entry is for.
    #[must_use]
    pub const fn span(self) -> u64 {
        1 << self.shift
    }

    /// Which entry is for an address.
    #[must_use]
    pub const fn index(self, va: u64) -> usize {
        (va >> self.shift) as usize % self.entries
    }
}

/// What a table has entries of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// [`Pde`](gpu_spec::mmu::Pde): a directory of an upper level.
    Upper,
    /// [`DualPde`](gpu_spec::mmu::DualPde), two words each: a directory of the last level.
    Last,
    /// [`Pte`]s of big pages.
    Big,
    /// [`Pte`]s of small pages.
    Small,
}

/// Words of a whole table: an array.
pub trait Words: Clone + Eq + Debug {
    /// Nothing but invalid entries.
    const ZERO: Self;

    /// All of them.
    fn words(&self) -> &[u64];

    /// All of them.
    fn words_mut(&mut self) -> &mut [u64];
}

impl<const N: usize> Words for [u64; N] {
    const ZERO: Self = [0; N];

    fn words(&self) -> &[u64] {
        self
    }

    fn words_mut(&mut self) -> &mut [u64] {
        self
    }
}

/// A page table format.
pub trait Format: Copy + Eq + Debug {
    /// As many words as the largest directory and a table of small pages take.
    type Words: Words;

    /// The levels of directories, from the root. An entry of the last is for a unit: a table of small pages, one of big pages,
    /// or one huge page.
    const LEVELS: &'static [Level];
    /// Size of a directory, bytes.
    const DIRECTORY_BYTES: u64;
    /// Sizes of pages beside the small ones, the largest first: none, or a unit and one of its 32 parts.
    const LARGE_PAGES: &'static [u64];
    /// Bits of a [`Pte`] that a shadow takes over from the guest's.
    const CARRIED: u64;

    /// Bytes of an entry.
    fn entry_bytes(of: Table) -> u64;

    /// Reads entries of a table, from `first` on, as many as fill `words`.
    ///
    /// # Errors
    /// If there is no memory; what `words` hold then is not defined.
    fn read(mem: &impl PhysMem, table: PhysAddr, of: Table, first: usize, words: &mut [u64]) -> Result<(), BadAddress>;

    /// Writes entries of a table, from `first` on. Tables have passed [`Format::reaches`], and pages come from
    /// [`Format::to_page`].
    ///
    /// # Errors
    /// If there is no memory; nothing is written then.
    fn write(mem: &impl PhysMem, table: PhysAddr, of: Table, first: usize, words: &[u64]) -> Result<(), BadAddress>;

    /// Can an entry of a directory point at a table there?
    fn reaches(table: PhysAddr) -> bool;

    /// An entry for a page; `None` if the format has none that leads there, or none with these rights.
    fn to_page(at: PhysAddr, rights: Rights) -> Option<Pte>;
}

/// What follows from a [`Format`].
pub(crate) trait Geometry: Format {
    /// The last level of directories.
    const LAST: usize = Self::LEVELS.len() - 1;
    /// Bytes of addresses that an entry of the last directory is for.
    const UNIT: u64 = Self::LEVELS[Self::LAST].span();
    /// A 32nd of a unit, bytes.
    const BIG_PAGE: u64 = Self::UNIT / BIG_PAGES as u64;
    /// Small pages in a unit.
    const SMALL_PAGES: usize = (Self::UNIT / SMALL_PAGE) as usize;
    /// Small pages in a 32nd.
    const SMALL_IN_BIG: usize = Self::SMALL_PAGES / BIG_PAGES;
    /// First address behind the address space.
    const VA_END: u64 = Self::LEVELS[0].span() * Self::LEVELS[0].entries as u64;
}

impl<F: Format> Geometry for F {}
