//! Steering: measures what tenants use, asks `fair_share`, programs the slices.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fair_share::{Demand, FairShare, Standing, Tuning};
use parking_lot::{Condvar, Mutex};
use session::SessionHandle;
use tenancy::TenantId;

use super::machine::Meter;

/// Between two corrections while tenants compete.
const PERIOD: Duration = Duration::from_millis(20);
/// Between two looks while nobody does.
const CALM: Duration = Duration::from_millis(200);
/// Span of what `ps` shows as received.
const WINDOW_NS: u64 = 3_000_000_000;
/// Shortest slice worth programming when a tenant's is divided among its sessions, ns.
const LEAST_SLICE_NS: u64 = 100_000;
/// How long launches without any GPU time still count as wanting some: longer than a turn of everybody else.
const PATIENCE: Duration = Duration::from_millis(300);

/// A session, as steering sees it.
pub(super) struct Subject {
    pub(super) number: u64,
    pub(super) tenant: TenantId,
    pub(super) handle: SessionHandle,
    pub(super) meter: Arc<Meter>,
}

/// The policy, and what was measured last.
pub(super) struct Shares {
    books: Mutex<Books>,
    woken: Condvar,
}

struct Books {
    policy: FairShare,
    seen: HashMap<u64, Seen>,
    last: Instant,
    /// Tenants with sessions at the last look.
    tenants: usize,
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
        let books = Books { policy, seen: HashMap::new(), last: Instant::now(), tenants: 0 };
        Shares { books: Mutex::new(books), woken: Condvar::new() }
    }

    pub(super) fn set(&self, tenant: TenantId, share_percent: Option<f64>) {
        self.books.lock().policy.set(tenant.0, share_percent);
    }

    pub(super) fn remove(&self, tenant: TenantId) {
        self.books.lock().policy.remove(tenant.0);
    }

    pub(super) fn standing(&self, tenant: TenantId) -> Option<Standing> {
        self.books.lock().policy.standing(tenant.0)
    }

    /// Whether a session had work waiting at the last look.
    pub(super) fn is_backlogged(&self, session: u64) -> bool {
        self.books.lock().seen.get(&session).is_some_and(|seen| seen.backlogged)
    }

    /// A session has come.
    pub(super) fn wake(&self) {
        let mut books = self.books.lock();
        books.tenants = books.tenants.max(1);
        self.woken.notify_all();
    }

    /// Waits for the next look: for ever while there are no sessions.
    pub(super) fn pause(&self) {
        let mut books = self.books.lock();
        match books.tenants {
            0 => self.woken.wait(&mut books),
            1 => {
                self.woken.wait_for(&mut books, CALM);
            }
            _ => {
                self.woken.wait_for(&mut books, PERIOD);
            }
        }
    }

    /// One look at all sessions.
    pub(super) fn step(&self, sessions: &[Subject]) {
        // Measured before the books are locked: the device is asked.
        let usage: Vec<(u64, u64)> = sessions.iter().map(|subject| subject.meter.usage()).collect();
        let mut books = self.books.lock();
        let now = Instant::now();
        let length_ns = u64::try_from(now.duration_since(books.last).as_nanos()).unwrap_or(u64::MAX).max(1);
        books.last = now;
        let mut seen = HashMap::new();
        let mut demands: HashMap<u64, (Demand, u64)> = HashMap::new();
        for (subject, &(used_ns, kernels)) in sessions.iter().zip(&usage) {
            let fresh = Seen { used_ns: 0, moved: now, backlogged: false };
            let before = books.seen.get(&subject.number).copied().unwrap_or(fresh);
            let used = used_ns.saturating_sub(before.used_ns);
            let moved = if used > 0 { now } else { before.moved };
            // Launches of a context that has failed never end: what gets no time for long, wants none.
            let waiting = subject.handle.launches() > kernels;
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
        drop(books);
        for subject in sessions {
            // A tenant's sessions share its turn.
            let wanting = demands.get(&subject.tenant.0).map_or(1, |(_, wanting)| (*wanting).max(1));
            if let Some(slice) = slices.get(&subject.tenant.0) {
                subject.meter.set_slice((slice / wanting).max(LEAST_SLICE_NS));
            }
        }
    }
}
