//! Modules: code loaded into a context.
//!
//! A module is made of one or more PTX texts (more than one for programs linked from separately compiled files), each a
//! module of the GPU. Those of a library are loaded one by one, when a kernel or variable of theirs is first used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use gpu::{DevAddr, GpuError, KernelInfo, ModuleId, ModuleInfo, Request, Response};
use parking_lot::Mutex;

use crate::context::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::fatbin;
use crate::function::FunctionState;
use crate::handle::{self, Function, Module, Tag};
use crate::heap::Kind;
use crate::library::LibraryState;
use crate::managed::variables::{Managed, ManagedVariables};
use crate::names::{self, Names};
use crate::types::{Image, JitLog};

/// One PTX text and the kernels in it.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) ptx: Vec<u8>,
    pub(crate) kernels: Vec<String>,
    /// Those of a library are there for all contexts.
    pub(crate) managed: Managed,
}

impl Text {
    /// The texts of an image, with their kernels' names.
    pub(crate) fn of_image(driver: &Driver, image: &dyn Image) -> Result<Arc<[Text]>> {
        let [major, minor] = driver.properties().compute_capability;
        let texts = fatbin::texts(image, major * 10 + minor)?;
        Ok(texts
            .into_iter()
            .map(|ptx| {
                let Names { kernels, managed } = names::find(&ptx);
                let managed = if managed { Managed::default() } else { Managed::none() };
                Text { ptx, kernels, managed }
            })
            .collect())
    }
}

#[derive(Debug)]
pub(crate) struct ModuleState {
    pub(crate) handle: Module,
    /// Weak: the context holds its modules.
    context: Weak<ContextState>,
    texts: Arc<[Text]>,
    pub(crate) library: Option<Weak<LibraryState>>,
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
    pub(crate) fn new(context: &Arc<ContextState>, texts: Arc<[Text]>, library: Option<Weak<LibraryState>>) -> Self {
        let parts = Mutex::new((0..texts.len()).map(|_| None).collect());
        ModuleState {
            handle: Module(handle::fresh(Tag::Module)),
            context: Arc::downgrade(context),
            texts,
            library,
            parts,
            functions: Mutex::default(),
            unloaded: AtomicBool::new(false),
        }
    }

    pub(crate) fn context(&self) -> Result<Arc<ContextState>> {
        self.context.upgrade().ok_or(CudaError::CONTEXT_IS_DESTROYED)
    }

    /// Calls `f` with a part, loaded now if it was not; what the compiler says goes to `log`.
    fn with_part<R>(&self, index: usize, log: &mut JitLog, f: impl FnOnce(&Part) -> R) -> Result<R> {
        let context = self.context()?;
        let mut parts = self.parts.lock();
        if self.unloaded.load(Ordering::Acquire) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let part = parts.get_mut(index).ok_or(CudaError::NOT_FOUND)?;
        if part.is_none() {
            let made = load(&context, &self.texts[index], log).map_err(|error| match error {
                // One text of several refers to another: that is linking.
                CudaError::INVALID_PTX if self.texts.len() > 1 => CudaError::NOT_SUPPORTED,
                other => other,
            })?;
            *part = Some(made);
        }
        part.as_ref().map(f).ok_or(CudaError::UNKNOWN)
    }

    /// Loads every text.
    pub(crate) fn load_all(&self, log: &mut JitLog) -> Result<()> {
        (0..self.texts.len()).try_for_each(|index| self.with_part(index, log, |_| ()))
    }

    /// A kernel by name.
    pub(crate) fn function(self: &Arc<Self>, driver: &Driver, name: &str) -> Result<Arc<FunctionState>> {
        let holds = |text: &Text| text.kernels.iter().any(|kernel| kernel == name);
        let index = self.texts.iter().position(holds).ok_or(CudaError::NOT_FOUND)?;
        let found = self.with_part(index, &mut JitLog::default(), |part| {
            let at = part.info.kernels.iter().position(|kernel| kernel.name == name)?;
            Some((part.id, at as u32, part.info.kernels[at].clone()))
        })?;
        let (module, kernel, info) = found.ok_or(CudaError::NOT_FOUND)?;
        self.make_function(driver, (index, kernel), module, info)
    }

