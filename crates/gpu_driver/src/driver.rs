//! The device's owner: starts it, hands out clients, and dispatches its interrupts.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device_io::{DeviceBacking, DmaMemory};
use gpu::Properties;
use gpu_spec::fault::{Fault, PACKET_BYTES, Packet};
use gpu_spec::regs::{self, identity, vector, vf};
use parking_lot::{Mutex, RwLock};
use zerocopy::{FromZeros, IntoBytes};

use crate::client::{Client, ClientConfig};
use crate::context::Context;
use crate::mmio::{Lost, Mmio};
use crate::scheduling::Hw;
use crate::signals::Listeners;
use crate::vram::Vram;

/// Packets in the fault buffer.
const FAULT_PACKETS: u32 = 1024;
/// CUDA driver version that clients are told.
const DRIVER_VERSION: u32 = 13_050;
/// How often the device is looked at without an interrupt, to notice that it is gone.
const TICK: Duration = Duration::from_millis(50);
/// A fault packet without an error notifier speaks for itself after this time.
const NOTIFIER_LATENESS: Duration = Duration::from_millis(40);

/// Why a device could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Nothing answers.
    #[error("no device answers")]
    NoDevice,
    /// Not a chip this driver knows.
    #[error("unknown chip {boot_0:#010x}")]
    UnknownChip {
        /// `PMC_BOOT_0`.
        boot_0: u32,
    },
    /// VRAM is too small for the driver's own structures.
    #[error("{bytes} bytes of VRAM are too few")]
    TooLittleVram {
        /// Size of VRAM.
        bytes: u64,
    },
    /// No memory for the device, or no thread for its interrupts.
    #[error("no resources for the driver")]
    Resources(#[source] io::Error),
}

/// What is in use on a device: for tests, `ps` and leak hunting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Free VRAM, bytes.
    pub vram_free: u64,
    /// All VRAM, bytes.
    pub vram_total: u64,
    /// VRAM lost because the device did not let go of it, bytes.
    pub vram_quarantined: u64,
    /// Channels.
    pub channels: u32,
    /// TSGs.
    pub tsgs: u32,
    /// Clients.
    pub clients: u32,
}

/// What the driver, its clients and its interrupt thread share.
///
/// Lock order, outermost first: a client's `objects`, a channel's `ring`, a client's `space`, [`Shared::hw`],
/// [`Shared::contexts`], that of [`Shared::clients`], the free list of VRAM. No lock is held while a device or client is
/// waited for, but `ring` (by a submission to a full queue, which holds no other) and `hw` (while the device switches).
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mmio: Arc<Mmio>,
    pub(crate) vram: Arc<Vram>,
    pub(crate) hw: Mutex<Hw>,
    /// Contexts by the VRAM offset of their channels' instance blocks, as fault packets name them.
    pub(crate) contexts: RwLock<HashMap<u64, Arc<Context>>>,
    /// Semaphore areas of the clients.
    pub(crate) clients: Arc<Listeners>,
    pub(crate) properties: Properties,
    faults: DmaMemory,
    stop: AtomicBool,
}

/// A device and its driver. Clients keep it alive.
#[derive(Debug)]
pub struct Driver {
    pub(crate) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Takes a device over: scrubs its memory, sets up fault buffer, interrupts and scheduling.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn start(backing: Arc<dyn DeviceBacking>) -> Result<Arc<Driver>, StartError> {
        let mmio = Arc::new(Mmio::new(Arc::clone(&backing)));
        let boot_0 = mmio.read(regs::PMC_BOOT_0).map_err(|_| StartError::NoDevice)?;
        let known = regs::BOOT_0_ARCHITECTURE.get(boot_0) == regs::BOOT_0_ARCHITECTURE.get(regs::BOOT_0_TU104)
            && mmio.read(identity::MAGIC_WORD).map_err(|_| StartError::NoDevice)? == identity::MAGIC;
        if !known {
            return Err(StartError::UnknownChip { boot_0 });
        }
        let properties = identify(&mmio, backing.vram().len() as u64).map_err(|_| StartError::NoDevice)?;
        let vram = Arc::new(Vram::new(Arc::clone(&backing)));
        let hw = Hw::new(&vram).ok_or(StartError::TooLittleVram { bytes: vram.total() })?;
        let faults = backing.alloc_dma(u64::from(FAULT_PACKETS) * PACKET_BYTES).map_err(StartError::Resources)?;
        let clients = Arc::new(Listeners::new(Arc::clone(&mmio)));
        let shared = Arc::new(Shared {
            mmio,
            vram,
            hw: Mutex::new(hw),
            contexts: RwLock::default(),
            clients,
            properties,
            faults,
            stop: AtomicBool::new(false),
        });
        shared.enable_interrupts();
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("gpu-interrupts".into())
            .spawn(move || own.serve_interrupts())
            .map_err(StartError::Resources)?;
        Ok(Arc::new(Driver { shared, thread: Some(thread) }))
    }

