//! Exported functions implemented by `calls::coredump`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUcoredumpCallbackHandle, CUcoredumpSettings, CUresult, HostAddr};

use crate::calls::coredump;
use crate::decode::{InOut, Out};
use crate::entry::Entry;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpDeregisterCompleteCallback(callback: CUcoredumpCallbackHandle) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpDeregisterCompleteCallback");
    ENTRY.call_early(|| coredump::deregister_complete_callback(callback))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpDeregisterStartCallback(callback: CUcoredumpCallbackHandle) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpDeregisterStartCallback");
    ENTRY.call_early(|| coredump::deregister_start_callback(callback))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpGetAttribute(
    attrib: CUcoredumpSettings,
    value: HostAddr,
    size: InOut<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpGetAttribute");
    ENTRY.call(|driver| coredump::get_attribute(driver, attrib, value, size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpGetAttributeGlobal(
    attrib: CUcoredumpSettings,
    value: HostAddr,
    size: InOut<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpGetAttributeGlobal");
    ENTRY.call_early(|| coredump::get_attribute_global(attrib, value, size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpRegisterCompleteCallback(
    callback: HostAddr,
    user_data: HostAddr,
    callback_out: Out<CUcoredumpCallbackHandle>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpRegisterCompleteCallback");
    ENTRY.call_early(|| coredump::register_complete_callback(callback, user_data, callback_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpRegisterStartCallback(
    callback: HostAddr,
    user_data: HostAddr,
    callback_out: Out<CUcoredumpCallbackHandle>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpRegisterStartCallback");
    ENTRY.call_early(|| coredump::register_start_callback(callback, user_data, callback_out))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpSetAttribute(
    attrib: CUcoredumpSettings,
    value: HostAddr,
    size: InOut<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpSetAttribute");
    ENTRY.call(|driver| coredump::set_attribute(driver, attrib, value, size))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuCoredumpSetAttributeGlobal(
    attrib: CUcoredumpSettings,
    value: HostAddr,
    size: InOut<usize>,
) -> CUresult {
    static ENTRY: Entry = Entry::new("cuCoredumpSetAttributeGlobal");
    ENTRY.call_early(|| coredump::set_attribute_global(attrib, value, size))
}
