//! `config.toml`: the host's policy.
//!
//! ```toml
//! gpu = "soft:4g"            # which GPU; several: ["soft:4g", "soft:2g"]
//! placement = "spread"       # on which of several tenants go: spread (the least loaded), pack (as few GPUs as have room)
//! scheduler = "default"      # how GPU time is shared: default, fifo, credit, band
//! copies = "mapped"          # how a program's own memory is copied: mapped (it stores into its VRAM), staged (by way of the daemon)
//! submission = "delayed"     # when a call returns: delayed (on its way), answered (by the daemon), immediate (done by the GPU)
//! transport = "rings"        # what carries calls: rings (in shared memory), socket
//! block_size = "512k"        # of copies that are staged; `run` may say all four for its tenant, but for more than `copies` allows
//! most_tenants = 64          # at once
//! linger_seconds = 30        # a daemon that `run` started ends this long after its last tenant
//!
//! [unregistered]             # programs that use the library without `sundial run`
//! allow = true
//! memory = "1g"              # each user's limit; none: the whole GPU
//!
//! [memory]                   # where limits together exceed the GPU
//! overcommit = true          # they may; false: who would exceed it is not let in
//! on_full = "fail"           # a request that does not fit: fail, wait, wait:30s (and out of memory then)
//! longest_wait = "10m"       # nobody waits for longer, whatever it says
//! order = "first-come"       # who goes next of those who wait: first-come, best-fit, recent-use, random
//!
//! [code_cache]               # compiled code in $XDG_CACHE_HOME/sundial (or ~/.cache/sundial)
//! keep = true
//! most = "256m"              # on disk
//!
//! [usage]                    # what tenants have used, for `sundial usage`
//! keep = true                # over restarts, in a database
//! path = "/var/lib/sundial"  # its folder; without: $XDG_STATE_HOME/sundial (or ~/.local/state/sundial)
//! days = 90                  # what is older is forgotten
//! interval_seconds = 10      # between two writings: what may be lost if the daemon is killed
//!
//! [metrics]                  # for Prometheus, in its text format
//! listen = "127.0.0.1:9400"  # or the path of a unix socket; none: nobody is told
//!
//! drain_seconds = 30         # how long tenants may finish when the daemon is to end; without it 30 for --system, else 0
//! [system]                   # of `serve --system`
//! group = "sundial"          # who may come: the members of a group
//! [policy.groups.students]   # who may have how much: see `policy.rs`
//! share = "20%"
//!
//! [profiles.small]           # terms with a name, for `--profile small` of `run` and `vgpu create`
//! mem = "512m"
//! share = "20%"
//! on_full = "wait:5m"
//! priority = "high"          # in GPU time that nobody was promised: low, normal, high
//! tenants = 8                # at most so many have it at once
//! quota = "2h/day"           # of GPU time, for all tenants of one user that have it together
//! scheme = "fv"              # of virtual GPUs
//! trap = "tracker"           # the same, in scheme fv; and shadow = "hybrid", rebuild = "segmented"
//!
//! [limits]                   # counts for every tenant: see tenancy::Limits
//! queues = 2048
//! host_bytes = 4294967296    # most host memory; without it, and for maps and files, a part of what the machine has
//! ```
//! Looked for at `--config`, `$SUNDIAL_CONFIG`, `$XDG_CONFIG_HOME/sundial/config.toml` (or `~/.config`), and
//! `/etc/sundial/config.toml`. An unknown key is an error: a limit that is misspelt would not hold.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use tenancy::Limits;
use tenancy::placement::Placement;

use crate::control::UsageTuning;
use crate::memory_policy::MemoryPolicy;
use crate::metrics::Listen;
use crate::policy::Policy;
use crate::profile::Profile;
use crate::remoting::{BlockSize, Copies, Remoting, Submission, Transport};
use crate::size::{GpuSpec, Gpus, Scheduler, Size};

