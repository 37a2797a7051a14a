//! The client's side.

mod calls;

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use hostmem::{Mapping, Memfd};
use rustix::io::Errno;
use rustix::net::sockopt;
use serde_json::Value;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Ended;
use crate::device::Irq;
use crate::posted::{self, PostedInterrupts, PostedWrite, Poster};
use crate::socket::{Message, Reader, send};
use crate::version::{Capabilities, Greeting};
use crate::wire::{self, Command, HEADER, split};

use calls::Calls;

/// Why a command of a client came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The server refused it; the connection stands.
    #[error("the server refused")]
    Refused(#[source] Errno),
    /// There is no connection any more.
    #[error("the connection is over")]
    Ended(#[from] Ended),
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What the client says of itself; the private part is proposed to the server.
    pub capabilities: Capabilities,
    /// How long a thread looks for its reply before it sleeps, at most. Adaptive below that.
    pub spin: Duration,
    /// How long the server may take for a reply; after that the connection is over. None: for ever.
    pub answer_within: Option<Duration>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions { capabilities: Capabilities::default(), spin: Duration::from_micros(10), answer_within: None }
    }
}

/// A connection with a server: one device. Many threads may use it at once; each waits for its own reply only.
#[derive(Debug)]
pub struct Client {
    calls: Calls,
    agreed: Capabilities,
}

/// What a device says of itself as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Whether it can be reset.
    pub resettable: bool,
    /// Whether it is a PCI device.
    pub pci: bool,
    /// Number of regions, present or not.
    pub regions: u32,
    /// Number of kinds of interrupts, present or not.
    pub irqs: u32,
}

/// What a device says of one region.
#[derive(Debug)]
pub struct RegionInfo {
    /// Size; 0: there is none.
    pub bytes: u64,
    /// Whether it may be read.
    pub readable: bool,
    /// Whether it may be written.
    pub writable: bool,
    /// What of it can be mapped.
    pub areas: Vec<Range<u64>>,
    /// The file that shows the areas, and where in it the region begins.
    pub file: Option<(OwnedFd, u64)>,
}

/// Most bytes that the description of a region may take.
const LONGEST_INFO: u32 = wire::OVERHEAD as u32 - HEADER as u32;

