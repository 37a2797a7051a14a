//! Hybrid shadow page tables: which pages of a guest's tables are write-protected, and which are compared with their snapshots
//! when work is submitted.
//!
//! After gHyvi (Dong et al., USENIX ATC 2015), page by page. A page of tables is
//!
//! - **strict**: protected; a store traps, and the shadow follows at once,
//! - **relaxed**: its protection is dropped; nobody knows what is stored there until work is submitted, and then the page is
//!   compared, and the entries that differ are translated. A page of directories is always strict: what lies behind it
//!   is not known otherwise.
//!
//! [`Policy`] says when a page changes from one to the other. [`Tracking`] decides; it is pure, and knows neither tables nor
//! traps. [`crate::Tracked`] joins it with a shadow and a [`WriteTrap`].
//!
//! # The hybrid
//! A page is relaxed when that is cheaper, by what traps cost ([`Costs`]): what a page costs between two submissions if it is
//! relaxed (the trap of the first store, dropping the protection, protecting it again, comparing it) is as much as
//! so many trapped stores. A page that has had as many stores as that in the past is relaxed at its first store; of any other
//! as many are trapped before it is, so that no page ever costs more than twice the better of both. A page that stays
//! relaxed from one submission to the next ([`Rebuild::Full`], [`Rebuild::Static`], [`Rebuild::Dynamic`]) and was compared in
//! vain for as much as a trapped store and the protection cost is strict again.
//!
//! Where stores are told only when somebody asks ([`Notices::StoresWhenAsked`]), a page is relaxed too late for those that it has
//! had: it is for those that come until the next submission, and a segment ends when they were too few.

use std::collections::{BTreeMap, BTreeSet};

use gpu_spec::mmu::PhysAddr;

/// How stores into a guest's tables are noticed: what tracking asks of whoever notices them, for one shadow, in the guest's
/// addresses. (Of ways to do so on a mapping of a process, with all that may fail there, crate `write_trap` is about.)
pub trait WriteTrap {
    /// Stores into these pages are noticed from now on: when it returns, none that comes later is lost; or the trap has failed,
    /// and [reaches](WriteTrap::reaches) none of them any more. Before the next submission [`crate::Tracked::change`] is
    /// called, then.
    fn protect(&mut self, pages: &[PhysAddr]);

    /// Stores into these pages need not be noticed any more.
    fn release(&mut self, pages: &[PhysAddr]);

    /// Whether it can notice stores into a page at all. A page of which it cannot is compared at each submission.
    fn reaches(&self, page: PhysAddr) -> bool;
}

/// What a kind of trap can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notices {
    /// Each store into a protected page, as it happens. Pages can be released.
    Stores,
    /// Each store, and no page can be released: a BAR that is trapped whole.
    AllStores,
    /// That a page was stored into, and releases it with that; it is named at the next submission.
    FirstStores,
    /// Nothing as it happens; asked, which pages were stored into. These are protected again by that.
    WhenAsked,
    /// Nothing as it happens; asked, each store into a protected page. Pages can be released.
    StoresWhenAsked,
    /// Nothing at all.
    Nothing,
}

/// How the shadow follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Shadowing {
    /// All pages are strict.
    Strict,
    /// A page is relaxed at its first store.
    Relaxed,
    /// A page is relaxed if that is cheaper.
    #[default]
    Hybrid,
}

/// Which relaxed pages are compared at a submission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Rebuild {
    /// All pages of tables: none is strict.
    Full,
    /// So many pages, those with most stores; all others are strict.
    Static(u32),
    /// Those that have ever been relaxed: they stay so.
    Dynamic,
    /// Those that were relaxed since the last submission: they are strict again after it.
    #[default]
    Segmented,
}

/// When pages are relaxed, and compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Policy {
    /// How the shadow follows.
    pub shadowing: Shadowing,
    /// What is compared.
    pub rebuild: Rebuild,
}

/// What it takes on this machine, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// A store that traps, until the guest goes on.
    pub trap: u32,
    /// Dropping the protection of a page.
    pub release: u32,
    /// Protecting a page.
    pub protect: u32,
    /// Comparing a page of which nothing has changed.
    pub compare: u32,
}