/// The host's policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) gpu: Gpus,
    pub(crate) placement: Placement,
    pub(crate) scheduler: Scheduler,
    pub(crate) copies: Copies,
    pub(crate) submission: Submission,
    pub(crate) transport: Transport,
    pub(crate) block_size: BlockSize,
    pub(crate) most_tenants: usize,
    pub(crate) linger_seconds: u64,
    pub(crate) unregistered: Unregistered,
    pub(crate) memory: MemoryPolicy,
    pub(crate) code_cache: CodeCache,
    pub(crate) usage: Usage,
    pub(crate) metrics: Metrics,
    pub(crate) drain_seconds: Option<u64>,
    pub(crate) system: SystemPolicy,
    pub(crate) policy: Policy,
    pub(crate) profiles: BTreeMap<String, Profile>,
    pub(crate) limits: Limits,
}

/// For sessions without a credential.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Unregistered {
    pub(crate) allow: bool,
    pub(crate) memory: Option<Size>,
}

/// Compiled code that is kept for the next time.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CodeCache {
    pub(crate) keep: bool,
    pub(crate) most: Size,
}

/// What tenants have used.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Usage {
    pub(crate) keep: bool,
    pub(crate) path: Option<PathBuf>,
    pub(crate) days: u64,
    pub(crate) interval_seconds: NonZero<u64>,
}

/// A daemon for all users of a machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SystemPolicy {
    /// Its name or number.
    pub(crate) group: Option<String>,
}

/// For those who watch.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) listen: Option<Listen>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            gpu: GpuSpec::Soft { memory: Size(4 << 30) }.into(),
            placement: Placement::default(),
            scheduler: Scheduler::default(),
            copies: Copies::default(),
            submission: Submission::default(),
            transport: Transport::default(),
            block_size: BlockSize::default(),
            most_tenants: 64,
            linger_seconds: 30,
            unregistered: Unregistered::default(),
            memory: MemoryPolicy::default(),
            code_cache: CodeCache::default(),
            usage: Usage::default(),
            metrics: Metrics::default(),
            drain_seconds: None,
            system: SystemPolicy::default(),
            policy: Policy::default(),
            profiles: BTreeMap::new(),
            limits: Limits::default(),
        }
    }
}

impl Default for Unregistered {
    fn default() -> Self {
        Unregistered { allow: true, memory: None }
    }
}

impl Default for CodeCache {
    fn default() -> Self {
        CodeCache { keep: true, most: Size(256 << 20) }
    }
}

impl Default for Usage {
    fn default() -> Self {
        let interval_seconds = NonZero::new(10).unwrap_or(NonZero::<u64>::MIN);
        Usage { keep: true, path: None, days: 90, interval_seconds }
    }
}

impl Usage {
    /// Where it is kept; `None` if it is not to be, or the user has no place for such things.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        let usual = || Some(named.or_else(home)?.join("sundial"));
        self.path.clone().or_else(usual).filter(|_| self.keep)
    }

    pub(crate) fn tuning(&self) -> UsageTuning {
        let interval = Duration::from_secs(self.interval_seconds.get());
        UsageTuning { folder: self.folder(), days: self.days, interval }
    }
}

impl CodeCache {
    /// Where it lies; `None` if nothing is to be kept, or the user has no place for such things.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let place = named.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
        self.keep.then(|| place.join("sundial"))
    }
}

impl Config {
    /// Reads the file at `path`, or the first that exists of the usual ones; built-in values if there is none.
    pub(crate) fn load(path: Option<&Path>) -> Result<Config> {
        Config::load_from(path, usual_places())
    }

    /// The same, of a daemon for all users: no user's own counts.
    pub(crate) fn load_of_system(path: Option<&Path>) -> Result<Config> {
        let named = std::env::var_os("SUNDIAL_CONFIG").map(PathBuf::from);
        Config::load_from(path, named.into_iter().chain([PathBuf::from(OF_SYSTEM)]).collect())
    }

