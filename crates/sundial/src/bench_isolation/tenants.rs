//! The tenants: processes that know nothing of the scheduler, each a session or a guest.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::TENANTS;
use crate::scheme::Scheme;
use crate::stage::{Stage, VirtualGpu};

/// What the tenants are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// All are sessions.
    Sessions,
    /// All are guests with a virtual GPU of scheme fv.
    Guests,
    /// Guests with schemes fv and pv, and between them a session.
    Mixed,
}

/// What one of them is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Session,
    Guest(Scheme),
}

/// GPU memory of each.
const MEMORY: &str = "256m";

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Sessions, Kind::Guests, Kind::Mixed];

    fn places(self) -> [Place; TENANTS.len()] {
        match self {
            Kind::Sessions => [Place::Session; TENANTS.len()],
            Kind::Guests => [Place::Guest(Scheme::Fv); TENANTS.len()],
            Kind::Mixed => [Place::Guest(Scheme::Fv), Place::Session, Place::Guest(Scheme::Pv)],
        }
    }

    /// Starts them all.
    pub(super) fn start(self, stage: &Stage) -> Result<Vec<Program<'_>>> {
        let start = |((name, _), place): (&(&'static str, u64), Place)| Program::start(stage, name, place);
        TENANTS.iter().zip(self.places()).map(start).collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("?", |value| value.get_name()))
    }
}

/// A tenant's process: a probe. It is killed when this is dropped, and its virtual GPU is destroyed.
#[derive(Debug)]
pub(super) struct Program<'a> {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
    _vgpu: Option<VirtualGpu<'a>>,
}

impl<'a> Program<'a> {
    fn start(stage: &'a Stage, name: &str, place: Place) -> Result<Program<'a>> {
        let mut command = stage.sundial();
        command.arg("run");
        let vgpu = match place {
            Place::Session => {
                command.args(["--name", name, "--mem", MEMORY]);
                None
            }
            Place::Guest(scheme) => {
                let vgpu = stage.vgpu(name, MEMORY, scheme)?;
                command.arg("--vgpu").arg(&vgpu.socket);
                Some(vgpu)
            }
        };
        let mut child = command
            .arg("--")
            .arg(stage.beside("sundial-probe")?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let ask = child.stdin.take().context("piped")?;
        let answers = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Program { child, ask, answers, _vgpu: vgpu })
    }

    /// Has it run kernels of so many rounds, one after the other.
    pub(super) fn ask(&mut self, rounds: u64, kernels: u32) -> Result<()> {
        Ok(writeln!(self.ask, "busy-{rounds} {kernels}")?)
    }

    /// Seconds that they took.
    pub(super) fn answer(&mut self) -> Result<f64> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the probe ended: {}", self.child.wait()?);
        }
        let answer: serde_json::Value = serde_json::from_str(&line)?;
        answer["seconds"].as_f64().context("the probe's answer has no seconds")
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
