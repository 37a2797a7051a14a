//! Huge pages under memory files: asked for, 2 MiB at a time, where memory is written for the first time.
//!
//! Few machines give them to memory files unasked, but Linux since 6.1 does to who asks for a certain one (`MADV_COLLAPSE`), whatever
//! the machine's settings are. To copy 64 MiB takes a quarter of the time then that it takes with small pages, which come one by one (in a
//! virtual machine); and who maps the file at addresses that are alike modulo 2 MiB reaches it through fewer entries of a TLB.
//!
//! What is asked for is a wish. Where it is refused pages come one by one.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::time::{ClockId, clock_gettime};

use crate::{PAGE, hints};

/// Bytes of a huge page; it is aligned to as many, in memory and in the file.
pub(crate) const HUGE: usize = 2 << 20;
/// So many pages must be missing where somebody is about to write, or they come one by one: a huge page takes as long as 60 of them.
const MANY: usize = 64;
/// So many bytes are written at once where that can be.
pub(crate) const MUCH: usize = MANY * PAGE as usize;
/// So long nobody asks when the machine had none left: to look for one takes time.
const REST: Duration = Duration::from_secs(1);
/// An ask that took so long waited for processors that were busy elsewhere. Nobody asks for longer each time then.
const SLOW: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(64);

/// Whether this process asks at all.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Until when nobody asks, nanoseconds of the monotonic clock, and for how long after an ask that was slow.
static RESTS: AtomicU64 = AtomicU64::new(0);
static PATIENCE: AtomicU64 = AtomicU64::new(0);

/// Says that huge pages are good for this process, although an ask may wait for all processors of the machine, and whoever maps or unmaps
/// memory of the process meanwhile waits with it: one that computes for a single program.
pub fn want_huge_pages() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Whether this process asks, and may.
pub(crate) fn are_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) && hints::are_safe()
}

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

/// A range that is about to be written, in pieces one behind the other. Blocks that lie in `around` and lack pages begin a piece, and have
/// been asked for huge ones when it comes.
pub(crate) fn pieces(range: Range<usize>, around: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        for part in parts(at..range.end) {
            let block = lacking(&part, &around);
            if block.is_some() && part.start > start {
                break;
            }
            if let Some(block) = block {
                give(block, part.start);
            }
            at = part.end;
        }
        (start < at).then_some(start..at)
    })
}

/// Parts of a range, each of one block.
pub(crate) fn parts(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = range.start / HUGE * HUGE;
    let blocks = (first..range.end.max(first)).step_by(HUGE);
    blocks.map(move |block| range.start.max(block)..range.end.min(block + HUGE)).filter(|part| !part.is_empty())
}

/// Says that a part of a block is about to be written, which lies in `around`; asks for a huge page if it lacks many.
pub(crate) fn expect_write(part: &Range<usize>, around: &Range<usize>) {
    if let Some(block) = lacking(part, around) {
        give(block, part.start);
    }
}

/// The block of a part that is about to be written, if it lacks many pages and lies in `around`.
fn lacking(part: &Range<usize>, around: &Range<usize>) -> Option<usize> {
    let block = part.start / HUGE * HUGE;
    if part.len() < MUCH || block < around.start || around.end < block + HUGE || !are_wanted() {
        return None;
    }
    // As a rule all are there, or none.
    let ends = [part.start, part.end - 1].map(|at| missing(&(at..at + 1)));
    (ends != [0, 0] && missing(part) >= MANY).then_some(block)
}

