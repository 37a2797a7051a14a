//! A GPU whose BARs Linux shows in sysfs.

mod memory;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use gpu_spec::regs::{self, vf};
use hostmem::{DeviceMapping, Mapping, Memfd, Pinned};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::{BAR0_BYTES, OpenError, vram_bytes};

use memory::Locate;

/// A TU104 that is no display adapter: what a virtual GPU says that it is.
const VENDOR: u64 = 0x10de;
const DEVICE: u64 = 0x1eb8;
const CLASS: u64 = 0x12_0000;
/// The command register in configuration space, and its bits: answer to memory accesses, be master of the bus, keep the wire down.
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_INTX: u16 = 1 << 10;
/// How long who polls for interrupts sleeps between two looks: at first, and at last.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LAST_PAUSE: Duration = Duration::from_millis(4);

/// Where the machine's files are. In tests, elsewhere.
struct Places {
    sysfs: PathBuf,
    dev: PathBuf,
    /// Bus addresses of memory.
    locate: Locate,
}

/// A GPU by its files in sysfs.
pub struct SysfsGpu {
    registers: DeviceMapping,
    aperture: DeviceMapping,
    vram_bytes: u64,
    interrupts: Interrupts,
    /// Resets the device, if the machine can.
    reset: PathBuf,
    locate: Locate,
    /// What the device has, by bus address: the pages must stay until it is taken back.
    held: Mutex<HashMap<u64, Held>>,
}

/// Memory of the device.
type Held = (Arc<Memfd>, Arc<Mapping>, Option<Pinned>);

/// How interrupts come.
#[derive(Debug)]
enum Interrupts {
    /// From the file of `uio_pci_generic`, which keeps the wire down after each until it is told otherwise, in configuration
    /// space.
    Uio { events: File, config: File },
    /// By looking whether there are any.
    Polled,
}

impl SysfsGpu {
    /// Opens the GPU at an address such as `0000:00:04.0`, or the first one.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(address: Option<&str>) -> Result<SysfsGpu, OpenError> {
        let locate = memory::by_pagemap(Path::new("/proc/self/pagemap"))?;
        SysfsGpu::open_in(Places { sysfs: "/sys".into(), dev: "/dev".into(), locate }, address)
    }

    fn open_in(places: Places, address: Option<&str>) -> Result<SysfsGpu, OpenError> {
        let device = find(&places.sysfs.join("bus/pci/devices"), address)?;
        let config = open(&device.join("config"))?;
        // Before BARs can be mapped; there is nothing to write where a driver of the kernel has it.
        let _ = fs::write(device.join("enable"), "1");
        set_command(&config, COMMAND_MEMORY | COMMAND_MASTER, 0)
            .map_err(|error| OpenError::File { path: device.join("config"), error })?;
        let registers = map(&device.join("resource0"), Some(BAR0_BYTES))?;
        let aperture = map(&device.join("resource1"), None)?;
        let vram_bytes = vram_bytes(|offset| registers.read32(offset as usize), aperture.len() as u64)?;
        let interrupts = match uio(&device, &places.dev) {
            Some(path) => Interrupts::Uio { events: open(&path)?, config },
            None => {
                // Nobody would hear of an interrupt by wire, and QEMU, from the first on, would trap every access to the BARs.
                set_command(&config, COMMAND_NO_INTX, 0)
                    .map_err(|error| OpenError::File { path: device.join("config"), error })?;
                Interrupts::Polled
            }
        };
        tracing::debug!(device = %device.display(), ?interrupts, vram_bytes, "a GPU on the PCI bus");
        let (reset, locate) = (device.join("reset"), places.locate);
        let gpu = SysfsGpu { registers, aperture, vram_bytes, interrupts, reset, locate, held: Mutex::default() };
        // Now rather than in the middle of somebody's program.
        let probe = gpu.alloc_dma(hostmem::PAGE).map_err(OpenError::Memory)?;
        gpu.free_dma(probe.bus());
        Ok(gpu)
    }

    fn pending(&self) -> bool {
        let top = self.read32(regs::VF_BASE + vf::INTR_TOP);
        // All ones: it is gone, which the driver finds out otherwise.
        top != 0 && top != u32::MAX
    }

    /// Looks for an interrupt until `timeout`, ever less often.
    fn poll_interrupt(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            if self.pending() {
                return true;
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }
}

impl std::fmt::Debug for SysfsGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SysfsGpu").field("device", &self.reset.parent()).finish_non_exhaustive()
    }
}

