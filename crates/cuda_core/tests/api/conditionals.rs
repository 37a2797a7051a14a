//! Conditional nodes. The fake's kernel that fills a word does what `cudaGraphSetConditional` is compiled to.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::graphs::{call, copy_of, fill_of, filler, kernel_node, launched, shape, with_fill, word, words};
use crate::support::{FakeGpu, driver};
use cuda_core::{
    Context, Copy3D, CopyEnd, CopyMemory, CudaError, Device, Driver, Function, Graph, GraphExec, GraphNode, JitLog,
    NodeInfo, NodeParams, Params, Stream,
};
use gpu::DevAddr;
use parking_lot::Mutex;

const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;
const ASSIGN: u32 = 1;
const PLAIN: [u8; 8] = [0; 8];
/// Longer than anything takes that ends.
const BOUND: Duration = Duration::from_secs(20);

fn condition(driver: &Driver, graph: Graph, default: Option<u32>) -> u64 {
    let flags = if default.is_some() { ASSIGN } else { 0 };
    driver.graph_conditional_handle_create(graph, Context::NULL, default.unwrap_or(0), flags).unwrap()
}

fn conditional(handle: u64, kind: u32, size: u32) -> NodeParams<'static> {
    NodeParams::Conditional { handle, kind, size, context: Context::NULL }
}

/// The bodies of a conditional node, as a program finds them.
fn bodies(driver: &Driver, node: GraphNode) -> Vec<Graph> {
    let NodeInfo::Conditional { bodies, .. } = driver.graph_node_get_params(node).unwrap() else { panic!("{node:?}") };
    #[expect(unsafe_code, reason = "programs read the handles where the driver says")]
    (0..bodies.1 as usize)
        .map(|index| {
            let at = std::ptr::with_exposed_provenance::<u64>(bodies.0 as usize).wrapping_add(index);
            // SAFETY: so many handles lie there as long as the node exists.
            Graph(unsafe { *at })
        })
        .collect()
}

/// A conditional node behind others, with its bodies.
fn add(
    driver: &Driver,
    graph: Graph,
    before: &[GraphNode],
    handle: u64,
    (kind, size): (u32, u32),
) -> (GraphNode, Vec<Graph>) {
    let before: Vec<_> = before.iter().map(|node| (*node, PLAIN)).collect();
    let node = driver.graph_add_node(graph, &before, conditional(handle, kind, size)).unwrap();
    let bodies = bodies(driver, node);
    assert_eq!(bodies.len() as u32, size);
    (node, bodies)
}

/// Adds what copies `bytes` from one place to another, behind others.
fn copy(driver: &Driver, graph: Graph, before: &[GraphNode], dst: DevAddr, src: DevAddr, bytes: u64) -> GraphNode {
    let before: Vec<_> = before.iter().map(|node| (*node, PLAIN)).collect();
    let end = |at| CopyEnd { memory: CopyMemory::Device(at), x: 0, y: 0, z: 0, pitch: bytes, height: 1 };
    let copy = Copy3D { src: end(src), dst: end(dst), width: bytes, height: 1, depth: 1 };
    driver.graph_add_node(graph, &before, NodeParams::Copy { copy, context: Context::NULL }).unwrap()
}

/// Words that say how often a loop goes on.
struct Tape {
    words: DevAddr,
    spare: DevAddr,
    length: u32,
}

impl Tape {
    fn new(driver: &Driver, length: u32) -> Tape {
        let [words, spare] = [(); 2].map(|()| driver.mem_alloc(4 * u64::from(length) + 4).unwrap());
        Tape { words, spare, length }
    }

    /// So many rounds will be told to go on.
    fn rewind(&self, driver: &Driver, rounds: u32) {
        driver.memset(self.words, 0, 4, u64::from(self.length), Stream::NULL).unwrap();
        driver.memset(self.words, 1, 4, u64::from(rounds), Stream::NULL).unwrap();
        driver.ctx_synchronize().unwrap();
    }

