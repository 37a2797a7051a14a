//! Executable graphs: what they keep alive, what they are refused, and what follows a launch that failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::graphs::{call, copy_of, fill_of, filler, kernel_node, shape, with_fill, word, words};
use crate::support::{Submitted, driver, several};
use cuda_core::{
    Context, Copy3D, CopyEnd, CopyMemory, CudaError, Device, Driver, Graph, GraphExec, GraphNode, LaunchConfig,
    NodeInfo, NodeParams, Params, Stream,
};
use gpu::{DevAddr, GpuError};
use parking_lot::Mutex;

const PLAIN: [u8; 8] = [0; 8];

/// Counts the ends of objects of the program's.
#[derive(Clone, Default)]
struct Ends(Arc<AtomicU32>);

impl Ends {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Gives a graph the only reference to a new object.
    fn object_of(&self, driver: &Driver, graph: Graph) {
        let ends = self.clone();
        let destroy = call(move || {
            ends.0.fetch_add(1, Ordering::SeqCst);
        });
        let object = driver.user_object_create(destroy, 1, 1).unwrap();
        driver.graph_retain_user_object(graph, object, 1, 1).unwrap();
    }
}

/// A graph with one node and an object.
fn one_node(driver: &Driver, ends: &Ends, node: NodeParams<'_>) -> (Graph, GraphNode) {
    let graph = driver.graph_create(0).unwrap();
    let node = driver.graph_add_node(graph, &[], node).unwrap();
    ends.object_of(driver, graph);
    (graph, node)
}

/// A function that waits until it is released, once.
fn gate() -> (mpsc::Sender<()>, impl Fn() + Send + Sync + 'static) {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let wait = move || {
        let _ = held.lock().recv_timeout(Duration::from_secs(20));
    };
    (release, wait)
}

#[test]
fn what_graphs_in_nodes_refer_to_lives_as_long_as_the_executable_graph() {
    let (driver, _) = driver();
    let [outer, middle, inner] = [(); 3].map(|()| Ends::default());
    let (innermost, _) = one_node(&driver, &inner, NodeParams::Empty);
    let (between, _) = one_node(&driver, &middle, NodeParams::Graph { graph: innermost, moved: true });
    let (around, _) = one_node(&driver, &outer, NodeParams::Graph { graph: between, moved: false });
    let exec = driver.graph_instantiate(around, 0).unwrap();
    driver.graph_destroy(around).unwrap();
    driver.graph_destroy(between).unwrap();
    let ended = || [&outer, &middle, &inner].map(Ends::count);
    assert_eq!(ended(), [0, 0, 0]);
    driver.graph_launch(exec, Stream::NULL).unwrap();
    driver.ctx_synchronize().unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(ended(), [1, 1, 1]);
}

#[test]
fn an_update_takes_over_what_a_graph_refers_to() {
    let (driver, _) = driver();
    let [old, new, inner, replaced] = [(); 4].map(|()| Ends::default());
    let ended = || [&old, &new, &inner, &replaced].map(Ends::count);
    let nested = |around: &Ends, within: &Ends| {
        let (child, _) = one_node(&driver, within, NodeParams::Empty);
        one_node(&driver, around, NodeParams::Graph { graph: child, moved: true })
    };
    let (graph, node) = nested(&old, &inner);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    // That of the graph in the node only.
    let (child, _) = one_node(&driver, &replaced, NodeParams::Empty);
    driver.graph_exec_node_set_params(exec, node, NodeParams::Graph { graph: child, moved: false }).unwrap();
    driver.graph_destroy(child).unwrap();
    assert_eq!(ended(), [0, 0, 1, 0]);
    // All.
    let last = Ends::default();
    let (graph, _) = nested(&new, &last);
    driver.graph_exec_update(exec, graph).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_eq!((ended(), last.count()), ([1, 0, 1, 1], 0));
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!((ended(), last.count()), ([1, 1, 1, 1], 1));
}

#[test]
fn what_an_update_replaces_goes_when_the_last_launch_is_over() {
    let (driver, _) = driver();
    let [old, new] = [(); 2].map(|()| Ends::default());
    let (release, wait) = gate();
    let (graph, _) = one_node(&driver, &old, NodeParams::Host(call(wait)));
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    let stream = driver.stream_create(1).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    let (graph, _) = one_node(&driver, &new, NodeParams::Host(call(|| ())));
    driver.graph_exec_update(exec, graph).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_eq!([old.count(), new.count()], [0, 0]);
    release.send(()).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!([old.count(), new.count()], [1, 0]);
}

