//! A shadow channel: what the device runs for a channel of a guest's.
//!
//! Its instance block is made by the mediator from a copy of the guest's, never from the guest's memory itself; its GPFIFO and its
//! pushbuffer hold copies of what the guest has submitted, after the audit. All of it lies in VRAM of the lease:
//!
//! ```text
//!    0     instance block       8 KiB   GPFIFO: 1,024 entries      32 KiB   pushbuffer ring, 256 KiB
//!    4 KiB USERD               16 KiB   error notifier
//! ```
//!
//! GPFIFO and pushbuffer are mapped behind the guest's window, where its own tables decide nothing, for reading. Entries are
//! copied some at a time, and what is short of them becomes one entry of ours. The guest sees GP_GET advance when they have been
//! copied. If the ring is full the rest stays where it is: a guest that submits faster than its work is done waits as it would
//! on the device.

use std::collections::VecDeque;

use device_io::{DeviceBacking, VramOffset};
use gmmu::PhysMem;
use gpu_driver::{ListedChannel, VramRange};
use gpu_spec::host::GpEntry;
use gpu_spec::mmu::PhysAddr;
use gpu_spec::notifier::{LOG_OFFSET, Record, STATUS_ERROR};
use gpu_spec::ramfc::{self, InstanceBlock};
use gpu_spec::{notifier, userd};
use zerocopy::{FromZeros, IntoBytes};

use crate::audit::Audit;
use crate::memory::GuestMemory;

/// VRAM of a shadow channel.
pub(crate) const CHANNEL_BYTES: u64 = PUSH + PUSH_BYTES;
/// Addresses of a shadow channel behind the window.
pub(crate) const SLOT_BYTES: u64 = 512 << 10;

const USERD: u64 = 4 << 10;
const GPFIFO: u64 = 8 << 10;
const LOG2_ENTRIES: u32 = 10;
const ENTRIES: u32 = 1 << LOG2_ENTRIES;
const NOTIFIER: u64 = 16 << 10;
const PUSH: u64 = 32 << 10;
const PUSH_BYTES: u64 = 256 << 10;
/// Longest piece of a segment in one entry of ours: a quarter of the ring.
const PIECE_WORDS: u64 = PUSH_BYTES / 4 / 4;
/// Words of several segments in one entry of ours, at most.
const JOINED_WORDS: u64 = 1024;
/// Entries of the guest's that are copied before the device is told: as many launches as a software GPU does on the thread that
/// rings, if they are short, before it leaves the rest for its workers, who would have to be woken.
pub(crate) const SOME_ENTRIES: u32 = 8;
/// Entries of the guest's for one doorbell: a guest that submits on and on, of what takes no room, does not keep its server from
/// what else it has to do.
pub(crate) const MOST_ENTRIES: u32 = 2 * ENTRIES;

const _: () = assert!(NOTIFIER + notifier::BYTES <= PUSH && CHANNEL_BYTES <= SLOT_BYTES, "the layout above");

/// What of a channel is mapped into its address space: offset and bytes.
pub(crate) const MAPPED: [(u64, u64); 2] = [(GPFIFO, ENTRIES as u64 * GpEntry::BYTES), (PUSH, PUSH_BYTES)];

/// What a guest says of a channel of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// Where its instance block lies for it.
    pub(crate) instance: PhysAddr,
    pub(crate) root: PhysAddr,
    pub(crate) window: (u64, u64),
    pub(crate) userd: PhysAddr,
    pub(crate) gpfifo: (u64, u32),
    pub(crate) notifier: Option<PhysAddr>,
}

impl Claim {
    /// Reads an instance block of the guest's: a copy, that does not change any more.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn read(memory: &GuestMemory, instance: PhysAddr) -> Result<Claim, &'static str> {
        let mut block = InstanceBlock::default();
        memory.read(instance, block.as_mut_bytes()).map_err(|_| "there is no memory at the instance block")?;
        if block.words[ramfc::SIGNATURE] != ramfc::SIGNATURE_VALUE {
            return Err("the instance block has no signature");
        }
        if ramfc::CONFIG_PRIVILEGED.is_set(block.words[ramfc::CONFIG]) {
            return Err("a guest's channels have no privileges");
        }
        let gpfifo = block.gpfifo();
        if gpfifo.1 > 20 {
            return Err("the GPFIFO is too large");
        }
        Ok(Claim {
            instance,
            root: block.page_directory().ok_or("the page directory is in no memory")?,
            window: block.window(),
            userd: block.userd().ok_or("USERD is in no memory")?,
            gpfifo,
            notifier: block.notifier(),
        })
    }
}

