//! The real libraries in the process.
//!
//! A function of ours that stands before a library's must know which library that is: of the arguments only handles tell, and
//! those only to the library that made them. So each such function exists [`MOST`] times, one for each library.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::interpose::c_dlsym;

/// So many libraries are told apart; a process with all versions of NVRTC and nvJitLink since 11 has fewer.
pub(crate) const MOST: usize = 8;

/// A library that is in the process, and stays there because of us.
#[derive(Debug)]
struct Library {
    /// Where it begins: what `dladdr` says of all its functions.
    base: usize,
    /// As `dlopen` gave it.
    handle: usize,
}

static LIBRARIES: Mutex<Vec<Library>> = Mutex::new(Vec::new());

/// Which library this function is in, counted from 0; `None` for one of ours, or where no more can be told apart.
pub(crate) fn of_function(function: *const c_void) -> Option<usize> {
    let found = about(function)?;
    let base = found.dli_fbase.addr();
    if is_ours(function) {
        return None;
    }
    let libraries = || LIBRARIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = |libraries: &[Library]| libraries.iter().position(|library| library.base == base);
    if let Some(known) = known(&libraries()) {
        return Some(known);
    }
    // The loader is asked without our lock: who calls us may have the loader's, and wait for ours.
    // SAFETY: its name as the loader has it, a C string. It is there already, so nothing of it runs.
    let handle = unsafe { libc::dlopen(found.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        // In another namespace.
        return None;
    }
    let mut libraries = libraries();
    let at = known(&libraries);
    if at.is_none() && libraries.len() < MOST {
        libraries.push(Library { base, handle: handle.addr() });
        return Some(libraries.len() - 1);
    }
    drop(libraries);
    // SAFETY: `dlopen` has just given it; whose function this is has the library open.
    let _: c_int = unsafe { libc::dlclose(handle) };
    at
}

/// Is it in this library?
pub(crate) fn is_ours(function: *const c_void) -> bool {
    base(function).is_some_and(|found| Some(found) == base(of_function as *const c_void))
}

/// Our `ptxas`: beside the folder that this library really lies in, or one further up, where somebody's copy has made files of the links to it.
pub(crate) fn ptxas() -> Option<PathBuf> {
    let found = about(of_function as *const c_void)?;
    // SAFETY: the loader's C string.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    let library = std::fs::canonicalize(OsStr::from_bytes(path.to_bytes())).ok()?;
    beside(&library).find(|path| path.exists())
}

/// Where `ptxas` may be.
fn beside(library: &Path) -> impl Iterator<Item = PathBuf> {
    library.ancestors().skip(2).take(2).map(|folder| folder.join("bin/ptxas"))
}

/// Where the file begins that the loader has an address in.
pub(crate) fn base(address: *const c_void) -> Option<usize> {
    about(address).map(|found| found.dli_fbase.addr())
}

/// The function of that name in a library from [`of_function`].
pub(crate) fn function(library: usize, name: &CStr) -> Option<*const c_void> {
    let handle = LIBRARIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(library)?.handle;
    // SAFETY: `dlopen` gave this handle, and it was never closed.
    let found = unsafe { c_dlsym(std::ptr::with_exposed_provenance_mut(handle), name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

/// The function of nvJitLink's of that name, or, in libraries that have only such, of that name with a version.
pub(crate) fn versioned_function(library: usize, name: &str) -> Option<*const c_void> {
    let plain = CString::new(name).ok().and_then(|name| function(library, &name));
    plain.or_else(|| {
        let versions = (12..16).flat_map(|major| (0..10).map(move |minor| format!("__{name}_{major}_{minor}")));
        versions.filter_map(|name| function(library, &CString::new(name).ok()?)).next()
    })
}

/// The function of that name which code at `caller` reaches if we are not there: of the libraries that its own library is
/// linked with, else of those that all see. Never its own: one who stands before the library, as we do, would call itself.
pub(crate) fn function_for(caller: *const c_void, name: *const c_char) -> Option<*const c_void> {
    let own = [base(of_function as *const c_void), base(caller)];
    let theirs = |function: *mut c_void| {
        let known = !function.is_null() && base(function).is_some_and(|found| !own.contains(&Some(found)));
        known.then_some(function.cast_const())
    };
    // SAFETY: a C string. Of what comes after us in the search order.
    let everybodys = theirs(unsafe { c_dlsym(libc::RTLD_NEXT, name) });
    if everybodys.is_some() {
        return everybodys;
    }
    let from = about(caller)?;
    // SAFETY: as in `of_function`.
    let handle = unsafe { libc::dlopen(from.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: `dlopen` has just given it.
    let found = theirs(unsafe { c_dlsym(handle, name) });
    // SAFETY: the same; the library stays, for its code is calling.
    let _: c_int = unsafe { libc::dlclose(handle) };
    found
}

/// The function of that name in any library of the process whose file's name begins so.
///
/// For callers that were handed the function's address by others.
pub(crate) fn function_in(files: &str, name: &CStr) -> Option<*const c_void> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes on what is given to it below.
        let names = unsafe { &mut *names.cast::<Vec<CString>>() };
        // SAFETY: it describes a file of the process.
        let name = unsafe { (*info).dlpi_name };
        if !name.is_null() {
            // SAFETY: the loader's C string.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `note` takes such a list. It calls nothing that waits for the loader, which waits for it.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names.iter().filter(|path| is_named(path, files)).find_map(|path| {
        // SAFETY: a C string; as in `of_function`.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if handle.is_null() {
            return None;
        }
        // It stays open, as those in `LIBRARIES` do.
        // SAFETY: `dlopen` has just given the handle.
        let found = unsafe { c_dlsym(handle, name.as_ptr()) };
        (!found.is_null()).then_some(found.cast_const())
    })
}

/// Whether the last part of the path begins so.
fn is_named(path: &CStr, files: &str) -> bool {
    let path = path.to_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(files.as_bytes())
}

/// What the loader knows of an address: `None` if it is in none of its files.
fn about(address: *const c_void) -> Option<libc::Dl_info> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for, and `found` takes the answer.
    let known = unsafe { libc::dladdr(address, found.as_mut_ptr()) };
    // SAFETY: the answer is there if the return value is not 0.
    (known != 0).then(|| unsafe { found.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptxas_is_found_from_the_library_and_from_copies_of_links_to_it() {
        for library in ["lib/x.so", "lib64/x.so", "lib/x86_64-linux-gnu/x.so"] {
            let library = Path::new("/there/stand-ins").join(library);
            assert!(beside(&library).any(|path| path == Path::new("/there/stand-ins/bin/ptxas")), "{library:?}");
        }
    }
}
