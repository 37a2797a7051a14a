//! Memory that graphs allocate: where it is, how long it is there, and what it forbids.

use std::sync::mpsc;
use std::time::Duration;

use crate::graphs::{call, copy_of, fill_of, word, words};
use crate::support::{bare, driver};
use cuda_core::{
    AccessFlags, CudaError, Device, Driver, Graph, GraphExec, GraphNode, Location, MemoryProps, NodeInfo, NodeParams,
    Result, Stream,
};
use gpu::DevAddr;
use parking_lot::Mutex;

const PLAIN: [u8; 8] = [0; 8];
const AUTO_FREE: u64 = 1;
/// `CUgraphMem_attribute`: used now, at most; reserved now, at most.
const ATTRIBUTES: [u32; 4] = [0, 1, 2, 3];

fn alloc_of(bytes: u64) -> NodeParams<'static> {
    let props = MemoryProps { location: Location::Device(0), handle_types: 0, max_bytes: 0 };
    NodeParams::MemAlloc { props, bytes, accesses: Vec::new(), descriptors: Box::default() }
}

fn add(driver: &Driver, graph: Graph, before: &[GraphNode], params: NodeParams<'_>) -> Result<GraphNode> {
    let before: Vec<_> = before.iter().map(|node| (*node, PLAIN)).collect();
    driver.graph_add_node(graph, &before, params)
}

/// Adds an allocation; its address too.
fn alloc(driver: &Driver, graph: Graph, before: &[GraphNode], bytes: u64) -> (GraphNode, DevAddr) {
    let node = add(driver, graph, before, alloc_of(bytes)).unwrap();
    match driver.graph_node_get_params(node).unwrap() {
        NodeInfo::MemAlloc { address, bytes: said, device: 0, .. } if said == bytes => (node, address),
        other => panic!("{other:?}"),
    }
}

fn attributes(driver: &Driver) -> [u64; 4] {
    ATTRIBUTES.map(|attribute| driver.device_get_graph_mem_attribute(Device(0), attribute).unwrap())
}

fn reserved(driver: &Driver) -> u64 {
    attributes(driver)[2]
}

fn ready(driver: &Driver, graph: Graph, flags: u64) -> GraphExec {
    driver.graph_instantiate(graph, flags).map_err(|(error, _)| error).unwrap()
}

fn launch(driver: &Driver, exec: GraphExec) -> Result<()> {
    driver.graph_launch(exec, Stream::NULL)?;
    driver.ctx_synchronize()
}

/// A graph that allocates a word, sets it and keeps it.
fn keeper(driver: &Driver, value: u32) -> (Graph, DevAddr) {
    let graph = driver.graph_create(0).unwrap();
    let (node, at) = alloc(driver, graph, &[], 4);
    add(driver, graph, &[node], fill_of(at, value)).unwrap();
    (graph, at)
}

/// A graph that frees.
fn freer(driver: &Driver, at: DevAddr) -> Graph {
    let graph = driver.graph_create(0).unwrap();
    add(driver, graph, &[], NodeParams::MemFree(at)).unwrap();
    graph
}

