//! A device that stops doing what it is told, when a test wants it to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use gpu_spec::regs::{self, vf};
use hostmem::{Mapping, Memfd};
use softgpu::{Config, SoftGpu};

/// What it does not do, for now.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// It never says that it has forgotten translations.
    pub(crate) forgets_not: AtomicBool,
    /// VRAM that was lent stays so.
    pub(crate) keeps_lent: AtomicBool,
    /// No VRAM can be lent.
    pub(crate) lends_not: AtomicBool,
    /// It is gone: all registers read as ones.
    pub(crate) gone: AtomicBool,
}

/// A software GPU with faults.
pub(crate) struct Faulty {
    gpu: Arc<SoftGpu>,
    faults: Arc<Faults>,
}

impl Faulty {
    pub(crate) fn new(vram_bytes: u64, faults: &Arc<Faults>) -> Arc<Faulty> {
        let gpu = SoftGpu::new(&Config { vram_bytes, workers: 2, ..Config::default() }).unwrap();
        Arc::new(Faulty { gpu, faults: Arc::clone(faults) })
    }
}

impl DeviceBacking for Faulty {
    fn read32(&self, bar0_offset: u32) -> u32 {
        if self.faults.gone.load(Ordering::SeqCst) {
            return u32::MAX;
        }
        let value = self.gpu.read32(bar0_offset);
        let asked = bar0_offset == regs::VF_BASE + vf::MMU_INVALIDATE;
        let pending = asked && self.faults.forgets_not.load(Ordering::SeqCst);
        value | if pending { vf::INVALIDATE_TRIGGER.of(1) } else { 0 }
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        self.gpu.write32(bar0_offset, value);
    }

    fn vram_bytes(&self) -> u64 {
        self.gpu.vram_bytes()
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        self.gpu.vram_mapping()
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        self.gpu.discard_vram(offset, bytes)
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.gpu.alloc_dma(bytes)
    }

    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        self.gpu.map_dma(file)
    }

    fn map_dma_at(&self, bus: BusAddr, file: &Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<()> {
        self.gpu.map_dma_at(bus, file, offset, bytes)
    }

    fn free_dma(&self, bus: BusAddr) {
        self.gpu.free_dma(bus);
    }

    fn lend_vram(&self, offset: VramOffset, file: &Arc<Memfd>, file_offset: u64, bytes: u64) -> io::Result<()> {
        if self.faults.lends_not.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.gpu.lend_vram(offset, file, file_offset, bytes)
    }

    fn take_back_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        if self.faults.keeps_lent.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.gpu.take_back_vram(offset, bytes)
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        self.gpu.wait_interrupt(timeout)
    }
}
