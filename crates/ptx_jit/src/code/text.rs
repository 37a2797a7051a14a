//! Machine code in memory: written once, then executable and never writable again.

use std::io;
use std::ptr::{self, NonNull};

use crate::image::{Relocation, Target};
use crate::run::helpers;

/// Pages of machine code.
pub(crate) struct Text {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are only read and executed after construction, and belong to this value.
unsafe impl Send for Text {}
// SAFETY: as above.
unsafe impl Sync for Text {}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:p}", self.bytes, self.base)
    }
}

impl Text {
    /// Maps `code`, with addresses written where `relocations` say; these have been checked to lie in it.
    pub(crate) fn new(mut code: Vec<u8>, relocations: &[Relocation]) -> io::Result<Text> {
        let bytes = code.len().max(1).next_multiple_of(hostmem::PAGE as usize);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: asks for new pages anywhere.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let text = Text { base, bytes };
        for &Relocation { at, target } in relocations {
            let address = match target {
                Target::Helper(helper) => helpers::address(helper),
                Target::Code(offset) => text.address(offset).expose_provenance(),
            };
            let place = code.get_mut(at as usize..).and_then(|rest| rest.first_chunk_mut::<8>());
            *place.ok_or(io::ErrorKind::InvalidData)? = (address as u64).to_le_bytes();
        }
        // SAFETY: the pages are as long as the code, writable, and nobody else's.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), base.as_ptr(), code.len()) };
        // SAFETY: the pages are ours.
        if unsafe { libc::mprotect(base.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(text)
    }

    /// The address of what lies so far into the code.
    pub(crate) fn address(&self, offset: u32) -> *const u8 {
        self.base.as_ptr().wrapping_add(offset as usize).cast_const()
    }

    /// How far into the code an address is, if it is in it, and the code from there on.
    pub(crate) fn from(&self, address: u64) -> Option<(u32, &[u8])> {
        // SAFETY: the pages are readable, and never change.
        let code = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) };
        let at = usize::try_from(address).ok()?.checked_sub(self.base.addr().get())?;
        Some((u32::try_from(at).ok()?, code.get(at..).filter(|rest| !rest.is_empty())?))
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: CTAs hold the code, so none of its functions runs or will.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
