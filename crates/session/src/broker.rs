//! GPU memory between sessions: the ledger that all accounts have in common, its line of waiting requests, and who is told.
//!
//! What is granted to whom is decided by [`tenancy::grant`]. Here are the lock, the clock and the futexes: whoever gives memory
//! back decides at once who has it next, and tells that session's client, which asks again; a thread of the device process
//! ([`MemoryBroker::attend`]) ends waits whose time is over, and tells clients that others wait, so that they give back what they
//! keep free for later.
//!
//! No session's thread waits here. Accounts are locked before this, never within.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hostmem::Mapping;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tenancy::grant::{Grants, Kind, OnFull, Rules, Ticket};
use tenancy::{GpuMemory, NotNow, TenantId};

/// The part of a GPU that is kept for what is charged to nobody, while somebody may wait: tables, channels, what programs take
/// beside their text.
const RESERVE_SHARE: u64 = 64;
/// And so much more, bytes.
const RESERVE_BYTES: u64 = 4 << 20;

/// Bytes of a GPU with `total` that are kept while somebody may wait.
#[must_use]
pub fn reserve(total: u64) -> u64 {
    (total / RESERVE_SHARE + RESERVE_BYTES).min(total)
}

/// Memory of one GPU, between all who have some of it.
pub struct MemoryBroker {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that are not free on the GPU and charged to no session.
    beside: Box<dyn Fn() -> u64 + Send + Sync>,
}

struct State {
    grants: Grants,
    patience: HashMap<TenantId, Duration>,
    waits: HashMap<Ticket, Wait>,
    listeners: Vec<Weak<Notices>>,
    /// What the listeners have been told: that somebody waits.
    wanted: bool,
    ended: bool,
}

/// A request in line.
struct Wait {
    tenant: TenantId,
    bytes: u64,
    deadline: Option<Instant>,
    /// Its time is over.
    expired: bool,
    notices: Arc<Notices>,
}

/// How a wait stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It goes on.
    InLine,
    /// The memory is the tenant's, and the wait over.
    Granted,
    /// It has ended in vain: so much is free.
    Expired(u64),
}

/// Where one client reads what is new. It may write there as well: nothing depends on it.
#[derive(Debug)]
pub(crate) struct Notices {
    area: Arc<Mapping>,
    at: usize,
}

impl Notices {
    pub(crate) fn new(area: Arc<Mapping>, at: usize) -> Arc<Notices> {
        Arc::new(Notices { area, at })
    }

    fn tell(&self) {
        self.area.u32_at(self.at).fetch_add(1, Ordering::SeqCst);
        self.area.wake_all(self.at);
    }

    fn say(&self, wanted: bool) {
        self.area.u32_at(self.at + 4).store(wanted.into(), Ordering::SeqCst);
        self.tell();
    }
}

impl std::fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBroker").field("sums", &self.state.lock().grants.sums()).finish_non_exhaustive()
    }
}

