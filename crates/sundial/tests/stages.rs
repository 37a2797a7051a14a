//! What starts a daemon of its own: benchmarks, demonstrations.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use support::{Installation, stderr};

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
    let [native, tenant] = sockets.lines().collect::<Vec<_>>()[..] else { panic!("{sockets}") };
    assert!(native.is_empty() && !tenant.is_empty(), "{sockets}");
    assert!(!installation.folder.join("run").exists(), "it has asked for a daemon there");
    assert!(!Path::new(tenant).exists(), "its own is gone");
}