    /// Facts of the whole GPU.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.shared.properties
    }

    /// A new client, isolated from all others.
    ///
    /// # Errors
    /// What the operating system says when memory shared with the device cannot be had.
    pub fn open(self: &Arc<Driver>, config: ClientConfig) -> io::Result<Arc<Client>> {
        Client::open(Arc::clone(self), config).map(Arc::new)
    }

    /// What is in use.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let hw = self.shared.hw.lock();
        Counts {
            vram_free: self.shared.vram.free(),
            vram_total: self.shared.vram.total(),
            vram_quarantined: self.shared.vram.quarantined(),
            channels: hw.channels_in_use(),
            tsgs: hw.tsgs_in_use(),
            clients: self.shared.clients.count() as u32,
        }
    }

    /// True once the device was found gone or stuck. Nothing brings it back; a new driver on a reset device does.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.mmio.is_lost()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // An interrupt of our own, so that the thread looks at once.
        self.shared.mmio.write(regs::VF_BASE + vf::INTR_LEAF_TRIGGER, vector::CHANNEL_ERROR);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
        self.shared.disable_interrupts();
    }
}

impl Shared {
    fn enable_interrupts(&self) {
        let at = |offset| regs::VF_BASE + offset;
        let bus = self.faults.bus.0;
        let lo = bus as u32 & vf::FAULT_BUFFER_LO_ADDRESS.mask() as u32;
        self.mmio.write(at(vf::FAULT_BUFFER_LO), lo | vf::FAULT_BUFFER_LO_TARGET.of(2));
        self.mmio.write(at(vf::FAULT_BUFFER_HI), (bus >> 32) as u32);
        self.mmio.write(at(vf::FAULT_BUFFER_GET), 0);
        let size = vf::FAULT_BUFFER_ENTRIES.of(FAULT_PACKETS) | vf::FAULT_BUFFER_ENABLE.of(1);
        self.mmio.write(at(vf::FAULT_BUFFER_SIZE), size);
        for vector in [vector::NON_STALL, vector::FAULT, vector::CHANNEL_ERROR] {
            let leaf = vector / 32;
            // That of signals is switched on when somebody sleeps.
            if vector != vector::NON_STALL {
                self.mmio.write(at(vf::INTR_LEAF_EN_SET + leaf * 4), 1 << (vector % 32));
            }
            self.mmio.write(at(vf::INTR_TOP_EN_SET), 1 << (leaf / 2));
        }
    }

    fn disable_interrupts(&self) {
        let at = |offset| regs::VF_BASE + offset;
        self.mmio.write(at(vf::INTR_TOP_EN_CLEAR), u32::MAX);
        self.mmio.write(at(vf::FAULT_BUFFER_SIZE), 0);
        self.mmio.backing().free_dma(self.faults.bus);
    }

    /// The interrupt thread.
    fn serve_interrupts(&self) {
        let mut suspects: Vec<(Instant, Fault)> = Vec::new();
        let mut ended = false;
        while !self.stop.load(Ordering::Acquire) {
            let raised = self.mmio.backing().wait_interrupt(TICK);
            let alive = if raised { self.dispatch(&mut suspects) } else { self.mmio.read(regs::PMC_BOOT_0).map(drop) };
            if (alive.is_err() || self.mmio.is_lost()) && !ended {
                ended = true;
                tracing::error!("the GPU is lost");
                self.clients.end();
            }
            self.judge(&mut suspects);
        }
    }

