//! A GPU over a vfio-user socket.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use hostmem::{Mapping, Memfd};
use intervals::FreeRanges;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use vfio_user::{CallError, Capabilities, Client, ClientOptions, EACH_STORE, PostedInterrupts, RegionInfo, pci};

use crate::watch::Watch;
use crate::{BAR0_BYTES, OpenError, vram_bytes};

/// Bus addresses of system memory: from 4 GiB up, so that small wrong addresses fail; those of a processor's size.
const BUS: std::ops::Range<u64> = 1 << 32..1 << 46;
/// What bus addresses are multiples of: huge pages can map what is large enough.
const ALIGN: u64 = 2 << 20;
/// How long a server may take for an answer before it counts as dead. A reset of much VRAM takes long, a TLB invalidate may.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a fill that go in one message, at most.
const FILL_BYTES: usize = 256 << 10;
/// Longest fill whose stores are made one by one where each is to be a trap: a page table, which a driver zeroes with the
/// processor. Longer ones are memory that is scrubbed when it is freed, gigabytes at times; hardware has copy engines for that,
/// whose stores trap nowhere.
const FILL_EACH: usize = hostmem::PAGE as usize;

/// A GPU over a vfio-user socket.
///
/// Register writes are posted: one message each, and no answer is waited for. Reads wait for theirs, and with it for all
/// writes before.
#[derive(Debug)]
pub struct VfioUserGpu {
    client: Client,
    resettable: bool,
    vram_bytes: u64,
    vram: Option<Vram>,
    /// How the device notices stores into VRAM that is mapped, if it wants to.
    watch: Option<Watch>,
    /// Stores into VRAM that is not mapped are made one by one.
    each_store: bool,
    bus: Mutex<Bus>,
    line: Line,
}

/// Counts the device's interrupts.
#[derive(Debug)]
enum Line {
    Posted(PostedInterrupts),
    Eventfd(OwnedFd),
}

impl Line {
    /// Through shared memory, if the server knows how.
    fn connect(client: &Client) -> Result<Line, OpenError> {
        match client.post_irq(pci::MSIX, 0) {
            Ok(posted) => return Ok(Line::Posted(posted)),
            Err(CallError::Refused(_)) => {}
            Err(error) => return Err(refused("interrupt")(error)),
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let line = rustix::event::eventfd(0, flags).map_err(|error| OpenError::System(error.into()))?;
        client.connect_irqs(pci::MSIX, 0, &[line.as_fd()]).map_err(refused("interrupt"))?;
        Ok(Line::Eventfd(line))
    }
}

/// VRAM that the server lets us map.
#[derive(Debug)]
struct Vram {
    file: Memfd,
    /// Where in the file VRAM begins.
    offset: u64,
    mapping: Arc<Mapping>,
}

/// Which bus addresses are used.
#[derive(Debug)]
struct Bus {
    free: FreeRanges,
    /// Bytes that are mapped, by address.
    mapped: HashMap<u64, u64>,
}

impl VfioUserGpu {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// Why there is no GPU.
    pub fn connect(path: &Path) -> Result<VfioUserGpu, OpenError> {
        let client = Client::connect(path, &options());
        let client = client.map_err(|error| OpenError::Connect { path: path.to_owned(), error })?;
        VfioUserGpu::of(client)
    }

    /// Uses the server at the other end of a socket.
    ///
    /// # Errors
    /// Why there is no GPU.
    pub fn over(socket: UnixStream) -> Result<VfioUserGpu, OpenError> {
        VfioUserGpu::of(Client::over(socket, &options()).map_err(refused("greeting"))?)
    }

