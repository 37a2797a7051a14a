//! Quotas of GPU time: `10h/day` is ten hours at once, and what was used is forgotten evenly, ten hours in a day.
//!
//! ```text
//!   used ▲            ╱│ at the limit: held back
//!        │   ╱╲______╱ │________
//!        │__╱                   ╲____   forgotten: the quota in each of its periods
//!        └──────────────────────────► time that the machine is up
//! ```
//! Time is that since the machine started ([`Now`]): no date gives or takes any, however it jumps. While the machine is off, nothing is
//! forgotten.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// So much GPU time in so much time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quota {
    amount_ns: u64,
    period_ns: u64,
}

const HOUR_NS: u64 = 3_600_000_000_000;

impl Quota {
    /// By how much it is in the long run.
    pub(crate) fn is_more_than(&self, other: &Quota) -> bool {
        let rate = |a: &Quota, b: &Quota| u128::from(a.amount_ns) * u128::from(b.period_ns);
        rate(self, other) > rate(other, self)
    }
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Quota, String> {
        let bad = || format!("`{text}` is no quota; write it as 10h/day, 30m/hour or 100h/week");
        let (amount, period) = text.split_once('/').ok_or_else(bad)?;
        let period_ns = match period.trim() {
            "hour" => HOUR_NS,
            "day" => 24 * HOUR_NS,
            "week" => 7 * 24 * HOUR_NS,
            _ => return Err(bad()),
        };
        let amount = humantime::parse_duration(amount.trim()).map_err(|_| bad())?;
        let amount_ns = u64::try_from(amount.as_nanos()).map_err(|_| bad())?;
        if amount_ns == 0 {
            return Err(format!("`{text}` is no GPU time at all; to keep somebody out, say `allow = false`"));
        }
        Ok(Quota { amount_ns, period_ns })
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = match self.period_ns / HOUR_NS {
            1 => "hour",
            24 => "day",
            _ => "week",
        };
        let amount: String =
            humantime::format_duration(Duration::from_nanos(self.amount_ns)).to_string().replace(' ', "");
        write!(f, "{amount}/{period}")
    }
}

crate::size::by_text!(Quota);

/// Whose GPU time it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) enum Payer {
    User(u32),
    /// All members of a group together.
    Group(u32),
    /// Those tenants of a user that have a profile.
    Profile {
        user: u32,
        name: String,
    },
}

/// Who uses GPU time: a user, by tenants that have this profile, or none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Spender {
    pub(crate) user: u32,
    pub(crate) profile: Option<String>,
}

/// A moment: time that the machine has been up, since which start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Now {
    pub(crate) boot: String,
    pub(crate) up_ns: u64,
}

impl Now {
    /// This one.
    pub(crate) fn get() -> Now {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let up_ns = u64::try_from(up.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
        Now { boot: boot.trim().to_owned(), up_ns: up_ns.saturating_add(u64::try_from(up.tv_nsec).unwrap_or(0)) }
    }

    /// Time that has gone by since, as far as the machine was up, ns.
    fn since(&self, before: &Now) -> u64 {
        if self.boot == before.boot { self.up_ns.saturating_sub(before.up_ns) } else { self.up_ns }
    }
}

/// What was used and not forgotten at a moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Level {
    ns: u64,
    at: Now,
}

impl Level {
    /// Forgets what is to be forgotten until now.
    fn advance(&mut self, quota: Quota, now: &Now) {
        let forgotten = u128::from(now.since(&self.at)) * u128::from(quota.amount_ns) / u128::from(quota.period_ns);
        self.ns = self.ns.saturating_sub(u64::try_from(forgotten).unwrap_or(u64::MAX));
        self.at = now.clone();
    }
}

/// Who has used how much.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Accounts {
    #[serde(with = "pairs")]
    levels: BTreeMap<Payer, Level>,
}

/// Keys of JSON are text, and these are not.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Level, Payer};

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<Payer, Level>, to: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Payer, Level>, D::Error> {
        Ok(Vec::<(Payer, Level)>::deserialize(from)?.into_iter().collect())
    }
}

impl Accounts {
    /// Adds GPU time that somebody has had.
    pub(crate) fn add(&mut self, payer: Payer, quota: Quota, ns: u64, now: &Now) {
        let level = self.levels.entry(payer).or_insert_with(|| Level { ns: 0, at: now.clone() });
        level.advance(quota, now);
        level.ns = level.ns.saturating_add(ns);
    }

    /// Adds what was kept before these were begun.
    pub(crate) fn merge(&mut self, before: Accounts) {
        for (payer, level) in before.levels {
            let ours = self.levels.remove(&payer).map_or(0, |ours| ours.ns);
            self.levels.insert(payer, Level { ns: level.ns.saturating_add(ours), ..level });
        }
    }

