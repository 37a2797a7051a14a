//! Steering: measures what tenants use, asks `fair_share`, programs the slices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fair_share::{Demand, FairShare, Key, Means, Policy, Priority, Standing, Tuning};
use gpu_driver::Usage;
use parking_lot::{Condvar, Mutex};
use session::SessionHandle;
use tenancy::TenantId;

use super::machine::Meter;
use super::turns::Contender;
use super::vgpus::Hosted;

/// Between two corrections while tenants compete.
pub(super) const PERIOD: Duration = Duration::from_millis(20);
/// Between two looks while nobody does.
const CALM: Duration = Duration::from_millis(200);
/// Between two looks while there are no sessions.
const EMPTY: Duration = Duration::from_secs(5);
/// Span of what `ps` shows as received.
const WINDOW_NS: u64 = 3_000_000_000;
/// Shortest slice worth programming when a tenant's is divided among its sessions, ns.
const LEAST_SLICE_NS: u64 = 100_000;
/// How long launches without any GPU time still count as wanting some: longer than a turn of everybody else.
const PATIENCE: Duration = Duration::from_millis(300);

/// A session or a virtual GPU, as steering sees it.
pub(super) struct Subject {
    pub(super) number: u64,
    pub(super) tenant: TenantId,
    pub(super) user: User,
}

/// Who has time of the GPU.
pub(super) enum User {
    /// A session's client.
    Session { handle: SessionHandle, meter: Arc<Meter> },
    /// A virtual GPU's guest.
    Vgpu(Arc<Hosted>),
}

impl User {
    /// GPU time ever used, ns; and whether it has asked for more.
    fn look(&self) -> (u64, bool) {
        match self {
            User::Session { handle, meter } => {
                let (used_ns, kernels) = meter.look();
                (used_ns, handle.launches() > kernels)
            }
            User::Vgpu(hosted) => (hosted.usage().gpu_time_ns, hosted.is_busy()),
        }
    }

    fn set_slice(&self, ns: u64) {
        match self {
            User::Session { meter, .. } => meter.set_slice(ns),
            User::Vgpu(hosted) => hosted.set_slice(ns),
        }
    }
}

impl Contender for Subject {
    fn number(&self) -> u64 {
        self.number
    }

    fn tenant(&self) -> Key {
        self.tenant.0
    }

    fn usage(&self) -> Usage {
        match &self.user {
            User::Session { meter, .. } => meter.usage(),
            User::Vgpu(hosted) => hosted.usage(),
        }
    }

    fn is_ready(&self) -> bool {
        match &self.user {
            User::Session { meter, .. } => meter.is_ready(),
            User::Vgpu(hosted) => hosted.is_busy(),
        }
    }

    fn launched(&self) -> u64 {
        match &self.user {
            User::Session { handle, .. } => handle.launches(),
            // What a guest submits is counted when it ends.
            User::Vgpu(hosted) => hosted.usage().kernels,
        }
    }

    fn run(&self, run: bool) {
        match &self.user {
            User::Session { meter, .. } => meter.run(run),
            User::Vgpu(hosted) => hosted.run(run),
        }
    }
}

/// The policy, and what was measured last.
pub(super) struct Shares {
    books: Mutex<Books>,
    woken: Condvar,
    /// Something has changed since the last look began.
    news: AtomicBool,
}

struct Books {
    policy: FairShare,
    scheduler: Policy,
    /// Shares of tenants, percent.
    given: HashMap<Key, Option<f64>>,
    priorities: HashMap<Key, Priority>,
    seen: HashMap<u64, Seen>,
    last: Instant,
    /// Tenants with sessions at the last look.
    tenants: usize,
}

impl Books {
    /// What tenants are entitled to knows priorities where slices do.
    fn prioritize(&mut self, tenant: Key, priority: Priority) {
        let by_slices = self.scheduler.means(true) == Means::Slices;
        self.policy.prioritize(tenant, if by_slices { priority } else { Priority::default() });
    }
}

/// A session at the last look.
#[derive(Clone, Copy)]
struct Seen {
    used_ns: u64,
    /// When it last had GPU time.
    moved: Instant,
    backlogged: bool,
}

impl Shares {
    pub(super) fn new() -> Shares {
        let policy = FairShare::new(Tuning { window_ns: WINDOW_NS, ..Tuning::default() });
        let books = Books {
            policy,
            scheduler: Policy::Default,
            given: HashMap::new(),
            priorities: HashMap::new(),
            seen: HashMap::new(),
            last: Instant::now(),
            tenants: 0,
        };
        Shares { books: Mutex::new(books), woken: Condvar::new(), news: AtomicBool::new(false) }
    }

    /// How the policy is enforced: our GPU preempts.
    pub(super) fn means(&self) -> Means {
        self.books.lock().scheduler.means(true)
    }

    /// Shares of tenants, percent.
    pub(super) fn given(&self) -> HashMap<Key, Option<f64>> {
        self.books.lock().given.clone()
    }

