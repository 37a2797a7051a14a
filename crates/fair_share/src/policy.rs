//! The policies, by name.

use std::fmt;
use std::str::FromStr;

use crate::Rule;

/// How GPU time is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Weighted fair: the best that the device can do.
    #[default]
    Default,
    /// Commands in the order of their submission.
    Fifo,
    /// Whoever has credit stays ahead.
    Credit,
    /// As CREDIT, and the device is kept a moment for those who have used little.
    Band,
}

/// How a policy is enforced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// All run, in slices whose lengths [`crate::FairShare`] says.
    Slices,
    /// One runs at a time, as [`crate::Turns`] says by a rule.
    Turns(Rule),
}

/// Not the name of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPolicy;

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Default, Policy::Fifo, Policy::Credit, Policy::Band];

    /// How it is enforced on a device that can, or cannot, preempt what runs. Where it cannot, BAND is the default: of the three
    /// it is the one that is fair beside long commands.
    #[must_use]
    pub const fn means(self, preempts: bool) -> Means {
        match self {
            Policy::Default if preempts => Means::Slices,
            Policy::Default | Policy::Band => Means::Turns(Rule::Band),
            Policy::Fifo => Means::Turns(Rule::Fifo),
            Policy::Credit => Means::Turns(Rule::Credit),
        }
    }

    /// Its name, as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Default => "default",
            Policy::Fifo => "fifo",
            Policy::Credit => "credit",
            Policy::Band => "band",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name).ok_or(UnknownPolicy)
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scheduler is one of default, fifo, credit, band")
    }
}

impl std::error::Error for UnknownPolicy {}
