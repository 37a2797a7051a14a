//! A unit of a shadow: read, edited as pages, and written back.

use gpu_spec::mmu::{BIG_TABLE_BYTES, DualPde, PhysAddr, Pte, SMALL_PAGE, TABLE_BYTES};

use super::{Changes, ShadowError, Tables};
use crate::format::{BIG_PAGES, Format, Geometry, Table, Words};
use crate::{PhysMem, TableMemory};

/// What a shadow says about one unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Image<F: Format> {
    /// The whole unit as one page, or sparse. Invariant: all that follows is invalid then.
    huge: Pte,
    /// Entries of big pages. Invariant: where one is not invalid, the small entries below it are.
    big: [u64; BIG_PAGES],
    /// Entries of small pages.
    small: F::Words,
}

impl<F: Format> Image<F> {
    pub(super) const EMPTY: Image<F> = Image { huge: Pte::INVALID, big: [0; BIG_PAGES], small: F::Words::ZERO };

    /// Reads what a directory's entry leads to.
    pub(super) fn load(mem: &impl PhysMem, dual: DualPde) -> Result<Image<F>, ShadowError> {
        let mut image = Image::EMPTY;
        if dual.page().is_some() || dual.is_sparse() {
            image.huge = Pte(dual.big);
            return Ok(image);
        }
        if let Some(at) = dual.big_table() {
            F::read(mem, at, Table::Big, 0, &mut image.big)?;
        }
        if let Some(at) = dual.small_table() {
            F::read(mem, at, Table::Small, 0, &mut image.small.words_mut()[..F::SMALL_PAGES])?;
        }
        Ok(image)
    }

    /// Shows one page of `bytes` (a small one, a big one, or the unit) from small page `first` on. Larger pages in the way
    /// are split.
    pub(super) fn set(&mut self, first: usize, bytes: u64, pte: Pte) {
        if bytes == F::UNIT {
            *self = Image { huge: pte, ..Image::EMPTY };
        } else if bytes == F::BIG_PAGE {
            self.split_huge();
            self.big[first / F::SMALL_IN_BIG] = pte.0;
            self.small.words_mut()[first..first + F::SMALL_IN_BIG].fill(Pte::INVALID.0);
        } else {
            self.split_big(first / F::SMALL_IN_BIG);
            self.small.words_mut()[first] = pte.0;
        }
    }

    /// Takes out a number of small pages from `first` on.
    pub(super) fn clear(&mut self, first: usize, pages: usize) {
        if pages == F::SMALL_PAGES {
            *self = Image::EMPTY;
        } else {
            (first..first + pages).for_each(|page| self.set(page, SMALL_PAGE, Pte::INVALID));
        }
    }

    /// Takes out what names host memory in a range; gives the small pages that are gone.
    pub(super) fn take_out(&mut self, lost: PhysAddr, bytes: u64) -> Vec<usize> {
        let mut gone = Vec::new();
        if touches(self.huge, F::UNIT, lost, bytes) {
            self.split_huge();
        }
        for slot in 0..BIG_PAGES {
            if touches(Pte(self.big[slot]), F::BIG_PAGE, lost, bytes) {
                self.split_big(slot);
            }
        }
        for (page, pte) in self.small.words_mut().iter_mut().enumerate() {
            if touches(Pte(*pte), SMALL_PAGE, lost, bytes) {
                *pte = Pte::INVALID.0;
                gone.push(page);
            }
        }
        gone
    }

    fn split_huge(&mut self) {
        if self.huge != Pte::INVALID {
            self.big = std::array::from_fn(|slot| part(self.huge, slot as u64 * F::BIG_PAGE).0);
            self.huge = Pte::INVALID;
        }
    }

    fn split_big(&mut self, slot: usize) {
        self.split_huge();
        let whole = Pte(std::mem::take(&mut self.big[slot]));
        if whole != Pte::INVALID {
            let small = &mut self.small.words_mut()[slot * F::SMALL_IN_BIG..][..F::SMALL_IN_BIG];
            for (index, pte) in small.iter_mut().enumerate() {
                *pte = part(whole, index as u64 * SMALL_PAGE).0;
            }
        }
    }
}

/// A smaller page of a larger one.
fn part(whole: Pte, offset: u64) -> Pte {
    // The address field begins at bit 8, in units of 4 KiB; what is added stays below the alignment of the whole.
    if whole.is_valid() { Pte(whole.0 + ((offset / SMALL_PAGE) << 8)) } else { whole }
}

