//! A channel: its rings in memory that CPU and device share, and the way commands get there.
//!
//! One block of system memory per channel holds everything; it is mapped in the private part of the client's address space:
//!
//! ```text
//!   0       USERD (512 B): GP_PUT, GP_GET        1024: progress, a 64-bit semaphore
//!   4 KiB   GPFIFO: 1,024 entries
//!  12 KiB   pushbuffer ring
//! 128 KiB   data ring: launch descriptors and constant banks
//! ```
//!
//! Both rings are reclaimed by fences: every eighth of a ring, a semaphore release of the next number to `progress` follows
//! the commands. Each fourth interrupts: who waits for room sleeps until there is much of it, and is woken once for that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use gpu::{Command, Compare, GpuError};
use gpu_spec::host::GpEntry;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::program::{ConstantBank, PARAMS_OFFSET};
use gpu_spec::qmd::Qmd;
use gpu_spec::ramfc::InstanceBlock;
use gpu_spec::{ramfc, regs, userd};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::channels::Purpose;
use crate::context::Context;
use crate::encode::{Encoder, INLINE_PIECE, MAX_WORDS};
use crate::host::HostPart;
use crate::mmio::Mmio;
use crate::signals::{Listeners, Signals};
use crate::space::Memory;
use crate::vram::Run;

/// Bytes of a channel's block.
pub(crate) const BLOCK_BYTES: u64 = 256 << 10;
const PROGRESS: u64 = 1024;
const GPFIFO: u64 = 4096;
const LOG2_ENTRIES: u32 = 10;
const ENTRIES: u32 = 1 << LOG2_ENTRIES;
const PUSH: u64 = 12 << 10;
const PUSH_BYTES: u64 = DATA - PUSH;
const DATA: u64 = 128 << 10;
const DATA_BYTES: u64 = BLOCK_BYTES - DATA;
/// Launch descriptors and constant banks are multiples of this.
const DATA_ALIGN: u64 = 256;
/// GP entries between two fences, at most.
const FENCE_ENTRIES: u32 = ENTRIES / 8;
/// Of so many fences one interrupts: a full ring has at least one such, and more than a third of it lies before the last.
const FENCES_PER_INTERRUPT: u64 = 4;
/// A queue that has no room rings waiting queues so often: what they wait for may have happened without a word.
const LOOK: Duration = Duration::from_millis(5);

/// What all channels of a client have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) mmio: Arc<Mmio>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) listeners: Arc<Listeners>,
    /// Channels that have been given a wait for what the device may not notice.
    waiting: Mutex<Vec<u32>>,
    /// A channel has lost its last queue.
    pub(crate) unbound: AtomicBool,
}

impl Common {
    pub(crate) fn new(mmio: Arc<Mmio>, signals: Arc<Signals>, listeners: Arc<Listeners>) -> Common {
        Common { mmio, signals, listeners, waiting: Mutex::default(), unbound: AtomicBool::new(false) }
    }

    /// Makes the device look again at what its waiting channels wait for.
    pub(crate) fn ring_waiting(&self) {
        for channel in self.waiting.lock().iter() {
            ring_doorbell(&self.mmio, *channel);
        }
    }
}

/// A resolved launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) program: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) registers: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) cooperative: bool,
    /// Each 1 to 16.
    pub(crate) cluster: [u32; 3],
    pub(crate) bank: ConstantBank,
    pub(crate) params: &'a [u8],
}

/// A position that only grows, in a ring.
#[derive(Debug)]
struct Cursor {
    size: u64,
    at: u64,
    /// What lies before is free.
    tail: u64,
    /// Position of the last fence.
    fenced: u64,
}

impl Cursor {
    fn new(size: u64) -> Cursor {
        Cursor { size, at: 0, tail: 0, fenced: 0 }
    }

    fn offset(&self) -> u64 {
        self.at % self.size
    }

    /// Bytes to skip so that `bytes` do not wrap.
    fn padding(&self, bytes: u64) -> u64 {
        let left = self.size - self.offset();
        if bytes > left { left } else { 0 }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.at + self.padding(bytes) + bytes - self.tail <= self.size
    }

    /// Bytes that are free, wherever they lie.
    fn free(&self) -> u64 {
        self.size - (self.at - self.tail)
    }

