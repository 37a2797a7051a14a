//! What processes know of an event that they share: words that all of their GPUs and hosts see.
//!
//! ```text
//!   last record │ place 0: given to, reached, recorder, of which record │ place 1: … │ …
//! ```
//! A record has a place, which its number tells, and the GPU that comes to it stores the number there. It gets one where nothing is
//! under way, in whichever process, or that of the record before in its own stream. So the numbers of a place are stored as they grow:
//! a record that a slow stream comes to late hides none that was made after it. The event is reached when its last record is.
//!
//! A process that is killed leaves records that no GPU comes to. Who waits sees by the place whose they are, and gives them up
//! ([`event_watch`](crate::work::event_watch)).

use std::sync::Arc;

use gpu::{Command, Compare, DevAddr};
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::memory::allocation::{Allocation, Kind, Wanted};
use crate::memory::handles::Exported;
use crate::memory::heap::Memory;
use crate::work::queues::Point;
use crate::work::recorder::Recorder;

/// Records that may be under way at a time, those in one stream counted once; what is beyond waits. A power of two.
const PLACES: u32 = 32;
/// Of a word.
const WORD: u64 = 4;
/// Of the last record, and of a place: whole pairs of words, so that a recorder and its record are written at once.
const LAST: u64 = 2 * WORD;
const PLACE: u64 = 4 * WORD;
/// All words.
const BYTES: u64 = LAST + PLACE * PLACES as u64;

#[derive(Debug)]
pub(crate) struct EventWords {
    memory: Arc<Memory>,
    allocation: Arc<Allocation>,
    /// This process; `None` if it cannot be told from others.
    own: Option<Recorder>,
    /// What waits here, as far as it is known to.
    waits: Mutex<Vec<Wait>>,
}

/// Something here waits for a record.
#[derive(Debug)]
struct Wait {
    record: Awaited,
    /// The point of the stream that is not reached before; `None` for the host.
    until: Option<Point>,
    given_up: bool,
}

impl Wait {
    /// Whether it is that of the same record by the same stream.
    fn is_of(&self, record: &Awaited, until: Option<&Point>) -> bool {
        let same = |one: &Point, other: &Point| Arc::ptr_eq(&one.core, &other.core) && one.mark.slot == other.mark.slot;
        let by = match (&self.until, until) {
            (Some(one), Some(other)) => same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        by && self.record == *record
    }
}

/// A record that was not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaited {
    number: u32,
    /// Who has made it, if that is known.
    by: Option<Recorder>,
}

/// A record: its number, and what the GPU has to do for it.
#[derive(Debug)]
pub(crate) struct NewRecord {
    pub(crate) number: u32,
    pub(crate) commands: Vec<Command<'static>>,
    /// What it waits for itself.
    pub(crate) behind: Option<Awaited>,
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
        let words = EventWords::at(core, allocation);
        words.memory.write_on_host(words.allocation.base, &[0; BYTES as usize])?;
        Ok(words)
    }

    /// Of another process's event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`, `OUT_OF_MEMORY`.
    pub(crate) fn import(core: &ContextCore, exported: &Exported) -> Result<EventWords> {
        if exported.bytes != BYTES || !exported.offset.is_multiple_of(2 * WORD) {
            return Err(CudaError::INVALID_VALUE);
        }
        let allocation = core.memory().import(exported, core.id)?;
        Ok(EventWords::at(core, allocation))
    }

    fn at(core: &ContextCore, allocation: Arc<Allocation>) -> EventWords {
        let (memory, own) = (Arc::clone(core.memory()), Recorder::own());
        EventWords { memory, allocation, own, waits: Mutex::default() }
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
        self.allocation.base + LAST + PLACE * u64::from(place)
    }

    fn reached_at(&self, place: u32) -> u64 {
        self.given_at(place) + WORD
    }

    fn recorder_at(&self, place: u32) -> u64 {
        self.given_at(place) + 2 * WORD
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
        let before = self.memory.update_on_host(at, WORD as u32, &mut |word| f(word as u32).into());
        before.map(|word| word as u32).ok_or(CudaError::INVALID_HANDLE)
    }

    /// What a queue waits with for the last record, and that record; `None` if that was reached.
    pub(crate) fn wait(&self) -> Option<(Command<'static>, Awaited)> {
        self.wait_for(self.word(self.last_at()))
    }

    fn wait_for(&self, number: u32) -> Option<(Command<'static>, Awaited)> {
        let place = place(number);
        let at = self.reached_at(place);
        if is_reached(self.word(at), number) {
            return None;
        }
        // Both at once, as they were written.
        let both = self.memory.update_on_host(self.recorder_at(place), 2 * WORD as u32, &mut |both| both);
        let by = both.and_then(|both| Recorder::from_word(both as u32).filter(|_| (both >> 32) as u32 == number));
        let (value, compare) = (number.into(), Compare::CyclicGeq);
        Some((Command::WaitValue { at: DevAddr(at), value, wide: false, compare }, Awaited { number, by }))
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
        // All places are taken, or another process was quicker.
        let behind = if before == Some(given) { None } else { self.wait_for(given) };
        let own = self.own.map_or(0, Recorder::word);
        self.memory.update_on_host(self.recorder_at(place), 2 * WORD as u32, &mut |_| {
            u64::from(number) << 32 | u64::from(own)
        });
        self.update(self.last_at(), |_| number)?;
        let (behind, awaited) = behind.unzip();
        let reached = Command::WriteValue { at: DevAddr(self.reached_at(place)), value: number.into(), wide: false };
        Ok(NewRecord { number, commands: behind.into_iter().chain([reached]).collect(), behind: awaited })
    }

    /// Something here waits for a record: a stream up to a point, or the host. True if nothing was waited for before.
    pub(crate) fn begin_to_await(&self, record: Awaited, until: Option<Point>) -> bool {
        // The host sees to its own records itself.
        if until.is_none() && record.by.is_some() && record.by == self.own {
            return false;
        }
        let mut waits = self.waits.lock();
        let first = waits.is_empty();
        match waits.iter_mut().find(|wait| wait.is_of(&record, until.as_ref())) {
            Some(wait) => wait.until = until,
            None => waits.push(Wait { record, until, given_up: false }),
        }
        first
    }

    /// Gives up what is waited for of processes that have ended; false if nothing waits any more.
    pub(crate) fn give_up_gone(&self) -> bool {
        let mut waits = self.waits.lock();
        waits.retain_mut(|wait| {
            let Awaited { number, by } = wait.record;
            let place = place(number);
            let reached = is_reached(self.word(self.reached_at(place)), number);
            match &wait.until {
                // These words may go with the process that has made the event, before the GPU has seen them.
                Some(Point { core, mark }) if core.dead() || core.slots().reached(mark) => return false,
                None if reached => return false,
                _ => {}
            }
            let lost = || !is_reached(self.word(self.given_at(place)), number);
            // This process's own records its GPU comes to, or their context gives them up.
            if !reached && by != self.own && (by.is_some_and(Recorder::is_gone) || lost()) {
                if !std::mem::replace(&mut wait.given_up, true) {
                    tracing::warn!("an event was recorded by a process that has ended: nobody waits for that any more");
                }
                self.give_up(number);
            }
            true
        });
        !waits.is_empty()
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
