//! A virtual machine with virtual GPUs: QEMU boots a stock Debian kernel, which finds them on its PCI bus; programs that nvcc has
//! compiled run on all of them at once, beside a session on the host, and take what they take in a process of the host.
//!
//! One machine for everything, for booting takes longest. Skipped where no QEMU was fetched (`cargo xtask qemu`); its programs
//! are skipped where there are none.

#![expect(clippy::unwrap_used, reason = "a test whose ground gives way has failed")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::{Daemon, Tenant, bin_dir, cuda_examples, guest_archive, text};
use gpu_spec::regs::{self, identity, vf};
use qemu::{Event, Machine};
use serde_json::{Value, json};

/// The GPUs of the machine, in the order of their slots: how they are virtualized, and MiB of VRAM.
const GPUS: [(&str, u64); 3] = [("fv-naive", 32), ("fv", 64), ("pv", 128)];
/// What runs on them at once, one round after another. Small programs, for a machine without the processor's help is slow; the
/// smallest where every byte of VRAM is a trap.
const ROUNDS: [[&str; 3]; 3] = [
    ["block_reduce", "vector_add", "vector_add"],
    ["device_printf", "managed", "managed"],
    ["managed", "block_reduce", "block_reduce"],
];

/// Prints what the machine has of each GPU, as lines `SLOT NAME VALUE...`.
fn look() -> String {
    let (boot, magic, bytes) = (regs::PMC_BOOT_0, identity::MAGIC_WORD, identity::VRAM_LO);
    format!(
        r#"
lspci -nv -d 10de:
cd /sys/bus/pci/devices
gpus=$(grep -l 0x10de */vendor | cut -d / -f 1)
value=0x11110000
for gpu in $gpus; do
    echo 1 > $gpu/enable
    echo $gpu is $(cat $gpu/vendor) $(cat $gpu/device) $(cat $gpu/class) $(cat $gpu/revision)
    bar=0
    while read -r start end flags; do
        [ $((end)) = 0 ] || echo $gpu bar$bar $((end - start + 1)) $((flags & 0x10000c))
        eval at$bar=$start
        bar=$((bar + 1))
    done < $gpu/resource
    echo $gpu boot $(devmem $((at0 + {boot})) 32)
    echo $gpu magic $(devmem $((at0 + {magic})) 32)
    echo $gpu bytes $(devmem $((at0 + {bytes})) 32)
    devmem $((at1 + 0x123450)) 32 $value
    devmem $((at1 + 0x123454)) 16 0xbeef
    value=$((value + 0x1111))
done
for gpu in $gpus; do
    at1=$(sed -n 2p $gpu/resource | cut -d ' ' -f 1)
    echo $gpu vram $(devmem $((at1 + 0x123450)) 64)
    echo 1 > $gpu/reset
    echo $gpu wiped $(devmem $((at1 + 0x123450)) 64)
done
"#
    )
}

/// Runs the programs of one round after another, and tells when none runs; prints lines
/// `SLOT PROGRAM STATUS BEGIN END WHAT IT SAID`, with times in seconds.
fn run_programs(rounds: &[&[&str]]) -> String {
    let mut script = String::from(
        r#"
mkdir /opt
tar -xf /guest.tar -C /opt
rm /guest.tar
now() { cut -d ' ' -f 1 /proc/uptime; }
on() {
    begin=$(now)
    said=$(SUNDIAL_VGPU=pci:$1 timeout 60 /opt/sundial/sundial-guest /programs/$2 2>&1)
    status=$?
    echo $1 $2 $status $begin $(now) $said
}
round() {
    for gpu in $gpus; do
        on $gpu $1 &
        shift
    done
    wait
}
tell begin
"#,
    );
    for programs in rounds {
        script += &format!("round {0}\ntell {0}\n", programs.join(" "));
    }
    script
}

