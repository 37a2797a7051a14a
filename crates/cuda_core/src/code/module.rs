//! Modules: code loaded into a context.
//!
//! A module is a PTX text, and a module of the GPU. That of a library is loaded when a kernel or variable of it is first used.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use gpu::{CodeFormat, CodeImage, DevAddr, GpuError, ModuleId, ModuleInfo, Request, Response};
use parking_lot::{Condvar, Mutex};
use ptx::launch::LocalMemory;
use ptx::{PtxError, PtxErrorKind};

use crate::code::function::FunctionState;
use crate::code::managed_variables::ManagedVariables;
use crate::code::text::Text;
use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::handle::{self, Module, Table, Tag};
use crate::memory::allocation::Kind;
use crate::values::JitLog;

/// Longest text of which the kernels are read at the load, bytes: what people write, and what their programs generate, but not
/// libraries of thousands of kernels, which would take seconds.
const MAX_READ_BYTES: usize = 256 << 10;
/// Most instructions that are read then, with those of functions once for each call, and as how many a kernel counts that ends in an
/// error: about a quarter of a second.
const MAX_READ_INSTRUCTIONS: usize = 1 << 18;
const INSTRUCTIONS_OF_AN_ERROR: usize = 1 << 12;

/// Loaded code by handle.
#[derive(Debug, Default)]
pub(crate) struct CodeTables {
    pub(crate) modules: Table<ModuleState>,
    pub(crate) functions: Table<FunctionState>,
}

impl CodeTables {
    /// Takes a module's handles away.
    pub(crate) fn forget(&self, module: &ModuleState) {
        // Unloading twice, or while the context ends: whoever comes first does it.
        let _ = self.modules.remove(module.handle.0);
        for function in module.functions.lock().values() {
            let _ = self.functions.remove(function.handle.0);
        }
    }

    /// All modules of a context.
    pub(crate) fn of_context(&self, core: &Arc<ContextCore>) -> Vec<Arc<ModuleState>> {
        self.modules.all().into_iter().filter(|module| Arc::ptr_eq(&module.core, core)).collect()
    }
}

/// A text in a context.
#[derive(Debug)]
pub(crate) struct ModuleState {
    pub(crate) handle: Module,
    pub(crate) core: Arc<ContextCore>,
    text: Arc<Text>,
    /// It is a library's, with which its managed variables and the module itself go.
    pub(crate) of_library: bool,
    stage: Mutex<Stage>,
    /// It was loaded, or could not be, or goes.
    changed: Condvar,
    functions: Mutex<HashMap<u32, Arc<FunctionState>>>,
    unloaded: AtomicBool,
}

/// How far it is.
///
/// ```text
///            first use               it is on the GPU
/// Absent ──────────────► Loading ──────────────────────► Loaded
///    ▲                      │                              │
///    └──── that failed ─────┴────────── unload ────────────┘
/// ```
/// Loading may wait for memory that another thread of the program has, so nothing is locked meanwhile.
#[derive(Debug)]
enum Stage {
    Absent,
    /// One thread does it; others that need it wait for that.
    Loading,
    Loaded(Arc<Part>),
}

/// One that is being loaded: absent, if nothing is made of it.
struct Loading<'a> {
    module: &'a ModuleState,
    next: Stage,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        *self.module.stage.lock() = std::mem::replace(&mut self.next, Stage::Absent);
        self.module.changed.notify_all();
    }
}

/// A text as the GPU has it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) id: ModuleId,
    info: ModuleInfo,
    text: Arc<Text>,
    /// Addresses of variables by name, once a kernel is read.
    symbols: OnceLock<HashMap<String, u64>>,
    /// What there is to say of each kernel, once it has been read.
    verdicts: Box<[OnceLock<Verdict>]>,
}

/// What reading a kernel has shown, or why it cannot run.
type Verdict = std::result::Result<Read, PtxError>;

/// A kernel that was read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) local: LocalMemory,
    instructions: usize,
}

impl Part {
    fn new(id: ModuleId, info: ModuleInfo, text: &Arc<Text>) -> Part {
        let verdicts = info.kernels.iter().map(|_| OnceLock::new()).collect();
        Part { id, info, text: Arc::clone(text), symbols: OnceLock::new(), verdicts }
    }

