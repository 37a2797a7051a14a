//! Where the watched mapping lies.

use std::io;
use std::ops::Range;

use hostmem::{Mapping, PAGE};

/// A range of addresses, whole pages, in this process or in another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    // Invariant: a multiple of the page size, not null; `address + pages * PAGE` does not overflow.
    address: u64,
    // Invariant: not zero.
    pages: u64,
}

impl Area {
    pub(crate) fn new(address: u64, bytes: u64) -> io::Result<Area> {
        let whole = address.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        if !whole || address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no whole pages"));
        }
        Ok(Area { address, pages: bytes / PAGE })
    }

    pub(crate) fn of(mapping: &Mapping) -> Area {
        Area { address: mapping.address() as u64, pages: mapping.len() as u64 / PAGE }
    }

    pub(crate) fn address(self) -> u64 {
        self.address
    }

    pub(crate) fn pages(self) -> u64 {
        self.pages
    }

    pub(crate) fn bytes(self) -> u64 {
        self.pages * PAGE
    }

    /// The page in which an address lies.
    pub(crate) fn page_of(self, address: u64) -> Option<u64> {
        let page = address.checked_sub(self.address)? / PAGE;
        (page < self.pages).then_some(page)
    }

    /// Address of the first byte of a page inside, or of the first behind the last.
    pub(crate) fn address_of(self, page: u64) -> u64 {
        self.address + page * PAGE
    }

    /// Pages joined to runs of neighbours, where they follow each other.
    pub(crate) fn runs(self, pages: &[u64]) -> io::Result<Vec<Range<u64>>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for &page in pages {
            if page >= self.pages {
                return Err(not_inside());
            }
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        Ok(runs)
    }

    /// A run of pages that somebody else names.
    pub(crate) fn run(self, first: u64, pages: u64) -> io::Result<Range<u64>> {
        match first.checked_add(pages) {
            Some(end) if pages > 0 && end <= self.pages => Ok(first..end),
            _ => Err(not_inside()),
        }
    }
}

fn not_inside() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no page of the mapping")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let area = Area::new(PAGE, 10 * PAGE).unwrap();
        assert_eq!(area.runs(&[]).unwrap(), []);
        assert_eq!(area.runs(&[0, 1, 2, 4, 9, 8, 9]).unwrap(), [0..3, 4..5, 9..10, 8..10]);
        assert!(area.runs(&[0, 10]).is_err() && area.runs(&[u64::MAX]).is_err());
        let run = |first, pages| area.run(first, pages).ok();
        assert_eq!((run(0, 10), run(9, 1)), (Some(0..10), Some(9..10)));
        assert_eq!((run(0, 0), run(9, 2), run(10, 1), run(u64::MAX, 1)), (None, None, None, None));
        assert_eq!((area.page_of(PAGE - 1), area.page_of(PAGE), area.page_of(11 * PAGE)), (None, Some(0), None));
    }

    #[test]
    fn only_whole_pages_are_an_area() {
        for (address, bytes) in [(0, PAGE), (1, PAGE), (PAGE, 0), (PAGE, 1), (0_u64.wrapping_sub(PAGE), PAGE)] {
            assert!(Area::new(address, bytes).is_err(), "{address:#x} {bytes:#x}");
        }
    }
}
