//! What was written, as bits in memory that a signal handler may touch, and that two processes may share.
//!
//! A bitmap cannot be full, and whoever sets bits and dies in the middle stops nobody. So that asking does not cost a look at
//! all of it, there is a bit above for each of its words, one above these for each of theirs, and so on, up to a single word:
//!
//! ```text
//!   who sets     the bit, then the one above it, ... up to the single word
//!   who takes    the single word, then the words that it names, ... down to the bits: each is read and cleared at once
//! ```
//! A bit that is set when the word above has been taken sets that again, and is found the next time. A bit that was taken
//! already leaves, above, a bit that names a word without any: a look in vain. So none is lost.

use std::io;
use std::ops::Range;
#[cfg(any(target_arch = "x86_64", test))]
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hostmem::{Mapping, Memfd, PAGE};

/// Bits of a word.
const BITS: u64 = 64;
/// Words in the unit of stores: what a page table entry has.
const WORD: u64 = 8;
/// Words in a page.
const WORDS: u64 = PAGE / WORD;
/// Most pages of a mapping: 16 TiB. It keeps what is computed of them far from overflow.
const MOST_PAGES: u64 = 1 << 32;

/// A bitmap with the words above it.
#[derive(Debug)]
struct Marks {
    memory: Arc<Mapping>,
    /// First word in the memory, and words, from the bits up to the single word.
    levels: Vec<(u64, u64)>,
}

/// Words of each level for so many bits.
fn levels(bits: u64) -> Vec<u64> {
    let mut levels = vec![bits.div_ceil(BITS)];
    while let Some(&words) = levels.last().filter(|words| **words > 1) {
        levels.push(words.div_ceil(BITS));
    }
    levels
}

fn words(bits: u64) -> u64 {
    levels(bits).iter().sum()
}

impl Marks {
    /// The memory has `words(bits)` words from `first` on.
    fn new(memory: Arc<Mapping>, first: u64, bits: u64) -> Marks {
        let mut at = first;
        let level = |words| {
            at += words;
            (at - words, words)
        };
        Marks { memory, levels: levels(bits).into_iter().map(level).collect() }
    }

    fn word(&self, level: usize, word: u64) -> &AtomicU64 {
        self.memory.u64_at(((self.levels[level].0 + word) * WORD) as usize)
    }

    /// Sets bits, which are inside.
    #[cfg(any(target_arch = "x86_64", test))]
    fn set(&self, bits: RangeInclusive<u64>) {
        let (mut first, mut last) = bits.into_inner();
        for level in 0..self.levels.len() {
            for word in first / BITS..=last / BITS {
                let low = if word == first / BITS { first % BITS } else { 0 };
                let high = if word == last / BITS { last % BITS } else { BITS - 1 };
                let mask = (u64::MAX >> (BITS - 1 - (high - low))) << low;
                let word = self.word(level, word);
                // The bits themselves are always written: with them goes what was stored before, whoever takes them sees it.
                // Above, a bit that is there has not been taken yet, and whoever takes it comes down here afterwards.
                if level == 0 || word.load(Ordering::SeqCst) & mask != mask {
                    word.fetch_or(mask, Ordering::SeqCst);
                }
            }
            (first, last) = (first / BITS, last / BITS);
        }
    }

    /// Takes the bits that are set and wanted, in increasing order. What another process wrote here may be anything: bits that
    /// cannot be are not told, and where none is wanted, nobody looks. `wanted` says whether any of a range of bits is.
    fn take(&self, wanted: &impl Fn(Range<u64>) -> bool, f: &mut impl FnMut(u64)) {
        self.take_word(self.levels.len() - 1, 0, wanted, f);
    }

    fn take_word(&self, level: usize, word: u64, wanted: &impl Fn(Range<u64>) -> bool, f: &mut impl FnMut(u64)) {
        let at = self.word(level, word);
        if at.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut bits = at.swap(0, Ordering::SeqCst);
        // How many of the lowest bits stand behind one here.
        let below = 1 << (BITS.trailing_zeros() * level as u32);
        while bits != 0 {
            let bit = word * BITS + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            // What is set below what is not wanted stays; whoever sets more there sets the bits above once more.
            if !wanted(bit * below..(bit + 1) * below) {
                continue;
            }
            match level.checked_sub(1) {
                None => f(bit),
                Some(level) if bit < self.levels[level].1 => self.take_word(level, bit, wanted, f),
                Some(_) => {}
            }
        }
    }
}

/// What a [`crate::Decode`] noticed, for whoever takes it: in the same process, or in another that maps the same file.
///
/// There are two kinds of news. Single stores, in words of 8 bytes: their page is watched as before. And pages that had to be
/// released, of which all may have been written, and may be from now on.
#[derive(Debug)]
pub struct Written {
    pages: u64,
    stores: Marks,
    released: Marks,
}

impl Written {
    /// For a mapping of so many pages; and the file that another process needs to take from the same. It is sparse: of its
    /// size, 1/64 of the mapping's, it takes what watched pages need.
    ///
    /// # Errors
    /// `InvalidInput` if there are no pages, or more than 2^32; else what the operating system says.
    pub fn create(pages: u64) -> io::Result<(Written, Memfd)> {
        let file = Memfd::create("sundial-written", Written::words(pages)? * WORD)?;
        Ok((Written::from_file(&file, pages)?, file))
    }

