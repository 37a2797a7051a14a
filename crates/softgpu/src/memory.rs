//! Physical memory: VRAM and system memory, by the addresses that page tables and registers use.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device_io::{BusAddr, DmaMemory};
use gmmu::{BadAddress, PhysMem};
use gpu_spec::mmu::{Aperture, HUGE_PAGE, PhysAddr};
use hostmem::{Mapping, Memfd};
use parking_lot::RwLock;

/// The first bus address handed out; below it lies nothing, so that small wrong addresses fail.
const FIRST_BUS: u64 = 1 << 32;

/// All memory that the device can reach.
#[derive(Debug)]
pub(crate) struct Memory {
    vram: Arc<Memfd>,
    vram_mapping: Arc<Mapping>,
    /// System memory by bus address. Guards the map alone; the memory itself is shared by nature.
    system: RwLock<BTreeMap<u64, System>>,
    next_bus: AtomicU64,
}

#[derive(Clone, Debug)]
struct System {
    file: Arc<Memfd>,
    mapping: Arc<Mapping>,
}

/// A piece of a memory file that is contiguous physical memory.
#[derive(Debug)]
pub(crate) struct FilePiece {
    pub(crate) file: Arc<Memfd>,
    pub(crate) offset: u64,
    /// Bytes from there to the end of the file.
    pub(crate) bytes: u64,
}

impl Memory {
    pub(crate) fn new(vram_bytes: u64) -> io::Result<Memory> {
        let vram = Arc::new(Memfd::create("sundial-vram", vram_bytes)?);
        let vram_mapping = Arc::new(vram.map()?);
        Ok(Memory { vram, vram_mapping, system: RwLock::default(), next_bus: AtomicU64::new(FIRST_BUS) })
    }

    pub(crate) fn vram(&self) -> &Arc<Mapping> {
        &self.vram_mapping
    }

    /// Gives whole pages of VRAM back to the host.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.vram.bytes()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "range outside VRAM"));
        }
        self.vram.punch(offset, bytes)
    }

    pub(crate) fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.map_dma(Arc::new(Memfd::create("sundial-dma", bytes)?))
    }

    /// Gives a memory file a range of bus addresses. They are aligned so that huge pages can map it, and never used
    /// again, so that an address names the same memory for ever.
    pub(crate) fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        let mapping = Arc::new(file.map()?);
        let room = file.bytes().next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        let bus = self.next_bus.fetch_add(room, Ordering::Relaxed);
        self.system.write().insert(bus, System { file: Arc::clone(&file), mapping: Arc::clone(&mapping) });
        Ok(DmaMemory { bus: BusAddr(bus), file, mapping })
    }

    pub(crate) fn free_dma(&self, bus: BusAddr) {
        self.system.write().remove(&bus.0);
    }

    fn system(&self, address: u64) -> Option<(System, u64)> {
        let map = self.system.read();
        let (base, found) = map.range(..=address).next_back()?;
        let offset = address - base;
        (offset < found.file.bytes()).then(|| (found.clone(), offset))
    }

    /// The mapping that holds `bytes` at `at`, and the offset in it.
    pub(crate) fn resolve(&self, at: PhysAddr, bytes: usize) -> Option<(Arc<Mapping>, usize)> {
        let (mapping, offset) = match at.aperture {
            Aperture::Vram => (Arc::clone(&self.vram_mapping), at.address),
            Aperture::System => self.system(at.address).map(|(found, offset)| (found.mapping, offset))?,
        };
        let offset = usize::try_from(offset).ok()?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= mapping.len());
        fits.then_some((mapping, offset))
    }

    /// The memory file at `at`, for mapping it elsewhere.
    pub(crate) fn file(&self, at: PhysAddr) -> Option<FilePiece> {
        let (file, offset) = match at.aperture {
            Aperture::Vram => (Arc::clone(&self.vram), at.address),
            Aperture::System => self.system(at.address).map(|(found, offset)| (found.file, offset))?,
        };
        let bytes = file.bytes().checked_sub(offset).filter(|bytes| *bytes > 0)?;
        Some(FilePiece { file, offset, bytes })
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
