//! What the emitter must know of a kernel before it writes code: [`width::plan_widest`].

mod address;
pub(crate) mod barriers;
pub(crate) mod classes;
pub(crate) mod dead;
mod dominators;
pub(crate) mod early;
pub(crate) mod floats;
pub(crate) mod graph;
pub(crate) mod liveness;
pub(crate) mod lockstep;
pub(crate) mod meeting;
pub(crate) mod operands;
pub(crate) mod pointers;
pub(crate) mod ranges;
mod regions;
pub(crate) mod regset;
pub(crate) mod steps;
mod subnormals;
pub(crate) mod waiting;
pub(crate) mod width;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ptx::ir::{Kernel, Op, Operand, Reg};
use ptx::launch::WARP;

use crate::abi::lane_bytes;
use barriers::FromLast;
use classes::{Class, Shape};
use graph::{Node, NodeId, Ordering};
use liveness::Liveness;
use meeting::Meetings;
use regions::Graph;
use regset::RegSet;

/// Kernels with more nodes are left to the interpreter (real ones have some thousands).
const MAX_NODES: usize = 60_000;
/// The same for registers; their homes in a frame are counted in 32 bits.
const MAX_REGISTERS: usize = 1 << 20;

/// A part of the kernel that is entered at one node only and that each chunk of lanes runs from there to the heads of
/// other regions (or its end), independent of other chunks.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) head: NodeId,
    /// Its nodes in order, the head first.
    pub(crate) nodes: Vec<NodeId>,
    /// Heads to which its lanes may go.
    pub(crate) exits: Vec<NodeId>,
    /// Its head is a loop in which threads may wait for others.
    pub(crate) waits: bool,
    /// Can a chunk have some of its lanes active only?
    pub(crate) masked: bool,
    /// The CTA's last warp is the first to run through it.
    pub(crate) from_last: bool,
}

impl Region {
    /// Registers that it writes, or reads before it writes them.
    pub(crate) fn touched(&self, live: &Liveness) -> RegSet {
        let mut touched = RegSet::default();
        for &n in &self.nodes {
            touched.add(&live.exposed[n]);
            touched.add(&live.defined[n]);
        }
        touched
    }
}

/// Bytes of a warp's frame from which on registers share places in it.
const LARGE_FRAME: u64 = 16 << 10;
/// Steps of a search that is done once more for every branch; behind that, what it would find at worst is taken for granted.
const PATIENCE: usize = 4 << 20;

/// Where a register lives in the frame of its warp while no code holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    /// Offset in the warp's frame, bytes. Varying: an array over the warp's lanes; else 16 bytes per chunk.
    pub(crate) offset: u32,
}

/// The analysed kernel.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ordering: Ordering,
    pub(crate) live: Liveness,
    pub(crate) classes: Vec<Class>,
    /// Nodes at whose end lanes of a chunk may part.
    pub(crate) divergent: Vec<bool>,
    /// Lanes of a chunk may run in any order, whatever region others are in.
    pub(crate) strict: bool,
    pub(crate) meetings: Meetings,
    pub(crate) regions: Vec<Region>,
    /// Region by head node.
    pub(crate) region_of_head: Vec<Option<usize>>,
    pub(crate) homes: Vec<Option<Home>>,
    /// Bytes of a warp's frame.
    pub(crate) frame_bytes: u32,
    /// Homes that must be zero when the CTA starts, as offset and length.
    pub(crate) zeroed: Vec<(u32, u32)>,
}

