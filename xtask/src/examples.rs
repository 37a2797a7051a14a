//! Compiling .cu files with nvcc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::run::{checked, say, target};
use crate::toolkit;

/// Compiles `examples/cuda/*.cu`, with nvcc's default flags (static runtime), where the program is older than its source.
/// Returns the folder of the programs.
///
/// # Errors
/// What nvcc says.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let nvcc = toolkit::cuda_home(root)?.join("bin/nvcc");
    let sources = root.join("examples/cuda");
    let programs = target(root).join("cuda-examples");
    fs::create_dir_all(&programs)?;
    let header = modified(&sources.join("check.h"))?;
    let mut stale = Vec::new();
    for source in files(&sources, "cu")? {
        let program = programs.join(source.file_stem().context("a file name")?);
        let newest = modified(&source)?.max(header);
        if modified(&program).map_or(true, |made| made < newest) {
            stale.push((source, program));
        }
    }
    if stale.is_empty() {
        return Ok(programs);
    }
    say(&format!("compiling {} programs of examples/cuda with nvcc", stale.len()));
    let queue = Mutex::new(stale);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut queue| queue.pop());
                    let Some((source, program)) = next else { break };
                    if let Err(error) = checked(Command::new(&nvcc).arg("-o").arg(&program).arg(&source))
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(format!("{error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(programs)
}

/// Remakes every committed `.ptx` that has a `.cu` of its name beside it.
///
/// # Errors
/// What nvcc says.
pub(crate) fn gen_ptx(root: &Path) -> Result<()> {
    let nvcc = toolkit::cuda_home(root)?.join("bin/nvcc");
    for folder in ["examples/tenants/kernels", "crates/sundial/kernels"] {
        let folder = root.join(folder);
        if !folder.exists() {
            continue;
        }
        for source in files(&folder, "cu")? {
            let out = source.with_extension("ptx");
            say(&format!("{}", out.display()));
            checked(Command::new(&nvcc).args(["-ptx", "-arch=compute_75", "-o"]).arg(&out).arg(&source))?;
        }
    }
    Ok(())
}

fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn modified(path: &Path) -> Result<SystemTime> {
    Ok(fs::metadata(path)?.modified()?)
}
