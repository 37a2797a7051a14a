//! How the page tables of a virtual GPU's guest are shadowed, as people say it.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use gmmu::Policy;
use serde::{Deserialize, Serialize};
use vgpu::{TrackedPages, Watching};
use write_trap::Kind;

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
    /// The guest's kernel notes the pages that were stored into.
    Tracker,
    /// The first store into a page is told by the guest's kernel, and waits until it is answered.
    Fault,
    /// Each store faults in the guest's process, which notes it and does it by hand.
    Decode,
    /// The best that the guest can have: tracker; or snapshot, if it cannot have that.
    Auto,
}

impl Trap {
    /// What the guest has to do its part for.
    fn kind(self) -> Option<Kind> {
        match self {
            Trap::Announced | Trap::Bar | Trap::Snapshot => None,
            Trap::Tracker | Trap::Auto => Some(Kind::Tracker),
            Trap::Fault => Some(Kind::Fault),
            Trap::Decode => Some(Kind::Decode),
        }
    }

    /// Whether there is something to choose with it.
    fn chooses(self) -> bool {
        self.kind().is_some()
    }
}

impl From<vgpu::Trap> for Trap {
    fn from(trap: vgpu::Trap) -> Trap {
        match trap {
            vgpu::Trap::Announced => Trap::Announced,
            vgpu::Trap::Bar => Trap::Bar,
            vgpu::Trap::Snapshot => Trap::Snapshot,
            vgpu::Trap::Watched(Kind::Tracker) => Trap::Tracker,
            vgpu::Trap::Watched(Kind::Fault) => Trap::Fault,
            vgpu::Trap::Watched(Kind::Decode) => Trap::Decode,
        }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Trap::Announced => "announced",
            Trap::Bar => "bar",
            Trap::Snapshot => "snapshot",
            Trap::Tracker => "tracker",
            Trap::Fault => "fault",
            Trap::Decode => "decode",
            Trap::Auto => "auto",
        })
    }
}

/// Which pages of tables are protected: `gmmu::Shadowing`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shadow {
    /// All: each store is noticed.
    Strict,
    /// A page is let go at its first store, and compared when work is submitted.
    Relaxed,
    /// A page is let go if that is cheaper.
    #[default]
    Hybrid,
}

impl From<Shadow> for gmmu::Shadowing {
    fn from(shadow: Shadow) -> gmmu::Shadowing {
        match shadow {
            Shadow::Strict => gmmu::Shadowing::Strict,
            Shadow::Relaxed => gmmu::Shadowing::Relaxed,
            Shadow::Hybrid => gmmu::Shadowing::Hybrid,
        }
    }
}

impl fmt::Display for Shadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Shadow::Strict => "strict",
            Shadow::Relaxed => "relaxed",
            Shadow::Hybrid => "hybrid",
        })
    }
}

/// Which pages that were let go are compared: `gmmu::Rebuild`, as `full`, `static:200`, `dynamic`, `segmented`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Rebuild(pub(crate) gmmu::Rebuild);

impl FromStr for Rebuild {
    type Err = String;

    fn from_str(text: &str) -> Result<Rebuild, String> {
        Ok(Rebuild(match text {
            "full" => gmmu::Rebuild::Full,
            "dynamic" => gmmu::Rebuild::Dynamic,
            "segmented" => gmmu::Rebuild::Segmented,
            _ => {
                let pages = text.strip_prefix("static:").and_then(|pages| pages.parse().ok());
                gmmu::Rebuild::Static(pages.ok_or("it is full, static:<pages>, dynamic or segmented")?)
            }
        }))
    }
}

impl TryFrom<String> for Rebuild {
    type Error = String;

    fn try_from(text: String) -> Result<Rebuild, String> {
        text.parse()
    }
}

impl From<Rebuild> for String {
    fn from(rebuild: Rebuild) -> String {
        rebuild.to_string()
    }
}

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

/// As far as somebody says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Wish {
    pub(crate) trap: Option<Trap>,
    pub(crate) shadow: Option<Shadow>,
    pub(crate) rebuild: Option<Rebuild>,
}

/// All of it. Invariant: one that can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(crate) struct Shadowing {
    pub(crate) trap: Trap,
    /// `None` if the guest says what has changed.
    pub(crate) shadow: Option<Shadow>,
    /// `None` if nothing is rebuilt.
    pub(crate) rebuild: Option<Rebuild>,
}

impl Wish {
    /// Whether anything is said.
    pub(crate) fn is_some(self) -> bool {
        self != Wish::default()
    }

