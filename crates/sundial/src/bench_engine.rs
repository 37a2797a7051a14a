//! `sundial bench engine`: the kernel engine alone, without device, driver or daemon.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use hostmem::{Memfd, Protection, Window};
use ptx::Program;
use ptx::ir::Kernel;
use ptx::launch::{Control, DriverArea, Launch, Step};
use ptx_jit::{Batch, Code, EngineKind, Grid};
use serde::Serialize;

use crate::bench::median;

const PTX: &[u8] = include_bytes!("../kernels/engine.ptx");

/// GPU address of the window's first byte.
const LO: u64 = 0x10_0000_0000;
/// Memory of the kernels, bytes.
const MEMORY: u64 = 256 << 20;

/// One kernel of the benchmark.
struct Case {
    name: &'static str,
    unit: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    /// Buffers by offset in units of 64 MiB, then scalars, as the kernel's parameters in order.
    params: Vec<Param>,
    /// Units of work in one launch, in `unit`s of 1e9 (or 1e6 for options).
    work: f64,
    /// The interpreter runs only this part of the grid, in CTAs.
    sample: u32,
}

#[derive(Clone, Copy)]
enum Param {
    Buffer(u64),
    Float(f32),
    Int(i32),
}

fn cases() -> Vec<Case> {
    use Param::{Buffer, Float, Int};
    const MIB16: u64 = 16 << 20;
    let elements = 4 << 20;
    let n = 512;
    let options = 1 << 20;
    let bodies = 4096;
    vec![
        Case {
            name: "saxpy",
            unit: "GB/s",
            grid: [elements / 256, 1, 1],
            block: [256, 1, 1],
            params: vec![Buffer(0), Buffer(2 * MIB16), Float(0.5), Int(elements as i32)],
            work: f64::from(elements) * 12.0 / 1e9,
            sample: 16,
        },
        Case {
            name: "matmul",
            unit: "GFLOP/s",
            grid: [n / 32, n / 32, 1],
            block: [32, 32, 1],
            params: vec![Buffer(0), Buffer(MIB16), Buffer(2 * MIB16), Int(n as i32)],
            work: 2.0 * f64::from(n).powi(3) / 1e9,
            sample: 1,
        },
        Case {
            name: "mma",
            unit: "GFLOP/s",
            grid: [n / 64, n / 64, 1],
            block: [128, 1, 1],
            params: vec![Buffer(0), Buffer(MIB16), Buffer(2 * MIB16), Int(n as i32)],
            work: 2.0 * f64::from(n).powi(3) / 1e9,
            sample: 1,
        },
        Case {
            name: "black_scholes",
            unit: "Moption/s",
            grid: [options / 128, 1, 1],
            block: [128, 1, 1],
            params: vec![
                Buffer(3 * MIB16),
                Buffer(4 * MIB16),
                Buffer(0),
                Buffer(MIB16),
                Buffer(2 * MIB16),
                Float(0.02),
                Float(0.3),
                Int(options as i32),
            ],
            work: f64::from(options) / 1e6,
            sample: 16,
        },
        Case {
            name: "nbody",
            unit: "GFLOP/s",
            grid: [bodies / 128, 1, 1],
            block: [128, 1, 1],
            params: vec![Buffer(0), Buffer(MIB16), Int(bodies as i32)],
            work: 20.0 * f64::from(bodies).powi(2) / 1e9,
            sample: 1,
        },
        Case {
            name: "reduction",
            unit: "GB/s",
            grid: [256, 1, 1],
            block: [256, 1, 1],
            params: vec![Buffer(0), Buffer(8 * MIB16), Int(elements as i32)],
            work: f64::from(elements) * 4.0 / 1e9,
            sample: 8,
        },
    ]
}

#[derive(Serialize, Debug)]
struct Row {
    name: &'static str,
    unit: &'static str,
    interpreter: f64,
    jit_one_core: f64,
    jit_all_cores: f64,
    cores: usize,
    compile_ms: f64,
}

