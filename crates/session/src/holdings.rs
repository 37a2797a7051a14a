//! What a session holds of its tenant's account and of the GPU, given back however the session ends.

use std::sync::Arc;
use std::time::Instant;

use gpu::{Gpu, GpuError, SemaphoreArea, VramLedger, VramUse};
use parking_lot::Mutex;
use tenancy::metering::Level;
use tenancy::{Account, AccountAccess, TenantId, Used};
use transport::ring;
use wire::limits::{ANSWER_RING_BYTES, COMMAND_RING_BYTES, STAGING_BYTES};

use crate::broker::MemoryBroker;
use crate::serve::Backend;

/// What a session takes from the host by being open: rings, staging and semaphore area, stacks and buffers of its thread and
/// of the one that closes it; their mappings, the GPU's window and guards; socket, the client's process, three memory
/// files, of which two are the client's alone when it has them.
pub const OWN: Used = Used {
    vram_bytes: 0,
    host_bytes: (ring::bytes(COMMAND_RING_BYTES) + ring::bytes(ANSWER_RING_BYTES) + 4096) as u64
        + STAGING_BYTES as u64
        + SemaphoreArea::BYTES as u64
        + (512 << 10),
    maps: 24,
    files: 5,
    // Its own, the one that is there to close it, and one that the driver may start to look after full queues.
    threads: 3,
    sessions: 0,
    contexts: 0,
    queues: 0,
    allocations: 0,
    mappings: 0,
    modules: 0,
};

/// A tenant's account, for its sessions' threads.
#[derive(Debug)]
pub struct SharedAccount {
    /// And how much GPU memory was charged for how long.
    books: Mutex<(Account, Level)>,
    start: Instant,
    /// Where its GPU memory comes from, if others have some of it.
    memory: Option<(Arc<MemoryBroker>, TenantId)>,
}

impl SharedAccount {
    /// For a tenant's sessions.
    #[must_use]
    pub fn new(account: Account) -> Arc<SharedAccount> {
        SharedAccount::with_memory(account, None)
    }

    /// The same, with GPU memory from what others have in common with it: they are asked as the tenant, which the broker knows.
    #[must_use]
    pub fn sharing(account: Account, broker: &Arc<MemoryBroker>, tenant: TenantId) -> Arc<SharedAccount> {
        let account = account.sharing(broker.memory_of(tenant));
        SharedAccount::with_memory(account, Some((Arc::clone(broker), tenant)))
    }

    fn with_memory(account: Account, memory: Option<(Arc<MemoryBroker>, TenantId)>) -> Arc<SharedAccount> {
        let books = Mutex::new((account, Level::default()));
        Arc::new(SharedAccount { books, start: Instant::now(), memory })
    }

    /// GPU memory that was charged so far, times how long: byte-nanoseconds.
    #[must_use]
    pub fn memory_byte_ns(&self) -> u128 {
        let books = self.books.lock();
        books.1.area(self.now_ns())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl AccountAccess for SharedAccount {
    fn with<T>(&self, work: impl FnOnce(&mut Account) -> T) -> T {
        let (account, level) = &mut *self.books.lock();
        let before = account.used().vram_bytes;
        let result = work(account);
        let after = account.used().vram_bytes;
        if after != before {
            level.set(self.now_ns(), after);
        }
        result
    }
}

/// Memory of the GPU that is taken for a session, in its tenant's account: whoever takes some asks here first, for whatever purpose.
#[derive(Debug)]
pub struct SessionMemory {
    account: Arc<SharedAccount>,
    /// Locked before the account.
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// What counts against the limit, bytes.
    bytes: u64,
    /// Granted by the ledger after a wait, for the request that is being served.
    credit: u64,
    /// What was refused last because it has to wait.
    deferred: u64,
}

impl SessionMemory {
    /// What counts against its tenant's limit, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.taken.lock().bytes
    }

    /// What the last request that was deferred would have taken.
    pub(crate) fn deferred(&self) -> u64 {
        self.taken.lock().deferred
    }

    /// A request is served now that has waited for so many bytes.
    pub(crate) fn lend(&self, credit: u64) {
        self.taken.lock().credit = credit;
    }

    /// It was; what is left goes back.
    pub(crate) fn take_back(&self) {
        let credit = std::mem::take(&mut self.taken.lock().credit);
        if credit > 0 {
            self.account.with(|account| account.give_credit(credit));
        }
    }
}

impl VramLedger for SessionMemory {
    fn take(&self, bytes: u64, what: VramUse) -> Result<(), GpuError> {
        if what == VramUse::Upkeep {
            return self.account.with(|account| account.take_upkeep(bytes));
        }
        let mut taken = self.taken.lock();
        let none = &mut 0;
        let credit = if what == VramUse::Asked { &mut taken.credit } else { none };
        let charged = self.account.with(|account| account.take_vram(bytes, credit));
        match charged {
            Ok(()) => taken.bytes += bytes,
            Err(GpuError::Deferred) if what == VramUse::Asked => taken.deferred = bytes,
            Err(GpuError::Deferred) => {
                let limit = self.account.with(|account| account.limits().vram_bytes);
                return Err(GpuError::OutOfMemory { wanted: bytes, free: 0, limit });
            }
            Err(_) => {}
        }
        charged
    }

