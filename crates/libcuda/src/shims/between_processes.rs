//! Exported functions implemented by `calls::between_processes`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};

use crate::calls::between_processes;
use crate::decode::Out;
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
