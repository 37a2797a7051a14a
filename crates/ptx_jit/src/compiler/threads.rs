//! Compiling on threads of this process.
//!
//! Owners have threads of their own, a few each, so that none waits for another's long compilation; the operating system
//! divides the processors among them, and gives way to threads of ordinary priority. Threads exist while there is work.
//! A compilation ends early, between two pieces of its work, when nobody wants it any more or it has used what it may: then
//! the interpreter runs the kernel. A panic of the code generator is that compilation's failure.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use ptx::ir::Kernel;
use ptx::{Program, PtxError};

use super::watch::{Stop, Watch};
use super::{Compiler, Done, Helpers, Job, Outcome, Request, Source};
use crate::{Code, CompileError, Image};

/// Most threads at once. More owners than that take turns.
const THREADS: usize = 32;
/// Most threads that work for one owner.
const THREADS_OF_OWNER: usize = 2;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(5);
/// Stack of a thread, bytes: the parser and the code generator recurse. Only what is touched is memory.
const STACK_BYTES: usize = 16 << 20;
/// What compiling yields to threads that run kernels.
const NICE: i32 = 5;
/// Parsed modules that are kept for the next kernel.
const MODULES: usize = 16;
/// Most text of the modules that are kept, bytes; the one parsed last is kept in any case.
const MODULES_BYTES: usize = 64 << 20;

/// Compiles on threads of this process, which are started when they are needed.
#[derive(Debug, Default)]
pub struct Threads {
    pool: Arc<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// Guards the queues; held for some instructions only, never while anything is compiled or told.
    queues: Mutex<Queues>,
    /// Something was queued, or the pool is to end.
    changed: Condvar,
    modules: Modules,
}

#[derive(Debug)]
struct Queues {
    owners: HashMap<u64, Owner>,
    /// Owners with waiting compilations, in the order of their turns.
    turns: VecDeque<u64>,
    threads: usize,
    idle: usize,
    helpers: Helpers,
    ended: bool,
}

