//! Scripts. What happens by itself, in a simulation:
//! ```text
//! rule fifo|credit|band
//! tenant <name> [<share>%] length=<ms> [gap=<ms>] [depth=<n>]
//! share <name> [<share>%]
//! leave <name>
//! run <seconds> <names of those who submit>
//! expect <name>=<percent> …          # of the last run's GPU time, within 2
//! ```
//! And event by event, at a time in ms:
//! ```text
//! <ms> submit <name> [<n>]
//! <ms> complete <name> <ran ms> [<n>]
//! <ms> withdraw <name> [<n>]
//! <ms> next <name> | until <ms> | later
//! ```

use std::collections::BTreeMap;

use fair_share::{Next, Pace, Rule, Turns};

use crate::simulator::{Had, Load, Simulator};

fn ns(ms: &str) -> u64 {
    (ms.parse::<f64>().unwrap() * 1e6).round() as u64
}

struct Player {
    simulator: Simulator,
    names: Vec<String>,
    loads: BTreeMap<u64, Load>,
    before: BTreeMap<u64, Had>,
}

/// Plays a script.
pub(crate) fn play(script: &str) {
    let mut player: Option<Player> = None;
    for (number, line) in (1..).zip(script.lines()) {
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["rule", rule] => {
                let rule = match *rule {
                    "fifo" => Rule::Fifo,
                    "credit" => Rule::Credit,
                    "band" => Rule::Band,
                    other => panic!("{other}"),
                };
                let simulator = Simulator::new(Turns::new(rule, Pace::default(), 0));
                player = Some(Player { simulator, names: Vec::new(), loads: BTreeMap::new(), before: BTreeMap::new() });
            }
            words => player.as_mut().expect("a rule first").obey(words, number),
        }
    }
}

impl Player {
    fn key(&self, name: &str) -> u64 {
        self.names.iter().position(|known| known == name).expect(name) as u64
    }

    fn obey(&mut self, words: &[&str], number: usize) {
        match words {
            ["tenant", name, options @ ..] => self.tenant(name, options),
            ["share", name, share @ ..] => {
                let share = share.first().map(|share| share.trim_end_matches('%').parse().unwrap());
                self.simulator.turns.set(self.key(name), share);
            }
            ["leave", name] => self.simulator.leave(self.key(name)),
            ["run", seconds, busy @ ..] => {
                let busy: Vec<u64> = busy.iter().map(|name| self.key(name)).collect();
                for (key, load) in self.loads.clone() {
                    if busy.contains(&key) { self.simulator.begin(key, load) } else { self.simulator.end(key) }
                }
                self.before = self.simulator.had.clone();
                self.simulator.run(ns(seconds) * 1000);
            }
            ["expect", expected @ ..] => self.expect(expected, number),
            [at, event @ ..] => self.event(ns(at), event, number),
            [] => {}
        }
    }

    fn tenant(&mut self, name: &str, options: &[&str]) {
        let mut load = Load { length_ns: 1_000_000, gap_ns: 20_000, depth: 1 };
        let mut share = None;
        for option in options {
            match option.split_once('=') {
                Some(("length", ms)) => load.length_ns = ns(ms),
                Some(("gap", ms)) => load.gap_ns = ns(ms),
                Some(("depth", n)) => load.depth = n.parse().unwrap(),
                _ => share = Some(option.strip_suffix('%').expect(option).parse().unwrap()),
            }
        }
        self.names.push(name.to_owned());
        let key = self.key(name);
        self.loads.insert(key, load);
        self.simulator.turns.set(key, share);
    }

    fn expect(&self, expected: &[&str], number: usize) {
        let since = |key: &u64| self.before.get(key).copied().unwrap_or_default().used_ns;
        let spent: BTreeMap<u64, u64> =
            self.simulator.had.iter().map(|(key, had)| (*key, had.used_ns - since(key))).collect();
        let total: u64 = spent.values().sum();
        for pair in expected {
            let (name, percent) = pair.split_once('=').unwrap();
            let got = 100.0 * spent.get(&self.key(name)).copied().unwrap_or(0) as f64 / total as f64;
            let want: f64 = percent.parse().unwrap();
            assert!((got - want).abs() < 2.0, "line {number}: {name} got {got:.1} %, not {want}; {spent:?}");
        }
    }

    fn event(&mut self, at: u64, event: &[&str], number: usize) {
        let count = |words: &[&str]| words.first().map_or(1, |n| n.parse().unwrap());
        match *event {
            ["submit", name, ref n @ ..] => self.simulator.turns.submitted(self.key(name), count(n), at),
            ["complete", name, ran, ref n @ ..] => {
                self.simulator.turns.completed(self.key(name), count(n), ns(ran), at);
            }
            ["withdraw", name, ref n @ ..] => self.simulator.turns.withdrawn(self.key(name), count(n)),
            ["next", ref wanted @ ..] => {
                let wanted = match *wanted {
                    ["later"] => Next::Later,
                    ["until", ms] => Next::At(ns(ms)),
                    [name] => Next::Run(self.key(name)),
                    _ => panic!("line {number}: {wanted:?}"),
                };
                assert_eq!(self.simulator.turns.next(at), wanted, "line {number}");
            }
            _ => panic!("line {number}: {event:?}"),
        }
    }
}
