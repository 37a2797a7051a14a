//! nvJitLink: linking at run time.
//!
//! Every link is begun with the real library, which says what is wrong with its options, and whose handle the program gets. What is to be linked is kept
//! here instead, until the link is completed: intermediate code (LTO-IR) is made one PTX by the real library, by a link of its own with
//! `-ptx`; that and all PTX that was added is linked to one text ([`ptx::link`]). Who asks for the machine code gets that text, with its
//! NUL. Who asks for linked intermediate code gets what the real library makes of that alone. Links to PTX (`-ptx`), and functions that are
//! not named here, are the real library's.
//!
//! # Limits
//! The real library makes PTX of what kernels in intermediate code use: kernels in PTX find no functions there. Machine code cannot be
//! linked, and is refused when it is added.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ptx::link::Module;
use ptx::{JitOptions, Program};

use crate::image::{self, Kind};
use crate::interpose::{Stand, each, linked};
use crate::library;

/// Results that we give ourselves, and a text for the error log with them. The rest are the real library's.
#[derive(Clone, Debug, PartialEq)]
struct Failure {
    result: c_int,
    text: String,
}

/// `NVJITLINK_SUCCESS`.
const SUCCESS: c_int = 0;
/// `NVJITLINK_ERROR_INVALID_INPUT`.
const INVALID_INPUT: c_int = 3;
/// `NVJITLINK_ERROR_PTX_COMPILE`.
const PTX_COMPILE: c_int = 4;
/// `NVJITLINK_ERROR_INTERNAL`: what the real library says of symbols that nobody defines.
const INTERNAL: c_int = 6;

/// The name that every version's file begins with.
const FILES: &str = "libnvJitLink.so";

/// `NVJITLINK_INPUT_LTOIR` and `NVJITLINK_INPUT_PTX`.
const INPUT_LTOIR: c_int = 3;
const INPUT_PTX: c_int = 2;

macro_rules! stand {
    ($name:literal, $function:ident) => {
        Stand { name: $name, ours: each!($function), files: FILES, missing }
    };
}

/// What stands before nvJitLink's functions.
pub(crate) static STANDS: [Stand; 11] = [
    stand!("nvJitLinkCreate", create),
    stand!("nvJitLinkDestroy", destroy),
    stand!("nvJitLinkAddData", add_data),
    stand!("nvJitLinkAddFile", add_file),
    stand!("nvJitLinkComplete", complete),
    stand!("nvJitLinkGetLinkedCubinSize", cubin_size),
    stand!("nvJitLinkGetLinkedCubin", cubin),
    stand!("nvJitLinkGetLinkedLTOIRSize", lto_ir_size),
    stand!("nvJitLinkGetLinkedLTOIR", lto_ir),
    stand!("nvJitLinkGetErrorLogSize", error_log_size),
    stand!("nvJitLinkGetErrorLog", error_log),
];

/// By each name that the headers of some version have programs call.
macro_rules! linked_versions {
    ($($name:literal)*) => {$(
        linked!($name);
        linked_versions!(@ $name 12 0 1 2 3 4 5 6 7 8 9);
        linked_versions!(@ $name 13 0 1 2 3 4 5 6 7 8 9);
        linked_versions!(@ $name 14 0 1 2 3 4 5 6 7 8 9);
    )*};
    (@ $name:literal $major:literal $($minor:literal)*) => {
        $(linked!(concat!("__", $name, "_", $major, "_", $minor));)*
    };
}

linked_versions! {
    "nvJitLinkCreate" "nvJitLinkDestroy" "nvJitLinkAddData" "nvJitLinkAddFile" "nvJitLinkComplete" "nvJitLinkGetLinkedCubinSize"
    "nvJitLinkGetLinkedCubin" "nvJitLinkGetLinkedLTOIRSize" "nvJitLinkGetLinkedLTOIR" "nvJitLinkGetErrorLogSize" "nvJitLinkGetErrorLog"
}

extern "C" fn missing() -> c_int {
    INTERNAL
}