impl Client {
    /// Connects to the server that listens at `path`, and greets it.
    ///
    /// # Errors
    /// `Refused` says why there is no connection; else how the greeting ended.
    pub fn connect(path: &Path, options: &ClientOptions) -> Result<Client, CallError> {
        let refused = |error: io::Error| CallError::Refused(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        Client::over(UnixStream::connect(path).map_err(refused)?, options)
    }

    /// Greets the server at the other end of a socket.
    ///
    /// # Errors
    /// `Refused` if it does not want this client; else how it ended.
    pub fn over(socket: UnixStream, options: &ClientOptions) -> Result<Client, CallError> {
        let failed = |error: Errno| CallError::Ended(error.into());
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, options.answer_within).map_err(failed)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, options.answer_within).map_err(failed)?;
        let mut reader = Reader::new(options.spin);
        let proposal = Greeting::proposal(&options.capabilities);
        let header = calls::command(0, Command::VERSION, [&proposal, &[]]);
        send(&socket, &mut [IoSlice::new(header.as_bytes()), IoSlice::new(&proposal)], &[])?;
        let answer = reader.next(&socket)?;
        calls::check(&answer.header, 0, Command::VERSION)?;
        let agreed = Greeting::read(answer.payload)?.agreed(&options.capabilities)?;
        reader.accept_data(agreed.max_data_xfer_size);
        let client = Client { calls: Calls::new(socket, reader), agreed };
        if client.agreed.posted_writes {
            let ring = client.region(wire::POSTED_WRITES)?;
            client.calls.set_poster(poster(ring).ok_or(Ended::Garbage("a ring of posted writes that cannot be"))?);
        }
        Ok(client)
    }

    /// What client and server agreed on; the private part is the server's.
    #[must_use]
    pub fn agreed(&self) -> &Capabilities {
        &self.agreed
    }

    /// The server's answer to the private capability.
    #[must_use]
    pub fn private(&self) -> Option<&Value> {
        self.agreed.private.as_ref()
    }

    /// Ends the connection: whoever waits for a reply gets an error.
    pub fn shutdown(&self) {
        self.calls.shutdown();
    }

    /// What the device says of itself.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn device_info(&self) -> Result<DeviceInfo, CallError> {
        let argsz = size::<wire::DeviceInfo>();
        let ask = wire::DeviceInfo { argsz, flags: 0, num_regions: 0, num_irqs: 0 };
        let info: wire::DeviceInfo = self.ask(Command::DEVICE_GET_INFO, &ask)?;
        Ok(DeviceInfo {
            resettable: info.flags & wire::DEVICE_RESETTABLE != 0,
            pci: info.flags & wire::DEVICE_PCI != 0,
            regions: info.num_regions,
            irqs: info.num_irqs,
        })
    }

    /// What the device says of a region.
    ///
    /// # Errors
    /// See [`CallError`]; a region that cannot be is `Garbage`.
    pub fn region(&self, index: u32) -> Result<RegionInfo, CallError> {
        let mut argsz = 512;
        loop {
            let ask = wire::RegionInfo { argsz, index, ..Default::default() };
            let (info, needs) =
                self.calls.call(Command::DEVICE_GET_REGION_INFO, [ask.as_bytes(), &[]], &[], |mut answer| {
                    let fd = answer.fds.fds.pop();
                    let (info, _) = split::<wire::RegionInfo>(answer.payload).ok_or(SHORT)?;
                    if info.argsz > argsz {
                        return Ok((None, info.argsz));
                    }
                    Ok((Some(region_info(info, answer.payload, fd)?), 0))
                })?;
            match info {
                Some(info) => return Ok(info),
                None if needs > LONGEST_INFO => return Err(Ended::Garbage("a region with too many parts").into()),
                None => argsz = needs,
            }
        }
    }

    /// What the device says of a kind of interrupts.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn irq(&self, index: u32) -> Result<Irq, CallError> {
        let ask = wire::IrqInfo { argsz: size::<wire::IrqInfo>(), flags: 0, index, count: 0 };
        let info: wire::IrqInfo = self.ask(Command::DEVICE_GET_IRQ_INFO, &ask)?;
        Ok(Irq { count: info.count, flags: info.flags })
    }

    /// Reads from a region; more than one transfer carries is read in several.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), CallError> {
        let mut at = offset;
        for piece in out.chunks_mut(self.agreed.max_data_xfer_size as usize) {
            let access = self.access(region, at, piece.len());
            self.calls.call(Command::REGION_READ, [access.as_bytes(), &[]], &[], |answer| {
                let (done, data) = split::<wire::RegionAccess>(answer.payload).ok_or(SHORT)?;
                if done != access || data.len() != piece.len() {
                    return Err(Ended::Garbage("a read of something else"));
                }
                piece.copy_from_slice(data);
                Ok(())
            })?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes to a region and waits until the device has taken it. More than one transfer carries is written in several.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), CallError> {
        let mut at = offset;
        for piece in data.chunks(self.agreed.max_data_xfer_size as usize) {
            let access = self.access(region, at, piece.len());
            let done = self.calls.call(Command::REGION_WRITE, [access.as_bytes(), piece], &[], fixed)?;
            if access != done {
                return Err(Ended::Garbage("a write of something else").into());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes to a region without waiting: the device takes it before anything that is sent later. Nobody learns of errors.
    ///
    /// # Errors
    /// `Ended` if the connection was over already, and that was seen.
    pub fn write_posted(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), CallError> {
        self.post(region, offset, data, true)
    }

    /// As [`Client::write_posted`], but a server that sleeps may take it only when something else wakes it: what is sent later,
    /// but for writes of this kind.
    ///
    /// # Errors
    /// As [`Client::write_posted`].
    pub fn write_posted_late(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), CallError> {
        self.post(region, offset, data, false)
    }

    fn post(&self, region: u32, offset: u64, data: &[u8], wake: bool) -> Result<(), CallError> {
        if let (Ok(offset), Ok(word)) = (u32::try_from(offset), data.try_into()) {
            let write = PostedWrite { region, offset, value: u32::from_le_bytes(word) };
            // The empty write is no write: it wakes the server.
            let empty = self.access(region, 0, 0);
            if self.calls.post_word(write, wake.then_some(empty.as_bytes()))? {
                return Ok(());
            }
        }
        let mut at = offset;
        for piece in data.chunks(self.agreed.max_data_xfer_size as usize) {
            let access = self.access(region, at, piece.len());
            self.calls.post(Command::REGION_WRITE, [access.as_bytes(), piece])?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Several writes of up to eight bytes each (region, offset, data), in as few messages as there can be; waits until all
    /// are done. A server that does not know of this gets them one by one.
    ///
    /// # Errors
    /// `Refused` if one of them was; all were tried nevertheless.
    pub fn write_multi(&self, writes: &[(u32, u64, &[u8])]) -> Result<(), CallError> {
        if !self.agreed.write_multiple {
            let mut result = Ok(());
            for &(region, offset, data) in writes {
                match self.write(region, offset, data) {
                    Err(ended @ CallError::Ended(_)) => return Err(ended),
                    refused @ Err(_) => result = refused,
                    Ok(()) => {}
                }
            }
            return result;
        }
        let mut refused = false;
        for some in writes.chunks(MULTI) {
            let mut payload = wire::WriteMulti { wr_cnt: some.len() as u64 }.as_bytes().to_vec();
            for &(region, offset, data) in some {
                let mut bytes = [0; 8];
                bytes[..data.len()].copy_from_slice(data);
                let access = self.access(region, offset, data.len());
                payload.extend_from_slice(wire::MultiWrite { access, data: bytes }.as_bytes());
            }
            let done: wire::WriteMulti = self.calls.call(Command::REGION_WRITE_MULTI, [&payload, &[]], &[], fixed)?;
            refused |= done.wr_cnt != some.len() as u64;
        }
        if refused { Err(CallError::Refused(Errno::IO)) } else { Ok(()) }
    }

    /// Lets the device reach `bytes` of memory at bus address `address`: those of `file` from its offset on, if there is one.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn map_dma(
        &self,
        address: u64,
        bytes: u64,
        (readable, writable): (bool, bool),
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), CallError> {
        let flags = if readable { wire::DMA_READABLE } else { 0 } | if writable { wire::DMA_WRITABLE } else { 0 };
        let offset = file.map_or(0, |(_, offset)| offset);
        let map = wire::DmaMap { argsz: size::<wire::DmaMap>(), flags, offset, address, size: bytes };
        let fd = file.map(|(fd, _)| fd);
        self.calls.call(Command::DMA_MAP, [map.as_bytes(), &[]], fd.as_slice(), nothing)
    }

    /// Takes back what was mapped so; the device holds none of it afterwards.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn unmap_dma(&self, address: u64, bytes: u64) -> Result<(), CallError> {
        self.unmap(0, address, bytes)
    }

    /// Takes back all that was mapped. Servers other than ours may not know this.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn unmap_all(&self) -> Result<(), CallError> {
        self.unmap(wire::DMA_UNMAP_ALL, 0, 0)
    }

    fn unmap(&self, flags: u32, address: u64, bytes: u64) -> Result<(), CallError> {
        let ask = wire::DmaUnmap { argsz: size::<wire::DmaUnmap>(), flags, address, size: bytes };
        let _: wire::DmaUnmap = self.ask(Command::DMA_UNMAP, &ask)?;
        Ok(())
    }

    /// Has these eventfds signalled for interrupts `start` and following of a kind.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn connect_irqs(&self, index: u32, start: u32, eventfds: &[BorrowedFd<'_>]) -> Result<(), CallError> {
        let mut at = start;
        for some in eventfds.chunks(self.agreed.max_msg_fds.max(1) as usize) {
            let count = u32::try_from(some.len()).expect("few descriptors");
            self.set_irqs(wire::IRQ_SET_DATA_EVENTFD | wire::IRQ_SET_ACTION_TRIGGER, index, at, count, &[], some)?;
            at += count;
        }
        Ok(())
    }

    /// Has interrupt `vector` of a kind counted in shared memory, without a thread of the server's in between.
    ///
    /// # Errors
    /// `Refused` by servers that do not know this; see [`CallError`].
    pub fn post_irq(&self, index: u32, vector: u32) -> Result<PostedInterrupts, CallError> {
        if !self.agreed.posted_writes {
            return Err(CallError::Refused(Errno::OPNOTSUPP));
        }
        let ring = self.region(wire::POSTED_WRITES)?;
        let map = map(ring).and_then(PostedInterrupts::new);
        let map = map.ok_or(Ended::Garbage("a ring of posted writes that cannot be"))?;
        self.set_irqs(wire::IRQ_SET_DATA_POSTED | wire::IRQ_SET_ACTION_TRIGGER, index, vector, 1, &[], &[])?;
        Ok(map)
    }

    /// Interrupts `start..start + count` of a kind reach nobody from now on.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn disconnect_irqs(&self, index: u32, start: u32, count: u32) -> Result<(), CallError> {
        self.set_irqs(wire::IRQ_SET_DATA_EVENTFD | wire::IRQ_SET_ACTION_TRIGGER, index, start, count, &[], &[])
    }

    /// Switches a kind of interrupts off.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn disable_irqs(&self, index: u32) -> Result<(), CallError> {
        self.set_irqs(wire::IRQ_SET_DATA_NONE | wire::IRQ_SET_ACTION_TRIGGER, index, 0, 0, &[], &[])
    }

    /// Does `action` ([`wire::IRQ_SET_ACTION_MASK`], `UNMASK`, `TRIGGER`) to interrupts `start..start + count` of a kind.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn act_on_irqs(&self, action: u32, index: u32, start: u32, count: u32) -> Result<(), CallError> {
        self.set_irqs(wire::IRQ_SET_DATA_NONE | action, index, start, count, &[], &[])
    }

    /// `DEVICE_SET_IRQS` as it is.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn set_irqs(
        &self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        booleans: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), CallError> {
        let argsz = size::<wire::IrqSet>() + u32::try_from(booleans.len()).unwrap_or(0);
        let set = wire::IrqSet { argsz, flags, index, start, count };
        self.calls.call(Command::DEVICE_SET_IRQS, [set.as_bytes(), booleans], fds, nothing)
    }

    /// Tells the device how to notice what is stored into `bytes` of a region, mapped at `address`: by a kind
    /// ([`wire::WATCH_TRACKER`] or another) that it asked for, and what belongs to that. What the region holds when this
    /// returns is known.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn watch_stores(
        &self,
        (kind, region): (u32, u32),
        (address, bytes): (u64, u64),
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), CallError> {
        let argsz = size::<wire::WatchStores>();
        let watch = wire::WatchStores { argsz, kind, region, reserved: 0, address, size: bytes };
        self.calls.call(Command::WATCH_STORES, [watch.as_bytes(), &[]], fds, nothing)
    }

    /// Resets the device; waits until it has.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn reset(&self) -> Result<(), CallError> {
        self.calls.call(Command::DEVICE_RESET, [&[], &[]], &[], nothing)
    }

    fn access(&self, region: u32, offset: u64, bytes: usize) -> wire::RegionAccess {
        let count = u32::try_from(bytes).expect("no more than one transfer carries");
        wire::RegionAccess { offset, region, count }
    }

    /// A command whose payload and answer have no variable part.
    fn ask<Q: IntoBytes + Immutable, A: FromBytes + KnownLayout + Immutable>(
        &self,
        what: Command,
        question: &Q,
    ) -> Result<A, CallError> {
        self.calls.call(what, [question.as_bytes(), &[]], &[], fixed)
    }
}

