//! What works before or without the driver: starting, versions, texts of results, addresses of functions.

use cuda_abi::{CUdriverProcAddressQueryResult as Status, CUprocessState, CUresult, CUuuid, HostAddr};
use cuda_core::Driver;

use crate::addresses::{self, Found};
use crate::decode::{In, Out, Text};
use crate::entry::{Answer, refuse};
use crate::{export_tables, start};

pub(crate) fn init(flags: u32) -> Answer {
    start::init(flags)
}

/// Always this library's version, whatever GPU is behind it: programs ask before they start it.
pub(crate) fn driver_get_version(version: Out<i32>) -> Answer {
    version.required()?;
    version.set(cuda_abi::DRIVER_VERSION as i32);
    Ok(())
}

pub(crate) fn get_error_string(error: CUresult, text: Out<HostAddr>) -> Answer {
    text.required()?;
    text.set(error.description().map_or(0, |text| text.as_ptr() as u64));
    if error.description().is_none() { refuse(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

pub(crate) fn get_error_name(error: CUresult, name: Out<HostAddr>) -> Answer {
    name.required()?;
    name.set(error.c_name().map_or(0, |name| name.as_ptr() as u64));
    if error.c_name().is_none() { refuse(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

pub(crate) fn get_proc_address(symbol: Text, function: Out<HostAddr>, version: i32, flags: u64) -> Answer {
    get_proc_address_v2(symbol, function, version, flags, Out::none())
}

pub(crate) fn get_proc_address_v2(
    symbol: Text,
    function: Out<HostAddr>,
    version: i32,
    flags: u64,
    status: Out<Status>,
) -> Answer {
    function.required()?;
    function.set(HostAddr::NULL);
    let (status_of, address) = match addresses::find(symbol.get()?, version, flags)? {
        Found::At(address) => (Status::CU_GET_PROC_ADDRESS_SUCCESS, Some(address)),
        Found::Later => (Status::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, None),
        Found::Unknown => (Status::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, None),
    };
    status.set(status_of);
    match address {
        Some(address) => {
            function.set(address);
            Ok(())
        }
        None => refuse(CUresult::CUDA_ERROR_NOT_FOUND),
    }
}

pub(crate) fn get_export_table(table: Out<HostAddr>, uuid: In<CUuuid>) -> Answer {
    table.required()?;
    let uuid = uuid.get()?;
    match export_tables::find(uuid) {
        Some(address) => {
            table.set(address);
            Ok(())
        }
        None => {
            tracing::debug!("no export table {:032x}", u128::from_be_bytes(uuid.bytes));
            table.set(HostAddr::NULL);
            refuse(CUresult::CUDA_ERROR_NOT_FOUND)
        }
    }
}

/// There is no profiler to configure.
pub(crate) fn profiler_initialize(_: &Driver, _config: Text, _output: Text, _mode: u32) -> Answer {
    refuse(CUresult::CUDA_ERROR_PROFILER_DISABLED)
}

pub(crate) fn profiler_start(_: &Driver) -> Answer {
    Ok(())
}

pub(crate) fn profiler_stop(_: &Driver) -> Answer {
    Ok(())
}

/// A process that uses this driver runs, whichever it is: none can be locked or checkpointed.
pub(crate) fn checkpoint_process_get_state(pid: i32, state: Out<CUprocessState>) -> Answer {
    state.required()?;
    // What another user's process has mapped cannot be read.
    let own = u32::try_from(pid) == Ok(std::process::id());
    let mapped = || std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libcuda.so"));
    if pid <= 0 || !own && !mapped() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    state.set_plain(CUprocessState::CU_PROCESS_STATE_RUNNING);
    Ok(())
}
