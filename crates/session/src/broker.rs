//! GPU memory between sessions: the ledger that all accounts have in common, its line of waiting requests, and who is told.
//!
//! What is granted to whom is decided by [`tenancy::grant`]. Here are the lock, the clock and the futexes: whoever gives memory
//! back decides at once who has it next, and tells that session's client, which asks again; a thread of the device process
//! ([`MemoryBroker::attend`]) ends waits whose time is over, and tells clients that others wait, so that they give back what they
//! keep free for later.
//!
//! No session's thread waits here. Accounts are locked before this, never within.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gpu::GpuError;
use hostmem::Mapping;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tenancy::grant::{Declined, Grants, Kind, MOST_WAITS, OnFull, Rules, Ticket};
use tenancy::{GpuMemory, NotNow, TenantId};

/// The part of a GPU that is kept for what counts against no limit, while somebody may wait: page tables, channels, the driver's own.
const RESERVE_SHARE: u64 = 64;
/// And so much more, bytes.
const RESERVE_BYTES: u64 = 4 << 20;

/// Bytes of a GPU with `total` that are kept while somebody may wait.
#[must_use]
pub fn reserve(total: u64) -> u64 {
    (total / RESERVE_SHARE + RESERVE_BYTES).min(total)
}

/// While somebody waits, the ledger looks so often at what lies beside it: nobody tells when that falls.
const LOOK: Duration = Duration::from_secs(1);

/// Memory of one GPU, between all who have some of it.
pub struct MemoryBroker {
    state: Mutex<State>,
    changed: Condvar,
    /// The longest that anybody waits.
    longest_wait: Duration,
    /// Bytes that are not free on the GPU and that no client has asked for.
    beside: Box<dyn Fn() -> u64 + Send + Sync>,
}

struct State {
    grants: Grants,
    patience: HashMap<TenantId, Duration>,
    waits: HashMap<Ticket, Wait>,
    /// When those end that have not been granted.
    deadlines: BTreeSet<(Instant, Ticket)>,
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
    /// It has ended in vain.
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
    /// For a GPU with `total` bytes, of which `beside` says how many are taken at the moment and were asked for by no client: what
    /// virtual GPUs have, what is lost, and the driver's own. Nobody waits for longer than `longest_wait`.
    #[must_use]
    pub fn new(
        total: u64,
        rules: Rules,
        longest_wait: Duration,
        beside: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<MemoryBroker> {
        let state = State {
            grants: Grants::new(total, reserve(total), rules),
            patience: HashMap::new(),
            waits: HashMap::new(),
            deadlines: BTreeSet::new(),
            listeners: Vec::new(),
            wanted: false,
            ended: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Arc::new(MemoryBroker { state, changed, longest_wait, beside: Box::new(beside) })
    }

    /// A tenant is there, or its terms have changed: the most that it may have, and what becomes of requests that do not fit.
    pub fn set(&self, id: TenantId, most: u64, on_full: OnFull) {
        let mut state = self.turn();
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
    }

    /// A tenant has, from now on, what it has asked for once: a virtual GPU.
    pub fn fix(&self, id: TenantId, most: u64) {
        self.turn().grants.set(id, most, Kind::Fixed);
    }

    /// A tenant has gone; all that it had was given back.
    pub fn leave(&self, id: TenantId) {
        let mut state = self.turn();
        state.patience.remove(&id);
        state.grants.leave(id);
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
        loop {
            let mut state = self.state.lock();
            if state.ended {
                return;
            }
            if state.grants.has_waiters() {
                self.look_beside(&mut state);
            }
            let (over, mut told) = state.expire(Instant::now());
            told.extend(state.granted());
            let wanted = state.grants.has_waiters();
            let listeners = if state.wanted == wanted { Vec::new() } else { state.listeners() };
            state.wanted = wanted;
            if over.is_empty() && told.is_empty() && listeners.is_empty() {
                let look = wanted.then(|| Instant::now() + LOOK);
                let next = state.deadlines.first().map(|(next, _)| *next).into_iter().chain(look).min();
                match next {
                    Some(next) => drop(self.changed.wait_until(&mut state, next)),
                    None => self.changed.wait(&mut state),
                }
                continue;
            }
            // Writing takes long, and many may have to be woken.
            drop(state);
            for Over { tenant, wanted, free } in over {
                log_limit::warn!(
                    tenant = tenant.0,
                    wanted,
                    free,
                    "GPU memory did not become free in time: out of memory"
                );
            }
            listeners.iter().for_each(|listener| listener.say(wanted));
            told.iter().for_each(|notices| notices.tell());
        }
    }

    /// Ends [`MemoryBroker::attend`].
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
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
    ///
    /// # Errors
    /// `OutOfMemory`, with this `limit`, or `TooMany`.
    pub(crate) fn wait(
        &self,
        id: TenantId,
        bytes: u64,
        limit: u64,
        notices: &Arc<Notices>,
    ) -> Result<Ticket, GpuError> {
        let mut state = self.turn();
        self.look_beside(&mut state);
        let ticket = state.grants.wait(id, bytes).map_err(|declined| match declined {
            Declined::Never(refused) => GpuError::OutOfMemory { wanted: bytes, free: refused.free, limit },
            Declined::TooMany => {
                GpuError::TooMany { what: "requests of a tenant that wait for memory".into(), limit: MOST_WAITS as u64 }
            }
        })?;
        let patience = state.patience.get(&id).map_or(self.longest_wait, |patience| self.longest_wait.min(*patience));
        let deadline = Instant::now().checked_add(patience);
        let notices = Arc::clone(notices);
        state.waits.insert(ticket, Wait { tenant: id, bytes, deadline, expired: false, notices });
        if let Some(deadline) = deadline {
            state.deadlines.insert((deadline, ticket));
            if state.deadlines.first() == Some(&(deadline, ticket)) {
                // Its time counts from now.
                self.changed.notify_all();
            }
        }
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
        state.forget(ticket);
        standing
    }

    /// Ends a wait, and gives back what it has been granted.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        let mut state = self.turn();
        state.forget(ticket);
        state.grants.cancel(ticket);
    }

    /// What is taken beside the ledger counts where somebody may wait.
    fn look_beside(&self, state: &mut State) {
        if state.grants.may_wait() {
            let [_, _, fixed, ..] = state.grants.sums();
            state.grants.overhead((self.beside)().saturating_sub(fixed));
        }
    }

    /// The ledger, to change it.
    fn turn(&self) -> Turn<'_> {
        Turn { broker: self, state: Some(self.state.lock()) }
    }

