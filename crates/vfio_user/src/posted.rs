//! Register writes and interrupts that go through shared memory, between our own client and server.
//!
//! A posted write by message is two system calls and, if the server sleeps, a wakeup. Where both sides have agreed to it
//! ([`crate::Capabilities::posted_writes`]), writes of four bytes go through a ring instead, which the server looks at as long
//! as it would look at the socket, and after that the client wakes it by an empty message.
//!
//! ```text
//! +0     u64 head: entries ever put       (client)
//! +64    u64 tail: entries ever taken     (server)
//! +128   u32 the server sleeps            (server sets, client clears)
//! +192   u32 interrupts so far, a futex   (server)
//! +256   u32 somebody sleeps there        (client)
//! +4096  512 entries: u32 region, u32 offset, u32 value, u32 zero, u64 messages that were sent before
//! ```
//!
//! The count of messages keeps the order: a write is done after all messages that were sent before it, and before all that
//! were sent after it, as if it had been one.
//!
//! An interrupt by eventfd is two threads woken: one of the server's, which may have to wait where the client can fill the
//! eventfd, and the client's. A client that wants that has its interrupts counted here instead, and sleeps on the count;
//! to wake it waits for nothing.
//!
//! What the client can do to the server here is what it can do by messages: entries are copied before they are looked at, and
//! a head that cannot be ends the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use hostmem::{Mapping, Memfd, PAGE};

use crate::Ended;

const HEAD: usize = 0;
const TAIL: usize = 64;
const SLEEPS: usize = 128;
const INTERRUPTS: usize = 192;
const LISTENS: usize = 256;
const ENTRIES_AT: usize = PAGE as usize;
const ENTRIES: u64 = 512;
const ENTRY: usize = 24;
/// Bytes of the whole.
pub(crate) const BYTES: u64 = ENTRIES_AT as u64 + ENTRIES * ENTRY as u64;

const _: () = assert!(BYTES.is_multiple_of(PAGE), "whole pages");

/// One write of four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostedWrite {
    /// Which region.
    pub region: u32,
    /// Where in it.
    pub offset: u32,
    /// What, in the client's byte order.
    pub value: u32,
}

fn place(index: u64) -> usize {
    // The remainder is below 512.
    ENTRIES_AT + (index % ENTRIES) as usize * ENTRY
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct Poster {
    map: Mapping,
    head: u64,
    /// As last read: the server writes it, so each look takes the line from its processor.
    tail: u64,
}

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    /// The server sees it by itself.
    Seen,
    /// The server has to be woken.
    Asleep,
    /// There is no room: it has to go by message.
    Full,
}

impl Poster {
    pub(crate) fn new(map: Mapping) -> Option<Poster> {
        (map.len() as u64 >= BYTES).then_some(Poster { map, head: 0, tail: 0 })
    }

    /// Writes that were put.
    pub(crate) fn count(&self) -> u64 {
        self.head
    }

    /// Puts a write behind the `sent` messages before it, where the server sees it when it is awake: false if there is no room.
    pub(crate) fn post_late(&mut self, write: PostedWrite, sent: u64) -> bool {
        if self.head.wrapping_sub(self.tail) >= ENTRIES {
            self.tail = self.map.u64_at(TAIL).load(Ordering::Acquire);
            if self.head.wrapping_sub(self.tail) >= ENTRIES {
                return false;
            }
        }
        let at = place(self.head);
        self.map.u64_at(at).store(u64::from(write.region) | u64::from(write.offset) << 32, Ordering::Relaxed);
        self.map.u64_at(at + 8).store(write.value.into(), Ordering::Relaxed);
        self.map.u64_at(at + 16).store(sent, Ordering::Relaxed);
        self.head += 1;
        self.map.u64_at(HEAD).store(self.head, Ordering::Release);
        true
    }

    /// As [`Poster::post_late`]; tells whether the server has to be woken.
    pub(crate) fn post(&mut self, write: PostedWrite, sent: u64) -> Posted {
        if !self.post_late(write, sent) {
            return Posted::Full;
        }
        // Either this side sees that the server sleeps, or the server sees the entry before it does.
        fence(Ordering::SeqCst);
        let sleeps = self.map.u32_at(SLEEPS);
        if sleeps.load(Ordering::Relaxed) == 0 {
            return Posted::Seen;
        }
        sleeps.store(0, Ordering::Relaxed);
        Posted::Asleep
    }
}

