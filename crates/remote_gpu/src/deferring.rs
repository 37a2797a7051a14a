//! What the daemon has to tell a client that waits for memory: two words that it writes, and one of them a futex.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{Deferring, GpuError};
use transport::unix;

use crate::RemoteGpu;

/// Longest sleep between two looks whether the daemon is there.
const LONGEST: Duration = Duration::from_secs(10);

impl RemoteGpu {
    fn notice(&self, at: usize) -> u32 {
        self.notices.map_or(0, |notices| self.area.u32_at(notices + at).load(Ordering::SeqCst))
    }
}

impl Deferring for RemoteGpu {
    fn news(&self) -> u32 {
        self.notice(0)
    }

    fn wait_for_news(&self, seen: u32, most: Duration) -> Result<(), GpuError> {
        let Some(at) = self.notices else { return Ok(()) };
        let start = Instant::now();
        while self.news() == seen {
            self.alive()?;
            let left = most.saturating_sub(start.elapsed()).min(LONGEST);
            if left.is_zero() {
                break;
            }
            if unix::hung_up(&self.socket) {
                return Err(self.lose("the daemon is gone"));
            }
            self.area.wait(at, seen, Some(left));
        }
        Ok(())
    }

    fn is_wanted(&self) -> bool {
        self.notice(4) != 0
    }
}
