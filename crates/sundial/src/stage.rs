//! A daemon of one's own, in a runtime folder of its own: for the demonstration, and for measurements.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::admin::{self, AdminReply, AdminRequest, Listing, VgpuListing};
use crate::runtime_directory::RuntimeDirectory;
use crate::scheme::Scheme;
use crate::size::Scheduler;
use crate::usage::Report;

/// Longest that the daemon may take to start.
const START_BOUND: Duration = Duration::from_secs(20);

/// The daemon and its folder; both go when it is dropped. If this process is killed, the folder stays until the next comes.
#[derive(Debug)]
pub(crate) struct Stage {
    own: PathBuf,
    folder: PathBuf,
    daemon: Child,
}

impl Stage {
    /// Starts a daemon with a GPU. `what` is for the folder's name. The user's own `config.toml` does not count.
    pub(crate) fn open(what: &str, gpu: &str) -> Result<Stage> {
        use std::os::unix::fs::DirBuilderExt;
        let own = std::env::current_exe()?;
        sweep(what);
        let folder = std::env::temp_dir().join(format!("sundial-{what}-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let config = folder.join("config.toml");
        std::fs::write(&config, "")?;
        let mut daemon = Command::new(&own);
        daemon
            .args(["serve", "--gpu", gpu])
            .env("SUNDIAL_RUNTIME_DIR", &folder)
            .env("SUNDIAL_CONFIG", &config)
            .env("XDG_CACHE_HOME", &folder)
            .env("XDG_STATE_HOME", &folder)
            .env("SUNDIAL_LOG", std::env::var_os("SUNDIAL_LOG").unwrap_or_else(|| "warn".into()))
            .stdin(Stdio::null());
        let daemon = sandbox::end_with_parent(&mut daemon).spawn().context("starting the daemon")?;
        let stage = Stage { own, folder, daemon };
        let end = Instant::now() + START_BOUND;
        while stage.listing().is_err() {
            if Instant::now() > end {
                bail!("the daemon does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(stage)
    }

    /// A program that is built beside this one.
    pub(crate) fn beside(&self, name: &str) -> Result<PathBuf> {
        let program = self.own.with_file_name(name);
        if !program.exists() {
            bail!("{} is missing: build it with `cargo xtask build`", program.display());
        }
        Ok(program)
    }

    /// `sundial`, at this daemon. What it becomes ends with the thread that starts it.
    pub(crate) fn sundial(&self) -> Command {
        let mut command = Command::new(&self.own);
        sandbox::end_with_parent(command.env("SUNDIAL_RUNTIME_DIR", &self.folder));
        command
    }

    /// What the daemon says of its sessions.
    pub(crate) fn listing(&self) -> Result<Listing> {
        match self.ask(&AdminRequest::List)? {
            AdminReply::Sessions(listing) => Ok(listing),
            _ => bail!("the daemon gave an unexpected answer"),
        }
    }

    /// What has been used since it started, until now.
    pub(crate) fn usage(&self) -> Result<Report> {
        let directory = RuntimeDirectory::at(self.folder.clone(), rustix::process::getuid().as_raw())?;
        admin::fetch(&admin::connect(&directory)?, &AdminRequest::Usage { since: None })
    }

    /// What the daemon says of its virtual GPUs.
    pub(crate) fn vgpus(&self) -> Result<VgpuListing> {
        match self.ask(&AdminRequest::ListVgpus)? {
            AdminReply::Vgpus(listing) => Ok(listing),
            _ => bail!("the daemon gave an unexpected answer"),
        }
    }

    /// Makes a virtual GPU with so much memory; one that is passed through has all.
    pub(crate) fn vgpu(&self, name: &str, memory: &str, scheme: Scheme) -> Result<VirtualGpu<'_>> {
        let scheme_name = scheme.to_string();
        let options = ["--scheme", &scheme_name, "--mem", memory];
        self.vgpu_with(name, &options[..if scheme == Scheme::PassThrough { 2 } else { 4 }])
    }

    /// Makes a virtual GPU with these options of `vgpu create`.
    pub(crate) fn vgpu_with(&self, name: &str, options: &[&str]) -> Result<VirtualGpu<'_>> {
        let output = self.sundial().args(["vgpu", "create", name]).args(options).output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(VirtualGpu { stage: self, name: name.to_owned(), socket: String::from_utf8(output.stdout)?.trim().into() })
    }

    /// Shares GPU time in another way.
    pub(crate) fn schedule(&self, scheduler: Scheduler) -> Result<()> {
        self.ask(&AdminRequest::Schedule { scheduler }).map(drop)
    }

    fn ask(&self, request: &AdminRequest) -> Result<AdminReply> {
        let directory = RuntimeDirectory::at(self.folder.clone(), rustix::process::getuid().as_raw())?;
        admin::ask(&admin::connect(&directory)?, request)
    }
}

/// Removes the folders of those whose process was killed, and whose daemon, which may be in another PID namespace, has ended.
fn sweep(what: &str) {
    let prefix = format!("sundial-{what}-");
    let user = rustix::process::getuid().as_raw();
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        let Some(process) = number.and_then(Pid::from_raw) else { continue };
        let gone = process == rustix::process::getpid() || test_kill_process(process) == Err(Errno::SRCH);
        // Refuses what another user has put there.
        if gone
            && let Ok(directory) = RuntimeDirectory::at(entry.path(), user)
            && let Ok(Some(_nobody_runs)) = directory.lock_daemon()
        {
            let _ = std::fs::remove_dir_all(directory.path());
        }
    }
}

/// A virtual GPU of that daemon; destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct VirtualGpu<'a> {
    stage: &'a Stage,
    name: String,
    /// Where its guest connects.
    pub(crate) socket: PathBuf,
}

impl Drop for VirtualGpu<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.stage.sundial().args(["vgpu", "destroy", &self.name]).status() {
            eprintln!("cannot destroy {}: {error}", self.name);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
