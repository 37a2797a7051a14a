//! Memory that programs hand to each other by file descriptors.
//!
//! ```text
//!   exporter: memory ─► a handle, in a file ─► descriptor ═══ unix socket, fork, pidfd ═══► importer: the handle, as any
//! ```
//! A descriptor is a signed name as well ([`handles`](crate::memory::handles)), and no right: what it names the importer opens of the
//! exporter's process, which the operating system allows or not. But it lives: it is locked as
//! long as somebody has it open, so the exporter knows whether memory that it has released is still wanted. Who imports keeps it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu::{AllocId, HostMemory, PAGE_BYTES};
use hostmem::Memfd;
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::handle::{self, Physical, Tag};
use crate::memory::handles::{Bytes, Exported, Exporter, HandleKey, Refused, Shared};
use crate::memory::heap::Memory;
use crate::memory::virtual_memory::{PhysicalState, VirtualMemory, minimum_granularity};
use crate::values::{Location, MemoryProps};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX: u32 = 1;

/// A file with a handle in it.
#[derive(Debug)]
struct Descriptor(Memfd);

impl Descriptor {
    /// A file for a handle.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM`.
    fn new(handle: &Bytes) -> Result<Descriptor> {
        let file = Memfd::create("cuda memory", PAGE_BYTES).map_err(|_| CudaError::OPERATING_SYSTEM)?;
        file.map().map_err(|_| CudaError::OPERATING_SYSTEM)?.write(0, handle);
        Ok(Descriptor(file))
    }

    /// What another program gets.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM`.
    fn lend(&self) -> Result<OwnedFd> {
        self.0.lend().map(Memfd::into_fd).map_err(|_| CudaError::OPERATING_SYSTEM)
    }

    /// Whether somebody has what was lent.
    fn is_lent(&self) -> bool {
        self.0.is_lent()
    }
}

/// The handle in a file that may be anything, and the file.
///
/// # Errors
/// `INVALID_VALUE` if there is none.
fn read(fd: OwnedFd) -> Result<(Bytes, Memfd)> {
    let file = Memfd::from_fd(fd).map_err(|_| CudaError::INVALID_VALUE)?;
    let mut handle = [0; size_of::<Bytes>()];
    let part = file.map_part(0, PAGE_BYTES).map_err(|_| CudaError::INVALID_VALUE)?;
    part.read(0, &mut handle);
    Ok((handle, file))
}

/// Physical memory that others may have, of all GPUs.
#[derive(Debug, Default)]
pub(crate) struct LentMemory(Mutex<Vec<Lent>>);

#[derive(Debug)]
struct Lent {
    descriptor: Descriptor,
    memory: Arc<PhysicalState>,
}

impl LentMemory {
    /// One more descriptor of memory: of the file that there is, or of another, with a handle that `sign` makes.
    fn lend(&self, memory: &Arc<PhysicalState>, sign: impl FnOnce() -> Result<Bytes>) -> Result<OwnedFd> {
        let mut all = self.0.lock();
        let mut known = all.iter().filter(|lent| Arc::ptr_eq(&lent.memory, memory));
        // Who has one may have locked its file: then the next gets another.
        if let Some(fd) = known.find_map(|known| known.descriptor.lend().ok()) {
            return Ok(fd);
        }
        let descriptor = Descriptor::new(&sign()?)?;
        let fd = descriptor.lend()?;
        all.push(Lent { descriptor, memory: Arc::clone(memory) });
        Ok(fd)
    }

    /// The memory with a number.
    fn find(&self, number: u64) -> Option<Arc<PhysicalState>> {
        let all = self.0.lock();
        all.iter().find(|lent| lent.memory.number == number).map(|lent| Arc::clone(&lent.memory))
    }

    /// Whether others may have some memory.
    pub(crate) fn has(&self, memory: &Arc<PhysicalState>) -> bool {
        self.0.lock().iter().any(|lent| Arc::ptr_eq(&lent.memory, memory))
    }

    /// Lets go of what nobody else has any more. True if there was some.
    pub(crate) fn sweep(&self) -> bool {
        let gone: Vec<Lent> = self.0.lock().extract_if(.., |lent| !lent.descriptor.is_lent()).collect();
        !gone.is_empty()
    }
}

/// Another process's memory, as physical memory of this one.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// By which the exporter knows that it is wanted.
    _descriptor: Memfd,
}

