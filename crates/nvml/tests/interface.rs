//! The interface as C programs find it, with a daemon that says what the test wants.
#![expect(unsafe_code, reason = "sets the environment, and calls a function whose parameters nobody looks at")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::Properties;
use nvidia_ml::abi::*;
use nvidia_ml::device_calls::*;
use nvidia_ml::process_calls::*;
use nvidia_ml::system_calls::*;
use nvidia_ml::{Device, In, Out, nvmlErrorString};
use parking_lot::Mutex;
use transport::unix;
use wire::handshake::features;
use wire::{GpuStanding, Hello, ProcessStanding, Reply, Standing};

/// What the daemon does with a question.
#[derive(Clone)]
enum Does {
    Tells(Standing),
    Refuses,
    SaysNothing,
    SaysNonsense,
}

fn gpu(number: u8) -> GpuStanding {
    let properties = Properties {
        name: format!("GPU {number}"),
        uuid: [number; 16],
        pci: [0, u32::from(number) + 1, 0],
        compute_capability: [8, 9],
        driver_version: 13050,
        multiprocessors: 2,
        memory_bytes: 1 << 30,
        clock_khz: 1,
        memory_clock_khz: 1,
        memory_bus_bits: 64,
        l2_bytes: 1,
    };
    GpuStanding { properties, answers: true, memory_used: 0, received: 0, processes: vec![] }
}

/// Serves questions until the process ends.
fn serve(path: &std::path::Path, does: Arc<Mutex<Does>>) {
    let listener = unix::listen(path, 0o600).unwrap();
    std::thread::spawn(move || {
        let mut unheard = Vec::new();
        loop {
            let socket = unix::accept(&listener).unwrap();
            let mut buffer = [0; 256];
            let length = unix::receive_bare(&socket, &mut buffer).unwrap();
            let hello = Hello::decode(&buffer[..length]).unwrap();
            assert_eq!(hello.features, features::STANDING, "no session is asked for");
            assert_eq!(hello.process.pid, unix::peer(&socket).unwrap().pid as u32);
            let answer = match does.lock().clone() {
                Does::Tells(standing) => Reply::Standing(Box::new(standing)).encode(),
                Does::Refuses => Reply::Refused("as a test".into()).encode(),
                Does::SaysNonsense => b"nonsense".to_vec(),
                Does::SaysNothing => {
                    unheard.push(socket);
                    continue;
                }
            };
            // Of who does not wait any more nobody wants to know.
            let _ = unix::send(&socket, &answer, &[], false);
        }
    });
}

fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|byte| byte.cast_unsigned()).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap().to_str().unwrap().to_owned()
}

fn asked(call: impl Fn(Out<c_char>, u32) -> nvmlReturn_t) -> Result<String, nvmlReturn_t> {
    let mut buffer = [1; 96];
    match call(Out::to_all(&mut buffer), 96) {
        NVML_SUCCESS => Ok(text(&buffer)),
        code => Err(code),
    }
}

fn number<T: Copy + Default>(call: impl Fn(Out<T>) -> nvmlReturn_t) -> Result<T, nvmlReturn_t> {
    let mut value = T::default();
    match call(Out::to(&mut value)) {
        NVML_SUCCESS => Ok(value),
        code => Err(code),
    }
}

fn memory(device: Device) -> Result<[u64; 3], nvmlReturn_t> {
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    match nvmlDeviceGetMemoryInfo(device, Out::to(&mut memory)) {
        NVML_SUCCESS => Ok([memory.total, memory.free, memory.used]),
        code => Err(code),
    }
}

/// Until something is so: figures are as of a moment ago.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

unsafe extern "C" {
    fn nvmlDeviceGetTemperature() -> c_int;
    fn nvmlDeviceGetMigMode() -> c_int;
}

