//! Memory that programs hand to each other by file descriptors.
//!
//! ```text
//!   exporter: memory ─► its name, in a sealed file ─► descriptor ═══ unix socket, fork, pidfd ═══► importer: the name, then as any handle
//! ```
//! A descriptor is a name as well, and no right: what it names the importer opens of the exporter's process
//! ([`Exported`](crate::memory::between_processes::Exported)), which the operating system allows or not. But it lives: it is locked as
//! long as somebody has it open, so the exporter knows whether memory that it has released is still wanted. Who imports keeps it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu::{AllocId, HostMemory, PAGE_BYTES};
use hostmem::Memfd;

use crate::error::{CudaError, Result};
use crate::handle::{self, Physical, Tag};
use crate::memory::between_processes::{Exported, Shared};
use crate::memory::heap::Memory;
use crate::memory::virtual_memory::{PhysicalState, VirtualMemory};
use crate::values::{Location, MemoryProps};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX: u32 = 1;

/// A file with a name in it.
#[derive(Debug)]
pub(crate) struct Descriptor(Memfd);

impl Descriptor {
    /// A file for a name, in which it is itself named if `name` is given its own.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM`.
    pub(crate) fn new(kind: Shared, name: impl FnOnce(&Memfd) -> Result<Exported>) -> Result<Descriptor> {
        let file = Memfd::create("cuda memory", PAGE_BYTES).map_err(|_| CudaError::OPERATING_SYSTEM)?;
        let name = name(&file)?.encode(kind);
        file.map().map_err(|_| CudaError::OPERATING_SYSTEM)?.write(0, &name);
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

    /// What is named in a file that may be anything, and the file.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing of this kind is.
    pub(crate) fn read(fd: OwnedFd, kind: Shared) -> Result<(Exported, Memfd)> {
        let file = Memfd::from_fd(fd).map_err(|_| CudaError::INVALID_VALUE)?;
        let mut name = [0; 64];
        let part = file.map_part(0, PAGE_BYTES).map_err(|_| CudaError::INVALID_VALUE)?;
        part.read(0, &mut name);
        Ok((Exported::decode(&name, kind)?, file))
    }
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
    pub(crate) fn export(&self, driver: u32, handle: Physical, handle_type: u32) -> Result<OwnedFd> {
        let memory = self.physicals.get(handle.0).map_err(|_| CudaError::INVALID_VALUE)?;
        if handle_type != POSIX || memory.props.handle_types & handle_type == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let name = |_: &Memfd| memory.owner.export_whole(driver, memory.id, memory.bytes, memory.number);
        let descriptor = Descriptor::new(Shared::Physical, name)?;
        let lent = descriptor.lend()?;
        self.sweep();
        self.lent.lock().push(Lent { descriptor, memory });
        Ok(lent)
    }

    /// Physical memory that a descriptor names, for the device `here`.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it names none that there is, `NOT_PERMITTED` if that is another user's; `OUT_OF_MEMORY`, `NOT_SUPPORTED`.
    pub(crate) fn import(&self, driver: u32, here: u32, fd: OwnedFd) -> Result<Physical> {
        let (name, descriptor) = Descriptor::read(fd, Shared::Physical)?;
        let handle = Physical(handle::fresh(Tag::Physical));
        if name.is_of(driver) {
            let lent = self.lent.lock();
            let known = lent.iter().find(|lent| lent.memory.number == name.number).ok_or(CudaError::INVALID_VALUE)?;
            self.physicals.insert(handle.0, Arc::clone(&known.memory));
            return Ok(handle);
        }
        let owner = self.memory.of(here);
        owner.arena()?;
        let file = name.open_shared()?;
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
    fn export_whole(&self, driver: u32, id: AllocId, bytes: u64, number: u64) -> Result<Exported> {
        let HostMemory { file, offset } = self.shown(id)?;
        let file = file.name().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        Ok(Exported { driver, file, offset, bytes, number, pool: 0 })
    }

    /// Whether memory of this kind can be given to other processes: the host's always has a file.
    pub(crate) fn can_share(&self, location: Location) -> bool {
        matches!(location, Location::HostNuma(_)) || self.link().gpu().shows_memory()
    }
}

/// A pool of another process.
#[derive(Debug)]
pub(crate) struct ForeignPool {
    driver: u32,
    process: u32,
    number: u32,
    _descriptor: Memfd,
}

impl ForeignPool {
    /// The pool that a descriptor names.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it names none that there is in another process; `NOT_PERMITTED` if that is another user's.
    pub(crate) fn import(driver: u32, fd: OwnedFd) -> Result<ForeignPool> {
        let (name, descriptor) = Descriptor::read(fd, Shared::Pool)?;
        if name.is_of(driver) {
            return Err(CudaError::INVALID_VALUE);
        }
        // The pool's own process has this very file.
        name.open_shared()?;
        if descriptor.identity().ok() != Some((name.file.device, name.file.inode)) {
            return Err(CudaError::INVALID_VALUE);
        }
        let (driver, process, number) = (name.driver, name.file.process, name.pool);
        Ok(ForeignPool { driver, process, number, _descriptor: descriptor })
    }

    /// Whether memory is of this pool.
    pub(crate) fn has(&self, memory: &Exported) -> bool {
        (memory.driver, memory.file.process, memory.pool) == (self.driver, self.process, self.number)
    }
}

/// A descriptor of a pool.
///
/// # Errors
/// `OPERATING_SYSTEM`.
pub(crate) fn of_pool(driver: u32, pool: u32) -> Result<Descriptor> {
    Descriptor::new(Shared::Pool, |file| {
        let file = file.name().map_err(|_| CudaError::OPERATING_SYSTEM)?;
        Ok(Exported { driver, file, offset: 0, bytes: PAGE_BYTES, number: 0, pool })
    })
}
