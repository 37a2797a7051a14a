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
//! | `KICK` | the client has stored a semaphore payload; not answered |
//!
//! | from the daemon | |
//! |---|---|
//! | `ANSWER` | `Result<Response, GpuError>`, in fragments if it is long |
//!
//! Answers come in the order of what they answer. The hot path (commands, transfers) has fixed little-endian layouts that
//! are read in place; requests and answers are postcard. Every length and count has a limit ([`limits`]). Decoding accepts
//! any bytes and fails with [`WireError`], never otherwise; [`fuzz`] is its entry for fuzzers.
//!
//! The protocol is frozen per [`VERSION`]; a daemon refuses others with a message that names both.

pub mod command;
pub mod frame;
pub mod handshake;
pub mod limits;
pub mod place;

pub use command::{Commands, encode_command};
pub use frame::{Assembler, ClientFrame, Transfer, fragments, parse_answer, parse_client_frame};
pub use handshake::{Credential, Hello, Reply, Welcome};

/// Version of everything behind the first twelve bytes of the handshake.
pub const VERSION: u32 = 1;

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
        /// The code.
        code: u32,
    },
    /// More than the limit.
    #[error("{what} beyond the limit of {limit}")]
    Limit {
        /// What was being read.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Not from a Sundial client or daemon.
    #[error("not the session protocol")]
    Magic,
    /// A peer of another version.
    #[error("protocol version {theirs}; this side speaks {ours}")]
    Version {
        /// The peer's.
        theirs: u32,
        /// Ours.
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
    let mut assembler = Assembler::new(limits::MAX_REQUEST_BYTES);
    match parse_client_frame(data) {
        Ok(ClientFrame::Submit { commands, .. }) => commands.for_each(drop),
        Ok(ClientFrame::Request { last, body, .. }) => {
            if let Ok(Some(whole)) = assembler.add(last, body) {
                let _ = frame::decode_request(&whole);
            }
        }
        _ => {}
    }
    if let Ok((_, _, body)) = parse_answer(data) {
        let _ = frame::decode_answer(body);
    }
}