/// Who drops it has left, although a process that another thread starts just then holds the socket until it runs its program.
impl Drop for Client {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// The client's end of the ring that this region is.
fn poster(region: RegionInfo) -> Option<Poster> {
    map(region).and_then(Poster::new)
}

/// Maps that ring.
fn map(region: RegionInfo) -> Option<Mapping> {
    let (fd, offset) = region.file?;
    let file = Memfd::from_fd(fd).ok()?;
    file.map_part(offset, posted::BYTES).ok()
}

const SHORT: Ended = Ended::Garbage("a reply that is too short");

/// Most writes in one `REGION_WRITE_MULTI`.
const MULTI: usize = 128;

/// Size of a structure of the protocol.
fn size<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("a few bytes")
}

/// Takes a reply that has no variable part.
fn fixed<T: FromBytes + KnownLayout + Immutable>(answer: Message<'_>) -> Result<T, Ended> {
    T::read_from_bytes(answer.payload).map_err(|_| SHORT)
}

/// Takes a reply that has no payload.
fn nothing(_: Message<'_>) -> Result<(), Ended> {
    Ok(())
}

/// A region from what its description says; `payload` is all of that.
fn region_info(info: wire::RegionInfo, payload: &[u8], fd: Option<OwnedFd>) -> Result<RegionInfo, Ended> {
    let bad = Ended::Garbage("a region that cannot be");
    let mut areas = Vec::new();
    let file = fd.filter(|_| info.flags & wire::REGION_MMAP != 0).map(|fd| (fd, info.offset));
    if file.is_some() {
        areas = match sparse_mmap(info, payload).ok_or(bad)? {
            Some(areas) => areas,
            None => std::iter::once(0..info.size).collect(),
        };
        let whole = |at: u64| at.is_multiple_of(hostmem::PAGE);
        let fits = |area: &Range<u64>| whole(area.start) && whole(area.end) && area.end <= info.size;
        if !areas.iter().all(fits) || !whole(info.offset) || info.offset.checked_add(info.size).is_none() {
            return Err(bad);
        }
    }
    let (readable, writable) = (info.flags & wire::REGION_READABLE != 0, info.flags & wire::REGION_WRITABLE != 0);
    Ok(RegionInfo { bytes: info.size, readable, writable, areas, file })
}

