//! `sundial doctor`: is everything in its place, and if not, what to do.

use std::io::Write;
use std::process::Command;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::place::Place;
use crate::run::library_directory;

/// Arguments of `sundial doctor`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Print JSON: {"checks":[{"name","state","found","advice"}],"ok":bool}.
    #[arg(long)]
    json: bool,
}

/// How a check went.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Works, but is worth knowing.
    Note,
    Bad,
}

#[derive(Serialize, Debug)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    /// What to do; empty if nothing.
    advice: String,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, state, found: found.into(), advice: advice.into() }
    }
}

/// Runs all checks; true if nothing is bad.
///
/// # Errors
/// Output cannot be written.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let checks = vec![version(), processor(), memory(), library(), other_driver(), sockets(), daemon(), kernel()];
    let ok = checks.iter().all(|check| check.state != State::Bad);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&serde_json::json!({ "checks": checks, "ok": ok }))?)?;
        return Ok(ok);
    }
    for check in &checks {
        let mark = match check.state {
            State::Ok => "ok  ",
            State::Note => "note",
            State::Bad => "BAD ",
        };
        writeln!(out, "{mark} {:<14} {}", check.name, check.found)?;
        if !check.advice.is_empty() {
            writeln!(out, "     {:<14} -> {}", "", check.advice)?;
        }
    }
    Ok(ok)
}

fn version() -> Check {
    Check::new("sundial", State::Ok, format!("version {}, CUDA driver API 13.5", env!("CARGO_PKG_VERSION")), "")
}

fn processor() -> Check {
    let fma = std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if fma {
        Check::new("processor", State::Ok, format!("{cores} cores, FMA and AVX2"), "")
    } else {
        Check::new(
            "processor",
            State::Note,
            format!("{cores} cores, no FMA or AVX2"),
            "kernels of the software GPU run slower; a processor since 2013 (Haswell) has both",
        )
    }
}

fn memory() -> Check {
    let info = rustix::system::sysinfo();
    let free = (info.freeram as u64 + info.bufferram as u64) * u64::from(info.mem_unit);
    Check::new("memory", State::Ok, format!("{} MiB free for the software GPU's VRAM", free >> 20), "")
}

fn library() -> Check {
    match library_directory() {
        Ok(folder) => Check::new("libcuda.so.1", State::Ok, format!("ours, in {}", folder.display()), ""),
        Err(error) => Check::new(
            "libcuda.so.1",
            State::Bad,
            format!("{error:#}"),
            "keep sundial and its folder sundial-lib/ together",
        ),
    }
}

/// NVIDIA's own driver on this machine: programs get ours all the same, when started by `sundial run`.
fn other_driver() -> Check {
    let listing = Command::new("ldconfig").arg("-p").output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let found = listing.ok().and_then(|text| {
        Some(text.lines().find(|line| line.contains("libcuda.so.1"))?.split("=> ").nth(1)?.to_owned())
    });
    let shadow = std::env::var("LD_PRELOAD").is_ok_and(|value| value.contains("cuda"));
    match (found, shadow) {
        (_, true) => Check::new(
            "library path",
            State::Bad,
            "LD_PRELOAD names a CUDA library, which wins over ours",
            "unset LD_PRELOAD before `sundial run`",
        ),
        (Some(path), _) => Check::new(
            "library path",
            State::Note,
            format!("another libcuda.so.1 is installed: {path}"),
            "programs started by `sundial run` use ours; this version does not share a physical GPU yet",
        ),
        (None, _) => Check::new("library path", State::Ok, "no other libcuda.so.1 installed", ""),
    }
}

fn sockets() -> Check {
    match Place::open() {
        Ok(place) => Check::new("sockets", State::Ok, format!("in {}", place.directory().display()), ""),
        Err(error) => Check::new("sockets", State::Bad, format!("{error:#}"), "or name another in SUNDIAL_RUNTIME_DIR"),
    }
}

fn daemon() -> Check {
    let answer = std::env::current_exe().and_then(|own| Command::new(own).args(["ps", "--json"]).output());
    match answer {
        Ok(output) if output.status.success() => {
            let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let sessions = value["sessions"].as_array().map_or(0, Vec::len);
            Check::new("daemon", State::Ok, format!("running, {sessions} sessions"), "")
        }
        _ => Check::new("daemon", State::Ok, "not running; `sundial run` starts one", ""),
    }
}

fn kernel() -> Check {
    let name = rustix::system::uname();
    Check::new(
        "kernel",
        State::Ok,
        format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
        "",
    )
}
