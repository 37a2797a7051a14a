//! What the instance block keeps of a channel that is not bound: written when it is unbound or preempted, read when it is
//! bound.
//!
//! Positions in the GPFIFO and the pushbuffer, the header in progress and the host engine's methods stand in RAMFC, as on
//! hardware. So does the method that held the channel, as one that has yet to be executed: an acquire is tried again, and
//! work of which nothing was begun is started. A transfer is begun again, since it may be done twice; a grid of which CTAs
//! have run may not, and is lost with them, and what it has launched. A driver that wants to keep it lets it end.
//!
//! All of it may have been written by a stranger: whatever the words say is a state that a pushbuffer could lead to.

use gmmu::PhysMem;
use gpu_spec::compute::TURING_COMPUTE_A;
use gpu_spec::copy::TURING_DMA_COPY_A;
use gpu_spec::host::{GpEntry, same_tebibyte};
use gpu_spec::ramfc::{self, ENGINE_STATE, ENGINE_STATE_WORDS, InstanceBlock};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Channel, HARDWARE_SUBCHANNELS, Method, Run};
use crate::compute::ComputeState;
use crate::copy::CopyEngine;
use crate::job::Active;
use crate::memory::Memory;

/// Method state of the engines, in [`ENGINE_STATE`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Engines {
    classes: [u32; HARDWARE_SUBCHANNELS as usize],
    /// Of the host engine: the old methods'.
    old_semaphore: [u32; 3],
    copy: CopyEngine,
    compute: ComputeState,
}

const _: () = assert!(size_of::<Engines>() <= 4 * ENGINE_STATE_WORDS);

impl Channel {
    /// Writes the state back; where the instance block is no memory any more, it is lost.
    pub(crate) fn save(&self, memory: &Memory) {
        let mut block = InstanceBlock::new_zeroed();
        if memory.read(self.inst, block.as_mut_bytes()).is_err() {
            return;
        }
        let words = &mut block.words;
        (words[ramfc::GP_PUT], words[ramfc::GP_GET], words[ramfc::GP_FETCH]) = (self.gp_put, self.gp_get, self.gp_get);
        let read = (self.words.len() - self.next) as u64 * 4;
        let get = self.segment.wrapping_sub(read);
        let put = self.segment.wrapping_add(u64::from(self.segment_words) * 4);
        for (at, address) in
            [(ramfc::PB_GET, get), (ramfc::PB_FETCH, get), (ramfc::TOP_LEVEL_GET, get), (ramfc::PB_PUT, put)]
        {
            words[at] = address as u32;
            words[at + 1] = (address >> 32) as u32 & 0xff;
        }
        let Run { op, subchannel, method, left } = self.run;
        words[ramfc::PB_HEADER] =
            ramfc::HEADER_TYPE.of(op) | ramfc::HEADER_SUBCHANNEL.of(subchannel) | ramfc::HEADER_METHOD.of(method >> 2);
        words[ramfc::PB_COUNT] = ramfc::COUNT_VALUE.of(left);
        let id = ramfc::SUBDEVICE_ID.get(words[ramfc::SUBDEVICE]).max(1);
        words[ramfc::SUBDEVICE] = ramfc::SUBDEVICE_ID.of(id)
            | ramfc::SUBDEVICE_STORED_MASK.of(self.subdevices)
            | ramfc::SUBDEVICE_STATUS.of(self.active.into())
            | ramfc::SUBDEVICE_CHANNEL_DMA.of(1);
        let again =
            self.waiting.is_some() || self.family.is_empty() && self.job.as_ref().is_some_and(Active::may_begin_again);
        let method = self.pending.or(again.then_some(self.holding));
        words[ramfc::METHOD0] = method.map_or(0, |held| {
            ramfc::METHOD_VALID.of(1)
                | ramfc::METHOD_SUBCH.of(held.subchannel)
                | ramfc::METHOD_ADDR.of(held.method >> 2)
        });
        words[ramfc::DATA0] = method.map_or(0, |held| held.data);
        self.host.save(words);
        let engines = Engines {
            classes: self.classes,
            old_semaphore: self.host.old_semaphore,
            copy: self.copy.clone(),
            compute: self.compute.save(),
        };
        let state = &mut words[ENGINE_STATE..ENGINE_STATE + ENGINE_STATE_WORDS];
        state.as_mut_bytes()[..size_of::<Engines>()].copy_from_slice(engines.as_bytes());
        // The two parts that it owns.
        let [ramfc, engines] =
            [0..ramfc::RAMFC_BYTES as usize, 4 * ENGINE_STATE..4 * (ENGINE_STATE + ENGINE_STATE_WORDS)];
        for part in [ramfc, engines] {
            // It was memory a moment ago.
            let _ = memory.write(self.inst.offset(part.start as u64), &block.as_bytes()[part]);
        }
    }

    /// Takes the state from the instance block.
    pub(super) fn restore(&mut self, block: &InstanceBlock) {
        let words = &block.words;
        self.gp_get = words[ramfc::GP_GET] & ((1 << self.gp_limit2) - 1);
        let address = |at: usize| u64::from(words[at] & !3) | u64::from(words[at + 1] & 0xff) << 32;
        let (get, put) = (address(ramfc::PB_GET), address(ramfc::PB_PUT));
        self.segment = same_tebibyte(self.gp_base, get);
        self.segment_words = (put.wrapping_sub(get) >> 2) as u32 & GpEntry::LENGTH.max() as u32;
        let header = words[ramfc::PB_HEADER];
        self.run = Run {
            op: ramfc::HEADER_TYPE.get(header),
            subchannel: ramfc::HEADER_SUBCHANNEL.get(header),
            method: ramfc::HEADER_METHOD.get(header) << 2,
            left: ramfc::COUNT_VALUE.get(words[ramfc::PB_COUNT]),
        };
        let subdevice = words[ramfc::SUBDEVICE];
        if subdevice != 0 {
            self.active = ramfc::SUBDEVICE_STATUS.is_set(subdevice);
            self.subdevices = ramfc::SUBDEVICE_STORED_MASK.get(subdevice);
        }
        let held = words[ramfc::METHOD0];
        self.pending = ramfc::METHOD_VALID.is_set(held).then(|| Method {
            subchannel: ramfc::METHOD_SUBCH.get(held),
            method: ramfc::METHOD_ADDR.get(held) << 2,
            data: words[ramfc::DATA0],
        });
        self.host.restore(words);
        let state = &words[ENGINE_STATE..ENGINE_STATE + ENGINE_STATE_WORDS];
        let Ok((engines, _)) = Engines::read_from_prefix(state.as_bytes()) else { return };
        self.classes = engines.classes.map(|class| match class {
            TURING_COMPUTE_A | TURING_DMA_COPY_A => class,
            _ => 0,
        });
        self.host.old_semaphore = engines.old_semaphore;
        self.copy = engines.copy;
        self.compute.restore(&engines.compute);
    }
}
