//! Sizes, shares, schedulers and GPUs, as people write them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use fair_share::{Means, Policy, UnknownPolicy};
use serde::{Deserialize, Serialize};
use tenancy::LEAST_SHARE;

/// A number of bytes: `512m`, `2g`, `1.5GiB`, `4096`. Units are powers of 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let shift = match unit.trim() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(format!("`{text}` is not a size; write it as 512m or 2g")),
        };
        let number: f64 = number.parse().map_err(|_| format!("`{text}` is not a size; write it as 512m or 2g"))?;
        let bytes = number * f64::from(1u32 << (shift / 2)) * f64::from(1u32 << (shift - shift / 2));
        if !(1.0..9e18).contains(&bytes) {
            return Err(format!("`{text}` is out of range"));
        }
        // In the range of u64, as checked.
        Ok(Size(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            bytes if bytes >= 1 << 30 => (bytes as f64 / f64::from(1 << 30), "GiB"),
            bytes if bytes >= 1 << 20 => (bytes as f64 / f64::from(1 << 20), "MiB"),
            bytes => (bytes as f64 / 1024.0, "KiB"),
        };
        let text = if value.fract() == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") };
        f.pad(&text)
    }
}

/// A share of GPU time in percent: `30%` or `30`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub(crate) struct Percent(pub(crate) f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Percent, String> {
        let number = text.trim().trim_end_matches('%').trim();
        match number.parse::<f64>() {
            Ok(value) if (LEAST_SHARE..=100.0).contains(&value) => Ok(Percent(value)),
            _ => Err(format!("`{text}` is not a share; write it as 30%, at least {LEAST_SHARE} and at most 100")),
        }
    }
}

/// A GPU: `soft:4g` is the software GPU with 4 GiB of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GpuSpec {
    /// The software GPU.
    Soft {
        /// Its memory.
        memory: Size,
    },
}

impl FromStr for GpuSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuSpec, String> {
        let (kind, size) = text.split_once(':').unwrap_or((text, "4g"));
        match kind {
            "soft" => {
                let memory = size.parse::<Size>()?;
                if memory.0 < 64 << 20 {
                    return Err(format!("`{text}`: the software GPU has at least 64 MiB"));
                }
                Ok(GpuSpec::Soft { memory })
            }
            _ => Err(format!("`{text}` is no GPU here; write soft:<memory>, as soft:4g")),
        }
    }
}

impl fmt::Display for GpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuSpec::Soft { memory } => write!(f, "soft:{}", memory.0),
        }
    }
}

/// Most GPUs of a daemon, or of a program.
pub(crate) const MOST_GPUS: usize = wire::limits::MAX_GPUS as usize;

/// GPUs that are served together, one at least: in `config.toml` one, or a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gpus(Vec<GpuSpec>);

impl TryFrom<Vec<GpuSpec>> for Gpus {
    type Error = String;

    fn try_from(gpus: Vec<GpuSpec>) -> Result<Gpus, String> {
        match gpus.len() {
            1..=MOST_GPUS => Ok(Gpus(gpus)),
            n => Err(format!("{n} GPUs: a daemon serves 1 to {MOST_GPUS}")),
        }
    }
}

impl From<GpuSpec> for Gpus {
    fn from(gpu: GpuSpec) -> Gpus {
        Gpus(vec![gpu])
    }
}

impl Deref for Gpus {
    type Target = [GpuSpec];

    fn deref(&self) -> &[GpuSpec] {
        &self.0
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(GpuSpec::to_string).collect();
        f.write_str(&all.join(", "))
    }
}

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Gpus, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a GPU, as \"soft:4g\", or a list of them")]
        enum Text {
            One(String),
            Several(Vec<String>),
        }
        let texts = match Text::deserialize(from)? {
            Text::One(text) => vec![text],
            Text::Several(texts) => texts,
        };
        let gpus: Result<Vec<GpuSpec>, String> = texts.iter().map(|text| text.parse()).collect();
        gpus.and_then(Gpus::try_from).map_err(serde::de::Error::custom)
    }
}

