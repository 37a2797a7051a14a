//! Physical memory: VRAM and system memory, by the addresses that page tables and registers use.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_io::{BusAddr, DmaMemory};
use gmmu::{BadAddress, PhysMem};
use gpu_spec::mmu::{Aperture, HUGE_PAGE, PhysAddr};
use hostmem::{Mapping, Memfd};
use intervals::{Cut, IntervalMap, Refused};
use parking_lot::RwLock;

/// The first bus address handed out; below it lies nothing, so that small wrong addresses fail.
const FIRST_BUS: u64 = 1 << 32;
/// Page tables name no bus address beyond: 46 bits of pages.
const BUS_END: u64 = 1 << 58;
/// Number of the file that is all of VRAM, but for what is lent.
const WHOLE: u64 = 1;

/// All memory that the device can reach.
#[derive(Debug)]
pub(crate) struct Memory {
    vram: Arc<Memfd>,
    /// VRAM, linear; what is lent is shown in its place.
    vram_mapping: Arc<Mapping>,
    /// Ranges of VRAM that are parts of others' files. Guards the map alone, as the next one does; the memory itself is shared by
    /// nature.
    lent: RwLock<IntervalMap<Lent>>,
    /// System memory by bus address.
    system: RwLock<IntervalMap<System>>,
    next_bus: AtomicU64,
    next_number: AtomicU64,
}

#[derive(Clone, Debug)]
struct Lent {
    file: Arc<Memfd>,
    number: u64,
    /// Where in the file it begins.
    file_offset: u64,
}

#[derive(Clone, Debug)]
struct System {
    file: Arc<Memfd>,
    number: u64,
    /// Where in the file it begins.
    file_offset: u64,
    mapping: Arc<Mapping>,
}

/// A piece of a memory file that is contiguous physical memory.
#[derive(Debug)]
pub(crate) struct FilePiece {
    pub(crate) file: Arc<Memfd>,
    /// No other file has it, nor will.
    pub(crate) number: u64,
    pub(crate) offset: u64,
    /// Bytes from there on that are in this file.
    pub(crate) bytes: u64,
}

impl Memory {
    pub(crate) fn new(vram_bytes: u64) -> io::Result<Memory> {
        let vram = Arc::new(Memfd::create("sundial-vram", vram_bytes)?);
        let vram_mapping = Arc::new(vram.map()?);
        Ok(Memory {
            vram,
            vram_mapping,
            lent: RwLock::default(),
            system: RwLock::default(),
            next_bus: AtomicU64::new(FIRST_BUS),
            next_number: AtomicU64::new(WHOLE + 1),
        })
    }

