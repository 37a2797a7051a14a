//! Free ranges of a linear space: VRAM, or a part of an address space.

use std::collections::{BTreeMap, BTreeSet};

/// Candidates of nearly the right size that are tried for alignment before one is taken that fits for sure.
const CANDIDATES: usize = 16;

/// The free ranges of a space. Neighbours are merged; allocation is best fit, so that small blocks fill the gaps and large
/// ranges stay whole.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// Start to length. Invariant: ranges neither overlap nor touch.
    by_start: BTreeMap<u64, u64>,
    /// The same ranges as (length, start).
    by_size: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Extents {
    /// A space whose only free range is `bytes` at `start`.
    pub(crate) fn new(start: u64, bytes: u64) -> Extents {
        let mut extents = Extents::default();
        extents.put(start, bytes);
        extents
    }

    /// Free bytes.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes `bytes` at a multiple of `align`.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let fits = |&(length, start): &(u64, u64)| {
            let at = start.checked_next_multiple_of(align)?;
            (at - start <= length && bytes <= length - (at - start)).then_some((start, length, at))
        };
        let near = self.by_size.range((bytes, 0)..).take(CANDIDATES).find_map(fits);
        let found = near.or_else(|| self.by_size.range((bytes.checked_add(align - 1)?, 0)..).find_map(fits));
        let (start, length, at) = found?;
        self.remove(start, length);
        self.insert(start, at - start);
        self.insert(at + bytes, start + length - (at + bytes));
        Some(at)
    }

    /// Takes the largest free range, or as much of it as is asked for; of one that holds whole multiples of `align`, only
    /// these. Gives start and length.
    pub(crate) fn take_largest(&mut self, most: u64, align: u64) -> Option<(u64, u64)> {
        let &(length, start) = self.by_size.last()?;
        let first = start.next_multiple_of(align);
        let end = (start + length) / align * align;
        let (at, room) = if first < end && most >= align { (first, end - first) } else { (start, length) };
        let bytes = room.min(most);
        self.remove(start, length);
        self.insert(start, at - start);
        self.insert(at + bytes, start + length - (at + bytes));
        Some((at, bytes))
    }

    /// Gives a range back.
    pub(crate) fn put(&mut self, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (mut first, mut end) = (start, start + bytes);
        if let Some((&before, &length)) = self.by_start.range(..end).next_back() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_best_fit_and_merges() {
        let mut extents = Extents::new(0, 1 << 20);
        let a = extents.take(4096, 4096).unwrap();
        let b = extents.take(65536, 65536).unwrap();
        assert_eq!((a, b), (0, 65536));
        assert_eq!(extents.take(4096, 4096), Some(4096), "the gap before the aligned block is used first");
        assert_eq!(extents.take(1 << 20, 4096), None);
        for (start, bytes) in [(a, 4096), (4096, 4096), (b, 65536)] {
            extents.put(start, bytes);
        }
        assert_eq!(extents.free(), 1 << 20);
        assert_eq!(extents.take(1 << 20, 1 << 20), Some(0), "all is one range again");
    }

    #[test]
    fn random_use_never_overlaps() {
        let mut extents = Extents::new(0, 4096 * 512);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut seed = 7u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = seed >> 33;
            if pick.is_multiple_of(2) {
                let (bytes, align) = ((pick % 9 + 1) * 4096, 4096 << (pick % 4));
                if let Some(at) = extents.take(bytes, align) {
                    assert!(at.is_multiple_of(align));
                    assert!(taken.iter().all(|&(s, b)| at + bytes <= s || s + b <= at));
                    taken.push((at, bytes));
                }
            } else if !taken.is_empty() {
                let (start, bytes) = taken.swap_remove(pick as usize % taken.len());
                extents.put(start, bytes);
            }
            assert_eq!(extents.free() + taken.iter().map(|t| t.1).sum::<u64>(), 4096 * 512);
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn notices_a_double_free() {
        let mut extents = Extents::new(0, 8192);
        extents.put(4096, 4096);
    }
}
