//! GMedia (`examples/cuda/gmedia.cu`): pictures whose surfaces are mapped and unmapped all the time are the same to the bit
//! whichever way they come to the GPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Daemon, bin_dir, cuda_examples, text, wait_for};
use serde_json::Value;

fn gmedia() -> Option<PathBuf> {
    let found = cuda_examples().map(|folder| folder.join("gmedia"));
    if found.is_none() {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
    }
    found
}

/// What it tells; it must have found its results right.
fn told(mut command: Command, program: &Path, arguments: &[&str]) -> Value {
    let output = command.arg("--").arg(program).args(arguments).arg("--json").output().expect("sundial run");
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    let told: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    assert_eq!(told["passed"], true, "{told}");
    told
}

/// Ways to the GPU, by name: for guests, those in which page tables are followed.
struct Ways {
    daemon: Daemon,
    guests: Vec<(String, PathBuf)>,
}

impl Ways {
    fn new() -> Ways {
        let daemon = Daemon::start(&["--gpu", "soft:2g"]);
        let guest =
            |(name, how): (&str, &[&str])| (name.to_owned(), daemon.vgpu(name, &[&["--mem", "192m"], how].concat()));
        let ways: [(&str, &[&str]); 9] = [
            ("fv", &[]),
            ("pv", &["--scheme", "pv"]),
            ("fv-naive", &["--scheme", "fv-naive"]),
            ("strict", &["--trap", "bar"]),
            ("relaxed", &["--trap", "snapshot"]),
            ("auto", &["--trap", "auto"]),
            ("fault", &["--trap", "fault", "--shadow", "relaxed", "--rebuild", "dynamic"]),
            ("decode", &["--shadow", "strict"]),
            ("hybrid", &["--trap", "decode", "--rebuild", "static:20"]),
        ];
        let guests = ways.map(guest).to_vec();
        Ways { daemon, guests }
    }

    fn commands(&self) -> Vec<(&str, Command)> {
        let mut native = Command::new(bin_dir().join("sundial"));
        native.args(["run", "--native"]);
        let mut session = self.daemon.sundial();
        session.args(["run", "--mem", "192m"]);
        let guests = self.guests.iter().map(|(scheme, socket)| {
            let mut command = self.daemon.sundial();
            command.args(["run", "--vgpu"]).arg(socket);
            (scheme.as_str(), command)
        });
        [("native", native), ("session", session)].into_iter().chain(guests).collect()
    }
}

#[test]
fn transcoding_gives_the_same_bits_everywhere() {
    let Some(program) = gmedia() else { return };
    let ways = Ways::new();
    let folder = ways.daemon.folder();
    let config = folder.join("short.conf");
    let short = "# five pictures\nresolution = 208x112\ntarget-resolution=130x80\nframes = 5\ncheck = 5\ngroup = 4\n";
    std::fs::write(&config, short).expect("written");
    let mut native = None;
    for (way, command) in ways.commands() {
        let target = folder.join(way);
        let [config, target] = [&config, &target].map(|path| path.to_str().expect("a plain name"));
        let told = told(command, &program, &["--config", config, "--threads", "2", "--target", target]);
        let pictures = std::fs::read(target).expect("a target");
        // A header, and five pictures of 4:2:0.
        let head = pictures.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        assert!(pictures.starts_with(b"YUV4MPEG2 W130 H80 F30000:1000 "), "{way}");
        assert_eq!(pictures.len() - head, 5 * ("FRAME\n".len() + 130 * 80 * 3 / 2), "{way}");
        assert!(told["psnr"].as_f64().expect("a number") > 28.0, "{way}: {told}");
        assert!(told["psnr_source"].as_f64().expect("a number") > 26.0, "{way}: {told}");
        let same = (pictures, told["psnr"].clone(), told["bytes"].clone());
        assert!(native.get_or_insert_with(|| same.clone()) == &same, "{way} differs from native: {told}");
    }
    // What came out can go in again.
    let again = folder.join("native");
    let again = ["--source", again.to_str().expect("a plain name"), "--frames", "3", "--check", "3"];
    let (_, command) = ways.commands().swap_remove(0);
    assert_eq!(told(command, &program, &again)["source"], "130x80");
}

