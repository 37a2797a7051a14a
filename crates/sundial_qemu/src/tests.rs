//! The two functions as QEMU calls them, against a real server of the protocol.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use hostmem::{Memfd, PAGE};
use vfio_user::wire::{self, Command, Header, RegionInfo, WATCH_TRACKER};
use vfio_user::{Description, Device, DmaMap, Errno, Interrupts, Region, Server, ServerOptions, StoreWatch, pci};
use vfio_user::{Ended, WATCHED_MEMORY};
use write_trap::{Tracker, TrackerParts, WriteTrap};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const PAGES: u64 = 16;
const BYTES: u64 = PAGES * PAGE;

/// A device with a BAR1 that can be mapped.
struct Vram {
    file: Arc<OwnedFd>,
    told: Sender<StoreWatch>,
}

impl Device for Vram {
    fn describe(&self, _: Option<&serde_json::Value>) -> Description {
        let mut regions = vec![Region::default(); pci::NUM_REGIONS as usize];
        let areas = std::iter::once(0..BYTES).collect();
        regions[pci::BAR1 as usize] = Region::mapped(BYTES, areas, Arc::clone(&self.file), 0);
        Description { regions, ..Description::default() }
    }
    fn attach(&self, _: Arc<Interrupts>) {}
    fn read(&self, _: u32, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Ok(())
    }
    fn write(&self, _: u32, _: u64, _: &[u8]) -> Result<(), Errno> {
        Ok(())
    }
    fn map(&self, _: DmaMap) -> Result<(), Errno> {
        Ok(())
    }
    fn unmap(&self, _: u64, _: u64) {}
    fn watch_stores(&self, watch: StoreWatch) -> Result<(), Errno> {
        self.told.send(watch).map_err(|_| Errno::PIPE)
    }
    fn reset(&self) {}
    fn gone(&self) {}
}

/// A client that greets, and asks as QEMU does: header first, then the rest.
struct Client {
    socket: UnixStream,
    told: Receiver<StoreWatch>,
    server: std::thread::JoinHandle<Ended>,
}

impl Client {
    fn of_file_named(name: &str) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (sender, told) = channel();
        let file = Arc::new(Memfd::create(name, BYTES).unwrap().into_fd());
        let server = std::thread::spawn(move || {
            Server::new(theirs, ServerOptions::default()).serve(&Vram { file, told: sender })
        });
        let mut client = Client { socket: ours, told, server };
        client.send(Command::VERSION, b"\0\0\x01\0{}\0");
        assert!(client.answer().1.is_none());
        client
    }

    fn send(&mut self, command: Command, payload: &[u8]) {
        let size = (wire::HEADER + payload.len()) as u32;
        let header = Header { command: command.0, size, ..Header::new_zeroed() };
        self.socket.write_all(header.as_bytes()).unwrap();
        self.socket.write_all(payload).unwrap();
    }

    /// The next reply, and the descriptor that came with it.
    fn answer(&mut self) -> (Header, Option<OwnedFd>) {
        let mut bytes = [0; wire::HEADER];
        let fd = receive(self.socket.as_raw_fd(), &mut bytes);
        let header = Header::read_from_bytes(&bytes).unwrap();
        let mut rest = vec![0; header.size as usize - wire::HEADER];
        self.socket.read_exact(&mut rest).unwrap();
        (header, fd)
    }

    fn file(&mut self) -> OwnedFd {
        let ask = RegionInfo { argsz: 256, index: pci::BAR1, ..RegionInfo::new_zeroed() };
        self.send(Command::DEVICE_GET_REGION_INFO, ask.as_bytes());
        self.answer().1.unwrap()
    }

    /// What the device was told until now, none of which QEMU sees anything.
    fn told(mut self) -> Vec<StoreWatch> {
        self.send(Command::DEVICE_GET_INFO, &[0; 16]);
        assert_eq!(self.answer().0.command, Command::DEVICE_GET_INFO.0);
        drop(self.socket);
        assert_eq!(self.server.join().unwrap(), Ended::HungUp);
        self.told.iter().collect()
    }
}

