//! Modules: loaded into the current context, and what is in them by name.

use std::sync::Arc;

use gpu::DevAddr;

use crate::code::module::ModuleState;
use crate::code::text::Text;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Function, Module};
use crate::values::{Image, JitLog};

impl Driver {
    pub(crate) fn module(&self, module: Module) -> Result<Arc<ModuleState>> {
        self.ready()?;
        let state = self.code.modules.get(module.0)?;
        state.core.check()?;
        Ok(state)
    }

    /// Takes a module away, after the work that may use it.
    pub(crate) fn end_module(&self, module: &ModuleState) -> Result<()> {
        if module.core.dead() {
            return Ok(());
        }
        // A failed context runs nothing any more.
        let result = self.contexts.get(module.core.handle.0).and_then(|context| context.queues.synchronize());
        self.code.forget(module);
        self.references.forget_module(module.handle);
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
        let text = Text::of_image(image, self.device_of(&context).properties().compute_capability, log)?;
        let module = Arc::new(ModuleState::new(&context.core, Arc::new(text), false));
        if let Err(error) = module.load_all(log) {
            module.unload();
            return Err(error);
        }
        self.code.modules.insert(module.handle.0, Arc::clone(&module));
        context.alive_or(|| {
            self.code.forget(&module);
            module.unload();
        })?;
        Ok(module.handle)
    }

    /// Unloads, after the work that may use it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also for modules of libraries; the context's error.
    pub fn module_unload(&self, module: Module) -> Result<()> {
        self.ready()?;
        let state = self.code.modules.get(module.0)?;
        if state.of_library {
            return Err(CudaError::INVALID_HANDLE);
        }
        self.end_module(&state)
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`.
    pub fn module_get_function(&self, module: Module, name: &str) -> Result<Function> {
        Ok(self.module(module)?.function(&self.code.functions, name)?.handle)
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
        module.names().take(most).map(|name| Ok(module.function(&self.code.functions, name)?.handle)).collect()
    }
}
