//! Whether more threads want to run than there are cores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an answer holds. Asking takes the kernel some microseconds.
const HOLDS: Duration = Duration::from_millis(2);

static CROWD: LazyLock<Crowd> = LazyLock::new(|| Crowd {
    began: Instant::now(),
    source: File::open("/proc/loadavg").ok(),
    // SAFETY: asks for a number.
    cores: usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1),
    asked: AtomicU64::new(0),
    is_crowded: AtomicBool::new(false),
});

/// What this process knows of it; read by all its threads.
struct Crowd {
    began: Instant,
    /// `None` where the kernel tells nobody: then it is never crowded.
    source: Option<File>,
    cores: usize,
    /// When the kernel was asked last, ns since `began`; 0: never.
    asked: AtomicU64,
    is_crowded: AtomicBool,
}

/// Whether more threads of the whole machine want to run than it has cores, now or within the last two milliseconds. Who waits
/// for another thread then keeps it from running by looking, or somebody else; where nothing is known it is never crowded.
///
/// The first call opens a file: before a process gives up the right to.
#[must_use]
pub fn is_crowded() -> bool {
    let crowd = &*CROWD;
    let Some(source) = &crowd.source else { return false };
    let now = crowd.began.elapsed().as_nanos() as u64 + 1;
    let asked = crowd.asked.load(Ordering::Relaxed);
    let is_due = asked == 0 || now.saturating_sub(asked) >= HOLDS.as_nanos() as u64;
    if is_due && crowd.asked.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let mut text = [0; 64];
        let length = source.read_at(&mut text, 0).unwrap_or(0);
        let crowded = running(&text[..length]).is_some_and(|running| running > crowd.cores);
        crowd.is_crowded.store(crowded, Ordering::Relaxed);
    }
    crowd.is_crowded.load(Ordering::Relaxed)
}

/// The threads that run or want to, of the text of `/proc/loadavg`: `0.36 0.11 0.03 1/77 1813`.
fn running(text: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(text).ok()?;
    text.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_that_want_to_run_are_read() {
        assert_eq!(running(b"0.36 0.11 0.03 1/77 1813\n"), Some(1));
        assert_eq!(running(b"12.00 7.11 0.03 130/2077 1813\n"), Some(130));
        for text in [&b""[..], b"0.36 0.11 0.03", b"0.36 0.11 0.03 1 1813", b"0.36 0.11 0.03 x/77", b"\xff 1 2 3/4"] {
            assert_eq!(running(text), None);
        }
    }
}
