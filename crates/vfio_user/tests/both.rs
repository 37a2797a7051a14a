//! Our client against our server, every command.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use common::{BAR0, BAR1, BROKEN, MESSAGE, Marker, Served, TestDevice, Told, WIRE, eventfd, taken, wait_for};
use hostmem::Memfd;
use rustix::fs::OFlags;
use serde_json::json;
use vfio_user::wire::{
    IRQ_SET_ACTION_MASK, IRQ_SET_ACTION_TRIGGER, IRQ_SET_ACTION_UNMASK, IRQ_SET_DATA_BOOL, IRQ_SET_DATA_EVENTFD,
    IRQ_SET_DATA_NONE,
};
use vfio_user::{
    CallError, Capabilities, Client, ClientOptions, DeviceInfo, Ended, Errno, Irq, Listener, Server, ServerOptions, pci,
};

fn start() -> (Served, Client) {
    let (served, socket) = Served::new();
    (served, Client::over(socket, &ClientOptions::default()).expect("a greeting"))
}

fn refused<T: std::fmt::Debug>(error: Errno) -> impl Fn(Result<T, CallError>) {
    move |result| assert_eq!(result.expect_err("refused"), CallError::Refused(error))
}

#[test]
fn a_device_is_described() {
    let (served, client) = start();
    assert_eq!(client.device_info().unwrap(), DeviceInfo { resettable: true, pci: true, regions: 9, irqs: 5 });
    let bar0 = client.region(pci::BAR0).unwrap();
    assert_eq!((bar0.bytes, bar0.readable, bar0.writable, bar0.areas.len()), (BAR0, true, true, 0));
    assert!(bar0.file.is_none());
    let config = client.region(pci::CONFIG).unwrap();
    assert_eq!((config.bytes, config.readable, config.writable), (256, true, false));
    assert_eq!(client.region(pci::ROM).unwrap().bytes, 0);
    refused(Errno::INVAL)(client.region(9));
    assert_eq!(client.irq(pci::INTX).unwrap(), Irq::line());
    assert_eq!(client.irq(pci::MSIX).unwrap(), Irq::messages(32));
    assert_eq!(client.irq(pci::MSI).unwrap().count, 0);
    refused(Errno::INVAL)(client.irq(5));
    drop(client);
    assert_eq!(served.ended(), (Ended::HungUp, vec![Told::Gone]));
}

#[test]
fn what_both_agree_on_is_the_less_of_both() {
    let (served, socket) = Served::with(Capabilities { max_msg_fds: 3, max_dma_maps: 2, ..Capabilities::default() });
    let capabilities =
        Capabilities { max_data_xfer_size: 4096, private: Some(json!({"pv": 2})), ..Capabilities::default() };
    let client = Client::over(socket, &ClientOptions { capabilities, ..ClientOptions::default() }).unwrap();
    let agreed = client.agreed();
    assert_eq!((agreed.max_msg_fds, agreed.max_dma_maps, agreed.max_data_xfer_size), (3, 2, 4096));
    assert!(agreed.write_multiple);
    assert_eq!(client.private(), Some(&json!({"taken": {"pv": 2}})));
    assert_eq!(*served.device.proposed.lock(), Some(json!({"pv": 2})));
    // More than a message carries goes in several.
    let data: Vec<u8> = (0..BAR1).map(|at| (at % 251) as u8).collect();
    client.write(pci::BAR1, 0, &data).unwrap();
    let mut back = vec![0; data.len()];
    client.read(pci::BAR1, 0, &mut back).unwrap();
    assert!(back == data);
    let eventfds: Vec<_> = (0..8).map(|_| eventfd()).collect();
    let borrowed: Vec<BorrowedFd<'_>> = eventfds.iter().map(AsFd::as_fd).collect();
    client.connect_irqs(pci::MSIX, 1, &borrowed).unwrap();
    client.write(pci::BAR0, MESSAGE, &[8]).unwrap();
    wait_for(&eventfds[7]);
    client.map_dma(0, 4096, (true, true), None).unwrap();
    client.map_dma(4096, 4096, (true, true), None).unwrap();
    refused(Errno::NOSPC)(client.map_dma(8192, 4096, (true, true), None));
}

