//! Threads that a process cannot do without.
//!
//! A thread that panics takes with it what only it did: sessions would never end, shares never change. So the panic of such a
//! thread, or its end before its time, is the end of the process, said in the log; whoever started the process starts
//! another.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Exit status of a process that found a fault of its own: `EX_SOFTWARE`.
pub(crate) const BROKEN: i32 = 70;

/// Ends this process because of a fault of its own.
pub(crate) fn broken(what: &str) -> ! {
    tracing::error!("{what}: this process cannot go on");
    std::process::exit(BROKEN);
}

/// Does something that may not panic half way: if it does, this process ends.
pub(crate) fn whole<T>(what: &str, work: impl FnOnce() -> T) -> T {
    // Nobody sees what the panic left behind.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| broken(&format!("{what} panicked")))
}

/// Starts a thread that ends only with the process.
pub(crate) fn essential(name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        whole(name, work);
        broken(&format!("{name} ended"));
    };
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

/// Does something when it is dropped: at the end of a thread, however it ends.
pub(crate) struct AtEnd<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
