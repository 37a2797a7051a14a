//! What a tenant may use, and uses.

use std::cell::RefCell;

use gpu::GpuError;
use serde::{Deserialize, Serialize};

/// A tenant, for as long as the daemon knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TenantId(pub u64);

macro_rules! resources {
    ($($(#[$doc:meta])* $field:ident = $default:expr),* $(,)?) => {
        /// Most that a tenant may use, all its sessions together.
        ///
        /// Each count stops a client that would fill the daemon's own memory, or use up what the process has.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Limits {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($field: $default,)* }
            }
        }

        /// What is used: the same kinds as in [`Limits`].
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Used {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Used {
            pub(crate) fn combine(&self, other: &Used, f: impl Fn(u64, u64) -> u64) -> Used {
                Used { $($field: f(self.$field, other.$field),)* }
            }

            /// Whether all of it is within limits.
            #[must_use]
            pub fn is_within(&self, limits: &Limits) -> bool {
                $(self.$field <= limits.$field)&&*
            }
        }
    };
}

resources! {
    /// GPU memory, bytes.
    vram_bytes = u64::MAX,
    /// Memory of the host, bytes: what is shared with the GPU, what sessions take, and what keeps account of objects. What
    /// the device takes for work counts as well ([`DeviceCosts`]).
    host_bytes = u64::MAX,
    /// Entries of the device process's memory map.
    maps = u64::MAX,
    /// Descriptors of the device process.
    files = u64::MAX,
    /// Threads of the device process: three for each of so many sessions.
    threads = 96,
    /// Sessions.
    sessions = 32,
    /// Contexts.
    contexts = 256,
    /// Queues.
    queues = 2048,
    /// Allocations.
    allocations = 1 << 18,
    /// Mappings.
    mappings = 1 << 18,
    /// Modules.
    modules = 1 << 14,
}

/// What the device, and the driver for its queues, take from the host for a tenant's work: counted and limited there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HostCost {
    /// Memory, bytes.
    pub bytes: u64,
    /// Entries of the memory map.
    pub maps: u64,
    /// Descriptors.
    pub files: u64,
}

/// The device's side of an account. Both sides together keep one limit: what is charged here lowers the device's limit
/// first, and only then is looked at what the device has used.
pub trait DeviceCosts: std::fmt::Debug + Send {
    /// What the device may use from now on. May be less than it uses: it takes no more then.
    fn set_limits(&self, limits: HostCost);

    /// What it uses now.
    fn used(&self) -> HostCost;
}

/// A device that takes nothing from the host, or is not asked.
#[derive(Clone, Copy, Debug)]
pub struct NoDeviceCosts;

impl DeviceCosts for NoDeviceCosts {
    fn set_limits(&self, _: HostCost) {}

    fn used(&self) -> HostCost {
        HostCost::default()
    }
}

/// The ledger of the GPU's memory, which all tenants have in common, as one tenant's account sees it. Whatever is charged to the
/// account is taken from it first, and given back when it is refunded.
pub trait GpuMemory: std::fmt::Debug + Send {
    /// Takes so many bytes, or none.
    ///
    /// # Errors
    /// They are others' now.
    fn take(&self, bytes: u64) -> Result<(), NotNow>;

    /// Gives back what was taken.
    fn give(&self, bytes: u64);

    /// Takes so many bytes for what keeping the tenant takes beside that, or none.
    ///
    /// # Errors
    /// They are others', or promised.
    fn keep(&self, bytes: u64) -> Result<(), NotNow>;

    /// Gives back what was taken for that.
    fn unkeep(&self, bytes: u64);

    /// Bytes that could be had, now or, if requests wait, at last; `on_gpu` are free on the GPU.
    fn obtainable(&self, on_gpu: u64) -> u64;
}

/// Memory that the limit allows is others'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotNow {
    /// Bytes that are nobody's.
    pub free: u64,
    /// The request may wait for it.
    pub may_wait: bool,
}

/// How a tenant's sessions, each on its own thread, reach their account. What is done inside takes the same short time
/// whatever a tenant has asked for: other sessions, and those who look, wait for it.
pub trait AccountAccess {
    /// Does something with the account while nobody else does.
    fn with<T>(&self, work: impl FnOnce(&mut Account) -> T) -> T;
}

impl AccountAccess for RefCell<Account> {
    fn with<T>(&self, work: impl FnOnce(&mut Account) -> T) -> T {
        work(&mut self.borrow_mut())
    }
}

/// A tenant's account.
#[derive(Debug)]
pub struct Account {
    limits: Limits,
    used: Used,
    /// Bytes of GPU memory that keeping its sessions takes.
    upkeep: u64,
    device: Box<dyn DeviceCosts>,
    memory: Option<Box<dyn GpuMemory>>,
}

