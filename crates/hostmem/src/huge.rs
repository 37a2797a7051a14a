//! Huge pages under memory files: asked for, 2 MiB at a time, where memory is written for the first time.
//!
//! Few machines give them to memory files unasked, but Linux since 6.1 does to who asks for a certain one (`MADV_COLLAPSE`), whatever
//! the machine's settings are. To fill 64 MiB takes a sixth of the time then that it takes with small pages, which come one by one (in a
//! virtual machine); and who maps the file at addresses that are alike modulo 2 MiB reaches it through fewer entries of a TLB.
//!
//! What is asked for is a wish. Where it is refused pages come one by one.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};

use crate::{PAGE, hints};

/// Bytes of a huge page; it is aligned to as many, in memory and in the file.
pub(crate) const HUGE: usize = 2 << 20;
/// So many bytes are written at once, or the rest of a huge page may never be.
pub(crate) const MUCH: usize = 64 << 10;
/// So long nobody asks when the machine had none left, seconds: to look for one takes time.
const REST: u64 = 1;

/// Until when nobody asks, seconds.
static RESTS: AtomicU64 = AtomicU64::new(0);

/// Reserves inaccessible addresses, `skew` bytes behind a multiple of a huge page.
pub(crate) fn reserve(bytes: usize, skew: usize) -> io::Result<NonNull<u8>> {
    let whole = bytes.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh reservation at an address of the kernel's choice disturbs nothing.
    let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags) }?;
    let before = (skew + HUGE - at.addr() % HUGE) % HUGE;
    // SAFETY: inside the fresh reservation.
    let base = unsafe { at.cast::<u8>().add(before) };
    // SAFETY: as above.
    let behind = unsafe { base.add(bytes) };
    for (unused, bytes) in [(at, before), (behind.cast(), HUGE - before)] {
        if bytes > 0 {
            // SAFETY: this part of the fresh reservation is nobody's.
            let _ = unsafe { rustix::mm::munmap(unused, bytes) };
        }
    }
    NonNull::new(base).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Says that `range` is about to be written, which lies in `around`, mapped in one piece. Asks for huge pages where some of its pages
/// are not there.
pub(crate) fn expect_writes(range: &Range<usize>, around: &Range<usize>) {
    if range.len() < MUCH || !hints::are_safe() {
        return;
    }
    let mut lacking = blocks(range, around).filter(|&block| {
        let part = range.start.max(block)..range.end.min(block + HUGE);
        part.len() >= MUCH && is_there(&part) == Some(false) && make(part.start)
    });
    if let Some(first) = lacking.next() {
        let last = lacking.last().unwrap_or(first);
        ask(first..last + HUGE);
    }
}

/// Whether many pages came one by one for the calling thread since this was last true.
pub(crate) fn has_faulted() -> bool {
    /// To look for who writes where takes less than these took.
    const MANY: u64 = 16;
    thread_local! {
        static SEEN: Cell<u64> = const { Cell::new(0) };
    }
    if !hints::are_safe() {
        return false;
    }
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for what is told.
    let _ = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: numbers, zero if nothing was told.
    let faults = unsafe { usage.assume_init() }.ru_minflt.cast_unsigned();
    let many = faults.saturating_sub(SEEN.get()) >= MANY;
    if many {
        SEEN.set(faults);
    }
    many
}

/// Whether a block's first page is there, and its last one is not: who writes it has begun.
pub(crate) fn is_begun(block: usize) -> bool {
    let page = |at: usize| is_there(&(at..at + PAGE as usize));
    page(block) == Some(true) && page(block + HUGE - PAGE as usize) == Some(false)
}

/// Asks for a huge page for a block that was never touched; false if it was, or nobody asks now.
pub(crate) fn prepare(block: usize) -> bool {
    is_there(&(block..block + PAGE as usize)) == Some(false) && make(block) && ask(block..block + HUGE)
}

/// Blocks of a huge page each that lie in `around` and overlap `range`.
pub(crate) fn blocks(range: &Range<usize>, around: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    let first = (range.start / HUGE * HUGE).max(around.start.next_multiple_of(HUGE));
    let end = range.end.min(around.end / HUGE * HUGE);
    (first..end.max(first)).step_by(HUGE)
}

/// Whether all pages are there that a part of a block touches; `None` if nobody says.
fn is_there(part: &Range<usize>) -> Option<bool> {
    let mut seen = [0; HUGE / PAGE as usize];
    let start = part.start / PAGE as usize * PAGE as usize;
    let pages = (part.end - start).div_ceil(PAGE as usize);
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: there is a byte for each page; addresses that are not mapped are refused.
    let told = unsafe { libc::mincore(at, pages * PAGE as usize, seen[..pages].as_mut_ptr()) };
    (told == 0).then(|| seen[..pages].iter().all(|seen| seen & 1 == 1))
}

/// Makes a page exist: huge ones take the place of others only. False if it cannot.
fn make(at: usize) -> bool {
    let page = std::ptr::with_exposed_provenance_mut(at / PAGE as usize * PAGE as usize);
    // SAFETY: it changes no bytes; an address that is not mapped is refused.
    unsafe { rustix::mm::madvise(page, PAGE as usize, Advice::LinuxPopulateRead) }.is_ok()
}

