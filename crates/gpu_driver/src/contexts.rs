//! Life and death of contexts, and how they are scheduled and metered.
//!
//! ```text
//!            create_context              destroy_context, close             let go
//!   (none) ─────────────────► Open ─────────────────────────────► Ending ─────────► Ended: counted in `retired`
//!                              │ channels are made as they         │ no channel is made any more; the device
//!                              │ are wanted                        │ stops what there is
//! ```
//! The client's `objects` are locked only where an arrow begins or ends. While a context is ending, which may take the
//! device seconds, its client and everybody else go on: metering counts it still, scheduling leaves it alone.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpu::{ContextId, GpuError, PAGE_BYTES, VramUse};
use gpu_spec::notifier;
use gpu_spec::regs::accounting;
use parking_lot::{Mutex, RwLockWriteGuard};

use crate::channels::Channels;
use crate::client::{Client, Objects, Schedule, lost};
use crate::context::Context;
use crate::metering::{Metered, Readings};
use crate::mmio::{Mmio, Stuck};
use crate::space::unknown;

/// Most contexts of a client.
const MAX_CONTEXTS: usize = 64;

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
pub(crate) struct Counters {
    time: u64,
    grids: u32,
    copies: u32,
}

/// A context and what belongs to it.
#[derive(Debug)]
pub(crate) struct ContextEntry {
    pub(crate) context: Arc<Context>,
    /// Tells it from others of the client, those that are gone included.
    pub(crate) number: u32,
    pub(crate) channels: Mutex<Channels>,
    /// Counters of its TSG when it began.
    base: Counters,
    /// Those of metering, if the client is metered.
    metered: Option<Box<Readings>>,
}

impl Client {
    pub(crate) fn context(&self, id: ContextId) -> Result<Arc<Context>, GpuError> {
        let objects = self.objects.read();
        objects.contexts.get(&id).map(|entry| Arc::clone(&entry.context)).ok_or_else(|| unknown("context", id.0))
    }