type Create = unsafe extern "C" fn(*mut *mut c_void, u32, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type AddData = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize, *const c_char) -> c_int;
type AddFile = unsafe extern "C" fn(*mut c_void, c_int, *const c_char) -> c_int;
type Complete = unsafe extern "C" fn(*mut c_void) -> c_int;
type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;

/// The library's function of that name, as a `$type`; some versions have it only by the name with a version.
macro_rules! real {
    ($library:expr, $name:literal, $type:ty) => {{
        let found = library::versioned_function($library, $name);
        // SAFETY: this is the type of the function of that name, in all versions.
        found.map(|function| unsafe { std::mem::transmute::<*const c_void, $type>(function) })
    }};
}

/// A link that is to become machine code.
#[derive(Debug, Default)]
struct Link {
    options: Vec<CString>,
    /// Intermediate code, by name.
    lto: Vec<(CString, Vec<u8>)>,
    /// PTX, by name.
    ptx: Vec<(String, Program)>,
    /// For the error log.
    errors: String,
    /// The linked text with its NUL.
    linked: Option<Vec<u8>>,
    /// The linked intermediate code, once it was asked for.
    linked_lto: Option<Vec<u8>>,
}

/// Links by the real library's handles.
static LINKS: Mutex<BTreeMap<usize, Arc<Mutex<Link>>>> = Mutex::new(BTreeMap::new());

fn links() -> MutexGuard<'static, BTreeMap<usize, Arc<Mutex<Link>>>> {
    LINKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with the link of a handle; `None` if it is the real library's matter.
fn with<T>(handle: *mut c_void, work: impl FnOnce(&mut Link) -> Option<T>) -> Option<T> {
    let link = links().get(&handle.addr())?.clone();
    let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut link)
}

impl Link {
    /// The link that these options ask for; `None` if the real library should make it.
    fn new(options: Vec<CString>) -> Option<Link> {
        let link = Link { options, ..Link::default() };
        (!link.has("-ptx")).then_some(link)
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|one| one.to_bytes() == option.as_bytes())
    }

    /// The value of the last such option.
    fn value(&self, option: &str) -> Option<&str> {
        let options = self.options.iter().rev().filter_map(|one| one.to_str().ok());
        options.filter_map(|one| one.strip_prefix(option)?.strip_prefix('=')).next()
    }

    /// What the options say that the text must carry.
    fn jit_options(&self) -> JitOptions {
        let max_registers = self.value("-maxrregcount").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
        JitOptions { fma: self.value("-fma") != Some("0"), max_registers }
    }

    /// Takes what is to be linked; `None` if the real library should say what is wrong with it.
    fn add(&mut self, kind: c_int, bytes: &[u8], name: &CStr) -> Option<c_int> {
        let shown = name.to_string_lossy().into_owned();
        match image::kind(bytes) {
            Kind::LtoIr if self.has("-lto") => {
                self.lto.push((name.to_owned(), bytes.to_vec()));
                Some(SUCCESS)
            }
            Kind::LtoIr => None,
            Kind::Text => {
                let added = parse(bytes, &shown).map(|program| self.ptx.push((shown, program)));
                Some(self.note(added))
            }
            Kind::MachineCode => Some(self.note(Err(Failure {
                result: INVALID_INPUT,
                text: format!("{shown}: machine code, which the software GPU cannot execute: add PTX or LTO-IR"),
            }))),
            Kind::Other if kind == INPUT_PTX || kind == INPUT_LTOIR => None,
            Kind::Other => Some(self.note(Err(Failure {
                result: INVALID_INPUT,
                text: format!("{shown}: the software GPU's linker does not know such input: add PTX or LTO-IR"),
            }))),
        }
    }

    /// Links what was added.
    fn complete(&mut self, library: usize) -> c_int {
        let linked = self.link(library);
        let linked = linked.map(|text| self.linked = Some(text));
        self.note(linked)
    }

    /// The linked intermediate code; `None` if there is none, or the link is not complete.
    fn linked_lto(&mut self, library: usize) -> Option<&Vec<u8>> {
        if self.linked_lto.is_none() && self.linked.is_some() && !self.lto.is_empty() {
            let made = link_lto(library, self, Product::LtoIr).map(|code| self.linked_lto = Some(code));
            self.note(made);
        }
        self.linked_lto.as_ref()
    }

    fn link(&self, library: usize) -> Result<Vec<u8>, Failure> {
        let lto = if self.lto.is_empty() { None } else { Some(("LTO-IR".to_owned(), lower(library, self)?)) };
        let all = self.ptx.iter().chain(&lto);
        let modules: Vec<Module<'_>> = all.map(|(name, program)| Module { name, program }).collect();
        let text = if modules.is_empty() {
            // As the real library makes machine code of nothing.
            let target = self.value("-arch").unwrap_or("sm_75");
            format!(".version 8.0\n.target {target}\n.address_size 64\n")
        } else {
            let failed = |error: ptx::link::LinkError| Failure {
                result: INTERNAL,
                text: error.to_string().lines().map(|line| format!("error   : {line}\n")).collect(),
            };
            ptx::link::link(&modules).map_err(failed)?
        };
        Ok([text, self.jit_options().pragma().unwrap_or_default(), "\0".into()].concat().into_bytes())
    }

    /// Puts an error into the log; the result to return.
    fn note(&mut self, done: Result<(), Failure>) -> c_int {
        let Err(failure) = done else { return SUCCESS };
        self.errors += &failure.text;
        if !self.errors.ends_with('\n') {
            self.errors.push('\n');
        }
        failure.result
    }
}

