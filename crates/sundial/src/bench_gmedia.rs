//! `sundial bench gmedia`: gHyvi's evaluation (USENIX ATC 2015). Pictures a second of a program whose surfaces are mapped and
//! unmapped with every picture (`examples/cuda/gmedia.cu`), in each way that a guest's page tables can be followed, straight on
//! the GPU, and as a session.
//!
//! All take turns in one run, with a daemon of their own, and the program warms up before it is timed. It stops before and after
//! that: what a virtual GPU has counted in between is that of the pictures.
//!
//! - `ways`: the table of what is compared. `picture`: what is drawn.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::bench::median;
use crate::stage::{Stage, VirtualGpu};
use crate::stepped::{Counts, Stepped};

mod picture;
mod ways;

use ways::{NATIVE, Via, Way};

/// What `sundial bench gmedia` takes.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// What is done with pictures.
    #[arg(long, value_delimiter = ',', default_values_t = [Case::Transcode, Case::Churn])]
    case: Vec<Case>,
    /// Of the source: 240p to 1080p, or WxH; the target's is one step below.
    #[arg(long, value_delimiter = ',', default_value = "480p,720p")]
    resolution: Vec<String>,
    /// How many at once, each with a context and a stream of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Bits a second of the target, as 800k or 2m [default: 0.1 for each pixel].
    #[arg(long)]
    bitrate: Option<String>,
    /// Pictures that a second of the target has [default: 30].
    #[arg(long)]
    fps: Option<String>,
    /// Pictures of each thread [default: 24 to transcode, 600 to copy].
    #[arg(long)]
    frames: Option<u32>,
    /// Surfaces of all threads together that are there at once, when they are copied.
    #[arg(long, default_value_t = 128)]
    surfaces: u32,
    /// In which ways: scheme/rebuild/trap, or as much of it as there is to say: `strict` is strict/bar and strict/decode; `all`.
    /// Native, which all are compared with, is always among them [default: session, strict, relaxed/full/snapshot, hybrid, fv, pv].
    #[arg(long, value_delimiter = ',')]
    schemes: Vec<String>,
    /// A folder for pictures of each case: pictures a second, to native, and by threads; and what traps are for in strict
    /// shadowing.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// What is done with pictures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Case {
    /// They are decoded, scaled and coded again.
    Transcode,
    /// They are copied through a large pool of surfaces.
    Churn,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("?", |value| value.get_name()))
    }
}

/// The device of all.
const GPU: &str = "soft:4g";
/// GPU memory of a guest. Surfaces are none of it.
const MEMORY: &str = "512m";
/// Host memory of a guest: surfaces.
const HOST_MEMORY: &str = "2g";
/// What a tenant is called.
const NAME: &str = "media";
/// Rounds, unless asked for others.
const ROUNDS: usize = 3;

/// Those that are compared.
#[derive(Clone, Debug)]
struct Group {
    case: Case,
    resolution: String,
    threads: u16,
}

/// What one run told, as far as it is shown here.
#[derive(Deserialize, Debug)]
struct Told {
    passed: bool,
    fps: f64,
    fps_per_thread: f64,
    psnr: Option<f64>,
    map_ms: f64,
    mapped_bytes: f64,
}

/// One run: what the program told, and what its virtual GPU counted meanwhile.
#[derive(Debug)]
struct Seen {
    told: Told,
    counts: Counts,
}

/// A line of the result. The figures are the rounds' medians.
#[derive(Clone, Serialize, Debug)]
struct Row {
    case: Case,
    scheme: &'static str,
    rebuild: Option<&'static str>,
    trap: Option<&'static str>,
    resolution: String,
    threads: u16,
    /// Pictures of each thread.
    frames: u32,
    fps: f64,
    fps_per_thread: f64,
    /// Of `fps`, to native's.
    ratio: f64,
    psnr: Option<f64>,
    /// For a picture: calls that map and unmap, and what they map.
    map_ms: f64,
    mapped_bytes: f64,
    #[serde(flatten)]
    counts: Counts,
}

impl Row {
    /// Of all threads.
    fn pictures(&self) -> f64 {
        f64::from(self.frames) * f64::from(self.threads)
    }

