//! Programs: from the container in GPU memory to code, with the caches in between.

use std::collections::HashMap;
use std::sync::Arc;

use gpu_spec::notifier::{Code as ErrorCode, Reason};
use gpu_spec::program::{Container, ENTRY_MAGIC, Entry, Header, entry_name};
use parking_lot::Mutex;
use ptx::ir::Kernel;
use ptx::{Program, PtxErrorKind};
use ptx_jit::{Code, CompileError, EngineKind};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::{ChannelError, Unit};
use crate::memory::Memory;
use crate::space::Space;

/// What was compiled in an address space, by address, until the method that forgets it.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    modules: HashMap<u64, Arc<Module>>,
    kernels: HashMap<u64, Arc<Kernel>>,
    code: HashMap<(u64, [u32; 3]), Arc<Code>>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("modules", &self.modules.len()).field("code", &self.code.len()).finish()
    }
}

/// A container, parsed.
struct Module {
    program: Program,
    symbols: HashMap<String, u64>,
    names: Vec<u8>,
}

impl Programs {
    /// The code of the kernel whose entry lies at `address`, if it was compiled before.
    pub(crate) fn get(&self, address: u64, block: [u32; 3]) -> Option<Arc<Code>> {
        self.cache.lock().code.get(&(address, block)).cloned()
    }

    /// Forgets everything.
    pub(crate) fn invalidate(&self) {
        let old = std::mem::take(&mut *self.cache.lock());
        // Freed outside the lock: much memory.
        drop(old);
    }
}

/// Compiles the kernel whose entry lies at `address`. Slow; the caller holds no lock.
pub(crate) fn compile(
    space: &Space,
    memory: &Memory,
    address: u64,
    block: [u32; 3],
    engine: EngineKind,
) -> Result<Arc<Code>, ChannelError> {
    let cached = space.programs.cache.lock().kernels.get(&address).cloned();
    let kernel = match cached {
        Some(kernel) => kernel,
        None => {
            let kernel = lower(space, memory, address)?;
            space.programs.cache.lock().kernels.insert(address, Arc::clone(&kernel));
            kernel
        }
    };
    let code = Code::compile(kernel, block, engine).map_err(|error| {
        let reason = match &error {
            CompileError::Unsupported { .. } => Reason::UNSUPPORTED_PROGRAM,
        };
        ChannelError::new(ErrorCode::GR_EXCEPTION, reason, error.to_string())
    })?;
    space.programs.cache.lock().code.insert((address, block), Arc::clone(&code));
    Ok(code)
}

fn lower(space: &Space, memory: &Memory, address: u64) -> Result<Arc<Kernel>, ChannelError> {
    let mut entry = Entry::new_zeroed();
    let refused = |refused| ChannelError::refused(refused, Unit::Compute);
    space.read(memory, address, entry.as_mut_bytes()).map_err(refused)?;
    let base = address.checked_sub(entry.back.into()).filter(|_| entry.magic == ENTRY_MAGIC);
    let base = base.ok_or_else(|| malformed("program address names no entry of a container"))?;
    let cached = space.programs.cache.lock().modules.get(&base).cloned();
    let module = match cached {
        Some(module) => module,
        None => {
            let module = Arc::new(load(space, memory, base)?);
            space.programs.cache.lock().modules.insert(base, Arc::clone(&module));
            module
        }
    };
    let name = entry_name(&module.names, &entry);
    let name = name.ok_or_else(|| malformed("program entry has no name"))?;
    let index = module.program.find_entry(name);
    let index = index.ok_or_else(|| malformed(&format!("the program has no kernel {name:?}")))?;
    let lookup = |symbol: &str| module.symbols.get(symbol).copied();
    Ok(module.program.lower(index, &lookup).map_err(|error| ptx_error(&error))?.into())
}

fn load(space: &Space, memory: &Memory, base: u64) -> Result<Module, ChannelError> {
    let refused = |refused| ChannelError::refused(refused, Unit::Compute);
    let mut header = Header::new_zeroed();
    space.read(memory, base, header.as_mut_bytes()).map_err(refused)?;
    if !header.is_valid() {
        return Err(malformed("program container has a bad header"));
    }
    let mut bytes = vec![0; header.bytes as usize];
    space.read(memory, base, &mut bytes).map_err(refused)?;
    let container = Container::decode(&bytes).ok_or_else(|| malformed("program container is damaged"))?;
    let program = Program::parse(container.text).map_err(|error| ptx_error(&error))?;
    let symbols = container.symbols.iter().map(|(name, address)| ((*name).to_owned(), *address)).collect();
    Ok(Module { program, symbols, names: container.names.to_vec() })
}

fn malformed(what: &str) -> ChannelError {
    ChannelError::new(ErrorCode::GR_EXCEPTION, Reason::ILLEGAL_COMMAND, what.to_owned())
}

fn ptx_error(error: &ptx::PtxError) -> ChannelError {
    let reason = match error.kind {
        PtxErrorKind::Invalid => Reason::INVALID_PROGRAM,
        PtxErrorKind::Unsupported => Reason::UNSUPPORTED_PROGRAM,
    };
    ChannelError::new(ErrorCode::GR_EXCEPTION, reason, error.to_string())
}