    /// Reads a kernel, with the functions that it calls, as the GPU's compiler will: in the program's own time, and where an error
    /// does no harm. `None` if the GPU's code is no text that is understood here.
    pub(crate) fn verdict(&self, index: usize) -> Option<&Verdict> {
        let (program, info) = (self.text.program()?, self.info.kernels.get(index)?);
        program.entries().get(index).filter(|entry| entry.name == info.name)?;
        Some(self.verdicts.get(index)?.get_or_init(|| {
            let globals = &self.info.globals;
            let symbols = self
                .symbols
                .get_or_init(|| globals.iter().map(|global| (global.name.clone(), global.address.0)).collect());
            let kernel = program.lower(index, &|name| symbols.get(name).copied())?;
            let instructions = kernel.blocks.iter().map(|block| block.insts.len()).sum();
            Ok(Read { local: kernel.local_memory(), instructions })
        }))
    }
}

impl ModuleState {
    pub(crate) fn new(core: &Arc<ContextCore>, text: Arc<Text>, of_library: bool) -> Self {
        ModuleState {
            handle: Module(handle::fresh(Tag::Module)),
            core: Arc::clone(core),
            text,
            of_library,
            stage: Mutex::new(Stage::Absent),
            changed: Condvar::new(),
            functions: Mutex::default(),
            unloaded: AtomicBool::new(false),
        }
    }

    /// What the GPU has, loaded now if it was not; what the compiler says goes to `log`.
    fn part(&self, log: &mut JitLog) -> Result<Arc<Part>> {
        let mut stage = self.stage.lock();
        loop {
            if self.unloaded.load(Ordering::Acquire) {
                return Err(CudaError::INVALID_HANDLE);
            }
            match &mut *stage {
                Stage::Loaded(part) => return Ok(Arc::clone(part)),
                Stage::Loading => self.changed.wait(&mut stage),
                absent => {
                    *absent = Stage::Loading;
                    break;
                }
            }
        }
        drop(stage);
        let mut loading = Loading { module: self, next: Stage::Absent };
        let gone = || self.core.dead() || self.unloaded.load(Ordering::Acquire);
        let part = load(&self.core, &self.text, log, &gone)
            .map_err(|error| if self.unloaded.load(Ordering::Acquire) { CudaError::INVALID_HANDLE } else { error })?;
        let part = Arc::new(part);
        loading.next = Stage::Loaded(Arc::clone(&part));
        Ok(part)
    }

    /// Loads it. Of a text that is not long the kernels are read now, as the vendor's assembler does: what is no PTX is an error here,
    /// and not at a launch. So it is for who asks for the compiler's log, however long the text. A kernel that may be PTX, but which this
    /// GPU cannot run, is none: a program may have one among hundreds, and never launch it.
    ///
    /// # Errors
    /// `INVALID_PTX`: the log says of which kernels and lines; `OUT_OF_MEMORY`; the context's error.
    pub(crate) fn load_all(&self, log: &mut JitLog) -> Result<()> {
        let part = self.part(log)?;
        if log.ask || self.text.ptx.len() <= MAX_READ_BYTES {
            self.read_kernels(&part, log)?;
        }
        Ok(())
    }

    /// Reads the kernels, in the program's own time; what is wrong with them goes to the log.
    fn read_kernels(&self, part: &Part, log: &mut JitLog) -> Result<()> {
        // What is wrong with a kernel's declarations was said at the load.
        let said: HashSet<&str> = part.info.log.lines().collect();
        let mut left = if log.ask { usize::MAX } else { MAX_READ_INSTRUCTIONS };
        let mut wrong = Vec::new();
        for (index, kernel) in part.info.kernels.iter().enumerate() {
            if left == 0 {
                break;
            }
            let Some(verdict) = part.verdict(index) else { break };
            let error = match verdict {
                Ok(read) => {
                    left = left.saturating_sub(read.instructions);
                    continue;
                }
                Err(error) => error,
            };
            left = left.saturating_sub(INSTRUCTIONS_OF_AN_ERROR);
            let line = format!("{}: {error}", kernel.name);
            if error.kind == PtxErrorKind::Invalid {
                wrong.push(line);
            } else if !said.contains(line.as_str()) {
                log.info.push_str(&line);
                log.info.push('\n');
            }
        }
        let Some(first) = wrong.first() else { return Ok(()) };
        tracing::warn!(kernels = wrong.len(), first, "PTX rejected");
        wrong.iter().for_each(|line| log.error.extend([line.as_str(), "\n"]));
        Err(CudaError::INVALID_PTX)
    }

    /// A kernel by name.
    pub(crate) fn function(&self, functions: &Table<FunctionState>, name: &str) -> Result<Arc<FunctionState>> {
        self.text.check_holds(name)?;
        let part = self.part(&mut JitLog::default())?;
        let at = part.info.kernels.iter().position(|kernel| kernel.name == name).ok_or(CudaError::NOT_FOUND)?;
        Ok(self.make_function(functions, at as u32, &part))
    }

