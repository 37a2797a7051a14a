//! What the emitter must know of a kernel before it writes code: [`width::plan_widest`].

pub(crate) mod classes;
pub(crate) mod dead;
pub(crate) mod graph;
pub(crate) mod liveness;
pub(crate) mod operands;
pub(crate) mod width;

use ptx::ir::{Kernel, Op, Reg, RegTy};
use ptx::launch::WARP;

use classes::{Class, Shape};
use graph::{Node, NodeId, Ordering};
use liveness::Liveness;

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
}

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
    /// Can a chunk have some of its lanes active only?
    pub(crate) masked: bool,
    /// Lanes of a chunk may run in any order, whatever region others are in.
    pub(crate) strict: bool,
    pub(crate) regions: Vec<Region>,
    /// Region by head node.
    pub(crate) region_of_head: Vec<Option<usize>>,
    pub(crate) homes: Vec<Option<Home>>,
    /// Bytes of a warp's frame.
    pub(crate) frame_bytes: u32,
    /// Homes that must be zero when the CTA starts, as offset and length.
    pub(crate) zeroed: Vec<(u32, u32)>,
}

/// Bytes of a lane of a register in memory; predicates and 16-bit registers take 32 bits, as in vectors.
pub(crate) fn lane_bytes(ty: RegTy) -> u32 {
    match ty {
        RegTy::Pred | RegTy::B16 | RegTy::B32 => 4,
        RegTy::B64 => 8,
        RegTy::B128 => 16,
    }
}

/// Analyses `kernel`; an error says what is beyond the engine.
pub(crate) fn plan(kernel: &Kernel, shape: Shape) -> Result<Plan, String> {
    if kernel.regs.len() > MAX_REGISTERS {
        return Err(format!("{} registers", kernel.regs.len()));
    }
    let nodes = graph::cut(kernel);
    if nodes.len() > MAX_NODES {
        return Err(format!("{} basic blocks", nodes.len()));
    }
    let successors: Vec<Vec<NodeId>> = nodes.iter().map(Node::successors).collect();
    let ordering = graph::order(&successors).ok_or("loops nested too deeply")?;
    let live = liveness::liveness(kernel, &nodes, &ordering.nodes);
    let post = liveness::post_dominators(&successors, &ordering.nodes);

    let waiting = waiting_headers(kernel, &nodes, &ordering);
    let (mut classes, mut divergent) = classes::classify(kernel, &nodes, &live, &post, shape, false);
    // Where lanes can be held back (at a barrier, or in a loop that waits) the order of nodes is no longer fixed.
    let held: Vec<bool> = (0..nodes.len())
        .map(|n| waiting[n] || nodes[n].joint(kernel).is_some_and(|i| matches!(i.op, Op::Bar { .. })))
        .collect();
    let strict = held_under_divergence(&successors, &divergent, &post, &held);
    if strict {
        (classes, divergent) = classes::classify(kernel, &nodes, &live, &post, shape, true);
    }
    for c in &mut classes {
        if *c == Class::Unknown {
            *c = Class::Varying;
        }
    }
    let masked = divergent.iter().any(|&d| d) || !shape.threads().is_multiple_of(shape.lanes);

    let (regions, region_of_head) = regions(&nodes, &successors, &ordering, &waiting);
    let mut plan = Plan {
        shape,
        nodes,
        ordering,
        live,
        classes,
        divergent,
        masked,
        strict,
        regions,
        region_of_head,
        homes: vec![None; kernel.regs.len()],
        frame_bytes: 0,
        zeroed: Vec::new(),
    };
    plan.place(kernel);
    Ok(plan)
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
    let mut seen = vec![0_usize; successors.len()];
    for branch in (0..successors.len()).filter(|&n| divergent[n]) {
        let Some(end) = post[branch] else { continue };
        let mut work = successors[branch].clone();
        while let Some(n) = work.pop() {
            if n == end || std::mem::replace(&mut seen[n], branch + 1) == branch + 1 {
                continue;
            }
            if held[n] {
                return true;
            }
            work.extend(&successors[n]);
        }
    }
    false
}

