//! What the driver tells of itself: errors, settings of core dumps, what a device or the process cannot do.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each calls one C function, with the test's own places and functions"
)]

use super::*;

use std::sync::Mutex;

use cuda_abi::{
    CUasyncCallbackHandle, CUcoredumpCallbackHandle, CUcoredumpSettings, CUlogLevel, CUlogsCallbackHandle,
    CUmemLocation, CUmemLocationType, CUprocessState,
};

type Told = unsafe extern "C" fn(*mut c_void, CUlogLevel, *const c_char, usize);
type Notified = unsafe extern "C" fn(*mut c_void, *mut c_void, u64);

unsafe extern "C" {
    fn cuLogsRegisterCallback(
        function: Option<Told>,
        data: *mut c_void,
        handle: Option<&mut CUlogsCallbackHandle>,
    ) -> CUresult;
    safe fn cuLogsUnregisterCallback(handle: CUlogsCallbackHandle) -> CUresult;
    safe fn cuLogsCurrent(iterator: Option<&mut u32>, flags: u32) -> CUresult;
    fn cuLogsDumpToFile(iterator: Option<&mut u32>, path: *const c_char, flags: u32) -> CUresult;
    fn cuLogsDumpToMemory(
        iterator: Option<&mut u32>,
        buffer: *mut u8,
        size: Option<&mut usize>,
        flags: u32,
    ) -> CUresult;
    fn cuCoredumpGetAttribute(which: CUcoredumpSettings, value: *mut c_void, size: Option<&mut usize>) -> CUresult;
    fn cuCoredumpGetAttributeGlobal(
        which: CUcoredumpSettings,
        value: *mut c_void,
        size: Option<&mut usize>,
    ) -> CUresult;
    fn cuCoredumpSetAttribute(which: CUcoredumpSettings, value: *const c_void, size: Option<&mut usize>) -> CUresult;
    fn cuCoredumpSetAttributeGlobal(
        which: CUcoredumpSettings,
        value: *const c_void,
        size: Option<&mut usize>,
    ) -> CUresult;
    fn cuCoredumpRegisterStartCallback(
        function: Option<unsafe extern "C" fn(*mut c_void, i32, i32)>,
        data: *mut c_void,
        handle: Option<&mut CUcoredumpCallbackHandle>,
    ) -> CUresult;
    safe fn cuCoredumpDeregisterStartCallback(handle: CUcoredumpCallbackHandle) -> CUresult;
    safe fn cuCoredumpDeregisterCompleteCallback(handle: CUcoredumpCallbackHandle) -> CUresult;
    fn cuDeviceGetHostAtomicCapabilities(out: *mut u32, operations: *const u32, count: u32, device: i32) -> CUresult;
    fn cuDeviceGetP2PAtomicCapabilities(
        out: *mut u32,
        operations: *const u32,
        count: u32,
        source: i32,
        target: i32,
    ) -> CUresult;
    fn cuDeviceRegisterAsyncNotification(
        device: i32,
        function: Option<Notified>,
        data: *mut c_void,
        handle: Option<&mut CUasyncCallbackHandle>,
    ) -> CUresult;
    safe fn cuDeviceUnregisterAsyncNotification(device: i32, handle: CUasyncCallbackHandle) -> CUresult;
    safe fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> CUresult;
    fn cuMemGetLocationInfo(
        address: CUdeviceptr,
        size: usize,
        summary: usize,
        sampling: usize,
        out: *mut CUmemLocation,
    ) -> CUresult;
    safe fn cuMemAllocManaged(address: Option<&mut CUdeviceptr>, bytes: usize, flags: u32) -> CUresult;
    safe fn cuCheckpointProcessGetState(process: i32, state: Option<&mut CUprocessState>) -> CUresult;
    /// Whatever the parameters of these are: they are refused.
    safe fn cuCheckpointProcessLock() -> CUresult;
    safe fn cuGLGetDevices_v2() -> CUresult;
    safe fn cuGraphicsMapResources() -> CUresult;
    safe fn cuDestroyExternalMemory() -> CUresult;
    safe fn cuMulticastCreate() -> CUresult;
    safe fn cuMemImportFromShareableHandle(handle: Option<&mut u64>, from: HostAddr, kind: u32) -> CUresult;
    safe fn cuMemPoolImportFromShareableHandle(
        pool: Option<&mut u64>,
        from: HostAddr,
        kind: u32,
        flags: u64,
    ) -> CUresult;
}

