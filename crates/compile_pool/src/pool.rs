//! The device's side: jobs, and the threads that have them done.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ptx_jit::compiler::{Compiler, Done, Job, Outcome, Request};
use ptx_jit::{Code, CompileError, EngineKind, Image};

use crate::cache::{Key, Keys};
use crate::modules::Modules;
use crate::process::{End, Process};
use crate::state::{Bound, State};

/// Processes that stand ready for whoever comes first.
const READY: usize = 2;
/// How long a process waits for the next kernel of its owner.
const IDLE: Duration = Duration::from_secs(3);
/// So many processes may be gone before they have read a request; then it fails.
const GONE: u32 = 8;
/// After a process that could not start, before others are to stand ready.
const BREATH: Duration = Duration::from_secs(1);

/// Where compiler processes come from.
pub trait Origin: fmt::Debug + Send + Sync {
    /// Asks for one more. It is handed to [`Pool::admit`] some time later; or [`Pool::refuse`] is told that it is not.
    fn want(&self);
}

/// Compiles in processes.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    origin: Box<dyn Origin>,
    keys: Keys,
    modules: Modules,
    /// Who waits, and who works; held for some instructions only.
    state: Mutex<State>,
    /// A job came, or a process has become free.
    changed: Condvar,
}

pub(crate) struct Waiting {
    pub(crate) flight: Arc<Flight>,
    pub(crate) request: Request,
    pub(crate) done: Done,
    /// Why the interpreter is to run it, after a first try.
    pub(crate) fallback: Option<String>,
    /// Processes that were gone before they read it.
    pub(crate) gone: u32,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("entry", &self.request.entry).finish_non_exhaustive()
    }
}

/// What remains when a process has done what it could.
struct After {
    /// The process can go on.
    alive: bool,
    /// Who is to be told, and what.
    news: Option<(Waiting, Result<Arc<Code>, CompileError>)>,
    /// What is to be kept, once that is done.
    keep: Option<(Key, Vec<u8>)>,
}

/// What a job and the thread that has it done both know.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    given_up: AtomicBool,
    /// Processor time of processes that no longer work for it, ns.
    spent: AtomicU64,
    /// The process at work, and its time at the beginning. Whoever ends it by this holds the lock, and it is empty
    /// before that process does anything else.
    at_work: Mutex<Option<(i32, Arc<OwnedFd>, Duration)>>,
}

impl Flight {
    fn cpu(&self) -> Duration {
        let now = self
            .at_work
            .lock()
            .as_ref()
            .and_then(|&(pid, _, begin)| Some(sandbox::cpu_time(pid)?.saturating_sub(begin)));
        Duration::from_nanos(self.spent.load(Ordering::Relaxed)) + now.unwrap_or_default()
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}

impl Pool {
    /// A pool for `processors` processors; asks `origin` at once for the first processes.
    #[must_use]
    pub fn new(origin: Box<dyn Origin>, processors: usize) -> Pool {
        let state = Mutex::new(State::new(processors));
        let inner = Arc::new(Inner {
            origin,
            keys: Keys::default(),
            modules: Modules::default(),
            state,
            changed: Condvar::new(),
        });
        inner.top_up(inner.state.lock());
        Pool { inner }
    }

    /// A process that was asked for is there.
    pub fn admit(&self, process: Process) {
        let inner = Arc::clone(&self.inner);
        let work = move || inner.attend(process);
        if let Err(error) = std::thread::Builder::new().name("compiling".to_owned()).spawn(work) {
            self.refuse(&error.to_string());
        }
    }

