//! Freed memory that the allocator keeps.
//!
//! What is freed goes back to the operating system only from the end of the allocator's heaps, and there may be something small that lives
//! on. So a process that had gigabytes for a moment may keep them as long as it lives, for itself alone.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use crate::PAGE;

/// So much more than last time is given back.
const WORTH_WHILE: u64 = 64 << 20;

/// Gives back to the operating system what the allocator of this process keeps of freed memory, as often as that is much.
#[derive(Debug)]
pub struct Freed {
    /// What the operating system says of this process's memory; later it may not let it open files.
    said: File,
    /// Anonymous memory of this process that nobody knew a use of when it was looked at last, bytes.
    last: Mutex<u64>,
}

impl Freed {
    /// Of this process.
    ///
    /// # Errors
    /// The operating system does not say how large it is.
    pub fn new() -> io::Result<Freed> {
        Ok(Freed { said: File::open("/proc/self/statm")?, last: Mutex::new(0) })
    }

    /// Something large may have been freed; `used` bytes, or less, are known to be in use. Threads that ask for memory meanwhile may
    /// wait, up to 0.1 ms for each MiB that was kept.
    ///
    /// # Errors
    /// As of [`Freed::new`].
    pub fn give_back(&self, used: u64) -> io::Result<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.anonymous()?.saturating_sub(used);
        if !is_worth_while(&mut last, now) {
            return Ok(());
        }
        #[cfg(target_env = "gnu")]
        // SAFETY: what is in use is left alone.
        unsafe {
            libc::malloc_trim(0);
        }
        *last = self.anonymous()?.saturating_sub(used);
        Ok(())
    }

    /// Memory of this process that no file is behind, bytes.
    fn anonymous(&self) -> io::Result<u64> {
        let mut said = [0; 128];
        let length = self.said.read_at(&mut said, 0)?;
        let said = String::from_utf8_lossy(&said[..length]);
        let mut pages = said.split_ascii_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
        match (pages.next(), pages.next()) {
            (Some(resident), Some(of_files)) => Ok(resident.saturating_sub(of_files) * PAGE),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm has no such numbers")),
        }
    }
}

/// Whether so much more than last time is kept; notes if it is less.
fn is_worth_while(last: &mut u64, now: u64) -> bool {
    *last = now.min(*last);
    now >= last.saturating_add(WORTH_WHILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_something_that_lives_is_given_back() {
        // A thread's heap is another than those of the other tests.
        let kept = || {
            let freed = Freed::new().unwrap();
            let begin = freed.anonymous().unwrap();
            let mut pieces: Vec<Box<[u8]>> = (0..30_000).map(|_| vec![1; 8000].into_boxed_slice()).collect();
            let last = pieces.pop();
            drop(pieces);
            let before = freed.anonymous().unwrap();
            freed.give_back(before).unwrap();
            assert_eq!(*freed.last.lock().unwrap(), 0, "it is said to be in use");
            freed.give_back(begin).unwrap();
            assert!(last.is_some_and(|piece| piece.iter().all(|byte| *byte == 1)));
            (before.saturating_sub(begin), freed.anonymous().unwrap().saturating_sub(begin))
        };
        let (before, after) = std::thread::spawn(kept).join().unwrap();
        assert!(before > 200 << 20, "{before} bytes were not kept: this test shows nothing");
        assert!(after < 50 << 20, "{after} of {before} bytes are kept");
    }

    #[test]
    fn as_long_as_little_more_is_kept_than_last_time_nothing_is_given_back() {
        let mut last = 0;
        assert!(!is_worth_while(&mut last, WORTH_WHILE - 1));
        assert!(is_worth_while(&mut last, WORTH_WHILE));
        // What stays kept is not looked for again.
        last = WORTH_WHILE;
        assert!(!is_worth_while(&mut last, 2 * WORTH_WHILE - 1));
        assert!(is_worth_while(&mut last, 2 * WORTH_WHILE));
        // It has got smaller.
        assert!(!is_worth_while(&mut last, 5));
        assert_eq!(last, 5);
        assert!(is_worth_while(&mut last, WORTH_WHILE + 5));
    }
}
