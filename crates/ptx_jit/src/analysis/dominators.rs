//! Dominators and post-dominators, in nearly linear time whatever the graph (Lengauer and Tarjan).

use super::graph::NodeId;

const NONE: usize = usize::MAX;

/// Immediate dominators of a graph with an entry; `None` for the entry, and for what cannot be reached.
pub(crate) fn dominators(successors: &[Vec<NodeId>], entry: NodeId) -> Vec<Option<NodeId>> {
    let mut search = Search::new(successors.len());
    search.run(successors, entry);
    search.dominators(&reversed(successors))
}

/// Immediate post-dominators; `None` where only the end of the thread post-dominates (or an endless loop).
pub(crate) fn post_dominators(successors: &[Vec<NodeId>]) -> Vec<Option<NodeId>> {
    let count = successors.len();
    // From the end of the thread, backwards.
    let mut backwards = reversed(successors);
    backwards.push((0..count).filter(|&n| successors[n].is_empty()).collect());
    let mut forwards: Vec<Vec<NodeId>> = successors.to_vec();
    forwards.push(Vec::new());
    for &n in &backwards[count] {
        forwards[n].push(count);
    }
    let mut search = Search::new(count + 1);
    search.run(&backwards, count);
    let mut found = search.dominators(&forwards);
    found.truncate(count);
    found.into_iter().map(|n| n.filter(|&n| n < count)).collect()
}

/// A tree of dominators, in which it is quickly told who dominates whom.
pub(crate) struct Tree {
    /// By node: when a walk through the tree comes to it, and when it has seen all below.
    spans: Vec<(usize, usize)>,
}

impl Tree {
    /// From immediate dominators.
    pub(crate) fn new(immediate: &[Option<NodeId>]) -> Tree {
        let mut below = vec![Vec::new(); immediate.len()];
        for (n, above) in immediate.iter().enumerate() {
            if let Some(above) = above {
                below[*above].push(n);
            }
        }
        let mut spans = vec![(0, 0); immediate.len()];
        let mut clock = 0;
        let mut work: Vec<(NodeId, bool)> =
            (0..immediate.len()).filter(|&n| immediate[n].is_none()).map(|n| (n, false)).collect();
        while let Some((n, seen)) = work.pop() {
            clock += 1;
            if seen {
                spans[n].1 = clock;
            } else {
                spans[n].0 = clock;
                work.push((n, true));
                work.extend(below[n].iter().map(|&n| (n, false)));
            }
        }
        Tree { spans }
    }

    /// Does every way to `b` lead through `a`, or are they the same?
    pub(crate) fn dominates(&self, a: NodeId, b: NodeId) -> bool {
        self.spans[a].0 <= self.spans[b].0 && self.spans[b].1 <= self.spans[a].1
    }
}

/// The edges the other way round.
pub(crate) fn reversed(successors: &[Vec<NodeId>]) -> Vec<Vec<NodeId>> {
    let mut out = vec![Vec::new(); successors.len()];
    for (n, list) in successors.iter().enumerate() {
        for &s in list {
            out[s].push(n);
        }
    }
    out
}

/// A depth-first search. All but `number` and `node` is by the number that a node got in it.
struct Search {
    number: Vec<usize>,
    node: Vec<NodeId>,
    parent: Vec<usize>,
    /// The best semidominator on the way to the ancestor that is linked.
    label: Vec<usize>,
    semi: Vec<usize>,
    ancestor: Vec<usize>,
}

impl Search {
    fn new(count: usize) -> Search {
        Search {
            number: vec![NONE; count],
            node: Vec::with_capacity(count),
            parent: Vec::with_capacity(count),
            label: Vec::new(),
            semi: Vec::new(),
            ancestor: Vec::new(),
        }
    }

    fn run(&mut self, successors: &[Vec<NodeId>], entry: NodeId) {
        let mut work = vec![(entry, NONE)];
        while let Some((n, parent)) = work.pop() {
            if self.number[n] != NONE {
                continue;
            }
            let mine = self.node.len();
            self.number[n] = mine;
            self.node.push(n);
            self.parent.push(parent);
            work.extend(successors[n].iter().rev().filter(|&&s| self.number[s] == NONE).map(|&s| (s, mine)));
        }
        self.label = (0..self.node.len()).collect();
        self.semi = self.label.clone();
        self.ancestor = vec![NONE; self.node.len()];
    }