    /// The objects, to add to them.
    pub(crate) fn objects_open(&self) -> Result<RwLockWriteGuard<'_, Objects>, GpuError> {
        let objects = self.objects.write();
        if objects.closed {
            return Err(GpuError::Lost { reason: "the client was closed".into() });
        }
        Ok(objects)
    }

    pub(crate) fn create_context(&self, id: ContextId, area: [u64; 3]) -> Result<(), GpuError> {
        self.layout()?;
        let mut objects = self.objects_open()?;
        if objects.contexts.len() + objects.ending.len() >= MAX_CONTEXTS {
            return Err(GpuError::TooMany { what: "contexts".into(), limit: MAX_CONTEXTS as u64 });
        }
        let number = objects.next_context;
        let Entry::Vacant(place) = objects.contexts.entry(id) else { return Err(unknown("context", id.0)) };
        let device = self.device();
        let notifier = self.vram.take_run(notifier::BYTES, PAGE_BYTES)?;
        let schedule = *self.schedule.lock();
        let tsg = device.scheduler.take_tsg(schedule.time_slice_ns, schedule.runnable);
        let base = tsg.map(|tsg| {
            let metered = self.metered.then(|| Readings::take(&device.mmio, tsg).map(Box::new));
            Ok::<_, Stuck>((counters(&device.mmio, tsg)?, metered.transpose()?))
        });
        let (Some(tsg), Some(Ok((base, metered)))) = (tsg, base) else {
            if let Some(tsg) = tsg {
                device.scheduler.put_tsg(tsg, true);
            }
            self.vram.put(&[notifier], VramUse::Upkeep);
            return Err(GpuError::TooMany { what: "contexts on the device".into(), limit: accounting::TSGS.into() });
        };
        let context = Arc::new(Context::new(tsg, area, Arc::clone(&self.signals), notifier));
        place.insert(Arc::new(ContextEntry { context, number, channels: Mutex::default(), base, metered }));
        objects.next_context += 1;
        Ok(())
    }

    pub(crate) fn destroy_context(&self, id: ContextId) -> Result<(), GpuError> {
        let _taking_down = self.taking_down.read();
        let entry = {
            let mut objects = self.objects.write();
            let entry = objects.contexts.remove(&id).ok_or_else(|| unknown("context", id.0))?;
            objects.end(&entry);
            entry
        };
        self.end_context(&entry).map_err(lost)
    }

    /// Ends all contexts, for good.
    pub(crate) fn destroy_all_contexts(&self) -> Result<(), Stuck> {
        let entries: Vec<Arc<ContextEntry>> = {
            let mut objects = self.objects.write();
            objects.closed = true;
            let entries = objects.contexts.drain().map(|(_, entry)| entry).collect();
            for entry in &entries {
                objects.end(entry);
            }
            entries
        };
        // First all begin to stop, then each is waited for.
        entries.iter().for_each(|entry| entry.context.end());
        let mut result = Ok(());
        for entry in &entries {
            result = self.end_context(entry).and(result);
        }
        result
    }

    /// Stops what a context runs, and gives back what it has. It is among the ending ones.
    fn end_context(&self, entry: &Arc<ContextEntry>) -> Result<(), Stuck> {
        let (device, context) = (self.device(), &entry.context);
        context.end();
        let channels = entry.channels.lock().close();
        for queue in self.parking.forget(entry.number) {
            self.take_kept(&mut queue.state.lock());
        }
        let stopped = self.tear_down(context, &channels);
        let now = counters(&device.mmio, context.tsg);
        let metered = entry.metered.as_ref().and_then(|_| Readings::take(&device.mmio, context.tsg).ok());
        {
            let mut objects = self.objects.write();
            objects.ending.retain(|other| !Arc::ptr_eq(other, entry));
            if let Ok(now) = now {
                objects.retired.add(entry.base, now);
            }
            if let (Some(from), Some(to)) = (&entry.metered, &metered) {
                objects.metered.add(from, to);
            }
        }
        device.scheduler.put_tsg(context.tsg, stopped.is_ok());
        self.give_back(context.take_notifier().as_slice(), VramUse::Upkeep, stopped);
        stopped
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

    fn reschedule(&self, change: impl FnOnce(&mut Schedule)) -> Result<(), GpuError> {
        let scheduler = &self.device().scheduler;
        let (wanted, stop) = {
            // A TSG of an open context is its context's until it has left `objects`.
            let objects = self.objects.read();
            let mut schedule = self.schedule.lock();
            change(&mut schedule);
            let tsgs: Vec<u32> = objects.contexts.values().map(|entry| entry.context.tsg).collect();
            if tsgs.is_empty() {
                return Ok(());
            }
            let wanted = scheduler.set(&tsgs, schedule.time_slice_ns, schedule.runnable);
            (wanted, if schedule.runnable { Vec::new() } else { tsgs })
        };
        scheduler.apply(wanted, &stop).map_err(lost)
    }

    /// Whether the GPU has work of the client that it can do now, or does now: work that waits for nothing but its turn.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let objects = self.objects.read();
        let mut alive = objects.contexts.values().filter(|entry| entry.context.error().is_none());
        alive.any(|entry| entry.context.is_ready(&self.device().mmio))
    }

    /// What the client has had of the GPU so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let objects = self.objects.read();
        let mut usage = objects.retired;
        for entry in objects.contexts.values().chain(&objects.ending) {
            if let Ok(now) = counters(&self.device().mmio, entry.context.tsg) {
                usage.add(entry.base, now);
            }
        }
        usage
    }
}

impl Client {
    /// What the client has had of the GPU so far, in full; of one that is not metered, only what the driver has copied.
    #[must_use]
    pub fn metered(&self) -> Metered {
        let objects = self.objects.read();
        let mut metered = objects.metered;
        for entry in objects.contexts.values().chain(&objects.ending) {
            if let Some(from) = &entry.metered
                && let Ok(to) = Readings::take(&self.device().mmio, entry.context.tsg)
            {
                metered.add(from, &to);
            }
        }
        metered.bytes_in += self.moved_in.load(Ordering::Relaxed);
        metered.bytes_out += self.moved_out.load(Ordering::Relaxed);
        metered
    }
}

impl Objects {
    /// A context is ending, and its queues with it.
    fn end(&mut self, entry: &Arc<ContextEntry>) {
        self.queues.retain(|_, queue| !Arc::ptr_eq(&queue.entry, entry));
        self.ending.push(Arc::clone(entry));
    }
}

impl Usage {
    pub(crate) fn add(&mut self, from: Counters, to: Counters) {
        self.gpu_time_ns += to.time.saturating_sub(from.time);
        self.kernels += u64::from(to.grids.wrapping_sub(from.grids));
        self.copies += u64::from(to.copies.wrapping_sub(from.copies));
    }
}

pub(crate) fn counters(mmio: &Mmio, tsg: u32) -> Result<Counters, Stuck> {
    let at = |word| accounting::word(tsg, word);
    let time = mmio.read_long(at(accounting::TIME_LO), at(accounting::TIME_HI))?;
    Ok(Counters { time, grids: mmio.read(at(accounting::GRIDS))?, copies: mmio.read(at(accounting::COPIES))? })
}
