//! Registers: what reads give and what writes do.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gmmu::PhysMem;
use gpu_spec::host::TURING_CHANNEL_GPFIFO_A;
use gpu_spec::mmu::{Aperture, PhysAddr};
use gpu_spec::ramfc::place;
use gpu_spec::regs::{self, CHANNELS, accounting, budget, identity, metering, vf};
use gpu_spec::runlist::RunlistEntry;
use gpu_spec::tlb::{Invalidation, Operands};
use zerocopy::{FromZeros, IntoBytes};

use crate::channel::Channel;
use crate::device::Device;
use crate::front::Hold;

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
/// Most entries that are read of a runlist: every channel and every TSG once.
const MAX_RUNLIST: u32 = 2 * CHANNELS;

/// Registers that only remember what was written.
#[derive(Debug, Default)]
pub(crate) struct Latches {
    pramin: AtomicU32,
    runlist_base: [[AtomicU32; 2]; RUNLISTS as usize],
    preempt: AtomicU32,
    mailbox: [AtomicU32; vf::MAILBOXES as usize],
    page_fault_ctrl: AtomicU32,
    /// Page directory low and high, address low and high, pages.
    invalidate: [AtomicU32; 5],
}

fn load(word: &AtomicU32) -> u32 {
    word.load(Ordering::SeqCst)
}

fn store(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
}

/// Index of the register in a row of `count`, `stride` bytes apart from `base`, and the rest.
fn row(offset: u32, base: u32, stride: u32, count: u32) -> Option<(u32, u32)> {
    let at = offset.checked_sub(base)?;
    (at / stride < count).then_some((at / stride, at % stride))
}

/// What never changes.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) pci: [u32; 3],
    pub(crate) clock_khz: u32,
    pub(crate) vram_bytes: u64,
}

impl Identity {
    fn read(&self, offset: u32, workers: u32) -> u32 {
        let words = |bytes: &[u8], index: u32| {
            let mut word = [0; 4];
            for (to, from) in word.iter_mut().zip(bytes.iter().skip(index as usize * 4)) {
                *to = *from;
            }
            u32::from_le_bytes(word)
        };
        match offset {
            identity::MAGIC_WORD => identity::MAGIC,
            identity::MULTIPROCESSORS => workers,
            identity::CLOCK_KHZ => self.clock_khz,
            identity::MEMORY_CLOCK_KHZ => 2_400_000,
            identity::MEMORY_BUS_BITS => 128,
            identity::L2_BYTES => 4 << 20,
            identity::COMPUTE_CAPABILITY => 12 << 16,
            identity::VRAM_LO => self.vram_bytes as u32,
            identity::VRAM_HI => (self.vram_bytes >> 32) as u32,
            _ => {
                if let Some((index, 0)) = row(offset, identity::PCI, 4, 3) {
                    self.pci[index as usize]
                } else if let Some((index, 0)) = row(offset, identity::UUID, 4, 4) {
                    words(&self.uuid, index)
                } else if let Some((index, 0)) = row(offset, identity::NAME, 4, identity::NAME_WORDS) {
                    words(self.name.as_bytes(), index)
                } else {
                    0
                }
            }
        }
    }
}

