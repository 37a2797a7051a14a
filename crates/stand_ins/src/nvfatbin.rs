//! nvFatbin: fat binaries at run time.
//!
//! What programs add as machine code, which NVRTC, nvJitLink or ptxas gave them, is PTX here: it becomes a PTX of the fat binary, of which the
//! driver takes it. All else is the real library's.

use std::ffi::{c_char, c_int, c_void};

use crate::image::{self, Kind};
use crate::interpose::{Stand, each, linked};
use crate::library;

/// `NVFATBIN_ERROR_INTERNAL`.
const INTERNAL: c_int = 1;
/// `NVFATBIN_ERROR_ELF_ARCH_MISMATCH`.
const ARCH_MISMATCH: c_int = 2;

/// What stands before nvFatbin's functions.
pub(crate) static STANDS: [Stand; 1] =
    [Stand { name: "nvFatbinAddCubin", ours: each!(add_cubin), files: "libnvfatbin.so", missing }];

linked!("nvFatbinAddCubin");

extern "C" fn missing() -> c_int {
    INTERNAL
}

type AddCubin = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *const c_char, *const c_char) -> c_int;
type AddPtx =
    unsafe extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, *const c_char, *const c_char) -> c_int;

/// `nvFatbinAddCubin`.
///
/// # Safety
/// As of nvFatbin's.
unsafe extern "C" fn add_cubin<const LIBRARY: usize>(
    handle: *mut c_void,
    code: *const c_void,
    size: usize,
    arch: *const c_char,
    identifier: *const c_char,
) -> c_int {
    let Some(real) = library::function(LIBRARY, c"nvFatbinAddCubin") else { return INTERNAL };
    // SAFETY: this is the type of the function of that name.
    let real = unsafe { std::mem::transmute::<*const c_void, AddCubin>(real) };
    let add_ptx = library::function(LIBRARY, c"nvFatbinAddPTX").filter(|_| !code.is_null() && !arch.is_null());
    if let Some(add_ptx) = add_ptx {
        // SAFETY: the caller promised so many bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), size) };
        if image::kind(bytes) == Kind::Text {
            // SAFETY: the caller promised a C string.
            let wanted = unsafe { std::ffi::CStr::from_ptr(arch) };
            if target(bytes).is_some_and(|target| target != number(wanted.to_bytes())) {
                return ARCH_MISMATCH;
            }
            let mut text = image::without_end(bytes).to_vec();
            text.push(0);
            // SAFETY: this is the type of the function of that name.
            let add_ptx = unsafe { std::mem::transmute::<*const c_void, AddPtx>(add_ptx) };
            // SAFETY: the caller's own arguments, a text that ends so, and no options.
            return unsafe { add_ptx(handle, text.as_ptr().cast(), text.len(), arch, identifier, c"".as_ptr()) };
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(handle, code, size, arch, identifier) }
}

/// The number of the architecture that a PTX is for: its first `.target`.
fn target(text: &[u8]) -> Option<&[u8]> {
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let named = lines.find_map(|line| line.strip_prefix(b".target"))?.trim_ascii();
    Some(number(named.strip_prefix(b"sm_")?))
}

/// The digits that a text begins with: `90` of `90a, debug`.
fn number(text: &[u8]) -> &[u8] {
    &text[..text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_tells_its_architecture() {
        assert_eq!(target(b"// .target sm_1\n.version 8.0\n.target sm_80\n.address_size 64\n"), Some(&b"80"[..]));
        assert_eq!(target(b".version 8.0\n  .target\tsm_90a, debug\r\n"), Some(&b"90"[..]));
        assert_eq!(target(b".version 8.0\n"), None);
        assert_eq!(target(b".target map\n"), None);
        assert_eq!(number(b"120f"), b"120");
        assert_eq!(number(b""), b"");
    }
}
