//! A bound channel: its GPFIFO, its pushbuffer, and the engines' method state.
//!
//! ```text
//!            GP entries left              method starts work
//!   Idle ───────────────────► Fetching ───────────────────────► Working
//!    ▲   ◄───────────────────  │   ▲  ◄───────────────────────  (a job: grid, copy,
//!    │    GP_GET == GP_PUT     │   │        job done             compilation, invalidate)
//!    │                         │   │ semaphore matches
//!    │          acquire fails  ▼   │
//!    │                        Waiting
//!    │
//!   Stopped ◄── from every state: an error of this channel or of one of its TSG; left when the driver clears the
//!               faulted bits (the job is gone, fetching goes on behind it) or binds the channel again
//! ```
//!
//! What a channel has to remember while it is not bound stands in its instance block (`saved`).
//!
//! Everything in a channel happens in order: a method that starts work holds the channel until the work is done, so
//! waits for idle are always satisfied. Hardware may overlap more; it never promises to.

mod saved;

use std::sync::Arc;

use gmmu::PhysMem;
use gpu_spec::compute::TURING_COMPUTE_A;
use gpu_spec::copy::TURING_DMA_COPY_A;
use gpu_spec::host::{GpEntry, Header, SET_OBJECT, SET_OBJECT_CLASS, same_tebibyte};
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::Code;
use gpu_spec::ramfc::{CONFIG, CONFIG_PRIVILEGED, InstanceBlock, SIGNATURE, SIGNATURE_VALUE};
use gpu_spec::userd;
use zerocopy::{FromZeros, IntoBytes};

use crate::children::Family;
use crate::chip::Chip;
use crate::compute::Compute;
use crate::copy::CopyEngine;
use crate::error::{ChannelError, Unit};
use crate::host::{Acquire, Host};
use crate::job::{Active, Job};
use crate::program::Forgotten;
use crate::short::Pace;
use crate::space::{Bound, Space};

/// Words of a pushbuffer that a channel may process before others have their turn, and how long it may take, nanoseconds:
/// the front end's lock is held meanwhile.
const TURN_WORDS: u32 = 1024;
pub(crate) const TURN_NS: u64 = 20_000;
/// Words fetched from a pushbuffer at once.
const FETCH_WORDS: usize = 256;
/// Most entries of a GPFIFO, as log2: what an index of USERD may sensibly count.
const MAX_GP_LIMIT2: u32 = 24;
/// Subchannels that classes can be bound to; the others are software's.
const HARDWARE_SUBCHANNELS: u32 = 5;

/// A channel that is bound to an instance block.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) inst: PhysAddr,
    pub(crate) space: Arc<Space>,
    /// Nothing once it is unbound: it may be a while until the rest is dropped.
    pub(crate) bound: Option<Bound>,
    /// Who pays for what its work costs the host.
    pub(crate) budget: u32,
    pub(crate) notifier: Option<PhysAddr>,
    /// Work that was started and is not done.
    pub(crate) job: Option<Active>,
    /// Grids that wait for what they launched, of which the job is one, if there are any.
    pub(crate) family: Family,
    /// What its kernels took.
    pub(crate) pace: Pace,
    /// The acquire that holds the channel.
    pub(crate) waiting: Option<Acquire>,
    /// Stopped by an error.
    pub(crate) stopped: bool,
    userd: PhysAddr,
    privileged: bool,
    gp_base: u64,
    gp_limit2: u32,
    gp_get: u32,
    gp_put: u32,
    /// Rest of the pushbuffer segment that was not read yet.
    segment: u64,
    segment_words: u32,
    words: Vec<u32>,
    next: usize,
    run: Run,
    /// The method that holds the channel: it started the job, or waits.
    holding: Method,
    /// A method that comes before the words: the channel was not bound any more when it was its turn, or a grid launches
    /// another.
    pending: Option<Method>,
    subdevices: u32,
    active: bool,
    classes: [u32; HARDWARE_SUBCHANNELS as usize],
    host: Host,
    copy: CopyEngine,
    compute: Compute,
}

/// A method with its data.
#[derive(Clone, Copy, Debug, Default)]
struct Method {
    subchannel: u32,
    method: u32,
    data: u32,
}

/// What remains of the methods that a header announced.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    op: u32,
    subchannel: u32,
    method: u32,
    left: u32,
}

