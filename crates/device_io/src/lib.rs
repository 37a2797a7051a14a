//! The register boundary: all that a GPU and its driver know of each other, besides the layouts in `gpu_spec`.
//!
//! The driver holds a [`DeviceBacking`] and reaches the device through it alone: registers in BAR0, VRAM through the BAR1
//! aperture, interrupts, and system memory that both can address ([`DmaMemory`]). In one process the device model itself
//! implements the trait; in a guest a PCI device's BARs do.
//!
//! A guest may have its BAR1 mapped or not: where accesses to VRAM are trapped there is no mapping, only [`read_vram`] and its
//! like; and a guest's memory is not contiguous on the bus.
//!
//! [`read_vram`]: DeviceBacking::read_vram

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hostmem::{Mapping, Memfd};

/// An address on the device's bus, by which it reaches system memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BusAddr(pub u64);

/// A byte offset in VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct VramOffset(pub u64);

/// System memory that the device can address, in whole pages, wherever each of them lies on the bus.
#[derive(Debug)]
pub struct DmaMemory {
    /// The memory file behind it.
    pub file: Arc<Memfd>,
    /// The driver's mapping of it.
    pub mapping: Arc<Mapping>,
    /// Offset of each run in the file, and its bus address. Invariant: there is one, offsets grow.
    runs: Vec<(u64, BusAddr)>,
    /// The bus addresses are those of the pages that the file has now.
    pinned: bool,
}

impl DmaMemory {
    /// All of `file` in one piece from `bus` (page aligned) on. The addresses name the file: its pages may come and go.
    #[must_use]
    pub fn contiguous(bus: BusAddr, file: Arc<Memfd>, mapping: Arc<Mapping>) -> DmaMemory {
        DmaMemory { file, mapping, runs: vec![(0, bus)], pinned: false }
    }

    /// The same of a part of `file` alone, which begins at `offset`, and is all that `mapping` shows. Offsets stay those in the file;
    /// what is outside of the part must not be asked for.
    #[must_use]
    pub fn part(bus: BusAddr, file: Arc<Memfd>, offset: u64, mapping: Arc<Mapping>) -> DmaMemory {
        DmaMemory { file, mapping, runs: vec![(offset, bus)], pinned: false }
    }

    /// Pages of `page_bytes` each, at these bus addresses in order. Those that follow each other are joined. The addresses are
    /// those of the file's pages, all of which exist and must stay.
    ///
    /// # Panics
    /// If they are not as many as the file has.
    #[must_use]
    pub fn scattered(page_bytes: u64, pages: &[BusAddr], file: Arc<Memfd>, mapping: Arc<Mapping>) -> DmaMemory {
        assert_eq!(pages.len() as u64 * page_bytes, file.bytes(), "pages of the whole file");
        let mut runs: Vec<(u64, BusAddr)> = Vec::new();
        for (offset, page) in (0..).step_by(page_bytes as usize).zip(pages) {
            let follows = runs.last().is_some_and(|(start, bus)| bus.0 + (offset - start) == page.0);
            if !follows {
                runs.push((offset, *page));
            }
        }
        DmaMemory { file, mapping, runs, pinned: true }
    }

    /// Whether its pages must stay as long as it is the device's: one that was given back to the host would be another when
    /// it comes again, and the device would still use the first. If so, all of it exists from the beginning.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Offset in the file at which it, and its mapping, begins.
    #[must_use]
    pub fn begins(&self) -> u64 {
        self.runs[0].0
    }

    /// Bus address of its first byte, by which it is freed.
    #[must_use]
    pub fn bus(&self) -> BusAddr {
        self.runs[0].1
    }

