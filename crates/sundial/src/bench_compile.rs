//! `sundial bench compile`: what compiling a kernel costs, by its shape and size.
//!
//! Every row is a process of its own, so that what one leaves in memory does not hide what the next one needs.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ptx::Program;
use ptx_jit::compiler::Watch;
use ptx_jit::{EngineKind, Image};
use serde::{Deserialize, Serialize};
use testgen::shapes::Shape;

use crate::bench::median;

/// Sizes that are measured, instructions.
const SIZES: [usize; 6] = [500, 1000, 2000, 4000, 8000, 16_000];
/// Threads of a CTA.
const BLOCK: [u32; 3] = [64, 1, 1];

/// Arguments of `sundial bench compile`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Measure this shape only.
    #[arg(long)]
    shape: Option<String>,
    /// Measure this size only, in instructions.
    #[arg(long)]
    instructions: Option<usize>,
}

/// One line of the result.
#[derive(Serialize, Deserialize, Debug)]
struct Row {
    shape: String,
    instructions: usize,
    /// Processor time from PTX to an image, milliseconds.
    ms: f64,
    us_per_instruction: f64,
    /// Most memory in use at a time beyond what there was before.
    peak_bytes: u64,
}

/// Measures and prints.
///
/// # Errors
/// A shape that does not exist; a kernel that is not compiled.
pub(crate) fn run(arguments: &Arguments, json: bool, rounds: usize) -> Result<()> {
    let wanted = |shape: &Shape| arguments.shape.as_ref().is_none_or(|name| name == shape.name());
    let shapes: Vec<Shape> = Shape::ALL.into_iter().filter(wanted).collect();
    ensure!(!shapes.is_empty(), "shapes are: {}", Shape::ALL.map(Shape::name).join(", "));
    let mut rows = Vec::new();
    match (&*shapes, arguments.instructions) {
        (&[shape], Some(instructions)) => rows.push(measure(shape, instructions, rounds)?),
        (shapes, size) => {
            let sizes = size.map_or(SIZES.to_vec(), |size| vec![size]);
            for (shape, size) in shapes.iter().flat_map(|&shape| sizes.iter().map(move |&size| (shape, size))) {
                rows.push(elsewhere(shape, size, rounds)?);
            }
        }
    }
    print(&rows, json)
}

/// Measures one row in a new process.
fn elsewhere(shape: Shape, instructions: usize, rounds: usize) -> Result<Row> {
    let output = crate::own_program()
        .args(["bench", "compile", "--json", "--shape", shape.name()])
        .args(["--instructions", &instructions.to_string(), "--rounds", &rounds.to_string()])
        .output()?;
    if !output.status.success() {
        bail!("{}: {}", shape.name(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let rows: Vec<Row> = serde_json::from_slice(&output.stdout)?;
    rows.into_iter().next().context("a process that measures prints a row")
}

fn measure(shape: Shape, instructions: usize, rounds: usize) -> Result<Row> {
    let text = shape.text(instructions);
    // The first time the code generator is set up, too: of a kernel as small as can be.
    compile(&Shape::Accesses.text(1))?;
    // Writing 5 there makes the most memory so far the present memory (proc(5)).
    fs::write("/proc/self/clear_refs", "5")?;
    let before = memory("VmRSS")?;
    let mut times = vec![compile(&text)?];
    let peak_bytes = memory("VmHWM")?.saturating_sub(before);
    for _ in 1..rounds {
        times.push(compile(&text)?);
    }
    let ms = median(&mut times);
    Ok(Row {
        shape: shape.name().to_owned(),
        instructions,
        ms,
        us_per_instruction: ms * 1000.0 / instructions as f64,
        peak_bytes,
    })
}

/// Processor time from text to image, milliseconds.
fn compile(text: &str) -> Result<f64> {
    let watch = Watch::unbounded();
    watch.begin();
    let kernel = Arc::new(Program::parse(text.as_bytes())?.lower(0, &|_| None)?);
    let image = Image::compile(kernel, BLOCK, EngineKind::Jit, &watch)?;
    watch.end();
    ensure!(image.is_machine_code(), "the kernel was left to the interpreter");
    Ok(watch.cpu().as_secs_f64() * 1000.0)
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
    writeln!(out, "{:<10} {:>12} {:>10} {:>15} {:>10}", "shape", "instructions", "ms", "us/instruction", "peak MB")?;
    for row in rows {
        let mb = row.peak_bytes as f64 / 1e6;
        let Row { shape, instructions, ms, us_per_instruction, .. } = row;
        writeln!(out, "{shape:<10} {instructions:>12} {ms:>10.1} {us_per_instruction:>15.1} {mb:>10.1}")?;
    }
    Ok(())
}
