//! NVIDIA's compiler, from PyPI: used by tests, never shipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{checked, say, target};

/// What is installed. `nvcc` finds the host compiler on the path.
const PACKAGES: [&str; 6] = [
    "nvidia-cuda-nvcc==13.5.*",
    "nvidia-nvvm==13.5.*",
    "nvidia-cuda-runtime==13.5.*",
    "nvidia-cuda-crt==13.5.*",
    "nvidia-cuda-cccl==13.3.*",
    "nvidia-cuda-nvrtc==13.5.*",
];

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
    let venv = target(root).join("cuda-toolkit");
    if let Some(home) = installed(&venv)
        && venv.join("complete").exists()
    {
        return Ok(home);
    }
    host_packages(&venv)?;
    say("installing NVIDIA's compiler from PyPI into target/cuda-toolkit (about 190 MB, once)");
    checked(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
        .context("python3 with its venv module is needed: apt-get install python3-venv")?;
    checked(
        Command::new(venv.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check"]).args(PACKAGES),
    )?;
    let home = installed(&venv).context("the packages hold no bin/nvcc")?;
    development_links(&home.join("lib"))?;
    fs::write(venv.join("complete"), "")?;
    Ok(home)
}

fn installed(venv: &Path) -> Option<PathBuf> {
    let homes = fs::read_dir(venv.join("lib")).ok()?;
    homes
        .filter_map(|entry| Some(entry.ok()?.path().join("site-packages/nvidia/cu13")))
        .find(|home| home.join("bin/nvcc").exists())
}

/// nvcc needs g++, the set-up needs python3 with venv: installs what is missing where we may.
fn host_packages(scratch: &Path) -> Result<()> {
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

/// The wheels lack the `lib*.so` links that `-cudart shared` wants.
fn development_links(libraries: &Path) -> Result<()> {
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
