//! NVRTC: C++ at run time.
//!
//! NVRTC makes PTX in any case, and machine code of it if it is asked for a real architecture (`-arch=sm_120`). So it is asked for a virtual one
//! instead (`compute_120`), and who then asks for the machine code gets the PTX, with its NUL: drivers tell one from the other by how it begins.
//! Intermediate code for linking (`-dlto`) is made as ever; it is [nvJitLink](crate::nvjitlink)'s matter.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::interpose::{Stand, each, linked};
use crate::library;

/// `NVRTC_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVRTC_ERROR_INTERNAL_ERROR`.
const INTERNAL_ERROR: c_int = 11;

/// The name that every version's file begins with.
const FILES: &str = "libnvrtc.so";

/// What stands before NVRTC's functions.
pub(crate) static STANDS: [Stand; 3] = [
    Stand { name: "nvrtcCompileProgram", ours: each!(compile_program), files: FILES, missing },
    Stand { name: "nvrtcGetCUBINSize", ours: each!(cubin_size), files: FILES, missing },
    Stand { name: "nvrtcGetCUBIN", ours: each!(cubin), files: FILES, missing },
];

linked!("nvrtcCompileProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN");

extern "C" fn missing() -> c_int {
    INTERNAL_ERROR
}

type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;

/// The library's function of that name, as a `$type`.
macro_rules! real {
    ($library:expr, $name:literal, $type:ty) => {{
        let found = library::function($library, $name);
        // SAFETY: this is the type of the function of that name, in all versions.
        found.map(|function| unsafe { std::mem::transmute::<*const c_void, $type>(function) })
    }};
}

/// `nvrtcCompileProgram`.
///
/// # Safety
/// As of NVRTC's.
unsafe extern "C" fn compile_program<const LIBRARY: usize>(
    program: *mut c_void,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let Some(real) = real!(LIBRARY, c"nvrtcCompileProgram", Compile) else { return INTERNAL_ERROR };
    let given = if options.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    let option = |index: usize| {
        // SAFETY: the caller promised so many options.
        let option = unsafe { options.add(index) };
        // SAFETY: the same.
        unsafe { option.read() }
    };
    if (0..given).any(|index| option(index).is_null()) {
        // SAFETY: the caller's own arguments.
        return unsafe { real(program, count, options) };
    }
    // SAFETY: the caller promised C strings.
    let texts = (0..given).map(|index| unsafe { CStr::from_ptr(option(index)) }).collect::<Vec<_>>();
    let virtually = for_virtual_architecture(&texts);
    let pointers = virtually.iter().map(|option| option.as_ptr()).collect::<Vec<_>>();
    // SAFETY: the caller's own arguments, with as many options.
    unsafe { real(program, count, if pointers.is_empty() { options } else { pointers.as_ptr() }) }
}

/// The options, with `compute_` for `sm_`.
fn for_virtual_architecture<'a>(options: &[&'a CStr]) -> Vec<Cow<'a, CStr>> {
    let mut value_follows = false;
    let mut change = |option: &'a CStr| {
        let Ok(text) = option.to_str() else { return Cow::Borrowed(option) };
        let text = text.trim_start();
        let is_value = std::mem::replace(&mut value_follows, text == "-arch" || text == "--gpu-architecture");
        let (name, value) = if is_value { ("", text) } else { text.split_at(text.find('=').map_or(0, |at| at + 1)) };
        match value.strip_prefix("sm_") {
            Some(number) if is_value || name == "-arch=" || name == "--gpu-architecture=" => {
                CString::new(format!("{name}compute_{number}")).map_or(Cow::Borrowed(option), Cow::Owned)
            }
            _ => Cow::Borrowed(option),
        }
    };
    options.iter().map(|option| change(option)).collect()
}

/// `nvrtcGetCUBINSize`.
///
/// # Safety
/// As of NVRTC's.
unsafe extern "C" fn cubin_size<const LIBRARY: usize>(program: *mut c_void, size: *mut usize) -> c_int {
    let Some(real) = real!(LIBRARY, c"nvrtcGetCUBINSize", Size) else { return INTERNAL_ERROR };
    if !size.is_null() {
        // SAFETY: the caller's own argument.
        if let Some(bytes) = unsafe { ptx_size::<LIBRARY>(program) } {
            // SAFETY: the caller promised a place for it.
            unsafe { size.write(bytes) };
            return SUCCESS;
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(program, size) }
}

/// `nvrtcGetCUBIN`.
///
/// # Safety
/// As of NVRTC's.
unsafe extern "C" fn cubin<const LIBRARY: usize>(program: *mut c_void, code: *mut c_char) -> c_int {
    // SAFETY: the caller's own argument.
    let ptx = unsafe { ptx_size::<LIBRARY>(program) }.and_then(|_| real!(LIBRARY, c"nvrtcGetPTX", Get));
    let Some(real) = ptx.or_else(|| real!(LIBRARY, c"nvrtcGetCUBIN", Get)) else { return INTERNAL_ERROR };
    // SAFETY: the caller promised room for what `nvrtcGetCUBINSize` told.
    unsafe { real(program, code) }
}

/// How long the program's PTX is, with its NUL; `None` if it has none: not compiled, refused, or compiled to something else.
///
/// # Safety
/// As of NVRTC's functions, of the program.
unsafe fn ptx_size<const LIBRARY: usize>(program: *mut c_void) -> Option<usize> {
    let real = real!(LIBRARY, c"nvrtcGetPTXSize", Size)?;
    let mut bytes = 0;
    // SAFETY: the caller's own argument, and a place for the answer.
    let result = unsafe { real(program, &raw mut bytes) };
    // No PTX is the empty text.
    (result == SUCCESS && bytes > 1).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &[&CStr], expect: &[&CStr]) {
        assert_eq!(for_virtual_architecture(options), expect);
    }

    #[test]
    fn real_architectures_become_virtual() {
        check(&[c"-arch=sm_120"], &[c"-arch=compute_120"]);
        check(&[c"-I/a", c" --gpu-architecture=sm_90a", c"-G"], &[c"-I/a", c"--gpu-architecture=compute_90a", c"-G"]);
        check(&[c"-arch", c"sm_75"], &[c"-arch", c"compute_75"]);
        check(&[c"--gpu-architecture", c"sm_75", c"sm_75"], &[c"--gpu-architecture", c"compute_75", c"sm_75"]);
    }

    #[test]
    fn all_else_stays() {
        let options =
            [c"-DA=sm_1", c"-arch=compute_80", c"-arch", c"native", c"sm_80", c"-arch =sm_80", c"-march=sm_80"];
        check(&options, &options);
        check(&[], &[]);
        let bytes = [c"-I\xff", c"-arch=sm_\xff"];
        check(&bytes, &bytes);
    }
}
