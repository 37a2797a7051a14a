//! The control-flow graph while it is built, and its clean-up.

use std::collections::HashMap;

use super::contract::Contraction;
use crate::error::PtxError;
use crate::ir::{Block, BlockId, Inst, Op, Operand, Reg, RegTy, Term, Ty};

/// Most registers of a kernel. Engines keep a register per thread in memory, so a declaration must not be a way to
/// make them allocate gigabytes. (Large matrix kernels have some 10,000.)
const MAX_REGS: usize = 1 << 17;

/// Most instructions of a kernel, inlined functions included: keeps the doubling of code by nested calls in check.
const MAX_INSTS: usize = 1 << 20;

/// A place that branches go to: named before its block exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target(pub(super) u32);

impl Target {
    /// As it stands in terminators until [`Graph::finish`] puts the block there.
    pub(super) fn id(self) -> BlockId {
        BlockId(self.0)
    }
}

#[derive(Debug)]
struct Node {
    insts: Vec<Inst>,
    term: Option<Term>,
}

/// Blocks in the order of the text, the last one open for instructions unless it has its terminator.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) regs: Vec<RegTy>,
    nodes: Vec<Node>,
    /// The block of each target.
    targets: Vec<Option<u32>>,
    insts: usize,
    /// The unit that new registers belong to, and that of each register.
    pub(super) owner: u32,
    owners: Vec<u32>,
    pub(super) contraction: Contraction,
}

impl Graph {
    pub(super) fn new() -> Graph {
        Graph {
            regs: Vec::new(),
            nodes: vec![Node { insts: Vec::new(), term: None }],
            targets: Vec::new(),
            insts: 0,
            owner: 0,
            owners: Vec::new(),
            contraction: Contraction::default(),
        }
    }

    /// A new register.
    pub(super) fn reg(&mut self, ty: RegTy, line: u32) -> Result<Reg, PtxError> {
        if self.regs.len() >= MAX_REGS {
            return Err(PtxError::unsupported(line, format!("more than {MAX_REGS} registers in a kernel")));
        }
        self.regs.push(ty);
        self.owners.push(self.owner);
        self.contraction.register();
        Ok(Reg(self.regs.len() as u32 - 1))
    }

    pub(super) fn ty(&self, reg: Reg) -> RegTy {
        self.regs[reg.0 as usize]
    }

    /// A new target, without a block yet.
    pub(super) fn target(&mut self) -> Target {
        self.targets.push(None);
        Target(self.targets.len() as u32 - 1)
    }

    /// Makes `target` begin here; an open block goes on there.
    pub(super) fn bind(&mut self, target: Target) {
        if self.is_open() {
            self.terminate(Term::Bra(target.id()));
        }
        self.targets[target.0 as usize] = Some(self.nodes.len() as u32);
        self.nodes.push(Node { insts: Vec::new(), term: None });
    }

    /// Makes `alias` lead where `target` does, which must be bound.
    pub(super) fn alias(&mut self, alias: Target, target: Target) {
        self.targets[alias.0 as usize] = self.targets[target.0 as usize];
    }

    /// Appends an instruction; returns where it stands.
    pub(super) fn push(&mut self, inst: Inst) -> Result<(usize, usize), PtxError> {
        self.count(1, inst.line)?;
        let block = self.open();
        self.contraction.written(&inst.op);
        self.nodes[block].insts.push(inst);
        Ok((block, self.nodes[block].insts.len() - 1))
    }

    /// Counts instructions against the limit.
    pub(super) fn count(&mut self, more: usize, line: u32) -> Result<(), PtxError> {
        self.insts += more;
        if self.insts > MAX_INSTS {
            let text = format!("more than {MAX_INSTS} instructions in a kernel, called functions included");
            return Err(PtxError::unsupported(line, text));
        }
        Ok(())
    }

    /// The unit that each register belongs to.
    pub(super) fn owners(&self) -> &[u32] {
        &self.owners
    }

    /// How many blocks there are so far.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Instructions of a block.
    pub(super) fn insts(&self, block: usize) -> &[Inst] {
        &self.nodes[block].insts
    }

    /// How a block ends, once it does.
    pub(super) fn term(&self, block: usize) -> Option<&Term> {
        self.nodes[block].term.as_ref()
    }

    /// Gives a block another end.
    pub(super) fn set_term(&mut self, block: usize, term: Term) {
        self.nodes[block].term = Some(term);
    }

