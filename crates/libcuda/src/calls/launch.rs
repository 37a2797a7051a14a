//! Launches of kernels and of the program's own functions, and what fits.

use cuda_abi::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUresult, CUstream,
    HostAddr,
};
use cuda_core::{Driver, Event, LaunchConfig, Params};

use crate::callback;
use crate::decode::{Core, In, Out, in_at, range};
use crate::entry::{Answer, Refusal, refuse};

/// Ends the list `extra`.
const LAUNCH_PARAM_END: u64 = 0;
/// In `extra`: the next element is the address of the parameter block.
const LAUNCH_PARAM_BUFFER_POINTER: u64 = 1;
/// In `extra`: the next element is the address of the parameter block's size.
const LAUNCH_PARAM_BUFFER_SIZE: u64 = 2;
/// Most words of `extra` that are looked at; two pairs and an end make sense.
const MAX_EXTRA: usize = 16;
/// Most attributes of a launch; there are fewer kinds than this.
const MAX_ATTRIBUTES: u32 = 64;

/// Launches with the parameters from `kernelParams`, or from the block that `extra` describes.
fn launch(
    driver: &Driver,
    function: CUfunction,
    config: &LaunchConfig,
    params: In<HostAddr>,
    extra: In<HostAddr>,
) -> Answer {
    let function = function.core();
    with_params(params, extra, |params| Ok(driver.launch_kernel(function, config, params)?))
}

