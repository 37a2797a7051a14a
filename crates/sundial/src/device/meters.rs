//! What each tenant has had, in one place for sessions and virtual GPUs.
//!
//! Counters are read when a source ends, and of those that are there when the control process asks. Asking is nobody's way:
//! neither a tenant nor the device waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gpu_driver::Metered;
use parking_lot::Mutex;
use tenancy::metering::{GpuTime, Ledger, Meters, Row, WAIT_RANGES, Waits};
use tenancy::{AccountAccess, TenantId};

use super::vgpus::Hosted;
use super::{Device, Running, Tenant};
use crate::quota::Spender;
use crate::usage::{MeteredRow, Present};

const _: () = assert!(WAIT_RANGES == gpu_driver::WAITS);

/// The books of this GPU.
pub(super) struct Books {
    start: Instant,
    kept: Mutex<Kept>,
}

struct Kept {
    ledger: Ledger,
    /// Whose rows they are.
    names: HashMap<TenantId, (String, Spender)>,
}

impl Books {
    pub(super) fn new() -> Books {
        let kept = Kept { ledger: Ledger::new(0), names: HashMap::new() };
        Books { start: Instant::now(), kept: Mutex::new(kept) }
    }

    /// Does something with the books as they are now.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        let mut kept = self.kept.lock();
        kept.ledger.advance(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        work(&mut kept.ledger)
    }

    /// A tenant is there, or its terms have changed.
    pub(super) fn admit(&self, id: TenantId, name: &str, spender: &Spender, memory_bytes: u64) {
        self.with(|ledger| ledger.admit(id, memory_bytes));
        self.kept.lock().names.insert(id, (name.to_owned(), spender.clone()));
    }

    /// What came since it was taken last, with names.
    fn take(&self) -> (Vec<(Row, String, Spender)>, GpuTime) {
        let mut kept = self.kept.lock();
        let (rows, time) = kept.ledger.take();
        let named = rows.into_iter().filter_map(|row| {
            let (name, spender) = kept.names.get(&row.tenant).cloned()?;
            if row.left {
                kept.names.remove(&row.tenant);
            }
            Some((row, name, spender))
        });
        (named.collect(), time)
    }
}

/// A reading, as the books want it.
pub(super) fn reading(metered: &Metered) -> Meters {
    let Metered { engine_ns, prepare_ns, bytes_in, bytes_out, kernels, copies, waited_ns, waits } = *metered;
    Meters {
        gpu_ns: engine_ns,
        compile_ns: prepare_ns,
        bytes_in,
        bytes_out,
        kernels,
        copies,
        waits: Waits { counts: waits, sum_ns: waited_ns },
        ..Meters::default()
    }
}

/// What a session has had. Copies that its client's library makes itself are what that says.
fn of_session(running: &Running) -> Meters {
    let seen = reading(&running.meter.metered());
    let (into, out) = running.handle.copied();
    Meters { bytes_in: seen.bytes_in.saturating_add(into), bytes_out: seen.bytes_out.saturating_add(out), ..seen }
}

impl Device {
    /// What came since the last time, of all tenants; and what became of the GPU's time.
    pub(super) fn metered(&self) -> (Vec<MeteredRow>, GpuTime) {
        let (sessions, guests, tenants) = {
            let registry = self.registry.lock();
            let sessions: Vec<(u64, Running)> =
                registry.sessions.iter().map(|(number, running)| (*number, running.clone())).collect();
            let guests: Vec<Arc<Hosted>> = registry.vgpus.values().map(|vgpu| Arc::clone(&vgpu.hosted)).collect();
            let tenants: HashMap<TenantId, Arc<Tenant>> =
                registry.tenants.iter().map(|(id, tenant)| (*id, Arc::clone(tenant))).collect();
            (sessions, guests, tenants)
        };
        let mut readings: Vec<(u64, Meters)> =
            sessions.iter().map(|(number, running)| (*number, of_session(running))).collect();
        readings.extend(guests.iter().map(|hosted| (hosted.number(), reading(&hosted.metered()))));
        self.books.with(|ledger| {
            // Nobody gives the GPU away while the books are held.
            if let Some(unused) = self.machine.unused() {
                ledger.unused(unused.idle_ns, unused.overhead_ns);
            }
            for (number, had) in &readings {
                ledger.read(*number, had);
            }
            for (id, tenant) in &tenants {
                ledger.memory(*id, tenant.account.memory_byte_ns());
            }
        });
        let (rows, time) = self.books.take();
        let rows = rows.into_iter().map(|(Row { tenant: id, meters, left }, tenant, spender)| {
            let present = tenants.get(&id).filter(|_| !left).map(|tenant| self.present(id, tenant, &sessions, &guests));
            MeteredRow { tenant, spender, meters, present }
        });
        (rows.collect(), time)
    }

    fn present(&self, id: TenantId, tenant: &Tenant, sessions: &[(u64, Running)], guests: &[Arc<Hosted>]) -> Present {
        let standing = self.shares.standing(id);
        let (_, total) = self.machine.facts();
        let (used, host_used, limits) =
            tenant.account.with(|account| (account.used(), account.host_bytes(), account.limits().clone()));
        let own: Vec<u64> =
            sessions.iter().filter(|(_, running)| running.tenant == id).map(|(number, _)| *number).collect();
        let guest = guests.iter().find(|hosted| hosted.tenant() == id);
        Present {
            sessions: u32::try_from(own.len()).unwrap_or(u32::MAX)
                + u32::from(guest.is_some_and(|hosted| hosted.has_guest())),
            vgpu: guest.is_some(),
            memory_used: used.vram_bytes,
            memory_limit: limits.vram_bytes.min(total),
            host_used,
            host_limit: limits.host_bytes,
            share_entitled: standing.map_or(0.0, |standing| standing.entitled_percent),
            share_received: standing.map_or(0.0, |standing| standing.received_percent),
            running: own.iter().any(|number| self.shares.is_backlogged(*number))
                || guest.is_some_and(|hosted| hosted.is_busy()),
        }
    }

    /// A session's last reading, when all that it had is given back.
    pub(super) fn settle(&self, number: u64, running: &Running) {
        let had = of_session(running);
        self.books.with(|ledger| ledger.end(number, &had));
    }
}
