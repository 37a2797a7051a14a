//! Parts of the device for somebody who runs channels of others: the mediator of virtual GPUs.
//!
//! A [`Lease`] holds VRAM, channel and TSG numbers. They come from the same tables as those of the driver's own clients, the
//! TSGs are in the same runlist, and what is given back is stopped, scrubbed and free for everybody. What the mediator writes into
//! instance blocks and page tables is its business: it must grant nothing that it has not taken here.
//!
//! [`Mediator`] hears what becomes of it: faults of instance blocks in its VRAM, stopped channels, signals.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use device_io::{BusAddr, DeviceBacking, DmaMemory};
use gpu::GpuError;
use gpu_spec::fault::Fault;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, accounting};
use hostmem::Memfd;
use intervals::IntervalMap;
use parking_lot::Mutex;

use crate::budget::Budget;
use crate::contexts::{Counters, Usage, counters};
use crate::driver::Driver;
use crate::metering::{Metered, Readings};
use crate::mmio::{Mmio, Stuck};
use crate::scheduling::Listed;
use crate::signals::Asleep;
use crate::vram::{Owner, Run};

/// The device has not let go of something in time: what it is about is not used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotLetGo(&'static str);

impl From<Stuck> for NotLetGo {
    fn from(Stuck(what): Stuck) -> NotLetGo {
        NotLetGo(what)
    }
}

/// Hears what becomes of a lease's channels. All of it on the driver's interrupt thread, which must not be kept.
pub trait Mediator: Send + Sync {
    /// A page fault; its instance block lies in VRAM of the lease.
    fn fault(&self, fault: &Fault);

    /// Channels were stopped with an error, of whomever: notifiers tell whose.
    fn channel_error(&self);

    /// Work of the lease has asked for an interrupt, or now and then somebody else's; only while the lease listens
    /// ([`Lease::listen`]).
    fn signal(&self);

    /// The device is gone for good.
    fn lost(&self);
}

/// A channel in the runlist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedChannel {
    /// The channel's number on the device.
    pub channel: u32,
    /// Its USERD.
    pub userd: PhysAddr,
    /// Its instance block.
    pub instance: PhysAddr,
}

/// A run of VRAM that a lease holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VramRange {
    /// First byte.
    pub offset: u64,
    /// Whole pages.
    pub bytes: u64,
}

/// A lease as the interrupt thread knows it.
pub(crate) struct Leased {
    mediator: Arc<dyn Mediator>,
    listening: AtomicBool,
    /// The budget that pays for interrupts.
    payer: u32,
    /// TSGs, and how many interrupts each had asked for when the mediator was told last.
    asked: Mutex<Vec<(u32, u32)>>,
    /// Signals of others since then.
    others: AtomicU32,
    vram: Mutex<IntervalMap<()>>,
}

/// So many signals of others are told as well, as one: who listens without need finds out, and leaves off.
const TOLD_OF_OTHERS: u32 = 16;

impl Leased {
    /// Bytes of VRAM held.
    pub(crate) fn vram_bytes(&self) -> u64 {
        self.vram.lock().iter().map(|(range, ())| range.end - range.start).sum()
    }

    /// Tells who listens, if work of the lease has asked for an interrupt since. Gives who listens: it pays for signals of others,
    /// too, which interrupt because of it.
    pub(crate) fn signal(&self, mmio: &Mmio) -> Option<Asleep> {
        if !self.listening.load(Ordering::SeqCst) {
            return None;
        }
        let mut asked = self.asked.lock();
        let mut any = false;
        for (tsg, before) in asked.iter_mut() {
            let now = mmio.read(accounting::interrupts(*tsg)).unwrap_or(*before);
            any |= std::mem::replace(before, now) != now;
        }
        let looks = asked.len() as u32;
        drop(asked);
        if any || self.others.fetch_add(1, Ordering::Relaxed) + 1 >= TOLD_OF_OTHERS {
            self.others.store(0, Ordering::Relaxed);
            self.mediator.signal();
        }
        Some(Asleep { payer: self.payer, looks, waits: true })
    }

