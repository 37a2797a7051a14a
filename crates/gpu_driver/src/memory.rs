//! A client's memory: what it may have, what it has, and where the driver puts its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_io::VramOffset;
use gpu::{AllocId, GpuError, MAX_RANGE_BYTES, MemoryKind, PAGE_BYTES, Response};

use crate::aperture::Aperture;
use crate::client::Client;
use crate::host::HostPart;
use crate::mmio::Stuck;
use crate::space::{Backing, Memory, invalid, unknown};
use crate::vram::Run;

/// Most allocations of a client: what a tenant can make the driver keep in its tables.
const MAX_ALLOCATIONS: usize = 1 << 18;

impl Client {
    /// Books `bytes` of VRAM against the limit.
    fn charge(&self, bytes: u64) -> Result<(), GpuError> {
        let limit = self.limit();
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => {
                self.device().vram.charge(bytes);
                Ok(())
            }
            Err(used) => Err(self.out_of_memory(bytes, limit.saturating_sub(used))),
        }
    }

    /// Undoes [`Client::charge`].
    fn refund(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        self.device().vram.refund(bytes);
    }

    fn out_of_memory(&self, wanted: u64, free: u64) -> GpuError {
        GpuError::OutOfMemory { wanted, free, limit: self.limit() }
    }

    /// VRAM that counts against the limit: zero-filled, whole pages.
    pub(crate) fn take_vram(&self, bytes: u64) -> Result<Memory, GpuError> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or_else(|| self.out_of_memory(bytes, 0))?;
        self.charge(bytes)?;
        match self.device().vram.take(bytes) {
            Some(runs) => Ok(Memory { bytes, backing: Backing::Vram(runs, None) }),
            None => {
                self.refund(bytes);
                Err(self.out_of_memory(bytes, self.device().vram.free()))
            }
        }
    }

    fn take_host(&self, bytes: u64) -> Result<Memory, GpuError> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.host_limit);
        let booked = self.host_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if let Err(used) = booked {
            return Err(GpuError::OutOfMemory { wanted: bytes, free: self.host_limit - used, limit: self.host_limit });
        }
        let taken = self.host.lock().take(bytes);
        if taken.is_err() {
            self.host_used.fetch_sub(bytes, Ordering::Relaxed);
        }
        Ok(Memory { bytes, backing: Backing::Host(taken?) })
    }

    /// Host memory for the driver's own structures.
    pub(crate) fn take_private(&self, bytes: u64) -> Result<HostPart, GpuError> {
        self.budget.charge_driver_bytes(bytes)?;
        self.private_host.lock().take(bytes).inspect_err(|_| self.budget.refund_driver_bytes(bytes))
    }

    /// Undoes [`Client::take_private`].
    pub(crate) fn give_private(&self, part: &HostPart, bytes: u64, let_go: Result<(), Stuck>) {
        self.private_host.lock().give(part, bytes, let_go);
        // What the device keeps stays charged.
        if let_go.is_ok() {
            self.budget.refund_driver_bytes(bytes);
        }
    }

    /// Gives memory back that nothing maps any more; `let_go`: the device is known not to use it.
    pub(crate) fn free_memory(&self, memory: &Memory, let_go: Result<(), Stuck>) {
        match &memory.backing {
            Backing::Vram(runs, shown) => {
                match (shown, self.existing_aperture()) {
                    (Some(offset), Some(aperture)) => self.give_back_shown(runs, *offset, aperture, let_go),
                    _ => self.give_back(runs, let_go),
                }
                self.refund(memory.bytes);
            }
            Backing::Host(part) => {
                self.host.lock().give(part, memory.bytes, let_go);
                self.host_used.fetch_sub(memory.bytes, Ordering::Relaxed);
            }
        }
    }

    /// Has an allocation of the client's shown by its aperture, if it has one and that can be.
    fn show(&self, memory: Memory) -> Result<Memory, GpuError> {
        let (Some(aperture), Memory { bytes, backing: Backing::Vram(runs, None) }) = (self.aperture(), &memory) else {
            return Ok(memory);
        };
        match aperture.show(self.device().mmio.backing().as_ref(), runs) {
            Ok(shown) => Ok(Memory { bytes: *bytes, backing: Backing::Vram(runs.clone(), shown) }),
            Err(stuck) => {
                self.free_memory(&memory, Err(stuck));
                Err(self.out_of_memory(*bytes, self.device().vram.free()))
            }
        }
    }

    fn give_back_shown(&self, runs: &[Run], offset: u64, aperture: &Aperture, let_go: Result<(), Stuck>) {
        match let_go.and_then(|()| aperture.hide(self.device().mmio.backing().as_ref(), runs, offset)) {
            Ok(()) => self.device().vram.put_clean(runs),
            Err(_) => self.device().vram.quarantine(runs),
        }
    }

    /// Gives VRAM back that does not count against the limit.
    pub(crate) fn give_back(&self, runs: &[Run], let_go: Result<(), Stuck>) {
        match let_go {
            Ok(()) => self.device().vram.put(runs),
            Err(_) => self.device().vram.quarantine(runs),
        }
    }

    /// Allocates; tells where the client's aperture shows it.
    pub(crate) fn alloc(&self, id: AllocId, bytes: u64, kind: MemoryKind) -> Result<Option<u64>, GpuError> {
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
            MemoryKind::Vram => self.show(self.take_vram(bytes)?)?,
            MemoryKind::Host => self.take_host(bytes)?,
        };
        let shown = match memory.backing {
            Backing::Vram(_, shown) => shown,
            Backing::Host(_) => None,
        };
        let mut space = self.space.write();
        match space.as_mut() {
            // Two threads may have used the same name at once; or the client has been closed meanwhile.
            Some(space) if !space.allocs.contains_key(&id) => {
                space.add_alloc(id, memory);
                Ok(shown)
            }
            _ => {
                drop(space);
                self.free_memory(&memory, Ok(()));
                Err(unknown("allocation", id.0))
            }
        }
    }

    pub(crate) fn free(&self, id: AllocId) -> Result<(), GpuError> {
        let memory = self.edit(|space| space.remove_alloc(id))?;
        let synced = self.sync();
        self.free_memory(&memory, synced.clone().map_err(|_| Stuck("the device keeps old translations")));
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
        let at = match self.edit(|space| space.map_for_driver(&memory, private)) {
            Ok(at) => at,
            Err(error) => {
                // Entries made before the failure are gone from the tables, but maybe not from the device.
                let synced = self.sync().map_err(|_| Stuck("the device keeps old translations"));
                self.free_memory(&memory, synced);
                return Err(error);
            }
        };
        let backing = self.device().mmio.backing();
        let filled = fill(at, &mut |offset, data| {
            let mut data = data;
            for (phys, bytes) in memory.pieces(offset..offset + data.len() as u64) {
                let (now, rest) = data.split_at(bytes as usize);
                backing.write_vram(VramOffset(phys.address), now);
                data = rest;
            }
        });
        let placed = (at, memory);
        match filled {
            Ok(()) => Ok(placed),
            Err(error) => {
                self.unplace(&[placed]);
                Err(error)
            }
        }
    }

    /// Undoes [`Client::place`].
    pub(crate) fn unplace(&self, placed: &[(u64, Arc<Memory>)]) {
        let unmapped = self.edit(|space| {
            for (at, memory) in placed {
                space.unmap_for_driver(*at, memory);
            }
            Ok(())
        });
        let let_go = match unmapped {
            Ok(()) => self.sync().map_err(|_| Stuck("the device keeps old translations")),
            // The client was closed meanwhile, and its address space cut off as a whole, unless the device was lost.
            Err(_) if self.device().mmio.is_lost() => Err(Stuck("the device keeps old translations")),
            Err(_) => Ok(()),
        };
        for (_, memory) in placed {
            self.free_memory(memory, let_go);
        }
    }

    pub(crate) fn memory_info(&self) -> Response {
        let used = self.used.load(Ordering::Relaxed);
        let limit = self.limit();
        let free = limit.saturating_sub(used).min(self.device().vram.free());
        Response::Memory { free, total: limit }
    }
}
