//! A queue of the GPU, and the semaphore slot that tells how far it is.
//!
//! It exists on the GPU from its first work on. Nothing is signalled per command: only when somebody wants to know how far
//! the queue is (synchronization, another queue's wait) is a signal appended behind what was submitted last. In the same way the
//! GPU hears of a gate, behind which this process copies, only when something comes behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpu::{Command, QueueId, Request, SlotId};
use parking_lot::{Mutex, MutexGuard};

use crate::context_core::ContextCore;
use crate::error::{CudaError, Result};
use crate::gpu_link::slots::Mark;
use crate::values::MemoryWatcher;
use crate::work::host_queue::HostQueue;

/// A queue's part in the rule of the legacy stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LegacyRule {
    /// It is the legacy stream's: it waits for all blocking ones.
    Legacy,
    /// It waits for the legacy stream.
    Blocking,
    /// It has no part in it.
    NonBlocking,
}

#[derive(Debug)]
pub(crate) struct Queue {
    core: Arc<ContextCore>,
    pub(crate) id: QueueId,
    pub(crate) rule: LegacyRule,
    priority: i32,
    /// Held while work is submitted together with what it must wait for.
    order: Mutex<()>,
    progress: Mutex<Progress>,
    /// Submissions so far.
    pub(crate) submissions: AtomicU64,
    /// So many of them are done, as somebody here knows who waited for the work among them: the GPU may still have to come through
    /// waits that are over.
    over: AtomicU64,
    /// Submissions of the other side of the legacy rule that this queue has waited for.
    pub(crate) waited_for: AtomicU64,
    /// Set before the GPU's queue goes; looked at with `progress` locked.
    gone: AtomicBool,
    pub(crate) host: Arc<HostQueue>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The queue's own slot, from its first work on.
    slot: Option<SlotId>,
    /// Payload of the last signal.
    value: u64,
    /// Something was submitted behind it.
    dirty: bool,
    /// A gate that what comes next waits for, of which the GPU does not know yet.
    shut: Option<Gate>,
}

/// What the work behind it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    slot: SlotId,
    /// The payload that opens it; it was one less before.
    open: u64,
    /// Submissions of the queue, with this one.
    submissions: u64,
}

impl Queue {
    pub(crate) fn new(core: &Arc<ContextCore>, rule: LegacyRule, priority: i32) -> Arc<Queue> {
        Arc::new(Queue {
            core: Arc::clone(core),
            id: QueueId(core.link().fresh_id()),
            rule,
            priority,
            order: Mutex::default(),
            progress: Mutex::default(),
            submissions: AtomicU64::new(0),
            over: AtomicU64::new(0),
            waited_for: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            host: Arc::default(),
        })
    }

