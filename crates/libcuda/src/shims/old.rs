//! Exported functions implemented by `calls::old`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR_v1, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D_v1, CUarray, CUdevice,
    CUdeviceptr_v1, CUmodule, CUresult, CUstream, CUtexref, HostAddr,
};

use crate::calls::old;
use crate::decode::{In, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArray3DCreate(
    p_handle: Out<CUarray>,
    p_allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR_v1>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArray3DCreate");
    ENTRY.call(|driver| old::array_3d_create(driver, p_handle, p_allocate_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArray3DGetDescriptor(
    p_array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>,
    h_array: CUarray,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArray3DGetDescriptor");
    ENTRY.call(|driver| old::array_3d_get_descriptor(driver, p_array_descriptor, h_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayCreate(
    p_handle: Out<CUarray>,
    p_allocate_array: In<CUDA_ARRAY_DESCRIPTOR_v1>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayCreate");
    ENTRY.call(|driver| old::array_create(driver, p_handle, p_allocate_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuArrayGetDescriptor(
    p_array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR_v1>,
    h_array: CUarray,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuArrayGetDescriptor");
    ENTRY.call(|driver| old::array_get_descriptor(driver, p_array_descriptor, h_array))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceTotalMem(bytes: Out<u32>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceTotalMem");
    ENTRY.call(|driver| old::device_total_mem(driver, bytes, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAlloc(dptr: Out<CUdeviceptr_v1>, bytesize: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAlloc");
    ENTRY.call(|driver| old::mem_alloc(driver, dptr, bytesize))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocHost(pp: Out<HostAddr>, bytesize: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocHost");
    ENTRY.call(|driver| old::mem_alloc_host(driver, pp, bytesize))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocPitch(
    dptr: Out<CUdeviceptr_v1>,
    p_pitch: Out<u32>,
    width_in_bytes: u32,
    height: u32,
    element_size_bytes: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemAllocPitch");
    ENTRY.call(|driver| old::mem_alloc_pitch(driver, dptr, p_pitch, width_in_bytes, height, element_size_bytes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFree(dptr: CUdeviceptr_v1) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemFree");
    ENTRY.call(|driver| old::mem_free(driver, dptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAddressRange(
    pbase: Out<CUdeviceptr_v1>,
    psize: Out<u32>,
    dptr: CUdeviceptr_v1,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetAddressRange");
    ENTRY.call(|driver| old::mem_get_address_range(driver, pbase, psize, dptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemGetInfo");
    ENTRY.call(|driver| old::mem_get_info(driver, free, total))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostGetDevicePointer(pdptr: Out<CUdeviceptr_v1>, p: HostAddr, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemHostGetDevicePointer");
    ENTRY.call(|driver| old::mem_host_get_device_pointer(driver, pdptr, p, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2D(p_copy: In<CUDA_MEMCPY2D_v1>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2D");
    ENTRY.call(|driver| old::memcpy_2d(driver, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2DAsync(p_copy: In<CUDA_MEMCPY2D_v1>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2DAsync");
    ENTRY.call(|driver| old::memcpy_2d_async(driver, p_copy, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy2DUnaligned(p_copy: In<CUDA_MEMCPY2D_v1>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy2DUnaligned");
    ENTRY.call(|driver| old::memcpy_2d(driver, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3D(p_copy: In<CUDA_MEMCPY3D_v1>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3D");
    ENTRY.call(|driver| old::memcpy_3d(driver, p_copy))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy3DAsync(p_copy: In<CUDA_MEMCPY3D_v1>, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpy3DAsync");
    ENTRY.call(|driver| old::memcpy_3d_async(driver, p_copy, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoA(
    dst_array: CUarray,
    dst_offset: u32,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoA");
    ENTRY.call(|driver| old::memcpy_atoa(driver, dst_array, dst_offset, src_array, src_offset, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoD(
    dst_device: CUdeviceptr_v1,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoD");
    ENTRY.call(|driver| old::memcpy_atod(driver, dst_device, src_array, src_offset, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoH(
    dst_host: HostAddr,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoH");
    ENTRY.call(|driver| old::memcpy_atoh(driver, dst_host, src_array, src_offset, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyAtoHAsync(
    dst_host: HostAddr,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyAtoHAsync");
    ENTRY.call(|driver| old::memcpy_atoh_async(driver, dst_host, src_array, src_offset, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoA(
    dst_array: CUarray,
    dst_offset: u32,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoA");
    ENTRY.call(|driver| old::memcpy_dtoa(driver, dst_array, dst_offset, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoD(
    dst_device: CUdeviceptr_v1,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoD");
    ENTRY.call(|driver| old::memcpy_dtod(driver, dst_device, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoDAsync(
    dst_device: CUdeviceptr_v1,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoDAsync");
    ENTRY.call(|driver| old::memcpy_dtod_async(driver, dst_device, src_device, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoH(dst_host: HostAddr, src_device: CUdeviceptr_v1, byte_count: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoH");
    ENTRY.call(|driver| old::memcpy_dtoh(driver, dst_host, src_device, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyDtoHAsync(
    dst_host: HostAddr,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyDtoHAsync");
    ENTRY.call(|driver| old::memcpy_dtoh_async(driver, dst_host, src_device, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoA(
    dst_array: CUarray,
    dst_offset: u32,
    src_host: HostAddr,
    byte_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoA");
    ENTRY.call(|driver| old::memcpy_htoa(driver, dst_array, dst_offset, src_host, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoAAsync(
    dst_array: CUarray,
    dst_offset: u32,
    src_host: HostAddr,
    byte_count: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoAAsync");
    ENTRY.call(|driver| old::memcpy_htoa_async(driver, dst_array, dst_offset, src_host, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoD(dst_device: CUdeviceptr_v1, src_host: HostAddr, byte_count: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoD");
    ENTRY.call(|driver| old::memcpy_htod(driver, dst_device, src_host, byte_count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpyHtoDAsync(
    dst_device: CUdeviceptr_v1,
    src_host: HostAddr,
    byte_count: u32,
    h_stream: CUstream,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemcpyHtoDAsync");
    ENTRY.call(|driver| old::memcpy_htod_async(driver, dst_device, src_host, byte_count, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD16(dst_device: CUdeviceptr_v1, us: u16, n: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD16");
    ENTRY.call(|driver| old::memset_d16(driver, dst_device, us, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D16(
    dst_device: CUdeviceptr_v1,
    dst_pitch: u32,
    us: u16,
    width: u32,
    height: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D16");
    ENTRY.call(|driver| old::memset_d2d16(driver, dst_device, dst_pitch, us, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D32(
    dst_device: CUdeviceptr_v1,
    dst_pitch: u32,
    ui: u32,
    width: u32,
    height: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D32");
    ENTRY.call(|driver| old::memset_d2d32(driver, dst_device, dst_pitch, ui, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD2D8(
    dst_device: CUdeviceptr_v1,
    dst_pitch: u32,
    uc: u8,
    width: u32,
    height: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD2D8");
    ENTRY.call(|driver| old::memset_d2d8(driver, dst_device, dst_pitch, uc, width, height))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD32(dst_device: CUdeviceptr_v1, ui: u32, n: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD32");
    ENTRY.call(|driver| old::memset_d32(driver, dst_device, ui, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemsetD8(dst_device: CUdeviceptr_v1, uc: u8, n: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemsetD8");
    ENTRY.call(|driver| old::memset_d8(driver, dst_device, uc, n))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuModuleGetGlobal(
    dptr: Out<CUdeviceptr_v1>,
    bytes: Out<u32>,
    hmod: CUmodule,
    name: Text,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuModuleGetGlobal");
    ENTRY.call(|driver| old::module_get_global(driver, dptr, bytes, hmod, name))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefGetAddress(pdptr: Out<CUdeviceptr_v1>, h_tex_ref: CUtexref) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefGetAddress");
    ENTRY.call(|driver| old::tex_ref_get_address(driver, pdptr, h_tex_ref))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetAddress(
    byte_offset: Out<u32>,
    h_tex_ref: CUtexref,
    dptr: CUdeviceptr_v1,
    bytes: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetAddress");
    ENTRY.call(|driver| old::tex_ref_set_address(driver, byte_offset, h_tex_ref, dptr, bytes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuTexRefSetAddress2D(
    h_tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR_v1>,
    dptr: CUdeviceptr_v1,
    pitch: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuTexRefSetAddress2D");
    ENTRY.call(|driver| old::tex_ref_set_address_2d(driver, h_tex_ref, desc, dptr, pitch))
}
