//! Bytes as they should not come: in pieces, too many, too few, with descriptors where none belong.

mod common;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{BAR0, Served, TestDevice, Told, eventfd, taken, wait_for};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use vfio_user::wire::{self, Command, Header};
use vfio_user::{Capabilities, Ended, Errno, MAX_FDS, Server, ServerOptions, pci};
use zerocopy::{FromBytes, IntoBytes};

/// A message with this payload.
fn message(id: u16, command: Command, payload: &[u8]) -> Vec<u8> {
    let size = (wire::HEADER + payload.len()) as u32;
    let mut bytes = Header { id, command: command.0, size, flags: 0, error: 0 }.as_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn version(json: &str) -> Vec<u8> {
    let mut payload = wire::Version { major: 0, minor: 1 }.as_bytes().to_vec();
    payload.extend(json.bytes());
    payload.push(0);
    message(0, Command::VERSION, &payload)
}

fn read_of(id: u16, offset: u64, count: u32) -> Vec<u8> {
    message(id, Command::REGION_READ, wire::RegionAccess { offset, region: pci::BAR0, count }.as_bytes())
}

fn write_of(id: u16, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = wire::RegionAccess { offset, region: pci::BAR0, count: data.len() as u32 };
    message(id, Command::REGION_WRITE, &[access.as_bytes(), data].concat())
}

fn map_of(id: u16, address: u64, bytes: u64) -> Vec<u8> {
    let map = wire::DmaMap { argsz: 32, flags: wire::DMA_READABLE, offset: 0, address, size: bytes };
    message(id, Command::DMA_MAP, map.as_bytes())
}

fn irqs_of(id: u16, start: u32, count: u32) -> Vec<u8> {
    let flags = wire::IRQ_SET_DATA_EVENTFD | wire::IRQ_SET_ACTION_TRIGGER;
    let set = wire::IrqSet { argsz: 20, flags, index: pci::MSIX, start, count };
    message(id, Command::DEVICE_SET_IRQS, set.as_bytes())
}

/// A client that writes bytes.
struct Raw {
    socket: UnixStream,
    served: Served,
}

impl Raw {
    fn new() -> Raw {
        let (served, socket) = Served::new();
        let mut raw = Raw { socket, served };
        raw.send(&version(r#"{"capabilities":{"write_multiple":true}}"#));
        assert_eq!(raw.reply().0.command, Command::VERSION.0);
        raw
    }

    fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("a server that listens");
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()));
    }

    fn reply(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; wire::HEADER];
        self.socket.read_exact(&mut header).expect("a reply");
        let header = Header::read_from_bytes(&header).expect("a header");
        let mut payload = vec![0; header.size as usize - wire::HEADER];
        self.socket.read_exact(&mut payload).expect("a payload");
        (header, payload)
    }

    /// The next reply is the refusal of command `id`.
    fn refused(&mut self, id: u16, error: Errno) {
        let (header, payload) = self.reply();
        let flags = wire::REPLY | wire::ERROR;
        let want = (id, flags, error.raw_os_error() as u32, 0);
        assert_eq!((header.id, header.flags, header.error, payload.len()), want);
    }

    /// The next reply is that to command `id`, which was done.
    fn done(&mut self, id: u16) -> Vec<u8> {
        let (header, payload) = self.reply();
        assert_eq!((header.id, header.flags, header.error), (id, wire::REPLY, 0));
        payload
    }

    /// The server has left, because of that.
    fn ended(self, ended: Ended) {
        let mut rest = Vec::new();
        let mut socket = self.socket;
        // What was sent after the server had left makes the end of its stream an error.
        let _ = socket.read_to_end(&mut rest);
        assert_eq!((rest.len(), self.served.ended().0), (0, ended));
    }
}

/// Open descriptors of this process that are files of that name.
fn open(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
    links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(|path| path.ends_with(name)).count()
}

fn memory(name: &str) -> OwnedFd {
    hostmem::Memfd::create(name, 4096).expect("memory").into_fd()
}

