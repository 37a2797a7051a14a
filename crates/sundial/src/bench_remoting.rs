//! `sundial bench remoting`: what the way to the daemon costs, and what sharing memory and not waiting for answers save: the
//! evaluations of two papers, "Optimizing GPU Virtualization with Address Mapping and Delayed Submission" (HPCC 2014) and
//! "GPU Virtualization for High Performance General Purpose Computing on the ESX Hypervisor" (vmCUDA, HPC 2014).
//!
//! A mode is what `sundial run` takes by the same options. All take turns in one run, with a daemon of their own.
//!
//! - `client`: a process that is measured, and what was counted of it. `probes`: copies, calls, blocks. `programs`: whole
//!   programs, one and several at once. `report`: what is printed. `picture`: what is drawn.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::bench::median;
use crate::stage::Stage;

mod client;
mod picture;
mod probes;
mod programs;
mod report;

use client::Counts;

/// What `sundial bench remoting` takes.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// Draw copies, blocks, programs and tenants into this folder, too.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// What is measured.
    #[arg(long, value_delimiter = ',', default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// Tenants at once.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=8))]
    tenants: Vec<u16>,
    /// Largest copy, as 64m.
    #[arg(long, default_value = "64m", value_name = "SIZE")]
    largest: crate::size::Size,
    /// Which programs, alone.
    #[arg(long, value_delimiter = ',', default_values_t = programs::names().map(String::from),
        value_parser = clap::builder::PossibleValuesParser::new(programs::names()))]
    programs: Vec<String>,
    /// Programs with the data sizes of vmCUDA's paper, but for stereo disparity: minutes, and some GiB of memory.
    #[arg(long)]
    paper: bool,
}

const HELP: &str = "\
Modes, by the options of `sundial run` that make them:
  native    --native: straight on the GPU; what ratio refers to
  baseline  --transport socket --submission answered --copies staged: a message for each call, on a unix
            socket, and an answer to each; copies travel in messages of 64k, staged at both ends (gVirtuS)
  mapped    --transport socket --submission answered: the same, but copies go straight to mapped memory
  delayed   --copies staged: calls go into rings and are not answered; copies by shared memory, in blocks
  both      what `sundial run` does

Rows, of one copy, one call or one program (ms: the middle of the rounds; native has no daemon to count):
  what    h2d, d2h (copies of `bytes` of pageable memory); launch, launch-synchronize, alloc-free-1048576;
          block-h2d, block-d2h (copies of `--largest` by blocks of `bytes`, 128k to 128m, at most twice
          that); h2d-at-once; programs by name; gpu-bound, cpu-bound, mixed (`tenants` programs at once)
  ratio   of ms, to native       calls        of the CUDA driver API       round_trips  answers waited for
  cpu_ms  of the process         gpu_ms       had of the GPU, as metered
  copy_ms copying, in its library             wait_ms  waiting there, for answers and for the GPU";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Copies by size.
    Copies,
    /// Single calls.
    Calls,
    /// Copies by the size of blocks.
    Blocks,
    /// Whole programs.
    Programs,
    /// Several programs at once.
    Tenants,
}

impl Part {
    const ALL: [Part; 5] = [Part::Copies, Part::Calls, Part::Blocks, Part::Programs, Part::Tenants];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("?", |value| value.get_name()))
    }
}

/// How a program comes to the GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Native,
    Baseline,
    Mapped,
    Delayed,
    Both,
}

impl Mode {
    const ALL: [Mode; 5] = [Mode::Native, Mode::Baseline, Mode::Mapped, Mode::Delayed, Mode::Both];

    /// Options of `sundial run`.
    fn options(self) -> &'static [&'static str] {
        const SOCKET: [&str; 6] = ["--transport", "socket", "--submission", "answered", "--copies", "staged"];
        match self {
            Mode::Native => &["--native", "--gpu", GPU],
            Mode::Baseline => &SOCKET,
            Mode::Mapped => SOCKET.split_at(4).0,
            Mode::Delayed => SOCKET.split_at(4).1,
            Mode::Both => &[],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Baseline => "baseline",
            Mode::Mapped => "mapped",
            Mode::Delayed => "delayed",
            Mode::Both => "both",
        }
    }
}

/// The device of all.
const GPU: &str = "soft:4g";
/// Rounds that are timed, unless asked for more.
const ROUNDS: usize = 3;

/// A line of the result.
#[derive(Clone, Serialize, Debug)]
pub(crate) struct Row {
    mode: Mode,
    what: String,
    /// That are copied, or of a block; 0 of what is no copy.
    bytes: u64,
    tenants: u16,
    ms: f64,
    /// To native, where it was measured.
    ratio: Option<f64>,
    #[serde(flatten)]
    counts: Counts,
}

/// What was seen in one mode: times of the rounds, ms, and their counts.
#[derive(Clone, Debug, Default)]
struct Seen {
    ms: Vec<f64>,
    counts: Vec<Counts>,
}

