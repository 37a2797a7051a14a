//! The process-wide object: the tables of handles, and the way from a handle to its object.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{Gpu, Properties};
use parking_lot::Mutex;

use crate::context::ContextState;
use crate::copy_3d::Staging;
use crate::error::{CudaError, Result};
use crate::event::EventState;
use crate::function::FunctionState;
use crate::handle::{self, Context, Device, Event, MemPool, Stream, Table};
use crate::library::{KernelState, LibraryState};
use crate::link::LinkState;
use crate::managed::Advices;
use crate::module::ModuleState;
use crate::pool::PoolState;
use crate::primary::Primary;
use crate::shared::Shared;
use crate::stream::StreamState;
use crate::types::HostServices;
use crate::vmm::{Mappings, PhysicalState};

/// CUDA over one GPU, for one process.
#[derive(Debug)]
pub struct Driver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) contexts: Table<ContextState>,
    pub(crate) streams: Table<StreamState>,
    pub(crate) events: Table<EventState>,
    pub(crate) modules: Table<ModuleState>,
    pub(crate) functions: Table<FunctionState>,
    pub(crate) libraries: Table<LibraryState>,
    pub(crate) kernels: Table<KernelState>,
    pub(crate) pools: Table<PoolState>,
    pub(crate) physicals: Table<PhysicalState>,
    pub(crate) links: Table<LinkState>,
    pub(crate) mappings: Mappings,
    pub(crate) staging: Staging,
    pub(crate) advices: Advices,
    /// The default pool and the current one.
    pub(crate) default_pools: Mutex<(MemPool, MemPool)>,
    pub(crate) primary: Primary,
    initialized: AtomicBool,
}

impl Driver {
    /// A driver over `gpu`. Nothing is asked of it before the first context.
    #[must_use]
    pub fn new(gpu: Arc<dyn Gpu>, host: HostServices) -> Driver {
        let shared = Arc::new(Shared::new(gpu, host));
        let primary = Primary::new();
        let driver = Driver {
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            pools: Table::default(),
            physicals: Table::default(),
            links: Table::default(),
            mappings: Mappings::default(),
            staging: Staging::default(),
            advices: Advices::default(),
            default_pools: Mutex::default(),
            initialized: AtomicBool::new(false),
            primary,
            shared,
        };
        driver.make_default_pool();
        driver.rest_primary();
        driver
    }

    /// What the GPU is.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        self.shared.gpu.properties()
    }

    /// To be called when the process ends: later calls return `DEINITIALIZED`, none waits.
    pub fn shut_down(&self) {
        self.shared.shut_down();
    }

    /// `cuInit`. `flags` must be 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other flags.
    pub fn init(&self, flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.shared.up()?;
        self.initialized.store(true, Ordering::Release);
        Ok(())
    }

    /// # Errors
    /// `NOT_INITIALIZED` before `init`; `DEINITIALIZED` and `DEVICE_UNAVAILABLE` at the end.
    pub(crate) fn ready(&self) -> Result<()> {
        if !self.initialized.load(Ordering::Acquire) {
            return Err(CudaError::NOT_INITIALIZED);
        }
        self.shared.up()
    }

    /// # Errors
    /// `INVALID_DEVICE` for other ordinals than 0.
    pub(crate) fn device(&self, device: Device) -> Result<()> {
        self.ready()?;
        if device.0 == 0 { Ok(()) } else { Err(CudaError::INVALID_DEVICE) }
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
        found.context.check()?;
        Ok(found)
    }

    /// A stream by handle for work of a context, which has been checked.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none of the context's.
    pub(crate) fn stream_in(&self, context: &Arc<ContextState>, stream: Stream) -> Result<Arc<StreamState>> {
        match stream.0 {
            0 | 1 => context.legacy(),
            2 => self.per_thread_stream(context),
            value => {
                let found = self.streams.get(value)?;
                if Arc::ptr_eq(&found.context, context) { Ok(found) } else { Err(CudaError::INVALID_HANDLE) }
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
