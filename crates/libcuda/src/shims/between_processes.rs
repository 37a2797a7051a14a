//! Exported functions implemented by `calls::between_processes`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{
    CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUmemAllocationHandleType, CUmemGenericAllocationHandle,
    CUmemPoolPtrExportData, CUmemoryPool, CUresult, HostAddr,
};

use crate::calls::between_processes;
use crate::decode::{In, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuIpcCloseMemHandle");
    ENTRY.call(|driver| between_processes::close_mem_handle(driver, dptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuIpcGetEventHandle(p_handle: Out<CUipcEventHandle>, event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuIpcGetEventHandle");
    ENTRY.call(|driver| between_processes::get_event_handle(driver, p_handle, event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuIpcGetMemHandle(p_handle: Out<CUipcMemHandle>, dptr: CUdeviceptr) -> CUresult {
    static ENTRY: Entry = Entry::new("cuIpcGetMemHandle");
    ENTRY.call(|driver| between_processes::get_mem_handle(driver, p_handle, dptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuIpcOpenEventHandle(ph_event: Out<CUevent>, handle: CUipcEventHandle) -> CUresult {
    static ENTRY: Entry = Entry::new("cuIpcOpenEventHandle");
    ENTRY.call(|driver| between_processes::open_event_handle(driver, ph_event, handle))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuIpcOpenMemHandle(pdptr: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuIpcOpenMemHandle");
    ENTRY.call(|driver| between_processes::open_mem_handle(driver, pdptr, handle, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuIpcOpenMemHandle_v2(
    pdptr: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuIpcOpenMemHandle_v2");
    ENTRY.call(|driver| between_processes::open_mem_handle(driver, pdptr, handle, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemExportToShareableHandle(
    shareable_handle: HostAddr,
    handle: CUmemGenericAllocationHandle,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemExportToShareableHandle");
    ENTRY.call(|driver| between_processes::export_memory(driver, shareable_handle, handle, handle_type, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemImportFromShareableHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: HostAddr,
    sh_handle_type: CUmemAllocationHandleType,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemImportFromShareableHandle");
    ENTRY.call(|driver| between_processes::import_memory(driver, handle, os_handle, sh_handle_type))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolExportPointer(
    share_data_out: Out<CUmemPoolPtrExportData>,
    ptr: CUdeviceptr,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolExportPointer");
    ENTRY.call(|driver| between_processes::export_pointer(driver, share_data_out, ptr))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolExportToShareableHandle(
    handle_out: HostAddr,
    pool: CUmemoryPool,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolExportToShareableHandle");
    ENTRY.call(|driver| between_processes::export_pool(driver, handle_out, pool, handle_type, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolImportFromShareableHandle(
    pool_out: Out<CUmemoryPool>,
    handle: HostAddr,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolImportFromShareableHandle");
    ENTRY.call(|driver| between_processes::import_pool(driver, pool_out, handle, handle_type, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolImportPointer(
    ptr_out: Out<CUdeviceptr>,
    pool: CUmemoryPool,
    share_data: In<CUmemPoolPtrExportData>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuMemPoolImportPointer");
    ENTRY.call(|driver| between_processes::import_pointer(driver, ptr_out, pool, share_data))
}
