//! Log lines that a tenant can cause, limited in rate.
//!
//! What a tenant does wrong is worth a line, and a tenant can do it a million times a second: then the log is full, the disk
//! behind it too, and what happened to others is not to be found in it. So no line that a tenant can cause is written with
//! `tracing::warn!` itself, but with [`warn!`] or [`error!`] of this crate, which take the same arguments:
//!
//! ```
//! # let error = "no room";
//! log_limit::warn!(%error, channel = 3, "no address space");
//! ```
//!
//! Each place in the source has a [`Limit`] of its own: [`LINES`] lines in [`PERIOD`], whoever causes them. The first line that
//! is written afterwards says in the field `left_out` how many were not. Nothing is written when nothing happens, so the count
//! of the last ones waits for the next.
//!
//! What only the machine or an error of ours can cause is not to be written with this: it should never be left out.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

#[doc(hidden)]
pub use tracing;

/// Lines that one place writes in a [`PERIOD`].
pub const LINES: u32 = 5;
/// The time in which they are counted; it begins with the first.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Counts the lines of one place in the source.
#[derive(Debug, Default)]
pub struct Limit {
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    /// Begin of the period.
    since: Option<Instant>,
    /// Written in it.
    lines: u32,
    /// Not written since the last that was.
    left_out: u64,
}

impl Limit {
    /// No line yet.
    #[must_use]
    pub const fn new() -> Limit {
        Limit { counted: Mutex::new(Counted { since: None, lines: 0, left_out: 0 }) }
    }

    /// Whether a line may be written now; if so, how many were left out since the last. Whoever asks and may, writes it.
    pub fn may_tell(&self, now: Instant) -> Option<u64> {
        let mut counted = self.counted.lock();
        if counted.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (counted.since, counted.lines) = (Some(now), 0);
        }
        if counted.lines == LINES {
            counted.left_out = counted.left_out.saturating_add(1);
            return None;
        }
        counted.lines += 1;
        Some(std::mem::take(&mut counted.left_out))
    }
}

/// `tracing::warn!`, limited in rate.
#[macro_export]
macro_rules! warn {
    ($($line:tt)+) => { $crate::limited!(warn, $($line)+) };
}

/// `tracing::error!`, limited in rate.
#[macro_export]
macro_rules! error {
    ($($line:tt)+) => { $crate::limited!(error, $($line)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! limited {
    ($level:ident, $($line:tt)+) => {{
        static LIMIT: $crate::Limit = $crate::Limit::new();
        if let Some(left_out) = LIMIT.may_tell(::std::time::Instant::now()) {
            // A field without a value is not written.
            $crate::tracing::$level!(left_out = (left_out > 0).then_some(left_out), $($line)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    #[test]
    fn lines_of_a_period_are_few_and_the_rest_is_counted() {
        let limit = Limit::new();
        let start = Instant::now();
        for _ in 0..LINES {
            assert_eq!(limit.may_tell(start), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(limit.may_tell(start + PERIOD / 2), None);
        }
        assert_eq!(limit.may_tell(start + PERIOD), Some(1000), "the next period says what was left out");
        assert_eq!(limit.may_tell(start + PERIOD), Some(0), "once");
        // A thread that looked at the clock earlier and came later.
        assert_eq!(limit.may_tell(start), Some(0));
    }

    /// Counts events, and those that say that some were left out.
    #[derive(Clone, Default)]
    struct Log(Arc<[AtomicU64; 2]>);

    impl Visit for Log {
        fn record_u64(&mut self, field: &Field, _: u64) {
            if field.name() == "left_out" {
                self.0[1].fetch_add(1, Ordering::Relaxed);
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            self.0[0].fetch_add(1, Ordering::Relaxed);
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_place_has_its_own_limit() {
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            for channel in 0..100 {
                crate::warn!(channel, "one place");
                crate::error!(why = %"none", "another, at step {channel}");
            }
        });
        assert_eq!(log.0[0].load(Ordering::Relaxed), u64::from(2 * LINES));
        assert_eq!(log.0[1].load(Ordering::Relaxed), 0, "nothing is said of lines that were not left out");
    }
}
