//! Kernel launches: the shape checked, the parameters gathered, one command submitted.

use gpu::{Command, MAX_PARAM_BYTES};

use crate::code::function::FunctionState;
use crate::device_attributes::{BLOCK_DIM, GRID_DIM, SHARED_PER_BLOCK_OPTIN};
use crate::error::{CudaError, Result};
use crate::values::{LaunchConfig, Params};
use crate::work::stream::StreamState;

/// Parameters up to this size, bytes, are gathered on the stack: those of nearly all kernels.
const SMALL: usize = 1024;

/// Launches a kernel in a stream of its context.
///
/// # Errors
/// As [`Driver::launch_kernel`](crate::Driver::launch_kernel).
pub(crate) fn launch(
    function: &FunctionState,
    stream: &StreamState,
    config: &LaunchConfig,
    params: Params<'_>,
) -> Result<()> {
    check(function, config, stream.queues.multiprocessors())?;
    let bytes = function.info.param_bytes as usize;
    if bytes > MAX_PARAM_BYTES {
        return Err(CudaError::INVALID_VALUE);
    }
    let (mut small, mut large);
    let block: &mut [u8] = if bytes <= SMALL {
        small = [0; SMALL];
        &mut small[..bytes]
    } else {
        large = vec![0; bytes];
        &mut large
    };
    gather(function, params, block)?;
    stream.submit(&[command(function, config, block)?])
}

/// The parameter block of a launch that is to come.
///
/// # Errors
/// `INVALID_VALUE` for shapes that cannot be launched and for missing parameters.
pub(crate) fn block(function: &FunctionState, config: &LaunchConfig, params: Params<'_>) -> Result<Vec<u8>> {
    block_on(function, config, all_multiprocessors(function), params)
}

/// As [`block`], on so many multiprocessors.
///
/// # Errors
/// As there.
pub(crate) fn block_on(
    function: &FunctionState,
    config: &LaunchConfig,
    multiprocessors: u32,
    params: Params<'_>,
) -> Result<Vec<u8>> {
    check(function, config, multiprocessors)?;
    let bytes = function.info.param_bytes as usize;
    if bytes > MAX_PARAM_BYTES {
        return Err(CudaError::INVALID_VALUE);
    }
    let mut block = vec![0; bytes];
    gather(function, params, &mut block)?;
    Ok(block)
}

/// The command for a launch whose shape was checked, with its parameter block.
///
/// # Errors
/// What is wrong with the kernel, or too large for it.
pub(crate) fn command<'a>(function: &FunctionState, config: &LaunchConfig, params: &'a [u8]) -> Result<Command<'a>> {
    let most_threads = function.prepare()?;
    if config.block.iter().product::<u32>() > most_threads {
        // What its threads would need of local memory, with the stack that the context asks for, is more than a block can have.
        return Err(CudaError::LAUNCH_OUT_OF_RESOURCES);
    }
    Ok(Command::Launch {
        module: function.module(),
        kernel: function.kernel,
        grid: config.grid,
        block: config.block,
        shared_bytes: config.shared_bytes,
        cooperative: config.cooperative,
        cluster: config.cluster,
        params,
    })
}

/// Copies the parameters into the block.
fn gather(function: &FunctionState, params: Params<'_>, block: &mut [u8]) -> Result<()> {
    match params {
        Params::Each(copy) => {
            for (index, &(offset, bytes)) in function.info.params.iter().enumerate() {
                let part = block.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..bytes as usize));
                if !copy(index, part.ok_or(CudaError::INVALID_IMAGE)?) {
                    return Err(CudaError::INVALID_VALUE);
                }
            }
        }
        Params::Packed(range) => {
            // Padding behind the last parameter may be missing.
            let needed = function.info.params.iter().map(|&(offset, bytes)| offset + bytes).max().unwrap_or(0);
            if range.len() < needed as usize {
                return Err(CudaError::INVALID_VALUE);
            }
            let most = range.len().min(block.len());
            range.read(&mut block[..most]);
        }
    }
    Ok(())
}

