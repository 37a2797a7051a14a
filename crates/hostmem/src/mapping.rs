//! A whole memory file, mapped.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

use crate::{HostRange, Memfd};

/// A shared, writable mapping of a whole [`Memfd`].
///
/// Methods that take an offset panic when the range is not inside: offsets from outside must be checked before.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; all access goes through raw copies and atomics, which may run on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; methods never hand out references to plain bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &Memfd) -> io::Result<Mapping> {
        let bytes = usize::try_from(file.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, bytes })
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true; there for completeness beside [`Mapping::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Host address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// A part of the mapping as a foreign range, for copies between two of them.
    #[must_use]
    pub fn range(&self, offset: usize, bytes: usize) -> HostRange {
        let at = self.at(offset, bytes);
        // SAFETY: `at` checked that the range lies inside this mapping. The range must not outlive the mapping; callers
        // keep the mapping alive, as `HostRange` asks of all who make one.
        unsafe { HostRange::new(at.addr(), bytes) }
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{offset}+{bytes} outside mapping of {}",
            self.bytes
        );
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: `from` is valid for `out.len()` bytes; `out` is exclusive, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: `to` is valid for `data.len()` bytes; Rust never holds a reference into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
    }

    /// Fills a range with one byte.
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) {
        let to = self.at(offset, bytes);
        // SAFETY: `to` is valid for `bytes` bytes.
        unsafe { std::ptr::write_bytes(to, value, bytes) }
    }

    /// The aligned 32-bit word at `offset`, as an atomic.
    #[must_use]
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert_eq!(offset % 4, 0, "word at {offset} is not aligned");
        let at = self.at(offset, 4);
        // SAFETY: inside the mapping, aligned, and alive as long as `self`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The aligned 64-bit word at `offset`, as an atomic.
    #[must_use]
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0, "word at {offset} is not aligned");
        let at = self.at(offset, 8);
        // SAFETY: inside the mapping, aligned, and alive as long as `self`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Sleeps while the word at `offset` equals `expected`, at most `timeout`. May wake early; works between processes.
    pub fn wait(&self, offset: usize, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|t| futex::Timespec::try_from(t).ok());
        // Every outcome (woken, value differs, interrupted, timed out) means the same to the caller: look again.
        let _ = futex::wait(self.u32_at(offset), futex::Flags::empty(), expected, timeout.as_ref());
    }

    /// Wakes all who wait on the word at `offset`.
    pub fn wake_all(&self, offset: usize) {
        // Failing means that nobody waits.
        let _ = futex::wake(self.u32_at(offset), futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
