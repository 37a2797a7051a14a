//! A client's memory: what it may have, what it has, and where the driver puts its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_io::VramOffset;
use gpu::{AllocId, GpuError, HostMemory, MAX_RANGE_BYTES, MemoryKind, PAGE_BYTES, Response, VramUse};

use crate::aperture::Aperture;
use crate::client::Client;
use crate::host::{HostPart, HostPool};
use crate::mmio::Stuck;
use crate::space::{Backing, Memory, invalid, unknown};
use crate::vram::Run;

/// Most allocations of a client: what a tenant can make the driver keep in its tables.
const MAX_ALLOCATIONS: usize = 1 << 18;

impl Client {
    /// Books `bytes` of VRAM: with whoever divides it, and against the limit.
    fn charge(&self, bytes: u64, what: VramUse) -> Result<(), GpuError> {
        self.vram.book(bytes, what)?;
        let limit = self.limit();
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map(drop).map_err(|used| {
            self.vram.unbook(bytes, what);
            self.out_of_memory(bytes, limit.saturating_sub(used))
        })
    }

    fn out_of_memory(&self, wanted: u64, free: u64) -> GpuError {
        GpuError::OutOfMemory { wanted, free, limit: self.limit() }
    }

    /// VRAM that counts against the limit: zero-filled, whole pages.
    pub(crate) fn take_vram(&self, bytes: u64, what: VramUse) -> Result<Memory, GpuError> {
        self.take_vram_for([bytes], what).map(|[memory]| memory)
    }

    /// VRAM for several things that are of use together only: asked for at once.
    pub(crate) fn take_vram_for<const N: usize>(
        &self,
        bytes: [u64; N],
        what: VramUse,
    ) -> Result<[Memory; N], GpuError> {
        let whole = bytes.map(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
        let sum = whole.iter().try_fold(0, |sum: u64, bytes| sum.checked_add((*bytes)?));
        let sum = sum.ok_or_else(|| self.out_of_memory(bytes.iter().fold(0, |sum, it| sum.saturating_add(*it)), 0))?;
        self.charge(sum, what)?;
        let mut taken = whole.map(|bytes| {
            let bytes = bytes.unwrap_or(0);
            let runs = self.vram.take_booked(bytes, what)?;
            Some(Memory { bytes, backing: Backing::Vram(runs, None) })
        });
        if taken.iter().all(Option::is_some) {
            return Ok(
                taken.map(|memory| memory.unwrap_or(Memory { bytes: 0, backing: Backing::Vram(Vec::new(), None) }))
            );
        }
        let mut missing = sum;
        for memory in taken.iter_mut().filter_map(Option::take) {
            missing -= memory.bytes;
            self.free_memory(&memory, Ok(()));
        }
        self.used.fetch_sub(missing, Ordering::Relaxed);
        self.vram.unbook(missing, what);
        Err(self.out_of_memory(sum, self.vram.free()))
    }

    /// Host memory that counts against the limit: taken from the client's pool, or by `take`.
    fn take_host(
        &self,
        bytes: u64,
        take: impl FnOnce(&mut HostPool) -> Result<HostPart, GpuError>,
    ) -> Result<Memory, GpuError> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.host_limit);
        let booked = self.host_used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if let Err(used) = booked {
            return Err(GpuError::OutOfMemory { wanted: bytes, free: self.host_limit - used, limit: self.host_limit });
        }
        let taken = take(&mut self.host.lock());
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
                    _ => self.give_back(runs, VramUse::Asked, let_go),
                }
                self.used.fetch_sub(memory.bytes, Ordering::Relaxed);
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
            Ok(()) => self.vram.put_clean(runs, VramUse::Asked),
            Err(_) => self.vram.quarantine(runs, VramUse::Asked),
        }
    }

    /// Gives VRAM back.
    pub(crate) fn give_back(&self, runs: &[Run], what: VramUse, let_go: Result<(), Stuck>) {
        match let_go {
            Ok(()) => self.vram.put(runs, what),
            Err(_) => self.vram.quarantine(runs, what),
        }
    }

    /// Allocates; tells where the client's aperture shows it.
    pub(crate) fn alloc(&self, id: AllocId, bytes: u64, kind: MemoryKind) -> Result<Option<u64>, GpuError> {
        self.check_new(id, bytes)?;
        let memory = match kind {
            MemoryKind::Vram => self.show(self.take_vram(bytes, VramUse::Asked)?)?,
            MemoryKind::Host => self.take_host(bytes, |pool| pool.take(bytes))?,
        };
        let shown = match memory.backing {
            Backing::Vram(_, shown) => shown,
            Backing::Host(_) => None,
        };
        self.keep(id, memory)?;
        Ok(shown)
    }

    /// Gives a name to memory of another GPU's that the host shares.
    pub(crate) fn import_host(&self, id: AllocId, from: &HostMemory, bytes: u64) -> Result<(), GpuError> {
        self.check_new(id, bytes)?;
        let end = from.offset.checked_add(bytes).filter(|_| from.offset.is_multiple_of(PAGE_BYTES));
        if end.is_none_or(|end| end > from.file.bytes()) {
            return Err(invalid(format!("{bytes} bytes at {} of a file of {} bytes", from.offset, from.file.bytes())));
        }
        let memory = self.take_host(bytes, |pool| pool.import(&from.file, from.offset, bytes))?;
        self.keep(id, memory)
    }

    /// Whether there may be one more allocation, of so many bytes and this name.
    fn check_new(&self, id: AllocId, bytes: u64) -> Result<(), GpuError> {
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
        Ok(())
    }

    /// Gives an allocation its name.
    fn keep(&self, id: AllocId, memory: Memory) -> Result<(), GpuError> {
        let mut space = self.space.write();
        match space.as_mut() {
            // Two threads may have used the same name at once; or the client has been closed meanwhile.
            Some(space) if !space.allocs.contains_key(&id) => {
                space.add_alloc(id, memory);
                Ok(())
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

    /// Maps VRAM in the driver's part of the address space, and lets `fill` write it. It is free if that fails.
    pub(crate) fn place(
        &self,
        memory: Memory,
        private: bool,
        fill: impl FnOnce(u64, &mut dyn FnMut(u64, &[u8])) -> Result<(), GpuError>,
    ) -> Result<(u64, Arc<Memory>), GpuError> {
        let memory = Arc::new(memory);
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