    /// Shares time in another way from now on.
    pub(super) fn schedule(&self, scheduler: Policy) {
        let mut books = self.books.lock();
        books.scheduler = scheduler;
        for (tenant, priority) in books.priorities.clone() {
            books.prioritize(tenant, priority);
        }
        drop(books);
        self.tell();
    }

    /// Whether something has changed since the last look began.
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    fn tell(&self) {
        self.news.store(true, Ordering::Relaxed);
        self.woken.notify_all();
    }

    pub(super) fn set(&self, tenant: TenantId, share_percent: Option<f64>, priority: Priority) {
        let mut books = self.books.lock();
        books.policy.set(tenant.0, share_percent);
        books.priorities.insert(tenant.0, priority);
        books.prioritize(tenant.0, priority);
        books.given.insert(tenant.0, share_percent);
        self.news.store(true, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, tenant: TenantId) {
        let mut books = self.books.lock();
        books.policy.remove(tenant.0);
        books.given.remove(&tenant.0);
        books.priorities.remove(&tenant.0);
    }

    /// What was given to a tenant, whether it means something at the moment or not.
    pub(super) fn priority(&self, tenant: TenantId) -> Priority {
        self.books.lock().priorities.get(&tenant.0).copied().unwrap_or_default()
    }

    pub(super) fn standing(&self, tenant: TenantId) -> Option<Standing> {
        self.books.lock().policy.standing(tenant.0)
    }

    /// Whether a session had work waiting at the last look.
    pub(super) fn is_backlogged(&self, session: u64) -> bool {
        self.books.lock().seen.get(&session).is_some_and(|seen| seen.backlogged)
    }

    /// GPU time that a session had ever used at the last look, ns.
    pub(super) fn used_ns(&self, session: u64) -> u64 {
        self.books.lock().seen.get(&session).map_or(0, |seen| seen.used_ns)
    }

    /// A session has come.
    pub(super) fn wake(&self) {
        let mut books = self.books.lock();
        books.tenants = books.tenants.max(1);
        self.tell();
    }

    /// Waits for the next look: long while there are no sessions, but a device that is lost then is seen, too.
    pub(super) fn pause(&self) {
        let mut books = self.books.lock();
        match books.tenants {
            0 => {
                self.woken.wait_for(&mut books, EMPTY);
            }
            1 => {
                self.woken.wait_for(&mut books, CALM);
            }
            _ => {
                self.woken.wait_for(&mut books, PERIOD);
            }
        }
    }

    /// A look begins: what is new from now on is for the next.
    pub(super) fn begin(&self) {
        self.news.store(false, Ordering::Relaxed);
    }

    /// One look at all sessions.
    pub(super) fn step(&self, sessions: &[Subject]) {
        // Measured before the books are locked: the device is asked.
        let usage: Vec<(u64, bool)> = sessions.iter().map(|subject| subject.user.look()).collect();
        let mut books = self.books.lock();
        let now = Instant::now();
        let length_ns = u64::try_from(now.duration_since(books.last).as_nanos()).unwrap_or(u64::MAX).max(1);
        books.last = now;
        let mut seen = HashMap::new();
        let mut demands: HashMap<u64, (Demand, u64)> = HashMap::new();
        for (subject, &(used_ns, waiting)) in sessions.iter().zip(&usage) {
            let fresh = Seen { used_ns: 0, moved: now, backlogged: false };
            let before = books.seen.get(&subject.number).copied().unwrap_or(fresh);
            let used = used_ns.saturating_sub(before.used_ns);
            let moved = if used > 0 { now } else { before.moved };
            // Launches of a context that has failed never end: what gets no time for long, wants none.
            let backlogged = waiting && now.duration_since(moved) < PATIENCE;
            seen.insert(subject.number, Seen { used_ns, moved, backlogged });
            let nothing = Demand { tenant: subject.tenant.0, used_ns: 0, backlogged: false };
            let (demand, wanting) = demands.entry(subject.tenant.0).or_insert((nothing, 0));
            demand.used_ns += used;
            demand.backlogged |= backlogged;
            *wanting += u64::from(backlogged);
        }
        books.seen = seen;
        books.tenants = demands.len();
        let list: Vec<Demand> = demands.values().map(|(demand, _)| *demand).collect();
        let slices: HashMap<u64, u64> = books.policy.period(length_ns, &list).into_iter().collect();
        let by_slices = books.scheduler.means(true) == Means::Slices;
        drop(books);
        for subject in sessions.iter().filter(|_| by_slices) {
            // A tenant's sessions share its turn.
            let wanting = demands.get(&subject.tenant.0).map_or(1, |(_, wanting)| (*wanting).max(1));
            if let Some(slice) = slices.get(&subject.tenant.0) {
                subject.user.set_slice((slice / wanting).max(LEAST_SLICE_NS));
            }
        }
    }
}
