//! Life and death of contexts and queues, and how they are scheduled and metered.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu::{ContextId, GpuError, PAGE_BYTES, QueueId};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier;
use gpu_spec::ramfc::INSTANCE_BLOCK_BYTES;
use gpu_spec::regs::{self, accounting};
use parking_lot::{Mutex, RwLockWriteGuard};
use zerocopy::IntoBytes;

use crate::channel::{BLOCK_BYTES, Channel, userd_at};
use crate::client::{Client, Objects, failed, lost};
use crate::context::Context;
use crate::mmio::{Lost, Mmio};
use crate::scheduling::Listed;
use crate::space::{Backing, Memory, invalid, unknown};

/// Most contexts of a client.
const MAX_CONTEXTS: usize = 64;
/// Most queues of a client, those that are still finishing included.
const MAX_QUEUES: usize = 512;
/// Most queues of a context: what a TSG entry of the runlist can hold.
const MAX_QUEUES_PER_CONTEXT: usize = 120;

/// What a client has had of the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// GPU time, nanoseconds: all clients together cannot have more than the time that goes by.
    pub gpu_time_ns: u64,
    /// Kernels that have ended.
    pub kernels: u64,
    /// Copies and fills that have ended.
    pub copies: u64,
}

/// The device's counters of a TSG.
#[derive(Clone, Copy, Debug)]
struct Counters {
    time: u64,
    grids: u32,
    copies: u32,
}

/// A context and what belongs to it.
#[derive(Debug)]
pub(crate) struct ContextEntry {
    pub(crate) context: Arc<Context>,
    /// Counters of its TSG when it began.
    base: Counters,
}

/// A queue: a channel and its memory.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) channel: Channel,
    context: ContextId,
    block: Arc<Memory>,
    /// What a cooperative grid's CTAs meet in; made when first wanted.
    pub(crate) workspace: Mutex<Option<(u64, Arc<Memory>)>>,
}

impl Client {
    pub(crate) fn context(&self, id: ContextId) -> Result<Arc<Context>, GpuError> {
        let objects = self.objects.read();
        objects.contexts.get(&id).map(|entry| Arc::clone(&entry.context)).ok_or_else(|| unknown("context", id.0))
    }

