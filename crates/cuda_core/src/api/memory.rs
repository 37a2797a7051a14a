//! Linear device memory.

use std::sync::Arc;

use gpu::{DevAddr, Request, Response};

use crate::context::state::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, Wanted};

/// Alignment of lines, bytes.
const PITCH: u64 = 512;

impl Driver {
    /// Free and total bytes.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn mem_get_info(&self) -> Result<(u64, u64)> {
        let context = self.current()?;
        match context.core.link().request(Request::MemoryInfo)? {
            Response::Memory { free, total } => Ok(((free + context.core.memory().spare_bytes()).min(total), total)),
            _ => Err(CudaError::UNKNOWN),
        }
    }

    /// Allocates device memory, aligned to 512 bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn mem_alloc(&self, bytes: u64) -> Result<DevAddr> {
        self.potentially_unsafe()?;
        let context = self.current()?;
        let made = self.alloc_device(&context, Wanted::new(bytes, Kind::Device, context.core.id))?;
        self.keep_in(&context, &made)?;
        Ok(DevAddr(made.base))
    }

    /// Allocates device memory of a context, which may be ending; if need be waits for it.
    pub(crate) fn alloc_device(&self, context: &ContextState, wanted: Wanted) -> Result<Arc<Allocation>> {
        let (memory, pools) = (context.core.memory(), &self.device_of(context).pools);
        let mut place = memory.place();
        let mut made = memory.try_alloc(wanted, &mut place).or_else(|error| {
            // Memory that is kept for later comes first.
            let short = matches!(error, CudaError::OUT_OF_MEMORY | CudaError::NOT_READY);
            if short && pools.squeeze() { memory.try_alloc(wanted, &mut place) } else { Err(error) }
        });
        while matches!(made, Err(CudaError::NOT_READY)) {
            pools.wait(&place, &|| context.dead())?;
            made = memory.try_alloc(wanted, &mut place);
        }
        made
    }

    /// Allocates memory of a context, which may be ending, that the host sees.
    pub(crate) fn alloc_in(&self, context: &ContextState, wanted: Wanted) -> Result<u64> {
        let made = context.core.memory().alloc_host(wanted)?;
        self.keep_in(context, &made)?;
        Ok(made.base)
    }

    /// Takes an allocation back if its context has ended while it was made.
    pub(crate) fn keep_in(&self, context: &ContextState, made: &Allocation) -> Result<()> {
        context.alive_or(|| self.memory.release(made))
    }

    /// Allocates lines; returns the pitch too.
    ///
    /// # Errors
    /// `INVALID_VALUE` for sizes of 0 or elements of other than 4, 8 or 16 bytes, `OUT_OF_MEMORY`.
    pub fn mem_alloc_pitch(&self, width: u64, height: u64, element_bytes: u32) -> Result<(DevAddr, u64)> {
        self.current()?;
        if width == 0 || height == 0 || !matches!(element_bytes, 4 | 8 | 16) {
            return Err(CudaError::INVALID_VALUE);
        }
        let pitch = width.checked_next_multiple_of(PITCH).ok_or(CudaError::OUT_OF_MEMORY)?;
        let bytes = pitch.checked_mul(height).ok_or(CudaError::OUT_OF_MEMORY)?;
        Ok((self.mem_alloc(bytes)?, pitch))
    }

    /// Frees device memory, after the work that may use it. Null is nothing.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation begins there; the context's error.
    pub fn mem_free(&self, address: DevAddr) -> Result<()> {
        self.potentially_unsafe()?;
        let current = self.current()?;
        if address.0 == 0 {
            return Ok(());
        }
        let found = self.memory.find(address.0).ok_or(CudaError::INVALID_VALUE)?;
        if found.kind.pooled() && found.base == address.0 {
            current.queues.whole().synchronize()?;
            return self.pools_of(&found).free(&found, None);
        }
        if found.kind == Kind::Graph && found.base == address.0 {
            current.queues.whole().synchronize()?;
            return self.memory.of(found.gpu).graph_free(address.0, None);
        }
        if found.kind == Kind::Imported && !found.pool.is_null() && found.base == address.0 {
            return self.close_imported(&current, &found);
        }
        let freeable = |found: &Allocation| matches!(found.kind, Kind::Device | Kind::Managed);
        if found.base != address.0 || !freeable(&found) {
            return Err(CudaError::INVALID_VALUE);
        }
        self.quiesce(&current, found.context)?;
        let found = self.memory.forget(address.0, freeable).ok_or(CudaError::INVALID_VALUE)?;
        self.recycle(&found);
        Ok(())
    }

    /// Gives the memory of a forgotten allocation back, which no work uses any more, to whoever allocates or waits.
    pub(crate) fn recycle(&self, found: &Allocation) {
        self.memory.recycle(found);
        self.pools_of(found).begin_to_attend();
    }

    /// Waits for the work of the current context and of the one that owns some memory.
    pub(crate) fn quiesce(&self, current: &ContextState, owner: gpu::ContextId) -> Result<()> {
        current.queues.whole().synchronize()?;
        if owner != current.core.id
            && let Some(owner) = self.contexts.all().into_iter().find(|context| context.core.id == owner)
            && !owner.core.dead()
        {
            // Work that failed does not use memory any more.
            let _ = owner.queues.whole().synchronize();
        }
        Ok(())
    }

    /// Base and size of the allocation around an address.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none.
    pub fn mem_get_address_range(&self, address: DevAddr) -> Result<(DevAddr, u64)> {
        self.current()?;
        let found = self.memory.find(address.0).ok_or(CudaError::NOT_FOUND)?;
        Ok((DevAddr(found.base), found.bytes))
    }
}
