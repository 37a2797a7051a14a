//! Budgets: what work on the device costs the host, and how much of it there may be.
//!
//! What takes host memory holds a [`Charge`] for it, and gives it back by being dropped, on whatever thread. Who finds no room
//! waits: it says so ([`Budgets::want`]), and the front end looks again when something was given back.
//!
//! Waiting has an end only if something will be given back. So charges are of two kinds: those of what is under way (CTAs that
//! have begun, kernels that are read or compiled), which end by themselves, and those of what is kept ([`Charge::keep`]),
//! which end when it is forgotten. What was forgotten and is not yet dropped is counted, too ([`Dropping`]). Who waits in a budget
//! of which nothing is under way, nor kept, nor being dropped, waits in vain ([`Budgets::is_vain`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gpu_spec::regs::budget;

/// Map entries that windows may have, all budgets together, if the kernel lets a process have its usual 65,530. What is
/// left is for everything else in the process, and so that taking pages out never fails.
const MOST_MAPS: u32 = 45_000;
/// The part of what the kernel allows that windows may have, in sixteenths.
const MAPS_SIXTEENTHS: u64 = 11;
/// The same for those of CTAs under way, and of code.
const PIECES_SIXTEENTHS: u64 = 3;

/// One budget.
#[derive(Debug)]
struct Budget {
    bytes_limit: AtomicU64,
    /// The low word of the limit, until its high word is written.
    limit_lo: AtomicU32,
    bytes: AtomicU64,
    maps_limit: AtomicU32,
    maps: AtomicU32,
    pieces: AtomicU32,
    /// Charges of what is under way.
    under_way: AtomicU32,
    interpreted: AtomicU32,
    compiling: AtomicU32,
    /// Somebody waits for room.
    wanted: AtomicBool,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            bytes_limit: AtomicU64::new(u64::MAX),
            limit_lo: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            maps_limit: AtomicU32::new(u32::MAX),
            maps: AtomicU32::new(0),
            pieces: AtomicU32::new(0),
            under_way: AtomicU32::new(0),
            interpreted: AtomicU32::new(0),
            compiling: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
        }
    }
}

/// A budget with so many map entries, or less, has its part in the last quarter of them, which is not for those with more.
const FEW_MAPS: u32 = 512;

/// All budgets.
#[derive(Debug)]
pub(crate) struct Budgets {
    budgets: Vec<Budget>,
    /// Map entries of all of them, and how many there may be.
    maps: AtomicU32,
    most_maps: u32,
    /// Map entries of CTAs and code, charged with their bytes.
    pieces: AtomicU32,
    most_pieces: u32,
    /// In a budget that somebody wants room in, something was given back.
    freed: AtomicBool,
    /// Times that something is about to be dropped, of whatever budget.
    dropping: AtomicU32,
}

/// What is charged at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Host memory.
    pub(crate) bytes: u64,
    /// Entries of the host's map that it takes of its own.
    pub(crate) maps: u32,
}

impl Budgets {
    pub(crate) fn new() -> Budgets {
        // Where the kernel does not say, it is what it usually is.
        let allowed =
            std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
        let most = allowed.map_or(MOST_MAPS, |allowed: u64| (allowed / 16 * MAPS_SIXTEENTHS).min(1 << 30) as u32);
        let pieces = (u64::from(most) * PIECES_SIXTEENTHS / MAPS_SIXTEENTHS) as u32;
        Budgets::with_maps(most, pieces)
    }

    fn with_maps(most_maps: u32, most_pieces: u32) -> Budgets {
        Budgets {
            budgets: (0..budget::BUDGETS).map(|_| Budget::default()).collect(),
            maps: AtomicU32::new(0),
            most_maps,
            pieces: AtomicU32::new(0),
            most_pieces,
            freed: AtomicBool::new(false),
            dropping: AtomicU32::new(0),
        }
    }

    /// The number that an instance block means: what does not exist is the one without limits.
    pub(crate) fn number(&self, number: u32) -> u32 {
        if number < budget::BUDGETS { number } else { 0 }
    }

    fn get(&self, number: u32) -> &Budget {
        &self.budgets[number as usize]
    }

    /// Reads a word of a budget's registers.
    pub(crate) fn read(&self, number: u32, word: u32) -> u32 {
        let budget = self.get(number);
        let load = |word: &AtomicU64| word.load(Ordering::SeqCst);
        match word {
            budget::BYTES_LIMIT_LO => load(&budget.bytes_limit) as u32,
            budget::BYTES_LIMIT_HI => (load(&budget.bytes_limit) >> 32) as u32,
            budget::BYTES_LO => load(&budget.bytes) as u32,
            budget::BYTES_HI => (load(&budget.bytes) >> 32) as u32,
            budget::MAPS_LIMIT => budget.maps_limit.load(Ordering::SeqCst),
            budget::MAPS => budget.maps.load(Ordering::SeqCst),
            budget::INTERPRETED => budget.interpreted.load(Ordering::SeqCst),
            budget::COMPILING => budget.compiling.load(Ordering::SeqCst),
            _ => 0,
        }
    }

