//! Graphs and captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{FakeGpu, Host, driver};
use cuda_core::{
    Context, Copy3D, CopyEnd, CopyMemory, CudaError, Driver, Fill, Function, Graph, GraphNode, HostCall, JitLog,
    LaunchConfig, NodeInfo, NodeParams, Params, Stream,
};
use gpu::DevAddr;
use parking_lot::Mutex;

pub(crate) fn word(driver: &Driver, at: DevAddr) -> u32 {
    let host = Host::new(4);
    driver.ctx_synchronize().unwrap();
    driver.memcpy_dtoh(host.range(0, 4), at, Stream::NULL).unwrap();
    u32::from_le_bytes(host.bytes(0, 4).try_into().unwrap())
}

pub(crate) fn call(function: impl Fn() + Send + Sync + 'static) -> HostCall {
    HostCall { call: Arc::new(function), function: 1, data: 2 }
}

pub(crate) fn fill_of(at: DevAddr, value: u32) -> NodeParams<'static> {
    let fill = Fill { dst: at, pitch: 0, value, element: 4, width: 1, height: 1 };
    NodeParams::Fill { fill, context: Context::NULL }
}

pub(crate) fn copy_of(dst: DevAddr, src: DevAddr) -> NodeParams<'static> {
    let end = |at| CopyEnd { memory: CopyMemory::Device(at), x: 0, y: 0, z: 0, pitch: 4, height: 1 };
    let copy = Copy3D { src: end(src), dst: end(dst), width: 4, height: 1, depth: 1 };
    NodeParams::Copy { copy, context: Context::NULL }
}

/// The fake's kernel that fills words.
pub(crate) fn filler(driver: &Driver) -> Function {
    let module = driver.module_load_data(&&b".version 8 .entry fill()"[..], &mut JitLog::default()).unwrap();
    driver.module_get_function(module, "fill").unwrap()
}

/// Calls `f` with the parameters of a launch that fills one word.
pub(crate) fn with_fill<R>(at: DevAddr, value: u32, f: impl FnOnce(Params<'_>) -> R) -> R {
    let params = [at.0.to_le_bytes().to_vec(), value.to_le_bytes().to_vec(), 1u32.to_le_bytes().to_vec()];
    f(Params::Each(&mut |index, out| {
        out.copy_from_slice(&params[index]);
        true
    }))
}

pub(crate) fn shape(stream: Stream) -> LaunchConfig {
    LaunchConfig::new([1; 3], [1; 3], 0, stream)
}

pub(crate) fn kernel_node(
    driver: &Driver,
    graph: Graph,
    before: &[GraphNode],
    function: Function,
    at: DevAddr,
    value: u32,
) -> GraphNode {
    let before: Vec<_> = before.iter().map(|node| (*node, [0; 8])).collect();
    let (config, context) = (shape(Stream::NULL), Context::NULL);
    let add = |params: Params<'_>| {
        driver.graph_add_node(graph, &before, NodeParams::Kernel { function, config, params, context })
    };
    with_fill(at, value, add).unwrap()
}

pub(crate) fn words(driver: &Driver) -> [DevAddr; 3] {
    let words = [0; 3].map(|_| {
        let at = driver.mem_alloc(4).unwrap();
        driver.memset(at, 0, 4, 1, Stream::NULL).unwrap();
        at
    });
    // Streams that do not wait for the legacy one find them so.
    driver.ctx_synchronize().unwrap();
    words
}

pub(crate) fn launched(fake: &FakeGpu) -> usize {
    fake.launched().len()
}