/// The only test here: it is alone in its process, whose library is one.
#[test]
fn as_programs_find_it() {
    let folder = std::env::temp_dir().join(format!("sundial-nvml-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("session.sock");
    for name in ["SUNDIAL_NATIVE", "SUNDIAL_VGPU", "SUNDIAL_CREDENTIAL"] {
        // SAFETY: no other thread looks at the environment.
        unsafe { std::env::remove_var(name) }
    }
    // SAFETY: as above.
    unsafe { std::env::set_var("SUNDIAL_SOCKET", &path) }

    without_a_driver();
    let does = Arc::new(Mutex::new(Does::Refuses));
    serve(&path, Arc::clone(&does));
    assert_eq!(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
    *does.lock() = Does::SaysNonsense;
    assert_eq!(nvmlInit_v2(), NVML_ERROR_UNKNOWN);
    *does.lock() = Does::SaysNothing;
    assert_eq!(nvmlInit_v2(), NVML_ERROR_UNKNOWN, "and comes back");
    *does.lock() = Does::Tells(Standing { gpus: vec![gpu(0), gpu(1)] });
    counted();
    facts();
    figures(&does);
    forked(&does);
    lost(&does, || std::fs::remove_dir_all(&folder).unwrap());
}

fn without_a_driver() {
    // SAFETY: it looks at no argument.
    let unsupported = || unsafe { nvmlDeviceGetTemperature() };
    assert_eq!(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    assert_eq!(number(|count| nvmlDeviceGetCount_v2(count)), Err(NVML_ERROR_UNINITIALIZED));
    assert_eq!(memory(Device::number(0)), Err(NVML_ERROR_UNINITIALIZED));
    assert_eq!(unsupported() as u32, NVML_ERROR_UNINITIALIZED.0);
    for init in [nvmlInit, nvmlInit_v2] {
        assert_eq!(init(), NVML_ERROR_DRIVER_NOT_LOADED);
    }
    assert_eq!(nvmlInitWithFlags(0), NVML_ERROR_DRIVER_NOT_LOADED);
    // SAFETY: the function's texts are never changed.
    let said = |code| unsafe { CStr::from_ptr(nvmlErrorString(code)) }.to_str().unwrap();
    assert_eq!(said(NVML_ERROR_DRIVER_NOT_LOADED), "Driver Not Loaded");
    assert_eq!(said(nvmlReturn_t(77)), "Unknown Error");
}

/// As often as it was initialised it is shut down.
fn counted() {
    assert_eq!(nvmlInit_v2(), NVML_SUCCESS);
    assert_eq!(nvmlInitWithFlags(2), NVML_SUCCESS);
    assert_eq!(nvmlInitWithFlags(4), NVML_ERROR_INVALID_ARGUMENT);
    assert_eq!(nvmlShutdown(), NVML_SUCCESS);
    assert_eq!(number(|count| nvmlDeviceGetCount(count)), Ok(2));
    assert_eq!(nvmlShutdown(), NVML_SUCCESS);
    assert_eq!(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    let each = || {
        assert_eq!(nvmlInit(), NVML_SUCCESS);
        assert_eq!(number(|count| nvmlDeviceGetCount_v2(count)), Ok(2));
        assert_eq!(memory(Device::number(1)), Ok([1 << 30, 1 << 30, 0]));
        assert_eq!(nvmlShutdown(), NVML_SUCCESS);
    };
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| (0..50).for_each(|_| each())))));
    assert_eq!(number(|count| nvmlDeviceGetCount_v2(count)), Err(NVML_ERROR_UNINITIALIZED));
    assert_eq!(nvmlInit_v2(), NVML_SUCCESS);
}

fn facts() {
    let handle = |call: &dyn Fn(Out<Device>) -> nvmlReturn_t| {
        let mut device = Device::none();
        match call(Out::to(&mut device)) {
            NVML_SUCCESS => Ok(device),
            code => Err(code),
        }
    };
    let second = handle(&|out| nvmlDeviceGetHandleByIndex_v2(1, out)).unwrap();
    assert_eq!(number(|index| nvmlDeviceGetIndex(second, index)), Ok(1));
    assert_eq!(asked(|out, length| nvmlDeviceGetName(second, out, length)).unwrap(), "GPU 1");
    let uuid = asked(|out, length| nvmlDeviceGetUUID(second, out, length)).unwrap();
    assert_eq!(uuid, "GPU-01010101-0101-0101-0101-010101010101");
    assert_eq!(
        handle(&|out| nvmlDeviceGetHandleByUUID(In::text(c"GPU-01010101-0101-0101-0101-010101010101"), out)),
        Ok(second)
    );
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByUUID(In::text(c"GPU-01"), out)), Err(NVML_ERROR_NOT_FOUND));
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByUUID(In::none(), out)), Err(NVML_ERROR_INVALID_ARGUMENT));
    let mut binary = nvmlUUID_v1_t { version: version::<nvmlUUID_v1_t>(1), kind: 2, value: [0; 41] };
    binary.value[..16].fill(1);
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByUUIDV(In::of(&binary), out)), Ok(second));
    let mut ascii = nvmlUUID_v1_t { kind: 1, ..binary };
    ascii.value[..40].copy_from_slice(uuid.as_bytes());
    ascii.value[40] = 0;
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByUUIDV(In::of(&ascii), out)), Ok(second));
    ascii.version += 1;
    assert_eq!(
        handle(&|out| nvmlDeviceGetHandleByUUIDV(In::of(&ascii), out)),
        Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    );
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByPciBusId_v2(In::text(c"00000000:02:00.0"), out)), Ok(second));
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByPciBusId(In::text(c"0:9:0"), out)), Err(NVML_ERROR_NOT_FOUND));
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByPciBusId(In::text(c"gpu"), out)), Err(NVML_ERROR_INVALID_ARGUMENT));
    assert_eq!(handle(&|out| nvmlDeviceGetHandleByIndex(2, out)), Err(NVML_ERROR_INVALID_ARGUMENT));
    assert_eq!(nvmlDeviceGetHandleByIndex(1, Out::none()), NVML_ERROR_INVALID_ARGUMENT);

    // SAFETY: zeros are a value of these numbers.
    let mut place: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    assert_eq!(nvmlDeviceGetPciInfo_v3(second, Out::to(&mut place)), NVML_SUCCESS);
    assert_eq!((text(&place.bus_id), text(&place.bus_id_legacy)), ("00000000:02:00.0".into(), "0000:02:00.0".into()));
    assert_eq!((place.domain, place.bus, place.device), (0, 2, 0));
    // Older programs have less room for it.
    type Call = extern "C" fn(Device, Out<nvmlPciInfo_t>) -> nvmlReturn_t;
    for (call, bytes) in [(nvmlDeviceGetPciInfo as Call, 32), (nvmlDeviceGetPciInfo_v2 as Call, 52)] {
        let mut place = nvmlPciInfo_t { bus: 77, bus_id: [9; 32], ..place };
        assert_eq!(call(second, Out::to(&mut place)), NVML_SUCCESS);
        assert_eq!(place.bus, 2);
        let untouched = place.bus_id.iter().filter(|byte| **byte == 9).count();
        assert_eq!(untouched, 68 - bytes.max(36), "of {bytes} bytes");
    }
    let (mut major, mut minor) = (0, 0);
    assert_eq!(nvmlDeviceGetCudaComputeCapability(second, Out::to(&mut major), Out::to(&mut minor)), NVML_SUCCESS);
    assert_eq!((major, minor), (8, 9));
    assert_eq!(number(|out| nvmlDeviceGetArchitecture(second, out)), Ok(8));
    for call in [nvmlDeviceGetComputeMode as extern "C" fn(_, _) -> _, nvmlDeviceIsMigDeviceHandle, nvmlDeviceGetBrand]
    {
        assert_eq!(number(|out: Out<u32>| call(second, out)), Ok(0));
        assert_eq!(call(second, Out::none()), NVML_ERROR_INVALID_ARGUMENT);
    }
    // A name that does not fit is none, and a handle that is none is refused.
    let mut short = [0; 5];
    assert_eq!(nvmlDeviceGetName(second, Out::to_all(&mut short), 5), NVML_ERROR_INSUFFICIENT_SIZE);
    for wrong in [Device::none(), Device::number(2), Device::number(usize::MAX / 32)] {
        assert_eq!(memory(wrong), Err(NVML_ERROR_INVALID_ARGUMENT));
        assert!(asked(|out, length| nvmlDeviceGetName(wrong, out, length)).is_err());
    }
    assert_eq!(number(|out| nvmlSystemGetCudaDriverVersion_v2(out)), Ok(13050));
    let driver = asked(|out, length| nvmlSystemGetDriverVersion(out, length)).unwrap();
    assert_eq!(asked(|out, length| nvmlSystemGetNVMLVersion(out, length)).unwrap(), format!("13.{driver}"));
    let name = asked(|out, length| nvmlSystemGetProcessName(std::process::id(), out, length)).unwrap();
    assert!(std::env::args().next().unwrap().starts_with(&name) && !name.is_empty(), "{name}");
    assert_eq!(asked(|out, length| nvmlSystemGetProcessName(u32::MAX, out, length)), Err(NVML_ERROR_NOT_FOUND));
    let mut table = In::of(&0);
    assert_eq!(nvmlInternalGetExportTable(Out::to(&mut table), In::none()), NVML_ERROR_FUNCTION_NOT_FOUND);
    assert!(format!("{table:?}").contains("0x0"), "{table:?}");
    // Of a GPU that says that its MIG mode is off, nvtop before 3.3 asks nothing about processes.
    for call in [nvmlDeviceGetTemperature as unsafe extern "C" fn() -> _, nvmlDeviceGetMigMode] {
        // SAFETY: it looks at no argument.
        assert_eq!(unsafe { call() } as u32, NVML_ERROR_NOT_SUPPORTED.0);
    }
    // SAFETY: zeros are a value of these numbers.
    let mut values: [nvmlFieldValue_t; 3] = unsafe { std::mem::zeroed() };
    assert_eq!(nvmlDeviceGetFieldValues(second, 2, Out::to_all(&mut values)), NVML_SUCCESS);
    assert_eq!(
        values.map(|value| value.nvml_return),
        [NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED, NVML_SUCCESS]
    );
    assert_eq!(nvmlDeviceGetFieldValues(second, 2, Out::none()), NVML_ERROR_INVALID_ARGUMENT);
}

