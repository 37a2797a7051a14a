//! Stream-ordered allocation and its pools.
//!
//! A freed block stays in its pool with the point in its stream up to which it may be in use. It is given out again in the
//! same stream at once (order protects it), in other streams when the point has passed. Synchronizations give what lies
//! above the pool's release threshold back to the GPU. While other programs wait for memory nothing is kept: a thread that is there
//! from the first freed memory on, and sleeps else, gives back what is free, whatever the program is busy with; also what was lent to
//! other processes and is not wanted there any more.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gpu::{ContextId, QueueId};
use parking_lot::Mutex;

use crate::error::{CudaError, Result};
use crate::gpu_link::GpuLink;
use crate::gpu_link::slots::{Mark, Slots};
use crate::handle::{self, MemPool, Table, Tag};
use crate::memory::allocation::{Allocation, Kind, Wanted};
use crate::memory::between_processes::pool_number;
use crate::memory::descriptors::{ForeignPool, LentMemory, lend_pool};
use crate::memory::handles::HandleKey;
use crate::memory::heap::Memory;
use crate::memory::line::Place;
use crate::values::{PoolAttribute, PoolMemory};

/// Sizes are rounded up to this, so that freed blocks fit again, bytes.
const UNIT: u64 = 512;

/// Longest sleep while nobody waits for memory.
const LONGEST: Duration = Duration::from_secs(60);
/// Between two looks at blocks that work may use, while others wait for memory.
const BETWEEN: Duration = Duration::from_millis(100);

/// What the allocations of a pool are.
fn kind(memory: PoolMemory) -> Kind {
    match memory {
        PoolMemory::Device => Kind::Pool,
        PoolMemory::Managed => Kind::ManagedPool,
        PoolMemory::Pinned => Kind::PinnedPool,
    }
}

/// A pool, until it is destroyed and its last allocation freed.
#[derive(Debug)]
pub(crate) struct PoolState {
    handle: MemPool,
    memory: PoolMemory,
    max_bytes: u64,
    sharing: Sharing,
    contents: Mutex<Contents>,
    /// There are free blocks: looked at by every synchronization.
    has_free: AtomicBool,
}

/// Which processes have a pool.
#[derive(Debug)]
pub(crate) enum Sharing {
    /// This one.
    None,
    /// This one, and those that it gives a descriptor.
    Lent,
    /// Another one: nothing is allocated here.
    Foreign(ForeignPool),
}

#[derive(Debug, Default)]
struct Contents {
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

/// A block that is free, or will be.
#[derive(Debug)]
struct Block {
    memory: Arc<Allocation>,
    freed: Option<Freed>,
}

/// Where in a queue's work a block was freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) mark: Mark,
    pub(crate) queue: QueueId,
}

/// Who allocates, and in which order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocator {
    pub(crate) context: ContextId,
    pub(crate) queue: QueueId,
}

impl PoolState {
    fn new(handle: MemPool, memory: PoolMemory, max_bytes: u64, sharing: Sharing) -> PoolState {
        let contents = Mutex::new(Contents { reuse: [true; 3], ..Contents::default() });
        PoolState { handle, memory, max_bytes, sharing, contents, has_free: AtomicBool::new(false) }
    }

    /// A descriptor for another process.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it was not made for it; `OPERATING_SYSTEM`.
    pub(crate) fn lend(&self, key: &HandleKey) -> Result<OwnedFd> {
        if self.is_shared() { lend_pool(key, pool_number(self.handle)) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Whether other processes may be told of its allocations.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.sharing, Sharing::Lent)
    }

    /// The other process's that it is.
    pub(crate) fn foreign(&self) -> Option<&ForeignPool> {
        match &self.sharing {
            Sharing::Foreign(pool) => Some(pool),
            _ => None,
        }
    }

    /// Whether an allocation of it was freed, though work may still use it.
    pub(crate) fn has_freed(&self, memory: &Arc<Allocation>) -> bool {
        self.contents.lock().free.iter().any(|block| Arc::ptr_eq(&block.memory, memory))
    }

    /// What its memory is.
    pub(crate) fn memory(&self) -> PoolMemory {
        self.memory
    }

