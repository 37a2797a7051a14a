//! What fits a multiprocessor, from the limits of compute capability 12.0.

use crate::device_attributes::{BLOCKS_PER_SM, REGISTERS, SHARED_PER_SM, SHARED_RESERVED, THREADS_PER_SM, WARP};
/// Registers are given to a warp in units of so many.
const REGISTER_UNIT: u32 = 256;
/// Most registers of a thread.
const MOST_REGISTERS: u32 = 255;
/// Warps are placed on so many parts of a multiprocessor, each with its share of the registers.
const PARTITIONS: u32 = 4;
/// Shared memory is given to a block in units of so many bytes.
pub(crate) const SHARED_UNIT: u64 = 128;

/// Most registers per thread with which a block of so many threads fits a multiprocessor.
pub(crate) fn most_registers(block: u32) -> u32 {
    let warps_per_partition = block.div_ceil(WARP).div_ceil(PARTITIONS).max(1);
    let per_warp = REGISTERS / PARTITIONS / warps_per_partition / REGISTER_UNIT * REGISTER_UNIT;
    (per_warp / WARP).min(MOST_REGISTERS)
}

/// Blocks of so many threads, registers per thread and bytes of shared memory that fit a multiprocessor at once.
pub(crate) fn fit(block: u32, registers: u32, shared: u64) -> u32 {
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

    #[test]
    fn a_block_fits_with_the_most_registers_and_no_more() {
        for block in 1..=1024 {
            let most = most_registers(block);
            assert!(fit(block, most, 0) >= 1, "{block} threads, {most} registers");
            assert!(most == MOST_REGISTERS || fit(block, most + 1, 0) == 0, "{block} threads, {most} registers");
        }
    }
}
