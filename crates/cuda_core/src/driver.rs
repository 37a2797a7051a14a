//! The process-wide object: the tables of handles, and the way from a handle to its object.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{Gpu, Properties};

use crate::code::library::{KernelState, LibraryState};
use crate::code::linker::LinkState;
use crate::code::module::CodeTables;
use crate::context::current::with_stack;
use crate::context::primary::Primary;
use crate::context::state::ContextState;
use crate::context_core::Process;
use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;
use crate::handle::{self, Context, Device, Event, Stream, Table};
use crate::memory::advice::Advices;
use crate::memory::heap::Memory;
use crate::memory::pool::Pools;
use crate::memory::virtual_memory::VirtualMemory;
use crate::values::HostServices;
use crate::work::copy_lines::Staging;
use crate::work::event::EventState;
use crate::work::stream::StreamState;

/// CUDA over one GPU, for one process.
#[derive(Debug)]
pub struct Driver {
    pub(crate) process: Arc<Process>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) pools: Arc<Pools>,
    pub(crate) advices: Advices,
    pub(crate) staging: Staging,
    pub(crate) contexts: Table<ContextState>,
    pub(crate) primary: Primary,
    pub(crate) streams: Table<StreamState>,
    pub(crate) events: Table<EventState>,
    pub(crate) code: CodeTables,
    pub(crate) libraries: Table<LibraryState>,
    pub(crate) kernels: Table<KernelState>,
    pub(crate) links: Table<LinkState>,
    initialized: AtomicBool,
}

impl Driver {
    /// A driver over `gpu`. Nothing is asked of it before the first context.
    #[must_use]
    pub fn new(gpu: Arc<dyn Gpu>, host: HostServices) -> Driver {
        let link = Arc::new(GpuLink::new(gpu));
        let process = Arc::new(Process::new(&link, host));
        let memory = Arc::clone(&process.memory);
        let driver = Driver {
            virtual_memory: VirtualMemory::new(&link, &memory),
            pools: Pools::new(&link, &memory, &process.slots),
            advices: Advices::default(),
            staging: Staging::default(),
            contexts: Table::default(),
            primary: Primary::new(),
            streams: Table::default(),
            events: Table::default(),
            code: CodeTables::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            links: Table::default(),
            initialized: AtomicBool::new(false),
            memory,
            process,
        };
        // For threads that make the primary context current before anybody retains it.
        let primary = driver.primary.handle;
        driver.contexts.insert(primary.0, ContextState::inactive(&driver.process, primary));
        driver
    }

    /// From now on launches, copies and fills return when the GPU has done them, so that errors show where they are made
    /// (`CUDA_LAUNCH_BLOCKING`).
    pub fn be_immediate(&self) {
        self.process.link.be_immediate();
    }

    /// What the GPU is.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        self.process.link.properties()
    }

    /// To be called when the process ends: later calls return `DEINITIALIZED`, none waits.
    pub fn shut_down(&self) {
        self.process.link.shut_down();
    }

    /// `cuInit`. `flags` must be 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other flags.
    pub fn init(&self, flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.process.link.usable()?;
        self.initialized.store(true, Ordering::Release);
        Ok(())
    }

    /// # Errors
    /// `NOT_INITIALIZED` before `init`; `DEINITIALIZED` and `DEVICE_UNAVAILABLE` at the end.
    pub(crate) fn ready(&self) -> Result<()> {
        if !self.initialized.load(Ordering::Acquire) {
            return Err(CudaError::NOT_INITIALIZED);
        }
        self.process.link.usable()
    }

    /// # Errors
    /// `INVALID_DEVICE` for other ordinals than 0.
    pub(crate) fn device(&self, device: Device) -> Result<()> {
        self.ready()?;
        if device.0 == 0 { Ok(()) } else { Err(CudaError::INVALID_DEVICE) }
    }

    /// The current context, whatever its health.
    pub(crate) fn current_any(&self) -> Result<Arc<ContextState>> {
        self.ready()?;
        let top = with_stack(|stack| stack.last().cloned())?.ok_or(CudaError::INVALID_CONTEXT)?;
        if !top.dead() {
            return Ok(top);
        }
        let again = self.contexts.get(top.core.handle.0).map_err(|_| CudaError::CONTEXT_IS_DESTROYED)?;
        if !again.dead() {
            with_stack(|stack| stack.last_mut().map(|last| *last = Arc::clone(&again)))?;
        }
        Ok(again)
    }

    /// The current context, alive and well.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if there is none; else what is wrong with it.
    pub(crate) fn current(&self) -> Result<Arc<ContextState>> {
        let context = self.current_any()?;
        context.check()?;
        Ok(context)
    }

    /// A context by handle; null means the current one. It need not be alive and well.
    pub(crate) fn context(&self, context: Context) -> Result<Arc<ContextState>> {
        self.ready()?;
        if context.is_null() {
            return self.current_any();
        }
        self.contexts.get(context.0).map_err(|_| CudaError::INVALID_CONTEXT)
    }

    /// A stream by handle, special handles included, its context in good health.
    pub(crate) fn stream(&self, stream: Stream) -> Result<Arc<StreamState>> {
        if stream.0 <= Stream::PER_THREAD.0 {
            return self.stream_in(&self.current()?, stream);
        }
        self.ready()?;
        let found = self.streams.get(stream.0)?;
        found.core.check()?;
        Ok(found)
    }

    /// A stream by handle for work of a context, which has been checked.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none of the context's.
    pub(crate) fn stream_in(&self, context: &Arc<ContextState>, stream: Stream) -> Result<Arc<StreamState>> {
        match stream.0 {
            0 | 1 => Ok(Arc::clone(&context.legacy)),
            2 => StreamState::per_thread(&context.queues),
            value => {
                let found = self.streams.get(value)?;
                if Arc::ptr_eq(&found.core, &context.core) { Ok(found) } else { Err(CudaError::INVALID_HANDLE) }
            }
        }
    }

    pub(crate) fn event(&self, event: Event) -> Result<Arc<EventState>> {
        self.ready()?;
        self.events.get(event.0)
    }

    /// True if `value` was made for a kernel of a library.
    pub(crate) fn is_kernel(value: u64) -> bool {
        handle::is(handle::Tag::Kernel, value)
    }
}
