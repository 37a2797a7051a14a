//! What all objects of a driver share: the GPU, its semaphore slots, and the news of errors.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gpu::{
    ContextId, Gpu, GpuError, Request, Response, SEMAPHORE_HEADER, SEMAPHORE_SLOTS, SLOT_BYTES, SlotId, context_error,
};
use parking_lot::{Mutex, RwLock};

use crate::context::ContextState;
use crate::error::{CudaError, Result};
use crate::heap::Memory;
use crate::types::HostServices;

/// Offset of the count of context errors in the semaphore area.
const ERROR_COUNT: usize = SEMAPHORE_HEADER + 8;

/// A point in the work of a queue: reached when the slot's payload is at least `value`.
///
/// Payloads of a slot only grow, over all its uses, so a mark stays meaningful for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) context: ContextId,
    pub(crate) slot: SlotId,
    pub(crate) value: u64,
}

pub(crate) struct Shared {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) host: HostServices,
    pub(crate) memory: Memory,
    slots: Mutex<Slots>,
    next_id: AtomicU32,
    errors_seen: AtomicU32,
    lost: AtomicBool,
    down: AtomicBool,
    /// Contexts that exist on the GPU.
    contexts: RwLock<Vec<Weak<ContextState>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("lost", &self.lost).field("down", &self.down).finish_non_exhaustive()
    }
}

/// Which slots are in use. Each free slot keeps the highest payload ever asked of it.
#[derive(Debug, Default)]
struct Slots {
    fresh: u32,
    free: Vec<(SlotId, u64)>,
    /// Given back before their last signal arrived.
    pending: VecDeque<(SlotId, u64)>,
}

impl Shared {
    pub(crate) fn new(gpu: Arc<dyn Gpu>, host: HostServices) -> Shared {
        Shared {
            gpu,
            host,
            memory: Memory::default(),
            slots: Mutex::default(),
            next_id: AtomicU32::new(1),
            errors_seen: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            down: AtomicBool::new(false),
            contexts: RwLock::default(),
        }
    }

    /// A number for a new object on the GPU.
    pub(crate) fn id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn shut_down(&self) {
        self.down.store(true, Ordering::Release);
    }

    /// # Errors
    /// `DEINITIALIZED` or `DEVICE_UNAVAILABLE` once either is so.
    pub(crate) fn up(&self) -> Result<()> {
        if self.down.load(Ordering::Acquire) {
            return Err(CudaError::DEINITIALIZED);
        }
        if self.lost.load(Ordering::Acquire) {
            return Err(CudaError::DEVICE_UNAVAILABLE);
        }
        Ok(())
    }

    /// Turns the GPU's answer into CUDA's, remembering that the GPU is lost if it is.
    pub(crate) fn note<T>(&self, answer: std::result::Result<T, GpuError>) -> Result<T> {
        answer.map_err(|error| {
            if matches!(error, GpuError::Lost { .. }) {
                self.lost.store(true, Ordering::Release);
            }
            tracing::debug!(%error, "refused by the GPU");
            error.into()
        })
    }

    pub(crate) fn request(&self, request: Request) -> Result<Response> {
        self.up()?;
        self.note(self.gpu.request(request))
    }

    /// Asks for something whose failure nobody can act on: giving back.
    pub(crate) fn give_back(&self, request: Request) {
        if self.up().is_ok() {
            // `note` has logged it.
            let _ = self.note(self.gpu.request(request));
        }
    }

    pub(crate) fn add_context(&self, context: &Arc<ContextState>) {
        let mut contexts = self.contexts.write();
        contexts.retain(|other| other.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    /// Looks whether some context has failed since the last look: one load, if none has.
    pub(crate) fn look_for_errors(&self) {
        let count = self.gpu.semaphores().u32_at(ERROR_COUNT).load(Ordering::Acquire);
        if count == self.errors_seen.load(Ordering::Acquire) {
            return;
        }
        let contexts: Vec<Arc<ContextState>> = self.contexts.read().iter().filter_map(Weak::upgrade).collect();
        for context in contexts {
            if !context.failed()
                && context.on_gpu()
                && let Ok(Some(error)) = self.note(context_error(&*self.gpu, context.gpu_id))
            {
                context.fail(&error);
            }
        }
        self.errors_seen.store(count, Ordering::Release);
    }

    pub(crate) fn payload(&self, slot: SlotId) -> u64 {
        self.gpu.semaphores().u64_at(slot.0 as usize * SLOT_BYTES).load(Ordering::Acquire)
    }

    /// GPU time of a slot's last signal, ns.
    pub(crate) fn timestamp(&self, slot: SlotId) -> u64 {
        self.gpu.semaphores().u64_at(slot.0 as usize * SLOT_BYTES + 8).load(Ordering::Acquire)
    }

    /// Stores a payload from this side and tells the GPU.
    pub(crate) fn release(&self, slot: SlotId, value: u64) {
        self.gpu.semaphores().u64_at(slot.0 as usize * SLOT_BYTES).fetch_max(value, Ordering::AcqRel);
        if self.up().is_ok() {
            // `note` has logged it; a lost GPU waits for nothing.
            let _ = self.note(self.gpu.kick());
        }
    }

    pub(crate) fn done(&self, mark: &Mark) -> bool {
        self.payload(mark.slot) >= mark.value
    }

    /// Sleeps until a mark is reached.
    ///
    /// # Errors
    /// The context's error, which is remembered; `LAUNCH_TIMEOUT` if time ran out.
    pub(crate) fn wait(&self, context: &ContextState, mark: &Mark, timeout: Option<Duration>) -> Result<()> {
        if self.done(mark) {
            return Ok(());
        }
        self.up()?;
        self.note(self.gpu.flush())?;
        match self.gpu.wait(mark.context, mark.slot, mark.value, timeout) {
            Err(GpuError::Context(error)) => {
                if mark.context == context.gpu_id {
                    context.fail(&error);
                }
                Err((&error).into())
            }
            other => self.note(other),
        }
    }

    /// A slot, and the payload its next signal must exceed.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if all are in use.
    pub(crate) fn take_slot(&self) -> Result<(SlotId, u64)> {
        let mut slots = self.slots.lock();
        if let Some(free) = slots.free.pop() {
            return Ok(free);
        }
        if let Some(at) = slots.pending.iter().position(|&(slot, last)| self.payload(slot) >= last)
            && let Some(ready) = slots.pending.remove(at)
        {
            return Ok(ready);
        }
        if slots.fresh >= SEMAPHORE_SLOTS {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let slot = SlotId(slots.fresh);
        slots.fresh += 1;
        Ok((slot, self.payload(slot)))
    }

    /// Gives a slot back; `last` is the highest payload ever asked of it.
    pub(crate) fn give_slot(&self, slot: SlotId, last: u64) {
        let mut slots = self.slots.lock();
        if self.payload(slot) >= last {
            slots.free.push((slot, last));
        } else {
            slots.pending.push_back((slot, last));
        }
    }
}
