//! The whole device for one guest, with nobody in between: GPUvm's pass-through.
//!
//! Registers are the device's own, its VRAM is all the guest's and mapped where it can be, its bus addresses are those of the
//! guest's memory, and its interrupt is the guest's. Nothing is audited, because there is nobody to be kept from anything: **the
//! device has one user**. What keeps it to that guest's memory is the device's view of the bus, which is the maps that the guest
//! has given and nothing else ([`DeviceBacking::map_dma_at`]), as an IOMMU would have it.
//!
//! Between two guests, and when a guest asks for a reset, the device is switched off and on: another one in its place, of which
//! nothing is known to anybody, with zero VRAM in a file that the last guest has not seen.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, VramOffset};
use gpu_spec::regs::{self, vf};
use hostmem::Memfd;
use parking_lot::{Condvar, Mutex, RwLock};
use vfio_user::{Description, Device, DmaMap, Errno, Interrupts, pci};

use crate::Counts;
use crate::counts::Counters;
use crate::device::{count_trap, describe, read_words, write_words};
use crate::memory::{MOST_MAPS, usable};
use crate::pci::ConfigSpace;

/// Between two looks at the device's interrupt line, when nobody says anything.
const LOOK: Duration = Duration::from_millis(50);
/// The same, while the guest has not dealt with the last interrupt.
const PATIENCE: Duration = Duration::from_millis(20);
/// Longest that the device may take to forget translations, or to be let go of by who looks at its line.
const BOUND: Duration = Duration::from_secs(2);

/// Switches the device on: one as nobody has used it. The last is gone by then.
pub type Power = Box<dyn Fn() -> io::Result<Arc<dyn DeviceBacking>> + Send + Sync>;

/// A device that one guest after another has whole.
pub struct PassThrough {
    name: String,
    vram_bytes: u64,
    power: Power,
    /// Taken after `memory`, and after `interrupts`.
    switch: RwLock<Switch>,
    /// What the guest maps of VRAM, and what it has mapped for the device.
    memory: Mutex<Memory>,
    pci: Mutex<ConfigSpace>,
    interrupts: Mutex<Wire>,
    /// The guest has changed something about the line.
    settled: Condvar,
    counters: Counters,
    /// Why the device is off, if it is.
    off: Mutex<Option<String>>,
    ended: AtomicBool,
}

/// There is one device at a time, whoever still has the last.
#[derive(Default)]
struct Switch {
    /// `None` if it cannot be switched on, or did not obey: it reads as ones.
    on: Option<Arc<dyn DeviceBacking>>,
    /// The last one, if somebody keeps it from stopping: it reaches all the memory that it ever did.
    old: Option<Arc<dyn DeviceBacking>>,
}

impl Switch {
    /// Switches the device off: when this returns well, it has stopped, and reaches no memory any more.
    fn off(&mut self) -> io::Result<()> {
        if let Some(device) = self.on.take() {
            // Who waits for its interrupts looks up when there is one.
            let at = |offset| regs::VF_BASE + offset;
            for (register, value) in [(vf::INTR_LEAF_EN_SET, 1), (vf::INTR_TOP_EN_SET, 1), (vf::INTR_LEAF_TRIGGER, 0)] {
                device.write32(at(register), value);
            }
            self.old = Some(device);
        }
        let Some(old) = &self.old else { return Ok(()) };
        let since = Instant::now();
        while Arc::strong_count(old) > 1 {
            if since.elapsed() > BOUND {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "somebody still has the last device"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        // The last handle: it stops now.
        self.old = None;
        Ok(())
    }
}

#[derive(Default)]
struct Memory {
    vram: Option<Arc<Memfd>>,
    /// By bus address: the file, where in it, and bytes.
    maps: BTreeMap<u64, (Arc<Memfd>, u64, u64)>,
}

/// Where the device's line ends.
#[derive(Default)]
struct Wire {
    interrupts: Option<Arc<Interrupts>>,
    up: bool,
    /// The guest wants no interrupts by wire.
    off: bool,
}

impl PassThrough {
    /// Takes over a device of `vram_bytes`; `power` makes it, now and after each guest.
    ///
    /// # Errors
    /// It cannot be switched on.
    pub fn new(name: &str, vram_bytes: u64, power: Power) -> io::Result<Arc<PassThrough>> {
        let whole = PassThrough {
            name: name.to_owned(),
            vram_bytes,
            power,
            switch: RwLock::default(),
            memory: Mutex::default(),
            pci: Mutex::new(ConfigSpace::new(vram_bytes.next_power_of_two())),
            interrupts: Mutex::default(),
            settled: Condvar::new(),
            counters: Counters::default(),
            off: Mutex::default(),
            ended: AtomicBool::new(false),
        };
        whole.cycle(true)?;
        Ok(Arc::new(whole))
    }

    /// All the VRAM, bytes.
    #[must_use]
    pub fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    /// What came as messages: nothing else is counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.now()
    }

    /// Why the guest has no device, if it has none; the next may have another.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.off.lock().clone()
    }