    /// Writes a word of a budget's registers; budget 0 has no limits.
    pub(crate) fn write(&self, number: u32, word: u32, value: u32) {
        if number == 0 {
            return;
        }
        let budget = self.get(number);
        match word {
            budget::BYTES_LIMIT_LO => budget.limit_lo.store(value, Ordering::SeqCst),
            budget::BYTES_LIMIT_HI => {
                let limit = u64::from(budget.limit_lo.load(Ordering::SeqCst)) | u64::from(value) << 32;
                budget.bytes_limit.store(limit, Ordering::SeqCst);
                self.note_freed(budget);
            }
            budget::MAPS_LIMIT => budget.maps_limit.store(value, Ordering::SeqCst),
            _ => {}
        }
    }

    /// Bytes that may be charged at most, by all together.
    pub(crate) fn limit(&self, number: u32) -> u64 {
        self.get(number).bytes_limit.load(Ordering::SeqCst)
    }

    /// Bytes that could be charged now.
    pub(crate) fn room(&self, number: u32) -> u64 {
        self.limit(number).saturating_sub(self.get(number).bytes.load(Ordering::SeqCst))
    }

    /// Bytes that are charged, in all budgets together.
    pub(crate) fn charged(&self) -> u64 {
        self.budgets.iter().map(|budget| budget.bytes.load(Ordering::SeqCst)).sum()
    }

    /// Charges host memory, if there is room.
    pub(crate) fn charge(self: &Arc<Budgets>, number: u32, bytes: u64) -> Option<Charge> {
        self.charge_mapped(number, Need { bytes, maps: 0 })
    }

    /// Charges host memory that takes so many entries of the host's map of its own, if there is room for both.
    pub(crate) fn charge_mapped(self: &Arc<Budgets>, number: u32, need: Need) -> Option<Charge> {
        let budget = self.get(number);
        let limit = budget.bytes_limit.load(Ordering::SeqCst);
        let mut charge = self.under_way(number);
        let add = |old: u64| old.checked_add(need.bytes).filter(|new| *new <= limit);
        budget.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        charge.bytes = need.bytes;
        if !self.take_pieces(number, need.maps) {
            return None;
        }
        charge.pieces = need.maps;
        Some(charge)
    }

    /// Something is under way that has no charge yet, or one elsewhere.
    pub(crate) fn under_way(self: &Arc<Budgets>, number: u32) -> Charge {
        self.get(number).under_way.fetch_add(1, Ordering::SeqCst);
        Charge { budgets: Arc::clone(self), number, bytes: 0, pieces: 0, kept: false }
    }

    /// Something is about to be dropped, as long as the answer lives.
    pub(crate) fn dropping(self: &Arc<Budgets>) -> Dropping {
        self.dropping.fetch_add(1, Ordering::SeqCst);
        Dropping { budgets: Arc::clone(self) }
    }

    /// True if there is no room for a need, and nothing under way will give any back: whoever waits does so for ever, unless
    /// something kept is forgotten, or the limit is raised. Of entries of the host's map others may have those that are missing:
    /// then there is hope.
    pub(crate) fn is_vain(&self, number: u32, need: Need) -> bool {
        let budget = self.get(number);
        // What ends gives its room back before it ends, so the order matters.
        if budget.under_way.load(Ordering::SeqCst) != 0 || self.dropping.load(Ordering::SeqCst) != 0 {
            return false;
        }
        let own = budget.pieces.load(Ordering::SeqCst).saturating_add(need.maps);
        self.room(number) < need.bytes || need.maps > 0 && own > self.most_pieces / 2
    }

    /// Whoever has many may have no more of them than are left: some are left for everybody, whatever the others do.
    fn take_pieces(&self, number: u32, more: u32) -> bool {
        if more == 0 {
            return true;
        }
        let budget = self.get(number);
        let own = budget.pieces.fetch_add(more, Ordering::SeqCst).saturating_add(more);
        let add = |all: u32| {
            let all = all.checked_add(more)?;
            self.most_pieces.checked_sub(all).filter(|left| own <= *left).map(|_| all)
        };
        let fits = self.pieces.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok();
        if !fits {
            budget.pieces.fetch_sub(more, Ordering::SeqCst);
        }
        fits
    }

    /// Entries of the host's map that a charge may ever have.
    pub(crate) fn most_mapped(&self) -> u64 {
        u64::from(self.most_pieces / 2)
    }

