//! What a compilation has used, what it may use, and whether anybody still wants it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Bounds;

/// Host memory that compiling one instruction may take, bytes: what large kernels were measured to need.
const INSTRUCTION_BYTES: u64 = 20 << 10;

/// Why a compilation ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stop {
    /// Nobody waits for it any more.
    #[error("nobody waits for it")]
    GivenUp,
    /// It has used the processor time that it may.
    #[error("it takes too long")]
    Time,
    /// It would need more memory than it may.
    #[error("it needs too much memory")]
    Memory,
}

/// Memory that a thread beside the first takes, bytes: its stack, and what compiling a region was measured to need.
const HELPER_BYTES: u64 = HELPER_STACK_BYTES as u64 + (32 << 20);
/// Stack of a thread beside the first, bytes: the code generator recurses. Only what is touched is memory, but all of it counts.
pub(crate) const HELPER_STACK_BYTES: usize = 16 << 20;
/// Most threads: what cannot be divided takes as long as a few of them need for the rest.
const MOST_THREADS: usize = 8;
/// Instructions of a kernel for each thread: with fewer, there is little to divide.
const INSTRUCTIONS_OF_THREAD: usize = 250;

/// Watches a compilation: the threads that compile ask it between two pieces of their work, others read the meter.
#[derive(Debug)]
pub struct Watch {
    bounds: Bounds,
    /// Threads that may take part: no more than the bounds allow.
    threads: AtomicUsize,
    given_up: AtomicBool,
    meter: Mutex<Meter>,
}

/// Processor time of the threads that compile.
#[derive(Debug, Default)]
struct Meter {
    /// The clocks of those at work, and what each showed at the beginning.
    running: Vec<(ThreadClock, Duration)>,
    /// What those have used that no longer are.
    ended: Duration,
    /// How many have begun to work so far.
    begun: usize,
}

/// The thread that made it compiles, until it is dropped.
#[derive(Debug)]
#[must_use = "the thread's time counts as long as this lives"]
pub struct Working<'a> {
    watch: &'a Watch,
    clock: ThreadClock,
    /// Not to be dropped by another thread, which has another clock.
    _here: PhantomData<*const ()>,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut meter = self.watch.meter.lock();
        if let Some(at) = meter.running.iter().position(|(clock, _)| *clock == self.clock) {
            let (clock, begin) = meter.running.swap_remove(at);
            meter.ended += clock.now().saturating_sub(begin);
        }
    }
}

impl Watch {
    /// Of a compilation that has not begun.
    #[must_use]
    pub fn new(bounds: Bounds) -> Watch {
        let threads = AtomicUsize::new(bounds.threads);
        Watch { bounds, threads, given_up: AtomicBool::new(false), meter: Mutex::default() }
    }

    /// Of a compilation that may take what it needs, on one thread.
    #[must_use]
    pub fn unbounded() -> Watch {
        Watch::new(Bounds { memory_bytes: u64::MAX, time: Duration::MAX, threads: 1 })
    }

    /// To be asked between pieces of work, none of them long: whether to go on.
    ///
    /// # Errors
    /// It is to stop, and why.
    pub fn check(&self) -> Result<(), Stop> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(Stop::GivenUp);
        }
        if self.bounds.time != Duration::MAX && self.cpu() > self.bounds.time { Err(Stop::Time) } else { Ok(()) }
    }

    /// Whether a kernel of so many instructions may be compiled at all.
    ///
    /// # Errors
    /// [`Stop::Memory`] if it may not.
    pub fn check_size(&self, instructions: usize) -> Result<(), Stop> {
        if memory_bytes(instructions) > self.bounds.memory_bytes { Err(Stop::Memory) } else { Ok(()) }
    }

    /// Threads that may compile a kernel of so many instructions: they have room within the bound on memory.
    pub(crate) fn threads(&self, instructions: usize) -> usize {
        let room = self.bounds.memory_bytes.saturating_sub(memory_bytes(instructions)) / HELPER_BYTES;
        let helpers = usize::try_from(room).unwrap_or(usize::MAX).min(instructions / INSTRUCTIONS_OF_THREAD);
        self.threads.load(Ordering::Relaxed).clamp(1, MOST_THREADS).min(1 + helpers)
    }

    /// When it begins there are processors for so many threads.
    pub(super) fn allow(&self, threads: usize) {
        self.threads.store(threads.min(self.bounds.threads), Ordering::Relaxed);
    }

    /// Processor time so far, of all threads.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        let meter = self.meter.lock();
        let running = meter.running.iter().map(|(clock, begin)| clock.now().saturating_sub(*begin));
        meter.ended + running.sum::<Duration>()
    }

    /// Threads that have compiled so far, ended or not.
    #[must_use]
    pub fn threads_begun(&self) -> usize {
        self.meter.lock().begun
    }

    /// Nobody waits for it any more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The calling thread compiles from now on.
    pub fn begin(&self) -> Working<'_> {
        let clock = ThreadClock::of_this_thread();
        let mut meter = self.meter.lock();
        meter.running.push((clock, clock.now()));
        meter.begun += 1;
        drop(meter);
        Working { watch: self, clock, _here: PhantomData }
    }
}

/// Memory for a kernel of so many instructions on one thread.
fn memory_bytes(instructions: usize) -> u64 {
    (instructions as u64).saturating_mul(INSTRUCTION_BYTES)
}

/// Whether the calling thread has a processor for itself.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: ThreadClock,
    since: Instant,
    cpu: Duration,
}

/// Time after which a thread's part of a processor can be told from a disturbance.
const SPAN: Duration = Duration::from_millis(4);

impl Pace {
    pub(crate) fn begin() -> Pace {
        let clock = ThreadClock::of_this_thread();
        Pace { clock, since: Instant::now(), cpu: clock.now() }
    }

    /// Was it kept from the processor for a quarter of the time, or more, since it was asked last?
    pub(crate) fn is_crowded(&mut self) -> bool {
        let elapsed = self.since.elapsed();
        if elapsed < SPAN {
            return false;
        }
        let crowded = self.clock.now().saturating_sub(self.cpu) < elapsed * 3 / 4;
        *self = Pace::begin();
        crowded
    }
}

/// The clock of one thread's processor time. Any thread may read it while that one lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    fn of_this_thread() -> ThreadClock {
        let mut id = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: no precondition.
        let this = unsafe { libc::pthread_self() };
        // SAFETY: the thread lives, and the place is valid. If it fails, the id stays one that each reader takes for itself.
        let _ = unsafe { libc::pthread_getcpuclockid(this, &raw mut id) };
        ThreadClock(id)
    }

    fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the place is valid; a clock of a thread that is gone is an error, and leaves it.
        let _ = unsafe { libc::clock_gettime(self.0, &raw mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }
}
