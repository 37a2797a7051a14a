//! Memory between tenants: scripts, and any operations beside a model that searches all orders.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod model;
mod script;

use std::collections::{BTreeMap, BTreeSet};

use model::Model;
use proptest::prelude::*;
use tenancy::TenantId;
use tenancy::grant::{Declined, Grants, Kind, MOST_WAITS, Order, Rules, Ticket};

#[test]
fn scripts() {
    for script in [
        include_str!("scripts/deadlock.txt"),
        include_str!("scripts/orders.txt"),
        include_str!("scripts/first_come.txt"),
        include_str!("scripts/fixed.txt"),
        include_str!("scripts/limits.txt"),
        include_str!("scripts/alone.txt"),
    ] {
        script::play(script);
    }
}

const TOTAL: u64 = 12;
const TENANTS: u64 = 5;

/// What may happen to the ledger, with small numbers for tenants and bytes.
#[derive(Clone, Copy, Debug)]
enum Event {
    Set(u64, u64, Kind),
    Leave(u64),
    /// Asks, and waits if it may and must.
    Ask(u64, u64),
    Give(u64, u64),
    Cancel(usize),
    Claim(usize),
    Overhead(u64),
    Keep(u64, u64),
    Unkeep(u64, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let tenant = || 0..TENANTS;
    let kind = prop_oneof![4 => Just(Kind::Waits), 1 => Just(Kind::Fails)];
    prop_oneof![
        2 => (tenant(), 1..=TOTAL, kind).prop_map(|(tenant, most, kind)| Event::Set(tenant, most, kind)),
        1 => (5u64..7, 1..=TOTAL / 2).prop_map(|(tenant, most)| Event::Set(tenant, most, Kind::Fixed)),
        1 => (0..7u64).prop_map(Event::Leave),
        8 => (tenant(), 1..6u64).prop_map(|(tenant, bytes)| Event::Ask(tenant, bytes)),
        1 => (5u64..7, 1..4u64).prop_map(|(tenant, bytes)| Event::Ask(tenant, bytes)),
        5 => (0..7u64, 1..6u64).prop_map(|(tenant, bytes)| Event::Give(tenant, bytes)),
        1 => any::<usize>().prop_map(Event::Cancel),
        2 => any::<usize>().prop_map(Event::Claim),
        1 => (0..3u64).prop_map(Event::Overhead),
        1 => (0..7u64, 1..3u64).prop_map(|(tenant, bytes)| Event::Keep(tenant, bytes)),
        1 => (0..7u64, 1..3u64).prop_map(|(tenant, bytes)| Event::Unkeep(tenant, bytes)),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let order = prop::sample::select(Order::ALL.to_vec());
    (order, any::<u64>()).prop_map(|(order, seed)| Rules { order, avoid_deadlock: true, seed })
}

/// What a program beside the grants knows.
struct World {
    grants: Grants,
    model: Model,
    order: Order,
    waiting: BTreeMap<Ticket, (u64, u64)>,
    granted: Vec<(Ticket, u64, u64)>,
    /// Who has waited longest and holds others off, who held something when he came there, and who did that in vain.
    front: Option<Ticket>,
    seniors: BTreeSet<u64>,
    in_vain: BTreeSet<u64>,
    /// A limit was raised, or memory lost, since all were well: that nobody can be left waiting is not promised until it is so again.
    disturbed: bool,
}

impl World {
    fn new(rules: Rules, reserve: u64) -> World {
        World {
            grants: Grants::new(TOTAL, reserve, rules),
            model: Model::new(TOTAL, reserve),
            order: rules.order,
            waiting: BTreeMap::new(),
            granted: Vec::new(),
            front: None,
            seniors: BTreeSet::new(),
            in_vain: BTreeSet::new(),
            disturbed: false,
        }
    }

    fn look_in_front(&mut self) {
        let (model, in_vain) = (&self.model, &self.in_vain);
        self.seniors.retain(|tenant| model.tenants.get(tenant).is_some_and(|known| known.held > 0));
        let front = self.waiting.iter().find(|(_, (tenant, _))| !in_vain.contains(tenant)).map(|(ticket, _)| *ticket);
        if front != self.front {
            self.front = front;
            self.seniors = model.tenants.iter().filter(|(_, known)| known.held > 0).map(|(id, _)| *id).collect();
        }
    }

    /// Whether a tenant may have so much before the front.
    fn passes(&self, tenant: u64, bytes: u64) -> bool {
        let known = &self.model.tenants[&tenant];
        let front = self.front.filter(|_| self.order == Order::FirstCome && known.kind != Kind::Fixed);
        let Some(&(of, wanted)) = front.and_then(|front| self.waiting.get(&front)) else { return true };
        if known.held > 0 && (known.kind == Kind::Waits || self.seniors.contains(&tenant)) {
            return true;
        }
        // When all have gone who were there, he fits beside all who came later and whatever they may come to.
        let later = self.model.tenants.iter().filter(|(id, known)| {
            **id != of && known.held > 0 && known.kind != Kind::Fixed && !self.seniors.contains(id)
        });
        let later: u64 = later.map(|(id, _)| self.model.claim(*id)).sum();
        let own = if known.kind == Kind::Waits && tenant != of { self.model.claim(tenant) } else { bytes };
        self.model.tenants[&of].held + wanted + later + own <= self.model.capacity()
    }

    fn hear(&mut self) {
        let (capacity, mut wanted) = (self.model.best_capacity(), BTreeMap::<u64, u64>::new());
        for (tenant, bytes) in self.waiting.values() {
            *wanted.entry(*tenant).or_insert(self.model.tenants[tenant].held) += bytes;
        }
        for ticket in self.grants.refusals() {
            let (tenant, bytes) = self.waiting.remove(&ticket).unwrap();
            let wanted = wanted.get_mut(&tenant).unwrap();
            let known = &self.model.tenants[&tenant];
            let waits = known.kind == Kind::Waits;
            assert!(!waits || *wanted > known.most.min(capacity), "it could have come to that");
            *wanted -= bytes;
            assert!(!self.grants.cancel(ticket));
        }
        for (tenant, wanted) in wanted {
            assert!(
                wanted <= self.model.tenants[&tenant].most.min(capacity) || wanted == self.model.tenants[&tenant].held
            );
        }
        self.look_in_front();
        for ticket in self.grants.news() {
            let (tenant, bytes) = self.waiting.remove(&ticket).unwrap();
            self.model.tenant(tenant).held += bytes;
            self.in_vain.remove(&tenant);
            self.look_in_front();
            self.granted.push((ticket, tenant, bytes));
        }
    }

    fn ask(&mut self, tenant: u64, bytes: u64) {
        let Some(known) = self.model.tenants.get(&tenant).cloned() else {
            assert!(self.grants.take(TenantId(tenant), bytes).is_err());
            return;
        };
        let waiting: u64 = self.waiting.values().filter(|(of, _)| *of == tenant).map(|(_, bytes)| bytes).sum();
        if known.held + waiting + bytes > known.most {
            // Whoever charges looks at this first.
            return;
        }
        let passes = self.passes(tenant, bytes);
        let possible = known.held + waiting + bytes <= known.most.min(self.model.capacity());
        let possible = possible || known.kind != Kind::Waits;
        let expect = self.model.may_take(tenant, bytes, &self.waiting) && passes && possible;
        let safe = self.model.is_safe();
        let taken = self.grants.take(TenantId(tenant), bytes).is_ok();
        // From a state that is not safe there may be grants that make it no worse; the model knows of none.
        if safe || !self.model.anybody_waits() {
            assert_eq!(taken, expect, "{tenant} takes {bytes} of {:?}, {:?}", self.model, self.waiting);
        }
        if taken {
            self.model.tenant(tenant).held += bytes;
        } else if known.kind == Kind::Waits {
            let possible = known.held + waiting + bytes <= known.most.min(self.model.best_capacity());
            match self.grants.wait(TenantId(tenant), bytes) {
                Ok(ticket) => {
                    assert!(possible);
                    self.waiting.insert(ticket, (tenant, bytes));
                }
                Err(_) => assert!(!possible),
            }
        }
    }

    fn leave(&mut self, tenant: u64) {
        self.grants.leave(TenantId(tenant));
        self.model.tenants.remove(&tenant);
        self.model.upkeep.remove(&tenant);
        self.in_vain.remove(&tenant);
        self.waiting.retain(|_, (of, _)| *of != tenant);
        self.granted.retain(|(_, of, _)| *of != tenant);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Set(tenant, most, kind) => {
                let fixed = self.model.tenants.get(&tenant).is_some_and(|known| known.kind == Kind::Fixed);
                // A virtual GPU stays one.
                if !fixed || kind == Kind::Fixed {
                    self.grants.set(TenantId(tenant), most, kind);
                    self.model.set(tenant, most, kind);
                    self.disturbed = true;
                }
            }
            Event::Leave(tenant) => self.leave(tenant),
            Event::Ask(tenant, bytes) => self.ask(tenant, bytes),
            Event::Give(tenant, bytes) => {
                let unclaimed: u64 =
                    self.granted.iter().filter(|(_, of, _)| *of == tenant).map(|(.., bytes)| bytes).sum();
                if let Some(known) = self.model.tenants.get_mut(&tenant) {
                    let bytes = bytes.min(known.held - unclaimed);
                    known.held -= bytes;
                    self.grants.give(TenantId(tenant), bytes);
                }
            }
            Event::Cancel(at) => {
                let tickets: Vec<Ticket> =
                    self.waiting.keys().copied().chain(self.granted.iter().map(|(ticket, ..)| *ticket)).collect();
                let Some(ticket) = at.checked_rem(tickets.len()).map(|at| tickets[at]) else { return };
                if let Some((tenant, _)) = self.waiting.remove(&ticket)
                    && self.front == Some(ticket)
                {
                    self.in_vain.insert(tenant);
                }
                if let Some(at) = self.granted.iter().position(|(granted, ..)| *granted == ticket) {
                    let (_, tenant, bytes) = self.granted.remove(at);
                    self.model.tenant(tenant).held -= bytes;
                }
                assert!(self.grants.cancel(ticket) && !self.grants.cancel(ticket));
            }
            Event::Claim(at) => {
                if let Some(at) = at.checked_rem(self.granted.len()) {
                    let (ticket, ..) = self.granted.remove(at);
                    assert!(self.grants.is_granted(ticket) && self.grants.claim(ticket) && !self.grants.claim(ticket));
                }
            }
            Event::Overhead(bytes) => {
                self.grants.overhead(bytes);
                self.model.overhead = bytes;
                self.disturbed = true;
            }
            Event::Keep(tenant, bytes) => {
                let expect =
                    self.model.tenants.contains_key(&tenant) && self.model.may_keep(tenant, bytes, &self.waiting);
                let safe = self.model.is_safe();
                let kept = self.grants.keep(TenantId(tenant), bytes).is_ok();
                if safe || !self.model.anybody_waits() {
                    assert_eq!(kept, expect, "{bytes} for {tenant}: {:?}, {:?}", self.model, self.waiting);
                }
                if kept {
                    *self.model.upkeep.entry(tenant).or_default() += bytes;
                }
            }
            Event::Unkeep(tenant, bytes) => {
                let Some(upkeep) = self.model.upkeep.get_mut(&tenant) else { return };
                let bytes = bytes.min(*upkeep);
                *upkeep -= bytes;
                self.grants.unkeep(TenantId(tenant), bytes);
                self.disturbed = true;
            }
        }
    }

    fn check(&mut self, was_safe: bool) {
        self.hear();
        let [total, kept, fixed, held, free] = self.grants.sums();
        let all: u64 = self.model.tenants.values().map(|tenant| tenant.held).sum();
        assert_eq!(fixed + held, all);
        assert_eq!(kept, self.model.kept());
        assert_eq!(free, self.model.free());
        if kept + fixed + held <= total {
            assert_eq!(kept + fixed + held + free, total, "all of it is somebody's");
        }
        for (tenant, known) in &self.model.tenants {
            assert_eq!(self.grants.held(TenantId(*tenant)), known.held);
        }
        assert_eq!(self.grants.is_safe(), self.model.is_safe(), "{:?}", self.model);
        if was_safe && !std::mem::take(&mut self.disturbed) {
            assert!(self.model.is_safe(), "what was decided left somebody waiting: {:?}", self.model);
        }
        // Nobody waits who could be served.
        if self.model.anybody_waits() && self.model.is_safe() {
            for (ticket, (tenant, bytes)) in &self.waiting {
                let passes = self.front == Some(*ticket) || self.passes(*tenant, *bytes);
                let may = passes && self.model.may_take(*tenant, *bytes, &self.waiting);
                assert!(!may, "{ticket:?} waits for what it could have: {:?}, {:?}", self.model, self.waiting);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// What is granted is what the model grants, which looks at all orders in which tenants could be served; what is held, kept
    /// and free is all there is.
    #[test]
    fn decisions_are_those_of_who_looks_at_all_orders(
        rules in rules(),
        reserve in 0..2u64,
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut world = World::new(rules, reserve);
        for event in events {
            let was_safe = world.model.is_safe();
            world.happen(event);
            world.check(was_safe);
        }
    }

    /// Tenants ask in steps up to their limits, wait when they must, and give all back when they have had their most, again and
    /// again: everybody comes to that, whatever the order, beside tenants that fail.
    #[test]
    fn everybody_is_served_at_last(
        rules in rules(),
        limits in prop::collection::vec((1..=TOTAL, 0..4u8), 2..6),
        steps in prop::collection::vec((0..6usize, 1..5u64), 10..80),
    ) {
        let mut world = World::new(rules, 0);
        for (tenant, (most, kind)) in (0..).zip(&limits) {
            let kind = if *kind == 0 { Kind::Fails } else { Kind::Waits };
            world.happen(Event::Set(tenant, *most, kind));
        }
        let step = |world: &mut World, tenant: usize, bytes: u64| {
            let id = tenant as u64;
            if world.waiting.values().any(|(of, _)| *of == id) {
                return;
            }
            let known = world.model.tenants[&id].clone();
            world.granted.clone().iter().filter(|(_, of, _)| *of == id).for_each(|(ticket, ..)| {
                assert!(world.grants.claim(*ticket));
            });
            world.granted.retain(|(_, of, _)| *of != id);
            if known.held < known.most {
                world.happen(Event::Ask(id, bytes.min(known.most - known.held)));
                world.check(true);
            }
            // Who is refused ends, as who has all he wanted does.
            let refused = known.kind == Kind::Fails && world.model.tenants[&id].held == known.held;
            if known.held == known.most || refused {
                world.happen(Event::Give(id, known.held));
                world.check(true);
            }
        };
        for (tenant, bytes) in steps {
            step(&mut world, tenant % limits.len(), bytes);
        }
        // Nobody begins again now but who has not come to his most yet: all who are under way come to an end.
        for _ in 0..2000 {
            let busy: Vec<usize> = (0..limits.len()).filter(|tenant| {
                world.model.tenants[&(*tenant as u64)].held > 0 || world.waiting.values().any(|(of, _)| *of == *tenant as u64)
            }).collect();
            if busy.is_empty() {
                break;
            }
            busy.into_iter().for_each(|tenant| step(&mut world, tenant, 2));
        }
        prop_assert!(world.waiting.is_empty(), "{:?}: {:?}, {:?}", rules, world.model, world.waiting);
    }
}

/// Thousands of tenants, all of them in one another's way: what is decided is what the line says, and it says it quickly.
#[test]
fn thousands_of_tenants() {
    let mut grants = Grants::new(1 << 40, 0, Rules::default());
    let count = 5000;
    for tenant in 0..count {
        grants.set(TenantId(tenant), 1 << 32, Kind::Waits);
    }
    let mut granted = 0u64;
    for round in 0..4 {
        for tenant in 0..count {
            granted += u64::from(grants.take(TenantId(tenant), (1 << 26) + (tenant ^ round) * 4096).is_ok());
        }
        assert!(grants.is_safe());
    }
    assert!(granted > count && granted < 4 * count, "{granted}");
    (0..count).for_each(|tenant| grants.leave(TenantId(tenant)));
    assert_eq!(grants.sums(), [1 << 40, 0, 0, 0, 1 << 40]);
}

/// Tenants that wait for as much as they may, in each order: one gives back, and each of them is looked at a few times, not each of
/// their requests for each that is granted.
#[test]
fn thousands_of_requests_wait() {
    for order in Order::ALL {
        let mut grants = Grants::new(1 << 40, 0, Rules { order, ..Rules::default() });
        let (tenants, all) = (100, TenantId(1 << 20));
        grants.set(all, 1 << 40, Kind::Fails);
        grants.take(all, 1 << 40).unwrap();
        let mut waiting = 0;
        for tenant in 0..tenants {
            grants.set(TenantId(tenant), 1 << 30, Kind::Waits);
            for request in 0..MOST_WAITS as u64 {
                grants.wait(TenantId(tenant), 4096 * (1 + (request * 7 + tenant) % 50)).unwrap();
                waiting += 1;
            }
            assert_eq!(grants.wait(TenantId(tenant), 4096), Err(Declined::TooMany));
        }
        let mut granted = 0;
        while granted < waiting {
            grants.give(all, 1 << 22);
            let news = grants.news();
            assert!(!news.is_empty(), "{order}: nobody could have 4 MiB");
            granted += news.len();
            news.into_iter().for_each(|ticket| assert!(grants.claim(ticket)));
        }
        assert!(!grants.has_waiters());
    }
}

/// A tenant that goes leaves nothing behind, also while nobody has to be put in line.
#[test]
fn who_goes_is_forgotten() {
    let mut grants = Grants::new(1 << 40, 0, Rules::default());
    let empty = format!("{grants:?}").len();
    for tenant in 0..1000 {
        grants.set(TenantId(tenant), 1 << 20, Kind::Waits);
        grants.leave(TenantId(tenant));
    }
    assert!(format!("{grants:?}").len() < empty + 200, "{grants:?}");
}
