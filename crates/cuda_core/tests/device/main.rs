//! The API over the software GPU and its driver: the whole of the native plane in one process.

#![cfg(test)]

use cuda_core::{CudaError, Device, JitLog, JitOptions, Location, Stream};
use gpu::DevAddr;

use crate::support::{KERNELS, MANAGED, PRINTED, launch, memory, own_pages, shape, start, words};

mod clusters;
mod graphs;
mod machine_code;
mod streams;
mod support;
mod textures;

#[test]
fn vectors_are_added_device() {
    const COUNT: u32 = 50_000;
    const BYTES: usize = COUNT as usize * 4;
    let (driver, module) = start();
    let add = driver.module_get_function(module, "add").unwrap();
    let host = memory(&words(0..COUNT));
    for stream in [Stream::NULL, Stream::PER_THREAD, driver.stream_create(1).unwrap()] {
        let [a, b, c] = [(); 3].map(|()| driver.mem_alloc(BYTES as u64).unwrap());
        driver.memcpy_htod_async(a, host.range(0, BYTES), stream).unwrap();
        driver.memset_async(b, 7, 4, COUNT.into(), stream).unwrap();
        let addresses = [a, b, c].map(|at| at.0.to_le_bytes());
        let count = COUNT.to_le_bytes();
        let params: [&[u8]; 4] = [&addresses[0], &addresses[1], &addresses[2], &count];
        launch(&driver, add, &shape(COUNT.div_ceil(256), 256, stream), &params).unwrap();
        let out = memory(&vec![0; BYTES]);
        driver.memcpy_dtoh_async(out.range(0, BYTES), c, stream).unwrap();
        driver.stream_synchronize(stream).unwrap();
        let mut got = vec![0; BYTES];
        out.read(0, &mut got);
        assert!(got == words((0..COUNT).map(|n| n + 7)));
        [a, b, c].into_iter().for_each(|at| driver.mem_free(at).unwrap());
    }
    let (free, total) = driver.mem_get_info().unwrap();
    assert!(free < total);
    driver.device_primary_ctx_release(Device(0)).unwrap();
}

/// As compilers without CUDA's headers do it: by functions of the device runtime.
#[test]
fn ctas_of_a_cooperative_launch_wait_for_each_other_device() {
    const CTAS: u32 = 4;
    const ROUNDS: u32 = 50;
    let (driver, _) = start();
    let module =
        driver.module_load_data(&include_bytes!("cooperative.ptx").as_slice(), &mut JitLog::default()).unwrap();
    let sums = driver.module_get_function(module, "sums").unwrap();
    let bytes = 4 * (CTAS as usize + 1);
    let words_at = driver.mem_alloc(bytes as u64).unwrap();
    let run = |cooperative, rounds: u32| {
        driver.memset(words_at, 0, 4, u64::from(CTAS) + 1, Stream::NULL).unwrap();
        let mut config = shape(CTAS, 64, Stream::NULL);
        config.cooperative = cooperative;
        launch(&driver, sums, &config, &[&words_at.0.to_le_bytes(), &rounds.to_le_bytes()]).unwrap();
        let out = memory(&vec![0; bytes]);
        driver.memcpy_dtoh(out.range(0, bytes), words_at, Stream::NULL).unwrap();
        let mut got = vec![0; bytes];
        out.read(0, &mut got);
        got
    };
    let sum = (0..CTAS).map(|cta| cta + ROUNDS - 1).sum();
    assert_eq!(run(true, ROUNDS), words([sum; CTAS as usize].into_iter().chain([0])));
    // Nobody waits in a grid that is none, and each thread is told so, twice.
    assert_eq!(run(false, 1)[bytes - 4..], (CTAS * 64 * 2).to_le_bytes());
}

#[test]
fn shared_memory_is_shared_device() {
    let (driver, module) = start();
    let add = driver.module_get_function(module, "add").unwrap();
    let managed = driver.mem_alloc_managed(4096, 1).unwrap();
    let pinned = DevAddr(driver.mem_alloc_host(4096).unwrap());
    let pages = own_pages(&words(100..200));
    let own = pages.range();
    driver.mem_host_register(pages, 0).unwrap();
    let registered = driver.mem_host_get_device_pointer(own.address() as u64, 0).unwrap();
    driver.memset(managed, 1, 4, 100, Stream::NULL).unwrap();
    let addresses = [managed, registered, pinned].map(|at| at.0.to_le_bytes());
    let count = 100u32.to_le_bytes();
    let params: [&[u8]; 4] = [&addresses[0], &addresses[1], &addresses[2], &count];
    launch(&driver, add, &shape(1, 128, Stream::NULL), &params).unwrap();
    // Registered memory is where the kernel's result goes now, without a copy.
    let [a, b, c] = [addresses[2], addresses[0], addresses[1]];
    launch(&driver, add, &shape(1, 128, Stream::NULL), &[&a, &b, &c, &count]).unwrap();
    driver.ctx_synchronize().unwrap();
    let mut got = vec![0; 400];
    own.read(&mut got);
    assert_eq!(got, words(102..202));
    driver.mem_host_unregister(own.address() as u64).unwrap();
    driver.memcpy_dtoh(own, pinned, Stream::NULL).unwrap();
    own.read(&mut got);
    assert_eq!(got, words(101..201));
}

