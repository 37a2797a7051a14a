//! Shadow page tables: what the device uses in place of a guest's tables.
//!
//! A guest's tables name memory by the guest's addresses, and the guest can write into them what it likes. So the device
//! never walks them. It walks a [`Shadow`]: tables of the host's, in which each entry allows what the guest's entry *and*
//! the guest's [`Grant`] both allow, at the host's address.
//!
//! ```text
//!   guest's tables          snapshot          shadow (walked by the device)
//!   ┌──────────────┐ read   ┌──────────┐ differs: grant, write  ┌──────────────┐
//!   │ at 0x5000    │ ─────▶ │ as shown │ ─────────────────────▶ │ at 0x8d05000 │
//!   └──────────────┘        └──────────┘                        └──────────────┘
//!          ▲ the guest writes, then invalidates a range: remembered; reflected when its channel is next used
//! ```
//!
//! - **Lazy**: [`Shadow::invalidate`] remembers a range, [`Shadow::reflect`] walks what is remembered: of each of the guest's
//!   tables the part that the range takes, in one read. It compares it with a snapshot of what the shadow shows, and
//!   translates the entries that differ. [`Shadow::rescan`] is the naive way of GPUvm's first version: everything is walked,
//!   every entry translated.
//! - **Format**: the shadow's tables have the format of the guest's ([`Format`]). Entries are compared, cut and kept in one
//!   form for all formats.
//! - **Pages**: big pages (64 KiB, 2 MiB) stay where the grant is contiguous and aligned, and are split where it is not.
//!   Rights, kind and the volatile bit are carried over, or how a page is cached; what is sparse stays sparse. What is not
//!   granted is invalid, and so is what the format cannot say (memory that may only be read, in a format without rights),
//!   and all that lies behind a table that is not the guest's memory: it faults, in that guest alone.
//! - **Window**: the guest's tables decide about the addresses of its window. Outside of it the mediator maps pages of its
//!   own ([`Shadow::map_own`]).
//! - **Para-virtualized** spaces ([`Shadow::entered`]) have no guest's tables: entries come by hypercall
//!   ([`Shadow::enter`]), as in Xen's direct paging, and are checked against the grant. Nothing is ever scanned.
//! - **A grant that shrinks**: [`Shadow::revoke`] takes out all that names the memory, without looking at the guest's
//!   tables. One that grows: [`Shadow::granted`] looks again at what was refused.
//!
//! # What holds
//! - At any time, each entry of the shadow names memory that the grant holds (as of the last change that
//!   [`Shadow::revoke`] was told of), whatever the guest writes, and while it writes.
//! - After [`Shadow::reflect`] says [`Progress::Done`], each address that was invalidated since its translation changed has
//!   the translation of the plain walk of the guest's tables, cut to the grant; any other address has that one or the one
//!   that it had before, as with a TLB.
//! - Work is bounded: a call stops after a budget of entries, and a pass (all calls from one [`Progress::Done`] to the next)
//!   when [`MOST_IN_VAIN`] tables more than the shadow may have were read from which nothing followed: tables that contain
//!   themselves fan out into 2^37 pages. Memory is bounded: the shadow has at most a given number of tables, and keeps at
//!   most some 9 KiB beside each, in Intel's format 17.
//!
//! The engine knows nothing of devices: who owns it invalidates the device's TLB for the ranges in [`Changes`] after each
//! call, and until then keeps tables that were given back.

mod directory;
mod followed;
mod grant;
mod image;
mod ranges;
mod scan;

use std::marker::PhantomData;
use std::ops::Range;

use gpu_spec::mmu::{DualPde, PhysAddr, Pte, Rights, SMALL_PAGE};

use self::directory::{Directory, Edit, Unit};
use self::followed::{Followed, Shape};
use self::grant::{Everything, Grants, entry};
use self::ranges::Ranges;
use self::scan::{Pending, Scan, Stop};
use crate::format::{Format, Geometry, Gmmu2, Level, Table, Words};
use crate::{BadAddress, PhysMem, TableMemory};

pub(crate) use self::directory::UNKNOWN;
pub(crate) use self::followed::page_of;
pub use self::grant::{Grant, Granted};

/// How many empty tables of the guest's a pass reads at most, beside as many as the shadow may have tables.
pub const MOST_IN_VAIN: u32 = 1024;

