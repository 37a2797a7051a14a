//! Turns, for commands that run to their end once they are begun, one at a time.
//!
//! ```text
//!                 submitted               next: Run(tenant)
//!   (no command) ──────────► in the line ──────────────────► on the device ──► completed
//!                              │
//!                              └──► withdrawn: it waits for something that is not the GPU, or its context is gone
//!
//!   next: At(t), BAND only: the device is kept until t for the one that ran last
//! ```
//! The rules are those of Gdev (Kato et al., ATC'12) and of GPUvm (Suzuki et al., ATC'14):
//!
//! - **FIFO**: commands in the order in which they were submitted, whoever submitted them.
//! - **CREDIT**: tenants stand in a list. The first that has a command is next. Each has a budget, from which its commands are
//!   paid, and which is replenished once a period by its part of the time that has gone by; whose budget is overdrawn when its
//!   command ends goes to the end of the list. That is fair among tenants who always have commands waiting. Whoever submits a
//!   command when the one before has ended is never waiting when the choice is made, and gets one command for each of another's,
//!   however long that one's are.
//! - **BAND**: tenants with a budget come before those without; among them, those who have used less than their part of the
//!   period come first. And if the one that ran last has used less than its part and has no command, while the next has used
//!   more than its part and more than the last, then the device is kept for [`Pace::wait_ns`]: the light user's next command is
//!   on its way.
//!
//! Where this differs from them:
//!
//! - They divide equally. Here a part is a tenant's weight over the weights of those present; equal parts if none has a share.
//! - They count everybody who is registered. Here who had no command since the last replenishment is not present: its time is
//!   divided among the others, and the credit that it had; a debt of it is paid off meanwhile.
//! - They forgive a debt that is greater than a period, so that somebody whose commands are longer than that is never held to
//!   its part; and they take credit away that is greater than a period. Here both are bounded and nothing is forgotten: a debt
//!   by [`Pace::debt_ns`], credit by a period and the tenant's part of one.
//! - They divide idle time as well. Here only what was used is divided, so that one's debt is another's credit.
//! - BAND keeps the device for a light user also if the next owes, and more than he. Without that, what somebody gets at the
//!   beginning of a period, when nobody has used anything yet, is never made good.

use std::collections::{BTreeMap, VecDeque};

use crate::Key;
use crate::weights::rest;

/// Whose command is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Whose was submitted first.
    Fifo,
    /// The first in the list.
    Credit,
    /// The first in the list of those who have used little.
    Band,
}

/// Lengths of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Between two replenishments, ns. Also the most that a budget holds.
    pub period_ns: u64,
    /// Largest debt, ns. Shares are kept among commands that are shorter than this.
    pub debt_ns: u64,
    /// How long BAND keeps the device for a light user, ns.
    pub wait_ns: u64,
}

impl Default for Pace {
    /// Gdev's period and wait.
    fn default() -> Pace {
        Pace { period_ns: 30_000_000, debt_ns: 500_000_000, wait_ns: 500_000 }
    }
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This tenant's next command is to run now.
    Run(Key),
    /// Nothing runs before this time, ns; unless something is submitted or completed before.
    At(u64),
    /// Nothing to decide until something is submitted or completed.
    Later,
}

#[derive(Debug)]
struct Tenant {
    share_percent: Option<f64>,
    /// Percent: the share, or a part of the rest.
    weight: f64,
    /// Submitted and not ended.
    commands: u64,
    /// Had a command since the last replenishment.
    present: bool,
    /// Its place in the list; lower is nearer to the head.
    place: u64,
    /// In which line it stands.
    line: Option<Line>,
    budget_ns: f64,
    /// Used since the last replenishment.
    used_ns: f64,
}

impl Tenant {
    fn line(&self) -> Option<Line> {
        (self.commands > 0).then_some(if self.budget_ns < 0.0 { Line::Over } else { Line::Within })
    }

    /// Takes credit away; how much that was.
    fn drop_credit(&mut self) -> f64 {
        let credit = self.budget_ns.max(0.0);
        self.budget_ns -= credit;
        credit
    }
}

/// Tenants with commands, apart by budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Within = 0,
    Over = 1,
}

/// A rule and its books. One command is on the device at a time.
#[derive(Debug)]
pub struct Turns {
    rule: Rule,
    pace: Pace,
    tenants: BTreeMap<Key, Tenant>,
    /// By [`Line`]: tenants by place.
    lines: [BTreeMap<u64, Key>; 2],
    /// FIFO: commands in a row, by whom.
    queue: VecDeque<(Key, u64)>,
    next_place: u64,
    /// Weights of all who are present.
    weights: f64,
    /// Whose command is on the device.
    running: Option<Key>,
    /// Who ran last.
    last: Option<Key>,
    /// The device is kept for `last` until then.
    kept_until: Option<u64>,
    /// Used by all since the last replenishment, and between the two before it with what was idle.
    used_ns: f64,
    previous_ns: f64,
    idle_ns: u64,
    idle_since: Option<u64>,
    replenish_at: u64,
}

