//! Programs: from the container in GPU memory to what compilers take, and what an address space keeps of both.
//!
//! ```text
//!   code kept ────────────────────────────────────────────────► grid
//!   entry kept ──────────────────────► compiler ──► code kept ──►
//!   neither ──► load (background) ──► entry kept ──►
//! ```
//! What is kept is charged to the budget of whoever had it made, is bounded, and goes by who was used last.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use gpu_spec::notifier::{Code as ErrorCode, Reason};
use gpu_spec::program::{Container, ENTRY_MAGIC, Entry, Header, MAX_SYMBOLS, entry_name};
use parking_lot::Mutex;
use ptx_jit::compiler::Source;
use ptx_jit::{Code, CompileError};
use zerocopy::{FromZeros, IntoBytes};

use crate::budget::{Budgets, Charge};
use crate::chip::Chip;
use crate::error::{ChannelError, Unit};
use crate::space::Space;

/// Most pieces of code, one for each kernel and block shape, that an address space keeps.
const MAX_CODE: usize = 1024;
/// Most bytes of it; a kernel that alone is larger is kept alone.
const MAX_CODE_BYTES: u64 = 512 << 20;
/// Most kernels whose names and modules an address space keeps.
const MAX_KERNELS: usize = 4096;
/// Most modules that a process may be made to read for kernels that it keeps no code of, bytes: about twice their text.
const MAX_MODULE_BYTES: u64 = 512 << 20;
/// Bytes read of a container before others have their turn.
const PART_BYTES: usize = 1 << 20;
/// What an entry of the symbol table costs besides its name, bytes.
const SYMBOL_BYTES: u64 = 64;

/// What a kernel's code depends on besides the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Shape {
    /// Threads of a CTA in x, y, z.
    pub(crate) block: [u32; 3],
    /// Bytes of a thread's stack that the launch asks for.
    pub(crate) stack_bytes: u32,
}

/// Code that an address space keeps, and those that run it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) code: Arc<Code>,
    bytes: u64,
    #[expect(dead_code, reason = "given back when it is dropped")]
    charge: Charge,
}

impl Prepared {
    /// Code, and the charge for having it made, which is for more than the code.
    pub(crate) fn new(code: Arc<Code>, mut charge: Charge) -> Prepared {
        let bytes = code.bytes();
        charge.shrink(bytes);
        charge.keep();
        Prepared { code, bytes, charge }
    }
}

/// A module that was read from GPU memory.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) source: Arc<Source>,
    names: Vec<u8>,
    bytes: u64,
    #[expect(dead_code, reason = "given back when it is dropped")]
    charge: Charge,
}

/// A kernel that an entry of a container names.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) module: Arc<Module>,
    pub(crate) name: String,
}

/// What an address space keeps, by address, until the method that forgets it.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Held for some instructions only; what is dropped is dropped elsewhere.
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    /// How often everything was forgotten: what was begun before is not kept.
    generation: u64,
    /// Counts uses.
    clock: u64,
    code: HashMap<(u64, Shape), Kept<Arc<Prepared>>>,
    code_bytes: u64,
    kernels: HashMap<u64, Kept<Kernel>>,
    modules: HashMap<u64, Weak<Module>>,
}

#[derive(Debug)]
struct Kept<T> {
    value: T,
    used: u64,
}

/// What a cache no longer keeps; to be dropped where nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    code: Vec<Arc<Prepared>>,
    kernels: Vec<Kernel>,
}

impl Forgotten {
    pub(crate) fn is_empty(&self) -> bool {
        self.code.is_empty() && self.kernels.is_empty()
    }
}

impl Programs {
    /// The code of the kernel whose entry lies at `address`, if it is kept.
    pub(crate) fn code(&self, address: u64, shape: Shape) -> Option<Arc<Prepared>> {
        let mut cache = self.cache.lock();
        cache.clock += 1;
        let now = cache.clock;
        let kept = cache.code.get_mut(&(address, shape))?;
        kept.used = now;
        Some(Arc::clone(&kept.value))
    }

