//! Graphs and captures.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use cuda_abi::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUcontext, CUdeviceptr,
    CUfunction, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUgraphNodeType, CUkernel, CUlibrary,
    CUresult, CUstream, HostAddr,
};

use super::{OK, PTX, cuCtxCreate_v2, cuCtxDestroy_v2, cuGraphCreate, cuLaunchKernel, cuStreamCreate};

unsafe extern "C" {
    safe fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32) -> CUresult;
    safe fn cuStreamEndCapture(stream: CUstream, graph: Option<&mut CUgraph>) -> CUresult;
    safe fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: Option<&mut u32>,
        id: Option<&mut u64>,
        graph: Option<&mut CUgraph>,
        dependencies: Option<&mut *const CUgraphNode>,
        count: Option<&mut usize>,
    ) -> CUresult;
    safe fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: Option<&mut u32>,
        id: Option<&mut u64>,
        graph: Option<&mut CUgraph>,
        dependencies: Option<&mut *const CUgraphNode>,
        edges: Option<&mut *const CUgraphEdgeData>,
        count: Option<&mut usize>,
    ) -> CUresult;
    fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream,
        nodes: *mut CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        flags: u32,
    ) -> CUresult;
    fn cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        options: *mut u32,
        values: *mut *mut c_void,
        count: u32,
        library_options: *mut u32,
        library_values: *mut *mut c_void,
        library_count: u32,
    ) -> CUresult;
    fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const c_char) -> CUresult;
    safe fn cuKernelGetFunction(function: Option<&mut CUfunction>, kernel: CUkernel) -> CUresult;
    safe fn cuGraphDestroy(graph: CUgraph) -> CUresult;
    fn cuGraphAddKernelNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> CUresult;
    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v1) -> CUresult;
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS) -> CUresult;
    fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1) -> CUresult;
    fn cuGraphAddNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> CUresult;
    fn cuGraphNodeGetParams(node: CUgraphNode, params: *mut CUgraphNodeParams) -> CUresult;
    fn cuGraphAddMemFreeNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        address: CUdeviceptr,
    ) -> CUresult;
    safe fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, address: Option<&mut CUdeviceptr>) -> CUresult;
    fn cuGraphAddBatchMemOpNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2,
    ) -> CUresult;
    fn cuGraphBatchMemOpNodeGetParams(node: CUgraphNode, params: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS_v2) -> CUresult;
    safe fn cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: u32, value: Option<&[u32; 16]>) -> CUresult;
}

