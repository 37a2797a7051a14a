//! `CUlimit`s of a context.

use crate::driver::Driver;
use crate::error::{CudaError, Result};

const STACK_SIZE: u32 = 0;
const PRINTF_FIFO_SIZE: u32 = 1;
const MALLOC_HEAP_SIZE: u32 = 2;
const DEV_RUNTIME_SYNC_DEPTH: u32 = 3;
const DEV_RUNTIME_PENDING_LAUNCH_COUNT: u32 = 4;
const MAX_L2_FETCH_GRANULARITY: u32 = 5;
const PERSISTING_L2_CACHE_SIZE: u32 = 6;

/// Most bytes of a printf FIFO or a heap: what a tenant's own memory limit does not catch is caught here.
const MOST_BYTES: u64 = 1 << 36;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) stack_bytes: u64,
    pub(crate) printf_bytes: u64,
    pub(crate) heap_bytes: u64,
    sync_depth: u64,
    pending_launches: u64,
    l2_fetch: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            stack_bytes: 1024,
            printf_bytes: 1 << 20,
            heap_bytes: 8 << 20,
            sync_depth: 2,
            pending_launches: 2048,
            l2_fetch: 64,
        }
    }
}

impl Driver {
    /// Sets a `CUlimit`. FIFO and heap are made at a context's first work; their sizes are fixed from then on.
    ///
    /// # Errors
    /// `INVALID_VALUE` for values that cannot be or come too late, `UNSUPPORTED_LIMIT`.
    pub fn ctx_set_limit(&self, limit: u32, value: u64) -> Result<()> {
        let context = self.current()?;
        let started = context.on_gpu();
        let mut limits = context.limits.lock();
        match limit {
            STACK_SIZE if value > 512 << 10 => return Err(CudaError::INVALID_VALUE),
            STACK_SIZE => limits.stack_bytes = value.next_multiple_of(16),
            PRINTF_FIFO_SIZE | MALLOC_HEAP_SIZE if value > MOST_BYTES => return Err(CudaError::INVALID_VALUE),
            PRINTF_FIFO_SIZE => {
                let bytes = value.max(4096).next_multiple_of(4096);
                if started && bytes != limits.printf_bytes {
                    return Err(CudaError::INVALID_VALUE);
                }
                limits.printf_bytes = bytes;
            }
            MALLOC_HEAP_SIZE => {
                let bytes = value.max(4096).next_multiple_of(4096);
                if started && bytes > limits.heap_bytes {
                    return Err(CudaError::INVALID_VALUE);
                }
                if !started {
                    limits.heap_bytes = bytes;
                }
            }
            DEV_RUNTIME_SYNC_DEPTH => return Err(CudaError::UNSUPPORTED_LIMIT),
            DEV_RUNTIME_PENDING_LAUNCH_COUNT => limits.pending_launches = value,
            MAX_L2_FETCH_GRANULARITY if value > 128 => return Err(CudaError::INVALID_VALUE),
            MAX_L2_FETCH_GRANULARITY => limits.l2_fetch = value,
            PERSISTING_L2_CACHE_SIZE => return Err(CudaError::UNSUPPORTED_LIMIT),
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// A `CUlimit`.
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT`, `INVALID_VALUE` for unknown ones.
    pub fn ctx_get_limit(&self, limit: u32) -> Result<u64> {
        let limits = *self.current()?.limits.lock();
        Ok(match limit {
            STACK_SIZE => limits.stack_bytes,
            PRINTF_FIFO_SIZE => limits.printf_bytes,
            MALLOC_HEAP_SIZE => limits.heap_bytes,
            DEV_RUNTIME_SYNC_DEPTH => limits.sync_depth,
            DEV_RUNTIME_PENDING_LAUNCH_COUNT => limits.pending_launches,
            MAX_L2_FETCH_GRANULARITY => limits.l2_fetch,
            PERSISTING_L2_CACHE_SIZE => 0,
            _ => return Err(CudaError::UNSUPPORTED_LIMIT),
        })
    }
}
