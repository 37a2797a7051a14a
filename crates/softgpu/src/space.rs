//! GPU address spaces: page tables, mirrored by a window of host addresses.
//!
//! A space is named by its page directory. Channels that are bound to the same one share a [`Space`]; it is gone when the
//! last of them is unbound, whoever still has it: the memory of a page directory may be another tenant's next one. What page tables say reaches the window when the space is made, and then at TLB invalidates, of the range
//! that they name: as with a real TLB, edits are not seen before.
//!
//! Each run of pages costs the host entries of the process's memory map, of which there are few. They are counted in the
//! space's budget; where it has no more, pages stay out of the window, or go out of it together with their neighbours, and
//! who accesses them has the fault. Taking pages out never needs more entries than there are.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use gmmu::{Access, Target, Translation, mappings, translate};
use gpu_spec::fault::FaultType;
use gpu_spec::mmu::{Aperture, HUGE_PAGE, PhysAddr, SMALL_PAGE, VA_END};
use hostmem::{Protection, Window, WindowError};
use intervals::IntervalMap;
use parking_lot::Mutex;

use crate::background::{Rubbish, Trash};
use crate::budget::Budgets;
use crate::chip::Chip;
use crate::memory::Memory;
use crate::program::Programs;

/// Most tables read in one part of a synchronization, and for the extent of a window: page tables made of garbage would
/// fan out for hours.
const PART_TABLES: u32 = 256;
const MAX_TABLES: u32 = 1 << 16;
/// Most changes of the window in one part.
const PART_CHANGES: usize = 256;
/// The smallest part that is tried when tables are dense: 4 KiB pages of it take 64 tables.
const PART_BYTES: u64 = 128 << 20;
/// Pages that are taken out of the window at once, bytes: the host frees them one by one.
const STEP_BYTES: u64 = 64 << 20;
/// Largest window, bytes: a process has 2^47 bytes of addresses for all of them. A client's range of 2^40, and what a driver
/// below the client's puts behind it.
const MAX_WINDOW: u64 = (1 << 40) + (1 << 30);

/// What the window shows in a run of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    /// What its first byte shows.
    target: Target,
    /// Number of the memory file in which that is: the same address may be another's later. 0 for sparse pages.
    file: u64,
    protection: Protection,
}

impl Piece {
    /// What is shown `skip` bytes behind its start.
    fn offset(&self, skip: u64) -> Piece {
        Piece { target: self.target.offset(skip), ..*self }
    }

    /// Whether `next`, which follows `bytes` behind the start, is the same mapping for the host.
    fn goes_on(&self, bytes: u64, next: &Piece) -> bool {
        matches!(self.target, Target::Memory(_)) && self.offset(bytes) == *next
    }
}

/// What is mapped in the window.
#[derive(Debug, Default)]
struct Mirror {
    pieces: IntervalMap<Piece>,
    /// Entries of the host's map: each piece, and each gap behind one. They are charged.
    maps: u32,
    /// Nothing is mapped any more, nor will be.
    closed: bool,
}

impl Mirror {
    /// Entries of the host's map that are gained (or lost) by showing something else in a range, or nothing.
    fn gain(&self, range: &Range<u64>, to: Option<Piece>) -> i32 {
        let around = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let before: Vec<Run> = self.pieces.overlapping(around).map(|(whole, piece)| (whole, *piece)).collect();
        let below = before.iter().map(|(whole, piece)| (whole.start..whole.end.min(range.start), *piece));
        let above = before.iter().map(|(whole, piece)| {
            let start = whole.start.max(range.end);
            (start..whole.end, piece.offset(start - whole.start))
        });
        let inside = to.map(|piece| (range.clone(), piece));
        let after: Vec<Run> = below.chain(inside).chain(above).filter(|(left, _)| !left.is_empty()).collect();
        // What follows the last of them is not touched.
        let followed =
            before.last().is_some_and(|(last, _)| last.end > range.end && self.pieces.get(last.end).is_some());
        entries(&after, followed) - entries(&before, followed)
    }

