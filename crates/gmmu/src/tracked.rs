//! A shadow that follows stores into the guest's tables, whether or not the guest says anything of them.

use gpu_spec::mmu::PhysAddr;

use crate::format::Format;
use crate::tracking::{Costs, Notices, Policy, Stored, Tracking, WriteTrap};
use crate::{Changes, Grant, PhysMem, Progress, Shadow, ShadowError, TableMemory};

/// What it takes to bring a shadow in line: the guest's memory, what it is granted, and the host's tables.
#[expect(missing_debug_implementations, reason = "a bundle of arguments")]
pub struct Reflection<'a, P, M> {
    /// The guest's memory, by its own addresses, and its grant.
    pub guest: &'a P,
    /// Where the shadow's tables come from.
    pub mem: &'a mut M,
    /// Entries scanned in one call, about.
    pub budget: u64,
    /// What has changed.
    pub changes: &'a mut Changes,
}

/// The tracking of one shadow's tables. The guest may store into them at any time, but for that each call of [`WriteTrap`] is
/// over before the next begins.
///
/// After [`Tracked::submit`] says [`Progress::Done`], the shadow shows the plain walk of the guest's tables, as they were at a time
/// after the call began, cut to the grant, whether or not the guest has announced what it stored.
#[derive(Debug)]
pub struct Tracked {
    /// Who decides.
    pub tracking: Tracking,
}

impl Tracked {
    /// From now on the tables of `shadow` are tracked; with the first submission, they are.
    #[must_use]
    pub fn new<F: Format>(shadow: &mut Shadow<F>, tracking: Tracking) -> Tracked {
        shadow.follow_tables();
        Tracked { tracking }
    }

    /// Ends the tracking of a shadow: its pages are released.
    pub fn end<F: Format>(self, shadow: &mut Shadow<F>, trap: &mut impl WriteTrap) {
        let mut strict = shadow.forget_tables();
        strict.retain(|page| !self.tracking.is_relaxed(*page));
        trap.release(&strict);
    }

    /// The guest has stored `bytes` at `at`, in one page that was protected when it did. True if the shadow has to follow now, by
    /// [`Tracked::reflect`]: once for all that was stored together.
    #[must_use]
    pub fn stored<F: Format>(
        &mut self,
        (at, bytes): (PhysAddr, u64),
        shadow: &mut Shadow<F>,
        trap: &mut impl WriteTrap,
    ) -> bool {
        let page = crate::page_of(at);
        if !self.tracking.holds(page) {
            return false;
        }
        match self.tracking.stored(page) {
            Stored::Release => {
                trap.release(&[page]);
                false
            }
            Stored::Follow => {
                shadow.stored(at, bytes);
                true
            }
        }
    }

    /// From now on with another policy, or with a trap of which other things hold ([`Tracking::change`]).
    pub fn change<F: Format>(
        &mut self,
        policy: Policy,
        how: (Notices, Costs),
        shadow: &mut Shadow<F>,
        trap: &mut impl WriteTrap,
    ) {
        let plan = self.tracking.change(policy, how, |page| trap.reaches(page));
        trap.release(&plan.release);
        trap.protect(&plan.protect);
        plan.compare.iter().for_each(|page| shadow.stored(*page, gpu_spec::mmu::SMALL_PAGE));
    }

    /// The guest submits work that uses this shadow. What was stored before has been told ([`Tracked::stored`],
    /// [`Tracking::written`]), as far as the trap notices it.
    ///
    /// # Errors
    /// As [`Shadow::reflect`]. What could not be shown is tried again at the next submission.
    pub fn submit<F: Format, P: PhysMem + Grant, M: TableMemory>(
        &mut self,
        shadow: &mut Shadow<F>,
        trap: &mut impl WriteTrap,
        with: &mut Reflection<'_, P, M>,
    ) -> Result<Progress, ShadowError> {
        let plan = self.tracking.submit();
        // Whoever stores from now on is noticed; what was stored before is found.
        trap.protect(&plan.protect);
        trap.release(&plan.release);
        shadow.stored_beyond();
        let until = with.changes.work.entries_scanned.saturating_add(with.budget);
        let mut pages = plan.compare.into_iter();
        while let Some(page) = pages.next() {
            shadow.stored(page, gpu_spec::mmu::SMALL_PAGE);
            let before = with.changes.work.updates;
            let done = self.reflect(shadow, trap, with);
            if done.is_err() || with.changes.work.entries_scanned >= until {
                pages.for_each(|page| shadow.stored(page, gpu_spec::mmu::SMALL_PAGE));
                return done.map(|_| Progress::More);
            }
            if self.tracking.compared(page, with.changes.work.updates - before) {
                trap.protect(&[page]);
                shadow.stored(page, gpu_spec::mmu::SMALL_PAGE);
            }
        }
        self.reflect(shadow, trap, with)
    }

    /// Has the shadow follow what is known to have changed: stores that were told, ranges that the guest has invalidated, and what
    /// was left by a call that said [`Progress::More`].
    ///
    /// # Errors
    /// As [`Shadow::reflect`].
    pub fn reflect<F: Format, P: PhysMem + Grant, M: TableMemory>(
        &mut self,
        shadow: &mut Shadow<F>,
        trap: &mut impl WriteTrap,
        with: &mut Reflection<'_, P, M>,
    ) -> Result<Progress, ShadowError> {
        // While it goes on, the guest may name ever other tables.
        let until = with.changes.work.entries_scanned.saturating_add(with.budget);
        loop {
            let done = shadow.reflect(with.guest, with.guest, with.mem, with.budget, with.changes);
            let (mut protect, mut release) = (Vec::new(), Vec::new());
            for (page, leaf) in shadow.take_news() {
                match leaf {
                    Some(leaf) if self.tracking.holds_tables(page, leaf, !trap.reaches(page)) => protect.push(page),
                    Some(_) => {}
                    None if self.tracking.is_gone(page) => release.push(page),
                    None => {}
                }
            }
            trap.release(&release);
            trap.protect(&protect);
            // They were read before they were protected.
            protect.iter().for_each(|page| shadow.stored(*page, gpu_spec::mmu::SMALL_PAGE));
            match done? {
                Progress::Done if protect.is_empty() => return Ok(Progress::Done),
                Progress::Done if with.changes.work.entries_scanned < until => {}
                Progress::Done | Progress::More => return Ok(Progress::More),
            }
        }
    }
}
