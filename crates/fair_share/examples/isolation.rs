//! GPUvm's experiment in virtual time: a thousand tenants (or as many as the argument says), a third of them each with
//! commands of 0.1, 1 and 10 ms, one at a time; how GPU time is divided among the thirds, by rule.
//!
//! ```text
//! cargo run --release -p fair_share --example isolation -- 1000
//! ```
#![expect(clippy::print_stdout, reason = "a program for people")]

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/turns/simulator.rs"]
mod simulator;

use std::time::Instant;

use fair_share::{Pace, Rule, Turns};
use simulator::{Load, Simulator};

fn main() {
    let tenants: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1000);
    println!(
        "{:<8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10}",
        "", "0.1 ms", "1 ms", "10 ms", "commands", "wasted", "took"
    );
    for rule in [Rule::Fifo, Rule::Credit, Rule::Band] {
        let start = Instant::now();
        let mut simulator = Simulator::new(Turns::new(rule, Pace::default(), 0));
        for key in 0..tenants {
            let length_ns = [100_000, 1_000_000, 10_000_000][key as usize % 3];
            simulator.turns.set(key, None);
            simulator.begin(key, Load { length_ns, gap_ns: 20_000, depth: 1 });
        }
        // Each has had a command, and owes.
        simulator.run(tenants * 20_000_000);
        let before = simulator.had.clone();
        let (start_ns, wasted_ns) = (simulator.now, simulator.wasted_ns);
        simulator.run(30_000_000_000);
        let (mut thirds, mut commands) = ([0; 3], 0);
        for (key, had) in &simulator.had {
            let since = before.get(key).copied().unwrap_or_default();
            thirds[*key as usize % 3] += had.used_ns - since.used_ns;
            commands += had.commands - since.commands;
        }
        let total: u64 = thirds.iter().sum();
        let percent = |ns: u64, of: u64| 100.0 * ns as f64 / of.max(1) as f64;
        let [short, middle, long] = thirds.map(|ns| percent(ns, total));
        let wasted = percent(simulator.wasted_ns - wasted_ns, simulator.now - start_ns);
        let name = format!("{rule:?}").to_uppercase();
        let took = start.elapsed();
        println!("{name:<8} {short:>7.1}% {middle:>7.1}% {long:>7.1}% {commands:>10} {wasted:>9.1}% {took:>10.1?}");
    }
}
