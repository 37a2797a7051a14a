//! Channels that wait for semaphores, found by what they wait for.
//!
//! ```text
//!   released by ..                          who looks
//!   a semaphore release of the device       whoever released it: at the waiters of that physical address
//!   a store of a kernel, a copy             whoever ends the job: at some waiters of its address space
//!   a store of the CPU, then a doorbell     whoever hears it: as well
//!   any other store                         the ticker: at whoever is due, at growing intervals
//! ```
//! Each looks at so many waiters and no more, so that what one tenant waits for costs others nothing; those that were not
//! looked at are the ticker's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use gmmu::{Access, Target, translate};
use gpu_spec::mmu::{Aperture, PhysAddr};

use super::{Front, Port};
use crate::chip::Chip;
use crate::space::Space;

/// The shortest and longest time between two looks at the same semaphore without reason, nanoseconds; the longest while few
/// wait.
const POLL_NS: (u64, u64) = (500_000, 20_000_000);
/// Waiters of one semaphore that are looked at when it is released.
const RELEASED: usize = 32;
/// Waiters that are looked at after one turn of a channel, whatever it released.
const OF_TURN: usize = 64;
/// Waiters of an address space that are looked at when something of it may have stored to one.
const OF_SPACE: usize = 8;
/// Waiters that the ticker looks at in one tick.
const OF_TICK: usize = 64;
/// Turns of spaces in one tick; a space that nothing is due in has one as well.
const TURNS: usize = 1024;

/// What tells address spaces apart.
pub(super) type SpaceKey = usize;
/// A physical address: of system memory or not, then the offset.
type Place = (bool, u64);

pub(super) fn key(space: &Arc<Space>) -> SpaceKey {
    Arc::as_ptr(space).addr()
}

fn place(at: PhysAddr) -> Place {
    (at.aperture == Aperture::System, at.address)
}

