//! How a virtual GPU is made, and profiles of such, as people write them.

use std::fmt;
use std::str::FromStr;

use fair_share::Priority;
use serde::{Deserialize, Serialize};
use tenancy::Terms;

use crate::memory_policy::OnFull;
use crate::shadowing::{Rebuild, Shadow, Trap, Wish};
use crate::size::{Percent, Size};

/// GPUvm's schemes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheme {
    /// Full virtualization as it comes: every access to a BAR is trapped, all page tables are scanned at each invalidate.
    FvNaive,
    /// Full virtualization: the guest maps its memory, and page tables are followed where they changed, when they are used.
    #[default]
    Fv,
    /// Para-virtualization: the guest's driver says what it writes into page tables by hypercalls.
    Pv,
    /// The whole device for one guest, and nobody else on it.
    PassThrough,
}

impl Scheme {
    /// The mediator's name for it; `None` if there is nothing to mediate.
    pub(crate) fn mediated(self) -> Option<vgpu::Scheme> {
        match self {
            Scheme::FvNaive => Some(vgpu::Scheme::FvNaive),
            Scheme::Fv => Some(vgpu::Scheme::Fv),
            Scheme::Pv => Some(vgpu::Scheme::Pv),
            Scheme::PassThrough => None,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scheme::FvNaive => "fv-naive",
            Scheme::Fv => "fv",
            Scheme::Pv => "pv",
            Scheme::PassThrough => "pass-through",
        })
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheme, String> {
        clap::ValueEnum::from_str(text, false)
    }
}

/// Terms with a name, for those that say nothing else: `[profiles.<name>]` in `config.toml`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) mem: Option<Size>,
    pub(crate) host_mem: Option<Size>,
    pub(crate) share: Option<Percent>,
    pub(crate) on_full: Option<OnFull>,
    pub(crate) priority: Option<Priority>,
    /// For virtual GPUs; sessions have none.
    pub(crate) scheme: Option<Scheme>,
    /// The same, in scheme fv.
    pub(crate) trap: Option<Trap>,
    pub(crate) shadow: Option<Shadow>,
    pub(crate) rebuild: Option<Rebuild>,
}

impl Profile {
    /// What `terms` leave open is as in this profile.
    pub(crate) fn fill(&self, terms: &mut Terms) {
        terms.memory_bytes = terms.memory_bytes.or(self.mem.map(|size| size.0));
        terms.host_bytes = terms.host_bytes.or(self.host_mem.map(|size| size.0));
        terms.share_percent = terms.share_percent.or(self.share.map(|share| share.0));
        terms.on_full = terms.on_full.or(self.on_full.map(|on_full| on_full.0));
        terms.priority = terms.priority.or(self.priority);
    }

    /// How page tables are shadowed.
    pub(crate) fn shadowing(&self) -> Wish {
        Wish { trap: self.trap, shadow: self.shadow, rebuild: self.rebuild }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_counts_more_than_the_profile() {
        let profile = Profile {
            mem: Some(Size(1 << 30)),
            share: Some(Percent(30.0)),
            priority: Some(Priority::High),
            ..Profile::default()
        };
        let mut terms = Terms {
            name: "a".into(),
            memory_bytes: Some(1 << 20),
            host_bytes: None,
            share_percent: None,
            on_full: None,
            priority: None,
        };
        profile.fill(&mut terms);
        assert_eq!((terms.memory_bytes, terms.host_bytes, terms.share_percent), (Some(1 << 20), None, Some(30.0)));
        assert_eq!(terms.priority, Some(Priority::High));
        terms.priority = Some(Priority::Low);
        profile.fill(&mut terms);
        assert_eq!(terms.priority, Some(Priority::Low));
        for text in ["fv-naive", "fv", "pv", "pass-through"] {
            let scheme: Scheme = text.parse().unwrap();
            assert_eq!(scheme.to_string(), text);
            assert_eq!(serde_json::to_string(&scheme).unwrap(), format!("\"{text}\""));
        }
    }
}