/// Asks for a huge page in place of a block's pages. There must be one: that at `at` is made. True if there is a huge one.
fn give(block: usize, at: usize) -> bool {
    let clock = || Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let nanoseconds = |time: Duration| time.as_nanos() as u64;
    let start = clock();
    if nanoseconds(start) < RESTS.load(Ordering::Relaxed) {
        return false;
    }
    let page = std::ptr::with_exposed_provenance_mut(at / PAGE as usize * PAGE as usize);
    // SAFETY: it changes no bytes; an address that is not mapped is refused.
    if unsafe { rustix::mm::madvise(page, PAGE as usize, Advice::LinuxPopulateRead) }.is_err() {
        return false;
    }
    let at = std::ptr::with_exposed_provenance_mut(block);
    // SAFETY: it moves pages, and changes none of their bytes; addresses that are not mapped are refused.
    let given = unsafe { libc::madvise(at, HUGE, libc::MADV_COLLAPSE) } == 0;
    let none_left = !given && io::Error::last_os_error().kind() == io::ErrorKind::OutOfMemory;
    let end = clock();
    let rest = if end.saturating_sub(start) > SLOW {
        let rest = (2 * Duration::from_nanos(PATIENCE.load(Ordering::Relaxed))).clamp(REST, LONGEST_REST);
        PATIENCE.store(nanoseconds(rest), Ordering::Relaxed);
        rest
    } else if none_left {
        REST
    } else {
        return given;
    };
    RESTS.store(nanoseconds(end + rest), Ordering::Relaxed);
    given
}

/// Whether many pages came one by one for the calling thread since this was last true.
pub(crate) fn has_faulted() -> bool {
    /// To look for who writes where takes less than these took.
    const FAULTS: u64 = 16;
    thread_local! {
        static SEEN: Cell<u64> = const { Cell::new(0) };
    }
    if !are_wanted() {
        return false;
    }
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for what is told.
    let _ = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: numbers, zero if nothing was told.
    let faults = unsafe { usage.assume_init() }.ru_minflt.cast_unsigned();
    let many = faults.saturating_sub(SEEN.get()) >= FAULTS;
    if many {
        SEEN.set(faults);
    }
    many
}

/// Whether a block's first pages are there, and its last one is not: who writes it has begun.
pub(crate) fn is_begun(block: usize) -> bool {
    const FIRST: usize = 64 << 10;
    let end = block + HUGE;
    missing(&(block..block + 1)) == 0 && missing(&(block..block + FIRST)) == 0 && missing(&(end - 1..end)) > 0
}

/// Asks for a huge page for a block that was never touched; false if it was, or there is none.
pub(crate) fn prepare(block: usize) -> bool {
    // Not the first page, which would look as if somebody had begun to write.
    missing(&(block..block + 1)) > 0 && give(block, block + HUGE / 2)
}

/// Blocks that lie in `around` and overlap `range`.
pub(crate) fn blocks(range: &Range<usize>, around: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    let first = (range.start / HUGE * HUGE).max(around.start.next_multiple_of(HUGE));
    let end = range.end.min(around.end / HUGE * HUGE);
    (first..end.max(first)).step_by(HUGE)
}

