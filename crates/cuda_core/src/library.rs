//! Libraries: code that is loaded into each context at its first use.

use std::sync::{Arc, Weak};

use gpu::DevAddr;
use parking_lot::{Mutex, RwLock};

use crate::context::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::function::{FunctionState, Settings};
use crate::handle::{self, Device, Function, Kernel, Library, Module, Tag};
use crate::module::{ModuleState, Text};
use crate::types::{Image, JitLog};

#[derive(Debug)]
pub(crate) struct LibraryState {
    pub(crate) handle: Library,
    texts: Arc<[Text]>,
    kernels: Mutex<Vec<Arc<KernelState>>>,
    /// One module per context that has used it.
    instances: Mutex<Vec<(Weak<ContextState>, Arc<ModuleState>)>>,
}

/// A kernel of a library, in no context yet.
#[derive(Debug)]
pub(crate) struct KernelState {
    handle: Kernel,
    library: Weak<LibraryState>,
    name: String,
    /// Its function in each context that has used it, by number of the context.
    instances: RwLock<Vec<(u32, Arc<FunctionState>)>>,
    /// Set before it was in a context.
    settings: Mutex<Settings>,
}

impl LibraryState {
    /// The library's module in a context.
    fn module(self: &Arc<Self>, driver: &Driver, context: &Arc<ContextState>) -> Result<Arc<ModuleState>> {
        context.check()?;
        let mut instances = self.instances.lock();
        instances.retain(|(context, _)| context.upgrade().is_some_and(|context| !context.dead()));
        let here =
            |(other, _): &&(Weak<ContextState>, Arc<ModuleState>)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(context));
        if let Some((_, module)) = instances.iter().find(here) {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(ModuleState::new(context, Arc::clone(&self.texts), Some(Arc::downgrade(self))));
        driver.add_module(context, &module);
        instances.push((Arc::downgrade(context), Arc::clone(&module)));
        Ok(module)
    }

    /// No module of the library is loaded any more.
    fn free_managed(&self, driver: &Driver) {
        self.texts.iter().for_each(|text| text.managed.free(&driver.shared));
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().flat_map(|text| text.kernels.iter().map(String::as_str))
    }

    fn kernel(self: &Arc<Self>, driver: &Driver, name: &str) -> Result<Arc<KernelState>> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.iter().find(|kernel| kernel.name == name) {
            return Ok(Arc::clone(kernel));
        }
        if !self.names().any(|known| known == name) {
            return Err(CudaError::NOT_FOUND);
        }
        let kernel = Arc::new(KernelState {
            handle: Kernel(handle::fresh(Tag::Kernel)),
            library: Arc::downgrade(self),
            name: name.to_string(),
            instances: RwLock::default(),
            settings: Mutex::default(),
        });
        driver.kernels.insert(kernel.handle.0, Arc::clone(&kernel));
        kernels.push(Arc::clone(&kernel));
        Ok(kernel)
    }
}

impl KernelState {
    /// The kernel's function in a context.
    pub(crate) fn function(&self, driver: &Driver, context: &Arc<ContextState>) -> Result<Arc<FunctionState>> {
        let id = context.gpu_id.0;
        let found = |instances: &[(u32, Arc<FunctionState>)]| {
            instances.iter().find(|(other, _)| *other == id).map(|(_, function)| Arc::clone(function))
        };
        if let Some(function) = found(&self.instances.read()) {
            return Ok(function);
        }
        let library = self.library.upgrade().ok_or(CudaError::INVALID_HANDLE)?;
        let function = library.module(driver, context)?.function(driver, &self.name)?;
        let mut instances = self.instances.write();
        if found(&instances).is_none() {
            function.apply(&self.settings.lock());
            instances.push((id, Arc::clone(&function)));
        }
        Ok(function)
    }
}

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
        self.kernel(kernel)?.function(self, &self.current()?)
    }

    /// Kernels forget their functions in a context that ends.
    pub(crate) fn forget_instances(&self, context: &Arc<ContextState>) {
        for kernel in self.kernels.all() {
            kernel.instances.write().retain(|(id, _)| *id != context.gpu_id.0);
        }
        for library in self.libraries.all() {
            let gone = |other: &Weak<ContextState>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(context));
            library.instances.lock().retain(|(other, _)| !gone(other));
        }
    }

    /// Takes PTX text or a fatbin. Nothing is compiled before it is used, but with a current context PTX text (from a
    /// program that compiles at run time and wants to see errors here) is loaded at once.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `NO_BINARY_FOR_GPU`, `INVALID_PTX`, `NOT_SUPPORTED`.
    pub fn library_load_data(&self, image: &dyn Image, log: &mut JitLog) -> Result<Library> {
        self.ready()?;
        let texts = Text::of_image(self, image)?;
        let mut first = [0; 4];
        // Containers begin with bytes that no text has.
        let plain = image.read(0, &mut first) && first.is_ascii();
        let library = Arc::new(LibraryState {
            handle: Library(handle::fresh(Tag::Library)),
            texts,
            kernels: Mutex::default(),
            instances: Mutex::default(),
        });
        if plain && let Ok(context) = self.current() {
            let module = library.module(self, &context)?;
            if let Err(error) = module.load_all(log) {
                self.end_module(&module)?;
                library.free_managed(self);
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
        for kernel in state.kernels.lock().drain(..) {
            // Kernels go with their library only.
            let _ = self.kernels.remove(kernel.handle.0);
        }
        let instances: Vec<Arc<ModuleState>> = state.instances.lock().drain(..).map(|(_, module)| module).collect();
        for module in instances {
            // A failed context's error is told by that context's calls.
            let _ = self.end_module(&module);
        }
        state.free_managed(self);
        Ok(())
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`.
    pub fn library_get_kernel(&self, library: Library, name: &str) -> Result<Kernel> {
        Ok(self.library(library)?.kernel(self, name)?.handle)
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
        library.names().take(most).map(|name| Ok(library.kernel(self, name)?.handle)).collect()
    }

    /// The library's module in the current context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn library_get_module(&self, library: Library) -> Result<Module> {
        Ok(self.library(library)?.module(self, &self.current()?)?.handle)
    }

    /// A variable in the current context.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn library_get_global(&self, library: Library, name: &str) -> Result<(DevAddr, u64)> {
        self.library(library)?.module(self, &self.current()?)?.global(name)
    }

    /// A managed variable: one for the host and all contexts. No context need be current.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_HANDLE`; `INVALID_PTX`, `OUT_OF_MEMORY` if it cannot be placed.
    pub fn library_get_managed(&self, library: Library, name: &str) -> Result<(DevAddr, u64)> {
        for text in self.library(library)?.texts.iter() {
            let managed = text.managed.get(&self.shared, &text.ptx, &mut JitLog::default())?;
            if let Some(found) = managed.and_then(|managed| managed.find(name)) {
                return Ok(found);
            }
        }
        Err(CudaError::NOT_FOUND)
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
        let library = self.kernel(kernel)?.library.upgrade().ok_or(CudaError::INVALID_HANDLE)?;
        Ok(library.handle)
    }

    /// Name, mangled.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn kernel_get_name(&self, kernel: Kernel) -> Result<String> {
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
            kernel.function(self, &context)?;
        }
        kernel.settings.lock().set(attribute, value)?;
        for (_, function) in kernel.instances.read().iter() {
            function.set_attribute(attribute, value)?;
        }
        Ok(())
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
