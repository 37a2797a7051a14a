//! XLA (JAX): it carries compilers of its own, and is told to call `ptxas`; which it finds by itself, so that what it starts is ours instead.
//!
//! XLA ends a program that tells it of a flag which it does not know. So its flags are set once its plugin is in the process, and
//! only those whose names are in there. From then on the process starts our `ptxas` wherever it starts one.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use crate::interpose::Next;

/// The function by which a plugin of XLA's is known.
pub(crate) const PLUGIN: &CStr = c"GetPjrtApi";

/// Where XLA looks for flags, when it needs the first of them: after it has loaded its plugins.
const VARIABLE: &CStr = c"XLA_FLAGS";

/// Flags that have XLA call `ptxas` instead of the compilers that it carries or finds.
const FLAGS: [&str; 2] = ["xla_gpu_enable_libnvptxcompiler", "xla_gpu_enable_libnvjitlink"];

/// Sets what the plugin with this function knows of [`FLAGS`], unless the user has said it.
pub(crate) fn prepare(function: *const c_void) {
    let Some(base) = crate::library::base(function) else { return };
    // It is there, unless somebody has moved the library away from it.
    if let Some(ptxas) = crate::library::ptxas()
        && let Ok(path) = CString::new(ptxas.into_os_string().into_vec())
    {
        PTXAS.get_or_init(|| path);
    }
    let constants = constants(base);
    let knows = |flag: &str| {
        // SAFETY: the plugin's own memory, which stays while its caller is told of it.
        constants.iter().any(|&(at, bytes)| unsafe {
            !libc::memmem(std::ptr::with_exposed_provenance(at), bytes, flag.as_ptr().cast(), flag.len()).is_null()
        })
    };
    // SAFETY: a C string. As in any program, nobody may change the environment meanwhile.
    let said = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    // SAFETY: the C string that it has just given.
    let said = if said.is_null() { c"" } else { unsafe { CStr::from_ptr(said) } }.to_string_lossy().into_owned();
    let more = FLAGS.iter().filter(|flag| !said.contains(**flag) && knows(flag));
    let flags = more.fold(said.clone(), |flags, flag| format!("{flags} --{flag}=false"));
    if let Ok(value) = CString::new(flags.trim_start())
        && flags != said
    {
        // SAFETY: C strings, which are copied.
        unsafe { libc::setenv(VARIABLE.as_ptr(), value.as_ptr(), 1) };
    }
}

/// Our `ptxas`, once there is a plugin of XLA's in the process.
static PTXAS: OnceLock<CString> = OnceLock::new();

/// Which program is started instead.
///
/// # Safety
/// A C string, or null.
unsafe fn instead(program: *const c_char) -> *const c_char {
    let Some(ours) = PTXAS.get().filter(|_| !program.is_null()) else { return program };
    // SAFETY: a C string, as our caller knows.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(program) }.to_bytes()));
    if path.file_name().is_some_and(|name| name == "ptxas") { ours.as_ptr() } else { program }
}

/// The C library's functions.
pub(crate) static NEXT: [Next; 2] = [Next::new(c"posix_spawn"), Next::new(c"posix_spawnp")];

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

macro_rules! spawn {
    ($($at:literal $name:ident)*) => {$(
        /// The C library's function of this name, but for `ptxas`.
        ///
        /// # Safety
        /// As of the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            program: *const c_char,
            actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t,
            arguments: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int {
            let Some(next) = NEXT[$at].get() else { return libc::ENOSYS };
            // SAFETY: this is its type.
            let next = unsafe { std::mem::transmute::<*const c_void, Spawn>(next) };
            // SAFETY: the caller's own argument.
            let program = unsafe { instead(program) };
            // SAFETY: the caller's own arguments, and a C string that stays.
            unsafe { next(pid, program, actions, attributes, arguments, environment) }
        }
    )*};
}

spawn!(0 posix_spawn 1 posix_spawnp);

/// What of a loaded file is only read, as address and length in bytes.
fn constants(base: usize) -> Vec<(usize, usize)> {
    struct Search {
        base: usize,
        found: Vec<(usize, usize)>,
    }
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` describes a file of the process.
        let info = unsafe { &*info };
        // SAFETY: and passes on what is given to it below.
        let search = unsafe { &mut *search.cast::<Search>() };
        // SAFETY: as many headers as it says.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let place = |header: &libc::Elf64_Phdr| (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        if !loaded().any(|header| place(header) == search.base) {
            return 0;
        }
        let only_read = loaded().filter(|header| header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R);
        search.found = only_read.map(|header| (place(header), header.p_filesz as usize)).collect();
        1
    }
    let mut search = Search { base, found: Vec::new() };
    // SAFETY: `note` takes such a search, and calls nothing that waits for the loader.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut search).cast()) };
    search.found
}