#[test]
fn registers_are_read_and_written() {
    let (_served, client) = start();
    for width in 1..=8 {
        let data = [1, 2, 3, 4, 5, 6, 7, 8];
        client.write(pci::BAR0, 16 * width as u64, &data[..width]).unwrap();
        let mut back = [0; 8];
        client.read(pci::BAR0, 16 * width as u64, &mut back[..width]).unwrap();
        assert_eq!(back[..width], data[..width]);
    }
    // A posted write is done before what is sent after it.
    for value in 0..1000u32 {
        client.write_posted(pci::BAR0, 0, &value.to_le_bytes()).unwrap();
    }
    let mut back = [0; 4];
    client.read(pci::BAR0, 0, &mut back).unwrap();
    assert_eq!(u32::from_le_bytes(back), 999);
    // A posted write that fails is silent, and disturbs nothing.
    client.write_posted(pci::BAR0, BROKEN, &[0]).unwrap();
    refused(Errno::IO)(client.write(pci::BAR0, BROKEN, &[0; 4]));
    refused(Errno::IO)(client.read(pci::BAR0, BROKEN, &mut back));
    refused(Errno::ACCESS)(client.write(pci::CONFIG, 0, &[0]));
    for (region, offset) in [(pci::BAR0, BAR0), (pci::BAR0, BAR0 - 3), (pci::BAR0, u64::MAX), (pci::BAR2, 0), (9, 0)] {
        refused(Errno::INVAL)(client.read(region, offset, &mut back));
        refused(Errno::INVAL)(client.write(region, offset, &back));
    }
    client.read(pci::CONFIG, 252, &mut back).unwrap();
    assert_eq!(back, [0xc0; 4]);
}

/// With posted writes through shared memory, and without.
fn both_ways() -> [(Served, Client); 2] {
    [true, false].map(|posted_writes| {
        let (served, socket) = Served::new();
        let capabilities = Capabilities { posted_writes, ..Capabilities::default() };
        let client =
            Client::over(socket, &ClientOptions { capabilities, ..ClientOptions::default() }).expect("a greeting");
        assert_eq!(client.agreed().posted_writes, posted_writes);
        (served, client)
    })
}

#[test]
fn writes_are_done_in_the_order_in_which_they_were_sent() {
    for (_served, client) in both_ways() {
        let mut random = 1u32;
        let mut last = [0; 8];
        for round in 0..20_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = (round ^ 0x5a5a_0000).to_le_bytes();
            let twice: [u8; 8] = std::array::from_fn(|at| word[at % 4]);
            match random >> 28 {
                0 => {
                    let mut back = [0; 8];
                    client.read(pci::BAR0, 0, &mut back).unwrap();
                    assert_eq!(back, last, "round {round}");
                }
                1 => client.write(pci::BAR0, 0, &twice).unwrap(),
                2 | 3 => client.write_posted(pci::BAR0, 0, &twice).unwrap(),
                // What is refused disturbs nothing.
                4 => client.write_posted(pci::CONFIG, 0, &word).unwrap(),
                5 => client.write_posted(7, u64::from(u32::MAX), &word).unwrap(),
                half => {
                    let at = 4 * (half as usize % 2);
                    client.write_posted(pci::BAR0, at as u64, &word).unwrap();
                    last[at..at + 4].copy_from_slice(&word);
                }
            }
            if (1..=3).contains(&(random >> 28)) {
                last = twice;
            }
        }
    }
}

#[test]
fn a_server_that_sleeps_is_woken_by_a_posted_write() {
    for (_served, client) in both_ways() {
        let fd = eventfd();
        client.connect_irqs(pci::MSIX, 1, &[fd.as_fd()]).unwrap();
        for round in 0..50 {
            // Long enough for it to sleep in most rounds.
            std::thread::sleep(Duration::from_micros(100 * round));
            client.write_posted(pci::BAR0, MESSAGE, &1u32.to_le_bytes()).unwrap();
            wait_for(&fd);
        }
    }
}

