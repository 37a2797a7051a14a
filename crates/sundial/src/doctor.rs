//! `sundial doctor`: is everything in its place, and if not, what to do; and what contains our processes on this machine.

use std::io::Write;
use std::process::Command;

use anyhow::Result;
use clap::Args;
use sandbox::Role;
use serde::Serialize;
use write_trap::{Kind, Why};

use crate::confine::{self, RoleLine};
use crate::run::library_directory;
use crate::runtime_directory::RuntimeDirectory;
use crate::stand_ins;

/// Arguments of `sundial doctor`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Print JSON: {"checks":[{"name","state","found","advice"}],"roles":[{"role","protections","refused","worked"}],"ok"}.
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
    let mut checks =
        vec![version(), processor(), memory(), library(), stand_ins(), other_driver(), sockets(), daemon(), kernel()];
    checks.extend(Kind::ALL.map(trap));
    let roles = Role::ALL.map(confine::prove).into_iter().collect::<Result<Vec<RoleLine>>>()?;
    checks.extend(roles.iter().map(containment));
    let ok = checks.iter().all(|check| check.state != State::Bad);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({ "checks": checks, "roles": roles, "ok": ok }))?
        )?;
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

/// What `sundial run` has programs find instead of compilers to machine code.
fn stand_ins() -> Check {
    let Ok(libraries) = library_directory() else {
        return Check::new("stand-ins", State::Note, "not looked for, without libraries", "");
    };
    let folder = stand_ins::folder(&libraries);
    match &stand_ins::missing(&folder)[..] {
        [] => {
            Check::new("stand-ins", State::Ok, format!("for NVRTC, nvJitLink and ptxas, in {}", folder.display()), "")
        }
        [missing, ..] => Check::new(
            "stand-ins",
            State::Bad,
            format!("{} is not there: kernels that programs compile when they run are refused", missing.display()),
            "build them with: cargo xtask build",
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
    match RuntimeDirectory::open() {
        Ok(directory) => Check::new("sockets", State::Ok, format!("in {}", directory.path().display()), ""),
        Err(error) => Check::new("sockets", State::Bad, format!("{error:#}"), "or name another in SUNDIAL_RUNTIME_DIR"),
    }
}

fn daemon() -> Check {
    let answer = std::env::current_exe().and_then(|own| Command::new(own).args(["ps", "--json"]).output());
    match answer {
        Ok(output) if output.status.success() => {
            let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let sessions = value["sessions"].as_array().map_or(0, Vec::len);
            let deaths = value["device_deaths"].as_u64().unwrap_or(0);
            if deaths == 0 {
                return Check::new("daemon", State::Ok, format!("running, {sessions} sessions"), "");
            }
            let found = format!("running, {sessions} sessions; the process that owns the GPU has died {deaths} times");
            Check::new("daemon", State::Note, found, "the daemon's log (daemon.log beside its sockets) says of what")
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

/// A way to notice what a guest stores into its page tables, as a process of this user has it: a guest that is one, or a QEMU.
fn trap(kind: Kind) -> Check {
    let (name, noticed) = match kind {
        Kind::Decode => ("trap: decode", "each store"),
        Kind::Fault => ("trap: fault", "the first store to a page"),
        Kind::Tracker => ("trap: tracker", "that a page was written"),
    };
    let micros = |nanos: u64| format!("{}.{:02} µs", nanos / 1000, nanos % 1000 / 10);
    match write_trap::measure(kind) {
        Ok(cost) => {
            let found = format!(
                "notices {noticed} for {}; {} to protect a page, {} in a run of pages; {} to ask, {} for each page written",
                micros(cost.trap_ns),
                micros(cost.protect_ns),
                micros(cost.protect_in_run_ns),
                micros(cost.take_ns),
                micros(cost.take_written_ns),
            );
            Check::new(name, State::Ok, found, "")
        }
        Err(why) => {
            let cause = std::error::Error::source(&why).map(|cause| format!(" ({cause})")).unwrap_or_default();
            let advice = match why {
                Why::Processor => "",
                Why::Userfaultfd(_) => {
                    "let it be used: `sysctl vm.unprivileged_userfaultfd=1`, or access to /dev/userfaultfd"
                }
                Why::NoWriteProtect | Why::NoAsync | Why::NoScan(_) => "a newer kernel (6.7) has it",
                _ => "virtual GPUs compare page tables instead (`--trap snapshot`), or are told (`announced`)",
            };
            Check::new(name, State::Note, format!("not here: {why}{cause}"), advice)
        }
    }
}

/// What contains the processes of a role: said by processes that entered it a moment ago, and tried to leave.
fn containment(line: &RoleLine) -> Check {
    let name = match line.role {
        "control" => "control",
        "device" => "device",
        _ => "compilers",
    };
    let names = |wanted: &str| -> Vec<String> {
        let of = line.protections.iter().filter(|protection| protection.holds == wanted);
        of.map(|protection| format!("{} ({})", protection.name, protection.missing)).collect()
    };
    let held = line.protections.iter().filter(|protection| protection.holds == "yes");
    let held: Vec<&str> = held.map(|protection| protection.name.as_str()).collect();
    let mut found = format!("contained by: {}; {} forbidden things tried in vain", held.join(", "), line.refused.len());
    let (lacking, partly) = (names("no"), names("partly"));
    if !partly.is_empty() {
        found += &format!("; in part: {}", partly.join(", "));
    }
    if !lacking.is_empty() {
        found += &format!("; NOT by: {}", lacking.join(", "));
    }
    if !line.worked.is_empty() {
        found += &format!("; forbidden, and works: {}", line.worked.join(", "));
    }
    if lacking.is_empty() && line.worked.is_empty() {
        return Check::new(name, State::Ok, found, "");
    }
    Check::new(
        name,
        State::Note,
        found,
        "what docs/threat-model.md says of this process does not all hold here; a newer kernel (6.12) has all of it",
    )
}