/// A segment of the guest's of which a part has been copied.
#[derive(Clone, Copy, Debug)]
struct Segment {
    va: u64,
    words: u64,
}

/// What stops copying.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stopped {
    /// All is copied.
    Empty,
    /// There is more, and room for it: the device is to be told of this first.
    Some,
    /// There is more, and the ring is full.
    Full,
    /// The guest has made a mistake.
    Error(String),
}

/// A channel of a guest's, and its shadow.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) claim: Claim,
    /// Its number on the device.
    pub(crate) host: u32,
    pub(crate) vram: VramRange,
    /// Where [`MAPPED`] begins, for the channel's address space.
    pub(crate) va: u64,
    /// Which of the space's slots that is.
    pub(crate) slot: u32,
    /// The device's group that it is listed in.
    pub(crate) tsg: Option<u32>,
    pub(crate) enabled: bool,
    pub(crate) audit: Audit,
    /// It has made a mistake: nothing is copied any more.
    pub(crate) failed: bool,
    /// Next entry of the guest's.
    get: u32,
    /// The entry behind the last of which all is copied.
    copied: u32,
    /// The entry behind the last that it has rung for, as far as anybody has looked: what the shadow page tables are as new as.
    limit: u32,
    segment: Option<Segment>,
    /// Next entry of ours.
    put: u32,
    /// First entry of ours that may not have been read to its end.
    tail: u32,
    /// Where the words of each entry from `tail` on end in the ring.
    ends: VecDeque<u64>,
    at: u64,
    free_from: u64,
    /// Words that are checked, for the ring from `at` on; empty, but for its memory, when nothing is being copied.
    words: Vec<u32>,
}

impl Channel {
    /// A shadow in `vram`, whose parts are mapped at `va`.
    pub(crate) fn new(
        claim: Claim,
        host: u32,
        vram: VramRange,
        (va, slot): (u64, u32),
        shadow_root: PhysAddr,
    ) -> Channel {
        Channel {
            claim,
            host,
            vram,
            va,
            slot,
            tsg: None,
            enabled: false,
            audit: Audit::new(claim.root, shadow_root),
            failed: false,
            get: 0,
            copied: 0,
            limit: 0,
            segment: None,
            put: 0,
            tail: 0,
            ends: VecDeque::new(),
            at: 0,
            free_from: 0,
            words: Vec::new(),
        }
    }

    /// Writes the instance block that the device uses.
    pub(crate) fn write_instance(&self, backing: &dyn DeviceBacking, root: PhysAddr, window: (u64, u64), budget: u32) {
        let mut block = InstanceBlock::default();
        block.words[ramfc::SIGNATURE] = ramfc::SIGNATURE_VALUE;
        block.set_page_directory(root);
        block.set_userd(self.part(USERD));
        block.set_gpfifo(self.va + GPFIFO, LOG2_ENTRIES);
        block.set_window(window.0, window.1);
        block.set_budget(budget);
        block.set_notifier(Some(self.part(NOTIFIER)));
        backing.write_vram(VramOffset(self.vram.offset), block.as_bytes());
    }

    fn part(&self, offset: u64) -> PhysAddr {
        PhysAddr::vram(self.vram.offset + offset)
    }

    /// As the runlist shows it.
    pub(crate) fn listed(&self) -> ListedChannel {
        ListedChannel { channel: self.host, userd: self.part(USERD), instance: self.part(0) }
    }

    /// True if the device has not fetched all that was copied.
    pub(crate) fn has_work(&self, backing: &dyn DeviceBacking) -> bool {
        self.gp_get(backing) != self.put || self.segment.is_some()
    }

    fn gp_get(&self, backing: &dyn DeviceBacking) -> u32 {
        let mut word = [0; 4];
        backing.read_vram(VramOffset(self.vram.offset + USERD + userd::GP_GET), &mut word);
        u32::from_le_bytes(word) % ENTRIES
    }

