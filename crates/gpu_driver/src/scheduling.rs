//! What runs: channel and TSG numbers, the runlist, stopping, and invalidation of translations.
//!
//! The device has one set of registers for each of these, and all clients use them. So no lock here is held longer than the
//! device takes to answer at once, whatever its tenants run or have mapped:
//!
//! - **`table`**: which channels are to be scheduled, and how. Held for a look or a change, never over a register.
//! - **`runlist`**: the list that the device uses. Whoever has changed the table has the device switch to it; a switch takes
//!   along what others changed meanwhile, and they find their change done:
//!
//! ```text
//!   change the table ──► wanted = its generation ──► take `runlist` ──► shown >= wanted? ── yes ──► done
//!                                                         ▲                  │ no
//!                                                         └── another ◄── copy the table, switch, shown = its generation
//! ```
//! - **`stop`**: the preemption register. A TSG that goes on gets [`TURN`] at a time, then whoever else wants to stop something
//!   has a turn:
//!
//! ```text
//!            written              done
//!   Listed ──────────► Stopping ────────► Stopped: its channels, numbers and memory are free
//!   (out of the list,     │  ▲
//!    disabled)       TURN │  │ next turn
//!                         ▼  │            after STOP_BOUND
//!                       Waiting ────────────────────────► Stuck: they are never used again; everybody else goes on
//! ```
//! - **`invalidation`**: the registers of TLB invalidates. Large ranges go in steps of [`INVALIDATE_STEP`], with others
//!   between them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_io::VramOffset;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, vf};
use gpu_spec::runlist::RunlistEntry;
use parking_lot::{Mutex, MutexGuard};
use zerocopy::IntoBytes;

use crate::mmio::{Mmio, Stuck};
use crate::vram::{Owner, Run, Vram};

/// How long what runs may take to stop. Kernels yield at loop back-edges, copies at lines.
const STOP_BOUND: Duration = Duration::from_secs(2);
/// How long one that stops something keeps the register from others.
const TURN: Duration = Duration::from_micros(200);
/// How long the device may take for what it does at once: use a list, forget translations.
const ANSWER_BOUND: Duration = Duration::from_secs(2);
/// Most bytes of addresses in one TLB invalidate: the device puts their pages in and takes them out one by one, 4,096 at most,
/// while others wait for the registers.
const INVALIDATE_STEP: u64 = 16 << 20;
/// Runlist in use; the GPU has one, for compute and copies.
const RUNLIST: u32 = 0;

/// Numbers to be had, lowest first.
#[derive(Debug)]
struct Numbers {
    free: Vec<u32>,
}

impl Numbers {
    fn new(count: u32) -> Numbers {
        Numbers { free: (0..count).rev().collect() }
    }
}

/// A channel in the runlist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) channel: u32,
    pub(crate) userd: PhysAddr,
    pub(crate) instance: PhysAddr,
    /// Lower is more urgent: comes earlier in its TSG.
    pub(crate) priority: i32,
}

/// A TSG in the runlist.
#[derive(Debug)]
struct Tsg {
    time_slice_ns: u64,
    runnable: bool,
    channels: Vec<Listed>,
}

/// What is to be scheduled.
#[derive(Debug)]
struct Table {
    channels: Numbers,
    tsgs: Numbers,
    listed: BTreeMap<u32, Tsg>,
    /// Counts changes.
    generation: u64,
}

/// The list that the device uses.
#[derive(Debug)]
struct Runlist {
    /// The one in use, and the next.
    lists: [Run; 2],
    current: usize,
    /// Generation of the table that the device has been given.
    shown: u64,
}

/// The device's scheduling, for all clients.
#[derive(Debug)]
pub(crate) struct Scheduler {
    mmio: Arc<Mmio>,
    vram: Arc<Vram>,
    table: Mutex<Table>,
    runlist: Mutex<Runlist>,
    stop: Mutex<()>,
    invalidation: Mutex<()>,
}

impl Scheduler {
    /// Bytes of a runlist that holds every channel, each in a TSG of its own.
    const LIST_BYTES: u64 = regs::CHANNELS as u64 * 2 * RunlistEntry::BYTES;

    pub(crate) fn new(mmio: &Arc<Mmio>, vram: &Arc<Vram>) -> Option<Scheduler> {
        let list = || vram.take_run(Self::LIST_BYTES, 4096, Owner::Device);
        let table = Table {
            channels: Numbers::new(regs::CHANNELS),
            tsgs: Numbers::new(regs::accounting::TSGS),
            listed: BTreeMap::new(),
            generation: 0,
        };
        Some(Scheduler {
            mmio: Arc::clone(mmio),
            vram: Arc::clone(vram),
            table: Mutex::new(table),
            runlist: Mutex::new(Runlist { lists: [list()?, list()?], current: 0, shown: 0 }),
            stop: Mutex::new(()),
            invalidation: Mutex::new(()),
        })
    }

