//! nvJitLink: linking at run time.
//!
//! Every link is begun with the real library, which says what is wrong with its options, and whose handle the program gets. What is to be linked is kept
//! here instead, until the link is completed: intermediate code (LTO-IR) is made one PTX by the real library, by a link of its own with
//! `-ptx`; that and all PTX that was added, or is in fat binaries, object files and libraries that were, is linked to one text ([`ptx::link`]).
//! Who asks for the machine code gets that text, with its NUL. Who asks for linked intermediate code gets what the real library makes of that alone. Links to PTX (`-ptx`), and functions that are
//! not named here, are the real library's.
//!
//! # Limits
//! The real library makes PTX of what kernels in intermediate code use: kernels in PTX find no functions there. Machine code cannot be
//! linked, and is refused when it is added; in a library it is passed over, and named when something is undefined. Intermediate code in
//! fat binaries, object files and libraries is not looked for.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_core::{CudaError, fatbin, objects};
use ptx::link::{LinkError, Module};
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

/// Compute capability of the software GPU, as `major * 10 + minor`: PTX for higher ones is passed over.
const CAPABILITY: u32 = 120;

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
    /// PTX of members of libraries, by name: linked where it is needed.
    members: Vec<(String, Program)>,
    /// Members of libraries that have machine code only.
    without: Vec<String>,
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
            Kind::Other => {
                let added = self.add_container(bytes, &shown);
                Some(self.note(added))
            }
        }
    }

    /// Takes the PTX of a fat binary, an object file or a library. A library may have none: who knows whether it is needed.
    fn add_container(&mut self, bytes: &[u8], name: &str) -> Result<(), Failure> {
        let members = if objects::is_object(bytes) {
            objects::members(bytes, CAPABILITY)
        } else {
            fatbin::texts(&bytes, CAPABILITY).map(|found| vec![objects::Member { name: None, found }])
        };
        let members = members.map_err(|error| Failure {
            result: INVALID_INPUT,
            text: match error {
                CudaError::NO_BINARY_FOR_GPU => {
                    format!("{name}: no PTX, and the software GPU cannot execute machine code")
                }
                _ => format!(
                    "{name}: neither PTX nor LTO-IR, nor a fat binary, an object file or a library, or it is damaged"
                ),
            },
        })?;
        for objects::Member { name: member, found } in members {
            let of_library = member.is_some();
            let name = member.map_or_else(|| name.to_owned(), |member| format!("{name}({member})"));
            for text in &found.texts {
                let program = parse(text, &name)?;
                let texts = if of_library { &mut self.members } else { &mut self.ptx };
                texts.push((name.clone(), program));
            }
            if found.without > 0 {
                self.without.push(name);
            }
        }
        Ok(())
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
        fn module((name, program): &(String, Program)) -> Module<'_> {
            Module { name, program }
        }
        let modules: Vec<Module<'_>> = self.ptx.iter().chain(&lto).map(module).collect();
        let members: Vec<Module<'_>> = self.members.iter().map(module).collect();
        let text = if modules.is_empty() && members.is_empty() {
            self.nothing()
        } else {
            let failed = |error: LinkError| {
                let mut text: String = error.to_string().lines().map(|line| format!("error   : {line}\n")).collect();
                if matches!(error, LinkError::Undefined { .. }) && !self.without.is_empty() {
                    text += &format!(
                        "{}: machine code only, which the software GPU cannot execute\n",
                        self.without.join(", ")
                    );
                }
                Failure { result: INTERNAL, text }
            };
            match ptx::link::link_with(&modules, &members) {
                // A library of which nothing was needed.
                Err(LinkError::Nothing) => self.nothing(),
                linked => linked.map_err(failed)?,
            }
        };
        Ok([text, self.jit_options().pragma().unwrap_or_default(), "\0".into()].concat().into_bytes())
    }

    /// What is linked of nothing, as the real library makes machine code of it.
    fn nothing(&self) -> String {
        let target = self.value("-arch").unwrap_or("sm_75");
        format!(".version 8.0\n.target {target}\n.address_size 64\n")
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

    /// An `ar` archive of one member.
    fn library(name: &str, member: &[u8]) -> Vec<u8> {
        let head = format!("{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", format!("{name}/"), 0, 0, 0, 644, member.len());
        [b"!<arch>\n", head.as_bytes(), member].concat()
    }

    /// An object file with a fat binary of one entry: PTX, or machine code.
    fn object(ptx: bool, code: &[u8]) -> Vec<u8> {
        let padded = code.len().next_multiple_of(8);
        let mut fat = [0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0].to_vec();
        fat.extend((0x40 + padded as u64).to_le_bytes());
        let mut entry = [0; 0x40];
        entry[0] = if ptx { 1 } else { 2 };
        entry[4] = 0x40;
        entry[8..12].copy_from_slice(&(padded as u32).to_le_bytes());
        entry[28] = 75;
        fat.extend(entry);
        fat.extend(code);
        fat.resize(16 + 0x40 + padded, 0);
        let names = b"\0__nv_relfatbin\0.shstrtab\0";
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        (file[16], file[18], file[20], file[52], file[58], file[60], file[62]) = (1, 62, 1, 64, 64, 3, 2);
        file[40..48].copy_from_slice(&((64 + fat.len() + names.len()) as u64).to_le_bytes());
        let section = |name: u32, kind: u32, at: usize, bytes: usize| {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
            header
        };
        file.extend(&fat);
        file.extend(names);
        file.extend([0; 64]);
        file.extend(section(1, 1, 64, fat.len()));
        file.extend(section(16, 3, 64 + fat.len(), names.len()));
        file
    }

    /// As `libcudadevrt.a` is, which programs add to every link.
    #[test]
    fn a_library_without_ptx_is_named_where_something_is_missing() {
        let mut link = link(&[c"-arch=sm_120"]);
        let devrt = library("runtime.o", &object(false, b"\x7fELFcode"));
        assert_eq!(link.add(6, &devrt, c"libcudadevrt.a"), Some(SUCCESS), "{}", link.errors);
        assert_eq!(link.complete(library::MOST), SUCCESS, "{}", link.errors);
        assert_eq!(link.add(INPUT_PTX, CALLED, c"b"), Some(SUCCESS));
        assert_eq!(link.complete(library::MOST), SUCCESS, "{}", link.errors);
        let text = String::from_utf8(link.linked.clone().unwrap()).unwrap();
        assert!(text.contains(".visible .func f"), "{text}");

        let mut lacking = Link { without: link.without.clone(), ..Link::default() };
        assert_eq!(lacking.add(INPUT_PTX, CALLER, c"caller"), Some(SUCCESS));
        assert_eq!(lacking.complete(library::MOST), INTERNAL);
        let expected = "undefined symbol 'f', wanted by caller\nlibcudadevrt.a(runtime.o): machine code only";
        assert!(lacking.errors.contains(expected), "{}", lacking.errors);
    }

    #[test]
    fn ptx_in_objects_and_libraries_is_linked() {
        for (input, bytes) in [(5, object(true, CALLED)), (6, library("f.o", &object(true, CALLED)))] {
            let mut link = link(&[]);
            assert_eq!(link.add(input, &bytes, c"f"), Some(SUCCESS), "{}", link.errors);
            assert_eq!(link.add(INPUT_PTX, CALLER, c"caller"), Some(SUCCESS));
            assert_eq!(link.complete(library::MOST), SUCCESS, "{}", link.errors);
        }
        let mut link = link(&[]);
        assert_eq!(link.add(5, &object(false, b"\x7fELFcode"), c"machine.o"), Some(INVALID_INPUT));
        assert!(link.errors.contains("machine.o: no PTX"), "{}", link.errors);
        assert_eq!(link.add(6, b"!<arch>\nnothing such", c"lib.a"), Some(INVALID_INPUT));
        assert!(link.errors.contains("lib.a: neither PTX nor"), "{}", link.errors);
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
