//! `sundial bench compile`: what compiling a kernel costs, by its shape and size.
//!
//! Every row is a process of its own, so that what one leaves in memory does not hide what the next one needs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ptx::Program;
use ptx_jit::compiler::{Bounds, Watch};
use ptx_jit::{EngineKind, Image};
use serde::{Deserialize, Serialize};
use testgen::shapes::Shape;

use crate::bench::median;

/// Sizes that are measured, instructions.
const SIZES: [usize; 6] = [500, 1000, 2000, 4000, 8000, 16_000];
/// Threads of a CTA.
const BLOCK: [u32; 3] = [64, 1, 1];
/// The same for kernels of files, where the kernel itself says nothing.
const BLOCK_OF_FILES: [u32; 3] = [256, 1, 1];
/// Where variables of a file's module are said to lie.
const VARIABLE: u64 = 1 << 32;

/// Arguments of `sundial bench compile`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Measure this shape only.
    #[arg(long)]
    shape: Option<String>,
    /// Measure this size only, in instructions.
    #[arg(long)]
    instructions: Option<usize>,
    /// Measure the kernels of this PTX file instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shape", "instructions"])]
    ptx: Option<PathBuf>,
    /// Measure this kernel of the file only.
    #[arg(long, value_name = "NAME", requires = "ptx")]
    kernel: Option<String>,
    /// Threads of a CTA in x, y, z, for kernels of a file [default: what the kernel says, else 256].
    #[arg(long, value_name = "X,Y,Z", value_delimiter = ',', num_args = 1..=3, requires = "ptx")]
    block: Option<Vec<u32>>,
    /// Compile on so many threads; processor time is that of all of them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
}

/// One line of the result.
#[derive(Serialize, Deserialize, Debug)]
struct Row {
    /// Or the kernel's name.
    shape: String,
    instructions: usize,
    /// Processor time from PTX to an image, milliseconds.
    ms: f64,
    /// Time that passes meanwhile.
    wall_ms: f64,
    /// Processor time.
    us_per_instruction: f64,
    /// Most memory in use at a time beyond what there was before.
    peak_bytes: u64,
}

/// A kernel to be compiled.
struct Subject {
    name: String,
    text: String,
    /// Which of the module's kernels.
    entry: usize,
    block: [u32; 3],
    instructions: usize,
    threads: usize,
}

/// Measures and prints.
///
/// # Errors
/// A shape, file or kernel that does not exist; a kernel that is not compiled.
pub(crate) fn run(arguments: &Arguments, json: bool, rounds: usize) -> Result<()> {
    let rows = match &arguments.ptx {
        Some(file) => kernels(file, arguments, rounds)?,
        None => shapes(arguments, rounds)?,
    };
    print(&rows, json)
}

fn shapes(arguments: &Arguments, rounds: usize) -> Result<Vec<Row>> {
    let wanted = |shape: &Shape| arguments.shape.as_ref().is_none_or(|name| name == shape.name());
    let shapes: Vec<Shape> = Shape::ALL.into_iter().filter(wanted).collect();
    ensure!(!shapes.is_empty(), "shapes are: {}", Shape::ALL.map(Shape::name).join(", "));
    if let (&[shape], Some(instructions)) = (&*shapes, arguments.instructions) {
        let (name, text, threads) = (shape.name().to_owned(), shape.text(instructions), arguments.threads);
        return Ok(vec![measure(&Subject { name, text, entry: 0, block: BLOCK, instructions, threads }, rounds)?]);
    }
    let sizes = arguments.instructions.map_or(SIZES.to_vec(), |size| vec![size]);
    let all = shapes.iter().flat_map(|&shape| sizes.iter().map(move |&size| (shape, size)));
    let rows = all.map(|(shape, size)| {
        let which = ["--shape", shape.name(), "--instructions", &size.to_string()].map(str::to_owned);
        elsewhere(crate::own_program().args(["bench", "compile"]).args(which), arguments.threads, rounds)
            .with_context(|| shape.name().to_owned())
    });
    rows.collect()
}

