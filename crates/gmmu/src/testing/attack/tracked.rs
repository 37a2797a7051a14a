//! A guest that announces nothing: its stores are noticed, or looked for.

use std::collections::HashSet;

use gpu_spec::mmu::{PhysAddr, SMALL_PAGE};

use super::super::memory::Guest;
use super::{Attack, Input, MAX_ACTIONS, MAX_NARROW, World, two_steps};
use crate::{
    Changes, Costs, Notices, Policy, Progress, Rebuild, Reflection, ShadowError, Shadowing, Tracked, Tracking,
    WriteTrap, page_of,
};

/// A trap: the guest's memory knows which of its pages are protected.
struct Trap<'a> {
    guest: &'a Guest,
    /// Stores into system memory cannot be noticed.
    only_vram: bool,
}

impl WriteTrap for Trap<'_> {
    fn protect(&mut self, pages: &[PhysAddr]) {
        self.guest.protected.borrow_mut().extend(pages);
    }

    fn release(&mut self, pages: &[PhysAddr]) {
        let mut protected = self.guest.protected.borrow_mut();
        pages.iter().for_each(|page| {
            protected.remove(page);
        });
    }

    fn reaches(&self, page: PhysAddr) -> bool {
        !self.only_vram || page.aperture == gpu_spec::mmu::Aperture::Vram
    }
}

/// A world whose guest is tracked.
struct Watched<F: Attack> {
    world: World<F>,
    tracked: Tracked,
    notices: Notices,
    only_vram: bool,
    /// Pages that the trap names with the next submission.
    written: Vec<PhysAddr>,
    /// What has changed since it was last checked.
    changes: Changes,
}

impl<F: Attack> Watched<F> {
    /// The stores that were noticed get to where they have to.
    fn deliver(&mut self) {
        let noticed = std::mem::take(&mut *self.world.guest.noticed.borrow_mut());
        for (at, bytes) in noticed {
            if !matches!(self.notices, Notices::Stores | Notices::AllStores) {
                if !self.written.contains(&page_of(at)) {
                    self.written.push(page_of(at));
                }
                continue;
            }
            let World { guest, host, shadow, .. } = &mut self.world;
            let mut trap = Trap { guest, only_vram: self.only_vram };
            let mut with = Reflection { guest, mem: host, budget: 1 << 20, changes: &mut self.changes };
            if self.tracked.stored((at, bytes), shadow, &mut trap)
                && self.tracked.reflect(shadow, &mut trap, &mut with).is_err()
            {
                // What could not be shown for want of tables is tried again.
                self.world.may_fault();
            }
        }
        // Another processor may store while a page is read.
        if !self.world.guest.noticed.borrow().is_empty() && self.world.guest.race.get().is_none() {
            self.deliver();
        }
    }

    fn submit(&mut self, budget: u64) -> Result<(), ShadowError> {
        let written = std::mem::take(&mut self.written);
        let World { guest, host, shadow, .. } = &mut self.world;
        let mut trap = Trap { guest, only_vram: self.only_vram };
        let mut with = Reflection { guest, mem: host, budget, changes: &mut self.changes };
        let mut done = self.tracked.submit(&written, shadow, &mut trap, &mut with)?;
        while done == Progress::More {
            done = self.tracked.reflect(shadow, &mut trap, &mut with)?;
        }
        Ok(())
    }

    /// A submission, after which the shadow is the walk.
    fn submit_and_compare(&mut self, budget: u64) {
        let done = self.submit(budget);
        self.world.changed();
        match done {
            Ok(()) => {
                let World { guest, root, looked, .. } = &mut self.world;
                for at in looked.iter_mut().filter(|at| F::WINDOW.contains(&at.va)) {
                    at.may = vec![two_steps::<F>(guest, *root, at.va)];
                }
            }
            Err(error) => {
                assert!(matches!(error, ShadowError::TooManyTables { .. } | ShadowError::NoMemory), "{error}");
                self.world.may_fault();
            }
        }
        self.check();
        self.world.changed();
    }

