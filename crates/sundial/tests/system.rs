//! A daemon for all users of a machine: who may come, who gets what and sees what, policy that changes, and an end that waits.
//!
//! Other users are processes that gave up being root, so these tests need to be root.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gpu::{ContextId, Gpu, QueueId, Request, SlotId};
use remote_gpu::RemoteGpu;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{BOUND, Daemon, Installation, LO, PTX, launch, prepare, stderr, until};
use transport::unix;
use wire::Credential;

mod support;

/// A user and his group. Nobody on this machine is called that.
type User = (u32, u32);
const GROUP: u32 = 4_000_100;
const ADA: User = (4_000_001, GROUP);
const EVE: User = (4_000_002, GROUP);
const STRANGER: User = (4_000_003, 4_000_003);

/// Whether this process can become others; says so if not.
fn is_root() -> bool {
    let root = rustix::process::getuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can be other users");
    }
    root
}

fn serve<'a>(installation: &'a Installation, change: impl FnOnce(&mut Command)) -> Daemon<'a> {
    installation.serve_with(|command| {
        command.arg("--system").env("SUNDIAL_SYSTEM_DIR", installation.folder.join("run"));
        change(command);
    })
}

/// `sundial` as a user who looks for the machine's daemon.
fn sundial(installation: &Installation, (user, group): User, arguments: &[&str]) -> Command {
    let mut command = Command::new(installation.folder.join("sundial"));
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("SUNDIAL_SYSTEM_DIR", installation.folder.join("run"));
    // Where he can have no daemon of his own.
    command.env("XDG_RUNTIME_DIR", installation.folder.join("nobody"));
    command.uid(user).gid(group);
    command
}

fn output(installation: &Installation, user: User, arguments: &[&str]) -> Output {
    sundial(installation, user, arguments).output().unwrap()
}

fn refused(installation: &Installation, user: User, arguments: &[&str], why: &str) {
    let output = output(installation, user, arguments);
    assert!(!output.status.success() && stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
}

/// A tenant of a user's, with a session.
struct Tenant {
    program: Child,
    input: Option<ChildStdin>,
    gpu: Arc<RemoteGpu>,
}

impl Tenant {
    fn start(installation: &Installation, user: User, options: &[&str]) -> Tenant {
        let script = "echo $SUNDIAL_CREDENTIAL; echo $SUNDIAL_SOCKET; read end; true";
        let all = [&["run"], options, &["--", "sh", "-c", script]].concat();
        let mut command = sundial(installation, user, &all);
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let credential = lines.next().unwrap_or_else(|| panic!("{options:?} is let in")).unwrap();
        let socket: std::path::PathBuf = lines.next().unwrap().unwrap().into();
        let gpu = remote_gpu::connect_as(&socket, Credential::from_hex(&credential).unwrap()).unwrap();
        Tenant { input: program.stdin.take(), program, gpu }
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.program.wait().unwrap().success());
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(output)))
}

