//! The device's owner: starts it, hands out clients, and dispatches its interrupts.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device_io::{DeviceBacking, VramOffset};
use gpu::{GpuError, Properties};
use gpu_spec::balloon;
use gpu_spec::fault::{Fault, PACKET_BYTES, Packet};
use gpu_spec::mmu::{Aperture, SMALL_PAGE};
use gpu_spec::ramfc::target;
use gpu_spec::regs::{self, identity, vector, vf};
use parking_lot::RwLock;
use zerocopy::{FromZeros, IntoBytes};

use crate::balloon::{Balloon, Left};
use crate::budget::{Budget, BudgetNumbers, HostCost};
use crate::client::{Client, ClientConfig};
use crate::context::Context;
use crate::lease::Leased;
use crate::mmio::{Mmio, Stuck};
use crate::paging::Hypercalls;
use crate::scheduling::Scheduler;
use crate::signals::Listeners;
use crate::vram::{Owner, Run, Vram};

/// Packets in the fault buffer.
const FAULT_PACKETS: u32 = 1024;
/// CUDA driver version that clients are told.
const DRIVER_VERSION: u32 = 13_050;
/// How often the device is looked at without an interrupt, to notice that it is gone.
const TICK: Duration = Duration::from_millis(50);
/// While signals come, the device is asked so often whether there is something else.
const ASK: Duration = Duration::from_millis(1);
/// The leaf with the vector of signals.
const SIGNALS: u32 = regs::VF_BASE + vf::INTR_LEAF + vector::NON_STALL / 32 * 4;
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
    /// VRAM that counts against the limits of clients, bytes.
    pub vram_of_clients: u64,
    /// VRAM that is taken for clients beside that, bytes: page tables, contexts, channels.
    pub vram_upkeep: u64,
    /// VRAM that leases hold, bytes.
    pub vram_of_leases: u64,
    /// VRAM lost because the device did not let go of it, bytes.
    pub vram_quarantined: u64,
    /// Channels that exist, those that are stuck included.
    pub channels: u32,
    /// Time-slice groups, likewise.
    pub tsgs: u32,
    /// Clients that are open.
    pub clients: u32,
}

/// What the driver, its clients and its interrupt thread share.
///
/// Lock order, outermost first. A client's: a queue's `state`, `objects`, a context's `channels`, a channel's `ring`,
/// `parking`, `space`, the pools of host memory. Everybody's: those of the [`Scheduler`], [`Device::contexts`], that of
/// [`Device::clients`], the free list of VRAM.
///
/// Everybody's are never held over a wait, nor over a loop whose length a tenant chooses. Of a client's, `state` and `ring`
/// are held while a submission waits for room, `channels` and `space` while the device is told of changes; nobody else's
/// calls take them, nor do metering and scheduling of the client ([`Client::usage`], [`Client::set_time_slice`]).
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) mmio: Arc<Mmio>,
    pub(crate) vram: Arc<Vram>,
    pub(crate) scheduler: Scheduler,
    /// The host makes page tables, if the device is a guest's and offers to.
    pub(crate) hypercalls: Option<Arc<Hypercalls>>,
    /// The host may ask for VRAM, if the device is a guest's and offers that.
    balloon: Option<Balloon>,
    /// Contexts by the VRAM offset of their channels' instance blocks, as fault packets name them.
    pub(crate) contexts: RwLock<HashMap<u64, Registered>>,
    /// Semaphore areas of the clients.
    pub(crate) clients: Arc<Listeners>,
    pub(crate) properties: Properties,
    pub(crate) budgets: Arc<BudgetNumbers>,
    /// Leases, for interrupts. Read over what mediators do there, which is little.
    pub(crate) leases: RwLock<Vec<Arc<Leased>>>,
    /// The fault buffer, in VRAM: the device wants it in one piece.
    faults: Run,
    stop: AtomicBool,
}

/// A channel's context, as faults find it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) context: Arc<Context>,
    /// Device time from which on its instance block is the channel's, nanoseconds.
    pub(crate) since_ns: u64,
}

