//! The daemon as its users see it: `serve`, `run`, `ps`, and deaths.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpu::{
    AllocId, Command as GpuCommand, ContextId, DevAddr, Gpu, GpuError, MapAccess, MemoryKind, ModuleId, QueueId,
    Request, Response, SlotId,
};
use hostmem::Memfd;
use remote_gpu::RemoteGpu;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wire::Credential;

const BOUND: Duration = Duration::from_secs(30);
const LO: u64 = 1 << 40;

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < BOUND, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// An installation of its own: the binary, something in the library's place, a runtime directory, a policy.
struct Installation {
    folder: PathBuf,
}

impl Installation {
    fn new(config: &str) -> Installation {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sundial-daemon-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("sundial-lib")).unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_sundial"));
        std::fs::hard_link(built, folder.join("sundial"))
            .or_else(|_| std::fs::copy(built, folder.join("sundial")).map(drop))
            .unwrap();
        std::fs::write(folder.join("sundial-lib/libcuda.so.1"), "").unwrap();
        std::fs::write(folder.join("config.toml"), config).unwrap();
        Installation { folder }
    }

    fn sundial(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("sundial"));
        command
            .args(arguments)
            .env("SUNDIAL_RUNTIME_DIR", self.folder.join("run"))
            .env("SUNDIAL_CONFIG", self.folder.join("config.toml"))
            .env_remove("SUNDIAL_GPU");
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.sundial(arguments).output().unwrap()
    }

    fn sessions(&self) -> Option<Vec<Value>> {
        let output = self.output(&["ps", "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).ok()?;
        output.status.success().then(|| value["sessions"].as_array().unwrap().clone())
    }

    fn serve(&self) -> Daemon<'_> {
        let child = self.sundial(&["serve", "--gpu", "soft:256m"]).stdin(Stdio::null()).spawn().unwrap();
        until("the daemon to answer", || self.sessions());
        Daemon { child, installation: self }
    }

    /// A program that is a tenant until its input ends, and a session of it.
    fn tenant(&self, options: &[&str]) -> (Tenant, Arc<RemoteGpu>) {
        let script = "echo $SUNDIAL_CREDENTIAL; echo $SUNDIAL_SOCKET; read end; true";
        let all = [&["run"], options, &["--", "sh", "-c", script]].concat();
        let mut child = self.sundial(&all).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let credential = Credential::from_hex(&lines.next().unwrap().unwrap()).unwrap();
        let socket = lines.next().unwrap().unwrap();
        let gpu = remote_gpu::connect_as(Path::new(&socket), credential).unwrap();
        (Tenant { child }, gpu)
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Daemon<'a> {
    child: Child,
    installation: &'a Installation,
}

impl Daemon<'_> {
    /// The device process.
    fn device(&self) -> Option<Pid> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok();
        // The supervisor's thread is the parent; look at all threads.
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let text = threads
            .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok())
            .chain(children)
            .collect::<Vec<_>>()
            .join(" ");
        text.split_whitespace().find_map(|word| Pid::from_raw(word.parse().ok()?))
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(self.installation.folder.exists());
    }
}

struct Tenant {
    child: Child,
}

impl Tenant {
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn tenants_are_registered_listed_and_limited() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let (tenant, gpu) = installation.tenant(&["--name", "alice", "--mem", "64m", "--share", "60%"]);
    assert_eq!(gpu.properties().memory_bytes, 64 << 20);
    gpu.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();
    let alloc = |id, bytes| gpu.request(Request::Alloc { id: AllocId(id), bytes, kind: MemoryKind::Vram });
    assert_eq!(alloc(1, 48 << 20), Ok(Response::Done));
    assert!(matches!(alloc(2, 32 << 20), Err(GpuError::OutOfMemory { .. })));
    gpu.calls_local().store(5, Ordering::Relaxed);

