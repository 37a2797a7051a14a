//! A queue of byte frames in shared memory.
//!
//! ```text
//! base +0    u64 head: bytes ever written   (producer's cache line)
//!      +64   u64 tail: bytes ever consumed  (consumer's cache line)
//!      +128  u32 consumer sleeps (futex)
//!      +192  u32 producer sleeps (futex)
//!      +256  data: `capacity` bytes, a power of two
//! frame:     u32 length, u32 zero, bytes, padding to 8
//! ```
//! Frames are contiguous: one that does not fit before the end starts again at the beginning, behind a marker of length
//! `u32::MAX`. Each side keeps its own index privately and only publishes it; so the peer can spoil what it sends, not
//! where we write.
//!
//! Sleeping: the sleeper stores 1, fences, looks once more, and waits on the word; the other side publishes, fences, and if
//! it reads 1 stores 0 and wakes. One of the two always sees the other.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use hostmem::{Mapping, Spin};

const HEAD: usize = 0;
const TAIL: usize = 64;
const CONSUMER_SLEEPS: usize = 128;
const PRODUCER_SLEEPS: usize = 192;
const DATA: usize = 256;
const FRAME_HEADER: usize = 8;
const SKIP: u32 = u32::MAX;

/// Longest a sleeper trusts its peer to wake it, before it asks whether the peer is alive.
pub const MAX_WAIT: Duration = Duration::from_millis(100);

/// Bytes of shared memory for a ring of `capacity`.
#[must_use]
pub const fn bytes(capacity: usize) -> usize {
    DATA + capacity
}

/// Why a ring cannot be used any more, or not for this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The peer wrote an index or a length that cannot be.
    #[error("the peer corrupted the ring, or sent what is no frame")]
    Corrupt,
    /// The frame is longer than half the ring.
    #[error("frame of {bytes} bytes; the ring carries {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// Most bytes of a frame.
        limit: usize,
    },
    /// The peer is gone.
    #[error("the peer is gone")]
    PeerGone,
}

/// What both ends know.
#[derive(Debug)]
struct RingMemory {
    map: Arc<Mapping>,
    base: usize,
    capacity: usize,
}

impl RingMemory {
    fn new(map: Arc<Mapping>, base: usize, capacity: usize) -> RingMemory {
        assert!(
            capacity.is_power_of_two() && capacity >= 64 && base.is_multiple_of(64),
            "ring of {capacity} at {base}"
        );
        assert!(base + bytes(capacity) <= map.len(), "ring outside its mapping");
        RingMemory { map, base, capacity }
    }

    fn load(&self, index: usize) -> u64 {
        self.map.u64_at(self.base + index).load(Ordering::Acquire)
    }

    fn publish(&self, index: usize, value: u64) {
        self.map.u64_at(self.base + index).store(value, Ordering::Release);
    }

    /// Where a byte with a running number lies.
    fn place(&self, position: u64) -> usize {
        // The remainder is below `capacity`, which is a usize.
        self.base + DATA + (position % self.capacity as u64) as usize
    }

    fn wake(&self, word: usize) {
        fence(Ordering::SeqCst);
        let flag = self.map.u32_at(self.base + word);
        if flag.load(Ordering::Relaxed) != 0 {
            flag.store(0, Ordering::Relaxed);
            self.map.wake_all(self.base + word);
        }
    }

    /// Looks, then sleeps, until `ready` holds. `peer` is asked from time to time whether to go on.
    fn wait(
        &self,
        word: usize,
        spin: &mut Spin,
        mut ready: impl FnMut() -> bool,
        peer: &dyn Fn() -> bool,
    ) -> Result<(), RingError> {
        if ready() {
            return Ok(());
        }
        let start = Instant::now();
        if !spin.until(&mut ready) {
            loop {
                let flag = self.map.u32_at(self.base + word);
                flag.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if ready() {
                    flag.store(0, Ordering::Relaxed);
                    break;
                }
                if !peer() {
                    return Err(RingError::PeerGone);
                }
                self.map.wait(self.base + word, 1, Some(MAX_WAIT));
            }
        }
        spin.learn(start.elapsed());
        Ok(())
    }
}

/// The end that sends.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    // Invariant: `head - tail <= capacity`; both multiples of 8.
    head: u64,
    tail: u64,
    spin: Spin,
}

/// The end that receives.
#[derive(Debug)]
pub struct Consumer {
    memory: RingMemory,
    // Invariant: `head - tail <= capacity`; both multiples of 8.
    head: u64,
    tail: u64,
    published: u64,
    spin: Spin,
}

impl Producer {
    /// The sending end of a fresh (zeroed) ring at `base` (a multiple of 64) in `map`.
    #[must_use]
    pub fn new(map: Arc<Mapping>, base: usize, capacity: usize) -> Producer {
        Producer { memory: RingMemory::new(map, base, capacity), head: 0, tail: 0, spin: Spin::default() }
    }

