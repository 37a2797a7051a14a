//! What a service manager and this daemon say to each other: sockets that it has opened (`LISTEN_FDS`), and how it goes
//! (`NOTIFY_SOCKET`, `WATCHDOG_USEC`), as `sd_listen_fds(3)` and `sd_notify(3)` describe it. Without such a manager nothing is said.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, SocketType, sockopt};
use wire::place::{ADMIN_SOCKET, SESSION_SOCKET};

/// Most sockets that a service manager is believed to have opened for us.
const MOST: usize = 8;

/// The sockets of the daemon, opened by a service manager.
#[derive(Debug)]
pub(crate) struct Activated {
    pub(crate) sessions: OwnedFd,
    pub(crate) admin: OwnedFd,
}

/// How many descriptors were handed to this very process, from the third on.
pub(crate) fn handed() -> usize {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    match (number("LISTEN_PID"), number("LISTEN_FDS")) {
        (Some(pid), Some(count)) if pid == std::process::id() as usize && count <= MOST => count,
        _ => 0,
    }
}

/// The sockets among descriptors that were handed over; `None` if there are none.
///
/// # Errors
/// They are others, or not both.
pub(crate) fn sort(fds: Vec<OwnedFd>) -> Result<Option<Activated>> {
    if fds.is_empty() {
        return Ok(None);
    }
    let (mut sessions, mut admin) = (None, None);
    for fd in fds {
        let is_ours = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&fd) == Ok(SocketType::SEQPACKET)
            && sockopt::socket_acceptconn(&fd) == Ok(true);
        let address = rustix::net::getsockname(&fd).context("a descriptor that is no socket was handed over")?;
        let address = rustix::net::SocketAddrUnix::try_from(address).ok();
        let path = address.as_ref().and_then(|address| address.path_bytes()).map(|bytes| bytes.to_vec());
        let path = path.unwrap_or_default();
        let name = Path::new(std::ffi::OsStr::from_bytes(&path)).file_name().unwrap_or_default();
        match name.to_str() {
            Some(SESSION_SOCKET) if is_ours => sessions = Some(fd),
            Some(ADMIN_SOCKET) if is_ours => admin = Some(fd),
            _ => bail!(
                "a socket was handed over that is none of ours: {}; in its unit, say ListenSequentialPacket= with a path that ends in \
                 {SESSION_SOCKET} or {ADMIN_SOCKET}",
                String::from_utf8_lossy(&path)
            ),
        }
    }
    match (sessions, admin) {
        (Some(sessions), Some(admin)) => Ok(Some(Activated { sessions, admin })),
        _ => bail!("of the sockets {SESSION_SOCKET} and {ADMIN_SOCKET} only one was handed over"),
    }
}

/// Tells the service manager something, if there is one.
pub(crate) fn tell(what: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&place, what) {
        tracing::warn!(%error, "the service manager is not told: {what}");
    }
}

fn send(place: &OsString, what: &str) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let bytes = place.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    socket.send_to_addr(what.as_bytes(), &address).map(drop)
}

/// How often the service manager wants to hear that all is well, if it does.
pub(crate) fn watchdog() -> Option<Duration> {
    let micros = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(micros) / 2).filter(|pause| !pause.is_zero())
}

/// Tells it that all is read anew, from now until it hears `READY=1`.
pub(crate) fn tell_reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1000));
}

#[cfg(test)]
mod tests {
    use transport::unix;

    use super::*;

    #[test]
    fn only_sockets_of_ours_are_taken() {
        let folder = std::env::temp_dir().join(format!("sundial-handed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listen = |name: &str| unix::listen(&folder.join(name), 0o600).unwrap();
        assert!(sort(Vec::new()).unwrap().is_none());
        let both = vec![listen(ADMIN_SOCKET), listen(SESSION_SOCKET)];
        assert!(sort(both).unwrap().is_some());
        assert!(sort(vec![listen(ADMIN_SOCKET)]).unwrap_err().to_string().contains("only one"));
        for bad in [listen("other.sock"), unix::connect(&folder.join("other.sock")).unwrap()] {
            assert!(sort(vec![bad]).unwrap_err().to_string().contains("none of ours"));
        }
        assert!(sort(vec![std::fs::File::open("/dev/null").unwrap().into()]).is_err());
        // Who listens hears it.
        let at = folder.join("notify");
        let ear = UnixDatagram::bind(&at).unwrap();
        send(&at.into_os_string(), "READY=1").unwrap();
        let mut heard = [0; 16];
        assert_eq!(ear.recv(&mut heard).unwrap(), 7);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
