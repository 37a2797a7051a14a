//! What processes know of an event that they share: words that all of their GPUs and hosts see.
//!
//! ```text
//!   last record │ place 0: given to (record, recorder), reached │ place 1: … │ …
//! ```
//! A record has a place, which its number tells, and the GPU that comes to it stores the number there. It gets one where nothing is
//! under way, in whichever process, or that of the record before in its own stream: record and recorder are written at once.
//! So the numbers of a place are stored as they grow: a record that a slow stream comes to late hides none that was made after it. The
//! event is reached when its last record is.
//!
//! A process that is killed, and a context that failed, leave records that no GPU comes to. Who waits sees by the place whose they are,
//! and gives them up ([`event_watch`](crate::work::event_watch)). That may be after the event was destroyed. So words that another process may
//! know of become those of later events, and nothing else ever lies there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpu::{Command, Compare, DevAddr};
use hostmem::Memfd;
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::handle::MemPool;
use crate::memory::allocation::{Allocation, Kind, NOBODY, Wanted};
use crate::memory::handles::{Exported, Refused};
use crate::work::queues::Point;
use crate::work::recorder::{Recorder, RecorderId, is_gone};

/// Records that may be under way at a time, those in one stream counted once; what is beyond waits for another. A power of two.
const PLACES: u32 = 256;
/// Of a word.
const WORD: u64 = 4;
/// Of the last record, and of a place: whole pairs of words.
const LAST: u64 = 2 * WORD;
const PLACE: u64 = 4 * WORD;
/// All words.
const BYTES: u64 = LAST + PLACE * PLACES as u64;

/// Where an event's words are.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    allocation: Arc<Allocation>,
    /// What shows the words; where no file does there are no others.
    file: Option<Arc<Memfd>>,
}

/// They are there until the event is destroyed and no stream uses them, whatever becomes of the context.
#[derive(Debug)]
pub(crate) struct EventWords {
    core: Arc<ContextCore>,
    page: Page,
    /// Other processes may know of them.
    told: AtomicBool,
    /// Contexts that have recorded it here.
    recorders: Mutex<Vec<Arc<Recorder>>>,
    /// Streams that wait here for records whose recorder is known.
    waits: Mutex<Vec<Wait>>,
}

/// To which record a place was given last, and who has made it, if that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Given {
    number: u32,
    by: Option<RecorderId>,
}

impl Given {
    fn from_words(both: u64) -> Given {
        Given { number: both as u32, by: RecorderId::new((both >> 32) as u32) }
    }

    fn words(self) -> u64 {
        u64::from(self.number) | u64::from(self.by.map_or(0, RecorderId::get)) << 32
    }
}

/// A record that was not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaited {
    number: u32,
    /// Who has made it, if that is known.
    by: Option<RecorderId>,
}

/// A stream here waits for a record.
#[derive(Debug)]
struct Wait {
    number: u32,
    by: RecorderId,
    /// The point of the stream that is not reached before.
    until: Point,
    /// The record was reached, though the stream may not have seen it.
    reached: bool,
}

impl Wait {
    /// Whether it is that of the same stream for a record in the same place: of these the last is the one to wait for.
    fn is_of(&self, number: u32, until: &Point) -> bool {
        let same = Arc::ptr_eq(&self.until.core, &until.core) && self.until.mark.slot == until.mark.slot;
        same && place(self.number) == place(number)
    }
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
    pub(crate) fn new(core: &Arc<ContextCore>) -> Result<EventWords> {
        while let Some(page) = core.gpu.event_watch.spare_page() {
            let words = EventWords::of(core, page, true);
            if words.begin_anew() {
                return Ok(words);
            }
            // Its places are all taken, perhaps for ever.
            words.told.store(false, Ordering::Relaxed);
        }
        let allocation = core.memory().alloc_host(Wanted::new(BYTES, Kind::InternalHost, NOBODY))?;
        let file = core.memory().file_of(&allocation);
        let words = EventWords::of(core, Page { allocation, file }, false);
        core.memory().write_on_host(words.page.allocation.base, &[0; BYTES as usize])?;
        Ok(words)
    }

    fn of(core: &Arc<ContextCore>, page: Page, told: bool) -> EventWords {
        let (recorders, waits) = (Mutex::default(), Mutex::default());
        EventWords { core: Arc::clone(core), page, told: told.into(), recorders, waits }
    }

