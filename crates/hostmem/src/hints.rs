//! System calls that ask for something that is faster, and nothing more. A program that filters its system calls may die of one that it does
//! not expect: nothing is asked for where there is a filter, but by the process that says that its own allows it.

use std::sync::atomic::{AtomicBool, Ordering};

/// This process has a filter of system calls of which it knows that it allows these.
static ALLOWED: AtomicBool = AtomicBool::new(false);

/// Says that what filters this process's system calls, or will, allows `sched_getattr`, `sched_setattr`, `getrusage`, `madvise` and
/// `mincore`.
pub fn allow_hints() {
    ALLOWED.store(true, Ordering::Relaxed);
}

/// Whether nothing can go wrong but that it is refused.
pub(crate) fn are_safe() -> bool {
    // SAFETY: it only asks. Who is not allowed to ask that could not have slept, or named a thread.
    ALLOWED.load(Ordering::Relaxed) || unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 0 }
}
