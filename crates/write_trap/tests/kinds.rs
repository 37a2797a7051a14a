//! Each kind, with threads that store while somebody takes what was written: nothing is lost.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "executes an instruction that no handler knows")]
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hostmem::{Mapping, Memfd, PAGE};
use write_trap::{Decode, Fault, Kind, Tracker, Why, WriteTrap, Written, available};

const SIZE: usize = PAGE as usize;
const WORDS: usize = SIZE / 8;

/// A watched mapping, and what somebody knows of it who reads what was told, and nothing else.
struct Mirror {
    file: Memfd,
    mapping: Arc<Mapping>,
    trap: Box<dyn WriteTrap>,
    stores: Option<Arc<Written>>,
    known: Vec<u64>,
    /// Pages that were told, words, and rounds.
    told: (u64, u64, u64),
}

/// A trap, and where its single stores are told, if they are.
fn watch(kind: Kind, file: &Memfd, mapping: &Arc<Mapping>) -> (Box<dyn WriteTrap>, Option<Arc<Written>>) {
    match kind {
        Kind::Decode => {
            let written = Arc::new(Written::create(mapping.len() as u64 / PAGE).unwrap().0);
            let decode = Decode::new(mapping, file.map().unwrap(), Arc::clone(&written)).unwrap();
            (Box::new(decode), Some(written))
        }
        Kind::Fault => (Box::new(Fault::new(mapping).unwrap()), None),
        Kind::Tracker => (Box::new(Tracker::new(mapping).unwrap()), None),
    }
}

impl Mirror {
    /// None, said aloud, if the machine has no such kind.
    fn new(kind: Kind, pages: usize) -> Option<Mirror> {
        if let Err(why) = available(kind) {
            assert!(!matches!(why, Why::Trial(_) | Why::Unnoticed), "{kind:?} does not work: {why:?}");
            eprintln!("SKIPPED: {kind:?}: {why}: {:?}", std::error::Error::source(&why));
            return None;
        }
        let file = Memfd::create("watched", (pages * SIZE) as u64).unwrap();
        let mapping = Arc::new(file.map().unwrap());
        let (trap, stores) = watch(kind, &file, &mapping);
        assert_eq!(trap.kind(), kind);
        Some(Mirror { file, mapping, trap, stores, known: vec![0; pages * WORDS], told: (0, 0, 0) })
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        self.mapping.u64_at(word * 8)
    }

    fn protect_all(&mut self) {
        let pages: Vec<u64> = (0..(self.mapping.len() / SIZE) as u64).collect();
        self.trap.protect(&pages).unwrap();
        (0..self.known.len()).for_each(|word| self.known[word] = self.word(word).load(Ordering::Relaxed));
    }

    /// Takes what was written, protects it again, and reads it. Gives the pages.
    fn update(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        self.trap.take_written(&mut pages).unwrap();
        if !self.trap.kind().stays_protected() {
            self.trap.protect(&pages).unwrap();
        }
        for page in &pages {
            let words = *page as usize * WORDS..(*page as usize + 1) * WORDS;
            words.for_each(|word| self.known[word] = self.word(word).load(Ordering::Relaxed));
        }
        self.told.0 += pages.len() as u64;
        self.told.2 += 1;
        if let Some(written) = &self.stores {
            written.take_stores(|offset| {
                self.known[offset as usize / 8] = self.mapping.u64_at(offset as usize).load(Ordering::Relaxed);
                self.told.1 += 1;
            });
        }
        pages
    }
}

