//! Entering the library: every exported function passes through its [`Entry`].
//!
//! An entry checks that the driver stands, counts the call, runs it, logs a refusal, and turns a panic into
//! `CUDA_ERROR_UNKNOWN`: nothing unwinds into C. What it costs beyond the call itself is two loads and one atomic add.
//!
//! ```text
//!   Unstarted ──cuInit──▶ Running ──end of the process──▶ Ended      NOT_INITIALIZED, -, DEINITIALIZED
//!                            └──────fork, in the child────▶ Forked    NOT_INITIALIZED
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use cuda_abi::{CUlogLevel, CUresult};
use cuda_core::{CudaError, Driver};
use parking_lot::Mutex;

use crate::backend::Spared;
use crate::check;
use crate::error_log::LOG;
use crate::log::CALL_FAILS;
use crate::standing::Own;

/// A result code other than success, on its way to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(pub(crate) CUresult);

impl From<CudaError> for Refusal {
    fn from(error: CudaError) -> Refusal {
        Refusal(CUresult(error.code()))
    }
}

/// What the body of a function returns; results go through its arguments.
pub(crate) type Answer = Result<(), Refusal>;

/// Shorthand for refusing.
pub(crate) fn refuse<T>(code: CUresult) -> Result<T, Refusal> {
    Err(Refusal(code))
}

static DRIVER: OnceLock<Installed> = OnceLock::new();
static PHASE: AtomicU8 = AtomicU8::new(RUNNING);
const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const FORKED: u8 = 2;

/// The driver, and whom to tell of calls that stayed in the process.
struct Installed {
    driver: Driver,
    spared: Option<Spared>,
    own: Vec<Own>,
}

/// Entries that were called at least once.
static CALLED: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

/// The driver, while it may be used.
pub(crate) fn driver() -> Result<&'static Driver, Refusal> {
    installed().map(|installed| &installed.driver)
}