    /// The words of a destroyed event become those of another: it was not recorded, so its last record is one that was reached. Numbers
    /// go on, so that whatever is still written for the event before is older than what is there. False if no place is free.
    fn begin_anew(&self) -> bool {
        let idle = (0..PLACES).find_map(|at| {
            let given = self.word(self.given_at(at));
            (place(given) == at && given == self.word(self.reached_at(at))).then_some(given)
        });
        idle.is_some_and(|number| self.update(self.last_at(), |_| number).is_ok())
    }

    /// Of another process's event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_VALUE`, `OUT_OF_MEMORY`.
    pub(crate) fn import(core: &Arc<ContextCore>, exported: &Exported) -> Result<EventWords> {
        if exported.bytes != BYTES || !exported.offset.is_multiple_of(2 * WORD) {
            return Err(CudaError::INVALID_VALUE);
        }
        let file = exported.open().map_err(Refused::of_handle)?;
        let allocation = core.memory().import_from(Arc::clone(&file), exported, NOBODY, MemPool::NULL)?;
        Ok(EventWords::of(core, Page { allocation, file: Some(file) }, false))
    }

    /// Where other processes find it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`.
    pub(crate) fn export(&self) -> Result<Exported> {
        let exported = self.core.memory().export(&self.page.allocation)?;
        self.told.store(true, Ordering::Relaxed);
        Ok(exported)
    }

    /// A context as a recorder.
    fn recorder(&self, core: &ContextCore) -> Option<RecorderId> {
        let file = self.page.file.as_ref()?;
        let mut recorders = self.recorders.lock();
        if let Some(known) = recorders.iter().find(|known| known.context == core.id) {
            return Some(known.id);
        }
        let made = core.gpu.event_watch.recorder(file, core)?;
        let id = made.id;
        recorders.push(made);
        Some(id)
    }

    /// Whether no GPU comes to the records of a recorder any more.
    fn is_gone(&self, recorder: RecorderId) -> bool {
        self.page.file.as_ref().is_some_and(|file| is_gone(file, recorder))
    }

    fn last_at(&self) -> u64 {
        self.page.allocation.base
    }

    fn given_at(&self, place: u32) -> u64 {
        self.page.allocation.base + LAST + PLACE * u64::from(place)
    }

    fn reached_at(&self, place: u32) -> u64 {
        self.given_at(place) + 2 * WORD
    }

