//! `sundial serve`: the daemon.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use compile_pool::cache::Store;
use parking_lot::Mutex;
use sandbox::{Role, Writable};
use tenancy::placement::Placement;

use crate::config::Config;
use crate::confine;
use crate::control::{Control, System};
use crate::host::Host;
use crate::metrics::Listen;
use crate::policy::{Book, Machine};
use crate::remoting::{Remoting, Wish};
use crate::runtime_directory::RuntimeDirectory;
use crate::shadowing::Costs;
use crate::size::{GpuSpec, Gpus, Scheduler};
use crate::system;

/// All of the environment that the daemon looks at.
const KEPT: [&str; 16] = [
    "HOME",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "NO_COLOR",
    "SUNDIAL_CONFIG",
    "SUNDIAL_GPU",
    "SUNDIAL_LOG",
    "SUNDIAL_RUNTIME_DIR",
    "SUNDIAL_SYSTEM_DIR",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// What `sundial serve` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which GPU: soft:<memory>, as soft:4g. Several, each with a process of its own: --gpu soft:4g --gpu soft:2g.
    #[arg(long, env = "SUNDIAL_GPU", value_delimiter = ',')]
    gpu: Vec<GpuSpec>,
    /// On which of several GPUs tenants go: spread (the least loaded), pack (as few as have room).
    #[arg(long)]
    placement: Option<Placement>,
    /// How GPU time is shared: default (weighted slices, preempting), or as GPUvm and Gdev do where commands cannot be
    /// preempted: fifo, credit, band.
    #[arg(long)]
    scheduler: Option<Scheduler>,
    #[command(flatten)]
    remoting: Wish,
    /// Where Prometheus finds what tenants use: ADDRESS:PORT, or the path of a unix socket.
    #[arg(long, value_name = "ADDRESS:PORT|PATH")]
    metrics: Option<Listen>,
    /// The policy file.
    #[arg(long)]
    config: Option<PathBuf>,
    /// For all users of this machine: at /run/sundial, with the policy of /etc/sundial/config.toml.
    #[arg(long, conflicts_with = "detached")]
    system: bool,
    /// Started by `run`: leaves its terminal, says `ready`, and ends some time after its last tenant.
    #[arg(long, hide = true)]
    detached: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    shed_environment()?;
    crate::start_log();
    let (is_system, detached, host) = (args.system, args.detached, Host::look());
    let load = move || {
        let path = args.config.as_deref();
        let mut config = if is_system { Config::load_of_system(path) } else { Config::load(path) }?;
        if !args.gpu.is_empty() {
            config.gpu = Gpus::try_from(args.gpu.clone()).map_err(anyhow::Error::msg)?;
        }
        config.placement = args.placement.unwrap_or(config.placement);
        config.scheduler = args.scheduler.unwrap_or(config.scheduler);
        let Remoting { copies, submission, transport, block_size, .. } = config.remoting().decided(args.remoting);
        config = Config { copies, submission, transport, block_size, ..config };
        config.metrics.listen = args.metrics.clone().or(config.metrics.listen);
        Ok(config)
    };
    let config = load()?;
    let directory = if is_system { RuntimeDirectory::of_system() } else { RuntimeDirectory::open() }?;
    let cache = config.code_cache.directory();
    let store = cache.as_deref().and_then(|directory| open_store(directory, &config));
    // The cache's directory may be removed, and made again: another, which no rule for this one would cover.
    let cache = store.as_ref().and(cache.as_deref()).and_then(Path::parent).map(Writable::Files);
    let runtime = Writable::Everything(directory.path());
    let usage = config.usage.folder();
    if let Some(folder) = &usage {
        // What cannot be made now is tried again, in vain, and told then.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    let listen = config.metrics.listen.clone();
    let metrics = listen.as_ref().and_then(Listen::writable);
    let usage = usage.as_deref().map(Writable::Everything);
    let writable: Vec<Writable<'_>> = [Some(runtime), cache, usage, metrics].into_iter().flatten().collect();
    let trap_costs = Costs::measure();
    hostmem::strangers::prepare().context("cannot judge what others send")?;
    let handed = if is_system { system::handed() } else { 0 };
    confine::begin_keeping(Role::Control, handed, &writable);
    let activated = system::sort(sandbox::take_inherited(handed))?;
    // Before the process may make no more such sockets.
    let metrics = listen.map(|listen| listen.open()).transpose()?;
    confine::seal(Role::Control);
    crate::runtime_directory::allow_many_files()?;
    if detached {
        // Fails only for the leader of a process group, which has no terminal to lose either.
        let _ = rustix::process::setsid();
    }
    let Some(_lock) = directory.lock_daemon()? else {
        bail!("a daemon is running already in {}", directory.path().display());
    };
    let linger = detached.then(|| Duration::from_secs(config.linger_seconds));
    let group = config.system.group.as_deref().filter(|_| is_system).map(group).transpose()?;
    let sockets_are_ours = activated.is_none();
    let system =
        System { host, is_system, group, activated: Mutex::new(activated), sockets_are_ours, load: Box::new(load) };
    let control = Control::start(directory, config, system, store, trap_costs)?;
    system::tell("READY=1");
    if let Some(metrics) = metrics {
        control.tell_metrics(metrics)?;
    }
    if detached {
        say_ready()?;
    }
    control.watch(linger)
}

/// The number of a group whose members may come.
fn group(name: &str) -> Result<u32> {
    let found = Machine.group(name).map(|(number, _)| number);
    found.with_context(|| {
        format!("[system] group = \"{name}\": there is no such group; make it with: groupadd --system {name}")
    })
}

/// The cache of compiled code; the daemon works without one.
fn open_store(directory: &Path, config: &Config) -> Option<Store> {
    match Store::open(directory, config.code_cache.most.0) {
        Ok(store) => Some(store),
        Err(error) => {
            tracing::warn!(%error, directory = %directory.display(), "compiled code is not kept");
            None
        }
    }
}

/// Begins anew without the environment of whoever started the daemon: it may name libraries to load first, hold somebody's
/// secrets, or a tenant's credential.
fn shed_environment() -> Result<()> {
    if std::env::vars_os().all(|(name, _)| KEPT.iter().any(|kept| name == *kept)) {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command.env_clear().envs(KEPT.iter().filter_map(|&name| Some((name, std::env::var_os(name)?))));
    let mut words = std::env::args_os();
    command.arg0(words.next().unwrap_or_else(|| "sundial".into())).args(words);
    Err(command.exec()).context("cannot start this program anew")
}

/// Tells `run`, which made our standard input the writing end of a pipe.
fn say_ready() -> Result<()> {
    let mut pipe = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    pipe.write_all(b"ready\n").context("cannot say that the daemon is ready")
}
