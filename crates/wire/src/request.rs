//! Requests as bytes: u32 number, then its fields in the order in which they stand here.

use std::sync::Arc;

use gpu::{
    AllocId, CodeFormat, CodeImage, ContextId, DevAddr, MapAccess, MemoryKind, ModuleId, QueueId, Request,
    RuntimeMemory,
};

use crate::WireError;
use crate::fields::{Reader, Writer};
use crate::limits::{MAX_HEAD_BYTES, MAX_REQUEST_BYTES};

const SET_ADDRESS_RANGE: u32 = 1;
const MEMORY_INFO: u32 = 2;
const ALLOC: u32 = 3;
const FREE: u32 = 4;
const MAP: u32 = 5;
const UNMAP: u32 = 6;
const CREATE_CONTEXT: u32 = 7;
const DESTROY_CONTEXT: u32 = 8;
const CREATE_QUEUE: u32 = 9;
const DESTROY_QUEUE: u32 = 10;
const LOAD_MODULE: u32 = 11;
const UNLOAD_MODULE: u32 = 12;
const PREPARE_KERNEL: u32 = 13;
const CONTEXT_ERROR: u32 = 14;

const VRAM: u32 = 1;
const HOST: u32 = 2;

const READ: u32 = 1;
const READ_WRITE: u32 = 2;

/// Bytes of a placed variable with an empty name.
const LEAST_PLACED: usize = 12;

/// A request as bytes; the code of a module is the last field, as it is.
///
/// # Errors
/// `Limit` if it is too long.
pub fn encode_request(request: &Request) -> Result<Vec<u8>, WireError> {
    let mut to = Writer::default();
    let code = encode_head(request, &mut to);
    if to.bytes.len() > MAX_HEAD_BYTES {
        return Err(WireError::Limit { what: "request without its code", limit: MAX_HEAD_BYTES });
    }
    if code.len() > MAX_REQUEST_BYTES - to.bytes.len() {
        return Err(WireError::Limit { what: "request", limit: MAX_REQUEST_BYTES });
    }
    to.bytes.extend_from_slice(code);
    Ok(to.bytes)
}

/// All but the code of a module, which is returned.
fn encode_head<'a>(request: &'a Request, to: &mut Writer) -> &'a [u8] {
    let mut numbers = |number: u32, ids: &[u32], words: &[u64]| {
        to.u32(number);
        ids.iter().for_each(|&id| to.u32(id));
        words.iter().for_each(|&word| to.u64(word));
    };
    match request {
        Request::SetAddressRange { lo, bytes } => numbers(SET_ADDRESS_RANGE, &[], &[*lo, *bytes]),
        Request::MemoryInfo => numbers(MEMORY_INFO, &[], &[]),
        Request::Alloc { id, bytes, kind } => {
            let kind = match kind {
                MemoryKind::Vram => VRAM,
                MemoryKind::Host => HOST,
            };
            numbers(ALLOC, &[id.0, kind], &[*bytes]);
        }
        Request::Free { id } => numbers(FREE, &[id.0], &[]),
        Request::Map { at, id, offset, bytes, access } => {
            let access = match access {
                MapAccess::Read => READ,
                MapAccess::ReadWrite => READ_WRITE,
            };
            numbers(MAP, &[id.0, access], &[at.0, *offset, *bytes]);
        }
        Request::Unmap { at, bytes } => numbers(UNMAP, &[], &[at.0, *bytes]),
        Request::CreateContext { id, runtime: RuntimeMemory { printf, heap, heap_bytes } } => {
            numbers(CREATE_CONTEXT, &[id.0], &[*printf, *heap, *heap_bytes]);
        }
        Request::DestroyContext { id } => numbers(DESTROY_CONTEXT, &[id.0], &[]),
        Request::CreateQueue { id, context, priority } => {
            numbers(CREATE_QUEUE, &[id.0, context.0, priority.cast_unsigned()], &[]);
        }
        Request::DestroyQueue { id } => numbers(DESTROY_QUEUE, &[id.0], &[]),
        Request::LoadModule { id, code, placed } => {
            numbers(LOAD_MODULE, &[id.0, code.format.0], &[]);
            to.count(placed.len());
            for (name, at) in placed {
                to.text(name);
                to.u64(at.0);
            }
            return &code.bytes;
        }
        Request::UnloadModule { id } => numbers(UNLOAD_MODULE, &[id.0], &[]),
        Request::PrepareKernel { module, kernel, stack_bytes } => {
            numbers(PREPARE_KERNEL, &[module.0, *kernel, *stack_bytes], &[]);
        }
        Request::ContextError { id } => numbers(CONTEXT_ERROR, &[id.0], &[]),
    }
    &[]
}