fn kernels(file: &Path, arguments: &Arguments, rounds: usize) -> Result<Vec<Row>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let program = Program::parse(text.as_bytes())?;
    let Some(name) = arguments.kernel.clone() else {
        let rows = program.entries().iter().map(|entry| {
            let mut program = crate::own_program();
            program.args(["bench", "compile", "--kernel", &entry.name, "--ptx"]).arg(file);
            if let Some(block) = &arguments.block {
                program.arg("--block").arg(block.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
            }
            elsewhere(&mut program, arguments.threads, rounds).with_context(|| entry.name.clone())
        });
        return rows.collect();
    };
    let entry = program.find_entry(&name).with_context(|| format!("no kernel {name:?}"))?;
    let mut block = program.entries()[entry].max_ntid.unwrap_or(BLOCK_OF_FILES);
    if let Some(wanted) = &arguments.block {
        block = [1; 3];
        block.iter_mut().zip(wanted).for_each(|(side, &wanted)| *side = wanted);
    }
    let kernel = program.lower(entry, &|_| Some(VARIABLE))?;
    let instructions = kernel.blocks.iter().map(|block| block.insts.len()).sum();
    let threads = arguments.threads;
    Ok(vec![measure(&Subject { name, text, entry, block, instructions, threads }, rounds)?])
}

/// Measures one row in a new process.
fn elsewhere(program: &mut Command, threads: usize, rounds: usize) -> Result<Row> {
    program.args(["--json", "--threads", &threads.to_string(), "--rounds", &rounds.to_string()]);
    let output = program.output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let rows: Vec<Row> = serde_json::from_slice(&output.stdout)?;
    rows.into_iter().next().context("a process that measures prints a row")
}

fn measure(subject: &Subject, rounds: usize) -> Result<Row> {
    // The first time the code generator is set up, too: of a kernel as small as can be.
    let text = Shape::Accesses.text(1);
    compile(&Subject { name: String::new(), text, entry: 0, block: BLOCK, instructions: 1, threads: 1 })?;
    // Writing 5 there makes the most memory so far the present memory (proc(5)).
    fs::write("/proc/self/clear_refs", "5")?;
    let before = memory("VmRSS")?;
    let mut all = vec![compile(subject)?];
    let peak_bytes = memory("VmHWM")?.saturating_sub(before);
    for _ in 1..rounds {
        all.push(compile(subject)?);
    }
    let (mut processor, mut wall): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
    let (ms, wall_ms) = (median(&mut processor), median(&mut wall));
    let Subject { name, instructions, .. } = subject;
    let us_per_instruction = ms * 1000.0 / (*instructions).max(1) as f64;
    Ok(Row { shape: name.clone(), instructions: *instructions, ms, wall_ms, us_per_instruction, peak_bytes })
}

/// Processor time from text to image, and the time that passed, milliseconds.
fn compile(subject: &Subject) -> Result<(f64, f64)> {
    let watch = Watch::new(Bounds { memory_bytes: u64::MAX, time: Duration::MAX, threads: subject.threads });
    let begin = Instant::now();
    let working = watch.begin();
    let program = Program::parse(subject.text.as_bytes())?;
    let kernel = Arc::new(program.lower(subject.entry, &|_| Some(VARIABLE))?);
    let image = Image::compile(kernel, subject.block, EngineKind::Jit, &watch)?;
    drop(working);
    let wall = begin.elapsed();
    ensure!(image.is_machine_code(), "the kernel was left to the interpreter");
    Ok((watch.cpu().as_secs_f64() * 1000.0, wall.as_secs_f64() * 1000.0))
}

/// A figure of this process's memory, bytes.
fn memory(key: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{key} of this process"))? * 1024)
}

fn print(rows: &[Row], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(rows)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{:>12} {:>10} {:>10} {:>15} {:>10}  shape",
        "instructions", "ms", "wall ms", "us/instruction", "peak MB"
    )?;
    for row in rows {
        let mb = row.peak_bytes as f64 / 1e6;
        let Row { shape, instructions, ms, wall_ms, us_per_instruction, .. } = row;
        writeln!(out, "{instructions:>12} {ms:>10.1} {wall_ms:>10.1} {us_per_instruction:>15.1} {mb:>10.1}  {shape}")?;
    }
    Ok(())
}