#[test]
fn messages_in_pieces_and_messages_in_one_piece() {
    let mut raw = Raw::new();
    let stream =
        [write_of(1, 8, b"pieces!!"), read_of(2, 8, 8), message(3, Command(99), b"unknown"), read_of(4, 12, 4)];
    let stream = stream.concat();
    for piece in [1, 2, 3, 7, 15, 16, 17, 31, 40, stream.len()] {
        for bytes in stream.chunks(piece) {
            raw.send(bytes);
        }
        raw.done(1);
        assert_eq!(&raw.done(2)[16..], b"pieces!!");
        raw.refused(3, Errno::OPNOTSUPP);
        assert_eq!(&raw.done(4)[16..], b"es!!");
    }
}

#[test]
fn descriptors_stay_with_their_message_however_it_comes() {
    let mut raw = Raw::new();
    let file = memory("theirs");
    for (at, piece) in [1, 15, 16, 47, 48].into_iter().enumerate() {
        let address = at as u64 * 4096;
        let map = map_of(1, address, 4096);
        raw.send(&read_of(0, 0, 4));
        // With the first bytes, and with the last.
        let (first, rest) = map.split_at(piece);
        let with_last = at % 2 == 1 && !rest.is_empty();
        if with_last {
            raw.send(first);
            raw.send_with(rest, &[file.as_fd()]);
        } else {
            raw.send_with(first, &[file.as_fd()]);
            raw.send(rest);
        }
        raw.send(&read_of(2, 0, 4));
        for id in 0..3 {
            raw.done(id);
        }
        assert_eq!(raw.served.device.files.lock().len(), at + 1);
    }
}

#[test]
fn an_answer_to_everything() {
    let mut raw = Raw::new();
    let commands = [0, 6, 11, 12, 14, 17, 18, 19, 999, u16::MAX];
    for (id, command) in commands.into_iter().enumerate() {
        raw.send(&message(id as u16, Command(command), &[7; 300]));
        raw.refused(id as u16, Errno::OPNOTSUPP);
    }
    raw.send(&message(1, Command::DEVICE_FEATURE, &[0; 8]));
    raw.refused(1, Errno::NOTTY);
    raw.send(&version("{}"));
    raw.refused(0, Errno::INVAL);
    // Too short, too long, by one byte or by all.
    let sizes = [(2, 32), (3, 16), (4, 16), (5, 32), (7, 16), (9, 16)];
    for (command, size) in sizes {
        for wrong in [0, 1, size - 1, size + 1, 4 * size] {
            raw.send(&message(2, Command(command), &vec![255; wrong]));
            raw.refused(2, Errno::INVAL);
        }
    }
    let write = write_of(3, 0, b"1234");
    for (from, to) in [(16, 20), (16, 31), (16, 35)] {
        raw.send(&message(3, Command::REGION_WRITE, &write[from..to]));
        raw.refused(3, Errno::INVAL);
    }
    for (count, entries) in [(0, 24), (1, 0), (1, 23), (1, 25), (1, 48), (u64::MAX, 24), (1 << 61, 0)] {
        let payload = [count.as_bytes(), &vec![0; entries]].concat();
        raw.send(&message(4, Command::REGION_WRITE_MULTI, &payload));
        raw.refused(4, Errno::INVAL);
    }
    // One entry that is too long for its kind is not done; the others are.
    let entry = |count| {
        let access = wire::RegionAccess { offset: 0, region: pci::BAR0, count };
        wire::MultiWrite { access, data: [7; 8] }
    };
    let payload = [2u64.as_bytes(), entry(9).as_bytes(), entry(8).as_bytes()].concat();
    raw.send(&message(5, Command::REGION_WRITE_MULTI, &payload));
    assert_eq!(raw.done(5), 1u64.as_bytes());
    raw.send(&message(6, Command::DEVICE_RESET, b"!"));
    raw.refused(6, Errno::INVAL);
    raw.send(&read_of(7, 0, 8));
    assert_eq!(raw.done(7)[16..], [7; 8]);
}