    fn give(&self, bytes: u64, what: VramUse) {
        if what == VramUse::Upkeep {
            return self.account.with(|account| account.give_upkeep(bytes));
        }
        self.taken.lock().bytes -= bytes;
        self.account.with(|account| account.give_vram(bytes));
    }
}

/// A session's place in its tenant's account.
#[derive(Debug)]
pub struct Charges {
    /// `None` only while being dropped.
    tables: Option<tenancy::Session>,
    account: Arc<SharedAccount>,
    vram: Arc<SessionMemory>,
}

impl Charges {
    /// Opens a session in the account.
    ///
    /// # Errors
    /// `TooMany` or `OutOfMemory`.
    pub fn open(account: &Arc<SharedAccount>) -> Result<Charges, GpuError> {
        Charges::hold(account, OWN)
    }

    /// Opens a place in the account for somebody who takes `own` by being there: a session, or whatever else counts as one.
    ///
    /// # Errors
    /// `TooMany` or `OutOfMemory`.
    pub fn hold(account: &Arc<SharedAccount>, own: Used) -> Result<Charges, GpuError> {
        let tables = tenancy::Session::open(&**account, own)?;
        let vram = SessionMemory { account: Arc::clone(account), taken: Mutex::default() };
        Ok(Charges { tables: Some(tables), account: Arc::clone(account), vram: Arc::new(vram) })
    }

    /// What is asked before memory of the GPU is taken for the session.
    #[must_use]
    pub fn vram(&self) -> &Arc<SessionMemory> {
        &self.vram
    }

    /// Charges `after` bytes of GPU memory in place of `before`.
    ///
    /// # Errors
    /// `OutOfMemory`; what was charged before stays.
    pub fn resize(&mut self, before: u64, after: u64) -> Result<(), GpuError> {
        let (tables, account) = self.parts();
        tables.resize(account, before, after)
    }

    /// The session's tables, and the account to which they charge.
    pub(crate) fn parts(&mut self) -> (&mut tenancy::Session, &SharedAccount) {
        let Some(tables) = &mut self.tables else { unreachable!("taken out only while being dropped") };
        (tables, &self.account)
    }

    /// Where its GPU memory comes from.
    pub(crate) fn memory(&self) -> Option<&(Arc<MemoryBroker>, TenantId)> {
        self.account.memory.as_ref()
    }

    pub(crate) fn tables(&mut self) -> &mut tenancy::Session {
        self.parts().0
    }
}

impl Drop for Charges {
    fn drop(&mut self) {
        self.vram.take_back();
        if let Some(tables) = self.tables.take() {
            tables.close(&*self.account);
        }
    }
}

/// The GPU of a session: closed before what it cost is given back to the account, because the tenant may use again then what
/// nobody can read any more.
pub(crate) struct Holdings {
    pub(crate) gpu: Arc<dyn Gpu>,
    close: Arc<dyn Fn() + Send + Sync>,
    pub(crate) charges: Charges,
}

impl Holdings {
    pub(crate) fn new(backend: &Backend, charges: Charges) -> Holdings {
        Holdings { gpu: Arc::clone(&backend.gpu), close: Arc::clone(&backend.close), charges }
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        (self.close)();
        // `charges` is dropped behind this.
    }
}
