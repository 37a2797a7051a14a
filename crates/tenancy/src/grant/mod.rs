//! Who gets memory of the GPU, and who waits for it.
//!
//! Limits of tenants may together exceed the GPU. A request that does not fit now fails, or waits, as its tenant has it
//! ([`OnFull`]). Tenants that hold some memory and wait for more can wait for each other for ever; so who waits is granted
//! memory only where everybody who may wait can still reach his limit in some order, each giving back what he has when he has
//! had his most (Dijkstra's banker, for one resource; the order is that of [`line`]).
//!
//! - A tenant that **waits** claims its limit, or all there is if that is less.
//! - A tenant that **fails** claims no more than it holds: it never waits, so nobody waits for it for ever. It is granted
//!   what is free.
//! - A **fixed** one, a virtual GPU, keeps what it has. It gets it if all who wait can still reach their limits then, and those
//!   who have declared one that is less than the GPU need not be content with less.
//!
//! What the driver takes for a tenant beside what counts against its limit (page tables, channels) is its *upkeep*
//! ([`Grants::keep`]); what nobody asked for (what is lost, the driver's own) is told with [`Grants::overhead`]. A reserve is kept for
//! both as long as there is anybody who may wait; what goes beyond shrinks what there is to be had. That passes: nobody is refused
//! for good because of it.
//!
//! Who goes next is the [`Order`]. With `first-come` nobody starves: who has waited longest, the *front*, is passed by those who
//! wait and hold something, since he may wait for what they cannot finish without; and by others as far as he is served all the
//! same when those have gone who held something when he came to the front. Of who may wait that is his whole limit, of who fails
//! what he asks for. So the front is served when each of those who held memory when he came there has given all of it back once, at
//! the latest. Whose wait ended in vain at the front holds nobody off by another one, until a wait of his has been granted.
//! The other orders promise no bound: whatever fits goes ahead. Fixed ones are an administrator's wish, and pass everybody.
//!
//! Events in, decisions out: no clock, no thread. While nobody may wait, or all limits fit together, a request costs a few
//! additions. What is given back is decided upon in one pass over the tenants that wait.

mod line;
mod order;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::TenantId;
use line::Line;
pub use order::{OnFull, Order, UnknownOrder};

/// Most requests of a tenant that wait at once: all others are decided upon with them.
pub const MOST_WAITS: usize = 64;

/// What is decided on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Who goes next.
    pub order: Order,
    /// Whether requests are refused that could leave tenants waiting for each other for ever. Off for tests alone.
    pub avoid_deadlock: bool,
    /// Where [`Order::Random`] begins.
    pub seed: u64,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { order: Order::default(), avoid_deadlock: true, seed: 0 }
    }
}

/// What a tenant does where there is not enough for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Its requests fail.
    Fails,
    /// They wait.
    Waits,
    /// It has asked once, and keeps what it has.
    Fixed,
}

/// A request that waits, or waited and was granted: in the order in which they came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// A request that is not granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// What would have been, bytes.
    pub free: u64,
}

