//! Arbitrary bytes against a server and against a client: the bodies of the fuzz target, with oracles.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use hostmem::Memfd;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use serde_json::Value;
use zerocopy::{FromBytes, IntoBytes};

use crate::socket::send;
use crate::wire::{self, Command, HEADER, Header};
use crate::{
    Capabilities, Client, ClientOptions, Description, Device, DmaMap, Ended, Errno, Interrupts, Irq, Region, Server,
    ServerOptions, pci,
};

/// Most messages of one run: time is bounded by it.
const MOST: usize = 64;
/// Most bytes of data in a transfer; small, so that lengths near it come up.
const TRANSFER: u32 = 256;
/// Size of the regions.
const BYTES: u64 = 0x3000;

/// Bytes as decisions; when they are used up, zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// A device that holds the server to what it promises.
struct Strict {
    file: Arc<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    interrupts: Option<Arc<Interrupts>>,
    maps: Vec<Range<u64>>,
    gone: bool,
}

impl Strict {
    fn new() -> Strict {
        let file = Memfd::create("region", BYTES).expect("memory");
        Strict { file: Arc::new(file.into_fd()), state: Mutex::default() }
    }

    fn assert_access(&self, region: u32, offset: u64, bytes: usize) {
        assert!(region == pci::BAR0 || region == pci::BAR1, "region {region}");
        assert!(bytes > 0 && bytes <= TRANSFER as usize, "{bytes} bytes");
        assert!(offset < BYTES && bytes as u64 <= BYTES - offset, "{offset}+{bytes}");
        assert!(!self.state.lock().gone);
    }
}

impl Device for Strict {
    fn describe(&self, proposed: Option<&Value>) -> Description {
        let mut regions = vec![Region::default(); pci::NUM_REGIONS as usize];
        regions[pci::BAR0 as usize] = Region { writable: true, ..Region::trapped(BYTES) };
        let areas = vec![0..0x1000, 0x2000..BYTES];
        regions[pci::BAR1 as usize] = Region::mapped(BYTES, areas, Arc::clone(&self.file), 0);
        let irqs = vec![Irq::line(), Irq::default(), Irq::messages(8)];
        Description { resettable: true, regions, irqs, private: proposed.cloned(), posted_writes: true }
    }

    fn attach(&self, interrupts: Arc<Interrupts>) {
        assert!(self.state.lock().interrupts.replace(interrupts).is_none(), "attached once");
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        self.assert_access(region, offset, out.len());
        if offset % 8 == 4 { Err(Errno::IO) } else { Ok(()) }
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.assert_access(region, offset, data.len());
        let interrupts = self.state.lock().interrupts.clone().expect("attached");
        interrupts.set_level(pci::INTX, 0, data[0] % 2 == 1);
        interrupts.trigger(pci::MSIX, data[0].into());
        if offset % 8 == 4 { Err(Errno::IO) } else { Ok(()) }
    }

    fn map(&self, map: DmaMap) -> Result<(), Errno> {
        assert!(
            map.bytes > 0 && (map.address | map.bytes).is_multiple_of(hostmem::PAGE) && (map.readable || map.writable)
        );
        let range = map.address..map.address + (map.bytes - 1);
        let maps = &mut self.state.lock().maps;
        assert!(maps.iter().all(|other| range.end < other.start || other.end < range.start), "an overlap");
        maps.push(range);
        assert!(maps.len() <= 8, "too many maps");
        Ok(())
    }

    fn unmap(&self, address: u64, bytes: u64) {
        let maps = &mut self.state.lock().maps;
        let at = maps.iter().position(|map| *map == (address..address + (bytes - 1))).expect("a map that was made");
        maps.swap_remove(at);
    }

    fn reset(&self) {
        assert!(!self.state.lock().gone);
    }

    fn gone(&self) {
        let state = &mut self.state.lock();
        assert!(state.interrupts.is_some() && !state.gone, "gone once");
        state.gone = true;
    }
}

