//! A guest's registers: the map that the device has, with what a guest may know and do behind it.

use std::collections::{HashMap, HashSet};

use gpu_spec::host::TURING_CHANNEL_GPFIFO_A;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::pv;
use gpu_spec::ramfc::place;
use gpu_spec::regs::{self, CHANNELS, accounting, budget, identity, vector, vf};
use gpu_spec::tlb::{Invalidation, Operands};

use crate::mediator::{Vgpu, counters};

/// Base of the PRAMIN window, in units of 64 KiB.
const PRAMIN_BASE: u32 = 0x1700;
/// The window: 1 MiB of VRAM.
const PRAMIN: u32 = 0x70_0000;
const PRAMIN_BYTES: u32 = 1 << 20;
/// Runlists of a TU104.
const RUNLISTS: u32 = 11;
/// Number of channels, `PFIFO_CFG1`.
const PFIFO_CFG1: u32 = 0x2008;
/// Class of channels, `PFIFO_CFG2`.
const PFIFO_CFG2: u32 = 0x200c;

/// Registers that only remember what was written.
#[derive(Debug, Default)]
pub(crate) struct Latches {
    pramin: u32,
    runlists: [[u32; 2]; RUNLISTS as usize],
    preempt: u32,
    disabled: u32,
    pub(crate) mailbox: [u32; vf::MAILBOXES as usize],
    page_fault_ctrl: u32,
    invalidate: Operands,
    /// Instance block registers, by channel.
    pub(crate) instances: HashMap<u32, u32>,
    /// Channels that could not be bound.
    pub(crate) refused: HashSet<u32>,
}

/// Index of the register in a row of `count`, `stride` bytes apart from `base`, and the rest.
fn row(offset: u32, base: u32, stride: u32, count: u32) -> Option<(u32, u32)> {
    let at = offset.checked_sub(base)?;
    (at / stride < count).then_some((at / stride, at % stride))
}

fn within(offset: u32, base: u32, bytes: u32) -> Option<u32> {
    offset.checked_sub(base).filter(|at| *at < bytes)
}

/// Whether a register is a doorbell: there are two.
pub(crate) fn is_doorbell(offset: u32) -> bool {
    const BESIDE: u32 = regs::VF_BASE + vf::USER + regs::USERMODE_DOORBELL;
    matches!(offset, BESIDE | DOORBELL)
}

const DOORBELL: u32 = regs::USERMODE + regs::USERMODE_DOORBELL;

impl Vgpu {
    /// Reads a register (a multiple of 4).
    pub(crate) fn read_register(&self, offset: u32) -> u32 {
        if self.lines.is_lost() {
            return u32::MAX;
        }
        if let Some(at) = within(offset, regs::VF_BASE, vf::BYTES) {
            return self.read_vf(at);
        }
        if let Some(at) = within(offset, regs::USERMODE, regs::USERMODE_BYTES) {
            return self.read_user(at);
        }
        if let Some((number, register)) = row(offset, regs::PCCSR_INST, regs::PCCSR_STRIDE, CHANNELS) {
            return match register {
                0 => self.inner.lock().latches.instances.get(&number).copied().unwrap_or(0),
                4 => self.channel_state(number),
                _ => 0,
            };
        }
        if let Some((tsg, word)) = row(offset, accounting::BASE, accounting::STRIDE, accounting::TSGS) {
            return self.accounting(tsg, word);
        }
        if let Some((_, word)) = row(offset, budget::BASE, budget::STRIDE, budget::BUDGETS) {
            // The host's budget for the whole guest holds; those of the guest's own are not kept.
            let of_host = [budget::INTERPRETED, budget::COMPILING].contains(&word);
            let number = self.lease.budget_number();
            return if of_host { self.backing().read32(budget::word(number, word)) } else { 0 };
        }
        if let Some(at) = within(offset, PRAMIN, PRAMIN_BYTES) {
            let inner = self.inner.lock();
            return inner.memory.read_word(pramin(inner.latches.pramin, at)).unwrap_or(0);
        }
        let latches = &self.inner.lock().latches;
        match offset {
            regs::PTIMER_TIME_0 => self.time_ns() as u32,
            regs::PTIMER_TIME_1 => (self.time_ns() >> 32) as u32,
            PRAMIN_BASE => latches.pramin,
            PFIFO_CFG1 => CHANNELS,
            PFIFO_CFG2 => TURING_CHANNEL_GPFIFO_A,
            regs::PREEMPT => latches.preempt,
            regs::SCHED_DISABLE => latches.disabled,
            identity::VRAM_LO => self.balloon.shown() as u32,
            identity::VRAM_HI => (self.balloon.shown() >> 32) as u32,
            regs::PMC_BOOT_0 | regs::PMC_BOOT_42 | identity::MAGIC_WORD..=IDENTITY_END => self.backing().read32(offset),
            _ => match row(offset, regs::RUNLIST_BASE_LO, regs::RUNLIST_STRIDE, RUNLISTS) {
                Some((runlist, 0)) => latches.runlists[runlist as usize][0],
                Some((runlist, 4)) => latches.runlists[runlist as usize][1],
                // Switches and preemptions are done when the write returns.
                _ => 0,
            },
        }
    }

