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

use crate::error::{CudaError, Result};
use crate::handle::{self, Physical, Tag};
use crate::memory::handles::{Bytes, Exported, Exporter, HandleKey, Refused, Shared};
use crate::memory::heap::Memory;
use crate::memory::virtual_memory::{PhysicalState, VirtualMemory};
use crate::values::{Location, MemoryProps};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX: u32 = 1;

/// A file with a handle in it.
#[derive(Debug)]
pub(crate) struct Descriptor(Memfd);

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
    pub(crate) fn lend(&self) -> Result<OwnedFd> {
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

/// Physical memory that others may have.
#[derive(Debug)]
pub(crate) struct Lent {
    descriptor: Descriptor,
    memory: Arc<PhysicalState>,
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
        let place = memory.owner.export_whole(memory.id, memory.bytes, memory.number)?;
        let descriptor = Descriptor::new(&key.sign(&place, Shared::Physical)?)?;
        let lent = descriptor.lend()?;
        self.sweep();
        self.lent.lock().push(Lent { descriptor, memory });
        Ok(lent)
    }

    /// Physical memory that a descriptor names, for the device `here`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it names none that there is, `NOT_PERMITTED` if that is another user's; `OUT_OF_MEMORY`, `NOT_SUPPORTED`.
    pub(crate) fn import(&self, key: &HandleKey, here: u32, fd: OwnedFd) -> Result<Physical> {
        let (name, descriptor) = read(fd)?;
        let (name, exporter) = key.verify(&name, Shared::Physical).map_err(Refused::of_descriptor)?;
        let handle = Physical(handle::fresh(Tag::Physical));
        if key.is_of(&exporter) {
            let lent = self.lent.lock();
            let known = lent.iter().find(|lent| lent.memory.number == name.number).ok_or(CudaError::INVALID_VALUE)?;
            self.physicals.insert(handle.0, Arc::clone(&known.memory));
            return Ok(handle);
        }
        let owner = self.memory.of(here);
        owner.arena()?;
        let file = name.open().map_err(Refused::of_descriptor)?;
        let inside = name.offset.checked_add(name.bytes).is_some_and(|end| end <= file.bytes());
        if !inside || [name.offset, name.bytes].iter().any(|value| !value.is_multiple_of(PAGE_BYTES)) {
            return Err(CudaError::INVALID_VALUE);
        }
        let id = AllocId(owner.link().fresh_id());
        let memory = HostMemory { file, offset: name.offset };
        owner.link().outcome(owner.link().gpu().import(id, &memory, name.bytes))?;
        let location = Location::Device(here.cast_signed());
        let props = MemoryProps { location, handle_types: 0, max_bytes: 0 };
        let foreign = Some(Foreign { _descriptor: descriptor });
        let (bytes, number, owner) = (name.bytes, handle.0, Arc::clone(owner));
        self.physicals.insert(handle.0, Arc::new(PhysicalState { id, bytes, props, owner, number, _foreign: foreign }));
        Ok(handle)
    }

    /// Lets go of what nobody else has any more. True if there was some.
    pub(crate) fn sweep(&self) -> bool {
        let mut lent = self.lent.lock();
        let gone: Vec<Lent> = lent.extract_if(.., |lent| !lent.descriptor.is_lent()).collect();
        drop(lent);
        !gone.is_empty()
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

/// A descriptor of a pool.
///
/// # Errors
/// `OPERATING_SYSTEM`.
pub(crate) fn of_pool(key: &HandleKey, pool: u32) -> Result<Descriptor> {
    // A pool is in no file: there is that of the key.
    let place = Exported { file: key.file()?, offset: 0, bytes: PAGE_BYTES, number: 0, pool };
    Descriptor::new(&key.sign(&place, Shared::Pool)?)
}
