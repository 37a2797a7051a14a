//! One guest: a program that tells its phases, and what its virtual GPU counts meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::ops::{Add, Sub};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::Serialize;

use crate::bench::median;
use crate::stage::Stage;

/// GPUvm's phases, as the programs name them (examples/cuda/check.h).
pub(super) const PHASES: [&str; 5] = ["init", "to_gpu", "launch", "from_gpu", "close"];
/// Longest that a program may say nothing.
const BOUND: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// What mediation has taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(super) struct Counts {
    pub(super) traps: u64,
    pub(super) shadow_updates: u64,
    pub(super) entries_scanned: u64,
    pub(super) hypercalls: u64,
}

impl Counts {
    fn each(self, other: Counts, of: impl Fn(u64, u64) -> u64) -> Counts {
        Counts {
            traps: of(self.traps, other.traps),
            shadow_updates: of(self.shadow_updates, other.shadow_updates),
            entries_scanned: of(self.entries_scanned, other.entries_scanned),
            hypercalls: of(self.hypercalls, other.hypercalls),
        }
    }

    /// Each count's middle.
    pub(super) fn middle(all: Vec<Counts>) -> Counts {
        let middle = |of: fn(&Counts) -> u64| {
            median(&mut all.iter().map(|counts| of(counts) as f64).collect::<Vec<f64>>()) as u64
        };
        Counts {
            traps: middle(|counts| counts.traps),
            shadow_updates: middle(|counts| counts.shadow_updates),
            entries_scanned: middle(|counts| counts.entries_scanned),
            hypercalls: middle(|counts| counts.hypercalls),
        }
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        self.each(other, u64::saturating_add)
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, other: Counts) -> Counts {
        self.each(other, u64::saturating_sub)
    }
}

/// How a guest is started.
pub(super) struct Start<'a> {
    pub(super) command: Command,
    /// The daemon, and the name of its virtual GPU there, which counts.
    pub(super) counted: Option<(&'a Stage, &'a str)>,
    /// It stops after each phase.
    pub(super) stepped: bool,
}

/// What was seen of a guest.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) phases_ms: [f64; PHASES.len()],
    /// This and the next only of one that was stepped.
    pub(super) phase_counts: [Counts; PHASES.len()],
    /// From its beginning to after its end.
    pub(super) counts: Counts,
}

/// Runs guests at the same time; what was seen of each, and how long it took until the last had ended, ms.
pub(super) fn run_all(starts: Vec<Start<'_>>) -> Result<(Vec<Seen>, f64)> {
    let start = Instant::now();
    let seen = std::thread::scope(|scope| {
        let guests: Vec<_> = starts.into_iter().map(|start| scope.spawn(|| run(start))).collect();
        guests.into_iter().map(|guest| guest.join().expect("no panic")).collect::<Result<Vec<Seen>>>()
    })?;
    Ok((seen, start.elapsed().as_secs_f64() * 1e3))
}

fn run(mut start: Start<'_>) -> Result<Seen> {
    let steps = start.stepped && start.counted.is_some();
    let mut guest = Guest::start(&mut start.command, steps)?;
    let mut seen = Seen::default();
    let mut before = Counts::default();
    let told = loop {
        let line = guest.line()?;
        if line.starts_with('{') {
            break line;
        }
        let now = start.counts()?;
        if let Some(phase) = PHASES.iter().position(|phase| *phase == line.trim()) {
            seen.phase_counts[phase] = seen.phase_counts[phase] + (now - before);
        }
        before = now;
        guest.go_on()?;
    };
    guest.end()?;
    if steps {
        seen.counts = start.counts()?;
    }
    let told: serde_json::Value = serde_json::from_str(&told)?;
    if told["passed"] != true {
        bail!("wrong results: {told}");
    }
    for (ms, phase) in seen.phases_ms.iter_mut().zip(PHASES) {
        *ms = told[phase].as_f64().with_context(|| format!("it does not tell the time of {phase}"))?;
    }
    Ok(seen)
}

impl Start<'_> {
    /// What its virtual GPU has counted so far; it is as old as the guest.
    fn counts(&self) -> Result<Counts> {
        let Some((stage, name)) = self.counted else { return Ok(Counts::default()) };
        let listing = stage.vgpus()?;
        let line = listing.vgpus.iter().find(|line| line.name == name).context("the virtual GPU is gone")?;
        Ok(Counts {
            // How many looks for interrupts there are depends on time.
            traps: line.traps - line.looks,
            shadow_updates: line.shadow_updates,
            entries_scanned: line.entries_scanned,
            hypercalls: line.hypercalls,
        })
    }
}

/// Its process.
struct Guest {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Guest {
    /// With `steps`, it stops after each phase.
    fn start(command: &mut Command, steps: bool) -> Result<Guest> {
        command.env("SUNDIAL_PHASES", if steps { "steps" } else { "1" });
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start it")?;
        let input = child.stdin.take().context("piped")?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Guest { child, input, output })
    }

    fn line(&mut self) -> Result<String> {
        if self.output.buffer().is_empty() {
            let mut wanted = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if poll(&mut wanted, Some(&BOUND))? == 0 {
                bail!("it says nothing for {} s", BOUND.tv_sec);
            }
        }
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("it ended without a word: {}", self.child.wait()?);
        }
        Ok(line)
    }

    fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n")?)
    }

    fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A guest that has a context, and nothing to do.
pub(super) struct Idle {
    _stopped: Guest,
}

impl Idle {
    /// Waits until it is there.
    pub(super) fn start(mut command: Command) -> Result<Idle> {
        let mut guest = Guest::start(&mut command, true)?;
        let line = guest.line()?;
        if line.trim() != PHASES[0] {
            bail!("a guest that was to stop said {line:?}");
        }
        Ok(Idle { _stopped: guest })
    }
}
