//! The process-wide object: the tables of handles, and the way from a handle to its object.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{Gpu, Properties};
use parking_lot::Mutex;

use crate::code::library::{KernelState, LibraryState};
use crate::code::linker::LinkState;
use crate::code::module::CodeTables;
use crate::context::current::with_stack;
use crate::context::green::GreenState;
use crate::context::state::ContextState;
use crate::devices::{DeviceState, Devices};
use crate::error::{CudaError, Result};
use crate::graph::Graphs;
use crate::handle::{self, Context, Device, Event, Stream, Table};
use crate::memory::advice::Advices;
use crate::memory::between_processes::Opened;
use crate::memory::handles::HandleKey;
use crate::memory::memories::Memories;
use crate::memory::virtual_memory::VirtualMemory;
use crate::resources::Provision;
use crate::textures::objects::ObjectTable;
use crate::textures::references::References;
use crate::values::{HostServices, MemoryWatcher};
use crate::work::event::EventState;
use crate::work::stream::StreamState;

/// CUDA over the GPUs of one process.
#[derive(Debug)]
pub struct Driver {
    pub(crate) devices: Devices,
    pub(crate) memory: Arc<Memories>,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) advices: Advices,
    pub(crate) contexts: Table<ContextState>,
    pub(crate) greens: Table<GreenState>,
    /// What green contexts are to have.
    pub(crate) descs: Table<Provision>,
    pub(crate) streams: Table<StreamState>,
    pub(crate) events: Table<EventState>,
    pub(crate) code: CodeTables,
    pub(crate) libraries: Table<LibraryState>,
    pub(crate) kernels: Table<KernelState>,
    pub(crate) links: Table<LinkState>,
    pub(crate) graphs: Arc<Graphs>,
    pub(crate) objects: ObjectTable,
    pub(crate) references: References,
    /// What of other processes is open.
    pub(crate) opened: Mutex<Opened>,
    /// What handles for other processes are signed with.
    pub(crate) key: HandleKey,
    initialized: AtomicBool,
}

impl Driver {
    /// A driver over `gpus`, whose ordinals are their places in the list. Nothing is asked of one before its first context.
    #[must_use]
    pub fn new(gpus: Vec<Arc<dyn Gpu>>, host: HostServices) -> Driver {
        let (devices, memory) = Devices::new(gpus, host);
        let driver = Driver {
            virtual_memory: VirtualMemory::new(&memory),
            advices: Advices::new(memory.count()),
            contexts: Table::default(),
            greens: Table::default(),
            descs: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            code: CodeTables::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            links: Table::default(),
            graphs: Arc::default(),
            objects: ObjectTable::default(),
            references: References::default(),
            opened: Mutex::default(),
            key: HandleKey::default(),
            initialized: AtomicBool::new(false),
            memory,
            devices,
        };
        // For threads that make a primary context current before anybody retains it.
        driver.devices.all().iter().for_each(|device| driver.deactivate_primary(device));
        driver
    }

    /// From now on launches, copies and fills return when the GPU has done them, so that errors show where they are made
    /// (`CUDA_LAUNCH_BLOCKING`).
    pub fn be_immediate(&self) {
        self.devices.all().iter().for_each(|device| device.core.link.be_immediate());
    }

    /// From now on `watcher` is told which memory comes and goes, and allocations do not touch: who runs over the end of one reaches
    /// none. To be called before the first allocation, and with [`Driver::be_immediate`].
    pub fn watch_memory(&self, watcher: Arc<dyn MemoryWatcher>) {
        self.memory.space().table.watch(watcher);
    }

    /// What the devices are, by ordinal.
    pub fn properties(&self) -> impl Iterator<Item = &Properties> {
        self.devices.all().iter().map(DeviceState::properties)
    }

    /// To be called when the process ends: later calls return `DEINITIALIZED`, none waits.
    pub fn shut_down(&self) {
        self.devices.all().iter().for_each(|device| device.core.link.shut_down());
    }

