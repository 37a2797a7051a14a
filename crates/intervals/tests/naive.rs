//! Maps and free lists beside a twin that keeps every point by itself.

use std::collections::BTreeSet;
use std::ops::Range;

use intervals::{FreeRanges, IntervalMap, Refused, bearing};
use proptest::prelude::*;

/// Points of the space.
const POINTS: u64 = 64;

/// A value: what the interval shows, and where in it the interval begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shown {
    what: u8,
    offset: u64,
}

impl Shown {
    fn advance(&self, by: u64) -> Shown {
        Shown { offset: self.offset + by, ..*self }
    }

    fn continues(&self, length: u64, next: &Shown) -> bool {
        self.advance(length) == *next
    }
}

/// For each point, what is shown there, and a number of its interval.
#[derive(Clone, Default)]
struct Naive {
    points: Vec<Option<(u64, Shown)>>,
    next: u64,
}

impl Naive {
    fn new() -> Naive {
        Naive { points: vec![None; POINTS as usize], next: 0 }
    }

    fn insert(&mut self, range: Range<u64>, value: Shown) -> bool {
        let free = !range.is_empty() && range.clone().all(|at| self.points[at as usize].is_none());
        if free {
            self.next += 1;
            for at in range.clone() {
                self.points[at as usize] = Some((self.next, value.advance(at - range.start)));
            }
        }
        free
    }

    /// Gives every interval from `from` on its own number, so that what a hole leaves is two.
    fn cut(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let above = self.points.get(range.end as usize).copied().flatten().map(|(number, _)| number);
        for at in range.clone() {
            self.points[at as usize] = None;
        }
        self.next += 1;
        for point in &mut self.points[range.end as usize..] {
            match point {
                Some((number, _)) if Some(*number) == above => *number = self.next,
                _ => break,
            }
        }
    }

    /// Joins what touches and continues at `at`.
    fn join(&mut self, at: u64) {
        let Some(below) = at.checked_sub(1) else { return };
        let (Some(Some(below)), Some(Some(above))) =
            (self.points.get(below as usize).copied(), self.points.get(at as usize).copied())
        else {
            return;
        };
        if below.1.continues(1, &above.1) {
            for point in self.points.iter_mut().flatten().filter(|point| point.0 == above.0) {
                point.0 = below.0;
            }
        }
    }

    fn intervals(&self) -> Vec<(Range<u64>, Shown)> {
        let mut out: Vec<(Range<u64>, Shown)> = Vec::new();
        let mut last = None;
        for (at, point) in (0..).zip(&self.points) {
            match (point, out.last_mut()) {
                (Some((number, _)), Some((range, _))) if last == Some(*number) => range.end = at + 1,
                (Some((_, shown)), _) => out.push((at..at + 1, *shown)),
                (None, _) => {}
            }
            last = point.map(|(number, _)| number);
        }
        out
    }
}

fn check(map: &IntervalMap<Shown>, naive: &Naive, range: &Range<u64>) {
    let all: Vec<(Range<u64>, Shown)> = map.iter().map(|(range, value)| (range, *value)).collect();
    assert_eq!(all, naive.intervals());
    assert_eq!(map.len(), all.len());
    assert!(map.values().eq(all.iter().map(|(_, value)| value)));
    for at in 0..POINTS {
        let (found, expected) = (map.get(at), all.iter().find(|(range, _)| range.contains(&at)));
        let away = |range: &Range<u64>| range.start.saturating_sub(at).max(at.saturating_sub(range.end));
        let nearest = map.nearest(at).map(|(range, _)| (range.contains(&at), away(&range)));
        let naive = all.iter().map(|(range, _)| (range.contains(&at), away(range)));
        assert_eq!(nearest, naive.max_by_key(|&(inside, away)| (inside, std::cmp::Reverse(away))));
        assert_eq!(found.map(|(range, value)| (range, *value)), expected.cloned());
    }
    let touches = |other: &Range<u64>| other.start.max(range.start) < other.end.min(range.end);
    let overlapping: Vec<Range<u64>> = map.overlapping(range.clone()).map(|(range, _)| range).collect();
    assert!(overlapping.iter().eq(all.iter().map(|(range, _)| range).filter(|other| touches(other))));
    let gaps: BTreeSet<u64> = map.gaps(range.clone()).inspect(|gap| assert!(!gap.is_empty())).flatten().collect();
    assert!(gaps.iter().copied().eq(range.clone().filter(|at| naive.points[*at as usize].is_none())));
    assert_eq!(map.covers(range.clone()), gaps.is_empty());
}

