//! Programs that use several GPUs.

use std::process::{Command, Output};
use std::time::Duration;

use e2e::{Daemon, bin_dir, cuda_examples, text, wait_for};
use serde_json::Value;

const GPUS: [&str; 4] = ["--gpu", "soft:256m", "--gpu", "soft:192m"];

/// Runs `peers`: `sundial` with `options`.
fn peers_by(mut command: Command, options: &[&str], visible: Option<&str>, arguments: &[&str]) -> Option<Output> {
    let Some(folder) = cuda_examples() else {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
        return None;
    };
    command.arg("run").args(options).args(["--", "timeout", "120"]);
    command.arg(folder.join("peers")).args(arguments);
    command.env_remove("CUDA_VISIBLE_DEVICES").envs(visible.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
    Some(command.output().expect("sundial run"))
}

/// Natively, with two software GPUs.
fn peers(visible: Option<&str>, arguments: &[&str]) -> Option<Output> {
    let options = [&["--native"], GPUS.as_slice()].concat();
    peers_by(Command::new(bin_dir().join("sundial")), &options, visible, arguments)
}

fn passed(output: &Output) {
    let said = text(output);
    assert!(output.status.success() && said.contains("2 devices") && said.contains("PASSED"), "{said}");
}

#[test]
fn a_program_uses_two_gpus() {
    for visible in [None, Some("1,0")] {
        let Some(output) = peers(visible, &[]) else { return };
        passed(&output);
    }
}

#[test]
fn a_tenant_uses_as_many_gpus_of_the_daemon_as_it_asks_for() {
    let daemon = Daemon::start(&GPUS);
    let run = |options: &[&str], visible, arguments: &[&str]| peers_by(daemon.sundial(), options, visible, arguments);
    let list = |options: &[&str], visible| Some(text(&run(options, visible, &["--list"])?));
    let Some(one) = list(&[], None) else { return };
    assert!(
        one.contains("1 devices") && one.contains("256 MiB"),
        "the least loaded, and of two alike the first: {one}"
    );
    let one = list(&["--gpu", "1"], None).expect("programs");
    assert!(one.contains("1 devices") && one.contains("192 MiB"), "{one}");
    let turned = list(&["--gpu", "soft:192m", "--gpu", "0"], None).expect("programs");
    let lines: Vec<&str> = turned.lines().filter(|line| line.contains("MiB")).collect();
    assert!(lines.len() == 2 && lines[0].contains("192 MiB") && lines[1].contains("256 MiB"), "{turned}");
    let limited = list(&["--gpus", "2", "--mem", "64m"], Some("1")).expect("programs");
    assert!(limited.contains("1 devices") && limited.contains(", 64 MiB"), "{limited}");
    for (options, visible) in [(["--gpus", "2"], None), (["--gpus", "2"], Some("1,0")), (["--gpu", "1,0"], None)] {
        passed(&run(&options, visible, &[]).expect("programs"));
    }
    for (options, why) in [
        (["--gpus", "3"], "the daemon has 2 GPUs, not 3"),
        (["--gpu", "2"], "there is no GPU 2: the daemon has 2"),
        (["--gpu", "soft:1g"], "leave --gpu out"),
        (["--gpu", "0,0"], "GPU 0 is named twice"),
    ] {
        let refused = run(&options, None, &[]).expect("programs");
        assert!(!refused.status.success() && text(&refused).contains(why), "{}", text(&refused));
    }
}

/// The children of a process that are device processes.
fn device_processes(daemon: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).unwrap_or_default();
    // Another thread starts them.
    let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).expect("threads");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.expect("a thread").path().join("children")).unwrap_or_default()
    };
    let all: String = tasks.map(of).chain([children]).collect::<Vec<_>>().join(" ");
    let is_device = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"device")
    };
    let mut found: Vec<u32> = all.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_device).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn tenants_are_spread_over_gpus_and_the_death_of_one_is_not_the_others() {
    let mut daemon = Daemon::start(&["--gpu", "soft:256m", "--gpu", "soft:256m"]);
    let start = |name: &str| daemon.tenant(&["--name", name, "--mem", "128m"], &["matrices", "--seconds", "6"]);
    let gpu_of = |name: &str| -> u64 {
        wait_for("the tenant's session", Duration::from_secs(20), || {
            daemon.try_ps()?.iter().find(|session| session["tenant"] == name)?["gpu"].as_u64()
        })
    };
    let first = start("first");
    assert_eq!(gpu_of("first"), 0);
    let second = start("second");
    assert_eq!(gpu_of("second"), 1);
    // Both at once: neither has to share.
    let received = |sessions: &[Value]| -> Vec<f64> {
        sessions.iter().filter_map(|session| session["share_received"].as_f64()).collect()
    };
    wait_for("each to have most of a GPU of its own", Duration::from_secs(20), || {
        let received = received(&daemon.try_ps()?);
        (received.len() == 2 && received.iter().all(|share| *share > 60.0)).then_some(())
    });
    let devices = device_processes(daemon.pid());
    assert_eq!(devices.len(), 2);
    let of_gpu = |number: &str| {
        let said = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).skip_while(|word| *word != b"--number").nth(1) == Some(number.as_bytes())
        };
        *devices.iter().find(|pid| said(pid)).expect("its device process")
    };
    let killed = Command::new("kill").args(["-9", &of_gpu("0").to_string()]).status().expect("kill");
    assert!(killed.success());
    assert_eq!(second.finish()["verified"], true, "it has seen nothing of that");
    drop(first);
    wait_for("the first GPU to be there again", Duration::from_secs(20), || {
        daemon.try_ps()?.iter().all(|session| session["tenant"] != "first").then_some(())
    });
    let again = daemon.tenant(&["--name", "again", "--gpu", "0"], &["matrices", "--seconds", "1"]);
    assert_eq!(again.finish()["verified"], true);
    daemon.restart();
}

