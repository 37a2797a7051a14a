//! Exported functions implemented by `calls::launch`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchConfig, CUresult, CUstream, HostAddr};

use crate::calls::launch;
use crate::decode::{In, Out};
use crate::entry::Entry;
use crate::start::{DEFAULT_STREAM, per_thread};

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchCooperativeKernel(
    f: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    h_stream: CUstream,
    kernel_params: In<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchCooperativeKernel");
    ENTRY.call(|driver| {
        launch::launch_cooperative_kernel(
            driver,
            f,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x,
            block_dim_y,
            block_dim_z,
            shared_mem_bytes,
            h_stream,
            kernel_params,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchCooperativeKernel_ptsz(
    f: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    h_stream: CUstream,
    kernel_params: In<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchCooperativeKernel_ptsz");
    ENTRY.call(|driver| {
        launch::launch_cooperative_kernel(
            driver,
            f,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x,
            block_dim_y,
            block_dim_z,
            shared_mem_bytes,
            per_thread(h_stream),
            kernel_params,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchCooperativeKernelMultiDevice(
    launch_params_list: In<CUDA_LAUNCH_PARAMS>,
    num_devices: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchCooperativeKernelMultiDevice");
    ENTRY.call(|driver| launch::launch_cooperative_kernel_multi_device(driver, launch_params_list, num_devices, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchHostFunc(h_stream: CUstream, function: HostAddr, user_data: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchHostFunc");
    ENTRY.call(|driver| launch::launch_host_func(driver, h_stream, function, user_data))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchHostFunc_v2(
    h_stream: CUstream,
    function: HostAddr,
    user_data: HostAddr,
    sync_mode: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchHostFunc_v2");
    ENTRY.call(|driver| launch::launch_host_func_v2(driver, h_stream, function, user_data, sync_mode))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchHostFunc_ptsz(
    h_stream: CUstream,
    function: HostAddr,
    user_data: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchHostFunc_ptsz");
    ENTRY.call(|driver| launch::launch_host_func(driver, per_thread(h_stream), function, user_data))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchHostFunc_v2_ptsz(
    h_stream: CUstream,
    function: HostAddr,
    user_data: HostAddr,
    sync_mode: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchHostFunc_v2_ptsz");
    ENTRY.call(|driver| launch::launch_host_func_v2(driver, per_thread(h_stream), function, user_data, sync_mode))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchKernel(
    f: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    h_stream: CUstream,
    kernel_params: In<HostAddr>,
    extra: In<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchKernel");
    ENTRY.call(|driver| {
        launch::launch_kernel(
            driver,
            f,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x,
            block_dim_y,
            block_dim_z,
            shared_mem_bytes,
            h_stream,
            kernel_params,
            extra,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchKernel_ptsz(
    f: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    h_stream: CUstream,
    kernel_params: In<HostAddr>,
    extra: In<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchKernel_ptsz");
    ENTRY.call(|driver| {
        launch::launch_kernel(
            driver,
            f,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x,
            block_dim_y,
            block_dim_z,
            shared_mem_bytes,
            per_thread(h_stream),
            kernel_params,
            extra,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    f: CUfunction,
    kernel_params: In<HostAddr>,
    extra: In<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchKernelEx");
    ENTRY.call(|driver| launch::launch_kernel_ex(driver, DEFAULT_STREAM, config, f, kernel_params, extra))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchKernelEx_ptsz(
    config: In<CUlaunchConfig>,
    f: CUfunction,
    kernel_params: In<HostAddr>,
    extra: In<HostAddr>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchKernelEx_ptsz");
    ENTRY.call(|driver| launch::launch_kernel_ex(driver, CUstream::PER_THREAD, config, f, kernel_params, extra))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    dynamic_smem_size: Out<usize>,
    func: CUfunction,
    num_blocks: i32,
    block_size: i32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyAvailableDynamicSMemPerBlock");
    ENTRY.call(|driver| {
        launch::occupancy_available_dynamic_smem_per_block(driver, dynamic_smem_size, func, num_blocks, block_size)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    num_blocks: Out<i32>,
    func: CUfunction,
    block_size: i32,
    dynamic_s_mem_size: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    ENTRY.call(|driver| {
        launch::occupancy_max_active_blocks_per_multiprocessor(driver, num_blocks, func, block_size, dynamic_s_mem_size)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    num_blocks: Out<i32>,
    func: CUfunction,
    block_size: i32,
    dynamic_s_mem_size: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    ENTRY.call(|driver| {
        launch::occupancy_max_active_blocks_per_multiprocessor_with_flags(
            driver,
            num_blocks,
            func,
            block_size,
            dynamic_s_mem_size,
            flags,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<i32>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyMaxActiveClusters");
    ENTRY.call(|driver| launch::occupancy_max_active_clusters(driver, num_clusters, func, config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxPotentialBlockSize(
    min_grid_size: Out<i32>,
    block_size: Out<i32>,
    func: CUfunction,
    block_size_to_dynamic_s_mem_size: HostAddr,
    dynamic_s_mem_size: usize,
    block_size_limit: i32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyMaxPotentialBlockSize");
    ENTRY.call(|driver| {
        launch::occupancy_max_potential_block_size(
            driver,
            min_grid_size,
            block_size,
            func,
            block_size_to_dynamic_s_mem_size,
            dynamic_s_mem_size,
            block_size_limit,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    min_grid_size: Out<i32>,
    block_size: Out<i32>,
    func: CUfunction,
    block_size_to_dynamic_s_mem_size: HostAddr,
    dynamic_s_mem_size: usize,
    block_size_limit: i32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyMaxPotentialBlockSizeWithFlags");
    ENTRY.call(|driver| {
        launch::occupancy_max_potential_block_size_with_flags(
            driver,
            min_grid_size,
            block_size,
            func,
            block_size_to_dynamic_s_mem_size,
            dynamic_s_mem_size,
            block_size_limit,
            flags,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<i32>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuOccupancyMaxPotentialClusterSize");
    ENTRY.call(|driver| launch::occupancy_max_potential_cluster_size(driver, cluster_size, func, config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamAddCallback(
    h_stream: CUstream,
    callback: HostAddr,
    user_data: HostAddr,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamAddCallback");
    ENTRY.call(|driver| launch::stream_add_callback(driver, h_stream, callback, user_data, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamAddCallback_ptsz(
    h_stream: CUstream,
    callback: HostAddr,
    user_data: HostAddr,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamAddCallback_ptsz");
    ENTRY.call(|driver| launch::stream_add_callback(driver, per_thread(h_stream), callback, user_data, flags))
}
