//! The clients' semaphore areas, and waking those who wait on them.
//!
//! An interrupt for every signal would make a thread run for nothing while nobody sleeps. So the device's interrupt for
//! signals is on only while somebody does:
//!
//! ```text
//!          somebody is about to sleep
//!   Off ─────────────────────────────────► On
//!       ◄─────────────────────────────────
//!          so many interrupts in a row found nobody asleep
//! ```
//! The device remembers what it did not tell, so switching on tells at once what came since the sleeper looked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use device_io::{DeviceBacking, DmaMemory};
use gpu::{SEMAPHORE_AREA_BYTES, SEMAPHORE_HEADER, SLOT_BYTES, SlotId};
use gpu_spec::regs::{self, vector, vf};
use hostmem::Spin;
use parking_lot::Mutex;

use crate::mmio::Mmio;

/// Offset in the header: interrupt count, the futex.
const COUNT: usize = SEMAPHORE_HEADER;
/// Offset in the header: number of waiters.
const WAITERS: usize = SEMAPHORE_HEADER + 4;
/// Offset in the header: context errors so far.
const ERRORS: usize = SEMAPHORE_HEADER + 8;
/// Offset in the header: not 0 while signals interrupt.
const ON: usize = SEMAPHORE_HEADER + 12;
/// Interrupts without a sleeper after which signals do not interrupt any more. More than one, or clients that sleep now and
/// then would keep switching.
const IDLE: u32 = 16;

/// The semaphore area of one client. The client can write all of it; nothing here trusts a word of it.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) dma: DmaMemory,
    spin: Mutex<Spin>,
    /// The client is being closed, or the device is lost: nobody shall wait any longer.
    ended: AtomicBool,
}

impl Signals {
    pub(crate) fn new(backing: &dyn DeviceBacking) -> io::Result<Signals> {
        let dma = backing.alloc_dma(SEMAPHORE_AREA_BYTES as u64)?;
        Ok(Signals { dma, spin: Mutex::default(), ended: AtomicBool::new(false) })
    }

    /// Payload of a slot (in range).
    pub(crate) fn payload(&self, slot: SlotId) -> u64 {
        self.dma.mapping.u64_at(slot.0 as usize * SLOT_BYTES).load(Ordering::Acquire)
    }

    /// Counts an interrupt, and wakes those who sleep; true if there are any.
    pub(crate) fn interrupt(&self) -> bool {
        self.dma.mapping.u32_at(COUNT).fetch_add(1, Ordering::SeqCst);
        let asleep = self.has_sleepers();
        if asleep {
            self.dma.mapping.wake_all(COUNT);
        }
        asleep
    }

    fn has_sleepers(&self) -> bool {
        self.dma.mapping.u32_at(WAITERS).load(Ordering::SeqCst) != 0
    }

    fn show(&self, on: bool) {
        self.dma.mapping.u32_at(ON).store(on.into(), Ordering::SeqCst);
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
    pub(crate) fn wait<T>(
        &self,
        listeners: &Listeners,
        deadline: Option<Instant>,
        mut done: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(value) = done() {
            return Some(value);
        }
        let started = Instant::now();
        let spin = self.spin.lock().clone();
        let mut result = None;
        let seen = spin.until(|| {
            result = done();
            result.is_some()
        });
        if !seen {
            self.dma.mapping.u32_at(WAITERS).fetch_add(1, Ordering::SeqCst);
            result = self.sleep(listeners, deadline, done);
            self.dma.mapping.u32_at(WAITERS).fetch_sub(1, Ordering::SeqCst);
        }
        self.spin.lock().learn(started.elapsed());
        result
    }

    fn sleep<T>(
        &self,
        listeners: &Listeners,
        deadline: Option<Instant>,
        mut done: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        /// A client that damages the header loses wake-ups; it notices this late.
        const LONGEST: Duration = Duration::from_millis(100);
        loop {
            listeners.listen(self);
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

/// The areas of all clients, and whether the device interrupts for signals.
#[derive(Debug)]
pub(crate) struct Listeners {
    mmio: Arc<Mmio>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    areas: Vec<Arc<Signals>>,
    on: bool,
    /// Interrupts since somebody slept.
    idle: u32,
}

impl Listeners {
    pub(crate) fn new(mmio: Arc<Mmio>) -> Listeners {
        Listeners { mmio, state: Mutex::default() }
    }

    pub(crate) fn add(&self, signals: Arc<Signals>) {
        let mut state = self.state.lock();
        signals.show(state.on);
        state.areas.push(signals);
    }

    pub(crate) fn remove(&self, signals: &Arc<Signals>) {
        self.state.lock().areas.retain(|other| !Arc::ptr_eq(other, signals));
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().areas.len()
    }

    /// Makes signals interrupt if somebody sleeps in this area, or is about to and has counted itself.
    pub(crate) fn listen(&self, signals: &Signals) {
        if signals.has_sleepers() && signals.dma.mapping.u32_at(ON).load(Ordering::SeqCst) == 0 {
            self.state.lock().switch(&self.mmio, true);
        }
    }

    /// Signals have come.
    pub(crate) fn interrupt(&self) {
        let mut state = self.state.lock();
        let asleep = state.areas.iter().filter(|signals| signals.interrupt()).count() > 0;
        state.idle = if asleep { 0 } else { state.idle + 1 };
        if state.on && state.idle >= IDLE {
            state.switch(&self.mmio, false);
            // Who counted itself before it could see that is heard after all.
            fence(Ordering::SeqCst);
            if state.areas.iter().any(|signals| signals.has_sleepers()) {
                state.switch(&self.mmio, true);
            }
        }
    }

    /// Lets nobody wait any longer.
    pub(crate) fn end(&self) {
        for signals in &self.state.lock().areas {
            signals.end();
        }
    }
}

impl State {
    fn switch(&mut self, mmio: &Mmio, on: bool) {
        // A client can write its area: it is told again even if nothing changes.
        self.areas.iter().for_each(|signals| signals.show(on));
        self.idle = 0;
        if std::mem::replace(&mut self.on, on) != on {
            let register = if on { vf::INTR_LEAF_EN_SET } else { vf::INTR_LEAF_EN_CLEAR };
            let bit = 1 << (vector::NON_STALL % 32);
            mmio.write(regs::VF_BASE + register + vector::NON_STALL / 32 * 4, bit);
        }
    }
}
