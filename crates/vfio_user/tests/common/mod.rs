//! A device to test with, and a server that shows it.
#![allow(dead_code, clippy::allow_attributes, reason = "no test uses all of it")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use hostmem::{Mapping, Memfd};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;
use vfio_user::{
    Capabilities, Description, Device, DmaMap, Ended, Errno, Interrupts, Irq, Region, Server, ServerOptions, Stopper,
    pci,
};

/// Size of BAR0, of which nothing can be mapped.
pub(crate) const BAR0: u64 = 0x1000;
/// Size of BAR1; its first page is trapped, the others can be mapped.
pub(crate) const BAR1: u64 = 0x10_000;
/// A write here raises the wire, a read shows whether it is up and lowers it.
pub(crate) const WIRE: u64 = 0xf00;
/// A write of n here triggers message n.
pub(crate) const MESSAGE: u64 = 0xf08;
/// Accesses here fail.
pub(crate) const BROKEN: u64 = 0xf10;

/// What a device was told, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Map { address: u64, bytes: u64, rights: (bool, bool), offset: Option<u64> },
    Unmap(u64, u64),
    Reset,
    Gone,
}

/// Registers that keep what is written, memory that is mapped, interrupts that are raised by writes.
pub(crate) struct TestDevice {
    registers: Mutex<Vec<u8>>,
    pub(crate) memory: Mapping,
    file: Arc<OwnedFd>,
    interrupts: Mutex<Option<Arc<Interrupts>>>,
    /// Files that came with maps.
    pub(crate) files: Mutex<Vec<OwnedFd>>,
    pub(crate) told: Mutex<Vec<Told>>,
    pub(crate) proposed: Mutex<Option<Value>>,
    wire: Mutex<bool>,
}

impl TestDevice {
    pub(crate) fn new() -> TestDevice {
        let memory = Memfd::create("bar1", BAR1).unwrap();
        TestDevice {
            registers: Mutex::new(vec![0; BAR0 as usize]),
            memory: memory.map().unwrap(),
            file: Arc::new(memory.into_fd()),
            interrupts: Mutex::default(),
            files: Mutex::default(),
            told: Mutex::default(),
            proposed: Mutex::default(),
            wire: Mutex::default(),
        }
    }

    pub(crate) fn interrupts(&self) -> Arc<Interrupts> {
        Arc::clone(self.interrupts.lock().as_ref().unwrap())
    }

    fn raise(&self, up: bool) {
        *self.wire.lock() = up;
        self.interrupts().set_level(pci::INTX, 0, up);
    }
}