/// Why a shadow cannot do what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShadowError {
    /// Not whole pages, or not on the right side of the window, or the guest's tables decide about it.
    #[error("range {va:#x}+{bytes:#x} is not one that may be edited")]
    BadRange {
        /// First address.
        va: u64,
        /// Length of the range, in bytes.
        bytes: u64,
    },
    /// The guest has no such memory.
    #[error("guest address {0:x?} is not granted")]
    NotGranted(PhysAddr),
    /// The guest's tables would take a larger shadow than it may have, or have no end.
    #[error("the guest's page tables take more than {limit} tables")]
    TooManyTables {
        /// The most that it may have.
        limit: u32,
    },
    /// The host has no memory for a table.
    #[error("no memory for shadow page tables")]
    NoMemory,
    /// A table of the shadow lies where there is no memory.
    #[error("shadow page table is damaged")]
    Damaged(#[from] BadAddress),
}

/// What was done, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Entries of the guest's tables that were looked at.
    pub entries_scanned: u64,
    /// Reads of the guest's tables: a table, or a part of it, each.
    pub tables_read: u64,
    /// Entries of the shadow that were written.
    pub updates: u64,
}

/// What calls have changed: gathered over as many as the owner likes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    ranges: Ranges,
    /// What was done.
    pub work: Work,
    /// Where there is a list, entries of the guest's tables of pages that were found changed go there.
    pub found: Option<FoundEntries>,
}

/// An entry of a guest's table of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundEntry {
    /// The first address that it is for.
    pub va: u64,
    /// How many it is for, bytes: the size of its page.
    pub bytes: u64,
    /// What it says, in the form that entries have inside.
    pub entry: u64,
}

/// Entries that were found changed, in the order in which they were looked at; as many as there is room for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundEntries {
    /// The first of them.
    pub entries: Vec<FoundEntry>,
    /// Those that had no room.
    pub missed: u64,
}

impl FoundEntries {
    /// Entries that there is room for: some MB.
    pub const MOST: usize = 1 << 17;

    fn push(&mut self, entry: FoundEntry) {
        if self.entries.len() < FoundEntries::MOST {
            self.entries.push(entry);
        } else {
            self.missed += 1;
        }
    }
}

impl Changes {
    /// Ranges in which the shadow's translations may have changed, in order; a few. The device's TLB is to be invalidated
    /// for them.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        self.ranges.as_slice()
    }

    fn find(&mut self, va: u64, bytes: u64, entry: u64) {
        if let Some(found) = &mut self.found {
            found.push(FoundEntry { va, bytes, entry });
        }
    }
}

/// How far a call has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The shadow shows all that was invalidated.
    Done,
    /// The budget is used up, and there is more to do.
    More,
}

/// The shadow of one page directory of a guest, in the guest's format.
#[derive(Debug)]
pub struct Shadow<F: Format = Gmmu2> {
    guest_root: Option<PhysAddr>,
    window: Range<u64>,
    root: Directory<F>,
    held: u32,
    limit: u32,
    pending: Pending,
    /// The guest's tables, if they are followed.
    followed: Option<Followed>,
}

impl<F: Format> Shadow<F> {
    /// An empty shadow of the tables below `guest_root`, for the addresses in `window` (multiples of what an entry of the last
    /// directory is for: in NVIDIA's format 2 MiB). It may take `limit` tables. All of it is stale.
    ///
    /// # Errors
    /// [`ShadowError::BadRange`] for the window, or no memory.
    pub fn new(
        mem: &mut impl TableMemory,
        guest_root: PhysAddr,
        window: Range<u64>,
        limit: u32,
    ) -> Result<Shadow<F>, ShadowError> {
        let mut shadow = Shadow::entered(mem, window.clone(), limit)?;
        shadow.guest_root = Some(guest_root);
        shadow.invalidate(window);
        Ok(shadow)
    }

    /// An empty space whose pages come by [`Shadow::enter`] alone.
    ///
    /// # Errors
    /// As [`Shadow::new`].
    pub fn entered(mem: &mut impl TableMemory, window: Range<u64>, limit: u32) -> Result<Shadow<F>, ShadowError> {
        let whole = |at: u64| at.is_multiple_of(F::UNIT) && at <= F::VA_END;
        if window.is_empty() || !whole(window.start) || !whole(window.end) {
            let bytes = window.end.wrapping_sub(window.start);
            return Err(ShadowError::BadRange { va: window.start, bytes });
        }
        let mut held = 0;
        let root = Directory::new(&mut Tables { mem, held: &mut held, limit }, 0)?;
        Ok(Shadow { guest_root: None, window, root, held, limit, pending: Pending::default(), followed: None })
    }

