//! The device process is shot down, again and again.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gpu::{Gpu, GpuError, Request};
use rogue::{Port, Rogue};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Daemon, Installation, until};

mod support;

/// Ends the device process, and waits until it is gone and the daemon knows.
fn shoot(installation: &Installation, daemon: &Daemon<'_>) {
    let device = until("a device process", || daemon.device());
    let known = until("the daemon to answer", || deaths(installation));
    kill_process(device, Signal::KILL).unwrap();
    until("it to be gone", || (daemon.device() != Some(device)).then_some(()));
    until("the daemon to know", || deaths(installation).filter(|deaths| *deaths > known));
}

/// How many device processes have died, as `ps` tells.
fn deaths(installation: &Installation) -> Option<u64> {
    serde_json::from_slice::<Value>(&installation.output(&["ps", "--json"]).stdout).ok()?["device_deaths"].as_u64()
}

#[test]
fn tenants_get_one_clear_error_and_the_next_works_at_once() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    for round in 0..3 {
        let (tenant, gpu) = installation.tenant(&["--name", &format!("victim-{round}")]);
        assert!(gpu.request(Request::MemoryInfo).is_ok());
        shoot(&installation, &daemon);
        let begin = Instant::now();
        // Its next calls all say the same.
        for _ in 0..3 {
            let error = gpu.request(Request::MemoryInfo).unwrap_err();
            assert!(matches!(error, GpuError::Lost { .. }), "{error:?}");
        }
        // No second try: who comes while it is started waits for it.
        let (next, gpu) = installation.tenant(&["--name", &format!("next-{round}")]);
        assert!(gpu.request(Request::MemoryInfo).is_ok());
        println!("round {round}: the next tenant works after {:?}", begin.elapsed());
        drop(gpu);
        next.end();
        tenant.end();
    }
}

#[test]
fn who_registers_while_it_dies_is_known_to_the_next() {
    let installation = Installation::new("most_tenants = 200");
    let daemon = installation.serve();
    std::thread::scope(|scope| {
        let shooting = scope.spawn(|| {
            for _ in 0..4 {
                shoot(&installation, &daemon);
            }
        });
        let mut number = 0;
        while !shooting.is_finished() || number < 8 {
            // Connects as a session of that tenant, at once: panics if its registration was lost, or its session refused.
            // The connection may die with the device process of that moment; the registration does not.
            let tenant = installation.register(&["--name", &format!("t{number}")]);
            until("the tenant to be served", || tenant.connect().ok()?.request(Request::MemoryInfo).ok());
            tenant.end();
            number += 1;
        }
    });
}

/// Whether no thread of a process runs any more: it takes a moment after the signal.
fn are_stopped(process: Pid) -> Option<bool> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).ok()?;
    let stopped = |thread: std::io::Result<std::fs::DirEntry>| -> Option<bool> {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
        // Behind the name, which may have anything in it.
        Some(stat.rsplit_once(')')?.1.trim_start().starts_with('T'))
    };
    threads.map(stopped).try_fold(true, |all, one| Some(all && one?))
}

/// Descriptors in messages that a device process has not received.
fn unread_descriptors(device: Pid) -> Option<usize> {
    let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/0", device.as_raw_nonzero())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("scm_fds:"))?.trim().parse().ok()
}

/// Whoever comes when the device process dies is served by it or by the next, and needs no second try.
#[test]
fn who_is_handed_over_as_it_dies_is_served_by_the_next() {
    const CLIENTS: usize = 8;
    let installation = Installation::new("");
    let daemon = installation.serve();
    let tenant = installation.register(&[]);
    for _ in 0..2 {
        // Before it works, nobody is handed over to it.
        tenant.connect().unwrap().request(Request::MemoryInfo).unwrap();
        let device = until("a device process", || daemon.device());
        // So that it takes nobody any more.
        kill_process(device, Signal::STOP).unwrap();
        until("all its threads to stop", || are_stopped(device)?.then_some(()));
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| tenant.connect())).collect();
            // Of each, its connection and its process lie there unread.
            until("all to be handed over", || (unread_descriptors(device)? >= 2 * CLIENTS).then_some(()));
            kill_process(device, Signal::KILL).unwrap();
            for client in clients {
                client.join().unwrap().unwrap().request(Request::MemoryInfo).unwrap();
            }
        });
    }
    tenant.end();
}

/// The same for guests: whoever connects to a virtual GPU is its guest, whichever device process that takes.
#[test]
fn a_guest_that_is_handed_over_as_it_dies_is_served_by_the_next() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let names = ["one", "two"];
    let sockets = names.map(|name| {
        let output = installation.output(&["vgpu", "create", name, "--mem", "16m"]);
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    });
    let comes = |socket: &String| {
        let port = Port::over(UnixStream::connect(socket.trim()).unwrap());
        // Its registers answer.
        !Rogue::new(port.unwrap()).port.is_gone()
    };
    for _ in 0..2 {
        assert!(sockets.iter().all(comes));
        let device = until("a device process", || daemon.device());
        kill_process(device, Signal::STOP).unwrap();
        until("all its threads to stop", || are_stopped(device)?.then_some(()));
        std::thread::scope(|scope| {
            let guests: Vec<_> = sockets.iter().map(|socket| scope.spawn(|| comes(socket))).collect();
            until("both to be handed over", || (unread_descriptors(device)? >= sockets.len()).then_some(()));
            kill_process(device, Signal::KILL).unwrap();
            assert!(guests.into_iter().all(|guest| guest.join().unwrap()));
        });
    }
}

#[test]
fn a_loop_of_deaths_is_slowed_down_and_reported() {
    let installation = Installation::new("");
    let log = installation.folder.join("log");
    let daemon = installation.serve_with(|command| {
        command.stderr(File::create(&log).unwrap());
    });
    for _ in 0..4 {
        shoot(&installation, &daemon);
    }
    until("the next device process", || daemon.device());
    let begin = Instant::now();
    shoot(&installation, &daemon);
    until("the log to tell", || {
        let text = std::fs::read_to_string(&log).unwrap();
        let told = text.matches("the device process ended").count();
        (told == 5 && text.contains("dies again and again")).then_some(())
    });
    // The fourth costs 250 ms, the fifth 500 ms.
    let (tenant, gpu) = installation.tenant(&[]);
    assert!(gpu.request(Request::MemoryInfo).is_ok());
    println!("served {:?} after the fifth death", begin.elapsed());
    assert!(begin.elapsed() > Duration::from_millis(500), "the start waited");
    assert_eq!(deaths(&installation), Some(5));
    let doctor = String::from_utf8_lossy(&installation.output(&["doctor"]).stdout).into_owned();
    assert!(doctor.contains("has died 5 times"), "{doctor}");
    tenant.end();
}
