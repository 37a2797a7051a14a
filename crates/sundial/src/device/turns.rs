//! Turns: one tenant at a time in the device's runlist, as a policy for commands that cannot be preempted says.
//!
//! What such a policy needs is there on any GPU: the state registers of channels tell whether a tenant has work that waits for
//! nothing but its turn, the counters what has ended and what it took, and a switch of the runlist lets one run and holds the
//! others. So the steering thread looks, as GPUvm's did:
//!
//! ```text
//!            two tenants have had work of late
//!   Free ──────────────────────────────────────► Contest: all are held but one; looks every [`LOOK`]
//!        ◄──────────────────────────────────────          (less often while a long command runs)
//!            for [`FADE`] only one has
//! ```
//! While it is free, everybody is in the runlist, and nothing is looked at that steering does not look at anyway.
//!
//! A command is over when the counters say that one has ended, or the tenant has nothing more that could run. What it has begun
//! between that and our look is stopped, and goes on in its next turn; its time is charged. A command that goes on for longer
//! than [`LONGEST`] is stopped as well, as if it had ended: without that, one endless kernel would be the end of sharing.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use fair_share::{Key, Next, Pace, Rule};
use gpu_driver::Usage;

/// Between two looks while tenants compete. Longer as the command that runs grows longer: this part of its time, at most.
const LOOK: Duration = Duration::from_micros(50);
const LOOK_MOST: Duration = Duration::from_micros(500);
const LOOK_PART: u32 = 32;
/// After so long without work, a tenant does not compete any more.
const FADE: Duration = Duration::from_millis(100);
/// Longest time that a command keeps the device from others.
const LONGEST: Duration = Duration::from_secs(2);

/// A session, or a guest, as turns see it.
pub(super) trait Contender {
    /// Tells it from all others, those that are gone included.
    fn number(&self) -> u64;
    /// Whose it is.
    fn tenant(&self) -> Key;
    /// What it has had of the GPU.
    fn usage(&self) -> Usage;
    /// Whether it has work that waits for nothing but its turn, or does it now.
    fn is_ready(&self) -> bool;
    /// Kernels that it has submitted; as many as ended, if nobody knows.
    fn launched(&self) -> u64;
    /// Lets it run, or holds it.
    fn run(&self, run: bool);
}

/// Those who compete, by tenant.
type Field<'a, C> = BTreeMap<Key, Vec<&'a C>>;

/// The enforcement.
#[derive(Debug, Default)]
pub(super) struct Turns {
    contest: Option<Contest>,
    /// What contenders had had at the last look.
    seen: HashMap<u64, Usage>,
    /// When tenants last had work.
    active: HashMap<Key, Instant>,
}

/// A policy at work.
#[derive(Debug)]
struct Contest {
    rule: Rule,
    policy: fair_share::Turns,
    start: Instant,
    /// Who is not held.
    holder: Option<Key>,
    /// When the command on the device was let run, ns.
    since: u64,
    /// Used and not charged yet, ns.
    owed: HashMap<Key, u64>,
}

impl Turns {
    /// Enforces `rule` until `period` is over or `interrupted`; returns at once, and false, if nobody competes.
    pub(super) fn take<C: Contender>(
        &mut self,
        rule: Rule,
        shares: &HashMap<Key, Option<f64>>,
        contenders: &[C],
        period: Duration,
        interrupted: impl Fn() -> bool,
    ) -> bool {
        let field = field(contenders);
        self.seen.retain(|number, _| contenders.iter().any(|contender| contender.number() == *number));
        if !self.compete(&field) {
            self.release(contenders);
            return false;
        }
        let start = Instant::now();
        let mut contest =
            self.contest.take().filter(|contest| contest.rule == rule).unwrap_or_else(|| Contest::new(rule));
        contest.enlist(shares, &field);
        while start.elapsed() < period && !interrupted() {
            let now = contest.now();
            self.look(&mut contest, &field, now);
            std::thread::sleep(contest.pause(now));
        }
        self.contest = Some(contest);
        true
    }

    /// Lets everybody run.
    pub(super) fn release<C: Contender>(&mut self, contenders: &[C]) {
        self.contest = None;
        contenders.iter().for_each(|contender| contender.run(true));
    }

    /// Whether two tenants have had work of late.
    fn compete<C: Contender>(&mut self, field: &Field<'_, C>) -> bool {
        let now = Instant::now();
        if self.contest.is_none() && field.len() > 1 {
            for (tenant, members) in field {
                let (ended, used) = self.spent(members);
                if ended > 0 || used > 0 || is_ready(members) {
                    self.active.insert(*tenant, now);
                }
            }
        }
        self.active.retain(|tenant, at| field.contains_key(tenant) && now.duration_since(*at) < FADE);
        self.active.len() > 1
    }

    /// What some contenders have had since they were last asked about: commands that have ended, and time.
    fn spent<C: Contender>(&mut self, members: &[&C]) -> (u64, u64) {
        members.iter().fold((0, 0), |(ended, used), member| {
            let now = member.usage();
            let before = self.seen.insert(member.number(), now).unwrap_or(now);
            let commands = |usage: Usage| usage.kernels + usage.copies;
            let more = commands(now).saturating_sub(commands(before));
            (ended + more, used + now.gpu_time_ns.saturating_sub(before.gpu_time_ns))
        })
    }