    /// Adds what moves on by a word, and sets a condition to it.
    fn next(&self, driver: &Driver, graph: Graph, before: &[GraphNode], handle: u64) -> GraphNode {
        let bytes = 4 * (u64::from(self.length) - 1);
        let out = copy(driver, graph, before, self.spare, DevAddr(self.words.0 + 4), bytes);
        let back = copy(driver, graph, &[out], self.words, self.spare, bytes);
        copy(driver, graph, &[back], DevAddr(handle), self.words, 4)
    }
}

fn run(driver: &Driver, exec: GraphExec) {
    driver.graph_launch(exec, Stream::NULL).unwrap();
    driver.ctx_synchronize().unwrap();
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < BOUND, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_value_that_a_kernel_sets_says_which_body_runs() {
    let (driver, _) = driver();
    let function = filler(&driver);
    for (kind, size, value, expected) in [
        (IF, 1, 0, None),
        (IF, 1, 7, Some(0)),
        (IF, 2, 0, Some(1)),
        (IF, 2, 1, Some(0)),
        (SWITCH, 3, 0, Some(0)),
        (SWITCH, 3, 2, Some(2)),
        (SWITCH, 3, 3, None),
        (SWITCH, 3, u32::MAX, None),
    ] {
        let [a, b, c] = words(&driver);
        let graph = driver.graph_create(0).unwrap();
        let handle = condition(&driver, graph, None);
        let sets = kernel_node(&driver, graph, &[], function, DevAddr(handle), value);
        let (node, bodies) = add(&driver, graph, &[sets], handle, (kind, size));
        for (number, body) in (1..).zip(&bodies) {
            kernel_node(&driver, *body, &[], function, a, number);
        }
        // What comes behind the node comes behind the body.
        let copied = copy(&driver, graph, &[node], b, a, 4);
        kernel_node(&driver, graph, &[copied], function, c, 9);
        let exec = driver.graph_instantiate(graph, 0).unwrap();
        run(&driver, exec);
        let expected = expected.map_or(0, |body| body + 1);
        assert_eq!([a, b, c].map(|at| word(&driver, at)), [expected, expected, 9], "{kind} {size} {value}");
    }
}

#[test]
fn a_loop_runs_as_often_as_its_body_says_and_begins_each_launch_with_the_default() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, _] = words(&driver);
    let tape = Tape::new(&driver, 16);
    let graph = driver.graph_create(0).unwrap();
    let handle = condition(&driver, graph, Some(5));
    let (node, bodies) = add(&driver, graph, &[], handle, (WHILE, 1));
    let work = kernel_node(&driver, bodies[0], &[], function, a, 3);
    tape.next(&driver, bodies[0], &[work], handle);
    copy(&driver, graph, &[node], b, a, 4);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    for rounds in [1, 2, 10] {
        // The word that is there at first is not looked at: the default is.
        tape.rewind(&driver, rounds);
        launched(&fake);
        run(&driver, exec);
        assert_eq!(launched(&fake), rounds as usize);
        assert_eq!(word(&driver, b), 3);
    }
    // A default of 0: the body does not run, whatever the last launch left.
    let other = driver.graph_create(0).unwrap();
    let zero = condition(&driver, other, Some(0));
    let (_, bodies) = add(&driver, other, &[], zero, (WHILE, 1));
    kernel_node(&driver, bodies[0], &[], function, a, 4);
    let exec = driver.graph_instantiate(other, 0).unwrap();
    driver.memset(DevAddr(zero), 1, 4, 1, Stream::NULL).unwrap();
    run(&driver, exec);
    assert_eq!(launched(&fake), 0);
}