    pub(crate) fn take_channel(&self) -> Option<u32> {
        self.table.lock().channels.free.pop()
    }

    pub(crate) fn put_channel(&self, channel: u32) {
        self.table.lock().channels.free.push(channel);
    }

    /// Channels and TSGs in use.
    pub(crate) fn in_use(&self) -> (u32, u32) {
        let table = self.table.lock();
        (regs::CHANNELS - table.channels.free.len() as u32, regs::accounting::TSGS - table.tsgs.free.len() as u32)
    }

    /// A new TSG without channels.
    pub(crate) fn take_tsg(&self, time_slice_ns: u64, runnable: bool) -> Option<u32> {
        let mut table = self.table.lock();
        let tsg = table.tsgs.free.pop()?;
        table.listed.insert(tsg, Tsg { time_slice_ns, runnable, channels: Vec::new() });
        Some(tsg)
    }

    /// Forgets a TSG whose channels are gone; its number is free again if the device has let go of it.
    pub(crate) fn put_tsg(&self, tsg: u32, let_go: bool) {
        let mut table = self.table.lock();
        if table.listed.remove(&tsg).is_some() && let_go {
            table.tsgs.free.push(tsg);
        }
    }

    /// Puts a bound channel into its TSG and the device's runlist.
    pub(crate) fn add(&self, tsg: u32, channel: Listed) -> Result<(), Stuck> {
        let wanted = self.change(|table| {
            if let Some(tsg) = table.listed.get_mut(&tsg) {
                let at = tsg.channels.partition_point(|other| other.priority <= channel.priority);
                tsg.channels.insert(at, channel);
            }
        });
        self.switch(wanted)
    }

    /// Puts these channels into the device's runlist for a TSG, instead of those it had.
    pub(crate) fn replace(&self, tsg: u32, channels: Vec<Listed>) -> Result<(), Stuck> {
        let wanted = self.change(|table| {
            if let Some(tsg) = table.listed.get_mut(&tsg) {
                tsg.channels = channels;
            }
        });
        self.switch(wanted)
    }

    /// Stops channels of a TSG for good and takes them out of the runlist: when this returns, the device no longer uses
    /// anything of theirs, unless they are stuck.
    pub(crate) fn remove(&self, tsg: u32, channels: &[u32]) -> Result<(), Stuck> {
        if channels.is_empty() {
            return Ok(());
        }
        for channel in channels {
            self.mmio.write(regs::pccsr_channel(*channel), regs::CHANNEL_ENABLE_CLR.of(1));
        }
        let wanted = self.change(|table| {
            if let Some(tsg) = table.listed.get_mut(&tsg) {
                tsg.channels.retain(|listed| !channels.contains(&listed.channel));
            }
        });
        self.switch(wanted)?;
        self.preempt(tsg)?;
        for channel in channels {
            self.mmio.write(regs::pccsr_inst(*channel), 0);
        }
        Ok(())
    }

    /// Says how TSGs are to be scheduled from now on; [`Scheduler::apply`] makes the device do it.
    pub(crate) fn set(&self, tsgs: &[u32], time_slice_ns: u64, runnable: bool) -> u64 {
        self.change(|table| {
            for tsg in tsgs {
                if let Some(listed) = table.listed.get_mut(tsg) {
                    listed.time_slice_ns = time_slice_ns;
                    listed.runnable = runnable;
                }
            }
        })
    }

    /// Makes the device do what [`Scheduler::set`] has said, and stops `tsgs`.
    pub(crate) fn apply(&self, wanted: u64, stop: &[u32]) -> Result<(), Stuck> {
        self.switch(wanted)?;
        stop.iter().try_for_each(|tsg| self.preempt(*tsg))
    }

    fn change(&self, change: impl FnOnce(&mut Table)) -> u64 {
        let mut table = self.table.lock();
        change(&mut table);
        table.generation += 1;
        table.generation
    }

