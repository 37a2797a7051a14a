//! Which tables of the guest's decide about a shadow, and what a store into one of them changes.

use std::collections::BTreeMap;
use std::ops::Range;

use gpu_spec::mmu::{PhysAddr, SMALL_PAGE};

use super::ranges::Ranges;

/// The tables of one level: directories from the root down, then tables of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Bytes of an entry.
    pub(super) entry: u64,
    /// Entries of a table.
    pub(super) entries: u64,
    /// Addresses that one entry is for.
    pub(super) span: u64,
    /// Its entries are pages.
    pub(super) leaf: bool,
}

/// A table, among those that lie in one page of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Table {
    level: usize,
    /// First address that it is for.
    va: u64,
    at: PhysAddr,
}

/// The tables that were found by walking from the root, by where they lie. A table may stand for several ranges of addresses, or
/// for several levels; each counts.
#[derive(Debug)]
pub(super) struct Followed {
    shapes: Vec<Shape>,
    /// By level and first address.
    tables: BTreeMap<(usize, u64), PhysAddr>,
    /// By page. Invariant: holds exactly the tables above; none is empty.
    pages: BTreeMap<PhysAddr, Vec<Table>>,
    /// Pages that came or went since somebody asked, or changed between holding directories and not.
    news: Vec<PhysAddr>,
    /// Tables that are remembered at most.
    pub(super) limit: usize,
    /// Addresses for which tables were not remembered, because there are too many.
    beyond: Ranges,
}

/// The page that a byte lies in.
pub(crate) fn page_of(at: PhysAddr) -> PhysAddr {
    PhysAddr { address: at.address & !(SMALL_PAGE - 1), ..at }
}

impl Followed {
    /// Remembers at most `limit` tables.
    pub(super) fn new(shapes: Vec<Shape>, limit: usize) -> Followed {
        let (tables, pages, news) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Followed { shapes, tables, pages, news, limit, beyond: Ranges::default() }
    }

    /// The guest's tables say that `table` decides about the addresses from `va` on at a level; `None`: no table does. What
    /// was known to lie below another one is forgotten.
    pub(super) fn decides(&mut self, level: usize, va: u64, table: Option<PhysAddr>) {
        if self.tables.get(&(level, va)).copied() == table {
            return;
        }
        let shape = self.shapes[level];
        let all = va..va.saturating_add(shape.span.saturating_mul(shape.entries));
        self.forget(level, va..va + 1);
        for below in self.shapes[level].below(level, self.shapes.len()) {
            self.forget(below, all.clone());
        }
        let Some(at) = table else { return };
        if self.tables.len() >= self.limit {
            self.beyond.add(all);
            return;
        }
        self.tables.insert((level, va), at);
        let tables = self.pages.entry(page_of(at)).or_default();
        let leaf_before = !tables.is_empty() && tables.iter().all(|table| self.shapes[table.level].leaf);
        tables.push(Table { level, va, at });
        if tables.len() == 1 || leaf_before != (leaf_before && shape.leaf) {
            self.news.push(page_of(at));
        }
    }

    fn forget(&mut self, level: usize, range: Range<u64>) {
        while let Some((&(level, va), &at)) = self.tables.range((level, range.start)..(level, range.end)).next() {
            self.tables.remove(&(level, va));
            let page = page_of(at);
            if let Some(tables) = self.pages.get_mut(&page) {
                tables.retain(|table| (table.level, table.va) != (level, va));
                let directories = tables.iter().any(|table| !self.shapes[table.level].leaf);
                let none = tables.is_empty();
                if none {
                    self.pages.remove(&page);
                }
                if none || (!self.shapes[level].leaf && !directories) {
                    self.news.push(page);
                }
            }
        }
    }

    /// Pages that came, went, or hold other kinds of tables since this was last asked.
    pub(super) fn take_news(&mut self) -> Vec<PhysAddr> {
        let mut news = std::mem::take(&mut self.news);
        news.sort_unstable();
        news.dedup();
        news
    }

    /// Addresses about which tables decide that are not remembered. They are forgotten by this.
    pub(super) fn take_beyond(&mut self) -> Ranges {
        std::mem::take(&mut self.beyond)
    }

    /// Whether a page holds tables of pages alone; `None` if it holds no table.
    pub(super) fn is_leaf(&self, page: PhysAddr) -> Option<bool> {
        let tables = self.pages.get(&page)?;
        Some(tables.iter().all(|table| self.shapes[table.level].leaf))
    }

    /// Pages that hold tables.
    pub(super) fn pages(&self) -> impl Iterator<Item = PhysAddr> + '_ {
        self.pages.keys().copied()
    }

    /// Names the addresses about which bytes of the guest's memory decide.
    pub(super) fn decided_by(&self, at: PhysAddr, bytes: u64, name: &mut impl FnMut(Range<u64>)) {
        let end = at.address.saturating_add(bytes);
        let first = page_of(at);
        let last = PhysAddr { address: end.saturating_sub(1), ..at };
        for table in self.pages.range(first..=last).flat_map(|(_, tables)| tables) {
            let Shape { entry, entries, span, .. } = self.shapes[table.level];
            let base = table.at.address;
            let from = at.address.saturating_sub(base) / entry;
            let to = end.saturating_sub(base).div_ceil(entry).min(entries);
            if from < to {
                name(table.va.saturating_add(from * span)..table.va.saturating_add(to * span));
            }
        }
    }
}