const NO: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

unsafe extern "C" fn told(lines: *mut c_void, level: CUlogLevel, message: *const c_char, length: usize) {
    // SAFETY: the test's own list, which stays.
    let lines = unsafe { &*lines.cast_const().cast::<Mutex<Vec<String>>>() };
    // SAFETY: the driver's text ends in NUL.
    let line = unsafe { CStr::from_ptr(message) }.to_str().expect("UTF-8");
    assert_eq!(line.len(), length);
    // From here the driver may be called, and fail again.
    assert_eq!((cuMemFree_v2(4), level), (NO, CUlogLevel::CU_LOG_LEVEL_ERROR));
    lines.lock().expect("not poisoned").push(line.to_owned());
}

pub(super) fn errors(folder: &std::path::Path) {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let lines: *mut c_void = (&raw const LINES).cast_mut().cast();
    let (mut handle, mut iterator) = (CUlogsCallbackHandle::NULL, 0);
    assert_eq!(cuLogsCurrent(None, 0), NO);
    assert_eq!(cuLogsCurrent(Some(&mut iterator), 1), NO);
    assert_eq!(cuLogsCurrent(Some(&mut iterator), 0), OK);
    let before = iterator;
    assert_eq!(cuGraphCreate(None, 0), NO);
    let mut buffer = [9u8; 512];
    let mut dump = |iterator: &mut u32, room: usize| {
        let mut size = room;
        // SAFETY: a buffer of so many bytes.
        let answer = unsafe { cuLogsDumpToMemory(Some(iterator), buffer.as_mut_ptr(), Some(&mut size), 0) };
        (answer, size, CStr::from_bytes_until_nul(&buffer).map(|text| text.to_str().expect("UTF-8").to_owned()))
    };
    let (answer, size, text) = dump(&mut iterator, 512);
    let text = text.expect("a NUL");
    assert_eq!((answer, size), (OK, text.len()));
    assert!(text.contains("[CUDA][E] cuGraphCreate: ") && text.ends_with('\n') && text.lines().count() == 1, "{text}");
    assert_eq!(iterator, before + 1);
    let (answer, size, _) = dump(&mut iterator, 512);
    assert_eq!((answer, size), (OK, 0), "nothing is new");
    let short = dump(&mut before.clone(), 20);
    assert_eq!(short, (NO, 0, Ok(String::new())), "no room for a line");
    let path = folder.join("cuda.log");
    let _ = std::fs::remove_file(&path);
    let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    let mut from = before;
    // SAFETY: the path ends in NUL; the other one is not there.
    let dumped = unsafe { [cuLogsDumpToFile(Some(&mut from), name.as_ptr(), 0), cuLogsDumpToFile(None, null(), 0)] };
    assert_eq!(dumped, [OK, NO]);
    assert!(std::fs::read_to_string(&path).expect("the dump").starts_with(&text));
    // SAFETY: the function takes such a list.
    assert_eq!(unsafe { cuLogsRegisterCallback(None, lines, Some(&mut handle)) }, NO);
    // SAFETY: as above.
    assert_eq!(unsafe { cuLogsRegisterCallback(Some(told), lines, Some(&mut handle)) }, OK);
    let _ = std::fs::remove_file(&path);
    assert_eq!(cuGraphCreate(None, 0), NO);
    let heard = || LINES.lock().expect("not poisoned").clone();
    assert!(matches!(&heard()[..], [line] if line.contains("[CUDA][E] cuGraphCreate: ")), "{:?}", heard());
    assert_eq!(cuLogsUnregisterCallback(handle), OK);
    assert_eq!(cuLogsUnregisterCallback(handle), NO);
    assert_eq!(cuGraphCreate(None, 0), NO);
    assert_eq!(heard().len(), 1);
}