#[test]
fn conditional_nodes_and_graphs_lie_in_each_other() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, c] = words(&driver);
    let (outer_tape, inner_tape) = (Tape::new(&driver, 8), Tape::new(&driver, 8));
    let graph = driver.graph_create(0).unwrap();
    let [outer, inner] = [Some(1), Some(1)].map(|default| condition(&driver, graph, default));
    let (_, body) = add(&driver, graph, &[], outer, (WHILE, 1));
    // In the loop: a graph with a kernel, then a loop whose default was used up at the first round, then an `if`.
    let child = driver.graph_create(0).unwrap();
    kernel_node(&driver, child, &[], function, b, 6);
    let child = driver.graph_add_node(body[0], &[], NodeParams::Graph { graph: child, moved: false }).unwrap();
    let (inner_node, inner_body) = add(&driver, body[0], &[child], inner, (WHILE, 1));
    let work = kernel_node(&driver, inner_body[0], &[], function, a, 2);
    inner_tape.next(&driver, inner_body[0], &[work], inner);
    // The handle of one may be set in the body of another, and belongs to the body's graph if it was made for that.
    let third = condition(&driver, body[0], None);
    let sets = kernel_node(&driver, body[0], &[inner_node], function, DevAddr(third), 1);
    let (chosen, branches) = add(&driver, body[0], &[sets], third, (IF, 2));
    kernel_node(&driver, branches[0], &[], function, c, 11);
    kernel_node(&driver, branches[1], &[], function, c, 12);
    outer_tape.next(&driver, body[0], &[chosen], outer);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    outer_tape.rewind(&driver, 3);
    inner_tape.rewind(&driver, 4);
    launched(&fake);
    run(&driver, exec);
    assert_eq!([a, b, c].map(|at| word(&driver, at)), [2, 6, 11]);
    // Three rounds of child, setter and branch; the inner loop ran in the first one.
    assert_eq!(launched(&fake), 3 * 3 + 4);
    let text = driver.graph_debug_dot(graph).unwrap();
    for shown in ["While", "If", &format!("{third:#x}")] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert_eq!(text.matches("subgraph").count(), 6, "each body is a cluster: {text}");
    // A handle that was made for a body is nobody's outside.
    let outside = driver.graph_add_node(graph, &[], conditional(third, IF, 1));
    assert_eq!(outside, Err(CudaError::INVALID_VALUE));
}

#[test]
fn as_many_graphs_lie_in_each_other_as_a_stack_has_room_for() {
    const MOST: usize = 512;
    let (driver, _fake) = driver();
    let function = filler(&driver);
    let [a, b, _] = words(&driver);
    // Inwards: a condition in the body of another.
    let graph = driver.graph_create(0).unwrap();
    let always = condition(&driver, graph, Some(1));
    let mut inmost = graph;
    for _ in 1..MOST {
        inmost = add(&driver, inmost, &[], always, (IF, 1)).1[0];
    }
    assert_eq!(driver.graph_add_node(inmost, &[], conditional(always, IF, 1)), Err(CudaError::OUT_OF_MEMORY));
    kernel_node(&driver, inmost, &[], function, a, 3);
    // Outwards: a graph in a node of another.
    let mut outmost = driver.graph_create(0).unwrap();
    kernel_node(&driver, outmost, &[], function, b, 4);
    for _ in 1..MOST {
        let outer = driver.graph_create(0).unwrap();
        driver.graph_add_node(outer, &[], NodeParams::Graph { graph: outmost, moved: true }).unwrap();
        outmost = outer;
    }
    let outer = driver.graph_create(0).unwrap();
    for moved in [false, true] {
        let child = NodeParams::Graph { graph: outmost, moved };
        assert_eq!(driver.graph_add_node(outer, &[], child), Err(CudaError::OUT_OF_MEMORY));
    }
    for graph in [graph, outmost] {
        let exec = driver.graph_instantiate(graph, 0).unwrap();
        run(&driver, exec);
        driver.graph_exec_destroy(exec).unwrap();
        driver.graph_destroy(graph).unwrap();
    }
    assert_eq!([a, b].map(|at| word(&driver, at)), [3, 4]);
}