/// What processing a method came to.
#[derive(Debug)]
pub(crate) enum Flow {
    /// Go on.
    Next,
    /// Let others run first.
    Yield,
    /// Wait for a semaphore.
    Wait(Acquire),
    /// Work was started.
    Start(Job),
}

/// How far a channel came.
#[derive(Debug)]
pub(crate) enum Advanced {
    /// Nothing more to do until the doorbell rings.
    Idle,
    /// Its turn is over.
    Turn,
    /// It waits for a semaphore.
    Waiting,
    /// It has a job now.
    Job,
}

/// What methods did that concerns others.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Addresses of semaphores that were written: others may wait for them.
    pub(crate) released: Vec<u64>,
    /// What the address space no longer keeps.
    pub(crate) forgotten: Vec<Forgotten>,
    /// Copies that were done.
    pub(crate) copies: u32,
    /// Bytes of theirs that came into VRAM, and that went out of it.
    pub(crate) moved: [u64; 2],
    /// Interrupts that were asked for.
    pub(crate) interrupts: u32,
}

/// What methods need to know and may touch besides their own state.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) chip: &'a Chip,
    pub(crate) space: &'a Arc<Space>,
    pub(crate) privileged: bool,
    pub(crate) gp_base: u64,
    pub(crate) userd: PhysAddr,
    pub(crate) effects: &'a mut Effects,
}

/// Why a channel could not be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unbound;

impl Channel {
    /// Reads an instance block.
    pub(crate) fn bind(chip: &Chip, id: u32, inst: PhysAddr) -> Result<Channel, Unbound> {
        let mut block = InstanceBlock::new_zeroed();
        chip.memory.read(inst, block.as_mut_bytes()).map_err(|_| Unbound)?;
        let (gp_base, gp_limit2) = block.gpfifo();
        if block.words[SIGNATURE] != SIGNATURE_VALUE || gp_limit2 > MAX_GP_LIMIT2 {
            return Err(Unbound);
        }
        let root = block.page_directory().ok_or(Unbound)?;
        let (lo, bytes) = block.window();
        let budget = chip.budgets.number(block.budget());
        let bound = chip.spaces.bind(chip, root, (lo, bytes), budget);
        let bound = bound.inspect_err(|error| log_limit::warn!(%error, channel = id, "no address space"));
        let bound = bound.map_err(|_| Unbound)?;
        let mut channel = Channel {
            inst,
            space: Arc::clone(bound.space()),
            bound: Some(bound),
            budget,
            notifier: block.notifier(),
            job: None,
            family: Family::default(),
            pace: Pace::default(),
            waiting: None,
            stopped: false,
            userd: block.userd().ok_or(Unbound)?,
            privileged: CONFIG_PRIVILEGED.is_set(block.words[CONFIG]),
            gp_base,
            gp_limit2,
            gp_get: 0,
            gp_put: 0,
            segment: 0,
            segment_words: 0,
            words: Vec::new(),
            next: 0,
            run: Run::default(),
            holding: Method::default(),
            pending: None,
            subdevices: 0xfff,
            active: true,
            classes: [0; HARDWARE_SUBCHANNELS as usize],
            host: Host::default(),
            copy: CopyEngine::default(),
            compute: Compute::default(),
        };
        channel.restore(&block);
        Ok(channel)
    }

    /// Reads how far the GPFIFO is filled; true if there is anything to fetch.
    pub(crate) fn fetch_put(&mut self, chip: &Chip) -> bool {
        let put = chip.memory.read_word(self.userd.offset(userd::GP_PUT)).unwrap_or(0);
        self.gp_put = put & ((1 << self.gp_limit2) - 1);
        self.has_words() || self.gp_get != self.gp_put
    }

    /// True if there is anything to process, now.
    pub(crate) fn wants(&self, chip: &Chip) -> bool {
        let put = chip.memory.read_word(self.userd.offset(userd::GP_PUT)).unwrap_or(0);
        self.has_words() || self.gp_get != put & ((1 << self.gp_limit2) - 1)
    }

    /// Words, or a method, are left to process.
    fn has_words(&self) -> bool {
        self.segment_words > 0 || self.next < self.words.len() || self.pending.is_some()
    }

