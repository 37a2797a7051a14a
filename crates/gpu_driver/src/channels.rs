//! The channels of a context: made when they are wanted, shared by its queues.
//!
//! A channel is an instance block, 256 KiB of host memory, a place in the device's runlist, and runs one thing after the
//! other. A context has at most [`MAX_SHARED`] of them for its queues' work, so a thousand queues cost what 32 do. A queue is
//! bound to the channel with the fewest queues when it is first used, and stays: its own order is the channel's.
//!
//! A shared channel never holds a wait that may be for what lies behind it: see [`crate::parking`] for waits on slots. A wait
//! for a word in memory, which anybody may store at any time, goes to a *waiter*: a channel of which each queue that waits
//! has one to itself, up to [`MAX_WAITERS`] (then waiters are shared as well, in order, as streams are on hardware with so
//! many connections). The decision is written in `docs/decisions/008-streams-on-shared-channels.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device_io::VramOffset;
use gpu::{GpuError, PAGE_BYTES, VramUse};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::ramfc::INSTANCE_BLOCK_BYTES;
use gpu_spec::regs;
use zerocopy::IntoBytes;

use crate::channel::{BLOCK_BYTES, Channel};
use crate::client::{Client, lost};
use crate::context::Context;
use crate::contexts::ContextEntry;
use crate::driver::Registered;
use crate::mmio::Stuck;
use crate::scheduling::Listed;
use crate::space::{Backing, Memory, invalid};

/// Most channels of a context for its queues' work.
const MAX_SHARED: usize = 32;
/// Most channels of a context for waits on memory; with the others, less than a TSG's entry of the runlist can count (128).
const MAX_WAITERS: usize = 88;
/// Most channels of a client: what its contexts can make the host keep, 128 MiB.
const MAX_CHANNELS: u32 = 512;
/// Channels without queues that a context keeps: streams come and go.
const KEPT: usize = 4;

/// What a channel is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Work of any queues.
    Shared,
    /// Work of queues behind a wait on memory.
    Waiter,
}

/// The channels of a context.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    all: Vec<Arc<Channel>>,
    closed: bool,
}

/// A queue's use of a channel.
#[derive(Debug)]
pub(crate) struct Binding(Arc<Channel>);

impl Binding {
    fn new(channel: &Arc<Channel>) -> Binding {
        channel.queues.fetch_add(1, Ordering::Relaxed);
        Binding(Arc::clone(channel))
    }

    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.0
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if self.0.queues.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.common.unbound.store(true, Ordering::Release);
        }
    }
}

impl Channels {
    /// No channel is made any more; gives those that are to be torn down.
    pub(crate) fn close(&mut self) -> Vec<Arc<Channel>> {
        self.closed = true;
        std::mem::take(&mut self.all)
    }

    fn of(&self, purpose: Purpose) -> impl Iterator<Item = &Arc<Channel>> {
        self.all.iter().filter(move |channel| channel.purpose == purpose)
    }

    /// Takes out channels that no queue uses and that have completed everything, but a few. True if there will be more.
    fn take_idle(&mut self, idle: &mut Vec<Arc<Channel>>) -> bool {
        let unused = self.all.iter().filter(|channel| channel.queues.load(Ordering::Relaxed) == 0).count();
        let mut excess = unused.saturating_sub(KEPT);
        self.all.retain(|channel| {
            let goes = excess > 0 && channel.queues.load(Ordering::Relaxed) == 0 && channel.has_completed();
            if goes {
                excess -= 1;
                idle.push(Arc::clone(channel));
            }
            !goes
        });
        excess > 0
    }
}