    /// A `CUmemPool_attribute`.
    pub(crate) fn attribute(&self, attribute: PoolAttribute) -> u64 {
        let contents = self.contents.lock();
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => contents.reuse[0].into(),
            PoolAttribute::ReuseAllowOpportunistic => contents.reuse[1].into(),
            PoolAttribute::ReuseAllowInternalDependencies => contents.reuse[2].into(),
            PoolAttribute::ReleaseThreshold => contents.threshold,
            PoolAttribute::ReservedMemCurrent => contents.reserved,
            PoolAttribute::ReservedMemHigh => contents.reserved_high,
            PoolAttribute::UsedMemCurrent => contents.used,
            PoolAttribute::UsedMemHigh => contents.used_high,
        }
    }

    /// Sets an attribute. High-water marks can only be set to 0: that makes them the current values.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the attribute cannot be set so.
    pub(crate) fn set_attribute(&self, attribute: PoolAttribute, value: u64) -> Result<()> {
        let mut contents = self.contents.lock();
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => contents.reuse[0] = value != 0,
            PoolAttribute::ReuseAllowOpportunistic => contents.reuse[1] = value != 0,
            PoolAttribute::ReuseAllowInternalDependencies => contents.reuse[2] = value != 0,
            PoolAttribute::ReleaseThreshold => contents.threshold = value,
            PoolAttribute::ReservedMemHigh if value == 0 => contents.reserved_high = contents.reserved,
            PoolAttribute::UsedMemHigh if value == 0 => contents.used_high = contents.used,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }
}

/// All pools of the device.
#[derive(Debug)]
pub(crate) struct Pools {
    link: Arc<GpuLink>,
    memory: Arc<Memory>,
    slots: Arc<Slots>,
    /// Others may want it no more.
    lent: Arc<LentMemory>,
    table: Table<PoolState>,
    /// The default pool and the current one of each memory.
    defaults: Mutex<[(MemPool, MemPool); 3]>,
    /// There is a thread that gives free blocks back while others wait for memory, or nobody ever does.
    attended: AtomicBool,
    itself: Weak<Pools>,
}

impl Pools {
    /// The default pools have handles from the start.
    pub(crate) fn new(
        link: &Arc<GpuLink>,
        memory: &Arc<Memory>,
        slots: &Arc<Slots>,
        lent: &Arc<LentMemory>,
    ) -> Arc<Pools> {
        let pools = Arc::new_cyclic(|itself| Pools {
            link: Arc::clone(link),
            memory: Arc::clone(memory),
            slots: Arc::clone(slots),
            lent: Arc::clone(lent),
            table: Table::default(),
            defaults: Mutex::default(),
            attended: AtomicBool::new(link.gpu().deferring().is_none()),
            itself: Weak::clone(itself),
        });
        for memory in [PoolMemory::Device, PoolMemory::Managed, PoolMemory::Pinned] {
            let handle = pools.create(memory, 0, Sharing::None);
            pools.defaults.lock()[memory as usize] = (handle, handle);
        }
        pools
    }

    /// # Errors
    /// `INVALID_VALUE` if it is none.
    pub(crate) fn get(&self, pool: MemPool) -> Result<Arc<PoolState>> {
        self.table.get(pool.0).map_err(|_| CudaError::INVALID_VALUE)
    }

    pub(crate) fn default_pool(&self, memory: PoolMemory) -> MemPool {
        self.defaults.lock()[memory as usize].0
    }

    pub(crate) fn current_pool(&self, memory: PoolMemory) -> MemPool {
        self.defaults.lock()[memory as usize].1
    }

    /// # Errors
    /// `INVALID_VALUE` if it is none, or of other memory.
    pub(crate) fn set_current_pool(&self, memory: PoolMemory, pool: MemPool) -> Result<()> {
        let state = self.get(pool)?;
        if state.memory != memory || state.foreign().is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        self.defaults.lock()[memory as usize].1 = pool;
        Ok(())
    }

    /// A new pool; `max_bytes` 0 is no limit.
    pub(crate) fn create(&self, memory: PoolMemory, max_bytes: u64, sharing: Sharing) -> MemPool {
        let handle = MemPool(handle::fresh(Tag::MemPool));
        self.table.insert(handle.0, Arc::new(PoolState::new(handle, memory, max_bytes, sharing)));
        handle
    }

    /// Destroys a pool: at once, or when its last allocation is freed.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or a default pool.
    pub(crate) fn destroy(&self, pool: MemPool) -> Result<()> {
        let state = self.get(pool)?;
        let mut defaults = self.defaults.lock();
        let (default, current) = &mut defaults[state.memory as usize];
        if *default == pool {
            return Err(CudaError::INVALID_VALUE);
        }
        if *current == pool {
            *current = *default;
        }
        drop(defaults);
        let mut contents = state.contents.lock();
        contents.destroyed = true;
        let over = contents.used == 0;
        drop(contents);
        if over { self.end(&state) } else { Ok(()) }
    }

