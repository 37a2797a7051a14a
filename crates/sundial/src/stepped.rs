//! A program that stops between its phases, and what its virtual GPU has counted until then.

use std::io::{BufRead, BufReader, Write};
use std::ops::{Add, Sub};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::Serialize;

use crate::bench::median;
use crate::stage::Stage;

/// Longest that a program may say nothing.
const BOUND: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// What mediation has taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Counts {
    pub(crate) traps: u64,
    pub(crate) shadow_updates: u64,
    pub(crate) entries_scanned: u64,
    pub(crate) hypercalls: u64,
    /// Of `traps`, or noticed otherwise: stores into directories and into tables of pages.
    pub(crate) directory_traps: u64,
    pub(crate) table_traps: u64,
    /// Pages of tables that were compared, and their entries that had changed.
    pub(crate) pages_rebuilt: u64,
    pub(crate) entries_rebuilt: u64,
}

impl Counts {
    /// What a virtual GPU has counted so far; it is as old as the virtual GPU.
    pub(crate) fn of(stage: &Stage, name: &str) -> Result<Counts> {
        let listing = stage.vgpus()?;
        let line = listing.vgpus.iter().find(|line| line.name == name).context("the virtual GPU is gone")?;
        Ok(Counts {
            // How many looks for interrupts there are depends on time.
            traps: line.traps.saturating_sub(line.looks),
            shadow_updates: line.shadow_updates,
            entries_scanned: line.entries_scanned,
            hypercalls: line.hypercalls,
            directory_traps: line.pages.directory_traps,
            table_traps: line.pages.table_traps,
            pages_rebuilt: line.pages.rebuilds_written + line.pages.rebuilds_unknown,
            entries_rebuilt: line.pages.entries_rebuilt,
        })
    }

    fn all(&mut self) -> [&mut u64; 8] {
        let Counts { traps, shadow_updates, entries_scanned, hypercalls, .. } = self;
        let Counts { directory_traps, table_traps, pages_rebuilt, entries_rebuilt, .. } = self;
        [
            traps,
            shadow_updates,
            entries_scanned,
            hypercalls,
            directory_traps,
            table_traps,
            pages_rebuilt,
            entries_rebuilt,
        ]
    }

    fn each(mut self, mut other: Counts, of: impl Fn(u64, u64) -> u64) -> Counts {
        self.all().into_iter().zip(other.all()).for_each(|(one, other)| *one = of(*one, *other));
        self
    }

    /// Each count's middle.
    pub(crate) fn middle(mut all: Vec<Counts>) -> Counts {
        let mut middle = Counts::default();
        for (at, count) in middle.all().into_iter().enumerate() {
            *count = median(&mut all.iter_mut().map(|counts| *counts.all()[at] as f64).collect::<Vec<f64>>()) as u64;
        }
        middle
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

/// A program that tells what its phases took, and, with steps, stops after each, for somebody who looks at the GPU meanwhile
/// (`examples/cuda/check.h`).
pub(crate) struct Stepped {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stepped {
    /// With `steps`, it stops after each phase.
    pub(crate) fn start(command: &mut Command, steps: bool) -> Result<Stepped> {
        Stepped::begin(command, if steps { "steps" } else { "1" })
    }

    /// It stops once, behind the last phase.
    pub(crate) fn start_to_end(command: &mut Command) -> Result<Stepped> {
        Stepped::begin(command, "end")
    }

    fn begin(command: &mut Command, phases: &str) -> Result<Stepped> {
        command.env("SUNDIAL_PHASES", phases);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start it")?;
        let input = child.stdin.take().context("piped")?;
        let output = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Stepped { child, input, output })
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it says next, within [`BOUND`].
    pub(crate) fn line(&mut self) -> Result<String> {
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

    /// Has it go on behind a stop.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        Ok(self.input.write_all(b"\n")?)
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