/// Has each GPU interrupt the machine by wire. The last that is done: from then on QEMU traps every access to BARs.
fn interrupt() -> String {
    let [vf, leaf, set, top, trigger] =
        [regs::VF_BASE, vf::INTR_LEAF, vf::INTR_LEAF_EN_SET, vf::INTR_TOP_EN_SET, vf::INTR_LEAF_TRIGGER];
    format!(
        r#"
cd /sys/bus/pci/devices
# Programs have forbidden the line, and have left what they had made when they ended.
for gpu in $gpus; do
    echo 1 > $gpu/reset
    printf '\007\000' | dd of=$gpu/config bs=1 seek=4 conv=notrunc 2> /dev/null
done
echo 10de 1eb8 > /sys/bus/pci/drivers/uio_pci_generic/new_id
for gpu in $gpus; do
    at0=$(sed -n 1p $gpu/resource | cut -d ' ' -f 1)
    registers=$((at0 + {vf}))
    exec 3< /dev/$(ls $gpu/uio)
    devmem $((registers + {top})) 32 1
    devmem $((registers + {set})) 32 0x20
    devmem $((registers + {trigger})) 32 5
    echo $gpu interrupts $(timeout 10 dd bs=4 count=1 <&3 2> /dev/null | hexdump -e '"%d"')
    echo $gpu pending $(devmem $((registers + {leaf})) 32)
    devmem $((registers + {leaf})) 32 0x20
    exec 3<&-
done
"#
    )
}

/// What mediation has taken of each virtual GPU, by name.
type Counts = BTreeMap<String, Taken>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taken {
    /// Accesses that were trapped, but for those that ask whether something has happened.
    traps: u64,
    shadow_updates: u64,
    entries_scanned: u64,
    hypercalls: u64,
}

impl Taken {
    fn since(self, before: Taken) -> Taken {
        Taken {
            traps: self.traps - before.traps,
            shadow_updates: self.shadow_updates - before.shadow_updates,
            entries_scanned: self.entries_scanned - before.entries_scanned,
            hypercalls: self.hypercalls - before.hypercalls,
        }
    }
}

fn counts(daemon: &Daemon) -> Counts {
    let of = |vgpu: &Value| {
        let count = |key: &str| vgpu[key].as_u64().unwrap();
        let taken = Taken {
            traps: count("traps") - count("looks"),
            shadow_updates: count("shadow_updates"),
            entries_scanned: count("entries_scanned"),
            hypercalls: count("hypercalls"),
        };
        (vgpu["name"].as_str().unwrap().to_owned(), taken)
    };
    daemon.vgpus().iter().map(of).collect()
}

/// What has been seen from the host while programs ran in the machine.
struct Beside<'a> {
    daemon: &'a Daemon,
    /// The counts when it began, and after each program.
    counts: RefCell<Vec<Counts>>,
    session: RefCell<Option<Tenant>>,
}

impl Beside<'_> {
    fn told(&self, words: &str) {
        eprintln!("the machine: {words}");
        if words == "begin" {
            let options = ["--name", "beside", "--mem", "64m", "--share", "25%"];
            *self.session.borrow_mut() = Some(self.daemon.tenant(&options, &["matrices", "--seconds", "6"]));
            e2e::wait_for("the session to have work done", Duration::from_secs(20), || {
                let sessions = self.daemon.ps();
                let session = sessions.iter().find(|session| session["tenant"] == "beside")?;
                (session["kernels"].as_u64() > Some(0)).then_some(())
            });
        }
        self.counts.borrow_mut().push(counts(self.daemon));
    }
}

/// What a GPU of the machine is, by its lines.
fn check_device(found: &HashMap<(&str, &str), &str>, slot: &str, index: usize, said: &str) {
    let expect = |name: &str, value: &str| {
        assert_eq!(found.get(&(slot, name)).copied(), Some(value), "{name} of {slot}:\n{said}");
    };
    let bytes = GPUS[index].1 << 20;
    expect("is", "0x10de 0x1eb8 0x120000 0xa1");
    // Sizes; and which of them is 64 bits wide and may be prefetched.
    expect("bar0", &format!("{} 0", 16 << 20));
    expect("bar1", &format!("{bytes} {}", 0x10_000c));
    expect("bar4", &format!("{} 0", 8 << 10));
    expect("boot", &format!("0x{:08X}", regs::BOOT_0_TU104));
    expect("magic", &format!("0x{:08X}", identity::MAGIC));
    expect("bytes", &format!("0x{bytes:08X}"));
    // Each has VRAM of its own, and can be reset alone.
    expect("vram", &format!("0x0000BEEF{:08X}", 0x1111_0000 + 0x1111 * index));
    expect("wiped", "0x0000000000000000");
    expect("interrupts", "1");
    expect("pending", "0x00000020");
}

