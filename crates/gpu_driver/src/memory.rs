//! A client's memory: what it may have, what it has, and where the driver puts its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{AllocId, GpuError, MAX_RANGE_BYTES, MemoryKind, PAGE_BYTES, Response};

use crate::client::Client;
use crate::mmio::Lost;
use crate::space::{Backing, Memory, invalid, unknown};
use crate::vram::Run;

/// Most allocations of a client: what a tenant can make the driver keep in its tables.
const MAX_ALLOCATIONS: usize = 1 << 18;
impl Client {
    /// Books `bytes` of VRAM against the limit.
    fn charge(&self, bytes: u64) -> Result<(), GpuError> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(used) => Err(self.out_of_memory(bytes, self.limit - used)),
        }
    }

    fn out_of_memory(&self, wanted: u64, free: u64) -> GpuError {
        GpuError::OutOfMemory { wanted, free, limit: self.limit }
    }

    /// VRAM that counts against the limit: zero-filled, whole pages.
    pub(crate) fn take_vram(&self, bytes: u64) -> Result<Memory, GpuError> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or_else(|| self.out_of_memory(bytes, 0))?;
        self.charge(bytes)?;
        match self.shared().vram.take(bytes) {
            Some(runs) => Ok(Memory { bytes, backing: Backing::Vram(runs) }),
            None => {
                self.used.fetch_sub(bytes, Ordering::Relaxed);
                Err(self.out_of_memory(bytes, self.shared().vram.free()))
            }
        }
    }

    fn take_host(&self, bytes: u64) -> Result<Memory, GpuError> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.host_limit);
        let booked = self.host_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if let Err(used) = booked {
            return Err(GpuError::OutOfMemory { wanted: bytes, free: self.host_limit - used, limit: self.host_limit });
        }
        match self.shared().mmio.backing().alloc_dma(bytes) {
            Ok(dma) => Ok(Memory { bytes, backing: Backing::Host(dma) }),
            Err(error) => {
                tracing::warn!(client = self.name(), bytes, %error, "no host memory for the GPU");
                self.host_used.fetch_sub(bytes, Ordering::Relaxed);
                Err(GpuError::OutOfMemory { wanted: bytes, free: 0, limit: self.host_limit })
            }
        }
    }

    /// Gives memory back that nothing maps any more; `let_go`: the device is known not to use it.
    pub(crate) fn free_memory(&self, memory: &Memory, let_go: Result<(), Lost>) {
        match &memory.backing {
            Backing::Vram(runs) => {
                self.give_back(runs, let_go);
                self.used.fetch_sub(memory.bytes, Ordering::Relaxed);
            }
            Backing::Host(dma) => {
                self.shared().mmio.backing().free_dma(dma.bus);
                self.host_used.fetch_sub(memory.bytes, Ordering::Relaxed);
            }
        }
    }

    /// Gives VRAM back that does not count against the limit.
    pub(crate) fn give_back(&self, runs: &[Run], let_go: Result<(), Lost>) {
        match let_go {
            Ok(()) => self.shared().vram.put(runs),
            Err(_) => self.shared().vram.quarantine(runs),
        }
    }

    pub(crate) fn alloc(&self, id: AllocId, bytes: u64, kind: MemoryKind) -> Result<(), GpuError> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || bytes > MAX_RANGE_BYTES {
            return Err(invalid(format!("an allocation of {bytes} bytes")));
        }
        {
            let space = self.space.read();
            let space = space.as_ref().ok_or_else(|| invalid("no address range has been announced".into()))?;
            if space.allocs.contains_key(&id) {
                return Err(unknown("allocation", id.0));
            }
            if space.allocs.len() >= MAX_ALLOCATIONS {
                return Err(GpuError::TooMany { what: "allocations".into(), limit: MAX_ALLOCATIONS as u64 });
            }
        }
        let memory = match kind {
            MemoryKind::Vram => self.take_vram(bytes)?,
            MemoryKind::Host => self.take_host(bytes)?,
        };
        let mut space = self.space.write();
        match space.as_mut() {
            // Two threads may have used the same name at once; or the client has been closed meanwhile.
            Some(space) if !space.allocs.contains_key(&id) => {
                space.add_alloc(id, memory);
                Ok(())
            }
            _ => {
                self.free_memory(&memory, Ok(()));
                Err(unknown("allocation", id.0))
            }
        }
    }

    pub(crate) fn free(&self, id: AllocId) -> Result<(), GpuError> {
        let memory = self.edit(|space| space.remove_alloc(id))?;
        let synced = self.sync();
        self.free_memory(&memory, synced.clone().map_err(|_| Lost("the device keeps old translations")));
        synced
    }

    /// Allocates VRAM, maps it in the driver's part of the address space, and lets `fill` write it.
    pub(crate) fn place(
        &self,
        bytes: u64,
        private: bool,
        fill: impl FnOnce(u64, &mut dyn FnMut(u64, &[u8])) -> Result<(), GpuError>,
    ) -> Result<(u64, Arc<Memory>), GpuError> {
        let memory = Arc::new(self.take_vram(bytes)?);
        let at = match self.edit(|space| space.map_own(&memory, private)) {
            Ok(at) => at,
            Err(error) => {
                // Entries made before the failure are gone from the tables, but maybe not from the device.
                let synced = self.sync().map_err(|_| Lost("the device keeps old translations"));
                self.free_memory(&memory, synced);
                return Err(error);
            }
        };
        let vram = self.shared().mmio.backing().vram();
        let filled = fill(at, &mut |offset, data| {
            let mut data = data;
            for (phys, bytes) in memory.pieces(offset..offset + data.len() as u64) {
                let (now, rest) = data.split_at(bytes as usize);
                vram.write(phys.address as usize, now);
                data = rest;
            }
        });
        let placed = (at, memory);
        match filled {
            Ok(()) => Ok(placed),
            Err(error) => {
                self.remove_own(&[placed]);
                Err(error)
            }
        }
    }

    /// Undoes [`Client::place`].
    pub(crate) fn remove_own(&self, placed: &[(u64, Arc<Memory>)]) {
        let unmapped = self.edit(|space| {
            for (at, memory) in placed {
                space.unmap_own(*at, memory.bytes);
            }
            Ok(())
        });
        let let_go = match unmapped {
            Ok(()) => self.sync().map_err(|_| Lost("the device keeps old translations")),
            // The client was closed meanwhile, and its address space cut off as a whole, unless the device was lost.
            Err(_) if self.shared().mmio.is_lost() => Err(Lost("the device keeps old translations")),
            Err(_) => Ok(()),
        };
        for (_, memory) in placed {
            self.free_memory(memory, let_go);
        }
    }

    pub(crate) fn memory_info(&self) -> Response {
        let used = self.used.load(Ordering::Relaxed);
        let free = self.limit.saturating_sub(used).min(self.shared().vram.free());
        Response::Memory { free, total: self.limit }
    }
}
