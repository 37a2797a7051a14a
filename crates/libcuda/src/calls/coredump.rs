//! Settings of GPU core dumps. No dump is ever written: what is set is kept and told, and functions that are registered are not called.

use std::collections::HashMap;
use std::sync::OnceLock;

use cuda_abi::{CUcontext, CUcoredumpCallbackHandle, CUcoredumpSettings, CUresult, HostAddr};
use cuda_core::Driver;
use parking_lot::Mutex;

use crate::decode::{Encode, In, InOut, Out, in_at, out_at};
use crate::entry::{Answer, Refusal, refuse};

/// Most bytes of a name of a file, with its NUL.
const NAME_BYTES: usize = 1024;
/// Flags of a context that ask for dumps.
const ENABLED_BY_FLAGS: u32 = 0x60;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Setting {
    Bool(bool),
    Flags(u32),
    Name(String),
}

impl Setting {
    /// What it takes in C, bytes.
    fn bytes(&self) -> usize {
        match self {
            Setting::Bool(_) => 1,
            Setting::Flags(_) => 4,
            Setting::Name(_) => NAME_BYTES,
        }
    }
}

/// Whose setting.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    Process,
    Context(CUcontext),
}

struct Settings {
    /// Said by the environment, which no call overrides.
    fixed: HashMap<u32, Setting>,
    set: HashMap<(Of, u32), Setting>,
    /// Registered functions, and whether each is told of the end.
    callbacks: HashMap<CUcoredumpCallbackHandle, bool>,
    last_callback: u64,
}

fn settings() -> &'static Mutex<Settings> {
    static SETTINGS: OnceLock<Mutex<Settings>> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let fixed = (1..=7).filter_map(|which| Some((which, from_environment(CUcoredumpSettings(which))?))).collect();
        Mutex::new(Settings { fixed, set: HashMap::new(), callbacks: HashMap::new(), last_callback: 0 })
    })
}

/// Reads the environment, which later changes of are not looked at.
pub(crate) fn start() {
    settings();
}

fn from_environment(which: CUcoredumpSettings) -> Option<Setting> {
    let name = match which {
        CUcoredumpSettings::CU_COREDUMP_ENABLE_ON_EXCEPTION => "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
        CUcoredumpSettings::CU_COREDUMP_TRIGGER_HOST => "CUDA_ENABLE_CPU_COREDUMP_ON_EXCEPTION",
        CUcoredumpSettings::CU_COREDUMP_LIGHTWEIGHT => "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP",
        CUcoredumpSettings::CU_COREDUMP_ENABLE_USER_TRIGGER => "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
        CUcoredumpSettings::CU_COREDUMP_FILE => "CUDA_COREDUMP_FILE",
        CUcoredumpSettings::CU_COREDUMP_PIPE => "CUDA_COREDUMP_PIPE",
        _ => return None,
    };
    let said = std::env::var(name).ok()?;
    let said_bytes = said.len();
    match default(which)? {
        Setting::Bool(_) => said.trim().parse::<i32>().ok().map(|said| Setting::Bool(said != 0)),
        _ => Some(Setting::Name(said)).filter(|_| said_bytes < NAME_BYTES),
    }
}

fn default(which: CUcoredumpSettings) -> Option<Setting> {
    let file = |what: &str| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Setting::Name(format!("{what}.cuda.{}.{}", host.trim(), std::process::id()))
    };
    Some(match which {
        CUcoredumpSettings::CU_COREDUMP_ENABLE_ON_EXCEPTION
        | CUcoredumpSettings::CU_COREDUMP_LIGHTWEIGHT
        | CUcoredumpSettings::CU_COREDUMP_ENABLE_USER_TRIGGER => Setting::Bool(false),
        CUcoredumpSettings::CU_COREDUMP_TRIGGER_HOST => Setting::Bool(true),
        CUcoredumpSettings::CU_COREDUMP_FILE => file("core"),
        CUcoredumpSettings::CU_COREDUMP_PIPE => file("corepipe"),
        CUcoredumpSettings::CU_COREDUMP_GENERATION_FLAGS => Setting::Flags(0),
        _ => return None,
    })
}

impl Settings {
    fn get(&self, of: Of, which: CUcoredumpSettings) -> Result<Setting, Refusal> {
        let set = || self.set.get(&(of, which.0)).or_else(|| self.set.get(&(Of::Process, which.0)));
        let known = self.fixed.get(&which.0).or_else(set).cloned();
        known.or_else(|| default(which)).ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))
    }

    fn set(&mut self, of: Of, which: CUcoredumpSettings, value: Setting) -> Answer {
        let pipe = which == CUcoredumpSettings::CU_COREDUMP_PIPE;
        let of_process = pipe || which == CUcoredumpSettings::CU_COREDUMP_ENABLE_USER_TRIGGER;
        let triggered = self.get(Of::Process, CUcoredumpSettings::CU_COREDUMP_ENABLE_USER_TRIGGER)?;
        if self.fixed.contains_key(&which.0)
            || of_process && of != Of::Process
            || pipe && triggered == Setting::Bool(true)
        {
            return refuse(CUresult::CUDA_ERROR_NOT_PERMITTED);
        }
        self.set.insert((of, which.0), value);
        Ok(())
    }
}

