//! Host memory of a client: many small allocations in few memory files.
//!
//! Every memory file costs the process a descriptor and an entry of its memory map, so only large allocations have one of
//! their own. The others lie in slabs: files that grow with their number, of which no page exists before it is touched. A
//! slab belongs to one client: its descriptor may be given away, and shows nothing of others.
//!
//! In a virtual machine bus addresses are those of pages ([`DmaMemory::is_pinned`]): all pages of a slab exist at once, so
//! slabs stay small, and none is ever given back while the slab is there.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use device_io::{BusAddr, DmaMemory};
use gpu::GpuError;
use gpu_spec::mmu::{BIG_PAGE, HUGE_PAGE, SMALL_PAGE};
use hostmem::Memfd;
use intervals::FreeRanges;

use crate::budget::Budget;
use crate::mmio::{Mmio, Stuck};

/// Bytes of the first slab; each further one has four times the size of the one before, up to [`LAST_SLAB`]. Those that are
/// pinned all have this size.
const FIRST_SLAB: u64 = 2 << 20;
const LAST_SLAB: u64 = 512 << 20;
/// Larger allocations have files of their own.
const LARGEST_SHARED: u64 = 32 << 20;

/// A part of a memory file that the device can address.
#[derive(Clone, Debug)]
pub(crate) struct HostPart {
    pub(crate) dma: Arc<DmaMemory>,
    pub(crate) offset: u64,
}

impl HostPart {
    /// The pieces of a range of it, in order: bus address and bytes.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<(BusAddr, u64)> {
        self.dma.pieces(self.offset + range.start..self.offset + range.end)
    }

    /// Bus address of the byte at `offset`, for what does not reach beyond its page.
    pub(crate) fn bus(&self, offset: u64) -> BusAddr {
        self.pieces(offset..offset + 1).first().map_or(BusAddr(0), |(bus, _)| *bus)
    }
}

#[derive(Debug)]
struct Slab {
    dma: Arc<DmaMemory>,
    free: FreeRanges,
    /// The device has not let go of a part of it.
    stuck: bool,
}

/// Somebody else's memory file, and how many parts of it have names.
#[derive(Debug)]
struct Imported {
    dma: Arc<DmaMemory>,
    parts: usize,
    /// All of it can be addressed.
    whole: bool,
}

/// The host memory of a client.
///
/// Invariant: what is free in a slab reads as zero, unless the client, who may have it mapped, has written it.
#[derive(Debug)]
pub(crate) struct HostPool {
    mmio: Arc<Mmio>,
    budget: Arc<Budget>,
    slabs: Vec<Slab>,
    imported: Vec<Imported>,
}

impl HostPool {
    pub(crate) fn new(mmio: &Arc<Mmio>, budget: &Arc<Budget>) -> HostPool {
        HostPool { mmio: Arc::clone(mmio), budget: Arc::clone(budget), slabs: Vec::new(), imported: Vec::new() }
    }

