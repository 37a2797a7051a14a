//! Green contexts: parts of the primary context, with resources of their own.

use std::sync::{Arc, mpsc};

use crate::support::{ENDED, FakeGpu, wide};
use crate::textures::plain;
use cuda_abi::CUarray_format;
use cuda_core::{
    Context, CudaError, DevResource, Device, Driver, GreenContext, JitLog, LaunchConfig, Params, Resource, SmGroup,
    SmResource, Stream,
};
use gpu::DevAddr;

const DEVICE: Device = Device(0);
const SM: u32 = 1;
const WORKQUEUE_CONFIG: u32 = 1000;
const WORKQUEUE: u32 = 10_000;
const NON_BLOCKING: u32 = 1;

fn sms(resource: cuda_core::Result<DevResource>) -> SmResource {
    match resource {
        Ok(DevResource::Sm(sms)) => sms,
        other => panic!("{other:?}"),
    }
}

/// A driver over a GPU with ten multiprocessors, the primary context current.
fn driver() -> (Driver, Arc<FakeGpu>) {
    let (driver, fake) = wide(10);
    driver.ctx_set_current(driver.device_primary_ctx_retain(DEVICE).unwrap()).unwrap();
    (driver, fake)
}

/// Two green contexts with four multiprocessors each.
fn two(driver: &Driver) -> [GreenContext; 2] {
    let all = sms(driver.device_get_dev_resource(DEVICE, SM));
    let (groups, rest) = driver.dev_sm_resource_split_by_count(&all, Some(2), 0, 4).unwrap();
    assert_eq!(rest.map(|rest| rest.count), Some(2));
    let green = |number: usize| {
        let desc = driver.dev_resource_generate_desc(&[DevResource::Sm(groups[number])]).unwrap();
        driver.green_ctx_create(desc, DEVICE, 1).unwrap()
    };
    [green(0), green(1)]
}

/// Work of the program's that lasts until what is returned is dropped.
fn held(driver: &Driver, stream: Stream) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel();
    driver.launch_host_func(stream, Box::new(move || held.recv().unwrap_or_default())).unwrap();
    release
}

/// Calls `f`, which must not return before `work` is done.
fn waits_for(work: mpsc::Sender<()>, f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(f);
        for _ in 0..1000 {
            assert!(!waiting.is_finished(), "work goes on");
            std::thread::yield_now();
        }
        drop(work);
    });
}

#[test]
fn resources_are_told_and_divided() {
    let (driver, _) = driver();
    let all = sms(driver.device_get_dev_resource(DEVICE, SM));
    assert_eq!((all.count, all.unit, all.part), (10, 2, None));
    assert_eq!(driver.device_get_dev_resource(Device(1), SM), Err(CudaError::INVALID_DEVICE));
    assert_eq!(driver.device_get_dev_resource(DEVICE, 0), Err(CudaError::INVALID_RESOURCE_TYPE));
    assert_eq!(sms(driver.ctx_get_dev_resource(Context::NULL, SM)), all);
    assert_eq!(sms(driver.stream_get_dev_resource(Stream::NULL, SM)), all);
    assert_eq!(driver.stream_get_dev_resource(Stream::NULL, WORKQUEUE_CONFIG), Err(CudaError::INVALID_RESOURCE_TYPE));

    let mut groups = [SmGroup { count: 4, ..SmGroup::default() }, SmGroup::default()];
    let (made, rest) = driver.dev_sm_resource_split(&all, &mut groups, 0, true).unwrap();
    assert_eq!((made[0].count, made[1].count, groups[1].count, rest), (4, 6, 6, None));
    let again = driver.dev_sm_resource_split_by_count(&made[0], None, 0, 2);
    assert_eq!(again, Err(CudaError::INVALID_RESOURCE_CONFIGURATION), "a green context comes first");

    let desc = driver.dev_resource_generate_desc(&[DevResource::Sm(made[1])]).unwrap();
    assert_eq!(driver.green_ctx_create(desc, DEVICE, 2), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.green_ctx_create(cuda_core::ResourceDesc(1), DEVICE, 0), Err(CudaError::INVALID_VALUE));
    let green = driver.green_ctx_create(desc, DEVICE, 0).unwrap();
    let own = sms(driver.green_ctx_get_dev_resource(green, SM));
    assert_eq!((own.count, own.part), (6, None));
    assert_eq!(driver.dev_sm_resource_split_by_count(&own, None, 0, 2).unwrap().0.len(), 3);
    let queue = |context| driver.ctx_get_dev_resource(context, WORKQUEUE).unwrap();
    let context = driver.ctx_from_green_ctx(green).unwrap();
    assert_ne!(queue(context), queue(Context::NULL));
    assert_ne!(driver.device_get_dev_resource(DEVICE, WORKQUEUE), Ok(queue(context)));
    // One that has the work queues of another.
    let desc = driver.dev_resource_generate_desc(&[DevResource::Sm(own), queue(context)]).unwrap();
    let other = driver.green_ctx_create(desc, DEVICE, 0).unwrap();
    assert_eq!(driver.green_ctx_get_dev_resource(other, WORKQUEUE), Ok(queue(context)));
}

