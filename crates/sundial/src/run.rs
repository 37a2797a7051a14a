//! `sundial run`: a program as a tenant.
//!
//! The tenant is registered over a connection that this process keeps, then it *becomes* the program: standard streams,
//! exit code, signals, terminal are the program's own because there is nobody in between. The connection stays open in the
//! program and its children; when the last of them ends, the daemon sees it closed, and the registration ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fair_share::Priority;
use rustix::process::{Resource, getrlimit};
use tenancy::Terms;
use wire::place::{CREDENTIAL_VARIABLE, SOCKET_VARIABLE};

use crate::admin::{self, AdminReply, AdminRequest};
use crate::check;
use crate::memory_policy::OnFull;
use crate::remoting;
use crate::runtime_directory::RuntimeDirectory;
use crate::size::{GpuName, GpuSpec, GpuWish, Percent, Size, specs};
use crate::stand_ins;

/// Where the lifeline lies in the program, or above: out of the way of programs that expect their first file to be number 3.
const LIFELINE_FD: i32 = 200;

/// Tells the library in the program where its virtual GPU is.
const VGPU_VARIABLE: &str = "SUNDIAL_VGPU";

/// What `sundial run` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Most GPU memory, as 512m or 2g.
    #[arg(long)]
    mem: Option<Size>,
    /// Most memory of the host that the daemon may take for it, pinned memory included, as 2g.
    #[arg(long)]
    host_mem: Option<Size>,
    /// What becomes of a request for GPU memory that does not fit now: fail, wait, or wait:<time>, as wait:30s. Who waits should say
    /// how much it may want (--mem).
    #[arg(long, value_name = "fail|wait[:TIME]")]
    on_full: Option<OnFull>,
    /// Share of GPU time while others want it, as 30%.
    #[arg(long)]
    share: Option<Percent>,
    /// Of the time that nobody was promised, those of the highest priority have all that they want: low, normal, high [default:
    /// normal]. Shares stay, and nobody starves; the schedulers fifo, credit and band know no priorities.
    #[arg(long)]
    priority: Option<Priority>,
    /// What is not said here is as in `[profiles.<PROFILE>]` of the daemon's config.toml.
    #[arg(long)]
    profile: Option<String>,
    /// Name of the tenant.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    check: check::Checking,
    #[command(flatten)]
    remoting: remoting::Wish,
    /// Count the time that the program's library copies and waits, for `ps --json`.
    #[arg(long)]
    timed: bool,
    /// Straight on the GPU, without daemon: the baseline.
    #[arg(long, conflicts_with_all = ["mem", "host_mem", "share", "priority", "on_full", "profile", "name"])]
    native: bool,
    /// On a virtual GPU, as a guest: the path of its socket; or pci, or pci:<address>, in a virtual machine that has one.
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["mem", "host_mem", "share", "priority", "on_full", "profile", "name", "native"])]
    vgpu: Option<OsString>,
    /// Which of the daemon's GPUs: by number, as 0, or soft:<memory>, as soft:4g; again for another. A daemon that is started now has
    /// those; so has the program with --native.
    #[arg(long, env = "SUNDIAL_GPU", value_delimiter = ',')]
    gpu: Vec<GpuName>,
    /// So many of the daemon's GPUs, whichever [default: 1].
    #[arg(long, conflicts_with_all = ["native", "vgpu"])]
    gpus: Option<usize>,
    /// Leave NVRTC, nvJitLink and ptxas as they are: they make machine code then, which the software GPU cannot execute.
    #[arg(long)]
    no_stand_ins: bool,
    /// Say what is set in the program's environment, and why.
    #[arg(long, short)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let library = library_directory()?;
    let (program, arguments) = args.command.split_first().context("which program?")?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env_remove("SUNDIAL_NATIVE").env_remove("SUNDIAL_CHECK").env_remove(VGPU_VARIABLE);
    let search_path = search_path(&library, std::env::var_os("LD_LIBRARY_PATH"));
    if args.verbose {
        eprintln!("sundial: LD_LIBRARY_PATH={}: the CUDA driver is this one", search_path.display());
    }
    command.env("LD_LIBRARY_PATH", search_path);
    if !args.no_stand_ins {
        stand_in(&mut command, &library, args.verbose);
    }
    let native = args.native || args.check.is_some();
    let comes_to_daemon = args.vgpu.is_none() && !native;
    if !comes_to_daemon && (args.timed || args.remoting != remoting::Wish::default()) {
        bail!(
            "--copies, --submission, --transport, --block-size and --timed are about the way to the daemon: there is none here"
        );
    }
    if let Some(place) = &args.vgpu {
        command.env(VGPU_VARIABLE, vgpu(place)?);
    } else if native {
        command.env("SUNDIAL_NATIVE", "1");
        if !args.gpu.is_empty() {
            let specs = specs(&args.gpu);
            if specs.is_empty() {
                bail!(
                    "with --native and --check there is no daemon whose GPUs have numbers: write --gpu soft:<memory>"
                );
            }
            let gpus: Vec<String> = specs.iter().map(GpuSpec::to_string).collect();
            command.env("SUNDIAL_GPU", gpus.join(",")).env_remove("SUNDIAL_VRAM");
        }
    } else {
        let terms = Terms {
            name: args.name.clone().unwrap_or_else(|| default_name(Path::new(program))),
            memory_bytes: args.mem.map(|size| size.0),
            host_bytes: args.host_mem.map(|size| size.0),
            share_percent: args.share.map(|share| share.0),
            on_full: args.on_full.map(|on_full| on_full.0),
            priority: args.priority,
        };
        let gpus = (GpuWish::new(args.gpus, &args.gpu), specs(&args.gpu));
        let (credential, socket) = register(terms, gpus, args.profile, (args.remoting, args.timed))?;
        command.env(CREDENTIAL_VARIABLE, credential);
        command.env(SOCKET_VARIABLE, socket);
    }
    if args.check.is_some() {
        return check::run(command, &args.check);
    }
    let error = command.exec();
    cannot_run(&command, &error);
}

