//! The library on several software GPUs in this process, of which the program is shown some, in another order.

#![expect(unsafe_code, reason = "calls C functions")]

use std::ffi::{CStr, c_char, c_void};

use cuda as _;
use cuda_abi::{CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream};

// What the types of the arguments say is all that a `safe` function asks; an absent place is an error, not undefined.
unsafe extern "C" {
    safe fn cuInit(flags: u32) -> CUresult;
    safe fn cuDeviceGetCount(count: Option<&mut i32>) -> CUresult;
    safe fn cuDeviceGet(device: Option<&mut i32>, ordinal: i32) -> CUresult;
    safe fn cuDeviceTotalMem_v2(bytes: Option<&mut usize>, device: i32) -> CUresult;
    safe fn cuDeviceGetUuid_v2(uuid: Option<&mut [u8; 16]>, device: i32) -> CUresult;
    fn cuDeviceGetPCIBusId(id: *mut c_char, length: i32, device: i32) -> CUresult;
    safe fn cuDeviceCanAccessPeer(can: Option<&mut i32>, device: i32, peer: i32) -> CUresult;
    safe fn cuDeviceGetP2PAttribute(value: Option<&mut i32>, attribute: u32, src: i32, dst: i32) -> CUresult;
    safe fn cuDevicePrimaryCtxRetain(context: Option<&mut CUcontext>, device: i32) -> CUresult;
    safe fn cuCtxSetCurrent(context: CUcontext) -> CUresult;
    safe fn cuCtxGetDevice(device: Option<&mut i32>) -> CUresult;
    safe fn cuCtxSynchronize() -> CUresult;
    safe fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> CUresult;
    safe fn cuMemAlloc_v2(address: Option<&mut CUdeviceptr>, bytes: usize) -> CUresult;
    safe fn cuMemAllocManaged(address: Option<&mut CUdeviceptr>, bytes: usize, flags: u32) -> CUresult;
    fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> CUresult;
    fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> CUresult;
    safe fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CUresult;
    safe fn cuMemcpyPeer(
        dst: CUdeviceptr,
        dst_context: CUcontext,
        src: CUdeviceptr,
        src_context: CUcontext,
        bytes: usize,
    ) -> CUresult;
    safe fn cuMemcpyPeerAsync(
        dst: CUdeviceptr,
        dst_context: CUcontext,
        src: CUdeviceptr,
        src_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) -> CUresult;
    safe fn cuStreamCreate(stream: Option<&mut CUstream>, flags: u32) -> CUresult;
    safe fn cuStreamSynchronize(stream: CUstream) -> CUresult;
    safe fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> CUresult;
    safe fn cuEventCreate(event: Option<&mut CUevent>, flags: u32) -> CUresult;
    safe fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult;
    fn cuModuleGetGlobal_v2(
        address: *mut CUdeviceptr,
        bytes: *mut usize,
        module: CUmodule,
        name: *const c_char,
    ) -> CUresult;
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: CUdeviceptr) -> CUresult;
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
}

/// `add`: data[i] += addend for every thread, and `own` and `runs` count the threads.
const PTX: &CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .global .u32 own = 5;
.visible .global .attribute(.managed) .u32 runs = 100;
.visible .entry add(.param .u64 data, .param .u32 addend)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [addend];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r3, [%rd3];
    add.s32 %r3, %r3, %r1;
    st.global.u32 [%rd3], %r3;
    atom.global.add.u32 %r3, [own], 1;
    atom.global.add.u32 %r3, [runs], 1;
    ret;
}
";

const N: usize = 256;
const OK: CUresult = CUresult::CUDA_SUCCESS;

struct Gpu {
    context: CUcontext,
    stream: CUstream,
    add: CUfunction,
    own: CUdeviceptr,
    runs: CUdeviceptr,
    data: CUdeviceptr,
}

