//! Exported functions implemented by `calls::graph`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUcontext, CUgraph, CUgraphConditionalHandle, CUgraphEdgeData, CUgraphExec,
    CUgraphExecUpdateResult, CUgraphExecUpdateResultInfo, CUgraphNode, CUgraphNodeType, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUresult, CUstream, CUuserObject, HostAddr,
};

use crate::calls::graph;
use crate::decode::{In, Out, Text};
use crate::entry::Entry;
use crate::start::{DEFAULT_STREAM, per_thread};

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddDependencies(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    num_dependencies: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddDependencies");
    ENTRY.call(|driver| graph::add_dependencies(driver, h_graph, from, to, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddDependencies_v2(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    edge_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddDependencies_v2");
    ENTRY.call(|driver| graph::add_dependencies_v2(driver, h_graph, from, to, edge_data, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphClone(ph_graph_clone: Out<CUgraph>, original_graph: CUgraph) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphClone");
    ENTRY.call(|driver| graph::clone(driver, ph_graph_clone, original_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphConditionalHandleCreate(
    p_handle_out: Out<CUgraphConditionalHandle>,
    h_graph: CUgraph,
    ctx: CUcontext,
    default_launch_value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphConditionalHandleCreate");
    ENTRY.call(|driver| {
        graph::conditional_handle_create(driver, p_handle_out, h_graph, ctx, default_launch_value, flags)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphCreate(ph_graph: Out<CUgraph>, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphCreate");
    ENTRY.call(|driver| graph::create(driver, ph_graph, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphDebugDotPrint(h_graph: CUgraph, path: Text, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphDebugDotPrint");
    ENTRY.call(|driver| graph::debug_dot_print(driver, h_graph, path, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphDestroy(h_graph: CUgraph) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphDestroy");
    ENTRY.call(|driver| graph::destroy(driver, h_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphDestroyNode(h_node: CUgraphNode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphDestroyNode");
    ENTRY.call(|driver| graph::destroy_node(driver, h_node))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecDestroy(h_graph_exec: CUgraphExec) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecDestroy");
    ENTRY.call(|driver| graph::exec_destroy(driver, h_graph_exec))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecGetFlags(h_graph_exec: CUgraphExec, flags: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecGetFlags");
    ENTRY.call(|driver| graph::exec_get_flags(driver, h_graph_exec, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecGetId(h_graph_exec: CUgraphExec, graph_id: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecGetId");
    ENTRY.call(|driver| graph::exec_get_id(driver, h_graph_exec, graph_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecUpdate(
    h_graph_exec: CUgraphExec,
    h_graph: CUgraph,
    h_error_node_out: Out<CUgraphNode>,
    update_result_out: Out<CUgraphExecUpdateResult>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecUpdate");
    ENTRY.call(|driver| graph::exec_update(driver, h_graph_exec, h_graph, h_error_node_out, update_result_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecUpdate_v2(
    h_graph_exec: CUgraphExec,
    h_graph: CUgraph,
    result_info: Out<CUgraphExecUpdateResultInfo>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecUpdate_v2");
    ENTRY.call(|driver| graph::exec_update_v2(driver, h_graph_exec, h_graph, result_info))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphGetEdges(
    h_graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    num_edges: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphGetEdges");
    ENTRY.call(|driver| graph::get_edges(driver, h_graph, from, to, num_edges))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphGetEdges_v2(
    h_graph: CUgraph,
    from: Out<CUgraphNode>,
    to: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_edges: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphGetEdges_v2");
    ENTRY.call(|driver| graph::get_edges_v2(driver, h_graph, from, to, edge_data, num_edges))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphGetId(h_graph: CUgraph, graph_id: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphGetId");
    ENTRY.call(|driver| graph::get_id(driver, h_graph, graph_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphGetNodes(h_graph: CUgraph, nodes: Out<CUgraphNode>, num_nodes: Out<usize>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphGetNodes");
    ENTRY.call(|driver| graph::get_nodes(driver, h_graph, nodes, num_nodes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphGetRootNodes(
    h_graph: CUgraph,
    root_nodes: Out<CUgraphNode>,
    num_root_nodes: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphGetRootNodes");
    ENTRY.call(|driver| graph::get_root_nodes(driver, h_graph, root_nodes, num_root_nodes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphInstantiate(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    ph_error_node: Out<CUgraphNode>,
    log_buffer: Out<u8>,
    buffer_size: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphInstantiate");
    ENTRY.call(|driver| graph::instantiate(driver, ph_graph_exec, h_graph, ph_error_node, log_buffer, buffer_size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphInstantiate_v2(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    ph_error_node: Out<CUgraphNode>,
    log_buffer: Out<u8>,
    buffer_size: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphInstantiate_v2");
    ENTRY.call(|driver| graph::instantiate(driver, ph_graph_exec, h_graph, ph_error_node, log_buffer, buffer_size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphInstantiateWithFlags(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphInstantiateWithFlags");
    ENTRY.call(|driver| graph::instantiate_with_flags(driver, ph_graph_exec, h_graph, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphInstantiateWithParams(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    instantiate_params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphInstantiateWithParams");
    ENTRY.call(|driver| {
        graph::instantiate_with_params(driver, DEFAULT_STREAM, ph_graph_exec, h_graph, instantiate_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphInstantiateWithParams_ptsz(
    ph_graph_exec: Out<CUgraphExec>,
    h_graph: CUgraph,
    instantiate_params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphInstantiateWithParams_ptsz");
    ENTRY.call(|driver| {
        graph::instantiate_with_params(driver, CUstream::PER_THREAD, ph_graph_exec, h_graph, instantiate_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeCopyAttributes");
    ENTRY.call(|driver| graph::kernel_node_copy_attributes(driver, dst, src))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeGetAttribute(
    h_node: CUgraphNode,
    attr: CUlaunchAttributeID,
    value_out: Out<CUlaunchAttributeValue>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeGetAttribute");
    ENTRY.call(|driver| graph::kernel_node_get_attribute(driver, h_node, attr, value_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeSetAttribute(
    h_node: CUgraphNode,
    attr: CUlaunchAttributeID,
    value: In<CUlaunchAttributeValue>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeSetAttribute");
    ENTRY.call(|driver| graph::kernel_node_set_attribute(driver, h_node, attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphLaunch(h_graph: CUgraphExec, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphLaunch");
    ENTRY.call(|driver| graph::launch(driver, h_graph, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphLaunch_ptsz(h_graph: CUgraphExec, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphLaunch_ptsz");
    ENTRY.call(|driver| graph::launch(driver, h_graph, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeFindInClone(
    ph_node: Out<CUgraphNode>,
    h_original_node: CUgraphNode,
    h_cloned_graph: CUgraph,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeFindInClone");
    ENTRY.call(|driver| graph::node_find_in_clone(driver, ph_node, h_original_node, h_cloned_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetContainingGraph(h_node: CUgraphNode, ph_graph: Out<CUgraph>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetContainingGraph");
    ENTRY.call(|driver| graph::node_get_containing_graph(driver, h_node, ph_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetDependencies(
    h_node: CUgraphNode,
    dependencies: Out<CUgraphNode>,
    num_dependencies: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetDependencies");
    ENTRY.call(|driver| graph::node_get_dependencies(driver, h_node, dependencies, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetDependencies_v2(
    h_node: CUgraphNode,
    dependencies: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_dependencies: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetDependencies_v2");
    ENTRY.call(|driver| graph::node_get_dependencies_v2(driver, h_node, dependencies, edge_data, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetDependentNodes(
    h_node: CUgraphNode,
    dependent_nodes: Out<CUgraphNode>,
    num_dependent_nodes: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetDependentNodes");
    ENTRY.call(|driver| graph::node_get_dependent_nodes(driver, h_node, dependent_nodes, num_dependent_nodes))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetDependentNodes_v2(
    h_node: CUgraphNode,
    dependent_nodes: Out<CUgraphNode>,
    edge_data: Out<CUgraphEdgeData>,
    num_dependent_nodes: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetDependentNodes_v2");
    ENTRY.call(|driver| {
        graph::node_get_dependent_nodes_v2(driver, h_node, dependent_nodes, edge_data, num_dependent_nodes)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetEnabled(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    is_enabled: Out<u32>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetEnabled");
    ENTRY.call(|driver| graph::node_get_enabled(driver, h_graph_exec, h_node, is_enabled))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetLocalId(h_node: CUgraphNode, node_id: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetLocalId");
    ENTRY.call(|driver| graph::node_get_local_id(driver, h_node, node_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetToolsId(h_node: CUgraphNode, tools_node_id: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetToolsId");
    ENTRY.call(|driver| graph::node_get_tools_id(driver, h_node, tools_node_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetType(h_node: CUgraphNode, kind: Out<CUgraphNodeType>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetType");
    ENTRY.call(|driver| graph::node_get_type(driver, h_node, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeSetEnabled(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    is_enabled: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeSetEnabled");
    ENTRY.call(|driver| graph::node_set_enabled(driver, h_graph_exec, h_node, is_enabled))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphReleaseUserObject");
    ENTRY.call(|driver| graph::release_user_object(driver, graph, object, count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphRemoveDependencies(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    num_dependencies: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphRemoveDependencies");
    ENTRY.call(|driver| graph::remove_dependencies(driver, h_graph, from, to, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphRemoveDependencies_v2(
    h_graph: CUgraph,
    from: In<CUgraphNode>,
    to: In<CUgraphNode>,
    edge_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphRemoveDependencies_v2");
    ENTRY.call(|driver| graph::remove_dependencies_v2(driver, h_graph, from, to, edge_data, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphRetainUserObject");
    ENTRY.call(|driver| graph::retain_user_object(driver, graph, object, count, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphUpload(h_graph: CUgraphExec, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphUpload");
    ENTRY.call(|driver| graph::upload(driver, h_graph, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphUpload_ptsz(h_graph: CUgraphExec, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphUpload_ptsz");
    ENTRY.call(|driver| graph::upload(driver, h_graph, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuUserObjectCreate(
    object_out: Out<CUuserObject>,
    ptr: HostAddr,
    destroy: HostAddr,
    initial_refcount: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuUserObjectCreate");
    ENTRY.call(|driver| graph::user_object_create(driver, object_out, ptr, destroy, initial_refcount, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuUserObjectRelease(object: CUuserObject, count: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuUserObjectRelease");
    ENTRY.call(|driver| graph::user_object_release(driver, object, count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuUserObjectRetain(object: CUuserObject, count: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuUserObjectRetain");
    ENTRY.call(|driver| graph::user_object_retain(driver, object, count))
}
