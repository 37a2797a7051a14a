//! Shares over time, with a simulated device: scripts, and properties of any mixture.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod device;

use std::collections::BTreeMap;

use device::{Device, Load, run};
use fair_share::{FairShare, Tuning};
use proptest::prelude::*;

/// One script:
/// ```text
/// tenant <name> [share%] [error=<fraction>] [grain=<ms>] [between=<fraction>]
/// leave <name>
/// run <seconds> <busy names>
/// expect <name>=<percent> …      # of the last run's GPU time, within 2
/// ```
fn play(script: &str) {
    let mut policy = FairShare::new(Tuning::default());
    let mut gpu = Device::default();
    let mut loads: BTreeMap<u64, Load> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for (number, line) in script.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        let key = |name: &str| names.iter().position(|known| known == name).expect(name) as u64;
        match words.as_slice() {
            [] => {}
            ["tenant", name, options @ ..] => {
                let mut load = Load { busy: false, error: 0.0, grain_ns: 10_000, between: 0.0 };
                let mut share = None;
                for option in options {
                    if let Some(error) = option.strip_prefix("error=") {
                        load.error = error.parse().unwrap();
                    } else if let Some(grain) = option.strip_prefix("grain=") {
                        load.grain_ns = (grain.parse::<f64>().unwrap() * 1e6) as u64;
                    } else if let Some(between) = option.strip_prefix("between=") {
                        load.between = between.parse().unwrap();
                    } else {
                        share = Some(option.trim_end_matches('%').parse().unwrap());
                    }
                }
                names.push((*name).to_owned());
                let key = names.len() as u64 - 1;
                loads.insert(key, load);
                policy.set(key, share);
            }
            ["leave", name] => {
                loads.remove(&key(name));
                policy.remove(key(name));
            }
            ["run", seconds, busy @ ..] => {
                let busy: Vec<u64> = busy.iter().map(|name| key(name)).collect();
                loads.iter_mut().for_each(|(key, load)| load.busy = busy.contains(key));
                let before = gpu.used.clone();
                run(&mut policy, &mut gpu, &loads, (seconds.parse::<f64>().unwrap() * 1e9) as u64);
                last = gpu.used.iter().map(|(key, ns)| (*key, ns - before.get(key).unwrap_or(&0))).collect();
            }
            ["expect", expected @ ..] => {
                let total: u64 = last.values().sum();
                for pair in expected {
                    let (name, percent) = pair.split_once('=').unwrap();
                    let got = 100.0 * last.get(&key(name)).copied().unwrap_or(0) as f64 / total as f64;
                    let want: f64 = percent.parse().unwrap();
                    assert!((got - want).abs() < 2.0, "line {}: {name} got {got:.1} %, not {want}", number + 1);
                }
            }
            other => panic!("line {}: {other:?}", number + 1),
        }
    }
}

#[test]
fn scripts() {
    for script in [
        include_str!("scripts/weights.txt"),
        include_str!("scripts/grain.txt"),
        include_str!("scripts/idle.txt"),
        include_str!("scripts/full.txt"),
        include_str!("scripts/between.txt"),
    ] {
        play(script);
    }
}

