//! Ending clients.
//!
//! Scrubbing what a client had takes time, and stopping what it runs may take two seconds. Nobody else may wait for that, nor may
//! the thread that notices that a client is gone. So each client has a thread that ends it, from its beginning on: when it
//! has to go, there may be none to be had.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::threads;

/// Ends one client when it is told to, or dropped.
pub(super) struct Closing {
    progress: Arc<Progress>,
}

#[derive(Default)]
struct Progress {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Open,
    Ending,
    Ended,
}

impl Closing {
    /// `close` will be called once, on a thread of its own.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn prepare(close: impl FnOnce() + Send + 'static) -> io::Result<Closing> {
        let progress = Arc::<Progress>::default();
        let told = Arc::clone(&progress);
        let work = move || {
            told.wait(|stage| stage != Stage::Open);
            // Half closed, it may hold memory that others would be given.
            threads::whole("closing a client", close);
            told.set(Stage::Ended);
        };
        std::thread::Builder::new().name("closing".into()).spawn(work)?;
        Ok(Closing { progress })
    }

    /// Begins, without waiting.
    pub(super) fn begin(&self) {
        let mut stage = self.progress.stage.lock();
        if *stage == Stage::Open {
            *stage = Stage::Ending;
            self.progress.changed.notify_all();
        }
    }

    /// Returns when everything has been given back.
    pub(super) fn finish(&self) {
        self.begin();
        self.progress.wait(|stage| stage == Stage::Ended);
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.begin();
    }
}

impl Progress {
    fn wait(&self, until: impl Fn(Stage) -> bool) {
        let mut stage = self.stage.lock();
        self.changed.wait_while(&mut stage, |stage| !until(*stage));
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use session::Monitor;
    use transport::unix;

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    /// A client that says when its closing begins, and is closed when it is allowed to.
    fn client() -> (Arc<Closing>, Receiver<()>, Sender<()>) {
        let ((began, begun), (allow, allowed)) = (channel(), channel::<()>());
        let close = move || {
            began.send(()).unwrap();
            let _ = allowed.recv();
        };
        (Arc::new(Closing::prepare(close).unwrap()), begun, allow)
    }

    #[test]
    fn a_slow_close_delays_neither_others_nor_the_monitor() {
        let monitor = Monitor::start(|| ()).unwrap();
        let mut clients = Vec::new();
        let mut watches = Vec::new();
        for _ in 0..3 {
            let (closing, begun, allow) = client();
            let (ours, theirs) = unix::pair().unwrap();
            let ours = Arc::new(ours);
            let abort = Arc::clone(&closing);
            watches.push(monitor.watch(&ours, None, false, move || abort.begin()).unwrap());
            clients.push((closing, begun, allow, theirs));
        }
        let (slow, begun, allow_slow, socket) = clients.remove(0);
        drop(socket);
        begun.recv_timeout(BOUND).unwrap();
        // The monitor sees the others go, and they are closed.
        for (closing, begun, allow, socket) in clients {
            drop(socket);
            begun.recv_timeout(BOUND).unwrap();
            drop(allow);
            closing.finish();
        }
        assert!(*slow.progress.stage.lock() == Stage::Ending, "it is at it all the while");
        drop(allow_slow);
        slow.finish();
        slow.finish();
    }

    #[test]
    fn who_was_never_used_is_closed_too() {
        let (closing, begun, _allow) = client();
        drop(closing);
        begun.recv_timeout(BOUND).unwrap();
    }
}
