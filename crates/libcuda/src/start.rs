//! `cuInit`: the GPUs behind the library, and what happens at forks and at the end of the process.

use std::ffi::c_void;

use cuda_abi::{CUresult, CUstream};
use cuda_core::{Context, Driver, HostServices};
use parking_lot::Mutex;

use crate::calls::coredump;
use crate::decode::Encode;
use crate::entry::{self, Answer, Refusal, driver, refuse};
use crate::{backend, check, context_storage, log};

/// Held while the driver is made, so that it is made once.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts the driver; again after success does nothing, after failure tries again.
pub(crate) fn init(flags: u32) -> Answer {
    if flags != 0 {
        return refuse(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let _one_at_a_time = STARTING.lock();
    if entry::startable()? {
        log::start();
        coredump::start();
        let backend = backend::open().map_err(|error| {
            tracing::warn!("no GPU: {error}");
            Refusal(CUresult::CUDA_ERROR_NO_DEVICE)
        })?;
        let driver = Driver::new(backend.gpus, HostServices { print, context_destroyed });
        if std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1") {
            driver.be_immediate();
        }
        if let Some(checker) = backend.checker {
            check::attach(&driver, checker);
        }
        driver.init(flags)?;
        entry::install(driver, backend.spared, backend.own);
        // SAFETY: the handler only stores a number, which is safe in the child of a fork.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    driver().map(drop)
}

unsafe extern "C" {
    /// The C library's standard output, which the program's own `printf` uses too.
    static stdout: *mut libc::FILE;
}

/// Writes what kernels print behind what the program printed so far.
fn print(text: &[u8]) {
    // SAFETY: the C library sets it before any code of ours runs; the program does not unset it.
    let out = unsafe { stdout };
    // SAFETY: `text` is readable for its length; `out` is a stream, which locks itself.
    unsafe { libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), out) };
    // SAFETY: as above.
    unsafe { libc::fflush(out) };
}

fn context_destroyed(context: Context) {
    context_storage::context_destroyed(context.encode());
    coredump::context_destroyed(context.encode());
}

unsafe extern "C" fn forked() {
    entry::forked();
}

/// The default stream of functions that have no stream parameter.
pub(crate) const DEFAULT_STREAM: CUstream = CUstream::LEGACY;

/// The stream that a null one means to programs compiled for per-thread default streams.
pub(crate) fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() { CUstream::PER_THREAD } else { stream }
}

/// Runs when the library is unloaded: behind the program's own `atexit` functions, which may still call us.
extern "C" fn at_end() {
    entry::end();
}

// The loader calls what stands in this section; nothing else refers to it.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;
