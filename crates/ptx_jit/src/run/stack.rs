//! Stacks of CTAs.

use std::num::NonZeroUsize;
use std::{io, ptr};

use corosensei::stack::{Stack, StackPointer};

use crate::MAX_STACK_BYTES;

/// Stack of a CTA, bytes: the scheduler's frames, one region's, and those of a helper.
pub(crate) const STACK_BYTES: usize = 256 << 10;
/// Bytes below it that nobody can touch. Code does not probe its stack, so nothing that runs there may step over them:
/// more than the largest frame of a region, of which there is one at a time, and than any of a helper.
pub(crate) const GUARD_BYTES: usize = 256 << 10;

const _: () = assert!(GUARD_BYTES > 2 * MAX_STACK_BYTES as usize);
const _: () = assert!(STACK_BYTES > 2 * MAX_STACK_BYTES as usize);

/// A stack with a wide guard.
pub(crate) struct CtaStack {
    base: NonZeroUsize,
}

impl CtaStack {
    pub(crate) fn new() -> io::Result<CtaStack> {
        let (bytes, flags) = (GUARD_BYTES + STACK_BYTES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: asks for new pages anywhere.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonZeroUsize::new(start.addr() + bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let stack = CtaStack { base };
        // SAFETY: the upper part of the pages, which are ours.
        let usable = unsafe { start.byte_add(GUARD_BYTES) };
        // SAFETY: as above.
        if unsafe { libc::mprotect(usable, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }
}

impl Drop for CtaStack {
    fn drop(&mut self) {
        let start = self.base.get() - GUARD_BYTES - STACK_BYTES;
        // SAFETY: mapped by `new`, and no coroutine uses it any more.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), GUARD_BYTES + STACK_BYTES) };
    }
}

// SAFETY: the pages are the stack's own, with a guard below that is wider than any step of what runs on it.
unsafe impl Stack for CtaStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        // The guard is part of it, and never the whole of it.
        NonZeroUsize::new(self.base.get() - GUARD_BYTES - STACK_BYTES).unwrap_or(self.base)
    }
}
