//! The session protocol: what client and daemon say to each other, as values and as bytes.
//!
//! A session begins on a unix message socket ([`handshake`]): the client sends a [`Hello`]; the daemon answers with a
//! [`Welcome`] and file descriptors of the shared memory, or with a reason. Everything else goes through two rings of frames
//! in that memory:
//!
//! | from the client | |
//! |---|---|
//! | `SUBMIT` | commands for one queue ([`command`]); not answered |
//! | `REQUEST` | a [`gpu::Request`], in fragments if it is long; answered |
//! | `WRITE`, `READ` | a copy through the staging area ([`Transfer`]); answered |
//! | `RELEASE` | the client raises a semaphore's payload; not answered |
//! | `LISTEN` | somebody is about to sleep: signals shall interrupt; not answered |
//! | `ANSWERED` | a `SUBMIT` or `RELEASE` that is answered when it has been carried out (feature `ANSWERED`) |
//! | `PUT`, `GET` | a copy whose bytes travel in frames (feature `MESSAGES`); answered |
//! | `IMPORT` | a name for a part of another GPU's host memory ([`Import`], feature `SEVERAL_GPUS`); answered |
//!
//! | from the daemon | |
//! |---|---|
//! | `ANSWER` | `Result<Response, GpuError>`, in fragments if it is long |
//! | `DATA` | the bytes of a `GET`, in pieces |
//!
//! With the feature `DEFERRED`, an `Alloc` or `LoadModule` that needs memory which others have is answered with
//! [`gpu::GpuError::Deferred`] and stands in line by its name; the client asks again when the daemon's notices, two words of shared
//! memory, say so. So answers keep their order, and nothing behind such a request waits for it.
//!
//! Who only wants to know how a tenant stands says so in its hello, and is answered instead of being let in ([`standing`]).
//!
//! Host memory is the one thing that goes over the message socket later: after the answer to an `Alloc` of it, the daemon
//! sends a [`HostPlace`], and the descriptor of the file it lies in if the client does not have that yet; before an `IMPORT`, the
//! client sends the descriptor of the file that it is about, with the number of the frame. So it is there when the frame is read, and
//! the daemon waits for none.
//!
//! Answers come in the order of what they answer. Commands and transfers have fixed little-endian layouts that are read in
//! place; requests and answers are a number and its fields ([`request`], [`answer`]). Every length and count has a limit
//! ([`limits`]). Decoding accepts any bytes and fails with [`WireError`], never otherwise; [`fuzz`] is its entry for fuzzers.
//!
//! # What is promised
//! - The first twelve bytes of hello and reply are for ever: sides of different versions can tell each other so.
//! - Within a [`VERSION`], bytes never change their meaning. Every kind of frame, command, request, response and error has a
//!   number written in this crate, which is never used for anything else; its fields keep their places. What needs another
//!   field gets another number. Golden bytes of all of them stand in the tests.
//! - What comes after a release is a *feature* ([`handshake::features`]): the client says in its hello which it knows, the
//!   daemon says in its welcome which of them this session has, and neither side sends what belongs to a feature that the
//!   session does not have.
//! - Hello and welcome may grow at their ends; who does not know what stands there ignores it.
//! - A request that the daemon does not know is answered with [`gpu::GpuError::Unsupported`]. Any other number that means
//!   nothing ends the session.
//! - Nothing depends on shared memory but what the feature of that name brings: a client's stores to semaphores, the wish to
//!   be woken and all else that a session says are messages.
//!
//! A daemon refuses other versions with a message that names both.

pub mod answer;
pub mod command;
mod fields;
pub mod frame;
pub mod handshake;
pub mod host_memory;
pub mod limits;
pub mod place;
pub mod request;
pub mod standing;

pub use answer::{decode_answer, encode_answer};
pub use command::{Commands, encode_command};
pub use frame::{
    Assembler, ClientFrame, DaemonFrame, Import, Transfer, fragments, parse_answer, parse_client_frame,
    parse_daemon_frame,
};
pub use handshake::{Credential, Hello, Reply, Welcome};
pub use host_memory::HostPlace;
pub use request::{decode_request, encode_request};
pub use standing::{GpuStanding, Process, ProcessStanding, Standing};

/// Version of everything behind the first twelve bytes of the handshake.
pub const VERSION: u32 = 3;

/// Bytes that mean nothing, or too much.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Fewer bytes than announced, or left over.
    #[error("{what} of a wrong length")]
    Length {
        /// What was being read.
        what: &'static str,
    },
    /// A code without a meaning.
    #[error("unknown {what} {code}")]
    Unknown {
        /// What was being read.
        what: &'static str,
        /// The number that was there.
        code: u32,
    },
    /// More than the limit.
    #[error("{what} beyond the limit of {limit}")]
    Limit {
        /// What was being read.
        what: &'static str,
        /// How much of it there may be.
        limit: usize,
    },
    /// Not from a Sundial client or daemon.
    #[error("not the session protocol")]
    Magic,
    /// A peer of another version.
    #[error("protocol version {theirs}; this side speaks {ours}")]
    Version {
        /// The version in the peer's message.
        theirs: u32,
        /// The version that this side speaks ([`VERSION`]).
        ours: u32,
    },
    /// A body that does not decode.
    #[error("malformed {what}")]
    Malformed {
        /// What was being read.
        what: &'static str,
    },
}

/// Decodes arbitrary bytes in every way there is; for fuzzers and tests. Panics only if a decoder is wrong.
pub fn fuzz(data: &[u8]) {
    let _ = Hello::decode(data);
    let _ = Reply::decode(data);
    let _ = HostPlace::decode(data);
    let _ = frame::parse_import_message(data);
    let mut assembler = Assembler::new(limits::MAX_REQUEST_BYTES);
    let mut frame = parse_client_frame(data);
    if let Ok(ClientFrame::Answered { frame: inner, .. }) = frame {
        frame = parse_client_frame(inner);
    }
    match frame {
        Ok(ClientFrame::Submit { commands, .. }) => commands.for_each(drop),
        Ok(ClientFrame::Request { last, body, .. }) => {
            if let Ok(Some(whole)) = assembler.add(last, body) {
                let _ = decode_request(&whole);
            }
        }
        _ => {}
    }
    if let Ok(DaemonFrame::Answer { body, .. }) = parse_daemon_frame(data) {
        let _ = decode_answer(body);
    }
}
