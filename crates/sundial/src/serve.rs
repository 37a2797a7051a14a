//! `sundial serve`: the daemon.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::config::Config;
use crate::control::Control;
use crate::place::Place;
use crate::size::GpuSpec;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which GPU: soft:<memory>, as soft:4g.
    #[arg(long, env = "SUNDIAL_GPU")]
    gpu: Option<GpuSpec>,
    /// The policy file.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Started by `run`: leaves its terminal, says `ready`, and ends some time after its last tenant.
    #[arg(long, hide = true)]
    detached: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    crate::start_log();
    let mut config = Config::load(args.config.as_deref())?;
    config.gpu = args.gpu.unwrap_or(config.gpu);
    let place = Place::open()?;
    crate::place::allow_many_files()?;
    if args.detached {
        // Fails only for the leader of a process group, which has no terminal to lose either.
        let _ = rustix::process::setsid();
    }
    let Some(_lock) = place.lock_daemon()? else {
        bail!("a daemon is running already in {}", place.directory().display());
    };
    let linger = args.detached.then(|| Duration::from_secs(config.linger_seconds));
    let control = Control::start(place, config)?;
    if args.detached {
        say_ready()?;
    }
    control.watch(linger)
}

/// Tells `run`, which made our standard input the writing end of a pipe.
fn say_ready() -> Result<()> {
    let mut pipe = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    pipe.write_all(b"ready\n").context("cannot say that the daemon is ready")
}
