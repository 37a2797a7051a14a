//! Contexts: the stack, the primary context, errors that stick, the end.

use crate::support::{ENDED, bare, driver};
use cuda_core::{Context, CudaError, Device, JitLog, LaunchConfig, Params, PrimaryState, Stream};

const CODE: &[u8] = b".version 8.0 .entry trap() .entry endless() .entry nothing()";

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
    let event = driver.event_create(0).unwrap();
    let trap = driver.module_get_function(module, "trap").unwrap();
    let config = LaunchConfig::new([1; 3], [1; 3], 0, Stream::NULL);
    driver.launch_kernel(trap, &config, Params::Each(&mut |_, _| {})).unwrap();
    driver.event_record(event, Stream::NULL).ok();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.mem_alloc(16), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.event_synchronize(event), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.event_query(event), Err(CudaError::ILLEGAL_ADDRESS));
    assert_eq!(driver.stream_create(0), Err(CudaError::ILLEGAL_ADDRESS));
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
fn an_endless_kernel_does_not_outlive_its_context() {
    let (driver, _) = bare(1 << 30);
    let context = driver.ctx_create(0, Device(0)).unwrap();
    let module = driver.module_load_data(&CODE, &mut JitLog::default()).unwrap();
    let endless = driver.module_get_function(module, "endless").unwrap();
    let config = LaunchConfig::new([1; 3], [1; 3], 0, Stream::NULL);
    driver.launch_kernel(endless, &config, Params::Each(&mut |_, _| {})).unwrap();
    assert_eq!(driver.stream_query(Stream::NULL), Err(CudaError::NOT_READY));
    driver.ctx_destroy(context).unwrap();
    driver.ctx_create(0, Device(0)).unwrap();
    driver.ctx_synchronize().unwrap();
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
