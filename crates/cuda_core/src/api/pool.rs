//! Stream-ordered allocation and its pools.

use std::sync::Arc;

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{Device, MemPool, Stream};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::descriptors::POSIX;
use crate::memory::pool::{Allocator, Freed, PoolState, Pools, Sharing};
use crate::values::{AccessFlags, Location, MemoryProps, PoolAttribute, PoolMemory};

impl Driver {
    /// A pool, and the pools of its device.
    pub(crate) fn pool(&self, pool: MemPool) -> Result<(&Pools, Arc<PoolState>)> {
        self.ready()?;
        let mut pools = self.devices.all().iter().map(|device| &*device.pools);
        let found = pools.find_map(|pools| Some((pools, pools.get(pool).ok()?)));
        found.ok_or(CudaError::INVALID_VALUE)
    }

    /// The pools of the device that has an allocation.
    pub(crate) fn pools_of(&self, found: &Allocation) -> &Pools {
        &self.devices.all()[found.gpu as usize].pools
    }

    /// The ordinal of a pool's device.
    fn device_of_pool(&self, pool: MemPool) -> Result<i32> {
        let (pools, _) = self.pool(pool)?;
        let mut ordinals = (0..).zip(self.devices.all());
        let found = ordinals.find(|(_, device)| std::ptr::eq(&raw const *device.pools, &raw const *pools));
        found.map(|(ordinal, _)| ordinal).ok_or(CudaError::INVALID_VALUE)
    }

    /// Where the pools of a location are: those of no device are the first one's, whose host memory all devices see.
    fn pools_at(&self, location: Location, managed: bool) -> Result<(&Pools, PoolMemory)> {
        self.ready()?;
        match (location, managed) {
            (Location::Device(ordinal), managed) => {
                let memory = if managed { PoolMemory::Managed } else { PoolMemory::Device };
                Ok((&self.device(Device(ordinal))?.pools, memory))
            }
            (Location::Host | Location::HostNuma(0), managed) => {
                let memory = if managed { PoolMemory::Managed } else { PoolMemory::Pinned };
                Ok((&self.device(Device(0))?.pools, memory))
            }
            // No preference.
            (Location::Invalid, true) => Ok((&self.device(Device(0))?.pools, PoolMemory::Managed)),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// The default pool of a location, of managed memory or what is pinned there.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for locations without pools.
    pub fn mem_get_default_mem_pool(&self, location: Location, managed: bool) -> Result<MemPool> {
        let (pools, memory) = self.pools_at(location, managed)?;
        Ok(pools.default_pool(memory))
    }

    /// The current pool of a location.
    ///
    /// # Errors
    /// As `mem_get_default_mem_pool`.
    pub fn mem_get_mem_pool(&self, location: Location, managed: bool) -> Result<MemPool> {
        let (pools, memory) = self.pools_at(location, managed)?;
        Ok(pools.current_pool(memory))
    }

    /// Sets the current pool of a location, to one of such memory there.
    ///
    /// # Errors
    /// As `mem_get_default_mem_pool`; `INVALID_VALUE` for others' pools.
    pub fn mem_set_mem_pool(&self, location: Location, managed: bool, pool: MemPool) -> Result<()> {
        let (pools, memory) = self.pools_at(location, managed)?;
        pools.set_current_pool(memory, pool)
    }

    /// The default memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_default_mem_pool(&self, device: Device) -> Result<MemPool> {
        Ok(self.device(device)?.pools.default_pool(PoolMemory::Device))
    }

    /// The current memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_mem_pool(&self, device: Device) -> Result<MemPool> {
        Ok(self.device(device)?.pools.current_pool(PoolMemory::Device))
    }

    /// Sets the current memory pool, one of the device.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` if it is no pool.
    pub fn device_set_mem_pool(&self, device: Device, pool: MemPool) -> Result<()> {
        self.device(device)?.pools.set_current_pool(PoolMemory::Device, pool)
    }

