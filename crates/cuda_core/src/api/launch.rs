//! Launches, of kernels and of functions of the program.
//!
//! The way of a launch: two handles looked up, limits checked, parameters copied into a block on the stack, one command
//! submitted. Nothing is allocated unless the parameters are many.

use std::sync::Arc;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::node::{KernelWork, Work};
use crate::handle::{Function, Stream};
use crate::values::{HostCall, LaunchConfig, Params};
use crate::work::launch::{block, launch};

impl Driver {
    /// Launches a kernel; `function` may be a [`Kernel`](crate::Kernel)'s value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for shapes that no GPU of this architecture or not the kernel takes and for missing parameters,
    /// `INVALID_PTX` and `NOT_SUPPORTED` for kernels that cannot run here, `COOPERATIVE_LAUNCH_TOO_LARGE`,
    /// `INVALID_CLUSTER_SIZE`, `INVALID_HANDLE`; the context's error.
    pub fn launch_kernel(&self, function: Function, config: &LaunchConfig, params: Params<'_>) -> Result<()> {
        let context = self.current()?;
        let (given, function) = (function, self.function_in(&context, function)?);
        if let Some(capture) = self.captured(config.stream)? {
            if !Arc::ptr_eq(&capture.stream.core, &context.core) {
                return Err(CudaError::INVALID_HANDLE);
            }
            let block = block(&function, config, params)?;
            let kernel = KernelWork::new(given, &function, *config, block, Vec::new());
            capture.add(Work::Kernel(Arc::new(kernel)))?;
            return if config.event.is_null() { Ok(()) } else { capture.record(&*self.event(config.event)?) };
        }
        let stream = self.stream_in(&context, config.stream)?;
        self.not_captured(&stream)?;
        launch(&function, &stream, config, params)?;
        if config.event.is_null() { Ok(()) } else { self.event(config.event)?.record(&stream) }
    }

    /// Runs a function in stream order; not if the context fails before.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error; `OPERATING_SYSTEM` if there can be no thread for it.
    pub fn launch_host_func(&self, stream: Stream, function: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.stream(stream)?.run_on_host(Box::new(move |result: Result<()>| {
            if result.is_ok() {
                function();
            }
        }))
    }

    /// Records a function, if the stream is being captured; else it is for `launch_host_func`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_host_func(&self, stream: Stream, function: impl FnOnce() -> HostCall) -> Result<bool> {
        let Some(capture) = self.captured(stream)? else { return Ok(false) };
        capture.add(Work::Host(function()))?;
        Ok(true)
    }

    /// Runs a callback in stream order, with the context's error if it failed.
    ///
    /// # Errors
    /// As `launch_host_func`.
    pub fn stream_add_callback(&self, stream: Stream, callback: Box<dyn FnOnce(Result<()>) + Send>) -> Result<()> {
        self.stream(stream)?.run_on_host(callback)
    }
}
