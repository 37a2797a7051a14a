//! Contexts, and the calling thread's stack of them.
//!
//! ```text
//!            first use            error of asynchronous work
//! created ─────────────► on GPU ─────────────────────────────► failed: every call returns the error
//!    └──────── destroy ────┴───────────── destroy ───────────────┴──► dead: CONTEXT_IS_DESTROYED
//! ```
//! The primary context's handle outlives its states: while nobody retains it, the table holds a dead state for it, which a
//! thread may make current already; a call then finds the live one once there is one.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use gpu::{ContextError, ContextId, Request};
use parking_lot::{Mutex, RwLock};

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Context, Device, Event, Tag};
use crate::limits::Limits;
use crate::module::ModuleState;
use crate::print_fifo::PrintFifo;
use crate::shared::Shared;
use crate::stream::{Kind, StreamState};

/// Flags a context may have: scheduling, mapped host memory, local memory resizing, dumps, synchronous copies.
const FLAGS: u32 = 0xFF;

#[derive(Debug)]
pub(crate) struct ContextState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Context,
    pub(crate) gpu_id: ContextId,
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    /// Code of the error that sticks, or 0.
    error: AtomicU32,
    dead: AtomicBool,
    uses: AtomicU32,
    cache_config: AtomicU32,
    shared_config: AtomicU32,
    pub(crate) limits: Mutex<Limits>,
    /// Empty once dead: streams refer to their context.
    legacy: RwLock<Option<Arc<StreamState>>>,
    /// Every stream, the default ones too, until destroyed.
    pub(crate) streams: Mutex<Vec<Arc<StreamState>>>,
    /// Destroyed streams whose work goes on.
    pub(crate) fading: Mutex<Vec<Arc<StreamState>>>,
    /// Submissions to blocking streams, for the legacy stream to know of.
    pub(crate) blocking_epoch: AtomicU64,
    pub(crate) modules: Mutex<Vec<Arc<ModuleState>>>,
    /// What exists on the GPU once a queue is needed; guards its making.
    on_gpu: Mutex<Option<PrintFifo>>,
    exists: AtomicBool,
}

impl ContextState {
    pub(crate) fn new(shared: &Arc<Shared>, handle: Context, primary: bool, flags: u32) -> Arc<ContextState> {
        let context = Arc::new(ContextState {
            shared: Arc::clone(shared),
            handle,
            gpu_id: ContextId(shared.id()),
            primary,
            flags: AtomicU32::new(flags),
            error: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            uses: AtomicU32::new(1),
            cache_config: AtomicU32::new(0),
            shared_config: AtomicU32::new(1),
            limits: Mutex::default(),
            legacy: RwLock::new(None),
            streams: Mutex::default(),
            fading: Mutex::default(),
            blocking_epoch: AtomicU64::new(0),
            modules: Mutex::default(),
            on_gpu: Mutex::new(None),
            exists: AtomicBool::new(false),
        });
        let legacy = StreamState::new(&context, Kind::Legacy, 0, 0);
        context.streams.lock().push(Arc::clone(&legacy));
        *context.legacy.write() = Some(legacy);
        context
    }

    /// A state that stands for a primary context nobody retains.
    pub(crate) fn resting(shared: &Arc<Shared>, handle: Context) -> Arc<ContextState> {
        let context = ContextState::new(shared, handle, true, 0);
        context.dead.store(true, Ordering::Release);
        context.streams.lock().clear();
        *context.legacy.write() = None;
        context
    }

    pub(crate) fn legacy(&self) -> Result<Arc<StreamState>> {
        self.legacy.read().clone().ok_or(CudaError::CONTEXT_IS_DESTROYED)
    }

    pub(crate) fn dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn failed(&self) -> bool {
        self.error.load(Ordering::Acquire) != 0
    }

    pub(crate) fn on_gpu(&self) -> bool {
        self.exists.load(Ordering::Acquire)
    }

