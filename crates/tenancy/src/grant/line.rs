//! Tenants in the order of what they still need, and whether all of them can be served in it.
//!
//! With one resource the order of need is the one to look at: if all can be served in some order, they can in this one. The
//! first must be content with what is free; each who is served gives back what he held, for the next. So a state is safe if
//! for each tenant `free + what those before him hold >= what he needs`.
//!
//! A balanced tree by need, in which each node knows what its subtree holds and the least *slack* in it: what those before
//! hold, less what is needed. A change, and the question whether a change would be safe, take a logarithm of the tenants.

/// In place of a node's number: there is none.
const NONE: u32 = u32::MAX;

/// Place in the order: need, then number.
type Key = (u64, u32);

#[derive(Clone, Debug)]
struct Node {
    key: Key,
    held: u64,
    /// Random, so that the tree is balanced whatever tenants need.
    priority: u64,
    left: u32,
    right: u32,
    /// Held in the subtree.
    sum: u128,
    /// Least slack in the subtree, counting those in it alone.
    slack: i128,
}

/// What stands before a place in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Before {
    /// What they hold together.
    pub(crate) held: u128,
    /// The least of what is held before one of them, less what that one needs; nobody: more than anything.
    pub(crate) slack: i128,
}

impl Before {
    const NOBODY: Before = Before { held: 0, slack: i128::MAX };

    fn then(self, next: Before) -> Before {
        let held = self.held + next.held;
        Before { held, slack: self.slack.min(next.slack.saturating_add_unsigned(self.held)) }
    }
}

/// The tenants, by number.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    nodes: Vec<Node>,
    root: u32,
}

impl Line {
    pub(crate) fn new() -> Line {
        Line { nodes: Vec::new(), root: NONE }
    }

    /// Puts tenant `number`, who is not in it, in line.
    pub(crate) fn insert(&mut self, number: u32, need: u64, held: u64) {
        let at = number as usize;
        if self.nodes.len() <= at {
            let empty = Node { key: (0, 0), held: 0, priority: 0, left: NONE, right: NONE, sum: 0, slack: 0 };
            self.nodes.resize(at + 1, empty);
        }
        let key = (need, number);
        self.nodes[at] = Node { key, held, priority: mix(number.into()), left: NONE, right: NONE, sum: 0, slack: 0 };
        self.sum_up(number);
        let (before, after) = self.split(self.root, key);
        let before = self.merge(before, number);
        self.root = self.merge(before, after);
    }

    /// Takes tenant `number`, who is in it, out.
    pub(crate) fn remove(&mut self, number: u32) {
        let key = self.nodes[number as usize].key;
        let (before, rest) = self.split(self.root, key);
        let (itself, after) = self.split(rest, (key.0, key.1 + 1));
        debug_assert_eq!(itself, number, "a tenant stands where its need says");
        self.root = self.merge(before, after);
    }

    /// Those who need less than `need`, or as much and have a lower number than `number`.
    pub(crate) fn before(&self, need: u64, number: u32) -> Before {
        let (mut at, mut before) = (self.root, Before::NOBODY);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.key < (need, number) {
                before = before.then(self.of(node.left)).then(Line::alone(node));
                at = node.right;
            } else {
                at = node.left;
            }
        }
        before
    }

    /// All of them.
    pub(crate) fn all(&self) -> Before {
        self.of(self.root)
    }

    fn of(&self, at: u32) -> Before {
        self.nodes.get(at as usize).map_or(Before::NOBODY, |node| Before { held: node.sum, slack: node.slack })
    }

    fn alone(node: &Node) -> Before {
        Before { held: node.held.into(), slack: -i128::from(node.key.0) }
    }

    fn sum_up(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let Before { held, slack } = self.of(node.left).then(Line::alone(node)).then(self.of(node.right));
        let node = &mut self.nodes[at as usize];
        (node.sum, node.slack) = (held, slack);
    }

    /// Those before `key`, and the others.
    fn split(&mut self, at: u32, key: Key) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let Node { key: own, left, right, .. } = self.nodes[at as usize];
        if own < key {
            let (before, after) = self.split(right, key);
            self.nodes[at as usize].right = before;
            self.sum_up(at);
            (at, after)
        } else {
            let (before, after) = self.split(left, key);
            self.nodes[at as usize].left = after;
            self.sum_up(at);
            (before, at)
        }
    }

    /// All of `a` stand before all of `b`.
    fn merge(&mut self, a: u32, b: u32) -> u32 {
        if a == NONE || b == NONE {
            return if a == NONE { b } else { a };
        }
        if self.nodes[a as usize].priority > self.nodes[b as usize].priority {
            let right = self.nodes[a as usize].right;
            self.nodes[a as usize].right = self.merge(right, b);
            self.sum_up(a);
            a
        } else {
            let left = self.nodes[b as usize].left;
            self.nodes[b as usize].left = self.merge(a, left);
            self.sum_up(b);
            b
        }
    }
}

/// A number that looks random (SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The tree says what a sorted list says.
        #[test]
        fn it_is_a_sorted_list(changes in prop::collection::vec((0u32..24, 0u64..9, 0u64..9), 1..120)) {
            let mut line = Line::new();
            let mut list: Vec<(Key, u64)> = Vec::new();
            for (number, need, held) in changes {
                match list.iter().position(|((_, other), _)| *other == number) {
                    Some(at) => {
                        list.remove(at);
                        line.remove(number);
                    }
                    None => {
                        list.push(((need, number), held));
                        line.insert(number, need, held);
                    }
                }
                list.sort_unstable();
                let naive = |key: Key| {
                    let (mut sum, mut slack) = (0u64, i128::MAX);
                    for ((need, _), held) in list.iter().filter(|(own, _)| *own < key) {
                        slack = slack.min(i128::from(sum) - i128::from(*need));
                        sum += held;
                    }
                    Before { held: sum.into(), slack }
                };
                for key in (0..10).flat_map(|need| [(need, 0), (need, 12), (need, 24)]) {
                    prop_assert_eq!(line.before(key.0, key.1), naive(key));
                }
                prop_assert_eq!(line.all(), naive((u64::MAX, 0)));
            }
        }
    }
}
