//! Benchmarks, shortly: that they run, give the rows that they promise, and count what the schemes do. Nothing is said of times:
//! these tests run beside others.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::path::PathBuf;
use std::process::Command;

use e2e::{bin_dir, cuda_examples, text};
use serde_json::Value;

const PHASES: [&str; 7] = ["init", "to_gpu", "launch", "from_gpu", "close", "total", "finish"];
const COUNTS: [&str; 4] = ["traps", "shadow_updates", "entries_scanned", "hypercalls"];

/// Runs a benchmark; its rows, and its picture.
fn bench(name: &str, arguments: &[&str]) -> (Vec<Value>, String) {
    let picture = std::env::temp_dir().join(format!("e2e-bench-{name}-{}.svg", std::process::id()));
    let mut command = Command::new(bin_dir().join("sundial"));
    let output = command.args(["bench"]).args(arguments).args(["--json", "--svg"]).arg(&picture).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let svg = std::fs::read_to_string(&picture).unwrap();
    std::fs::remove_file(&picture).unwrap();
    (serde_json::from_slice(&output.stdout).unwrap(), svg)
}

/// The folder of the programs, if this one is among them.
fn programs_with(name: &str) -> Option<PathBuf> {
    let folder = cuda_examples().filter(|folder| folder.join(name).exists());
    if folder.is_none() {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
    }
    folder
}

