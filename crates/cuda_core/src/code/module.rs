//! Modules: code loaded into a context.
//!
//! A module is made of one or more PTX texts (more than one for programs linked from separately compiled files), each a
//! module of the GPU. Those of a library are loaded one by one, when a kernel or variable of theirs is first used.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{CodeImage, DevAddr, GpuError, KernelInfo, ModuleId, ModuleInfo, Request, Response};
use parking_lot::Mutex;

use crate::code::function::FunctionState;
use crate::code::managed_variables::ManagedVariables;
use crate::code::text::Text;
use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::handle::{self, Module, Table, Tag};
use crate::memory::allocation::Kind;
use crate::values::JitLog;

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

/// Texts in a context.
#[derive(Debug)]
pub(crate) struct ModuleState {
    pub(crate) handle: Module,
    pub(crate) core: Arc<ContextCore>,
    texts: Arc<[Text]>,
    /// It is a library's, with which its managed variables and the module itself go.
    pub(crate) of_library: bool,
    parts: Mutex<Vec<Option<Part>>>,
    functions: Mutex<HashMap<(usize, u32), Arc<FunctionState>>>,
    unloaded: AtomicBool,
}

/// A text as the GPU has it.
#[derive(Debug)]
struct Part {
    id: ModuleId,
    info: ModuleInfo,
}

impl ModuleState {
    pub(crate) fn new(core: &Arc<ContextCore>, texts: Arc<[Text]>, of_library: bool) -> Self {
        let parts = Mutex::new((0..texts.len()).map(|_| None).collect());
        ModuleState {
            handle: Module(handle::fresh(Tag::Module)),
            core: Arc::clone(core),
            texts,
            of_library,
            parts,
            functions: Mutex::default(),
            unloaded: AtomicBool::new(false),
        }
    }

    /// Calls `f` with a part, loaded now if it was not; what the compiler says goes to `log`.
    fn with_part<R>(&self, index: usize, log: &mut JitLog, f: impl FnOnce(&Part) -> R) -> Result<R> {
        let mut parts = self.parts.lock();
        if self.unloaded.load(Ordering::Acquire) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let part = parts.get_mut(index).ok_or(CudaError::NOT_FOUND)?;
        if part.is_none() {
            let made = load(&self.core, &self.texts[index], log).map_err(|error| match error {
                // One text of several refers to another: that is linking.
                CudaError::INVALID_PTX if self.texts.len() > 1 => CudaError::NOT_SUPPORTED,
                other => other,
            })?;
            *part = Some(made);
        }
        part.as_ref().map(f).ok_or(CudaError::UNKNOWN)
    }

    /// Loads every text. A kernel that the GPU cannot run is no error here: a program may have one among hundreds, and never
    /// launch it. Who asks for the compiler's log is told.
    pub(crate) fn load_all(&self, log: &mut JitLog) -> Result<()> {
        (0..self.texts.len()).try_for_each(|index| self.with_part(index, log, |_| ()))?;
        if log.ask {
            self.parts.lock().iter().flatten().for_each(|part| self.ask_about_kernels(part, log));
        }
        Ok(())
    }

    /// Adds to the log what the GPU says of kernels that it cannot run.
    fn ask_about_kernels(&self, part: &Part, log: &mut JitLog) {
        let (module, stack_bytes) = (part.id, self.core.stack_bytes());
        for (kernel, info) in (0..).zip(&part.info.kernels) {
            let answer = self.core.link().gpu().request(Request::PrepareKernel { module, kernel, stack_bytes });
            let Err(GpuError::InvalidPtx { log: why, .. }) = answer else { continue };
            let line = format!("{}: {}\n", info.name, why.trim_end());
            // What is wrong with its declarations was said at the load.
            if !log.info.contains(&line) {
                log.info.push_str(&line);
            }
        }
    }

