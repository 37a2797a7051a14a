//! Shares over time, with a simulated device: scripts, and properties of any mixture.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod device;
mod plain;

use std::collections::BTreeMap;

use device::{Device, Load, run};
use fair_share::{FairShare, LEAST_PERCENT, Priority, Tuning};
use proptest::prelude::*;

/// One script:
/// ```text
/// tenant <name> [share%] [low|normal|high] [error=<fraction>] [grain=<ms>] [between=<fraction>] [use=<ms of each period>]
/// leave <name>
/// run <seconds> <busy names>
/// priority <name> <low|normal|high>
/// expect <name>=<percent> …      # of the last run's GPU time, within 2
/// least <name>=<percent> …       # the same, and no less
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
                let mut load = Load { busy: false, error: 0.0, grain_ns: 10_000, between: 0.0, use_ns: u64::MAX };
                let (mut share, mut priority) = (None, Priority::default());
                for option in options {
                    if let Some(error) = option.strip_prefix("error=") {
                        load.error = error.parse().unwrap();
                    } else if let Some(grain) = option.strip_prefix("grain=") {
                        load.grain_ns = (grain.parse::<f64>().unwrap() * 1e6) as u64;
                    } else if let Some(between) = option.strip_prefix("between=") {
                        load.between = between.parse().unwrap();
                    } else if let Some(used) = option.strip_prefix("use=") {
                        load.use_ns = (used.parse::<f64>().unwrap() * 1e6) as u64;
                    } else if let Ok(said) = option.parse() {
                        priority = said;
                    } else {
                        share = Some(option.trim_end_matches('%').parse().unwrap());
                    }
                }
                names.push((*name).to_owned());
                let key = names.len() as u64 - 1;
                loads.insert(key, load);
                policy.set(key, share);
                policy.prioritize(key, priority);
            }
            ["priority", name, priority] => policy.prioritize(key(name), priority.parse().unwrap()),
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
            ["least", expected @ ..] => {
                let total: u64 = last.values().sum();
                for pair in expected {
                    let (name, percent) = pair.split_once('=').unwrap();
                    let got = 100.0 * last.get(&key(name)).copied().unwrap_or(0) as f64 / total as f64;
                    let want: f64 = percent.parse().unwrap();
                    assert!(got >= want, "line {}: {name} got {got:.2} %, not even {want}", number + 1);
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
        include_str!("scripts/priorities.txt"),
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
            loads.insert(key as u64, Load { busy: true, error, grain_ns, between: 0.0, use_ns: u64::MAX });
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
            loads.insert(key as u64, Load { busy: true, error, grain_ns, between: 0.0, use_ns: u64::MAX });
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
            loads.insert(key as u64, Load { busy: key != 0, error: 0.0, grain_ns: 50_000, between: 0.0, use_ns: u64::MAX });
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

    /// Whatever a tenant without a share does who goes before others: each keeps its share, those without one keep the least, and
    /// those of the highest priority have the rest.
    #[test]
    fn promised_shares_stay_where_somebody_floods(
        promised in prop::collection::vec((3.0f64..24.0, -0.3f64..0.5, 1_000u64..3_000_000, any::<bool>()), 1..4),
        low_error in -0.3f64..0.5
    ) {
        let mut policy = FairShare::new(Tuning::default());
        let mut gpu = Device::default();
        let mut loads = BTreeMap::new();
        let mut come = |policy: &mut FairShare, share, priority, error, grain_ns| {
            let key = loads.len() as u64;
            policy.set(key, share);
            policy.prioritize(key, priority);
            loads.insert(key, Load { busy: true, error, grain_ns, between: 0.0, use_ns: u64::MAX });
        };
        for &(share, error, grain_ns, first) in &promised {
            come(&mut policy, Some(share), if first { Priority::High } else { Priority::Normal }, error, grain_ns);
        }
        come(&mut policy, None, Priority::Low, low_error, 100_000);
        come(&mut policy, None, Priority::High, 0.0, 10_000_000);
        run(&mut policy, &mut gpu, &loads, 2_000_000_000);
        let before = gpu.used.clone();
        run(&mut policy, &mut gpu, &loads, 10_000_000_000);
        let total: u64 = gpu.used.iter().map(|(key, ns)| ns - before[key]).sum();
        let got = |key: usize| 100.0 * (gpu.used[&(key as u64)] - before[&(key as u64)]) as f64 / total as f64;
        let behind = promised.iter().filter(|(.., first)| !first).map(|(share, ..)| share).sum::<f64>();
        // Of the two without a share each would have half of what the shares leave.
        let usual = (100.0 - promised.iter().map(|(share, ..)| share).sum::<f64>()) / 2.0;
        let of_first = usual + promised.iter().filter(|(.., first)| *first).map(|(share, ..)| share).sum::<f64>();
        let more = (100.0 - LEAST_PERCENT - behind) / of_first;
        for (key, (share, .., first)) in promised.iter().enumerate() {
            let want = share * if *first { more } else { 1.0 };
            // What was promised is had. A device that errs by up to a half gives a little more, where slices are as short as can be.
            prop_assert!((want - 2.0..want + 4.0).contains(&got(key)), "tenant {key}: {:.2} % of {want:.2} %", got(key));
        }
        let (low, high) = (got(promised.len()), got(promised.len() + 1));
        prop_assert!(low >= 0.9 * LEAST_PERCENT, "who has the least got {low:.2} %");
        let want = usual * more;
        prop_assert!((want - 4.0..want + 2.0).contains(&high), "who has the rest got {high:.2} % of {want:.2} %");
    }

    /// Whoever goes before others, and wakes, has most of the next half second; when it sleeps, it is as if it were not there.
    #[test]
    fn who_goes_first_wakes_at_once(idle in 0.1f64..20.0, others in 1u64..5, grain_ns in 1_000u64..5_000_000) {
        let mut policy = FairShare::new(Tuning::default());
        let mut gpu = Device::default();
        let mut loads = BTreeMap::new();
        for key in 0..=others {
            policy.set(key, None);
            loads.insert(key, Load { busy: key != 0, error: 0.0, grain_ns, between: 0.0, use_ns: u64::MAX });
        }
        policy.prioritize(0, Priority::High);
        run(&mut policy, &mut gpu, &loads, (idle * 1e9) as u64);
        loads.get_mut(&0).unwrap().busy = true;
        run(&mut policy, &mut gpu, &loads, 500_000_000);
        let got = gpu.used[&0] as f64 / 500e6;
        prop_assert!(got > 0.75, "{got:.2} of the time");
        loads.get_mut(&0).unwrap().busy = false;
        let before = gpu.used.clone();
        run(&mut policy, &mut gpu, &loads, 10_000_000_000);
        let total: u64 = (1..=others).map(|key| gpu.used[&key] - before[&key]).sum();
        for key in 1..=others {
            let got = 100.0 * (gpu.used[&key] - before[&key]) as f64 / total as f64;
            prop_assert!((got - 100.0 / others as f64).abs() < 2.0, "tenant {key}: {got:.2} %");
        }
    }

    /// Where all who want time have one priority, it is to the bit as if there were none.
    #[test]
    fn of_one_priority_it_is_as_if_there_were_none(
        tenants in prop::collection::vec((prop::option::of(0.01f64..60.0), 0usize..3), 1..8),
        periods in prop::collection::vec(
            (1u64..1 << 40, 0usize..3, prop::collection::vec((0u64..1 << 40, any::<bool>()), 8)),
            1..30
        )
    ) {
        let mut policy = FairShare::new(Tuning::default());
        let mut plain = plain::Plain::default();
        for (key, (share, class)) in tenants.iter().enumerate() {
            policy.set(key as u64, *share);
            policy.prioritize(key as u64, Priority::ALL[*class]);
            plain.set(key as u64, *share);
        }
        for (length, wanting, demands) in periods {
            let demand = |(key, (_, class)): (usize, &(_, usize))| {
                let (used_ns, backlogged) = if *class == wanting { demands[key] } else { (0, false) };
                fair_share::Demand { tenant: key as u64, used_ns, backlogged }
            };
            let demands: Vec<_> = tenants.iter().enumerate().map(demand).collect();
            let (slices, as_ever) = (policy.period(length, &demands), plain.period(length, &demands));
            let all_alike = tenants.iter().all(|(_, class)| *class == tenants[0].1);
            for ((demand, slice), expected) in demands.iter().zip(slices).zip(as_ever) {
                prop_assert!(slice == expected || !(demand.backlogged || all_alike), "{slice:?} is not {expected:?}");
            }
        }
    }

    /// Slices stay within the device's bounds, for any input at all.
    #[test]
    fn slices_are_bounded(
        shares in prop::collection::vec(prop::option::of(0.01f64..100.0), 1..8),
        priorities in prop::collection::vec(0usize..3, 8),
        periods in prop::collection::vec((0u64..1 << 40, prop::collection::vec((0u64..1 << 40, any::<bool>()), 8)), 1..20)
    ) {
        let tuning = Tuning::default();
        let mut policy = FairShare::new(tuning);
        for (key, share) in shares.iter().enumerate() {
            policy.set(key as u64, *share);
            policy.prioritize(key as u64, Priority::ALL[priorities[key]]);
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
