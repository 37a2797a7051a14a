//! What the kernel says of the process's memory (`/proc/self/maps`), and reading memory that may not be there.

use std::io;
use std::ops::Range;

use crate::PAGE;

/// Addresses that were mapped at once, or that the kernel has joined.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) addresses: Range<usize>,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) execute: bool,
    /// Writes are seen by whoever maps the same.
    pub(crate) shared: bool,
    /// A file is behind it, which may end before the mapping does.
    pub(crate) of_file: bool,
}

impl Region {
    /// Of a line: addresses, permissions, offset, device, inode, and what it is.
    fn parse(line: &str) -> Option<Region> {
        let mut words = line.split_ascii_whitespace();
        let (first, last) = words.next()?.split_once('-')?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let allowed = words.next()?;
        Some(Region {
            addresses: number(first)?..number(last)?,
            read: allowed.contains('r'),
            write: allowed.contains('w'),
            execute: allowed.contains('x'),
            shared: allowed.ends_with('s'),
            of_file: words.nth(2)? != "0",
        })
    }

    /// The part of it that lies in a range; empty if none does.
    pub(crate) fn within(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.addresses.start.max(range.start);
        start..self.addresses.end.min(range.end).max(start)
    }
}

/// The regions of which a part lies in a range, in order.
///
/// # Errors
/// What the operating system says.
pub(crate) fn regions(range: Range<usize>) -> io::Result<Vec<Region>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter_map(Region::parse).filter(|region| !region.within(&range).is_empty()).collect())
}

/// How many bytes of a range of addresses are mapped shared.
///
/// # Errors
/// What the operating system says.
pub(crate) fn shared_bytes(range: Range<usize>) -> io::Result<usize> {
    let shared = regions(range.clone())?.into_iter().filter(|region| region.shared);
    Ok(shared.map(|region| region.within(&range).len()).sum())
}

/// Whether a byte of each page of a range can be read. Where the kernel does not let a process ask, it is believed.
pub(crate) fn can_be_read(range: Range<usize>) -> bool {
    /// As many as one call takes.
    const PAGES: usize = 1024;
    let mut bytes = [0_u8; PAGES];
    let mut pages = range.step_by(PAGE as usize).peekable();
    while pages.peek().is_some() {
        let part = |page| libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(page), iov_len: 1 };
        let parts: Vec<libc::iovec> = pages.by_ref().take(PAGES).map(part).collect();
        match copy_out(&parts, &mut bytes[..parts.len()]) {
            Some(copied) if copied < parts.len() => return false,
            _ => {}
        }
    }
    true
}

/// Copies what is at an address out; false if not all of it is there, or the kernel does not let a process ask.
#[must_use]
pub fn read_if_there(address: usize, out: &mut [u8]) -> bool {
    let part = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: out.len() };
    copy_out(&[part], out) == Some(out.len())
}

/// Copies parts of memory that may not be there into `out`; gives how many bytes were, or `None` if that is forbidden.
fn copy_out(parts: &[libc::iovec], out: &mut [u8]) -> Option<usize> {
    let to = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let own = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the kernel writes at most to all of `out`, and refuses to read where there is no memory.
    let copied = unsafe { libc::process_vm_readv(own, &raw const to, 1, parts.as_ptr(), parts.len() as u64, 0) };
    match usize::try_from(copied) {
        Ok(copied) => Some(copied),
        Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => Some(0),
        Err(_) => None,
    }
}