#[test]
fn variables_can_be_set_device() {
    let (driver, module) = start();
    let (at, bytes) = driver.module_get_global(module, "table").unwrap();
    assert_eq!(bytes, 16);
    let host = memory(&words([5, 6, 7, 8].into_iter()));
    driver.memcpy_htod(at, host.range(0, 16), Stream::NULL).unwrap();
    let read = driver.module_get_function(module, "lookup").unwrap();
    let out = driver.mem_alloc(16).unwrap();
    launch(&driver, read, &shape(1, 4, Stream::NULL), &[&out.0.to_le_bytes()]).unwrap();
    driver.memcpy_dtoh(host.range(0, 16), out, Stream::NULL).unwrap();
    let mut got = [0; 16];
    host.read(0, &mut got);
    assert_eq!(got[..], words([10, 12, 14, 16].into_iter()));
}

#[test]
fn managed_variables_are_one_for_host_and_gpu_device() {
    let (driver, _) = start();
    let library = driver.library_load_data(&MANAGED.as_bytes(), &mut JitLog::default()).unwrap();
    let (sum, bytes) = driver.library_get_managed(library, "sum").unwrap();
    assert_eq!(bytes, 8);
    assert_eq!(driver.library_get_global(library, "sum"), Ok((sum, 8)));
    assert_eq!(driver.library_get_managed(library, "plain"), Err(CudaError::NOT_FOUND));
    assert_eq!(driver.library_get_managed(library, "none"), Err(CudaError::NOT_FOUND));
    let (table, bytes) = driver.library_get_managed(library, "table").unwrap();
    assert_eq!(bytes, 32);
    // The program sees the initial values where the GPU does: a managed, a plain variable's address, a function's handle.
    let (plain, _) = driver.library_get_global(library, "plain").unwrap();
    let host = memory(&[0; 32]);
    driver.memcpy_dtoh(host.range(0, 32), table, Stream::NULL).unwrap();
    let mut values = [0; 32];
    host.read(0, &mut values);
    let value = |at: usize| u64::from_le_bytes(values[at * 8..][..8].try_into().unwrap());
    assert_eq!((value(0), value(1), value(3)), (sum.0 + 2, plain.0, 7));
    assert_ne!(value(2), 0);
    // One more, by the GPU, through the addresses in managed and in plain variables.
    let kernel = driver.library_get_kernel(library, "more").unwrap();
    let function = driver.kernel_get_function(kernel).unwrap();
    launch(&driver, function, &shape(1, 1, Stream::NULL), &[]).unwrap();
    driver.ctx_synchronize().unwrap();
    driver.memcpy_dtoh(host.range(0, 8), sum, Stream::NULL).unwrap();
    host.read(0, &mut values[..8]);
    assert_eq!(u64::from_le_bytes(values[..8].try_into().unwrap()), 42);
    // It is the library's: freed with it, not before, and one for all contexts.
    let other = driver.ctx_create(0, Device(0)).unwrap();
    assert_eq!(driver.library_get_global(library, "sum"), Ok((sum, 8)));
    assert_eq!(driver.library_get_managed(library, "table"), Ok((table, 32)));
    driver.ctx_destroy(other).unwrap();
    assert_eq!(driver.mem_free(sum), Err(CudaError::INVALID_VALUE));
    driver.mem_advise(sum, 8, 1, Location::Device(0)).unwrap();
    driver.library_unload(library).unwrap();
    assert_eq!(driver.mem_advise(sum, 8, 1, Location::Device(0)), Err(CudaError::INVALID_VALUE));
    let again = driver.mem_alloc_managed(8, 1).unwrap();
    assert_eq!(again.0 / 4096, sum.0 / 4096, "the addresses are free again");
}

#[test]
fn an_address_of_nothing_is_refused_device() {
    let (driver, _) = start();
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n.extern .global .u32 far[];\n\
        .global .attribute(.managed) .u64 at = far;\n";
    let mut log = JitLog::default();
    assert_eq!(driver.module_load_data(&text.as_bytes(), &mut log).err(), Some(CudaError::INVALID_PTX));
    assert!(log.error.contains("'far', which is not defined"), "{}", log.error);
}

