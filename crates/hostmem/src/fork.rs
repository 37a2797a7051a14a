//! Noticing that one lives in a forked child.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::PAGE;

/// A mark that the kernel wipes in a forked child: asking costs a load, where asking for the process costs a system call.
#[derive(Debug)]
pub struct ForkMark {
    page: NonNull<AtomicU32>,
}

// SAFETY: the page holds an atomic that is never written after `new`, except by the kernel in a child.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new() -> io::Result<ForkMark> {
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let page = NonNull::new(at.cast::<AtomicU32>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mark = ForkMark { page };
        // SAFETY: the page is ours; in a child it will read as zero.
        unsafe { rustix::mm::madvise(at, PAGE as usize, Advice::LinuxWipeOnFork) }?;
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// False in a child that was forked after the mark was made.
    #[must_use]
    pub fn here(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped as long as `self`, aligned to a page.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: made by `new`, not used any more.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let mark = ForkMark::new().unwrap();
        assert!(mark.here());
        // SAFETY: the child only reads a word and exits, which is allowed after a fork of a process with threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(mark.here());
            // SAFETY: ends the child without running anything of its parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child took itself for its parent");
        assert!(mark.here());
    }
}
