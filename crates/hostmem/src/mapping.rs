//! A memory file, mapped.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use crate::huge::{self, HUGE};
use crate::slices::in_short_slices;
use crate::{HostRange, Memfd, PAGE};

/// A shared, writable mapping of a [`Memfd`], or of a part of one; other files may take the place of some of its pages.
///
/// Methods that take an offset panic when the range is not inside: offsets from outside must be checked before.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Inaccessible on both sides.
    guard: usize,
    /// All pages are there, and stay where they are.
    is_locked: bool,
}

/// On both sides of a guarded mapping, bytes. Processors take a load for one that must wait for an earlier store if many of their
/// address bits agree, as they do for a copy between this mapping's beginning and that of another that the operating system
/// has put right beside it: such copies take 1.2 to 4 times as long. With so many pages between they do not.
const GUARD: usize = 15 * PAGE as usize;

// SAFETY: a mapping is plain memory; all access goes through raw copies and atomics, which may run on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; methods never hand out references to plain bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The range is inside the file.
    pub(crate) fn new(file: &Memfd, offset: u64, bytes: u64, flags: MapFlags) -> io::Result<Mapping> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (prot, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags);
        if bytes < HUGE {
            // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
            let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, shared, file, offset) }?;
            let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
            return Ok(Mapping { base, bytes, guard: 0, is_locked: false });
        }
        let base = huge::reserve(bytes, (offset % HUGE as u64) as usize)?;
        // From here on it is unmapped when this goes.
        let mapping = Mapping { base, bytes, guard: 0, is_locked: false };
        // SAFETY: MAP_FIXED replaces pages of the fresh reservation alone.
        unsafe { rustix::mm::mmap(base.as_ptr().cast(), bytes, prot, shared | MapFlags::FIXED, file, offset) }?;
        Ok(mapping)
    }

    /// All of a file, with guard pages on both sides.
    pub(crate) fn guarded(file: &Memfd, flags: MapFlags) -> io::Result<Mapping> {
        let bytes = usize::try_from(file.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let whole = bytes.checked_add(2 * GUARD).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh reservation at an address of the kernel's choice disturbs nothing.
        let first = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), reserved) }?;
        // SAFETY: inside the reservation.
        let base = NonNull::new(unsafe { first.cast::<u8>().add(GUARD) }).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on it is unmapped when this goes.
        let mapping = Mapping { base, bytes, guard: GUARD, is_locked: false };
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED | flags);
        // SAFETY: MAP_FIXED replaces pages of the fresh reservation alone.
        unsafe { rustix::mm::mmap(base.as_ptr().cast(), bytes, prot, flags, file, 0) }?;
        Ok(mapping)
    }

    /// Shows `bytes` of `file` from `file_offset` on (all whole pages) at `offset`, in place of what was there. Whoever
    /// accesses the range meanwhile meets the old pages or the new ones.
    ///
    /// # Errors
    /// `InvalidInput` if a range is not whole pages, or not inside; else what the operating system says.
    pub fn show(&self, offset: usize, file: &Memfd, file_offset: u64, bytes: u64) -> io::Result<()> {
        file.check(file_offset, bytes)?;
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let inside = offset <= self.bytes && length <= self.bytes - offset;
        if !inside || !(offset as u64).is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the mapping"));
        }
        let (prot, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        let at = self.at(offset, length);
        // SAFETY: MAP_FIXED replaces pages of our own mapping alone, by pages with the same rights, of a file whose size is
        // sealed; nobody has more of them than raw copies and atomics.
        unsafe { rustix::mm::mmap(at.cast(), length, prot, shared | MapFlags::NORESERVE, file, file_offset) }?;
        Ok(())
    }

    /// Keeps its pages out of core dumps: dumping what nobody has touched would make it exist. A hint.
    pub fn leave_out_of_dumps(&self) {
        // SAFETY: the range is this mapping; the hint changes none of its bytes.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxDontDump) };
    }

    /// Makes all its pages exist, huge ones if there are such, and stay in memory.
    pub(crate) fn lock(&mut self) -> io::Result<()> {
        let base = self.base.as_ptr().cast();
        // Both are hints, and a kernel without huge pages knows neither.
        // SAFETY: the range is this mapping; the hint changes none of its bytes.
        let _ = unsafe { rustix::mm::madvise(base, self.bytes, Advice::LinuxHugepage) };
        // SAFETY: the range is this mapping; locking changes none of its bytes.
        unsafe { rustix::mm::mlock(base, self.bytes) }?;
        // What got no huge page now shall not be moved into one later.
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::madvise(base, self.bytes, Advice::LinuxNoHugepage) };
        self.is_locked = true;
        Ok(())
    }

    /// Gives its pages back to the host, whoever else has the file: it reads as zeros from then on, until somebody stores into it.
    pub fn discard(&self) {
        // SAFETY: our own mapping; like a store by another process, it changes bytes that nobody holds references into.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxRemove) };
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true; there for completeness beside [`Mapping::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Host address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// A part of the mapping, for copies between two of them.
    #[must_use]
    pub fn range(&self, offset: usize, bytes: usize) -> HostRange<'_> {
        let at = self.at(offset, bytes);
        // SAFETY: `at` checked that the range lies inside this mapping, which is there as long as `self`; Rust never holds a
        // reference into it, but atomics.
        unsafe { HostRange::new(at.addr(), bytes) }
    }

    /// A range that is about to be written, in pieces one behind the other, each to be written before the next one is asked for: where many
    /// pages were never touched huge ones come first, as far as these lie in `around`, a range of offsets. For memory that is not all one
    /// owner's, that is what belongs to the one that writes.
    pub fn pieces_to_write(
        &self,
        offset: usize,
        bytes: usize,
        around: Range<usize>,
    ) -> impl Iterator<Item = HostRange<'_>> {
        let start = self.at(offset, bytes).addr();
        // What is locked somebody may know by its place.
        let around = if self.is_locked { 0..0 } else { around };
        let around = self.address() + around.start..self.address() + around.end;
        let range = move |piece: Range<usize>| self.range(offset + (piece.start - start), piece.len());
        huge::pieces(start..start + bytes, around).map(range)
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{offset}+{bytes} outside mapping of {}",
            self.bytes
        );
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: `from` is valid for `out.len()` bytes; `out` is exclusive, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: `to` is valid for `data.len()` bytes; Rust never holds a reference into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
    }

    /// Fills a range with one byte.
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) {
        let to = self.at(offset, bytes);
        // SAFETY: `to` is valid for `bytes` bytes.
        unsafe { std::ptr::write_bytes(to, value, bytes) }
    }

    /// The aligned 32-bit word at `offset`, as an atomic.
    #[must_use]
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert_eq!(offset % 4, 0, "word at {offset} is not aligned");
        let at = self.at(offset, 4);
        // SAFETY: inside the mapping, aligned, and alive as long as `self`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The aligned 64-bit word at `offset`, as an atomic.
    #[must_use]
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0, "word at {offset} is not aligned");
        let at = self.at(offset, 8);
        // SAFETY: inside the mapping, aligned, and alive as long as `self`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Sleeps while the word at `offset` equals `expected`, at most `timeout`. May wake early; works between processes.
    pub fn wait(&self, offset: usize, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
        // Every outcome (woken, value differs, interrupted, timed out) means the same to the caller: look again.
        let word = self.u32_at(offset);
        let _ = in_short_slices(|| futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref()));
    }

    /// As [`Mapping::wait`], and only while a word of another mapping's equals what is expected of it, too. Where the system
    /// knows no such wait (before Linux 5.16), who wakes by that word is not heard.
    pub fn wait_beside(
        &self,
        offset: usize,
        expected: u32,
        (other, at, of_other): (&Mapping, usize, u32),
        timeout: Duration,
    ) {
        let word = |word: &AtomicU32, value: u32| {
            let mut wait = futex::Wait::new();
            wait.val = value.into();
            wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            wait.flags = futex::WaitFlags::SIZE_U32;
            wait
        };
        let words = [word(self.u32_at(offset), expected), word(other.u32_at(at), of_other)];
        let now = clock_gettime(ClockId::Monotonic);
        let until = futex::Timespec::try_from(timeout).ok().and_then(|timeout| now.checked_add(timeout));
        let sleep = || futex::waitv(&words, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic);
        let waited = in_short_slices(sleep);
        if matches!(waited, Err(Errno::NOSYS | Errno::PERM)) {
            self.wait(offset, expected, Some(timeout));
        }
        if other.u32_at(at).load(Ordering::SeqCst) != of_other {
            // Who changed it may have woken some only ([`Mapping::wake_some`]).
            other.wake_all(at);
        }
    }

    /// Wakes some who wait on the word at `offset`, in a time that does not depend on how many there are: for who must not wait for
    /// another's threads. These wake the others.
    pub fn wake_some(&self, offset: usize) {
        const SOME: u32 = 16;
        // Failing means that nobody waits.
        let _ = futex::wake(self.u32_at(offset), futex::Flags::empty(), SOME);
    }

    /// Wakes all who wait on the word at `offset`.
    pub fn wake_all(&self, offset: usize) {
        // Failing means that nobody waits.
        let _ = futex::wake(self.u32_at(offset), futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the guard before the mapping belongs to it.
        let first = unsafe { self.base.as_ptr().sub(self.guard) };
        // SAFETY: the mapping and its guards were made by `new` or `guarded`, and nothing refers to them any more.
        let _ = unsafe { rustix::mm::munmap(first.cast(), self.bytes + 2 * self.guard) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_belong_to_no_other_mapping_and_go_with_theirs() {
        let file = Memfd::create("guarded", 4 * PAGE).unwrap();
        let mapping = file.map_guarded().unwrap();
        let (first, end) = (mapping.address() - GUARD, mapping.address() + mapping.len() + GUARD);
        let pages = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let entry = |line: &str| {
                let (range, rest) = line.split_once(' ')?;
                let (lo, hi) = range.split_once('-')?;
                let bound = |text| usize::from_str_radix(text, 16).ok();
                let (lo, hi) = (bound(lo)?.max(first), bound(hi)?.min(end));
                (lo < hi).then(|| (rest[..4].to_owned(), hi - lo))
            };
            maps.lines().filter_map(entry).collect::<Vec<_>>()
        };
        let none = "---p".to_owned();
        let shared = ("rw-s".to_owned(), 4 * PAGE as usize);
        assert_eq!(pages(), [(none.clone(), GUARD), shared, (none, GUARD)]);
        file.map().unwrap().write(PAGE as usize, b"seen");
        let mut seen = [0; 4];
        mapping.read(PAGE as usize, &mut seen);
        assert_eq!(&seen, b"seen");
        // More than a process may have.
        (0..40_000).for_each(|_| drop(file.map_guarded().unwrap()));
    }

    #[test]
    fn what_is_discarded_is_gone_for_all_who_have_the_file() {
        let file = Memfd::create("discarded", 16 * PAGE).unwrap();
        let (ours, theirs) = (file.map().unwrap(), file.map().unwrap());
        ours.fill(0, ours.len(), 9);
        ours.discard();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
        assert_eq!(theirs.u32_at(0).load(Ordering::Relaxed), 0);
        theirs.fill(0, 4, 1);
        assert_eq!(ours.u32_at(0).load(Ordering::Relaxed), 0x0101_0101);
    }

    /// Two threads wake each other in turn, by either word, so that most waits sleep. One that is not woken lasts longer than
    /// anybody's patience.
    #[test]
    fn either_of_two_words_wakes() {
        const AT: [usize; 2] = [64, 128];
        const LONG: Duration = Duration::from_secs(3600);
        const ROUNDS: u32 = 2000;
        let words = &[(); 2].map(|()| Memfd::create("words", PAGE).unwrap().map().unwrap());
        let turns = &AtomicU32::new(0);
        let play = move |parity: u32| {
            let seen = || [0, 1].map(|index: usize| words[index].u32_at(AT[index]).load(Ordering::SeqCst));
            loop {
                let before = seen();
                let turn = turns.load(Ordering::SeqCst);
                if turn >= ROUNDS {
                    return;
                }
                if turn % 2 != parity {
                    words[0].wait_beside(AT[0], before[0], (&words[1], AT[1], before[1]), LONG);
                    continue;
                }
                turns.fetch_add(1, Ordering::SeqCst);
                // Each word two times in a row.
                let index = (turn / 2 % 2) as usize;
                words[index].u32_at(AT[index]).fetch_add(1, Ordering::SeqCst);
                if index == 0 { words[0].wake_all(AT[0]) } else { words[1].wake_some(AT[1]) }
            }
        };
        std::thread::scope(|scope| [0, 1].map(|parity| scope.spawn(move || play(parity))).map(drop));
    }

    #[test]
    fn those_who_are_woken_wake_the_others() {
        const AT: usize = 64;
        const LONG: Duration = Duration::from_secs(3600);
        let words = &[(); 2].map(|()| Memfd::create("words", PAGE).unwrap().map().unwrap());
        let asleep = &AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(move || {
                    asleep.fetch_add(1, Ordering::SeqCst);
                    while words[1].u32_at(AT).load(Ordering::SeqCst) == 0 {
                        words[0].wait_beside(AT, 0, (&words[1], AT, 0), LONG);
                    }
                });
            }
            while asleep.load(Ordering::SeqCst) < 40 {
                std::thread::yield_now();
            }
            words[1].u32_at(AT).store(1, Ordering::SeqCst);
            words[1].wake_some(AT);
        });
    }

    #[test]
    fn pages_of_another_file_take_the_place_of_some() {
        let page = PAGE as usize;
        let (file, other) = (Memfd::create("one", 4 * PAGE).unwrap(), Memfd::create("other", 2 * PAGE).unwrap());
        let (mapping, of_other) = (file.map().unwrap(), other.map_part(PAGE, PAGE).unwrap());
        mapping.fill(0, 4 * page, 1);
        of_other.fill(0, page, 2);
        mapping.show(2 * page, &other, PAGE, PAGE).unwrap();
        let mut seen = [0; 4];
        mapping.read(2 * page - 2, &mut seen);
        assert_eq!(seen, [1, 1, 2, 2]);
        mapping.write(3 * page - 2, &[7, 7, 7, 7]);
        of_other.read(page - 4, &mut seen);
        assert_eq!(seen, [2, 2, 7, 7]);
        // What was there is still in the file.
        mapping.show(2 * page, &file, 2 * PAGE, PAGE).unwrap();
        mapping.read(3 * page - 2, &mut seen);
        assert_eq!(seen, [1, 1, 7, 7]);
        for (offset, file_offset, bytes) in
            [(1, 0, PAGE), (0, 1, PAGE), (0, 0, PAGE + 1), (0, 0, 0), (0, PAGE, 2 * PAGE), (3 * page, 0, 2 * PAGE)]
        {
            let refused = mapping.show(offset, &other, file_offset, bytes).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{offset} {file_offset} {bytes}");
        }
        assert!(other.map_part(2 * PAGE, PAGE).is_err() && other.map_part(u64::MAX - PAGE + 1, PAGE).is_err());
    }
}
