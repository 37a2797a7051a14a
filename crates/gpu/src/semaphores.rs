//! The semaphore area: memory that a client and its GPU share, and in which the client sees how far its work is.
//!
//! ```text
//! +0         65,536 slots: u64 payload, u64 GPU time of the last signal in ns
//! +0x100000  u32 interrupts so far (a futex)
//!      +4    u32 clients' threads that sleep, or are about to
//!      +8    u32 context errors so far
//!      +12   u32 whether signals interrupt
//! ```
//! An interrupt for every signal would make a thread run for nothing while nobody sleeps, so signals interrupt only while
//! somebody does. **Who sleeps** counts itself, asks that signals interrupt if they do not ([`crate::Gpu::listen`]), reads
//! the count of interrupts, looks once more at what it waits for, and sleeps until the count moves. **Who wakes** stores what
//! is waited for, counts an interrupt, and wakes if anybody has counted itself. One of the two always sees the other; a
//! signal from before the GPU listened is told when it begins to.
//!
//! Either side can write all of it: nothing that the daemon or a driver decides may depend on a word of it, and every sleep
//! has a bound. A session without shared memory has an area of its own on the client's side, which its receiving thread
//! keeps up to date.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostmem::{Mapping, Spin};
use parking_lot::Mutex;

use crate::{GpuError, SlotId};

/// Semaphore slots of a client.
pub const SEMAPHORE_SLOTS: u32 = 65536;

const SLOT_BYTES: usize = 16;
const TIME: usize = 8;
const INTERRUPTS: usize = SEMAPHORE_SLOTS as usize * SLOT_BYTES;
const SLEEPERS: usize = INTERRUPTS + 4;
const ERRORS: usize = INTERRUPTS + 8;
const LISTENING: usize = INTERRUPTS + 12;

/// Longest sleep: a peer that damages the header loses wake-ups; it notices this late.
const LONGEST: Duration = Duration::from_millis(100);
/// Longest sleep before the GPU has heard that signals should interrupt: it may be busy with what was sent before.
const UNHEARD: Duration = Duration::from_millis(2);

/// How closely a waiter looks for what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Often, one look after the other: a few loads.
    Glance,
    /// Before each sleep: others may be asked as well, for example whether the peer still lives.
    Close,
}

/// A mapped semaphore area.
#[derive(Debug)]
pub struct SemaphoreArea {
    // Invariant: at least `BYTES` long.
    memory: Arc<Mapping>,
    /// Another futex that wakes those who sleep.
    device: Option<(Arc<Mapping>, usize)>,
    /// What earlier waits taught.
    spin: Mutex<Spin>,
}

impl SemaphoreArea {
    /// Bytes of an area.
    pub const BYTES: usize = INTERRUPTS + 4096;

    /// The area in `memory`; `None` if that is too small.
    #[must_use]
    pub fn new(memory: Arc<Mapping>) -> Option<SemaphoreArea> {
        (memory.len() >= SemaphoreArea::BYTES).then(|| SemaphoreArea { memory, device: None, spin: Mutex::default() })
    }

    /// Who sleeps is woken by a change of this futex as well: a count of interrupts, so that nobody has to pass them on.
    #[must_use]
    pub fn woken_by(self, device: Option<(Arc<Mapping>, usize)>) -> SemaphoreArea {
        SemaphoreArea { device, ..self }
    }

    /// Where a slot's payload lies in the area, bytes; the time lies behind it.
    ///
    /// # Errors
    /// `InvalidId` if there is no such slot.
    pub fn offset(slot: SlotId) -> Result<u64, GpuError> {
        match slot.0 {
            0..SEMAPHORE_SLOTS => Ok(u64::from(slot.0) * SLOT_BYTES as u64),
            _ => Err(GpuError::InvalidId { what: "semaphore slot".into(), id: slot.0.into() }),
        }
    }

    /// # Panics
    /// If there is no such slot: those from outside are checked with [`SemaphoreArea::offset`].
    fn word(&self, slot: SlotId, inside: usize) -> &AtomicU64 {
        assert!(slot.0 < SEMAPHORE_SLOTS, "{slot:?}");
        self.memory.u64_at(slot.0 as usize * SLOT_BYTES + inside)
    }

