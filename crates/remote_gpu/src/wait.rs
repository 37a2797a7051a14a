//! Waiting for a semaphore.

use std::time::{Duration, Instant};

use gpu::{ContextId, Gpu, GpuError, Look, SemaphoreArea, SlotId, context_error};
use transport::unix;

use crate::RemoteGpu;

impl RemoteGpu {
    pub(crate) fn wait_for(
        &self,
        context: ContextId,
        slot: SlotId,
        value: u64,
        timeout: Option<Duration>,
    ) -> Result<(), GpuError> {
        SemaphoreArea::offset(slot)?;
        let reached = || self.semaphores.payload(slot) >= value;
        if reached() {
            return Ok(());
        }
        self.alive()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let look = |how| match how {
            _ if reached() => Some(Ok(())),
            Look::Glance => None,
            // What was reached in the last moment is reached.
            Look::Close => self.still_there(context).err().map(|error| if reached() { Ok(()) } else { Err(error) }),
        };
        // Failing ends the session, which the next look sees.
        let listen = || drop(self.try_listen());
        self.semaphores.wait(deadline, look, listen).unwrap_or(Err(GpuError::TimedOut))
    }

    /// Fails if there is nothing left to wait for: the context, the session or the daemon.
    fn still_there(&self, context: ContextId) -> Result<(), GpuError> {
        self.alive()?;
        if unix::hung_up(&self.socket) {
            return Err(self.lose("the daemon is gone"));
        }
        self.check_context(context, self.semaphores.errors())
    }

    /// Fails if the context has; asks only when the session's error count has moved since it was well.
    fn check_context(&self, context: ContextId, errors: u32) -> Result<(), GpuError> {
        if errors == 0 || self.well.lock().get(&context) == Some(&errors) {
            return Ok(());
        }
        match context_error(self as &dyn Gpu, context)? {
            Some(error) => Err(GpuError::Context(error)),
            None => {
                self.well.lock().insert(context, errors);
                Ok(())
            }
        }
    }
}
