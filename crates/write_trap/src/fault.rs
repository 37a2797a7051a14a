//! Pages whose first write is told to a thread.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hostmem::Mapping;
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::userfault::{Resolved, Userfault};
use crate::{Area, Kind, Why, WriteTrap};

/// How long the thread waits at first, and at most, for a memory map to be done changing: whoever sent the descriptor can have that go on
/// for ever.
const RETRY: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(1)];

/// Has a thread that hears of the first write to each protected page, notes the page, and lifts its protection; the writer
/// waits meanwhile.
///
/// Where the process may not have faults of the kernel told (neither `/dev/userfaultfd` nor `vm.unprivileged_userfaultfd`), a
/// system call that would write to a protected page fails with `EFAULT`.
#[derive(Debug)]
pub struct Fault {
    watch: Arc<Watch>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// The mapping, if it is this process's.
    _mapping: Option<Arc<Mapping>>,
}

/// What another process needs to watch a mapping of this one, as a [`Fault`]. See [`crate::TrackerParts`].
///
/// Whoever gets it must go on reading, or let go of it: who writes to a protected page waits for that. A process that sends
/// it away keeps no copy, so that its threads go on when the receiver ends.
#[derive(Debug)]
pub struct FaultParts {
    /// Protects, and tells.
    pub userfault: OwnedFd,
    /// Where the mapping lies in the process whose it is.
    pub address: u64,
    /// Its size: whole pages.
    pub bytes: u64,
}

impl FaultParts {
    /// For a mapping of this process.
    ///
    /// # Errors
    /// Why writes to it cannot be noticed that way.
    pub fn new(mapping: &Mapping) -> Result<FaultParts, Why> {
        let userfault = Userfault::open(Resolved::ByReader)?;
        let area = Area::of(mapping);
        userfault.register(area).map_err(Why::Register)?;
        Ok(FaultParts { userfault: userfault.into_fd(), address: area.address(), bytes: area.bytes() })
    }
}

/// What the thread and its owner share.
#[derive(Debug)]
struct Watch {
    userfault: Userfault,
    area: Area,
    /// Ends the thread.
    stop: OwnedFd,
    /// Pages that were written. Held while a page's protection changes, so that a page is here before anybody can write to
    /// it unnoticed. Whoever waits for a page holds no lock of ours.
    written: Mutex<BTreeSet<u64>>,
    /// Nobody resolves faults any more.
    failed: AtomicBool,
}

impl Watch {
    fn written(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread. If it resolves no more faults, nobody waits for it: nothing is protected any more, and it is known.
    fn run(&self) {
        if self.resolve_all() {
            return;
        }
        self.failed.store(true, Ordering::SeqCst);
        // While the other process's memory map is being changed, nothing can be lifted. Failing otherwise means that the memory is gone.
        let [mut wait, longest] = RETRY;
        while matches!(self.lift_all(), Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
            let timeout = wait.try_into().ok();
            if !matches!(rustix::event::poll(&mut stop, timeout.as_ref()), Ok(0) | Err(rustix::io::Errno::INTR)) {
                return;
            }
            wait = (wait * 2).min(longest);
        }
    }

    fn lift_all(&self) -> io::Result<()> {
        self.userfault.protect(self.area, &(0..self.area.pages()), false)
    }

    fn check(&self) -> io::Result<()> {
        if self.failed.load(Ordering::SeqCst) { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Resolves faults until it is told to stop; false if that does not go on.
    fn resolve_all(&self) -> bool {
        loop {
            let mut polled = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.userfault, PollFlags::IN)];
            match rustix::event::poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return false,
                Ok(_) if polled.iter().any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL)) => {
                    return false;
                }
                Ok(_) if !polled[0].revents().is_empty() => return true,
                Ok(_) => {}
            }
            if self.userfault.read(|address| self.resolve(address)).is_err() {
                return false;
            }
        }
    }

    fn resolve(&self, address: u64) {
        let Some(page) = self.area.page_of(address) else { return };
        let mut written = self.written();
        written.insert(page);
        if self.userfault.protect(self.area, &(page..page + 1), false).is_err() {
            // It is no page of the mapping any more.
            self.userfault.wake(self.area, page);
        }
    }
}

impl Fault {
    /// For a mapping of this process.
    ///
    /// # Errors
    /// Why writes to it cannot be noticed that way.
    pub fn new(mapping: &Arc<Mapping>) -> Result<Fault, Why> {
        let parts = FaultParts::new(mapping)?;
        let fault = Fault::from_parts(parts).map_err(Why::Register)?;
        Ok(fault.keeping(mapping))
    }

    fn keeping(mut self, mapping: &Arc<Mapping>) -> Fault {
        self._mapping = Some(Arc::clone(mapping));
        self
    }

    /// For the mapping of a process that sent these. What it sent may be anything: then there are errors, or wrong answers
    /// about that process's own pages.
    ///
    /// # Errors
    /// `InvalidInput` and `InvalidData` if it cannot be what it should be; else what the operating system says.
    pub fn from_parts(parts: FaultParts) -> io::Result<Fault> {
        let userfault = Userfault::from_fd(parts.userfault)?;
        let area = Area::new(parts.address, parts.bytes)?;
        // Whether it is one at all: what is read from others may be anything. And whether it can be read without waiting. Before
        // anything is protected there are no faults.
        userfault.protect(area, &(0..area.pages()), false)?;
        userfault.read(|_| {})?;
        let watch = Arc::new(Watch {
            userfault,
            area,
            stop: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
            written: Mutex::default(),
            failed: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&watch);
        let thread = std::thread::Builder::new().name("write-trap".into()).spawn(move || of_thread.run())?;
        Ok(Fault { watch, thread: Some(thread), _mapping: None })
    }
}

impl WriteTrap for Fault {
    fn kind(&self) -> Kind {
        Kind::Fault
    }

    fn protect(&mut self, pages: &[u64]) -> io::Result<()> {
        let Watch { userfault, area, .. } = &*self.watch;
        let runs = area.runs(pages)?;
        let _written = self.watch.written();
        runs.iter().try_for_each(|run| userfault.protect(*area, run, true))?;
        // What was protected after its end, nobody would let go.
        self.watch.check().inspect_err(|_| {
            runs.iter().for_each(|run| drop(userfault.protect(*area, run, false)));
        })
    }

    fn release(&mut self, pages: &[u64]) -> io::Result<()> {
        let Watch { userfault, area, .. } = &*self.watch;
        area.runs(pages)?.iter().try_for_each(|run| userfault.protect(*area, run, false))
    }

    fn take_written(&mut self, out: &mut Vec<u64>) -> io::Result<()> {
        out.extend(std::mem::take(&mut *self.watch.written()));
        self.watch.check()
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let ended = rustix::io::write(&self.watch.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take().filter(|_| ended.is_ok()) {
            // It has no panics to tell.
            let _ = thread.join();
        }
        // The other process may have kept a copy, which nobody reads: nobody shall wait for it. Failing means that its memory
        // is gone.
        let _ = self.watch.lift_all();
    }
}
