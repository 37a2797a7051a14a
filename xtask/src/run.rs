//! Running other programs: cargo above all.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{guest, qemu};

/// Says what comes next.
pub(crate) fn say(text: &str) {
    eprintln!("==> {text}");
}

/// Runs a command to its end; an error if it fails.
pub(crate) fn checked(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}

/// `cargo` in the repository's root.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// `cargo` that compiles our own crates by a script of `xtask/rustc`. In the release profile crates of others are those of the product,
/// which takes most of a build. What is made is put under [`made_by`], and nothing in the place of the product's.
///
/// # Errors
/// The script cannot be read, or copied.
pub(crate) fn cargo_by(root: &Path, script: &str) -> Result<Command> {
    let source = root.join("xtask/rustc").join(script);
    // Of a wrapper cargo looks at the path alone: it is another one when the script is.
    let mut hasher = DefaultHasher::new();
    fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?.hash(&mut hasher);
    let folder = made_by(root, script).join("rustc");
    fs::create_dir_all(&folder)?;
    let wrapper = folder.join(format!("{script}-{:016x}", hasher.finish()));
    fs::copy(&source, &wrapper)?;
    let mut command = cargo(root);
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    command.env("CARGO_TARGET_DIR", made_by(root, script)).env("CARGO_BUILD_BUILD_DIR", target(root));
    Ok(command)
}

/// Where [`cargo_by`] puts what it makes, as under a target folder.
pub(crate) fn made_by(root: &Path, script: &str) -> PathBuf {
    target(root).join(script)
}

/// The target folder.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}

/// Builds the product and puts its libraries where `sundial run` looks for them.
pub(crate) fn build(root: &Path) -> Result<()> {
    say("building target/release/sundial");
    checked(cargo(root).args([
        "build",
        "--release",
        "-p",
        "sundial",
        "-p",
        "libcuda",
        "-p",
        "nvml",
        "-p",
        "sundial_qemu",
        "-p",
        "stand_ins",
        "-p",
        "tenants",
        "-p",
        "probe",
        "-p",
        "attack",
    ]))?;
    let release = target(root).join("release");
    let libraries = release.join("sundial-lib");
    fs::create_dir_all(&libraries)?;
    // Files of their own, so that the folder can be moved with the program beside it. By either name: a program that asks for
    // the second must not find another one further on in its path.
    for (built, name, other) in [
        ("libcuda.so", "libcuda.so.1", Some("libcuda.so")),
        ("libnvidia_ml.so", "libnvidia-ml.so.1", Some("libnvidia-ml.so")),
        ("libsundial_qemu.so", "libsundial_qemu.so", None),
    ] {
        for path in [Some(name), other].into_iter().flatten().map(|name| libraries.join(name)) {
            if path.symlink_metadata().is_ok() {
                fs::remove_file(path)?;
            }
        }
        fs::copy(release.join(built), libraries.join(name))?;
        if let Some(other) = other {
            std::os::unix::fs::symlink(name, libraries.join(other))?;
        }
    }
    stand_ins(&release, &libraries.join("stand-ins"))
}

/// Puts the stand-ins for compilers where `sundial run` has programs look for them.
fn stand_ins(release: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    // What loaders put for `$LIB`: Debian's; Red Hat's and SUSE's; Arch's.
    let library = "libsundial_stand_ins.so";
    for lib in ["lib/x86_64-linux-gnu", "lib64", "bin"] {
        fs::create_dir_all(folder.join(lib))?;
    }
    fs::copy(release.join(library), folder.join("lib").join(library))?;
    std::os::unix::fs::symlink(format!("../{library}"), folder.join("lib/x86_64-linux-gnu").join(library))?;
    std::os::unix::fs::symlink(format!("../lib/{library}"), folder.join("lib64").join(library))?;
    fs::copy(release.join("ptxas"), folder.join("bin/ptxas"))?;
    Ok(())
}

/// Builds everything, then runs the demonstration in this terminal; with the QEMU that was fetched, if one was.
pub(crate) fn demo(root: &Path, arguments: &[String]) -> Result<()> {
    build(root)?;
    let mut command = Command::new(target(root).join("release/sundial"));
    command.arg("demo").args(arguments);
    if let Some(home) = qemu::there(root).filter(|_| std::env::var_os("SUNDIAL_QEMU").is_none()) {
        command.env("SUNDIAL_QEMU", home).env("SUNDIAL_GUEST", guest::pack(root)?);
    }
    let status = command.status()?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Builds everything, then attacks it.
pub(crate) fn attack(root: &Path, arguments: &[String]) -> Result<()> {
    build(root)?;
    let release = target(root).join("release");
    let mut command = Command::new(release.join("sundial-attack"));
    command.arg("all").args(arguments).env("SUNDIAL_BIN_DIR", &release);
    if std::env::var_os("SUNDIAL_LOG").is_none() {
        command.env("SUNDIAL_LOG", "error");
    }
    let status = command.status()?;
    std::process::exit(status.code().unwrap_or(1));
}

/// `cargo fmt`.
pub(crate) fn fmt(root: &Path, check: bool) -> Result<()> {
    say("formatting");
    let mut command = cargo(root);
    command.args(["fmt", "--all"]);
    if check {
        command.arg("--check");
    }
    checked(&mut command)
}

/// `cargo clippy`, warnings are errors.
pub(crate) fn lint(root: &Path) -> Result<()> {
    say("clippy");
    // By the profile whose build scripts and macros the product needs as well.
    let what = ["--release", "--workspace", "--all-targets", "--features", "sundial-fuzz/fuzzing", "--quiet"];
    checked(cargo(root).arg("clippy").args(what).args(["--", "-D", "warnings"]))
}