fn keys(row: &Value) -> Vec<&str> {
    row.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn bench_vgpu_tells_what_each_scheme_takes() {
    let Some(folder) = programs_with("bfs") else { return };
    let schemes = ["native", "session", "pass-through", "fv-naive", "fv", "fv-beside-idle", "pv"];
    let folder = folder.to_str().unwrap();
    let arguments = ["--programs", folder, "--rounds", "1", "vgpu", "--guests", "1,2", "--programs", "bfs"];
    let chosen = schemes.join(",");
    let (rows, svg) = bench("vgpu", &[&arguments[..], &["--schemes", &chosen]].concat());
    let find = |scheme: &str, guests: u64, phase: &str| {
        let asked = |row: &&Value| row["scheme"] == scheme && row["guests"] == guests && row["phase"] == phase;
        rows.iter().find(asked)
    };
    for (guests, scheme) in [1, 2].into_iter().flat_map(|guests| schemes.map(|scheme| (guests, scheme))) {
        for phase in PHASES {
            // One has the whole device, or one is beside an idle one.
            let Some(row) = find(scheme, guests, phase) else {
                assert!(
                    ["pass-through", "fv-beside-idle"].contains(&scheme) && guests == 2,
                    "{scheme}, {guests}, {phase}"
                );
                continue;
            };
            let wanted = ["scheme", "guests", "program", "phase", "ms", "ratio"].into_iter().chain(COUNTS);
            assert!(wanted.into_iter().all(|key| keys(row).contains(&key)), "{row}");
            assert!(row["program"] == "bfs" && row["ms"].as_f64().unwrap() >= 0.0, "{row}");
            let ratio = row["ratio"].as_f64();
            assert!(ratio.is_some_and(|ratio| ratio.is_finite() && ratio >= 0.0), "{row}");
            assert!(scheme != "native" || ratio == Some(1.0), "{row}");
        }
    }
    let count = |scheme: &str, what: &str| find(scheme, 1, "total").unwrap()[what].as_u64().unwrap();
    for what in COUNTS {
        assert_eq!((count("native", what), count("session", what)), (0, 0), "{what}: nobody mediates there");
    }
    // Where memory is not mapped into the guest, each access to it is a trap; all tables are looked at in each invalidate.
    assert!(count("fv-naive", "traps") > count("fv", "traps") && count("fv", "traps") > 0);
    assert!(count("fv-naive", "entries_scanned") > count("fv", "entries_scanned"));
    // A guest that says what it writes has its tables looked at by nobody.
    assert!(count("fv", "entries_scanned") > 0 && count("pv", "entries_scanned") == 0);
    assert!(count("pv", "hypercalls") > 0 && count("fv", "hypercalls") == 0 && count("fv-naive", "hypercalls") == 0);
    for what in &COUNTS[1..] {
        assert_eq!(count("pass-through", what), 0, "{what}: its guest's tables are the device's");
    }
    for scheme in ["fv-naive", "fv", "pv"] {
        let parts: u64 =
            PHASES[..5].iter().map(|phase| find(scheme, 1, phase).unwrap()["traps"].as_u64().unwrap()).sum();
        assert!((1..=count(scheme, "traps")).contains(&parts), "{scheme}: {parts}");
    }
    assert!(svg.contains("</svg>") && svg.contains("fv-naive") && svg.contains("2 guests"));
}

#[test]
fn bench_isolation_tells_who_gets_what() {
    let (rows, svg) = bench("isolation", &["isolation", "--seconds", "2"]);
    let promised = ["scheduler", "kind", "tenant", "share_entitled", "share_received", "error_points"];
    for kind in ["sessions", "guests", "mixed"] {
        for scheduler in ["default", "fifo", "credit", "band"] {
            let asked = |row: &&Value| row["kind"] == kind && row["scheduler"] == scheduler;
            let found: Vec<&Value> = rows.iter().filter(asked).collect();
            let names: Vec<&str> = found.iter().map(|row| row["tenant"].as_str().unwrap()).collect();
            assert_eq!(names, ["short", "middle", "long"], "{kind}, {scheduler}");
            assert!(found.iter().all(|row| promised.iter().all(|key| keys(row).contains(key))), "{found:?}");
            let sum = |key: &str| found.iter().map(|row| row[key].as_f64().unwrap()).sum::<f64>();
            for key in ["share_entitled", "share_received"] {
                assert!((sum(key) - 100.0).abs() < 0.5, "{kind}, {scheduler}: {key} of all is {}", sum(key));
            }
            assert!(found.iter().all(|row| row["error_points"].as_f64().is_some_and(f64::is_finite)), "{found:?}");
        }
        assert!(svg.contains(&format!("BAND, {kind}")));
    }
    assert!(svg.contains("</svg>"));
}

#[test]
fn bench_gmedia_tells_what_each_way_of_following_page_tables_takes() {
    let Some(programs) = programs_with("gmedia") else { return };
    let pictures = std::env::temp_dir().join(format!("e2e-bench-gmedia-{}", std::process::id()));
    let mut command = Command::new(bin_dir().join("sundial"));
    command.args(["bench", "--json", "--rounds", "1", "--programs"]).arg(programs).arg("gmedia");
    command
        .args(["--resolution", "96x64", "--threads", "2", "--frames", "4", "--surfaces", "16"])
        .args(["--schemes", "session,fv-naive,strict,relaxed/full/snapshot,hybrid/segmented,fv,pv", "--svg"])
        .arg(&pictures);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    for case in ["transcode", "churn"] {
        assert!(std::fs::read_to_string(pictures.join(format!("{case}.svg"))).unwrap().contains("96x64, 2 threads"));
        let find = |scheme: &str| rows.iter().find(|row| row["case"] == case && row["scheme"] == scheme).unwrap();
        let count = |scheme: &str, what: &str| find(scheme)[what].as_u64().unwrap();
        for scheme in ["native", "session", "fv-naive", "strict", "relaxed", "hybrid", "fv", "pv"] {
            let row = find(scheme);
            let wanted = ["rebuild", "trap", "resolution", "threads", "pages_rebuilt", "entries_rebuilt"];
            assert!(wanted.into_iter().chain(COUNTS).all(|key| keys(row).contains(&key)), "{row}");
            let positive = |key: &str| row[key].as_f64().is_some_and(|value| value.is_finite() && value > 0.0);
            assert!(["fps", "fps_per_thread", "ratio"].into_iter().all(positive), "{row}");
            // What comes out is the same whoever follows the tables.
            assert_eq!(row["psnr"], find("native")["psnr"], "{row}");
            assert_eq!(row["psnr"].is_number(), case == "transcode", "{row}");
        }
        for what in COUNTS {
            assert_eq!((count("native", what), count("session", what)), (0, 0), "{what}: nobody mediates there");
        }
        assert!(count("fv", "entries_scanned") > 0 && count("pv", "entries_scanned") == 0);
        // Each entry is a store of its own, and traps; else none does, and pages are compared.
        assert!(count("strict", "traps") > count("fv", "traps"), "{} {}", find("strict"), find("fv"));
        assert!(count("strict", "pages_rebuilt") == 0 && count("relaxed", "pages_rebuilt") > 0, "{}", find("relaxed"));
        assert!(count("relaxed", "entries_rebuilt") > 0, "{}", find("relaxed"));
        // With each picture of each thread, something is mapped and something unmapped.
        assert!(count("pv", "hypercalls") >= 2 * 2 * 4, "{}", find("pv"));
    }
    std::fs::remove_dir_all(&pictures).unwrap();
}

#[test]
fn bench_remoting_tells_what_the_way_to_the_daemon_takes() {
    let pictures = std::env::temp_dir().join(format!("e2e-bench-remoting-{}", std::process::id()));
    let mut command = Command::new(bin_dir().join("sundial"));
    command.args(["bench", "--json", "--rounds", "1"]);
    let programs = programs_with("matrix_mul");
    if let Some(programs) = &programs {
        command.arg("--programs").arg(programs);
    }
    command.args(["remoting", "--largest", "1m", "--tenants", "2", "--programs", "matrix_mul", "--svg"]).arg(&pictures);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let promised = ["mode", "what", "bytes", "tenants", "ms", "ratio", "calls", "round_trips"];
    let promised = || promised.into_iter().chain(["cpu_ms", "gpu_ms", "copy_ms", "wait_ms"]);
    let help = Command::new(bin_dir().join("sundial")).args(["bench", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(promised().all(|key| help.contains(&format!("\"{key}\""))), "{help}");
    for row in &rows {
        assert!(promised().all(|key| keys(row).contains(&key)), "{row}");
        assert!(row["ms"].as_f64().is_some_and(|ms| ms > 0.0) && row["ratio"].is_number(), "{row}");
        assert!(row["mode"] != "native" || row["ratio"] == 1.0 && row["round_trips"].is_null(), "{row}");
        assert!(row["mode"] == "native" || row["gpu_ms"].is_number() && row["calls"].is_number(), "{row}");
    }
    let find = |what: &str, bytes: u64, mode: &str| {
        let asked = |row: &&Value| row["what"] == what && row["bytes"] == bytes && row["mode"] == mode;
        rows.iter().find(asked).unwrap_or_else(|| panic!("no row of {what}, {bytes}, {mode}"))
    };
    let trips = |what: &str, bytes: u64, mode: &str| find(what, bytes, mode)["round_trips"].as_f64().unwrap();
    // Each piece of a copy is answered, each block, or nothing is. Besides, some of the answered modes' calls wait for others.
    assert!(trips("d2h", 1 << 20, "baseline") >= 16.0 && trips("d2h", 1 << 20, "mapped") < 16.0);
    assert_eq!((trips("d2h", 1 << 20, "delayed"), trips("d2h", 1 << 20, "both")), (2.0, 0.0));
    for mode in ["baseline", "mapped"] {
        assert!(trips("launch", 0, mode) >= 1.0, "each launch is answered");
    }
    for mode in ["delayed", "both"] {
        assert!(trips("launch", 0, mode) < 0.1, "no launch is answered");
    }
    assert!(find("d2h", 1 << 20, "both")["copy_ms"].as_f64().unwrap() > 0.0);
    for block in (17..=21).map(|shift| 1u64 << shift) {
        assert!(trips("block-d2h", block, "delayed") >= 1.0);
    }
    for mode in ["native", "delayed"] {
        find("h2d-at-once", 1 << 20, mode);
    }
    let mut drawn = vec!["copies", "blocks", "copies-at-once"];
    if programs.is_some() {
        drawn.extend(["tenants", "programs"]);
        assert!(["native", "baseline", "mapped", "delayed", "both"].iter().all(|mode| {
            let row = find("matrix_mul", 0, mode);
            *mode == "native" || row["gpu_ms"].as_f64().unwrap() > 0.0
        }));
        assert!(trips("matrix_mul", 0, "both") < trips("matrix_mul", 0, "baseline"));
        for kind in ["gpu-bound", "cpu-bound", "mixed"] {
            let tenants: Vec<u64> =
                rows.iter().filter(|row| row["what"] == kind).map(|row| row["tenants"].as_u64().unwrap()).collect();
            assert_eq!(tenants, [2, 2], "{kind}");
        }
    }
    for name in drawn {
        let svg = std::fs::read_to_string(pictures.join(format!("{name}.svg"))).unwrap();
        assert!(svg.contains("</svg>") && svg.contains("delayed") || name == "tenants", "{name}");
    }
    std::fs::remove_dir_all(&pictures).unwrap();
}