impl Costs {
    /// Trapped stores that cost as much as one page that is relaxed between two submissions.
    #[must_use]
    pub fn break_even(self) -> u32 {
        let relaxed =
            u64::from(self.trap) + u64::from(self.release) + u64::from(self.protect) + u64::from(self.compare);
        u32::try_from(relaxed.div_ceil(u64::from(self.trap).max(1))).unwrap_or(u32::MAX)
    }

    /// Comparisons in vain that cost as much as protecting a page and the trap of its next store.
    fn patience(self) -> u32 {
        let strict = u64::from(self.trap) + u64::from(self.release) + u64::from(self.protect);
        u32::try_from(strict.div_ceil(u64::from(self.compare).max(1))).unwrap_or(u32::MAX).max(1)
    }
}

/// Submissions between two choices of [`Rebuild::Static`]'s pages.
const CHOOSE_EVERY: u64 = 64;

/// What has happened, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrackingCounts {
    /// Stores that trapped, in pages of directories.
    pub directory_traps: u64,
    /// Stores that trapped, in pages of page tables.
    pub table_traps: u64,
    /// Those of them after which the page was relaxed.
    pub released: u64,
    /// Pages that were strict again.
    pub protected: u64,
    /// Pages that were compared because they had been stored into, as far as was known.
    pub rebuilt_written: u64,
    /// Pages that were compared although nothing was known of a store.
    pub rebuilt_unknown: u64,
    /// Pages that were compared, and nothing had changed.
    pub rebuilt_in_vain: u64,
    /// Entries that were found changed.
    pub entries_rebuilt: u64,
}

impl TrackingCounts {
    /// What was counted as `before` is `now`: the sum of several.
    pub fn replace(&mut self, before: &TrackingCounts, now: &TrackingCounts) {
        let replace = |all: &mut u64, before: u64, now: u64| *all = all.wrapping_add(now).wrapping_sub(before);
        replace(&mut self.directory_traps, before.directory_traps, now.directory_traps);
        replace(&mut self.table_traps, before.table_traps, now.table_traps);
        replace(&mut self.released, before.released, now.released);
        replace(&mut self.protected, before.protected, now.protected);
        replace(&mut self.rebuilt_written, before.rebuilt_written, now.rebuilt_written);
        replace(&mut self.rebuilt_unknown, before.rebuilt_unknown, now.rebuilt_unknown);
        replace(&mut self.rebuilt_in_vain, before.rebuilt_in_vain, now.rebuilt_in_vain);
        replace(&mut self.entries_rebuilt, before.entries_rebuilt, now.entries_rebuilt);
    }
}

/// What to do with a store that has trapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// The shadow follows now; the page stays protected.
    Follow,
    /// The page is released; what is stored there is found at the next submission.
    Release,
}

/// A page of tables.
#[derive(Clone, Copy, Debug)]
struct Page {
    leaf: bool,
    /// Stores there are not noticed: it is always relaxed, even with directories.
    blind: bool,
    relaxed: bool,
    /// Stores in `period`, as far as they were seen.
    stores: u32,
    /// The last time between two submissions in which a store was seen.
    period: u64,
    /// Stores in a period that has any, on average, in sixteenths.
    usual: u32,
    /// Stores of late: less by a sixteenth each time that [`Rebuild::Static`] chooses.
    heat: u32,
    /// Comparisons in vain, one after another.
    in_vain: u32,
    /// One of those that [`Rebuild::Static`] has chosen.
    chosen: bool,
}

/// What a submission takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// To be protected, before anything is compared.
    pub protect: Vec<PhysAddr>,
    /// To be released: they are relaxed from now on.
    pub release: Vec<PhysAddr>,
    /// To be compared.
    pub compare: Vec<PhysAddr>,
}

