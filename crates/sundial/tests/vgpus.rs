//! Virtual GPUs as their users see them: `vgpu create`, `list`, `set`, `destroy`, and guests that connect.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu::{Command as GpuCommand, ContextId, DevAddr, Gpu, QueueId, SlotId};
use hostmem::Memfd;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support::{BOUND, Installation, LO, PTX, launch, prepare, prepare_on, stderr, until};
use vfio_user::{Client, ClientOptions, pci};

mod support;

/// `BOOT_0` of a TU104, revision A1.
const BOOT_0: u32 = 0x1640_00a1;
/// Vendor and device in its configuration space.
const IDS: u32 = 0x1eb8_10de;

/// `vgpu create`: the path that it prints.
fn create(installation: &Installation, options: &[&str]) -> PathBuf {
    let output = installation.output(&[&["vgpu", "create"], options].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

fn list(installation: &Installation) -> Vec<Value> {
    let output = installation.output(&["vgpu", "list", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    value["vgpus"].as_array().unwrap().clone()
}

fn line(installation: &Installation, name: &str) -> Value {
    list(installation).into_iter().find(|line| line["name"] == name).unwrap()
}

fn connect(socket: &Path) -> Client {
    Client::connect(socket, &ClientOptions::default()).unwrap()
}

fn read32(client: &Client, region: u32, offset: u64) -> u32 {
    let mut word = [0; 4];
    client.read(region, offset, &mut word).unwrap();
    u32::from_le_bytes(word)
}

/// What `command` says when it fails.
fn refused(installation: &Installation, arguments: &[&str]) -> String {
    let output = installation.output(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    stderr(&output)
}

/// A kernel's result comes back right.
fn runs_right(gpu: &dyn Gpu, round: u32) {
    let buffer = Memfd::create("buffer", 4096).unwrap().map().unwrap();
    let params = [&LO.to_le_bytes()[..], &round.to_le_bytes()].concat();
    let signal = GpuCommand::Signal { slot: SlotId(1), value: round.into() };
    gpu.submit(QueueId(1), &[launch(0, &params), signal]).unwrap();
    gpu.wait(ContextId(1), SlotId(1), round.into(), Some(BOUND)).unwrap();
    gpu.read(buffer.range(0, 256), DevAddr(LO)).unwrap();
    assert_eq!(buffer.u32_at(63 * 4).load(Ordering::Relaxed), round + 63);
}

#[test]
fn a_guest_finds_a_gpu_and_whoever_lists_it_finds_the_guest() {
    let installation = Installation::new(
        "[profiles.small]\nmem = \"16m\"\nshare = \"20%\"\nscheme = \"fv-naive\"\npriority = \"high\"\n",
    );
    let _daemon = installation.serve();
    let socket = create(&installation, &["one", "--mem", "32m", "--share", "30%", "--priority", "low"]);
    let found = std::fs::metadata(&socket).unwrap();
    assert!(found.file_type().is_socket() && found.permissions().mode() & 0o777 == 0o600, "{found:?}");
    let small = create(&installation, &["two", "--profile", "small", "--share", "25%"]);
    let vgpus = list(&installation);
    let [one, two] = &vgpus[..] else { panic!("{vgpus:?}") };
    assert_eq!((&one["name"], &one["scheme"], &one["state"]), (&"one".into(), &"fv".into(), &"idle".into()));
    assert_eq!(one["socket"], socket.to_str().unwrap());
    assert_eq!((&one["memory_used"], &one["memory_limit"]), (&(32 << 20).into(), &(32 << 20).into()));
    assert_eq!((&one["guest"], &one["share_entitled"]), (&Value::Null, &30.0.into()));
    assert_eq!((&two["scheme"], &two["memory_limit"]), (&"fv-naive".into(), &(16 << 20).into()));
    assert_eq!((&one["priority"], &two["priority"]), (&"low".into(), &"high".into()));
    // What is said counts more than the profile; and who goes first has what nobody was promised.
    assert_eq!(two["share_entitled"], 70.0);
    let changed = installation.output(&["vgpu", "set", "two", "--priority", "low"]);
    assert!(changed.status.success() && changed.stdout.is_empty(), "{}", stderr(&changed));
    let two = line(&installation, "two");
    assert_eq!((&two["priority"], &two["share_entitled"]), (&"low".into(), &25.0.into()));

    let client = connect(&socket);
    assert_eq!(read32(&client, pci::CONFIG, 0), IDS);
    assert_eq!(read32(&client, pci::BAR0, 0) & 0xfff0_0000, BOOT_0 & 0xfff0_0000, "a Turing");
    client.write(pci::BAR1, 0x1000, b"kept").unwrap();
    // Its memory becomes the device's: descriptors travel, and the confined process may look at them and map them.
    let memory = Memfd::create("guest", 1 << 20).unwrap().into_fd();
    client.map_dma(4 << 30, 1 << 20, (true, true), Some((memory.as_fd(), 0))).unwrap();
    let interrupt = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    client.connect_irqs(pci::MSIX, 0, &[interrupt.as_fd()]).unwrap();
    let one = line(&installation, "one");
    assert_eq!((&one["guest"], &one["state"]), (&std::process::id().into(), &"attached".into()));
    assert!(one["traps"].as_u64().unwrap() >= 2, "{one}");
    for field in ["channels", "shadow_updates", "entries_scanned", "hypercalls", "share_received"] {
        assert_eq!(one[field].as_f64(), Some(0.0), "{field}");
    }
    let table = installation.output(&["vgpu", "list"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("attached"), "{}", stderr(&table));

    // One guest at a time; the next finds nothing of the last.
    assert!(Client::connect(&socket, &ClientOptions::default()).is_err());
    drop(client);
    let next = connect(&socket);
    let mut bytes = [1; 4];
    next.read(pci::BAR1, 0x1000, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    assert_eq!(read32(&connect(&small), pci::CONFIG, 0), IDS);
    drop(next);
    until("no guest", || (line(&installation, "one")["state"] == "idle").then_some(()));
}

#[test]
fn what_cannot_be_is_said() {
    let installation = Installation::new("[profiles.small]\nmem = \"16m\"\nshare = \"20%\"\n");
    let _daemon = installation.serve();
    let socket = create(&installation, &["one", "--mem", "128m", "--share", "60%"]);
    for (arguments, expected) in [
        (&["vgpu", "create", "one", "--mem", "16m"][..], "named `one` is present"),
        (&["vgpu", "create", "two", "--mem", "16m", "--share", "50%"], "60 % of the GPU's time is given to others"),
        (&["run", "--share", "50%", "--", "true"], "60 % of the GPU's time is given to others"),
        (&["run", "--name", "one", "--", "true"], "named `one` is present"),
        (&["vgpu", "create", "two", "--mem", "1g"], "is more than the GPU's"),
        (&["vgpu", "create", "two", "--mem", "200m"], "are no 209715200 bytes of VRAM"),
        (&["vgpu", "create", "two", "--mem", "3m"], "not whole 2 MiB"),
        (&["vgpu", "create", "two"], "--mem"),
        (&["vgpu", "create", "a/b", "--mem", "16m"], "letters"),
        (&["vgpu", "create", "two", "--profile", "large"], "no profile named `large`"),
        (&["run", "--profile", "large", "--", "true"], "no profile named `large`"),
        (
            &["vgpu", "create", "two", "--mem", "16m", "--scheme", "pass-through"],
            "is all of the GPU: its memory is 256 MiB",
        ),
        (&["vgpu", "create", "two", "--scheme", "pass-through"], "others are on it: one"),
        (&["vgpu", "create", "two", "--mem", "16m", "--scheme", "best"], "fv-naive"),
        (&["vgpu", "create", "two", "--mem", "16m", "--gpu", "soft:1g"], "leave --gpu out"),
        (&["vgpu", "set", "one", "--mem", "130m"], "that it was created with"),
        (&["vgpu", "set", "one", "--mem", "3m"], "whole 2 MiB"),
        (&["vgpu", "set", "three", "--mem", "16m"], "no virtual GPU named `three`"),
        (&["vgpu", "set", "one", "--share", "101%"], "is not a share"),
        (&["vgpu", "set", "three", "--share", "10%"], "no virtual GPU named `three`"),
        (&["vgpu", "set", "three", "--priority", "low"], "no virtual GPU named `three`"),
        (&["vgpu", "set", "one", "--priority", "most"], "a priority is one of low, normal, high"),
        (&["vgpu", "set", "one"], "--share"),
        (&["vgpu", "destroy", "three"], "no virtual GPU named `three`"),
    ] {
        let said = refused(&installation, arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert_eq!(list(&installation).len(), 1, "nothing is left of what was refused");
    // `run` knows profiles as well.
    let tenant = installation.register(&["--profile", "small"]);
    let gpu = tenant.connect().unwrap();
    let sessions = installation.sessions().unwrap();
    assert_eq!((&sessions[0]["memory_limit"], &sessions[0]["share_entitled"]), (&(16 << 20).into(), &20.0.into()));
    assert!(installation.output(&["vgpu", "set", "one", "--share", "80%"]).status.success());
    assert!(refused(&installation, &["vgpu", "set", "one", "--share", "81%"]).contains("20 %"));
    until("its new share", || (line(&installation, "one")["share_entitled"] == 80.0).then_some(()));
    drop(gpu);
    tenant.end();
    // All of it is free again when `destroy` returns.
    assert!(installation.output(&["vgpu", "destroy", "one"]).status.success());
    assert!(!socket.exists() && list(&installation).is_empty());
    for _ in 0..5 {
        create(&installation, &["one", "--mem", "128m", "--share", "100%"]);
        assert!(installation.output(&["vgpu", "destroy", "one"]).status.success());
    }
}

#[test]
fn memory_changes_hands_while_a_guest_runs() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let socket = create(&installation, &["one", "--mem", "128m"]);
    let memory = |expected: u64| {
        let one = line(&installation, "one");
        let of = |field: &str| one[field].as_u64().unwrap() >> 20;
        assert_eq!((of("memory_used"), of("memory_limit")), (expected, expected), "{one}");
    };
    let set = |mem: &str| {
        let output = installation.output(&["vgpu", "set", "one", "--mem", mem]);
        assert!(output.status.success(), "{mem}: {}", stderr(&output));
    };
    // Without a guest nobody is asked. What it does not have others may have.
    set("32m");
    memory(32);
    let socket_two = create(&installation, &["two", "--mem", "160m"]);
    assert!(refused(&installation, &["vgpu", "set", "one", "--mem", "128m"]).contains("there is not as much VRAM"));
    memory(32);
    assert!(installation.output(&["vgpu", "destroy", "two"]).status.success());
    assert!(!socket_two.exists());
    set("128m");
    // A guest that knows nothing of it is not asked.
    let client = connect(&socket);
    assert!(refused(&installation, &["vgpu", "set", "one", "--mem", "64m"]).contains("no driver at work"));
    memory(128);
    drop(client);
    until("no guest", || (line(&installation, "one")["state"] == "idle").then_some(()));
    // One with our driver gives it back and takes it again.
    let gpu = Arc::new(pci_gpu::VfioUserGpu::connect(&socket).unwrap());
    let driver = gpu_driver::Driver::start(gpu).unwrap();
    let free = driver.counts().vram_free;
    set("64m");
    memory(64);
    assert_eq!(driver.counts().vram_free, free - (64 << 20));
    let tenant = installation.tenant(&["--mem", "100m"]);
    set("96m");
    memory(96);
    until("the guest to have it", || (driver.counts().vram_free == free - (32 << 20)).then_some(()));
    drop(tenant);
    // The next device process makes it as it was.
    let device = daemon.device().unwrap();
    kill_process(device, Signal::KILL).unwrap();
    until("another device process", || daemon.device().filter(|now| *now != device));
    drop(driver);
    until("it is there again", || (line(&installation, "one")["state"] == "idle").then_some(()));
    memory(96);
    set("128m");
    memory(128);
    assert!(installation.output(&["vgpu", "destroy", "one"]).status.success());
    create(&installation, &["one", "--mem", "128m"]);
}

#[test]
fn the_whole_gpu_is_one_guests_until_it_is_destroyed() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let device = daemon.device().unwrap();
    let whole = ["whole", "--scheme", "pass-through"];
    let tenant = installation.register(&[]);
    let said = refused(&installation, &[&["vgpu", "create"], &whole[..]].concat());
    assert!(said.contains("others are on it"), "{said}");
    tenant.end();
    for round in 0..2 {
        let socket = create(&installation, &whole);
        let one = line(&installation, "whole");
        assert_eq!((&one["scheme"], &one["memory_used"]), (&"pass-through".into(), &(256 << 20).into()), "{one}");
        for arguments in [
            &["vgpu", "create", "two", "--mem", "16m"][..],
            &["run", "--", "true"],
            &["vgpu", "create", "two", "--mem", "256m", "--scheme", "pass-through"],
        ] {
            let said = refused(&installation, arguments);
            assert!(said.contains("passed through to `whole`"), "{arguments:?}: {said}");
        }
        assert!(refused(&installation, &["vgpu", "set", "whole", "--mem", "16m"]).contains("all of the GPU"));
        let gpu = Arc::new(pci_gpu::VfioUserGpu::connect(&socket).unwrap());
        let backing: Arc<dyn device_io::DeviceBacking> = gpu;
        assert_eq!(backing.vram_bytes(), 256 << 20);
        let driver = gpu_driver::Driver::start(Arc::clone(&backing)).unwrap();
        let client = driver.open(gpu_driver::ClientConfig::default()).unwrap();
        prepare_on(&*client, PTX);
        runs_right(&*client, round + 1);
        assert_eq!(line(&installation, "whole")["state"], "attached");
        backing.write_vram(device_io::VramOffset(200 << 20), &[0x5a; 4096]);
        assert!(installation.output(&["vgpu", "destroy", "whole"]).status.success());
        assert_eq!(backing.read32(0), u32::MAX, "its device is gone");
        drop((client, driver));
        // It is everybody's, and nothing is left on it.
        let (tenant, session) = installation.tenant(&["--mem", "240m"]);
        prepare(&session, PTX);
        runs_right(&*session, round + 7);
        drop(session);
        tenant.end();
    }
    assert_eq!(daemon.device(), Some(device), "it is the same process still");
    // It comes again with the next device process.
    let socket = create(&installation, &whole);
    kill_process(device, Signal::KILL).unwrap();
    until("another device process", || daemon.device().filter(|now| *now != device));
    assert_eq!(read32(&connect(&socket), pci::CONFIG, 0), IDS);
    assert!(installation.output(&["vgpu", "destroy", "whole"]).status.success());
    create(&installation, &["one", "--mem", "16m"]);
}

#[test]
fn a_socket_may_be_anywhere_and_goes_with_its_virtual_gpu() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let elsewhere = installation.folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let path = elsewhere.join("gpu.sock");
    let options = ["one", "--mem", "16m", "--socket", path.to_str().unwrap()];
    assert_eq!(create(&installation, &options), path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let client = connect(&path);
    assert_eq!(read32(&client, pci::CONFIG, 0), IDS);
    let again = ["vgpu", "create", "two", "--mem", "16m", "--socket", path.to_str().unwrap()];
    assert!(refused(&installation, &again).contains("cannot listen"));
    // A guest is no reason to stay.
    assert!(installation.output(&["vgpu", "destroy", "one"]).status.success());
    assert!(client.read(pci::BAR0, 0, &mut [0; 4]).is_err());
    assert!(!path.exists() && list(&installation).is_empty());
    std::fs::write(&path, "not a socket").unwrap();
    assert!(refused(&installation, &again).contains("no socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "not a socket");
}

#[test]
fn whatever_a_guest_says_others_go_on() {
    let installation = Installation::new("");
    let mut daemon = installation.serve();
    let device = daemon.device().unwrap();
    let bad = create(&installation, &["bad", "--mem", "16m"]);
    let good = connect(&create(&installation, &["good", "--mem", "16m"]));
    let (tenant, gpu) = installation.tenant(&["--mem", "64m"]);
    prepare(&gpu, PTX);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 1..40u32 {
        if round % 2 == 0 {
            // No protocol at all.
            let mut socket = UnixStream::connect(&bad).unwrap();
            let bytes: Vec<u8> = (0..next() % 4096).flat_map(|_| next().to_le_bytes()).collect();
            let _ = socket.write_all(&bytes);
        } else if let Ok(client) = Client::connect(&bad, &ClientOptions::default()) {
            // The protocol, and nonsense in registers and memory.
            for _ in 0..200 {
                let (region, data) = ((next() % 9) as u32, next().to_le_bytes());
                let offset = if region == pci::BAR0 { (next() % (1 << 24)) & !3 } else { next() % (1 << 25) };
                let _ = client.write(region, offset, &data[..4]);
                let _ = client.read(region, next() % (1 << 24), &mut [0; 8]);
            }
            let file = Memfd::create("hole", 8192).unwrap().into_fd();
            let _ = client.map_dma(next(), next(), (true, true), Some((file.as_fd(), next())));
            let _ = client.reset();
        }
        runs_right(&*gpu, round);
        assert_eq!(read32(&good, pci::CONFIG, 0), IDS);
    }
    assert_eq!(daemon.device(), Some(device), "it is the same process still");
    until("the bad one to be left", || (line(&installation, "bad")["state"] == "idle").then_some(()));
    assert_eq!(read32(&connect(&bad), pci::CONFIG, 0), IDS);
    drop(gpu);
    tenant.end();
    daemon.kill();
    // The device process ends with the daemon, a moment later.
    until("a guest that outlives the daemon to find its device gone", || {
        good.read(pci::BAR0, 0, &mut [0; 4]).is_err().then_some(())
    });
}

#[test]
fn virtual_gpus_outlive_the_device_process() {
    let installation = Installation::new("");
    let daemon = installation.serve();
    let socket = create(&installation, &["one", "--mem", "64m", "--share", "40%"]);
    let before = connect(&socket);
    let device = daemon.device().unwrap();
    kill_process(device, Signal::KILL).unwrap();
    until("another device process", || daemon.device().filter(|now| *now != device));
    assert!(before.read(pci::BAR0, 0, &mut [0; 4]).is_err());
    let after = connect(&socket);
    assert_eq!(read32(&after, pci::CONFIG, 0), IDS);
    let one = line(&installation, "one");
    assert_eq!((&one["state"], &one["share_entitled"]), (&"attached".into(), &40.0.into()));
    // Destroyed while there is no device process, it does not come again.
    drop(after);
    let device = daemon.device().unwrap();
    kill_process(device, Signal::KILL).unwrap();
    assert!(installation.output(&["vgpu", "destroy", "one"]).status.success());
    until("another device process", || daemon.device().filter(|now| *now != device));
    assert!(list(&installation).is_empty() && !socket.exists());
    create(&installation, &["one", "--mem", "128m", "--share", "100%"]);
}

#[test]
fn a_daemon_that_create_started_stays_for_it() {
    let installation = Installation::new("linger_seconds = 1\n");
    let create = installation
        .sundial(&["vgpu", "create", "one", "--mem", "16m", "--gpu", "soft:128m"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(create.status.success(), "{}", stderr(&create));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(line(&installation, "one")["state"], "idle");
    assert!(installation.output(&["vgpu", "destroy", "one"]).status.success());
    until("the daemon to end", || installation.sessions().is_none().then_some(()));
}