#[test]
fn kernels_print_device() {
    let (driver, module) = start();
    let hello = driver.module_get_function(module, "hello").unwrap();
    launch(&driver, hello, &shape(2, 1, Stream::NULL), &[]).unwrap();
    driver.ctx_synchronize().unwrap();
    let mut lines: Vec<String> = String::from_utf8_lossy(&PRINTED.lock()).lines().map(ToString::to_string).collect();
    lines.sort();
    assert_eq!(lines, ["block 0 says    1.500", "block 1 says    1.500"]);
}

#[test]
fn faults_end_their_context_only_and_a_context_ends_after_its_work_device() {
    let (driver, module) = start();
    let primary = driver.ctx_get_current().unwrap();
    let context = driver.ctx_create(0, Device(0)).unwrap();
    let mine = driver.module_load_data(&KERNELS.as_bytes(), &mut JitLog::default()).unwrap();
    let add = driver.module_get_function(mine, "add").unwrap();
    let (nowhere, count) = (64u64.to_le_bytes(), 1u32.to_le_bytes());
    launch(&driver, add, &shape(1, 1, Stream::NULL), &[&nowhere, &nowhere, &nowhere, &count]).unwrap();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.stream_query(Stream::NULL), Err(CudaError::ILLEGAL_ADDRESS));
    driver.ctx_destroy(context).unwrap();
    let context = driver.ctx_create(0, Device(0)).unwrap();
    let mine = driver.module_load_data(&KERNELS.as_bytes(), &mut JitLog::default()).unwrap();
    // It runs until its flag is set.
    let flag = driver.mem_alloc_managed(4, 1).unwrap();
    let hold = driver.module_get_function(mine, "hold").unwrap();
    launch(&driver, hold, &shape(4, 32, Stream::NULL), &[&flag.0.to_le_bytes()]).unwrap();
    assert_eq!(driver.stream_query(Stream::NULL), Err(CudaError::NOT_READY));
    // The other context goes on meanwhile.
    driver.ctx_push_current(primary).unwrap();
    let lookup = driver.module_get_function(module, "lookup").unwrap();
    let out = driver.mem_alloc(16).unwrap();
    launch(&driver, lookup, &shape(1, 4, Stream::NULL), &[&out.0.to_le_bytes()]).unwrap();
    driver.ctx_synchronize().unwrap();
    // Longer than anybody's patience: a context ends after its work.
    let start = std::time::Instant::now();
    let long = std::time::Duration::from_millis(2_500);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(long);
            driver.ctx_set_current(primary).unwrap();
            driver.memset(flag, 1, 4, 1, Stream::PER_THREAD).unwrap();
        });
        driver.ctx_destroy(context).unwrap();
    });
    assert!(start.elapsed() >= long, "it ended after {:?}", start.elapsed());
    launch(&driver, lookup, &shape(1, 4, Stream::NULL), &[&out.0.to_le_bytes()]).unwrap();
    driver.ctx_synchronize().unwrap();
}

#[test]
fn streams_run_at_once_and_events_order_them_device() {
    let (driver, module) = start();
    let add = driver.module_get_function(module, "add").unwrap();
    let streams: Vec<Stream> = (0..4).map(|_| driver.stream_create(1).unwrap()).collect();
    let (start, end) = (driver.event_create(0).unwrap(), driver.event_create(0).unwrap());
    let [a, one] = [(); 2].map(|()| driver.mem_alloc(400).unwrap());
    driver.memset(a, 0, 4, 100, Stream::NULL).unwrap();
    driver.memset(one, 1, 4, 100, Stream::NULL).unwrap();
    driver.ctx_synchronize().unwrap();
    driver.event_record(start, streams[0]).unwrap();
    // Each adds one, in turn, each in another stream.
    let event = driver.event_create(2).unwrap();
    let (sum, one, count) = (a.0.to_le_bytes(), one.0.to_le_bytes(), 100u32.to_le_bytes());
    for turn in 0..200 {
        let stream = streams[turn % 4];
        driver.stream_wait_event(stream, event, 0).unwrap();
        launch(&driver, add, &shape(1, 128, stream), &[&sum, &one, &sum, &count]).unwrap();
        driver.event_record(event, stream).unwrap();
    }
    driver.event_record(end, streams[3]).unwrap();
    driver.event_synchronize(end).unwrap();
    assert!(driver.event_elapsed_time(start, end).unwrap() > 0.0);
    let host = memory(&[0; 400]);
    driver.memcpy_dtoh(host.range(0, 400), a, streams[3]).unwrap();
    let mut got = vec![0; 400];
    host.read(0, &mut got);
    assert_eq!(got, words([200; 100].into_iter()));
}