    fn make_function(&self, table: &Table<FunctionState>, at: u32, part: &Arc<Part>) -> Arc<FunctionState> {
        let mut functions = self.functions.lock();
        let function = functions.entry(at).or_insert_with(|| {
            let info = part.info.kernels[at as usize].clone();
            let clusters = self.text.clusters(&info.name);
            let function = Arc::new(FunctionState::new(&self.core, self.handle, Arc::clone(part), at, info, clusters));
            table.insert(function.handle.0, Arc::clone(&function));
            function
        });
        Arc::clone(function)
    }

    /// Address and size of a variable.
    pub(crate) fn global(&self, name: &str) -> Result<(DevAddr, u64)> {
        if !self.text.ptx.windows(name.len().max(1)).any(|window| window == name.as_bytes()) {
            return Err(CudaError::NOT_FOUND);
        }
        let part = self.part(&mut JitLog::default())?;
        let global = part.info.globals.iter().find(|global| global.name == name).ok_or(CudaError::NOT_FOUND)?;
        Ok((global.address, global.bytes))
    }

    /// Where the handle of a texture reference is, or of a surface reference.
    pub(crate) fn reference(&self, texture: bool, name: &str) -> Result<DevAddr> {
        let names = if texture { &self.text.textures } else { &self.text.surfaces };
        if !names.iter().any(|other| other == name) {
            return Err(CudaError::NOT_FOUND);
        }
        match self.global(name)? {
            (address, 8) => Ok(address),
            _ => Err(CudaError::NOT_FOUND),
        }
    }

    /// Names of all kernels.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.text.kernels.iter().map(String::as_str)
    }

    /// Gives back what the GPU holds. No work may use it any more.
    pub(crate) fn unload(&self) {
        self.unloaded.store(true, Ordering::Release);
        self.functions.lock().clear();
        let memory = self.core.memory();
        let mut stage = self.stage.lock();
        self.changed.notify_all();
        // Whoever loads it sees that it is of no use, even if it waits for memory.
        while matches!(*stage, Stage::Loading) {
            self.changed.wait(&mut stage);
        }
        let loaded = std::mem::replace(&mut *stage, Stage::Absent);
        drop(stage);
        if let Stage::Loaded(part) = loaded {
            for global in &part.info.globals {
                memory.forget(global.address.0, |found| found.kind == Kind::Variable);
            }
            self.core.link().give_back(Request::UnloadModule { id: part.id });
        }
        if !self.of_library {
            self.text.managed.free();
        }
    }
}

/// Loads a text; waits for memory that others have, until it is of no use any more (`gone`).
fn load(core: &ContextCore, text: &Arc<Text>, log: &mut JitLog, gone: &dyn Fn() -> bool) -> Result<Part> {
    core.check()?;
    let (link, memory) = (core.link(), core.memory());
    memory.arena()?;
    let managed = text.managed.get(memory, &text.ptx, log)?;
    let placed = managed.as_deref().map(ManagedVariables::places).unwrap_or_default();
    let id = ModuleId(link.fresh_id());
    let mut place = memory.place();
    let answer = loop {
        place.look();
        let answer = memory.ask(|| {
            let code = CodeImage { format: CodeFormat::PTX, bytes: Arc::clone(&text.ptx) };
            let placed = placed.clone();
            let answer = link.gpu().request(Request::LoadModule { id, code, placed });
            if let Err(GpuError::InvalidPtx { log: error, .. }) = &answer {
                log.error.push_str(error);
                tracing::warn!(error, "PTX rejected");
            }
            link.outcome(answer)
        });
        place.asked_to_load(id, &answer);
        match answer {
            Err(CudaError::NOT_READY) => place.wait(gone)?,
            other => break other?,
        }
    };
    let Response::Module(info) = answer else { return Err(CudaError::UNKNOWN) };
    log.info.push_str(&info.log);
    if let Some(managed) = &managed {
        managed.link(memory, &info).inspect_err(|_| link.give_back(Request::UnloadModule { id }))?;
    }
    let listed = |address| managed.as_ref().is_some_and(|managed| managed.contains(address));
    for global in info.globals.iter().filter(|global| global.bytes > 0 && !listed(global.address)) {
        memory.announce(global.address.0, global.bytes, Kind::Variable, core.id);
    }
    Ok(Part::new(id, info, text))
}
