//! Tenants whose limits together exceed the GPU: who waits, who is served, and that nobody waits for ever.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use e2e::{Daemon, cuda_examples, wait_for};
use serde_json::Value;

const BOUND: Duration = Duration::from_secs(60);
const OUT_OF_MEMORY: i64 = 2;

fn program() -> Option<PathBuf> {
    let program = cuda_examples().map(|folder| folder.join("hoard")).filter(|program| program.exists());
    if program.is_none() {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
    }
    program
}

/// A program that does what it is told.
struct Hoard {
    name: &'static str,
    child: Child,
    tell: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Hoard {
    fn start(daemon: &Daemon, program: &PathBuf, name: &'static str, options: &[&str]) -> Hoard {
        let mut command = daemon.sundial();
        command.args(["run", "--name", name]).args(options).arg("--").arg(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, said) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let (sender, lines) = channel();
        std::thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Hoard { name, child, tell, lines }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.tell.as_mut().unwrap(), "{what}").unwrap();
    }

    fn hear(&mut self) -> Value {
        let line = self.lines.recv_timeout(BOUND).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{}: {error}: {line:?}", self.name))
    }

    /// Tells it something; the error that came of it.
    fn does(&mut self, what: &str) -> i64 {
        self.tell(what);
        let said = self.hear();
        assert_eq!(said["did"], what.split(' ').next().unwrap(), "{said}");
        said["error"].as_i64().unwrap()
    }

    fn info(&mut self) -> (u64, u64) {
        self.tell("info");
        let said = self.hear();
        (said["free"].as_u64().unwrap(), said["total"].as_u64().unwrap())
    }

    /// Tells it something, and waits until the daemon shows that it waits for memory.
    fn waits(&mut self, daemon: &Daemon, what: &str) {
        self.tell(what);
        let waiting = wait_for("it to wait for memory", BOUND, || line(daemon, self.name).filter(is_waiting));
        assert_eq!(waiting["state"], "waiting", "{waiting}");
        assert!(waiting["memory_waiting_seconds"].as_f64().unwrap() >= 0.0);
    }

    fn ends(mut self) {
        self.tell = None;
        assert!(self.child.wait().unwrap().success(), "{}", self.name);
    }
}

impl Drop for Hoard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `ps` shows of a tenant's session.
fn line(daemon: &Daemon, name: &str) -> Option<Value> {
    daemon.ps().into_iter().find(|session| session["tenant"] == name)
}

fn is_waiting(session: &Value) -> bool {
    session["memory_waiting_bytes"].as_u64().unwrap() > 0
}

/// A daemon with a GPU of 256 MiB and this policy.
fn daemon(policy: &str) -> Daemon {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("sundial-memory-{}-{number}.toml", std::process::id()));
    std::fs::write(&file, format!("[memory]\n{policy}\n")).unwrap();
    let daemon = Daemon::start(&["--gpu", "soft:256m", "--config", file.to_str().unwrap()]);
    std::fs::remove_file(file).unwrap();
    daemon
}

/// Two programs want 160 MiB each in steps of 40, of 248 that there are, and ten more for contexts and code: their limits would leave
/// each waiting for the other.
#[test]
fn programs_that_would_wait_for_each_other_come_to_their_ends() {
    let Some(program) = program() else { return };
    let daemon = daemon("on_full = \"wait\"");
    let start = |name| Hoard::start(&daemon, &program, name, &["--mem", "190m"]);
    let (mut one, mut two) = (start("one"), start("two"));
    assert_eq!([one.does("alloc 40"), two.does("alloc 40"), one.does("alloc 40")], [0; 3]);
    // Free is more than that; but then neither could come to its limit.
    two.waits(&daemon, "alloc 40");
    assert_eq!([one.does("alloc 40"), one.does("alloc 40")], [0; 2]);
    one.ends();
    assert_eq!(two.hear()["error"], 0);
    assert_eq!([two.does("alloc 40"), two.does("alloc 40")], [0; 2]);
    assert!(!is_waiting(&line(&daemon, "two").unwrap()));
    two.ends();
}

/// The same, where nobody looks whether all can come to their limits: both wait, and only the clock ends it.
#[test]
fn without_the_check_they_stand_still() {
    let Some(program) = program() else { return };
    let daemon = daemon("avoid_deadlock = false");
    let start = |name, on_full| Hoard::start(&daemon, &program, name, &["--mem", "190m", "--on-full", on_full]);
    let (mut one, mut two) = (start("one", "wait"), start("two", "wait:1s"));
    for _ in 0..2 {
        assert_eq!([one.does("alloc 40"), two.does("alloc 40")], [0; 2]);
    }
    assert_eq!(one.does("alloc 40"), 0);
    one.waits(&daemon, "alloc 40");
    assert_eq!(two.does("alloc 40"), OUT_OF_MEMORY, "it has waited for one that waits for it");
    assert!(is_waiting(&line(&daemon, "one").unwrap()));
    two.ends();
    assert_eq!(one.hear()["error"], 0);
    one.ends();
}