/// The context is gone.
pub(crate) fn context_destroyed(context: CUcontext) {
    settings().lock().set.retain(|(of, _), _| *of != Of::Context(context));
}

fn current(driver: &Driver) -> Result<Of, Refusal> {
    let context = driver.ctx_get_current()?;
    if context.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok(Of::Context(context.encode()))
}

pub(crate) fn get_attribute(driver: &Driver, which: CUcoredumpSettings, value: HostAddr, size: InOut<usize>) -> Answer {
    let of = current(driver)?;
    let mut setting = settings().lock().get(of, which)?;
    let enable = which == CUcoredumpSettings::CU_COREDUMP_ENABLE_ON_EXCEPTION;
    if enable && driver.ctx_get_flags_anyway()? & ENABLED_BY_FLAGS != 0 {
        let said = settings().lock().set.get(&(of, which.0)).cloned();
        setting = said.unwrap_or(Setting::Bool(true));
    }
    store(&setting, value, size)
}

pub(crate) fn get_attribute_global(which: CUcoredumpSettings, value: HostAddr, size: InOut<usize>) -> Answer {
    let setting = settings().lock().get(Of::Process, which)?;
    store(&setting, value, size)
}

fn store(setting: &Setting, value: HostAddr, size: InOut<usize>) -> Answer {
    if value.is_null() {
        size.output().required()?;
        size.output().set(setting.bytes());
        return Ok(());
    }
    let room = size.input().get()?;
    let short = match setting {
        Setting::Name(name) => room <= name.len(),
        other => room < other.bytes(),
    };
    if short {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    match setting {
        // SAFETY: the C caller promised `room` bytes there (`decode`).
        Setting::Bool(value_of) => unsafe { out_at::<u8>(value) }.set(u8::from(*value_of)),
        // SAFETY: as above.
        Setting::Flags(flags) => unsafe { out_at::<u32>(value) }.set(*flags),
        Setting::Name(name) => {
            // SAFETY: as above.
            let text = unsafe { out_at::<u8>(value) };
            // SAFETY: name and NUL are no longer than that.
            return unsafe { text.set_text(name, room.min(NAME_BYTES) as i32) };
        }
    }
    Ok(())
}

pub(crate) fn set_attribute(driver: &Driver, which: CUcoredumpSettings, value: HostAddr, size: InOut<usize>) -> Answer {
    set(current(driver)?, which, value, size)
}

pub(crate) fn set_attribute_global(which: CUcoredumpSettings, value: HostAddr, size: InOut<usize>) -> Answer {
    set(Of::Process, which, value, size)
}

fn set(of: Of, which: CUcoredumpSettings, value: HostAddr, size: InOut<usize>) -> Answer {
    let known = default(which).ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?;
    if value.is_null() {
        return store(&known, value, size);
    }
    let bytes = size.input().get()?;
    // SAFETY: the C caller promised so many bytes there (`decode`).
    let text: In<u8> = unsafe { in_at(value) };
    let new = match known {
        Setting::Name(_) => {
            let mut name = Vec::new();
            // What is behind the NUL is not read: it may not be there, whatever the size says.
            for at in 0..bytes.min(NAME_BYTES) {
                // SAFETY: as above.
                match unsafe { text.get_at(at) }? {
                    0 => break,
                    byte => name.push(byte),
                }
            }
            let name = String::from_utf8(name).ok().filter(|name| name.len() < NAME_BYTES);
            Setting::Name(name.ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_VALUE))?)
        }
        other if bytes < other.bytes() => return refuse(CUresult::CUDA_ERROR_INVALID_VALUE),
        Setting::Bool(_) => Setting::Bool(text.get()? != 0),
        // SAFETY: as above.
        Setting::Flags(_) => Setting::Flags(unsafe { in_at::<u32>(value) }.get()?),
    };
    settings().lock().set(of, which, new)
}

fn register(function: HostAddr, out: Out<CUcoredumpCallbackHandle>, of_end: bool) -> Answer {
    if function.is_null() {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let settings = &mut *settings().lock();
    settings.last_callback += 1;
    let handle = CUcoredumpCallbackHandle(settings.last_callback);
    settings.callbacks.insert(handle, of_end);
    out.set_plain(handle);
    Ok(())
}

fn deregister(handle: CUcoredumpCallbackHandle, of_end: bool) -> Answer {
    let callbacks = &mut settings().lock().callbacks;
    if callbacks.get(&handle) != Some(&of_end) {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    callbacks.remove(&handle);
    Ok(())
}

pub(crate) fn register_start_callback(
    function: HostAddr,
    _data: HostAddr,
    out: Out<CUcoredumpCallbackHandle>,
) -> Answer {
    register(function, out, false)
}

pub(crate) fn register_complete_callback(
    function: HostAddr,
    _data: HostAddr,
    out: Out<CUcoredumpCallbackHandle>,
) -> Answer {
    register(function, out, true)
}

pub(crate) fn deregister_start_callback(handle: CUcoredumpCallbackHandle) -> Answer {
    deregister(handle, false)
}

pub(crate) fn deregister_complete_callback(handle: CUcoredumpCallbackHandle) -> Answer {
    deregister(handle, true)
}
