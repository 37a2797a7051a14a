//! What is at an address, the GPU's or the program's.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpu::{ContextId, DevAddr, PAGE_BYTES};
use intervals::{IntervalMap, bearing};
use parking_lot::RwLock;

use crate::error::{CudaError, Result};
use crate::memory::addresses::Arena;
use crate::memory::allocation::{Allocation, Kind};
use crate::values::MemoryWatcher;

/// What an address is, for a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Residency {
    /// Memory of a GPU, of that ordinal, that the host does not see.
    Device(DevAddr, u32),
    /// Memory that that GPU and the host see; the address is the GPU's.
    HostVisible(DevAddr, u32),
    /// The program's own memory.
    Pageable,
}

/// All allocations that programs may name.
#[derive(Debug, Default)]
pub(crate) struct AllocationTable {
    tables: RwLock<Tables>,
    /// Who is told of what comes and goes, if somebody is.
    watcher: OnceLock<Arc<dyn MemoryWatcher>>,
}

#[derive(Debug, Default)]
struct Tables {
    /// By GPU address.
    by_address: IntervalMap<Arc<Allocation>>,
    /// Registered memory by the program's address.
    registered: IntervalMap<Registration>,
}

/// A range of the program's memory that is registered, or about to be, or not quite any more.
#[derive(Debug)]
enum Registration {
    /// Its pages may be moving: nobody else may register it, and nobody finds it.
    Changing,
    There(Arc<Allocation>),
}

impl Registration {
    fn allocation(&self) -> Option<&Arc<Allocation>> {
        match self {
            Registration::Changing => None,
            Registration::There(allocation) => Some(allocation),
        }
    }

    /// Its pages show memory that the GPU sees, or may be about to.
    fn moves_pages(&self) -> bool {
        self.allocation().is_none_or(|allocation| allocation.kind == Kind::Registered)
    }
}

impl Tables {
    /// What is registered around an address of the program.
    fn registered(&self, address: u64) -> Option<&Arc<Allocation>> {
        self.registered.get(address)?.1.allocation()
    }
}

/// The whole pages around a range.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES * PAGE_BYTES..range.end.next_multiple_of(PAGE_BYTES)
}

impl AllocationTable {
    /// From now on `watcher` is told what comes and goes; the first one stays.
    pub(crate) fn watch(&self, watcher: Arc<dyn MemoryWatcher>) {
        self.watcher.get_or_init(|| watcher);
    }

    pub(crate) fn watcher(&self) -> Option<&dyn MemoryWatcher> {
        self.watcher.get().map(|watcher| &**watcher)
    }

    /// Makes an allocation known; registered memory where its range was taken ([`AllocationTable::take`]).
    pub(crate) fn insert(&self, allocation: &Arc<Allocation>) {
        if allocation.kind.on_gpu()
            && let Some(watcher) = self.watcher()
        {
            watcher.allocated(allocation.base, allocation.bytes, allocation.kind.watched());
        }
        let mut tables = self.tables.write();
        if allocation.kind.on_gpu()
            && let Err(error) = tables.by_address.insert(allocation.base..allocation.end(), Arc::clone(allocation))
        {
            tracing::error!(?error, ?allocation, "the GPU has put something where there is something already");
        }
        if allocation.kind.registered()
            && let Some((_, taken)) = tables.registered.get_mut(allocation.host_address())
        {
            *taken = Registration::There(Arc::clone(allocation));
        }
    }

    /// Where an address is, told by the allocation that is nearest, if that can be found out in so short a time.
    pub(crate) fn near(&self, address: u64, within: Duration) -> Option<String> {
        let tables = self.tables.try_read_for(within)?;
        let Some((range, found)) = tables.by_address.nearest(address) else {
            return Some("nothing is allocated".to_owned());
        };
        let name = found.kind.watched().name;
        Some(format!("{} {} bytes at {:#x} ({name})", bearing(address, &range), range.end - range.start, range.start))
    }