    /// A piece is mapped where nothing was. The host joins what goes on in the same file: so do we, or a range that is mapped page
    /// by page would cost an entry for each.
    fn insert(&mut self, range: Range<u64>, piece: Piece) {
        // It was cut out before.
        drop(self.pieces.insert_joined(range, piece, Piece::goes_on));
    }
}

/// A piece, and where it is shown.
type Run = (Range<u64>, Piece);

/// Entries of the host's map for pieces in order, the last of them followed by another or not.
fn entries(pieces: &[Run], followed: bool) -> i32 {
    let pairs = || pieces.windows(2).map(|two| (&two[0], &two[1]));
    let gaps = pairs().filter(|((one, _), (next, _))| one.end != next.start).count();
    let joined = pairs()
        .filter(|((one, piece), (next, that))| one.end == next.start && piece.goes_on(one.end - one.start, that))
        .count();
    (pieces.len() + gaps + usize::from(!followed && !pieces.is_empty()) - joined) as i32
}

/// An address space in use.
#[derive(Debug)]
pub(crate) struct Space {
    /// Its name among the owners of compilations: those of all its contexts are one tenant's.
    pub(crate) number: u64,
    root: PhysAddr,
    lo: u64,
    window: Arc<Window>,
    budgets: Arc<Budgets>,
    budget: u32,
    /// How often it has changed, and the pages at the two ends of the last copy ([`Space::is_vram`]).
    changes: AtomicU64,
    ends: [AtomicU64; 2],
    /// Channels that are bound to it; without any, it is gone for good.
    bound: AtomicU32,
    /// Held over one part of a synchronization; two parts never mix.
    mirror: Mutex<Mirror>,
    pub(crate) programs: Programs,
}

/// A channel is bound to a space while this lives.
#[derive(Debug)]
pub(crate) struct Bound {
    space: Arc<Space>,
}

impl Bound {
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.space.bound.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Why an access is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// First address that cannot be accessed.
    pub(crate) address: u64,
    pub(crate) kind: FaultType,
    pub(crate) access: gmmu::AccessKind,
}

impl Drop for Space {
    fn drop(&mut self) {
        self.close();
    }
}

