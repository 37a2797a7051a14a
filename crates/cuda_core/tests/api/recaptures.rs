//! Graphs that are captured once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::graphs::{call, copy_of, fill_of, filler, shape, with_fill, word, words};
use crate::support::driver;
use cuda_core::{Approve, CudaError, Driver, Function, Graph, GraphNode, NodeInfo, NodeParams, Recaptured, Stream};
use gpu::DevAddr;
use parking_lot::Mutex;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
const FAILURE: Result<(), CudaError> = Err(CudaError::GRAPH_RECAPTURE_FAILURE);

/// What was asked about: the node, its kind, whether executable graphs take the change.
type Asked = Arc<Mutex<Vec<(GraphNode, u32, bool)>>>;

/// Agrees to everything, and keeps it.
fn agreeing() -> (Asked, Option<Approve>) {
    let asked = Asked::default();
    let keeps = Arc::clone(&asked);
    let approve: Approve = Arc::new(move |of: &Recaptured<'_>| {
        keeps.lock().push((of.node, of.kind, of.eligible));
        true
    });
    (asked, Some(approve))
}

fn fill_by_kernel(
    driver: &Driver,
    function: Function,
    at: DevAddr,
    value: u32,
    stream: Stream,
) -> Result<(), CudaError> {
    with_fill(at, value, |params| driver.launch_kernel(function, &shape(stream), params))
}

/// Copies a word, in a stream that is being captured.
fn copy(driver: &Driver, dst: DevAddr, src: DevAddr, stream: Stream) -> Result<(), CudaError> {
    let NodeParams::Copy { copy, .. } = copy_of(dst, src) else { panic!("no copy") };
    driver.capture_copy(stream, || Ok::<_, CudaError>(copy)).map(|captured| assert!(captured))
}

/// What a stream is given to fill three words: by a kernel, by a fill beside it, and by a copy behind both.
fn given(driver: &Driver, function: Function, [a, b, c]: [DevAddr; 3], values: [u32; 2], stream: Stream) {
    let side = driver.stream_create(1).unwrap();
    let [fork, join] = [0; 2].map(|_| driver.event_create(2).unwrap());
    driver.event_record(fork, stream).unwrap();
    driver.stream_wait_event(side, fork, 0).unwrap();
    fill_by_kernel(driver, function, a, values[0], stream).unwrap();
    driver.memset_async(b, values[1], 4, 1, side).unwrap();
    driver.event_record(join, side).unwrap();
    driver.stream_wait_event(stream, join, 0).unwrap();
    copy(driver, c, a, stream).unwrap();
}

#[test]
fn nodes_take_over_what_comes_in_their_places() {
    let (driver, _) = driver();
    let function = filler(&driver);
    let at = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture(stream, RELAXED).unwrap();
    given(&driver, function, at, [1, 2], stream);
    let graph = driver.stream_end_capture(stream).unwrap();
    let nodes = driver.graph_get_nodes(graph).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let seen = |exec| {
        driver.graph_launch(exec, stream).unwrap();
        driver.stream_synchronize(stream).unwrap();
        at.map(|at| word(&driver, at))
    };
    assert_eq!(seen(exec), [1, 2, 1]);
    // The same once more: nobody is asked.
    let (asked, approve) = agreeing();
    driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, approve.clone()).unwrap();
    given(&driver, function, at, [1, 2], stream);
    assert_eq!(driver.stream_end_capture(stream), Ok(graph));
    assert_eq!(*asked.lock(), []);
    // Another value each, from another stream; the graph's edges and nodes stay.
    let edges = driver.graph_get_edges(graph).unwrap();
    let other = driver.stream_create(1).unwrap();
    driver.stream_begin_recapture_to_graph(other, graph, RELAXED, approve).unwrap();
    given(&driver, function, at, [3, 4], other);
    assert_eq!(driver.stream_end_capture(other), Ok(graph));
    assert_eq!(*asked.lock(), [(nodes[0], 0, true), (nodes[1], 2, true)]);
    assert_eq!((driver.graph_get_nodes(graph).unwrap(), driver.graph_get_edges(graph).unwrap()), (nodes, edges));
    assert_eq!(seen(exec), [1, 2, 1]);
    driver.graph_exec_update(exec, graph).unwrap();
    assert_eq!(seen(exec), [3, 4, 3]);
    // Without anybody to ask.
    driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, None).unwrap();
    given(&driver, function, at, [5, 6], stream);
    assert_eq!(driver.stream_end_capture(stream), Ok(graph));
    driver.graph_exec_update(exec, graph).unwrap();
    assert_eq!(seen(exec), [5, 6, 5]);
}

