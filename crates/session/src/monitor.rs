//! One thread that watches the sockets of all sessions, and the processes behind them.
//!
//! After the handshake a client has nothing more to say on its socket, but for the memory files that it hands over if its session
//! takes such: whatever else happens there (end of file, an error, a byte) ends its session. The process is watched as well, because
//! a child that it forked may hold the socket open.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::epoll;

type Action = Box<dyn FnOnce() + Send>;

/// Watches sockets until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    set: Arc<WatchSet>,
    /// Closing it ends the thread.
    _end: OwnedFd,
}

struct WatchSet {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    actions: HashMap<u64, (Vec<Arc<OwnedFd>>, Action)>,
}

impl std::fmt::Debug for WatchSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchSet").field("watched", &self.watched.lock().actions.len()).finish_non_exhaustive()
    }
}

/// A socket being watched; not any more when this is dropped.
#[derive(Debug)]
pub struct Watch {
    set: Weak<WatchSet>,
    key: u64,
}

const END: u64 = 0;

impl Monitor {
    /// Starts the thread. Without it clients die unnoticed: `broken` is called if it ends before the monitor is dropped.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn start(broken: impl FnOnce() + Send + 'static) -> io::Result<Monitor> {
        let (ours, theirs) = transport::unix::pair()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &theirs, epoll::EventData::new_u64(END), epoll::EventFlags::RDHUP)?;
        let set = Arc::new(WatchSet { epoll, watched: Mutex::new(Watched { next: END + 1, ..Watched::default() }) });
        let seen = Arc::clone(&set);
        std::thread::Builder::new().name("monitor".into()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| seen.run()));
            drop(theirs);
            if !matches!(ended, Ok(Ok(()))) {
                tracing::error!(?ended, "the session monitor ends");
                broken();
            }
        })?;
        Ok(Monitor { set, _end: ours })
    }

    /// Calls `action` once, on the monitor's thread, when something happens on `socket` or `process`, a descriptor of the
    /// peer's process, ends. It must not block. Messages of a peer that `may_talk` are for others to receive.
    ///
    /// Who drops the [`Watch`] before what else holds the socket knows that it is not closed here.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn watch(
        &self,
        socket: &Arc<OwnedFd>,
        process: Option<OwnedFd>,
        may_talk: bool,
        action: impl FnOnce() + Send + 'static,
    ) -> io::Result<Watch> {
        let sources: Vec<_> = [Some(Arc::clone(socket)), process.map(Arc::new)].into_iter().flatten().collect();
        let mut watched = self.set.watched.lock();
        let key = watched.next;
        watched.next += 1;
        let end = epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        let anything = end | epoll::EventFlags::IN;
        for (source, events) in sources.iter().zip([if may_talk { end } else { anything }, anything]) {
            epoll::add(&self.set.epoll, &**source, epoll::EventData::new_u64(key), events)?;
        }
        watched.actions.insert(key, (sources, Box::new(action)));
        Ok(Watch { set: Arc::downgrade(&self.set), key })
    }
}

impl WatchSet {
    fn run(&self) -> rustix::io::Result<()> {
        let mut events = Vec::with_capacity(32);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            for event in &events {
                let key = event.data.u64();
                if key == END {
                    return Ok(());
                }
                if let Some(action) = self.forget(key) {
                    action();
                }
            }
        }
    }

    fn forget(&self, key: u64) -> Option<Action> {
        let mut watched = self.watched.lock();
        let (sources, action) = watched.actions.remove(&key)?;
        for source in &sources {
            // It can only fail if it is gone from the set already.
            let _ = epoll::delete(&self.epoll, &**source);
        }
        // Under the lock: who comes next, and finds nothing to forget, finds nobody who holds the socket any more. To close one in
        // which descriptors lie may take for ever.
        drop(sources);
        Some(action)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(set) = self.set.upgrade() {
            set.forget(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    #[test]
    fn the_end_of_the_process_is_seen_though_its_socket_is_open() {
        let monitor = Monitor::start(|| ()).unwrap();
        let mut client = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(client.id().cast_signed()).unwrap();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // The other end stays open, as in a child of the client.
        let (socket, _childs) = transport::unix::pair().unwrap();
        let socket = Arc::new(socket);
        let (sender, seen) = channel();
        let watch = monitor.watch(&socket, Some(process), false, move || sender.send(()).unwrap()).unwrap();
        assert!(seen.recv_timeout(Duration::from_millis(50)).is_err(), "it lives");
        client.kill().unwrap();
        client.wait().unwrap();
        seen.recv_timeout(BOUND).unwrap();
        drop(watch);

        // What hangs up first is enough, and once is all.
        let (socket, theirs) = transport::unix::pair().unwrap();
        let socket = Arc::new(socket);
        let (sender, seen) = channel();
        let _watch = monitor.watch(&socket, None, true, move || sender.send(()).unwrap()).unwrap();
        transport::unix::send(&theirs, b"talk", &[], true).unwrap();
        assert!(seen.recv_timeout(Duration::from_millis(50)).is_err(), "it may");
        drop(theirs);
        seen.recv_timeout(BOUND).unwrap();
        assert!(seen.recv_timeout(BOUND).is_err(), "its sender is gone with it");
    }
}
