//! Queues: streams of commands, which share the channels of their context.
//!
//! A queue costs nothing before it is used, and little then. Its commands go, in order, to the shared channel that it is
//! bound to; behind a wait on memory to a waiter, until that has completed everything; or they are kept, while the queue is
//! parked ([`crate::parking`]). Between channels the order is kept by a wait for all that is in the one before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{Command, ContextId, GpuError, QueueId, SlotId};
use parking_lot::Mutex;

use crate::channel::Channel;
use crate::channels::{Binding, Purpose};
use crate::client::{Client, Objects, failed};
use crate::contexts::ContextEntry;
use crate::module::Module;
use crate::parking::{Kept, Outlook};
use crate::space::unknown;

/// Most queues of a client.
const MAX_QUEUES: usize = 1 << 14;
/// Most bytes of commands that a client's parked queues keep; who submits more waits, as for a full channel.
const MAX_KEPT_BYTES: u64 = 16 << 20;
/// A submission to a parked queue that has no room looks so often whether the client has stored what it waits for.
const LOOK: Duration = Duration::from_millis(5);

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) entry: Arc<ContextEntry>,
    priority: i32,
    /// Held over a submission, so that submissions follow one another.
    pub(crate) state: Mutex<QueueState>,
}

/// Where a queue's commands are.
#[derive(Debug, Default)]
pub(crate) struct QueueState {
    shared: Option<Binding>,
    waiter: Option<Binding>,
    /// Kept while it is parked; the first is the wait that parks it.
    kept: Vec<Kept>,
}

impl Client {
    pub(crate) fn create_queue(&self, id: QueueId, context: ContextId, priority: i32) -> Result<(), GpuError> {
        let mut objects = self.objects_open()?;
        let entry = objects.contexts.get(&context).ok_or_else(|| unknown("context", context.0))?;
        entry.context.check()?;
        if objects.queues.contains_key(&id) {
            return Err(unknown("queue", id.0));
        }
        if objects.queues.len() >= MAX_QUEUES {
            return Err(GpuError::TooMany { what: "queues".into(), limit: MAX_QUEUES as u64 });
        }
        let queue = Queue { entry: Arc::clone(entry), priority, state: Mutex::default() };
        objects.queues.insert(id, Arc::new(queue));
        Ok(())
    }

    /// Nothing more can be submitted. What was is done: it is in a channel, or kept by the queue, which lives while it is
    /// parked.
    pub(crate) fn destroy_queue(&self, id: QueueId) -> Result<(), GpuError> {
        let queue = self.objects.write().queues.remove(&id).ok_or_else(|| unknown("queue", id.0))?;
        drop(queue);
        self.reap();
        Ok(())
    }

    /// The queue, if it takes commands.
    pub(crate) fn queue(&self, objects: &Objects, id: QueueId) -> Result<Arc<Queue>, GpuError> {
        let queue = objects.queues.get(&id).ok_or_else(|| unknown("queue", id.0))?;
        match queue.entry.context.error() {
            Some(error) => Err(failed(error)),
            None => Ok(Arc::clone(queue)),
        }
    }