    /// Allocates from the device's current pool in stream order.
    ///
    /// # Errors
    /// As `mem_alloc_from_pool_async`.
    pub fn mem_alloc_async(&self, bytes: u64, stream: Stream) -> Result<DevAddr> {
        let pools = &self.devices.of(&self.any_stream(stream)?.core.gpu).pools;
        self.mem_alloc_from_pool_async(bytes, pools.current_pool(PoolMemory::Device), stream)
    }

    /// Allocates from a pool in stream order; no bytes are nowhere. A stream that is being captured gets a node that allocates where the
    /// pool is.
    ///
    /// # Errors
    /// `INVALID_VALUE` for no pool, or another process's; `INVALID_HANDLE`, `OUT_OF_MEMORY`; `NOT_SUPPORTED` in captures for pools that the host sees.
    pub fn mem_alloc_from_pool_async(&self, bytes: u64, pool: MemPool, stream: Stream) -> Result<DevAddr> {
        if let Some(capture) = self.captured(stream)? {
            let state = self.pool(pool)?.1;
            if state.foreign().is_some() {
                return Err(CudaError::INVALID_VALUE);
            }
            if state.memory() != PoolMemory::Device {
                return Err(CudaError::NOT_SUPPORTED);
            }
            if bytes == 0 {
                return Ok(DevAddr(0));
            }
            let location = Location::Device(self.device_of_pool(pool)?);
            let props = MemoryProps { location, handle_types: 0, max_bytes: 0 };
            let wanted = self.wanted_alloc(props, bytes, &[], Box::default())?;
            return capture.alloc(wanted);
        }
        let stream = self.stream(stream)?;
        let (pools, pool) = self.pool(pool)?;
        if bytes == 0 {
            return Ok(DevAddr(0));
        }
        let who = Allocator { context: stream.core.id, queue: stream.id() };
        let memory = pools.alloc(&pool, bytes, who, || stream.synchronize_context(), &|| stream.core.dead())?;
        if memory.kind.managed() {
            self.advices.forget(memory.base);
        }
        Ok(DevAddr(memory.base))
    }

