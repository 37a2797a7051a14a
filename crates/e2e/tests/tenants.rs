//! Several tenants on one GPU: shares, limits, faults, deaths.

use std::time::Duration;

use e2e::{Daemon, Tenant, cuda_examples, wait_for};
use serde_json::Value;
use transport::unix;

fn session<'a>(sessions: &'a [Value], tenant: &str) -> Option<&'a Value> {
    sessions.iter().find(|session| session["tenant"] == tenant)
}

fn gone(daemon: &Daemon, tenant: &str) {
    wait_for("the dead tenant's session to be gone", Duration::from_secs(20), || {
        session(&daemon.ps(), tenant).is_none().then_some(())
    });
}

const SHARES: [(&str, f64); 3] = [("half", 50.0), ("third", 30.0), ("fifth", 20.0)];

#[test]
fn shares_are_received_as_entitled() {
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let seconds = ["--seconds", "15"];
    let start = |name: &str, share: &str, program: &str| -> Tenant {
        daemon.tenant(&["--name", name, "--mem", "128m", "--share", share], &[&[program], seconds.as_slice()].concat())
    };
    let tenants =
        [start("half", "50%", "matrices"), start("third", "30%", "polynomials"), start("fifth", "20%", "life")];
    // Received shares are those of a sliding window of three seconds. It is full of saturated time from here on; the host may
    // have had other things to do meanwhile.
    std::thread::sleep(Duration::from_secs(6));
    let sessions = wait_for("shares as entitled", Duration::from_secs(8), || {
        let sessions = daemon.ps();
        let as_entitled = |(name, entitled): &(&str, f64)| {
            let received = session(&sessions, name).and_then(|session| session["share_received"].as_f64());
            received.is_some_and(|received| (received - entitled).abs() <= 3.0)
        };
        SHARES.iter().all(as_entitled).then_some(sessions)
    });
    for (name, entitled) in SHARES {
        let session = session(&sessions, name).unwrap();
        assert_eq!(session["share_entitled"].as_f64().unwrap(), entitled);
        assert!(session["memory_used"].as_u64().unwrap() > 0);
        assert_eq!(session["memory_limit"], 128 << 20);
    }
    for tenant in tenants {
        let report = tenant.finish();
        assert_eq!(report["verified"], true, "{report}");
        assert!(report["kernels"].as_u64().unwrap() > 0);
    }
}

#[test]
fn who_goes_first_has_nearly_all_that_nobody_was_promised_and_the_others_go_on() {
    let daemon = Daemon::start(&["--gpu", "soft:1g"]);
    let start =
        |name: &str, program: &str| daemon.tenant(&["--name", name, "--mem", "128m"], &[program, "--seconds", "600"]);
    // The first wants the GPU all the time.
    let _tenants = [
        daemon.tenant(&["--name", "first", "--mem", "128m", "--priority", "high"], &["endless"]),
        start("second", "polynomials"),
        start("third", "life"),
    ];
    let bound = Duration::from_secs(90);
    let had = |name: &str| {
        let field = |sessions: &[Value]| session(sessions, name)?["gpu_time_ns"].as_u64();
        wait_for("a tenant's GPU time", bound, || field(&daemon.ps()).filter(|ns| *ns > 0))
    };
    let go_on = || {
        for name in ["first", "second", "third"] {
            let before = had(name);
            wait_for("everybody to go on", bound, || (had(name) > before).then_some(()));
        }
    };
    // Of the GPU time of two seconds, while all three are there, in percent: the host may have had other things to do.
    let first_has = |percent: std::ops::Range<f64>| {
        wait_for("the first to have its part", bound, || {
            let before = ["first", "second", "third"].map(had);
            let spent = wait_for("two seconds of GPU time", bound, || {
                let now = ["first", "second", "third"].map(had);
                let spent: [f64; 3] = std::array::from_fn(|at| (now[at] - before[at]) as f64);
                (spent.iter().sum::<f64>() > 2e9).then_some(spent)
            });
            percent.contains(&(100.0 * spent[0] / spent.iter().sum::<f64>())).then_some(())
        });
    };
    go_on();
    first_has(90.0..100.0);
    go_on();
    let set = daemon.sundial().args(["set", "first", "--priority", "low"]).output().unwrap();
    assert!(set.status.success(), "{}", e2e::text(&set));
    first_has(0.0..20.0);
    go_on();
    let sessions = daemon.ps();
    assert_eq!(session(&sessions, "first").unwrap()["priority"], "low");
    assert_eq!(session(&sessions, "second").unwrap()["priority"], "normal");
}

#[test]
fn one_byte_too_many_is_out_of_memory_and_nobody_else_notices() {
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let neighbour =
        daemon.tenant(&["--name", "neighbour", "--mem", "64m", "--share", "50%"], &["matrices", "--seconds", "3"]);
    let report = daemon.tenant(&["--name", "greedy", "--mem", "192m", "--share", "50%"], &["greedy"]).finish();
    assert_eq!(report["total"], 192 << 20);
    assert_eq!(report["error"], 2);
    let allocated = report["allocated"].as_u64().unwrap();
    assert!((128 << 20..=192 << 20).contains(&allocated), "{report}");
    assert_eq!(neighbour.finish()["verified"], true);
}