/// What edges say is told to who can be told, and asked for where it is needed.
pub(super) fn captures(function: CUfunction) {
    let (mut stream, mut status, mut count) = (CUstream::NULL, 0, 0);
    assert_eq!(cuStreamCreate(Some(&mut stream), 1), OK);
    assert_eq!(cuStreamBeginCapture_v2(stream, 2), OK);
    let (mut none, mut zero) = (0u64, 0u32);
    let mut params: [*mut c_void; 3] = [(&raw mut none).cast(), (&raw mut zero).cast(), (&raw mut zero).cast()];
    let mut launch = || {
        // SAFETY: three parameters of the kernel's sizes.
        unsafe { cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), null_mut()) }
    };
    assert_eq!(launch(), OK);
    let (mut nodes, mut edges) = (null(), null());
    let answer =
        cuStreamGetCaptureInfo_v3(stream, Some(&mut status), None, None, Some(&mut nodes), Some(&mut edges), None);
    assert_eq!((answer, status), (OK, 1));
    // SAFETY: there is one node before the next.
    let mut node = unsafe { nodes.read() };
    let plain = CUgraphEdgeData { from_port: 0, to_port: 0, kind: 0, reserved: [0; 5] };
    // SAFETY: as above.
    assert_eq!(unsafe { edges.read() }, plain);
    let mut update = |data: CUgraphEdgeData, flags| {
        // SAFETY: one node and what its edge says.
        unsafe { cuStreamUpdateCaptureDependencies_v2(stream, &mut node, &data, 1, flags) }
    };
    let programmatic = CUgraphEdgeData { from_port: 1, kind: 1, ..plain };
    assert_eq!(update(programmatic, 1), OK);
    let mut older = |nodes: Option<&mut _>| {
        let mut status = 0;
        cuStreamGetCaptureInfo_v2(stream, Some(&mut status), None, None, nodes, Some(&mut count))
    };
    assert_eq!(older(Some(&mut nodes)), CUresult::CUDA_ERROR_LOSSY_QUERY);
    assert_eq!(older(None), OK);
    let newer = |status: &mut u32, nodes: Option<&mut _>, edges: Option<&mut _>| {
        cuStreamGetCaptureInfo_v3(stream, Some(status), None, None, nodes, edges, None)
    };
    assert_eq!(newer(&mut status, Some(&mut nodes), None), CUresult::CUDA_ERROR_LOSSY_QUERY);
    assert_eq!(newer(&mut status, None, Some(&mut edges)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(newer(&mut status, Some(&mut nodes), Some(&mut edges)), OK);
    // SAFETY: as above.
    assert_eq!(unsafe { edges.read() }, programmatic);
    // An edge of two kinds is one, and the next node can come.
    assert_eq!(update(plain, 0), OK);
    assert_eq!(older(Some(&mut nodes)), OK);
    assert_eq!(launch(), OK);
    assert_eq!(older(Some(&mut nodes)), OK);
    assert_eq!(count, 1);
    let mut graph = CUgraph::NULL;
    assert_eq!(cuStreamEndCapture(stream, Some(&mut graph)), OK);
    assert_eq!(cuGraphDestroy(graph), OK);
}

/// What is told of a kernel node can be given back, whatever context is current, and whatever attribute was set meanwhile.
pub(super) fn kernel_nodes(context: CUcontext) {
    const NAME: &CStr = c"slow";
    let (mut library, mut kernel, mut function) = (CUlibrary::NULL, CUkernel::NULL, CUfunction::NULL);
    let (none, no_values) = (null_mut(), null_mut());
    // SAFETY: PTX ends in NUL; there are no options.
    let loaded =
        unsafe { cuLibraryLoadData(&mut library, PTX.as_ptr().cast(), none, no_values, 0, none, no_values, 0) };
    assert_eq!(loaded, OK);
    // SAFETY: the name ends in NUL, the place may be written.
    assert_eq!(unsafe { cuLibraryGetKernel(&mut kernel, library, NAME.as_ptr()) }, OK);
    assert_eq!(cuKernelGetFunction(Some(&mut function), kernel), OK);
    let (mut graph, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
    assert_eq!(cuGraphCreate(Some(&mut graph), 0), OK);
    let (mut place, mut rounds) = (0x1234_5678_9abc_u64, 77u32);
    let params: [*mut c_void; 2] = [(&raw mut place).cast(), (&raw mut rounds).cast()];
    let given = CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction::NULL,
        grid_dim_x: 1,
        grid_dim_y: 1,
        grid_dim_z: 1,
        block_dim_x: 1,
        block_dim_y: 1,
        block_dim_z: 1,
        shared_mem_bytes: 0,
        kernel_params: HostAddr(params.as_ptr().expose_provenance() as u64),
        extra: HostAddr::NULL,
        kern: kernel,
        ctx: context,
    };
    // SAFETY: two parameters of the kernel's sizes.
    assert_eq!(unsafe { cuGraphAddKernelNode_v2(&mut node, graph, null(), 0, &given) }, OK);
    let mut told = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS_v1>::uninit();
    // SAFETY: the place may be written.
    assert_eq!(unsafe { cuGraphKernelNodeGetParams(node, told.as_mut_ptr()) }, OK);
    // SAFETY: it was written.
    let told = unsafe { told.assume_init() };
    assert_eq!(told.func, function);
    let mut other = CUcontext::NULL;
    assert_eq!(cuCtxCreate_v2(Some(&mut other), 0, 0), OK);
    assert_eq!(cuGraphKernelNodeSetAttribute(node, 8, Some(&[0; 16])), OK);
    // SAFETY: the parameters are the node's, and have not been changed.
    assert_eq!(unsafe { cuGraphKernelNodeSetParams(node, &told) }, OK);
    let mut now = given;
    // SAFETY: the place may be written.
    assert_eq!(unsafe { cuGraphKernelNodeGetParams_v2(node, &mut now) }, OK);
    assert_eq!(now.ctx, context);
    let each = std::ptr::with_exposed_provenance::<HostAddr>(now.kernel_params.0 as usize);
    // SAFETY: the addresses of the node's two parameters.
    let [first, second] = [0, 1].map(|index| unsafe { each.wrapping_add(index).read() }.0 as usize);
    // SAFETY: parameters of these sizes.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u64>(first).read_unaligned() }, place);
    // SAFETY: as above.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u32>(second).read_unaligned() }, rounds);
    assert_eq!(cuCtxDestroy_v2(other), OK);
    assert_eq!(cuGraphDestroy(graph), OK);
}

/// What nodes are told of memory, they tell: lists too, which are their own.
pub(super) fn memory_nodes(data: CUdeviceptr) {
    let (mut graph, mut alloc, mut free, mut batch) =
        (CUgraph::NULL, CUgraphNode::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
    assert_eq!(cuGraphCreate(Some(&mut graph), 0), OK);
    // CU_MEM_ALLOCATION_TYPE_PINNED; a device, number 0; who may read and write.
    let mut access = [1u32, 0, 3];
    let mut value = [0; 29];
    (value[0], value[1]) = (1, 1);
    (value[11], value[12], value[13]) = (access.as_mut_ptr().expose_provenance() as u64, 1, 5000);
    let kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    let given = CUgraphNodeParams { kind, reserved0: [0; 3], value, reserved2: 0 };
    let mut wrong = given;
    wrong.value[0] = 0;
    let mut add = |params: &mut CUgraphNodeParams| {
        // SAFETY: there are no dependencies, and one descriptor.
        unsafe { cuGraphAddNode_v2(&mut alloc, graph, null(), null(), 0, params) }
    };
    assert_eq!(add(&mut wrong), CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut params = given;
    assert_eq!(add(&mut params), OK);
    let address = params.value[14];
    assert_ne!(address, 0);
    access = [0; 3];
    let mut told = wrong;
    // SAFETY: the place may be written.
    assert_eq!(unsafe { cuGraphNodeGetParams(alloc, &mut told) }, OK);
    assert_eq!((told.kind, &told.value[12..15]), (kind, &[1, 5000, address][..]));
    let shown = std::ptr::with_exposed_provenance::<[u32; 3]>(told.value[11] as usize);
    // SAFETY: the node's descriptor.
    assert_eq!(unsafe { shown.read_unaligned() }, [1, 0, 3]);
    assert_eq!(access, [0; 3]);
    // CU_STREAM_MEM_OP_WRITE_VALUE_64, …_BARRIER with flags, …_WAIT_VALUE_32.
    let operations = [[5u64, data, 7 << 40, 1, 0, 0], [6 | 1 << 32, 0, 0, 0, 0, 0], [1, data, 9, 2, 0, 0]];
    let mut list = operations;
    let param_array = HostAddr(list.as_mut_ptr().expose_provenance() as u64);
    let given = CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 { ctx: CUcontext::NULL, count: 3, param_array, flags: 0 };
    // SAFETY: one dependency, three operations.
    assert_eq!(unsafe { cuGraphAddBatchMemOpNode(&mut batch, graph, &alloc, 1, &given) }, OK);
    list = [[0; 6]; 3];
    let mut params = given;
    // SAFETY: the place may be written.
    assert_eq!(unsafe { cuGraphBatchMemOpNodeGetParams(batch, &mut params) }, OK);
    assert_ne!((params.ctx, params.count), (CUcontext::NULL, 0));
    let shown = std::ptr::with_exposed_provenance::<[[u64; 6]; 3]>(params.param_array.0 as usize);
    // SAFETY: the node's list.
    assert_eq!((unsafe { shown.read_unaligned() }, list), (operations, [[0; 6]; 3]));
    let mut freed = 0;
    // SAFETY: one dependency.
    assert_eq!(unsafe { cuGraphAddMemFreeNode(&mut free, graph, &batch, 1, address) }, OK);
    assert_eq!(cuGraphMemFreeNodeGetParams(alloc, Some(&mut freed)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(cuGraphMemFreeNodeGetParams(free, Some(&mut freed)), OK);
    assert_eq!(freed, address);
    assert_eq!(cuGraphDestroy(graph), OK);
}
