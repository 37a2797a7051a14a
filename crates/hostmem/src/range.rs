//! Memory that belongs to the caller of a C function.

use std::io;

use rustix::mm::{MapFlags, ProtFlags};

use crate::{Memfd, PAGE, moving};

/// A range of host memory whose validity somebody else promised: a CUDA program that passed a pointer and a size.
///
/// Copies are raw; concurrent changes by the owner give unspecified bytes, never more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRange {
    address: usize,
    bytes: usize,
}

impl HostRange {
    /// Trusts that `bytes` at `address` are readable (and writable, where the range will be written).
    ///
    /// # Safety
    /// The memory must stay valid until the last use of this value and its copies, and no Rust reference to it may be
    /// live during a use.
    #[must_use]
    pub unsafe fn new(address: usize, bytes: usize) -> HostRange {
        HostRange { address, bytes }
    }

    /// Host address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A part; panics if it is not inside.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> HostRange {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{offset}+{bytes} outside range of {}",
            self.bytes
        );
        HostRange { address: self.address + offset, bytes }
    }

    /// Copies its first `out.len()` bytes out.
    pub fn read(&self, out: &mut [u8]) {
        let part = self.part(0, out.len());
        // SAFETY: the maker of the range promised that it is readable; `out` is an exclusive Rust slice.
        unsafe { std::ptr::copy(part.ptr().cast_const(), out.as_mut_ptr(), out.len()) }
    }

    /// Copies `data` to its beginning.
    pub fn write(&self, data: &[u8]) {
        let part = self.part(0, data.len());
        // SAFETY: the maker of the range promised that it is writable.
        unsafe { std::ptr::copy(data.as_ptr(), part.ptr(), data.len()) }
    }

    /// Copies all of `from` to its beginning; the two may overlap.
    pub fn copy_from(&self, from: HostRange) {
        let part = self.part(0, from.bytes);
        // SAFETY: both makers promised validity; `copy` allows overlap.
        unsafe { std::ptr::copy(from.ptr().cast_const(), part.ptr(), from.bytes) }
    }

    /// The whole pages that cover it: the page offset of its first byte, and their size.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        let skip = self.address % PAGE as usize;
        (skip, (skip + self.bytes).next_multiple_of(PAGE as usize))
    }

    /// Replaces the pages that cover this range by those of `file` from `file_offset` (whole pages) on, which take over
    /// their content: from then on, writes here are seen in the file and the other way round.
    ///
    /// The addresses stay valid all the time, and what other threads write during the call is not lost: they wait until the
    /// pages are in place (the module `moving` says how, and what that does not reach: system calls above all). The pages are
    /// writable afterwards. A child that is forked then shares them.
    ///
    /// # Errors
    /// `InvalidInput` if the file is too short or the offset no whole number of pages; else what the operating system
    /// says.
    pub fn show(&self, file: &Memfd, file_offset: u64) -> io::Result<()> {
        let (_, bytes) = self.pages();
        let in_file = file_offset <= file.bytes() && bytes as u64 <= file.bytes() - file_offset;
        if bytes == 0 || !in_file || !file_offset.is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the memory file"));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let fresh = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, file, file_offset) }?;
        self.replace_pages(fresh.cast(), bytes)
    }

    /// Replaces the pages that cover this range by private ones with their content: undoes [`HostRange::show`], in the same
    /// way.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn make_private(&self) -> io::Result<()> {
        let (_, bytes) = self.pages();
        if bytes == 0 {
            return Ok(());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let fresh = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }?;
        self.replace_pages(fresh.cast(), bytes)
    }

    /// Puts `fresh`, a new mapping of the same size, in the place of the covering pages, with their content.
    fn replace_pages(&self, fresh: *mut u8, bytes: usize) -> io::Result<()> {
        let first: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address - self.address % PAGE as usize);
        // SAFETY: nobody else knows `fresh`; the maker of the range promised that it is readable and written by nobody
        // through references, and protection is by page.
        let moved = unsafe { moving::replace(first, fresh, bytes) };
        if moved.is_err() {
            // SAFETY: the mapping was made by the caller and has not moved.
            let _ = unsafe { rustix::mm::munmap(fresh.cast(), bytes) };
        }
        moved
    }

    fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_become_shared_and_private_again() {
        // So large that the allocator maps it for itself: the pages shown hold nothing that other threads write.
        let mut memory = vec![7u8; 40 << 20];
        let at = memory.as_mut_ptr().expose_provenance() + (20 << 20) + 100;
        // SAFETY: inside `memory`, which is not used by reference while the range is.
        let range = unsafe { HostRange::new(at, 2 * PAGE as usize) };
        let (skip, bytes) = range.pages();
        let file = Memfd::create("test", bytes as u64).unwrap();
        assert!(range.show(&file, PAGE).is_err());
        range.show(&file, 0).unwrap();
        let other = file.map().unwrap();
        let mut seen = [0; 2];
        other.read(skip, &mut seen);
        assert_eq!(seen, [7, 7]);
        range.write(&[1, 2]);
        other.read(skip, &mut seen);
        assert_eq!(seen, [1, 2]);
        other.write(skip, &[3]);
        range.make_private().unwrap();
        range.write(&[4]);
        range.part(1, 1).read(&mut seen[..1]);
        assert_eq!(seen[0], 2);
        other.read(skip, &mut seen);
        assert_eq!(seen, [3, 2]);
        let at = range.address() - memory.as_ptr().addr();
        assert_eq!(memory[at..at + 3], [4, 2, 7]);
        assert_eq!(memory[at - 1], 7);
    }
}
