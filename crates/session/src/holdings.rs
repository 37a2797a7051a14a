//! What a session holds of its tenant's account and of the GPU, given back however the session ends.

use std::sync::Arc;
use std::time::Instant;

use gpu::{Gpu, SemaphoreArea};
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

/// A session's place in its tenant's account.
#[derive(Debug)]
pub struct Charges {
    /// `None` only while being dropped.
    tables: Option<tenancy::Session>,
    account: Arc<SharedAccount>,
}

impl Charges {
    /// Opens a session in the account.
    ///
    /// # Errors
    /// `TooMany` or `OutOfMemory`.
    pub fn open(account: &Arc<SharedAccount>) -> Result<Charges, gpu::GpuError> {
        Charges::hold(account, OWN)
    }

    /// Opens a place in the account for somebody who takes `own` by being there: a session, or whatever else counts as one.
    ///
    /// # Errors
    /// `TooMany` or `OutOfMemory`.
    pub fn hold(account: &Arc<SharedAccount>, own: Used) -> Result<Charges, gpu::GpuError> {
        let tables = tenancy::Session::open(&**account, own)?;
        Ok(Charges { tables: Some(tables), account: Arc::clone(account) })
    }

    /// Charges `after` bytes of GPU memory in place of `before`.
    ///
    /// # Errors
    /// `OutOfMemory`; what was charged before stays.
    pub fn resize(&mut self, before: u64, after: u64) -> Result<(), gpu::GpuError> {
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
