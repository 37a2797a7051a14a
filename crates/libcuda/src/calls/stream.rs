//! Glue of streams: attributes, capture, operations on values in memory.

use cuda_abi::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType, CUstreamCaptureMode,
    CUstreamCaptureStatus, HostAddr,
};
use cuda_core::{Driver, MemOp};
use gpu::DevAddr;

use crate::callback;
use crate::calls::graph::before;
use crate::decode::{Core, Encode, In, InOut, Out};
use crate::entry::{Answer, Refusal, refuse};

/// Most operations of one `cuStreamBatchMemOp`, as CUDA has it.
const MAX_BATCH: u32 = 256;

pub(crate) fn stream_create(driver: &Driver, stream: Out<CUstream>, flags: u32) -> Answer {
    stream.required()?;
    stream.set(driver.stream_create(flags)?);
    Ok(())
}

pub(crate) fn stream_create_with_priority(driver: &Driver, stream: Out<CUstream>, flags: u32, priority: i32) -> Answer {
    stream.required()?;
    stream.set(driver.stream_create_with_priority(flags, priority)?);
    Ok(())
}

pub(crate) fn stream_destroy(driver: &Driver, stream: CUstream) -> Answer {
    Ok(driver.stream_destroy(stream.core())?)
}

pub(crate) fn stream_synchronize(driver: &Driver, stream: CUstream) -> Answer {
    Ok(driver.stream_synchronize(stream.core())?)
}

pub(crate) fn stream_query(driver: &Driver, stream: CUstream) -> Answer {
    Ok(driver.stream_query(stream.core())?)
}

pub(crate) fn stream_wait_event(driver: &Driver, stream: CUstream, event: CUevent, flags: u32) -> Answer {
    Ok(driver.stream_wait_event(stream.core(), event.core(), flags)?)
}

pub(crate) fn stream_get_flags(driver: &Driver, stream: CUstream, flags: Out<u32>) -> Answer {
    flags.required()?;
    flags.set(driver.stream_get_flags(stream.core())?);
    Ok(())
}

pub(crate) fn stream_get_priority(driver: &Driver, stream: CUstream, priority: Out<i32>) -> Answer {
    priority.required()?;
    priority.set(driver.stream_get_priority(stream.core())?);
    Ok(())
}

pub(crate) fn stream_get_id(driver: &Driver, stream: CUstream, id: Out<u64>) -> Answer {
    id.required()?;
    id.set(driver.stream_get_id(stream.core())?);
    Ok(())
}

pub(crate) fn stream_get_device(driver: &Driver, stream: CUstream, device: Out<CUdevice>) -> Answer {
    device.required()?;
    device.set(driver.stream_get_device(stream.core())?);
    Ok(())
}

pub(crate) fn stream_get_ctx(driver: &Driver, stream: CUstream, ctx: Out<CUcontext>) -> Answer {
    ctx.required()?;
    ctx.set(driver.stream_get_ctx(stream.core())?);
    Ok(())
}

pub(crate) fn stream_copy_attributes(driver: &Driver, dst: CUstream, src: CUstream) -> Answer {
    Ok(driver.stream_copy_attributes(dst.core(), src.core())?)
}

pub(crate) fn stream_get_attribute(
    driver: &Driver,
    stream: CUstream,
    attribute: CUlaunchAttributeID,
    value: Out<CUlaunchAttributeValue>,
) -> Answer {
    value.required()?;
    let bytes = driver.stream_get_attribute(stream.core(), attribute.0)?;
    value.set(bytes.encode());
    Ok(())
}

pub(crate) fn stream_set_attribute(
    driver: &Driver,
    stream: CUstream,
    attribute: CUlaunchAttributeID,
    value: In<CUlaunchAttributeValue>,
) -> Answer {
    let bytes: [u8; 64] = value.get()?.encode();
    Ok(driver.stream_set_attribute(stream.core(), attribute.0, &bytes)?)
}

pub(crate) fn stream_attach_mem_async(
    driver: &Driver,
    stream: CUstream,
    address: CUdeviceptr,
    length: usize,
    flags: u32,
) -> Answer {
    Ok(driver.stream_attach_mem_async(stream.core(), DevAddr(address), length as u64, flags)?)
}

pub(crate) fn stream_is_capturing(driver: &Driver, stream: CUstream, status: Out<CUstreamCaptureStatus>) -> Answer {
    status.required()?;
    status.set(driver.stream_get_capture_info(stream.core())?.status);
    Ok(())
}

