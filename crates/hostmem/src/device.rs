//! A device's registers and memory, mapped.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

/// A file that shows a device, as PCI BARs in sysfs do, mapped from its beginning.
///
/// Every load and store is made as it is asked for, once and in order: the device may do something at each. Methods that take
/// an offset panic when the range is not inside.
#[derive(Debug)]
pub struct DeviceMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as a `Mapping`: all access goes through raw volatile loads and stores, which may run on any thread.
unsafe impl Send for DeviceMapping {}
// SAFETY: as above.
unsafe impl Sync for DeviceMapping {}

impl DeviceMapping {
    /// Maps the first `bytes` of a file.
    ///
    /// # Errors
    /// `InvalidInput` if the file is shorter, or `bytes` is nothing; else what the operating system says.
    pub fn new(file: &File, bytes: u64) -> io::Result<DeviceMapping> {
        if bytes == 0 || file.metadata()?.len() < bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the device's file is too short"));
        }
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(DeviceMapping { base, bytes })
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true; there for completeness beside [`DeviceMapping::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where a value lies: inside, and naturally aligned.
    fn at<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        let inside = offset <= self.bytes && size <= self.bytes - offset && offset.is_multiple_of(size);
        assert!(inside, "{size} bytes at {offset:#x} of a mapping of {:#x}", self.bytes);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }

    fn load<T: Copy>(&self, offset: usize) -> T {
        let at = self.at::<T>(offset);
        // SAFETY: inside the mapping and aligned; any bytes are a value of the integers that this is used for.
        unsafe { at.read_volatile() }
    }

    fn store<T: Copy>(&self, offset: usize, value: T) {
        let at = self.at::<T>(offset);
        // SAFETY: inside the mapping and aligned; Rust holds no reference into it.
        unsafe { at.write_volatile(value) }
    }

    /// Loads the aligned 32-bit word at `offset`.
    #[must_use]
    pub fn read32(&self, offset: usize) -> u32 {
        self.load(offset)
    }

    /// Stores the aligned 32-bit word at `offset`.
    pub fn write32(&self, offset: usize, value: u32) {
        self.store(offset, value);
    }

    /// Copies bytes out, in naturally aligned loads of up to eight bytes, upwards.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        for (at, width) in steps(offset, out.len()) {
            let part = &mut out[at - offset..at - offset + width];
            match width {
                8 => part.copy_from_slice(&self.load::<u64>(at).to_ne_bytes()),
                4 => part.copy_from_slice(&self.load::<u32>(at).to_ne_bytes()),
                2 => part.copy_from_slice(&self.load::<u16>(at).to_ne_bytes()),
                _ => part[0] = self.load(at),
            }
        }
    }

    /// Copies bytes in, in naturally aligned stores of up to eight bytes, upwards.
    pub fn write(&self, offset: usize, data: &[u8]) {
        for (at, width) in steps(offset, data.len()) {
            self.store_bytes(at, &data[at - offset..at - offset + width]);
        }
    }

    /// Stores one byte everywhere in a range, likewise.
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) {
        for (at, width) in steps(offset, bytes) {
            self.store_bytes(at, &[value; 8][..width]);
        }
    }

    fn store_bytes(&self, at: usize, bytes: &[u8]) {
        match *bytes {
            [a, b, c, d, e, f, g, h] => self.store(at, u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            [a, b, c, d] => self.store(at, u32::from_ne_bytes([a, b, c, d])),
            [a, b] => self.store(at, u16::from_ne_bytes([a, b])),
            _ => bytes.iter().enumerate().for_each(|(i, byte)| self.store(at + i, *byte)),
        }
    }
}

impl Drop for DeviceMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The accesses that a range takes: offset and width of each.
fn steps(offset: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = offset + bytes;
    let next = move |at: usize| {
        let fits = |width: &usize| at.is_multiple_of(*width) && *width <= end - at;
        (at < end).then(|| (at, [8, 4, 2].into_iter().find(fits).unwrap_or(1)))
    };
    std::iter::successors(next(offset), move |(at, width)| next(at + width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memfd;

    #[test]
    fn accesses_are_as_wide_as_they_can_be() {
        let widths = |offset, bytes| steps(offset, bytes).collect::<Vec<_>>();
        assert_eq!(widths(1, 14), [(1, 1), (2, 2), (4, 4), (8, 4), (12, 2), (14, 1)]);
        assert_eq!(widths(8, 16), [(8, 8), (16, 8)]);
        assert_eq!(widths(4, 0), []);
    }

    #[test]
    fn bytes_go_where_they_should() {
        let file = File::from(Memfd::create("device", 8192).unwrap().into_fd());
        assert!(DeviceMapping::new(&file, 8193).is_err() && DeviceMapping::new(&file, 0).is_err());
        let device = DeviceMapping::new(&file, 4096).unwrap();
        let data: Vec<u8> = (1..=40).collect();
        device.write(3, &data);
        let mut back = vec![0; 44];
        device.read(1, &mut back);
        assert_eq!((&back[..2], &back[2..42], &back[42..]), (&[0, 0][..], &data[..], &[0, 0][..]));
        assert_eq!(device.read32(4), u32::from_le_bytes([2, 3, 4, 5]));
        device.write32(4, 0x0a0b_0c0d);
        device.fill(9, 30, 0xee);
        device.read(0, &mut back);
        assert_eq!((&back[4..9], &back[9..39], back[39]), (&[13, 12, 11, 10, 6][..], &[0xee; 30][..], 37));
        for offset in [2, 4096, usize::MAX - 3] {
            assert!(std::panic::catch_unwind(|| device.read32(offset)).is_err(), "{offset:#x}");
        }
    }
}
