//! Stream-ordered allocation and its pools.

use std::sync::Arc;

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Device, MemPool, Stream};
use crate::memory::allocation::Kind;
use crate::memory::pool::{Allocator, Freed, PoolState};
use crate::values::{AccessFlags, Location, MemoryProps, PoolAttribute};

impl Driver {
    fn pool(&self, pool: MemPool) -> Result<Arc<PoolState>> {
        self.ready()?;
        self.pools.get(pool)
    }

    /// The default memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_default_mem_pool(&self, device: Device) -> Result<MemPool> {
        self.device(device)?;
        Ok(self.pools.default_pool())
    }

    /// The current memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_mem_pool(&self, device: Device) -> Result<MemPool> {
        self.device(device)?;
        Ok(self.pools.current_pool())
    }

    /// Sets the current memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` if it is no pool.
    pub fn device_set_mem_pool(&self, device: Device, pool: MemPool) -> Result<()> {
        self.device(device)?;
        self.pools.set_current_pool(pool)
    }

    /// Allocates from the device's current pool in stream order.
    ///
    /// # Errors
    /// As `mem_alloc_from_pool_async`.
    pub fn mem_alloc_async(&self, bytes: u64, stream: Stream) -> Result<DevAddr> {
        self.mem_alloc_from_pool_async(bytes, self.pools.current_pool(), stream)
    }

    /// Allocates from a pool in stream order.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or no pool, `INVALID_HANDLE`, `OUT_OF_MEMORY`.
    pub fn mem_alloc_from_pool_async(&self, bytes: u64, pool: MemPool, stream: Stream) -> Result<DevAddr> {
        let stream = self.stream(stream)?;
        let pool = self.pool(pool)?;
        if bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let who = Allocator { context: stream.core.id, queue: stream.id() };
        let memory = self.pools.alloc(&pool, bytes, who, || stream.synchronize_context(), &|| stream.core.dead())?;
        Ok(DevAddr(memory.base))
    }

    /// Frees in stream order.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation begins there, `INVALID_HANDLE`.
    pub fn mem_free_async(&self, address: DevAddr, stream: Stream) -> Result<()> {
        let stream = self.stream(stream)?;
        if address.0 == 0 {
            return Ok(());
        }
        let found = self.memory.find(address.0).filter(|found| found.base == address.0);
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        match found.kind {
            Kind::Pool => {
                let mark = stream.point()?;
                self.pools.free(&found, mark.map(|mark| Freed { mark, queue: stream.id() }))
            }
            // Memory of `cuMemAlloc` may be freed here too; it has no pool to wait in.
            Kind::Device => {
                stream.synchronize()?;
                self.mem_free(address)
            }
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Creates a pool.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for pools in host memory or shared between processes, `INVALID_VALUE`.
    pub fn mem_pool_create(&self, props: MemoryProps) -> Result<MemPool> {
        self.ready()?;
        match props.location {
            Location::Device(0) if props.handle_types == 0 => {}
            Location::Invalid | Location::Device(_) if props.handle_types == 0 => {
                return Err(CudaError::INVALID_VALUE);
            }
            _ => return Err(CudaError::NOT_SUPPORTED),
        }
        Ok(self.pools.create(props.max_bytes))
    }

    /// Destroys a pool: at once, or when its last allocation is freed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or the default pool.
    pub fn mem_pool_destroy(&self, pool: MemPool) -> Result<()> {
        self.ready()?;
        self.pools.destroy(pool)
    }

    /// Gives unused memory back until at most `keep_bytes` are reserved.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool.
    pub fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> Result<()> {
        self.pools.trim_to(&*self.pool(pool)?, keep_bytes);
        Ok(())
    }

    /// A `CUmemPool_attribute` of a pool.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool.
    pub fn mem_pool_get_attribute(&self, pool: MemPool, attribute: PoolAttribute) -> Result<u64> {
        Ok(self.pool(pool)?.attribute(attribute))
    }

    /// Sets an attribute. High-water marks can only be set to 0: that makes them the current values.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool, or the attribute cannot be set so.
    pub fn mem_pool_set_attribute(&self, pool: MemPool, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.pool(pool)?.set_attribute(attribute, value)
    }

    /// Rights from a location: the device has all.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool or no device.
    pub fn mem_pool_get_access(&self, pool: MemPool, location: Location) -> Result<AccessFlags> {
        self.pool(pool)?;
        match location {
            Location::Device(0) => Ok(AccessFlags::ReadWrite),
            Location::Host => Ok(AccessFlags::None),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Sets rights from locations: the device that holds a pool keeps its rights, others there are none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what would change that, `INVALID_DEVICE`.
    pub fn mem_pool_set_access(&self, pool: MemPool, accesses: &[(Location, AccessFlags)]) -> Result<()> {
        self.pool(pool)?;
        accesses.iter().try_for_each(|access| match access {
            (Location::Device(0), AccessFlags::ReadWrite) => Ok(()),
            (Location::Device(0), _) => Err(CudaError::INVALID_VALUE),
            _ => Err(CudaError::INVALID_DEVICE),
        })
    }
}
