//! Answers as bytes: u32 0 and a response, or u32 1 and an error; each a u32 number, then its fields in the order in which
//! they stand here.

use gpu::{ContextError, DevAddr, GlobalInfo, GpuError, KernelInfo, ModuleInfo, Response};

use crate::WireError;
use crate::fields::{Reader, Writer};

const GRANTED: u32 = 0;
const REFUSED: u32 = 1;

const DONE: u32 = 1;
const MEMORY: u32 = 2;
const MODULE: u32 = 3;
const KERNEL: u32 = 4;
const CONTEXT_STATE: u32 = 5;
const SHOWN: u32 = 6;

const OUT_OF_MEMORY: u32 = 1;
const TOO_MANY: u32 = 2;
const INVALID_ID: u32 = 3;
const INVALID_VALUE: u32 = 4;
const INVALID_PTX: u32 = 5;
const CONTEXT: u32 = 6;
const LOST: u32 = 7;
const TIMED_OUT: u32 = 8;
const UNSUPPORTED: u32 = 9;
const DEFERRED: u32 = 10;

const ILLEGAL_ADDRESS: u32 = 1;
const MISALIGNED: u32 = 2;
const LAUNCH_FAILED: u32 = 3;
const ASSERT: u32 = 4;
const INVALID_KERNEL: u32 = 5;
const ILLEGAL_COMMAND: u32 = 6;
const OUT_OF_RESOURCES: u32 = 7;

/// Bytes of a kernel's and a variable's description with an empty name and nothing else.
const LEAST_KERNEL: usize = 48;
const LEAST_GLOBAL: usize = 20;

/// An answer as bytes.
#[must_use]
pub fn encode_answer(answer: &Result<Response, GpuError>) -> Vec<u8> {
    let mut to = Writer::default();
    match answer {
        Ok(response) => {
            to.u32(GRANTED);
            put_response(&mut to, response);
        }
        Err(error) => {
            to.u32(REFUSED);
            put_error(&mut to, error);
        }
    }
    to.bytes
}

/// An answer from bytes.
///
/// # Errors
/// Why it is none.
pub fn decode_answer(bytes: &[u8]) -> Result<Result<Response, GpuError>, WireError> {
    let mut from = Reader::new(bytes, "answer");
    let answer = match from.u32()? {
        GRANTED => Ok(take_response(&mut from)?),
        REFUSED => Err(take_error(&mut from)?),
        code => return Err(WireError::Unknown { what: "answer", code }),
    };
    from.end()?;
    Ok(answer)
}

fn put_response(to: &mut Writer, response: &Response) {
    match response {
        Response::Done => to.u32(DONE),
        Response::Shown { offset } => {
            to.u32(SHOWN);
            to.u64(*offset);
        }
        Response::Memory { free, total } => {
            to.u32(MEMORY);
            to.u64(*free);
            to.u64(*total);
        }
        Response::Module(module) => {
            to.u32(MODULE);
            to.count(module.kernels.len());
            module.kernels.iter().for_each(|kernel| put_kernel(to, kernel));
            to.count(module.globals.len());
            for global in &module.globals {
                to.text(&global.name);
                to.u64(global.address.0);
                to.u64(global.bytes);
            }
            to.text(&module.log);
        }
        Response::Kernel(kernel) => {
            to.u32(KERNEL);
            put_kernel(to, kernel);
        }
        Response::ContextError(error) => {
            to.u32(CONTEXT_STATE);
            to.bool(error.is_some());
            if let Some(error) = error {
                put_context_error(to, error);
            }
        }
    }
}

fn take_response(from: &mut Reader<'_>) -> Result<Response, WireError> {
    Ok(match from.u32()? {
        DONE => Response::Done,
        SHOWN => Response::Shown { offset: from.u64()? },
        MEMORY => Response::Memory { free: from.u64()?, total: from.u64()? },
        MODULE => Response::Module(ModuleInfo {
            kernels: from.list(LEAST_KERNEL, take_kernel)?,
            globals: from.list(LEAST_GLOBAL, |from| {
                Ok(GlobalInfo { name: from.text()?, address: DevAddr(from.u64()?), bytes: from.u64()? })
            })?,
            log: from.text()?,
        }),
        KERNEL => Response::Kernel(take_kernel(from)?),
        CONTEXT_STATE => Response::ContextError(match from.bool()? {
            true => Some(take_context_error(from)?),
            false => None,
        }),
        code => return Err(WireError::Unknown { what: "response", code }),
    })
}

fn put_kernel(to: &mut Writer, kernel: &KernelInfo) {
    to.text(&kernel.name);
    to.count(kernel.params.len());
    for &(offset, bytes) in &kernel.params {
        to.u32(offset);
        to.u32(bytes);
    }
    for number in [
        kernel.param_bytes,
        kernel.shared_bytes,
        kernel.local_bytes,
        kernel.const_bytes,
        kernel.registers,
        kernel.max_threads,
        kernel.ptx_version,
        kernel.target,
    ] {
        to.u32(number);
    }
    to.bool(kernel.max_ntid.is_some());
    kernel.max_ntid.iter().flatten().for_each(|&threads| to.u32(threads));
    to.bool(kernel.exact_ntid);
}

