//! NVIDIA's libraries of ready kernels, and which compute capability they see.
//!
//! cuBLAS, cuFFT, cuRAND, cuSOLVER and cuSPARSE bring each kernel as machine code for the GPUs that there were when they were made, and as PTX for
//! those that would come. They choose themselves, by the compute capability, and hand the driver only what they have
//! chosen. This GPU executes PTX. So to them it is one of the GPUs that came later: they take what they would take
//! there. Everybody else is told what it is; compilers must know that.
//!
//! Who asks is the first on the stack that is neither this library nor a shared runtime library. A program that has such a library linked in
//! statically is told what it is, and gets `NO_BINARY_FOR_GPU`.

use std::ffi::{CStr, c_int, c_void};

use cuda_abi::CUdevice_attribute;

/// Major and minor number of a GPU that none of them knows.
const LATER: (i32, i32) = (15, 0);

/// Frames that are looked at: a runtime library has fewer between the driver and who calls it.
const MOST_FRAMES: usize = 32;

/// The compute capability that whoever asks is to see, where it is `real`.
pub(crate) fn compute_capability(real: (i32, i32)) -> (i32, i32) {
    if asker().is_some_and(|path| is_one(path.to_bytes())) { LATER } else { real }
}

/// What whoever asks is to see of an attribute that is `real`.
pub(crate) fn attribute(attribute: CUdevice_attribute, real: i32) -> i32 {
    match attribute {
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => compute_capability((real, 0)).0,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => compute_capability((0, real)).1,
        _ => real,
    }
}

/// Whether a file of this path is one of those libraries.
fn is_one(path: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [b"libcublas", b"libcublasLt", b"libcufft", b"libcurand", b"libcusolver", b"libcusparse"];
    stem(path).is_some_and(|stem| NAMES.contains(&stem))
}

/// A library's name, without its folder and its version.
fn stem(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let end = name.windows(3).position(|part| part == b".so")?;
    Some(&name[..end])
}

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// A walk along the stack.
struct Walk {
    /// Where this library begins.
    own: *mut c_void,
    frames: usize,
    found: Option<&'static CStr>,
}

/// The path of the file whose code asks.
fn asker() -> Option<&'static CStr> {
    let own = about(asker as fn() -> Option<&'static CStr> as usize)?.dli_fbase;
    let mut walk = Walk { own, frames: 0, found: None };
    // SAFETY: `frame` takes a walk, and this one lives until it returns.
    unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
    walk.found
}

/// Looks at one frame: 0 to go on.
extern "C" fn frame(frame: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: what `asker` passed.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    walk.frames += 1;
    // SAFETY: the unwinder's own frame. A call's return address may be the first behind its function.
    let Some(file) = about(unsafe { _Unwind_GetIP(frame) }.saturating_sub(1)) else {
        return c_int::from(walk.frames >= MOST_FRAMES);
    };
    // SAFETY: the loader's C string, which is there as long as the file is: its code is on the stack.
    let path = unsafe { CStr::from_ptr(file.dli_fname) };
    if file.dli_fbase != walk.own && stem(path.to_bytes()) != Some(b"libcudart") {
        walk.found = Some(path);
    }
    c_int::from(walk.found.is_some() || walk.frames >= MOST_FRAMES)
}

/// What the loader knows of an address: `None` if it is in none of its files.
fn about(address: usize) -> Option<libc::Dl_info> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for, and `found` takes the answer.
    let known = unsafe { libc::dladdr(std::ptr::without_provenance(address), found.as_mut_ptr()) };
    // SAFETY: the answer is there if the return value is not 0.
    (known != 0).then(|| unsafe { found.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_their_names() {
        for path in ["/a/b/libcublas.so.13", "libcublasLt.so", "/x.so/libcufft.so.12.5.0.14", "./libcurand.so.10"] {
            assert!(is_one(path.as_bytes()), "{path}");
        }
        for path in ["", "/", "python3", "libcublas", "/libcublas.so.13/app", "libcublasXt.so.1", "libmylibcufft.so"] {
            assert!(!is_one(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn this_program_is_told_what_the_gpu_is() {
        // The test is in the library's own file: the first other one is the C library, which has begun the thread.
        assert_eq!(asker().and_then(|path| stem(path.to_bytes())), Some(&b"libc"[..]));
        assert_eq!(compute_capability((12, 0)), (12, 0));
        assert_eq!(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 12), 12);
    }
}