impl Shape {
    /// Levels of tables that this level's entries can name: for directories, all that follow; a table of pages names none.
    fn below(self, level: usize, levels: usize) -> Range<usize> {
        if self.leaf { 0..0 } else { level + 1..levels }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges that have one")]
mod tests {
    use super::*;

    const DIRECTORY: Shape = Shape { entry: 16, entries: 256, span: 2 << 20, leaf: false };
    const SMALL: Shape = Shape { entry: 8, entries: 512, span: 4 << 10, leaf: true };
    const BIG: Shape = Shape { entry: 8, entries: 32, span: 64 << 10, leaf: true };
    const MIB: u64 = 1 << 20;

    fn followed(limit: usize) -> Followed {
        Followed::new(vec![DIRECTORY, SMALL, BIG], limit)
    }

    fn decided(followed: &Followed, at: u64, bytes: u64) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        followed.decided_by(PhysAddr::vram(at), bytes, &mut |range| ranges.push(range));
        ranges
    }

    #[test]
    fn a_store_decides_about_the_entries_that_it_touches() {
        let mut followed = followed(10);
        followed.decides(0, 0, Some(PhysAddr::vram(0x1000)));
        followed.decides(1, 2 * MIB, Some(PhysAddr::vram(0x2000)));
        followed.decides(2, 2 * MIB, Some(PhysAddr::vram(0x3100)));
        assert_eq!(decided(&followed, 0x1010, 1), [2 * MIB..4 * MIB]);
        assert_eq!(decided(&followed, 0x100f, 2), [0..4 * MIB]);
        assert_eq!(decided(&followed, 0x2008, 8), [2 * MIB + 0x1000..2 * MIB + 0x2000]);
        // From the end of one table into the page of the next one, in which nothing is below 0x100.
        assert_eq!(decided(&followed, 0x2ff8, 16), [2 * MIB + 0x1f_f000..4 * MIB]);
        assert_eq!(decided(&followed, 0x30f8, 8), []);
        assert_eq!(decided(&followed, 0x31f8, 64), [2 * MIB + 31 * (64 << 10)..4 * MIB]);
        assert_eq!(decided(&followed, 0x3200, 8), []);
        assert_eq!(decided(&followed, 0x4000, 4096), []);
    }

    #[test]
    fn a_table_of_several_ranges_decides_about_all() {
        let mut followed = followed(10);
        followed.decides(0, 0, Some(PhysAddr::vram(0x1000)));
        assert_eq!(followed.take_news(), [PhysAddr::vram(0x1000)]);
        followed.decides(1, 0, Some(PhysAddr::vram(0x2000)));
        followed.decides(1, 2 * MIB, Some(PhysAddr::vram(0x2000)));
        assert_eq!(followed.take_news(), [PhysAddr::vram(0x2000)]);
        assert_eq!(decided(&followed, 0x2000, 8), [0..0x1000, 2 * MIB..2 * MIB + 0x1000]);
        // The directory names itself as a table.
        followed.decides(1, 4 * MIB, Some(PhysAddr::vram(0x1000)));
        assert_eq!(followed.is_leaf(PhysAddr::vram(0x1000)), Some(false));
        assert_eq!(decided(&followed, 0x1000, 8), [0..2 * MIB, 4 * MIB..4 * MIB + 0x1000]);
        followed.decides(1, 0, None);
        assert_eq!(followed.is_leaf(PhysAddr::vram(0x2000)), Some(true));
        assert_eq!(followed.take_news(), []);
        followed.decides(1, 2 * MIB, Some(PhysAddr::vram(0x5000)));
        assert_eq!(followed.take_news(), [PhysAddr::vram(0x2000), PhysAddr::vram(0x5000)]);
        assert_eq!(followed.is_leaf(PhysAddr::vram(0x2000)), None);
    }

    #[test]
    fn what_lies_below_another_directory_is_forgotten() {
        let mut followed = followed(10);
        followed.decides(0, 0, Some(PhysAddr::vram(0x1000)));
        followed.decides(1, 0, Some(PhysAddr::vram(0x2000)));
        followed.decides(0, 512 * MIB, Some(PhysAddr::vram(0x7000)));
        followed.decides(1, 512 * MIB, Some(PhysAddr::vram(0x8000)));
        followed.take_news();
        followed.decides(0, 0, Some(PhysAddr::vram(0x1000)));
        assert_eq!(followed.take_news(), []);
        followed.decides(0, 0, Some(PhysAddr::vram(0x9000)));
        assert_eq!(followed.take_news(), [0x1000, 0x2000, 0x9000].map(PhysAddr::vram));
        assert_eq!(followed.pages().collect::<Vec<_>>(), [0x7000, 0x8000, 0x9000].map(PhysAddr::vram));
    }

    #[test]
    fn what_is_too_much_is_looked_at_each_time() {
        let mut followed = followed(2);
        followed.decides(0, 0, Some(PhysAddr::vram(0x1000)));
        followed.decides(1, 0, Some(PhysAddr::vram(0x2000)));
        assert!(followed.take_beyond().is_empty());
        followed.decides(1, 2 * MIB, Some(PhysAddr::vram(0x3000)));
        assert_eq!(followed.take_beyond().as_slice(), std::slice::from_ref(&(2 * MIB..4 * MIB)));
        followed.decides(1, 0, None);
        followed.decides(1, 2 * MIB, Some(PhysAddr::vram(0x3000)));
        assert!(followed.take_beyond().is_empty());
        assert_eq!(followed.is_leaf(PhysAddr::vram(0x3000)), Some(true));
    }
}
