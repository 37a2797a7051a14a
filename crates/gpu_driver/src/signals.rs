//! A client's semaphore area, and waking those who wait on it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device_io::{DeviceBacking, DmaMemory};
use gpu::{SEMAPHORE_AREA_BYTES, SEMAPHORE_HEADER, SLOT_BYTES, SlotId};

/// Offset in the header: interrupt count, the futex.
const COUNT: usize = SEMAPHORE_HEADER;
/// Offset in the header: number of waiters.
const WAITERS: usize = SEMAPHORE_HEADER + 4;
/// Offset in the header: context errors so far.
const ERRORS: usize = SEMAPHORE_HEADER + 8;
/// How long a waiter looks before it sleeps: a kernel's end is often nearer than two wake-ups.
const SPIN: Duration = Duration::from_micros(15);
/// Looks between two glances at the clock.
const LOOKS: u32 = 64;

/// The semaphore area of one client. The client can write all of it; nothing here trusts a word of it.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) dma: DmaMemory,
    /// The client is being closed, or the device is lost: nobody shall wait any longer.
    ended: AtomicBool,
}

impl Signals {
    pub(crate) fn new(backing: &dyn DeviceBacking) -> io::Result<Signals> {
        Ok(Signals { dma: backing.alloc_dma(SEMAPHORE_AREA_BYTES as u64)?, ended: AtomicBool::new(false) })
    }

    /// Payload of a slot (in range).
    pub(crate) fn payload(&self, slot: SlotId) -> u64 {
        self.dma.mapping.u64_at(slot.0 as usize * SLOT_BYTES).load(Ordering::Acquire)
    }

    /// Counts an interrupt, and wakes those who sleep.
    pub(crate) fn interrupt(&self) {
        let area = &self.dma.mapping;
        area.u32_at(COUNT).fetch_add(1, Ordering::SeqCst);
        if area.u32_at(WAITERS).load(Ordering::SeqCst) != 0 {
            area.wake_all(COUNT);
        }
    }

    /// Counts a context error, and wakes those who sleep.
    pub(crate) fn error(&self) {
        self.dma.mapping.u32_at(ERRORS).fetch_add(1, Ordering::SeqCst);
        self.interrupt();
    }

    /// Lets nobody wait any longer.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // Whoever sleeps may have miscounted in an area that the client can write; it is woken in any case.
        self.dma.mapping.u32_at(COUNT).fetch_add(1, Ordering::SeqCst);
        self.dma.mapping.wake_all(COUNT);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until `done` gives something, or the area has ended (then `None`), or time is up (then `None`, too). Looks for
    /// a while, then sleeps between interrupts.
    pub(crate) fn wait<T>(&self, deadline: Option<Instant>, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(value) = done() {
            return Some(value);
        }
        let started = Instant::now();
        while started.elapsed() < SPIN {
            for _ in 0..LOOKS {
                if let Some(value) = done() {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
        }
        self.dma.mapping.u32_at(WAITERS).fetch_add(1, Ordering::SeqCst);
        let result = self.sleep(deadline, done);
        self.dma.mapping.u32_at(WAITERS).fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn sleep<T>(&self, deadline: Option<Instant>, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        /// A client that damages the header loses wake-ups; it notices this late.
        const LONGEST: Duration = Duration::from_millis(100);
        loop {
            let count = self.dma.mapping.u32_at(COUNT).load(Ordering::SeqCst);
            if let Some(value) = done() {
                return Some(value);
            }
            if self.is_ended() {
                return None;
            }
            let left = match deadline {
                None => LONGEST,
                Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(LONGEST),
            };
            if left.is_zero() {
                return None;
            }
            self.dma.mapping.wait(COUNT, count, Some(left));
        }
    }
}