/// Settings are what was set, here or for all contexts, or what is documented.
pub(super) fn core_dumps(context: CUcontext) {
    type Get = unsafe extern "C" fn(CUcoredumpSettings, *mut c_void, Option<&mut usize>) -> CUresult;
    let get = |get: Get, which| {
        let (mut value, mut size) = ([7u8; 1024], 1024);
        // SAFETY: a place of so many bytes.
        (unsafe { get(which, value.as_mut_ptr().cast(), Some(&mut size)) }, value)
    };
    let flag = |how: Get, which| (get(how, which).0, get(how, which).1[0]);
    let name = |how: Get, which| {
        let (answer, value) = get(how, which);
        (answer, CStr::from_bytes_until_nul(&value).expect("a NUL").to_str().expect("UTF-8").to_owned())
    };
    let enable = CUcoredumpSettings::CU_COREDUMP_ENABLE_ON_EXCEPTION;
    let (file, pipe) = (CUcoredumpSettings::CU_COREDUMP_FILE, CUcoredumpSettings::CU_COREDUMP_PIPE);
    let flags = CUcoredumpSettings::CU_COREDUMP_GENERATION_FLAGS;
    let trigger = CUcoredumpSettings::CU_COREDUMP_ENABLE_USER_TRIGGER;
    assert_eq!(flag(cuCoredumpGetAttributeGlobal, enable), (OK, 0));
    assert_eq!(flag(cuCoredumpGetAttribute, CUcoredumpSettings::CU_COREDUMP_TRIGGER_HOST), (OK, 1));
    assert_eq!(get(cuCoredumpGetAttribute, CUcoredumpSettings(8)).0, NO);
    let (answer, default) = name(cuCoredumpGetAttribute, file);
    assert_eq!(answer, OK);
    assert!(default.starts_with("core.cuda.") && default.ends_with(&std::process::id().to_string()), "{default}");
    let mut sizes = [0; 3];
    for (size, which) in sizes.iter_mut().zip([enable, flags, file]) {
        // SAFETY: only the size is asked for.
        assert_eq!(unsafe { cuCoredumpGetAttribute(which, null_mut(), Some(size)) }, OK);
    }
    assert_eq!(sizes, [1, 4, 1024]);
    let set = |global: bool, which, value: &[u8]| {
        let mut size = value.len();
        // SAFETY: so many bytes are there.
        unsafe {
            if global {
                cuCoredumpSetAttributeGlobal(which, value.as_ptr().cast(), Some(&mut size))
            } else {
                cuCoredumpSetAttribute(which, value.as_ptr().cast(), Some(&mut size))
            }
        }
    };
    assert_eq!(set(false, enable, &[1]), OK);
    assert_eq!((flag(cuCoredumpGetAttribute, enable), flag(cuCoredumpGetAttributeGlobal, enable)), ((OK, 1), (OK, 0)));
    assert_eq!(set(true, file, b"all\0"), OK);
    assert_eq!(name(cuCoredumpGetAttribute, file), (OK, "all".into()), "what was set for all");
    assert_eq!(set(false, file, b"one\0"), OK);
    assert_eq!(name(cuCoredumpGetAttribute, file), (OK, "one".into()));
    assert_eq!(name(cuCoredumpGetAttributeGlobal, file), (OK, "all".into()));
    assert_eq!([set(true, file, &[b'x'; 1024]), set(true, flags, &[1; 3])], [NO; 2]);
    assert_eq!(set(true, flags, &0x22u32.to_ne_bytes()), OK);
    assert_eq!(get(cuCoredumpGetAttribute, flags).1[..4], 0x22u32.to_ne_bytes());
    const NEVER: CUresult = CUresult::CUDA_ERROR_NOT_PERMITTED;
    assert_eq!([set(false, pipe, b"p\0"), set(false, trigger, &[1]), set(true, pipe, b"p\0")], [NEVER, NEVER, OK]);
    assert_eq!([set(true, trigger, &[1]), set(true, pipe, b"q\0")], [OK, NEVER]);
    assert_eq!(flag(cuCoredumpGetAttributeGlobal, CUcoredumpSettings::CU_COREDUMP_LIGHTWEIGHT), (OK, 1));
    // What stands behind a name's NUL is not looked at.
    let last = at_the_end(*b"f\0");
    let mut size = 1024;
    // SAFETY: a name with its NUL.
    assert_eq!(unsafe { cuCoredumpSetAttributeGlobal(file, last, Some(&mut size)) }, OK);
    assert_eq!(name(cuCoredumpGetAttributeGlobal, file), (OK, "f".into()));
    // A context that was made to dump, and one that is gone.
    let mut other = CUcontext::NULL;
    assert_eq!(cuCtxCreate_v2(Some(&mut other), 0x40, 0), OK);
    let mut module = CUmodule::NULL;
    // SAFETY: PTX ends in NUL.
    assert_eq!(unsafe { cuModuleLoadData(&mut module, PTX.as_ptr().cast()) }, OK);
    assert_eq!(flag(cuCoredumpGetAttribute, enable), (OK, 1));
    assert_eq!(set(false, enable, &[0]), OK);
    assert_eq!(flag(cuCoredumpGetAttribute, enable), (OK, 0));
    // One whose kernel failed still tells its settings.
    let (found, function) = function_of(module, c"add");
    assert_eq!(found, OK);
    let (mut address, mut addend, mut n) = (16u64, 5u32, 1u32);
    let mut params: [*mut c_void; 3] = [(&raw mut address).cast(), (&raw mut addend).cast(), (&raw mut n).cast()];
    // SAFETY: three parameters of the kernel's sizes.
    let launched =
        unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()) };
    assert_eq!([launched, cuCtxSynchronize()], [OK, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS]);
    assert_eq!(flag(cuCoredumpGetAttribute, enable), (OK, 0));
    assert_eq!(name(cuCoredumpGetAttribute, file), (OK, "f".into()));
    assert_eq!(cuCtxDestroy_v2(other), OK);
    assert_eq!(cuCtxSetCurrent(CUcontext::NULL), OK);
    assert_eq!(flag(cuCoredumpGetAttribute, enable).0, CUresult::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(cuCtxSetCurrent(context), OK);
    let mut handle = CUcoredumpCallbackHandle::NULL;
    unsafe extern "C" fn begins(_: *mut c_void, _: i32, _: i32) {}
    // SAFETY: the function does nothing.
    let registered = unsafe {
        [
            cuCoredumpRegisterStartCallback(None, null_mut(), Some(&mut handle)),
            cuCoredumpRegisterStartCallback(Some(begins), null_mut(), None),
            cuCoredumpRegisterStartCallback(Some(begins), null_mut(), Some(&mut handle)),
        ]
    };
    assert_eq!(registered, [NO, OK, OK]);
    assert_eq!(cuCoredumpDeregisterCompleteCallback(handle), NO, "it is one of the start");
    assert_eq!([cuCoredumpDeregisterStartCallback(handle), cuCoredumpDeregisterStartCallback(handle)], [OK, NO]);
}

