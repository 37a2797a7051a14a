//! `sundial bench`: what sharing costs, as ratios of a tenant against the same program straight on the GPU.
//!
//! Both sides run at the same time on the same machine and are asked in turn, so that the machine's mood hits both. The
//! figure of a row is the median of the rounds. The daemon is the benchmark's own, as this program is built and with no tenants
//! but those that are measured.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use hostmem::{Mapping, Memfd};
use serde::Serialize;
use transport::{Consumer, Producer, ring};

use crate::stage::Stage;
use crate::{bench_compile, bench_engine, bench_gmedia, bench_isolation, bench_remoting, bench_shadow, bench_vgpu};

/// Arguments of `sundial bench`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// What to measure; without it: driver calls, copies and whole programs.
    #[command(subcommand)]
    what: Option<What>,
    /// Print JSON: rows {"name","unit","native","tenant","ratio"}.
    #[arg(long, global = true)]
    json: bool,
    /// Rounds; the median counts [default: 7; vgpu, gmedia, shadow, remoting: 3].
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Folder with the compiled examples (`cargo xtask examples`); default: cuda-examples beside the build folder.
    #[arg(long)]
    programs: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Measure the kernel engine: interpreter, machine code on one core and on all, compile time: rows {"name","unit",
    /// "interpreter","jit_one_core","jit_all_cores","cores","scaling","machine_scaling","compile_ms"}, with --pocl "pocl","ratio","goal", too.
    Engine(bench_engine::Arguments),
    /// Measure what compiling a kernel costs, by its shape and size: rows {"shape","instructions","ms",
    /// "wall_ms","us_per_instruction","peak_bytes"}.
    Compile(bench_compile::Arguments),
    /// Measure who gets the GPU when one tenant's kernels are long and others' short, with each scheduler: rows
    /// {"scheduler","kind","tenant","share_entitled","share_received","error_points","worst_points"}.
    Isolation(bench_isolation::Arguments),
    /// Replay what a guest stored into its page tables against each way of shadowing them, with any cost of a trap: rows
    /// {"format","scheme","rebuild","trap_cost_us","updates","submissions","traps","pages_rebuilt","entries_rebuilt","ms",
    /// "followed_ms","speedup"}.
    Shadow(bench_shadow::Arguments),
    /// Measure what virtual GPUs cost, by scheme and by phase of programs: rows {"scheme","guests","program","phase","ms",
    /// "ratio","traps","shadow_updates","entries_scanned","hypercalls","pages_rebuilt","entries_rebuilt"}.
    Vgpu(bench_vgpu::Arguments),
    /// Measure what the way to the daemon costs, and what shared memory and calls that nobody waits for save: rows {"mode","what",
    /// "bytes","tenants","ms","ratio","calls","round_trips","cpu_ms","gpu_ms","copy_ms","wait_ms"}.
    Remoting(bench_remoting::Arguments),
    /// Measure pictures a second of a program whose surfaces come and go, by how a guest's page tables are followed: rows
    /// {"case","scheme","rebuild","trap","resolution","threads","frames","fps","fps_per_thread","ratio","psnr","map_ms",
    /// "mapped_bytes","traps","shadow_updates","entries_scanned","hypercalls","pages_rebuilt","entries_rebuilt"}.
    Gmedia(bench_gmedia::Arguments),
}

/// One line of the result.
#[derive(Serialize, Debug)]
struct Row {
    name: String,
    unit: &'static str,
    native: f64,
    tenant: f64,
    /// `tenant / native`: for times, 1 is best and more is worse; for bandwidths the other way round.
    ratio: f64,
}

/// The calls that are timed: name for the probe, repetitions in a round, bytes moved (0: a time per call is shown).
const CALLS: [(&str, u32, usize); 22] = [
    ("launch", 256, 0),
    ("launch-synchronize", 100, 0),
    ("alloc-free-1048576", 50, 0),
    ("alloc-free-16777216", 50, 0),
    ("local-attribute", 20_000, 0),
    ("local-current", 20_000, 0),
    ("h2d-pageable-4", 200, 4),
    ("d2h-pageable-4", 100, 4),
    ("h2d-pinned-4", 100, 4),
    ("d2h-pinned-4", 100, 4),
    ("h2d-pageable-65536", 50, 65536),
    ("d2h-pageable-65536", 50, 65536),
    ("h2d-pinned-65536", 50, 65536),
    ("d2h-pinned-65536", 50, 65536),
    ("h2d-pageable-2097152", 10, 2 << 20),
    ("d2h-pageable-2097152", 10, 2 << 20),
    ("h2d-pinned-2097152", 10, 2 << 20),
    ("d2h-pinned-2097152", 10, 2 << 20),
    ("h2d-pageable-67108864", 2, 64 << 20),
    ("d2h-pageable-67108864", 2, 64 << 20),
    ("h2d-pinned-67108864", 2, 64 << 20),
    ("d2h-pinned-67108864", 2, 64 << 20),
];

