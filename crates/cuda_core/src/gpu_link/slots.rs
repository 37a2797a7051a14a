//! Semaphore slots: how this process sees how far the GPU's work is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gpu::{ContextId, GpuError, SEMAPHORE_SLOTS, SlotId};
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;

/// A point in the work of a queue: reached when the slot's payload is at least `value`.
///
/// Payloads of a slot only grow, over all its uses, so a mark stays meaningful for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) context: ContextId,
    pub(crate) slot: SlotId,
    pub(crate) value: u64,
}

/// All semaphore slots of the process.
#[derive(Debug)]
pub(crate) struct Slots {
    link: Arc<GpuLink>,
    in_use: Mutex<InUse>,
}

/// Which slots are in use. Each free slot keeps the highest payload ever asked of it.
#[derive(Debug, Default)]
struct InUse {
    /// Slots from here on were never used.
    fresh: u32,
    free: Vec<(SlotId, u64)>,
    /// Given back before their last signal arrived.
    pending: VecDeque<(SlotId, u64)>,
}

impl Slots {
    pub(crate) fn new(link: &Arc<GpuLink>) -> Slots {
        Slots { link: Arc::clone(link), in_use: Mutex::default() }
    }

    pub(crate) fn payload(&self, slot: SlotId) -> u64 {
        self.link.gpu().semaphores().payload(slot)
    }

    /// GPU time of a slot's last signal, ns.
    pub(crate) fn timestamp(&self, slot: SlotId) -> u64 {
        self.link.gpu().semaphores().time_ns(slot)
    }

    /// Errors of contexts so far.
    pub(crate) fn error_count(&self) -> u32 {
        self.link.gpu().semaphores().errors()
    }

    /// Stores a payload from this side and tells the GPU.
    pub(crate) fn release(&self, slot: SlotId, value: u64) {
        // Also when the GPU is lost: who looks at the slot here shall see it.
        self.link.gpu().semaphores().raise(slot, value);
        if self.link.usable().is_ok() {
            // `outcome` has logged it; a lost GPU waits for nothing.
            let _ = self.link.outcome(self.link.gpu().release(slot, value));
        }
    }

    pub(crate) fn reached(&self, mark: &Mark) -> bool {
        self.payload(mark.slot) >= mark.value
    }

    /// Sleeps until a mark is reached.
    ///
    /// # Errors
    /// As [`gpu::Gpu::wait`].
    pub(crate) fn wait(&self, mark: &Mark, timeout: Option<Duration>) -> std::result::Result<(), GpuError> {
        if self.reached(mark) {
            return Ok(());
        }
        self.link.gpu().flush()?;
        self.link.gpu().wait(mark.context, mark.slot, mark.value, timeout)
    }

    /// A slot, and the payload its next signal must exceed.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` if all are in use.
    pub(crate) fn take(&self) -> Result<(SlotId, u64)> {
        let mut slots = self.in_use.lock();
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
    pub(crate) fn give(&self, slot: SlotId, last: u64) {
        let mut slots = self.in_use.lock();
        if self.payload(slot) >= last {
            slots.free.push((slot, last));
        } else {
            slots.pending.push_back((slot, last));
        }
    }
}