    /// Takes `bytes` (whole pages), zero-filled, aligned so that large pages can map them.
    ///
    /// # Errors
    /// `OutOfMemory` if the tenant has too many files, or the host too little memory.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<HostPart, GpuError> {
        if bytes > LARGEST_SHARED {
            return Ok(HostPart { dma: self.file(bytes)?, offset: 0 });
        }
        let align = match bytes {
            HUGE_PAGE.. => HUGE_PAGE,
            BIG_PAGE.. => BIG_PAGE,
            _ => SMALL_PAGE,
        };
        let found = self.slabs.iter_mut().find_map(|slab| {
            let offset = slab.free.take(bytes, align)?;
            Some(HostPart { dma: Arc::clone(&slab.dma), offset })
        });
        if let Some(part) = found {
            return Ok(part);
        }
        let pinned = self.slabs.first().is_some_and(|slab| slab.dma.is_pinned());
        let grown = if pinned { FIRST_SLAB } else { FIRST_SLAB << (2 * self.slabs.len().min(8)) };
        let size = grown.min(LAST_SLAB).max(bytes.next_multiple_of(FIRST_SLAB));
        let dma = self.file(size)?;
        let mut free = FreeRanges::new(0, size);
        let offset = free.take(bytes, align).ok_or(GpuError::OutOfMemory { wanted: bytes, free: 0, limit: size })?;
        self.slabs.push(Slab { dma: Arc::clone(&dma), free, stuck: false });
        Ok(HostPart { dma, offset })
    }

    /// Makes a part of somebody else's memory file addressable; [`HostPool::give`] ends that. However many parts of a file there
    /// are, it costs one descriptor and one mapping of all of it. Of a file that is larger than any that a driver has made for many
    /// allocations each part has a mapping of its own: else a client could use up the process's addresses with files of which it
    /// imports a page each.
    ///
    /// # Errors
    /// `Unsupported` if the device cannot; `OutOfMemory` if the tenant has too many files, or the host too little memory.
    pub(crate) fn import(&mut self, file: &Arc<Memfd>, offset: u64, bytes: u64) -> Result<HostPart, GpuError> {
        let whole = file.bytes() <= LAST_SLAB || bytes == file.bytes();
        let same = |known: &&mut Imported| known.whole && Arc::ptr_eq(&known.dma.file, file);
        if let Some(known) = self.imported.iter_mut().find(same) {
            known.parts += 1;
            return Ok(HostPart { dma: Arc::clone(&known.dma), offset });
        }
        self.budget.charge_file()?;
        let backing = self.mmio.backing();
        let mapped = match whole {
            true => backing.map_dma(Arc::clone(file)),
            false => backing.map_dma_part(Arc::clone(file), offset, bytes),
        };
        let mapped = mapped.map_err(|error| {
            self.budget.refund_file();
            match error.kind() {
                io::ErrorKind::Unsupported => {
                    GpuError::Unsupported { what: "memory that another GPU shares with the host".into() }
                }
                _ => GpuError::OutOfMemory { wanted: bytes, free: 0, limit: file.bytes() },
            }
        });
        let dma = Arc::new(mapped?);
        self.imported.push(Imported { dma: Arc::clone(&dma), parts: 1, whole });
        Ok(HostPart { dma, offset })
    }

    /// A part of somebody else's file has no name any more; false if the file is none of these.
    fn forget(&mut self, dma: &Arc<DmaMemory>) -> bool {
        let Some(at) = self.imported.iter().position(|known| Arc::ptr_eq(&known.dma, dma)) else { return false };
        self.imported[at].parts -= 1;
        if self.imported[at].parts == 0 {
            let gone = self.imported.swap_remove(at);
            self.let_go(&gone.dma);
        }
        true
    }

    fn file(&self, bytes: u64) -> Result<Arc<DmaMemory>, GpuError> {
        self.budget.charge_file()?;
        self.mmio.backing().alloc_dma(bytes).map(Arc::new).map_err(|error| {
            self.budget.refund_file();
            log_limit::warn!(bytes, %error, "no host memory for the GPU");
            GpuError::OutOfMemory { wanted: bytes, free: 0, limit: bytes }
        })
    }

    /// Gives a part back. What the device has not let go of is never used again.
    pub(crate) fn give(&mut self, part: &HostPart, bytes: u64, let_go: Result<(), Stuck>) {
        let at = self.slabs.iter().position(|slab| Arc::ptr_eq(&slab.dma, &part.dma));
        if let Err(stuck) = let_go {
            log_limit::error!(bytes, %stuck, "host memory is lost until the device is reset");
            if let Some(at) = at {
                self.slabs[at].stuck = true;
            }
            return;
        }
        let Some(at) = at else {
            if !self.forget(&part.dma) {
                self.drop_file(&part.dma);
            }
            return;
        };
        let slab = &mut self.slabs[at];
        if scrub(&slab.dma, part.offset, bytes).is_ok() {
            slab.free.give(part.offset, bytes);
        }
        // One that is empty stays, for who allocates and frees in turn.
        let empty = |slab: &Slab| slab.free.is_whole(slab.dma.file.bytes());
        if self.slabs.iter().filter(|slab| empty(slab)).count() > 1 && empty(&self.slabs[at]) {
            let slab = self.slabs.remove(at);
            self.drop_file(&slab.dma);
        }
    }

    /// Gives a file of ours back, with its pages: the client may keep its descriptor, and whoever has made a page has to answer for it.
    fn drop_file(&self, dma: &DmaMemory) {
        // Pinned pages are a guest's own.
        if !dma.is_pinned()
            && let Err(error) = dma.file.punch(0, dma.file.bytes())
        {
            log_limit::warn!(%error, "pages of host memory stay as long as its client keeps them");
        }
        self.let_go(dma);
    }

    fn let_go(&self, dma: &DmaMemory) {
        self.mmio.backing().free_dma(dma.bus());
        self.budget.refund_file();
    }

    /// Ends the pool: nobody uses any of it any more, unless the device has not let go.
    pub(crate) fn dissolve(&mut self, let_go: Result<(), Stuck>) {
        for slab in std::mem::take(&mut self.slabs) {
            if let_go.is_ok() && !slab.stuck {
                self.drop_file(&slab.dma);
            }
        }
    }
}

/// Makes a part of a file read as zero, and gives its pages back to the host, unless they must stay.
fn scrub(dma: &DmaMemory, offset: u64, bytes: u64) -> io::Result<()> {
    if dma.is_pinned() || dma.file.punch(offset, bytes).is_err() {
        let whole = |value| usize::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
        dma.mapping.fill(whole(offset)?, whole(bytes)?, 0);
    }
    Ok(())
}