    /// The pieces of a range of it, in order: bus address and bytes. What lies beyond its end is left out.
    #[must_use]
    pub fn pieces(&self, range: Range<u64>) -> Vec<(BusAddr, u64)> {
        let end = range.end.min(self.file.bytes());
        let first = self.runs.partition_point(|(offset, _)| *offset <= range.start).saturating_sub(1);
        let ends = self.runs.iter().skip(first + 1).map(|(offset, _)| *offset).chain([self.file.bytes()]);
        let runs = self.runs.iter().skip(first).zip(ends).take_while(|((start, _), _)| *start < end);
        runs.map(|((start, bus), run_end)| {
            let (from, to) = (range.start.max(*start), end.min(run_end));
            (BusAddr(bus.0 + from - start), to - from)
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
    }
}

/// A GPU as its driver sees it.
///
/// What a thread has written to VRAM, the device sees before that thread's next register write.
pub trait DeviceBacking: Send + Sync {
    /// Reads the 32-bit register at a BAR0 offset; what is no register reads as 0.
    fn read32(&self, bar0_offset: u32) -> u32;

    /// Writes the 32-bit register at a BAR0 offset; what is no register ignores it.
    fn write32(&self, bar0_offset: u32, value: u32);

    /// As [`DeviceBacking::write32`], but the device may take it only together with what is written or read next: where that
    /// saves waking somebody.
    fn write32_late(&self, bar0_offset: u32, value: u32) {
        self.write32(bar0_offset, value);
    }

    /// Puts the device into its state after power-on: nothing runs, nothing is bound, VRAM reads as zero. System memory stays
    /// addressable.
    ///
    /// # Errors
    /// `Unsupported` if the device cannot be reset, or not without harm to others; else what the operating system says.
    fn reset(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes of VRAM: all of it is in the BAR1 aperture, linear from offset 0.
    fn vram_bytes(&self) -> u64;

    /// The aperture as plain memory; `None` where accesses to it need somebody's attention.
    fn vram_mapping(&self) -> Option<&Arc<Mapping>>;

    /// Copies bytes out of VRAM; where there is none, all ones.
    fn read_vram(&self, offset: VramOffset, out: &mut [u8]) {
        match self.vram_mapping().filter(|_| self.has_vram(offset, out.len())) {
            Some(vram) => vram.read(offset.0 as usize, out),
            None => out.fill(0xff),
        }
    }

    /// Copies bytes into VRAM; where there is none, they vanish. Naturally aligned values of up to 8 bytes do not tear.
    fn write_vram(&self, offset: VramOffset, data: &[u8]) {
        if let Some(vram) = self.vram_mapping().filter(|_| self.has_vram(offset, data.len())) {
            vram.write(offset.0 as usize, data);
        }
    }

    /// Makes all bytes of a range of VRAM `value`.
    fn fill_vram(&self, offset: VramOffset, bytes: usize, value: u8) {
        if let Some(vram) = self.vram_mapping().filter(|_| self.has_vram(offset, bytes)) {
            vram.fill(offset.0 as usize, bytes, value);
        }
    }

    /// Whether there is VRAM in all of a range.
    fn has_vram(&self, offset: VramOffset, bytes: usize) -> bool {
        offset.0 <= self.vram_bytes() && bytes as u64 <= self.vram_bytes() - offset.0
    }

    /// Gives pages of VRAM back to the host; they read as zero afterwards. A hint for memory economy and the fast way to
    /// scrub; whole pages.
    ///
    /// # Errors
    /// What the operating system says; the pages are unchanged then.
    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()>;

    /// Allocates system memory and makes it addressable by the device.
    ///
    /// # Errors
    /// What the operating system says.
    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory>;

    /// Makes all of a memory file of somebody else addressable by the device, at an address of the device's choice.
    ///
    /// # Errors
    /// `Unsupported` if the device is not in this process; else what the operating system says.
    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        drop(file);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As [`map_dma`], of a part of a file (whole pages).
    ///
    /// [`map_dma`]: DeviceBacking::map_dma
    ///
    /// # Errors
    /// `InvalidInput` if it is not whole pages inside the file; else as `map_dma`.
    fn map_dma_part(&self, file: Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<DmaMemory> {
        let _ = (file, offset, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes a part of a memory file (whole pages) addressable by the device, at an address of the caller's choice: what an
    /// IOMMU's map is. [`free_dma`] undoes it. The address may mean other memory later; the device holds to the old until
    /// its translations are invalidated.
    ///
    /// [`free_dma`]: DeviceBacking::free_dma
    ///
    /// # Errors
    /// `AlreadyExists` where there is memory in the range already; `InvalidInput` if it is not whole pages inside the file;
    /// `Unsupported` if the device is not in this process; else what the operating system says.
    fn map_dma_at(&self, bus: BusAddr, file: &Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<()> {
        let _ = (bus, file, offset, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes system memory away from the device; page table entries that name it must be gone and invalidated.
    fn free_dma(&self, bus: BusAddr);

    /// Makes a range of VRAM (whole 2 MiB) be a part of a memory file of the caller's, from `file_offset` on, until
    /// [`take_back_vram`]: another process that gets the file sees what of VRAM is in it, and nothing else. Zero afterwards.
    /// Page table entries that name the range must be gone and invalidated. No part of a file may be in two places of VRAM.
    ///
    /// [`take_back_vram`]: DeviceBacking::take_back_vram
    ///
    /// # Errors
    /// `AlreadyExists` if some of it is lent already; `InvalidInput` if it is not whole 2 MiB of VRAM, or not whole pages
    /// inside the file; `Unsupported` if the device is not in this process; else what the operating system says.
    fn lend_vram(&self, offset: VramOffset, file: &Arc<Memfd>, file_offset: u64, bytes: u64) -> io::Result<()> {
        let _ = (offset, file, file_offset, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Undoes [`DeviceBacking::lend_vram`], for whole 2 MiB that are lent, however they were: who has a file of theirs has
    /// nothing of VRAM any more, but zeros of its own. The range is zero afterwards. Page table entries that name it must be
    /// gone and invalidated.
    ///
    /// # Errors
    /// `InvalidInput` if some of it is not lent; `Unsupported` if the device is not in this process; else what the operating
    /// system says, and it is still lent.
    fn take_back_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        let _ = (offset, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for the device's interrupt line, at most `timeout`; true if it was raised. One waiter.
    fn wait_interrupt(&self, timeout: Duration) -> bool;

    /// Where interrupts are counted, if that is memory: a futex, on which threads may sleep beside the one in
    /// [`wait_interrupt`]. They hear of an interrupt while that one does, perhaps not while it is busy.
    ///
    /// [`wait_interrupt`]: DeviceBacking::wait_interrupt
    fn interrupt_count(&self) -> Option<(Arc<Mapping>, usize)> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_pages_come_in_pieces() {
        let file = Arc::new(Memfd::create("pages", 4 * 4096).unwrap());
        let mapping = Arc::new(file.map().unwrap());
        let pages = [0x5000, 0x6000, 0x1000, 0x9000].map(BusAddr);
        let memory = DmaMemory::scattered(4096, &pages, file, mapping);
        assert_eq!((memory.bus(), memory.is_pinned()), (BusAddr(0x5000), true));
        assert_eq!(
            memory.pieces(0..4 * 4096),
            [(BusAddr(0x5000), 8192), (BusAddr(0x1000), 4096), (BusAddr(0x9000), 4096)]
        );
        assert_eq!(memory.pieces(0x1800..0x2100), [(BusAddr(0x6800), 0x800), (BusAddr(0x1000), 0x100)]);
        assert_eq!(memory.pieces(0x3ff0..0x9000), [(BusAddr(0x9ff0), 0x10)]);
        assert_eq!(memory.pieces(0x2000..0x2000), []);
        assert_eq!(memory.pieces(0x4000..0x5000), []);
    }
}
