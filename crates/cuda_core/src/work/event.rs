//! Events: points in streams, with the GPU's time.
//!
//! An event that keeps time signals a slot of its own; one that does not borrows the stream's own signal. One that several processes
//! share has words that all of them see ([`event_words`](crate::work::event_words)).

use std::sync::Arc;
use std::time::Duration;

use gpu::{Command, SlotId};
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::handle::GraphNode;
use crate::memory::handles::Exported;
use crate::work::event_words::{Awaited, EventWords, NewRecord};
use crate::work::queues::{Held, Point};
use crate::work::stream::StreamState;

/// How long a process sleeps between two looks at another's words.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) struct EventState {
    pub(crate) core: Arc<ContextCore>,
    timing: bool,
    /// Of one that several processes share.
    words: Option<Arc<EventWords>>,
    record: Mutex<Record>,
}

/// Where the event was recorded last.
#[derive(Debug, Default)]
struct Record {
    /// Own slot and the payload of its last signal.
    slot: Option<(SlotId, u64)>,
    /// The point, and the stream it is in; `None` behind no work: complete from the start.
    last: Option<(Mark, Arc<StreamState>)>,
    /// It was recorded last in a stream that was being captured: which capture, and the nodes before it.
    captured: Option<(u64, Vec<GraphNode>)>,
    /// Streams of this process that use the words.
    uses: Vec<Use>,
}

/// That a stream uses an event's words.
#[derive(Debug)]
struct Use {
    stream: Arc<StreamState>,
    /// The point behind which it does not.
    end: Mark,
    /// Its last record, if it has made one.
    record: Option<u32>,
}

impl Record {
    /// The number of the last record in a stream that may be under way there.
    fn last_in(&self, stream: &Arc<StreamState>) -> Option<u32> {
        self.uses.iter().find(|of| Arc::ptr_eq(&of.stream, stream))?.record
    }

    /// A stream that is held has got work that uses the words, a record of this number if there is one.
    fn used(&mut self, stream: &Arc<StreamState>, held: &Held<'_>, record: Option<u32>) -> Result<()> {
        let end = held.tail()?;
        let record = record.or_else(|| self.last_in(stream));
        self.uses.retain(|of| !Arc::ptr_eq(&of.stream, stream) && !of.stream.core.slots().reached(&of.end));
        self.uses.extend(end.map(|end| Use { stream: Arc::clone(stream), end, record }));
        Ok(())
    }
}

impl EventState {
    pub(crate) fn new(core: &Arc<ContextCore>, timing: bool) -> EventState {
        EventState { core: Arc::clone(core), timing, words: None, record: Mutex::default() }
    }

