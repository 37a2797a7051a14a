//! What processes know of an event that they share: two words that all of their GPUs and hosts see.
//!
//! The first counts how often the event was recorded, by whichever process; the GPU that comes to a record stores its number in the
//! second. The event is reached when both agree.

use std::sync::Arc;

use gpu::{Command, Compare, DevAddr};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, Wanted};
use crate::memory::between_processes::Exported;
use crate::memory::heap::Memory;

/// Both words.
const BYTES: u64 = 8;

#[derive(Debug)]
pub(crate) struct EventWords {
    memory: Arc<Memory>,
    allocation: Arc<Allocation>,
}

impl EventWords {
    /// Of a new event.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub(crate) fn new(core: &ContextCore) -> Result<EventWords> {
        let allocation = core.memory().alloc_host(Wanted::new(BYTES, Kind::Pinned, core.id))?;
        let words = EventWords { memory: Arc::clone(core.memory()), allocation };
        words.memory.write_on_host(words.allocation.base, &[0; BYTES as usize])?;
        Ok(words)
    }

    /// Of another process's event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`, `OUT_OF_MEMORY`.
    pub(crate) fn import(core: &ContextCore, exported: &Exported) -> Result<EventWords> {
        if exported.bytes != BYTES || !exported.offset.is_multiple_of(BYTES) {
            return Err(CudaError::INVALID_VALUE);
        }
        let allocation = core.memory().import(exported, core.id)?;
        Ok(EventWords { memory: Arc::clone(core.memory()), allocation })
    }

    /// Where other processes find it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`.
    pub(crate) fn export(&self, driver: u32) -> Result<Exported> {
        self.memory.export(driver, &self.allocation)
    }

    /// How often it was recorded, and which record was reached last.
    fn read(&self) -> (u32, u32) {
        let mut bytes = [0; BYTES as usize];
        // Without its memory it tells of nothing.
        self.memory.read_on_host(self.allocation.base, &mut bytes);
        let [a, b, c, d, e, f, g, h] = bytes;
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
    }

    fn reached_at(&self) -> DevAddr {
        DevAddr(self.allocation.base + BYTES / 2)
    }

    /// Whether the last record was reached.
    pub(crate) fn reached(&self) -> bool {
        let (recorded, reached) = self.read();
        Compare::CyclicGeq.holds(reached.into(), recorded.into(), false)
    }

    /// Counts a record; gives what the GPU has to do for it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if there is no memory any more.
    pub(crate) fn record(&self) -> Result<Command<'static>> {
        let before =
            self.memory.update_on_host(self.allocation.base, &mut |count| u64::from((count as u32).wrapping_add(1)));
        let value = (before.ok_or(CudaError::INVALID_HANDLE)? as u32).wrapping_add(1);
        Ok(Command::WriteValue { at: self.reached_at(), value: value.into(), wide: false })
    }

    /// What a queue waits with for the last record; `None` if that was reached.
    pub(crate) fn wait(&self) -> Option<Command<'static>> {
        let (recorded, _) = self.read();
        let wait = Command::WaitValue {
            at: self.reached_at(),
            value: recorded.into(),
            wide: false,
            compare: Compare::CyclicGeq,
        };
        (!self.reached()).then_some(wait)
    }
}

impl Drop for EventWords {
    fn drop(&mut self) {
        let number = self.allocation.number;
        let found = self.memory.forget(self.allocation.base, |found| found.number == number);
        found.iter().for_each(|found| self.memory.give_back(found));
    }
}