#[test]
fn what_a_stream_allocates_while_it_is_captured_its_graph_allocates() {
    let (driver, _) = driver();
    let [out, ..] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture(stream, 0).unwrap();
    // No bytes are nowhere, captured or not.
    assert_eq!(driver.mem_alloc_async(0, stream), Ok(DevAddr(0)));
    assert_eq!(driver.mem_free_async(DevAddr(0), stream), Ok(()));
    let at = driver.mem_alloc_async(1000, stream).unwrap();
    driver.memset_async(at, 41, 4, 1, stream).unwrap();
    let NodeParams::Copy { copy, .. } = copy_of(out, at) else { unreachable!() };
    assert_eq!(driver.capture_copy(stream, || Ok::<_, CudaError>(copy)), Ok(true));
    driver.mem_free_async(at, stream).unwrap();
    // What is freed is not to be freed again, and no other memory is a node's.
    assert_eq!(driver.mem_free_async(at, stream), Err(CudaError::INVALID_VALUE));
    assert_eq!(driver.mem_free_async(out, stream), Err(CudaError::INVALID_VALUE));
    let graph = driver.stream_end_capture(stream).unwrap();
    let nodes = driver.graph_get_nodes(graph).unwrap();
    let kinds: Vec<u32> = nodes.iter().map(|node| driver.graph_node_get_type(*node).unwrap()).collect();
    assert_eq!(kinds, [10, 2, 1, 11]);
    assert!(matches!(driver.graph_node_get_params(nodes[3]).unwrap(), NodeInfo::MemFree(freed) if freed == at));
    assert_eq!(attributes(&driver), [0; 4]);
    let exec = ready(&driver, graph, 0);
    assert_eq!(reserved(&driver), 0);
    for _ in 0..3 {
        driver.memset(out, 0, 4, 1, Stream::NULL).unwrap();
        driver.ctx_synchronize().unwrap();
        driver.graph_launch(exec, stream).unwrap();
        assert_eq!(word(&driver, out), 41);
    }
    assert_eq!(attributes(&driver), [4096; 4]);
    // Trimmed, it comes back with the next launch.
    driver.device_graph_mem_trim(Device(0)).unwrap();
    assert_eq!(attributes(&driver), [0, 4096, 0, 4096]);
    driver.device_set_graph_mem_attribute(Device(0), 1, 0).unwrap();
    assert_eq!(attributes(&driver), [0, 0, 0, 4096]);
    for (attribute, value) in [(0, 0), (2, 0), (1, 1), (3, 7), (4, 0)] {
        let set = driver.device_set_graph_mem_attribute(Device(0), attribute, value);
        assert_eq!(set, Err(CudaError::INVALID_VALUE), "{attribute} {value}");
    }
    assert_eq!(driver.device_get_graph_mem_attribute(Device(0), 4), Err(CudaError::INVALID_VALUE));
    launch(&driver, exec).unwrap();
    assert_eq!(attributes(&driver), [4096; 4]);
    driver.graph_destroy(graph).unwrap();
    assert_eq!(reserved(&driver), 4096);
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(reserved(&driver), 0);
    assert_eq!(driver.mem_free(at), Err(CudaError::INVALID_VALUE));
}

#[test]
fn what_a_graph_keeps_is_freed_outside_before_it_is_launched_again() {
    let (driver, _) = driver();
    let (graph, at) = keeper(&driver, 7);
    let exec = ready(&driver, graph, 0);
    assert_eq!(driver.mem_free(at), Err(CudaError::INVALID_VALUE));
    let stream = driver.stream_create(1).unwrap();
    let free_async = || driver.mem_free_async(at, stream);
    let free_now = || driver.mem_free(at);
    let other = freer(&driver, at);
    let other = ready(&driver, other, 0);
    let in_a_graph = || launch(&driver, other);
    let frees: [&dyn Fn() -> Result<()>; 3] = [&free_async, &free_now, &in_a_graph];
    for free in frees {
        launch(&driver, exec).unwrap();
        assert_eq!(word(&driver, at), 7);
        assert_eq!(launch(&driver, exec), Err(CudaError::INVALID_VALUE));
        // It is in use: nothing takes it away.
        driver.device_graph_mem_trim(Device(0)).unwrap();
        assert_eq!(word(&driver, at), 7);
        free().unwrap();
        assert_eq!(free(), Err(CudaError::INVALID_VALUE));
    }
    driver.ctx_synchronize().unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    // Or the launch does it.
    let exec = ready(&driver, graph, AUTO_FREE);
    for _ in 0..3 {
        launch(&driver, exec).unwrap();
    }
    // What is left when all is destroyed lives until it is freed.
    driver.graph_destroy(graph).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    driver.device_graph_mem_trim(Device(0)).unwrap();
    assert_eq!((word(&driver, at), reserved(&driver)), (7, 4096));
    launch(&driver, other).unwrap();
    driver.graph_exec_destroy(other).unwrap();
}

#[test]
fn memory_goes_with_the_last_graph_that_has_it() {
    let (driver, _) = driver();
    let (graph, at) = keeper(&driver, 7);
    let exec = ready(&driver, graph, 0);
    launch(&driver, exec).unwrap();
    driver.graph_destroy(graph).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    // Its graph is gone: another may free it, even twice made.
    for _ in 0..2 {
        let graph = freer(&driver, at);
        driver.graph_destroy(graph).unwrap();
    }
    let graph = freer(&driver, at);
    let exec = ready(&driver, graph, 0);
    launch(&driver, exec).unwrap();
    assert_eq!(launch(&driver, exec), Err(CudaError::INVALID_VALUE));
    driver.graph_exec_destroy(exec).unwrap();
    assert_eq!(reserved(&driver), 4096);
    driver.graph_destroy(graph).unwrap();
    assert_eq!(reserved(&driver), 0);
    assert_eq!(driver.mem_get_address_range(at), Err(CudaError::NOT_FOUND));
    // A graph that was never launched leaves nothing.
    let (graph, at) = keeper(&driver, 7);
    driver.graph_destroy(graph).unwrap();
    assert_eq!(driver.mem_get_address_range(at), Err(CudaError::NOT_FOUND));
}