/// Does an entry name memory in a range?
fn touches(pte: Pte, page: u64, lost: PhysAddr, bytes: u64) -> bool {
    let at = if pte.is_valid() { pte.address() } else { None };
    at.is_some_and(|at| {
        at.aperture == lost.aperture
            && at.address < lost.address.saturating_add(bytes)
            && lost.address < at.address.saturating_add(page)
    })
}

/// An image that is being edited, and what it was.
#[derive(Debug)]
pub(super) struct Draft<F: Format> {
    before: Image<F>,
    pub(super) now: Image<F>,
}

impl<F: Format> Draft<F> {
    pub(super) fn load(mem: &impl PhysMem, dual: DualPde) -> Result<Box<Draft<F>>, ShadowError> {
        let before = Image::load(mem, dual)?;
        Ok(Box::new(Draft { now: before.clone(), before }))
    }

    /// Writes what differs for the unit at `va`, whose entry `dual` is at an index of the directory `last`. The device may be
    /// walking: at each moment it finds what was there before, or what will be.
    ///
    /// # Errors
    /// If it takes a table that cannot be had; nothing has changed then.
    pub(super) fn store<M: TableMemory>(
        &self,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
        (last, index, va): (PhysAddr, usize, u64),
        dual: &mut DualPde,
    ) -> Result<(), ShadowError> {
        let (before, now) = (&self.before, &self.now);
        if before == now {
            return Ok(());
        }
        let old = *dual;
        let uses_big = now.big != Image::<F>::EMPTY.big;
        let uses_small = now.small != Image::<F>::EMPTY.small;
        let new_big =
            if uses_big && old.big_table().is_none() { Some(tables.alloc::<F>(BIG_TABLE_BYTES)?) } else { None };
        let new_small = if uses_small && old.small_table().is_none() {
            let table = tables.alloc::<F>(TABLE_BYTES);
            if let (Err(_), Some(at)) = (&table, new_big) {
                tables.free(at, BIG_TABLE_BYTES);
            }
            Some(table?)
        } else {
            None
        };
        let big = new_big.or(old.big_table()).filter(|_| uses_big);
        let small = new_small.or(old.small_table()).filter(|_| uses_small);
        let new = match (big, small) {
            (None, None) => DualPde::to_page(now.huge),
            tables => DualPde::to_tables(tables.0, tables.1),
        };
        let big = Leaves { table: big, of: Table::Big, va, page: F::BIG_PAGE, before: &before.big, now: &now.big };
        let (was, is) = (before.small.words(), now.small.words());
        let small = Leaves { table: small, of: Table::Small, va, page: SMALL_PAGE, before: was, now: is };
        // Small pages appear before the big one that hides them goes, and go after one that hides them has appeared.
        small.write::<F, _>(tables, changes, true)?;
        big.write::<F, _>(tables, changes, true)?;
        if before.huge != now.huge {
            changes.ranges.add(va..va + F::UNIT);
        }
        if new != old {
            F::write(tables.mem, last, Table::Last, index, &[new.big, new.small])?;
            changes.work.updates += 1;
            *dual = new;
        }
        big.write::<F, _>(tables, changes, false)?;
        small.write::<F, _>(tables, changes, false)?;
        for (old, new, bytes) in
            [(old.big_table(), big.table, BIG_TABLE_BYTES), (old.small_table(), small.table, TABLE_BYTES)]
        {
            if let (Some(at), None) = (old, new) {
                tables.free(at, bytes);
            }
        }
        Ok(())
    }
}

/// The entries for one size of pages in a unit.
struct Leaves<'a> {
    /// Where they lie, if there are any.
    table: Option<PhysAddr>,
    of: Table,
    va: u64,
    page: u64,
    before: &'a [u64],
    now: &'a [u64],
}

impl Leaves<'_> {
    /// Writes the entries that differ, in runs: those that show something now, or those that do not.
    fn write<F: Format, M: TableMemory>(
        &self,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
        show: bool,
    ) -> Result<(), ShadowError> {
        let differs = |at: &usize| self.before[*at] != self.now[*at] && (self.now[*at] != Pte::INVALID.0) == show;
        let mut done = 0;
        while let Some(first) = (done..self.now.len()).find(differs) {
            let end = (first..self.now.len()).find(|at| !differs(at)).unwrap_or(self.now.len());
            changes.ranges.add(self.va + first as u64 * self.page..self.va + end as u64 * self.page);
            if let Some(table) = self.table {
                F::write(tables.mem, table, self.of, first, &self.now[first..end])?;
                changes.work.updates += (end - first) as u64;
            }
            done = end;
        }
        Ok(())
    }
}