    /// Passes the device's interrupts on. Returns after [`PassThrough::end`].
    pub fn attend(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let device = self.switch.read().on.clone();
            let raised = device.as_ref().is_some_and(|device| device.wait_interrupt(LOOK));
            let lost = device.is_none();
            drop(device);
            if raised {
                self.settle();
            }
            let mut wire = self.interrupts.lock();
            if wire.up || lost {
                self.settled.wait_for(&mut wire, PATIENCE);
            }
        }
    }

    /// Has [`PassThrough::attend`] return, and the guest see no device any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.settled.notify_all();
    }

    /// Drives the line as the device does now. A message is sent for whatever may be new.
    fn settle(&self) {
        let at = |offset| self.read32(regs::VF_BASE + offset);
        let mut wire = self.interrupts.lock();
        wire.up = at(vf::INTR_TOP) & at(vf::INTR_TOP_EN_SET) != 0 && self.switch.read().on.is_some();
        let Wire { interrupts, up, off } = &*wire;
        if let Some(interrupts) = interrupts {
            interrupts.set_level(pci::INTX, 0, *up && !off);
            if *up {
                interrupts.trigger(pci::MSIX, 0);
            }
        }
        drop(wire);
        self.settled.notify_all();
    }

    fn read32(&self, offset: u32) -> u32 {
        let switch = self.switch.read();
        let on = switch.on.as_ref().filter(|_| !self.ended.load(Ordering::Relaxed));
        on.map_or(u32::MAX, |device| device.read32(offset))
    }

    fn write32(&self, offset: u32, value: u32) {
        if let Some(device) = &self.switch.read().on {
            device.write32(offset, value);
        }
        // What the guest says about interrupts may lower the line, and may leave it up for another reason.
        let at = offset.wrapping_sub(regs::VF_BASE);
        if (vf::INTR_LEAF..=vf::INTR_LEAF_TRIGGER).contains(&at) {
            self.settle();
        }
    }

    /// Switches the device off and on; with `leave`, VRAM is in a new file and nothing is mapped for it.
    fn cycle(&self, leave: bool) -> io::Result<()> {
        let mut memory = self.memory.lock();
        if leave {
            *memory = Memory::default();
        }
        let mut switch = self.switch.write();
        switch.off()?;
        let device = (self.power)()?;
        let shown = memory.vram.is_some();
        if !shown {
            memory.vram = Some(Arc::new(Memfd::create("sundial-whole-vram", self.vram_bytes)?));
        }
        let lent = memory.vram.as_ref().map(|file| device.lend_vram(VramOffset(0), file, 0, self.vram_bytes));
        if let Some(Err(error)) = lent {
            if shown {
                // The guest has mapped the file, and would go on with what is VRAM no longer.
                return Err(error);
            }
            tracing::warn!(%error, guest = self.name, "VRAM cannot be lent: accesses to BAR1 are trapped");
            memory.vram = None;
        }
        for (bus, (file, offset, bytes)) in &memory.maps {
            device.map_dma_at(BusAddr(*bus), file, *offset, *bytes)?;
        }
        switch.on = Some(device);
        Ok(())
    }

    fn renew(&self, leave: bool) {
        let cycled = self.cycle(leave);
        if let Err(error) = &cycled {
            tracing::error!(%error, guest = self.name, "the device cannot be switched on again");
        }
        *self.off.lock() = cycled.err().map(|error| format!("it cannot be switched on again: {error}"));
        self.settle();
    }
}

