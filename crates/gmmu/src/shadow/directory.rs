//! The shadow's own tables, and what is known of the guest's.

use std::collections::BTreeMap;
use std::ops::Range;

use gpu_spec::mmu::{BIG_TABLE_BYTES, DualPde, HUGE_PAGE, Pde, PhysAddr, Pte, TABLE_BYTES};
use zerocopy::IntoBytes;

use super::image::{BIG_PAGES, Draft, Image, SMALL_IN_BIG, SMALL_PAGES};
use super::{Changes, ShadowError, Tables};
use crate::TableMemory;
use crate::edit::indices;
use crate::walk::{DUAL_ENTRIES, DUAL_SHIFT, UPPER_ENTRIES, UPPER_SHIFTS};

/// The last level of directories.
pub(super) const LAST: usize = UPPER_SHIFTS.len();
/// Entries of 8 bytes in a table of 4 KiB.
pub(super) const WORDS: usize = (TABLE_BYTES / 8) as usize;

/// Stands in a snapshot for an entry that has to be looked at again, whatever the guest has there. Like [`NOTHING`], it
/// means nothing in a table of any level: marked as a page, of a kind that does not exist.
pub(crate) const UNKNOWN: u64 = NOTHING | 1 << 4;
/// What is read for it where a guest has the very same value.
pub(super) const NOTHING: u64 = 0xff << 56 | 1;

/// Bytes that one entry of a level is for.
pub(super) fn span(level: usize) -> u64 {
    1 << UPPER_SHIFTS.get(level).copied().unwrap_or(DUAL_SHIFT)
}

/// Entries in a table of a level.
pub(super) fn entries(level: usize) -> usize {
    UPPER_ENTRIES.get(level).copied().unwrap_or(DUAL_ENTRIES) as usize
}

/// A directory of the shadow.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) at: PhysAddr,
    pub(super) level: usize,
    /// What it says: a copy of what lies at `at`.
    ours: Box<[u64; WORDS]>,
    /// Directories of the next level, by index. Invariant: exactly those that `ours` names, and none of them is empty,
    /// except while it is being filled.
    pub(super) below: BTreeMap<usize, Directory>,
    /// In the last level, snapshots of the guest's tables.
    pub(super) seen: Option<Box<Seen>>,
}

/// The entries of the guest's last directory that the shadow shows, and of the tables that these name.
#[derive(Debug)]
pub(super) struct Seen {
    /// Entries; zero where the shadow shows nothing.
    pub(super) duals: [DualPde; DUAL_ENTRIES as usize],
    /// Tables by index; where there is none, zeros. Invariant: none for an entry that is one for the whole unit.
    pub(super) leaves: BTreeMap<usize, Box<Leaves>>,
}

/// Entries of the guest's two tables for one unit that the shadow shows. Of small entries that a big one hides, nothing is
/// known.
#[derive(Debug)]
pub(super) struct Leaves {
    pub(super) big: [u64; BIG_PAGES],
    pub(super) small: [u64; SMALL_PAGES],
}

impl Leaves {
    pub(super) const EMPTY: Leaves = Leaves { big: [0; BIG_PAGES], small: [0; SMALL_PAGES] };

    /// The shadow does not show any more what the entry says that decides about a small page.
    pub(super) fn forget(&mut self, page: usize) {
        let big = &mut self.big[page / SMALL_IN_BIG];
        if Pte(*big).hides_small() {
            *big = UNKNOWN;
        } else {
            self.small[page] = UNKNOWN;
        }
    }
}

impl Directory {
    pub(super) fn new<M: TableMemory>(tables: &mut Tables<'_, M>, level: usize) -> Result<Directory, ShadowError> {
        let at = tables.alloc(TABLE_BYTES)?;
        let seen = (level == LAST)
            .then(|| Box::new(Seen { duals: [DualPde::INVALID; DUAL_ENTRIES as usize], leaves: BTreeMap::new() }));
        Ok(Directory { at, level, ours: Box::new([0; WORDS]), below: BTreeMap::new(), seen })
    }

    /// True if nothing is mapped by it.
    pub(super) fn is_empty(&self) -> bool {
        self.ours.iter().all(|word| *word == 0)
    }

    /// An entry of an upper level.
    pub(super) fn pde(&self, index: usize) -> Pde {
        Pde(self.ours[index])
    }

    /// An entry of the last level.
    pub(super) fn dual(&self, index: usize) -> DualPde {
        DualPde { big: self.ours[2 * index], small: self.ours[2 * index + 1] }
    }