/// A request from bytes.
///
/// # Errors
/// `Unknown` if this side does not know the request: that can be answered. Otherwise why it is none.
pub fn decode_request(bytes: &[u8]) -> Result<Request, WireError> {
    let mut from = Reader::new(bytes, "request");
    let request = match from.u32()? {
        SET_ADDRESS_RANGE => Request::SetAddressRange { lo: from.u64()?, bytes: from.u64()? },
        MEMORY_INFO => Request::MemoryInfo,
        ALLOC => {
            let [id, kind] = from.u32s()?;
            let kind = match kind {
                VRAM => MemoryKind::Vram,
                HOST => MemoryKind::Host,
                code => return Err(WireError::Unknown { what: "kind of memory", code }),
            };
            Request::Alloc { id: AllocId(id), bytes: from.u64()?, kind }
        }
        FREE => Request::Free { id: AllocId(from.u32()?) },
        MAP => {
            let [id, access] = from.u32s()?;
            let access = match access {
                READ => MapAccess::Read,
                READ_WRITE => MapAccess::ReadWrite,
                code => return Err(WireError::Unknown { what: "kind of access", code }),
            };
            let at = DevAddr(from.u64()?);
            Request::Map { at, id: AllocId(id), offset: from.u64()?, bytes: from.u64()?, access }
        }
        UNMAP => Request::Unmap { at: DevAddr(from.u64()?), bytes: from.u64()? },
        CREATE_CONTEXT => Request::CreateContext {
            id: ContextId(from.u32()?),
            runtime: RuntimeMemory { printf: from.u64()?, heap: from.u64()?, heap_bytes: from.u64()? },
        },
        DESTROY_CONTEXT => Request::DestroyContext { id: ContextId(from.u32()?) },
        CREATE_QUEUE => {
            let [id, context, priority] = from.u32s()?;
            Request::CreateQueue { id: QueueId(id), context: ContextId(context), priority: priority.cast_signed() }
        }
        DESTROY_QUEUE => Request::DestroyQueue { id: QueueId(from.u32()?) },
        LOAD_MODULE => return decode_module(bytes),
        UNLOAD_MODULE => Request::UnloadModule { id: ModuleId(from.u32()?) },
        PREPARE_KERNEL => {
            let [module, kernel, stack_bytes] = from.u32s()?;
            Request::PrepareKernel { module: ModuleId(module), kernel, stack_bytes }
        }
        CONTEXT_ERROR => Request::ContextError { id: ContextId(from.u32()?) },
        code => return Err(WireError::Unknown { what: "request", code }),
    };
    from.end()?;
    Ok(request)
}

fn decode_module(bytes: &[u8]) -> Result<Request, WireError> {
    let head = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let mut from = Reader::new(head, "request");
    let [_, id, format] = from.u32s()?;
    let placed = from.list(LEAST_PLACED, |from| Ok((from.text()?, DevAddr(from.u64()?))))?;
    let code = bytes[head.len() - from.rest().len()..].to_vec();
    Ok(Request::LoadModule {
        id: ModuleId(id),
        code: CodeImage { format: CodeFormat(format), bytes: Arc::new(code) },
        placed,
    })
}
