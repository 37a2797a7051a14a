//! Turns: scripts, properties of any mixture, and a thousand tenants, in virtual time.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod script;
mod simulator;

use std::collections::BTreeMap;

use fair_share::{Means, Pace, Policy, Rule, Turns};
use proptest::prelude::*;
use simulator::{Had, Load, Simulator};

#[test]
fn scripts() {
    for script in [
        include_str!("scripts/order.txt"),
        include_str!("scripts/credit.txt"),
        include_str!("scripts/band.txt"),
        include_str!("scripts/withdrawn.txt"),
        include_str!("scripts/isolation.txt"),
        include_str!("scripts/shares.txt"),
        include_str!("scripts/idle.txt"),
    ] {
        script::play(script);
    }
}

#[test]
fn policies_have_names_and_means() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert!("".parse::<Policy>().is_err() && "Band".parse::<Policy>().is_err());
    let means = Policy::ALL.map(|policy| [policy.means(true), policy.means(false)]);
    let [fifo, credit, band] = [Rule::Fifo, Rule::Credit, Rule::Band].map(Means::Turns);
    assert_eq!(means, [[Means::Slices, band], [fifo, fifo], [credit, credit], [band, band]]);
}

/// A rule, with tenants of these weights and loads, all of them active.
fn simulator(rule: Rule, tenants: &[(f64, Load)]) -> Simulator {
    let all: f64 = tenants.iter().map(|(weight, _)| weight).sum();
    let mut simulator = Simulator::new(Turns::new(rule, Pace::default(), 0));
    for (key, (weight, load)) in (0..).zip(tenants) {
        simulator.turns.set(key, Some(100.0 * weight / all));
        simulator.begin(key, *load);
    }
    simulator
}

/// Runs for some time; what each had of it.
fn spent(simulator: &mut Simulator, length_ns: u64) -> BTreeMap<u64, u64> {
    let before = simulator.had.clone();
    simulator.run(length_ns);
    let since = |key: &u64| before.get(key).copied().unwrap_or_default().used_ns;
    simulator.had.iter().map(|(key, Had { used_ns, .. })| (*key, used_ns - since(key))).collect()
}

/// Largest difference between what was received and entitled, in points.
fn error(tenants: &[(f64, Load)], spent: &BTreeMap<u64, u64>) -> f64 {
    let all: f64 = tenants.iter().map(|(weight, _)| weight).sum();
    let total: u64 = spent.values().sum();
    let one = |(key, (weight, _)): (u64, &(f64, Load))| {
        let got = 100.0 * spent.get(&key).copied().unwrap_or(0) as f64 / total as f64;
        (got - 100.0 * weight / all).abs()
    };
    (0..).zip(tenants).map(one).fold(0.0, f64::max)
}

/// Tenants who always have another command waiting.
fn backlogged() -> impl Strategy<Value = Vec<(f64, Load)>> {
    let tenant = (5.0f64..30.0, 20_000u64..10_000_000, 2u64..4);
    let load = |(weight, length_ns, depth)| (weight, Load { length_ns, gap_ns: 1000, depth });
    prop::collection::vec(tenant.prop_map(load), 2..6)
}

/// Tenants who submit when the command before has ended; they could all use their part, whoever waits for them.
fn synchronous() -> impl Strategy<Value = Vec<(f64, Load)>> {
    let tenant = (15.0f64..30.0, 100_000u64..10_000_000, 1u64..50_000);
    let load = |(weight, length_ns, gap_ns)| (weight, Load { length_ns, gap_ns, depth: 1 });
    prop::collection::vec(tenant.prop_map(load), 2..5)
}

/// Anything.
fn any_tenants() -> impl Strategy<Value = Vec<(f64, Load)>> {
    let tenant = (1.0f64..30.0, 1_000u64..50_000_000, 0u64..3_000_000, 1u64..5);
    let load = |(weight, length_ns, gap_ns, depth)| (weight, Load { length_ns, gap_ns, depth });
    prop::collection::vec(tenant.prop_map(load), 1..8)
}