/// Analyses `kernel`; an error says what is beyond the engine.
///
/// Regions have about `limit` instructions at most.
pub(crate) fn plan(kernel: &Kernel, shape: Shape, limit: usize) -> Result<Plan, String> {
    if kernel.regs.len() > MAX_REGISTERS {
        return Err(format!("{} registers", kernel.regs.len()));
    }
    let nodes = graph::shortened(graph::cut(kernel, &lockstep::cuts(kernel, shape)), limit);
    if nodes.len() > MAX_NODES {
        return Err(format!("{} basic blocks", nodes.len()));
    }
    let successors: Vec<Vec<NodeId>> = nodes.iter().map(Node::successors).collect();
    let ordering = graph::order(&successors).ok_or("loops nested too deeply")?;
    let live = liveness::liveness(kernel, &nodes, &ordering.nodes);
    let post = dominators::post_dominators(&successors);

    let waiting = waiting::headers(kernel, &nodes, &successors, &ordering, &post);
    let (mut classes, mut divergent) = classes::classify(kernel, &nodes, &ordering.nodes, &live, &post, shape, false);
    // Where lanes can be held back (at a barrier, or in a loop that waits) the order of nodes is no longer fixed.
    let held: Vec<bool> = (0..nodes.len())
        .map(|n| waiting[n] || nodes[n].joint(kernel).is_some_and(|i| matches!(i.op, Op::Bar { .. })))
        .collect();
    let meetings = meeting::meetings(kernel, &nodes, &successors, &ordering.nodes, &divergent, &post);
    let strict = meetings.beyond || held_under_divergence(&successors, &divergent, &post, &held);
    if strict {
        (classes, divergent) = classes::classify(kernel, &nodes, &ordering.nodes, &live, &post, shape, true);
    }
    for c in &mut classes {
        if *c == Class::Unknown {
            *c = if shape.lanes == 1 { Class::Same } else { Class::Varying };
        }
    }
    let uneven = strict || !shape.threads().is_multiple_of(shape.lanes) || waits_for_some(kernel);
    let apart = if uneven { vec![true; nodes.len()] } else { apart(&successors, &divergent, &post) };

    let graph = Graph {
        nodes: &nodes,
        successors: &successors,
        ordering: &ordering,
        waiting: &waiting,
        divergent: if strict { &[] } else { &divergent },
        post: &post,
        limit,
    };
    let (mut regions, region_of_head) = graph.regions();
    for region in &mut regions {
        let leaves = |n: NodeId| successors[n].iter().all(|&s| region_of_head[s].is_some());
        region.masked = region.nodes.iter().any(|&n| apart[n] || divergent[n] && !leaves(n));
    }
    let mut plan = Plan {
        shape,
        nodes,
        ordering,
        live,
        classes,
        divergent,
        strict,
        meetings,
        regions,
        region_of_head,
        homes: vec![None; kernel.regs.len()],
        frame_bytes: 0,
        zeroed: Vec::new(),
    };
    plan.place(kernel);
    Ok(plan)
}

/// Nodes at which some lanes of a chunk may be without the others: between a branch that parts them and the place where its sides meet.
fn apart(successors: &[Vec<NodeId>], divergent: &[bool], post: &[Option<NodeId>]) -> Vec<bool> {
    let mut apart = vec![false; successors.len()];
    let mut between = Between::new(successors);
    for branch in (0..successors.len()).filter(|&n| divergent[n]) {
        let mark = |n: NodeId| {
            apart[n] = true;
            Some(())
        };
        if between.visit(&successors[branch], post[branch], mark).is_none() {
            return vec![true; successors.len()];
        }
    }
    apart
}

/// Searches for what lies between branches and the places where their sides meet.
struct Between<'a> {
    successors: &'a [Vec<NodeId>],
    /// By node, the search that has seen it last.
    seen: Vec<usize>,
    searches: usize,
    /// Nodes that may still be looked at.
    left: usize,
}

impl Between<'_> {
    fn new(successors: &[Vec<NodeId>]) -> Between<'_> {
        Between { successors, seen: vec![0; successors.len()], searches: 0, left: PATIENCE }
    }

    /// Calls `f` for the nodes from these sides to where they meet, if they do; none if `f` says so, or if that takes too long.
    fn visit(&mut self, sides: &[NodeId], meet: Option<NodeId>, mut f: impl FnMut(NodeId) -> Option<()>) -> Option<()> {
        self.searches += 1;
        let mut work = sides.to_vec();
        while let Some(n) = work.pop() {
            if Some(n) == meet || std::mem::replace(&mut self.seen[n], self.searches) == self.searches {
                continue;
            }
            self.left = self.left.checked_sub(1)?;
            f(n)?;
            work.extend(&self.successors[n]);
        }
        Some(())
    }
}

/// Are there operations at which some lanes of a chunk may have to wait while others go on: of warps, with masks that do not name all
/// lanes, or are not known; barriers that are not for all threads, or not known?
fn waits_for_some(kernel: &Kernel) -> bool {
    let some = |op: &Op| match op {
        Op::Bar { id, count, .. } => count.is_some() || matches!(id, Operand::Reg(_)),
        op => !matches!(ptx::warp::mask(op), None | Some(Operand::Imm(0xffff_ffff))),
    };
    kernel.blocks.iter().flat_map(|block| &block.insts).any(|inst| some(&inst.op))
}

