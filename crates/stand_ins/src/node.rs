//! Device nodes that programs look for before they ask the driver.
//!
//! JAX, for one, has no GPU unless `/dev/nvidia0` or `/dev/nvidiactl` exists. The software GPU has none, but it is there: who asks about such a
//! node, and there is none, is told of `/dev/null`. Who opens it learns that there is none.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::interpose::Next;

/// The nodes of NVIDIA's driver that stand for "there is a GPU".
const NODES: [&CStr; 2] = [c"/dev/nvidia0", c"/dev/nvidiactl"];

type Stat = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;
type VersionedStat = unsafe extern "C" fn(c_int, *const c_char, *mut c_void) -> c_int;

/// Whether this is the path of one of the nodes, and there is no such node.
///
/// # Safety
/// A C string, or null.
unsafe fn stands_in(path: *const c_char, result: c_int) -> bool {
    let missing = std::io::Error::last_os_error().kind() == std::io::ErrorKind::NotFound;
    if result == 0 || !missing || path.is_null() {
        return false;
    }
    // SAFETY: as our caller knows; the C library has read it.
    NODES.contains(&unsafe { CStr::from_ptr(path) })
}

/// Fails as a function does that is not there.
fn not_there() -> c_int {
    // SAFETY: no precondition.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own.
    unsafe { errno.write(libc::ENOSYS) };
    -1
}

/// The C library's functions; the last two programs call that are built for versions before 2.33.
pub(crate) static NEXT: [Next; 4] =
    [Next::new(c"stat"), Next::new(c"stat64"), Next::new(c"__xstat"), Next::new(c"__xstat64")];

macro_rules! stat {
    ($($at:literal $name:ident)*) => {$(
        /// The C library's function of this name, but for the nodes.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, about: *mut c_void) -> c_int {
            let Some(next) = NEXT[$at].get() else { return not_there() };
            // SAFETY: this is its type.
            let next = unsafe { std::mem::transmute::<*const c_void, Stat>(next) };
            // SAFETY: the caller's own arguments.
            let result = unsafe { next(path, about) };
            // SAFETY: the caller's own argument.
            if unsafe { stands_in(path, result) } {
                // SAFETY: a C string, and the caller's own argument.
                return unsafe { next(c"/dev/null".as_ptr(), about) };
            }
            result
        }
    )*};
}

macro_rules! versioned_stat {
    ($($at:literal $name:ident)*) => {$(
        /// The C library's function of this name, but for the nodes.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(version: c_int, path: *const c_char, about: *mut c_void) -> c_int {
            let Some(next) = NEXT[$at].get() else { return not_there() };
            // SAFETY: this is its type.
            let next = unsafe { std::mem::transmute::<*const c_void, VersionedStat>(next) };
            // SAFETY: the caller's own arguments.
            let result = unsafe { next(version, path, about) };
            // SAFETY: the caller's own argument.
            if unsafe { stands_in(path, result) } {
                // SAFETY: a C string, and the caller's own arguments.
                return unsafe { next(version, c"/dev/null".as_ptr(), about) };
            }
            result
        }
    )*};
}

stat!(0 stat 1 stat64);
versioned_stat!(2 __xstat 3 __xstat64);
