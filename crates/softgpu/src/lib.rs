//! The software GPU: a device model that runs PTX, behind the registers and memory formats of an NVIDIA TU104.
//!
//! Everything a driver does with it goes through [`device_io::DeviceBacking`]: registers in BAR0, VRAM through BAR1, system
//! memory, interrupts. The formats are those of `gpu_spec`; what follows is how the model works inside.
//!
//! # Parts
//! - `bar0`: decodes registers. `interrupts`, `fault_buffer`, `clock`: what they control.
//! - `memory`: VRAM (a sealed memory file whose pages exist once touched) and system memory, by physical address.
//! - `space`: address spaces. Each page directory in use has one window of host addresses in which the pages that the
//!   tables map are mapped; TLB invalidates compare tables and window. Engines reach memory through windows alone, and what
//!   is not mapped there is a fault, with the type that a walk of the tables gives. Sparse pages are mapped as pages of
//!   zeros, and what is written to them vanishes.
//! - `channel`, `host`, `copy`, `compute`: a channel's GPFIFO and pushbuffer, and the methods of its engines.
//! - `program`: containers in GPU memory become code (crates `ptx` and `ptx_jit`), cached per address space.
//! - `job`: what methods start: compilations, grids, transfers, invalidates, in units for workers.
//! - `front`: channels, TSGs and runlists, and the choice of the next unit. `schedule`: the shares of TSGs.
//! - `worker`: the threads. `short`: what the thread that rings a doorbell may do itself.
//!
//! # Time
//! Every worker is a multiprocessor and runs one CTA at a time. A free worker gets work of the TSG that is furthest behind
//! its share; work of the same TSG may come from several of its channels at once. Slices end by preemption: the ticker sets
//! the control word of the grid, its CTAs stop at their next poll and go on later, on any worker. If a TSG has too little
//! work for all workers, others use the rest. Shares are of worker time actually used.
//!
//! Waking a worker takes longer than many a unit does. So a thread that rings a doorbell may lend itself: it takes the place
//! of an idle worker for units of its TSG that should be short, by what their kernel took before. It is not kept for long: the
//! ticker preempts what turns out not to be short, and a worker goes on with it.
//!
//! # What a guest cannot do
//! Page tables, instance blocks, runlists, pushbuffers, launch descriptors and programs are all taken from memory that
//! strangers may write. Each is copied before it is checked, each loop over them has a bound, and what is wrong ends in a
//! fault packet or an error notifier of that channel; its TSG stops, and nothing else does.
//!
//! # Limits
//! Channels run in order: a method that starts work holds its channel until the work is done. Pitch-linear memory only.
//! A channel that is unbound goes on where it was when it is bound again, but a grid of which CTAs have run is lost. Faults
//! are not replayable. BAR1 is physical; there is no BAR2.

mod bar0;
mod channel;
mod clock;
mod compute;
mod copy;
mod error;
mod fault_buffer;
mod front;
mod host;
mod interrupts;
mod job;
mod memory;
mod program;
mod schedule;
mod shared;
mod short;
mod space;
#[cfg(feature = "testing")]
pub mod testing;
mod worker;

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use hostmem::{Mapping, Memfd};
use parking_lot::Mutex;

pub use ptx_jit::EngineKind;

use crate::bar0::Identity;
use crate::memory::Memory;
use crate::shared::Shared;
use crate::worker::Device;

/// What a device is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// VRAM, bytes; rounded up to 2 MiB.
    pub vram_bytes: u64,
    /// Worker threads; 0 means one for every core.
    pub workers: usize,
    /// What runs kernels.
    pub engine: EngineKind,
    /// Product name, at most 64 bytes.
    pub name: String,
    /// UUID.
    pub uuid: [u8; 16],
    /// PCI domain, bus, device.
    pub pci: [u32; 3],
    /// The thread that rings a doorbell does short work (some microseconds) of the channel's TSG itself, before the write
    /// returns, in place of a worker: for an owner whose ringing threads have nothing better to do. Kernels then run on
    /// those threads, so their signal masks and floating-point modes must be the usual ones.
    pub lend: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vram_bytes: 4 << 30,
            workers: 0,
            engine: EngineKind::Jit,
            name: "Sundial Software GPU".to_owned(),
            uuid: *b"sundial-soft-gpu",
            pci: [0, 1, 0],
            lend: false,
        }
    }
}

/// A software GPU: threads that run while it lives.
#[derive(Debug)]
pub struct SoftGpu {
    device: Arc<Device>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SoftGpu {
    /// Makes a device and starts its threads.
    ///
    /// # Errors
    /// What the operating system says to memory and threads.
    pub fn new(config: &Config) -> io::Result<Arc<SoftGpu>> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let workers = if config.workers == 0 { cores } else { config.workers };
        let memory = Memory::new(config.vram_bytes.next_multiple_of(gpu_spec::mmu::HUGE_PAGE))?;
        let shared = Shared::new(memory, config.engine, workers as u64);
        let identity = Identity { name: config.name.clone(), uuid: config.uuid, pci: config.pci, clock_khz: 2_000_000 };
        let device = Arc::new(Device::new(shared, identity, workers, config.lend));
        let gpu = Arc::new(SoftGpu { device: Arc::clone(&device), threads: Mutex::default() });
        for worker in 0..workers {
            let device = Arc::clone(&device);
            let thread = std::thread::Builder::new().name(format!("gpu-worker-{worker}"));
            gpu.threads.lock().push(thread.spawn(move || device.work(worker))?);
        }
        let ticker = std::thread::Builder::new().name("gpu-ticker".to_owned());
        gpu.threads.lock().push(ticker.spawn(move || device.tick())?);
        Ok(gpu)
    }
}

impl Drop for SoftGpu {
    fn drop(&mut self) {
        self.device.shut_down();
        for thread in self.threads.get_mut().drain(..) {
            // A thread that panicked has said so; there is nothing to save.
            let _ = thread.join();
        }
    }
}

impl DeviceBacking for SoftGpu {
    fn read32(&self, bar0_offset: u32) -> u32 {
        self.device.read_register(bar0_offset)
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        self.device.write_register(bar0_offset, value);
    }

    fn vram(&self) -> &Arc<Mapping> {
        self.device.shared.memory.vram()
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        self.device.shared.memory.discard(offset.0, bytes)
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.device.shared.memory.alloc_dma(bytes)
    }

    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        self.device.shared.memory.map_dma(file)
    }

    fn free_dma(&self, bus: BusAddr) {
        self.device.shared.memory.free_dma(bus);
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        self.device.shared.interrupts.wait(timeout)
    }
}
