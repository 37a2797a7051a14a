//! Commands as bytes: a header with operation and length, a fixed body, a payload, padding to 8.
//!
//! They are read in place from a private copy of the frame: nothing is allocated for a launch.

use gpu::{Command, Compare, DevAddr, MAX_INLINE_BYTES, MAX_PARAM_BYTES, ModuleId, SEMAPHORE_SLOTS, SlotId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::WireError;
use crate::limits::MAX_COMMANDS;

const LAUNCH: u32 = 1;
const COPY: u32 = 2;
const FILL: u32 = 3;
const WRITE: u32 = 4;
const SIGNAL: u32 = 5;
const WAIT: u32 = 6;
const WRITE_VALUE: u32 = 7;
const WAIT_VALUE: u32 = 8;
/// With the feature `CLUSTERS`.
const LAUNCH_CLUSTERS: u32 = 9;

const CYCLIC_GEQ: u32 = 0;
const EQUAL: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;

/// In front of each command. `bytes` counts body and payload without padding.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    operation: U32,
    bytes: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LaunchBody {
    module: U32,
    kernel: U32,
    grid: [U32; 3],
    block: [U32; 3],
    shared_bytes: U32,
    cooperative: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ClustersBody {
    launch: LaunchBody,
    cluster: [U32; 3],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CopyBody {
    dst: U64,
    src: U64,
    width: U64,
    height: U64,
    dst_pitch: U64,
    src_pitch: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FillBody {
    dst: U64,
    width: U64,
    height: U64,
    pitch: U64,
    value: U32,
    element: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WriteBody {
    dst: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SemaphoreBody {
    value: U64,
    slot: U32,
    zero: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WordBody {
    at: U64,
    value: U64,
    /// 4 or 8.
    bytes: U32,
    compare: U32,
}

/// Appends a command to a frame.
///
/// # Errors
/// `Limit` if its payload is too long.
pub fn encode_command(command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), WireError> {
    match *command {
        Command::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params } => {
            limit(params, MAX_PARAM_BYTES, "kernel parameters")?;
            let body = LaunchBody {
                module: module.0.into(),
                kernel: kernel.into(),
                grid: grid.map(U32::new),
                block: block.map(U32::new),
                shared_bytes: shared_bytes.into(),
                cooperative: u32::from(cooperative).into(),
            };
            if cluster == [1; 3] {
                put(out, LAUNCH, body.as_bytes(), params);
            } else {
                let body = ClustersBody { launch: body, cluster: cluster.map(U32::new) };
                put(out, LAUNCH_CLUSTERS, body.as_bytes(), params);
            }
        }
        Command::Copy { dst, src, width, height, dst_pitch, src_pitch } => {
            let body = CopyBody {
                dst: dst.0.into(),
                src: src.0.into(),
                width: width.into(),
                height: height.into(),
                dst_pitch: dst_pitch.into(),
                src_pitch: src_pitch.into(),
            };
            put(out, COPY, body.as_bytes(), &[]);
        }
        Command::Fill { dst, value, element, width, height, pitch } => {
            let body = FillBody {
                dst: dst.0.into(),
                width: width.into(),
                height: height.into(),
                pitch: pitch.into(),
                value: value.into(),
                element: element.into(),
            };
            put(out, FILL, body.as_bytes(), &[]);
        }
        Command::Write { dst, data } => {
            limit(data, MAX_INLINE_BYTES, "inline data")?;
            put(out, WRITE, WriteBody { dst: dst.0.into() }.as_bytes(), data);
        }
        Command::Signal { slot, value } => put(out, SIGNAL, semaphore(slot, value).as_bytes(), &[]),
        Command::Wait { slot, value } => put(out, WAIT, semaphore(slot, value).as_bytes(), &[]),
        Command::WriteValue { at, value, wide } => put(out, WRITE_VALUE, word(at, value, wide, 0).as_bytes(), &[]),
        Command::WaitValue { at, value, wide, compare } => {
            let compare = match compare {
                Compare::CyclicGeq => CYCLIC_GEQ,
                Compare::Equal => EQUAL,
                Compare::And => AND,
                Compare::Nor => NOR,
            };
            put(out, WAIT_VALUE, word(at, value, wide, compare).as_bytes(), &[]);
        }
    }
    Ok(())
}

/// Most bytes that a command takes in a frame.
#[must_use]
pub fn encoded_bound(command: &Command<'_>) -> usize {
    let payload = match command {
        Command::Launch { params, .. } => params.len(),
        Command::Write { data, .. } => data.len(),
        _ => 0,
    };
    size_of::<Header>() + 64 + payload
}

fn semaphore(slot: SlotId, value: u64) -> SemaphoreBody {
    SemaphoreBody { value: value.into(), slot: slot.0.into(), zero: 0.into() }
}

fn word(at: DevAddr, value: u64, wide: bool, compare: u32) -> WordBody {
    let bytes = if wide { 8u32 } else { 4 };
    WordBody { at: at.0.into(), value: value.into(), bytes: bytes.into(), compare: compare.into() }
}

fn launch<'a>(body: &LaunchBody, cluster: [u32; 3], params: &'a [u8]) -> Result<Command<'a>, WireError> {
    limit(params, MAX_PARAM_BYTES, "kernel parameters")?;
    Ok(Command::Launch {
        module: ModuleId(body.module.get()),
        kernel: body.kernel.get(),
        grid: body.grid.map(U32::get),
        block: body.block.map(U32::get),
        shared_bytes: body.shared_bytes.get(),
        cooperative: body.cooperative.get() != 0,
        cluster,
        params,
    })
}

fn limit(payload: &[u8], limit: usize, what: &'static str) -> Result<(), WireError> {
    if payload.len() > limit { Err(WireError::Limit { what, limit }) } else { Ok(()) }
}

fn put(out: &mut Vec<u8>, operation: u32, body: &[u8], payload: &[u8]) {
    // Payloads were limited before.
    let bytes = (body.len() + payload.len()) as u32;
    out.extend_from_slice(Header { operation: operation.into(), bytes: bytes.into() }.as_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// The commands in a frame, one after the other; ends after the first error.
#[derive(Debug, Clone)]
pub struct Commands<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Commands<'a> {
    /// The commands in `data`.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Commands<'a> {
        Commands { rest: data, left: MAX_COMMANDS }
    }

    fn take(&mut self) -> Result<Command<'a>, WireError> {
        if self.left == 0 {
            return Err(WireError::Limit { what: "commands in a frame", limit: MAX_COMMANDS });
        }
        self.left -= 1;
        let cut = WireError::Length { what: "command" };
        let (header, rest) = Header::ref_from_prefix(self.rest).map_err(|_| cut.clone())?;
        let bytes = header.bytes.get() as usize;
        let content = rest.get(..bytes).ok_or(cut.clone())?;
        self.rest = rest.get(bytes.next_multiple_of(8)..).ok_or(cut)?;
        decode(header.operation.get(), content)
    }
}

impl<'a> Iterator for Commands<'a> {
    type Item = Result<Command<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}

fn decode(operation: u32, content: &[u8]) -> Result<Command<'_>, WireError> {
    Ok(match operation {
        LAUNCH => {
            let (body, params) = split::<LaunchBody>(content, "launch")?;
            launch(body, [1; 3], params)?
        }
        LAUNCH_CLUSTERS => {
            let (body, params) = split::<ClustersBody>(content, "launch")?;
            launch(&body.launch, body.cluster.map(U32::get), params)?
        }
        COPY => {
            let body = exact::<CopyBody>(content, "copy")?;
            Command::Copy {
                dst: DevAddr(body.dst.get()),
                src: DevAddr(body.src.get()),
                width: body.width.get(),
                height: body.height.get(),
                dst_pitch: body.dst_pitch.get(),
                src_pitch: body.src_pitch.get(),
            }
        }
        FILL => {
            let body = exact::<FillBody>(content, "fill")?;
            Command::Fill {
                dst: DevAddr(body.dst.get()),
                value: body.value.get(),
                element: body.element.get(),
                width: body.width.get(),
                height: body.height.get(),
                pitch: body.pitch.get(),
            }
        }
        WRITE => {
            let (body, data) = split::<WriteBody>(content, "write")?;
            limit(data, MAX_INLINE_BYTES, "inline data")?;
            Command::Write { dst: DevAddr(body.dst.get()), data }
        }
        SIGNAL => {
            let (slot, value) = decode_semaphore(content, "signal")?;
            Command::Signal { slot, value }
        }
        WAIT => {
            let (slot, value) = decode_semaphore(content, "wait")?;
            Command::Wait { slot, value }
        }
        WRITE_VALUE => {
            let body = exact::<WordBody>(content, "write of a word")?;
            if body.compare.get() != 0 {
                return Err(WireError::Unknown { what: "kind of write", code: body.compare.get() });
            }
            Command::WriteValue { at: DevAddr(body.at.get()), value: body.value.get(), wide: is_wide(body)? }
        }
        WAIT_VALUE => {
            let body = exact::<WordBody>(content, "wait for a word")?;
            let compare = match body.compare.get() {
                CYCLIC_GEQ => Compare::CyclicGeq,
                EQUAL => Compare::Equal,
                AND => Compare::And,
                NOR => Compare::Nor,
                code => return Err(WireError::Unknown { what: "comparison", code }),
            };
            Command::WaitValue { at: DevAddr(body.at.get()), value: body.value.get(), wide: is_wide(body)?, compare }
        }
        code => return Err(WireError::Unknown { what: "command", code }),
    })
}

fn is_wide(body: &WordBody) -> Result<bool, WireError> {
    match body.bytes.get() {
        4 => Ok(false),
        8 => Ok(true),
        code => Err(WireError::Unknown { what: "size of a word", code }),
    }
}

fn decode_semaphore(content: &[u8], what: &'static str) -> Result<(SlotId, u64), WireError> {
    let body = exact::<SemaphoreBody>(content, what)?;
    let slot = body.slot.get();
    // A slot beyond the area would become an access beyond its mapping.
    if slot >= SEMAPHORE_SLOTS {
        return Err(WireError::Limit { what: "semaphore slot", limit: SEMAPHORE_SLOTS as usize });
    }
    Ok((SlotId(slot), body.value.get()))
}

fn split<'a, T>(content: &'a [u8], what: &'static str) -> Result<(&'a T, &'a [u8]), WireError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(content).map_err(|_| WireError::Length { what })
}

fn exact<'a, T>(content: &'a [u8], what: &'static str) -> Result<&'a T, WireError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_bytes(content).map_err(|_| WireError::Length { what })
}
