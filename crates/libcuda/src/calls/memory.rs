//! Linear memory: device, pinned, managed; what is known of an address.

use cuda_abi::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUmemLocationType, CUpointer_attribute,
    CUresult, CUstream, HostAddr,
};
use cuda_core::{AttributeValue, Driver, Location};
use gpu::DevAddr;
use hostmem::ProgramPages;

use crate::decode::{Core, In, Out, in_at, out_at, set_run};
use crate::entry::{Answer, refuse};

/// What the lists of accessing devices are filled up with: `CU_DEVICE_INVALID`.
const DEVICE_INVALID: i32 = -2;
/// `CU_DEVICE_CPU`.
const DEVICE_CPU: i32 = -1;

pub(crate) fn mem_get_info(driver: &Driver, free: Out<usize>, total: Out<usize>) -> Answer {
    free.required()?;
    total.required()?;
    let info = driver.mem_get_info()?;
    free.set(info.0);
    total.set(info.1);
    Ok(())
}

pub(crate) fn mem_alloc(driver: &Driver, address: Out<CUdeviceptr>, bytes: usize) -> Answer {
    address.required()?;
    address.set(driver.mem_alloc(bytes as u64)?);
    Ok(())
}

pub(crate) fn mem_alloc_pitch(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element_bytes: u32,
) -> Answer {
    address.required()?;
    pitch.required()?;
    let lines = driver.mem_alloc_pitch(width as u64, height as u64, element_bytes)?;
    address.set(lines.0);
    pitch.set(lines.1);
    Ok(())
}

pub(crate) fn mem_free(driver: &Driver, address: CUdeviceptr) -> Answer {
    Ok(driver.mem_free(DevAddr(address))?)
}

pub(crate) fn mem_get_address_range(
    driver: &Driver,
    base: Out<CUdeviceptr>,
    size: Out<usize>,
    address: CUdeviceptr,
) -> Answer {
    set_run(base, size, driver.mem_get_address_range(DevAddr(address))?);
    Ok(())
}

pub(crate) fn mem_alloc_host(driver: &Driver, address: Out<HostAddr>, bytes: usize) -> Answer {
    address.required()?;
    address.set(driver.mem_alloc_host(bytes as u64)?);
    Ok(())
}

pub(crate) fn mem_host_alloc(driver: &Driver, address: Out<HostAddr>, bytes: usize, flags: u32) -> Answer {
    address.required()?;
    address.set(driver.mem_host_alloc(bytes as u64, flags)?);
    Ok(())
}

pub(crate) fn mem_free_host(driver: &Driver, address: HostAddr) -> Answer {
    Ok(driver.mem_free_host(address.0)?)
}

pub(crate) fn mem_host_register(driver: &Driver, address: HostAddr, bytes: usize, flags: u32) -> Answer {
    if address.is_null() || (address.0 as usize).checked_add(bytes).is_none() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised that memory until it is unregistered, and to be prepared for the GPU's seeing its pages.
    let pages = unsafe { ProgramPages::new(address.0 as usize, bytes) };
    Ok(driver.mem_host_register(pages, flags)?)
}

pub(crate) fn mem_host_unregister(driver: &Driver, address: HostAddr) -> Answer {
    Ok(driver.mem_host_unregister(address.0)?)
}

pub(crate) fn mem_host_get_device_pointer(
    driver: &Driver,
    device: Out<CUdeviceptr>,
    address: HostAddr,
    flags: u32,
) -> Answer {
    device.required()?;
    device.set(driver.mem_host_get_device_pointer(address.0, flags)?);
    Ok(())
}

pub(crate) fn mem_host_get_flags(driver: &Driver, flags: Out<u32>, address: HostAddr) -> Answer {
    flags.required()?;
    flags.set(driver.mem_host_get_flags(address.0)?);
    Ok(())
}

pub(crate) fn mem_alloc_managed(driver: &Driver, address: Out<CUdeviceptr>, bytes: usize, flags: u32) -> Answer {
    address.required()?;
    address.set(driver.mem_alloc_managed(bytes as u64, flags)?);
    Ok(())
}

/// A location as the core has it.
pub(crate) fn location(of: CUmemLocation) -> Location {
    match of.kind {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Location::Device(of.id),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Location::Host,
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => Location::HostNuma(of.id),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Location::HostNumaCurrent,
        _ => Location::Invalid,
    }
}

/// A device ordinal, or the CPU, as a location.
fn place(device: CUdevice) -> Location {
    if device == DEVICE_CPU { Location::Host } else { Location::Device(device) }
}