    /// Submits checked commands to a queue; `modules` are those of the launches.
    pub(crate) fn enqueue(
        &self,
        queue: &Arc<Queue>,
        commands: &[Command<'_>],
        modules: &[Arc<Module>],
    ) -> Result<(), GpuError> {
        let mut signalled = Vec::new();
        let result = {
            let mut state = queue.state.lock();
            let room = self.wait_for_room(queue, &mut state, &mut signalled);
            let parked = !state.kept.is_empty();
            let emitted = match room {
                Ok(()) if parked => Ok(0),
                Ok(()) => self.emit(queue, &mut state, commands, modules, &mut signalled),
                Err(error) => Err(error),
            };
            emitted.and_then(|emitted| {
                let kept = keep(&commands[emitted..], &modules[launches(&commands[..emitted])..]);
                let bytes = kept.iter().map(Kept::bytes).sum();
                if bytes > 0 {
                    self.budget.charge_driver_bytes(bytes)?;
                    self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                state.kept.extend(kept);
                Ok(())
            })
        };
        self.unpark(signalled);
        result
    }

    /// Takes what a queue keeps.
    pub(crate) fn take_kept(&self, state: &mut QueueState) -> Vec<Kept> {
        let kept = std::mem::take(&mut state.kept);
        if kept.is_empty() {
            return kept;
        }
        let bytes = kept.iter().map(Kept::bytes).sum();
        self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.refund_driver_bytes(bytes);
        kept
    }

    /// Slots were signalled or promised: queues that are parked for them go on, and may signal others.
    pub(crate) fn unpark(&self, mut signalled: Vec<SlotId>) {
        while let Some(slot) = signalled.pop() {
            for queue in self.parking.take(slot) {
                let mut state = queue.state.lock();
                // Its context's error, which whoever uses the queue next is told.
                let _ = self.resume(&queue, &mut state, &mut signalled);
            }
        }
    }

    /// Emits what a queue has kept, as far as it goes.
    pub(crate) fn resume(
        &self,
        queue: &Arc<Queue>,
        state: &mut QueueState,
        signalled: &mut Vec<SlotId>,
    ) -> Result<(), GpuError> {
        let mut kept = self.take_kept(state);
        let commands: Vec<Command<'_>> = kept.iter().map(Kept::command).collect();
        let modules: Vec<Arc<Module>> = kept.iter().filter_map(|kept| kept.module.clone()).collect();
        let emitted = self.emit(queue, state, &commands, &modules, signalled)?;
        drop(commands);
        let kept = kept.split_off(emitted);
        let bytes = kept.iter().map(Kept::bytes).sum();
        if bytes > 0 {
            self.budget.recharge_driver_bytes(bytes);
            self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        state.kept = kept;
        Ok(())
    }

    /// Waits while the client's parked queues keep all that they may: until this one goes on, or its context ends.
    fn wait_for_room(
        &self,
        queue: &Arc<Queue>,
        state: &mut QueueState,
        signalled: &mut Vec<SlotId>,
    ) -> Result<(), GpuError> {
        while let Some(first) = state.kept.first()
            && self.kept_bytes.load(Ordering::Relaxed) >= MAX_KEPT_BYTES
        {
            // The first is what parks the queue, or what its waiter has no room for: that is tried.
            let open = || match first.command() {
                Command::Wait { slot, value } => self.outlook(queue, slot, value) == Outlook::Open,
                _ => true,
            };
            let result = self.signals.wait(&self.common.listeners, Some(Instant::now() + LOOK), || {
                if self.signals.is_ended() {
                    return Some(Err(GpuError::Lost { reason: "the client or the device has ended".into() }));
                }
                queue.entry.context.check().err().map(Err).or_else(|| (!open()).then_some(Ok(())))
            });
            result.transpose()?;
            // Whoever finds it among the parked ones later finds nothing kept.
            self.resume(queue, state, signalled)?;
        }
        Ok(())
    }

    pub(crate) fn outlook(&self, queue: &Queue, slot: SlotId, value: u64) -> Outlook {
        self.parking.outlook(slot, value, self.signals.area.payload(slot), queue.entry.number)
    }

    /// The channel for a queue's next command; `memory`: that is a wait on memory, or on what may never come.
    pub(crate) fn channel_for(
        &self,
        queue: &Queue,
        state: &mut QueueState,
        memory: bool,
    ) -> Result<Arc<Channel>, GpuError> {
        if let Some(waiter) = &state.waiter {
            if memory || !waiter.channel().has_completed() {
                return Ok(Arc::clone(waiter.channel()));
            }
            state.waiter = None;
        }
        if !memory {
            let binding = match state.shared.take() {
                Some(binding) => binding,
                None => self.bind(&queue.entry, Purpose::Shared, queue.priority)?,
            };
            return Ok(Arc::clone(state.shared.insert(binding).channel()));
        }
        let waiter = self.bind(&queue.entry, Purpose::Waiter, queue.priority)?;
        if let Some(shared) = &state.shared {
            // The waiter begins where the shared channel is now.
            let (at, value) = shared.channel().ring.lock().mark()?;
            let mut ring = waiter.channel().ring.lock();
            ring.wait(at, value)?;
        }
        Ok(Arc::clone(state.waiter.insert(waiter).channel()))
    }
}

/// Commands as they are kept; `modules` are those of the launches.
fn keep(commands: &[Command<'_>], modules: &[Arc<Module>]) -> Vec<Kept> {
    let mut modules = modules.iter();
    let keep = |command: &Command<'_>| {
        let module = if matches!(command, Command::Launch { .. }) { modules.next().cloned() } else { None };
        Kept::new(command, module)
    };
    commands.iter().map(keep).collect()
}

/// Number of launches.
fn launches(commands: &[Command<'_>]) -> usize {
    commands.iter().filter(|command| matches!(command, Command::Launch { .. })).count()
}
