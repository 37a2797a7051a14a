//! Contexts: the stack, the primary context, errors that stick, the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use crate::support::{ENDED, bare, driver};
use cuda_core::{Context, CudaError, Device, Driver, JitLog, LaunchConfig, Params, PrimaryState, Stream};

const CODE: &[u8] = b".version 8.0 .entry trap() .entry nothing()";

#[test]
fn nothing_works_before_init_or_after_the_end() {
    let (driver, _) = driver();
    driver.shut_down();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::DEINITIALIZED));
    assert_eq!(driver.mem_alloc(16), Err(CudaError::DEINITIALIZED));
    assert_eq!(driver.device_primary_ctx_release(Device(0)), Err(CudaError::DEINITIALIZED));
    assert_eq!(driver.init(0), Err(CudaError::DEINITIALIZED));
}

#[test]
fn the_stack() {
    let (driver, _) = bare(1 << 30);
    assert_eq!(driver.ctx_get_current(), Ok(Context::NULL));
    assert_eq!(driver.ctx_get_device(), Err(CudaError::INVALID_CONTEXT));
    let first = driver.ctx_create(0, Device(0)).unwrap();
    let second = driver.ctx_create(4, Device(0)).unwrap();
    assert_eq!(driver.ctx_get_current(), Ok(second));
    assert_eq!(driver.ctx_get_flags(), Ok(4));
    assert_eq!(driver.ctx_pop_current(), Ok(second));
    assert_eq!(driver.ctx_get_current(), Ok(first));
    driver.ctx_push_current(second).unwrap();
    driver.ctx_set_current(first).unwrap();
    assert_eq!(driver.ctx_pop_current(), Ok(first));
    assert_eq!(driver.ctx_pop_current(), Ok(first));
    assert_eq!(driver.ctx_pop_current(), Err(CudaError::INVALID_CONTEXT));
    assert_ne!(driver.ctx_get_id(first), driver.ctx_get_id(second));
    assert_eq!(driver.ctx_create(0x1000, Device(0)), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.ctx_create(0, Device(1)), Err(CudaError::INVALID_DEVICE));
}

