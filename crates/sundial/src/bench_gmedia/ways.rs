//! What is compared.

use anyhow::{Context, Result};

/// How a program comes to the GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Via {
    /// Straight.
    Native,
    /// As a tenant of the daemon.
    Session,
    /// As the guest of a virtual GPU, made with these options of `sundial vgpu create`.
    Guest(Vec<&'static str>),
}

/// A way to follow a guest's page tables, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// The first three columns of its rows.
    pub(super) scheme: &'static str,
    pub(super) rebuild: Option<&'static str>,
    pub(super) trap: Option<&'static str>,
    pub(super) via: Via,
}

/// What all are compared with.
pub(super) const NATIVE: &str = "native";

/// The paper's policies.
const REBUILDS: [&str; 7] = ["full", "static:50", "static:100", "static:200", "static:300", "dynamic", "segmented"];

/// The traps that can drop a page's protection, and what of the shadowing makes a difference with each.
const TRAPS: [(&str, &[&str]); 3] =
    [("decode", &["strict", "relaxed", "hybrid"]), ("fault", &["hybrid"]), ("tracker", &["hybrid"])];

/// Those that are compared if nobody says which.
const USUAL: [&str; 6] = ["session", "strict", "relaxed/full/snapshot", "hybrid", "fv", "pv"];

/// The name of a way: scheme, rebuild and trap, as far as it has them.
pub(super) fn name((scheme, rebuild, trap): (&str, Option<&str>, Option<&str>)) -> String {
    let parts = [Some(scheme), rebuild, trap];
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

impl Way {
    fn of(scheme: &'static str, via: Via) -> Way {
        Way { scheme, rebuild: None, trap: None, via }
    }

    fn guest(scheme: &'static str, trap: &'static str, options: &[&'static str]) -> Way {
        Way { trap: Some(trap), ..Way::of(scheme, Via::Guest([&["--trap", trap], options].concat())) }
    }

    /// What `--schemes` calls it.
    pub(super) fn name(&self) -> String {
        name((self.scheme, self.rebuild, self.trap))
    }

    /// Whether a name, or as much of one as ends where a part does, means it.
    fn is(&self, name: &str) -> bool {
        self.name().strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// All ways, in the order of the rows.
pub(super) fn all() -> Vec<Way> {
    let mut ways = vec![
        Way::of(NATIVE, Via::Native),
        Way::of("session", Via::Session),
        Way::of("fv-naive", Via::Guest(vec!["--scheme", "fv-naive"])),
        Way::guest("strict", "bar", &[]),
        Way { rebuild: Some("full"), ..Way::guest("relaxed", "snapshot", &[]) },
    ];
    for (trap, schemes) in TRAPS {
        for &scheme in schemes {
            let rebuilds = if scheme == "strict" { &[""][..] } else { &REBUILDS };
            ways.extend(rebuilds.iter().map(|&rebuild| {
                let options = ["--shadow", scheme, "--rebuild", rebuild];
                let options = if rebuild.is_empty() { &options[..2] } else { &options };
                Way { rebuild: Some(rebuild).filter(|name| !name.is_empty()), ..Way::guest(scheme, trap, options) }
            }));
        }
    }
    // What guests have by default, whose drivers announce what they store.
    ways.extend([Way::guest("fv", "announced", &[]), Way::of("pv", Via::Guest(vec!["--scheme", "pv"]))]);
    ways
}

/// Those of these names, and native; without any, the usual ones, with `all` all.
pub(super) fn select(names: &[String]) -> Result<Vec<Way>> {
    let ways = all();
    let usual = USUAL.map(str::to_owned);
    let names = if names.is_empty() { &usual[..] } else { names };
    let everything = names.iter().any(|name| name == "all");
    for name in names.iter().filter(|name| *name != "all") {
        let known = || ways.iter().map(Way::name).collect::<Vec<_>>().join(", ");
        let found = ways.iter().find(|way| way.is(name));
        found.with_context(|| format!("there is no way `{name}`; there are: all, {}", known()))?;
    }
    let asked = |way: &Way| everything || way.scheme == NATIVE || names.iter().any(|name| way.is(name));
    Ok(ways.into_iter().filter(asked).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str]) -> Vec<String> {
        let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
        select(&asked).unwrap().iter().map(Way::name).collect()
    }

    #[test]
    fn ways_are_known_by_name_or_by_its_beginning() {
        assert_eq!(names(&["all"]).len(), all().len());
        assert_eq!(names(&["pv", "strict"]), ["native", "strict/bar", "strict/decode", "pv"]);
        assert_eq!(names(&["hybrid/static:50"]).len(), 1 + TRAPS.len());
        assert_eq!(names(&["hybrid/segmented/decode"]), ["native", "hybrid/segmented/decode"]);
        assert!(names(&[]).len() < all().len());
        assert!(select(&["fv-n".into()]).unwrap_err().to_string().contains("hybrid/segmented/tracker"));
    }

    #[test]
    fn names_are_of_one_way_each() {
        let mut names: Vec<String> = all().iter().map(Way::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all().len());
        let one = all().into_iter().find(|way| way.name() == "hybrid/static:50/decode").unwrap();
        let options = vec!["--trap", "decode", "--shadow", "hybrid", "--rebuild", "static:50"];
        assert_eq!(one.via, Via::Guest(options));
    }
}
