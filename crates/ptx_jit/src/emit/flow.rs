//! The control flow of a region.
//!
//! Per node there are up to two pieces of code. The full one is for chunks all of whose lanes are there: plain control
//! flow, registers in Cranelift variables. The masked one is for the rest: a pending word per node (one bit per lane, in
//! the function's stack frame); nodes are tried in order, each takes its pending lanes, runs under their mask on
//! registers loaded from and stored to the warp's frame, and distributes its lanes to its successors. At the end of a
//! loop's nodes, control returns to the header while lanes are pending there. A branch that splits a full chunk goes
//! over to masked code, unless the one way is a few instructions that lead to the other: those some lanes do in full code. A
//! node at which all lanes of a chunk have met goes back to full code.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, Inst, InstBuilder, MemFlagsData, StackSlot, Value, types};
use cranelift_frontend::{FunctionBuilder, Switch};
use ptx::ir::{Kernel, Op, Operand, PredRef, Reg, RegTy};
use ptx::launch::WARP;

use super::rare::Rare;
use super::warps::Warps;
use super::{Chunk, Emit, Mask, Unsupported, Val, invariants, own, slot, trusted};
use crate::abi::context::at;
use crate::abi::{Attached, Helper};
use crate::analysis::classes::Class;
use crate::analysis::floats::Floats;
use crate::analysis::graph::{NodeId, NodeTerm, Ordering};
use crate::analysis::operands;
use crate::analysis::pointers::Pointers;
use crate::analysis::regset::RegSet;
use crate::analysis::steps::Steps;
use crate::analysis::{Plan, Region};

/// Vector instructions of a node for which there is code of its own beside that of full chunks: of a loop, while lanes leave it one by one;
/// of what some lanes do before they go on with the others.
const THIN: usize = 256;
/// Vectors of a register that are many: the processor has 16 for all.
const MANY_VECTORS: usize = 4;

/// The blocks of a region's code.
struct Blocks {
    full: HashMap<NodeId, Block>,
    masked: HashMap<NodeId, Block>,
    /// Behind a masked node: decides where to go on.
    after: HashMap<NodeId, Block>,
    /// Where masked code looks whether all lanes are there.
    meetings: HashSet<NodeId>,
    next_chunk: Block,
    /// Pending words, by index of the node in the region.
    pending: StackSlot,
    index: HashMap<NodeId, i32>,
    /// Loops by their last node in the region, inner ones first.
    loops: HashMap<NodeId, Vec<(usize, usize)>>,
}

/// The loops of a region by the last of their nodes that belong to it, inner ones first.
fn loops_by_end(plan: &Plan, nodes: &[NodeId]) -> HashMap<NodeId, Vec<(usize, usize)>> {
    let mut found: HashMap<NodeId, Vec<(usize, usize)>> = HashMap::new();
    let position = |n: NodeId| plan.ordering.position[n];
    let (Some(first), Some(last)) =
        (nodes.iter().map(|&n| position(n)).min(), nodes.iter().map(|&n| position(n)).max())
    else {
        return found;
    };
    for &(begin, end) in plan.ordering.loops.iter().rev().filter(|l| l.0 <= last && l.1 >= first) {
        let inside = nodes.iter().copied().filter(|&n| begin <= position(n) && position(n) <= end);
        if let Some(n) = inside.max_by_key(|&n| position(n)) {
            found.entry(n).or_default().push((begin, end));
        }
    }
    found
}

/// Nodes at which lanes that are not all together can become so: where ways meet, behind a loop, which they leave one by
/// one, and behind branches that part even lanes that go the same way. Elsewhere no more lanes come than there
/// were before.
fn meetings(plan: &Plan, nodes: &[NodeId]) -> HashSet<NodeId> {
    let position = |n: NodeId| plan.ordering.position[n];
    let (first, last) = nodes.iter().fold((usize::MAX, 0), |(a, b), &n| (a.min(position(n)), b.max(position(n))));
    let loops: Vec<_> = plan.ordering.loops.iter().filter(|l| l.0 <= last && l.1 >= first).collect();
    let inside = |n: NodeId, &&(begin, end): &&(usize, usize)| begin <= position(n) && position(n) <= end;
    let (mut reached, mut meetings) = (HashSet::new(), HashSet::new());
    for &n in nodes {
        let parts = match &plan.nodes[n].term {
            NodeTerm::Index { .. } => true,
            NodeTerm::Cond { then, els, .. } => then == els,
            NodeTerm::Jump(_) | NodeTerm::Exit => false,
        };
        for s in plan.nodes[n].successors().into_iter().filter(|&s| !plan.is_head(s)) {
            if !reached.insert(s) || parts || loops.iter().any(|l| inside(n, l) && !inside(s, l)) {
                meetings.insert(s);
            }
        }
    }
    meetings
}

/// The head to which all lanes of the region go, if they go nowhere else. The scheduler, which is told so, moves them.
pub(crate) fn only_exit(plan: &Plan, region: &Region) -> Option<NodeId> {
    let ends = region.nodes.iter().any(|&n| matches!(plan.nodes[n].term, NodeTerm::Exit));
    match region.exits[..] {
        [to] if !ends => Some(to),
        _ => None,
    }
}