#[test]
fn a_graph_does_what_it_says_in_order_as_often_as_it_is_launched() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, c] = words(&driver);
    let graph = driver.graph_create(0).unwrap();
    let copy = driver.graph_add_node(graph, &[], copy_of(b, a)).unwrap();
    // The copy was made first, and comes last.
    let kernel = kernel_node(&driver, graph, &[], function, a, 7);
    driver.graph_add_dependencies(graph, &[(kernel, copy, [0; 8])]).unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let host = NodeParams::Host(call(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    let host = driver.graph_add_node(graph, &[(copy, [0; 8])], host).unwrap();
    driver.graph_add_node(graph, &[(host, [0; 8])], fill_of(c, 9)).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_eq!((word(&driver, b), count.load(Ordering::SeqCst), launched(&fake)), (0, 0, 0));
    let stream = driver.stream_create(1).unwrap();
    for round in 1..=3 {
        driver.memset_async(c, 0, 4, 1, stream).unwrap();
        driver.graph_launch(exec, stream).unwrap();
        assert_eq!([a, b, c].map(|at| word(&driver, at)), [7, 7, 9]);
        assert_eq!((count.load(Ordering::SeqCst), launched(&fake)), (round, 1));
    }
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(driver.graph_launch(exec, stream), Err(CudaError::INVALID_VALUE));
}

#[test]
fn what_a_graph_is_can_be_asked() {
    let (driver, _) = driver();
    let [a, b, _] = words(&driver);
    let graph = driver.graph_create(0).unwrap();
    let first = driver.graph_add_node(graph, &[], fill_of(a, 1)).unwrap();
    let second = driver.graph_add_node(graph, &[], NodeParams::Empty).unwrap();
    let third = driver.graph_add_node(graph, &[(first, [0; 8])], copy_of(b, a)).unwrap();
    driver.graph_add_dependencies(graph, &[(second, third, [0; 8])]).unwrap();
    let again = driver.graph_add_dependencies(graph, &[(second, third, [0; 8])]);
    assert_eq!(again, Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.graph_get_nodes(graph), Ok(vec![first, second, third]));
    assert_eq!(driver.graph_get_root_nodes(graph), Ok(vec![first, second]));
    assert_eq!(driver.graph_get_edges(graph), Ok(vec![(first, third, [0; 8]), (second, third, [0; 8])]));
    assert_eq!(driver.graph_node_get_dependencies(third), Ok(vec![(first, [0; 8]), (second, [0; 8])]));
    assert_eq!(driver.graph_node_get_dependent_nodes(first), Ok(vec![(third, [0; 8])]));
    assert_eq!([first, second, third].map(|node| driver.graph_node_get_type(node).unwrap()), [2, 5, 1]);
    let clone = driver.graph_clone(graph).unwrap();
    let cloned = driver.graph_node_find_in_clone(third, clone).unwrap();
    assert_eq!(driver.graph_node_get_place(cloned), Ok((clone, 2)));
    driver.graph_destroy_node(first).unwrap();
    assert_eq!(driver.graph_node_get_dependencies(third), Ok(vec![(second, [0; 8])]));
    assert_eq!(driver.graph_node_get_dependencies(cloned).unwrap().len(), 2, "a clone is its own");
    assert!(driver.graph_debug_dot(clone).unwrap().contains("MEMSET"));
    // A circle cannot be instantiated, and the answer names a node of it.
    driver.graph_add_dependencies(graph, &[(third, second, [0; 8])]).unwrap();
    let (error, outcome) = driver.graph_instantiate(graph, 0).unwrap_err();
    assert_eq!((error, outcome.result), (CudaError::INVALID_VALUE, 2));
    assert!([second, third].contains(&outcome.error_node));
    driver.graph_remove_dependencies(graph, &[(third, second, [0; 8])]).unwrap();
    driver.graph_instantiate(graph, 0).unwrap();
    assert_eq!(driver.graph_instantiate(graph, 4).unwrap_err().0, CudaError::NOT_SUPPORTED);
    assert_eq!(driver.graph_instantiate(graph, 16).unwrap_err().0, CudaError::INVALID_VALUE);
}

#[test]
fn nodes_of_executable_graphs_are_changed_one_by_one_or_all() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, _] = words(&driver);
    let make = |value| {
        let graph = driver.graph_create(0).unwrap();
        let kernel = kernel_node(&driver, graph, &[], function, a, value);
        let fill = driver.graph_add_node(graph, &[(kernel, [0; 8])], fill_of(b, value)).unwrap();
        (graph, kernel, fill)
    };
    let (graph, kernel, fill) = make(1);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let run = || {
        driver.graph_launch(exec, Stream::NULL).unwrap();
        [word(&driver, a), word(&driver, b)]
    };
    assert_eq!(run(), [1, 1]);
    let (config, context) = (shape(Stream::NULL), Context::NULL);
    let set = |params: Params<'_>| {
        driver.graph_exec_node_set_params(exec, kernel, NodeParams::Kernel { function, config, params, context })
    };
    with_fill(a, 5, set).unwrap();
    assert_eq!(driver.graph_exec_node_set_params(exec, kernel, fill_of(b, 1)), Err(CudaError::INVALID_VALUE));
    assert_eq!(run(), [5, 1]);
    // What attributes say stays, whatever else changes.
    let mut cooperative = [0; 64];
    cooperative[0] = 1;
    driver.graph_kernel_node_set_attribute(kernel, 2, &cooperative).unwrap();
    assert_eq!(driver.graph_kernel_node_get_attribute(kernel, 2), Ok(cooperative));
    let exec_of_both = driver.graph_instantiate(graph, 0).unwrap();
    let set = |params: Params<'_>| {
        driver.graph_exec_node_set_params(
            exec_of_both,
            kernel,
            NodeParams::Kernel { function, config, params, context },
        )
    };
    with_fill(a, 5, set).unwrap();
    fake.launched();
    driver.graph_launch(exec_of_both, Stream::NULL).unwrap();
    assert_eq!(fake.launched().iter().map(|launch| launch.cooperative).collect::<Vec<_>>(), [true]);
    let (other, ..) = make(8);
    driver.graph_exec_update(exec, other).unwrap();
    assert_eq!(run(), [8, 8]);
    fake.launched();
    driver.graph_node_set_enabled(exec, kernel, false).unwrap();
    assert_eq!(driver.graph_node_get_enabled(exec, kernel), Ok(false));
    driver.graph_exec_node_set_params(exec, fill, fill_of(b, 3)).unwrap();
    assert_eq!((run(), launched(&fake)), ([8, 3], 0));
    // Another shape, and other kinds, are no update; nothing has changed then.
    let surplus = driver.graph_add_node(other, &[], NodeParams::Empty).unwrap();
    let (error, outcome) = driver.graph_exec_update(exec, other).unwrap_err();
    assert_eq!((error, outcome.result, outcome.error_node), (CudaError::GRAPH_EXEC_UPDATE_FAILURE, 2, surplus));
    driver.graph_destroy_node(surplus).unwrap();
    let edge = (driver.graph_get_edges(other).unwrap())[0];
    driver.graph_remove_dependencies(other, &[edge]).unwrap();
    assert_eq!(driver.graph_exec_update(exec, other).unwrap_err().1.result, 2);
    assert_eq!(run(), [8, 3]);
    // The graph itself is changed apart from what was made of it.
    driver.graph_node_set_params(fill, fill_of(b, 6)).unwrap();
    let NodeInfo::Fill { fill, .. } = driver.graph_node_get_params(fill).unwrap() else { panic!("a fill") };
    assert_eq!((fill.value, run()), (6, [8, 3]));
}

