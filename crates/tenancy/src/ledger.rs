//! What each tenant uses.

use std::collections::BTreeMap;

use gpu::GpuError;
use serde::{Deserialize, Serialize};

/// A tenant, for as long as the daemon knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TenantId(pub u64);

/// Most that a tenant may use, all its sessions together.
///
/// Each count stops a client that would fill the daemon's own memory with small objects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// GPU memory, bytes.
    pub vram_bytes: u64,
    /// Host memory shared with the GPU, bytes.
    pub host_bytes: u64,
    /// Sessions.
    pub sessions: u64,
    /// Contexts.
    pub contexts: u64,
    /// Queues: each is a hardware channel.
    pub queues: u64,
    /// Allocations.
    pub allocations: u64,
    /// Mappings.
    pub mappings: u64,
    /// Modules.
    pub modules: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            vram_bytes: u64::MAX,
            host_bytes: 64 << 30,
            sessions: 32,
            contexts: 256,
            queues: 2048,
            allocations: 1 << 18,
            mappings: 1 << 18,
            modules: 1 << 14,
        }
    }
}

/// What is used: the same kinds as in [`Limits`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Used {
    /// GPU memory, bytes.
    pub vram_bytes: u64,
    /// Host memory shared with the GPU, bytes.
    pub host_bytes: u64,
    /// Sessions.
    pub sessions: u64,
    /// Contexts.
    pub contexts: u64,
    /// Queues.
    pub queues: u64,
    /// Allocations.
    pub allocations: u64,
    /// Mappings.
    pub mappings: u64,
    /// Modules.
    pub modules: u64,
}

#[derive(Debug)]
struct Account {
    limits: Limits,
    used: Used,
}

/// The accounts of all tenants.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<TenantId, Account>,
}

impl Ledger {
    /// Opens an account, or changes the limits of one. What is used above a lowered limit stays until it is given back.
    pub fn open(&mut self, tenant: TenantId, limits: Limits) {
        self.accounts
            .entry(tenant)
            .and_modify(|account| account.limits = limits.clone())
            .or_insert(Account { limits, used: Used::default() });
    }

    /// Closes an account if nothing is charged to it; whether it did.
    pub fn close(&mut self, tenant: TenantId) -> bool {
        let empty = self.accounts.get(&tenant).is_some_and(|account| account.used == Used::default());
        if empty {
            self.accounts.remove(&tenant);
        }
        empty
    }

    /// What a tenant uses, and may use.
    #[must_use]
    pub fn account(&self, tenant: TenantId) -> Option<(Used, &Limits)> {
        self.accounts.get(&tenant).map(|account| (account.used, &account.limits))
    }

    /// Charges all of `cost`, or nothing.
    ///
    /// # Errors
    /// `OutOfMemory` or `TooMany`; `InvalidId` if there is no such account.
    pub(crate) fn charge(&mut self, tenant: TenantId, cost: Used) -> Result<(), GpuError> {
        let unknown = GpuError::InvalidId { what: "tenant".into(), id: tenant.0 };
        let account = self.accounts.get_mut(&tenant).ok_or(unknown)?;
        let (used, limits) = (&account.used, &account.limits);
        let memory = |used: u64, wanted: u64, limit: u64| {
            let free = limit.saturating_sub(used);
            // What costs nothing is never refused, even above a limit that was lowered.
            if wanted > 0 && wanted > free { Err(GpuError::OutOfMemory { wanted, free, limit }) } else { Ok(()) }
        };
        let count = |used: u64, wanted: u64, limit: u64, what: &str| {
            if wanted > 0 && wanted > limit.saturating_sub(used) {
                Err(GpuError::TooMany { what: what.into(), limit })
            } else {
                Ok(())
            }
        };
        memory(used.vram_bytes, cost.vram_bytes, limits.vram_bytes)?;
        memory(used.host_bytes, cost.host_bytes, limits.host_bytes)?;
        count(used.sessions, cost.sessions, limits.sessions, "sessions")?;
        count(used.contexts, cost.contexts, limits.contexts, "contexts")?;
        count(used.queues, cost.queues, limits.queues, "queues")?;
        count(used.allocations, cost.allocations, limits.allocations, "allocations")?;
        count(used.mappings, cost.mappings, limits.mappings, "mappings")?;
        count(used.modules, cost.modules, limits.modules, "modules")?;
        account.used = used.combine(&cost, |a, b| a + b);
        Ok(())
    }

    /// Takes a charge back.
    pub(crate) fn refund(&mut self, tenant: TenantId, cost: Used) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.used = account.used.combine(&cost, |a, b| {
                assert!(a >= b, "refund of more than was charged");
                a - b
            });
        }
    }
}

impl Used {
    pub(crate) fn combine(&self, other: &Used, f: impl Fn(u64, u64) -> u64) -> Used {
        Used {
            vram_bytes: f(self.vram_bytes, other.vram_bytes),
            host_bytes: f(self.host_bytes, other.host_bytes),
            sessions: f(self.sessions, other.sessions),
            contexts: f(self.contexts, other.contexts),
            queues: f(self.queues, other.queues),
            allocations: f(self.allocations, other.allocations),
            mappings: f(self.mappings, other.mappings),
            modules: f(self.modules, other.modules),
        }
    }
}