impl VirtualMemory {
    /// A descriptor of memory that was created for that. The memory stays as long as somebody has it open.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or was not created for it; `NOT_SUPPORTED`, `OPERATING_SYSTEM`.
    pub(crate) fn export(&self, key: &HandleKey, handle: Physical, handle_type: u32) -> Result<OwnedFd> {
        let memory = self.physicals.get(handle.0).map_err(|_| CudaError::INVALID_VALUE)?;
        if handle_type != POSIX || memory.props.handle_types & handle_type == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let kind = match memory.props.location {
            Location::Device(_) => Shared::Physical,
            _ => Shared::PhysicalHost,
        };
        let sign = || key.sign(&memory.owner.export_whole(memory.id, memory.bytes, memory.number)?, kind);
        self.memory.lent.sweep();
        self.memory.lent.lend(&memory, sign)
    }

    /// Physical memory that a descriptor names, for the device `here`; that of another process's device is this one's.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it names none that there is, `NOT_PERMITTED` if that is another user's; `OUT_OF_MEMORY`, `NOT_SUPPORTED`.
    pub(crate) fn import(&self, key: &HandleKey, here: u32, fd: OwnedFd) -> Result<Physical> {
        let (name, descriptor) = read(fd)?;
        let (verified, location) = match key.verify(&name, Shared::Physical) {
            Err(Refused::Nonsense) => (key.verify(&name, Shared::PhysicalHost), Location::HostNuma(0)),
            verified => (verified, Location::Device(here.cast_signed())),
        };
        let (name, exporter) = verified.map_err(Refused::of_descriptor)?;
        let handle = Physical(handle::fresh(Tag::Physical));
        if key.is_of(&exporter) {
            let known = self.memory.lent.find(name.number).ok_or(CudaError::INVALID_VALUE)?;
            self.physicals.insert(handle.0, known);
            return Ok(handle);
        }
        let owner = self.memory.of(here);
        owner.arena()?;
        let file = name.open().map_err(Refused::of_descriptor)?;
        let inside = name.offset.checked_add(name.bytes).is_some_and(|end| end <= file.bytes());
        let whole = name.offset.is_multiple_of(PAGE_BYTES) && name.bytes.is_multiple_of(minimum_granularity(location));
        if !inside || !whole {
            return Err(CudaError::INVALID_VALUE);
        }
        let id = AllocId(owner.link().fresh_id());
        let memory = HostMemory { file, offset: name.offset };
        owner.link().outcome(owner.link().gpu().import(id, &memory, name.bytes))?;
        let props = MemoryProps { location, handle_types: POSIX, max_bytes: 0 };
        let foreign = Some(Foreign { _descriptor: descriptor });
        let (bytes, number, owner) = (name.bytes, handle.0, Arc::clone(owner));
        self.physicals.insert(handle.0, Arc::new(PhysicalState { id, bytes, props, owner, number, _foreign: foreign }));
        Ok(handle)
    }
}

impl Memory {
    /// Where other processes find physical memory.
    fn export_whole(&self, id: AllocId, bytes: u64, number: u64) -> Result<Exported> {
        let HostMemory { file, offset } = self.shown(id)?;
        let file = file.name().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        Ok(Exported { file, offset, bytes, number, pool: 0 })
    }

    /// Whether memory of this kind can be given to other processes: the host's always has a file.
    pub(crate) fn can_share(&self, location: Location) -> bool {
        matches!(location, Location::HostNuma(_)) || self.link().gpu().shows_memory()
    }
}

/// A pool of another process.
#[derive(Debug)]
pub(crate) struct ForeignPool {
    exporter: Exporter,
    number: u32,
    _descriptor: Memfd,
}

impl ForeignPool {
    /// The pool that a descriptor names.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it names none that there is in another process; `NOT_PERMITTED` if that is another user's.
    pub(crate) fn import(key: &HandleKey, fd: OwnedFd) -> Result<ForeignPool> {
        let (name, descriptor) = read(fd)?;
        let (name, exporter) = key.verify(&name, Shared::Pool).map_err(Refused::of_descriptor)?;
        if key.is_of(&exporter) {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(ForeignPool { exporter, number: name.pool, _descriptor: descriptor })
    }

    /// Whether memory of somebody is of this pool.
    pub(crate) fn has(&self, memory: &Exported, of: &Exporter) -> bool {
        (*of, memory.pool) == (self.exporter, self.number)
    }
}

/// A descriptor of a pool, in a file of its own: nobody asks whether it is open anywhere.
///
/// # Errors
/// `OPERATING_SYSTEM`.
pub(crate) fn lend_pool(key: &HandleKey, pool: u32) -> Result<OwnedFd> {
    // A pool is in no file: there is that of the key.
    let place = Exported { file: key.file()?, offset: 0, bytes: PAGE_BYTES, number: 0, pool };
    Descriptor::new(&key.sign(&place, Shared::Pool)?)?.lend()
}
