//! Pages of a program that exchange their memory.

use std::io;

use rustix::mm::{MapFlags, ProtFlags};

use crate::shown::List;
use crate::{HostRange, Memfd, PAGE, maps, moving};

/// What the program may do with some pages, and who else has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagesKind {
    /// Memory of its own, to be read and written: it can be moved.
    Private,
    /// It can be read and written, but must stay what it is: others may see it (mapped shared, of a file, of System V memory,
    /// or of what a parent had mapped so), or code is made in it.
    InPlace,
    /// It can be read only, some of it at least.
    ReadOnly,
    /// Some of it cannot be read: nothing is mapped, nothing may be done there, or the file behind it ends before.
    Unreadable,
}

/// A range of the program's memory, whose pages may get other memory in the place of theirs while its threads use them. With
/// the range go all pages that it touches, whatever else is in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramPages {
    address: usize,
    bytes: usize,
}

impl ProgramPages {
    /// Trusts that `bytes` at `address` are the program's own memory, and that it is prepared for what
    /// [`ProgramPages::show`] does to the pages around them.
    ///
    /// # Safety
    /// The memory must stay mapped until the last use of this value and its copies. The pages that cover it hold nothing of
    /// which somebody relies on its memory staying the same one: the program lets whoever maps the memory file that is shown
    /// see and write all that is in them.
    #[must_use]
    pub unsafe fn new(address: usize, bytes: usize) -> ProgramPages {
        ProgramPages { address, bytes }
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

    /// The bytes, to be copied.
    #[must_use]
    pub fn range(&self) -> HostRange<'_> {
        // SAFETY: mapped at least as long as `self`, as its maker promised.
        unsafe { HostRange::new(self.address, self.bytes) }
    }

