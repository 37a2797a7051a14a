//! What runs: channel and TSG numbers, and the runlist.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use gpu_spec::mmu::PhysAddr;
use gpu_spec::regs::{self, vf};
use gpu_spec::runlist::RunlistEntry;
use zerocopy::IntoBytes;

use crate::mmio::{Lost, Mmio};
use crate::vram::{Run, Vram};

/// How long the device may take to stop or switch what runs. Kernels yield at loop back-edges, copies at lines.
const STOP_BOUND: Duration = Duration::from_secs(2);
/// How long the device may take to forget translations.
const INVALIDATE_BOUND: Duration = Duration::from_secs(2);
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

/// The device's scheduling state, owned by one driver and guarded by one lock.
#[derive(Debug)]
pub(crate) struct Hw {
    channels: Numbers,
    tsgs: Numbers,
    listed: BTreeMap<u32, Tsg>,
    /// The list in use, and the next.
    lists: [Run; 2],
    current: usize,
}

impl Hw {
    /// Bytes of a runlist that holds every channel, each in a TSG of its own.
    const LIST_BYTES: u64 = regs::CHANNELS as u64 * 2 * RunlistEntry::BYTES;

    pub(crate) fn new(vram: &Vram) -> Option<Hw> {
        let list = || vram.take_run(Self::LIST_BYTES, 4096);
        Some(Hw {
            channels: Numbers::new(regs::CHANNELS),
            tsgs: Numbers::new(regs::accounting::TSGS),
            listed: BTreeMap::new(),
            lists: [list()?, list()?],
            current: 0,
        })
    }

    pub(crate) fn take_channel(&mut self) -> Option<u32> {
        self.channels.free.pop()
    }

    pub(crate) fn put_channel(&mut self, channel: u32) {
        self.channels.free.push(channel);
    }

    /// Channels in use.
    pub(crate) fn channels_in_use(&self) -> u32 {
        regs::CHANNELS - self.channels.free.len() as u32
    }

    /// TSGs in use.
    pub(crate) fn tsgs_in_use(&self) -> u32 {
        regs::accounting::TSGS - self.tsgs.free.len() as u32
    }

    /// A new TSG without channels.
    pub(crate) fn take_tsg(&mut self, time_slice_ns: u64, runnable: bool) -> Option<u32> {
        let tsg = self.tsgs.free.pop()?;
        self.listed.insert(tsg, Tsg { time_slice_ns, runnable, channels: Vec::new() });
        Some(tsg)
    }

    /// Forgets a TSG whose channels are gone.
    pub(crate) fn put_tsg(&mut self, tsg: u32) {
        if self.listed.remove(&tsg).is_some() {
            self.tsgs.free.push(tsg);
        }
    }

    /// Puts a bound channel into its TSG and the device's runlist.
    pub(crate) fn add(&mut self, mmio: &Mmio, vram: &Vram, tsg: u32, channel: Listed) -> Result<(), Lost> {
        if let Some(tsg) = self.listed.get_mut(&tsg) {
            let at = tsg.channels.partition_point(|other| other.priority <= channel.priority);
            tsg.channels.insert(at, channel);
        }
        self.submit(mmio, vram)
    }

    /// Stops channels of a TSG for good and takes them out of the runlist: when this returns, the device no longer uses
    /// anything of theirs.
    pub(crate) fn remove(&mut self, mmio: &Mmio, vram: &Vram, tsg: u32, channels: &[u32]) -> Result<(), Lost> {
        for channel in channels {
            mmio.write(regs::pccsr_channel(*channel), regs::CHANNEL_ENABLE_CLR.of(1));
        }
        if let Some(tsg) = self.listed.get_mut(&tsg) {
            tsg.channels.retain(|listed| !channels.contains(&listed.channel));
        }
        self.submit(mmio, vram)?;
        self.preempt(mmio, tsg)?;
        for channel in channels {
            mmio.write(regs::pccsr_inst(*channel), 0);
        }
        Ok(())
    }