#[test]
fn memory_that_work_may_use_stays_until_that_is_over() {
    let (driver, _) = driver();
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let graph = driver.graph_create(0).unwrap();
    let (node, at) = alloc(&driver, graph, &[], 4);
    let wait = call(move || {
        let _ = held.lock().recv_timeout(Duration::from_secs(20));
    });
    let wait = add(&driver, graph, &[node], NodeParams::Host(wait)).unwrap();
    let fill = add(&driver, graph, &[wait], fill_of(at, 1)).unwrap();
    add(&driver, graph, &[fill], NodeParams::MemFree(at)).unwrap();
    let exec = ready(&driver, graph, 0);
    driver.graph_launch(exec, Stream::NULL).unwrap();
    driver.device_graph_mem_trim(Device(0)).unwrap();
    assert_eq!(reserved(&driver), 4096);
    driver.graph_exec_destroy(exec).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_eq!(reserved(&driver), 4096);
    release.send(()).unwrap();
    driver.ctx_synchronize().unwrap();
    assert_eq!(reserved(&driver), 0);
}

#[test]
fn a_launch_comes_behind_what_was_done_before_memory_was_freed() {
    let (driver, _) = driver();
    let (graph, at) = keeper(&driver, 7);
    let exec = ready(&driver, graph, 0);
    launch(&driver, exec).unwrap();
    let [one, two] = [(); 2].map(|()| driver.stream_create(1).unwrap());
    let (release, held) = mpsc::channel::<()>();
    let wait = move || {
        let _ = held.recv_timeout(Duration::from_secs(20));
    };
    driver.launch_host_func(one, Box::new(wait)).unwrap();
    driver.memset(at, 8, 4, 1, one).unwrap();
    driver.mem_free_async(at, one).unwrap();
    driver.graph_launch(exec, two).unwrap();
    assert_eq!(driver.stream_query(two), Err(CudaError::NOT_READY));
    release.send(()).unwrap();
    driver.stream_synchronize(two).unwrap();
    assert_eq!(word(&driver, at), 7);
}

#[test]
fn a_graph_uses_its_addresses_again_behind_their_free() {
    let (driver, _) = driver();
    let [out, ..] = words(&driver);
    let graph = driver.graph_create(0).unwrap();
    let (first, at) = alloc(&driver, graph, &[], 4096);
    // Beside it, not behind its free.
    let (_, beside) = alloc(&driver, graph, &[first], 4096);
    let free = add(&driver, graph, &[first], NodeParams::MemFree(at)).unwrap();
    let (_, also) = alloc(&driver, graph, &[first], 4096);
    let empty = add(&driver, graph, &[free], NodeParams::Empty).unwrap();
    let (_, large) = alloc(&driver, graph, &[empty], 8192);
    let (last, again) = alloc(&driver, graph, &[empty], 3000);
    assert_eq!(again, at);
    let mut all = [at, beside, also, large];
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
    let fill = add(&driver, graph, &[last], fill_of(again, 5)).unwrap();
    let copy = add(&driver, graph, &[fill], copy_of(out, again)).unwrap();
    add(&driver, graph, &[copy], NodeParams::MemFree(again)).unwrap();
    let exec = ready(&driver, graph, AUTO_FREE);
    for _ in 0..2 {
        driver.memset(out, 0, 4, 1, Stream::NULL).unwrap();
        launch(&driver, exec).unwrap();
        assert_eq!(word(&driver, out), 5);
        assert_eq!(reserved(&driver), 4096 * 5);
    }
    // Small ones too.
    let (_, small) = alloc(&driver, graph, &[last], 4);
    let free = add(&driver, graph, &[last], NodeParams::MemFree(small)).unwrap();
    assert_eq!(alloc(&driver, graph, &[free], 7).1, small);
    // Another graph has others.
    let another = driver.graph_create(0).unwrap();
    assert_ne!(alloc(&driver, another, &[], 4096).1, at);
}

