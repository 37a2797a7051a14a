//! `sundial`: one GPU, many tenants.
//!
//! | command | file |
//! |---|---|
//! | `serve` | [`serve`]: the daemon; [`control`] is its control process, [`device`] the process that owns the GPU, [`compile`] those that compile for it |
//! | `run` | [`run`]: a program as a tenant; [`check`]: one whose kernels are checked |
//! | `ps` | [`ps`]: who is there |
//! | `usage` | [`usage`]: who has had how much |
//! | `top` | [`top`]: who has the GPU now |
//! | `set` | [`set`]: a tenant's share, the scheduler, while the daemon runs |
//! | `vgpu` | [`virtual_gpu`]: virtual GPUs are created, listed, changed and destroyed |
//! | `demo` | [`demo`]: three tenants share one GPU, or guests beside a tenant; others misbehave |
//! | `bench` | [`bench`]: what sharing costs; [`bench_engine`]: the kernel engine alone; [`bench_compile`]: compiling; [`bench_isolation`]: who gets the GPU beside long kernels, by scheduler; [`bench_remoting`]: the way to the daemon; [`bench_shadow`]: ways of shadowing page tables; [`bench_vgpu`]: what virtual GPUs cost, by scheme; [`bench_gmedia`]: pictures whose page tables change all the time |
//! | `doctor` | [`doctor`]: is everything in its place |
//!
//! Shared by them: [`config`] (`config.toml`), [`runtime_directory`] (sockets and locks), [`size`] (`2g`, `30%`), [`picture`] (of benchmarks), [`admin`]
//! (what `run`, `ps`, `set` and `vgpu` say to the daemon), [`scheme`] (schemes of virtual GPUs), [`profile`] (terms with a name), [`shadowing`] (how page tables are shadowed), [`confine`] (what each process gives
//! up), [`policy`] and [`quota`] (who may have how much), [`system`] (service managers), [`stage`] (a daemon of one's own), [`link`] (what its two processes say to
//! each other), [`remoting`] (how sessions come to the daemon), [`quiet`] (log lines that a tenant can cause), [`metrics`] (for Prometheus).

mod admin;
mod bench;
mod bench_compile;
mod bench_engine;
mod bench_gmedia;
mod bench_isolation;
mod bench_remoting;
mod bench_shadow;
mod bench_vgpu;
mod check;
mod compile;
mod config;
mod confine;
mod control;
mod demo;
mod device;
mod doctor;
mod host;
mod link;
mod memory_policy;
mod metrics;
mod picture;
mod policy;
mod profile;
mod ps;
mod quiet;
mod quota;
mod remoting;
mod run;
mod runtime_directory;
mod scheme;
mod serve;
mod set;
mod shadowing;
mod size;
mod stage;
mod stand_ins;
mod stepped;
mod system;
mod threads;
mod top;
mod usage;
mod virtual_gpu;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  sundial run --mem 512m --share 30% -- ./program   a CUDA program as a tenant; starts a daemon if none runs
  sundial run --native -- ./program                 the same straight on the GPU: the baseline
  sundial run --check memory,race -- ./program      the same, and every access of its kernels is checked
  sundial serve --gpu soft:4g                       a daemon with a software GPU of 4 GiB, in the foreground
  sundial ps --json                                 sessions, for programs
  sundial usage --since 7d                          who has had how much of the GPU
  sundial top                                       who has it now
  sundial set vectorAdd-4711 --share 40%            another share for a tenant that is there
  sundial set --scheduler band                      another scheduler: default, fifo, credit, band
  sundial vgpu create one --mem 1g --share 30%      a PCI GPU for a guest; prints the socket of its device
  sundial vgpu list                                 virtual GPUs and their guests
  sundial bench                                     what sharing costs on this machine

Environment:
  SUNDIAL_RUNTIME_DIR   where sockets and the daemon's log lie (default: $XDG_RUNTIME_DIR/sundial, /tmp/sundial-UID)
  SUNDIAL_SYSTEM_DIR    where those of the machine's daemon lie, which is looked for first (default: /run/sundial)
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
    /// Tell who has had how much of the GPU.
    Usage(usage::command::Args),
    /// Watch who has the GPU, in a terminal.
    Top(top::Args),
    /// Change a tenant's share, or the scheduler, while the daemon runs.
    Set(set::Args),
    /// Have the daemon read its policy file again; a wrong one changes nothing.
    Reload,
    /// Virtual GPUs, for virtual machines and for programs with a driver of their own.
    Vgpu(virtual_gpu::Args),
    /// Show three tenants that share one GPU, or virtual GPUs beside a tenant (--vms), and others that misbehave.
    Demo(demo::Arguments),
    /// Measure what sharing costs, against the same programs straight on the GPU.
    Bench(bench::Arguments),
    /// Check driver, library path, sockets and versions, and say what to do.
    Doctor(doctor::Arguments),
    /// The process that owns the GPU (started by `serve`).
    #[command(hide = true)]
    Device(device::Args),
    /// A process that compiles for the device process (started by `serve`).
    #[command(hide = true)]
    Compile,
    /// A process that gives up what its role does not need, and tries it all the same (started by `doctor`).
    #[command(hide = true)]
    Confined(confine::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::main(args),
        Command::Run(args) => run::main(args),
        Command::Ps(args) => ps::main(&args),
        Command::Usage(args) => usage::command::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Set(args) => set::main(&args),
        Command::Reload => set::reload(),
        Command::Vgpu(args) => virtual_gpu::main(args),
        Command::Demo(args) => held(demo::run(&args)),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => held(doctor::run(&args)),
        Command::Device(args) => device::main(&args),
        Command::Compile => compile::main(),
        Command::Confined(args) => confine::main(&args),
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

/// This program, to be started once more: the very same, even if its file has been replaced meanwhile. It gets nothing of
/// our environment but what to log.
fn own_program() -> std::process::Command {
    let mut command = std::process::Command::new("/proc/self/exe");
    command.env_clear().envs(std::env::var_os("SUNDIAL_LOG").map(|log| ("SUNDIAL_LOG", log)));
    command
}

/// Logs to standard error; `SUNDIAL_LOG` says what (as `RUST_LOG`).
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SUNDIAL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // A line that cannot be written, as on a full disk, is lost: to say so on the same way would end the thread that logs.
    // Somebody else's log is as good.
    let _ = log.with_target(false).log_internal_errors(false).try_init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn options_agree() {
        super::Cli::command().debug_assert();
    }
}
