//! The shadow's own tables, and what is known of the guest's.

use std::collections::BTreeMap;
use std::ops::Range;

use gpu_spec::mmu::{BIG_TABLE_BYTES, DualPde, Pde, PhysAddr, Pte, TABLE_BYTES};

use super::image::{Draft, Image};
use super::{Changes, ShadowError, Tables};
use crate::TableMemory;
use crate::edit::indices;
use crate::format::{BIG_PAGES, Format, Geometry, Table, Words};

/// Stands in a snapshot for an entry that has to be looked at again, whatever the guest has there. Like [`NOTHING`], it
/// means nothing in a table of any level: marked as a page, of a kind that does not exist. In formats other than NVIDIA's
/// no entry is read as either.
pub(crate) const UNKNOWN: u64 = NOTHING | 1 << 4;
/// What is read for it where a guest has the very same value.
pub(super) const NOTHING: u64 = 0xff << 56 | 1;

/// A directory of the shadow.
#[derive(Debug)]
pub(super) struct Directory<F: Format> {
    pub(super) at: PhysAddr,
    pub(super) level: usize,
    /// What it says: a copy of what lies at `at`.
    ours: Box<F::Words>,
    /// Directories of the next level, by index. Invariant: exactly those that `ours` names, and none of them is empty,
    /// except while it is being filled.
    pub(super) below: BTreeMap<usize, Directory<F>>,
    /// In the last level, snapshots of the guest's tables.
    pub(super) seen: Option<Seen<F>>,
}

/// The entries of the guest's last directory that the shadow shows, and of the tables that these name.
#[derive(Debug)]
pub(super) struct Seen<F: Format> {
    /// Entries; zero where the shadow shows nothing.
    pub(super) duals: Box<[DualPde]>,
    /// Tables by index; where there is none, zeros. Invariant: none for an entry that is one for the whole unit.
    pub(super) leaves: BTreeMap<usize, Box<Leaves<F>>>,
}

/// Entries of the guest's two tables for one unit that the shadow shows. Of small entries that a big one hides, nothing is
/// known.
#[derive(Debug)]
pub(super) struct Leaves<F: Format> {
    pub(super) big: [u64; BIG_PAGES],
    pub(super) small: F::Words,
}

impl<F: Format> Leaves<F> {
    pub(super) const EMPTY: Leaves<F> = Leaves { big: [0; BIG_PAGES], small: F::Words::ZERO };

    /// The shadow does not show any more what the entry says that decides about a small page.
    pub(super) fn forget(&mut self, page: usize) {
        let big = &mut self.big[page / F::SMALL_IN_BIG];
        if Pte(*big).hides_small() {
            *big = UNKNOWN;
        } else {
            self.small.words_mut()[page] = UNKNOWN;
        }
    }
}

impl<F: Format> Directory<F> {
    pub(super) fn new<M: TableMemory>(tables: &mut Tables<'_, M>, level: usize) -> Result<Directory<F>, ShadowError> {
        let at = tables.alloc::<F>(F::DIRECTORY_BYTES)?;
        let none = vec![DualPde::INVALID; F::LEVELS[level].entries];
        let seen = (level == F::LAST).then(|| Seen { duals: none.into(), leaves: BTreeMap::new() });
        Ok(Directory { at, level, ours: Box::new(F::Words::ZERO), below: BTreeMap::new(), seen })
    }

    /// Bytes of addresses that one of its entries is for.
    pub(super) fn span(&self) -> u64 {
        F::LEVELS[self.level].span()
    }

    pub(super) fn entries(&self) -> usize {
        F::LEVELS[self.level].entries
    }

    pub(super) fn is_last(&self) -> bool {
        self.level == F::LAST
    }

    /// True if nothing is mapped by it.
    pub(super) fn is_empty(&self) -> bool {
        self.ours.words().iter().all(|word| *word == 0)
    }

