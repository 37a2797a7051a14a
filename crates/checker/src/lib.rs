//! Checks what kernels do with memory, while the interpreter runs them ([`ptx::check`]).
//!
//! - *memory*: every access to global memory lies in one allocation that is there (not: in a page that is there), is aligned, and
//!   accesses to shared and local memory stay within these. An error ends the launch, as the fault would that it may be without a checker.
//! - *init*: nothing of device memory is read that nobody has written: no kernel, no copy, no fill.
//! - *race*: hazards in shared memory, which the interpreter finds.
//!
//! Whoever allocates, frees and writes tells the [`Checker`]; reports go to whoever made it, once for each place in a kernel: the rest is
//! counted. Pure: no I/O, no clock.

mod ledger;
mod report;

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use parking_lot::{Mutex, RwLock};
use ptx::check::{Hazard, HazardKind, Site};
use ptx::launch::{Access, AccessError, Exception};

use ledger::Ledger;
pub use ledger::Memory;
pub use report::{Check, Place, Report};

/// Most places of which reports are made; a program that has more has been told enough.
const MOST_PLACES: usize = 1000;

/// What is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checks {
    /// Accesses lie in allocations.
    pub memory: bool,
    /// What is read was written.
    pub init: bool,
    /// Hazards in shared memory.
    pub race: bool,
}

/// Not the names of checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownCheck(String);

impl fmt::Display for UnknownCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no check {:?}: memory, init, race", self.0)
    }
}

impl std::error::Error for UnknownCheck {}

impl FromStr for Checks {
    type Err = UnknownCheck;

    /// Names, separated by commas.
    fn from_str(names: &str) -> Result<Checks, UnknownCheck> {
        let mut checks = Checks::default();
        for name in names.split(',') {
            match name.trim() {
                "memory" => checks.memory = true,
                "init" => checks.init = true,
                "race" => checks.race = true,
                other => return Err(UnknownCheck(other.to_owned())),
            }
        }
        Ok(checks)
    }
}

/// What was found so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Errors.
    pub errors: u64,
    /// Places of kernels where they were made.
    pub places: u64,
}

/// A place of a kernel, and what is wrong there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    check: Check,
    kernel: String,
    line: u32,
    other: u32,
    what: &'static str,
}

/// Checks what kernels do; of one process, whose addresses are all its GPUs'.
pub struct Checker {
    checks: Checks,
    ledger: RwLock<Ledger>,
    found: Mutex<HashMap<Key, u64>>,
    tell: Box<dyn Fn(&Report) + Send + Sync>,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").field("checks", &self.checks).finish_non_exhaustive()
    }
}

impl Checker {
    /// A checker that tells `tell` what it finds, on the thread that runs the kernel.
    #[must_use]
    pub fn new(checks: Checks, tell: impl Fn(&Report) + Send + Sync + 'static) -> Checker {
        Checker { checks, ledger: RwLock::default(), found: Mutex::default(), tell: Box::new(tell) }
    }

    /// What was found so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let found = self.found.lock();
        Totals { errors: found.values().sum(), places: found.len() as u64 }
    }

    /// There is memory, so many bytes as somebody has asked for, in place of what was there. What is in it is known if `filled`.
    pub fn allocated(&self, base: u64, bytes: u64, memory: Memory, filled: bool) {
        self.ledger.write().allocated(base, bytes, memory, self.checks.init && !filled);
    }

    /// Memory that began there is there no more; that there was none is no error.
    pub fn freed(&self, base: u64) {
        self.ledger.write().freed(base);
    }

    /// Something has written to memory that is no kernel.
    pub fn written(&self, address: u64, bytes: u64) {
        if self.checks.init {
            self.ledger.read().write(address, bytes);
        }
    }

    /// Counts an error; the first one at a place is told.
    fn report(&self, key: Key, report: impl FnOnce() -> Report) {
        let mut found = self.found.lock();
        let known = found.len();
        match found.get_mut(&key) {
            Some(count) => *count += 1,
            None if known < MOST_PLACES => {
                found.insert(key, 1);
                drop(found);
                (self.tell)(&report());
            }
            None => {}
        }
    }

    fn key(check: Check, site: &Site<'_>, other: u32, what: &'static str) -> Key {
        Key { check, kernel: site.kernel.name.clone(), line: site.line, other, what }
    }
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::Atomic => "atomic operation",
    }
}

impl ptx::check::Checker for Checker {
    fn wants_hazards(&self) -> bool {
        self.checks.race
    }

    fn access(&self, site: &Site<'_>, access: Access, address: u64, bytes: u32) -> Result<(), AccessError> {
        if !self.checks.memory && !self.checks.init {
            return Ok(());
        }
        let ledger = self.ledger.read();
        if !ledger.holds(address, bytes.into()) {
            return if self.checks.memory { Err(AccessError::NotAllocated) } else { Ok(()) };
        }
        if !self.checks.init {
            return Ok(());
        }
        let unwritten = access != Access::Write && ledger.is_unwritten(address, bytes.into());
        // What was told once is not told again.
        if access != Access::Read || unwritten {
            ledger.write(address, bytes.into());
        }
        if unwritten {
            let what = "of memory that nobody has written";
            self.report(Checker::key(Check::Init, site, 0, what), || {
                let near = ledger.near(address);
                Report::of_access(Check::Init, site, (access, bytes), what, Some(address), near)
            });
        }
        Ok(())
    }

    fn failed(&self, site: &Site<'_>, exception: Exception, bytes: u32) {
        let Exception::Access { address, access, error } = exception else {
            let what = match exception {
                Exception::Trap => "the kernel has trapped",
                Exception::Assert => "an assertion of the kernel has failed",
                _ => "an instruction that cannot be executed so",
            };
            return self
                .report(Checker::key(Check::Memory, site, 0, what), || Report::plain(Check::Memory, site, what));
        };
        let ledger = self.ledger.read();
        let (what, detail) = match error {
            AccessError::NotAllocated | AccessError::Unmapped | AccessError::OutOfWindow => {
                ledger.why(address, bytes.into())
            }
            AccessError::ReadOnly => ("of read-only memory", ledger.near(address)),
            AccessError::Misaligned => ("at an address that is no multiple of its size", ledger.near_if_any(address)),
            AccessError::Shared => {
                let beyond = format!("the block has {} bytes of shared memory", site.shared_bytes);
                ("outside the block's shared memory", Some(beyond))
            }
            AccessError::Local => {
                let beyond = format!("a thread has {} bytes of local memory", site.kernel.local_bytes);
                ("outside the thread's local memory", Some(beyond))
            }
            AccessError::Param => ("outside the kernel's parameters", None),
            AccessError::Image => ("by a handle of no such texture or surface", None),
        };
        self.report(Checker::key(Check::Memory, site, 0, what), || {
            Report::of_access(Check::Memory, site, (access, bytes), what, Some(address), detail)
        });
    }

    fn hazard(&self, site: &Site<'_>, hazard: &Hazard) {
        let what = match hazard.kind {
            HazardKind::WriteAfterWrite => "write after write",
            HazardKind::ReadAfterWrite => "read after write",
            HazardKind::WriteAfterRead => "write after read",
        };
        self.report(Checker::key(Check::Race, site, hazard.line, what), || Report::of_hazard(site, hazard, what));
    }
}