#[test]
fn a_kernel_that_cannot_run_here_leaves_its_context_in_good_health_device() {
    let (driver, module) = start();
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry tensor(.param .u64 out) {\n\
        wgmma.fence.sync.aligned;\n\
        ret; }\n.visible .entry plain() { ret; }\n.visible .entry exact() .reqntid 32 { ret; }\n";
    let mut log = JitLog::default();
    let mixed = driver.module_load_data(&text.as_bytes(), &mut log).unwrap_or_else(|error| panic!("{error}: {log:?}"));
    // Who wants to know is told at the load; it is no error.
    let [line] = log.info.lines().collect::<Vec<_>>()[..] else { panic!("{log:?}") };
    assert!(line.starts_with("tensor: ") && line.contains("wgmma") && log.error.is_empty(), "{log:?}");
    let get = |name| driver.module_get_function(mixed, name).unwrap();
    for _ in 0..2 {
        let refused = launch(&driver, get("tensor"), &shape(1, 32, Stream::NULL), &[&[0; 8]]);
        assert_eq!(refused, Err(CudaError::NOT_SUPPORTED));
        assert_eq!(driver.func_load(get("tensor")), Err(CudaError::NOT_SUPPORTED));
    }
    launch(&driver, get("plain"), &shape(1, 32, Stream::NULL), &[]).unwrap();
    assert_eq!(launch(&driver, get("exact"), &shape(1, 31, Stream::NULL), &[]), Err(CudaError::INVALID_VALUE));
    launch(&driver, get("exact"), &shape(1, 32, Stream::NULL), &[]).unwrap();
    driver.ctx_synchronize().unwrap();
    let out = driver.mem_alloc(16).unwrap();
    let lookup = driver.module_get_function(module, "lookup").unwrap();
    launch(&driver, lookup, &shape(1, 4, Stream::NULL), &[&out.0.to_le_bytes()]).unwrap();
    driver.mem_free(out).unwrap();
}

#[test]
fn the_compiler_heeds_what_a_load_asks_for_device() {
    let (driver, _) = start();
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n\
        .visible .entry square(.param .u64 out, .param .f32 a, .param .f32 c) {\n\
        .reg .b64 %rd; .reg .f32 %f<4>;\n\
        ld.param.u64 %rd, [out]; ld.param.f32 %f0, [a]; ld.param.f32 %f1, [c];\n\
        mul.f32 %f2, %f0, %f0; add.f32 %f2, %f2, %f1; st.global.f32 [%rd], %f2; ret; }\n";
    let out = driver.mem_alloc(4).unwrap();
    // a * a + c is 2^-24 without a rounding between, and 0 with one.
    let (a, c) = (1.0 + 2.0_f32.powi(-12), -(1.0 + 2.0_f32.powi(-11)));
    for (fma, expected) in [(true, 2.0_f32.powi(-24)), (false, 0.0)] {
        let mut log = JitLog { options: JitOptions { fma, max_registers: None }, ..JitLog::default() };
        let module = driver.module_load_data(&text.as_bytes(), &mut log).unwrap();
        let square = driver.module_get_function(module, "square").unwrap();
        let params: [&[u8]; 3] = [&out.0.to_le_bytes(), &a.to_le_bytes(), &c.to_le_bytes()];
        launch(&driver, square, &shape(1, 1, Stream::NULL), &params).unwrap();
        let host = memory(&[0; 4]);
        driver.memcpy_dtoh(host.range(0, 4), out, Stream::NULL).unwrap();
        let mut result = [0; 4];
        host.read(0, &mut result);
        assert_eq!(f32::from_le_bytes(result), expected, "fma: {fma}");
    }
}

#[test]
fn many_small_pinned_buffers_cost_few_map_entries_device() {
    let (driver, _) = start();
    let limit = gpu_driver::HostCost::default().maps as usize;
    let buffers: Vec<u64> = (0..20_000).map(|_| driver.mem_alloc_host(4096).unwrap()).collect();
    assert!(buffers.len() > limit, "more than there may be mappings");
    let at = |index: usize| DevAddr(buffers[index]);
    for index in [0, 1, 511, 512, 19_999] {
        driver.memset_async(at(index), index as u32 + 1, 4, 1024, Stream::NULL).unwrap();
    }
    driver.ctx_synchronize().unwrap();
    for index in [0, 1, 2, 511, 512, 19_999] {
        let host = memory(&[9; 4]);
        driver.memcpy_dtoh(host.range(0, 4), at(index), Stream::NULL).unwrap();
        let mut seen = [0; 4];
        host.read(0, &mut seen);
        assert_eq!(u32::from_le_bytes(seen), if index == 2 { 0 } else { index as u32 + 1 });
    }
    for buffer in buffers {
        driver.mem_free_host(buffer).unwrap();
    }
}