fn take_kernel(from: &mut Reader<'_>) -> Result<KernelInfo, WireError> {
    let name = from.text()?;
    let params = from.list(8, |from| Ok((from.u32()?, from.u32()?)))?;
    let [param_bytes, shared_bytes, local_bytes, const_bytes, registers, max_threads, ptx_version, target] =
        from.u32s()?;
    let max_ntid = if from.bool()? { Some(from.u32s()?) } else { None };
    Ok(KernelInfo {
        name,
        params,
        param_bytes,
        shared_bytes,
        local_bytes,
        const_bytes,
        registers,
        max_threads,
        max_ntid,
        exact_ntid: from.bool()?,
        ptx_version,
        target,
    })
}

fn put_error(to: &mut Writer, error: &GpuError) {
    match error {
        GpuError::OutOfMemory { wanted, free, limit } => {
            to.u32(OUT_OF_MEMORY);
            [wanted, free, limit].into_iter().for_each(|&bytes| to.u64(bytes));
        }
        GpuError::TooMany { what, limit } => {
            to.u32(TOO_MANY);
            to.text(what);
            to.u64(*limit);
        }
        GpuError::InvalidId { what, id } => {
            to.u32(INVALID_ID);
            to.text(what);
            to.u64(*id);
        }
        GpuError::InvalidValue { what } => {
            to.u32(INVALID_VALUE);
            to.text(what);
        }
        GpuError::InvalidPtx { log, unsupported } => {
            to.u32(INVALID_PTX);
            to.text(log);
            to.bool(*unsupported);
        }
        GpuError::Unsupported { what } => {
            to.u32(UNSUPPORTED);
            to.text(what);
        }
        GpuError::Context(error) => {
            to.u32(CONTEXT);
            put_context_error(to, error);
        }
        GpuError::Lost { reason } => {
            to.u32(LOST);
            to.text(reason);
        }
        GpuError::TimedOut => to.u32(TIMED_OUT),
        GpuError::Deferred => to.u32(DEFERRED),
    }
}

fn take_error(from: &mut Reader<'_>) -> Result<GpuError, WireError> {
    Ok(match from.u32()? {
        OUT_OF_MEMORY => GpuError::OutOfMemory { wanted: from.u64()?, free: from.u64()?, limit: from.u64()? },
        TOO_MANY => GpuError::TooMany { what: from.text()?, limit: from.u64()? },
        INVALID_ID => GpuError::InvalidId { what: from.text()?, id: from.u64()? },
        INVALID_VALUE => GpuError::InvalidValue { what: from.text()? },
        INVALID_PTX => GpuError::InvalidPtx { log: from.text()?, unsupported: from.bool()? },
        UNSUPPORTED => GpuError::Unsupported { what: from.text()? },
        CONTEXT => GpuError::Context(take_context_error(from)?),
        LOST => GpuError::Lost { reason: from.text()? },
        TIMED_OUT => GpuError::TimedOut,
        DEFERRED => GpuError::Deferred,
        code => return Err(WireError::Unknown { what: "error", code }),
    })
}

fn put_context_error(to: &mut Writer, error: &ContextError) {
    match error {
        ContextError::IllegalAddress { address, write, site } => {
            to.u32(ILLEGAL_ADDRESS);
            to.u64(*address);
            to.bool(*write);
            to.text(site);
        }
        ContextError::Misaligned { address, site } => {
            to.u32(MISALIGNED);
            to.u64(*address);
            to.text(site);
        }
        ContextError::LaunchFailed { reason } => {
            to.u32(LAUNCH_FAILED);
            to.text(reason);
        }
        ContextError::Assert { site } => {
            to.u32(ASSERT);
            to.text(site);
        }
        ContextError::InvalidKernel { log, unsupported } => {
            to.u32(INVALID_KERNEL);
            to.text(log);
            to.bool(*unsupported);
        }
        ContextError::IllegalCommand { reason } => {
            to.u32(ILLEGAL_COMMAND);
            to.text(reason);
        }
        ContextError::OutOfResources { reason } => {
            to.u32(OUT_OF_RESOURCES);
            to.text(reason);
        }
    }
}

fn take_context_error(from: &mut Reader<'_>) -> Result<ContextError, WireError> {
    Ok(match from.u32()? {
        ILLEGAL_ADDRESS => {
            ContextError::IllegalAddress { address: from.u64()?, write: from.bool()?, site: from.text()? }
        }
        MISALIGNED => ContextError::Misaligned { address: from.u64()?, site: from.text()? },
        LAUNCH_FAILED => ContextError::LaunchFailed { reason: from.text()? },
        ASSERT => ContextError::Assert { site: from.text()? },
        INVALID_KERNEL => ContextError::InvalidKernel { log: from.text()?, unsupported: from.bool()? },
        ILLEGAL_COMMAND => ContextError::IllegalCommand { reason: from.text()? },
        OUT_OF_RESOURCES => ContextError::OutOfResources { reason: from.text()? },
        code => return Err(WireError::Unknown { what: "context error", code }),
    })
}
