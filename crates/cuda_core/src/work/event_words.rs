//! What processes know of an event that they share: words that all of their GPUs and hosts see.
//!
//! ```text
//!   last record │ place 0: given to, reached │ place 1: given to, reached │ …
//! ```
//! A record has a place, which its number tells, and the GPU that comes to it stores the number there. It gets one where nothing is
//! under way, in whichever process, or that of the record before in its own stream. So the numbers of a place are stored as they grow:
//! a record that a slow stream comes to late hides none that was made after it. The event is reached when its last record is.

use std::sync::Arc;

use gpu::{Command, Compare, DevAddr};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, Wanted};
use crate::memory::handles::Exported;
use crate::memory::heap::Memory;

/// Records that may be under way at a time, those in one stream counted once; what is beyond waits. A power of two.
const PLACES: u32 = 32;
/// Of a word.
const WORD: u64 = 4;
/// All words.
const BYTES: u64 = WORD * (1 + 2 * PLACES as u64);

#[derive(Debug)]
pub(crate) struct EventWords {
    memory: Arc<Memory>,
    allocation: Arc<Allocation>,
}

/// A record: its number, and what the GPU has to do for it.
#[derive(Debug)]
pub(crate) struct NewRecord {
    pub(crate) number: u32,
    pub(crate) commands: Vec<Command<'static>>,
}

fn place(number: u32) -> u32 {
    number % PLACES
}

fn is_reached(reached: u32, number: u32) -> bool {
    Compare::CyclicGeq.holds(reached.into(), number.into(), false)
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
        if exported.bytes != BYTES || !exported.offset.is_multiple_of(WORD) {
            return Err(CudaError::INVALID_VALUE);
        }
        let allocation = core.memory().import(exported, core.id)?;
        Ok(EventWords { memory: Arc::clone(core.memory()), allocation })
    }

    /// Where other processes find it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`.
    pub(crate) fn export(&self) -> Result<Exported> {
        self.memory.export(&self.allocation)
    }

    fn last_at(&self) -> u64 {
        self.allocation.base
    }

    fn given_at(&self, place: u32) -> u64 {
        self.allocation.base + WORD * u64::from(1 + 2 * place)
    }

    fn reached_at(&self, place: u32) -> u64 {
        self.given_at(place) + WORD
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; WORD as usize];
        // Without its memory it tells of nothing.
        self.memory.read_on_host(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Changes a word at once; gives what was there.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if there is no memory any more.
    fn update(&self, at: u64, mut f: impl FnMut(u32) -> u32) -> Result<u32> {
        let before = self.memory.update_on_host(at, &mut |word| f(word as u32).into());
        before.map(|word| word as u32).ok_or(CudaError::INVALID_HANDLE)
    }

    /// Whether the last record was reached.
    pub(crate) fn reached(&self) -> bool {
        self.wait().is_none()
    }

    /// What a queue waits with for the last record; `None` if that was reached.
    pub(crate) fn wait(&self) -> Option<Command<'static>> {
        let last = self.word(self.last_at());
        self.wait_at(place(last), last)
    }

    fn wait_at(&self, place: u32, number: u32) -> Option<Command<'static>> {
        let at = self.reached_at(place);
        let (value, compare) = (number.into(), Compare::CyclicGeq);
        let wait = Command::WaitValue { at: DevAddr(at), value, wide: false, compare };
        (!is_reached(self.word(at), number)).then_some(wait)
    }

    /// Makes a record, the last one from now on. `before` is the stream's own record before, if that may be under way.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if there is no memory any more.
    pub(crate) fn record(&self, before: Option<u32>) -> Result<NewRecord> {
        let own = before.filter(|number| self.word(self.given_at(place(*number))) == *number).map(place);
        let is_free = |place: &u32| self.word(self.given_at(*place)) == self.word(self.reached_at(*place));
        let place = own.or_else(|| (0..PLACES).find(is_free));
        let place = place.unwrap_or_else(|| self::place(self.word(self.last_at())));
        let after = |given: u32| (given & !(PLACES - 1) | place).wrapping_add(PLACES);
        let given = self.update(self.given_at(place), after)?;
        let number = after(given);
        self.update(self.last_at(), |_| number)?;
        // All places are taken, or another process was quicker.
        let behind = if before == Some(given) { None } else { self.wait_at(place, given) };
        let reached = Command::WriteValue { at: DevAddr(self.reached_at(place)), value: number.into(), wide: false };
        Ok(NewRecord { number, commands: behind.into_iter().chain([reached]).collect() })
    }

    /// No GPU comes to a record any more: nobody is to wait for it.
    pub(crate) fn give_up(&self, number: u32) {
        // Without its memory nobody does.
        let _ = self.update(
            self.reached_at(place(number)),
            |reached| {
                if is_reached(reached, number) { reached } else { number }
            },
        );
    }
}

impl Drop for EventWords {
    fn drop(&mut self) {
        self.memory.release(&self.allocation);
    }
}
