//! Events: points in streams, with the GPU's time.
//!
//! An event that keeps time signals a slot of its own; one that does not borrows the stream's own signal.

use std::sync::Arc;

use gpu::{Command, SlotId};
use parking_lot::Mutex;

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::handle::GraphNode;
use crate::work::queues::{Held, Point};
use crate::work::stream::StreamState;

#[derive(Debug)]
pub(crate) struct EventState {
    pub(crate) core: Arc<ContextCore>,
    timing: bool,
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
}

impl EventState {
    pub(crate) fn new(core: &Arc<ContextCore>, timing: bool) -> EventState {
        EventState { core: Arc::clone(core), timing, record: Mutex::default() }
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
    /// `INVALID_HANDLE` if they are of different devices.
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
        self.record.lock().last.as_ref().is_none_or(|(mark, _)| self.core.slots().reached(mark))
    }

    /// Waits for it, and hands over what was printed before it; false if there was nothing to wait for.
    ///
    /// # Errors
    /// The error of the context in which it was recorded.
    pub(crate) fn synchronize(&self) -> Result<bool> {
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
        if let Some((slot, last)) = self.record.lock().slot.take() {
            self.core.slots().give(slot, last);
        }
    }

    /// A context is over: lets go whoever waits for the event, if it was recorded there.
    pub(crate) fn abandon_in(&self, context: &Arc<ContextCore>) {
        let slots = context.slots();
        let record = self.record.lock();
        if let (Some((slot, last)), Some((mark, stream))) = (record.slot, &record.last)
            && Arc::ptr_eq(&stream.core, context)
            && !slots.reached(mark)
        {
            slots.release(slot, last);
        }
    }
}
