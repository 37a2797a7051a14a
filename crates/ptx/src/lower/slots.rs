//! Local memory of a thread: depots, and `.param` variables of calls.
//!
//! A call passes values through `.param` variables: the caller stores, the callee loads. With both ends known, a variable
//! whose address nobody takes, and whose accesses cut it into pieces that never overlap partly, becomes one register per
//! piece. The rest are local memory. Where a function is not inlined, the caller's variable is copied to the callee's; what
//! is copied to one another is cut alike, and is memory if any of it must be.
//!
//! Memory is laid out in frames, one for each unit (see [`super::units`]): at a fixed place, or on the thread's stack.

use std::collections::BTreeMap;

use super::MAX_LOCAL_BYTES;
use super::graph::Graph;
use crate::error::PtxError;
use crate::ir::{Address, Inst, Op, Operand, Order, Reg, RegTy, Space, Ty};

/// A `.param` variable of a call: an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot(usize);

/// Where a frame begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    /// At this offset of local memory.
    Fixed(u64),
    /// Where this register says.
    Stack(Reg),
}

/// A unit's local memory.
#[derive(Debug)]
struct Frame {
    base: Base,
    /// Highest end of anything laid out in it.
    peak: u64,
    /// Highest end of what must be memory.
    used: u64,
}

#[derive(Debug)]
struct Variable {
    frame: usize,
    offset: u64,
    end: u64,
    align: u32,
    escaped: bool,
}

/// A load or store of a slot: the instruction at `place` addresses it with its constant offset.
#[derive(Clone, Copy, Debug)]
struct Access {
    place: (usize, usize),
    slot: usize,
    /// Offset within the slot.
    offset: u64,
}

/// The instruction at `place` stands for a copy of a whole slot. The one that is the callee's is addressed from `callee`, if
/// it lies on the stack.
#[derive(Clone, Copy, Debug)]
struct Copy {
    place: (usize, usize),
    from: usize,
    to: usize,
    callee: usize,
    base: Option<Reg>,
}

/// Local memory being laid out.
#[derive(Debug, Default)]
pub(super) struct Slots {
    frames: Vec<Frame>,
    /// The frame of the unit that is being lowered.
    frame: usize,
    variables: Vec<Variable>,
    accesses: Vec<Access>,
    copies: Vec<Copy>,
    /// End of the innermost scope's variables.
    pub(super) top: u64,
}

/// Local memory as it was laid out.
#[derive(Debug)]
pub(super) struct Laid {
    /// Bytes at fixed places.
    pub(super) fixed: u64,
    /// Bytes of each frame.
    pub(super) frames: Vec<u64>,
    /// Registers that stand for slots, by slot and offset.
    regs: BTreeMap<(usize, u64), Reg>,
}

impl Laid {
    /// The registers that stand for a slot.
    pub(super) fn regs(&self, slot: Slot) -> impl Iterator<Item = Reg> {
        self.regs.range((slot.0, 0)..=(slot.0, u64::MAX)).map(|(_, reg)| *reg)
    }
}

impl Slots {
    /// A new frame on the stack, or after all those at fixed places; these must be complete.
    pub(super) fn open_frame(&mut self, stack: Option<Reg>) -> usize {
        let base = match stack {
            Some(reg) => Base::Stack(reg),
            None => {
                let ends = self.frames.iter().filter_map(|f| match f.base {
                    Base::Fixed(at) => Some(at + f.peak),
                    Base::Stack(_) => None,
                });
                Base::Fixed(ends.max().unwrap_or(0).next_multiple_of(16))
            }
        };
        self.frames.push(Frame { base, peak: 0, used: 0 });
        self.frame = self.frames.len() - 1;
        self.top = 0;
        self.frame
    }

    /// Where the frame of the unit at hand begins.
    pub(super) fn base(&self) -> Base {
        self.frames[self.frame].base
    }

    fn allocate(&mut self, size: u64, align: u32, line: u32) -> Result<u64, PtxError> {
        let offset = self.top.next_multiple_of(u64::from(align.max(1)));
        self.top = offset + size;
        let frame = &mut self.frames[self.frame];
        frame.peak = frame.peak.max(self.top);
        let start = match frame.base {
            Base::Fixed(at) => at,
            Base::Stack(_) => 0,
        };
        if start + self.top > MAX_LOCAL_BYTES {
            let text = format!("a thread uses more than {MAX_LOCAL_BYTES} bytes of local memory");
            return Err(PtxError::unsupported(line, text));
        }
        Ok(offset)
    }

