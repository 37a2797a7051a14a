//! Functions of the program that run in stream order.
//!
//! The stream signals, then waits for a second slot; a thread of the stream waits for the signal, runs the function and
//! stores the payload that lets the stream go on. Each stream that uses this has a thread of its own (functions of
//! different streams may wait for each other through events); it ends after a while without work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gpu::SlotId;
use parking_lot::{Condvar, Mutex};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::{Mark, Slots};

/// A thread without work ends after this time.
const LINGER: Duration = Duration::from_secs(2);

/// A function of the program; it is told if the context failed before.
pub(crate) type HostFunction = Box<dyn FnOnce(Result<()>) + Send>;

struct Job {
    /// When to run.
    ready: Option<Mark>,
    /// What to store when it has run.
    release: u64,
    function: HostFunction,
}

/// The functions that wait in a stream.
#[derive(Default)]
pub(crate) struct HostQueue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    running: bool,
    slot: Option<SlotId>,
    value: u64,
}

impl std::fmt::Debug for HostQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostQueue").field("waiting", &self.jobs.lock().waiting.len()).finish_non_exhaustive()
    }
}

impl HostQueue {
    /// Takes a function to be run when `ready` is reached; gives the slot and payload that the stream must wait for.
    pub(crate) fn push(
        self: &Arc<Self>,
        core: &Arc<ContextCore>,
        ready: Option<Mark>,
        function: HostFunction,
    ) -> Result<(SlotId, u64)> {
        let mut jobs = self.jobs.lock();
        let slot = match jobs.slot {
            Some(slot) => slot,
            None => {
                let (slot, value) = core.slots().take()?;
                jobs.slot = Some(slot);
                jobs.value = value;
                slot
            }
        };
        let value = jobs.value + 1;
        if !jobs.running {
            let (queue, core) = (Arc::clone(self), Arc::clone(core));
            std::thread::Builder::new()
                .name("cuda-host-fn".into())
                .spawn(move || queue.serve(&core))
                .map_err(|_| CudaError::OPERATING_SYSTEM)?;
            jobs.running = true;
        }
        jobs.value = value;
        jobs.waiting.push_back(Job { ready, release: value, function });
        self.more.notify_one();
        Ok((slot, value))
    }

    /// Forgets a function that no stream came to wait for, if it does not run already.
    pub(crate) fn take_back(&self, value: u64) {
        self.jobs.lock().waiting.retain(|job| job.release != value);
    }

    /// The stream has no queue any more: nothing waits for this slot.
    pub(crate) fn close(&self, slots: &Slots) {
        let mut jobs = self.jobs.lock();
        if let Some(slot) = jobs.slot.take() {
            if slots.payload(slot) < jobs.value {
                slots.release(slot, jobs.value);
            }
            slots.give(slot, jobs.value);
        }
    }

    /// What the thread does: one function after the other, until there is none.
    fn serve(&self, core: &ContextCore) {
        loop {
            let mut jobs = self.jobs.lock();
            while jobs.waiting.is_empty() {
                if self.more.wait_for(&mut jobs, LINGER).timed_out() && jobs.waiting.is_empty() {
                    jobs.running = false;
                    return;
                }
            }
            let Some(job) = jobs.waiting.pop_front() else { continue };
            drop(jobs);
            let result = match &job.ready {
                Some(mark) => core.wait(mark, None),
                None => Ok(()),
            };
            (job.function)(result.and_then(|()| core.check()));
            let slot = self.jobs.lock().slot;
            if let Some(slot) = slot {
                core.slots().release(slot, job.release);
            }
        }
    }
}