impl Space {
    /// Reserves the window `lo`, `bytes`; of 0 bytes: one that holds what is mapped to memory now.
    fn new(chip: &Chip, root: PhysAddr, (lo, bytes): (u64, u64), budget: u32) -> io::Result<Space> {
        let (lo, bytes) = if bytes == 0 { extent(&chip.memory, root) } else { (lo, bytes) };
        let end = lo.checked_add(bytes);
        let good = lo.is_multiple_of(HUGE_PAGE) && bytes.is_multiple_of(HUGE_PAGE) && bytes <= MAX_WINDOW;
        if !good || bytes == 0 || end.is_none_or(|end| end > VA_END) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "window is not whole 2 MiB of the address space"));
        }
        let window = Arc::new(Window::reserve(bytes)?);
        let budgets = Arc::clone(&chip.budgets);
        let (mirror, programs) = (Mutex::default(), Programs::default());
        let (number, bound) = (chip.next_space(), AtomicU32::new(0));
        let (changes, ends) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; 2]);
        let space = Space { number, root, lo, window, budgets, budget, changes, ends, bound, mirror, programs };
        space.sync(chip, 0..VA_END);
        Ok(space)
    }

    /// Binds one more channel, if it is not gone: others are bound.
    fn bind(self: &Arc<Space>) -> Option<Bound> {
        let add = |bound: u32| (bound > 0).then_some(bound + 1);
        self.bound.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        Some(Bound { space: Arc::clone(self) })
    }

    /// Takes everything out of the window: what still runs in a space that is gone has faults, which nobody sees.
    fn close(&self) {
        let mut mirror = self.mirror.lock();
        mirror.closed = true;
        // In steps: the host holds the lock of its map over each.
        for (range, _) in std::mem::take(&mut mirror.pieces).iter() {
            for at in range.clone().step_by(STEP_BYTES as usize) {
                let bytes = (range.end - at).min(STEP_BYTES);
                // What stays goes with the window.
                let _ = self.window.unmap(at - self.lo, bytes);
            }
        }
        self.budgets.change_maps(self.budget, std::mem::take(&mut mirror.maps), 0);
    }

    pub(crate) fn root(&self) -> PhysAddr {
        self.root
    }

    pub(crate) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    pub(crate) fn window_lo(&self) -> u64 {
        self.lo
    }

    /// Makes the window show what the page tables say about a range.
    pub(crate) fn sync(&self, chip: &Chip, mut range: Range<u64>) {
        while let Some(reached) = self.sync_part(chip, range.clone()) {
            range.start = reached;
        }
    }

    /// As [`Space::sync`], for the first part of the range: so much as takes no longer than some hundred microseconds. Gives
    /// where the rest begins.
    pub(crate) fn sync_part(&self, chip: &Chip, range: Range<u64>) -> Option<u64> {
        let range = range.start.max(self.lo) & !(SMALL_PAGE - 1)
            ..range.end.min(self.lo + self.window.bytes()).next_multiple_of(SMALL_PAGE);
        if range.start >= range.end {
            return None;
        }
        let mut mirror = self.mirror.lock();
        if mirror.closed {
            return None;
        }
        let (end, wanted) = self.wanted(&chip.memory, range.clone());
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.ends.iter().for_each(|end| end.store(0, Ordering::SeqCst));
        let mut changes = differences(&mirror.pieces, &wanted, range.start..end);
        let mut reached = end;
        if changes.len() > PART_CHANGES {
            changes.truncate(PART_CHANGES);
            reached = changes.last().map_or(end, |change| change.range.end);
        }
        for change in changes {
            self.apply(chip, &mut mirror, change);
        }
        (reached < range.end).then_some(reached)
    }

    /// The pieces that the page tables ask for, split where memory files end; what is no memory is left out. For the first
    /// part of the range, as long as it takes few tables: gives its end as well.
    fn wanted(&self, memory: &Memory, range: Range<u64>) -> (u64, Vec<(Range<u64>, Piece)>) {
        let mut bytes = range.end - range.start;
        let listing = loop {
            let listing = mappings(memory, self.root, range.start..range.start + bytes, PART_TABLES);
            if listing.tables_left > 0 || bytes <= PART_BYTES {
                break listing;
            }
            bytes = (bytes / 4).max(PART_BYTES);
        };
        let mut out = Vec::new();
        for run in listing.runs {
            // No channel's engines have the privilege that such pages ask for.
            if run.rights.privileged {
                continue;
            }
            let Target::Memory(start) = run.target else {
                let piece = Piece { target: Target::Sparse, file: 0, protection: Protection::Sparse };
                out.push((run.va..run.va + run.bytes, piece));
                continue;
            };
            let protection = if run.rights.read_only { Protection::Read } else { Protection::ReadWrite };
            let mut done = 0;
            while done < run.bytes {
                let at = start.offset(done);
                let left = run.bytes - done;
                let bytes = match memory.file(at) {
                    Some(file) => {
                        let bytes = left.min(file.bytes);
                        let va = run.va + done;
                        let piece = Piece { target: Target::Memory(at), file: file.number, protection };
                        out.push((va..va + bytes, piece));
                        bytes
                    }
                    None => left.min(HUGE_PAGE - at.address % HUGE_PAGE),
                };
                done += bytes;
            }
        }
        (range.start + bytes, out)
    }

    /// Changes a range of the window, as far as the budget has map entries for it.
    fn apply(&self, chip: &Chip, mirror: &mut Mirror, change: Change) {
        let Change { mut range, mut to } = change;
        if !self.reserve(mirror, &range, to) {
            log_limit::warn!(
                budget = self.budget,
                "no entries of the host's memory map are left for an address space: what it maps next is not there"
            );
            to = None;
            if !self.reserve(mirror, &range, None) {
                // No room for the hole: the whole of what it would split goes, which takes none.
                let whole = |at| mirror.pieces.get(at).map(|(whole, _)| whole);
                range.start = whole(range.start).map_or(range.start, |whole| whole.start);
                range.end = whole(range.end - 1).map_or(range.end, |whole| whole.end);
                self.reserve(mirror, &range, None);
            }
        }
        self.empty(chip, mirror, &range, to.is_none());
        if let Some(piece) = to {
            let (offset, bytes) = (range.start - self.lo, range.end - range.start);
            let mapped = match piece.target {
                Target::Memory(at) => match chip.memory.file(at) {
                    Some(found) if found.number == piece.file && bytes <= found.bytes => {
                        self.window.map(offset, &found.file, found.offset, bytes, piece.protection)
                    }
                    // Gone, or another's since the tables were read.
                    _ => Err(io::ErrorKind::NotFound.into()),
                },
                Target::Sparse => self.window.map_sparse(offset, bytes),
            };
            match mapped {
                Ok(()) => mirror.insert(range, piece),
                Err(error) => {
                    tracing::debug!(%error, "pages not mapped; accesses will fault");
                    self.unmap(chip, offset, bytes);
                    // They were charged as mapped.
                    let gain = mirror.gain(&range, Some(piece));
                    self.charge_maps(mirror, -gain);
                }
            }
        }
    }

    /// Charges what the map takes after a change. What it takes less is given back; false if it would be more than there is.
    fn reserve(&self, mirror: &mut Mirror, range: &Range<u64>, to: Option<Piece>) -> bool {
        let gain = mirror.gain(range, to);
        self.charge_maps(mirror, gain)
    }

    fn charge_maps(&self, mirror: &mut Mirror, gain: i32) -> bool {
        let maps = mirror.maps.saturating_add_signed(gain);
        let fits = self.budgets.change_maps(self.budget, mirror.maps, maps);
        if fits {
            mirror.maps = maps;
        }
        fits
    }

    /// Takes out of the window and the mirror what lies in a range, in steps; of a small range that will show something
    /// else at once, out of the mirror only.
    fn empty(&self, chip: &Chip, mirror: &mut Mirror, range: &Range<u64>, stays_empty: bool) {
        let cuts = mirror.pieces.cut_with(range.clone(), Piece::offset);
        if !stays_empty && range.end - range.start <= STEP_BYTES {
            return;
        }
        for cut in cuts {
            let mut at = cut.part.start;
            while at < cut.part.end {
                let bytes = (cut.part.end - at).min(STEP_BYTES);
                self.unmap(chip, at - self.lo, bytes);
                at += bytes;
            }
        }
    }

    /// Takes pages out of the window. There are entries for it; if the host refuses all the same, old pages must not stay
    /// for whoever gets their memory next.
    fn unmap(&self, chip: &Chip, offset: u64, bytes: u64) {
        let Err(error) = self.window.unmap(offset, bytes) else { return };
        log_limit::error!(%error, "pages cannot be taken out of an address space: the device is given up");
        chip.lost.store(true, Ordering::SeqCst);
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, memory: &Memory, va: u64, out: &mut [u8]) -> Result<(), Refused> {
        let bytes = out.len() as u64;
        self.offset(va)
            .and_then(|at| self.window.read(at, out))
            .map_err(|_| self.refused(memory, va, bytes, Access::READ))
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, memory: &Memory, va: u64, data: &[u8]) -> Result<(), Refused> {
        self.offset(va)
            .and_then(|at| self.window.write(at, data))
            .map_err(|_| self.refused(memory, va, data.len() as u64, Access::WRITE))
    }

    /// Says that bytes are about to be written. A hint ([`Window::expect_writes`]).
    pub(crate) fn expect_writes(&self, va: u64, bytes: u64) {
        if let Ok(offset) = self.offset(va) {
            self.window.expect_writes(offset, bytes);
        }
    }

    /// Replaces a naturally aligned 4- or 8-byte value atomically; gives the old one.
    pub(crate) fn update(
        &self,
        memory: &Memory,
        va: u64,
        bytes: u32,
        f: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Refused> {
        self.offset(va)
            .and_then(|at| self.window.update(at, bytes, f))
            .map_err(|_| self.refused(memory, va, bytes.into(), Access::ATOMIC))
    }

    /// Copies inside the space.
    pub(crate) fn copy(&self, memory: &Memory, dst: u64, src: u64, bytes: u64) -> Result<(), Refused> {
        let copied = match (self.offset(dst), self.offset(src)) {
            (Ok(dst), Ok(src)) => self.window.copy(dst, src, bytes),
            _ => Err(WindowError::Unmapped),
        };
        copied.map_err(|_| {
            let readable = self.offset(src).and_then(|at| self.window.probe(at, bytes, false));
            match readable {
                Err(_) => self.refused(memory, src, bytes, Access::READ),
                Ok(()) => self.refused(memory, dst, bytes, Access::WRITE),
            }
        })
    }

    /// Whether an address is mapped to VRAM, or to system memory; `None` if to neither. Who asks for both ends of a copy names
    /// them, 0 or 1: the page of each that was asked for last is remembered, as long as the space stays as it is.
    pub(crate) fn is_vram(&self, memory: &Memory, va: u64, end: usize) -> Option<bool> {
        const KNOWN: u64 = 1;
        const VRAM: u64 = 2;
        let page = ((va / SMALL_PAGE) << 2) | KNOWN;
        let found = self.ends[end].load(Ordering::Relaxed);
        if found & !VRAM == page {
            return Some(found & VRAM != 0);
        }
        let changes = self.changes.load(Ordering::SeqCst);
        let Ok(Translation { target: Target::Memory(at), .. }) = translate(memory, self.root, va, Access::READ) else {
            return None;
        };
        let is_vram = at.aperture == Aperture::Vram;
        self.ends[end].store(page | if is_vram { VRAM } else { 0 }, Ordering::SeqCst);
        if self.changes.load(Ordering::SeqCst) != changes {
            self.ends[end].store(0, Ordering::SeqCst);
        }
        Some(is_vram)
    }

    fn offset(&self, va: u64) -> Result<u64, WindowError> {
        va.checked_sub(self.lo).ok_or(WindowError::Unmapped)
    }

    /// Why the MMU refuses an access that the window refused: the first page that it cannot have.
    pub(crate) fn refused(&self, memory: &Memory, va: u64, bytes: u64, access: Access) -> Refused {
        let write = access.kind != gmmu::AccessKind::Read;
        let end = va.saturating_add(bytes.max(1));
        let mut at = va;
        while at < end {
            let next = (at & !(SMALL_PAGE - 1)).saturating_add(SMALL_PAGE).min(end);
            let reachable = self.offset(at).and_then(|offset| self.window.probe(offset, next - at, write));
            if reachable.is_err() {
                break;
            }
            at = next;
        }
        // Pages that the tables have, but not the window, wait for an invalidate: the old entry was none.
        let kind = match translate(memory, self.root, at.min(end - 1), access) {
            Err(kind) => kind,
            Ok(_) if at < self.lo || at - self.lo >= self.window.bytes() => FaultType::VA_LIMIT_VIOLATION,
            Ok(_) => FaultType::PTE,
        };
        Refused { address: at.min(end - 1), kind, access: access.kind }
    }
}

