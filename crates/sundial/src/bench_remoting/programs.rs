//! Whole programs, from their start to their end, alone and several at once.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::client::Counts;
use super::{Found, Mode, Seen, rows};
use crate::bench::median;
use crate::stage::Stage;
use crate::stepped::Stepped;

/// One of vmCUDA's five programs, as its paper names it.
struct Program {
    name: &'static str,
    /// Of the GPU's part, with the sizes that are usual here.
    repeat: &'static str,
    /// What the data are, here and in the paper.
    here: &'static str,
    paper: &'static str,
    /// The software GPU has the paper's size in reasonable time.
    feasible: bool,
}

const PROGRAMS: [Program; 5] = [
    Program { name: "binomial_options", repeat: "1", here: "64 options", paper: "4,096 options", feasible: true },
    Program { name: "black_scholes", repeat: "4", here: "10^6 options", paper: "10^8 options", feasible: true },
    Program { name: "matrix_mul", repeat: "50", here: "256 x 256", paper: "4,096 x 4,096", feasible: true },
    Program { name: "stereo_disparity", repeat: "4", here: "320 x 200", paper: "16,384 x 13,312", feasible: false },
    Program { name: "radix_sort", repeat: "4", here: "300,007 pairs", paper: "2^24 pairs", feasible: true },
];

/// What most of its time goes to: a program and its arguments. By what the columns `cpu_ms` and `gpu_ms` say as a tenant.
type Kind = (&'static str, [(&'static str, &'static [&'static str]); 2]);
const GPU_BOUND: (&str, &[&str]) = ("matrix_mul", &["--repeat", "100"]);
const CPU_BOUND: (&str, &[&str]) = ("black_scholes", &["--repeat", "1"]);
const KINDS: [Kind; 3] =
    [("gpu-bound", [GPU_BOUND, GPU_BOUND]), ("cpu-bound", [CPU_BOUND, CPU_BOUND]), ("mixed", [GPU_BOUND, CPU_BOUND])];

/// Rounds of those at once: each is a mean of several.
const ROUNDS_TOGETHER: usize = 1;

/// Whether the programs are there; says so if not.
fn are_there(folder: &Path) -> bool {
    let there = folder.join(PROGRAMS[0].name).exists();
    if !there {
        eprintln!("  skipped: no programs in {} (build them with: cargo xtask examples)", folder.display());
    }
    there
}

/// What programs are called.
pub(super) fn names() -> [&'static str; 5] {
    PROGRAMS.map(|program| program.name)
}

/// Each program of these names by mode.
pub(super) fn alone(
    stage: &Stage,
    folder: &Path,
    names: &[String],
    paper: bool,
    rounds: usize,
    found: &mut Found,
) -> Result<()> {
    if !are_there(folder) {
        return Ok(());
    }
    for program in PROGRAMS.iter().filter(|program| names.iter().any(|name| name == program.name)) {
        let at_size = paper && program.feasible;
        let arguments: &[&str] = if at_size { &["--paper"] } else { &["--repeat", program.repeat] };
        let mut seen: Vec<(Mode, Seen)> = Mode::ALL.map(|mode| (mode, Seen::default())).into();
        // Its code is in the daemon's cache from then on.
        one(stage, Mode::Both, program.name, &folder.join(program.name), arguments)
            .with_context(|| program.name.to_owned())?;
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..seen.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let mode = seen[at].0;
                let (ms, counts) = one(stage, mode, mode.name(), &folder.join(program.name), arguments)
                    .with_context(|| format!("{}, {}", program.name, mode.name()))?;
                seen[at].1.add(ms, counts);
            }
        }
        let told: String =
            seen.iter().map(|(mode, seen)| format!("  {} {:.0}", mode.name(), median(&mut seen.ms.clone()))).collect();
        eprintln!("  {}, ms:{told}", program.name);
        found.rows.extend(rows(program.name, 0, 1, &mut seen));
        let Program { name, repeat, here, paper, .. } = program;
        found.notes.push(if at_size {
            format!("{name}: {paper}, as in vmCUDA's paper")
        } else {
            format!("{name}: {here}, {repeat} times; in vmCUDA's paper {paper}")
        });
    }
    Ok(())
}

/// Programs of so many tenants at once, by what they are bound by.
pub(super) fn together(stage: &Stage, folder: &Path, tenants: &[u16], found: &mut Found) -> Result<()> {
    if !are_there(folder) {
        return Ok(());
    }
    for (program, arguments) in [GPU_BOUND, CPU_BOUND] {
        // Their code is in the daemon's cache from then on.
        one(stage, Mode::Both, program, &folder.join(program), arguments)?;
    }
    for (kind, programs) in KINDS {
        for &tenants in tenants {
            let mut seen = [Mode::Native, Mode::Both].map(|mode| (mode, Seen::default()));
            for _ in 0..ROUNDS_TOGETHER {
                for (mode, seen) in &mut seen {
                    let told = std::thread::scope(|scope| {
                        let run = |number: u16| {
                            let (program, arguments) = programs[usize::from(number) % 2];
                            let (path, mode) = (folder.join(program), *mode);
                            scope.spawn(move || one(stage, mode, kind, &path, arguments))
                        };
                        let running: Vec<_> = (0..tenants).map(run).collect();
                        running.into_iter().map(|one| one.join().expect("no panic")).collect::<Result<Vec<_>>>()
                    })
                    .with_context(|| format!("{kind}, {tenants} at once, {}", mode.name()))?;
                    let (ms, counts) = Counts::mean(&told);
                    seen.add(ms, counts);
                }
            }
            eprintln!("  {kind}, {tenants} at once");
            found.rows.extend(rows(kind, 0, tenants, &mut seen));
        }
    }
    let (gpu, cpu) = (GPU_BOUND.0, CPU_BOUND.0);
    found
        .notes
        .push(format!("gpu-bound: {gpu}; cpu-bound: {cpu}; mixed: both. The software GPU takes the processors itself"));
    Ok(())
}

/// One run: how long it took until the program had nothing more to do with the GPU, ms, and what was counted until then.
fn one(stage: &Stage, mode: Mode, name: &str, program: &Path, arguments: &[&str]) -> Result<(f64, Counts)> {
    // The daemon's meters go on with who comes again by the same name.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let name = format!("{name}-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let mut command = stage.sundial();
    command.arg("run").args(mode.options());
    let tenant = (mode != Mode::Native).then_some(name.as_str());
    if let Some(name) = tenant {
        command.args(["--name", name, "--timed"]);
    }
    command.arg("--").arg(program).args(arguments);
    let start = Instant::now();
    let mut program = Stepped::start_to_end(&mut command)?;
    let line = program.line()?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    if line.trim() != "close" {
        bail!("it said {line:?}");
    }
    let mut counts = Counts::of(stage, [(tenant, program.pid())])?.pop().unwrap_or_default();
    program.go_on()?;
    let told: serde_json::Value = serde_json::from_str(&program.line()?)?;
    program.end()?;
    if told["passed"] != true {
        bail!("wrong results: {told}");
    }
    if tenant.is_none() {
        // As the program sees it; nobody looks into the library.
        counts.copy_ms = told["to_gpu"].as_f64().zip(told["from_gpu"].as_f64()).map(|(there, back)| there + back);
    }
    Ok((ms, counts))
}