    /// Changes the number of map entries from `from` to `to`; false, and nothing changed, if these are more than there may
    /// be.
    pub(crate) fn change_maps(&self, number: u32, from: u32, to: u32) -> bool {
        let budget = self.get(number);
        let Some(more) = to.checked_sub(from) else {
            budget.maps.fetch_sub(from - to, Ordering::SeqCst);
            self.maps.fetch_sub(from - to, Ordering::SeqCst);
            return true;
        };
        let add = |count: &AtomicU32, limit: u32| {
            let add = |old: u32| old.checked_add(more).filter(|new| *new <= limit);
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
        };
        let limit = budget.maps_limit.load(Ordering::SeqCst);
        if !add(&budget.maps, limit) {
            return false;
        }
        // Who has few finds room, however much those take that have many.
        let few = budget.maps.load(Ordering::SeqCst) <= FEW_MAPS;
        let fits = add(&self.maps, if few { self.most_maps } else { self.most_maps - self.most_maps / 4 });
        if !fits {
            budget.maps.fetch_sub(more, Ordering::SeqCst);
        }
        fits
    }

    /// A grid runs in the interpreter, though machine code was wanted.
    pub(crate) fn count_interpreted(&self, number: u32) {
        self.get(number).interpreted.fetch_add(1, Ordering::Relaxed);
    }

    /// A compilation began.
    pub(crate) fn compilation(self: &Arc<Budgets>, number: u32) -> Compilation {
        self.get(number).compiling.fetch_add(1, Ordering::Relaxed);
        Compilation { budgets: Arc::clone(self), number }
    }

    /// Somebody waits for room in a budget, or nobody does any more.
    pub(crate) fn want(&self, number: u32, wanted: bool) {
        self.get(number).wanted.store(wanted, Ordering::SeqCst);
    }

    /// True once after something was given back that somebody waits for.
    pub(crate) fn take_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed) && self.freed.swap(false, Ordering::SeqCst)
    }

    /// Something was given back that somebody waits for.
    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::SeqCst)
    }

    fn note_freed(&self, budget: &Budget) {
        if budget.wanted.load(Ordering::SeqCst) {
            self.freed.store(true, Ordering::SeqCst);
        }
    }
}

/// Host memory that is charged while this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    budgets: Arc<Budgets>,
    number: u32,
    bytes: u64,
    /// Entries of the host's map.
    pieces: u32,
    /// For something that is kept, and under way no more.
    kept: bool,
}

