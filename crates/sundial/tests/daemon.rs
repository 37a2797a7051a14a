//! The daemon as its users see it: `serve`, `run`, `ps`, and deaths.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpu::{
    AllocId, Command as GpuCommand, ContextId, DevAddr, Gpu, GpuError, MemoryKind, QueueId, Request, Response, SlotId,
};
use hostmem::Memfd;
use remote_gpu::ConnectError;
use rustix::process::{Signal, kill_process};
use support::{BOUND, Installation, LO, PTX, launch, prepare, stderr, until};
use wire::Credential;

mod support;

#[test]
fn tenants_are_registered_listed_and_limited() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let (tenant, gpu) =
        installation.tenant(&["--name", "alice", "--mem", "64m", "--host-mem", "256m", "--share", "60%"]);
    assert_eq!(gpu.properties().memory_bytes, 64 << 20);
    gpu.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();
    let alloc = |id, bytes| gpu.request(Request::Alloc { id: AllocId(id), bytes, kind: MemoryKind::Vram });
    assert_eq!(alloc(1, 48 << 20), Ok(Response::Shown { offset: 0 }));
    assert!(matches!(alloc(2, 32 << 20), Err(GpuError::OutOfMemory { .. })));
    gpu.calls_local().store(5, Ordering::Relaxed);

    let sessions = installation.sessions().unwrap();
    let [session] = &sessions[..] else { panic!("{sessions:?}") };
    assert_eq!(session["tenant"], "alice");
    assert_eq!(session["pid"], std::process::id());
    assert_eq!(session["memory_used"], 48 << 20);
    assert_eq!(session["memory_limit"], 64 << 20);
    assert_eq!(session["share_entitled"], 60.0);
    assert_eq!(session["host_memory_limit"], 256 << 20);
    let host = session["host_memory_used"].as_u64().unwrap();
    assert!((5 << 20..64 << 20).contains(&host), "rings, staging and semaphores: {host}");
    assert!(session["kernels_interpreted"] == 0 && session["compiling"] == 0, "{session}");
    // What is pinned counts.
    let pinned = gpu.request(Request::Alloc { id: AllocId(3), bytes: 100 << 20, kind: MemoryKind::Host });
    assert_eq!(pinned, Ok(Response::Done));
    let more = gpu.request(Request::Alloc { id: AllocId(4), bytes: 200 << 20, kind: MemoryKind::Host });
    assert!(matches!(more, Err(GpuError::OutOfMemory { limit: 0x1000_0000, .. })), "{more:?}");
    assert!(installation.sessions().unwrap()[0]["host_memory_used"].as_u64().unwrap() >= host + (100 << 20));
    assert_eq!(session["calls_local"], 5);
    assert_eq!(session["calls_remote"], 3);
    assert_eq!(session["state"], "idle");
    let table = installation.output(&["ps"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("alice"), "{}", stderr(&table));

    for (options, expected) in [
        (["--share", "50%"], "a share of 50 % is not free: 60 % of the GPU's time is given to others"),
        (["--mem", "1g"], "is more than the GPU's"),
        (["--host-mem", "1000t"], "that a tenant may have"),
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

#[test]
fn memory_is_given_and_taken_while_a_tenant_runs() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let (tenant, gpu) = installation.tenant(&["--name", "alice", "--mem", "64m"]);
    gpu.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();
    let alloc = |id, bytes| gpu.request(Request::Alloc { id: AllocId(id), bytes, kind: MemoryKind::Vram });
    let set = |size: &str| {
        let output = installation.output(&["set", "alice", "--mem", size]);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    alloc(1, 48 << 20).unwrap();
    assert!(matches!(alloc(2, 32 << 20), Err(GpuError::OutOfMemory { .. })));
    assert_eq!(set("100m"), "");
    alloc(2, 32 << 20).unwrap();
    let Ok(Response::Memory { total, .. }) = gpu.request(Request::MemoryInfo) else { panic!() };
    assert_eq!(total, 100 << 20);
    assert_eq!(installation.sessions().unwrap()[0]["memory_limit"], 100 << 20);
    // Not below what it has, and that is said.
    let told = set("16m");
    assert!(told.starts_with("alice has 80 MiB"), "{told}");
    assert!(matches!(alloc(3, 1 << 20), Err(GpuError::OutOfMemory { .. })));
    gpu.request(Request::Free { id: AllocId(1) }).unwrap();
    alloc(3, 40 << 20).unwrap();
    gpu.request(Request::Free { id: AllocId(3) }).unwrap();
    set("40m");
    assert!(matches!(alloc(3, 16 << 20), Err(GpuError::OutOfMemory { .. })));
    let other = tenant.connect().unwrap();
    assert_eq!(other.properties().memory_bytes, 40 << 20, "who comes now is told how much there is now");
    for (size, why) in [("1g", "is more than the GPU's"), ("1k", "too small")] {
        // Less than the least there is comes to what it has.
        let output = installation.output(&["set", "alice", "--mem", size]);
        assert_eq!(output.status.success(), size == "1k", "{why}: {}", stderr(&output));
    }
    let nobody = installation.output(&["set", "nobody", "--mem", "1g"]);
    assert!(!nobody.status.success() && stderr(&nobody).contains("no tenant named `nobody`"), "{}", stderr(&nobody));
}

#[test]
fn kernels_run_and_endless_ones_end_with_their_client() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let (first, gpu) = installation.tenant(&["--name", "worker", "--share", "50%"]);
    let (second, endless) = installation.tenant(&["--name", "endless", "--share", "50%"]);
    prepare(&gpu, PTX);
    prepare(&endless, PTX);
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
    println!("the endless session was gone after {:?}", left.elapsed());
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

    // Few descriptors are enough.
    let script = format!("ulimit -n 24; exec {} run -- sh -c 'exit 7'", installation.folder.join("sundial").display());
    let output = installation.output(&["run", "--native", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));

    let output = installation.output(&[
        "run",
        "--native",
        "--gpu",
        "soft:1g",
        "--gpu",
        "soft:512m",
        "--",
        "sh",
        "-c",
        "echo $SUNDIAL_NATIVE $SUNDIAL_GPU$SUNDIAL_VRAM$SUNDIAL_CREDENTIAL $LD_LIBRARY_PATH",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (gpus, library) = ("1 soft:1073741824,soft:536870912 ", "sundial-lib");
    assert!(text.starts_with(gpus) && text.contains(library), "{text}");
    let output = installation.output(&["run", "--gpu", "soft:256m,soft:256m", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("has 1 GPUs that are soft:268435456, and more are wanted"), "{}", stderr(&output));
}

#[test]
fn guests_load_the_same_library_as_the_host() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    // Which file a program finds first, and what is in it.
    let script = "echo \"$SUNDIAL_VGPU|$SUNDIAL_NATIVE|${SUNDIAL_CREDENTIAL:+session}\"; \
                  stat -L -c %d:%i \"${LD_LIBRARY_PATH%%:*}/libcuda.so.1\"; \
                  sha256sum < \"${LD_LIBRARY_PATH%%:*}/libcuda.so.1\"";
    let run = |how: &[&str]| {
        let arguments: Vec<&str> = [&["run"], how, &["--", "sh", "-c", script]].concat();
        let mut command = installation.sundial(&arguments);
        // Neither may reach through to another kind.
        for (name, value) in [("SUNDIAL_VGPU", "unix:/other"), ("SUNDIAL_NATIVE", "1"), ("SUNDIAL_GPU", "soft:256m")] {
            command.env(name, value);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let (environment, library) = text.split_once('\n').unwrap();
        (environment.to_owned(), library.to_owned())
    };
    let (native, on_host) = run(&["--native"]);
    let (session, of_tenant) = run(&[]);
    let (guest, in_guest) = run(&["--vgpu", "/run/gpu.sock"]);
    let (machine, in_machine) = run(&["--vgpu", "pci"]);
    assert_eq!([native, session, guest, machine], ["|1|", "||session", "unix:/run/gpu.sock||", "pci||"]);
    assert_eq!(on_host.lines().count(), 2, "{on_host}");
    assert_eq!([&of_tenant, &in_guest, &in_machine], [&on_host; 3]);
    for option in [["--mem", "1g"], ["--profile", "small"]] {
        let arguments = [&["run", "--vgpu", "/run/gpu.sock"], &option[..], &["--", "true"]].concat();
        assert_eq!(installation.output(&arguments).status.code(), Some(2), "{option:?}");
    }
}

#[test]
fn tenants_of_a_dead_device_get_errors_and_the_next_get_another() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let (tenant, gpu) = installation.tenant(&["--name", "bob"]);
    prepare(&gpu, PTX);
    assert_eq!(gpu.request(Request::ContextError { id: ContextId(1) }), Ok(Response::ContextError(None)));
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
    daemon.kill();
    assert!(matches!(waiter.join().unwrap(), Err(GpuError::Lost { .. })));
    assert!(killed.elapsed() < Duration::from_secs(5));
    assert!(matches!(gpu.flush(), Err(GpuError::Lost { .. })));
}

#[test]
fn run_starts_a_daemon_that_ends_by_itself() {
    let installation = Installation::new("gpu = \"soft:128m\"\nlinger_seconds = 3\n");
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
    let installation =
        Installation::new("most_tenants = 5\n[unregistered]\nmemory = \"16m\"\n[limits]\nfiles = 1000\n");
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
    let connect = |credential| {
        until("a place beside what this process has thrown at it", || {
            let connected = remote_gpu::connect_as(&path, credential);
            (!matches!(connected, Err(ConnectError::Io(_) | ConnectError::Unusable { .. }))).then_some(connected)
        })
    };
    let refused = connect(Credential([5; 32])).unwrap_err();
    assert!(refused.to_string().contains("credential"), "{refused}");
    let guest = connect(Credential::default()).unwrap();
    assert_eq!(guest.properties().memory_bytes, 16 << 20);
    drop(guest);

    // As many sessions as a tenant may have, and then no more; all of them can go at once.
    let mut many = Vec::new();
    let refused = until("the limit of sessions", || match connect(Credential::default()) {
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
