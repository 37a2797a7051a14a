//! What a tenant's use of the GPU may cost the host.
//!
//! One [`Budget`] stands for one tenant; all its clients share it. The device charges to it what work costs while it runs:
//! memory of CTAs under way, code, compilations ([`gpu_spec::regs::budget`]); it is known to the device by a number that
//! every instance block carries. The driver itself charges what it can know beforehand, so that a request is refused
//! before anything has changed: entries of the host's memory map, and descriptors.
//!
//! An address space is a window of the host's. Each contiguous piece of memory in it is an entry of the host's memory map,
//! and so is each gap; a process has 65,530 of them unless its administrator says otherwise, and dies without. The driver
//! counts each mapping's pieces and one gap behind it, which is never less than what the window takes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gpu::GpuError;
use gpu_spec::regs::CHANNELS;
use gpu_spec::regs::budget::{self, word};
use parking_lot::Mutex;

use crate::mmio::{Mmio, Stuck};

/// Most channels of a tenant, all its clients together.
const MAX_CHANNELS: u32 = CHANNELS / 4;
/// No limit of memory. Then the device is not asked either: in a guest, that takes longer than what most requests ask for.
const UNLIMITED: u64 = u64::MAX;

/// What use of the GPU costs the host, or may cost it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCost {
    /// Memory that the device takes for work, and the driver for queues, bytes.
    pub bytes: u64,
    /// Entries of the host's memory map.
    pub maps: u32,
    /// Descriptors: memory files.
    pub files: u32,
}

impl Default for HostCost {
    /// Limits for one tenant of about eight, on a host with its usual 65,530 map entries and 1,024 descriptors.
    fn default() -> HostCost {
        HostCost { bytes: UNLIMITED, maps: 6144, files: 96 }
    }
}

/// The budget of one tenant, shared by its clients.
#[derive(Debug)]
pub struct Budget {
    mmio: Arc<Mmio>,
    numbers: Arc<BudgetNumbers>,
    /// The device's number for it; 0 has no limits there.
    number: u32,
    /// Guards `driver_bytes` and the device's limit, which is what they leave of it, as well.
    limit_bytes: Mutex<u64>,
    limit_maps: AtomicU32,
    limit_files: AtomicU32,
    maps: AtomicU32,
    files: AtomicU32,
    channels: AtomicU32,
    /// Host memory that the driver has taken for its clients' queues.
    driver_bytes: AtomicU64,
    /// The device's count of interpreted grids when the number was taken.
    interpreted_before: u32,
}

/// The device's budgets that nobody has, longest free first.
#[derive(Debug)]
pub(crate) struct BudgetNumbers(Mutex<VecDeque<u32>>);

impl BudgetNumbers {
    pub(crate) fn new() -> BudgetNumbers {
        BudgetNumbers(Mutex::new((1..budget::BUDGETS).collect()))
    }

    /// A number to which nothing is charged any more.
    fn take(&self, mmio: &Mmio) -> Option<u32> {
        let mut free = self.0.lock();
        let clean = free.iter().position(|number| {
            let used = [budget::BYTES_LO, budget::BYTES_HI, budget::MAPS].map(|at| mmio.read(word(*number, at)));
            used == [Ok(0); 3]
        })?;
        free.remove(clean)
    }
}

impl Budget {
    pub(crate) fn new(
        mmio: &Arc<Mmio>,
        numbers: &Arc<BudgetNumbers>,
        limits: HostCost,
    ) -> Result<Arc<Budget>, GpuError> {
        let many = || GpuError::TooMany { what: "budgets".into(), limit: budget::BUDGETS.into() };
        let number = numbers.take(mmio).ok_or_else(many)?;
        Ok(Arc::new(Budget::numbered(mmio, numbers, number, limits)))
    }

    /// A budget for a client without a tenant: the device does not limit it, the driver does.
    pub(crate) fn of_nobody(mmio: &Arc<Mmio>, numbers: &Arc<BudgetNumbers>) -> Arc<Budget> {
        Arc::new(Budget::numbered(mmio, numbers, 0, HostCost::default()))
    }

    fn numbered(mmio: &Arc<Mmio>, numbers: &Arc<BudgetNumbers>, number: u32, limits: HostCost) -> Budget {
        let budget = Budget {
            mmio: Arc::clone(mmio),
            numbers: Arc::clone(numbers),
            number,
            limit_bytes: Mutex::new(0),
            limit_maps: AtomicU32::new(0),
            limit_files: AtomicU32::new(0),
            maps: AtomicU32::new(0),
            files: AtomicU32::new(0),
            channels: AtomicU32::new(0),
            driver_bytes: AtomicU64::new(0),
            interpreted_before: mmio.read(word(number, budget::INTERPRETED)).unwrap_or(0),
        };
        budget.set_limits(limits);
        budget
    }

    /// The device's number for it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Changes what the tenant may cost. Limits may lie below what is used: nothing is added then, nothing is taken away.
    pub fn set_limits(&self, limits: HostCost) {
        self.limit_maps.store(limits.maps, Ordering::Relaxed);
        self.limit_files.store(limits.files, Ordering::Relaxed);
        let mut bytes = self.limit_bytes.lock();
        *bytes = limits.bytes;
        if self.number != 0 {
            self.mmio.write(word(self.number, budget::MAPS_LIMIT), limits.maps);
        }
        self.limit_device(*bytes);
    }

    /// Leaves the device what the driver does not use of `limit`. Under the lock of `limit_bytes`.
    fn limit_device(&self, limit: u64) -> u64 {
        let used = if limit == UNLIMITED { 0 } else { self.driver_bytes.load(Ordering::Relaxed) };
        let rest = limit.saturating_sub(used);
        if self.number != 0 {
            self.mmio.write(word(self.number, budget::BYTES_LIMIT_LO), rest as u32);
            self.mmio.write(word(self.number, budget::BYTES_LIMIT_HI), (rest >> 32) as u32);
        }
        rest
    }

