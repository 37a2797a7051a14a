//! How a virtual GPU is made, and profiles of such, as people write them.

use std::fmt;
use std::str::FromStr;

use gmmu::Policy;
use serde::{Deserialize, Serialize};
use tenancy::Terms;
use vgpu::{Shadowed, TrackedPages};

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

/// gHyvi's ways of following a guest's page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shadow {
    /// Every store into a page table traps, and is followed at once.
    Strict,
    /// Stores are found by comparing when work is submitted.
    Relaxed,
    /// Each page of tables in the way that is cheaper.
    #[default]
    Hybrid,
}

/// Which pages of tables are compared when work is submitted: `full`, `static:N`, `dynamic` or `segmented`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Rebuild(pub(crate) gmmu::Rebuild);

impl fmt::Display for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            gmmu::Rebuild::Full => f.pad("full"),
            gmmu::Rebuild::Static(pages) => f.pad(&format!("static:{pages}")),
            gmmu::Rebuild::Dynamic => f.pad("dynamic"),
            gmmu::Rebuild::Segmented => f.pad("segmented"),
        }
    }
}

impl From<Rebuild> for String {
    fn from(rebuild: Rebuild) -> String {
        rebuild.to_string()
    }
}

impl TryFrom<String> for Rebuild {
    type Error = String;

    fn try_from(text: String) -> Result<Rebuild, String> {
        text.parse()
    }
}

impl FromStr for Rebuild {
    type Err = String;

    fn from_str(text: &str) -> Result<Rebuild, String> {
        let pages = text.strip_prefix("static:").and_then(|pages| pages.parse().ok());
        Ok(Rebuild(match (text, pages) {
            ("full", _) => gmmu::Rebuild::Full,
            ("dynamic", _) => gmmu::Rebuild::Dynamic,
            ("segmented", _) => gmmu::Rebuild::Segmented,
            (_, Some(pages)) => gmmu::Rebuild::Static(pages),
            _ => return Err("full, static:N (a number of pages, as static:200), dynamic or segmented".into()),
        }))
    }
}

/// How stores into a guest's page tables are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Trap {
    /// They need not be: the guest's driver announces changes, as NVIDIA's hardware asks for (TLB invalidates).
    Announced,
    /// BAR1 is not mapped, so that each store is a message.
    Bar,
    /// They are not: all tables are compared each time that work is submitted.
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

/// How a guest's page tables are to be followed; what is not said is as usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::Args)]
pub(crate) struct ShadowWish {
    /// How page tables are followed, in scheme fv [default: hybrid].
    #[arg(long)]
    pub(crate) shadow: Option<Shadow>,
    /// Which pages of tables are compared when work is submitted: full, static:N, dynamic or segmented [default: segmented].
    #[arg(long)]
    pub(crate) rebuild: Option<Rebuild>,
    /// How stores into page tables are noticed, from the next guest on [default: strict: bar; relaxed: snapshot; hybrid:
    /// announced].
    #[arg(long)]
    pub(crate) trap: Option<Trap>,
}

impl ShadowWish {
    /// What is not said is as `other` has it.
    pub(crate) fn or(self, other: ShadowWish) -> ShadowWish {
        ShadowWish {
            shadow: self.shadow.or(other.shadow),
            rebuild: self.rebuild.or(other.rebuild),
            trap: self.trap.or(other.trap),
        }
    }
}

/// How a guest's page tables are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(crate) struct Shadowing {
    pub(crate) shadow: Shadow,
    pub(crate) rebuild: Rebuild,
    pub(crate) trap: Trap,
}

impl ShadowWish {
    /// With what is usual.
    ///
    /// # Errors
    /// A trap that cannot do it.
    pub(crate) fn settle(self) -> Result<Shadowing, String> {
        let shadow = self.shadow.unwrap_or_default();
        let usual = match shadow {
            Shadow::Strict => Trap::Bar,
            Shadow::Relaxed => Trap::Snapshot,
            Shadow::Hybrid => Trap::Announced,
        };
        let trap = self.trap.unwrap_or(usual);
        match (shadow, trap) {
            (Shadow::Strict, Trap::Announced | Trap::Snapshot) => Err(format!(
                "with --shadow strict each store has to trap, and with --trap {trap} none does: --trap bar"
            )),
            (Shadow::Relaxed, Trap::Announced) => Err(
                "with --trap announced nothing is compared that is not announced: --trap snapshot, or --shadow hybrid"
                    .into(),
            ),
            _ => Ok(Shadowing { shadow, rebuild: self.rebuild.unwrap_or_default(), trap }),
        }
    }
}

impl From<Shadowing> for Shadowed {
    fn from(Shadowing { shadow, rebuild, trap }: Shadowing) -> Shadowed {
        let shadowing = match shadow {
            Shadow::Strict => gmmu::Shadowing::Strict,
            Shadow::Relaxed => gmmu::Shadowing::Relaxed,
            Shadow::Hybrid => gmmu::Shadowing::Hybrid,
        };
        let trap = match trap {
            Trap::Announced => vgpu::Trap::Announced,
            Trap::Bar => vgpu::Trap::Bar,
            Trap::Snapshot => vgpu::Trap::Snapshot,
        };
        Shadowed { policy: Policy { shadowing, rebuild: rebuild.0 }, trap }
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
    /// The same, and how their page tables are followed.
    pub(crate) shadow: Option<Shadow>,
    pub(crate) rebuild: Option<Rebuild>,
    pub(crate) trap: Option<Trap>,
}

impl Profile {
    /// How page tables are followed.
    pub(crate) fn shadow_wish(&self) -> ShadowWish {
        ShadowWish { shadow: self.shadow, rebuild: self.rebuild, trap: self.trap }
    }

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
    fn what_traps_follows_from_what_is_wanted() {
        let wish = |shadow, trap| ShadowWish { shadow, trap, rebuild: None };
        let trap = |wish: ShadowWish| wish.settle().map(|settled| settled.trap);
        assert_eq!(trap(ShadowWish::default()), Ok(Trap::Announced));
        assert_eq!(trap(wish(Some(Shadow::Strict), None)), Ok(Trap::Bar));
        assert_eq!(trap(wish(Some(Shadow::Relaxed), None)), Ok(Trap::Snapshot));
        assert_eq!(trap(wish(None, Some(Trap::Bar))), Ok(Trap::Bar));
        for (shadow, trap) in [(Shadow::Strict, Trap::Announced), (Shadow::Relaxed, Trap::Announced)] {
            let refused = wish(Some(shadow), Some(trap)).settle().unwrap_err();
            assert!(refused.contains("--trap"), "{refused}");
        }
        for text in ["full", "static:200", "dynamic", "segmented"] {
            let rebuild: Rebuild = text.parse().unwrap();
            assert_eq!(rebuild.to_string(), text);
            assert_eq!(serde_json::from_str::<Rebuild>(&serde_json::to_string(&rebuild).unwrap()).unwrap(), rebuild);
        }
        for bad in ["static", "static:", "static:x", "Full", ""] {
            assert!(bad.parse::<Rebuild>().unwrap_err().contains("static:200"), "{bad}");
        }
    }

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