    /// A process that was asked for does not come.
    pub fn refuse(&self, reason: &str) {
        self.inner.missing(reason);
    }
}

impl Compiler for Pool {
    fn start(&self, request: Request, done: Done) -> Box<dyn Job> {
        let flight = Arc::new(Flight::default());
        let tenant = request.tenant;
        let ticket = Ticket { flight: Arc::clone(&flight), tenant, pool: Arc::downgrade(&self.inner) };
        let mut state = self.inner.state.lock();
        state.queue.push(tenant, Waiting { flight, request, done, fallback: None, gone: 0 });
        self.inner.top_up(state);
        self.inner.changed.notify_all();
        Box::new(ticket)
    }
}

/// The job as its owner holds it.
#[derive(Debug)]
struct Ticket {
    flight: Arc<Flight>,
    tenant: u64,
    pool: Weak<Inner>,
}

impl Job for Ticket {
    fn cpu(&self) -> Duration {
        self.flight.cpu()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.flight.given_up.store(true, Ordering::SeqCst);
        if let Some((_, pidfd, _)) = &*self.flight.at_work.lock() {
            Process::kill(pidfd);
        }
        if let Some(pool) = self.pool.upgrade() {
            let waiting = pool.state.lock().queue.remove(self.tenant, |w| Arc::ptr_eq(&w.flight, &self.flight));
            drop(waiting);
        }
    }
}

impl Inner {
    /// Asks for processes, so that some stand ready and no owner waits for one that will not come.
    fn top_up(&self, mut state: MutexGuard<'_, State>) {
        // After one that could not start none is kept ready for a while; but who waits is told by the next failure.
        let resting = state.not_before.is_some_and(|time| Instant::now() < time);
        let ready = if resting { 0 } else { READY };
        let wanted = ready + state.wanting();
        let more = wanted.saturating_sub(state.fresh + state.expected).min(state.room());
        state.expected += more;
        drop(state);
        for _ in 0..more {
            self.origin.want();
        }
    }

    /// A process that was expected will not be there.
    fn missing(&self, reason: &str) {
        tracing::warn!(reason, "no compiler process");
        let mut state = self.state.lock();
        state.expected = state.expected.saturating_sub(1);
        state.not_before = Some(Instant::now() + BREATH);
        // With none to come, nobody may wait for one.
        let stranded = if state.processes + state.expected == 0 { state.queue.drain() } else { Vec::new() };
        drop(state);
        // Some may have held back for it.
        self.changed.notify_all();
        for waiting in stranded {
            let failed = CompileError::Failed { what: format!("no compiler process: {reason}") };
            waiting.tell(Err(failed));
        }
    }

    /// The life of a process, seen from here.
    fn attend(&self, mut process: Process) {
        if let Err(reason) = process.wait_ready() {
            Process::kill(&process.pidfd);
            return self.missing(&reason);
        }
        let mut state = self.state.lock();
        state.expected = state.expected.saturating_sub(1);
        state.processes += 1;
        let mut bound = None;
        let mut idle_since = Instant::now();
        loop {
            if bound.is_some_and(|bound| state.is_to_go(bound)) {
                break;
            }
            if let Some(waiting) = state.take(bound) {
                let (tenant, threads) = (waiting.request.tenant, waiting.request.bounds.threads);
                let was_fresh = bound.is_none();
                drop(state);
                let After { alive, news, keep } = self.carry_out(&mut process, &mut bound, waiting);
                state = self.state.lock();
                state.ended(tenant, threads);
                if was_fresh && bound.is_none() {
                    state.unbound(tenant);
                }
                // Who is told may come with its next kernel at once. This process will be there for it, so no other need be.
                if let Some(bound) = bound.filter(|_| alive) {
                    state.rests(bound);
                }
                drop(state);
                // It may have held back another of the same owner.
                self.changed.notify_all();
                if let Some((waiting, code)) = news {
                    waiting.tell(code);
                }
                if let Some((shelf, (key, bytes))) = process.shelf.as_ref().zip(keep) {
                    shelf.put(&key, &bytes);
                }
                state = self.state.lock();
                if !alive {
                    break;
                }
                if let Some(bound) = bound {
                    state.rises(bound);
                }
                idle_since = Instant::now();
                continue;
            }
            let timed_out = match bound {
                None => {
                    state.fresh += 1;
                    self.changed.wait(&mut state);
                    state.fresh -= 1;
                    false
                }
                Some(bound) => {
                    state.rests(bound);
                    let timed_out = self.changed.wait_until(&mut state, idle_since + IDLE).timed_out();
                    state.rises(bound);
                    timed_out
                }
            };
            if timed_out && bound.is_some_and(|bound| !state.is_waited_for(bound)) {
                break;
            } else if timed_out {
                // Its owner has work that may not begin yet.
                idle_since = Instant::now();
            }
        }
        if let Some(Bound { tenant, .. }) = bound {
            state.unbound(tenant);
        }
        state.processes -= 1;
        self.top_up(state);
        self.changed.notify_all();
        // Idle or not, it has nothing to do any more; and its memory is wanted.
        Process::kill(&process.pidfd);
    }

