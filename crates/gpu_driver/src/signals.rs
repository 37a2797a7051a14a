//! The clients' semaphore areas, and waking those who wait on them.
//!
//! Work that is done by the time it is submitted, or soon after, is told to who sleeps by the thread that submitted it
//! ([`Signals::has_signalled`]): no other thread has to run, and it is that client's own time. The device's interrupt for
//! signals is on only while somebody sleeps ([`SemaphoreArea`] says how that is known) for what is still to come:
//!
//! ```text
//!          somebody is about to sleep, and his work is not done
//!   Off ───────────────────────────────────────────────────────► On
//!       ◄───────────────────────────────────────────────────────
//!          so many interrupts in a row found nobody asleep for whom more is to come
//! ```
//! The device remembers what it did not tell, so switching on tells at once what came since the sleeper looked. Who counts
//! itself as asleep before they are switched off, and whose work is submitted after that, is heard when it is submitted.
//!
//! While one sleeps, everybody's signals interrupt, and that costs everybody. So it has a price: what an interrupt takes is
//! charged to the tenants that sleep, in equal parts ([`Credit`]). When all that sleep have spent theirs, signals do not
//! interrupt for some microseconds, until one has some again. Whoever lets a thread sleep for ever, or writes into its area
//! that one does, takes a fixed part of a processor at most, and delays nobody's signals but its own sleepers'. Leases that
//! listen are as sleepers; what is looked at for one alone is its own to pay. The interrupts that still come when one has left
//! off, and nobody sleeps, are those leases' for which they were switched on: to listen for a moment, again and again, is no
//! cheaper.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use device_io::{DeviceBacking, DmaMemory};
use gpu::{SemaphoreArea, SlotId};
use gpu_spec::regs::{self, vector, vf};
use parking_lot::Mutex;

use crate::mmio::Mmio;

/// Interrupts without a sleeper that waits for more, after which signals do not interrupt any more. More than one, or clients that sleep now and
/// then would keep switching.
const IDLE: u32 = 16;
/// What an interrupt takes of a processor, nanoseconds: the device's thread raises it, ours wakes; and looking at an area.
const WAKING_NS: i64 = 10_000;
const LOOKING_NS: i64 = 100;
/// A tenant's sleepers may have interrupts take this part of a processor; and so much at once, nanoseconds, if it was saved.
const PART: i64 = 8;
const SAVED_NS: i64 = 2_000_000;

/// One for whom signals have interrupted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Asleep {
    /// The budget that pays for it.
    pub(crate) payer: u32,
    /// What was looked at to find out whether it was told something, beside an area.
    pub(crate) looks: u32,
    /// More is to come for it.
    pub(crate) waits: bool,
}

/// The semaphore area of one client. The client can write all of it; nothing here trusts a word of it.
#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) dma: Arc<DmaMemory>,
    pub(crate) area: SemaphoreArea,
    /// The budget of the tenant that pays for its sleepers.
    payer: u32,
    to_come: Mutex<ToCome>,
    /// The client is being closed, or the device is lost: nobody shall wait any longer.
    ended: AtomicBool,
}

/// Signals that have been submitted and were not reached yet when somebody looked last.
#[derive(Debug, Default)]
struct ToCome {
    /// The last of each channel, which does its work in order.
    of_channels: Vec<(u32, SlotId, u64)>,
    /// Some have been submitted since who sleeps was told last.
    is_new: bool,
}

impl Signals {
    pub(crate) fn new(backing: &dyn DeviceBacking, payer: u32) -> io::Result<Signals> {
        let dma = Arc::new(backing.alloc_dma(SemaphoreArea::BYTES as u64)?);
        let area = SemaphoreArea::new(Arc::clone(&dma.mapping)).ok_or(io::ErrorKind::InvalidData)?;
        let area = area.woken_by(backing.interrupt_count());
        Ok(Signals { dma, area, payer, to_come: Mutex::default(), ended: AtomicBool::new(false) })
    }