impl Client {
    /// A channel for a queue of a context.
    pub(crate) fn bind(&self, entry: &ContextEntry, purpose: Purpose, priority: i32) -> Result<Binding, GpuError> {
        let mut channels = entry.channels.lock();
        if channels.closed {
            return Err(invalid("the context was destroyed".into()));
        }
        let load = |channel: &&Arc<Channel>| channel.queues.load(Ordering::Relaxed);
        let equals = |channel: &&Arc<Channel>| channel.priority == priority;
        let best = channels.of(purpose).filter(equals).min_by_key(load);
        // A waiter without a queue may still be waiting, for one that is gone.
        let free =
            |channel: &&Arc<Channel>| load(channel) == 0 && (purpose == Purpose::Shared || channel.has_completed());
        if let Some(free) = channels.of(purpose).filter(equals).find(free) {
            return Ok(Binding::new(free));
        }
        let most = if purpose == Purpose::Shared { MAX_SHARED } else { MAX_WAITERS };
        let failed = if channels.of(purpose).count() < most {
            match self.create_channel(entry, purpose, priority) {
                Ok(channel) => {
                    let channel = Arc::new(channel);
                    channels.all.push(Arc::clone(&channel));
                    return Ok(Binding::new(&channel));
                }
                Err(error) => error,
            }
        } else {
            GpuError::TooMany { what: "channels of a context".into(), limit: most as u64 }
        };
        // There is no room for one more, but one to share; if need be, of a priority that is near.
        let nearest =
            || channels.of(purpose).min_by_key(|channel| (channel.priority.abs_diff(priority), load(channel)));
        best.or_else(nearest).map(Binding::new).ok_or(failed)
    }

