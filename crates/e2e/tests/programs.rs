//! CUDA programs, compiled by nvcc with its default flags, run unmodified: straight on the software GPU, and as tenants.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Daemon, bin_dir, cuda_examples, text};

/// Folder of programs, the runtime they say they run on, their names.
const PROGRAMS: [(&str, &str, &[&str]); 4] = [
    (
        "",
        "CUDA runtime ",
        &[
            "vector_add",
            "matrix_mul",
            "black_scholes",
            "binomial_options",
            "radix_sort",
            "stereo_disparity",
            "reduction",
            "histogram",
            "scan",
            "nbody",
            "mandelbrot",
            "streams",
            "graphs",
            "green",
            "graph_memory",
            "conditions",
            "managed",
            "device_printf",
            "block_reduce",
            "micro",
            "backprop",
            "bfs",
            "hotspot",
            "lud",
            "nw",
            "tensor",
            "clusters",
            "tensor_map",
            "textures",
            "linked",
            "children",
            "answers",
        ],
    ),
    (
        "static-12",
        "CUDA runtime 12.",
        &["vector_add", "streams", "graphs", "graph_memory", "managed", "device_printf", "reduction", "linked"],
    ),
    ("shared-12", "CUDA runtime 12.", &["vector_add", "streams"]),
    ("shared", "CUDA runtime ", &["vector_add", "streams"]),
];

/// Runs a program to its end, at most two minutes; it must say PASSED, and on which runtime.
fn passes(mut command: Command, program: &Path, runtime: &str) {
    let output = command.arg("--").arg("timeout").arg("120").arg(program).output().expect("sundial run");
    let said = text(&output);
    let passed = output.status.success() && said.contains("PASSED") && said.contains(runtime);
    assert!(passed, "{}: {said}", program.display());
}

fn check_all(run: impl Fn() -> Command) {
    let Some(folder) = cuda_examples() else {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
        return;
    };
    let mut failed = Vec::new();
    for (kind, runtime, names) in PROGRAMS {
        for name in names {
            let program = folder.join(kind).join(name);
            let start = std::time::Instant::now();
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| passes(run(), &program, runtime)));
            let verdict = if result.is_ok() { "ok" } else { "FAILED" };
            eprintln!("{}: {verdict} in {:?}", program.display(), start.elapsed());
            if result.is_err() {
                failed.push(program);
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[test]
fn nvcc_programs_run_natively() {
    check_all(|| {
        let mut command = Command::new(bin_dir().join("sundial"));
        command.args(["run", "--native"]);
        command
    });
}

#[test]
fn nvcc_programs_run_as_tenants() {
    let daemon = Daemon::start(&["--gpu", "soft:2g"]);
    check_all(|| {
        let mut command = daemon.sundial();
        command.args(["run", "--mem", "512m", "--share", "50%"]);
        command
    });
    e2e::wait_for("all sessions to be gone", Duration::from_secs(20), || daemon.ps().is_empty().then_some(()));
}

#[test]
fn copies_by_way_of_the_daemon_are_right_as_well() {
    let Some(folder) = cuda_examples() else {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
        return;
    };
    let daemon = Daemon::start(&["--gpu", "soft:1g", "--copies", "staged"]);
    for name in ["vector_add", "radix_sort", "stereo_disparity", "micro", "managed"] {
        let mut command = daemon.sundial();
        command.args(["run", "--mem", "512m"]);
        passes(command, &folder.join(name), "CUDA runtime ");
    }
}

#[test]
fn streams_exit_codes_and_signals_are_the_programs_own() {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;

    let daemon = Daemon::start(&["--gpu", "soft:256m"]);
    let output = daemon.sundial().args(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("err"));

    let mut child =
        daemon.sundial().args(["run", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");

    let output = daemon.sundial().args(["run", "--", "sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert!(output.status.signal() == Some(15) || output.status.code() == Some(128 + 15), "{:?}", output.status);
}

#[test]
fn nothing_in_the_environment_raises_a_limit() {
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let mut command = daemon.sundial();
    for name in ["SUNDIAL_MEM", "SUNDIAL_MEMORY", "SUNDIAL_LIMIT", "SUNDIAL_VRAM"] {
        command.env(name, "4g");
    }
    let output = command
        .args(["run", "--mem", "128m", "--share", "20%", "--"])
        .arg(bin_dir().join("sundial-tenant"))
        .arg("greedy")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["total"], 128 << 20);
    assert!(report["allocated"].as_u64().unwrap() <= 128 << 20, "{report}");
    assert_eq!(report["error"], 2);
}

#[test]
fn nvcc_programs_run_as_guests_of_each_scheme() {
    let daemon = Daemon::start(&["--gpu", "soft:2g"]);
    let guests = ["fv", "pv", "fv-naive"]
        .map(|scheme| daemon.vgpu(&format!("guest-{scheme}"), &["--mem", "512m", "--scheme", scheme]));
    // Each program under one of them, in turn.
    let next = std::cell::Cell::new(0);
    check_all(|| {
        let socket = &guests[next.replace(next.get() + 1) % guests.len()];
        let mut command = daemon.sundial();
        command.args(["run", "--vgpu"]).arg(socket);
        command
    });
}

#[test]
fn a_program_has_the_whole_gpu_and_then_everybody_has_it() {
    let Some(folder) = cuda_examples() else {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
        return;
    };
    let program = folder.join("vector_add");
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let vgpu = |arguments: &[&str]| {
        let output = daemon.sundial().arg("vgpu").args(arguments).output().expect("sundial vgpu");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let run = |arguments: &[&str]| {
        let mut command = daemon.sundial();
        command.arg("run").args(arguments);
        command
    };
    for _ in 0..2 {
        let socket = vgpu(&["create", "whole", "--scheme", "pass-through"]);
        for _ in 0..2 {
            passes(run(&["--vgpu", &socket]), &program, "CUDA runtime ");
        }
        let refused = run(&["--mem", "64m"]).args(["--", "true"]).output().expect("sundial run");
        assert!(!refused.status.success() && text(&refused).contains("passed through"), "{}", text(&refused));
        vgpu(&["destroy", "whole"]);
        passes(run(&["--mem", "256m"]), &program, "CUDA runtime ");
        e2e::wait_for("all sessions to be gone", Duration::from_secs(5), || daemon.ps().is_empty().then_some(()));
    }
}