    fn check(&mut self) {
        self.world.check(&std::mem::take(&mut self.changes));
    }

    /// A submission while another processor of the guest's stores.
    fn race(&mut self, seed: u64) {
        self.world.guest.race.set(Some(seed));
        let _ = self.submit(1 << 14);
        self.world.guest.race.set(None);
        self.deliver();
        self.see();
    }

    /// What is shown now is some mix of what was stored.
    fn see(&mut self) {
        let World { host, shadow, looked, .. } = &mut self.world;
        looked.iter_mut().for_each(|at| at.may.push(super::shown(host, shadow, at.va)));
        self.check();
        self.world.changed();
    }
}

/// A guest that writes its tables and submits as `data` says, and announces nothing, with some policy and some trap; beside it,
/// the two-step walk.
///
/// # Panics
/// If the shadow ever grants what is not granted, or shows at a submission what the two steps do not.
pub fn tracked<F: Attack>(data: &[u8]) {
    let mut input = Input(data);
    let is_narrow = !input.byte().is_multiple_of(4);
    let actions = if is_narrow { MAX_NARROW } else { MAX_ACTIONS };
    let mut world = World::<F>::new(&mut input, is_narrow);
    let shadowing = input.pick(&[Shadowing::Strict, Shadowing::Relaxed, Shadowing::Hybrid, Shadowing::Hybrid]);
    let rebuild = input.pick(&[Rebuild::Full, Rebuild::Static(2), Rebuild::Dynamic, Rebuild::Segmented]);
    let all = [Notices::Stores, Notices::AllStores, Notices::FirstStores, Notices::WhenAsked, Notices::Nothing];
    let notices = input.pick(&all);
    world.guest.notices_once = notices == Notices::FirstStores;
    let costs = Costs { trap: 2, release: 0, protect: 1, compare: input.pick(&[1, 3]) };
    let tracking = Tracking::new(Policy { shadowing, rebuild }, notices, costs);
    let tracked = Tracked::new(&mut world.shadow, tracking);
    let only_vram = input.byte().is_multiple_of(2);
    let mut watched = Watched { world, tracked, notices, only_vram, written: Vec::new(), changes: Changes::default() };
    for _ in 0..actions {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..=7 => {
                let guest = &watched.world.guest;
                if is_narrow {
                    F::write_narrow(guest, &mut input)
                } else {
                    F::write_wide(guest, &mut input)
                }
                watched.world.changed();
                watched.deliver();
                watched.check();
            }
            8..=12 => watched.submit_and_compare(input.pick(&[1 << 20, 1 << 20, 100])),
            13 => watched.race(input.word()),
            14 => {
                let at = if is_narrow { input.narrow_memory::<F>() } else { input.memory::<F>() };
                let pages = input.pick(&[1, 3, 16, 40, 512]);
                watched.world.revoke(at, pages);
                // Tables may have been there.
                watched.world.shadow.stored(at, pages * SMALL_PAGE);
                if !input.byte().is_multiple_of(4) {
                    let host = F::vram(watched.world.fresh);
                    watched.world.fresh += 2 * gpu_spec::mmu::HUGE_PAGE + input.pick(&[0, SMALL_PAGE]);
                    watched.world.guest.give(at, pages, host, input.byte().is_multiple_of(4));
                    watched.world.changed();
                    watched.world.shadow.granted();
                }
            }
            _ => {
                let (va, map, rights) = (input.pick(&F::own()), !input.byte().is_multiple_of(3), input.rights());
                watched.check();
                watched.world.own(va, map, rights);
            }
        }
    }
    watched.submit_and_compare(1 << 20);
    watched.submit_and_compare(1 << 20);
    let Watched { world: World { guest, mut shadow, mut host, .. }, tracked, .. } = watched;
    tracked.end(&mut shadow, &mut Trap { guest: &guest, only_vram });
    let left: HashSet<PhysAddr> = guest.protected.take().into_iter().collect();
    assert!(left.is_empty(), "still protected: {left:x?}");
    shadow.destroy(&mut host);
    assert_eq!(host.live(), 0, "tables are lost");
}
