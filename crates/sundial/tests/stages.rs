//! What starts a daemon of its own: benchmarks, demonstrations.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::{Installation, stderr, until};

mod support;

/// A program in place of one that is built elsewhere.
fn stands_in(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_benchmark_leaves_the_users_daemon_alone() {
    let installation = Installation::new("");
    let place = installation.folder.join("place");
    let probe = format!(
        "echo \"$SUNDIAL_SOCKET\" >> {}; while read -r asked; do echo '{{\"seconds\": 1}}'; done",
        place.display()
    );
    stands_in(&installation.folder.join("sundial-probe"), &probe);
    let programs = installation.folder.join("none");
    let output = installation.output(&["bench", "--json", "--rounds", "1", "--programs", programs.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows.iter().any(|row| row["name"] == "launch"), "{rows:?}");
    let sockets = fs::read_to_string(place).unwrap();
    // Who begins first is not said; the native one has no socket.
    let mut lines: Vec<&str> = sockets.lines().collect();
    lines.sort_unstable();
    let [native, tenant] = lines[..] else { panic!("{sockets}") };
    assert!(native.is_empty() && !tenant.is_empty(), "{sockets}");
    assert!(!installation.folder.join("run").exists(), "it has asked for a daemon there");
    assert!(!Path::new(tenant).exists(), "its own is gone");
}

/// Ended with it, if nothing else ends it.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes that a process has started, and has not waited for.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whether a process runs a program with such a name.
fn runs(pid: u32, name: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).any(|word| Path::new(&*String::from_utf8_lossy(word)).ends_with(name))
}

/// Whether a process has ended, even if nobody has asked how.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
}

#[test]
fn nothing_of_a_demonstration_that_is_killed_goes_on() {
    let installation = Installation::new("");
    let qemu = installation.folder.join("qemu");
    fs::create_dir(&qemu).unwrap();
    for name in ["complete", "vmlinuz", "initramfs.cpio"] {
        fs::write(qemu.join(name), "").unwrap();
    }
    stands_in(&qemu.join("busybox"), "cat > /dev/null");
    stands_in(&qemu.join("qemu-system-x86_64"), "exec sleep 1000");
    fs::write(installation.folder.join("guest.tar"), "").unwrap();
    stands_in(&installation.folder.join("sundial-tenant"), "exec sleep 1000");
    let temporary = installation.folder.join("tmp");
    fs::create_dir(&temporary).unwrap();
    let start = || {
        let mut demo: Command = installation.sundial(&["demo", "--vms", "--seconds", "5", "--json", "--qemu"]);
        demo.arg(&qemu).arg("--guest").arg(installation.folder.join("guest.tar")).env("TMPDIR", &temporary);
        Started(demo.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    };
    let mut demo = start();
    let pid = demo.0.id();
    let find = |name| children(pid).into_iter().find(|child| runs(*child, name));
    let daemon = until("its daemon", || find("serve"));
    let machine = until("its virtual machine", || find("1000"));
    demo.0.kill().unwrap();
    demo.0.wait().unwrap();
    until("the daemon's end", || has_ended(daemon).then_some(()));
    until("the machine's end", || has_ended(machine).then_some(()));
    // What it leaves in files is removed by the next; what others left there is not.
    let left = temporary.join(format!("sundial-demo-{pid}"));
    let others = ["sundial-demo-of-mine", "sundial-bench-1"].map(|name| temporary.join(name));
    others.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    assert!(left.exists());
    // Where another process of that daemon's ends a moment later than it, the one after the next removes it.
    until("its folder to go", || {
        let next = start();
        let own = temporary.join(format!("sundial-demo-{}", next.0.id()));
        until("the next to have looked", || own.exists().then_some(()));
        (!left.exists()).then_some(())
    });
    assert!(others.iter().all(|folder| folder.exists()));
}
