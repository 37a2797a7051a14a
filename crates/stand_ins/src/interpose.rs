//! How functions of ours come before functions of the same names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{library, node, nvfatbin, nvjitlink, nvrtc, xla};

/// A function that we stand before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    /// Its name, without what nvJitLink puts around its names.
    pub(crate) name: &'static str,
    /// What stands before it, for each library; see [`library`].
    pub(crate) ours: [*const c_void; library::MOST],
    /// What the names of the files begin with that have it.
    pub(crate) files: &'static str,
    /// What is called if there is no such library: it returns an error of that library's.
    pub(crate) missing: extern "C" fn() -> c_int,
}

// SAFETY: addresses of functions.
unsafe impl Sync for Stand {}

/// What stands before the function of that name.
fn stand(name: &CStr) -> Option<&'static Stand> {
    let name = unversioned(name.to_str().ok()?);
    nvrtc::STANDS.iter().chain(&nvjitlink::STANDS).chain(&nvfatbin::STANDS).find(|stand| stand.name == name)
}

/// nvJitLink has each of its functions by the names `NAME` and, for each version, `__NAME_13_5`.
fn unversioned(name: &str) -> &str {
    let Some(versioned) = name.strip_prefix("__") else { return name };
    let mut parts = versioned.rsplitn(3, '_');
    let mut number = || parts.next().is_some_and(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let versions = number() && number();
    parts.next().filter(|_| versions).unwrap_or(name)
}

/// [`look_up`]'s answer for names that are not ours.
const NOT_OURS: usize = 1;

/// The C library's `dlsym`; 0 until it was looked for.
static C_DLSYM: AtomicUsize = AtomicUsize::new(0);

/// The `dlsym` that comes after ours: of another preloaded library, or the C library's; 0 until it was looked for.
static NEXT_DLSYM: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Finds the C library's `dlsym`: the one that has a version, which those of other preloaded libraries have not.
fn find_dlsym() -> usize {
    // This version is found in every GNU C library for x86-64; newer ones have it beside their own.
    // SAFETY: C strings, and a handle that stands for what comes after this library.
    let found = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
    if found.is_null() {
        // There is no program without it, and no way to go on without it.
        std::process::abort();
    }
    C_DLSYM.store(found.expose_provenance(), Ordering::Relaxed);
    found.addr()
}

/// Finds the `dlsym` that comes after ours.
extern "C" fn find_next() -> usize {
    // SAFETY: a C string. Of what comes after this library, which the C library's function finds by where it is called from.
    let found = unsafe { c_dlsym(libc::RTLD_NEXT, c"dlsym".as_ptr()) };
    let found = if found.is_null() { C_DLSYM.load(Ordering::Relaxed) } else { found.expose_provenance() };
    NEXT_DLSYM.store(found, Ordering::Relaxed);
    found
}

/// The C library's `dlsym`.
///
/// # Safety
/// As of the C library's. The special handles are those of this library.
pub(crate) unsafe fn c_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let known = C_DLSYM.load(Ordering::Relaxed);
    let address = if known == 0 { find_dlsym() } else { known };
    let function: *const c_void = std::ptr::with_exposed_provenance(address);
    // SAFETY: this is `dlsym`.
    let function: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(function) };
    // SAFETY: as our caller knows.
    unsafe { function(handle, name) }
}

/// A function of the C library that one of ours stands before.
#[derive(Debug)]
pub(crate) struct Next {
    name: &'static CStr,
    /// 0 until it was looked for.
    address: AtomicUsize,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Its address; `None` if this C library has none.
    pub(crate) fn get(&self) -> Option<*const c_void> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            // SAFETY: a C string. What comes after us.
            address = unsafe { c_dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }.expose_provenance();
            self.address.store(address, Ordering::Relaxed);
        }
        (address != 0).then(|| std::ptr::with_exposed_provenance(address))
    }
}

/// Looks for all that we go on to. Later it would have to wait for the loader, and may be called by a thread for which one waits that has
/// the loader.
extern "C" fn look_for_all() {
    find_next();
    for next in node::NEXT.iter().chain(&xla::NEXT) {
        next.get();
    }
}

// Before the program runs.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_FOR_ALL: extern "C" fn() = look_for_all;

/// The next `dlsym`, but for the names that we stand before.
///
/// What that does depends on who calls it (`RTLD_NEXT`), so for all other names this jumps there with the stack as it was.
///
/// # Safety
/// As of the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "test rsi, rsi",
        "jz 2f",
        "cmp byte ptr [rsi], {n}",
        "je 5f",
        "cmp byte ptr [rsi], {underscore}",
        "je 5f",
        "cmp byte ptr [rsi], {g}",
        "je 6f",
        // Not ours.
        "2:",
        "mov rax, [rip + {next_dlsym}]",
        "test rax, rax",
        "jz 4f",
        "jmp rax",
        "5:",
        "cmp byte ptr [rsi + 1], {v}",
        "je 3f",
        "cmp byte ptr [rsi + 1], {underscore}",
        "je 3f",
        "jmp 2b",
        "6:",
        "cmp byte ptr [rsi + 1], {e}",
        "jne 2b",
        // Perhaps ours.
        "3:",
        "push rdi",
        "push rsi",
        "mov rdx, [rsp + 16]",
        "sub rsp, 8",
        "call {look_up}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, {not_ours}",
        "je 2b",
        "ret",
        // The first call.
        "4:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        n = const b'n',
        v = const b'v',
        underscore = const b'_',
        g = const b'G',
        e = const b'e',
        next_dlsym = sym NEXT_DLSYM,
        look_up = sym look_up,
        not_ours = const NOT_OURS,
        find = sym find_next,
    )
}

