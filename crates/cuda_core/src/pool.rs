//! Stream-ordered allocation and its pools.
//!
//! A freed block stays in its pool with the point in its stream up to which it may be in use. It is given out again in the
//! same stream at once (order protects it), in other streams when the point has passed. Synchronizations give what lies
//! above the pool's release threshold back to the GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{ContextId, DevAddr};
use parking_lot::Mutex;

use crate::context::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Device, MemPool, Stream, Tag};
use crate::heap::{Allocation, Kind, Wanted};
use crate::shared::Mark;
use crate::stream::StreamState;
use crate::types::{AccessFlags, Location, MemoryProps, PoolAttribute};

/// Sizes are rounded up to this, so that freed blocks fit again, bytes.
const UNIT: u64 = 512;

#[derive(Debug)]
pub(crate) struct PoolState {
    handle: MemPool,
    max_bytes: u64,
    inner: Mutex<Inner>,
    /// There are free blocks: looked at by every synchronization.
    has_free: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    free: Vec<Block>,
    threshold: u64,
    /// `ReuseFollowEventDependencies`, `ReuseAllowOpportunistic`, `ReuseAllowInternalDependencies`.
    reuse: [bool; 3],
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    destroyed: bool,
}

#[derive(Debug)]
struct Block {
    memory: Arc<Allocation>,
    /// Where it was freed; `None` if nothing uses it.
    freed: Option<(Mark, Arc<StreamState>)>,
}

impl PoolState {
    fn new(handle: MemPool, max_bytes: u64) -> PoolState {
        let inner = Inner { reuse: [true; 3], ..Inner::default() };
        PoolState { handle, max_bytes, inner: Mutex::new(inner), has_free: AtomicBool::new(false) }
    }
}

impl Driver {
    /// The default pool has a handle from the start.
    pub(crate) fn make_default_pool(&self) {
        let handle = MemPool(handle::fresh(Tag::MemPool));
        self.pools.insert(handle.0, Arc::new(PoolState::new(handle, 0)));
        *self.default_pools.lock() = (handle, handle);
    }

    fn pool(&self, pool: MemPool) -> Result<Arc<PoolState>> {
        self.ready()?;
        self.pools.get(pool.0).map_err(|_| CudaError::INVALID_VALUE)
    }

