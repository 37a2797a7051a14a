//! Memory and events of other processes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpu::DevAddr;

use crate::context::state::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Event, MemPool, Physical, Tag};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::descriptors::{ForeignPool, POSIX};
use crate::memory::handles::{Bytes, Exported, Refused, Shared};
use crate::memory::pool::Sharing;
use crate::values::PoolMemory;
use crate::work::event::EventState;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which has to be said.
const LAZY_PEER_ACCESS: u32 = 1;

impl Driver {
    /// What another process of the same user opens the allocation with that has an address, as long as it is there.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation of `mem_alloc` is there; `NOT_SUPPORTED` if others do not see this GPU's memory,
    /// `OUT_OF_MEMORY` if too much of it is shown already.
    pub fn ipc_get_mem_handle(&self, address: DevAddr) -> Result<[u8; 64]> {
        self.current()?;
        let found = self.memory.find(address.0).ok_or(CudaError::INVALID_VALUE)?;
        if found.kind != Kind::Device {
            return Err(CudaError::INVALID_VALUE);
        }
        self.key.sign(&self.memory.of(found.gpu).export(&found)?, Shared::Memory)
    }

    /// Memory of another process, for the current context; opened again it is at the same address.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other flags than lazy peer access, and for what is no handle; `INVALID_CONTEXT` in the process that has it;
    /// `INVALID_HANDLE` if it is not there any more, or another user's; `OUT_OF_MEMORY`, `NOT_SUPPORTED`.
    pub fn ipc_open_mem_handle(&self, handle: &[u8; 64], flags: u32) -> Result<DevAddr> {
        let context = self.current()?;
        if flags != LAZY_PEER_ACCESS {
            return Err(CudaError::INVALID_VALUE);
        }
        let exported = self.of_another_process(handle, Shared::Memory)?;
        let mut opened = self.opened.lock();
        if let Some(address) = opened.again(context.core.id, &exported) {
            return Ok(address);
        }
        let made = context.core.memory().import(&exported, context.core.id)?;
        self.keep_in(&context, &made)?;
        opened.insert(context.core.id, exported, &made);
        Ok(DevAddr(made.base))
    }

    /// Closes memory of another process, after the work that may use it, once it was closed as often as it was opened.
    ///
    /// # Errors
    /// `INVALID_VALUE` if none begins there; the context's error.
    pub fn ipc_close_mem_handle(&self, address: DevAddr) -> Result<()> {
        let current = self.current()?;
        let imported = |found: &Allocation| found.kind == Kind::Imported && found.pool.is_null();
        let found = self.memory.find(address.0).filter(|found| found.base == address.0 && imported(found));
        self.close_imported(&current, &*found.ok_or(CudaError::INVALID_VALUE)?)
    }

    /// Closes memory of another process once.
    pub(crate) fn close_imported(&self, current: &ContextState, found: &Allocation) -> Result<()> {
        if !self.opened.lock().close(found.base, found.number)? {
            return Ok(());
        }
        let quiet = self.quiesce(current, found.context);
        self.memory.release(found);
        quiet
    }

    /// A descriptor of physical memory that was created for it (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`), for other processes of the
    /// user. The memory stays as long as one is open anywhere, or it is imported.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or not created for it; `NOT_SUPPORTED`, `OPERATING_SYSTEM`.
    pub fn mem_export(&self, handle: Physical, handle_type: u32) -> Result<OwnedFd> {
        self.ready()?;
        self.virtual_memory.export(&self.key, handle, handle_type)
    }