    /// What the tenant may cost.
    #[must_use]
    pub fn limits(&self) -> HostCost {
        HostCost {
            bytes: *self.limit_bytes.lock(),
            maps: self.limit_maps.load(Ordering::Relaxed),
            files: self.limit_files.load(Ordering::Relaxed),
        }
    }

    /// What the tenant costs now. Of a device that is gone: what the driver knows.
    #[must_use]
    pub fn used(&self) -> HostCost {
        HostCost {
            bytes: self.device_bytes().unwrap_or(0) + self.driver_bytes(),
            maps: self.maps.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
        }
    }

    fn device_bytes(&self) -> Result<u64, Stuck> {
        if self.number == 0 {
            return Ok(0);
        }
        self.mmio.read_long(word(self.number, budget::BYTES_LO), word(self.number, budget::BYTES_HI))
    }

    /// Host memory that the driver itself has taken for the tenant's queues, bytes: part of [`Budget::used`].
    #[must_use]
    pub fn driver_bytes(&self) -> u64 {
        self.driver_bytes.load(Ordering::Relaxed)
    }

    /// Grids that the interpreter ran because their kernel could not be compiled.
    #[must_use]
    pub fn interpreted(&self) -> u32 {
        let now = self.mmio.read(word(self.number, budget::INTERPRETED));
        now.map_or(0, |now| now.wrapping_sub(self.interpreted_before))
    }

    /// Compilations under way.
    #[must_use]
    pub fn compiling(&self) -> u32 {
        self.mmio.read(word(self.number, budget::COMPILING)).unwrap_or(0)
    }

    /// Books entries of the memory map.
    pub(crate) fn charge_maps(&self, count: u32) -> Result<(), GpuError> {
        charge(&self.maps, count, self.limit_maps.load(Ordering::Relaxed))
    }

    /// As [`Budget::charge_maps`], for what can be done without: half of all entries stay for what cannot.
    pub(crate) fn charge_spare_maps(&self, count: u32) -> Result<(), GpuError> {
        charge(&self.maps, count, self.limit_maps.load(Ordering::Relaxed) / 2)
    }

    pub(crate) fn refund_maps(&self, count: u32) {
        self.maps.fetch_sub(count, Ordering::Relaxed);
    }

    /// Books a descriptor.
    pub(crate) fn charge_file(&self) -> Result<(), GpuError> {
        charge(&self.files, 1, self.limit_files.load(Ordering::Relaxed))
    }

    pub(crate) fn refund_file(&self) {
        self.files.fetch_sub(1, Ordering::Relaxed);
    }

    /// Books a channel: the device has [`CHANNELS`], and a tenant's sessions together must leave others enough.
    pub(crate) fn charge_channel(&self) -> Result<(), GpuError> {
        let limit = if self.number == 0 { CHANNELS } else { MAX_CHANNELS };
        let many = |_| GpuError::TooMany { what: "channels of a tenant".into(), limit: limit.into() };
        charge(&self.channels, 1, limit).map_err(many)
    }

    pub(crate) fn refund_channels(&self, count: u32) {
        self.channels.fetch_sub(count, Ordering::Relaxed);
    }

    /// Books memory of the driver's own, if device and driver together stay below the limit: first the device may have less,
    /// then it is looked at what it has.
    pub(crate) fn charge_driver_bytes(&self, bytes: u64) -> Result<(), GpuError> {
        let limit = self.limit_bytes.lock();
        if *limit == UNLIMITED {
            self.driver_bytes.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        }
        let free = |device: u64| limit.saturating_sub(self.driver_bytes()).saturating_sub(device);
        let full = |device| GpuError::OutOfMemory { wanted: bytes, free: free(device), limit: *limit };
        // What cannot be had does not lower the device's limit, not even for a moment: what it does for the tenant fails if it
        // needs more than that.
        let device = self.device_bytes().unwrap_or(0);
        if bytes > free(device) {
            return Err(full(device));
        }
        self.driver_bytes.fetch_add(bytes, Ordering::Relaxed);
        let rest = self.limit_device(*limit);
        let device = self.device_bytes().unwrap_or(0);
        if device <= rest {
            return Ok(());
        }
        self.driver_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.limit_device(*limit);
        Err(full(device))
    }

    /// Books again what was given back a moment ago, whatever the limit.
    pub(crate) fn recharge_driver_bytes(&self, bytes: u64) {
        let limit = self.limit_bytes.lock();
        self.driver_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.limit_device_again(*limit);
    }

    pub(crate) fn refund_driver_bytes(&self, bytes: u64) {
        let limit = self.limit_bytes.lock();
        self.driver_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.limit_device_again(*limit);
    }

    /// The driver uses more, or less, of the same limit.
    fn limit_device_again(&self, limit: u64) {
        if limit != UNLIMITED {
            self.limit_device(limit);
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if self.number != 0 {
            self.numbers.0.lock().push_back(self.number);
        }
    }
}

/// A resource of the host that is used up is memory to a client: it can free some and try again.
fn charge(used: &AtomicU32, count: u32, limit: u32) -> Result<(), GpuError> {
    let add = |used: u32| used.checked_add(count).filter(|sum| *sum <= limit);
    match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
        Ok(_) => Ok(()),
        Err(used) => Err(GpuError::OutOfMemory {
            wanted: count.into(),
            free: limit.saturating_sub(used).into(),
            limit: limit.into(),
        }),
    }
}
