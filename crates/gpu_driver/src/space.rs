//! A client's GPU address space: page tables, what is mapped where, and the memory behind it.
//!
//! ```text
//!  lo            lo + client_bytes               modules       private          lo + bytes
//!  |  the client's own mappings  |  module variables (first half)  |  second half  |
//!  |<---------------- commands may name these addresses --------->|  semaphores, channels, programs:
//! ```
//!
//! The private part is out of reach of commands, but not of kernels: the device has one view of an address space. A kernel
//! that writes there destroys the queues of its own client; channels have no privileges that could be gained that way.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use device_io::DmaMemory;
use gmmu::{AddressSpace, EditError, PhysMem};
use gpu::{AllocId, GpuError, LARGE_PAGE_BYTES, MAX_RANGE_BYTES, MIN_RANGE_BYTES, MapAccess, PAGE_BYTES, client_bytes};
use gpu_spec::mmu::{BIG_PAGE, PhysAddr, Rights};
use hostmem::HostRange;

use crate::extents::Extents;
use crate::mmio::Lost;
use crate::tables::Tables;
use crate::vram::{Run, Vram};

/// Most invalidations remembered one by one; more become one that covers all.
const MAX_PENDING: usize = 16;

/// What an allocation consists of.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Runs of VRAM, one after the other.
    Vram(Vec<Run>),
    /// System memory.
    Host(DmaMemory),
}

/// Memory, wherever it lies.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    pub(crate) backing: Backing,
}

impl Memory {
    /// The pieces that make up a range of it: physical address and length.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<(PhysAddr, u64)> {
        match &self.backing {
            Backing::Host(dma) => vec![(PhysAddr::system(dma.bus.0 + range.start), range.end - range.start)],
            Backing::Vram(runs) => {
                let mut start = 0;
                let mut pieces = Vec::new();
                for run in runs {
                    let (from, to) = (range.start.max(start), range.end.min(start + run.bytes));
                    if from < to {
                        pieces.push((PhysAddr::vram(run.offset + from - start), to - from));
                    }
                    start += run.bytes;
                }
                pieces
            }
        }
    }
}

/// A piece of an allocation, mapped.
#[derive(Clone, Debug)]
struct Mapped {
    bytes: u64,
    id: AllocId,
    memory: Arc<Memory>,
    offset: u64,
    access: MapAccess,
}

/// An allocation the client named.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) memory: Arc<Memory>,
    /// Mappings that refer to it.
    mapped: u32,
}

/// The address space of one client.
#[derive(Debug)]
pub(crate) struct Space {
    vram: Arc<Vram>,
    tables: Tables,
    pages: AddressSpace,
    lo: u64,
    bytes: u64,
    maps: BTreeMap<u64, Mapped>,
    pub(crate) allocs: HashMap<AllocId, Allocation>,
    /// Module variables, and what else of the driver's own is within reach of kernels, by address.
    variables: BTreeMap<u64, Arc<Memory>>,
    modules: Extents,
    private: Extents,
    private_start: u64,
    /// Ranges whose old translations the device may still use.
    pending: Vec<Range<u64>>,
}

impl Space {
    /// An empty address space for `bytes` at `lo`; `table_bound` bounds its page tables.
    pub(crate) fn new(vram: &Arc<Vram>, lo: u64, bytes: u64, table_bound: u64) -> Result<Space, GpuError> {
        let end = lo.checked_add(bytes).filter(|end| *end <= 1 << 47);
        let whole = lo.is_multiple_of(LARGE_PAGE_BYTES) && bytes.is_multiple_of(LARGE_PAGE_BYTES);
        let Some(end) = end.filter(|_| whole && lo > 0 && (MIN_RANGE_BYTES..=MAX_RANGE_BYTES).contains(&bytes)) else {
            return Err(invalid(format!("address range {lo:#x}+{bytes:#x}")));
        };
        let modules = lo + client_bytes(bytes);
        let private = modules + (end - modules) / 2 / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
        let mut tables = Tables::new(Arc::clone(vram), table_bound);
        let pages = AddressSpace::create(&mut tables).map_err(|error| edit_error(error, vram))?;
        Ok(Space {
            vram: Arc::clone(vram),
            tables,
            pages,
            lo,
            bytes,
            maps: BTreeMap::new(),
            allocs: HashMap::new(),
            variables: BTreeMap::new(),
            modules: Extents::new(modules, private - modules),
            private: Extents::new(private, end - private),
            private_start: private,
            pending: Vec::new(),
        })
    }

