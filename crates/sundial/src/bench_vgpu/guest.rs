//! One guest: a program that tells its phases, and what its virtual GPU counts meanwhile.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::stage::Stage;
use crate::stepped::{Counts, Stepped};

/// GPUvm's phases, as the programs name them (examples/cuda/check.h).
pub(super) const PHASES: [&str; 5] = ["init", "to_gpu", "launch", "from_gpu", "close"];

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
    let mut guest = Stepped::start(&mut start.command, steps)?;
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
        self.counted.map_or_else(|| Ok(Counts::default()), |(stage, name)| Counts::of(stage, name))
    }
}

/// A guest that has a context, and nothing to do.
pub(super) struct Idle {
    _stopped: Stepped,
}

impl Idle {
    /// Waits until it is there.
    pub(super) fn start(mut command: Command) -> Result<Idle> {
        let mut guest = Stepped::start(&mut command, true)?;
        let line = guest.line()?;
        if line.trim() != PHASES[0] {
            bail!("a guest that was to stop said {line:?}");
        }
        Ok(Idle { _stopped: guest })
    }
}