#[test]
fn surfaces_that_come_and_go_hold_what_was_copied_there() {
    let Some(program) = gmedia() else { return };
    let ways = Ways::new();
    for memory in ["host", "device"] {
        for (way, command) in ways.commands() {
            let arguments =
                ["--case", "churn", "--resolution", "240p", "--surfaces", "24", "--frames", "100", "--threads", "2"];
            let told = told(command, &program, &[&arguments[..], &["--memory", memory]].concat());
            assert_eq!(told["case"], "churn", "{way}");
            // Pages are mapped for each picture: the host's are no more than it takes.
            let picture = 432 * 240 * 3 / 2;
            let mapped = told["mapped_bytes"].as_u64().expect("a number");
            assert!(if memory == "host" { mapped - picture < 4096 } else { mapped == 2 << 20 }, "{way}: {told}");
        }
    }
}

/// A virtual GPU, as the listing has it.
fn listed(daemon: &Daemon, name: &str) -> Value {
    daemon.vgpus().into_iter().find(|vgpu| vgpu["name"] == name).expect("it is there")
}

#[test]
fn a_policy_changes_while_surfaces_come_and_go() {
    let Some(program) = gmedia() else { return };
    let daemon = Daemon::start(&["--gpu", "soft:2g"]);
    for trap in ["tracker", "fault", "decode"] {
        let socket = daemon.vgpu(trap, &["--mem", "192m", "--trap", trap]);
        let set = |policy: &[&str]| daemon.sundial().args(["vgpu", "set", trap]).args(policy).output().expect("set");
        assert_eq!(listed(&daemon, trap)["trap_in_effect"], Value::Null, "there is no guest");
        let mut command = daemon.sundial();
        command.args(["run", "--vgpu"]).arg(&socket).arg("--").arg(&program);
        command.args([
            "--case",
            "churn",
            "--resolution",
            "240p",
            "--surfaces",
            "64",
            "--frames",
            "4000",
            "--threads",
            "2",
        ]);
        let mut churning = command.arg("--json").stdout(std::process::Stdio::piped()).spawn().expect("gmedia");
        while listed(&daemon, trap)["trap_in_effect"] != trap {
            assert!(churning.try_wait().expect("a child").is_none(), "{trap}: it has ended, and nothing was noticed");
            std::thread::yield_now();
        }
        let policies: [(&[&str], &str, &str); 5] = [
            (&["--rebuild", "full"], "hybrid", "full"),
            (&["--shadow", "relaxed", "--rebuild", "dynamic"], "relaxed", "dynamic"),
            (&["--rebuild", "static:3"], "relaxed", "static:3"),
            (&["--rebuild", "segmented"], "relaxed", "segmented"),
            (&["--shadow", "hybrid"], "hybrid", "segmented"),
        ];
        let mut turns = 0;
        while churning.try_wait().expect("a child").is_none() {
            let (policy, shadow, rebuild) = policies[turns % policies.len()];
            let done = set(policy);
            assert!(done.status.success(), "{}", text(&done));
            let line = listed(&daemon, trap);
            assert_eq!((&line["shadow"], &line["rebuild"]), (&shadow.into(), &rebuild.into()), "{line}");
            turns += 1;
        }
        let output = churning.wait_with_output().expect("gmedia");
        let told: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
        assert_eq!(told["passed"], true, "{trap}: {told}");
        let line = listed(&daemon, trap);
        assert!(line["rebuilds_written"].as_u64() > Some(0), "{line}");
        println!("{trap}: {turns} changes; {line}");
        // What cannot be is told, and changes nothing.
        let strict = set(&["--shadow", "strict"]);
        assert_eq!(strict.status.success(), trap == "decode", "{}", text(&strict));
    }
    let wrong = ["vgpu", "create", "x", "--mem", "64m", "--trap", "bar", "--shadow", "relaxed"];
    let refused = daemon.sundial().args(wrong).output().expect("vgpu create");
    assert!(!refused.status.success() && text(&refused).contains("--trap auto"), "{}", text(&refused));
}

