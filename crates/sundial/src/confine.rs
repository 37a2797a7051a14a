//! Entering a role's sandbox, and proving that it holds.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use sandbox::attempt::Attempt;
use sandbox::{Holds, Protection, Role, Writable};
use serde::{Deserialize, Serialize};

/// What ends a process whose attempt was refused.
const REFUSED: i32 = 3;

/// The first step of a process in `role`; what does not hold is logged.
pub(crate) fn begin(role: Role, writable: &[Writable<'_>]) {
    report(role, &sandbox::begin(role, writable));
}

/// The same, keeping so many descriptors that were handed over, from the third on.
pub(crate) fn begin_keeping(role: Role, handed: usize, writable: &[Writable<'_>]) {
    report(role, &sandbox::begin_keeping(role, handed, writable));
}

/// The second step: no more than the role's system calls, for all threads.
pub(crate) fn seal(role: Role) {
    report(role, &[sandbox::seal(role)]);
}

fn report(role: Role, protections: &[Protection]) {
    let process = role.name();
    for Protection { name, holds } in protections {
        match holds {
            Holds::Yes => tracing::debug!(process, protection = name, "holds"),
            Holds::Partly(missing) => tracing::warn!(process, protection = name, missing, "holds in part"),
            Holds::No(reason) => tracing::warn!(process, protection = name, reason, "does not hold"),
        }
    }
}

/// Arguments of the hidden subcommand: a process that enters a role and then tries something, for `doctor` and tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long, value_parser = role)]
    role: Role,
    /// Without one, tells which protections hold, as JSON.
    #[arg(long, value_parser = attempt)]
    attempt: Option<Attempt>,
}

fn role(text: &str) -> Result<Role, String> {
    Role::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| "no such role".into())
}

fn attempt(text: &str) -> Result<Attempt, String> {
    Attempt::ALL.into_iter().find(|attempt| attempt.name() == text).ok_or_else(|| "no such attempt".into())
}

pub(crate) fn main(args: &Args) -> Result<()> {
    let mut protections = sandbox::begin(args.role, &[]);
    protections.push(sandbox::seal(args.role));
    let Some(attempt) = args.attempt else {
        let lines: Vec<ProtectionLine> = protections.iter().map(ProtectionLine::of).collect();
        return Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&lines)?)?);
    };
    if let Err(error) = attempt.perform() {
        eprintln!("{error}");
        std::process::exit(REFUSED);
    }
    Ok(())
}

/// A protection, as `doctor` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProtectionLine {
    pub(crate) name: String,
    /// `yes`, `partly` or `no`.
    pub(crate) holds: String,
    /// What is missing; empty if nothing.
    pub(crate) missing: String,
}

impl ProtectionLine {
    fn of(protection: &Protection) -> ProtectionLine {
        let (holds, missing) = match &protection.holds {
            Holds::Yes => ("yes", String::new()),
            Holds::Partly(missing) => ("partly", missing.clone()),
            Holds::No(reason) => ("no", reason.clone()),
        };
        ProtectionLine { name: protection.name.into(), holds: holds.into(), missing }
    }
}

/// What a role gives up on this machine: the protections, and the forbidden things that worked all the same.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RoleLine {
    pub(crate) role: &'static str,
    pub(crate) protections: Vec<ProtectionLine>,
    /// What was tried in vain.
    pub(crate) refused: Vec<&'static str>,
    /// What is forbidden, and worked.
    pub(crate) worked: Vec<&'static str>,
}

/// Enters a role in processes of their own, and tries there what is forbidden.
///
/// # Errors
/// No process can be started.
pub(crate) fn prove(role: Role) -> Result<RoleLine> {
    let output = confined(role, None).stderr(Stdio::inherit()).output().context("cannot start a process")?;
    let protections = serde_json::from_slice(&output.stdout).context("a process in its sandbox said nothing")?;
    let mut line = RoleLine { role: role.name(), protections, refused: Vec::new(), worked: Vec::new() };
    for attempt in Attempt::ALL.into_iter().filter(|attempt| attempt.is_forbidden(role)) {
        let status = confined(role, Some(attempt)).stderr(Stdio::null()).status().context("cannot start a process")?;
        if was_refused(status) { &mut line.refused } else { &mut line.worked }.push(attempt.name());
    }
    Ok(line)
}

/// Refused with an error, or with death.
fn was_refused(status: ExitStatus) -> bool {
    status.code() == Some(REFUSED) || status.signal() == Some(rustix::process::Signal::SYS.as_raw())
}

fn confined(role: Role, attempt: Option<Attempt>) -> Command {
    let mut command = crate::own_program();
    command.args(["confined", "--role", role.name()]).stdin(Stdio::null());
    if let Some(attempt) = attempt {
        command.args(["--attempt", attempt.name()]);
    }
    command
}