#[test]
fn a_body_is_captured() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, _, _] = words(&driver);
    let tape = Tape::new(&driver, 8);
    let stream = driver.stream_create(1).unwrap();
    // The node comes into a graph that is being captured.
    driver.stream_begin_capture(stream, 0).unwrap();
    let graph = driver.stream_get_capture_info(stream).unwrap().graph;
    let handle = condition(&driver, graph, Some(1));
    with_fill(a, 1, |params| driver.launch_kernel(function, &shape(stream), params)).unwrap();
    let before = driver.graph_get_nodes(graph).unwrap();
    let (node, bodies) = add(&driver, graph, &before, handle, (WHILE, 1));
    driver.stream_update_capture_dependencies(stream, &[(node, PLAIN)], true).unwrap();
    with_fill(a, 3, |params| driver.launch_kernel(function, &shape(stream), params)).unwrap();
    assert_eq!(driver.stream_end_capture(stream), Ok(graph));
    driver.stream_begin_capture_to_graph(stream, bodies[0], &[], 0).unwrap();
    with_fill(a, 2, |params| driver.launch_kernel(function, &shape(stream), params)).unwrap();
    assert_eq!(driver.stream_end_capture_to_graph(stream), Ok(()));
    let captured = driver.graph_get_nodes(bodies[0]).unwrap();
    tape.next(&driver, bodies[0], &captured, handle);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    tape.rewind(&driver, 4);
    launched(&fake);
    driver.graph_launch(exec, stream).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!((launched(&fake), word(&driver, a)), (6, 3));
    // What it chooses is known when it is launched, so it cannot be made part of another graph.
    driver.stream_begin_capture(stream, 0).unwrap();
    assert_eq!(driver.graph_launch(exec, stream), Err(CudaError::INVALID_VALUE));
    assert_eq!(
        driver.stream_end_capture_to_graph(stream),
        Err(CudaError::INVALID_VALUE),
        "its graph would be nobody's"
    );
    let graph = driver.stream_end_capture(stream).unwrap();
    assert_eq!(driver.graph_get_nodes(graph), Ok(vec![]));
}

/// A body may be made with memory in it, as a program that captures one may not know better; instantiating names the node.
#[test]
fn memory_in_a_body_is_told_when_it_is_instantiated() {
    let (driver, _fake) = driver();
    let graph = driver.graph_create(0).unwrap();
    let (_, bodies) = add(&driver, graph, &[], condition(&driver, graph, Some(1)), (IF, 1));
    let stream = driver.stream_create(1).unwrap();
    driver.stream_begin_capture_to_graph(stream, bodies[0], &[], 0).unwrap();
    let at = driver.mem_alloc_async(40, stream).unwrap();
    driver.mem_free_async(at, stream).unwrap();
    driver.stream_end_capture_to_graph(stream).unwrap();
    let nodes = driver.graph_get_nodes(bodies[0]).unwrap();
    assert_eq!(nodes.len(), 2);
    let (error, outcome) = driver.graph_instantiate(graph, 0).unwrap_err();
    assert_eq!((error, outcome.result, outcome.error_node), (CudaError::NOT_SUPPORTED, 3, nodes[0]));
    driver.graph_destroy(graph).unwrap();
    assert_eq!(driver.device_get_graph_mem_attribute(Device(0), 2), Ok(0));
}