/// A child of a `fork` asks for itself, whatever the threads of its parent were at.
fn forked(does: &Mutex<Does>) {
    let told = does.lock().clone();
    *does.lock() = Does::SaysNothing;
    // Its answers are not fresh any more: it asks, and waits.
    std::thread::sleep(Duration::from_millis(100));
    let waits = std::thread::spawn(|| memory(Device::number(0)));
    std::thread::sleep(Duration::from_millis(300));
    *does.lock() = told;
    // SAFETY: the child calls what is tested, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it waits for ever.
        unsafe { libc::alarm(20) };
        let fine = memory(Device::number(0)).is_ok() && nvmlInit_v2() == NVML_SUCCESS && nvmlShutdown() == NVML_SUCCESS;
        // SAFETY: ends the child alone, without anything of the test.
        unsafe { libc::_exit(if fine { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: it is this process's child, and `status` takes how it ended.
    until("the child", || unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    assert_eq!(waits.join().unwrap(), Err(NVML_ERROR_UNKNOWN), "nobody has answered the parent");
    until("an answer to the parent", || memory(Device::number(0)).is_ok());
}

fn figures(does: &Mutex<Does>) {
    let second = Device::number(1);
    let process = |pid, gpu_time_ns| ProcessStanding { pid, memory_used: 100 + u64::from(pid), gpu_time_ns };
    let busy = |ns| {
        let mut gpu = gpu(1);
        gpu.properties.memory_bytes = 1 << 29;
        GpuStanding { memory_used: 5 << 20, received: 3_349, processes: vec![process(7, ns), process(9, 0)], ..gpu }
    };
    *does.lock() = Does::Tells(Standing { gpus: vec![gpu(0), busy(0)] });
    until("what is new", || memory(second) == Ok([1 << 29, (1 << 29) - (5 << 20), 5 << 20]));
    assert_eq!(memory(Device::number(0)), Ok([1 << 30, 1 << 30, 0]));
    let mut second_version =
        nvmlMemory_v2_t { version: version::<nvmlMemory_v2_t>(2), total: 0, reserved: 1, free: 0, used: 0 };
    assert_eq!(nvmlDeviceGetMemoryInfo_v2(second, Out::to(&mut second_version)), NVML_SUCCESS);
    assert_eq!((second_version.total, second_version.reserved, second_version.used), (1 << 29, 0, 5 << 20));
    second_version.version = 2;
    assert_eq!(nvmlDeviceGetMemoryInfo_v2(second, Out::to(&mut second_version)), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    let mut rates = nvmlUtilization_t { gpu: 9, memory: 9 };
    assert_eq!(nvmlDeviceGetUtilizationRates(second, Out::to(&mut rates)), NVML_SUCCESS);
    assert_eq!((rates.gpu, rates.memory), (33, 0));

    // How many there are, then which.
    let mut count = 0;
    let mut infos =
        [nvmlProcessInfo_v2_t { pid: 0, used_gpu_memory: 0, gpu_instance_id: 0, compute_instance_id: 0 }; 3];
    let listed = nvmlDeviceGetComputeRunningProcesses_v3(second, Out::to(&mut count), Out::none());
    assert_eq!((listed, count), (NVML_ERROR_INSUFFICIENT_SIZE, 2));
    count = 1;
    let listed = nvmlDeviceGetComputeRunningProcesses_v2(second, Out::to(&mut count), Out::to_all(&mut infos));
    assert_eq!((listed, count, infos[0].pid), (NVML_ERROR_INSUFFICIENT_SIZE, 2, 0));
    count = 3;
    let listed = nvmlDeviceGetComputeRunningProcesses_v3(second, Out::to(&mut count), Out::to_all(&mut infos));
    assert_eq!((listed, count), (NVML_SUCCESS, 2));
    assert_eq!(infos.map(|info| (info.pid, info.used_gpu_memory)), [(7, 107), (9, 109), (0, 0)]);
    assert_eq!(infos[0].gpu_instance_id, NO_INSTANCE);
    let mut first = [nvmlProcessInfo_v1_t { pid: 0, used_gpu_memory: 0 }; 2];
    let listed = nvmlDeviceGetComputeRunningProcesses(second, Out::to(&mut count), Out::to_all(&mut first));
    assert_eq!((listed, first.map(|info| (info.pid, info.used_gpu_memory))), (NVML_SUCCESS, [(7, 107), (9, 109)]));
    assert_eq!(nvmlDeviceGetComputeRunningProcesses_v3(second, Out::none(), Out::none()), NVML_ERROR_INVALID_ARGUMENT);
    count = 0;
    let listed = nvmlDeviceGetComputeRunningProcesses_v3(Device::number(0), Out::to(&mut count), Out::none());
    assert_eq!((listed, count), (NVML_SUCCESS, 0));
    for none in [nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses] {
        count = 5;
        assert_eq!((none(second, Out::to(&mut count), Out::none()), count), (NVML_SUCCESS, 0));
    }
    let mut details = [nvmlProcessDetail_v1_t {
        pid: 0,
        used_gpu_memory: 0,
        gpu_instance_id: 0,
        compute_instance_id: 0,
        used_gpu_cc_protected_memory: 1,
    }; 2];
    let mut list = nvmlProcessDetailList_v1_t {
        version: version::<nvmlProcessDetailList_v1_t>(1),
        mode: 0,
        num_proc_array_entries: 0,
        proc_array: Out::none(),
    };
    let listed = nvmlDeviceGetRunningProcessDetailList(second, Out::to(&mut list));
    assert_eq!((listed, list.num_proc_array_entries), (NVML_ERROR_INSUFFICIENT_SIZE, 2));
    list.proc_array = Out::to_all(&mut details);
    assert_eq!(nvmlDeviceGetRunningProcessDetailList(second, Out::to(&mut list)), NVML_SUCCESS);
    assert_eq!(details.map(|detail| (detail.pid, detail.used_gpu_cc_protected_memory)), [(7, 0), (9, 0)]);
    list.mode = 1;
    assert_eq!(nvmlDeviceGetRunningProcessDetailList(second, Out::to(&mut list)), NVML_SUCCESS);
    assert_eq!(list.num_proc_array_entries, 0);
    list.mode = 4;
    assert_eq!(nvmlDeviceGetRunningProcessDetailList(second, Out::to(&mut list)), NVML_ERROR_INVALID_ARGUMENT);

    // What each has had since it was looked at before.
    let empty =
        nvmlProcessUtilizationSample_t { pid: 0, time_stamp: 0, sm_util: 0, mem_util: 9, enc_util: 9, dec_util: 9 };
    let mut samples = [empty; 2];
    let sampled = |samples: &mut [nvmlProcessUtilizationSample_t; 2], since| {
        let mut count = 2;
        let result = nvmlDeviceGetProcessUtilization(second, Out::to_all(samples), Out::to(&mut count), since);
        (result, count)
    };
    until("a past", || sampled(&mut samples, 0) == (NVML_SUCCESS, 2));
    assert_eq!(samples[0].sm_util, 0);
    *does.lock() = Does::Tells(Standing { gpus: vec![gpu(0), busy(1 << 50)] });
    until("its use", || sampled(&mut samples, 0) == (NVML_SUCCESS, 2) && samples[0].sm_util == 100);
    assert_eq!((samples[0].pid, samples[0].mem_util, samples[1].sm_util), (7, 0, 0));
    assert_eq!(sampled(&mut samples, u64::MAX), (NVML_ERROR_NOT_FOUND, 0));
    let mut count = 0;
    let result = nvmlDeviceGetProcessUtilization(second, Out::none(), Out::to(&mut count), 0);
    assert_eq!((result, count), (NVML_ERROR_INSUFFICIENT_SIZE, 2));
}

/// A GPU that is lost, and a daemon that is.
fn lost(does: &Mutex<Does>, end: impl Fn()) {
    let (first, second) = (Device::number(0), Device::number(1));
    *does.lock() = Does::Tells(Standing { gpus: vec![GpuStanding { answers: false, ..gpu(0) }, gpu(1)] });
    until("the loss", || memory(first) == Err(NVML_ERROR_GPU_IS_LOST));
    assert_eq!(memory(second), Ok([1 << 30, 1 << 30, 0]), "and not the other's");
    end();
    until("the daemon's end", || memory(second) == Err(NVML_ERROR_GPU_IS_LOST));
    assert_eq!(asked(|out, length| nvmlDeviceGetName(second, out, length)).unwrap(), "GPU 1");
    assert_eq!(number(|count| nvmlDeviceGetCount_v2(count)), Ok(2));
    assert_eq!(nvmlShutdown(), NVML_SUCCESS);
    assert_eq!(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
}
