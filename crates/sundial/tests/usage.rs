//! Who has had how much: `usage`, `top`, `/metrics`, and that it outlives the daemon.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Instant;

use gpu::{AllocId, Command as GpuCommand, ContextId, DevAddr, Gpu, MapAccess, MemoryKind, QueueId, Request, SlotId};
use hostmem::Memfd;
use remote_gpu::RemoteGpu;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use support::{BOUND, Installation, LO, PTX, launch, prepare, stderr, until};

mod support;

const QUICK: &str = "[usage]\ninterval_seconds = 1\n";

fn usage(installation: &Installation, arguments: &[&str]) -> Value {
    let output = installation.output(&[&["usage", "--json"], arguments].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn of<'a>(report: &'a Value, tenant: &str) -> &'a Value {
    let found = report["tenants"].as_array().unwrap().iter().find(|row| row["tenant"] == tenant);
    found.unwrap_or_else(|| panic!("no {tenant} in {report}"))
}

/// Launches so many kernels, and waits for them.
fn work(gpu: &RemoteGpu, kernels: u32, slot: u32) {
    let params = [LO.to_le_bytes().as_slice(), &7u32.to_le_bytes()].concat();
    for _ in 0..kernels {
        gpu.submit(QueueId(1), &[launch(0, &params)]).unwrap();
    }
    gpu.submit(QueueId(1), &[GpuCommand::Signal { slot: SlotId(slot), value: 1 }]).unwrap();
    gpu.wait(ContextId(1), SlotId(slot), 1, Some(BOUND)).unwrap();
}

/// Waits until what was used before `done` is in the database.
fn written(installation: &Installation, done: Instant) {
    until("usage to be written", || {
        let since = done.elapsed().as_secs_f64();
        let unwritten = usage(installation, &[])["unwritten_seconds"].as_f64()?;
        (unwritten < since).then_some(())
    });
}

#[test]
fn what_tenants_use_adds_up() {
    let installation = Installation::new(QUICK);
    let _daemon = installation.serve();
    let (alice, gpu) = installation.tenant(&["--name", "alice", "--mem", "64m"]);
    prepare(&gpu, PTX);
    let (_bob, other) = installation.tenant(&["--name", "bob", "--mem", "32m"]);
    prepare(&other, PTX);
    work(&gpu, 500, 1);
    work(&other, 20, 1);
    let data = Memfd::create("data", 8192).unwrap().map().unwrap();
    gpu.write(DevAddr(LO), data.range(0, 8192)).unwrap();
    gpu.read(data.range(0, 100), DevAddr(LO)).unwrap();

    let report = usage(&installation, &[]);
    let (a, b) = (of(&report, "alice"), of(&report, "bob"));
    assert_eq!((&a["kernels"], &b["kernels"]), (&500.into(), &20.into()), "{report}");
    assert_eq!((&a["bytes_in"], &a["bytes_out"]), (&8192.into(), &100.into()), "{report}");
    assert_eq!(a["user"], rustix::process::getuid().as_raw());
    for row in [a, b] {
        for positive in ["gpu_seconds", "memory_byte_seconds", "compile_seconds", "wait_p50_us", "wait_p99_us"] {
            assert!(row[positive].as_f64().unwrap() > 0.0, "{positive}: {report}");
        }
        assert!(row["memory_reserved_byte_seconds"].as_f64() > row["memory_byte_seconds"].as_f64(), "{report}");
        assert!(row["wait_p99_us"].as_f64() >= row["wait_p50_us"].as_f64(), "{report}");
    }
    // What is copied into memory that is shown to the program counts, too.
    let (id, at, bytes) = (AllocId(2), DevAddr(LO + (64 << 20)), 4 << 20);
    gpu.request(Request::Alloc { id, bytes, kind: MemoryKind::Vram }).unwrap();
    gpu.request(Request::Map { at, id, offset: 0, bytes, access: MapAccess::ReadWrite }).unwrap();
    let large = Memfd::create("data", bytes).unwrap().map().unwrap();
    gpu.write(at, large.range(0, bytes as usize)).unwrap();
    gpu.read(large.range(0, 1 << 20), at).unwrap();
    let report = usage(&installation, &[]);
    let row = of(&report, "alice");
    assert_eq!((&row["bytes_in"], &row["bytes_out"]), (&(8192 + bytes).into(), &(100 + (1 << 20)).into()), "{report}");

    // Readings of all that is in the sum are some moments apart, however long it has been going on.
    until("times that add up", || {
        work(&gpu, 50, 2);
        let report = usage(&installation, &[]);
        let number = |name: &str| report[name].as_f64().unwrap();
        let tenants: f64 =
            report["tenants"].as_array().unwrap().iter().map(|row| row["gpu_seconds"].as_f64().unwrap()).sum();
        let (sum, wall) = (tenants + number("idle_seconds") + number("overhead_seconds"), number("wall_seconds"));
        ((sum - wall).abs() <= wall * 0.01).then_some(())
    });

    // One that has left is not forgotten.
    drop(gpu);
    alice.end();
    let kernels = until("the last of alice", || {
        let kernels = of(&usage(&installation, &["--since", "1h"]), "alice")["kernels"].as_u64()?;
        installation.sessions()?.iter().all(|line| line["tenant"] != "alice").then_some(kernels)
    });
    assert!(kernels >= 550, "{kernels}");
    let csv = installation.output(&["usage", "--csv"]);
    let text = String::from_utf8(csv.stdout).unwrap();
    assert!(text.starts_with("tenant,user,gpu_seconds,") && text.contains("\nalice,"), "{text}");
    let table = String::from_utf8(installation.output(&["usage"]).stdout).unwrap();
    assert!(table.starts_with("TENANT") && table.contains("\nGPU: "), "{table}");
    let nonsense = installation.output(&["usage", "--since", "yesterday"]);
    assert!(!nonsense.status.success() && stderr(&nonsense).contains("2026-11-22"), "{}", stderr(&nonsense));
}

