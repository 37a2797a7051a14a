//! Live ranges split: a value that stands in a register with others gets one of its own.
//!
//! A loop over the elements of an array begins with the thread's index and counts it up, in one register:
//!
//! ```text
//! i = tid.x; base = shared + 4 * i; LOOP: …; i = i + 512; bra LOOP;
//! ```
//!
//! Where lanes may leave the loop one by one `i` has a value for each lane, and so has what is computed from it, though `base` has
//! nothing to do with the loop. So where only one of a register's writes reaches a read, that value is kept in a register of its own, from
//! which the other one is copied, and what computes with it reads that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ptx::ir::{Inst, Kernel, Op, Operand, Reg, RegTy, Ty};

use super::graph::targets;
use super::operands;

/// A place in a kernel: a block, and an instruction in it.
type At = (usize, usize);

/// A register's writes, and those of its reads that could read another, in the order of the text.
#[derive(Default)]
struct Uses {
    writes: Vec<At>,
    reads: Vec<At>,
}

/// Edges and writes that are looked at, at most: what is left then stays as it is.
const PATIENCE: usize = 1 << 20;

/// The kernel with such values in registers of their own.
pub(crate) fn split(kernel: Arc<Kernel>) -> Arc<Kernel> {
    let mut left = PATIENCE;
    // Of each value: where it is computed, and where it is read.
    let mut found: Vec<(At, Vec<At>)> = Vec::new();
    for (r, Uses { writes, reads }) in uses(&kernel) {
        // The last write in a block is what leaves it.
        let last: HashMap<usize, At> = writes.iter().map(|&write| (write.0, write)).collect();
        for &at in writes.iter().filter(|&&(block, inst)| is_worth(&kernel.blocks[block].insts[inst], r)) {
            let Some(alone) = Alone::new(&kernel, &writes, &last, at, &mut left) else { break };
            let reads: Vec<At> = reads.iter().copied().filter(|&read| alone.reaches(read)).collect();
            if !reads.is_empty() {
                found.push((at, reads));
            }
        }
    }
    with(kernel, &found)
}

/// Of the registers that are written at several places, in their order: those that can hold an index or an address.
fn uses(kernel: &Kernel) -> BTreeMap<Reg, Uses> {
    let insts = || {
        let blocks = kernel.blocks.iter().enumerate();
        blocks.flat_map(|(block, b)| b.insts.iter().enumerate().map(move |(at, inst)| ((block, at), inst)))
    };
    let mut uses: BTreeMap<Reg, Uses> = BTreeMap::new();
    for (at, inst) in insts() {
        for r in operands::writes(&inst.op) {
            uses.entry(r).or_default().writes.push(at);
        }
    }
    uses.retain(|r, uses| uses.writes.len() > 1 && copied_as(kernel.regs[r.0 as usize]).is_some());
    for (at, inst) in insts() {
        let mut some = false;
        operands::reads(&inst.op, &mut |r| some |= uses.contains_key(&r));
        if !some {
            continue;
        }
        for operand in operands_of(&mut inst.op.clone()) {
            if let Operand::Reg(r) = operand
                && let Some(uses) = uses.get_mut(r)
            {
                uses.reads.push(at);
            }
        }
    }
    uses
}

/// Does the instruction compute a value of `r`, not from the one before, of which it matters what is known of it? Copies are what they
/// are copies of.
fn is_worth(inst: &Inst, r: Reg) -> bool {
    let computes =
        matches!(inst.op, Op::Special { .. } | Op::Int { .. } | Op::Mul { .. } | Op::Mad { .. } | Op::Cvt { .. });
    let mut anew = inst.guard.is_none() && computes;
    operands::reads(&inst.op, &mut |read| anew &= read != r);
    anew
}

/// Where a register has one value, and no other.
struct Alone<'a> {
    at: At,
    writes: &'a [At],
    /// Blocks that may be entered with another.
    others: Vec<bool>,
}

impl Alone<'_> {
    /// The value that is written at `at`, of a register that is written at all of `writes`, in blocks at `last`. None if that takes more than
    /// is `left`.
    fn new<'a>(
        kernel: &Kernel,
        writes: &'a [At],
        last: &HashMap<usize, At>,
        at: At,
        left: &mut usize,
    ) -> Option<Alone<'a>> {
        *left = left.checked_sub(kernel.blocks.len() + last.len())?;
        let mut others = vec![false; kernel.blocks.len()];
        others[0] = true;
        let mut work: Vec<usize> = last.iter().filter(|&(_, &write)| write != at).map(|(&block, _)| block).collect();
        if !last.contains_key(&0) {
            work.push(0);
        }
        while let Some(block) = work.pop() {
            for to in targets(&kernel.blocks[block].term) {
                *left = left.checked_sub(1)?;
                if !std::mem::replace(&mut others[to], true) && !last.contains_key(&to) {
                    work.push(to);
                }
            }
        }
        Some(Alone { at, writes, others })
    }

    /// Does only this value reach a read?
    fn reaches(&self, read: At) -> bool {
        let before = self.writes.partition_point(|&write| write < read);
        match self.writes[..before].last() {
            Some(&write) if write.0 == read.0 => write == self.at,
            _ => !self.others[read.0],
        }
    }
}

