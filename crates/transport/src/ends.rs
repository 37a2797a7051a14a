//! The two ends of a way for frames, whichever it is.

use crate::message::Messages;
use crate::ring::{Consumer, Producer, RingError, Waker};

/// The end that sends.
#[derive(Debug)]
pub enum Sender {
    /// Into shared memory.
    Ring(Producer),
    /// Over a socket.
    Messages(Messages),
}

/// The end that receives.
#[derive(Debug)]
pub enum Receiver {
    /// From shared memory.
    Ring(Consumer),
    /// Over a socket.
    Messages(Messages),
}

/// Ends the sleep of who waits at either end, so that it asks about its peer again, or sees that all is over.
#[derive(Clone, Debug)]
pub enum Ender {
    /// Of a ring.
    Ring(Waker),
    /// Of a socket: closed for both ways.
    Messages(Messages),
}

impl Sender {
    /// Longest frame, bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        match self {
            Sender::Ring(ring) => ring.limit(),
            Sender::Messages(messages) => messages.limit(),
        }
    }

    /// Sends one frame, the concatenation of `parts`; `Ok(false)` if there is no room now.
    ///
    /// # Errors
    /// `TooLong`, `Corrupt`; `PeerGone` where that is seen.
    pub fn try_push(&mut self, parts: &[&[u8]]) -> Result<bool, RingError> {
        match self {
            Sender::Ring(ring) => ring.try_push(parts),
            Sender::Messages(messages) => messages.try_push(parts),
        }
    }

    /// Sends one frame, waiting for room while `peer` says that the other side lives.
    ///
    /// # Errors
    /// `TooLong`, `Corrupt`, `PeerGone`.
    pub fn push(&mut self, parts: &[&[u8]], peer: &dyn Fn() -> bool) -> Result<(), RingError> {
        match self {
            Sender::Ring(ring) => ring.push(parts, peer),
            Sender::Messages(messages) => messages.push(parts, peer),
        }
    }

    /// A handle for other threads of the same process.
    #[must_use]
    pub fn ender(&self) -> Ender {
        match self {
            Sender::Ring(ring) => Ender::Ring(ring.waker()),
            Sender::Messages(messages) => Ender::Messages(messages.clone()),
        }
    }
}

impl Receiver {
    /// Receives the next frame into `out`, replacing its content; `Ok(false)` if there is none now.
    ///
    /// # Errors
    /// `Corrupt`; `PeerGone` where that is seen.
    pub fn try_pop(&mut self, out: &mut Vec<u8>) -> Result<bool, RingError> {
        match self {
            Receiver::Ring(ring) => ring.try_pop(out),
            Receiver::Messages(messages) => messages.try_pop(out),
        }
    }

    /// Receives the next frame, waiting for it while `peer` says that the other side lives.
    ///
    /// # Errors
    /// `Corrupt`, `PeerGone`.
    pub fn pop(&mut self, out: &mut Vec<u8>, peer: &dyn Fn() -> bool) -> Result<(), RingError> {
        match self {
            Receiver::Ring(ring) => ring.pop(out, peer),
            Receiver::Messages(messages) => messages.pop(out, peer),
        }
    }

    /// A handle for other threads of the same process.
    #[must_use]
    pub fn ender(&self) -> Ender {
        match self {
            Receiver::Ring(ring) => Ender::Ring(ring.waker()),
            Receiver::Messages(messages) => Ender::Messages(messages.clone()),
        }
    }
}

impl Ender {
    /// Ends the sleep.
    pub fn end(&self) {
        match self {
            Ender::Ring(waker) => waker.wake(),
            Ender::Messages(messages) => messages.shut_down(),
        }
    }
}