/// The smallest window that holds all that is mapped.
fn extent(memory: &Memory, root: PhysAddr) -> (u64, u64) {
    let mut runs = mappings(memory, root, 0..VA_END, MAX_TABLES).runs;
    runs.retain(|run| run.target != Target::Sparse);
    let lo = runs.first().map_or(0, |run| run.va) & !(HUGE_PAGE - 1);
    let end = runs.last().map_or(lo, |run| run.va + run.bytes).next_multiple_of(HUGE_PAGE);
    (lo, end - lo)
}

/// A range that is to show something else.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Change {
    range: Range<u64>,
    to: Option<Piece>,
}

/// What has to change inside `range` to get from the mirror to the wanted pieces (sorted, inside the range).
fn differences(mirror: &IntervalMap<Piece>, wanted: &[(Range<u64>, Piece)], range: Range<u64>) -> Vec<Change> {
    let mut old = mirror.overlapping(range.clone()).map(|(whole, piece)| (whole, *piece)).peekable();
    let mut new = wanted.iter().cloned().peekable();
    let mut out: Vec<Change> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        while old.next_if(|(whole, _)| whole.end <= at).is_some() {}
        while new.next_if(|(whole, _)| whole.end <= at).is_some() {}
        let (has, has_until) = here(old.peek(), at, range.end);
        let (wants, wants_until) = here(new.peek(), at, range.end);
        let until = has_until.min(wants_until);
        if has != wants {
            match (out.last_mut(), wants) {
                (Some(last), None) if last.to.is_none() && last.range.end == at => last.range.end = until,
                (Some(Change { range, to: Some(last) }), Some(piece))
                    if range.end == at && last.offset(at - range.start) == piece =>
                {
                    range.end = until;
                }
                _ => out.push(Change { range: at..until, to: wants }),
            }
        }
        at = until;
    }
    out
}