/// One of a daemon's GPUs, as people name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GpuName {
    /// By its place among them, from 0.
    Number(usize),
    /// By what it is: the least loaded of those that are that.
    Spec(GpuSpec),
}

impl FromStr for GpuName {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuName, String> {
        match text.parse() {
            Ok(number) if text.bytes().all(|digit| digit.is_ascii_digit()) => Ok(GpuName::Number(number)),
            _ => text.parse().map(GpuName::Spec).map_err(|reason| format!("{reason}, or a number, as 0")),
        }
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Number(number) => number.fmt(f),
            GpuName::Spec(spec) => spec.fmt(f),
        }
    }
}

/// Which of a daemon's GPUs somebody wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum GpuWish {
    /// So many, whichever.
    Any(usize),
    /// These, in this order.
    These(Vec<GpuName>),
}

impl Default for GpuWish {
    fn default() -> Self {
        GpuWish::Any(1)
    }
}

impl GpuWish {
    /// What `--gpus` and `--gpu` say.
    pub(crate) fn new(count: Option<usize>, names: &[GpuName]) -> GpuWish {
        match (count, names) {
            (Some(count), _) => GpuWish::Any(count),
            (None, []) => GpuWish::default(),
            (None, names) => GpuWish::These(names.to_vec()),
        }
    }
}

/// What those are that a daemon is to be started with; nothing if one is named by its number, and so by a policy that there is.
pub(crate) fn specs(names: &[GpuName]) -> Vec<GpuSpec> {
    let spec = |name: &GpuName| match name {
        GpuName::Spec(spec) => Some(*spec),
        GpuName::Number(_) => None,
    };
    names.iter().map(spec).collect::<Option<_>>().unwrap_or_default()
}

/// How GPU time is shared: `default`, `fifo`, `credit`, `band`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Scheduler(pub(crate) Policy);

impl Scheduler {
    /// Whether priorities mean something with it, on our GPU, which preempts.
    pub(crate) fn knows_priorities(self) -> bool {
        self.0.means(true) == Means::Slices
    }
}

impl FromStr for Scheduler {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Scheduler, UnknownPolicy> {
        text.parse().map(Scheduler)
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! by_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(&self.to_string())
            }
        }
    )*};
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

pub(crate) use by_text;

by_text!(Size, Percent, GpuSpec, GpuName, Scheduler);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shares_and_gpus() {
        for (text, bytes) in
            [("512m", 512 << 20), ("2g", 2 << 30), ("1.5GiB", 3 << 29), ("4096", 4096), (" 1 K ", 1024)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in ["", "g", "-1g", "0", "1x", "99999999t", "1.2.3m"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!("30%".parse(), Ok(Percent(30.0)));
        assert_eq!("12.5".parse(), Ok(Percent(12.5)));
        for bad in ["0", "1e-300%", "101%", "x", "NaN", "-5%"] {
            assert!(bad.parse::<Percent>().is_err(), "{bad}");
        }
        let soft: GpuSpec = "soft:4g".parse().unwrap();
        assert_eq!(soft, GpuSpec::Soft { memory: Size(4 << 30) });
        assert_eq!(soft.to_string().parse(), Ok(soft));
        assert!("cuda:0".parse::<GpuSpec>().is_err());
        assert_eq!(("2".parse(), "soft:4g".parse()), (Ok(GpuName::Number(2)), Ok(GpuName::Spec(soft))));
        for bad in ["-1", "+1", "", "2.5", "gpu0"] {
            assert!(bad.parse::<GpuName>().is_err(), "{bad}");
        }
        assert_eq!(specs(&[GpuName::Spec(soft); 2]), [soft; 2]);
        assert!(specs(&[GpuName::Spec(soft), GpuName::Number(0)]).is_empty());
        assert!(Gpus::try_from(vec![]).is_err() && Gpus::try_from(vec![soft; 17]).is_err());
        assert_eq!(Size(1536 << 20).to_string(), "1.5 GiB");
    }
}
