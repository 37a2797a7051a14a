//! Contexts, and the calling thread's stack of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::code::module::ModuleState;
use crate::context::current::with_stack;
use crate::context::state::{ContextState, check_flags};
use crate::context_core::ContextCore;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Context, Device, Event, Tag};
use crate::work::stream::GREATEST_PRIORITY;

impl Driver {
    /// Creates a context and pushes it.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for unknown flags, `OUT_OF_MEMORY`.
    pub fn ctx_create(&self, flags: u32, device: Device) -> Result<Context> {
        let device = self.device(device)?;
        check_flags(flags)?;
        device.core.memory.arena()?;
        let handle = Context(handle::fresh(Tag::Context));
        let context = ContextState::new(&device.core, handle, false, flags);
        self.contexts.insert(handle.0, Arc::clone(&context));
        with_stack(|stack| stack.push(context))?;
        Ok(handle)
    }

    /// Destroys a created context, after its work; pops it if it is current.
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

    /// Ends a context and all that is in it, after its work, and forgets the handles of what was.
    pub(crate) fn end_context(&self, state: &ContextState) {
        let core = &state.core;
        if core.dead() {
            return;
        }
        self.devices.all().iter().for_each(|device| device.pools.forget_context(core.id));
        let mut modules = self.forget_handles(core);
        // A context that failed runs nothing any more; of one that fails now, nobody asks any more.
        let _ = state.queues.wait_for_all();
        core.die();
        // Those of what was made meanwhile. Who makes something from here on sees that the context is dead, and undoes it.
        modules.extend(self.forget_handles(core));
        // What is submitted comes before the context's end, or not at all.
        state.queues.close();
        core.leave_gpu();
        modules.iter().for_each(|module| module.unload());
        state.queues.abandon();
        self.memory.arrays.forget_context(core.id);
        self.objects.forget_context(core.id);
        self.references.forget_context(core.id);
        // What waits for events of the context must not wait for ever.
        self.events.all().iter().for_each(|event| event.abandon_in(core));
        self.opened.lock().forget_context(core.id);
        core.memory().free_context(core.id);
        self.kernels.all().iter().for_each(|kernel| kernel.forget_context(core));
        self.libraries.all().iter().for_each(|library| library.forget_context(core));
        (core.gpu.host.context_destroyed)(core.handle);
    }

    /// Forgets the handles of all streams and modules of a context; gives the modules.
    fn forget_handles(&self, core: &Arc<ContextCore>) -> Vec<Arc<ModuleState>> {
        self.graphs.forget_captured_in(core);
        for stream in self.streams.all().iter().filter(|stream| Arc::ptr_eq(&stream.core, core)) {
            // Another thread may be destroying it.
            let _ = self.streams.remove(stream.handle.0);
        }
        let modules = self.code.of_context(core);
        modules.iter().for_each(|module| self.code.forget(module));
        modules
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
        let top = with_stack(|stack| stack.last().map(|top| top.core.gpu.ordinal))?;
        top.map(|ordinal| Device(ordinal as i32)).ok_or(CudaError::INVALID_CONTEXT)
    }

    /// A context's device; null means current.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if it is none.
    pub fn ctx_get_device_of(&self, context: Context) -> Result<Device> {
        if context.is_null() {
            return self.ctx_get_device();
        }
        self.context(context).map(|context| Device(context.core.gpu.ordinal as i32))
    }

    /// The current context's flags.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if there is none.
    pub fn ctx_get_flags(&self) -> Result<u32> {
        Ok(self.current()?.flags.load(Ordering::Relaxed))
    }

    /// As [`Driver::ctx_get_flags`], whatever has become of the context's work.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if none is current, or it was destroyed.
    pub fn ctx_get_flags_anyway(&self) -> Result<u32> {
        Ok(self.current_any()?.flags.load(Ordering::Relaxed))
    }

