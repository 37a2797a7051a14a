//! Checked kernels (`sundial run --check`): what is said, and where to.
//!
//! - `SUNDIAL_CHECK`: what is checked, as `memory,race`. The GPU must be in this process.
//! - `SUNDIAL_CHECK_LOG`: a file that there is, to which a line of JSON is appended for each event: `start`, `error`, `end`.
//!
//! Errors go to standard error, too, where they are made.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use checker::{Checker, Checks, Memory, Report};
use cuda_core::{Driver, MemoryWatcher, WatchedMemory};
use serde_json::{Value, json};

use crate::backend::BackendError;

/// Says what to check.
const VARIABLE: &str = "SUNDIAL_CHECK";
const LOG_VARIABLE: &str = "SUNDIAL_CHECK_LOG";

/// The checker of this process.
static CHECKING: OnceLock<Checking> = OnceLock::new();

#[derive(Debug)]
struct Checking {
    checker: Arc<Checker>,
    log: Arc<Log>,
}

/// The file of events, if there is one.
#[derive(Debug)]
struct Log(Option<File>);

impl Log {
    fn open(path: Option<&Path>) -> std::io::Result<Log> {
        let Some(path) = path else { return Ok(Log(None)) };
        // Where it was may be what others have put there by now. That a pipe has no reader is then no reason to wait.
        match OpenOptions::new().append(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => Ok(Log(Some(file))),
            // Who asked for it has gone.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Log(None)),
            Err(error) => Err(error),
        }
    }

    /// One write for each, so that those of several processes do not mix.
    fn tell(&self, event: &str, what: Value) {
        let Some(mut file) = self.0.as_ref() else { return };
        let mut line = json!({ "event": event, "process": std::process::id() });
        if let (Value::Object(line), Value::Object(what)) = (&mut line, what) {
            line.extend(what);
        }
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            tracing::error!(%error, "what was found cannot be written to the file of SUNDIAL_CHECK_LOG");
        }
    }
}

/// The checker that the environment asks for.
///
/// # Errors
/// It asks for something that there is not, or for a log that cannot be written.
pub(crate) fn of_environment() -> Result<Option<Arc<Checker>>, BackendError> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
    if let Some(checking) = CHECKING.get() {
        return Ok(Some(Arc::clone(&checking.checker)));
    }
    let names = value.to_string_lossy().into_owned();
    let checks: Checks = names.parse().map_err(|_| BackendError::Variable {
        variable: VARIABLE,
        value: names.clone(),
        wanted: "memory, init, race, or several with commas between",
    })?;
    let log = Arc::new(Log::open(std::env::var_os(LOG_VARIABLE).as_deref().map(Path::new))?);
    let of_checker = Arc::clone(&log);
    let checker = Arc::new(Checker::new(checks, move |report| tell(&of_checker, report)));
    log.tell("start", json!({ "checks": names }));
    CHECKING.get_or_init(|| Checking { checker: Arc::clone(&checker), log });
    Ok(Some(checker))
}

fn tell(log: &Log, report: &Report) {
    // Where it cannot be written there is the log.
    let _ = std::io::stderr().write_all(report.to_string().as_bytes());
    log.tell("error", json!({ "error": report }));
}

/// The process ends.
pub(crate) fn end() {
    if let Some(Checking { checker, log }) = CHECKING.get() {
        let totals = checker.totals();
        log.tell("end", json!({ "errors": totals.errors, "places": totals.places }));
    }
}

/// Has the checker told what memory there is, and nothing be under way while it changes.
pub(crate) fn attach(driver: &Driver, checker: Arc<Checker>) {
    driver.be_immediate();
    driver.watch_memory(Arc::new(Watcher(checker)));
}

#[derive(Debug)]
struct Watcher(Arc<Checker>);

impl MemoryWatcher for Watcher {
    fn allocated(&self, base: u64, bytes: u64, memory: WatchedMemory) {
        let WatchedMemory { name, addressed, filled } = memory;
        self.0.allocated(base, bytes, Memory { name, addressed }, filled);
    }

    fn freed(&self, base: u64) {
        self.0.freed(base);
    }

    fn written(&self, address: u64, bytes: u64) {
        self.0.written(address, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_gone_is_not_made_again() {
        let path = std::env::temp_dir().join(format!("sundial-check-log-{}", std::process::id()));
        File::create_new(&path).unwrap();
        Log::open(Some(&path)).unwrap().tell("start", json!({}));
        let said = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(said.contains("\"event\":\"start\"") && said.ends_with('\n'), "{said}");
        assert!(Log::open(Some(&path)).unwrap().0.is_none());
        assert!(!path.exists());
    }
}
