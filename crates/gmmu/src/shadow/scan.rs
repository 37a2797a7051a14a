//! Reading a guest's tables, and letting the shadow follow.

use std::marker::PhantomData;
use std::ops::Range;

use gpu_spec::mmu::{DualPde, Pde, PhysAddr, Pte, SMALL_PAGE};

use super::directory::{Directory, Leaves, NOTHING, UNKNOWN};
use super::followed::Followed;
use super::grant::{Grant, Grants};
use super::image::{Draft, Image};
use super::ranges::Ranges;
use super::{Changes, ShadowError, Tables};
use crate::edit::indices;
use crate::format::{BIG_PAGES, Format, Geometry, Table, Words};
use crate::{PhysMem, TableMemory};

/// What is left to be done for a guest.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Invalidated, not yet looked at.
    pub(super) stale: Ranges,
    /// By level: where entries of the guest's directories may have changed. What lies below those that have not is as it was.
    pub(super) directories: Vec<Ranges>,
    /// Where the guest's tables ask for what it is not granted.
    pub(super) refused: Ranges,
    /// Where a table was missing in this pass, and why the last one was.
    pub(super) unserved: Ranges,
    pub(super) why: Option<ShadowError>,
    /// What was unserved is being tried again: the pass may have freed tables later on.
    pub(super) again: bool,
    /// Snapshots are not compared in this pass: every entry is translated.
    pub(super) every: bool,
    /// Tables that this pass has read, and nothing is mapped by them.
    pub(super) in_vain: u32,
}

impl Pending {
    /// Where entries of directories of a level may have changed.
    pub(super) fn changed_in(&mut self, level: usize) -> &mut Ranges {
        if self.directories.len() <= level {
            self.directories.resize_with(level + 1, Ranges::default);
        }
        &mut self.directories[level]
    }
}

/// Why a scan stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// The budget is used up; what lies behind this address is left.
    Pause(u64),
    /// More tables were read in vain than a guest can have use for; as far as here.
    Endless(u64),
    /// The shadow's own tables are damaged.
    Failed(ShadowError),
}

impl From<ShadowError> for Stop {
    fn from(error: ShadowError) -> Stop {
        Stop::Failed(error)
    }
}

/// A part of a pass.
pub(super) struct Scan<'a, 'm, F, P, G, M> {
    pub(super) guest: &'a P,
    pub(super) grants: Grants<'a, G>,
    pub(super) tables: Tables<'m, M>,
    pub(super) changes: &'a mut Changes,
    pub(super) pending: &'a mut Pending,
    /// Told of each table that is found, if somebody wants to know.
    pub(super) followed: Option<&'a mut Followed>,
    pub(super) window: Range<u64>,
    /// Of the entries of this level, those alone are followed that are not as they were.
    pub(super) changed_in: Option<usize>,
    /// Where it begins.
    pub(super) start: u64,
    /// It pauses when so many entries have been scanned.
    pub(super) until: u64,
    /// Tables that a pass may read in vain.
    pub(super) most_in_vain: u32,
    pub(super) format: PhantomData<F>,
}

impl<F: Format, P: PhysMem, G: Grant, M: TableMemory> Scan<'_, '_, F, P, G, M> {
    /// Reads entries of a guest's table, from `first` on; false if there is no memory.
    fn read(&mut self, at: PhysAddr, of: Table, first: usize, words: &mut [u64]) -> bool {
        self.changes.work.tables_read += 1;
        let read = F::read(self.guest, at, of, first, words).is_ok();
        for word in words {
            match *word {
                _ if !read => *word = 0,
                UNKNOWN => *word = NOTHING,
                _ => {}
            }
        }
        read
    }

    /// Reads what a range takes of a guest's directory for addresses from `base`; false if there is no memory.
    pub(super) fn directory(
        &mut self,
        (at, level, base): (PhysAddr, usize, u64),
        range: &Range<u64>,
        out: &mut F::Words,
    ) -> bool {
        let (of, words) = if level == F::LAST { (Table::Last, 2) } else { (Table::Upper, 1) };
        let wanted = indices(range, base, F::LEVELS[level].span(), F::LEVELS[level].entries);
        self.read(at, of, wanted.start, &mut out.words_mut()[wanted.start * words..wanted.end * words])
    }

