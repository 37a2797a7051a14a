//! Frames: what the rings carry.
//!
//! Each begins with `u32 kind, u32 argument`: the queue of a `SUBMIT`, the number of what will be answered, or of what is.
//! The top bit of the kind of a `REQUEST`, `PUT`, `ANSWER` or `DATA` says that more fragments follow.

use gpu::{AllocId, DevAddr, QueueId, SEMAPHORE_SLOTS, SlotId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{FRAGMENT_BYTES, MAX_STAGING_BYTES, PIECE_BYTES};
use crate::{Commands, WireError};

const SUBMIT: u32 = 1;
const REQUEST: u32 = 2;
const WRITE: u32 = 3;
const READ: u32 = 4;
const RELEASE: u32 = 5;
const LISTEN: u32 = 6;
const ANSWERED: u32 = 7;
const PUT: u32 = 8;
const GET: u32 = 9;
const IMPORT: u32 = 10;
const ANSWER: u32 = 16;
const DATA: u32 = 17;
const MORE: u32 = 1 << 31;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    kind: U32,
    argument: U32,
}

/// Bytes in front of a frame's body.
pub const HEADER_BYTES: usize = size_of::<Header>();

fn header(kind: u32, argument: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..].copy_from_slice(&argument.to_le_bytes());
    bytes
}

/// A copy between GPU memory and a part of the staging area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// First byte on the GPU's side.
    pub at: DevAddr,
    /// Offset in the staging area.
    pub staging: u32,
    /// Length; offset and length lie inside the largest area that there may be.
    pub bytes: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TransferBody {
    at: U64,
    staging: U32,
    bytes: U32,
}

/// A part of a memory file that gets a name: the session of another GPU shares it with the host. Before its frame, the client has
/// sent the file's descriptor over the session's socket, with [`import_message`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Import {
    /// The name.
    pub id: AllocId,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ImportBody {
    id: U32,
    offset: U64,
    bytes: U64,
}

/// A frame from a client.
#[derive(Debug)]
pub enum ClientFrame<'a> {
    /// Commands for one queue, behind those that came before.
    Submit {
        /// For which queue.
        queue: QueueId,
        /// Still to be decoded.
        commands: Commands<'a>,
    },
    /// Part of a request.
    Request {
        /// The request's number, which its answer carries.
        number: u32,
        /// Whether it is the last part.
        last: bool,
        /// What follows the parts before; together they are the request.
        body: &'a [u8],
    },
    /// Staging area to GPU.
    Write {
        /// The transfer's number, which its answer carries.
        number: u32,
        /// From where in the staging area, and where to.
        transfer: Transfer,
    },
    /// GPU to staging area.
    Read {
        /// The transfer's number, which its answer carries.
        number: u32,
        /// From where on the GPU, and where to in the staging area.
        transfer: Transfer,
    },
    /// Raises a slot's payload.
    Release {
        /// Slot; there is one.
        slot: SlotId,
        /// The payload that it has at least from then on.
        value: u64,
    },
    /// Somebody is about to sleep: signals shall interrupt.
    Listen,
    /// Another frame, a `SUBMIT` or `RELEASE`, that is answered when it has been carried out.
    Answered {
        /// The number that its answer carries.
        number: u32,
        /// Still to be parsed.
        frame: &'a [u8],
    },
    /// Bytes for the GPU. The last part of a copy is answered, for all of them.
    Put {
        /// The copy's number, which its answer carries.
        number: u32,
        /// Whether it is the last part.
        last: bool,
        /// Where the part belongs.
        at: DevAddr,
        /// The part.
        data: &'a [u8],
    },
    /// Asks for bytes of the GPU: answered with `DATA`, or with an `ANSWER` if they cannot be had.
    Get {
        /// The copy's number.
        number: u32,
        /// The first of them.
        at: DevAddr,
        /// How many: more than none.
        bytes: u64,
    },
    /// Another GPU's host memory is to be this one's, too.
    Import {
        /// The import's number, which its answer carries, and the message with the descriptor.
        number: u32,
        /// What of it, and how it is named.
        import: Import,
    },
}

/// A frame from the daemon.
#[derive(Debug)]
pub enum DaemonFrame<'a> {
    /// Part of an answer.
    Answer {
        /// Of what it is.
        number: u32,
        /// Whether it is the last part.
        last: bool,
        /// What follows the parts before; together they are the answer.
        body: &'a [u8],
    },
    /// Part of what was asked for with `GET`.
    Data {
        /// Number of the copy.
        number: u32,
        /// Whether it is the last part.
        last: bool,
        /// What follows the parts before.
        body: &'a [u8],
    },
}

/// The beginning of an `ANSWERED` frame; the frame that is to be answered follows.
#[must_use]
pub fn answered_header(number: u32) -> [u8; HEADER_BYTES] {
    header(ANSWERED, number)
}