/// Is a node at which lanes are held back between a divergent branch and the place where its sides meet (other than the
/// end of the thread, for which the general rule suffices)?
fn held_under_divergence(
    successors: &[Vec<NodeId>],
    divergent: &[bool],
    post: &[Option<NodeId>],
    held: &[bool],
) -> bool {
    if !held.contains(&true) {
        return false;
    }
    let mut between = Between::new(successors);
    (0..successors.len()).filter(|&n| divergent[n]).any(|branch| {
        let free = |n: NodeId| (!held[n]).then_some(());
        post[branch].is_some_and(|end| between.visit(&successors[branch], Some(end), free).is_none())
    })
}

impl Plan {
    /// Lanes of a chunk.
    pub(crate) fn lanes(&self) -> u32 {
        self.shape.lanes
    }

    /// Says of each region in which order warps run through it.
    pub(crate) fn set_order(&mut self, from_last: &FromLast) {
        let nodes = &self.nodes;
        let is_from_last = |&n: &NodeId| {
            let Node { block, begin, end, joints, .. } = nodes[n];
            from_last.contains_some(block, &(begin + joints..end))
        };
        for region in &mut self.regions {
            region.from_last = region.nodes.iter().any(is_from_last);
        }
    }

    /// Is the edge to `n` one that leaves its region?
    pub(crate) fn is_head(&self, n: NodeId) -> bool {
        self.region_of_head[n].is_some()
    }

    /// Gives every register that outlives a node a home in the frame.
    fn place(&mut self, kernel: &Kernel) {
        let mut need = RegSet::default();
        let mut masked = vec![false; self.nodes.len()];
        for &n in self.regions.iter().filter(|region| region.masked).flat_map(|region| &region.nodes) {
            masked[n] = true;
        }
        for (n, masked) in masked.into_iter().enumerate() {
            if n != 0 && (masked || self.is_head(n)) {
                need.add(&self.live.live_in[n]);
            }
            if self.nodes[n].joints > 0 {
                // A joint operation reads and writes homes.
                need.add(&self.live.exposed[n]);
                for inst in self.nodes[n].joints(kernel) {
                    for r in operands::writes(&inst.op) {
                        need.insert(r);
                    }
                }
            }
        }
        need.add(&self.live.live_in[0]);
        let need: Vec<Reg> = need.iter().collect();
        let bytes = |classes: &[Class], r: Reg| match classes[r.0 as usize] {
            Class::Varying => WARP * lane_bytes(kernel.regs[r.0 as usize]),
            _ => 16 * (WARP / self.shape.lanes),
        };
        let whole: u64 = need.iter().map(|&r| u64::from(bytes(&self.classes, r))).sum();
        let spans = if whole > LARGE_FRAME { self.spans() } else { HashMap::new() };
        // Places that are free again, by size, from the position of a node on.
        let mut free: HashMap<u32, BinaryHeap<Reverse<(usize, u32)>>> = HashMap::new();
        let mut order: Vec<Reg> = need;
        order.sort_by_key(|r| spans.get(r).map_or(0, |span| span.0));
        let mut offset = 0;
        for r in order {
            let bytes = bytes(&self.classes, r);
            let zeroed = self.live.live_in[0].contains(r);
            // Only what has a place for every lane can share it: lanes of a chunk may be at different nodes.
            let span = spans.get(&r).filter(|_| self.classes[r.0 as usize] == Class::Varying && !zeroed);
            let places = free.entry(bytes).or_default();
            let at = match (span, places.peek()) {
                (Some(&(begin, _)), Some(&Reverse((from, at)))) if from < begin => {
                    places.pop();
                    at
                }
                _ => {
                    offset += bytes;
                    offset - bytes
                }
            };
            if let Some(&(_, end)) = span {
                places.push(Reverse((end, at)));
            }
            if zeroed {
                self.zeroed.push((at, bytes));
            }
            self.homes[r.0 as usize] = Some(Home { offset: at });
        }
        // Odd multiples of a cache line, so that the frames of warps do not fall on the same cache sets.
        self.frame_bytes = (offset.next_multiple_of(64) | 64).max(64);
    }

    /// From which position of a node to which one registers are alive, or written.
    fn spans(&self) -> HashMap<Reg, (usize, usize)> {
        let mut spans: HashMap<Reg, (usize, usize)> = HashMap::new();
        for (at, &n) in self.ordering.nodes.iter().enumerate() {
            for set in [&self.live.live_in[n], &self.live.exposed[n], &self.live.defined[n]] {
                for r in set.iter() {
                    spans.entry(r).or_insert((at, at)).1 = at;
                }
            }
        }
        spans
    }

    /// The home of a register that has one.
    pub(crate) fn home(&self, r: Reg) -> Option<Home> {
        self.homes[r.0 as usize]
    }
}
