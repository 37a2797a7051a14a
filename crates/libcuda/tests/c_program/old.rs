//! The interface of CUDA 2 and 3, as programs of that time use it: arrays by 32-bit sizes, launches said piece by piece.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each calls one C function, with the test's own places and functions"
)]

use super::*;

use cuda_abi::{
    CUDA_ARRAY_DESCRIPTOR_v1, CUDA_LAUNCH_PARAMS, CUDA_MEMCPY2D_v1, CUarray, CUarray_format, CUdeviceptr_v1,
    CUmemorytype,
};

unsafe extern "C" {
    safe fn cuMemAlloc(address: Option<&mut CUdeviceptr_v1>, bytes: u32) -> CUresult;
    safe fn cuMemFree(address: CUdeviceptr_v1) -> CUresult;
    safe fn cuMemGetInfo(free: Option<&mut u32>, total: Option<&mut u32>) -> CUresult;
    safe fn cuMemGetInfo_v2(free: Option<&mut usize>, total: Option<&mut usize>) -> CUresult;
    safe fn cuDeviceTotalMem(bytes: Option<&mut u32>, device: i32) -> CUresult;
    safe fn cuMemAllocHost(address: Option<&mut HostAddr>, bytes: u32) -> CUresult;
    safe fn cuMemFreeHost(address: HostAddr) -> CUresult;
    safe fn cuMemsetD32(address: CUdeviceptr_v1, value: u32, count: u32) -> CUresult;
    safe fn cuArrayCreate(array: Option<&mut CUarray>, descriptor: Option<&CUDA_ARRAY_DESCRIPTOR_v1>) -> CUresult;
    safe fn cuArrayGetDescriptor(descriptor: Option<&mut CUDA_ARRAY_DESCRIPTOR_v1>, array: CUarray) -> CUresult;
    fn cuMemcpyHtoA(array: CUarray, offset: u32, source: *const c_void, bytes: u32) -> CUresult;
    fn cuMemcpyAtoH(target: *mut c_void, array: CUarray, offset: u32, bytes: u32) -> CUresult;
    fn cuMemcpy2D(copy: *const CUDA_MEMCPY2D_v1) -> CUresult;
    safe fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) -> CUresult;
    safe fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) -> CUresult;
    safe fn cuParamSetSize(function: CUfunction, bytes: u32) -> CUresult;
    safe fn cuParamSeti(function: CUfunction, offset: i32, value: u32) -> CUresult;
    safe fn cuParamSetf(function: CUfunction, offset: i32, value: f32) -> CUresult;
    fn cuParamSetv(function: CUfunction, offset: i32, value: *const c_void, bytes: u32) -> CUresult;
    safe fn cuLaunch(function: CUfunction) -> CUresult;
    safe fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) -> CUresult;
    safe fn cuLaunchGridAsync(function: CUfunction, width: i32, height: i32, stream: CUstream) -> CUresult;
    fn cuLaunchCooperativeKernelMultiDevice(list: *const CUDA_LAUNCH_PARAMS, count: u32, flags: u32) -> CUresult;
}