#[test]
fn who_is_asked_sees_both_and_may_end_it() {
    let (driver, _) = driver();
    let driver = Arc::new(driver);
    let [a, b, _] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture(stream, RELAXED).unwrap();
    driver.memset_async(a, 1, 4, 1, stream).unwrap();
    driver.memset_async(b, 2, 4, 1, stream).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    let (own, seen) = (Arc::clone(&driver), Arc::new(Mutex::new(Vec::new())));
    let keeps = Arc::clone(&seen);
    let approve: Approve = Arc::new(move |of: &Recaptured<'_>| {
        let NodeInfo::Fill { fill: before, .. } = of.before else { return false };
        let NodeInfo::Fill { fill: now, .. } = of.now else { return false };
        // The graph says of the node what it did; nothing is locked meanwhile.
        let NodeInfo::Fill { fill: told, .. } = own.graph_node_get_params(of.node).unwrap() else { return false };
        keeps.lock().push((before.value, now.value, told.value));
        now.value < 10
    });
    driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, Some(approve)).unwrap();
    driver.memset_async(a, 3, 4, 1, stream).unwrap();
    assert_eq!(driver.memset_async(b, 10, 4, 1, stream), FAILURE);
    assert_eq!(*seen.lock(), [(1, 3, 1), (2, 10, 2)]);
    assert_eq!(driver.stream_get_capture_info(stream).unwrap().status, 2);
    assert_eq!(driver.memset_async(b, 2, 4, 1, stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(driver.stream_end_capture(stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    // The graph is there to be destroyed.
    driver.graph_destroy(graph).unwrap();
}

#[test]
fn another_shape_is_a_failure() {
    let (driver, _) = driver();
    let [a, b, _] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    let fill = |at, stream| driver.memset_async(at, 1, 4, 1, stream);
    let graph = || {
        driver.stream_begin_capture(stream, RELAXED).unwrap();
        fill(a, stream).unwrap();
        fill(b, stream).unwrap();
        driver.stream_end_capture(stream).unwrap()
    };
    let again = |graph| driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, None).unwrap();
    let invalid = || assert_eq!(driver.stream_end_capture(stream), Err(CudaError::STREAM_CAPTURE_INVALIDATED));
    // Another kind.
    again(graph());
    fill(a, stream).unwrap();
    assert_eq!(copy(&driver, b, a, stream), FAILURE);
    invalid();
    // One more.
    again(graph());
    fill(a, stream).unwrap();
    fill(b, stream).unwrap();
    assert_eq!(fill(a, stream), FAILURE);
    invalid();
    // One less.
    again(graph());
    fill(a, stream).unwrap();
    assert_eq!(driver.stream_end_capture(stream).map(drop), FAILURE);
    // Another order: both at once.
    again(graph());
    let (side, event) = (driver.stream_create(1).unwrap(), driver.event_create(2).unwrap());
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(side, event, 0).unwrap();
    fill(a, stream).unwrap();
    assert_eq!(fill(b, side), FAILURE);
    invalid();
    // No graph; and a stream that is being captured.
    let none = driver.stream_begin_recapture_to_graph(stream, Graph::NULL, RELAXED, None);
    assert_eq!(none, Err(CudaError::INVALID_VALUE));
    let graph = graph();
    again(graph);
    let twice = driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, None);
    assert_eq!(twice, Err(CudaError::ILLEGAL_STATE));
}

#[test]
fn memory_stays_where_it_is() {
    let (driver, _) = driver();
    let stream = driver.stream_create(1).unwrap();
    let once = |bytes, value| {
        let at = driver.mem_alloc_async(bytes, stream)?;
        driver.memset_async(at, value, 4, 1, stream)?;
        driver.mem_free_async(at, stream)?;
        Ok(at)
    };
    driver.stream_begin_capture(stream, RELAXED).unwrap();
    let at = once(1000, 1).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    let (asked, approve) = agreeing();
    driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, approve).unwrap();
    assert_eq!(once(1000, 2), Ok(at));
    driver.stream_end_capture(stream).unwrap();
    assert_eq!(asked.lock().len(), 1);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    driver.stream_synchronize(stream).unwrap();
    // More of it, or other memory freed.
    driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, None).unwrap();
    assert_eq!(once(2000, 2), Err(CudaError::GRAPH_RECAPTURE_FAILURE));
    driver.stream_end_capture(stream).unwrap_err();
}