    fn header(&self, at: usize) -> &AtomicU32 {
        self.memory.u32_at(at)
    }

    /// Payload of a slot (in range).
    #[must_use]
    pub fn payload(&self, slot: SlotId) -> u64 {
        self.word(slot, 0).load(Ordering::Acquire)
    }

    /// GPU time of a slot's (in range) last signal, ns.
    #[must_use]
    pub fn time_ns(&self, slot: SlotId) -> u64 {
        self.word(slot, TIME).load(Ordering::Acquire)
    }

    /// Raises the payload of a slot (in range) to `value`, if it is below.
    pub fn raise(&self, slot: SlotId, value: u64) {
        self.word(slot, 0).fetch_max(value, Ordering::AcqRel);
    }

    /// What a GPU does for [`crate::Command::Signal`]: time, payload, interrupt.
    pub fn signal(&self, slot: SlotId, value: u64, time_ns: u64) {
        self.word(slot, TIME).store(time_ns, Ordering::SeqCst);
        self.word(slot, 0).store(value, Ordering::SeqCst);
        self.interrupt();
    }

    /// Context errors so far: while it stands still, no context has failed.
    #[must_use]
    pub fn errors(&self) -> u32 {
        self.header(ERRORS).load(Ordering::Acquire)
    }

    /// Counts a context error, and wakes all who sleep.
    pub fn count_error(&self) {
        self.header(ERRORS).fetch_add(1, Ordering::SeqCst);
        self.wake_everybody();
    }

    /// Counts an interrupt, and wakes those who sleep; whether there are any.
    pub fn interrupt(&self) -> bool {
        self.header(INTERRUPTS).fetch_add(1, Ordering::SeqCst);
        let asleep = self.has_sleepers();
        if asleep {
            self.memory.wake_all(INTERRUPTS);
        }
        asleep
    }

    /// Counts an interrupt and wakes all who sleep, counted or not: for what may not be missed in an area that the other
    /// side has damaged.
    pub fn wake_everybody(&self) {
        self.header(INTERRUPTS).fetch_add(1, Ordering::SeqCst);
        self.memory.wake_all(INTERRUPTS);
    }

    /// Whether somebody sleeps, or is about to.
    #[must_use]
    pub fn has_sleepers(&self) -> bool {
        self.header(SLEEPERS).load(Ordering::SeqCst) != 0
    }

    /// Interrupts so far.
    #[must_use]
    pub fn interrupts(&self) -> u32 {
        self.header(INTERRUPTS).load(Ordering::SeqCst)
    }

    /// Whether signals interrupt.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.header(LISTENING).load(Ordering::SeqCst) != 0
    }

    /// Says whether signals interrupt.
    pub fn set_listening(&self, on: bool) {
        self.header(LISTENING).store(on.into(), Ordering::SeqCst);
    }

    /// Counts the caller among those who sleep for as long as the value lives.
    #[must_use]
    pub fn sleeper(&self) -> Sleeper<'_> {
        self.header(SLEEPERS).fetch_add(1, Ordering::SeqCst);
        Sleeper { area: self }
    }

    /// Waits until `look` finds something; `None` if it is not there at `deadline`. Glances for a while, then sleeps between
    /// interrupts. `listen` is called before a sleep while signals do not interrupt; it must not wait.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut(Look) -> Option<T>,
        mut listen: impl FnMut(),
    ) -> Option<T> {
        let mut found = look(Look::Glance);
        if found.is_some() {
            return found;
        }
        let start = Instant::now();
        let errors = self.errors();
        // Copied: others wait at the same time.
        let spin = self.spin.lock().clone();
        spin.until(|| {
            found = look(Look::Glance);
            found.is_some() || self.errors() != errors
        });
        if found.is_none() {
            found = self.sleep(deadline, look, &mut listen);
        }
        self.spin.lock().learn(start.elapsed());
        found
    }

    fn sleep<T>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut(Look) -> Option<T>,
        listen: &mut dyn FnMut(),
    ) -> Option<T> {
        let _sleeper = self.sleeper();
        loop {
            if !self.is_listening() {
                listen();
            }
            let most = if self.is_listening() { LONGEST } else { UNHEARD };
            let interrupts = self.interrupts();
            let device = self.device.as_ref();
            let device = device.map(|(memory, at)| (&**memory, *at, memory.u32_at(*at).load(Ordering::SeqCst)));
            if let Some(found) = look(Look::Close) {
                return Some(found);
            }
            let left = match deadline {
                None => most,
                Some(deadline) => deadline.saturating_duration_since(Instant::now()).min(most),
            };
            if left.is_zero() {
                return None;
            }
            match device {
                Some(device) => self.memory.wait_beside(INTERRUPTS, interrupts, device, left),
                None => self.memory.wait(INTERRUPTS, interrupts, Some(left)),
            }
        }
    }
}