/// The beginning of a `PUT` frame; at most [`PIECE_BYTES`] follow.
#[must_use]
pub fn put_header(number: u32, last: bool, at: DevAddr) -> [u8; HEADER_BYTES + 8] {
    let mut bytes = [0; HEADER_BYTES + 8];
    bytes[..HEADER_BYTES].copy_from_slice(&header(PUT | if last { 0 } else { MORE }, number));
    bytes[HEADER_BYTES..].copy_from_slice(&at.0.to_le_bytes());
    bytes
}

/// A `GET` frame.
#[must_use]
pub fn get(number: u32, at: DevAddr, count: u64) -> [u8; HEADER_BYTES + 16] {
    let mut bytes = [0; HEADER_BYTES + 16];
    bytes[..HEADER_BYTES].copy_from_slice(&header(GET, number));
    bytes[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&at.0.to_le_bytes());
    bytes[HEADER_BYTES + 8..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// An `IMPORT` frame.
#[must_use]
pub fn import(number: u32, import: Import) -> Vec<u8> {
    let body = ImportBody { id: import.id.0.into(), offset: import.offset.into(), bytes: import.bytes.into() };
    [&header(IMPORT, number), body.as_bytes()].concat()
}

/// The message that comes over the session's socket with the descriptor for the `IMPORT` of this number.
#[must_use]
pub fn import_message(number: u32) -> [u8; IMPORT_MESSAGE_BYTES] {
    number.to_le_bytes()
}

/// Length of an [`import_message`].
pub const IMPORT_MESSAGE_BYTES: usize = 4;

/// The number in what should be an [`import_message`].
///
/// # Errors
/// It has another length.
pub fn parse_import_message(message: &[u8]) -> Result<u32, WireError> {
    message.try_into().map(u32::from_le_bytes).map_err(|_| WireError::Length { what: "message with a memory file" })
}

/// The beginning of a `DATA` frame; at most [`PIECE_BYTES`] follow.
#[must_use]
pub fn data_header(number: u32, last: bool) -> [u8; HEADER_BYTES] {
    header(DATA | if last { 0 } else { MORE }, number)
}

/// The beginning of a `SUBMIT` frame; encoded commands follow.
#[must_use]
pub fn submit_header(queue: QueueId) -> [u8; HEADER_BYTES] {
    header(SUBMIT, queue.0)
}

/// A `RELEASE` frame.
#[must_use]
pub fn release(slot: SlotId, value: u64) -> [u8; HEADER_BYTES + 8] {
    let mut bytes = [0; HEADER_BYTES + 8];
    bytes[..HEADER_BYTES].copy_from_slice(&header(RELEASE, slot.0));
    bytes[HEADER_BYTES..].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// A `LISTEN` frame.
#[must_use]
pub fn listen() -> [u8; HEADER_BYTES] {
    header(LISTEN, 0)
}

/// A `WRITE` (to the GPU) or `READ` frame.
#[must_use]
pub fn transfer(number: u32, to_gpu: bool, transfer: Transfer) -> Vec<u8> {
    let body =
        TransferBody { at: transfer.at.0.into(), staging: transfer.staging.into(), bytes: transfer.bytes.into() };
    [&header(if to_gpu { WRITE } else { READ }, number), body.as_bytes()].concat()
}

/// Reads a frame from a client.
///
/// # Errors
/// Why it is none.
pub fn parse_client_frame(frame: &[u8]) -> Result<ClientFrame<'_>, WireError> {
    let (head, body) = Header::ref_from_prefix(frame).map_err(|_| WireError::Length { what: "frame" })?;
    let (kind, argument) = (head.kind.get(), head.argument.get());
    match kind {
        SUBMIT => Ok(ClientFrame::Submit { queue: QueueId(argument), commands: Commands::new(body) }),
        REQUEST => Ok(ClientFrame::Request { number: argument, last: true, body }),
        _ if kind == REQUEST | MORE => Ok(ClientFrame::Request { number: argument, last: false, body }),
        WRITE => Ok(ClientFrame::Write { number: argument, transfer: parse_transfer(body)? }),
        READ => Ok(ClientFrame::Read { number: argument, transfer: parse_transfer(body)? }),
        RELEASE => parse_release(argument, body),
        LISTEN => Ok(ClientFrame::Listen),
        ANSWERED => Ok(ClientFrame::Answered { number: argument, frame: body }),
        PUT => parse_put(argument, true, body),
        _ if kind == PUT | MORE => parse_put(argument, false, body),
        GET => parse_get(argument, body),
        IMPORT => parse_import(argument, body),
        code => Err(WireError::Unknown { what: "frame", code }),
    }
}

fn parse_release(slot: u32, body: &[u8]) -> Result<ClientFrame<'_>, WireError> {
    // A slot beyond the area would become an access beyond its mapping.
    if slot >= SEMAPHORE_SLOTS {
        return Err(WireError::Limit { what: "semaphore slot", limit: SEMAPHORE_SLOTS as usize });
    }
    let value = body.try_into().map_err(|_| WireError::Length { what: "release" })?;
    Ok(ClientFrame::Release { slot: SlotId(slot), value: u64::from_le_bytes(value) })
}

fn parse_put(number: u32, last: bool, body: &[u8]) -> Result<ClientFrame<'_>, WireError> {
    let (at, data) = U64::ref_from_prefix(body).map_err(|_| WireError::Length { what: "put" })?;
    // The daemon's buffer of a session is as long as one piece.
    if data.len() > PIECE_BYTES {
        return Err(WireError::Limit { what: "piece of a copy", limit: PIECE_BYTES });
    }
    Ok(ClientFrame::Put { number, last, at: DevAddr(at.get()), data })
}