/// PTX text, perhaps with NULs at its end.
fn parse(bytes: &[u8], name: &str) -> Result<Program, Failure> {
    Program::parse(image::without_end(bytes)).map_err(|error| Failure {
        result: PTX_COMPILE,
        text: format!("ptxas {name}, line {}; error   : {}", error.line, error.message),
    })
}

/// Makes PTX of a link's intermediate code.
fn lower(library: usize, link: &Link) -> Result<Program, Failure> {
    parse(&link_lto(library, link, Product::Ptx)?, "LTO-IR")
}

/// What the real library makes of intermediate code.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Product {
    Ptx,
    LtoIr,
}

/// Has the real library link intermediate code alone.
fn link_lto(library: usize, link: &Link, product: Product) -> Result<Vec<u8>, Failure> {
    let failed = |result, text: &str| Failure { result, text: text.into() };
    let lost = || failed(INTERNAL, "the library lacks a function that linking needs");
    let create = real!(library, "nvJitLinkCreate", Create).ok_or_else(lost)?;
    let destroy = real!(library, "nvJitLinkDestroy", Destroy).ok_or_else(lost)?;
    let add = real!(library, "nvJitLinkAddData", AddData).ok_or_else(lost)?;
    let complete = real!(library, "nvJitLinkComplete", Complete).ok_or_else(lost)?;
    let (size, get) = match product {
        Product::Ptx => {
            (real!(library, "nvJitLinkGetLinkedPtxSize", Size), real!(library, "nvJitLinkGetLinkedPtx", Get))
        }
        Product::LtoIr => {
            (real!(library, "nvJitLinkGetLinkedLTOIRSize", Size), real!(library, "nvJitLinkGetLinkedLTOIR", Get))
        }
    };
    let (size, get) = (size.ok_or_else(lost)?, get.ok_or_else(lost)?);
    let (log_size, log) =
        (real!(library, "nvJitLinkGetErrorLogSize", Size), real!(library, "nvJitLinkGetErrorLog", Get));

    let to_ptx = (product == Product::Ptx).then_some(c"-ptx");
    let options: Vec<*const c_char> =
        link.options.iter().map(|option| option.as_ptr()).chain(to_ptx.map(CStr::as_ptr)).collect();
    let mut handle = std::ptr::null_mut();
    let count = u32::try_from(options.len()).map_err(|_| failed(INTERNAL, "too many options"))?;
    // SAFETY: a place for the handle, and so many C strings.
    let mut result = unsafe { create(&raw mut handle, count, options.as_ptr()) };
    for (name, bytes) in &link.lto {
        if result == SUCCESS {
            // SAFETY: a handle that was made, so many bytes, and a C string.
            result = unsafe { add(handle, INPUT_LTOIR, bytes.as_ptr().cast(), bytes.len(), name.as_ptr()) };
        }
    }
    if result == SUCCESS {
        // SAFETY: a handle that was made.
        result = unsafe { complete(handle) };
    }
    // SAFETY: a handle, or null, and what the library writes is as long as it says.
    let text = |size: Size, get: Get| unsafe { text_of(handle, size, get) };
    let made = if result == SUCCESS {
        text(size, get).ok_or_else(|| failed(INTERNAL, "nothing came of the LTO-IR"))
    } else {
        let log = log_size.zip(log).and_then(|(size, get)| text(size, get)).unwrap_or_default();
        Err(failed(result, String::from_utf8_lossy(&log).trim_end_matches('\0')))
    };
    if !handle.is_null() {
        // SAFETY: a handle that is used no more.
        unsafe { destroy(&raw mut handle) };
    }
    made
}

