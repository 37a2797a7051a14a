//! The whole software GPU on one socket: registers, VRAM and the guest's memory as they are, nobody in between.
#![allow(dead_code, clippy::allow_attributes, reason = "no test uses all of it")]

use std::iter;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, VramOffset};
use gpu_spec::regs::{self, vf};
use hostmem::Memfd;
use pci_gpu::VfioUserGpu;
use serde_json::Value;
use softgpu::{Config, SoftGpu};
use vfio_user::{
    Description, Device, DmaMap, Errno, Interrupts, Irq, Region, Server, ServerOptions, Stopper, StoreWatch, pci,
};

/// Longer than anything here takes.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// Messages that came.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) vram: AtomicU64,
}

/// A GPU, all of which the client has.
struct PassThrough {
    gpu: Arc<SoftGpu>,
    /// BAR1, if the client may map it.
    vram: Option<Arc<OwnedFd>>,
    interrupts: Mutex<Option<Arc<Interrupts>>>,
    counts: Arc<Counts>,
    over: AtomicBool,
    asks: Asks,
}

/// What the device wants of its client.
pub(crate) struct Asks {
    /// The answer to the private capability.
    pub(crate) private: Option<Value>,
    /// What it does when it is told how to notice stores.
    pub(crate) told: Box<dyn Fn(StoreWatch) -> Result<(), Errno> + Send + Sync>,
}

impl Asks {
    pub(crate) fn nothing() -> Asks {
        Asks { private: None, told: Box::new(|_| Err(Errno::OPNOTSUPP)) }
    }
}

impl PassThrough {
    fn new(vram_bytes: u64, lend: bool, mapped: bool, asks: Asks) -> PassThrough {
        let gpu = SoftGpu::new(&Config { vram_bytes, workers: 2, lend, ..Config::default() }).unwrap();
        let vram = mapped.then(|| {
            let file = Arc::new(Memfd::create("vram", vram_bytes).unwrap());
            gpu.lend_vram(VramOffset(0), &file, 0, vram_bytes).unwrap();
            Arc::new(file.try_clone().unwrap().into_fd())
        });
        PassThrough {
            gpu,
            vram,
            interrupts: Mutex::default(),
            counts: Arc::default(),
            over: AtomicBool::new(false),
            asks,
        }
    }

    /// The line of the device becomes messages: one each time it rises.
    fn attend(&self) {
        while !self.over.load(Ordering::Acquire) {
            if !self.gpu.wait_interrupt(Duration::from_millis(20)) {
                continue;
            }
            if let Some(interrupts) = self.interrupts.lock().unwrap().clone() {
                interrupts.trigger(pci::MSIX, 0);
            }
            let raised = || self.gpu.read32(regs::VF_BASE + vf::INTR_TOP) != 0;
            let until = Instant::now() + Duration::from_millis(2);
            while raised() && Instant::now() < until {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

impl Device for PassThrough {
    fn describe(&self, _proposed: Option<&Value>) -> Description {
        let bytes = self.gpu.vram_bytes();
        // A BAR has the size of a power of two.
        let aperture = bytes.next_power_of_two() * 2;
        let mut regions = vec![Region::default(); pci::NUM_REGIONS as usize];
        regions[pci::BAR0 as usize] = Region::trapped(16 << 20);
        regions[pci::BAR1 as usize] = match &self.vram {
            Some(file) => Region::mapped(aperture, iter::once(0..bytes).collect(), Arc::clone(file), 0),
            None => Region::trapped(aperture),
        };
        let mut irqs = vec![Irq::default(); pci::NUM_IRQS as usize];
        irqs[pci::MSIX as usize] = Irq::messages(1);
        Description { resettable: false, regions, irqs, private: self.asks.private.clone(), posted_writes: true }
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        *self.interrupts.lock().unwrap() = Some(interrupts);
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        match (region, out.len()) {
            (pci::BAR0, 4) => {
                self.counts.reads.fetch_add(1, Ordering::Relaxed);
                out.copy_from_slice(&self.gpu.read32(offset as u32).to_le_bytes());
            }
            (pci::BAR1, _) => {
                self.counts.vram.fetch_add(1, Ordering::Relaxed);
                self.gpu.read_vram(VramOffset(offset), out);
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match (region, data) {
            (pci::BAR0, &[a, b, c, d]) => {
                self.counts.writes.fetch_add(1, Ordering::Relaxed);
                self.gpu.write32(offset as u32, u32::from_le_bytes([a, b, c, d]));
            }
            (pci::BAR1, _) => {
                self.counts.vram.fetch_add(1, Ordering::Relaxed);
                self.gpu.write_vram(VramOffset(offset), data);
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        let (file, offset) = map.file.ok_or(Errno::INVAL)?;
        let file = Arc::new(Memfd::from_fd(file).map_err(|_| Errno::INVAL)?);
        let mapped = self.gpu.map_dma_at(BusAddr(map.address), &file, offset, map.bytes);
        mapped.map_err(|_| Errno::EXIST)
    }

    fn unmap(&self, address: u64, _bytes: u64) {
        self.gpu.free_dma(BusAddr(address));
        let all = vf::INVALIDATE_ALL_VA.of(1) | vf::INVALIDATE_ALL_PDB.of(1) | vf::INVALIDATE_TRIGGER.of(1);
        self.gpu.write32(regs::VF_BASE + vf::MMU_INVALIDATE, all);
    }

    fn watch_stores(&self, watch: StoreWatch) -> Result<(), Errno> {
        assert_eq!((watch.region, watch.bytes), (pci::BAR1, self.gpu.vram_bytes()));
        (self.asks.told)(watch)
    }

    fn reset(&self) {
        unreachable!("it says that it cannot be reset");
    }

    fn gone(&self) {
        *self.interrupts.lock().unwrap() = None;
        self.over.store(true, Ordering::Release);
    }
}

/// A GPU that is served, by threads that end when its client has left.
pub(crate) struct Served {
    device: Arc<PassThrough>,
    stopper: Stopper,
}

impl Served {
    /// Serves the client at the other end of a socket.
    pub(crate) fn on(socket: UnixStream, vram_bytes: u64, lend: bool, mapped: bool) -> Served {
        Served::asking(socket, vram_bytes, lend, mapped, Asks::nothing())
    }

    /// Likewise, and wants something of it.
    pub(crate) fn asking(socket: UnixStream, vram_bytes: u64, lend: bool, mapped: bool, asks: Asks) -> Served {
        let device = Arc::new(PassThrough::new(vram_bytes, lend, mapped, asks));
        let server = Server::new(socket, ServerOptions::default());
        let stopper = server.stopper();
        let (served, attended) = (Arc::clone(&device), Arc::clone(&device));
        std::thread::spawn(move || server.serve(&*served));
        std::thread::spawn(move || attended.attend());
        Served { device, stopper }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.device.counts
    }

    pub(crate) fn soft_gpu(&self) -> &SoftGpu {
        &self.device.gpu
    }

    /// The server ends, as if killed.
    pub(crate) fn stop(&self) {
        self.stopper.stop();
    }
}

/// A GPU and who serves it.
pub(crate) fn serve(vram_bytes: u64, lend: bool, mapped: bool) -> (VfioUserGpu, Served) {
    serve_asking(vram_bytes, lend, mapped, Asks::nothing())
}

/// A GPU that wants something of its client.
pub(crate) fn serve_asking(vram_bytes: u64, lend: bool, mapped: bool, asks: Asks) -> (VfioUserGpu, Served) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let served = Served::asking(ours, vram_bytes, lend, mapped, asks);
    (VfioUserGpu::over(theirs).unwrap(), served)
}