    /// The root table of the shadow, for the device.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.root.at
    }

    /// Tables that the shadow has now.
    #[must_use]
    pub fn tables(&self) -> u32 {
        self.held
    }

    /// The guest has invalidated a range: it is looked at with the next [`Shadow::reflect`].
    pub fn invalidate(&mut self, range: Range<u64>) {
        if self.guest_root.is_some() {
            self.pending.stale.add(in_window(&self.window, range));
        }
    }

    /// The guest's grant has become larger: what was refused is looked at with the next [`Shadow::reflect`].
    pub fn granted(&mut self) {
        let refused = std::mem::take(&mut self.pending.refused);
        self.pending.stale.extend(refused.as_slice().iter().cloned());
    }

    /// From now on remembers which pages of the guest's memory hold its tables ([`Shadow::take_news`]), as they are found: all of
    /// it is stale.
    pub fn follow_tables(&mut self) {
        let Some(root) = self.guest_root else { return };
        let mut followed = Followed::new(shapes::<F>(), MOST_IN_VAIN as usize);
        followed.decides(0, 0, Some(root));
        self.followed = Some(followed);
        self.invalidate(self.window.clone());
    }

    /// Stops it; gives the pages that were known.
    pub fn forget_tables(&mut self) -> Vec<PhysAddr> {
        self.followed.take().map_or_else(Vec::new, |followed| followed.pages().collect())
    }

    /// Pages of the guest's memory that came to hold tables since this was last asked, or that hold others: whether these are tables
    /// of pages alone, or directories as well; `None`: no tables any more.
    pub fn take_news(&mut self) -> Vec<(PhysAddr, Option<bool>)> {
        let Some(followed) = &mut self.followed else { return Vec::new() };
        followed.take_news().into_iter().map(|page| (page, followed.is_leaf(page))).collect()
    }

    /// The guest may have stored into some of its memory, or has lost it: as far as there are tables, it is looked at with the next
    /// [`Shadow::reflect`] what they decide about.
    pub fn stored(&mut self, at: PhysAddr, bytes: u64) {
        let mut ranges = Vec::new();
        if let Some(followed) = &self.followed {
            followed.decided_by(at, bytes, &mut |directories, range| ranges.push((directories, range)));
        }
        for (directories, range) in ranges {
            match directories {
                Some(level) => self.pending.changed_in(level).add(in_window(&self.window, range)),
                None => self.invalidate(range),
            }
        }
    }

    /// The guest may have stored into tables that are too many to be remembered.
    pub fn stored_beyond(&mut self) {
        let beyond = self.followed.as_mut().map(Followed::take_beyond).unwrap_or_default();
        beyond.as_slice().iter().for_each(|range| self.invalidate(range.clone()));
    }

    /// True if there is something for [`Shadow::reflect`] to do.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let Pending { stale, directories, unserved, .. } = &self.pending;
        !stale.is_empty() || !unserved.is_empty() || directories.iter().any(|ranges| !ranges.is_empty())
    }

    /// Lets the shadow follow what the guest's tables say now where they were invalidated. `guest` is memory by the guest's
    /// own addresses: what is not the guest's must not be there. Stops when `budget` entries have been scanned, or at most
    /// 1,100 more; some thousands are a good budget.
    ///
    /// # Errors
    /// [`ShadowError::TooManyTables`] or [`ShadowError::NoMemory`]: the guest's tables take more than it may have. The shadow
    /// shows a part then, and the rest stays stale; it is tried again with the next call.
    pub fn reflect(
        &mut self,
        guest: &impl PhysMem,
        grant: &impl Grant,
        mem: &mut impl TableMemory,
        budget: u64,
        changes: &mut Changes,
    ) -> Result<Progress, ShadowError> {
        let Some(guest_root) = self.guest_root else { return Ok(Progress::Done) };
        let until = changes.work.entries_scanned.saturating_add(budget);
        if let Some(followed) = &mut self.followed {
            // As many as the shadow has itself, and some of which it shows nothing. More are looked at each time.
            followed.limit = self.held.saturating_add(MOST_IN_VAIN) as usize;
        }
        while let Some((changed_in, range)) = self.next_stale()? {
            let mut scan = Scan {
                guest,
                grants: Grants::new(grant),
                tables: Tables { mem, held: &mut self.held, limit: self.limit },
                changes,
                pending: &mut self.pending,
                followed: self.followed.as_mut(),
                window: self.window.clone(),
                changed_in,
                start: range.start,
                until,
                most_in_vain: self.limit.saturating_add(MOST_IN_VAIN),
                format: PhantomData,
            };
            let mut entries = F::Words::ZERO;
            if !scan.directory((guest_root, 0, 0), &range, &mut entries) {
                scan.pending.refused.add(range.clone());
            }
            let stopped = scan.follow(&mut self.root, 0, &range, &entries);
            match stopped {
                Ok(()) => {}
                Err(Stop::Pause(at)) => self.put_back(changed_in, at..range.end),
                Err(Stop::Endless(at)) => {
                    self.put_back(changed_in, at..range.end);
                    self.end_pass();
                    return Err(ShadowError::TooManyTables { limit: self.limit });
                }
                Err(Stop::Failed(error)) => {
                    self.pending.stale.add(range);
                    return Err(error);
                }
            }
            if changes.work.entries_scanned >= until && self.is_stale() {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Done)
    }

    /// As [`Shadow::reflect`], in the naive way: all is stale, and every entry is translated. Where there is more to do,
    /// [`Shadow::reflect`] goes on.
    ///
    /// # Errors
    /// As [`Shadow::reflect`].
    pub fn rescan(
        &mut self,
        guest: &impl PhysMem,
        grant: &impl Grant,
        mem: &mut impl TableMemory,
        budget: u64,
        changes: &mut Changes,
    ) -> Result<Progress, ShadowError> {
        self.invalidate(self.window.clone());
        self.pending.every = true;
        self.reflect(guest, grant, mem, budget, changes)
    }

    /// The guest has lost memory, named by the host's address: nothing leads there any more. A larger page of which a part
    /// is lost is split; if that takes a table that cannot be had, the 2 MiB around it are gone whole (and looked at again
    /// with the next [`Shadow::reflect`], if the guest has tables).
    ///
    /// # Errors
    /// [`ShadowError::Damaged`].
    pub fn revoke(
        &mut self,
        lost: PhysAddr,
        bytes: u64,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let (mut refused, mut cleared) = (Ranges::default(), Ranges::default());
        let edit = |unit: &mut Unit<'_, F>| {
            let gone = unit.image.take_out(lost, bytes);
            for page in &gone {
                let at = unit.va + *page as u64 * SMALL_PAGE;
                refused.add(at..at + SMALL_PAGE);
                // What is known of the guest's entry is not what the shadow shows any more.
                if unit.dual.page().is_some() {
                    *unit.dual = DualPde { big: UNKNOWN, small: 0 };
                } else if let Some(leaves) = &mut unit.leaves {
                    leaves.forget(*page);
                }
            }
        };
        let mut tables = Tables { mem, held: &mut self.held, limit: self.limit };
        let mut note = |range| cleared.add(range);
        let mut edit = Edit { tables: &mut tables, changes, create: false, edit, cleared: Some(&mut note) };
        let done = edit.run(&mut self.root, 0, &(0..F::VA_END));
        if self.guest_root.is_some() {
            self.pending.refused.extend(refused.as_slice().iter().cloned());
            self.pending.stale.extend(cleared.as_slice().iter().cloned());
        }
        done
    }

    /// Maps pages of the mediator's own, named by the host's address, outside of the window; what was there is replaced.
    ///
    /// # Errors
    /// Why not; nothing of it is mapped then.
    pub fn map_own(
        &mut self,
        va: u64,
        bytes: u64,
        at: PhysAddr,
        rights: Rights,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let range = self.outside(va, bytes)?;
        self.fill(range, at, rights, &Everything, mem, changes)
    }

    /// Takes pages of the mediator's own away.
    ///
    /// # Errors
    /// [`ShadowError::BadRange`].
    pub fn unmap_own(
        &mut self,
        va: u64,
        bytes: u64,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let range = self.outside(va, bytes)?;
        self.clear(&range, mem, changes)
    }

    /// Para-virtualized: maps `bytes` at `va` to consecutive memory of the guest's from `at`, as far as all of it is granted,
    /// with the largest pages that fit; what was there is replaced. Takes time in proportion to the bytes.
    ///
    /// # Errors
    /// [`ShadowError::BadRange`], [`ShadowError::NotGranted`]: nothing has changed. For want of tables: nothing of it is
    /// mapped, and of what was there before only parts may be.
    #[expect(clippy::too_many_arguments, reason = "an entry, what it is checked against, and where it goes")]
    pub fn enter(
        &mut self,
        va: u64,
        bytes: u64,
        at: PhysAddr,
        rights: Rights,
        grant: &impl Grant,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let range = self.inside(va, bytes)?;
        if !at.address.is_multiple_of(SMALL_PAGE) || at.address.checked_add(bytes).is_none() {
            return Err(ShadowError::NotGranted(at));
        }
        let (mut done, like) = (0, Pte::to_page(at, rights));
        while done < bytes {
            let granted = grant
                .grant(at.offset(done))
                .filter(|granted| granted.bytes >= SMALL_PAGE && entry::<F>(*granted, like).is_some());
            let granted = granted.ok_or(ShadowError::NotGranted(at.offset(done)))?;
            done = done.saturating_add(granted.bytes & !(SMALL_PAGE - 1));
        }
        self.fill(range, at, rights, grant, mem, changes)
    }

    /// Para-virtualized: takes pages away; what is not mapped is skipped.
    ///
    /// # Errors
    /// [`ShadowError::BadRange`]; for want of a table to split a page: the pages before it are gone.
    pub fn remove(
        &mut self,
        va: u64,
        bytes: u64,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let range = self.inside(va, bytes)?;
        self.clear(&range, mem, changes)
    }

    /// Ends the shadow and gives its tables back. The device must not use it any more.
    pub fn destroy(mut self, mem: &mut impl TableMemory) {
        self.root.free(&mut Tables { mem, held: &mut self.held, limit: self.limit });
    }

    /// A range has not been looked at to its end. The first entry may have been followed in part, and is not as it was.
    fn put_back(&mut self, changed_in: Option<usize>, range: Range<u64>) {
        let span = changed_in.map_or(u64::MAX, |level| F::LEVELS[level].span());
        let first = (range.start / span + 1).saturating_mul(span).min(range.end);
        self.pending.stale.add(range.start..first);
        if let Some(level) = changed_in {
            self.pending.changed_in(level).add(first..range.end);
        }
    }

    /// What is to be looked at next. At the end of a pass for which tables were missing, what it could not show is tried once
    /// more, because it may have freed some.
    fn next_stale(&mut self) -> Result<Option<Stale>, ShadowError> {
        let pending = &mut self.pending;
        for (level, ranges) in pending.directories.iter_mut().enumerate() {
            if let Some(range) = ranges.pop_first() {
                return Ok(Some((Some(level), range)));
            }
        }
        if pending.stale.is_empty() && !pending.unserved.is_empty() {
            pending.stale = std::mem::take(&mut pending.unserved);
            if pending.again {
                self.end_pass();
                return Err(self.pending.why.unwrap_or(ShadowError::NoMemory));
            }
            pending.again = true;
        }
        let next = self.pending.stale.pop_first().map(|range| (None, range));
        if next.is_none() {
            self.end_pass();
        }
        Ok(next)
    }

    fn end_pass(&mut self) {
        let pending = &mut self.pending;
        (pending.again, pending.every, pending.in_vain) = (false, false, 0);
    }

    /// Maps a range from `at` on, as `grant` has it.
    fn fill(
        &mut self,
        range: Range<u64>,
        at: PhysAddr,
        rights: Rights,
        grant: &impl Grant,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let mut grants = Grants::new(grant);
        let like = Pte::to_page(at, rights);
        let mut refused = None;
        let edit = |unit: &mut Unit<'_, F>| {
            let Range { start, end } = unit.part;
            let (first, at) = (((start - unit.va) / SMALL_PAGE) as usize, at.offset(start - range.start));
            if !grants.fill(unit.image, first, end - start, at, like) {
                refused = Some(at);
            }
        };
        let mut tables = Tables { mem, held: &mut self.held, limit: self.limit };
        let mut edit = Edit { tables: &mut tables, changes, create: true, edit, cleared: None };
        let mut done = edit.run(&mut self.root, 0, &range);
        if let (Ok(()), Some(at)) = (&done, refused) {
            done = Err(ShadowError::NotGranted(at));
        }
        if done.is_err() {
            // Taking out what was entered takes no tables. The unit for which they were missing shows what it did before.
            if let Err(damaged @ ShadowError::Damaged(_)) = self.clear(&range, mem, changes) {
                return Err(damaged);
            }
        }
        done
    }

    fn clear(
        &mut self,
        range: &Range<u64>,
        mem: &mut impl TableMemory,
        changes: &mut Changes,
    ) -> Result<(), ShadowError> {
        let edit = |unit: &mut Unit<'_, F>| {
            let Range { start, end } = unit.part;
            unit.image.clear(((start - unit.va) / SMALL_PAGE) as usize, ((end - start) / SMALL_PAGE) as usize);
        };
        let mut tables = Tables { mem, held: &mut self.held, limit: self.limit };
        Edit { tables: &mut tables, changes, create: false, edit, cleared: None }.run(&mut self.root, 0, range)
    }

    /// Checks a range outside of the window.
    fn outside(&self, va: u64, bytes: u64) -> Result<Range<u64>, ShadowError> {
        let range = pages::<F>(va, bytes)?;
        let apart = range.end <= self.window.start || range.start >= self.window.end;
        if apart { Ok(range) } else { Err(ShadowError::BadRange { va, bytes }) }
    }

    /// Checks a range of the window, in a space of which no tables decide.
    fn inside(&self, va: u64, bytes: u64) -> Result<Range<u64>, ShadowError> {
        let range = pages::<F>(va, bytes)?;
        let within = range.start >= self.window.start && range.end <= self.window.end;
        if within && self.guest_root.is_none() { Ok(range) } else { Err(ShadowError::BadRange { va, bytes }) }
    }
}

