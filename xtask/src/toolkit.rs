//! NVIDIA's compiler, from PyPI: used by tests, never shipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{checked, say, target};

/// The compiler with its runtime, static and shared, and the header of the management library. `nvcc` finds the host compiler on the path.
const COMPILER: [&str; 7] = [
    "nvidia-cuda-nvcc==13.5.*",
    "nvidia-nvvm==13.5.*",
    "nvidia-cuda-runtime==13.5.*",
    "nvidia-cuda-crt==13.5.*",
    "nvidia-cuda-cccl==13.3.*",
    "nvidia-cuda-nvrtc==13.5.*",
    "nvidia-nvml-dev==13.5.*",
];

/// The runtime of the major version before: headers, the shared library, and since 12.9 the static one. There is no nvcc 12 on
/// PyPI; the newer compiler builds for the older runtime.
const RUNTIME_12: [&str; 1] = ["nvidia-cuda-runtime-cu12==12.9.*"];

/// A CUDA toolkit with `bin/nvcc`: `$SUNDIAL_CUDA_HOME`, or one installed under `target/cuda-toolkit` by this call.
///
/// # Errors
/// What is missing, and how to get it.
pub(crate) fn cuda_home(root: &Path) -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("SUNDIAL_CUDA_HOME") {
        let home = PathBuf::from(home);
        if !home.join("bin/nvcc").exists() {
            bail!("SUNDIAL_CUDA_HOME is {}, but there is no bin/nvcc in it", home.display());
        }
        return Ok(home);
    }
    from_pypi(&target(root).join("cuda-toolkit"), "NVIDIA's compiler", "190 MB", &COMPILER, "cu13")
}

/// `include` and `lib` of CUDA's runtime 12, installed under `target/cuda-runtime-12` by this call.
///
/// # Errors
/// What pip says.
pub(crate) fn runtime_12(root: &Path) -> Result<PathBuf> {
    from_pypi(&target(root).join("cuda-runtime-12"), "CUDA's runtime 12", "4 MB", &RUNTIME_12, "cuda_runtime")
}

/// Programs that show GPUs, and the binding that they use.
const MONITORS: [&str; 3] = ["nvidia-ml-py==13.615.*", "gpustat==1.1.1", "nvitop==1.7.2"];

/// Longest that PyPI may take for them.
const MONITORS_BOUND: &str = "120";

/// A virtual environment with programs that show GPUs: their Python.
///
/// # Errors
/// What is missing.
pub(crate) fn monitors(root: &Path) -> Result<PathBuf> {
    let venv = target(root).join("monitors");
    let complete = venv.join("complete");
    if !fs::read_to_string(&complete).is_ok_and(|there| there == MONITORS.join("\n")) {
        say(&format!("installing programs that show GPUs from PyPI into {} (1 MB, once)", venv.display()));
        checked(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut pip = Command::new("timeout");
        pip.arg(MONITORS_BOUND).arg(venv.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--retries", "1"]).args(MONITORS);
        checked(&mut pip)?;
        fs::write(&complete, MONITORS.join("\n"))?;
    }
    Ok(venv.join("bin"))
}

/// Installs packages into a virtual environment of their own, unless these very ones are there; the folder
/// `site-packages/nvidia/NAME` in it.
fn from_pypi(venv: &Path, what: &str, size: &str, packages: &[&str], name: &str) -> Result<PathBuf> {
    let complete = venv.join("complete");
    if !fs::read_to_string(&complete).is_ok_and(|there| there == packages.join("\n")) {
        host_packages(venv)?;
        say(&format!("installing {what} from PyPI into {} (about {size}, once)", venv.display()));
        checked(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))
            .context("python3 with its venv module is needed: apt-get install python3-venv")?;
        checked(
            Command::new(venv.join("bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check", "--no-deps"])
                .args(packages),
        )
        .with_context(|| format!("{what} cannot be had from PyPI; without it: cargo xtask test --no-nvcc"))?;
        development_links(&installed(venv, name)?.join("lib"))?;
        fs::write(&complete, packages.join("\n"))?;
    }
    installed(venv, name)
}

fn installed(venv: &Path, name: &str) -> Result<PathBuf> {
    fs::read_dir(venv.join("lib"))?
        .filter_map(|entry| Some(entry.ok()?.path().join("site-packages/nvidia").join(name)))
        .find(|home| home.exists())
        .with_context(|| format!("the packages in {} hold no folder {name}", venv.display()))
}

/// nvcc needs g++, the set-up needs python3 with venv: installs what is missing where we may.
pub(crate) fn host_packages(scratch: &Path) -> Result<()> {
    let works = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let mut missing = Vec::new();
    if !works("g++", &["--version"]) {
        missing.push("g++");
    }
    let probe = scratch.with_extension("probe");
    if !works("python3", &["-m", "venv", &probe.to_string_lossy()]) {
        missing.extend(["python3", "python3-venv"]);
    }
    let _ = fs::remove_dir_all(&probe);
    if missing.is_empty() {
        return Ok(());
    }
    if !works("apt-get", &["--version"]) || std::env::var("USER").is_ok_and(|user| user != "root") {
        bail!("missing: {}. Install with: sudo apt-get install {0}", missing.join(" "));
    }
    say(&format!("installing {}", missing.join(" ")));
    checked(Command::new("apt-get").args(["-qq", "update"]))?;
    checked(
        Command::new("apt-get").args(["-qq", "-y", "install"]).args(missing).env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// The wheels lack the `lib*.so` links that the linker wants.
///
/// # Errors
/// What the file system says.
pub(crate) fn development_links(libraries: &Path) -> Result<()> {
    for entry in fs::read_dir(libraries)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if let Some((base, _)) = name.split_once(".so.") {
            let link = libraries.join(format!("{base}.so"));
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(&*name, link)?;
            }
        }
    }
    Ok(())
}