/// The server's end.
#[derive(Debug)]
pub(crate) struct Taker {
    map: Mapping,
    tail: u64,
}

impl Taker {
    /// A new ring, and the file that the client is to map.
    pub(crate) fn new() -> std::io::Result<(Taker, Memfd)> {
        let file = Memfd::create("vfio-user-posted", BYTES)?;
        Ok((Taker { map: file.map()?, tail: 0 }, file))
    }

    /// Writes that were taken.
    pub(crate) fn count(&self) -> u64 {
        self.tail
    }

    fn waiting(&self) -> u64 {
        self.map.u64_at(HEAD).load(Ordering::Acquire).wrapping_sub(self.tail)
    }

    /// True if a write waits whose turn it is after `received` messages, or if the ring is spoilt.
    pub(crate) fn is_ready(&self, received: u64) -> bool {
        self.waiting() != 0 && self.map.u64_at(place(self.tail) + 16).load(Ordering::Relaxed) <= received
    }

    /// Takes the writes whose turn is after `received` messages, as far as they are there, into `out`: [`Taker::MOST`] at most.
    pub(crate) fn take(&mut self, received: u64, out: &mut Vec<PostedWrite>) -> Result<(), Ended> {
        let waiting = self.waiting();
        if waiting > ENTRIES {
            return Err(Ended::Garbage("more posted writes than there is room for"));
        }
        let before = self.tail;
        for _ in 0..waiting {
            let at = place(self.tail);
            if self.map.u64_at(at + 16).load(Ordering::Relaxed) > received {
                break;
            }
            let target = self.map.u64_at(at).load(Ordering::Relaxed);
            let value = self.map.u64_at(at + 8).load(Ordering::Relaxed) as u32;
            out.push(PostedWrite { region: target as u32, offset: (target >> 32) as u32, value });
            self.tail += 1;
        }
        if self.tail != before {
            self.map.u64_at(TAIL).store(self.tail, Ordering::Release);
        }
        Ok(())
    }

    /// Most writes that can have been put before a message that has come.
    pub(crate) const MOST: u64 = ENTRIES;

    /// Says that the server is about to sleep, or does not any more. Whoever says so looks once more before it does.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.map.u32_at(SLEEPS).store(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// The server's end of the interrupts.
#[derive(Debug)]
pub(crate) struct Counter(Mapping);

impl Counter {
    /// That of the ring in `file`.
    pub(crate) fn new(file: &Memfd) -> std::io::Result<Counter> {
        Ok(Counter(file.map()?))
    }

    /// Counts an interrupt, and wakes who waits for one.
    pub(crate) fn count(&self) {
        self.0.u32_at(INTERRUPTS).fetch_add(1, Ordering::SeqCst);
        if self.0.u32_at(LISTENS).load(Ordering::SeqCst) != 0 {
            // On a thread that works for others, too: it does not depend on how many of the client's sleep.
            self.0.wake_some(INTERRUPTS);
        }
    }
}

/// The client's end of the interrupts; one thread waits for them. Others may sleep on the count while it does.
#[derive(Debug)]
pub struct PostedInterrupts {
    map: Arc<Mapping>,
    seen: AtomicU32,
}

impl PostedInterrupts {
    pub(crate) fn new(map: Mapping) -> Option<PostedInterrupts> {
        (map.len() as u64 >= BYTES).then(|| PostedInterrupts { map: Arc::new(map), seen: AtomicU32::new(0) })
    }

    /// The count: memory, and where in it.
    #[must_use]
    pub fn word(&self) -> (Arc<Mapping>, usize) {
        (Arc::clone(&self.map), INTERRUPTS)
    }