#[test]
fn a_graph_with_memory_is_neither_copied_nor_cut_nor_instantiated_twice() {
    let (driver, _) = driver();
    let invalid = CudaError::INVALID_VALUE;
    let (graph, at) = keeper(&driver, 7);
    let nodes = driver.graph_get_nodes(graph).unwrap();
    let edges = driver.graph_get_edges(graph).unwrap();
    assert_eq!(driver.graph_clone(graph), Err(invalid));
    let parent = driver.graph_create(0).unwrap();
    assert_eq!(add(&driver, parent, &[], NodeParams::Graph { graph, moved: false }), Err(invalid));
    assert_eq!(driver.graph_destroy_node(nodes[1]), Err(invalid));
    assert_eq!(driver.graph_remove_dependencies(graph, &edges), Err(invalid));
    assert_eq!(driver.graph_get_nodes(graph).unwrap(), nodes);
    for (node, params) in [(nodes[0], alloc_of(4)), (nodes[0], NodeParams::MemFree(at))] {
        assert_eq!(driver.graph_node_set_params(node, params), Err(CudaError::NOT_SUPPORTED));
    }
    let exec = ready(&driver, graph, 0);
    assert_eq!(driver.graph_instantiate(graph, 0).map_err(|(error, _)| error), Err(invalid));
    assert_eq!(driver.graph_exec_node_set_params(exec, nodes[0], alloc_of(4)), Err(CudaError::NOT_SUPPORTED));
    // It can be updated from its own graph, not from one that allocates elsewhere.
    driver.graph_exec_update(exec, graph).unwrap();
    let (other, _) = keeper(&driver, 8);
    let failed = driver.graph_exec_update(exec, other).unwrap_err();
    assert_eq!((failed.0, failed.1.result), (CudaError::GRAPH_EXEC_UPDATE_FAILURE, 6));
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture(stream, 2).unwrap();
    assert_eq!(driver.graph_launch(exec, stream), Err(invalid));
    driver.stream_end_capture(stream).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    let exec = ready(&driver, graph, 0);
    driver.graph_exec_destroy(exec).unwrap();
    // Moved, it is the parent's, and gets no more memory.
    let free = freer(&driver, at);
    let node = add(&driver, parent, &[], NodeParams::Graph { graph, moved: true }).unwrap();
    add(&driver, parent, &[node], NodeParams::Graph { graph: free, moved: true }).unwrap();
    assert_eq!(add(&driver, graph, &[], alloc_of(4)), Err(invalid));
    assert_eq!(driver.graph_clone(parent), Err(invalid));
    let exec = ready(&driver, parent, 0);
    assert_eq!(driver.graph_instantiate(graph, 0).map_err(|(error, _)| error), Err(invalid));
    for _ in 0..2 {
        launch(&driver, exec).unwrap();
    }
    assert_eq!(driver.mem_free(at), Err(invalid));
}

#[test]
fn a_node_frees_what_another_allocates_once() {
    let (driver, _) = driver();
    let invalid = Err(CudaError::INVALID_VALUE);
    let [word, ..] = words(&driver);
    let (graph, at) = keeper(&driver, 7);
    for wrong in [DevAddr(0), DevAddr(5), word, DevAddr(at.0 + 4)] {
        assert_eq!(add(&driver, graph, &[], NodeParams::MemFree(wrong)), invalid, "{wrong:?}");
    }
    // Once a graph of its own frees it, no other does.
    add(&driver, graph, &[], NodeParams::MemFree(at)).unwrap();
    let other = driver.graph_create(0).unwrap();
    assert_eq!(add(&driver, graph, &[], NodeParams::MemFree(at)), invalid);
    assert_eq!(add(&driver, other, &[], NodeParams::MemFree(at)), invalid);
    // Whether or not somebody has tried to allocate behind it.
    let free = driver.graph_get_nodes(graph).unwrap()[2];
    assert_eq!(add(&driver, graph, &[free, free], alloc_of(512)), invalid);
    assert_eq!(add(&driver, graph, &[], NodeParams::MemFree(at)), invalid);
    // And once another does, its own does not.
    let (graph, at) = keeper(&driver, 7);
    add(&driver, other, &[], NodeParams::MemFree(at)).unwrap();
    assert_eq!(add(&driver, other, &[], NodeParams::MemFree(at)), invalid);
    assert_eq!(add(&driver, graph, &[], NodeParams::MemFree(at)), invalid);
    add(&driver, driver.graph_create(0).unwrap(), &[], NodeParams::MemFree(at)).unwrap();
    // Nor is everything an allocation.
    let graph = driver.graph_create(0).unwrap();
    assert_eq!(add(&driver, graph, &[], alloc_of(0)), invalid);
    let with = |location, handle_types, accesses| {
        let props = MemoryProps { location, handle_types, max_bytes: 0 };
        let params = NodeParams::MemAlloc { props, bytes: 4, accesses, descriptors: Box::default() };
        add(&driver, graph, &[], params).map(drop)
    };
    let here = Location::Device(0);
    assert_eq!(with(here, 0, vec![(here, AccessFlags::ReadWrite)]), Ok(()));
    assert_eq!(with(here, 0, vec![(here, AccessFlags::None)]), Err(CudaError::INVALID_VALUE));
    assert_eq!(with(here, 1, Vec::new()), Err(CudaError::NOT_SUPPORTED));
    assert_eq!(with(Location::Host, 0, Vec::new()), Err(CudaError::NOT_SUPPORTED));
    assert_eq!(with(Location::Invalid, 0, Vec::new()), Err(CudaError::INVALID_VALUE));
    assert_eq!(with(Location::Device(1), 0, Vec::new()), Err(CudaError::INVALID_DEVICE));
}

