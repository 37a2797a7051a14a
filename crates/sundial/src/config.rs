//! `config.toml`: the host's policy.
//!
//! ```toml
//! gpu = "soft:4g"            # which GPU
//! most_tenants = 64          # at once
//! linger_seconds = 30        # a daemon that `run` started ends this long after its last tenant
//!
//! [unregistered]             # programs that use the library without `sundial run`
//! allow = true
//! memory = "1g"              # each user's limit; none: the whole GPU
//!
//! [limits]                   # counts for every tenant: see tenancy::Limits
//! queues = 2048
//! ```
//! Looked for at `--config`, `$SUNDIAL_CONFIG`, `$XDG_CONFIG_HOME/sundial/config.toml` (or `~/.config`), and
//! `/etc/sundial/config.toml`. An unknown key is an error: a limit that is misspelt would not hold.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use tenancy::Limits;

use crate::size::{GpuSpec, Size};

/// The host's policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) gpu: GpuSpec,
    pub(crate) most_tenants: usize,
    pub(crate) linger_seconds: u64,
    pub(crate) unregistered: Unregistered,
    pub(crate) limits: Limits,
}

/// For sessions without a credential.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Unregistered {
    pub(crate) allow: bool,
    pub(crate) memory: Option<Size>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            gpu: GpuSpec::Soft { memory: Size(4 << 30) },
            most_tenants: 64,
            linger_seconds: 30,
            unregistered: Unregistered::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Unregistered {
    fn default() -> Self {
        Unregistered { allow: true, memory: None }
    }
}

impl Config {
    /// Reads the file at `path`, or the first that exists of the usual ones; built-in values if there is none.
    pub(crate) fn load(path: Option<&Path>) -> Result<Config> {
        let found = match path {
            Some(path) => Some(path.to_path_buf()),
            None => usual_places().into_iter().find(|place| place.exists()),
        };
        let Some(path) = found else { return Ok(Config::default()) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Config::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Config> {
        Ok(toml::from_str(text)?)
    }
}

fn usual_places() -> Vec<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    std::env::var_os("SUNDIAL_CONFIG")
        .map(PathBuf::from)
        .into_iter()
        .chain(home.map(|home| home.join("sundial/config.toml")))
        .chain([PathBuf::from("/etc/sundial/config.toml")])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_or_errors() {
        let config =
            Config::parse("gpu = \"soft:1g\"\n[unregistered]\nmemory = \"256m\"\n[limits]\nqueues = 7\n").unwrap();
        assert_eq!(config.gpu, GpuSpec::Soft { memory: Size(1 << 30) });
        assert_eq!(config.unregistered.memory, Some(Size(256 << 20)));
        assert_eq!((config.limits.queues, config.limits.contexts), (7, Limits::default().contexts));
        for bad in ["gpus = \"soft:1g\"", "[limits]\nqueue = 7", "[unregistered]\nmem = \"1g\"", "gpu = \"soft:zero\""]
        {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        assert!(Config::load(Some(Path::new("/nonexistent/config.toml"))).is_err());
    }
}