    fn word(&self, at: u64) -> u32 {
        let mut bytes = [0; WORD as usize];
        // Without its memory it tells of nothing.
        self.core.memory().read_on_host(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Changes a word at once; gives what was there.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if there is no memory any more.
    fn update(&self, at: u64, mut f: impl FnMut(u32) -> u32) -> Result<u32> {
        let before = self.core.memory().update_on_host(at, WORD as u32, &mut |word| f(word as u32).into());
        before.map(|word| word as u32).ok_or(CudaError::INVALID_HANDLE)
    }

    /// To which record a place was given last.
    fn given(&self, place: u32) -> Given {
        // Both words at once.
        self.give(place, |_| false, |number| Given { number, by: None }).unwrap_or(Given { number: 0, by: None })
    }

    /// Gives a place to another record if it `may` be taken from the one that has it; gives what was there.
    ///
    /// # Errors
    /// As of `update`.
    fn give(&self, place: u32, may: impl Fn(u32) -> bool, to: impl Fn(u32) -> Given) -> Result<Given> {
        let before = self.core.memory().update_on_host(self.given_at(place), 2 * WORD as u32, &mut |both| {
            let Given { number, .. } = Given::from_words(both);
            if may(number) { to(number).words() } else { both }
        });
        before.map(Given::from_words).ok_or(CudaError::INVALID_HANDLE)
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
        // A later record of the place, before this one is reached, is the same recorder's, or tells of nobody; or this one's is gone.
        let given = self.given(place);
        let by = given.by.filter(|_| is_reached(given.number, number));
        let (value, compare) = (number.into(), Compare::CyclicGeq);
        Some((Command::WaitValue { at: DevAddr(at), value, wide: false, compare }, Awaited { number, by }))
    }

    /// Makes a record of a context's, the last one from now on. `before` is the stream's own record before, if that may be under way.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if there is no memory any more.
    pub(crate) fn record(&self, core: &ContextCore, before: Option<u32>) -> Result<NewRecord> {
        let own = self.recorder(core);
        let after = |given: u32, place: u32| (given & !(PLACES - 1) | place).wrapping_add(PLACES);
        let free = (0..PLACES).filter_map(|place| {
            let given = self.word(self.given_at(place));
            (given == self.word(self.reached_at(place))).then_some((place, given))
        });
        // If all are taken, those of records to which no GPU comes: what may still be written there is old by then.
        let mut known = HashMap::new();
        let left = (0..PLACES).filter_map(|place| {
            let Given { number, by } = self.given(place);
            let by = by?;
            known.entry(by).or_insert_with(|| self.is_gone(by)).then_some((place, number))
        });
        let taken = before.map(|number| (place(number), number)).into_iter().chain(free).chain(left);
        // Else behind one of this recorder's own: who waits for either is let go when no GPU comes to any of these.
        let own_ones = (0..PLACES).filter_map(|place| {
            let Given { number, by } = self.given(place);
            (by.is_some() && by == own).then_some((place, number))
        });
        let candidates = taken.map(|at| (at, false)).chain(own_ones.map(|at| (at, true)));
        let mut found = None;
        for ((place, last), waits) in candidates {
            let next = |given| Given { number: after(given, place), by: own };
            // Another process may be quicker.
            if self.give(place, |given| given == last, next)?.number == last {
                let behind = Given { number: last, by: own };
                found = Some((after(last, place), waits.then_some(behind)));
                break;
            }
        }
        let (number, behind) = match found {
            Some(found) => found,
            // All are others': behind the last record, whosever that is. This is not given up before that, so nobody is told whose it is.
            None => {
                let place = place(self.word(self.last_at()));
                let behind = self.give(place, |_| true, |given| Given { number: after(given, place), by: None })?;
                (after(behind.number, place), Some(behind))
            }
        };
        let behind = behind
            .and_then(|Given { number, by }| self.wait_for(number).map(|(wait, _)| (wait, Awaited { number, by })));
        self.update(self.last_at(), |_| number)?;
        let (behind, awaited) = behind.unzip();
        let reached =
            Command::WriteValue { at: DevAddr(self.reached_at(place(number))), value: number.into(), wide: false };
        Ok(NewRecord { number, commands: behind.into_iter().chain([reached]).collect(), behind: awaited })
    }

    /// A stream here waits for a record, up to a point. True if nothing was waited for before.
    pub(crate) fn begin_to_await(&self, record: Awaited, until: Point) -> bool {
        let Awaited { number, by: Some(by) } = record else { return false };
        let mut waits = self.waits.lock();
        let first = waits.is_empty();
        match waits.iter_mut().find(|wait| wait.is_of(number, &until)) {
            Some(wait) => {
                let reached = wait.reached && wait.number == number;
                *wait = Wait { number, by, until, reached };
            }
            None => waits.push(Wait { number, by, until, reached: false }),
        }
        first
    }

    /// Gives up what streams wait for and no GPU comes to any more; false if nothing waits any more.
    pub(crate) fn give_up_gone(&self) -> bool {
        let mut waits = self.waits.lock();
        let mut known = HashMap::new();
        waits.retain_mut(|wait| {
            // These words may go with the process that has made the event, before the GPU has seen them.
            let Point { core, mark } = &wait.until;
            if core.dead() || core.failed() || core.slots().reached(mark) {
                return false;
            }
            let gone =
                *known.entry(wait.by).or_insert_with(|| self.is_gone(wait.by)) || self.has_begun_anew(wait.number);
            let now = is_reached(self.word(self.reached_at(place(wait.number))), wait.number);
            if !now && (gone || wait.reached) {
                if !wait.reached {
                    tracing::warn!("no GPU comes to a record of an event any more: nobody waits for it");
                }
                self.retire(wait.number, wait.by);
            }
            wait.reached |= now || gone;
            true
        });
        !waits.is_empty()
    }

    /// Gives a record up if no GPU comes to it any more; whether that is so.
    pub(crate) fn is_given_up(&self, record: Awaited) -> bool {
        let Awaited { number, by: Some(by) } = record else { return false };
        let gone = self.is_gone(by);
        if gone {
            self.retire(number, by);
        }
        gone
    }

    /// The process that has made the event has ended, and the words with it: numbers begin again.
    fn has_begun_anew(&self, number: u32) -> bool {
        !is_reached(self.given(place(number)).number, number)
    }

    /// Gives up a record of a recorder that is gone. A GPU that has begun to may still come to it: so that nobody gets its place as long as
    /// there are others, that is given to the same recorder once more.
    fn retire(&self, number: u32, by: RecorderId) {
        let next = |number: u32| Given { number: number.wrapping_add(PLACES), by: Some(by) };
        let _ = self.give(place(number), |given| given == number, next);
        self.give_up(number);
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
        if self.told.load(Ordering::Relaxed) {
            // A stream of another process may still be waited for there, and be given up.
            self.core.gpu.event_watch.keep_page(self.page.clone());
        } else {
            self.core.memory().release(&self.page.allocation);
        }
    }
}