/// A client that sends arbitrary messages, or arbitrary bytes. Panics if the server is wrong.
///
/// Whole messages have to be answered one by one, and the server has to stay until the client leaves; whatever else is sent, the
/// server has to end when it does.
pub fn fuzz_server(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    let (greets, whole) = (kind & 1 == 0, kind & 2 == 0);
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let device = Strict::new();
    let capabilities = Capabilities { max_data_xfer_size: TRANSFER, max_dma_maps: 8, ..Capabilities::default() };
    let spin = Duration::from_micros(u64::from(kind >> 4));
    let server = Server::new(ours, ServerOptions { capabilities, spin, ..ServerOptions::default() });
    let ended = std::thread::scope(|scope| {
        let thread = scope.spawn(|| server.serve(&device));
        let mut peer = Peer { socket: theirs, replies: Vec::new() };
        if greets {
            peer.send(&greeting(), 0, &[]);
        }
        let sent = if whole && greets { messages(&mut peer, &mut input) } else { pieces(&mut peer, &mut input) };
        let replies = peer.finish();
        let ended = thread.join().expect("the server does not panic");
        if let Some(sent) = sent {
            assert_eq!(replies.first().map(|first| first.command), Some(Command::VERSION.0));
            let got: Vec<(u16, u16)> = replies[1..].iter().map(|reply| (reply.id, reply.command)).collect();
            assert_eq!((got, ended), (sent, Ended::HungUp));
        }
        ended
    });
    assert_ne!(ended, Ended::Silent);
    let state = device.state.lock();
    assert_eq!(state.gone, state.interrupts.is_some(), "who was attached is gone");
}

fn greeting() -> Vec<u8> {
    let mut payload = wire::Version { major: 0, minor: 1 }.as_bytes().to_vec();
    payload.extend_from_slice(b"{\"capabilities\":{\"write_multiple\":true,\"sundial\":[1]}}\0");
    let size = u32::try_from(HEADER + payload.len()).expect("a few bytes");
    let header = Header { id: 0, command: Command::VERSION.0, size, flags: 0, error: 0 };
    [header.as_bytes(), &payload].concat()
}

/// Sends whole messages; says which are to be answered.
fn messages(peer: &mut Peer, input: &mut Input<'_>) -> Option<Vec<(u16, u16)>> {
    let mut expected = Vec::new();
    let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let memory = Memfd::create("theirs", 4096).expect("memory");
    for id in 0..MOST {
        if input.0.is_empty() {
            break;
        }
        let (command, how) = (u16::from(input.byte() % 20), input.byte());
        let payload = payload(Command(command), input);
        let no_reply = how & 7 == 7;
        let (id, size) = (id as u16, (HEADER + payload.len()) as u32);
        let flags = if no_reply { wire::NO_REPLY } else { wire::COMMAND };
        let header = Header { id, command, size, flags, error: how.into() };
        let fd = if command == Command::DMA_MAP.0 { memory.as_fd() } else { eventfd.as_fd() };
        let fds = vec![fd; usize::from(how >> 3) % 20];
        peer.send(&[header.as_bytes(), &payload].concat(), usize::from(how >> 5), &fds);
        if !no_reply {
            expected.push((id, command));
        }
    }
    Some(expected)
}

/// A payload of about the form that a command has, with numbers that are often in range.
fn payload(command: Command, input: &mut Input<'_>) -> Vec<u8> {
    let words = match command {
        Command::REGION_READ | Command::REGION_WRITE | Command::DEVICE_GET_INFO | Command::DEVICE_GET_IRQ_INFO => 4,
        Command::DMA_MAP | Command::DEVICE_GET_REGION_INFO | Command::REGION_WRITE_MULTI => 8,
        Command::DEVICE_SET_IRQS => 5,
        Command::DMA_UNMAP => 6,
        _ => 0,
    };
    let mut payload = Vec::new();
    for _ in 0..words {
        let (kind, byte) = (input.byte(), u32::from(input.byte()));
        let word = match kind % 8 {
            0 => 0,
            1 => u32::MAX,
            2 => byte << 12,
            3 => byte.wrapping_mul(0x0101_0101),
            4 => 32 + byte % 64,
            _ => byte % 9,
        };
        payload.extend_from_slice(&word.to_ne_bytes());
    }
    let data = input.byte();
    payload.resize(payload.len() + usize::from(data % 24), data);
    if data > 250 {
        payload.truncate(usize::from(data) % 16);
    }
    payload
}

/// Sends bytes as they are, in pieces.
fn pieces(peer: &mut Peer, input: &mut Input<'_>) -> Option<Vec<(u16, u16)>> {
    for _ in 0..MOST {
        let bytes = usize::from(input.byte());
        peer.send(input.take(bytes), 0, &[]);
    }
    None
}

/// A client's end of the socket, which takes all replies.
struct Peer {
    socket: UnixStream,
    replies: Vec<u8>,
}

