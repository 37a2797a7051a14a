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
use vfio_user::{Client, ClientOptions, Server, ServerOptions, Stopper, pci};
use vgpu::{Port, Scheme, Trap, Vgpu, Watching};

/// A virtual GPU as its guest's driver sees it.
pub(crate) struct Guest {
    pub(crate) client: Client,
    vram_bytes: u64,
    vram: Option<Arc<Mapping>>,
    line: OwnedFd,
    next_bus: Mutex<u64>,
    mapped: Mutex<HashMap<u64, u64>>,
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
    pub(crate) fn trapped(driver: &Arc<Driver>, (scheme, trap): (Scheme, Trap), vram_bytes: u64) -> Host {
        let budget = driver.budget(HostCost { bytes: 8 << 30, ..HostCost::default() }).unwrap();
        let config = vgpu::Config { name: "guest".into(), vram_bytes, scheme, watching: trap.into(), budget };
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
    let client = Client::over(host.connect(), &ClientOptions::default()).unwrap();
    let line = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    client.connect_irqs(pci::MSIX, 0, &[line.as_fd()]).unwrap();
    let bar1 = client.region(pci::BAR1).unwrap();
    let vram = bar1.file.map(|(file, offset)| {
        assert_eq!((offset, bar1.areas.first()), (0, Some(&(0..vram_bytes))));
        Arc::new(Memfd::from_fd(file).unwrap().map().unwrap())
    });
    assert_eq!(vram.is_none(), scheme == Scheme::FvNaive || trap == Trap::Bar);
    Guest { client, vram_bytes, vram, line, next_bus: Mutex::new(4 << 30), mapped: Mutex::default(), _host: host }
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
