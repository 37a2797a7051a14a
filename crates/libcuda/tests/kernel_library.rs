//! Which compute capability code in which library sees.

#![expect(unsafe_code, reason = "calls C functions")]

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda as _;
use cuda_abi::CUresult;

type Get = extern "C" fn(*mut i32, i32, i32) -> CUresult;
/// `get` is called directly, or by way of another library's function.
type Ask = unsafe extern "C" fn(Get, Option<Through>, i32) -> i32;
type Through = unsafe extern "C" fn(Get, *mut i32, i32) -> i32;

unsafe extern "C" {
    safe fn cuInit(flags: u32) -> CUresult;
    fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> CUresult;
    fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, device: i32) -> CUresult;
}

const SOURCE: &str = "
    typedef int get(int*, int, int);
    typedef int through(get*, int*, int);
    int forward(get* it, int* value, int attribute) { int error = it(value, attribute, 0); return error + 0; }
    int ask(get* it, through* by, int attribute) {
        int value = -1;
        int error = by ? by(it, &value, attribute) : it(&value, attribute, 0);
        return error ? -error : value;
    }";

/// A library of this file name.
fn library(folder: &Path, name: &str) -> *mut c_void {
    let (source, made) = (folder.join("source.c"), folder.join(name));
    std::fs::write(&source, SOURCE).expect("the folder is ours");
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&made)
        .arg(&source)
        .status()
        .expect("a C compiler");
    assert!(done.success());
    let path = CString::new(made.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a C string.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{name}");
    handle
}

fn ask(of: *mut c_void) -> Ask {
    // SAFETY: an open library, a C string.
    let found = unsafe { libc::dlsym(of, c"ask".as_ptr()) };
    // SAFETY: the source has it so.
    unsafe { std::mem::transmute::<*mut c_void, Ask>(found) }
}

extern "C" fn get(value: *mut i32, attribute: i32, device: i32) -> CUresult {
    // SAFETY: room for a number.
    unsafe { cuDeviceGetAttribute(value, attribute, device) }
}

extern "C" fn major_at_once(value: *mut i32, _attribute: i32, device: i32) -> CUresult {
    // SAFETY: room for a number each.
    unsafe { cuDeviceComputeCapability(value, &mut 0, device) }
}

#[test]
fn libraries_of_ready_kernels_see_a_later_gpu() {
    for (name, value) in [("SUNDIAL_NATIVE", "1"), ("SUNDIAL_VRAM", "64m"), ("SUNDIAL_WORKERS", "1")] {
        // SAFETY: the test is alone in its process, and there are no threads yet.
        unsafe { std::env::set_var(name, value) }
    }
    assert_eq!(cuInit(0), CUresult::CUDA_SUCCESS);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libraries-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let of = |name| library(&folder, name);
    let (cufft, other, runtime) = (of("libcufft.so.99.1"), of("libmine.so"), of("libcudart.so.99"));
    // SAFETY: an open library, a C string.
    let forward = unsafe { libc::dlsym(runtime, c"forward".as_ptr()) };
    // SAFETY: the source has it so.
    let forward = unsafe { std::mem::transmute::<*mut c_void, Through>(forward) };
    // SAFETY: functions of these types.
    let told = |who, by, attribute| unsafe { ask(who)(get, by, attribute) };
    const MAJOR: i32 = 75;
    const MINOR: i32 = 76;
    const MOST_THREADS: i32 = 1;
    let real = [told(other, None, MAJOR), told(other, None, MINOR)];
    assert_eq!(real, [12, 0]);
    assert_eq!([told(cufft, None, MAJOR), told(cufft, None, MINOR)], [15, 0]);
    // By a runtime library that they share.
    assert_eq!([told(cufft, Some(forward), MAJOR), told(cufft, Some(forward), MINOR)], [15, 0]);
    assert_eq!(told(other, Some(forward), MAJOR), 12);
    assert_eq!(told(cufft, None, MOST_THREADS), told(other, None, MOST_THREADS));
    // SAFETY: functions of these types.
    assert_eq!(unsafe { [cufft, other].map(|who| ask(who)(major_at_once, None, MAJOR)) }, [15, 12]);
    std::fs::remove_dir_all(&folder).unwrap();
}
