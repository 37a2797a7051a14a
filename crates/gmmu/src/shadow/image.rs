//! Two MiB of a shadow: read, edited as pages, and written back.

use gpu_spec::mmu::{BIG_PAGE, BIG_TABLE_BYTES, DualPde, HUGE_PAGE, PhysAddr, Pte, SMALL_PAGE, TABLE_BYTES};
use zerocopy::IntoBytes;

use super::{Changes, ShadowError, Tables};
use crate::{PhysMem, TableMemory};

/// Big pages in a unit.
pub(super) const BIG_PAGES: usize = (HUGE_PAGE / BIG_PAGE) as usize;
/// Small pages in a unit.
pub(super) const SMALL_PAGES: usize = (HUGE_PAGE / SMALL_PAGE) as usize;
/// Small pages in a big one.
pub(super) const SMALL_IN_BIG: usize = SMALL_PAGES / BIG_PAGES;

/// What a shadow says about one unit of 2 MiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Image {
    /// The whole unit as one page, or sparse. Invariant: all that follows is invalid then.
    huge: Pte,
    /// Invariant: where one is not invalid, the small entries below it are.
    big: [Pte; BIG_PAGES],
    small: [Pte; SMALL_PAGES],
}

impl Image {
    pub(super) const EMPTY: Image =
        Image { huge: Pte::INVALID, big: [Pte::INVALID; BIG_PAGES], small: [Pte::INVALID; SMALL_PAGES] };

    /// Reads what a directory's entry leads to.
    pub(super) fn load(mem: &impl PhysMem, dual: DualPde) -> Result<Image, ShadowError> {
        let mut image = Image::EMPTY;
        if dual.page().is_some() || dual.is_sparse() {
            image.huge = Pte(dual.big);
            return Ok(image);
        }
        if let Some(at) = dual.big_table() {
            mem.read(at, image.big.as_mut_bytes())?;
        }
        if let Some(at) = dual.small_table() {
            mem.read(at, image.small.as_mut_bytes())?;
        }
        Ok(image)
    }

    /// Shows one page of `bytes` (4 KiB, 64 KiB or 2 MiB) from small page `first` on. Larger pages in the way are split.
    pub(super) fn set(&mut self, first: usize, bytes: u64, pte: Pte) {
        match bytes {
            HUGE_PAGE => *self = Image { huge: pte, ..Image::EMPTY },
            BIG_PAGE => {
                self.split_huge();
                self.big[first / SMALL_IN_BIG] = pte;
                self.small[first..first + SMALL_IN_BIG].fill(Pte::INVALID);
            }
            _ => {
                self.split_big(first / SMALL_IN_BIG);
                self.small[first] = pte;
            }
        }
    }

    /// Takes out a number of small pages from `first` on.
    pub(super) fn clear(&mut self, first: usize, pages: usize) {
        if pages == SMALL_PAGES {
            *self = Image::EMPTY;
        } else {
            (first..first + pages).for_each(|page| self.set(page, SMALL_PAGE, Pte::INVALID));
        }
    }

    /// Takes out what names host memory in a range; gives the small pages that are gone.
    pub(super) fn take_out(&mut self, lost: PhysAddr, bytes: u64) -> Vec<usize> {
        let mut gone = Vec::new();
        if touches(self.huge, HUGE_PAGE, lost, bytes) {
            self.split_huge();
        }
        for slot in 0..BIG_PAGES {
            if touches(self.big[slot], BIG_PAGE, lost, bytes) {
                self.split_big(slot);
            }
        }
        for (page, pte) in self.small.iter_mut().enumerate() {
            if touches(*pte, SMALL_PAGE, lost, bytes) {
                *pte = Pte::INVALID;
                gone.push(page);
            }
        }
        gone
    }

    fn split_huge(&mut self) {
        if self.huge != Pte::INVALID {
            self.big = std::array::from_fn(|slot| part(self.huge, slot as u64 * BIG_PAGE));
            self.huge = Pte::INVALID;
        }
    }

    fn split_big(&mut self, slot: usize) {
        self.split_huge();
        let whole = std::mem::take(&mut self.big[slot]);
        if whole != Pte::INVALID {
            for (index, pte) in self.small[slot * SMALL_IN_BIG..][..SMALL_IN_BIG].iter_mut().enumerate() {
                *pte = part(whole, index as u64 * SMALL_PAGE);
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
pub(super) struct Draft {
    before: Image,
    pub(super) now: Image,
}

impl Draft {
    pub(super) fn load(mem: &impl PhysMem, dual: DualPde) -> Result<Box<Draft>, ShadowError> {
        let before = Image::load(mem, dual)?;
        Ok(Box::new(Draft { now: before.clone(), before }))
    }

    /// Writes what differs for the unit at `va`, whose entry `dual` lies at `slot`. The device may be walking: at each
    /// moment it finds what was there before, or what will be.
    ///
    /// # Errors
    /// If it takes a table that cannot be had; nothing has changed then.
    pub(super) fn store<M: TableMemory>(
        &self,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
        (slot, va): (PhysAddr, u64),
        dual: &mut DualPde,
    ) -> Result<(), ShadowError> {
        let (before, now) = (&self.before, &self.now);
        if before == now {
            return Ok(());
        }
        let old = *dual;
        let uses_big = now.big != Image::EMPTY.big;
        let uses_small = now.small != Image::EMPTY.small;
        let new_big = if uses_big && old.big_table().is_none() { Some(tables.alloc(BIG_TABLE_BYTES)?) } else { None };
        let new_small = if uses_small && old.small_table().is_none() {
            let table = tables.alloc(TABLE_BYTES);
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
        let big = Leaves { table: big, va, page: BIG_PAGE, before: &before.big, now: &now.big };
        let small = Leaves { table: small, va, page: SMALL_PAGE, before: &before.small, now: &now.small };
        // Small pages appear before the big one that hides them goes, and go after one that hides them has appeared.
        small.write(tables, changes, true)?;
        big.write(tables, changes, true)?;
        if before.huge != now.huge {
            changes.ranges.add(va..va + HUGE_PAGE);
        }
        if new != old {
            tables.mem.write(slot, new.as_bytes())?;
            changes.work.updates += 1;
            *dual = new;
        }
        big.write(tables, changes, false)?;
        small.write(tables, changes, false)?;
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
    va: u64,
    page: u64,
    before: &'a [Pte],
    now: &'a [Pte],
}

impl Leaves<'_> {
    /// Writes the entries that differ, in runs: those that show something now, or those that do not.
    fn write<M: TableMemory>(
        &self,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
        show: bool,
    ) -> Result<(), ShadowError> {
        let differs = |at: &usize| self.before[*at] != self.now[*at] && (self.now[*at] != Pte::INVALID) == show;
        let mut done = 0;
        while let Some(first) = (done..self.now.len()).find(differs) {
            let end = (first..self.now.len()).find(|at| !differs(at)).unwrap_or(self.now.len());
            changes.ranges.add(self.va + first as u64 * self.page..self.va + end as u64 * self.page);
            if let Some(table) = self.table {
                tables.mem.write(table.offset(first as u64 * 8), self.now[first..end].as_bytes())?;
                changes.work.updates += (end - first) as u64;
            }
            done = end;
        }
        Ok(())
    }
}
