//! The library itself, and the machine.

use std::ffi::c_char;

use crate::abi::{
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND, RETURNS, nvmlReturn_t,
};
use crate::edge::{Answer, In, Out, exports};
use crate::library::{init, library, shutdown};

exports! {
    fn nvmlInit() = init;
    fn nvmlInit_v2() = init;
    fn nvmlInitWithFlags(flags: u32) = init_with_flags;
    fn nvmlShutdown() = shutdown;
    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: u32) = driver_version;
    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: u32) = nvml_version;
    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) = cuda_driver_version;
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) = cuda_driver_version;
    fn nvmlSystemGetProcessName(pid: u32, name: Out<c_char>, length: u32) = process_name;
    fn nvmlUnitGetCount(count: Out<u32>) = none;
    fn nvmlGetExcludedDeviceCount(count: Out<u32>) = none;
    fn nvmlGetBlacklistDeviceCount(count: Out<u32>) = none;
    fn nvmlInternalGetExportTable(table: Out<In<u8>>, uuid: In<[u8; 16]>) = export_table;
}

/// `nvmlErrorString`: works without anything.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let known = RETURNS.iter().find(|(_, code, _)| *code == result.0);
    known.map_or(c"Unknown Error", |(.., text)| text).as_ptr()
}

/// No flags, or: without GPUs it is no error, and none is attached to. Both are so anyway.
fn init_with_flags(flags: u32) -> Answer {
    const NO_GPUS: u32 = 1;
    const NO_ATTACH: u32 = 2;
    if flags & !(NO_GPUS | NO_ATTACH) != 0 {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    init()
}

/// Ours: the driver is Sundial, and no version of another's.
fn driver_version(version: Out<c_char>, length: u32) -> Answer {
    library()?;
    version.set_text(length, env!("CARGO_PKG_VERSION"))
}

/// The interface's major version, then the driver's, as the vendor writes it.
fn nvml_version(version: Out<c_char>, length: u32) -> Answer {
    library()?;
    let text = format!("{}.{}", cuda_abi::DRIVER_VERSION / 1000, env!("CARGO_PKG_VERSION"));
    version.set_text(length, &text)
}

/// What `cuDriverGetVersion` says.
fn cuda_driver_version(version: Out<i32>) -> Answer {
    library()?;
    version.set(cuda_abi::DRIVER_VERSION.cast_signed())
}

/// How a process was started, cut to what there is room for.
fn process_name(pid: u32, name: Out<c_char>, length: u32) -> Answer {
    library()?;
    if name.is_null() || length == 0 {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NVML_ERROR_NOT_FOUND)?;
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut text = String::from_utf8_lossy(first).into_owned();
    let mut end = text.len().min(length as usize - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    name.set_text(length, &text)
}

fn none(count: Out<u32>) -> Answer {
    library()?;
    count.set(0)
}

/// What tools of the vendor's ask for by UUID: they must not take a table for there that is not.
fn export_table(table: Out<In<u8>>, _uuid: In<[u8; 16]>) -> Answer {
    if !table.is_null() {
        table.set(In::none())?;
    }
    Err(NVML_ERROR_FUNCTION_NOT_FOUND)
}