#[test]
fn many_threads_post_writes() {
    const THREADS: usize = 4;
    for (_served, client) in both_ways() {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let client = &client;
                scope.spawn(move || {
                    let at = 16 * thread as u64;
                    for value in 0..5000u32 {
                        client.write_posted(pci::BAR0, at, &value.to_le_bytes()).unwrap();
                        if value % 97 == 0 {
                            let mut back = [0; 4];
                            client.read(pci::BAR0, at, &mut back).unwrap();
                            assert_eq!(u32::from_le_bytes(back), value);
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn many_writes_go_in_one_message() {
    for write_multiple in [true, false] {
        let (_served, socket) = Served::with(Capabilities { write_multiple, ..Capabilities::default() });
        let client = Client::over(socket, &ClientOptions::default()).unwrap();
        assert_eq!(client.agreed().write_multiple, write_multiple);
        let values: Vec<[u8; 8]> = (0..300u64).map(u64::to_le_bytes).collect();
        let writes: Vec<(u32, u64, &[u8])> =
            values.iter().enumerate().map(|(at, value)| (pci::BAR0, 8 * at as u64, &value[..1 + at % 8])).collect();
        client.write_multi(&writes).unwrap();
        let mut back = [0; 8];
        client.read(pci::BAR0, 8 * 298, &mut back).unwrap();
        assert_eq!(back, [298u64.to_le_bytes()[0], 1, 0, 0, 0, 0, 0, 0]);
        let broken = [(pci::BAR0, 0, &[7][..]), (pci::BAR0, BROKEN, &[0]), (pci::BAR0, 1, &[9])];
        refused(Errno::IO)(client.write_multi(&broken));
        client.read(pci::BAR0, 0, &mut back[..2]).unwrap();
        assert_eq!(back[..2], [7, 9], "the others were done");
    }
}

#[test]
fn what_can_be_mapped_is_mapped() {
    let (served, client) = start();
    let bar1 = client.region(pci::BAR1).unwrap();
    assert_eq!(bar1.areas, [0x1000..0x4000, 0x5000..BAR1]);
    let (file, offset) = bar1.file.unwrap();
    assert_eq!(offset, 0);
    let memory = Memfd::from_fd(file).unwrap().map().unwrap();
    memory.write(0x1000, b"from the client");
    let mut seen = [0; 15];
    served.device.memory.read(0x1000, &mut seen);
    assert_eq!(&seen, b"from the client");
    client.write(pci::BAR1, 0x1005, b"by a message").unwrap();
    let mut seen = [0; 17];
    memory.read(0x1000, &mut seen);
    assert_eq!(&seen, b"from by a message");
}

#[test]
fn memory_is_mapped_for_the_device() {
    let (served, client) = start();
    let memory = Memfd::create("guest", 0x4000).unwrap();
    client.map_dma(0x8000, 0x2000, (true, true), Some((memory.as_fd(), 0x1000))).unwrap();
    client.map_dma(0xa000, 0x1000, (true, false), None).unwrap();
    for (address, bytes) in [(0x8000, 0x2000), (0x9000, 0x1000), (0x7000, 0x2000), (0, 0x1_0000)] {
        refused(Errno::EXIST)(client.map_dma(address, bytes, (true, true), Some((memory.as_fd(), 0))));
    }
    refused(Errno::INVAL)(client.map_dma(0x800, 0x1000, (true, true), None));
    refused(Errno::INVAL)(client.map_dma(0, 0, (true, true), None));
    refused(Errno::INVAL)(client.map_dma(0u64.wrapping_sub(0x1000), 0x2000, (true, true), None));
    refused(Errno::INVAL)(client.map_dma(0x1000, 0x1000, (false, false), None));
    refused(Errno::INVAL)(client.map_dma(0x1000, 0x1000, (true, true), Some((memory.as_fd(), 12))));
    let huge = 0u64.wrapping_sub(0x1000);
    refused(Errno::INVAL)(client.map_dma(0x1000, 0x1000, (true, true), Some((memory.as_fd(), huge))));
    refused(Errno::NOENT)(client.unmap_dma(0x8000, 0x1000));
    client.unmap_dma(0x8000, 0x2000).unwrap();
    client.map_dma(0x8000, 0x1000, (false, true), None).unwrap();
    client.unmap_all().unwrap();
    assert_eq!(
        served.told(),
        [
            Told::Map { address: 0x8000, bytes: 0x2000, rights: (true, true), offset: Some(0x1000) },
            Told::Map { address: 0xa000, bytes: 0x1000, rights: (true, false), offset: None },
            Told::Unmap(0x8000, 0x2000),
            Told::Map { address: 0x8000, bytes: 0x1000, rights: (false, true), offset: None },
            Told::Unmap(0x8000, 0x1000),
            Told::Unmap(0xa000, 0x1000),
        ]
    );
    // The file that arrived is the one that was sent.
    memory.map().unwrap().write(0x1000, b"guest");
    let file = served.device.files.lock().pop().unwrap();
    let mut seen = [0; 5];
    Memfd::from_fd(file).unwrap().map().unwrap().read(0x1000, &mut seen);
    assert_eq!(&seen, b"guest");
    assert!(served.device.files.lock().is_empty(), "refused maps left nothing");
}

#[test]
fn messages_reach_their_eventfds() {
    let (served, client) = start();
    let marker = Marker::new();
    client.connect_irqs(Marker::KIND, 0, &[marker.fd()]).unwrap();
    let eventfds = [eventfd(), eventfd(), eventfd()];
    let fire = |vector: u8| client.write(pci::BAR0, MESSAGE, &[vector]).unwrap();
    let told = || marker.look(&served.device, eventfds.each_ref());
    // What QEMU does first: one interrupt, no descriptor.
    client.disconnect_irqs(pci::MSIX, 0, 1).unwrap();
    let borrowed: Vec<BorrowedFd<'_>> = eventfds.iter().map(AsFd::as_fd).collect();
    client.connect_irqs(pci::MSIX, 4, &borrowed).unwrap();
    fire(3);
    fire(4);
    fire(6);
    fire(99);
    assert_eq!(told(), [true, false, true]);
    assert_eq!(told(), [false; 3]);
    client.act_on_irqs(IRQ_SET_ACTION_TRIGGER, pci::MSIX, 4, 3).unwrap();
    assert_eq!(told(), [true; 3]);
    let some = IRQ_SET_DATA_BOOL | IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(some, pci::MSIX, 4, 3, &[0, 1, 0], &[]).unwrap();
    assert_eq!(told(), [false, true, false]);
    client.disconnect_irqs(pci::MSIX, 5, 1).unwrap();
    fire(4);
    fire(5);
    assert_eq!(told(), [true, false, false]);
    client.disable_irqs(pci::MSIX).unwrap();
    fire(4);
    assert_eq!(told(), [false; 3]);
    // Messages are not masked; a count without end; data of another length; no descriptor where some belong, and the reverse.
    refused(Errno::NOTTY)(client.act_on_irqs(IRQ_SET_ACTION_MASK, pci::MSIX, 0, 1));
    refused(Errno::INVAL)(client.act_on_irqs(IRQ_SET_ACTION_TRIGGER, pci::MSIX, 31, 2));
    refused(Errno::INVAL)(client.act_on_irqs(IRQ_SET_ACTION_TRIGGER, pci::MSIX, u32::MAX, 2));
    refused(Errno::INVAL)(client.act_on_irqs(IRQ_SET_ACTION_TRIGGER, 5, 0, 1));
    refused(Errno::INVAL)(client.act_on_irqs(IRQ_SET_ACTION_TRIGGER | IRQ_SET_ACTION_MASK, pci::MSIX, 0, 1));
    refused(Errno::INVAL)(client.set_irqs(some, pci::MSIX, 4, 3, &[0, 1], &[]));
    refused(Errno::INVAL)(client.set_irqs(some, pci::MSIX, 4, 1, &[1], &borrowed[..1]));
    let connect = IRQ_SET_DATA_EVENTFD | IRQ_SET_ACTION_TRIGGER;
    refused(Errno::INVAL)(client.set_irqs(connect, pci::MSIX, 4, 3, &[], &borrowed[..2]));
    refused(Errno::INVAL)(client.set_irqs(connect | IRQ_SET_DATA_NONE, pci::MSIX, 4, 3, &[], &borrowed));
    let memory = Memfd::create("no eventfd", 4096).unwrap();
    refused(Errno::INVAL)(client.connect_irqs(pci::MSIX, 0, &[memory.as_fd()]));
}

#[test]
fn a_wire_fires_again_until_it_is_served() {
    let (served, client) = start();
    let (marker, eventfd) = (Marker::new(), eventfd());
    client.connect_irqs(Marker::KIND, 0, &[marker.fd()]).unwrap();
    client.connect_irqs(pci::INTX, 0, &[eventfd.as_fd()]).unwrap();
    let told = || marker.look(&served.device, [&eventfd])[0];
    let unmask = || client.act_on_irqs(IRQ_SET_ACTION_UNMASK, pci::INTX, 0, 1).unwrap();
    client.write(pci::BAR0, WIRE, &[1]).unwrap();
    assert!(told());
    client.write(pci::BAR0, WIRE, &[1]).unwrap();
    assert!(!told(), "it has masked itself");
    unmask();
    assert!(told(), "it is still up");
    let mut up = [0];
    client.read(pci::BAR0, WIRE, &mut up).unwrap();
    assert_eq!(up, [1]);
    unmask();
    assert!(!told(), "it is down");
    client.act_on_irqs(IRQ_SET_ACTION_MASK, pci::INTX, 0, 1).unwrap();
    client.write(pci::BAR0, WIRE, &[1]).unwrap();
    client.act_on_irqs(IRQ_SET_ACTION_TRIGGER, pci::INTX, 0, 1).unwrap();
    assert!(!told());
    client.read(pci::BAR0, WIRE, &mut up).unwrap();
    client.set_irqs(IRQ_SET_DATA_BOOL | IRQ_SET_ACTION_UNMASK, pci::INTX, 0, 1, &[0], &[]).unwrap();
    assert!(!told(), "nothing was unmasked");
    unmask();
    assert!(told(), "triggered while it was masked");
    // Eventfds that tell of masking are not offered.
    let tell = IRQ_SET_DATA_EVENTFD | IRQ_SET_ACTION_UNMASK;
    refused(Errno::NOTTY)(client.set_irqs(tell, pci::INTX, 0, 1, &[], &[eventfd.as_fd()]));
}

#[test]
fn a_wire_that_is_up_fires_when_somebody_listens() {
    let (_served, client) = start();
    client.write(pci::BAR0, WIRE, &[1]).unwrap();
    let eventfd = eventfd();
    client.connect_irqs(pci::INTX, 0, &[eventfd.as_fd()]).unwrap();
    wait_for(&eventfd);
}

/// Leaves an eventfd in a state in which a write to it waits, whatever the server has asked for.
fn fill(eventfd: &OwnedFd) {
    rustix::fs::fcntl_setfl(eventfd, OFlags::NONBLOCK).expect("flags");
    while rustix::io::write(eventfd, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        taken(eventfd);
    }
    rustix::fs::fcntl_setfl(eventfd, OFlags::empty()).expect("flags");
}

#[test]
fn a_client_whose_eventfd_is_full_holds_up_nobody_else() {
    let (served, client) = start();
    let [full, other] = [eventfd(), eventfd()];
    client.connect_irqs(pci::MSIX, 0, &[full.as_fd(), other.as_fd()]).unwrap();
    fill(&full);
    let interrupts = served.device.interrupts();
    for _ in 0..1000 {
        interrupts.trigger(pci::MSIX, 0);
        interrupts.trigger(pci::MSIX, 1);
    }
    // Nor does it hold up its own accesses; but it gets no interrupts meanwhile.
    client.write(pci::BAR0, MESSAGE, &[1]).unwrap();
    assert!(!taken(&other));
    wait_for(&full);
    wait_for(&other);
    // With a full one, it leaves; the server does not wait for what will never be.
    fill(&full);
    interrupts.trigger(pci::MSIX, 0);
    drop(client);
    assert_eq!(served.ended().0, Ended::HungUp);
}

#[test]
fn a_device_is_reset() {
    let (served, client) = start();
    client.write(pci::BAR0, 0, &[1, 2, 3]).unwrap();
    client.reset().unwrap();
    let mut back = [9; 3];
    client.read(pci::BAR0, 0, &mut back).unwrap();
    assert_eq!(back, [0; 3]);
    assert_eq!(served.told(), [Told::Reset]);
}

#[test]
fn many_threads_get_their_own_answers() {
    let (_served, client) = start();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let client = &client;
            scope.spawn(move || {
                let mut out = vec![0; 8 + 100 * thread as usize];
                for round in 0..400u64 {
                    let value = (thread << 32 | round).to_le_bytes();
                    client.write(pci::BAR0, 1024 + 8 * thread, &value).unwrap();
                    client.read(pci::BAR0, 1024 + 8 * thread, &mut out).unwrap();
                    assert_eq!(out[..8], value);
                    if round % 7 == 0 {
                        refused(Errno::IO)(client.read(pci::BAR0, BROKEN, &mut out[..4]));
                    }
                }
            });
        }
    });
}

#[test]
fn who_waits_learns_of_the_end() {
    let (served, client) = start();
    std::thread::scope(|scope| {
        let reads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut out = [0; 4];
                    while client.read(pci::BAR0, 0, &mut out).is_ok() {}
                    client.read(pci::BAR0, 0, &mut out)
                })
            })
            .collect();
        served.stopper.stop();
        for read in reads {
            assert_eq!(read.join().unwrap(), Err(CallError::Ended(Ended::HungUp)));
        }
    });
    assert_eq!(client.write_posted(pci::BAR0, 0, &[0]), Err(CallError::Ended(Ended::HungUp)));
    assert_eq!(served.ended().0, Ended::HungUp);
}