/// Runs the benchmark and prints its rows.
///
/// # Errors
/// A kernel that cannot be compiled, or failed.
pub(crate) fn run(json: bool, rounds: usize) -> Result<()> {
    let window = Arc::new(Window::reserve(MEMORY)?);
    let memory = Memfd::create("bench-engine", MEMORY)?;
    window.map(0, &memory, 0, MEMORY, Protection::ReadWrite)?;
    let numbers: Vec<u8> = (0..MEMORY / 4).flat_map(|i| (0.5 + (i % 1000) as f32 / 1000.0).to_le_bytes()).collect();
    window.write(0, &numbers)?;
    let program = Program::parse(PTX)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    for case in cases() {
        let entry = program.find_entry(case.name).with_context(|| format!("no kernel {}", case.name))?;
        let mut compile_times = Vec::new();
        let mut compiled = None;
        for _ in 0..3 {
            let start = Instant::now();
            let kernel = Arc::new(program.lower(entry, &|_| None)?);
            let code = Code::compile(Arc::clone(&kernel), case.block, EngineKind::Jit)?;
            compile_times.push(start.elapsed().as_secs_f64() * 1e3);
            compiled = Some((kernel, code));
        }
        let (kernel, jit) = compiled.context("compiled three times")?;
        let slow = Code::compile(Arc::clone(&kernel), case.block, EngineKind::Interpreter)?;
        let total: u32 = case.grid.iter().product();
        let speed = |code: &Arc<Code>, ctas: u32, threads: usize, rounds: usize| -> Result<f64> {
            let grid = grid_of(&case, &kernel, code, &window)?;
            let mut speeds = Vec::new();
            for _ in 0..rounds {
                let start = Instant::now();
                execute(&grid, ctas, threads)?;
                let part = f64::from(ctas) / f64::from(total);
                speeds.push(case.work * part / start.elapsed().as_secs_f64());
            }
            Ok(median(&mut speeds))
        };
        rows.push(Row {
            name: case.name,
            unit: case.unit,
            interpreter: speed(&slow, case.sample.min(total), 1, 1)?,
            jit_one_core: speed(&jit, total, 1, rounds)?,
            jit_all_cores: speed(&jit, total, cores, rounds)?,
            cores,
            compile_ms: median(&mut compile_times),
        });
    }
    print(&rows, json)
}

fn grid_of(case: &Case, kernel: &Kernel, code: &Arc<Code>, window: &Arc<Window>) -> Result<Arc<Grid>> {
    let mut params = vec![0; kernel.param_bytes as usize];
    for (param, at) in case.params.iter().zip(&kernel.params) {
        let bytes = match *param {
            Param::Buffer(offset) => (LO + offset).to_le_bytes().to_vec(),
            Param::Float(value) => value.to_le_bytes().to_vec(),
            Param::Int(value) => value.to_le_bytes().to_vec(),
        };
        if bytes.len() != at.size as usize {
            bail!("{}: a parameter has {} bytes, not {}", case.name, at.size, bytes.len());
        }
        params[at.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    Ok(Arc::new(Grid {
        code: Arc::clone(code),
        launch: Launch {
            grid: case.grid,
            block: case.block,
            dynamic_shared: 0,
            params,
            driver: DriverArea::default(),
            grid_id: 1,
            envregs: [0; 32],
        },
        window: Arc::clone(window),
        window_lo: LO,
        control: Arc::new(AtomicU32::new(Control::RUN)),
        checked: None,
    }))
}

/// CTAs that a thread takes at once.
const BATCH: u64 = 64;

/// Runs the first `ctas` CTAs on `threads` threads, in increasing order.
fn execute(grid: &Arc<Grid>, ctas: u32, threads: usize) -> Result<()> {
    let next = AtomicU64::new(0);
    let ctas = u64::from(ctas);
    // Every thread gets several batches, of CTAs as few as there are.
    let size = ctas.div_ceil(4 * threads as u64).clamp(1, BATCH);
    let failed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let first = next.fetch_add(size, Ordering::Relaxed);
                    if first >= ctas {
                        break;
                    }
                    let mut batch = Batch::new(Arc::clone(grid), first..(first + size).min(ctas));
                    loop {
                        match batch.resume() {
                            Step::Done => break,
                            Step::Preempted => {}
                            Step::Exception(_) => {
                                failed.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
    if failed.load(Ordering::Relaxed) > 0 {
        bail!("the kernel failed");
    }
    Ok(())
}

fn print(rows: &[Row], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    let cores = rows.first().map_or(0, |row| row.cores);
    let all = format!("{cores} cores");
    writeln!(out, "{:<16} {:>12} {:>10} {:>10} {:>12}  unit", "", "interpreter", "one core", all, "compile ms")?;
    for row in rows {
        writeln!(
            out,
            "{:<16} {:>12.4} {:>10.2} {:>10.2} {:>12.2}  {}",
            row.name, row.interpreter, row.jit_one_core, row.jit_all_cores, row.compile_ms, row.unit
        )?;
    }
    Ok(())
}
