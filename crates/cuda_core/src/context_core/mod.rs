//! What a context is to the objects in it: its name, its health, its limits, and its being on the GPU.
//!
//! ```text
//!            first use            error of asynchronous work
//! created ─────────────► on GPU ─────────────────────────────► failed: every call returns the error
//!    └──────── destroy ────┴───────────── destroy ───────────────┴──► dead: CONTEXT_IS_DESTROYED
//! ```
//! Streams, modules and functions hold it; it holds none of them.

pub(crate) mod limits;
mod print_fifo;
mod printf;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gpu::{ContextError, ContextId, GpuError, Request, RuntimeMemory, context_error};
use parking_lot::{Mutex, RwLock};
use ptx::launch::NULL_BYTES;

use crate::context_core::limits::Limits;
use crate::context_core::print_fifo::PrintFifo;
use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;
use crate::gpu_link::slots::{Mark, Slots};
use crate::handle::Context;
use crate::memory::addresses::Space;
use crate::memory::heap::Memory;
use crate::values::HostServices;
use crate::work::event_watch::EventWatch;

/// Longest that an error waits until another one is told.
const LONGEST_TELLING: Duration = Duration::from_secs(1);

/// Longest that is waited to learn what is at the address of a fault.
const LONGEST_LOOK: Duration = Duration::from_millis(20);

/// What all contexts of a process on one GPU have in common.
#[derive(Debug)]
pub(crate) struct GpuCore {
    pub(crate) ordinal: u32,
    pub(crate) link: Arc<GpuLink>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) host: HostServices,
    /// Events of several processes that streams here wait for, and who records some.
    pub(crate) event_watch: EventWatch,
    /// Contexts that exist on the GPU.
    contexts: RwLock<Vec<Weak<ContextCore>>>,
    /// Count of context errors up to which the contexts know of theirs.
    errors_seen: AtomicU32,
}

impl GpuCore {
    pub(crate) fn new(link: &Arc<GpuLink>, ordinal: u32, space: &Arc<Space>, host: HostServices) -> GpuCore {
        let slots = Arc::new(Slots::new(link));
        GpuCore {
            ordinal,
            link: Arc::clone(link),
            memory: Arc::new(Memory::new(link, ordinal, space, &slots)),
            slots,
            host,
            event_watch: EventWatch::default(),
            contexts: RwLock::default(),
            errors_seen: AtomicU32::new(0),
        }
    }

    /// A context that exists on the GPU, by its name there.
    pub(crate) fn context(&self, id: ContextId) -> Option<Arc<ContextCore>> {
        self.contexts.read().iter().filter_map(Weak::upgrade).find(|context| context.id == id)
    }