/// What a piece shows at `at`, if it covers it, and how far that answer holds.
fn here(next: Option<&(Range<u64>, Piece)>, at: u64, end: u64) -> (Option<Piece>, u64) {
    match next {
        Some((whole, piece)) if whole.start <= at => (Some(piece.offset(at - whole.start)), whole.end.min(end)),
        Some((whole, _)) => (None, whole.start.min(end)),
        None => (None, end),
    }
}

/// All address spaces in use, by page directory.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    /// Held for some instructions only. Places whose space is gone go when another comes.
    map: Mutex<HashMap<PhysAddr, Arc<Slot>>>,
    /// Spaces by budget; those that are gone go when others come or are asked for. Held for some instructions only.
    of_budgets: Mutex<HashMap<u32, Vec<Weak<Space>>>>,
}

/// The place of a space.
#[derive(Debug, Default)]
struct Slot {
    /// Held while the space is made: who wants the same one waits, and nobody else.
    making: Mutex<()>,
    /// Held for some instructions only.
    space: Mutex<Weak<Space>>,
    /// There was an invalidate: whoever makes the space looks again at what it may have read before.
    invalidated: AtomicBool,
}

impl Spaces {
    /// Binds a channel to the space of a page directory; it is made if no other is bound to it, with such a window.
    pub(crate) fn bind(&self, chip: &Chip, root: PhysAddr, window: (u64, u64), budget: u32) -> io::Result<Bound> {
        let slot = {
            let mut map = self.map.lock();
            // Who makes one has its slot.
            let is_used = |slot: &Arc<Slot>| Arc::strong_count(slot) > 1 || slot.space.lock().strong_count() > 0;
            map.retain(|other, slot| *other == root || is_used(slot));
            Arc::clone(map.entry(root).or_default())
        };
        let _making = slot.making.lock();
        let old = slot.space.lock().upgrade();
        if let Some(old) = old {
            if let Some(bound) = old.bind() {
                return Ok(bound);
            }
            // Invalidates will not find it any more.
            old.close();
            chip.background.discard(Rubbish::new(&chip.budgets, vec![Trash::Space(old)]));
        }
        slot.invalidated.store(false, Ordering::SeqCst);
        let mut space = Space::new(chip, root, window, budget)?;
        *space.bound.get_mut() = 1;
        let bound = Bound { space: Arc::new(space) };
        let space = &bound.space;
        *slot.space.lock() = Arc::downgrade(space);
        {
            let mut of_budgets = self.of_budgets.lock();
            let spaces = of_budgets.entry(budget).or_default();
            spaces.retain(|other| other.strong_count() > 0);
            spaces.push(Arc::downgrade(space));
        }
        while slot.invalidated.swap(false, Ordering::SeqCst) {
            space.sync(chip, 0..VA_END);
        }
        Ok(bound)
    }