fn mixture() -> impl Strategy<Value = Vec<(f64, f64, u64)>> {
    prop::collection::vec((3.0f64..30.0, -0.3f64..0.5, 1_000u64..3_000_000), 2..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Busy tenants get their weights in the long run, whatever the device's errors.
    #[test]
    fn long_run_shares_are_exact(tenants in mixture()) {
        let mut policy = FairShare::new(Tuning::default());
        let mut gpu = Device::default();
        let mut loads = BTreeMap::new();
        let all: f64 = tenants.iter().map(|(weight, ..)| weight).sum();
        for (key, &(weight, error, grain_ns)) in tenants.iter().enumerate() {
            let share = 100.0 * weight / all.max(100.0);
            policy.set(key as u64, Some(share));
            loads.insert(key as u64, Load { busy: true, error, grain_ns, between: 0.0 });
        }
        run(&mut policy, &mut gpu, &loads, 2_000_000_000);
        let before = gpu.used.clone();
        run(&mut policy, &mut gpu, &loads, 10_000_000_000);
        let spent: BTreeMap<u64, u64> = gpu.used.iter().map(|(key, ns)| (*key, ns - before[key])).collect();
        let total: u64 = spent.values().sum();
        for (key, (weight, ..)) in tenants.iter().enumerate() {
            let got = 100.0 * spent[&(key as u64)] as f64 / total as f64;
            let want = 100.0 * weight / all;
            prop_assert!((got - want).abs() < 1.5, "tenant {key}: {got:.2} % of {want:.2} %");
        }
    }

    /// Every second of GPU time is divided to two points, once the policy has seen how the device errs.
    #[test]
    fn shares_of_every_second_are_exact(tenants in mixture()) {
        let mut policy = FairShare::new(Tuning::default());
        let mut gpu = Device::default();
        let mut loads = BTreeMap::new();
        let all: f64 = tenants.iter().map(|(weight, ..)| weight).sum();
        for (key, &(weight, error, grain_ns)) in tenants.iter().enumerate() {
            policy.set(key as u64, Some(100.0 * weight / all.max(100.0)));
            loads.insert(key as u64, Load { busy: true, error, grain_ns, between: 0.0 });
        }
        run(&mut policy, &mut gpu, &loads, 2_000_000_000);
        for second in 0..5 {
            let before = gpu.used.clone();
            run(&mut policy, &mut gpu, &loads, 1_000_000_000);
            let spent: BTreeMap<u64, u64> = gpu.used.iter().map(|(key, ns)| (*key, ns - before[key])).collect();
            let total: u64 = spent.values().sum();
            for (key, (weight, ..)) in tenants.iter().enumerate() {
                let got = 100.0 * spent[&(key as u64)] as f64 / total as f64;
                let want = 100.0 * weight / all;
                prop_assert!((got - want).abs() < 2.0, "second {second}, tenant {key}: {got:.2} % of {want:.2} %");
            }
        }
    }

    /// Whoever wakes after any idle time neither locks others out nor starves: within half a second of waking, everybody
    /// has between a quarter and four times its share.
    #[test]
    fn sleepers_bank_no_credit(idle in 0.1f64..20.0, shares in prop::collection::vec(10.0f64..30.0, 2..4)) {
        let mut policy = FairShare::new(Tuning::default());
        let mut gpu = Device::default();
        let mut loads = BTreeMap::new();
        for (key, share) in shares.iter().enumerate() {
            policy.set(key as u64, Some(*share));
            loads.insert(key as u64, Load { busy: key != 0, error: 0.0, grain_ns: 50_000, between: 0.0 });
        }
        run(&mut policy, &mut gpu, &loads, (idle * 1e9) as u64);
        loads.get_mut(&0).unwrap().busy = true;
        let before = gpu.used.clone();
        run(&mut policy, &mut gpu, &loads, 500_000_000);
        let all: f64 = shares.iter().sum();
        for (key, share) in shares.iter().enumerate() {
            let got = gpu.used[&(key as u64)] - before.get(&(key as u64)).unwrap_or(&0);
            let part = got as f64 / 500e6 * all / share;
            prop_assert!((0.25..4.0).contains(&part), "tenant {key} got {part:.2} times its share");
        }
    }

    /// Slices stay within the device's bounds, for any input at all.
    #[test]
    fn slices_are_bounded(
        shares in prop::collection::vec(prop::option::of(0.01f64..100.0), 1..8),
        periods in prop::collection::vec((0u64..1 << 40, prop::collection::vec((0u64..1 << 40, any::<bool>()), 8)), 1..20)
    ) {
        let tuning = Tuning::default();
        let mut policy = FairShare::new(tuning);
        for (key, share) in shares.iter().enumerate() {
            policy.set(key as u64, *share);
        }
        for (length, demands) in periods {
            let demands: Vec<_> = demands
                .into_iter()
                .enumerate()
                .map(|(key, (used_ns, backlogged))| fair_share::Demand { tenant: key as u64, used_ns, backlogged })
                .collect();
            let slices = policy.period(length, &demands);
            prop_assert_eq!(slices.len(), shares.len());
            for (key, slice) in slices {
                prop_assert!((tuning.least_slice_ns..=tuning.most_slice_ns).contains(&slice));
                let standing = policy.standing(key).unwrap();
                prop_assert!(standing.entitled_percent.is_finite() && standing.received_percent.is_finite());
            }
        }
    }
}

#[test]
fn standings_show_the_last_window() {
    let mut policy = FairShare::new(Tuning::default());
    policy.set(1, Some(30.0));
    policy.set(2, None);
    policy.set(3, None);
    let demand = |tenant, used_ns| fair_share::Demand { tenant, used_ns, backlogged: true };
    for _ in 0..100 {
        policy.period(20_000_000, &[demand(1, 5_000_000), demand(2, 15_000_000)]);
    }
    let (one, two, three) = (policy.standing(1).unwrap(), policy.standing(2).unwrap(), policy.standing(3).unwrap());
    assert_eq!((one.entitled_percent, two.entitled_percent, three.entitled_percent), (30.0, 35.0, 35.0));
    assert!((one.received_percent - 25.0).abs() < 0.1 && (two.received_percent - 75.0).abs() < 0.1);
    assert_eq!(one.used_ns, 500_000_000);
    assert_eq!(three.received_percent, 0.0);
    policy.remove(3);
    assert_eq!(policy.standing(2).unwrap().entitled_percent, 70.0);
    assert!(policy.standing(3).is_none());
}
