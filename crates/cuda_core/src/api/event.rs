//! Events: made, recorded, waited for, and the time between two.

use std::sync::Arc;

use crate::driver::Driver;
use crate::error::{CudaError, Result};
use crate::graph::node::Work;
use crate::handle::{self, Event, Stream, Tag};
use crate::work::event::EventState;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// All event flags: blocking sync too, which every wait here is.
const FLAGS: u32 = 7;

impl Driver {
    /// Creates an event.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags, and for an event that several processes share and that keeps time; `OUT_OF_MEMORY`.
    pub fn event_create(&self, flags: u32) -> Result<Event> {
        let context = self.current()?;
        if flags & !FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(CudaError::INVALID_VALUE);
        }
        let event = match flags & INTERPROCESS {
            0 => EventState::new(&context.core, flags & DISABLE_TIMING == 0),
            _ => EventState::of_several_processes(&context.core)?,
        };
        let handle = Event(handle::fresh(Tag::Event));
        self.events.insert(handle.0, Arc::new(event));
        Ok(handle)
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the context's error, and the event is destroyed.
    pub fn event_destroy(&self, event: Event) -> Result<()> {
        self.ready()?;
        let state = self.events.remove(event.0)?;
        state.retire();
        state.core.check_last()
    }

    /// Records an event behind a stream's work.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, also if event and stream are of different contexts; the context's error.
    pub fn event_record(&self, event: Event, stream: Stream) -> Result<()> {
        let event = self.event(event)?;
        if let Some(capture) = self.captured(stream)? {
            return capture.record(&event);
        }
        let stream = self.stream(stream)?;
        if !Arc::ptr_eq(&event.core, &stream.core) {
            return Err(CudaError::INVALID_HANDLE);
        }
        event.record(&stream)
    }

    /// As `event_record`; `flags` may be `CU_EVENT_RECORD_EXTERNAL`: a captured stream gets a node that records.
    ///
    /// # Errors
    /// As `event_record`.
    pub fn event_record_with_flags(&self, event: Event, stream: Stream, flags: u32) -> Result<()> {
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        if flags == 1
            && let Some(capture) = self.captured(stream)?
        {
            return capture.add(Work::RecordEvent(event, self.event(event)?));
        }
        self.event_record(event, stream)
    }

    /// Whether an event was reached. One that was never recorded was.
    ///
    /// # Errors
    /// `NOT_READY`; `INVALID_HANDLE`; `CAPTURED_EVENT`, `STREAM_CAPTURE_UNSUPPORTED`; the context's error.
    pub fn event_query(&self, event: Event) -> Result<()> {
        let event = self.event(event)?;
        event.tells_of_work()?;
        self.potentially_unsafe()?;
        event.core.check()?;
        if event.reached() {
            return Ok(());
        }
        event.core.link().flush()?;
        event.core.check()?;
        if event.reached() { Ok(()) } else { Err(CudaError::NOT_READY) }
    }

    /// Waits for an event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `CAPTURED_EVENT`; the context's error.
    pub fn event_synchronize(&self, event: Event) -> Result<()> {
        let event = self.event(event)?;
        event.tells_of_work()?;
        event.core.check()?;
        if event.synchronize()? {
            self.devices.of(&event.core.gpu).pools.trim_all();
        }
        event.core.check()
    }

    /// Milliseconds of GPU time between two events.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if one was not recorded or keeps no time, or if they are of different devices; `NOT_READY`.
    pub fn event_elapsed_time(&self, start: Event, end: Event) -> Result<f32> {
        let (start, end) = (self.event(start)?, self.event(end)?);
        start.core.check()?;
        start.tells_of_work()?;
        end.tells_of_work()?;
        if !Arc::ptr_eq(&start.core.gpu, &end.core.gpu) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let (from, to) = (start.time(), end.time());
        if let (Err(CudaError::INVALID_HANDLE), _) | (_, Err(CudaError::INVALID_HANDLE)) = (from, to) {
            return Err(CudaError::INVALID_HANDLE);
        }
        Ok((i128::from(to?) - i128::from(from?)) as f32 / 1e6)
    }
}
