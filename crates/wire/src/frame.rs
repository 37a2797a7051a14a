//! Frames: what the rings carry.
//!
//! Each begins with `u32 kind, u32 argument`: the queue of a `SUBMIT`, the number of what will be answered, or of what is.
//! The top bit of the kind of a `REQUEST` or `ANSWER` says that more fragments follow.

use gpu::{DevAddr, GpuError, QueueId, Request, Response};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{FRAGMENT_BYTES, MAX_HEAD_BYTES, MAX_REQUEST_BYTES, STAGING_BYTES};
use crate::{Commands, WireError};

const SUBMIT: u32 = 1;
const REQUEST: u32 = 2;
const WRITE: u32 = 3;
const READ: u32 = 4;
const KICK: u32 = 5;
const ANSWER: u32 = 16;
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
    /// GPU address.
    pub at: DevAddr,
    /// Offset in the staging area.
    pub staging: u32,
    /// Length; offset and length lie inside the area.
    pub bytes: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TransferBody {
    at: U64,
    staging: U32,
    bytes: U32,
}

/// A frame from a client.
#[derive(Debug)]
pub enum ClientFrame<'a> {
    /// Commands.
    Submit {
        /// For which queue.
        queue: QueueId,
        /// Still to be decoded.
        commands: Commands<'a>,
    },
    /// Part of a request.
    Request {
        /// Its number.
        number: u32,
        /// Whether it is the last part.
        last: bool,
        /// The part.
        body: &'a [u8],
    },
    /// Staging area to GPU.
    Write {
        /// Its number.
        number: u32,
        /// What.
        transfer: Transfer,
    },
    /// GPU to staging area.
    Read {
        /// Its number.
        number: u32,
        /// What.
        transfer: Transfer,
    },
    /// A payload was stored.
    Kick,
}

/// The beginning of a `SUBMIT` frame; encoded commands follow.
#[must_use]
pub fn submit_header(queue: QueueId) -> [u8; HEADER_BYTES] {
    header(SUBMIT, queue.0)
}

/// A `KICK` frame.
#[must_use]
pub fn kick() -> [u8; HEADER_BYTES] {
    header(KICK, 0)
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
        KICK => Ok(ClientFrame::Kick),
        code => Err(WireError::Unknown { what: "frame", code }),
    }
}

fn parse_transfer(body: &[u8]) -> Result<Transfer, WireError> {
    let body = TransferBody::ref_from_bytes(body).map_err(|_| WireError::Length { what: "transfer" })?;
    let (staging, bytes) = (body.staging.get(), body.bytes.get());
    // A range beyond the area would become an access beyond its mapping.
    if u64::from(staging) + u64::from(bytes) > STAGING_BYTES as u64 {
        return Err(WireError::Limit { what: "staging range", limit: STAGING_BYTES });
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

/// Reads a frame from the daemon: its number, whether it is the last part, and the part.
///
/// # Errors
/// Why it is none.
pub fn parse_answer(frame: &[u8]) -> Result<(u32, bool, &[u8]), WireError> {
    let (head, body) = Header::ref_from_prefix(frame).map_err(|_| WireError::Length { what: "frame" })?;
    match head.kind.get() {
        ANSWER => Ok((head.argument.get(), true, body)),
        kind if kind == ANSWER | MORE => Ok((head.argument.get(), false, body)),
        code => Err(WireError::Unknown { what: "frame", code }),
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

/// A request as bytes: postcard, the text of a module behind it.
///
/// # Errors
/// `Limit` if it is too long.
pub fn encode_request(request: &Request) -> Result<Vec<u8>, WireError> {
    // Text is appended as it is: postcard would take it byte by byte.
    let (head, text): (Result<Vec<u8>, _>, &[u8]) = match request {
        Request::LoadModule { id, ptx, placed } => {
            let head = Request::LoadModule { id: *id, ptx: Vec::new(), placed: placed.clone() };
            (postcard::to_allocvec(&head), ptx)
        }
        other => (postcard::to_allocvec(other), &[]),
    };
    let mut bytes = head.map_err(|_| WireError::Malformed { what: "request" })?;
    if bytes.len() > MAX_HEAD_BYTES {
        return Err(WireError::Limit { what: "request without its text", limit: MAX_HEAD_BYTES });
    }
    if text.len() > MAX_REQUEST_BYTES - bytes.len() {
        return Err(WireError::Limit { what: "request", limit: MAX_REQUEST_BYTES });
    }
    bytes.extend_from_slice(text);
    Ok(bytes)
}

/// A request from bytes.
///
/// # Errors
/// `Malformed`.
pub fn decode_request(bytes: &[u8]) -> Result<Request, WireError> {
    let malformed = WireError::Malformed { what: "request" };
    let head = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let (mut request, rest) = postcard::take_from_bytes(head).map_err(|_| malformed.clone())?;
    let text = &bytes[head.len() - rest.len()..];
    match &mut request {
        Request::LoadModule { ptx, .. } if ptx.is_empty() => *ptx = text.to_vec(),
        Request::LoadModule { .. } => return Err(malformed),
        _ if !text.is_empty() => return Err(WireError::Length { what: "request" }),
        _ => {}
    }
    Ok(request)
}

/// An answer as bytes.
#[must_use]
pub fn encode_answer(answer: &Result<Response, GpuError>) -> Vec<u8> {
    // Writing plain data to a growing vector has no way to fail.
    postcard::to_allocvec(answer).unwrap_or_default()
}

/// An answer from bytes.
///
/// # Errors
/// `Malformed`.
pub fn decode_answer(bytes: &[u8]) -> Result<Result<Response, GpuError>, WireError> {
    postcard::from_bytes(bytes).map_err(|_| WireError::Malformed { what: "answer" })
}