/// Says why a program does not run, and ends.
pub(crate) fn cannot_run(command: &Command, error: &std::io::Error) -> ! {
    eprintln!("sundial: cannot run {}: {error}", Path::new(command.get_program()).display());
    // As shells do it: not found, or not to be run.
    std::process::exit(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 });
}

/// Has the compilers that the program calls hand over PTX.
fn stand_in(command: &mut Command, library: &Path, verbose: bool) {
    let folder = stand_ins::folder(library);
    if let [missing, ..] = &stand_ins::missing(&folder)[..] {
        if verbose {
            eprintln!("sundial: no stand-ins for compilers: {} is not there", missing.display());
        }
        return;
    }
    let (settings, error) = stand_ins::settings(&folder, |variable| std::env::var_os(variable));
    if let Some(error) = error {
        eprintln!("sundial: {error}");
    }
    for setting in settings {
        if verbose {
            eprintln!("sundial: {setting}");
        }
        command.env(setting.variable, setting.value);
    }
}

/// A virtual GPU's place as the library takes it.
fn vgpu(place: &OsString) -> Result<OsString> {
    if place.to_str().is_some_and(|place| place == "pci" || place.starts_with("pci:")) {
        return Ok(place.clone());
    }
    // The program may be started elsewhere.
    let path = std::path::absolute(place).context("which socket?")?;
    Ok(OsString::from_iter([OsStr::new("unix:"), path.as_os_str()]))
}

/// Registers the tenant, starting a daemon if none runs. What is returned goes into the program's environment; the
/// connection goes into the program.
fn register(
    terms: Terms,
    (gpus, specs): (GpuWish, Vec<GpuSpec>),
    profile: Option<String>,
    (remoting, timed): (remoting::Wish, bool),
) -> Result<(String, PathBuf)> {
    let (connection, _starting) = reach_daemon(&specs)?;
    match admin::ask(&connection, &AdminRequest::Register { terms, gpus, profile, remoting, timed })? {
        AdminReply::Registered { credential, socket } => {
            keep_open(connection)?;
            Ok((credential, socket))
        }
        _ => bail!("the daemon gave an unexpected answer"),
    }
}

