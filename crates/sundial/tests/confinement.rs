//! What each of our processes can no longer do.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Installation, until};

mod support;

/// A process that enters `role` and tries `attempt` there.
fn attempt(role: &str, attempt: &str) -> Output {
    let arguments = ["confined", "--role", role, "--attempt", attempt];
    Command::new(env!("CARGO_BIN_EXE_sundial")).args(arguments).output().unwrap()
}

/// One word for how it went.
fn outcome(output: &Output) -> &'static str {
    match (output.status.code(), output.status.signal()) {
        (Some(0), _) => "works",
        (Some(3), _) => "refused",
        (_, Some(31)) => "killed",
        _ => "?",
    }
}

#[test]
fn each_role_has_its_list() {
    #[rustfmt::skip]
    let table = [
        // attempt           control    device     compiler
        ("open-file",      ["works",   "refused", "refused"]),
        ("create-file",    ["refused", "refused", "refused"]),
        ("execute",        ["works",   "killed",  "killed"]),
        ("fork",           ["works",   "refused", "refused"]),
        ("trace",          ["killed",  "killed",  "killed"]),
        ("signal",         ["refused", "refused", "refused"]),
        ("network",        ["refused", "refused", "refused"]),
        ("local-socket",   ["works",   "refused", "refused"]),
        ("map-executable", ["works",   "works",   "refused"]),
    ];
    for (name, expected) in table {
        for (role, expected) in ["control", "device", "compiler"].into_iter().zip(expected) {
            let output = attempt(role, name);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(outcome(&output), expected, "{role} {name}: {:?} {stderr}", output.status);
        }
    }
}

#[test]
fn doctor_shows_what_holds_for_each_role() {
    let output = Command::new(env!("CARGO_BIN_EXE_sundial")).args(["doctor", "--json"]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let roles = found["roles"].as_array().unwrap();
    assert_eq!(roles.len(), 3);
    for role in roles {
        assert_eq!(role["worked"], Value::Array(Vec::new()), "{role}");
        let names: Vec<&str> =
            role["protections"].as_array().unwrap().iter().map(|line| line["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["descriptors", "no core", "not dumpable", "no new privileges", "landlock", "seccomp"],
            "{role}"
        );
    }
}

#[test]
fn doctor_shows_what_notices_stores_of_guests() {
    let output = Command::new(env!("CARGO_BIN_EXE_sundial")).args(["doctor", "--json"]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in ["trap: decode", "trap: fault", "trap: tracker"] {
        let check = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
        let text = check["found"].as_str().unwrap();
        // A machine without it is as good, and says why.
        match check["state"].as_str() {
            Some("ok") => assert!(text.starts_with("notices ") && text.contains(" µs to protect a page"), "{check}"),
            Some("note") => assert!(text.starts_with("not here: "), "{check}"),
            _ => panic!("{check}"),
        }
    }
}

/// What `/proc` says of a process, by the words before the colon.
fn status(pid: i32) -> impl Fn(&str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    move |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":"));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
    }
}

#[test]
fn the_daemons_processes_are_confined() {
    let installation = Installation::new("");
    let (inherited, _writer) = std::io::pipe().unwrap();
    let daemon = installation.serve_with(|command| {
        // What must not come along: a variable, and a descriptor.
        command.env("LD_PRELOAD", "").env("SOMEBODYS_SECRET", "x");
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    });
    let own_pipe = std::fs::read_link(format!("/proc/self/fd/{}", inherited.as_raw_fd())).unwrap();
    // The device process may not look for its clients' processes; the control process hands them over.
    let (_tenant, _gpu) = installation.tenant(&[]);
    let device = daemon.device().unwrap().as_raw_nonzero().get();
    until("the device process to watch its client", || {
        let own = format!("Pid:\t{}\n", std::process::id());
        let held = std::fs::read_dir(format!("/proc/{device}/fdinfo")).ok()?;
        let mut texts = held.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
        texts.any(|text| text.contains(&own)).then_some(())
    });
    for (name, pid) in [("serve", daemon.pid()), ("device", daemon.device().unwrap().as_raw_nonzero().get())] {
        let status = status(pid);
        assert_eq!(status("NoNewPrivs"), "1", "{name}");
        assert_eq!(status("Seccomp"), "2", "{name}");
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        assert!(!environment.contains("SECRET") && !environment.contains("LD_PRELOAD"), "{name}: {environment}");
        if name == "device" {
            let other = environment.split('\0').find(|entry| !entry.is_empty() && !entry.starts_with("SUNDIAL_LOG="));
            assert_eq!(other, None);
        }
        for open in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            let target = std::fs::read_link(open.unwrap().path());
            assert_ne!(target.ok().as_ref(), Some(&own_pipe), "{name} has inherited a pipe");
        }
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{name}");
    }
}