    /// Makes room where the device has read on. Of the entry that it fetched last, it may still be reading the words.
    fn reclaim(&mut self, backing: &dyn DeviceBacking) {
        let fetched = self.gp_get(backing).wrapping_sub(self.tail) % ENTRIES;
        for _ in 1..fetched.min(self.ends.len() as u32) {
            if let Some(end) = self.ends.pop_front() {
                self.free_from = end;
                self.tail = (self.tail + 1) % ENTRIES;
            }
        }
    }

    /// Whether `bytes` that begin at `at` fit into the ring, in one piece.
    fn fits(&self, at: u64, bytes: u64) -> bool {
        at % PUSH_BYTES + bytes <= PUSH_BYTES && at + bytes - self.free_from <= PUSH_BYTES
    }

    /// Makes room for so many words more in one entry; what was gathered may have to go first. False if there is no room.
    fn make_room(&mut self, backing: &dyn DeviceBacking, count: u64) -> bool {
        let gathered = self.words.len() as u64;
        if gathered > 0 {
            if gathered + count <= JOINED_WORDS && self.fits(self.at, (gathered + count) * 4) {
                return true;
            }
            self.put_words(backing);
        }
        if (self.put + 1) % ENTRIES == self.tail {
            return false;
        }
        let next_turn = self.at.next_multiple_of(PUSH_BYTES);
        let at = [self.at, next_turn].into_iter().find(|at| self.fits(*at, count * 4));
        self.at = at.unwrap_or(self.at);
        at.is_some()
    }

    /// Puts the words that were gathered into the ring, as one entry. There is room for both.
    fn put_words(&mut self, backing: &dyn DeviceBacking) {
        if self.words.is_empty() {
            return;
        }
        let offset = self.at % PUSH_BYTES;
        backing.write_vram(VramOffset(self.vram.offset + PUSH + offset), self.words.as_bytes());
        let entry = GpEntry::segment(self.va + PUSH + offset, self.words.len() as u32);
        let at = self.vram.offset + GPFIFO + u64::from(self.put) * GpEntry::BYTES;
        backing.write_vram(VramOffset(at), entry.as_bytes());
        self.at += self.words.len() as u64 * 4;
        self.put = (self.put + 1) % ENTRIES;
        self.ends.push_back(self.at);
        self.words.clear();
        self.words.shrink_to(JOINED_WORDS as usize);
    }