/// Asks for huge pages in place of those of blocks; false if nobody asks now.
fn ask(blocks: Range<usize>) -> bool {
    let now = u64::try_from(clock_gettime(ClockId::MonotonicCoarse).tv_sec).unwrap_or(0);
    if now < RESTS.load(Ordering::Relaxed) {
        return false;
    }
    let at = std::ptr::with_exposed_provenance_mut(blocks.start);
    // SAFETY: it moves pages, and changes none of their bytes; addresses that are not mapped are refused.
    let refused = unsafe { libc::madvise(at, blocks.len(), libc::MADV_COLLAPSE) } != 0;
    if refused && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM | libc::EBUSY)) {
        RESTS.store(now + REST, Ordering::Relaxed);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memfd, Protection, Window};

    const BLOCK: u64 = HUGE as u64;

    /// Bytes that a file's first mapping in this process shows through entries of 2 MiB.
    fn shown_huge(name: &str) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.contains(&format!("/memfd:{name} ")));
        let line = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Whether this machine gives huge pages to who asks; says so if not.
    fn are_given() -> bool {
        let file = Memfd::create("asks", BLOCK).unwrap();
        let mapping = file.map().unwrap();
        mapping.fill(0, HUGE, 1);
        let at = std::ptr::with_exposed_provenance_mut(mapping.address());
        // SAFETY: it moves pages of the mapping, no more.
        let given = unsafe { libc::madvise(at, HUGE, libc::MADV_COLLAPSE) } == 0;
        if !given {
            eprintln!("SKIPPED: no huge pages here: {}", io::Error::last_os_error());
        }
        given
    }

    fn window(name: &str, blocks: u64) -> (Memfd, Window) {
        let file = Memfd::create(name, blocks * BLOCK).unwrap();
        let window = Window::reserve(blocks * BLOCK).unwrap();
        window.map(0, &file, 0, blocks * BLOCK, Protection::ReadWrite).unwrap();
        (file, window)
    }

    #[test]
    fn memory_that_is_written_first_gets_huge_pages_and_keeps_what_it_had() {
        let (file, window) = window("first", 4);
        let part = 3 * BLOCK - 4 * PAGE;
        window.write(BLOCK + 8 * PAGE, &[7; 3 * PAGE as usize]).unwrap();
        window.expect_writes(2 * PAGE, part);
        let mut expected = vec![0; 4 * HUGE];
        expected[HUGE + 8 * PAGE as usize..][..3 * PAGE as usize].fill(7);
        let mut found = vec![1; 4 * HUGE];
        window.read(0, &mut found).unwrap();
        assert!(found == expected);
        if are_given() {
            assert_eq!(shown_huge("first"), 3 * BLOCK);
            // Others see the same, and by as few entries.
            drop(window);
            let mapping = file.map_guarded().unwrap();
            mapping.read(0, &mut found);
            assert!(found == expected);
            assert_eq!(shown_huge("first"), 3 * BLOCK);
        }
    }

    #[test]
    fn nothing_happens_where_there_is_no_memory_or_little_is_written() {
        let (file, window) = window("little", 6);
        window.unmap(BLOCK, PAGE).unwrap();
        window.map(2 * BLOCK, &file, 2 * BLOCK, BLOCK, Protection::Read).unwrap();
        window.map_sparse(3 * BLOCK, BLOCK).unwrap();
        // At offsets that are not alike.
        window.map(4 * BLOCK, &file, 4 * BLOCK + PAGE, BLOCK, Protection::ReadWrite).unwrap();
        for (offset, bytes) in [(BLOCK, 4 * BLOCK), (0, 32 * PAGE / 4), (u64::MAX - 1, 1 << 30), (6 * BLOCK, BLOCK)] {
            window.expect_writes(offset, bytes);
            window.expect_more();
        }
        assert_eq!(shown_huge("little"), 0);
        let mapping = file.map_part(PAGE, 2 * BLOCK).unwrap();
        mapping.expect_writes(0, HUGE);
        mapping.write(HUGE - 1, &[1, 2, 3]);
        let mut found = [0; 3];
        file.map().unwrap().read(HUGE + PAGE as usize - 1, &mut found);
        assert_eq!(found, [1, 2, 3]);
    }

    /// Two kernels that write page by page, one behind memory of somebody else.
    #[test]
    fn what_follows_is_prepared_for_who_writes_page_by_page() {
        let (file, window) = window("growing", 64);
        window.unmap(20 * BLOCK, PAGE).unwrap();
        let is_there = |at: u64| {
            let at = window.address() + at as usize;
            is_there(&(at..at + PAGE as usize)).unwrap()
        };
        window.expect_more();
        let mut came = 0;
        for page in 0..10 * BLOCK / PAGE {
            for first in [3 * BLOCK, 40 * BLOCK] {
                let at = first + page * PAGE;
                came += u64::from(!is_there(at));
                window.write(at, &[1]).unwrap();
            }
            window.expect_more();
        }
        if are_given() {
            // Of the ten blocks of each the first, the fourth and the ninth came page by page.
            assert!(came < 2 * 5 * BLOCK / PAGE, "{came} pages came one by one");
        }
        // No more than was written is prepared.
        let others = (0..3).chain(20..40).chain(60..64);
        assert!(others.into_iter().all(|block| !is_there(block * BLOCK + BLOCK / 2)));
        let mut bytes = [0; 2];
        window.read(13 * BLOCK - PAGE, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 0]);
        drop(file);
    }
}