    /// In a file that [`Written::create`] made.
    ///
    /// # Errors
    /// As there; `InvalidInput` as well if the file is too small.
    pub fn from_file(file: &Memfd, pages: u64) -> io::Result<Written> {
        let bytes = (Written::words(pages)? * WORD).next_multiple_of(PAGE);
        if file.bytes() < bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "file too small for so many pages"));
        }
        // Whoever sent it may have made it larger.
        let memory = Arc::new(file.map_part(0, bytes)?);
        let stores = Marks::new(Arc::clone(&memory), 0, pages * WORDS);
        let released = Marks::new(memory, words(pages * WORDS), pages);
        Ok(Written { pages, stores, released })
    }

    fn words(pages: u64) -> io::Result<u64> {
        if pages == 0 || pages > MOST_PAGES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such number of pages"));
        }
        Ok(words(pages * WORDS) + words(pages))
    }

    /// Pages of the mapping.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes the stores: the offset in the mapping of each word of 8 bytes that was written, wholly or in part, since the
    /// last time; in increasing order. What is read there afterwards is what was stored, or newer.
    pub fn take_stores(&self, word: impl FnMut(u64)) {
        self.take_stores_in(&|_| true, word);
    }

    /// Takes the pages that had to be released, in increasing order.
    pub fn take_released(&self, page: impl FnMut(u64)) {
        self.take_released_in(&|_| true, page);
    }

    /// As [`Written::take_stores`], only those to pages that are wanted; `wanted` says whether any of a range of pages is.
    /// Neither time nor what is named depends on what else somebody may have written here.
    pub(crate) fn take_stores_in(&self, wanted: &impl Fn(Range<u64>) -> bool, mut word: impl FnMut(u64)) {
        let count = self.pages * WORDS;
        let wanted = |bits: Range<u64>| wanted(bits.start / WORDS..bits.end.div_ceil(WORDS));
        self.stores.take(&wanted, &mut |bit| {
            if bit < count {
                word(bit * WORD);
            }
        });
    }

    /// As [`Written::take_released`], only those that are wanted.
    pub(crate) fn take_released_in(&self, wanted: &impl Fn(Range<u64>) -> bool, mut page: impl FnMut(u64)) {
        self.released.take(wanted, &mut |bit| {
            if bit < self.pages {
                page(bit);
            }
        });
    }

    /// Notes a store of so many bytes, not none, inside the mapping.
    #[cfg(any(target_arch = "x86_64", test))]
    pub(crate) fn stored(&self, offset: u64, bytes: u64) {
        self.stores.set(offset / WORD..=(offset + bytes - 1) / WORD);
    }

    /// Notes that pages are released.
    #[cfg(any(target_arch = "x86_64", test))]
    pub(crate) fn released(&self, pages: RangeInclusive<u64>) {
        self.released.set(pages);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn take(written: &Written) -> (Vec<u64>, Vec<u64>) {
        let (mut stores, mut pages) = (Vec::new(), Vec::new());
        written.take_stores(|word| stores.push(word));
        written.take_released(|page| pages.push(page));
        (stores, pages)
    }

    #[test]
    fn what_is_set_is_taken_once() {
        for pages in [1, 2, 64, 65, 5000] {
            let (written, file) = Written::create(pages).unwrap();
            let other = Written::from_file(&file, pages).unwrap();
            assert_eq!(take(&other), (vec![], vec![]));
            let last = pages * PAGE - 8;
            written.stored(7, 1);
            written.stored(13, 8);
            written.stored(last, 8);
            written.released(0..=0);
            written.released(pages - 1..=pages - 1);
            let expect: BTreeSet<u64> = [0, 8, 16, last].into();
            let ends: BTreeSet<u64> = [0, pages - 1].into();
            assert_eq!(take(&other), (expect.into_iter().collect(), ends.into_iter().collect()));
            assert_eq!(take(&written), (vec![], vec![]));
            written.stored(0, pages * PAGE);
            written.released(0..=pages - 1);
            assert_eq!(take(&other), ((0..pages * PAGE).step_by(8).collect(), (0..pages).collect()));
            assert_eq!(take(&other), (vec![], vec![]));
        }
    }

    #[test]
    fn whatever_another_process_writes_names_only_what_there_is() {
        let (written, file) = Written::create(65).unwrap();
        let memory = file.map().unwrap();
        memory.fill(0, memory.len(), 0xff);
        assert_eq!(take(&written), ((0..65 * PAGE).step_by(8).collect(), (0..65).collect()));
        assert!(Written::create(0).is_err() && Written::create(u64::MAX).is_err());
        assert!(Written::from_file(&file, 1 << 20).is_err());
    }

    /// Each setter counts up in a word of its own, then marks it; what is counted when a mark is taken must never be behind
    /// what was counted when it was set, and the last count is always told of.
    #[test]
    fn no_mark_is_lost_while_others_take() {
        const SETTERS: u64 = 3;
        const COUNTS: u64 = 30_000;
        let (written, _) = Written::create(200).unwrap();
        let counters: Vec<AtomicU64> = (0..SETTERS).map(|_| AtomicU64::new(0)).collect();
        let seen: Vec<AtomicU64> = (0..SETTERS).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        let take = || {
            written.take_stores(|word| {
                let setter = (word / PAGE % SETTERS) as usize;
                seen[setter].fetch_max(counters[setter].load(Ordering::Relaxed), Ordering::Relaxed);
            });
        };
        std::thread::scope(|scope| {
            let setters: Vec<_> = (0..SETTERS)
                .map(|setter| {
                    let (written, counter) = (&written, &counters[setter as usize]);
                    scope.spawn(move || {
                        for count in 1..=COUNTS {
                            counter.store(count, Ordering::Relaxed);
                            written.stored((count % 60 * SETTERS + setter) * PAGE + count % 512 * 8, 8);
                        }
                    })
                })
                .collect();
            let taker = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    take();
                }
            });
            setters.into_iter().for_each(|setter| setter.join().unwrap());
            done.store(true, Ordering::Release);
            taker.join().unwrap();
        });
        take();
        assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == COUNTS), "{seen:?}");
    }
}
