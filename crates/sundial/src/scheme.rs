//! How a virtual GPU is made, and profiles of such, as people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tenancy::Terms;
use vgpu::TrackedPages;

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

/// How stores into a guest's page tables are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Trap {
    /// They need not be: the guest's driver announces changes, as NVIDIA's hardware asks for (TLB invalidates).
    #[default]
    Announced,
    /// BAR1 is not mapped, so that each store is a message, and followed at once: strict shadowing.
    Bar,
    /// They are not: all tables are compared each time that work is submitted, relaxed shadowing with full rebuilding.
    Snapshot,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Trap::Announced => "announced",
            Trap::Bar => "bar",
            Trap::Snapshot => "snapshot",
        })
    }
}

impl From<Trap> for vgpu::Trap {
    fn from(trap: Trap) -> vgpu::Trap {
        match trap {
            Trap::Announced => vgpu::Trap::Announced,
            Trap::Bar => vgpu::Trap::Bar,
            Trap::Snapshot => vgpu::Trap::Snapshot,
        }
    }
}

/// Pages of a guest's tables of which stores are noticed or looked for, as `vgpu list --json` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct TablePages {
    /// Stores into them trap.
    pub(crate) pages_strict: u64,
    /// They are compared when work is submitted.
    pub(crate) pages_relaxed: u64,
    /// Stores into directories that trapped.
    pub(crate) directory_traps: u64,
    /// Stores into tables of pages that trapped.
    pub(crate) table_traps: u64,
    /// Pages that were relaxed because of a store.
    pub(crate) pages_released: u64,
    /// Pages that were compared since something was stored there.
    pub(crate) rebuilds_written: u64,
    /// Pages that were compared although nothing was known of a store.
    pub(crate) rebuilds_unknown: u64,
    /// Those of both in which nothing had changed.
    pub(crate) rebuilds_in_vain: u64,
    /// Entries that had changed.
    pub(crate) entries_rebuilt: u64,
}

impl From<TrackedPages> for TablePages {
    fn from(TrackedPages { strict, relaxed, counts }: TrackedPages) -> TablePages {
        TablePages {
            pages_strict: strict,
            pages_relaxed: relaxed,
            directory_traps: counts.directory_traps,
            table_traps: counts.table_traps,
            pages_released: counts.released,
            rebuilds_written: counts.rebuilt_written,
            rebuilds_unknown: counts.rebuilt_unknown,
            rebuilds_in_vain: counts.rebuilt_in_vain,
            entries_rebuilt: counts.entries_rebuilt,
        }
    }
}

/// Terms with a name, for those that say nothing else: `[profiles.<name>]` in `config.toml`.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Profile {
    pub(crate) mem: Option<Size>,
    pub(crate) host_mem: Option<Size>,
    pub(crate) share: Option<Percent>,
    /// For virtual GPUs; sessions have none.
    pub(crate) scheme: Option<Scheme>,
    /// The same, in scheme fv.
    pub(crate) trap: Option<Trap>,
}

impl Profile {
    /// What `terms` leave open is as in this profile.
    pub(crate) fn fill(&self, terms: &mut Terms) {
        terms.memory_bytes = terms.memory_bytes.or(self.mem.map(|size| size.0));
        terms.host_bytes = terms.host_bytes.or(self.host_mem.map(|size| size.0));
        terms.share_percent = terms.share_percent.or(self.share.map(|share| share.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_counts_more_than_the_profile() {
        let profile = Profile { mem: Some(Size(1 << 30)), share: Some(Percent(30.0)), ..Profile::default() };
        let mut terms = Terms { name: "a".into(), memory_bytes: Some(1 << 20), host_bytes: None, share_percent: None };
        profile.fill(&mut terms);
        assert_eq!((terms.memory_bytes, terms.host_bytes, terms.share_percent), (Some(1 << 20), None, Some(30.0)));
        for text in ["fv-naive", "fv", "pv", "pass-through"] {
            let scheme: Scheme = text.parse().unwrap();
            assert_eq!(scheme.to_string(), text);
            assert_eq!(serde_json::to_string(&scheme).unwrap(), format!("\"{text}\""));
        }
    }
}