/// The kernel with the values that are computed at such places in registers of their own, which are read at those.
fn with(mut kernel: Arc<Kernel>, found: &[(At, Vec<At>)]) -> Arc<Kernel> {
    if found.is_empty() {
        return kernel;
    }
    let Kernel { blocks, regs, .. } = Arc::make_mut(&mut kernel);
    let mut copies: BTreeMap<usize, HashMap<usize, Inst>> = BTreeMap::new();
    for ((block, at), reads) in found {
        let Inst { op, line, .. } = &mut blocks[*block].insts[*at];
        let Some(dst) = destination(op) else { continue };
        let (shared, own) = (*dst, Reg(regs.len() as u32));
        let Some(ty) = copied_as(regs[shared.0 as usize]) else { continue };
        *dst = own;
        regs.push(regs[shared.0 as usize]);
        let copy = Inst { guard: None, op: Op::Mov { ty, dst: shared, src: Operand::Reg(own) }, line: *line };
        copies.entry(*block).or_default().insert(*at, copy);
        for &(block, at) in reads {
            for operand in operands_of(&mut blocks[block].insts[at].op) {
                if *operand == Operand::Reg(shared) {
                    *operand = Operand::Reg(own);
                }
            }
        }
    }
    for (block, mut copies) in copies {
        let insts = std::mem::take(&mut blocks[block].insts).into_iter().enumerate();
        blocks[block].insts = insts.flat_map(|(at, inst)| [Some(inst), copies.remove(&at)]).flatten().collect();
    }
    kernel
}

/// As what a register of a type is copied, if it can hold an index or an address.
fn copied_as(ty: RegTy) -> Option<Ty> {
    match ty {
        RegTy::B32 => Some(Ty::B32),
        RegTy::B64 => Some(Ty::B64),
        RegTy::Pred | RegTy::B16 | RegTy::B128 => None,
    }
}

/// What a computation that is worth it writes.
fn destination(op: &mut Op) -> Option<&mut Reg> {
    match op {
        Op::Special { dst, .. }
        | Op::Int { dst, .. }
        | Op::Mul { dst, .. }
        | Op::Mad { dst, .. }
        | Op::Cvt { dst, .. } => Some(dst),
        _ => None,
    }
}

