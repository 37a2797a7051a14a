//! GPU address spaces: page tables, mirrored by a window of host addresses.
//!
//! A space is named by its page directory. Channels that are bound to the same one share a [`Space`]; it goes with the
//! last of them. What page tables say reaches the window when the space is made, and then at TLB invalidates, of the range
//! that they name: as with a real TLB, edits are not seen before.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};

use gmmu::{Access, Target, mappings, translate};
use gpu_spec::fault::FaultType;
use gpu_spec::mmu::{HUGE_PAGE, PhysAddr, SMALL_PAGE, VA_END};
use hostmem::{Protection, Window, WindowError};
use parking_lot::Mutex;

use crate::memory::Memory;
use crate::program::Programs;

/// Most tables read at one synchronization: page tables made of garbage would fan out for hours. Enough for 128 GiB in
/// pages of 4 KiB, and for everything in larger ones.
const MAX_TABLES: u32 = 1 << 16;
/// Most separate runs of pages in a window: each costs the host an entry of its map, and a process has 65,530.
const MAX_PIECES: usize = 1 << 13;
/// Largest window, bytes: a process has 2^47 bytes of addresses for all of them.
const MAX_WINDOW: u64 = 1 << 40;

/// What the window shows in a run of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    bytes: u64,
    target: Target,
    protection: Protection,
}

impl Piece {
    /// The part of it that begins `skip` bytes behind its start.
    fn from(self, skip: u64) -> Piece {
        Piece { bytes: self.bytes - skip, target: self.target.offset(skip), ..self }
    }

    /// True if it shows the same as `other`, whatever their lengths.
    fn shows(&self, other: &Piece) -> bool {
        (self.target, self.protection) == (other.target, other.protection)
    }
}

/// An address space in use.
#[derive(Debug)]
pub(crate) struct Space {
    root: PhysAddr,
    lo: u64,
    window: Arc<Window>,
    /// What is mapped in the window, by address. Held over a whole synchronization, so that two never mix.
    mirror: Mutex<BTreeMap<u64, Piece>>,
    pub(crate) programs: Programs,
}

/// Why an access is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// First address that cannot be accessed.
    pub(crate) address: u64,
    pub(crate) kind: FaultType,
    pub(crate) access: gmmu::AccessKind,
}

