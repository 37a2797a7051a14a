//! What is said of kernels with a fault, with `sundial run --check` and without; and that nothing is said of those without a fault.

use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Daemon, bin_dir, cuda_examples, text};
use serde_json::Value;

fn sundial(check: &[&str]) -> Command {
    let mut command = Command::new(bin_dir().join("sundial"));
    command.arg("run").args(check);
    command
}

fn examples() -> Option<PathBuf> {
    let folder = cuda_examples();
    if folder.is_none() {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
    }
    folder
}

/// What a run with a fault is found to do: exit code, standard output, standard error.
fn faulty(folder: &Path, check: &str, fault: &str) -> (Option<i32>, String, String) {
    let output = sundial(&["--check", check, "--check-exit-code", "9", "--"])
        .args(["timeout", "120"])
        .arg(folder.join("faulty"))
        .arg(fault)
        .output()
        .expect("sundial run");
    let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), read(&output.stdout), read(&output.stderr))
}

/// The line of `examples/cuda/faulty.cu` that has a text.
fn line(text: &str) -> String {
    let source = include_str!("../../../examples/cuda/faulty.cu");
    let found = source.lines().position(|line| line.contains(text)).expect("the line is there");
    format!("faulty.cu:{} (line ", found + 1)
}

#[test]
fn faults_are_told_with_what_is_known_of_them() {
    let Some(folder) = examples() else { return };
    let illegal = "cudaErrorIllegalAddress";
    // Check, fault, what CUDA says, the program's exit code or that of the checks, and what is told.
    let cases: [(&str, &str, &str, i32, Vec<String>); 9] = [
        (
            "memory",
            "beyond",
            illegal,
            1,
            vec![
                "memory: read of 4 bytes out of bounds".into(),
                "by thread (40,0,0) of block (15,0,0), in kernel _Z7add_one".into(),
                line("data[i] += 1"),
                "0 bytes behind the end of 4000 bytes at 0x".into(),
                "(cudaMalloc)".into(),
            ],
        ),
        (
            "memory",
            "pool",
            illegal,
            1,
            vec!["0 bytes behind the end of 4000 bytes at".into(), "(cudaMallocAsync)".into()],
        ),
        (
            "memory",
            "freed",
            illegal,
            1,
            vec!["of freed memory".into(), "into 4000 bytes at".into(), line("data[i] += 1")],
        ),
        ("memory", "null", illegal, 1, vec!["read of 4 bytes through a null pointer, at 0x0".into()]),
        (
            "memory",
            "misaligned",
            "cudaErrorMisalignedAddress",
            1,
            vec![
                "write of 4 bytes at an address that is no multiple of its size".into(),
                "6 bytes into 4000".into(),
                line("reinterpret_cast<int*>(data + offset) = 1"),
            ],
        ),
        (
            "memory",
            "shared",
            "cudaError",
            1,
            vec![
                "write of 4 bytes outside the block's shared memory, at 0x".into(),
                "by thread (32,0,0)".into(),
                "the block has 128 bytes".into(),
            ],
        ),
        (
            "init",
            "uninitialised",
            "cudaSuccess",
            9,
            vec![
                "init: read of 4 bytes of memory that nobody has written".into(),
                "by thread (39,0,0)".into(),
                line("total += in[i]"),
                "3996 bytes into 4000".into(),
            ],
        ),
        (
            "race",
            "race",
            "cudaSuccess",
            9,
            vec!["race: ".into(), line("out[i] = tile[TILE - 1 - i]"), line("tile[i] = in[i]")],
        ),
        (
            "race",
            "trips",
            "cudaSuccess",
            9,
            vec!["race: write after read".into(), line("tile[i] = i + trip"), line("sum += tile")],
        ),
    ];
    for (check, fault, result, code, told) in cases {
        let (exit, out, err) = faulty(&folder, check, fault);
        assert_eq!(exit, Some(code), "{fault}: {out}{err}");
        assert!(out.contains(&format!("faulty {fault}: {result}")), "{out}");
        for part in &told {
            assert!(err.contains(part.as_str()), "{fault}: no {part:?} in {err}");
        }
        let summary = err.lines().last().unwrap_or_default();
        assert!(summary.contains("check summary: ") && summary.contains(" error"), "{err}");
        assert!(!summary.contains("no errors"), "{err}");
    }
}