    /// The spaces whose map entries a budget is charged for. Dropping the last of those who have one takes long.
    pub(crate) fn of_budget(&self, budget: u32) -> Vec<Arc<Space>> {
        let mut of_budgets = self.of_budgets.lock();
        let Some(spaces) = of_budgets.get_mut(&budget) else { return Vec::new() };
        spaces.retain(|space| space.strong_count() > 0);
        spaces.iter().filter_map(Weak::upgrade).collect()
    }

    /// The space of one page directory, or all. Those that are being made are told that tables have changed.
    pub(crate) fn find(&self, root: Option<PhysAddr>) -> Vec<Weak<Space>> {
        let slots: Vec<Arc<Slot>> = {
            let map = self.map.lock();
            match root {
                Some(root) => map.get(&root).cloned().into_iter().collect(),
                None => map.values().cloned().collect(),
            }
        };
        slots.iter().map(|slot| slot.invalidate()).collect()
    }

    /// A TLB invalidate: of one page directory or of all.
    pub(crate) fn invalidate(&self, chip: &Chip, root: Option<PhysAddr>, range: &Range<u64>) {
        for space in self.find(root).iter().filter_map(Weak::upgrade) {
            space.sync(chip, range.clone());
        }
    }
}

impl Slot {
    /// The space that is here; one that is being made is told.
    fn invalidate(&self) -> Weak<Space> {
        // Before the look: who puts a space here afterwards sees this.
        self.invalidated.store(true, Ordering::SeqCst);
        Weak::clone(&self.space.lock())
    }
}

