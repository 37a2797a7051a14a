//! Nodes of graphs: what they are told to do, and what they say they do.

use cuda_abi::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2, CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_CONDITIONAL_NODE_PARAMS,
    CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_EVENT_WAIT_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS_v2, CUDA_MEM_FREE_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS_v2, CUarray, CUcontext, CUdeviceptr, CUevent,
    CUfunction, CUgraph, CUgraphChildGraphNodeOwnership, CUgraphConditionalNodeType, CUgraphEdgeData, CUgraphExec,
    CUgraphNode, CUgraphNodeParams, CUgraphNodeType, CUkernel, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps, CUmemorytype, CUresult,
    CUstreamBatchMemOpParams, HostAddr,
};
use cuda_core::{CopyEnd, CopyMemory, Driver, Fill, Kernel, LaunchConfig, NodeInfo, NodeParams, Stream};
use gpu::DevAddr;

use crate::callback;
use crate::calls::copy::slices;
use crate::calls::graph::before;
use crate::calls::launch::with_params;
use crate::calls::pool::{accesses, pool_props};
use crate::calls::stream::mem_ops;
use crate::decode::{Core, In, Out, in_at, out_at};
use crate::entry::{Answer, Refusal, refuse};

/// Where in `CUgraphNodeParams` the parameters of the kind lie.
const UNION_AT: u64 = 16;

/// A place for parameters: a new node of a graph, one that there is, or one of an executable graph.
#[derive(Clone, Copy)]
enum Place<'a> {
    New { out: Out<CUgraphNode>, graph: CUgraph, before: &'a [(cuda_core::GraphNode, [u8; 8])] },
    Node(CUgraphNode),
    Exec(CUgraphExec, CUgraphNode),
}

