//! Stream-ordered allocation, memory pools, virtual memory management.

use cuda_abi::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream, HostAddr,
};
use cuda_core::{AccessFlags, Driver, Location, MemoryProps, Physical, PoolAttribute};
use gpu::DevAddr;

use crate::calls::memory::{encode_location, location};
use crate::decode::{Core, In, Out, in_at, out_at};
use crate::entry::{Answer, Refusal, refuse};

/// Most access descriptors of one call: there are few locations.
const MAX_ACCESSES: usize = 1024;

pub(crate) fn mem_alloc_async(driver: &Driver, address: Out<CUdeviceptr>, bytes: usize, stream: CUstream) -> Answer {
    address.required()?;
    address.set(driver.mem_alloc_async(bytes as u64, stream.core())?);
    Ok(())
}

pub(crate) fn mem_alloc_from_pool_async(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    address.required()?;
    address.set(driver.mem_alloc_from_pool_async(bytes as u64, pool.core(), stream.core())?);
    Ok(())
}

pub(crate) fn mem_free_async(driver: &Driver, address: CUdeviceptr, stream: CUstream) -> Answer {
    Ok(driver.mem_free_async(DevAddr(address), stream.core())?)
}

pub(crate) fn mem_pool_create(driver: &Driver, pool: Out<CUmemoryPool>, props: In<CUmemPoolProps>) -> Answer {
    pool.required()?;
    let props = props.get()?;
    let wanted = pool_props(&props);
    pool.set(if managed(props.alloc_type)? {
        driver.mem_pool_create_managed(wanted)?
    } else {
        driver.mem_pool_create(wanted)?
    });
    Ok(())
}

pub(crate) fn pool_props(props: &CUmemPoolProps) -> MemoryProps {
    let (location, handle_types) = (location(props.location), props.handle_types.0);
    MemoryProps { location, handle_types, max_bytes: props.max_size as u64 }
}

pub(crate) fn mem_pool_destroy(driver: &Driver, pool: CUmemoryPool) -> Answer {
    Ok(driver.mem_pool_destroy(pool.core())?)
}

pub(crate) fn mem_pool_trim_to(driver: &Driver, pool: CUmemoryPool, keep: usize) -> Answer {
    Ok(driver.mem_pool_trim_to(pool.core(), keep as u64)?)
}