impl Space {
    /// Reserves the window `lo`, `bytes`; of 0 bytes: one that holds what is mapped to memory now.
    fn new(memory: &Memory, root: PhysAddr, lo: u64, bytes: u64) -> io::Result<Space> {
        let (lo, bytes) = if bytes == 0 { extent(memory, root) } else { (lo, bytes) };
        let end = lo.checked_add(bytes);
        let good = lo.is_multiple_of(HUGE_PAGE) && bytes.is_multiple_of(HUGE_PAGE) && bytes <= MAX_WINDOW;
        if !good || bytes == 0 || end.is_none_or(|end| end > VA_END) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "window is not whole 2 MiB of the address space"));
        }
        let window = Arc::new(Window::reserve(bytes)?);
        let space = Space { root, lo, window, mirror: Mutex::default(), programs: Programs::default() };
        space.sync(memory, 0..VA_END);
        Ok(space)
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
    pub(crate) fn sync(&self, memory: &Memory, range: Range<u64>) {
        let range = range.start.max(self.lo) & !(SMALL_PAGE - 1)
            ..range.end.min(self.lo + self.window.bytes()).next_multiple_of(SMALL_PAGE);
        if range.start >= range.end {
            return;
        }
        let mut mirror = self.mirror.lock();
        let wanted = self.wanted(memory, range.clone());
        for change in differences(&mirror, &wanted, range) {
            self.apply(memory, &mut mirror, change);
        }
    }

    /// The pieces that the page tables ask for, split where memory files end; what is no memory is left out.
    fn wanted(&self, memory: &Memory, range: Range<u64>) -> Vec<(u64, Piece)> {
        let mut out = Vec::new();
        for run in mappings(memory, self.root, range, MAX_TABLES).runs {
            // No channel's engines have the privilege that such pages ask for.
            if run.rights.privileged {
                continue;
            }
            let Target::Memory(start) = run.target else {
                let piece = Piece { bytes: run.bytes, target: Target::Sparse, protection: Protection::Sparse };
                out.push((run.va, piece));
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
                        out.push((run.va + done, Piece { bytes, target: Target::Memory(at), protection }));
                        bytes
                    }
                    None => left.min(HUGE_PAGE - at.address % HUGE_PAGE),
                };
                done += bytes;
            }
        }
        out
    }

    fn apply(&self, memory: &Memory, mirror: &mut BTreeMap<u64, Piece>, change: Change) {
        let Change { range, to } = change;
        let (offset, bytes) = (range.start - self.lo, range.end - range.start);
        cut(mirror, &range);
        let mapped = to.filter(|_| mirror.len() < MAX_PIECES).and_then(|piece| {
            let result = match piece.target {
                Target::Memory(at) => {
                    let file = memory.file(at)?;
                    self.window.map(offset, &file.file, file.offset, bytes, piece.protection)
                }
                Target::Sparse => self.window.map_sparse(offset, bytes),
            };
            result.inspect_err(|error| tracing::debug!(%error, "pages not mapped; accesses will fault")).ok()?;
            Some(piece)
        });
        if let Some(piece) = mapped {
            mirror.insert(range.start, piece);
        } else if let Err(error) = self.window.unmap(offset, bytes) {
            // The host is out of map entries. Old pages must not stay: the whole window goes, which needs none.
            tracing::warn!(%error, "an address space was emptied: its pages could not be taken out one by one");
            mirror.clear();
            if let Err(error) = self.window.unmap(0, self.window.bytes()) {
                panic!("cannot take pages out of an address space: {error}");
            }
        }
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
fn differences(mirror: &BTreeMap<u64, Piece>, wanted: &[(u64, Piece)], range: Range<u64>) -> Vec<Change> {
    let first = mirror.range(..range.start).next_back().filter(|(va, piece)| *va + piece.bytes > range.start);
    let mut old = first.into_iter().chain(mirror.range(range.clone())).map(|(va, piece)| (*va, *piece)).peekable();
    let mut new = wanted.iter().copied().peekable();
    let mut out: Vec<Change> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        while old.next_if(|(va, piece)| va + piece.bytes <= at).is_some() {}
        while new.next_if(|(va, piece)| va + piece.bytes <= at).is_some() {}
        let (has, has_until) = here(old.peek().copied(), at, range.end);
        let (wants, wants_until) = here(new.peek().copied(), at, range.end);
        let until = has_until.min(wants_until);
        let same = match (has, wants) {
            (Some(has), Some(wants)) => has.shows(&wants),
            (has, wants) => has == wants,
        };
        if !same {
            let to = wants.map(|piece| Piece { bytes: until - at, ..piece });
            match (out.last_mut(), to) {
                (Some(last), None) if last.to.is_none() && last.range.end == at => last.range.end = until,
                (Some(Change { range, to: Some(last) }), Some(piece))
                    if range.end == at
                        && last.target.offset(last.bytes) == piece.target
                        && last.protection == piece.protection =>
                {
                    range.end = until;
                    last.bytes += piece.bytes;
                }
                _ => out.push(Change { range: at..until, to }),
            }
        }
        at = until;
    }
    out
}

/// The part of a piece from `at` on, if it covers `at`, and how far that answer holds.
fn here(next: Option<(u64, Piece)>, at: u64, end: u64) -> (Option<Piece>, u64) {
    match next {
        Some((va, piece)) if va <= at => (Some(piece.from(at - va)), (va + piece.bytes).min(end)),
        Some((va, _)) => (None, va.min(end)),
        None => (None, end),
    }
}