    /// Traps for stores into page tables, into directories, and for all else: accesses of registers, and stores elsewhere.
    fn reasons(&self) -> [u64; 3] {
        let Counts { traps, table_traps, directory_traps, .. } = self.counts;
        [table_traps, directory_traps, traps.saturating_sub(table_traps + directory_traps)]
    }
}

pub(crate) fn run(arguments: &Arguments, folder: &Path, json: bool, rounds: Option<usize>) -> Result<()> {
    let program = folder.join("gmedia");
    if !program.exists() {
        bail!("no gmedia in {}: build it with `cargo xtask examples`, which fetches nvcc", folder.display());
    }
    let bench = Bench { stage: Stage::open("gmedia", GPU)?, program, arguments };
    let mut ways = ways::select(&arguments.schemes)?;
    ways.retain(|way| bench.offers(way));
    let rounds = rounds.unwrap_or(ROUNDS).max(1);
    let mut rows = Vec::new();
    for group in groups(arguments) {
        let mut seen: Vec<Vec<Seen>> = ways.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            bench.round(&group, &ways, (round, rounds), &mut seen)?;
        }
        rows.extend(rows_of(&group, bench.frames(group.case), &ways, &seen));
    }
    drop(bench);
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
    } else {
        table(&mut out, &rows)?;
    }
    // Last: what was measured is told even if it cannot be drawn.
    if let Some(folder) = &arguments.svg {
        std::fs::create_dir_all(folder)?;
        for case in &arguments.case {
            let draw = |name: &str, draw: &dyn Fn(&Path) -> Result<()>| {
                let path = folder.join(format!("{case}{name}.svg"));
                draw(&path).with_context(|| format!("cannot draw {}", path.display()))
            };
            draw("", &|path| picture::draw(path, *case, &rows))?;
            if arguments.threads.len() > 1 {
                draw("-by-threads", &|path| picture::draw_by_threads(path, *case, &rows))?;
            }
            if rows.iter().any(|row| row.scheme == "strict" && row.trap == Some("bar")) {
                draw("-traps", &|path| picture::draw_traps(path, *case, &rows, "strict/bar"))?;
            }
        }
    }
    Ok(())
}

fn groups(arguments: &Arguments) -> Vec<Group> {
    let mut groups = Vec::new();
    for &case in &arguments.case {
        for resolution in &arguments.resolution {
            let group = |&threads| Group { case, resolution: resolution.clone(), threads };
            groups.extend(arguments.threads.iter().map(group));
        }
    }
    groups
}

/// A daemon, and the program.
struct Bench<'a> {
    stage: Stage,
    program: PathBuf,
    arguments: &'a Arguments,
}

