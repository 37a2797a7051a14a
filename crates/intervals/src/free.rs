//! Ranges that are free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Candidates of nearly the right size that are tried for alignment before one is taken that fits for sure.
const CANDIDATES: usize = 16;

/// The free ranges of a space. Those that touch are one.
///
/// Alignments are not zero; they need not be powers of two.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FreeRanges {
    /// Start to length. Invariant: ranges neither overlap nor touch, and none is empty.
    by_start: BTreeMap<u64, u64>,
    /// The same ranges as (length, start).
    by_size: BTreeSet<(u64, u64)>,
    free: u64,
}

impl FreeRanges {
    /// A space whose only free range is `bytes` at `start`.
    #[must_use]
    pub fn new(start: u64, bytes: u64) -> FreeRanges {
        let mut ranges = FreeRanges::default();
        ranges.give(start, bytes);
        ranges
    }

    /// Free bytes.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// True if the one range of `bytes` is all there is.
    #[must_use]
    pub fn is_whole(&self, bytes: u64) -> bool {
        self.by_start.len() == 1 && self.free == bytes
    }

    /// The free ranges in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        self.by_start.iter().map(|(&start, &length)| start..start + length)
    }

    /// Takes `bytes` at a multiple of `align`, out of a range of nearly that size: small blocks fill gaps, and large ranges
    /// stay whole.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let fit = |&(length, start): &(u64, u64)| fit(start, length, bytes, align);
        let near = self.by_size.range((bytes, 0)..).take(CANDIDATES).find_map(fit);
        let at = near.or_else(|| self.by_size.range((bytes.checked_add(align - 1)?, 0)..).find_map(fit))?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Takes `bytes` at the lowest multiple of `align`: addresses in use stay together. Looks at all free ranges below.
    pub fn take_lowest(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let at = self.by_start.iter().find_map(|(&start, &length)| fit(start, length, bytes, align))?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Takes exactly this range, if all of it is free and it is not empty.
    #[must_use]
    pub fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let around = self.by_start.range(..=at).next_back().map(|(&start, &length)| (start, length));
        let Some((start, length)) = around else { return false };
        if bytes == 0 || at - start >= length || bytes > length - (at - start) {
            return false;
        }
        self.remove(start, length);
        self.insert(start, at - start);
        self.insert(at + bytes, start + length - (at + bytes));
        true
    }

    /// Takes the largest free range, or as much of it as is asked for; of one that holds whole multiples of `align`, only
    /// these. Gives start and length.
    pub fn take_largest(&mut self, most: u64, align: u64) -> Option<(u64, u64)> {
        let &(length, start) = self.by_size.last()?;
        let end = (start + length) / align * align;
        let (at, room) = match start.checked_next_multiple_of(align) {
            Some(first) if first < end && most >= align => (first, end - first),
            _ => (start, length),
        };
        let bytes = room.min(most);
        self.take_at(at, bytes).then_some((at, bytes))
    }

    /// Gives a range back.
    ///
    /// # Panics
    /// If a part of it is free already: two owners of one range are worse than none.
    pub fn give(&mut self, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (mut first, mut end) = (start, start + bytes);
        let before = self.by_start.range(..end).next_back().map(|(&before, &length)| (before, length));
        if let Some((before, length)) = before {
            assert!(before + length <= start, "range {start:#x}+{bytes:#x} is given back twice");
            if before + length == start {
                self.remove(before, length);
                first = before;
            }
        }
        if let Some(&length) = self.by_start.get(&end) {
            self.remove(end, length);
            end += length;
        }
        self.insert(first, end - first);
    }

    fn insert(&mut self, start: u64, bytes: u64) {
        if bytes > 0 {
            self.by_start.insert(start, bytes);
            self.by_size.insert((bytes, start));
            self.free += bytes;
        }
    }

    fn remove(&mut self, start: u64, bytes: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(bytes, start));
        self.free -= bytes;
    }
}

/// Where in a free range `bytes` fit.
fn fit(start: u64, length: u64, bytes: u64, align: u64) -> Option<u64> {
    let at = start.checked_next_multiple_of(align)?;
    (bytes > 0 && at - start <= length && bytes <= length - (at - start)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_best_fit_and_joins() {
        let mut free = FreeRanges::new(0, 1 << 20);
        let a = free.take(4096, 4096).unwrap();
        let b = free.take(65536, 65536).unwrap();
        assert_eq!((a, b), (0, 65536));
        assert_eq!(free.take(4096, 4096), Some(4096), "the gap before the aligned block is used first");
        assert_eq!(free.take(1 << 20, 4096), None);
        for (start, bytes) in [(a, 4096), (4096, 4096), (b, 65536)] {
            free.give(start, bytes);
        }
        assert!(free.is_whole(1 << 20));
        assert_eq!(free.take(1 << 20, 1 << 20), Some(0), "all is one range again");
    }

    #[test]
    fn takes_the_largest_with_alignment_where_it_can() {
        let mut free = FreeRanges::new(4096, 3 << 12);
        assert_eq!(free.take_largest(1 << 20, 8192), Some((8192, 8192)));
        assert_eq!(free.take_largest(1 << 20, 8192), Some((4096, 4096)), "no multiple inside: all of it");
        assert_eq!(free.take_largest(1, 1), None);
    }

    #[test]
    fn takes_exactly_what_is_named() {
        let mut free = FreeRanges::new(0, 100);
        assert!(free.take_at(10, 20));
        assert!(!free.take_at(29, 2));
        assert!(!free.take_at(90, u64::MAX));
        assert!(!free.take_at(50, 0));
        free.give(10, 20);
        assert!(free.is_whole(100));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn notices_a_double_free() {
        let mut free = FreeRanges::new(0, 8192);
        free.give(4096, 4096);
    }
}
