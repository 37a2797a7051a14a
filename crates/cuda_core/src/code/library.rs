//! Libraries: code that is loaded into each context at its first use.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::code::function::{FunctionState, Settings};
use crate::code::module::{CodeTables, ModuleState};
use crate::code::text::Text;
use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::handle::{self, Kernel, Library, Table, Tag};

/// A text in no context yet.
#[derive(Debug)]
pub(crate) struct LibraryState {
    pub(crate) handle: Library,
    pub(crate) text: Arc<Text>,
    kernels: Mutex<Vec<Arc<KernelState>>>,
    /// One module for each context that has used it.
    modules: Mutex<Vec<Arc<ModuleState>>>,
}

/// A kernel of a library, in no context yet.
#[derive(Debug)]
pub(crate) struct KernelState {
    pub(crate) handle: Kernel,
    library: Weak<LibraryState>,
    pub(crate) name: String,
    /// Its function in each context that has used it.
    functions: RwLock<Vec<Arc<FunctionState>>>,
    /// Set before it was in a context.
    settings: Mutex<Settings>,
}

impl LibraryState {
    pub(crate) fn new(text: Arc<Text>) -> Arc<LibraryState> {
        Arc::new(LibraryState {
            handle: Library(handle::fresh(Tag::Library)),
            text,
            kernels: Mutex::default(),
            modules: Mutex::default(),
        })
    }

    /// The library's module in a context.
    pub(crate) fn module(&self, code: &CodeTables, core: &Arc<ContextCore>) -> Result<Arc<ModuleState>> {
        core.check()?;
        let mut modules = self.modules.lock();
        modules.retain(|module| !module.core.dead());
        if let Some(module) = modules.iter().find(|module| Arc::ptr_eq(&module.core, core)) {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(ModuleState::new(core, Arc::clone(&self.text), true));
        code.modules.insert(module.handle.0, Arc::clone(&module));
        modules.push(Arc::clone(&module));
        Ok(module)
    }

    /// No module of the library is loaded any more: the memory of its managed variables goes.
    pub(crate) fn free_managed(&self) {
        self.text.managed.free();
    }

    /// Names of all kernels.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.text.kernels.iter().map(String::as_str)
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// As of [`Text::check_holds`].
    pub(crate) fn kernel(self: &Arc<Self>, table: &Table<KernelState>, name: &str) -> Result<Arc<KernelState>> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.iter().find(|kernel| kernel.name == name) {
            return Ok(Arc::clone(kernel));
        }
        self.text.check_holds(name)?;
        let kernel = Arc::new(KernelState {
            handle: Kernel(handle::fresh(Tag::Kernel)),
            library: Arc::downgrade(self),
            name: name.to_string(),
            functions: RwLock::default(),
            settings: Mutex::default(),
        });
        table.insert(kernel.handle.0, Arc::clone(&kernel));
        kernels.push(Arc::clone(&kernel));
        Ok(kernel)
    }

    /// The library ends: its modules, for whoever unloads them, and no kernels any more.
    pub(crate) fn end(&self, table: &Table<KernelState>) -> Vec<Arc<ModuleState>> {
        for kernel in self.kernels.lock().drain(..) {
            // Kernels go with their library only.
            let _ = table.remove(kernel.handle.0);
        }
        self.modules.lock().drain(..).collect()
    }

    /// A context ends, and the library's module in it.
    pub(crate) fn forget_context(&self, core: &Arc<ContextCore>) {
        self.modules.lock().retain(|module| !Arc::ptr_eq(&module.core, core));
    }
}

impl KernelState {
    /// # Errors
    /// `INVALID_HANDLE` once it is unloaded.
    pub(crate) fn library(&self) -> Result<Arc<LibraryState>> {
        self.library.upgrade().ok_or(CudaError::INVALID_HANDLE)
    }

    /// The kernel's function in a context.
    pub(crate) fn function(&self, code: &CodeTables, core: &Arc<ContextCore>) -> Result<Arc<FunctionState>> {
        let found = |functions: &[Arc<FunctionState>]| {
            functions.iter().find(|function| Arc::ptr_eq(&function.core, core)).map(Arc::clone)
        };
        if let Some(function) = found(&self.functions.read()) {
            return Ok(function);
        }
        let function = self.library()?.module(code, core)?.function(&code.functions, &self.name)?;
        let mut functions = self.functions.write();
        if found(&functions).is_none() {
            function.apply(&self.settings.lock());
            functions.push(Arc::clone(&function));
        }
        Ok(function)
    }

    /// Sets a `CUfunction_attribute` in every context, those that come too.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown ones and values that cannot be.
    pub(crate) fn set_attribute(&self, attribute: i32, value: i32) -> Result<()> {
        self.settings.lock().set(attribute, value)?;
        self.functions.read().iter().try_for_each(|function| function.set_attribute(attribute, value))
    }

    /// A context ends, and the kernel's function in it.
    pub(crate) fn forget_context(&self, core: &Arc<ContextCore>) {
        self.functions.write().retain(|function| !Arc::ptr_eq(&function.core, core));
    }
}
