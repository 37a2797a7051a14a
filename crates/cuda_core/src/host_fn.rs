//! Functions of the program that run in stream order.
//!
//! The stream signals, then waits for a second slot; a thread of the stream waits for the signal, runs the function and
//! stores the payload that lets the stream go on. Each stream that uses this has a thread of its own (functions of
//! different streams may wait for each other through events); it ends after a while without work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gpu::{Command, SlotId};
use parking_lot::{Condvar, Mutex};

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::shared::{Mark, Shared};
use crate::stream::StreamState;

/// A thread without work ends after this time.
const LINGER: Duration = Duration::from_secs(2);

type Function = Box<dyn FnOnce(Result<()>) + Send>;

struct Job {
    /// When to run.
    ready: Option<Mark>,
    /// What to store when it has run.
    release: u64,
    function: Function,
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
    /// The stream has no queue any more: nothing waits for this slot.
    pub(crate) fn close(&self, shared: &Shared) {
        let mut jobs = self.jobs.lock();
        if let Some(slot) = jobs.slot.take() {
            if shared.payload(slot) < jobs.value {
                shared.release(slot, jobs.value);
            }
            shared.give_slot(slot, jobs.value);
        }
    }
}

impl StreamState {
    /// Runs `function` in stream order, with the context's error if it failed before.
    pub(crate) fn run_on_host(self: &Arc<Self>, function: Function) -> Result<()> {
        let shared = &self.context.shared;
        let ready = self.point()?;
        let mut jobs = self.host.jobs.lock();
        let slot = match jobs.slot {
            Some(slot) => slot,
            None => {
                let (slot, value) = shared.take_slot()?;
                jobs.slot = Some(slot);
                jobs.value = value;
                slot
            }
        };
        let value = jobs.value + 1;
        if !jobs.running {
            let stream = Arc::clone(self);
            std::thread::Builder::new()
                .name("cuda-host-fn".into())
                .spawn(move || stream.serve())
                .map_err(|_| CudaError::OPERATING_SYSTEM)?;
            jobs.running = true;
        }
        // The job first: a stream must not wait for something that nobody will do.
        jobs.value = value;
        jobs.waiting.push_back(Job { ready, release: value, function });
        self.host.more.notify_one();
        drop(jobs);
        self.submit(&[Command::Wait { slot, value }])
    }

    /// The thread.
    fn serve(self: Arc<Self>) {
        let shared = Arc::clone(&self.context.shared);
        loop {
            let mut jobs = self.host.jobs.lock();
            while jobs.waiting.is_empty() {
                if self.host.more.wait_for(&mut jobs, LINGER).timed_out() && jobs.waiting.is_empty() {
                    jobs.running = false;
                    return;
                }
            }
            let Some(job) = jobs.waiting.pop_front() else { continue };
            drop(jobs);
            let result = match &job.ready {
                Some(mark) => shared.wait(&self.context, mark, None),
                None => Ok(()),
            };
            (job.function)(result.and_then(|()| self.context.check()));
            let slot = self.host.jobs.lock().slot;
            if let Some(slot) = slot {
                shared.release(slot, job.release);
            }
        }
    }
}

impl Driver {
    /// Runs a function in stream order; not if the context fails before.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error; `OPERATING_SYSTEM` if there can be no thread for it.
    pub fn launch_host_func(&self, stream: Stream, function: Box<dyn FnOnce() + Send>) -> Result<()> {
        let run = Box::new(move |result: Result<()>| {
            if result.is_ok() {
                function();
            }
        });
        self.stream(stream)?.run_on_host(run)
    }

    /// Runs a callback in stream order, with the context's error if it failed.
    ///
    /// # Errors
    /// As `launch_host_func`.
    pub fn stream_add_callback(&self, stream: Stream, callback: Box<dyn FnOnce(Result<()>) + Send>) -> Result<()> {
        self.stream(stream)?.run_on_host(callback)
    }
}
