//! The memory of page tables: pages of VRAM, written through the BAR1 aperture.
//!
//! An edit reads what it changes. Where each access to the aperture is trapped there is a copy of all tables to read from; only
//! the driver writes tables, so the two are the same.

use std::collections::HashMap;
use std::ops::Range;

use device_io::VramOffset;
use gmmu::{BadAddress, PhysMem, TableMemory};
use gpu::VramUse;
use gpu_spec::mmu::{Aperture, BIG_TABLE_BYTES, PhysAddr, TABLE_BYTES};
use parking_lot::Mutex;

use crate::vram::{ClientVram, Run};

/// Pages taken from VRAM at once, bytes: fewer visits to the common allocator.
const CHUNK_BYTES: u64 = 64 << 10;

/// Tables of one address space.
///
/// A freed table may still be walked by the device until the next invalidation; it waits in `freed` until
/// [`Tables::settle`]. Page tables do not count against a client's memory limit, but against a bound of their own: sparse
/// mappings could else turn a little memory into gigabytes of tables.
#[derive(Debug)]
pub(crate) struct Tables {
    vram: ClientVram,
    chunks: Vec<Run>,
    /// Most bytes of all chunks.
    bound: u64,
    bytes: u64,
    free_pages: Vec<u64>,
    free_small: Vec<u64>,
    freed: Vec<(u64, u64)>,
    /// What the pages of tables hold, by page, where VRAM is not mapped. A page without a copy is zero.
    copies: Option<Mutex<HashMap<u64, Box<PageCopy>>>>,
}

/// A page, in the driver's memory.
type PageCopy = [u8; TABLE_BYTES as usize];

impl Tables {
    /// No tables yet, and never more than `bound` bytes of them.
    pub(crate) fn new(vram: ClientVram, bound: u64) -> Tables {
        let copies = vram.backing().vram_mapping().is_none().then(Mutex::default);
        Tables {
            vram,
            chunks: Vec::new(),
            bound,
            bytes: 0,
            free_pages: Vec::new(),
            free_small: Vec::new(),
            freed: Vec::new(),
            copies,
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
        if let Some(copies) = &self.copies {
            copies.lock().clear();
        }
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
        let run =
            self.vram.take_run(bytes, TABLE_BYTES).or_else(|_| self.vram.take_run(TABLE_BYTES, TABLE_BYTES)).ok()?;
        self.bytes += run.bytes;
        self.chunks.push(run);
        self.free_pages.extend((0..run.bytes / TABLE_BYTES).rev().map(|page| run.offset + page * TABLE_BYTES));
        self.free_pages.pop()
    }

    /// Makes the copy of a table zero, if there are copies; true if it was.
    fn is_known_zero(&self, at: PhysAddr, bytes: usize) -> bool {
        let Some((copies, (page, within))) = self.copies.as_ref().zip(in_page(at, bytes).ok()) else { return false };
        let mut copies = copies.lock();
        let Some(copy) = copies.get_mut(&page) else { return true };
        let was_zero = copy[within.clone()].iter().all(|byte| *byte == 0);
        copy[within].fill(0);
        was_zero
    }

    fn offset(&self, at: PhysAddr, len: usize) -> Result<VramOffset, BadAddress> {
        let offset = VramOffset(at.address);
        let inside = at.aperture == Aperture::Vram && self.vram.backing().has_vram(offset, len);
        if inside { Ok(offset) } else { Err(BadAddress(at)) }
    }
}

impl Drop for Tables {
    /// Of what is still there the device has never heard.
    fn drop(&mut self) {
        self.vram.put(&self.chunks, VramUse::Upkeep);
    }
}

impl PhysMem for Tables {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let offset = self.offset(at, out.len())?;
        match &self.copies {
            Some(copies) => {
                let (page, within) = in_page(at, out.len())?;
                match copies.lock().get(&page) {
                    Some(copy) => out.copy_from_slice(&copy[within]),
                    None => out.fill(0),
                }
            }
            None => self.vram.backing().read_vram(offset, out),
        }
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        let offset = self.offset(at, data.len())?;
        if let Some(copies) = &self.copies {
            let (page, within) = in_page(at, data.len())?;
            let mut copies = copies.lock();
            copies.entry(page).or_insert_with(|| Box::new([0; TABLE_BYTES as usize]))[within].copy_from_slice(data);
        }
        self.vram.backing().write_vram(offset, data);
        Ok(())
    }
}

/// The page that a range lies in, and where in it.
fn in_page(at: PhysAddr, bytes: usize) -> Result<(u64, Range<usize>), BadAddress> {
    let start = (at.address % TABLE_BYTES) as usize;
    let within = start..start + bytes;
    if within.end > TABLE_BYTES as usize { Err(BadAddress(at)) } else { Ok((at.address / TABLE_BYTES, within)) }
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
        let (at, bytes) = (PhysAddr::vram(at), usize::try_from(bytes).ok()?);
        if !self.is_known_zero(at, bytes) {
            self.vram.backing().fill_vram(VramOffset(at.address), bytes, 0);
        }
        Some(at)
    }

    fn free(&mut self, at: PhysAddr, bytes: u64) {
        self.freed.push((at.address, bytes));
    }
}