#[test]
fn totals_outlive_the_daemon_however_it_ends() {
    let installation = Installation::new(QUICK);
    let mut kept = 0;
    for round in 1..=3 {
        let mut daemon = installation.serve();
        let before = usage(&installation, &[]);
        if round > 1 {
            assert_eq!(of(&before, "alice")["kernels"], kept, "{before}");
        }
        let (_alice, gpu) = installation.tenant(&["--name", "alice"]);
        prepare(&gpu, PTX);
        work(&gpu, 30, 1);
        kept += 30;
        written(&installation, Instant::now());
        assert_eq!(of(&usage(&installation, &[]), "alice")["kernels"], kept);
        daemon.kill();
        // Without a daemon the database is read.
        let report = usage(&installation, &[]);
        assert_eq!(of(&report, "alice")["kernels"], kept, "{report}");
        assert!(report["wall_seconds"].as_f64().unwrap() > before["wall_seconds"].as_f64().unwrap(), "{report}");
    }
}

#[test]
fn the_device_process_may_die_and_nothing_is_counted_twice() {
    let installation = Installation::new(QUICK);
    let daemon = installation.serve();
    let (_alice, gpu) = installation.tenant(&["--name", "alice"]);
    prepare(&gpu, PTX);
    work(&gpu, 30, 1);
    assert_eq!(of(&usage(&installation, &[]), "alice")["kernels"], 30);
    let device = until("the device process", || daemon.device());
    rustix::process::kill_process(device, rustix::process::Signal::KILL).unwrap();
    until("another device process", || daemon.device().filter(|other| *other != device));
    let kernels = |report: &Value| of(report, "alice")["kernels"].as_u64().unwrap();
    assert_eq!(kernels(&usage(&installation, &[])), 30);
    let (_bob, again) = until("a session", || Some(installation.tenant(&["--name", "bob"])));
    prepare(&again, PTX);
    work(&again, 5, 1);
    let report = usage(&installation, &[]);
    assert_eq!((kernels(&report), &of(&report, "bob")["kernels"]), (30, &5.into()));
}

#[test]
fn where_nothing_can_be_kept_serving_goes_on_and_it_is_said() {
    let installation = Installation::new("[usage]\ninterval_seconds = 1\npath = \"/proc/sundial\"\n");
    let daemon = installation.serve();
    let (_alice, gpu) = installation.tenant(&["--name", "alice"]);
    prepare(&gpu, PTX);
    work(&gpu, 3, 1);
    let report = usage(&installation, &[]);
    assert_eq!((&of(&report, "alice")["kernels"], &report["kept"]), (&3.into(), &false.into()), "{report}");
    assert!(report["reason"].as_str().unwrap().contains("/proc/sundial"), "{report}");
    drop(daemon);

    let installation = Installation::new(QUICK);
    let folder = installation.folder.join("state/sundial");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("usage.redb"), "no database".repeat(5000)).unwrap();
    let _daemon = installation.serve();
    let (_alice, gpu) = installation.tenant(&["--name", "alice"]);
    prepare(&gpu, PTX);
    work(&gpu, 3, 1);
    written(&installation, Instant::now());
    let report = usage(&installation, &[]);
    assert_eq!((&of(&report, "alice")["kernels"], &report["kept"]), (&3.into(), &true.into()), "{report}");
    let aside = std::fs::read_dir(&folder)
        .unwrap()
        .any(|entry| entry.unwrap().file_name().to_string_lossy().contains("damaged"));
    assert!(aside, "what was there is not thrown away");
}

