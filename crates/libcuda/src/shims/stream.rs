//! Exported functions implemented by `calls::stream`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamCaptureMode, CUstreamCaptureStatus,
    HostAddr,
};

use crate::calls::stream;
use crate::decode::{In, InOut, Out};
use crate::entry::Entry;
use crate::start::per_thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamAttachMemAsync(
    h_stream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamAttachMemAsync");
    ENTRY.call(|driver| stream::stream_attach_mem_async(driver, h_stream, dptr, length, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamAttachMemAsync_ptsz(
    h_stream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamAttachMemAsync_ptsz");
    ENTRY.call(|driver| stream::stream_attach_mem_async(driver, per_thread(h_stream), dptr, length, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBatchMemOp(
    stream: CUstream,
    count: u32,
    param_array: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBatchMemOp");
    ENTRY.call(|driver| stream::stream_batch_mem_op(driver, stream, count, param_array, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    param_array: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBatchMemOp_v2");
    ENTRY.call(|driver| stream::stream_batch_mem_op(driver, stream, count, param_array, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBatchMemOp_ptsz(
    stream: CUstream,
    count: u32,
    param_array: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBatchMemOp_ptsz");
    ENTRY.call(|driver| stream::stream_batch_mem_op(driver, per_thread(stream), count, param_array, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBatchMemOp_v2_ptsz(
    stream: CUstream,
    count: u32,
    param_array: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBatchMemOp_v2_ptsz");
    ENTRY.call(|driver| stream::stream_batch_mem_op(driver, per_thread(stream), count, param_array, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCapture(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginCapture");
    ENTRY.call(|driver| stream::stream_begin_capture(driver, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginCapture_v2");
    ENTRY.call(|driver| stream::stream_begin_capture_v2(driver, h_stream, mode))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCapture_ptsz(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginCapture_ptsz");
    ENTRY.call(|driver| stream::stream_begin_capture(driver, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCapture_v2_ptsz(h_stream: CUstream, mode: CUstreamCaptureMode) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginCapture_v2_ptsz");
    ENTRY.call(|driver| stream::stream_begin_capture_v2(driver, per_thread(h_stream), mode))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCaptureToGraph(
    h_stream: CUstream,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginCaptureToGraph");
    ENTRY.call(|driver| {
        stream::stream_begin_capture_to_graph(
            driver,
            h_stream,
            h_graph,
            dependencies,
            dependency_data,
            num_dependencies,
            mode,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginCaptureToGraph_ptsz(
    h_stream: CUstream,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginCaptureToGraph_ptsz");
    ENTRY.call(|driver| {
        stream::stream_begin_capture_to_graph(
            driver,
            per_thread(h_stream),
            h_graph,
            dependencies,
            dependency_data,
            num_dependencies,
            mode,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginRecaptureToGraph(
    h_stream: CUstream,
    mode: CUstreamCaptureMode,
    h_graph: CUgraph,
    callback_func: HostAddr,
    user_data: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginRecaptureToGraph");
    ENTRY.call(|driver| {
        stream::stream_begin_recapture_to_graph(driver, h_stream, mode, h_graph, callback_func, user_data)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamBeginRecaptureToGraph_ptsz(
    h_stream: CUstream,
    mode: CUstreamCaptureMode,
    h_graph: CUgraph,
    callback_func: HostAddr,
    user_data: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamBeginRecaptureToGraph_ptsz");
    ENTRY.call(|driver| {
        stream::stream_begin_recapture_to_graph(driver, per_thread(h_stream), mode, h_graph, callback_func, user_data)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamCopyAttributes(dst_stream: CUstream, src_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamCopyAttributes");
    ENTRY.call(|driver| stream::stream_copy_attributes(driver, dst_stream, src_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamCopyAttributes_ptsz(dst_stream: CUstream, src_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamCopyAttributes_ptsz");
    ENTRY.call(|driver| stream::stream_copy_attributes(driver, per_thread(dst_stream), per_thread(src_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamCreate(ph_stream: Out<CUstream>, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamCreate");
    ENTRY.call(|driver| stream::stream_create(driver, ph_stream, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamCreateWithPriority(ph_stream: Out<CUstream>, flags: u32, priority: i32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamCreateWithPriority");
    ENTRY.call(|driver| stream::stream_create_with_priority(driver, ph_stream, flags, priority))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamDestroy(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamDestroy");
    ENTRY.call(|driver| stream::stream_destroy(driver, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamDestroy_v2(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamDestroy_v2");
    ENTRY.call(|driver| stream::stream_destroy(driver, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamEndCapture(h_stream: CUstream, ph_graph: Out<CUgraph>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamEndCapture");
    ENTRY.call(|driver| stream::stream_end_capture(driver, h_stream, ph_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamEndCapture_ptsz(h_stream: CUstream, ph_graph: Out<CUgraph>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamEndCapture_ptsz");
    ENTRY.call(|driver| stream::stream_end_capture(driver, per_thread(h_stream), ph_graph))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetAttribute(
    h_stream: CUstream,
    attr: CUlaunchAttributeID,
    value: Out<CUlaunchAttributeValue>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetAttribute");
    ENTRY.call(|driver| stream::stream_get_attribute(driver, h_stream, attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetAttribute_ptsz(
    h_stream: CUstream,
    attr: CUlaunchAttributeID,
    value: Out<CUlaunchAttributeValue>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetAttribute_ptsz");
    ENTRY.call(|driver| stream::stream_get_attribute(driver, per_thread(h_stream), attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCaptureInfo");
    ENTRY.call(|driver| stream::stream_get_capture_info(driver, h_stream, capture_status_out, id_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo_v2(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<HostAddr>,
    num_dependencies_out: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCaptureInfo_v2");
    ENTRY.call(|driver| {
        stream::stream_get_capture_info_v2(
            driver,
            h_stream,
            capture_status_out,
            id_out,
            graph_out,
            dependencies_out,
            num_dependencies_out,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo_v3(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<HostAddr>,
    edge_data_out: Out<HostAddr>,
    num_dependencies_out: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCaptureInfo_v3");
    ENTRY.call(|driver| {
        stream::stream_get_capture_info_v3(
            driver,
            h_stream,
            capture_status_out,
            id_out,
            graph_out,
            dependencies_out,
            edge_data_out,
            num_dependencies_out,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo_ptsz(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCaptureInfo_ptsz");
    ENTRY.call(|driver| stream::stream_get_capture_info(driver, per_thread(h_stream), capture_status_out, id_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo_v2_ptsz(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<HostAddr>,
    num_dependencies_out: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCaptureInfo_v2_ptsz");
    ENTRY.call(|driver| {
        stream::stream_get_capture_info_v2(
            driver,
            per_thread(h_stream),
            capture_status_out,
            id_out,
            graph_out,
            dependencies_out,
            num_dependencies_out,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCaptureInfo_v3_ptsz(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<HostAddr>,
    edge_data_out: Out<HostAddr>,
    num_dependencies_out: Out<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCaptureInfo_v3_ptsz");
    ENTRY.call(|driver| {
        stream::stream_get_capture_info_v3(
            driver,
            per_thread(h_stream),
            capture_status_out,
            id_out,
            graph_out,
            dependencies_out,
            edge_data_out,
            num_dependencies_out,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCtx(h_stream: CUstream, pctx: Out<CUcontext>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCtx");
    ENTRY.call(|driver| stream::stream_get_ctx(driver, h_stream, pctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCtx_ptsz(h_stream: CUstream, pctx: Out<CUcontext>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCtx_ptsz");
    ENTRY.call(|driver| stream::stream_get_ctx(driver, per_thread(h_stream), pctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetDevice(h_stream: CUstream, device: Out<CUdevice>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetDevice");
    ENTRY.call(|driver| stream::stream_get_device(driver, h_stream, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetDevice_ptsz(h_stream: CUstream, device: Out<CUdevice>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetDevice_ptsz");
    ENTRY.call(|driver| stream::stream_get_device(driver, per_thread(h_stream), device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetFlags(h_stream: CUstream, flags: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetFlags");
    ENTRY.call(|driver| stream::stream_get_flags(driver, h_stream, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetFlags_ptsz(h_stream: CUstream, flags: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetFlags_ptsz");
    ENTRY.call(|driver| stream::stream_get_flags(driver, per_thread(h_stream), flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetId(h_stream: CUstream, stream_id: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetId");
    ENTRY.call(|driver| stream::stream_get_id(driver, h_stream, stream_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetId_ptsz(h_stream: CUstream, stream_id: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetId_ptsz");
    ENTRY.call(|driver| stream::stream_get_id(driver, per_thread(h_stream), stream_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetPriority(h_stream: CUstream, priority: Out<i32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetPriority");
    ENTRY.call(|driver| stream::stream_get_priority(driver, h_stream, priority))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetPriority_ptsz(h_stream: CUstream, priority: Out<i32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetPriority_ptsz");
    ENTRY.call(|driver| stream::stream_get_priority(driver, per_thread(h_stream), priority))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamIsCapturing(
    h_stream: CUstream,
    capture_status: Out<CUstreamCaptureStatus>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamIsCapturing");
    ENTRY.call(|driver| stream::stream_is_capturing(driver, h_stream, capture_status))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamIsCapturing_ptsz(
    h_stream: CUstream,
    capture_status: Out<CUstreamCaptureStatus>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamIsCapturing_ptsz");
    ENTRY.call(|driver| stream::stream_is_capturing(driver, per_thread(h_stream), capture_status))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamQuery(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamQuery");
    ENTRY.call(|driver| stream::stream_query(driver, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamQuery_ptsz(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamQuery_ptsz");
    ENTRY.call(|driver| stream::stream_query(driver, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamSetAttribute(
    h_stream: CUstream,
    attr: CUlaunchAttributeID,
    param: In<CUlaunchAttributeValue>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamSetAttribute");
    ENTRY.call(|driver| stream::stream_set_attribute(driver, h_stream, attr, param))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamSetAttribute_ptsz(
    h_stream: CUstream,
    attr: CUlaunchAttributeID,
    param: In<CUlaunchAttributeValue>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamSetAttribute_ptsz");
    ENTRY.call(|driver| stream::stream_set_attribute(driver, per_thread(h_stream), attr, param))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamSynchronize(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamSynchronize");
    ENTRY.call(|driver| stream::stream_synchronize(driver, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamSynchronize_ptsz(h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamSynchronize_ptsz");
    ENTRY.call(|driver| stream::stream_synchronize(driver, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamUpdateCaptureDependencies(
    h_stream: CUstream,
    dependencies: Out<CUgraphNode>,
    num_dependencies: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamUpdateCaptureDependencies");
    ENTRY.call(|driver| {
        stream::stream_update_capture_dependencies(driver, h_stream, dependencies, num_dependencies, flags)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    h_stream: CUstream,
    dependencies: Out<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamUpdateCaptureDependencies_v2");
    ENTRY.call(|driver| {
        stream::stream_update_capture_dependencies_v2(
            driver,
            h_stream,
            dependencies,
            dependency_data,
            num_dependencies,
            flags,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamUpdateCaptureDependencies_ptsz(
    h_stream: CUstream,
    dependencies: Out<CUgraphNode>,
    num_dependencies: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamUpdateCaptureDependencies_ptsz");
    ENTRY.call(|driver| {
        stream::stream_update_capture_dependencies(driver, per_thread(h_stream), dependencies, num_dependencies, flags)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamUpdateCaptureDependencies_v2_ptsz(
    h_stream: CUstream,
    dependencies: Out<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamUpdateCaptureDependencies_v2_ptsz");
    ENTRY.call(|driver| {
        stream::stream_update_capture_dependencies_v2(
            driver,
            per_thread(h_stream),
            dependencies,
            dependency_data,
            num_dependencies,
            flags,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitEvent");
    ENTRY.call(|driver| stream::stream_wait_event(driver, h_stream, h_event, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitEvent_ptsz(h_stream: CUstream, h_event: CUevent, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitEvent_ptsz");
    ENTRY.call(|driver| stream::stream_wait_event(driver, per_thread(h_stream), h_event, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue32");
    ENTRY.call(|driver| stream::stream_wait_value32(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue32_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue32_v2");
    ENTRY.call(|driver| stream::stream_wait_value32(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue32_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue32_ptsz");
    ENTRY.call(|driver| stream::stream_wait_value32(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue32_v2_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue32_v2_ptsz");
    ENTRY.call(|driver| stream::stream_wait_value32(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue64");
    ENTRY.call(|driver| stream::stream_wait_value64(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue64_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue64_v2");
    ENTRY.call(|driver| stream::stream_wait_value64(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue64_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue64_ptsz");
    ENTRY.call(|driver| stream::stream_wait_value64(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitValue64_v2_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWaitValue64_v2_ptsz");
    ENTRY.call(|driver| stream::stream_wait_value64(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue32");
    ENTRY.call(|driver| stream::stream_write_value32(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue32_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue32_v2");
    ENTRY.call(|driver| stream::stream_write_value32(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue32_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue32_ptsz");
    ENTRY.call(|driver| stream::stream_write_value32(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue32_v2_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue32_v2_ptsz");
    ENTRY.call(|driver| stream::stream_write_value32(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue64");
    ENTRY.call(|driver| stream::stream_write_value64(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue64_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue64_v2");
    ENTRY.call(|driver| stream::stream_write_value64(driver, stream, addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue64_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue64_ptsz");
    ENTRY.call(|driver| stream::stream_write_value64(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWriteValue64_v2_ptsz(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamWriteValue64_v2_ptsz");
    ENTRY.call(|driver| stream::stream_write_value64(driver, per_thread(stream), addr, value, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuThreadExchangeStreamCaptureMode(mode: InOut<CUstreamCaptureMode>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuThreadExchangeStreamCaptureMode");
    ENTRY.call(|driver| stream::thread_exchange_stream_capture_mode(driver, mode))
}
