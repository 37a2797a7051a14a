//! Functions of the program that we call.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use cuda_abi::{CUgraphNode, CUgraphNodeParams, CUgraphRecaptureStatus, CUlogLevel, CUresult, CUstream, HostAddr};
use cuda_core::{Approve, HostCall, NodeInfo, Recaptured};

use crate::calls::graph_node::{all_params, no_params};
use crate::decode::out_at;
use crate::entry::{Refusal, refuse};
use crate::error_log::Listener;

type HostFunction = unsafe extern "C" fn(*mut c_void);
type StreamCallback = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);
type Callback = Box<dyn FnOnce(cuda_core::Result<()>) + Send>;
type LogCallback = unsafe extern "C" fn(*mut c_void, CUlogLevel, *const c_char, usize);
type RecaptureCallback = unsafe extern "C" fn(
    *mut c_void,
    CUgraphNode,
    *const CUgraphNodeParams,
    *const CUgraphNodeParams,
    CUgraphRecaptureStatus,
) -> CUresult;
type SharedOfBlock = unsafe extern "C" fn(i32) -> usize;

/// A C caller's data, on its way to the caller's own function on another thread.
struct Data(*mut c_void);

// SAFETY: the API says that the function runs on a thread of the driver's choice; the data is the program's affair.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

impl Data {
    fn new(address: HostAddr) -> Data {
        Data(std::ptr::with_exposed_provenance_mut(address.0 as usize))
    }

    /// The pointer; a method, so that closures capture the whole.
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// The function of `cuLaunchHostFunc`.
pub(crate) fn host_function(function: HostAddr, data: HostAddr) -> Result<Box<dyn FnOnce() + Send>, Refusal> {
    if function.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller promised a function of this type (`CUhostFn`).
    let function = unsafe { std::mem::transmute::<*const (), HostFunction>(pointer(function)) };
    let data = Data::new(data);
    Ok(Box::new(move || {
        // SAFETY: the caller promised that it may be called with its data, on any thread.
        unsafe { function(data.pointer()) }
    }))
}

/// A function like that of `cuLaunchHostFunc`, to be called again and again: a node's, or a destructor.
pub(crate) fn repeated(function: HostAddr, data: HostAddr) -> Result<HostCall, Refusal> {
    if function.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller promised a function of this type (`CUhostFn`).
    let call = unsafe { std::mem::transmute::<*const (), HostFunction>(pointer(function)) };
    let at = Data::new(data);
    let call = Arc::new(move || {
        // SAFETY: the caller promised that it may be called with its data, on any thread.
        unsafe { call(at.pointer()) }
    });
    Ok(HostCall { call, function: function.0, data: data.0 })
}

/// The callback of `cuStreamAddCallback`, to be called with the stream's state.
pub(crate) fn stream_callback(stream: CUstream, function: HostAddr, data: HostAddr) -> Result<Callback, Refusal> {
    if function.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller promised a function of this type (`CUstreamCallback`).
    let function = unsafe { std::mem::transmute::<*const (), StreamCallback>(pointer(function)) };
    let data = Data::new(data);
    Ok(Box::new(move |state| {
        let state = state.map_or_else(|error| CUresult(error.code()), |()| CUresult::CUDA_SUCCESS);
        // SAFETY: the caller promised that it may be called with its data, on any thread.
        unsafe { function(stream, state, data.pointer()) }
    }))
}

/// The callback of `cuLogsRegisterCallback`.
pub(crate) fn log(function: HostAddr, data: HostAddr) -> Result<Listener, Refusal> {
    if function.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null; the caller promised a function of this type (`CUlogsCallback`).
    let function = unsafe { std::mem::transmute::<*const (), LogCallback>(pointer(function)) };
    let data = Data::new(data);
    Ok(Arc::new(move |level, line: &str| {
        let Ok(line) = CString::new(line) else { return };
        // SAFETY: the caller promised that it may be called with its data, on any thread; the text outlives the call.
        unsafe { function(data.pointer(), level, line.as_ptr(), line.count_bytes()) }
    }))
}

/// The callback of `cuStreamBeginRecaptureToGraph`; none if it is null.
pub(crate) fn recaptured(function: HostAddr, data: HostAddr) -> Option<Approve> {
    if function.is_null() {
        return None;
    }
    // SAFETY: not null; the caller promised a function of this type (`CUgraphRecaptureCallback`).
    let function = unsafe { std::mem::transmute::<*const (), RecaptureCallback>(pointer(function)) };
    let data = Data::new(data);
    Some(Arc::new(move |Recaptured { node, kind, before, now, eligible }: &Recaptured<'_>| {
        let shown = |info: &NodeInfo| {
            let mut params = no_params(*kind);
            let at = HostAddr((&raw mut params).expose_provenance() as u64);
            // SAFETY: the structure lies there, and lives as long.
            all_params(*kind, info, unsafe { out_at(at) });
            params
        };
        let (before, now) = (shown(before), shown(now));
        let status = if *eligible {
            CUgraphRecaptureStatus::CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE
        } else {
            CUgraphRecaptureStatus::CU_GRAPH_RECAPTURE_INELIGIBLE_FOR_UPDATE
        };
        let node = CUgraphNode(node.0);
        // SAFETY: the caller promised that it may be called with its data; both structures were filled, and outlive the call.
        let answer = unsafe { function(data.pointer(), node, &raw const before, &raw const now, status) };
        answer == CUresult::CUDA_SUCCESS
    }))
}

/// Dynamic shared memory of a block size: the caller's function (`CUoccupancyB2DSize`), or a constant.
pub(crate) fn shared_of_block(function: HostAddr, constant: u64) -> Box<dyn Fn(i32) -> u64> {
    if function.is_null() {
        return Box::new(move |_| constant);
    }
    // SAFETY: not null; the caller promised a function of this type.
    let function = unsafe { std::mem::transmute::<*const (), SharedOfBlock>(pointer(function)) };
    Box::new(move |block| {
        // SAFETY: the caller promised that it may be called with any block size.
        (unsafe { function(block) }) as u64
    })
}

fn pointer(address: HostAddr) -> *const () {
    std::ptr::with_exposed_provenance(address.0 as usize)
}