/// The areas of the sparse mmap capability, if there is one; nothing if the list of capabilities leads nowhere.
fn sparse_mmap(info: wire::RegionInfo, payload: &[u8]) -> Option<Option<Vec<Range<u64>>>> {
    if info.flags & wire::REGION_CAPS == 0 {
        return Some(None);
    }
    let mut next = info.cap_offset as usize;
    let mut before = size_of::<wire::RegionInfo>() - 1;
    while next != 0 {
        // Capabilities come in rising order, so that the list ends.
        if next <= before {
            return None;
        }
        before = next;
        let (cap, rest) = split::<wire::CapHeader>(payload.get(next..)?)?;
        next = cap.next as usize;
        if cap.id != wire::CAP_SPARSE_MMAP {
            continue;
        }
        let (sparse, rest) = split::<wire::SparseMmap>(rest)?;
        let bytes = (sparse.nr_areas as usize).checked_mul(size_of::<wire::Area>())?;
        let areas = rest.get(..bytes)?.chunks_exact(size_of::<wire::Area>()).map(|area| {
            let (area, _) = split::<wire::Area>(area)?;
            Some(area.offset..area.offset.checked_add(area.size)?)
        });
        return areas.collect::<Option<Vec<_>>>().map(Some);
    }
    Some(None)
}
