//! Dividing the nodes into regions.
//!
//! A region has one entry, its head, and is compiled as one function. Some nodes must be heads: the entry, where lanes
//! wait for one another, loops in which threads wait. A node that is reached from two regions is one, too. Compilers of
//! functions take more than twice the time for twice the size, so regions also have a most size: one that is larger is
//! cut, along the tree of dominators, into pieces that are about as large as may be. Loops that would fit in one piece
//! are not cut.

use std::collections::HashSet;

use super::Region;
use super::dominators::{dominators, reversed};
use super::graph::{Node, NodeId, Ordering};

/// Rounds of looking for nodes that are reached from two regions; then every node with two predecessors is a head.
const MAX_ROUNDS: usize = 32;
/// Pieces that are smaller than this part of the most size are not cut off.
const LEAST: usize = 16;
/// What a node costs apart from its instructions, in instructions.
const NODE_SIZE: usize = 2;

/// What regions are made of.
pub(crate) struct Graph<'a> {
    pub(crate) nodes: &'a [Node],
    pub(crate) successors: &'a [Vec<NodeId>],
    pub(crate) ordering: &'a Ordering,
    /// Headers of loops in which threads wait for others.
    pub(crate) waiting: &'a [bool],
    /// Nodes at whose end lanes of a chunk may part, if it matters in which order they go on.
    pub(crate) divergent: &'a [bool],
    /// Where they meet again.
    pub(crate) post: &'a [Option<NodeId>],
    /// Most instructions of a region, about.
    pub(crate) limit: usize,
}