    /// Waits for an interrupt, at most `timeout`; false if none has come since the last.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut slept = false;
        loop {
            let count = self.map.u32_at(INTERRUPTS).load(Ordering::SeqCst);
            if self.seen.swap(count, Ordering::Relaxed) != count {
                if slept {
                    // The server wakes some.
                    self.map.wake_all(INTERRUPTS);
                }
                return true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            // The server sees this, or the sleep sees that the count has moved.
            self.map.u32_at(LISTENS).store(1, Ordering::SeqCst);
            self.map.wait(INTERRUPTS, count, left);
            slept = true;
            self.map.u32_at(LISTENS).store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Poster, Taker) {
        let (taker, file) = Taker::new().unwrap();
        (Poster::new(file.map().unwrap()).unwrap(), taker)
    }

    fn write(value: u32) -> PostedWrite {
        PostedWrite { region: 1, offset: 0xffff_fffc, value }
    }

    fn take(taker: &mut Taker, received: u64) -> Vec<PostedWrite> {
        let mut taken = Vec::new();
        taker.take(received, &mut taken).unwrap();
        taken
    }

    #[test]
    fn writes_come_in_order_and_after_the_messages_before_them() {
        let (mut poster, mut taker) = ring();
        for value in 0..2000 {
            assert_eq!(poster.post(write(value), u64::from(value / 2)), Posted::Seen);
            assert_eq!(take(&mut taker, u64::from(value / 2)), [write(value)]);
            assert_eq!(take(&mut taker, u64::MAX), []);
        }
        poster.post(write(7), 10);
        assert!(!taker.is_ready(9));
        assert_eq!(take(&mut taker, 9), [], "a message comes first");
        assert!(taker.is_ready(10));
        assert_eq!(take(&mut taker, 10), [write(7)]);
        assert_eq!((poster.count(), taker.count()), (2001, 2001));
        for value in 0..4 {
            poster.post(write(value), u64::from(10 + value / 3));
        }
        assert_eq!(take(&mut taker, 10), [0, 1, 2].map(write), "together, up to the message that comes between");
        assert_eq!(take(&mut taker, 11), [write(3)]);
    }

    #[test]
    fn a_full_ring_takes_no_more_and_a_sleeper_is_woken_once() {
        let (mut poster, mut taker) = ring();
        taker.set_asleep(true);
        assert_eq!(poster.post(write(0), 0), Posted::Asleep);
        for value in 1..ENTRIES as u32 {
            assert_eq!(poster.post(write(value), 0), Posted::Seen);
        }
        assert_eq!(poster.post(write(1), 0), Posted::Full);
        assert_eq!(take(&mut taker, 0).len(), ENTRIES as usize);
        assert_eq!(poster.post(write(1), 0), Posted::Seen);
    }

    #[test]
    fn a_late_write_wakes_nobody_and_comes_before_what_does() {
        let (mut poster, mut taker) = ring();
        taker.set_asleep(true);
        assert!(poster.post_late(write(0), 0) && poster.post_late(write(1), 0));
        assert_eq!(poster.post(write(2), 0), Posted::Asleep);
        assert_eq!(take(&mut taker, 0), [0, 1, 2].map(write));
        for value in 0..ENTRIES as u32 {
            assert!(poster.post_late(write(value), 0));
        }
        assert!(!poster.post_late(write(0), 0));
    }

    #[test]
    fn a_head_that_cannot_be_ends_it() {
        let (_poster, mut taker) = ring();
        for head in [ENTRIES + 1, u64::MAX, 1 << 40] {
            taker.map.u64_at(HEAD).store(head, Ordering::Relaxed);
            assert!(taker.is_ready(0));
            assert!(taker.take(0, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn who_sleeps_hears_of_each_interrupt() {
        let (_taker, file) = Taker::new().unwrap();
        let interrupts = PostedInterrupts::new(file.map().unwrap()).unwrap();
        let counter = Counter::new(&file).unwrap();
        assert!(!interrupts.wait(Duration::ZERO));
        counter.count();
        counter.count();
        assert!(interrupts.wait(Duration::from_secs(60)));
        assert!(!interrupts.wait(Duration::from_millis(1)), "several that come before one looks are one");
        let (heard, hears) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..1000 {
                    assert!(interrupts.wait(Duration::from_secs(60)));
                    heard.send(()).unwrap();
                }
            });
            for _ in 0..1000 {
                counter.count();
                hears.recv().unwrap();
            }
        });
    }

    #[test]
    fn two_threads_lose_nothing() {
        let (mut poster, mut taker) = ring();
        let putting = std::thread::spawn(move || {
            for value in 0..100_000 {
                while poster.post(write(value), 0) == Posted::Full {
                    std::thread::yield_now();
                }
            }
        });
        let mut taken = Vec::new();
        while taken.len() < 100_000 {
            let before = taken.len();
            taker.take(0, &mut taken).unwrap();
            if taken.len() == before {
                std::thread::yield_now();
            }
        }
        assert!(taken.iter().zip(0..).all(|(taken, value)| *taken == write(value)));
        putting.join().unwrap();
    }
}
