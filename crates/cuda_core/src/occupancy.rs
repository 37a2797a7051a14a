//! Occupancy, from the limits of compute capability 12.0.

use crate::device_attributes::{
    BLOCKS_PER_SM, REGISTERS, SHARED_PER_BLOCK_OPTIN, SHARED_PER_SM, SHARED_RESERVED, THREADS_PER_SM, WARP,
};
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::function::FunctionState;
use crate::handle::Function;
use crate::types::LaunchConfig;

/// Registers are given to a warp in units of so many.
const REGISTER_UNIT: u32 = 256;
/// Warps are placed on so many parts of a multiprocessor, each with its share of the registers.
const PARTITIONS: u32 = 4;
/// Shared memory is given to a block in units of so many bytes.
const SHARED_UNIT: u64 = 128;

/// Blocks of a function that fit a multiprocessor at once.
pub(crate) fn active_blocks(function: &FunctionState, block: u32, dynamic: u64) -> u32 {
    let info = &function.info;
    let shared = u64::from(info.shared_bytes) + dynamic;
    if block > function.max_threads() || shared > u64::from(SHARED_PER_BLOCK_OPTIN) {
        return 0;
    }
    fit(block, info.registers, shared)
}

/// Blocks of so many threads, registers per thread and bytes of shared memory that fit a multiprocessor at once.
fn fit(block: u32, registers: u32, shared: u64) -> u32 {
    if block == 0 {
        return 0;
    }
    let warps = block.div_ceil(WARP);
    let by_warps = THREADS_PER_SM / WARP / warps;
    let per_warp = (registers.max(1) * WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = REGISTERS / PARTITIONS / per_warp * PARTITIONS / warps;
    let per_block = (shared + u64::from(SHARED_RESERVED)).next_multiple_of(SHARED_UNIT);
    let by_shared = (u64::from(SHARED_PER_SM) / per_block) as u32;
    by_warps.min(by_registers).min(by_shared).min(BLOCKS_PER_SM)
}

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
        Ok(active_blocks(&function, block, shared_bytes) as i32)
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
            let blocks = active_blocks(&function, block, shared_of_block(block as i32));
            if blocks * block > best_threads {
                (best, best_block, best_threads) = (blocks, block, blocks * block);
            }
            block = if block.is_multiple_of(WARP) { block - WARP } else { block / WARP * WARP };
        }
        let grid = best.saturating_mul(self.properties().multiprocessors);
        Ok((i32::try_from(grid).unwrap_or(i32::MAX), best_block as i32))
    }

    /// Dynamic shared memory that lets `blocks` blocks fit.
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
        if active_blocks(&function, block, 0) < blocks {
            return Err(CudaError::INVALID_VALUE);
        }
        let each = u64::from(SHARED_PER_SM / blocks) / SHARED_UNIT * SHARED_UNIT - u64::from(SHARED_RESERVED);
        Ok(each.min(SHARED_PER_BLOCK_OPTIN.into()).saturating_sub(function.info.shared_bytes.into()))
    }

    /// Largest cluster: one block.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn occupancy_max_potential_cluster_size(&self, function: Function) -> Result<i32> {
        self.function(function).map(|_| 1)
    }

    /// Clusters that fit the device at once.
    ///
    /// # Errors
    /// `INVALID_CLUSTER_SIZE` for clusters of more than one block, `INVALID_HANDLE`.
    pub fn occupancy_max_active_clusters(&self, function: Function, config: &LaunchConfig) -> Result<i32> {
        let function = self.function(function)?;
        if config.cluster.iter().any(|&n| n > 1) {
            return Err(CudaError::INVALID_CLUSTER_SIZE);
        }
        let threads = config.block.iter().map(|&n| u64::from(n)).fold(1, u64::saturating_mul);
        let threads = u32::try_from(threads).map_err(|_| CudaError::INVALID_VALUE)?;
        let blocks = active_blocks(&function, threads, config.shared_bytes.into());
        let all = blocks.saturating_mul(self.properties().multiprocessors);
        Ok(i32::try_from(all).unwrap_or(i32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_occupancy_calculator_says() {
        // threads, registers, shared bytes, blocks
        let table = [
            (32, 16, 0, 24),
            (128, 32, 0, 12),
            (256, 32, 0, 6),
            (1024, 32, 0, 1),
            (1024, 64, 0, 1),
            (1024, 65, 0, 0),
            (256, 255, 0, 1),
            (128, 96, 0, 5),
            (64, 32, 48 << 10, 2),
            (64, 32, 99 << 10, 1),
            (64, 32, 33 << 10, 2),
            (33, 32, 0, 24),
            (768, 32, 0, 2),
        ];
        for (block, registers, shared, blocks) in table {
            assert_eq!(fit(block, registers, shared), blocks, "{block} threads, {registers} registers, {shared} bytes");
        }
    }
}