    /// What is not said is as in a profile, as far as there is something to choose, or as usual.
    ///
    /// # Errors
    /// It cannot be: what to say instead.
    pub(crate) fn or(self, profile: Wish) -> Result<Shadowing, String> {
        let trap = self.trap.or(profile.trap);
        let open = trap.is_none_or(Trap::chooses);
        let shadow = self.shadow.or(profile.shadow.filter(|_| open));
        let open = open && shadow != Some(Shadow::Strict);
        let rebuild = self.rebuild.or(profile.rebuild.filter(|_| open));
        let usual = match (shadow, rebuild) {
            (None, None) => Trap::Announced,
            // It takes one that tells of each store.
            (Some(Shadow::Strict), _) => Trap::Decode,
            _ => Trap::Auto,
        };
        Shadowing::new(trap.unwrap_or(usual), shadow, rebuild)
    }
}

impl Shadowing {
    fn new(trap: Trap, shadow: Option<Shadow>, rebuild: Option<Rebuild>) -> Result<Shadowing, String> {
        let full = Rebuild(gmmu::Rebuild::Full);
        let (shadow, rebuild) = match (trap, shadow, rebuild) {
            (Trap::Announced, None, None) => (None, None),
            (Trap::Announced, ..) => {
                return Err(
                    "with --trap announced the guest says itself what has changed: leave --shadow and --rebuild \
                            out, or name another trap, as --trap auto"
                        .into(),
                );
            }
            (Trap::Bar, None | Some(Shadow::Strict), None) => (Some(Shadow::Strict), None),
            (Trap::Bar, ..) => {
                return Err("--trap bar is strict shadowing, for no page of BAR1 can be let go: leave --shadow and \
                            --rebuild out, or name another trap, as --trap auto"
                    .into());
            }
            (Trap::Snapshot, None | Some(Shadow::Relaxed), rebuild) if rebuild.is_none_or(|it| it == full) => {
                (Some(Shadow::Relaxed), Some(full))
            }
            (Trap::Snapshot, ..) => {
                return Err("--trap snapshot is relaxed shadowing with full rebuilding, for nothing is known of any \
                            store: leave --shadow and --rebuild out, or name another trap, as --trap auto"
                    .into());
            }
            (Trap::Tracker | Trap::Fault | Trap::Auto, Some(Shadow::Strict), _) => {
                return Err(format!(
                    "strict shadowing takes a trap that tells of each store, and {trap} does not: name --trap decode, or bar"
                ));
            }
            (_, Some(Shadow::Strict), None) => (Some(Shadow::Strict), None),
            (_, Some(Shadow::Strict), Some(_)) => {
                return Err("strict shadowing rebuilds nothing: leave --rebuild out, or say --shadow hybrid".into());
            }
            (_, shadow, rebuild) => (Some(shadow.unwrap_or_default()), Some(rebuild.unwrap_or_default())),
        };
        Ok(Shadowing { trap, shadow, rebuild })
    }

    /// With another policy, while the guest goes on with the same trap.
    ///
    /// # Errors
    /// It cannot be.
    pub(crate) fn with(self, shadow: Option<Shadow>, rebuild: Option<Rebuild>) -> Result<Shadowing, String> {
        let shadow = shadow.or(self.shadow);
        let rebuild = rebuild.or(self.rebuild.filter(|_| shadow != Some(Shadow::Strict)));
        let changed = Shadowing::new(self.trap, shadow, rebuild);
        changed.map_err(|why| format!("its trap is {}, and stays so until it is made anew; {why}", self.trap))
    }

    pub(crate) fn policy(self) -> Policy {
        Policy { shadowing: self.shadow.unwrap_or_default().into(), rebuild: self.rebuild.unwrap_or_default().0 }
    }

    /// What the guest has to do its part for.
    pub(crate) fn kind(self) -> Option<Kind> {
        self.trap.kind()
    }

    /// The mediator's name for it.
    pub(crate) fn watching(self, costs: Costs) -> Watching {
        let trap = match (self.trap, self.trap.kind()) {
            (_, Some(kind)) => vgpu::Trap::Watched(kind),
            (Trap::Bar, _) => vgpu::Trap::Bar,
            (Trap::Snapshot, _) => vgpu::Trap::Snapshot,
            _ => vgpu::Trap::Announced,
        };
        Watching { trap, policy: self.policy(), costs: costs.into() }
    }
}

/// What a trap costs on this machine, ns: `gmmu::Costs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(crate) struct Costs {
    trap: u32,
    release: u32,
    protect: u32,
    compare: u32,
}

impl Costs {
    /// Where there is nothing to choose by them.
    pub(crate) const NONE: Costs = Costs { trap: 1, release: 1, protect: 1, compare: 1 };

    /// Measures them for all kinds, in some milliseconds, which a process can do only before it gives its system calls up. What it
    /// cannot have costs what it usually does.
    pub(crate) fn measure() -> HashMap<Kind, Costs> {
        let compare = shadow_replay::cost_of_comparing(gmmu::TraceFormat::Nvidia).unwrap_or(300);
        Kind::ALL.into_iter().map(|kind| (kind, Costs::of(kind, compare))).collect()
    }