impl Device {
    pub(crate) fn read_register(&self, offset: u32) -> u32 {
        let time = || self.chip.clock.now();
        if self.is_lost() {
            return u32::MAX;
        }
        if let Some(at) = within(offset, regs::VF_BASE, vf::BYTES) {
            return self.read_vf(at);
        }
        if let Some(at) = within(offset, regs::USERMODE, regs::USERMODE_BYTES) {
            return self.read_user(at);
        }
        if let Some(at) = within(offset, PRAMIN, PRAMIN_BYTES) {
            return self.pramin(at).and_then(|at| self.chip.memory.read_word(at)).unwrap_or(0);
        }
        if let Some((channel, register)) = row(offset, regs::PCCSR_INST, regs::PCCSR_STRIDE, CHANNELS) {
            return match register {
                0 => self.front.lock().ports[channel as usize].inst,
                4 => self.channel_state(channel),
                _ => 0,
            };
        }
        if let Some((tsg, word)) = row(offset, accounting::BASE, accounting::STRIDE, accounting::TSGS) {
            let totals = &self.chip.totals[tsg as usize];
            let ns = totals.worker_ns.load(Ordering::Relaxed) / self.chip.workers;
            return match word {
                accounting::TIME_LO => ns as u32,
                accounting::TIME_HI => (ns >> 32) as u32,
                accounting::GRIDS => totals.grids.load(Ordering::Relaxed),
                accounting::COPIES => totals.copies.load(Ordering::Relaxed),
                _ => 0,
            };
        }
        if let Some((tsg, 0)) = row(offset, accounting::INTERRUPTS, 4, accounting::TSGS) {
            return self.chip.totals[tsg as usize].interrupts.load(Ordering::SeqCst);
        }
        if let Some((tsg, word)) = row(offset, metering::BASE, metering::STRIDE, accounting::TSGS) {
            return self.metering(tsg, word);
        }
        if let Some((number, word)) = row(offset, budget::BASE, budget::STRIDE, budget::BUDGETS) {
            return self.chip.budgets.read(number, word);
        }
        match offset {
            regs::PMC_BOOT_0 => regs::BOOT_0_TU104,
            regs::PMC_BOOT_42 => regs::BOOT_42_TU104,
            regs::PTIMER_TIME_0 => time() as u32,
            regs::PTIMER_TIME_1 => (time() >> 32) as u32,
            PRAMIN_BASE => load(&self.latches.pramin),
            PFIFO_CFG1 => CHANNELS,
            PFIFO_CFG2 => TURING_CHANNEL_GPFIFO_A,
            metering::IDLE_LO => self.front.lock().unused().0 as u32,
            metering::IDLE_HI => (self.front.lock().unused().0 >> 32) as u32,
            metering::OVERHEAD_LO => self.front.lock().unused().1 as u32,
            metering::OVERHEAD_HI => (self.front.lock().unused().1 >> 32) as u32,
            regs::PREEMPT => {
                let pending = self.front.lock().hold.is_some();
                regs::PREEMPT_PENDING.with(load(&self.latches.preempt), pending.into())
            }
            regs::RUNLIST_PREEMPT => self.front.lock().hold_runlists,
            regs::SCHED_DISABLE => self.front.lock().disabled_runlists,
            _ => match row(offset, regs::RUNLIST_BASE_LO, regs::RUNLIST_STRIDE, RUNLISTS) {
                Some((runlist, 0)) => load(&self.latches.runlist_base[runlist as usize][0]),
                Some((runlist, 4)) => load(&self.latches.runlist_base[runlist as usize][1]),
                _ => self.identity.read(offset, self.chip.workers as u32),
            },
        }
    }

    fn metering(&self, tsg: u32, word: u32) -> u32 {
        use metering::{
            BYTES_IN_HI, BYTES_IN_LO, BYTES_OUT_HI, BYTES_OUT_LO, ENGINE_HI, ENGINE_LO, PREPARE_HI, PREPARE_LO,
            WAITED_HI, WAITED_LO, WAITS,
        };
        let totals = &self.chip.totals[tsg as usize];
        let number = |total: &AtomicU64| total.load(Ordering::Relaxed);
        let engine = || {
            // In this order: it never seems to have had less than it has.
            let prepared = number(&totals.prepare_ns);
            number(&totals.worker_ns).saturating_sub(prepared) / self.chip.workers
        };
        match word {
            ENGINE_LO => engine() as u32,
            ENGINE_HI => (engine() >> 32) as u32,
            PREPARE_LO => number(&totals.prepare_ns) as u32,
            PREPARE_HI => (number(&totals.prepare_ns) >> 32) as u32,
            BYTES_IN_LO => number(&totals.moved[0]) as u32,
            BYTES_IN_HI => (number(&totals.moved[0]) >> 32) as u32,
            BYTES_OUT_LO => number(&totals.moved[1]) as u32,
            BYTES_OUT_HI => (number(&totals.moved[1]) >> 32) as u32,
            WAITED_LO => number(&totals.waited_ns) as u32,
            WAITED_HI => (number(&totals.waited_ns) >> 32) as u32,
            _ => {
                let index = word.checked_sub(WAITS).map(|at| at as usize / 4);
                index.and_then(|index| totals.waits.get(index)).map_or(0, |count| count.load(Ordering::Relaxed))
            }
        }
    }