/// A text of which the library tells the length first.
///
/// # Safety
/// As of the functions, which belong together, of the handle.
unsafe fn text_of(handle: *mut c_void, size: Size, get: Get) -> Option<Vec<u8>> {
    let mut bytes = 0;
    // SAFETY: our caller's handle, and a place for the length.
    if handle.is_null() || unsafe { size(handle, &raw mut bytes) } != SUCCESS {
        return None;
    }
    let mut text = vec![0; bytes];
    // SAFETY: there is so much room.
    (unsafe { get(handle, text.as_mut_ptr().cast()) } == SUCCESS).then_some(text)
}

/// `nvJitLinkCreate`.
///
/// # Safety
/// As of nvJitLink's; so it is with the others here.
unsafe extern "C" fn create<const LIBRARY: usize>(
    handle: *mut *mut c_void,
    count: u32,
    options: *const *const c_char,
) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkCreate", Create) else { return INTERNAL };
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(handle, count, options) };
    if result == SUCCESS {
        // SAFETY: the library has just written it.
        let made = unsafe { handle.read() };
        let option = |index| {
            // SAFETY: the caller promised so many C strings, and the library has read them.
            let option = unsafe { options.add(index) };
            // SAFETY: the same.
            let option = unsafe { option.read() };
            // SAFETY: the same.
            unsafe { CStr::from_ptr(option) }.to_owned()
        };
        if let Some(link) = Link::new((0..count as usize).map(option).collect()) {
            links().insert(made.addr(), Arc::new(Mutex::new(link)));
        }
    }
    result
}

unsafe extern "C" fn destroy<const LIBRARY: usize>(handle: *mut *mut c_void) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkDestroy", Destroy) else { return INTERNAL };
    if !handle.is_null() {
        // SAFETY: the caller promised a handle there.
        links().remove(&unsafe { handle.read() }.addr());
    }
    // SAFETY: the caller's own argument.
    unsafe { real(handle) }
}

unsafe extern "C" fn add_data<const LIBRARY: usize>(
    handle: *mut c_void,
    kind: c_int,
    data: *const c_void,
    size: usize,
    name: *const c_char,
) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkAddData", AddData) else { return INTERNAL };
    let added = with(handle, |link| {
        if data.is_null() {
            return None;
        }
        // SAFETY: the caller promised so many bytes there.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        // SAFETY: the caller promised a C string, or null.
        let name = if name.is_null() { c"input" } else { unsafe { CStr::from_ptr(name) } };
        link.add(kind, bytes, name)
    });
    // SAFETY: the caller's own arguments.
    added.unwrap_or_else(|| unsafe { real(handle, kind, data, size, name) })
}