    /// Changes how TSGs are scheduled.
    pub(crate) fn set(
        &mut self,
        mmio: &Mmio,
        vram: &Vram,
        tsgs: &[u32],
        time_slice_ns: u64,
        runnable: bool,
    ) -> Result<(), Lost> {
        for tsg in tsgs {
            if let Some(listed) = self.listed.get_mut(tsg) {
                listed.time_slice_ns = time_slice_ns;
                listed.runnable = runnable;
            }
        }
        self.submit(mmio, vram)?;
        if !runnable {
            for tsg in tsgs {
                self.preempt(mmio, *tsg)?;
            }
        }
        Ok(())
    }

    fn preempt(&mut self, mmio: &Mmio, tsg: u32) -> Result<(), Lost> {
        mmio.write(regs::PREEMPT, regs::PREEMPT_ID.of(tsg) | regs::PREEMPT_TYPE.of(regs::PREEMPT_TYPE_TSG));
        mmio.poll(regs::PREEMPT, STOP_BOUND, "the device does not stop what runs", |value| {
            !regs::PREEMPT_PENDING.is_set(value)
        })
    }

    /// Hands the device a new list and waits until it uses it.
    fn submit(&mut self, mmio: &Mmio, vram: &Vram) -> Result<(), Lost> {
        let mut entries = Vec::new();
        for (id, tsg) in self.listed.iter().filter(|(_, tsg)| tsg.runnable && !tsg.channels.is_empty()) {
            entries.push(RunlistEntry::tsg(*id, tsg.channels.len() as u32, tsg.time_slice_ns));
            entries.extend(tsg.channels.iter().map(|c| RunlistEntry::channel(c.channel, c.userd, c.instance)));
        }
        self.current ^= 1;
        let at = self.lists[self.current].offset;
        vram.backing().vram().write(at as usize, entries.as_bytes());
        let base = RUNLIST * regs::RUNLIST_STRIDE;
        let lo = at as u32 & regs::RUNLIST_BASE_ADDRESS.mask() as u32;
        mmio.write(regs::RUNLIST_BASE_LO + base, lo | regs::RUNLIST_BASE_TARGET.of(0));
        mmio.write(regs::RUNLIST_BASE_HI + base, (at >> 32) as u32);
        mmio.write(regs::RUNLIST_SUBMIT + base, regs::RUNLIST_SUBMIT_LENGTH.of(entries.len() as u32));
        mmio.poll(regs::RUNLIST_INFO + base, STOP_BOUND, "the device does not take a runlist", |value| {
            !regs::RUNLIST_INFO_PENDING.is_set(value)
        })
    }

    /// Makes the device forget its translations of some ranges (or of all addresses) of a page directory.
    pub(crate) fn invalidate(
        &mut self,
        mmio: &Mmio,
        root: PhysAddr,
        ranges: Option<&[Range<u64>]>,
    ) -> Result<(), Lost> {
        let at = |offset| regs::VF_BASE + offset;
        mmio.write(at(vf::MMU_INVALIDATE_PDB), root.address as u32 & vf::INVALIDATE_PDB_ADDRESS.mask() as u32);
        mmio.write(at(vf::MMU_INVALIDATE_UPPER_PDB), (root.address >> 32) as u32);
        let trigger = |bits: u32| {
            mmio.write(at(vf::MMU_INVALIDATE), vf::INVALIDATE_TRIGGER.of(1) | bits);
            mmio.poll(at(vf::MMU_INVALIDATE), INVALIDATE_BOUND, "the device keeps old translations", |value| {
                !vf::INVALIDATE_TRIGGER.is_set(value)
            })
        };
        let Some(ranges) = ranges else { return trigger(vf::INVALIDATE_ALL_VA.of(1)) };
        for range in ranges {
            mmio.write(at(vf::MMU_INVALIDATE_VA_LO), range.start as u32 & !0xfff);
            mmio.write(at(vf::MMU_INVALIDATE_VA_HI), (range.start >> 32) as u32);
            mmio.write(at(vf::MMU_INVALIDATE_PAGES), ((range.end - range.start) / 4096) as u32);
            trigger(0)?;
        }
        Ok(())
    }
}
