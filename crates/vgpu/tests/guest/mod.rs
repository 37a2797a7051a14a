//! A guest: a software GPU with its driver, a virtual GPU on it, served over a socket, and a client that a driver can use.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use device_io::{BusAddr, DeviceBacking, DmaMemory, VramOffset};
use gpu_driver::{Driver, HostCost};
use hostmem::{Mapping, Memfd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use softgpu::{Config, SoftGpu};
use vfio_user::{Capabilities, Client, ClientOptions, Server, ServerOptions, Stopper, WATCH_STORES, pci, wire};
use vgpu::{Port, Scheme, Trap, Vgpu, Watching};
use write_trap::{DecodeParts, DecodeServant, FaultParts, Kind, TrackerParts};

/// A virtual GPU as its guest's driver sees it.
pub(crate) struct Guest {
    pub(crate) client: Client,
    vram_bytes: u64,
    vram: Option<Arc<Mapping>>,
    line: OwnedFd,
    next_bus: Mutex<u64>,
    mapped: Mutex<HashMap<u64, u64>>,
    /// Notices stores into VRAM.
    _servant: Option<DecodeServant>,
    /// Goes with it.
    _host: Host,
}

/// What stands behind it.
pub(crate) struct Host {
    pub(crate) vgpu: Arc<Vgpu>,
    attending: Option<JoinHandle<()>>,
    serving: Option<(Stopper, JoinHandle<()>)>,
}

/// A software GPU of the size, with its driver.
pub(crate) fn host(vram_bytes: u64, lend: bool) -> Arc<Driver> {
    let gpu = SoftGpu::new(&Config { vram_bytes, workers: 2, lend, ..Config::default() }).unwrap();
    Driver::start(gpu).unwrap()
}

impl Host {
    /// A virtual GPU.
    pub(crate) fn new(driver: &Arc<Driver>, scheme: Scheme, vram_bytes: u64) -> Host {
        Host::trapped(driver, (scheme, Trap::default()), vram_bytes)
    }

    /// A virtual GPU of whose page tables stores are noticed in some way.
    pub(crate) fn trapped(
        driver: &Arc<Driver>,
        (scheme, watching): (Scheme, impl Into<Watching>),
        vram_bytes: u64,
    ) -> Host {
        let watching = watching.into();
        let budget = driver.budget(HostCost { bytes: 8 << 30, ..HostCost::default() }).unwrap();
        let config = vgpu::Config { name: "guest".into(), vram_bytes, scheme, watching, budget };
        Host::of(Vgpu::new(driver, config).unwrap())
    }

    /// This one.
    pub(crate) fn of(vgpu: Arc<Vgpu>) -> Host {
        let attended = Arc::clone(&vgpu);
        let attending = Some(std::thread::spawn(move || attended.attend()));
        Host { vgpu, attending, serving: None }
    }

    /// Where its next guest is served; the one before must have left.
    pub(crate) fn connect(&mut self) -> UnixStream {
        self.join();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Server::new(ours, ServerOptions::default());
        let stopper = server.stopper();
        let port = Port::new(Arc::clone(&self.vgpu));
        let serve = move || {
            server.serve(&port);
        };
        self.serving = Some((stopper, std::thread::spawn(serve)));
        theirs
    }

    /// A panic of its threads is the test's.
    pub(crate) fn join(&mut self) {
        if let Some((_, thread)) = self.serving.take() {
            assert!(thread.join().is_ok() || std::thread::panicking(), "serving a guest has panicked");
        }
    }
}

/// A guest on it.
pub(crate) fn guest(driver: &Arc<Driver>, scheme: Scheme, vram_bytes: u64) -> Guest {
    guest_of(Host::new(driver, scheme, vram_bytes))
}

/// The guest of a virtual GPU.
pub(crate) fn guest_of(mut host: Host) -> Guest {
    let vgpu::Config { scheme, watching: Watching { trap, .. }, vram_bytes, .. } = *host.vgpu.config();
    let capabilities = Capabilities { private: Some(serde_json::json!({})), ..Capabilities::default() };
    let options = ClientOptions { capabilities, ..ClientOptions::default() };
    let client = Client::over(host.connect(), &options).unwrap();
    let line = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    client.connect_irqs(pci::MSIX, 0, &[line.as_fd()]).unwrap();
    let bar1 = client.region(pci::BAR1).unwrap();
    let mut bar1_alias = None;
    let vram = bar1.file.map(|(file, offset)| {
        assert_eq!((offset, bar1.areas.first()), (0, Some(&(0..vram_bytes))));
        let file = Memfd::from_fd(file).unwrap();
        bar1_alias = Some(file.map().unwrap());
        Arc::new(file.map().unwrap())
    });
    assert_eq!(vram.is_none(), scheme == Scheme::FvNaive || trap == Trap::Bar);
    let servant = match trap {
        Trap::Watched(kind) => {
            assert!(client.private().unwrap().get(WATCH_STORES).is_some(), "it asks for that");
            watch(&client, kind, vram.as_ref().unwrap(), bar1_alias.unwrap())
        }
        _ => None,
    };
    let (next_bus, mapped) = (Mutex::new(4 << 30), Mutex::default());
    Guest { client, vram_bytes, vram, line, next_bus, mapped, _servant: servant, _host: host }
}

/// Tells the device how to notice what is stored into VRAM.
pub(crate) fn watch(client: &Client, kind: Kind, vram: &Arc<Mapping>, alias: Mapping) -> Option<DecodeServant> {
    let place = (vram.address() as u64, vram.len() as u64);
    let tell = |kind, fds: &[&OwnedFd]| {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        client.watch_stores((kind, pci::BAR1), place, &fds).unwrap();
    };
    match kind {
        Kind::Tracker => {
            let parts = TrackerParts::new(vram).unwrap();
            tell(wire::WATCH_TRACKER, &[&parts.userfault, &parts.page_map]);
        }
        Kind::Fault => tell(wire::WATCH_FAULT, &[&FaultParts::new(vram).unwrap().userfault]),
        Kind::Decode => {
            let (parts, servant) = DecodeParts::new(vram, alias).unwrap();
            tell(wire::WATCH_DECODE, &[&parts.written, &parts.control]);
            return Some(servant);
        }
    }
    None
}

/// A driver's device: a guest on a software GPU that has some more memory than the guest.
pub(crate) fn gpu(scheme: Scheme, vram_bytes: u64, lend: bool) -> Arc<dyn DeviceBacking> {
    Arc::new(guest(&host(vram_bytes + (96 << 20), lend), scheme, vram_bytes))
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some((stopper, _)) = &self.serving {
            stopper.stop();
        }
        self.vgpu.end();
        self.join();
        let attended = self.attending.take().unwrap().join();
        assert!(attended.is_ok() || std::thread::panicking(), "attending to a guest has panicked");
    }
}

