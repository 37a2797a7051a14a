//! Which pages are protected, asked where the mapping is.

use std::io;
use std::ops::Range;

use hostmem::Mapping;

use crate::userfault::PageMap;
use crate::{Area, Why};

/// Which pages of a mapping of this process are protected by [`crate::Fault`]s and [`crate::Tracker`]s, in whatever process
/// they are.
///
/// What changes the contents of a page other than by a store is not noticed: a hole that is punched into the file under the
/// mapping makes it zero. Whoever does so stores something to the pages that are protected afterwards.
#[derive(Debug)]
pub struct ProtectedPages {
    area: Area,
    page_map: PageMap,
}

impl ProtectedPages {
    /// Of a mapping of this process.
    ///
    /// # Errors
    /// [`Why::PageMap`].
    pub fn new(mapping: &Mapping) -> Result<ProtectedPages, Why> {
        Ok(ProtectedPages { area: Area::of(mapping), page_map: PageMap::open()? })
    }

    /// Adds those among `pages`.
    ///
    /// # Errors
    /// `InvalidInput` if these are not inside the mapping; else what the operating system says.
    pub fn among(&self, pages: Range<u64>, out: &mut Vec<u64>) -> io::Result<()> {
        let run = self.area.run(pages.start, pages.end.saturating_sub(pages.start))?;
        self.page_map.protected(self.area, run, out)
    }
}
