//! `CUlimit`s of a context.

use crate::error::{CudaError, Result};

const STACK_SIZE: u32 = 0;
const PRINTF_FIFO_SIZE: u32 = 1;
const MALLOC_HEAP_SIZE: u32 = 2;
const DEV_RUNTIME_SYNC_DEPTH: u32 = 3;
const DEV_RUNTIME_PENDING_LAUNCH_COUNT: u32 = 4;
const MAX_L2_FETCH_GRANULARITY: u32 = 5;
const PERSISTING_L2_CACHE_SIZE: u32 = 6;
/// Whether the context shares the GPU with graphics (`CU_LIMIT_CIG_ENABLED`): none does.
const CIG_ENABLED: u32 = 8;

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
            stack_bytes: gpu::STACK_BYTES.into(),
            printf_bytes: 1 << 20,
            heap_bytes: 8 << 20,
            sync_depth: 2,
            pending_launches: 2048,
            l2_fetch: 64,
        }
    }
}

impl Limits {
    /// Sets a `CUlimit`. FIFO and heap are made at a context's first work (`started`): their sizes are fixed from then on.
    ///
    /// # Errors
    /// `INVALID_VALUE` for values that cannot be or come too late, `UNSUPPORTED_LIMIT`.
    pub(crate) fn set(&mut self, limit: u32, value: u64, started: bool) -> Result<()> {
        match limit {
            STACK_SIZE if value > 512 << 10 => return Err(CudaError::INVALID_VALUE),
            STACK_SIZE => self.stack_bytes = value.next_multiple_of(16),
            PRINTF_FIFO_SIZE | MALLOC_HEAP_SIZE if value > MOST_BYTES => return Err(CudaError::INVALID_VALUE),
            PRINTF_FIFO_SIZE => {
                let bytes = value.max(4096).next_multiple_of(4096);
                if started && bytes != self.printf_bytes {
                    return Err(CudaError::INVALID_VALUE);
                }
                self.printf_bytes = bytes;
            }
            MALLOC_HEAP_SIZE => {
                let bytes = value.max(4096).next_multiple_of(4096);
                if started && bytes > self.heap_bytes {
                    return Err(CudaError::INVALID_VALUE);
                }
                if !started {
                    self.heap_bytes = bytes;
                }
            }
            DEV_RUNTIME_SYNC_DEPTH => return Err(CudaError::UNSUPPORTED_LIMIT),
            DEV_RUNTIME_PENDING_LAUNCH_COUNT => self.pending_launches = value,
            MAX_L2_FETCH_GRANULARITY if value > 128 => return Err(CudaError::INVALID_VALUE),
            MAX_L2_FETCH_GRANULARITY => self.l2_fetch = value,
            PERSISTING_L2_CACHE_SIZE | CIG_ENABLED => return Err(CudaError::UNSUPPORTED_LIMIT),
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// A `CUlimit`.
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT` for unknown ones.
    pub(crate) fn get(&self, limit: u32) -> Result<u64> {
        Ok(match limit {
            STACK_SIZE => self.stack_bytes,
            PRINTF_FIFO_SIZE => self.printf_bytes,
            MALLOC_HEAP_SIZE => self.heap_bytes,
            DEV_RUNTIME_SYNC_DEPTH => self.sync_depth,
            DEV_RUNTIME_PENDING_LAUNCH_COUNT => self.pending_launches,
            MAX_L2_FETCH_GRANULARITY => self.l2_fetch,
            PERSISTING_L2_CACHE_SIZE | CIG_ENABLED => 0,
            _ => return Err(CudaError::UNSUPPORTED_LIMIT),
        })
    }
}