    /// A channel has been given a signal.
    pub(crate) fn submitted(&self, channel: u32, slot: SlotId, value: u64) {
        let mut to_come = self.to_come.lock();
        to_come.is_new = true;
        match to_come.of_channels.iter_mut().find(|last| last.0 == channel) {
            Some(last) => *last = (channel, slot, value),
            None => to_come.of_channels.push((channel, slot, value)),
        }
    }

    /// Nothing more comes of a channel.
    pub(crate) fn forget(&self, channel: u32) {
        self.to_come.lock().of_channels.retain(|last| last.0 != channel);
    }

    /// Whether all that was submitted has been signalled, and some of it was submitted since this was so last.
    fn has_signalled(&self) -> bool {
        let mut to_come = self.to_come.lock();
        self.look(&mut to_come);
        to_come.of_channels.is_empty() && std::mem::take(&mut to_come.is_new)
    }

    /// Whether something that was submitted is still to be signalled.
    fn waits(&self) -> bool {
        let mut to_come = self.to_come.lock();
        self.look(&mut to_come);
        !to_come.of_channels.is_empty()
    }

    fn look(&self, to_come: &mut ToCome) {
        to_come.of_channels.retain(|&(_, slot, value)| self.area.payload(slot) < value);
    }

    /// Lets nobody wait any longer.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.area.wake_everybody();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until `done` gives something, or the area has ended (then `None`), or time is up (then `None`, too).
    pub(crate) fn wait<T>(
        &self,
        listeners: &Listeners,
        deadline: Option<Instant>,
        mut done: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let look = |_| match done() {
            Some(value) => Some(Some(value)),
            None => self.is_ended().then_some(None),
        };
        self.area.wait(deadline, look, || listeners.listen(self)).flatten()
    }
}

/// The areas of all clients, and whether the device interrupts for signals.
#[derive(Debug)]
pub(crate) struct Listeners {
    mmio: Arc<Mmio>,
    areas: Mutex<Areas>,
}

#[derive(Debug, Default)]
struct Areas {
    of_clients: Vec<Arc<Signals>>,
    on: bool,
    /// Interrupts since somebody slept for whom more was to come.
    idle: u32,
    /// Who pays for these: leases that have listened since signals interrupt.
    callers: Vec<u32>,
    /// What those that sleep, or slept of late, may still spend.
    credits: HashMap<u32, Credit>,
    /// On, and yet signals do not interrupt before then.
    paused: Option<Instant>,
}

/// What a tenant's sleepers may spend, nanoseconds of a processor.
#[derive(Clone, Copy, Debug)]
struct Credit {
    left: i64,
    at: Instant,
}

impl Credit {
    fn new(now: Instant) -> Credit {
        Credit { left: SAVED_NS, at: now }
    }

    /// What is left now.
    fn look(&mut self, now: Instant) -> i64 {
        let passed = now.saturating_duration_since(self.at).as_nanos().min(1 << 40) as i64;
        self.left = (self.left + passed / PART).min(SAVED_NS);
        // What is too short to count for anything is counted later.
        if passed >= PART {
            self.at = now;
        }
        self.left
    }

    /// When some is left again.
    fn recovers(&self) -> Instant {
        self.at + Duration::from_nanos((1 - self.left).max(0) as u64 * PART as u64)
    }
}

impl Listeners {
    pub(crate) fn new(mmio: Arc<Mmio>) -> Listeners {
        Listeners { mmio, areas: Mutex::default() }
    }

    pub(crate) fn add(&self, signals: Arc<Signals>) {
        let mut areas = self.areas.lock();
        signals.area.set_listening(areas.on);
        areas.of_clients.push(signals);
    }

    pub(crate) fn remove(&self, signals: &Arc<Signals>) {
        self.areas.lock().of_clients.retain(|other| !Arc::ptr_eq(other, signals));
    }

    pub(crate) fn count(&self) -> usize {
        self.areas.lock().of_clients.len()
    }

