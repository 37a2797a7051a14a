//! Local memory of a thread: depots, and `.param` variables of calls.
//!
//! A call passes values through `.param` variables: the caller stores, the callee loads. With the call inlined both ends
//! are known, so a variable whose address nobody takes, and whose accesses cut it into pieces that never overlap
//! partly, becomes one register per piece. The rest are local memory.

use std::collections::BTreeMap;

use super::MAX_LOCAL_BYTES;
use super::graph::Graph;
use crate::error::PtxError;
use crate::ir::{Inst, Op, Operand, Reg, RegTy, Ty};

/// A `.param` variable of a call: an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot(usize);

#[derive(Debug)]
struct Variable {
    offset: u64,
    end: u64,
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

/// Local memory being laid out.
#[derive(Debug, Default)]
pub(super) struct Slots {
    variables: Vec<Variable>,
    accesses: Vec<Access>,
    /// End of the innermost frame.
    pub(super) top: u64,
    /// Highest end of what must be memory.
    used: u64,
}

impl Slots {
    fn allocate(&mut self, size: u64, align: u32, line: u32) -> Result<u64, PtxError> {
        let offset = self.top.next_multiple_of(u64::from(align.max(1)));
        self.top = offset + size;
        if self.top > MAX_LOCAL_BYTES {
            let text = format!("a thread uses more than {MAX_LOCAL_BYTES} bytes of local memory");
            return Err(PtxError::unsupported(line, text));
        }
        Ok(offset)
    }

    /// A local variable; its offset.
    pub(super) fn local(&mut self, size: u64, align: u32, line: u32) -> Result<u64, PtxError> {
        let offset = self.allocate(size, align, line)?;
        self.used = self.used.max(offset + size);
        Ok(offset)
    }

    /// A `.param` variable of a call.
    pub(super) fn slot(&mut self, size: u64, align: u32, line: u32) -> Result<Slot, PtxError> {
        let offset = self.allocate(size, align, line)?;
        self.variables.push(Variable { offset, end: offset + size, escaped: false });
        Ok(Slot(self.variables.len() - 1))
    }

    /// Local offset of a slot.
    pub(super) fn offset(&self, slot: Slot) -> u64 {
        self.variables[slot.0].offset
    }

    /// Size of a slot, bytes.
    pub(super) fn size(&self, slot: Slot) -> u64 {
        let v = &self.variables[slot.0];
        v.end - v.offset
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

    /// Turns slots into registers where that is possible; the bytes of local memory that are left.
    pub(super) fn finish(mut self, graph: &mut Graph, line: u32) -> Result<u32, PtxError> {
        // Pieces of each slot: offset to bytes and register.
        let mut pieces: BTreeMap<(usize, u64), (u32, Option<Reg>)> = BTreeMap::new();
        for access in &self.accesses {
            let variable = &mut self.variables[access.slot];
            let (ty, lanes) = shape(&graph.inst_mut(access.place).op);
            for lane in 0..lanes {
                let at = access.offset.saturating_add(lane * u64::from(ty.bytes()));
                let bytes = *pieces.entry((access.slot, at)).or_insert((ty.bytes(), None));
                variable.escaped |= bytes.0 != ty.bytes() || ty.bytes() == 16;
            }
        }
        let mut last: Option<(usize, u64)> = None;
        for ((slot, at), (bytes, _)) in &pieces {
            let end = at.saturating_add(u64::from(*bytes));
            let variable = &mut self.variables[*slot];
            let overlaps = last.is_some_and(|(s, e)| s == *slot && e > *at);
            variable.escaped |= overlaps || end > variable.end - variable.offset;
            last = Some((*slot, end));
        }
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
                let Some((_, slot_reg)) = pieces.get_mut(&(access.slot, at)) else { continue };
                let reg = match slot_reg {
                    Some(reg) => *reg,
                    None => *slot_reg.insert(graph.reg(plain(ty.bytes()).reg(), line)?),
                };
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
        edits.sort_by_key(|(place, _)| *place);
        graph.splice(edits);
        let kept = self.variables.iter().filter(|v| v.escaped).map(|v| v.end);
        let used = kept.fold(self.used, u64::max);
        Ok(used.next_multiple_of(16) as u32)
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