    /// Handles everything that is pending.
    fn dispatch(&self, suspects: &mut Vec<(Instant, Fault)>) -> Result<(), Lost> {
        let at = |offset| regs::VF_BASE + offset;
        loop {
            let top = self.mmio.read(at(vf::INTR_TOP))?;
            if top == 0 {
                return Ok(());
            }
            let mut pending = [0; vf::INTR_LEAVES as usize];
            for (leaf, word) in (0..).zip(pending.iter_mut()) {
                if top & 1 << (leaf / 2) != 0 {
                    *word = self.mmio.read(at(vf::INTR_LEAF + leaf * 4))?;
                    // Cleared before it is handled: what comes later raises it again.
                    self.mmio.write(at(vf::INTR_LEAF + leaf * 4), *word);
                }
            }
            let is = |vector: u32| pending[(vector / 32) as usize] & 1 << (vector % 32) != 0;
            if is(vector::NON_STALL) {
                self.clients.interrupt();
            }
            if is(vector::CHANNEL_ERROR) {
                self.read_notifiers();
            }
            if is(vector::FAULT) {
                self.read_faults(suspects)?;
            }
        }
    }

    fn read_notifiers(&self) {
        let contexts: Vec<Arc<Context>> = self.contexts.read().values().cloned().collect();
        for context in contexts {
            context.check_notifier(&self.mmio, &self.vram);
        }
    }

    fn read_faults(&self, suspects: &mut Vec<(Instant, Fault)>) -> Result<(), Lost> {
        let at = |offset| regs::VF_BASE + offset;
        let put = vf::FAULT_BUFFER_PTR.get(self.mmio.read(at(vf::FAULT_BUFFER_PUT))?) % FAULT_PACKETS;
        let mut get = vf::FAULT_BUFFER_PTR.get(self.mmio.read(at(vf::FAULT_BUFFER_GET))?) % FAULT_PACKETS;
        while get != put {
            let offset = get as usize * PACKET_BYTES as usize;
            let mut packet = Packet::new_zeroed();
            self.faults.mapping.read(offset, packet.as_mut_bytes());
            self.faults.mapping.fill(offset, PACKET_BYTES as usize, 0);
            if let Some(fault) = packet.decode() {
                tracing::debug!(?fault, "GPU fault");
                suspects.push((Instant::now(), fault));
            }
            get = (get + 1) % FAULT_PACKETS;
        }
        self.mmio.write(at(vf::FAULT_BUFFER_GET), get | vf::FAULT_BUFFER_OVERFLOW.of(1));
        Ok(())
    }

    /// Faults whose channel has no error notifier in time end its context as the packet says.
    fn judge(&self, suspects: &mut Vec<(Instant, Fault)>) {
        suspects.retain(|(since, fault)| {
            let context = self.contexts.read().get(&fault.instance.address).cloned();
            let Some(context) = context else { return false };
            if context.check_notifier(&self.mmio, &self.vram) {
                return false;
            }
            if since.elapsed() < NOTIFIER_LATENESS {
                return true;
            }
            context.fail_for(&self.mmio, fault);
            false
        });
    }
}

/// Reads what the device says of itself.
fn identify(mmio: &Mmio, memory_bytes: u64) -> Result<Properties, Lost> {
    let words = |at: u32, count: u32| (0..count).map(|i| mmio.read(at + i * 4)).collect::<Result<Vec<u32>, Lost>>();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(words(identity::UUID, 4)?.as_bytes());
    let name = words(identity::NAME, identity::NAME_WORDS)?;
    let name = String::from_utf8_lossy(name.as_bytes()).trim_end_matches('\0').to_owned();
    let pci = words(identity::PCI, 3)?;
    let capability = mmio.read(identity::COMPUTE_CAPABILITY)?;
    Ok(Properties {
        name,
        uuid,
        pci: [pci[0], pci[1], pci[2]],
        compute_capability: [capability >> 16, capability & 0xffff],
        driver_version: DRIVER_VERSION,
        multiprocessors: mmio.read(identity::MULTIPROCESSORS)?,
        memory_bytes,
        clock_khz: mmio.read(identity::CLOCK_KHZ)?,
        memory_clock_khz: mmio.read(identity::MEMORY_CLOCK_KHZ)?,
        memory_bus_bits: mmio.read(identity::MEMORY_BUS_BITS)?,
        l2_bytes: mmio.read(identity::L2_BYTES)?,
    })
}