    /// The first error sticks.
    pub(crate) fn fail(&self, error: &ContextError) {
        let code = CudaError::from(error).code();
        if self.error.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::error!(context = self.gpu_id.0, ?error, "context failed");
        }
    }

    /// # Errors
    /// The error that sticks, or `CONTEXT_IS_DESTROYED`.
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.look_for_errors();
        if self.dead() {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        match CudaError::from_code(self.error.load(Ordering::Acquire)) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Makes the context exist on the GPU: at the first queue, so that limits can be set before.
    pub(crate) fn ensure_on_gpu(self: &Arc<Self>) -> Result<()> {
        if self.on_gpu() {
            return Ok(());
        }
        let mut fifo = self.on_gpu.lock();
        if self.on_gpu() {
            return Ok(());
        }
        if self.dead() {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        let limits = *self.limits.lock();
        let made = PrintFifo::new(self, limits.printf_bytes)?;
        // A tenant with next to no memory can still run kernels that do not call malloc.
        let heap = self.shared.memory.alloc_internal(&self.shared, self.gpu_id, limits.heap_bytes).ok();
        self.shared.request(Request::CreateContext {
            id: self.gpu_id,
            printf: made.address(),
            heap: heap.unwrap_or(0),
            heap_bytes: if heap.is_some() { limits.heap_bytes } else { 0 },
        })?;
        *fifo = Some(made);
        self.shared.add_context(self);
        self.exists.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for all work.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.check()?;
        let mut result = Ok(());
        for stream in self.all_streams() {
            result = result.and(stream.wait_tail(None));
        }
        self.reap();
        self.print();
        result.and(self.check())
    }

    /// Streams with or without a handle.
    pub(crate) fn all_streams(&self) -> Vec<Arc<StreamState>> {
        let alive = self.streams.lock();
        let fading = self.fading.lock();
        alive.iter().chain(fading.iter()).cloned().collect()
    }

    /// True if no work is under way.
    pub(crate) fn idle(&self) -> bool {
        self.streams.lock().iter().all(|stream| stream.idle()) && self.fading.lock().iter().all(|stream| stream.idle())
    }

    /// Hands over what kernels have printed, if nothing runs that may be printing.
    pub(crate) fn print(&self) {
        if let Some(mut fifo) = self.on_gpu.try_lock()
            && let Some(fifo) = fifo.as_mut()
            && fifo.pending(&self.shared)
            && (self.failed() || self.idle())
        {
            fifo.drain(&self.shared);
        }
    }

    /// Destroys the queues of destroyed streams whose work has completed.
    pub(crate) fn reap(&self) {
        self.fading.lock().retain(|stream| !stream.try_remove());
    }

    /// Ends the context: stops its work, gives back what it has.
    pub(crate) fn destroy(&self) {
        if self.dead() {
            return;
        }
        if !self.failed() {
            // What is nearly done may finish and print; what runs for ever is stopped.
            let patience = Duration::from_secs(2);
            for stream in self.all_streams() {
                if stream.wait_tail(Some(patience)).is_err() {
                    break;
                }
            }
        }
        self.dead.store(true, Ordering::Release);
        let fifo = self.on_gpu.lock().take();
        if let Some(mut fifo) = fifo {
            self.shared.give_back(Request::DestroyContext { id: self.gpu_id });
            fifo.drain(&self.shared);
        }
        self.exists.store(false, Ordering::Release);
        for module in self.modules.lock().drain(..) {
            module.unload();
        }
        let streams: Vec<Arc<StreamState>> =
            self.streams.lock().drain(..).chain(self.fading.lock().drain(..)).collect();
        for stream in streams {
            stream.abandon();
        }
        *self.legacy.write() = None;
        self.shared.memory.free_context(&self.shared, self.gpu_id);
    }
}

thread_local! {
    /// The calling thread's contexts, the current one last.
    static STACK: RefCell<Vec<Arc<ContextState>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the stack; while the thread ends there is none.
fn with_stack<R>(f: impl FnOnce(&mut Vec<Arc<ContextState>>) -> R) -> Result<R> {
    STACK.try_with(|stack| f(&mut stack.borrow_mut())).map_err(|_| CudaError::DEINITIALIZED)
}

impl Driver {
    /// The current context, whatever its health.
    pub(crate) fn current_any(&self) -> Result<Arc<ContextState>> {
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
        let context = self.current_any()?;
        context.check()?;
        Ok(context)
    }

    /// Creates a context and pushes it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for unknown flags, `OUT_OF_MEMORY`.
    pub fn ctx_create(&self, flags: u32, device: Device) -> Result<Context> {
        self.device(device)?;
        if flags & !FLAGS != 0 || flags & 7 > 4 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.shared.memory.arena(&self.shared)?;
        let handle = Context(handle::fresh(Tag::Context));
        let context = ContextState::new(&self.shared, handle, false, flags);
        self.contexts.insert(handle.0, Arc::clone(&context));
        with_stack(|stack| stack.push(context))?;
        Ok(handle)
    }

    /// Destroys a created context; pops it if it is current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is none or primary.
    pub fn ctx_destroy(&self, context: Context) -> Result<()> {
        self.ready()?;
        let state = self.contexts.get(context.0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        if state.primary {
            return Err(CudaError::INVALID_CONTEXT);
        }
        self.contexts.remove(context.0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        with_stack(|stack| stack.pop_if(|top| top.handle == context))?;
        self.end_context(&state);
        Ok(())
    }

    /// Ends a context's state and forgets the handles of what was in it.
    pub(crate) fn end_context(&self, state: &Arc<ContextState>) {
        self.forget_pools(state);
        for stream in state.streams.lock().iter() {
            // Default streams have no handle in the table.
            let _ = self.streams.remove(stream.handle.0);
        }
        for module in state.modules.lock().iter() {
            self.forget_module(module);
        }
        state.destroy();
        self.forget_events(state);
        self.forget_instances(state);
        (self.shared.host.context_destroyed)(state.handle);
    }

    /// `cuCtxAttach`: retains the current context; null means it.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if `context` is not current.
    pub fn ctx_attach(&self, context: Context) -> Result<Context> {
        let current = self.current()?;
        if !context.is_null() && context != current.handle {
            return Err(CudaError::INVALID_CONTEXT);
        }
        current.uses.fetch_add(1, Ordering::AcqRel);
        Ok(current.handle)
    }

    /// `cuCtxDetach`: the last detach destroys.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is not current.
    pub fn ctx_detach(&self, context: Context) -> Result<()> {
        let current = self.current_any()?;
        if current.handle != context || current.primary {
            return Err(CudaError::INVALID_CONTEXT);
        }
        if current.uses.fetch_sub(1, Ordering::AcqRel) == 1 { self.ctx_destroy(context) } else { Ok(()) }
    }

    /// Pushes a context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is none.
    pub fn ctx_push_current(&self, context: Context) -> Result<()> {
        self.ready()?;
        let state = self.contexts.get(context.0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        with_stack(|stack| stack.push(state))
    }

    /// Pops the current context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if there is none.
    pub fn ctx_pop_current(&self) -> Result<Context> {
        self.ready()?;
        with_stack(Vec::pop)?.map(|state| state.handle).ok_or(CudaError::INVALID_CONTEXT)
    }

    /// Replaces the top of the stack; null pops.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is none.
    pub fn ctx_set_current(&self, context: Context) -> Result<()> {
        self.ready()?;
        if context.is_null() {
            return with_stack(|stack| drop(stack.pop()));
        }
        let same = with_stack(|stack| stack.last().is_some_and(|top| top.handle == context && !top.dead()))?;
        if same {
            return Ok(());
        }
        let state = self.contexts.get(context.0).map_err(|_| CudaError::INVALID_CONTEXT)?;
        with_stack(|stack| {
            stack.pop();
            stack.push(state);
        })
    }

    /// The current context, or null.
    ///
    /// # Errors
    /// `NOT_INITIALIZED`, `DEINITIALIZED`.
    pub fn ctx_get_current(&self) -> Result<Context> {
        self.ready()?;
        with_stack(|stack| stack.last().map_or(Context::NULL, |state| state.handle))
    }

    /// The current context's device.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if there is none.
    pub fn ctx_get_device(&self) -> Result<Device> {
        self.ready()?;
        if self.ctx_get_current()?.is_null() { Err(CudaError::INVALID_CONTEXT) } else { Ok(Device(0)) }
    }

    /// A context's device; null means current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is none.
    pub fn ctx_get_device_of(&self, context: Context) -> Result<Device> {
        if context.is_null() {
            return self.ctx_get_device();
        }
        self.context(context).map(|_| Device(0))
    }

    /// The current context's flags.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if there is none.
    pub fn ctx_get_flags(&self) -> Result<u32> {
        Ok(self.current()?.flags.load(Ordering::Relaxed))
    }

    /// Sets the current context's flags.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags.
    pub fn ctx_set_flags(&self, flags: u32) -> Result<()> {
        if flags & !FLAGS != 0 || flags & 7 > 4 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// A number never used again in this process; null means current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `CONTEXT_IS_DESTROYED`.
    pub fn ctx_get_id(&self, context: Context) -> Result<u64> {
        let state = self.context(context)?;
        if state.dead() {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        Ok(u64::from(state.gpu_id.0))
    }

    /// API version of a context; null means current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn ctx_get_api_version(&self, context: Context) -> Result<u32> {
        self.context(context).map(|_| 3020)
    }

    /// Waits for all work of the current context.
    ///
    /// # Errors
    /// The context's error.
    pub fn ctx_synchronize(&self) -> Result<()> {
        let context = self.current()?;
        let result = context.synchronize();
        self.trim_pools();
        result
    }

    /// Waits for all work of a context; null means current.
    ///
    /// # Errors
    /// The context's error.
    pub fn ctx_synchronize_of(&self, context: Context) -> Result<()> {
        self.context(context)?.synchronize()
    }

    /// Preferred cache configuration.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn ctx_get_cache_config(&self) -> Result<u32> {
        Ok(self.current()?.cache_config.load(Ordering::Relaxed))
    }

    /// Sets the preferred cache configuration.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn ctx_set_cache_config(&self, config: u32) -> Result<()> {
        let context = self.current()?;
        if config > 3 {
            return Err(CudaError::INVALID_VALUE);
        }
        context.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    /// Shared memory bank size.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn ctx_get_shared_mem_config(&self) -> Result<u32> {
        Ok(self.current()?.shared_config.load(Ordering::Relaxed))
    }

    /// Sets the shared memory bank size: taken, and without effect, as on every GPU since Maxwell.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub fn ctx_set_shared_mem_config(&self, config: u32) -> Result<()> {
        self.current()?;
        if config > 2 { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
    }

    /// Least and greatest stream priority.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn ctx_get_stream_priority_range(&self) -> Result<(i32, i32)> {
        self.current()?;
        Ok((0, crate::stream::GREATEST_PRIORITY))
    }

    /// Resets persisting lines in L2: there are none.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn ctx_reset_persisting_l2_cache(&self) -> Result<()> {
        self.current().map(|_| ())
    }

    /// The multiprocessor count an affinity gives: all.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown kinds.
    pub fn ctx_get_exec_affinity(&self, kind: i32) -> Result<u32> {
        self.current()?;
        if kind == 0 { Ok(self.properties().multiprocessors) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Records an event behind all work of a context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn ctx_record_event(&self, context: Context, event: Event) -> Result<()> {
        let state = self.context(context)?;
        state.check()?;
        let event = self.event(event)?;
        // The legacy stream waits for the blocking ones; the others are waited for by name.
        let legacy = state.legacy()?;
        for stream in self.others(&state) {
            legacy.wait_for(&stream)?;
        }
        event.record(&legacy)
    }

    /// Makes all further work of a context wait for an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`.
    pub fn ctx_wait_event(&self, context: Context, event: Event) -> Result<()> {
        let state = self.context(context)?;
        state.check()?;
        let Some(mark) = self.event(event)?.mark() else { return Ok(()) };
        state.legacy()?.wait_mark(mark)?;
        self.others(&state).iter().try_for_each(|stream| stream.wait_mark(mark))
    }

    /// The context's streams that do not wait for its legacy stream by themselves.
    fn others(&self, state: &ContextState) -> Vec<Arc<StreamState>> {
        state.streams.lock().iter().filter(|stream| stream.kind != Kind::Legacy).cloned().collect()
    }

    /// Enables access to another context's memory: contexts of one device have it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`: there is no peer device.
    pub fn ctx_enable_peer_access(&self, peer: Context, flags: u32) -> Result<()> {
        self.current()?;
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        self.context(peer)?;
        Err(CudaError::PEER_ACCESS_UNSUPPORTED)
    }

    /// Disables access to another context's memory.
    ///
    /// # Errors
    /// `PEER_ACCESS_NOT_ENABLED`.
    pub fn ctx_disable_peer_access(&self, peer: Context) -> Result<()> {
        self.current()?;
        self.context(peer)?;
        Err(CudaError::PEER_ACCESS_NOT_ENABLED)
    }
}