/// Nodes of loops that are in the region as a whole.
fn looped(plan: &Plan, region: &Region) -> HashSet<NodeId> {
    let Ordering { nodes, position, loops, .. } = &plan.ordering;
    let inside: HashSet<NodeId> = region.nodes.iter().copied().collect();
    let positions = || region.nodes.iter().map(|&n| position[n]);
    let (Some(first), Some(last)) = (positions().min(), positions().max()) else { return HashSet::new() };
    let from_first = &loops[loops.partition_point(|&(begin, _)| begin < first)..];
    let near = from_first.iter().take_while(|&&(begin, _)| begin <= last).filter(|&&(_, end)| end <= last);
    near.map(|&(begin, end)| &nodes[begin..=end])
        .filter(|of| of.iter().all(|n| inside.contains(n)))
        .flatten()
        .copied()
        .collect()
}

/// Are a warp's active lanes run one after another, and no others looked at?
fn runs_by_lanes(plan: &Plan, region: &Region) -> bool {
    plan.lanes() == 1 && !region.masked
}

/// What is known of the code of a region.
pub(crate) struct Emitted {
    /// Loads that [`super::sink`] may move.
    pub(crate) sinkable: Vec<Inst>,
    /// Code to which [`super::sink_rare`] may move others.
    pub(crate) rare: Vec<Rare>,
    /// Numbers of the blocks of code for full chunks of nodes of loops that are in the region as a whole, for [`super::keep_aside`].
    pub(crate) loops: Vec<Range<u32>>,
}

/// Emits the function of region `index` of the plan into `b`.
pub(crate) fn emit_region(
    k: &Kernel,
    plan: &Plan,
    index: usize,
    attached: &mut Attached,
    mut b: FunctionBuilder<'_>,
    config: cranelift_codegen::isa::TargetFrontendConfig,
    (floats, pointers): (&Floats, &Pointers),
) -> Result<Emitted, Unsupported> {
    let region = &plan.regions[index];
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let params = b.block_params(entry).to_vec();
    let (ctx, first_warp, end_warp) = (params[0], params[1], params[2]);
    let inv = invariants(&mut b, ctx);
    let scratch = slot(b.func, super::SCRATCH_BYTES);
    let pending = slot(b.func, 4 * region.nodes.len() as u32);
    if region.masked {
        let zero = b.ins().iconst(types::I32, 0);
        for i in 0..region.nodes.len() {
            b.ins().stack_store(types::I64, zero, pending, 4 * i as i32);
        }
    }
    let frames = b.ins().load(types::I64, trusted(), ctx, at::FRAMES);
    // In memory: a variable would be handed from block to block through the whole region.
    let exits = slot(b.func, 8);
    let only_exit = only_exit(plan, region);
    let taken = b.ins().iconst(types::I64, i64::from(only_exit.is_some()));
    b.ins().stack_store(types::I64, taken, exits, 0);

    let warps = Warps::begin(&mut b, (k, plan, region), ctx, [first_warp, end_warp]);
    let Warps { warp, bits, next: next_warp, .. } = warps;
    let chunk_loop = b.create_block();
    // The number of the chunk; where lanes run by themselves, the bits of those that are left.
    let by_lanes = runs_by_lanes(plan, region);
    let at = b.append_block_param(chunk_loop, if by_lanes { types::I32 } else { types::I64 });
    let next_chunk = b.create_block();
    let at_frame = b.ins().imul_imm_s(warp, i64::from(plan.frame_bytes));
    let frame = b.ins().iadd(frames, at_frame);
    let placeholder =
        Chunk { warp, frame, index: frame, base4: frame, base8: frame, scalars: frame, thread: bits, entry: bits };
    let mut e = Emit {
        k,
        plan,
        region,
        number: index,
        attached,
        functions: HashMap::new(),
        b,
        inv,
        chunk: placeholder,
        vars: HashMap::new(),
        exec: None,
        guard: None,
        scratch,
        image_rows: None,
        line: 0,
        vectors: (plan.lanes() as usize / 4).max(1),
        unsupported: None,
        exits,
        only_exit,
        entry,
        places: Vec::new(),
        fixed: HashMap::new(),
        bases: Vec::new(),
        rooms: Vec::new(),
        least: Vec::new(),
        loaded: HashMap::new(),
        indices: HashMap::new(),
        opposites: HashMap::new(),
        two_lanes: None,
        detours: region.nodes.iter().map(|&n| plan.nodes[n].end - plan.nodes[n].begin).sum(),
        stays: RegSet::default(),
        checked: Vec::new(),
        upcoming: &[],
        skippable: false,
        twice: false,
        rarely: false,
        looping: None,
        steps: warps.by_turns().then(|| Steps::of(k, plan.shape.block)),
        fetched: Vec::new(),
        trips: None,
        fetched_trips: Vec::new(),
        floats,
        pointers,
        sinkable: Vec::new(),
        rare: Vec::new(),
        loops: Vec::new(),
        looped: looped(plan, region),
        written: RegSet::default(),
        touched: region.touched(&plan.live),
    };
    for &n in &region.nodes {
        // What joint operations write is in the frame.
        for inst in plan.nodes[n].body(k) {
            for r in operands::writes(&inst.op) {
                e.written.insert(r);
            }
        }
    }
    e.stays = e.staying();
    if plan.nodes[region.head].joints > 0 {
        let thread = e.times(warp, i64::from(WARP));
        let thread = e.b.ins().ireduce(types::I32, thread);
        e.begins_at(thread);
    }
    for inst in plan.nodes[region.head].joints(k) {
        e.line = inst.line;
        e.joint(&inst.op, bits);
    }
    let warp_end = e.b.create_block();
    let first = if by_lanes { bits } else { e.i64(0) };
    e.b.ins().jump(chunk_loop, &[super::arg(first)]);
    e.b.switch_to_block(chunk_loop);
    if by_lanes {
        let lane = e.b.ins().ctz(at);
        let lane = e.b.ins().uextend(types::I64, lane);
        e.chunk_prologue(warp, frame, lane, bits);
    } else {
        e.chunk_prologue(warp, frame, at, bits);
    }

    let nodes = region.nodes.clone();
    let mut blocks = Blocks {
        full: HashMap::new(),
        masked: HashMap::new(),
        after: HashMap::new(),
        meetings: if region.masked { meetings(plan, &nodes) } else { HashSet::new() },
        next_chunk,
        pending,
        index: nodes.iter().enumerate().map(|(i, &n)| (n, i as i32)).collect(),
        loops: if region.masked { loops_by_end(plan, &nodes) } else { HashMap::new() },
    };
    for &n in &nodes {
        blocks.full.insert(n, e.b.create_block());
        if region.masked {
            blocks.masked.insert(n, e.b.create_block());
            blocks.after.insert(n, e.b.create_block());
        }
    }
    e.enter(&blocks);
    for &n in &nodes {
        let begin = e.b.func.dfg.num_blocks() as u32;
        e.full_node(n, &blocks);
        if e.looped.contains(&n) {
            e.loops.push(begin..e.b.func.dfg.num_blocks() as u32);
        }
    }
    if region.masked {
        for (i, &n) in nodes.iter().enumerate() {
            let next = nodes.get(i + 1).copied();
            e.masked_node(n, next, &nodes, &mut blocks);
        }
    }

    e.b.switch_to_block(next_chunk);
    if plan.lanes() == WARP {
        e.b.ins().jump(warp_end, &[]);
    } else if by_lanes {
        let less = e.b.ins().iadd_imm_s(at, -1);
        let left = e.b.ins().band(at, less);
        let some = e.b.ins().icmp_imm_u(IntCC::NotEqual, left, 0);
        e.b.ins().brif(some, chunk_loop, &[super::arg(left)], warp_end, &[]);
    } else {
        let following = e.b.ins().iadd_imm_s(at, 1);
        let more = e.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, following, i64::from(WARP / plan.lanes()));
        e.b.ins().brif(more, chunk_loop, &[super::arg(following)], warp_end, &[]);
    }
    e.b.switch_to_block(warp_end);
    e.b.ins().jump(next_warp, &[]);
    e.end_warps(warps);
    let exits = e.b.ins().stack_load(types::I64, types::I64, exits, 0);
    e.b.ins().return_(&[exits]);
    let failure = e.unsupported.take();
    e.b.seal_all_blocks();
    let Emit { b, sinkable, rare, loops, .. } = e;
    b.finalize(config);
    failure.map_or(Ok(Emitted { sinkable, rare, loops }), Err)
}

