//! Exported functions implemented by `calls::graph_node`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_MEM_ALLOC_NODE_PARAMS_v2, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUgraph,
    CUgraphEdgeData, CUgraphExec, CUgraphNode, CUgraphNodeParams, CUresult,
};

use crate::calls::graph_node;
use crate::decode::{In, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddBatchMemOpNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddBatchMemOpNode");
    ENTRY.call(|driver| {
        graph_node::add_batch_mem_op_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddChildGraphNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    child_graph: CUgraph,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddChildGraphNode");
    ENTRY.call(|driver| {
        graph_node::add_child_graph_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, child_graph)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddEmptyNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddEmptyNode");
    ENTRY.call(|driver| graph_node::add_empty_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddEventRecordNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    event: CUevent,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddEventRecordNode");
    ENTRY.call(|driver| {
        graph_node::add_event_record_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, event)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddEventWaitNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    event: CUevent,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddEventWaitNode");
    ENTRY.call(|driver| {
        graph_node::add_event_wait_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, event)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddHostNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddHostNode");
    ENTRY.call(|driver| {
        graph_node::add_host_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddKernelNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddKernelNode");
    ENTRY.call(|driver| {
        graph_node::add_kernel_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddKernelNode_v2(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddKernelNode_v2");
    ENTRY.call(|driver| {
        graph_node::add_kernel_node_v2(driver, ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddMemAllocNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v2>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddMemAllocNode");
    ENTRY.call(|driver| {
        graph_node::add_mem_alloc_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddMemFreeNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    dptr: CUdeviceptr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddMemFreeNode");
    ENTRY.call(|driver| {
        graph_node::add_mem_free_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, dptr)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddMemcpyNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    copy_params: In<CUDA_MEMCPY3D>,
    ctx: CUcontext,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddMemcpyNode");
    ENTRY.call(|driver| {
        graph_node::add_memcpy_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, copy_params, ctx)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddMemsetNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    memset_params: In<CUDA_MEMSET_NODE_PARAMS>,
    ctx: CUcontext,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddMemsetNode");
    ENTRY.call(|driver| {
        graph_node::add_memset_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, memset_params, ctx)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddNode(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddNode");
    ENTRY.call(|driver| {
        graph_node::add_node(driver, ph_graph_node, h_graph, dependencies, num_dependencies, node_params)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddNode_v2(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddNode_v2");
    ENTRY.call(|driver| {
        graph_node::add_node_v2(
            driver,
            ph_graph_node,
            h_graph,
            dependencies,
            dependency_data,
            num_dependencies,
            node_params,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphAddNode_v3(
    ph_graph_node: Out<CUgraphNode>,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphAddNode_v3");
    ENTRY.call(|driver| {
        graph_node::add_node_v2(
            driver,
            ph_graph_node,
            h_graph,
            dependencies,
            dependency_data,
            num_dependencies,
            node_params,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphBatchMemOpNodeGetParams(
    h_node: CUgraphNode,
    node_params_out: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphBatchMemOpNodeGetParams");
    ENTRY.call(|driver| graph_node::batch_mem_op_node_get_params(driver, h_node, node_params_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphBatchMemOpNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphBatchMemOpNodeSetParams");
    ENTRY.call(|driver| graph_node::batch_mem_op_node_set_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphChildGraphNodeGetGraph(h_node: CUgraphNode, ph_graph: Out<CUgraph>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphChildGraphNodeGetGraph");
    ENTRY.call(|driver| graph_node::child_graph_node_get_graph(driver, h_node, ph_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphEventRecordNodeGetEvent(h_node: CUgraphNode, event_out: Out<CUevent>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphEventRecordNodeGetEvent");
    ENTRY.call(|driver| graph_node::event_record_node_get_event(driver, h_node, event_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphEventRecordNodeSetEvent(h_node: CUgraphNode, event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphEventRecordNodeSetEvent");
    ENTRY.call(|driver| graph_node::event_record_node_set_event(driver, h_node, event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphEventWaitNodeGetEvent(h_node: CUgraphNode, event_out: Out<CUevent>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphEventWaitNodeGetEvent");
    ENTRY.call(|driver| graph_node::event_wait_node_get_event(driver, h_node, event_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphEventWaitNodeSetEvent(h_node: CUgraphNode, event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphEventWaitNodeSetEvent");
    ENTRY.call(|driver| graph_node::event_wait_node_set_event(driver, h_node, event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecBatchMemOpNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecBatchMemOpNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_batch_mem_op_node_set_params(driver, h_graph_exec, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecChildGraphNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    child_graph: CUgraph,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecChildGraphNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_child_graph_node_set_params(driver, h_graph_exec, h_node, child_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecEventRecordNodeSetEvent(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    event: CUevent,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecEventRecordNodeSetEvent");
    ENTRY.call(|driver| graph_node::exec_event_record_node_set_event(driver, h_graph_exec, h_node, event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecEventWaitNodeSetEvent(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    event: CUevent,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecEventWaitNodeSetEvent");
    ENTRY.call(|driver| graph_node::exec_event_wait_node_set_event(driver, h_graph_exec, h_node, event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecHostNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecHostNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_host_node_set_params(driver, h_graph_exec, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecKernelNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecKernelNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_kernel_node_set_params(driver, h_graph_exec, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecKernelNodeSetParams_v2(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecKernelNodeSetParams_v2");
    ENTRY.call(|driver| graph_node::exec_kernel_node_set_params_v2(driver, h_graph_exec, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecMemcpyNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    copy_params: In<CUDA_MEMCPY3D>,
    ctx: CUcontext,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecMemcpyNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_memcpy_node_set_params(driver, h_graph_exec, h_node, copy_params, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecMemsetNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    memset_params: In<CUDA_MEMSET_NODE_PARAMS>,
    ctx: CUcontext,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecMemsetNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_memset_node_set_params(driver, h_graph_exec, h_node, memset_params, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphExecNodeSetParams(
    h_graph_exec: CUgraphExec,
    h_node: CUgraphNode,
    node_params: Out<CUgraphNodeParams>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphExecNodeSetParams");
    ENTRY.call(|driver| graph_node::exec_node_set_params(driver, h_graph_exec, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphHostNodeGetParams(
    h_node: CUgraphNode,
    node_params: Out<CUDA_HOST_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphHostNodeGetParams");
    ENTRY.call(|driver| graph_node::host_node_get_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphHostNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphHostNodeSetParams");
    ENTRY.call(|driver| graph_node::host_node_set_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeGetParams(
    h_node: CUgraphNode,
    node_params: Out<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeGetParams");
    ENTRY.call(|driver| graph_node::kernel_node_get_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeGetParams_v2(
    h_node: CUgraphNode,
    node_params: Out<CUDA_KERNEL_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeGetParams_v2");
    ENTRY.call(|driver| graph_node::kernel_node_get_params_v2(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeSetParams");
    ENTRY.call(|driver| graph_node::kernel_node_set_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphKernelNodeSetParams_v2(
    h_node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphKernelNodeSetParams_v2");
    ENTRY.call(|driver| graph_node::kernel_node_set_params_v2(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphMemAllocNodeGetParams(
    h_node: CUgraphNode,
    params_out: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v2>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphMemAllocNodeGetParams");
    ENTRY.call(|driver| graph_node::mem_alloc_node_get_params(driver, h_node, params_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphMemFreeNodeGetParams(h_node: CUgraphNode, dptr_out: Out<CUdeviceptr>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphMemFreeNodeGetParams");
    ENTRY.call(|driver| graph_node::mem_free_node_get_params(driver, h_node, dptr_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphMemcpyNodeGetParams(h_node: CUgraphNode, node_params: Out<CUDA_MEMCPY3D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphMemcpyNodeGetParams");
    ENTRY.call(|driver| graph_node::memcpy_node_get_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphMemcpyNodeSetParams(h_node: CUgraphNode, node_params: In<CUDA_MEMCPY3D>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphMemcpyNodeSetParams");
    ENTRY.call(|driver| graph_node::memcpy_node_set_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphMemsetNodeGetParams(
    h_node: CUgraphNode,
    node_params: Out<CUDA_MEMSET_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphMemsetNodeGetParams");
    ENTRY.call(|driver| graph_node::memset_node_get_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphMemsetNodeSetParams(
    h_node: CUgraphNode,
    node_params: In<CUDA_MEMSET_NODE_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphMemsetNodeSetParams");
    ENTRY.call(|driver| graph_node::memset_node_set_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeGetParams(h_node: CUgraphNode, node_params: Out<CUgraphNodeParams>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeGetParams");
    ENTRY.call(|driver| graph_node::node_get_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeSetParams(h_node: CUgraphNode, node_params: Out<CUgraphNodeParams>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeSetParams");
    ENTRY.call(|driver| graph_node::node_set_params(driver, h_node, node_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGraphNodeSetParams_v2(h_node: CUgraphNode, node_params: Out<CUgraphNodeParams>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGraphNodeSetParams_v2");
    ENTRY.call(|driver| graph_node::node_set_params(driver, h_node, node_params))
}