    /// Keeps other threads' work out until what belongs together is submitted.
    pub(crate) fn lock_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock()
    }

    /// Appends commands as they are; they may wait in a buffer until a flush.
    pub(crate) fn push(&self, commands: &[Command<'_>]) -> Result<()> {
        let mut progress = self.progress.lock();
        self.begin(&mut progress)?;
        if let Some(watcher) = self.core.memory().watcher() {
            commands.iter().for_each(|command| tell_writes(watcher, command));
        }
        self.core.outcome(self.core.link().gpu().submit(self.id, commands))?;
        progress.dirty = true;
        self.submissions.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Makes sure that the GPU knows the queue, and the gate that is before what comes next.
    fn begin(&self, progress: &mut Progress) -> Result<()> {
        if self.gone.load(Ordering::Acquire) {
            return Err(self.core.explain(CudaError::INVALID_HANDLE));
        }
        if progress.slot.is_none() {
            self.create(progress)?;
        }
        if let Some(Gate { slot, open, .. }) = progress.shut {
            let wait = Command::Wait { slot, value: open };
            self.core.outcome(self.core.link().gpu().submit(self.id, &[wait]))?;
            progress.shut = None;
            progress.dirty = true;
        }
        Ok(())
    }

    /// Makes what comes next wait for a gate. It is asked for with the queue's order locked, and by who opens it again.
    pub(crate) fn shut(&self) -> Result<Gate> {
        let mut progress = self.progress.lock();
        if self.gone.load(Ordering::Acquire) || self.core.dead() {
            return Err(self.core.explain(CudaError::INVALID_HANDLE));
        }
        if progress.shut.is_some() {
            self.begin(&mut progress)?;
        }
        let (slot, last) = self.core.slots().take()?;
        let submissions = self.submissions.fetch_add(1, Ordering::Release) + 1;
        let gate = Gate { slot, open: last + 1, submissions };
        progress.shut = Some(gate);
        Ok(gate)
    }

    /// Opens a gate. If `over`, all that was before it is done.
    pub(crate) fn open(&self, gate: Gate, over: bool) {
        let slots = self.core.slots();
        let unseen = self.progress.lock().shut.take_if(|shut| *shut == gate).is_some();
        if unseen {
            slots.give(gate.slot, gate.open - 1);
        } else {
            slots.release(gate.slot, gate.open);
            slots.give(gate.slot, gate.open);
        }
        if over {
            // Who comes next need not wait until the GPU has come through the gate.
            self.over.fetch_max(gate.submissions, Ordering::AcqRel);
        }
    }

    /// Appends a wait for a mark that is not reached yet.
    pub(crate) fn push_wait(&self, mark: Mark) -> Result<()> {
        let reached = self.core.slots().reached(&mark);
        if reached { Ok(()) } else { self.push(&[Command::Wait { slot: mark.slot, value: mark.value }]) }
    }

    /// Creates the queue on the GPU.
    fn create(&self, progress: &mut Progress) -> Result<()> {
        // Who ends a context closes the queues that are listed then.
        if self.core.dead() {
            return Err(self.core.explain(CudaError::INVALID_HANDLE));
        }
        self.core.ensure_on_gpu()?;
        let (slot, value) = self.core.slots().take()?;
        let request = Request::CreateQueue { id: self.id, context: self.core.id, priority: self.priority };
        self.core.link().request(request).map_err(|error| {
            self.core.slots().give(slot, value);
            self.core.explain(error)
        })?;
        *progress = Progress { slot: Some(slot), value, dirty: false, shut: progress.shut };
        Ok(())
    }

    /// Whether a slot is this queue's own.
    pub(crate) fn owns(&self, slot: SlotId) -> bool {
        self.progress.lock().slot == Some(slot)
    }

    /// The point behind all that was submitted; `None` if nothing ever was.
    pub(crate) fn tail(&self) -> Result<Option<Mark>> {
        let link = self.core.link();
        let mut progress = self.progress.lock();
        if progress.shut.is_some() {
            self.begin(&mut progress)?;
        }
        let Some(slot) = progress.slot else { return Ok(None) };
        if progress.dirty {
            if self.gone.load(Ordering::Acquire) {
                return Err(self.core.explain(CudaError::INVALID_HANDLE));
            }
            link.usable()?;
            let value = progress.value + 1;
            let signal = Command::Signal { slot, value };
            self.core.outcome(link.gpu().submit(self.id, &[signal]))?;
            progress.value = value;
            progress.dirty = false;
        }
        Ok(Some(Mark { context: self.core.id, slot, value: progress.value }))
    }

    /// The point to wait for before what was submitted is done; `None` if there is nothing to wait for.
    pub(crate) fn to_come(&self) -> Result<Option<Mark>> {
        if self.is_over() { Ok(None) } else { self.tail() }
    }

    fn is_over(&self) -> bool {
        // In this order: what is submitted meanwhile is not over.
        let over = self.over.load(Ordering::Acquire);
        over == self.submissions.load(Ordering::Acquire)
    }

    /// Whether the work of this queue has completed. However often a program asks, one signal at most is under way for it:
    /// until the last one has arrived, what came behind it has not completed either.
    pub(crate) fn completed(&self) -> Result<bool> {
        let slots = self.core.slots();
        if self.is_over() {
            return Ok(true);
        }
        let behind = {
            let progress = self.progress.lock();
            progress.slot.filter(|slot| slots.payload(*slot) < progress.value).map(|_| progress.dirty)
        };
        let mark = match behind {
            Some(true) => None,
            _ => match self.tail()? {
                Some(mark) if !slots.reached(&mark) => Some(mark),
                _ => return Ok(true),
            },
        };
        self.core.link().flush()?;
        Ok(mark.is_some_and(|mark| slots.reached(&mark)))
    }

    /// True if nothing is under way, as far as can be seen without asking the GPU.
    pub(crate) fn idle(&self) -> bool {
        if self.is_over() {
            return true;
        }
        let progress = self.progress.lock();
        match progress.slot {
            _ if progress.shut.is_some() => false,
            None => true,
            Some(slot) => !progress.dirty && self.core.slots().payload(slot) >= progress.value,
        }
    }

    /// Destroys the queue if its work has completed; true if it is gone.
    pub(crate) fn destroy_if_completed(&self) -> bool {
        match self.tail() {
            Ok(None) => true,
            Ok(Some(mark)) if !self.core.slots().reached(&mark) => false,
            Ok(Some(_)) => {
                {
                    let progress = self.progress.lock();
                    if progress.dirty {
                        return false;
                    }
                    self.gone.store(true, Ordering::Release);
                }
                self.core.link().give_back(Request::DestroyQueue { id: self.id });
                self.abandon();
                true
            }
            // The context is dying; it takes its queues with it.
            Err(_) => false,
        }
    }

    /// Submits nothing from now on: the GPU would not know the queue any more.
    pub(crate) fn close(&self) {
        self.gone.store(true, Ordering::Release);
        // Who is submitting just now comes before.
        drop(self.progress.lock());
    }

    /// Forgets a queue that does not exist any more, and lets go whoever waits for its work.
    pub(crate) fn abandon(&self) {
        self.gone.store(true, Ordering::Release);
        let slots = self.core.slots();
        let mut progress = self.progress.lock();
        if let Some(slot) = progress.slot.take() {
            if slots.payload(slot) < progress.value {
                slots.release(slot, progress.value);
            }
            slots.give(slot, progress.value);
        }
        progress.dirty = false;
        drop(progress);
        self.host.close(slots);
    }
}

/// Tells what a command writes that is no kernel's.
fn tell_writes(watcher: &dyn MemoryWatcher, command: &Command<'_>) {
    let lines = |at: u64, line: u64, lines: u64, pitch: u64| {
        (0..lines).for_each(|number| watcher.written(at.saturating_add(number.saturating_mul(pitch)), line));
    };
    match *command {
        Command::Copy { dst, width, height, dst_pitch, .. } => lines(dst.0, width, height, dst_pitch),
        Command::Fill { dst, element, width, height, pitch, .. } => {
            lines(dst.0, width.saturating_mul(element.into()), height, pitch);
        }
        Command::Write { dst, data } => lines(dst.0, data.len() as u64, 1, 0),
        Command::WriteValue { at, wide, .. } => lines(at.0, if wide { 8 } else { 4 }, 1, 0),
        Command::Launch { .. } | Command::Signal { .. } | Command::Wait { .. } | Command::WaitValue { .. } => {}
    }
}