    /// Writes a register (a multiple of 4).
    pub(crate) fn write_register(&self, offset: u32, value: u32) {
        if self.lines.is_lost() {
            return;
        }
        if let Some(at) = within(offset, regs::USERMODE, regs::USERMODE_BYTES) {
            return self.write_user(at, value);
        }
        if let Some(at) = within(offset, regs::VF_BASE, vf::BYTES) {
            return self.write_vf(at, value);
        }
        if let Some((number, register)) = row(offset, regs::PCCSR_INST, regs::PCCSR_STRIDE, CHANNELS) {
            return match register {
                0 => self.bind(number, value),
                4 => self.control_channel(number, value),
                _ => {}
            };
        }
        if let Some(at) = within(offset, PRAMIN, PRAMIN_BYTES) {
            let window = self.inner.lock().latches.pramin;
            return self.store(pramin(window, at), &value.to_le_bytes());
        }
        match offset {
            PRAMIN_BASE => self.inner.lock().latches.pramin = value,
            regs::SCHED_DISABLE => self.inner.lock().latches.disabled = value,
            regs::PREEMPT => {
                let is_tsg = regs::PREEMPT_TYPE.get(value) == regs::PREEMPT_TYPE_TSG;
                let stopped = self.preempt(regs::PREEMPT_ID.get(value), is_tsg);
                self.inner.lock().latches.preempt = regs::PREEMPT_PENDING.with(value, u32::from(!stopped));
            }
            regs::RUNLIST_PREEMPT => {
                let tsgs: Vec<u32> = self.inner.lock().tsgs.keys().copied().collect();
                for tsg in tsgs.into_iter().filter(|_| value & 1 != 0) {
                    self.preempt(tsg, true);
                }
            }
            _ => match row(offset, regs::RUNLIST_BASE_LO, regs::RUNLIST_STRIDE, RUNLISTS) {
                Some((runlist, 0)) => self.inner.lock().latches.runlists[runlist as usize][0] = value,
                Some((runlist, 4)) => self.inner.lock().latches.runlists[runlist as usize][1] = value,
                // The first is for compute and copies, as on the device.
                Some((0, 8)) => {
                    let [lo, hi] = self.inner.lock().latches.runlists[0];
                    let address = lo & regs::RUNLIST_BASE_ADDRESS.mask() as u32;
                    if let Some(base) = place(regs::RUNLIST_BASE_TARGET.get(lo), address, hi) {
                        self.submit_runlist(base, regs::RUNLIST_SUBMIT_LENGTH.get(value));
                    }
                }
                _ => {}
            },
        }
    }

    fn read_user(&self, at: u32) -> u32 {
        match at {
            regs::USERMODE_CFG0 => regs::TURING_USERMODE_A,
            regs::USERMODE_TIME_0 => self.time_ns() as u32,
            regs::USERMODE_TIME_1 => (self.time_ns() >> 32) as u32,
            _ => 0,
        }
    }