    let sessions = installation.sessions().unwrap();
    let [session] = &sessions[..] else { panic!("{sessions:?}") };
    assert_eq!(session["tenant"], "alice");
    assert_eq!(session["pid"], std::process::id());
    assert_eq!(session["memory_used"], 48 << 20);
    assert_eq!(session["memory_limit"], 64 << 20);
    assert_eq!(session["share_entitled"], 60.0);
    assert_eq!(session["calls_local"], 5);
    assert_eq!(session["calls_remote"], 3);
    assert_eq!(session["state"], "idle");
    let table = installation.output(&["ps"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("alice"), "{}", stderr(&table));

    for (options, expected) in [
        (["--share", "50%"], "a share of 50 % is not free: 60 % of the GPU's time is given to others"),
        (["--mem", "1g"], "is more than the GPU's"),
        (["--name", "alice"], "a tenant named `alice` is present"),
        (["--name", "no good"], "letters"),
        (["--gpu", "soft:1g"], "stop it, or leave --gpu out"),
        (["--share", "0%"], "is not a share"),
    ] {
        let output = installation.output(&[&["run"][..], &options, &["--", "true"]].concat());
        assert!(!output.status.success() && stderr(&output).contains(expected), "{options:?}: {}", stderr(&output));
    }
    drop(gpu);
    tenant.end();
    // Both ended a moment ago; what they had is free at once.
    let output = installation.output(&["run", "--name", "alice", "--share", "100%", "--", "true"]);
    assert!(output.status.success(), "{}", stderr(&output));
    until("the session to be gone", || installation.sessions()?.is_empty().then_some(()));
}

/// `fill(p, v)` stores `v + i` into word i of `p`; `forever()` does not end.
const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry fill(.param .u64 p, .param .u32 v)
{
    .reg .u64 %rd<4>;
    .reg .u32 %r<4>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [v];
    mov.u32 %r2, %tid.x;
    add.u32 %r3, %r1, %r2;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
    ret;
}
.visible .entry forever()
{
L:  bra L;
}
";

/// Context, queue, module, and 1 MiB of memory at `LO`.
fn prepare(gpu: &RemoteGpu) {
    let bytes = 1 << 20;
    for request in [
        Request::SetAddressRange { lo: LO, bytes: 1 << 30 },
        Request::CreateContext { id: ContextId(1), printf: 0, heap: 0, heap_bytes: 0 },
        Request::CreateQueue { id: QueueId(1), context: ContextId(1), priority: 0 },
        Request::Alloc { id: AllocId(1), bytes, kind: MemoryKind::Vram },
        Request::Map { at: DevAddr(LO), id: AllocId(1), offset: 0, bytes, access: MapAccess::ReadWrite },
        Request::LoadModule { id: ModuleId(1), ptx: PTX.into(), placed: vec![] },
    ] {
        gpu.request(request).unwrap();
    }
}

fn launch(kernel: u32, params: &[u8]) -> GpuCommand<'_> {
    let (grid, block) = ([1; 3], [64, 1, 1]);
    GpuCommand::Launch { module: ModuleId(1), kernel, grid, block, shared_bytes: 0, cooperative: false, params }
}

#[test]
fn kernels_run_and_endless_ones_end_with_their_client() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let (first, gpu) = installation.tenant(&["--name", "worker", "--share", "50%"]);
    let (second, endless) = installation.tenant(&["--name", "endless", "--share", "50%"]);
    prepare(&gpu);
    prepare(&endless);
    endless.submit(QueueId(1), &[launch(1, &[]), GpuCommand::Signal { slot: SlotId(1), value: 1 }]).unwrap();
    let waiting = endless.wait(ContextId(1), SlotId(1), 1, Some(Duration::from_millis(50)));
    assert_eq!(waiting, Err(GpuError::TimedOut));

    let buffer = Memfd::create("buffer", 4096).unwrap().map().unwrap();
    for round in 1..50u32 {
        let params = [&LO.to_le_bytes()[..], &round.to_le_bytes()].concat();
        let signal = GpuCommand::Signal { slot: SlotId(1), value: round.into() };
        gpu.submit(QueueId(1), &[launch(0, &params), signal]).unwrap();
        gpu.wait(ContextId(1), SlotId(1), round.into(), Some(BOUND)).unwrap();
        gpu.read(buffer.range(0, 256), DevAddr(LO)).unwrap();
        assert_eq!(buffer.u32_at(63 * 4).load(Ordering::Relaxed), round + 63);
    }
    let state = |name: &str| {
        let sessions = installation.sessions()?;
        let found = sessions.iter().find(|session| session["tenant"] == name)?;
        Some(found["state"].as_str()?.to_owned())
    };
    until("the endless kernel to be seen", || state("endless").filter(|state| state == "running"));
    drop(endless);
    let left = Instant::now();
    until("the endless session to be gone", || state("endless").is_none().then_some(()));
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
    assert!(state("worker").is_some());
    drop(gpu);
    first.end();
    second.end();
}