/// Each program was right, and those of a round ran at the same time.
fn check_programs(slots: &[&str], said: &str) {
    for programs in ROUNDS {
        let (mut last_begin, mut first_end) = (0.0f64, f64::MAX);
        for (slot, program) in slots.iter().zip(programs) {
            let prefix = format!("{slot} {program} ");
            let line = said.lines().find_map(|line| line.strip_prefix(&prefix));
            let line = line.unwrap_or_else(|| panic!("{prefix}:\n{said}"));
            assert!(line.starts_with("0 ") && line.contains("PASSED"), "{prefix}{line}\n{said}");
            assert!(!line.contains("ERROR") && !line.contains("WARN"), "{prefix}{line}\n{said}");
            let times: Vec<f64> = line.split(' ').skip(1).take(2).map(|time| time.parse().unwrap()).collect();
            (last_begin, first_end) = (last_begin.max(times[0]), first_end.min(times[1]));
        }
        assert!(last_begin < first_end, "{programs:?} did not run at once:\n{said}");
    }
}

/// What mediation takes of a program is the same in a machine as in a process of the host, as far as it can be.
fn compare(scheme: &str, in_machine: Taken, in_process: Taken) {
    let near = |a: u64, b: u64, apart: u64| assert!(a.abs_diff(b) <= apart, "{in_machine:?}, {in_process:?}");
    assert_eq!((in_machine.hypercalls > 0, in_machine.entries_scanned > 0), (scheme == "pv", scheme != "pv"));
    near(in_machine.hypercalls, in_process.hypercalls, 0);
    if scheme == "fv-naive" {
        // A processor traps with each 8 bytes that it moves to or from VRAM; what a process moves is one message.
        assert!(in_machine.traps > 100 * in_process.traps, "{in_machine:?}, {in_process:?}");
    } else {
        // A program with more threads rings once for what two of them have submitted, now and then.
        near(in_machine.traps, in_process.traps, 4);
    }
    // Where a program's addresses lie is the kernel's choice, and decides how many tables lead there; and so do entries scanned,
    // of which some are read at each look.
    near(in_machine.shadow_updates, in_process.shadow_updates, 12);
    near(in_machine.entries_scanned, in_process.entries_scanned, in_process.entries_scanned / 2);
}

/// What a program takes in a process of the host, on the same virtual GPU.
fn in_a_process(daemon: &Daemon, name: &str, socket: &Path, program: &Path) -> Taken {
    let before = counts(daemon)[name];
    let output = daemon.sundial().args(["run", "--vgpu"]).arg(socket).arg("--").arg(program).output().unwrap();
    assert!(output.status.success() && text(&output).contains("PASSED"), "{}", text(&output));
    e2e::wait_for("the guest to be gone", Duration::from_secs(10), || {
        daemon.vgpus().iter().any(|vgpu| vgpu["name"] == name && vgpu["guest"].is_null()).then_some(())
    });
    counts(daemon)[name].since(before)
}

#[test]
fn a_virtual_machine_runs_programs_on_its_gpus() {
    let Some(qemu) = e2e::qemu() else {
        eprintln!("skipped: no QEMU (cargo xtask qemu fetches one)");
        return;
    };
    let mut script = look();
    let mut files = Vec::new();
    let programs = cuda_examples().zip(guest_archive());
    if let Some((folder, archive)) = &programs {
        files.push((PathBuf::from("guest.tar"), archive.clone()));
        let names: BTreeSet<&str> = ROUNDS.into_iter().flatten().collect();
        files.extend(names.into_iter().map(|name| (PathBuf::from("programs").join(name), folder.join(name))));
        script += &run_programs(&ROUNDS.each_ref().map(|programs| programs.as_slice()));
    } else {
        eprintln!("skipped: programs in the machine (cargo xtask guest and examples make what they need)");
    }
    script += &interrupt();

    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let sockets = GPUS
        .map(|(scheme, mib)| daemon.vgpu(scheme, &["--mem", &format!("{mib}m"), "--share", "25%", "--scheme", scheme]));
    let beside = Beside { daemon: &daemon, counts: RefCell::default(), session: RefCell::default() };
    let start = Instant::now();
    let machine = Machine { gpus: &sockets, memory: 1024, files: &files, preload: None, script: &script };
    let mut running = qemu.start(&machine).unwrap();
    let said = loop {
        match running.next(start + Duration::from_secs(240)) {
            Ok(Event::Told(words)) => beside.told(&words),
            Ok(Event::Through(said)) => break said,
            Err(error) => panic!("{error}"),
        }
        running.go_on();
    };
    eprintln!("{said}\nthe machine was through after {:?}", start.elapsed());

    let mut slots = Vec::new();
    let mut found = HashMap::new();
    for line in said.lines().filter(|line| line.starts_with("0000:")) {
        let (slot, rest) = line.split_once(' ').unwrap();
        let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
        if !slots.contains(&slot) {
            slots.push(slot);
        }
        found.insert((slot, name), value);
    }
    assert_eq!(slots.len(), GPUS.len(), "{said}");
    slots.iter().enumerate().for_each(|(index, slot)| check_device(&found, slot, index, &said));
    // One line for each in what a user sees.
    let listed = said.lines().filter(|line| line.contains(" 1200: 10de:1eb8 (rev a1)")).count();
    assert_eq!(listed, GPUS.len(), "{said}");

    let Some((folder, _)) = programs else { return };
    check_programs(&slots, &said);
    // It has begun before the first program, and has gone on beside it.
    assert_eq!(beside.session.take().unwrap().finish()["verified"], true);
    for (programs, around) in ROUNDS.iter().zip(beside.counts.borrow().windows(2)) {
        for (((name, _), socket), program) in GPUS.iter().zip(&sockets).zip(programs) {
            let in_machine = around[1][*name].since(around[0][*name]);
            let in_process = in_a_process(&daemon, name, socket, &folder.join(program));
            eprintln!("{program} on {name}: in the machine {in_machine:?}, in a process {in_process:?}");
            compare(name, in_machine, in_process);
        }
    }
}