    fn dominators(mut self, predecessors: &[Vec<NodeId>]) -> Vec<Option<NodeId>> {
        let count = self.node.len();
        let mut dominator = vec![NONE; count];
        let mut bucket: Vec<Vec<usize>> = vec![Vec::new(); count];
        for v in (1..count).rev() {
            for &p in &predecessors[self.node[v]] {
                let p = self.number[p];
                if p != NONE {
                    let best = self.best(p);
                    self.semi[v] = self.semi[v].min(self.semi[best]);
                }
            }
            bucket[self.semi[v]].push(v);
            let parent = self.parent[v];
            self.ancestor[v] = parent;
            for w in std::mem::take(&mut bucket[parent]) {
                let best = self.best(w);
                dominator[w] = if self.semi[best] < self.semi[w] { best } else { parent };
            }
        }
        let mut found = vec![None; self.number.len()];
        for v in 1..count {
            if dominator[v] != self.semi[v] {
                dominator[v] = dominator[dominator[v]];
            }
            found[self.node[v]] = Some(self.node[dominator[v]]);
        }
        found
    }

    /// Of the nodes from `v` to the top of what is linked, the one with the least semidominator; paths are compressed.
    fn best(&mut self, v: usize) -> usize {
        if self.ancestor[v] == NONE {
            return self.label[v];
        }
        let mut path = vec![v];
        let mut at = self.ancestor[v];
        while self.ancestor[at] != NONE {
            path.push(at);
            at = self.ancestor[at];
        }
        // The one below the top keeps its label; those below it, from above.
        while let Some(v) = path.pop() {
            let above = self.ancestor[v];
            if self.ancestor[above] != NONE {
                if self.semi[self.label[above]] < self.semi[self.label[v]] {
                    self.label[v] = self.label[above];
                }
                self.ancestor[v] = self.ancestor[above];
            }
        }
        self.label[v]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is reached from `entry` without `without`.
    fn reached(successors: &[Vec<NodeId>], entry: NodeId, without: Option<NodeId>) -> Vec<bool> {
        let mut seen = vec![false; successors.len()];
        let mut work = vec![entry];
        while let Some(n) = work.pop() {
            if Some(n) != without && !std::mem::replace(&mut seen[n], true) {
                work.extend(&successors[n]);
            }
        }
        seen
    }

    /// Random graphs, against the definition: without a dominator a node is not reached, and of all dominators the
    /// immediate one is dominated by all others.
    #[test]
    fn agree_with_the_definition() {
        let mut state = 7_u32;
        let mut random = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        for _ in 0..300 {
            let count = 1 + random(12);
            let successors: Vec<Vec<NodeId>> =
                (0..count).map(|_| (0..random(3)).map(|_| random(count)).collect()).collect();
            let found = dominators(&successors, 0);
            let all = reached(&successors, 0, None);
            let dominates: Vec<Vec<bool>> = (0..count)
                .map(|d| reached(&successors, 0, Some(d)).iter().zip(&all).map(|(r, a)| *a && !r).collect())
                .collect();
            for n in 0..count {
                let strict: Vec<NodeId> = (0..count).filter(|&d| d != n && dominates[d][n]).collect();
                let immediate = strict.iter().copied().find(|&d| strict.iter().all(|&other| dominates[other][d]));
                assert_eq!(found[n], immediate, "node {n} of {successors:?}");
            }
            // Post-dominators are dominators of the graph turned round, from one end behind all ends.
            let mut turned = reversed(&successors);
            turned.push((0..count).filter(|&n| successors[n].is_empty()).collect());
            let twin = dominators(&turned, count);
            let post = post_dominators(&successors);
            for n in 0..count {
                assert_eq!(post[n], twin[n].filter(|&d| d < count), "node {n} of {successors:?}");
            }
        }
    }
}