/// Most bytes of GPU memory that keeping a tenant's sessions may take beside its limit: page tables, channels, contexts. Sparse
/// mappings could else turn a little memory into gigabytes of tables. A small limit allows little, a large one what tables of
/// that much and of pinned memory beside it may take.
#[must_use]
pub fn most_upkeep(vram_limit: u64) -> u64 {
    let little = (2 << 20) + vram_limit / 16;
    little.min((16 << 20) + vram_limit / 64)
}

impl Account {
    /// An account to which nothing is charged.
    #[must_use]
    pub fn new(limits: Limits, device: Box<dyn DeviceCosts>) -> Account {
        let account = Account { limits, used: Used::default(), upkeep: 0, device, memory: None };
        account.limit_device(&account.used);
        account
    }

    /// The same, with memory from a ledger that others have in common with it.
    #[must_use]
    pub fn sharing(self, memory: Box<dyn GpuMemory>) -> Account {
        Account { memory: Some(memory), ..self }
    }

    /// Changes the limits. What is used above a lowered limit stays until it is given back.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.limit_device(&self.used);
    }

    /// What is charged.
    #[must_use]
    pub fn used(&self) -> Used {
        self.used
    }

    /// What may be charged.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Memory of the host, bytes: what is charged here and what the device has taken.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.used.host_bytes.saturating_add(self.device.used().bytes)
    }

    /// What the device may use while `used` is charged here.
    fn rest(&self, used: &Used) -> HostCost {
        HostCost {
            bytes: self.limits.host_bytes.saturating_sub(used.host_bytes),
            maps: self.limits.maps.saturating_sub(used.maps),
            files: self.limits.files.saturating_sub(used.files),
        }
    }

    fn limit_device(&self, used: &Used) {
        self.device.set_limits(self.rest(used));
    }

    /// Bytes of GPU memory that could be had, `on_gpu` being free on the GPU.
    pub(crate) fn obtainable(&self, on_gpu: u64) -> u64 {
        let left = self.limits.vram_bytes.saturating_sub(self.used.vram_bytes);
        self.memory.as_ref().map_or(on_gpu, |memory| memory.obtainable(on_gpu)).min(left)
    }

    /// Bytes of GPU memory that keeping its sessions takes.
    #[must_use]
    pub fn upkeep(&self) -> u64 {
        self.upkeep
    }

    /// Charges GPU memory that is taken next. What the ledger has granted already is taken from `credit`.
    ///
    /// # Errors
    /// `OutOfMemory`; `Deferred` if others have it now.
    pub fn take_vram(&mut self, bytes: u64, credit: &mut u64) -> Result<(), GpuError> {
        self.charge_with(Used { vram_bytes: bytes, ..Used::default() }, credit)
    }

    /// Undoes [`Account::take_vram`]: it is free.
    ///
    /// # Panics
    /// If it was not charged.
    pub fn give_vram(&mut self, bytes: u64) {
        self.refund(Used { vram_bytes: bytes, ..Used::default() });
    }

    /// Charges GPU memory for keeping a session.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn take_upkeep(&mut self, bytes: u64) -> Result<(), GpuError> {
        let limit = most_upkeep(self.limits.vram_bytes);
        let out_of_memory = |free| GpuError::OutOfMemory { wanted: bytes, free, limit };
        let free = limit.saturating_sub(self.upkeep);
        if bytes > free {
            return Err(out_of_memory(free));
        }
        self.memory.as_ref().map_or(Ok(()), |memory| memory.keep(bytes)).map_err(|no| out_of_memory(no.free))?;
        self.upkeep += bytes;
        Ok(())
    }

    /// Undoes [`Account::take_upkeep`].
    ///
    /// # Panics
    /// If it was not charged.
    pub fn give_upkeep(&mut self, bytes: u64) {
        assert!(self.upkeep >= bytes, "refund of more upkeep than was charged");
        self.upkeep -= bytes;
        if let Some(memory) = &self.memory {
            memory.unkeep(bytes);
        }
    }

    /// Gives credit back that was not used up.
    pub fn give_credit(&self, bytes: u64) {
        if let Some(memory) = self.memory.as_ref().filter(|_| bytes > 0) {
            memory.give(bytes);
        }
    }

    /// Charges all of `cost`, or nothing.
    ///
    /// # Errors
    /// `OutOfMemory`, `TooMany`, or `Deferred`.
    pub(crate) fn charge(&mut self, cost: Used) -> Result<(), GpuError> {
        self.charge_with(cost, &mut 0)
    }

    /// The same, with GPU memory that the ledger has granted already; what is left of it is in `credit` then.
    pub(crate) fn charge_with(&mut self, cost: Used, credit: &mut u64) -> Result<(), GpuError> {
        let (used, limits) = (&self.used, &self.limits);
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
        count(used.sessions, cost.sessions, limits.sessions, "sessions")?;
        memory(used.vram_bytes, cost.vram_bytes, limits.vram_bytes)?;
        memory(used.host_bytes, cost.host_bytes, limits.host_bytes)?;
        count(used.maps, cost.maps, limits.maps, "mappings of the host")?;
        count(used.files, cost.files, limits.files, "memory files")?;
        count(used.threads, cost.threads, limits.threads, "threads")?;
        count(used.contexts, cost.contexts, limits.contexts, "contexts")?;
        count(used.queues, cost.queues, limits.queues, "queues")?;
        count(used.allocations, cost.allocations, limits.allocations, "allocations")?;
        count(used.mappings, cost.mappings, limits.mappings, "mappings")?;
        count(used.modules, cost.modules, limits.modules, "modules")?;
        let sum = used.combine(&cost, |a, b| a.saturating_add(b));
        let more = cost.vram_bytes.saturating_sub(*credit);
        self.take_memory(more)?;
        if (cost.host_bytes > 0 || cost.maps > 0 || cost.files > 0)
            && let Err(refused) = self.make_room(&sum, &cost)
        {
            self.give_credit(more);
            return Err(refused);
        }
        *credit -= cost.vram_bytes - more;
        self.used = sum;
        Ok(())
    }

    fn take_memory(&self, wanted: u64) -> Result<(), GpuError> {
        let Some(memory) = self.memory.as_ref().filter(|_| wanted > 0) else { return Ok(()) };
        memory.take(wanted).map_err(|NotNow { free, may_wait }| match may_wait {
            true => GpuError::Deferred,
            false => GpuError::OutOfMemory { wanted, free, limit: self.limits.vram_bytes },
        })
    }

    /// Takes from the device's part what is to be charged here, unless the device has used it.
    fn make_room(&self, sum: &Used, cost: &Used) -> Result<(), GpuError> {
        let rest = self.rest(sum);
        self.device.set_limits(rest);
        let device = self.device.used();
        let refused = if cost.host_bytes > 0 && device.bytes > rest.bytes {
            let free = self.rest(&self.used).bytes.saturating_sub(device.bytes);
            GpuError::OutOfMemory { wanted: cost.host_bytes, free, limit: self.limits.host_bytes }
        } else if cost.maps > 0 && device.maps > rest.maps {
            GpuError::TooMany { what: "mappings of the host".into(), limit: self.limits.maps }
        } else if cost.files > 0 && device.files > rest.files {
            GpuError::TooMany { what: "memory files".into(), limit: self.limits.files }
        } else {
            return Ok(());
        };
        self.limit_device(&self.used);
        Err(refused)
    }

    /// Takes a charge back.
    ///
    /// # Panics
    /// If it was not charged: the books are wrong, and with them every limit.
    pub(crate) fn refund(&mut self, cost: Used) {
        self.used = self.used.combine(&cost, |a, b| {
            assert!(a >= b, "refund of more than was charged");
            a - b
        });
        self.give_credit(cost.vram_bytes);
        if cost.host_bytes > 0 || cost.maps > 0 || cost.files > 0 {
            self.limit_device(&self.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A device that uses what it is told to.
    #[derive(Clone, Debug, Default)]
    struct Device(Arc<[AtomicU64; 2]>);

    impl DeviceCosts for Device {
        fn set_limits(&self, limits: HostCost) {
            self.0[0].store(limits.bytes, Ordering::Relaxed);
        }

        fn used(&self) -> HostCost {
            HostCost { bytes: self.0[1].load(Ordering::Relaxed), ..HostCost::default() }
        }
    }

    #[test]
    fn both_sides_keep_one_limit() {
        let device = Device::default();
        let limit = || device.0[0].load(Ordering::Relaxed);
        let mut account = Account::new(Limits { host_bytes: 1000, ..Limits::default() }, Box::new(device.clone()));
        assert_eq!(limit(), 1000);
        let cost = |host_bytes| Used { host_bytes, ..Used::default() };
        account.charge(cost(600)).unwrap();
        assert_eq!(limit(), 400, "the device is limited first");
        device.0[1].store(300, Ordering::Relaxed);
        assert_eq!(account.host_bytes(), 900);
        let refused = account.charge(cost(200));
        assert_eq!(refused, Err(GpuError::OutOfMemory { wanted: 200, free: 100, limit: 1000 }));
        assert_eq!(limit(), 400, "and gets back what it lost in vain");
        account.charge(cost(100)).unwrap();
        account.refund(cost(700));
        assert_eq!((limit(), account.used()), (1000, Used::default()));
        account.set_limits(Limits { host_bytes: 100, ..Limits::default() });
        assert_eq!(limit(), 100);
        assert!(account.charge(cost(1)).is_err(), "the device is above the lowered limit");
        account.charge(Used { queues: 1, ..Used::default() }).unwrap();
    }
}