impl Graph<'_> {
    /// The regions in program order, and by head node.
    pub(crate) fn regions(&self) -> (Vec<Region>, Vec<Option<usize>>) {
        let count = self.nodes.len();
        let mut head: Vec<bool> = (0..count)
            .map(|n| n == 0 || self.nodes[n].joints > 0 || self.nodes[n].together || self.waiting[n])
            .collect();
        let predecessors = reversed(self.successors);
        let mut owner = self.owners(&predecessors, &mut head);
        if self.cut(&owner, &mut head) {
            owner = self.owners(&predecessors, &mut head);
        }
        while self.close_loops(&mut head) {
            owner = self.owners(&predecessors, &mut head);
        }
        self.collect(&head, &owner)
    }

    fn size(&self, n: NodeId) -> usize {
        let node = &self.nodes[n];
        NODE_SIZE + node.end - node.begin + self.successors[n].len().saturating_sub(2)
    }

    /// The head of each node's region. A node that is reached from two becomes a head itself.
    fn owners(&self, predecessors: &[Vec<NodeId>], head: &mut [bool]) -> Vec<Option<NodeId>> {
        let count = self.nodes.len();
        let mut owner: Vec<Option<NodeId>> = vec![None; count];
        for round in 0.. {
            if round == MAX_ROUNDS {
                for n in 0..count {
                    head[n] |= predecessors[n].len() > 1;
                }
            }
            for n in 0..count {
                owner[n] = head[n].then_some(n);
            }
            let mut changed = true;
            let mut new_head = false;
            while changed {
                changed = false;
                for &n in &self.ordering.nodes {
                    if head[n] {
                        continue;
                    }
                    let mut found = owner[n];
                    for &p in &predecessors[n] {
                        match (found, owner[p]) {
                            (None, o) => found = o,
                            (Some(a), Some(b)) if a != b => {
                                head[n] = true;
                                new_head = true;
                                found = Some(n);
                                break;
                            }
                            _ => {}
                        }
                    }
                    if found != owner[n] {
                        owner[n] = found;
                        changed = true;
                    }
                }
            }
            if !new_head {
                break;
            }
        }
        owner
    }

    /// Makes heads of nodes in regions that are too large; true if there were any.
    fn cut(&self, owner: &[Option<NodeId>], head: &mut [bool]) -> bool {
        let mut whole = vec![0; self.nodes.len()];
        for (n, owner) in owner.iter().enumerate() {
            if let Some(owner) = *owner {
                whole[owner] += self.size(n);
            }
        }
        if whole.iter().all(|&size| size <= self.limit) {
            return false;
        }
        let dominator = dominators(self.successors, 0);
        let kept = self.in_small_loops();
        let mut children: Vec<Vec<NodeId>> = vec![Vec::new(); self.nodes.len()];
        // Sizes of what is left of each node and what it dominates, from the leaves of the tree upwards.
        let mut left = vec![0; self.nodes.len()];
        for &n in self.ordering.nodes.iter().rev() {
            left[n] = self.size(n) + children[n].iter().map(|&c| left[c]).sum::<usize>();
            if left[n] > self.limit {
                // A region of its own for a few instructions costs more than it saves.
                let worth = |&c: &NodeId| !kept[c] && left[c] >= self.limit / LEAST;
                let mut list: Vec<NodeId> = children[n].iter().copied().filter(worth).collect();
                list.sort_by_key(|&c| left[c]);
                while left[n] > self.limit
                    && let Some(largest) = list.pop()
                {
                    left[n] -= left[largest];
                    head[largest] = true;
                }
            }
            let parent = dominator[n].filter(|_| !head[n]);
            if let Some(parent) = parent {
                children[parent].push(n);
            }
        }
        true
    }

    /// Nodes in loops that fit into a piece of a region, but for the first of these loops.
    fn in_small_loops(&self) -> Vec<bool> {
        let mut sums = vec![0];
        for &n in &self.ordering.nodes {
            sums.push(sums.last().copied().unwrap_or(0) + self.size(n));
        }
        let mut kept = vec![false; self.nodes.len()];
        let mut end_of_last = 0;
        for &(begin, end) in &self.ordering.loops {
            // Outer loops come before inner ones.
            if begin >= end_of_last && sums[end + 1] - sums[begin] <= self.limit / 2 {
                self.ordering.nodes[begin + 1..=end].iter().for_each(|&n| kept[n] = true);
                end_of_last = end + 1;
            }
        }
        kept
    }

    /// What is behind a loop must not run while lanes of the same chunk are still in it: they may count on their meeting
    /// there. In a loop inside one region, its code sees to that; behind one that lies in several, a new region begins, if
    /// lanes can leave it one by one. True if that made a head of something.
    fn close_loops(&self, head: &mut [bool]) -> bool {
        let position = &self.ordering.position;
        let mut changed = false;
        for &(begin, end) in self.ordering.loops.iter().rev() {
            let inside = &self.ordering.nodes[begin..=end];
            let within = |n: NodeId| begin <= position[n] && position[n] <= end;
            let ragged = |&n: &NodeId| {
                self.divergent.get(n) == Some(&true) && self.post[n].is_none_or(|meeting| !within(meeting))
            };
            if !inside.iter().any(|&n| head[n]) || !inside.iter().any(ragged) {
                continue;
            }
            for &s in inside.iter().flat_map(|&n| &self.successors[n]).filter(|&&s| !within(s)) {
                changed |= !std::mem::replace(&mut head[s], true);
            }
        }
        changed
    }

    fn collect(&self, head: &[bool], owner: &[Option<NodeId>]) -> (Vec<Region>, Vec<Option<usize>>) {
        let mut regions = Vec::new();
        let mut region_of_head = vec![None; self.nodes.len()];
        for &n in &self.ordering.nodes {
            if head[n] {
                region_of_head[n] = Some(regions.len());
                regions.push(Region {
                    head: n,
                    nodes: vec![n],
                    exits: Vec::new(),
                    waits: self.waiting[n],
                    masked: true,
                    from_last: false,
                });
            }
        }
        let mut exits: HashSet<(usize, NodeId)> = HashSet::new();
        for &n in &self.ordering.nodes {
            let Some(index) = owner[n].and_then(|o| region_of_head[o]) else { continue };
            let region: &mut Region = &mut regions[index];
            if n != region.head {
                region.nodes.push(n);
            }
            for &s in &self.successors[n] {
                if head[s] && exits.insert((index, s)) {
                    region.exits.push(s);
                }
            }
        }
        (regions, region_of_head)
    }
}
