//! Host memory that the GPU sees.

use gpu::DevAddr;
use hostmem::HostRange;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::heap::{Kind, Wanted};

/// `CU_MEMHOSTALLOC_PORTABLE | DEVICEMAP | WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE | DEVICEMAP | READ_ONLY`; I/O memory is not supported.
const REGISTER_FLAGS: u32 = 1 | 2 | 8;
/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const REGISTER_IO: u32 = 4;
/// What `cuMemHostGetFlags` adds: everything is mapped for the device.
const DEVICE_MAP: u32 = 2;

impl Driver {
    /// Allocates pinned host memory; returns its address, which is the GPU's too.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn mem_alloc_host(&self, bytes: u64) -> Result<u64> {
        self.mem_host_alloc(bytes, 0)
    }

    /// Allocates pinned host memory with flags.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or unknown flags, `OUT_OF_MEMORY`.
    pub fn mem_host_alloc(&self, bytes: u64, flags: u32) -> Result<u64> {
        let context = self.current()?;
        if flags & !ALLOC_FLAGS != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut wanted = Wanted::new(bytes, Kind::Pinned, context.gpu_id);
        wanted.flags = flags | DEVICE_MAP;
        Ok(self.shared.memory.alloc(&self.shared, wanted)?.base)
    }

    /// Frees pinned host memory, after the work that may use it. Null is nothing.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no such allocation begins there.
    pub fn mem_free_host(&self, address: u64) -> Result<()> {
        let current = self.current()?;
        if address == 0 {
            return Ok(());
        }
        let memory = &self.shared.memory;
        let pinned = |found: &crate::heap::Allocation| found.kind == Kind::Pinned;
        let found = memory.find(address).filter(|found| found.base == address && pinned(found));
        self.quiesce(&current, found.ok_or(CudaError::INVALID_VALUE)?.context)?;
        let found = memory.forget(address, pinned).ok_or(CudaError::INVALID_VALUE)?;
        memory.give_back(&self.shared, &found);
        Ok(())
    }

    /// Makes a program's own pages visible to the GPU: they become pages of shared memory, with the same content at the
    /// same address. The GPU's address is another one. Other threads may write to them meanwhile ([`HostRange::show`]).
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or unknown flags, `HOST_MEMORY_ALREADY_REGISTERED`, `NOT_SUPPORTED` for I/O memory,
    /// `OUT_OF_MEMORY`.
    pub fn mem_host_register(&self, range: HostRange, flags: u32) -> Result<()> {
        let context = self.current()?;
        if flags & REGISTER_IO != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
        if flags & !REGISTER_FLAGS != 0 || range.is_empty() {
            return Err(CudaError::INVALID_VALUE);
        }
        self.shared.memory.register(&self.shared, context.gpu_id, range, flags | DEVICE_MAP).map(|_| ())
    }

    /// Undoes `mem_host_register`: the pages become the program's own again, with their content.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED` if no registration begins there.
    pub fn mem_host_unregister(&self, address: u64) -> Result<()> {
        let current = self.current()?;
        let memory = &self.shared.memory;
        let registered = |found: &crate::heap::Allocation| found.kind == Kind::Registered;
        let found = memory.find(address).filter(|found| registered(found) && found.host_address() == address);
        let found = found.ok_or(CudaError::HOST_MEMORY_NOT_REGISTERED)?;
        self.quiesce(&current, found.context)?;
        let found = memory.forget(found.base, registered).ok_or(CudaError::HOST_MEMORY_NOT_REGISTERED)?;
        memory.give_back(&self.shared, &found);
        Ok(())
    }

    /// The GPU's address of pinned host memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or for flags.
    pub fn mem_host_get_device_pointer(&self, address: u64, flags: u32) -> Result<DevAddr> {
        self.current()?;
        let found = self.shared.memory.find(address).filter(|found| found.kind.host_visible() && flags == 0);
        found.map(|found| DevAddr(found.base + found.offset(address))).ok_or(CudaError::INVALID_VALUE)
    }

    /// The flags it was allocated with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pinned memory.
    pub fn mem_host_get_flags(&self, address: u64) -> Result<u32> {
        self.current()?;
        let found = self.shared.memory.find(address);
        let found = found.filter(|found| matches!(found.kind, Kind::Pinned | Kind::Registered));
        found.map(|found| found.flags).ok_or(CudaError::INVALID_VALUE)
    }
}
