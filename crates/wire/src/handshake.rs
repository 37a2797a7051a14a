//! The first message of each side.
//!
//! ```text
//! hello: magic "SUNDIAL\0", u32 version, u32 zero, credential (32 bytes, zero: none), u64 features, u32 which GPU,
//!        u32 process, u64 its namespace
//! reply: magic "SUNDIAL\0", u32 version, u32 status (0 welcome, 1 refused, 2 standing), fields of the welcome, a text, a standing
//! ```
//! The first twelve bytes never change, so that sides of different versions can tell each other so.
//!
//! A program that has several GPUs has a session with each of them, all with one credential. The welcome of any of them says how many
//! there are.

use gpu::Properties;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fields::{Reader, Writer};
use crate::limits::{MAX_GPUS, MAX_REASON_BYTES, STAGING_BYTES};
use crate::standing::{Process, Standing, put_properties, take_properties};
use crate::{VERSION, WireError};

const MAGIC: [u8; 8] = *b"SUNDIAL\0";
const WELCOME: u32 = 0;
const REFUSED: u32 = 1;
const STANDING: u32 = 2;

/// A secret that admits sessions to a registered tenant. All zero: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
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

/// What sides of one version may differ in: bits.
pub mod features {
    /// Rings, staging area, semaphore area and host memory are memory files, sent as descriptors.
    pub const SHARED_MEMORY: u64 = 1 << 0;
    /// Allocations in VRAM may be answered by `Shown`: the client reaches them by plain loads and stores in a memory file, which
    /// comes over the socket after the first such answer ([`HostPlace::APERTURE`](crate::HostPlace::APERTURE)).
    pub const APERTURE: u64 = 1 << 1;
    /// Requests that need memory which others have may be answered with `Deferred`, and stand in line then
    /// ([`gpu::Deferring`]). What is new is told in two u32 that lie [`crate::limits::NOTICES_AT`] bytes behind the statistics: a
    /// count of news, which is a futex, and whether somebody waits for memory. The client writes neither.
    pub const DEFERRED: u64 = 1 << 2;
    /// Frames are messages on a socket, whose descriptor comes behind the others with the welcome, and not in the rings. Copies
    /// that the staging area is for otherwise travel in frames as well: `PUT`, `GET`, `DATA`.
    pub const MESSAGES: u64 = 1 << 3;
    /// What needs no answer otherwise, `SUBMIT` and `RELEASE`, goes in an `ANSWERED` frame, and the client waits.
    pub const ANSWERED: u64 = 1 << 4;
    /// The client's library lets a call return only when the GPU has done what it asked for, so that errors show there.
    pub const IMMEDIATE: u64 = 1 << 5;
    /// The welcome says how large the staging area is.
    pub const STAGING: u64 = 1 << 6;
    /// The client counts the time that it copies and waits ([`crate::limits::COPY_NS_AT`]).
    pub const TIMED: u64 = 1 << 7;
    /// The daemon knows which GPU a hello is for, the welcome says how many there are, and what one of them shares with the host can be
    /// imported by the session of another one: `IMPORT`.
    pub const SEVERAL_GPUS: u64 = 1 << 8;
    /// No session is wanted: how the tenant stands is asked for, and answered with a [`Standing`](crate::Standing). No feature of a
    /// session: a hello has it alone.
    pub const STANDING: u64 = 1 << 9;
    /// Launches may have clusters of CTAs.
    pub const CLUSTERS: u64 = 1 << 10;
    /// Those that a session has only if somebody asked for them.
    pub const ON_DEMAND: u64 = MESSAGES | ANSWERED | IMMEDIATE | TIMED;
    /// All of a session's that this crate knows.
    pub const ALL: u64 = SHARED_MEMORY | APERTURE | DEFERRED | STAGING | SEVERAL_GPUS | CLUSTERS | ON_DEMAND;
}

/// The client's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Who it says to be.
    pub credential: Credential,
    /// Which [`features`] it knows.
    pub features: u64,
    /// Which of its tenant's GPUs it wants to use, from 0 on. A daemon that does not know
    /// [`SEVERAL_GPUS`](features::SEVERAL_GPUS) has one, and does not look.
    pub gpu: u32,
    /// The process that says it, as it sees itself.
    pub process: Process,
}