impl Place<'_> {
    fn put(self, driver: &Driver, params: NodeParams<'_>) -> Answer {
        match self {
            Place::New { out, graph, before } => {
                out.required()?;
                out.set(driver.graph_add_node(graph.core(), before, params)?);
            }
            Place::Node(node) => driver.graph_node_set_params(node.core(), params)?,
            Place::Exec(exec, node) => driver.graph_exec_node_set_params(exec.core(), node.core(), params)?,
        }
        Ok(())
    }

    fn kernel(self, driver: &Driver, params: &CUDA_KERNEL_NODE_PARAMS) -> Answer {
        let grid = [params.grid_dim_x, params.grid_dim_y, params.grid_dim_z];
        let block = [params.block_dim_x, params.block_dim_y, params.block_dim_z];
        let config = LaunchConfig::new(grid, block, params.shared_mem_bytes, Stream::NULL);
        // A kernel is asked for where there is no function.
        let kernel = params.func.is_null();
        let function = if kernel { CUfunction(params.kern.0) } else { params.func }.core();
        let context = if kernel { params.ctx } else { CUcontext::NULL }.core();
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let each = unsafe { in_at(params.kernel_params) };
        // SAFETY: as above.
        let extra = unsafe { in_at(params.extra) };
        with_params(each, extra, |params| self.put(driver, NodeParams::Kernel { function, config, params, context }))
    }

    fn copy(self, driver: &Driver, copy: &CUDA_MEMCPY3D, context: CUcontext) -> Answer {
        self.put(driver, NodeParams::Copy { copy: slices(copy)?, context: context.core() })
    }

    fn fill(self, driver: &Driver, params: &CUDA_MEMSET_NODE_PARAMS, context: CUcontext) -> Answer {
        let fill = Fill {
            dst: DevAddr(params.dst),
            pitch: params.pitch as u64,
            value: params.value,
            element: params.element_size,
            width: params.width as u64,
            height: params.height as u64,
        };
        self.put(driver, NodeParams::Fill { fill, context: context.core() })
    }

    fn host(self, driver: &Driver, params: CUDA_HOST_NODE_PARAMS) -> Answer {
        self.put(driver, NodeParams::Host(callback::repeated(params.function, params.user_data)?))
    }

    fn child(self, driver: &Driver, graph: CUgraph, moved: bool) -> Answer {
        self.put(driver, NodeParams::Graph { graph: graph.core(), moved })
    }

    /// Stores the address where the parameters are.
    fn alloc(self, driver: &Driver, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v2>) -> Answer {
        let mut given = params.input().get()?;
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let list = unsafe { in_at::<CUmemAccessDesc>(given.access_descs) };
        if given.pool_props.alloc_type != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
            return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let accesses = accesses(list, given.access_desc_count)?;
        let descriptor = |index| {
            // SAFETY: as above.
            let CUmemAccessDesc { location, flags } = unsafe { list.get_at(index) }?;
            Ok([location.kind.0, location.id.cast_unsigned(), flags.0])
        };
        let descriptors = (0..accesses.len()).map(descriptor).collect::<Result<_, Refusal>>()?;
        let (props, bytes) = (pool_props(&given.pool_props), given.bytesize as u64);
        let wanted = NodeParams::MemAlloc { props, bytes, accesses, descriptors };
        let Place::New { out, graph, before } = self else { return self.put(driver, wanted) };
        out.required()?;
        let node = driver.graph_add_node(graph.core(), before, wanted)?;
        if let NodeInfo::MemAlloc { address, .. } = driver.graph_node_get_params(node)? {
            given.dptr = address.0;
        }
        params.set_plain(given);
        out.set(node);
        Ok(())
    }

    /// Stores the address where the handles of the bodies are.
    fn conditional(self, driver: &Driver, params: Out<CUDA_CONDITIONAL_NODE_PARAMS>) -> Answer {
        let mut given = params.input().get()?;
        let CUDA_CONDITIONAL_NODE_PARAMS { handle, kind, size, ctx, .. } = given;
        let wanted = NodeParams::Conditional { handle, kind: kind.0, size, context: ctx.core() };
        let Place::New { out, graph, before } = self else { return self.put(driver, wanted) };
        out.required()?;
        let node = driver.graph_add_node(graph.core(), before, wanted)?;
        if let NodeInfo::Conditional { bodies, .. } = driver.graph_node_get_params(node)? {
            given.ph_graph_out = HostAddr(bodies.0);
        }
        params.set_plain(given);
        out.set(node);
        Ok(())
    }

    fn mem_ops(self, driver: &Driver, params: &CUDA_BATCH_MEM_OP_NODE_PARAMS_v2) -> Answer {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        let list = unsafe { in_at::<CUstreamBatchMemOpParams>(params.param_array) };
        let (operations, flags) = (mem_ops(params.count, list)?, params.flags);
        self.put(driver, NodeParams::MemOps { operations, flags, context: params.ctx.core() })
    }

    /// Of whatever kind.
    fn any(self, driver: &Driver, params: Out<CUgraphNodeParams>) -> Answer {
        let kind = params.input().get()?.kind;
        let at = HostAddr(params.address().0 + UNION_AT);
        macro_rules! member {
            () => {
                // SAFETY: the member that goes with the kind, in a structure that the C caller promised (`decode`).
                unsafe { in_at(at) }.get()?
            };
        }
        match kind {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => self.kernel(driver, &member!()),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
                let params: CUDA_MEMCPY_NODE_PARAMS = member!();
                self.copy(driver, &params.copy_params, params.copy_ctx)
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
                let CUDA_MEMSET_NODE_PARAMS_v2 { dst, pitch, value, element_size, width, height, ctx } = member!();
                self.fill(driver, &CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height }, ctx)
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => self.host(driver, member!()),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
                let params: CUDA_CHILD_GRAPH_NODE_PARAMS = member!();
                match params.ownership {
                    CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => {
                        self.child(driver, params.graph, false)
                    }
                    CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
                        self.child(driver, params.graph, true)
                    }
                    _ => refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
                }
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => self.put(driver, NodeParams::Empty),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                let params: CUDA_EVENT_WAIT_NODE_PARAMS = member!();
                self.put(driver, NodeParams::WaitEvent(params.event.core()))
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                let params: CUDA_EVENT_RECORD_NODE_PARAMS = member!();
                self.put(driver, NodeParams::RecordEvent(params.event.core()))
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => self.mem_ops(driver, &member!()),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                // SAFETY: the member that goes with the kind, in a structure that the C caller promised (`decode`).
                self.alloc(driver, unsafe { out_at(at) })
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
                let params: CUDA_MEM_FREE_NODE_PARAMS = member!();
                self.put(driver, NodeParams::MemFree(DevAddr(params.dptr)))
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL => {
                // SAFETY: the member that goes with the kind, in a structure that the C caller promised (`decode`).
                self.conditional(driver, unsafe { out_at(at) })
            }
            CUgraphNodeType(..=18) => refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

