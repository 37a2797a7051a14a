//! Events: points in streams, with the GPU's time.
//!
//! An event that keeps time signals a slot of its own; one that does not borrows the stream's own signal.

use std::sync::Arc;

use gpu::SlotId;
use parking_lot::Mutex;

use crate::context::ContextState;
use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::handle::{self, Event, Stream, Tag};
use crate::shared::{Mark, Shared};
use crate::stream::StreamState;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// All event flags: blocking sync too, which every wait here is.
const FLAGS: u32 = 7;

#[derive(Debug)]
pub(crate) struct EventState {
    context: Arc<ContextState>,
    timing: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Own slot and the payload of its last signal.
    slot: Option<(SlotId, u64)>,
    /// Where the event was recorded last, and in which stream.
    last: Option<(Mark, Arc<StreamState>)>,
    /// Recorded behind nothing: complete from the start.
    recorded: bool,
}

impl EventState {
    /// Where the event was recorded last, if work was before it.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.inner.lock().last.as_ref().map(|last| last.0)
    }

    /// Records the event behind a stream's work.
    pub(crate) fn record(&self, stream: &Arc<StreamState>) -> Result<()> {
        let shared = &stream.context.shared;
        let mut inner = self.inner.lock();
        inner.recorded = true;
        if !self.timing {
            inner.last = stream.point()?.map(|mark| (mark, Arc::clone(stream)));
            return Ok(());
        }
        // A signal under way in another stream could arrive after this one: then this one needs another slot.
        let stale = inner.last.as_ref().is_some_and(|(mark, at)| !Arc::ptr_eq(at, stream) && !shared.done(mark));
        if stale && let Some((slot, last)) = inner.slot.take() {
            shared.give_slot(slot, last);
        }
        let (slot, last) = match inner.slot {
            Some(own) => own,
            None => shared.take_slot()?,
        };
        inner.slot = Some((slot, last));
        let signalled = stream.signal(slot, last + 1)?;
        inner.slot = Some((slot, last + 1));
        // The event's slot holds the time. Reached is where the stream's own point behind it is reached, so that who has
        // seen the event finds the stream idle, and the other way round.
        let mark = stream.tail()?.unwrap_or(signalled);
        inner.last = Some((mark, Arc::clone(stream)));
        Ok(())
    }

    /// The slot goes back; what waits for it still may.
    fn retire(&self, shared: &Shared) {
        if let Some((slot, last)) = self.inner.lock().slot.take() {
            shared.give_slot(slot, last);
        }
    }

    /// Lets go whoever waits for a stream that will never get there.
    fn abandon(&self, shared: &Shared) {
        let inner = self.inner.lock();
        if let (Some((slot, last)), Some((mark, _))) = (inner.slot, &inner.last)
            && !shared.done(mark)
        {
            shared.release(slot, last);
        }
    }
}

impl Driver {
    /// What waits for events of an ended context must not wait for ever.
    pub(crate) fn forget_events(&self, context: &Arc<ContextState>) {
        for event in self.events.all() {
            let there = event.inner.lock().last.as_ref().is_some_and(|(_, at)| Arc::ptr_eq(&at.context, context));
            if there {
                event.abandon(&self.shared);
            }
        }
    }

    /// Creates an event.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, `NOT_SUPPORTED` for events shared between processes.
    pub fn event_create(&self, flags: u32) -> Result<Event> {
        let context = self.current()?;
        if flags & !FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(CudaError::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
        let handle = Event(handle::fresh(Tag::Event));
        let event = EventState { context, timing: flags & DISABLE_TIMING == 0, inner: Mutex::default() };
        self.events.insert(handle.0, Arc::new(event));
        Ok(handle)
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn event_destroy(&self, event: Event) -> Result<()> {
        self.ready()?;
        self.events.remove(event.0)?.retire(&self.shared);
        Ok(())
    }

    /// Records an event behind a stream's work.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also if event and stream are of different contexts; the context's error.
    pub fn event_record(&self, event: Event, stream: Stream) -> Result<()> {
        let event = self.event(event)?;
        let stream = self.stream(stream)?;
        if event.context.gpu_id != stream.context.gpu_id {
            return Err(CudaError::INVALID_HANDLE);
        }
        event.record(&stream)
    }

    /// As `event_record`; `flags` may be `CU_EVENT_RECORD_EXTERNAL`, which matters to captures only.
    ///
    /// # Errors
    /// As `event_record`.
    pub fn event_record_with_flags(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        if flags > 1 { Err(CudaError::INVALID_VALUE) } else { self.event_record(event, stream) }
    }

    /// Whether an event was reached. One that was never recorded was.
    ///
    /// # Errors
    /// `NOT_READY`; `INVALID_HANDLE`; the context's error.
    pub fn event_query(&self, event: Event) -> Result<()> {
        let event = self.event(event)?;
        event.context.check()?;
        let Some(mark) = event.mark() else { return Ok(()) };
        if self.shared.done(&mark) {
            return Ok(());
        }
        self.shared.note(self.shared.gpu.flush())?;
        event.context.check()?;
        if self.shared.done(&mark) { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error.
    pub fn event_synchronize(&self, event: Event) -> Result<()> {
        let event = self.event(event)?;
        event.context.check()?;
        let last = event.inner.lock().last.clone();
        if let Some((mark, stream)) = last {
            self.shared.wait(&stream.context, &mark, None)?;
            stream.context.print();
            self.trim_pools();
        }
        event.context.check()
    }

    /// Milliseconds of GPU time between two events.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if one was not recorded or keeps no time; `NOT_READY`.
    pub fn event_elapsed_time(&self, start: Event, end: Event) -> Result<f32> {
        let (start, end) = (self.event(start)?, self.event(end)?);
        start.context.check()?;
        let time = |event: &EventState| -> Result<u64> {
            let inner = event.inner.lock();
            let (true, Some((mark, _)), Some((slot, _))) = (event.timing, inner.last.as_ref(), inner.slot) else {
                return Err(CudaError::INVALID_HANDLE);
            };
            if !self.shared.done(mark) {
                return Err(CudaError::NOT_READY);
            }
            Ok(self.shared.timestamp(slot))
        };
        let (from, to) = (time(&start), time(&end));
        if let (Err(CudaError::INVALID_HANDLE), _) | (_, Err(CudaError::INVALID_HANDLE)) = (from, to) {
            return Err(CudaError::INVALID_HANDLE);
        }
        Ok((i128::from(to?) - i128::from(from?)) as f32 / 1e6)
    }
}
