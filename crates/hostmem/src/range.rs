//! Memory that somebody keeps valid for a while.

use std::marker::PhantomData;

/// A range of host memory that is valid for `'a`: as long as the mapping it is a part of, or as a CUDA program that passed
/// a pointer and a size promised.
///
/// Copies are raw; concurrent changes by the owner give unspecified bytes, never more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRange<'a> {
    address: usize,
    bytes: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> HostRange<'a> {
    /// Trusts that `bytes` at `address` are readable (and writable, where the range will be written).
    ///
    /// # Safety
    /// The memory must stay valid for `'a`, and no Rust reference to it may be live during a use of this value, its copies
    /// and parts.
    #[must_use]
    pub unsafe fn new(address: usize, bytes: usize) -> HostRange<'a> {
        HostRange { address, bytes, memory: PhantomData }
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
    pub fn part(&self, offset: usize, bytes: usize) -> HostRange<'a> {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{offset}+{bytes} outside range of {}",
            self.bytes
        );
        HostRange { address: self.address + offset, bytes, memory: PhantomData }
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
    pub fn copy_from(&self, from: HostRange<'_>) {
        let part = self.part(0, from.bytes);
        // SAFETY: both makers promised validity; `copy` allows overlap.
        unsafe { std::ptr::copy(from.ptr().cast_const(), part.ptr(), from.bytes) }
    }

    fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}
