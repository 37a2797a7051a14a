//! Functions: kernels in a context.

use std::sync::Arc;

use crate::code::function::FunctionState;
use crate::context_core::ContextCore;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Function, Kernel, Module};

impl Driver {
    /// A function by handle; a kernel's handle means its function in the current context.
    pub(crate) fn function(&self, function: Function) -> Result<Arc<FunctionState>> {
        self.ready()?;
        if Driver::is_kernel(function.0) {
            return self.function_of(Kernel(function.0));
        }
        let found = self.code.functions.get(function.0)?;
        found.core.check()?;
        Ok(found)
    }

    /// A function, or a kernel's function, of a context that has been checked.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none of the context's.
    pub(crate) fn function_in(&self, context: &Arc<ContextCore>, function: Function) -> Result<Arc<FunctionState>> {
        if Driver::is_kernel(function.0) {
            return self.kernel(Kernel(function.0))?.function(&self.code, context);
        }
        let found = self.code.functions.get(function.0)?;
        if Arc::ptr_eq(&found.core, context) { Ok(found) } else { Err(CudaError::INVALID_HANDLE) }
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
    /// `INVALID_VALUE` for null, `INVALID_HANDLE`.
    pub fn func_get_name(&self, function: Function) -> Result<String> {
        if function.is_null() {
            return Err(CudaError::INVALID_VALUE);
        }
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

    /// Finds out now what the first launch would: whether the kernel can run here.
    ///
    /// # Errors
    /// `INVALID_PTX`, `NOT_SUPPORTED`, `INVALID_HANDLE`.
    pub fn func_load(&self, function: Function) -> Result<()> {
        self.function(function)?.prepare().map(drop)
    }
}