impl Turns {
    /// Nobody shares yet.
    #[must_use]
    pub fn new(rule: Rule, pace: Pace, now: u64) -> Turns {
        Turns {
            rule,
            pace,
            tenants: BTreeMap::new(),
            lines: [BTreeMap::new(), BTreeMap::new()],
            queue: VecDeque::new(),
            next_place: 0,
            weights: 0.0,
            running: None,
            last: None,
            kept_until: None,
            used_ns: 0.0,
            previous_ns: 0.0,
            idle_ns: 0,
            idle_since: Some(now),
            replenish_at: now.saturating_add(pace.period_ns),
        }
    }

    /// A tenant arrives, or its share changes. Shares are above 0; who admits tenants keeps their sum below 100 %.
    pub fn set(&mut self, tenant: Key, share_percent: Option<f64>) {
        let place = self.next_place;
        let known = self.tenants.entry(tenant).or_insert(Tenant {
            share_percent,
            weight: 0.0,
            commands: 0,
            present: false,
            place,
            line: None,
            budget_ns: 0.0,
            used_ns: 0.0,
        });
        known.share_percent = share_percent;
        self.next_place += u64::from(known.place == place);
        self.weigh();
    }

    /// A tenant leaves, with its commands.
    pub fn remove(&mut self, tenant: Key) {
        if let Some(Tenant { line: Some(line), place, .. }) = self.tenants.remove(&tenant) {
            self.lines[line as usize].remove(&place);
        }
        self.queue.retain(|(of, _)| *of != tenant);
        self.running = self.running.filter(|running| *running != tenant);
        self.last = self.last.filter(|last| *last != tenant);
        self.weigh();
    }

    /// A tenant has submitted commands.
    pub fn submitted(&mut self, tenant: Key, commands: u64, now: u64) {
        self.replenish(now);
        let Some(known) = self.tenants.get_mut(&tenant).filter(|_| commands > 0) else { return };
        known.commands += commands;
        if !std::mem::replace(&mut known.present, true) {
            self.weights += known.weight;
        }
        match self.queue.back_mut() {
            _ if self.rule != Rule::Fifo => {}
            Some((of, count)) if *of == tenant => *count += commands,
            _ => self.queue.push_back((tenant, commands)),
        }
        self.align(tenant);
    }

    /// The command on the device has ended; `ran_ns` is what the tenant has used of the device since it was
    /// last told. `commands` is 1, or more where some have ended before anybody looked.
    pub fn completed(&mut self, tenant: Key, commands: u64, ran_ns: u64, now: u64) {
        self.discount(tenant, commands);
        self.ended(tenant, ran_ns, now);
    }

    /// Commands of a tenant that were not on the device will not run.
    pub fn withdrawn(&mut self, tenant: Key, commands: u64) {
        self.discount(tenant, commands);
        self.align(tenant);
    }

