//! What the grants should do, looked at in the simplest way: every order in which tenants could be served is tried.

use std::collections::BTreeMap;

use tenancy::grant::{Kind, Ticket};

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) most: u64,
    pub(crate) held: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    total: u64,
    reserve: u64,
    pub(crate) overhead: u64,
    pub(crate) upkeep: BTreeMap<u64, u64>,
    pub(crate) tenants: BTreeMap<u64, Tenant>,
}

impl Model {
    pub(crate) fn new(total: u64, reserve: u64) -> Model {
        Model { total, reserve, overhead: 0, upkeep: BTreeMap::new(), tenants: BTreeMap::new() }
    }

    pub(crate) fn set(&mut self, id: u64, most: u64, kind: Kind) {
        let held = self.tenants.get(&id).map_or(0, |tenant| tenant.held);
        self.tenants.insert(id, Tenant { most, held, kind });
    }

    pub(crate) fn tenant(&mut self, id: u64) -> &mut Tenant {
        self.tenants.get_mut(&id).unwrap()
    }

    fn held(&self, which: impl Fn(Kind) -> bool) -> u64 {
        self.tenants.values().filter(|tenant| which(tenant.kind)).map(|tenant| tenant.held).sum()
    }

    pub(crate) fn anybody_waits(&self) -> bool {
        self.tenants.values().any(|tenant| tenant.kind == Kind::Waits)
    }

    /// What there is beside the reserve and what is fixed.
    pub(crate) fn capacity(&self) -> u64 {
        let kept = self.kept() + self.held(|kind| kind == Kind::Fixed);
        self.total.saturating_sub(kept)
    }

    pub(crate) fn kept(&self) -> u64 {
        self.reserve.max(self.overhead + self.upkeep.values().sum::<u64>())
    }

    /// What there may be at best.
    pub(crate) fn best_capacity(&self) -> u64 {
        self.total.saturating_sub(self.reserve + self.held(|kind| kind == Kind::Fixed))
    }

    /// The most that a tenant may come to have.
    pub(crate) fn claim(&self, id: u64) -> u64 {
        let tenant = &self.tenants[&id];
        if tenant.kind == Kind::Waits { tenant.most.min(self.capacity()).max(tenant.held) } else { tenant.held }
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity().saturating_sub(self.held(|kind| kind != Kind::Fixed))
    }

    /// Whether there is an order in which each who waits can have his most, and give all back.
    pub(crate) fn is_safe(&self) -> bool {
        let capacity = self.capacity();
        let waits: Vec<(u64, u64)> = self
            .tenants
            .values()
            .filter(|tenant| tenant.kind == Kind::Waits)
            .map(|tenant| (tenant.most.min(capacity).saturating_sub(tenant.held), tenant.held))
            .collect();
        // Less than nothing, where memory was lost that somebody holds.
        some_order(capacity as i64 - self.held(|kind| kind == Kind::Waits) as i64, &waits)
    }

    /// Whether a tenant may have so much: all can be served then, and what was promised still is.
    pub(crate) fn may_take(&self, id: u64, bytes: u64, waiting: &BTreeMap<Ticket, (u64, u64)>) -> bool {
        if !self.anybody_waits() {
            return true;
        }
        if bytes > self.free() {
            return false;
        }
        let mut after = self.clone();
        after.tenant(id).held += bytes;
        self.is_kept_in(&after, self.tenants[&id].kind != Kind::Fixed, waiting)
    }

    /// Whether so much may be taken for a tenant's upkeep.
    pub(crate) fn may_keep(&self, id: u64, bytes: u64, waiting: &BTreeMap<Ticket, (u64, u64)>) -> bool {
        let mut after = self.clone();
        *after.upkeep.entry(id).or_default() += bytes;
        let more = after.kept() - self.kept();
        !self.anybody_waits() || more == 0 || more <= self.free() && self.is_kept_in(&after, false, waiting)
    }

    /// Whether all can be served in `after`, and, unless it comes back, have what they were promised.
    fn is_kept_in(&self, after: &Model, comes_back: bool, waiting: &BTreeMap<Ticket, (u64, u64)>) -> bool {
        let keeps = comes_back
            || self.tenants.iter().filter(|(_, tenant)| tenant.kind == Kind::Waits).all(|(id, tenant)| {
                let wanted: u64 = waiting.values().filter(|(of, _)| of == id).map(|(_, bytes)| bytes).sum();
                let declared = if tenant.most < self.total { tenant.most } else { 0 };
                declared.max(tenant.held + wanted) <= after.capacity()
            });
        keeps && after.is_safe()
    }
}

/// Whether all of `waits` (need and held) can be served one after the other with `free` to begin with.
fn some_order(free: i64, waits: &[(u64, u64)]) -> bool {
    waits.is_empty()
        || (0..waits.len()).any(|first| {
            let (need, held) = waits[first];
            let others: Vec<(u64, u64)> =
                waits.iter().enumerate().filter(|(at, _)| *at != first).map(|(_, other)| *other).collect();
            need as i64 <= free && some_order(free + held as i64, &others)
        })
}