    /// If somebody sleeps in this area, or is about to and has counted itself: tells him what has come of his work, or makes
    /// signals interrupt for what is to come. Who waits for what nobody has submitted asks again, and nothing has come then.
    pub(crate) fn listen(&self, signals: &Signals) {
        // Between what this thread has submitted, and the count of those who sleep.
        fence(Ordering::SeqCst);
        if !signals.area.has_sleepers() {
            return;
        }
        if signals.has_signalled() {
            signals.area.interrupt();
        } else if !signals.area.is_listening() {
            self.areas.lock().switch(&self.mmio, true);
        }
    }

    /// Whether they do.
    pub(crate) fn are_on(&self) -> bool {
        self.areas.lock().on
    }

    /// Makes signals interrupt: somebody beside the clients listens.
    pub(crate) fn listen_for_lease(&self, payer: u32) {
        let mut areas = self.areas.lock();
        areas.switch(&self.mmio, true);
        if !areas.callers.contains(&payer) {
            areas.callers.push(payer);
        }
    }

    /// Signals have come, or may have: wakes those who sleep; gives who pays for that.
    pub(crate) fn wake(&self) -> Vec<Asleep> {
        let areas = self.areas.lock();
        let asleep = areas.of_clients.iter().filter(|signals| signals.area.interrupt());
        asleep.map(|signals| Asleep { payer: signals.payer, looks: 0, waits: signals.waits() }).collect()
    }

    /// Signals have interrupted, and these sleepers have been woken.
    pub(crate) fn account(&self, asleep: Vec<Asleep>) {
        self.areas.lock().account(&self.mmio, asleep, Instant::now());
    }

    /// Lets signals interrupt again if it is time to; otherwise, how long until then.
    pub(crate) fn resume(&self) -> Option<Duration> {
        let mut areas = self.areas.lock();
        let left = areas.paused?.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        areas.paused = None;
        if areas.on {
            areas.tell(&self.mmio, true);
        }
        None
    }

    /// Lets nobody wait any longer.
    pub(crate) fn end(&self) {
        for signals in &self.areas.lock().of_clients {
            signals.end();
        }
    }
}

impl Areas {
    fn account(&mut self, mmio: &Mmio, mut asleep: Vec<Asleep>, now: Instant) {
        self.idle = if asleep.iter().any(|one| one.waits) { 0 } else { self.idle + 1 };
        if asleep.is_empty() {
            asleep.extend(self.callers.iter().map(|payer| Asleep { payer: *payer, looks: 0, waits: false }));
        }
        if self.on && self.idle >= IDLE {
            self.switch(mmio, false);
            // Who counted itself before it could see that is woken, and asks again; what has come for it meanwhile may not have
            // interrupted any more.
            fence(Ordering::SeqCst);
            if self.of_clients.iter().filter(|signals| signals.area.interrupt()).any(|signals| signals.waits()) {
                self.switch(mmio, true);
            }
        }
        // Not as measured: a thread that waits for a processor takes no time of any.
        let cost = WAKING_NS + LOOKING_NS * self.of_clients.len() as i64;
        if let Some(until) = self.charge(asleep, cost, now)
            && self.on
            && self.paused.is_none()
        {
            self.paused = Some(until);
            self.tell(mmio, false);
        }
    }

    fn switch(&mut self, mmio: &Mmio, on: bool) {
        // A client can write its area: it is told again even if nothing changes.
        self.of_clients.iter().for_each(|signals| signals.area.set_listening(on));
        self.idle = 0;
        if !on {
            self.callers.clear();
        }
        if std::mem::replace(&mut self.on, on) != on && self.paused.is_none() {
            self.tell(mmio, on);
        }
    }

    /// Switches the device's interrupt for signals.
    fn tell(&self, mmio: &Mmio, on: bool) {
        let register = if on { vf::INTR_LEAF_EN_SET } else { vf::INTR_LEAF_EN_CLEAR };
        let bit = 1 << (vector::NON_STALL % 32);
        mmio.write(regs::VF_BASE + register + vector::NON_STALL / 32 * 4, bit);
    }

