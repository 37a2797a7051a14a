//! The primary context.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::context::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Context, Device, Tag};
use crate::types::PrimaryState;

#[derive(Debug)]
pub(crate) struct Primary {
    handle: Context,
    state: Mutex<Uses>,
}

#[derive(Debug, Default)]
struct Uses {
    retained: u32,
    flags: u32,
    live: Option<Arc<ContextState>>,
}

impl Primary {
    pub(crate) fn new() -> Primary {
        Primary { handle: Context(handle::fresh(Tag::Context)), state: Mutex::default() }
    }
}

impl Driver {
    /// Puts a dead state behind the primary handle, for threads that make it current before anybody retains it.
    pub(crate) fn rest_primary(&self) {
        let handle = self.primary.handle;
        self.contexts.insert(handle.0, ContextState::resting(&self.shared, handle));
    }

    /// Retains the primary context; creates it at the first time.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `OUT_OF_MEMORY`.
    pub fn device_primary_ctx_retain(&self, device: Device) -> Result<Context> {
        self.device(device)?;
        let mut uses = self.primary.state.lock();
        if uses.live.is_none() {
            self.shared.memory.arena(&self.shared)?;
            let state = ContextState::new(&self.shared, self.primary.handle, true, uses.flags);
            self.contexts.insert(self.primary.handle.0, Arc::clone(&state));
            uses.live = Some(state);
        }
        uses.retained += 1;
        Ok(self.primary.handle)
    }

    /// Releases it; the last release destroys what it holds.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if nobody retains it.
    pub fn device_primary_ctx_release(&self, device: Device) -> Result<()> {
        self.device(device)?;
        let mut uses = self.primary.state.lock();
        if uses.retained == 0 {
            return Err(CudaError::INVALID_CONTEXT);
        }
        uses.retained -= 1;
        let ended = if uses.retained == 0 { uses.live.take() } else { None };
        drop(uses);
        self.end_primary(ended);
        Ok(())
    }

    /// Destroys what it holds, at once. Who retained it keeps it retained.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_primary_ctx_reset(&self, device: Device) -> Result<()> {
        self.device(device)?;
        let mut uses = self.primary.state.lock();
        let ended = uses.live.take();
        uses.retained = 0;
        drop(uses);
        self.end_primary(ended);
        Ok(())
    }

    fn end_primary(&self, state: Option<Arc<ContextState>>) {
        if let Some(state) = state {
            self.rest_primary();
            self.end_context(&state);
        }
    }

    /// Sets its flags.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags.
    pub fn device_primary_ctx_set_flags(&self, device: Device, flags: u32) -> Result<()> {
        self.device(device)?;
        if flags & !0xFF != 0 || flags & 7 > 4 {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut uses = self.primary.state.lock();
        uses.flags = flags;
        if let Some(live) = &uses.live {
            live.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Its flags, and whether it is active.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_primary_ctx_get_state(&self, device: Device) -> Result<PrimaryState> {
        self.device(device)?;
        let uses = self.primary.state.lock();
        Ok(PrimaryState { flags: uses.flags, active: uses.live.is_some() })
    }

    /// Its handle, active or not.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_primary_ctx_handle(&self, device: Device) -> Result<Context> {
        self.device(device)?;
        Ok(self.primary.handle)
    }
}
