//! The exported functions, called as a C program calls them, on the software GPU in this process.
//!
//! One test: the driver is the process's, and the environment chooses its GPU.

#![expect(unsafe_code, reason = "calls C functions")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every call is one of a documented C function with valid arguments"
)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use cuda as _;
use cuda_abi::{
    CUcontext, CUdeviceptr, CUdriverProcAddressQueryResult, CUevent, CUfunction, CUlaunchConfig, CUmodule, CUresult,
    CUstream, HostAddr,
};

unsafe extern "C" {
    fn cuInit(flags: u32) -> CUresult;
    fn cuDriverGetVersion(version: *mut i32) -> CUresult;
    fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> CUresult;
    fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *const c_void,
        version: i32,
        flags: u64,
        status: *mut CUdriverProcAddressQueryResult,
    ) -> CUresult;
    fn cuDeviceGetCount(count: *mut i32) -> CUresult;
    fn cuDeviceGetName(name: *mut c_char, length: i32, device: i32) -> CUresult;
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: u32, device: i32) -> CUresult;
    fn cuCtxSynchronize() -> CUresult;
    fn cuCtxDestroy_v2(context: CUcontext) -> CUresult;
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CUresult;
    fn cuMemFree_v2(address: CUdeviceptr) -> CUresult;
    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> CUresult;
    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> CUresult;
    fn cuMemsetD32Async(dst: CUdeviceptr, value: u32, count: usize, stream: CUstream) -> CUresult;
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) -> CUresult;
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult;
    fn cuFuncGetName(name: *mut *const c_char, function: CUfunction) -> CUresult;
    fn cuStreamCreate(stream: *mut CUstream, flags: u32) -> CUresult;
    fn cuStreamSynchronize(stream: CUstream) -> CUresult;
    fn cuEventCreate(event: *mut CUevent, flags: u32) -> CUresult;
    fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
    fn cuEventSynchronize(event: CUevent) -> CUresult;
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) -> CUresult;
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult;
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult;
    fn cuLaunchHostFunc(stream: CUstream, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> CUresult;
    fn cuGraphCreate(graph: *mut u64, flags: u32) -> CUresult;
}

/// data[i] += addend, for i below n.
const PTX: &CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .entry add(.param .u64 data, .param .u32 addend, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [addend];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    add.s32 %r7, %r7, %r1;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}
";

const N: usize = 1000;
const OK: CUresult = CUresult::CUDA_SUCCESS;

#[test]
fn a_c_program() {
    for (name, value) in [("SUNDIAL_NATIVE", "1"), ("SUNDIAL_VRAM", "128m"), ("SUNDIAL_WORKERS", "2")] {
        // SAFETY: the test is alone in its process and has no threads yet.
        unsafe { std::env::set_var(name, value) }
    }
    before_the_start();
    assert_eq!(unsafe { cuInit(0) }, OK);
    assert_eq!(unsafe { cuInit(0) }, OK);
    device();
    let mut context = CUcontext::NULL;
    assert_eq!(unsafe { cuCtxCreate_v2(&mut context, 0, 0) }, OK);
    let mut data = 0;
    assert_eq!(unsafe { cuMemAlloc_v2(&mut data, N * 4) }, OK);
    let function = module();
    launches(function, data);
    streams_and_events(data);
    refusals(function);
    assert_eq!(unsafe { cuMemFree_v2(data) }, OK);
    assert_eq!(unsafe { cuCtxDestroy_v2(context) }, OK);
    assert_eq!(unsafe { cuCtxDestroy_v2(context) }, CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

fn before_the_start() {
    let (mut version, mut count) = (0, 0);
    assert_eq!(unsafe { cuDriverGetVersion(&mut version) }, OK);
    assert_eq!(version, 13050);
    assert_eq!(unsafe { cuDeviceGetCount(&mut count) }, CUresult::CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(unsafe { cuInit(1) }, CUresult::CUDA_ERROR_INVALID_VALUE);
    let (mut function, mut status) = (null(), CUdriverProcAddressQueryResult(9));
    let found = unsafe { cuGetProcAddress_v2(c"".as_ptr(), &mut function, 0, 0, &mut status) };
    assert_eq!(found, CUresult::CUDA_ERROR_NOT_FOUND);
    assert_eq!(status, CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    let found = unsafe { cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut function, 13050, 0, &mut status) };
    assert_eq!((found, status.0, function.addr()), (OK, 0, (cuInit as *const ()).addr()));
    let mut name = null();
    assert_eq!(unsafe { cuGetErrorName(CUresult(700), &mut name) }, OK);
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
}

fn device() {
    let mut count = 0;
    assert_eq!(unsafe { cuDeviceGetCount(&mut count) }, OK);
    assert_eq!(count, 1);
    let mut name = [0 as c_char; 8];
    assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr(), 8, 0) }, OK);
    assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"Sundial");
    assert_eq!(unsafe { cuDeviceGetName(name.as_mut_ptr(), 8, 1) }, CUresult::CUDA_ERROR_INVALID_DEVICE);
}

fn module() -> CUfunction {
    let (mut module, mut function, mut name) = (CUmodule::NULL, CUfunction::NULL, null());
    assert_eq!(unsafe { cuModuleLoadData(&mut module, PTX.as_ptr().cast()) }, OK);
    assert_eq!(unsafe { cuModuleGetFunction(&mut function, module, c"add".as_ptr()) }, OK);
    assert_eq!(unsafe { cuFuncGetName(&mut name, function) }, OK);
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"add");
    let missing = unsafe { cuModuleGetFunction(&mut function, module, c"sub".as_ptr()) };
    assert_eq!(missing, CUresult::CUDA_ERROR_NOT_FOUND);
    function
}

