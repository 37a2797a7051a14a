//! Exported functions implemented by `calls::logs`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUlogsCallbackHandle, CUresult, HostAddr};

use crate::calls::logs;
use crate::decode::{InOut, Out, Text};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLogsCurrent(iterator_out: Out<u32>, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLogsCurrent");
    ENTRY.call_early(|| logs::current(iterator_out, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLogsDumpToFile(iterator: InOut<u32>, path_to_file: Text, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLogsDumpToFile");
    ENTRY.call_early(|| logs::dump_to_file(iterator, path_to_file, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLogsDumpToMemory(
    iterator: InOut<u32>,
    buffer: Out<u8>,
    size: InOut<usize>,
    flags: u32,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLogsDumpToMemory");
    ENTRY.call_early(|| logs::dump_to_memory(iterator, buffer, size, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLogsRegisterCallback(
    callback_func: HostAddr,
    user_data: HostAddr,
    callback_out: Out<CUlogsCallbackHandle>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLogsRegisterCallback");
    ENTRY.call_early(|| logs::register_callback(callback_func, user_data, callback_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle) -> CUresult {
    static ENTRY: Entry = Entry::new("cuLogsUnregisterCallback");
    ENTRY.call_early(|| logs::unregister_callback(callback))
}