impl Peer {
    /// Sends bytes, the first `first` of them alone, and with descriptors. Who has ended takes none, which is no error.
    fn send(&mut self, bytes: &[u8], first: usize, fds: &[BorrowedFd<'_>]) {
        let (first, rest) = bytes.split_at(first.min(bytes.len()));
        let mut fds = &fds[..fds.len().min(crate::MAX_FDS)];
        for part in [first, rest] {
            if !part.is_empty() && send(&self.socket, &mut [IoSlice::new(part)], fds).is_ok() {
                fds = &[];
            }
        }
        self.receive(false);
    }

    fn receive(&mut self, to_the_end: bool) {
        self.socket.set_nonblocking(!to_the_end).expect("a socket");
        let mut some = [0; 4096];
        loop {
            match self.socket.read(&mut some) {
                Ok(0) => break,
                Ok(bytes) => self.replies.extend_from_slice(&some[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A server that left something unread makes its end an error.
                Err(_) => break,
            }
        }
        self.socket.set_nonblocking(false).expect("a socket");
    }

    /// Leaves, and says which replies came: whole ones, nothing else.
    fn finish(mut self) -> Vec<Header> {
        let _ = self.socket.shutdown(Shutdown::Write);
        self.receive(true);
        let mut rest = &self.replies[..];
        let mut headers = Vec::new();
        while !rest.is_empty() {
            let (header, _) = Header::read_from_prefix(rest).expect("a header");
            assert_eq!(header.flags & !wire::ERROR, wire::REPLY);
            assert!(header.flags & wire::ERROR == 0 || header.size as usize == HEADER, "an error with a payload");
            rest = rest.get(header.size as usize..).expect("a whole reply");
            headers.push(header);
        }
        headers
    }
}

/// A server that answers with arbitrary bytes. Panics if the client is wrong: each of its calls has to end.
pub fn fuzz_client(data: &[u8]) {
    let mut input = Input(data);
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    std::thread::scope(|scope| {
        scope.spawn(move || while answer(&theirs, &mut input).is_some() {});
        let Ok(client) = Client::over(ours, &ClientOptions::default()) else { return };
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let transfer = client.agreed().max_data_xfer_size;
        assert!((1..=1 << 20).contains(&transfer));
        for index in 0..MOST as u32 {
            let mut out = [0; 40];
            let _ = client.device_info();
            if let Ok(region) = client.region(index) {
                let inside = |area: &Range<u64>| area.start <= area.end && area.end <= region.bytes;
                assert!(region.areas.iter().all(inside) && (region.file.is_some() || region.areas.is_empty()));
            }
            let _ = client.irq(index);
            let _ = client.read(index, 0, &mut out[..index as usize % 40]);
            let _ = client.write(index, 0, &out);
            let _ = client.write_posted(index, 0, &out);
            let _ = client.write_multi(&[(index, 0, &out[..8]), (index, 8, &out[..1])]);
            let _ = client.map_dma(0, 4096, (true, true), Some((eventfd.as_fd(), 0)));
            let _ = client.unmap_all();
            let _ = client.connect_irqs(pci::MSIX, 0, &[eventfd.as_fd(), eventfd.as_fd()]);
            if client.reset().is_err() && client.device_info().is_err() {
                break;
            }
        }
        client.shutdown();
    });
}

/// Answers one command with what the input says; nothing if the connection is over.
fn answer(mut socket: &UnixStream, input: &mut Input<'_>) -> Option<()> {
    let mut header = [0; HEADER];
    socket.read_exact(&mut header).ok()?;
    let command = Header::read_from_bytes(&header).ok()?;
    let mut payload = vec![0; command.size as usize - HEADER];
    socket.read_exact(&mut payload).ok()?;
    if command.flags & wire::NO_REPLY != 0 {
        return Some(());
    }
    let kind = input.byte();
    if input.0.is_empty() {
        return None;
    }
    // Often the command comes back as it was, with some bytes changed: that is about what many replies look like.
    let mut answer = if kind & 1 == 0 { payload } else { Vec::new() };
    let changes = usize::from(kind >> 1) % 8;
    for _ in 0..changes {
        let (at, value) = (usize::from(input.byte()), input.byte());
        if let Some(byte) = answer.get_mut(at) {
            *byte = value;
        }
    }
    let more = usize::from(input.byte() % 128);
    answer.extend_from_slice(input.take(more));
    let mut reply = Header { size: (HEADER + answer.len()) as u32, flags: wire::REPLY, ..command };
    let lies = kind >> 4 == 15;
    match kind >> 4 {
        14 => (reply.flags, reply.error) = (wire::REPLY | wire::ERROR, u32::from(input.byte()) << (input.byte() % 32)),
        13 => reply.id = reply.id.wrapping_add(1),
        12 => (reply.flags, reply.command) = (wire::COMMAND, input.byte().into()),
        15 => reply.size = u32::from(input.byte()) << (input.byte() % 32),
        _ => {}
    }
    let file = Memfd::create("region", 0x3000).ok()?;
    let fds = vec![file.as_fd(); usize::from(kind) % 3];
    send(socket, &mut [IoSlice::new(reply.as_bytes()), IoSlice::new(&answer)], &fds).ok()?;
    // What another command than ours would be answered is nothing to wait for; and after a lie neither side knows where it is.
    socket.flush().ok()?;
    if lies { None } else { Some(()) }
}