    /// If somebody has used all that he may: after how much time he has some again.
    pub(crate) fn exhausted(&mut self, payer: &Payer, quota: Quota, now: &Now) -> Option<Duration> {
        let level = self.levels.get_mut(payer)?;
        level.advance(quota, now);
        let over = level.ns.checked_sub(quota.amount_ns)?;
        let ns = u128::from(over + 1) * u128::from(quota.period_ns) / u128::from(quota.amount_ns);
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADA: Payer = Payer::User(1);

    fn at(boot: &str, seconds: u64) -> Now {
        Now { boot: boot.into(), up_ns: seconds * 1_000_000_000 }
    }

    #[test]
    fn quotas_are_written_as_people_do() {
        for (text, amount, period) in
            [("10h/day", 10 * HOUR_NS, 24), ("30m/hour", HOUR_NS / 2, 1), ("100h/week", 100 * HOUR_NS, 168)]
        {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(quota, Quota { amount_ns: amount, period_ns: period * HOUR_NS });
            assert_eq!(quota.to_string().parse(), Ok(quota), "{text}");
        }
        for bad in ["", "10h", "10/day", "10h/year", "h/day", "0s/day", "-1h/day"] {
            assert!(bad.parse::<Quota>().is_err(), "{bad}");
        }
        let more = |a: &str, b: &str| a.parse::<Quota>().unwrap().is_more_than(&b.parse().unwrap());
        assert!(more("2h/day", "10h/week") && !more("10h/week", "2h/day") && !more("1h/day", "7h/week"));
    }

    #[test]
    fn what_was_used_is_forgotten_evenly() {
        let quota: Quota = "1h/day".parse().unwrap();
        let mut accounts = Accounts::default();
        accounts.add(ADA, quota, HOUR_NS - 1, &at("a", 1000));
        assert_eq!(accounts.exhausted(&ADA, quota, &at("a", 1000)), None);
        accounts.add(ADA, quota, 1 + HOUR_NS / 24, &at("a", 1000));
        assert_eq!(accounts.exhausted(&ADA, quota, &at("a", 1000)).unwrap().as_secs(), 3600);
        assert!(accounts.exhausted(&ADA, quota, &at("a", 1000 + 3600)).is_some());
        let text = serde_json::to_string(&accounts).unwrap();
        assert_eq!(serde_json::from_str::<Accounts>(&text).unwrap(), accounts);
        assert_eq!(accounts.exhausted(&ADA, quota, &at("a", 1001 + 3600)), None);
        assert_eq!(accounts.exhausted(&Payer::Group(1), quota, &at("a", 0)), None);
        // What another daemon kept is added, and is as old as it was.
        let mut again = Accounts::default();
        again.add(ADA, quota, 1_000_000_000, &at("a", 9000));
        again.merge(serde_json::from_str(&text).unwrap());
        assert!(again.exhausted(&ADA, quota, &at("a", 1001 + 3600)).is_some(), "a second more than before");
    }

    #[test]
    fn a_machine_that_is_off_forgets_nothing() {
        let quota: Quota = "24h/day".parse().unwrap();
        let mut accounts = Accounts::default();
        accounts.add(ADA, quota, 100_000_000_000, &at("a", 1_000_000));
        accounts.add(ADA, quota, 0, &at("b", 40));
        assert_eq!(accounts.levels[&ADA].ns, 60_000_000_000, "since it has started");
        // A clock that cannot go backwards, and does.
        accounts.add(ADA, quota, 0, &at("b", 30));
        assert_eq!(accounts.levels[&ADA].ns, 60_000_000_000);
    }

    proptest! {
        /// However often it is looked, nobody gets more than the quota at once and what is forgotten meanwhile.
        #[test]
        fn in_the_long_run_it_is_the_quota(steps in proptest::collection::vec((1u64..100_000, 0u64..100_000), 1..60)) {
            let quota: Quota = "1h/day".parse().unwrap();
            let mut accounts = Accounts::default();
            let (mut seconds, mut had) = (0u64, 0u128);
            for (pause, want) in steps {
                seconds += pause;
                let now = at("a", seconds);
                accounts.add(ADA, quota, 0, &now);
                let free = quota.amount_ns.saturating_sub(accounts.levels[&ADA].ns);
                prop_assert_eq!(free == 0, accounts.exhausted(&ADA, quota, &now).is_some());
                let takes = free.min(want * 1_000_000_000);
                accounts.add(ADA, quota, takes, &now);
                had += u128::from(takes);
                // And a nanosecond for each look.
                let most = u128::from(quota.amount_ns) + u128::from(seconds) * 1_000_000_000 / 24 + 60;
                prop_assert!(had <= most, "{} of {}", had, most);
            }
        }
    }
}