/// The three ways in which parameters reach a kernel.
fn launches(function: CUfunction, data: CUdeviceptr) {
    let numbers: Vec<u32> = (0..N as u32).collect();
    assert_eq!(unsafe { cuMemcpyHtoD_v2(data, numbers.as_ptr().cast(), N * 4) }, OK);
    let (mut address, mut addend, mut n) = (data, 5u32, N as u32);
    let mut params: [*mut c_void; 3] = [(&raw mut address).cast(), (&raw mut addend).cast(), (&raw mut n).cast()];
    let launched =
        unsafe { cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()) };
    assert_eq!(launched, OK);
    let config = CUlaunchConfig {
        grid_dim_x: 8,
        grid_dim_y: 1,
        grid_dim_z: 1,
        block_dim_x: 128,
        block_dim_y: 1,
        block_dim_z: 1,
        shared_mem_bytes: 0,
        h_stream: CUstream::NULL,
        attrs: HostAddr::NULL,
        num_attrs: 0,
    };
    assert_eq!(unsafe { cuLaunchKernelEx(&config, function, params.as_mut_ptr(), null_mut()) }, OK);
    let mut block = [0u8; 16];
    block[..8].copy_from_slice(&data.to_ne_bytes());
    block[8..12].copy_from_slice(&90u32.to_ne_bytes());
    block[12..].copy_from_slice(&n.to_ne_bytes());
    let mut bytes = block.len();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        block.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        null_mut(),
    ];
    let launched =
        unsafe { cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, CUstream::NULL, null_mut(), extra.as_mut_ptr()) };
    assert_eq!(launched, OK);
    assert_eq!(unsafe { cuCtxSynchronize() }, OK);
    let mut result = vec![0u32; N];
    assert_eq!(unsafe { cuMemcpyDtoH_v2(result.as_mut_ptr().cast(), data, N * 4) }, OK);
    assert!(result.iter().enumerate().all(|(index, value)| *value == index as u32 + 100), "{:?}", &result[..8]);
}

unsafe extern "C" fn store(place: *mut c_void) {
    unsafe { place.cast::<u32>().write(7) }
}

fn streams_and_events(data: CUdeviceptr) {
    let (mut stream, mut events) = (CUstream::NULL, [CUevent::NULL; 2]);
    assert_eq!(unsafe { cuStreamCreate(&mut stream, 1) }, OK);
    for event in &mut events {
        assert_eq!(unsafe { cuEventCreate(event, 0) }, OK);
    }
    let mut stored = 0u32;
    assert_eq!(unsafe { cuEventRecord(events[0], stream) }, OK);
    assert_eq!(unsafe { cuMemsetD32Async(data, 0x0102_0304, N, stream) }, OK);
    assert_eq!(unsafe { cuLaunchHostFunc(stream, store, (&raw mut stored).cast()) }, OK);
    assert_eq!(unsafe { cuEventRecord(events[1], stream) }, OK);
    assert_eq!(unsafe { cuEventSynchronize(events[1]) }, OK);
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, OK);
    let mut milliseconds = -1.0;
    assert_eq!(unsafe { cuEventElapsedTime_v2(&mut milliseconds, events[0], events[1]) }, OK);
    assert!(milliseconds >= 0.0);
    assert_eq!(unsafe { (&raw const stored).read_volatile() }, 7);
    let mut last = 0u32;
    assert_eq!(unsafe { cuMemcpyDtoH_v2((&raw mut last).cast(), data + (N as u64 - 1) * 4, 4) }, OK);
    assert_eq!(last, 0x0102_0304);
}

fn refusals(function: CUfunction) {
    assert_eq!(unsafe { cuMemAlloc_v2(null_mut(), 16) }, CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut address = 0;
    assert_eq!(unsafe { cuMemAlloc_v2(&mut address, 1 << 40) }, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(unsafe { cuMemFree_v2(12345) }, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(unsafe { cuMemcpyHtoD_v2(0, null(), 16) }, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(unsafe { cuGraphCreate(null_mut(), 0) }, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(unsafe { cuStreamSynchronize(CUstream(0x7777)) }, CUresult::CUDA_ERROR_INVALID_HANDLE);
    let bare = unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, null_mut(), null_mut()) };
    assert_eq!(bare, CUresult::CUDA_ERROR_INVALID_VALUE);
    compiler_log();
}

/// `CU_JIT_ERROR_LOG_BUFFER` (5) and its size (6).
fn compiler_log() {
    let (mut module, mut text) = (CUmodule::NULL, [0u8; 256]);
    let mut options = [6, 5];
    let mut values: [*mut c_void; 2] = [std::ptr::without_provenance_mut(text.len()), text.as_mut_ptr().cast()];
    let image = c".version 7.0\n.target sm_75\n.address_size 64\n.nonsense k;\n";
    let loaded =
        unsafe { cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    assert_eq!(loaded, CUresult::CUDA_ERROR_INVALID_PTX);
    let log = CStr::from_bytes_until_nul(&text).expect("a NUL").to_str().expect("UTF-8");
    assert!(log.contains("nonsense") || log.contains('4'), "{log:?}");
    assert_eq!(values[0].addr(), log.len());
}