/// Has the device forget all its translations; false if it does not.
fn invalidate(device: &dyn DeviceBacking) -> bool {
    let all = vf::INVALIDATE_ALL_VA.of(1) | vf::INVALIDATE_ALL_PDB.of(1) | vf::INVALIDATE_TRIGGER.of(1);
    let at = regs::VF_BASE + vf::MMU_INVALIDATE;
    device.write32(at, all);
    let since = Instant::now();
    while vf::INVALIDATE_TRIGGER.is_set(device.read32(at)) {
        if since.elapsed() > BOUND {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}

impl Device for PassThrough {
    fn describe(&self, _proposed: Option<&serde_json::Value>) -> Description {
        let file: Option<Arc<OwnedFd>> =
            self.memory.lock().vram.as_ref().and_then(|file| Some(Arc::new(file.try_clone().ok()?.into_fd())));
        describe(self.vram_bytes, file)
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        self.interrupts.lock().interrupts = Some(interrupts);
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        count_trap(&self.counters, region, offset);
        match region {
            pci::BAR0 => read_words(offset, out, |at| self.read32(at)),
            pci::BAR1 => match &self.switch.read().on {
                Some(device) => device.read_vram(VramOffset(offset), out),
                None => out.fill(0xff),
            },
            pci::CONFIG => {
                let up = self.interrupts.lock().up;
                self.pci.lock().read(offset, up, out);
            }
            _ => out.fill(0),
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        count_trap(&self.counters, region, offset);
        match region {
            pci::BAR0 => write_words(offset, data, |at, value| self.write32(at, value)),
            pci::BAR1 => {
                if let Some(device) = &self.switch.read().on {
                    device.write_vram(VramOffset(offset), data);
                }
            }
            pci::CONFIG => {
                let mut space = self.pci.lock();
                space.write(offset, data);
                let off = space.wire_off();
                drop(space);
                if ConfigSpace::resets(offset, data) {
                    self.renew(false);
                }
                let before = std::mem::replace(&mut self.interrupts.lock().off, off);
                if before != off {
                    self.settle();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        let Some((fd, offset)) = map.file else { return Ok(()) };
        let file = Arc::new(usable(fd)?);
        let mut memory = self.memory.lock();
        if memory.maps.len() >= MOST_MAPS {
            return Err(Errno::NOSPC);
        }
        if let Some(device) = &self.switch.read().on {
            let mapped = device.map_dma_at(BusAddr(map.address), &file, offset, map.bytes);
            mapped.map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Errno::EXIST,
                io::ErrorKind::InvalidInput => Errno::INVAL,
                _ => Errno::NOMEM,
            })?;
        }
        memory.maps.insert(map.address, (file, offset, map.bytes));
        Ok(())
    }

    fn unmap(&self, address: u64, _bytes: u64) {
        if self.memory.lock().maps.remove(&address).is_none() {
            return;
        }
        let let_go = match &*self.switch.read() {
            Switch { on: Some(device), .. } => {
                device.free_dma(BusAddr(address));
                invalidate(device.as_ref())
            }
            // It has not stopped when it was to, and may by now.
            Switch { old: Some(device), .. } => {
                device.free_dma(BusAddr(address));
                false
            }
            Switch { .. } => true,
        };
        if !let_go {
            tracing::error!(guest = self.name, "the device does not let go of memory: it is switched off");
            *self.off.lock() = Some("it did not let go of its guest's memory, and is switched off".into());
            if let Err(error) = self.switch.write().off() {
                tracing::error!(%error, guest = self.name, "the device does not stop: it may still use a guest's memory");
            }
        }
    }

    fn reset(&self) {
        self.renew(false);
    }

    fn gone(&self) {
        *self.interrupts.lock() = Wire::default();
        *self.pci.lock() = ConfigSpace::new(self.vram_bytes.next_power_of_two());
        self.renew(true);
    }
}

impl std::fmt::Debug for PassThrough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassThrough").field("name", &self.name).finish_non_exhaustive()
    }
}