    /// Has the device use the table of generation `wanted`, or a newer one.
    fn switch(&self, wanted: u64) -> Result<(), Stuck> {
        let mut runlist = self.runlist.lock();
        if runlist.shown >= wanted {
            return Ok(());
        }
        let mut entries = Vec::new();
        let generation = {
            let table = self.table.lock();
            for (id, tsg) in table.listed.iter().filter(|(_, tsg)| tsg.runnable && !tsg.channels.is_empty()) {
                entries.push(RunlistEntry::tsg(*id, tsg.channels.len() as u32, tsg.time_slice_ns));
                entries.extend(tsg.channels.iter().map(|c| RunlistEntry::channel(c.channel, c.userd, c.instance)));
            }
            table.generation
        };
        runlist.current ^= 1;
        let at = runlist.lists[runlist.current].offset;
        self.vram.backing().write_vram(VramOffset(at), entries.as_bytes());
        let base = RUNLIST * regs::RUNLIST_STRIDE;
        let lo = at as u32 & regs::RUNLIST_BASE_ADDRESS.mask() as u32;
        self.mmio.write(regs::RUNLIST_BASE_LO + base, lo | regs::RUNLIST_BASE_TARGET.of(0));
        self.mmio.write(regs::RUNLIST_BASE_HI + base, (at >> 32) as u32);
        self.mmio.write(regs::RUNLIST_SUBMIT + base, regs::RUNLIST_SUBMIT_LENGTH.of(entries.len() as u32));
        let taken = self
            .mmio
            .poll(regs::RUNLIST_INFO + base, ANSWER_BOUND, |value| !regs::RUNLIST_INFO_PENDING.is_set(value))?;
        if !taken {
            // Nothing can be scheduled any more, whoever it belongs to.
            self.mmio.give_up();
            return Err(Stuck("the device does not take a runlist"));
        }
        runlist.shown = generation;
        Ok(())
    }

    /// Stops what runs of a TSG, in turn with others who want something to stop.
    pub(crate) fn preempt(&self, tsg: u32) -> Result<(), Stuck> {
        let start = Instant::now();
        loop {
            let turn = self.stop.lock();
            self.mmio.write(regs::PREEMPT, regs::PREEMPT_ID.of(tsg) | regs::PREEMPT_TYPE.of(regs::PREEMPT_TYPE_TSG));
            let stopped = self.mmio.poll(regs::PREEMPT, TURN, |value| !regs::PREEMPT_PENDING.is_set(value));
            MutexGuard::unlock_fair(turn);
            if stopped? {
                return Ok(());
            }
            if start.elapsed() > STOP_BOUND {
                log_limit::error!(tsg, "work does not stop; what it uses is not used again");
                return Err(Stuck("work does not stop"));
            }
            std::thread::sleep(TURN);
        }
    }

    /// Makes the device forget its translations of some ranges of a page directory.
    pub(crate) fn invalidate(&self, root: PhysAddr, ranges: &[Range<u64>]) -> Result<(), Stuck> {
        let at = |offset| regs::VF_BASE + offset;
        for range in ranges {
            for start in (range.start..range.end).step_by(INVALIDATE_STEP as usize) {
                let bytes = (range.end - start).min(INVALIDATE_STEP);
                let prepare = || {
                    self.mmio.write(at(vf::MMU_INVALIDATE_VA_LO), start as u32 & !0xfff);
                    self.mmio.write(at(vf::MMU_INVALIDATE_VA_HI), (start >> 32) as u32);
                    self.mmio.write(at(vf::MMU_INVALIDATE_PAGES), (bytes / 4096) as u32);
                };
                self.invalidate_step(root, prepare, 0)?;
            }
        }
        Ok(())
    }

    /// Makes the device forget all translations of a page directory. Quick if most were forgotten before.
    pub(crate) fn invalidate_all(&self, root: PhysAddr) -> Result<(), Stuck> {
        self.invalidate_step(root, || {}, vf::INVALIDATE_ALL_VA.of(1))
    }

    fn invalidate_step(&self, root: PhysAddr, prepare: impl FnOnce(), bits: u32) -> Result<(), Stuck> {
        let at = |offset| regs::VF_BASE + offset;
        let registers = self.invalidation.lock();
        self.mmio.write(at(vf::MMU_INVALIDATE_PDB), root.address as u32 & vf::INVALIDATE_PDB_ADDRESS.mask() as u32);
        self.mmio.write(at(vf::MMU_INVALIDATE_UPPER_PDB), (root.address >> 32) as u32);
        prepare();
        self.mmio.write(at(vf::MMU_INVALIDATE), vf::INVALIDATE_TRIGGER.of(1) | bits);
        let done = self.mmio.poll(at(vf::MMU_INVALIDATE), ANSWER_BOUND, |value| !vf::INVALIDATE_TRIGGER.is_set(value));
        MutexGuard::unlock_fair(registers);
        if done? { Ok(()) } else { Err(Stuck("the device keeps old translations")) }
    }
}