impl DeviceBacking for Guest {
    fn read32(&self, bar0_offset: u32) -> u32 {
        let mut word = [0xff; 4];
        let _ = self.client.read(pci::BAR0, bar0_offset.into(), &mut word);
        u32::from_le_bytes(word)
    }

    fn write32(&self, bar0_offset: u32, value: u32) {
        let _ = self.client.write_posted(pci::BAR0, bar0_offset.into(), &value.to_le_bytes());
    }

    fn reset(&self) -> io::Result<()> {
        self.client.reset().map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
        self.vram.as_ref()
    }

    fn read_vram(&self, offset: VramOffset, out: &mut [u8]) {
        match &self.vram {
            Some(vram) => vram.read(offset.0 as usize, out),
            None => drop(self.client.read(pci::BAR1, offset.0, out)),
        }
    }

    fn write_vram(&self, offset: VramOffset, data: &[u8]) {
        match &self.vram {
            Some(vram) => vram.write(offset.0 as usize, data),
            None => drop(self.client.write(pci::BAR1, offset.0, data)),
        }
    }

    fn fill_vram(&self, offset: VramOffset, bytes: usize, value: u8) {
        match &self.vram {
            Some(vram) => vram.fill(offset.0 as usize, bytes, value),
            None => drop(self.client.write(pci::BAR1, offset.0, &vec![value; bytes])),
        }
    }

    fn discard_vram(&self, _offset: VramOffset, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
        self.map_dma(Arc::new(Memfd::create("guest", bytes)?))
    }

    fn map_dma(&self, file: Arc<Memfd>) -> io::Result<DmaMemory> {
        let bus = {
            let mut next = self.next_bus.lock().unwrap();
            let bus = *next;
            *next += file.bytes().next_multiple_of(2 << 20) + (2 << 20);
            bus
        };
        let fd = file.try_clone()?.into_fd();
        self.client.map_dma(bus, file.bytes(), (true, true), Some((fd.as_fd(), 0))).map_err(io::Error::other)?;
        self.mapped.lock().unwrap().insert(bus, file.bytes());
        let mapping = Arc::new(file.map()?);
        Ok(DmaMemory::contiguous(BusAddr(bus), file, mapping))
    }

    fn free_dma(&self, bus: BusAddr) {
        let bytes = self.mapped.lock().unwrap().remove(&bus.0).unwrap();
        let _ = self.client.unmap_dma(bus.0, bytes);
    }

    fn wait_interrupt(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).unwrap();
        let mut fds = [PollFd::new(&self.line, PollFlags::IN)];
        let raised = poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0;
        raised && rustix::io::read(&self.line, &mut [0; 8]).is_ok()
    }
}