const NO: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Sizes and addresses of 32 bits.
pub(super) fn sizes() {
    let (mut free, mut total, mut whole) = (0, 0, 0);
    assert_eq!(cuMemGetInfo(Some(&mut free), Some(&mut total)), OK);
    let (mut wide_free, mut wide_total) = (0, 0);
    assert_eq!(cuMemGetInfo_v2(Some(&mut wide_free), Some(&mut wide_total)), OK);
    assert_eq!((free as usize, total as usize), (wide_free.min(u32::MAX as usize), wide_total.min(u32::MAX as usize)));
    assert_eq!(cuDeviceTotalMem(Some(&mut whole), 0), OK);
    assert_eq!(whole, total);
    // What such an address cannot name is given back.
    let mut address = 5;
    assert_eq!(cuMemAlloc(Some(&mut address), 4 << 20), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let mut again = 0;
    assert_eq!((cuMemGetInfo_v2(Some(&mut again), Some(&mut wide_total)), again), (OK, wide_free));
    assert_eq!((cuMemAlloc(None, 4), cuMemFree(4096), cuMemsetD32(4096, 1, 1)), (NO, NO, NO));
    let mut host = HostAddr::NULL;
    assert_eq!(cuMemAllocHost(Some(&mut host), 64), OK);
    assert_eq!(cuMemFreeHost(host), OK);
}

pub(super) fn arrays() {
    let mut array = CUarray::NULL;
    let shape = CUDA_ARRAY_DESCRIPTOR_v1 {
        width: 8,
        height: 4,
        format: CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
        num_channels: 1,
    };
    assert_eq!(cuArrayCreate(None, Some(&shape)), NO);
    assert_eq!(cuArrayCreate(Some(&mut array), None), NO);
    assert_eq!(cuArrayCreate(Some(&mut array), Some(&shape)), OK);
    let mut told = CUDA_ARRAY_DESCRIPTOR_v1 { width: 0, ..shape };
    assert_eq!(cuArrayGetDescriptor(Some(&mut told), array), OK);
    assert_eq!(told, shape);
    let data: [u32; 32] = std::array::from_fn(|index| index as u32 * 3);
    let mut back = [0; 32];
    let mut copy = CUDA_MEMCPY2D_v1 {
        src_x_in_bytes: 0,
        src_y: 0,
        src_memory_type: CUmemorytype::CU_MEMORYTYPE_HOST,
        src_host: HostAddr(data.as_ptr().expose_provenance() as u64),
        src_device: 0,
        src_array: CUarray::NULL,
        src_pitch: 32,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_memory_type: CUmemorytype::CU_MEMORYTYPE_ARRAY,
        dst_host: HostAddr::NULL,
        dst_device: 0,
        dst_array: array,
        dst_pitch: 0,
        width_in_bytes: 32,
        height: 4,
    };
    // SAFETY: the data are as many as the copy says.
    assert_eq!(unsafe { cuMemcpy2D(&copy) }, OK);
    (copy.src_memory_type, copy.dst_memory_type) = (copy.dst_memory_type, copy.src_memory_type);
    (copy.src_array, copy.dst_host) = (array, HostAddr(back.as_mut_ptr().expose_provenance() as u64));
    copy.dst_pitch = 32;
    // SAFETY: as above, of the place for them.
    assert_eq!(unsafe { cuMemcpy2D(&copy) }, OK);
    assert_eq!(back, data);
    let words = [70u32, 71];
    let mut seen = [0u32; 3];
    // SAFETY: eight bytes are read, then twelve written.
    let copied = unsafe {
        (cuMemcpyHtoA(array, 4, words.as_ptr().cast(), 8), cuMemcpyAtoH(seen.as_mut_ptr().cast(), array, 0, 12))
    };
    assert_eq!((copied, seen), ((OK, OK), [0, 70, 71]));
    assert_eq!(cuArrayDestroy(array.0), OK);
}

/// data[i] += addend of the first n.
pub(super) fn launches(function: CUfunction, data: CUdeviceptr) {
    let numbers: Vec<u32> = (0..N as u32).collect();
    assert_eq!(to_gpu(data, &numbers), OK);
    assert_eq!(cuLaunchGrid(function, 1, 1), NO, "no shape was said");
    assert_eq!([cuFuncSetBlockShape(function, 0, 1, 1), cuFuncSetBlockShape(function, 2048, 1, 1)], [NO; 2]);
    assert_eq!(cuFuncSetBlockShape(function, 128, 1, 1), OK);
    assert_eq!([cuFuncSetSharedSize(function, 1 << 30), cuFuncSetSharedSize(function, 0)], [NO, OK]);
    assert_eq!([cuParamSetSize(function, 1 << 20), cuParamSeti(function, -4, 1)], [NO; 2]);
    assert_eq!(cuParamSeti(function, i32::MAX, 1), NO);
    // SAFETY: eight bytes are read; then none.
    let set = unsafe { [cuParamSetv(function, 0, (&raw const data).cast(), 8), cuParamSetv(function, 0, null(), 8)] };
    assert_eq!(set, [OK, NO]);
    assert_eq!(cuParamSetf(function, 8, f32::from_bits(5)), OK);
    assert_eq!(cuParamSeti(function, 12, N as u32), OK);
    assert_eq!(cuParamSetSize(function, 12), OK);
    assert_eq!(cuLaunch(function), NO, "the kernel has 16 bytes of parameters");
    assert_eq!(cuParamSetSize(function, 16), OK);
    assert_eq!([cuLaunchGrid(function, 0, 1), cuLaunchGrid(function, 1, -1)], [NO; 2]);
    // One block; all; all again.
    assert_eq!(cuLaunch(function), OK);
    assert_eq!(cuLaunchGrid(function, 8, 1), OK);
    assert_eq!(cuLaunchGridAsync(function, 4, 2, CUstream::NULL), OK);
    let mut result = vec![0; N];
    assert_eq!(from_gpu(&mut result, data), OK);
    // The third has blocks 0 to 3 twice: the kernel knows of one dimension.
    let expect = |index: usize| index as u32 + if index < 128 { 5 } else { 0 } + 5 + if index < 512 { 10 } else { 0 };
    assert!(result.iter().enumerate().all(|(index, value)| *value == expect(index)), "{:?}", &result[..8]);
}

/// A cooperative launch on each of several devices, of which there is one.
pub(super) fn several_devices(function: CUfunction, data: CUdeviceptr) {
    assert_eq!(to_gpu(data, &[1; 4]), OK);
    let mut stream = CUstream::NULL;
    assert_eq!(cuStreamCreate(Some(&mut stream), 1), OK);
    let (mut address, mut addend, mut n) = (data, 5u32, 4u32);
    let mut params: [*mut c_void; 3] = [(&raw mut address).cast(), (&raw mut addend).cast(), (&raw mut n).cast()];
    let one = CUDA_LAUNCH_PARAMS {
        function,
        grid_dim_x: 1,
        grid_dim_y: 1,
        grid_dim_z: 1,
        block_dim_x: 32,
        block_dim_y: 1,
        block_dim_z: 1,
        shared_mem_bytes: 0,
        h_stream: stream,
        kernel_params: HostAddr(params.as_mut_ptr().expose_provenance() as u64),
    };
    // SAFETY: lists of the parameters of a kernel.
    let launch = |list: &[CUDA_LAUNCH_PARAMS], count, flags| unsafe {
        cuLaunchCooperativeKernelMultiDevice(list.as_ptr(), count, flags)
    };
    let default = CUDA_LAUNCH_PARAMS { h_stream: CUstream::NULL, ..one };
    assert_eq!(launch(&[default], 1, 0), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!([launch(&[one], 0, 0), launch(&[one], 1, 4), launch(&[one, one], 2, 0)], [NO; 3]);
    let large = CUDA_LAUNCH_PARAMS { grid_dim_x: 1 << 20, ..one };
    assert_eq!(launch(&[large], 1, 0), CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    assert_eq!([launch(&[one], 1, 0), launch(&[one], 1, 3)], [OK; 2]);
    assert_eq!(cuStreamSynchronize(stream), OK);
    let mut result = [0; 4];
    assert_eq!(from_gpu(&mut result, data), OK);
    assert_eq!(result, [11; 4]);
}