fn parse_get(number: u32, body: &[u8]) -> Result<ClientFrame<'_>, WireError> {
    let [at, bytes] = <[U64; 2]>::read_from_bytes(body).map_err(|_| WireError::Length { what: "get" })?;
    if bytes.get() == 0 {
        return Err(WireError::Length { what: "get" });
    }
    Ok(ClientFrame::Get { number, at: DevAddr(at.get()), bytes: bytes.get() })
}

fn parse_import(number: u32, body: &[u8]) -> Result<ClientFrame<'_>, WireError> {
    let body = ImportBody::ref_from_bytes(body).map_err(|_| WireError::Length { what: "import" })?;
    let import = Import { id: AllocId(body.id.get()), offset: body.offset.get(), bytes: body.bytes.get() };
    Ok(ClientFrame::Import { number, import })
}

fn parse_transfer(body: &[u8]) -> Result<Transfer, WireError> {
    let body = TransferBody::ref_from_bytes(body).map_err(|_| WireError::Length { what: "transfer" })?;
    let (staging, bytes) = (body.staging.get(), body.bytes.get());
    // A range beyond the area would become an access beyond its mapping; of a smaller area, the session looks itself.
    if u64::from(staging) + u64::from(bytes) > MAX_STAGING_BYTES as u64 {
        return Err(WireError::Limit { what: "staging range", limit: MAX_STAGING_BYTES });
    }
    Ok(Transfer { at: DevAddr(body.at.get()), staging, bytes })
}

/// Cuts a request or answer into frames: header and body of each.
fn cut(kind: u32, number: u32, whole: &[u8]) -> impl Iterator<Item = ([u8; HEADER_BYTES], &[u8])> {
    let count = whole.len().div_ceil(FRAGMENT_BYTES).max(1);
    (0..count).map(move |i| {
        let end = ((i + 1) * FRAGMENT_BYTES).min(whole.len());
        let more = if i + 1 < count { MORE } else { 0 };
        (header(kind | more, number), &whole[i * FRAGMENT_BYTES..end])
    })
}

/// The frames of a request (`request` true) or an answer: header and body of each.
pub fn fragments(request: bool, number: u32, whole: &[u8]) -> impl Iterator<Item = ([u8; HEADER_BYTES], &[u8])> {
    cut(if request { REQUEST } else { ANSWER }, number, whole)
}

/// Reads a frame from the daemon.
///
/// # Errors
/// Why it is none.
pub fn parse_daemon_frame(frame: &[u8]) -> Result<DaemonFrame<'_>, WireError> {
    let (head, body) = Header::ref_from_prefix(frame).map_err(|_| WireError::Length { what: "frame" })?;
    let (kind, number) = (head.kind.get(), head.argument.get());
    let last = kind & MORE == 0;
    match kind & !MORE {
        ANSWER => Ok(DaemonFrame::Answer { number, last, body }),
        DATA => Ok(DaemonFrame::Data { number, last, body }),
        _ => Err(WireError::Unknown { what: "frame", code: kind }),
    }
}

/// As [`parse_daemon_frame`], of a session in which there are answers only: number, whether it is the last part, the part.
///
/// # Errors
/// Why it is none.
pub fn parse_answer(frame: &[u8]) -> Result<(u32, bool, &[u8]), WireError> {
    match parse_daemon_frame(frame)? {
        DaemonFrame::Answer { number, last, body } => Ok((number, last, body)),
        DaemonFrame::Data { .. } => Err(WireError::Unknown { what: "frame", code: DATA }),
    }
}

/// Puts fragments together.
#[derive(Debug)]
pub struct Assembler {
    parts: Vec<u8>,
    limit: usize,
}

impl Assembler {
    /// For wholes of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Assembler {
        Assembler { parts: Vec::new(), limit }
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether nothing has come yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a part; the whole if it was the last.
    ///
    /// # Errors
    /// `Limit`.
    pub fn add(&mut self, last: bool, part: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
        if part.len() > self.limit - self.parts.len() {
            self.parts = Vec::new();
            return Err(WireError::Limit { what: "message", limit: self.limit });
        }
        self.parts.extend_from_slice(part);
        Ok(last.then(|| std::mem::take(&mut self.parts)))
    }
}