impl Charge {
    /// What it is for has ended, and its result is kept until it is forgotten.
    pub(crate) fn keep(&mut self) {
        if !std::mem::replace(&mut self.kept, true) {
            self.budgets.get(self.number).under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Gives back what is above `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.give_back(less);
    }

    fn give_back(&self, bytes: u64) {
        let budget = self.budgets.get(self.number);
        budget.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.budgets.note_freed(budget);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budgets.get(self.number).pieces.fetch_sub(self.pieces, Ordering::SeqCst);
        self.budgets.pieces.fetch_sub(self.pieces, Ordering::SeqCst);
        self.give_back(self.bytes);
        self.keep();
    }
}

/// Something is about to be dropped while this lives.
#[derive(Debug)]
pub(crate) struct Dropping {
    budgets: Arc<Budgets>,
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.budgets.dropping.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts as under way while it lives.
#[derive(Debug)]
pub(crate) struct Compilation {
    budgets: Arc<Budgets>,
    number: u32,
}

impl Drop for Compilation {
    fn drop(&mut self) {
        self.budgets.get(self.number).compiling.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_end_at_the_limit_and_come_back() {
        let budgets = Arc::new(Budgets::with_maps(100, 100));
        let set = |number, limit: u64| {
            budgets.write(number, budget::BYTES_LIMIT_LO, limit as u32);
            budgets.write(number, budget::BYTES_LIMIT_HI, (limit >> 32) as u32);
        };
        set(3, 1 << 33 | 5);
        assert_eq!(budgets.limit(3), 1 << 33 | 5);
        let mut all = budgets.charge(3, 1 << 33 | 5).unwrap();
        assert!(budgets.charge(3, 1).is_none());
        assert!(!budgets.is_freed(), "nobody waits");
        budgets.want(3, true);
        all.shrink(10);
        assert!(budgets.take_freed() && !budgets.take_freed());
        assert_eq!((budgets.read(3, budget::BYTES_LO), budgets.read(3, budget::BYTES_HI)), (10, 0));
        // Lowered below what is used: nothing is taken away, nothing more is given.
        set(3, 5);
        assert!(budgets.charge(3, 1).is_none());
        drop(all);
        assert!(budgets.charge(3, 5).is_some());
        // Nothing limits the budget of those that have none.
        set(0, 5);
        assert!(budgets.charge(0, 1 << 50).is_some());
    }

    #[test]
    fn many_ctas_leave_map_entries_to_others() {
        let budgets = Arc::new(Budgets::with_maps(100, 120));
        let take = |number| -> Vec<Charge> {
            std::iter::from_fn(|| budgets.charge_mapped(number, Need { bytes: 8, maps: 3 })).collect()
        };
        let mut greedy = take(1);
        assert_eq!(greedy.len(), 20);
        assert_eq!(u64::from(budgets.pieces.load(Ordering::SeqCst)), budgets.most_mapped());
        let next = take(2);
        assert_eq!(next.len(), 10);
        assert!(!take(3).is_empty());
        // What was not to be had cost nothing.
        assert_eq!(budgets.read(1, budget::BYTES_LO), 160);
        greedy.truncate(4);
        assert!(take(1).len() > 3);
        drop((greedy, next));
        assert_eq!(budgets.pieces.load(Ordering::SeqCst), 0);
        assert_eq!(take(1).len(), 20);
    }

    #[test]
    fn who_waits_does_so_in_vain_only_if_nothing_will_end() {
        let budgets = Arc::new(Budgets::with_maps(100, 100));
        budgets.write(1, budget::BYTES_LIMIT_LO, 10);
        budgets.write(1, budget::BYTES_LIMIT_HI, 0);
        let need = |bytes, maps| Need { bytes, maps };
        let mut code = budgets.charge_mapped(1, need(6, 2)).unwrap();
        assert!(!budgets.is_vain(1, need(5, 2)), "a compilation ends");
        code.keep();
        code.keep();
        assert!(budgets.is_vain(1, need(5, 2)));
        assert!(!budgets.is_vain(1, need(4, 2)), "there is room now");
        let cta = budgets.charge(1, 3);
        let load = budgets.under_way(1);
        assert!(!budgets.is_vain(1, need(5, 0)));
        drop(cta);
        assert!(!budgets.is_vain(1, need(5, 0)), "a load has begun, and has no charge yet");
        drop(load);
        assert!(budgets.is_vain(1, need(5, 0)));
        let rubbish = budgets.dropping();
        assert!(!budgets.is_vain(1, need(5, 0)));
        drop(rubbish);
        // No charge that fails leaves anything behind.
        assert!(budgets.charge(1, 5).is_none() && budgets.is_vain(1, need(5, 0)));
        // Entries of the map: half of all, and no more, may be one's own.
        assert!(!budgets.is_vain(1, need(1, 48)));
        assert!(budgets.is_vain(1, need(1, 49)));
        let others = budgets.charge_mapped(2, need(0, 40));
        assert!(budgets.charge_mapped(1, need(1, 48)).is_none() && !budgets.is_vain(1, need(1, 48)), "others end");
        drop(others);
        assert!(budgets.charge_mapped(1, need(1, 48)).is_some());
        drop(code);
        assert!(!budgets.is_vain(1, need(10, 0)));
    }

    #[test]
    fn map_entries_have_a_limit_each_and_one_for_all() {
        let budgets = Budgets::with_maps(100, 100);
        budgets.write(1, budget::MAPS_LIMIT, 60);
        assert!(budgets.change_maps(1, 0, 60));
        assert!(!budgets.change_maps(1, 60, 61));
        assert!(!budgets.change_maps(2, 0, 41), "others' are counted");
        assert_eq!(budgets.read(2, budget::MAPS), 0);
        assert!(budgets.change_maps(2, 0, 40));
        assert!(budgets.change_maps(1, 60, 1));
        assert!(budgets.change_maps(2, 40, 99));
        assert_eq!((budgets.read(1, budget::MAPS), budgets.read(2, budget::MAPS)), (1, 99));
    }

    #[test]
    fn who_has_few_map_entries_finds_room_beside_those_with_many() {
        let most = 8 * FEW_MAPS;
        let budgets = Budgets::with_maps(most, most);
        let large = [1, 2, 3].map(|number| {
            (0..).take_while(|maps| budgets.change_maps(number, *maps, maps + 1)).last().map_or(0, |maps| maps + 1)
        });
        assert_eq!(large, [6 * FEW_MAPS, FEW_MAPS, FEW_MAPS]);
        assert!(!budgets.change_maps(4, 0, 1), "all are taken");
        assert!(budgets.change_maps(2, FEW_MAPS, 0));
        assert!(!budgets.change_maps(1, 6 * FEW_MAPS, 6 * FEW_MAPS + 1));
        assert!(budgets.change_maps(4, 0, FEW_MAPS));
    }
}
