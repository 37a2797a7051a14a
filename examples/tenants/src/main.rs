#![expect(unsafe_code, reason = "launching a kernel is unsafe in every CUDA binding: arguments are unchecked")]
//! Ordinary CUDA programs in Rust, on the crate `cudarc`: they know nothing of Sundial, and run on any CUDA driver.
//!
//! Three compute until their time is up and check their results against the CPU (`matrices`, `polynomials`, `life`); the
//! others misbehave, or look for traces of misbehaviour. Each prints one JSON object, its last line.

mod compute;
mod misbehave;

use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;

/// The kernels, compiled by nvcc from `kernels/tenants.cu`.
const PTX: &str = include_str!("../kernels/tenants.ptx");

/// A CUDA program of the demonstration.
#[derive(Parser)]
struct Arguments {
    /// Which program.
    #[arg(value_enum)]
    program: Program,
    /// How long to compute.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Program {
    /// Products of matrices.
    Matrices,
    /// Polynomials of high degree.
    Polynomials,
    /// Conway's game of life.
    Life,
    /// Allocates until the driver refuses.
    Greedy,
    /// Reads out of bounds.
    Stray,
    /// Starts a kernel that never ends, and waits for it.
    Endless,
    /// Queues launches without waiting and vanishes in the middle.
    Flood,
    /// Fills all the memory it can get with a pattern, and waits for its end.
    Mark,
    /// Looks for anything but zeros in all the fresh memory it can get.
    Inspect,
}

/// The GPU and our kernels on it.
struct Gpu {
    context: Arc<CudaContext>,
    module: Arc<CudaModule>,
}

impl Gpu {
    fn open() -> anyhow::Result<Gpu> {
        let context = CudaContext::new(0)?;
        let module = context.load_module(Ptx::from_src(PTX))?;
        Ok(Gpu { context, module })
    }

    fn kernel(&self, name: &str) -> anyhow::Result<CudaFunction> {
        Ok(self.module.load_function(name)?)
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let time = Duration::try_from_secs_f64(arguments.seconds)?;
    let gpu = Gpu::open()?;
    let report = match arguments.program {
        Program::Matrices => compute::matrices(&gpu, time)?,
        Program::Polynomials => compute::polynomials(&gpu, time)?,
        Program::Life => compute::life(&gpu, time)?,
        Program::Greedy => misbehave::greedy(&gpu)?,
        Program::Stray => misbehave::stray(&gpu)?,
        Program::Endless => misbehave::endless(&gpu)?,
        Program::Flood => misbehave::flood(&gpu)?,
        Program::Mark => misbehave::mark(&gpu)?,
        Program::Inspect => misbehave::inspect(&gpu)?,
    };
    use std::io::Write;
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}
