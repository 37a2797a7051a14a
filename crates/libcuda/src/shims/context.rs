//! Exported functions implemented by `calls::context`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUcontext, CUctxCreateParams, CUdevice, CUevent, CUexecAffinityParam, CUexecAffinityType,
    CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUfunc_cache, CUlimit, CUresult, CUsharedconfig,
};

use crate::calls::context;
use crate::decode::{In, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxAttach(pctx: Out<CUcontext>, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxAttach");
    ENTRY.call(|driver| context::ctx_attach(driver, pctx, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate(pctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxCreate");
    ENTRY.call(|driver| context::ctx_create(driver, pctx, flags, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate_v2(pctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxCreate_v2");
    ENTRY.call(|driver| context::ctx_create(driver, pctx, flags, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate_v3(
    pctx: Out<CUcontext>,
    params_array: In<CUexecAffinityParam>,
    num_params: i32,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxCreate_v3");
    ENTRY.call(|driver| context::ctx_create_v3(driver, pctx, params_array, num_params, flags, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxCreate_v4(
    pctx: Out<CUcontext>,
    ctx_create_params: In<CUctxCreateParams>,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxCreate_v4");
    ENTRY.call(|driver| context::ctx_create_v4(driver, pctx, ctx_create_params, flags, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxDestroy(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxDestroy");
    ENTRY.call(|driver| context::ctx_destroy(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxDestroy_v2(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxDestroy_v2");
    ENTRY.call(|driver| context::ctx_destroy(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxDetach(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxDetach");
    ENTRY.call(|driver| context::ctx_detach(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxDisablePeerAccess(peer_context: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxDisablePeerAccess");
    ENTRY.call(|driver| context::ctx_disable_peer_access(driver, peer_context))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxEnablePeerAccess(peer_context: CUcontext, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxEnablePeerAccess");
    ENTRY.call(|driver| context::ctx_enable_peer_access(driver, peer_context, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetApiVersion");
    ENTRY.call(|driver| context::ctx_get_api_version(driver, ctx, version))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetCacheConfig(pconfig: Out<CUfunc_cache>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetCacheConfig");
    ENTRY.call(|driver| context::ctx_get_cache_config(driver, pconfig))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetCurrent(pctx: Out<CUcontext>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetCurrent");
    ENTRY.call(|driver| context::ctx_get_current(driver, pctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetDevice(device: Out<CUdevice>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetDevice");
    ENTRY.call(|driver| context::ctx_get_device(driver, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetDevice_v2(device: Out<CUdevice>, ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetDevice_v2");
    ENTRY.call(|driver| context::ctx_get_device_v2(driver, device, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetExecAffinity(
    p_exec_affinity: Out<CUexecAffinityParam>,
    kind: CUexecAffinityType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetExecAffinity");
    ENTRY.call(|driver| context::ctx_get_exec_affinity(driver, p_exec_affinity, kind))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetFlags(flags: Out<u32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetFlags");
    ENTRY.call(|driver| context::ctx_get_flags(driver, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetId(ctx: CUcontext, ctx_id: Out<u64>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetId");
    ENTRY.call(|driver| context::ctx_get_id(driver, ctx, ctx_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetLimit(pvalue: Out<usize>, limit: CUlimit) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetLimit");
    ENTRY.call(|driver| context::ctx_get_limit(driver, pvalue, limit))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetSharedMemConfig(p_config: Out<CUsharedconfig>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetSharedMemConfig");
    ENTRY.call(|driver| context::ctx_get_shared_mem_config(driver, p_config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxGetStreamPriorityRange(
    least_priority: Out<i32>,
    greatest_priority: Out<i32>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxGetStreamPriorityRange");
    ENTRY.call(|driver| context::ctx_get_stream_priority_range(driver, least_priority, greatest_priority))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxPopCurrent(pctx: Out<CUcontext>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxPopCurrent");
    ENTRY.call(|driver| context::ctx_pop_current(driver, pctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxPopCurrent_v2(pctx: Out<CUcontext>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxPopCurrent_v2");
    ENTRY.call(|driver| context::ctx_pop_current(driver, pctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxPushCurrent(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxPushCurrent");
    ENTRY.call(|driver| context::ctx_push_current(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxPushCurrent_v2");
    ENTRY.call(|driver| context::ctx_push_current(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxRecordEvent(h_ctx: CUcontext, h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxRecordEvent");
    ENTRY.call(|driver| context::ctx_record_event(driver, h_ctx, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxResetPersistingL2Cache() -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxResetPersistingL2Cache");
    ENTRY.call(context::ctx_reset_persisting_l2_cache)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetCacheConfig(config: CUfunc_cache) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSetCacheConfig");
    ENTRY.call(|driver| context::ctx_set_cache_config(driver, config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSetCurrent");
    ENTRY.call(|driver| context::ctx_set_current(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetFlags(flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSetFlags");
    ENTRY.call(|driver| context::ctx_set_flags(driver, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSetLimit");
    ENTRY.call(|driver| context::ctx_set_limit(driver, limit, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSetSharedMemConfig(config: CUsharedconfig) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSetSharedMemConfig");
    ENTRY.call(|driver| context::ctx_set_shared_mem_config(driver, config))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSynchronize() -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSynchronize");
    ENTRY.call(context::ctx_synchronize)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxSynchronize_v2(ctx: CUcontext) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxSynchronize_v2");
    ENTRY.call(|driver| context::ctx_synchronize_v2(driver, ctx))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCtxWaitEvent(h_ctx: CUcontext, h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCtxWaitEvent");
    ENTRY.call(|driver| context::ctx_wait_event(driver, h_ctx, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuFlushGPUDirectRDMAWrites(
    target: CUflushGPUDirectRDMAWritesTarget,
    scope: CUflushGPUDirectRDMAWritesScope,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuFlushGPUDirectRDMAWrites");
    ENTRY.call(|driver| context::flush_gpu_direct_rdma_writes(driver, target, scope))
}