impl Bench<'_> {
    fn frames(&self, case: Case) -> u32 {
        self.arguments.frames.unwrap_or(if case == Case::Transcode { 24 } else { 600 })
    }

    /// Whether virtual GPUs can be had in this way; says so if not.
    fn offers(&self, way: &Way) -> bool {
        let Via::Guest(options) = &way.via else { return true };
        let refused = self.vgpu(options).err();
        if let Some(error) = &refused {
            eprintln!("skipped: {}: {error:#}", way.name());
        }
        refused.is_none()
    }

    fn vgpu(&self, options: &[&str]) -> Result<VirtualGpu<'_>> {
        let memory = ["--mem", MEMORY, "--host-mem", HOST_MEMORY];
        self.stage.vgpu_with(NAME, &[&memory, options].concat())
    }

    /// One round of a group: each way in turn, every other time in the other direction. Tells how it goes.
    fn round(
        &self,
        group: &Group,
        ways: &[Way],
        (round, rounds): (usize, usize),
        seen: &mut [Vec<Seen>],
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut told = String::new();
        for index in order {
            let way = &ways[index];
            let run = self.run(group, way).with_context(|| format!("{group:?}, {}", way.name()))?;
            told += &format!("  {} {:.0}", way.name(), run.told.fps);
            seen[index].push(run);
        }
        let Group { case, resolution, threads } = group;
        eprintln!("round {} of {rounds}: {case}, {resolution}, {threads} threads: pictures a second:{told}", round + 1);
        Ok(())
    }

    fn run(&self, group: &Group, way: &Way) -> Result<Seen> {
        let mut command = self.stage.sundial();
        command.arg("run");
        let mut vgpu = None;
        match &way.via {
            Via::Native => {
                command.args(["--native", "--gpu", GPU]);
            }
            Via::Session => {
                command.args(["--name", NAME, "--mem", MEMORY, "--host-mem", HOST_MEMORY]);
            }
            Via::Guest(options) => {
                let made = vgpu.insert(self.vgpu(options)?);
                command.arg("--vgpu").arg(&made.socket);
            }
        }
        command.arg("--").arg(&self.program);
        self.ask(group, &mut command);
        let counts = || vgpu.as_ref().map_or_else(|| Ok(Counts::default()), |_| Counts::of(&self.stage, NAME));
        let mut program = Stepped::start(&mut command, true)?;
        let mut at = Vec::new();
        for step in ["begin", "end"] {
            let line = program.line()?;
            if line.trim() != step {
                bail!("it says {line:?} where it was to {step}");
            }
            at.push(counts()?);
            program.go_on()?;
        }
        let told: Told = serde_json::from_str(&program.line()?)?;
        program.end()?;
        if !told.passed {
            bail!("wrong results");
        }
        Ok(Seen { told, counts: at[1] - at[0] })
    }

    /// What the program is told.
    fn ask(&self, group: &Group, command: &mut Command) {
        let Arguments { bitrate, fps, surfaces, .. } = self.arguments;
        let threads = u32::from(group.threads);
        let mut flag = |name: &str, value: &str| {
            command.arg(format!("--{name}")).arg(value);
        };
        flag("case", &group.case.to_string());
        flag("resolution", &group.resolution);
        flag("threads", &threads.to_string());
        flag("frames", &self.frames(group.case).to_string());
        flag("surfaces", &(surfaces / threads).max(4).to_string());
        for (name, value) in [("bitrate", bitrate), ("fps", fps)] {
            if let Some(value) = value {
                flag(name, value);
            }
        }
        command.arg("--json");
    }
}

fn rows_of(group: &Group, frames: u32, ways: &[Way], seen: &[Vec<Seen>]) -> Vec<Row> {
    let middle = |runs: &[Seen], of: fn(&Seen) -> f64| median(&mut runs.iter().map(of).collect::<Vec<f64>>());
    let fps = |runs: &[Seen]| middle(runs, |seen| seen.told.fps);
    let native = ways.iter().zip(seen).find(|(way, _)| way.scheme == NATIVE).map_or(f64::NAN, |(_, runs)| fps(runs));
    let row = |(way, runs): (&Way, &Vec<Seen>)| Row {
        case: group.case,
        scheme: way.scheme,
        rebuild: way.rebuild,
        trap: way.trap,
        resolution: group.resolution.clone(),
        threads: group.threads,
        frames,
        fps: fps(runs),
        fps_per_thread: middle(runs, |seen| seen.told.fps_per_thread),
        ratio: fps(runs) / native,
        psnr: runs.first().and_then(|seen| seen.told.psnr),
        map_ms: middle(runs, |seen| seen.told.map_ms),
        mapped_bytes: middle(runs, |seen| seen.told.mapped_bytes),
        counts: Counts::middle(runs.iter().map(|seen| seen.counts).collect()),
    };
    ways.iter().zip(seen).map(row).collect()
}