proptest! {
    #[test]
    fn a_map_is_its_points(steps in proptest::collection::vec((0u8..8, 0..POINTS, 0..20u64, 0u8..2, 0..40u64), 1..120)) {
        let (mut map, mut naive) = (IntervalMap::new(), Naive::new());
        for (kind, start, bytes, what, offset) in steps {
            let range = start..(start + bytes).min(POINTS);
            // Many of these continue each other.
            let value = Shown { what, offset: if offset < 20 { start } else { offset } };
            match kind {
                0..=2 => {
                    let inserted = map.insert(range.clone(), value);
                    match &inserted {
                        Ok(()) => {}
                        Err(Refused::Empty) => prop_assert!(range.is_empty()),
                        Err(Refused::Overlaps(other)) => {
                            prop_assert_eq!(map.overlapping(range.clone()).next().unwrap().0, other.clone());
                        }
                    }
                    prop_assert_eq!(inserted.is_ok(), naive.insert(range.clone(), value));
                }
                3 | 4 => {
                    let inserted = map.insert_joined(range.clone(), value, Shown::continues).is_ok();
                    prop_assert_eq!(inserted, naive.insert(range.clone(), value));
                    if inserted {
                        naive.join(range.start);
                        naive.join(range.end);
                    }
                }
                5 | 6 => {
                    let before = map.clone();
                    let splits = map.splits(range.clone());
                    let cuts = map.cut_with(range.clone(), Shown::advance);
                    naive.cut(range.clone());
                    prop_assert!(cuts.iter().map(|cut| (cut.whole.clone(), &cut.value)).eq(before.overlapping(range.clone())));
                    for cut in &cuts {
                        prop_assert_eq!(cut.part.clone(), cut.whole.start.max(range.start)..cut.whole.end.min(range.end));
                    }
                    let left: usize = cuts.iter().map(intervals::Cut::remainders).sum();
                    prop_assert_eq!(map.len(), before.len() - cuts.len() + left);
                    prop_assert_eq!(splits, map.len() > before.len());
                }
                _ => {
                    let removed = map.remove(start);
                    let expected = naive.intervals().into_iter().find(|(range, _)| range.start == start);
                    prop_assert_eq!(&removed, &expected);
                    if let Some((range, _)) = expected {
                        naive.cut(range);
                    }
                }
            }
            check(&map, &naive, &range);
        }
    }

    #[test]
    fn free_ranges_are_the_points_nobody_has(
        steps in proptest::collection::vec((0u8..6, 0..POINTS, 1..20u64, 1..9u64), 1..200)
    ) {
        let mut free = FreeRanges::new(0, POINTS);
        let mut points: BTreeSet<u64> = (0..POINTS).collect();
        let mut taken: Vec<Range<u64>> = Vec::new();
        for (kind, start, bytes, align) in steps {
            let fits = |at: u64| (at..at + bytes).all(|point| points.contains(&point));
            let lowest = (0..POINTS).filter(|at| at % align == 0).find(|at| fits(*at));
            let got = match kind {
                0 => {
                    let at = free.take(bytes, align);
                    prop_assert_eq!(at.is_some(), lowest.is_some());
                    at.map(|at| at..at + bytes)
                }
                1 => {
                    let at = free.take_lowest(bytes, align);
                    prop_assert_eq!(at, lowest);
                    at.map(|at| at..at + bytes)
                }
                2 => {
                    let expected = fits(start);
                    prop_assert_eq!(free.take_at(start, bytes), expected);
                    expected.then(|| start..start + bytes)
                }
                3 => {
                    let got = free.take_largest(bytes, align);
                    prop_assert_eq!(got.is_some(), !points.is_empty());
                    got.map(|(at, length)| {
                        assert!((1..=bytes).contains(&length));
                        at..at + length
                    })
                }
                _ => {
                    if !taken.is_empty() {
                        let range = taken.swap_remove(start as usize % taken.len());
                        free.give(range.start, range.end - range.start);
                        points.extend(range);
                    }
                    None
                }
            };
            if let Some(range) = got {
                prop_assert!(kind >= 2 || range.start % align == 0);
                for point in range.clone() {
                    prop_assert!(points.remove(&point), "nobody has it");
                }
                taken.push(range);
            }
            prop_assert_eq!(free.free(), points.len() as u64);
            prop_assert!(free.iter().flatten().eq(points.iter().copied()));
            let ranges: Vec<Range<u64>> = free.iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "those that touch are one");
            prop_assert_eq!(free.is_whole(POINTS), taken.is_empty());
        }
    }
}

#[test]
fn a_range_says_where_a_point_is() {
    let range = 100..200;
    for (at, expected) in [
        (98, "2 bytes before"),
        (100, "0 bytes into"),
        (199, "99 bytes into"),
        (200, "0 bytes behind the end of"),
        (207, "7 bytes behind the end of"),
    ] {
        assert_eq!(bearing(at, &range), expected);
    }
}