    /// Processes words until something holds the channel, or its turn is over. The caller made sure that nothing does now.
    pub(crate) fn advance(&mut self, chip: &Chip, effects: &mut Effects) -> Result<Advanced, ChannelError> {
        let until = chip.clock.now() + TURN_NS;
        for step in 1..=TURN_WORDS {
            // What a word does takes from some nanoseconds to a microsecond.
            if step % 16 == 0 && chip.clock.now() >= until {
                break;
            }
            if !self.has_words() {
                if self.gp_get == self.gp_put && !self.fetch_put(chip) {
                    return Ok(Advanced::Idle);
                }
                if self.gp_get != self.gp_put {
                    self.fetch_entry(chip)?;
                }
                continue;
            }
            match self.step(chip, effects)? {
                Flow::Next => {}
                Flow::Yield => return Ok(Advanced::Turn),
                Flow::Wait(acquire) => {
                    self.waiting = Some(acquire);
                    return Ok(Advanced::Waiting);
                }
                Flow::Start(job) => {
                    self.job = Some(Active::new(job, chip.next_job()));
                    return Ok(Advanced::Job);
                }
            }
        }
        Ok(Advanced::Turn)
    }

    /// Tries the acquire that holds the channel again; true if nothing holds it any more.
    pub(crate) fn retry(&mut self, chip: &Chip) -> Result<bool, ChannelError> {
        if let Some(acquire) = &self.waiting {
            if !acquire.holds(chip, &self.space)? {
                return Ok(false);
            }
            self.waiting = None;
        }
        Ok(true)
    }

    /// Launches another descriptor before anything else, as the method did that launched the last one.
    pub(crate) fn launch_next(&mut self, descriptor: u32) {
        self.compute.set_descriptor(descriptor);
        self.pending = Some(self.holding);
    }

    fn fetch_entry(&mut self, chip: &Chip) -> Result<(), ChannelError> {
        let mut entry = GpEntry::default();
        let at = self.gp_base + u64::from(self.gp_get) * GpEntry::BYTES;
        self.read(chip, at, entry.as_mut_bytes())?;
        self.gp_get = (self.gp_get + 1) & ((1 << self.gp_limit2) - 1);
        chip.memory.write_word(self.userd.offset(userd::GP_GET), self.gp_get);
        let words = entry.words();
        if words == 0 {
            return match GpEntry::OPCODE.get(entry.e1) {
                GpEntry::OPCODE_NOP => Ok(()),
                opcode => Err(ChannelError::pushbuffer(format!("GP entry with control opcode {opcode}"))),
            };
        }
        self.segment = same_tebibyte(self.gp_base, entry.address());
        self.segment_words = words;
        Ok(())
    }

    fn read(&self, chip: &Chip, va: u64, out: &mut [u8]) -> Result<(), ChannelError> {
        self.space.read(&chip.memory, va, out).map_err(|refused| ChannelError::refused(refused, Unit::Host))
    }

    /// Fills the buffer of words, if it is empty. There are words in the segment.
    fn fetch_words(&mut self, chip: &Chip) -> Result<(), ChannelError> {
        if self.next < self.words.len() {
            return Ok(());
        }
        let count = self.segment_words.min(FETCH_WORDS as u32);
        let mut words = std::mem::take(&mut self.words);
        words.resize(count as usize, 0);
        let read = self.read(chip, self.segment, words.as_mut_bytes());
        self.words = words;
        self.next = self.words.len();
        read?;
        self.next = 0;
        self.segment += u64::from(count) * 4;
        self.segment_words -= count;
        Ok(())
    }

    /// Processes a header, or a method, or a row of inline data.
    fn step(&mut self, chip: &Chip, effects: &mut Effects) -> Result<Flow, ChannelError> {
        if let Some(pending) = self.pending.take() {
            return self.method(chip, pending, effects);
        }
        self.fetch_words(chip)?;
        let word = self.words[self.next];
        if self.run.left == 0 {
            self.next += 1;
            return self.header(chip, Header(word), effects);
        }
        let Run { op, subchannel, method, left } = self.run;
        if !self.active {
            let skip = (left as usize).min(self.words.len() - self.next);
            self.next += skip;
            self.run.left -= skip as u32;
            return Ok(Flow::Next);
        }
        if op == Header::OP_NON_INC && self.class(subchannel) == TURING_COMPUTE_A && self.compute.takes(method) {
            let count = (left as usize).min(self.words.len() - self.next);
            let data = &self.words[self.next..self.next + count];
            self.next += count;
            self.run.left -= count as u32;
            let mut context = Context {
                chip,
                space: &self.space,
                privileged: self.privileged,
                gp_base: self.gp_base,
                userd: self.userd,
                effects,
            };
            self.compute.inline_data(&mut context, data)?;
            return Ok(Flow::Next);
        }
        self.next += 1;
        self.run.left -= 1;
        match op {
            Header::OP_INC => self.run.method += 4,
            Header::OP_ONE_INC => {
                self.run.method += 4;
                self.run.op = Header::OP_NON_INC;
            }
            _ => {}
        }
        self.method(chip, Method { subchannel, method, data: word }, effects)
    }

