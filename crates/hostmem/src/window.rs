//! A reserved range of host addresses into which pages of memory files are mapped.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use intervals::IntervalMap;
use rustix::mm::{MapFlags, ProtFlags};

use crate::growth::Growth;
use crate::huge::{self, HUGE};
use crate::{HostRange, Memfd, PAGE};

/// Inaccessible bytes behind a window's end: an access that begins inside never reaches foreign memory.
const GUARD: u64 = 1 << 20;

/// What may be done with mapped pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
    /// There is no memory: reads give zero, what is written vanishes ([`Window::map_sparse`]).
    Sparse,
}

/// Why a checked access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WindowError {
    /// A byte of it lies outside the window or on no page.
    #[error("no page there")]
    Unmapped,
    /// A write to a page mapped for reading.
    #[error("page is read-only")]
    ReadOnly,
    /// An atomic that is not naturally aligned, or of no size that exists.
    #[error("misaligned")]
    Misaligned,
}

/// What is mapped, by offset.
type Runs = IntervalMap<Protection>;

/// A reservation of host addresses, inaccessible but where pages have been mapped.
///
/// Two kinds of user: engines access it raw, through its address, and take a SIGSEGV for an unmapped page and for a write
/// to a sparse one; everybody else uses the checked methods here. Both at once, and while pages are mapped and unmapped, is
/// fine.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    bytes: u64,
    /// Guards the mappings against change during a checked access.
    runs: RwLock<Runs>,
    /// Held while huge pages are asked for, by block.
    asking: [Mutex<()>; 8],
    growth: Mutex<Growth>,
}

