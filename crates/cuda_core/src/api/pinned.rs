//! Host memory that the GPU sees.

use gpu::DevAddr;
use hostmem::ProgramPages;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, Wanted};

/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP | READ_ONLY`; I/O memory is not supported.
const REGISTER_FLAGS: u32 = 1 | 2 | 8;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const REGISTER_READ_ONLY: u32 = 8;
/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const REGISTER_IO: u32 = 4;
/// What `cuMemHostGetFlags` adds: everything is mapped for the device.
const DEVICE_MAP: u32 = 2;

impl Driver {
    /// Allocates pinned host memory; returns its address, which is the GPU's too, and null for 0 bytes.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn mem_alloc_host(&self, bytes: u64) -> Result<u64> {
        self.potentially_unsafe()?;
        self.mem_host_alloc(bytes, 0)
    }

    /// Allocates pinned host memory with flags; of 0 bytes it is null.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `OUT_OF_MEMORY`.
    pub fn mem_host_alloc(&self, bytes: u64, flags: u32) -> Result<u64> {
        let context = self.current()?;
        if flags & !ALLOC_FLAGS != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        if bytes == 0 {
            return Ok(0);
        }
        let mut wanted = Wanted::new(bytes, Kind::Pinned, context.core.id);
        wanted.flags = flags | DEVICE_MAP;
        self.alloc_in(&context, wanted)
    }

    /// Frees pinned host memory, after the work that may use it. Null is nothing.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no such allocation begins there.
    pub fn mem_free_host(&self, address: u64) -> Result<()> {
        self.potentially_unsafe()?;
        let current = self.current()?;
        if address == 0 {
            return Ok(());
        }
        let memory = &self.memory;
        let pinned = |found: &Allocation| found.kind == Kind::Pinned;
        let found = memory.find(address).filter(|found| found.base == address && pinned(found));
        self.quiesce(&current, found.ok_or(CudaError::INVALID_VALUE)?.context)?;
        let found = memory.forget(address, pinned).ok_or(CudaError::INVALID_VALUE)?;
        memory.recycle(&found);
        Ok(())
    }

    /// Makes a program's own pages visible to the GPU: they become pages of shared memory, with the same content at the
    /// same address. The GPU's address is another one. Other threads may write to them meanwhile ([`ProgramPages::show`]).
    ///
    /// Memory that must stay what it is, is not touched: what other processes may see too (mapped shared, of a file or a memory
    /// file) would be cut off from them, what may only be read or may be executed would be changed, and a page that another
    /// registration shares has moved already. It is registered for copies only, which then are made by way of the host's
    /// addresses; it has no address of the GPU, and who asks for one at once (`CU_MEMHOSTREGISTER_DEVICEMAP`) is refused.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, unknown flags, what cannot be read (the file behind it may be shorter), and what cannot be
    /// written without `CU_MEMHOSTREGISTER_READ_ONLY`; `HOST_MEMORY_ALREADY_REGISTERED`, `OUT_OF_MEMORY`; `NOT_SUPPORTED` for
    /// I/O memory and, with `DEVICEMAP`, for what must stay what it is.
    pub fn mem_host_register(&self, pages: ProgramPages, flags: u32) -> Result<()> {
        let context = self.current()?;
        if flags & REGISTER_IO != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
        if flags & !REGISTER_FLAGS != 0 || pages.is_empty() {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut wanted = Wanted::new(pages.len() as u64, Kind::Registered, context.core.id);
        wanted.flags = flags | DEVICE_MAP;
        let made =
            context.core.memory().register(pages, wanted, flags & REGISTER_READ_ONLY != 0, flags & DEVICE_MAP != 0)?;
        self.keep_in(&context, &made)
    }

    /// Undoes `mem_host_register`: the pages become the program's own again, with their content.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no registration begins there.
    pub fn mem_host_unregister(&self, address: u64) -> Result<()> {
        let current = self.current()?;
        let memory = &self.memory;
        let registered = |found: &Allocation| found.kind.registered();
        let found = memory.find(address).filter(|found| registered(found) && found.host_address() == address);
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        self.quiesce(&current, found.context)?;
        let found = memory.forget(found.base, registered).ok_or(CudaError::INVALID_VALUE)?;
        memory.give_back(&found);
        Ok(())
    }

    /// The GPU's address of pinned host memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none or the current device does not see it, or for flags.
    pub fn mem_host_get_device_pointer(&self, address: u64, flags: u32) -> Result<DevAddr> {
        let here = self.current()?.core.gpu.ordinal;
        let found = self.memory.find(address).filter(|found| found.kind.host_visible() && flags == 0);
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        let at = DevAddr(found.base + found.offset(address));
        if found.gpu == here || self.memory.sees(here, at, 1) { Ok(at) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// The flags it was allocated with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pinned memory.
    pub fn mem_host_get_flags(&self, address: u64) -> Result<u32> {
        self.current()?;
        let found = self.memory.find(address);
        let found = found.filter(|found| found.kind == Kind::Pinned || found.kind.registered());
        found.map(|found| found.flags).ok_or(CudaError::INVALID_VALUE)
    }
}