    pub(crate) fn write_register(&self, offset: u32, value: u32) {
        if self.is_lost() {
            return;
        }
        if let Some(at) = within(offset, regs::USERMODE, regs::USERMODE_BYTES) {
            return self.write_user(at, value);
        }
        if let Some(at) = within(offset, regs::VF_BASE, vf::BYTES) {
            return self.write_vf(at, value);
        }
        if let Some(at) = within(offset, PRAMIN, PRAMIN_BYTES) {
            if let Some(at) = self.pramin(at) {
                self.chip.memory.write_word(at, value);
            }
            return;
        }
        if let Some((channel, register)) = row(offset, regs::PCCSR_INST, regs::PCCSR_STRIDE, CHANNELS) {
            return match register {
                0 => self.bind(channel, value),
                _ => self.change(|front, chip| front.control_channel(chip, channel, value)),
            };
        }
        if let Some((number, word)) = row(offset, budget::BASE, budget::STRIDE, budget::BUDGETS) {
            self.chip.budgets.write(number, word, value);
            // Somebody may wait for the room.
            return if self.chip.budgets.is_freed() {
                self.change(|_, _| {})
            };
        }
        match offset {
            PRAMIN_BASE => store(&self.latches.pramin, value),
            regs::SCHED_DISABLE => self.change(|front, chip| front.disable_runlists(chip, value)),
            regs::PREEMPT => self.preempt(value),
            regs::RUNLIST_PREEMPT => {
                let runlists = value & ((1 << RUNLISTS) - 1);
                self.change(|front, chip| front.preempt_runlists(chip, runlists));
            }
            _ => match row(offset, regs::RUNLIST_BASE_LO, regs::RUNLIST_STRIDE, RUNLISTS) {
                Some((runlist, 0)) => store(&self.latches.runlist_base[runlist as usize][0], value),
                Some((runlist, 4)) => store(&self.latches.runlist_base[runlist as usize][1], value),
                Some((runlist, 8)) => self.submit_runlist(runlist, value),
                _ => {}
            },
        }
    }

    fn read_user(&self, at: u32) -> u32 {
        match at {
            regs::USERMODE_CFG0 => regs::TURING_USERMODE_A,
            regs::USERMODE_TIME_0 => self.chip.clock.now() as u32,
            regs::USERMODE_TIME_1 => (self.chip.clock.now() >> 32) as u32,
            _ => 0,
        }
    }

    fn write_user(&self, at: u32, value: u32) {
        if at == regs::USERMODE_DOORBELL {
            self.ring(regs::DOORBELL_CHANNEL.get(value));
        }
    }

    fn read_vf(&self, at: u32) -> u32 {
        let interrupts = &self.chip.interrupts;
        if let Some(at) = within(at, vf::USER, regs::USERMODE_BYTES) {
            return self.read_user(at);
        }
        for (base, read) in [
            (vf::INTR_LEAF, interrupts.leaf(leaf(at, vf::INTR_LEAF))),
            (vf::INTR_LEAF_EN_SET, interrupts.enabled(leaf(at, vf::INTR_LEAF_EN_SET))),
            (vf::INTR_LEAF_EN_CLEAR, interrupts.enabled(leaf(at, vf::INTR_LEAF_EN_CLEAR))),
        ] {
            if let Some((_, 0)) = row(at, base, 4, vf::INTR_LEAVES) {
                return read;
            }
        }
        if let Some((index, 0)) = row(at, vf::MAILBOX, 4, vf::MAILBOXES) {
            return load(&self.latches.mailbox[index as usize]);
        }
        let invalidate = &self.latches.invalidate;
        match at {
            vf::INTR_TOP => interrupts.top(),
            vf::INTR_TOP_EN_SET | vf::INTR_TOP_EN_CLEAR => interrupts.enabled_subtrees(),
            vf::TIMER_0 => self.chip.clock.now() as u32,
            vf::TIMER_1 => (self.chip.clock.now() >> 32) as u32,
            vf::FAULT_BUFFER_LO => self.chip.faults.lock().lo,
            vf::FAULT_BUFFER_HI => self.chip.faults.lock().hi,
            vf::FAULT_BUFFER_GET => self.chip.faults.lock().get(),
            vf::FAULT_BUFFER_PUT => self.chip.faults.lock().put(),
            vf::FAULT_BUFFER_SIZE => self.chip.faults.lock().size,
            vf::PAGE_FAULT_CTRL => load(&self.latches.page_fault_ctrl),
            vf::MMU_INVALIDATE_PDB => load(&invalidate[0]),
            vf::MMU_INVALIDATE_UPPER_PDB => load(&invalidate[1]),
            vf::MMU_INVALIDATE_VA_LO => load(&invalidate[2]),
            vf::MMU_INVALIDATE_VA_HI => load(&invalidate[3]),
            vf::MMU_INVALIDATE_PAGES => load(&invalidate[4]),
            // Writing it does not return before the invalidate is done.
            _ => 0,
        }
    }

