//! `sundial bench vgpu`: GPUvm's evaluation. Programs with the schemes of virtualization, straight on the GPU, and as sessions;
//! where their time goes, and what mediation did for it.
//!
//! All take turns in one run, with a daemon of their own. The first round is not timed: it fills the daemon's cache of code, and
//! its guests stop after each phase, so that what their virtual GPU has counted until then is that phase's. Compiling is in no
//! phase (`examples/cuda/check.h`): code straight on the GPU is kept by nobody, and would be compiled in each run.
//!
//! - `programs`: what is run. `guest`: one guest's run. `report`: what is printed. `picture`: what is drawn.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::bench::median;
use crate::scheme::Scheme;
use crate::stage::{Stage, VirtualGpu};
use crate::stepped::Counts;

mod guest;
mod picture;
mod programs;
mod report;

use guest::{Idle, PHASES, Seen, Start};
use programs::Program;

/// What `sundial bench vgpu` takes.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Draw whole programs' ratios to native, too.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Which programs, or `all` [default: some, and fewer of them where there are several guests].
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// How many guests at once, each with a virtual GPU of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=8))]
    guests: Vec<u16>,
    /// Which schemes; native, which all are compared with, is always among them.
    #[arg(long, value_delimiter = ',', default_values_t = Way::ALL)]
    schemes: Vec<Way>,
}

/// The device of all.
const GPU: &str = "soft:4g";
/// GPU memory of a guest.
const MEMORY: &str = "256m";
/// Rounds that are timed, unless asked for more.
const ROUNDS: usize = 3;
/// What takes less has no ratio, ms.
const LEAST: f64 = 0.001;
/// Besides the phases: all of them together, and until the last guest has ended.
const SUMS: [&str; 2] = ["total", "finish"];

/// How a program comes to the GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Straight, each program on a GPU of its own.
    Native,
    /// As tenants of the daemon.
    Session,
    /// The whole device for one guest.
    PassThrough,
    /// Full virtualization as it comes.
    FvNaive,
    /// Full virtualization.
    Fv,
    /// Full virtualization, with hybrid shadow page tables: what is stored into the guest's is noticed, not announced.
    Hybrid,
    /// Full virtualization, while another guest is there that does nothing.
    FvBesideIdle,
    /// Para-virtualization.
    Pv,
}

impl Way {
    const ALL: [Way; 8] =
        [Way::Native, Way::Session, Way::PassThrough, Way::FvNaive, Way::Fv, Way::Hybrid, Way::FvBesideIdle, Way::Pv];

    /// That of its virtual GPUs, if it has any.
    fn scheme(self) -> Option<Scheme> {
        match self {
            Way::Native | Way::Session => None,
            Way::PassThrough => Some(Scheme::PassThrough),
            Way::FvNaive => Some(Scheme::FvNaive),
            Way::Fv | Way::Hybrid | Way::FvBesideIdle => Some(Scheme::Fv),
            Way::Pv => Some(Scheme::Pv),
        }
    }

    fn fits(self, guests: u16) -> bool {
        guests == 1 || !matches!(self, Way::PassThrough | Way::FvBesideIdle)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("?", |value| value.get_name()))
    }
}

/// A line of the result.
#[derive(Clone, Serialize, Debug)]
struct Row {
    scheme: Way,
    guests: u16,
    program: &'static str,
    phase: &'static str,
    /// Of a guest; of `finish`, of all.
    ms: f64,
    /// To as many at once of the same program straight on GPUs; none where that takes no time.
    ratio: Option<f64>,
    #[serde(flatten)]
    counts: Counts,
}

/// Those that are compared: a program, by so many guests.
#[derive(Clone, Copy, Debug)]
struct Group {
    program: &'static Program,
    guests: u16,
}

/// What was seen of a group in one way: a round that was counted, and those that were timed.
#[derive(Default)]
struct Runs {
    counted: Vec<Seen>,
    timed: Vec<Seen>,
    finished_ms: Vec<f64>,
}

