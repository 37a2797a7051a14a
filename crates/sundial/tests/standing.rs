//! What a tenant is told of itself without having a session.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use gpu::{AllocId, Gpu, MemoryKind, QueueId, Request};
use remote_gpu::{Address, ConnectError};
use rustix::process::{Signal, kill_process};
use std::time::Duration;
use support::{BOUND, Installation, LO, PTX, Tenant, launch, prepare, until};
use wire::{Credential, GpuStanding};

mod support;

fn only(tenant: &Tenant) -> GpuStanding {
    let mut standing = tenant.address().standing(BOUND).unwrap();
    assert_eq!(standing.gpus.len(), 1);
    standing.gpus.remove(0)
}

#[test]
fn a_tenant_is_told_of_its_own_and_has_no_session_for_that() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let ours = installation.register(&["--name", "ours", "--mem", "64m", "--share", "50%"]);
    let before = only(&ours);
    assert!(before.answers && before.processes.is_empty());
    assert_eq!((before.memory_used, before.received), (0, 0));
    assert_eq!(installation.sessions().unwrap().len(), 0, "who asks has no session");

    let gpu = ours.connect().unwrap();
    assert_eq!(before.properties, *gpu.properties(), "the same as its sessions are told");
    prepare(&gpu, PTX);
    gpu.request(Request::Alloc { id: AllocId(9), bytes: 20 << 20, kind: MemoryKind::Vram }).unwrap();
    gpu.submit(QueueId(1), &[launch(1, &[])]).unwrap();
    let standing = until("a kernel to be seen", || {
        let standing = only(&ours);
        let process = standing.processes.first()?;
        (process.gpu_time_ns > 0 && standing.received > 0).then_some(standing)
    });
    let [process] = standing.processes[..] else { panic!("{standing:?}") };
    assert_eq!(process.pid, std::process::id());
    let [line] = &installation.sessions().unwrap()[..] else { panic!() };
    assert_eq!(line["memory_used"], standing.memory_used);
    assert_eq!(process.memory_used, standing.memory_used);
    assert!((21 << 20..64 << 20).contains(&standing.memory_used), "{standing:?}");
    assert!(standing.received <= 10_000);

    // Another tenant of the same user sees nothing of that.
    let theirs = installation.register(&["--name", "theirs", "--mem", "32m"]);
    let other = only(&theirs);
    assert_eq!((other.memory_used, other.received, other.processes.len()), (0, 0, 0));
    assert_eq!(other.properties.memory_bytes, 32 << 20);
    let changed = installation.output(&["set", "theirs", "--mem", "48m"]);
    assert!(changed.status.success());
    assert_eq!(only(&theirs).properties.memory_bytes, 48 << 20);

    drop(gpu);
    until("its process to be gone", || only(&ours).processes.is_empty().then_some(()));
    let credential = ours.address();
    ours.end();
    let refused = until("the tenant to be gone", || credential.standing(BOUND).err());
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    let nobody = Address { credential: Credential::default(), ..theirs.address() };
    let refused = nobody.standing(BOUND).unwrap_err();
    assert!(refused.to_string().contains("sundial run"), "{refused}");
}

#[test]
fn a_gpu_that_does_not_answer_is_told_of_in_time() {
    let installation = Installation::new("");
    let mut daemon = installation.serve();
    let tenant = installation.register(&["--name", "ours"]);
    assert!(only(&tenant).answers);
    let device = daemon.device().unwrap();
    kill_process(device, Signal::STOP).unwrap();
    until("it to be missed", || (!only(&tenant).answers).then_some(()));
    kill_process(device, Signal::CONT).unwrap();
    until("it to be heard again", || only(&tenant).answers.then_some(()));
    kill_process(device, Signal::KILL).unwrap();
    until("the next one to be heard", || (daemon.device() != Some(device) && only(&tenant).answers).then_some(()));

    // A daemon that says nothing is not waited for.
    let pid = rustix::process::Pid::from_raw(daemon.pid()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let silent = tenant.address().standing(Duration::from_millis(50)).unwrap_err();
    let timed_out = |error: &ConnectError| match error {
        ConnectError::Io(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        _ => false,
    };
    assert!(timed_out(&silent), "{silent:?}");
    kill_process(pid, Signal::CONT).unwrap();
    daemon.kill();
    let none = tenant.address().standing(BOUND).unwrap_err();
    assert!(matches!(none, ConnectError::NoDaemon { .. }), "{none:?}");
}

#[test]
fn with_several_gpus_each_is_told_of() {
    let installation = Installation::new("");
    let _daemon = installation.serve_with(|command| {
        command.args(["--gpu", "soft:192m"]);
    });
    let tenant = installation.register(&["--gpu", "1,0"]);
    let second = tenant.address().open(1).unwrap();
    second.request(Request::SetAddressRange { lo: LO, bytes: 1 << 30 }).unwrap();
    second.request(Request::Alloc { id: AllocId(1), bytes: 8 << 20, kind: MemoryKind::Vram }).unwrap();
    let standing = tenant.address().standing(BOUND).unwrap();
    let [one, other] = &standing.gpus[..] else { panic!("{standing:?}") };
    assert_eq!((one.properties.memory_bytes, other.properties.memory_bytes), (192 << 20, 256 << 20));
    assert_ne!(one.properties.uuid, other.properties.uuid);
    assert_eq!((one.memory_used, one.processes.len(), other.processes.len()), (0, 0, 1));
    assert_eq!(other.properties, *second.properties());
    assert!(other.memory_used >= 8 << 20);
}