    /// Sets the current context's flags.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags.
    pub fn ctx_set_flags(&self, flags: u32) -> Result<()> {
        check_flags(flags)?;
        self.current()?.set_flags(flags);
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
        Ok(state.queues.context_id())
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
    /// `STREAM_CAPTURE_UNSUPPORTED` if a stream of it is being captured; the context's error.
    pub fn ctx_synchronize(&self) -> Result<()> {
        self.ctx_synchronize_of(Context::NULL)
    }

    /// Waits for all work of a context; null means current.
    ///
    /// # Errors
    /// As `ctx_synchronize`, and `INVALID_CONTEXT`.
    pub fn ctx_synchronize_of(&self, context: Context) -> Result<()> {
        let context = self.context(context)?;
        context.check()?;
        self.none_captured_in(&context)?;
        let result = context.queues.synchronize();
        self.device_of(&context).pools.trim_all();
        result
    }

    /// Sets a `CUlimit`. FIFO and heap are made at a context's first work; their sizes are fixed from then on.
    ///
    /// # Errors
    /// `INVALID_VALUE` for values that cannot be or come too late, `UNSUPPORTED_LIMIT`.
    pub fn ctx_set_limit(&self, limit: u32, value: u64) -> Result<()> {
        self.current()?.core.set_limit(limit, value)
    }

    /// A `CUlimit`.
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT` for unknown ones.
    pub fn ctx_get_limit(&self, limit: u32) -> Result<u64> {
        self.current()?.core.limits.lock().get(limit)
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
        Ok((0, GREATEST_PRIORITY))
    }

    /// Resets persisting lines in L2: there are none.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn ctx_reset_persisting_l2_cache(&self) -> Result<()> {
        self.current().map(|_| ())
    }

    /// The multiprocessor count an affinity gives: all of the context's.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown kinds.
    pub fn ctx_get_exec_affinity(&self, kind: i32) -> Result<u32> {
        let context = self.current()?;
        if kind == 0 { Ok(context.queues.multiprocessors()) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Records an event behind all work of a context.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`; `STREAM_CAPTURE_UNSUPPORTED` if a stream of it is being captured.
    pub fn ctx_record_event(&self, context: Context, event: Event) -> Result<()> {
        let state = self.context(context)?;
        state.check()?;
        let event = self.event(event)?;
        self.none_captured_in(&state)?;
        state.queues.legacy_waits_for_all()?;
        event.record(&state.legacy)
    }

    /// Makes all further work of a context wait for an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_CONTEXT`; `STREAM_CAPTURE_UNSUPPORTED` if a stream of it is being captured, or the event is of a
    /// capture that goes on; `CAPTURED_EVENT` if it is of one that is over; `NOT_SUPPORTED` for one that several processes share.
    pub fn ctx_wait_event(&self, context: Context, event: Event) -> Result<()> {
        let state = self.context(context)?;
        state.check()?;
        let event = self.event(event)?;
        self.none_captured_in(&state)?;
        self.not_of_a_capture(&event)?;
        if event.words().is_some() {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let Some(point) = event.point() else { return Ok(()) };
        state.queues.all_wait_for(&point)
    }

    /// Enables access of the current context's kernels to another context's memory: contexts of one device have it, no others can.
    ///
    /// # Errors
    /// `PEER_ACCESS_UNSUPPORTED`; `INVALID_VALUE` for flags; `INVALID_CONTEXT`, also if it is the current one.
    pub fn ctx_enable_peer_access(&self, peer: Context, flags: u32) -> Result<()> {
        let current = self.current()?;
        if flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        if peer.is_null() || self.context(peer)?.core.handle == current.core.handle {
            return Err(CudaError::INVALID_CONTEXT);
        }
        Err(CudaError::PEER_ACCESS_UNSUPPORTED)
    }

    /// Disables access to another context's memory.
    ///
    /// # Errors
    /// `PEER_ACCESS_NOT_ENABLED`, `INVALID_CONTEXT`.
    pub fn ctx_disable_peer_access(&self, peer: Context) -> Result<()> {
        self.current()?;
        if peer.is_null() {
            return Err(CudaError::INVALID_CONTEXT);
        }
        self.context(peer)?;
        Err(CudaError::PEER_ACCESS_NOT_ENABLED)
    }
}
