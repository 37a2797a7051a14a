//! Compiler processes: started for the device process, which may start none itself.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use anyhow::{Context, Result, bail};
use compile_pool::cache::Store;
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use transport::unix;

use crate::link::ToDevice;
use crate::quiet::Quiet;

/// Most at once. The device process asks for fewer; this is for one that is no longer itself.
const MOST: usize = 128;

/// Starts compilers, ends them, and keeps what they made.
pub(super) struct Compilers {
    /// None: nothing is kept.
    store: Option<Arc<Store>>,
    living: AtomicUsize,
    /// Our ends of the lifelines of those of this life of the device process.
    keepers: Mutex<Vec<Weak<OwnedFd>>>,
    quiet: Quiet,
}

impl Compilers {
    pub(super) fn new(store: Option<Arc<Store>>) -> Arc<Compilers> {
        Arc::new(Compilers { store, living: AtomicUsize::new(0), keepers: Mutex::default(), quiet: Quiet::new() })
    }

    /// Ends those of a device process that is dead, but may have left their lifelines open.
    pub(super) fn end(&self) {
        for keeper in self.keepers.lock().drain(..).filter_map(|keeper| keeper.upgrade()) {
            // Fails only if the other end is closed already.
            let _ = shutdown(&keeper, Shutdown::Both);
        }
    }

    /// Starts one, or says why not: what the device process is to be told, and to get. To be called by a thread that lives
    /// as long as this process: a compiler dies with the thread that started it.
    pub(super) fn start(self: &Arc<Compilers>) -> (ToDevice, Vec<OwnedFd>) {
        self.try_start().unwrap_or_else(|error| {
            let reason = format!("{error:#}");
            (ToDevice::NoCompiler { reason }, Vec::new())
        })
    }

    fn try_start(self: &Arc<Compilers>) -> Result<(ToDevice, Vec<OwnedFd>)> {
        if self.living.load(Ordering::SeqCst) >= MOST {
            bail!("there are {MOST} compilers already");
        }
        let (ours, theirs) = unix::pair()?;
        let (shelf, keeper) = unix::pair()?;
        let mut command = crate::own_program();
        command.arg("compile").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // What a tenant can make a compiler say (that memory has run out, say) is not for the daemon's log.
        if !tracing::enabled!(tracing::Level::DEBUG) {
            command.stderr(Stdio::null());
        }
        let child = command.spawn().context("cannot start a compiler")?;
        self.living.fetch_add(1, Ordering::SeqCst);
        let living = Living { child, of: Arc::clone(self) };
        let pid = living.child.id().cast_signed();
        let watched = Pid::from_raw(pid).context("a process without a number")?;
        let pidfd = pidfd_open(watched, PidfdFlags::empty()).context("cannot watch a compiler")?;
        // Until the device process closes its end: it has ended the compiler then, or is gone itself.
        let keeper = Arc::new(keeper);
        let mut keepers = self.keepers.lock();
        keepers.retain(|keeper| keeper.strong_count() > 0);
        keepers.push(Arc::downgrade(&keeper));
        drop(keepers);
        let work = move || living.keep(&keeper);
        std::thread::Builder::new().name("compiler".into()).spawn(work).context("cannot watch a compiler")?;
        let cached = self.store.is_some();
        Ok((ToDevice::Compiler { pid, cached }, vec![ours, pidfd, shelf]))
    }
}

/// A compiler that lives; ended when dropped.
struct Living {
    child: Child,
    of: Arc<Compilers>,
}

impl Living {
    /// Answers for the cache as long as somebody asks.
    fn keep(self, keeper: &OwnedFd) {
        match &self.of.store {
            Some(store) => store.serve(keeper),
            // Nobody says anything but that it is gone.
            None => drop(unix::receive(keeper, &mut [0; 1])),
        }
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        // Fails only if it is gone.
        let _ = self.child.kill();
        let signal = self.child.wait().ok().and_then(|status| status.signal());
        self.of.living.fetch_sub(1, Ordering::SeqCst);
        if let Some(signal) = signal.filter(|&signal| signal != Signal::KILL.as_raw())
            && self.of.quiet.may()
        {
            tracing::warn!(pid = self.child.id(), signal, "a compiler died of a signal");
        }
    }
}