    fn of(kind: Kind, compare: u32) -> Costs {
        let short = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX).max(1);
        let (trap, protect) = match write_trap::measure(kind) {
            Ok(cost) => (short(cost.trap_ns), short(cost.protect_ns)),
            Err(error) => {
                tracing::info!(?kind, %error, "a trap of page tables cannot be had here");
                (2000, 500)
            }
        };
        // What noticed a store has let go of the page, or protects it again by being asked.
        let (release, protect) = match kind {
            Kind::Decode => (protect, protect),
            Kind::Fault => (0, protect),
            Kind::Tracker => (protect, 0),
        };
        Costs { trap, release, protect, compare }
    }
}

impl From<Costs> for gmmu::Costs {
    fn from(Costs { trap, release, protect, compare }: Costs) -> gmmu::Costs {
        gmmu::Costs { trap, release, protect, compare }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(text: &str) -> Wish {
        let mut wish = Wish::default();
        for word in text.split_whitespace() {
            let (flag, value) = word.split_once('=').unwrap();
            match flag {
                "trap" => wish.trap = Some(clap::ValueEnum::from_str(value, false).unwrap()),
                "shadow" => wish.shadow = Some(clap::ValueEnum::from_str(value, false).unwrap()),
                _ => wish.rebuild = Some(value.parse().unwrap()),
            }
        }
        wish
    }

    fn says(it: Shadowing) -> String {
        let name = |what: Option<String>| what.unwrap_or_else(|| "-".into());
        let (shadow, rebuild) = (it.shadow.map(|it| it.to_string()), it.rebuild.map(|it| it.to_string()));
        format!("{} {} {}", it.trap, name(shadow), name(rebuild))
    }

    #[test]
    fn what_is_not_said_is_as_usual() {
        for (said, profile, means) in [
            ("", "", "announced - -"),
            ("trap=bar", "", "bar strict -"),
            ("trap=snapshot", "", "snapshot relaxed full"),
            ("trap=tracker", "", "tracker hybrid segmented"),
            ("shadow=relaxed", "", "auto relaxed segmented"),
            ("rebuild=static:200", "", "auto hybrid static:200"),
            ("shadow=strict", "", "decode strict -"),
            ("trap=decode rebuild=full", "", "decode hybrid full"),
            ("", "trap=fault shadow=relaxed rebuild=dynamic", "fault relaxed dynamic"),
            ("rebuild=full", "trap=fault shadow=relaxed rebuild=dynamic", "fault relaxed full"),
            // Of a profile counts what there is to choose.
            ("trap=bar", "trap=fault shadow=relaxed rebuild=dynamic", "bar strict -"),
            ("trap=announced", "rebuild=dynamic", "announced - -"),
            ("shadow=strict", "rebuild=dynamic", "decode strict -"),
        ] {
            assert_eq!(wish(said).or(wish(profile)).map(says).as_deref(), Ok(means), "{said}; {profile}");
        }
    }

    #[test]
    fn what_cannot_be_says_what_to_do() {
        for (said, told) in [
            ("trap=announced shadow=hybrid", "leave --shadow and --rebuild out"),
            ("trap=bar shadow=relaxed", "--trap auto"),
            ("trap=bar rebuild=full", "--trap auto"),
            ("trap=snapshot rebuild=dynamic", "--trap auto"),
            ("trap=snapshot shadow=hybrid", "--trap auto"),
            ("trap=tracker shadow=strict", "--trap decode"),
            ("trap=auto shadow=strict", "--trap decode"),
            ("shadow=strict rebuild=full", "leave --rebuild out"),
        ] {
            let error = wish(said).or(Wish::default()).unwrap_err();
            assert!(error.contains(told), "{said}: {error}");
        }
        assert!("static".parse::<Rebuild>().is_err() && "static:-1".parse::<Rebuild>().is_err());
    }

    #[test]
    fn a_policy_can_change_but_not_the_trap() {
        let made = |said| wish(said).or(Wish::default()).unwrap();
        let with = |it: Shadowing, said: &str| it.with(wish(said).shadow, wish(said).rebuild).map(says);
        assert_eq!(with(made("trap=decode"), "shadow=strict").as_deref(), Ok("decode strict -"));
        assert_eq!(with(made("shadow=strict"), "shadow=relaxed").as_deref(), Ok("decode relaxed segmented"));
        assert_eq!(with(made("rebuild=full"), "shadow=relaxed").as_deref(), Ok("auto relaxed full"));
        for (one, change) in [("trap=auto", "shadow=strict"), ("", "shadow=relaxed"), ("shadow=strict", "rebuild=full")]
        {
            assert!(with(made(one), change).unwrap_err().contains("its trap is"), "{one}, {change}");
        }
    }

    #[test]
    fn it_is_sent_as_it_is_written() {
        let one = wish("trap=fault rebuild=static:7").or(Wish::default()).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, r#"{"trap":"fault","shadow":"hybrid","rebuild":"static:7"}"#);
        assert_eq!(serde_json::from_str::<Shadowing>(&text).unwrap(), one);
    }
}