impl Default for Queues {
    fn default() -> Queues {
        Queues::of(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

#[derive(Debug, Default)]
struct Owner {
    waiting: VecDeque<Waiting>,
    running: usize,
}

struct Waiting {
    watch: Arc<Watch>,
    request: Request,
    done: Done,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Compiler for Threads {
    fn start(&self, request: Request, done: Done) -> Box<dyn Job> {
        Box::new(self.begin(request, done))
    }
}

impl Threads {
    fn begin(&self, request: Request, done: Done) -> Ticket {
        let watch = Arc::new(Watch::new(request.bounds));
        let owner = request.tenant;
        let ticket = Ticket { watch: Arc::clone(&watch), owner, pool: Arc::downgrade(&self.pool) };
        let mut queues = self.pool.queues.lock();
        queues.push(Waiting { watch, request, done });
        if queues.waiting() > queues.idle && queues.threads < THREADS {
            let pool = Arc::clone(&self.pool);
            let thread = std::thread::Builder::new().name("gpu-compiler".to_owned()).stack_size(STACK_BYTES);
            match thread.spawn(move || pool.work()) {
                Ok(_) => queues.threads += 1,
                // Threads that exist take it; if there are none, the next start tries again.
                Err(error) => log_limit::warn!(%error, "no thread for compiling"),
            }
        }
        drop(queues);
        self.pool.changed.notify_one();
        ticket
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut queues = self.pool.queues.lock();
        queues.ended = true;
        let waiting = std::mem::take(&mut queues.owners);
        drop(queues);
        drop(waiting);
        // They end by themselves: one of them may be the one that drops this.
        self.pool.changed.notify_all();
    }
}

/// The job as its owner holds it.
#[derive(Debug)]
struct Ticket {
    watch: Arc<Watch>,
    owner: u64,
    pool: Weak<Pool>,
}

impl Job for Ticket {
    fn cpu(&self) -> Duration {
        self.watch.cpu()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.watch.give_up();
        if let Some(pool) = self.pool.upgrade() {
            let removed = pool.queues.lock().remove(self.owner, &self.watch);
            drop(removed);
        }
    }
}

impl Queues {
    fn of(processors: usize) -> Queues {
        let (owners, turns) = (HashMap::new(), VecDeque::new());
        Queues { owners, turns, threads: 0, idle: 0, helpers: Helpers::new(processors), ended: false }
    }

    /// Compilations that have not begun.
    fn waiting(&self) -> usize {
        self.owners.values().map(|owner| owner.waiting.len()).sum()
    }

    fn push(&mut self, waiting: Waiting) {
        let id = waiting.request.tenant;
        let owner = self.owners.entry(id).or_default();
        if owner.waiting.is_empty() {
            self.turns.push_back(id);
        }
        owner.waiting.push_back(waiting);
    }

    /// The next compilation, and on how many threads: of the owner whose turn it is, if that one has not all its threads at
    /// work.
    fn pop(&mut self) -> Option<(Waiting, usize)> {
        let at = self.turns.iter().position(|id| self.owners.get(id).is_some_and(|o| o.running < THREADS_OF_OWNER))?;
        let id = self.turns.remove(at)?;
        let owner = self.owners.get_mut(&id)?;
        let next = owner.waiting.pop_front()?;
        owner.running += 1;
        if !owner.waiting.is_empty() {
            self.turns.push_back(id);
        }
        let running: usize = self.owners.values().map(|owner| owner.running).sum();
        let threads = self.helpers.begin(next.request.bounds.threads, running + self.waiting());
        Some((next, threads))
    }

    fn ended(&mut self, id: u64, threads: usize) {
        self.helpers.end(threads);
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.running -= 1;
            if owner.running == 0 && owner.waiting.is_empty() {
                self.owners.remove(&id);
            }
        }
    }

    /// Takes a compilation out that has not begun.
    fn remove(&mut self, id: u64, watch: &Arc<Watch>) -> Option<Waiting> {
        let owner = self.owners.get_mut(&id)?;
        let at = owner.waiting.iter().position(|waiting| Arc::ptr_eq(&waiting.watch, watch))?;
        let removed = owner.waiting.remove(at);
        if owner.waiting.is_empty() {
            self.turns.retain(|other| *other != id);
            if owner.running == 0 {
                self.owners.remove(&id);
            }
        }
        removed
    }
}

impl Pool {
    /// The life of a thread.
    fn work(&self) {
        // SAFETY: of Linux, process 0 is the calling thread. If it is not allowed, the thread goes on as it is.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        let mut queues = self.queues.lock();
        loop {
            if queues.ended {
                break;
            }
            if let Some((waiting, threads)) = queues.pop() {
                let owner = waiting.request.tenant;
                waiting.watch.allow(threads);
                parking_lot::MutexGuard::unlocked(&mut queues, || self.compile(waiting));
                queues.ended(owner, threads);
                continue;
            }
            queues.idle += 1;
            let timed_out = self.changed.wait_for(&mut queues, IDLE).timed_out();
            queues.idle -= 1;
            if timed_out && queues.turns.is_empty() {
                break;
            }
        }
        queues.threads -= 1;
    }

    fn compile(&self, waiting: Waiting) {
        let Waiting { watch, request, done } = waiting;
        let working = watch.begin();
        let compiled = catch_unwind(AssertUnwindSafe(|| self.modules.compile(&request, &watch)));
        drop(working);
        let code = compiled.unwrap_or_else(|_| {
            log_limit::warn!(kernel = crate::shortened(&request.entry), "the compiler panicked");
            Err(CompileError::Failed { what: "the compiler failed".to_owned() })
        });
        if !watch.is_given_up() {
            let outcome = Outcome { code, cpu: watch.cpu() };
            // Whoever is told sees to its own panics; here, others are still to be served.
            let told = catch_unwind(AssertUnwindSafe(move || done(outcome)));
            told.unwrap_or_else(|_| {
                log_limit::error!(kernel = crate::shortened(&request.entry), "who wanted a kernel panicked");
            });
        }
    }
}

/// Parsed modules, the ones used last behind.
#[derive(Debug, Default)]
struct Modules(Mutex<Vec<Arc<Module>>>);

struct Module {
    source: Arc<Source>,
    program: OnceLock<Result<Program, PtxError>>,
    kernels: Mutex<HashMap<String, Weak<Kernel>>>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("id", &self.source.id).finish_non_exhaustive()
    }
}

impl Modules {
    fn compile(&self, request: &Request, watch: &Watch) -> Result<Arc<Code>, CompileError> {
        let kernel = with_stack(self.get(&request.source).kernel(&request.entry, watch)?, request.stack_bytes);
        match Code::compile_within(Arc::clone(&kernel), request.block, request.engine, watch) {
            Err(CompileError::Stopped(stop)) if stop != Stop::GivenUp => {
                Code::install(Image::interpreted(kernel, request.block, Some(stop.to_string()))?)
            }
            other => other,
        }
    }

    fn get(&self, source: &Arc<Source>) -> Arc<Module> {
        let mut modules = self.0.lock();
        let module = match modules.iter().position(|module| module.source.id == source.id) {
            Some(at) => modules.remove(at),
            None => {
                Arc::new(Module { source: Arc::clone(source), program: OnceLock::new(), kernels: Mutex::default() })
            }
        };
        modules.push(Arc::clone(&module));
        let bytes = |modules: &[Arc<Module>]| modules.iter().map(|module| module.source.text.len()).sum::<usize>();
        let mut old = Vec::new();
        while modules.len() > MODULES || modules.len() > 1 && bytes(&modules) > MODULES_BYTES {
            old.push(modules.remove(0));
        }
        drop(modules);
        drop(old);
        module
    }
}

impl Module {
    fn kernel(&self, entry: &str, watch: &Watch) -> Result<Arc<Kernel>, CompileError> {
        if let Some(kernel) = self.kernels.lock().get(entry).and_then(Weak::upgrade) {
            return Ok(kernel);
        }
        let program = self.program.get_or_init(|| Program::parse(self.source.text.as_bytes())).as_ref();
        let program = program.map_err(|error| CompileError::from(error.clone()))?;
        watch.check()?;
        let index = program.find_entry(entry).ok_or_else(|| CompileError::NoEntry { name: entry.to_owned() })?;
        let lookup = |symbol: &str| self.source.symbols.get(symbol).copied();
        let kernel = Arc::new(program.lower(index, &lookup)?);
        let mut kernels = self.kernels.lock();
        kernels.retain(|_, kernel| kernel.strong_count() > 0);
        kernels.insert(entry.to_owned(), Arc::downgrade(&kernel));
        Ok(kernel)
    }
}

/// The kernel with the stack that its launches ask for, if it has one.
fn with_stack(kernel: Arc<Kernel>, bytes: u32) -> Arc<Kernel> {
    if kernel.stack_bytes == 0 { kernel } else { Arc::new(kernel.with_stack(bytes)) }
}

#[cfg(test)]
mod tests;