/// Adds a node behind others.
fn add(
    driver: &Driver,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    count: usize,
    put: impl FnOnce(Place<'_>, &Driver) -> Answer,
) -> Answer {
    out.required()?;
    put(Place::New { out, graph, before: &before(dependencies, In::none(), count)? }, driver)
}

/// What the older structure says.
fn newer(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) -> Result<CUDA_KERNEL_NODE_PARAMS, Refusal> {
    let params = params.get()?;
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: params.func,
        grid_dim_x: params.grid_dim_x,
        grid_dim_y: params.grid_dim_y,
        grid_dim_z: params.grid_dim_z,
        block_dim_x: params.block_dim_x,
        block_dim_y: params.block_dim_y,
        block_dim_z: params.block_dim_z,
        shared_mem_bytes: params.shared_mem_bytes,
        kernel_params: params.kernel_params,
        extra: params.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    })
}

macro_rules! adders {
    ($($name:ident($($param:ident: $kind:ty),*) $put:expr;)*) => {$(
        pub(crate) fn $name(
            driver: &Driver,
            out: Out<CUgraphNode>,
            graph: CUgraph,
            dependencies: In<CUgraphNode>,
            count: usize,
            $($param: $kind),*
        ) -> Answer {
            add(driver, out, graph, dependencies, count, $put)
        }
    )*};
}

adders! {
    add_kernel_node(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) |place, driver| place.kernel(driver, &newer(params)?);
    add_kernel_node_v2(params: In<CUDA_KERNEL_NODE_PARAMS>) |place, driver| place.kernel(driver, &params.get()?);
    add_memcpy_node(copy: In<CUDA_MEMCPY3D>, context: CUcontext) |place, driver| {
        place.copy(driver, &copy.get()?, context)
    };
    add_memset_node(params: In<CUDA_MEMSET_NODE_PARAMS>, context: CUcontext) |place, driver| {
        place.fill(driver, &params.get()?, context)
    };
    add_host_node(params: In<CUDA_HOST_NODE_PARAMS>) |place, driver| place.host(driver, params.get()?);
    add_child_graph_node(child: CUgraph) |place, driver| place.child(driver, child, false);
    add_empty_node() |place, driver| place.put(driver, NodeParams::Empty);
    add_event_record_node(event: CUevent) |place, driver| place.put(driver, NodeParams::RecordEvent(event.core()));
    add_event_wait_node(event: CUevent) |place, driver| place.put(driver, NodeParams::WaitEvent(event.core()));
    add_batch_mem_op_node(params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>) |place, driver| {
        place.mem_ops(driver, &params.get()?)
    };
    add_mem_alloc_node(params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v2>) |place, driver| place.alloc(driver, params);
    add_mem_free_node(address: CUdeviceptr) |place, driver| place.put(driver, NodeParams::MemFree(DevAddr(address)));
    add_node(params: Out<CUgraphNodeParams>) |place, driver| place.any(driver, params);
}

pub(crate) fn add_node_v2(
    driver: &Driver,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
    params: Out<CUgraphNodeParams>,
) -> Answer {
    out.required()?;
    Place::New { out, graph, before: &before(dependencies, data, count)? }.any(driver, params)
}

macro_rules! setters {
    ($($of_node:ident $of_exec:ident($($param:ident: $kind:ty),*; $($context:ident: $context_kind:ty)?) $put:expr;)*) => {$(
        pub(crate) fn $of_node(driver: &Driver, node: CUgraphNode, $($param: $kind),*) -> Answer {
            $(let $context = <$context_kind>::NULL;)?
            ($put)(Place::Node(node), driver $(, $param)* $(, $context)?)
        }

        pub(crate) fn $of_exec(
            driver: &Driver,
            exec: CUgraphExec,
            node: CUgraphNode,
            $($param: $kind,)*
            $($context: $context_kind)?
        ) -> Answer {
            ($put)(Place::Exec(exec, node), driver $(, $param)* $(, $context)?)
        }
    )*};
}

type KernelV1 = In<CUDA_KERNEL_NODE_PARAMS_v1>;
type KernelV2 = In<CUDA_KERNEL_NODE_PARAMS>;