    fn wants_fence(&self) -> bool {
        self.at - self.fenced >= self.size / 8
    }
}

#[derive(Clone, Copy, Debug)]
struct Fence {
    value: u64,
    push: u64,
    data: u64,
}

/// The producer's side of a channel.
#[derive(Debug)]
pub(crate) struct Ring {
    common: Arc<Common>,
    context: Arc<Context>,
    /// Holds the channel's block, which begins at `base`.
    memory: Arc<hostmem::Mapping>,
    base: u64,
    va: u64,
    number: u32,
    encoder: Encoder,
    push: Cursor,
    data: Cursor,
    /// Where the words begin that no GP entry names yet.
    open: u64,
    put: u32,
    entries_since_fence: u32,
    fences: VecDeque<Fence>,
    last_fence: u64,
    /// Generation of programs that the device has been told of.
    pub(crate) programs: u64,
    /// The device notices by itself what it waits for: signals. Or it has been put among those that are rung.
    notices: bool,
}

/// A hardware channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) number: u32,
    pub(crate) context: Arc<Context>,
    pub(crate) instance: Run,
    pub(crate) purpose: Purpose,
    pub(crate) priority: i32,
    /// Queues that are bound to it.
    pub(crate) queues: AtomicU32,
    pub(crate) va: u64,
    /// Its memory, and where that lies.
    pub(crate) block: Arc<Memory>,
    pub(crate) part: HostPart,
    /// What a cooperative grid's CTAs meet in; made when first wanted.
    pub(crate) workspace: Mutex<Option<(u64, Arc<Memory>)>>,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) common: Arc<Common>,
    closed: AtomicBool,
}

impl Channel {
    /// A channel for a purpose and a priority, whose `block`, which lies in `part`, is mapped at `va`.
    #[expect(clippy::too_many_arguments, reason = "all that makes a channel")]
    pub(crate) fn new(
        common: &Arc<Common>,
        context: &Arc<Context>,
        number: u32,
        instance: Run,
        (purpose, priority): (Purpose, i32),
        block: &Arc<Memory>,
        part: &HostPart,
        va: u64,
    ) -> Channel {
        let ring = Ring::new(common, context, part, (number, va), purpose == Purpose::Shared);
        Channel {
            number,
            context: Arc::clone(context),
            instance,
            purpose,
            priority,
            queues: AtomicU32::new(0),
            va,
            block: Arc::clone(block),
            part: part.clone(),
            workspace: Mutex::default(),
            ring: Mutex::new(ring),
            common: Arc::clone(common),
            closed: AtomicBool::new(false),
        }
    }

    /// The instance block that describes it.
    pub(crate) fn instance_block(&self, root: PhysAddr, window: (u64, u64), budget: u32) -> InstanceBlock {
        let mut block = InstanceBlock::default();
        block.words[ramfc::SIGNATURE] = ramfc::SIGNATURE_VALUE;
        block.set_page_directory(root);
        block.set_userd(self.userd());
        block.set_gpfifo(self.va + GPFIFO, LOG2_ENTRIES);
        block.set_window(window.0, window.1);
        block.set_budget(budget);
        block.set_notifier(self.context.notifier());
        block
    }

    /// Where its USERD lies: at the beginning of its block.
    pub(crate) fn userd(&self) -> PhysAddr {
        PhysAddr::system(self.part.bus(0).0)
    }