    fn load_from(path: Option<&Path>, usual: Vec<PathBuf>) -> Result<Config> {
        let found = match path {
            Some(path) => Some(path.to_path_buf()),
            None => usual.into_iter().find(|place| place.exists()),
        };
        let Some(path) = found else { return Ok(Config::default()) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Config::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Config> {
        toml::from_str(text).map_err(|error| match meant(error.message()) {
            Some(meant) => anyhow::anyhow!("{error}did you mean `{meant}`?"),
            None => error.into(),
        })
    }

    /// Keys that are different in another, and of which a daemon that runs takes no notice.
    pub(crate) fn differences(&self, other: &Config) -> Vec<&'static str> {
        let of = |config: &Config| {
            let Config { gpu, scheduler, memory, code_cache, usage, metrics, system, .. } = config;
            let Remoting { copies, submission, transport, block_size, .. } = config.remoting();
            let (rules, overcommit) = (memory.rules(), memory.overcommit);
            [
                ("gpu", format!("{gpu:?}")),
                ("scheduler", format!("{scheduler:?}")),
                ("copies", format!("{copies:?}")),
                ("submission", format!("{submission:?}")),
                ("transport", format!("{transport:?}")),
                ("block_size", format!("{block_size:?}")),
                ("memory", format!("{rules:?} {overcommit}")),
                ("code_cache", format!("{code_cache:?}")),
                ("usage", format!("{usage:?}")),
                ("metrics", format!("{metrics:?}")),
                ("system", format!("{system:?}")),
            ]
        };
        of(self).into_iter().zip(of(other)).filter(|(a, b)| a != b).map(|((name, _), _)| name).collect()
    }

    /// Itself, with what a daemon that runs takes no notice of as that one has it.
    pub(crate) fn beside(self, running: &Config) -> Config {
        let Config { gpu, scheduler, copies, submission, transport, block_size, .. } = running.clone();
        let Config { code_cache, usage, metrics, system, .. } = running.clone();
        // What a tenant does that does not say it himself is no matter of the device process.
        let memory = MemoryPolicy { on_full: self.memory.on_full, ..running.memory };
        Config {
            gpu,
            scheduler,
            copies,
            submission,
            transport,
            block_size,
            memory,
            code_cache,
            usage,
            metrics,
            system,
            ..self
        }
    }

    /// How sessions come to the daemon.
    pub(crate) fn remoting(&self) -> Remoting {
        let &Config { copies, submission, transport, block_size, .. } = self;
        Remoting { copies, submission, transport, block_size, timed: false }
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
        .chain([PathBuf::from(OF_SYSTEM)])
        .collect()
}

/// The policy file of the machine.
const OF_SYSTEM: &str = "/etc/sundial/config.toml";

/// What somebody may have meant by a key or a word that nobody knows, from what would have been known.
fn meant(message: &str) -> Option<&str> {
    let (wrong, known) = message.split_once(", expected ")?;
    let wrong = wrong.strip_prefix("unknown field `").or_else(|| wrong.strip_prefix("unknown variant `"))?;
    let wrong = wrong.trim_end_matches('`');
    let known = known.split('`').skip(1).step_by(2);
    let near = known.map(|known| (strsim::jaro_winkler(wrong, known), known)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (near.0 > 0.8).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_misspells_is_told_where_and_what_may_be_meant() {
        for (wrong, line, meant) in [
            ("most_tenant = 3\n", 1, "most_tenants"),
            ("\n\n[policy.default]\nshares = \"20%\"\n", 4, "share"),
            ("[policy.users.root]\nquotas = \"1h/day\"\n", 2, "quota"),
            ("[policy.default]\nsee = \"share\"\n", 2, "shares"),
            ("[limits]\nqueue = 7\n", 2, "queues"),
        ] {
            let told = Config::parse(wrong).unwrap_err().to_string();
            assert!(told.contains(&format!("line {line}")), "{told}");
            assert!(told.contains(&format!("did you mean `{meant}`?")), "{told}");
        }
        assert!(!Config::parse("xyzzy = 1").unwrap_err().to_string().contains("did you mean"));
    }

    #[test]
    fn what_takes_effect_later_is_known() {
        let config = |text| Config::parse(text).unwrap();
        let now = config("most_tenants = 5\n[policy.default]\ntenants = 1\n[unregistered]\nallow = false");
        assert!(now.differences(&config("")).is_empty());
        let later = config("gpu = \"soft:1g\"\n[usage]\ndays = 1\n[memory]\novercommit = false\n");
        assert_eq!(later.differences(&now), ["gpu", "memory", "usage"]);
        let read = config(
            "gpu = \"soft:1g\"\nmost_tenants = 7\n[memory]\novercommit = false\non_full = \"wait\"\n[limits]\nhost_bytes = 99\n",
        );
        let holds = read.beside(&now);
        assert!(holds.differences(&now).is_empty(), "what was told to come later");
        assert_eq!((holds.most_tenants, holds.limits.host_bytes, holds.memory.overcommit), (7, 99, true));
        assert_ne!(holds.memory.on_full, now.memory.on_full);
    }

    #[test]
    fn keys_are_known_or_errors() {
        let config =
            Config::parse("gpu = \"soft:1g\"\n[unregistered]\nmemory = \"256m\"\n[limits]\nqueues = 7\n").unwrap();
        assert_eq!(config.gpu, GpuSpec::Soft { memory: Size(1 << 30) }.into());
        let two = Config::parse("gpu = [\"soft:1g\", \"soft:2g\"]\nplacement = \"pack\"\n").unwrap();
        assert_eq!(
            (two.gpu.to_string().as_str(), two.placement),
            ("soft:1073741824, soft:2147483648", Placement::Pack)
        );
        assert_eq!(config.unregistered.memory, Some(Size(256 << 20)));
        assert_eq!((config.limits.queues, config.limits.contexts), (7, Limits::default().contexts));
        let config = Config::parse(
            "[profiles.small]\nmem = \"512m\"\nshare = \"20%\"\nscheme = \"fv-naive\"\nrebuild = \"static:9\"\n",
        )
        .unwrap();
        let small = config.profiles["small"];
        assert_eq!((small.mem, small.scheme), (Some(Size(512 << 20)), Some(crate::scheme::Scheme::FvNaive)));
        assert_eq!(small.shadowing().rebuild.map(|it| it.to_string()).as_deref(), Some("static:9"));
        for bad in ["[profiles.small]\nmemory = \"1g\"", "[profiles.small]\nscheme = \"best\""] {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        let memory = Config::parse(
            "[memory]\novercommit = false\non_full = \"wait:2s\"\norder = \"best-fit\"\nlongest_wait = \"1h\"",
        )
        .unwrap()
        .memory;
        assert_eq!((memory.overcommit, memory.on_full.to_string().as_str()), (false, "wait:2000ms"));
        assert_eq!(memory.rules().to_string(), "best-fit/3600000ms");
        for bad in [
            "[memory]\nlongest_wait = \"x\"",
            "[memory]\norder = \"best\"",
            "[memory]\non_full = \"wait:x\"",
            "[memory]\novercomit = true",
        ] {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        let config = Config::parse("submission = \"immediate\"\ntransport = \"socket\"\nblock_size = \"1m\"").unwrap();
        let wanted = (Submission::Immediate, Transport::Socket, BlockSize(1 << 20));
        assert_eq!((config.submission, config.transport, config.block_size), wanted);
        for bad in ["submission = \"later\"", "block_size = \"1g\"", "block_size = 4096", "transport = \"ring\""] {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        for bad in ["gpus = \"soft:1g\"", "[limits]\nqueue = 7", "[unregistered]\nmem = \"1g\"", "gpu = \"soft:zero\""]
        {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        let config =
            Config::parse("[usage]\nkeep = false\npath = \"/x\"\n[metrics]\nlisten = \"127.0.0.1:9400\"\n").unwrap();
        assert_eq!(config.usage.folder(), None);
        assert!(matches!(config.metrics.listen, Some(Listen::Tcp(at)) if at.port() == 9400));
        for bad in ["[usage]\ninterval_seconds = 0", "[usage]\nfolder = \"/x\"", "[metrics]\nlisten = \"here\""] {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        assert!(Config::load(Some(Path::new("/nonexistent/config.toml"))).is_err());
    }
}