    /// The objects, to add to them.
    fn objects_open(&self) -> Result<RwLockWriteGuard<'_, Objects>, GpuError> {
        let objects = self.objects.write();
        if objects.closed {
            return Err(GpuError::Lost { reason: "the client was closed".into() });
        }
        Ok(objects)
    }

    pub(crate) fn create_context(&self, id: ContextId, area: [u64; 3]) -> Result<(), GpuError> {
        self.layout()?;
        let mut objects = self.objects_open()?;
        if objects.contexts.len() >= MAX_CONTEXTS {
            return Err(GpuError::TooMany { what: "contexts".into(), limit: MAX_CONTEXTS as u64 });
        }
        let Entry::Vacant(place) = objects.contexts.entry(id) else { return Err(unknown("context", id.0)) };
        let shared = self.shared();
        let notifier = shared.vram.take_run(notifier::BYTES, PAGE_BYTES).ok_or_else(|| GpuError::OutOfMemory {
            wanted: notifier::BYTES,
            free: shared.vram.free(),
            limit: shared.vram.total(),
        })?;
        let schedule = self.schedule.lock();
        let tsg = shared.hw.lock().take_tsg(schedule.time_slice_ns, schedule.runnable);
        let counters = tsg.map(|tsg| counters(&shared.mmio, tsg));
        let (Some(tsg), Some(Ok(base))) = (tsg, counters) else {
            if let Some(tsg) = tsg {
                shared.hw.lock().put_tsg(tsg);
            }
            shared.vram.put(&[notifier]);
            return Err(GpuError::TooMany { what: "contexts on the device".into(), limit: accounting::TSGS.into() });
        };
        let context = Arc::new(Context::new(tsg, area, Arc::clone(&self.signals), notifier));
        place.insert(ContextEntry { context, base });
        Ok(())
    }

    pub(crate) fn destroy_context(&self, id: ContextId) -> Result<(), GpuError> {
        let mut objects = self.objects.write();
        let entry = objects.contexts.remove(&id).ok_or_else(|| unknown("context", id.0))?;
        self.end_context(&mut objects, id, &entry).map_err(lost)
    }

    /// Ends all contexts, for good.
    pub(crate) fn destroy_all_contexts(&self) -> Result<(), Lost> {
        let mut objects = self.objects.write();
        objects.closed = true;
        let mut result = Ok(());
        for (id, entry) in std::mem::take(&mut objects.contexts) {
            result = self.end_context(&mut objects, id, &entry).and(result);
        }
        result
    }

    fn end_context(&self, objects: &mut Objects, id: ContextId, entry: &ContextEntry) -> Result<(), Lost> {
        let context = &entry.context;
        context.end();
        let mut queues: Vec<Arc<Queue>> = Vec::new();
        objects.queues.retain(|_, queue| {
            let mine = queue.context == id;
            if mine {
                queues.push(Arc::clone(queue));
            }
            !mine
        });
        objects.dying.retain(|queue| {
            let mine = queue.context == id;
            if mine {
                queues.push(Arc::clone(queue));
            }
            !mine
        });
        self.dying.store(objects.dying.len(), Ordering::Relaxed);
        let stopped = self.tear_down(context, &queues);
        let shared = self.shared();
        if let Ok(now) = counters(&shared.mmio, context.tsg) {
            self.retired.lock().add(entry.base, now);
        }
        if stopped.is_ok() {
            shared.hw.lock().put_tsg(context.tsg);
        }
        self.give_back(&[context.notifier], stopped);
        stopped
    }

    pub(crate) fn create_queue(&self, id: QueueId, context_id: ContextId, priority: i32) -> Result<(), GpuError> {
        let layout = self.layout()?;
        let mut objects = self.objects_open()?;
        let entry = objects.contexts.get(&context_id).ok_or_else(|| unknown("context", context_id.0))?;
        let context = Arc::clone(&entry.context);
        context.check()?;
        if objects.queues.contains_key(&id) {
            return Err(unknown("queue", id.0));
        }
        let mine = |queue: &&Arc<Queue>| queue.context == context_id;
        let of_context = objects.queues.values().filter(mine).count() + objects.dying.iter().filter(mine).count();
        let all = objects.queues.len() + objects.dying.len();
        for (what, count, limit) in
            [("queues", all, MAX_QUEUES), ("queues of a context", of_context, MAX_QUEUES_PER_CONTEXT)]
        {
            if count >= limit {
                return Err(GpuError::TooMany { what: what.into(), limit: limit as u64 });
            }
        }
        let shared = self.shared();
        let backing = shared.mmio.backing();
        let dma = backing.alloc_dma(BLOCK_BYTES).map_err(|error| {
            tracing::warn!(client = self.name(), %error, "no host memory for a queue");
            GpuError::OutOfMemory { wanted: BLOCK_BYTES, free: 0, limit: BLOCK_BYTES }
        })?;
        let bus = dma.bus;
        let block = Arc::new(Memory { bytes: BLOCK_BYTES, backing: Backing::Host(dma) });
        let Backing::Host(dma) = &block.backing else { unreachable!("made as host memory above") };
        let va = self.edit(|space| space.map_own(&block, true)).inspect_err(|_| backing.free_dma(bus))?;
        let instance = shared.vram.take_run(INSTANCE_BLOCK_BYTES, INSTANCE_BLOCK_BYTES);
        let number = instance.and_then(|_| shared.hw.lock().take_channel());
        let (Some(instance), Some(number)) = (instance, number) else {
            if let Some(instance) = instance {
                shared.vram.put(&[instance]);
            }
            self.edit(|space| {
                space.unmap_own(va, BLOCK_BYTES);
                Ok(())
            })?;
            self.sync()?;
            backing.free_dma(bus);
            return Err(GpuError::TooMany { what: "channels on the device".into(), limit: regs::CHANNELS.into() });
        };
        let channel = Channel::new(&self.common, &context, number, instance, dma, va);
        let words = channel.instance_block(bus.0, layout.root, layout.window);
        backing.vram().write(instance.offset as usize, words.as_bytes());
        shared.contexts.write().insert(instance.offset, Arc::clone(&context));
        context.add_channel(number);
        let queue = Queue { channel, context: context_id, block, workspace: Mutex::default() };
        let started = self.start(&queue, bus.0, priority);
        let queue = Arc::new(queue);
        if let Err(error) = started {
            // The reason is the error; that the queue cannot be stopped either adds nothing.
            let _ = self.tear_down(&context, std::slice::from_ref(&queue));
            return Err(error);
        }
        objects.queues.insert(id, queue);
        Ok(())
    }

    /// Binds and enables a new channel and has it scheduled.
    fn start(&self, queue: &Queue, bus: u64, priority: i32) -> Result<(), GpuError> {
        let shared = self.shared();
        let Channel { number, instance, context, .. } = &queue.channel;
        let bind = regs::INST_PTR.of((instance.offset >> 12) as u32) | regs::INST_TARGET.of(0) | regs::INST_BIND.of(1);
        shared.mmio.write(regs::pccsr_inst(*number), bind);
        shared.mmio.write(regs::pccsr_channel(*number), regs::CHANNEL_ENABLE_SET.of(1));
        self.sync()?;
        let listed =
            Listed { channel: *number, userd: userd_at(bus), instance: PhysAddr::vram(instance.offset), priority };
        shared.hw.lock().add(&shared.mmio, &shared.vram, context.tsg, listed).map_err(lost)?;
        let mut ring = queue.channel.ring.lock();
        ring.bind()?;
        ring.flush()
    }

    pub(crate) fn destroy_queue(&self, id: QueueId) -> Result<(), GpuError> {
        let mut objects = self.objects.write();
        let queue = objects.queues.remove(&id).ok_or_else(|| unknown("queue", id.0))?;
        objects.dying.push(queue);
        self.reap_in(&mut objects);
        Ok(())
    }

    /// Destroys queues that were given up and have completed their work.
    pub(crate) fn reap(&self) {
        if self.dying.load(Ordering::Relaxed) > 0 {
            self.reap_in(&mut self.objects.write());
        }
    }

    fn reap_in(&self, objects: &mut Objects) {
        for queue in std::mem::take(&mut objects.dying) {
            let context = Arc::clone(&queue.channel.context);
            if context.error().is_some() || queue.has_ended() {
                // A device that does not stop the channel is lost; everybody will hear of it.
                let _ = self.tear_down(&context, std::slice::from_ref(&queue));
            } else {
                objects.dying.push(queue);
            }
        }
        self.dying.store(objects.dying.len(), Ordering::Relaxed);
    }

    /// Stops channels of a context and frees what they have.
    fn tear_down(&self, context: &Context, queues: &[Arc<Queue>]) -> Result<(), Lost> {
        let shared = self.shared();
        let numbers: Vec<u32> = queues.iter().map(|queue| queue.channel.number).collect();
        let mut workspaces = Vec::new();
        for queue in queues {
            queue.channel.close();
            workspaces.extend(queue.workspace.lock().take());
        }
        let stopped = shared.hw.lock().remove(&shared.mmio, &shared.vram, context.tsg, &numbers);
        let unmapped = self.edit(|space| {
            for queue in queues {
                space.unmap_own(queue.channel.va, BLOCK_BYTES);
            }
            for (at, memory) in &workspaces {
                space.unmap_own(*at, memory.bytes);
            }
            Ok(())
        });
        debug_assert!(unmapped.is_ok(), "queues go before their address space");
        let let_go = self.sync().map_err(|_| Lost("the device keeps old translations")).and(stopped);
        for (_, workspace) in workspaces {
            self.free_memory(&workspace, let_go);
        }
        for queue in queues {
            let Channel { number, instance, .. } = &queue.channel;
            shared.contexts.write().remove(&instance.offset);
            context.remove_channel(*number);
            if let Backing::Host(dma) = &queue.block.backing {
                shared.mmio.backing().free_dma(dma.bus);
            }
            self.give_back(&[*instance], let_go);
            if let_go.is_ok() {
                shared.hw.lock().put_channel(*number);
            }
        }
        let_go
    }

    /// Changes the time slice of the client's contexts.
    ///
    /// # Errors
    /// [`GpuError::Lost`].
    pub fn set_time_slice(&self, slice: Duration) -> Result<(), GpuError> {
        let ns = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
        self.reschedule(|schedule| schedule.time_slice_ns = ns)
    }

    /// Lets the client's work run, or holds it: what runs is preempted, what is submitted waits.
    ///
    /// # Errors
    /// [`GpuError::Lost`].
    pub fn set_runnable(&self, runnable: bool) -> Result<(), GpuError> {
        self.reschedule(|schedule| schedule.runnable = runnable)
    }

    fn reschedule(&self, change: impl FnOnce(&mut crate::client::Schedule)) -> Result<(), GpuError> {
        let objects = self.objects.read();
        let mut schedule = self.schedule.lock();
        change(&mut schedule);
        let tsgs: Vec<u32> = objects.contexts.values().map(|entry| entry.context.tsg).collect();
        if tsgs.is_empty() {
            return Ok(());
        }
        let shared = self.shared();
        let mut hw = shared.hw.lock();
        hw.set(&shared.mmio, &shared.vram, &tsgs, schedule.time_slice_ns, schedule.runnable).map_err(lost)
    }

    /// What the client has had of the GPU so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let objects = self.objects.read();
        let mut usage = *self.retired.lock();
        for entry in objects.contexts.values() {
            if let Ok(now) = counters(&self.shared().mmio, entry.context.tsg) {
                usage.add(entry.base, now);
            }
        }
        usage
    }

    /// The queue, if it takes commands.
    pub(crate) fn queue(&self, objects: &Objects, id: QueueId) -> Result<Arc<Queue>, GpuError> {
        let queue = objects.queues.get(&id).ok_or_else(|| unknown("queue", id.0))?;
        match queue.channel.context.error() {
            Some(error) => Err(failed(error)),
            None => Ok(Arc::clone(queue)),
        }
    }

    /// Address of a queue's workspace for cooperative grids.
    pub(crate) fn workspace(&self, queue: &Queue) -> Result<u64, GpuError> {
        let mut workspace = queue.workspace.lock();
        if queue.channel.is_closed() {
            return Err(invalid("the queue was destroyed".into()));
        }
        let (at, memory) = match workspace.take() {
            Some(there) => there,
            None => self.place(PAGE_BYTES, false, |_, _| Ok(()))?,
        };
        *workspace = Some((at, memory));
        Ok(at)
    }
}

impl Queue {
    /// True if it has completed everything; starts finding out, if that takes a fence.
    fn has_ended(&self) -> bool {
        self.channel.ring.try_lock().is_some_and(|mut ring| ring.finish())
    }
}

impl Usage {
    fn add(&mut self, from: Counters, to: Counters) {
        self.gpu_time_ns += to.time.saturating_sub(from.time);
        self.kernels += u64::from(to.grids.wrapping_sub(from.grids));
        self.copies += u64::from(to.copies.wrapping_sub(from.copies));
    }
}

fn counters(mmio: &Mmio, tsg: u32) -> Result<Counters, Lost> {
    let word = |word| mmio.read(accounting::word(tsg, word));
    let time = loop {
        let hi = word(accounting::TIME_HI)?;
        let lo = word(accounting::TIME_LO)?;
        if word(accounting::TIME_HI)? == hi {
            break u64::from(hi) << 32 | u64::from(lo);
        }
    };
    Ok(Counters { time, grids: word(accounting::GRIDS)?, copies: word(accounting::COPIES)? })
}