    /// Nothing is accepted any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.common.waiting.lock().retain(|other| *other != self.number);
    }

    /// True if it has completed everything; starts finding out, if that takes a fence. False if it cannot be told at once.
    pub(crate) fn has_completed(&self) -> bool {
        self.ring.try_lock().is_some_and(|mut ring| ring.finish())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Ring {
    /// An empty one, of the channel with a number, whose block lies in `part` and is mapped at an address.
    fn new(
        common: &Arc<Common>,
        context: &Arc<Context>,
        part: &HostPart,
        (number, va): (u32, u64),
        notices: bool,
    ) -> Ring {
        Ring {
            common: Arc::clone(common),
            context: Arc::clone(context),
            memory: Arc::clone(&part.dma.mapping),
            base: part.offset,
            va,
            number,
            encoder: Encoder::new(),
            push: Cursor::new(PUSH_BYTES),
            data: Cursor::new(DATA_BYTES),
            open: 0,
            put: 0,
            entries_since_fence: 0,
            fences: VecDeque::new(),
            last_fence: 0,
            programs: 0,
            notices,
        }
    }

    /// The words that bind the classes.
    pub(crate) fn bind(&mut self) -> Result<(), GpuError> {
        self.encoder.bind();
        self.emit()
    }

    /// Appends a launch.
    pub(crate) fn launch(&mut self, launch: &Launch<'_>) -> Result<(), GpuError> {
        let bank_bytes = PARAMS_OFFSET + launch.params.len() as u64;
        let bytes = (Qmd::BYTES + bank_bytes).next_multiple_of(DATA_ALIGN);
        self.make_room(|ring| ring.data.has_room(bytes))?;
        self.data.at += self.data.padding(bytes);
        let offset = DATA + self.data.offset();
        self.data.at += bytes;

        let mut qmd = Qmd::default();
        let set = [
            (Qmd::CTA_RASTER_WIDTH, launch.grid[0]),
            (Qmd::CTA_RASTER_HEIGHT, launch.grid[1]),
            (Qmd::CTA_RASTER_DEPTH, launch.grid[2]),
            (Qmd::CTA_THREAD_DIMENSION0, launch.block[0]),
            (Qmd::CTA_THREAD_DIMENSION1, launch.block[1]),
            (Qmd::CTA_THREAD_DIMENSION2, launch.block[2]),
            (Qmd::SHARED_MEMORY_SIZE, launch.shared),
            (Qmd::REGISTER_COUNT, launch.registers),
            (Qmd::SHADER_LOCAL_MEMORY_LOW_SIZE, launch.stack_bytes),
            (Qmd::COOPERATIVE, launch.cooperative.into()),
            (Qmd::CLUSTER_WIDTH, launch.cluster[0] - 1),
            (Qmd::CLUSTER_HEIGHT, launch.cluster[1] - 1),
            (Qmd::CLUSTER_DEPTH, launch.cluster[2] - 1),
        ];
        for (field, value) in set {
            qmd.set(field, value);
        }
        qmd.set_program_address(launch.program);
        qmd.set_constant_buffer(0, self.va + offset + Qmd::BYTES, bank_bytes as u32);
        let at = (self.base + offset) as usize;
        self.memory.write(at, qmd.as_bytes());
        self.memory.write(at + Qmd::BYTES as usize, launch.bank.as_bytes());
        self.memory.write(at + (Qmd::BYTES + PARAMS_OFFSET) as usize, launch.params);
        self.encoder.launch(self.va + offset);
        self.emit()
    }

    /// True if a command can be appended without waiting.
    pub(crate) fn has_room_for(&mut self, command: &Command<'_>) -> bool {
        // Words of the command, of what may precede it, and of a fence.
        let words = MAX_WORDS as u64 * 4 * 4;
        let (push, data) = match command {
            Command::Launch { params, .. } => {
                let bank = PARAMS_OFFSET + params.len() as u64;
                (words, (Qmd::BYTES + bank).next_multiple_of(DATA_ALIGN))
            }
            Command::Write { data, .. } => (data.len() as u64 + words * (1 + data.len() as u64 / 4096), 0),
            _ => (words, 0),
        };
        self.reclaim();
        // Pieces are appended one by one: the end of the ring costs at most one of them. What is left when all but the words
        // behind the last fence is reclaimed always suffices.
        self.push.free() >= push + INLINE_PIECE as u64 + words && self.data.has_room(data) && self.has_entry()
    }

    /// Appends what `encode` encodes: at most a piece.
    pub(crate) fn append(&mut self, encode: impl FnOnce(&mut Encoder)) -> Result<(), GpuError> {
        encode(&mut self.encoder);
        self.emit()
    }

    /// Appends a wait for the semaphore at `at`.
    pub(crate) fn wait(&mut self, at: u64, value: u64) -> Result<(), GpuError> {
        self.will_wait();
        self.append(|encoder| encoder.wait(at, value))
    }

    /// Appends a wait for a word.
    pub(crate) fn wait_value(&mut self, at: u64, value: u64, wide: bool, compare: Compare) -> Result<(), GpuError> {
        self.will_wait();
        self.append(|encoder| encoder.wait_value(at, value, wide, compare))
    }

    fn will_wait(&mut self) {
        if !self.notices {
            self.notices = true;
            self.common.waiting.lock().push(self.number);
        }
    }

    /// Where, and as what value, it shows that all that is appended has completed.
    pub(crate) fn mark(&mut self) -> Result<(u64, u64), GpuError> {
        self.fence()?;
        self.flush()?;
        Ok((self.va + PROGRESS, self.last_fence))
    }

    /// True if everything appended has completed. Starts finding out, if that takes a fence; never waits.
    pub(crate) fn finish(&mut self) -> bool {
        self.reclaim();
        if self.push.at != self.push.fenced {
            // Room for the fence and for the GP entry of what may precede it at the end of the ring.
            let room = self.push.has_room(MAX_WORDS as u64 * 4) && self.has_entry();
            if room && self.fence().is_ok() && self.has_entry() {
                // Failing means that the context is dead, which the caller sees.
                let _ = self.flush();
            }
            return false;
        }
        self.progress() >= self.last_fence
    }

    /// Moves encoded words into the pushbuffer.
    fn emit(&mut self) -> Result<(), GpuError> {
        self.transfer()?;
        if self.push.wants_fence() || self.data.wants_fence() || self.entries_since_fence >= FENCE_ENTRIES {
            self.fence()?;
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<(), GpuError> {
        self.last_fence += 1;
        let at = self.va + PROGRESS;
        match self.last_fence.is_multiple_of(FENCES_PER_INTERRUPT) {
            true => self.encoder.signal(at, self.last_fence, false),
            false => self.encoder.write_value(at, self.last_fence, true),
        }
        self.transfer()?;
        self.push.fenced = self.push.at;
        self.data.fenced = self.data.at;
        self.entries_since_fence = 0;
        self.fences.push_back(Fence { value: self.last_fence, push: self.push.at, data: self.data.at });
        Ok(())
    }

    fn transfer(&mut self) -> Result<(), GpuError> {
        let bytes = self.encoder.words.len() as u64 * 4;
        if let Err(error) = self.make_room(|ring| ring.push.has_room(bytes)) {
            self.encoder.words.clear();
            return Err(error);
        }
        let padding = self.push.padding(bytes);
        // An entry names one run of words: none goes on at the beginning of the ring, though its words may have ended just at the end.
        if padding > 0 || self.push.offset() == 0 {
            self.publish()?;
            self.push.at += padding;
            self.open = self.push.at;
        }
        self.memory.write((self.base + PUSH + self.push.offset()) as usize, self.encoder.words.as_bytes());
        self.push.at += bytes;
        self.encoder.words.clear();
        Ok(())
    }

    /// Names the open words in a GP entry.
    fn publish(&mut self) -> Result<(), GpuError> {
        self.publish_when(Ring::has_entry)
    }

    fn publish_when(&mut self, has_entry: impl Fn(&Ring) -> bool) -> Result<(), GpuError> {
        if self.open == self.push.at {
            return Ok(());
        }
        // Who waits for room publishes what is open as soon as there is an entry: then there is nothing left to name here, and
        // to the device an entry of no words is no segment.
        self.make_room(|ring| ring.open == ring.push.at || has_entry(ring))?;
        if self.open == self.push.at {
            return Ok(());
        }
        let address = self.va + PUSH + self.open % PUSH_BYTES;
        let entry = GpEntry::segment(address, ((self.push.at - self.open) / 4) as u32);
        self.memory.write((self.base + GPFIFO + u64::from(self.put) * GpEntry::BYTES) as usize, entry.as_bytes());
        self.put = (self.put + 1) % ENTRIES;
        self.entries_since_fence += 1;
        self.open = self.push.at;
        Ok(())
    }

    /// Lets the device see everything appended so far.
    pub(crate) fn flush(&mut self) -> Result<(), GpuError> {
        self.publish()?;
        self.show();
        Ok(())
    }

    fn show(&self) {
        self.memory.u32_at((self.base + userd::GP_PUT) as usize).store(self.put, Ordering::Release);
        // The doorbell must not overtake the entry, whatever kind of memory the register is.
        fence(Ordering::SeqCst);
        ring_doorbell(&self.common.mmio, self.number);
    }

    /// True if a GP entry is free.
    fn has_entry(&self) -> bool {
        let get = self.memory.u32_at((self.base + userd::GP_GET) as usize).load(Ordering::Acquire);
        (self.put + 1) % ENTRIES != get % ENTRIES
    }

    fn progress(&self) -> u64 {
        self.memory.u64_at((self.base + PROGRESS) as usize).load(Ordering::Acquire)
    }

    fn reclaim(&mut self) {
        let progress = self.progress();
        while let Some(fence) = self.fences.front().filter(|fence| fence.value <= progress) {
            self.push.tail = fence.push;
            self.data.tail = fence.data;
            self.fences.pop_front();
        }
    }

    /// Waits until `enough` is true: the device makes room, or the context, the client or the device ends.
    fn make_room(&mut self, enough: impl Fn(&Ring) -> bool) -> Result<(), GpuError> {
        if enough(self) {
            return Ok(());
        }
        self.reclaim();
        if enough(self) {
            return Ok(());
        }
        self.show();
        let common = Arc::clone(&self.common);
        let context = Arc::clone(&self.context);
        loop {
            let result = common.signals.wait(&common.listeners, Some(Instant::now() + LOOK), || {
                self.reclaim();
                if enough(self) {
                    return Some(Ok(()));
                }
                // Room may depend on words that are still open, for want of a GP entry or of a reason.
                if self.open != self.push.at && self.has_entry() {
                    if let Err(error) = self.publish() {
                        return Some(Err(error));
                    }
                    self.show();
                }
                if common.signals.is_ended() {
                    return Some(Err(GpuError::Lost { reason: "the client or the device has ended".into() }));
                }
                context.check().err().map(Err)
            });
            match result {
                Some(result) => return result,
                None => common.ring_waiting(),
            }
        }
    }
}

fn ring_doorbell(mmio: &Mmio, channel: u32) {
    mmio.write(regs::USERMODE + regs::USERMODE_DOORBELL, regs::DOORBELL_CHANNEL.of(channel));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use device_io::DeviceBacking;

    use super::*;
    use crate::signals::tests::Idle;

    const VA: u64 = 0x12_0000_0000;

    /// A ring that nobody reads.
    fn ring() -> Ring {
        let signals = Arc::new(Signals::new(&Idle, 0).unwrap());
        let mmio = Arc::new(Mmio::new(Arc::new(Idle)));
        let context = Arc::new(Context::new(0, [0; 3], Arc::clone(&signals), Run { offset: 0, bytes: 0 }));
        let listeners = Arc::new(Listeners::new(Arc::clone(&mmio)));
        let common = Arc::new(Common::new(mmio, signals, listeners));
        let part = HostPart { dma: Arc::new(Idle.alloc_dma(BLOCK_BYTES).unwrap()), offset: 0 };
        Ring::new(&common, &context, &part, (0, VA), true)
    }

    #[test]
    fn what_was_published_while_somebody_waited_for_an_entry_is_not_published_again() {
        let mut ring = ring();
        for _ in 1..ENTRIES {
            ring.append(|encoder| encoder.write_value(VA, 1, false)).unwrap();
            ring.flush().unwrap();
        }
        assert!(!ring.has_entry());
        ring.append(|encoder| encoder.write_value(VA, 1, false)).unwrap();
        let (last, open) = (ring.put, ring.open);
        // The device takes two entries just when who waits, asked for the third time, has seen that there is none.
        let asked = Cell::new(0);
        let has_entry = |ring: &Ring| {
            asked.set(asked.get() + 1);
            if asked.get() == 3 {
                ring.memory.u32_at((ring.base + userd::GP_GET) as usize).store(2, Ordering::Release);
                return false;
            }
            ring.has_entry()
        };
        ring.publish_when(has_entry).unwrap();
        assert_eq!(ring.put, (last + 1) % ENTRIES, "one entry");
        let mut entry = GpEntry::default();
        ring.memory.read((GPFIFO + u64::from(last) * GpEntry::BYTES) as usize, entry.as_mut_bytes());
        assert_eq!((entry.address(), u64::from(entry.words()) * 4), (VA + PUSH + open, ring.push.at - open));
    }
}
