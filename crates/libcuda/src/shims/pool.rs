//! Exported functions implemented by `calls::pool`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUresult, CUstream, HostAddr,
};

use crate::calls::pool;
use crate::decode::{In, Out};
use crate::entry::Entry;
use crate::start::per_thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAddressFree");
    ENTRY.call(|driver| pool::mem_address_free(driver, ptr, size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAddressReserve(
    ptr: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAddressReserve");
    ENTRY.call(|driver| pool::mem_address_reserve(driver, ptr, size, alignment, addr, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocAsync(dptr: Out<CUdeviceptr>, bytesize: usize, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocAsync");
    ENTRY.call(|driver| pool::mem_alloc_async(driver, dptr, bytesize, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocAsync_ptsz(dptr: Out<CUdeviceptr>, bytesize: usize, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocAsync_ptsz");
    ENTRY.call(|driver| pool::mem_alloc_async(driver, dptr, bytesize, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocFromPoolAsync(
    dptr: Out<CUdeviceptr>,
    bytesize: usize,
    pool: CUmemoryPool,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocFromPoolAsync");
    ENTRY.call(|driver| pool::mem_alloc_from_pool_async(driver, dptr, bytesize, pool, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    dptr: Out<CUdeviceptr>,
    bytesize: usize,
    pool: CUmemoryPool,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocFromPoolAsync_ptsz");
    ENTRY.call(|driver| pool::mem_alloc_from_pool_async(driver, dptr, bytesize, pool, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemCreate(
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemCreate");
    ENTRY.call(|driver| pool::mem_create(driver, handle, size, prop, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemFreeAsync");
    ENTRY.call(|driver| pool::mem_free_async(driver, dptr, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFreeAsync_ptsz(dptr: CUdeviceptr, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemFreeAsync_ptsz");
    ENTRY.call(|driver| pool::mem_free_async(driver, dptr, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetAccess");
    ENTRY.call(|driver| pool::mem_get_access(driver, flags, location, ptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: CUmemAllocationGranularity_flags,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetAllocationGranularity");
    ENTRY.call(|driver| pool::mem_get_allocation_granularity(driver, granularity, prop, option))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetAllocationPropertiesFromHandle");
    ENTRY.call(|driver| pool::mem_get_allocation_properties_from_handle(driver, prop, handle))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetDefaultMemPool(
    pool_out: Out<CUmemoryPool>,
    location: In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetDefaultMemPool");
    ENTRY.call(|driver| pool::mem_get_default_mem_pool(driver, pool_out, location, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetMemPool(
    pool: Out<CUmemoryPool>,
    location: In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetMemPool");
    ENTRY.call(|driver| pool::mem_get_mem_pool(driver, pool, location, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemMap");
    ENTRY.call(|driver| pool::mem_map(driver, ptr, size, offset, handle, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolCreate(pool: Out<CUmemoryPool>, pool_props: In<CUmemPoolProps>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolCreate");
    ENTRY.call(|driver| pool::mem_pool_create(driver, pool, pool_props))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolDestroy");
    ENTRY.call(|driver| pool::mem_pool_destroy(driver, pool))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolGetAccess(
    flags: Out<CUmemAccess_flags>,
    mem_pool: CUmemoryPool,
    location: In<CUmemLocation>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolGetAccess");
    ENTRY.call(|driver| pool::mem_pool_get_access(driver, flags, mem_pool, location))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolGetAttribute");
    ENTRY.call(|driver| pool::mem_pool_get_attribute(driver, pool, attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolSetAccess(pool: CUmemoryPool, map: In<CUmemAccessDesc>, count: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolSetAccess");
    ENTRY.call(|driver| pool::mem_pool_set_access(driver, pool, map, count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolSetAttribute");
    ENTRY.call(|driver| pool::mem_pool_set_attribute(driver, pool, attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolTrimTo");
    ENTRY.call(|driver| pool::mem_pool_trim_to(driver, pool, min_bytes_to_keep))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemRelease");
    ENTRY.call(|driver| pool::mem_release(driver, handle))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemRetainAllocationHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    addr: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemRetainAllocationHandle");
    ENTRY.call(|driver| pool::mem_retain_allocation_handle(driver, handle, addr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: In<CUmemAccessDesc>,
    count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemSetAccess");
    ENTRY.call(|driver| pool::mem_set_access(driver, ptr, size, desc, count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemSetMemPool(
    location: In<CUmemLocation>,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemSetMemPool");
    ENTRY.call(|driver| pool::mem_set_mem_pool(driver, location, kind, pool))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemUnmap");
    ENTRY.call(|driver| pool::mem_unmap(driver, ptr, size))
}