unsafe extern "C" fn add_file<const LIBRARY: usize>(handle: *mut c_void, kind: c_int, path: *const c_char) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkAddFile", AddFile) else { return INTERNAL };
    let added = with(handle, |link| {
        if path.is_null() {
            return None;
        }
        // SAFETY: the caller promised a C string.
        let path = unsafe { CStr::from_ptr(path) };
        // If it cannot be read, the library says so.
        let bytes = std::fs::read(path.to_str().ok()?).ok()?;
        link.add(kind, &bytes, path)
    });
    // SAFETY: the caller's own arguments.
    added.unwrap_or_else(|| unsafe { real(handle, kind, path) })
}

unsafe extern "C" fn complete<const LIBRARY: usize>(handle: *mut c_void) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkComplete", Complete) else { return INTERNAL };
    // SAFETY: the caller's own argument.
    with(handle, |link| Some(link.complete(LIBRARY))).unwrap_or_else(|| unsafe { real(handle) })
}

unsafe extern "C" fn cubin_size<const LIBRARY: usize>(handle: *mut c_void, size: *mut usize) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkGetLinkedCubinSize", Size) else { return INTERNAL };
    match with(handle, |link| link.linked.as_ref().map(Vec::len)) {
        Some(bytes) if !size.is_null() => {
            // SAFETY: the caller promised a place for it.
            unsafe { size.write(bytes) };
            SUCCESS
        }
        // SAFETY: the caller's own arguments.
        _ => unsafe { real(handle, size) },
    }
}

unsafe extern "C" fn cubin<const LIBRARY: usize>(handle: *mut c_void, code: *mut c_char) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkGetLinkedCubin", Get) else { return INTERNAL };
    let copied = with(handle, |link| {
        let linked = link.linked.as_ref().filter(|_| !code.is_null())?;
        // SAFETY: the caller promised room for so many bytes as `nvJitLinkGetLinkedCubinSize` told.
        unsafe { std::ptr::copy_nonoverlapping(linked.as_ptr(), code.cast(), linked.len()) };
        Some(SUCCESS)
    });
    // SAFETY: the caller's own arguments.
    copied.unwrap_or_else(|| unsafe { real(handle, code) })
}

unsafe extern "C" fn lto_ir_size<const LIBRARY: usize>(handle: *mut c_void, size: *mut usize) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkGetLinkedLTOIRSize", Size) else { return INTERNAL };
    match with(handle, |link| link.linked_lto(LIBRARY).map(Vec::len)) {
        Some(bytes) if !size.is_null() => {
            // SAFETY: the caller promised a place for it.
            unsafe { size.write(bytes) };
            SUCCESS
        }
        // SAFETY: the caller's own arguments.
        _ => unsafe { real(handle, size) },
    }
}

unsafe extern "C" fn lto_ir<const LIBRARY: usize>(handle: *mut c_void, code: *mut c_char) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkGetLinkedLTOIR", Get) else { return INTERNAL };
    let copied = with(handle, |link| {
        let linked = link.linked_lto(LIBRARY).filter(|_| !code.is_null())?;
        // SAFETY: the caller promised room for so many bytes as `nvJitLinkGetLinkedLTOIRSize` told.
        unsafe { std::ptr::copy_nonoverlapping(linked.as_ptr(), code.cast(), linked.len()) };
        Some(SUCCESS)
    });
    // SAFETY: the caller's own arguments.
    copied.unwrap_or_else(|| unsafe { real(handle, code) })
}

unsafe extern "C" fn error_log_size<const LIBRARY: usize>(handle: *mut c_void, size: *mut usize) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkGetErrorLogSize", Size) else { return INTERNAL };
    let bytes = with(handle, |link| (!link.errors.is_empty()).then_some(link.errors.len() + 1));
    match bytes {
        Some(bytes) if !size.is_null() => {
            // SAFETY: the caller promised a place for it.
            unsafe { size.write(bytes) };
            SUCCESS
        }
        // SAFETY: the caller's own arguments.
        _ => unsafe { real(handle, size) },
    }
}