    /// Where the guest has put the end of its entries. True if there are new ones.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.failed && (self.segment.is_some() || self.limit != self.get)
    }

    /// The guest has rung: what it has put until now is work, and what it puts later when it rings again. This comes before its
    /// page tables are looked at. False if it has no USERD.
    pub(crate) fn rung(&mut self, memory: &GuestMemory) -> bool {
        let put = memory.read_word(self.claim.userd.offset(userd::GP_PUT));
        self.limit = put.map_or(self.limit, |put| put & ((1 << self.claim.gpfifo.1) - 1));
        put.is_some()
    }

    /// Copies some of what the guest has submitted, as far as there is room; `read` reads its address space as the device would.
    /// Gives whether the device is to be told, and why it ended.
    pub(crate) fn copy(
        &mut self,
        backing: &dyn DeviceBacking,
        memory: &GuestMemory,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> (bool, Stopped) {
        let (put, copied) = (self.put, self.copied);
        self.reclaim(backing);
        let stopped = self.copy_some(backing, read);
        // What stands before a mistake is run.
        self.put_words(backing);
        if self.copied != copied {
            // A guest that has no memory there does not want to know.
            let _ = memory.write(self.claim.userd.offset(userd::GP_GET), &self.copied.to_le_bytes());
        }
        let told = self.put != put;
        if told {
            let put = self.put.to_le_bytes();
            backing.write_vram(VramOffset(self.vram.offset + USERD + userd::GP_PUT), &put);
        }
        (told, stopped)
    }

    fn copy_some(&mut self, backing: &dyn DeviceBacking, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Stopped {
        if let Err(stopped) = self.copy_segment(backing, read) {
            return stopped;
        }
        let (base, log2) = self.claim.gpfifo;
        let size = 1 << log2;
        let mut entries = [GpEntry::default(); SOME_ENTRIES as usize];
        // In one piece.
        let end = if self.limit < self.get { size } else { self.limit };
        let entries = &mut entries[..(end - self.get).min(SOME_ENTRIES) as usize];
        let at = base + u64::from(self.get) * GpEntry::BYTES;
        if !entries.is_empty() && !read(at, entries.as_mut_bytes()) {
            return Stopped::Error(format!("no GP entry at {at:#x}"));
        }
        for entry in entries {
            self.get = (self.get + 1) % size;
            if entry.words() > 0 {
                let va = gpu_spec::host::same_tebibyte(base, entry.address());
                self.segment = Some(Segment { va, words: entry.words().into() });
            } else if GpEntry::OPCODE.get(entry.e1) != GpEntry::OPCODE_NOP {
                return Stopped::Error(format!("GP entry with control opcode {}", GpEntry::OPCODE.get(entry.e1)));
            }
            if let Err(stopped) = self.copy_segment(backing, read) {
                return stopped;
            }
        }
        if self.limit == self.get { Stopped::Empty } else { Stopped::Some }
    }

    /// Copies what is left of the segment of the last entry, if anything is.
    fn copy_segment(
        &mut self,
        backing: &dyn DeviceBacking,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Result<(), Stopped> {
        while let Some(segment) = self.segment {
            self.segment = self.copy_piece(backing, segment, read)?;
        }
        self.copied = self.get;
        Ok(())
    }

    /// Copies a piece of a segment; gives what is left of it.
    fn copy_piece(
        &mut self,
        backing: &dyn DeviceBacking,
        segment: Segment,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Result<Option<Segment>, Stopped> {
        let count = segment.words.min(PIECE_WORDS);
        if !self.make_room(backing, count) {
            return Err(Stopped::Full);
        }
        let from = self.words.len();
        self.words.resize(from + count as usize, 0);
        if !read(segment.va, self.words[from..].as_mut_bytes()) {
            self.words.truncate(from);
            return Err(Stopped::Error(format!("no pushbuffer at {:#x}", segment.va)));
        }
        let ended = self.audit.check_behind(&mut self.words, from).map_err(|refused| {
            self.words.truncate(from);
            Stopped::Error(refused.to_string())
        })?;
        let rest = Segment { va: segment.va + count * 4, words: segment.words - count };
        Ok((rest.words > 0 && !ended).then_some(rest))
    }

    /// What the device has said of an error of this channel, if it has: the record and the log.
    pub(crate) fn read_notifier(&self, backing: &dyn DeviceBacking) -> Option<(Record, Vec<u8>)> {
        let at = self.vram.offset + NOTIFIER;
        let mut record = Record::new_zeroed();
        backing.read_vram(VramOffset(at), record.as_mut_bytes());
        if record.status != STATUS_ERROR {
            return None;
        }
        // The status is written last: the rest is complete if it is read after it.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        backing.read_vram(VramOffset(at), record.as_mut_bytes());
        let mut log = vec![0; u64::from(record.log_bytes).min(notifier::LOG_BYTES) as usize];
        backing.read_vram(VramOffset(at + LOG_OFFSET), &mut log);
        Some((record, log))
    }

    /// Writes the guest's own notifier, the status last.
    pub(crate) fn notify(&self, memory: &GuestMemory, record: &Record, log: &[u8]) {
        let Some(at) = self.claim.notifier else { return };
        let log = &log[..log.len().min(notifier::LOG_BYTES as usize)];
        let before = Record { status: 0, log_bytes: log.len() as u32, ..*record };
        // A guest that has no memory there does not want to know.
        let _ = memory.write(at.offset(LOG_OFFSET), log);
        let _ = memory.write(at, before.as_bytes());
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        let _ = memory.write(at, Record { status: STATUS_ERROR, ..before }.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpu_driver::{Driver, HostCost, Lease};
    use gpu_spec::host::{self, Header};
    use gpu_spec::mmu::HUGE_PAGE;
    use softgpu::{Config, SoftGpu};

    use super::*;
    use crate::balloon::Balloon;
    use crate::lines::Lines;
    use crate::partition::Partition;

    /// Where the guest has its GPFIFO, and its pushbuffer behind that.
    const GPFIFO_VA: u64 = 1 << 40;
    const PUSH_VA: u64 = GPFIFO_VA + (1 << 20);
    const LOG2: u32 = 6;

    /// A guest's channel, and a device that fetches when it is told to.
    struct Case {
        lease: Arc<Lease>,
        memory: GuestMemory,
        channel: Channel,
        entries: Vec<GpEntry>,
        push: Vec<u32>,
        put: u32,
        fetched: u32,
        /// Words that the device has read.
        seen: Vec<u32>,
    }

    impl Case {
        fn new() -> Case {
            let gpu = SoftGpu::new(&Config { vram_bytes: 64 << 20, ..Config::default() }).unwrap();
            let driver = Driver::start(gpu).unwrap();
            let budget = driver.budget(HostCost::default()).unwrap();
            let lease = Arc::new(driver.lease(budget, 1, Arc::new(Lines::new(Arc::new(Balloon::new(0))))));
            let vram = Partition::new(Arc::clone(&lease), HUGE_PAGE, HUGE_PAGE, false).unwrap();
            let memory = GuestMemory::new(Arc::clone(&lease), vram);
            let root = PhysAddr::vram(0x1000);
            let claim = Claim {
                instance: PhysAddr::vram(0x2000),
                root,
                window: (GPFIFO_VA, 1 << 30),
                userd: PhysAddr::vram(0),
                gpfifo: (GPFIFO_VA, LOG2),
                notifier: None,
            };
            let vram = lease.take_vram(CHANNEL_BYTES, 4096).unwrap();
            lease.backing().fill_vram(VramOffset(vram.offset), CHANNEL_BYTES as usize, 0);
            let channel = Channel::new(claim, 1, vram, (1 << 41, 0), root);
            let entries = vec![GpEntry::default(); 1 << LOG2];
            Case { lease, memory, channel, entries, push: Vec::new(), put: 0, fetched: 0, seen: Vec::new() }
        }

        /// The guest puts an entry for these words.
        fn put(&mut self, words: &[u32]) {
            let at = PUSH_VA + self.push.len() as u64 * 4;
            self.push.extend(words);
            self.entries[self.put as usize] = GpEntry::segment(at, words.len() as u32);
            self.put = (self.put + 1) % (1 << LOG2);
        }

        fn ring(&mut self) {
            self.memory.write(PhysAddr::vram(userd::GP_PUT), &self.put.to_le_bytes()).unwrap();
            assert!(self.channel.rung(&self.memory));
        }

        fn copy(&mut self) -> (bool, Stopped) {
            let Case { lease, memory, channel, entries, push, .. } = self;
            channel.copy(lease.backing().as_ref(), memory, &mut |va, out| {
                let (from, base) =
                    if va < PUSH_VA { (entries.as_bytes(), GPFIFO_VA) } else { (push.as_bytes(), PUSH_VA) };
                let at = (va - base) as usize;
                let found = from.get(at..at + out.len());
                found.inspect(|found| out.copy_from_slice(found)).is_some()
            })
        }

        /// How far the guest sees its entries copied.
        fn get(&self) -> u32 {
            self.memory.read_word(PhysAddr::vram(userd::GP_GET)).unwrap()
        }

        /// The device fetches what it has been told of; gives the number of entries.
        fn fetch(&mut self) -> u32 {
            let backing = self.lease.backing();
            let vram = self.channel.vram.offset;
            let mut put = 0;
            backing.read_vram(VramOffset(vram + USERD + userd::GP_PUT), put.as_mut_bytes());
            let mut count = 0;
            while self.fetched != put {
                let mut entry = GpEntry::default();
                let at = vram + GPFIFO + u64::from(self.fetched) * GpEntry::BYTES;
                backing.read_vram(VramOffset(at), entry.as_mut_bytes());
                let offset = host::same_tebibyte(self.channel.va, entry.address()) - self.channel.va;
                let mut words = vec![0u32; entry.words() as usize];
                assert!(offset >= PUSH && offset + words.len() as u64 * 4 <= PUSH + PUSH_BYTES);
                backing.read_vram(VramOffset(vram + offset), words.as_mut_bytes());
                self.seen.extend(words);
                self.fetched = (self.fetched + 1) % ENTRIES;
                count += 1;
            }
            backing.write_vram(VramOffset(vram + USERD + userd::GP_GET), &self.fetched.to_le_bytes());
            count
        }
    }

    /// A method without effect.
    fn nop(data: u32) -> [u32; 2] {
        [Header::new(Header::OP_INC, 0, host::NOP, 1).0, data]
    }

    #[test]
    fn some_entries_are_copied_at_a_time_and_become_one() {
        let mut case = Case::new();
        let all = 2 * SOME_ENTRIES + 1;
        (0..all).for_each(|number| case.put(&nop(number)));
        case.ring();
        for (copied, stopped) in
            [(SOME_ENTRIES, Stopped::Some), (2 * SOME_ENTRIES, Stopped::Some), (all, Stopped::Empty)]
        {
            assert_eq!((case.copy(), case.get()), ((true, stopped), copied));
            assert_eq!((case.fetch(), case.seen.len()), (1, case.push.len().min(2 * copied as usize)));
        }
        assert_eq!(case.copy(), (false, Stopped::Empty));
        assert_eq!(case.seen, case.push);
    }

    #[test]
    fn what_was_put_after_the_doorbell_is_not_copied() {
        let mut case = Case::new();
        case.put(&nop(1));
        case.ring();
        case.put(&nop(2));
        assert_eq!((case.copy(), case.get()), ((true, Stopped::Empty), 1));
        case.ring();
        assert_eq!((case.copy(), case.get()), ((true, Stopped::Empty), 2));
    }

    #[test]
    fn what_stands_before_a_mistake_is_run_and_nothing_behind_it() {
        let illegal = [Header::new(Header::OP_INC, 0, host::ILLEGAL, 1).0, 0];
        let nowhere = GpEntry::segment(PUSH_VA + (1 << 30), 1);
        let control = GpEntry { e0: 0, e1: GpEntry::OPCODE.of(GpEntry::OPCODE_ILLEGAL) };
        for mistake in [None, Some(nowhere), Some(control)] {
            let mut case = Case::new();
            (0..2).for_each(|number| case.put(&nop(number)));
            case.put(&illegal);
            if let Some(mistake) = mistake {
                case.entries[2] = mistake;
            }
            case.put(&nop(3));
            case.ring();
            let (told, stopped) = case.copy();
            assert!(told && matches!(stopped, Stopped::Error(_)), "{stopped:?}");
            assert_eq!((case.get(), case.fetch()), (2, 1));
            assert_eq!(case.seen, case.push[..4]);
        }
    }

    /// Whatever the lengths of segments and the pace of the device, it reads what the guest has put, in order.
    #[test]
    fn the_device_reads_what_was_put() {
        let mut random = 5u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut case = Case::new();
        let (mut full, mut joined) = (0, 0);
        let (mut puts, mut ahead) = (0u32, 0);
        while puts < 3000 || ahead > 0 {
            for _ in 0..next(12) {
                if ahead < (1 << LOG2) - 1 && puts < 3000 {
                    // Most are short; some are longer than a piece.
                    let methods = match next(20) {
                        0 => next(12_000),
                        1..4 => next(400),
                        _ => 1 + next(20),
                    };
                    let words: Vec<u32> = (0..methods).flat_map(|data| nop(puts ^ (data as u32) << 12)).collect();
                    case.put(&words);
                    (puts, ahead) = (puts + 1, ahead + 1);
                }
            }
            case.ring();
            for _ in 0..next(6) {
                let before = case.get();
                let (_, stopped) = case.copy();
                let copied = case.get().wrapping_sub(before) % (1 << LOG2);
                ahead -= copied;
                full += u32::from(stopped == Stopped::Full);
                assert!(!matches!(stopped, Stopped::Error(_)), "{stopped:?}");
            }
            if next(3) == 0 {
                joined += case.fetch();
            }
        }
        case.fetch();
        assert!(case.seen == case.push, "{} and {} words", case.seen.len(), case.push.len());
        assert!(full > 0 && joined < 3000, "{full}, {joined}");
    }
}