impl Gpu {
    fn new(device: i32) -> Gpu {
        let (mut context, mut stream, mut module, mut add) = Default::default();
        assert_eq!(cuDevicePrimaryCtxRetain(Some(&mut context), device), OK);
        assert_eq!(cuCtxSetCurrent(context), OK);
        assert_eq!(cuStreamCreate(Some(&mut stream), 1), OK);
        // SAFETY: PTX ends in NUL.
        assert_eq!(unsafe { cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()) }, OK);
        // SAFETY: the name ends in NUL.
        assert_eq!(unsafe { cuModuleGetFunction(&raw mut add, module, c"add".as_ptr()) }, OK);
        let global = |name: &CStr| {
            let (mut address, mut bytes) = (0, 0);
            // SAFETY: the name ends in NUL.
            assert_eq!(unsafe { cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, module, name.as_ptr()) }, OK);
            assert_eq!(bytes, 4);
            address
        };
        let (own, runs) = (global(c"own"), global(c"runs"));
        let mut data = 0;
        assert_eq!(cuMemAlloc_v2(Some(&mut data), N * 4), OK);
        write(data, &[device as u32; N]);
        Gpu { context, stream, add, own, runs, data }
    }

    /// Adds to `N` words at an address, in the GPU's stream.
    fn add(&self, mut data: CUdeviceptr, mut addend: u32) {
        assert_eq!(cuCtxSetCurrent(self.context), OK);
        let mut params: [*mut c_void; 2] = [(&raw mut data).cast(), (&raw mut addend).cast()];
        let (threads, none) = (N as u32, std::ptr::null_mut());
        // SAFETY: two parameters of the kernel's sizes.
        let launched =
            unsafe { cuLaunchKernel(self.add, 1, 1, 1, threads, 1, 1, 0, self.stream, params.as_mut_ptr(), none) };
        assert_eq!(launched, OK);
    }
}

fn write(to: CUdeviceptr, words: &[u32]) {
    // SAFETY: as many bytes as there are.
    assert_eq!(unsafe { cuMemcpyHtoD_v2(to, words.as_ptr().cast(), words.len() * 4) }, OK);
}

fn read<const COUNT: usize>(from: CUdeviceptr) -> [u32; COUNT] {
    let mut words = [0; COUNT];
    // SAFETY: as many bytes as there is room.
    assert_eq!(unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), from, COUNT * 4) }, OK);
    words
}

fn ordinal(of: CUdeviceptr) -> i32 {
    let mut ordinal = -1_i32;
    // SAFETY: an attribute that is an integer.
    assert_eq!(unsafe { cuPointerGetAttribute((&raw mut ordinal).cast(), 9, of) }, OK);
    ordinal
}

