//! One connection, served.

use std::convert::Infallible;
use std::io::IoSlice;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Ended;
use crate::bell::{Bell, Ringer, ring};
use crate::device::{Description, Device, DmaMap, Region, StoreWatch};
use crate::interrupts::Interrupts;
use crate::maps::Maps;
use crate::posted::{self, Counter, PostedWrite, Taker};
use crate::socket::{MAX_FDS, Message, Reader, bear_peer, send};
use crate::version::{Capabilities, Greeting};
use crate::wire::{self, Command, HEADER, Header, split};

/// How a server behaves, and what it says that it can take.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What the server says of itself; the private part comes from the device ([`Description::private`]).
    pub capabilities: Capabilities,
    /// How long it looks for the next message before it sleeps, at most. Adaptive below that.
    pub spin: Duration,
    /// Until when a client must have greeted.
    pub greet_within: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            capabilities: Capabilities::default(),
            spin: Duration::from_micros(50),
            greet_within: Duration::from_secs(5),
        }
    }
}

/// Serves one client over one socket.
#[derive(Debug)]
pub struct Server {
    socket: Arc<UnixStream>,
    options: ServerOptions,
}

/// Ends a connection from outside.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<UnixStream>);

impl Stopper {
    /// The server's thread returns as soon as the device lets it.
    pub fn stop(&self) {
        // Fails if the client has closed already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Server {
    /// A server for a client that was accepted.
    ///
    /// # Panics
    /// If the options name more descriptors than [`MAX_FDS`], pages below 4 KiB, or transfers of nothing.
    #[must_use]
    pub fn new(socket: UnixStream, options: ServerOptions) -> Server {
        let Capabilities { max_msg_fds, max_data_xfer_size, pgsizes, .. } = options.capabilities;
        assert!((1..=MAX_FDS as u32).contains(&max_msg_fds), "{max_msg_fds} descriptors");
        assert!(max_data_xfer_size > 0 && pgsizes != 0 && pgsizes % hostmem::PAGE == 0, "{:?}", options.capabilities);
        Server { socket: Arc::new(socket), options }
    }

    /// A handle to end it with.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.socket))
    }

    /// Serves on the calling thread until the client leaves, sends what is no message, or is made to leave; says why.
    pub fn serve(self, device: &dyn Device) -> Ended {
        hostmem::prefer_short_slices();
        let mut reader = Reader::new(self.options.spin).wary();
        let ended = match self.greet(&mut reader, device) {
            Ok((description, agreed)) => self.commands(&mut reader, device, description, agreed),
            Err(ended) => Err(ended),
        };
        let Err(ended) = ended;
        self.stopper().stop();
        match ended {
            Ended::HungUp => tracing::debug!("vfio-user client has left"),
            _ => log_limit::warn!(%ended, "vfio-user client made to leave"),
        }
        ended
    }

    /// Serves a client that has greeted.
    fn commands(
        &self,
        reader: &mut Reader,
        device: &dyn Device,
        description: Description,
        agreed: Capabilities,
    ) -> Result<Infallible, Ended> {
        let mut connection = Connection::new(self, device, description, agreed)?;
        loop {
            let received = reader.count();
            let message = match &connection.posted {
                None => Some(reader.next(&self.socket)?),
                Some((posted, _)) => reader.next_beside(&self.socket, posted)?,
            };
            connection.take_posted(received)?;
            if let Some(message) = message {
                connection.handle(message)?;
            }
        }
    }

