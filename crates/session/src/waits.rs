//! A session's requests that wait for GPU memory, by the names that their client gave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use gpu::{AllocId, GpuError, ModuleId, Request};
use parking_lot::Mutex;
use tenancy::TenantId;
use tenancy::grant::Ticket;

use crate::broker::{MemoryBroker, Notices, Standing};

/// What a request that waits is about to name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Name {
    Allocation(AllocId),
    Module(ModuleId),
}

impl Name {
    /// What a request names for the first time, of those that may wait.
    pub(crate) fn of(request: &Request) -> Option<Name> {
        match *request {
            Request::Alloc { id, .. } => Some(Name::Allocation(id)),
            Request::LoadModule { id, .. } => Some(Name::Module(id)),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    bytes: u64,
    since: Instant,
}

/// Bytes that a session waits for, and since when.
pub(crate) type Shown = Arc<Mutex<Option<(u64, Instant)>>>;

/// Requests that wait; they do not any more when this is dropped.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Where they stand in line, and who is told; `None` if none of this session may.
    line: Option<(Arc<MemoryBroker>, TenantId, Arc<Notices>)>,
    waiting: BTreeMap<Name, Waiting>,
    shown: Shown,
}

/// What is to be done with a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// It is served, with so much memory that it has waited for.
    Serve(u64),
    /// This is the answer.
    Answer(Result<(), GpuError>),
}

impl Waits {
    pub(crate) fn new(line: Option<(Arc<MemoryBroker>, TenantId, Arc<Notices>)>) -> Waits {
        Waits { line, waiting: BTreeMap::new(), shown: Shown::default() }
    }

    /// For `ps`.
    pub(crate) fn shown(&self) -> Shown {
        Arc::clone(&self.shown)
    }

    /// Looks whether a request has to do with one that waits: it comes again, or gives up.
    pub(crate) fn next(&mut self, request: &Request, limit: &dyn Fn() -> u64) -> Next {
        // Most often nothing waits.
        let Some((broker, ..)) = self.line.as_ref().filter(|_| !self.waiting.is_empty()) else { return Next::Serve(0) };
        let gives_up = match *request {
            Request::Free { id } => Some(Name::Allocation(id)),
            Request::UnloadModule { id } => Some(Name::Module(id)),
            _ => None,
        };
        if let Some(waiting) = gives_up.and_then(|name| self.waiting.remove(&name)) {
            broker.cancel(waiting.ticket);
            self.show();
            return Next::Answer(Ok(()));
        }
        let Some((name, waiting)) = Name::of(request).and_then(|name| self.waiting.get_key_value(&name)) else {
            return Next::Serve(0);
        };
        let (name, wanted) = (*name, waiting.bytes);
        let next = match broker.look(waiting.ticket) {
            Standing::InLine => return Next::Answer(Err(GpuError::Deferred)),
            Standing::Granted => Next::Serve(wanted),
            Standing::Expired(free) => Next::Answer(Err(GpuError::OutOfMemory { wanted, free, limit: limit() })),
        };
        self.waiting.remove(&name);
        self.show();
        next
    }

    /// Has a request wait for `wanted` bytes; the answer for now.
    pub(crate) fn put(&mut self, name: Option<Name>, wanted: u64, limit: &dyn Fn() -> u64) -> GpuError {
        let (Some((broker, tenant, notices)), Some(name)) = (&self.line, name) else {
            return GpuError::OutOfMemory { wanted, free: 0, limit: limit() };
        };
        match broker.wait(*tenant, wanted, limit(), notices) {
            Ok(ticket) => {
                self.waiting.insert(name, Waiting { ticket, bytes: wanted, since: Instant::now() });
                self.show();
                GpuError::Deferred
            }
            Err(refused) => refused,
        }
    }

    fn show(&self) {
        let bytes = self.waiting.values().map(|waiting| waiting.bytes).sum();
        let since = self.waiting.values().map(|waiting| waiting.since).min();
        *self.shown.lock() = since.map(|since| (bytes, since));
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some((broker, ..)) = &self.line {
            self.waiting.values().for_each(|waiting| broker.cancel(waiting.ticket));
        }
    }
}
