//! `sundial`: one GPU, many tenants.
//!
//! | command | file |
//! |---|---|
//! | `serve` | [`serve`]: the daemon; [`control`] is its control process, [`device`] the process that owns the GPU |
//! | `run` | [`run`]: a program as a tenant |
//! | `ps` | [`ps`]: who is there |
//! | `demo` | [`demo`]: three tenants share one GPU, three more misbehave |
//! | `bench` | [`bench`]: what sharing costs; [`bench_engine`]: the kernel engine alone |
//! | `doctor` | [`doctor`]: is everything in its place |
//!
//! Shared by them: [`config`] (`config.toml`), [`place`] (directories and sockets), [`size`] (`2g`, `30%`), [`admin`] (what
//! `run` and `ps` say to the daemon), [`link`] (what its two processes say to each other), [`quiet`] (log lines that a
//! tenant can cause).

mod admin;
mod bench;
mod bench_engine;
mod config;
mod control;
mod demo;
mod device;
mod doctor;
mod link;
mod place;
mod ps;
mod quiet;
mod run;
mod serve;
mod size;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  sundial run --mem 512m --share 30% -- ./program   a CUDA program as a tenant; starts a daemon if none runs
  sundial run --native -- ./program                 the same straight on the GPU: the baseline
  sundial serve --gpu soft:4g                       a daemon with a software GPU of 4 GiB, in the foreground
  sundial ps --json                                 sessions, for programs
  sundial bench                                     what sharing costs on this machine

Environment:
  SUNDIAL_RUNTIME_DIR   where sockets and the daemon's log lie (default: $XDG_RUNTIME_DIR/sundial, /tmp/sundial-UID)
  SUNDIAL_LOG           what to log: error, warn, info, debug, trace
  SUNDIAL_GPU           the default of --gpu";

/// One GPU, many tenants, each with its share of the time.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon that owns the GPU and serves tenants.
    Serve(serve::Args),
    /// Run a CUDA program as a tenant; starts a daemon if none runs.
    Run(run::Args),
    /// List sessions.
    Ps(ps::Args),
    /// Show three tenants that share one GPU, and three more that misbehave.
    Demo(demo::Arguments),
    /// Measure what sharing costs, against the same programs straight on the GPU.
    Bench(bench::Arguments),
    /// Check driver, library path, sockets and versions, and say what to do.
    Doctor(doctor::Arguments),
    /// The process that owns the GPU (started by `serve`).
    #[command(hide = true)]
    Device(device::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::main(args),
        Command::Run(args) => run::main(args),
        Command::Ps(args) => ps::main(&args),
        Command::Demo(args) => held(demo::run(&args)),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => held(doctor::run(&args)),
        Command::Device(args) => device::main(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sundial: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A check that ran, but did not hold, is a failure that has been told already.
fn held(result: anyhow::Result<bool>) -> anyhow::Result<()> {
    if !result? {
        std::process::exit(1);
    }
    Ok(())
}

/// Logs to standard error; `SUNDIAL_LOG` says what (as `RUST_LOG`).
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SUNDIAL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // Somebody else's log is as good.
    let _ = log.with_target(false).try_init();
}