/// The device of both sides.
const GPU: &str = "soft:4g";
/// How a program is run straight on it.
const NATIVE: [&str; 3] = ["--native", "--gpu", GPU];
/// Rounds, unless asked for others.
const ROUNDS: usize = 7;

/// vmCUDA's five programs, with repetitions of the GPU's part.
const PROGRAMS: [(&str, &str); 5] = [
    ("binomial_options", "4"),
    ("black_scholes", "20"),
    ("matrix_mul", "100"),
    ("stereo_disparity", "10"),
    ("radix_sort", "10"),
];

/// Runs the benchmark and prints its rows.
///
/// # Errors
/// What could not be started, or ended early.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let beside = std::env::current_exe()?.with_file_name("../cuda-examples");
    let programs = arguments.programs.clone().unwrap_or(beside);
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    match &arguments.what {
        Some(What::Engine(which)) => return bench_engine::run(which, arguments.json, rounds),
        Some(What::Isolation(how)) => return bench_isolation::run(how, arguments.json),
        Some(What::Vgpu(what)) => return bench_vgpu::run(what, &programs, arguments.json, arguments.rounds),
        Some(What::Remoting(what)) => return bench_remoting::run(what, &programs, arguments.json, arguments.rounds),
        Some(What::Shadow(what)) => return bench_shadow::run(what, arguments.json, arguments.rounds.unwrap_or(3)),
        Some(What::Gmedia(what)) => return bench_gmedia::run(what, &programs, arguments.json, arguments.rounds),
        Some(What::Compile(which)) => return bench_compile::run(which, arguments.json, rounds),
        None => {}
    }
    let mut rows = Vec::new();
    baselines(&mut rows)?;
    let stage = Stage::open("bench", GPU)?;
    calls(&stage, rounds, &mut rows)?;
    if programs.join(PROGRAMS[0].0).exists() {
        for (name, repeat) in PROGRAMS {
            rows.push(program(&stage, &programs.join(name), name, repeat, rounds)?);
        }
    } else {
        eprintln!("skipped: the five programs (not in {}; build them with: cargo xtask examples)", programs.display());
    }
    print(&rows, arguments.json)
}

fn print(rows: &[Row], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    writeln!(out, "{:<26} {:>10} {:>10} {:>7}  unit", "", "native", "tenant", "ratio")?;
    for row in rows {
        writeln!(out, "{:<26} {:>10.2} {:>10.2} {:>7.2}  {}", row.name, row.native, row.tenant, row.ratio, row.unit)?;
    }
    Ok(())
}

