//! A reserved range of host addresses into which pages of memory files are mapped.

use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::{HostRange, Memfd, PAGE};

/// Inaccessible bytes behind a window's end: an access that begins inside never reaches foreign memory.
const GUARD: u64 = 1 << 20;

/// What may be done with mapped pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// Why a checked access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WindowError {
    /// A byte of it lies outside the window or on no page.
    #[error("no page there")]
    Unmapped,
    /// A write to a page mapped for reading.
    #[error("page is read-only")]
    ReadOnly,
    /// An atomic that is not naturally aligned, or of no size that exists.
    #[error("misaligned")]
    Misaligned,
}

/// Mapped run: length and protection, keyed by offset.
type Runs = BTreeMap<u64, (u64, Protection)>;

/// A reservation of host addresses, inaccessible but where pages have been mapped.
///
/// Two kinds of user: engines access it raw, through its address, and take a SIGSEGV for an unmapped page; everybody else
/// uses the checked methods here. Both at once, and while pages are mapped and unmapped, is fine.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    bytes: u64,
    /// Guards the mappings against change during a checked access.
    runs: RwLock<Runs>,
}

// SAFETY: a window is plain memory; checked access is by raw copies and atomics under the lock.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves `bytes` (whole pages) of inaccessible addresses, aligned to 2 MiB, with an inaccessible guard behind.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn reserve(bytes: u64) -> io::Result<Window> {
        const ALIGN: u64 = 2 << 20;
        let bytes = bytes.max(PAGE).next_multiple_of(PAGE);
        let whole = usize::try_from(bytes + GUARD + ALIGN).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh reservation at an address of the kernel's choice disturbs nothing.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                whole,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let skip = at.addr().next_multiple_of(ALIGN as usize) - at.addr();
        let tail = ALIGN as usize - skip;
        // SAFETY: the part before the aligned start is inside the fresh reservation and unused.
        let base = unsafe { at.cast::<u8>().add(skip) };
        if skip > 0 {
            // SAFETY: as above.
            let _ = unsafe { rustix::mm::munmap(at, skip) };
        }
        // SAFETY: the part behind the guard is inside the fresh reservation and unused.
        let end = unsafe { base.add(whole - ALIGN as usize) };
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::munmap(end.cast(), tail) };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Window { base, bytes, runs: RwLock::default() })
    }

    /// Host address of offset 0.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Size in bytes, guard not counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let fits = offset <= self.bytes && bytes <= self.bytes - offset;
        if bytes == 0 || !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) || !fits {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the window"));
        }
        Ok(())
    }

    /// Maps `bytes` of `file` from `file_offset` at `offset` (all whole pages), in place of what was there.
    ///
    /// # Errors
    /// `InvalidInput` if a range is not whole pages, or not inside; else what the operating system says.
    pub fn map(
        &self,
        offset: u64,
        file: &Memfd,
        file_offset: u64,
        bytes: u64,
        protection: Protection,
    ) -> io::Result<()> {
        self.check(offset, bytes)?;
        let in_file = file_offset <= file.bytes() && bytes <= file.bytes() - file_offset;
        if !in_file || !file_offset.is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the memory file"));
        }
        let prot = match protection {
            Protection::Read => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let mut runs = self.runs.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the offset was checked to be inside the reservation.
        let at = unsafe { self.base.as_ptr().add(offset as usize) };
        // SAFETY: MAP_FIXED replaces only pages of our own reservation; checked users are kept out by the lock, engines
        // expect pages to change under them.
        unsafe {
            rustix::mm::mmap(
                at.cast(),
                bytes as usize,
                prot,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                file,
                file_offset,
            )
        }?;
        cut(&mut runs, offset, bytes);
        runs.insert(offset, (bytes, protection));
        Ok(())
    }

    /// Makes a range (whole pages) inaccessible again.
    ///
    /// # Errors
    /// `InvalidInput` if the range is not whole pages, or not inside; else what the operating system says.
    pub fn unmap(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.check(offset, bytes)?;
        let mut runs = self.runs.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the offset was checked to be inside the reservation.
        let at = unsafe { self.base.as_ptr().add(offset as usize) };
        // SAFETY: as in `map`.
        unsafe {
            rustix::mm::mmap_anonymous(
                at.cast(),
                bytes as usize,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        }?;
        cut(&mut runs, offset, bytes);
        Ok(())
    }

    /// The mapped runs, by increasing offset: offset, bytes, protection.
    #[must_use]
    pub fn runs(&self) -> Vec<(u64, u64, Protection)> {
        let runs = self.runs.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        runs.iter().map(|(&offset, &(bytes, protection))| (offset, bytes, protection)).collect()
    }

    /// What an access to `bytes` at `offset` would meet.
    ///
    /// # Errors
    /// Why it would be refused.
    pub fn probe(&self, offset: u64, bytes: u64, write: bool) -> Result<(), WindowError> {
        let runs = self.runs.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        allowed(&runs, offset, bytes, write)
    }

    /// Copies bytes out, if all of them are mapped.
    ///
    /// # Errors
    /// Why not.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), WindowError> {
        self.with(offset, out.len() as u64, false, |range| range.read(out))
    }

    /// Copies bytes in, if all of them are mapped writable.
    ///
    /// # Errors
    /// Why not.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), WindowError> {
        self.with(offset, data.len() as u64, true, |range| range.write(data))
    }

    /// Calls `f` with the host range of `bytes` at `offset`, whose mapping cannot change meanwhile.
    ///
    /// # Errors
    /// Why the access is not allowed.
    pub fn with<R>(
        &self,
        offset: u64,
        bytes: u64,
        write: bool,
        f: impl FnOnce(HostRange) -> R,
    ) -> Result<R, WindowError> {
        let runs = self.runs.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        allowed(&runs, offset, bytes, write)?;
        // SAFETY: all of it is mapped, and stays so while the lock is held.
        let range = unsafe { HostRange::new(self.address() + offset as usize, bytes as usize) };
        Ok(f(range))
    }

    /// Copies `bytes` from offset `src` to offset `dst`, if all of both are mapped; the ranges may overlap.
    ///
    /// # Errors
    /// Why one of the two accesses is not allowed.
    pub fn copy(&self, dst: u64, src: u64, bytes: u64) -> Result<(), WindowError> {
        let runs = self.runs.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        allowed(&runs, src, bytes, false)?;
        allowed(&runs, dst, bytes, true)?;
        // SAFETY: all of it is mapped, and stays so while the lock is held.
        let from = unsafe { HostRange::new(self.address() + src as usize, bytes as usize) };
        // SAFETY: as above.
        let to = unsafe { HostRange::new(self.address() + dst as usize, bytes as usize) };
        to.copy_from(from);
        Ok(())
    }

    /// Atomically replaces the naturally aligned 1, 2, 4 or 8 byte value `old` by `f(old)`; returns `old`.
    ///
    /// # Errors
    /// Why the access is not allowed.
    pub fn update(&self, offset: u64, bytes: u32, f: &mut dyn FnMut(u64) -> u64) -> Result<u64, WindowError> {
        if !matches!(bytes, 2 | 4 | 8) || !offset.is_multiple_of(u64::from(bytes)) {
            return Err(WindowError::Misaligned);
        }
        self.with(offset, u64::from(bytes), true, |range| {
            let at: *mut u8 = std::ptr::with_exposed_provenance_mut(range.address());
            match bytes {
                2 => {
                    // SAFETY: mapped, aligned, alive under the lock.
                    let word = unsafe { AtomicU16::from_ptr(at.cast()) };
                    u64::from(
                        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v.into()) as u16))
                            .unwrap_or(0),
                    )
                }
                4 => {
                    // SAFETY: mapped, aligned, alive under the lock.
                    let word = unsafe { AtomicU32::from_ptr(at.cast()) };
                    u64::from(
                        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v.into()) as u32))
                            .unwrap_or(0),
                    )
                }
                _ => {
                    // SAFETY: mapped, aligned, alive under the lock.
                    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
                    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(f(v))).unwrap_or(0)
                }
            }
        })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the reservation was made by `reserve`; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), (self.bytes + GUARD) as usize) };
    }
}

