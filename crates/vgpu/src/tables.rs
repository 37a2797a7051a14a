//! Memory for shadow tables: VRAM of the lease, in chunks.

use device_io::VramOffset;
use gmmu::{BadAddress, PhysMem, TableMemory};
use gpu_driver::{Lease, VramRange};
use gpu_spec::mmu::{Aperture, BIG_TABLE_BYTES, PhysAddr, TABLE_BYTES};
use std::sync::Arc;

/// Taken from the lease at once, bytes.
const CHUNK_BYTES: u64 = 256 << 10;
/// What the host keeps beside each table, at most: a copy of it, what of the guest's it shows, and where the guest has that.
const BESIDE_BYTES: u64 = 9 << 10;

/// Tables of all shadows of one guest. What is freed is used again after [`ShadowTables::settle`] only: the device may walk it
/// until it has forgotten old translations.
pub(crate) struct ShadowTables {
    lease: Arc<Lease>,
    chunks: Vec<VramRange>,
    /// Most bytes of all chunks.
    bound: u64,
    free_pages: Vec<u64>,
    free_small: Vec<u64>,
    freed: Vec<(u64, u64)>,
    /// Memory of the host's that is booked for what is kept beside tables: those that there is room for.
    booked: u64,
}

impl ShadowTables {
    pub(crate) fn new(lease: Arc<Lease>, bound: u64) -> ShadowTables {
        ShadowTables {
            lease,
            chunks: Vec::new(),
            bound,
            free_pages: Vec::new(),
            free_small: Vec::new(),
            freed: Vec::new(),
            booked: 0,
        }
    }

    /// Books what is kept beside so many tables more; false if that is too much.
    fn book(&mut self, tables: u64) -> bool {
        let bytes = tables * BESIDE_BYTES;
        let booked = self.lease.charge_bytes(bytes);
        self.booked += if booked { bytes } else { 0 };
        booked
    }

    /// The device has forgotten all translations that were changed.
    pub(crate) fn settle(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.freed) {
            if bytes == BIG_TABLE_BYTES { self.free_small.push(at) } else { self.free_pages.push(at) }
        }
    }

    /// The device may walk what was freed for ever: it is not used again.
    pub(crate) fn lose(&mut self) {
        self.freed.clear();
    }

    fn page(&mut self) -> Option<u64> {
        if let Some(page) = self.free_pages.pop() {
            return Some(page);
        }
        let held: u64 = self.chunks.iter().map(|chunk| chunk.bytes).sum();
        if held + CHUNK_BYTES > self.bound {
            return None;
        }
        let chunk = self.lease.take_vram(CHUNK_BYTES, TABLE_BYTES)?;
        if !self.book(CHUNK_BYTES / TABLE_BYTES) {
            self.lease.put_vram(chunk);
            return None;
        }
        self.chunks.push(chunk);
        self.free_pages.extend((0..chunk.bytes / TABLE_BYTES).rev().map(|page| chunk.offset + page * TABLE_BYTES));
        self.free_pages.pop()
    }

    fn offset(&self, at: PhysAddr, len: usize) -> Result<VramOffset, BadAddress> {
        let end = at.address.checked_add(len as u64).ok_or(BadAddress(at))?;
        let ours = |chunk: &VramRange| chunk.offset <= at.address && end <= chunk.offset + chunk.bytes;
        let inside = at.aperture == Aperture::Vram && self.chunks.iter().any(ours);
        if inside { Ok(VramOffset(at.address)) } else { Err(BadAddress(at)) }
    }
}

impl PhysMem for ShadowTables {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        self.lease.backing().read_vram(self.offset(at, out.len())?, out);
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        self.lease.backing().write_vram(self.offset(at, data.len())?, data);
        Ok(())
    }
}

impl TableMemory for ShadowTables {
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr> {
        let at = if bytes == BIG_TABLE_BYTES {
            if self.free_small.is_empty() {
                let page = self.page()?;
                if !self.book(TABLE_BYTES / bytes - 1) {
                    self.free_pages.push(page);
                    return None;
                }
                self.free_small.extend((0..TABLE_BYTES / bytes).rev().map(|slot| page + slot * bytes));
            }
            self.free_small.pop()?
        } else {
            self.page()?
        };
        self.lease.backing().fill_vram(VramOffset(at), bytes as usize, 0);
        Some(PhysAddr::vram(at))
    }

    fn free(&mut self, at: PhysAddr, bytes: u64) {
        self.freed.push((at.address, bytes));
    }
}

impl Drop for ShadowTables {
    fn drop(&mut self) {
        self.lease.refund_bytes(self.booked);
    }
}