/// The pages of one guest's tables, and what becomes of them.
#[derive(Debug)]
pub struct Tracking {
    policy: Policy,
    notices: Notices,
    costs: Costs,
    pages: BTreeMap<PhysAddr, Page>,
    /// Pages that are relaxed. Invariant: exactly those that say so.
    relaxed: BTreeSet<PhysAddr>,
    /// Pages that were stored into since the last submission, as a trap says of whole pages. Invariant: known ones.
    written: BTreeSet<PhysAddr>,
    /// Pages of which single stores were told since then, when somebody asked. Invariant: known ones.
    told: BTreeSet<PhysAddr>,
    /// Submissions.
    period: u64,
    /// What has happened.
    pub counts: TrackingCounts,
}

impl Tracking {
    /// For a kind of trap. What it cannot do is done in the next best way: where stores are not told one by one, nothing is
    /// strict but what is protected anyway; where nothing is told, all pages are compared.
    #[must_use]
    pub fn new(policy: Policy, notices: Notices, costs: Costs) -> Tracking {
        Tracking {
            policy,
            notices,
            costs,
            pages: BTreeMap::new(),
            relaxed: BTreeSet::new(),
            written: BTreeSet::new(),
            told: BTreeSet::new(),
            period: 0,
            counts: TrackingCounts::default(),
        }
    }

    /// From now on with another policy, or with a trap of which other things hold: `reaches` says which pages it does. What it
    /// takes is to be done before the next submission. A trap that takes the place of another one knows of no page: in between
    /// there is [`Notices::Nothing`].
    pub fn change(
        &mut self,
        policy: Policy,
        (notices, costs): (Notices, Costs),
        reaches: impl Fn(PhysAddr) -> bool,
    ) -> Plan {
        (self.policy, self.notices, self.costs) = (policy, notices, costs);
        let (mut plan, all) = (Plan::default(), self.relaxes_all());
        for (at, page) in &mut self.pages {
            page.blind = notices == Notices::Nothing || !reaches(*at);
            (page.chosen, page.in_vain) = (false, 0);
            let relaxed = page.blind || (all && page.leaf);
            match (std::mem::replace(&mut page.relaxed, relaxed), relaxed) {
                (false, true) => {
                    self.relaxed.insert(*at);
                    plan.release.push(*at);
                }
                (true, false) => {
                    self.relaxed.remove(at);
                    self.counts.protected += 1;
                    plan.protect.push(*at);
                    plan.compare.push(*at);
                }
                _ => {}
            }
        }
        plan
    }

    /// Whether there is a choice between strict and relaxed.
    fn may_relax(&self) -> bool {
        self.policy.shadowing != Shadowing::Strict && self.notices != Notices::AllStores
    }

    /// Whether all tables of pages are relaxed.
    fn relaxes_all(&self) -> bool {
        self.policy.rebuild == Rebuild::Full && self.may_relax()
    }

    /// Whether a strict page that was stored into in this period is relaxed for that.
    fn is_to_relax(&self, page: &Page) -> bool {
        page.leaf
            && self.may_relax()
            && match (self.policy.shadowing, self.policy.rebuild) {
                (_, Rebuild::Static(_)) => page.chosen,
                (Shadowing::Hybrid, _) => {
                    let dear = self.costs.break_even();
                    page.usual >= dear.saturating_mul(16) || page.stores >= dear
                }
                _ => true,
            }
    }

