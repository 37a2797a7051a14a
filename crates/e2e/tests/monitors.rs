//! Programs that show GPUs, as PyPI has them, beside programs that use one: they find the tenant's share, by `libnvidia-ml.so.1`.

use std::path::Path;
use std::process::{Command, Output};

use e2e::{Daemon, bin_dir, monitors, text};
use serde_json::Value;

/// Runs `$1` (a monitor with its arguments) beside a program that uses the GPU until that has had its answer.
const BESIDE: &str = r#"
"$TENANT" matrices --seconds 100 > /dev/null &
program=$!
echo "pid $program"
"$@"
code=$?
kill $program
exit $code
"#;

/// Waits until a process has had time of the GPU; then says what it is told.
const ASK: &str = r#"
import json, sys, time
import pynvml as nvml
nvml.nvmlInit()
end = time.monotonic() + 60
while True:
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        first, second = nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(gpu, 0)
        except nvml.NVMLError_NotFound:
            samples = []
        def refused(call):
            try:
                return call(gpu)
            except nvml.NVMLError as error:
                return str(error)
        gpus.append({
            "name": nvml.nvmlDeviceGetName(gpu),
            "uuid": nvml.nvmlDeviceGetUUID(gpu),
            "bus": nvml.nvmlDeviceGetPciInfo(gpu).busId,
            "capability": nvml.nvmlDeviceGetCudaComputeCapability(gpu),
            "total": first.total, "used": first.used, "free": first.free, "second": [second.total, second.used, second.free],
            "busy": nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "processes": [[each.pid, each.usedGpuMemory] for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
            "first": [[each.pid, each.usedGpuMemory] for each in nvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu)],
            "drawing": len(nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)),
            "samples": [[each.pid, each.smUtil] for each in samples],
            "mig": refused(nvml.nvmlDeviceGetMigMode),
            "power": refused(nvml.nvmlDeviceGetPowerUsage),
        })
    busy = all(gpu["processes"] and gpu["busy"] and any(each[1] for each in gpu["samples"]) for gpu in gpus)
    if len(sys.argv) > 1 or busy or time.monotonic() > end:
        break
    time.sleep(0.1)
driver = nvml.nvmlSystemGetCudaDriverVersion()
nvml.nvmlShutdown()
print(json.dumps({"driver": driver, "gpus": gpus}))
"#;

fn python(folder: &Path) -> String {
    folder.join("python").to_string_lossy().into_owned()
}

/// What a monitor says beside a program that uses the tenant's GPU, and that program's process.
fn beside(daemon: &Daemon, options: &[&str], monitor: &[&str]) -> (Output, i64) {
    let mut command = daemon.sundial();
    command.arg("run").args(options).args(["--", "timeout", "120", "sh", "-c", BESIDE, "sh"]).args(monitor);
    command.env("TENANT", bin_dir().join("sundial-tenant"));
    let output = command.output().expect("sundial run");
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let pid = said.lines().find_map(|line| line.strip_prefix("pid ")?.parse().ok()).expect("a process");
    (output, pid)
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stdout);
    let from = said.find('{').unwrap_or_else(|| panic!("{}", text(output)));
    serde_json::from_str(&said[from..]).unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

fn skipped() {
    eprintln!("skipped: no programs that show GPUs (cargo xtask test has them from PyPI)");
}

