//! A context on the device: a TSG, whose channels share their fate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use device_io::VramOffset;
use gpu::{ContextError, GpuError};
use gpu_spec::fault::{AccessType, Fault};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{LOG_BYTES, LOG_OFFSET, Reason, Record, STATUS_ERROR};
use gpu_spec::regs;
use parking_lot::Mutex;
use zerocopy::{FromZeros, IntoBytes};

use crate::mmio::Mmio;
use crate::signals::Signals;
use crate::vram::{Run, Vram};

/// Most bytes of a log that are kept.
const MAX_LOG: usize = LOG_BYTES as usize;

/// What clients, interrupts and the scheduler know of a context.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its TSG.
    pub(crate) tsg: u32,
    /// Device memory for printf and malloc, as the client gave it: FIFO, heap, heap bytes.
    pub(crate) area: [u64; 3],
    signals: Arc<Signals>,
    /// Error notifier, common to its channels; none when its memory may be somebody else's. It is read under the lock.
    notifier: Mutex<Option<Run>>,
    /// Channel numbers, for stopping them at an error.
    channels: Mutex<Vec<u32>>,
    failed: AtomicBool,
    ended: AtomicBool,
    error: OnceLock<ContextError>,
}

impl Context {
    pub(crate) fn new(tsg: u32, area: [u64; 3], signals: Arc<Signals>, notifier: Run) -> Context {
        Context {
            tsg,
            area,
            signals,
            notifier: Mutex::new(Some(notifier)),
            channels: Mutex::default(),
            failed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            error: OnceLock::new(),
        }
    }

    /// Its error, once it has one.
    pub(crate) fn error(&self) -> Option<&ContextError> {
        if self.failed.load(Ordering::Acquire) { self.error.get() } else { None }
    }

    /// Fine as long as it is neither dead nor being destroyed.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        if let Some(error) = self.error() {
            return Err(GpuError::Context(error.clone()));
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(GpuError::InvalidValue { what: "the context was destroyed".into() });
        }
        Ok(())
    }

    /// It is being destroyed: nobody shall wait for its queues any longer.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.signals.area.interrupt();
    }

    pub(crate) fn add_channel(&self, channel: u32) {
        self.channels.lock().push(channel);
    }

    pub(crate) fn remove_channel(&self, channel: u32) {
        self.channels.lock().retain(|other| *other != channel);
    }

    /// Whether a channel has, or does, what waits for nothing but its turn.
    pub(crate) fn is_ready(&self, mmio: &Mmio) -> bool {
        let ready = |channel: &u32| {
            let state = mmio.read(regs::pccsr_channel(*channel)).unwrap_or(0);
            let status = regs::CHANNEL_STATUS.get(state);
            matches!(status, regs::CHANNEL_STATUS_PENDING | regs::CHANNEL_STATUS_ON_ENGINE)
        };
        self.channels.lock().iter().any(ready)
    }

    /// The context is dead from now on; the first error stays.
    pub(crate) fn fail(&self, mmio: &Mmio, error: ContextError) {
        if self.error.set(error).is_err() {
            return;
        }
        self.failed.store(true, Ordering::Release);
        for channel in self.channels.lock().iter() {
            mmio.write(regs::pccsr_channel(*channel), regs::CHANNEL_ENABLE_CLR.of(1));
        }
        self.signals.area.count_error();
    }

    /// Where the notifier lies.
    pub(crate) fn notifier(&self) -> Option<PhysAddr> {
        self.notifier.lock().map(|notifier| PhysAddr::vram(notifier.offset))
    }

    /// The notifier's memory, to be given back: nobody reads it any more.
    pub(crate) fn take_notifier(&self) -> Option<Run> {
        self.notifier.lock().take()
    }

    /// Looks at the notifier, and fails if the device has written it. True if it is dead.
    pub(crate) fn check_notifier(&self, mmio: &Mmio, vram: &Vram) -> bool {
        if self.error.get().is_some() {
            return true;
        }
        let notifier = self.notifier.lock();
        let Some(at) = notifier.map(|notifier| notifier.offset) else { return false };
        let read = |offset, out: &mut [u8]| vram.backing().read_vram(VramOffset(at + offset), out);
        let mut record = Record::new_zeroed();
        read(0, record.as_mut_bytes());
        if record.status != STATUS_ERROR {
            return false;
        }
        // The status is written last: the rest is complete if it is read after it.
        std::sync::atomic::fence(Ordering::Acquire);
        read(0, record.as_mut_bytes());
        let mut log = vec![0; (record.log_bytes as usize).min(MAX_LOG)];
        read(LOG_OFFSET, &mut log);
        drop(notifier);
        self.fail(mmio, decode(&record, String::from_utf8_lossy(&log).into_owned()));
        true
    }

    /// Fails for a fault packet, where no notifier says it better.
    pub(crate) fn fail_for(&self, mmio: &Mmio, fault: &Fault) {
        let write = matches!(fault.access, AccessType::VIRT_WRITE | AccessType::VIRT_ATOMIC);
        self.fail(mmio, ContextError::IllegalAddress { address: fault.address, write, site: String::new() });
    }
}

/// What happened, and what is known besides.
fn at(what: &str, log: &str) -> String {
    if log.is_empty() { what.to_owned() } else { format!("{what}, {log}") }
}

/// The error that a notifier reports.
fn decode(record: &Record, log: String) -> ContextError {
    match record.reason {
        Reason::ILLEGAL_ADDRESS => {
            ContextError::IllegalAddress { address: record.address, write: record.access != 0, site: log }
        }
        Reason::MISALIGNED => ContextError::Misaligned { address: record.address, site: log },
        Reason::TRAP => ContextError::LaunchFailed { reason: at("trap instruction", &log) },
        Reason::ASSERT => ContextError::Assert { site: log },
        Reason::INVALID_PROGRAM => ContextError::InvalidKernel { log, unsupported: false },
        Reason::UNSUPPORTED_PROGRAM => ContextError::InvalidKernel { log, unsupported: true },
        Reason::OUT_OF_BOUNDS => {
            let what = format!("access outside shared, local or parameter memory at {:#x}", record.address);
            ContextError::LaunchFailed { reason: at(&what, &log) }
        }
        Reason::ILLEGAL_COMMAND => ContextError::IllegalCommand {
            reason: format!("method {:#x} with {:#x}: {log}", record.method, record.data),
        },
        Reason::OUT_OF_RESOURCES => ContextError::OutOfResources { reason: log },
        Reason::ILLEGAL_INSTRUCTION => ContextError::LaunchFailed { reason: at("illegal instruction", &log) },
        Reason(other) => ContextError::LaunchFailed { reason: format!("error {other} of the device: {log}") },
    }
}
