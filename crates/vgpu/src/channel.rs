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
//! GPFIFO and pushbuffer are mapped behind the guest's window, where its own tables decide nothing, for reading. The guest sees
//! GP_GET advance when an entry has been copied. If the ring is full the rest stays where it is: a guest that submits faster
//! than its work is done waits as it would on the device.

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
    /// There is more: the ring is full, or others should have their turn.
    More,
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
            limit: 0,
            segment: None,
            put: 0,
            tail: 0,
            ends: VecDeque::new(),
            at: 0,
            free_from: 0,
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

    /// Makes `bytes` in one piece free behind what was written; false if there is no room.
    fn make_room(&mut self, bytes: u64) -> bool {
        let before_end = PUSH_BYTES - self.at % PUSH_BYTES;
        let skipped = if before_end < bytes { before_end } else { 0 };
        let fits = self.at + skipped + bytes - self.free_from <= PUSH_BYTES;
        if fits {
            self.at += skipped;
        }
        fits
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

    /// Copies what the guest has submitted, as far as there is room; `read` reads its address space as the device would.
    /// Gives whether the device is to be told, and why it ended.
    pub(crate) fn copy(
        &mut self,
        backing: &dyn DeviceBacking,
        memory: &GuestMemory,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> (bool, Stopped) {
        let put_before = self.put;
        self.reclaim(backing);
        let stopped = self.copy_entries(backing, memory, read);
        let told = self.put != put_before;
        if told {
            let put = self.put.to_le_bytes();
            backing.write_vram(VramOffset(self.vram.offset + USERD + userd::GP_PUT), &put);
        }
        (told, stopped)
    }

    fn copy_entries(
        &mut self,
        backing: &dyn DeviceBacking,
        memory: &GuestMemory,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Stopped {
        // A guest that submits on and on, of what takes no room, does not keep what else its lock is for.
        for _ in 0..2 * ENTRIES {
            if let Some(segment) = self.segment {
                match self.copy_piece(backing, segment, read) {
                    Ok(rest) => self.segment = rest,
                    Err(stopped) => return stopped,
                }
                if self.segment.is_none() {
                    self.tell_get(memory);
                }
                continue;
            }
            let (base, log2) = self.claim.gpfifo;
            if self.limit == self.get {
                return Stopped::Empty;
            }
            let mut entry = GpEntry::default();
            let at = base + u64::from(self.get) * GpEntry::BYTES;
            if !read(at, entry.as_mut_bytes()) {
                return Stopped::Error(format!("no GP entry at {at:#x}"));
            }
            self.get = (self.get + 1) & ((1 << log2) - 1);
            if entry.words() == 0 {
                let opcode = GpEntry::OPCODE.get(entry.e1);
                if opcode != GpEntry::OPCODE_NOP {
                    return Stopped::Error(format!("GP entry with control opcode {opcode}"));
                }
                self.tell_get(memory);
                continue;
            }
            let va = gpu_spec::host::same_tebibyte(base, entry.address());
            self.segment = Some(Segment { va, words: entry.words().into() });
        }
        Stopped::More
    }

    /// Copies a piece of a segment; gives what is left of it.
    fn copy_piece(
        &mut self,
        backing: &dyn DeviceBacking,
        segment: Segment,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Result<Option<Segment>, Stopped> {
        let count = segment.words.min(PIECE_WORDS);
        if (self.put + 1) % ENTRIES == self.tail || !self.make_room(count * 4) {
            return Err(Stopped::More);
        }
        let mut words = vec![0u32; count as usize];
        if !read(segment.va, words.as_mut_bytes()) {
            return Err(Stopped::Error(format!("no pushbuffer at {:#x}", segment.va)));
        }
        let ended = self.audit.check(&mut words).map_err(|refused| Stopped::Error(refused.to_string()))?;
        if !words.is_empty() {
            let offset = self.at % PUSH_BYTES;
            backing.write_vram(VramOffset(self.vram.offset + PUSH + offset), words.as_bytes());
            let entry = GpEntry::segment(self.va + PUSH + offset, words.len() as u32);
            let at = self.vram.offset + GPFIFO + u64::from(self.put) * GpEntry::BYTES;
            backing.write_vram(VramOffset(at), entry.as_bytes());
            self.at += words.len() as u64 * 4;
            self.put = (self.put + 1) % ENTRIES;
            self.ends.push_back(self.at);
        }
        let rest = Segment { va: segment.va + count * 4, words: segment.words - count };
        Ok((rest.words > 0 && !ended).then_some(rest))
    }

    /// Shows the guest how far its entries have been copied.
    fn tell_get(&self, memory: &GuestMemory) {
        // A guest that has no memory there does not want to know.
        let _ = memory.write(self.claim.userd.offset(userd::GP_GET), &self.get.to_le_bytes());
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