#[cfg(test)]
mod tests {
    use ptx_jit::EngineKind;
    use ptx_jit::compiler::Threads;

    use super::*;

    type Pages = (u64, Piece);

    fn piece(pages: u64, at: u64) -> Pages {
        let target = Target::Memory(PhysAddr::vram(at << 12));
        (pages, Piece { target, file: 1, protection: Protection::ReadWrite })
    }

    fn check(old: &[(u64, Pages)], new: &[(u64, Pages)], range: Range<u64>, expect: &[(u64, u64, Option<u64>)]) {
        let page = |va: u64| va << 12;
        let run = |&(va, (pages, piece)): &(u64, Pages)| (page(va)..page(va + pages), piece);
        let mut mirror = IntervalMap::new();
        for (range, piece) in old.iter().map(run) {
            mirror.insert(range, piece).unwrap();
        }
        let new: Vec<(Range<u64>, Piece)> = new.iter().map(run).collect();
        let changes = differences(&mirror, &new, page(range.start)..page(range.end));
        let shown = |piece: Piece| match piece.target {
            Target::Memory(at) => at.address >> 12,
            Target::Sparse => u64::MAX,
        };
        let seen: Vec<_> = changes.iter().map(|c| (c.range.start >> 12, c.range.end >> 12, c.to.map(shown))).collect();
        assert_eq!(seen, expect);
        for change in changes {
            mirror.cut_with(change.range.clone(), Piece::offset);
            if let Some(piece) = change.to {
                mirror.insert(change.range, piece).unwrap();
            }
        }
        assert_eq!(differences(&mirror, &new, page(range.start)..page(range.end)), []);
    }

