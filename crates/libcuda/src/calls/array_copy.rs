//! Copies between a line of an array and memory, or another line.

use cuda_abi::{CUarray, CUdeviceptr, CUstream, HostAddr};
use cuda_core::{Copy3D, CopyEnd, CopyMemory, Driver};
use gpu::DevAddr;

use crate::decode::{Core, range};
use crate::entry::{Answer, Refusal};

/// One end of a copy.
#[derive(Clone, Copy)]
enum Place {
    /// An array, and how many bytes of its line to skip.
    Array(CUarray, usize),
    Device(CUdeviceptr),
    Host(HostAddr),
}

fn end<'a>(place: Place, bytes: usize) -> Result<CopyEnd<'a>, Refusal> {
    let (memory, x) = match place {
        Place::Array(array, offset) => (CopyMemory::Array(array.core()), offset as u64),
        Place::Device(address) => (CopyMemory::Device(DevAddr(address)), 0),
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        Place::Host(address) => (CopyMemory::Unified(unsafe { range(address.0, bytes) }?), 0),
    };
    Ok(CopyEnd { memory, x, y: 0, z: 0, pitch: bytes as u64, height: 1 })
}

fn line<'a>(dst: Place, src: Place, bytes: usize) -> Result<Copy3D<'a>, Refusal> {
    Ok(Copy3D { src: end(src, bytes)?, dst: end(dst, bytes)?, width: bytes as u64, height: 1, depth: 1 })
}

fn copy(driver: &Driver, stream: CUstream, dst: Place, src: Place, bytes: usize) -> Answer {
    Ok(driver.memcpy_3d(&line(dst, src, bytes)?, stream.core())?)
}

fn copy_async(driver: &Driver, stream: CUstream, dst: Place, src: Place, bytes: usize) -> Answer {
    if driver.capture_copy(stream.core(), || line(dst, src, bytes))? {
        return Ok(());
    }
    Ok(driver.memcpy_3d_async(&line(dst, src, bytes)?, stream.core())?)
}

pub(crate) fn memcpy_dtoa(
    driver: &Driver,
    stream: CUstream,
    dst: CUarray,
    offset: usize,
    src: CUdeviceptr,
    bytes: usize,
) -> Answer {
    copy(driver, stream, Place::Array(dst, offset), Place::Device(src), bytes)
}

pub(crate) fn memcpy_atod(
    driver: &Driver,
    stream: CUstream,
    dst: CUdeviceptr,
    src: CUarray,
    offset: usize,
    bytes: usize,
) -> Answer {
    copy(driver, stream, Place::Device(dst), Place::Array(src, offset), bytes)
}

pub(crate) fn memcpy_htoa(
    driver: &Driver,
    stream: CUstream,
    dst: CUarray,
    offset: usize,
    src: HostAddr,
    bytes: usize,
) -> Answer {
    copy(driver, stream, Place::Array(dst, offset), Place::Host(src), bytes)
}

pub(crate) fn memcpy_htoa_async(
    driver: &Driver,
    dst: CUarray,
    offset: usize,
    src: HostAddr,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    copy_async(driver, stream, Place::Array(dst, offset), Place::Host(src), bytes)
}

pub(crate) fn memcpy_atoh(
    driver: &Driver,
    stream: CUstream,
    dst: HostAddr,
    src: CUarray,
    offset: usize,
    bytes: usize,
) -> Answer {
    copy(driver, stream, Place::Host(dst), Place::Array(src, offset), bytes)
}

pub(crate) fn memcpy_atoh_async(
    driver: &Driver,
    dst: HostAddr,
    src: CUarray,
    offset: usize,
    bytes: usize,
    stream: CUstream,
) -> Answer {
    copy_async(driver, stream, Place::Host(dst), Place::Array(src, offset), bytes)
}

pub(crate) fn memcpy_atoa(
    driver: &Driver,
    stream: CUstream,
    dst: CUarray,
    dst_offset: usize,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
) -> Answer {
    copy(driver, stream, Place::Array(dst, dst_offset), Place::Array(src, src_offset), bytes)
}
