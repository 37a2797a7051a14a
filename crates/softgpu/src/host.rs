//! Methods of the host engine: semaphores, memory operations, interrupts.

use std::ops::Range;
use std::sync::{Arc, Weak};

use gpu_spec::host::{
    ILLEGAL, MEM_OP_A, MEM_OP_B, MEM_OP_C, MEM_OP_D, NON_STALL_INTERRUPT, NOP, SEM_ADDR_HI, SEM_ADDR_LO, SEM_EXECUTE,
    SEM_PAYLOAD_HI, SEM_PAYLOAD_LO, SEMAPHORE_A, SEMAPHORE_D, SET_REFERENCE, WFI, YIELD, mem_op, sem_execute,
};
use gpu_spec::mmu::{SMALL_PAGE, VA_END};
use gpu_spec::notifier::Code;
use gpu_spec::ramfc::{self, place};
use gpu_spec::userd;

use crate::channel::{Context, Flow};
use crate::chip::Chip;
use crate::error::{ChannelError, Unit};
use crate::job::Job;
use crate::space::Space;

/// The deprecated flush of the frame buffer, without effect here.
const FB_FLUSH: u32 = 0x24;

/// Method state of the host engine.
#[derive(Debug, Default)]
pub(crate) struct Host {
    /// Address low and high, payload low and high.
    semaphore: [u32; 4],
    /// Address high and low, payload of the old methods.
    pub(crate) old_semaphore: [u32; 3],
    mem_op: [u32; 3],
    reference: u32,
}

/// Where RAMFC keeps [`Host::semaphore`].
const SAVED_SEMAPHORE: [usize; 4] =
    [ramfc::SEM_ADDR_LO, ramfc::SEM_ADDR_HI, ramfc::SEM_PAYLOAD_LO, ramfc::SEM_PAYLOAD_HI];
/// Where RAMFC keeps [`Host::mem_op`].
const SAVED_MEM_OP: [usize; 3] = [ramfc::MEM_OP_A, ramfc::MEM_OP_B, ramfc::MEM_OP_C];

/// How an acquire compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compare {
    Equal,
    StrictGeq,
    CircularGeq,
    And,
    Nor,
}

/// An acquire: satisfied when the value in memory compares with the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acquire {
    va: u64,
    payload: u64,
    wide: bool,
    compare: Compare,
}

impl Acquire {
    /// Address of the semaphore.
    pub(crate) fn va(&self) -> u64 {
        self.va
    }

    /// Reads the semaphore and compares.
    pub(crate) fn holds(&self, chip: &Chip, space: &Space) -> Result<bool, ChannelError> {
        let mut bytes = [0; 8];
        let len = if self.wide { 8 } else { 4 };
        space.read(&chip.memory, self.va, &mut bytes[..len]).map_err(host_fault)?;
        Ok(self.matches(u64::from_le_bytes(bytes)))
    }

    fn matches(&self, value: u64) -> bool {
        let payload = self.payload;
        let mask = if self.wide { u64::MAX } else { u32::MAX.into() };
        match self.compare {
            Compare::Equal => value == payload,
            Compare::StrictGeq => value >= payload,
            Compare::CircularGeq if self.wide => value.wrapping_sub(payload) as i64 >= 0,
            Compare::CircularGeq => (value as u32).wrapping_sub(payload as u32) as i32 >= 0,
            Compare::And => value & payload != 0,
            Compare::Nor => !(value | payload) & mask != 0,
        }
    }
}

/// A store to a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) va: u64,
    pub(crate) payload: u64,
    pub(crate) wide: bool,
    /// Store the time, too, 8 bytes behind.
    pub(crate) timestamp: bool,
}