pub(crate) fn run(arguments: &Arguments, folder: &Path, json: bool, rounds: Option<usize>) -> Result<()> {
    let groups = groups(arguments)?;
    if let Some(group) = groups.iter().find(|group| !folder.join(group.program.file).exists()) {
        let (file, folder) = (group.program.file, folder.display());
        bail!("no {file} in {folder}: build the programs with `cargo xtask examples`, which fetches nvcc");
    }
    let bench = Bench { stage: Stage::open("vgpu", GPU)?, folder };
    let mut ways = arguments.schemes.clone();
    ways.push(Way::Native);
    ways.sort();
    ways.dedup();
    ways.retain(|way| bench.offers(*way));
    let rounds = rounds.unwrap_or(ROUNDS).max(1);
    let mut seen: Vec<BTreeMap<Way, Runs>> = groups.iter().map(|_| BTreeMap::new()).collect();
    for round in 0..=rounds {
        for (group, runs) in groups.iter().zip(&mut seen) {
            bench.round(*group, &ways, (round, rounds), runs)?;
        }
    }
    drop(bench);
    let rows: Vec<Row> = groups.iter().zip(&seen).flat_map(|(group, runs)| rows(*group, runs)).collect();
    if let Some(path) = &arguments.svg {
        picture::draw(path, &rows).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    print(&rows, json)
}

fn groups(arguments: &Arguments) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for &guests in &arguments.guests {
        let programs = programs::select(&arguments.programs, guests)?;
        groups.extend(programs.into_iter().map(|program| Group { program, guests }));
    }
    Ok(groups)
}

/// Rows to standard output; the goals where people read them.
fn print(rows: &[Row], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        report::goals(&mut std::io::stderr(), rows)?;
    } else {
        report::table(&mut out, rows)?;
        report::means(&mut out, rows)?;
        report::goals(&mut out, rows)?;
    }
    Ok(())
}

/// A daemon, and where the programs are.
struct Bench<'a> {
    stage: Stage,
    folder: &'a Path,
}

impl Bench<'_> {
    /// Whether virtual GPUs can be had in this way; says so if not.
    fn offers(&self, way: Way) -> bool {
        let refused = self.vgpu("tried", way).err();
        if let Some(error) = &refused {
            eprintln!("skipped: {way}: {error:#}");
        }
        refused.is_none()
    }

    /// What a guest of that name has in this way, if it is one.
    fn vgpu(&self, name: &str, way: Way) -> Result<Option<VirtualGpu<'_>>> {
        let made = match way {
            Way::Hybrid => Some(self.stage.vgpu_with(name, &["--mem", MEMORY, "--trap", "auto"])),
            _ => way.scheme().map(|scheme| self.stage.vgpu(name, MEMORY, scheme)),
        };
        made.transpose()
    }

    /// One round of a group: each way in turn, every other time in the other direction. Tells how it goes.
    fn round(
        &self,
        group: Group,
        ways: &[Way],
        (round, rounds): (usize, usize),
        runs: &mut BTreeMap<Way, Runs>,
    ) -> Result<()> {
        let mut ways: Vec<Way> = ways.iter().copied().filter(|way| way.fits(group.guests)).collect();
        if round % 2 == 1 {
            ways.reverse();
        }
        let mut told = String::new();
        for way in ways {
            let (seen, finished_ms) = self.run(group, way, round == 0)?;
            told += &format!("  {way} {finished_ms:.0}");
            let runs = runs.entry(way).or_default();
            if round == 0 {
                runs.counted = seen;
            } else {
                runs.timed.extend(seen);
                runs.finished_ms.push(finished_ms);
            }
        }
        let part = if round == 0 { "counted".to_owned() } else { format!("round {round} of {rounds}") };
        eprintln!("{part}: {} guests, {}: until all have ended, ms:{told}", group.guests, group.program.name);
        Ok(())
    }

    /// One run: what was seen of each guest, and how long all took, ms.
    fn run(&self, group: Group, way: Way, stepped: bool) -> Result<(Vec<Seen>, f64)> {
        let Group { program, guests } = group;
        let idle = (way == Way::FvBesideIdle).then(|| self.idle()).transpose()?;
        let names: Vec<String> = (0..guests).map(|number| format!("{way}-{number}")).collect();
        let vgpus = names.iter().map(|name| self.vgpu(name, way)).collect::<Result<Vec<_>>>()?;
        let starts = names.iter().zip(&vgpus).map(|(name, vgpu)| {
            let mut command = self.stage.sundial();
            command.arg("run");
            match vgpu {
                Some(vgpu) => command.arg("--vgpu").arg(&vgpu.socket),
                None if way == Way::Native => command.args(["--native", "--gpu", GPU]),
                None => command.args(["--name", name, "--mem", MEMORY]),
            };
            command.arg("--").arg(self.folder.join(program.file)).args(program.arguments);
            Start { command, counted: vgpu.is_some().then_some((&self.stage, name.as_str())), stepped }
        });
        let result = guest::run_all(starts.collect());
        drop((idle, vgpus));
        result.with_context(|| format!("{}, {way}, {guests} at once", program.name))
    }

    /// A guest that has begun and does nothing, with its virtual GPU.
    fn idle(&self) -> Result<(Idle, VirtualGpu<'_>)> {
        let vgpu = self.stage.vgpu("idle", MEMORY, Scheme::Fv)?;
        let mut command = self.stage.sundial();
        command.args(["run", "--vgpu"]).arg(&vgpu.socket).arg("--").arg(self.folder.join("micro")).arg("nop");
        Ok((Idle::start(command)?, vgpu))
    }
}