    fn discount(&mut self, tenant: Key, commands: u64) {
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.commands = known.commands.saturating_sub(commands);
        }
        let mut left = commands;
        while left > 0
            && let Some(at) = self.queue.iter().position(|(of, _)| *of == tenant)
        {
            let count = &mut self.queue[at].1;
            let taken = left.min(*count);
            left -= taken;
            *count -= taken;
            if *count == 0 {
                self.queue.remove(at);
            }
        }
    }

    /// Decides. After `Run` a command of that tenant is on the device.
    pub fn next(&mut self, now: u64) -> Next {
        self.replenish(now);
        if self.running.is_some() {
            return Next::Later;
        }
        let Some(next) = self.first() else {
            self.idle_since.get_or_insert(now);
            return Next::Later;
        };
        let next = match self.light_user(next) {
            Some(last) if self.is_ready(last) => last,
            Some(_) => match *self.kept_until.get_or_insert(now.saturating_add(self.pace.wait_ns)) {
                until if now < until => return Next::At(until),
                _ => next,
            },
            None => next,
        };
        self.idle_ns += self.idle_since.take().map_or(0, |since| now.saturating_sub(since));
        self.kept_until = None;
        self.last = Some(next);
        self.running = Some(next);
        Next::Run(next)
    }

    /// Whose command is on the device.
    #[must_use]
    pub fn running(&self) -> Option<Key> {
        self.running
    }

    /// Who shares.
    pub fn tenants(&self) -> impl Iterator<Item = Key> {
        self.tenants.keys().copied()
    }

    /// Commands of a tenant that have not ended.
    #[must_use]
    pub fn commands(&self, tenant: Key) -> u64 {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.commands)
    }

    fn is_ready(&self, tenant: Key) -> bool {
        self.tenants.get(&tenant).is_some_and(|tenant| tenant.line.is_some())
    }

    /// Who is next, if nobody is waited for.
    fn first(&self) -> Option<Key> {
        let [within, over] = &self.lines;
        match self.rule {
            Rule::Fifo => self.queue.front().map(|(of, _)| *of),
            Rule::Credit => {
                let heads = [within, over].map(BTreeMap::first_key_value);
                heads.into_iter().flatten().min().map(|(_, key)| *key)
            }
            Rule::Band => {
                let under = within.values().find(|key| !self.is_over_its_part(**key));
                under.or_else(|| within.values().next()).or_else(|| over.values().next()).copied()
            }
        }
    }

    /// Who ran last, if the device should rather be his than `next`'s, BAND.
    fn light_user(&self, next: Key) -> Option<Key> {
        let last = self.last.filter(|last| self.rule == Rule::Band && *last != next)?;
        let [heavy, light] = [next, last].map(|key| self.tenants.get(&key));
        let (heavy, light) = (heavy?, light?);
        let used_more = heavy.used_ns / heavy.weight > light.used_ns / light.weight;
        let over = self.is_over_its_part(next) && !self.is_over_its_part(last) && used_more;
        let owes_more = heavy.budget_ns < 0.0 && heavy.budget_ns / heavy.weight < light.budget_ns / light.weight;
        (over || owes_more).then_some(last)
    }

    /// Whether a tenant has used more than its part since the last replenishment.
    fn is_over_its_part(&self, tenant: Key) -> bool {
        let Some(tenant) = self.tenants.get(&tenant) else { return true };
        let part = tenant.weight / self.weights.max(tenant.weight);
        self.used_ns == 0.0 || tenant.used_ns > part * self.previous_ns || tenant.used_ns > part * self.used_ns
    }

    /// The device is free again.
    fn ended(&mut self, tenant: Key, ran_ns: u64, now: u64) {
        self.running = self.running.filter(|running| *running != tenant);
        self.used_ns += ran_ns as f64;
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.budget_ns -= ran_ns as f64;
            known.used_ns += ran_ns as f64;
        }
        let overdrawn = self.tenants.get(&tenant).is_some_and(|known| known.budget_ns < 0.0);
        if overdrawn && (self.rule == Rule::Credit || self.is_over_its_part(tenant)) {
            self.move_to_end(tenant);
        }
        self.align(tenant);
        self.replenish(now);
    }

    fn move_to_end(&mut self, tenant: Key) {
        let Some(known) = self.tenants.get_mut(&tenant) else { return };
        if let Some(line) = known.line.take() {
            self.lines[line as usize].remove(&known.place);
        }
        known.place = self.next_place;
        self.next_place += 1;
    }

    /// Puts a tenant into the line where it belongs.
    fn align(&mut self, tenant: Key) {
        let Some(known) = self.tenants.get_mut(&tenant) else { return };
        let line = known.line();
        if line != known.line {
            if let Some(before) = known.line {
                self.lines[before as usize].remove(&known.place);
            }
            if let Some(line) = line {
                self.lines[line as usize].insert(known.place, tenant);
            }
            known.line = line;
        }
    }

    /// Weighs tenants anew.
    fn weigh(&mut self) {
        let rest = rest(self.tenants.values().map(|tenant| tenant.share_percent));
        self.weights = 0.0;
        for tenant in self.tenants.values_mut() {
            tenant.weight = tenant.share_percent.unwrap_or(rest);
            self.weights += if tenant.present { tenant.weight } else { 0.0 };
        }
    }

    /// Divides the time since the last replenishment, if a period is over. A command is not interrupted for it.
    fn replenish(&mut self, now: u64) {
        if now < self.replenish_at || self.running.is_some() {
            return;
        }
        self.replenish_at = now.saturating_add(self.pace.period_ns);
        if let Some(since) = &mut self.idle_since {
            self.idle_ns += now.saturating_sub(std::mem::replace(since, now));
        }
        self.previous_ns = self.used_ns + self.idle_ns as f64;
        let dropped: f64 = self.tenants.values_mut().filter(|tenant| !tenant.present).map(Tenant::drop_credit).sum();
        let (weights, divided) = (self.weights, self.used_ns + dropped);
        (self.used_ns, self.idle_ns, self.weights) = (0.0, 0, 0.0);
        let (period, debt) = (self.pace.period_ns as f64, self.pace.debt_ns as f64);
        for tenant in self.tenants.values_mut() {
            let part = tenant.weight / weights.max(tenant.weight);
            tenant.budget_ns = if tenant.present {
                (tenant.budget_ns + part * divided).clamp(-debt, (1.0 + part) * period)
            } else {
                (tenant.budget_ns + part * self.previous_ns).min(0.0)
            };
            tenant.used_ns = 0.0;
            tenant.present = tenant.commands > 0;
            self.weights += if tenant.present { tenant.weight } else { 0.0 };
        }
        let tenants: Vec<Key> = self.tenants.keys().copied().collect();
        tenants.into_iter().for_each(|tenant| self.align(tenant));
    }
}
