//! Launches whose shape and parameters are said of the function, one by one.

use cuda_abi::{CUfunction, CUstream, HostAddr};
use cuda_core::Driver;

use crate::decode::{Core, bytes_of, range};
use crate::entry::Answer;
use crate::start::DEFAULT_STREAM;

pub(crate) fn func_set_block_shape(driver: &Driver, function: CUfunction, x: i32, y: i32, z: i32) -> Answer {
    Ok(driver.func_set_block_shape(function.core(), [x, y, z])?)
}

pub(crate) fn func_set_shared_size(driver: &Driver, function: CUfunction, bytes: u32) -> Answer {
    Ok(driver.func_set_shared_size(function.core(), bytes)?)
}

pub(crate) fn param_set_size(driver: &Driver, function: CUfunction, bytes: u32) -> Answer {
    Ok(driver.param_set_size(function.core(), bytes)?)
}

pub(crate) fn param_seti(driver: &Driver, function: CUfunction, offset: i32, value: u32) -> Answer {
    bytes_of(&value, |value| Ok(driver.param_set(function.core(), offset, value)?))
}

pub(crate) fn param_setf(driver: &Driver, function: CUfunction, offset: i32, value: f32) -> Answer {
    param_seti(driver, function, offset, value.to_bits())
}

pub(crate) fn param_setv(driver: &Driver, function: CUfunction, offset: i32, ptr: HostAddr, bytes: u32) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.param_set(function.core(), offset, unsafe { range(ptr.0, bytes as usize) }?)?)
}

pub(crate) fn launch(driver: &Driver, function: CUfunction) -> Answer {
    launch_grid(driver, function, 1, 1)
}

pub(crate) fn launch_grid(driver: &Driver, function: CUfunction, width: i32, height: i32) -> Answer {
    launch_grid_async(driver, function, width, height, DEFAULT_STREAM)
}

pub(crate) fn launch_grid_async(
    driver: &Driver,
    function: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
) -> Answer {
    Ok(driver.launch_grid(function.core(), [width, height], stream.core())?)
}