/// Channels that wait, in all orders in which they are looked for.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    channels: HashMap<u32, Waiter>,
    by_place: BTreeSet<(Place, u32)>,
    by_space: BTreeSet<(SpaceKey, u32)>,
    /// By the time of the next look, of all and of each space.
    due: BTreeSet<(u64, u32)>,
    due_in: BTreeSet<(SpaceKey, u64, u32)>,
    /// How many wait in a space.
    count: HashMap<SpaceKey, u64>,
    /// The space that had its turn last at what is due.
    turn: SpaceKey,
    /// The waiter of a space that was looked at last, so that all have their turn.
    cursor: BTreeMap<SpaceKey, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    place: Option<Place>,
    space: SpaceKey,
    due: u64,
    interval: u64,
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// The address space of a channel, if somebody waits in it.
    pub(super) fn space_of(&self, ports: &[Port], channel: u32) -> Option<SpaceKey> {
        if self.is_empty() {
            return None;
        }
        let space = key(&ports[channel as usize].channel.as_ref()?.space);
        self.by_space.range((space, 0)..=(space, u32::MAX)).next().map(|_| space)
    }

    fn insert(&mut self, channel: u32, place: Option<Place>, space: SpaceKey, now: u64) {
        self.remove(channel);
        let due = now + POLL_NS.0;
        self.channels.insert(channel, Waiter { place, space, due, interval: POLL_NS.0 });
        self.by_place.extend(place.map(|place| (place, channel)));
        self.by_space.insert((space, channel));
        self.due.insert((due, channel));
        self.due_in.insert((space, due, channel));
        *self.count.entry(space).or_default() += 1;
    }

    pub(super) fn remove(&mut self, channel: u32) {
        let Some(waiter) = self.channels.remove(&channel) else { return };
        if let Some(place) = waiter.place {
            self.by_place.remove(&(place, channel));
        }
        self.by_space.remove(&(waiter.space, channel));
        self.due.remove(&(waiter.due, channel));
        self.due_in.remove(&(waiter.space, waiter.due, channel));
        if let Some(count) = self.count.get_mut(&waiter.space) {
            *count -= 1;
            if *count == 0 {
                self.count.remove(&waiter.space);
                self.cursor.remove(&waiter.space);
            }
        }
    }

    /// Those that wait for a place, at most `most`; if they are too many, the rest is due at once.
    fn at(&mut self, place: Place, most: usize) -> Vec<u32> {
        let mut all = self.by_place.range((place, 0)..=(place, u32::MAX)).map(|(_, channel)| *channel);
        let first: Vec<u32> = all.by_ref().take(RELEASED.min(most)).collect();
        // Far more than that wait for one semaphore only if somebody wants to see what happens.
        let rest: Vec<u32> = all.take(RELEASED).collect();
        for channel in rest {
            self.reschedule(channel, 0, POLL_NS.0);
        }
        first
    }

    /// Some of those of a space, others each time.
    fn of_space(&mut self, space: SpaceKey) -> Vec<u32> {
        let from = self.cursor.get(&space).copied();
        let after = from.map_or(Bound::Included((space, 0)), |from| Bound::Excluded((space, from)));
        let behind = self.by_space.range((after, Bound::Included((space, u32::MAX))));
        let before = self.by_space.range((space, 0)..=(space, from.unwrap_or(0))).filter(|_| from.is_some());
        let some: Vec<u32> = behind.chain(before).take(OF_SPACE).map(|(_, channel)| *channel).collect();
        if let Some(last) = some.last() {
            self.cursor.insert(space, *last);
        }
        some
    }

    /// Those whose time has come, of each space in turn; the next look at each will be later.
    fn take_due(&mut self, now: u64) -> Vec<u32> {
        let mut due = Vec::new();
        for _ in 0..TURNS {
            if due.len() == OF_TICK || self.due.first().is_none_or(|(at, _)| *at > now) {
                break;
            }
            let behind = (Bound::Excluded((self.turn, u64::MAX, u32::MAX)), Bound::Unbounded);
            let Some(&(space, at, channel)) = self.due_in.range(behind).next().or_else(|| self.due_in.first()) else {
                break;
            };
            self.turn = space;
            if at > now {
                continue;
            }
            due.push(channel);
            let Some(waiter) = self.channels.get(&channel) else { continue };
            // Many waiters of a space look less often: together, they look so often whatever their number.
            let many = self.count.get(&space).copied().unwrap_or(0) / OF_TICK as u64 + 1;
            let interval = (waiter.interval * 2).min(POLL_NS.1 * many);
            self.reschedule(channel, now + interval, interval);
        }
        due
    }

    fn reschedule(&mut self, channel: u32, due: u64, interval: u64) {
        if let Some(waiter) = self.channels.get_mut(&channel) {
            self.due.remove(&(waiter.due, channel));
            self.due_in.remove(&(waiter.space, waiter.due, channel));
            (waiter.due, waiter.interval) = (due, interval);
            self.due.insert((due, channel));
            self.due_in.insert((waiter.space, due, channel));
        }
    }
}

impl Front {
    /// A channel's acquire holds it; true if it does not any more.
    pub(super) fn wait(&mut self, chip: &Chip, id: u32) -> bool {
        let Some(channel) = self.ports[id as usize].channel.as_ref() else { return false };
        let Some(acquire) = &channel.waiting else { return true };
        let found = translate(&chip.memory, channel.space.root(), acquire.va(), Access::READ);
        let at = match found {
            Ok(translation) => match translation.target {
                Target::Memory(at) => Some(place(at)),
                Target::Sparse => None,
            },
            Err(_) => None,
        };
        self.waiters.insert(id, at, key(&channel.space), chip.clock.now());
        // Who released it in between found nobody.
        self.poll(chip, id)
    }

    /// Semaphores of a space were written: who waits for them looks at them.
    pub(super) fn released(&mut self, chip: &Chip, space: &Arc<Space>, addresses: &[u64]) {
        if self.waiters.is_empty() {
            return;
        }
        let at = |va: &u64| match translate(&chip.memory, space.root(), *va, Access::READ).ok()?.target {
            Target::Memory(at) => Some(place(at)),
            Target::Sparse => None,
        };
        // Many addresses may be one place.
        let places: BTreeSet<Place> = addresses.iter().filter_map(at).collect();
        let mut left = OF_TURN;
        for place in places {
            for channel in self.waiters.at(place, left) {
                left -= 1;
                self.poll(chip, channel);
            }
        }
    }

