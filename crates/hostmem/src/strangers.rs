//! Descriptors that somebody else has sent: which of them may be closed by whoever has something else to do.
//!
//! To close a file is to tell its file system, and to wait until that has heard: for ever, if it is one in user space (FUSE)
//! whose server does not answer. No signal ends that wait, not even the one that ends a process. Nothing but closing gets rid of a
//! descriptor, so what comes is looked at before anything else is done with it, and without asking it anything:
//!
//! ```text
//!              a memory file, a unix socket, a kind of the kernel's own, a file of /proc
//!   (comes) ──────────────────────────────────────────────────────────────────────────► used, and closed anywhere
//!      │                anything else
//!      └──────────────────────────────────────► closed by a thread that nobody waits for
//! ```
//! Those that are not closed yet are counted by the user who sent them, so that one who sends such files again and again can be
//! stopped.

use std::collections::BTreeMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::net::{AddressFamily, sockopt};

/// A file system, as the kernel numbers them.
pub type FileSystem = (u32, u32);

/// Most descriptors of one user that are being closed: who has as many sends no more.
pub const MOST_STRANGERS: usize = 32;
/// From so many on a user is not let in any more: each takes a thread. It is more, so that whoever is ended for having sent some
/// does not keep others of his user out.
pub const FAR_TOO_MANY_STRANGERS: usize = 256;

/// Room for a thread that closes.
const STACK: usize = 64 << 10;

static CLOSING: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());
static KNOWN: OnceLock<Known> = OnceLock::new();

/// File systems of the kernel's whose files are closed at once.
struct Known {
    proc: FileSystem,
    anonymous: FileSystem,
}

/// The file system of a descriptor. Nothing is asked of it, which may take its time for the answer.
///
/// # Errors
/// What the operating system says.
pub fn file_system(fd: impl AsFd) -> io::Result<FileSystem> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(fd.as_fd(), c"", flags, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

fn known() -> io::Result<&'static Known> {
    if let Some(known) = KNOWN.get() {
        return Ok(known);
    }
    let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let anonymous = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
    let known = Known { proc: file_system(proc)?, anonymous: file_system(anonymous)? };
    Ok(KNOWN.get_or_init(|| known))
}

/// Has a process remember what it takes to judge descriptors that others send, before it gives up the right to look for it.
///
/// # Errors
/// What the operating system says: there is no `/proc`.
pub fn prepare() -> io::Result<()> {
    known().map(drop)
}

/// Whether a file is of `/proc`, as this process saw that first.
///
/// # Errors
/// What the operating system says.
pub fn is_of_proc(fd: impl AsFd) -> io::Result<bool> {
    Ok(file_system(fd)? == known()?.proc)
}

/// Whether a descriptor is of one of the kernel's own kinds, as eventfds are.
///
/// # Errors
/// What the operating system says.
pub fn is_anonymous(fd: impl AsFd) -> io::Result<bool> {
    Ok(file_system(fd)? == known()?.anonymous)
}

/// Whether closing it waits for nobody.
fn is_plain(fd: BorrowedFd<'_>) -> bool {
    // Only memory files have seals, and only sockets a domain: of all else the kernel says so itself.
    let memory = || rustix::fs::fcntl_get_seals(fd).is_ok();
    let socket = || sockopt::socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX);
    memory() || socket() || is_anonymous(fd).unwrap_or(false) || is_of_proc(fd).unwrap_or(false)
}

fn closing() -> MutexGuard<'static, BTreeMap<u32, usize>> {
    CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptors of a user's that are being closed.
#[must_use]
pub fn strangers_of(user: u32) -> usize {
    closing().get(&user).copied().unwrap_or(0)
}

/// Descriptors that `user` has sent, if each of them is one that can be closed anywhere. Else there are none: what cannot be is
/// closed aside, and nobody waits for that.
#[must_use]
pub fn sift(fds: Vec<OwnedFd>, user: u32) -> Option<Vec<OwnedFd>> {
    let (plain, strange): (Vec<_>, Vec<_>) = fds.into_iter().partition(|fd| is_plain(fd.as_fd()));
    if strange.is_empty() {
        return Some(plain);
    }
    let count = strange.len();
    aside(strange, count, user);
    None
}

/// Drops something of a user's of which closing may take for ever. Nobody waits for that.
pub fn drop_aside(thing: impl Send + 'static, user: u32) {
    aside(thing, 1, user);
}

fn aside(thing: impl Send + 'static, count: usize, user: u32) {
    *closing().entry(user).or_default() += count;
    // Without a thread they stay open, and counted: the closure goes, and they do not go with it.
    let thing = ManuallyDrop::new(thing);
    let close = move || {
        drop(ManuallyDrop::into_inner(thing));
        let mut closing = closing();
        if let Some(left) = closing.get_mut(&user) {
            *left -= count;
            if *left == 0 {
                closing.remove(&user);
            }
        }
    };
    let _ = std::thread::Builder::new().name("closing aside".into()).stack_size(STACK).spawn(close);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Memfd;

    #[test]
    fn what_can_be_closed_anywhere_is_let_through() {
        let user = 4_000_000_001;
        let (socket, _peer) = UnixStream::pair().unwrap();
        let plain = vec![
            Memfd::create("plain", 4096).unwrap().into_fd(),
            socket.into(),
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            File::open("/proc/self/pagemap").unwrap().into(),
        ];
        assert_eq!(sift(plain, user).unwrap().len(), 4);
        assert_eq!(strangers_of(user), 0);
        // Of which closing is the end: nobody writes any more.
        let (reader, writer) = io::pipe().unwrap();
        let strange: [fn() -> OwnedFd; 3] = [
            || File::open("/").unwrap().into(),
            || File::open("/dev/null").unwrap().into(),
            || UdpSocket::bind("127.0.0.1:0").unwrap().into(),
        ];
        for open in strange {
            assert!(sift(vec![Memfd::create("beside it", 4096).unwrap().into_fd(), open()], user).is_none());
        }
        assert!(sift(vec![writer.into()], user).is_none());
        io::read_to_string(reader).unwrap();
        let start = Instant::now();
        while strangers_of(user) > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "they are closed, and counted no more");
            std::thread::yield_now();
        }
    }
}
