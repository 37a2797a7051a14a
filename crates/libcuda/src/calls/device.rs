//! Devices and their primary contexts.

use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::{
    CUarray_format, CUasyncCallbackHandle, CUatomicOperation, CUcontext, CUdevice, CUdevice_P2PAttribute,
    CUdevice_attribute, CUdevprop, CUexecAffinityType, CUgraphMem_attribute, CUmemoryPool, CUresult, CUuuid, HostAddr,
};
use cuda_core::{Device, Driver};
use parking_lot::Mutex;

use crate::decode::{Core, In, Out, Text, in_at, out_at};
use crate::entry::{Answer, Refusal, refuse};
use crate::kernel_library;

pub(crate) fn device_get(driver: &Driver, device: Out<CUdevice>, ordinal: i32) -> Answer {
    device.required()?;
    device.set(driver.device_get(ordinal)?);
    Ok(())
}

pub(crate) fn device_get_count(driver: &Driver, count: Out<i32>) -> Answer {
    count.required()?;
    count.set(driver.device_get_count()?);
    Ok(())
}

pub(crate) fn device_get_name(driver: &Driver, name: Out<u8>, len: i32, dev: CUdevice) -> Answer {
    let text = driver.device_get_name(Device(dev))?;
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    unsafe { name.set_text(text, len) }
}

pub(crate) fn device_get_uuid(driver: &Driver, uuid: Out<CUuuid>, dev: CUdevice) -> Answer {
    uuid.required()?;
    uuid.set(driver.device_get_uuid(Device(dev))?);
    Ok(())
}

pub(crate) fn device_get_luid(driver: &Driver, luid: Out<u8>, node_mask: Out<u32>, dev: CUdevice) -> Answer {
    luid.required()?;
    let (bytes, mask) = driver.device_get_luid(Device(dev))?;
    for (index, byte) in bytes.into_iter().enumerate() {
        // SAFETY: the C caller promised memory there, so much of it (`decode`).
        unsafe { luid.set_at(index, byte) };
    }
    node_mask.set(mask);
    Ok(())
}

pub(crate) fn device_total_mem(driver: &Driver, bytes: Out<usize>, dev: CUdevice) -> Answer {
    bytes.required()?;
    bytes.set(driver.device_total_mem(Device(dev))?);
    Ok(())
}

pub(crate) fn device_get_attribute(
    driver: &Driver,
    value: Out<i32>,
    attribute: CUdevice_attribute,
    dev: CUdevice,
) -> Answer {
    value.required()?;
    let real = driver.device_get_attribute(attribute.0 as i32, Device(dev))?;
    value.set(kernel_library::attribute(attribute, real));
    Ok(())
}

pub(crate) fn device_compute_capability(driver: &Driver, major: Out<i32>, minor: Out<i32>, dev: CUdevice) -> Answer {
    major.required()?;
    minor.required()?;
    let capability = kernel_library::compute_capability(driver.device_compute_capability(Device(dev))?);
    major.set(capability.0);
    minor.set(capability.1);
    Ok(())
}

pub(crate) fn device_get_properties(driver: &Driver, prop: Out<CUdevprop>, dev: CUdevice) -> Answer {
    prop.required()?;
    let of = driver.device_get_properties(Device(dev))?;
    prop.set(CUdevprop {
        max_threads_per_block: of.max_threads_per_block,
        max_threads_dim: of.max_threads_dim,
        max_grid_size: of.max_grid_size,
        shared_mem_per_block: of.shared_mem_per_block,
        total_constant_memory: of.total_constant_memory,
        simd_width: of.simd_width,
        mem_pitch: of.mem_pitch,
        regs_per_block: of.regs_per_block,
        clock_rate: of.clock_rate,
        texture_align: of.texture_align,
    });
    Ok(())
}