    /// A kernel by name.
    pub(crate) fn function(&self, functions: &Table<FunctionState>, name: &str) -> Result<Arc<FunctionState>> {
        let holds = |text: &Text| text.kernels.iter().any(|kernel| kernel == name);
        let index = self.texts.iter().position(holds).ok_or(CudaError::NOT_FOUND)?;
        let found = self.with_part(index, &mut JitLog::default(), |part| {
            let at = part.info.kernels.iter().position(|kernel| kernel.name == name)?;
            Some((part.id, at as u32, part.info.kernels[at].clone()))
        })?;
        let (module, kernel, info) = found.ok_or(CudaError::NOT_FOUND)?;
        self.make_function(functions, (index, kernel), module, info)
    }

    fn make_function(
        &self,
        table: &Table<FunctionState>,
        at: (usize, u32),
        module: ModuleId,
        info: KernelInfo,
    ) -> Result<Arc<FunctionState>> {
        let mut functions = self.functions.lock();
        if let Some(function) = functions.get(&at) {
            return Ok(Arc::clone(function));
        }
        let function = Arc::new(FunctionState::new(&self.core, self.handle, module, at.1, info));
        table.insert(function.handle.0, Arc::clone(&function));
        functions.insert(at, Arc::clone(&function));
        Ok(function)
    }

    /// Address and size of a variable.
    pub(crate) fn global(&self, name: &str) -> Result<(DevAddr, u64)> {
        // Parts that are loaded already are the likely ones.
        let loaded: Vec<bool> = self.parts.lock().iter().map(Option::is_some).collect();
        let order = (0..loaded.len()).filter(|&at| loaded[at]).chain((0..loaded.len()).filter(|&at| !loaded[at]));
        for index in order {
            let text = &self.texts[index].ptx;
            if !text.windows(name.len().max(1)).any(|window| window == name.as_bytes()) {
                continue;
            }
            let found = self.with_part(index, &mut JitLog::default(), |part| {
                let global = part.info.globals.iter().find(|global| global.name == name);
                global.map(|global| (global.address, global.bytes))
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(CudaError::NOT_FOUND)
    }

    /// Names of all kernels.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().flat_map(|text| text.kernels.iter().map(String::as_str))
    }

    /// Gives back what the GPU holds. No work may use it any more.
    pub(crate) fn unload(&self) {
        self.unloaded.store(true, Ordering::Release);
        self.functions.lock().clear();
        let memory = self.core.memory();
        for part in self.parts.lock().iter_mut().filter_map(Option::take) {
            for global in &part.info.globals {
                memory.forget(global.address.0, |found| found.kind == Kind::Variable);
            }
            self.core.link().give_back(Request::UnloadModule { id: part.id });
        }
        if !self.of_library {
            self.texts.iter().for_each(|text| text.managed.free());
        }
    }
}

/// Loads a text.
fn load(core: &ContextCore, text: &Text, log: &mut JitLog) -> Result<Part> {
    core.check()?;
    let (link, memory) = (core.link(), core.memory());
    memory.arena()?;
    let managed = text.managed.get(memory, &text.ptx, log)?;
    let placed = managed.as_deref().map(ManagedVariables::places).unwrap_or_default();
    let id = ModuleId(link.fresh_id());
    let mut place = memory.place();
    let answer = loop {
        place.look();
        let (code, placed) = (CodeImage::ptx(text.ptx.clone()), placed.clone());
        let answer = link.gpu().request(Request::LoadModule { id, code, placed });
        if let Err(GpuError::InvalidPtx { log: error, .. }) = &answer {
            log.error.push_str(error);
            tracing::warn!(error, "PTX rejected");
        }
        let answer = link.outcome(answer);
        // What is kept for allocations to come goes first.
        if matches!(answer, Err(CudaError::OUT_OF_MEMORY)) && memory.trim() {
            continue;
        }
        place.asked_to_load(id, &answer);
        match answer {
            Err(CudaError::NOT_READY) => place.wait(&|| core.dead())?,
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
    Ok(Part { id, info })
}