#[test]
fn a_tenant_sees_its_share_as_its_gpu() {
    let Some(folder) = monitors() else { return skipped() };
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let python = python(&folder);
    // Somebody else is there, and is not seen.
    let neighbour = daemon.tenant(&["--name", "neighbour", "--mem", "128m"], &["matrices", "--seconds", "100"]);
    let (output, pid) = beside(&daemon, &["--name", "ours", "--mem", "256m"], &[&python, "-c", ASK]);
    let told = json(&output);
    let [gpu] = &told["gpus"].as_array().expect("GPUs")[..] else { panic!("{told}") };
    assert_eq!((&told["driver"], &gpu["name"]), (&13050.into(), &"Sundial Software GPU".into()));
    assert_eq!(gpu["bus"], "00000000:01:00.0");
    let uuid = gpu["uuid"].as_str().expect("a UUID");
    assert!(uuid.len() == 40 && uuid.starts_with("GPU-"), "{uuid}");
    let number = |value: &Value| value.as_u64().expect("a number");
    let (total, used, free) = (number(&gpu["total"]), number(&gpu["used"]), number(&gpu["free"]));
    assert_eq!((total, used + free), (256 << 20, 256 << 20));
    assert_eq!(gpu["second"][0], total);
    let [process] = &gpu["processes"].as_array().expect("processes")[..] else { panic!("{told}") };
    assert_eq!(process[0], pid);
    assert!((1 << 20..=used.max(1 << 20)).contains(&number(&process[1])), "{told}");
    assert_eq!(gpu["first"][0][0], pid);
    assert_eq!(gpu["samples"][0][0], pid);
    assert!((1..=100).contains(&number(&gpu["busy"])), "{told}");
    assert_eq!(gpu["drawing"], 0);
    assert_eq!((&gpu["power"], &gpu["mig"]), (&"Not Supported".into(), &"Not Supported".into()));
    drop(neighbour);
}

#[test]
fn monitors_show_it() {
    let Some(folder) = monitors() else { return skipped() };
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let python = python(&folder);
    // Each comes when the program is there.
    let then = |program: &str, arguments: &str| {
        let program = folder.join(program);
        format!("\"{python}\" -c \"$ASK\" > /dev/null && \"{python}\" \"{}\" {arguments}", program.display())
    };
    let show = |program: &str, arguments: &str| {
        let script = format!("ASK=$(cat <<'END'\n{ASK}\nEND\n)\n{}", then(program, arguments));
        beside(&daemon, &["--mem", "256m"], &["bash", "-c", &script])
    };
    let (output, pid) = show("gpustat", "--json");
    let told = json(&output);
    let gpu = &told["gpus"][0];
    assert_eq!((&gpu["name"], &gpu["memory.total"]), (&"Sundial Software GPU".into(), &256.into()));
    assert!(gpu["utilization.gpu"].as_u64().is_some_and(|percent| (1..=100).contains(&percent)), "{told}");
    assert_eq!((&gpu["processes"][0]["pid"], &gpu["temperature.gpu"]), (&pid.into(), &Value::Null));

    let (output, pid) = show("nvitop", "--once --ascii --colorful");
    let said = text(&output);
    // It cuts long names at their beginning.
    for shown in ["Software GPU", "256.0MiB", &pid.to_string(), "CUDA Driver Version: 13.5"] {
        assert!(said.contains(shown), "{shown}: {said}");
    }
}

#[test]
fn natively_a_program_sees_the_gpu_that_is_in_it() {
    let Some(folder) = monitors() else { return skipped() };
    let run = |options: &[&str], visible: &str| {
        let mut command = Command::new(bin_dir().join("sundial"));
        command.args(["run", "--native"]).args(options).args(["--", "timeout", "60"]).arg(python(&folder));
        command.args(["-c", ASK, "once"]).env("CUDA_VISIBLE_DEVICES", visible).output().expect("sundial run")
    };
    for visible in ["0", "1", ""] {
        let told = json(&run(&["--gpu", "soft:64m", "--gpu", "soft:128m"], visible));
        let totals: Vec<u64> =
            told["gpus"].as_array().expect("GPUs").iter().filter_map(|gpu| gpu["total"].as_u64()).collect();
        assert_eq!(totals, [64 << 20, 128 << 20], "as with the vendor's, whatever CUDA shows");
    }
}

#[test]
fn without_a_daemon_there_is_no_driver() {
    let Some(folder) = monitors() else { return skipped() };
    let output = Command::new(python(&folder))
        .args(["-c", "import pynvml; pynvml.nvmlInit()"])
        .env("LD_LIBRARY_PATH", bin_dir().join("sundial-lib"))
        .env("SUNDIAL_RUNTIME_DIR", "/nonexistent")
        .output()
        .expect("python");
    assert!(text(&output).contains("NVMLError_DriverNotLoaded"), "{}", text(&output));
}