    /// One that other processes may be told of.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub(crate) fn of_several_processes(core: &Arc<ContextCore>) -> Result<EventState> {
        let words = Some(Arc::new(EventWords::new(core)?));
        Ok(EventState { words, ..EventState::new(core, false) })
    }

    /// One that another process has made.
    ///
    /// # Errors
    /// As of memory.
    pub(crate) fn of_another_process(core: &Arc<ContextCore>, exported: &Exported) -> Result<EventState> {
        let words = Some(Arc::new(EventWords::import(core, exported)?));
        Ok(EventState { words, ..EventState::new(core, false) })
    }

    /// What several processes know of it.
    pub(crate) fn words(&self) -> Option<&EventWords> {
        self.words.as_deref()
    }

    /// Makes further work of a stream wait for it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` for one that several processes share, in streams of another device.
    pub(crate) fn wait_in(&self, stream: &Arc<StreamState>) -> Result<()> {
        if self.words.is_some() {
            return stream.hold(|held| self.wait_held(stream, held));
        }
        self.point().map_or(Ok(()), |point| stream.wait_for(&point))
    }

    /// As `wait_in`, while the stream is held.
    pub(crate) fn wait_held(&self, stream: &Arc<StreamState>, held: &Held<'_>) -> Result<()> {
        let Some(words) = &self.words else {
            return self.point().map_or(Ok(()), |point| held.wait_for(&point));
        };
        if !Arc::ptr_eq(&self.core.gpu, &stream.core.gpu) {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let Some((wait, awaited)) = words.wait() else { return Ok(()) };
        held.push(&[wait])?;
        self.watch(words, awaited, stream, held)?;
        self.record.lock().used(stream, held, None)
    }

    /// A stream that is held waits for a record of several processes' event.
    fn watch(
        &self,
        words: &Arc<EventWords>,
        record: Awaited,
        stream: &Arc<StreamState>,
        held: &Held<'_>,
    ) -> Result<()> {
        if let Some(mark) = held.tail()? {
            let until = Point { core: Arc::clone(&stream.core), mark };
            self.core.gpu.event_watch.begin(words, record, until);
        }
        Ok(())
    }

    /// Records the event in a capture, behind these nodes.
    pub(crate) fn record_captured(&self, capture: u64, before: Vec<GraphNode>) {
        self.record.lock().captured = Some((capture, before));
    }

    /// The capture in which it was recorded last, and the nodes before it; `None` if that was no capture.
    pub(crate) fn captured(&self) -> Option<(u64, Vec<GraphNode>)> {
        self.record.lock().captured.clone()
    }

    /// # Errors
    /// `CAPTURED_EVENT` if it was recorded last in a capture: it tells of no work then.
    pub(crate) fn tells_of_work(&self) -> Result<()> {
        if self.record.lock().captured.is_some() { Err(CudaError::CAPTURED_EVENT) } else { Ok(()) }
    }

    /// Where the event was recorded last, if work was before it.
    pub(crate) fn point(&self) -> Option<Point> {
        self.record.lock().last.as_ref().map(|(mark, stream)| Point { core: Arc::clone(&stream.core), mark: *mark })
    }

    /// Records the event behind a stream's work.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if they are of different devices; `CONTEXT_IS_DESTROYED` if several processes share it, and its context ended.
    pub(crate) fn record(&self, stream: &Arc<StreamState>) -> Result<()> {
        stream.hold(|held| self.record_held(stream, held))
    }

    /// As `record`, while the stream is held.
    pub(crate) fn record_held(&self, stream: &Arc<StreamState>, held: &Held<'_>) -> Result<()> {
        if !Arc::ptr_eq(&self.core.gpu, &stream.core.gpu) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let slots = stream.core.slots();
        let mut record = self.record.lock();
        record.captured = None;
        if let Some(words) = &self.words {
            if self.core.dead() {
                return Err(CudaError::CONTEXT_IS_DESTROYED);
            }
            let NewRecord { number, commands, behind } = words.record(&stream.core, record.last_in(stream))?;
            held.push(&commands).inspect_err(|_| words.give_up(number))?;
            if let Some(awaited) = behind {
                self.watch(words, awaited, stream, held)?;
            }
            return record.used(stream, held, Some(number));
        }
        if !self.timing {
            record.last = held.tail()?.map(|mark| (mark, Arc::clone(stream)));
            return Ok(());
        }
        // A signal under way in another stream could arrive after this one: then this one needs another slot.
        let stale = record.last.as_ref().is_some_and(|(mark, at)| !Arc::ptr_eq(at, stream) && !slots.reached(mark));
        if stale && let Some((slot, last)) = record.slot.take() {
            slots.give(slot, last);
        }
        let (slot, last) = match record.slot {
            Some(own) => own,
            None => slots.take()?,
        };
        record.slot = Some((slot, last));
        held.push(&[Command::Signal { slot, value: last + 1 }])?;
        record.slot = Some((slot, last + 1));
        // The event's slot holds the time. Reached is where the stream's own point behind it is reached, so that who has
        // seen the event finds the stream idle, and the other way round.
        let own = Mark { context: stream.core.id, slot, value: last + 1 };
        let mark = held.tail()?.unwrap_or(own);
        record.last = Some((mark, Arc::clone(stream)));
        Ok(())
    }

    /// Whether the event was reached, as far as is known here. One that was never recorded was.
    pub(crate) fn reached(&self) -> bool {
        if let Some(words) = &self.words {
            return words.wait().is_none_or(|(_, awaited)| words.is_given_up(awaited));
        }
        self.record.lock().last.as_ref().is_none_or(|(mark, _)| self.core.slots().reached(mark))
    }

    /// Waits for it, and hands over what was printed before it; false if there was nothing to wait for.
    ///
    /// # Errors
    /// The error of the context in which it was recorded.
    pub(crate) fn synchronize(&self) -> Result<bool> {
        if self.words.is_some() {
            self.core.link().flush()?;
            // Another process's GPU may be the one that comes to it: it wakes nobody here.
            while !self.reached() {
                self.core.check()?;
                std::thread::sleep(LOOK_AGAIN);
            }
            return Ok(true);
        }
        let last = self.record.lock().last.clone();
        let Some((mark, stream)) = last else { return Ok(false) };
        stream.core.wait(&mark, None)?;
        stream.print();
        Ok(true)
    }

    /// The GPU's time at it, ns.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it was not recorded or keeps no time; `NOT_READY`.
    pub(crate) fn time(&self) -> Result<u64> {
        let slots = self.core.slots();
        let record = self.record.lock();
        let (true, Some((mark, _)), Some((slot, _))) = (self.timing, record.last.as_ref(), record.slot) else {
            return Err(CudaError::INVALID_HANDLE);
        };
        if slots.reached(mark) { Ok(slots.timestamp(slot)) } else { Err(CudaError::NOT_READY) }
    }

    /// The slot goes back; what waits for it still may.
    pub(crate) fn retire(&self) {
        if let Some(words) = &self.words {
            let uses = std::mem::take(&mut self.record.lock().uses);
            for Use { stream, end, .. } in uses {
                if !stream.core.slots().reached(&end) {
                    let words = Arc::clone(words);
                    // A context that ends lets go all that waits in it.
                    let _ = stream.run_on_host(Box::new(move |_| drop(words)));
                }
            }
        }
        if let Some((slot, last)) = self.record.lock().slot.take() {
            self.core.slots().give(slot, last);
        }
    }

    /// A context is over: lets go whoever waits for the event, if it was recorded there.
    pub(crate) fn abandon_in(&self, context: &Arc<ContextCore>) {
        let slots = context.slots();
        let record = self.record.lock();
        // Others see by the recorder that it is gone; who knows of none does not.
        if let Some(words) = &self.words {
            let here = record.uses.iter().filter(|of| Arc::ptr_eq(&of.stream.core, context));
            here.filter_map(|of| of.record).for_each(|number| words.give_up(number));
        }
        if let (Some((slot, last)), Some((mark, stream))) = (record.slot, &record.last)
            && Arc::ptr_eq(&stream.core, context)
            && !slots.reached(mark)
        {
            slots.release(slot, last);
        }
    }
}
