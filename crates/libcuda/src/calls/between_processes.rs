//! Memory and events of other processes.

use cuda_abi::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle};
use cuda_core::Driver;
use gpu::DevAddr;

use crate::decode::{Core, Out};
use crate::entry::Answer;

pub(crate) fn get_mem_handle(driver: &Driver, handle: Out<CUipcMemHandle>, address: CUdeviceptr) -> Answer {
    handle.required()?;
    let reserved = driver.ipc_get_mem_handle(DevAddr(address))?;
    handle.set_plain(CUipcMemHandle { reserved });
    Ok(())
}

pub(crate) fn open_mem_handle(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> Answer {
    address.required()?;
    address.set(driver.ipc_open_mem_handle(&handle.reserved, flags)?.0);
    Ok(())
}

pub(crate) fn close_mem_handle(driver: &Driver, address: CUdeviceptr) -> Answer {
    Ok(driver.ipc_close_mem_handle(DevAddr(address))?)
}

pub(crate) fn get_event_handle(driver: &Driver, handle: Out<CUipcEventHandle>, event: CUevent) -> Answer {
    handle.required()?;
    let reserved = driver.ipc_get_event_handle(event.core())?;
    handle.set_plain(CUipcEventHandle { reserved });
    Ok(())
}

pub(crate) fn open_event_handle(driver: &Driver, event: Out<CUevent>, handle: CUipcEventHandle) -> Answer {
    event.required()?;
    event.set(driver.ipc_open_event_handle(&handle.reserved)?);
    Ok(())
}