#[test]
fn a_destroyed_context_is_told_from_a_foreign_one() {
    let (driver, _) = bare(1 << 30);
    let context = driver.ctx_create(0, Device(0)).unwrap();
    driver.ctx_push_current(context).unwrap();
    let stream = driver.stream_create(0).unwrap();
    driver.ctx_destroy(context).unwrap();
    // One entry was popped, the other still names the dead context.
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(driver.stream_synchronize(stream), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.ctx_destroy(context), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(driver.ctx_push_current(context), Err(CudaError::INVALID_CONTEXT));
    assert!(ENDED.lock().contains(&context));
}

#[test]
fn the_primary_context_keeps_its_handle() {
    let (driver, fake) = bare(1 << 30);
    let all = fake.free();
    let handle = driver.device_primary_ctx_handle(Device(0)).unwrap();
    // cudart makes it current before it retains it.
    driver.ctx_set_current(handle).unwrap();
    assert_eq!(driver.ctx_get_current(), Ok(handle));
    assert_eq!(driver.mem_alloc(16), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(driver.device_primary_ctx_retain(Device(0)), Ok(handle));
    driver.device_primary_ctx_set_flags(Device(0), 8).unwrap();
    assert_eq!(driver.device_primary_ctx_get_state(Device(0)), Ok(PrimaryState { flags: 8, active: true }));
    let memory = driver.mem_alloc(16).unwrap();
    driver.memset(memory, 0, 1, 16, Stream::LEGACY).unwrap();
    assert_eq!(driver.device_primary_ctx_retain(Device(0)), Ok(handle));
    driver.device_primary_ctx_release(Device(0)).unwrap();
    driver.ctx_synchronize().unwrap();
    driver.device_primary_ctx_release(Device(0)).unwrap();
    assert_eq!(driver.device_primary_ctx_release(Device(0)), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(fake.free(), all, "a context gives everything back");
    driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_synchronize().unwrap();
    assert_eq!(driver.ctx_destroy(handle), Err(CudaError::INVALID_CONTEXT));
}

#[test]
fn a_fault_sticks_to_its_context_only() {
    let (driver, _) = bare(1 << 30);
    let well = driver.ctx_create(0, Device(0)).unwrap();
    let sick = driver.ctx_create(0, Device(0)).unwrap();
    let module = driver.module_load_data(&CODE, &mut JitLog::default()).unwrap();
    let (event, other) = (driver.event_create(0).unwrap(), driver.event_create(0).unwrap());
    let stream = driver.stream_create(0).unwrap();
    let host = driver.mem_alloc_host(64).unwrap();
    let trap = driver.module_get_function(module, "trap").unwrap();
    let config = LaunchConfig::new([1; 3], [1; 3], 0, Stream::NULL);
    driver.launch_kernel(trap, &config, Params::Each(&mut |_, _| true)).unwrap();
    driver.event_record(event, Stream::NULL).ok();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.mem_alloc(16), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.event_synchronize(event), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.event_query(event), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.stream_create(0), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.mem_free_host(host), Err(CudaError::ILLEGAL_ADDRESS));
    // Who destroys something is told, too; it is destroyed.
    assert_eq!(driver.stream_destroy(stream), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.stream_destroy(stream), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.event_destroy(other), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.event_destroy(other), Err(CudaError::INVALID_HANDLE));
    assert_eq!(driver.ctx_get_device(), Ok(Device(0)));
    driver.ctx_push_current(well).unwrap();
    let memory = driver.mem_alloc(16).unwrap();
    driver.memset(memory, 1, 4, 4, Stream::NULL).unwrap();
    // Another context's stream does not wait for ever for what will not come.
    driver.stream_wait_event(Stream::NULL, event, 0).unwrap();
    driver.ctx_destroy(sick).unwrap();
    driver.ctx_synchronize().unwrap();
}

#[test]
fn a_context_ends_after_its_work() {
    let (driver, fake) = bare(1 << 30);
    let context = driver.ctx_create(0, Device(0)).unwrap();
    let (release, held) = mpsc::channel::<()>();
    let over = Arc::new(AtomicBool::new(false));
    let last = Arc::clone(&over);
    let work = move || {
        held.recv().unwrap_or_default();
        last.store(true, Ordering::Release);
    };
    driver.launch_host_func(Stream::NULL, Box::new(work)).unwrap();
    let memory = driver.mem_alloc(4).unwrap();
    driver.memset_async(memory, 1, 4, 1, Stream::NULL).unwrap();
    assert_eq!(driver.stream_query(Stream::NULL), Err(CudaError::NOT_READY));
    fake.requests();
    std::thread::scope(|scope| {
        let destroyed = scope.spawn(|| driver.ctx_destroy(context));
        // Its handle is gone at once; the context is not.
        while driver.ctx_get_id(context) != Err(CudaError::INVALID_CONTEXT) {
            std::thread::yield_now();
        }
        for _ in 0..100 {
            assert!(!destroyed.is_finished(), "its work goes on");
            std::thread::yield_now();
        }
        assert!(!fake.requests().contains(&"DestroyContext".to_string()));
        drop(release);
        destroyed.join().unwrap().unwrap();
    });
    assert!(over.load(Ordering::Acquire));
    assert!(fake.requests().contains(&"DestroyContext".to_string()));
    assert_eq!(driver.mem_alloc(4), Err(CudaError::CONTEXT_IS_DESTROYED));
}

#[test]
fn a_reset_leaves_the_primary_context_retained() {
    let (driver, fake) = bare(1 << 30);
    let all = fake.free();
    let handle = driver.device_primary_ctx_retain(Device(0)).unwrap();
    assert_eq!(driver.device_primary_ctx_retain(Device(0)), Ok(handle));
    driver.ctx_set_current(handle).unwrap();
    let memory = driver.mem_alloc(16).unwrap();
    driver.memset(memory, 0, 1, 16, Stream::LEGACY).unwrap();
    driver.device_primary_ctx_reset(Device(0)).unwrap();
    assert_eq!(fake.free(), all, "a reset gives everything back");
    assert!(!driver.device_primary_ctx_get_state(Device(0)).unwrap().active);
    assert_eq!(driver.mem_alloc(16), Err(CudaError::CONTEXT_IS_DESTROYED));
    // Nothing to reset is no error.
    driver.device_primary_ctx_reset(Device(0)).unwrap();
    // The third to retain it has a context again, that goes with the last of the three releases.
    assert_eq!(driver.device_primary_ctx_retain(Device(0)), Ok(handle));
    assert!(driver.device_primary_ctx_get_state(Device(0)).unwrap().active);
    driver.mem_alloc(16).unwrap();
    for _ in 0..2 {
        driver.device_primary_ctx_release(Device(0)).unwrap();
        driver.ctx_synchronize().unwrap();
    }
    driver.device_primary_ctx_release(Device(0)).unwrap();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(driver.device_primary_ctx_release(Device(0)), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(fake.free(), all);
}

#[test]
fn limits() {
    let (driver, fake) = driver();
    assert_eq!(driver.ctx_get_limit(1), Ok(1 << 20));
    driver.ctx_set_limit(1, 5000).unwrap();
    assert_eq!(driver.ctx_get_limit(1), Ok(8192));
    driver.ctx_set_limit(2, 1 << 20).unwrap();
    driver.ctx_set_limit(0, 4000).unwrap();
    assert_eq!(driver.ctx_get_limit(0), Ok(4000));
    assert_eq!(driver.ctx_set_limit(9, 0), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.ctx_get_limit(8), Ok(0), "graphics share no context");
    assert_eq!(driver.ctx_get_limit(99), Err(CudaError::UNSUPPORTED_LIMIT));
    let memory = driver.mem_alloc(4).unwrap();
    assert!(!fake.requests().contains(&"CreateContext".to_string()), "limits can still be set");
    driver.memset(memory, 0, 4, 1, Stream::NULL).unwrap();
    assert!(fake.requests().contains(&"CreateContext".to_string()));
    assert_eq!(driver.ctx_set_limit(1, 1 << 20), Err(CudaError::INVALID_VALUE));
}

#[test]
fn threads_have_their_own_stacks() {
    let (driver, _) = driver();
    let context = driver.ctx_get_current().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(driver.ctx_get_current(), Ok(Context::NULL));
            driver.ctx_set_current(context).unwrap();
            let memory = driver.mem_alloc(64).unwrap();
            driver.memset_async(memory, 3, 1, 64, Stream::PER_THREAD).unwrap();
            driver.stream_synchronize(Stream::PER_THREAD).unwrap();
        });
    });
    driver.ctx_synchronize().unwrap();
}

