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

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use device_io::{DeviceBacking, VramOffset};
use gmmu::EditError;
use gpu::{AllocId, GpuError, LARGE_PAGE_BYTES, MAX_RANGE_BYTES, MIN_RANGE_BYTES, MapAccess, PAGE_BYTES, client_bytes};
use gpu_spec::mmu::{BIG_PAGE, PhysAddr, Rights};
use hostmem::HostRange;
use intervals::{FreeRanges, IntervalMap, Refused};

use crate::budget::Budget;
use crate::host::HostPart;
use crate::mmio::Stuck;
use crate::paging::{Hypercalls, Paging};
use crate::scheduling::Scheduler;
use crate::vram::{ClientVram, Run, Vram};

/// Most invalidations remembered one by one; more become one that covers all.
const MAX_PENDING: usize = 16;

/// What an allocation consists of.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Runs of VRAM, one after the other, and where the client's aperture shows them.
    Vram(Vec<Run>, Option<u64>),
    /// System memory.
    Host(HostPart),
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
            Backing::Host(part) => {
                part.pieces(range).into_iter().map(|(bus, bytes)| (PhysAddr::system(bus.0), bytes)).collect()
            }
            Backing::Vram(runs, _) => {
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

    /// What of VRAM is its own around an address.
    fn run(&self, at: u64) -> Range<usize> {
        let Backing::Vram(runs, _) = &self.backing else { return 0..0 };
        let run = runs.iter().find(|run| (run.offset..run.offset + run.bytes).contains(&at));
        run.map_or(0..0, |run| run.offset as usize..(run.offset + run.bytes) as usize)
    }

    /// Entries of the host's memory map that a range of it takes in a window, with a gap behind.
    fn map_entries(&self, range: Range<u64>) -> u32 {
        u32::try_from(self.pieces(range).len() + 1).unwrap_or(u32::MAX)
    }
}

/// A piece of an allocation, mapped.
#[derive(Clone, Debug)]
struct Mapped {
    id: AllocId,
    memory: Arc<Memory>,
    offset: u64,
    access: MapAccess,
}

impl Mapped {
    /// What begins `by` bytes behind its start.
    fn advance(&self, by: u64) -> Mapped {
        Mapped { offset: self.offset + by, ..self.clone() }
    }

    /// Entries of the host's memory map for the part `inside` of it, when it begins at `start`.
    fn map_entries(&self, start: u64, inside: Range<u64>) -> u32 {
        let part = self.offset + inside.start - start..self.offset + inside.end - start;
        if part.is_empty() { 0 } else { self.memory.map_entries(part) }
    }
}

/// A piece of memory as the processor reaches it.
pub(crate) enum Reachable<'a> {
    /// By plain loads and stores.
    Plain(HostRange<'a>),
    /// VRAM behind an aperture whose accesses are trapped.
    Vram { backing: &'a dyn DeviceBacking, at: u64, bytes: usize },
}

/// Bytes that go through a trapped aperture at once.
const TRAPPED_CHUNK: usize = 64 << 10;

impl Reachable<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Reachable::Plain(memory) => memory.len(),
            Reachable::Vram { bytes, .. } => *bytes,
        }
    }

    /// Copies from the program's memory, of the same length.
    pub(crate) fn copy_from(&self, src: HostRange<'_>) {
        match self {
            Reachable::Plain(memory) => memory.copy_from(src),
            Reachable::Vram { backing, at, bytes } => in_chunks(*bytes, |offset, buffer| {
                src.part(offset, buffer.len()).read(buffer);
                backing.write_vram(VramOffset(at + offset as u64), buffer);
            }),
        }
    }

    /// Copies to the program's memory, of the same length.
    pub(crate) fn copy_to(&self, dst: HostRange<'_>) {
        match self {
            Reachable::Plain(memory) => dst.copy_from(*memory),
            Reachable::Vram { backing, at, bytes } => in_chunks(*bytes, |offset, buffer| {
                backing.read_vram(VramOffset(at + offset as u64), buffer);
                dst.part(offset, buffer.len()).write(buffer);
            }),
        }
    }
}

/// Calls `f` with each offset and a buffer for what is there.
fn in_chunks(bytes: usize, mut f: impl FnMut(usize, &mut [u8])) {
    let mut buffer = vec![0; bytes.min(TRAPPED_CHUNK)];
    for offset in (0..bytes).step_by(TRAPPED_CHUNK) {
        let len = (bytes - offset).min(TRAPPED_CHUNK);
        f(offset, &mut buffer[..len]);
    }
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
    vram: ClientVram,
    budget: Arc<Budget>,
    /// Entries of the host's memory map that are charged to the budget for this space.
    map_entries: u32,
    paging: Paging,
    lo: u64,
    bytes: u64,
    maps: IntervalMap<Mapped>,
    pub(crate) allocs: HashMap<AllocId, Allocation>,
    /// Module variables, and what else of the driver's own is within reach of kernels, by address.
    variables: IntervalMap<Arc<Memory>>,
    modules: FreeRanges,
    private: FreeRanges,
    private_start: u64,
    /// Ranges whose old translations the device may still use.
    pending: Vec<Range<u64>>,
}