/// Counted among those whom the GPU should interrupt.
#[derive(Debug)]
pub struct Sleeper<'a> {
    area: &'a SemaphoreArea,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.area.header(SLEEPERS).fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use hostmem::Memfd;

    use super::*;

    fn area() -> SemaphoreArea {
        let file = Memfd::create("area", SemaphoreArea::BYTES as u64).unwrap();
        SemaphoreArea::new(Arc::new(file.map().unwrap())).unwrap()
    }

    #[test]
    fn the_layout_is_what_the_other_side_maps() {
        let file = Memfd::create("area", SemaphoreArea::BYTES as u64).unwrap();
        let raw = file.map().unwrap();
        let area = SemaphoreArea::new(Arc::new(file.map().unwrap())).unwrap();
        area.signal(SlotId(3), 7, 9);
        area.count_error();
        area.set_listening(true);
        let sleeper = area.sleeper();
        let word = |at| raw.u32_at(at).load(Ordering::SeqCst);
        assert_eq!((word(48), word(56)), (7, 9));
        assert_eq!([0, 4, 8, 12].map(|at| word(0x10_0000 + at)), [2, 1, 1, 1]);
        drop(sleeper);
        assert_eq!(word(0x10_0004), 0);
        assert_eq!(SemaphoreArea::offset(SlotId(SEMAPHORE_SLOTS - 1)), Ok(0xf_fff0));
        assert!(SemaphoreArea::offset(SlotId(SEMAPHORE_SLOTS)).is_err());
        let small = Memfd::create("small", SemaphoreArea::BYTES as u64 - 4096).unwrap();
        assert!(SemaphoreArea::new(Arc::new(small.map().unwrap())).is_none());
    }

    #[test]
    fn a_payload_is_only_raised() {
        let area = area();
        area.raise(SlotId(1), 5);
        area.raise(SlotId(1), 3);
        assert_eq!(area.payload(SlotId(1)), 5);
    }

    /// The GPU's side: signals without interrupts until somebody has asked for them.
    #[test]
    fn no_signal_is_missed_between_counting_and_sleeping() {
        let area = area();
        let asked = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = (0..3)
                .map(|slot| {
                    let (area, asked) = (&area, &asked);
                    scope.spawn(move || {
                        for value in 1..2_000 {
                            let look = |_| (area.payload(SlotId(slot)) >= value).then_some(());
                            let listen = || {
                                asked.fetch_add(1, Ordering::SeqCst);
                                area.set_listening(true);
                            };
                            assert_eq!(area.wait(None, look, listen), Some(()));
                        }
                    })
                })
                .collect();
            let mut value = 1;
            while !sleepers.iter().all(|sleeper| sleeper.is_finished()) {
                (0..3).for_each(|slot| area.signal(SlotId(slot), value, value));
                value += 1;
                std::thread::yield_now();
            }
        });
        assert!(!area.has_sleepers());
    }

    #[test]
    fn waits_end_at_their_deadline_and_look_closely_before_they_sleep() {
        let area = area();
        area.set_listening(true);
        let mut close = 0;
        let look = |how| {
            close += u32::from(how == Look::Close);
            None::<()>
        };
        assert_eq!(area.wait(Some(Instant::now()), look, || panic!("signals interrupt already")), None);
        assert_eq!(close, 1);
    }
}
