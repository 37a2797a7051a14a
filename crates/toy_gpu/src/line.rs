//! Memory that clients of the toy wait for: whatever does not fit is asked for again.

use std::collections::HashSet;
use std::time::Duration;

use gpu::{AllocId, Deferring, GpuError, ModuleId, Request, Response, VramLedger, VramUse};
use parking_lot::{Condvar, Mutex};

/// So much memory for all clients that have it in common. What is given back is had by whoever asks first.
#[derive(Debug)]
pub struct ToyLine {
    capacity: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    /// Of which client.
    standing: HashSet<(u64, Name)>,
    clients: u64,
    news: u32,
    is_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Name {
    Allocation(AllocId),
    Module(ModuleId),
}

impl ToyLine {
    /// So many bytes.
    #[must_use]
    pub fn new(capacity: u64) -> ToyLine {
        ToyLine { capacity, state: Mutex::default(), changed: Condvar::new() }
    }

    /// All of it, bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What is taken, bytes.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.state.lock().taken
    }

    /// Requests that wait.
    #[must_use]
    pub fn standing(&self) -> usize {
        self.state.lock().standing.len()
    }

    /// There will be no news any more.
    pub fn lose(&self) {
        self.state.lock().is_lost = true;
        self.changed.notify_all();
    }

    /// A number for one more client.
    pub(crate) fn join(&self) -> u64 {
        let mut state = self.state.lock();
        state.clients += 1;
        state.clients
    }

    /// Tells everybody that there is something new.
    fn tell(&self, state: &mut State) {
        state.news = state.news.wrapping_add(1);
        self.changed.notify_all();
    }

    /// Whether a request gives another up that waits.
    pub(crate) fn gives_up(&self, client: u64, request: &Request) -> bool {
        let name = match *request {
            Request::Free { id } => Name::Allocation(id),
            Request::UnloadModule { id } => Name::Module(id),
            _ => return false,
        };
        let mut state = self.state.lock();
        let did = state.standing.remove(&(client, name));
        if did {
            self.tell(&mut state);
        }
        did
    }

    /// Notes whether a request waits from now on.
    pub(crate) fn asked(&self, client: u64, request: &Request, answer: &Result<Response, GpuError>) {
        let name = match *request {
            Request::Alloc { id, .. } => Name::Allocation(id),
            Request::LoadModule { id, .. } => Name::Module(id),
            _ => return,
        };
        let mut state = self.state.lock();
        let changed = match answer {
            Err(GpuError::Deferred) => state.standing.insert((client, name)),
            _ => state.standing.remove(&(client, name)),
        };
        if changed {
            self.tell(&mut state);
        }
    }
}

impl VramLedger for ToyLine {
    fn take(&self, bytes: u64, what: VramUse) -> Result<(), GpuError> {
        let mut state = self.state.lock();
        let free = self.capacity - state.taken;
        match what {
            _ if bytes <= free => {
                state.taken += bytes;
                Ok(())
            }
            VramUse::Asked if bytes <= self.capacity => Err(GpuError::Deferred),
            _ => Err(GpuError::OutOfMemory { wanted: bytes, free, limit: self.capacity }),
        }
    }

    fn give(&self, bytes: u64, _: VramUse) {
        let mut state = self.state.lock();
        state.taken -= bytes;
        self.tell(&mut state);
    }
}

impl Deferring for ToyLine {
    fn news(&self) -> u32 {
        self.state.lock().news
    }

    fn wait_for_news(&self, seen: u32, most: Duration) -> Result<(), GpuError> {
        let mut state = self.state.lock();
        if state.news == seen && !state.is_lost {
            self.changed.wait_for(&mut state, most);
        }
        if state.is_lost { Err(GpuError::Lost { reason: "the line has ended".into() }) } else { Ok(()) }
    }

    fn is_wanted(&self) -> bool {
        self.standing() > 0
    }
}