#[test]
fn a_c_program_on_two_of_three_gpus() {
    let gpus = "soft:128m,soft:64m,soft:96m";
    for (name, value) in
        [("SUNDIAL_NATIVE", "1"), ("SUNDIAL_GPU", gpus), ("SUNDIAL_WORKERS", "2"), ("CUDA_VISIBLE_DEVICES", "2,0,7")]
    {
        // SAFETY: the test is alone in its process, and there are no threads yet.
        unsafe { std::env::set_var(name, value) }
    }
    assert_eq!(cuInit(0), OK);
    devices();
    let gpus = [0, 1].map(Gpu::new);
    kernels_and_variables(&gpus);
    copies(&gpus);
    host_memory(&gpus);
    // Kernels do not reach the other's memory: that is a fault of the context, and the other's goes on.
    gpus[1].add(gpus[0].data, 1);
    assert_eq!(cuCtxSynchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    gpus[0].add(gpus[0].data, 1);
    assert_eq!(cuCtxSynchronize(), OK);
}

fn devices() {
    let mut count = 0;
    assert_eq!(cuDeviceGetCount(Some(&mut count)), OK);
    assert_eq!(count, 2);
    assert_eq!(cuDeviceGet(Some(&mut count), 2), CUresult::CUDA_ERROR_INVALID_DEVICE);
    let facts = [0, 1].map(|device| {
        let (mut bytes, mut id, mut uuid) = (0, [0 as c_char; 16], [0; 16]);
        assert_eq!(cuDeviceTotalMem_v2(Some(&mut bytes), device), OK);
        assert_eq!(cuDeviceGetUuid_v2(Some(&mut uuid), device), OK);
        // SAFETY: so much room.
        assert_eq!(unsafe { cuDeviceGetPCIBusId(id.as_mut_ptr(), 16, device) }, OK);
        // SAFETY: the library ends it with NUL.
        let id = unsafe { CStr::from_ptr(id.as_ptr()) }.to_string_lossy().into_owned();
        (bytes >> 20, id, uuid)
    });
    assert_eq!((facts[0].0, facts[0].1.as_str()), (96, "0000:03:00.0"));
    assert_eq!((facts[1].0, facts[1].1.as_str()), (128, "0000:01:00.0"));
    assert_ne!(facts[0].2, facts[1].2);
    let mut value = 7;
    assert_eq!(cuDeviceCanAccessPeer(Some(&mut value), 0, 1), OK);
    assert_eq!(value, 0);
    value = 7;
    assert_eq!(cuDeviceGetP2PAttribute(Some(&mut value), 2, 0, 1), OK);
    assert_eq!(value, 0);
}

fn kernels_and_variables(gpus: &[Gpu; 2]) {
    assert_eq!(cuCtxEnablePeerAccess(gpus[0].context, 0), CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    for (device, gpu) in (0..).zip(gpus) {
        let times = device as u32 + 1;
        (0..times).for_each(|_| gpu.add(gpu.data, 10));
        assert_eq!(cuCtxSynchronize(), OK);
        let mut now = -1;
        assert_eq!(cuCtxGetDevice(Some(&mut now)), OK);
        assert_eq!(now, device);
        assert_eq!(read::<N>(gpu.data), [device as u32 + 10 * times; N]);
        // Variables are of each module's device, and addresses tell which.
        assert_eq!(read::<1>(gpu.own), [5 + N as u32 * times]);
        assert_eq!(read::<1>(gpu.runs), [100 + N as u32 * times]);
        assert_eq!([gpu.data, gpu.own, gpu.runs].map(ordinal), [device; 3]);
    }
    assert_ne!(gpus[0].own, gpus[1].own);
}

fn copies(gpus: &[Gpu; 2]) {
    let [first, second] = gpus;
    // The second's device is current.
    write(first.data, &[1; N]);
    assert_eq!(cuMemcpyPeer(second.data, second.context, first.data, first.context, N * 4), OK);
    assert_eq!(read::<N>(second.data), [1; N]);
    // Adds on one device, a copy in its stream, and on the other what waits for it.
    let mut event = CUevent::NULL;
    first.add(first.data, 4);
    assert_eq!(cuEventCreate(Some(&mut event), 2), OK);
    let (to, from) = (second.data, first.data);
    assert_eq!(cuMemcpyPeerAsync(to, second.context, from, first.context, N * 4, first.stream), OK);
    assert_eq!(cuEventRecord(event, first.stream), OK);
    first.add(first.data, 100);
    assert_eq!(cuCtxSetCurrent(second.context), OK);
    assert_eq!(cuStreamWaitEvent(second.stream, event, 0), OK);
    second.add(second.data, 20);
    assert_eq!(cuStreamSynchronize(second.stream), OK);
    assert_eq!(read::<N>(second.data), [25; N]);
    // By addresses alone.
    assert_eq!(cuMemcpy(first.data, second.data, N * 4), OK);
    assert_eq!(read::<N>(first.data), [25; N]);
}

/// Managed memory, and pinned, which both devices see.
fn host_memory(gpus: &[Gpu; 2]) {
    let mut managed = 0;
    assert_eq!(cuCtxSetCurrent(gpus[0].context), OK);
    assert_eq!(cuMemAllocManaged(Some(&mut managed), N * 4, 1), OK);
    write(managed, &[3; N]);
    for gpu in gpus {
        gpu.add(managed, 5);
        assert_eq!(cuStreamSynchronize(gpu.stream), OK);
    }
    assert_eq!(read::<N>(managed), [13; N]);
    assert_eq!(ordinal(managed), 0);
}