    fn write_vf(&self, at: u32, value: u32) {
        let interrupts = &self.chip.interrupts;
        if let Some(at) = within(at, vf::USER, regs::USERMODE_BYTES) {
            return self.write_user(at, value);
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF, 4, vf::INTR_LEAVES) {
            return interrupts.clear(leaf, value);
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF_EN_SET, 4, vf::INTR_LEAVES) {
            return interrupts.enable(leaf, value);
        }
        if let Some((leaf, 0)) = row(at, vf::INTR_LEAF_EN_CLEAR, 4, vf::INTR_LEAVES) {
            return interrupts.disable(leaf, value);
        }
        if let Some((index, 0)) = row(at, vf::MAILBOX, 4, vf::MAILBOXES) {
            return store(&self.latches.mailbox[index as usize], value);
        }
        let invalidate = &self.latches.invalidate;
        match at {
            vf::INTR_TOP_EN_SET => interrupts.enable_subtrees(value),
            vf::INTR_TOP_EN_CLEAR => interrupts.disable_subtrees(value),
            vf::INTR_LEAF_TRIGGER => interrupts.raise(value & 0xfff),
            vf::FAULT_BUFFER_LO => self.chip.faults.lock().lo = value,
            vf::FAULT_BUFFER_HI => self.chip.faults.lock().hi = value,
            vf::FAULT_BUFFER_GET => self.chip.faults.lock().set_get(value),
            vf::FAULT_BUFFER_SIZE => self.chip.faults.lock().size = value,
            vf::PAGE_FAULT_CTRL => store(&self.latches.page_fault_ctrl, value),
            vf::MMU_INVALIDATE_PDB => store(&invalidate[0], value),
            vf::MMU_INVALIDATE_UPPER_PDB => store(&invalidate[1], value),
            vf::MMU_INVALIDATE_VA_LO => store(&invalidate[2], value),
            vf::MMU_INVALIDATE_VA_HI => store(&invalidate[3], value),
            vf::MMU_INVALIDATE_PAGES => store(&invalidate[4], value),
            vf::MMU_INVALIDATE if vf::INVALIDATE_TRIGGER.is_set(value) => self.invalidate(value),
            _ => {}
        }
    }

    fn pramin(&self, at: u32) -> Option<PhysAddr> {
        let base = u64::from(load(&self.latches.pramin)) << 16;
        at.is_multiple_of(4).then(|| PhysAddr::vram(base + u64::from(at)))
    }

    fn invalidate(&self, value: u32) {
        let [pdb, upper_pdb, va_lo, va_hi, pages] = self.latches.invalidate.each_ref().map(load);
        let operands = Operands { pdb, upper_pdb, va_lo, va_hi, pages };
        if let Some(Invalidation { root, range }) = operands.invalidation(value) {
            self.chip.spaces.invalidate(&self.chip, root, &range);
        }
    }