/// Calls `f` with the parameters from `kernelParams`, or from the block that `extra` describes.
pub(crate) fn with_params<R>(
    params: In<HostAddr>,
    extra: In<HostAddr>,
    f: impl FnOnce(Params<'_>) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    if !extra.is_null() {
        if !params.is_null() {
            return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        return f(packed(extra)?);
    }
    if params.is_null() {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        return f(Params::Packed(unsafe { range(0u64, 0) }?));
    }
    f(Params::Each(&mut from_each(params)))
}

/// Parameters from `kernelParams`: an address for each.
fn from_each(params: In<HostAddr>) -> impl FnMut(usize, &mut [u8]) -> bool {
    move |index, out| {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let value = unsafe { params.get_at(index) }.and_then(|at| unsafe { range(at.0, out.len()) });
        value.is_ok_and(|value| {
            value.read(out);
            true
        })
    }
}

fn packed(extra: In<HostAddr>) -> Result<Params<'static>, Refusal> {
    let (mut block, mut bytes) = (HostAddr::NULL, 0);
    for index in (0..MAX_EXTRA).step_by(2) {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let value = || unsafe { extra.get_at(index + 1) };
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        match unsafe { extra.get_at(index) }?.0 {
            // SAFETY: the C caller promised memory there, so much of it (`decode`).
            LAUNCH_PARAM_END => return Ok(Params::Packed(unsafe { range(block.0, bytes) }?)),
            LAUNCH_PARAM_BUFFER_POINTER => block = value()?,
            // SAFETY: the C caller promised memory there, so much of it (`decode`).
            LAUNCH_PARAM_BUFFER_SIZE => bytes = unsafe { in_at::<usize>(value()?) }.get()?,
            _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    refuse(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn launch_kernel(
    driver: &Driver,
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    params: In<HostAddr>,
    extra: In<HostAddr>,
) -> Answer {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    launch(driver, function, &LaunchConfig::new(grid, block, shared_bytes, stream.core()), params, extra)
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn launch_cooperative_kernel(
    driver: &Driver,
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    params: In<HostAddr>,
) -> Answer {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let mut config = LaunchConfig::new(grid, block, shared_bytes, stream.core());
    config.cooperative = true;
    launch(driver, function, &config, params, In::none())
}

/// Flags of [`launch_cooperative_kernel_multi_device`]: kernels wait for their own streams only, and only they are waited for there.
const NO_PRE_LAUNCH_SYNC: u32 = 1;
const NO_POST_LAUNCH_SYNC: u32 = 2;

pub(crate) fn launch_cooperative_kernel_multi_device(
    driver: &Driver,
    list: In<CUDA_LAUNCH_PARAMS>,
    count: u32,
    flags: u32,
) -> Answer {
    if count == 0
        || count as usize > driver.properties().count()
        || flags & !(NO_PRE_LAUNCH_SYNC | NO_POST_LAUNCH_SYNC) != 0
    {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let list = unsafe { list.list(count as usize) }?;
    // SAFETY: as above: of each an array with an address for each parameter.
    let mut each: Vec<_> = list.iter().map(|of| from_each(unsafe { in_at(of.kernel_params) })).collect();
    let mut launches: Vec<_> = list
        .iter()
        .zip(&mut each)
        .map(|(of, each)| {
            let grid = [of.grid_dim_x, of.grid_dim_y, of.grid_dim_z];
            let block = [of.block_dim_x, of.block_dim_y, of.block_dim_z];
            let config = LaunchConfig::new(grid, block, of.shared_mem_bytes, of.h_stream.core());
            (of.function.core(), config, Params::Each(each))
        })
        .collect();
    let waits = [flags & NO_PRE_LAUNCH_SYNC == 0, flags & NO_POST_LAUNCH_SYNC == 0];
    Ok(driver.launch_on_several_devices(&mut launches, waits)?)
}

pub(crate) fn launch_kernel_ex(
    driver: &Driver,
    default: CUstream,
    config: In<CUlaunchConfig>,
    function: CUfunction,
    params: In<HostAddr>,
    extra: In<HostAddr>,
) -> Answer {
    launch(driver, function, &launch_config(config, default)?, params, extra)
}

/// The configuration with those attributes that change what is computed; the others are hints for hardware.
fn launch_config(config: In<CUlaunchConfig>, default: CUstream) -> Result<LaunchConfig, Refusal> {
    let config = config.get()?;
    let grid = [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z];
    let block = [config.block_dim_x, config.block_dim_y, config.block_dim_z];
    let stream = if config.h_stream.is_null() { default } else { config.h_stream };
    let mut decoded = LaunchConfig::new(grid, block, config.shared_mem_bytes, stream.core());
    if config.num_attrs > MAX_ATTRIBUTES {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let attributes = unsafe { in_at::<CUlaunchAttribute>(config.attrs) };
    for index in 0..config.num_attrs as usize {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let attribute = unsafe { attributes.get_at(index) }?;
        let [first, second, ..] = attribute.value.words;
        match attribute.id {
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => decoded.cooperative = first as u32 != 0,
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                decoded.cluster = [first as u32, (first >> 32) as u32, second as u32];
            }
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
            | CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => decoded.event = Event(first),
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE if first as u32 != 0 => {
                return refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            _ => {}
        }
    }
    Ok(decoded)
}

pub(crate) fn launch_host_func(driver: &Driver, stream: CUstream, function: HostAddr, data: HostAddr) -> Answer {
    let repeated = callback::repeated(function, data)?;
    if driver.capture_host_func(stream.core(), || repeated)? {
        return Ok(());
    }
    Ok(driver.launch_host_func(stream.core(), callback::host_function(function, data)?)?)
}

/// The mode says how the driver's thread shall wait, which is ours to choose.
pub(crate) fn launch_host_func_v2(
    driver: &Driver,
    stream: CUstream,
    function: HostAddr,
    data: HostAddr,
    _sync_mode: u32,
) -> Answer {
    launch_host_func(driver, stream, function, data)
}

pub(crate) fn stream_add_callback(
    driver: &Driver,
    stream: CUstream,
    function: HostAddr,
    data: HostAddr,
    flags: u32,
) -> Answer {
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(driver.stream_add_callback(stream.core(), callback::stream_callback(stream, function, data)?)?)
}

pub(crate) fn occupancy_max_active_blocks_per_multiprocessor(
    driver: &Driver,
    blocks: Out<i32>,
    function: CUfunction,
    block: i32,
    shared_bytes: usize,
) -> Answer {
    occupancy_max_active_blocks_per_multiprocessor_with_flags(driver, blocks, function, block, shared_bytes, 0)
}

pub(crate) fn occupancy_max_active_blocks_per_multiprocessor_with_flags(
    driver: &Driver,
    blocks: Out<i32>,
    function: CUfunction,
    block: i32,
    shared_bytes: usize,
    flags: u32,
) -> Answer {
    blocks.required()?;
    let function = function.core();
    blocks.set(driver.occupancy_max_active_blocks_per_multiprocessor(function, block, shared_bytes as u64, flags)?);
    Ok(())
}

pub(crate) fn occupancy_max_potential_block_size(
    driver: &Driver,
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_of_block: HostAddr,
    shared_bytes: usize,
    limit: i32,
) -> Answer {
    occupancy_max_potential_block_size_with_flags(
        driver,
        grid,
        block,
        function,
        shared_of_block,
        shared_bytes,
        limit,
        0,
    )
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn occupancy_max_potential_block_size_with_flags(
    driver: &Driver,
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_of_block: HostAddr,
    shared_bytes: usize,
    limit: i32,
    flags: u32,
) -> Answer {
    grid.required()?;
    block.required()?;
    let shared = callback::shared_of_block(shared_of_block, shared_bytes as u64);
    let best = driver.occupancy_max_potential_block_size(function.core(), &*shared, limit, flags)?;
    grid.set(best.0);
    block.set(best.1);
    Ok(())
}

pub(crate) fn occupancy_available_dynamic_smem_per_block(
    driver: &Driver,
    bytes: Out<usize>,
    function: CUfunction,
    blocks: i32,
    block: i32,
) -> Answer {
    bytes.required()?;
    bytes.set(driver.occupancy_available_dynamic_smem_per_block(function.core(), blocks, block)?);
    Ok(())
}

pub(crate) fn occupancy_max_potential_cluster_size(
    driver: &Driver,
    size: Out<i32>,
    function: CUfunction,
    _config: In<CUlaunchConfig>,
) -> Answer {
    size.required()?;
    size.set(driver.occupancy_max_potential_cluster_size(function.core())?);
    Ok(())
}

pub(crate) fn occupancy_max_active_clusters(
    driver: &Driver,
    clusters: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> Answer {
    clusters.required()?;
    let config = launch_config(config, CUstream::NULL)?;
    clusters.set(driver.occupancy_max_active_clusters(function.core(), &config)?);
    Ok(())
}
