//! The software GPU: a device model that runs PTX, behind the registers and memory formats of an NVIDIA TU104.
//!
//! Everything a driver does with it goes through [`device_io::DeviceBacking`]: registers in BAR0, VRAM through BAR1, system
//! memory, interrupts. The formats are those of `gpu_spec`; what follows is how the model works inside.
//!
//! # Parts
//! - `bar0`: decodes registers. `interrupts`, `clock`: what they control.
//! - `memory`: VRAM (sealed memory files whose pages exist once touched: one for all of it, but for the parts that are lent to
//!   other processes) and system memory, by physical address.
//! - `space`: address spaces. Each page directory in use has one window of host addresses in which the pages that the
//!   tables map are mapped; TLB invalidates compare tables and window. Engines reach memory through windows alone, and what
//!   is not mapped there is a fault, with the type that a walk of the tables gives. Sparse pages are mapped as pages of
//!   zeros, and what is written to them vanishes.
//! - `channel`, `host`, `copy`, `compute`: a channel's GPFIFO and pushbuffer, and the methods of its engines.
//! - `program`: containers in GPU memory become code (crates `ptx` and `ptx_jit`), kept per address space.
//! - `job`: what methods start: grids, transfers, invalidates, in units for workers.
//! - `children`: what grids launch themselves.
//! - `front`: channels, TSGs and runlists, and the choice of the next unit. `schedule`: the shares of TSGs. `occupancy`: time
//!   that no TSG has.
//! - `budget`: what all of it costs the host's memory, and how much of that there may be.
//! - `device`, `worker`, `ticker`, `background`: the threads. `short`: what the thread that rings a doorbell may do itself.
//!
//! # Time
//! Every worker is a multiprocessor and runs one CTA at a time. A free worker gets work of the TSG that is furthest behind
//! its share; work of the same TSG may come from several of its channels at once. Slices end by preemption: the ticker sets
//! the control word of the grid, its CTAs stop at their next poll and go on later, on any worker. So does a thread that rings a
//! doorbell, if it finds all workers busy and what they do far ahead of its TSG: between the short kernels of one that waits for
//! each, others run, but no longer than that. If a TSG has too little work for all workers, others use the rest. Shares are of worker time actually used.
//!
//! Waking a worker takes longer than many a unit does. So a thread that rings a doorbell may lend itself: it takes the place
//! of an idle worker for units of its TSG that should be short, by what their kernel took before. It is not kept for long: the
//! ticker preempts what turns out not to be short, and a worker goes on with it.
//!
//! No unit is long, whatever a tenant chooses: transfers and invalidates are cut into parts, CTAs stop at their polls, and a
//! channel's turn at its pushbuffer ends after some microseconds. What nobody can bound holds no worker: programs are read
//! and memory is freed in the background, kernels are compiled by [`Config::compiler`]. The time of both is charged as if a
//! worker had done it, so the times of all TSGs together may pass the time that goes by.
//!
//! # What the host pays
//! An instance block names a budget ([`gpu_spec::regs::budget`]). Charged to it are CTAs under way, those that wait included;
//! code and modules that are kept; compilations, with the memory that they are allowed; and the entries of the host's memory
//! map that windows, stacks and code take. What does not fit now waits for what is under way, as CTAs do on hardware; a launch that never
//! fits is the channel's error. Pages without map entries stay out of the window, and who accesses them has the fault. Not
//! charged: what the device keeps for everybody, and bounds by itself (stacks and arenas for the next CTAs, parsed modules).
//!
//! # What a guest cannot do
//! Page tables, instance blocks, runlists, pushbuffers, launch descriptors and programs are all taken from memory that
//! strangers may write. Each is copied before it is checked, each loop over them has a bound, and what is wrong ends in a
//! fault packet or an error notifier of that channel; its TSG stops, and nothing else does. The front end's lock is held for
//! steps that a tenant cannot make long or many: waiters are found by what they wait for, a few at a time. A panic of the
//! device's own loses it cleanly: it reads as all ones, ignores writes, and its kernels stop.
//!
//! # Limits
//! Channels run in order: a method that starts work holds its channel until the work is done. Pitch-linear memory only.
//! A channel that is unbound goes on where it was when it is bound again, but a grid of which CTAs have run is lost. Faults
//! are not replayable. BAR1 is physical; there is no BAR2.

mod background;
mod bar0;
mod budget;
mod channel;
mod children;
mod chip;
mod clock;
mod compute;
mod copy;
mod device;
mod doorbells;
mod error;
mod front;
mod host;
mod interrupts;
mod job;
mod memory;
mod occupancy;
mod program;
mod schedule;
mod short;
mod space;
#[cfg(feature = "testing")]
pub mod testing;
mod ticker;
mod worker;

use std::io;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use hostmem::{Freed, Mapping, Memfd};
use parking_lot::Mutex;
use ptx_jit::compiler::{Compiler, Threads};

pub use ptx::check::Checker;
pub use ptx_jit::compiler;
pub use ptx_jit::{CompileError, EngineKind};

