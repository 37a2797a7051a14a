//! Channels that wait for room in their budget: as on hardware, a CTA is resident or waits until another is not.
//!
//! Room comes from what is under way in the budget and ends, on whatever channel; and from what its address spaces keep for
//! later launches, which is forgotten for those that wait now. Where neither is left, nobody can say what they wait for: the
//! channel has the error.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Front;
use crate::background::Trash;
use crate::budget::{Budgets, Need};
use crate::chip::Chip;
use crate::program::{Module, out_of_resources};

/// Channels that are tried again at once, of one budget: what a tenant's many channels take of the lock has an end.
const TRIES: usize = 32;

/// Channels that wait, by budget, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Residency {
    waiting: BTreeMap<u32, VecDeque<u32>>,
    budgets: BTreeMap<u32, u32>,
}

impl Residency {
    pub(super) fn waits(&self, channel: u32) -> bool {
        self.budgets.contains_key(&channel)
    }

    /// True if no channel waits.
    pub(super) fn is_empty(&self) -> bool {
        self.budgets.is_empty()
    }

    fn insert(&mut self, budgets: &Budgets, budget: u32, channel: u32) {
        if self.budgets.insert(channel, budget).is_none() {
            self.waiting.entry(budget).or_default().push_back(channel);
            budgets.want(budget, true);
        }
    }

    pub(super) fn remove(&mut self, budgets: &Budgets, channel: u32) {
        let Some(budget) = self.budgets.remove(&channel) else { return };
        let Some(waiting) = self.waiting.get_mut(&budget) else { return };
        waiting.retain(|other| *other != channel);
        if waiting.is_empty() {
            self.waiting.remove(&budget);
            budgets.want(budget, false);
        }
    }
}

impl Front {
    /// A channel has a need, for `what`, and its budget has no room: it waits for what is under way, and what is kept is
    /// forgotten, but for a module for whose sake it waits. If nothing of that will ever make room, that is its error.
    pub(super) fn wait_for_room(&mut self, chip: &Chip, id: u32, need: Need, what: &str, but: Option<&Arc<Module>>) {
        let Some(channel) = self.ports[id as usize].channel.as_ref() else { return };
        let budget = channel.budget;
        // Nothing of its own is under way that could make room: what was kept for later does.
        let idle = channel.job.as_ref().is_none_or(|active| active.in_flight == 0);
        let never = need.bytes > chip.budgets.limit(budget);
        let vain = !never && idle && !self.make_room(chip, id, need, but) && chip.budgets.is_vain(budget, need);
        if never || vain {
            let error = out_of_resources(&chip.budgets, budget, need.bytes, what);
            self.fail(chip, id, &error);
            return;
        }
        self.residency.insert(&chip.budgets, budget, id);
    }

    /// Forgets what address spaces keep, the channel's own first, then others of its budget; true if something is on its way
    /// out.
    fn make_room(&mut self, chip: &Chip, id: u32, need: Need, but: Option<&Arc<Module>>) -> bool {
        let Some(channel) = self.ports[id as usize].channel.as_ref() else { return false };
        let own = Arc::clone(&channel.space);
        let others = chip.spaces.of_budget(channel.budget);
        let mut room = 0;
        for space in std::iter::once(&own).chain(others.iter().filter(|other| !Arc::ptr_eq(other, &own))) {
            if room >= need.bytes {
                break;
            }
            let (forgotten, bytes) = space.programs.make_room(need.bytes - room, but);
            room = room.saturating_add(bytes);
            if !forgotten.is_empty() {
                self.trash.push(Trash::Programs(forgotten));
            }
        }
        let leaving = |trash: &Trash| !matches!(trash, Trash::Space(space) if Arc::strong_count(space) > 1);
        let leaving = self.trash.iter().any(leaving);
        // A space may have been given up meanwhile by all others.
        self.trash.extend(others.into_iter().map(Trash::Space));
        leaving
    }

    /// The host had no memory for a channel's CTA: it tries again when there may be more.
    pub(super) fn wait_for_host(&mut self, chip: &Chip, id: u32) {
        if let Some(channel) = &self.ports[id as usize].channel {
            self.residency.insert(&chip.budgets, channel.budget, id);
        }
    }

    /// Lets channels try again that wait for room: some was given back.
    pub(crate) fn retry_residency(&mut self, chip: &Chip) {
        let tried: Vec<u32> =
            self.residency.waiting.values().flat_map(|waiting| waiting.iter().take(TRIES)).copied().collect();
        for channel in tried {
            self.residency.remove(&chip.budgets, channel);
            self.enqueue_if_work(channel);
        }
    }

    /// True if channels wait for room.
    pub(crate) fn waits_for_room(&self) -> bool {
        !self.residency.is_empty()
    }
}