unsafe extern "C" fn error_log<const LIBRARY: usize>(handle: *mut c_void, log: *mut c_char) -> c_int {
    let Some(real) = real!(LIBRARY, "nvJitLinkGetErrorLog", Get) else { return INTERNAL };
    let copied = with(handle, |link| {
        if link.errors.is_empty() || log.is_null() {
            return None;
        }
        let text = format!("{}\0", link.errors);
        // SAFETY: the caller promised room for so many bytes as `nvJitLinkGetErrorLogSize` told.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), log.cast(), text.len()) };
        Some(SUCCESS)
    });
    // SAFETY: the caller's own arguments.
    copied.unwrap_or_else(|| unsafe { real(handle, log) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &[u8] =
        b".version 8.0\n.target sm_75\n.address_size 64\n.extern .func f;\n.visible .entry k() { call f; ret; }\0";
    const CALLED: &[u8] = b".version 8.1\n.target sm_75\n.address_size 64\n.visible .func f { ret; }\n";

    fn link(options: &[&CStr]) -> Link {
        Link::new(options.iter().map(|&option| option.to_owned()).collect()).unwrap()
    }

    #[test]
    fn several_texts_become_one() {
        let mut link = link(&[c"-arch=sm_120", c"-fma=0", c"-maxrregcount=24"]);
        assert_eq!(link.add(INPUT_PTX, CALLER, c"a"), Some(SUCCESS));
        assert_eq!(link.add(1, CALLED, c"b"), Some(SUCCESS));
        assert_eq!(link.complete(library::MOST), SUCCESS);
        let text = String::from_utf8(link.linked.unwrap()).unwrap();
        assert!(
            text.contains(".version 8.1") && text.contains("fma=0 maxrregcount=24") && text.ends_with('\0'),
            "{text}"
        );
        let program = Program::parse(text.trim_end_matches('\0').as_bytes()).unwrap();
        program.lower(0, &|_| None).unwrap();
    }

    #[test]
    fn errors_are_results_with_a_log() {
        let mut link = link(&[c"-arch=sm_120"]);
        assert_eq!(link.add(INPUT_PTX, CALLER, c"caller"), Some(SUCCESS));
        assert_eq!(link.complete(library::MOST), INTERNAL);
        assert!(link.errors.contains("error   : undefined symbol 'f', wanted by caller"), "{}", link.errors);
        assert_eq!(link.linked, None);
        assert_eq!(link.add(INPUT_PTX, b".version 8.0\n.target sm_75\n.what", c"bad"), Some(PTX_COMPILE));
        assert!(link.errors.contains("ptxas bad, line 3; error   : "), "{}", link.errors);
        assert_eq!(link.add(1, b"\x7fELF\x02\x01\x01A\x08\0\0\0\0\0\0\0\x02\0\xbe\0", c"x"), Some(INVALID_INPUT));
    }

    #[test]
    fn what_the_real_library_does() {
        assert!(Link::new(vec![c"-arch=sm_120".to_owned(), c"-lto".to_owned(), c"-ptx".to_owned()]).is_none());
        let lto = b"\xed\x43\x4e\x7f\x01\x43\x03\x02";
        assert_eq!(link(&[c"-arch=sm_120"]).add(INPUT_LTOIR, lto, c"x"), None);
        assert_eq!(link(&[c"-lto"]).add(INPUT_LTOIR, lto, c"x"), Some(SUCCESS));
        assert_eq!(link(&[]).add(INPUT_PTX, b"\0\x01\x02", c"x"), None);
    }

    #[test]
    fn nothing_is_an_empty_module() {
        let mut link = link(&[c"-arch=sm_120"]);
        assert_eq!(link.complete(library::MOST), SUCCESS);
        let program = Program::parse(&link.linked.unwrap()[..]).unwrap();
        assert_eq!((program.target(), program.entries().len()), (120, 0));
    }
}