fn table(out: &mut impl Write, rows: &[Row]) -> Result<()> {
    writeln!(
        out,
        "{:<10}{:>11}{:>8} {:<9}{:<11}{:<10}{:>9}{:>9}{:>7}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}{:>7}{:>9}",
        "case",
        "resolution",
        "threads",
        "scheme",
        "rebuild",
        "trap",
        "fps",
        "each",
        "ratio",
        "psnr",
        "map ms",
        "traps",
        "stores",
        "updates",
        "scanned",
        "pages",
        "entries"
    )?;
    for row in rows {
        let each = |count: u64| count as f64 / row.pictures();
        let Counts {
            traps,
            directory_traps,
            table_traps,
            shadow_updates,
            entries_scanned,
            pages_rebuilt,
            entries_rebuilt,
            ..
        } = row.counts;
        write!(out, "{:<10}{:>11}{:>8} {:<9}", row.case, row.resolution, row.threads, row.scheme)?;
        write!(out, "{:<11}{:<10}", row.rebuild.unwrap_or("-"), row.trap.unwrap_or("-"))?;
        write!(out, "{:>9.1}{:>9.1}{:>7.2}", row.fps, row.fps_per_thread, row.ratio)?;
        write!(out, "{:>8}", row.psnr.map_or("-".into(), |psnr| format!("{psnr:.2}")))?;
        writeln!(
            out,
            "{:>8.3}{:>8.1}{:>8.1}{:>9.1}{:>9.0}{:>7.1}{:>9.1}",
            row.map_ms,
            each(traps),
            each(directory_traps + table_traps),
            each(shadow_updates),
            each(entries_scanned),
            each(pages_rebuilt),
            each(entries_rebuilt)
        )?;
    }
    writeln!(
        out,
        "\nfps: of all threads; each: of one; ratio: of fps, to native; counts: for a picture (stores: those into page tables that were noticed)"
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(fps: f64, traps: u64) -> Seen {
        let told =
            Told { passed: true, fps, fps_per_thread: fps / 2.0, psnr: Some(30.0), map_ms: 0.5, mapped_bytes: 8192.0 };
        Seen { told, counts: Counts { traps, ..Counts::default() } }
    }

    fn some_rows() -> Vec<Row> {
        let ways = ways::select(&["strict/bar".into()]).unwrap();
        let group = Group { case: Case::Churn, resolution: "480p".into(), threads: 2 };
        let runs =
            [vec![seen(100.0, 0), seen(300.0, 0), seen(200.0, 0)], vec![seen(90.0, 8), seen(20.0, 4), seen(50.0, 6)]];
        rows_of(&group, 3, &ways, &runs)
    }

    #[test]
    fn rows_compare_the_middle_with_native() {
        let rows = some_rows();
        assert_eq!(rows.iter().map(|row| row.scheme).collect::<Vec<_>>(), ["native", "strict"]);
        assert_eq!((rows[0].fps, rows[0].ratio, rows[1].fps, rows[1].ratio), (200.0, 1.0, 50.0, 0.25));
        assert_eq!((rows[1].fps_per_thread, rows[1].counts.traps), (25.0, 6));
        let json = serde_json::to_value(&rows[1]).unwrap();
        let keys = [
            "case",
            "scheme",
            "rebuild",
            "trap",
            "resolution",
            "threads",
            "fps",
            "fps_per_thread",
            "ratio",
            "traps",
            "pages_rebuilt",
            "entries_rebuilt",
            "psnr",
        ];
        assert!(keys.iter().all(|key| json.get(key).is_some()), "{json}");
        assert_eq!(
            (&json["case"], &json["rebuild"], &json["traps"]),
            (&"churn".into(), &serde_json::Value::Null, &6.into())
        );
    }

    #[test]
    fn a_table_has_a_line_for_each_row() {
        let mut out = Vec::new();
        table(&mut out, &some_rows()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        let wanted = "churn 480p 2 strict - bar 50.0 25.0 0.25 30.00 0.500 1.0 0.0 0.0 0 0.0 0.0";
        let wanted: Vec<&str> = wanted.split(' ').collect();
        assert_eq!(words, wanted, "{text}");
    }

    #[test]
    fn a_picture_names_what_it_compares() {
        let path = std::env::temp_dir().join(format!("bench-gmedia-{}.svg", std::process::id()));
        picture::draw(&path, Case::Churn, &some_rows()).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.trim_start().starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in ["churn", "480p", "2 threads", "strict"] {
            assert!(svg.contains(word), "{word}");
        }
        type Draw = fn(&Path) -> Result<()>;
        let others: [(Draw, &str); 2] = [
            (|path| picture::draw_by_threads(path, Case::Churn, &some_rows()), "native"),
            (|path| picture::draw_traps(path, Case::Churn, &some_rows(), "strict/bar"), "stores into directories"),
        ];
        for (draw, word) in others {
            draw(&path).unwrap();
            assert!(std::fs::read_to_string(&path).unwrap().contains(word), "{word}");
            std::fs::remove_file(&path).unwrap();
        }
        assert!(picture::draw(&path, Case::Transcode, &some_rows()).is_err(), "of nothing there is no picture");
    }
}