    /// Something of a space may have stored to semaphores: some that wait in it look.
    pub(super) fn poll_space(&mut self, chip: &Chip, space: SpaceKey) {
        if !self.waiters.is_empty() {
            for channel in self.waiters.of_space(space) {
                self.poll(chip, channel);
            }
        }
    }

    /// Lets waiters look whose time has come.
    pub(crate) fn poll_due(&mut self, chip: &Chip) {
        for channel in self.waiters.take_due(chip.clock.now()) {
            self.poll(chip, channel);
        }
    }

    /// When the next waiter is to look, device time.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.waiters.due.first().map(|(due, _)| *due)
    }

    /// Tries a channel's acquire again; true if it goes on.
    fn poll(&mut self, chip: &Chip, id: u32) -> bool {
        let Some(channel) = self.ports[id as usize].channel.as_mut() else {
            self.waiters.remove(id);
            return false;
        };
        match channel.retry(chip) {
            Ok(true) => {
                self.waiters.remove(id);
                self.enqueue(id);
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.fail(chip, id, &error);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_found_by_what_they_wait_for() {
        let mut waiters = Waiters::default();
        for channel in 0..100 {
            waiters.insert(channel, Some((false, u64::from(channel % 3) << 4)), (channel % 2) as usize, 1000);
        }
        let at = waiters.at((false, 16), usize::MAX);
        assert_eq!(at.len(), RELEASED);
        assert!(at.iter().all(|channel| channel % 3 == 1));
        assert!(waiters.at((true, 16), usize::MAX).is_empty());
        // One that was not among the first is due now, and one more.
        assert_eq!(waiters.due.range(..=(0, u32::MAX)).count(), 1);
        // Those that a turn has no more looks for are all due.
        assert!(waiters.at((false, 32), 0).is_empty());
        assert_eq!(waiters.due.range(..=(0, u32::MAX)).count(), 1 + RELEASED);
        // In turn, all of a space are looked at.
        let mut seen = BTreeSet::new();
        for _ in 0..7 {
            seen.extend(waiters.of_space(1));
        }
        assert_eq!(seen, (0..100).filter(|channel| channel % 2 == 1).collect());
        for channel in 0..100 {
            waiters.remove(channel);
        }
        assert!(waiters.is_empty() && waiters.by_place.is_empty() && waiters.by_space.is_empty());
        assert!(waiters.due.is_empty() && waiters.cursor.is_empty());
        assert!(waiters.due_in.is_empty() && waiters.count.is_empty());
    }

    #[test]
    fn many_waiters_of_a_space_do_not_delay_anothers() {
        let mut waiters = Waiters::default();
        for channel in 0..1000 {
            waiters.insert(channel, None, 1, 0);
        }
        waiters.insert(1000, None, 2, 0);
        waiters.insert(1001, None, 3, 0);
        let first = waiters.take_due(POLL_NS.0);
        assert_eq!(first.len(), OF_TICK);
        assert!(first.contains(&1000) && first.contains(&1001));
        // Nor do they make them rare.
        let mut now = POLL_NS.0;
        for _ in 0..300 {
            now += POLL_NS.1;
            let due = waiters.take_due(now);
            assert!(due.contains(&1000) && due.contains(&1001));
        }
        assert_eq!(waiters.channels[&1000].interval, POLL_NS.1);
        assert!(waiters.channels[&0].interval > POLL_NS.1);
    }

    #[test]
    fn looks_without_reason_become_rare() {
        let mut waiters = Waiters::default();
        for channel in 0..200 {
            waiters.insert(channel, None, 1, 0);
        }
        assert!(waiters.take_due(POLL_NS.0 - 1).is_empty());
        let first = waiters.take_due(POLL_NS.0);
        assert_eq!(first.len(), OF_TICK);
        let second = waiters.take_due(POLL_NS.0);
        assert!(second.iter().all(|channel| !first.contains(channel)), "all have their turn");
        let mut now = POLL_NS.0;
        for _ in 0..100 {
            now += POLL_NS.1;
            waiters.take_due(now);
        }
        assert!(waiters.channels.values().all(|waiter| waiter.interval == 4 * POLL_NS.1));
    }
}
