//! Memory and events of other processes.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use cuda_abi::{
    CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUmemAllocationHandleType, CUmemGenericAllocationHandle,
    CUmemPoolPtrExportData, CUmemoryPool, CUresult, HostAddr,
};
use cuda_core::{Driver, Physical};
use gpu::DevAddr;

use crate::decode::{Core, In, Out, out_at};
use crate::entry::{Answer, Refusal, refuse};

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

/// Gives a descriptor to the program, which closes it.
fn give(place: HostAddr, flags: u64, make: impl FnOnce() -> cuda_core::Result<OwnedFd>) -> Answer {
    // SAFETY: the C caller promised a place for what the type of handle says, of which only descriptors are given (`decode`).
    let place: Out<i32> = unsafe { out_at(place) };
    place.required()?;
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    place.set(make()?.into_raw_fd());
    Ok(())
}

/// The descriptor that a program passes as a pointer; it stays the program's. What handles of other types are is not looked at.
fn taken(handle: HostAddr, kind: CUmemAllocationHandleType) -> Result<OwnedFd, Refusal> {
    if kind != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let none = Refusal(CUresult::CUDA_ERROR_INVALID_VALUE);
    let number = i32::try_from(handle.0).map_err(|_| none)?;
    // SAFETY: not -1. If it is not open, copying it fails, and nothing else is done with it.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    fd.try_clone_to_owned().map_err(|_| none)
}

pub(crate) fn export_memory(
    driver: &Driver,
    place: HostAddr,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Answer {
    give(place, flags, || driver.mem_export(Physical(handle), kind.0))
}

pub(crate) fn import_memory(
    driver: &Driver,
    handle: Out<CUmemGenericAllocationHandle>,
    from: HostAddr,
    kind: CUmemAllocationHandleType,
) -> Answer {
    handle.required()?;
    handle.set(driver.mem_import(taken(from, kind)?, kind.0)?);
    Ok(())
}

pub(crate) fn export_pool(
    driver: &Driver,
    place: HostAddr,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Answer {
    give(place, flags, || driver.mem_pool_export(pool.core(), kind.0))
}

pub(crate) fn import_pool(
    driver: &Driver,
    pool: Out<CUmemoryPool>,
    from: HostAddr,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Answer {
    pool.required()?;
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    pool.set(driver.mem_pool_import(taken(from, kind)?, kind.0)?);
    Ok(())
}

pub(crate) fn export_pointer(driver: &Driver, data: Out<CUmemPoolPtrExportData>, address: CUdeviceptr) -> Answer {
    data.required()?;
    data.set_plain(CUmemPoolPtrExportData { reserved: driver.mem_pool_export_pointer(DevAddr(address))? });
    Ok(())
}

pub(crate) fn import_pointer(
    driver: &Driver,
    address: Out<CUdeviceptr>,
    pool: CUmemoryPool,
    data: In<CUmemPoolPtrExportData>,
) -> Answer {
    address.required()?;
    address.set(driver.mem_pool_import_pointer(pool.core(), &data.get()?.reserved)?);
    Ok(())
}