/// A connection to the daemon, which is started if none runs, with those GPUs; and a lock, to be held until there is a reason for the daemon to
/// stay: one that is about to end looks at it, and of two who look for one only one starts it.
pub(crate) fn reach_daemon(gpus: &[GpuSpec]) -> Result<(OwnedFd, Option<File>)> {
    let directory = RuntimeDirectory::find()?;
    if directory.is_systems() {
        return Ok((admin::connect(&directory).context("the machine's daemon does not answer")?, None));
    }
    let starting = directory.lock_start(true)?;
    let connection = match admin::connect(&directory) {
        Ok(connection) => connection,
        Err(_) => {
            start_daemon(&directory, gpus)?;
            admin::connect(&directory).context("the daemon that was just started does not answer")?
        }
    };
    Ok((connection, starting))
}

/// Lets the program inherit the lifeline.
fn keep_open(connection: OwnedFd) -> Result<()> {
    use std::os::fd::IntoRawFd;
    let limit = getrlimit(Resource::Nofile).current;
    let moved = rustix::io::fcntl_dupfd_cloexec(&connection, lifeline(limit)).with_context(|| {
        let limit = limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string());
        format!("no file descriptor is left for the connection to the daemon: allow more (ulimit -n), it is {limit}")
    })?;
    rustix::io::fcntl_setfd(&moved, rustix::io::FdFlags::empty())?;
    // Open for as long as the program is.
    let _number = moved.into_raw_fd();
    Ok(())
}

/// The lifeline's number where there are so many: below the limit, and as far up as it usually is.
fn lifeline(limit: Option<u64>) -> i32 {
    let most = limit.map_or(LIFELINE_FD.unsigned_abs().into(), |limit| limit - limit.div_ceil(4));
    i32::try_from(most).map_or(LIFELINE_FD, |most| most.min(LIFELINE_FD))
}

/// Starts a daemon and waits until it is ready.
fn start_daemon(directory: &RuntimeDirectory, gpus: &[GpuSpec]) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["serve", "--detached"]);
    for gpu in gpus {
        command.args(["--gpu", &gpu.to_string()]);
    }
    let log = directory.open_log()?;
    let (reader, writer) = std::io::pipe()?;
    command.current_dir("/").stdin(writer).stdout(Stdio::null()).stderr(log);
    command.spawn().context("cannot start a daemon")?;
    // Ours is the only other handle of the writing end: without it, the daemon's death is the end of the file.
    drop(command);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).context("cannot hear the daemon")?;
    if line.trim() != "ready" {
        bail!("the daemon did not start; see {}", directory.log_path().display());
    }
    Ok(())
}

/// The directory with our `libcuda.so.1`, beside this program or where packages put it.
pub(crate) fn library_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [beside.join("sundial-lib"), beside.join("../lib/sundial")];
    let found = places.iter().find(|place| place.join("libcuda.so.1").exists());
    match found {
        Some(place) => Ok(place.clone()),
        None => bail!(
            "libcuda.so.1 is neither in {} nor in {}; build it with: cargo xtask build",
            places[0].display(),
            places[1].display()
        ),
    }
}

fn search_path(library: &Path, before: Option<OsString>) -> OsString {
    let mut path = library.as_os_str().to_os_string();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// The program's name and our process, which will be its.
fn default_name(program: &Path) -> String {
    let stem = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).take(48).collect();
    format!("{plain}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths() {
        let name = default_name(Path::new("/opt/my programs/vector add"));
        assert!(name.starts_with("vector_add-"), "{name}");
        assert!(default_name(Path::new(&"x".repeat(500))).len() < 64);
        assert_eq!(vgpu(&"/run/gpu".into()).unwrap(), "unix:/run/gpu");
        assert!(vgpu(&"gpu".into()).unwrap().to_str().unwrap().starts_with("unix:/"));
        assert_eq!(vgpu(&"pci:0000:00:04.0".into()).unwrap(), "pci:0000:00:04.0");
        let library = Path::new("/a");
        assert_eq!(search_path(library, None), "/a");
        assert_eq!(search_path(library, Some("".into())), "/a");
        assert_eq!(search_path(library, Some("/b:/c".into())), "/a:/b:/c");
    }

    #[test]
    fn the_lifeline_is_below_the_limit() {
        for (limit, number) in [(None, 200), (Some(1 << 40), 200), (Some(268), 200), (Some(64), 48), (Some(8), 6)] {
            assert_eq!(lifeline(limit), number, "{limit:?}");
        }
    }
}