    /// Takes an allocation out, if `base` begins one that `wanted` wants. The range of registered memory stays taken until
    /// [`AllocationTable::release`].
    pub(crate) fn remove(&self, base: u64, wanted: impl FnOnce(&Allocation) -> bool) -> Option<Arc<Allocation>> {
        let mut tables = self.tables.write();
        let found = tables.by_address.get(base).map(|(_, found)| found).or_else(|| tables.registered(base));
        let allocation = Arc::clone(found.filter(|found| found.base == base)?);
        if !wanted(&allocation) {
            return None;
        }
        if allocation.kind.on_gpu() {
            tables.by_address.remove(base);
            if let Some(watcher) = self.watcher() {
                watcher.freed(base);
            }
        }
        if allocation.kind.registered()
            && let Some((_, registration)) = tables.registered.get_mut(allocation.host_address())
        {
            *registration = Registration::Changing;
        }
        Some(allocation)
    }

    /// Takes a range of the program's memory, to be registered: from now on nobody else can. Tells whether its pages may move:
    /// not where another registration has moved one of them already.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED` if a byte of it is.
    pub(crate) fn take(&self, range: Range<u64>) -> Result<bool> {
        let mut tables = self.tables.write();
        let may_move = !tables.registered.overlapping(pages(&range)).any(|(_, other)| other.moves_pages());
        let taken = tables.registered.insert(range, Registration::Changing);
        taken.map_err(|_| CudaError::HOST_MEMORY_ALREADY_REGISTERED)?;
        Ok(may_move)
    }

    /// Gives a range back that begins at an address of the program: its pages are as if it had never been registered.
    pub(crate) fn release(&self, start: u64) {
        self.tables.write().registered.remove(start);
    }

    /// Where a context's allocations begin, but for those in pools and of graphs, and mapped physical memory, which belong to the device.
    pub(crate) fn of_context(&self, context: ContextId) -> Vec<u64> {
        let tables = self.tables.read();
        let of_context = |found: &&Arc<Allocation>| {
            found.context == context
                && !found.kind.pooled()
                && !matches!(found.kind, Kind::Graph | Kind::Mapped | Kind::MappedHost)
        };
        let registered = tables.registered.values().filter_map(Registration::allocation);
        let hidden = registered.filter(|found| !found.kind.on_gpu());
        tables.by_address.values().chain(hidden).filter(of_context).map(|found| found.base).collect()
    }

    /// The allocation around an address, GPU's or program's.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let tables = self.tables.read();
        let found = tables.by_address.get(address).map(|(_, found)| found);
        found.or_else(|| tables.registered(address)).cloned()
    }

    /// What `bytes` at an address are. Neighbouring mappings may be crossed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is a GPU address, but not all of it allocated.
    pub(crate) fn locate(&self, arena: &Arena, address: u64, bytes: u64) -> Result<Residency> {
        let tables = self.tables.read();
        if arena.contains(address) {
            // No bytes need a place, too.
            let range = address..address.checked_add(bytes.max(1)).ok_or(CudaError::INVALID_VALUE)?;
            let (_, first) = tables.by_address.get(address).ok_or(CudaError::INVALID_VALUE)?;
            let (host, gpu) = (first.kind.host_visible(), first.gpu);
            let like = |next: &Allocation| next.kind.host_visible() == host && next.gpu == gpu;
            let alike = tables.by_address.overlapping(range.clone()).all(|(_, next)| like(next));
            if !alike || !tables.by_address.covers(range) {
                return Err(CudaError::INVALID_VALUE);
            }
            let address = DevAddr(address);
            return Ok(if host { Residency::HostVisible(address, gpu) } else { Residency::Device(address, gpu) });
        }
        let registered = tables
            .registered(address)
            .filter(|found| found.kind.on_gpu() && bytes <= found.bytes - (address - found.host_address()));
        Ok(match registered {
            Some(found) => Residency::HostVisible(DevAddr(found.base + (address - found.host_address())), found.gpu),
            None => Residency::Pageable,
        })
    }
}
