//! The first message of each side.
//!
//! ```text
//! hello: magic "SUNDIAL\0", u32 version, u32 zero, credential (32 bytes, zero: none)
//! reply: magic "SUNDIAL\0", u32 version, u32 status (0 welcome, 1 refused), postcard body
//! ```
//! The first twelve bytes never change, so that sides of different versions can tell each other so.

use gpu::Properties;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::MAX_REASON_BYTES;
use crate::{VERSION, WireError};

const MAGIC: [u8; 8] = *b"SUNDIAL\0";
const WELCOME: u32 = 0;
const REFUSED: u32 = 1;

/// A secret that admits sessions to a registered tenant. All zero: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Credential(pub [u8; 32]);

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Secrets do not belong in logs.
        f.write_str(if self.is_none() { "Credential(none)" } else { "Credential(…)" })
    }
}

impl Credential {
    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0 == [0; 32]
    }

    /// As 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Credential> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Credential(bytes))
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    status: U32,
}

impl Head {
    fn new(status: u32) -> Head {
        Head { magic: MAGIC, version: VERSION.into(), status: status.into() }
    }

    fn split(data: &[u8]) -> Result<(u32, &[u8]), WireError> {
        let (head, body) = Head::ref_from_prefix(data).map_err(|_| WireError::Magic)?;
        if head.magic != MAGIC {
            return Err(WireError::Magic);
        }
        if head.version.get() != VERSION {
            return Err(WireError::Version { theirs: head.version.get(), ours: VERSION });
        }
        Ok((head.status.get(), body))
    }
}

/// The client's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Who it says to be.
    pub credential: Credential,
}

impl Hello {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [Head::new(0).as_bytes(), &self.credential.0].concat()
    }

    /// From bytes.
    ///
    /// # Errors
    /// `Magic`, `Version`, `Length`.
    pub fn decode(data: &[u8]) -> Result<Hello, WireError> {
        let (_, body) = Head::split(data)?;
        let credential = body.try_into().map_err(|_| WireError::Length { what: "hello" })?;
        Ok(Hello { credential: Credential(credential) })
    }
}

/// What a client is told when it is let in. Descriptors come with it: the rings' memory file (laid out as
/// [`Welcome::command_ring`], [`Welcome::answer_ring`], [`Welcome::statistics`] say), the semaphore area, the staging area.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The GPU, as this client may use it.
    pub properties: Properties,
    /// Offset of the ring to the daemon, and its capacity.
    pub command_ring: (u32, u32),
    /// Offset of the ring to the client, and its capacity.
    pub answer_ring: (u32, u32),
    /// Offset of two u64 that the client writes for `ps`: calls answered in the process, messages sent.
    pub statistics: u32,
    /// Bytes of a staging block.
    pub staging_block: u32,
}

/// The daemon's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Come in.
    Welcome(Box<Welcome>),
    /// Stay out.
    Refused(String),
}

impl Reply {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (status, body) = match self {
            Reply::Welcome(welcome) => (WELCOME, postcard::to_allocvec(&**welcome)),
            Reply::Refused(reason) => {
                let end = (0..=reason.len().min(MAX_REASON_BYTES)).rev().find(|&i| reason.is_char_boundary(i));
                (REFUSED, postcard::to_allocvec(&reason[..end.unwrap_or(0)]))
            }
        };
        // Writing plain data to a growing vector has no way to fail.
        let body = body.unwrap_or_default();
        [Head::new(status).as_bytes(), &body].concat()
    }

    /// From bytes.
    ///
    /// # Errors
    /// `Magic`, `Version`, `Unknown`, `Malformed`.
    pub fn decode(data: &[u8]) -> Result<Reply, WireError> {
        let (status, body) = Head::split(data)?;
        let malformed = |_| WireError::Malformed { what: "reply" };
        match status {
            WELCOME => Ok(Reply::Welcome(Box::new(postcard::from_bytes(body).map_err(malformed)?))),
            REFUSED => Ok(Reply::Refused(postcard::from_bytes(body).map_err(malformed)?)),
            code => Err(WireError::Unknown { what: "status", code }),
        }
    }
}
