//! Captures: who ends them, what they are spared, and what they keep.

use std::sync::Barrier;

use crate::graphs::words;
use crate::support::driver;
use cuda_core::{Context, CudaError, Device, Driver, NodeParams, Stream};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL` and `…_RELAXED`.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

fn status(driver: &Driver, stream: Stream) -> u32 {
    driver.stream_get_capture_info(stream).unwrap().status
}

#[test]
fn a_capture_goes_with_the_thread_whose_default_stream_it_is_of() {
    let (driver, _) = driver();
    let context = driver.ctx_get_current().unwrap();
    let elsewhere = |work: &(dyn Fn() + Sync)| {
        let run = || {
            driver.ctx_set_current(context).unwrap();
            work();
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    };
    elsewhere(&|| driver.stream_begin_capture(Stream::PER_THREAD, GLOBAL).unwrap());
    driver.mem_alloc(4).unwrap();
    driver.ctx_synchronize().unwrap();
    // Where it only took part, the others are told.
    let (stream, event) = (driver.stream_create(1).unwrap(), driver.event_create(2).unwrap());
    driver.stream_begin_capture(stream, RELAXED).unwrap();
    driver.event_record(event, stream).unwrap();
    elsewhere(&|| driver.stream_wait_event(Stream::PER_THREAD, event, 0).unwrap());
    assert_eq!(status(&driver, stream), 2);
    assert_eq!(driver.stream_end_capture(stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
}

#[test]
fn a_capture_goes_with_the_context_whose_stream_it_began_in() {
    let (driver, _) = driver();
    driver.stream_begin_capture(Stream::PER_THREAD, GLOBAL).unwrap();
    let graph = driver.stream_get_capture_info(Stream::PER_THREAD).unwrap().graph;
    driver.device_primary_ctx_reset(Device(0)).unwrap();
    let context = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    driver.mem_alloc(4).unwrap();
    driver.ctx_synchronize().unwrap();
    assert_eq!(status(&driver, Stream::PER_THREAD), 0);
    assert_eq!(driver.graph_get_nodes(graph), Err(CudaError::INVALID_VALUE));
    // One of another context, in which one of its streams took part, is invalid, and whoever began it ends it.
    let (stream, event) = (driver.stream_create(1).unwrap(), driver.event_create(2).unwrap());
    driver.stream_begin_capture(stream, GLOBAL).unwrap();
    driver.event_record(event, stream).unwrap();
    let other = driver.ctx_create(0, Device(0)).unwrap();
    driver.stream_wait_event(Stream::PER_THREAD, event, 0).unwrap();
    driver.ctx_destroy(other).unwrap();
    assert_eq!(status(&driver, stream), 2);
    assert_eq!(driver.stream_end_capture(stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    driver.mem_alloc(4).unwrap();
}

#[test]
fn a_stream_that_was_joined_may_be_destroyed_before_the_capture_ends() {
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let (stream, event) = (driver.stream_create(1).unwrap(), driver.event_create(2).unwrap());
    let forked = || {
        let other = driver.stream_create(1).unwrap();
        driver.event_record(event, stream).unwrap();
        driver.stream_wait_event(other, event, 0).unwrap();
        driver.memset_async(a, 1, 4, 1, other).unwrap();
        other
    };
    driver.stream_begin_capture(stream, GLOBAL).unwrap();
    let other = forked();
    driver.event_record(event, other).unwrap();
    driver.stream_wait_event(stream, event, 0).unwrap();
    driver.stream_destroy(other).unwrap();
    driver.memset_async(a, 2, 4, 1, stream).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    assert_eq!(driver.graph_get_nodes(graph).unwrap().len(), 2);
    // What was not joined is missed when it ends.
    driver.stream_begin_capture(stream, GLOBAL).unwrap();
    driver.stream_destroy(forked()).unwrap();
    assert_eq!(status(&driver, stream), 1);
    assert_eq!(driver.stream_end_capture(stream), Err(CudaError::STREAM_CAPTURE_UNJOINED));
    driver.ctx_synchronize().unwrap();
}

#[test]
fn work_of_the_legacy_stream_leaves_captures_of_non_blocking_ones_alone() {
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let (blocking, other) = (driver.stream_create(0).unwrap(), driver.stream_create(1).unwrap());
    driver.stream_begin_capture(blocking, RELAXED).unwrap();
    driver.stream_begin_capture(other, RELAXED).unwrap();
    assert_eq!(driver.memset_async(a, 1, 4, 1, Stream::LEGACY), Err(CudaError::STREAM_CAPTURE_IMPLICIT));
    assert_eq!([blocking, other].map(|stream| status(&driver, stream)), [2, 1]);
    assert_eq!(driver.stream_end_capture(blocking), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    driver.memset_async(a, 1, 4, 1, Stream::LEGACY).unwrap();
    driver.stream_end_capture(other).unwrap();
}

#[test]
fn what_concerns_a_whole_context_asks_for_its_captures() {
    let (driver, _) = driver();
    let (stream, context) = (driver.stream_create(1).unwrap(), driver.ctx_get_current().unwrap());
    let [event, captured] = [0; 2].map(|_| driver.event_create(2).unwrap());
    let other = driver.ctx_create(0, Device(0)).unwrap();
    let refused = Err(CudaError::STREAM_CAPTURE_UNSUPPORTED);
    let capture = |call: &dyn Fn() -> cuda_core::Result<()>| {
        driver.stream_begin_capture(stream, RELAXED).unwrap();
        driver.event_record(captured, stream).unwrap();
        let answer = call();
        let ended = driver.stream_end_capture(stream).map(drop);
        assert_eq!(ended.is_err(), answer.is_err(), "{answer:?}");
        answer
    };
    assert_eq!(capture(&|| driver.ctx_synchronize_of(context)), refused);
    assert_eq!(capture(&|| driver.ctx_record_event(context, event)), refused);
    assert_eq!(capture(&|| driver.ctx_wait_event(context, event)), refused);
    // Another context, unless it is to wait for the captured one.
    assert_eq!(capture(&|| driver.ctx_synchronize_of(other)), Ok(()));
    assert_eq!(capture(&|| driver.ctx_synchronize_of(Context::NULL)), Ok(()));
    assert_eq!(capture(&|| driver.ctx_wait_event(other, event)), Ok(()));
    assert_eq!(capture(&|| driver.ctx_wait_event(other, captured)), refused);
    assert_eq!(driver.ctx_wait_event(other, captured), Err(CudaError::CAPTURED_EVENT));
}

#[test]
fn a_dependency_of_two_kinds_is_a_plain_one() {
    const PLAIN: [u8; 8] = [0; 8];
    const PROGRAMMATIC: [u8; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture(stream, RELAXED).unwrap();
    let add = || {
        driver.memset_async(a, 1, 4, 1, stream).unwrap();
        let graph = driver.stream_get_capture_info(stream).unwrap().graph;
        driver.graph_get_nodes(graph).unwrap().pop().unwrap()
    };
    let told = || driver.stream_get_capture_info(stream).map(|info| (info.before.1, info.plain)).unwrap();
    let update = |node, data, replace| driver.stream_update_capture_dependencies(stream, &[(node, data)], replace);
    let first = add();
    assert_eq!(told(), (1, true));
    update(first, PROGRAMMATIC, true).unwrap();
    assert_eq!(told(), (1, false));
    let second = add();
    assert_eq!(driver.graph_node_get_dependencies(second), Ok(vec![(first, PROGRAMMATIC)]));
    for data in [PROGRAMMATIC, PLAIN, PROGRAMMATIC] {
        update(first, data, false).unwrap();
    }
    assert_eq!(told(), (2, true));
    let third = add();
    assert_eq!(driver.graph_node_get_dependencies(third), Ok(vec![(second, PLAIN), (first, PLAIN)]));
    driver.stream_end_capture(stream).unwrap();
}

#[test]
fn threads_that_have_one_stream_wait_for_two_events_of_a_capture_both_do() {
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let context = driver.ctx_get_current().unwrap();
    let [origin, side, joined] = [1; 3].map(|flags| driver.stream_create(flags).unwrap());
    let [first, second, last] = [2; 3].map(|flags| driver.event_create(flags).unwrap());
    // While it is copied, those who wait for the graphs' lock gather.
    let large = driver.graph_create(0).unwrap();
    for _ in 0..2000 {
        driver.graph_add_node(large, &[], NodeParams::Empty).unwrap();
    }
    for _ in 0..20 {
        driver.stream_begin_capture(origin, RELAXED).unwrap();
        driver.memset_async(a, 1, 4, 1, origin).unwrap();
        driver.event_record(first, origin).unwrap();
        driver.stream_wait_event(side, first, 0).unwrap();
        driver.memset_async(a, 2, 4, 1, side).unwrap();
        driver.event_record(second, side).unwrap();
        let ready = Barrier::new(3);
        let wait = |event| {
            driver.ctx_set_current(context).unwrap();
            ready.wait();
            driver.stream_wait_event(joined, event, 0).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| wait(first));
            scope.spawn(|| wait(second));
            ready.wait();
            let clone = driver.graph_clone(large).unwrap();
            driver.graph_destroy(clone).unwrap();
        });
        driver.memset_async(a, 3, 4, 1, joined).unwrap();
        driver.event_record(last, joined).unwrap();
        driver.stream_wait_event(origin, last, 0).unwrap();
        let graph = driver.stream_end_capture(origin).unwrap();
        let nodes = driver.graph_get_nodes(graph).unwrap();
        let mut before: Vec<_> =
            driver.graph_node_get_dependencies(nodes[2]).unwrap().iter().map(|edge| edge.0).collect();
        before.sort();
        assert_eq!(before, nodes[..2]);
        driver.graph_destroy(graph).unwrap();
    }
}