impl Release {
    /// Stores the time, then the payload: who sees the payload sees the time.
    pub(crate) fn run(&self, chip: &Chip, space: &Space, unit: Unit) -> Result<(), ChannelError> {
        let fault = |refused| ChannelError::refused(refused, unit);
        let bytes = if self.wide || self.timestamp { 8 } else { 4 };
        if !self.va.is_multiple_of(bytes) {
            return Err(ChannelError::pushbuffer(format!("semaphore at {:#x} is misaligned", self.va)));
        }
        if self.timestamp {
            // Behind the last address there is none that could be written.
            let at = self.va.saturating_add(8);
            space.write(&chip.memory, at, &chip.clock.now().to_le_bytes()).map_err(fault)?;
        }
        // In four words, a 32-bit payload has a zero upper half.
        space.update(&chip.memory, self.va, bytes as u32, &mut |_| self.payload).map_err(fault)?;
        Ok(())
    }
}

/// A TLB invalidate from a pushbuffer.
#[derive(Clone, Debug)]
pub(crate) struct Invalidate {
    range: Range<u64>,
    spaces: Arc<[Weak<Space>]>,
}

impl Invalidate {
    /// Where its progress ends. It counts addresses, of one space after the other.
    pub(crate) fn end(&self) -> u64 {
        self.spaces.len() as u64 * VA_END
    }

    /// Does a part of it, from such a place on; gives how far it came.
    pub(crate) fn step(&self, chip: &Chip, from: u64) -> u64 {
        let (space, at) = (from / VA_END, from % VA_END);
        let next = (space + 1) * VA_END;
        let Some(found) = self.spaces.get(space as usize).and_then(Weak::upgrade) else { return next };
        match found.sync_part(chip, at.max(self.range.start)..self.range.end) {
            Some(reached) => space * VA_END + reached,
            None => next,
        }
    }
}

fn host_fault(refused: crate::space::Refused) -> ChannelError {
    ChannelError::refused(refused, Unit::Host)
}

impl Host {
    /// Writes to RAMFC what has a place there: all but the old semaphore.
    pub(crate) fn save(&self, words: &mut [u32]) {
        SAVED_SEMAPHORE.iter().zip(self.semaphore).for_each(|(at, value)| words[*at] = value);
        SAVED_MEM_OP.iter().zip(self.mem_op).for_each(|(at, value)| words[*at] = value);
        words[ramfc::REF] = self.reference;
    }

    /// Takes it from there.
    pub(crate) fn restore(&mut self, words: &[u32]) {
        self.semaphore = SAVED_SEMAPHORE.map(|at| words[at]);
        self.mem_op = SAVED_MEM_OP.map(|at| words[at]);
        self.reference = words[ramfc::REF];
    }

    pub(crate) fn method(
        &mut self,
        context: &mut Context<'_>,
        subchannel: u32,
        method: u32,
        data: u32,
    ) -> Result<Flow, ChannelError> {
        match method {
            NOP | WFI | FB_FLUSH => {}
            SEM_ADDR_LO => self.semaphore[0] = data,
            SEM_ADDR_HI => self.semaphore[1] = data,
            SEM_PAYLOAD_LO => self.semaphore[2] = data,
            SEM_PAYLOAD_HI => self.semaphore[3] = data,
            SEM_EXECUTE => return self.semaphore(context, data),
            SEMAPHORE_A..SEMAPHORE_D => self.old_semaphore[(method - SEMAPHORE_A) as usize / 4] = data,
            SEMAPHORE_D => return self.old_semaphore(context, data),
            NON_STALL_INTERRUPT => context.effects.interrupts += 1,
            MEM_OP_A => self.mem_op[0] = data,
            MEM_OP_B => self.mem_op[1] = data,
            MEM_OP_C => self.mem_op[2] = data,
            MEM_OP_D => return self.memory_operation(context, subchannel, data),
            SET_REFERENCE => {
                self.reference = data;
                context.chip.memory.write_word(context.userd.offset(userd::REF), data);
            }
            YIELD => return Ok(Flow::Yield),
            ILLEGAL => return Err(ChannelError::pushbuffer("the illegal method")),
            _ => return Err(ChannelError::method(Code::PBDMA_ERROR, subchannel, method, data, "unknown host method")),
        }
        Ok(Flow::Next)
    }

