//! Functions without names that NVIDIA's libraries take from export tables.

use super::*;

use cuda_abi::CUuuid;

unsafe extern "C" {
    fn cuGetExportTable(table: *mut *const *const c_void, uuid: *const CUuuid) -> CUresult;
    safe fn cuCtxGetId(context: CUcontext, id: Option<&mut u64>) -> CUresult;
    safe fn cuStreamGetId(stream: CUstream, id: Option<&mut u64>) -> CUresult;
}

type ThreadContext = extern "C" fn(Option<&mut CUcontext>) -> CUresult;
type StreamNumber = extern "C" fn(CUcontext, CUstream, Option<&mut u64>) -> CUresult;
type ContextNumber = extern "C" fn(CUcontext, Option<&mut u64>) -> CUresult;
type StreamMeant = extern "C" fn(CUcontext, CUstream, Option<&mut CUstream>, i32) -> CUresult;

const TOOLS_TLS: u128 = 0x42d85a81_23f6_cb47_8298_f6e78a3aecdc;
const TOOLS_CONTEXT: u128 = 0x21318c60_9714_3248_8ca6_41ff7324c8f2;

/// A slot's function, as what it is.
fn slot<Function: Copy>(table: u128, index: usize) -> Function {
    let (uuid, mut words) = (CUuuid { bytes: table.to_be_bytes() }, null());
    // SAFETY: both places are variables.
    assert_eq!(unsafe { cuGetExportTable(&mut words, &uuid) }, OK);
    // SAFETY: a table's first word is its size in bytes.
    let bytes = unsafe { words.read() }.addr();
    assert!((index + 1) * size_of::<*const c_void>() <= bytes);
    assert_eq!(size_of::<Function>(), size_of::<*const c_void>());
    // SAFETY: within the table.
    let word = unsafe { words.add(index) };
    // SAFETY: it holds functions; of this kind, says the caller.
    unsafe { word.cast::<Function>().read() }
}

/// cuBLAS tells streams apart by what these say: alike, two streams at once were lent one workspace.
pub(super) fn contexts_and_streams(context: CUcontext) {
    let thread_context: ThreadContext = slot(TOOLS_TLS, 2);
    let (mut current, mut number, mut id) = (CUcontext::NULL, 0, 0);
    assert_eq!(thread_context(Some(&mut current)), OK);
    assert_eq!(current, context);
    assert_eq!(thread_context(None), CUresult::CUDA_ERROR_INVALID_VALUE);
    let context_number: ContextNumber = slot(TOOLS_CONTEXT, 4);
    assert_eq!(context_number(context, Some(&mut number)), OK);
    assert_eq!(cuCtxGetId(context, Some(&mut id)), OK);
    assert_eq!(number, id);

    let stream_meant: StreamMeant = slot(TOOLS_CONTEXT, 51);
    let stream_number: StreamNumber = slot(TOOLS_CONTEXT, 39);
    let (mut one, mut other) = (CUstream::NULL, CUstream::NULL);
    assert_eq!(cuStreamCreate(Some(&mut one), 0), OK);
    assert_eq!(cuStreamCreate(Some(&mut other), 0), OK);
    let mut numbers = Vec::new();
    let meaning = [
        (one, 0, one),
        (other, 1, other),
        (CUstream::NULL, 0, CUstream::LEGACY),
        (CUstream::NULL, 1, CUstream::PER_THREAD),
    ];
    for (stream, is_per_thread, expected) in meaning {
        let mut meant = CUstream(77);
        assert_eq!(stream_meant(context, stream, Some(&mut meant), is_per_thread), OK);
        assert_eq!(meant, expected);
        assert_eq!(stream_number(context, meant, Some(&mut number)), OK);
        assert_eq!(cuStreamGetId(expected, Some(&mut id)), OK);
        assert_eq!(number, id);
        numbers.push(number);
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
    assert_eq!(stream_meant(context, one, None, 0), CUresult::CUDA_ERROR_INVALID_VALUE);
}
