//! Libraries and their kernels.

use std::sync::Arc;

use gpu::DevAddr;

use crate::code::function::FunctionState;
use crate::code::library::{KernelState, LibraryState};
use crate::code::text::Text;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Device, Function, Kernel, Library, Module};
use crate::values::{Image, JitLog};

impl Driver {
    fn library(&self, library: Library) -> Result<Arc<LibraryState>> {
        self.ready()?;
        self.libraries.get(library.0)
    }

    pub(crate) fn kernel(&self, kernel: Kernel) -> Result<Arc<KernelState>> {
        self.ready()?;
        self.kernels.get(kernel.0)
    }

    /// The kernel's function in the current context.
    pub(crate) fn function_of(&self, kernel: Kernel) -> Result<Arc<FunctionState>> {
        self.kernel(kernel)?.function(&self.code, &self.current()?.core)
    }

    /// Takes PTX text or a fatbin. Nothing is compiled before it is used, but with a current context PTX text (from a
    /// program that compiles at run time and wants to see errors here) is loaded at once.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `NO_BINARY_FOR_GPU`, `INVALID_PTX`, `NOT_SUPPORTED`.
    pub fn library_load_data(&self, image: &dyn Image, log: &mut JitLog) -> Result<Library> {
        self.ready()?;
        let text = Text::of_image(image, self.devices.least_capability(), log)?;
        let mut first = [0; 4];
        // Containers begin with bytes that no text has.
        let plain = image.read(0, &mut first) && first.is_ascii();
        let library = LibraryState::new(Arc::new(text));
        if plain && let Ok(context) = self.current() {
            let module = library.module(&self.code, &context.core)?;
            if let Err(error) = module.load_all(log) {
                self.end_module(&module)?;
                library.free_managed();
                return Err(error);
            }
        }
        self.libraries.insert(library.handle.0, Arc::clone(&library));
        Ok(library.handle)
    }

    /// Unloads from all contexts, after the work that may use it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library_unload(&self, library: Library) -> Result<()> {
        self.ready()?;
        let state = self.libraries.remove(library.0)?;
        for module in state.end(&self.kernels) {
            // A failed context's error is told by that context's calls.
            let _ = self.end_module(&module);
        }
        state.free_managed();
        Ok(())
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`.
    pub fn library_get_kernel(&self, library: Library, name: &str) -> Result<Kernel> {
        Ok(self.library(library)?.kernel(&self.kernels, name)?.handle)
    }

    /// Number of kernels.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library_get_kernel_count(&self, library: Library) -> Result<u32> {
        Ok(self.library(library)?.names().count() as u32)
    }

    /// The first `most` kernels.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn library_enumerate_kernels(&self, library: Library, most: usize) -> Result<Vec<Kernel>> {
        let library = self.library(library)?;
        library.names().take(most).map(|name| Ok(library.kernel(&self.kernels, name)?.handle)).collect()
    }

    /// The library's module in the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn library_get_module(&self, library: Library) -> Result<Module> {
        Ok(self.library(library)?.module(&self.code, &self.current()?.core)?.handle)
    }

    /// A variable in the current context.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn library_get_global(&self, library: Library, name: &str) -> Result<(DevAddr, u64)> {
        self.library(library)?.module(&self.code, &self.current()?.core)?.global(name)
    }

    /// A managed variable: one for the host and all contexts. No context need be current.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`; `INVALID_PTX`, `OUT_OF_MEMORY` if it cannot be placed.
    pub fn library_get_managed(&self, library: Library, name: &str) -> Result<(DevAddr, u64)> {
        let library = self.library(library)?;
        // In the memory of the current device, if they are in none yet.
        let gpu = self.current_any().map_or(0, |context| context.core.gpu.ordinal);
        let text = &library.text;
        let managed = text.managed.get(self.memory.of(gpu), &text.ptx, &mut JitLog::default())?;
        managed.and_then(|managed| managed.find(name)).ok_or(CudaError::NOT_FOUND)
    }

    /// A unified function's address: there are none.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`.
    pub fn library_get_unified_function(&self, library: Library, _name: &str) -> Result<u64> {
        self.library(library)?;
        Err(CudaError::NOT_FOUND)
    }

    /// The kernel's function in the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`, `INVALID_PTX`.
    pub fn kernel_get_function(&self, kernel: Kernel) -> Result<Function> {
        Ok(self.function_of(kernel)?.handle)
    }

    /// The kernel's library.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn kernel_get_library(&self, kernel: Kernel) -> Result<Library> {
        let library = self.kernel(kernel)?.library()?;
        Ok(library.handle)
    }

    /// Name, mangled.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, `INVALID_HANDLE`.
    pub fn kernel_get_name(&self, kernel: Kernel) -> Result<String> {
        if kernel.is_null() {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(self.kernel(kernel)?.name.clone())
    }

    /// Offset and size of a parameter.
    ///
    /// # Errors
    /// `INVALID_VALUE` behind the last, `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn kernel_get_param_info(&self, kernel: Kernel, index: usize) -> Result<(u64, u64)> {
        self.function_of(kernel)?.param(index)
    }

    /// Number of parameters.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn kernel_get_param_count(&self, kernel: Kernel) -> Result<u64> {
        Ok(self.function_of(kernel)?.info.params.len() as u64)
    }

    /// A `CUfunction_attribute`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown ones, `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn kernel_get_attribute(&self, attribute: i32, kernel: Kernel, device: Device) -> Result<i32> {
        self.device(device)?;
        self.function_of(kernel)?.attribute(attribute)
    }

    /// Sets a `CUfunction_attribute`, in every context.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown ones and values that cannot be, `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn kernel_set_attribute(&self, attribute: i32, value: i32, kernel: Kernel, device: Device) -> Result<()> {
        self.device(device)?;
        let kernel = self.kernel(kernel)?;
        if let Ok(context) = self.current() {
            kernel.function(&self.code, &context.core)?;
        }
        kernel.set_attribute(attribute, value)
    }

    /// Preferred cache configuration.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn kernel_set_cache_config(&self, kernel: Kernel, config: u32, device: Device) -> Result<()> {
        self.device(device)?;
        self.kernel(kernel)?;
        if config > 3 { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
    }
}