    fn write_user(&self, at: u32, value: u32) {
        if at == regs::USERMODE_DOORBELL {
            self.ring(regs::DOORBELL_CHANNEL.get(value));
        }
    }

    fn read_vf(&self, at: u32) -> u32 {
        if let Some(at) = within(at, vf::USER, regs::USERMODE_BYTES) {
            return self.read_user(at);
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF, 4, vf::INTR_LEAVES) {
            return self.lines.look(|tree| tree.leaf(leaf));
        }
        for base in [vf::INTR_LEAF_EN_SET, vf::INTR_LEAF_EN_CLEAR] {
            if let Some((leaf, 0)) = row(at, base, 4, vf::INTR_LEAVES) {
                return self.lines.look(|tree| tree.enabled(leaf));
            }
        }
        match at {
            vf::INTR_TOP => return self.lines.look(|tree| tree.top()),
            vf::INTR_TOP_EN_SET | vf::INTR_TOP_EN_CLEAR => return self.lines.look(|tree| tree.subtrees()),
            vf::TIMER_0 => return self.time_ns() as u32,
            vf::TIMER_1 => return (self.time_ns() >> 32) as u32,
            _ => {}
        }
        let mailbox = row(at, vf::MAILBOX, 4, vf::MAILBOXES);
        if let Some(value) = mailbox.and_then(|(index, _)| self.read_balloon(index)) {
            return value;
        }
        let inner = self.inner.lock();
        if let Some((index, 0)) = mailbox {
            let offer = index == pv::OFFER && self.offers_hypercalls();
            return if offer { pv::MAGIC } else { inner.latches.mailbox[index as usize] };
        }
        let invalidate = &inner.latches.invalidate;
        match at {
            vf::FAULT_BUFFER_LO => inner.faults.lo,
            vf::FAULT_BUFFER_HI => inner.faults.hi,
            vf::FAULT_BUFFER_GET => inner.faults.get(),
            vf::FAULT_BUFFER_PUT => inner.faults.put(),
            vf::FAULT_BUFFER_SIZE => inner.faults.size,
            vf::PAGE_FAULT_CTRL => inner.latches.page_fault_ctrl,
            vf::MMU_INVALIDATE_PDB => invalidate.pdb,
            vf::MMU_INVALIDATE_UPPER_PDB => invalidate.upper_pdb,
            vf::MMU_INVALIDATE_VA_LO => invalidate.va_lo,
            vf::MMU_INVALIDATE_VA_HI => invalidate.va_hi,
            vf::MMU_INVALIDATE_PAGES => invalidate.pages,
            _ => 0,
        }
    }