    /// A local variable; its offset in the frame.
    pub(super) fn local(&mut self, size: u64, align: u32, line: u32) -> Result<u64, PtxError> {
        let offset = self.allocate(size, align, line)?;
        let frame = &mut self.frames[self.frame];
        frame.used = frame.used.max(offset + size);
        Ok(offset)
    }

    /// A `.param` variable of a call.
    pub(super) fn slot(&mut self, size: u64, align: u32, line: u32) -> Result<Slot, PtxError> {
        let offset = self.allocate(size, align, line)?;
        self.variables.push(Variable { frame: self.frame, offset, end: offset + size, align, escaped: false });
        Ok(Slot(self.variables.len() - 1))
    }

    /// A formal parameter of a function that is not inlined; [`Slots::place_formal`] gives it its place.
    pub(super) fn formal(&mut self, size: u64, align: u32) -> Slot {
        self.variables.push(Variable { frame: usize::MAX, offset: 0, end: size, align, escaped: false });
        Slot(self.variables.len() - 1)
    }

    /// Lays out a formal parameter in the frame of the unit at hand.
    pub(super) fn place_formal(&mut self, slot: Slot, line: u32) -> Result<(), PtxError> {
        let Variable { offset, end, align, .. } = self.variables[slot.0];
        let at = self.allocate(end - offset, align, line)?;
        let variable = &mut self.variables[slot.0];
        (variable.frame, variable.offset, variable.end) = (self.frame, at, at + (end - offset));
        Ok(())
    }

    /// Offset of a slot in its frame.
    pub(super) fn offset(&self, slot: Slot) -> u64 {
        self.variables[slot.0].offset
    }

    /// Size of a slot, bytes.
    pub(super) fn size(&self, slot: Slot) -> u64 {
        let v = &self.variables[slot.0];
        v.end - v.offset
    }

    /// Address of what lies at `offset` of the frame of the unit at hand.
    pub(super) fn address(&self, offset: u64) -> Address {
        address(self.base(), offset)
    }

    /// Somebody takes the address.
    pub(super) fn escape(&mut self, slot: Slot) {
        self.variables[slot.0].escaped = true;
    }

    /// Notes a load or store at `place`, `offset` bytes into the slot.
    pub(super) fn access(&mut self, place: (usize, usize), slot: Slot, offset: i64) {
        match u64::try_from(offset) {
            Ok(offset) => self.accesses.push(Access { place, slot: slot.0, offset }),
            Err(_) => self.escape(slot),
        }
    }

    /// Notes that the instruction at `place` stands for a copy of a slot to another of the same size. `callee` is that of
    /// the two which is the other unit's; `base` says where its frame begins, if it is on the stack.
    pub(super) fn copy(&mut self, place: (usize, usize), from: Slot, to: Slot, callee: Slot, base: Option<Reg>) {
        self.copies.push(Copy { place, from: from.0, to: to.0, callee: callee.0, base });
    }

    /// Turns slots into registers where that is possible.
    pub(super) fn finish(mut self, graph: &mut Graph, line: u32) -> Result<Laid, PtxError> {
        let classes = self.classes();
        let mut pieces = self.pieces(graph, &classes);
        let mut edits = Vec::new();
        for access in std::mem::take(&mut self.accesses) {
            if self.variables[access.slot].escaped {
                continue;
            }
            let inst = graph.inst_mut(access.place).clone();
            let mut sequence = Vec::new();
            let (ty, lanes) = shape(&inst.op);
            for lane in 0..lanes {
                let at = access.offset + lane * u64::from(ty.bytes());
                let reg = pieces.reg(access.slot, at, ty.bytes(), self.variables[access.slot].frame, graph, line)?;
                let op = match &inst.op {
                    Op::Ld { dsts, .. } => match dsts[lane as usize] {
                        Some(dst) => load(ty, reg, dst, graph.ty(dst)),
                        None => continue,
                    },
                    Op::St { srcs, .. } => store(ty, srcs[lane as usize], reg, graph),
                    _ => continue,
                };
                sequence.push(Inst { op, ..inst.clone() });
            }
            edits.push((access.place, sequence));
        }
        for copy in std::mem::take(&mut self.copies) {
            let ops = if self.variables[copy.from].escaped {
                self.copy_memory(copy, graph, line)?
            } else {
                let mut ops = Vec::new();
                for (at, bytes) in pieces.cuts(classes[copy.from]) {
                    let from = pieces.reg(copy.from, at, bytes, self.variables[copy.from].frame, graph, line)?;
                    let to = pieces.reg(copy.to, at, bytes, self.variables[copy.to].frame, graph, line)?;
                    ops.push(Op::Mov { ty: whole(plain(bytes).reg()), dst: to, src: Operand::Reg(from) });
                }
                ops
            };
            graph.count(ops.len(), line)?;
            let inst = graph.inst_mut(copy.place).clone();
            edits.push((copy.place, ops.into_iter().map(|op| Inst { op, ..inst.clone() }).collect()));
        }
        edits.sort_by_key(|(place, _)| *place);
        graph.splice(edits);
        Ok(self.laid(pieces.regs))
    }