/// Removes a range from the mirror, splitting pieces that reach beyond.
fn cut(mirror: &mut BTreeMap<u64, Piece>, range: &Range<u64>) {
    let touched: Vec<(u64, Piece)> = mirror
        .range(..range.end)
        .rev()
        .take_while(|(va, piece)| *va + piece.bytes > range.start)
        .map(|(va, piece)| (*va, *piece))
        .collect();
    for (va, piece) in touched {
        mirror.remove(&va);
        if va < range.start {
            mirror.insert(va, Piece { bytes: range.start - va, ..piece });
        }
        if va + piece.bytes > range.end {
            mirror.insert(range.end, piece.from(range.end - va));
        }
    }
}

/// All address spaces in use, by page directory.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    map: Mutex<HashMap<PhysAddr, Weak<Space>>>,
}

impl Spaces {
    /// The space of a page directory, made if there is none.
    pub(crate) fn get(&self, memory: &Memory, root: PhysAddr, lo: u64, bytes: u64) -> io::Result<Arc<Space>> {
        let mut map = self.map.lock();
        if let Some(space) = map.get(&root).and_then(Weak::upgrade) {
            return Ok(space);
        }
        map.retain(|_, space| space.strong_count() > 0);
        let space = Arc::new(Space::new(memory, root, lo, bytes)?);
        map.insert(root, Arc::downgrade(&space));
        Ok(space)
    }

    /// A TLB invalidate: of one page directory or of all.
    pub(crate) fn invalidate(&self, memory: &Memory, root: Option<PhysAddr>, range: Range<u64>) {
        let spaces: Vec<Arc<Space>> = {
            let map = self.map.lock();
            match root {
                Some(root) => map.get(&root).and_then(Weak::upgrade).into_iter().collect(),
                None => map.values().filter_map(Weak::upgrade).collect(),
            }
        };
        for space in spaces {
            space.sync(memory, range.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(pages: u64, at: u64) -> Piece {
        let target = Target::Memory(PhysAddr::vram(at << 12));
        Piece { bytes: pages << 12, target, protection: Protection::ReadWrite }
    }

    fn check(old: &[(u64, Piece)], new: &[(u64, Piece)], range: Range<u64>, expect: &[(u64, u64, Option<u64>)]) {
        let page = |va: u64| va << 12;
        let mut mirror: BTreeMap<u64, Piece> = old.iter().map(|(va, p)| (page(*va), *p)).collect();
        let new: Vec<(u64, Piece)> = new.iter().map(|(va, p)| (page(*va), *p)).collect();
        let changes = differences(&mirror, &new, page(range.start)..page(range.end));
        let shown = |piece: Piece| match piece.target {
            Target::Memory(at) => at.address >> 12,
            Target::Sparse => u64::MAX,
        };
        let seen: Vec<_> = changes.iter().map(|c| (c.range.start >> 12, c.range.end >> 12, c.to.map(shown))).collect();
        assert_eq!(seen, expect);
        for change in changes {
            cut(&mut mirror, &change.range);
            change.to.map(|piece| mirror.insert(change.range.start, piece));
        }
        assert_eq!(differences(&mirror, &new, page(range.start)..page(range.end)), []);
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
        let read_only = Piece { protection: Protection::Read, ..piece(4, 100) };
        check(&[(4, piece(4, 100))], &[(4, read_only)], 0..16, &[(4, 8, Some(100))]);
        let sparse = |pages: u64| Piece { bytes: pages << 12, target: Target::Sparse, protection: Protection::Sparse };
        check(&[(4, sparse(4))], &[(2, sparse(8))], 0..16, &[(2, 4, Some(u64::MAX)), (8, 10, Some(u64::MAX))]);
        check(&[(4, sparse(4))], &[(4, sparse(2)), (6, piece(2, 9))], 0..16, &[(6, 8, Some(9))]);
        check(&[(4, piece(4, 100))], &[(5, sparse(3))], 4..8, &[(4, 5, None), (5, 8, Some(u64::MAX))]);
    }
}
