//! The table of what is compared.

use anyhow::{Context, Result};

/// How a program comes to the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Via {
    /// Straight.
    Native,
    /// As a tenant of the daemon.
    Session,
    /// As the guest of a virtual GPU, made with these options of `sundial vgpu create`.
    Guest(&'static [&'static str]),
}

/// A way to follow a guest's page tables, or none.
#[derive(Debug)]
pub(super) struct Way {
    /// What `--schemes` calls it.
    pub(super) name: &'static str,
    /// The first three columns of its rows.
    pub(super) scheme: &'static str,
    pub(super) rebuild: Option<&'static str>,
    pub(super) trap: Option<&'static str>,
    pub(super) via: Via,
}

const fn way(name: &'static str, via: Via) -> Way {
    Way { name, scheme: name, rebuild: None, trap: None, via }
}

/// What all are compared with.
pub(super) const NATIVE: &str = "native";

pub(super) const WAYS: [Way; 7] = [
    way(NATIVE, Via::Native),
    way("session", Via::Session),
    way("fv-naive", Via::Guest(&["--scheme", "fv-naive"])),
    Way { trap: Some("bar"), ..way("strict", Via::Guest(&["--trap", "bar"])) },
    Way { rebuild: Some("full"), trap: Some("snapshot"), ..way("relaxed", Via::Guest(&["--trap", "snapshot"])) },
    // What guests have by default.
    Way { trap: Some("announced"), ..way("fv", Via::Guest(&["--trap", "announced"])) },
    way("pv", Via::Guest(&["--scheme", "pv"])),
];

/// Those of these names, in the table's order, and native; without any, all.
pub(super) fn select(names: &[String]) -> Result<Vec<&'static Way>> {
    for name in names {
        let known = || WAYS.iter().map(|way| way.name).collect::<Vec<_>>().join(", ");
        let found = WAYS.iter().find(|way| way.name == name);
        found.with_context(|| format!("there is no scheme `{name}`; there are: {}", known()))?;
    }
    let asked = |way: &&Way| names.is_empty() || way.name == NATIVE || names.iter().any(|name| name == way.name);
    Ok(WAYS.iter().filter(asked).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_known_by_name() {
        let names = |asked: &[&str]| -> Vec<&str> {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            select(&asked).unwrap().iter().map(|way| way.name).collect()
        };
        assert_eq!(names(&[]).len(), WAYS.len());
        assert_eq!(names(&["pv", "strict"]), ["native", "strict", "pv"]);
        assert!(select(&["magic".into()]).unwrap_err().to_string().contains("fv-naive"));
    }
}
