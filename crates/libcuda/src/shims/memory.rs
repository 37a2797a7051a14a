//! Exported functions implemented by `calls::memory`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUpointer_attribute, CUresult, CUstream,
    HostAddr,
};

use crate::calls::memory;
use crate::decode::{In, Out};
use crate::entry::Entry;
use crate::start::per_thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAdvise(
    dev_ptr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAdvise");
    ENTRY.call(|driver| memory::mem_advise(driver, dev_ptr, count, advice, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAdvise_v2(
    dev_ptr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAdvise_v2");
    ENTRY.call(|driver| memory::mem_advise_v2(driver, dev_ptr, count, advice, location))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAlloc_v2(dptr: Out<CUdeviceptr>, bytesize: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAlloc_v2");
    ENTRY.call(|driver| memory::mem_alloc(driver, dptr, bytesize))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocHost_v2(pp: Out<HostAddr>, bytesize: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocHost_v2");
    ENTRY.call(|driver| memory::mem_alloc_host(driver, pp, bytesize))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocManaged(dptr: Out<CUdeviceptr>, bytesize: usize, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocManaged");
    ENTRY.call(|driver| memory::mem_alloc_managed(driver, dptr, bytesize, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocPitch_v2(
    dptr: Out<CUdeviceptr>,
    p_pitch: Out<usize>,
    width_in_bytes: usize,
    height: usize,
    element_size_bytes: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocPitch_v2");
    ENTRY.call(|driver| memory::mem_alloc_pitch(driver, dptr, p_pitch, width_in_bytes, height, element_size_bytes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemFree_v2");
    ENTRY.call(|driver| memory::mem_free(driver, dptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFreeHost(p: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemFreeHost");
    ENTRY.call(|driver| memory::mem_free_host(driver, p))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAddressRange_v2(
    pbase: Out<CUdeviceptr>,
    psize: Out<usize>,
    dptr: CUdeviceptr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetAddressRange_v2");
    ENTRY.call(|driver| memory::mem_get_address_range(driver, pbase, psize, dptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetInfo_v2");
    ENTRY.call(|driver| memory::mem_get_info(driver, free, total))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetLocationInfo(
    ptr: CUdeviceptr,
    size: usize,
    summary_granularity: usize,
    sampling_granularity: usize,
    location_out: Out<CUmemLocation>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetLocationInfo");
    ENTRY.call(|driver| {
        memory::mem_get_location_info(driver, ptr, size, summary_granularity, sampling_granularity, location_out)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostAlloc(pp: Out<HostAddr>, bytesize: usize, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostAlloc");
    ENTRY.call(|driver| memory::mem_host_alloc(driver, pp, bytesize, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostGetDevicePointer_v2(pdptr: Out<CUdeviceptr>, p: HostAddr, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostGetDevicePointer_v2");
    ENTRY.call(|driver| memory::mem_host_get_device_pointer(driver, pdptr, p, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostGetFlags(p_flags: Out<u32>, p: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostGetFlags");
    ENTRY.call(|driver| memory::mem_host_get_flags(driver, p_flags, p))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostRegister(p: HostAddr, bytesize: usize, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostRegister");
    ENTRY.call(|driver| memory::mem_host_register(driver, p, bytesize, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostRegister_v2(p: HostAddr, bytesize: usize, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostRegister_v2");
    ENTRY.call(|driver| memory::mem_host_register(driver, p, bytesize, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostUnregister(p: HostAddr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostUnregister");
    ENTRY.call(|driver| memory::mem_host_unregister(driver, p))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchAsync(
    dev_ptr: CUdeviceptr,
    count: usize,
    dst_device: CUdevice,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPrefetchAsync");
    ENTRY.call(|driver| memory::mem_prefetch_async(driver, dev_ptr, count, dst_device, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchAsync_v2(
    dev_ptr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPrefetchAsync_v2");
    ENTRY.call(|driver| memory::mem_prefetch_async_v2(driver, dev_ptr, count, location, flags, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchAsync_ptsz(
    dev_ptr: CUdeviceptr,
    count: usize,
    dst_device: CUdevice,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPrefetchAsync_ptsz");
    ENTRY.call(|driver| memory::mem_prefetch_async(driver, dev_ptr, count, dst_device, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchAsync_v2_ptsz(
    dev_ptr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPrefetchAsync_v2_ptsz");
    ENTRY.call(|driver| memory::mem_prefetch_async_v2(driver, dev_ptr, count, location, flags, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemRangeGetAttribute(
    data: HostAddr,
    data_size: usize,
    attribute: CUmem_range_attribute,
    dev_ptr: CUdeviceptr,
    count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemRangeGetAttribute");
    ENTRY.call(|driver| memory::mem_range_get_attribute(driver, data, data_size, attribute, dev_ptr, count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemRangeGetAttributes(
    data: In<HostAddr>,
    data_sizes: In<usize>,
    attributes: In<CUmem_range_attribute>,
    num_attributes: usize,
    dev_ptr: CUdeviceptr,
    count: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemRangeGetAttributes");
    ENTRY.call(|driver| {
        memory::mem_range_get_attributes(driver, data, data_sizes, attributes, num_attributes, dev_ptr, count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuPointerGetAttribute(
    data: HostAddr,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuPointerGetAttribute");
    ENTRY.call(|driver| memory::pointer_get_attribute(driver, data, attribute, ptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuPointerGetAttributes(
    num_attributes: u32,
    attributes: In<CUpointer_attribute>,
    data: In<HostAddr>,
    ptr: CUdeviceptr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuPointerGetAttributes");
    ENTRY.call(|driver| memory::pointer_get_attributes(driver, num_attributes, attributes, data, ptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuPointerSetAttribute(
    value: HostAddr,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuPointerSetAttribute");
    ENTRY.call(|driver| memory::pointer_set_attribute(driver, value, attribute, ptr))
}
