//! Exported functions implemented by `calls::green`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CU_DEV_SM_RESOURCE_GROUP_PARAMS, CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevice, CUevent,
    CUgreenCtx, CUresult, CUstream,
};

use crate::calls::green;
use crate::decode::{In, InOut, Out};
use crate::entry::Entry;
use crate::start::per_thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxFromGreenCtx(p_context: Out<CUcontext>, h_ctx: CUgreenCtx) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxFromGreenCtx");
    ENTRY.call(|driver| green::ctx_from_green_ctx(driver, p_context, h_ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetDevResource(
    h_ctx: CUcontext,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetDevResource");
    ENTRY.call(|driver| green::ctx_get_dev_resource(driver, h_ctx, resource, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevResourceGenerateDesc(
    ph_desc: Out<CUdevResourceDesc>,
    resources: In<CUdevResource>,
    nb_resources: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevResourceGenerateDesc");
    ENTRY.call(|driver| green::dev_resource_generate_desc(driver, ph_desc, resources, nb_resources))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevSmResourceSplit(
    result: Out<CUdevResource>,
    nb_groups: u32,
    input: In<CUdevResource>,
    remainder: Out<CUdevResource>,
    flags: u32,
    group_params: InOut<CU_DEV_SM_RESOURCE_GROUP_PARAMS>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevSmResourceSplit");
    ENTRY.call(|driver| green::dev_sm_resource_split(driver, result, nb_groups, input, remainder, flags, group_params))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevSmResourceSplitByCount(
    result: Out<CUdevResource>,
    nb_groups: InOut<u32>,
    input: In<CUdevResource>,
    remainder: Out<CUdevResource>,
    flags: u32,
    min_count: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevSmResourceSplitByCount");
    ENTRY.call(|driver| {
        green::dev_sm_resource_split_by_count(driver, result, nb_groups, input, remainder, flags, min_count)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetDevResource(
    device: CUdevice,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetDevResource");
    ENTRY.call(|driver| green::device_get_dev_resource(driver, device, resource, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxCreate(
    ph_ctx: Out<CUgreenCtx>,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxCreate");
    ENTRY.call(|driver| green::green_ctx_create(driver, ph_ctx, desc, dev, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxDestroy(h_ctx: CUgreenCtx) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxDestroy");
    ENTRY.call(|driver| green::green_ctx_destroy(driver, h_ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxGetDevResource(
    h_ctx: CUgreenCtx,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxGetDevResource");
    ENTRY.call(|driver| green::green_ctx_get_dev_resource(driver, h_ctx, resource, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxGetId");
    ENTRY.call(|driver| green::green_ctx_get_id(driver, green_ctx, green_ctx_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxRecordEvent(h_ctx: CUgreenCtx, h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxRecordEvent");
    ENTRY.call(|driver| green::green_ctx_record_event(driver, h_ctx, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxStreamCreate(
    ph_stream: Out<CUstream>,
    green_ctx: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxStreamCreate");
    ENTRY.call(|driver| green::green_ctx_stream_create(driver, ph_stream, green_ctx, flags, priority))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGreenCtxWaitEvent(h_ctx: CUgreenCtx, h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGreenCtxWaitEvent");
    ENTRY.call(|driver| green::green_ctx_wait_event(driver, h_ctx, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCtx_v2(
    h_stream: CUstream,
    p_ctx: Out<CUcontext>,
    p_green_ctx: Out<CUgreenCtx>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCtx_v2");
    ENTRY.call(|driver| green::stream_get_ctx_v2(driver, h_stream, p_ctx, p_green_ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCtx_v2_ptsz(
    h_stream: CUstream,
    p_ctx: Out<CUcontext>,
    p_green_ctx: Out<CUgreenCtx>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetCtx_v2_ptsz");
    ENTRY.call(|driver| green::stream_get_ctx_v2(driver, per_thread(h_stream), p_ctx, p_green_ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetDevResource(
    h_stream: CUstream,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetDevResource");
    ENTRY.call(|driver| green::stream_get_dev_resource(driver, h_stream, resource, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetDevResource_ptsz(
    h_stream: CUstream,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetDevResource_ptsz");
    ENTRY.call(|driver| green::stream_get_dev_resource(driver, per_thread(h_stream), resource, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetGreenCtx(h_stream: CUstream, ph_ctx: Out<CUgreenCtx>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuStreamGetGreenCtx");
    ENTRY.call(|driver| green::stream_get_green_ctx(driver, h_stream, ph_ctx))
}