// SAFETY: a window is plain memory; checked access is by raw copies and atomics under the lock.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves `bytes` (whole pages) of inaccessible addresses, aligned to 2 MiB, with an inaccessible guard behind.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn reserve(bytes: u64) -> io::Result<Window> {
        let bytes = bytes.max(PAGE).next_multiple_of(PAGE);
        let whole = usize::try_from(bytes + GUARD).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let base = huge::reserve(whole, 0)?;
        Ok(Window { base, bytes, runs: RwLock::default(), asking: Default::default(), growth: Mutex::default() })
    }

    /// Host address of offset 0.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Size in bytes, guard not counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let fits = offset <= self.bytes && bytes <= self.bytes - offset;
        if bytes == 0 || !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) || !fits {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the window"));
        }
        Ok(())
    }

    /// Maps `bytes` of `file` from `file_offset` at `offset` (all whole pages), in place of what was there.
    ///
    /// # Errors
    /// `InvalidInput` if a range is not whole pages, or not inside; else what the operating system says.
    pub fn map(
        &self,
        offset: u64,
        file: &Memfd,
        file_offset: u64,
        bytes: u64,
        protection: Protection,
    ) -> io::Result<()> {
        self.check(offset, bytes)?;
        let in_file = file_offset <= file.bytes() && bytes <= file.bytes() - file_offset;
        if !in_file || !file_offset.is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the memory file"));
        }
        let prot = match protection {
            Protection::Read => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Protection::Sparse => return self.map_sparse(offset, bytes),
        };
        let mut runs = self.runs.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the offset was checked to be inside the reservation.
        let at = unsafe { self.base.as_ptr().add(offset as usize) };
        // SAFETY: MAP_FIXED replaces only pages of our own reservation; checked users are kept out by the lock, engines
        // expect pages to change under them.
        unsafe {
            rustix::mm::mmap(
                at.cast(),
                bytes as usize,
                prot,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                file,
                file_offset,
            )
        }?;
        replace(&mut runs, offset, bytes, protection);
        Ok(())
    }

    /// Makes a range (whole pages) sparse, in place of what was there: reads give zero, what is written through the checked
    /// methods vanishes. It costs no memory: all its pages are the operating system's one page of zeros.
    ///
    /// # Errors
    /// As [`Window::unmap`].
    pub fn map_sparse(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut runs = self.empty(offset, bytes, ProtFlags::READ)?;
        replace(&mut runs, offset, bytes, Protection::Sparse);
        Ok(())
    }

    /// Makes a range (whole pages) inaccessible again.
    ///
    /// # Errors
    /// `InvalidInput` if the range is not whole pages, or not inside; else what the operating system says.
    pub fn unmap(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.empty(offset, bytes, ProtFlags::empty()).map(drop)
    }

    /// Replaces a range by pages without memory; gives the runs, in which the range is none any more.
    fn empty(&self, offset: u64, bytes: u64, prot: ProtFlags) -> io::Result<RwLockWriteGuard<'_, Runs>> {
        self.check(offset, bytes)?;
        let mut runs = self.runs.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the offset was checked to be inside the reservation.
        let at = unsafe { self.base.as_ptr().add(offset as usize) };
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: as in `map`.
        unsafe { rustix::mm::mmap_anonymous(at.cast(), bytes as usize, prot, flags) }?;
        runs.cut(offset..offset + bytes);
        Ok(runs)
    }

    /// The mapped runs, by increasing offset: offset, bytes, protection.
    #[must_use]
    pub fn runs(&self) -> Vec<(u64, u64, Protection)> {
        self.lock().iter().map(|(run, protection)| (run.start, run.end - run.start, *protection)).collect()
    }

    fn lock(&self) -> RwLockReadGuard<'_, Runs> {
        self.runs.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What an access to `bytes` at `offset` would meet.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn probe(&self, offset: u64, bytes: u64, write: bool) -> Result<(), WindowError> {
        allowed(&self.lock(), offset, bytes, write).map(drop)
    }

    /// Copies bytes out, if all of them are mapped.
    ///
    /// # Errors
    /// The range is not all inside the window, or a page of it cannot be read.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), WindowError> {
        self.with(offset, out.len() as u64, false, |range| range.read(out))
    }

    /// Copies bytes in, if all of them are mapped writable or sparse.
    ///
    /// # Errors
    /// The range is not all inside the window, or a page of it cannot be written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), WindowError> {
        let runs = self.lock();
        allowed(&runs, offset, data.len() as u64, true)?;
        for (at, bytes) in with_memory(&runs, offset, data.len() as u64) {
            let from = (at - offset) as usize;
            self.range(at, bytes).write(&data[from..from + bytes as usize]);
        }
        Ok(())
    }

    /// Calls `f` with the host range of `bytes` at `offset`, whose mapping cannot change meanwhile. Sparse pages can be
    /// read so, not written.
    ///
    /// # Errors
    /// Why the access is not allowed.
    pub fn with<R>(
        &self,
        offset: u64,
        bytes: u64,
        write: bool,
        f: impl FnOnce(HostRange<'_>) -> R,
    ) -> Result<R, WindowError> {
        let runs = self.lock();
        if allowed(&runs, offset, bytes, write)? == Backing::Sparse && write {
            return Err(WindowError::ReadOnly);
        }
        Ok(f(self.range(offset, bytes)))
    }

    /// A range of which the caller has seen that it is mapped, and stays so: it holds the lock.
    fn range(&self, offset: u64, bytes: u64) -> HostRange<'_> {
        // SAFETY: all of it is mapped while the lock is held.
        unsafe { HostRange::new(self.address() + offset as usize, bytes as usize) }
    }

    /// Says that `bytes` at `offset` are about to be written: what of them was never touched will get huge pages, where the memory file
    /// is mapped at offsets that are alike modulo 2 MiB. A hint.
    pub fn expect_writes(&self, offset: u64, bytes: u64) {
        if bytes < huge::MUCH as u64 || !huge::are_wanted() {
            return;
        }
        let offsets = offset..offset.saturating_add(bytes);
        let parts: Vec<(Range<usize>, Range<usize>)> = {
            let runs = self.lock();
            let parts = |run: Range<u64>| {
                let within = run.start.max(offsets.start)..run.end.min(offsets.end);
                huge::parts(self.addresses(&within)).map(move |part| (part, run.clone()))
            };
            let parts = writable(&runs, offsets.clone()).flat_map(parts);
            parts.map(|(part, run)| (part, self.addresses(&run))).collect()
        };
        for (part, run) in parts {
            // Who writes another part of the block waits: it would take pages that the huge one is about to bring.
            let asking = &self.asking[part.start / HUGE % self.asking.len()];
            let _asking = asking.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // It may be mapped otherwise by now. It is asked only.
            huge::expect_write(&part, &run);
        }
    }

    /// For threads that write through the window's addresses, now and then: if many pages came one by one for the calling thread, looks for
    /// memory that is being written for the first time, from lower to higher addresses, and prepares huge pages for what follows. A hint; it
    /// may take milliseconds.
    pub fn expect_more(&self) {
        if !huge::has_faulted() {
            return;
        }
        let mut growth = match self.growth.try_lock() {
            Ok(growth) => growth,
            Err(TryLockError::Poisoned(growth)) => growth.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        growth.follow(|from, most| {
            let offsets = from.saturating_sub(self.address()) as u64..self.bytes;
            let (runs, range) = (self.lock(), self.addresses(&offsets));
            let blocks = |run| huge::blocks(&range, &self.addresses(&run));
            writable(&runs, offsets).flat_map(blocks).take(most).collect()
        });
    }

    /// Host addresses of a range of offsets, as far as it is inside.
    fn addresses(&self, offsets: &Range<u64>) -> Range<usize> {
        let address = |offset: u64| self.address() + offset.min(self.bytes) as usize;
        address(offsets.start)..address(offsets.end)
    }

    /// Copies `bytes` from offset `src` to offset `dst`, if all of both are mapped; the ranges may overlap.
    ///
    /// # Errors
    /// Why one of the two accesses is not allowed.
    pub fn copy(&self, dst: u64, src: u64, bytes: u64) -> Result<(), WindowError> {
        let runs = self.lock();
        allowed(&runs, src, bytes, false)?;
        let copy = |(at, bytes)| self.range(at, bytes).copy_from(self.range(src + (at - dst), bytes));
        match allowed(&runs, dst, bytes, true)? {
            Backing::Memory => copy((dst, bytes)),
            // From the end that is not overwritten before it is read.
            Backing::Sparse if dst <= src => with_memory(&runs, dst, bytes).for_each(copy),
            Backing::Sparse => with_memory(&runs, dst, bytes).rev().for_each(copy),
        }
        Ok(())
    }

    /// Atomically replaces the naturally aligned 2, 4 or 8 byte value `old` by `f(old)`; returns `old`.
    ///
    /// # Errors
    /// Why the access is not allowed.
    pub fn update(&self, offset: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, WindowError> {
        if !matches!(bytes, 2 | 4 | 8) || !offset.is_multiple_of(u64::from(bytes)) {
            return Err(WindowError::Misaligned);
        }
        let runs = self.lock();
        if allowed(&runs, offset, bytes.into(), true)? == Backing::Sparse {
            f(0);
            return Ok(0);
        }
        let range = self.range(offset, bytes.into());
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(range.address());
        Ok(match bytes {
            2 => {
                // SAFETY: mapped, aligned, alive under the lock.
                let word = unsafe { AtomicU16::from_ptr(at.cast()) };
                u64::from(
                    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v.into()) as u16)).unwrap_or(0),
                )
            }
            4 => {
                // SAFETY: mapped, aligned, alive under the lock.
                let word = unsafe { AtomicU32::from_ptr(at.cast()) };
                u64::from(
                    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v.into()) as u32)).unwrap_or(0),
                )
            }
            _ => {
                // SAFETY: mapped, aligned, alive under the lock.
                let word = unsafe { AtomicU64::from_ptr(at.cast()) };
                word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v))).unwrap_or(0)
            }
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the reservation was made by `reserve`; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), (self.bytes + GUARD) as usize) };
    }
}