fn rows(group: Group, runs: &BTreeMap<Way, Runs>) -> Vec<Row> {
    let Group { program: &Program { name: program, .. }, guests } = group;
    let native = runs.get(&Way::Native).map(Runs::lines).unwrap_or_default();
    let mut rows = Vec::new();
    for (&scheme, seen) in runs {
        for (index, (phase, ms, counts)) in seen.lines().into_iter().enumerate() {
            let native = native.get(index).map_or(0.0, |(_, ms, _)| *ms);
            let ratio = (native >= LEAST).then(|| ms / native);
            rows.push(Row { scheme, guests, program, phase, ms, ratio, counts });
        }
    }
    rows
}

impl Runs {
    /// Phase, milliseconds, counts: of the guest in the middle, and of all together.
    fn lines(&self) -> Vec<(&'static str, f64, Counts)> {
        let time = |of: &dyn Fn(&Seen) -> f64| median(&mut self.timed.iter().map(of).collect::<Vec<f64>>());
        let count = |of: &dyn Fn(&Seen) -> Counts| Counts::middle(self.counted.iter().map(of).collect());
        let phase = |(at, name): (usize, &&'static str)| {
            (*name, time(&|seen| seen.phases_ms[at]), count(&|seen| seen.phase_counts[at]))
        };
        let mut lines: Vec<_> = PHASES.iter().enumerate().map(phase).collect();
        let all = self.counted.iter().fold(Counts::default(), |sum, seen| sum + seen.counts);
        lines.push((SUMS[0], time(&|seen| seen.phases_ms.iter().sum()), count(&|seen| seen.counts)));
        lines.push((SUMS[1], median(&mut self.finished_ms.clone()), all));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(factor: f64, traps: u64) -> Seen {
        let counts = Counts { traps, ..Counts::default() };
        Seen { phases_ms: [4.0 * factor, 0.0, factor, 2.0, 1.0], phase_counts: [counts; PHASES.len()], counts }
    }

    fn some_rows() -> Vec<Row> {
        let run = |factor, traps| Runs {
            counted: vec![seen(factor, traps), seen(factor, traps + 2), seen(factor, traps + 1)],
            timed: vec![seen(factor, 0), seen(1000.0, 0), seen(0.0, 0)],
            finished_ms: vec![10.0 * factor],
        };
        let runs = BTreeMap::from([(Way::Native, run(1.0, 0)), (Way::Fv, run(3.0, 7))]);
        rows(Group { program: &programs::PROGRAMS[0], guests: 2 }, &runs)
    }

    #[test]
    fn rows_compare_the_middle_with_native() {
        let rows = some_rows();
        assert_eq!(rows.len(), 2 * (PHASES.len() + SUMS.len()));
        let fv = |phase: &str| rows.iter().find(|row| row.scheme == Way::Fv && row.phase == phase).unwrap();
        let of = |phase: &str| (fv(phase).ms, fv(phase).ratio, fv(phase).counts.traps);
        assert_eq!(of("init"), (12.0, Some(3.0), 8));
        assert_eq!(of("to_gpu"), (0.0, None, 8), "what takes no time has no ratio");
        assert_eq!(of("total"), (18.0, Some(18.0 / 8.0), 8));
        assert_eq!(of("finish"), (30.0, Some(3.0), 7 + 9 + 8));
        let json = serde_json::to_value(fv("init")).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        let wanted = ["entries_scanned", "guests", "hypercalls", "ms", "phase", "program", "ratio", "scheme", "traps"];
        assert!(wanted.iter().all(|key| keys.iter().any(|there| there == key)), "{keys:?}");
        assert_eq!((&json["scheme"], &json["program"]), (&"fv".into(), &"nop".into()));
    }

    #[test]
    fn a_table_has_a_line_for_each_way() {
        let mut out = Vec::new();
        report::table(&mut out, &some_rows()).unwrap();
        report::means(&mut out, &some_rows()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        let expected = ["nop", "2", "fv", "12.00", "0.00", "3.00", "2.00", "1.00", "18.00", "30.00", "2.25", "8"];
        assert_eq!(line[..12], expected, "{text}");
        let mean: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(mean, ["2", "fv", "3.00", "1.00", "2.25", "3.00"], "{text}");
    }

    #[test]
    fn a_picture_has_a_bar_for_each_scheme() {
        let path = std::env::temp_dir().join(format!("bench-vgpu-{}.svg", std::process::id()));
        picture::draw(&path, &some_rows()).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.trim_start().starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["2 guests", "fv", "nop"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(picture::draw(&path, &[]).is_err(), "of nothing there is no picture");
    }
}