#[test]
fn large_surfaces_can_be_mapped_entry_by_entry() {
    let Some(program) = gmedia() else { return };
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    // Each store is followed as it happens: the device is told of each page by itself.
    let socket = daemon.vgpu("strict", &["--mem", "192m", "--trap", "bar"]);
    let mut command = daemon.sundial();
    command.args(["run", "--vgpu"]).arg(&socket);
    told(command, &program, &["--case", "churn", "--resolution", "720p", "--surfaces", "48", "--frames", "60"]);
}

#[test]
fn what_a_guest_did_to_its_page_tables_can_be_replayed() {
    const FRAMES: u64 = 20;
    let Some(program) = gmedia() else { return };
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let socket = daemon.vgpu("one", &["--mem", "192m", "--trap", "bar"]);
    let file = daemon.folder().join("trace");
    let mut recording = daemon.sundial().args(["vgpu", "trace", "one"]).arg(&file).spawn().expect("vgpu trace");
    // The first line says that all that comes is seen.
    let begun = || std::fs::metadata(&file).ok().filter(|file| file.len() > 0);
    wait_for("the trace's first line", Duration::from_secs(60), begun);
    let mut command = daemon.sundial();
    command.args(["run", "--vgpu"]).arg(&socket);
    let frames = FRAMES.to_string();
    told(command, &program, &["--case", "churn", "--resolution", "240p", "--surfaces", "8", "--frames", &frames]);
    assert!(daemon.sundial().args(["vgpu", "destroy", "one"]).status().expect("vgpu destroy").success());
    assert!(recording.wait().expect("vgpu trace").success());
    let output = daemon
        .sundial()
        .args(["bench", "--rounds", "1", "--json", "shadow", "--trap-cost", "5us", "--trace"])
        .arg(&file)
        .output()
        .expect("bench shadow");
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("rows");
    let row = |scheme: &str, rebuild: &str| {
        let found = rows.iter().find(|row| row["scheme"] == scheme && row["rebuild"] == rebuild);
        found.unwrap_or_else(|| panic!("{scheme} {rebuild} in {rows:?}")).clone()
    };
    let number = |row: &Value, what: &str| row[what].as_u64().unwrap_or_else(|| panic!("{what} in {row}"));
    let (strict, segmented) = (row("strict", "-"), row("hybrid", "segmented"));
    // A surface is 38 pages, mapped and unmapped for each picture, and work is submitted in between.
    let least = 2 * 38 * FRAMES;
    assert!(number(&strict, "updates") >= least && number(&strict, "submissions") >= FRAMES, "{strict}");
    assert_eq!(number(&strict, "traps"), number(&strict, "updates"));
    assert!(number(&segmented, "traps") < number(&strict, "traps"), "{segmented}");
}

#[test]
fn what_is_asked_for_wrongly_is_told() {
    let Some(program) = gmedia() else { return };
    for (arguments, said) in [
        (&["--resolution", "7x9"][..], "is no size"),
        (&["--threads", "0"], "from 1 to 64"),
        (&["--bitrate"], "needs a value"),
        (&["--source", "/nowhere"], "cannot read /nowhere"),
        (&["--polish", "1"], "--help"),
    ] {
        let output = Command::new(&program).args(arguments).output().expect("gmedia");
        assert!(output.status.code() == Some(2) && text(&output).contains(said), "{arguments:?}: {}", text(&output));
    }
}
