//! Pages whose writes the kernel notes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hostmem::Mapping;
use intervals::IntervalMap;

use crate::userfault::{PageMap, Resolved, Userfault};
use crate::{Area, Kind, Why, WriteTrap};

/// Names the pages that were written when it is asked, and protects them again in the same step.
///
/// A write to a protected page costs a fault inside the kernel, which lifts the protection and lets the write go on; nobody
/// is told. Asking costs a system call for each run of neighbouring pages.
#[derive(Debug)]
pub struct Tracker {
    userfault: Userfault,
    page_map: PageMap,
    area: Area,
    /// Pages that are protected, or were until they were written.
    watched: IntervalMap<()>,
    /// The mapping, if it is this process's.
    _mapping: Option<Arc<Mapping>>,
}

/// What another process needs to watch a mapping of this one, as a [`Tracker`].
///
/// Whoever gets it can protect the pages and ask about them, and nothing else: not read, and not write. It works as long as
/// the mapping stays; pages that take the place of some ([`Mapping::show`]) are not watched.
#[derive(Debug)]
pub struct TrackerParts {
    /// Protects.
    pub userfault: OwnedFd,
    /// Answers which pages were written.
    pub page_map: OwnedFd,
    /// Where the mapping lies in the process whose it is.
    pub address: u64,
    /// Its size: whole pages.
    pub bytes: u64,
}

impl TrackerParts {
    /// For a mapping of this process.
    ///
    /// # Errors
    /// Why writes to it cannot be noticed that way.
    pub fn new(mapping: &Mapping) -> Result<TrackerParts, Why> {
        TrackerParts::of(Area::of(mapping))
    }

    /// For a mapping that somebody else in this process has made, and keeps.
    ///
    /// # Errors
    /// Why writes to it cannot be noticed that way.
    pub fn at(address: u64, bytes: u64) -> Result<TrackerParts, Why> {
        TrackerParts::of(Area::new(address, bytes).map_err(Why::Register)?)
    }

    fn of(area: Area) -> Result<TrackerParts, Why> {
        let (userfault, page_map) = (Userfault::open(Resolved::ByKernel)?, PageMap::open_to_scan()?);
        userfault.register(area).map_err(Why::Register)?;
        Ok(TrackerParts {
            userfault: userfault.into_fd(),
            page_map: page_map.into_fd(),
            address: area.address(),
            bytes: area.bytes(),
        })
    }
}

impl Tracker {
    /// For a mapping of this process.
    ///
    /// # Errors
    /// Why writes to it cannot be noticed that way.
    pub fn new(mapping: &Arc<Mapping>) -> Result<Tracker, Why> {
        let parts = TrackerParts::new(mapping)?;
        let tracker = Tracker::from_parts(parts).map_err(Why::Register)?;
        Ok(Tracker { _mapping: Some(Arc::clone(mapping)), ..tracker })
    }

    /// For the mapping of a process that sent these. What it sent may be anything: then there are errors, or wrong answers
    /// about that process's own pages.
    ///
    /// # Errors
    /// `InvalidInput` and `InvalidData` if it cannot be what it should be; else what the operating system says.
    pub fn from_parts(parts: TrackerParts) -> io::Result<Tracker> {
        Ok(Tracker {
            userfault: Userfault::from_fd(parts.userfault)?,
            page_map: PageMap::from_fd(parts.page_map)?,
            area: Area::new(parts.address, parts.bytes)?,
            watched: IntervalMap::default(),
            _mapping: None,
        })
    }
}

impl WriteTrap for Tracker {
    fn kind(&self) -> Kind {
        Kind::Tracker
    }

    fn protect(&mut self, pages: &[u64]) -> io::Result<()> {
        for run in self.area.runs(pages)? {
            self.userfault.protect(self.area, &run, true)?;
            self.watched.cut(run.clone());
            let joined = self.watched.insert_joined(run, (), |(), _, ()| true);
            assert_eq!(joined, Ok(()), "nothing is left where it was cut out");
        }
        Ok(())
    }

    fn release(&mut self, pages: &[u64]) -> io::Result<()> {
        for run in self.area.runs(pages)? {
            self.watched.cut(run.clone());
            self.userfault.protect(self.area, &run, false)?;
        }
        Ok(())
    }

    fn take_written(&mut self, out: &mut Vec<u64>) -> io::Result<()> {
        for (run, ()) in self.watched.iter() {
            self.page_map.take(self.area, &run, out)?;
        }
        Ok(())
    }
}
