//! Who has had how much of the GPU, with real programs as tenants.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;
use std::time::{Duration, Instant};

use e2e::{Daemon, text, wait_for};
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(30);

fn usage(daemon: &Daemon, arguments: &[&str]) -> Value {
    let output = daemon.sundial().args(["usage", "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn of<'a>(report: &'a Value, tenant: &str) -> &'a Value {
    let found = report["tenants"].as_array().unwrap().iter().find(|row| row["tenant"] == tenant);
    found.unwrap_or_else(|| panic!("no {tenant} in {report}"))
}

/// `/metrics`, by curl if it is here.
fn metrics(socket: &str) -> Option<String> {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--fail",
        "--max-time",
        "20",
        "--unix-socket",
        socket,
        "http://here/metrics",
    ]);
    match curl.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", text(&output));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            eprintln!("skipped: /metrics with curl: {error}");
            None
        }
    }
}

#[test]
fn programs_are_metered_and_totals_outlive_the_daemon() {
    let socket = std::env::temp_dir().join(format!("sundial-e2e-metrics-{}.sock", std::process::id()));
    let socket = socket.to_str().unwrap();
    let mut daemon = Daemon::start(&["--gpu", "soft:1g", "--metrics", socket]);
    let start = |name: &str, share: &str, program: &str| {
        daemon.tenant(&["--name", name, "--mem", "128m", "--share", share], &[program, "--seconds", "4"])
    };
    let tenants = [start("large", "70%", "matrices"), start("small", "20%", "life")];
    wait_for("both to be metered", BOUND, || {
        let rows = usage(&daemon, &[])["tenants"].as_array().unwrap().clone();
        let works = |row: &Value| row["kernels"].as_u64() > Some(0) && row["gpu_seconds"].as_f64() > Some(0.0);
        (rows.len() == 2 && rows.iter().all(works)).then_some(())
    });
    let top = daemon.sundial().args(["top", "--once"]).output().unwrap();
    let frame = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.status.success() && frame.contains("large") && frame.contains("70.0"), "{}", text(&top));
    if let Some(page) = metrics(socket) {
        for line in ["sundial_tenant_gpu_seconds_total{tenant=\"large\"", "DCGM_FI_DEV_GPU_UTIL{", "# EOF"] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
    let kernels = tenants.map(|tenant| {
        let report = tenant.finish();
        assert_eq!(report["verified"], true, "{report}");
        report["kernels"].as_u64().unwrap()
    });
    let ended = Instant::now();
    // What they say themselves and what was metered: programs launch some that they do not count.
    let report = usage(&daemon, &[]);
    for (name, kernels) in ["large", "small"].into_iter().zip(kernels) {
        let row = of(&report, name);
        assert!(row["kernels"].as_u64().unwrap() >= kernels, "{kernels} kernels: {row}");
        assert!(number(row, "memory_byte_seconds") > 0.0 && number(row, "memory_reserved_byte_seconds") > 0.0, "{row}");
        assert!(number(row, "bytes_in") > 0.0 && number(row, "bytes_out") > 0.0, "{row}");
        assert!(number(row, "wait_p99_us") >= number(row, "wait_p50_us"), "{row}");
    }
    // Readings of what is in the sum are some moments apart, however long it has been going on.
    wait_for("times that add up", BOUND, || {
        let report = usage(&daemon, &[]);
        let rows = report["tenants"].as_array().unwrap();
        let tenants: f64 = rows.iter().map(|row| number(row, "gpu_seconds")).sum();
        let (sum, wall) = (
            tenants + number(&report, "idle_seconds") + number(&report, "overhead_seconds"),
            number(&report, "wall_seconds"),
        );
        ((sum - wall).abs() <= wall * 0.01).then_some(())
    });
    wait_for("what they used to be written", BOUND, || {
        let since = ended.elapsed().as_secs_f64();
        (usage(&daemon, &[])["unwritten_seconds"].as_f64()? < since).then_some(())
    });
    let before = usage(&daemon, &["--since", "1h"]);
    daemon.restart();
    let after = usage(&daemon, &["--since", "1h"]);
    for name in ["large", "small"] {
        for key in ["kernels", "bytes_in", "bytes_out", "gpu_seconds"] {
            assert_eq!(of(&after, name)[key], of(&before, name)[key], "{key}");
        }
    }
    assert!(number(&after, "wall_seconds") > 0.0);
}
