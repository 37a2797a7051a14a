//! Anonymous memory files of a sealed size.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::MapFlags;

use crate::{Mapping, PAGE};

/// An anonymous memory file; its size never changes (sealed), its pages are allocated when first touched.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    bytes: u64,
}

impl Memfd {
    /// Creates a zero-filled file of `bytes`, rounded up to whole pages, sealed against change of size.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(name: &str, bytes: u64) -> io::Result<Memfd> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        Memfd::sealed(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?, bytes)
    }

    fn sealed(fd: OwnedFd, bytes: u64) -> io::Result<Memfd> {
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Memfd { fd, bytes })
    }

    /// Takes a file that another process sent. It must be sealed against shrinking, or a mapping of it could fault.
    ///
    /// # Errors
    /// `InvalidData` if the size is not sealed or is no whole number of pages; else what the operating system says.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Memfd> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let size = rustix::fs::fstat(&fd)?.st_size;
        let bytes = u64::try_from(size).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || bytes == 0 || bytes % PAGE != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "memory file is not sealed against shrinking"));
        }
        Ok(Memfd { fd, bytes })
    }

    /// Size in bytes: a whole number of pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps all of it, readable and writable, shared.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn map(&self) -> io::Result<Mapping> {
        Mapping::new(self, 0, self.bytes, MapFlags::NORESERVE)
    }

    /// As [`Memfd::map`]; all pages exist when this returns, and are never swapped out. They follow each other in the machine's
    /// memory for 2 MiB at a time, if the machine has huge pages for memory files and the file is so large.
    ///
    /// # Errors
    /// What the operating system says: it may have too few pages, or let this process lock fewer.
    pub fn map_resident(&self) -> io::Result<Mapping> {
        let mapping = Mapping::new(self, 0, self.bytes, MapFlags::empty())?;
        mapping.lock()?;
        Ok(mapping)
    }

    /// As [`Memfd::map`], for a part of it: whole pages.
    ///
    /// # Errors
    /// `InvalidInput` if the part is not whole pages inside the file; else what the operating system says.
    pub fn map_part(&self, offset: u64, bytes: u64) -> io::Result<Mapping> {
        self.check(offset, bytes)?;
        Mapping::new(self, offset, bytes, MapFlags::NORESERVE)
    }

    /// Whether a range is whole pages inside the file, and not empty.
    pub(crate) fn check(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let inside = offset <= self.bytes && bytes <= self.bytes - offset;
        if bytes == 0 || !inside || !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the memory file"));
        }
        Ok(())
    }

    /// Gives the pages of a range back to the operating system; they read as zero afterwards.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        rustix::fs::fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)?;
        Ok(())
    }

    /// Another handle of the same file.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn try_clone(&self) -> io::Result<Memfd> {
        Ok(Memfd { fd: self.fd.try_clone()?, bytes: self.bytes })
    }

    /// The bare descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