    /// Lets a directory of the shadow, for addresses from `base`, follow a guest's.
    pub(super) fn follow(
        &mut self,
        dir: &mut Directory<F>,
        base: u64,
        range: &Range<u64>,
        guest: &F::Words,
    ) -> Result<(), Stop> {
        let (unit, guest) = (dir.span(), guest.words());
        for index in indices(range, base, unit, dir.entries()) {
            let va = base + index as u64 * unit;
            // An entry that holds the start is never left out: each part gets on.
            if va > self.start && self.changes.work.entries_scanned >= self.until {
                return Err(Stop::Pause(va));
            }
            if va > self.start && self.pending.in_vain >= self.most_in_vain {
                return Err(Stop::Endless(va));
            }
            self.changes.work.entries_scanned += 1;
            let part = range.start.max(va)..range.end.min(va + unit);
            let changed_only = self.changed_in == Some(dir.level) && !self.pending.every;
            if dir.is_last() {
                let now = DualPde { big: guest[2 * index], small: guest[2 * index + 1] };
                let seen = dir.seen.as_ref().is_some_and(|seen| seen.duals[index] == now);
                if self.pending.every || !(seen && (whole(now) || changed_only)) {
                    self.unit(dir, (index, va), part, now)?;
                }
            } else if !(changed_only && self.is_followed(dir, (index, va), Pde(guest[index]))) {
                self.upper(dir, (index, va), part, Pde(guest[index]))?;
            }
        }
        Ok(())
    }

    /// Whether an entry of an upper level is what was followed last.
    fn is_followed(&self, dir: &Directory<F>, (index, va): (usize, u64), pde: Pde) -> bool {
        let known = self.followed.as_ref().map(|followed| followed.table(dir.level + 1, va));
        // Without a table it is all of one kind, or, in a part of the window, shown entry by entry.
        let ours = if pde.is_sparse() { Pde::SPARSE } else { Pde::INVALID };
        known == Some(pde.table()) && (pde.table().is_some() || dir.pde(index) == ours)
    }

    /// An entry of an upper level.
    fn upper(
        &mut self,
        dir: &mut Directory<F>,
        (index, va): (usize, u64),
        part: Range<u64>,
        pde: Pde,
    ) -> Result<(), Stop> {
        let mut below = F::Words::ZERO;
        let table = pde.table();
        let found = table.is_some_and(|at| self.directory((at, dir.level + 1, va), &part, &mut below));
        if let Some(followed) = &mut self.followed {
            let (now, before) = (table.filter(|_| found), followed.table(dir.level + 1, va));
            followed.decides(dir.level + 1, va, now);
            // With another table, the rest of it is not what it was either.
            if now != before && followed.table(dir.level + 1, va) == now {
                self.pending.stale.add(va.max(self.window.start)..(va + dir.span()).min(self.window.end));
            }
        }
        if !found {
            if table.is_some() {
                self.pending.refused.add(part.clone());
                self.pending.in_vain += 1;
            }
            let inside = va >= self.window.start && va + dir.span() <= self.window.end;
            if inside {
                let ours = if pde.is_sparse() { Pde::SPARSE } else { Pde::INVALID };
                return Ok(dir.cut((index, va), ours, &mut self.tables, self.changes)?);
            }
            // Other addresses below it are not the guest's: the part is followed as if it had tables.
            if pde.is_sparse() {
                sparse::<F>(dir.level + 1, &mut below);
            }
        }
        if dir.pde(index).is_sparse() {
            // It has been sparse, and is not: the rest of it, too.
            self.pending.stale.add(va.max(self.window.start)..(va + dir.span()).min(self.window.end));
            dir.cut((index, va), Pde::INVALID, &mut self.tables, self.changes)?;
        }
        if !dir.below.contains_key(&index) && below.words().iter().all(|word| *word == 0) {
            if let Some(followed) = &mut self.followed {
                let span = F::LEVELS[dir.level + 1].span();
                followed.forget_from(dir.level + 2, part.start / span * span..part.end);
            }
            return Ok(());
        }
        let mut child = match dir.take(index, &mut self.tables) {
            Ok(child) => child,
            Err(why) => {
                self.unserved(part, why);
                return Ok(());
            }
        };
        let followed = self.follow(&mut child, va, &part, &below);
        self.pending.in_vain += u32::from(followed.is_ok() && child.is_empty());
        dir.put(index, child, &mut self.tables, self.changes)?;
        followed
    }

