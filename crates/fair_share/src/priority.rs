//! Who goes before whom in what is promised to nobody.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which tenants get the time that nobody was promised: those of the highest priority among who want time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After everybody else's.
    Low,
    /// Who says nothing.
    #[default]
    Normal,
    /// Before everybody else's.
    High,
}

/// Not a priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownPriority;

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// Its name, as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Priority {
    type Err = UnknownPriority;

    fn from_str(name: &str) -> Result<Priority, UnknownPriority> {
        Priority::ALL.into_iter().find(|priority| priority.name() == name).ok_or(UnknownPriority)
    }
}

impl fmt::Display for UnknownPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority is one of low, normal, high")
    }
}

impl std::error::Error for UnknownPriority {}