pub(super) fn what_a_device_does(data: CUdeviceptr) {
    let operations: [u32; 3] = [0, 8, 12];
    let mut able = [9; 3];
    // SAFETY: as many operations and places as are said.
    let mut of_host = |operations: &[u32], count, device| unsafe {
        cuDeviceGetHostAtomicCapabilities(able.as_mut_ptr(), operations.as_ptr(), count, device)
    };
    assert_eq!([of_host(&operations, 3, 0), of_host(&operations, 0, 0), of_host(&[13], 1, 0)], [OK, NO, NO]);
    assert_eq!(of_host(&operations, 3, 1), CUresult::CUDA_ERROR_INVALID_DEVICE);
    // SAFETY: as above.
    let between = unsafe { cuDeviceGetP2PAtomicCapabilities(able.as_mut_ptr(), operations.as_ptr(), 3, 0, 0) };
    assert_eq!((between, able), (CUresult::CUDA_ERROR_INVALID_DEVICE, [0; 3]));
    let mut handle = CUasyncCallbackHandle::NULL;
    unsafe extern "C" fn noticed(_: *mut c_void, _: *mut c_void, _: u64) {}
    // SAFETY: the function does nothing.
    let mut register = |device, function| unsafe {
        cuDeviceRegisterAsyncNotification(device, function, null_mut(), Some(&mut handle))
    };
    assert_eq!(register(1, Some(noticed as Notified)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!([register(0, None), register(0, Some(noticed))], [NO, OK]);
    let gone = [cuDeviceUnregisterAsyncNotification(0, handle), cuDeviceUnregisterAsyncNotification(0, handle)];
    assert_eq!(gone, [OK, NO]);
    assert_eq!(cuFlushGPUDirectRDMAWrites(0, 100), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!([cuFlushGPUDirectRDMAWrites(1, 100), cuFlushGPUDirectRDMAWrites(0, 150)], [NO; 2]);
    let mut managed = 0;
    assert_eq!(cuMemAllocManaged(Some(&mut managed), 4 << 20, 1), OK);
    let nowhere = CUmemLocation { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 9 };
    let mut lies = [nowhere; 3];
    // SAFETY: there is a place for each part.
    let mut locate = |address, size, summary, sampling| unsafe {
        cuMemGetLocationInfo(address, size, summary, sampling, lies.as_mut_ptr())
    };
    assert_eq!(locate(managed, 3 << 20, 2 << 20, 4096), OK);
    let own = [0u8; 64];
    assert_eq!(locate(own.as_ptr().expose_provenance() as u64, 64, 64, 0), OK);
    assert_eq!([locate(managed, 4096, 8192, 0), locate(managed, 4096, 0, 0), locate(managed, 4096, 64, 128)], [NO; 3]);
    assert_eq!([locate(data, 64, 64, 0), locate(managed, 5 << 20, 5 << 20, 0), locate(0, 64, 64, 0)], [NO; 3]);
    let host = CUmemLocation { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, id: 0 };
    assert_eq!(lies, [host, host, nowhere]);
    assert_eq!(cuMemFree_v2(managed), OK);
    // What a handle of no type that there is says is not looked at; of a descriptor that is not open there is nothing to look at.
    let mut imported = 0;
    let missing = HostAddr(u64::from(i32::MAX.cast_unsigned()));
    let mut import = |from, kind| {
        let memory = cuMemImportFromShareableHandle(Some(&mut imported), from, kind);
        [memory, cuMemPoolImportFromShareableHandle(Some(&mut imported), from, kind, 0)]
    };
    assert_eq!([import(HostAddr(u64::MAX), 8), import(missing, 2)], [[CUresult::CUDA_ERROR_NOT_SUPPORTED; 2]; 2]);
    assert_eq!([import(HostAddr(u64::MAX), 1), import(missing, 1)], [[NO; 2]; 2]);
    let mut state = CUprocessState(9);
    assert_eq!(cuCheckpointProcessGetState(std::process::id() as i32, Some(&mut state)), OK);
    assert_eq!(state, CUprocessState::CU_PROCESS_STATE_RUNNING);
    assert_eq!([cuCheckpointProcessGetState(0, Some(&mut state)), cuCheckpointProcessGetState(1, None)], [NO; 2]);
}

/// Each as where the device lacks what it is for.
pub(super) fn refusals() {
    for (answer, expected) in [
        (cuCheckpointProcessLock(), CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (cuGLGetDevices_v2(), CUresult::CUDA_ERROR_OPERATING_SYSTEM),
        (cuGraphicsMapResources(), CUresult::CUDA_ERROR_INVALID_HANDLE),
        (cuDestroyExternalMemory(), CUresult::CUDA_ERROR_INVALID_HANDLE),
        (cuMulticastCreate(), CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (cuMemMapArrayAsync(), CUresult::CUDA_ERROR_NOT_SUPPORTED),
    ] {
        assert_eq!(answer, expected);
    }
    // Each time with its reason, though what the first call met was that nothing had started.
    let mut from = 0;
    assert_eq!(cuLogsCurrent(Some(&mut from), 0), OK);
    assert_eq!([cuMemMapArrayAsync(), cuMemMapArrayAsync()], [CUresult::CUDA_ERROR_NOT_SUPPORTED; 2]);
    let (mut text, mut size) = ([7u8; 1024], 1024);
    // SAFETY: a buffer of that size.
    assert_eq!(unsafe { cuLogsDumpToMemory(Some(&mut from), text.as_mut_ptr(), Some(&mut size), 0) }, OK);
    let text = CStr::from_bytes_until_nul(&text).expect("a NUL").to_str().expect("UTF-8");
    assert_eq!(text.matches("no sparse arrays").count(), 2, "{text}");
    let (found, status, function) = proc_address(c"cuGLGetDevices", 13050);
    assert_eq!((found, status.0, function), (OK, 0, (cuGLGetDevices_v2 as *const ()).addr()));
}