pub(crate) fn stream_begin_capture(driver: &Driver, stream: CUstream) -> Answer {
    stream_begin_capture_v2(driver, stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
}

pub(crate) fn stream_begin_capture_v2(driver: &Driver, stream: CUstream, mode: CUstreamCaptureMode) -> Answer {
    Ok(driver.stream_begin_capture(stream.core(), mode.0)?)
}

pub(crate) fn stream_begin_capture_to_graph(
    driver: &Driver,
    stream: CUstream,
    graph: CUgraph,
    nodes: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
    mode: CUstreamCaptureMode,
) -> Answer {
    let before = before(nodes, data, count)?;
    Ok(driver.stream_begin_capture_to_graph(stream.core(), graph.core(), &before, mode.0)?)
}

pub(crate) fn stream_begin_recapture_to_graph(
    driver: &Driver,
    stream: CUstream,
    mode: CUstreamCaptureMode,
    graph: CUgraph,
    approve: HostAddr,
    data: HostAddr,
) -> Answer {
    let approve = callback::recaptured(approve, data);
    Ok(driver.stream_begin_recapture_to_graph(stream.core(), graph.core(), mode.0, approve)?)
}

pub(crate) fn stream_end_capture(driver: &Driver, stream: CUstream, graph: Out<CUgraph>) -> Answer {
    if graph.is_null() {
        // Who has captured into a graph has it.
        return Ok(driver.stream_end_capture_to_graph(stream.core())?);
    }
    graph.set_plain(CUgraph::NULL);
    graph.set(driver.stream_end_capture(stream.core())?);
    Ok(())
}

pub(crate) fn stream_get_capture_info(
    driver: &Driver,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
) -> Answer {
    stream_get_capture_info_v2(driver, stream, status, id, Out::none(), Out::none(), Out::none())
}

pub(crate) fn stream_get_capture_info_v2(
    driver: &Driver,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<HostAddr>,
    count: Out<usize>,
) -> Answer {
    capture_info(driver, stream, status, id, graph, dependencies, Out::none(), count)
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) fn stream_get_capture_info_v3(
    driver: &Driver,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<HostAddr>,
    edges: Out<HostAddr>,
    count: Out<usize>,
) -> Answer {
    if dependencies.is_null() && !edges.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    capture_info(driver, stream, status, id, graph, dependencies, edges, count)
}

#[expect(clippy::too_many_arguments, reason = "the interface's arguments")]
fn capture_info(
    driver: &Driver,
    stream: CUstream,
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<HostAddr>,
    edges: Out<HostAddr>,
    count: Out<usize>,
) -> Answer {
    status.required()?;
    let info = driver.stream_get_capture_info(stream.core())?;
    if !info.plain && !dependencies.is_null() && edges.is_null() {
        return refuse(CUresult::CUDA_ERROR_LOSSY_QUERY);
    }
    status.set(info.status);
    if info.status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE.0 {
        return Ok(());
    }
    id.set(info.id);
    let (place, nodes) = info.before;
    graph.set(info.graph);
    dependencies.set(place);
    edges.set(info.edges);
    count.set(nodes);
    Ok(())
}

pub(crate) fn stream_update_capture_dependencies(
    driver: &Driver,
    stream: CUstream,
    nodes: Out<CUgraphNode>,
    count: usize,
    flags: u32,
) -> Answer {
    stream_update_capture_dependencies_v2(driver, stream, nodes, In::none(), count, flags)
}

pub(crate) fn stream_update_capture_dependencies_v2(
    driver: &Driver,
    stream: CUstream,
    nodes: Out<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
    flags: u32,
) -> Answer {
    if flags > 1 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let nodes = before(nodes.input(), data, count)?;
    Ok(driver.stream_update_capture_dependencies(stream.core(), &nodes, flags == 1)?)
}

pub(crate) fn thread_exchange_stream_capture_mode(driver: &Driver, mode: InOut<CUstreamCaptureMode>) -> Answer {
    let wanted = mode.input().get()?;
    mode.output().set(driver.thread_exchange_stream_capture_mode(wanted.0)?);
    Ok(())
}

pub(crate) fn stream_wait_value32(
    driver: &Driver,
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: u32,
) -> Answer {
    Ok(driver.stream_wait_value(stream.core(), DevAddr(address), u64::from(value), false, flags)?)
}

pub(crate) fn stream_wait_value64(
    driver: &Driver,
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: u32,
) -> Answer {
    Ok(driver.stream_wait_value(stream.core(), DevAddr(address), value, true, flags)?)
}

pub(crate) fn stream_write_value32(
    driver: &Driver,
    stream: CUstream,
    address: CUdeviceptr,
    value: u32,
    flags: u32,
) -> Answer {
    Ok(driver.stream_write_value(stream.core(), DevAddr(address), u64::from(value), false, flags)?)
}

pub(crate) fn stream_write_value64(
    driver: &Driver,
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: u32,
) -> Answer {
    Ok(driver.stream_write_value(stream.core(), DevAddr(address), value, true, flags)?)
}

pub(crate) fn stream_batch_mem_op(
    driver: &Driver,
    stream: CUstream,
    count: u32,
    operations: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Answer {
    Ok(driver.stream_batch_mem_op(stream.core(), &mem_ops(count, operations)?, flags)?)
}

/// The operations of a list.
pub(crate) fn mem_ops(count: u32, operations: In<CUstreamBatchMemOpParams>) -> Result<Vec<MemOp>, Refusal> {
    if count > MAX_BATCH {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let operations = unsafe { operations.list(count as usize) }?;
    operations.iter().map(mem_op).collect()
}

/// The members of the union: {u32 operation, u64 address at 8, u32 or u64 value at 16, u32 flags at 24, …}.
fn mem_op(operation: &CUstreamBatchMemOpParams) -> Result<MemOp, Refusal> {
    let [kind, address, value, flags, ..] = operation.words;
    let (address, narrow, flags) = (DevAddr(address), value & 0xffff_ffff, flags as u32);
    Ok(match CUstreamBatchMemOpType(kind as u32) {
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32 => {
            MemOp::Wait { address, value: narrow, wide: false, flags }
        }
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64 => MemOp::Wait { address, value, wide: true, flags },
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32 => {
            MemOp::Write { address, value: narrow, wide: false, flags }
        }
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64 => MemOp::Write { address, value, wide: true, flags },
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES
        | CUstreamBatchMemOpType::CU_STREAM_MEM_OP_BARRIER => MemOp::Nothing(kind),
        CUstreamBatchMemOpType::CU_STREAM_MEM_OP_ATOMIC_REDUCTION => {
            return refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}