#[test]
fn a_captured_stream_forks_and_joins() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, c] = words(&driver);
    let (one, two) = (driver.stream_create(0).unwrap(), driver.stream_create(1).unwrap());
    let (forked, joined) = (driver.event_create(2).unwrap(), driver.event_create(0).unwrap());
    driver.stream_begin_capture(one, 2).unwrap();
    assert_eq!(driver.stream_begin_capture(one, 2), Err(CudaError::ILLEGAL_STATE));
    with_fill(a, 4, |params| driver.launch_kernel(function, &shape(one), params)).unwrap();
    driver.event_record(forked, one).unwrap();
    driver.stream_wait_event(two, forked, 0).unwrap();
    assert_eq!([one, two].map(|stream| driver.stream_get_capture_info(stream).unwrap().status), [1, 1]);
    driver.memset_async(b, 5, 4, 1, two).unwrap();
    driver.event_record(joined, two).unwrap();
    driver.memset_async(c, 6, 4, 1, one).unwrap();
    driver.stream_wait_event(one, joined, 0).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    assert_eq!(driver.capture_host_func(one, || call(move || note.lock().push(1))), Ok(true));
    assert_eq!(driver.event_query(joined), Err(CudaError::CAPTURED_EVENT));
    let graph = driver.stream_end_capture(one).unwrap();
    assert_eq!([one, two].map(|stream| driver.stream_get_capture_info(stream).unwrap().status), [0, 0]);
    let nodes = driver.graph_get_nodes(graph).unwrap();
    assert_eq!(nodes.iter().map(|node| driver.graph_node_get_type(*node).unwrap()).collect::<Vec<_>>(), [0, 2, 2, 3]);
    let edges: Vec<_> = driver.graph_get_edges(graph).unwrap().iter().map(|edge| (edge.0, edge.1)).collect();
    let [kernel, left, right, host] = nodes[..] else { panic!("{nodes:?}") };
    assert_eq!(edges, [(kernel, left), (kernel, right), (left, host), (right, host)]);
    assert_eq!((word(&driver, a), launched(&fake)), (0, 0), "nothing of it was done");
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, two).unwrap();
    assert_eq!([a, b, c].map(|at| word(&driver, at)), [4, 5, 6]);
    assert_eq!(*seen.lock(), [1]);
    // A launch that is captured is a graph in a node.
    driver.stream_begin_capture(one, 2).unwrap();
    driver.graph_launch(exec, one).unwrap();
    let outer = driver.stream_end_capture(one).unwrap();
    let inner = driver.graph_get_nodes(outer).unwrap();
    let NodeInfo::Graph(child) = driver.graph_node_get_params(inner[0]).unwrap() else { panic!("a graph") };
    assert_eq!(driver.graph_get_nodes(child).unwrap().len(), 4);
    assert_eq!(driver.graph_destroy(child), Err(CudaError::INVALID_VALUE));
    let exec = driver.graph_instantiate(outer, 0).unwrap();
    driver.graph_launch(exec, one).unwrap();
    driver.ctx_synchronize().unwrap();
    assert_eq!((launched(&fake), seen.lock().len()), (2, 2));
}

