//! Programs that use several GPUs.

use std::process::{Command, Output};

use e2e::{bin_dir, cuda_examples, text};

/// Runs `peers` natively, with two software GPUs.
fn peers(visible: Option<&str>, arguments: &[&str]) -> Option<Output> {
    let Some(folder) = cuda_examples() else {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
        return None;
    };
    let mut command = Command::new(bin_dir().join("sundial"));
    command.args(["run", "--native", "--gpu", "soft:256m", "--gpu", "soft:192m", "--", "timeout", "120"]);
    command.arg(folder.join("peers")).args(arguments);
    command.env_remove("CUDA_VISIBLE_DEVICES").envs(visible.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
    Some(command.output().expect("sundial run"))
}

#[test]
fn a_program_uses_two_gpus() {
    for visible in [None, Some("1,0")] {
        let Some(output) = peers(visible, &[]) else { return };
        let said = text(&output);
        assert!(output.status.success() && said.contains("2 devices") && said.contains("PASSED"), "{said}");
    }
}

#[test]
fn a_program_sees_what_cuda_visible_devices_says() {
    let list = |visible: &str| Some(text(&peers(Some(visible), &["--list"])?));
    let Some(both) = list("1,0") else { return };
    let lines: Vec<&str> = both.lines().filter(|line| line.contains("MiB")).collect();
    assert!(lines.len() == 2 && lines[0].contains("192 MiB") && lines[1].contains("256 MiB"), "{both}");
    // As `nvidia-smi -L` shows UUIDs, and shortened.
    let uuid = lines[0].rsplit("GPU-").next().expect("a UUID");
    let [a, b, c, d, e] = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]];
    for visible in ["1", &format!("GPU-{a}-{b}-{c}-{d}-{e}"), &format!("GPU-{a}")] {
        let one = list(visible).expect("programs");
        assert!(one.contains("1 devices (cudaSuccess)") && one.contains("192 MiB"), "{visible}: {one}");
    }
    for visible in ["", "-1", "2,0", "0,0"] {
        let none = list(visible).expect("programs");
        assert!(none.contains("0 devices (cudaErrorNoDevice)"), "{visible}: {none}");
    }
    // A program that needs two says so itself.
    let output = peers(Some("0"), &[]).expect("programs");
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
}