/// The tables of each level: directories, tables of small pages, tables of big pages.
/// What is to be looked at: a range, and if not all that lies there, the level of the directories that may have changed.
type Stale = (Option<usize>, Range<u64>);

/// What of a range is inside a window, as whole pages.
fn in_window(window: &Range<u64>, range: Range<u64>) -> Range<u64> {
    let end = range.end.min(window.end).next_multiple_of(SMALL_PAGE);
    range.start.max(window.start) & !(SMALL_PAGE - 1)..end
}

fn shapes<F: Format>() -> Vec<Shape> {
    let directory = |(level, shape): (usize, &Level)| {
        let table = if level == F::LAST { Table::Last } else { Table::Upper };
        Shape { entry: F::entry_bytes(table), entries: shape.entries as u64, span: shape.span(), leaf: false }
    };
    let pages =
        |(table, span): (Table, u64)| Shape { entry: F::entry_bytes(table), entries: F::UNIT / span, span, leaf: true };
    let leaves = [(Table::Small, SMALL_PAGE), (Table::Big, F::BIG_PAGE)];
    F::LEVELS.iter().enumerate().map(directory).chain(leaves.map(pages)).collect()
}

fn pages<F: Format>(va: u64, bytes: u64) -> Result<Range<u64>, ShadowError> {
    let whole = va.is_multiple_of(SMALL_PAGE) && bytes.is_multiple_of(SMALL_PAGE) && bytes > 0;
    let end = va.checked_add(bytes).filter(|end| whole && *end <= F::VA_END);
    Ok(va..end.ok_or(ShadowError::BadRange { va, bytes })?)
}

/// Memory for the shadow's tables, as far as it may have some.
struct Tables<'a, M> {
    mem: &'a mut M,
    held: &'a mut u32,
    limit: u32,
}

impl<M: TableMemory> Tables<'_, M> {
    fn alloc<F: Format>(&mut self, bytes: u64) -> Result<PhysAddr, ShadowError> {
        if *self.held >= self.limit {
            return Err(ShadowError::TooManyTables { limit: self.limit });
        }
        let at = self.mem.alloc(bytes).ok_or(ShadowError::NoMemory)?;
        if !F::reaches(at) {
            self.mem.free(at, bytes);
            return Err(ShadowError::NoMemory);
        }
        *self.held += 1;
        Ok(at)
    }

    fn free(&mut self, at: PhysAddr, bytes: u64) {
        self.mem.free(at, bytes);
        *self.held -= 1;
    }
}