/// Headers of innermost loops that hold an operation by which threads wait for others.
fn waiting_headers(kernel: &Kernel, nodes: &[Node], ordering: &Ordering) -> Vec<bool> {
    let mut header = vec![false; nodes.len()];
    for (at, &n) in ordering.nodes.iter().enumerate() {
        if nodes[n].body(kernel).iter().any(|i| graph::may_wait(&i.op)) {
            let innermost = ordering.loops.iter().filter(|&&(b, e)| b <= at && at <= e).max_by_key(|&&(b, _)| b);
            if let Some(&(begin, _)) = innermost {
                header[ordering.nodes[begin]] = true;
            }
        }
    }
    header
}

/// Divides the nodes into regions.
fn regions(
    nodes: &[Node],
    successors: &[Vec<NodeId>],
    ordering: &Ordering,
    waiting: &[bool],
) -> (Vec<Region>, Vec<Option<usize>>) {
    let mut head: Vec<bool> = (0..nodes.len()).map(|n| n == 0 || nodes[n].sync || waiting[n]).collect();
    let mut predecessors = vec![Vec::new(); nodes.len()];
    for (n, list) in successors.iter().enumerate() {
        for &s in list {
            predecessors[s].push(n);
        }
    }
    // Owner of each node: the one head from which it is reached. A node reached from two becomes a head itself.
    let mut owner: Vec<Option<NodeId>> = vec![None; nodes.len()];
    loop {
        for n in 0..nodes.len() {
            owner[n] = head[n].then_some(n);
        }
        let mut changed = true;
        let mut new_head = false;
        while changed {
            changed = false;
            for &n in &ordering.nodes {
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
    let mut regions = Vec::new();
    let mut region_of_head = vec![None; nodes.len()];
    for &n in &ordering.nodes {
        if head[n] {
            region_of_head[n] = Some(regions.len());
            regions.push(Region { head: n, nodes: Vec::new(), exits: Vec::new(), waits: waiting[n] });
        }
    }
    for &n in &ordering.nodes {
        let Some(region) = owner[n].and_then(|o| region_of_head[o]) else { continue };
        let region: &mut Region = &mut regions[region];
        if n == region.head {
            region.nodes.insert(0, n);
        } else {
            region.nodes.push(n);
        }
        for &s in &successors[n] {
            if head[s] && !region.exits.contains(&s) {
                region.exits.push(s);
            }
        }
    }
    (regions, region_of_head)
}

impl Plan {
    /// Lanes of a chunk.
    pub(crate) fn lanes(&self) -> u32 {
        self.shape.lanes
    }

    /// Is the edge to `n` one that leaves its region?
    pub(crate) fn is_head(&self, n: NodeId) -> bool {
        self.region_of_head[n].is_some()
    }

    /// Gives every register that outlives a node a home in the frame.
    fn place(&mut self, kernel: &Kernel) {
        let mut need = liveness::RegSet::new(kernel.regs.len());
        for n in 0..self.nodes.len() {
            if n != 0 && (self.masked || self.is_head(n)) {
                need.add(&self.live.live_in[n]);
            }
            if self.nodes[n].sync {
                // A joint operation reads and writes homes.
                need.add(&self.live.exposed[n]);
                if let Some(inst) = self.nodes[n].joint(kernel) {
                    for r in operands::writes(&inst.op) {
                        need.insert(r);
                    }
                }
            }
        }
        need.add(&self.live.live_in[0]);
        let chunks = WARP / self.lanes();
        let mut offset = 0;
        let mut zeroed = Vec::new();
        let list: Vec<Reg> = need.iter().collect();
        for r in list {
            let at = r.0 as usize;
            let bytes = match self.classes[at] {
                Class::Varying => WARP * lane_bytes(kernel.regs[at]),
                _ => 16 * chunks,
            };
            self.homes[at] = Some(Home { offset });
            if self.live.live_in[0].contains(r) {
                zeroed.push((offset, bytes));
            }
            offset += bytes;
        }
        // Odd multiples of a cache line, so that the frames of warps do not fall on the same cache sets.
        self.frame_bytes = (offset.next_multiple_of(64) | 64).max(64);
        self.zeroed = zeroed;
    }

    /// The home of a register that has one.
    pub(crate) fn home(&self, r: Reg) -> Option<Home> {
        self.homes[r.0 as usize]
    }
}
