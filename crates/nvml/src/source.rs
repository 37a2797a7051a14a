//! Who is asked how the program stands, chosen by the environment as `libcuda.so.1` chooses its GPU.

use std::ffi::{CStr, c_int, c_void};
use std::io::ErrorKind;
use std::time::Duration;

use remote_gpu::{Address, ConnectError};
use wire::limits::MAX_STANDING_BYTES;
use wire::place::STANDING_TABLE;
use wire::{Reply, Standing};

use crate::abi::{NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_UNKNOWN};
use crate::edge::Answer;

/// Longest wait for the daemon, at each of two steps.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who is asked.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The daemon.
    Daemon(Address),
    /// `libcuda.so.1` of this process: the GPU is in it.
    Process(Tell),
}

/// What our `libcuda.so.1` has behind its table: writes a [`Reply::Standing`] into so many bytes, and its length.
type Tell = unsafe extern "C" fn(*mut u8, usize, *mut usize) -> c_int;

impl Source {
    /// As the environment says.
    ///
    /// # Errors
    /// `DRIVER_NOT_LOADED` if there is nobody to ask.
    pub(crate) fn of_environment() -> Answer<Source> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_native = set("SUNDIAL_NATIVE").is_some_and(|value| value != "0");
        if set("SUNDIAL_VGPU").is_some() || is_native {
            return library().map(Source::Process).ok_or(NVML_ERROR_DRIVER_NOT_LOADED);
        }
        Ok(Source::Daemon(Address::of_environment().map_err(|_| NVML_ERROR_DRIVER_NOT_LOADED)?))
    }

    /// Asks.
    ///
    /// # Errors
    /// `DRIVER_NOT_LOADED` if nobody is there, or who is there does not know the program; `UNKNOWN` of one who is there, and says
    /// nothing, or nothing that can be understood.
    pub(crate) fn ask(&self) -> Answer<Standing> {
        match self {
            Source::Daemon(address) => address.standing(PATIENCE).map_err(|error| {
                let (code, why) = match &error {
                    ConnectError::NoDaemon { source, .. } if source.kind() != ErrorKind::WouldBlock => {
                        (NVML_ERROR_DRIVER_NOT_LOADED, source.to_string())
                    }
                    ConnectError::Refused { .. } => (NVML_ERROR_DRIVER_NOT_LOADED, String::new()),
                    ConnectError::NoDaemon { source, .. } | ConnectError::Io(source) => {
                        (NVML_ERROR_UNKNOWN, source.to_string())
                    }
                    _ => (NVML_ERROR_UNKNOWN, String::new()),
                };
                explain(&format!("{error} {why}"));
                code
            }),
            Source::Process(tell) => told(*tell),
        }
    }
}

/// Says on standard error why there are no GPUs, if whoever started the program wants to read that.
fn explain(why: &str) {
    let level = std::env::var("SUNDIAL_LOG").unwrap_or_default().to_ascii_lowercase();
    if matches!(level.as_str(), "warn" | "info" | "debug" | "trace") {
        eprintln!("sundial: warn: libnvidia-ml: {}", why.trim_end());
    }
}

fn told(tell: Tell) -> Answer<Standing> {
    let mut buffer = vec![0; MAX_STANDING_BYTES];
    let mut length = 0;
    // SAFETY: the buffer has that many bytes, and the function is what our library's table promises.
    let result = unsafe { tell(buffer.as_mut_ptr(), buffer.len(), &raw mut length) };
    if result != 0 {
        return Err(NVML_ERROR_DRIVER_NOT_LOADED);
    }
    match Reply::decode(buffer.get(..length).ok_or(NVML_ERROR_UNKNOWN)?) {
        Ok(Reply::Standing(standing)) => Ok(*standing),
        _ => Err(NVML_ERROR_UNKNOWN),
    }
}

/// Our `libcuda.so.1`'s function, if that is the one which this process has or finds.
fn library() -> Option<Tell> {
    // SAFETY: running the library's initialisers has no precondition: it is ours, or one that any program may load.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return None;
    }
    let get_table = symbol(handle, c"cuGetExportTable")?;
    // SAFETY: this is the function's type in `cuda.h`.
    let get_table: unsafe extern "C" fn(*mut *const c_void, *const [u8; 16]) -> c_int =
        unsafe { std::mem::transmute(get_table) };
    let mut table: *const c_void = std::ptr::null();
    // SAFETY: both point to what the function reads and writes.
    let result = unsafe { get_table(&raw mut table, &STANDING_TABLE) };
    if result != 0 || table.is_null() {
        return None;
    }
    // SAFETY: a table of this UUID has a size and one function, of that type; nobody else's library knows the UUID.
    let words = unsafe { table.cast::<[*const c_void; 2]>().read() };
    // SAFETY: as above; the library stays loaded.
    (!words[1].is_null()).then(|| unsafe { std::mem::transmute::<*const c_void, Tell>(words[1]) })
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*const c_void> {
    // SAFETY: the handle is of a loaded library, the name ends with a zero.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const())
}