/// A device and its driver. Clients keep it alive.
#[derive(Debug)]
pub struct Driver {
    pub(crate) device: Arc<Device>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Takes a device over: resets it if that is possible, else scrubs its memory; sets up fault buffer, interrupts and
    /// scheduling.
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
        let is_zero = backing.reset().is_ok();
        let properties = identify(&mmio, backing.vram_bytes()).map_err(|_| StartError::NoDevice)?;
        let vram = Arc::new(Vram::new(Arc::clone(&backing), is_zero));
        let scheduler = Scheduler::new(&mmio, &vram).ok_or(StartError::TooLittleVram { bytes: vram.total() })?;
        let hypercalls = Hypercalls::take(&mmio, &vram).map_err(|_| StartError::NoDevice)?;
        let faults = vram.take_run(u64::from(FAULT_PACKETS) * PACKET_BYTES, SMALL_PAGE, Owner::Device);
        let faults = faults.ok_or(StartError::TooLittleVram { bytes: vram.total() })?;
        let clients = Arc::new(Listeners::new(Arc::clone(&mmio)));
        let balloon = Balloon::take(&mmio, &vram).map_err(|_| StartError::NoDevice)?;
        let device = Arc::new(Device {
            mmio,
            vram,
            scheduler,
            hypercalls,
            balloon,
            contexts: RwLock::default(),
            clients,
            properties,
            budgets: Arc::new(BudgetNumbers::new()),
            leases: RwLock::default(),
            faults,
            stop: AtomicBool::new(false),
        });
        device.enable_interrupts();
        let interrupted = Arc::clone(&device);
        let thread = std::thread::Builder::new()
            .name("gpu-interrupts".into())
            .spawn(move || interrupted.serve_interrupts())
            .map_err(StartError::Resources)
            .inspect_err(|_| device.disable_interrupts())?;
        Ok(Arc::new(Driver { device, thread: Some(thread) }))
    }

    /// Facts of the whole GPU.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.device.properties
    }

    /// A new client, isolated from all others.
    ///
    /// # Errors
    /// What the operating system says when memory shared with the device cannot be had.
    pub fn open(self: &Arc<Driver>, config: ClientConfig) -> io::Result<Arc<Client>> {
        Client::open(Arc::clone(self), config)
    }

    /// A budget for a tenant, to be given to its clients ([`ClientConfig::budget`]).
    ///
    /// # Errors
    /// `TooMany`.
    pub fn budget(&self, limits: HostCost) -> Result<Arc<Budget>, GpuError> {
        Budget::new(&self.device.mmio, &self.device.budgets, limits)
    }

    /// What is in use.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (channels, tsgs) = self.device.scheduler.in_use();
        let (vram_of_clients, vram_upkeep) = self.device.vram.of_clients();
        Counts {
            vram_free: self.device.vram.free(),
            vram_total: self.device.vram.total(),
            vram_of_clients,
            vram_upkeep,
            vram_of_leases: self.device.leases.read().iter().map(|lease| lease.vram_bytes()).sum(),
            vram_quarantined: self.device.vram.quarantined(),
            channels,
            tsgs,
            clients: self.device.clients.count() as u32,
        }
    }

    /// Bytes of VRAM that are not free and no client's: what leases hold, what is lost, and the driver's own.
    #[must_use]
    pub fn vram_beside_clients(&self) -> u64 {
        self.device.vram.beside_clients()
    }

    /// True once the device was found gone or stuck. Nothing brings it back; a new driver on a reset device does.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.device.mmio.is_lost()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.device.stop.store(true, Ordering::Release);
        // An interrupt of our own, so that the thread looks at once.
        self.device.mmio.write(regs::VF_BASE + vf::INTR_LEAF_TRIGGER, vector::CHANNEL_ERROR);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
        self.device.disable_interrupts();
    }
}