    /// The default memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_default_mem_pool(&self, device: Device) -> Result<MemPool> {
        self.device(device)?;
        Ok(self.default_pools.lock().0)
    }

    /// The current memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get_mem_pool(&self, device: Device) -> Result<MemPool> {
        self.device(device)?;
        Ok(self.default_pools.lock().1)
    }

    /// Sets the current memory pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` if it is no pool.
    pub fn device_set_mem_pool(&self, device: Device, pool: MemPool) -> Result<()> {
        self.device(device)?;
        self.pool(pool)?;
        self.default_pools.lock().1 = pool;
        Ok(())
    }

    /// Allocates from the device's current pool in stream order.
    ///
    /// # Errors
    /// As `mem_alloc_from_pool_async`.
    pub fn mem_alloc_async(&self, bytes: u64, stream: Stream) -> Result<DevAddr> {
        let pool = self.default_pools.lock().1;
        self.mem_alloc_from_pool_async(bytes, pool, stream)
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
        let bytes = bytes.checked_next_multiple_of(UNIT).ok_or(CudaError::OUT_OF_MEMORY)?;
        let mut inner = pool.inner.lock();
        let memory = match self.reuse(&mut inner, bytes, &stream) {
            Some(memory) => memory,
            None => {
                if pool.max_bytes != 0 && inner.reserved.saturating_add(bytes) > pool.max_bytes {
                    return Err(CudaError::OUT_OF_MEMORY);
                }
                let mut wanted = Wanted::new(bytes, Kind::Pool, stream.context.gpu_id);
                wanted.pool = pool.handle;
                let made = self.shared.memory.alloc(&self.shared, wanted).or_else(|error| {
                    // Blocks that are in the way go first, after the work that may use them.
                    if error != CudaError::OUT_OF_MEMORY || inner.free.is_empty() {
                        return Err(error);
                    }
                    stream.context.synchronize()?;
                    self.trim(&mut inner, 0);
                    self.shared.memory.alloc(&self.shared, wanted)
                })?;
                inner.reserved += bytes;
                inner.reserved_high = inner.reserved_high.max(inner.reserved);
                made
            }
        };
        inner.used += memory.bytes;
        inner.used_high = inner.used_high.max(inner.used);
        pool.has_free.store(!inner.free.is_empty(), Ordering::Release);
        Ok(DevAddr(memory.base))
    }

    /// The tightest free block that may be given to `stream` now.
    fn reuse(&self, inner: &mut Inner, bytes: u64, stream: &Arc<StreamState>) -> Option<Arc<Allocation>> {
        let fits = |block: &Block| {
            let usable = match &block.freed {
                None => true,
                Some((mark, at)) => Arc::ptr_eq(at, stream) || self.shared.done(mark),
            };
            usable && block.memory.bytes >= bytes && block.memory.bytes / 2 <= bytes
        };
        let best = inner.free.iter().enumerate().filter(|(_, block)| fits(block));
        let (at, _) = best.min_by_key(|(_, block)| block.memory.bytes)?;
        Some(inner.free.swap_remove(at).memory)
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
        let found = self.shared.memory.find(address.0).filter(|found| found.base == address.0);
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        match found.kind {
            Kind::Pool => {
                let mark = stream.point()?;
                self.free_to_pool(&found, mark.map(|mark| (mark, stream)))
            }
            // Memory of `cuMemAlloc` may be freed here too; it has no pool to wait in.
            Kind::Device => {
                stream.synchronize()?;
                self.mem_free(address)
            }
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Puts a block back into its pool.
    pub(crate) fn free_to_pool(&self, memory: &Arc<Allocation>, freed: Option<(Mark, Arc<StreamState>)>) -> Result<()> {
        let pool = self.pools.get(memory.pool.0).map_err(|_| CudaError::INVALID_VALUE)?;
        let mut inner = pool.inner.lock();
        if inner.free.iter().any(|block| Arc::ptr_eq(&block.memory, memory)) {
            return Err(CudaError::INVALID_VALUE);
        }
        inner.free.push(Block { memory: Arc::clone(memory), freed });
        inner.used = inner.used.saturating_sub(memory.bytes);
        pool.has_free.store(true, Ordering::Release);
        let over = inner.destroyed && inner.used == 0;
        drop(inner);
        if over {
            self.end_pool(&pool)?;
        }
        Ok(())
    }

    /// Gives free blocks back until at most `keep` bytes are reserved. True if some went.
    fn trim(&self, inner: &mut Inner, keep: u64) -> bool {
        let mut some = false;
        let mut at = 0;
        while at < inner.free.len() && inner.reserved > keep {
            let block = &inner.free[at];
            if block.freed.as_ref().is_some_and(|(mark, _)| !self.shared.done(mark)) {
                at += 1;
                continue;
            }
            let memory = inner.free.swap_remove(at).memory;
            if self.shared.memory.forget(memory.base, |found| found.number == memory.number).is_some() {
                self.shared.memory.give_back(&self.shared, &memory);
            }
            inner.reserved = inner.reserved.saturating_sub(memory.bytes);
            some = true;
        }
        some
    }

    /// What every synchronization does: pools shrink to their thresholds.
    pub(crate) fn trim_pools(&self) {
        for pool in self.pools.all() {
            if pool.has_free.load(Ordering::Acquire) {
                let mut inner = pool.inner.lock();
                let keep = inner.threshold;
                self.trim(&mut inner, keep);
                pool.has_free.store(!inner.free.is_empty(), Ordering::Release);
            }
        }
    }

    /// Gives back all that can be. True if some could.
    pub(crate) fn squeeze_pools(&self) -> bool {
        let mut some = false;
        for pool in self.pools.all() {
            if pool.has_free.load(Ordering::Acquire) {
                some |= self.trim(&mut pool.inner.lock(), 0);
            }
        }
        some
    }

    /// Blocks freed in a context that ends are free for all.
    pub(crate) fn forget_pools(&self, context: &Arc<ContextState>) {
        let of = |id: ContextId| id == context.gpu_id;
        for pool in self.pools.all() {
            for block in &mut pool.inner.lock().free {
                if block.freed.as_ref().is_some_and(|(mark, _)| of(mark.context)) {
                    block.freed = None;
                }
            }
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
        let handle = MemPool(handle::fresh(Tag::MemPool));
        self.pools.insert(handle.0, Arc::new(PoolState::new(handle, props.max_bytes)));
        Ok(handle)
    }

    /// Destroys a pool: at once, or when its last allocation is freed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or the default pool.
    pub fn mem_pool_destroy(&self, pool: MemPool) -> Result<()> {
        let state = self.pool(pool)?;
        let mut defaults = self.default_pools.lock();
        if defaults.0 == pool {
            return Err(CudaError::INVALID_VALUE);
        }
        if defaults.1 == pool {
            defaults.1 = defaults.0;
        }
        drop(defaults);
        let mut inner = state.inner.lock();
        inner.destroyed = true;
        let over = inner.used == 0;
        drop(inner);
        if over { self.end_pool(&state) } else { Ok(()) }
    }

    fn end_pool(&self, pool: &PoolState) -> Result<()> {
        let mut inner = pool.inner.lock();
        let busy: Vec<Arc<StreamState>> =
            inner.free.iter().filter_map(|block| block.freed.as_ref().map(|freed| Arc::clone(&freed.1))).collect();
        for stream in busy {
            // A stream that failed uses nothing any more.
            let _ = stream.wait_tail(None);
        }
        for block in &mut inner.free {
            block.freed = None;
        }
        self.trim(&mut inner, 0);
        drop(inner);
        self.pools.remove(pool.handle.0).map(|_| ())
    }

    /// Gives unused memory back until at most `keep_bytes` are reserved.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool.
    pub fn mem_pool_trim_to(&self, pool: MemPool, keep_bytes: u64) -> Result<()> {
        let pool = self.pool(pool)?;
        self.trim(&mut pool.inner.lock(), keep_bytes);
        Ok(())
    }

    /// An attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool.
    pub fn mem_pool_get_attribute(&self, pool: MemPool, attribute: PoolAttribute) -> Result<u64> {
        let pool = self.pool(pool)?;
        let inner = pool.inner.lock();
        Ok(match attribute {
            PoolAttribute::ReuseFollowEventDependencies => inner.reuse[0].into(),
            PoolAttribute::ReuseAllowOpportunistic => inner.reuse[1].into(),
            PoolAttribute::ReuseAllowInternalDependencies => inner.reuse[2].into(),
            PoolAttribute::ReleaseThreshold => inner.threshold,
            PoolAttribute::ReservedMemCurrent => inner.reserved,
            PoolAttribute::ReservedMemHigh => inner.reserved_high,
            PoolAttribute::UsedMemCurrent => inner.used,
            PoolAttribute::UsedMemHigh => inner.used_high,
        })
    }

    /// Sets an attribute. High-water marks can only be set to 0: that makes them the current values.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is no pool, or the attribute cannot be set so.
    pub fn mem_pool_set_attribute(&self, pool: MemPool, attribute: PoolAttribute, value: u64) -> Result<()> {
        let pool = self.pool(pool)?;
        let mut inner = pool.inner.lock();
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => inner.reuse[0] = value != 0,
            PoolAttribute::ReuseAllowOpportunistic => inner.reuse[1] = value != 0,
            PoolAttribute::ReuseAllowInternalDependencies => inner.reuse[2] = value != 0,
            PoolAttribute::ReleaseThreshold => inner.threshold = value,
            PoolAttribute::ReservedMemHigh if value == 0 => inner.reserved_high = inner.reserved,
            PoolAttribute::UsedMemHigh if value == 0 => inner.used_high = inner.used,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
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