/// The program may do anything with a graph that is to become a node's, while it is asked.
#[test]
fn a_graph_that_is_another_s_by_then_does_not_become_a_node_s() {
    let (driver, _) = driver();
    let driver = Arc::new(driver);
    let [a, ..] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    let exec = |value| {
        let graph = driver.graph_create(0).unwrap();
        driver.graph_add_node(graph, &[], fill_of(a, value)).unwrap();
        driver.graph_instantiate(graph, 0).unwrap()
    };
    let moves = |graph, into| {
        let moved = NodeParams::Graph { graph, moved: true };
        driver.graph_add_node(into, &[], moved).map(drop)
    };
    let third = driver.graph_create(0).unwrap();
    for (around, agrees) in [(true, true), (false, true), (false, false)] {
        driver.stream_begin_capture(stream, RELAXED).unwrap();
        driver.graph_launch(exec(1), stream).unwrap();
        let graph = driver.stream_end_capture(stream).unwrap();
        let (own, child) = (Arc::clone(&driver), Arc::new(Mutex::new(Graph::NULL)));
        let keeps = Arc::clone(&child);
        let approve: Approve = Arc::new(move |of: &Recaptured<'_>| {
            let NodeInfo::Graph(now) = of.now else { return false };
            *keeps.lock() = *now;
            let (moved, into) = if around { (graph, *now) } else { (*now, third) };
            own.graph_add_node(into, &[], NodeParams::Graph { graph: moved, moved: true }).unwrap();
            agrees
        });
        driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, Some(approve)).unwrap();
        assert_eq!(driver.graph_launch(exec(2), stream), FAILURE);
        driver.stream_end_capture(stream).unwrap_err();
        // It is there, where it was put.
        let child = *child.lock();
        if around {
            assert_eq!(
                driver.graph_get_nodes(child),
                Err(CudaError::INVALID_VALUE),
                "it went, with what was put into it"
            );
        } else {
            assert_eq!(driver.graph_get_nodes(child).unwrap().len(), 1);
            assert_eq!(moves(child, graph), Err(CudaError::INVALID_VALUE));
            driver.graph_destroy(graph).unwrap();
        }
    }
    driver.graph_destroy(third).unwrap();
}

#[test]
fn graphs_in_nodes_are_compared_node_by_node() {
    let (driver, _) = driver();
    let [a, b, _] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    let ended = Arc::new(AtomicU32::new(0));
    let exec = |fills: &[(DevAddr, u32)]| {
        let graph = driver.graph_create(0).unwrap();
        let mut before = Vec::new();
        for &(at, value) in fills {
            let node = driver.graph_add_node(graph, &before, fill_of(at, value)).unwrap();
            before = vec![(node, [0; 8])];
        }
        driver.graph_instantiate(graph, 0).unwrap()
    };
    driver.stream_begin_capture(stream, RELAXED).unwrap();
    driver.graph_launch(exec(&[(a, 1), (b, 2)]), stream).unwrap();
    let graph = driver.stream_end_capture(stream).unwrap();
    let counted = Arc::clone(&ended);
    let destroy = call(move || _ = counted.fetch_add(1, Ordering::SeqCst));
    let object = driver.user_object_create(destroy, 1, 1).unwrap();
    driver.graph_retain_user_object(graph, object, 1, 1).unwrap();
    let node = driver.graph_get_nodes(graph).unwrap()[0];
    let (asked, approve) = agreeing();
    let again = |fills: &[(DevAddr, u32)]| {
        driver.stream_begin_recapture_to_graph(stream, graph, RELAXED, approve.clone()).unwrap();
        driver.graph_launch(exec(fills), stream).unwrap();
        driver.stream_end_capture(stream).unwrap();
    };
    again(&[(a, 1), (b, 2)]);
    assert_eq!(*asked.lock(), []);
    // What of the program's was the graph's is let go before.
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    again(&[(a, 1), (b, 5)]);
    again(&[(a, 3)]);
    assert_eq!(*asked.lock(), [(node, 4, true), (node, 4, false)]);
    let NodeInfo::Graph(child) = driver.graph_node_get_params(node).unwrap() else { panic!("no graph") };
    assert_eq!(driver.graph_get_nodes(child).unwrap().len(), 1);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!([a, b].map(|at| word(&driver, at)), [3, 0]);
    // It is the node's, and nobody else's.
    assert_eq!(driver.graph_destroy(child), Err(CudaError::INVALID_VALUE));
    assert_eq!(
        driver.graph_add_node(graph, &[], NodeParams::Graph { graph: child, moved: true }).map(drop),
        Err(CudaError::INVALID_VALUE)
    );
    driver.graph_destroy(graph).unwrap();
}