    /// Those who sleep pay for an interrupt, of those the ones who can. If none can pay for another: when one can again.
    fn charge(&mut self, mut asleep: Vec<Asleep>, cost: i64, now: Instant) -> Option<Instant> {
        // Once each, for all that was looked at.
        asleep.sort_unstable();
        asleep.dedup_by(|next, first| {
            let same = next.payer == first.payer;
            first.looks += if same { next.looks } else { 0 };
            same
        });
        // Who has saved all that can be saved is as good as new.
        self.credits.retain(|_, credit| credit.look(now) < SAVED_NS);
        let credits = &mut self.credits;
        let mut left = |payer: &u32| credits.entry(*payer).or_insert_with(|| Credit::new(now)).look(now);
        let able: Vec<Asleep> = asleep.iter().copied().filter(|one| left(&one.payer) > 0).collect();
        for Asleep { payer, looks, .. } in &able {
            if let Some(credit) = self.credits.get_mut(payer) {
                credit.left -= cost / able.len() as i64 + LOOKING_NS * i64::from(*looks);
            }
        }
        let paying = asleep.iter().filter_map(|one| self.credits.get(&one.payer));
        paying.map(Credit::recovers).min().filter(|recovers| *recovers > now)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use device_io::{BusAddr, VramOffset};
    use hostmem::{Mapping, Memfd};

    use super::*;

    /// A device that does nothing.
    pub(crate) struct Idle;

    impl DeviceBacking for Idle {
        fn read32(&self, _: u32) -> u32 {
            0
        }

        fn write32(&self, _: u32, _: u32) {}

        fn vram_bytes(&self) -> u64 {
            0
        }

        fn vram_mapping(&self) -> Option<&Arc<Mapping>> {
            None
        }

        fn discard_vram(&self, _: VramOffset, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn alloc_dma(&self, bytes: u64) -> io::Result<DmaMemory> {
            let file = Arc::new(Memfd::create("idle", bytes)?);
            let mapping = Arc::new(file.map()?);
            Ok(DmaMemory::contiguous(BusAddr(0), file, mapping))
        }

        fn map_dma_at(&self, _: BusAddr, _: &Arc<Memfd>, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn free_dma(&self, _: BusAddr) {}

        fn wait_interrupt(&self, _: Duration) -> bool {
            false
        }
    }

    fn of(payers: &[u32]) -> Vec<Asleep> {
        payers.iter().map(|payer| Asleep { payer: *payer, looks: 0, waits: true }).collect()
    }

    /// Interrupts of one second of signals, one each microsecond, while these sleep.
    fn interrupts(asleep: impl Fn(u64) -> Vec<u32>) -> u64 {
        let mut areas = Areas::default();
        let begin = Instant::now();
        let (mut count, mut paused) = (0, begin);
        for us in 0..1_000_000 {
            let now = begin + Duration::from_micros(us);
            if now >= paused {
                count += 1;
                paused = areas.charge(of(&asleep(us)), WAKING_NS, now).unwrap_or(now);
            }
        }
        count
    }

    #[test]
    fn who_sleeps_for_ever_has_a_fixed_part_of_interrupts() {
        let part = (1_000_000_000 / PART + SAVED_NS) / WAKING_NS;
        let part = part as u64;
        let one = interrupts(|_| vec![1]);
        assert!((part * 9 / 10..=part + 1).contains(&one), "{one} of {part}");
        // Those of others sleep for their own part, not for the first one's.
        let two = interrupts(|_| vec![1, 2]);
        assert!((part * 18 / 10..=2 * part + 2).contains(&two), "{two} of {part}");
    }

    #[test]
    fn who_sleeps_now_and_then_is_told_at_once_whoever_else_has_spent_all() {
        let mut areas = Areas::default();
        let begin = Instant::now();
        let mut now = begin;
        while areas.charge(of(&[1]), WAKING_NS, now).is_none() {
            now += Duration::from_micros(1);
        }
        assert_eq!(areas.charge(of(&[1, 2]), WAKING_NS, now), None, "the other pays");
        let until = areas.charge(of(&[1]), WAKING_NS, now).unwrap();
        assert!(
            until > now && until <= now + Duration::from_nanos((WAKING_NS * PART) as u64 + 100),
            "{:?}",
            until - now
        );
        assert_eq!(areas.charge(of(&[]), WAKING_NS, now), None);
        // After a while nothing is remembered.
        areas.charge(of(&[]), WAKING_NS, now + Duration::from_secs(1));
        assert!(areas.credits.is_empty());
    }

    #[test]
    fn who_is_looked_for_at_many_places_pays_for_that_alone() {
        let mut areas = Areas::default();
        let now = Instant::now();
        // Twice, since something came meanwhile.
        let asleep = [(1, 0), (2, 100), (2, 100)].map(|(payer, looks)| Asleep { payer, looks, waits: true });
        assert_eq!(areas.charge(asleep.to_vec(), WAKING_NS, now), None);
        let spent = |payer| SAVED_NS - areas.credits[&payer].left;
        assert_eq!((spent(1), spent(2)), (WAKING_NS / 2, WAKING_NS / 2 + 200 * LOOKING_NS));
    }

    fn signals() -> Signals {
        let file = Arc::new(Memfd::create("area", SemaphoreArea::BYTES as u64).unwrap());
        let mapping = Arc::new(file.map().unwrap());
        let area = SemaphoreArea::new(Arc::clone(&mapping)).unwrap();
        let dma = Arc::new(DmaMemory::contiguous(BusAddr(0), file, mapping));
        Signals { dma, area, payer: 1, to_come: Mutex::default(), ended: AtomicBool::new(false) }
    }

    #[test]
    fn who_sleeps_is_told_by_who_submits_or_by_the_device_and_never_by_nobody() {
        let signals = Arc::new(signals());
        let listeners = Listeners::new(Arc::new(Mmio::new(Arc::new(Idle))));
        listeners.add(Arc::clone(&signals));
        let area = &signals.area;
        let told = || {
            let before = area.interrupts();
            listeners.listen(&signals);
            (area.interrupts() != before, listeners.are_on())
        };
        signals.submitted(1, SlotId(3), 5);
        area.raise(SlotId(3), 5);
        assert_eq!(told(), (false, false), "nobody sleeps");
        let sleeper = area.sleeper();
        assert_eq!(told(), (true, false), "all is done");
        // Who goes on sleeping waits for what nobody has submitted.
        assert_eq!(told(), (false, true));
        for _ in 0..IDLE {
            assert!(listeners.are_on());
            listeners.account(listeners.wake());
        }
        assert!(!listeners.are_on(), "nothing is to come");
        signals.submitted(1, SlotId(3), 6);
        signals.submitted(2, SlotId(4), 1);
        area.raise(SlotId(4), 1);
        assert_eq!(told(), (false, true), "one of two is to come");
        for _ in 0..2 * IDLE {
            listeners.account(listeners.wake());
        }
        assert!(listeners.are_on(), "as long as it is");
        signals.forget(1);
        assert_eq!(told(), (true, true), "nothing comes of a channel that is gone");
        drop(sleeper);
    }

    #[test]
    fn a_lease_that_listens_for_a_moment_pays_until_signals_do_not_interrupt() {
        let listeners = Listeners::new(Arc::new(Mmio::new(Arc::new(Idle))));
        let now = Instant::now();
        let interrupt = |asleep: &[u32]| listeners.areas.lock().account(&listeners.mmio, of(asleep), now);
        let spent = |payer| listeners.areas.lock().credits.get(&payer).map_or(0, |credit| SAVED_NS - credit.left);
        for round in 1..=3 {
            listeners.listen_for_lease(7);
            // A client that sleeps meanwhile pays for itself, and for nothing else.
            interrupt(&[8]);
            (0..IDLE).for_each(|_| interrupt(&[]));
            assert!(!listeners.areas.lock().on);
            let each = i64::from(round) * WAKING_NS;
            assert_eq!((spent(7), spent(8)), (i64::from(IDLE) * each, each));
            // They are off: nothing is to be paid for.
            interrupt(&[]);
            assert_eq!(spent(7), i64::from(IDLE) * each);
        }
    }
}