    /// Frees in stream order. A stream that is being captured gets a node that frees what a node has allocated.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation begins there, `INVALID_HANDLE`.
    pub fn mem_free_async(&self, address: DevAddr, stream: Stream) -> Result<()> {
        if let Some(capture) = self.captured(stream)? {
            if address.0 == 0 {
                return Ok(());
            }
            let memory = self.graph_memory_at(address)?;
            return capture.free(memory, address);
        }
        let stream = self.stream(stream)?;
        if address.0 == 0 {
            return Ok(());
        }
        let found = self.memory.find(address.0).filter(|found| found.base == address.0);
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        match found.kind {
            kind if kind.pooled() => {
                let pools = self.pools_of(&found);
                if stream.core.gpu.ordinal != found.gpu {
                    // The pool sees how far streams of its own device are.
                    stream.synchronize()?;
                    return pools.free(&found, None);
                }
                let mark = stream.point()?;
                pools.free(&found, mark.map(|mark| Freed { mark, queue: stream.id() }))
            }
            Kind::Graph => {
                if stream.core.gpu.ordinal != found.gpu {
                    stream.synchronize()?;
                    return self.memory.of(found.gpu).graph_free(address.0, None);
                }
                self.memory.of(found.gpu).graph_free(address.0, stream.point()?)
            }
            // Memory of `cuMemAlloc` may be freed here too; it has no pool to wait in. Nor has another process's.
            Kind::Device | Kind::Imported => {
                stream.synchronize()?;
                self.mem_free(address)
            }
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Creates a pool of memory that is pinned at its location.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for pools shared between processes where they cannot be; `INVALID_VALUE`.
    pub fn mem_pool_create(&self, props: MemoryProps) -> Result<MemPool> {
        self.create_pool(props, false)
    }

    /// Creates a pool of managed memory.
    ///
    /// # Errors
    /// As `mem_pool_create`.
    pub fn mem_pool_create_managed(&self, props: MemoryProps) -> Result<MemPool> {
        self.create_pool(props, true)
    }

    fn create_pool(&self, props: MemoryProps, managed: bool) -> Result<MemPool> {
        let (pools, memory) = self.pools_at(props.location, managed).map_err(|error| match error {
            CudaError::INVALID_DEVICE => CudaError::INVALID_VALUE,
            other => other,
        })?;
        let sharing = match (props.handle_types, memory, props.location) {
            (0, ..) => Sharing::None,
            (POSIX, PoolMemory::Device, Location::Device(device))
                if self.memory.of(device.cast_unsigned()).can_share(props.location) =>
            {
                Sharing::Lent
            }
            _ => return Err(CudaError::NOT_SUPPORTED),
        };
        Ok(pools.create(memory, props.max_bytes, sharing))
    }

    /// Destroys a pool: at once, or when its last allocation is freed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or a default pool.
    pub fn mem_pool_destroy(&self, pool: MemPool) -> Result<()> {
        self.pool(pool)?.0.destroy(pool)
    }

    /// Gives unused memory back until at most `keep_bytes` are reserved.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool.
    pub fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> Result<()> {
        let (pools, pool) = self.pool(pool)?;
        pools.trim_to(&pool, keep_bytes);
        Ok(())
    }

    /// A `CUmemPool_attribute` of a pool.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool.
    pub fn mem_pool_get_attribute(&self, pool: MemPool, attribute: PoolAttribute) -> Result<u64> {
        Ok(self.pool(pool)?.1.attribute(attribute))
    }

    /// Sets an attribute. High-water marks can only be set to 0: that makes them the current values.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool, or the attribute cannot be set so.
    pub fn mem_pool_set_attribute(&self, pool: MemPool, attribute: PoolAttribute, value: u64) -> Result<()> {
        self.pool(pool)?.1.set_attribute(attribute, value)
    }

    /// Rights from a location: the pool's device has all, and the host of what it sees; others have none.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool or no device.
    pub fn mem_pool_get_access(&self, pool: MemPool, location: Location) -> Result<AccessFlags> {
        let own = self.device_of_pool(pool)?;
        match location {
            Location::Device(device) if device == own => Ok(AccessFlags::ReadWrite),
            Location::Device(device) if self.device(Device(device)).is_ok() => Ok(AccessFlags::None),
            Location::Host | Location::HostNuma(0) if self.pool(pool)?.1.memory() != PoolMemory::Device => {
                Ok(AccessFlags::ReadWrite)
            }
            Location::Host => Ok(AccessFlags::None),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Sets rights from locations: the device that holds a pool keeps its rights, so does the host; others there are none.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what would change that, `INVALID_DEVICE`.
    pub fn mem_pool_set_access(&self, pool: MemPool, accesses: &[(Location, AccessFlags)]) -> Result<()> {
        let seen = self.pool(pool)?.1.memory() != PoolMemory::Device;
        let by_host = |&(location, flags): &(Location, AccessFlags)| {
            seen && matches!(location, Location::Host | Location::HostNuma(0)) && flags == AccessFlags::ReadWrite
        };
        let others: Vec<_> = accesses.iter().copied().filter(|access| !by_host(access)).collect();
        self.check_access(self.device_of_pool(pool)?, &others)
    }

    /// # Errors
    /// As `mem_pool_set_access`, of memory of a device's own.
    pub(crate) fn check_access(&self, own: i32, accesses: &[(Location, AccessFlags)]) -> Result<()> {
        accesses.iter().try_for_each(|&(location, flags)| match location {
            Location::Device(device) if device == own => match flags {
                AccessFlags::ReadWrite => Ok(()),
                _ => Err(CudaError::INVALID_VALUE),
            },
            // Other devices cannot have any.
            Location::Device(device) if flags == AccessFlags::None && self.device(Device(device)).is_ok() => Ok(()),
            _ => Err(CudaError::INVALID_DEVICE),
        })
    }
}
