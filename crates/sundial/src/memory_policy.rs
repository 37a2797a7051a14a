//! What becomes of GPU memory where limits together exceed it: `[memory]` of `config.toml`, and what `run` says of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenancy::grant::{self, Rules, UnknownOrder};

/// `[memory]`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MemoryPolicy {
    /// Limits of tenants may together exceed the GPU.
    pub(crate) overcommit: bool,
    /// For tenants that do not say themselves.
    pub(crate) on_full: OnFull,
    pub(crate) order: Order,
    /// Nobody waits for longer, whatever it says itself.
    pub(crate) longest_wait: Wait,
    /// Whether requests wait that could leave tenants waiting for each other for ever. Off, they do so: for tests.
    pub(crate) avoid_deadlock: bool,
}

impl Default for MemoryPolicy {
    fn default() -> MemoryPolicy {
        MemoryPolicy {
            overcommit: true,
            on_full: OnFull::default(),
            order: Order::default(),
            longest_wait: Wait::default(),
            avoid_deadlock: true,
        }
    }
}

impl MemoryPolicy {
    /// What is decided by.
    pub(crate) fn rules(&self) -> MemoryRules {
        MemoryRules { order: self.order, longest_wait: self.longest_wait, avoid_deadlock: self.avoid_deadlock }
    }
}

/// The part of it that the device process needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MemoryRules {
    order: Order,
    longest_wait: Wait,
    avoid_deadlock: bool,
}

impl MemoryRules {
    /// The longest that anybody waits.
    pub(crate) fn longest_wait(self) -> Duration {
        self.longest_wait.0
    }

    /// As the broker takes it.
    pub(crate) fn rules(self) -> Rules {
        Rules { order: self.order.0, avoid_deadlock: self.avoid_deadlock, seed: u64::from(std::process::id()) }
    }
}

/// As one word, for the device process's command line.
impl fmt::Display for MemoryRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.order, self.longest_wait, if self.avoid_deadlock { "" } else { "/deadlocks" })
    }
}

impl FromStr for MemoryRules {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryRules, String> {
        let (rest, avoid_deadlock) = text.strip_suffix("/deadlocks").map_or((text, true), |rest| (rest, false));
        let (order, longest_wait) = rest.split_once('/').ok_or("an order, and the longest wait: first-come/10m")?;
        let order = order.parse().map_err(|error: UnknownOrder| error.to_string())?;
        Ok(MemoryRules { order, longest_wait: longest_wait.parse()?, avoid_deadlock })
    }
}

/// A time to wait: `30s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wait(Duration);

impl Default for Wait {
    /// Long enough for a job before it to end, and not for ever: who waits holds others off.
    fn default() -> Wait {
        Wait(Duration::from_secs(600))
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Wait, String> {
        duration(text).map(Wait).ok_or_else(|| format!("`{text}` is no time, as 30s or 10m"))
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

/// What becomes of a request that does not fit: `fail`, `wait`, `wait:30s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OnFull(pub(crate) grant::OnFull);

impl FromStr for OnFull {
    type Err = String;

    fn from_str(text: &str) -> Result<OnFull, String> {
        let bad = || format!("`{text}` is neither fail, wait nor wait:<time>, as wait:30s");
        Ok(OnFull(match text.split_once(':') {
            None if text == "fail" => grant::OnFull::Fail,
            None if text == "wait" => grant::OnFull::Wait(None),
            Some(("wait", time)) => grant::OnFull::Wait(Some(duration(time).ok_or_else(bad)?)),
            _ => return Err(bad()),
        }))
    }
}

impl fmt::Display for OnFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            grant::OnFull::Fail => f.write_str("fail"),
            grant::OnFull::Wait(None) => f.write_str("wait"),
            grant::OnFull::Wait(Some(time)) => write!(f, "wait:{}ms", time.as_millis()),
        }
    }
}

/// `500ms`, `30s`, `5m`, `2h`, `90`: seconds if nothing is said.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ms).map(Duration::from_millis)
}

/// Who goes next: `first-come`, `best-fit`, `recent-use`, `random`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Order(pub(crate) grant::Order);

impl FromStr for Order {
    type Err = UnknownOrder;

    fn from_str(text: &str) -> Result<Order, UnknownOrder> {
        text.parse().map(Order)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

crate::size::by_text!(OnFull, Order, Wait);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_orders_and_rules() {
        for (text, time) in [("wait:30s", 30_000), ("wait:90", 90_000), ("wait:5m", 300_000), ("wait:250ms", 250)] {
            let wait = OnFull(grant::OnFull::Wait(Some(Duration::from_millis(time))));
            assert_eq!(text.parse(), Ok(wait), "{text}");
            assert_eq!(wait.to_string().parse(), Ok(wait));
        }
        for text in ["fail", "wait"] {
            assert_eq!(text.parse::<OnFull>().map(|it| it.to_string()).as_deref(), Ok(text));
        }
        for bad in ["", "waits", "wait:", "wait:x", "wait:5d", "fail:3s", "wait:-1s"] {
            assert!(bad.parse::<OnFull>().is_err(), "{bad}");
        }
        for text in ["first-come/600000ms", "random/250ms/deadlocks"] {
            assert_eq!(text.parse::<MemoryRules>().map(|it| it.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(MemoryPolicy::default().rules().to_string().parse(), Ok(MemoryPolicy::default().rules()));
        for bad in ["first-come", "last-come/1s", "first-come/ever", "/1s"] {
            assert!(bad.parse::<MemoryRules>().is_err(), "{bad}");
        }
    }
}