/// The attribute, and whether its value has 32 bits instead of 64.
fn attribute(of: CUmemPool_attribute) -> Result<(PoolAttribute, bool), Refusal> {
    Ok(match of {
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
            (PoolAttribute::ReuseFollowEventDependencies, true)
        }
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => {
            (PoolAttribute::ReuseAllowOpportunistic, true)
        }
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            (PoolAttribute::ReuseAllowInternalDependencies, true)
        }
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => (PoolAttribute::ReleaseThreshold, false),
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => (PoolAttribute::ReservedMemCurrent, false),
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => (PoolAttribute::ReservedMemHigh, false),
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => (PoolAttribute::UsedMemCurrent, false),
        CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => (PoolAttribute::UsedMemHigh, false),
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

pub(crate) fn mem_pool_get_attribute(
    driver: &Driver,
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: HostAddr,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    unsafe { out_at::<u8>(value) }.required()?;
    let (attr, narrow) = attribute(attr)?;
    let found = driver.mem_pool_get_attribute(pool.core(), attr)?;
    if narrow {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { out_at::<u32>(value) }.set(found as u32);
    } else {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { out_at::<u64>(value) }.set(found);
    }
    Ok(())
}

pub(crate) fn mem_pool_set_attribute(
    driver: &Driver,
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: HostAddr,
) -> Answer {
    let (attr, narrow) = attribute(attr)?;
    let wanted = if narrow {
        // SAFETY: the C caller promised a number there, which this attribute has in 32 bits.
        unsafe { in_at::<u32>(value) }.get()?.into()
    } else {
        // SAFETY: the C caller promised a number there, which this attribute has in 64 bits.
        unsafe { in_at::<u64>(value) }.get()?
    };
    Ok(driver.mem_pool_set_attribute(pool.core(), attr, wanted)?)
}

fn rights(of: CUmemAccess_flags) -> Result<AccessFlags, Refusal> {
    Ok(match of {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => AccessFlags::None,
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => AccessFlags::Read,
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => AccessFlags::ReadWrite,
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

fn flags(of: AccessFlags) -> CUmemAccess_flags {
    match of {
        AccessFlags::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        AccessFlags::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        AccessFlags::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

pub(crate) fn accesses(list: In<CUmemAccessDesc>, count: usize) -> Result<Vec<(Location, AccessFlags)>, Refusal> {
    if count > MAX_ACCESSES {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    unsafe { list.list(count) }?
        .into_iter()
        .map(|access| Ok((location(access.location), rights(access.flags)?)))
        .collect()
}

pub(crate) fn mem_pool_get_access(
    driver: &Driver,
    access: Out<CUmemAccess_flags>,
    pool: CUmemoryPool,
    from: In<CUmemLocation>,
) -> Answer {
    access.required()?;
    access.set(flags(driver.mem_pool_get_access(pool.core(), location(from.get()?))?));
    Ok(())
}

pub(crate) fn mem_pool_set_access(
    driver: &Driver,
    pool: CUmemoryPool,
    list: In<CUmemAccessDesc>,
    count: usize,
) -> Answer {
    Ok(driver.mem_pool_set_access(pool.core(), &accesses(list, count)?)?)
}

/// Whether a pool's memory is managed, and not pinned.
fn managed(kind: CUmemAllocationType) -> Result<bool, Refusal> {
    match kind {
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => Ok(false),
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED => Ok(true),
        _ => refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn mem_get_default_mem_pool(
    driver: &Driver,
    pool: Out<CUmemoryPool>,
    at: In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Answer {
    pool.required()?;
    pool.set(driver.mem_get_default_mem_pool(location(at.get()?), managed(kind)?)?);
    Ok(())
}

pub(crate) fn mem_get_mem_pool(
    driver: &Driver,
    pool: Out<CUmemoryPool>,
    at: In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Answer {
    pool.required()?;
    pool.set(driver.mem_get_mem_pool(location(at.get()?), managed(kind)?)?);
    Ok(())
}

pub(crate) fn mem_set_mem_pool(
    driver: &Driver,
    at: In<CUmemLocation>,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Answer {
    Ok(driver.mem_set_mem_pool(location(at.get()?), managed(kind)?, pool.core())?)
}

fn physical(of: In<CUmemAllocationProp>) -> Result<MemoryProps, Refusal> {
    let of = of.get()?;
    if of.kind != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(MemoryProps { location: location(of.location), handle_types: of.requested_handle_types.0, max_bytes: 0 })
}

pub(crate) fn mem_get_allocation_granularity(
    driver: &Driver,
    granularity: Out<usize>,
    props: In<CUmemAllocationProp>,
    option: CUmemAllocationGranularity_flags,
) -> Answer {
    granularity.required()?;
    granularity.set(driver.mem_get_allocation_granularity(physical(props)?, option.0)?);
    Ok(())
}

pub(crate) fn mem_address_reserve(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    bytes: usize,
    alignment: usize,
    wish: CUdeviceptr,
    flags: u64,
) -> Answer {
    address.required()?;
    address.set(driver.mem_address_reserve(bytes as u64, alignment as u64, wish, flags)?);
    Ok(())
}

pub(crate) fn mem_address_free(driver: &Driver, address: CUdeviceptr, bytes: usize) -> Answer {
    Ok(driver.mem_address_free(DevAddr(address), bytes as u64)?)
}

pub(crate) fn mem_create(
    driver: &Driver,
    handle: Out<CUmemGenericAllocationHandle>,
    bytes: usize,
    props: In<CUmemAllocationProp>,
    flags: u64,
) -> Answer {
    handle.required()?;
    handle.set(driver.mem_create(bytes as u64, physical(props)?, flags)?);
    Ok(())
}

pub(crate) fn mem_release(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Answer {
    Ok(driver.mem_release(Physical(handle))?)
}

pub(crate) fn mem_map(
    driver: &Driver,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Answer {
    Ok(driver.mem_map(DevAddr(address), bytes as u64, offset as u64, Physical(handle), flags)?)
}

pub(crate) fn mem_unmap(driver: &Driver, address: CUdeviceptr, bytes: usize) -> Answer {
    Ok(driver.mem_unmap(DevAddr(address), bytes as u64)?)
}

pub(crate) fn mem_set_access(
    driver: &Driver,
    address: CUdeviceptr,
    bytes: usize,
    list: In<CUmemAccessDesc>,
    count: usize,
) -> Answer {
    Ok(driver.mem_set_access(DevAddr(address), bytes as u64, &accesses(list, count)?)?)
}

pub(crate) fn mem_get_access(
    driver: &Driver,
    access: Out<u64>,
    from: In<CUmemLocation>,
    address: CUdeviceptr,
) -> Answer {
    access.required()?;
    access.set(u64::from(flags(driver.mem_get_access(location(from.get()?), DevAddr(address))?).0));
    Ok(())
}

pub(crate) fn mem_retain_allocation_handle(
    driver: &Driver,
    handle: Out<CUmemGenericAllocationHandle>,
    address: HostAddr,
) -> Answer {
    handle.required()?;
    handle.set(driver.mem_retain_allocation_handle(address.0)?);
    Ok(())
}

pub(crate) fn mem_get_allocation_properties_from_handle(
    driver: &Driver,
    props: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Answer {
    props.required()?;
    let of = driver.mem_get_allocation_properties(Physical(handle))?;
    props.set(CUmemAllocationProp {
        kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CUmemAllocationHandleType(of.handle_types),
        location: encode_location(of.location),
        win32_handle_meta_data: HostAddr::NULL,
        alloc_flags: [0; 8],
    });
    Ok(())
}