/// Makes a range, which is not empty, one run, whatever was there.
fn replace(runs: &mut Runs, offset: u64, bytes: u64, protection: Protection) {
    let range = offset..offset + bytes;
    runs.cut(range.clone());
    assert_eq!(runs.insert(range, protection), Ok(()), "nothing is left where it was cut out");
}

/// Runs that may be written and have points in common with a range.
fn writable(runs: &Runs, offsets: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let runs = runs.overlapping(offsets).filter(|(_, protection)| **protection == Protection::ReadWrite);
    runs.map(|(run, _)| run)
}

/// What lies behind a range that may be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// Memory, all of it.
    Memory,
    /// Sparse pages, some of it.
    Sparse,
}

fn allowed(runs: &Runs, offset: u64, bytes: u64, write: bool) -> Result<Backing, WindowError> {
    let end = offset.checked_add(bytes).ok_or(WindowError::Unmapped)?;
    let mut backing = Backing::Memory;
    let mut at = offset;
    for (run, protection) in runs.overlapping(offset..end) {
        match protection {
            _ if run.start > at => return Err(WindowError::Unmapped),
            Protection::Read if write => return Err(WindowError::ReadOnly),
            Protection::Sparse => backing = Backing::Sparse,
            Protection::Read | Protection::ReadWrite => {}
        }
        at = run.end;
    }
    if at < end { Err(WindowError::Unmapped) } else { Ok(backing) }
}