impl MemoryBroker {
    /// For a GPU with `total` bytes, of which `beside` says how many are taken and charged to no session at the moment.
    #[must_use]
    pub fn new(total: u64, rules: Rules, beside: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<MemoryBroker> {
        let state = State {
            grants: Grants::new(total, reserve(total), rules),
            patience: HashMap::new(),
            waits: HashMap::new(),
            listeners: Vec::new(),
            wanted: false,
            ended: false,
        };
        Arc::new(MemoryBroker { state: Mutex::new(state), changed: Condvar::new(), beside: Box::new(beside) })
    }

    /// A tenant is there, or its terms have changed: the most that it may have, and what becomes of requests that do not fit.
    pub fn set(&self, id: TenantId, most: u64, on_full: OnFull) {
        let mut state = self.state.lock();
        let kind = match on_full {
            // One that is fixed stays so, whatever else becomes of it.
            _ if state.grants.kind(id) == Some(Kind::Fixed) => Kind::Fixed,
            OnFull::Fail => Kind::Fails,
            OnFull::Wait(_) => Kind::Waits,
        };
        match on_full {
            OnFull::Wait(Some(patience)) => state.patience.insert(id, patience),
            _ => state.patience.remove(&id),
        };
        state.grants.set(id, most, kind);
        self.done(state);
    }

    /// A tenant has, from now on, what it has asked for once: a virtual GPU.
    pub fn fix(&self, id: TenantId, most: u64) {
        let mut state = self.state.lock();
        state.grants.set(id, most, Kind::Fixed);
        self.done(state);
    }

    /// A tenant has gone; all that it had was given back.
    pub fn leave(&self, id: TenantId) {
        let mut state = self.state.lock();
        state.patience.remove(&id);
        state.grants.leave(id);
        self.done(state);
    }

    /// Bytes that a tenant has been granted.
    #[must_use]
    pub fn held(&self, id: TenantId) -> u64 {
        self.state.lock().grants.held(id)
    }

    /// The ledger as a tenant's account sees it.
    #[must_use]
    pub fn memory_of(self: &Arc<MemoryBroker>, id: TenantId) -> Box<dyn GpuMemory> {
        Box::new(TenantMemory { broker: Arc::clone(self), id })
    }

    /// Ends waits in time, and tells clients whether others wait, until [`MemoryBroker::end`]: the work of a thread.
    pub fn attend(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            let now = Instant::now();
            let next = self.expire(&mut state, now);
            let wanted = state.grants.has_waiters();
            if state.wanted != wanted {
                state.wanted = wanted;
                state.listeners.retain(|listener| listener.strong_count() > 0);
                let listeners: Vec<Arc<Notices>> = state.listeners.iter().filter_map(Weak::upgrade).collect();
                // Many may have to be woken.
                drop(state);
                listeners.iter().for_each(|listener| listener.say(wanted));
                state = self.state.lock();
                continue;
            }
            match next {
                Some(next) => drop(self.changed.wait_until(&mut state, next)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Ends [`MemoryBroker::attend`].
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Ends what has waited long enough; when the next one will have.
    fn expire(&self, state: &mut State, now: Instant) -> Option<Instant> {
        let over = |wait: &Wait| wait.deadline.is_some_and(|deadline| deadline <= now);
        let due = state.waits.iter().filter(|(_, wait)| !wait.expired && over(wait));
        let due: Vec<Ticket> = due.map(|(ticket, _)| *ticket).collect();
        for ticket in due {
            if state.grants.is_granted(ticket) {
                // Its client has only to ask.
                continue;
            }
            state.grants.cancel(ticket);
            let free = state.grants.free();
            if let Some(wait) = state.waits.get_mut(&ticket) {
                wait.expired = true;
                log_limit::warn!(
                    tenant = wait.tenant.0,
                    wanted = wait.bytes,
                    free,
                    "GPU memory did not become free in time: out of memory"
                );
                wait.notices.tell();
            }
            for wait in state.granted() {
                wait.tell();
            }
        }
        let waiting = state.waits.iter().filter(|(ticket, wait)| !wait.expired && !state.grants.is_granted(**ticket));
        waiting.filter_map(|(_, wait)| wait.deadline).min()
    }

    /// Has a client told what is new from now on.
    pub(crate) fn hear(&self, notices: &Arc<Notices>) {
        let mut state = self.state.lock();
        if state.listeners.len() == state.listeners.capacity() {
            state.listeners.retain(|listener| listener.strong_count() > 0);
        }
        state.listeners.push(Arc::downgrade(notices));
        notices.say(state.wanted);
    }

    /// Puts a request in line.
    pub(crate) fn wait(&self, id: TenantId, bytes: u64, notices: &Arc<Notices>) -> Result<Ticket, u64> {
        let mut state = self.state.lock();
        self.look_beside(&mut state);
        let ticket = state.grants.wait(id, bytes).map_err(|refused| refused.free)?;
        let patience = state.patience.get(&id).copied();
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        let notices = Arc::clone(notices);
        state.waits.insert(ticket, Wait { tenant: id, bytes, deadline, expired: false, notices });
        // Its time counts from now.
        self.changed.notify_all();
        self.done(state);
        Ok(ticket)
    }

    /// How a wait stands. Unless it goes on it is over with this.
    pub(crate) fn look(&self, ticket: Ticket) -> Standing {
        let mut state = self.state.lock();
        let expired = state.waits.get(&ticket).is_some_and(|wait| wait.expired);
        let standing = match () {
            () if expired => Standing::Expired(state.grants.free()),
            () if state.grants.claim(ticket) => Standing::Granted,
            () => return Standing::InLine,
        };
        state.waits.remove(&ticket);
        standing
    }

    /// Ends a wait, and gives back what it has been granted.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        state.waits.remove(&ticket);
        state.grants.cancel(ticket);
        self.done(state);
    }

    /// What is taken beside the ledger counts where somebody may wait.
    fn look_beside(&self, state: &mut State) {
        if state.grants.may_wait() {
            let [_, _, fixed, ..] = state.grants.sums();
            state.grants.overhead((self.beside)().saturating_sub(fixed));
        }
    }

    /// Tells those who have been granted something.
    fn done(&self, mut state: MutexGuard<'_, State>) {
        let told = state.granted();
        let changed = state.wanted != state.grants.has_waiters();
        drop(state);
        if changed {
            self.changed.notify_all();
        }
        told.iter().for_each(|notices| notices.tell());
    }
}

impl State {
    fn granted(&mut self) -> Vec<Arc<Notices>> {
        let refused = self.grants.refusals();
        for ticket in &refused {
            if let Some(wait) = self.waits.get_mut(ticket) {
                wait.expired = true;
            }
        }
        let news = [refused, self.grants.news()].concat();
        news.iter().filter_map(|ticket| self.waits.get(ticket)).map(|wait| Arc::clone(&wait.notices)).collect()
    }
}

/// One tenant's view of the broker.
#[derive(Debug)]
struct TenantMemory {
    broker: Arc<MemoryBroker>,
    id: TenantId,
}

impl GpuMemory for TenantMemory {
    fn take(&self, bytes: u64) -> Result<(), NotNow> {
        let mut state = self.broker.state.lock();
        self.broker.look_beside(&mut state);
        let taken = state.grants.take(self.id, bytes);
        let may_wait = taken.is_err() && state.grants.kind(self.id) == Some(Kind::Waits);
        self.broker.done(state);
        taken.map_err(|refused| NotNow { free: refused.free, may_wait })
    }

    fn give(&self, bytes: u64) {
        let mut state = self.broker.state.lock();
        self.broker.look_beside(&mut state);
        state.grants.give(self.id, bytes);
        self.broker.done(state);
    }

    fn obtainable(&self, on_gpu: u64) -> u64 {
        let state = self.broker.state.lock();
        match (state.grants.obtainable(self.id), state.grants.kind(self.id)) {
            (Some(bytes), Some(Kind::Waits)) => bytes,
            (Some(bytes), _) => bytes.min(on_gpu),
            (None, _) => on_gpu,
        }
    }
}