    #[test]
    fn entries_of_the_hosts_map_are_counted_as_they_change() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut mirror = Mirror::default();
        for _ in 0..2000 {
            let start = next(40);
            let range = start..start + 1 + next(9);
            let target = match next(4) {
                0 => Target::Sparse,
                // Often what goes on next to it.
                _ => Target::Memory(PhysAddr::vram(next(2) * 100 + start)),
            };
            let to = (next(2) == 0).then_some(Piece { target, file: 1, protection: Protection::ReadWrite });
            let gain = mirror.gain(&range, to);
            mirror.pieces.cut_with(range.clone(), Piece::offset);
            to.into_iter().for_each(|piece| mirror.insert(range.clone(), piece));
            mirror.maps = mirror.maps.strict_add_signed(gain);
            let pieces: Vec<Run> = mirror.pieces.iter().map(|(whole, piece)| (whole, *piece)).collect();
            let gaps = pieces.iter().filter(|(whole, _)| mirror.pieces.get(whole.end).is_none()).count();
            assert_eq!(mirror.maps as usize, pieces.len() + gaps, "{pieces:?}");
            let joined = |two: &[Run]| {
                two[0].0.end == two[1].0.start && two[0].1.goes_on(two[0].0.end - two[0].0.start, &two[1].1)
            };
            assert!(!pieces.windows(2).any(joined), "{pieces:?}");
        }
    }

    #[test]
    fn a_page_directory_used_again_is_another_space() {
        let memory = Memory::new(HUGE_PAGE).unwrap();
        let chip = Chip::new(memory, (EngineKind::Jit, None), Arc::new(Threads::default()), 1, Weak::new());
        let bind = |bytes| chip.spaces.bind(&chip, PhysAddr::vram(0), (0, bytes), 0).unwrap();
        let first = bind(HUGE_PAGE);
        let second = bind(2 * HUGE_PAGE);
        assert!(Arc::ptr_eq(first.space(), second.space()), "bound at the same time");
        // Somebody still has it when the last channel is unbound.
        let held = Arc::clone(first.space());
        drop(first);
        assert!(Arc::ptr_eq(&held, bind(HUGE_PAGE).space()));
        drop(second);
        let next = bind(2 * HUGE_PAGE);
        assert!(!Arc::ptr_eq(&held, next.space()) && held.number != next.space().number);
        assert_eq!(next.space().window().bytes(), 2 * HUGE_PAGE);
        // What still runs in the old one sees nothing of what the tables say now.
        assert!(held.mirror.lock().closed && held.sync_part(&chip, 0..VA_END).is_none());
        assert!(Arc::ptr_eq(next.space(), bind(HUGE_PAGE).space()));
    }

    /// However many channels are being bound to it.
    #[test]
    fn invalidates_find_every_space() {
        let memory = Memory::new(HUGE_PAGE).unwrap();
        let chip = Chip::new(memory, (EngineKind::Jit, None), Arc::new(Threads::default()), 1, Weak::new());
        let root = PhysAddr::vram(0);
        let bind = || chip.spaces.bind(&chip, root, (0, HUGE_PAGE), 0).unwrap();
        let first = bind();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        drop(bind());
                    }
                });
            }
            let missed = (0..100_000).filter(|at| {
                let root = (at % 2 == 0).then_some(root);
                chip.spaces.find(root).iter().filter_map(Weak::upgrade).count() != 1
            });
            let missed = missed.count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
        drop(first);
    }

    #[test]
    fn only_differences_are_applied() {
        check(&[], &[(4, piece(4, 100))], 0..16, &[(4, 8, Some(100))]);
        check(&[(4, piece(4, 100))], &[(4, piece(4, 100))], 0..16, &[]);
        check(&[(4, piece(4, 100))], &[], 0..16, &[(4, 8, None)]);
        check(&[(4, piece(4, 100))], &[], 5..6, &[(5, 6, None)]);
        check(&[(4, piece(4, 100))], &[(5, piece(1, 101))], 0..16, &[(4, 5, None), (6, 8, None)]);
        check(&[(4, piece(4, 100))], &[(4, piece(8, 100))], 0..16, &[(8, 12, Some(104))]);
        check(&[(4, piece(2, 100)), (8, piece(2, 104))], &[(2, piece(8, 50))], 0..16, &[(2, 10, Some(50))]);
        let read_only = (4, Piece { protection: Protection::Read, ..piece(4, 100).1 });
        check(&[(4, piece(4, 100))], &[(4, read_only)], 0..16, &[(4, 8, Some(100))]);
        let sparse = |pages: u64| (pages, Piece { target: Target::Sparse, file: 0, protection: Protection::Sparse });
        check(&[(4, sparse(4))], &[(2, sparse(8))], 0..16, &[(2, 4, Some(u64::MAX)), (8, 10, Some(u64::MAX))]);
        check(&[(4, sparse(4))], &[(4, sparse(2)), (6, piece(2, 9))], 0..16, &[(6, 8, Some(9))]);
        check(&[(4, piece(4, 100))], &[(5, sparse(3))], 4..8, &[(4, 5, None), (5, 8, Some(u64::MAX))]);
    }
}