#[test]
fn a_captured_launch_keeps_what_the_executable_graph_refers_to() {
    let (driver, _) = driver();
    let [outer, inner] = [(); 2].map(|()| Ends::default());
    let ended = || [&outer, &inner].map(Ends::count);
    let (child, _) = one_node(&driver, &inner, NodeParams::Empty);
    let (graph, _) = one_node(&driver, &outer, NodeParams::Graph { graph: child, moved: true });
    let launched = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture(stream, 2).unwrap();
    driver.graph_launch(launched, stream).unwrap();
    driver.graph_exec_destroy(launched).unwrap();
    assert_eq!(ended(), [0, 0]);
    // What cannot be added keeps nothing.
    let other = Ends::default();
    let (graph, _) = one_node(&driver, &other, NodeParams::Empty);
    let refused = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    let captured = driver.stream_get_capture_info(stream).unwrap().graph;
    let gone = driver.graph_add_node(captured, &[], NodeParams::Empty).unwrap();
    driver.stream_update_capture_dependencies(stream, &[(gone, PLAIN)], false).unwrap();
    driver.graph_destroy_node(gone).unwrap();
    assert_eq!(driver.graph_launch(refused, stream), Err(CudaError::INVALID_VALUE));
    driver.graph_exec_destroy(refused).unwrap();
    assert_eq!(other.count(), 1);
    let kept: Vec<_> = driver.graph_get_nodes(captured).unwrap().iter().map(|node| (*node, PLAIN)).collect();
    driver.stream_update_capture_dependencies(stream, &kept, true).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_eq!(ended(), [0, 0]);
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(ended(), [1, 1]);
}

/// An executable graph of one kernel that fills a word.
fn of_kernel(driver: &Driver, at: DevAddr) -> (GraphExec, GraphNode) {
    let graph = driver.graph_create(0).unwrap();
    let node = kernel_node(driver, graph, &[], filler(driver), at, 1);
    (driver.graph_instantiate(graph, 0).unwrap(), node)
}

#[test]
fn behind_a_launch_that_failed_the_next_one_waits_for_the_one_before() {
    let (driver, fake) = driver();
    let [a, ..] = words(&driver);
    let (exec, _) = of_kernel(&driver, a);
    let [one, two, three] = [1; 3].map(|flags| driver.stream_create(flags).unwrap());
    let (release, wait) = gate();
    driver.launch_host_func(one, Box::new(wait)).unwrap();
    driver.graph_launch(exec, one).unwrap();
    fake.refuse_launch(GpuError::OutOfMemory { wanted: 1, free: 0, limit: 0 });
    assert_eq!(driver.graph_launch(exec, two), Err(CudaError::OUT_OF_MEMORY));
    fake.submitted();
    driver.graph_launch(exec, three).unwrap();
    let queue = driver.stream_get_id(three).unwrap();
    let its: Vec<_> = fake.submitted().into_iter().filter(|(of, _)| u64::from(of.0) == queue).collect();
    let [(_, first), (_, second), ..] = its[..] else { panic!("{its:?}") };
    assert!(matches!((first, second), (Submitted::Wait(..), Submitted::Launch)), "{its:?}");
    assert_eq!(driver.stream_query(three), Err(CudaError::NOT_READY));
    release.send(()).unwrap();
    driver.ctx_synchronize().unwrap();
}