#[test]
fn it_is_a_part_of_the_primary_context() {
    let (driver, fake) = wide(10);
    let all = fake.free();
    let [green, other] = two(&driver);
    let active = || driver.device_primary_ctx_get_state(DEVICE).unwrap().active;
    assert!(active(), "it retains the primary context");
    let context = driver.ctx_from_green_ctx(green).unwrap();
    assert_eq!(driver.ctx_from_green_ctx(green), Ok(context));
    assert_ne!(Ok(context), driver.device_primary_ctx_handle(DEVICE));
    assert_eq!(driver.ctx_get_current(), Ok(Context::NULL), "nothing is current yet");
    driver.ctx_set_current(context).unwrap();
    assert_eq!(driver.ctx_get_current(), Ok(context));
    assert_eq!(driver.ctx_get_device(), Ok(DEVICE));
    assert_eq!(sms(driver.ctx_get_dev_resource(context, SM)).count, 4);
    assert_eq!(driver.ctx_get_exec_affinity(0), Ok(4));
    assert_eq!(driver.green_ctx_get_id(GreenContext::NULL), driver.green_ctx_get_id(green));
    assert_eq!(driver.ctx_get_id(context), driver.green_ctx_get_id(green));
    assert_ne!(driver.green_ctx_get_id(green), driver.green_ctx_get_id(other));
    assert_eq!(driver.ctx_destroy(context), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(driver.ctx_push_current(Context(green.0)), Err(CudaError::INVALID_CONTEXT), "only what stands for it");
    assert!(driver.is_green(context) && !driver.is_green(driver.device_primary_ctx_handle(DEVICE).unwrap()));
    // The runtime names it so.
    assert_eq!(driver.ctx_from_green_ctx(GreenContext(context.0)), Ok(context));
    let primary = GreenContext(driver.device_primary_ctx_handle(DEVICE).unwrap().0);
    assert_eq!(driver.green_ctx_destroy(primary), Err(CudaError::INVALID_CONTEXT));

    // What is made there is the primary context's.
    let memory = driver.mem_alloc(64).unwrap();
    driver.memset(memory, 1, 1, 64, Stream::NULL).unwrap();
    driver.green_ctx_destroy(green).unwrap();
    assert!(ENDED.lock().contains(&context));
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(driver.green_ctx_destroy(green), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(driver.ctx_from_green_ctx(green), Err(CudaError::INVALID_CONTEXT));
    assert_eq!(driver.ctx_set_current(context), Err(CudaError::INVALID_CONTEXT));
    driver.ctx_set_current(driver.ctx_from_green_ctx(other).unwrap()).unwrap();
    driver.mem_free(memory).unwrap();
    assert!(active());
    let other = GreenContext(driver.ctx_from_green_ctx(other).unwrap().0);
    driver.green_ctx_destroy(other).unwrap();
    assert!(!active());
    assert_eq!(fake.free(), all, "it gives everything back");
}

#[test]
fn its_streams_are_of_no_use_without_it() {
    let (driver, _) = driver();
    let primary = driver.ctx_get_current().unwrap();
    let [green, _] = two(&driver);
    let context = driver.ctx_from_green_ctx(green).unwrap();
    assert_eq!(driver.green_ctx_stream_create(green, 0, 0), Err(CudaError::INVALID_VALUE));
    let stream = driver.green_ctx_stream_create(green, NON_BLOCKING, -2).unwrap();
    assert_eq!(driver.stream_get_priority(stream), Ok(-2));
    assert_eq!(driver.stream_get_ctx(stream), Ok(context));
    assert_eq!(driver.stream_get_contexts(stream), Ok((primary, green)));
    assert_eq!(driver.stream_get_green_ctx(stream), Ok(green));
    assert_eq!(sms(driver.stream_get_dev_resource(stream, SM)).count, 4);
    assert_eq!(driver.stream_get_green_ctx(Stream::NULL), Ok(GreenContext::NULL));
    let event = driver.event_create(0).unwrap();
    driver.event_record(event, stream).unwrap();
    let memory = driver.mem_alloc(4).unwrap();

    driver.ctx_push_current(context).unwrap();
    assert_eq!(driver.stream_get_green_ctx(Stream::NULL), Ok(green));
    assert_eq!(driver.stream_get_contexts(Stream::LEGACY), Ok((primary, green)));
    assert_eq!(driver.stream_get_contexts(Stream::PER_THREAD), Err(CudaError::INVALID_HANDLE));
    let made_there = driver.stream_create(0).unwrap();
    assert_eq!(driver.stream_get_green_ctx(made_there), Ok(green));
    assert_eq!(driver.ctx_pop_current(), Ok(context));

    driver.stream_begin_capture(stream, 0).unwrap();
    // A capture may go on in a stream of the primary context.
    let joined = driver.stream_create(NON_BLOCKING).unwrap();
    driver.stream_begin_capture(joined, 2).unwrap();
    let marker = driver.event_create(0).unwrap();
    driver.event_record(marker, joined).unwrap();
    driver.stream_wait_event(made_there, marker, 0).unwrap();
    driver.green_ctx_destroy(green).unwrap();
    assert_eq!(driver.stream_end_capture(joined), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    for stream in [stream, made_there] {
        assert_eq!(driver.stream_synchronize(stream), Err(CudaError::STREAM_DETACHED));
        assert_eq!(driver.stream_get_priority(stream), Err(CudaError::STREAM_DETACHED));
        assert_eq!(driver.memset_async(memory, 1, 4, 1, stream), Err(CudaError::STREAM_DETACHED));
        assert_eq!(driver.event_record(event, stream), Err(CudaError::STREAM_DETACHED));
        assert_eq!(driver.stream_destroy(stream), Ok(()));
    }
    driver.event_synchronize(event).unwrap();
    driver.ctx_synchronize().unwrap();
}

#[test]
fn its_order_is_its_own() {
    let (driver, _) = driver();
    let primary = driver.ctx_get_current().unwrap();
    let [green, other] = two(&driver);
    let context = driver.ctx_from_green_ctx(green).unwrap();
    let theirs = driver.ctx_from_green_ctx(other).unwrap();
    let event = driver.event_create(0).unwrap();

    // Default streams do not wait for each other's, nor does a green context for what it is a part of.
    let work = held(&driver, Stream::NULL);
    driver.ctx_push_current(context).unwrap();
    driver.ctx_synchronize().unwrap();
    driver.stream_synchronize(Stream::NULL).unwrap();
    driver.green_ctx_record_event(green, event).unwrap();
    driver.event_synchronize(event).unwrap();
    // Memory may be anybody's.
    let memory = driver.mem_alloc(4).unwrap();
    waits_for(work, || {
        driver.ctx_set_current(context).unwrap();
        driver.mem_free(memory).unwrap();
    });

    // The primary context stands for its parts, and none of those for another.
    let stream = driver.green_ctx_stream_create(green, NON_BLOCKING, 0).unwrap();
    let work = held(&driver, stream);
    driver.green_ctx_record_event(green, event).unwrap();
    assert_eq!(driver.event_query(event), Err(CudaError::NOT_READY));
    driver.green_ctx_record_event(other, event).unwrap();
    driver.event_synchronize(event).unwrap();
    driver.ctx_synchronize_of(theirs).unwrap();
    driver.ctx_record_event(primary, event).unwrap();
    assert_eq!(driver.event_query(event), Err(CudaError::NOT_READY));
    waits_for(work, || driver.ctx_synchronize_of(primary).unwrap());

    // What waits for an event is all of a green context, or all of the primary one's.
    let work = held(&driver, stream);
    driver.green_ctx_record_event(green, event).unwrap();
    let waiting = driver.green_ctx_stream_create(other, NON_BLOCKING, 0).unwrap();
    driver.green_ctx_wait_event(other, event).unwrap();
    let memory = driver.mem_alloc(4).unwrap();
    driver.memset_async(memory, 1, 4, 1, waiting).unwrap();
    assert_eq!(driver.stream_query(waiting), Err(CudaError::NOT_READY));
    waits_for(work, || driver.stream_synchronize(waiting).unwrap());
    let work = held(&driver, stream);
    driver.green_ctx_record_event(green, event).unwrap();
    driver.ctx_wait_event(primary, event).unwrap();
    driver.memset_async(memory, 1, 4, 1, waiting).unwrap();
    assert_eq!(driver.stream_query(waiting), Err(CudaError::NOT_READY));
    // It ends after its work.
    waits_for(work, || driver.green_ctx_destroy(green).unwrap());
    driver.ctx_synchronize_of(primary).unwrap();
    assert_eq!(driver.green_ctx_wait_event(green, event), Err(CudaError::INVALID_CONTEXT));
}

#[test]
fn captures_of_its_streams_forbid_what_they_would_of_any() {
    let (driver, _) = driver();
    let primary = driver.ctx_get_current().unwrap();
    let [green, other] = two(&driver);
    let event = driver.event_create(0).unwrap();
    let stream = driver.green_ctx_stream_create(green, NON_BLOCKING, 0).unwrap();
    let ended = |driver: &Driver| driver.stream_end_capture(stream).map(drop);
    let forbids = |call: &dyn Fn() -> cuda_core::Result<()>| {
        driver.stream_begin_capture(stream, 2).unwrap();
        let said = call();
        (said, ended(&driver))
    };
    let yes = (Err(CudaError::STREAM_CAPTURE_UNSUPPORTED), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(forbids(&|| driver.green_ctx_record_event(green, event)), yes);
    assert_eq!(forbids(&|| driver.green_ctx_wait_event(green, event)), yes);
    assert_eq!(forbids(&|| driver.ctx_synchronize_of(primary)), yes);
    assert_eq!(forbids(&|| driver.green_ctx_record_event(other, event)), (Ok(()), Ok(())));
    // A default stream depends on the blocking streams of its own context.
    driver.ctx_set_current(driver.ctx_from_green_ctx(green).unwrap()).unwrap();
    let blocking = driver.stream_create(0).unwrap();
    driver.stream_begin_capture(blocking, 2).unwrap();
    assert_eq!(driver.stream_synchronize(Stream::NULL), Err(CudaError::STREAM_CAPTURE_IMPLICIT));
    assert_eq!(driver.stream_end_capture(blocking), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    driver.stream_begin_capture(blocking, 2).unwrap();
    driver.ctx_set_current(primary).unwrap();
    driver.stream_synchronize(Stream::NULL).unwrap();
    driver.stream_end_capture(blocking).map(drop).unwrap();
}

#[test]
fn work_is_sized_by_its_multiprocessors() {
    let (driver, fake) = driver();
    let [green, _] = two(&driver);
    let code: &[u8] = b".version 8.0 .entry nothing()";
    let module = driver.module_load_data(&code, &mut JitLog::default()).unwrap();
    let function = driver.module_get_function(module, "nothing").unwrap();
    let grid = || driver.occupancy_max_potential_block_size(function, &|_| 0, 0, 0).unwrap().0;
    let of_all = grid();
    let stream = driver.green_ctx_stream_create(green, NON_BLOCKING, 0).unwrap();
    let each = driver.occupancy_max_active_blocks_per_multiprocessor(function, 32, 0, 0).unwrap() as u32;
    let launch = |blocks: u32, stream| {
        let mut config = LaunchConfig::new([blocks, 1, 1], [32, 1, 1], 0, stream);
        config.cooperative = true;
        driver.launch_kernel(function, &config, Params::Each(&mut |_, _| true))
    };
    assert_eq!(launch(4 * each, stream), Ok(()));
    assert_eq!(launch(4 * each + 1, stream), Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE));
    assert_eq!(launch(10 * each, Stream::NULL), Ok(()));
    assert_eq!(fake.launched().len(), 2);
    driver.ctx_set_current(driver.ctx_from_green_ctx(green).unwrap()).unwrap();
    assert_eq!(grid() * 10, of_all * 4);
}

#[test]
fn the_primary_context_takes_it_along() {
    let (driver, fake) = wide(10);
    let all = fake.free();
    let [green, other] = two(&driver);
    let stream = driver.green_ctx_stream_create(green, NON_BLOCKING, 0).unwrap();
    driver.ctx_set_current(driver.ctx_from_green_ctx(green).unwrap()).unwrap();
    let memory = driver.mem_alloc(4).unwrap();
    driver.memset_async(memory, 1, 4, 1, stream).unwrap();
    driver.device_primary_ctx_reset(DEVICE).unwrap();
    assert_eq!(fake.free(), all);
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(driver.green_ctx_get_id(green), Err(CudaError::CONTEXT_IS_DESTROYED));
    assert_eq!(driver.stream_synchronize(stream), Err(CudaError::INVALID_HANDLE));
    driver.green_ctx_destroy(green).unwrap();
    driver.green_ctx_destroy(other).unwrap();
    assert_eq!(driver.device_primary_ctx_release(DEVICE), Err(CudaError::INVALID_CONTEXT), "nobody retains it");
}

/// A texture of 16 floats.
fn texture(driver: &Driver, at: DevAddr) -> cuda_core::Result<u64> {
    let floats = Resource::Linear { at, format: CUarray_format::CU_AD_FORMAT_FLOAT, channels: 1, bytes: 64 };
    driver.tex_object_create(&floats, &plain(), None)
}

#[test]
fn what_it_makes_lies_where_the_primary_contexts_does() {
    let (driver, fake) = driver();
    let memory = driver.mem_alloc(64).unwrap();
    let turn = || {
        let [green, other] = two(&driver);
        let before = driver.ctx_get_current().unwrap();
        driver.ctx_set_current(driver.ctx_from_green_ctx(green).unwrap()).unwrap();
        let made = texture(&driver, memory).unwrap();
        driver.tex_object_destroy(made).unwrap();
        driver.ctx_set_current(before).unwrap();
        [green, other].into_iter().for_each(|green| driver.green_ctx_destroy(green).unwrap());
    };
    turn();
    let left = fake.free();
    (0..100).for_each(|_| turn());
    assert_eq!(fake.free(), left);
}

#[test]
fn memory_that_another_part_gives_back_is_waited_for() {
    let (driver, fake) = driver();
    let [green, _other] = two(&driver);
    let here = driver.stream_create(1).unwrap();
    let there = driver.green_ctx_stream_create(green, NON_BLOCKING, 0).unwrap();
    let pool = driver.device_get_default_mem_pool(DEVICE).unwrap();
    let most = fake.free() / 10 * 6 / (2 << 20) * (2 << 20);
    let first = driver.mem_alloc_from_pool_async(most, pool, here).unwrap();
    let work = held(&driver, here);
    driver.mem_free_async(first, here).unwrap();
    let primary = driver.ctx_get_current().unwrap();
    waits_for(work, || {
        driver.ctx_set_current(primary).unwrap();
        let second = driver.mem_alloc_from_pool_async(most, pool, there).unwrap();
        driver.mem_free_async(second, there).unwrap();
    });
    driver.ctx_synchronize().unwrap();
}

#[test]
fn what_is_made_in_one_that_goes_takes_nothing_else_along() {
    let (driver, _) = driver();
    let memory = driver.mem_alloc(64).unwrap();
    let kept = texture(&driver, memory).unwrap();
    let reference = driver.tex_ref_create().unwrap();
    for _ in 0..100 {
        let [green, other] = two(&driver);
        let current = driver.ctx_from_green_ctx(green).unwrap();
        std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                if driver.ctx_set_current(current).is_err() {
                    return;
                }
                while let Ok(made) = texture(&driver, memory)
                    && driver.tex_ref_create().is_ok_and(|made| driver.tex_ref_destroy(made).is_ok())
                    && driver.stream_create(NON_BLOCKING).is_ok_and(|made| driver.stream_destroy(made).is_ok())
                {
                    if driver.tex_object_destroy(made).is_err() {
                        break;
                    }
                }
            });
            std::thread::yield_now();
            driver.green_ctx_destroy(green).unwrap();
            making.join().unwrap();
        });
        driver.green_ctx_destroy(other).unwrap();
        assert!(driver.tex_object_get_resource(kept).is_ok() && driver.tex_ref_get(reference).is_ok());
    }
}
