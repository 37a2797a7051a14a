//! Managed memory: one address for host and GPU.
//!
//! It is host-visible memory; both sides may use it at any time, so nothing ever moves. Advice and prefetches are
//! checked, and remembered as far as they can be asked for.

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::Stream;
use crate::memory::allocation::{Kind, Wanted};
use crate::memory::table::Residency;
use crate::values::Location;

impl Driver {
    /// Allocates managed memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or flags that are none, `OUT_OF_MEMORY`.
    pub fn mem_alloc_managed(&self, bytes: u64, flags: u32) -> Result<DevAddr> {
        let context = self.current()?;
        if !matches!(flags, 1 | 2) {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut wanted = Wanted::new(bytes, Kind::Managed, context.core.id);
        wanted.flags = flags;
        let base = self.alloc_in(&context, wanted)?;
        self.advices.forget(base);
        Ok(DevAddr(base))
    }

    /// The managed allocation that holds a whole range.
    fn managed(&self, address: DevAddr, bytes: u64) -> Result<u64> {
        self.current()?;
        let found = self.memory.find(address.0).filter(|found| found.kind.managed());
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        if bytes == 0 || bytes > found.end() - address.0 {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(found.base)
    }

    /// Takes advice about a range (`CUmem_advise`).
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed or the advice unknown, `INVALID_DEVICE`.
    pub fn mem_advise(&self, address: DevAddr, bytes: u64, advice: u32, location: Location) -> Result<()> {
        let base = self.managed(address, bytes)?;
        self.advices.advise(base, advice, location)
    }

    /// Moves a range ahead of its use: it need not move.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed, `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn mem_prefetch_async(&self, address: DevAddr, bytes: u64, location: Location, stream: Stream) -> Result<()> {
        self.stream(stream)?;
        let base = self.managed(address, bytes)?;
        self.advices.prefetched(base, location)
    }

    /// Where a range of managed or pageable memory lies: all of it on the host.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other memory, and no bytes; the context's error.
    pub fn mem_get_location(&self, address: DevAddr, bytes: u64) -> Result<Location> {
        self.current()?;
        let end = address.0.checked_add(bytes).filter(|_| address.0 != 0 && bytes != 0);
        end.ok_or(CudaError::INVALID_VALUE)?;
        if self.memory.is_managed(address.0) {
            self.managed(address, bytes)?;
        } else if self.memory.find(address.0).is_some() || self.memory.locate(address.0, bytes)? != Residency::Pageable
        {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(Location::Host)
    }

    /// Who was said to access a range: ordinals of devices, then -1 for the CPU.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed.
    pub fn mem_range_accessed_by(&self, address: DevAddr, bytes: u64) -> Result<Vec<i32>> {
        Ok(self.advices.accessed_by(self.managed(address, bytes)?))
    }

    /// A `CUmem_range_attribute` with one value.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the range is not managed or the attribute unknown.
    pub fn mem_range_get_attribute(&self, attribute: u32, address: DevAddr, bytes: u64) -> Result<i32> {
        let base = self.managed(address, bytes)?;
        self.advices.attribute(base, attribute)
    }
}