    /// The block at which a target is bound.
    pub(super) fn block_of(&self, target: BlockId) -> Option<usize> {
        self.targets.get(target.0 as usize).copied().flatten().map(|block| block as usize)
    }

    /// An instruction to stand for others: see [`Graph::replace_marks`].
    pub(super) fn mark(&mut self, line: u32) -> Result<Reg, PtxError> {
        let mark = self.reg(RegTy::B32, line)?;
        self.push(Inst { guard: None, op: Op::Mov { ty: Ty::U32, dst: mark, src: Operand::Reg(mark) }, line })?;
        Ok(mark)
    }

    /// Puts operations where marks stand.
    pub(super) fn replace_marks(&mut self, mut ops: HashMap<Reg, Vec<Op>>, line: u32) -> Result<(), PtxError> {
        self.count(ops.values().map(Vec::len).sum(), line)?;
        for node in &mut self.nodes {
            if !node.insts.iter().any(|i| marked(i).is_some_and(|mark| ops.contains_key(&mark))) {
                continue;
            }
            let mut insts = Vec::with_capacity(node.insts.len());
            for inst in std::mem::take(&mut node.insts) {
                match marked(&inst).and_then(|mark| ops.remove(&mark)) {
                    Some(sequence) => insts.extend(sequence.into_iter().map(|op| Inst { op, ..inst.clone() })),
                    None => insts.push(inst),
                }
            }
            node.insts = insts;
        }
        Ok(())
    }

    /// Ends the open block.
    pub(super) fn terminate(&mut self, term: Term) {
        let block = self.open();
        self.nodes[block].term = Some(term);
    }

    /// Is there an open block?
    pub(super) fn is_open(&self) -> bool {
        self.nodes.last().is_some_and(|n| n.term.is_none())
    }

    /// The block that is open.
    pub(super) fn block(&self) -> Option<usize> {
        self.is_open().then(|| self.nodes.len() - 1)
    }

    fn open(&mut self) -> usize {
        if !self.is_open() {
            // What follows a terminator without a label is unreachable, but must still be right.
            self.nodes.push(Node { insts: Vec::new(), term: None });
        }
        self.nodes.len() - 1
    }

    /// The instruction at a place that [`Graph::push`] returned.
    pub(super) fn inst_mut(&mut self, place: (usize, usize)) -> &mut Inst {
        &mut self.nodes[place.0].insts[place.1]
    }

    /// Replaces instructions by sequences; `edits` sorted by place.
    pub(super) fn splice(&mut self, edits: Vec<((usize, usize), Vec<Inst>)>) {
        let mut edits = edits.into_iter().peekable();
        while let Some(((block, _), _)) = edits.peek() {
            let block = *block;
            let old = std::mem::take(&mut self.nodes[block].insts);
            let mut new = Vec::with_capacity(old.len() + 8);
            for (at, inst) in old.into_iter().enumerate() {
                match edits.next_if(|(place, _)| *place == (block, at)) {
                    Some((_, sequence)) => new.extend(sequence),
                    None => new.push(inst),
                }
            }
            self.nodes[block].insts = new;
        }
    }

    /// The finished blocks: jumps threaded, straight lines joined, unreachable blocks dropped, block 0 without
    /// predecessors.
    pub(super) fn finish(mut self) -> (Vec<RegTy>, Vec<Block>) {
        if self.is_open() {
            self.terminate(Term::Exit);
        }
        let targets = std::mem::take(&mut self.targets);
        let resolve = |id: &mut BlockId| {
            if let Some(Some(block)) = targets.get(id.0 as usize) {
                id.0 = *block;
            }
        };
        let mut blocks: Vec<Block> = Vec::with_capacity(self.nodes.len() + 1);
        for node in std::mem::take(&mut self.nodes) {
            let mut term = node.term.unwrap_or(Term::Exit);
            successors_mut(&mut term, resolve);
            blocks.push(Block { insts: node.insts, term });
        }
        drop_self_moves(&mut blocks);
        thread_jumps(&mut blocks);
        join_lines(&mut blocks);
        (self.regs, compact(blocks))
    }
}

/// Calls `f` with each successor.
fn successors_mut(term: &mut Term, mut f: impl FnMut(&mut BlockId)) {
    match term {
        Term::Bra(to) => f(to),
        Term::CondBra { then, els, .. } => {
            f(then);
            f(els);
        }
        Term::BrIdx { targets, .. } => targets.iter_mut().for_each(f),
        Term::Exit => {}
    }
}

