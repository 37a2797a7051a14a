//! Exported functions implemented by `calls::device`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUarray_format, CUasyncCallbackHandle, CUatomicOperation, CUcontext, CUdevice, CUdevice_P2PAttribute,
    CUdevice_attribute, CUdevprop, CUexecAffinityType, CUgraphMem_attribute, CUmemoryPool, CUresult, CUuuid, HostAddr,
};

use crate::calls::device;
use crate::decode::{In, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceCanAccessPeer(
    can_access_peer: Out<i32>,
    dev: CUdevice,
    peer_dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceCanAccessPeer");
    ENTRY.call(|driver| device::device_can_access_peer(driver, can_access_peer, dev, peer_dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceComputeCapability");
    ENTRY.call(|driver| device::device_compute_capability(driver, major, minor, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGet");
    ENTRY.call(|driver| device::device_get(driver, device, ordinal))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetAttribute(pi: Out<i32>, attrib: CUdevice_attribute, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetAttribute");
    ENTRY.call(|driver| device::device_get_attribute(driver, pi, attrib, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetByPCIBusId(dev: Out<CUdevice>, pci_bus_id: Text) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetByPCIBusId");
    ENTRY.call(|driver| device::device_get_by_pci_bus_id(driver, dev, pci_bus_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetCount(count: Out<i32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetCount");
    ENTRY.call(|driver| device::device_get_count(driver, count))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetDefaultMemPool(pool_out: Out<CUmemoryPool>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetDefaultMemPool");
    ENTRY.call(|driver| device::device_get_default_mem_pool(driver, pool_out, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetExecAffinitySupport(
    pi: Out<i32>,
    kind: CUexecAffinityType,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetExecAffinitySupport");
    ENTRY.call(|driver| device::device_get_exec_affinity_support(driver, pi, kind, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetGraphMemAttribute");
    ENTRY.call(|driver| device::device_get_graph_mem_attribute(driver, device, attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetHostAtomicCapabilities(
    capabilities: Out<u32>,
    operations: In<CUatomicOperation>,
    count: u32,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetHostAtomicCapabilities");
    ENTRY.call(|driver| device::device_get_host_atomic_capabilities(driver, capabilities, operations, count, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetLuid(luid: Out<u8>, device_node_mask: Out<u32>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetLuid");
    ENTRY.call(|driver| device::device_get_luid(driver, luid, device_node_mask, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetMemPool");
    ENTRY.call(|driver| device::device_get_mem_pool(driver, pool, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetName(name: Out<u8>, len: i32, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetName");
    ENTRY.call(|driver| device::device_get_name(driver, name, len, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: Out<u32>,
    operations: In<CUatomicOperation>,
    count: u32,
    src_device: CUdevice,
    dst_device: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetP2PAtomicCapabilities");
    ENTRY.call(|driver| {
        device::device_get_p2p_atomic_capabilities(driver, capabilities, operations, count, src_device, dst_device)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetP2PAttribute(
    value: Out<i32>,
    attrib: CUdevice_P2PAttribute,
    src_device: CUdevice,
    dst_device: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetP2PAttribute");
    ENTRY.call(|driver| device::device_get_p2p_attribute(driver, value, attrib, src_device, dst_device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetPCIBusId(pci_bus_id: Out<u8>, len: i32, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetPCIBusId");
    ENTRY.call(|driver| device::device_get_pci_bus_id(driver, pci_bus_id, len, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetProperties(prop: Out<CUdevprop>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetProperties");
    ENTRY.call(|driver| device::device_get_properties(driver, prop, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetTexture1DLinearMaxWidth(
    max_width_in_elements: Out<usize>,
    format: CUarray_format,
    num_channels: u32,
    dev: CUdevice,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetTexture1DLinearMaxWidth");
    ENTRY.call(|driver| {
        device::device_get_texture_1d_linear_max_width(driver, max_width_in_elements, format, num_channels, dev)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetUuid(uuid: Out<CUuuid>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetUuid");
    ENTRY.call(|driver| device::device_get_uuid(driver, uuid, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGetUuid_v2");
    ENTRY.call(|driver| device::device_get_uuid(driver, uuid, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceGraphMemTrim");
    ENTRY.call(|driver| device::device_graph_mem_trim(driver, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxGetState");
    ENTRY.call(|driver| device::device_primary_ctx_get_state(driver, dev, flags, active))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxRelease");
    ENTRY.call(|driver| device::device_primary_ctx_release(driver, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxRelease_v2");
    ENTRY.call(|driver| device::device_primary_ctx_release(driver, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxReset(dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxReset");
    ENTRY.call(|driver| device::device_primary_ctx_reset(driver, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxReset_v2");
    ENTRY.call(|driver| device::device_primary_ctx_reset(driver, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRetain(pctx: Out<CUcontext>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxRetain");
    ENTRY.call(|driver| device::device_primary_ctx_retain(driver, pctx, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxSetFlags");
    ENTRY.call(|driver| device::device_primary_ctx_set_flags(driver, dev, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDevicePrimaryCtxSetFlags_v2");
    ENTRY.call(|driver| device::device_primary_ctx_set_flags(driver, dev, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceRegisterAsyncNotification(
    device: CUdevice,
    callback_func: HostAddr,
    user_data: HostAddr,
    callback: Out<CUasyncCallbackHandle>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceRegisterAsyncNotification");
    ENTRY.call(|driver| device::device_register_async_notification(driver, device, callback_func, user_data, callback))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: HostAddr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceSetGraphMemAttribute");
    ENTRY.call(|driver| device::device_set_graph_mem_attribute(driver, device, attr, value))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceSetMemPool");
    ENTRY.call(|driver| device::device_set_mem_pool(driver, dev, pool))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: CUdevice) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceTotalMem_v2");
    ENTRY.call(|driver| device::device_total_mem(driver, bytes, dev))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceUnregisterAsyncNotification(
    device: CUdevice,
    callback: CUasyncCallbackHandle,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDeviceUnregisterAsyncNotification");
    ENTRY.call(|driver| device::device_unregister_async_notification(driver, device, callback))
}
