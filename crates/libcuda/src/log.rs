//! The log: lines on standard error, which the program shares with us.
//!
//! Written without thread-local storage and without anything that may panic: programs call the driver from functions that
//! run at the end of the process, after the thread's storage is gone.

use std::fmt::Write as _;
use std::io::Write as _;

use cuda_abi::CUlogLevel;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::error_log::{self, LOG};

/// Where a call says that it fails: to the program that is an error, whatever it is to us.
pub(crate) const CALL_FAILS: &str = "call fails";

/// Starts the log. `SUNDIAL_LOG` says how much is logged: off, error (the default), warn, info, debug, trace.
pub(crate) fn start() {
    error_log::watch_forks();
    let level = std::env::var("SUNDIAL_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::ERROR);
    // A second start finds the log there already.
    let _ = tracing::subscriber::set_global_default(Lines { level });
}

/// One line for each event; spans are not followed.
struct Lines {
    level: LevelFilter,
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level || is_for_the_program(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.max(LevelFilter::WARN))
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // One write for each line, so that those of several threads do not mix.
        if *event.metadata().level() <= self.level {
            let _ = std::io::stderr().write_all(line(event).as_bytes());
        }
        if is_for_the_program(event.metadata()) {
            let error = *event.metadata().level() == Level::ERROR || event.metadata().target() == CALL_FAILS;
            let level = if error { CUlogLevel::CU_LOG_LEVEL_ERROR } else { CUlogLevel::CU_LOG_LEVEL_WARNING };
            LOG.add(level, &message(event).0);
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn line(event: &Event<'_>) -> String {
    format!("sundial: {}:{}\n", event.metadata().level().as_str().to_lowercase(), message(event).0)
}

fn message(event: &Event<'_>) -> Line {
    let mut line = Line(String::new());
    event.record(&mut line);
    line
}

/// Whether the program can read it, too, whatever is logged.
fn is_for_the_program(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::WARN
}

/// A line in the making.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Keeps lines instead of writing them.
    struct Kept(&'static Mutex<Vec<String>>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(line(event));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn lines_say_who_how_bad_and_what() {
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        tracing::subscriber::with_default(Kept(&LINES), || {
            tracing::warn!(bytes = 5, kind = "host", "out of memory");
        });
        assert_eq!(*LINES.lock().unwrap(), ["sundial: warn: out of memory bytes=5 kind=host\n"]);
    }
}
