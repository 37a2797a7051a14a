//! Exported functions implemented by `calls::event`. Made by `cargo xtask gen` from `crates/cuda_abi/functions.txt`.

use cuda_abi::{CUevent, CUresult, CUstream};

use crate::calls::event;
use crate::decode::Out;
use crate::entry::Entry;
use crate::start::per_thread;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventCreate(ph_event: Out<CUevent>, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventCreate");
    ENTRY.call(|driver| event::event_create(driver, ph_event, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventDestroy(h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventDestroy");
    ENTRY.call(|driver| event::event_destroy(driver, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventDestroy_v2(h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventDestroy_v2");
    ENTRY.call(|driver| event::event_destroy(driver, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventElapsedTime(p_milliseconds: Out<f32>, h_start: CUevent, h_end: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventElapsedTime");
    ENTRY.call(|driver| event::event_elapsed_time(driver, p_milliseconds, h_start, h_end))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventElapsedTime_v2(p_milliseconds: Out<f32>, h_start: CUevent, h_end: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventElapsedTime_v2");
    ENTRY.call(|driver| event::event_elapsed_time(driver, p_milliseconds, h_start, h_end))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventQuery(h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventQuery");
    ENTRY.call(|driver| event::event_query(driver, h_event))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventRecord(h_event: CUevent, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventRecord");
    ENTRY.call(|driver| event::event_record(driver, h_event, h_stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventRecord_ptsz(h_event: CUevent, h_stream: CUstream) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventRecord_ptsz");
    ENTRY.call(|driver| event::event_record(driver, h_event, per_thread(h_stream)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventRecordWithFlags(h_event: CUevent, h_stream: CUstream, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventRecordWithFlags");
    ENTRY.call(|driver| event::event_record_with_flags(driver, h_event, h_stream, flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventRecordWithFlags_ptsz(h_event: CUevent, h_stream: CUstream, flags: u32) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventRecordWithFlags_ptsz");
    ENTRY.call(|driver| event::event_record_with_flags(driver, h_event, per_thread(h_stream), flags))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventSynchronize(h_event: CUevent) -> CUresult {
    static ENTRY: Entry = Entry::new("cuEventSynchronize");
    ENTRY.call(|driver| event::event_synchronize(driver, h_event))
}