    /// Looks whether some context has failed since the last look: one load, if none has.
    fn look_for_errors(&self) {
        let count = self.slots.error_count();
        if count == self.errors_seen.load(Ordering::Acquire) {
            return;
        }
        let contexts: Vec<Arc<ContextCore>> = self.contexts.read().iter().filter_map(Weak::upgrade).collect();
        for context in contexts {
            if !context.failed()
                && context.on_gpu()
                && let Ok(Some(error)) = self.link.outcome(context_error(self.link.gpu(), context.id))
            {
                context.fail(&error);
            }
        }
        self.errors_seen.store(count, Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) struct ContextCore {
    pub(crate) gpu: Arc<GpuCore>,
    pub(crate) handle: Context,
    /// The context's name on the GPU; no other context of the process ever has it.
    pub(crate) id: ContextId,
    pub(crate) limits: Mutex<Limits>,
    /// The limit of a thread's stack, for launches to look at.
    stack_bytes: AtomicU32,
    /// Code of the error that sticks, or 0.
    error: AtomicU32,
    /// Held by who tells of it before that; behind any other lock, but for that of the allocations.
    telling: Mutex<()>,
    dead: AtomicBool,
    /// What exists on the GPU once a queue is needed; guards its making.
    fifo: Mutex<Option<PrintFifo>>,
    on_gpu: AtomicBool,
}

impl ContextCore {
    pub(crate) fn new(gpu: &Arc<GpuCore>, handle: Context) -> Arc<ContextCore> {
        Arc::new(ContextCore {
            gpu: Arc::clone(gpu),
            handle,
            id: ContextId(gpu.link.fresh_id()),
            limits: Mutex::default(),
            stack_bytes: AtomicU32::new(Limits::default().stack_bytes as u32),
            error: AtomicU32::new(0),
            telling: Mutex::default(),
            dead: AtomicBool::new(false),
            fifo: Mutex::new(None),
            on_gpu: AtomicBool::new(false),
        })
    }

    /// Sets a `CUlimit`.
    pub(crate) fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        let started = self.on_gpu();
        let mut limits = self.limits.lock();
        limits.set(limit, value, started)?;
        self.stack_bytes.store(limits.stack_bytes as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of a thread's stack.
    pub(crate) fn stack_bytes(&self) -> u32 {
        self.stack_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn link(&self) -> &GpuLink {
        &self.gpu.link
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.gpu.slots
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.gpu.memory
    }

    pub(crate) fn dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn failed(&self) -> bool {
        self.error.load(Ordering::Acquire) != 0
    }

    pub(crate) fn on_gpu(&self) -> bool {
        self.on_gpu.load(Ordering::Acquire)
    }

    /// The GPU says that work of the context failed.
    fn fail(&self, error: &ContextError) {
        self.stick(error.into(), || {
            // What comes of a null pointer is near nothing.
            let address = error.address().filter(|&address| address >= NULL_BYTES);
            let nearest = address.and_then(|address| self.memory().near(address, LONGEST_LOOK));
            tracing::error!(context = self.id.0, %error, nearest, "context failed");
        });
        self.gpu.event_watch.end_recorders(self.id);
    }

    /// The first error sticks. It is told before anybody sees it, who may end the process.
    pub(crate) fn stick(&self, error: CudaError, tell: impl FnOnce()) {
        // Bounded: whoever tells may wait for a thread that forks, in which a handler of the program's calls here.
        let _telling = self.telling.try_lock_for(LONGEST_TELLING);
        if !self.failed() {
            tell();
            // Unless another one has stuck meanwhile.
            let _ = self.error.compare_exchange(0, error.code(), Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// # Errors
    /// The error that sticks, or `CONTEXT_IS_DESTROYED`.
    pub(crate) fn check(&self) -> Result<()> {
        self.link().usable()?;
        self.gpu.look_for_errors();
        if self.dead() {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        match CudaError::from_code(self.error.load(Ordering::Acquire)) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// What is destroyed goes, whatever became of its context; who destroys it is told all the same, as by a driver.
    ///
    /// # Errors
    /// The error that sticks.
    pub(crate) fn check_last(&self) -> Result<()> {
        if self.dead() { Ok(()) } else { self.check() }
    }

    /// Makes the context exist on the GPU: at the first queue, so that limits can be set before.
    pub(crate) fn ensure_on_gpu(self: &Arc<Self>) -> Result<()> {
        if self.on_gpu() {
            return Ok(());
        }
        let memory = &self.gpu.memory;
        let heap_bytes = self.limits.lock().heap_bytes;
        // A tenant with next to no memory can still run kernels that do not call malloc. It is not waited for: queues are locked here,
        // behind which other threads would wait that could give some back.
        let heap = memory.alloc_internal(self.id, heap_bytes, &|| true).ok();
        let begun = self.begin_on_gpu(heap, heap_bytes);
        if !matches!(begun, Ok(true)) {
            // Others were here first, or the next try makes its own.
            heap.into_iter().for_each(|base| memory.free(base));
        }
        begun.map(drop)
    }

    /// Makes it exist there with this heap, unless it does.
    fn begin_on_gpu(self: &Arc<Self>, heap: Option<u64>, heap_bytes: u64) -> Result<bool> {
        let mut fifo = self.fifo.lock();
        if self.on_gpu() {
            return Ok(false);
        }
        if self.dead() {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        let limits = *self.limits.lock();
        let memory = &self.gpu.memory;
        let made = PrintFifo::new(memory, self.id, limits.printf_bytes)?;
        let runtime = RuntimeMemory {
            printf: made.address(),
            heap: heap.unwrap_or(0),
            heap_bytes: if heap.is_some() { heap_bytes } else { 0 },
        };
        self.link().request(Request::CreateContext { id: self.id, runtime }).inspect_err(|_| {
            // The next try makes its own.
            memory.free(made.address());
        })?;
        *fifo = Some(made);
        let mut contexts = self.gpu.contexts.write();
        contexts.retain(|other| other.strong_count() > 0);
        contexts.push(Arc::downgrade(self));
        drop(contexts);
        self.on_gpu.store(true, Ordering::Release);
        Ok(true)
    }

    /// Turns the GPU's answer to this context's work into CUDA's. If it is that the context has failed, nobody has told that yet, perhaps.
    pub(crate) fn outcome<T>(&self, answer: std::result::Result<T, GpuError>) -> Result<T> {
        if let Err(GpuError::Context(error)) = &answer {
            self.fail(error);
        }
        self.link().outcome(answer).map_err(|error| self.explain(error))
    }

    /// An error in this context's work: what comes while the context ends meets queues that are no more.
    pub(crate) fn explain(&self, error: CudaError) -> CudaError {
        if error == CudaError::INVALID_HANDLE && self.dead() { CudaError::CONTEXT_IS_DESTROYED } else { error }
    }

    /// Sleeps until a mark, of this context or another, is reached.
    ///
    /// # Errors
    /// The error of the mark's context, which is remembered if it is this one; `LAUNCH_TIMEOUT` if time ran out.
    pub(crate) fn wait(&self, mark: &Mark, timeout: Option<Duration>) -> Result<()> {
        if self.slots().reached(mark) {
            return Ok(());
        }
        self.link().usable()?;
        match self.slots().wait(mark, timeout) {
            Err(GpuError::Context(error)) if mark.context != self.id => Err((&error).into()),
            answer => self.outcome(answer),
        }
    }

    /// Hands over what kernels have printed, if nothing runs that may be printing: `idle` tells.
    pub(crate) fn print(&self, idle: impl FnOnce() -> bool) {
        if let Some(mut fifo) = self.fifo.try_lock()
            && let Some(fifo) = fifo.as_mut()
            && fifo.pending()
            && (self.failed() || idle())
        {
            fifo.drain(self.gpu.host.print);
        }
    }

    /// The context is over: calls are refused from now on.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Ends its being on the GPU: its queues stop, and what its kernels have printed is handed over.
    pub(crate) fn leave_gpu(&self) {
        let fifo = self.fifo.lock().take();
        if let Some(mut fifo) = fifo {
            self.link().give_back(Request::DestroyContext { id: self.id });
            fifo.drain(self.gpu.host.print);
        }
        self.on_gpu.store(false, Ordering::Release);
        self.gpu.event_watch.end_recorders(self.id);
    }
}