fn rules() -> impl Strategy<Value = Rule> {
    prop::sample::select(vec![Rule::Fifo, Rule::Credit, Rule::Band])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Among tenants who always have commands waiting, CREDIT and BAND keep shares, in every second to two points and one of
    /// the longest commands at its beginning and at its end.
    #[test]
    fn shares_of_every_second_are_kept(tenants in backlogged(), credit in any::<bool>()) {
        let mut simulator = simulator(if credit { Rule::Credit } else { Rule::Band }, &tenants);
        let longest = tenants.iter().map(|(_, load)| load.length_ns).max().unwrap();
        simulator.run(1_000_000_000);
        for second in 0..5 {
            let spent = spent(&mut simulator, 1_000_000_000);
            let error = error(&tenants, &spent);
            prop_assert!(error < 2.0 + 2.0 * longest as f64 / 1e7, "second {second}: {error:.2} points, {spent:?}");
        }
    }

    /// BAND keeps them among those who submit one command at a time, too.
    #[test]
    fn band_waits_for_light_users(tenants in synchronous()) {
        let mut simulator = simulator(Rule::Band, &tenants);
        simulator.run(1_000_000_000);
        let spent = spent(&mut simulator, 5_000_000_000);
        let error = error(&tenants, &spent);
        prop_assert!(error < 2.0, "{error:.2} points, {spent:?}");
    }

    /// FIFO and CREDIT never leave the GPU idle while somebody has a command; BAND no longer than it waits for a light user.
    #[test]
    fn work_is_conserved(tenants in any_tenants(), rule in rules()) {
        let mut simulator = simulator(rule, &tenants);
        simulator.run(3_000_000_000);
        let most = if rule == Rule::Band { Pace::default().wait_ns } else { 0 };
        prop_assert!(simulator.longest_waste_ns <= most, "{} ns", simulator.longest_waste_ns);
    }

    /// With CREDIT and BAND, no command waits for ever, whatever the others do: what is ahead of it is bounded by debts.
    #[test]
    fn nobody_starves(tenants in any_tenants(), credit in any::<bool>()) {
        let mut simulator = simulator(if credit { Rule::Credit } else { Rule::Band }, &tenants);
        simulator.run(20_000_000_000);
        let all: f64 = tenants.iter().map(|(weight, _)| weight).sum();
        let longest = tenants.iter().map(|(_, load)| load.length_ns).max().unwrap() as f64;
        let Pace { period_ns, .. } = Pace::default();
        for (key, (weight, _)) in (0..).zip(&tenants) {
            let had = simulator.had.get(&key).copied().unwrap_or_default();
            prop_assert!(had.commands > 0);
            // A debt of one command is paid off by its part of the time; others may have their credit, and a command each, first.
            let bound = (longest * (2.0 + tenants.len() as f64) + 3.0 * period_ns as f64) * all / weight;
            prop_assert!((had.waited_ns as f64) < bound, "{key} waited {} ms of {}", had.waited_ns / 1_000_000, bound / 1e6);
        }
    }

    /// Whoever comes back after any idle time has saved nothing up: in the first half second it has at most its part, some
    /// periods' and a command.
    #[test]
    fn sleepers_bank_no_credit(idle_ms in 1u64..20_000, credit in any::<bool>(), length_us in 20u64..5_000) {
        let load = Load { length_ns: length_us * 1000, gap_ns: 1000, depth: 3 };
        let tenants = [(1.0, load), (1.0, load)];
        let mut simulator = simulator(if credit { Rule::Credit } else { Rule::Band }, &tenants);
        simulator.run(1_000_000_000);
        simulator.end(0);
        simulator.run(idle_ms * 1_000_000);
        simulator.begin(0, load);
        let spent = spent(&mut simulator, 500_000_000);
        let most = 250_000_000 + 2 * Pace::default().period_ns + load.length_ns;
        prop_assert!(spent[&0] <= most && spent[&1] <= most, "{spent:?}");
    }

    /// Any events in any order: commands are counted right, and what is said to run has a command.
    #[test]
    fn any_events_are_taken(
        rule in rules(),
        events in prop::collection::vec((0u8..8, 0u64..4, 0u64..3, 0u64..100_000_000), 1..200)
    ) {
        let mut turns = Turns::new(rule, Pace::default(), 0);
        let mut commands: BTreeMap<u64, u64> = BTreeMap::new();
        let mut now = 0;
        for (event, key, count, ns) in events {
            now += ns;
            let known = commands.contains_key(&key);
            match event {
                0 => {
                    turns.set(key, (count > 0).then_some(10.0 * count as f64));
                    commands.entry(key).or_insert(0);
                }
                1 => {
                    turns.remove(key);
                    commands.remove(&key);
                }
                2 | 3 => {
                    turns.submitted(key, count, now);
                    if known { *commands.get_mut(&key).unwrap() += count; }
                }
                4 => if let Some(running) = turns.running() {
                    turns.completed(running, 1 + count, ns, now);
                    let left = commands.get_mut(&running).unwrap();
                    *left = left.saturating_sub(1 + count);
                },
                5 | 6 => if turns.running() != Some(key) {
                    turns.withdrawn(key, count);
                    commands.entry(key).and_modify(|commands| *commands = commands.saturating_sub(count));
                },
                _ => if let fair_share::Next::Run(tenant) = turns.next(now) {
                    prop_assert!(commands[&tenant] > 0);
                    prop_assert_eq!(turns.running(), Some(tenant));
                },
            }
            for (key, count) in &commands {
                prop_assert_eq!(turns.commands(*key), *count);
            }
        }
    }
}

/// A thousand tenants, a third of them each with commands of 0.1, 1 and 10 ms, one at a time: GPU time by third, percent.
fn thousand(rule: Rule) -> [f64; 3] {
    let load =
        |key: u64| Load { length_ns: [100_000, 1_000_000, 10_000_000][key as usize % 3], gap_ns: 20_000, depth: 1 };
    let tenants: Vec<(f64, Load)> = (0..1000).map(|key| (1.0, load(key))).collect();
    let mut simulator = simulator(rule, &tenants);
    // Each has had a command, and owes.
    simulator.run(20_000_000_000);
    let spent = spent(&mut simulator, 30_000_000_000);
    let mut thirds = [0.0; 3];
    let total: u64 = spent.values().sum();
    for (key, used_ns) in &spent {
        thirds[*key as usize % 3] += 100.0 * *used_ns as f64 / total as f64;
    }
    thirds
}

#[test]
fn a_thousand_tenants_share() {
    let fair = |thirds: [f64; 3]| thirds.iter().all(|third| (third - 33.3).abs() < 2.0);
    let fifo = thousand(Rule::Fifo);
    assert!(fifo[0] < 2.0 && fifo[2] > 85.0, "{fifo:?}");
    // So many wait at any time that CREDIT, too, finds those who have credit.
    let others = [Rule::Credit, Rule::Band].map(thousand);
    assert!(others.into_iter().all(fair), "{others:?}");
}