#[test]
fn who_wants_no_reply_gets_none() {
    let mut raw = Raw::new();
    let silent = |mut bytes: Vec<u8>| {
        bytes[8] |= wire::NO_REPLY as u8;
        bytes
    };
    raw.send(&silent(read_of(1, 0, 4)));
    raw.send(&silent(read_of(2, BAR0, 4)));
    raw.send(&silent(map_of(3, 0, 4096)));
    raw.send(&silent(message(4, Command(77), &[])));
    raw.send(&silent(write_of(5, 0, b"done")));
    raw.send(&read_of(6, 0, 4));
    assert_eq!(&raw.done(6)[16..], b"done");
    assert_eq!(raw.served.told().len(), 1);
}

#[test]
fn a_region_is_told_as_far_as_there_is_room() {
    let mut raw = Raw::new();
    for (argsz, longer) in [(31, None), (32, Some(false)), (79, Some(false)), (80, Some(true)), (u32::MAX, Some(true))]
    {
        let ask = wire::RegionInfo { argsz, index: pci::BAR1, ..Default::default() };
        raw.send(&message(1, Command::DEVICE_GET_REGION_INFO, ask.as_bytes()));
        let Some(longer) = longer else {
            raw.refused(1, Errno::INVAL);
            continue;
        };
        let payload = raw.done(1);
        let (info, rest) = wire::RegionInfo::read_from_prefix(&payload).unwrap();
        assert_eq!((info.argsz, info.cap_offset, rest.len()), (80, 32, if longer { 48 } else { 0 }));
    }
}

