//! Pages that the kernel does not move.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::Mapping;

/// Entries of the smallest ring.
const ENTRIES: libc::c_uint = 1;
/// `IORING_REGISTER_BUFFERS`.
const REGISTER_BUFFERS: libc::c_uint = 0;
/// Bytes of `struct io_uring_params`, in words.
const PARAMS_WORDS: usize = 120 / 4;
/// Most bytes of a buffer.
const MOST_BYTES: usize = 1 << 30;

/// The pages that a mapping had when this was made: they stay where they are in the machine's memory while it lives.
///
/// Locked pages do not: the kernel moves them when it gathers free memory. Buffers that are registered with an `io_uring` are
/// pinned, for any time, and nothing else is done with that.
#[derive(Debug)]
pub struct Pinned {
    _ring: OwnedFd,
}

impl Mapping {
    /// Pins its pages. They are writable, and all that exist not are made.
    ///
    /// # Errors
    /// What the operating system says: it may have no `io_uring`, or not for this process.
    pub fn pin(&self) -> io::Result<Pinned> {
        let mut params = [0_u32; PARAMS_WORDS];
        // SAFETY: `params` has the size of what the kernel reads and writes there.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
        let ring = i32::try_from(ring).ok().filter(|ring| *ring >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just made this descriptor for us.
        let ring = unsafe { OwnedFd::from_raw_fd(ring) };
        let part = |offset: usize| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(self.address() + offset),
            iov_len: (self.len() - offset).min(MOST_BYTES),
        };
        let parts: Vec<libc::iovec> = (0..self.len()).step_by(MOST_BYTES).map(part).collect();
        let (fd, count) = (ring.as_raw_fd(), parts.len());
        // SAFETY: the buffers are pages of this mapping, of which nobody has more than raw copies and atomics; the kernel reads
        // `count` descriptions of them, and does nothing with what they hold.
        let done = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_BUFFERS, parts.as_ptr(), count) };
        if done == 0 { Ok(Pinned { _ring: ring }) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use crate::Memfd;

    #[test]
    fn pages_are_pinned_where_the_machine_lets_us() {
        let memory = Memfd::create("pinned", 3 << 20).unwrap().map_resident().unwrap();
        match memory.pin() {
            Ok(pinned) => {
                assert!(pinned_kib() >= 3 << 10, "{} KiB are pinned", pinned_kib());
                memory.fill(0, memory.len(), 7);
                drop(pinned);
                // The kernel lets go a moment later.
                let start = std::time::Instant::now();
                while pinned_kib() != 0 {
                    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{} KiB stay", pinned_kib());
                    std::thread::yield_now();
                }
            }
            Err(error) => eprintln!("skipped: pages cannot be pinned here: {error}"),
        }
    }

    /// Memory of this process that is pinned, KiB.
    fn pinned_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}