impl Seen {
    fn add(&mut self, ms: f64, counts: Counts) {
        self.ms.push(ms);
        self.counts.push(counts);
    }
}

/// Rows of those that are compared with each other, native among them.
fn rows(what: &str, bytes: u64, tenants: u16, seen: &mut [(Mode, Seen)]) -> Vec<Row> {
    let middle = |seen: &Seen| median(&mut seen.ms.clone());
    let native = seen.iter().find(|(mode, _)| *mode == Mode::Native).map(|(_, seen)| middle(seen));
    let row = |(mode, seen): &(Mode, Seen)| {
        let ms = middle(seen);
        let ratio = native.filter(|native| *native > 0.0).map(|native| ms / native);
        Row { mode: *mode, what: what.to_owned(), bytes, tenants, ms, ratio, counts: Counts::middle(&seen.counts) }
    };
    seen.iter().map(row).collect()
}

pub(crate) fn run(arguments: &Arguments, folder: &Path, json: bool, rounds: Option<usize>) -> Result<()> {
    let rounds = rounds.unwrap_or(ROUNDS).max(1);
    let stage = Stage::open("remoting", GPU)?;
    let mut found = Found::default();
    for part in &arguments.parts {
        eprintln!("{part}:");
        match part {
            Part::Copies => probes::copies(&stage, arguments.largest.0, rounds, &mut found.rows)?,
            Part::Calls => probes::calls(&stage, rounds, &mut found.rows)?,
            Part::Blocks => {
                probes::blocks(&stage, arguments.largest.0, rounds, &mut found.rows)?;
                probes::at_once(&stage, arguments.largest.0, &arguments.tenants, rounds, &mut found)?;
            }
            Part::Programs => {
                programs::alone(&stage, folder, &arguments.programs, arguments.paper, rounds, &mut found)?;
            }
            Part::Tenants => programs::together(&stage, folder, &arguments.tenants, &mut found)?,
        }
    }
    drop(stage);
    if let Some(folder) = &arguments.svg {
        picture::draw(folder, &found.rows).with_context(|| format!("cannot draw into {}", folder.display()))?;
    }
    report::print(&found, json)
}

/// All that was measured.
#[derive(Debug, Default)]
struct Found {
    rows: Vec<Row>,
    /// Sentences for people.
    notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ms: &[f64], round_trips: f64) -> Seen {
        let counts = Counts { round_trips: Some(round_trips), ..Counts::default() };
        Seen { ms: ms.to_vec(), counts: vec![counts; ms.len()] }
    }

    pub(super) fn some_rows() -> Vec<Row> {
        let mut all = Vec::new();
        for (bytes, factor) in [(4096, 1.0), (64 << 20, 100.0)] {
            let times = |ms: f64| seen(&[1000.0, ms * factor, 0.0], 1.0);
            let mut seen = [
                (Mode::Native, times(1.0)),
                (Mode::Baseline, times(10.0)),
                (Mode::Mapped, times(1.25)),
                (Mode::Delayed, times(2.0)),
                (Mode::Both, times(1.0)),
            ];
            all.extend(rows("h2d", bytes, 1, &mut seen));
        }
        let mut calls = Mode::ALL.map(|mode| (mode, seen(&[1.0 + f64::from(mode == Mode::Baseline) * 10.0], 1.0)));
        all.extend(rows("launch", 0, 1, &mut calls));
        all
    }

    #[test]
    fn rows_compare_the_middle_with_native() {
        let rows = some_rows();
        let row = rows.iter().find(|row| row.mode == Mode::Baseline && row.bytes == 64 << 20).unwrap();
        assert_eq!((row.ms, row.ratio), (1000.0, Some(10.0)));
        let json = serde_json::to_value(row).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        let wanted = [
            "bytes",
            "calls",
            "copy_ms",
            "cpu_ms",
            "gpu_ms",
            "mode",
            "ms",
            "ratio",
            "round_trips",
            "tenants",
            "wait_ms",
            "what",
        ];
        assert_eq!(keys, wanted);
        assert_eq!((&json["mode"], &json["gpu_ms"]), (&"baseline".into(), &serde_json::Value::Null));
    }

    #[test]
    fn modes_are_options_of_run() {
        assert_eq!(Mode::Baseline.options().len(), Mode::Mapped.options().len() + Mode::Delayed.options().len());
        assert_eq!(Mode::Delayed.options(), ["--copies", "staged"]);
        assert!(HELP.lines().all(|line| line.chars().count() <= 106));
        assert!(Mode::ALL.iter().all(|mode| HELP.contains(mode.name())));
    }

    #[test]
    fn pictures_are_drawn_of_what_there_is() {
        let folder = std::env::temp_dir().join(format!("bench-remoting-{}", std::process::id()));
        picture::draw(&folder, &some_rows()).unwrap();
        let svg = std::fs::read_to_string(folder.join("copies.svg")).unwrap();
        for word in ["</svg>", "baseline", "mapped", "h2d"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(!folder.join("blocks.svg").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