/// A store in a form that the handler of [`Decode`] lets through.
fn unknown_store(word: &AtomicU64, value: u64) {
    // SAFETY: stores the value, which is a small number, into an aligned word, at once.
    unsafe {
        std::arch::asm!(
            "fild qword ptr [{from}]",
            "fistp qword ptr [{to}]",
            from = in(reg) &raw const value,
            to = in(reg) word.as_ptr(),
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
}

struct Random(u64);

impl Random {
    /// A number below `limit` (xorshift).
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Ends threads, when the test goes wrong too.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const THREADS: usize = 3;

/// A word that a thread alone stores to; the first of each page is for all.
fn own_word(thread: usize, pages: usize, random: &mut Random) -> usize {
    let page = random.below(pages as u64) as usize;
    let of_thread = random.below((WORDS / THREADS - 1) as u64) as usize;
    page * WORDS + 1 + of_thread * THREADS + thread
}

/// The highest number in a thread's words.
fn latest(known: &[u64], thread: usize) -> u64 {
    let of_page = |page: &[u64]| page[1 + thread..].iter().step_by(THREADS).copied().max().unwrap();
    known.chunks(WORDS).map(of_page).max().unwrap()
}

/// Threads count up, each in words of its own all over the pages, and say behind each store how far they are. Whoever has heard
/// that, and takes what was written afterwards, must know of that store. `enough` pages or words are to be told meanwhile.
fn nothing_is_lost(kind: Kind, pages: usize, enough: u64, unknown: u64) {
    let Some(mut mirror) = Mirror::new(kind, pages) else { return };
    mirror.protect_all();
    let progress: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let mapping = Arc::clone(&mirror.mapping);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (thread, progress) in progress.iter().enumerate() {
            let (mapping, end) = (&mapping, &end);
            scope.spawn(move || {
                let mut random = Random(0x1234_5678 + thread as u64);
                let mut count = 0;
                while !end.load(Ordering::Relaxed) {
                    count += 1;
                    let word = mapping.u64_at(own_word(thread, pages, &mut random) * 8);
                    match random.below(100) {
                        chance if chance < unknown => unknown_store(word, count),
                        chance if chance < 60 => word.store(count, Ordering::Relaxed),
                        chance if chance < 80 => drop(word.swap(count, Ordering::Relaxed)),
                        _ => drop(word.fetch_max(count, Ordering::Relaxed)),
                    }
                    progress.store(count, Ordering::SeqCst);
                    // They also count together.
                    let page = random.below(pages as u64) as usize;
                    mapping.u64_at(page * SIZE).fetch_add(1, Ordering::Relaxed);
                    if count % 32 == 0 {
                        // There may be one processor.
                        std::thread::yield_now();
                    }
                }
            });
        }
        let _end = End(&end);
        while mirror.told.0 + mirror.told.1 < enough {
            let heard: Vec<u64> = progress.iter().map(|progress| progress.load(Ordering::SeqCst)).collect();
            let told = (mirror.told.0, mirror.told.1);
            mirror.update();
            if told == (mirror.told.0, mirror.told.1) {
                std::thread::yield_now();
            }
            for (thread, heard) in heard.into_iter().enumerate() {
                let known = latest(&mirror.known, thread);
                assert!(known >= heard, "{kind:?}: {known} is known of {heard} of thread {thread}");
            }
        }
    });
    mirror.update();
    let wrong = (0..mirror.known.len()).find(|word| mirror.known[*word] != mirror.word(*word).load(Ordering::Relaxed));
    assert_eq!(wrong, None, "{kind:?}: told of {:?}", mirror.told);
    let together: u64 = (0..pages).map(|page| mirror.known[page * WORDS]).sum();
    let counted: u64 = progress.iter().map(|progress| progress.load(Ordering::Relaxed)).sum();
    assert_eq!(together, counted, "{kind:?}: what threads counted together");
    eprintln!("{kind:?}: {counted} stores; told of (pages, words, rounds) {:?}", mirror.told);
    assert!(mirror.update().is_empty(), "{kind:?}: told twice");
}

#[test]
fn nothing_is_lost_by_decode() {
    nothing_is_lost(Kind::Decode, 5, 50_000, 0);
}

/// Pages are released by the handler all the time, and protected all the time.
#[test]
fn nothing_is_lost_by_decode_where_pages_are_released() {
    nothing_is_lost(Kind::Decode, 5, 10_000, 20);
    nothing_is_lost(Kind::Decode, 1, 5_000, 50);
}

#[test]
fn nothing_is_lost_by_faults() {
    nothing_is_lost(Kind::Fault, 5, 3_000, 0);
}

#[test]
fn nothing_is_lost_by_the_tracker() {
    nothing_is_lost(Kind::Tracker, 5, 3_000, 0);
    nothing_is_lost(Kind::Tracker, 1, 1_000, 0);
}

/// Only pages that are watched are told, once for each time, whatever runs they are in.
#[test]
fn what_is_told_is_what_was_written() {
    const PAGES: u64 = 200;
    for kind in Kind::ALL {
        let Some(mut mirror) = Mirror::new(kind, PAGES as usize) else { continue };
        let mut random = Random(99);
        let mut watched = BTreeSet::new();
        for _ in 0..60 {
            let some = |random: &mut Random| -> Vec<u64> {
                let mut pages: Vec<u64> = (0..random.below(60)).map(|_| random.below(PAGES)).collect();
                // In any order, with repetitions, or sorted.
                if random.below(2) == 0 {
                    pages.sort_unstable();
                }
                pages
            };
            let (more, less, mut stores) = (some(&mut random), some(&mut random), some(&mut random));
            mirror.trap.protect(&more).unwrap();
            mirror.trap.release(&less).unwrap();
            watched.extend(more);
            watched.retain(|page| !less.contains(page));
            for page in &stores {
                mirror.word(*page as usize * WORDS + 5).fetch_add(1, Ordering::Relaxed);
            }
            stores.sort_unstable();
            stores.dedup();
            stores.retain(|page| watched.contains(page));
            let mut told = Vec::new();
            if let Some(written) = &mirror.stores {
                written.take_stores(|offset| {
                    assert_eq!(offset % PAGE, 40);
                    told.push(offset / PAGE);
                });
            }
            mirror.trap.take_written(&mut told).unwrap();
            assert_eq!(told, stores, "{kind:?}");
            if kind == Kind::Fault {
                mirror.trap.protect(&told).unwrap();
            }
        }
        let wrong = mirror.trap.protect(&[0, PAGES]).unwrap_err();
        assert_eq!(wrong.kind(), std::io::ErrorKind::InvalidInput);
        assert!(mirror.trap.release(&[u64::MAX]).is_err());
    }
}

/// Pages of two kinds side by side: what is stored across the edge is told by one of them.
#[test]
fn two_kinds_watch_one_mapping() {
    const EDGE: usize = 2 * SIZE;
    for kind in [Kind::Fault, Kind::Tracker] {
        let Some(mirror) = Mirror::new(kind, 4) else { continue };
        let Mirror { file, mapping, trap: mut relaxed, .. } = mirror;
        let (mut strict, stores) = watch(Kind::Decode, &file, &mapping);
        let mut random = Random(5);
        for strict_first in [true, false] {
            let (low, high) = ([0, 1], [2, 3]);
            let (of_strict, of_relaxed) = if strict_first { (low, high) } else { (high, low) };
            strict.release(&[0, 1, 2, 3]).unwrap();
            relaxed.release(&[0, 1, 2, 3]).unwrap();
            relaxed.take_written(&mut Vec::new()).unwrap();
            strict.protect(&of_strict).unwrap();
            for _ in 0..500 {
                relaxed.protect(&of_relaxed).unwrap();
                let at = EDGE - 12 + random.below(24) as usize;
                let number = random.below(u64::MAX).to_le_bytes();
                // One store, whatever its alignment.
                let to = std::ptr::with_exposed_provenance_mut::<u64>(mapping.address() + at);
                // SAFETY: eight bytes inside the mapping, of which nobody has a reference.
                unsafe { std::arch::asm!("mov [{}], {}", in(reg) to, in(reg) u64::from_le_bytes(number)) };
                let mut seen = [0; 8];
                mapping.read(at, &mut seen);
                assert_eq!(seen, number);
                let mut told = BTreeSet::new();
                stores.as_ref().unwrap().take_stores(|word| {
                    told.insert(word as usize);
                });
                let mut pages = Vec::new();
                relaxed.take_written(&mut pages).unwrap();
                let unknown =
                    (at..at + 8).find(|at| !told.contains(&(at & !7)) && !pages.contains(&((at / SIZE) as u64)));
                assert_eq!(unknown, None, "{kind:?} at {at:#x}: {told:x?} {pages:?}");
            }
        }
    }
}

/// A mapping goes back to what it was, while threads store to it.
#[test]
fn watching_ends_under_way() {
    for kind in Kind::ALL {
        let Some(mirror) = Mirror::new(kind, 3) else { continue };
        let Mirror { file, mapping, mut trap, .. } = mirror;
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (mapping, end) = (&mapping, &end);
                scope.spawn(move || {
                    let mut counts = [0_u64; 3];
                    while !end.load(Ordering::Relaxed) {
                        for (page, count) in counts.iter_mut().enumerate() {
                            let word = mapping.u64_at(page * SIZE + thread * 8);
                            *count += 1;
                            word.store(*count, Ordering::Relaxed);
                            assert_eq!(word.load(Ordering::Relaxed), *count);
                        }
                    }
                });
            }
            let _end = End(&end);
            for _ in 0..200 {
                trap.protect(&[0, 1, 2]).unwrap();
                trap.release(&[1]).unwrap();
                drop(trap);
                (trap, _) = watch(kind, &file, &mapping);
            }
        });
    }
}