pub(crate) fn device_get_pci_bus_id(driver: &Driver, id: Out<u8>, len: i32, dev: CUdevice) -> Answer {
    let text = driver.device_get_pci_bus_id(Device(dev))?;
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    unsafe { id.set_text(&text, len) }
}

pub(crate) fn device_get_by_pci_bus_id(driver: &Driver, dev: Out<CUdevice>, id: Text) -> Answer {
    dev.required()?;
    dev.set(driver.device_get_by_pci_bus_id(id.get()?)?);
    Ok(())
}

pub(crate) fn device_get_exec_affinity_support(
    driver: &Driver,
    supported: Out<i32>,
    kind: CUexecAffinityType,
    dev: CUdevice,
) -> Answer {
    supported.required()?;
    supported.set(driver.device_get_exec_affinity_support(kind.0 as i32, Device(dev))?);
    Ok(())
}

pub(crate) fn device_get_texture_1d_linear_max_width(
    driver: &Driver,
    elements: Out<usize>,
    format: CUarray_format,
    channels: u32,
    dev: CUdevice,
) -> Answer {
    elements.required()?;
    let channel_bytes = match format {
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8 | CUarray_format::CU_AD_FORMAT_SIGNED_INT8 => 1,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT16
        | CUarray_format::CU_AD_FORMAT_HALF => 2,
        CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_SIGNED_INT32
        | CUarray_format::CU_AD_FORMAT_FLOAT => 4,
        _ => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    if !matches!(channels, 1 | 2 | 4) {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    elements.set(driver.device_get_texture_1d_linear_max_width(channel_bytes * channels, Device(dev))?);
    Ok(())
}

pub(crate) fn device_can_access_peer(driver: &Driver, can: Out<i32>, dev: CUdevice, peer: CUdevice) -> Answer {
    can.required()?;
    can.set(driver.device_can_access_peer(Device(dev), Device(peer))?);
    Ok(())
}

pub(crate) fn device_get_p2p_attribute(
    driver: &Driver,
    value: Out<i32>,
    attribute: CUdevice_P2PAttribute,
    src: CUdevice,
    dst: CUdevice,
) -> Answer {
    value.required()?;
    value.set(driver.device_get_p2p_attribute(attribute.0 as i32, Device(src), Device(dst))?);
    Ok(())
}

/// Answers for each of the operations.
fn atomic_capabilities(
    out: Out<u32>,
    operations: In<CUatomicOperation>,
    count: u32,
    of: impl Fn(u32) -> cuda_core::Result<u32>,
) -> Answer {
    out.required()?;
    if count == 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the C caller promised so many (`decode`).
    let operations = unsafe { operations.list(count as usize) }?;
    let answers = operations.iter().map(|operation| of(operation.0)).collect::<cuda_core::Result<Vec<u32>>>()?;
    for (index, answer) in answers.into_iter().enumerate() {
        // SAFETY: the C caller promised as many places (`decode`).
        unsafe { out.set_at(index, answer) };
    }
    Ok(())
}

pub(crate) fn device_get_host_atomic_capabilities(
    driver: &Driver,
    out: Out<u32>,
    operations: In<CUatomicOperation>,
    count: u32,
    dev: CUdevice,
) -> Answer {
    let of = |operation| driver.device_get_host_atomic_capabilities(operation, Device(dev));
    atomic_capabilities(out, operations, count, of)
}

pub(crate) fn device_get_p2p_atomic_capabilities(
    driver: &Driver,
    out: Out<u32>,
    operations: In<CUatomicOperation>,
    count: u32,
    src: CUdevice,
    dst: CUdevice,
) -> Answer {
    let of = |operation| driver.device_get_p2p_atomic_capabilities(operation, Device(src), Device(dst));
    atomic_capabilities(out, operations, count, of)
}

/// Functions that are told when a device gives notice: of memory beyond a budget, which no process can have here, so none is called.
static NOTIFIED: Mutex<Vec<(CUasyncCallbackHandle, CUdevice)>> = Mutex::new(Vec::new());

pub(crate) fn device_register_async_notification(
    driver: &Driver,
    dev: CUdevice,
    function: HostAddr,
    _data: HostAddr,
    callback: Out<CUasyncCallbackHandle>,
) -> Answer {
    static LAST: AtomicU64 = AtomicU64::new(0);
    driver.device_get(dev)?;
    callback.required()?;
    if function.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let handle = CUasyncCallbackHandle(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    NOTIFIED.lock().push((handle, dev));
    callback.set_plain(handle);
    Ok(())
}

pub(crate) fn device_unregister_async_notification(
    driver: &Driver,
    dev: CUdevice,
    callback: CUasyncCallbackHandle,
) -> Answer {
    driver.device_get(dev)?;
    let notified = &mut *NOTIFIED.lock();
    let known = notified.iter().position(|of| *of == (callback, dev));
    notified.swap_remove(known.ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?);
    Ok(())
}

pub(crate) fn device_get_default_mem_pool(driver: &Driver, pool: Out<CUmemoryPool>, dev: CUdevice) -> Answer {
    pool.required()?;
    pool.set(driver.device_get_default_mem_pool(Device(dev))?);
    Ok(())
}

pub(crate) fn device_get_mem_pool(driver: &Driver, pool: Out<CUmemoryPool>, dev: CUdevice) -> Answer {
    pool.required()?;
    pool.set(driver.device_get_mem_pool(Device(dev))?);
    Ok(())
}

pub(crate) fn device_set_mem_pool(driver: &Driver, dev: CUdevice, pool: CUmemoryPool) -> Answer {
    Ok(driver.device_set_mem_pool(Device(dev), pool.core())?)
}

pub(crate) fn device_get_graph_mem_attribute(
    driver: &Driver,
    dev: CUdevice,
    attribute: CUgraphMem_attribute,
    value: HostAddr,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let value = unsafe { out_at::<u64>(value) };
    value.required()?;
    value.set(driver.device_get_graph_mem_attribute(Device(dev), attribute.0)?);
    Ok(())
}

pub(crate) fn device_set_graph_mem_attribute(
    driver: &Driver,
    dev: CUdevice,
    attribute: CUgraphMem_attribute,
    value: HostAddr,
) -> Answer {
    // SAFETY: the C caller promised memory there, so much of it (`decode`).
    let value = unsafe { in_at::<u64>(value) }.get()?;
    Ok(driver.device_set_graph_mem_attribute(Device(dev), attribute.0, value)?)
}

pub(crate) fn device_graph_mem_trim(driver: &Driver, dev: CUdevice) -> Answer {
    Ok(driver.device_graph_mem_trim(Device(dev))?)
}

pub(crate) fn device_primary_ctx_retain(driver: &Driver, ctx: Out<CUcontext>, dev: CUdevice) -> Answer {
    ctx.required()?;
    ctx.set(driver.device_primary_ctx_retain(Device(dev))?);
    Ok(())
}

pub(crate) fn device_primary_ctx_release(driver: &Driver, dev: CUdevice) -> Answer {
    Ok(driver.device_primary_ctx_release(Device(dev))?)
}

pub(crate) fn device_primary_ctx_reset(driver: &Driver, dev: CUdevice) -> Answer {
    Ok(driver.device_primary_ctx_reset(Device(dev))?)
}

pub(crate) fn device_primary_ctx_set_flags(driver: &Driver, dev: CUdevice, flags: u32) -> Answer {
    Ok(driver.device_primary_ctx_set_flags(Device(dev), flags)?)
}

pub(crate) fn device_primary_ctx_get_state(
    driver: &Driver,
    dev: CUdevice,
    flags: Out<u32>,
    active: Out<i32>,
) -> Answer {
    flags.required()?;
    active.required()?;
    let state = driver.device_primary_ctx_get_state(Device(dev))?;
    flags.set(state.flags);
    active.set(state.active);
    Ok(())
}
