//! Frames as messages on a socket: a system call for each, on both sides.
//!
//! The slow twin of [`ring`](crate::ring), which it can stand for: for measurements, and where somebody wants to see what goes
//! by (`strace`). Nobody looks at shared memory, and nobody spins.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::ring::{MAX_WAIT, RingError};

/// Most parts of a frame.
const MAX_PARTS: usize = 4;

/// One end of a connected message socket, which carries frames both ways.
#[derive(Clone, Debug)]
pub struct Messages {
    socket: Arc<OwnedFd>,
    limit: usize,
}

impl Messages {
    /// Frames of at most `limit` bytes, over a message socket that nobody else uses.
    ///
    /// # Errors
    /// What the operating system says; `InvalidInput` if it carries no messages of that length.
    pub fn new(socket: OwnedFd, limit: usize) -> std::io::Result<Messages> {
        // A sleeper asks about its peer from time to time.
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(MAX_WAIT))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(MAX_WAIT))?;
        // What a message needs besides its bytes.
        const AROUND: usize = 1024;
        if sockopt::socket_send_buffer_size(&socket)? < limit + AROUND {
            sockopt::set_socket_send_buffer_size(&socket, limit + AROUND)?;
        }
        if sockopt::socket_send_buffer_size(&socket)? < limit + AROUND {
            let text = format!("the system carries no messages of {limit} bytes (net.core.wmem_max)");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        Ok(Messages { socket: Arc::new(socket), limit })
    }

    /// Longest frame, bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Sends one frame, the concatenation of `parts`; `Ok(false)` if there is no room now.
    ///
    /// # Errors
    /// `TooLong`, `PeerGone`.
    pub fn try_push(&self, parts: &[&[u8]]) -> Result<bool, RingError> {
        self.send(parts, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Sends one frame, waiting for room while `peer` says that the other side lives.
    ///
    /// # Errors
    /// `TooLong`, `PeerGone`.
    pub fn push(&self, parts: &[&[u8]], peer: &dyn Fn() -> bool) -> Result<(), RingError> {
        while !self.send(parts, SendFlags::NOSIGNAL)? {
            if !peer() {
                return Err(RingError::PeerGone);
            }
        }
        Ok(())
    }

    fn send(&self, parts: &[&[u8]], flags: SendFlags) -> Result<bool, RingError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > self.limit {
            return Err(RingError::TooLong { bytes: length, limit: self.limit });
        }
        assert!(parts.len() <= MAX_PARTS, "a frame of {} parts", parts.len());
        let mut slices = [IoSlice::new(&[]); MAX_PARTS];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        loop {
            let mut control = SendAncillaryBuffer::new(&mut []);
            match rustix::net::sendmsg(&self.socket, &slices[..parts.len()], &mut control, flags) {
                // A message socket sends all or nothing.
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(false),
                Err(_) => return Err(RingError::PeerGone),
            }
        }
    }

    /// Receives the next frame into `out`, replacing its content; `Ok(false)` if there is none now.
    ///
    /// # Errors
    /// `Corrupt` if it is longer than frames are; `PeerGone`.
    pub fn try_pop(&self, out: &mut Vec<u8>) -> Result<bool, RingError> {
        self.receive(out, RecvFlags::DONTWAIT)
    }

    /// Receives the next frame, waiting for it while `peer` says that the other side lives.
    ///
    /// # Errors
    /// `Corrupt`, `PeerGone`.
    pub fn pop(&self, out: &mut Vec<u8>, peer: &dyn Fn() -> bool) -> Result<(), RingError> {
        while !self.receive(out, RecvFlags::empty())? {
            if !peer() {
                return Err(RingError::PeerGone);
            }
        }
        Ok(())
    }

    fn receive(&self, out: &mut Vec<u8>, flags: RecvFlags) -> Result<bool, RingError> {
        out.clear();
        // One byte more shows a frame that is too long.
        out.reserve(self.limit + 1);
        loop {
            match rustix::net::recv(&self.socket, spare_capacity(out), flags) {
                // Nobody sends empty frames: the peer has closed.
                Ok((0, _)) => return Err(RingError::PeerGone),
                Ok(_) if out.len() > self.limit => return Err(RingError::Corrupt),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(RingError::PeerGone),
            }
        }
    }

    /// Nothing is sent or received any more, by either side; whoever waits ends.
    pub fn shut_down(&self) {
        // Of a socket whose peer is gone it says so.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
    }
}