    /// Writes an entry of an upper level, if it is another.
    fn set<M: TableMemory>(
        &mut self,
        index: usize,
        pde: Pde,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        if self.ours[index] != pde.0 {
            tables.mem.write(self.at.offset(index as u64 * 8), pde.as_bytes())?;
            self.ours[index] = pde.0;
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
            changes.ranges.add(va..va + span(self.level));
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
    ) -> Result<Directory, ShadowError> {
        self.below.remove(&index).map_or_else(|| Directory::new(tables, self.level + 1), Ok)
    }

    /// Puts a directory below an entry. One that is empty goes.
    pub(super) fn put<M: TableMemory>(
        &mut self,
        index: usize,
        child: Directory,
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
        draft: &Draft,
        tables: &mut Tables<'_, M>,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let mut dual = self.dual(index);
        draft.store(tables, changes, (self.at.offset(index as u64 * 16), va), &mut dual)?;
        (self.ours[2 * index], self.ours[2 * index + 1]) = (dual.big, dual.small);
        Ok(())
    }

    /// As [`Directory::store`]; where it takes a table that cannot be had, nothing is shown, which takes none. Gives why.
    pub(super) fn store_or_clear<M: TableMemory>(
        &mut self,
        unit: (usize, u64),
        draft: &mut Draft,
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
        for index in 0..entries(self.level) {
            let va = base + index as u64 * span(self.level);
            match self.below.get(&index) {
                Some(child) => child.shown(va, name),
                None if self.level < LAST && !self.pde(index).is_sparse() => {}
                None if self.level == LAST && self.dual(index) == DualPde::INVALID => {}
                None => name(va..va + span(self.level)),
            }
        }
    }

    /// Gives back its table and all below it.
    pub(super) fn free<M: TableMemory>(self, tables: &mut Tables<'_, M>) {
        if self.level == LAST {
            for index in 0..entries(LAST) {
                let dual = self.dual(index);
                if let Some(at) = dual.big_table() {
                    tables.free(at, BIG_TABLE_BYTES);
                }
                if let Some(at) = dual.small_table() {
                    tables.free(at, TABLE_BYTES);
                }
            }
        }
        tables.free(self.at, TABLE_BYTES);
        self.below.into_values().for_each(|child| child.free(tables));
    }
}

/// One unit, for who edits it.
pub(super) struct Unit<'a> {
    /// Its first address.
    pub(super) va: u64,
    /// What of it was named.
    pub(super) part: Range<u64>,
    pub(super) image: &'a mut Image,
    /// The guest's entry for it.
    pub(super) dual: &'a mut DualPde,
    /// The guest's tables for it.
    pub(super) leaves: Option<&'a mut Leaves>,
}

/// An edit that no table of the guest's decides.
pub(super) struct Edit<'a, 'm, M, F> {
    pub(super) tables: &'a mut Tables<'m, M>,
    pub(super) changes: &'a mut Changes,
    /// Units that show nothing are edited, too.
    pub(super) create: bool,
    /// What to do with each unit.
    pub(super) edit: F,
    /// Called with a unit that had to be cleared, because there was no table for what is left of it; `None`: that is an
    /// error, and the unit stays as it was.
    pub(super) cleared: Option<&'a mut dyn FnMut(Range<u64>)>,
}

impl<M: TableMemory, F: FnMut(&mut Unit<'_>)> Edit<'_, '_, M, F> {
    /// Edits all units of a range, in a directory that begins at `base`.
    pub(super) fn run(&mut self, dir: &mut Directory, base: u64, range: &Range<u64>) -> Result<(), ShadowError> {
        let unit = span(dir.level);
        for index in indices(range, base, unit, entries(dir.level)) {
            let va = base + index as u64 * unit;
            let part = range.start.max(va)..range.end.min(va + unit);
            if dir.level == LAST {
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

    fn unit(&mut self, dir: &mut Directory, at: (usize, u64), part: Range<u64>) -> Result<(), ShadowError> {
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
                    cleared(va..va + HUGE_PAGE);
                }
            }
        }
        dir.forget_if_empty(index);
        Ok(())
    }
}

impl Directory {
    /// Drops the snapshot of the tables for a unit of which nothing is shown.
    pub(super) fn forget_if_empty(&mut self, index: usize) {
        let shows = self.dual(index) != DualPde::INVALID;
        if let (false, Some(seen)) = (shows, &mut self.seen) {
            seen.leaves.remove(&index);
        }
    }
}