    /// The kernel whose entry lies at `address`, if it is kept.
    pub(crate) fn kernel(&self, address: u64) -> Option<Kernel> {
        let mut cache = self.cache.lock();
        cache.clock += 1;
        let now = cache.clock;
        let kept = cache.kernels.get_mut(&address)?;
        kept.used = now;
        Some(kept.value.clone())
    }

    /// To be named by what is begun now and kept later.
    pub(crate) fn generation(&self) -> u64 {
        self.cache.lock().generation
    }

    /// Keeps code, if nothing was forgotten since it was begun; gives what goes for it.
    pub(crate) fn keep_code(&self, generation: u64, address: u64, shape: Shape, prepared: &Arc<Prepared>) -> Forgotten {
        let mut cache = self.cache.lock();
        let mut forgotten = Forgotten::default();
        if cache.generation != generation {
            return forgotten;
        }
        cache.clock += 1;
        let kept = Kept { value: Arc::clone(prepared), used: cache.clock };
        cache.code_bytes += prepared.bytes;
        if let Some(old) = cache.code.insert((address, shape), kept) {
            cache.code_bytes -= old.value.bytes;
            forgotten.code.push(old.value);
        }
        while cache.code.len() > MAX_CODE || cache.code_bytes > MAX_CODE_BYTES && cache.code.len() > 1 {
            let Some(code) = cache.oldest_code() else { break };
            forgotten.code.push(code);
        }
        forgotten
    }

    /// Keeps a kernel, if nothing was forgotten since its module was begun to be read; gives what goes for it.
    pub(crate) fn keep_kernel(&self, generation: u64, address: u64, base: u64, kernel: &Kernel) -> Forgotten {
        let mut cache = self.cache.lock();
        let mut forgotten = Forgotten::default();
        if cache.generation != generation {
            return forgotten;
        }
        cache.clock += 1;
        let kept = Kept { value: kernel.clone(), used: cache.clock };
        forgotten.kernels.extend(cache.kernels.insert(address, kept).map(|old| old.value));
        cache.modules.insert(base, Arc::downgrade(&kernel.module));
        let text = |cache: &Cache| {
            cache.modules.values().filter_map(Weak::upgrade).map(|module| module.bytes).sum::<u64>() > MAX_MODULE_BYTES
        };
        while cache.kernels.len() > MAX_KERNELS || cache.kernels.len() > 1 && text(&cache) {
            let Some(kernel) = cache.oldest_kernel() else { break };
            // All kernels of a module go with it, or none of its memory would be free.
            let module = Arc::clone(&kernel.module);
            let others = cache.kernels.extract_if(|_, kept| Arc::ptr_eq(&kept.value.module, &module));
            forgotten.kernels.extend(others.map(|(_, kept)| kept.value));
            forgotten.kernels.push(kernel);
            cache.modules.retain(|_, kept| !std::ptr::eq(kept.as_ptr(), Arc::as_ptr(&module)));
        }
        cache.modules.retain(|_, module| module.strong_count() > 0);
        forgotten
    }

    fn module(&self, base: u64) -> Option<Arc<Module>> {
        self.cache.lock().modules.get(&base).and_then(Weak::upgrade)
    }

    /// Makes room for so many bytes, but not by forgetting a module for whose sake it is made: forgets what was used longest
    /// ago. Gives how many bytes that are as well; they are free when nothing runs them any more.
    pub(crate) fn make_room(&self, bytes: u64, but: Option<&Arc<Module>>) -> (Forgotten, u64) {
        let mut cache = self.cache.lock();
        let mut forgotten = Forgotten::default();
        let mut room = 0;
        while room < bytes
            && let Some(code) = cache.oldest_code()
        {
            room += code.bytes;
            forgotten.code.push(code);
        }
        if room < bytes {
            let others =
                cache.kernels.extract_if(|_, kept| but.is_none_or(|but| !Arc::ptr_eq(&kept.value.module, but)));
            forgotten.kernels.extend(others.map(|(_, kept)| kept.value));
            cache.modules.retain(|_, module| module.strong_count() > 0);
        }
        (forgotten, room)
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) -> Forgotten {
        let mut cache = self.cache.lock();
        let generation = cache.generation + 1;
        let old = std::mem::replace(&mut *cache, Cache { generation, ..Cache::default() });
        drop(cache);
        Forgotten {
            code: old.code.into_values().map(|kept| kept.value).collect(),
            kernels: old.kernels.into_values().map(|kept| kept.value).collect(),
        }
    }
}

