//! Kernels of tenants are compiled in processes of their own, which go with who wanted it.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::HashMap;
use std::os::unix::fs::{DirEntryExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpu::{Command as GpuCommand, ContextId, DevAddr, Gpu, QueueId, SlotId};
use hostmem::Memfd;
use remote_gpu::RemoteGpu;
use rustix::process::Pid;
use support::{BOUND, Daemon, Installation, LO, PTX, launch, prepare, until};

mod support;

/// A kernel that takes long to compile.
fn bomb() -> String {
    let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry bomb(.param .u64 p)\n{\n\
        .reg .u64 %rd<3>;\n.reg .f32 %f<3>;\nld.param.u64 %rd1, [p];\nld.global.f32 %f1, [%rd1];\n"
        .to_owned();
    for _ in 0..60_000 {
        text += "fma.rn.f32 %f1, %f1, %f1, %f1;\n";
    }
    text + "st.global.f32 [%rd1], %f1;\nret;\n}\n"
}

/// The compilers, and what each has used of a processor.
fn compilers(daemon: &Daemon<'_>) -> HashMap<Pid, Duration> {
    let all = daemon.children("compile").into_iter();
    all.filter_map(|pid| Some((pid, sandbox::cpu_time(pid.as_raw_nonzero().get())?))).collect()
}

/// Those that have been at work since `before`.
fn busy(daemon: &Daemon<'_>, before: &HashMap<Pid, Duration>) -> Vec<Pid> {
    let used = |(pid, cpu): &(Pid, Duration)| cpu.saturating_sub(before.get(pid).copied().unwrap_or_default());
    let at_work = compilers(daemon).into_iter().filter(|compiler| used(compiler) > Duration::from_millis(300));
    at_work.map(|(pid, _)| pid).collect()
}

/// Runs `fill` once, with a block of its own, and checks what it wrote.
fn fill(gpu: &RemoteGpu, round: u32) {
    let buffer = Memfd::create("buffer", 4096).unwrap().map().unwrap();
    let params = [&LO.to_le_bytes()[..], &round.to_le_bytes()].concat();
    let GpuCommand::Launch { module, kernel, grid, shared_bytes, cooperative, cluster, .. } = launch(0, &params) else {
        panic!()
    };
    let block = [32 + round, 1, 1];
    let launch =
        GpuCommand::Launch { module, kernel, grid, block, shared_bytes, cooperative, cluster, params: &params };
    // Rounds come again; what is waited for may not have been there before.
    static SIGNALS: AtomicU64 = AtomicU64::new(1);
    let value = SIGNALS.fetch_add(1, Ordering::Relaxed);
    gpu.submit(QueueId(1), &[launch, GpuCommand::Signal { slot: SlotId(1), value }]).unwrap();
    gpu.wait(ContextId(1), SlotId(1), value, Some(BOUND)).unwrap();
    gpu.read(buffer.range(0, 256), DevAddr(LO)).unwrap();
    assert_eq!(buffer.u32_at(31 * 4).load(Ordering::Relaxed), round + 31);
}

#[test]
fn a_compilation_ends_with_its_client_and_disturbs_nobody_meanwhile() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let device = until("the device process", || daemon.device());
    let (neighbour, gpu) = installation.tenant(&["--name", "neighbour", "--share", "50%"]);
    prepare(&gpu, PTX);
    let mut rounds = 1..;
    let mut fill_next = || fill(&gpu, rounds.next().unwrap());
    fill_next();

    for _ in 0..3 {
        let before = compilers(&daemon);
        let (tenant, theirs) = installation.tenant(&["--name", "bomber", "--share", "50%"]);
        prepare(&theirs, &bomb());
        theirs.submit(QueueId(1), &[launch(0, &LO.to_le_bytes())]).unwrap();
        let [compiler] = until("the bomb to be compiled", || <[Pid; 1]>::try_from(busy(&daemon, &before)).ok());
        confined(compiler);
        // New kernels, which must be compiled, too.
        for _ in 0..2 {
            let begin = Instant::now();
            fill_next();
            println!("a first launch beside the bomb: {:?}", begin.elapsed());
        }
        assert_eq!(busy(&daemon, &before), [compiler], "the bomb is compiled all the while");
        drop(theirs);
        let left = Instant::now();
        until("its compiler to be gone", || (!daemon.children("compile").contains(&compiler)).then_some(()));
        println!("the compiler was gone {:?} after its client", left.elapsed());
        tenant.end();
        fill_next();
    }
    drop(gpu);
    neighbour.end();
    until("nothing but what stands ready", || (daemon.children("compile").len() == 2).then_some(()));
    assert_eq!(daemon.device(), Some(device));
}

/// A compiler at work has nothing but its socket, and may do nothing but compute.
fn confined(compiler: Pid) {
    let pid = compiler.as_raw_nonzero().get();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(
        environment.split('\0').all(|entry| entry.is_empty() || entry.starts_with("SUNDIAL_LOG=")),
        "{environment}"
    );
    for open in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = std::fs::read_link(open.unwrap().path()).unwrap().to_string_lossy().into_owned();
        let known = ["socket:", "/dev/null", "/memfd:"].iter().any(|kind| target.starts_with(kind));
        assert!(known || target.starts_with("pipe:"), "{target}");
    }
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let soft_and_hard = |limit: &str| -> [Option<u64>; 2] {
        let line = limits.lines().find(|line| line.starts_with(limit)).unwrap();
        let mut words = line[26..].split_whitespace().map(|word| word.parse().ok());
        [words.next().unwrap(), words.next().unwrap()]
    };
    // A hard limit is one that it cannot raise, whatever it has become.
    for (limit, most) in [
        ("Max data size", 5 << 30),
        ("Max address space", 6 << 30),
        ("Max open files", 16),
        ("Max file size", 256 << 20),
        ("Max locked memory", 0),
        ("Max core file size", 0),
    ] {
        let [soft, hard] = soft_and_hard(limit);
        assert!(soft <= hard && soft.is_some() && hard.is_some_and(|hard| hard <= most), "{limits}");
    }
    assert!(soft_and_hard("Max cpu time")[0].is_some(), "{limits}");
}