#[test]
fn an_illegal_address_ends_one_context_only() {
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let first = daemon.tenant(&["--name", "first", "--share", "30%"], &["matrices", "--seconds", "3"]);
    let second = daemon.tenant(&["--name", "second", "--share", "30%"], &["life", "--seconds", "3"]);
    let stray = daemon.tenant(&["--name", "stray", "--share", "30%"], &["stray"]).finish();
    assert_eq!(stray["error"], 700);
    assert_eq!(first.finish()["verified"], true);
    assert_eq!(second.finish()["verified"], true);
}

#[test]
fn an_endless_kernel_neither_starves_others_nor_survives_its_tenant() {
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let mut endless = daemon.tenant(&["--name", "endless", "--share", "50%"], &["endless"]);
    assert_eq!(endless.line()["started"], true);
    let pid = wait_for("the endless tenant in ps", Duration::from_secs(5), || {
        session(&daemon.ps(), "endless")?["pid"].as_u64()
    });
    let neighbour = daemon.tenant(&["--name", "neighbour", "--share", "50%"], &["matrices", "--seconds", "2"]).finish();
    assert_eq!(neighbour["verified"], true);
    assert!(neighbour["kernels"].as_u64().unwrap() > 8, "{neighbour}");
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    gone(&daemon, "endless");
    // Everything it had is back: another tenant may have nearly all of the memory.
    let greedy = daemon.tenant(&["--name", "greedy", "--mem", "448m", "--share", "100%"], &["greedy"]).finish();
    assert!(greedy["allocated"].as_u64().unwrap() >= 400 << 20, "{greedy}");
}

#[test]
fn an_endless_loop_of_a_graph_neither_starves_others_nor_survives_its_tenant() {
    let Some(program) = cuda_examples().map(|folder| folder.join("conditions")).filter(|program| program.exists())
    else {
        eprintln!("skipped: no compiled programs (cargo xtask examples makes them with nvcc)");
        return;
    };
    let daemon = Daemon::start(&["--gpu", "soft:512m"]);
    let mut endless = daemon.program(&["--name", "endless", "--share", "50%"], &program, &["--endless"]);
    assert_eq!(endless.line()["started"], true);
    let kernels = || session(&daemon.ps(), "endless")?["kernels"].as_u64();
    let pid = wait_for("the endless tenant in ps", Duration::from_secs(5), || {
        session(&daemon.ps(), "endless")?["pid"].as_u64()
    });
    let neighbour = daemon.tenant(&["--name", "neighbour", "--share", "50%"], &["matrices", "--seconds", "2"]).finish();
    assert_eq!(neighbour["verified"], true);
    assert!(neighbour["kernels"].as_u64().unwrap() > 8, "{neighbour}");
    // It goes round and round meanwhile, and after.
    let before = kernels().unwrap();
    wait_for("the loop to go on", Duration::from_secs(20), || (kernels()? > before).then_some(()));
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    gone(&daemon, "endless");
    let greedy = daemon.tenant(&["--name", "greedy", "--mem", "448m", "--share", "100%"], &["greedy"]).finish();
    assert!(greedy["allocated"].as_u64().unwrap() >= 400 << 20, "{greedy}");
}

#[test]
fn a_dead_tenants_memory_is_zero_for_the_next() {
    let daemon = Daemon::start(&["--gpu", "soft:384m"]);
    let mut mark = daemon.tenant(&["--name", "mark", "--mem", "320m", "--share", "100%"], &["mark"]);
    assert!(mark.line()["marked"].as_u64().unwrap() >= 256 << 20);
    let pid = session(&daemon.ps(), "mark").unwrap()["pid"].as_u64().unwrap();
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    gone(&daemon, "mark");
    drop(mark);
    let report = daemon.tenant(&["--name", "inspect", "--mem", "320m", "--share", "100%"], &["inspect"]).finish();
    assert!(report["inspected"].as_u64().unwrap() >= 256 << 20, "{report}");
    assert_eq!(report["dirty"], 0);
}

#[test]
fn a_client_that_vanishes_with_its_ring_full_leaves_nothing() {
    let daemon = Daemon::start(&["--gpu", "soft:256m"]);
    for round in 0..3 {
        let name = format!("flood{round}");
        let mut flood = daemon.tenant(&["--name", &name, "--share", "50%"], &["flood"]);
        assert_eq!(flood.line()["queued"], 5_000);
        flood.child.wait().unwrap();
        gone(&daemon, &name);
    }
    let report = daemon.tenant(&["--name", "after", "--share", "50%"], &["matrices", "--seconds", "1"]).finish();
    assert_eq!(report["verified"], true);
}

#[test]
fn garbage_on_the_session_socket_disturbs_nobody() {
    let daemon = Daemon::start(&["--gpu", "soft:256m"]);
    let neighbour = daemon.tenant(&["--name", "neighbour", "--share", "50%"], &["life", "--seconds", "3"]);
    let sockets: Vec<_> = std::fs::read_dir(daemon.folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| unix::connect(path).is_ok())
        .collect();
    assert!(!sockets.is_empty(), "the daemon has no socket in {}", daemon.folder().display());
    let mut state = 1u32;
    for round in 0..50 {
        for socket in &sockets {
            let stranger = unix::connect(socket).unwrap();
            let garbage: Vec<u8> = (0..round * 40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            // It may hang up at any moment: that is an answer too.
            let _ = unix::send(&stranger, &garbage, &[], true);
        }
    }
    assert_eq!(neighbour.finish()["verified"], true);
}