/// What `dlsym` answers for a name that may be ours, to code at `caller`.
extern "C" fn look_up(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> usize {
    // Who asks for the next one stands before that, too, and has been reached through us or is reached by us.
    if handle == libc::RTLD_NEXT {
        return NOT_OURS;
    }
    let answer = || {
        // SAFETY: the caller's own argument: a C string.
        let asked = unsafe { CStr::from_ptr(name) };
        // SAFETY: the caller's own arguments, which mean the same whoever calls.
        let found = || unsafe { c_dlsym(handle, name) }.cast_const();
        if asked == xla::PLUGIN {
            if handle != libc::RTLD_DEFAULT {
                xla::prepare(found());
            }
            return None;
        }
        let stand = stand(asked)?;
        let found = if handle == libc::RTLD_DEFAULT { std::ptr::null() } else { found() };
        // A handle of the whole program finds ours.
        let everywhere = handle == libc::RTLD_DEFAULT || library::is_ours(found);
        let real =
            if everywhere { library::function_for(caller, name) } else { Some(found).filter(|it| !it.is_null()) };
        let Some(real) = real else {
            if everywhere {
                // SAFETY: a C string. It fails, as it did above, and notes the error that the caller may ask for.
                unsafe { c_dlsym(libc::RTLD_NEXT, name) };
            }
            return Some(0);
        };
        Some(library::of_function(real).map_or(real, |library| stand.ours[library]).addr())
    };
    catch_unwind(AssertUnwindSafe(answer)).ok().flatten().unwrap_or(NOT_OURS)
}

/// Where a program goes on that is linked with a library and calls a function of ours in its place.
pub(crate) extern "C" fn resolve(name: *const c_char, caller: *const c_void) -> *const c_void {
    let find = || {
        // SAFETY: [`linked`] wrote it.
        let name = unsafe { CStr::from_ptr(name) };
        let stand = stand(name)?;
        let Some(real) =
            library::function_for(caller, name.as_ptr()).or_else(|| library::function_in(stand.files, name))
        else {
            eprintln!("sundial: {} was called, but no library that has it is there", name.to_string_lossy());
            return Some(stand.missing as *const c_void);
        };
        Some(library::of_function(real).map_or(real, |library| stand.ours[library]))
    };
    // Only a function without a stand, or a panic, of which there is none.
    catch_unwind(AssertUnwindSafe(find)).ok().flatten().unwrap_or_else(|| std::process::abort())
}

/// Functions by which programs reach us that are linked with the library.
///
/// Which library the caller means its return address tells; so they leave the stack as it is and jump.
macro_rules! linked {
    ($($name:expr),* $(,)?) => {$(
        const _: () = {
            /// Jumps to what stands before the caller's library.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn function() {
                std::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 8",
                    "lea rdi, [rip + 2f]",
                    "mov rsi, [rsp + 56]",
                    "call {resolve}",
                    "add rsp, 8",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp rax",
                    concat!("2: .asciz \"", $name, "\""),
                    resolve = sym $crate::interpose::resolve,
                )
            }
        };
    )*};
}
pub(crate) use linked;

/// The functions of ours for each library: `each!(function)` has those of `function::<LIBRARY>`.
macro_rules! each {
    ($function:ident) => {
        [
            $function::<0> as *const c_void,
            $function::<1> as *const c_void,
            $function::<2> as *const c_void,
            $function::<3> as *const c_void,
            $function::<4> as *const c_void,
            $function::<5> as *const c_void,
            $function::<6> as *const c_void,
            $function::<7> as *const c_void,
        ]
    };
}
pub(crate) use each;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_versions() {
        assert_eq!(unversioned("nvJitLinkCreate"), "nvJitLinkCreate");
        assert_eq!(unversioned("__nvJitLinkCreate_12_4"), "nvJitLinkCreate");
        assert_eq!(unversioned("__nvJitLinkGetLinkedCubinSize_13_10"), "nvJitLinkGetLinkedCubinSize");
        for other in ["", "__", "__12_4", "__a_b_4", "__a_4", "nvrtc_1_2", "__nvJitLinkAPI", "__a_1_"] {
            let same = if other == "__12_4" { "__12_4" } else { other };
            assert_eq!(unversioned(other), same, "{other}");
        }
    }

    #[test]
    fn only_some_functions_have_a_stand() {
        assert_eq!(stand(c"nvrtcGetCUBIN").unwrap().name, "nvrtcGetCUBIN");
        assert_eq!(stand(c"__nvJitLinkCreate_15_1").unwrap().name, "nvJitLinkCreate");
        assert!(stand(c"nvrtcGetPTX").is_none());
        assert!(stand(c"nvrtcGetCUBINsize").is_none());
    }
}