/// The folder of the device at `address`, or of the first GPU.
fn find(devices: &Path, address: Option<&str>) -> Result<PathBuf, OpenError> {
    let is_gpu = |device: &PathBuf| {
        [("vendor", VENDOR), ("device", DEVICE), ("class", CLASS)]
            .into_iter()
            .all(|(name, wanted)| number(&device.join(name)) == Some(wanted))
    };
    if let Some(address) = address {
        let device = devices.join(address);
        let wanted = || OpenError::NotFound { wanted: address.to_owned() };
        // An address names no other folder.
        if address.contains('/') || !device.is_dir() {
            return Err(wanted());
        }
        return if is_gpu(&device) {
            Ok(device)
        } else {
            Err(OpenError::Foreign("it has another vendor, device or class"))
        };
    }
    let listed = fs::read_dir(devices).map_err(|error| OpenError::File { path: devices.to_owned(), error })?;
    let mut found: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(is_gpu).collect();
    found.sort();
    let wanted = || OpenError::NotFound { wanted: format!("{VENDOR:04x}:{DEVICE:04x} of class {CLASS:06x}") };
    found.into_iter().next().ok_or_else(wanted)
}

/// A number as sysfs writes it, such as `0x10de`.
fn number(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

fn open(path: &Path) -> Result<File, OpenError> {
    let file = File::options().read(true).write(true).open(path);
    file.map_err(|error| OpenError::File { path: path.to_owned(), error })
}

/// Maps a BAR, whose file has its size; it must be `expected`.
fn map(path: &Path, expected: Option<u64>) -> Result<DeviceMapping, OpenError> {
    let file = open(path)?;
    let wrong = |error| OpenError::File { path: path.to_owned(), error };
    let bytes = file.metadata().map_err(wrong)?.len();
    if expected.is_some_and(|expected| bytes != expected) {
        return Err(OpenError::Foreign("its BAR0 has another size"));
    }
    DeviceMapping::new(&file, bytes).map_err(wrong)
}

/// The event file of `uio_pci_generic`, if the device is bound to it.
fn uio(device: &Path, dev: &Path) -> Option<PathBuf> {
    let mut listed = fs::read_dir(device.join("uio")).ok()?.flatten();
    listed
        .find(|entry| entry.file_name().as_encoded_bytes().starts_with(b"uio"))
        .map(|entry| dev.join(entry.file_name()))
}

/// Sets and clears bits of the command register.
fn set_command(config: &File, set: u16, clear: u16) -> io::Result<()> {
    let mut word = [0; 2];
    config.read_exact_at(&mut word, COMMAND)?;
    let command = u16::from_le_bytes(word);
    let changed = command & !clear | set;
    if changed == command { Ok(()) } else { config.write_all_at(&changed.to_le_bytes(), COMMAND) }
}

impl DeviceBacking for SysfsGpu {
    fn read32(&self, bar0_offset: u32) -> u32 {
        let at = bar0_offset as usize;
        if at.is_multiple_of(4) && at < self.registers.len() { self.registers.read32(at) } else { 0 }
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        let at = bar0_offset as usize;
        if at.is_multiple_of(4) && at < self.registers.len() {
            self.registers.write32(at, value);
        }
    }

    fn reset(&self) -> io::Result<()> {
        if !self.reset.exists() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        fs::write(&self.reset, "1")
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        // Loads and stores are the device's affair: they may be trapped, and must not be torn.
        None
    }

    fn read_vram(&self, offset: VramOffset, out: &mut [u8]) {
        if self.has_vram(offset, out.len()) { self.aperture.read(offset.0 as usize, out) } else { out.fill(0xff) }
    }

    fn write_vram(&self, offset: VramOffset, data: &[u8]) {
        if self.has_vram(offset, data.len()) {
            self.aperture.write(offset.0 as usize, data);
        }
    }

    fn fill_vram(&self, offset: VramOffset, bytes: usize, value: u8) {
        if self.has_vram(offset, bytes) {
            self.aperture.fill(offset.0 as usize, bytes, value);
        }
    }

    fn discard_vram(&self, _offset: VramOffset, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        let (file, mapping, pinned) = memory::resident(bytes)?;
        let (file, mapping) = (Arc::new(file), Arc::new(mapping));
        let pages = (self.locate)(&mapping)?;
        self.held.lock().insert(pages[0].0, (Arc::clone(&file), Arc::clone(&mapping), pinned));
        Ok(DmaMemory::scattered(hostmem::PAGE, &pages, file, mapping))
    }

    fn free_dma(&self, bus: BusAddr) {
        let freed = self.held.lock().remove(&bus.0);
        // Unmapped outside the lock.
        drop(freed);
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        let Interrupts::Uio { events, config } = &self.interrupts else { return self.poll_interrupt(timeout) };
        // What was raised before has been handled by now, and the wire is down.
        if set_command(config, 0, COMMAND_NO_INTX).is_err() {
            return self.poll_interrupt(timeout);
        }
        let timeout = Timespec::try_from(timeout).ok();
        let mut polled = [PollFd::new(events, PollFlags::IN)];
        let raised = rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0);
        // The count of interrupts: reading it is what counts.
        raised && rustix::io::read(events, &mut [0; 4]).is_ok()
    }
}

#[cfg(test)]
mod tests;