    /// What the pages that cover it are now.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn kind(&self) -> io::Result<PagesKind> {
        let mut next = self.first_page();
        let pages = next..next.saturating_add(self.covering().1);
        let (mut writable, mut movable) = (true, true);
        for region in maps::regions(pages.clone())? {
            let there = region.addresses.start <= next && region.read;
            if !there || region.of_file && !maps::can_be_read(region.within(&pages)) {
                return Ok(PagesKind::Unreadable);
            }
            next = region.addresses.end;
            writable &= region.write;
            movable &= !region.shared && !region.execute;
        }
        Ok(match (writable, movable) {
            _ if next < pages.end => PagesKind::Unreadable,
            (false, _) => PagesKind::ReadOnly,
            (true, false) => PagesKind::InPlace,
            (true, true) => PagesKind::Private,
        })
    }

    /// The whole pages that cover it: the page offset of its first byte, and their size.
    #[must_use]
    pub fn covering(&self) -> (usize, usize) {
        let skip = self.address % PAGE as usize;
        (skip, (skip + self.bytes).next_multiple_of(PAGE as usize))
    }

    /// Replaces the pages that cover this range by those of `file` from `file_offset` (whole pages) on, which take over
    /// their content: from then on, writes here are seen in the file and the other way round.
    ///
    /// Only for memory of the program's own ([`PagesKind::Private`]): others that map it would be cut off, and what may not be
    /// written or may be executed would be changed.
    ///
    /// The addresses stay valid all the time, and what other threads write during the call is not lost: they wait until the
    /// pages are in place (the module `moving` says how, and what that does not reach: system calls above all). The pages are
    /// writable afterwards. A child that is forked then gets private copies of them (the module `shown`).
    ///
    /// # Errors
    /// `InvalidInput` if the file is too short or the offset no whole number of pages; else what the operating system
    /// says.
    pub fn show(&self, file: &Memfd, file_offset: u64) -> io::Result<()> {
        let (_, bytes) = self.covering();
        let in_file = file_offset <= file.bytes() && bytes as u64 <= file.bytes() - file_offset;
        if bytes == 0 || !in_file || !file_offset.is_multiple_of(PAGE) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not whole pages inside the memory file"));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let fresh = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, file, file_offset) }?;
        let mut shown = List::lock();
        shown.reserve();
        self.replace_pages(fresh.cast(), bytes)?;
        shown.add(self.first_page(), bytes);
        Ok(())
    }

    /// Replaces the pages that cover this range by private ones with their content: undoes [`ProgramPages::show`], in the same
    /// way. If the program has unmapped all of them, nothing is to be done.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn make_private(&self) -> io::Result<()> {
        let (_, bytes) = self.covering();
        if bytes == 0 {
            return Ok(());
        }
        if maps::shared_bytes(self.first_page()..self.first_page() + bytes)? == 0 {
            List::lock().remove(self.first_page());
            return Ok(());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let fresh = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }?;
        let mut shown = List::lock();
        self.replace_pages(fresh.cast(), bytes)?;
        shown.remove(self.first_page());
        Ok(())
    }

    fn first_page(&self) -> usize {
        self.address - self.address % PAGE as usize
    }

    /// Puts `fresh`, a new mapping of the same size, in the place of the covering pages, with their content.
    fn replace_pages(&self, fresh: *mut u8, bytes: usize) -> io::Result<()> {
        let first: *mut u8 = std::ptr::with_exposed_provenance_mut(self.first_page());
        // SAFETY: nobody else knows `fresh`; the maker of the range promised that it is readable and written by nobody
        // through references, and protection is by page.
        let moved = unsafe { moving::replace(first, fresh, bytes) };
        if moved.is_err() {
            // SAFETY: the mapping was made by the caller and has not moved.
            let _ = unsafe { rustix::mm::munmap(fresh.cast(), bytes) };
        }
        moved
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
        let pages = unsafe { ProgramPages::new(at, 2 * PAGE as usize) };
        assert_eq!(pages.kind().unwrap(), PagesKind::Private);
        let range = pages.range();
        let (skip, bytes) = pages.covering();
        let file = Memfd::create("test", bytes as u64).unwrap();
        assert!(pages.show(&file, PAGE).is_err());
        pages.show(&file, 0).unwrap();
        assert_eq!(pages.kind().unwrap(), PagesKind::InPlace);
        let other = file.map().unwrap();
        let mut seen = [0; 2];
        other.read(skip, &mut seen);
        assert_eq!(seen, [7, 7]);
        range.write(&[1, 2]);
        other.read(skip, &mut seen);
        assert_eq!(seen, [1, 2]);
        other.write(skip, &[3]);
        pages.make_private().unwrap();
        assert_eq!(pages.kind().unwrap(), PagesKind::Private);
        range.write(&[4]);
        range.part(1, 1).read(&mut seen[..1]);
        assert_eq!(seen[0], 2);
        other.read(skip, &mut seen);
        assert_eq!(seen, [3, 2]);
        let at = range.address() - memory.as_ptr().addr();
        assert_eq!(memory[at..at + 3], [4, 2, 7]);
        assert_eq!(memory[at - 1], 7);
    }

    /// Three pages of a file mapped so, or of no file. They stay for ever.
    fn mapped(file: Option<&Memfd>, prot: ProtFlags, flags: MapFlags) -> usize {
        let (none, bytes) = (std::ptr::null_mut(), 3 * PAGE as usize);
        let at = match file {
            // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
            Some(file) => unsafe { rustix::mm::mmap(none, bytes, prot, flags, file, 0) },
            // SAFETY: as above.
            None => unsafe { rustix::mm::mmap_anonymous(none, bytes, prot, flags) },
        };
        at.unwrap().expose_provenance()
    }

    #[test]
    fn what_pages_are_is_seen_before_they_are_touched() {
        let kind = |at: usize, bytes| {
            // SAFETY: only looked at.
            unsafe { ProgramPages::new(at, bytes) }.kind().unwrap()
        };
        let page = PAGE as usize;
        let (read, write) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
        let three = Memfd::create("three pages", 3 * PAGE).unwrap();
        let two = Memfd::create("two pages", 2 * PAGE).unwrap();
        for (file, prot, flags, expect) in [
            (None, write, MapFlags::PRIVATE, PagesKind::Private),
            (None, write, MapFlags::SHARED, PagesKind::InPlace),
            (None, write | ProtFlags::EXEC, MapFlags::PRIVATE, PagesKind::InPlace),
            (None, read | ProtFlags::EXEC, MapFlags::PRIVATE, PagesKind::ReadOnly),
            (None, read, MapFlags::PRIVATE, PagesKind::ReadOnly),
            (None, ProtFlags::empty(), MapFlags::PRIVATE, PagesKind::Unreadable),
            (Some(&three), write, MapFlags::PRIVATE, PagesKind::Private),
            (Some(&three), write, MapFlags::SHARED, PagesKind::InPlace),
            (Some(&three), read, MapFlags::SHARED, PagesKind::ReadOnly),
            (Some(&two), write, MapFlags::PRIVATE, PagesKind::Unreadable),
            (Some(&two), write, MapFlags::SHARED, PagesKind::Unreadable),
        ] {
            let at = mapped(file, prot, flags);
            assert_eq!(kind(at + 100, 2 * page), expect, "{prot:?} {flags:?} {file:?}");
        }
        // What is right up to the end of the file, and behind it.
        let at = mapped(Some(&two), write, MapFlags::SHARED);
        assert_eq!(kind(at, 2 * page), PagesKind::InPlace);
        assert_eq!(kind(at, 2 * page + 1), PagesKind::Unreadable);
        // Pages of several kinds, and one that is none.
        let at = mapped(None, write, MapFlags::PRIVATE);
        let part = |index: usize| std::ptr::with_exposed_provenance_mut(at + index * page);
        // SAFETY: the test's own page.
        unsafe { rustix::mm::mprotect(part(1), page, rustix::mm::MprotectFlags::READ) }.unwrap();
        assert_eq!(kind(at, page), PagesKind::Private);
        assert_eq!(kind(at, 3 * page), PagesKind::ReadOnly);
        // SAFETY: as above.
        unsafe { rustix::mm::mprotect(part(1), page, rustix::mm::MprotectFlags::empty()) }.unwrap();
        assert_eq!(kind(at, 3 * page), PagesKind::Unreadable);
        assert_eq!(kind(at + page, 1), PagesKind::Unreadable);
        assert_eq!(kind(PAGE as usize, usize::MAX - 3 * page), PagesKind::Unreadable);
    }

    #[test]
    fn what_was_unmapped_need_not_become_private() {
        let at = mapped(None, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the mapping is the test's, and used by address only.
        let pages = unsafe { ProgramPages::new(at, 3 * PAGE as usize) };
        pages.show(&Memfd::create("test", 3 * PAGE).unwrap(), 0).unwrap();
        // As if it had been unmapped, but that no other test's memory comes here.
        let (at, flags) = (std::ptr::with_exposed_provenance_mut(at), MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: as above; nobody uses it any more.
        unsafe { rustix::mm::mmap_anonymous(at, 3 * PAGE as usize, ProtFlags::empty(), flags) }.unwrap();
        pages.make_private().unwrap();
    }

    #[test]
    fn a_forked_child_has_its_own_copy_of_pages_that_are_shown() {
        let mut memory = vec![7u8; 40 << 20];
        let at = memory.as_mut_ptr().expose_provenance() + (20 << 20) + 100;
        // SAFETY: inside `memory`, which is not used by reference while the range is.
        let pages = unsafe { ProgramPages::new(at, 3 * PAGE as usize) };
        // SAFETY: as above.
        let around = unsafe { HostRange::new(at - 1, 2) };
        let file = Memfd::create("test", pages.covering().1 as u64).unwrap();
        pages.show(&file, 0).unwrap();
        pages.range().write(&[1]);
        // SAFETY: the child copies some bytes and exits, which is allowed after a fork of a process with threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut seen = [0; 2];
            around.read(&mut seen);
            around.write(&[8, 9]);
            pages.range().part(2 * PAGE as usize, 1).write(&[9]);
            let code = i32::from(seen != [7, 1]);
            // SAFETY: ends the child without running anything of its parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child did not find the content");
        let mut seen = [0; 2];
        around.read(&mut seen);
        assert_eq!(seen, [7, 1], "the child wrote to its parent's memory");
        pages.range().part(2 * PAGE as usize, 2).read(&mut seen);
        assert_eq!(seen, [7, 7], "the child wrote to its parent's memory");
        // The parent still shows the file.
        pages.range().write(&[5]);
        file.map().unwrap().read(pages.covering().0, &mut seen[..1]);
        assert_eq!(seen[0], 5);
        pages.make_private().unwrap();
    }
}
