//! Graphs on the software GPU.

use cuda_core::{Context, Copy3D, CopyEnd, CopyMemory, Fill, NodeParams, Params, Stream};
use gpu::DevAddr;

use crate::support::{memory, own_pages, shape, start, words};

fn end(memory: CopyMemory<'static>) -> CopyEnd<'static> {
    CopyEnd { memory, x: 0, y: 0, z: 0, pitch: 0, height: 1 }
}

/// More commands than fit any ring, in one submission, each of which sees what the one before did.
#[test]
fn a_launch_of_thousands_of_nodes_is_one_submission_device() {
    const NODES: u32 = 4000;
    const COUNT: u32 = 64;
    let (driver, module) = start();
    let function = driver.module_get_function(module, "add").unwrap();
    let [sum, one] = [(); 2].map(|()| driver.mem_alloc(u64::from(COUNT) * 4).unwrap());
    let graph = driver.graph_create(0).unwrap();
    let context = Context::NULL;
    let fill = |dst: DevAddr, value| Fill { dst, pitch: 0, value, element: 4, width: COUNT.into(), height: 1 };
    let first = driver.graph_add_node(graph, &[], NodeParams::Fill { fill: fill(sum, 0), context }).unwrap();
    let mut last = first;
    for _ in 0..NODES {
        let parts = [sum.0, one.0, sum.0].map(|at| at.to_le_bytes().to_vec());
        let count = COUNT.to_le_bytes();
        let mut each = |index: usize, out: &mut [u8]| {
            out.copy_from_slice(parts.get(index).map_or(&count[..], |part| part));
            true
        };
        let (config, params) = (shape(1, 64, Stream::NULL), Params::Each(&mut each));
        let kernel = NodeParams::Kernel { function, config, params, context };
        last = driver.graph_add_node(graph, &[(last, [0; 8])], kernel).unwrap();
    }
    // Memory of the program's own, read and written when the graph runs.
    let [from, to] =
        [words(0..COUNT), vec![0; COUNT as usize * 4]].map(|content| &*Box::leak(Box::new(own_pages(&content))));
    let bytes = u64::from(COUNT) * 4;
    let up = Copy3D {
        src: end(CopyMemory::Host(from.range())),
        dst: end(CopyMemory::Device(one)),
        width: bytes,
        height: 1,
        depth: 1,
    };
    let down = Copy3D { src: end(CopyMemory::Device(sum)), dst: end(CopyMemory::Host(to.range())), ..up };
    let up = driver.graph_add_node(graph, &[], NodeParams::Copy { copy: up, context }).unwrap();
    driver.graph_add_dependencies(graph, &[(up, first, [0; 8])]).unwrap();
    driver.graph_add_node(graph, &[(last, [0; 8])], NodeParams::Copy { copy: down, context }).unwrap();
    let exec = driver.graph_instantiate(graph, 0).unwrap();
    let stream = driver.stream_create(1).unwrap();
    for _ in 0..3 {
        to.range().copy_from(memory(&[0; COUNT as usize * 4]).range(0, bytes as usize));
        driver.graph_launch(exec, stream).unwrap();
        driver.stream_synchronize(stream).unwrap();
        let mut got = vec![0; bytes as usize];
        to.range().read(&mut got);
        assert_eq!(got, words((0..COUNT).map(|n| n * NODES)));
    }
}
