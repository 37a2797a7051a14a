//! Exported functions implemented by `calls::old_launch`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUfunction, CUresult, CUstream, HostAddr};

use crate::calls::old_launch;
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetBlockShape(hfunc: CUfunction, x: i32, y: i32, z: i32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncSetBlockShape");
    ENTRY.call(|driver| old_launch::func_set_block_shape(driver, hfunc, x, y, z))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFuncSetSharedSize(hfunc: CUfunction, bytes: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFuncSetSharedSize");
    ENTRY.call(|driver| old_launch::func_set_shared_size(driver, hfunc, bytes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunch(f: CUfunction) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunch");
    ENTRY.call(|driver| old_launch::launch(driver, f))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchGrid(f: CUfunction, grid_width: i32, grid_height: i32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchGrid");
    ENTRY.call(|driver| old_launch::launch_grid(driver, f, grid_width, grid_height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchGridAsync(
    f: CUfunction,
    grid_width: i32,
    grid_height: i32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLaunchGridAsync");
    ENTRY.call(|driver| old_launch::launch_grid_async(driver, f, grid_width, grid_height, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuParamSetSize(hfunc: CUfunction, numbytes: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuParamSetSize");
    ENTRY.call(|driver| old_launch::param_set_size(driver, hfunc, numbytes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuParamSetf(hfunc: CUfunction, offset: i32, value: f32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuParamSetf");
    ENTRY.call(|driver| old_launch::param_setf(driver, hfunc, offset, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuParamSeti(hfunc: CUfunction, offset: i32, value: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuParamSeti");
    ENTRY.call(|driver| old_launch::param_seti(driver, hfunc, offset, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuParamSetv(hfunc: CUfunction, offset: i32, ptr: HostAddr, numbytes: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuParamSetv");
    ENTRY.call(|driver| old_launch::param_setv(driver, hfunc, offset, ptr, numbytes))
}
