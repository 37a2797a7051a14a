//! Disjoint ranges with values.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-empty ranges of `u64`, each with a value.
///
/// Ranges that touch stay apart unless [`IntervalMap::insert_joined`] is told that they belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntervalMap<V> {
    /// Start to end and value. Invariant: no range is empty, none overlaps another.
    by_start: BTreeMap<u64, (u64, V)>,
}

/// Why a range was not inserted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It holds nothing, or ends before it begins.
    Empty,
    /// This interval, the first of them, is in the way.
    Overlaps(Range<u64>),
}

/// Where a point lies, as seen from a range of bytes: so many "bytes into", "bytes behind the end of", or "bytes before" it.
#[must_use]
pub fn bearing(at: u64, range: &Range<u64>) -> String {
    match range {
        _ if range.contains(&at) => format!("{} bytes into", at - range.start),
        _ if range.end <= at => format!("{} bytes behind the end of", at - range.end),
        _ => format!("{} bytes before", range.start - at),
    }
}

/// An interval that a cut has touched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut<V> {
    /// The interval as it was.
    pub whole: Range<u64>,
    /// What was taken out of it.
    pub part: Range<u64>,
    /// Its value, as it was: that of `whole`.
    pub value: V,
}

impl<V> Cut<V> {
    /// How many intervals are left of it: 0, 1, or 2 when the part came out of its middle.
    #[must_use]
    pub fn remainders(&self) -> usize {
        usize::from(self.whole.start < self.part.start) + usize::from(self.part.end < self.whole.end)
    }
}

impl<V> Default for IntervalMap<V> {
    fn default() -> IntervalMap<V> {
        IntervalMap { by_start: BTreeMap::new() }
    }
}

impl<V> IntervalMap<V> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> IntervalMap<V> {
        IntervalMap { by_start: BTreeMap::new() }
    }

    /// Number of intervals.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// True if there is no interval.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.by_start.clear();
    }

    /// All intervals in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Range<u64>, &V)> {
        self.by_start.iter().map(|(&start, (end, value))| (start..*end, value))
    }

    /// All values in the order of their intervals.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.by_start.values().map(|(_, value)| value)
    }

    /// The interval around a point.
    #[must_use]
    pub fn get(&self, at: u64) -> Option<(Range<u64>, &V)> {
        let (&start, (end, value)) = self.by_start.range(..=at).next_back()?;
        (at < *end).then_some((start..*end, value))
    }

    /// The interval around a point, its value to be changed.
    pub fn get_mut(&mut self, at: u64) -> Option<(Range<u64>, &mut V)> {
        let (&start, (end, value)) = self.by_start.range_mut(..=at).next_back()?;
        (at < *end).then_some((start..*end, value))
    }

    /// The intervals that have a point in common with a range, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = (Range<u64>, &V)> {
        let first = self.get(range.start).map_or(range.start, |(around, _)| around.start);
        // An empty range has no points, wherever it lies.
        let range = if range.start < range.end { first..range.end } else { 0..0 };
        self.by_start.range(range).map(|(&start, (end, value))| (start..*end, value))
    }

    /// The interval around a point, or else the one that is nearest to it.
    #[must_use]
    pub fn nearest(&self, at: u64) -> Option<(Range<u64>, &V)> {
        let below = self.by_start.range(..=at).next_back();
        let above = self.by_start.range(at..).next();
        let both = below.into_iter().chain(above).map(|(&start, (end, value))| (start..*end, value));
        both.min_by_key(|(range, _)| match range {
            _ if range.contains(&at) => 0,
            _ if range.end <= at => at - range.end,
            _ => range.start - at,
        })
    }

    /// The parts of a range that no interval covers, in order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = range.start;
        let last = std::iter::once(range.end..range.end);
        let covered = self.overlapping(range.clone()).map(|(interval, _)| interval).chain(last);
        covered.filter_map(move |interval| {
            let gap = at..interval.start;
            at = interval.end;
            (gap.start < gap.end).then_some(gap)
        })
    }

    /// True if intervals cover all of a range.
    #[must_use]
    pub fn covers(&self, range: Range<u64>) -> bool {
        self.gaps(range).next().is_none()
    }

    /// Adds an interval.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn insert(&mut self, range: Range<u64>, value: V) -> Result<(), Refused> {
        if range.start >= range.end {
            return Err(Refused::Empty);
        }
        if let Some((other, _)) = self.overlapping(range.clone()).next() {
            return Err(Refused::Overlaps(other));
        }
        self.by_start.insert(range.start, (range.end, value));
        Ok(())
    }

    /// Adds an interval, and joins it with the neighbours that it touches and `continues`: given an interval's value, its
    /// length, and the value of what follows it immediately, whether the two are one. The joined interval has the value of
    /// the lower one.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn insert_joined(
        &mut self,
        range: Range<u64>,
        value: V,
        continues: impl Fn(&V, u64, &V) -> bool,
    ) -> Result<(), Refused> {
        let Range { start, mut end } = range;
        self.insert(range, value)?;
        let value = |at: u64| self.by_start.get(&at).map(|(_, value)| value);
        let above = match (value(start), value(end)) {
            (Some(new), Some(next)) => continues(new, end - start, next),
            _ => false,
        };
        if above && let Some((joined, _)) = self.by_start.remove(&end) {
            end = joined;
            self.by_start.entry(start).and_modify(|(until, _)| *until = joined);
        }
        let before = self.by_start.range(..start).next_back().filter(|(_, (until, _))| *until == start);
        let Some((&before, (_, below))) = before else { return Ok(()) };
        let joins = self.by_start.get(&start).is_some_and(|(_, new)| continues(below, start - before, new));
        if joins {
            self.by_start.remove(&start);
            self.by_start.entry(before).and_modify(|(until, _)| *until = end);
        }
        Ok(())
    }

    /// Removes the whole interval that begins at `start`.
    pub fn remove(&mut self, start: u64) -> Option<(Range<u64>, V)> {
        self.by_start.remove(&start).map(|(end, value)| (start..end, value))
    }

    /// Takes a range out: intervals that reach beyond it are split. Gives those that were touched, in order, as they were.
    pub fn cut(&mut self, range: Range<u64>) -> Vec<Cut<V>>
    where
        V: Clone,
    {
        self.cut_with(range, |value, _| value.clone())
    }

    /// As [`IntervalMap::cut`], for values that say where in something the interval begins: `advance` gives the value of
    /// what is left above the range, from the value of the whole and the distance from its start.
    pub fn cut_with(&mut self, range: Range<u64>, advance: impl Fn(&V, u64) -> V) -> Vec<Cut<V>>
    where
        V: Clone,
    {
        let starts: Vec<u64> = self.overlapping(range.clone()).map(|(interval, _)| interval.start).collect();
        let mut touched = Vec::with_capacity(starts.len());
        for start in starts {
            let Some((end, value)) = self.by_start.remove(&start) else { continue };
            if start < range.start {
                self.by_start.insert(start, (range.start, value.clone()));
            }
            if range.end < end {
                self.by_start.insert(range.end, (end, advance(&value, range.end - start)));
            }
            touched.push(Cut { whole: start..end, part: start.max(range.start)..end.min(range.end), value });
        }
        touched
    }

    /// How many intervals more there would be after cutting a range out, at most 1: a hole leaves two of one.
    #[must_use]
    pub fn splits(&self, range: Range<u64>) -> bool {
        range.start < range.end
            && self.get(range.start).is_some_and(|(around, _)| around.start < range.start && range.end < around.end)
    }
}