#[test]
fn what_cannot_be_is_refused() {
    let (driver, _) = driver();
    let function = filler(&driver);
    let [a, _, _] = words(&driver);
    let graph = driver.graph_create(0).unwrap();
    let create = |graph, flags| driver.graph_conditional_handle_create(graph, Context::NULL, 0, flags);
    assert_eq!(create(graph, 2), Err(CudaError::INVALID_VALUE));
    assert_eq!(create(Graph(77), 0), Err(CudaError::INVALID_VALUE));
    let handle = create(graph, 0).unwrap();
    let other = driver.graph_create(0).unwrap();
    let add_to = |graph, handle, kind, size| driver.graph_add_node(graph, &[], conditional(handle, kind, size));
    for (graph, handle, kind, size) in [
        (graph, handle + 4, IF, 1),
        (graph, 0, IF, 1),
        (other, handle, IF, 1),
        (graph, handle, IF, 0),
        (graph, handle, IF, 3),
        (graph, handle, WHILE, 2),
        (graph, handle, SWITCH, 0),
        (graph, handle, 3, 1),
    ] {
        assert_eq!(add_to(graph, handle, kind, size), Err(CudaError::INVALID_VALUE), "{handle:#x} {kind} {size}");
    }
    assert_eq!(add_to(graph, handle, SWITCH, u32::MAX), Err(CudaError::OUT_OF_MEMORY));
    // Nobody looks at the value.
    let (error, outcome) = driver.graph_instantiate(graph, 0).unwrap_err();
    assert_eq!((error, outcome.result), (CudaError::INVALID_VALUE, 5));
    let (node, bodies) = add(&driver, graph, &[], handle, (IF, 2));
    assert_eq!(driver.graph_node_get_type(node), Ok(13));
    let info = driver.graph_node_get_params(node).unwrap();
    let NodeInfo::Conditional { handle: named, kind: IF, bodies: (_, 2), context } = info else { panic!("{info:?}") };
    assert_eq!((named, context), (handle, driver.ctx_get_current().unwrap()));
    assert_eq!(driver.graph_node_set_params(node, conditional(handle, IF, 2)), Err(CudaError::NOT_SUPPORTED));
    assert_eq!(driver.graph_destroy(bodies[0]), Err(CudaError::INVALID_VALUE), "a body is its node's");
    // It is one graph, and no part of another.
    assert_eq!(driver.graph_clone(graph), Err(CudaError::INVALID_VALUE));
    for moved in [false, true] {
        let child = driver.graph_add_node(other, &[], NodeParams::Graph { graph, moved });
        assert_eq!(child, Err(CudaError::INVALID_VALUE));
    }
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    assert_eq!(driver.graph_instantiate(graph, 0), Err((CudaError::INVALID_VALUE, outcome_of(1))));
    let set = driver.graph_exec_node_set_params(exec, node, conditional(handle, IF, 2));
    assert_eq!(set, Err(CudaError::NOT_SUPPORTED));
    driver.graph_exec_destroy(exec).unwrap();
    driver.graph_instantiate(graph, 0).map(|exec| driver.graph_exec_destroy(exec)).unwrap().unwrap();
    // What the GPU cannot do alone does not fit a body, nor a graph in one.
    let deep = driver.graph_create(0).unwrap();
    let event = driver.event_create(0).unwrap();
    let host = driver.graph_add_node(deep, &[], NodeParams::Host(call(|| ()))).unwrap();
    let child = driver.graph_add_node(bodies[1], &[], NodeParams::Graph { graph: deep, moved: true }).unwrap();
    let (error, outcome) = driver.graph_instantiate(graph, 0).unwrap_err();
    assert_eq!((error, outcome.result, outcome.error_node), (CudaError::NOT_SUPPORTED, 3, host));
    driver.graph_destroy_node(child).unwrap();
    let record = driver.graph_add_node(bodies[1], &[], NodeParams::RecordEvent(event)).unwrap();
    assert_eq!(driver.graph_instantiate(graph, 0).unwrap_err().1.error_node, record);
    driver.graph_destroy_node(record).unwrap();
    let copies = driver.graph_add_node(bodies[1], &[], copy_of(a, a)).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let own = crate::support::Host::new(4);
    #[expect(unsafe_code, reason = "a program promises that its memory is there")]
    // SAFETY: it is, until the end of the test, and is not used.
    let range = unsafe { hostmem::HostRange::new(own.range(0, 4).address(), 4) };
    let place = |memory| CopyEnd { memory, x: 0, y: 0, z: 0, pitch: 4, height: 1 };
    let (src, dst) = (place(CopyMemory::Host(range)), place(CopyMemory::Device(a)));
    let from_host = Copy3D { src, dst, width: 4, height: 1, depth: 1 };
    let params = NodeParams::Copy { copy: from_host, context: Context::NULL };
    assert_eq!(driver.graph_exec_node_set_params(exec, copies, params), Err(CudaError::NOT_SUPPORTED));
    // A condition is a context's.
    let primary = driver.ctx_get_current().unwrap();
    let second = driver.ctx_create(0, Device(0)).unwrap();
    assert_eq!(add_to(graph, handle, IF, 1), Err(CudaError::INVALID_VALUE));
    driver.ctx_set_current(primary).unwrap();
    let context = second;
    let foreign = driver.graph_conditional_handle_create(other, context, 0, 0).unwrap();
    let node = NodeParams::Conditional { handle: foreign, kind: IF, size: 1, context };
    driver.graph_add_node(other, &[], node).unwrap();
    kernel_node(&driver, other, &[], function, a, 1);
    assert_eq!(driver.graph_instantiate(other, 0).unwrap_err().1.result, 4, "two contexts");
}