/// Boots a machine with these GPUs, runs programs on them at once, and says what `vgpu list` says of each while it is on.
fn list_beside(daemon: &Daemon, gpus: &[PathBuf], preload: Option<&Path>) -> Option<BTreeMap<String, Value>> {
    let (qemu, (folder, archive)) = e2e::qemu().zip(cuda_examples().zip(guest_archive()))?;
    let mut script = String::from("cd /sys/bus/pci/devices\ngpus=$(grep -l 0x10de */vendor | cut -d / -f 1)\n");
    script += &run_programs(&[&["block_reduce"; 2]]);
    let files = [("guest.tar".into(), archive), ("programs/block_reduce".into(), folder.join("block_reduce"))];
    let machine = Machine { gpus, memory: 1024, files: &files, preload, script: &script };
    let mut running = qemu.start(&machine).unwrap();
    let until = Instant::now() + Duration::from_secs(240);
    let mut lines = BTreeMap::new();
    let said = loop {
        match running.next(until) {
            Ok(Event::Told(_)) => {
                let named = |line: Value| (line["name"].as_str().unwrap().to_owned(), line);
                lines = daemon.vgpus().into_iter().map(named).collect();
            }
            Ok(Event::Through(said)) => break said,
            Err(error) => panic!("{error}"),
        }
        running.go_on();
    };
    assert_eq!(said.matches("PASSED").count(), gpus.len(), "{said}");
    assert!(!said.contains("ERROR") && !said.contains("WARN"), "{said}");
    Some(lines)
}

#[test]
fn what_a_machine_stores_into_page_tables_is_noticed() {
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let library = bin_dir().join("sundial-lib/libsundial_qemu.so");
    for (preload, in_effect) in [(Some(library.as_path()), "tracker"), (None, "snapshot")] {
        let vgpu = |trap: &str| {
            let name = format!("{trap}-{in_effect}");
            (daemon.vgpu(&name, &["--mem", "64m", "--share", "25%", "--trap", trap]), name)
        };
        let gpus = ["announced", "tracker"].map(vgpu);
        let Some(lines) = list_beside(&daemon, &gpus.clone().map(|(socket, _)| socket), preload) else {
            eprintln!("skipped: no QEMU, or no programs for its machines (cargo xtask qemu, guest and examples)");
            return;
        };
        let [other, line] = gpus.map(|(_, name)| lines[&name].clone());
        let pages = |key: &str| line[key].as_u64().unwrap();
        assert_eq!((&line["trap"], &line["trap_in_effect"]), (&json!("tracker"), &json!(in_effect)), "{line}");
        // Only those tables are compared that were written; else all are.
        let noticed = in_effect == "tracker";
        assert!(pages("rebuilds_written") > 0 || !noticed, "{line}");
        assert_eq!(pages("rebuilds_unknown") == 0, noticed, "{line}");
        // The other GPU has not asked, and has nothing from the library.
        assert_eq!(other["trap_in_effect"], "announced", "{other}");
    }
}
