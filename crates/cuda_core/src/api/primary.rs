//! The primary contexts: each device has one.

use std::sync::Arc;

use crate::context::primary::Retention;
use crate::context::state::{ContextState, check_flags};
use crate::devices::DeviceState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Context, Device};
use crate::values::PrimaryState;

impl Driver {
    /// Puts a dead state behind the primary handle, for threads that make it current before anybody retains it.
    pub(crate) fn deactivate_primary(&self, device: &DeviceState) {
        let handle = device.primary.handle;
        self.contexts.insert(handle.0, ContextState::inactive(&device.core, handle));
    }

    /// Retains the primary context; creates it at the first time.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `OUT_OF_MEMORY`.
    pub fn device_primary_ctx_retain(&self, device: Device) -> Result<Context> {
        let device = self.device(device)?;
        let handle = device.primary.handle;
        let mut retention = device.primary.retention.lock();
        if retention.live.is_none() {
            device.core.memory.arena()?;
            let state = ContextState::new(&device.core, handle, true, retention.flags);
            self.contexts.insert(handle.0, Arc::clone(&state));
            retention.live = Some(state);
        }
        retention.count += 1;
        Ok(handle)
    }

    /// Releases it; the last release destroys what it holds.
    ///
    /// # Errors
    /// `INVALID_CONTEXT` if nobody retains it.
    pub fn device_primary_ctx_release(&self, device: Device) -> Result<()> {
        let device = self.device(device)?;
        let mut retention = device.primary.retention.lock();
        if retention.count == 0 {
            return Err(CudaError::INVALID_CONTEXT);
        }
        retention.count -= 1;
        let ended = if retention.count == 0 { self.take_primary(device, &mut retention) } else { None };
        drop(retention);
        ended.iter().for_each(|state| self.end_context(state));
        Ok(())
    }

    /// Destroys what it holds, after its work. Who retained it keeps it retained, and has to release it; the next retain
    /// makes it anew.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_primary_ctx_reset(&self, device: Device) -> Result<()> {
        let device = self.device(device)?;
        let mut retention = device.primary.retention.lock();
        let ended = self.take_primary(device, &mut retention);
        drop(retention);
        ended.iter().for_each(|state| self.end_context(state));
        Ok(())
    }

    /// Takes the live state, to be ended, from behind the handle; under the lock, or it would take one retained meanwhile.
    fn take_primary(&self, device: &DeviceState, retention: &mut Retention) -> Option<Arc<ContextState>> {
        let live = retention.live.take();
        if live.is_some() {
            self.deactivate_primary(device);
        }
        live
    }

    /// Sets its flags.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags.
    pub fn device_primary_ctx_set_flags(&self, device: Device, flags: u32) -> Result<()> {
        let device = self.device(device)?;
        check_flags(flags)?;
        let mut retention = device.primary.retention.lock();
        retention.flags = flags;
        if let Some(live) = &retention.live {
            live.set_flags(flags);
        }
        Ok(())
    }

    /// Its flags, and whether it is active.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_primary_ctx_get_state(&self, device: Device) -> Result<PrimaryState> {
        let device = self.device(device)?;
        let retention = device.primary.retention.lock();
        Ok(PrimaryState { flags: retention.flags, active: retention.live.is_some() })
    }

    /// Its handle, active or not.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_primary_ctx_handle(&self, device: Device) -> Result<Context> {
        Ok(self.device(device)?.primary.handle)
    }
}
