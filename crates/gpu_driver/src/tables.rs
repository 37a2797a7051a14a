//! The memory of page tables: pages of VRAM, written through the BAR1 aperture.

use std::sync::Arc;

use gmmu::{BadAddress, PhysMem, TableMemory};
use gpu_spec::mmu::{Aperture, BIG_TABLE_BYTES, PhysAddr, TABLE_BYTES};

use crate::vram::{Run, Vram};

/// Pages taken from VRAM at once, bytes: fewer visits to the common allocator.
const CHUNK_BYTES: u64 = 64 << 10;

/// Tables of one address space.
///
/// A freed table may still be walked by the device until the next invalidation; it waits in `freed` until
/// [`Tables::settle`]. Page tables do not count against a client's memory limit, but against a bound of their own: sparse
/// mappings could else turn a little memory into gigabytes of tables.
#[derive(Debug)]
pub(crate) struct Tables {
    vram: Arc<Vram>,
    chunks: Vec<Run>,
    /// Most bytes of all chunks.
    bound: u64,
    bytes: u64,
    free_pages: Vec<u64>,
    free_small: Vec<u64>,
    freed: Vec<(u64, u64)>,
}

impl Tables {
    /// No tables yet, and never more than `bound` bytes of them.
    pub(crate) fn new(vram: Arc<Vram>, bound: u64) -> Tables {
        Tables {
            vram,
            chunks: Vec::new(),
            bound,
            bytes: 0,
            free_pages: Vec::new(),
            free_small: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Makes freed tables usable again: the device has forgotten them.
    pub(crate) fn settle(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.freed) {
            if bytes == BIG_TABLE_BYTES { self.free_small.push(at) } else { self.free_pages.push(at) }
        }
    }

    /// Gives up all tables and their memory; the caller knows whether the device may still walk them.
    pub(crate) fn take_runs(&mut self) -> Vec<Run> {
        self.free_pages.clear();
        self.free_small.clear();
        self.freed.clear();
        self.bytes = 0;
        std::mem::take(&mut self.chunks)
    }

    fn page(&mut self) -> Option<u64> {
        if let Some(page) = self.free_pages.pop() {
            return Some(page);
        }
        let bytes = if self.bytes == 0 { TABLE_BYTES * 4 } else { CHUNK_BYTES };
        if self.bytes + bytes > self.bound {
            return None;
        }
        let run = self.vram.take_run(bytes, TABLE_BYTES).or_else(|| self.vram.take_run(TABLE_BYTES, TABLE_BYTES))?;
        self.bytes += run.bytes;
        self.chunks.push(run);
        self.free_pages.extend((0..run.bytes / TABLE_BYTES).rev().map(|page| run.offset + page * TABLE_BYTES));
        self.free_pages.pop()
    }

    fn range(&self, at: PhysAddr, len: usize) -> Result<usize, BadAddress> {
        let whole = self.vram.backing().vram().len();
        let offset = usize::try_from(at.address).map_err(|_| BadAddress(at))?;
        let inside = at.aperture == Aperture::Vram && offset <= whole && len <= whole - offset;
        if inside { Ok(offset) } else { Err(BadAddress(at)) }
    }
}

impl PhysMem for Tables {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let offset = self.range(at, out.len())?;
        self.vram.backing().vram().read(offset, out);
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        let offset = self.range(at, data.len())?;
        self.vram.backing().vram().write(offset, data);
        Ok(())
    }
}

impl TableMemory for Tables {
    fn alloc(&mut self, bytes: u64) -> Option<PhysAddr> {
        let at = if bytes == BIG_TABLE_BYTES {
            if self.free_small.is_empty() {
                let page = self.page()?;
                self.free_small.extend((0..TABLE_BYTES / bytes).rev().map(|slot| page + slot * bytes));
            }
            self.free_small.pop()?
        } else {
            self.page()?
        };
        self.vram.backing().vram().fill(usize::try_from(at).ok()?, usize::try_from(bytes).ok()?, 0);
        Some(PhysAddr::vram(at))
    }

    fn free(&mut self, at: PhysAddr, bytes: u64) {
        self.freed.push((at.address, bytes));
    }
}