/// Most blocks of a cluster. A cluster runs on one processor of the host, so how many blocks fit a multiprocessor does not matter.
pub(crate) const MAX_CLUSTER: u32 = 8;

/// Checks the shape of a launch, on so many multiprocessors.
fn check(function: &FunctionState, config: &LaunchConfig, multiprocessors: u32) -> Result<()> {
    let within = |value: [u32; 3], most: [u32; 3]| value.iter().zip(most).all(|(&v, most)| v >= 1 && v <= most);
    let threads = config.block.iter().map(|&n| u64::from(n)).product::<u64>();
    if !within(config.grid, GRID_DIM) || !within(config.block, BLOCK_DIM) || threads > 1024 {
        return Err(CudaError::INVALID_VALUE);
    }
    if function.info.exact_ntid && function.info.max_ntid.is_some_and(|exact| exact != config.block) {
        return Err(CudaError::INVALID_VALUE);
    }
    // What the kernel was compiled for (`.maxntid`) and what its registers allow are one answer here, as on hardware.
    if threads > u64::from(function.max_threads()) {
        return Err(CudaError::INVALID_VALUE);
    }
    let shared = u64::from(config.shared_bytes) + u64::from(function.info.shared_bytes);
    if config.shared_bytes > function.max_dynamic() || shared > u64::from(SHARED_PER_BLOCK_OPTIN) {
        return Err(CudaError::INVALID_VALUE);
    }
    check_together(function, config, multiprocessors)
}

/// A cluster of such a launch: what the kernel requires, or else what the launch says; and how many blocks it has.
///
/// # Errors
/// `INVALID_CLUSTER_SIZE` for more than [`MAX_CLUSTER`], or none, and for another size than the kernel's.
pub(crate) fn cluster_of(function: &FunctionState, config: &LaunchConfig) -> Result<([u32; 3], u32)> {
    let cluster = match function.clusters.size {
        Some(own) if config.cluster != [1; 3] && config.cluster != own => return Err(CudaError::INVALID_CLUSTER_SIZE),
        Some(own) => own,
        None => config.cluster,
    };
    Ok((cluster, cluster_blocks(cluster)?))
}

/// Blocks of a cluster.
///
/// # Errors
/// `INVALID_CLUSTER_SIZE` for more than [`MAX_CLUSTER`], or none.
pub(crate) fn cluster_blocks(cluster: [u32; 3]) -> Result<u32> {
    let blocks = cluster.iter().try_fold(1, |all: u32, n| all.checked_mul(*n));
    blocks.filter(|blocks| (1..=MAX_CLUSTER).contains(blocks)).ok_or(CudaError::INVALID_CLUSTER_SIZE)
}

/// All multiprocessors of a function's device.
pub(crate) fn all_multiprocessors(function: &FunctionState) -> u32 {
    function.core.link().properties().multiprocessors
}

/// Checks the clusters of a launch, and that all blocks of a cooperative launch can run on so many multiprocessors at once, if it is
/// one, and its shape a possible one.
///
/// # Errors
/// `INVALID_CLUSTER_SIZE` for clusters of more than [`MAX_CLUSTER`] blocks, `INVALID_VALUE` for a grid that is no multiple of them,
/// `COOPERATIVE_LAUNCH_TOO_LARGE`.
pub(crate) fn check_together(function: &FunctionState, config: &LaunchConfig, multiprocessors: u32) -> Result<()> {
    let (cluster, blocks) = cluster_of(function, config)?;
    let counted = function.clusters.counted;
    if !counted && config.grid.iter().zip(cluster).any(|(all, of)| !all.is_multiple_of(of)) {
        return Err(CudaError::INVALID_VALUE);
    }
    if config.cooperative {
        let fit = function.active_blocks(config.block.iter().product(), u64::from(config.shared_bytes));
        let all = u64::from(fit) * u64::from(multiprocessors);
        let each = if counted { u64::from(blocks) } else { 1 };
        if config.grid.iter().map(|&n| u64::from(n)).fold(each, u64::saturating_mul) > all {
            return Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}