impl Cache {
    fn oldest_code(&mut self) -> Option<Arc<Prepared>> {
        let key = *self.code.iter().min_by_key(|(_, kept)| kept.used)?.0;
        let kept = self.code.remove(&key)?;
        self.code_bytes -= kept.value.bytes;
        Some(kept.value)
    }

    fn oldest_kernel(&mut self) -> Option<Kernel> {
        let address = *self.kernels.iter().min_by_key(|(_, kept)| kept.used)?.0;
        Some(self.kernels.remove(&address)?.value)
    }
}

/// Why a kernel cannot be had.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// The channel's error.
    Channel(ChannelError),
    /// There is no room for so many bytes in its budget now.
    Full(u64),
}

impl From<ChannelError> for LoadError {
    fn from(error: ChannelError) -> LoadError {
        LoadError::Channel(error)
    }
}

/// Reads a kernel's entry and the container around it, part by part.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) space: Arc<Space>,
    budget: u32,
    address: u64,
    generation: u64,
    text: Option<Text>,
    #[expect(dead_code, reason = "counts as under way while it lives")]
    under_way: Charge,
}

/// A container of which a part was read.
#[derive(Debug)]
struct Text {
    entry: Entry,
    base: u64,
    bytes: Vec<u8>,
    read: usize,
    charge: Charge,
}

impl Load {
    pub(crate) fn new(chip: &Chip, space: Arc<Space>, budget: u32, address: u64) -> Load {
        let generation = space.programs.generation();
        Load { space, budget, address, generation, text: None, under_way: chip.budgets.under_way(budget) }
    }

    /// Reads the next part; `None` if there are more. What is read is kept in the space.
    pub(crate) fn step(&mut self, chip: &Chip) -> Option<Result<(Kernel, Forgotten), LoadError>> {
        self.advance(chip).transpose()
    }

    fn advance(&mut self, chip: &Chip) -> Result<Option<(Kernel, Forgotten)>, LoadError> {
        let text = match &mut self.text {
            Some(text) => text,
            None => {
                let (entry, base) = self.entry(chip)?;
                if let Some(module) = self.space.programs.module(base) {
                    return self.found(&module, &entry, base).map(Some);
                }
                let text = self.begin(chip, entry, base)?;
                self.text.insert(text)
            }
        };
        let end = (text.read + PART_BYTES).min(text.bytes.len());
        let at = text.base + text.read as u64;
        self.space.read(&chip.memory, at, &mut text.bytes[text.read..end]).map_err(refused)?;
        text.read = end;
        if text.read < text.bytes.len() {
            return Ok(None);
        }
        let Some(Text { entry, base, bytes, charge, .. }) = self.text.take() else { return Ok(None) };
        let module = Arc::new(decode(chip, &bytes, charge)?);
        drop(bytes);
        self.found(&module, &entry, base).map(Some)
    }

    /// The entry, and where its container begins.
    fn entry(&self, chip: &Chip) -> Result<(Entry, u64), LoadError> {
        let mut entry = Entry::new_zeroed();
        self.space.read(&chip.memory, self.address, entry.as_mut_bytes()).map_err(refused)?;
        let base = self.address.checked_sub(entry.back.into()).filter(|_| entry.magic == ENTRY_MAGIC);
        let base = base.ok_or_else(|| malformed("program address names no entry of a container"))?;
        Ok((entry, base))
    }

