//! A few ranges of addresses.

use std::ops::Range;

/// Ranges that are kept apart at most: what a guest names one by one must not grow without end, and each costs the device
/// an invalidate.
pub(super) const MAX_RANGES: usize = 32;

/// Disjoint ranges in order, joined where they touch. With too many, the two that are nearest become one: the set only ever
/// names more than was put in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Adds a range.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let first = self.0.partition_point(|old| old.end < range.start);
        let behind = self.0.partition_point(|old| old.start <= range.end);
        if first == behind {
            self.0.insert(first, range);
        } else {
            self.0[first] = self.0[first].start.min(range.start)..self.0[behind - 1].end.max(range.end);
            self.0.drain(first + 1..behind);
        }
        if self.0.len() > MAX_RANGES {
            let gap = |at: &usize| self.0[at + 1].start - self.0[*at].end;
            if let Some(at) = (0..self.0.len() - 1).min_by_key(gap) {
                self.0[at].end = self.0[at + 1].end;
                self.0.remove(at + 1);
            }
        }
    }

    /// Takes the first range out.
    pub(super) fn pop_first(&mut self) -> Option<Range<u64>> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }
}

impl Extend<Range<u64>> for Ranges {
    fn extend<T: IntoIterator<Item = Range<u64>>>(&mut self, ranges: T) {
        ranges.into_iter().for_each(|range| self.add(range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ranges: &[(u64, u64)], expect: &[(u64, u64)]) {
        let mut set = Ranges::default();
        set.extend(ranges.iter().map(|(start, end)| *start..*end));
        let seen: Vec<(u64, u64)> = set.as_slice().iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(seen, expect);
    }

    #[test]
    fn ranges_are_joined_where_they_touch() {
        check(&[(4, 8), (0, 2)], &[(0, 2), (4, 8)]);
        check(&[(4, 8), (0, 4)], &[(0, 8)]);
        check(&[(4, 8), (8, 9), (1, 2)], &[(1, 2), (4, 9)]);
        check(&[(0, 1), (4, 5), (8, 9), (1, 8)], &[(0, 9)]);
        check(&[(0, 9), (4, 5)], &[(0, 9)]);
        check(&[(9, 4), (5, 5)], &[]);
    }

    #[test]
    fn there_are_never_many() {
        let mut set = Ranges::default();
        for at in 0..1000u64 {
            let at = at * 7919 % 1000;
            set.add(at * 10..at * 10 + 1 + at % 7);
            assert!(set.as_slice().len() <= MAX_RANGES);
            assert!(set.as_slice().windows(2).all(|two| two[0].end < two[1].start));
            assert!(set.as_slice().iter().any(|range| range.contains(&(at * 10))));
        }
    }
}