    /// Receives the client's version and answers it.
    fn greet(&self, reader: &mut Reader, device: &dyn Device) -> Result<(Description, Capabilities), Ended> {
        bear_peer(&self.socket)?;
        reader.set_deadline(&self.socket, Some(Instant::now() + self.options.greet_within))?;
        let Message { header, payload, .. } = reader.next(&self.socket)?;
        if Command(header.command) != Command::VERSION || header.flags & wire::TYPE != wire::COMMAND {
            return Err(Ended::Garbage("a first message that is not the version"));
        }
        let greeting = Greeting::read(payload)?;
        if greeting.major != wire::MAJOR {
            return Err(Ended::Garbage("a version that is not spoken here"));
        }
        let description = device.describe(greeting.capabilities.private.as_ref());
        description.regions.iter().for_each(Region::assert_sound);
        let mut ours = self.options.capabilities.clone();
        ours.posted_writes &= description.posted_writes;
        let (answer, agreed) = greeting.answer(&ours, description.private.clone());
        let header = reply(header, answer.len());
        send(&self.socket, &mut [IoSlice::new(header.as_bytes()), IoSlice::new(&answer)], &[])?;
        reader.set_deadline(&self.socket, None)?;
        reader.accept_data(agreed.max_data_xfer_size);
        tracing::debug!(?agreed, "vfio-user client");
        Ok((description, agreed))
    }
}

/// The header of the reply to `command`.
fn reply(command: Header, payload: usize) -> Header {
    let size = u32::try_from(HEADER + payload).expect("no reply is longer than a transfer");
    Header { size, flags: wire::REPLY, error: 0, ..command }
}

/// A client that has greeted. What it has set up goes when this goes.
struct Connection<'a> {
    socket: &'a UnixStream,
    device: &'a dyn Device,
    description: Description,
    agreed: Capabilities,
    interrupts: Arc<Interrupts>,
    /// Tells the client of them.
    _ringer: Ringer,
    maps: Maps,
    /// Where small writes come through, and its file, if that was agreed.
    posted: Option<(Taker, Arc<OwnedFd>)>,
    /// Empty; kept for its memory.
    writes: Vec<PostedWrite>,
    /// Most maps, and the size of the pages that they are made of.
    max_maps: u32,
    page: u64,
    /// Most descriptors in a message.
    max_fds: usize,
    /// The reply that is being made: room for a header, then the payload.
    reply: Vec<u8>,
}

/// What a command came to: the reply's payload is in [`Connection::reply`], and this goes with it.
type Outcome = Result<Option<Arc<OwnedFd>>, Errno>;

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.interrupts.disconnect();
        self.device.gone();
    }
}

impl<'a> Connection<'a> {
    fn new(
        server: &'a Server,
        device: &'a dyn Device,
        description: Description,
        agreed: Capabilities,
    ) -> Result<Self, Ended> {
        let bell = Arc::new(Bell::default());
        let ringer = ring(&bell)?;
        let ours = &server.options.capabilities;
        let (mut posted, mut counter) = (None, None);
        if agreed.posted_writes {
            let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            let (taker, file) = Taker::new().map_err(failed)?;
            counter = Some(Counter::new(&file).map_err(failed)?);
            posted = Some((taker, Arc::new(file.into_fd())));
        }
        let interrupts = Arc::new(Interrupts::new(&description.irqs, &bell, counter));
        // Nothing fails from here on: what was attached is told when the client has gone.
        device.attach(Arc::clone(&interrupts));
        Ok(Connection {
            socket: &server.socket,
            device,
            description,
            agreed,
            interrupts,
            _ringer: ringer,
            maps: Maps::default(),
            posted,
            writes: Vec::new(),
            max_maps: ours.max_dma_maps,
            page: 1 << ours.pgsizes.trailing_zeros(),
            max_fds: ours.max_msg_fds as usize,
            reply: Vec::new(),
        })
    }

    /// Does the writes that were posted before the message behind the first `received`. Those that come meanwhile wait until the
    /// socket has been looked at, if it was not for that many.
    fn take_posted(&mut self, received: u64) -> Result<(), Ended> {
        let Some((posted, _)) = &mut self.posted else { return Ok(()) };
        let mut writes = std::mem::take(&mut self.writes);
        posted.take(received, &mut writes)?;
        writes.retain(|write| {
            let access = wire::RegionAccess { offset: write.offset.into(), region: write.region, count: 4 };
            self.region(access).is_ok_and(|region| region.writable)
        });
        if !writes.is_empty() {
            self.device.write_posted(&writes);
        }
        writes.clear();
        self.writes = writes;
        Ok(())
    }

