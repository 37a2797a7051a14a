//! Somebody else's client, the crate that cloud-hypervisor uses, against our server.
#![expect(clippy::unwrap_used, reason = "all of it is a test")]

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::{BAR0, BAR1, MESSAGE, Marker, TestDevice, Told, WIRE, eventfd};
use hostmem::Memfd;
use vfio_user::wire::{
    IRQ_SET_ACTION_TRIGGER, IRQ_SET_ACTION_UNMASK, IRQ_SET_DATA_EVENTFD, IRQ_SET_DATA_NONE, REGION_CAPS, REGION_MMAP,
    REGION_READABLE, REGION_WRITABLE,
};
use vfio_user::{Ended, Irq, Listener, Server, ServerOptions, pci};

#[test]
fn the_published_client_gets_all_it_asks_for() {
    let path: PathBuf = std::env::temp_dir().join(format!("vfio-user-published-{}.sock", std::process::id()));
    let listener = Listener::bind(&path, 0o600).unwrap();
    let device = TestDevice::new();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| Server::new(listener.accept().unwrap(), ServerOptions::default()).serve(&device));
        let mut client = published::Client::new(&path).unwrap();
        regions(&client, &device);
        accesses(&mut client);
        memory(&mut client);
        interrupts(&mut client, &device);
        client.region_write(pci::BAR0, 0, &[1]).unwrap();
        client.reset().unwrap();
        let mut byte = [9];
        client.region_read(pci::BAR0, 0, &mut byte).unwrap();
        assert_eq!(byte, [0]);
        client.shutdown().unwrap();
        assert_eq!(server.join().unwrap(), Ended::HungUp);
    });
    assert_eq!(
        *device.told.lock(),
        [
            Told::Map { address: 0x4000, bytes: 0x2000, rights: (true, true), offset: Some(0x1000) },
            Told::Unmap(0x4000, 0x2000),
            Told::Reset,
            Told::Gone
        ]
    );
}

fn regions(client: &published::Client, device: &TestDevice) {
    let bar0 = client.region(pci::BAR0).unwrap();
    assert_eq!((bar0.size, bar0.flags), (BAR0, REGION_READABLE | REGION_WRITABLE));
    assert!(bar0.file_offset.is_none() && bar0.sparse_areas.is_empty());
    let config = client.region(pci::CONFIG).unwrap();
    assert_eq!((config.size, config.flags), (256, REGION_READABLE));
    assert_eq!(client.region(pci::VGA).unwrap().size, 0);
    assert!(client.region(pci::NUM_REGIONS).is_none());

    let bar1 = client.region(pci::BAR1).unwrap();
    assert_eq!((bar1.size, bar1.flags & (REGION_MMAP | REGION_CAPS)), (BAR1, REGION_MMAP | REGION_CAPS));
    let areas: Vec<(u64, u64)> = bar1.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
    assert_eq!(areas, [(0x1000, 0x3000), (0x5000, BAR1 - 0x5000)]);
    let file = bar1.file_offset.as_ref().unwrap();
    assert_eq!(file.start(), 0);
    file.file().write_all_at(b"theirs", 0x5000).unwrap();
    let mut seen = [0; 6];
    device.memory.read(0x5000, &mut seen);
    assert_eq!(&seen, b"theirs");
}

fn accesses(client: &mut published::Client) {
    let mut back = [0; 8];
    client.region_write(pci::BAR0, 0x20, b"register").unwrap();
    client.region_read(pci::BAR0, 0x20, &mut back).unwrap();
    assert_eq!(&back, b"register");
    client.region_read(pci::BAR1, 0x5000, &mut back[..6]).unwrap();
    assert_eq!(&back[..6], b"theirs");
    let large: Vec<u8> = (0..BAR1).map(|at| (at % 253) as u8).collect();
    let mut read = vec![0; large.len()];
    client.region_write(pci::BAR1, 0, &large).unwrap();
    client.region_read(pci::BAR1, 0, &mut read).unwrap();
    assert!(read == large);
}

fn memory(client: &mut published::Client) {
    let file = Memfd::create("guest", 0x4000).unwrap();
    client.dma_map(0x1000, 0x4000, 0x2000, file.as_fd().as_raw_fd()).unwrap();
    client.dma_unmap(0x4000, 0x2000).unwrap();
}

fn interrupts(client: &mut published::Client, device: &TestDevice) {
    let told = |irq: published::IrqInfo| Irq { count: irq.count, flags: irq.flags };
    assert_eq!(told(client.get_irq_info(pci::MSIX).unwrap()), Irq::messages(32));
    assert_eq!(told(client.get_irq_info(pci::INTX).unwrap()), Irq::line());

    let connect = IRQ_SET_DATA_EVENTFD | IRQ_SET_ACTION_TRIGGER;
    let marker = Marker::new();
    let [one, two, wire] = [eventfd(), eventfd(), eventfd()];
    client.set_irqs(Marker::KIND, connect, 0, 1, &[marker.fd().as_raw_fd()]).unwrap();
    let told = || marker.look(device, [&one, &two, &wire]);
    client.set_irqs(pci::MSIX, connect, 0, 1, &[]).unwrap();
    client.set_irqs(pci::MSIX, connect, 0, 2, &[one.as_raw_fd(), two.as_raw_fd()]).unwrap();
    client.region_write(pci::BAR0, MESSAGE, &[1]).unwrap();
    assert_eq!(told(), [false, true, false]);
    let off = IRQ_SET_DATA_NONE | IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(pci::MSIX, off, 0, 0, &[]).unwrap();
    client.region_write(pci::BAR0, MESSAGE, &[1]).unwrap();
    assert_eq!(told(), [false; 3]);

    client.set_irqs(pci::INTX, connect, 0, 1, &[wire.as_raw_fd()]).unwrap();
    client.region_write(pci::BAR0, WIRE, &[1]).unwrap();
    assert_eq!(told(), [false, false, true]);
    client.set_irqs(pci::INTX, IRQ_SET_DATA_NONE | IRQ_SET_ACTION_UNMASK, 0, 1, &[]).unwrap();
    assert_eq!(told(), [false, false, true], "still up");
    client.region_read(pci::BAR0, WIRE, &mut [0]).unwrap();
}