    /// Allocates; where memory is short, `wait` is to wait for the work that may use free blocks, which then go. Where others have
    /// it, waits for them, until the context is `gone`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for another process's; `OUT_OF_MEMORY`; what `wait` says.
    pub(crate) fn alloc(
        &self,
        pool: &PoolState,
        bytes: u64,
        who: Allocator,
        wait: impl Fn() -> Result<()>,
        gone: &dyn Fn() -> bool,
    ) -> Result<Arc<Allocation>> {
        if pool.foreign().is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        let asked = bytes;
        let bytes = bytes.checked_next_multiple_of(UNIT).ok_or(CudaError::OUT_OF_MEMORY)?;
        let mut place = self.memory.place();
        loop {
            match self.try_alloc(pool, bytes, who, &wait, &mut place) {
                Ok(memory) => {
                    self.memory.watcher().into_iter().for_each(|watcher| {
                        watcher.allocated(memory.base, asked, memory.kind.watched());
                    });
                    return Ok(memory);
                }
                // Others may free into the pool meanwhile.
                Err(CudaError::NOT_READY) => self.wait(&place, gone)?,
                other => return other,
            }
        }
    }

    /// Waits as [`Place::wait`] does, and meanwhile lets go of what was lent.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn wait(&self, place: &Place<'_>, gone: &dyn Fn() -> bool) -> Result<()> {
        place.wait(&|| {
            self.lent.sweep();
            gone()
        })
    }

    fn try_alloc(
        &self,
        pool: &PoolState,
        bytes: u64,
        who: Allocator,
        wait: impl Fn() -> Result<()>,
        place: &mut Place<'_>,
    ) -> Result<Arc<Allocation>> {
        let mut contents = pool.contents.lock();
        let memory = match self.reuse(&mut contents, bytes, who.queue) {
            Some(memory) => memory,
            None => {
                if pool.max_bytes != 0 && contents.reserved.saturating_add(bytes) > pool.max_bytes {
                    return Err(CudaError::OUT_OF_MEMORY);
                }
                let mut wanted = Wanted::new(bytes, kind(pool.memory), who.context);
                wanted.pool = pool.handle;
                let is_short = |made: &Result<_>| matches!(made, Err(CudaError::OUT_OF_MEMORY | CudaError::NOT_READY));
                let mut made = self.memory.try_alloc(wanted, place);
                if is_short(&made) && self.lent.sweep() {
                    made = self.memory.try_alloc(wanted, place);
                }
                if is_short(&made) && !contents.free.is_empty() {
                    wait()?;
                    self.trim(&mut contents, 0);
                    made = self.memory.try_alloc(wanted, place);
                }
                let made = made?;
                contents.reserved += bytes;
                contents.reserved_high = contents.reserved_high.max(contents.reserved);
                made
            }
        };
        contents.used += memory.bytes;
        contents.used_high = contents.used_high.max(contents.used);
        pool.has_free.store(!contents.free.is_empty(), Ordering::Release);
        Ok(memory)
    }

    /// The tightest free block that may be given to `queue` now.
    fn reuse(&self, contents: &mut Contents, bytes: u64, queue: QueueId) -> Option<Arc<Allocation>> {
        let fits = |block: &Block| {
            let usable = match &block.freed {
                None => true,
                Some(freed) => freed.queue == queue || self.slots.reached(&freed.mark),
            };
            usable && block.memory.bytes >= bytes && block.memory.bytes / 2 <= bytes
        };
        let best = contents.free.iter().enumerate().filter(|(_, block)| fits(block));
        let (at, _) = best.min_by_key(|(_, block)| block.memory.bytes)?;
        Some(contents.free.swap_remove(at).memory)
    }

    /// Puts a block back into its pool; `freed` is where, or nothing uses it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is free already.
    pub(crate) fn free(&self, memory: &Arc<Allocation>, freed: Option<Freed>) -> Result<()> {
        let pool = self.get(memory.pool)?;
        let mut contents = pool.contents.lock();
        if contents.free.iter().any(|block| Arc::ptr_eq(&block.memory, memory)) {
            return Err(CudaError::INVALID_VALUE);
        }
        contents.free.push(Block { memory: Arc::clone(memory), freed });
        self.memory.watcher().into_iter().for_each(|watcher| watcher.freed(memory.base));
        contents.used = contents.used.saturating_sub(memory.bytes);
        pool.has_free.store(true, Ordering::Release);
        let over = contents.destroyed && contents.used == 0;
        drop(contents);
        self.begin_to_attend();
        if over { self.end(&pool) } else { Ok(()) }
    }

    /// Starts the thread that gives back what is kept for later while others wait for memory. Without one that stays until a
    /// synchronization.
    pub(crate) fn begin_to_attend(&self) {
        if self.attended.load(Ordering::Relaxed) || self.attended.swap(true, Ordering::Relaxed) {
            return;
        }
        let (pools, link) = (Weak::clone(&self.itself), Arc::clone(&self.link));
        let attend = move || attend(&pools, &link);
        if let Err(error) = std::thread::Builder::new().name("cuda-pools".into()).spawn(attend) {
            tracing::warn!(%error, "no thread that gives freed memory to others");
        }
    }

    /// Whether other programs wait for memory.
    fn is_wanted(&self) -> bool {
        self.link.gpu().deferring().is_some_and(|deferring| deferring.is_wanted())
    }

    /// Gives free blocks back until at most `keep` bytes are reserved. True if some went.
    fn trim(&self, contents: &mut Contents, keep: u64) -> bool {
        let mut some = false;
        let mut at = 0;
        while at < contents.free.len() && contents.reserved > keep {
            let block = &contents.free[at];
            if block.freed.as_ref().is_some_and(|freed| !self.slots.reached(&freed.mark)) {
                at += 1;
                continue;
            }
            let memory = contents.free.swap_remove(at).memory;
            self.memory.release(&memory);
            contents.reserved = contents.reserved.saturating_sub(memory.bytes);
            some = true;
        }
        some
    }

    /// Gives unused memory of a pool back until at most `keep` bytes are reserved.
    pub(crate) fn trim_to(&self, pool: &PoolState, keep: u64) {
        self.trim(&mut pool.contents.lock(), keep);
    }

    /// What every synchronization does: pools shrink to their thresholds.
    pub(crate) fn trim_all(&self) {
        let wanted = self.is_wanted();
        self.memory.graph_sweep();
        if wanted {
            self.memory.graph_trim();
        }
        for pool in self.table.all() {
            if pool.has_free.load(Ordering::Acquire) {
                let mut contents = pool.contents.lock();
                let keep = if wanted { 0 } else { contents.threshold };
                self.trim(&mut contents, keep);
                pool.has_free.store(!contents.free.is_empty(), Ordering::Release);
            }
        }
    }

    /// Gives back all that can be. True if some could.
    pub(crate) fn squeeze(&self) -> bool {
        let mut some = self.lent.sweep();
        for pool in self.table.all() {
            if pool.has_free.load(Ordering::Acquire) {
                some |= self.trim(&mut pool.contents.lock(), 0);
            }
        }
        // And what graphs and chunks keep.
        some |= self.memory.graph_trim();
        some | self.memory.trim()
    }

    /// Blocks freed in a context that ends are free for all.
    pub(crate) fn forget_context(&self, context: ContextId) {
        self.memory.graph_forget_context(context);
        for pool in self.table.all() {
            for block in &mut pool.contents.lock().free {
                if block.freed.as_ref().is_some_and(|freed| freed.mark.context == context) {
                    block.freed = None;
                }
            }
        }
    }

    fn end(&self, pool: &PoolState) -> Result<()> {
        let mut contents = pool.contents.lock();
        for block in &mut contents.free {
            if let Some(Freed { mark, .. }) = block.freed.take() {
                // A context that failed uses nothing any more.
                let _ = self.slots.wait(&mark, None);
            }
        }
        self.trim(&mut contents, 0);
        drop(contents);
        self.table.remove(pool.handle.0).map(|_| ())
    }
}

/// What the thread does, as long as there are pools.
fn attend(pools: &Weak<Pools>, link: &GpuLink) {
    while let Some(deferring) = link.gpu().deferring()
        && link.usable().is_ok()
        && let Some(pools) = pools.upgrade()
    {
        let seen = deferring.news();
        let wanted = deferring.is_wanted();
        if wanted {
            pools.squeeze();
        }
        drop(pools);
        if link.outcome(deferring.wait_for_news(seen, if wanted { BETWEEN } else { LONGEST })).is_err() {
            return;
        }
    }
}