    /// An entry of an upper level.
    pub(super) fn pde(&self, index: usize) -> Pde {
        Pde(self.ours.words()[index])
    }

    /// An entry of the last level.
    pub(super) fn dual(&self, index: usize) -> DualPde {
        DualPde { big: self.ours.words()[2 * index], small: self.ours.words()[2 * index + 1] }
    }

    /// Writes an entry of an upper level, if it is another.
    fn set<M: TableMemory>(
        &mut self,
        index: usize,
        pde: Pde,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        if self.pde(index) != pde {
            F::write(tables.mem, self.at, Table::Upper, index, &[pde.0])?;
            self.ours.words_mut()[index] = pde.0;
            changes.work.updates += 1;
        }
        Ok(())
    }

    /// Lets an entry of an upper level, for addresses from `va`, name no table: what lay below is gone.
    pub(super) fn cut<M: TableMemory>(
        &mut self,
        (index, va): (usize, u64),
        pde: Pde,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let old = self.pde(index);
        self.set(index, pde, tables, changes)?;
        if old.is_sparse() != pde.is_sparse() {
            changes.ranges.add(va..va + self.span());
        }
        if let Some(child) = self.below.remove(&index) {
            child.shown(va, &mut |range| changes.ranges.add(range));
            child.free(tables);
        }
        Ok(())
    }

    /// Takes the directory below an entry out, to be changed; makes it if there is none. [`Directory::put`] gives it back.
    pub(super) fn take<M: TableMemory>(
        &mut self,
        index: usize,
        tables: &mut Tables<'_, M>,
    ) -> Result<Directory<F>, ShadowError> {
        self.below.remove(&index).map_or_else(|| Directory::new(tables, self.level + 1), Ok)
    }

    /// Puts a directory below an entry. One that is empty goes.
    pub(super) fn put<M: TableMemory>(
        &mut self,
        index: usize,
        child: Directory<F>,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        if child.is_empty() {
            self.set(index, Pde::INVALID, tables, changes)?;
            child.free(tables);
        } else {
            self.set(index, Pde::to_table(child.at), tables, changes)?;
            self.below.insert(index, child);
        }
        Ok(())
    }

    /// Writes what a draft says about the unit at `va`.
    ///
    /// # Errors
    /// If it takes a table that cannot be had; nothing has changed then.
    pub(super) fn store<M: TableMemory>(
        &mut self,
        (index, va): (usize, u64),
        draft: &Draft<F>,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let mut dual = self.dual(index);
        draft.store(tables, changes, (self.at, index, va), &mut dual)?;
        self.ours.words_mut()[2 * index..][..2].copy_from_slice(&[dual.big, dual.small]);
        Ok(())
    }

    /// As [`Directory::store`]; where it takes a table that cannot be had, nothing is shown, which takes none. Gives why.
    pub(super) fn store_or_clear<M: TableMemory>(
        &mut self,
        unit: (usize, u64),
        draft: &mut Draft<F>,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<Option<ShadowError>, ShadowError> {
        match self.store(unit, draft, tables, changes) {
            Err(why @ (ShadowError::TooManyTables { .. } | ShadowError::NoMemory)) => {
                draft.now = Image::EMPTY;
                self.store(unit, draft, tables, changes)?;
                Ok(Some(why))
            }
            stored => stored.map(|()| None),
        }
    }

    /// Names the ranges in which something is shown, roughly.
    fn shown(&self, base: u64, name: &mut impl FnMut(Range<u64>)) {
        for index in 0..self.entries() {
            let va = base + index as u64 * self.span();
            match self.below.get(&index) {
                Some(child) => child.shown(va, name),
                None if !self.is_last() && !self.pde(index).is_sparse() => {}
                None if self.is_last() && self.dual(index) == DualPde::INVALID => {}
                None => name(va..va + self.span()),
            }
        }
    }

    /// Gives back its table and all below it.
    pub(super) fn free<M: TableMemory>(self, tables: &mut Tables<'_, M>) {
        if self.is_last() {
            for index in 0..self.entries() {
                let dual = self.dual(index);
                if let Some(at) = dual.big_table() {
                    tables.free(at, BIG_TABLE_BYTES);
                }
                if let Some(at) = dual.small_table() {
                    tables.free(at, TABLE_BYTES);
                }
            }
        }
        tables.free(self.at, F::DIRECTORY_BYTES);
        self.below.into_values().for_each(|child| child.free(tables));
    }
}

/// One unit, for who edits it.
pub(super) struct Unit<'a, F: Format> {
    /// Its first address.
    pub(super) va: u64,
    /// What of it was named.
    pub(super) part: Range<u64>,
    pub(super) image: &'a mut Image<F>,
    /// The guest's entry for it.
    pub(super) dual: &'a mut DualPde,
    /// The guest's tables for it.
    pub(super) leaves: Option<&'a mut Leaves<F>>,
}

