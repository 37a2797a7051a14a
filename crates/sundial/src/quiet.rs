//! Log lines that a tenant can cause: at most some per second, so that no tenant can fill a disk or drown others.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const BURST: u32 = 20;
const SPAN: Duration = Duration::from_secs(1);

/// Lets some lines through.
#[derive(Debug)]
pub(crate) struct Quiet {
    state: Mutex<(Option<Instant>, u32, u64)>,
}

impl Quiet {
    pub(crate) const fn new() -> Quiet {
        Quiet { state: Mutex::new((None, 0, 0)) }
    }

    /// Whether a line may be written now. Says first how many were not.
    pub(crate) fn may(&self) -> bool {
        self.may_at(Instant::now())
    }

    fn may_at(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let (start, written, dropped) = &mut *state;
        if start.is_none_or(|start| now.duration_since(start) >= SPAN) {
            if *dropped > 0 {
                tracing::warn!(lines = *dropped, "more lines like these were not written");
            }
            (*start, *written, *dropped) = (Some(now), 0, 0);
        }
        *written += 1;
        if *written > BURST {
            *dropped += 1;
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_end() {
        let quiet = Quiet::new();
        let now = Instant::now();
        assert_eq!((0..1000).filter(|_| quiet.may_at(now)).count(), BURST as usize);
        assert!(quiet.may_at(now + SPAN));
    }
}