    /// The root of the page tables.
    pub(crate) fn root(&self) -> PhysAddr {
        self.pages.root()
    }

    /// First address, and the number of bytes, that commands may name: everything but the private part.
    pub(crate) fn visible(&self) -> (u64, u64) {
        (self.lo, self.private_start - self.lo)
    }

    /// First address and size of the whole announced range.
    pub(crate) fn announced(&self) -> (u64, u64) {
        (self.lo, self.bytes)
    }

    /// Maps part of an allocation for the client.
    pub(crate) fn map(
        &mut self,
        at: u64,
        id: AllocId,
        offset: u64,
        bytes: u64,
        access: MapAccess,
    ) -> Result<(), GpuError> {
        self.check_client_range(at, bytes)?;
        let alloc = self.allocs.get(&id).ok_or_else(|| unknown("allocation", id.0))?;
        let memory = Arc::clone(&alloc.memory);
        if !offset.is_multiple_of(PAGE_BYTES) || offset.checked_add(bytes).is_none_or(|end| end > memory.bytes) {
            return Err(invalid(format!(
                "{offset:#x}+{bytes:#x} is no part of an allocation of {:#x} bytes",
                memory.bytes
            )));
        }
        if self.overlapping(at, bytes).next().is_some() {
            return Err(invalid(format!("addresses {at:#x}+{bytes:#x} are mapped already")));
        }
        let rights = Rights { read_only: access == MapAccess::Read, ..Rights::default() };
        self.enter(at, &memory, offset..offset + bytes, rights)?;
        self.maps.insert(at, Mapped { bytes, id, memory, offset, access });
        if let Some(alloc) = self.allocs.get_mut(&id) {
            alloc.mapped += 1;
        }
        Ok(())
    }