/// The parts of a mapped range that have memory: offset and bytes.
fn with_memory(runs: &Runs, offset: u64, bytes: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> {
    let end = offset + bytes;
    let memory = runs.overlapping(offset..end).filter(|(_, protection)| **protection != Protection::Sparse);
    memory.map(move |(run, _)| {
        let start = run.start.max(offset);
        (start, run.end.min(end) - start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_splits_and_refuses() {
        let file = Memfd::create("test", 16 * PAGE).unwrap();
        let window = Window::reserve(64 * PAGE).unwrap();
        window.map(4 * PAGE, &file, 0, 16 * PAGE, Protection::ReadWrite).unwrap();
        window.write(5 * PAGE - 2, &[1, 2, 3, 4]).unwrap();
        file.map().unwrap().read(PAGE as usize - 2, &mut [0; 4]);
        window.unmap(6 * PAGE, PAGE).unwrap();
        assert_eq!(window.read(6 * PAGE - 1, &mut [0; 2]), Err(WindowError::Unmapped));
        window.map(8 * PAGE, &file, 0, PAGE, Protection::Read).unwrap();
        assert_eq!(window.write(8 * PAGE, &[1]), Err(WindowError::ReadOnly));
        let mut back = [0; 2];
        window.read(9 * PAGE - 2, &mut back).unwrap();
        assert_eq!(back, [1, 2]);
        assert_eq!(window.runs().len(), 4);
        assert!(window.map(63 * PAGE, &file, 0, 2 * PAGE, Protection::Read).is_err());
        window.copy(10 * PAGE, 5 * PAGE - 2, 4).unwrap();
        window.read(10 * PAGE, &mut back).unwrap();
        assert_eq!(back, [1, 2]);
        assert_eq!(window.copy(8 * PAGE, 4 * PAGE, 4), Err(WindowError::ReadOnly));
        assert_eq!(window.copy(4 * PAGE, 6 * PAGE, 4), Err(WindowError::Unmapped));
        assert_eq!(window.update(4 * PAGE + 2, 4, &mut |v| v + 1), Err(WindowError::Misaligned));
        assert_eq!(window.update(4 * PAGE, 4, &mut |v| v + 1), Ok(0));
        assert_eq!(window.update(4 * PAGE, 8, &mut |v| v + 1), Ok(1));
    }

    #[test]
    fn sparse_pages_read_as_zero_and_keep_nothing() {
        let file = Memfd::create("test", 8 * PAGE).unwrap();
        let memory = file.map().unwrap();
        let window = Window::reserve(64 * PAGE).unwrap();
        window.map(0, &file, 0, 8 * PAGE, Protection::ReadWrite).unwrap();
        memory.fill(0, 8 * PAGE as usize, 7);
        window.map_sparse(2 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(window.runs()[1], (2 * PAGE, 2 * PAGE, Protection::Sparse));
        let read = |offset| {
            let mut out = [9; 4];
            window.read(offset, &mut out).unwrap();
            out
        };
        assert_eq!(read(2 * PAGE - 2), [7, 7, 0, 0]);
        // Across both edges; what is memory takes its part.
        window.write(2 * PAGE - 1, &vec![8; 2 * PAGE as usize + 2]).unwrap();
        assert_eq!((read(2 * PAGE - 2), read(4 * PAGE - 2)), ([7, 8, 0, 0], [0, 0, 8, 7]));
        assert_eq!(window.update(3 * PAGE, 4, &mut |v| v + 1), Ok(0));
        assert_eq!(read(3 * PAGE), [0; 4]);
        assert_eq!(window.with(3 * PAGE, 4, true, |_| ()), Err(WindowError::ReadOnly));
        // Copies that overlap, in both directions.
        for dst in [PAGE + 512, PAGE - 512] {
            let mut expect = vec![0_u8; 5 * PAGE as usize];
            for (i, byte) in expect.iter_mut().enumerate() {
                *byte = (i / 256) as u8 + 1;
            }
            window.write(0, &expect).unwrap();
            expect[2 * PAGE as usize..4 * PAGE as usize].fill(0);
            window.copy(dst, PAGE, 3 * PAGE).unwrap();
            expect.copy_within(PAGE as usize..4 * PAGE as usize, dst as usize);
            expect[2 * PAGE as usize..4 * PAGE as usize].fill(0);
            let mut seen = vec![0; expect.len()];
            window.read(0, &mut seen).unwrap();
            assert!(seen == expect, "copy to {dst}");
        }
        window.unmap(2 * PAGE, PAGE).unwrap();
        assert_eq!(window.write(2 * PAGE, &[1]), Err(WindowError::Unmapped));
        assert_eq!(read(3 * PAGE), [0; 4]);
    }
}