#[test]
fn what_was_compiled_outlives_the_device_process() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let cache = installation.folder.join("cache/sundial");
    // A file that is written again is another file.
    let images = || -> Vec<u64> { std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().ino()).collect() };
    let mut kept = Vec::new();
    for _ in 0..2 {
        let (tenant, gpu) = installation.tenant(&[]);
        prepare(&gpu, PTX);
        fill(&gpu, 1);
        kept.push(until("the code to be kept", || <[u64; 1]>::try_from(images()).ok()));
        drop(gpu);
        tenant.end();
        let device = daemon.device().unwrap();
        rustix::process::kill_process(device, rustix::process::Signal::KILL).unwrap();
        until("another device process", || daemon.device().filter(|pid| *pid != device));
    }
    assert!(kept[0] == kept[1] && kept[1] == images()[..], "the second device process found it there");
    let private = || std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777 == 0o700;
    assert!(private());
    // Somebody tidies up: it is made again.
    let (tenant, gpu) = installation.tenant(&[]);
    prepare(&gpu, PTX);
    std::fs::remove_dir_all(&cache).unwrap();
    fill(&gpu, 2);
    until("the code to be kept anew", || std::fs::read_dir(&cache).ok()?.next()?.ok());
    assert!(private());
    drop(gpu);
    tenant.end();
}

#[test]
fn without_a_cache_kernels_are_compiled_all_the_same() {
    let installation = Installation::new("[code_cache]\nkeep = false\n");
    let _daemon = installation.serve();
    let (tenant, gpu) = installation.tenant(&[]);
    prepare(&gpu, PTX);
    for round in 1..4 {
        fill(&gpu, round);
    }
    assert_eq!(installation.sessions().unwrap()[0]["kernels_interpreted"], 0);
    assert!(!installation.folder.join("cache/sundial").exists());
    drop(gpu);
    tenant.end();
}
