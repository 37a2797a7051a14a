//! The register boundary: all that a GPU and its driver know of each other, besides the layouts in `gpu_spec`.
//!
//! The driver holds a [`DeviceBacking`] and reaches the device through it alone: registers in BAR0, VRAM through the BAR1
//! aperture, interrupts, and system memory that both can address ([`DmaMemory`]). In one process the device model itself
//! implements the trait; in a virtual machine a PCI device's mapped BARs will.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hostmem::{Mapping, Memfd};

/// An address on the device's bus, by which it reaches system memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BusAddr(pub u64);

/// A byte offset in VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct VramOffset(pub u64);

/// System memory that the device can address: contiguous on the bus.
#[derive(Debug)]
pub struct DmaMemory {
    /// Bus address of the first byte (page aligned).
    pub bus: BusAddr,
    /// The memory file behind it.
    pub file: Arc<Memfd>,
    /// The driver's mapping of it.
    pub mapping: Arc<Mapping>,
}

/// A GPU as its driver sees it.
pub trait DeviceBacking: Send + Sync {
    /// Reads the 32-bit register at a BAR0 offset; what is no register reads as 0.
    fn read32(&self, bar0_offset: u32) -> u32;

    /// Writes the 32-bit register at a BAR0 offset; what is no register ignores it.
    fn write32(&self, bar0_offset: u32, value: u32);

    /// The BAR1 aperture: VRAM, linear from offset 0, as a mapping. Its length is the size of VRAM.
    fn vram(&self) -> &Arc<Mapping>;

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

    /// Makes system memory of somebody else addressable by the device.
    ///
    /// # Errors
    /// What the operating system says.
    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory>;

    /// Takes system memory away from the device; page table entries that name it must be gone and invalidated.
    fn free_dma(&self, bus: BusAddr);

    /// Waits for the device's interrupt line, at most `timeout`; true if it was raised. One waiter.
    fn wait_interrupt(&self, timeout: Duration) -> bool;
}
