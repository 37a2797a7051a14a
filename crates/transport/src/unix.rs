//! Message sockets between processes of one machine.
//!
//! `SOCK_SEQPACKET`: one send is one receive, with its file descriptors, and the peer's death is seen as end of file.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

/// Most file descriptors in one message.
pub const MAX_FDS: usize = 8;

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerProcess {
    /// Process.
    pub pid: i32,
    /// Effective user when it connected.
    pub uid: u32,
    /// Effective group when it connected.
    pub gid: u32,
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path` with file mode `mode`; what was there is removed.
///
/// # Errors
/// What the operating system says.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Accepts a connection.
///
/// # Errors
/// What the operating system says.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    loop {
        match rustix::net::accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            other => return Ok(other?),
        }
    }
}

/// Connects to the listener at `path`.
///
/// # Errors
/// What the operating system says.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects to the listener at `path`, waiting for it, and then for each message, for `bound` at most.
///
/// # Errors
/// `WouldBlock` if it takes longer; else what the operating system says.
pub fn connect_within(path: &Path, bound: Duration) -> io::Result<OwnedFd> {
    let socket = socket()?;
    // One who accepts nobody has a queue, and who finds that full waits for as long as a sender.
    set_timeout(&socket, Some(bound))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A connected pair.
///
/// # Errors
/// What the operating system says.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Who is at the other end, as the kernel knows it.
///
/// # Errors
/// What the operating system says.
pub fn peer(socket: impl AsFd) -> io::Result<PeerProcess> {
    let credentials = sockopt::socket_peercred(socket)?;
    Ok(PeerProcess {
        pid: credentials.pid.as_raw_nonzero().get(),
        uid: credentials.uid.as_raw(),
        gid: credentials.gid.as_raw(),
    })
}

/// Bounds how long [`receive`] and [`send`] wait; `None` is for ever.
///
/// # Errors
/// What the operating system says.
pub fn set_timeout(socket: impl AsFd, timeout: Option<Duration>) -> io::Result<()> {
    sockopt::set_socket_timeout(socket.as_fd(), sockopt::Timeout::Recv, timeout)?;
    sockopt::set_socket_timeout(socket.as_fd(), sockopt::Timeout::Send, timeout)?;
    Ok(())
}

/// Bounds how long [`send`] waits for room; `None` is for ever.
///
/// # Errors
/// What the operating system says.
pub fn set_send_timeout(socket: impl AsFd, timeout: Option<Duration>) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, timeout)?)
}

/// Sends one message with at most [`MAX_FDS`] file descriptors. With `wait` false a full socket is `WouldBlock`.
///
/// # Errors
/// What the operating system says.
pub fn send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>], wait: bool) -> io::Result<()> {
    assert!(fds.len() <= MAX_FDS, "{} descriptors in one message", fds.len());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
    loop {
        match rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(message)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            // A message socket sends all or nothing.
            Ok(_) => return Ok(()),
        }
    }
}

/// A message that was received.
#[derive(Debug)]
pub struct Received {
    /// Its length; 0: the peer has closed.
    pub length: usize,
    /// The descriptors that came with it: all, or if `fds_lost` none ([`try_receive`]: some).
    pub fds: Vec<OwnedFd>,
    /// There were more than [`MAX_FDS`], or more than this process has room for. Of some descriptors nobody could tell which they
    /// are.
    pub fds_lost: bool,
}

/// Receives one message into `buffer`.
///
/// # Errors
/// `InvalidData` if it was longer than the buffer; `WouldBlock` after the timeout; else what the operating system says.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut received = receive_with(socket, buffer, RecvFlags::empty())?;
    if received.length > buffer.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message longer than its limit"));
    }
    if received.fds_lost {
        received.fds.clear();
    }
    Ok(received)
}

/// Receives one message of somebody who may send anything, if there is one. What is beyond the buffer is lost: the length says so.
/// Descriptors are all that came through: closing some kinds may take for ever, and the caller is to judge them first.
///
/// # Errors
/// What the operating system says.
pub fn try_receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    match receive_with(socket, buffer, RecvFlags::DONTWAIT) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

/// The length is the message's, whatever the buffer's.
fn receive_with(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
    let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = match rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let mut fds = Vec::new();
        for item in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = item {
                fds.extend(received);
            }
        }
        return Ok(Received { length: message.bytes, fds, fds_lost: message.flags.contains(ReturnFlags::CTRUNC) });
    }
}

/// Receives one message of a peer from whom no descriptors are taken: the kernel gets rid of those that it sends. Its length; 0:
/// the peer has closed.
///
/// # Errors
/// `InvalidData` if it was longer than the buffer; `WouldBlock` after the timeout; else what the operating system says.
pub fn receive_bare(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::net::recv(socket.as_fd(), &mut *buffer, RecvFlags::TRUNC) {
            Err(rustix::io::Errno::INTR) => {}
            Ok((_, length)) if length > buffer.len() => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "message longer than its limit"));
            }
            other => return Ok(other?.0),
        }
    }
}

/// Whether the peer has closed its end or died. Does not wait.
#[must_use]
pub fn hung_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&now)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => false,
        Ok(_) => fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
        Err(_) => true,
    }
}

/// Ends a connection in both directions: the peer sees that, and sends nothing more. What it has sent can be received.
pub fn shut_down(socket: impl AsFd) {
    // Of one whose peer is gone it says so.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Whether something lies in a socket that nobody has received: bytes, or descriptors without any.
pub fn has_unreceived(socket: impl AsFd) -> bool {
    // There is no room for descriptors: that there are some is told, and none is copied, which somebody would have to close.
    let mut control = RecvAncillaryBuffer::new(&mut []);
    let (mut byte, flags) = ([0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
    received.is_ok_and(|received| received.bytes > 0 || received.flags.contains(ReturnFlags::CTRUNC))
}

/// Waits until something can be received (or the peer closed), at most `timeout`; true if so.
///
/// # Errors
/// What the operating system says.
pub fn readable(socket: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN | PollFlags::RDHUP)];
    let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut fds, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        other => Ok(other? > 0),
    }
}
