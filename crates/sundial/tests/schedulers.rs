//! `serve --scheduler` and `set`: how GPU time is shared changes while tenants work.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use gpu::{Command as GpuCommand, ContextId, Gpu, GpuError, QueueId, SlotId};
use serde_json::Value;
use support::{BOUND, Installation, LO, PTX, launch, prepare, stderr};

mod support;

/// What `ps` says.
fn listing(installation: &Installation) -> Value {
    serde_json::from_slice(&installation.output(&["ps", "--json"]).stdout).unwrap()
}

fn set(installation: &Installation, arguments: &[&str]) {
    let output = installation.output(&[&["set"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
}

#[test]
fn what_is_set_holds_and_what_cannot_be_is_refused() {
    let installation = Installation::new("scheduler = \"credit\"\n");
    let mut daemon = installation.serve();
    let (first, _gpu) = installation.tenant(&["--name", "first", "--share", "60%"]);
    let (second, _other) = installation.tenant(&["--name", "second"]);
    assert_eq!(listing(&installation)["scheduler"], "credit");
    set(&installation, &["first", "--share", "25%"]);
    set(&installation, &["--scheduler", "band"]);
    let now = listing(&installation);
    assert_eq!(now["scheduler"], "band");
    let entitled = |name: &str| {
        let sessions = now["sessions"].as_array().unwrap();
        sessions.iter().find(|session| session["tenant"] == name).unwrap()["share_entitled"].as_f64()
    };
    assert_eq!((entitled("first"), entitled("second")), (Some(25.0), Some(75.0)));
    set(&installation, &["second", "--share", "75%", "--scheduler", "default"]);
    for (arguments, expected) in [
        (&["first", "--share", "26%"][..], "a share of 26 % is not free: 75 % of the GPU's time is given to others"),
        (&["third", "--share", "1%"], "no tenant named `third` is present"),
        (&["first", "--share", "0%"], "is not a share"),
        (&["first"], "--share"),
        (&["--share", "5%"], "TENANT"),
        (&["--scheduler", "round-robin"], "a scheduler is one of default, fifo, credit, band"),
        (&[], "required"),
    ] {
        let output = installation.output(&[&["set"], arguments].concat());
        assert!(!output.status.success() && stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(listing(&installation)["scheduler"], "default");
    first.end();
    second.end();
    daemon.kill();
    let output = installation.output(&["set", "--scheduler", "fifo"]);
    assert!(stderr(&output).contains("no Sundial daemon is running"), "{}", stderr(&output));
}

#[test]
fn a_priority_is_shown_and_where_it_means_nothing_that_is_said() {
    let installation = Installation::new("scheduler = \"band\"\n[profiles.first]\npriority = \"high\"\n");
    let mut daemon = installation.serve();
    let (first, _gpu) = installation.tenant(&["--name", "first", "--profile", "first", "--share", "20%"]);
    let (second, _other) = installation.tenant(&["--name", "second"]);
    let shown = |name: &str| {
        let now = listing(&installation);
        let session =
            now["sessions"].as_array().unwrap().iter().find(|session| session["tenant"] == name).unwrap().clone();
        (session["priority"].as_str().unwrap().to_owned(), session["share_entitled"].as_f64().unwrap())
    };
    assert_eq!((shown("first"), shown("second")), (("high".into(), 20.0), ("normal".into(), 80.0)));
    let output = installation.output(&["set", "second", "--priority", "low"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "second has priority low; the scheduler band knows no priorities\n");
    set(&installation, &["--scheduler", "default"]);
    assert_eq!((shown("first"), shown("second")), (("high".into(), 99.0), ("low".into(), 1.0)));
    let output = installation.output(&["set", "first", "--priority", "low"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    assert_eq!((shown("first"), shown("second")), (("low".into(), 20.0), ("low".into(), 80.0)));
    for (arguments, expected) in [
        (&["first", "--priority", "urgent"][..], "a priority is one of low, normal, high"),
        (&["third", "--priority", "low"], "no tenant named `third` is present"),
        (&["--priority", "low"], "TENANT"),
    ] {
        let output = installation.output(&[&["set"], arguments].concat());
        assert!(!output.status.success() && stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    first.end();
    second.end();
    daemon.kill();
}

#[test]
fn whoever_never_ends_a_kernel_gives_way_with_every_scheduler() {
    let installation = Installation::new("");
    let _daemon = installation.serve_with(|serve| {
        serve.args(["--scheduler", "fifo"]);
    });
    let (first, gpu) = installation.tenant(&["--name", "worker"]);
    let (second, endless) = installation.tenant(&["--name", "endless"]);
    prepare(&gpu, PTX);
    prepare(&endless, PTX);
    endless.submit(QueueId(1), &[launch(1, &[]), GpuCommand::Signal { slot: SlotId(1), value: 1 }]).unwrap();
    let waiting = endless.wait(ContextId(1), SlotId(1), 1, Some(Duration::from_millis(50)));
    assert_eq!(waiting, Err(GpuError::TimedOut));
    let mut round = 0u32;
    let mut work = || {
        round += 1;
        let start = Instant::now();
        let params = [&LO.to_le_bytes()[..], &round.to_le_bytes()].concat();
        let signal = GpuCommand::Signal { slot: SlotId(1), value: round.into() };
        gpu.submit(QueueId(1), &[launch(0, &params), signal]).unwrap();
        gpu.wait(ContextId(1), SlotId(1), round.into(), Some(BOUND)).unwrap();
        start.elapsed()
    };
    // What is short may be done before anybody has seen that two compete; but who works on and on is seen.
    let end = Instant::now() + BOUND;
    while work() < Duration::from_secs(1) {
        assert!(Instant::now() < end, "the endless one has its turns");
    }
    for scheduler in ["credit", "band", "default"] {
        set(&installation, &["--scheduler", scheduler]);
        work();
        work();
    }
    first.end();
    second.end();
}
