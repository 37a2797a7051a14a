//! Processes that connect and say nothing, many of them: whoever says its hello gets in.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpu::{Gpu, Request};
use support::Installation;
use transport::unix;

mod support;

/// In the environment of a process that says nothing: the sockets' directory.
const SILENT: &str = "SUNDIAL_TEST_SILENT";
/// More than one user has places.
const PROCESSES: usize = 12;
const CONNECTIONS: usize = 100;

/// Not a test: what those processes do. Whoever is cut off comes again.
#[test]
fn silent() {
    let Some(directory) = std::env::var_os(SILENT).map(PathBuf::from) else { return };
    let connect = |name: &str| unix::connect(&directory.join(name)).ok();
    let mut connections: Vec<(&str, Option<OwnedFd>)> =
        ["session.sock", "admin.sock"].repeat(CONNECTIONS).into_iter().map(|name| (name, connect(name))).collect();
    std::fs::write(directory.join(format!("silent-{}", std::process::id())), "").unwrap();
    loop {
        for (name, connection) in &mut connections {
            if connection.as_ref().is_none_or(unix::hung_up) {
                *connection = connect(name);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ended when dropped.
struct Silent(Child);

impl Silent {
    fn start(directory: &Path) -> Silent {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["silent", "--exact"]).env(SILENT, directory).stdout(Stdio::null()).stderr(Stdio::null());
        Silent(command.spawn().unwrap())
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_that_say_nothing_keep_nobody_out() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let directory = installation.folder.join("run");
    let silent: Vec<Silent> = (0..PROCESSES).map(|_| Silent::start(&directory)).collect();
    support::until("all of them to be there", || {
        let here = |silent: &Silent| directory.join(format!("silent-{}", silent.0.id())).exists();
        silent.iter().all(here).then_some(())
    });
    for round in 0..5 {
        let begin = Instant::now();
        let (tenant, gpu) = installation.tenant(&["--name", &format!("speaks-{round}")]);
        assert!(gpu.request(Request::MemoryInfo).is_ok());
        assert_eq!(installation.sessions().unwrap().len(), 1);
        println!("beside {PROCESSES} processes that say nothing, in and listed after {:?}", begin.elapsed());
        drop(gpu);
        tenant.end();
        support::until("its session to end", || installation.sessions()?.is_empty().then_some(()));
    }
}
