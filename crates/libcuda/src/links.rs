//! Links that are running: the log buffers that were named when each began.
//!
//! The caller keeps them until the link is destroyed, as the API says.

use std::collections::HashMap;

use cuda_abi::CUresult;
use cuda_core::{JitLog, JitOptions as CompileOptions, Link};
use parking_lot::Mutex;

use crate::entry::{Answer, Refusal};
use crate::image::JitOptions;

/// Buffers by link. A leaf lock: nothing is called under it but the copy of a log.
static LINKS: Mutex<Option<HashMap<u64, Running>>> = Mutex::new(None);

/// A running link.
struct Running {
    options: JitOptions,
    log: JitLog,
}

pub(crate) fn begin(link: Link, options: JitOptions) {
    LINKS.lock().get_or_insert_default().insert(link.0, Running { options, log: JitLog::default() });
}

pub(crate) fn end(link: Link) {
    if let Some(links) = LINKS.lock().as_mut() {
        links.remove(&link.0);
    }
}

/// Runs one step of a link, with options of its own; its logs are added to those of the steps before.
pub(crate) fn log(
    link: Link,
    options: CompileOptions,
    step: impl FnOnce(&mut JitLog) -> cuda_core::Result<()>,
) -> Answer {
    let mut log = JitLog { options, ..JitLog::default() };
    let done = step(&mut log);
    let mut links = LINKS.lock();
    let running = links.as_mut().and_then(|links| links.get_mut(&link.0));
    let running = running.ok_or(Refusal(CUresult::CUDA_ERROR_INVALID_HANDLE))?;
    running.log.info.push_str(&log.info);
    running.log.error.push_str(&log.error);
    let so_far = running.log.clone();
    running.options.log(|into| {
        *into = so_far;
        done
    })
}