    fn of(client: Client) -> Result<VfioUserGpu, OpenError> {
        let info = client.device_info().map_err(refused("description"))?;
        if !info.pci || info.regions <= pci::BAR1 || info.irqs <= pci::MSIX {
            return Err(OpenError::Foreign("it is not on a PCI bus"));
        }
        if client.region(pci::BAR0).map_err(refused("registers"))?.bytes != BAR0_BYTES {
            return Err(OpenError::Foreign("its BAR0 has another size"));
        }
        let aperture = client.region(pci::BAR1).map_err(refused("aperture"))?;
        let vram_bytes = vram_bytes(|offset| read32(&client, offset), aperture.bytes)?;
        let vram = map_vram(aperture, vram_bytes).map_err(OpenError::System)?;
        // Before anything is stored there.
        let watch = match &vram {
            Some(vram) => {
                let alias = || vram.file.map_part(vram.offset, vram_bytes);
                Watch::start(&client, &vram.mapping, alias).map_err(refused("way to notice stores"))?
            }
            None => None,
        };
        let each_store = client.private().and_then(|private| private.get(EACH_STORE)).is_some_and(|each| *each == true);
        let line = Line::connect(&client)?;
        let bus = Bus { free: FreeRanges::new(BUS.start, BUS.end - BUS.start), mapped: HashMap::new() };
        Ok(VfioUserGpu {
            client,
            resettable: info.resettable,
            vram_bytes,
            vram,
            watch,
            each_store,
            bus: Mutex::new(bus),
            line,
        })
    }

    /// Stores as a processor does: eight bytes at most at a time, on multiples of eight.
    fn store_each(&self, offset: VramOffset, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset.0 + done as u64;
            let now = ((8 - at % 8) as usize).min(data.len() - done);
            // A server that is gone is noticed by who reads.
            let _ = self.client.write_posted(pci::BAR1, at, &data[done..done + now]);
            done += now;
        }
    }

    /// Ends the connection: the device is gone.
    pub fn disconnect(&self) {
        self.client.shutdown();
    }
}

/// A private capability is proposed so that there is an answer to it.
fn options() -> ClientOptions {
    let capabilities = Capabilities { private: Some(serde_json::json!({})), ..Capabilities::default() };
    ClientOptions { answer_within: Some(ANSWER_WITHIN), capabilities, ..ClientOptions::default() }
}

fn refused(what: &'static str) -> impl Fn(CallError) -> OpenError {
    move |error| OpenError::Refused { what, error }
}

/// What the operating system would have said.
fn system(error: CallError) -> io::Error {
    match error {
        CallError::Refused(errno) => errno.into(),
        CallError::Ended(ended) => io::Error::new(io::ErrorKind::BrokenPipe, ended),
    }
}

/// A register; all ones where nobody answers.
fn read32(client: &Client, offset: u32) -> u32 {
    let mut word = [0; 4];
    match client.read(pci::BAR0, offset.into(), &mut word) {
        Ok(()) => u32::from_le_bytes(word),
        Err(_) => u32::MAX,
    }
}

/// Maps VRAM, if all of it may be mapped.
fn map_vram(aperture: RegionInfo, bytes: u64) -> io::Result<Option<Vram>> {
    let whole = aperture.areas.iter().any(|area| area.start == 0 && area.end >= bytes);
    let Some((fd, offset)) = aperture.file.filter(|_| whole) else { return Ok(None) };
    let file = Memfd::from_fd(fd)?;
    let mapping = Arc::new(file.map_part(offset, bytes)?);
    Ok(Some(Vram { file, offset, mapping }))
}

