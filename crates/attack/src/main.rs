#![expect(unsafe_code, reason = "calls the CUDA driver API as a C program would, and as a hostile one would")]
//! Attacks on the built product: programs that try to stall, starve or crash other tenants, beside a victim.
//!
//! `sundial-attack all` (that is `cargo xtask attack`) starts a daemon of its own and a victim that allocates, fills,
//! launches, synchronizes, copies back and checks without end ([`victim`]). It measures the victim alone, then lets each
//! attack of the table in [`rounds`] loose on it, and prints the victim's worst iteration, whether it ever got an error
//! or a wrong value, whether the device process is still the same, and what the attack left behind in it: descriptors,
//! entries of the memory map, memory, threads ([`traces`]). The attacks are ordinary CUDA programs ([`programs`]) that
//! know nothing of Sundial; most are killed at a random moment. `--seed` repeats a run's moments.
//!
//! Then guests attack ([`guests`]): what a driver of a virtual GPU can do that no program can, over raw vfio-user sockets, one
//! virtual GPU of each scheme at once, beside the victim and a second one that is itself a guest. What they do is in crate
//! `rogue`; they say how much of it the device has done, and whether they ever saw what is not theirs.
//!
//! Nothing here is clever: each attack is what a careless or hostile user could write in an afternoon.

mod cuda;
mod guests;
mod kernels;
mod programs;
mod rounds;
mod traces;
mod victim;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Attacks on a daemon, beside a victim.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all attacks against a daemon of its own; exit code 1 if one succeeded.
    All(rounds::Arguments),
    /// Compute and check until standard input ends; each line of it asks for a report.
    Victim,
    /// One attack, as its process sees it.
    #[command(hide = true)]
    Program {
        /// Which, and how much of it.
        #[command(subcommand)]
        program: programs::Program,
    },
    /// One guest that attacks, as its process sees it.
    #[command(hide = true)]
    Guest(guests::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::All(arguments) => rounds::all(&arguments),
        Command::Victim => victim::run().map(|()| true),
        Command::Program { program } => programs::run(&program).map(|()| true),
        Command::Guest(arguments) => guests::run(&arguments).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sundial-attack: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line of JSON and makes sure that it is out.
fn say(value: &serde_json::Value) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "{value}")?;
    out.flush()?;
    Ok(())
}