    /// For each variable the least one that it is copied from or to, by any number of steps.
    fn classes(&self) -> Vec<usize> {
        let mut parents: Vec<usize> = (0..self.variables.len()).collect();
        fn root(parents: &mut [usize], mut at: usize) -> usize {
            while parents[at] != at {
                parents[at] = parents[parents[at]];
                at = parents[at];
            }
            at
        }
        for copy in &self.copies {
            let (a, b) = (root(&mut parents, copy.from), root(&mut parents, copy.to));
            parents[a.max(b)] = a.min(b);
        }
        (0..parents.len()).map(|at| root(&mut parents, at)).collect()
    }

    /// Cuts each class of slots into pieces; those that cannot be cut escape.
    fn pieces(&mut self, graph: &mut Graph, classes: &[usize]) -> Pieces {
        let mut pieces = Pieces::default();
        let mut escaped = vec![false; self.variables.len()];
        for access in &self.accesses {
            let class = classes[access.slot];
            let (ty, lanes) = shape(&graph.inst_mut(access.place).op);
            for lane in 0..lanes {
                let at = access.offset.saturating_add(lane * u64::from(ty.bytes()));
                let bytes = *pieces.cuts.entry((class, at)).or_insert(ty.bytes());
                escaped[class] |= bytes != ty.bytes() || ty.bytes() == 16;
            }
        }
        let mut last: Option<(usize, u64)> = None;
        for ((class, at), bytes) in &pieces.cuts {
            let end = at.saturating_add(u64::from(*bytes));
            let variable = &self.variables[*class];
            let overlaps = last.is_some_and(|(c, e)| c == *class && e > *at);
            escaped[*class] |= overlaps || end > variable.end - variable.offset;
            last = Some((*class, end));
        }
        for (variable, class) in self.variables.iter().zip(classes) {
            escaped[*class] |= variable.escaped;
        }
        for (variable, class) in self.variables.iter_mut().zip(classes) {
            variable.escaped = escaped[*class];
        }
        pieces
    }

    /// A copy from memory to memory, in steps that both are aligned to.
    fn copy_memory(&self, copy: Copy, graph: &mut Graph, line: u32) -> Result<Vec<Op>, PtxError> {
        let variables = [copy.from, copy.to].map(|at| &self.variables[at]);
        let size = variables[0].end - variables[0].offset;
        let step = variables[0].align.min(variables[1].align).clamp(1, 8);
        let at = |slot: usize, offset: u64| {
            let variable = &self.variables[slot];
            let base = match (slot == copy.callee, copy.base) {
                (true, Some(reg)) => Base::Stack(reg),
                _ => self.frames.get(variable.frame).map_or(Base::Fixed(0), |f| f.base),
            };
            address(base, variable.offset + offset)
        };
        let (mut ops, mut offset) = (Vec::new(), 0);
        while offset < size {
            let bytes = if size - offset >= u64::from(step) { step } else { 1 };
            let ty = plain(bytes);
            let value = graph.reg(ty.reg(), line)?;
            let (space, order) = (Space::Local, Order::Weak);
            ops.push(Op::Ld { space, ty, order, dsts: vec![Some(value)], addr: at(copy.from, offset) });
            ops.push(Op::St { space, ty, order, srcs: vec![Operand::Reg(value)], addr: at(copy.to, offset) });
            graph.count(2, line)?;
            offset += u64::from(bytes);
        }
        Ok(ops)
    }