fn outcome_of(result: u32) -> cuda_core::GraphOutcome {
    cuda_core::GraphOutcome { result, ..cuda_core::GraphOutcome::default() }
}

/// A graph with a loop of one kernel that goes on as a tape says, and the nodes of loop and kernel.
fn looping(driver: &Driver, tape: &Tape, function: Function, at: DevAddr, default: u32) -> (Graph, [GraphNode; 2]) {
    let graph = driver.graph_create(0).unwrap();
    let handle = condition(driver, graph, Some(default));
    let (node, bodies) = add(driver, graph, &[], handle, (WHILE, 1));
    let work = kernel_node(driver, bodies[0], &[], function, at, 1);
    tape.next(driver, bodies[0], &[work], handle);
    (graph, [node, work])
}

#[test]
fn bodies_change_with_updates() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, c] = words(&driver);
    let tape = Tape::new(&driver, 8);
    let (graph, [_, work]) = looping(&driver, &tape, function, a, 1);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let (config, context) = (shape(Stream::NULL), Context::NULL);
    let set = |params: Params<'_>| {
        driver.graph_exec_node_set_params(exec, work, NodeParams::Kernel { function, config, params, context })
    };
    with_fill(b, 2, set).unwrap();
    tape.rewind(&driver, 2);
    run(&driver, exec);
    assert_eq!([a, b].map(|at| word(&driver, at)), [0, 2]);
    driver.graph_node_set_enabled(exec, work, false).unwrap();
    tape.rewind(&driver, 2);
    launched(&fake);
    run(&driver, exec);
    assert_eq!(launched(&fake), 0);
    driver.graph_node_set_enabled(exec, work, true).unwrap();
    // Another graph, whose kernels set another handle, with another default.
    let (other, _) = looping(&driver, &tape, function, c, 0);
    driver.graph_exec_update(exec, other).unwrap();
    driver.graph_destroy(other).unwrap();
    run(&driver, exec);
    assert_eq!(word(&driver, c), 0, "its default is 0");
    let (third, _) = looping(&driver, &tape, function, c, 1);
    driver.graph_exec_update(exec, third).unwrap();
    tape.rewind(&driver, 3);
    launched(&fake);
    run(&driver, exec);
    assert_eq!((word(&driver, c), launched(&fake)), (1, 3));
    // The same nodes, but an `if`.
    let fourth = driver.graph_create(0).unwrap();
    let handle = condition(&driver, fourth, Some(1));
    let (node, bodies) = add(&driver, fourth, &[], handle, (IF, 1));
    let work = kernel_node(&driver, bodies[0], &[], function, a, 1);
    tape.next(&driver, bodies[0], &[work], handle);
    let (error, outcome) = driver.graph_exec_update(exec, fourth).unwrap_err();
    assert_eq!((error, outcome.result, outcome.error_node), (CudaError::GRAPH_EXEC_UPDATE_FAILURE, 5, node));
    // What lies in which body is the shape of a graph, too.
    let switch = |counts: [usize; 2]| {
        let graph = driver.graph_create(0).unwrap();
        let (_, bodies) = add(&driver, graph, &[], condition(&driver, graph, None), (SWITCH, 2));
        for (body, count) in bodies.iter().zip(counts) {
            for _ in 0..count {
                driver.graph_add_node(*body, &[], fill_of(a, 1)).unwrap();
            }
        }
        graph
    };
    let exec = driver.graph_instantiate(switch([2, 1]), 0).unwrap();
    driver.graph_exec_update(exec, switch([2, 1])).unwrap();
    assert!(driver.graph_exec_update(exec, switch([1, 2])).is_err());
}