/// An edit that no table of the guest's decides.
pub(super) struct Edit<'a, 'm, M, E> {
    pub(super) tables: &'a mut Tables<'m, M>,
    pub(super) changes: &'a mut Changes,
    /// Units that show nothing are edited, too.
    pub(super) create: bool,
    /// What to do with each unit.
    pub(super) edit: E,
    /// Called with a unit that had to be cleared, because there was no table for what is left of it; `None`: that is an
    /// error, and the unit stays as it was.
    pub(super) cleared: Option<&'a mut dyn FnMut(Range<u64>)>,
}

impl<M: TableMemory, E> Edit<'_, '_, M, E> {
    /// Edits all units of a range, in a directory that begins at `base`.
    pub(super) fn run<F: Format>(
        &mut self,
        dir: &mut Directory<F>,
        base: u64,
        range: &Range<u64>,
    ) -> Result<(), ShadowError>
    where
        E: FnMut(&mut Unit<'_, F>),
    {
        let unit = dir.span();
        for index in indices(range, base, unit, dir.entries()) {
            let va = base + index as u64 * unit;
            let part = range.start.max(va)..range.end.min(va + unit);
            if dir.is_last() {
                self.unit(dir, (index, va), part)?;
            } else if self.create || dir.below.contains_key(&index) {
                let mut child = dir.take(index, self.tables)?;
                let done = self.run(&mut child, va, &part);
                dir.put(index, child, self.tables, self.changes)?;
                done?;
            }
        }
        Ok(())
    }

    fn unit<F: Format>(&mut self, dir: &mut Directory<F>, at: (usize, u64), part: Range<u64>) -> Result<(), ShadowError>
    where
        E: FnMut(&mut Unit<'_, F>),
    {
        let (index, va) = at;
        if !self.create && dir.dual(index) == DualPde::INVALID {
            return Ok(());
        }
        let mut draft = Draft::load(self.tables.mem, dir.dual(index))?;
        if let Some(seen) = &mut dir.seen {
            let (dual, leaves) = (&mut seen.duals[index], seen.leaves.get_mut(&index).map(|leaves| &mut **leaves));
            (self.edit)(&mut Unit { va, part, image: &mut draft.now, dual, leaves });
        }
        match &mut self.cleared {
            None => dir.store(at, &draft, self.tables, self.changes)?,
            Some(cleared) => {
                if dir.store_or_clear(at, &mut draft, self.tables, self.changes)?.is_some() {
                    cleared(va..va + F::UNIT);
                }
            }
        }
        dir.forget_if_empty(index);
        Ok(())
    }
}

impl<F: Format> Directory<F> {
    /// Drops the snapshot of the tables for a unit of which nothing is shown.
    pub(super) fn forget_if_empty(&mut self, index: usize) {
        let shows = self.dual(index) != DualPde::INVALID;
        if let (false, Some(seen)) = (shows, &mut self.seen) {
            seen.leaves.remove(&index);
        }
    }
}