/// As the daemon sees a full disk: files of its grow no more.
#[test]
fn a_full_disk_stops_nothing_and_nothing_is_lost_when_there_is_room_again() {
    let installation = Installation::new(QUICK);
    let daemon = installation.serve_with(|command| {
        // Whoever ignores the signal is told with an error.
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        *command = shell;
    });
    let (_alice, gpu) = installation.tenant(&["--name", "alice"]);
    prepare(&gpu, PTX);
    work(&gpu, 10, 1);
    written(&installation, Instant::now());
    let files = |most| {
        let limit = Rlimit { current: most, maximum: None };
        prlimit(Pid::from_raw(daemon.pid()), Resource::Fsize, limit).unwrap();
    };
    files(Some(0));
    work(&gpu, 10, 2);
    until("it to be said", || {
        let report = usage(&installation, &[]);
        // Those before may not be readable meanwhile: then that is said, too.
        assert!(of(&report, "alice")["kernels"].as_u64() >= Some(10), "{report}");
        (report["kept"] == false && report["reason"].is_string()).then_some(())
    });
    work(&gpu, 10, 3);
    let (_bob, other) = installation.tenant(&["--name", "bob"]);
    prepare(&other, PTX);
    files(None);
    until("it to be kept again", || (usage(&installation, &[])["kept"] == true).then_some(()));
    written(&installation, Instant::now());
    drop(daemon);
    let report = usage(&installation, &[]);
    assert_eq!(of(&report, "alice")["kernels"], 30, "{report}");
}

fn get(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    text
}

#[test]
fn metrics_are_told_over_tcp_and_over_a_unix_socket() {
    let installation = Installation::new("");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let socket = installation.folder.join("metrics.sock");
    for listen in [address.as_str(), socket.to_str().unwrap()] {
        let _daemon = installation.serve_with(|command| {
            command.args(["--metrics", listen]);
        });
        let (_alice, gpu) = installation.tenant(&["--name", "alice", "--mem", "64m"]);
        prepare(&gpu, PTX);
        work(&gpu, 40, 1);
        let text = if listen == address {
            // Who says nothing does not keep others out.
            let silent: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
            let text = get(TcpStream::connect(&address).unwrap());
            drop(silent);
            text
        } else {
            get(UnixStream::connect(&socket).unwrap())
        };
        let user = rustix::process::getuid().as_raw();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
            line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
        };
        let labels = format!("{{tenant=\"alice\",user=\"{user}\",gpu=\"0\"}}");
        assert_eq!(value(&format!("sundial_tenant_kernels_total{labels}")), 40.0);
        assert_eq!(value(&format!("sundial_tenant_memory_limit_bytes{labels}")), f64::from(64 << 20));
        assert!(value(&format!("sundial_tenant_gpu_seconds_total{labels}")) > 0.0);
        assert!(value("DCGM_FI_DEV_FB_USED{") > 0.0);
        assert_eq!(value("DCGM_FI_DEV_FB_USED{") + value("DCGM_FI_DEV_FB_FREE{"), 256.0);
        assert!(text.ends_with("# EOF\n"));
    }
}

#[test]
fn top_prints_a_frame() {
    let installation = Installation::new("");
    let nobody = installation.output(&["top", "--once"]);
    assert!(!nobody.status.success() && stderr(&nobody).contains("no Sundial daemon"), "{}", stderr(&nobody));
    let _daemon = installation.serve();
    let (_alice, gpu) = installation.tenant(&["--name", "alice", "--mem", "64m", "--share", "40%"]);
    prepare(&gpu, PTX);
    let (_bob, _other) = installation.tenant(&["--name", "bob", "--mem", "64m"]);
    let text = |arguments: &[&str]| {
        let output = installation.output(&[&["top", "--once", "--interval", "0.1"], arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let all = text(&[]);
    assert!(all.contains("alice") && all.contains("bob") && all.contains("40.0") && all.contains("/64M"), "{all}");
    assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    let one = text(&["--filter", "ali", "--sort", "memory"]);
    assert!(one.contains("alice") && !one.contains("bob"), "{one}");
}