    /// Removes the client's mappings in a range.
    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), GpuError> {
        self.check_client_range(at, bytes)?;
        let touched: Vec<u64> = self.overlapping(at, bytes).map(|(start, _)| *start).collect();
        if touched.is_empty() {
            return Ok(());
        }
        self.leave(at, bytes)?;
        let end = at + bytes;
        for start in touched {
            let Some(mapped) = self.maps.remove(&start) else { continue };
            let mut pieces = 0;
            if start < at {
                self.maps.insert(start, Mapped { bytes: at - start, ..mapped.clone() });
                pieces += 1;
            }
            if start + mapped.bytes > end {
                let (bytes, offset) = (start + mapped.bytes - end, mapped.offset + (end - start));
                self.maps.insert(end, Mapped { bytes, offset, ..mapped.clone() });
                pieces += 1;
            }
            if let Some(alloc) = self.allocs.get_mut(&mapped.id) {
                alloc.mapped = alloc.mapped + pieces - 1;
            }
        }
        Ok(())
    }

    /// Number of mappings.
    pub(crate) fn mappings(&self) -> usize {
        self.maps.len()
    }

    /// Names an allocation.
    pub(crate) fn add_alloc(&mut self, id: AllocId, memory: Memory) {
        self.allocs.insert(id, Allocation { memory: Arc::new(memory), mapped: 0 });
    }

    /// Forgets an allocation that is not mapped, and gives its memory, which the device may still reach until the pending
    /// invalidations are done.
    pub(crate) fn remove_alloc(&mut self, id: AllocId) -> Result<Arc<Memory>, GpuError> {
        let alloc = self.allocs.get(&id).ok_or_else(|| unknown("allocation", id.0))?;
        if alloc.mapped > 0 {
            return Err(invalid(format!("allocation {} is still mapped", id.0)));
        }
        let alloc = self.allocs.remove(&id).ok_or_else(|| unknown("allocation", id.0))?;
        Ok(alloc.memory)
    }

    /// Maps memory in the driver's part: module variables (reachable for kernels) or private structures.
    pub(crate) fn map_own(&mut self, memory: &Arc<Memory>, private: bool) -> Result<u64, GpuError> {
        let area = if private { &mut self.private } else { &mut self.modules };
        let align = if memory.bytes >= LARGE_PAGE_BYTES { LARGE_PAGE_BYTES } else { BIG_PAGE };
        let Some(at) = area.take(memory.bytes, align) else {
            let limit = self.bytes - client_bytes(self.bytes);
            return Err(GpuError::TooMany { what: "bytes of modules and queues".into(), limit });
        };
        if let Err(error) = self.enter(at, memory, 0..memory.bytes, Rights::default()) {
            let area = if private { &mut self.private } else { &mut self.modules };
            area.put(at, memory.bytes);
            return Err(error);
        }
        if !private {
            self.variables.insert(at, Arc::clone(memory));
        }
        Ok(at)
    }

    /// Undoes [`Space::map_own`].
    pub(crate) fn unmap_own(&mut self, at: u64, bytes: u64) {
        // Whole mappings go as they came, which takes no new tables and cannot fail.
        let gone = self.leave(at, bytes).is_ok();
        debug_assert!(gone, "a whole mapping is removed");
        let area = if at >= self.private_start { &mut self.private } else { &mut self.modules };
        area.put(at, bytes);
        self.variables.remove(&at);
    }

    /// Writes page table entries.
    fn enter(&mut self, at: u64, memory: &Memory, part: Range<u64>, rights: Rights) -> Result<(), GpuError> {
        let mut va = at;
        let bytes = part.end - part.start;
        for (phys, bytes) in memory.pieces(part) {
            if let Err(error) = self.pages.map(&mut self.tables, va, bytes, phys, rights) {
                if va > at {
                    // Whole pieces go as they came.
                    let _ = self.pages.unmap(&mut self.tables, at, va - at);
                    self.remember(at..va);
                }
                return Err(edit_error(error, &self.vram));
            }
            va += bytes;
        }
        self.remember(at..at + bytes);
        Ok(())
    }

    fn leave(&mut self, at: u64, bytes: u64) -> Result<(), GpuError> {
        self.remember(at..at + bytes);
        self.pages.unmap(&mut self.tables, at, bytes).map_err(|error| edit_error(error, &self.vram))
    }

    /// Adds a range to the next invalidation.
    fn remember(&mut self, range: Range<u64>) {
        if let Some(last) = self.pending.last_mut()
            && range.start <= last.end
            && last.start <= range.end
        {
            *last = last.start.min(range.start)..last.end.max(range.end);
            return;
        }
        self.pending.push(range);
        if self.pending.len() > MAX_PENDING {
            let start = self.pending.iter().map(|r| r.start).min().unwrap_or(0);
            let end = self.pending.iter().map(|r| r.end).max().unwrap_or(0);
            self.pending.clear();
            self.pending.push(start..end);
        }
    }

    /// Takes the ranges to be invalidated; [`Space::settle`] must follow when the device has done so.
    pub(crate) fn take_pending(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.pending)
    }

    /// The device has forgotten all translations that were changed.
    pub(crate) fn settle(&mut self) {
        self.tables.settle();
    }

    /// Calls `f` for each piece of host-addressable memory behind a range of the client's addresses or of module
    /// variables, in order: offset in the range, and the memory. Nothing is called if a byte is not mapped, or not
    /// writable where `write` is asked for.
    pub(crate) fn for_each(
        &self,
        at: u64,
        bytes: u64,
        write: bool,
        mut f: impl FnMut(usize, HostRange),
    ) -> Result<(), GpuError> {
        let end = at.checked_add(bytes).ok_or_else(|| invalid("the range wraps around".into()))?;
        let mut parts: Vec<(u64, &Memory, Range<u64>)> = Vec::new();
        let mut va = at;
        while va < end {
            let own = self.maps.range(..=va).next_back().filter(|(start, m)| va < *start + m.bytes);
            let (start, memory, first, length) = match own {
                Some((start, m)) if !write || m.access == MapAccess::ReadWrite => {
                    (*start, &m.memory, m.offset, m.bytes)
                }
                Some(_) => return Err(invalid(format!("address {va:#x} is mapped for reading only"))),
                None => match self.variables.range(..=va).next_back().filter(|(start, m)| va < *start + m.bytes) {
                    Some((start, memory)) => (*start, memory, 0, memory.bytes),
                    None => return Err(invalid(format!("address {va:#x} is not mapped"))),
                },
            };
            let stop = end.min(start + length);
            parts.push((va, memory, first + va - start..first + stop - start));
            va = stop;
        }
        for (va, memory, range) in parts {
            let mut done = (va - at) as usize;
            for (phys, bytes) in memory.pieces(range) {
                let (mapping, offset) = match &memory.backing {
                    Backing::Vram(_) => (self.vram.backing().vram(), phys.address),
                    Backing::Host(dma) => (&dma.mapping, phys.address - dma.bus.0),
                };
                f(done, mapping.range(offset as usize, bytes as usize));
                done += bytes as usize;
            }
        }
        Ok(())
    }

    /// Whether the client has mapped all of a range.
    ///
    /// # Errors
    /// The first address where it has not.
    pub(crate) fn check_mapped(&self, at: u64, bytes: u64) -> Result<(), GpuError> {
        let end = at.checked_add(bytes).ok_or_else(|| invalid("the range wraps around".into()))?;
        let mut va = at;
        while va < end {
            let mapped = self.maps.range(..=va).next_back().map(|(start, m)| start + m.bytes);
            va = mapped.filter(|end| va < *end).ok_or_else(|| invalid(format!("address {va:#x} is not mapped")))?;
        }
        Ok(())
    }

    /// Makes the root of the page tables empty: after the next invalidation the device reaches nothing any more.
    pub(crate) fn cut_off(&mut self) -> Result<(), Lost> {
        let root = self.pages.root();
        self.tables.write(root, &[0; 32]).map_err(|_| Lost("page tables are damaged"))
    }

    /// Ends the address space: all the memory it held, client's allocations and tables. The device must not use it any
    /// more.
    pub(crate) fn dissolve(&mut self) -> (Vec<Arc<Memory>>, Vec<Run>) {
        self.maps.clear();
        self.variables.clear();
        let memory = self.allocs.drain().map(|(_, alloc)| alloc.memory).collect();
        (memory, self.tables.take_runs())
    }

    fn overlapping(&self, at: u64, bytes: u64) -> impl Iterator<Item = (&u64, &Mapped)> {
        let end = at + bytes;
        let before = self.maps.range(..at).next_back().filter(move |(start, m)| *start + m.bytes > at);
        before.into_iter().chain(self.maps.range(at..end))
    }

    fn check_client_range(&self, at: u64, bytes: u64) -> Result<(), GpuError> {
        let room = client_bytes(self.bytes);
        let inside = at >= self.lo && at - self.lo <= room && bytes <= room - (at - self.lo);
        if bytes == 0 || !at.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) || !inside {
            return Err(invalid(format!("addresses {at:#x}+{bytes:#x} are not whole pages of the client's range")));
        }
        Ok(())
    }
}

/// A value that cannot be.
pub(crate) fn invalid(what: String) -> GpuError {
    GpuError::InvalidValue { what }
}

/// A name that means nothing, or is taken.
pub(crate) fn unknown(what: &str, id: u32) -> GpuError {
    GpuError::InvalidId { what: what.to_owned(), id: id.into() }
}

fn edit_error(error: EditError, vram: &Vram) -> GpuError {
    match error {
        EditError::NoMemory => GpuError::OutOfMemory { wanted: PAGE_BYTES, free: vram.free(), limit: vram.total() },
        other => invalid(other.to_string()),
    }
}
