//! Waiting for a semaphore.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu::{ContextId, Gpu, GpuError, SEMAPHORE_HEADER, SEMAPHORE_SLOTS, SLOT_BYTES, SlotId, context_error};
use hostmem::Spin;
use transport::{MAX_WAIT, unix};

use crate::RemoteGpu;

const WAITERS: usize = SEMAPHORE_HEADER + 4;
const ERRORS: usize = SEMAPHORE_HEADER + 8;
/// Whether signals interrupt.
const ON: usize = SEMAPHORE_HEADER + 12;
/// Longest sleep before the daemon has heard that signals should interrupt: it may be busy with what was sent before.
const UNHEARD: Duration = Duration::from_millis(2);

/// What earlier waits taught.
#[derive(Debug)]
pub(crate) struct Experience {
    pub(crate) spin: Spin,
    /// Contexts that were well when the session's error count was this.
    pub(crate) well: HashMap<ContextId, u32>,
}

impl RemoteGpu {
    pub(crate) fn wait_for(
        &self,
        context: ContextId,
        slot: SlotId,
        value: u64,
        timeout: Option<Duration>,
    ) -> Result<(), GpuError> {
        if slot.0 >= SEMAPHORE_SLOTS {
            return Err(GpuError::InvalidValue { what: format!("semaphore slot {}", slot.0) });
        }
        let payload = self.semaphores.u64_at(slot.0 as usize * SLOT_BYTES);
        let reached = || payload.load(Ordering::Acquire) >= value;
        if reached() {
            return Ok(());
        }
        self.alive()?;
        let errors = self.semaphores.u32_at(ERRORS);
        let start = Instant::now();
        let spin = self.waiting.lock().spin.clone();
        let count = errors.load(Ordering::Relaxed);
        spin.until(|| reached() || errors.load(Ordering::Relaxed) != count);
        let result = self.sleep_until(&reached, context, start, timeout);
        self.waiting.lock().spin.learn(start.elapsed());
        result
    }

    fn sleep_until(
        &self,
        reached: &dyn Fn() -> bool,
        context: ContextId,
        start: Instant,
        timeout: Option<Duration>,
    ) -> Result<(), GpuError> {
        let errors = self.semaphores.u32_at(ERRORS);
        let interrupts = self.semaphores.u32_at(SEMAPHORE_HEADER);
        loop {
            if reached() {
                return Ok(());
            }
            let seen_errors = errors.load(Ordering::SeqCst);
            self.check_context(context, seen_errors)?;
            let left = match timeout {
                Some(timeout) => match timeout.checked_sub(start.elapsed()) {
                    Some(left) if !left.is_zero() => left.min(MAX_WAIT),
                    _ => return Err(GpuError::TimedOut),
                },
                None => MAX_WAIT,
            };
            let _waiter = Waiter::new(self.semaphores.u32_at(WAITERS));
            let left = if self.semaphores.u32_at(ON).load(Ordering::SeqCst) == 0 {
                self.try_kick()?;
                left.min(UNHEARD)
            } else {
                left
            };
            let seen = interrupts.load(Ordering::SeqCst);
            if reached() || errors.load(Ordering::SeqCst) != seen_errors {
                continue;
            }
            let slept = Instant::now();
            self.semaphores.wait(SEMAPHORE_HEADER, seen, Some(left));
            // Nothing happened: is anybody there?
            if slept.elapsed() >= left / 2 && unix::hung_up(&self.socket) && !reached() {
                return Err(self.lose("the daemon is gone"));
            }
        }
    }

    /// Fails if the context has; asks only when the session's error count has moved since it was well.
    fn check_context(&self, context: ContextId, errors: u32) -> Result<(), GpuError> {
        if errors == 0 || self.waiting.lock().well.get(&context) == Some(&errors) {
            return Ok(());
        }
        match context_error(self as &dyn Gpu, context)? {
            Some(error) => Err(GpuError::Context(error)),
            None => {
                self.waiting.lock().well.insert(context, errors);
                Ok(())
            }
        }
    }
}

/// Counted among those that the GPU should interrupt.
struct Waiter<'a>(&'a AtomicU32);

impl<'a> Waiter<'a> {
    fn new(count: &'a AtomicU32) -> Waiter<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        Waiter(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