impl Hello {
    /// The message as it goes over the socket: one packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Hello { credential, features, gpu, process } = self;
        let mut to = Writer::default();
        to.u64(*features);
        to.u32(*gpu);
        to.u32(process.pid);
        to.u64(process.namespace);
        [Head::new(0).as_bytes(), &credential.0, &to.bytes].concat()
    }

    /// Reads a packet that anybody may have sent.
    ///
    /// # Errors
    /// `Magic`, `Version`, `Malformed`.
    pub fn decode(data: &[u8]) -> Result<Hello, WireError> {
        let (_, body) = Head::split(data)?;
        let mut from = Reader::new(body, "hello");
        let (credential, features) = (Credential(from.array()?), from.u64()?);
        // Older clients end here, or behind the GPU; and what follows is a newer client's.
        let gpu = if from.is_empty() { 0 } else { from.u32()? };
        let process =
            if from.is_empty() { Process::default() } else { Process { pid: from.u32()?, namespace: from.u64()? } };
        Ok(Hello { credential, features, gpu, process })
    }
}

/// What a client is told when it is let in. Descriptors come with it: the rings' memory file (laid out as
/// [`Welcome::command_ring`], [`Welcome::answer_ring`], [`Welcome::statistics`] say), the semaphore area, the staging area; with
/// [`features::MESSAGES`] a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The [`features`] of this session: known to both.
    pub features: u64,
    /// The GPU, as this client may use it.
    pub properties: Properties,
    /// Offset of the ring to the daemon, and its capacity.
    pub command_ring: (u32, u32),
    /// Offset of the ring to the client, and its capacity.
    pub answer_ring: (u32, u32),
    /// Offset of what the client writes for `ps`: u64 counts ([`crate::limits::CALLS_LOCAL_AT`] and those that follow).
    pub statistics: u32,
    /// Bytes of a staging block.
    pub staging_block: u32,
    /// Bytes of the staging area; [`STAGING_BYTES`] without the feature `STAGING`.
    pub staging_bytes: u32,
    /// How many GPUs the tenant has: from 1 to [`MAX_GPUS`]; 1 without the feature `SEVERAL_GPUS`.
    pub gpus: u32,
}

impl Welcome {
    fn put(&self, to: &mut Writer) {
        to.u64(self.features);
        for number in [self.command_ring.0, self.command_ring.1, self.answer_ring.0, self.answer_ring.1] {
            to.u32(number);
        }
        to.u32(self.statistics);
        to.u32(self.staging_block);
        put_properties(&self.properties, to);
        if self.features & features::STAGING != 0 {
            to.u32(self.staging_bytes);
        }
        if self.features & features::SEVERAL_GPUS != 0 {
            to.u32(self.gpus);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Welcome, WireError> {
        let features = from.u64()?;
        let [commands_at, commands, answers_at, answers, statistics, staging_block] = from.u32s()?;
        let properties = take_properties(from)?;
        let staging_bytes = if features & features::STAGING != 0 { from.u32()? } else { STAGING_BYTES as u32 };
        let gpus = if features & features::SEVERAL_GPUS != 0 { from.u32()? } else { 1 };
        if !(1..=MAX_GPUS).contains(&gpus) {
            return Err(WireError::Limit { what: "number of GPUs", limit: MAX_GPUS as usize });
        }
        Ok(Welcome {
            features,
            properties,
            command_ring: (commands_at, commands),
            answer_ring: (answers_at, answers),
            statistics,
            staging_block,
            staging_bytes,
            gpus,
        })
    }
}

/// The daemon's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The session exists: what the GPU is, and where the rings lie.
    Welcome(Box<Welcome>),
    /// There will be no session; why not, for the user.
    Refused(String),
    /// To a hello with [`features::STANDING`].
    Standing(Box<Standing>),
}

impl Reply {
    /// The message as it goes over the socket: one packet; long reasons are cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        let status = match self {
            Reply::Welcome(welcome) => {
                welcome.put(&mut to);
                WELCOME
            }
            Reply::Refused(reason) => {
                let end = (0..=reason.len().min(MAX_REASON_BYTES)).rev().find(|&i| reason.is_char_boundary(i));
                to.text(&reason[..end.unwrap_or(0)]);
                REFUSED
            }
            Reply::Standing(standing) => {
                standing.put(&mut to);
                STANDING
            }
        };
        [Head::new(status).as_bytes(), &to.bytes].concat()
    }

    /// Reads the packet that came in answer to a [`Hello`].
    ///
    /// # Errors
    /// `Magic`, `Version`, `Unknown`, `Malformed`.
    pub fn decode(data: &[u8]) -> Result<Reply, WireError> {
        let (status, body) = Head::split(data)?;
        let mut from = Reader::new(body, "reply");
        // What follows is a newer daemon's.
        match status {
            WELCOME => Ok(Reply::Welcome(Box::new(Welcome::take(&mut from)?))),
            REFUSED => Ok(Reply::Refused(from.text()?)),
            STANDING => Ok(Reply::Standing(Box::new(Standing::take(&mut from)?))),
            code => Err(WireError::Unknown { what: "status", code }),
        }
    }
}