    fn create_channel(&self, entry: &ContextEntry, purpose: Purpose, priority: i32) -> Result<Channel, GpuError> {
        let layout = self.layout()?;
        let context = &entry.context;
        context.check()?;
        let device = self.device();
        let many = |limit: u32| GpuError::TooMany { what: "channels".into(), limit: limit.into() };
        let add = |count: u32| (count < MAX_CHANNELS).then_some(count + 1);
        self.channels.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| many(MAX_CHANNELS))?;
        let uncount = || {
            self.channels.fetch_sub(1, Ordering::Relaxed);
            self.budget.refund_channels(1);
        };
        if let Err(error) = self.budget.charge_channel() {
            self.channels.fetch_sub(1, Ordering::Relaxed);
            return Err(error);
        }
        let part = self.take_private(BLOCK_BYTES).inspect_err(|_| uncount())?;
        let block = Arc::new(Memory { bytes: BLOCK_BYTES, backing: Backing::Host(part.clone()) });
        let va = self.edit(|space| space.map_for_driver(&block, true)).inspect_err(|_| {
            // Entries made before the failure are gone from the tables, but maybe not from the device.
            let let_go = self.sync().map_err(|_| Stuck("the device keeps old translations"));
            self.give_private(&part, BLOCK_BYTES, let_go);
            uncount();
        })?;
        let instance = self.vram.take_run(INSTANCE_BLOCK_BYTES, INSTANCE_BLOCK_BYTES);
        let number = instance.as_ref().ok().and_then(|_| device.scheduler.take_channel());
        let (Ok(instance), Some(number)) = (&instance, number) else {
            if let Ok(instance) = instance {
                self.vram.put(&[instance], VramUse::Upkeep);
            }
            let unmapped = self.edit(|space| {
                space.unmap_for_driver(va, &block);
                Ok(())
            });
            let let_go = unmapped.and_then(|()| self.sync());
            self.give_private(&part, BLOCK_BYTES, let_go.map_err(|_| Stuck("the device keeps old translations")));
            uncount();
            return Err(instance.err().unwrap_or_else(|| many(regs::CHANNELS)));
        };
        let instance = *instance;
        let channel = Channel::new(&self.common, context, number, instance, (purpose, priority), &block, &part, va);
        let words = channel.instance_block(layout.root, layout.window, self.budget.number());
        device.vram.backing().write_vram(VramOffset(instance.offset), words.as_bytes());
        let since_ns = device.time_ns().unwrap_or(0);
        device.contexts.write().insert(instance.offset, Registered { context: Arc::clone(context), since_ns });
        context.add_channel(number);
        if let Err(error) = self.start(&channel) {
            // The reason is the error; that the channel cannot be stopped either adds nothing.
            let _ = self.tear_down(context, &[Arc::new(channel)]);
            return Err(error);
        }
        Ok(channel)
    }

    /// Binds and enables a new channel and has it scheduled.
    fn start(&self, channel: &Channel) -> Result<(), GpuError> {
        let device = self.device();
        let Channel { number, instance, context, priority, .. } = channel;
        let bind = regs::INST_PTR.of((instance.offset >> 12) as u32) | regs::INST_TARGET.of(0) | regs::INST_BIND.of(1);
        device.mmio.write(regs::pccsr_inst(*number), bind);
        device.mmio.write(regs::pccsr_channel(*number), regs::CHANNEL_ENABLE_SET.of(1));
        self.sync()?;
        let (userd, instance) = (channel.userd(), PhysAddr::vram(instance.offset));
        let listed = Listed { channel: *number, userd, instance, priority: *priority };
        device.scheduler.add(context.tsg, listed).map_err(lost)?;
        let mut ring = channel.ring.lock();
        ring.bind()?;
        ring.flush()
    }

    /// Destroys channels that no queue needs.
    pub(crate) fn reap(&self) {
        if !self.common.unbound.swap(false, Ordering::AcqRel) {
            return;
        }
        let _taking_down = self.taking_down.read();
        let entries: Vec<Arc<ContextEntry>> = self.objects.read().contexts.values().cloned().collect();
        for entry in entries {
            let mut idle = Vec::new();
            let more = entry.channels.lock().take_idle(&mut idle);
            if more && entry.context.error().is_none() {
                self.common.unbound.store(true, Ordering::Release);
            }
            // A device that is lost is heard of by everybody; what is only stuck is quarantined.
            let _ = self.tear_down(&entry.context, &idle);
        }
    }

    /// Stops channels of a context and frees what they have. They are not in its list any more; no lock is held.
    pub(crate) fn tear_down(&self, context: &Context, channels: &[Arc<Channel>]) -> Result<(), Stuck> {
        if channels.is_empty() {
            return Ok(());
        }
        let device = self.device();
        let numbers: Vec<u32> = channels.iter().map(|channel| channel.number).collect();
        let mut workspaces = Vec::new();
        for channel in channels {
            channel.close();
            workspaces.extend(channel.workspace.lock().take());
        }
        let stopped = device.scheduler.remove(context.tsg, &numbers);
        let unmapped = self.edit(|space| {
            for channel in channels {
                space.unmap_for_driver(channel.va, &channel.block);
            }
            for (at, memory) in &workspaces {
                space.unmap_for_driver(*at, memory);
            }
            Ok(())
        });
        debug_assert!(unmapped.is_ok(), "channels go before their address space");
        let forgotten = self.sync().map_err(|_| Stuck("the device keeps old translations"));
        let let_go = forgotten.and(stopped);
        for (_, workspace) in workspaces {
            self.free_memory(&workspace, forgotten);
        }
        for channel in channels {
            device.contexts.write().remove(&channel.instance.offset);
            context.remove_channel(channel.number);
            self.signals.forget(channel.number);
            // USERD lies in the block, and the device knows it by its physical address.
            self.give_private(&channel.part, BLOCK_BYTES, let_go);
            self.give_back(&[channel.instance], VramUse::Upkeep, let_go);
            if let_go.is_ok() {
                device.scheduler.put_channel(channel.number);
            }
        }
        // What the device keeps stays counted.
        if let_go.is_ok() {
            self.channels.fetch_sub(channels.len() as u32, Ordering::Relaxed);
            self.budget.refund_channels(channels.len() as u32);
        }
        let_go
    }

    /// Address of a channel's workspace for cooperative grids: what a grid's CTAs meet in.
    pub(crate) fn workspace(&self, channel: &Channel) -> Result<u64, GpuError> {
        let mut workspace = channel.workspace.lock();
        if channel.is_closed() {
            return Err(invalid("the queue was destroyed".into()));
        }
        let (at, memory) = match workspace.take() {
            Some(there) => there,
            None => self.place(self.take_vram(PAGE_BYTES, VramUse::Needed)?, false, |_, _| Ok(()))?,
        };
        *workspace = Some((at, memory));
        drop(workspace);
        self.sync()?;
        Ok(at)
    }
}