    /// Has one kernel compiled, or finds it in the cache.
    fn carry_out(&self, process: &mut Process, bound: &mut Option<Bound>, waiting: Waiting) -> After {
        let Waiting { flight, request, done, fallback, gone } = waiting;
        if flight.is_given_up() {
            return After { alive: true, news: None, keep: None };
        }
        let machine = request.engine == EngineKind::Jit && fallback.is_none();
        let shelf = process.shelf.as_ref().filter(|_| machine);
        let key = shelf.map(|_| self.keys.of(&request));
        if let Some((shelf, key)) = shelf.zip(key.as_ref())
            && let Some(image) = fetch(shelf, key)
        {
            tracing::debug!(kernel = request.entry, "from the cache");
            let waiting = Waiting { flight, request, done, fallback, gone };
            return After { alive: true, news: Some((waiting, Code::install(image))), keep: None };
        }
        *bound = Some(Bound { tenant: request.tenant, owner: request.owner });
        // Another is to stand ready in its place.
        self.top_up(self.state.lock());
        let begin = process.cpu();
        *flight.at_work.lock() = Some((process.pid, Arc::clone(&process.pidfd), begin));
        // Given up between the first look and now, nobody has ended it.
        let end = if flight.is_given_up() {
            End::Died("nobody waits for it".into())
        } else {
            process.carry_out(&request, fallback.as_ref(), &self.modules)
        };
        // Read before it is over: a process that is gone has no clock.
        let spent = process.cpu().saturating_sub(begin);
        {
            let mut at_work = flight.at_work.lock();
            *at_work = None;
            flight.spent.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        // The other way round than above: who gave it up has ended the process, or will not any more.
        let ended = After { alive: false, news: None, keep: None };
        if flight.is_given_up() {
            return ended;
        }
        let waiting = Waiting { flight, request, done, fallback, gone };
        match end {
            End::Image(image, bytes) => {
                let keep = key.filter(|_| image.is_machine_code()).map(|key| (key, bytes));
                After { alive: true, news: Some((waiting, Code::install(*image))), keep }
            }
            End::Failed(failure) => {
                let error = failure.into_error(&waiting.request.entry);
                After { alive: true, news: Some((waiting, Err(error))), keep: None }
            }
            End::Died(reason) => {
                self.died(waiting, &reason);
                ended
            }
            End::Gone if gone + 1 == GONE => {
                let what = format!("{GONE} compiler processes were gone before they could begin");
                After { news: Some((waiting, Err(CompileError::Failed { what }))), ..ended }
            }
            End::Gone => {
                let waiting = Waiting { gone: gone + 1, ..waiting };
                self.state.lock().queue.push_front(waiting.request.tenant, waiting);
                ended
            }
        }
    }

    /// A compiler has not survived a kernel: the next prepares it for the interpreter.
    fn died(&self, mut waiting: Waiting, reason: &str) {
        let again = waiting.fallback.is_some() || waiting.request.engine == EngineKind::Interpreter;
        let kernel = ptx_jit::shortened(&waiting.request.entry);
        log_limit::warn!(kernel, reason, again, "a compiler process died; the interpreter is to run the kernel");
        if again {
            let what = format!("its compiler died: {reason}");
            return waiting.tell(Err(CompileError::Failed { what }));
        }
        waiting.fallback = Some(format!("its compiler died: {reason}"));
        let mut state = self.state.lock();
        // Given up a moment ago, it is found there by nobody, and passed over by who takes it.
        state.queue.push_front(waiting.request.tenant, waiting);
    }
}

impl Waiting {
    fn tell(self, code: Result<Arc<Code>, CompileError>) {
        if !self.flight.is_given_up() {
            let cpu = self.flight.cpu();
            (self.done)(Outcome { code, cpu });
        }
    }
}

fn fetch(shelf: &crate::cache::Shelf, key: &Key) -> Option<Image> {
    let bytes = shelf.get(key)?;
    match Image::from_bytes(&bytes) {
        Ok(image) => Some(image),
        Err(error) => {
            // It is written anew when the kernel has been compiled.
            tracing::debug!(%error, "in the cache");
            None
        }
    }
}