#[test]
fn the_program_is_itself() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let script = "echo out; echo err >&2; test -n \"$SUNDIAL_CREDENTIAL\" && exit 7";
    let output = installation.output(&["run", "--", "sh", "-c", script]);
    assert_eq!((output.status.code(), &output.stdout[..], stderr(&output).as_str()), (Some(7), &b"out\n"[..], "err\n"));

    let mut cat =
        installation.sundial(&["run", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through");

    use std::os::unix::process::ExitStatusExt;
    let output = installation.output(&["run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15));
    assert_eq!(installation.output(&["run", "--", "/nonexistent/program"]).status.code(), Some(127));

    let output = installation.output(&[
        "run",
        "--native",
        "--gpu",
        "soft:1g",
        "--",
        "sh",
        "-c",
        "echo $SUNDIAL_NATIVE $SUNDIAL_VRAM$SUNDIAL_CREDENTIAL $LD_LIBRARY_PATH",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("1 1073741824 ") && text.contains("sundial-lib"), "{text}");
}

#[test]
fn tenants_of_a_dead_device_get_errors_and_the_next_get_another() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let (tenant, gpu) = installation.tenant(&["--name", "bob"]);
    assert_eq!(
        gpu.request(Request::CreateContext { id: ContextId(1), printf: 0, heap: 0, heap_bytes: 0 }).is_ok(),
        gpu.request(Request::ContextError { id: ContextId(1) }).is_ok()
    );
    let waiting = Arc::clone(&gpu);
    let waiter = std::thread::spawn(move || waiting.wait(ContextId(1), SlotId(1), 1, None));
    let device = until("the device process", || daemon.device());
    kill_process(device, Signal::KILL).unwrap();
    assert!(matches!(waiter.join().unwrap(), Err(GpuError::Lost { .. })));
    assert!(matches!(gpu.request(Request::MemoryInfo), Err(GpuError::Lost { .. })));
    until("another device process", || daemon.device().filter(|pid| *pid != device));
    // The registration holds; its next session works.
    until("a new session", || {
        let (other, gpu) = installation.tenant(&[]);
        let works = gpu.request(Request::MemoryInfo).is_ok();
        other.end();
        works.then_some(())
    });
    let () = ();
    tenant.end();
}

#[test]
fn a_waiting_client_notices_that_the_daemon_died() {
    let installation = Installation::new("");
    let mut daemon = installation.serve();
    let (_tenant, gpu) = installation.tenant(&[]);
    let waiting = Arc::clone(&gpu);
    let waiter = std::thread::spawn(move || waiting.wait(ContextId(1), SlotId(1), 1, None));
    let killed = Instant::now();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(matches!(waiter.join().unwrap(), Err(GpuError::Lost { .. })));
    assert!(killed.elapsed() < Duration::from_secs(5));
    assert!(matches!(gpu.flush(), Err(GpuError::Lost { .. })));
}

#[test]
fn run_starts_a_daemon_that_ends_by_itself() {
    let installation = Installation::new("gpu = \"soft:128m\"\nlinger_seconds = 1\n");
    assert!(installation.sessions().is_none(), "no daemon yet");
    let runs: Vec<Child> =
        (0..3).map(|_| installation.sundial(&["run", "--share", "30%", "--", "true"]).spawn().unwrap()).collect();
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    assert!(installation.sessions().is_some());
    until("the daemon to end", || installation.sessions().is_none().then_some(()));
    let output = installation.output(&["ps"]);
    assert!(stderr(&output).contains("no Sundial daemon is running"), "{}", stderr(&output));
}

#[test]
fn a_wrong_policy_is_an_error() {
    let installation = Installation::new("most_tennants = 3\n");
    let output = installation.output(&["serve"]);
    assert!(!output.status.success() && stderr(&output).contains("most_tennants"), "{}", stderr(&output));
    let output = installation.output(&["run", "--", "true"]);
    assert!(stderr(&output).contains("daemon.log"), "{}", stderr(&output));
}

#[test]
fn strangers_on_the_sockets_disturb_nobody() {
    let installation = Installation::new("most_tenants = 5\n[unregistered]\nmemory = \"16m\"\n");
    let _daemon = installation.serve();
    let (tenant, gpu) = installation.tenant(&["--name", "carol"]);
    let run = installation.folder.join("run");
    for round in 0..40usize {
        for socket in ["session.sock", "admin.sock"] {
            let stream = transport::unix::connect(&run.join(socket)).unwrap();
            let garbage: Vec<u8> = (0..round * 40).map(|i| (i * 37 + round) as u8).collect();
            // It may hang up at any moment: that is an answer too.
            let _ = transport::unix::send(&stream, &garbage, &[], true);
        }
    }
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    // A credential that nobody gave, and none at all.
    let path = run.join("session.sock");
    let refused = remote_gpu::connect_as(&path, Credential([5; 32])).unwrap_err();
    assert!(refused.to_string().contains("credential"), "{refused}");
    let guest = remote_gpu::connect_as(&path, Credential::default()).unwrap();
    assert_eq!(guest.properties().memory_bytes, 16 << 20);
    drop(guest);

    // As many sessions as a tenant may have, and then no more; all of them can go at once.
    let path = run.join("session.sock");
    let mut many = Vec::new();
    let refused = until("the limit of sessions", || match remote_gpu::connect_as(&path, Credential::default()) {
        Ok(session) => {
            many.push(session);
            None
        }
        Err(error) => Some(error.to_string()),
    });
    assert!(refused.contains("too many sessions (limit 32)"), "{refused}");
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    assert!(installation.sessions().unwrap().len() <= 33);
    drop(many);
    until("all guests to be gone", || (installation.sessions()?.len() == 1).then_some(()));
    drop(gpu);
    tenant.end();
}