    fn header(&mut self, chip: &Chip, header: Header, effects: &mut Effects) -> Result<Flow, ChannelError> {
        match header.op() {
            Header::OP_INC | Header::OP_NON_INC | Header::OP_ONE_INC => {
                self.run = Run {
                    op: header.op(),
                    subchannel: header.subchannel(),
                    method: header.method(),
                    left: header.count(),
                };
                Ok(Flow::Next)
            }
            Header::OP_IMMEDIATE if self.active => {
                let (subchannel, method) = (header.subchannel(), header.method());
                self.method(chip, Method { subchannel, method, data: header.count() }, effects)
            }
            Header::OP_IMMEDIATE => Ok(Flow::Next),
            Header::OP_END_SEGMENT => {
                self.words.clear();
                self.next = 0;
                self.segment_words = 0;
                Ok(Flow::Next)
            }
            Header::OP_GRP0 if header == Header::NOP => Ok(Flow::Next),
            Header::OP_GRP0 => self.subdevice(header),
            op => Err(ChannelError::pushbuffer(format!("header {:#010x}: opcode {op}", header.0))),
        }
    }

    /// Subdevice masks; this device is subdevice 0.
    fn subdevice(&mut self, header: Header) -> Result<Flow, ChannelError> {
        const SET: u32 = 1;
        const STORE: u32 = 2;
        const USE: u32 = 3;
        let mask = header.0 >> 4 & 0xfff;
        match Header::TERT_OP.get(header.0) {
            SET => self.active = mask & 1 != 0,
            STORE => self.subdevices = mask,
            USE => self.active = self.subdevices & 1 != 0,
            _ => return Err(ChannelError::pushbuffer(format!("header {:#010x}: old format", header.0))),
        }
        Ok(Flow::Next)
    }

    fn class(&self, subchannel: u32) -> u32 {
        self.classes.get(subchannel as usize).copied().unwrap_or(0)
    }

    fn method(&mut self, chip: &Chip, method: Method, effects: &mut Effects) -> Result<Flow, ChannelError> {
        let flow = self.execute(chip, method, effects)?;
        if matches!(flow, Flow::Wait(_) | Flow::Start(_)) {
            self.holding = method;
        }
        Ok(flow)
    }

    fn execute(&mut self, chip: &Chip, method: Method, effects: &mut Effects) -> Result<Flow, ChannelError> {
        let Method { subchannel, method, data } = method;
        let refuse = |what| Err(ChannelError::method(Code::PBDMA_ERROR, subchannel, method, data, what));
        if method == SET_OBJECT {
            let Some(class) = self.classes.get_mut(subchannel as usize) else {
                return refuse("software subchannel");
            };
            *class = SET_OBJECT_CLASS.get(data);
            return match *class {
                TURING_COMPUTE_A | TURING_DMA_COPY_A => Ok(Flow::Next),
                _ => refuse("unknown class"),
            };
        }
        let mut context = Context {
            chip,
            space: &self.space,
            privileged: self.privileged,
            gp_base: self.gp_base,
            userd: self.userd,
            effects,
        };
        if method < Header::HOST_METHODS_END {
            return self.host.method(&mut context, subchannel, method, data);
        }
        match self.classes.get(subchannel as usize).copied() {
            Some(TURING_COMPUTE_A) => self.compute.method(&mut context, subchannel, method, data),
            Some(TURING_DMA_COPY_A) => self.copy.method(&mut context, subchannel, method, data),
            _ => refuse("no class is bound to the subchannel"),
        }
    }
}