    pub(crate) fn channel_error(&self) {
        self.mediator.channel_error();
    }

    /// True if the fault is of this lease.
    pub(crate) fn fault(&self, fault: &Fault) -> bool {
        let ours = self.vram.lock().get(fault.instance.address).is_some();
        if ours {
            self.mediator.fault(fault);
        }
        ours
    }

    pub(crate) fn lost(&self) {
        self.mediator.lost();
    }
}

impl std::fmt::Debug for Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leased").field("listening", &self.listening).finish_non_exhaustive()
    }
}

/// Numbers that a lease holds.
#[derive(Debug, Default)]
struct Held {
    channels: Vec<u32>,
    /// TSGs, with their counters when they were taken.
    tsgs: Vec<(u32, Counters, Box<Readings>)>,
    /// What TSGs that are gone have had.
    retired: Usage,
    metered: Metered,
    /// Something did not stop: the device may use all that it can reach.
    stuck: bool,
}

/// A part of the device. What it holds goes back when it is dropped.
#[derive(Debug)]
pub struct Lease {
    driver: Arc<Driver>,
    budget: Arc<Budget>,
    leased: Arc<Leased>,
    held: Mutex<Held>,
    /// Bytes of VRAM held.
    vram: AtomicU64,
    most_channels: u32,
    channels: AtomicU32,
}

impl Driver {
    /// A lease of nothing yet, of at most `most_channels` channels, whose work costs `budget`.
    pub fn lease(self: &Arc<Driver>, budget: Arc<Budget>, most_channels: u32, mediator: Arc<dyn Mediator>) -> Lease {
        let leased = Arc::new(Leased {
            mediator,
            listening: AtomicBool::new(false),
            payer: budget.number(),
            asked: Mutex::default(),
            others: AtomicU32::new(0),
            vram: Mutex::default(),
        });
        self.device.leases.write().push(Arc::clone(&leased));
        Lease {
            driver: Arc::clone(self),
            budget,
            leased,
            held: Mutex::default(),
            vram: AtomicU64::new(0),
            most_channels,
            channels: AtomicU32::new(0),
        }
    }
}

impl Lease {
    /// The device: registers and VRAM.
    #[must_use]
    pub fn backing(&self) -> &Arc<dyn DeviceBacking> {
        self.driver.device.mmio.backing()
    }

    /// What its work may cost the host.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The budget's number on the device, for instance blocks.
    #[must_use]
    pub fn budget_number(&self) -> u32 {
        self.budget.number()
    }

    /// Bytes of VRAM held.
    #[must_use]
    pub fn vram_bytes(&self) -> u64 {
        self.vram.load(Ordering::Relaxed)
    }

    /// Bytes of VRAM that nobody has.
    #[must_use]
    pub fn vram_free(&self) -> u64 {
        self.driver.device.vram.free()
    }

    /// Takes `bytes` (whole pages) of VRAM in one run, aligned to `align`; all zero.
    #[must_use]
    pub fn take_vram(&self, bytes: u64, align: u64) -> Option<VramRange> {
        let Run { offset, bytes } = self.driver.device.vram.take_run(bytes, align, Owner::Device)?;
        // Nobody else has what the allocator has just given.
        let _ = self.leased.vram.lock().insert(offset..offset + bytes, ());
        self.vram.fetch_add(bytes, Ordering::Relaxed);
        Some(VramRange { offset, bytes })
    }

    /// Gives a run, or a part of one, back; it is scrubbed. The device must have no translation to it any more.
    pub fn put_vram(&self, range: VramRange) {
        if self.forget(range) {
            self.driver.device.vram.put(&[Run { offset: range.offset, bytes: range.bytes }], Owner::Device);
        }
    }

    /// Gives a run up for good, because the device may still use it.
    pub fn quarantine_vram(&self, range: VramRange) {
        if self.forget(range) {
            self.driver.device.vram.quarantine(&[Run { offset: range.offset, bytes: range.bytes }], Owner::Device);
        }
    }

