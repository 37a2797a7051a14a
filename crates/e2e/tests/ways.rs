//! How a program comes to the daemon changes how fast it is and where errors show, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::io::Write;
use std::process::{Command, Stdio};

use e2e::{Daemon, bin_dir, cuda_examples, text};

/// Ways, and where the fault of a kernel shows.
const WAYS: [(&[&str], &str); 8] = [
    (&[], "synchronization"),
    (&["--copies", "staged"], "synchronization"),
    (&["--copies", "staged", "--block-size", "64k"], "synchronization"),
    (&["--copies", "staged", "--block-size", "16m"], "synchronization"),
    (&["--transport", "socket", "--copies", "staged"], "synchronization"),
    (&["--submission", "answered", "--transport", "socket", "--copies", "staged", "--timed"], "synchronization"),
    (&["--submission", "immediate"], "launch"),
    (&["--submission", "immediate", "--transport", "socket", "--copies", "staged"], "launch"),
];

/// Where a probe says that its kernel's fault shows.
fn fault(command: &mut Command) -> String {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut probe = piped.spawn().unwrap();
    probe.stdin.take().unwrap().write_all(b"fault 1\n").unwrap();
    let output = probe.wait_with_output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn errors_show_at_the_call_where_calls_are_immediate() {
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let probe = bin_dir().join("sundial-probe");
    for (way, place) in WAYS {
        let told = fault(daemon.sundial().arg("run").args(way).arg("--").arg(&probe));
        assert!(told.contains(&format!("the fault shows at the {place}")), "{way:?}: {told}");
        assert!(
            told.contains(", by thread (0,0,0) of block (0,0,0), at line 8 of PTX, in kernel fault"),
            "{way:?}: {told}"
        );
    }
    // NVIDIA's way to ask for the same, here without a daemon.
    let mut native = Command::new(bin_dir().join("sundial"));
    let told = fault(native.args(["run", "--native", "--"]).arg(&probe).env("CUDA_LAUNCH_BLOCKING", "1"));
    assert!(told.contains("the fault shows at the launch"), "{told}");
}

#[test]
fn results_are_the_same_whatever_the_way() {
    let Some(programs) = cuda_examples() else {
        return eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
    };
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    for name in ["matrix_mul", "radix_sort", "streams", "managed", "device_printf"] {
        let mut expected = None;
        for (way, _) in WAYS {
            let output = daemon.sundial().arg("run").args(way).arg("--").arg(programs.join(name)).output().unwrap();
            assert!(output.status.success(), "{name}, {way:?}: {}", text(&output));
            let said = String::from_utf8(output.stdout).unwrap();
            // Blocks that print do so in any order.
            let mut said: Vec<String> = said.lines().map(str::to_owned).collect();
            said.sort_unstable();
            assert_eq!(*expected.get_or_insert(said.clone()), said, "{name}, {way:?}");
        }
    }
}

#[test]
fn a_daemon_says_the_way_and_shows_no_more_than_its_policy() {
    let daemon = Daemon::start(&["--gpu", "soft:512m", "--copies", "staged", "--submission", "immediate"]);
    let probe = bin_dir().join("sundial-probe");
    let told = fault(daemon.sundial().args(["run", "--"]).arg(&probe));
    assert!(told.contains("the fault shows at the launch"), "{told}");
    // When calls return is the tenant's own affair; what it is shown is not.
    let told = fault(daemon.sundial().args(["run", "--submission", "delayed", "--"]).arg(&probe));
    assert!(told.contains("the fault shows at the synchronization"), "{told}");
    let refused = daemon.sundial().args(["run", "--copies", "mapped", "--"]).arg(&probe).output().unwrap();
    assert!(!refused.status.success() && text(&refused).contains("shows no tenant its VRAM"), "{}", text(&refused));
    let refused = daemon.sundial().args(["run", "--native", "--timed", "--"]).arg(&probe).output().unwrap();
    assert!(!refused.status.success() && text(&refused).contains("the way to the daemon"), "{}", text(&refused));
}