/// Operands of instructions for which it matters what is known of them: addresses, and what computes these.
fn operands_of(op: &mut Op) -> Vec<&mut Operand> {
    match op {
        Op::Int { a, b, .. } | Op::Mul { a, b, .. } | Op::Setp { a, b, .. } => vec![a, b],
        Op::Mad { a, b, c, .. } => vec![a, b, c],
        Op::IntUn { a, .. } | Op::Cvt { a, .. } | Op::Cvta { a, .. } => vec![a],
        Op::Ld { addr, .. }
        | Op::St { addr, .. }
        | Op::Atom { addr, .. }
        | Op::LdMatrix { addr, .. }
        | Op::StMatrix { addr, .. } => vec![&mut addr.base],
        Op::CpAsync { dst, src, .. } => vec![&mut dst.base, &mut src.base],
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many values get a register of their own, and how many instructions read one of these instead.
    fn found(body: &str) -> (usize, usize) {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 n) {{\n\
             .reg .b64 %rd<8>; .reg .b32 %r<9>; .reg .b16 %h<4>; .reg .pred %p<4>;\n\
             ld.param.u64 %rd0, [a]; ld.param.u32 %r8, [n];\n{body}\nst.global.u32 [%rd0], %r7; ret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
        let split = split(Arc::clone(&kernel));
        let own = kernel.regs.len()..split.regs.len();
        let insts = split.blocks.iter().flat_map(|block| &block.insts);
        let reads_own = |inst: &&Inst| {
            let mut some = false;
            operands::reads(&inst.op, &mut |r| some |= own.contains(&(r.0 as usize)));
            some
        };
        // Besides the copies.
        (own.len(), insts.filter(reads_own).count().saturating_sub(own.len()))
    }

    #[test]
    fn what_one_write_alone_reaches_reads_it_from_a_register_of_its_own() {
        let cases = [
            // The index of a loop before it counts: its first value, which three read.
            (
                "mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; setp.lt.u32 %p0, %r0, %r8; not.b32 %r2, %r0; @!%p0 bra END;\n\
                 LOOP: add.u32 %r7, %r7, %r1; add.u32 %r0, %r0, 512; setp.lt.u32 %p1, %r0, %r8; @%p1 bra LOOP; END: add.u32 %r7, %r7, %r2;",
                (1, 3),
            ),
            // In the loop both may be meant, and behind it.
            (
                "mov.u32 %r0, %tid.x; LOOP: add.u32 %r7, %r7, %r0; add.u32 %r0, %r0, 512; setp.lt.u32 %p1, %r7, %r8; @%p1 bra LOOP;\n\
                 shl.b32 %r1, %r0, 2;",
                (0, 0),
            ),
            // Two values one after the other, in one block and in two.
            ("mul.lo.u32 %r0, %r8, 3; add.u32 %r6, %r0, 1; mul.lo.u32 %r0, %r8, 5; add.u32 %r7, %r6, %r0;", (2, 2)),
            (
                "mul.lo.u32 %r0, %r8, 3; setp.eq.u32 %p0, %r8, 1; @%p0 bra ON; mul.lo.u32 %r0, %r8, 5; add.u32 %r7, %r0, 2; ON: add.u32 %r6, %r0, 1;",
                (1, 1),
            ),
            // A write that some do, on top; one that not all come to; a register that is read before it is written.
            (
                "mul.lo.u32 %r0, %r8, 3; setp.eq.u32 %p0, %r8, 1; @%p0 mul.lo.u32 %r0, %r8, 5; add.u32 %r7, %r0, 1;",
                (0, 0),
            ),
            (
                "setp.eq.u32 %p0, %r8, 1; @%p0 bra ON; mul.lo.u32 %r0, %r8, 5; ON: add.u32 %r6, %r0, 1; mul.lo.u32 %r0, %r8, 3; add.u32 %r7, %r6, %r0;",
                (1, 1),
            ),
            // In a loop, over its end: the value of the trip before, or none.
            (
                "LOOP: add.u32 %r7, %r7, %r0; mul.lo.u32 %r0, %r7, 3; setp.lt.u32 %p1, %r7, %r8; @%p1 bra LOOP; mov.u32 %r0, 5;",
                (0, 0),
            ),
            // Of a loop's own, anew in each trip.
            (
                "LOOP: mul.lo.u32 %r0, %r8, 3; add.u32 %r7, %r7, %r0; mul.lo.u32 %r0, %r8, 5; setp.lt.u32 %p1, %r0, %r7; @%p1 bra LOOP;",
                (2, 2),
            ),
            // Numbers of 64 bits, as addresses; twice in one instruction, under a guard; behind a load of two, of which it is one.
            (
                "mul.wide.u32 %rd1, %r8, 4; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1+4], %r1; atom.global.add.u32 %r2, [%rd1], 1;\n\
                 mul.wide.u32 %rd1, %r8, 8; add.s64 %rd2, %rd1, 1;",
                (2, 4),
            ),
            ("mul.lo.u32 %r0, %r8, 3; setp.eq.u32 %p0, %r8, 1; @%p0 mul.lo.u32 %r1, %r0, %r0; mov.u32 %r0, 5;", (1, 1)),
            ("mul.lo.u32 %r0, %r8, 3; ld.global.v2.u32 {%r0, %r1}, [%rd0]; add.u32 %r7, %r0, 1;", (0, 0)),
            // One write; copies; what counts on; numbers of 16 bits.
            ("mul.lo.u32 %r0, %r8, 3; add.u32 %r7, %r0, 1;", (0, 0)),
            ("mov.u32 %r0, %r8; add.u32 %r6, %r0, 1; mov.u32 %r0, 4; add.u32 %r7, %r6, %r0;", (0, 0)),
            ("mov.u32 %r0, %r8; add.u32 %r0, %r0, 1; add.u32 %r7, %r0, 1;", (0, 0)),
            ("add.u16 %h0, 1, 2; add.u16 %h1, %h0, 3; add.u16 %h0, 1, 3; add.u16 %h1, %h1, %h0;", (0, 0)),
        ];
        let wrong: Vec<String> = cases
            .into_iter()
            .filter(|(body, want)| found(body) != *want)
            .map(|(body, want)| format!("{body}: {:?}, not {want:?}", found(body)))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Each search looks at all edges; it is not to be done for each value of a kernel that has many of both.
    #[test]
    fn what_takes_too_long_is_left() {
        let blocks = 300;
        let labels: Vec<String> = (0..blocks).map(|i| format!("B{i}")).collect();
        let branches: String = (0..blocks).map(|i| format!("B{i}: brx.idx %r8, T;\n")).collect();
        let values = |count: usize| "mul.lo.u32 %r0, %r8, 3; add.u32 %r7, %r0, 1;\n".repeat(count);
        let body = |count| {
            format!(
                "setp.eq.u32 %p0, %r8, 1; @%p0 bra END; T: .branchtargets {}, END;\n{branches}END: {}",
                labels.join(", "),
                values(count)
            )
        };
        assert_eq!(found(&body(2)).0, 2);
        let (own, _) = found(&body(100));
        assert!((2..50).contains(&own), "{own} of 100 values have registers of their own");
    }
}