    fn channel_state(&self, channel: u32) -> u32 {
        let front = self.front.lock();
        let status = front.status(&self.chip, channel);
        let port = &front.ports[channel as usize];
        regs::CHANNEL_ENABLE.of(port.enabled.into())
            | regs::CHANNEL_PBDMA_FAULTED.of(port.pbdma_faulted.into())
            | regs::CHANNEL_ENG_FAULTED.of(port.eng_faulted.into())
            | regs::CHANNEL_STATUS.of(status)
            | regs::CHANNEL_BUSY.of((port.in_flight > 0).into())
    }

    fn bind(&self, channel: u32, value: u32) {
        // What is bound is written back before it is read again.
        self.change(|front, chip| front.unbind(chip, channel));
        // Outside the lock: it may have to show a whole address space.
        let bound = regs::INST_BIND.is_set(value).then(|| {
            let at = u64::from(regs::INST_PTR.get(value)) << 12;
            let inst = place(regs::INST_TARGET.get(value), at as u32, (at >> 32) as u32);
            let inst = inst.ok_or(PhysAddr::vram(at))?;
            Channel::bind(&self.chip, channel, inst).map_err(|_| inst)
        });
        self.change(|front, chip| front.bind(chip, channel, value, bound));
    }

    fn preempt(&self, value: u32) {
        store(&self.latches.preempt, regs::PREEMPT_PENDING.with(value, 0));
        let id = regs::PREEMPT_ID.get(value);
        let hold = match regs::PREEMPT_TYPE.get(value) {
            regs::PREEMPT_TYPE_CHANNEL => Hold::Channel(id),
            regs::PREEMPT_TYPE_TSG => Hold::Tsg(id as usize),
            _ => return,
        };
        self.change(|front, chip| front.preempt(chip, hold));
    }

    fn submit_runlist(&self, runlist: u32, value: u32) {
        let [lo, hi] = self.latches.runlist_base[runlist as usize].each_ref().map(load);
        let address = lo & regs::RUNLIST_BASE_ADDRESS.mask() as u32;
        let Some(base) = place(regs::RUNLIST_BASE_TARGET.get(lo), address, hi) else { return };
        let length = regs::RUNLIST_SUBMIT_LENGTH.get(value).min(MAX_RUNLIST);
        let mut entries = vec![RunlistEntry::new_zeroed(); length as usize];
        if self.chip.memory.read(base, entries.as_mut_bytes()).is_err() {
            tracing::debug!(?base, length, "runlist outside memory");
            return;
        }
        let mut list: Vec<(usize, u64, Vec<u32>)> = Vec::new();
        let mut instances = Vec::new();
        for entry in &entries {
            if entry.is_tsg() {
                list.push((entry.id() as usize, entry.timeslice_ns(), Vec::new()));
            } else if let (Some((_, _, channels)), Some(inst)) = (list.last_mut(), entry.inst()) {
                // A channel that stands before any TSG belongs to none, and is not scheduled.
                channels.push(entry.id());
                instances.push((entry.id(), inst));
            }
        }
        for (channel, inst) in instances {
            self.bind_listed(channel, inst);
        }
        self.change(|front, chip| front.set_runlist(chip, runlist as usize, list));
    }

    /// A runlist names instance blocks itself: one that was not bound by register is bound now.
    fn bind_listed(&self, channel: u32, inst: PhysAddr) {
        let target = match inst.aperture {
            Aperture::Vram => 0,
            Aperture::System => 2,
        };
        let value =
            regs::INST_PTR.of((inst.address >> 12) as u32) | regs::INST_TARGET.of(target) | regs::INST_BIND.of(1);
        let bound = {
            let front = self.front.lock();
            front.ports[channel as usize].channel.as_ref().is_some_and(|channel| channel.inst == inst)
        };
        if !bound {
            self.bind(channel, value);
        }
    }
}

fn within(offset: u32, base: u32, bytes: u32) -> Option<u32> {
    offset.checked_sub(base).filter(|at| *at < bytes)
}

/// The leaf that a register of a row names; out of range for registers of other rows.
fn leaf(at: u32, base: u32) -> u32 {
    at.wrapping_sub(base) / 4
}
