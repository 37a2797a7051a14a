//! Text scripts: what happens, and what is decided.
//!
//! ```text
//! gpu 10 [reserve 1] [first-come|best-fit|recent-use|random] [deadlocks]
//! tenant a 8 waits|fails|fixed        # its limit; again: another limit
//! a takes 4 -> ok|no                   # at once or not at all
//! a wants 4 -> ok|waits|never [b a]    # waits if it must; who else is served by that
//! a gives 4 [-> b c]                   # who is served by that
//! a leaves [-> b]
//! a cancels [-> b]                     # its first wait
//! overhead 2 [-> b]
//! a keeps 1 -> ok|no                   # upkeep
//! a unkeeps 1 [-> b]
//! free 3 | safe yes|no | a may have 3|all | waiting b c
//! ```

use std::collections::HashMap;

use tenancy::TenantId;
use tenancy::grant::{Grants, Kind, Order, Rules, Ticket};

struct Player {
    grants: Grants,
    names: Vec<String>,
    waiting: Vec<(Ticket, String)>,
}

impl Player {
    fn id(&mut self, name: &str) -> TenantId {
        let at = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        TenantId(at as u64)
    }

    /// Who has been served, in order.
    fn served(&mut self) -> String {
        let refused = self.grants.refusals();
        self.waiting.retain(|(ticket, _)| !refused.contains(ticket));
        let news = self.grants.news();
        let mut names = Vec::new();
        for ticket in news {
            let at = self.waiting.iter().position(|(waits, _)| *waits == ticket).unwrap();
            names.push(self.waiting.remove(at).1);
            assert!(self.grants.claim(ticket));
        }
        names.join(" ")
    }

    fn wants(&mut self, name: &str, bytes: u64) -> String {
        let id = self.id(name);
        let first = match self.grants.take(id, bytes) {
            Ok(()) => "ok",
            Err(_) => match self.grants.wait(id, bytes) {
                Ok(ticket) => {
                    self.waiting.push((ticket, name.into()));
                    "waits"
                }
                Err(_) => "never",
            },
        };
        let served = self.served();
        format!("{first} {served}").trim().to_owned()
    }

    fn happen(&mut self, words: &[&str]) -> String {
        let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("`{word}` is no number"));
        match *words {
            ["tenant", name, most, kind] => {
                let kind =
                    HashMap::from([("waits", Kind::Waits), ("fails", Kind::Fails), ("fixed", Kind::Fixed)])[kind];
                let id = self.id(name);
                self.grants.set(id, number(most), kind);
                self.served()
            }
            ["overhead", bytes] => {
                self.grants.overhead(number(bytes));
                self.served()
            }
            ["free", bytes] => {
                assert_eq!(self.grants.free(), number(bytes));
                String::new()
            }
            ["safe", is] => {
                assert_eq!(self.grants.is_safe(), is == "yes");
                String::new()
            }
            ["waiting", ref names @ ..] => {
                let waiting: Vec<&str> = self.waiting.iter().map(|(_, name)| name.as_str()).collect();
                assert_eq!(waiting, names);
                String::new()
            }
            [name, "may", "have", bytes] => {
                let id = self.id(name);
                let expected = (bytes != "all").then(|| number(bytes));
                assert_eq!(self.grants.obtainable(id), expected);
                String::new()
            }
            [name, "takes", bytes] => {
                let id = self.id(name);
                if self.grants.take(id, number(bytes)).is_ok() { "ok".into() } else { "no".into() }
            }
            [name, "wants", bytes] => self.wants(name, number(bytes)),
            [name, "keeps", bytes] => {
                let id = self.id(name);
                if self.grants.keep(id, number(bytes)).is_ok() { "ok".into() } else { "no".into() }
            }
            [name, "unkeeps", bytes] => {
                let id = self.id(name);
                self.grants.unkeep(id, number(bytes));
                self.served()
            }
            [name, "gives", bytes] => {
                let id = self.id(name);
                self.grants.give(id, number(bytes));
                self.served()
            }
            [name, "leaves"] => {
                let id = self.id(name);
                self.waiting.retain(|(_, of)| of != name);
                self.grants.leave(id);
                self.served()
            }
            [name, "cancels"] => {
                let at = self.waiting.iter().position(|(_, of)| of == name).unwrap();
                let (ticket, _) = self.waiting.remove(at);
                assert!(self.grants.cancel(ticket));
                self.served()
            }
            _ => panic!("{words:?} means nothing"),
        }
    }
}

fn gpu(words: &[&str]) -> Grants {
    let mut rules = Rules { seed: 7, ..Rules::default() };
    let mut reserve = 0;
    let mut rest = words[2..].iter();
    while let Some(word) = rest.next() {
        match *word {
            "reserve" => reserve = rest.next().unwrap().parse().unwrap(),
            "deadlocks" => rules.avoid_deadlock = false,
            order => rules.order = order.parse::<Order>().unwrap(),
        }
    }
    Grants::new(words[1].parse().unwrap(), reserve, rules)
}

pub(crate) fn play(script: &str) {
    let mut player: Option<Player> = None;
    for (number, line) in (1..).zip(script.lines()) {
        let line = line.split('#').next().unwrap_or("").trim();
        let (event, expected) = line.split_once("->").unwrap_or((line, ""));
        let words: Vec<&str> = event.split_whitespace().collect();
        match (words.first(), &mut player) {
            (None, _) => {}
            (Some(&"gpu"), player) => {
                *player = Some(Player { grants: gpu(&words), names: Vec::new(), waiting: Vec::new() });
            }
            (_, Some(player)) => assert_eq!(player.happen(&words), expected.trim(), "line {number}: {line}"),
            (_, None) => panic!("which GPU?"),
        }
    }
}