    fn make_function(
        self: &Arc<Self>,
        driver: &Driver,
        at: (usize, u32),
        module: ModuleId,
        info: KernelInfo,
    ) -> Result<Arc<FunctionState>> {
        let context = self.context()?;
        let mut functions = self.functions.lock();
        if let Some(function) = functions.get(&at) {
            return Ok(Arc::clone(function));
        }
        let function = Arc::new(FunctionState::new(&context, self.handle, module, at.1, info));
        driver.functions.insert(function.handle.0, Arc::clone(&function));
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
    fn names(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().flat_map(|text| text.kernels.iter().map(String::as_str))
    }

    /// Gives back what the GPU holds. No work may use it any more.
    pub(crate) fn unload(&self) {
        self.unloaded.store(true, Ordering::Release);
        self.functions.lock().clear();
        let Some(context) = self.context.upgrade() else { return };
        for part in self.parts.lock().iter_mut().filter_map(Option::take) {
            for global in &part.info.globals {
                context.shared.memory.forget(global.address.0, |found| found.kind == Kind::Variable);
            }
            context.shared.give_back(Request::UnloadModule { id: part.id });
        }
        if self.library.is_none() {
            self.texts.iter().for_each(|text| text.managed.free(&context.shared));
        }
    }
}

/// Loads a text.
fn load(context: &ContextState, text: &Text, log: &mut JitLog) -> Result<Part> {
    context.check()?;
    let shared = &context.shared;
    shared.memory.arena(shared)?;
    let managed = text.managed.get(shared, &text.ptx, log)?;
    let placed = managed.as_deref().map(ManagedVariables::places).unwrap_or_default();
    let id = ModuleId(shared.id());
    let answer = shared.gpu.request(Request::LoadModule { id, ptx: text.ptx.clone(), placed });
    if let Err(GpuError::InvalidPtx { log: error, .. }) = &answer {
        log.error.push_str(error);
        tracing::warn!(error, "PTX rejected");
    }
    let Response::Module(info) = shared.note(answer)? else { return Err(CudaError::UNKNOWN) };
    log.info.push_str(&info.log);
    if let Some(managed) = &managed {
        managed.link(shared, &info).inspect_err(|_| shared.give_back(Request::UnloadModule { id }))?;
    }
    let listed = |address| managed.as_ref().is_some_and(|managed| managed.contains(address));
    for global in info.globals.iter().filter(|global| global.bytes > 0 && !listed(global.address)) {
        shared.memory.announce(global.address.0, global.bytes, Kind::Variable, context.gpu_id);
    }
    Ok(Part { id, info })
}

impl Driver {
    fn module(&self, module: Module) -> Result<Arc<ModuleState>> {
        self.ready()?;
        let state = self.modules.get(module.0)?;
        state.context()?.check()?;
        Ok(state)
    }

    /// Makes a module known.
    pub(crate) fn add_module(&self, context: &ContextState, module: &Arc<ModuleState>) {
        context.modules.lock().push(Arc::clone(module));
        self.modules.insert(module.handle.0, Arc::clone(module));
    }

    /// Takes a module's handles away.
    pub(crate) fn forget_module(&self, module: &ModuleState) {
        // Unloading twice, or while the context ends: whoever comes first does it.
        let _ = self.modules.remove(module.handle.0);
        for function in module.functions.lock().values() {
            let _ = self.functions.remove(function.handle.0);
        }
    }

    /// Takes a module away, after the work that may use it.
    pub(crate) fn end_module(&self, module: &Arc<ModuleState>) -> Result<()> {
        let Ok(context) = module.context() else { return Ok(()) };
        // A failed context runs nothing any more.
        let result = context.synchronize();
        context.modules.lock().retain(|other| !Arc::ptr_eq(other, module));
        self.forget_module(module);
        module.unload();
        result
    }

    /// `CUmoduleLoadingMode`: lazy.
    ///
    /// # Errors
    /// `NOT_INITIALIZED`.
    pub fn module_get_loading_mode(&self) -> Result<u32> {
        self.ready()?;
        Ok(2)
    }

    /// Loads PTX text or a fatbin.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `NO_BINARY_FOR_GPU`, `INVALID_PTX`, `NOT_SUPPORTED`, `OUT_OF_MEMORY`.
    pub fn module_load_data(&self, image: &dyn Image, log: &mut JitLog) -> Result<Module> {
        let context = self.current()?;
        let texts = Text::of_image(self, image)?;
        let module = Arc::new(ModuleState::new(&context, texts, None));
        if let Err(error) = module.load_all(log) {
            module.unload();
            return Err(error);
        }
        self.add_module(&context, &module);
        Ok(module.handle)
    }

    /// Unloads, after the work that may use it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also for modules of libraries; the context's error.
    pub fn module_unload(&self, module: Module) -> Result<()> {
        self.ready()?;
        let state = self.modules.get(module.0)?;
        if state.library.is_some() {
            return Err(CudaError::INVALID_HANDLE);
        }
        self.end_module(&state)
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`.
    pub fn module_get_function(&self, module: Module, name: &str) -> Result<Function> {
        Ok(self.module(module)?.function(self, name)?.handle)
    }

    /// Address and size of a variable.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`.
    pub fn module_get_global(&self, module: Module, name: &str) -> Result<(DevAddr, u64)> {
        self.module(module)?.global(name)
    }

    /// Number of kernels.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module_get_function_count(&self, module: Module) -> Result<u32> {
        Ok(self.module(module)?.names().count() as u32)
    }

    /// The first `most` kernels.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn module_enumerate_functions(&self, module: Module, most: usize) -> Result<Vec<Function>> {
        let module = self.module(module)?;
        module.names().take(most).map(|name| Ok(module.function(self, name)?.handle)).collect()
    }
}
