//! Who computes, and how each reaches the GPU.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::machine::Machine;
use crate::stage::Stage;

/// How a program reaches a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seat {
    /// As a tenant with a session.
    Session,
    /// As a guest with a driver of its own, on a virtual GPU of this scheme.
    Guest(&'static str),
    /// As a guest in a virtual machine.
    Machine,
    /// On a GPU of its own, in its own process: what the others have a share of, undivided. It takes processor time from them,
    /// which are the software GPU's engines too.
    Native,
}

impl Seat {
    /// What the table says of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Seat::Session => "session",
            Seat::Guest(scheme) => scheme,
            Seat::Machine => "vm",
            Seat::Native => "native",
        }
    }
}

/// One that computes all the time.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) name: &'static str,
    pub(super) seat: Seat,
    pub(super) program: &'static str,
    pub(super) memory: &'static str,
    /// Percent; nothing for who shares nothing.
    pub(super) share: u32,
}

const fn role(name: &'static str, seat: Seat, program: &'static str, memory: &'static str, share: u32) -> Role {
    Role { name, seat, program, memory, share }
}

/// Tenants. Their shares leave 10 % for those who misbehave.
pub(super) const TENANTS: [Role; 3] = [
    role("matrices", Seat::Session, "matrices", "512m", 45),
    role("polynomials", Seat::Session, "polynomials", "256m", 30),
    role("life", Seat::Session, "life", "128m", 15),
];

/// A session and two guests on one GPU, and one who has a GPU alone. Their shares leave that of the machine as well.
pub(super) const GUESTS: [Role; 4] = [
    role("session", Seat::Session, "matrices", "256m", 35),
    role("full", Seat::Guest("fv"), "polynomials", "256m", 25),
    role("para", Seat::Guest("pv"), "life", "256m", 20),
    role("native", Seat::Native, "matrices", "256m", 0),
];

/// One more guest, where there is a QEMU. Its kernels are long: a machine without the processor's help launches slowly.
pub(super) const MACHINE: Role = role("machine", Seat::Machine, "matrices", "256m", 10);

impl Role {
    /// Has it compute for some seconds.
    pub(super) fn start(&self, stage: &Stage, seconds: u64) -> Result<Program> {
        let Role { name, seat, program, memory, share } = *self;
        start(stage, (name, seat), memory, share, &[program, "--seconds", &seconds.to_string()])
    }
}

/// Makes a virtual GPU; the path of its socket.
pub(super) fn virtual_gpu(stage: &Stage, name: &str, memory: &str, share: u32, scheme: &str) -> Result<String> {
    let share = format!("{share}%");
    let terms = ["vgpu", "create", name, "--mem", memory, "--share", &share, "--scheme", scheme];
    output(stage.sundial().args(terms))
}

/// Starts a program under a name; a virtual GPU is made for it, if it needs one.
pub(super) fn start(
    stage: &Stage,
    (name, seat): (&'static str, Seat),
    memory: &str,
    share: u32,
    program: &[&str],
) -> Result<Program> {
    let mut command = stage.sundial();
    command.arg("run");
    match seat {
        Seat::Session => command.args(["--name", name, "--mem", memory, "--share", &format!("{share}%")]),
        Seat::Guest(scheme) => command.args(["--vgpu", &virtual_gpu(stage, name, memory, share, scheme)?]),
        Seat::Machine => bail!("{name} is no program of this machine"),
        Seat::Native => command.arg("--native"),
    };
    command.arg("--").arg(stage.beside("sundial-tenant")?).args(program);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| format!("starting {name}"))?;
    let output = BufReader::new(child.stdout.take().context("piped")?);
    Ok(Program { child, output })
}

/// The line that a command says.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// One of the cast, at work.
pub(super) enum Actor {
    Program(Program),
    Machine(Machine),
}

impl Actor {
    /// Waits for its end; what it reported.
    pub(super) fn finish(self) -> Result<Value> {
        match self {
            Actor::Program(program) => program.finish(),
            Actor::Machine(machine) => machine.finish(),
        }
    }
}

/// The process of a program.
pub(super) struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(super) fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the program said nothing");
        }
        Ok(serde_json::from_str(&line)?)
    }

    pub(super) fn finish(mut self) -> Result<Value> {
        let said = self.line();
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the program ended with {status}");
        }
        said
    }

    /// True until it has ended.
    pub(super) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
