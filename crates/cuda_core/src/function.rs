//! Functions: kernels in a context.

use std::sync::Arc;

use gpu::{KernelInfo, ModuleId, Request};
use parking_lot::Mutex;

use crate::context::ContextState;
use crate::device_attributes::{SHARED_PER_BLOCK, SHARED_PER_BLOCK_OPTIN, THREADS_PER_BLOCK};
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Function, Kernel, Module, Tag};

/// Numbers of `CUfunction_attribute`.
const MAX_THREADS_PER_BLOCK: i32 = 0;
const SHARED_SIZE_BYTES: i32 = 1;
const CONST_SIZE_BYTES: i32 = 2;
const LOCAL_SIZE_BYTES: i32 = 3;
const NUM_REGS: i32 = 4;
const PTX_VERSION: i32 = 5;
const BINARY_VERSION: i32 = 6;
const CACHE_MODE_CA: i32 = 7;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
const PREFERRED_SHARED_MEMORY_CARVEOUT: i32 = 9;
const CLUSTER_SIZE_MUST_BE_SET: i32 = 10;
const REQUIRED_CLUSTER_WIDTH: i32 = 11;
const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
const CLUSTER_SCHEDULING_POLICY_PREFERENCE: i32 = 15;

/// The attributes that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Most dynamic shared memory, bytes; the default if not set.
    max_dynamic: Option<u32>,
    carveout: i32,
    non_portable_clusters: i32,
    cluster_scheduling: i32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_dynamic: None, carveout: -1, non_portable_clusters: 0, cluster_scheduling: 0 }
    }
}

