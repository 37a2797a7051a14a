//! A thousand tenants at once, each with a session that does nothing.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use gpu::{Gpu, Request};
use remote_gpu::RemoteGpu;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use support::{Installation, until};
use transport::unix;
use wire::Credential;

mod support;

const TENANTS: usize = 1000;
/// Of them register at the same time.
const THREADS: usize = 100;
/// What an idle session may take of the daemon's memory, of both processes together, KiB.
const KIB_EACH: u64 = 1024;
/// What one takes of the device process's descriptors: socket, process, memory file of its semaphores. Of the control process's:
/// its tenant's lifeline.
const FILES_EACH: usize = 3;
const FILES_OF_CONTROL: usize = 1;

/// Registers as `sundial run` does, which becomes its program then.
fn register(socket: &Path, name: &str) -> (OwnedFd, Credential) {
    let connection = unix::connect(socket).unwrap();
    let request = format!(
        "{{\"Register\":{{\"terms\":{{\"name\":\"{name}\",\"memory_bytes\":{},\"host_bytes\":null,\"share_percent\":null,\"on_full\":null}},\"gpu\":null}}}}",
        1 << 20
    );
    unix::send(&connection, request.as_bytes(), &[], true).unwrap();
    let mut answer = vec![0; 4096];
    let length = unix::receive(&connection, &mut answer).unwrap().length;
    let answer: Value = serde_json::from_slice(&answer[..length]).unwrap_or_else(|_| panic!("{name} is let in"));
    let credential = answer["Registered"]["credential"].as_str().unwrap_or_else(|| panic!("{name}: {answer}"));
    (connection, Credential::from_hex(credential).unwrap())
}

/// Bytes that a process has in memory, in KiB, and its descriptors.
fn look(pid: i32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let memory = line.trim().trim_end_matches(" kB").parse().unwrap();
    (memory, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

#[test]
fn a_thousand_idle_tenants_are_served_and_the_administrator_with_them() {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    if files.maximum.is_some_and(|most| most < 12 * TENANTS as u64) {
        eprintln!("SKIPPED: a process may open {files:?} files only");
        return;
    }
    let installation = Installation::new("most_tenants = 1100");
    let daemon = installation.serve();
    let device = until("a device process", || daemon.device()).as_raw_nonzero().get();
    let run = installation.folder.join("run");
    let begin = Instant::now();
    // One first: what is there once is no session's.
    let all = |numbers: std::ops::Range<usize>| -> Vec<(OwnedFd, Arc<RemoteGpu>)> {
        let next = AtomicUsize::new(numbers.start);
        std::thread::scope(|scope| {
            let work = || {
                let mine = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| numbers.contains(number));
                let serve = |number| {
                    let (lifeline, credential) = register(&run.join("admin.sock"), &format!("t{number}"));
                    let gpu = remote_gpu::connect_as(&run.join("session.sock"), credential).unwrap();
                    gpu.request(Request::MemoryInfo).unwrap();
                    (lifeline, gpu)
                };
                std::iter::from_fn(mine).map(serve).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    };
    let first = all(0..1);
    let before = [daemon.pid(), device].map(look);
    let others = all(1..TENANTS + 1);
    println!("{TENANTS} tenants with a session each after {:?}", begin.elapsed());
    let listed = installation.sessions().unwrap();
    assert_eq!(listed.len(), TENANTS + 1, "all of them, whoever asks among so many");
    let after = [daemon.pid(), device].map(look);
    let memory = |all: &[(u64, usize); 2]| all.iter().map(|(memory, _)| memory).sum::<u64>();
    let each = (memory(&after) - memory(&before)) / TENANTS as u64;
    let files = [0, 1].map(|at| after[at].1 - before[at].1);
    println!("each takes {each} KiB; control process and device process: {files:?} descriptors for {TENANTS}");
    assert!(each <= KIB_EACH, "{before:?} {after:?}");
    // Some are open for a moment.
    assert!(files[0] <= FILES_OF_CONTROL * TENANTS + 20, "{files:?}");
    assert!(files[1] <= FILES_EACH * TENANTS + 20, "{files:?}");
    drop((first, others));
    until("all to be gone", || installation.sessions()?.is_empty().then_some(()));
}