    /// True if it was held.
    fn forget(&self, VramRange { offset, bytes }: VramRange) -> bool {
        let mut vram = self.leased.vram.lock();
        let held = vram.gaps(offset..offset + bytes).next().is_none();
        debug_assert!(held, "VRAM {offset:#x}+{bytes:#x} is not of this lease");
        if held {
            vram.cut_with(offset..offset + bytes, |(), _| ());
            self.vram.fetch_sub(bytes, Ordering::Relaxed);
        }
        held
    }

    /// Takes a channel number.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn take_channel(&self) -> Result<u32, GpuError> {
        let many = || GpuError::TooMany { what: "channels of a virtual GPU".into(), limit: self.most_channels.into() };
        let add = |count: u32| (count < self.most_channels).then_some(count + 1);
        self.channels.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| many())?;
        let taken = self.driver.device.scheduler.take_channel();
        let Some(channel) = taken else {
            self.channels.fetch_sub(1, Ordering::Relaxed);
            return Err(many());
        };
        self.held.lock().channels.push(channel);
        Ok(channel)
    }

    /// Gives a channel number back that [`Lease::stop`] has stopped.
    pub fn put_channel(&self, channel: u32) {
        let mut held = self.held.lock();
        if let Some(at) = held.channels.iter().position(|other| *other == channel) {
            held.channels.swap_remove(at);
            self.channels.fetch_sub(1, Ordering::Relaxed);
            self.driver.device.scheduler.put_channel(channel);
        }
    }

    /// A new TSG without channels, which may run or not ([`Lease::schedule`]).
    ///
    /// # Errors
    /// `TooMany`, or the device is lost.
    pub fn take_tsg(&self, time_slice_ns: u64, runnable: bool) -> Result<u32, GpuError> {
        let device = &self.driver.device;
        let limit = accounting::TSGS.into();
        let tsg = device.scheduler.take_tsg(time_slice_ns, runnable);
        let tsg = tsg.ok_or_else(|| GpuError::TooMany { what: "time-slice groups".into(), limit })?;
        let mmio = &device.mmio;
        let known = || {
            let (base, readings) = (counters(mmio, tsg)?, Readings::take(mmio, tsg)?);
            Ok((base, Box::new(readings), mmio.read(accounting::interrupts(tsg))?))
        };
        match known() {
            Ok((base, readings, asked)) => {
                self.held.lock().tsgs.push((tsg, base, readings));
                self.leased.asked.lock().push((tsg, asked));
                Ok(tsg)
            }
            Err(Stuck(reason)) => {
                device.scheduler.put_tsg(tsg, true);
                Err(GpuError::Lost { reason: reason.into() })
            }
        }
    }

    /// Gives a TSG back; its number is free again if its channels have been stopped (`let_go`).
    pub fn put_tsg(&self, tsg: u32, let_go: bool) {
        let device = &self.driver.device;
        // What it has asked for is told before it is forgotten.
        self.leased.signal(&device.mmio);
        self.leased.asked.lock().retain(|(other, _)| *other != tsg);
        let mut held = self.held.lock();
        if let Some(at) = held.tsgs.iter().position(|(other, ..)| *other == tsg) {
            let (_, base, readings) = held.tsgs.swap_remove(at);
            if let Ok(now) = Readings::take(&device.mmio, tsg) {
                held.metered.add(&readings, &now);
            }
            if let Ok(now) = counters(&device.mmio, tsg) {
                held.retired.add(base, now);
            }
            held.stuck |= !let_go;
            drop(held);
            device.scheduler.put_tsg(tsg, let_go);
        }
    }

    /// Has the runlist show these channels for a TSG, and none else, from now on.
    ///
    /// # Errors
    /// The device does not take the list.
    pub fn list(&self, tsg: u32, channels: &[ListedChannel]) -> Result<(), NotLetGo> {
        let listed =
            |c: &ListedChannel| Listed { channel: c.channel, userd: c.userd, instance: c.instance, priority: 0 };
        Ok(self.driver.device.scheduler.replace(tsg, channels.iter().map(listed).collect())?)
    }

    /// Says how TSGs are scheduled: their slice, and whether they run at all. What runs and may not is preempted.
    ///
    /// # Errors
    /// The device does not take the list, or something does not stop.
    pub fn schedule(&self, tsgs: &[u32], time_slice_ns: u64, runnable: bool) -> Result<(), NotLetGo> {
        let scheduler = &self.driver.device.scheduler;
        let wanted = scheduler.set(tsgs, time_slice_ns, runnable);
        Ok(scheduler.apply(wanted, if runnable { &[] } else { tsgs })?)
    }

    /// Stops what runs of a TSG now; it may go on in its next turn.
    ///
    /// # Errors
    /// It does not stop.
    pub fn preempt(&self, tsg: u32) -> Result<(), NotLetGo> {
        Ok(self.driver.device.scheduler.preempt(tsg)?)
    }

    /// Stops channels of a TSG for good: when this returns, the device no longer uses anything of theirs.
    ///
    /// # Errors
    /// They do not stop: nothing of theirs may be used again.
    pub fn stop(&self, tsg: u32, channels: &[u32]) -> Result<(), NotLetGo> {
        let stopped = self.driver.device.scheduler.remove(tsg, channels);
        self.held.lock().stuck |= stopped.is_err();
        Ok(stopped?)
    }

    /// Whether something of it did not stop, or is not forgotten: the device may use all that it could reach, whoever has it.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.held.lock().stuck
    }

    /// Binds a channel to an instance block.
    pub fn bind(&self, channel: u32, instance: PhysAddr) {
        let mmio = &self.driver.device.mmio;
        let inst = regs::INST_PTR.of((instance.address >> 12) as u32)
            | regs::INST_TARGET.of(gpu_spec::ramfc::target(instance.aperture))
            | regs::INST_BIND.of(1);
        mmio.write(regs::pccsr_inst(channel), inst);
    }

    /// Makes the device forget its translations of ranges of a page directory.
    ///
    /// # Errors
    /// It does not: the memory behind must not be used again.
    pub fn invalidate(&self, root: PhysAddr, ranges: &[Range<u64>]) -> Result<(), NotLetGo> {
        self.forgotten(self.driver.device.scheduler.invalidate(root, ranges))
    }

    /// Makes the device forget all translations of a page directory, which no channel uses any more.
    ///
    /// # Errors
    /// It does not: the tables and the memory behind must not be used again.
    pub fn invalidate_all(&self, root: PhysAddr) -> Result<(), NotLetGo> {
        self.forgotten(self.driver.device.scheduler.invalidate_all(root))
    }

    fn forgotten(&self, forgotten: Result<(), Stuck>) -> Result<(), NotLetGo> {
        self.held.lock().stuck |= forgotten.is_err();
        Ok(forgotten?)
    }

    /// Makes memory of somebody else's addressable for the device. It costs a descriptor, and an entry of the host's memory
    /// map; [`Lease::free_dma`] gives them back.
    ///
    /// # Errors
    /// `OutOfMemory` if the budget has none left; else what the device says.
    pub fn map_dma(&self, file: Memfd) -> io::Result<DmaMemory> {
        let full = |error| io::Error::new(io::ErrorKind::OutOfMemory, error);
        self.budget.charge_file().map_err(full)?;
        if let Err(error) = self.budget.charge_maps(1) {
            self.budget.refund_file();
            return Err(full(error));
        }
        self.backing().map_dma(Arc::new(file)).inspect_err(|_| self.refund_dma())
    }

    /// Undoes [`Lease::map_dma`].
    pub fn free_dma(&self, bus: BusAddr) {
        self.backing().free_dma(bus);
        self.refund_dma();
    }

    /// Books `after` entries of the host's memory map in place of `before`; false if the budget does not have so many.
    #[must_use]
    pub fn change_maps(&self, before: u32, after: u32) -> bool {
        match after.checked_sub(before) {
            Some(more) => self.budget.charge_maps(more).is_ok(),
            None => {
                self.budget.refund_maps(before - after);
                true
            }
        }
    }

    /// Books memory of the host's; false if the budget does not have so much.
    #[must_use]
    pub fn charge_bytes(&self, bytes: u64) -> bool {
        self.budget.charge_driver_bytes(bytes).is_ok()
    }

    /// Undoes [`Lease::charge_bytes`].
    pub fn refund_bytes(&self, bytes: u64) {
        self.budget.refund_driver_bytes(bytes);
    }

    fn refund_dma(&self) {
        self.budget.refund_file();
        self.budget.refund_maps(1);
    }

    /// Has [`Mediator::signal`] called when work of the lease asks for an interrupt, or not any more; and now, if it has
    /// asked since it was called last.
    pub fn listen(&self, on: bool) {
        let device = &self.driver.device;
        self.leased.listening.store(on, Ordering::SeqCst);
        if on {
            device.clients.listen_for_lease(self.leased.payer);
            self.leased.signal(&device.mmio);
        }
    }

    /// What the lease's TSGs have had of the GPU so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let held = self.held.lock();
        let mut usage = held.retired;
        for (tsg, base, _) in &held.tsgs {
            if let Ok(now) = counters(&self.driver.device.mmio, *tsg) {
                usage.add(*base, now);
            }
        }
        usage
    }

    /// What the lease's TSGs have had of the GPU so far, in full.
    #[must_use]
    pub fn metered(&self) -> Metered {
        let held = self.held.lock();
        let mut metered = held.metered;
        for (tsg, _, from) in &held.tsgs {
            if let Ok(to) = Readings::take(&self.driver.device.mmio, *tsg) {
                metered.add(from, &to);
            }
        }
        metered
    }

    /// Whether one of the lease's channels has work that waits for nothing but its turn, or does it now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let mmio = &self.driver.device.mmio;
        let channels = self.held.lock().channels.clone();
        let ready = |channel: &u32| {
            let state = mmio.read(regs::pccsr_channel(*channel)).unwrap_or(0);
            let status = regs::CHANNEL_STATUS.get(state);
            matches!(status, regs::CHANNEL_STATUS_PENDING | regs::CHANNEL_STATUS_ON_ENGINE)
        };
        channels.iter().any(ready)
    }

    /// Channels held.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.channels.load(Ordering::Relaxed)
    }

    /// Whether the device is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.driver.is_lost()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let device = &self.driver.device;
        device.leases.write().retain(|other| !Arc::ptr_eq(other, &self.leased));
        let held = std::mem::take(self.held.get_mut());
        for channel in &held.channels {
            device.mmio.write(regs::pccsr_channel(*channel), regs::CHANNEL_ENABLE_CLR.of(1));
        }
        let mut stopped = if held.stuck { Err(Stuck("work of a virtual GPU did not stop")) } else { Ok(()) };
        for (tsg, ..) in &held.tsgs {
            let gone = device.scheduler.replace(*tsg, Vec::new()).and_then(|()| device.scheduler.preempt(*tsg));
            device.scheduler.put_tsg(*tsg, gone.is_ok());
            stopped = stopped.and(gone);
        }
        if stopped.is_ok() {
            held.channels.iter().for_each(|channel| device.mmio.write(regs::pccsr_inst(*channel), 0));
        }
        let run = |(range, ()): (Range<u64>, &())| Run { offset: range.start, bytes: range.end - range.start };
        let runs: Vec<Run> = self.leased.vram.lock().iter().map(run).collect();
        match stopped {
            Ok(()) => {
                held.channels.iter().for_each(|channel| device.scheduler.put_channel(*channel));
                device.vram.put(&runs, Owner::Device);
            }
            Err(stuck) => {
                log_limit::error!(%stuck, "what a virtual GPU used is not used again");
                device.vram.quarantine(&runs, Owner::Device);
            }
        }
    }
}
