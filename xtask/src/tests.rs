//! All tests.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::clients;
use crate::examples;
use crate::guest;
use crate::qemu;
use crate::run::{build, cargo_by, checked, made_by, say, target};
use crate::toolkit;

/// How long tests wait for a QEMU to be fetched; then they go on without.
const QEMU_WITHIN: Duration = Duration::from_secs(120);
/// Compiles our own crates for tests.
const CHECKED: &str = "checked";
/// Compiles them for fuzz targets.
const FUZZED: &str = "fuzzed";

/// The product, built; unit and integration tests of all crates; programs compiled by nvcc, run through the product; fuzz targets.
///
/// # Errors
/// The first step that failed.
pub(crate) fn all(root: &Path, nvcc: bool, packages: bool, fuzz_seconds: u64) -> Result<()> {
    let start = Instant::now();
    // Building takes libraries away from clients that run on them.
    let _alone = clients::alone(root)?;
    say("1/4 the product");
    let (programs, prepared) = thread::scope(|scope| -> Result<_> {
        // Fetching and unpacking leaves the compilers most of the processors.
        let prepared = packages.then(|| scope.spawn(|| clients::prepare(root)));
        build(root)?;
        let programs = nvcc.then(|| examples::build(root)).transpose()?;
        let prepared = prepared.map(|thread| thread.join()).transpose();
        Ok((programs, prepared.map_err(|_| anyhow!("setting clients up panicked"))?))
    })?;
    if !nvcc {
        say("skipped: programs compiled by nvcc (--no-nvcc)");
    }
    say("2/4 tests of the crates");
    let mut crates = cargo_by(root, CHECKED)?;
    // What fails is all told at once.
    crates.args([
        "test",
        "--release",
        "--workspace",
        "--exclude",
        "e2e",
        "--exclude",
        "sundial-fuzz",
        "--no-fail-fast",
    ]);
    if nvcc {
        // Types and numbers are compared with those of cuda.h and nvml.h.
        crates.env("SUNDIAL_CUDA_HOME", toolkit::cuda_home(root)?);
    }
    checked(&mut crates)?;
    let qemu = qemu::fetch(root, QEMU_WITHIN);
    if let Err(error) = &qemu {
        say(&format!("skipped: virtual machines, there is no QEMU for them: {error:#}"));
    }
    say("3/4 end to end");
    let mut end_to_end = cargo_by(root, CHECKED)?;
    end_to_end.args(["test", "--release", "--package", "e2e", "--no-fail-fast", "--", "--test-threads=1"]);
    end_to_end.env("SUNDIAL_BIN_DIR", target(root).join("release"));
    if let Some(programs) = programs {
        end_to_end.env("SUNDIAL_CUDA_EXAMPLES", programs);
    }
    if let Ok(qemu) = qemu {
        end_to_end.env("SUNDIAL_QEMU", qemu).env("SUNDIAL_GUEST", guest::pack(root)?);
    }
    match toolkit::monitors(root) {
        Ok(monitors) => drop(end_to_end.env("SUNDIAL_MONITORS", monitors)),
        Err(error) => say(&format!("skipped: programs that show GPUs, they cannot be had from PyPI: {error:#}")),
    }
    checked(&mut end_to_end)?;
    let targets = thread::scope(|scope| -> Result<_> {
        // Compiled while clients run, of which few use all processors.
        let built = scope.spawn(|| fuzz_targets(root));
        match prepared {
            Some(prepared) => clients::quick(root, &prepared)?,
            None => say("skipped: packages from PyPI and Debian as clients (--no-clients)"),
        }
        built.join().map_err(|_| anyhow!("building fuzz targets panicked"))?
    })?;
    say("4/4 fuzz targets");
    // The same seed each time: what fails here fails again. `cargo xtask fuzz` looks for what is new.
    fuzz_each(root, fuzz_seconds, &targets, Some(1))?;
    say("skipped: tests on a real GPU (names end in _gpu): this version has no backend for one");
    say(&format!("all tests passed in {:.0} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// Builds the fuzz targets and runs each for `seconds`, with a random `seed` if none is given.
///
/// # Errors
/// What a target found.
pub(crate) fn fuzz(root: &Path, seconds: u64, targets: &[String], seed: Option<u32>) -> Result<()> {
    let all = fuzz_targets(root)?;
    let chosen = all.into_iter().filter(|name| targets.is_empty() || targets.contains(name));
    fuzz_each(root, seconds, &chosen.collect::<Vec<_>>(), seed)
}

/// Builds the fuzz targets; their names.
fn fuzz_targets(root: &Path) -> Result<Vec<String>> {
    let all: Vec<String> = std::fs::read_dir(root.join("fuzz/targets"))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    let mut build = cargo_by(root, FUZZED)?;
    // With the product, none of whose programs is built here, crates of others have the features that they have in it.
    build.args(["build", "--release", "--package", "sundial-fuzz", "--package", "sundial"]);
    build.args(["--features", "sundial-fuzz/fuzzing"]);
    build.args(all.iter().flat_map(|name| ["--bin", name.as_str()]));
    checked(&mut build)?;
    Ok(all)
}

/// Runs targets for `seconds` each, as many at once as there are processors.
fn fuzz_each(root: &Path, seconds: u64, targets: &[String], seed: Option<u32>) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(name) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            fuzz_one(root, seconds, name, seed)?;
        }
        Ok(())
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("fuzzing panicked"))?)
    })
}

fn fuzz_one(root: &Path, seconds: u64, name: &str, seed: Option<u32>) -> Result<()> {
    say(&format!("fuzzing {name} for {seconds} s"));
    let folder = root.join("fuzz");
    let corpus = folder.join("corpus").join(name);
    std::fs::create_dir_all(&corpus)?;
    let mut command = std::process::Command::new(made_by(root, FUZZED).join("release").join(name));
    command.current_dir(&folder).arg(&corpus);
    let seeds = folder.join("seeds").join(name);
    if seeds.exists() {
        command.arg(seeds);
    }
    command.args([
        format!("-max_total_time={seconds}"),
        "-verbosity=0".into(),
        "-rss_limit_mb=4096".into(),
        "-timeout=20".into(),
    ]);
    command.args(seed.map(|seed| format!("-seed={seed}")));
    let output = command.output()?;
    if !output.status.success() {
        bail!("{name} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