    /// Physical memory by a descriptor; another process's is seen by the current context's device, or the first one.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the descriptor names none, or none any more; `NOT_PERMITTED` if it is another user's; `NOT_SUPPORTED` for other
    /// types, `OUT_OF_MEMORY`.
    pub fn mem_import(&self, fd: OwnedFd, handle_type: u32) -> Result<Physical> {
        self.ready()?;
        if handle_type != POSIX {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let here = self.current_any().map_or(0, |context| context.core.gpu.ordinal);
        self.virtual_memory.import(&self.key, here, fd)
    }

    /// A descriptor of a pool that was created for it, for other processes of the user.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is none, or not created for it; `OPERATING_SYSTEM`.
    pub fn mem_pool_export(&self, pool: MemPool, handle_type: u32) -> Result<OwnedFd> {
        let (_, pool) = self.pool(pool)?;
        if handle_type == POSIX { pool.lend(&self.key) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// Another process's pool, from which its allocations are imported; nothing is allocated in it here.
    ///
    /// # Errors
    /// As `mem_import`; `INVALID_VALUE` in the process that has it.
    pub fn mem_pool_import(&self, fd: OwnedFd, handle_type: u32) -> Result<MemPool> {
        self.ready()?;
        if handle_type != POSIX {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let here = self.current_any().map_or(0, |context| context.core.gpu.ordinal);
        let foreign = ForeignPool::import(&self.key, fd)?;
        Ok(self.devices.all()[here as usize].pools.create(PoolMemory::Device, 0, Sharing::Foreign(foreign)))
    }

    /// What another process that has the pool imports an allocation with.
    ///
    /// # Errors
    /// `INVALID_VALUE` if none begins there that is in a pool for several processes; `NOT_SUPPORTED`.
    pub fn mem_pool_export_pointer(&self, address: DevAddr) -> Result<[u8; 64]> {
        self.ready()?;
        let found = self.memory.find(address.0).filter(|found| found.base == address.0 && found.kind == Kind::Pool);
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        let pool = self.pool(found.pool)?.1;
        if !pool.is_shared() || pool.has_freed(&found) {
            return Err(CudaError::INVALID_VALUE);
        }
        self.key.sign(&self.memory.of(found.gpu).export(&found)?, Shared::PoolMemory)
    }

    /// An allocation of another process in a pool of that one, for the current context; imported again it is at the same address, and
    /// is freed once for each time.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is in another pool, or not there any more; `OUT_OF_MEMORY`; the context's error.
    pub fn mem_pool_import_pointer(&self, pool: MemPool, data: &[u8; 64]) -> Result<DevAddr> {
        let context = self.current()?;
        let (_, state) = self.pool(pool)?;
        let verified = self.key.verify(data, Shared::PoolMemory);
        let (exported, exporter) = verified.map_err(Refused::of_descriptor)?;
        if !state.foreign().is_some_and(|foreign| foreign.has(&exported, &exporter)) {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut opened = self.opened.lock();
        if let Some(address) = opened.again(context.core.id, &exported) {
            return Ok(address);
        }
        let file = exported.open().map_err(Refused::of_descriptor)?;
        let made = context.core.memory().import_from(file, &exported, context.core.id, pool)?;
        self.keep_in(&context, &made)?;
        opened.insert(context.core.id, exported, &made);
        Ok(DevAddr(made.base))
    }

    /// What another process of the same user opens an event with, as long as it is there.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also if it was not made for several processes; `NOT_SUPPORTED`.
    pub fn ipc_get_event_handle(&self, event: Event) -> Result<[u8; 64]> {
        let event = self.event(event)?;
        let words = event.words().ok_or(CudaError::INVALID_HANDLE)?;
        self.key.sign(&words.export()?, Shared::Event)
    }

    /// An event of another process: who records it here is waited for there, and the other way round.
    ///
    /// # Errors
    /// As `ipc_open_mem_handle`.
    pub fn ipc_open_event_handle(&self, handle: &[u8; 64]) -> Result<Event> {
        let context = self.current()?;
        let exported = self.of_another_process(handle, Shared::Event)?;
        let made = EventState::of_another_process(&context.core, &exported)?;
        let handle = Event(handle::fresh(Tag::Event));
        self.events.insert(handle.0, Arc::new(made));
        Ok(handle)
    }

    /// Whether another process may be shown an allocation.
    pub(crate) fn can_be_shared(&self, found: &Allocation) -> bool {
        self.memory.of(found.gpu).is_shown(found)
    }

    fn of_another_process(&self, handle: &Bytes, kind: Shared) -> Result<Exported> {
        let (exported, exporter) = self.key.verify(handle, kind).map_err(Refused::of_handle)?;
        if self.key.is_of(&exporter) { Err(CudaError::INVALID_CONTEXT) } else { Ok(exported) }
    }
}
