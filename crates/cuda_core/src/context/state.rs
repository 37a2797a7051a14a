//! A whole context: what is in it, and how all of it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::context_core::{ContextCore, GpuCore};
use crate::error::{CudaError, Result};
use crate::handle::Context;
use crate::textures::slab::Descriptors;
use crate::work::queues::{Part, Queues};
use crate::work::stream::StreamState;

/// Flags a context may have: scheduling, mapped host memory, local memory resizing, dumps, synchronous copies.
const FLAGS: u32 = 0xFF;

/// Refuses flags that no context has.
///
/// # Errors
/// `INVALID_VALUE`.
pub(crate) fn check_flags(flags: u32) -> Result<()> {
    if flags & !FLAGS != 0 || flags & 7 > 4 { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
}

#[derive(Debug)]
pub(crate) struct ContextState {
    /// The core's, but of green contexts.
    pub(crate) handle: Context,
    pub(crate) core: Arc<ContextCore>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) legacy: Arc<StreamState>,
    /// Those of its textures and surfaces.
    pub(crate) descriptors: Arc<Descriptors>,
    /// It is a primary context, or a part of one: nobody destroys it.
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    /// `cuCtxAttach` and `cuCtxDetach` count.
    pub(crate) uses: AtomicU32,
    pub(crate) cache_config: AtomicU32,
    pub(crate) shared_config: AtomicU32,
}

impl ContextState {
    pub(crate) fn new(gpu: &Arc<GpuCore>, handle: Context, primary: bool, flags: u32) -> Arc<ContextState> {
        let core = ContextCore::new(gpu, handle);
        let queues = Queues::new(&core);
        ContextState::with(handle, core, (queues, Arc::default()), primary, flags)
    }

    /// A green context: a part of a primary one.
    pub(crate) fn part_of(primary: &ContextState, part: Part) -> Arc<ContextState> {
        let flags = primary.flags.load(Ordering::Relaxed);
        let queues = Queues::part_of(&primary.queues, part);
        let descriptors = Arc::clone(&primary.descriptors);
        ContextState::with(part.context, Arc::clone(&primary.core), (queues, descriptors), true, flags)
    }

    fn with(
        handle: Context,
        core: Arc<ContextCore>,
        (queues, descriptors): (Arc<Queues>, Arc<Descriptors>),
        primary: bool,
        flags: u32,
    ) -> Arc<ContextState> {
        Arc::new(ContextState {
            handle,
            legacy: StreamState::legacy(&queues),
            core,
            queues,
            descriptors,
            primary,
            flags: AtomicU32::new(flags),
            uses: AtomicU32::new(1),
            cache_config: AtomicU32::new(0),
            shared_config: AtomicU32::new(1),
        })
    }

    /// A state that stands for a primary context nobody retains.
    pub(crate) fn inactive(gpu: &Arc<GpuCore>, handle: Context) -> Arc<ContextState> {
        let context = ContextState::new(gpu, handle, true, 0);
        context.core.die();
        context
    }

    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<()> {
        self.core.check()?;
        if self.queues.attached().is_err() { Err(CudaError::CONTEXT_IS_DESTROYED) } else { Ok(()) }
    }

    pub(crate) fn dead(&self) -> bool {
        self.core.dead() || self.queues.attached().is_err()
    }

    /// After something was made in the context, and entered where the context's end looks for it: if the end did not find it,
    /// `undo` has to take it back.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED`.
    pub(crate) fn alive_or(&self, undo: impl FnOnce()) -> Result<()> {
        if self.dead() {
            undo();
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        Ok(())
    }

    pub(crate) fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }
}