    pub(crate) fn vram(&self) -> &Arc<Mapping> {
        &self.vram_mapping
    }

    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    fn vram_range(&self, offset: u64, bytes: u64) -> io::Result<Range<u64>> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.vram.bytes());
        end.map(|end| offset..end).ok_or_else(|| invalid("range outside VRAM"))
    }

    /// Gives whole pages of VRAM back to the host.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let range = self.vram_range(offset, bytes)?;
        let mut at = range.start;
        while let Some(piece) = self.vram_file(at).filter(|_| at < range.end) {
            let bytes = piece.bytes.min(range.end - at);
            piece.file.punch(piece.offset, bytes)?;
            at += bytes;
        }
        Ok(())
    }

    /// A range that can be lent.
    fn lendable(&self, offset: u64, bytes: u64) -> io::Result<Range<u64>> {
        if bytes == 0 || !offset.is_multiple_of(HUGE_PAGE) || !bytes.is_multiple_of(HUGE_PAGE) {
            return Err(invalid("range is not whole 2 MiB"));
        }
        self.vram_range(offset, bytes)
    }

    /// Makes a range of VRAM be a part of a file.
    pub(crate) fn lend_vram(&self, offset: u64, file: &Arc<Memfd>, file_offset: u64, bytes: u64) -> io::Result<()> {
        let range = self.lendable(offset, bytes)?;
        let lent = Lent { file: Arc::clone(file), number: self.number(), file_offset };
        let inserted = self.lent.write().insert(range, lent);
        inserted.map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "some of the range is lent already"))?;
        if let Err(error) = self.vram_mapping.show(offset as usize, file, file_offset, bytes) {
            self.lent.write().remove(offset);
            return Err(error);
        }
        if file.punch(file_offset, bytes).is_err() {
            self.vram_mapping.fill(offset as usize, bytes as usize, 0);
        }
        // For economy only: nobody sees these pages before they are taken back, when they are scrubbed.
        let _ = self.vram.punch(offset, bytes);
        Ok(())
    }

    /// Undoes [`Memory::lend_vram`].
    pub(crate) fn take_back_vram(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let range = self.lendable(offset, bytes)?;
        if !self.lent.read().covers(range.clone()) {
            return Err(invalid("some of the range is not lent"));
        }
        // What pages there are is taken out of the file first: a mapping of many pages is replaced under the lock of the process's
        // whole memory map, which everybody needs.
        let parts: Vec<(Arc<Memfd>, u64, u64)> = {
            let lent = self.lent.read();
            let part = |(whole, part): (Range<u64>, &Lent)| {
                let (from, to) = (whole.start.max(range.start), whole.end.min(range.end));
                (Arc::clone(&part.file), part.file_offset + (from - whole.start), to - from)
            };
            lent.overlapping(range.clone()).map(part).collect()
        };
        for (file, at, bytes) in parts {
            let _ = file.punch(at, bytes);
        }
        let empty = self.vram.punch(offset, bytes).is_ok();
        self.vram_mapping.show(offset as usize, &self.vram, offset, bytes)?;
        if !empty {
            self.vram_mapping.fill(offset as usize, bytes as usize, 0);
        }
        let after = |lent: &Lent, skip| Lent { file_offset: lent.file_offset + skip, ..lent.clone() };
        let returned = self.lent.write().cut_with(range, after);
        for Cut { whole, part, value } in returned {
            // For economy only: what is in there was its borrower's. Nobody else has to wait for it, nor for what the last
            // handle of a file frees.
            let _ = value.file.punch(value.file_offset + (part.start - whole.start), part.end - part.start);
        }
        Ok(())
    }

    /// Allocates system memory. Its addresses are aligned so that huge pages can map it.
    pub(crate) fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.map_dma(Arc::new(Memfd::create("sundial-dma", bytes)?))
    }

    /// As [`Memory::alloc_dma`], of memory that is there already.
    pub(crate) fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        let (mapping, bytes) = (Arc::new(file.map()?), file.bytes());
        let bus = self.place_dma(&file, 0, bytes, &mapping)?;
        Ok(DmaMemory::contiguous(bus, file, mapping))
    }

    /// The same, of a part of a memory file.
    pub(crate) fn map_dma_part(&self, file: Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<DmaMemory> {
        let mapping = Arc::new(file.map_part(offset, bytes)?);
        let bus = self.place_dma(&file, offset, bytes, &mapping)?;
        Ok(DmaMemory::part(bus, file, offset, mapping))
    }

    /// Gives what a mapping shows of a file an address of our choice: behind all that were given, and from the beginning again when there
    /// are no more: who maps and frees gigabytes again and again comes to the end.
    fn place_dma(&self, file: &Arc<Memfd>, offset: u64, bytes: u64, mapping: &Arc<Mapping>) -> io::Result<BusAddr> {
        let number = self.number();
        let room = bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        let mut again = false;
        loop {
            let within = |bus: u64| bus.checked_add(room).filter(|end| *end <= BUS_END);
            let bus = match self.next_bus.try_update(Ordering::Relaxed, Ordering::Relaxed, within) {
                Ok(bus) => bus,
                Err(_) if again => return Err(io::ErrorKind::OutOfMemory.into()),
                Err(_) => {
                    again = true;
                    self.next_bus.store(FIRST_BUS, Ordering::Relaxed);
                    continue;
                }
            };
            let end = bus + bytes;
            let (file, mapping) = (Arc::clone(file), Arc::clone(mapping));
            match self.system.write().insert(bus..end, System { file, number, file_offset: offset, mapping }) {
                Ok(()) => return Ok(BusAddr(bus)),
                // Somebody has chosen these addresses.
                Err(Refused::Overlaps(other)) => {
                    let above = other.end.checked_next_multiple_of(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
                    self.next_bus.fetch_max(above, Ordering::Relaxed);
                }
                Err(Refused::Empty) => return Err(io::ErrorKind::InvalidInput.into()),
            }
        }
    }

    /// Makes a part of a memory file system memory, at an address of the caller's choice.
    pub(crate) fn map_dma_at(&self, bus: BusAddr, file: &Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<()> {
        let end = bus.0.checked_add(bytes).filter(|_| bus.0.is_multiple_of(hostmem::PAGE));
        let end = end.ok_or_else(|| invalid("no such range of bus addresses"))?;
        let mapping = Arc::new(file.map_part(offset, bytes)?);
        let system = System { file: Arc::clone(file), number: self.number(), file_offset: offset, mapping };
        let inserted = self.system.write().insert(bus.0..end, system);
        inserted.map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "there is memory at this bus address"))
    }

    pub(crate) fn free_dma(&self, bus: BusAddr) {
        let removed = self.system.write().remove(bus.0);
        // Unmapped outside the lock, which everybody's accesses to system memory take.
        drop(removed);
    }

    /// The system memory around an address, what of its file is at the address, and how much follows.
    fn system(&self, address: u64) -> Option<(System, u64, u64)> {
        let map = self.system.read();
        let (range, found) = map.get(address)?;
        Some((found.clone(), address - range.start, range.end - address))
    }

    /// The mapping that holds `bytes` at `at`, and the offset in it.
    pub(crate) fn resolve(&self, at: PhysAddr, bytes: usize) -> Option<(Arc<Mapping>, usize)> {
        let (mapping, offset) = match at.aperture {
            Aperture::Vram => (Arc::clone(&self.vram_mapping), at.address),
            Aperture::System => self.system(at.address).map(|(found, offset, _)| (found.mapping, offset))?,
        };
        let offset = usize::try_from(offset).ok()?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= mapping.len());
        fits.then_some((mapping, offset))
    }

    /// The memory file at `at`, for mapping it elsewhere.
    pub(crate) fn file(&self, at: PhysAddr) -> Option<FilePiece> {
        if at.aperture == Aperture::Vram {
            return self.vram_file(at.address);
        }
        let (System { file, number, file_offset, .. }, offset, bytes) = self.system(at.address)?;
        Some(FilePiece { file, number, offset: file_offset + offset, bytes })
    }

    fn vram_file(&self, at: u64) -> Option<FilePiece> {
        let range = at..self.vram.bytes();
        let lent = self.lent.read();
        let next = lent.overlapping(range.clone()).next();
        let piece = match next {
            Some((whole, part)) if whole.start <= at => FilePiece {
                file: Arc::clone(&part.file),
                number: part.number,
                offset: part.file_offset + (at - whole.start),
                bytes: whole.end - at,
            },
            _ => {
                let end = next.map_or(range.end, |(whole, _)| whole.start);
                FilePiece { file: Arc::clone(&self.vram), number: WHOLE, offset: at, bytes: end.checked_sub(at)? }
            }
        };
        (piece.bytes > 0).then_some(piece)
    }

    /// An aligned 32-bit word; `None` where there is no memory.
    pub(crate) fn read_word(&self, at: PhysAddr) -> Option<u32> {
        let (mapping, offset) = self.resolve(at, 4)?;
        offset.is_multiple_of(4).then(|| mapping.u32_at(offset).load(Ordering::Acquire))
    }

    /// Stores an aligned 32-bit word; where there is no memory it vanishes.
    pub(crate) fn write_word(&self, at: PhysAddr, value: u32) {
        if let Some((mapping, offset)) = self.resolve(at, 4)
            && offset.is_multiple_of(4)
        {
            mapping.u32_at(offset).store(value, Ordering::Release);
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

impl PhysMem for Memory {
    fn read(&self, at: PhysAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let (mapping, offset) = self.resolve(at, out.len()).ok_or(BadAddress(at))?;
        mapping.read(offset, out);
        Ok(())
    }

    fn write(&self, at: PhysAddr, data: &[u8]) -> Result<(), BadAddress> {
        let (mapping, offset) = self.resolve(at, data.len()).ok_or(BadAddress(at))?;
        mapping.write(offset, data);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_addresses_come_again_when_there_are_no_more() -> io::Result<()> {
        let memory = Memory::new(HUGE_PAGE)?;
        let stays = memory.alloc_dma(3 * HUGE_PAGE)?;
        assert_eq!(stays.bus().0, FIRST_BUS);
        memory.next_bus.store(BUS_END - HUGE_PAGE, Ordering::Relaxed);
        let next = memory.alloc_dma(HUGE_PAGE)?;
        assert_eq!(next.bus().0, FIRST_BUS + 3 * HUGE_PAGE, "behind what is there still");
        memory.free_dma(stays.bus());
        memory.next_bus.store(BUS_END, Ordering::Relaxed);
        assert_eq!(memory.alloc_dma(HUGE_PAGE)?.bus().0, FIRST_BUS);
        Ok(())
    }
}