impl Space {
    /// An empty address space for `bytes` at `lo`; `table_bound` bounds its page tables.
    pub(crate) fn new(
        vram: &ClientVram,
        hypercalls: Option<&Arc<Hypercalls>>,
        budget: &Arc<Budget>,
        (lo, bytes): (u64, u64),
        table_bound: u64,
    ) -> Result<Space, GpuError> {
        let end = lo.checked_add(bytes).filter(|end| *end <= 1 << 47);
        let whole = lo.is_multiple_of(LARGE_PAGE_BYTES) && bytes.is_multiple_of(LARGE_PAGE_BYTES);
        let Some(end) = end.filter(|_| whole && lo > 0 && (MIN_RANGE_BYTES..=MAX_RANGE_BYTES).contains(&bytes)) else {
            return Err(invalid(format!("address range {lo:#x}+{bytes:#x}")));
        };
        let modules = lo + client_bytes(bytes);
        let private = modules + (end - modules) / 2 / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
        let paging =
            Paging::new(vram, hypercalls, table_bound, (lo, bytes)).map_err(|error| edit_error(error, vram))?;
        Ok(Space {
            vram: vram.clone(),
            budget: Arc::clone(budget),
            map_entries: 0,
            paging,
            lo,
            bytes,
            maps: IntervalMap::new(),
            allocs: HashMap::new(),
            variables: IntervalMap::new(),
            modules: FreeRanges::new(modules, private - modules),
            private: FreeRanges::new(private, end - private),
            private_start: private,
            pending: Vec::new(),
        })
    }

    /// The root of the page tables.
    pub(crate) fn root(&self) -> PhysAddr {
        self.paging.root()
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
        let range = at..at + bytes;
        if self.maps.overlapping(range.clone()).next().is_some() {
            return Err(invalid(format!("addresses {at:#x}+{bytes:#x} are mapped already")));
        }
        let rights = Rights { read_only: access == MapAccess::Read, ..Rights::default() };
        self.enter(at, &memory, offset..offset + bytes, rights)?;
        disjoint(self.maps.insert(range, Mapped { id, memory, offset, access }));
        if let Some(alloc) = self.allocs.get_mut(&id) {
            alloc.mapped += 1;
        }
        Ok(())
    }

