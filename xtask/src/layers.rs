//! Compares the crates' dependencies with `layers.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{cargo, say};

/// Fails if a crate of ours depends on one of ours, or on a restricted crate of others, that `layers.toml` does not allow;
/// or if `layers.toml` allows what nobody uses.
///
/// # Errors
/// The list of differences.
pub(crate) fn check(root: &Path) -> Result<()> {
    say("layers");
    let table: toml::Table = std::fs::read_to_string(root.join("layers.toml"))?.parse()?;
    let allowed: BTreeMap<String, BTreeSet<String>> = table
        .get("crates")
        .and_then(toml::Value::as_table)
        .context("layers.toml: no [crates]")?
        .iter()
        .map(|(name, edges)| (name.clone(), strings(edges)))
        .collect();
    let restricted: BTreeMap<String, BTreeSet<String>> = table
        .get("restricted")
        .and_then(toml::Value::as_table)
        .map(|t| t.iter().map(|(name, users)| (name.clone(), strings(users))).collect())
        .unwrap_or_default();

    let output = cargo(root).args(["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata: no packages")?;
    let ours: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let mut used = BTreeSet::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may use anything of ours.
            if dependency["kind"] == "dev" {
                continue;
            }
            let target = dependency["name"].as_str().unwrap_or_default();
            if ours.contains(target) {
                used.insert(target.to_owned());
            }
            if restricted.get(target).is_some_and(|users| !users.contains(name)) {
                wrong.push(format!("{name} uses {target}, which layers.toml restricts"));
            }
        }
        let Some(edges) = allowed.get(name) else {
            wrong.push(format!("{name} is not in layers.toml"));
            continue;
        };
        wrong.extend(used.difference(edges).map(|target| format!("{name} -> {target} is not allowed")));
        wrong
            .extend(edges.difference(&used).map(|target| format!("{name} -> {target} is allowed, but nobody uses it")));
    }
    wrong.extend(
        allowed.keys().filter(|name| !ours.contains(name.as_str())).map(|name| format!("{name} does not exist")),
    );
    if !wrong.is_empty() {
        bail!("layers.toml and the crates differ:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn strings(value: &toml::Value) -> BTreeSet<String> {
    value.as_array().into_iter().flatten().filter_map(toml::Value::as_str).map(str::to_owned).collect()
}