#[test]
fn a_context_that_the_gpu_refuses_leaves_nothing() {
    let (driver, fake) = driver();
    let memory = driver.mem_alloc(16).unwrap();
    let all = fake.free();
    fake.refuse_contexts(true);
    for _ in 0..3 {
        assert_eq!(driver.memset(memory, 0, 1, 16, Stream::NULL), Err(CudaError::OUT_OF_MEMORY));
        assert_eq!(fake.free(), all, "its FIFO and heap are given back");
    }
    fake.refuse_contexts(false);
    driver.memset(memory, 0, 1, 16, Stream::NULL).unwrap();
}

#[test]
fn what_is_made_while_a_context_ends_ends_with_it() {
    let (driver, fake) = bare(1 << 30);
    driver.ctx_create(0, Device(0)).unwrap();
    let all = fake.free();
    for _ in 0..100 {
        let context = driver.ctx_create(0, Device(0)).unwrap();
        let begun = Barrier::new(4);
        let make = |make: &dyn Fn() -> cuda_core::Result<u64>| {
            driver.ctx_set_current(context).unwrap();
            begun.wait();
            let made: Vec<u64> = std::iter::from_fn(|| make().ok()).collect();
            made
        };
        let streams = || driver.stream_create(0).map(u64::from);
        let modules = || driver.module_load_data(&CODE, &mut JitLog::default()).map(u64::from);
        let pinned = || driver.mem_host_alloc(1 << 20, 0);
        let (streams, modules) = std::thread::scope(|scope| {
            let streams = scope.spawn(|| make(&streams));
            let modules = scope.spawn(|| make(&modules));
            let pinned = scope.spawn(|| make(&pinned));
            begun.wait();
            driver.ctx_destroy(context).unwrap();
            drop(pinned.join().unwrap());
            (streams.join().unwrap(), modules.join().unwrap())
        });
        for stream in streams {
            assert_eq!(driver.stream_get_flags(Stream(stream)), Err(CudaError::INVALID_HANDLE));
        }
        for module in modules {
            assert_eq!(driver.module_unload(cuda_core::Module(module)), Err(CudaError::INVALID_HANDLE));
        }
        assert_eq!(fake.free(), all, "nothing is left");
    }
}

#[test]
fn threads_retain_reset_and_release_the_primary_context_at_once() {
    const THREADS: usize = 4;
    let (driver, fake) = bare(1 << 30);
    use_once(&driver);
    let all = fake.free();
    let begun = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (driver, begun) = (&driver, &begun);
            scope.spawn(move || {
                begun.wait();
                for round in 0..200 {
                    let handle = driver.device_primary_ctx_retain(Device(0)).unwrap();
                    driver.ctx_set_current(handle).unwrap();
                    // Another thread's reset may come at any time; nothing but that may be wrong.
                    let work = driver.mem_alloc(16).and_then(|at| driver.memset(at, 0, 1, 16, Stream::NULL));
                    let expected = [Ok(()), Err(CudaError::CONTEXT_IS_DESTROYED), Err(CudaError::INVALID_VALUE)];
                    assert!(expected.contains(&work), "{work:?}");
                    if round % 4 == thread {
                        driver.device_primary_ctx_reset(Device(0)).unwrap();
                    }
                    // However often it was reset, each who retains it releases it, once.
                    driver.device_primary_ctx_release(Device(0)).unwrap();
                }
            });
        }
    });
    assert_eq!(driver.device_primary_ctx_release(Device(0)), Err(CudaError::INVALID_CONTEXT));
    assert!(!driver.device_primary_ctx_get_state(Device(0)).unwrap().active);
    assert_eq!(fake.free(), all, "nothing is left");
}

/// Uses the primary context and gives it back: what stays for the next time is there then.
fn use_once(driver: &Driver) {
    let handle = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(handle).unwrap();
    driver.memset(driver.mem_alloc(16).unwrap(), 0, 1, 16, Stream::NULL).unwrap();
    driver.device_primary_ctx_release(Device(0)).unwrap();
}