    /// Removes the client's mappings in a range.
    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), GpuError> {
        self.check_client_range(at, bytes)?;
        let range = at..at + bytes;
        let (mut before, mut after) = (0u32, 0u32);
        for (whole, mapped) in self.maps.overlapping(range.clone()) {
            let count = |part| mapped.map_entries(whole.start, part);
            before = before.saturating_add(count(whole.clone()));
            after = after.saturating_add(count(whole.start..at.max(whole.start)));
            after = after.saturating_add(count(range.end.min(whole.end)..whole.end));
        }
        if before == 0 {
            return Ok(());
        }
        // A hole in the middle of a mapping makes more entries; that is seen before anything has changed.
        self.charge_maps(after.saturating_sub(before))?;
        if let Err(error) = self.leave(at, bytes) {
            self.refund_maps(after.saturating_sub(before));
            return Err(error);
        }
        self.refund_maps(before.saturating_sub(after));
        for cut in self.maps.cut_with(range, Mapped::advance) {
            if let Some(alloc) = self.allocs.get_mut(&cut.value.id) {
                alloc.mapped = alloc.mapped + cut.remainders() as u32 - 1;
            }
        }
        Ok(())
    }

    /// All ranges that the client has mapped; those that touch are one.
    fn mapped(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (range, _) in self.maps.iter() {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges
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
    pub(crate) fn map_for_driver(&mut self, memory: &Arc<Memory>, private: bool) -> Result<u64, GpuError> {
        let area = if private { &mut self.private } else { &mut self.modules };
        let align = if memory.bytes >= LARGE_PAGE_BYTES { LARGE_PAGE_BYTES } else { BIG_PAGE };
        let Some(at) = area.take(memory.bytes, align) else {
            let limit = self.bytes - client_bytes(self.bytes);
            return Err(GpuError::TooMany { what: "bytes of modules and queues".into(), limit });
        };
        if let Err(error) = self.enter(at, memory, 0..memory.bytes, Rights::default()) {
            let area = if private { &mut self.private } else { &mut self.modules };
            area.give(at, memory.bytes);
            return Err(error);
        }
        if !private {
            disjoint(self.variables.insert(at..at + memory.bytes, Arc::clone(memory)));
        }
        Ok(at)
    }

    /// Undoes [`Space::map_for_driver`].
    pub(crate) fn unmap_for_driver(&mut self, at: u64, memory: &Memory) {
        let bytes = memory.bytes;
        self.refund_maps(memory.map_entries(0..bytes));
        // Whole mappings go as they came, which takes no new tables and cannot fail.
        let gone = self.leave(at, bytes).is_ok();
        debug_assert!(gone, "a whole mapping is removed");
        let area = if at >= self.private_start { &mut self.private } else { &mut self.modules };
        area.give(at, bytes);
        self.variables.remove(at);
    }

    /// Writes page table entries.
    fn enter(&mut self, at: u64, memory: &Memory, part: Range<u64>, rights: Rights) -> Result<(), GpuError> {
        let mut va = at;
        let bytes = part.end - part.start;
        let entries = memory.map_entries(part.clone());
        self.charge_maps(entries)?;
        for (phys, bytes) in memory.pieces(part) {
            if let Err(error) = self.paging.map(va, bytes, phys, rights) {
                if va > at {
                    // Whole pieces go as they came.
                    let _ = self.paging.unmap(at, va - at);
                    self.remember(at..va);
                }
                self.refund_maps(entries);
                return Err(edit_error(error, &self.vram));
            }
            va += bytes;
        }
        self.remember(at..at + bytes);
        Ok(())
    }

    fn charge_maps(&mut self, entries: u32) -> Result<(), GpuError> {
        self.budget.charge_maps(entries)?;
        self.map_entries += entries;
        Ok(())
    }

    fn refund_maps(&mut self, entries: u32) {
        self.budget.refund_maps(entries);
        self.map_entries -= entries;
    }

    fn leave(&mut self, at: u64, bytes: u64) -> Result<(), GpuError> {
        self.remember(at..at + bytes);
        self.paging.unmap(at, bytes).map_err(|error| edit_error(error, &self.vram))
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

    /// Makes the device follow what has changed since it was last told.
    pub(crate) fn publish(&mut self, scheduler: &Scheduler) -> Result<(), Stuck> {
        let pending = std::mem::take(&mut self.pending);
        let published = self.paging.publish(scheduler, &pending);
        if published.is_err() {
            // Not forgotten yet: the next attempt must not think so.
            pending.into_iter().for_each(|range| self.remember(range));
        }
        published
    }

    /// Calls `f` for each piece of memory behind a range of the client's addresses or of module
    /// variables, in order: offset in the range, and the memory. Nothing is called if a byte is not mapped, or not
    /// writable where `write` is asked for.
    pub(crate) fn for_each(
        &self,
        at: u64,
        bytes: u64,
        write: bool,
        mut f: impl FnMut(usize, Reachable<'_>),
    ) -> Result<(), GpuError> {
        let end = at.checked_add(bytes).ok_or_else(|| invalid("the range wraps around".into()))?;
        let mut parts: Vec<(u64, &Memory, Range<u64>)> = Vec::new();
        let mut va = at;
        while va < end {
            let (around, memory, first) = match self.maps.get(va) {
                Some((around, m)) if !write || m.access == MapAccess::ReadWrite => (around, &m.memory, m.offset),
                Some(_) => return Err(invalid(format!("address {va:#x} is mapped for reading only"))),
                None => match self.variables.get(va) {
                    Some((around, memory)) => (around, memory, 0),
                    None => return Err(invalid(format!("address {va:#x} is not mapped"))),
                },
            };
            let stop = end.min(around.end);
            parts.push((va, memory, first + va - around.start..first + stop - around.start));
            va = stop;
        }
        for (va, memory, range) in parts {
            let mut done = (va - at) as usize;
            if let Backing::Host(part) = &memory.backing {
                let (offset, bytes) = (part.offset + range.start - part.dma.begins(), range.end - range.start);
                f(done, Reachable::Plain(part.dma.mapping.range(offset as usize, bytes as usize)));
                continue;
            }
            let backing = self.vram.backing();
            for (phys, bytes) in memory.pieces(range) {
                let (at, bytes) = (phys.address as usize, bytes as usize);
                match backing.vram_mapping() {
                    Some(vram) if write => {
                        for piece in vram.pieces_to_write(at, bytes, memory.run(phys.address)) {
                            let from = piece.address() - vram.address() - at;
                            f(done + from, Reachable::Plain(piece));
                        }
                    }
                    Some(vram) => f(done, Reachable::Plain(vram.range(at, bytes))),
                    None => f(done, Reachable::Vram { backing: backing.as_ref(), at: phys.address, bytes }),
                }
                done += bytes;
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
        match self.maps.gaps(at..end).next() {
            None => Ok(()),
            Some(gap) => Err(invalid(format!("address {:#x} is not mapped", gap.start))),
        }
    }

    /// Takes everything away from the device.
    pub(crate) fn cut_off(&mut self, scheduler: &Scheduler) -> Result<(), Stuck> {
        let mapped = self.mapped();
        self.paging.cut_off(scheduler, &mapped)
    }

    /// Ends the address space: all the memory it held, client's allocations and tables. The device must not use it any
    /// more.
    pub(crate) fn dissolve(&mut self) -> (Vec<Arc<Memory>>, Vec<Run>) {
        self.maps.clear();
        self.variables.clear();
        self.refund_maps(self.map_entries);
        let memory = self.allocs.drain().map(|(_, alloc)| alloc.memory).collect();
        (memory, self.paging.take_runs())
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

/// An insertion where there is room: the caller has looked, or has it from an allocator.
fn disjoint(inserted: Result<(), Refused>) {
    assert_eq!(inserted, Ok(()), "ranges of an address space overlap");
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