    /// `cuInit`. `flags` must be 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other flags, `NO_DEVICE`.
    pub fn init(&self, flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.devices.usable()?;
        self.initialized.store(true, Ordering::Release);
        Ok(())
    }

    /// # Errors
    /// `NOT_INITIALIZED` before `init`; `DEINITIALIZED` at the end; `DEVICE_UNAVAILABLE` if all devices are lost.
    pub(crate) fn ready(&self) -> Result<()> {
        if !self.initialized.load(Ordering::Acquire) {
            return Err(CudaError::NOT_INITIALIZED);
        }
        self.devices.usable()
    }

    /// # Errors
    /// `INVALID_DEVICE` for ordinals of no device; `DEVICE_UNAVAILABLE` if it is lost.
    pub(crate) fn device(&self, device: Device) -> Result<&DeviceState> {
        self.ready()?;
        self.devices.get(device)
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, context: &ContextState) -> &DeviceState {
        self.devices.of(&context.core.gpu)
    }

    /// The current context, whatever its health; its device is there.
    pub(crate) fn current_any(&self) -> Result<Arc<ContextState>> {
        let context = self.top()?;
        context.core.link().usable()?;
        Ok(context)
    }

    /// The current context, whatever its health, and whether its device is there or not.
    fn top(&self) -> Result<Arc<ContextState>> {
        self.ready()?;
        let top = with_stack(|stack| stack.last().cloned())?.ok_or(CudaError::INVALID_CONTEXT)?;
        if !top.dead() {
            return Ok(top);
        }
        let again = self.contexts.get(top.handle.0).map_err(|_| CudaError::CONTEXT_IS_DESTROYED)?;
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
        let context = self.top()?;
        context.check()?;
        Ok(context)
    }

    /// A context by handle; null means the current one. It need not be alive and well.
    pub(crate) fn context(&self, context: Context) -> Result<Arc<ContextState>> {
        self.ready()?;
        if context.is_null() {
            return self.current_any();
        }
        let found = self.contexts.get(context.0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        found.core.link().usable()?;
        Ok(found)
    }

    /// A stream to be given work by handle, special handles included, its context in good health.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `STREAM_CAPTURE_UNSUPPORTED` if it is being captured, and what it is asked for cannot be;
    /// `STREAM_CAPTURE_IMPLICIT` for the legacy stream while one is that it would have to wait for.
    pub(crate) fn stream(&self, stream: Stream) -> Result<Arc<StreamState>> {
        let found = self.any_stream(stream)?;
        self.not_captured(&found)?;
        Ok(found)
    }

    /// A stream by handle, special handles included, its context in good health; it may be captured.
    pub(crate) fn any_stream(&self, stream: Stream) -> Result<Arc<StreamState>> {
        if stream.0 <= Stream::PER_THREAD.0 {
            return self.stream_in(&self.current()?, stream);
        }
        self.ready()?;
        let found = self.streams.get(stream.0)?;
        found.core.check()?;
        found.queues.attached()?;
        Ok(found)
    }

    /// A stream by handle for work of a context, which has been checked.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is none of the context's, and for the thread's default stream in a green context; `STREAM_DETACHED` if
    /// its green context is gone.
    pub(crate) fn stream_in(&self, context: &Arc<ContextState>, stream: Stream) -> Result<Arc<StreamState>> {
        match stream.0 {
            0 | 1 => Ok(Arc::clone(&context.legacy)),
            2 if context.queues.part().is_some() => Err(CudaError::INVALID_HANDLE),
            2 => StreamState::per_thread(&context.queues, || {
                let graphs = Arc::downgrade(&self.graphs);
                Box::new(move |stream| graphs.upgrade().iter().for_each(|graphs| graphs.forget_captured(stream)))
            }),
            value => {
                let found = self.streams.get(value)?;
                if !Arc::ptr_eq(&found.core, &context.core) {
                    return Err(CudaError::INVALID_HANDLE);
                }
                found.queues.attached()?;
                Ok(found)
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