/// What the machine can do at best: a plain copy, and a frame through a ring to another thread and back. Both columns are the
/// same, for the eye.
fn baselines(rows: &mut Vec<Row>) -> Result<()> {
    let from = vec![1u8; 64 << 20];
    let mut to = vec![2u8; 64 << 20];
    let mut speeds: Vec<f64> = (0..7)
        .map(|_| {
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&to);
            from.len() as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    let speed = median(&mut speeds);
    rows.push(Row { name: "memcpy-67108864".into(), unit: "GB/s", native: speed, tenant: speed, ratio: 1.0 });
    let trip = ring_round_trip()? * 1e6;
    rows.push(Row { name: "ring-round-trip".into(), unit: "us", native: trip, tenant: trip, ratio: 1.0 });
    Ok(())
}

/// Seconds that a small frame takes through a ring to a thread that sends it back through another.
fn ring_round_trip() -> Result<f64> {
    const CAPACITY: usize = 64 << 10;
    const TRIPS: u32 = 10_000;
    let area =
        || -> Result<Arc<Mapping>> { Ok(Arc::new(Memfd::create("bench-ring", ring::bytes(CAPACITY) as u64)?.map()?)) };
    let (there, back) = (area()?, area()?);
    let mut to = Producer::new(Arc::clone(&there), 0, CAPACITY);
    let mut from = Consumer::new(Arc::clone(&back), 0, CAPACITY);
    let (mut input, mut output) = (Consumer::new(there, 0, CAPACITY), Producer::new(back, 0, CAPACITY));
    let left = AtomicBool::new(false);
    let here = || !left.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = Vec::new();
            while input.pop(&mut frame, &here).is_ok() && output.push(&[&frame], &here).is_ok() {}
        });
        let mut frame = Vec::new();
        let mut trips = || -> Result<f64> {
            let start = Instant::now();
            for _ in 0..TRIPS {
                to.push(&[&[1; 40]], &|| true)?;
                from.pop(&mut frame, &|| true)?;
            }
            Ok(start.elapsed().as_secs_f64() / f64::from(TRIPS))
        };
        let times = (0..7).map(|_| trips()).collect::<Result<Vec<f64>>>();
        left.store(true, Ordering::Relaxed);
        Ok(median(&mut times?))
    })
}

/// A probe process, waiting for questions; it ends with this.
pub(crate) struct Probe {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Probe {
    pub(crate) fn start(stage: &Stage, options: &[&str]) -> Result<Probe> {
        let mut command = stage.sundial();
        command.arg("run").args(options).arg("--").arg(stage.beside("sundial-probe")?);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a probe")?;
        let ask = child.stdin.take().context("piped")?;
        let answers = BufReader::new(child.stdout.take().context("piped")?);
        Ok(Probe { child, ask, answers })
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Seconds per repetition.
    pub(crate) fn measure(&mut self, name: &str, count: u32) -> Result<f64> {
        writeln!(self.ask, "{name} {count}")?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the probe ended: {}", self.child.wait()?);
        }
        let answer: serde_json::Value = serde_json::from_str(&line)?;
        let seconds = answer["seconds"].as_f64().context("the probe's answer has no seconds")?;
        Ok(seconds / f64::from(count))
    }
}

fn calls(stage: &Stage, rounds: usize, rows: &mut Vec<Row>) -> Result<()> {
    let mut native = Probe::start(stage, &NATIVE)?;
    let mut tenant = Probe::start(stage, &["--name", "bench", "--mem", "1g", "--share", "50%"])?;
    for (name, count, bytes) in CALLS {
        let mut times = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let pair = (native.measure(name, count)?, tenant.measure(name, count)?);
            // The first round warms up.
            if round > 0 {
                times.0.push(pair.0);
                times.1.push(pair.1);
            }
        }
        let (native, tenant) = (median(&mut times.0), median(&mut times.1));
        rows.push(if bytes >= 65536 {
            let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
            Row {
                name: name.into(),
                unit: "GB/s",
                native: speed(native),
                tenant: speed(tenant),
                ratio: native / tenant,
            }
        } else {
            Row { name: name.into(), unit: "us", native: native * 1e6, tenant: tenant * 1e6, ratio: tenant / native }
        });
    }
    Ok(())
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole program, start to end, both ways in turn.
fn program(stage: &Stage, path: &Path, name: &str, repeat: &str, rounds: usize) -> Result<Row> {
    const TENANT: [&str; 6] = ["--name", "bench", "--mem", "2g", "--share", "50%"];
    let timed = |options: &[&str]| -> Result<f64> {
        let start = Instant::now();
        let output =
            stage.sundial().arg("run").args(options).arg("--").arg(path).args(["--repeat", repeat]).output()?;
        if !output.status.success() {
            bail!(
                "{name} failed: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(start.elapsed().as_secs_f64())
    };
    // Its code is in the daemon's cache from then on.
    timed(&TENANT)?;
    let (mut native, mut tenant) = (Vec::new(), Vec::new());
    for _ in 0..rounds.clamp(1, 5) {
        native.push(timed(&NATIVE)?);
        tenant.push(timed(&TENANT)?);
    }
    let (native, tenant) = (median(&mut native), median(&mut tenant));
    Ok(Row { name: name.into(), unit: "s", native, tenant, ratio: tenant / native })
}

/// The middle value.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