/// Ends a capture that is no good any more, and begins another.
fn again(driver: &Driver, stream: Stream) {
    assert_eq!(driver.stream_get_capture_info(stream).unwrap().status, 2);
    assert_eq!(driver.memset_async(DevAddr(0), 0, 4, 0, stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(driver.stream_end_capture(stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(driver.stream_get_capture_info(stream).unwrap().status, 0);
    driver.stream_begin_capture(stream, 0).unwrap();
}

#[test]
fn what_cannot_be_captured_invalidates_the_capture() {
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let (one, two) = (driver.stream_create(0).unwrap(), driver.stream_create(1).unwrap());
    let event = driver.event_create(2).unwrap();
    assert_eq!(driver.stream_end_capture(one), Err(CudaError::ILLEGAL_STATE));
    assert_eq!(driver.stream_begin_capture(Stream::LEGACY, 0), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(driver.stream_begin_capture(one, 3), Err(CudaError::INVALID_VALUE));
    driver.stream_begin_capture(one, 0).unwrap();
    assert_eq!(driver.stream_synchronize(one), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    again(&driver, one);
    assert_eq!(driver.mem_alloc(4), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    again(&driver, one);
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::STREAM_CAPTURE_UNSUPPORTED));
    again(&driver, one);
    assert_eq!(driver.memset_async(a, 1, 4, 1, Stream::LEGACY), Err(CudaError::STREAM_CAPTURE_IMPLICIT));
    again(&driver, one);
    // Work outside of it.
    driver.memset_async(a, 1, 4, 1, two).unwrap();
    driver.event_record(event, two).unwrap();
    assert_eq!(driver.stream_wait_event(one, event, 0), Err(CudaError::STREAM_CAPTURE_ISOLATION));
    again(&driver, one);
    // Another capture.
    driver.stream_begin_capture(two, 0).unwrap();
    driver.event_record(event, two).unwrap();
    assert_eq!(driver.stream_wait_event(one, event, 0), Err(CudaError::STREAM_CAPTURE_MERGE));
    assert_eq!(driver.stream_end_capture(two), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    again(&driver, one);
    // Work that nobody waits for.
    driver.memset_async(a, 1, 4, 1, one).unwrap();
    driver.event_record(event, one).unwrap();
    driver.stream_wait_event(two, event, 0).unwrap();
    driver.memset_async(a, 1, 4, 1, two).unwrap();
    assert_eq!(driver.stream_end_capture(one), Err(CudaError::STREAM_CAPTURE_UNJOINED));
    // Ended where it did not begin.
    driver.stream_begin_capture(one, 0).unwrap();
    driver.event_record(event, one).unwrap();
    driver.stream_wait_event(two, event, 0).unwrap();
    assert_eq!(driver.stream_end_capture(two), Err(CudaError::STREAM_CAPTURE_UNMATCHED));
    again(&driver, one);
    // From a thread that may not.
    let context = driver.ctx_get_current().unwrap();
    let elsewhere = |driver: &Driver| {
        driver.ctx_set_current(context).unwrap();
        (driver.mem_alloc(4).is_ok(), driver.stream_end_capture(one).map(drop))
    };
    let other = std::thread::scope(|scope| scope.spawn(|| elsewhere(&driver)).join().unwrap());
    assert_eq!(other, (false, Err(CudaError::STREAM_CAPTURE_WRONG_THREAD)));
    assert_eq!(driver.stream_end_capture(one), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    // A capture of a thread's own leaves others alone, and a relaxed one everybody.
    driver.stream_begin_capture(one, 1).unwrap();
    let other = std::thread::scope(|scope| scope.spawn(|| elsewhere(&driver)).join().unwrap());
    assert_eq!(other, (true, Err(CudaError::STREAM_CAPTURE_WRONG_THREAD)));
    driver.stream_end_capture(one).unwrap();
    driver.stream_begin_capture(one, 2).unwrap();
    driver.mem_alloc(4).unwrap();
    let other = std::thread::scope(|scope| scope.spawn(|| elsewhere(&driver)).join().unwrap());
    assert_eq!(other, (true, Ok(())));
    // A stream that goes takes its capture with it.
    driver.stream_begin_capture(one, 0).unwrap();
    driver.stream_destroy(one).unwrap();
    driver.mem_alloc(4).unwrap();
}

#[test]
fn launches_of_one_graph_follow_each_other_in_whichever_streams() {
    let (driver, _) = driver();
    let (one, two) = (driver.stream_create(1).unwrap(), driver.stream_create(1).unwrap());
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let running = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let seen = Arc::clone(&running);
    let graph = driver.graph_create(0).unwrap();
    let work = move || {
        // How many were under way at once, at most.
        let now = seen.0.fetch_add(1, Ordering::SeqCst) + 1;
        seen.1.fetch_max(now, Ordering::SeqCst);
        let _ = held.try_lock_for(Duration::from_secs(20)).map(|held| held.recv_timeout(Duration::from_secs(20)));
        seen.0.fetch_sub(1, Ordering::SeqCst);
    };
    driver.graph_add_node(graph, &[], NodeParams::Host(call(work))).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, one).unwrap();
    driver.graph_launch(exec, two).unwrap();
    assert_eq!(driver.stream_query(two), Err(CudaError::NOT_READY));
    // Destroyed while it runs: what was launched goes on.
    driver.graph_destroy(graph).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    release.send(()).unwrap();
    driver.stream_synchronize(one).unwrap();
    release.send(()).unwrap();
    driver.stream_synchronize(two).unwrap();
    assert_eq!(running.1.load(Ordering::SeqCst), 1);
}

#[test]
fn events_and_graphs_in_nodes() {
    let (driver, _) = driver();
    let [a, b, _] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    let event = driver.event_create(0).unwrap();
    let inner = driver.graph_create(0).unwrap();
    let fill = driver.graph_add_node(inner, &[], fill_of(a, 3)).unwrap();
    driver.graph_add_node(inner, &[(fill, [0; 8])], NodeParams::RecordEvent(event)).unwrap();
    let outer = driver.graph_create(0).unwrap();
    let child = driver.graph_add_node(outer, &[], NodeParams::Graph { graph: inner, moved: false }).unwrap();
    let wait = driver.graph_add_node(outer, &[(child, [0; 8])], NodeParams::WaitEvent(event)).unwrap();
    driver.graph_add_node(outer, &[(wait, [0; 8])], copy_of(b, a)).unwrap();
    let exec = driver.graph_instantiate(outer, 0).unwrap();
    assert_eq!(driver.event_elapsed_time(event, event), Err(CudaError::INVALID_HANDLE));
    driver.graph_launch(exec, stream).unwrap();
    driver.event_synchronize(event).unwrap();
    assert_eq!(driver.event_elapsed_time(event, event), Ok(0.0));
    assert_eq!([a, b].map(|at| word(&driver, at)), [3, 3]);
    // A graph that is moved into a node stays itself, and cannot be moved into what is in it.
    let (moved, around) = (driver.graph_create(0).unwrap(), driver.graph_create(0).unwrap());
    let node = driver.graph_add_node(around, &[], NodeParams::Graph { graph: moved, moved: true }).unwrap();
    assert!(matches!(driver.graph_node_get_params(node), Ok(NodeInfo::Graph(graph)) if graph == moved));
    let circle = driver.graph_add_node(moved, &[], NodeParams::Graph { graph: around, moved: true });
    assert_eq!(circle, Err(CudaError::INVALID_VALUE));
    // The node has a copy of its own, which is replaced as a whole.
    driver.graph_node_set_params(fill, fill_of(a, 4)).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    assert_eq!(word(&driver, b), 3);
    driver.graph_exec_node_set_params(exec, child, NodeParams::Graph { graph: inner, moved: false }).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    assert_eq!(word(&driver, b), 4);
}

#[test]
fn what_graphs_refer_to_goes_with_the_last_of_them() {
    let (driver, _) = driver();
    let gone = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&gone);
    let destroy = call(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(driver.user_object_create(destroy.clone(), 0, 1).map(drop), Err(CudaError::INVALID_VALUE));
    let object = driver.user_object_create(destroy, 2, 1).unwrap();
    let graph = driver.graph_create(0).unwrap();
    driver.graph_retain_user_object(graph, object, 1, 1).unwrap();
    driver.user_object_release(object, 1).unwrap();
    assert_eq!(driver.user_object_release(object, 1), Err(CudaError::INVALID_VALUE));
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(gone.load(Ordering::SeqCst), 1);
    assert_eq!(driver.user_object_retain(object, 1), Err(CudaError::INVALID_VALUE));
}