/// Removes `bytes` at `offset` from the runs, splitting those that reach beyond.
fn cut(runs: &mut Runs, offset: u64, bytes: u64) {
    let end = offset + bytes;
    let touched: Vec<(u64, u64, Protection)> = runs
        .range(..end)
        .rev()
        .take_while(|&(&start, &(len, _))| start + len > offset)
        .map(|(&start, &(len, protection))| (start, len, protection))
        .collect();
    for (start, len, protection) in touched {
        runs.remove(&start);
        if start < offset {
            runs.insert(start, (offset - start, protection));
        }
        if start + len > end {
            runs.insert(end, (start + len - end, protection));
        }
    }
}

fn allowed(runs: &Runs, offset: u64, bytes: u64, write: bool) -> Result<(), WindowError> {
    let end = offset.checked_add(bytes).ok_or(WindowError::Unmapped)?;
    let mut at = offset;
    while at < end {
        let Some((&start, &(len, protection))) = runs.range(..=at).next_back() else {
            return Err(WindowError::Unmapped);
        };
        if start + len <= at {
            return Err(WindowError::Unmapped);
        }
        if write && protection == Protection::Read {
            return Err(WindowError::ReadOnly);
        }
        at = start + len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_splits_and_refuses() {
        let file = Memfd::create("test", 16 * PAGE).unwrap();
        let window = Window::reserve(64 * PAGE).unwrap();
        window.map(4 * PAGE, &file, 0, 16 * PAGE, Protection::ReadWrite).unwrap();
        window.write(5 * PAGE - 2, &[1, 2, 3, 4]).unwrap();
        file.map().unwrap().read(PAGE as usize - 2, &mut [0; 4]);
        window.unmap(6 * PAGE, PAGE).unwrap();
        assert_eq!(window.read(6 * PAGE - 1, &mut [0; 2]), Err(WindowError::Unmapped));
        window.map(8 * PAGE, &file, 0, PAGE, Protection::Read).unwrap();
        assert_eq!(window.write(8 * PAGE, &[1]), Err(WindowError::ReadOnly));
        let mut back = [0; 2];
        window.read(9 * PAGE - 2, &mut back).unwrap();
        assert_eq!(back, [1, 2]);
        assert_eq!(window.runs().len(), 4);
        assert!(window.map(63 * PAGE, &file, 0, 2 * PAGE, Protection::Read).is_err());
        window.copy(10 * PAGE, 5 * PAGE - 2, 4).unwrap();
        window.read(10 * PAGE, &mut back).unwrap();
        assert_eq!(back, [1, 2]);
        assert_eq!(window.copy(8 * PAGE, 4 * PAGE, 4), Err(WindowError::ReadOnly));
        assert_eq!(window.copy(4 * PAGE, 6 * PAGE, 4), Err(WindowError::Unmapped));
        assert_eq!(window.update(4 * PAGE + 2, 4, &mut |v| v + 1), Err(WindowError::Misaligned));
        assert_eq!(window.update(4 * PAGE, 4, &mut |v| v + 1), Ok(0));
        assert_eq!(window.update(4 * PAGE, 8, &mut |v| v + 1), Ok(1));
    }
}
