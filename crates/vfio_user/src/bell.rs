//! Eventfds, signalled by a thread of their own.
//!
//! To write to an eventfd is to wait if its count is full, unless it is told not to; and the client, who holds the same file,
//! can fill it and take that back at any moment. So no thread that works for others writes to one: they put it in a queue, and
//! the thread that [`ring`] starts for this one client writes. A client that makes it wait gets no more interrupts.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// An eventfd of the client's.
#[derive(Debug)]
pub(crate) struct Eventfd {
    fd: OwnedFd,
    /// In the queue: it need not be put there again, two signals are one.
    queued: AtomicBool,
    /// Not connected to any interrupt any more.
    void: AtomicBool,
}

impl Eventfd {
    /// Refuses what cannot be an eventfd (those have no file type).
    pub(crate) fn new(fd: OwnedFd) -> Result<Arc<Eventfd>, Errno> {
        let mode = rustix::fs::fstat(&fd)?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::Unknown {
            return Err(Errno::INVAL);
        }
        rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Arc::new(Eventfd { fd, queued: AtomicBool::new(false), void: AtomicBool::new(false) }))
    }

    /// It is signalled no more, but for a signal that is on its way right now.
    pub(crate) fn disconnect(&self) {
        self.void.store(true, Ordering::Release);
    }

    /// Adds one to the count. Where that is full, the client has been signalled for long.
    fn signal(&self) {
        self.queued.store(false, Ordering::Release);
        if !self.void.load(Ordering::Acquire) {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Takes the count away, without waiting for one: who waits to add to it, can.
    fn drain(&self) {
        let mut count = [0; 8];
        // Position -1: where the file is, which has no positions.
        let _ = rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

/// Eventfds to signal.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Eventfd>>,
    /// What is being signalled.
    now: Option<Arc<Eventfd>>,
    over: bool,
}

impl Bell {
    /// Has an eventfd signalled; does not wait for that.
    pub(crate) fn signal(&self, eventfd: &Arc<Eventfd>) {
        if !eventfd.queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().waiting.push_back(Arc::clone(eventfd));
            self.wake.notify_one();
        }
    }

    fn run(&self) {
        hostmem::prefer_short_slices();
        let mut queue = self.queue.lock();
        while !queue.over {
            let Some(eventfd) = queue.waiting.pop_front() else {
                self.wake.wait(&mut queue);
                continue;
            };
            queue.now = Some(Arc::clone(&eventfd));
            drop(queue);
            eventfd.signal();
            // Closing it, if it is not connected any more, is for this thread, too.
            drop(eventfd);
            let done = self.queue.lock().now.take();
            drop(done);
            queue = self.queue.lock();
        }
    }
}

/// The thread that signals; ends when this goes.
#[derive(Debug)]
pub(crate) struct Ringer {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the thread that signals what is put into `bell`.
pub(crate) fn ring(bell: &Arc<Bell>) -> Result<Ringer, Errno> {
    let ours = Arc::clone(bell);
    let thread = std::thread::Builder::new().name("vfio-user irqs".to_owned()).spawn(move || ours.run());
    let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    Ok(Ringer { bell: Arc::clone(bell), thread: Some(thread) })
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.bell.queue.lock().over = true;
        self.bell.wake.notify_one();
        let Some(thread) = self.thread.take() else { return };
        // Almost always it ends at once. If a client made it wait, room is made until it has gone on.
        while !thread.is_finished() {
            let now = self.bell.queue.lock().now.clone();
            if let Some(eventfd) = now {
                eventfd.drain();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let _ = thread.join();
    }
}