setters! {
    kernel_node_set_params exec_kernel_node_set_params(params: KernelV1;)
        |place: Place<'_>, driver, params: KernelV1| place.kernel(driver, &newer(params)?);
    kernel_node_set_params_v2 exec_kernel_node_set_params_v2(params: KernelV2;)
        |place: Place<'_>, driver, params: KernelV2| place.kernel(driver, &params.get()?);
    memcpy_node_set_params exec_memcpy_node_set_params(params: In<CUDA_MEMCPY3D>; context: CUcontext)
        |place: Place<'_>, driver, params: In<CUDA_MEMCPY3D>, context| place.copy(driver, &params.get()?, context);
    memset_node_set_params exec_memset_node_set_params(params: In<CUDA_MEMSET_NODE_PARAMS>; context: CUcontext)
        |place: Place<'_>, driver, params: In<CUDA_MEMSET_NODE_PARAMS>, context| {
            place.fill(driver, &params.get()?, context)
        };
    host_node_set_params exec_host_node_set_params(params: In<CUDA_HOST_NODE_PARAMS>;)
        |place: Place<'_>, driver, params: In<CUDA_HOST_NODE_PARAMS>| place.host(driver, params.get()?);
    batch_mem_op_node_set_params exec_batch_mem_op_node_set_params(params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>;)
        |place: Place<'_>, driver, params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>| place.mem_ops(driver, &params.get()?);
    event_record_node_set_event exec_event_record_node_set_event(event: CUevent;)
        |place: Place<'_>, driver, event: CUevent| place.put(driver, NodeParams::RecordEvent(event.core()));
    event_wait_node_set_event exec_event_wait_node_set_event(event: CUevent;)
        |place: Place<'_>, driver, event: CUevent| place.put(driver, NodeParams::WaitEvent(event.core()));
    node_set_params exec_node_set_params(params: Out<CUgraphNodeParams>;)
        |place: Place<'_>, driver, params: Out<CUgraphNodeParams>| place.any(driver, params);
}