pub(crate) fn mem_advise(
    driver: &Driver,
    address: CUdeviceptr,
    bytes: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> Answer {
    Ok(driver.mem_advise(DevAddr(address), bytes as u64, advice.0, place(device))?)
}

pub(crate) fn mem_advise_v2(
    driver: &Driver,
    address: CUdeviceptr,
    bytes: usize,
    advice: CUmem_advise,
    at: CUmemLocation,
) -> Answer {
    Ok(driver.mem_advise(DevAddr(address), bytes as u64, advice.0, location(at))?)
}

pub(crate) fn mem_prefetch_async(
    driver: &Driver,
    address: CUdeviceptr,
    bytes: usize,
    device: CUdevice,
    stream: CUstream,
) -> Answer {
    Ok(driver.mem_prefetch_async(DevAddr(address), bytes as u64, place(device), stream.core())?)
}

pub(crate) fn mem_prefetch_async_v2(
    driver: &Driver,
    address: CUdeviceptr,
    bytes: usize,
    to: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Answer {
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(driver.mem_prefetch_async(DevAddr(address), bytes as u64, location(to), stream.core())?)
}

pub(crate) fn mem_range_get_attribute(
    driver: &Driver,
    data: HostAddr,
    data_bytes: usize,
    attribute: CUmem_range_attribute,
    address: CUdeviceptr,
    bytes: usize,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let data = unsafe { out_at::<i32>(data) };
    data.required()?;
    let many = attribute == CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    let count = data_bytes / 4;
    if count == 0 || !data_bytes.is_multiple_of(4) || (!many && count != 1) {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (address, bytes) = (DevAddr(address), bytes as u64);
    if !many {
        data.set(driver.mem_range_get_attribute(attribute.0, address, bytes)?);
        return Ok(());
    }
    let devices = driver.mem_range_accessed_by(address, bytes)?;
    for index in 0..count {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { data.set_at(index, devices.get(index).copied().unwrap_or(DEVICE_INVALID)) };
    }
    Ok(())
}

pub(crate) fn mem_range_get_attributes(
    driver: &Driver,
    data: In<HostAddr>,
    data_bytes: In<usize>,
    attributes: In<CUmem_range_attribute>,
    count: usize,
    address: CUdeviceptr,
    bytes: usize,
) -> Answer {
    for index in 0..count {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let into = unsafe { data.get_at(index) }?;
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let room = unsafe { data_bytes.get_at(index) }?;
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        mem_range_get_attribute(driver, into, room, unsafe { attributes.get_at(index) }?, address, bytes)?;
    }
    Ok(())
}

/// Stores an attribute in the width that CUDA gives it.
fn store(data: HostAddr, value: AttributeValue) {
    match value {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        AttributeValue::U32(value) => unsafe { out_at::<u32>(data) }.set(value),
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        AttributeValue::U64(value) => unsafe { out_at::<u64>(data) }.set(value),
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        AttributeValue::Bool(value) => unsafe { out_at::<u8>(data) }.set(u8::from(value)),
        AttributeValue::Pair(first, second) => {
            // SAFETY: the C caller promised memory there, so much of it (`decode`).
            let pair = unsafe { out_at::<u64>(data) };
            pair.set(first);
            // SAFETY: the C caller promised memory there, so much of it (`decode`).
            unsafe { pair.set_at(1, second) };
        }
    }
}

/// A location as the interface says it.
pub(crate) fn encode_location(of: Location) -> CUmemLocation {
    let (kind, id) = match of {
        Location::Invalid => (CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, 0),
        Location::Device(device) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device),
        Location::Host => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        Location::HostNuma(node) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
        Location::HostNumaCurrent => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0),
    };
    CUmemLocation { kind, id }
}

pub(crate) fn mem_get_location_info(
    driver: &Driver,
    address: CUdeviceptr,
    size: usize,
    summary: usize,
    sampling: usize,
    out: Out<CUmemLocation>,
) -> Answer {
    out.required()?;
    if summary == 0 || summary > size || sampling > summary {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let lies = encode_location(driver.mem_get_location(DevAddr(address), size as u64)?);
    for index in 0..size.div_ceil(summary) {
        // SAFETY: the C caller promised a place for each (`decode`).
        unsafe { out.set_at(index, lies) };
    }
    Ok(())
}

pub(crate) fn pointer_get_attribute(
    driver: &Driver,
    data: HostAddr,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    if data.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    store(data, driver.pointer_get_attribute(attribute.0 as i32, address)?);
    Ok(())
}

pub(crate) fn pointer_get_attributes(
    driver: &Driver,
    count: u32,
    attributes: In<CUpointer_attribute>,
    data: In<HostAddr>,
    address: CUdeviceptr,
) -> Answer {
    for index in 0..count as usize {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let attribute = unsafe { attributes.get_at(index) }?;
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let into = unsafe { data.get_at(index) }?;
        if into.is_null() {
            return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        store(into, driver.pointer_get_attribute_or_default(attribute.0 as i32, address)?);
    }
    Ok(())
}

pub(crate) fn pointer_set_attribute(
    driver: &Driver,
    value: HostAddr,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let value = unsafe { in_at::<u32>(value) }.get()?;
    Ok(driver.pointer_set_attribute(attribute.0 as i32, value != 0, address)?)
}
