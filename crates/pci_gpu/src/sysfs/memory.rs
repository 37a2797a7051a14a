//! Memory whose pages stay where they are, and what they are called on the bus.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use device_io::BusAddr;
use hostmem::{Mapping, Memfd, PAGE, Pinned};
use rustix::io::Errno;

use crate::OpenError;

/// Of what is larger whole huge pages are taken, bytes.
const SMALL: u64 = 64 << 10;
const HUGE_PAGE: u64 = 2 << 20;

/// Tells the bus addresses of a mapping's pages.
pub(super) type Locate = Box<dyn Fn(&Mapping) -> io::Result<Vec<BusAddr>> + Send + Sync>;

/// An entry of a page map: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Its number; zero for who must not know it.
const FRAME: u64 = (1 << 55) - 1;

/// Memory of at least `bytes`, all of which exists, and is pinned if the machine can do that; else it is locked, and may be moved
/// under the GPU when the kernel gathers free memory. Not of `hugetlbfs`, whose pages nobody can map in part: programs see
/// pieces of it at addresses of their own ([`hostmem::Window`]). But of the size of huge pages: 1 MiB in pages of 4 KiB would
/// take 256 entries of page tables.
pub(super) fn resident(bytes: u64) -> io::Result<(Memfd, Mapping, Option<Pinned>)> {
    let unit = if bytes > SMALL { HUGE_PAGE } else { PAGE };
    let bytes = bytes.checked_next_multiple_of(unit).ok_or(io::ErrorKind::OutOfMemory)?;
    let file = Memfd::create("sundial-dma", bytes)?;
    let mapping = file.map_resident()?;
    let pinned = match mapping.pin() {
        Ok(pinned) => Some(pinned),
        // A machine that pins does so always, or says that it has no more: what is moved under the GPU is lost.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOSYS | Errno::PERM)) => {
            log_limit::warn!(%error, "memory for the GPU cannot be pinned (io_uring), and may be moved under it");
            None
        }
        Err(error) => return Err(error),
    };
    Ok((file, mapping, pinned))
}

/// By the kernel's page map of this process.
pub(super) fn by_pagemap(path: &Path) -> Result<Locate, OpenError> {
    let pagemap = File::open(path).map_err(|error| OpenError::File { path: path.to_owned(), error })?;
    Ok(Box::new(move |mapping| look_up(&pagemap, mapping.address() as u64, mapping.len() as u64 / PAGE)))
}

/// Bus addresses of `pages` pages from a virtual address on: physical ones, there is no IOMMU.
pub(super) fn look_up(pagemap: &File, address: u64, pages: u64) -> io::Result<Vec<BusAddr>> {
    let mut entries = vec![0; pages as usize * 8];
    pagemap.read_exact_at(&mut entries, address / PAGE * 8)?;
    entries.as_chunks::<8>().0.iter().map(|entry| bus(u64::from_ne_bytes(*entry))).collect()
}

fn bus(entry: u64) -> io::Result<BusAddr> {
    match (entry & PRESENT != 0, entry & FRAME) {
        (false, _) => Err(io::Error::new(io::ErrorKind::OutOfMemory, "a page for the GPU is not in memory")),
        (true, 0) => {
            let hidden = "physical addresses are hidden from this process: it needs CAP_SYS_ADMIN";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, hidden))
        }
        (true, frame) => Ok(BusAddr(frame * PAGE)),
    }
}