impl Device {
    fn enable_interrupts(&self) {
        let at = |offset| regs::VF_BASE + offset;
        let lo = self.faults.offset as u32 & vf::FAULT_BUFFER_LO_ADDRESS.mask() as u32;
        self.mmio.write(at(vf::FAULT_BUFFER_LO), lo | vf::FAULT_BUFFER_LO_TARGET.of(target(Aperture::Vram)));
        self.mmio.write(at(vf::FAULT_BUFFER_HI), (self.faults.offset >> 32) as u32);
        self.mmio.write(at(vf::FAULT_BUFFER_GET), 0);
        let size = vf::FAULT_BUFFER_ENTRIES.of(FAULT_PACKETS) | vf::FAULT_BUFFER_ENABLE.of(1);
        self.mmio.write(at(vf::FAULT_BUFFER_SIZE), size);
        let balloon = self.balloon.as_ref().map(|_| balloon::VECTOR);
        for vector in [vector::NON_STALL, vector::FAULT, vector::CHANNEL_ERROR].into_iter().chain(balloon) {
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
        if let Some(balloon) = &self.balloon {
            balloon.leave();
        }
        self.mmio.write(at(vf::INTR_TOP_EN_CLEAR), u32::MAX);
        self.mmio.write(at(vf::FAULT_BUFFER_SIZE), 0);
    }

    /// The interrupt thread.
    fn serve_interrupts(&self) {
        hostmem::prefer_short_slices();
        let mut suspects: Vec<(Instant, Fault)> = Vec::new();
        let mut ended = false;
        let mut left = Left::More;
        // When the device was asked last, and whether it is to be asked soon.
        let (mut asked, mut owed) = (Instant::now(), false);
        while !self.stop.load(Ordering::Acquire) {
            let tick = if owed { ASK } else { TICK };
            let bound = self.clients.resume().map_or(tick, |left| left.min(tick));
            let bound = if left == Left::More { Duration::ZERO } else { bound };
            let raised = self.mmio.backing().wait_interrupt(bound);
            let hurried = raised && asked.elapsed() < ASK && self.pass_on_signals();
            let alive = match hurried {
                true => Ok(()),
                false if raised || owed => self.dispatch(&mut suspects),
                false => self.mmio.read(regs::PMC_BOOT_0).map(drop),
            };
            owed = hurried;
            if !hurried {
                asked = Instant::now();
            }
            if (alive.is_err() || self.mmio.is_lost()) && !ended {
                ended = true;
                tracing::error!("the GPU is lost");
                self.clients.end();
                self.leases.read().iter().for_each(|lease| lease.lost());
            }
            self.judge(&mut suspects);
            left = match &self.balloon {
                Some(balloon) if !ended => balloon.go_on().unwrap_or(Left::Later),
                _ => Left::Nothing,
            };
        }
    }

    /// Passes signals on and asks for nothing else: in a guest that may take longer than the kernel that was waited for. False
    /// if signals do not interrupt, so that it was something else.
    fn pass_on_signals(&self) -> bool {
        if !self.clients.are_on() {
            return false;
        }
        let mut asleep = self.clients.wake();
        // What is signalled between these is heard in one of three ways: now, by another interrupt, or when the device is asked.
        // That holds for a device, too, that hears of this only then, or by what the woken submit.
        self.mmio.write_late(SIGNALS, 1 << (vector::NON_STALL % 32));
        asleep.extend(self.clients.wake());
        asleep.extend(self.leases.read().iter().filter_map(|lease| lease.signal(&self.mmio)));
        self.clients.account(asleep);
        true
    }

    /// Handles everything that is pending. No vector but that of signals lies in its part of the tree.
    ///
    /// Signals first, and whatever the device would say: who waits for one looks at memory, and to ask may take longer than a
    /// kernel does. In a guest each read has two threads wait for a processor, which other tenants' kernels may have.
    fn dispatch(&self, suspects: &mut Vec<(Instant, Fault)>) -> Result<(), Stuck> {
        let at = |offset| regs::VF_BASE + offset;
        let (mut asleep, mut signals_only) = (Vec::new(), true);
        loop {
            // Vectors are cleared before they are handled: what comes later raises them again.
            self.mmio.write(SIGNALS, 1 << (vector::NON_STALL % 32));
            asleep.extend(self.clients.wake());
            let top = self.mmio.read(at(vf::INTR_TOP))? & !(1 << (vector::NON_STALL / 64));
            // The write is posted, and has arrived now. What was signalled meanwhile raised nothing: whoever sleeps looks again.
            asleep.extend(self.clients.wake());
            asleep.extend(self.leases.read().iter().filter_map(|lease| lease.signal(&self.mmio)));
            if top == 0 {
                break;
            }
            signals_only = false;
            let mut pending = [0; vf::INTR_LEAVES as usize];
            for (leaf, word) in (0..).zip(pending.iter_mut()) {
                if top & 1 << (leaf / 2) != 0 {
                    *word = self.mmio.read(at(vf::INTR_LEAF + leaf * 4))?;
                    self.mmio.write(at(vf::INTR_LEAF + leaf * 4), *word);
                }
            }
            let is = |vector: u32| pending[(vector / 32) as usize] & 1 << (vector % 32) != 0;
            if is(vector::CHANNEL_ERROR) {
                self.read_notifiers();
                self.leases.read().iter().for_each(|lease| lease.channel_error());
            }
            if is(vector::FAULT) {
                self.read_faults(suspects)?;
            }
            if is(balloon::VECTOR)
                && let Some(balloon) = &self.balloon
            {
                balloon.hear();
            }
        }
        // Errors interrupt whether somebody sleeps or not.
        if signals_only {
            self.clients.account(asleep);
        }
        Ok(())
    }

    /// The device's time, nanoseconds.
    pub(crate) fn time_ns(&self) -> Result<u64, Stuck> {
        self.mmio.read_long(regs::PTIMER_TIME_0, regs::PTIMER_TIME_1)
    }

    fn read_notifiers(&self) {
        let contexts: Vec<Arc<Context>> =
            self.contexts.read().values().map(|registered| Arc::clone(&registered.context)).collect();
        for context in contexts {
            context.check_notifier(&self.mmio, &self.vram);
        }
    }

    fn read_faults(&self, suspects: &mut Vec<(Instant, Fault)>) -> Result<(), Stuck> {
        let at = |offset| regs::VF_BASE + offset;
        let put = vf::FAULT_BUFFER_PTR.get(self.mmio.read(at(vf::FAULT_BUFFER_PUT))?) % FAULT_PACKETS;
        let mut get = vf::FAULT_BUFFER_PTR.get(self.mmio.read(at(vf::FAULT_BUFFER_GET))?) % FAULT_PACKETS;
        while get != put {
            let at = VramOffset(self.faults.offset + u64::from(get) * PACKET_BYTES);
            let mut packet = Packet::new_zeroed();
            self.mmio.backing().read_vram(at, packet.as_mut_bytes());
            self.mmio.backing().fill_vram(at, PACKET_BYTES as usize, 0);
            if let Some(fault) = packet.decode() {
                tracing::debug!(?fault, "GPU fault");
                if !self.leases.read().iter().any(|lease| lease.fault(&fault)) {
                    suspects.push((Instant::now(), fault));
                }
            }
            get = (get + 1) % FAULT_PACKETS;
        }
        self.mmio.write(at(vf::FAULT_BUFFER_GET), get | vf::FAULT_BUFFER_OVERFLOW.of(1));
        Ok(())
    }

    /// Faults whose channel has no error notifier in time end its context as the packet says.
    fn judge(&self, suspects: &mut Vec<(Instant, Fault)>) {
        suspects.retain(|(since, fault)| {
            let contexts = self.contexts.read();
            let registered = contexts.get(&fault.instance.address);
            // A packet from before is of a channel that is gone and had the same place.
            let Some(registered) = registered.filter(|r| r.since_ns <= fault.timestamp) else { return false };
            let context = Arc::clone(&registered.context);
            drop(contexts);
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
fn identify(mmio: &Mmio, memory_bytes: u64) -> Result<Properties, Stuck> {
    let words = |at: u32, count: u32| (0..count).map(|i| mmio.read(at + i * 4)).collect::<Result<Vec<u32>, Stuck>>();
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