fn receive(socket: RawFd, bytes: &mut [u8]) -> Option<OwnedFd> {
    let mut control = [0_u64; 8];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    // SAFETY: the message names buffers of this function.
    let got = unsafe { super::recvmsg(socket, &raw mut message, 0) };
    assert_eq!(got, bytes.len() as isize);
    let fd = (message.msg_controllen > 0).then(|| control[2] as RawFd);
    // SAFETY: it has just come.
    fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps a file as QEMU does; it stays mapped.
fn map(file: &OwnedFd, pages: u64, protection: i32, flags: i32, offset: i64) -> *mut u64 {
    let bytes = (pages * PAGE) as usize;
    // SAFETY: nobody has anything there.
    let at = unsafe { super::mmap64(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), offset) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn tracker_is_there() -> bool {
    let there = write_trap::available(write_trap::Kind::Tracker);
    if let Err(why) = &there {
        eprintln!("skipped: {why}");
    }
    there.is_ok()
}

#[test]
fn what_is_stored_into_vram_is_noticed() {
    if !tracker_is_there() {
        return;
    }
    let mut client = Client::of_file_named(WATCHED_MEMORY);
    // The program may keep another descriptor than the one that came.
    let file = client.file().try_clone().unwrap();
    let at = map(&file, PAGES, WRITABLE, libc::MAP_SHARED, 0);
    let again = map(&file, PAGES, WRITABLE, libc::MAP_SHARED, 0);
    let mut told = client.told();
    assert_eq!(told.len(), 2, "each mapping is told");
    for (watch, at) in told.drain(..).zip([at, again]) {
        let StoreWatch { kind, region, address, bytes, fds } = watch;
        assert_eq!((kind, region, address, bytes), (WATCH_TRACKER, pci::BAR1, at as u64, BYTES));
        let [userfault, page_map] = fds.try_into().unwrap();
        let mut tracker = Tracker::from_parts(TrackerParts { userfault, page_map, address, bytes }).unwrap();
        tracker.protect(&[2, 3, 4]).unwrap();
        let mut written = Vec::new();
        tracker.take_written(&mut written).unwrap();
        assert!(written.is_empty(), "{written:?}");
        // SAFETY: inside the mapping, which stays.
        let word = unsafe { at.byte_add(3 * PAGE as usize) };
        // SAFETY: as above; nobody else uses it.
        unsafe { word.write_volatile(1) };
        tracker.take_written(&mut written).unwrap();
        assert_eq!(written, [3]);
    }
}

#[test]
fn nothing_else_is_told() {
    let mut client = Client::of_file_named(WATCHED_MEMORY);
    let file = client.file();
    map(&file, PAGES, libc::PROT_READ, libc::MAP_SHARED, 0);
    map(&file, PAGES, WRITABLE, libc::MAP_PRIVATE, 0);
    map(&file, PAGES - 1, WRITABLE, libc::MAP_SHARED, PAGE as i64);
    let other = Memfd::create(WATCHED_MEMORY, BYTES).unwrap().into_fd();
    map(&other, PAGES, WRITABLE, libc::MAP_SHARED, 0);
    assert!(client.told().is_empty());
}

#[test]
fn files_of_other_servers_are_left_alone() {
    for name in ["vram", "sundial-guest-vram2", "sundial-guest-vram (deleted)"] {
        let mut client = Client::of_file_named(name);
        let file = client.file();
        map(&file, PAGES, WRITABLE, libc::MAP_SHARED, 0);
        assert!(client.told().is_empty(), "{name}");
    }
}

#[test]
fn what_has_taken_the_sockets_number_is_left_alone() {
    let mut client = Client::of_file_named(WATCHED_MEMORY);
    let file = client.file();
    let (mut here, there) = UnixStream::pair().unwrap();
    let number = client.socket.as_raw_fd();
    // The socket lives on under another number.
    let moved = client.socket.try_clone().unwrap();
    // SAFETY: a socket takes the place of another, whose owner is told below.
    assert_eq!(unsafe { libc::dup2(there.as_raw_fd(), number) }, number);
    map(&file, PAGES, WRITABLE, libc::MAP_SHARED, 0);
    client.socket = moved;
    assert!(client.told().is_empty());
    drop(there);
    let mut came = Vec::new();
    here.read_to_end(&mut came).unwrap();
    assert!(came.is_empty());
}
