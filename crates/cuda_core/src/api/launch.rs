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
use crate::work::event::EventState;
use crate::work::launch::{block, block_on, command, launch};
use crate::work::stream::StreamState;

/// What comes into any of the streams is behind what is in all of them.
fn meet(streams: &[Arc<StreamState>]) -> Result<()> {
    let mut reached = Vec::new();
    for stream in streams {
        let event = EventState::new(&stream.core, false);
        event.record(stream)?;
        reached.push(event);
    }
    let others = |at: usize| reached.iter().enumerate().filter(move |(of, _)| *of != at);
    streams.iter().enumerate().try_for_each(|(at, stream)| others(at).try_for_each(|(_, event)| event.wait_in(stream)))
}

impl Driver {
    /// Launches a kernel; `function` may be a [`Kernel`](crate::Kernel)'s value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for shapes that no GPU of this architecture or not the kernel takes and for missing parameters,
    /// `INVALID_PTX` and `NOT_SUPPORTED` for kernels that cannot run here, `COOPERATIVE_LAUNCH_TOO_LARGE`,
    /// `INVALID_CLUSTER_SIZE`, `INVALID_HANDLE`; the context's error.
    pub fn launch_kernel(&self, function: Function, config: &LaunchConfig, params: Params<'_>) -> Result<()> {
        let context = self.current()?;
        let (given, function) = (function, self.function_in(&context.core, function)?);
        if let Some(capture) = self.captured(config.stream)? {
            return capture.or_invalid(|| {
                if !Arc::ptr_eq(&capture.stream.core, &context.core) {
                    return Err(CudaError::INVALID_HANDLE);
                }
                let block = block(&function, config, params)?;
                let kernel = KernelWork::new(given, &function, *config, block, Vec::new());
                capture.add(Work::Kernel(Arc::new(kernel)))?;
                if config.event.is_null() { Ok(()) } else { capture.record(&*self.event(config.event)?) }
            });
        }
        let stream = self.stream_in(&context, config.stream)?;
        self.not_captured(&stream)?;
        launch(&function, &stream, config, params)?;
        if config.event.is_null() { Ok(()) } else { self.event(config.event)?.record(&stream) }
    }

    /// Launches a kernel on each of several devices, cooperatively; behind what was in all of their streams before, and before what
    /// comes into any of them, unless `before` and `behind` say otherwise.
    ///
    /// # Errors
    /// `INVALID_VALUE` for none, two on one device, and shapes that differ; `INVALID_HANDLE` for default
    /// streams and functions of other contexts than their streams'; as `launch_kernel`. None runs where one is refused, but for what is wrong with its GPU.
    pub fn launch_on_several_devices(
        &self,
        launches: &mut [(Function, LaunchConfig, Params<'_>)],
        [before, behind]: [bool; 2],
    ) -> Result<()> {
        self.ready()?;
        let shape = |config: &LaunchConfig| (config.grid, config.block, config.shared_bytes);
        let first = launches.first().ok_or(CudaError::INVALID_VALUE)?;
        let first = shape(&first.1);
        if launches.iter().any(|(_, config, _)| shape(config) != first) {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut streams: Vec<Arc<StreamState>> = Vec::new();
        let mut functions = Vec::new();
        for (function, config, _) in &*launches {
            if config.stream.0 <= Stream::PER_THREAD.0 {
                return Err(CudaError::INVALID_HANDLE);
            }
            let stream = self.stream(config.stream)?;
            if streams.iter().any(|other| Arc::ptr_eq(&other.core.gpu, &stream.core.gpu)) {
                return Err(CudaError::INVALID_VALUE);
            }
            functions.push(self.function_in(&stream.core, *function)?);
            streams.push(stream);
        }
        let mut blocks = Vec::new();
        for ((function, stream), (_, config, params)) in functions.iter().zip(&streams).zip(launches) {
            let config = LaunchConfig { cooperative: true, ..*config };
            blocks.push((config, block_on(function, &config, stream.queues.multiprocessors(), params.again())?));
        }
        let ready = functions.iter().zip(&blocks).map(|(function, (config, block))| command(function, config, block));
        let ready: Vec<_> = ready.collect::<Result<_>>()?;
        if before {
            meet(&streams)?;
        }
        streams.iter().zip(ready).try_for_each(|(stream, launch)| stream.submit(&[launch]))?;
        if behind { meet(&streams) } else { Ok(()) }
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