use crate::bar0::Identity;
use crate::chip::Chip;
use crate::device::Device;
use crate::memory::Memory;

/// What a device is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// VRAM, bytes; rounded up to 2 MiB.
    pub vram_bytes: u64,
    /// Worker threads; 0 means one for every core.
    pub workers: usize,
    /// What runs kernels; where they are checked, the interpreter does.
    pub engine: EngineKind,
    /// Who checks what they do.
    pub checker: Option<Arc<dyn Checker>>,
    /// What compiles kernels.
    pub compiler: Arc<dyn Compiler>,
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
    /// Gives what the allocator of this process keeps of freed memory back to the operating system: for a process in which nothing large
    /// is freed and made again beside the device's.
    pub freed: Option<Arc<Freed>>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            vram_bytes: 4 << 30,
            workers: 0,
            engine: EngineKind::Jit,
            checker: None,
            compiler: Arc::new(Threads::default()),
            name: "Sundial Software GPU".to_owned(),
            uuid: *b"sundial-soft-gpu",
            pci: [0, 1, 0],
            lend: false,
            freed: None,
        }
    }
}

impl Config {
    /// Makes it another GPU than those with lower numbers: number 0 is as it was.
    #[must_use]
    pub fn numbered(mut self, number: u8) -> Config {
        // At the beginning, where those who shorten UUIDs look.
        self.uuid[0] = self.uuid[0].wrapping_add(number);
        self.pci[1] += u32::from(number);
        self
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
        let gpu = SoftGpu::without_ticker(config)?;
        let device = Arc::clone(&gpu.device);
        let ticker = std::thread::Builder::new().name("gpu-ticker".to_owned());
        gpu.threads.lock().push(ticker.spawn(move || device.tick())?);
        Ok(gpu)
    }

    /// One in which slices do not end by themselves.
    fn without_ticker(config: &Config) -> io::Result<Arc<SoftGpu>> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let workers = if config.workers == 0 { cores } else { config.workers };
        let vram_bytes = config.vram_bytes.next_multiple_of(gpu_spec::mmu::HUGE_PAGE);
        let memory = Memory::new(vram_bytes)?;
        let (name, uuid, pci) = (config.name.clone(), config.uuid, config.pci);
        let identity = Identity { name, uuid, pci, clock_khz: 2_000_000, vram_bytes };
        let device = Arc::new_cyclic(|device| {
            let compiler = Arc::clone(&config.compiler);
            let engine = if config.checker.is_some() { EngineKind::Interpreter } else { config.engine };
            let chip =
                Chip::new(memory, (engine, config.checker.clone()), compiler, workers as u64, Weak::clone(device));
            Device::new(chip, identity, config.lend, config.freed.clone())
        });
        let gpu = Arc::new(SoftGpu { device: Arc::clone(&device), threads: Mutex::default() });
        for worker in 0..workers {
            let device = Arc::clone(&device);
            let thread = std::thread::Builder::new().name(format!("gpu-worker-{worker}"));
            gpu.threads.lock().push(thread.spawn(move || device.work(worker))?);
        }
        let reader = std::thread::Builder::new().name("gpu-reader".to_owned());
        let of_reader = Arc::clone(&device);
        gpu.threads.lock().push(reader.spawn(move || of_reader.read_in_background())?);
        let freer = std::thread::Builder::new().name("gpu-freer".to_owned());
        let of_freer = Arc::clone(&device);
        gpu.threads.lock().push(freer.spawn(move || of_freer.free_in_background())?);
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

impl SoftGpu {
    /// All of VRAM.
    #[must_use]
    pub fn vram(&self) -> &Arc<Mapping> {
        self.device.chip.memory.vram()
    }
}

impl DeviceBacking for SoftGpu {
    fn read32(&self, bar0_offset: u32) -> u32 {
        self.device.read_register(bar0_offset)
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        self.device.write_register(bar0_offset, value);
    }

    fn vram_bytes(&self) -> u64 {
        self.vram().len() as u64
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        Some(self.vram())
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        self.device.chip.memory.discard(offset.0, bytes)
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.device.chip.memory.alloc_dma(bytes)
    }

    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        self.device.chip.memory.map_dma(file)
    }

    fn map_dma_part(&self, file: Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<DmaMemory> {
        self.device.chip.memory.map_dma_part(file, offset, bytes)
    }

    fn map_dma_at(&self, bus: BusAddr, file: &Arc<Memfd>, offset: u64, bytes: u64) -> io::Result<()> {
        self.device.chip.memory.map_dma_at(bus, file, offset, bytes)
    }

    fn free_dma(&self, bus: BusAddr) {
        self.device.chip.memory.free_dma(bus);
    }

    fn lend_vram(&self, offset: VramOffset, file: &Arc<Memfd>, file_offset: u64, bytes: u64) -> io::Result<()> {
        self.device.chip.memory.lend_vram(offset.0, file, file_offset, bytes)
    }

    fn take_back_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        self.device.chip.memory.take_back_vram(offset.0, bytes)
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        self.device.chip.interrupts.wait(timeout)
    }
}