impl Device for TestDevice {
    fn describe(&self, proposed: Option<&Value>) -> Description {
        *self.proposed.lock() = proposed.cloned();
        let mut regions = vec![Region::default(); pci::NUM_REGIONS as usize];
        regions[pci::BAR0 as usize] = Region::trapped(BAR0);
        let areas = vec![0x1000..0x4000, 0x5000..BAR1];
        regions[pci::BAR1 as usize] = Region::mapped(BAR1, areas, Arc::clone(&self.file), 0);
        regions[pci::CONFIG as usize] = Region { writable: false, ..Region::trapped(256) };
        let irqs = vec![Irq::line(), Irq::default(), Irq::messages(32), Irq::messages(1), Irq::messages(1)];
        let private = proposed.map(|value| serde_json::json!({ "taken": value }));
        Description { resettable: true, regions, irqs, private, posted_writes: true }
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        *self.interrupts.lock() = Some(interrupts);
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        assert!(!out.is_empty());
        match (region, offset) {
            (pci::BAR0, BROKEN) => return Err(Errno::IO),
            (pci::BAR0, WIRE) => {
                let was = *self.wire.lock();
                self.raise(false);
                out.fill(u8::from(was));
            }
            (pci::BAR0, _) => {
                let at = offset as usize;
                out.copy_from_slice(&self.registers.lock()[at..at + out.len()]);
            }
            (pci::BAR1, _) => self.memory.read(offset as usize, out),
            (pci::CONFIG, _) => out.fill(0xc0),
            _ => unreachable!("region {region} is empty"),
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        assert!(!data.is_empty());
        match (region, offset) {
            (pci::BAR0, BROKEN) => return Err(Errno::IO),
            (pci::BAR0, WIRE) => self.raise(true),
            (pci::BAR0, MESSAGE) => {
                self.interrupts().trigger(pci::MSIX, data[0].into());
            }
            (pci::BAR0, _) => {
                let at = offset as usize;
                self.registers.lock()[at..at + data.len()].copy_from_slice(data);
            }
            (pci::BAR1, _) => self.memory.write(offset as usize, data),
            _ => unreachable!("region {region} cannot be written"),
        }
        Ok(())
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        let DmaMap { address, bytes, readable, writable, file } = map;
        let offset = file.as_ref().map(|(_, offset)| *offset);
        self.told.lock().push(Told::Map { address, bytes, rights: (readable, writable), offset });
        self.files.lock().extend(file.map(|(fd, _)| fd));
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) {
        self.told.lock().push(Told::Unmap(address, bytes));
    }

    fn reset(&self) {
        self.registers.lock().fill(0);
        self.told.lock().push(Told::Reset);
    }

    fn gone(&self) {
        self.told.lock().push(Told::Gone);
    }
}

/// A server of one [`TestDevice`] on a thread of its own, and the client's end of the socket.
pub(crate) struct Served {
    pub(crate) device: Arc<TestDevice>,
    pub(crate) stopper: Stopper,
    thread: JoinHandle<Ended>,
}

impl Served {
    pub(crate) fn new() -> (Served, UnixStream) {
        Served::with(Capabilities::default())
    }

    pub(crate) fn with(capabilities: Capabilities) -> (Served, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Served::on(ours, capabilities), theirs)
    }

    pub(crate) fn on(socket: UnixStream, capabilities: Capabilities) -> Served {
        let device = Arc::new(TestDevice::new());
        let server = Server::new(socket, ServerOptions { capabilities, ..ServerOptions::default() });
        let stopper = server.stopper();
        let shown = Arc::clone(&device);
        Served { device, stopper, thread: std::thread::spawn(move || server.serve(&*shown)) }
    }

    /// Waits until the server is done with its client.
    pub(crate) fn ended(self) -> (Ended, Vec<Told>) {
        let ended = self.thread.join().unwrap();
        let told = self.device.told.lock().clone();
        (ended, told)
    }

    pub(crate) fn told(&self) -> Vec<Told> {
        self.device.told.lock().clone()
    }
}

/// An eventfd that is signalled after all that was to be signalled before: it says when to look.
pub(crate) struct Marker(OwnedFd);

impl Marker {
    /// The one interrupt of this kind is the marker's; a client has to connect it.
    pub(crate) const KIND: u32 = pci::ERR;

    pub(crate) fn new() -> Marker {
        Marker(eventfd())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Which of these eventfds were signalled since the last look.
    pub(crate) fn look<const N: usize>(&self, device: &TestDevice, eventfds: [&OwnedFd; N]) -> [bool; N] {
        assert!(device.interrupts().trigger(Marker::KIND, 0), "the marker is connected");
        wait_for(&self.0);
        eventfds.map(taken)
    }
}

/// Takes an eventfd's count away; true if it had one.
pub(crate) fn taken(eventfd: &OwnedFd) -> bool {
    match rustix::io::read(eventfd, &mut [0; 8]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Errno::AGAIN);
            false
        }
    }
}

/// Waits until an eventfd is signalled, and takes its count away.
pub(crate) fn wait_for(eventfd: &OwnedFd) {
    let bound = Timespec { tv_sec: 30, tv_nsec: 0 };
    let mut fds = [PollFd::new(eventfd, PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&bound)), Ok(1), "a signal");
    assert!(taken(eventfd));
}

pub(crate) fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC).unwrap()
}