#[test]
fn a_graph_that_records_an_event_of_another_gpu_is_refused_before_anything_is_done() {
    let (driver, _) = several(&[256 << 20, 64 << 20]);
    let contexts = [0, 1].map(|device| driver.device_primary_ctx_retain(Device(device)).unwrap());
    driver.ctx_set_current(contexts[1]).unwrap();
    let (away, there) = (driver.event_create(0).unwrap(), driver.stream_create(1).unwrap());
    driver.ctx_set_current(contexts[0]).unwrap();
    let (own, here) = (driver.event_create(0).unwrap(), driver.stream_create(1).unwrap());
    let [a, ..] = words(&driver);
    let make = |event| {
        let graph = driver.graph_create(0).unwrap();
        let fill = driver.graph_add_node(graph, &[], fill_of(a, 1)).unwrap();
        let record = driver.graph_add_node(graph, &[(fill, PLAIN)], NodeParams::RecordEvent(event)).unwrap();
        (graph, record)
    };
    let (graph, record) = make(away);
    let (error, outcome) = driver.graph_instantiate(graph, 0).unwrap_err();
    assert_eq!((error, outcome.result, outcome.error_node), (CudaError::NOT_SUPPORTED, 4, record));
    let (with_own, record) = make(own);
    let exec = driver.graph_instantiate(with_own, 0).unwrap();
    let set = driver.graph_exec_node_set_params(exec, record, NodeParams::RecordEvent(away));
    assert_eq!(set, Err(CudaError::NOT_SUPPORTED));
    assert_eq!(driver.graph_exec_update(exec, graph).unwrap_err().1.result, 5);
    driver.graph_launch(exec, here).unwrap();
    assert_eq!(word(&driver, a), 1);
    // Where the work is no context's, the stream's GPU decides, before anything is done.
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let host = NodeParams::Host(call(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    let graph = driver.graph_create(0).unwrap();
    let host = driver.graph_add_node(graph, &[], host).unwrap();
    driver.graph_add_node(graph, &[(host, PLAIN)], NodeParams::RecordEvent(away)).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    assert_eq!(driver.graph_launch(exec, here), Err(CudaError::INVALID_HANDLE));
    driver.stream_synchronize(here).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 0);
    driver.graph_launch(exec, there).unwrap();
    driver.stream_synchronize(there).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

/// Gives a kernel node another grid.
fn with_grid<R>(driver: &Driver, at: DevAddr, blocks: u32, set: impl FnOnce(NodeParams<'_>) -> R) -> R {
    let (function, context) = (filler(driver), Context::NULL);
    let config = LaunchConfig { grid: [blocks, 1, 1], ..shape(Stream::NULL) };
    let call = |params: Params<'_>| set(NodeParams::Kernel { function, config, params, context });
    with_fill(at, 1, call)
}

#[test]
fn cooperative_nodes_must_fit_the_gpu_whichever_way_they_became_so() {
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let make = |blocks| {
        let graph = driver.graph_create(0).unwrap();
        let node = with_grid(&driver, a, blocks, |kernel| driver.graph_add_node(graph, &[], kernel)).unwrap();
        let mut yes = [0; 64];
        yes[0] = 1;
        driver.graph_kernel_node_set_attribute(node, 2, &yes).unwrap();
        (graph, node)
    };
    let (large, node) = make(5000);
    let (error, outcome) = driver.graph_instantiate(large, 0).unwrap_err();
    assert_eq!((error, outcome.result, outcome.error_node), (CudaError::COOPERATIVE_LAUNCH_TOO_LARGE, 1, node));
    let (small, node) = make(2);
    let exec = driver.graph_instantiate(small, 0).unwrap();
    let set = with_grid(&driver, a, 5000, |kernel| driver.graph_exec_node_set_params(exec, node, kernel));
    assert_eq!(set, Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE));
    assert_eq!(driver.graph_exec_update(exec, large).unwrap_err().1.result, 5);
    with_grid(&driver, a, 5000, |kernel| driver.graph_node_set_params(node, kernel)).unwrap();
    assert_eq!(driver.graph_instantiate(small, 0).unwrap_err().0, CudaError::COOPERATIVE_LAUNCH_TOO_LARGE);
    driver.graph_launch(exec, Stream::NULL).unwrap();
    assert_eq!(word(&driver, a), 1);
}

#[test]
fn what_was_told_of_parameters_stays_until_they_change() {
    let (driver, _) = driver();
    let [a, ..] = words(&driver);
    let graph = driver.graph_create(0).unwrap();
    let [node, other] = [1, 2].map(|value| kernel_node(&driver, graph, &[], filler(&driver), a, value));
    let told = || match driver.graph_node_get_params(node).unwrap() {
        NodeInfo::Kernel { params, .. } => params,
        _ => panic!("a kernel"),
    };
    let before = told();
    let mut value = [0; 64];
    value[0] = 3;
    driver.graph_kernel_node_set_attribute(node, 8, &value).unwrap();
    assert_eq!(told(), before);
    driver.graph_kernel_node_set_attribute(node, 2, &value).unwrap();
    assert_eq!(told(), before);
    driver.graph_kernel_node_copy_attributes(node, other).unwrap();
    assert_eq!(told(), before);
    assert_eq!([2, 8].map(|which| driver.graph_kernel_node_get_attribute(node, which).unwrap()[0]), [0, 0]);
    with_grid(&driver, a, 1, |kernel| driver.graph_node_set_params(node, kernel)).unwrap();
    assert_ne!(told(), before);
}

#[test]
fn copies_of_nothing_are_captured_as_they_are_done() {
    let (driver, _) = driver();
    let [a, b, _] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    let nowhere = CopyEnd { memory: CopyMemory::Device(DevAddr(0)), x: 0, y: 0, z: 0, pitch: 0, height: 1 };
    let copy_of_nothing = || Ok::<_, CudaError>(Copy3D { src: nowhere, dst: nowhere, width: 0, height: 1, depth: 1 });
    driver.memcpy_dtod_async(DevAddr(0), DevAddr(0), 0, stream).unwrap();
    assert_eq!(driver.capture_copy(stream, copy_of_nothing), Ok(false));
    driver.memset_async(a, 6, 4, 1, stream).unwrap();
    driver.stream_begin_capture(stream, 2).unwrap();
    assert_eq!(driver.capture_copy(stream, copy_of_nothing), Ok(true));
    let NodeParams::Copy { copy, .. } = copy_of(b, a) else { panic!("a copy") };
    assert_eq!(driver.capture_copy(stream, || Ok::<_, CudaError>(copy)), Ok(true));
    let graph = driver.stream_end_capture(stream).unwrap();
    driver.graph_launch(driver.graph_instantiate(graph, 0).unwrap(), stream).unwrap();
    assert_eq!(word(&driver, b), 6);
}