impl Bus {
    fn take(&mut self, bytes: u64) -> io::Result<u64> {
        let room = bytes.checked_next_multiple_of(ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
        let at = self.free.take_lowest(room, ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
        self.mapped.insert(at, bytes);
        Ok(at)
    }

    fn give(&mut self, at: u64) {
        if let Some(bytes) = self.mapped.remove(&at) {
            self.free.give(at, bytes.next_multiple_of(ALIGN));
        }
    }
}

impl DeviceBacking for VfioUserGpu {
    fn read32(&self, bar0_offset: u32) -> u32 {
        read32(&self.client, bar0_offset)
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        // A server that is gone is noticed by who reads.
        let _ = self.client.write_posted(pci::BAR0, bar0_offset.into(), &value.to_le_bytes());
    }

    fn write32_late(&self, bar0_offset: u32, value: u32) {
        let _ = self.client.write_posted_late(pci::BAR0, bar0_offset.into(), &value.to_le_bytes());
    }

    fn reset(&self) -> io::Result<()> {
        if !self.resettable {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.client.reset().map_err(system)
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        self.vram.as_ref().map(|vram| &vram.mapping)
    }

    fn read_vram(&self, offset: VramOffset, out: &mut [u8]) {
        if !self.has_vram(offset, out.len()) {
            out.fill(0xff);
        } else if let Some(vram) = &self.vram {
            vram.mapping.read(offset.0 as usize, out);
        } else if self.client.read(pci::BAR1, offset.0, out).is_err() {
            out.fill(0xff);
        }
    }

    fn write_vram(&self, offset: VramOffset, data: &[u8]) {
        if !self.has_vram(offset, data.len()) {
            return;
        }
        match &self.vram {
            Some(vram) => vram.mapping.write(offset.0 as usize, data),
            None if self.each_store => self.store_each(offset, data),
            None => drop(self.client.write_posted(pci::BAR1, offset.0, data)),
        }
    }

    fn fill_vram(&self, offset: VramOffset, bytes: usize, value: u8) {
        if !self.has_vram(offset, bytes) {
            return;
        }
        if let Some(vram) = &self.vram {
            return vram.mapping.fill(offset.0 as usize, bytes, value);
        }
        let some = vec![value; bytes.min(FILL_BYTES)];
        if self.each_store && bytes <= FILL_EACH {
            return self.store_each(offset, &some);
        }
        let mut done = 0;
        while done < bytes {
            let now = &some[..some.len().min(bytes - done)];
            if self.client.write_posted(pci::BAR1, offset.0 + done as u64, now).is_err() {
                return;
            }
            done += now.len();
        }
    }

    fn discard_vram(&self, offset: VramOffset, bytes: u64) -> io::Result<()> {
        let inside = offset.0.checked_add(bytes).is_some_and(|end| end <= self.vram_bytes);
        match &self.vram {
            Some(vram) if inside => {
                vram.file.punch(vram.offset + offset.0, bytes)?;
                if let Some(watch) = &self.watch {
                    watch.zeroed(&vram.mapping, offset.0, bytes);
                }
                Ok(())
            }
            Some(_) => Err(io::ErrorKind::InvalidInput.into()),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        let file = Arc::new(Memfd::create("sundial-dma", bytes)?);
        let mapping = Arc::new(file.map()?);
        let at = self.bus.lock().take(file.bytes())?;
        let mapped = self.client.map_dma(at, file.bytes(), (true, true), Some((file.as_fd(), 0)));
        mapped.map_err(|error| {
            self.bus.lock().give(at);
            system(error)
        })?;
        Ok(DmaMemory::contiguous(BusAddr(at), file, mapping))
    }

    fn free_dma(&self, bus: BusAddr) {
        let Some(bytes) = self.bus.lock().mapped.get(&bus.0).copied() else { return };
        match self.client.unmap_dma(bus.0, bytes) {
            Ok(()) => self.bus.lock().give(bus.0),
            // The address stays used: the device may still know it.
            Err(error) => log_limit::warn!(%error, bytes, "the GPU keeps memory that was freed"),
        }
    }

    fn interrupt_count(&self) -> Option<(Arc<Mapping>, usize)> {
        match &self.line {
            Line::Posted(posted) => Some(posted.word()),
            Line::Eventfd(_) => None,
        }
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        let line = match &self.line {
            Line::Posted(posted) => return posted.wait(timeout),
            Line::Eventfd(line) => line,
        };
        let timeout = Timespec::try_from(timeout).ok();
        let mut polled = [PollFd::new(line, PollFlags::IN)];
        // An error, or a signal that interrupts it, is no interrupt.
        let raised = rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0);
        raised && rustix::io::read(line, &mut [0; 8]).is_ok()
    }
}
