//! The exported functions, called as a C program calls them. Which GPU is for those to say who include this
//! (`crate::choose`).
//!
//! One test: the driver is the process's, and the environment chooses its GPU.

mod graphs;
mod old;
mod tables;
mod told;

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};

use cuda as _;
use cuda_abi::{
    CUcontext, CUdeviceptr, CUdriverProcAddressQueryResult, CUevent, CUfunction, CUgraph, CUlaunchConfig, CUmodule,
    CUresult, CUstream, HostAddr,
};

// What the types of the arguments say is all that a `safe` function asks; an absent place is an error, not undefined.
unsafe extern "C" {
    safe fn cuInit(flags: u32) -> CUresult;
    safe fn cuDriverGetVersion(version: Option<&mut i32>) -> CUresult;
    safe fn cuGetErrorName(error: CUresult, name: Option<&mut *const c_char>) -> CUresult;
    fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *const c_void,
        version: i32,
        flags: u64,
        status: *mut CUdriverProcAddressQueryResult,
    ) -> CUresult;
    safe fn cuDeviceGetCount(count: Option<&mut i32>) -> CUresult;
    fn cuDeviceGetName(name: *mut c_char, length: i32, device: i32) -> CUresult;
    safe fn cuCtxCreate_v2(context: Option<&mut CUcontext>, flags: u32, device: i32) -> CUresult;
    safe fn cuCtxSynchronize() -> CUresult;
    safe fn cuCtxDestroy_v2(context: CUcontext) -> CUresult;
    safe fn cuMemAlloc_v2(address: Option<&mut CUdeviceptr>, bytes: usize) -> CUresult;
    safe fn cuMemFree_v2(address: CUdeviceptr) -> CUresult;
    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> CUresult;
    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> CUresult;
    safe fn cuMemsetD32Async(dst: CUdeviceptr, value: u32, count: usize, stream: CUstream) -> CUresult;
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) -> CUresult;
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult;
    safe fn cuFuncGetName(name: Option<&mut *const c_char>, function: CUfunction) -> CUresult;
    safe fn cuStreamCreate(stream: Option<&mut CUstream>, flags: u32) -> CUresult;
    safe fn cuStreamSynchronize(stream: CUstream) -> CUresult;
    safe fn cuEventCreate(event: Option<&mut CUevent>, flags: u32) -> CUresult;
    safe fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
    safe fn cuEventSynchronize(event: CUevent) -> CUresult;
    safe fn cuEventElapsedTime_v2(milliseconds: Option<&mut f32>, start: CUevent, end: CUevent) -> CUresult;
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
    safe fn cuCtxSetCurrent(context: CUcontext) -> CUresult;
    safe fn cuMemAllocHost_v2(address: Option<&mut HostAddr>, bytes: usize) -> CUresult;
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32) -> CUresult;
    fn cuMemHostUnregister(address: *mut c_void) -> CUresult;
    fn cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, address: *mut c_void, flags: u32) -> CUresult;
    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) -> CUresult;
    fn cuPointerGetAttributes(
        count: u32,
        attributes: *const u32,
        data: *const *mut c_void,
        address: CUdeviceptr,
    ) -> CUresult;
    safe fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut u32>) -> CUresult;
    safe fn cuStreamQuery(stream: CUstream) -> CUresult;
    fn cuLaunchHostFunc(stream: CUstream, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> CUresult;
    safe fn cuGraphCreate(graph: Option<&mut CUgraph>, flags: u32) -> CUresult;
    safe fn cuArrayDestroy(array: u64) -> CUresult;
    /// Whatever its parameters are: it is refused.
    safe fn cuMemMapArrayAsync() -> CUresult;
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
.visible .entry slow(.param .u64 place, .param .u32 rounds)
{
    .reg .pred %p1;
    .reg .b32 %r<4>;
    .reg .b64 %rd1;
    ld.param.u64 %rd1, [place];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, 1;
AGAIN:
    mad.lo.u32 %r2, %r2, 1664525, 1013904223;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    st.global.u32 [%rd1], %r2;
    ret;
}
";

const N: usize = 1000;
const OK: CUresult = CUresult::CUDA_SUCCESS;

#[test]
fn a_c_program() {
    crate::choose();
    before_the_start();
    // SAFETY: there are no threads yet.
    unsafe { std::env::set_var("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP", "1") }
    assert_eq!(cuInit(0), OK);
    // SAFETY: no other thread looks for a variable.
    unsafe { std::env::remove_var("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP") }
    assert_eq!(cuInit(0), OK);
    device();
    let mut context = CUcontext::NULL;
    assert_eq!(cuCtxCreate_v2(Some(&mut context), 0, 0), OK);
    let mut data = 0;
    assert_eq!(cuMemAlloc_v2(Some(&mut data), N * 4), OK);
    let function = module();
    launches(function, data);
    streams_and_events(data);
    refusals(function);
    null_places(function, data);
    old::sizes();
    old::arrays();
    old::launches(function, data);
    old::several_devices(function, data);
    tables::contexts_and_streams(context);
    told::errors(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    told::core_dumps(context);
    told::what_a_device_does(data);
    told::refusals();
    graphs::captures(function);
    graphs::kernel_nodes(context);
    graphs::memory_nodes(data);
    a_fork_leaves_registered_memory_to_the_parent(data);
    assert_eq!(cuMemFree_v2(data), OK);
    the_end_of_a_context_waits_for_its_work(context);
    assert_eq!(cuCtxSetCurrent(CUcontext::NULL), OK);
    assert_eq!(cuCtxDestroy_v2(context), CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

/// A string that the driver gave out: those last for ever.
fn text(name: *const c_char) -> &'static CStr {
    assert!(!name.is_null());
    // SAFETY: not null; the driver's names end in NUL and stay.
    unsafe { CStr::from_ptr(name) }
}

fn proc_address(name: &CStr, version: i32) -> (CUresult, CUdriverProcAddressQueryResult, usize) {
    let (mut function, mut status) = (null(), CUdriverProcAddressQueryResult(9));
    // SAFETY: the name ends in NUL, both places may be written.
    let answer = unsafe { cuGetProcAddress_v2(name.as_ptr(), &mut function, version, 0, &mut status) };
    (answer, status, function.addr())
}

fn function_of(module: CUmodule, name: &CStr) -> (CUresult, CUfunction) {
    let mut function = CUfunction::NULL;
    // SAFETY: the name ends in NUL, the place may be written.
    let answer = unsafe { cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    (answer, function)
}

fn to_gpu(address: CUdeviceptr, numbers: &[u32]) -> CUresult {
    // SAFETY: as many bytes are read as there are.
    unsafe { cuMemcpyHtoD_v2(address, numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn from_gpu(numbers: &mut [u32], address: CUdeviceptr) -> CUresult {
    // SAFETY: as many bytes are written as there are.
    unsafe { cuMemcpyDtoH_v2(numbers.as_mut_ptr().cast(), address, size_of_val(numbers)) }
}

fn before_the_start() {
    let (mut version, mut count) = (0, 0);
    assert_eq!(cuDriverGetVersion(Some(&mut version)), OK);
    assert_eq!(version, 13050);
    assert_eq!(cuDeviceGetCount(Some(&mut count)), CUresult::CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(cuMemMapArrayAsync(), CUresult::CUDA_ERROR_NOT_INITIALIZED);
    assert_eq!(cuInit(1), CUresult::CUDA_ERROR_INVALID_VALUE);
    let (found, status, _) = proc_address(c"", 0);
    assert_eq!(found, CUresult::CUDA_ERROR_NOT_FOUND);
    assert_eq!(status, CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    let (found, status, function) = proc_address(c"cuInit", 13050);
    assert_eq!((found, status.0, function), (OK, 0, (cuInit as *const ()).addr()));
    let mut name = null();
    assert_eq!(cuGetErrorName(CUresult(700), Some(&mut name)), OK);
    assert_eq!(text(name), c"CUDA_ERROR_ILLEGAL_ADDRESS");
}

fn device() {
    let mut count = 0;
    assert_eq!(cuDeviceGetCount(Some(&mut count)), OK);
    assert_eq!(count, 1);
    let mut name = [0u8; 8];
    // SAFETY: the place has eight bytes.
    let mut named = |device| unsafe { cuDeviceGetName(name.as_mut_ptr().cast(), 8, device) };
    assert_eq!(named(0), OK);
    assert_eq!(named(1), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(&name, b"Sundial\0");
}

fn module() -> CUfunction {
    let (mut module, mut name) = (CUmodule::NULL, null());
    // SAFETY: PTX ends in NUL.
    assert_eq!(unsafe { cuModuleLoadData(&mut module, PTX.as_ptr().cast()) }, OK);
    let (found, function) = function_of(module, c"add");
    assert_eq!(found, OK);
    assert_eq!(cuFuncGetName(Some(&mut name), function), OK);
    assert_eq!(text(name), c"add");
    assert_eq!(function_of(module, c"sub").0, CUresult::CUDA_ERROR_NOT_FOUND);
    function
}

/// The three ways in which parameters reach a kernel.
fn launches(function: CUfunction, data: CUdeviceptr) {
    let numbers: Vec<u32> = (0..N as u32).collect();
    assert_eq!(to_gpu(data, &numbers), OK);
    let (mut address, mut addend, mut n) = (data, 5u32, N as u32);
    let mut params: [*mut c_void; 3] = [(&raw mut address).cast(), (&raw mut addend).cast(), (&raw mut n).cast()];
    // SAFETY: three parameters of the kernel's sizes.
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
    // SAFETY: as before; there are no attributes.
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
    // SAFETY: a block of parameters and its size, then the end.
    let launched =
        unsafe { cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, CUstream::NULL, null_mut(), extra.as_mut_ptr()) };
    assert_eq!(launched, OK);
    assert_eq!(cuCtxSynchronize(), OK);
    let mut result = vec![0u32; N];
    assert_eq!(from_gpu(&mut result, data), OK);
    assert!(result.iter().enumerate().all(|(index, value)| *value == index as u32 + 100), "{:?}", &result[..8]);
}

unsafe extern "C" fn store(place: *mut c_void) {
    // SAFETY: the test gives the address of a u32 that it does not look at before.
    unsafe { place.cast::<u32>().write(7) }
}

fn streams_and_events(data: CUdeviceptr) {
    let (mut stream, mut events) = (CUstream::NULL, [CUevent::NULL; 2]);
    assert_eq!(cuStreamCreate(Some(&mut stream), 1), OK);
    for event in &mut events {
        assert_eq!(cuEventCreate(Some(event), 0), OK);
    }
    let mut stored = 0u32;
    assert_eq!(cuEventRecord(events[0], stream), OK);
    assert_eq!(cuMemsetD32Async(data, 0x0102_0304, N, stream), OK);
    // SAFETY: `stored` lives until the stream is synchronized.
    assert_eq!(unsafe { cuLaunchHostFunc(stream, store, (&raw mut stored).cast()) }, OK);
    assert_eq!(cuEventRecord(events[1], stream), OK);
    assert_eq!(cuEventSynchronize(events[1]), OK);
    assert_eq!(cuStreamSynchronize(stream), OK);
    let mut milliseconds = -1.0;
    assert_eq!(cuEventElapsedTime_v2(Some(&mut milliseconds), events[0], events[1]), OK);
    assert!(milliseconds >= 0.0);
    // SAFETY: a variable of this function; the stream has run dry.
    assert_eq!(unsafe { (&raw const stored).read_volatile() }, 7);
    let mut last = [0];
    assert_eq!(from_gpu(&mut last, data + (N as u64 - 1) * 4), OK);
    assert_eq!(last, [0x0102_0304]);
}

fn refusals(function: CUfunction) {
    assert_eq!(cuMemAlloc_v2(None, 16), CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut address = 0;
    assert_eq!(cuMemAlloc_v2(Some(&mut address), 1 << 40), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(cuMemFree_v2(12345), CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: nothing is read from a null address.
    assert_eq!(unsafe { cuMemcpyHtoD_v2(0, null(), 16) }, CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cuGraphCreate(None, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cuArrayDestroy(0), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cuStreamSynchronize(CUstream(0x7777)), CUresult::CUDA_ERROR_INVALID_HANDLE);
    // SAFETY: refused before a parameter is looked for.
    let bare = unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, null_mut(), null_mut()) };
    assert_eq!(bare, CUresult::CUDA_ERROR_INVALID_VALUE);
    // Machine code whose table of sections would be where there is no memory, and some that is shorter than its header.
    let mut header = [0; 64];
    header[..5].copy_from_slice(b"\x7FELF\x02");
    [header[0x28], header[0x3a], header[0x3c], header[0x3e]] = [64, 64, 2, 1];
    let mut module = CUmodule::NULL;
    for image in [at_the_end(header), at_the_end(*b"\x7FELF\x02")] {
        // SAFETY: so much of it is there that it can be told what it is.
        assert_eq!(unsafe { cuModuleLoadData(&mut module, image) }, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    compiler_log();
}

/// Every place that a function needs, left out; nothing is done then.
fn null_places(function: CUfunction, data: CUdeviceptr) {
    const NO: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
    let numbers = vec![11; N];
    assert_eq!(to_gpu(data, &numbers), OK);
    let (mut address, mut addend, mut n) = (data, 5u32, N as u32);
    let whole: [*mut c_void; 3] = [(&raw mut address).cast(), (&raw mut addend).cast(), (&raw mut n).cast()];
    for missing in 0..3 {
        let mut params = whole;
        params[missing] = null_mut();
        let list = params.as_mut_ptr();
        // SAFETY: three parameters, one of which is not there.
        let launched = unsafe { cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, CUstream::NULL, list, null_mut()) };
        assert_eq!(launched, NO, "parameter {missing}");
    }
    assert_eq!(cuCtxSynchronize(), OK);
    let mut unchanged = vec![0; N];
    assert_eq!(from_gpu(&mut unchanged, data), OK);
    assert_eq!(unchanged, numbers, "a kernel ran without all of its parameters");
    for (name, answer) in [
        ("cuDriverGetVersion", cuDriverGetVersion(None)),
        ("cuGetErrorName", cuGetErrorName(OK, None)),
        ("cuDeviceGetCount", cuDeviceGetCount(None)),
        ("cuCtxCreate", cuCtxCreate_v2(None, 0, 0)),
        ("cuMemAlloc", cuMemAlloc_v2(None, 16)),
        ("cuMemAllocHost", cuMemAllocHost_v2(None, 16)),
        ("cuStreamCreate", cuStreamCreate(None, 0)),
        ("cuEventCreate", cuEventCreate(None, 0)),
        ("cuFuncGetName", cuFuncGetName(None, function)),
        ("cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode(None)),
    ] {
        assert_eq!(answer, NO, "{name}");
    }
    let (mut module, mut place, mut kernel, mut device) = (CUmodule::NULL, 0u32, CUfunction::NULL, 0);
    let here = (&raw mut place).cast::<c_void>();
    let (kinds, into): ([u32; 1], [*mut c_void; 1]) = ([2], [null_mut()]);
    macro_rules! refused {
        ($($function:ident($($argument:expr),*);)*) => {
            $(
                // SAFETY: what is not null is a variable of the type and size that the function expects, or text that ends in NUL.
                let answer = unsafe { $function($($argument),*) };
                assert_eq!(answer, NO, stringify!($function($($argument),*)));
            )*
        };
    }
    refused! {
        cuDeviceGetName(null_mut(), 8, 0);
        cuMemcpyHtoD_v2(data, null(), 4);
        cuMemcpyDtoH_v2(null_mut(), data, 4);
        cuModuleLoadData(null_mut(), PTX.as_ptr().cast());
        cuModuleLoadData(&mut module, null());
        cuModuleLoadDataEx(&mut module, PTX.as_ptr().cast(), 1, null_mut(), null_mut());
        cuModuleGetFunction(&mut kernel, module, null());
        cuLaunchKernelEx(null(), function, null_mut(), null_mut());
        cuMemHostRegister_v2(null_mut(), 16, 0);
        cuMemHostRegister_v2(here, usize::MAX, 0);
        cuMemHostGetDevicePointer_v2(null_mut(), here, 0);
        cuMemHostGetDevicePointer_v2(&mut device, null_mut(), 0);
        cuPointerGetAttributes(1, null(), into.as_ptr(), data);
        cuPointerGetAttributes(1, kinds.as_ptr(), null(), data);
        cuPointerGetAttributes(1, kinds.as_ptr(), into.as_ptr(), data);
    }
    // These may be left out.
    // SAFETY: nothing is stored.
    assert_eq!(unsafe { cuMemGetAddressRange_v2(null_mut(), null_mut(), data) }, OK);
}

/// Bytes behind which there is no memory.
fn at_the_end<const N: usize>(bytes: [u8; N]) -> *const c_void {
    const PAGE: usize = 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: fresh pages at an address of the kernel's choice disturb nothing.
    let pages = unsafe { libc::mmap(null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    let [place, behind] = [PAGE - N, PAGE].map(|at| pages.cast::<u8>().wrapping_add(at));
    // SAFETY: the second of the two pages.
    assert_eq!(unsafe { libc::mprotect(behind.cast(), PAGE, libc::PROT_NONE) }, 0);
    // SAFETY: the end of the first, which nobody else knows.
    unsafe { place.cast::<[u8; N]>().write(bytes) };
    place.cast()
}

/// Memory of the program's own; so much that nothing else is in its pages.
fn own_memory(words: usize) -> *mut u32 {
    const ALONE: usize = 1 << 18;
    vec![7u32; 2 * ALONE + words].leak()[ALONE..].as_mut_ptr()
}

fn a_fork_leaves_registered_memory_to_the_parent(data: CUdeviceptr) {
    let own = own_memory(N);
    let bytes = N * 4;
    let load = |index: usize| {
        assert!(index < N);
        // SAFETY: inside the memory, of which no reference is left.
        unsafe { own.wrapping_add(index).read_volatile() }
    };
    // SAFETY: the memory is never freed.
    assert_eq!(unsafe { cuMemHostRegister_v2(own.cast(), bytes, 2) }, OK);
    let mut shown = 0;
    // SAFETY: registered memory.
    assert_eq!(unsafe { cuMemHostGetDevicePointer_v2(&mut shown, own.cast(), 0) }, OK);
    assert_eq!(cuMemsetD32Async(shown, 21, N, CUstream::NULL), OK);
    assert_eq!(cuCtxSynchronize(), OK);
    // SAFETY: the child looks at memory, writes to it and ends, which is allowed after a fork of a process with threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = (0..N).all(|index| load(index) == 21);
        for index in 0..N {
            // SAFETY: inside the memory, which is the child's own.
            unsafe { own.wrapping_add(index).write_volatile(99) };
        }
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(i32::from(!found || load(5) != 99)) };
    }
    let mut status = -1;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child did not have its own copy");
    assert!((0..N).all(|index| load(index) == 21), "the child wrote to its parent's memory");
    // The GPU still sees the parent's memory, and copies from and to it are right.
    let mut seen = vec![0; N];
    assert_eq!(from_gpu(&mut seen, shown), OK);
    assert_eq!(seen, vec![21; N]);
    // SAFETY: registered memory, so many bytes.
    assert_eq!(unsafe { cuMemcpyHtoD_v2(data, own.cast(), bytes) }, OK);
    assert_eq!(cuMemsetD32Async(data + 4, 22, N - 1, CUstream::NULL), OK);
    // SAFETY: as above.
    assert_eq!(unsafe { cuMemcpyDtoH_v2(own.cast(), data, bytes) }, OK);
    assert_eq!([load(0), load(1), load(N - 1)], [21, 22, 22]);
    assert_eq!(from_gpu(&mut seen, shown), OK);
    assert_eq!(seen[..2], [21, 22]);
    // SAFETY: registered memory.
    assert_eq!(unsafe { cuMemHostUnregister(own.cast()) }, OK);
    assert_eq!([load(0), load(1), load(N - 1)], [21, 22, 22]);
}

/// What a kernel that runs when its context is destroyed writes to the program's memory, is there afterwards.
fn the_end_of_a_context_waits_for_its_work(context: CUcontext) {
    const ROUNDS: u32 = 300_000_000;
    let mut module = CUmodule::NULL;
    // SAFETY: PTX ends in NUL.
    assert_eq!(unsafe { cuModuleLoadData(&mut module, PTX.as_ptr().cast()) }, OK);
    let (found, slow) = function_of(module, c"slow");
    assert_eq!(found, OK);
    let own = own_memory(4);
    let mut address = 0;
    // SAFETY: the memory is never freed.
    assert_eq!(unsafe { cuMemHostRegister_v2(own.cast(), 16, 0) }, OK);
    // SAFETY: registered memory.
    assert_eq!(unsafe { cuMemHostGetDevicePointer_v2(&mut address, own.cast(), 0) }, OK);
    for mut rounds in [1, ROUNDS] {
        let mut params: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut rounds).cast()];
        // SAFETY: two parameters of the kernel's sizes.
        let launched =
            unsafe { cuLaunchKernel(slow, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()) };
        assert_eq!(launched, OK);
        if rounds == 1 {
            // It is compiled now.
            assert_eq!(cuCtxSynchronize(), OK);
        }
    }
    assert_eq!(cuStreamQuery(CUstream::NULL), CUresult::CUDA_ERROR_NOT_READY, "it is still running");
    assert_eq!(cuCtxDestroy_v2(context), OK);
    let expect = (0..ROUNDS).fold(1u32, |value, _| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    // SAFETY: the memory is the program's own again.
    assert_eq!(unsafe { own.read_volatile() }, expect);
}

/// `CU_JIT_ERROR_LOG_BUFFER` (5) and its size (6).
fn compiler_log() {
    let (mut module, mut text) = (CUmodule::NULL, [0u8; 256]);
    let mut options = [6, 5];
    let mut values: [*mut c_void; 2] = [std::ptr::without_provenance_mut(text.len()), text.as_mut_ptr().cast()];
    let image = c".version 7.0\n.target sm_75\n.address_size 64\n.nonsense k;\n";
    // SAFETY: two options with their values; the text ends in NUL.
    let loaded =
        unsafe { cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    assert_eq!(loaded, CUresult::CUDA_ERROR_INVALID_PTX);
    let log = CStr::from_bytes_until_nul(&text).expect("a NUL").to_str().expect("UTF-8");
    assert!(log.contains("nonsense") || log.contains('4'), "{log:?}");
    assert_eq!(values[0].addr(), log.len());
    // So is what no kernel may hold, whether anybody wants to read why or not.
    let wrong = |body: &str| {
        CString::new(format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.extern .func gone;\n\
            .visible .entry k(.param .u64 p) {{\n.reg .b32 %r<3>;\n{body}\nret;\n}}\n"
        ))
        .expect("no NUL")
    };
    for (body, says) in [
        ("nonsense.u32 %r1, %r2;", "unknown instruction 'nonsense'"),
        ("add.u32 %r1 %r2;", "'%r2' where ',' or ';' was expected"),
        ("add.u32 %r1, %r2, %r9;", "unknown symbol '%r9'"),
        ("bra AWAY;", "unknown label 'AWAY'"),
        ("call gone;", "unresolved external function 'gone'"),
    ] {
        let (image, mut text) = (wrong(body), [0u8; 256]);
        // SAFETY: no options; the text ends in NUL.
        let loaded = unsafe { cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        assert_eq!(loaded, CUresult::CUDA_ERROR_INVALID_PTX, "{body}");
        values = [std::ptr::without_provenance_mut(text.len()), text.as_mut_ptr().cast()];
        // SAFETY: two options with their values; the text ends in NUL.
        let loaded = unsafe {
            cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        assert_eq!(loaded, CUresult::CUDA_ERROR_INVALID_PTX, "{body}");
        let log = CStr::from_bytes_until_nul(&text).expect("a NUL").to_str().expect("UTF-8");
        assert!(log.starts_with("k: ptx input, line 7; error: ") && log.contains(says), "{log:?}");
    }
    // `CU_JIT_INFO_LOG_BUFFER` (3) and its size (4): a kernel that cannot run here is told of, and no error.
    let mut text = [0u8; 256];
    (options, values) = ([4, 3], [std::ptr::without_provenance_mut(text.len()), text.as_mut_ptr().cast()]);
    let image =
        c".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry odd() { wgmma.fence.sync.aligned; ret; }\n";
    // SAFETY: as before.
    let loaded =
        unsafe { cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr()) };
    assert_eq!(loaded, OK);
    let log = CStr::from_bytes_until_nul(&text).expect("a NUL").to_str().expect("UTF-8");
    assert!(log.starts_with("odd: ") && log.contains("wgmma"), "{log:?}");
}