#[test]
fn a_program_that_waits_goes_on_with_everything_else() {
    let Some(program) = program() else { return };
    let daemon = daemon("on_full = \"wait\"");
    let mut one = Hoard::start(&daemon, &program, "one", &["--mem", "200m"]);
    assert_eq!([one.does("alloc 60"), one.does("alloc 60"), one.does("alloc 60")], [0; 3]);
    let mut two = Hoard::start(&daemon, &program, "two", &["--mem", "110m"]);
    assert_eq!(two.does("alloc 30"), 0);
    two.waits(&daemon, "later 60");
    assert_eq!(two.info().1, 110);
    // It frees meanwhile; what it frees itself is not enough.
    assert_eq!(two.does("free"), 0);
    assert!(is_waiting(&line(&daemon, "two").unwrap()));
    assert_eq!(one.does("free"), 0);
    let said = two.hear();
    assert_eq!((&said["did"], &said["error"]), (&"later".into(), &0.into()), "{said}");
    assert_eq!([two.does("free"), one.does("alloc 60")], [0; 2]);
    // The end of its context ends the wait.
    two.waits(&daemon, "later 60");
    two.tell("reset");
    let mut said = [two.hear(), two.hear()];
    said.sort_by_key(|said| said["did"].to_string());
    assert_eq!(said[0]["did"], "later");
    assert_ne!(said[0]["error"], 0, "{said:?}");
    assert_eq!(said[1]["error"], 0, "{said:?}");
    two.ends();
    one.ends();
}

#[test]
fn who_waits_can_be_interrupted_and_others_are_served() {
    let Some(program) = program() else { return };
    let daemon = daemon("on_full = \"wait\"");
    let start = |name, mem| Hoard::start(&daemon, &program, name, &["--mem", mem]);
    let mut holder = start("holder", "180m");
    assert_eq!(holder.does("alloc 150"), 0);
    let (mut first, mut second) = (start("first", "120m"), start("second", "110m"));
    first.waits(&daemon, "alloc 100");
    second.waits(&daemon, "alloc 90");
    // It ends as any program; then who came next is first. Not by SIGINT: who runs the tests in the background has that ignored.
    let interrupted = Command::new("kill").args(["-TERM", &first.child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert!(!first.child.wait().unwrap().success());
    wait_for("it to be gone", BOUND, || line(&daemon, "first").is_none().then_some(()));
    assert_eq!(holder.does("free"), 0);
    assert_eq!(second.hear()["error"], 0);
    second.ends();
    holder.ends();
}

#[test]
fn who_keeps_freed_memory_in_pools_gives_it_to_who_waits() {
    let Some(program) = program() else { return };
    let daemon = daemon("on_full = \"wait\"");
    let mut keeper = Hoard::start(&daemon, &program, "keeper", &["--mem", "200m"]);
    assert_eq!(keeper.does("pool 150"), 0);
    let (free, total) = keeper.info();
    assert!(free < 60 && total == 200, "{free} of {total}");
    // It says nothing, and does nothing; its library does.
    let mut other = Hoard::start(&daemon, &program, "other", &["--mem", "180m"]);
    assert_eq!(other.does("alloc 120"), 0);
    assert!(line(&daemon, "keeper").unwrap()["memory_used"].as_u64().unwrap() < 60 << 20);
    other.ends();
    keeper.ends();
}

#[test]
fn limits_that_exceed_the_gpu_are_a_matter_of_policy() {
    let daemon = daemon("overcommit = false\non_full = \"fail\"");
    let run = |name: &str, options: &[&str]| {
        let mut command = daemon.sundial();
        command.args(["run", "--name", name]).args(options).args(["--", "sh", "-c", "echo in; read line"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = run("first", &["--mem", "200m"]);
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    let second = run("second", &["--mem", "100m"]).wait_with_output().unwrap();
    let said = e2e::text(&second);
    assert!(!second.status.success() && said.contains("others' limits"), "{said}");
    let wrong = run("third", &["--on-full", "perhaps"]).wait_with_output().unwrap();
    assert!(!wrong.status.success() && e2e::text(&wrong).contains("wait:30s"), "{}", e2e::text(&wrong));
    let mut third = run("third", &["--mem", "56m", "--on-full", "wait:5s"]);
    let mut line = String::new();
    BufReader::new(third.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    for mut child in [first, third] {
        drop(child.stdin.take());
        let _ = child.wait();
    }
}