    /// An entry of the last level.
    fn unit(&mut self, dir: &mut Directory<F>, at: (usize, u64), part: Range<u64>, now: DualPde) -> Result<(), Stop> {
        let (index, va) = at;
        if let Some(followed) = &mut self.followed {
            followed.decides(F::LAST + 1, va, now.small_table());
            followed.decides(F::LAST + 2, va, now.big_table());
        }
        let Some(seen) = &mut dir.seen else { return Ok(()) };
        let before = seen.duals[index];
        let mut leaves = seen.leaves.remove(&index);
        let ours = dir.dual(index);
        let mut draft = None;
        let mut seen_now = now;
        if !whole(now) && (now.big_table().is_some() || now.small_table().is_some()) {
            let mut snapshot = leaves.take().unwrap_or_else(|| Box::new(Leaves::EMPTY));
            // With other tables, or none before, the rest of it is not what it was either.
            let part = if now == before { part } else { va..va + F::UNIT };
            if whole(before) {
                draft = Some(cleared(self.tables.mem, ours)?);
            }
            if self.leaves(&mut draft, ours, &mut snapshot, (va, part), now)? {
                leaves = Some(snapshot);
            } else {
                seen_now = DualPde { big: UNKNOWN, small: 0 };
                draft = Some(cleared(self.tables.mem, ours)?);
            }
        } else if now != before || self.pending.every || ours != DualPde::INVALID {
            if now != before {
                self.changes.find(va, F::UNIT, if whole(now) { now.big } else { 0 });
            }
            let mut page = Draft::load(self.tables.mem, ours)?;
            let pte = if whole(now) { Pte(now.big) } else { Pte::INVALID };
            // A sparse entry may have other bits set, which mean nothing.
            let pte = if pte.is_sparse() { Pte::SPARSE } else { pte };
            if !self.grants.show(&mut page.now, 0, pte, F::UNIT) {
                seen_now = DualPde { big: UNKNOWN, small: 0 };
                self.pending.refused.add(va..va + F::UNIT);
            }
            (draft, leaves) = (Some(page), None);
        }
        if let Some(draft) = &mut draft
            && let Some(why) = dir.store_or_clear(at, draft, &mut self.tables, self.changes)?
        {
            self.unserved(va..va + F::UNIT, why);
            (seen_now, leaves) = (DualPde { big: UNKNOWN, small: 0 }, None);
        }
        if let Some(seen) = &mut dir.seen {
            seen.duals[index] = seen_now;
            seen.leaves.extend(leaves.map(|leaves| (index, leaves)));
        }
        dir.forget_if_empty(index);
        let tables = now.big_table().is_some() || now.small_table().is_some();
        self.pending.in_vain += u32::from(tables && dir.dual(index) == DualPde::INVALID);
        Ok(())
    }