#[test]
fn a_launch_without_memory_changes_nothing_and_memory_that_is_free_goes_to_who_needs_it() {
    let (driver, _) = bare(64 << 20);
    let context = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    let graph = driver.graph_create(0).unwrap();
    let (first, _) = alloc(&driver, graph, &[], 8 << 20);
    let (second, at) = alloc(&driver, graph, &[first], 24 << 20);
    add(&driver, graph, &[second], fill_of(at, 3)).unwrap();
    let exec = ready(&driver, graph, AUTO_FREE);
    let all = driver.mem_alloc(40 << 20).unwrap();
    assert_eq!(launch(&driver, exec), Err(CudaError::OUT_OF_MEMORY));
    assert_eq!(driver.mem_free(at), Err(CudaError::INVALID_VALUE));
    driver.mem_free(all).unwrap();
    launch(&driver, exec).unwrap();
    assert_eq!(word(&driver, at), 3);
    // What is allocated stays.
    assert_eq!(driver.mem_alloc(40 << 20), Err(CudaError::OUT_OF_MEMORY));
    driver.mem_free(at).unwrap();
    driver.mem_alloc(40 << 20).unwrap();
}

#[test]
fn what_work_uses_is_kept_when_a_launch_fails() {
    let (driver, _) = bare(64 << 20);
    let context = driver.device_primary_ctx_retain(Device(0)).unwrap();
    driver.ctx_set_current(context).unwrap();
    let graph = driver.graph_create(0).unwrap();
    let (first, used) = alloc(&driver, graph, &[], 4);
    let (second, large) = alloc(&driver, graph, &[first], 24 << 20);
    add(&driver, graph, &[second], fill_of(used, 3)).unwrap();
    let exec = ready(&driver, graph, AUTO_FREE);
    launch(&driver, exec).unwrap();
    // Others have what was behind the larger one.
    driver.mem_free(large).unwrap();
    driver.device_graph_mem_trim(Device(0)).unwrap();
    let others = driver.mem_alloc(50 << 20).unwrap();
    let [one, two] = [(); 2].map(|()| driver.stream_create(1).unwrap());
    let (release, held) = mpsc::channel::<()>();
    let wait = move || {
        let _ = held.recv_timeout(Duration::from_secs(20));
    };
    driver.launch_host_func(one, Box::new(wait)).unwrap();
    driver.memset(used, 8, 4, 1, one).unwrap();
    driver.mem_free_async(used, one).unwrap();
    driver.memset(others, 0, 4, 1, two).unwrap();
    assert_eq!(driver.graph_launch(exec, two), Err(CudaError::OUT_OF_MEMORY));
    driver.stream_synchronize(two).unwrap();
    driver.device_graph_mem_trim(Device(0)).unwrap();
    assert_eq!(reserved(&driver), 4096);
    release.send(()).unwrap();
    driver.stream_synchronize(one).unwrap();
    driver.device_graph_mem_trim(Device(0)).unwrap();
    assert_eq!(reserved(&driver), 0);
    driver.mem_free(others).unwrap();
    launch(&driver, exec).unwrap();
    assert_eq!(word(&driver, used), 3);
}