#[test]
fn the_log_says_where_a_fault_was() {
    let Some(folder) = examples() else { return };
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let [add, store, tile] = ["data[i] += 1", "reinterpret_cast<int*>(data + offset)", "tile[i] = i"].map(line);
    let cases: [(&str, &[&str]); 3] = [
        (
            "null",
            &[
                "context failed",
                "error=read of an illegal address, 0x0, by thread (0,0,0) of block (0,0,0), at ",
                &add,
                " of PTX), in kernel _Z7add_one",
            ],
        ),
        (
            "misaligned",
            &[
                "error=misaligned access at 0x",
                ", by thread (0,0,0) of block",
                &store,
                "6 bytes into 4000 bytes at 0x",
                "(cudaMalloc)",
            ],
        ),
        (
            "shared",
            &["memory at 0x80, by thread (32,0,0) of block (0,0,0), at ", &tile, " of PTX), in kernel _Z11fill_shared"],
        ),
    ];
    for (fault, told) in cases {
        for (way, mut command) in [("native", sundial(&["--native"])), ("daemon", daemon.sundial())] {
            if way == "daemon" {
                command.arg("run");
            }
            let output = command.arg("--").arg(folder.join("faulty")).arg(fault).output().expect("sundial run");
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{fault}, {way}: {said}");
            for part in told {
                assert!(said.contains(part), "{fault}, {way}: no {part:?} in {said}");
            }
        }
    }
}

#[test]
fn checks_find_what_they_are_asked_for() {
    let Some(folder) = examples() else { return };
    for (check, fault) in [("race,memory", "uninitialised"), ("memory,init", "race"), ("memory,init", "trips")] {
        let (exit, _, err) = faulty(&folder, check, fault);
        assert!(exit == Some(0) && err.contains("check summary: no errors"), "{check}, {fault}: {err}");
    }
}

#[test]
fn events_are_lines_of_json() {
    let Some(folder) = examples() else { return };
    let file = std::env::temp_dir().join(format!("sundial-e2e-check-{}.json", std::process::id()));
    let run = |fault: &str| {
        let mut command = sundial(&["--check", "memory", "--check-json"]);
        let output = command.arg(&file).arg("--").arg(folder.join("faulty")).arg(fault).output().expect("sundial run");
        let events: Vec<Value> = std::fs::read_to_string(&file)
            .expect("the file")
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
            .collect();
        std::fs::remove_file(&file).expect("it was there");
        (text(&output), events)
    };
    let (said, events) = run("beyond");
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(kinds, ["start", "error", "end"], "{said}");
    let error = &events[1]["error"];
    assert_eq!(error["check"], "memory");
    assert_eq!((&error["bytes"], &error["thread"][0], &error["block"][0]), (&4.into(), &40.into(), &15.into()));
    assert_eq!(error["place"]["source"][1].as_u64().map(|line| line > 0), Some(true), "{error}");
    assert_eq!(events[2]["errors"], 1);
    let (said, events) = run("none");
    assert_eq!((events.len(), &events[1]["errors"]), (2, &0.into()), "{said}");
}

/// Those whose kernels the interpreter runs in some seconds.
const RIGHT: [&str; 18] = [
    "vector_add",
    "reduction",
    "histogram",
    "scan",
    "streams",
    "graphs",
    "managed",
    "device_printf",
    "block_reduce",
    "backprop",
    "bfs",
    "lud",
    "nw",
    "tensor",
    "textures",
    "linked",
    "children",
    "matrix_mul",
];

#[test]
fn nothing_is_said_of_programs_that_are_right() {
    let Some(folder) = examples() else { return };
    let mut failed = Vec::new();
    let programs = RIGHT.map(|name| (name, None)).into_iter().chain([("faulty", Some("none"))]);
    for (name, argument) in programs {
        let start = std::time::Instant::now();
        let mut command = sundial(&["--check", "memory,init,race", "--check-exit-code", "9", "--", "timeout", "300"]);
        let output = command.arg(folder.join(name)).args(argument).output().expect("sundial run");
        let said = text(&output);
        eprintln!("{name}: {:?}", start.elapsed());
        if !output.status.success() || !said.contains("check summary: no errors") {
            failed.push(format!("{name}: {said}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_checked_program_ends_as_it_does_alone() {
    let shell =
        |script: &str| sundial(&["--check", "memory", "--", "sh", "-c"]).arg(script).output().expect("sundial run");
    let output = shell("echo out; exit 7");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"out\n"[..]));
    assert!(text(&output).contains("nothing was checked"), "{}", text(&output));
    assert_eq!(shell("kill -TERM $$").status.code(), Some(128 + 15));
    let missing = sundial(&["--check", "memory", "--", "/nowhere/at/all"]).output().expect("sundial run");
    assert_eq!(missing.status.code(), Some(127));
    // What is about the daemon is refused.
    let refused = sundial(&["--check", "memory", "--mem", "1g", "--", "true"]).output().expect("sundial run");
    assert!(!refused.status.success() && text(&refused).contains("--check"), "{}", text(&refused));
}