#[test]
fn transfers_are_as_long_as_was_agreed() {
    let (served, socket) = Served::with(Capabilities { max_data_xfer_size: 64, ..Capabilities::default() });
    let mut raw = Raw { socket, served };
    raw.send(&version(r#"{"capabilities":{"max_data_xfer_size":32}}"#));
    let (_, answer) = raw.reply();
    assert!(String::from_utf8_lossy(&answer).contains(r#""max_data_xfer_size":64"#));
    raw.send(&read_of(1, 0, 32));
    raw.done(1);
    raw.send(&read_of(2, 0, 33));
    raw.refused(2, Errno::INVAL);
    raw.send(&write_of(3, 0, &[0; 33]));
    raw.refused(3, Errno::INVAL);
    raw.send(&write_of(4, 0, &vec![0; wire::OVERHEAD]));
    raw.refused(4, Errno::INVAL);
    raw.send(&write_of(5, 0, &vec![0; wire::OVERHEAD + 64])[..100]);
    raw.ended(Ended::Garbage("a message longer than was agreed"));
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let header = |size, flags| Header { id: 0, command: 9, size, flags, error: 0 }.as_bytes().to_vec();
    for (bytes, ended) in [
        (header(15, 0), "a message shorter than its header"),
        (header(0, 0), "a message shorter than its header"),
        (header(u32::MAX, 0), "a message longer than was agreed"),
        (header(2 << 20, 0), "a message longer than was agreed"),
        (header(16, wire::REPLY), "a reply to nothing"),
        (header(16, 7), "a reply to nothing"),
    ] {
        let mut raw = Raw::new();
        raw.send(&bytes);
        raw.ended(Ended::Garbage(ended));
    }
}

#[test]
fn who_does_not_greet_is_not_served() {
    let first = |bytes: &[u8]| {
        let (served, socket) = Served::new();
        let mut raw = Raw { socket, served };
        raw.send(bytes);
        assert_eq!(raw.socket.read(&mut [0; 1]).unwrap_or(0), 0);
        let (ended, told) = raw.served.ended();
        assert_eq!(told, [], "the device has seen nobody");
        ended
    };
    assert_eq!(first(&read_of(0, 0, 4)), Ended::Garbage("a first message that is not the version"));
    assert_eq!(first(&version("{")), Ended::Garbage("version data that are no JSON"));
    let mut other = version("{}");
    other[wire::HEADER] = 1;
    assert_eq!(first(&other), Ended::Garbage("a version that is not spoken here"));
    assert_eq!(first(&version(&" ".repeat(wire::OVERHEAD))), Ended::Garbage("a message longer than was agreed"));
}

#[test]
fn who_says_nothing_or_too_little_has_to_leave() {
    for bytes in [&b""[..], &version("{}")[..20]] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).unwrap();
        let greet_within = Duration::from_millis(30);
        let server = Server::new(ours, ServerOptions { greet_within, ..ServerOptions::default() });
        assert_eq!(server.serve(&TestDevice::new()), Ended::Silent);
    }
}

#[test]
fn a_client_that_dies_within_a_message_is_gone() {
    let mut raw = Raw::new();
    raw.send(&write_of(1, 0, b"never whole")[..30]);
    drop(raw.socket);
    assert_eq!(raw.served.ended(), (Ended::HungUp, vec![Told::Gone]));
}

#[test]
fn descriptors_that_belong_nowhere_are_closed() {
    let name = "/memfd:nowhere (deleted)";
    let file = memory("nowhere");
    let one = open(name);
    assert_eq!(one, 1);
    let mut raw = Raw::new();
    let many = |count| vec![file.as_fd(); count];
    // With a command that takes none; two where one belongs; more than there may be; with an unknown command.
    for (id, bytes, fds) in [
        (1, read_of(1, 0, 4), 1),
        (2, map_of(2, 0, 4096), 2),
        (3, map_of(3, 0, 4096), MAX_FDS),
        (4, map_of(4, 0, 4096), MAX_FDS + 1),
        (5, irqs_of(5, 0, 17), 17),
        (6, irqs_of(6, 0, 30), 60),
    ] {
        raw.send_with(&bytes, &many(fds));
        raw.refused(id, Errno::INVAL);
        assert_eq!(open(name), one, "command {id}");
    }
    // A map that is refused.
    raw.send_with(&map_of(7, 1, 4096), &many(1));
    raw.refused(7, Errno::INVAL);
    // Some with each byte of a message: they are not kept until it is whole.
    let write = write_of(8, 0, &[0; 200]);
    let (last, bytes) = write.split_last().unwrap();
    for byte in bytes.chunks(1) {
        raw.send_with(byte, &many(MAX_FDS));
    }
    // The server has to have taken them out of the socket first, which nobody else can tell.
    raw.send_with(&[*last], &many(1));
    raw.refused(8, Errno::INVAL);
    assert_eq!(open(name), one);
    // One that is taken is the device's.
    raw.send_with(&map_of(9, 0, 4096), &many(1));
    raw.done(9);
    assert_eq!(open(name), one + 1);
    // A message that ends the connection, with descriptors.
    let bad = Header { size: 3, ..Header::default() };
    raw.send_with(bad.as_bytes(), &many(3));
    raw.ended(Ended::Garbage("a message shorter than its header"));
    assert_eq!(open(name), one, "the device is gone, too");
}

#[test]
fn as_many_descriptors_as_were_agreed() {
    let (served, socket) = Served::with(Capabilities { max_msg_fds: 2, ..Capabilities::default() });
    let mut raw = Raw { socket, served };
    raw.send(&version("{}"));
    raw.reply();
    let eventfds: Vec<_> = (0..3).map(|_| eventfd()).collect();
    let borrowed: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
    raw.send_with(&irqs_of(1, 0, 3), &borrowed);
    raw.refused(1, Errno::INVAL);
    raw.send_with(&irqs_of(2, 0, 2), &borrowed[..2]);
    raw.done(2);
    raw.served.device.interrupts().trigger(pci::MSIX, 1);
    wait_for(&eventfds[1]);
    assert!(!taken(&eventfds[0]));
}
