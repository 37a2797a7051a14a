//! `sundial compile`: a compiler process, started by the control process for the device process.
//!
//! Its standard input is a socket to the device process. What it does is in [`compile_pool::compiler`]; here is what it
//! gives up before anybody says a word to it.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::process::Signal;
use sandbox::Role;

use crate::confine;

/// Kernels that run go before kernels that are compiled.
const NICE: i32 = 5;

pub(crate) fn main() -> Result<()> {
    crate::start_log();
    // Whoever started it is its only reason to be there.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::nice(NICE)?;
    confine::begin(Role::Compiler, &[]);
    let socket = std::io::stdin().as_fd().try_clone_to_owned().context("no socket")?;
    compile_pool::compiler::serve(socket, || confine::seal(Role::Compiler))?;
    Ok(())
}