    /// Longest frame, bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.memory.capacity / 2 - FRAME_HEADER
    }

    /// Sends one frame, the concatenation of `parts`; `Ok(false)` if there is no room now.
    ///
    /// # Errors
    /// `TooLong`; `Corrupt` if the consumer's index cannot be.
    pub fn try_push(&mut self, parts: &[&[u8]]) -> Result<bool, RingError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > self.limit() {
            return Err(RingError::TooLong { bytes: length, limit: self.limit() });
        }
        let need = FRAME_HEADER + length.next_multiple_of(8);
        let to_end = self.memory.capacity - self.place(self.head);
        let skip = if need > to_end { to_end } else { 0 };
        if !self.room((skip + need) as u64)? {
            return Ok(false);
        }
        let map = &self.memory.map;
        if skip > 0 {
            map.write(self.memory.place(self.head), &header(SKIP));
            self.head += skip as u64;
        }
        let mut at = self.memory.place(self.head);
        // Lengths are below the capacity, which the limit keeps below 2^32.
        map.write(at, &header(length as u32));
        at += FRAME_HEADER;
        for part in parts {
            map.write(at, part);
            at += part.len();
        }
        self.head += need as u64;
        self.memory.publish(HEAD, self.head);
        self.memory.wake(CONSUMER_SLEEPS);
        Ok(true)
    }

    /// Sends one frame, waiting for room while `peer` says that the consumer lives.
    ///
    /// # Errors
    /// `TooLong`, `Corrupt`, `PeerGone`.
    pub fn push(&mut self, parts: &[&[u8]], peer: &dyn Fn() -> bool) -> Result<(), RingError> {
        loop {
            if self.try_push(parts)? {
                return Ok(());
            }
            let seen = self.tail;
            let memory = &self.memory;
            memory.wait(PRODUCER_SLEEPS, &mut self.spin, || memory.load(TAIL) != seen, peer)?;
        }
    }

    /// A handle that ends this producer's sleep from another thread of the same process.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { map: Arc::clone(&self.memory.map), base: self.memory.base }
    }

    fn place(&self, position: u64) -> usize {
        (position % self.memory.capacity as u64) as usize
    }

    /// Whether `need` bytes are free, looking at the consumer's index only if the last one known is not enough.
    fn room(&mut self, need: u64) -> Result<bool, RingError> {
        let capacity = self.memory.capacity as u64;
        if self.head + need - self.tail <= capacity {
            return Ok(true);
        }
        let tail = self.memory.load(TAIL);
        if tail < self.tail || tail > self.head || !tail.is_multiple_of(8) {
            return Err(RingError::Corrupt);
        }
        self.tail = tail;
        Ok(self.head + need - tail <= capacity)
    }
}

impl Consumer {
    /// The receiving end of a fresh (zeroed) ring at `base` (a multiple of 64) in `map`.
    #[must_use]
    pub fn new(map: Arc<Mapping>, base: usize, capacity: usize) -> Consumer {
        Consumer { memory: RingMemory::new(map, base, capacity), head: 0, tail: 0, published: 0, spin: Spin::default() }
    }

    /// Receives the next frame into `out`, replacing its content; `Ok(false)` if there is none now.
    ///
    /// # Errors
    /// `Corrupt` if an index or length of the producer cannot be.
    pub fn try_pop(&mut self, out: &mut Vec<u8>) -> Result<bool, RingError> {
        if self.head == self.tail && !self.look()? {
            self.give_back();
            return Ok(false);
        }
        let mut length = self.length_at(self.tail);
        if length == SKIP {
            let to_end = self.memory.capacity as u64 - self.tail % self.memory.capacity as u64;
            if self.head - self.tail <= to_end {
                return Err(RingError::Corrupt);
            }
            self.tail += to_end;
            length = self.length_at(self.tail);
        }
        let length = length as usize;
        let to_end = self.memory.capacity - (self.tail % self.memory.capacity as u64) as usize;
        let need = FRAME_HEADER + length.next_multiple_of(8);
        if need > to_end || need as u64 > self.head - self.tail || length > self.memory.capacity / 2 - FRAME_HEADER {
            return Err(RingError::Corrupt);
        }
        out.resize(length, 0);
        self.memory.map.read(self.memory.place(self.tail) + FRAME_HEADER, out);
        self.tail += need as u64;
        if self.tail - self.published >= self.memory.capacity as u64 / 4 {
            self.give_back();
        }
        Ok(true)
    }

    /// Receives the next frame, waiting for it while `peer` says that the producer lives.
    ///
    /// # Errors
    /// `Corrupt`, `PeerGone`.
    pub fn pop(&mut self, out: &mut Vec<u8>, peer: &dyn Fn() -> bool) -> Result<(), RingError> {
        while !self.try_pop(out)? {
            let seen = self.head;
            let memory = &self.memory;
            memory.wait(CONSUMER_SLEEPS, &mut self.spin, || memory.load(HEAD) != seen, peer)?;
        }
        Ok(())
    }

    /// A handle that ends this consumer's sleep from another thread of the same process.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { map: Arc::clone(&self.memory.map), base: self.memory.base }
    }

    /// Takes note of what the producer has published; whether there is anything.
    fn look(&mut self) -> Result<bool, RingError> {
        let head = self.memory.load(HEAD);
        if head < self.head || head - self.tail > self.memory.capacity as u64 || !head.is_multiple_of(8) {
            return Err(RingError::Corrupt);
        }
        self.head = head;
        Ok(head != self.tail)
    }

    fn length_at(&self, position: u64) -> u32 {
        let mut word = [0; 4];
        self.memory.map.read(self.memory.place(position), &mut word);
        u32::from_le_bytes(word)
    }

    /// Publishes how far we have read. Not for every frame: the producer's cache line then moves rarely.
    fn give_back(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            self.memory.publish(TAIL, self.tail);
            self.memory.wake(PRODUCER_SLEEPS);
        }
    }
}

/// Ends the sleep of both ends of a ring, so that they ask about their peer again.
#[derive(Debug, Clone)]
pub struct Waker {
    map: Arc<Mapping>,
    base: usize,
}

impl Waker {
    /// Wakes whoever sleeps.
    pub fn wake(&self) {
        for word in [CONSUMER_SLEEPS, PRODUCER_SLEEPS] {
            self.map.u32_at(self.base + word).store(0, Ordering::SeqCst);
            self.map.wake_all(self.base + word);
        }
    }
}

fn header(length: u32) -> [u8; FRAME_HEADER] {
    let mut bytes = [0; FRAME_HEADER];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}