    /// The tables for a part of the unit at `va`. False if a table cannot be read that decides about all of it.
    fn leaves(
        &mut self,
        draft: &mut Option<Box<Draft<F>>>,
        ours: DualPde,
        seen: &mut Leaves<F>,
        (va, part): (u64, Range<u64>),
        dual: DualPde,
    ) -> Result<bool, ShadowError> {
        let slots = indices(&part, va, F::BIG_PAGE, BIG_PAGES);
        let mut bigs = [0; BIG_PAGES];
        if let Some(at) = dual.big_table() {
            if !self.read(at, Table::Big, slots.start, &mut bigs[slots.clone()]) {
                self.pending.refused.add(va..va + F::UNIT);
                return Ok(false);
            }
            self.changes.work.entries_scanned += slots.len() as u64;
        }
        let hides = |word: u64| Pte(word).hides_small();
        // Small pages come to light that a big one has hidden.
        let uncovered: [bool; BIG_PAGES] = std::array::from_fn(|slot| hides(seen.big[slot]) && !hides(bigs[slot]));
        let mut pages = indices(&part, va, SMALL_PAGE, F::SMALL_PAGES);
        if uncovered[slots.start] {
            pages.start = slots.start * F::SMALL_IN_BIG;
        }
        if uncovered[slots.end - 1] {
            pages.end = slots.end * F::SMALL_IN_BIG;
        }
        let mut smalls = F::Words::ZERO;
        let (smalls, seen_small) = (smalls.words_mut(), seen.small.words_mut());
        let looked_at = slots.clone().any(|slot| !hides(bigs[slot]));
        if let (Some(at), true) = (dual.small_table(), looked_at)
            && !self.read(at, Table::Small, pages.start, &mut smalls[pages.clone()])
        {
            self.pending.refused.add(part);
        }
        for slot in slots {
            if hides(bigs[slot]) {
                self.entry(
                    draft,
                    ours,
                    &mut seen.big[slot],
                    (va, slot * F::SMALL_IN_BIG, F::BIG_PAGE),
                    bigs[slot],
                    false,
                )?;
                continue;
            }
            seen.big[slot] = bigs[slot];
            let first = slot * F::SMALL_IN_BIG;
            let pages = pages.start.max(first)..pages.end.min(first + F::SMALL_IN_BIG);
            if dual.small_table().is_some() {
                self.changes.work.entries_scanned += pages.len() as u64;
            }
            if !uncovered[slot] && !self.pending.every && smalls[pages.clone()] == seen_small[pages.clone()] {
                continue;
            }
            for page in pages {
                let place = (va, page, SMALL_PAGE);
                self.entry(draft, ours, &mut seen_small[page], place, smalls[page], uncovered[slot])?;
            }
        }
        Ok(true)
    }

    /// One entry of a table of pages, for `bytes` from small page `first` of the unit at `va`.
    fn entry(
        &mut self,
        draft: &mut Option<Box<Draft<F>>>,
        ours: DualPde,
        seen: &mut u64,
        (va, first, bytes): (u64, usize, u64),
        now: u64,
        uncovered: bool,
    ) -> Result<(), ShadowError> {
        if now == *seen && !uncovered && !self.pending.every {
            return Ok(());
        }
        let draft = match draft {
            Some(draft) => draft,
            None => draft.insert(Draft::load(self.tables.mem, ours)?),
        };
        if now != *seen {
            self.changes.find(va + first as u64 * SMALL_PAGE, bytes, now);
        }
        *seen = now;
        if !self.grants.show(&mut draft.now, first, Pte(now), bytes) {
            *seen = UNKNOWN;
            let at = va + first as u64 * SMALL_PAGE;
            self.pending.refused.add(at..at + bytes);
        }
        Ok(())
    }

    fn unserved(&mut self, part: Range<u64>, why: ShadowError) {
        self.pending.unserved.add(part);
        self.pending.why = Some(why);
    }
}

/// Is it one entry for a whole unit?
fn whole(dual: DualPde) -> bool {
    dual.page().is_some() || dual.is_sparse()
}

/// A draft that shows nothing.
fn cleared<F: Format>(mem: &impl PhysMem, ours: DualPde) -> Result<Box<Draft<F>>, ShadowError> {
    let mut draft = Draft::load(mem, ours)?;
    draft.now = Image::EMPTY;
    Ok(draft)
}

/// Makes a directory of a level one of which all is sparse.
fn sparse<F: Format>(level: usize, words: &mut F::Words) {
    for (at, word) in words.words_mut().iter_mut().enumerate() {
        *word = match level == F::LAST {
            true if at % 2 == 1 => 0,
            true => DualPde::SPARSE.big,
            false => Pde::SPARSE.0,
        };
    }
}