    /// All bytes, and of those: kept for upkeep and what no client has asked for, held by virtual GPUs, held by others, free.
    #[must_use]
    pub fn sums(&self) -> [u64; 5] {
        self.state.lock().grants.sums()
    }
}

/// The ledger while it is changed: who has been granted something, or refused, is told at the end, however that comes.
struct Turn<'a> {
    broker: &'a MemoryBroker,
    /// `None` only while being dropped.
    state: Option<MutexGuard<'a, State>>,
}

impl Deref for Turn<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        let Some(state) = &self.state else { unreachable!("taken out only while being dropped") };
        state
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut State {
        let Some(state) = &mut self.state else { unreachable!("taken out only while being dropped") };
        state
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let told = state.granted();
        let changed = state.wanted != state.grants.has_waiters();
        drop(state);
        if changed {
            self.broker.changed.notify_all();
        }
        told.iter().for_each(|notices| notices.tell());
    }
}

/// A wait that has ended in vain, for the log.
struct Over {
    tenant: TenantId,
    wanted: u64,
    free: u64,
}

impl State {
    /// Ends what has waited long enough; says what that was, and who is to be told.
    fn expire(&mut self, now: Instant) -> (Vec<Over>, Vec<Arc<Notices>>) {
        let (mut over, mut told) = (Vec::new(), Vec::new());
        while let Some((deadline, ticket)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.remove(&(deadline, ticket));
            self.grants.cancel(ticket);
            let free = self.grants.free();
            if let Some(wait) = self.waits.get_mut(&ticket) {
                wait.expired = true;
                over.push(Over { tenant: wait.tenant, wanted: wait.bytes, free });
                told.push(Arc::clone(&wait.notices));
            }
            // What is granted by that has no deadline any more.
            told.extend(self.granted());
        }
        (over, told)
    }

    /// Those who are to be told whether memory is wanted.
    fn listeners(&mut self) -> Vec<Arc<Notices>> {
        self.listeners.retain(|listener| listener.strong_count() > 0);
        self.listeners.iter().filter_map(Weak::upgrade).collect()
    }

    /// A wait is over.
    fn forget(&mut self, ticket: Ticket) {
        self.end_deadline(ticket);
        self.waits.remove(&ticket);
    }

    fn end_deadline(&mut self, ticket: Ticket) {
        if let Some(deadline) = self.waits.get_mut(&ticket).and_then(|wait| wait.deadline.take()) {
            self.deadlines.remove(&(deadline, ticket));
        }
    }

    /// Who is to be told of what has been granted and refused. Their time does not run any more: their clients have only to ask.
    fn granted(&mut self) -> Vec<Arc<Notices>> {
        let refused = self.grants.refusals();
        for ticket in &refused {
            if let Some(wait) = self.waits.get_mut(ticket) {
                wait.expired = true;
            }
        }
        let news = [refused, self.grants.news()].concat();
        news.iter().for_each(|ticket| self.end_deadline(*ticket));
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
        let mut state = self.broker.turn();
        self.broker.look_beside(&mut state);
        let taken = state.grants.take(self.id, bytes);
        let may_wait = taken.is_err() && state.grants.kind(self.id) == Some(Kind::Waits);
        taken.map_err(|refused| NotNow { free: refused.free, may_wait })
    }

    fn give(&self, bytes: u64) {
        let mut state = self.broker.turn();
        self.broker.look_beside(&mut state);
        state.grants.give(self.id, bytes);
    }

    fn keep(&self, bytes: u64) -> Result<(), NotNow> {
        let mut state = self.broker.turn();
        self.broker.look_beside(&mut state);
        state.grants.keep(self.id, bytes).map_err(|refused| NotNow { free: refused.free, may_wait: false })
    }

    fn unkeep(&self, bytes: u64) {
        let mut state = self.broker.turn();
        self.broker.look_beside(&mut state);
        state.grants.unkeep(self.id, bytes);
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