    /// Does what a message asks for, and answers it if it wants that.
    fn handle(&mut self, message: Message<'_>) -> Result<(), Ended> {
        let command = message.header;
        if command.flags & wire::TYPE != wire::COMMAND {
            return Err(Ended::Garbage("a reply to nothing"));
        }
        self.reply.clear();
        self.reply.resize(HEADER, 0);
        let outcome = self.perform(message);
        if command.flags & wire::NO_REPLY != 0 {
            return Ok(());
        }
        let (header, file) = match outcome {
            Ok(file) => (reply(command, self.reply.len() - HEADER), file),
            Err(error) => {
                self.reply.truncate(HEADER);
                let flags = wire::REPLY | wire::ERROR;
                (Header { flags, error: error.raw_os_error().cast_unsigned(), ..reply(command, 0) }, None)
            }
        };
        self.reply[..HEADER].copy_from_slice(header.as_bytes());
        let file = file.as_ref().map(|file| file.as_fd());
        send(self.socket, &mut [IoSlice::new(&self.reply)], file.as_slice())
    }

    fn perform(&mut self, Message { header, payload, fds }: Message<'_>) -> Outcome {
        let command = Command(header.command);
        if fds.refused || fds.fds.len() > self.agreed_fds(command) {
            return Err(Errno::INVAL);
        }
        match command {
            Command::REGION_READ => self.region_read(payload),
            Command::REGION_WRITE => self.region_write(payload),
            Command::REGION_WRITE_MULTI if self.agreed.write_multiple => self.region_write_multi(payload),
            Command::DMA_MAP => self.dma_map(payload, fds.fds),
            Command::DMA_UNMAP => self.dma_unmap(payload),
            Command::DEVICE_GET_INFO => self.device_info(payload),
            Command::DEVICE_GET_REGION_INFO => self.region_info(payload),
            Command::DEVICE_GET_IRQ_INFO => self.irq_info(payload),
            Command::DEVICE_SET_IRQS => self.set_irqs(payload, fds.fds),
            Command::DEVICE_RESET if self.description.resettable => {
                whole::<[u8; 0]>(payload)?;
                self.device.reset();
                Ok(None)
            }
            Command::WATCH_STORES => self.watch_stores(payload, fds.fds),
            // A device without a feature says so this way, as the kernel's do.
            Command::DEVICE_FEATURE => Err(Errno::NOTTY),
            Command::VERSION => Err(Errno::INVAL),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// How many descriptors may come with a command.
    fn agreed_fds(&self, command: Command) -> usize {
        match command {
            Command::DMA_MAP => 1,
            Command::DEVICE_SET_IRQS => self.max_fds,
            Command::WATCH_STORES => 2,
            _ => 0,
        }
    }

    fn answer<T: IntoBytes + Immutable>(&mut self, value: &T) -> Outcome {
        self.reply.extend_from_slice(value.as_bytes());
        Ok(None)
    }

    /// The region of an access, if the access lies inside it.
    fn region(&self, access: wire::RegionAccess) -> Result<&Region, Errno> {
        let region = self.description.regions.get(access.region as usize).ok_or(Errno::INVAL)?;
        let end = access.offset.checked_add(access.count.into()).ok_or(Errno::INVAL)?;
        if end > region.bytes || access.count > self.agreed.max_data_xfer_size {
            return Err(Errno::INVAL);
        }
        Ok(region)
    }

    fn region_read(&mut self, payload: &[u8]) -> Outcome {
        let access: wire::RegionAccess = whole(payload)?;
        if !self.region(access)?.readable {
            return Err(Errno::ACCESS);
        }
        self.answer(&access)?;
        let data = self.reply.len();
        self.reply.resize(data + access.count as usize, 0);
        if access.count > 0 {
            self.device.read(access.region, access.offset, &mut self.reply[data..])?;
        }
        Ok(None)
    }

    fn region_write(&mut self, payload: &[u8]) -> Outcome {
        let (access, data) = split::<wire::RegionAccess>(payload).ok_or(Errno::INVAL)?;
        if data.len() != access.count as usize {
            return Err(Errno::INVAL);
        }
        self.write(access, data)?;
        self.answer(&access)
    }

    fn write(&self, access: wire::RegionAccess, data: &[u8]) -> Result<(), Errno> {
        if !self.region(access)?.writable {
            return Err(Errno::ACCESS);
        }
        if data.is_empty() { Ok(()) } else { self.device.write(access.region, access.offset, data) }
    }

    /// All writes are tried, like posted ones that came one by one; the reply counts those that were done.
    fn region_write_multi(&mut self, payload: &[u8]) -> Outcome {
        let (wire::WriteMulti { wr_cnt }, rest) = split(payload).ok_or(Errno::INVAL)?;
        let writes = rest.chunks_exact(size_of::<wire::MultiWrite>());
        if writes.len() as u64 != wr_cnt || !writes.remainder().is_empty() {
            return Err(Errno::INVAL);
        }
        let mut done = 0;
        for write in writes {
            let wire::MultiWrite { access, data } = whole(write)?;
            let data = data.get(..access.count as usize);
            done += u64::from(data.is_some_and(|data| self.write(access, data).is_ok()));
        }
        self.answer(&wire::WriteMulti { wr_cnt: done })
    }

    fn dma_map(&mut self, payload: &[u8], mut fds: Vec<OwnedFd>) -> Outcome {
        let wire::DmaMap { flags, offset, address, size: bytes, .. } = whole(payload)?;
        let rights = wire::DMA_READABLE | wire::DMA_WRITABLE;
        if flags & rights == 0 || flags & !rights != 0 {
            return Err(Errno::INVAL);
        }
        self.maps.check(address, bytes, self.page, self.max_maps)?;
        let file = fds.pop().map(|fd| (fd, offset));
        if file.is_some() && (offset % self.page != 0 || offset.checked_add(bytes).is_none()) {
            return Err(Errno::INVAL);
        }
        let (readable, writable) = (flags & wire::DMA_READABLE != 0, flags & wire::DMA_WRITABLE != 0);
        self.device.map(DmaMap { address, bytes, readable, writable, file })?;
        self.maps.insert(address, bytes);
        Ok(None)
    }

    fn dma_unmap(&mut self, payload: &[u8]) -> Outcome {
        let unmap: wire::DmaUnmap = whole(payload)?;
        match (unmap.flags, unmap.address, unmap.size) {
            (0, address, bytes) => {
                self.maps.remove(address, bytes)?;
                self.device.unmap(address, bytes);
            }
            (wire::DMA_UNMAP_ALL, 0, 0) => {
                self.maps.take().for_each(|(address, bytes)| self.device.unmap(address, bytes))
            }
            _ => return Err(Errno::INVAL),
        }
        self.answer(&unmap)
    }

    fn watch_stores(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Outcome {
        let wire::WatchStores { kind, region, reserved, address, size: bytes, .. } = whole(payload)?;
        let described = self.description.regions.get(region as usize).ok_or(Errno::INVAL)?;
        let inside = (1..=described.bytes).contains(&bytes) && address.checked_add(bytes).is_some();
        if reserved != 0 || described.file.is_none() || !inside || (address | bytes) % hostmem::PAGE != 0 {
            return Err(Errno::INVAL);
        }
        self.device.watch_stores(StoreWatch { kind, region, address, bytes, fds })?;
        Ok(None)
    }

    fn device_info(&mut self, payload: &[u8]) -> Outcome {
        let asked: wire::DeviceInfo = whole(payload)?;
        let argsz = enough::<wire::DeviceInfo>(asked.argsz)?;
        let resettable = if self.description.resettable { wire::DEVICE_RESETTABLE } else { 0 };
        let (num_regions, num_irqs) = (count(&self.description.regions), count(&self.description.irqs));
        self.answer(&wire::DeviceInfo { argsz, flags: wire::DEVICE_PCI | resettable, num_regions, num_irqs })
    }

    /// With room for the fixed part only, the client learns how much the whole takes; with that it gets capabilities and file.
    fn region_info(&mut self, payload: &[u8]) -> Outcome {
        let asked: wire::RegionInfo = whole(payload)?;
        let fixed = enough::<wire::RegionInfo>(asked.argsz)?;
        if let Some((_, file)) = self.posted.as_ref().filter(|_| asked.index == wire::POSTED_WRITES) {
            let file = Arc::clone(file);
            let (index, size, flags) = (asked.index, posted::BYTES, wire::REGION_MMAP);
            self.answer(&wire::RegionInfo { argsz: fixed, flags, index, size, ..Default::default() })?;
            return Ok(Some(file));
        }
        let region = self.description.regions.get(asked.index as usize).ok_or(Errno::INVAL)?;
        let mut info = wire::RegionInfo { argsz: fixed, index: asked.index, size: region.bytes, ..Default::default() };
        info.flags |= if region.readable { wire::REGION_READABLE } else { 0 };
        info.flags |= if region.writable { wire::REGION_WRITABLE } else { 0 };
        let mut areas = Vec::new();
        let file = region.file.as_ref().map(|(file, offset)| {
            areas = sparse_mmap(&region.areas);
            info.flags |= wire::REGION_MMAP | wire::REGION_CAPS;
            (info.argsz, info.cap_offset, info.offset) = (fixed + count(&areas), fixed, *offset);
            Arc::clone(file)
        });
        self.answer(&info)?;
        if asked.argsz < info.argsz {
            return Ok(None);
        }
        self.reply.extend_from_slice(&areas);
        Ok(file)
    }

    fn irq_info(&mut self, payload: &[u8]) -> Outcome {
        let asked: wire::IrqInfo = whole(payload)?;
        let argsz = enough::<wire::IrqInfo>(asked.argsz)?;
        let irq = self.description.irqs.get(asked.index as usize).ok_or(Errno::INVAL)?;
        self.answer(&wire::IrqInfo { argsz, flags: irq.flags, index: asked.index, count: irq.count })
    }

    fn set_irqs(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Outcome {
        let (set, booleans) = split::<wire::IrqSet>(payload).ok_or(Errno::INVAL)?;
        self.interrupts.set(&set, booleans, fds)?;
        Ok(None)
    }
}

/// A payload that has no variable part.
fn whole<T: FromBytes + KnownLayout + Immutable>(payload: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(payload).map_err(|_| Errno::INVAL)
}

/// Size of a reply's payload, if the client takes that much.
fn enough<T>(argsz: u32) -> Result<u32, Errno> {
    let bytes = u32::try_from(size_of::<T>()).expect("a few bytes");
    if argsz < bytes { Err(Errno::INVAL) } else { Ok(bytes) }
}

/// How many there are of something that a description names.
fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("descriptions are short")
}

/// The capability that says which areas of a region can be mapped. It is there even if it is the whole region: some clients
/// look for nothing else.
fn sparse_mmap(areas: &[Range<u64>]) -> Vec<u8> {
    let mut bytes = wire::CapHeader { id: wire::CAP_SPARSE_MMAP, version: 1, next: 0 }.as_bytes().to_vec();
    bytes.extend_from_slice(wire::SparseMmap { nr_areas: count(areas), reserved: 0 }.as_bytes());
    for area in areas {
        bytes.extend_from_slice(wire::Area { offset: area.start, size: area.end - area.start }.as_bytes());
    }
    bytes
}
