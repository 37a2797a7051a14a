//! Batches: several copies or hints in one call.
//!
//! The order among the operations of a batch is left open by the API, so doing one after the other in the stream is
//! within it. Attributes say when sources are read and where memory lies; both follow from the operations here.

use cuda_abi::{
    CUDA_MEMCPY3D_BATCH_OP, CUarray, CUdeviceptr, CUmemLocation, CUmemcpy3DOperand, CUmemcpy3DOperandType,
    CUmemcpyAttributes, CUresult, CUstream,
};
use cuda_core::{Copy3D, CopyEnd, CopyMemory, Driver};
use gpu::DevAddr;

use crate::calls::memory::location;
use crate::decode::{Core, In, Out, range};
use crate::entry::{Answer, Refusal, refuse};

/// Batches are for streams of the program's own.
fn own(stream: CUstream) -> Answer {
    if stream.is_null() || stream == CUstream::LEGACY { refuse(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn memcpy_batch_async(
    driver: &Driver,
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    _attributes: In<CUmemcpyAttributes>,
    _of_operation: In<usize>,
    _attribute_count: usize,
    stream: CUstream,
) -> Answer {
    own(stream)?;
    for index in 0..count {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let bytes = unsafe { sizes.get_at(index) }?;
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let (dst, src) = (unsafe { dsts.get_at(index) }?, unsafe { srcs.get_at(index) }?);
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        driver.memcpy_async(unsafe { range(dst, bytes) }?, unsafe { range(src, bytes) }?, stream.core())?;
    }
    Ok(())
}

/// The first form tells which operation was refused; here it is not one of them, as the API allows to say.
#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn memcpy_batch_async_v1(
    driver: &Driver,
    dsts: In<CUdeviceptr>,
    srcs: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CUmemcpyAttributes>,
    of_operation: In<usize>,
    attribute_count: usize,
    failed: Out<usize>,
    stream: CUstream,
) -> Answer {
    failed.set(usize::MAX);
    memcpy_batch_async(driver, dsts, srcs, sizes, count, attributes, of_operation, attribute_count, stream)
}

pub(crate) fn memcpy_with_attributes_async(
    driver: &Driver,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    _attributes: In<CUmemcpyAttributes>,
    stream: CUstream,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    Ok(driver.memcpy_async(unsafe { range(dst, bytes) }?, unsafe { range(src, bytes) }?, stream.core())?)
}

/// Bytes of what a copy's extents count: elements of the array that is an operand, else bytes.
fn element(driver: &Driver, operation: &CUDA_MEMCPY3D_BATCH_OP) -> Result<u64, Refusal> {
    let mut found = None;
    for operand in [&operation.src, &operation.dst] {
        if operand.kind == CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_ARRAY {
            let bytes = driver.array_element_bytes(CUarray(operand.value[0]).core())?;
            if found.replace(bytes).is_some_and(|other| other != bytes) {
                return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
    }
    Ok(found.unwrap_or(1))
}

/// Extents of a copy: bytes of a line, lines, slices.
type Extent = [u64; 3];

/// An operand: a pointer, {u64 address, usize line length, usize lines in a slice, location}, where 0 means as long as the copy;
/// or an array, {handle, offsets}. Lengths are in elements.
fn end<'a>(of: &CUmemcpy3DOperand, [width, height, depth]: Extent, element: u64) -> Result<CopyEnd<'a>, Refusal> {
    let invalid = Refusal(CUresult::CUDA_ERROR_INVALID_VALUE);
    let bytes = |elements: u64| elements.checked_mul(element).ok_or(invalid);
    let mut end = match of.kind {
        CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER => {
            let [address, line, lines, _] = of.value;
            CopyEnd {
                memory: CopyMemory::Device(DevAddr(address)),
                x: 0,
                y: 0,
                z: 0,
                pitch: if line == 0 { width } else { bytes(line)? },
                height: if lines == 0 { height } else { lines },
            }
        }
        CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            let [array, x, y, z] = of.value;
            let memory = CopyMemory::Array(CUarray(array).core());
            return Ok(CopyEnd { memory, x: bytes(x)?, y, z, pitch: 0, height: 0 });
        }
        _ => return Err(invalid),
    };
    let extent = end.extent(width, height, depth).and_then(|extent| usize::try_from(extent).ok()).ok_or(invalid)?;
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    end.memory = CopyMemory::Unified(unsafe { range(of.value[0], extent) }?);
    Ok(end)
}

fn copy(driver: &Driver, operation: &CUDA_MEMCPY3D_BATCH_OP, stream: CUstream) -> Answer {
    let element = element(driver, operation)?;
    let extent = operation.extent;
    let width = (extent.width as u64).checked_mul(element).ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?;
    let (height, depth) = (extent.height as u64, extent.depth as u64);
    let extent = [width, height, depth];
    let (src, dst) = (end(&operation.src, extent, element)?, end(&operation.dst, extent, element)?);
    Ok(driver.memcpy_3d_async(&Copy3D { src, dst, width, height, depth }, stream.core())?)
}

pub(crate) fn memcpy_3d_batch_async(
    driver: &Driver,
    count: usize,
    operations: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    stream: CUstream,
) -> Answer {
    own(stream)?;
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    (0..count).try_for_each(|index| copy(driver, &unsafe { operations.get_at(index) }?, stream))
}

pub(crate) fn memcpy_3d_batch_async_v1(
    driver: &Driver,
    count: usize,
    operations: In<CUDA_MEMCPY3D_BATCH_OP>,
    failed: Out<usize>,
    flags: u64,
    stream: CUstream,
) -> Answer {
    failed.set(usize::MAX);
    memcpy_3d_batch_async(driver, count, operations, flags, stream)
}

pub(crate) fn memcpy_3d_with_attributes_async(
    driver: &Driver,
    operation: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    stream: CUstream,
) -> Answer {
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    copy(driver, &operation.get()?, stream)
}

/// Location `k` holds from operation `of_operation[k]` on, until the next.
#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn mem_prefetch_batch_async(
    driver: &Driver,
    addresses: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    locations: In<CUmemLocation>,
    of_operation: In<usize>,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> Answer {
    own(stream)?;
    if flags != 0 || location_count == 0 || location_count > count || of_operation.get()? != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut current = 0;
    for index in 0..count {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        if current + 1 < location_count && unsafe { of_operation.get_at(current + 1) }? == index {
            current += 1;
        }
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let to = location(unsafe { locations.get_at(current) }?);
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let (address, bytes) = (unsafe { addresses.get_at(index) }?, unsafe { sizes.get_at(index) }?);
        driver.mem_prefetch_async(DevAddr(address), bytes as u64, to, stream.core())?;
    }
    Ok(())
}

/// Discarding allows to forget contents, and does not ask for it.
pub(crate) fn mem_discard_batch_async(
    driver: &Driver,
    addresses: In<CUdeviceptr>,
    _sizes: In<usize>,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Answer {
    own(stream)?;
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.stream_get_flags(stream.core())?;
    for index in 0..count {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        driver.mem_get_address_range(DevAddr(unsafe { addresses.get_at(index) }?))?;
    }
    Ok(())
}
