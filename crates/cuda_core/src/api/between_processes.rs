//! Memory and events of other processes.

use std::sync::Arc;

use gpu::DevAddr;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Event, Tag};
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::between_processes::{Bytes, Exported, Shared};
use crate::work::event::EventState;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which has to be said.
const LAZY_PEER_ACCESS: u32 = 1;

impl Driver {
    /// What another process of the same user opens an allocation with, as long as it is there.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation of `mem_alloc` begins there; `NOT_SUPPORTED` if others do not see this GPU's memory.
    pub fn ipc_get_mem_handle(&self, address: DevAddr) -> Result<[u8; 64]> {
        self.current()?;
        let found = self.memory.find(address.0).ok_or(CudaError::INVALID_VALUE)?;
        if found.kind != Kind::Device || found.base != address.0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let exported = self.memory.of(found.gpu).export(self.number, &found)?;
        Ok(exported.encode(Shared::Memory))
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
        let imported = |found: &Allocation| found.kind == Kind::Imported;
        let found = self.memory.find(address.0).filter(|found| found.base == address.0 && imported(found));
        let found = found.ok_or(CudaError::INVALID_VALUE)?;
        if !self.opened.lock().close(address.0, found.number)? {
            return Ok(());
        }
        let quiet = self.quiesce(&current, found.context);
        self.memory.release(&found);
        quiet
    }

    /// What another process of the same user opens an event with, as long as it is there.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also if it was not made for several processes; `NOT_SUPPORTED`.
    pub fn ipc_get_event_handle(&self, event: Event) -> Result<[u8; 64]> {
        let event = self.event(event)?;
        let words = event.words().ok_or(CudaError::INVALID_HANDLE)?;
        Ok(words.export(self.number)?.encode(Shared::Event))
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
        let exported = Exported::decode(handle, kind)?;
        let own = exported.file.process == std::process::id() && exported.driver == self.number;
        if own { Err(CudaError::INVALID_CONTEXT) } else { Ok(exported) }
    }
}