/// How many of the pages are not there that a part of a block touches; none where nobody says.
fn missing(part: &Range<usize>) -> usize {
    let mut seen = [0; HUGE / PAGE as usize];
    let start = part.start / PAGE as usize * PAGE as usize;
    let pages = (part.end - start).div_ceil(PAGE as usize);
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: there is a byte for each page; addresses that are not mapped are refused.
    let told = unsafe { libc::mincore(at, pages * PAGE as usize, seen[..pages].as_mut_ptr()) } == 0;
    if told { seen[..pages].iter().filter(|&seen| seen & 1 == 0).count() } else { 0 }
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

    /// Where huge pages are refused, who writes page by page is told from nobody else, and nothing comes but what it writes.
    #[test]
    fn who_is_refused_is_asked_for_again() {
        want_huge_pages();
        let file = Memfd::create("refused", 40 * BLOCK).unwrap();
        let window = Window::reserve(40 * BLOCK).unwrap();
        // At offsets that are not alike.
        window.map(0, &file, PAGE, 39 * BLOCK, Protection::ReadWrite).unwrap();
        for page in 0..3 * BLOCK / PAGE {
            window.write(page * PAGE, &[1]).unwrap();
            window.expect_more();
        }
        let pages = rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512 / PAGE;
        assert!((3 * BLOCK / PAGE..=3 * BLOCK / PAGE + 3).contains(&pages), "{pages}");
    }

    /// Whether this machine gives huge pages to who asks, and soon; says so if not.
    fn are_given() -> bool {
        if RESTS.load(Ordering::Relaxed) != 0 {
            eprintln!("SKIPPED: huge pages take long here, or there are none left");
            return false;
        }
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
        want_huge_pages();
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
            let mapping = file.map().unwrap();
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
        for (offset, bytes) in [(BLOCK, 4 * BLOCK), (0, 63 * PAGE), (u64::MAX - 1, 1 << 30), (6 * BLOCK, BLOCK)] {
            window.expect_writes(offset, bytes);
            window.expect_more();
        }
        assert_eq!(shown_huge("little"), 0);
        // Where only few pages are missing they come one by one.
        window.write(0, &vec![1; HUGE - 60 * PAGE as usize]).unwrap();
        window.expect_writes(0, BLOCK);
        assert_eq!(shown_huge("little"), 0);
        let mapping = file.map_part(PAGE, 2 * BLOCK).unwrap();
        assert_eq!(mapping.pieces_to_write(0, HUGE, 0..mapping.len()).map(|piece| piece.len()).sum::<usize>(), HUGE);
        mapping.write(HUGE - 1, &[1, 2, 3]);
        let mut found = [0; 3];
        file.map().unwrap().read(HUGE + PAGE as usize - 1, &mut found);
        assert_eq!(found, [1, 2, 3]);
    }

    /// What a mapping's writer is given: all of the range once, and huge pages within what is its own alone.
    #[test]
    fn pieces_are_a_range_and_begin_where_pages_were_missing() {
        want_huge_pages();
        let file = Memfd::create("pieces", 6 * BLOCK).unwrap();
        let mapping = file.map().unwrap();
        // All of a block's pages, one by one.
        (0..HUGE).step_by(PAGE as usize).for_each(|at| mapping.write(2 * HUGE + at, &[1]));
        let (start, bytes) = (3 * PAGE as usize, 5 * HUGE);
        let mut reached = mapping.address() + start;
        let mut begins = Vec::new();
        for piece in mapping.pieces_to_write(start, bytes, HUGE..5 * HUGE) {
            assert_eq!(piece.address(), reached);
            begins.push(reached - mapping.address());
            piece.write(&vec![7; piece.len()]);
            reached += piece.len();
        }
        assert_eq!(reached, mapping.address() + start + bytes);
        if are_given() {
            assert_eq!(begins, [start, HUGE, 3 * HUGE, 4 * HUGE]);
            assert_eq!(shown_huge("pieces"), 3 * BLOCK);
        }
        let mut found = vec![0; 6 * HUGE];
        mapping.read(0, &mut found);
        let expected = |at: usize| if (start..start + bytes).contains(&at) { 7 } else { 0 };
        assert!(found.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
    }

    /// Pages that are locked stay where they are.
    #[test]
    fn locked_memory_is_left_alone() {
        want_huge_pages();
        let file = Memfd::create("locked", BLOCK).unwrap();
        let Ok(mapping) = file.map_resident() else { return eprintln!("SKIPPED: so much cannot be locked") };
        file.punch(0, BLOCK).unwrap();
        assert_eq!(mapping.pieces_to_write(0, HUGE, 0..HUGE).count(), 1);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
    }

    /// Two kernels that write page by page, one behind memory of somebody else.
    #[test]
    fn what_follows_is_prepared_for_who_writes_page_by_page() {
        let (file, window) = window("growing", 64);
        window.unmap(20 * BLOCK, PAGE).unwrap();
        let is_there = |at: u64| {
            let at = window.address() + at as usize;
            missing(&(at..at + 1)) == 0
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
            assert!(came < 2 * 4 * BLOCK / PAGE, "{came} pages came one by one");
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