#[test]
fn a_condition_lasts_as_long_as_a_launch_may_use_it() {
    let (driver, _) = driver();
    let function = filler(&driver);
    let [a, _, _] = words(&driver);
    let stream = driver.stream_create(1).unwrap();
    let fresh = || {
        let graph = driver.graph_create(0).unwrap();
        let handle = condition(&driver, graph, None);
        driver.graph_destroy(graph).unwrap();
        handle
    };
    let free = fresh();
    assert_eq!(fresh(), free, "its memory is given back");
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let graph = driver.graph_create(0).unwrap();
    let handle = condition(&driver, graph, Some(0));
    assert_eq!(handle, free);
    let gate = NodeParams::Host(call(move || {
        let _ = held.lock().recv_timeout(BOUND);
    }));
    let gate = driver.graph_add_node(graph, &[], gate).unwrap();
    let sets = kernel_node(&driver, graph, &[gate], function, DevAddr(handle), 1);
    let (node, bodies) = add(&driver, graph, &[sets], handle, (IF, 1));
    kernel_node(&driver, bodies[0], &[], function, a, 8);
    // Behind its node it may still be set.
    kernel_node(&driver, graph, &[node], function, DevAddr(handle), 3);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    assert_ne!(fresh(), free, "the executable graph has it");
    driver.graph_launch(exec, stream).unwrap();
    driver.graph_exec_destroy(exec).unwrap();
    assert_ne!(fresh(), free, "the launch has it");
    release.send(()).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(word(&driver, a), 8);
    until("the memory is free", || fresh() == free);
}

/// Loops in a stream until somebody sets the value of this handle.
fn endless(driver: &Driver, function: Function, at: DevAddr) -> (Stream, u64) {
    let graph = driver.graph_create(0).unwrap();
    let handle = condition(driver, graph, Some(1));
    let (_, bodies) = add(driver, graph, &[], handle, (WHILE, 1));
    kernel_node(driver, bodies[0], &[], function, at, 1);
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let stream = driver.stream_create(1).unwrap();
    driver.graph_launch(exec, stream).unwrap();
    (stream, handle)
}

/// Waits until so many kernels more have been launched.
fn goes_on(fake: &FakeGpu, kernels: usize) {
    let count = Mutex::new(0);
    until("the loop goes on", || {
        *count.lock() += launched(fake);
        *count.lock() >= kernels
    });
}

#[test]
fn a_loop_without_end_stops_nobody_else() {
    let (driver, fake) = driver();
    let function = filler(&driver);
    let [a, b, _] = words(&driver);
    let one = endless(&driver, function, a);
    goes_on(&fake, 20);
    // Two loops at once, and work beside them.
    let other = endless(&driver, function, a);
    let beside = driver.stream_create(1).unwrap();
    driver.memset_async(b, 5, 4, 1, beside).unwrap();
    driver.stream_synchronize(beside).unwrap();
    goes_on(&fake, 20);
    for (stream, handle) in [one, other] {
        assert_eq!(driver.stream_query(stream), Err(CudaError::NOT_READY));
        driver.memset_async(DevAddr(handle), 0, 4, 1, beside).unwrap();
        driver.stream_synchronize(stream).unwrap();
    }
    assert_eq!(word(&driver, b), 5);
}

#[test]
fn a_body_that_fails_fails_its_context() {
    let (driver, _) = driver();
    let module = driver.module_load_data(&&b".version 8 .entry trap()"[..], &mut JitLog::default()).unwrap();
    let function = driver.module_get_function(module, "trap").unwrap();
    let graph = driver.graph_create(0).unwrap();
    let (_, bodies) = add(&driver, graph, &[], condition(&driver, graph, Some(1)), (WHILE, 1));
    let (config, context) = (shape(Stream::NULL), Context::NULL);
    let params = Params::Each(&mut |_, _| true);
    driver.graph_add_node(bodies[0], &[], NodeParams::Kernel { function, config, params, context }).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_launch(exec, Stream::NULL).unwrap();
    assert_eq!(driver.ctx_synchronize(), Err(CudaError::ILLEGAL_ADDRESS));
}
