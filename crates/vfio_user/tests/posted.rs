//! Writes posted through shared memory, of a client that does not mean well.

use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::TestDevice;
use hostmem::{Mapping, Memfd};
use parking_lot::Mutex;
use serde_json::Value;
use vfio_user::{
    Client, ClientOptions, Description, Device, DmaMap, Errno, Interrupts, PostedWrite, Server, ServerOptions, pci,
    wire,
};

mod common;

/// Where the ring has its two counts, and how many entries it has.
const HEAD: usize = 0;
const TAIL: usize = 64;
const ENTRIES: u64 = 512;

fn ring(client: &Client) -> Mapping {
    let (file, _) = client.region(wire::POSTED_WRITES).expect("the ring").file.expect("its file");
    Memfd::from_fd(file).expect("sealed").map().expect("a mapping")
}

/// A device of which each write is followed by others at once, as if somebody posted without an end.
struct Busy(TestDevice, OnceLock<Mapping>);

impl Busy {
    fn fill(&self) {
        if let Some(ring) = self.1.get() {
            let tail = ring.u64_at(TAIL).load(Ordering::Relaxed);
            ring.u64_at(HEAD).store(tail + ENTRIES, Ordering::Relaxed);
        }
    }
}

impl Device for Busy {
    fn describe(&self, proposed: Option<&Value>) -> Description {
        self.0.describe(proposed)
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        self.0.attach(interrupts);
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        self.0.read(region, offset, out)
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.fill();
        self.0.write(region, offset, data)
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        self.0.map(map)
    }

    fn unmap(&self, address: u64, bytes: u64) {
        self.0.unmap(address, bytes);
    }

    fn reset(&self) {
        self.0.reset();
    }

    fn gone(&self) {
        self.0.gone();
    }
}

/// Whoever posts writes faster than they are done does not keep the server from hearing that it is to end, nor its own
/// messages from being heard; whether the server looks before it sleeps or not.
#[test]
fn a_ring_that_is_never_empty_does_not_hide_the_socket() {
    for spin in [Duration::ZERO, Duration::from_micros(50)] {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let server = Server::new(ours, ServerOptions { spin, ..ServerOptions::default() });
        let stopper = server.stopper();
        let device = Arc::new(Busy(TestDevice::new(), OnceLock::new()));
        let shown = Arc::clone(&device);
        let serving = std::thread::spawn(move || server.serve(&*shown));
        let client = Client::over(theirs, &ClientOptions::default()).expect("a greeting");
        device.1.set(ring(&client)).expect("once");
        // A message, not a posted word: the server may sleep.
        client.write_posted(pci::BAR0, 0, &[0, 0]).expect("a connection");
        client.read(pci::BAR0, 0, &mut [0; 4]).expect("an answer in between");
        stopper.stop();
        let start = Instant::now();
        while !serving.is_finished() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = serving.is_finished();
        assert!(ended, "with {spin:?}: it goes on with writes that nobody will see");
        serving.join().expect("no panic");
        assert!(client.read(pci::BAR0, 0, &mut [0; 4]).is_err());
    }
}

/// A device that keeps what was posted, by what came together.
struct Keeps(TestDevice, Mutex<Vec<Vec<PostedWrite>>>);

impl Device for Keeps {
    fn describe(&self, proposed: Option<&Value>) -> Description {
        self.0.describe(proposed)
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        self.0.attach(interrupts);
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        self.0.read(region, offset, out)
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.0.write(region, offset, data)
    }

    fn write_posted(&self, writes: &[PostedWrite]) {
        self.1.lock().push(writes.to_vec());
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        self.0.map(map)
    }

    fn unmap(&self, address: u64, bytes: u64) {
        self.0.unmap(address, bytes);
    }

    fn reset(&self) {
        self.0.reset();
    }

    fn gone(&self) {
        self.0.gone();
    }
}

/// Writes that are there together come together, in their order, and those alone that the device can take.
#[test]
fn writes_come_together() {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let server = Server::new(ours, ServerOptions::default());
    let device = Arc::new(Keeps(TestDevice::new(), Mutex::default()));
    let shown = Arc::clone(&device);
    let serving = std::thread::spawn(move || server.serve(&*shown));
    let client = Client::over(theirs, &ClientOptions::default()).expect("a greeting");
    let ring = ring(&client);
    let entries = [
        (pci::BAR0, 0x10, 1),
        (pci::BAR0, common::BAR0 as u32 - 3, 2),
        (pci::CONFIG, 0, 3),
        (7000, 0, 4),
        (pci::BAR1, 8, 5),
        (pci::BAR0, 0x10, 6),
    ];
    for (index, (region, offset, value)) in entries.into_iter().enumerate() {
        let at = 4096 + index * 24;
        ring.u64_at(at).store(u64::from(region) | u64::from(offset) << 32, Ordering::Relaxed);
        ring.u64_at(at + 8).store(value, Ordering::Relaxed);
        ring.u64_at(at + 16).store(0, Ordering::Relaxed);
    }
    ring.u64_at(HEAD).store(entries.len() as u64, Ordering::Release);
    client.read(pci::BAR0, 0, &mut [0; 4]).expect("an answer behind them");
    client.shutdown();
    serving.join().expect("no panic");
    let taken: Vec<_> = [entries[0], entries[4], entries[5]]
        .map(|(region, offset, value)| PostedWrite { region, offset, value: value as u32 })
        .into();
    assert_eq!(*device.1.lock(), [taken]);
}

/// Any bytes in the ring, at any time, end the connection at most.
#[test]
fn any_bytes_may_be_in_the_ring() {
    let mut random = 7u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 16
    };
    for round in 0..40 {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let server = Server::new(ours, ServerOptions::default());
        let serving = std::thread::spawn(move || server.serve(&TestDevice::new()));
        let client = Client::over(theirs, &ClientOptions::default()).expect("a greeting");
        let ring = ring(&client);
        for _ in 0..500 {
            let words = ring.len() as u64 / 8;
            let at = if next() % 4 == 0 { next() % 24 } else { next() % words };
            let tail = ring.u64_at(TAIL).load(Ordering::Relaxed);
            // Mostly a head that can be.
            let value = if at == 0 && round % 4 != 0 { tail + next() % (ENTRIES + 1) } else { next() };
            let small = if next() % 2 == 0 { value % 8 } else { value };
            ring.u64_at(at as usize * 8).store(if at == 0 { value } else { small }, Ordering::Relaxed);
            if next() % 50 == 0 {
                // It may have been made to leave.
                let _ = client.write_posted(pci::BAR0, 0, &[1, 2]);
            }
        }
        client.shutdown();
        serving.join().expect("no panic");
    }
}