impl Settings {
    /// # Errors
    /// `INVALID_VALUE` for attributes that cannot be set and values that cannot be.
    pub(crate) fn set(&mut self, attribute: i32, value: i32) -> Result<()> {
        let invalid = Err(CudaError::INVALID_VALUE);
        match attribute {
            MAX_DYNAMIC_SHARED_SIZE_BYTES => match u32::try_from(value) {
                Ok(bytes) if bytes <= SHARED_PER_BLOCK_OPTIN => self.max_dynamic = Some(bytes),
                _ => return invalid,
            },
            PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => self.carveout = value,
            NON_PORTABLE_CLUSTER_SIZE_ALLOWED => self.non_portable_clusters = i32::from(value != 0),
            CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => self.cluster_scheduling = value,
            _ => return invalid,
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct FunctionState {
    pub(crate) handle: Function,
    pub(crate) context: Arc<ContextState>,
    pub(crate) module_handle: Module,
    pub(crate) module: ModuleId,
    /// Index in the module.
    pub(crate) kernel: u32,
    pub(crate) info: KernelInfo,
    settings: Mutex<Settings>,
}

impl FunctionState {
    pub(crate) fn new(
        context: &Arc<ContextState>,
        module_handle: Module,
        module: ModuleId,
        kernel: u32,
        info: KernelInfo,
    ) -> FunctionState {
        FunctionState {
            handle: Function(handle::fresh(Tag::Function)),
            context: Arc::clone(context),
            module_handle,
            module,
            kernel,
            info,
            settings: Mutex::default(),
        }
    }

    pub(crate) fn apply(&self, settings: &Settings) {
        *self.settings.lock() = *settings;
    }

    /// Most dynamic shared memory of a launch, bytes.
    pub(crate) fn max_dynamic(&self) -> u32 {
        let set = self.settings.lock().max_dynamic;
        set.unwrap_or_else(|| SHARED_PER_BLOCK.saturating_sub(self.info.shared_bytes))
    }

    /// Most threads of a block.
    pub(crate) fn max_threads(&self) -> u32 {
        match self.info.max_threads {
            0 => THREADS_PER_BLOCK,
            some => some.min(THREADS_PER_BLOCK),
        }
    }

    /// Offset and size of a parameter.
    pub(crate) fn param(&self, index: usize) -> Result<(u64, u64)> {
        let &(offset, bytes) = self.info.params.get(index).ok_or(CudaError::INVALID_VALUE)?;
        Ok((offset.into(), bytes.into()))
    }

    pub(crate) fn attribute(&self, attribute: i32) -> Result<i32> {
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let settings = *self.settings.lock();
        Ok(match attribute {
            MAX_THREADS_PER_BLOCK => number(self.max_threads()),
            SHARED_SIZE_BYTES => number(self.info.shared_bytes),
            CONST_SIZE_BYTES => number(self.info.const_bytes),
            LOCAL_SIZE_BYTES => number(self.info.local_bytes),
            NUM_REGS => number(self.info.registers),
            PTX_VERSION => number(self.info.target),
            BINARY_VERSION => {
                let [major, minor] = self.context.shared.gpu.properties().compute_capability;
                number(major * 10 + minor)
            }
            CACHE_MODE_CA => 0,
            MAX_DYNAMIC_SHARED_SIZE_BYTES => number(self.max_dynamic()),
            PREFERRED_SHARED_MEMORY_CARVEOUT => settings.carveout,
            CLUSTER_SIZE_MUST_BE_SET | REQUIRED_CLUSTER_WIDTH..=13 => 0,
            NON_PORTABLE_CLUSTER_SIZE_ALLOWED => settings.non_portable_clusters,
            CLUSTER_SCHEDULING_POLICY_PREFERENCE => settings.cluster_scheduling,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    pub(crate) fn set_attribute(&self, attribute: i32, value: i32) -> Result<()> {
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let both = i64::from(self.info.shared_bytes) + i64::from(value);
            if both > i64::from(SHARED_PER_BLOCK_OPTIN) {
                return Err(CudaError::INVALID_VALUE);
            }
        }
        self.settings.lock().set(attribute, value)
    }
}

impl Driver {
    /// A function by handle; a kernel's handle means its function in the current context.
    pub(crate) fn function(&self, function: Function) -> Result<Arc<FunctionState>> {
        self.ready()?;
        if Driver::is_kernel(function.0) {
            return self.function_of(Kernel(function.0));
        }
        let found = self.functions.get(function.0)?;
        found.context.check()?;
        Ok(found)
    }

    /// A function, or a kernel's function, of a context that has been checked.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none of the context's.
    pub(crate) fn function_in(&self, context: &Arc<ContextState>, function: Function) -> Result<Arc<FunctionState>> {
        if Driver::is_kernel(function.0) {
            return self.kernel(Kernel(function.0))?.function(self, context);
        }
        let found = self.functions.get(function.0)?;
        if Arc::ptr_eq(&found.context, context) { Ok(found) } else { Err(CudaError::INVALID_HANDLE) }
    }

    /// A `CUfunction_attribute`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown ones, `INVALID_HANDLE`.
    pub fn func_get_attribute(&self, attribute: i32, function: Function) -> Result<i32> {
        self.function(function)?.attribute(attribute)
    }

    /// Sets a `CUfunction_attribute`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown ones and values that cannot be, `INVALID_HANDLE`.
    pub fn func_set_attribute(&self, function: Function, attribute: i32, value: i32) -> Result<()> {
        self.function(function)?.set_attribute(attribute, value)
    }

    /// Preferred cache configuration: without effect here.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, `INVALID_HANDLE`.
    pub fn func_set_cache_config(&self, function: Function, config: u32) -> Result<()> {
        self.function(function)?;
        if config > 3 { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
    }

    /// Shared memory bank size: without effect, as on every GPU since Maxwell.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, `INVALID_HANDLE`.
    pub fn func_set_shared_mem_config(&self, function: Function, config: u32) -> Result<()> {
        self.function(function)?;
        if config > 2 { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
    }

    /// The function's module.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn func_get_module(&self, function: Function) -> Result<Module> {
        Ok(self.function(function)?.module_handle)
    }

    /// Name, mangled.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn func_get_name(&self, function: Function) -> Result<String> {
        Ok(self.function(function)?.info.name.clone())
    }

    /// Offset and size of a parameter.
    ///
    /// # Errors
    /// `INVALID_VALUE` behind the last, `INVALID_HANDLE`.
    pub fn func_get_param_info(&self, function: Function, index: usize) -> Result<(u64, u64)> {
        self.function(function)?.param(index)
    }

    /// Number of parameters.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn func_get_param_count(&self, function: Function) -> Result<u64> {
        Ok(self.function(function)?.info.params.len() as u64)
    }

    /// `CUfunctionLoadingState`: a function exists once its text is loaded.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn func_is_loaded(&self, function: Function) -> Result<u32> {
        self.function(function).map(|_| 1)
    }

    /// Compiles now what the first launch would.
    ///
    /// # Errors
    /// `INVALID_PTX`, `NOT_SUPPORTED`, `INVALID_HANDLE`.
    pub fn func_load(&self, function: Function) -> Result<()> {
        let function = self.function(function)?;
        let (module, kernel) = (function.module, function.kernel);
        self.shared.request(Request::PrepareKernel { module, kernel }).map(|_| ())
    }
}
