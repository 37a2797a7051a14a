//! Compilers: asked for over the link to the parent, which starts them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};
use compile_pool::{Origin, Pool, Process};

use crate::link::{self, FromDevice};

/// Has the control process asked, by a thread of its own: who wants a compiler holds locks of the device, and the socket
/// to the parent may be full.
#[derive(Debug)]
struct Parent(Sender<()>);

impl Origin for Parent {
    fn want(&self) {
        // The thread ends with this process.
        let _ = self.0.send(());
    }
}

/// A pool for all processors.
pub(super) fn pool(parent: &Arc<OwnedFd>) -> Result<Pool> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (wanted, asked) = channel();
    let parent = Arc::clone(parent);
    let ask = move || {
        for () in asked {
            // Fails only when the parent is gone, and then so are we.
            let _ = link::send(&parent, &FromDevice::WantCompiler, &[]);
        }
    };
    std::thread::Builder::new().name("asking".into()).spawn(ask).context("cannot start a thread")?;
    Ok(Pool::new(Box::new(Parent(wanted)), processors))
}

/// A compiler has come, with its socket, the descriptor to end it by, and its lifeline: the way to the cache, if there is one.
pub(super) fn admit(pool: &Pool, pid: i32, cached: bool, fds: Vec<OwnedFd>) {
    match <[OwnedFd; 3]>::try_from(fds) {
        Ok([socket, pidfd, shelf]) if cached => pool.admit(Process::new(pid, pidfd, socket, Some(shelf))),
        Ok([socket, pidfd, lifeline]) => {
            pool.admit(Process::new(pid, pidfd, socket, None).with_lifeline(lifeline));
        }
        // Descriptors were used up on the way.
        Err(fds) => pool.refuse(&format!("it came with {} descriptors", fds.len())),
    }
}