#[test]
fn each_user_has_what_policy_allows_and_sees_what_is_his() {
    if !is_root() {
        return;
    }
    let installation = Installation::new(&format!(
        "[system]\ngroup = \"{GROUP}\"\n[policy.default]\ntenants = 1\nshare = \"30%\"\nmem = \"64m\"\n\
         [policy.users.{}]\nallow = false\n",
        EVE.0
    ));
    let _daemon = serve(&installation, |_| {});
    let program = ["--", "true"];
    let run = |options: &[&'static str]| [&["run"], options, &program].concat();
    refused(&installation, ADA, &run(&["--share", "50%"]), "ask for --share 30% at most");
    refused(&installation, ADA, &run(&["--mem", "65m"]), "ask for --mem 64m at most");
    refused(&installation, ADA, &run(&["--priority", "high"]), "ask for --priority normal at most");
    refused(&installation, EVE, &run(&[]), &format!("[policy.users.{}] does not let you use the GPU", EVE.0));
    refused(&installation, STRANGER, &["ps"], "runtime directory");

    let (roots, roots_gpu) = installation.tenant(&["--name", "roots", "--mem", "100m"]);
    let adas = Tenant::start(&installation, ADA, &["--name", "adas", "--share", "30%"]);
    assert_eq!(adas.gpu.properties().memory_bytes, 64 << 20, "what policy leaves her");
    refused(&installation, ADA, &run(&[]), "allows `tenants = 1` at once");
    refused(&installation, ADA, &["vgpu", "create", "x", "--mem", "16m"], "allows `tenants = 1` at once");
    roots_gpu.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();

    let seen = json(&output(&installation, ADA, &["ps", "--json"]));
    let lines = seen["sessions"].as_array().unwrap();
    let line = |name: &str| lines.iter().find(|line| line["tenant"] == name).unwrap_or_else(|| panic!("{seen}"));
    assert_eq!((lines.len(), &line("adas")["memory_limit"]), (2, &(64 << 20).into()));
    assert_eq!((&line("(other 1)")["pid"], &line("(other 1)")["memory_limit"]), (&0.into(), &(100 << 20).into()));
    let used = json(&output(&installation, ADA, &["usage", "--json"]));
    let names = |used: &Value| -> Vec<String> {
        used["tenants"].as_array().unwrap().iter().map(|it| it["tenant"].as_str().unwrap().into()).collect()
    };
    assert!(names(&used).iter().all(|name| name == "adas"), "{used}");
    let frame = String::from_utf8(output(&installation, ADA, &["top", "--once", "--interval", "0.1"]).stdout).unwrap();
    assert!(frame.contains("adas") && frame.contains("(other 1)") && !frame.contains("roots"), "{frame}");

    refused(&installation, ADA, &["set", "roots", "--share", "5%"], "no tenant of yours named `roots`");
    refused(&installation, ADA, &["set", "adas", "--share", "31%"], "more than [policy.default] allows");
    refused(&installation, ADA, &["set", "roots", "--priority", "low"], "no tenant of yours named `roots`");
    refused(&installation, ADA, &["set", "adas", "--priority", "high"], "higher than [policy] allows");
    refused(&installation, ADA, &["set", "--scheduler", "band"], "only the administrator");
    refused(&installation, ADA, &["reload"], "only the administrator");
    let changed = output(&installation, ADA, &["set", "adas", "--share", "10%"]);
    assert!(changed.status.success(), "{}", stderr(&changed));
    let all = installation.sessions().unwrap();
    assert!(all.iter().any(|line| line["tenant"] == "adas" && line["share_entitled"] == 10.0), "{all:?}");

    drop(roots_gpu);
    roots.end();
    adas.end();
}

#[test]
fn policy_is_read_again_and_nobody_has_to_go() {
    if !is_root() {
        return;
    }
    let policy = |tenants: &str| format!("[system]\ngroup = \"{GROUP}\"\n[policy.default]\n{tenants}\n");
    let installation = Installation::new(&policy("tenants = 1"));
    let daemon = serve(&installation, |_| {});
    let write = |tenants: &str| std::fs::write(installation.folder.join("config.toml"), policy(tenants)).unwrap();
    let first = Tenant::start(&installation, ADA, &["--name", "first"]);
    let run = ["run", "--name", "more", "--", "true"];
    refused(&installation, ADA, &run, "`tenants = 1`");

    write("tenant = 2");
    let wrong = installation.output(&["reload"]);
    let told = stderr(&wrong);
    assert!(!wrong.status.success() && told.contains("policy stays as it was"), "{told}");
    assert!(told.contains("line 4") && told.contains("did you mean `tenants`?"), "{told}");
    write("tenants = 2\n[policy.users.nobody-has-this-name]\ntenants = 1");
    let wrong = installation.output(&["reload"]);
    assert!(!wrong.status.success() && stderr(&wrong).contains("there is no user"), "{}", stderr(&wrong));
    refused(&installation, ADA, &run, "`tenants = 1`");

    write("tenants = 2");
    let read = installation.output(&["reload"]);
    assert!(read.status.success(), "{}", stderr(&read));
    assert!(output(&installation, ADA, &run).status.success());
    // As `systemctl reload` asks for it.
    write("allow = false");
    kill_process(Pid::from_raw(daemon.pid()).unwrap(), Signal::HUP).unwrap();
    until("the new policy", || stderr(&output(&installation, ADA, &run)).contains("`allow = false`").then_some(()));
    assert!(first.gpu.request(Request::MemoryInfo).is_ok(), "who is there stays");
    first.end();
}

#[test]
fn who_is_there_may_finish_when_the_daemon_is_to_end() {
    if !is_root() {
        return;
    }
    let installation = Installation::new(&format!("drain_seconds = 60\n[system]\ngroup = \"{GROUP}\"\n"));
    let mut daemon = serve(&installation, |_| {});
    let output = installation.output(&["vgpu", "create", "one", "--mem", "16m"]);
    assert!(output.status.success());
    let guests = std::path::PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let tenant = Tenant::start(&installation, ADA, &[]);
    kill_process(Pid::from_raw(daemon.pid()).unwrap(), Signal::TERM).unwrap();
    until("newcomers to be refused", || {
        stderr(&self::output(&installation, ADA, &["run", "--", "true"])).contains("is ending").then_some(())
    });
    assert!(tenant.gpu.request(Request::MemoryInfo).is_ok());
    prepare(&tenant.gpu, PTX);
    let destroyed = installation.output(&["vgpu", "destroy", "one"]);
    assert!(destroyed.status.success(), "{}", stderr(&destroyed));
    tenant.end();
    assert!(daemon.wait().success());
    let left = ["session.sock", "admin.sock"].map(|name| installation.folder.join("run").join(name));
    assert!(left.iter().chain([&guests]).all(|socket| !socket.exists()));

    // A virtual GPU does not go by itself: its socket goes with the daemon, at once if that is asked for twice.
    let mut daemon = serve(&installation, |_| {});
    let output = installation.output(&["vgpu", "create", "one", "--mem", "16m"]);
    assert!(output.status.success() && guests.exists());
    let end = || kill_process(Pid::from_raw(daemon.pid()).unwrap(), Signal::TERM).unwrap();
    end();
    // Signals that are the same and both wait are one.
    until("it to be heard", || {
        stderr(&self::output(&installation, ADA, &["run", "--", "true"])).contains("is ending").then_some(())
    });
    end();
    assert!(daemon.wait().success());
    assert!(!guests.exists());
}

/// A kernel, to its end.
fn work(gpu: &RemoteGpu, round: u64) {
    let params = [&LO.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
    let signal = gpu::Command::Signal { slot: SlotId(1), value: round };
    gpu.submit(QueueId(1), &[launch(0, &params), signal]).unwrap();
    gpu.wait(ContextId(1), SlotId(1), round, Some(BOUND)).unwrap();
}

#[test]
fn who_has_used_his_gpu_time_is_held_back_after_a_restart_as_well() {
    if !is_root() {
        return;
    }
    // A microsecond in an hour: whatever is used is too much for longer than this takes.
    let policy = format!(
        "[usage]\ninterval_seconds = 1\n[system]\ngroup = \"{GROUP}\"\n[policy.groups.{GROUP}]\nquota = \"1us/hour\"\n"
    );
    // Where nothing can be kept, it holds as long as the daemon.
    let kept = [true, false];
    for kept in kept {
        let place = if kept { "" } else { "path = \"/proc/sundial\"\n" };
        let installation = Installation::new(&policy.replacen("[usage]\n", &format!("[usage]\n{place}"), 1));
        let daemon = serve(&installation, |_| {});
        let tenant = Tenant::start(&installation, ADA, &["--name", "adas", "--share", "50%"]);
        prepare(&tenant.gpu, PTX);
        work(&tenant.gpu, 1);
        let told = "you have used your GPU time: `quota = \"1us/hour\"` of [policy.groups";
        let run = ["run", "--", "true"];
        until("it to be noticed", || stderr(&output(&installation, ADA, &run)).contains(told).then_some(()));
        refused(&installation, ADA, &["vgpu", "create", "x", "--mem", "16m"], "there is some again in");
        let left_over = || {
            let sessions = installation.sessions()?;
            sessions.iter().any(|line| line["tenant"] == "adas" && line["share_entitled"] == 0.1).then_some(())
        };
        until("what runs to be held back", left_over);
        work(&tenant.gpu, 2);
        assert!(output(&installation, EVE, &run).status.success(), "others have their own");
        assert!(installation.output(&run).status.success());
        drop(tenant);
        let written =
            || (json(&installation.output(&["usage", "--json"]))["unwritten_seconds"].as_f64()? < 3.0).then_some(());
        if kept {
            until("it to be kept", written);
        }
        drop(daemon);
        let _daemon = serve(&installation, |_| {});
        if kept {
            refused(&installation, ADA, &run, told);
        } else {
            assert!(output(&installation, ADA, &run).status.success());
        }
    }
}

#[test]
fn who_has_used_the_gpu_time_of_a_profile_takes_another() {
    if !is_root() {
        return;
    }
    let profiles = "[profiles.big]\nquota = \"1us/hour\"\n[profiles.small]\nshare = \"5%\"\n";
    let policy = format!("[usage]\ninterval_seconds = 1\n[system]\ngroup = \"{GROUP}\"\n{profiles}");
    let installation = Installation::new(&policy);
    let _daemon = serve(&installation, |_| {});
    let tenant = Tenant::start(&installation, ADA, &["--name", "adas", "--share", "50%", "--profile", "big"]);
    prepare(&tenant.gpu, PTX);
    work(&tenant.gpu, 1);
    let told = "you have used the GPU time of profile `big`: `quota = \"1us/hour\"`; there is some again in";
    let big = ["run", "--profile", "big", "--", "true"];
    until("it to be noticed", || stderr(&output(&installation, ADA, &big)).contains(told).then_some(()));
    let left_over = || {
        let sessions = installation.sessions()?;
        sessions.iter().any(|line| line["tenant"] == "adas" && line["share_entitled"] == 0.1).then_some(())
    };
    until("what runs to be held back", left_over);
    assert!(output(&installation, ADA, &["run", "--profile", "small", "--", "true"]).status.success());
    assert!(output(&installation, ADA, &["run", "--", "true"]).status.success());
    assert!(output(&installation, EVE, &big).status.success(), "others have their own");
}

#[test]
fn a_service_manager_opens_the_sockets_and_hears_how_it_goes() {
    if !is_root() {
        return;
    }
    let installation = Installation::new("drain_seconds = 0\n");
    let run = installation.folder.join("run");
    std::fs::create_dir_all(&run).unwrap();
    let [sessions, admin] =
        ["session.sock", "admin.sock"].map(|name| -> OwnedFd { unix::listen(&run.join(name), 0o600).unwrap() });
    let ear = UnixDatagram::bind(installation.folder.join("notify")).unwrap();
    ear.set_read_timeout(Some(BOUND)).unwrap();
    let hear = |wanted: &str| {
        until(wanted, || {
            let mut heard = [0; 256];
            let length = ear.recv(&mut heard).unwrap();
            std::str::from_utf8(&heard[..length]).unwrap().lines().any(|line| line == wanted).then_some(())
        });
    };
    // Somebody comes before it has started: he waits.
    let early = unix::connect(&run.join("admin.sock")).unwrap();
    let mut daemon = Command::new("sh");
    daemon
        .args(["-c", "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ exec \"$0\" serve --system --gpu soft:256m"]);
    daemon.arg(installation.folder.join("sundial")).stdin(Stdio::from(admin)).stdout(Stdio::from(sessions));
    daemon
        .env("LISTEN_FDS", "2")
        .env("NOTIFY_SOCKET", installation.folder.join("notify"))
        .env("WATCHDOG_USEC", "300000");
    daemon.env("SUNDIAL_SYSTEM_DIR", &run).env("SUNDIAL_CONFIG", installation.folder.join("config.toml"));
    daemon
        .env("XDG_STATE_HOME", installation.folder.join("state"))
        .env("XDG_CACHE_HOME", installation.folder.join("cache"));
    let mut daemon = sandbox::end_with_parent(&mut daemon).spawn().unwrap();
    hear("READY=1");
    hear("WATCHDOG=1");
    unix::set_timeout(&early, Some(Duration::from_secs(20))).unwrap();
    unix::send(&early, b"\"List\"", &[], true).unwrap();
    let mut answer = vec![0; 4096];
    let length = unix::receive(&early, &mut answer).unwrap().length;
    assert!(std::str::from_utf8(&answer[..length]).unwrap().contains("Sessions"));
    let (tenant, gpu) = installation.tenant(&[]);
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    let process = Pid::from_raw(daemon.id().cast_signed()).unwrap();
    kill_process(process, Signal::HUP).unwrap();
    hear("READY=1");
    kill_process(process, Signal::TERM).unwrap();
    hear("STOPPING=1");
    assert!(daemon.wait().unwrap().success());
    assert!(run.join("admin.sock").exists(), "it is the service manager's");
    drop((tenant, gpu));
}