    fn write_vf(&self, at: u32, value: u32) {
        if let Some(at) = within(at, vf::USER, regs::USERMODE_BYTES) {
            return self.write_user(at, value);
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF, 4, vf::INTR_LEAVES) {
            return self.lines.change(|tree| tree.clear(leaf, value));
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF_EN_SET, 4, vf::INTR_LEAVES) {
            self.lines.change(|tree| tree.enable(leaf, value));
            return self.listen();
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF_EN_CLEAR, 4, vf::INTR_LEAVES) {
            self.lines.change(|tree| tree.disable(leaf, value));
            return self.listen();
        }
        match at {
            vf::INTR_TOP_EN_SET => {
                self.lines.change(|tree| tree.enable_subtrees(value));
                return self.listen();
            }
            vf::INTR_TOP_EN_CLEAR => {
                self.lines.change(|tree| tree.disable_subtrees(value));
                return self.listen();
            }
            vf::PRIV_DOORBELL => {
                let mailbox = self.inner.lock().latches.mailbox;
                let word = |index: u32| mailbox[index as usize];
                let area = u64::from(word(pv::AREA_LO)) | u64::from(word(pv::AREA_HI)) << 32;
                let status = self.multicall(area, word(pv::COUNT));
                self.inner.lock().latches.mailbox[pv::STATUS as usize] = status;
                return;
            }
            vf::INTR_LEAF_TRIGGER => return self.lines.raise(value & 0xfff),
            vf::MMU_INVALIDATE if vf::INVALIDATE_TRIGGER.is_set(value) => return self.start_invalidate(value),
            _ => {}
        }
        let mailbox = row(at, vf::MAILBOX, 4, vf::MAILBOXES);
        if mailbox.is_some_and(|(index, _)| self.write_balloon(index, value)) {
            return;
        }
        let mut inner = self.inner.lock();
        if let Some((index, 0)) = mailbox {
            inner.latches.mailbox[index as usize] = value;
            return;
        }
        match at {
            vf::FAULT_BUFFER_LO => inner.faults.lo = value,
            vf::FAULT_BUFFER_HI => inner.faults.hi = value,
            vf::FAULT_BUFFER_GET => inner.faults.set_get(value),
            vf::FAULT_BUFFER_SIZE => inner.faults.size = value,
            vf::PAGE_FAULT_CTRL => inner.latches.page_fault_ctrl = value,
            vf::MMU_INVALIDATE_PDB => inner.latches.invalidate.pdb = value,
            vf::MMU_INVALIDATE_UPPER_PDB => inner.latches.invalidate.upper_pdb = value,
            vf::MMU_INVALIDATE_VA_LO => inner.latches.invalidate.va_lo = value,
            vf::MMU_INVALIDATE_VA_HI => inner.latches.invalidate.va_hi = value,
            vf::MMU_INVALIDATE_PAGES => inner.latches.invalidate.pages = value,
            _ => {}
        }
    }

    /// Hears of signals as long as the guest would.
    fn listen(&self) {
        self.lease.listen(self.lines.look(|tree| tree.hears(vector::NON_STALL)));
    }

    fn start_invalidate(&self, value: u32) {
        let operands = self.inner.lock().latches.invalidate;
        if let Some(Invalidation { root, range }) = operands.invalidation(value) {
            self.invalidate(root, &range);
        }
    }

    fn channel_state(&self, number: u32) -> u32 {
        let inner = self.inner.lock();
        match inner.channels.get(&number) {
            Some(channel) => {
                let state = self.backing().read32(regs::pccsr_channel(channel.host));
                regs::CHANNEL_PBDMA_FAULTED
                    .with(state, regs::CHANNEL_PBDMA_FAULTED.get(state) | u32::from(channel.failed))
            }
            None => regs::CHANNEL_PBDMA_FAULTED.of(inner.latches.refused.contains(&number).into()),
        }
    }

    fn control_channel(&self, number: u32, value: u32) {
        let mut inner = self.inner.lock();
        let Some(channel) = inner.channels.get_mut(&number) else { return };
        // One that has made a mistake stays off until it is bound again.
        let value = if channel.failed { regs::CHANNEL_ENABLE_SET.with(value, 0) } else { value };
        let host = channel.host;
        channel.enabled =
            (channel.enabled || regs::CHANNEL_ENABLE_SET.is_set(value)) && !regs::CHANNEL_ENABLE_CLR.is_set(value);
        drop(inner);
        self.backing().write32(regs::pccsr_channel(host), value);
    }

    fn accounting(&self, tsg: u32, word: u32) -> u32 {
        let inner = self.inner.lock();
        let Some(tsg) = inner.tsgs.get(&tsg) else { return 0 };
        let (time, grids, copies) = counters(self.backing(), tsg.host);
        let time = time.saturating_sub(tsg.base.0);
        match word {
            accounting::TIME_LO => time as u32,
            accounting::TIME_HI => (time >> 32) as u32,
            accounting::GRIDS => grids.wrapping_sub(tsg.base.1),
            accounting::COPIES => copies.wrapping_sub(tsg.base.2),
            _ => 0,
        }
    }
}

const IDENTITY_END: u32 = identity::NAME + identity::NAME_WORDS * 4 - 4;

/// Where the window shows a byte of VRAM.
fn pramin(base: u32, at: u32) -> PhysAddr {
    PhysAddr::vram((u64::from(base) << 16) + u64::from(at))
}
