//! Moves frames between two processes that do not trust each other; knows no message.
//!
//! - [`ring`]: a queue of byte frames in shared memory with one producer and one consumer. Sending costs a copy and a
//!   store while the consumer is awake; a sleeping consumer is woken through a futex.
//! - [`message`]: the same over a message socket, a system call for each frame. [`Sender`] and [`Receiver`] are either.
//! - [`unix`]: message sockets that carry file descriptors and name the peer's process.
//!
//! What the other side writes is copied once and then checked: an index or length that cannot be is [`RingError::Corrupt`],
//! never a panic and never an access outside. A peer may refuse to wake us: every sleep has a bound, after which the caller
//! is asked whether the peer still lives.
//!
//! There is no protection against a peer that is slow or silent; that is the caller's policy.

mod ends;
pub mod message;
pub mod ring;
pub mod unix;

pub use ends::{Ender, Receiver, Sender};
pub use message::Messages;
pub use ring::{Consumer, MAX_WAIT, Producer, RingError};