    /// Pages that are strict and relaxed now.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        (self.pages.len() - self.relaxed.len(), self.relaxed.len())
    }

    /// Whether a page is known to hold tables.
    #[must_use]
    pub fn holds(&self, at: PhysAddr) -> bool {
        self.pages.contains_key(&at)
    }

    /// Whether a page is relaxed now.
    #[must_use]
    pub fn is_relaxed(&self, at: PhysAddr) -> bool {
        self.pages.get(&at).is_some_and(|page| page.relaxed)
    }

    /// A page holds tables: of pages alone (`leaf`), or directories. Stores there can be noticed, or cannot (`blind`). True if it
    /// is to be protected now.
    pub fn holds_tables(&mut self, at: PhysAddr, leaf: bool, blind: bool) -> bool {
        let blind = blind || self.notices == Notices::Nothing;
        let old = self.pages.get(&at);
        let all = leaf && self.relaxes_all();
        // One that is protected already stays so, until there is a reason.
        let relaxed = blind || (all && old.is_none_or(|old| old.relaxed));
        if old.is_some_and(|old| old.relaxed) {
            self.relaxed.remove(&at);
        }
        if relaxed {
            self.relaxed.insert(at);
        }
        let page =
            Page { leaf, blind, relaxed, stores: 0, period: self.period, usual: 0, heat: 0, in_vain: 0, chosen: false };
        self.pages.insert(at, page);
        !relaxed
    }

    /// A page holds no tables any more. True if it was strict, and is to be released.
    pub fn is_gone(&mut self, at: PhysAddr) -> bool {
        let Some(old) = self.pages.remove(&at) else { return false };
        self.written.remove(&at);
        self.told.remove(&at);
        if old.relaxed {
            self.relaxed.remove(&at);
        }
        !old.relaxed
    }

    /// A store into a protected page has trapped.
    pub fn stored(&mut self, at: PhysAddr) -> Stored {
        let period = self.period;
        let Some(page) = self.pages.get_mut(&at) else { return Stored::Follow };
        page.has_stores(1, period);
        match page.leaf {
            true => self.counts.table_traps += 1,
            false => self.counts.directory_traps += 1,
        }
        let page = *page;
        if self.notices == Notices::StoresWhenAsked {
            self.told.insert(at);
            return Stored::Follow;
        }
        if page.relaxed || !self.is_to_relax(&page) {
            return Stored::Follow;
        }
        self.relax(at);
        self.counts.released += 1;
        Stored::Release
    }

    /// A page was stored into since it was protected, of which a trap does not tell each store. It has protected it again, or
    /// released it ([`Notices`]): also one that tells stores, where it cannot.
    pub fn written(&mut self, at: PhysAddr) {
        if self.pages.contains_key(&at) {
            self.written.insert(at);
        }
    }

    fn relax(&mut self, at: PhysAddr) {
        if let Some(page) = self.pages.get_mut(&at) {
            (page.relaxed, page.in_vain) = (true, 0);
            self.relaxed.insert(at);
        }
    }

    /// Work is submitted: what was stored until now has been told, as far as it is noticed.
    pub fn submit(&mut self) -> Plan {
        let mut plan = Plan::default();
        self.period += 1;
        // First: what is relaxed for what was written is not strict again by the same plan.
        if matches!(self.policy.rebuild, Rebuild::Static(_)) && self.period.is_multiple_of(CHOOSE_EVERY) {
            self.choose(&mut plan);
        }
        self.submit_written(&mut plan);
        // Where stores are told too late to relax a page for them, it stays as long as they are many.
        let ends = self.policy.rebuild == Rebuild::Segmented && self.notices != Notices::StoresWhenAsked;
        for at in &self.relaxed {
            let Some(page) = self.pages.get_mut(at) else { continue };
            match page.period + 1 == self.period {
                true => self.counts.rebuilt_written += 1,
                false => self.counts.rebuilt_unknown += 1,
            }
            if ends && !page.blind {
                page.relaxed = false;
                plan.protect.push(*at);
                self.counts.protected += 1;
            }
            plan.compare.push(*at);
        }
        if ends {
            let pages = &self.pages;
            self.relaxed.retain(|at| pages.get(at).is_some_and(|page| page.relaxed));
        }
        self.relax_told(&mut plan);
        plan
    }

    /// Pages of which stores were told one by one, and are followed: what comes from now on may be too much for that.
    fn relax_told(&mut self, plan: &mut Plan) {
        for at in std::mem::take(&mut self.told) {
            let Some(page) = self.pages.get(&at).copied() else { continue };
            if !page.relaxed && self.is_to_relax(&page) {
                self.relax(at);
                self.counts.released += 1;
                plan.release.push(at);
            }
        }
    }

    /// Pages of which it is known only that there were stores.
    fn submit_written(&mut self, plan: &mut Plan) {
        let may_relax = self.may_relax();
        for at in std::mem::take(&mut self.written) {
            let Some(page) = self.pages.get_mut(&at) else { continue };
            if page.relaxed {
                continue;
            }
            page.has_stores(1, self.period - 1);
            if self.notices == Notices::FirstStores {
                match page.leaf {
                    true => self.counts.table_traps += 1,
                    false => self.counts.directory_traps += 1,
                }
                self.counts.released += 1;
            }
            // The trap has released it, or has protected it again already.
            let stays = match self.policy.rebuild {
                Rebuild::Dynamic => true,
                Rebuild::Static(_) => page.chosen,
                _ => false,
            };
            if stays && page.leaf && may_relax {
                self.relax(at);
                plan.release.push(at);
            } else {
                if self.notices != Notices::WhenAsked {
                    plan.protect.push(at);
                    self.counts.protected += 1;
                }
                self.counts.rebuilt_written += 1;
                plan.compare.push(at);
            }
        }
    }

    /// A page that a [`Plan`] named was compared: so many entries had changed. True if it is strict from now on, and is to be
    /// protected, and compared once more.
    pub fn compared(&mut self, at: PhysAddr, changed: u64) -> bool {
        self.counts.entries_rebuilt += changed;
        self.counts.rebuilt_in_vain += u64::from(changed == 0);
        let Some(page) = self.pages.get_mut(&at) else { return false };
        let (period, hybrid) = (self.period - 1, self.policy.shadowing == Shadowing::Hybrid);
        page.in_vain += 1;
        if changed > 0 {
            // The store that released it is among them.
            let unseen = u32::try_from(changed).unwrap_or(u32::MAX).saturating_sub(1);
            page.has_stores(unseen.max(u32::from(page.period != period)), period);
            page.in_vain = 0;
        }
        let few = if hybrid { u64::from(self.costs.break_even()) } else { 1 };
        let calm = page.relaxed
            && !page.blind
            && match self.policy.rebuild {
                Rebuild::Static(_) => false,
                Rebuild::Segmented => self.notices == Notices::StoresWhenAsked && changed < few,
                Rebuild::Full | Rebuild::Dynamic => hybrid && page.in_vain >= self.costs.patience(),
            };
        if calm {
            page.relaxed = false;
            self.relaxed.remove(&at);
            self.counts.protected += 1;
        }
        calm
    }

    /// Chooses the pages that are relaxed: those that usually have most stores.
    fn choose(&mut self, plan: &mut Plan) {
        let Rebuild::Static(wanted) = self.policy.rebuild else { return };
        if !self.may_relax() {
            return;
        }
        let mut busiest: Vec<(u32, PhysAddr)> = self
            .pages
            .iter()
            .filter(|(_, page)| page.leaf && page.heat > 0)
            .map(|(at, page)| (page.heat, *at))
            .collect();
        busiest.sort_unstable_by(|one, other| other.cmp(one));
        busiest.truncate(wanted as usize);
        let chosen: BTreeSet<PhysAddr> = busiest.into_iter().map(|(_, at)| at).collect();
        for (at, page) in &mut self.pages {
            page.chosen = chosen.contains(at);
            page.heat -= page.heat.div_ceil(16);
            if page.relaxed && !page.chosen && !page.blind {
                page.relaxed = false;
                plan.protect.push(*at);
                plan.compare.push(*at);
                self.counts.protected += 1;
                self.counts.rebuilt_unknown += 1;
            }
        }
        let pages = &self.pages;
        self.relaxed.retain(|at| pages.get(at).is_some_and(|page| page.relaxed));
    }
}

impl Page {
    /// So many stores more were seen in a period, which is not before the last one that had any.
    fn has_stores(&mut self, stores: u32, period: u64) {
        if self.period != period {
            let last = self.stores.min(u32::MAX / 64) * 16;
            self.usual = if self.usual == 0 { last } else { self.usual - self.usual / 4 + last / 4 };
            self.stores = 0;
            self.period = period;
        }
        self.stores = self.stores.saturating_add(stores);
        self.heat = self.heat.saturating_add(stores);
    }
}