/// A request that may not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Declined {
    /// Its turn would never come.
    Never(Refused),
    /// [`MOST_WAITS`] of its tenant wait.
    TooMany,
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiter {
    tenant: u32,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Tenant {
    id: TenantId,
    kind: Kind,
    most: u64,
    held: u64,
    /// Taken for it beside that.
    upkeep: u64,
    /// Its waiting requests, what they want together, and the least of them.
    waits: BTreeMap<Ticket, u64>,
    waiting: u64,
    least: u64,
    /// It has held others off for nothing.
    in_vain: bool,
    /// When it was last granted something or gave something back, and since when it has held something.
    used_at: u64,
    since: u64,
    /// In line with this need and this held.
    listed: bool,
    stale: bool,
}

impl Tenant {
    /// The most that it may come to have, of `capacity`.
    fn claim(&self, capacity: u64) -> u64 {
        match self.kind {
            Kind::Waits => self.most.min(capacity).max(self.held),
            Kind::Fails | Kind::Fixed => self.held,
        }
    }

    fn need(&self, capacity: u64) -> u64 {
        self.claim(capacity) - self.held
    }

    fn add_wait(&mut self, ticket: Ticket, bytes: u64) {
        self.waits.insert(ticket, bytes);
        self.follow_waits();
    }

    fn remove_wait(&mut self, ticket: Ticket) {
        self.waits.remove(&ticket);
        self.follow_waits();
    }

    fn follow_waits(&mut self) {
        self.waiting = self.waits.values().sum();
        self.least = self.waits.values().min().copied().unwrap_or(0);
    }
}

/// Memory of a GPU between its tenants.
#[derive(Clone, Debug)]
pub struct Grants {
    total: u64,
    reserve: u64,
    overhead: u64,
    /// What is taken for all tenants beside what they hold.
    upkeep: u64,
    rules: Rules,
    numbers: HashMap<TenantId, u32>,
    tenants: Vec<Option<Tenant>>,
    unused: Vec<u32>,
    /// What those of each kind hold.
    held: [u64; 3],
    /// Tenants that may wait, and what they claim together.
    patient: usize,
    claims: u64,
    line: Line,
    /// Those who stand in line with old numbers: looked at only where the line is.
    stale: Vec<u32>,
    waiters: BTreeMap<Ticket, Waiter>,
    /// Who has waited longest and holds others off, and when he came there.
    front: Option<Ticket>,
    front_since: u64,
    granted: HashMap<Ticket, Waiter>,
    /// Granted since somebody last asked, and refused.
    news: Vec<Ticket>,
    refused: Vec<Ticket>,
    next_ticket: u64,
    uses: u64,
    random: u64,
}

impl Grants {
    /// A GPU with so many bytes, of which `reserve` are kept for what is not charged.
    #[must_use]
    pub fn new(total: u64, reserve: u64, rules: Rules) -> Grants {
        Grants {
            total,
            reserve: reserve.min(total),
            overhead: 0,
            upkeep: 0,
            rules,
            numbers: HashMap::new(),
            tenants: Vec::new(),
            unused: Vec::new(),
            held: [0; 3],
            patient: 0,
            claims: 0,
            line: Line::new(),
            stale: Vec::new(),
            waiters: BTreeMap::new(),
            front: None,
            front_since: 0,
            granted: HashMap::new(),
            news: Vec::new(),
            refused: Vec::new(),
            next_ticket: 0,
            uses: 0,
            random: rules.seed,
        }
    }

    /// A tenant is there, or its terms have changed. What it holds above a lowered limit stays until it is given back; one that waits
    /// no more is refused what it waited for.
    pub fn set(&mut self, id: TenantId, most: u64, kind: Kind) {
        let number = match self.numbers.get(&id) {
            Some(&number) => number,
            None => self.add(id),
        };
        let before = self.capacity();
        self.change(number, |tenant| (tenant.most, tenant.kind) = (most, kind));
        self.follow_capacity(before);
        self.refuse_hopeless();
        self.decide();
    }

    /// A tenant has gone, with all that it held and waited for.
    pub fn leave(&mut self, id: TenantId) {
        let Some(number) = self.numbers.remove(&id) else { return };
        let before = self.capacity();
        self.waiters.retain(|_, waiter| waiter.tenant != number);
        self.granted.retain(|_, waiter| waiter.tenant != number);
        self.change(number, |tenant| (tenant.held, tenant.kind) = (0, Kind::Fails));
        self.follow(number);
        self.stale.retain(|stale| *stale != number);
        self.upkeep -= self.tenant(number).upkeep;
        self.tenants[number as usize] = None;
        self.unused.push(number);
        self.follow_capacity(before);
        self.decide();
    }

    /// What is taken and nobody's, bytes.
    pub fn overhead(&mut self, bytes: u64) {
        let before = self.capacity();
        self.overhead = bytes;
        self.follow_capacity(before);
        if self.capacity() != before {
            self.decide();
        }
    }

    /// Takes `bytes` for a tenant's upkeep, which neither waits nor counts against its limit.
    ///
    /// # Errors
    /// What is kept for that is used up, and the rest promised.
    pub fn keep(&mut self, id: TenantId, bytes: u64) -> Result<(), Refused> {
        let Some(&number) = self.numbers.get(&id) else { return Err(Refused { free: 0 }) };
        let before = self.capacity();
        if self.patient > 0 {
            let kept = self.overhead.saturating_add(self.upkeep).saturating_add(bytes);
            let (more, free) = (kept.saturating_sub(self.kept()), self.free());
            if more > 0 && (more > free || !self.may_fix(more)) {
                return Err(Refused { free });
            }
        }
        self.upkeep += bytes;
        self.tenant_mut(number).upkeep += bytes;
        self.follow_capacity(before);
        Ok(())
    }

    /// Gives back what was taken for upkeep.
    ///
    /// # Panics
    /// If it was not.
    pub fn unkeep(&mut self, id: TenantId, bytes: u64) {
        let Some(&number) = self.numbers.get(&id) else { return };
        let before = self.capacity();
        let tenant = self.tenant_mut(number);
        assert!(tenant.upkeep >= bytes, "more upkeep is given back than was taken");
        tenant.upkeep -= bytes;
        self.upkeep -= bytes;
        self.follow_capacity(before);
        if self.capacity() != before {
            self.decide();
        }
    }

    /// Grants a request now, or not.
    ///
    /// # Errors
    /// It does not fit, or would leave others waiting for ever, or passes one who waits.
    pub fn take(&mut self, id: TenantId, bytes: u64) -> Result<(), Refused> {
        let Some(&number) = self.numbers.get(&id) else { return Err(Refused { free: 0 }) };
        // Nobody waits, and nobody will: whether it fits is seen where it is taken.
        if self.patient > 0 && bytes > 0 {
            self.straighten();
            if !self.may_now(number, bytes) {
                return Err(Refused { free: self.free() });
            }
        }
        self.grant(number, bytes);
        Ok(())
    }

    /// Gives back what was granted.
    ///
    /// # Panics
    /// If it was not: the books are wrong, and with them every promise.
    pub fn give(&mut self, id: TenantId, bytes: u64) {
        let Some(&number) = self.numbers.get(&id) else { return };
        let before = self.capacity();
        let uses = self.count_use();
        self.change(number, |tenant| {
            assert!(tenant.held >= bytes, "more is given back than was granted");
            tenant.held -= bytes;
            tenant.used_at = uses;
        });
        self.follow_capacity(before);
        self.decide();
    }

    /// Has a request wait for its turn, which may come at once.
    ///
    /// # Errors
    /// Its turn would never come: its tenant does not wait, or with what that holds and waits for it is above the limit, or more than
    /// there is at best. Or too many of its tenant wait.
    pub fn wait(&mut self, id: TenantId, bytes: u64) -> Result<Ticket, Declined> {
        let never = Declined::Never(Refused { free: self.free() });
        let number = *self.numbers.get(&id).ok_or(never)?;
        let tenant = self.tenant(number);
        if bytes == 0 || tenant.kind != Kind::Waits || !is_within(tenant, bytes, self.best_capacity()) {
            return Err(never);
        }
        if tenant.waits.len() >= MOST_WAITS {
            return Err(Declined::TooMany);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tenant_mut(number).add_wait(ticket, bytes);
        self.waiters.insert(ticket, Waiter { tenant: number, bytes });
        self.decide();
        Ok(ticket)
    }

    /// Ends a wait, and gives back what was granted by it. False if there is none.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            let in_vain = self.front == Some(ticket);
            let tenant = self.tenant_mut(waiter.tenant);
            tenant.remove_wait(ticket);
            tenant.in_vain |= in_vain;
            // Who stood behind it may go now.
            self.decide();
            return true;
        }
        let Some(waiter) = self.granted.remove(&ticket) else { return false };
        let id = self.tenant(waiter.tenant).id;
        self.give(id, waiter.bytes);
        true
    }

    /// Takes what a wait has been granted: its tenant holds it, as if it had been [taken](Grants::take). False if it was not
    /// granted yet.
    pub fn claim(&mut self, ticket: Ticket) -> bool {
        self.granted.remove(&ticket).is_some()
    }

    /// Waits that have been granted since this was last asked; their tenants hold it from then on.
    pub fn news(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.news)
    }

    /// Waits that are over in vain since this was last asked: a limit was lowered, or memory lost, and they would never end.
    pub fn refusals(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.refused)
    }

    /// Whether a wait has been granted, and was not claimed yet.
    #[must_use]
    pub fn is_granted(&self, ticket: Ticket) -> bool {
        self.granted.contains_key(&ticket)
    }

    /// Whether anybody waits.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether anybody may.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.patient > 0
    }

    /// What a tenant does where there is not enough for it.
    #[must_use]
    pub fn kind(&self, id: TenantId) -> Option<Kind> {
        self.numbers.get(&id).map(|number| self.tenant(*number).kind)
    }

    /// Bytes that a tenant holds, what it was granted and has not claimed yet included.
    #[must_use]
    pub fn held(&self, id: TenantId) -> u64 {
        self.numbers.get(&id).map_or(0, |number| self.tenant(*number).held)
    }

    /// Bytes that a tenant could ask for and get: at once, or if it waits, at last. `None`: as many as are there.
    #[must_use]
    pub fn obtainable(&self, id: TenantId) -> Option<u64> {
        let number = *self.numbers.get(&id)?;
        let (capacity, free) = (self.capacity(), self.free());
        let tenant = self.tenant(number);
        match tenant.kind {
            Kind::Waits => Some(tenant.most.min(capacity).saturating_sub(tenant.held + tenant.waiting)),
            _ if self.patient == 0 => None,
            _ => Some(free.min(tenant.most.saturating_sub(tenant.held)).min(self.passing(number, self.room()))),
        }
    }

    /// Bytes that nobody has.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity().saturating_sub(self.held[Kind::Fails as usize]).saturating_sub(self.held[Kind::Waits as usize])
    }

    /// All bytes, and of those: kept for upkeep and what is nobody's, held by fixed ones, held by others, free. They add up, as long
    /// as no more is held than there is.
    #[must_use]
    pub fn sums(&self) -> [u64; 5] {
        let [fails, waits, fixed] = self.held;
        [self.total, self.kept(), fixed, fails + waits, self.free()]
    }

    /// Bytes that are taken for tenants' upkeep.
    #[must_use]
    pub fn upkeep(&self) -> u64 {
        self.upkeep
    }

    /// Whether all who may wait can reach their limits in some order.
    #[must_use]
    pub fn is_safe(&mut self) -> bool {
        self.straighten();
        self.is_roomy() || self.fits(self.line.all().slack)
    }

    /// What there is for tenants that come and go.
    fn capacity(&self) -> u64 {
        self.total.saturating_sub(self.kept()).saturating_sub(self.held[Kind::Fixed as usize])
    }

    /// What there may be at best, when nothing is taken beyond the reserve.
    fn best_capacity(&self) -> u64 {
        self.total.saturating_sub(self.reserve).saturating_sub(self.held[Kind::Fixed as usize])
    }

    fn kept(&self) -> u64 {
        self.reserve.max(self.overhead.saturating_add(self.upkeep))
    }

    /// What is free when those have gone who wait for nobody: less than nothing, where memory was lost that others hold.
    fn base(&self) -> i128 {
        i128::from(self.capacity()) - i128::from(self.held[Kind::Waits as usize])
    }

    fn fits(&self, slack: i128) -> bool {
        slack.saturating_add(self.base()) >= 0
    }

    fn tenant(&self, number: u32) -> &Tenant {
        let Some(tenant) = &self.tenants[number as usize] else {
            unreachable!("numbers are of tenants that are there")
        };
        tenant
    }

    fn tenant_mut(&mut self, number: u32) -> &mut Tenant {
        let Some(tenant) = &mut self.tenants[number as usize] else {
            unreachable!("numbers are of tenants that are there")
        };
        tenant
    }

    fn add(&mut self, id: TenantId) -> u32 {
        let tenant = Tenant {
            id,
            kind: Kind::Fails,
            most: 0,
            held: 0,
            upkeep: 0,
            waits: BTreeMap::new(),
            waiting: 0,
            least: 0,
            in_vain: false,
            used_at: 0,
            since: 0,
            listed: false,
            stale: false,
        };
        let number = self.unused.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            (self.tenants.len() - 1) as u32
        });
        self.tenants[number as usize] = Some(tenant);
        self.numbers.insert(id, number);
        number
    }

    fn count_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Changes a tenant, and what is summed up of it. What there is may be another then ([`Grants::follow_capacity`]).
    fn change(&mut self, number: u32, change: impl FnOnce(&mut Tenant)) {
        let capacity = self.capacity();
        let Some(tenant) = &mut self.tenants[number as usize] else {
            unreachable!("numbers are of tenants that are there")
        };
        let waited = tenant.kind == Kind::Waits;
        self.held[tenant.kind as usize] -= tenant.held;
        if waited {
            self.claims -= tenant.claim(capacity);
        }
        change(tenant);
        let waits = tenant.kind == Kind::Waits;
        self.held[tenant.kind as usize] += tenant.held;
        if waits {
            self.claims += tenant.claim(capacity);
        }
        self.patient = self.patient + usize::from(waits) - usize::from(waited);
        if (waits || tenant.listed) && !tenant.stale {
            tenant.stale = true;
            self.stale.push(number);
        }
    }

    /// What there is has changed from `before`: limits above it mean something else.
    fn follow_capacity(&mut self, before: u64) {
        let capacity = self.capacity();
        if capacity == before {
            return;
        }
        self.claims = 0;
        for (number, tenant) in (0..).zip(&mut self.tenants) {
            let Some(tenant) = tenant.as_mut().filter(|tenant| tenant.kind == Kind::Waits) else { continue };
            self.claims += tenant.claim(capacity);
            if !tenant.stale {
                tenant.stale = true;
                self.stale.push(number);
            }
        }
    }

    /// Whether all limits fit together: then nobody has to be put in line.
    fn is_roomy(&self) -> bool {
        self.claims.saturating_add(self.held[Kind::Fails as usize]) <= self.capacity()
    }

    /// Puts those in line who have changed, if the line matters.
    fn straighten(&mut self) {
        if self.is_roomy() {
            return;
        }
        for number in std::mem::take(&mut self.stale) {
            self.follow(number);
        }
    }

    fn follow(&mut self, number: u32) {
        let capacity = self.capacity();
        // One that is gone was taken out of the line when it went.
        let Some(tenant) = &mut self.tenants[number as usize] else { return };
        if std::mem::take(&mut tenant.listed) {
            self.line.remove(number);
        }
        tenant.stale = false;
        if tenant.kind == Kind::Waits {
            tenant.listed = true;
            self.line.insert(number, tenant.need(capacity), tenant.held);
        }
    }

    /// Whether a request that has just come may be granted. The line is straight.
    fn may_now(&self, number: u32, bytes: u64) -> bool {
        let tenant = self.tenant(number);
        // What it is promised ends here, what it waits for included.
        let promised = tenant.kind != Kind::Waits || is_within(tenant, bytes, self.capacity());
        promised && self.may(number, bytes, || bytes <= self.passing(number, self.room()))
    }

    fn may(&self, number: u32, bytes: u64, passes: impl FnOnce() -> bool) -> bool {
        if bytes > self.free() {
            return false;
        }
        match self.tenant(number).kind {
            Kind::Fixed => self.may_fix(bytes),
            Kind::Fails => passes(),
            Kind::Waits => passes() && self.is_safe_with(number, bytes),
        }
    }

    /// Bytes that the front leaves to those who came later, if it holds anybody off: so much is left when those have gone who were
    /// there when it came.
    fn room(&self) -> Option<u64> {
        let front = self.front.filter(|_| self.rules.order == Order::FirstCome)?;
        let front = self.waiters.get(&front)?;
        let capacity = self.capacity();
        let of_later = (0..).zip(&self.tenants).filter_map(|(number, tenant)| {
            let tenant = tenant.as_ref().filter(|tenant| number != front.tenant && tenant.kind != Kind::Fixed)?;
            let later = tenant.held > 0 && tenant.since > self.front_since;
            later.then(|| tenant.claim(capacity))
        });
        let ahead = self.tenant(front.tenant).held.saturating_add(front.bytes);
        Some(capacity.saturating_sub(of_later.fold(ahead, u64::saturating_add)))
    }

    /// Bytes that a tenant may have before the front.
    fn passing(&self, number: u32, room: Option<u64>) -> u64 {
        let Some(room) = room else { return u64::MAX };
        let tenant = self.tenant(number);
        let front = self.front.and_then(|front| self.waiters.get(&front));
        match tenant.kind {
            // He may wait for what it cannot finish without.
            Kind::Waits if tenant.held > 0 => u64::MAX,
            // Once it holds something it must be able to have all that it may come to need.
            Kind::Waits if front.is_some_and(|front| front.tenant != number) => {
                if tenant.claim(self.capacity()) <= room { u64::MAX } else { 0 }
            }
            Kind::Fails if tenant.held > 0 && tenant.since <= self.front_since => u64::MAX,
            _ => room,
        }
    }

    /// Whether everybody can still reach his limit when tenant `number`, who waits, has `bytes` more. What is before him in line
    /// then finds that much less, and he himself must be served by what is free and what those give back. Who stands behind
    /// finds no less than before: he gives back what he was granted.
    fn is_safe_with(&self, number: u32, bytes: u64) -> bool {
        if !self.rules.avoid_deadlock || self.is_roomy() {
            return true;
        }
        let need = self.tenant(number).need(self.capacity());
        let before = self.line.before(need.saturating_sub(bytes), number);
        let own = i128::try_from(before.held).unwrap_or(i128::MAX) - i128::from(need);
        self.fits(before.slack.saturating_sub(bytes.into())) && self.fits(own)
    }

    /// Whether somebody may have `bytes` for good.
    fn may_fix(&self, bytes: u64) -> bool {
        let rest = self.capacity() - bytes;
        let mut after = Line::new();
        for (number, tenant) in (0..).zip(&self.tenants) {
            let Some(tenant) = tenant.as_ref().filter(|tenant| tenant.kind == Kind::Waits) else { continue };
            let promised = if tenant.most < self.total { tenant.most } else { tenant.held + tenant.waiting };
            if promised.max(tenant.held + tenant.waiting) > rest {
                return false;
            }
            after.insert(number, tenant.need(rest), tenant.held);
        }
        !self.rules.avoid_deadlock || self.fits(after.all().slack.saturating_sub(bytes.into()))
    }

    fn grant(&mut self, number: u32, bytes: u64) {
        let before = self.capacity();
        let uses = self.count_use();
        self.change(number, |tenant| {
            if tenant.held == 0 {
                tenant.since = uses;
            }
            tenant.held += bytes;
            tenant.used_at = uses;
        });
        self.follow_capacity(before);
        if self.tenant(number).kind == Kind::Fixed {
            self.refuse_hopeless();
        }
    }

    /// Refuses what tenants could never have any more, or do not wait for any more, the latest first: it would be in others' way.
    fn refuse_hopeless(&mut self) {
        let most = self.best_capacity();
        let tickets: Vec<Ticket> = self.waiters.keys().rev().copied().collect();
        for ticket in tickets {
            let Some(Waiter { tenant: number, .. }) = self.waiters.get(&ticket).copied() else { continue };
            let tenant = self.tenant(number);
            if tenant.kind != Kind::Waits || !is_within(tenant, 0, most) {
                self.tenant_mut(number).remove_wait(ticket);
                self.waiters.remove(&ticket);
                self.refused.push(ticket);
            }
        }
        self.look_in_front();
    }

    /// Grants what can be granted, one after the other.
    ///
    /// In one pass: a grant makes nothing possible that was not before, but that others pass another front.
    fn decide(&mut self) {
        self.look_in_front();
        while !self.waiters.is_empty() && self.free() > 0 {
            let front = self.front;
            self.straighten();
            let mut room = self.room();
            for ticket in self.candidates(room) {
                let Some(waiter) = self.waiters.get(&ticket).copied() else { continue };
                let in_front = self.front == Some(ticket);
                if self
                    .may(waiter.tenant, waiter.bytes, || in_front || waiter.bytes <= self.passing(waiter.tenant, room))
                {
                    self.grant(waiter.tenant, waiter.bytes);
                    self.waiters.remove(&ticket);
                    let tenant = self.tenant_mut(waiter.tenant);
                    tenant.remove_wait(ticket);
                    tenant.in_vain = false;
                    self.granted.insert(ticket, waiter);
                    self.news.push(ticket);
                    self.look_in_front();
                    self.straighten();
                    room = self.room();
                }
            }
            if self.front == front {
                return;
            }
        }
    }

    /// Looks who is in front.
    fn look_in_front(&mut self) {
        let holds_off = |waiter: &Waiter| !self.tenant(waiter.tenant).in_vain;
        let front = self.waiters.iter().find(|(_, waiter)| holds_off(waiter)).map(|(ticket, _)| *ticket);
        if front != self.front {
            (self.front, self.front_since) = (front, self.uses);
        }
    }

    /// Who may be served, in the order of the rules. Of tenants that could not have the least that they wait for, only the front.
    fn candidates(&mut self, room: Option<u64>) -> Vec<Ticket> {
        let mut found: Vec<(u64, Ticket)> = Vec::new();
        let free = self.free();
        for (number, tenant) in (0..).zip(&self.tenants) {
            let Some(tenant) = tenant.as_ref().filter(|tenant| !tenant.waits.is_empty()) else { continue };
            let some = self.may(number, tenant.least, || tenant.least <= self.passing(number, room));
            let waits =
                tenant.waits.iter().filter(|(ticket, bytes)| **bytes <= free && (some || Some(**ticket) == self.front));
            found.extend(waits.map(|(ticket, bytes)| match self.rules.order {
                Order::BestFit => (*bytes, *ticket),
                Order::RecentUse => (tenant.used_at, *ticket),
                Order::FirstCome | Order::Random => (0, *ticket),
            }));
        }
        found.sort_unstable_by_key(|(most, ticket)| (Reverse(*most), *ticket));
        if self.rules.order == Order::Random {
            for (place, _) in &mut found {
                self.random = self.random.wrapping_add(1);
                *place = line::mix(self.random);
            }
            found.sort_unstable();
        }
        found.into_iter().map(|(_, ticket)| ticket).collect()
    }
}

/// Whether a tenant could have `bytes` more than it holds and waits for, if it were alone with so much memory.
fn is_within(tenant: &Tenant, bytes: u64, there_is: u64) -> bool {
    let all = tenant.held.saturating_add(tenant.waiting).saturating_add(bytes);
    all <= tenant.most.min(there_is)
}