#[test]
fn a_client_that_is_dropped_has_left_whoever_else_has_its_socket() {
    let (served, socket) = Served::new();
    let _held = socket.try_clone().unwrap();
    drop(Client::over(socket, &ClientOptions::default()).unwrap());
    assert_eq!(served.ended(), (Ended::HungUp, vec![Told::Gone]));
}

#[test]
fn clients_come_one_after_the_other_at_a_name() {
    let path: PathBuf = std::env::temp_dir().join(format!("vfio-user-both-{}.sock", std::process::id()));
    let listener = Listener::bind(&path, 0o600).unwrap();
    let device = TestDevice::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let server = Server::new(listener.accept().unwrap(), ServerOptions::default());
                assert_eq!(server.serve(&device), Ended::HungUp);
            }
        });
        let eventfd = eventfd();
        let mut out = [0; 2];
        let client = Client::connect(&path, &ClientOptions::default()).unwrap();
        client.connect_irqs(pci::MSIX, 0, &[eventfd.as_fd()]).unwrap();
        client.write(pci::BAR0, 0, &[5, 6]).unwrap();
        drop(client);
        let client = Client::connect(&path, &ClientOptions::default()).unwrap();
        client.read(pci::BAR0, 0, &mut out).unwrap();
        assert_eq!(out, [5, 6], "the device keeps its state");
        let marker = Marker::new();
        client.connect_irqs(Marker::KIND, 0, &[marker.fd()]).unwrap();
        client.write(pci::BAR0, MESSAGE, &[0]).unwrap();
        assert_eq!(marker.look(&device, [&eventfd]), [false], "the interrupts of the one before are gone");
    });
    assert_eq!(*device.told.lock(), [Told::Gone, Told::Gone]);
    drop(listener);
    assert!(matches!(Client::connect(&path, &ClientOptions::default()), Err(CallError::Refused(Errno::NOENT))));
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let (socket, _silent) = UnixStream::pair().unwrap();
    let options = ClientOptions { answer_within: Some(Duration::from_millis(30)), ..ClientOptions::default() };
    assert_eq!(Client::over(socket, &options).unwrap_err(), CallError::Ended(Ended::Silent));
}
