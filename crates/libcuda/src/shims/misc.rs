//! Exported functions implemented by `calls::misc`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUdriverProcAddressQueryResult, CUprocessState, CUresult, CUuuid, HostAddr};

use crate::calls::misc;
use crate::decode::{In, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCheckpointProcessGetState(pid: i32, state: Out<CUprocessState>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCheckpointProcessGetState");
    ENTRY.call_early(|| misc::checkpoint_process_get_state(pid, state))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDriverGetVersion(driver_version: Out<i32>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuDriverGetVersion");
    ENTRY.call_early(|| misc::driver_get_version(driver_version))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetErrorName(error: CUresult, p_str: Out<HostAddr>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGetErrorName");
    ENTRY.call_early(|| misc::get_error_name(error, p_str))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetErrorString(error: CUresult, p_str: Out<HostAddr>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGetErrorString");
    ENTRY.call_early(|| misc::get_error_string(error, p_str))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetExportTable(pp_export_table: Out<HostAddr>, p_export_table_id: In<CUuuid>) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGetExportTable");
    ENTRY.call_early(|| misc::get_export_table(pp_export_table, p_export_table_id))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetProcAddress(symbol: Text, pfn: Out<HostAddr>, cuda_version: i32, flags: u64) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGetProcAddress");
    ENTRY.call_early(|| misc::get_proc_address(symbol, pfn, cuda_version, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuGetProcAddress_v2(
    symbol: Text,
    pfn: Out<HostAddr>,
    cuda_version: i32,
    flags: u64,
    symbol_status: Out<CUdriverProcAddressQueryResult>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuGetProcAddress_v2");
    ENTRY.call_early(|| misc::get_proc_address_v2(symbol, pfn, cuda_version, flags, symbol_status))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuInit(flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuInit");
    ENTRY.call_early(|| misc::init(flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuProfilerInitialize(config_file: Text, output_file: Text, output_mode: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuProfilerInitialize");
    ENTRY.call(|driver| misc::profiler_initialize(driver, config_file, output_file, output_mode))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuProfilerStart() -> CUresult {
    static ENTRY: Entry = Entry::new("cuProfilerStart");
    ENTRY.call(misc::profiler_start)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuProfilerStop() -> CUresult {
    static ENTRY: Entry = Entry::new("cuProfilerStop");
    ENTRY.call(misc::profiler_stop)
}