    fn laid(self, regs: BTreeMap<(usize, u64), Reg>) -> Laid {
        let mut frames: Vec<u64> = self.frames.iter().map(|f| f.used).collect();
        for variable in self.variables.iter().filter(|v| v.escaped) {
            if let Some(used) = frames.get_mut(variable.frame) {
                *used = (*used).max(variable.end);
            }
        }
        let ends = self.frames.iter().zip(&frames).filter_map(|(frame, used)| match frame.base {
            Base::Fixed(at) if *used > 0 => Some(at + used),
            _ => None,
        });
        let fixed = ends.max().unwrap_or(0).next_multiple_of(16);
        Laid { fixed, frames, regs }
    }
}

/// Registers that stand for slots.
#[derive(Debug, Default)]
struct Pieces {
    /// Bytes of each piece, by class and offset.
    cuts: BTreeMap<(usize, u64), u32>,
    regs: BTreeMap<(usize, u64), Reg>,
}

impl Pieces {
    /// Offset and bytes of a class's pieces.
    fn cuts(&self, class: usize) -> Vec<(u64, u32)> {
        self.cuts.range((class, 0)..=(class, u64::MAX)).map(|((_, at), bytes)| (*at, *bytes)).collect()
    }

    /// The register of a piece, which belongs to the unit of the slot's frame.
    fn reg(
        &mut self,
        slot: usize,
        at: u64,
        bytes: u32,
        unit: usize,
        graph: &mut Graph,
        line: u32,
    ) -> Result<Reg, PtxError> {
        if let Some(reg) = self.regs.get(&(slot, at)) {
            return Ok(*reg);
        }
        graph.owner = unit as u32;
        let reg = graph.reg(plain(bytes).reg(), line)?;
        self.regs.insert((slot, at), reg);
        Ok(reg)
    }
}

fn address(base: Base, offset: u64) -> Address {
    match base {
        Base::Fixed(at) => Address { base: Operand::Imm(at + offset), offset: 0 },
        Base::Stack(reg) => Address { base: Operand::Reg(reg), offset: offset.cast_signed() },
    }
}

/// Type and number of elements of a load or store.
fn shape(op: &Op) -> (Ty, u64) {
    match op {
        Op::Ld { ty, dsts, .. } => (*ty, dsts.len() as u64),
        Op::St { ty, srcs, .. } => (*ty, srcs.len() as u64),
        _ => (Ty::B8, 0),
    }
}

fn plain(bytes: u32) -> Ty {
    match bytes {
        1 => Ty::U8,
        2 => Ty::U16,
        4 => Ty::U32,
        _ => Ty::U64,
    }
}

/// The integer type of a register class.
fn whole(class: RegTy) -> Ty {
    match class {
        RegTy::B16 | RegTy::Pred => Ty::U16,
        RegTy::B32 => Ty::U32,
        _ => Ty::U64,
    }
}

fn load(ty: Ty, from: Reg, dst: Reg, class: RegTy) -> Op {
    let src = Operand::Reg(from);
    if !ty.is_signed() && ty.reg() == class {
        // Narrow pieces are kept zero-extended.
        return Op::Mov { ty: whole(class), dst, src };
    }
    let (src_ty, dst_ty) = match (ty.is_signed(), plain(ty.bytes()), whole(class)) {
        (false, src, dst) => (src, dst),
        (true, src, dst) => (signed(src), signed(dst)),
    };
    convert(src_ty, dst_ty, dst, src)
}

fn store(ty: Ty, src: Operand, reg: Reg, graph: &Graph) -> Op {
    let piece = plain(ty.bytes());
    match src {
        Operand::Reg(r) if ty.bytes() == 1 || graph.ty(r) != piece.reg() => {
            convert(whole(graph.ty(r)), piece, reg, src)
        }
        _ => Op::Mov { ty: whole(piece.reg()), dst: reg, src },
    }
}

fn signed(ty: Ty) -> Ty {
    match ty {
        Ty::U8 => Ty::S8,
        Ty::U16 => Ty::S16,
        Ty::U32 => Ty::S32,
        _ => Ty::S64,
    }
}

fn convert(src_ty: Ty, dst_ty: Ty, dst: Reg, a: Operand) -> Op {
    Op::Cvt { dst_ty, src_ty, round: None, to_integral: false, ftz: false, sat: false, relu: false, dst, a }
}
