//! Which bus addresses a client has mapped: what may be mapped, what may be unmapped.

use std::collections::BTreeMap;

use rustix::io::Errno;

/// The maps of one client: first address to number of bytes.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    maps: BTreeMap<u64, u64>,
}

impl Maps {
    /// Whether a map may be made: whole pages of `page` bytes, no wrap, over none that is there, at most `most` of them.
    pub(crate) fn check(&self, address: u64, bytes: u64, page: u64, most: u32) -> Result<(), Errno> {
        if bytes == 0 || !address.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(Errno::INVAL);
        }
        let last = address.checked_add(bytes - 1).ok_or(Errno::INVAL)?;
        if let Some((&before, &size)) = self.maps.range(..=last).next_back()
            && before + (size - 1) >= address
        {
            return Err(Errno::EXIST);
        }
        if self.maps.len() >= most as usize {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    /// Notes a map that was checked and made.
    pub(crate) fn insert(&mut self, address: u64, bytes: u64) {
        self.maps.insert(address, bytes);
    }

    /// Takes a map away; it must be named exactly.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64) -> Result<(), Errno> {
        if self.maps.get(&address) != Some(&bytes) {
            return Err(Errno::NOENT);
        }
        self.maps.remove(&address);
        Ok(())
    }

    /// Takes all away.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (u64, u64)> + use<> {
        std::mem::take(&mut self.maps).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const TOP: u64 = u64::MAX - (PAGE - 1);

    fn check(maps: &Maps, address: u64, bytes: u64) -> Result<(), Errno> {
        maps.check(address, bytes, PAGE, 3)
    }

    #[test]
    fn overlaps_are_refused() {
        let mut maps = Maps::default();
        maps.insert(4 * PAGE, 2 * PAGE);
        for (first, pages) in [(3, 2), (4, 1), (4, 2), (5, 1), (5, 9), (0, 100)] {
            assert_eq!(check(&maps, first * PAGE, pages * PAGE), Err(Errno::EXIST), "{first}+{pages}");
        }
        for (first, pages) in [(0, 4), (3, 1), (6, 1), (7, 100)] {
            assert_eq!(check(&maps, first * PAGE, pages * PAGE), Ok(()), "{first}+{pages}");
        }
    }

    #[test]
    fn a_map_may_end_where_addresses_end() {
        let mut maps = Maps::default();
        assert_eq!(check(&maps, TOP, PAGE), Ok(()));
        assert_eq!(check(&maps, TOP, 2 * PAGE), Err(Errno::INVAL));
        maps.insert(TOP, PAGE);
        assert_eq!(check(&maps, TOP, PAGE), Err(Errno::EXIST));
        assert_eq!(check(&maps, 0, TOP), Ok(()));
    }

    #[test]
    fn only_whole_pages() {
        let maps = Maps::default();
        for (address, bytes) in [(0, 0), (1, PAGE), (PAGE, 1), (PAGE, PAGE + 8)] {
            assert_eq!(check(&maps, address, bytes), Err(Errno::INVAL));
        }
    }

    #[test]
    fn an_unmap_names_its_map() {
        let mut maps = Maps::default();
        maps.insert(0, 2 * PAGE);
        assert_eq!(maps.remove(0, PAGE), Err(Errno::NOENT));
        assert_eq!(maps.remove(PAGE, PAGE), Err(Errno::NOENT));
        assert_eq!(maps.remove(0, 2 * PAGE), Ok(()));
        assert_eq!(maps.remove(0, 2 * PAGE), Err(Errno::NOENT));
    }

    #[test]
    fn the_number_is_bounded() {
        let mut maps = Maps::default();
        for page in 0..3 {
            assert_eq!(check(&maps, page * PAGE, PAGE), Ok(()));
            maps.insert(page * PAGE, PAGE);
        }
        assert_eq!(check(&maps, 3 * PAGE, PAGE), Err(Errno::NOSPC));
        assert_eq!(maps.take().count(), 3);
        assert_eq!(check(&maps, 3 * PAGE, PAGE), Ok(()));
    }
}