impl<'a> Emit<'a, '_> {
    /// [`ptx::launch::Control`], as it is now.
    pub(super) fn control_word(&mut self) -> Value {
        let flags = trusted().with_readonly().with_can_move();
        let control = self.b.ins().load(types::I64, flags, self.inv.ctx, at::CONTROL);
        self.b.ins().load(types::I32, MemFlagsData::new().with_notrap().with_aligned(), control, 0)
    }

    /// Registers that are read from their homes wherever they are needed: those that the region does not change, and no loop of it reads.
    /// Where vectors are many a processor's registers have no room for what is read once: it would be stored elsewhere, and come from there.
    fn staying(&self) -> RegSet {
        let mut stays = RegSet::default();
        if self.vectors < MANY_VECTORS {
            return stays;
        }
        let mut looped = RegSet::default();
        for &n in &self.looped {
            looped.add(&self.plan.live.exposed[n]);
        }
        for r in self.touched.iter() {
            let changes = self.written.contains(r) || looped.contains(r);
            if self.class(r) == Class::Varying && !changes && self.plan.home(r).is_some() {
                stays.insert(r);
            }
        }
        stays
    }

    /// Addresses and active lanes of a chunk.
    fn chunk_prologue(&mut self, warp: Value, frame: Value, sub: Value, bits: Value) {
        let lanes = i64::from(self.plan.lanes());
        let first = self.times(warp, i64::from(WARP));
        if self.plan.lanes() == WARP {
            // The only one.
            let thread = self.b.ins().ireduce(types::I32, first);
            self.begins_at(thread);
            self.chunk =
                Chunk { warp, frame, index: sub, base4: frame, base8: frame, scalars: frame, thread, entry: bits };
            return;
        }
        let shift = self.times(sub, lanes);
        let shift32 = self.b.ins().ireduce(types::I32, shift);
        let mine = self.b.ins().ushr(bits, shift32);
        let full = self.full_bits();
        let entry = self.b.ins().band_imm_u(mine, full);
        let by4 = self.b.ins().ishl_imm_u(shift, 2);
        let by8 = self.b.ins().ishl_imm_u(shift, 3);
        let by16 = self.b.ins().ishl_imm_u(sub, 4);
        let base4 = self.b.ins().iadd(frame, by4);
        let base8 = self.b.ins().iadd(frame, by8);
        let scalars = self.b.ins().iadd(frame, by16);
        let thread = self.b.ins().iadd(first, shift);
        let thread = self.b.ins().ireduce(types::I32, thread);
        self.begins_at(thread);
        self.chunk = Chunk { warp, frame, index: sub, base4, base8, scalars, thread, entry };
    }

    /// Notes the first thread of what runs from here on.
    fn begins_at(&mut self, thread: Value) {
        self.b.ins().store(trusted(), thread, self.inv.ctx, at::FIRST_THREAD);
    }

    /// Ends the kernel, from where nobody comes.
    fn trap(&mut self) {
        let site = self.op_key(&Op::Trap);
        let (bits, lanes) = (self.i32(self.full_bits()), self.i64(self.lanes_per_chunk() as i64));
        let rows = self.scratch_address(0);
        self.call_rarely(Helper::Service, &[self.inv.ctx, site, bits, self.chunk.thread, rows, lanes]);
    }

    /// Registers that have a value at the node's beginning and are of concern to the region.
    fn live_in(&self, n: NodeId) -> Vec<Reg> {
        self.plan.live.live_in[n].and(&self.touched).iter().collect()
    }

    /// Enters the region's head with the chunk's lanes, if there are any.
    fn enter(&mut self, blocks: &Blocks) {
        let head = self.region.head;
        let (entry, full_bits) = (self.chunk.entry, self.full_bits());
        let full = self.b.create_block();
        if runs_by_lanes(self.plan, self.region) {
            // It would not be here were it not active.
            self.b.ins().jump(full, &[]);
            self.enter_full(full, blocks);
            return;
        }
        let (other, part) = (self.b.create_block(), self.b.create_block());
        let all = self.b.ins().icmp_imm_u(IntCC::Equal, entry, full_bits);
        self.b.ins().brif(all, full, &[], other, &[]);
        self.b.switch_to_block(other);
        self.b.set_cold_block(other);
        self.b.ins().brif(entry, part, &[], blocks.next_chunk, &[]);
        self.b.switch_to_block(part);
        self.b.set_cold_block(part);
        if self.region.masked {
            self.b.ins().stack_store(types::I64, entry, blocks.pending, 4 * blocks.index[&head]);
            self.b.ins().jump(blocks.masked[&head], &[]);
        } else {
            // Nobody comes here, or the analysis is wrong; then the kernel ends.
            self.trap();
            self.b.ins().jump(blocks.next_chunk, &[]);
        }
        self.enter_full(full, blocks);
    }

    /// Loads what code for full chunks begins with, in block `full`.
    fn enter_full(&mut self, full: Block, blocks: &Blocks) {
        let head = self.region.head;
        self.b.switch_to_block(full);
        for r in self.live_in(head) {
            self.reload(r);
        }
        // What the joint operations have just written.
        let k = self.k;
        for inst in self.plan.nodes[head].joints(k) {
            for r in operands::writes(&inst.op) {
                self.reload(r);
            }
        }
        self.b.ins().jump(blocks.full[&head], &[]);
    }

    /// Code of a node for full chunks.
    fn full_node(&mut self, n: NodeId, blocks: &Blocks) {
        self.b.switch_to_block(blocks.full[&n]);
        self.exec = None;
        self.looping = self.plan.ordering.innermost[n];
        self.fetched_trips.clear();
        let ends = self.ends(n);
        self.body(n, ends.as_ref().map_or(&[], |ends| ends.late()));
        let full = self.full_bits();
        match self.plan.nodes[n].term.clone() {
            NodeTerm::Exit => {
                self.b.ins().jump(blocks.next_chunk, &[]);
            }
            NodeTerm::Jump(to) => self.full_edge(n, to, blocks),
            NodeTerm::Cond { p, then, els } => {
                let mut to = [self.b.create_block(), self.b.create_block()];
                let targets = [then, els];
                match self.class(p.reg) {
                    Class::Varying => {
                        let by_bounds = ends.is_some();
                        // A predicate that is made late is not to be asked for before.
                        let mask = match ends {
                            Some(ends) => self.branch_by_ends(n, p, &ends, to),
                            None => {
                                let val = self.get(p.reg);
                                self.lanes(&val, RegTy::Pred)
                            }
                        };
                        let bits = self.mask_bits(&mask);
                        let bits = if p.negate { self.b.ins().bxor_imm_u(bits, full) } else { bits };
                        let (some, mixed) = (self.b.create_block(), self.b.create_block());
                        let all = self.b.ins().icmp_imm_u(IntCC::Equal, bits, full);
                        // Where bounds tell, a loop rarely comes here.
                        let rare = by_bounds && targets.contains(&n);
                        let ways = if rare { [(); 2].map(|()| self.b.create_block()) } else { to };
                        self.b.ins().brif(all, ways[0], &[], some, &[]);
                        self.b.switch_to_block(some);
                        self.b.ins().brif(bits, mixed, &[], ways[1], &[]);
                        for (way, to) in ways.into_iter().zip(to).filter(|_| rare) {
                            self.b.switch_to_block(way);
                            self.apart(n);
                            self.b.ins().jump(to, &[]);
                        }
                        self.b.switch_to_block(mixed);
                        if self.thins(n, [then, els]) {
                            self.thin(n, p, [then, els], &mask, blocks);
                        } else if let Some((side, join)) = self.detour(n, [then, els]) {
                            let inverse = p.negate == (side == then);
                            let bits = if side == then { bits } else { self.b.ins().bxor_imm_u(bits, full) };
                            let lanes = mask.iter().map(|&m| if inverse { self.b.ins().bnot(m) } else { m }).collect();
                            self.some_lanes(side, join, Mask { bits, lanes });
                            // From here, not from the side: that may lie before both of them.
                            self.full_edge(n, join, blocks);
                        } else {
                            let others = self.b.ins().bxor_imm_u(bits, full);
                            self.split(n, &[(then, bits), (els, others)], blocks);
                        }
                    }
                    _ => {
                        let val = self.get(p.reg);
                        let p_value = self.first(&val, RegTy::Pred);
                        if p.negate {
                            to.swap(0, 1);
                        }
                        self.b.ins().brif(p_value, to[0], &[], to[1], &[]);
                        if p.negate {
                            to.swap(0, 1);
                        }
                    }
                }
                for (block, target) in to.into_iter().zip(targets) {
                    self.b.switch_to_block(block);
                    self.full_edge(n, target, blocks);
                }
            }
            NodeTerm::Index { index, base, shift, targets } => {
                let val = self.selector(index, base, shift);
                if let Val::Lanes(_) | Val::Affine { .. } = val {
                    let all = self.i32(full);
                    let parts = self.index_parts(&val, &targets, all);
                    self.split(n, &parts, blocks);
                } else {
                    let value = self.first(&val, RegTy::B32);
                    self.switch(n, value, &targets, |e, to| e.full_edge(n, to, blocks));
                }
            }
        }
    }

    /// Is the node a few instructions inside the region?
    fn is_short(&self, n: NodeId) -> bool {
        let node = &self.plan.nodes[n];
        !self.plan.is_head(n) && node.joints == 0 && (node.end - node.begin) * self.vectors <= THIN
    }

    /// Is the node a loop of its own, of a few instructions, that lanes leave one by one?
    fn thins(&self, n: NodeId, targets: [NodeId; 2]) -> bool {
        targets[0] != targets[1] && targets.contains(&n) && self.is_short(n)
    }

    /// Code for the loop of node `n` from where the first lanes have left a full chunk until the last one has. All have the same
    /// registers, in which those that have left keep what they leave with, and then they are full again.
    fn thin(&mut self, n: NodeId, p: PredRef, targets: [NodeId; 2], leaving: &[Value], blocks: &Blocks) {
        let [head, again, done] = [(); 3].map(|()| self.b.create_block());
        let stays = targets[0] == n;
        let out = targets[usize::from(stays)];
        self.apart(n);
        // Do lanes stay where the register says no?
        let inverse = stays == p.negate;
        let lanes: Vec<Value> = (0..self.vectors).map(|_| self.b.append_block_param(head, types::I32X4)).collect();
        let bits = self.b.append_block_param(head, types::I32);
        let first: Vec<Value> = leaving.iter().map(|&m| if inverse { self.b.ins().bnot(m) } else { m }).collect();
        let first_bits = self.mask_bits(&first);
        let args: Vec<_> = first.into_iter().chain([first_bits]).map(super::arg).collect();
        self.b.ins().jump(head, &args);

        self.b.switch_to_block(head);
        self.some_lanes(n, out, Mask { bits, lanes: lanes.clone() });
        let said = self.get(p.reg);
        let said = self.lanes(&said, RegTy::Pred);
        let both = |e: &mut Self, (&lane, said)| {
            if inverse { e.b.ins().band_not(lane, said) } else { e.both(lane, said) }
        };
        let left: Vec<Value> = lanes.iter().zip(said).map(|lane| both(self, lane)).collect();
        let left_bits = self.mask_bits(&left);
        self.b.ins().brif(left_bits, again, &[], done, &[]);
        self.b.switch_to_block(again);
        self.poll();
        let args: Vec<_> = left.into_iter().chain([left_bits]).map(super::arg).collect();
        self.b.ins().jump(head, &args);
        self.b.switch_to_block(done);
        self.apart(n);
        self.full_edge(n, out, blocks);
    }

    /// Gives what node `n` changes new registers of the processor, from here on. Else the allocator, which keeps a value in one place
    /// wherever it is handed on, takes the stack for a loop through full chunks as well if there are not enough for masks here.
    pub(super) fn apart(&mut self, n: NodeId) {
        for r in self.plan.live.defined[n].iter().collect::<Vec<_>>() {
            if self.class(r) == Class::Varying {
                for var in self.variables(r) {
                    let v = self.b.use_var(var);
                    let v = self.b.ins().bor(v, v);
                    self.b.def_var(var, v);
                }
            }
        }
    }

    /// Runs node `n` with some lanes of a full chunk. The others keep what they have for `next`, where all go on.
    fn some_lanes(&mut self, n: NodeId, next: NodeId, mask: Mask) {
        let kept: Vec<Reg> = self.plan.live.defined[n].and(&self.plan.live.live_in[next]).iter().collect();
        let kept: Vec<Reg> = kept.into_iter().filter(|&r| self.class(r) == Class::Varying).collect();
        let old: Vec<Val> = kept.iter().map(|&r| self.get(r)).collect();
        let lanes = mask.lanes.clone();
        self.exec = Some(mask);
        self.body(n, &[]);
        self.exec = None;
        for (r, old) in kept.into_iter().zip(old) {
            let ty = self.reg_ty(r);
            let (new, old) = (self.get(r), self.lanes(&old, ty));
            let new = self.lanes(&new, ty);
            let parts = self.blend(&lanes, &new, &old, ty);
            self.set(r, Val::Lanes(parts));
        }
    }

    /// Of the targets of a branch that lanes part at, the one that is a few instructions some do before they go to the other, where all are
    /// together; and that other one. Many branches may have the same side: there is code of its own for as much as the region has.
    fn detour(&mut self, n: NodeId, [then, els]: [NodeId; 2]) -> Option<(NodeId, NodeId)> {
        let is_side = |side: NodeId, join: NodeId| {
            let leads = matches!(self.plan.nodes[side].term, NodeTerm::Jump(to) if to == join);
            leads && side != join && side != n && self.is_short(side)
        };
        let (side, join) = [(then, els), (els, then)].into_iter().find(|&(side, join)| is_side(side, join))?;
        let node = &self.plan.nodes[side];
        self.detours = self.detours.checked_sub(node.end - node.begin + 1)?;
        Some((side, join))
    }

    /// Branches on a scalar index; `edge` emits what happens in each case.
    fn switch(&mut self, _from: NodeId, index: Value, targets: &[NodeId], mut edge: impl FnMut(&mut Self, NodeId)) {
        let mut switch = Switch::new();
        let cases: Vec<(Block, NodeId)> = targets.iter().map(|&t| (self.b.create_block(), t)).collect();
        let Some((&(otherwise, last), rest)) = cases.split_last() else {
            self.fail("empty branch table");
            return;
        };
        for (i, &(block, _)) in rest.iter().enumerate() {
            switch.set_entry(i as u128, block);
        }
        switch.emit(&mut self.b, index, otherwise);
        for &(block, to) in rest.iter().chain([&(otherwise, last)]) {
            self.b.switch_to_block(block);
            edge(self, to);
        }
    }

    /// The number of the target of an indexed branch.
    fn selector(&mut self, index: Operand, base: u32, shift: u32) -> Val {
        let val = self.operand(index, RegTy::B32);
        if (base, shift) == (0, 0) {
            return val;
        }
        if let Val::Same(v) = val {
            let v = self.b.ins().iadd_imm_s(v, -i64::from(base));
            return Val::Same(self.b.ins().ushr_imm_u(v, i64::from(shift)));
        }
        let base = self.vector_const([base; 4]);
        let lanes = self.lanes(&val, RegTy::B32);
        let number = |e: &mut Self, lane| {
            let lane = e.b.ins().isub(lane, base);
            e.b.ins().ushr_imm_u(lane, i64::from(shift))
        };
        Val::Lanes(lanes.into_iter().map(|lane| number(self, lane)).collect())
    }

    /// The lanes of `all` that go to each target of an indexed branch.
    fn index_parts(&mut self, index: &Val, targets: &[NodeId], all: Value) -> Vec<(NodeId, Value)> {
        let lanes = self.lanes(index, RegTy::B32);
        let mut left = all;
        let mut parts = Vec::new();
        for (i, &target) in targets.iter().enumerate() {
            if i + 1 == targets.len() {
                parts.push((target, left));
                break;
            }
            let wanted = self.vector_const([i as u32; 4]);
            let hits: Vec<Value> = lanes.iter().map(|&l| self.b.ins().icmp(IntCC::Equal, l, wanted)).collect();
            let bits = self.mask_bits(&hits);
            let bits = self.b.ins().band(bits, left);
            left = self.b.ins().bxor(left, bits);
            parts.push((target, bits));
        }
        parts
    }

    /// Goes from node `n` to `to` with a full chunk.
    fn full_edge(&mut self, n: NodeId, to: NodeId, blocks: &Blocks) {
        if self.plan.is_head(to) {
            self.spill_live(&[to]);
            let full = self.i32(self.full_bits());
            self.leave(to, full);
            self.b.ins().jump(blocks.next_chunk, &[]);
            return;
        }
        if self.plan.ordering.position[to] <= self.plan.ordering.position[n] {
            self.poll();
        }
        self.b.ins().jump(blocks.full[&to], &[]);
    }

    /// Writes to the frame what the region has changed and the targets read.
    fn spill_live(&mut self, targets: &[NodeId]) {
        let mut set = self.plan.live.live_in[targets[0]].clone();
        for &t in &targets[1..] {
            set.add(&self.plan.live.live_in[t]);
        }
        // The joint operation at the head has written its results to the frame, and they were loaded from there; but a
        // kernel's entry has loaded nothing: its frame is zero where it matters.
        let set = set.and(&self.written);
        for r in set.iter().collect::<Vec<_>>() {
            self.spill(r);
        }
    }

    /// Notes lanes as pending at the head of another region.
    fn leave(&mut self, to: NodeId, bits: Value) {
        if self.only_exit.is_some() {
            // All lanes go there: the scheduler knows.
            return;
        }
        let shift = self.b.ins().imul_imm_s(self.chunk.index, i64::from(self.plan.lanes()));
        let shift = self.b.ins().ireduce(types::I32, shift);
        let placed = self.b.ins().ishl(bits, shift);
        self.note_pending(to, placed);
        let slot = self.region.exits.iter().position(|&e| e == to).unwrap_or(0).min(63);
        let at = self.b.ins().stack_addr(types::I64, self.exits, 0);
        let exits = self.b.ins().load(types::I64, trusted(), at, 0);
        let exits = self.b.ins().bor_imm_u(exits, 1_i64 << slot);
        self.b.ins().store(trusted(), exits, at, 0);
    }

    /// Adds lanes of the warp to those that are pending at the head of another region.
    fn note_pending(&mut self, to: NodeId, lanes: Value) {
        let Some(region) = self.plan.region_of_head[to] else { return };
        let warps = self.plan.shape.threads().div_ceil(WARP);
        let pending = self.b.ins().load(types::I64, trusted(), self.inv.ctx, at::PENDING);
        let word = self.b.ins().ishl_imm_u(self.chunk.warp, 2);
        let word = self.b.ins().iadd(pending, word);
        let offset = (region as u32 * warps * 4) as i32;
        let old = self.b.ins().load(types::I32, trusted(), word, offset);
        let new = self.b.ins().bor(old, lanes);
        self.b.ins().store(trusted(), new, word, offset);
    }

    /// A branch that splits a full chunk: over to masked code.
    fn split(&mut self, n: NodeId, parts: &[(NodeId, Value)], blocks: &Blocks) {
        let targets: Vec<NodeId> = parts.iter().map(|&(t, _)| t).collect();
        self.spill_live(&targets);
        self.distribute(parts, blocks);
        let position = |t: &&NodeId| self.plan.ordering.position[**t];
        let first =
            targets.iter().filter(|t| blocks.masked.contains_key(t) && !self.plan.is_head(**t)).min_by_key(position);
        let to = first.map_or(blocks.next_chunk, |t| blocks.masked[t]);
        let back = first.is_some_and(|t| position(&t) <= self.plan.ordering.position[n]);
        if back {
            self.poll();
        }
        self.b.ins().jump(to, &[]);
    }

    /// Adds lanes to the pending words of their targets; lanes whose thread ends there vanish when that node runs.
    fn distribute(&mut self, parts: &[(NodeId, Value)], blocks: &Blocks) {
        for &(to, bits) in parts {
            if self.plan.is_head(to) {
                if self.only_exit.is_some() {
                    continue;
                }
                let (go, on) = (self.b.create_block(), self.b.create_block());
                self.b.ins().brif(bits, go, &[], on, &[]);
                self.b.switch_to_block(go);
                self.leave(to, bits);
                self.b.ins().jump(on, &[]);
                self.b.switch_to_block(on);
            } else {
                let at = self.b.ins().stack_addr(types::I64, blocks.pending, 4 * blocks.index[&to]);
                let old = self.b.ins().load(types::I32, trusted(), at, 0);
                let new = self.b.ins().bor(old, bits);
                self.b.ins().store(trusted(), new, at, 0);
            }
        }
    }

    /// Code of a node for chunks with some lanes.
    fn masked_node(&mut self, n: NodeId, next: Option<NodeId>, nodes: &[NodeId], blocks: &mut Blocks) {
        let at = 4 * blocks.index[&n];
        let (go, after) = (self.b.create_block(), blocks.after[&n]);
        self.b.switch_to_block(blocks.masked[&n]);
        let bits = self.b.ins().stack_load(types::I64, types::I32, blocks.pending, at);
        self.b.ins().brif(bits, go, &[], after, &[]);
        self.b.switch_to_block(go);
        let zero = self.i32(0);
        self.b.ins().stack_store(types::I64, zero, blocks.pending, at);
        if blocks.meetings.contains(&n) {
            let (back, stay) = (self.b.create_block(), self.b.create_block());
            let full = self.full_bits();
            let all = self.b.ins().icmp_imm_u(IntCC::Equal, bits, full);
            self.b.ins().brif(all, back, &[], stay, &[]);
            self.b.switch_to_block(back);
            for r in self.live_in(n) {
                self.reload(r);
            }
            self.b.ins().jump(blocks.full[&n], &[]);
            self.b.switch_to_block(stay);
        }
        let lanes = self.bits_mask(bits);
        let exposed: Vec<Reg> = self.plan.live.exposed[n].iter().collect();
        let joint_reads = self.plan.nodes[n].joints > 0;
        for r in exposed {
            self.reload(r);
        }
        if joint_reads {
            for r in self.plan.live.defined[n].iter().collect::<Vec<_>>() {
                self.reload(r);
            }
        }
        self.exec = Some(Mask { bits, lanes });
        self.body(n, &[]);
        let mut out = RegSet::default();
        for s in self.plan.nodes[n].successors() {
            out.add(&self.plan.live.live_in[s]);
        }
        for r in out.and(&self.plan.live.defined[n]).iter().collect::<Vec<_>>() {
            self.spill(r);
        }
        match self.plan.nodes[n].term.clone() {
            NodeTerm::Exit => {}
            NodeTerm::Jump(to) => self.distribute(&[(to, bits)], blocks),
            NodeTerm::Cond { p, then, els } => {
                let taken = match self.get(p.reg) {
                    Val::Lanes(mask) => self.mask_bits(&mask),
                    val => {
                        let v = self.first(&val, RegTy::Pred);
                        let (all, none) = (self.i32(self.full_bits()), self.i32(0));
                        self.b.ins().select(v, all, none)
                    }
                };
                let (yes, no) = (self.b.ins().band(bits, taken), self.b.ins().band_not(bits, taken));
                let (yes, no) = if p.negate { (no, yes) } else { (yes, no) };
                self.distribute(&[(then, yes), (els, no)], blocks);
            }
            NodeTerm::Index { index, base, shift, targets } => {
                let val = self.selector(index, base, shift);
                let parts = self.index_parts(&val, &targets, bits);
                self.distribute(&parts, blocks);
            }
        }
        self.exec = None;
        self.b.ins().jump(after, &[]);
        self.b.switch_to_block(after);
        // Loops that end here: back while lanes are pending at an earlier node of theirs.
        for (begin, end) in blocks.loops.remove(&n).unwrap_or_default() {
            for target in self.back_targets(begin, end, nodes) {
                let (back, on) = (self.b.create_block(), self.b.create_block());
                let at = 4 * blocks.index[&target];
                let pending = self.b.ins().stack_load(types::I64, types::I32, blocks.pending, at);
                self.b.ins().brif(pending, back, &[], on, &[]);
                self.b.switch_to_block(back);
                self.poll();
                self.b.ins().jump(blocks.masked[&target], &[]);
                self.b.switch_to_block(on);
            }
        }
        let to = next.map_or(blocks.next_chunk, |next| blocks.masked[&next]);
        self.b.ins().jump(to, &[]);
    }

    /// Nodes of the region in the loop that are reached from a later node of the loop.
    fn back_targets(&self, begin: usize, end: usize, nodes: &[NodeId]) -> Vec<NodeId> {
        let position = |n: NodeId| self.plan.ordering.position[n];
        let inside = |n: NodeId| begin <= position(n) && position(n) <= end;
        let mut targets: Vec<NodeId> = Vec::new();
        for &n in nodes.iter().filter(|&&n| inside(n)) {
            for s in self.plan.nodes[n].successors() {
                if inside(s) && position(s) <= position(n) && !self.plan.is_head(s) && !targets.contains(&s) {
                    targets.push(s);
                }
            }
        }
        targets.sort_by_key(|&t| position(t));
        targets
    }

    /// Looks at the control word; suspends the CTA when asked to.
    pub(super) fn poll(&mut self) {
        let word = self.control_word();
        let (stop, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(word, stop, &[], on, &[]);
        self.b.switch_to_block(stop);
        self.b.set_cold_block(stop);
        self.call_rarely(Helper::Preempt, &[self.inv.ctx]);
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(on);
    }

    /// The instructions of a node that lanes run by themselves, but for those `late`.
    fn body(&mut self, n: NodeId, late: &[usize]) {
        let k = self.k;
        let insts = self.plan.nodes[n].body(k);
        self.checked.clear();
        self.indices.clear();
        self.instructions(insts, 0..insts.len(), late);
    }

    /// Of these the ones `within`, but for those `late`.
    pub(super) fn instructions(&mut self, insts: &'a [ptx::ir::Inst], within: Range<usize>, late: &[usize]) {
        let mut behind = within.start;
        for i in within {
            if i < behind || late.contains(&i) {
                continue;
            }
            if let Some(end) = self.asked_together(insts, i, late) {
                behind = end;
                continue;
            }
            let inst = &insts[i];
            self.upcoming = &insts[i..];
            self.line = inst.line;
            let Some(p) = inst.guard else {
                self.op(&inst.op);
                self.note_index(&inst.op);
                continue;
            };
            if self.class(p.reg) == Class::Varying {
                let Val::Lanes(mut mask) = self.get(p.reg) else { continue };
                if p.negate {
                    mask = mask.into_iter().map(|m| self.b.ins().bnot(m)).collect();
                }
                self.guard = Some(mask);
                self.op(&inst.op);
                self.guard = None;
            } else {
                let val = self.get(p.reg);
                let value = self.first(&val, RegTy::Pred);
                let (run, on) = (self.b.create_block(), self.b.create_block());
                // Registers that stay as they are must have a value on both ways.
                for r in operands::writes(&inst.op) {
                    self.get(r);
                }
                let (yes, no) = if p.negate { (on, run) } else { (run, on) };
                self.b.ins().brif(value, yes, &[], no, &[]);
                self.b.switch_to_block(run);
                self.skippable = true;
                self.op(&inst.op);
                self.skippable = false;
                self.b.ins().jump(on, &[]);
                self.b.switch_to_block(on);
            }
        }
    }

    /// The lanes that the current operation acts on; none: all of the chunk.
    pub(super) fn mask(&mut self) -> Option<Mask> {
        match (self.exec.clone(), self.guard.clone()) {
            (None, None) => None,
            (Some(exec), None) => Some(exec),
            (None, Some(lanes)) => {
                let bits = self.mask_bits(&lanes);
                Some(Mask { bits, lanes })
            }
            (Some(exec), Some(guard)) => {
                let lanes: Vec<Value> = exec.lanes.iter().zip(&guard).map(|(&a, &b)| self.both(a, b)).collect();
                let bits = self.mask_bits(&lanes);
                Some(Mask { bits, lanes })
            }
        }
    }

    /// A field of the chunk's thread table.
    pub(super) fn thread_table(&mut self, axis: u8) -> (Value, i32) {
        let table = self.b.ins().load(types::I64, trusted().with_readonly().with_can_move(), self.inv.ctx, at::TIDS);
        let index = self.b.ins().uextend(types::I64, self.chunk.thread);
        let at = self.b.ins().ishl_imm_u(index, 2);
        let padded = self.plan.shape.threads().next_multiple_of(WARP);
        (self.b.ins().iadd(table, at), i32::from(axis) * 4 * padded as i32)
    }

    /// Loads vectors of a thread table.
    pub(super) fn thread_lanes(&mut self, axis: u8) -> Vec<Value> {
        let (base, offset) = self.thread_table(axis);
        (0..self.vectors).map(|i| self.b.ins().load(types::I32X4, own(), base, offset + 16 * i as i32)).collect()
    }

    /// For a helper: operands in lanes, wherever they come from.
    pub(super) fn operand_lanes(&mut self, o: Operand, ty: RegTy) -> Vec<Value> {
        let val = self.operand(o, ty);
        self.lanes(&val, ty)
    }
}
