//! Which tables of the guest's decide about a shadow, and what a store into one of them changes.

use std::collections::{BTreeMap, BTreeSet};
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

/// A table, among those that lie in one page of memory: the page, the level, the first address that it is for.
type InPage = (PhysAddr, usize, u64);

/// The tables that were found by walking from the root, by where they lie. A table may stand for several ranges of addresses, or
/// for several levels; each counts.
#[derive(Debug)]
pub(super) struct Followed {
    shapes: Vec<Shape>,
    /// By level and first address.
    tables: BTreeMap<(usize, u64), PhysAddr>,
    /// The same by page.
    in_pages: BTreeSet<InPage>,
    /// How many of those of a page are directories. Invariant: for each page that has a table.
    pages: BTreeMap<PhysAddr, u32>,
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
        let (tables, in_pages, pages) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Followed { shapes, tables, in_pages, pages, news: Vec::new(), limit, beyond: Ranges::default() }
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
        if !shape.leaf {
            self.forget_from(level + 1, all.clone());
        }
        let Some(at) = table else { return };
        if self.tables.len() >= self.limit {
            self.beyond.add(all);
            return;
        }
        let page = page_of(at);
        self.tables.insert((level, va), at);
        self.in_pages.insert((page, level, va));
        let before = self.pages.get(&page).copied();
        let directories = before.unwrap_or(0) + u32::from(!shape.leaf);
        self.pages.insert(page, directories);
        if before.is_none() || (before == Some(0) && !shape.leaf) {
            self.news.push(page);
        }
    }

    /// No tables of a level, or of one below it, decide about addresses any more.
    pub(super) fn forget_from(&mut self, level: usize, range: Range<u64>) {
        (level..self.shapes.len()).for_each(|below| self.forget(below, range.clone()));
    }

    fn forget(&mut self, level: usize, range: Range<u64>) {
        while let Some((&(level, va), &at)) = self.tables.range((level, range.start)..(level, range.end)).next() {
            self.tables.remove(&(level, va));
            let page = page_of(at);
            self.in_pages.remove(&(page, level, va));
            let directory = !self.shapes[level].leaf;
            let Some(directories) = self.pages.get_mut(&page) else { continue };
            *directories -= u32::from(directory);
            let none_left = directory && *directories == 0;
            if self.in_pages.range((page, 0, 0)..=(page, usize::MAX, u64::MAX)).next().is_none() {
                self.pages.remove(&page);
                self.news.push(page);
            } else if none_left {
                self.news.push(page);
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
        self.pages.get(&page).map(|directories| *directories == 0)
    }

    /// Pages that hold tables.
    pub(super) fn pages(&self) -> impl Iterator<Item = PhysAddr> + '_ {
        self.pages.keys().copied()
    }

    /// Which table of a level decides about the addresses from `va` on.
    pub(super) fn table(&self, level: usize, va: u64) -> Option<PhysAddr> {
        self.tables.get(&(level, va)).copied()
    }

    /// Names the addresses about which bytes of the guest's memory decide: by pages, or by directories of a level.
    pub(super) fn decided_by(&self, at: PhysAddr, bytes: u64, name: &mut impl FnMut(Option<usize>, Range<u64>)) {
        if bytes == 0 {
            return;
        }
        let end = at.address.saturating_add(bytes);
        let first = page_of(at);
        let last = page_of(PhysAddr { address: end - 1, ..at });
        for (_, level, va) in self.in_pages.range((first, 0, 0)..=(last, usize::MAX, u64::MAX)) {
            let Some(table) = self.tables.get(&(*level, *va)) else { continue };
            let Shape { entry, entries, span, leaf } = self.shapes[*level];
            let base = table.address;
            let from = at.address.saturating_sub(base) / entry;
            let to = end.saturating_sub(base).div_ceil(entry).min(entries);
            if from < to {
                let directories = Some(*level).filter(|_| !leaf);
                name(directories, va.saturating_add(from * span)..va.saturating_add(to * span));
            }
        }
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
        followed.decided_by(PhysAddr::vram(at), bytes, &mut |_, range| ranges.push(range));
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