#[test]
fn a_virtual_gpu_is_a_part_of_one_gpu() {
    let daemon = Daemon::start(&["--gpu", "soft:256m", "--gpu", "soft:256m"]);
    let _zero = daemon.vgpu("zero", &["--mem", "64m", "--gpu", "0"]);
    let one = daemon.vgpu("one", &["--mem", "64m"]);
    let whole = daemon.sundial().args(["vgpu", "create", "all", "--scheme", "pass-through"]).output().expect("vgpu");
    assert!(text(&whole).contains("others are on it"), "{}", text(&whole));
    let of: Vec<(String, u64)> = daemon
        .vgpus()
        .iter()
        .map(|vgpu| (vgpu["name"].as_str().expect("a name").to_owned(), vgpu["gpu"].as_u64().expect("a GPU")))
        .collect();
    assert!(of.contains(&("zero".into(), 0)) && of.contains(&("one".into(), 1)), "{of:?}");
    let tenant = bin_dir().join("sundial-tenant");
    let mut guest = daemon.sundial();
    guest.args(["run", "--vgpu"]).arg(&one).arg("--").arg(tenant).args(["matrices", "--seconds", "1"]);
    let ran = guest.output().expect("sundial run --vgpu");
    assert!(ran.status.success() && text(&ran).contains("\"verified\":true"), "{}", text(&ran));
    // Nobody is on the first GPU any more: all of it can be had.
    let gone = daemon.sundial().args(["vgpu", "destroy", "zero"]).status().expect("vgpu destroy");
    assert!(gone.success());
    let all = daemon.vgpu("all", &["--scheme", "pass-through"]);
    assert!(all.exists());
    let refused = daemon.sundial().args(["run", "--gpu", "0", "--", "true"]).output().expect("sundial run");
    assert!(text(&refused).contains("passed through to `all`"), "{}", text(&refused));
    let other = daemon.tenant(&["--name", "other"], &["matrices", "--seconds", "1"]);
    assert_eq!(other.finish()["verified"], true, "on the other GPU");
}

#[test]
fn a_program_sees_what_cuda_visible_devices_says() {
    let list = |visible: &str| Some(text(&peers(Some(visible), &["--list"])?));
    let Some(both) = list("1,0") else { return };
    let lines: Vec<&str> = both.lines().filter(|line| line.contains("MiB")).collect();
    assert!(lines.len() == 2 && lines[0].contains("192 MiB") && lines[1].contains("256 MiB"), "{both}");
    // As `nvidia-smi -L` shows UUIDs, and shortened.
    let uuid = lines[0].rsplit("GPU-").next().expect("a UUID");
    let [a, b, c, d, e] = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]];
    for visible in ["1", &format!("GPU-{a}-{b}-{c}-{d}-{e}"), &format!("GPU-{a}")] {
        let one = list(visible).expect("programs");
        assert!(one.contains("1 devices (cudaSuccess)") && one.contains("192 MiB"), "{visible}: {one}");
    }
    for visible in ["", "-1", "2,0", "0,0"] {
        let none = list(visible).expect("programs");
        assert!(none.contains("0 devices (cudaErrorNoDevice)"), "{visible}: {none}");
    }
    // A program that needs two says so itself.
    let output = peers(Some("0"), &[]).expect("programs");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
}