    /// One look: what has ended, who is next, what is new. In this order: what is submitted after a command's end is not known
    /// yet when the next is chosen.
    fn look<C: Contender>(&mut self, contest: &mut Contest, field: &Field<'_, C>, now: u64) {
        if let Some(running) = contest.policy.running() {
            let members = field.get(&running).map_or(&[][..], Vec::as_slice);
            let ended = self.account(contest, running, members);
            let long = now.saturating_sub(contest.since) > LONGEST.as_nanos() as u64;
            if ended > 0 || long || !is_ready(members) {
                contest.complete(running, ended.max(1), now);
                contest.decide(field, now);
            }
        } else if let Some(holder) = contest.holder
            && let Some(members) = field.get(&holder)
        {
            // The device is kept for it, or nobody wants it: it may have run, and be done.
            let ended = self.account(contest, holder, members);
            if ended > 0 {
                contest.policy.submitted(holder, ended.saturating_sub(contest.policy.commands(holder)), now);
                self.active.insert(holder, Instant::now());
                if contest.decide(field, now) == Some(holder) {
                    contest.complete(holder, ended, now);
                }
            }
        }
        for (tenant, members) in field {
            let wanted = wanted(members);
            let known = contest.policy.commands(*tenant);
            if wanted > 0 {
                self.active.insert(*tenant, Instant::now());
            }
            match contest.policy.running() {
                Some(running) if running == *tenant => {
                    contest.policy.submitted(*tenant, wanted.saturating_sub(known), now);
                }
                _ if wanted < known => contest.policy.withdrawn(*tenant, known - wanted),
                _ => contest.policy.submitted(*tenant, wanted - known, now),
            }
        }
        if contest.policy.running().is_none() {
            contest.decide(field, now);
        }
    }

    /// Notes what a tenant has used; how many commands have ended.
    fn account<C: Contender>(&mut self, contest: &mut Contest, tenant: Key, members: &[&C]) -> u64 {
        let (ended, used) = self.spent(members);
        *contest.owed.entry(tenant).or_default() += used;
        ended
    }
}

impl Contest {
    fn new(rule: Rule) -> Contest {
        Contest {
            rule,
            policy: fair_share::Turns::new(rule, Pace::default(), 0),
            start: Instant::now(),
            holder: None,
            since: 0,
            owed: HashMap::new(),
        }
    }

    /// Time of the contest, ns.
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Those who have come, gone, or changed; all are held but one.
    fn enlist<C: Contender>(&mut self, shares: &HashMap<Key, Option<f64>>, field: &Field<'_, C>) {
        let gone: Vec<Key> = self.policy.tenants().filter(|tenant| !field.contains_key(tenant)).collect();
        for tenant in gone {
            self.policy.remove(tenant);
            self.owed.remove(&tenant);
        }
        self.holder = self.holder.filter(|holder| field.contains_key(holder));
        for (tenant, members) in field {
            self.policy.set(*tenant, shares.get(tenant).copied().flatten());
            let run = self.holder == Some(*tenant);
            members.iter().for_each(|member| member.run(run));
        }
    }

    fn complete(&mut self, tenant: Key, commands: u64, now: u64) {
        let used = self.owed.remove(&tenant).unwrap_or(0);
        self.policy.completed(tenant, commands, used, now);
    }

    /// Asks whose command is next, and lets it run: who that is.
    fn decide<C: Contender>(&mut self, field: &Field<'_, C>, now: u64) -> Option<Key> {
        let Next::Run(next) = self.policy.next(now) else { return None };
        self.since = now;
        if self.holder != Some(next) {
            let members = |tenant: Option<Key>| tenant.and_then(|tenant| field.get(&tenant)).into_iter().flatten();
            members(self.holder).for_each(|member| member.run(false));
            members(Some(next)).for_each(|member| member.run(true));
            self.holder = Some(next);
        }
        Some(next)
    }

    /// Until the next look.
    fn pause(&self, now: u64) -> Duration {
        let runs = Duration::from_nanos(self.policy.running().map_or(0, |_| now.saturating_sub(self.since)));
        (runs / LOOK_PART).clamp(LOOK, LOOK_MOST)
    }
}

fn field<C: Contender>(contenders: &[C]) -> Field<'_, C> {
    let mut field = Field::new();
    for contender in contenders {
        field.entry(contender.tenant()).or_default().push(contender);
    }
    field
}

fn is_ready<C: Contender>(members: &[&C]) -> bool {
    members.iter().any(|member| member.is_ready())
}

/// Commands that a tenant wants to run: none, if none can. What lies behind the first is known of kernels only, and if
/// somebody counts them.
fn wanted<C: Contender>(members: &[&C]) -> u64 {
    if !is_ready(members) {
        return 0;
    }
    let behind = |member: &&C| {
        let ended = member.usage().kernels;
        member.launched().saturating_sub(ended)
    };
    members.iter().map(behind).sum::<u64>().max(1)
}

#[cfg(test)]
mod tests;
