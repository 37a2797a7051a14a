//! One thread that watches the sockets of all sessions, and the processes behind them.
//!
//! After the handshake a client has nothing more to say on its socket: whatever happens there (end of file, an error, a
//! byte) ends its session. The process is watched as well, because a child that it forked may hold the socket open.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

type Action = Box<dyn FnOnce() + Send>;

/// Watches sockets until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    /// Closing it ends the thread.
    _end: OwnedFd,
}

struct Shared {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    actions: HashMap<u64, (Vec<OwnedFd>, Action)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("watched", &self.watched.lock().actions.len()).finish_non_exhaustive()
    }
}

/// A socket being watched; not any more when this is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Weak<Shared>,
    key: u64,
}

const END: u64 = 0;

impl Monitor {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn start() -> io::Result<Monitor> {
        let (ours, theirs) = transport::unix::pair()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &theirs, epoll::EventData::new_u64(END), epoll::EventFlags::RDHUP)?;
        let shared = Arc::new(Shared { epoll, watched: Mutex::new(Watched { next: END + 1, ..Watched::default() }) });
        let seen = Arc::clone(&shared);
        std::thread::Builder::new().name("monitor".into()).spawn(move || {
            seen.run();
            drop(theirs);
        })?;
        Ok(Monitor { shared, _end: ours })
    }

    /// Calls `action` once, on the monitor's thread, when something happens on `socket` or its peer's process ends. It must
    /// not block.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn watch(&self, socket: impl AsFd, action: impl FnOnce() + Send + 'static) -> io::Result<Watch> {
        let mut sources = vec![socket.as_fd().try_clone_to_owned()?];
        // A peer in a process namespace of its own has no number here; its socket must do.
        let process = transport::unix::peer(&socket).ok().and_then(|peer| Pid::from_raw(peer.pid));
        sources.extend(process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()));
        let mut watched = self.shared.watched.lock();
        let key = watched.next;
        watched.next += 1;
        let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        for source in &sources {
            epoll::add(&self.shared.epoll, source, epoll::EventData::new_u64(key), events)?;
        }
        watched.actions.insert(key, (sources, Box::new(action)));
        Ok(Watch { shared: Arc::downgrade(&self.shared), key })
    }
}

impl Shared {
    fn run(&self) {
        let mut events = Vec::with_capacity(32);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the session monitor ends");
                    return;
                }
            }
            for event in &events {
                let key = event.data.u64();
                if key == END {
                    return;
                }
                if let Some(action) = self.forget(key) {
                    action();
                }
            }
        }
    }

    fn forget(&self, key: u64) -> Option<Action> {
        let (sources, action) = self.watched.lock().actions.remove(&key)?;
        for source in sources {
            // It can only fail if it is gone from the set already.
            let _ = epoll::delete(&self.epoll, &source);
        }
        Some(action)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.forget(self.key);
        }
    }
}
