//! A guest that announces nothing: its stores are noticed, or looked for.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

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
    /// Pages that it protects until it fails; none are left when it has.
    lives: &'a Cell<u64>,
}

impl WriteTrap for Trap<'_> {
    fn protect(&mut self, pages: &[PhysAddr]) {
        let left = self.lives.get();
        let done = pages.iter().take(usize::try_from(left).unwrap_or(usize::MAX));
        self.guest.protected.borrow_mut().extend(done);
        self.lives.set(left.saturating_sub(pages.len() as u64));
        if self.lives.get() == 0 {
            self.guest.protected.borrow_mut().clear();
        }
    }

    fn release(&mut self, pages: &[PhysAddr]) {
        let mut protected = self.guest.protected.borrow_mut();
        pages.iter().for_each(|page| {
            protected.remove(page);
        });
    }

    fn reaches(&self, page: PhysAddr) -> bool {
        self.lives.get() > 0 && (!self.only_vram || page.aperture == gpu_spec::mmu::Aperture::Vram)
    }
}

/// A world whose guest is tracked.
struct Watched<F: Attack> {
    world: World<F>,
    tracked: Tracked,
    policy: Policy,
    /// What the trap notices while it lives, and what it costs.
    notices: (Notices, Costs),
    only_vram: bool,
    lives: Rc<Cell<u64>>,
    /// The tracking knows a trap that lives.
    trusted: bool,
    /// What has changed since it was last checked.
    changes: Changes,
}

impl<F: Attack> Watched<F> {
    /// The stores that were noticed get to where they have to.
    fn deliver(&mut self) {
        let noticed = std::mem::take(&mut *self.world.guest.noticed.borrow_mut());
        let at_once = matches!(self.notices.0, Notices::Stores | Notices::AllStores);
        for (at, bytes) in noticed {
            if matches!(self.notices.0, Notices::FirstStores | Notices::WhenAsked) {
                self.tracked.tracking.written(page_of(at));
                continue;
            }
            if self.notices.0 == Notices::StoresWhenAsked && at.address / 8 % 7 == 0 {
                // It could not be told alone.
                self.world.guest.protected.borrow_mut().remove(&page_of(at));
                self.tracked.tracking.written(page_of(at));
                continue;
            }
            let World { guest, host, shadow, .. } = &mut self.world;
            let mut trap = Trap { guest, only_vram: self.only_vram, lives: &self.lives };
            let mut with = Reflection { guest, mem: host, budget: 1 << 20, changes: &mut self.changes };
            if self.tracked.stored((at, bytes), shadow, &mut trap)
                && at_once
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

    /// The tracking is told of another policy, or of what has become of the trap.
    fn change(&mut self) {
        self.trusted = self.lives.get() > 0;
        let notices = if self.trusted { self.notices.0 } else { Notices::Nothing };
        let World { guest, shadow, .. } = &mut self.world;
        let mut trap = Trap { guest, only_vram: self.only_vram, lives: &self.lives };
        self.tracked.change(self.policy, (notices, self.notices.1), shadow, &mut trap);
    }

    /// The trap works again, or another one in its place.
    fn revive(&mut self, lives: u64) {
        self.lives.set(0);
        self.world.guest.protected.borrow_mut().clear();
        self.change();
        self.lives.set(lives);
        self.change();
    }

    fn submit(&mut self, budget: u64) -> Result<(), ShadowError> {
        self.deliver();
        if self.trusted && self.lives.get() == 0 {
            self.change();
        }
        let World { guest, host, shadow, .. } = &mut self.world;
        let mut trap = Trap { guest, only_vram: self.only_vram, lives: &self.lives };
        let mut with = Reflection { guest, mem: host, budget, changes: &mut self.changes };
        let mut done = self.tracked.submit(shadow, &mut trap, &mut with)?;
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

fn some_policy(input: &mut Input<'_>) -> Policy {
    let shadowing = input.pick(&[Shadowing::Strict, Shadowing::Relaxed, Shadowing::Hybrid, Shadowing::Hybrid]);
    let rebuild = input.pick(&[Rebuild::Full, Rebuild::Static(2), Rebuild::Dynamic, Rebuild::Segmented]);
    Policy { shadowing, rebuild }
}

/// A guest that writes its tables and submits as `data` says, and announces nothing, with some policy and some trap, which
/// may change, and fail; beside it, the two-step walk.
///
/// # Panics
/// If the shadow ever grants what is not granted, or shows at a submission what the two steps do not.
pub fn tracked<F: Attack>(data: &[u8]) {
    let mut input = Input(data);
    let is_narrow = !input.byte().is_multiple_of(4);
    let actions = if is_narrow { MAX_NARROW } else { MAX_ACTIONS };
    let mut world = World::<F>::new(&mut input, is_narrow);
    let policy = some_policy(&mut input);
    let all = [
        Notices::Stores,
        Notices::AllStores,
        Notices::FirstStores,
        Notices::WhenAsked,
        Notices::StoresWhenAsked,
        Notices::Nothing,
    ];
    let notices = input.pick(&all);
    world.guest.notices_once = notices == Notices::FirstStores;
    let costs = Costs { trap: 2, release: 0, protect: 1, compare: input.pick(&[1, 3]) };
    let tracking = Tracking::new(policy, notices, costs);
    let tracked = Tracked::new(&mut world.shadow, tracking);
    let only_vram = input.byte().is_multiple_of(2);
    let lives = Rc::new(Cell::new(u64::MAX));
    let (notices, changes) = ((notices, costs), Changes::default());
    let mut watched = Watched { world, tracked, policy, notices, only_vram, lives, trusted: true, changes };
    for _ in 0..actions {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 18 {
            0..=7 => {
                let guest = &watched.world.guest;
                if is_narrow {
                    F::write_narrow(guest, &mut input)
                } else {
                    F::write_wide(guest, &mut input)
                }
                watched.world.changed();
                // What is told only to who asks may be asked for sooner, for another space's sake.
                let asked = !matches!(watched.notices.0, Notices::Stores | Notices::AllStores);
                if !asked || input.byte().is_multiple_of(4) {
                    watched.deliver();
                }
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
            15 => {
                watched.policy = some_policy(&mut input);
                watched.change();
            }
            16 => {
                let lives = input.pick(&[0, 1, 2, 5, u64::MAX, u64::MAX]);
                watched.revive(lives);
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
    tracked.end(&mut shadow, &mut Trap { guest: &guest, only_vram, lives: &Cell::new(u64::MAX) });
    let left: HashSet<PhysAddr> = guest.protected.take().into_iter().collect();
    assert!(left.is_empty(), "still protected: {left:x?}");
    shadow.destroy(&mut host);
    assert_eq!(host.live(), 0, "tables are lost");
}
