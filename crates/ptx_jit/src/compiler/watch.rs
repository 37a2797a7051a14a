//! What a compilation has used, what it may use, and whether anybody still wants it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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

/// Watches a compilation: the thread that compiles asks it between two pieces of its work, others read the meter.
#[derive(Debug)]
pub struct Watch {
    bounds: Bounds,
    given_up: AtomicBool,
    meter: Mutex<Meter>,
    /// Processor time of threads that helped, nanoseconds.
    helpers: AtomicU64,
}

/// Processor time of the thread that compiles.
#[derive(Clone, Copy, Debug)]
enum Meter {
    Waiting,
    /// The thread's clock, and what it showed at the beginning.
    Running(ThreadClock, Duration),
    Ended(Duration),
}

impl Watch {
    /// Of a compilation that has not begun.
    #[must_use]
    pub fn new(bounds: Bounds) -> Watch {
        let meter = Mutex::new(Meter::Waiting);
        Watch { bounds, given_up: AtomicBool::new(false), meter, helpers: AtomicU64::new(0) }
    }

    /// Of a compilation that may take what it needs.
    #[must_use]
    pub fn unbounded() -> Watch {
        Watch::new(Bounds { memory_bytes: u64::MAX, time: Duration::MAX })
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
        let needed = (instructions as u64).saturating_mul(INSTRUCTION_BYTES);
        if needed > self.bounds.memory_bytes { Err(Stop::Memory) } else { Ok(()) }
    }

    /// Another thread took part, and used so much processor time.
    pub fn add(&self, cpu: Duration) {
        self.helpers.fetch_add(cpu.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Processor time so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        let own = match *self.meter.lock() {
            Meter::Waiting => Duration::ZERO,
            Meter::Running(clock, begin) => clock.now().saturating_sub(begin),
            Meter::Ended(cpu) => cpu,
        };
        own + Duration::from_nanos(self.helpers.load(Ordering::Relaxed))
    }

    /// Nobody waits for it any more.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The calling thread compiles until [`Watch::end`].
    pub fn begin(&self) {
        let clock = ThreadClock::of_this_thread();
        *self.meter.lock() = Meter::Running(clock, clock.now());
    }

    /// The calling thread has compiled.
    pub fn end(&self) {
        let mut meter = self.meter.lock();
        if let Meter::Running(clock, begin) = *meter {
            *meter = Meter::Ended(clock.now().saturating_sub(begin));
        }
    }
}

/// The clock of one thread's processor time. Any thread may read it while that one lives.
#[derive(Clone, Copy, Debug)]
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