    fn semaphore(&self, context: &mut Context<'_>, execute: u32) -> Result<Flow, ChannelError> {
        let [lo, hi, payload_lo, payload_hi] = self.semaphore;
        let va = u64::from(lo & !3) | u64::from(hi) << 32;
        let wide = sem_execute::PAYLOAD_64.is_set(execute);
        let payload = u64::from(payload_lo) | if wide { u64::from(payload_hi) << 32 } else { 0 };
        let compare = match sem_execute::OPERATION.get(execute) {
            sem_execute::RELEASE => {
                let timestamp = sem_execute::RELEASE_TIMESTAMP.is_set(execute);
                Release { va, payload, wide, timestamp }.run(context.chip, context.space, Unit::Host)?;
                context.effects.released.push(va);
                return Ok(Flow::Next);
            }
            sem_execute::REDUCTION => {
                reduce(context, va, payload, wide, sem_execute::REDUCTION_OP.get(execute), execute >> 31 == 0)?;
                return Ok(Flow::Next);
            }
            sem_execute::ACQUIRE => Compare::Equal,
            sem_execute::ACQ_STRICT_GEQ => Compare::StrictGeq,
            sem_execute::ACQ_CIRC_GEQ => Compare::CircularGeq,
            sem_execute::ACQ_AND => Compare::And,
            sem_execute::ACQ_NOR => Compare::Nor,
            operation => return Err(ChannelError::pushbuffer(format!("semaphore operation {operation}"))),
        };
        acquire(context, Acquire { va, payload, wide, compare })
    }

    fn old_semaphore(&self, context: &mut Context<'_>, execute: u32) -> Result<Flow, ChannelError> {
        let [hi, lo, payload] = self.old_semaphore;
        let va = u64::from(lo & !3) | u64::from(hi) << 32;
        let payload = u64::from(payload);
        let compare = match execute & 0x1f {
            1 => Compare::Equal,
            4 => Compare::CircularGeq,
            8 => Compare::And,
            2 => {
                let timestamp = execute & 1 << 24 == 0;
                Release { va, payload, wide: false, timestamp }.run(context.chip, context.space, Unit::Host)?;
                context.effects.released.push(va);
                return Ok(Flow::Next);
            }
            0x10 => {
                reduce(context, va, payload, false, execute >> 27 & 0xf, execute >> 31 == 0)?;
                return Ok(Flow::Next);
            }
            operation => return Err(ChannelError::pushbuffer(format!("semaphore operation {operation:#x}"))),
        };
        acquire(context, Acquire { va, payload, wide: false, compare })
    }

    fn memory_operation(&self, context: &Context<'_>, subchannel: u32, data: u32) -> Result<Flow, ChannelError> {
        /// Invalidates, cleans and flushes of the L2 cache, which memory here does not have.
        const CACHE_OPERATIONS: [u32; 5] = [0xd, 0xe, 0xf, 0x10, 0x15];
        let [a, b, c] = self.mem_op;
        let operation = mem_op::D_OPERATION.get(data);
        let targeted = operation == mem_op::MMU_TLB_INVALIDATE_TARGETED;
        if operation == mem_op::MEMBAR || CACHE_OPERATIONS.contains(&operation) {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            return Ok(Flow::Next);
        }
        if operation != mem_op::MMU_TLB_INVALIDATE && !targeted {
            let what = "unknown memory operation";
            return Err(ChannelError::method(Code::PBDMA_ERROR, subchannel, MEM_OP_D, data, what));
        }
        let root = if mem_op::C_PDB_ALL.is_set(c) {
            None
        } else {
            let lo = c & mem_op::C_PDB_LO.mask() as u32;
            Some(place(mem_op::C_APERTURE.get(c), lo, mem_op::D_PDB_HI.get(data)))
        };
        let own = root == Some(Some(context.space.root()));
        if !own && !context.privileged {
            let what = "only a privileged channel may invalidate foreign page directories";
            return Err(ChannelError::method(Code::PBDMA_ERROR, subchannel, MEM_OP_D, data, what));
        }
        let range = if targeted {
            /// log2 of the 4 KiB pages that a targeted invalidate names.
            const A_INVALIDATION_SIZE: gpu_spec::Field = gpu_spec::Field::new(5, 0);
            let log2 = A_INVALIDATION_SIZE.get(a);
            let va = u64::from(a & mem_op::A_TARGET_ADDR_LO.mask() as u32) | u64::from(b) << 32;
            let bytes = SMALL_PAGE.checked_shl(log2).filter(|bytes| bytes >> log2 == SMALL_PAGE).unwrap_or(VA_END);
            va..va.saturating_add(bytes)
        } else {
            0..VA_END
        };
        let start = |spaces: &[Weak<Space>]| Flow::Start(Job::Invalidate(Invalidate { range, spaces: spaces.into() }));
        Ok(match root {
            // A page directory in no memory has no translations.
            Some(None) => Flow::Next,
            _ if own => start(&[Arc::downgrade(context.space)]),
            root => start(&context.chip.spaces.find(root.flatten())),
        })
    }
}