pub(crate) fn exec_child_graph_node_set_params(
    driver: &Driver,
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Answer {
    Place::Exec(exec, node).child(driver, child, false)
}

fn kernel_params(info: &NodeInfo) -> Option<CUDA_KERNEL_NODE_PARAMS> {
    let NodeInfo::Kernel { function, config, params, context, .. } = info else { return None };
    let ([grid_dim_x, grid_dim_y, grid_dim_z], [block_dim_x, block_dim_y, block_dim_z]) = (config.grid, config.block);
    let (func, kern) = match Kernel::named(*function) {
        Some(kernel) => (CUfunction::NULL, CUkernel(kernel.0)),
        None => (CUfunction(function.0), CUkernel::NULL),
    };
    Some(CUDA_KERNEL_NODE_PARAMS {
        func,
        grid_dim_x,
        grid_dim_y,
        grid_dim_z,
        block_dim_x,
        block_dim_y,
        block_dim_z,
        shared_mem_bytes: config.shared_bytes,
        kernel_params: HostAddr(*params),
        extra: HostAddr::NULL,
        kern,
        ctx: CUcontext(context.0),
    })
}

/// An end of a copy, as the structure says it: kind, host, device, array.
fn end(end: &CopyEnd<'_>) -> (CUmemorytype, HostAddr, u64, CUarray) {
    let none = (HostAddr::NULL, 0, CUarray::NULL);
    match end.memory {
        CopyMemory::Host(range) => (CUmemorytype::CU_MEMORYTYPE_HOST, HostAddr(range.address() as u64), none.1, none.2),
        CopyMemory::Device(at) => (CUmemorytype::CU_MEMORYTYPE_DEVICE, none.0, at.0, none.2),
        CopyMemory::Unified(range) => (CUmemorytype::CU_MEMORYTYPE_UNIFIED, none.0, range.address() as u64, none.2),
        CopyMemory::Array(array) => (CUmemorytype::CU_MEMORYTYPE_ARRAY, none.0, none.1, CUarray(array.0)),
    }
}

fn copy_params(info: &NodeInfo) -> Option<CUDA_MEMCPY3D> {
    let NodeInfo::Copy { copy, .. } = info else { return None };
    let (src_memory_type, src_host, src_device, src_array) = end(&copy.src);
    let (dst_memory_type, dst_host, dst_device, dst_array) = end(&copy.dst);
    let size = |value: u64| value as usize;
    Some(CUDA_MEMCPY3D {
        src_x_in_bytes: size(copy.src.x),
        src_y: size(copy.src.y),
        src_z: size(copy.src.z),
        src_lod: 0,
        src_memory_type,
        src_host,
        src_device,
        src_array,
        reserved0: HostAddr::NULL,
        src_pitch: size(copy.src.pitch),
        src_height: size(copy.src.height),
        dst_x_in_bytes: size(copy.dst.x),
        dst_y: size(copy.dst.y),
        dst_z: size(copy.dst.z),
        dst_lod: 0,
        dst_memory_type,
        dst_host,
        dst_device,
        dst_array,
        reserved1: HostAddr::NULL,
        dst_pitch: size(copy.dst.pitch),
        dst_height: size(copy.dst.height),
        width_in_bytes: size(copy.width),
        height: size(copy.height),
        depth: size(copy.depth),
    })
}

fn fill_params(info: &NodeInfo) -> Option<CUDA_MEMSET_NODE_PARAMS> {
    let NodeInfo::Fill { fill, .. } = info else { return None };
    Some(CUDA_MEMSET_NODE_PARAMS {
        dst: fill.dst.0,
        pitch: fill.pitch as usize,
        value: fill.value,
        element_size: fill.element,
        width: fill.width as usize,
        height: fill.height as usize,
    })
}

fn host_params(info: &NodeInfo) -> Option<CUDA_HOST_NODE_PARAMS> {
    let NodeInfo::Host(function) = info else { return None };
    Some(CUDA_HOST_NODE_PARAMS { function: HostAddr(function.function), user_data: HostAddr(function.data) })
}

fn alloc_params(info: &NodeInfo) -> Option<CUDA_MEM_ALLOC_NODE_PARAMS_v2> {
    let NodeInfo::MemAlloc { device, bytes, address, descriptors } = *info else { return None };
    let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let pool_props = CUmemPoolProps {
        alloc_type: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handle_types: CUmemAllocationHandleType(0),
        location: CUmemLocation { kind, id: device },
        win32_security_attributes: HostAddr::NULL,
        max_size: 0,
        usage: 0,
        gpu_direct_rdma_capable: 0,
        reserved: [0; 53],
    };
    let (access_descs, count) = if descriptors.1 == 0 { (0, 0) } else { descriptors };
    Some(CUDA_MEM_ALLOC_NODE_PARAMS_v2 {
        pool_props,
        access_descs: HostAddr(access_descs),
        access_desc_count: count as usize,
        bytesize: bytes as usize,
        dptr: address.0,
    })
}

fn mem_ops_params(info: &NodeInfo) -> Option<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2> {
    let NodeInfo::MemOps { shown, flags, context } = *info else { return None };
    let (param_array, count) = (HostAddr(shown.0), shown.1 as u32);
    Some(CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 { ctx: CUcontext(context.0), count, param_array, flags })
}

/// Stores what a node says of itself, if it is of the kind that was asked for.
fn get<T: Copy>(driver: &Driver, node: CUgraphNode, out: Out<T>, of: impl FnOnce(&NodeInfo) -> Option<T>) -> Answer {
    out.required()?;
    let Some(value) = of(&driver.graph_node_get_params(node.core())?) else {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    out.set_plain(value);
    Ok(())
}

pub(crate) fn kernel_node_get_params(
    driver: &Driver,
    node: CUgraphNode,
    out: Out<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Answer {
    get(driver, node, out, |info| {
        let (params, NodeInfo::Kernel { in_context, .. }) = (kernel_params(info)?, info) else { return None };
        Some(CUDA_KERNEL_NODE_PARAMS_v1 {
            // A kernel's handle would be another context's function where another context is current.
            func: CUfunction(in_context.0),
            grid_dim_x: params.grid_dim_x,
            grid_dim_y: params.grid_dim_y,
            grid_dim_z: params.grid_dim_z,
            block_dim_x: params.block_dim_x,
            block_dim_y: params.block_dim_y,
            block_dim_z: params.block_dim_z,
            shared_mem_bytes: params.shared_mem_bytes,
            kernel_params: params.kernel_params,
            extra: params.extra,
        })
    })
}

pub(crate) fn kernel_node_get_params_v2(
    driver: &Driver,
    node: CUgraphNode,
    out: Out<CUDA_KERNEL_NODE_PARAMS>,
) -> Answer {
    get(driver, node, out, kernel_params)
}

pub(crate) fn memcpy_node_get_params(driver: &Driver, node: CUgraphNode, out: Out<CUDA_MEMCPY3D>) -> Answer {
    get(driver, node, out, copy_params)
}

pub(crate) fn memset_node_get_params(driver: &Driver, node: CUgraphNode, out: Out<CUDA_MEMSET_NODE_PARAMS>) -> Answer {
    get(driver, node, out, fill_params)
}

pub(crate) fn host_node_get_params(driver: &Driver, node: CUgraphNode, out: Out<CUDA_HOST_NODE_PARAMS>) -> Answer {
    get(driver, node, out, host_params)
}

pub(crate) fn child_graph_node_get_graph(driver: &Driver, node: CUgraphNode, out: Out<CUgraph>) -> Answer {
    get(driver, node, out, |info| if let NodeInfo::Graph(graph) = info { Some(CUgraph(graph.0)) } else { None })
}

pub(crate) fn event_record_node_get_event(driver: &Driver, node: CUgraphNode, out: Out<CUevent>) -> Answer {
    get(driver, node, out, |info| if let NodeInfo::RecordEvent(event) = info { Some(CUevent(event.0)) } else { None })
}

pub(crate) fn event_wait_node_get_event(driver: &Driver, node: CUgraphNode, out: Out<CUevent>) -> Answer {
    get(driver, node, out, |info| if let NodeInfo::WaitEvent(event) = info { Some(CUevent(event.0)) } else { None })
}

pub(crate) fn mem_alloc_node_get_params(
    driver: &Driver,
    node: CUgraphNode,
    out: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v2>,
) -> Answer {
    get(driver, node, out, alloc_params)
}

pub(crate) fn mem_free_node_get_params(driver: &Driver, node: CUgraphNode, out: Out<CUdeviceptr>) -> Answer {
    get(driver, node, out, |info| if let NodeInfo::MemFree(address) = info { Some(address.0) } else { None })
}

pub(crate) fn batch_mem_op_node_get_params(
    driver: &Driver,
    node: CUgraphNode,
    out: Out<CUDA_BATCH_MEM_OP_NODE_PARAMS_v2>,
) -> Answer {
    get(driver, node, out, mem_ops_params)
}

/// Of whatever kind.
pub(crate) fn node_get_params(driver: &Driver, node: CUgraphNode, out: Out<CUgraphNodeParams>) -> Answer {
    out.required()?;
    let info = driver.graph_node_get_params(node.core())?;
    all_params(driver.graph_node_get_type(node.core())?, &info, out);
    Ok(())
}

/// Those of a node of a kind that has none.
pub(crate) fn no_params(kind: u32) -> CUgraphNodeParams {
    CUgraphNodeParams { kind: CUgraphNodeType(kind), reserved0: [0; 3], value: [0; 29], reserved2: 0 }
}

/// Of whatever kind.
pub(crate) fn all_params(kind: u32, info: &NodeInfo, out: Out<CUgraphNodeParams>) {
    out.set_plain(no_params(kind));
    let at = HostAddr(out.address().0 + UNION_AT);
    macro_rules! member {
        ($value:expr) => {
            // SAFETY: the member that goes with the kind, in a structure that the C caller promised (`decode`).
            unsafe { out_at(at) }.set_plain($value)
        };
    }
    match info {
        NodeInfo::Kernel { .. } => kernel_params(info).into_iter().for_each(|params| member!(params)),
        NodeInfo::Copy { context, .. } => {
            let copy_ctx = CUcontext(context.0);
            if let Some(copy_params) = copy_params(info) {
                member!(CUDA_MEMCPY_NODE_PARAMS { flags: 0, reserved: 0, copy_ctx, copy_params });
            }
        }
        NodeInfo::Fill { context, .. } => {
            let ctx = CUcontext(context.0);
            if let Some(params) = fill_params(info) {
                let CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height } = params;
                member!(CUDA_MEMSET_NODE_PARAMS_v2 { dst, pitch, value, element_size, width, height, ctx });
            }
        }
        NodeInfo::Host(_) => host_params(info).into_iter().for_each(|params| member!(params)),
        NodeInfo::Graph(graph) => {
            let ownership = CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
            member!(CUDA_CHILD_GRAPH_NODE_PARAMS { graph: CUgraph(graph.0), ownership });
        }
        NodeInfo::RecordEvent(event) | NodeInfo::WaitEvent(event) => member!(CUevent(event.0)),
        NodeInfo::MemOps { .. } => mem_ops_params(info).into_iter().for_each(|params| member!(params)),
        NodeInfo::MemAlloc { .. } => alloc_params(info).into_iter().for_each(|params| member!(params)),
        NodeInfo::Conditional { handle, kind, bodies, context } => {
            member!(CUDA_CONDITIONAL_NODE_PARAMS {
                handle: *handle,
                kind: CUgraphConditionalNodeType(*kind),
                size: bodies.1 as u32,
                ph_graph_out: HostAddr(bodies.0),
                ctx: CUcontext(context.0),
            });
        }
        NodeInfo::MemFree(address) => member!(CUDA_MEM_FREE_NODE_PARAMS { dptr: address.0 }),
        NodeInfo::Empty => {}
    }
}
