//! Occupancy: how many blocks of a kernel fit a multiprocessor.

use std::sync::Arc;

use crate::code::function::FunctionState;
use crate::code::occupancy::SHARED_UNIT;
use crate::device_attributes::{SHARED_PER_BLOCK_OPTIN, SHARED_PER_SM, SHARED_RESERVED, WARP};
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Function;
use crate::values::LaunchConfig;
use crate::work::launch::{MAX_CLUSTER, all_multiprocessors, cluster_of};

impl Driver {
    /// Blocks that fit a multiprocessor at once. `flags` may disable the caching override, which changes nothing here.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a block size below 1 or unknown flags, `INVALID_HANDLE`.
    pub fn occupancy_max_active_blocks_per_multiprocessor(
        &self,
        function: Function,
        block: i32,
        shared_bytes: u64,
        flags: u32,
    ) -> Result<i32> {
        let function = self.function(function)?;
        let block = u32::try_from(block).ok().filter(|&block| block > 0 && flags <= 1);
        let block = block.ok_or(CudaError::INVALID_VALUE)?;
        Ok(function.active_blocks(block, shared_bytes) as i32)
    }

    /// Smallest grid and the block size with the highest occupancy; `limit` 0 is none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a negative limit or unknown flags, `INVALID_HANDLE`.
    pub fn occupancy_max_potential_block_size(
        &self,
        function: Function,
        shared_of_block: &dyn Fn(i32) -> u64,
        limit: i32,
        flags: u32,
    ) -> Result<(i32, i32)> {
        let function = self.function(function)?;
        if limit < 0 || flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        let most = function.max_threads();
        let most = if limit == 0 { most } else { most.min(limit as u32) };
        let (mut best, mut best_block, mut best_threads) = (0, 0, 0);
        let mut block = most;
        while block > 0 {
            let blocks = function.active_blocks(block, shared_of_block(block as i32));
            if blocks * block > best_threads {
                (best, best_block, best_threads) = (blocks, block, blocks * block);
            }
            block = if block.is_multiple_of(WARP) { block - WARP } else { block / WARP * WARP };
        }
        let grid = best.saturating_mul(self.multiprocessors_for(&function));
        Ok((i32::try_from(grid).unwrap_or(i32::MAX), best_block as i32))
    }

    /// Dynamic shared memory that lets `blocks` blocks fit, as far as a launch may ask for it.
    ///
    /// # Errors
    /// `INVALID_VALUE` if so many cannot fit at all, `INVALID_HANDLE`.
    pub fn occupancy_available_dynamic_smem_per_block(
        &self,
        function: Function,
        blocks: i32,
        block: i32,
    ) -> Result<u64> {
        let function = self.function(function)?;
        let positive = |value: i32| u32::try_from(value).ok().filter(|&value| value > 0);
        let (Some(blocks), Some(block)) = (positive(blocks), positive(block)) else {
            return Err(CudaError::INVALID_VALUE);
        };
        if function.active_blocks(block, 0) < blocks {
            return Err(CudaError::INVALID_VALUE);
        }
        let each = u64::from(SHARED_PER_SM / blocks) / SHARED_UNIT * SHARED_UNIT - u64::from(SHARED_RESERVED);
        let left = each.min(SHARED_PER_BLOCK_OPTIN.into()).saturating_sub(function.info.shared_bytes.into());
        Ok(left.min(function.max_dynamic().into()))
    }

    /// Largest cluster, in blocks.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn occupancy_max_potential_cluster_size(&self, function: Function) -> Result<i32> {
        self.function(function).map(|_| MAX_CLUSTER as i32)
    }

    /// Clusters that fit the device at once: one always does of which a block does.
    ///
    /// # Errors
    /// `INVALID_CLUSTER_SIZE` for clusters that are too large, or another size than the kernel's, `INVALID_HANDLE`.
    pub fn occupancy_max_active_clusters(&self, function: Function, config: &LaunchConfig) -> Result<i32> {
        let function = self.function(function)?;
        let (_, size) = cluster_of(&function, config)?;
        let threads = config.block.iter().map(|&n| u64::from(n)).fold(1, u64::saturating_mul);
        let threads = u32::try_from(threads).map_err(|_| CudaError::INVALID_VALUE)?;
        let blocks = function.active_blocks(threads, config.shared_bytes.into());
        let all = blocks.saturating_mul(self.multiprocessors_for(&function));
        let clusters = if all == 0 { 0 } else { (all / size).max(1) };
        Ok(i32::try_from(clusters).unwrap_or(i32::MAX))
    }

    /// How many multiprocessors a function would have now: those of the current context, if it is one of the function's.
    fn multiprocessors_for(&self, function: &FunctionState) -> u32 {
        let current = self.current_any().ok().filter(|context| Arc::ptr_eq(&context.core, &function.core));
        current.map_or_else(|| all_multiprocessors(function), |context| context.queues.multiprocessors())
    }
}