fn installed() -> Result<&'static Installed, Refusal> {
    match PHASE.load(Ordering::Relaxed) {
        RUNNING => DRIVER.get().ok_or(Refusal(CUresult::CUDA_ERROR_NOT_INITIALIZED)),
        ENDED => refuse(CUresult::CUDA_ERROR_DEINITIALIZED),
        _ => refuse(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// The GPUs in this process; `None` before `cuInit`, or in a child of who has called it.
///
/// # Errors
/// `DEINITIALIZED`.
pub(crate) fn in_process() -> Result<Option<&'static [Own]>, Refusal> {
    match PHASE.load(Ordering::Relaxed) {
        RUNNING => Ok(DRIVER.get().map(|installed| &installed.own[..])),
        ENDED => refuse(CUresult::CUDA_ERROR_DEINITIALIZED),
        _ => Ok(None),
    }
}

/// Whether `cuInit` has something to do; an error where nothing can be done any more.
pub(crate) fn startable() -> Result<bool, Refusal> {
    match PHASE.load(Ordering::Relaxed) {
        RUNNING => Ok(DRIVER.get().is_none()),
        ENDED => refuse(CUresult::CUDA_ERROR_DEINITIALIZED),
        _ => refuse(CUresult::CUDA_ERROR_NOT_INITIALIZED),
    }
}

/// Makes the driver usable. The first one stays.
pub(crate) fn install(driver: Driver, spared: Option<Spared>, own: Vec<Own>) {
    DRIVER.get_or_init(|| Installed { driver, spared, own });
}

/// The process ends: from now on nothing is answered. Logs what was called.
pub(crate) fn end() {
    if PHASE.swap(ENDED, Ordering::Relaxed) != RUNNING {
        return;
    }
    if let Some(installed) = DRIVER.get() {
        installed.driver.shut_down();
    }
    check::end();
    if tracing::enabled!(tracing::Level::DEBUG) {
        let mut called: Vec<(u64, &str)> = CALLED.lock().iter().map(|entry| (entry.calls(), entry.name)).collect();
        called.sort_unstable_by(|one, other| other.cmp(one));
        let total: u64 = called.iter().map(|row| row.0).sum();
        let messages = DRIVER.get().and_then(|installed| Some(installed.spared.as_ref()?.messages()));
        tracing::debug!(
            "{total} calls of {} functions, {} messages to the daemon",
            called.len(),
            messages.unwrap_or(0)
        );
        for (calls, name) in called {
            tracing::debug!("{calls:>9} {name}");
        }
    }
}

/// This process is a fork of one that used the driver: its threads and connections are not here.
pub(crate) fn forked() {
    PHASE.store(FORKED, Ordering::Relaxed);
}

/// An exported function.
#[derive(Debug)]
pub(crate) struct Entry {
    name: &'static str,
    calls: AtomicU64,
    /// Standard error was told why it is refused.
    said: AtomicBool,
}

impl Entry {
    pub(crate) const fn new(name: &'static str) -> Entry {
        Entry { name, calls: AtomicU64::new(0), said: AtomicBool::new(false) }
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn count(&'static self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            CALLED.lock().push(self);
        }
    }

    /// Runs a function that needs the driver.
    #[inline]
    pub(crate) fn call(&'static self, body: impl FnOnce(&'static Driver) -> Answer) -> CUresult {
        self.call_early(|| {
            let installed = installed()?;
            let Some(spared) = &installed.spared else { return body(&installed.driver) };
            let messages = spared.messages();
            let answer = body(&installed.driver);
            let count = if spared.messages() == messages { spared.local() } else { spared.sent() };
            count.fetch_add(1, Ordering::Relaxed);
            answer
        })
    }

    /// Runs a function that works without the driver.
    #[inline]
    pub(crate) fn call_early(&'static self, body: impl FnOnce() -> Answer) -> CUresult {
        self.count();
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {
                tracing::trace!("{}", self.name);
                CUresult::CUDA_SUCCESS
            }
            Ok(Err(Refusal(code))) => {
                self.refused(code);
                code
            }
            Err(_) => {
                tracing::error!("{}: an internal error; please report it", self.name);
                LOG.tell();
                CUresult::CUDA_ERROR_UNKNOWN
            }
        }
    }

    /// Refuses a function for what the GPU or the system lacks, and says why: on standard error once. Before `cuInit` that is what is
    /// refused.
    pub(crate) fn refuse(&'static self, code: CUresult, why: &str) -> CUresult {
        self.count();
        if let Err(Refusal(code)) = installed() {
            self.refused(code);
            return code;
        }
        if self.said.swap(true, Ordering::Relaxed) {
            LOG.add(CUlogLevel::CU_LOG_LEVEL_ERROR, &format!("{}: {code}: {why}", self.name));
        } else {
            tracing::warn!(target: CALL_FAILS, "{}: {code}: {why}", self.name);
        }
        LOG.tell();
        code
    }

    #[cold]
    fn refused(&self, code: CUresult) {
        // Answers that well-behaved programs ask for.
        if matches!(code, CUresult::CUDA_ERROR_NOT_READY | CUresult::CUDA_ERROR_NOT_FOUND) {
            tracing::trace!("{}: {code}", self.name);
        } else {
            tracing::warn!(target: CALL_FAILS, "{}: {code}", self.name);
            LOG.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_end_here() {
        static ENTRY: Entry = Entry::new("cuTest");
        assert_eq!(ENTRY.call_early(|| panic!("as a test")), CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(ENTRY.call_early(|| Ok(())), CUresult::CUDA_SUCCESS);
        assert_eq!(ENTRY.call_early(|| refuse(CUresult::CUDA_ERROR_NOT_READY)), CUresult::CUDA_ERROR_NOT_READY);
        assert_eq!(ENTRY.refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED, "a test"), CUresult::CUDA_ERROR_NOT_INITIALIZED);
        assert_eq!(ENTRY.calls(), 4);
    }
}