/// The register of a move onto itself.
pub(super) fn marked(inst: &Inst) -> Option<Reg> {
    match inst.op {
        Op::Mov { dst, src: Operand::Reg(src), .. } if dst == src => Some(dst),
        _ => None,
    }
}

/// Calls `f` with each successor.
pub(super) fn successors(term: &Term, mut f: impl FnMut(BlockId)) {
    match term {
        Term::Bra(to) => f(*to),
        Term::CondBra { then, els, .. } => {
            f(*then);
            f(*els);
        }
        Term::BrIdx { targets, .. } => targets.iter().copied().for_each(f),
        Term::Exit => {}
    }
}

/// Moves of a register onto itself do nothing.
fn drop_self_moves(blocks: &mut [Block]) {
    for block in blocks {
        block.insts.retain(|i| marked(i).is_none());
    }
}

/// Branches to an empty block that only branches on go where that one goes.
fn thread_jumps(blocks: &mut [Block]) {
    let mut goes: Vec<u32> = (0..blocks.len() as u32).collect();
    for at in 0..blocks.len() {
        // Follow the chain with a bound: an empty endless loop is one, too. Chains already followed are short.
        let mut to = at as u32;
        for _ in 0..64 {
            let block = &blocks[to as usize];
            match block.term {
                Term::Bra(next) if block.insts.is_empty() && next.0 != to => to = goes[next.0 as usize],
                _ => break,
            }
            if to as usize == at {
                break;
            }
        }
        goes[at] = to;
    }
    for block in blocks {
        successors_mut(&mut block.term, |id| id.0 = goes[id.0 as usize]);
        if let Term::CondBra { then, els, .. } = block.term
            && then == els
        {
            block.term = Term::Bra(then);
        }
    }
}

/// Joins a block with the one that follows it and has no other predecessor.
fn join_lines(blocks: &mut [Block]) {
    let mut preds = vec![0u32; blocks.len()];
    for block in blocks.iter() {
        successors(&block.term, |id| preds[id.0 as usize] += 1);
    }
    let reachable = reach(blocks);
    // Predecessors that are never reached do not count.
    for (block, _) in blocks.iter().zip(&reachable).filter(|(_, r)| !**r) {
        successors(&block.term, |id| preds[id.0 as usize] -= 1);
    }
    // Only from the heads of lines, so that each instruction moves once, however the blocks are ordered.
    let mut follows = vec![false; blocks.len()];
    for (at, block) in blocks.iter().enumerate() {
        if let Term::Bra(next) = block.term {
            let next = next.0 as usize;
            follows[next] |= reachable[at] && next != at && next != 0 && preds[next] == 1;
        }
    }
    for at in 0..blocks.len() {
        if !reachable[at] || follows[at] {
            continue;
        }
        while let Term::Bra(next) = blocks[at].term {
            let next = next.0 as usize;
            if !follows[next] {
                break;
            }
            // The emptied block is unreachable now; nothing leads to it.
            let tail = Block { insts: Vec::new(), term: Term::Bra(BlockId(next as u32)) };
            let tail = std::mem::replace(&mut blocks[next], tail);
            follows[next] = false;
            blocks[at].insts.extend(tail.insts);
            blocks[at].term = tail.term;
        }
    }
}

fn reach(blocks: &[Block]) -> Vec<bool> {
    let mut reached = vec![false; blocks.len()];
    let mut work = vec![0usize];
    while let Some(at) = work.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            successors(&blocks[at].term, |id| work.push(id.0 as usize));
        }
    }
    reached
}

/// Drops unreachable blocks, and puts an empty one in front if something branches to the first.
fn compact(blocks: Vec<Block>) -> Vec<Block> {
    let reached = reach(&blocks);
    let mut looped = false;
    for (block, _) in blocks.iter().zip(&reached).filter(|(_, r)| **r) {
        successors(&block.term, |id| looped |= id.0 == 0);
    }
    let mut number = u32::from(looped);
    let mut numbers = vec![0u32; blocks.len()];
    for (slot, _) in numbers.iter_mut().zip(&reached).filter(|(_, r)| **r) {
        *slot = number;
        number += 1;
    }
    let mut out = Vec::with_capacity(number as usize);
    if looped {
        out.push(Block { insts: Vec::new(), term: Term::Bra(BlockId(1)) });
    }
    for (mut block, _) in blocks.into_iter().zip(&reached).filter(|(_, r)| **r) {
        successors_mut(&mut block.term, |id| id.0 = numbers[id.0 as usize]);
        out.push(block);
    }
    out
}