fn acquire(context: &Context<'_>, acquire: Acquire) -> Result<Flow, ChannelError> {
    let bytes = if acquire.wide { 8 } else { 4 };
    if !acquire.va.is_multiple_of(bytes) {
        return Err(ChannelError::pushbuffer(format!("semaphore at {:#x} is misaligned", acquire.va)));
    }
    Ok(if acquire.holds(context.chip, context.space)? { Flow::Next } else { Flow::Wait(acquire) })
}

fn reduce(
    context: &mut Context<'_>,
    va: u64,
    payload: u64,
    wide: bool,
    operation: u32,
    signed: bool,
) -> Result<(), ChannelError> {
    if operation > 7 {
        return Err(ChannelError::pushbuffer(format!("semaphore reduction {operation}")));
    }
    let bytes = if wide { 8 } else { 4 };
    if !va.is_multiple_of(bytes) {
        return Err(ChannelError::pushbuffer(format!("semaphore at {va:#x} is misaligned")));
    }
    let key = |value: u64| match (wide, signed) {
        (true, true) => i128::from(value as i64),
        (false, true) => i128::from(value as u32 as i32),
        (_, false) => i128::from(value),
    };
    let mut apply = |old: u64| match operation {
        0 => std::cmp::min_by_key(old, payload, |value| key(*value)),
        1 => std::cmp::max_by_key(old, payload, |value| key(*value)),
        2 => old ^ payload,
        3 => old & payload,
        4 => old | payload,
        5 => old.wrapping_add(payload),
        // Increment and decrement wrap at the payload.
        6 => {
            if old >= payload {
                0
            } else {
                old + 1
            }
        }
        _ => {
            if old == 0 || old > payload {
                payload
            } else {
                old - 1
            }
        }
    };
    context.space.update(&context.chip.memory, va, bytes as u32, &mut apply).map_err(host_fault)?;
    context.effects.released.push(va);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquires_compare_as_documented() {
        let matches = |compare, wide, value, payload| Acquire { va: 0, payload, wide, compare }.matches(value);
        assert!(matches(Compare::Equal, true, 5, 5) && !matches(Compare::Equal, true, 6, 5));
        assert!(matches(Compare::StrictGeq, true, 6, 5) && !matches(Compare::StrictGeq, true, 1, u64::MAX));
        assert!(matches(Compare::CircularGeq, true, 1, u64::MAX));
        assert!(matches(Compare::CircularGeq, false, 1, 0xffff_ffff));
        assert!(matches(Compare::And, false, 4, 6) && !matches(Compare::And, false, 1, 6));
        assert!(matches(Compare::Nor, false, 1, 6) && !matches(Compare::Nor, false, 0xffff_0000, 0xffff));
    }
}
