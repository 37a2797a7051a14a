//! Glue of contexts: the stack of them, limits, what they are set to.

use cuda_abi::{
    CUcontext, CUctxCreateParams, CUdevice, CUevent, CUexecAffinityParam, CUexecAffinityType,
    CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget, CUfunc_cache, CUlimit, CUresult, CUsharedconfig,
};
use cuda_core::{Device, Driver};

use crate::decode::{Core, In, Out};
use crate::entry::{Answer, refuse};

pub(crate) fn ctx_create(driver: &Driver, ctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> Answer {
    ctx.required()?;
    ctx.set(driver.ctx_create(flags, Device(dev))?);
    Ok(())
}

pub(crate) fn ctx_create_v3(
    driver: &Driver,
    ctx: Out<CUcontext>,
    affinities: In<CUexecAffinityParam>,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> Answer {
    if count < 0 || (count > 0) == affinities.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if count > 0 {
        return refuse(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    ctx_create(driver, ctx, flags, dev)
}

pub(crate) fn ctx_create_v4(
    driver: &Driver,
    ctx: Out<CUcontext>,
    params: In<CUctxCreateParams>,
    flags: u32,
    dev: CUdevice,
) -> Answer {
    if !params.is_null() {
        let params = params.get()?;
        if !params.cig_params.is_null() {
            return refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if params.num_exec_affinity_params != 0 {
            return refuse(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
    }
    ctx_create(driver, ctx, flags, dev)
}

pub(crate) fn ctx_destroy(driver: &Driver, ctx: CUcontext) -> Answer {
    Ok(driver.ctx_destroy(ctx.core())?)
}

pub(crate) fn ctx_attach(driver: &Driver, ctx: Out<CUcontext>, flags: u32) -> Answer {
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    ctx.required()?;
    ctx.set(driver.ctx_attach(cuda_core::Context::NULL)?);
    Ok(())
}

pub(crate) fn ctx_detach(driver: &Driver, ctx: CUcontext) -> Answer {
    Ok(driver.ctx_detach(ctx.core())?)
}

pub(crate) fn ctx_push_current(driver: &Driver, ctx: CUcontext) -> Answer {
    Ok(driver.ctx_push_current(ctx.core())?)
}

pub(crate) fn ctx_pop_current(driver: &Driver, ctx: Out<CUcontext>) -> Answer {
    ctx.set(driver.ctx_pop_current()?);
    Ok(())
}

pub(crate) fn ctx_set_current(driver: &Driver, ctx: CUcontext) -> Answer {
    Ok(driver.ctx_set_current(ctx.core())?)
}

pub(crate) fn ctx_get_current(driver: &Driver, ctx: Out<CUcontext>) -> Answer {
    ctx.required()?;
    ctx.set(driver.ctx_get_current()?);
    Ok(())
}

pub(crate) fn ctx_get_device(driver: &Driver, device: Out<CUdevice>) -> Answer {
    device.required()?;
    device.set(driver.ctx_get_device()?);
    Ok(())
}

pub(crate) fn ctx_get_device_v2(driver: &Driver, device: Out<CUdevice>, ctx: CUcontext) -> Answer {
    device.required()?;
    device.set(driver.ctx_get_device_of(ctx.core())?);
    Ok(())
}

pub(crate) fn ctx_get_flags(driver: &Driver, flags: Out<u32>) -> Answer {
    flags.required()?;
    flags.set(driver.ctx_get_flags()?);
    Ok(())
}

pub(crate) fn ctx_set_flags(driver: &Driver, flags: u32) -> Answer {
    Ok(driver.ctx_set_flags(flags)?)
}

pub(crate) fn ctx_get_id(driver: &Driver, ctx: CUcontext, id: Out<u64>) -> Answer {
    id.required()?;
    id.set(driver.ctx_get_id(ctx.core())?);
    Ok(())
}

pub(crate) fn ctx_get_api_version(driver: &Driver, ctx: CUcontext, version: Out<u32>) -> Answer {
    version.required()?;
    version.set(driver.ctx_get_api_version(ctx.core())?);
    Ok(())
}

pub(crate) fn ctx_synchronize(driver: &Driver) -> Answer {
    Ok(driver.ctx_synchronize()?)
}

pub(crate) fn ctx_synchronize_v2(driver: &Driver, ctx: CUcontext) -> Answer {
    Ok(driver.ctx_synchronize_of(ctx.core())?)
}

pub(crate) fn ctx_set_limit(driver: &Driver, limit: CUlimit, value: usize) -> Answer {
    Ok(driver.ctx_set_limit(limit.0, value as u64)?)
}

pub(crate) fn ctx_get_limit(driver: &Driver, value: Out<usize>, limit: CUlimit) -> Answer {
    value.required()?;
    value.set(driver.ctx_get_limit(limit.0)?);
    Ok(())
}

pub(crate) fn ctx_get_cache_config(driver: &Driver, config: Out<CUfunc_cache>) -> Answer {
    config.required()?;
    config.set(driver.ctx_get_cache_config()?);
    Ok(())
}

pub(crate) fn ctx_set_cache_config(driver: &Driver, config: CUfunc_cache) -> Answer {
    Ok(driver.ctx_set_cache_config(config.0)?)
}

pub(crate) fn ctx_get_shared_mem_config(driver: &Driver, config: Out<CUsharedconfig>) -> Answer {
    config.required()?;
    config.set(driver.ctx_get_shared_mem_config()?);
    Ok(())
}

pub(crate) fn ctx_set_shared_mem_config(driver: &Driver, config: CUsharedconfig) -> Answer {
    Ok(driver.ctx_set_shared_mem_config(config.0)?)
}

pub(crate) fn ctx_get_stream_priority_range(driver: &Driver, least: Out<i32>, greatest: Out<i32>) -> Answer {
    let range = driver.ctx_get_stream_priority_range()?;
    least.set(range.0);
    greatest.set(range.1);
    Ok(())
}

pub(crate) fn ctx_reset_persisting_l2_cache(driver: &Driver) -> Answer {
    Ok(driver.ctx_reset_persisting_l2_cache()?)
}

pub(crate) fn ctx_get_exec_affinity(
    driver: &Driver,
    affinity: Out<CUexecAffinityParam>,
    kind: CUexecAffinityType,
) -> Answer {
    affinity.required()?;
    let multiprocessors = driver.ctx_get_exec_affinity(kind.0 as i32)?;
    affinity.set(CUexecAffinityParam { kind, value: [multiprocessors] });
    Ok(())
}

pub(crate) fn ctx_record_event(driver: &Driver, ctx: CUcontext, event: CUevent) -> Answer {
    Ok(driver.ctx_record_event(ctx.core(), event.core())?)
}

pub(crate) fn ctx_wait_event(driver: &Driver, ctx: CUcontext, event: CUevent) -> Answer {
    Ok(driver.ctx_wait_event(ctx.core(), event.core())?)
}

pub(crate) fn ctx_enable_peer_access(driver: &Driver, peer: CUcontext, flags: u32) -> Answer {
    Ok(driver.ctx_enable_peer_access(peer.core(), flags)?)
}

pub(crate) fn ctx_disable_peer_access(driver: &Driver, peer: CUcontext) -> Answer {
    Ok(driver.ctx_disable_peer_access(peer.core())?)
}

/// Nobody writes into GPU memory from outside: no driver of another device finds it.
pub(crate) fn flush_gpu_direct_rdma_writes(
    driver: &Driver,
    target: CUflushGPUDirectRDMAWritesTarget,
    scope: CUflushGPUDirectRDMAWritesScope,
) -> Answer {
    let known = target == CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
        && CUflushGPUDirectRDMAWritesScope::ALL.iter().any(|(of, _)| *of == scope);
    driver.ctx_get_flags()?;
    refuse(if known { CUresult::CUDA_ERROR_NOT_SUPPORTED } else { CUresult::CUDA_ERROR_INVALID_VALUE })
}
