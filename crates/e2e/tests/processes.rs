//! Processes that share GPU memory (`examples/cuda/processes.cu`, `descriptors.cu`): a tenant's own, another tenant's of the same user,
//! another user's, and where it cannot be.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::{Daemon, Tenant, bin_dir, cuda_examples, text, wait_for};
use serde_json::Value;

/// Words of the example's memory.
const WORDS: u32 = 3 << 20;

fn program(name: &str) -> Option<PathBuf> {
    let program = cuda_examples().map(|folder| folder.join(name)).filter(|program| program.exists());
    if program.is_none() {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
    }
    program
}

fn run(mut command: Command, program: &PathBuf) -> String {
    text(&command.arg("--").arg("timeout").arg("120").arg(program).output().expect("sundial run"))
}

fn none_left(daemon: &Daemon) {
    wait_for("all sessions to be gone", Duration::from_secs(20), || daemon.ps().is_empty().then_some(()));
}

#[test]
fn the_processes_of_a_tenant_work_in_one_memory() {
    for name in ["processes", "descriptors"] {
        let Some(program) = program(name) else { return };
        let daemon = Daemon::start(&["--gpu", "soft:512m"]);
        for _ in 0..2 {
            let mut command = daemon.sundial();
            command.args(["run", "--mem", "256m"]);
            let said = run(command, &program);
            assert!(said.contains("PASSED"), "{name}: {said}");
            none_left(&daemon);
        }
    }
}

#[test]
fn nobody_waits_for_an_event_of_a_process_that_was_killed() {
    let Some(program) = program("processes") else { return };
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let mut command = daemon.sundial();
    command.args(["run", "--mem", "256m", "--", "timeout", "60"]).arg(program).arg("--killed");
    let said = text(&command.output().expect("sundial run"));
    assert!(said.contains("PASSED"), "{said}");
    none_left(&daemon);
}

#[test]
fn what_nobody_else_can_see_is_not_shared() {
    for name in ["processes", "descriptors"] {
        let Some(program) = program(name) else { return };
        let mut native = Command::new(bin_dir().join("sundial"));
        native.args(["run", "--native"]);
        let said = run(native, &program);
        assert!(said.contains("not shared here"), "{name}: {said}");
        let daemon = Daemon::start(&["--gpu", "soft:512m", "--copies", "staged"]);
        let mut staged = daemon.sundial();
        staged.args(["run", "--mem", "256m"]);
        let said = run(staged, &program);
        assert!(said.contains("not shared here"), "{name}: {said}");
    }
}

#[test]
fn another_user_takes_nothing_by_a_descriptor_that_it_has() {
    let Some(program) = program("descriptors") else { return };
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: another user's programs are started by root");
        return;
    }
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let socket = std::env::temp_dir().join(format!("sundial-descriptors-{}", std::process::id()));
    let socket = socket.to_str().unwrap();
    let mut giver = daemon.program(&["--name", "giver", "--mem", "128m"], &program, &["--give", socket]);
    assert_eq!(giver.line()["listens"], true);
    let errors = |said: &Value| ["memory", "pool", "pointer", "handle"].map(|what| said[what].as_u64());
    for _ in 0..2 {
        let taken = daemon.program(&["--name", "taker", "--mem", "128m"], &program, &["--take", socket]).finish();
        assert_eq!((errors(&taken), &taken["right"]), ([Some(0); 4], &Value::Bool(true)), "{taken}");
    }
    // The same program of another user, on a GPU of its own.
    let mut other = Command::new(bin_dir().join("sundial"));
    other.args(["run", "--native", "--", "setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]);
    let out = text(&other.arg(&program).args(["--take", socket]).output().expect("sundial run"));
    let said: Value = serde_json::from_str(out.lines().find(|line| line.starts_with('{')).unwrap_or("null")).unwrap();
    assert_eq!(errors(&said), [800, 800, 800, 400].map(Some), "{out}");
    drop(giver);
    std::fs::remove_file(socket).unwrap();
    none_left(&daemon);
}

/// Has an importer add to the memory, and tell what it finds then: the first word and the last.
fn adds(importer: &mut Tenant) -> (u32, u32) {
    writeln!(importer.child.stdin.as_mut().unwrap()).unwrap();
    let said = importer.line();
    let word = |name: &str| u32::try_from(said[name].as_u64().unwrap()).unwrap();
    (word("first"), word("last"))
}

#[test]
fn a_tenant_sees_anothers_memory_until_that_one_ends_and_nobodys_after() {
    let Some(program) = program("processes") else { return };
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let handle = daemon.folder().join("handle");
    let handle = handle.to_str().unwrap();
    let mut exporter = daemon.program(&["--name", "exporter", "--mem", "128m"], &program, &["--export", handle]);
    assert_eq!(exporter.line()["exported"], true);
    let [mut one, mut other] = ["one", "other"].map(|name| {
        let mut importer = daemon.program(&["--name", name, "--mem", "128m"], &program, &["--import", handle]);
        assert_eq!(importer.line()["opened"], 0, "{name}");
        importer
    });
    let add = |word: u32| word.wrapping_mul(3).wrapping_add(1);
    let words = (7, 7 + WORDS - 1);
    let first = (add(words.0), add(words.1));
    assert_eq!(adds(&mut one), first);
    assert_eq!(adds(&mut other), (add(first.0), add(first.1)));
    let pid = wait_for("the exporter in ps", Duration::from_secs(5), || {
        daemon.ps().iter().find(|session| session["tenant"] == "exporter")?["pid"].as_u64()
    });
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    let gone = |name: &str| {
        wait_for(&format!("{name} to be gone"), Duration::from_secs(20), || {
            daemon.ps().iter().all(|session| session["tenant"] != name).then_some(())
        });
    };
    gone("exporter");
    // What it had is scrubbed, and is another's now: importers have pages of their own, of zeros.
    let mut mark = daemon.tenant(&["--name", "mark", "--mem", "320m"], &["mark"]);
    assert!(mark.line()["marked"].as_u64().unwrap() >= 256 << 20);
    assert_eq!(adds(&mut one), (1, 1));
    assert_eq!(adds(&mut other), (4, 4));
    drop(mark);
    gone("mark");
    let report = daemon.tenant(&["--name", "inspect", "--mem", "320m"], &["inspect"]).finish();
    assert!(report["inspected"].as_u64().unwrap() >= 256 << 20, "{report}");
    assert_eq!(report["dirty"], 0);
    // Nobody opens it any more.
    let mut late = daemon.program(&["--name", "late", "--mem", "128m"], &program, &["--import", handle]);
    assert_eq!(late.line()["opened"], 400);
    drop((one, other, late));
    none_left(&daemon);
}