    fn begin(&self, chip: &Chip, entry: Entry, base: u64) -> Result<Text, LoadError> {
        let mut header = Header::new_zeroed();
        self.space.read(&chip.memory, base, header.as_mut_bytes()).map_err(refused)?;
        if !header.is_valid() {
            return Err(malformed("program container has a bad header").into());
        }
        if header.symbol_count as usize > MAX_SYMBOLS {
            return Err(malformed("program container has too many variables").into());
        }
        // The bytes, and what is made of them.
        let needed = 2 * u64::from(header.bytes) + u64::from(header.symbol_count) * SYMBOL_BYTES;
        let charge = chip.budgets.charge(self.budget, needed).ok_or(LoadError::Full(needed))?;
        Ok(Text { entry, base, bytes: vec![0; header.bytes as usize], read: 0, charge })
    }

    fn found(&self, module: &Arc<Module>, entry: &Entry, base: u64) -> Result<(Kernel, Forgotten), LoadError> {
        let name = entry_name(&module.names, entry).ok_or_else(|| malformed("program entry has no name"))?;
        let kernel = Kernel { module: Arc::clone(module), name: name.to_owned() };
        let forgotten = self.space.programs.keep_kernel(self.generation, self.address, base, &kernel);
        Ok((kernel, forgotten))
    }
}

fn decode(chip: &Chip, bytes: &[u8], mut charge: Charge) -> Result<Module, ChannelError> {
    let container = Container::decode(bytes).ok_or_else(|| malformed("program container is damaged"))?;
    // The text ends at a NUL. Bytes that are not UTF-8 are tolerated in comments; what stands for them is no longer than they.
    let text = ptx::before_nul(container.text);
    let plain = |byte: &u8| if byte.is_ascii() { char::from(*byte) } else { '?' };
    let text: Arc<str> = match std::str::from_utf8(text) {
        Ok(text) => text.into(),
        Err(_) => text.iter().map(plain).collect::<String>().into(),
    };
    let symbols: HashMap<String, u64> =
        container.symbols.iter().map(|(name, address)| ((*name).to_owned(), *address)).collect();
    // The text twice: compilers in other processes read it from a file.
    let bytes = 2 * (text.len() + container.names.len()) as u64 + symbols.len() as u64 * SYMBOL_BYTES;
    charge.shrink(bytes);
    charge.keep();
    let source = Arc::new(Source { id: chip.next_source(), text, symbols });
    Ok(Module { source, names: container.names.to_vec(), bytes, charge })
}

fn refused(refused: crate::space::Refused) -> ChannelError {
    ChannelError::refused(refused, Unit::Compute)
}

fn malformed(what: &str) -> ChannelError {
    ChannelError::new(ErrorCode::GR_EXCEPTION, Reason::ILLEGAL_COMMAND, what.to_owned())
}

/// A compilation that failed, as the channel's error.
pub(crate) fn compile_error(error: &CompileError) -> ChannelError {
    let reason = match error {
        CompileError::Invalid(_) => Reason::INVALID_PROGRAM,
        CompileError::NoEntry { .. } => Reason::ILLEGAL_COMMAND,
        CompileError::Unsupported { .. }
        | CompileError::Refused(_)
        | CompileError::Stopped(_)
        | CompileError::Damaged(_)
        | CompileError::NoMemory(_)
        | CompileError::Failed { .. } => Reason::UNSUPPORTED_PROGRAM,
    };
    ChannelError::new(ErrorCode::GR_EXCEPTION, reason, error.to_string())
}

/// No room in the budget, and none to come.
pub(crate) fn out_of_resources(budgets: &Budgets, budget: u32, needed: u64, what: &str) -> ChannelError {
    let (limit, room) = (budgets.limit(budget), budgets.room(budget));
    let log = format!("{what} needs {needed} bytes of host memory; the limit is {limit}, of which {room} are left");
    ChannelError::new(ErrorCode::GR_EXCEPTION, Reason::OUT_OF_RESOURCES, log)
}
