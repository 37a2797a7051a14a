//! How a virtual GPU is made, as people write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_read_as_they_are_written() {
        for text in ["fv-naive", "fv", "pv", "pass-through"] {
            let scheme: Scheme = text.parse().unwrap();
            assert_eq!(scheme.to_string(), text);
            assert_eq!(serde_json::to_string(&scheme).unwrap(), format!("\"{text}\""));
        }
    }
}
