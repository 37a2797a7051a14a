//! Guests at work: who has how much of the GPU's time.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rogue::work::{TOUCH, classes, launch};
use rogue::{Port, Rogue, VRAM_VA};
use serde_json::Value;
use support::{Installation, stderr, until};

mod support;

fn said(installation: &Installation, arguments: &[&str]) -> String {
    let output = installation.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A virtual GPU, and a guest whose kernel takes all the time that it gets.
fn busy(installation: &Installation, name: &str, share: &str, scheme: &str) -> Rogue {
    let options = ["vgpu", "create", name, "--mem", "16m", "--share", share, "--scheme", scheme];
    let socket = said(installation, &options);
    let mut rogue = Rogue::new(Port::over(UnixStream::connect(socket.trim()).unwrap()).unwrap());
    let mut space = rogue.space();
    let mut channel = rogue.channel(&mut space, 1);
    rogue.list(&[(1, &[channel])]);
    let program = rogue.load(TOUCH, "touch");
    let endless = rogue.describe(program, 64, 128, &[VRAM_VA + (8 << 20), 0]);
    rogue.submit(&mut channel, &[classes(), launch(endless)].concat());
    rogue
}

fn received(installation: &Installation, name: &str) -> f64 {
    let all: Value = serde_json::from_str(&said(installation, &["vgpu", "list", "--json"])).unwrap();
    let vgpus = all["vgpus"].as_array().unwrap();
    vgpus.iter().find(|vgpu| vgpu["name"] == name).unwrap()["share_received"].as_f64().unwrap()
}

/// Left alone they would have the same.
#[test]
fn guests_get_what_their_shares_say() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let _large = busy(&installation, "large", "60%", "fv");
    let _small = busy(&installation, "small", "20%", "pv");
    // 60 to 20, and then the other way round.
    let is = |wanted: f64| {
        let (large, small) = (received(&installation, "large"), received(&installation, "small"));
        (large + small > 80.0 && (large / small / wanted).ln().abs() < 0.25).then_some(())
    };
    until("three times as much", || is(3.0));
    said(&installation, &["vgpu", "set", "large", "--share", "20%"]);
    said(&installation, &["vgpu", "set", "small", "--share", "60%"]);
    until("a third", || is(1.0 / 3.0));
}

fn usage(installation: &Installation) -> Value {
    serde_json::from_str(&said(installation, &["usage", "--json"])).unwrap()
}

/// GPU seconds of a tenant, and how far all times together are from what went by, as a part of that.
fn metered(installation: &Installation, name: &str) -> (f64, f64) {
    let report = usage(installation);
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    let rows = report["tenants"].as_array().unwrap();
    let had = rows.iter().find(|row| row["tenant"] == name).map_or(0.0, |row| number(row, "gpu_seconds"));
    let tenants: f64 = rows.iter().map(|row| number(row, "gpu_seconds")).sum();
    let wall = number(&report, "wall_seconds");
    let sum = tenants + number(&report, "idle_seconds") + number(&report, "overhead_seconds");
    (had, (sum - wall).abs() / wall)
}

#[test]
fn guests_are_metered_as_sessions_are() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let one = busy(&installation, "one", "60%", "fv");
    let two = busy(&installation, "two", "20%", "pv");
    for name in ["one", "two"] {
        until("time that adds up", || {
            let (had, off) = metered(&installation, name);
            (had > 0.5 && off < 0.01).then_some(())
        });
    }
    drop((one, two));
    let (before, _) = metered(&installation, "one");
    said(&installation, &["vgpu", "destroy", "one"]);
    until("what it had to stay", || {
        let (had, off) = metered(&installation, "one");
        (had >= before && off < 0.01).then_some(())
    });
}

#[test]
fn who_has_the_whole_gpu_has_all_of_its_time() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    said(&installation, &["vgpu", "create", "whole", "--scheme", "pass-through"]);
    until("time of its own", || {
        let (had, off) = metered(&installation, "whole");
        (had > 0.5 && off < 0.01).then_some(())
    });
    said(&installation, &["vgpu", "destroy", "whole"]);
    let (had, _) = metered(&installation, "whole");
    until("idle time that adds up again", || {
        let idle = usage(&installation)["idle_seconds"].as_f64().unwrap();
        let (now, off) = metered(&installation, "whole");
        assert_eq!(now, had, "it is gone");
        (idle > 0.5 && off < 0.01).then_some(())
    });
}

/// A group that is new to the device comes before others for a slice. A guest that puts its work into one new group after the
/// other has no more time than it is given all the same.
#[test]
fn making_groups_earns_nothing() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let _good = busy(&installation, "good", "60%", "fv");
    let mut bad = busy(&installation, "bad", "20%", "fv");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bad = &mut bad;
        let _ends = Ends(&over);
        scope.spawn(|| {
            let mut space = bad.space();
            let mut channel = bad.channel(&mut space, 1);
            let program = bad.load(TOUCH, "touch");
            let endless = bad.describe(program, 64, 128, &[VRAM_VA + (8 << 20), 0]);
            bad.submit(&mut channel, &[classes(), launch(endless)].concat());
            for group in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                bad.list(&[(1 + group % 100, &[channel])]);
                let _ = bad.port.is_gone();
            }
        });
        // What was received is that of the last three seconds.
        std::thread::sleep(Duration::from_secs(3));
        until("the good one to have its share", || {
            let (good, bad) = (received(&installation, "good"), received(&installation, "bad"));
            println!("{good} and {bad}");
            (good > 2.4 * bad).then_some(())
        });
    });
}

/// Says that it is over, whatever way the test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A guest may have more in one message than its thread can do in an hour: it is ended all the same.
#[test]
fn a_guest_in_mid_message_is_no_reason_to_stay() {
    let installation = Installation::new("");
    let _daemon = installation.serve();
    let options = ["vgpu", "create", "one", "--mem", "64m", "--scheme", "fv-naive"];
    let socket = said(&installation, &options);
    let mut rogue = Rogue::new(Port::over(UnixStream::connect(socket.trim()).unwrap()).unwrap());
    std::thread::scope(|scope| {
        let burdened = scope.spawn(|| rogue.burden(40_000));
        let scanned = || {
            let all: Value = serde_json::from_str(&said(&installation, &["vgpu", "list", "--json"])).unwrap();
            all["vgpus"][0]["entries_scanned"].as_u64().filter(|scanned| *scanned > 20_000_000)
        };
        until("it to be busy", scanned);
        said(&installation, &["vgpu", "destroy", "one"]);
        assert!(burdened.join().unwrap().is_err());
    });
}
