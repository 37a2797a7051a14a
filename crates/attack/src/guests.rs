//! Guests that attack: a virtual GPU, and a process at its socket that is no driver.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::{Daemon, text};
use rogue::Deed;
use serde_json::{Value, json};

/// What a guest's process is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The virtual GPU's socket.
    socket: PathBuf,
    /// What it does: a name of [`DEEDS`].
    deed: String,
    /// Chooses how.
    #[arg(long)]
    salt: u64,
    /// How long.
    #[arg(long)]
    ms: u64,
}

/// The kinds of hostility, by name.
pub(crate) const DEEDS: [(&str, Deed); 12] = [
    ("foreign", Deed::Foreign),
    ("methods", Deed::Methods),
    ("blocks", Deed::Blocks),
    ("widths", Deed::Widths),
    ("vanishing", Deed::Vanishing),
    ("garbage", Deed::Garbage),
    ("invalidates", Deed::Invalidates),
    ("doorbells", Deed::Doorbells),
    ("runlists", Deed::Runlists),
    ("signals", Deed::Signals),
    ("bottomless", Deed::Endless),
    ("storm", Deed::Storm),
];

/// Attacks, and says what came of it: `{"done":…,"error":0,"leaked":…,"ended":…,"gpu_ms":…}`, where `ended` are grids and copies.
///
/// # Errors
/// There is no virtual GPU, or it ended.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (_, deed) = DEEDS.iter().find(|(name, _)| *name == arguments.deed).context("no such deed")?;
    let time = Duration::from_millis(arguments.ms);
    let came = deed.run(&mut || UnixStream::connect(&arguments.socket), arguments.salt, time)?;
    crate::say(&json!({
        "done": came.done,
        "error": 0,
        "leaked": came.leaked,
        "ended": came.had.ended(),
        "gpu_ms": came.had.time_ns / 1_000_000,
    }))
}

/// A virtual GPU; destroyed at the end.
pub(crate) struct Vgpu<'a> {
    daemon: &'a Daemon,
    name: String,
    socket: String,
    destroyed: bool,
}

impl<'a> Vgpu<'a> {
    pub(crate) fn create(daemon: &'a Daemon, name: &str, scheme: &str, mem: &str, share: &str) -> Result<Vgpu<'a>> {
        let options = ["vgpu", "create", name, "--mem", mem, "--share", share, "--scheme", scheme];
        let made = daemon.sundial().args(options).output()?;
        if !made.status.success() {
            bail!("no virtual GPU: {}", text(&made));
        }
        let socket = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        Ok(Vgpu { daemon, name: name.to_owned(), socket, destroyed: false })
    }

    /// For attackers.
    pub(crate) fn of_each_scheme(daemon: &'a Daemon) -> Result<Vec<Vgpu<'a>>> {
        ["fv", "fv-naive", "pv"].iter().map(|scheme| Vgpu::create(daemon, scheme, scheme, "32m", "16%")).collect()
    }

    /// How `sundial run` is told to run a program in it.
    pub(crate) fn run(&self) -> [&str; 2] {
        ["--vgpu", &self.socket]
    }

    /// Starts a guest that attacks.
    pub(crate) fn attacker(&self, deed: &str, salt: u64, time: Duration) -> Result<Child> {
        let mut command = std::process::Command::new(crate::rounds::own_program()?);
        command.args(["guest", &self.socket, deed, "--salt", &salt.to_string()]);
        command.args(["--ms", &time.as_millis().to_string()]);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
    }

    /// Accesses that were trapped, in a listing.
    pub(crate) fn traps(&self, all: &[Value]) -> u64 {
        let found = all.iter().find(|vgpu| vgpu["name"] == self.name.as_str());
        found.and_then(|vgpu| vgpu["traps"].as_u64()).unwrap_or(0)
    }

    /// Whether it could be destroyed.
    pub(crate) fn destroy(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.destroyed = true;
        self.daemon.sundial().args(["vgpu", "destroy", &self.name]).output().is_ok_and(|done| done.status.success())
    }
}

impl Drop for Vgpu<'_> {
    fn drop(&mut self) {
        if !self.destroyed {
            self.end();
        }
    }
}

/// True if no virtual GPU of these has failed.
pub(crate) fn none_failed(listed: &[Value]) -> bool {
    listed.iter().all(|vgpu| vgpu["state"] != "failed")
}

/// All virtual GPUs, if the daemon says.
pub(crate) fn list(daemon: &Daemon) -> Option<Vec<Value>> {
    let output = daemon.sundial().args(["vgpu", "list", "--json"]).output().ok()?;
    let value: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(value["vgpus"].as_array()?.clone())
}
