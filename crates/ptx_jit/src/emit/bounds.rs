//! Branches by bounds: predicates made of comparisons of an index that grows steadily over the lanes with what they share. In most chunks
//! they are the same in all lanes, which the first lane and the last one tell.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, InstBuilder, Value, types};
use ptx::ir::{Cmp, Inst, IntOp, IntUnOp, Op, Operand, PredRef, Reg, RegTy, Ty};

use super::{Emit, Val, int};
use crate::analysis::classes::{self, Bound, Class};
use crate::analysis::graph::{NodeId, NodeTerm};
use crate::analysis::operands;
use crate::analysis::regset::RegSet;

/// The instructions of a node that make the predicate at its end of bounds, and of predicates that lanes share.
pub(super) struct Ends {
    /// In the order of the node.
    made: Vec<usize>,
    /// Nobody else reads what they write: they can be left to where lanes part.
    late: bool,
}

impl Ends {
    /// Instructions that the node's code leaves out.
    pub(super) fn late(&self) -> &[usize] {
        if self.late { &self.made } else { &[] }
    }
}

/// Is a predicate the same in all lanes? Two numbers of 8 bits, that are 1 if it holds in all, and if it holds in none.
#[derive(Clone, Copy)]
struct Everywhere {
    all: Value,
    none: Value,
}

/// The lowest and the highest value of an index in a chunk, and whether it has them: else it has wrapped.
#[derive(Clone, Copy)]
struct Index {
    low: Value,
    high: Value,
    grows: Value,
}

/// Most comparisons that are asked one after the other, and deepest predicates in which they are looked for.
const MAX_LEAVES: usize = 8;
const MAX_DEPTH: u8 = 16;

/// By what an index is made of, and whether numbers have a sign when it is extended, and when it is compared.
type Indices = HashMap<(Value, Option<Value>, (i32, i64), [bool; 2]), Index>;

/// What is asked of a predicate, and what is to come out.
struct Leaf {
    of: Asked,
    want: bool,
}

enum Asked {
    /// A predicate that lanes share.
    Shared(Operand),
    Bound(Bound),
}

impl Emit<'_, '_> {
    /// How the predicate at the end of a node comes about, if by bounds.
    pub(super) fn ends(&self, n: NodeId) -> Option<Ends> {
        let node = &self.plan.nodes[n];
        let NodeTerm::Cond { p, .. } = node.term else { return None };
        if self.class(p.reg) != Class::Varying {
            return None;
        }
        let body = node.body(self.k);
        let mut live = RegSet::default();
        for s in node.successors() {
            live.add(&self.plan.live.live_in[s]);
        }
        let mut ends = Ends { made: Vec::new(), late: !live.contains(p.reg) };
        // Backwards: what is still to be found, and what instructions between here and the end write and read.
        let (mut wanted, mut written, mut read) = (RegSet::default(), RegSet::default(), RegSet::default());
        wanted.insert(p.reg);
        for (i, inst) in body.iter().enumerate().rev() {
            let writes = operands::writes(&inst.op);
            let made = match writes.first() {
                Some(&r) if wanted.contains(r) => self.makes(inst, r).then_some(r)?,
                _ => {
                    writes.into_iter().for_each(|r| _ = written.insert(r));
                    operands::inst_reads(inst, &mut |r| _ = read.insert(r));
                    continue;
                }
            };
            wanted.remove(made);
            // A comparison may give another predicate beside.
            writes[1..].iter().for_each(|&r| _ = written.insert(r));
            ends.late &= writes.len() == 1 && !read.contains(made) && !live.contains(made);
            let mut fine = !written.contains(made);
            operands::inst_reads(inst, &mut |r| {
                fine &= !written.contains(r);
                if self.k.regs[r.0 as usize] == RegTy::Pred && self.class(r) == Class::Varying {
                    wanted.insert(r);
                }
            });
            if !fine {
                return None;
            }
            ends.made.push(i);
        }
        ends.made.reverse();
        (wanted.iter().next().is_none()).then_some(ends)
    }

    /// Is the instruction one of those that make such predicates?
    fn makes(&self, inst: &Inst, r: Reg) -> bool {
        let plain = match &inst.op {
            Op::Int { op: IntOp::And | IntOp::Or, ty: Ty::Pred, a: Operand::Reg(_), b: Operand::Reg(_), .. }
            | Op::IntUn { op: IntUnOp::Not, ty: Ty::Pred, a: Operand::Reg(_), .. }
            | Op::Mov { ty: Ty::Pred, src: Operand::Reg(_), .. } => true,
            _ => classes::bound(inst, r, &self.plan.classes).is_some(),
        };
        plain && inst.guard.is_none()
    }

    /// Goes to `to[0]` if the predicate at the end of node `n` holds in all lanes, and to `to[1]` if in none, where `ends` tell. Code goes
    /// on here for the rest, with the lanes in which the register says yes.
    pub(super) fn branch_by_ends(&mut self, n: NodeId, p: PredRef, ends: &Ends, to: [Block; 2]) -> Vec<Value> {
        let body = self.plan.nodes[n].body(self.k);
        let [holds, fails] = if p.negate { [to[1], to[0]] } else { to };
        // One comparison after the other, where each must come out so: mostly all do.
        let asked = [(false, fails), (true, holds)].map(|(want, to)| {
            let mut leaves = Vec::new();
            let enough = self.leaves(body, &ends.made, p.reg, want, 0, &mut leaves);
            if enough {
                self.branch_by_leaves(&leaves, to);
            }
            enough
        });
        if asked != [true; 2] {
            let mut known: HashMap<Reg, Everywhere> = HashMap::new();
            let mut indices = HashMap::new();
            for &i in &ends.made {
                let Some(&r) = operands::writes(&body[i].op).first() else { continue };
                let everywhere = self.everywhere(&body[i], r, &known, &mut indices);
                known.insert(r, everywhere);
            }
            if let Some(&Everywhere { all, none }) = known.get(&p.reg) {
                for (asked, is_so, to) in [(asked[0], none, fails), (asked[1], all, holds)] {
                    if !asked {
                        let next = self.b.create_block();
                        self.b.ins().brif(is_so, to, &[], next, &[]);
                        self.b.switch_to_block(next);
                    }
                }
            }
        }
        if self.plan.nodes[n].successors().contains(&n) {
            self.apart(n);
        }
        for &i in ends.late() {
            self.line = body[i].line;
            self.op(&body[i].op);
        }
        let val = self.get(p.reg);
        self.lanes(&val, RegTy::Pred)
    }

    /// Comparisons that must come out alike in all lanes for predicate `r`, made by instructions `made`, to be `want` in all; false if it is
    /// not enough that all of some do.
    fn leaves(&self, body: &[Inst], made: &[usize], r: Reg, want: bool, depth: u8, leaves: &mut Vec<Leaf>) -> bool {
        if leaves.len() == MAX_LEAVES || depth == MAX_DEPTH {
            return false;
        }
        let last = made.iter().rposition(|&i| operands::writes(&body[i].op).first() == Some(&r));
        let Some(position) = last else {
            leaves.push(Leaf { of: Asked::Shared(Operand::Reg(r)), want });
            return true;
        };
        let (inst, made) = (&body[made[position]], &made[..position]);
        if let Some(bound) = classes::bound(inst, r, &self.plan.classes) {
            leaves.push(Leaf { of: Asked::Bound(bound), want });
            return true;
        }
        let mut of = |o: Operand, want| match o {
            Operand::Reg(r) => self.leaves(body, made, r, want, depth + 1, leaves),
            Operand::Imm(_) => false,
        };
        match inst.op {
            Op::Int { op: IntOp::And, a, b, .. } if want => of(a, want) && of(b, want),
            Op::Int { op: IntOp::Or, a, b, .. } if !want => of(a, want) && of(b, want),
            Op::IntUn { a, .. } => of(a, !want),
            Op::Mov { src, .. } => of(src, want),
            _ => false,
        }
    }

    /// Goes to `to` if all that is asked comes out as it is to be; code goes on here if not.
    fn branch_by_leaves(&mut self, leaves: &[Leaf], to: Block) {
        let rest = self.b.create_block();
        let mut indices = HashMap::new();
        let go_on = |e: &mut Self, value: Value, want: bool| {
            let next = e.b.create_block();
            let (yes, no) = if want { (next, rest) } else { (rest, next) };
            e.b.ins().brif(value, yes, &[], no, &[]);
            e.b.switch_to_block(next);
        };
        for Leaf { of, want } in leaves {
            match of {
                Asked::Shared(o) => {
                    let val = self.operand(*o, RegTy::Pred);
                    let value = self.first(&val, RegTy::Pred);
                    go_on(self, value, *want);
                }
                Asked::Bound(bound) => {
                    let seen = indices.len();
                    let ends = self.bound_ends(bound, &mut indices);
                    let (value, want) = match ends {
                        Some((all, some, _)) => {
                            if *want {
                                (all, true)
                            } else {
                                (some, false)
                            }
                        }
                        None => (self.b.ins().iconst(types::I8, 0), true),
                    };
                    go_on(self, value, want);
                    if let Some((.., grows)) = ends
                        && indices.len() > seen
                    {
                        go_on(self, grows, true);
                    }
                }
            }
        }
        self.b.ins().jump(to, &[]);
        self.b.switch_to_block(rest);
    }

    fn everywhere(
        &mut self,
        inst: &Inst,
        r: Reg,
        known: &HashMap<Reg, Everywhere>,
        indices: &mut Indices,
    ) -> Everywhere {
        if let Some(bound) = classes::bound(inst, r, &self.plan.classes) {
            return self.bound_everywhere(&bound, indices);
        }
        let of = |e: &mut Self, o: Operand| match o {
            Operand::Reg(r) if known.contains_key(&r) => known[&r],
            o => {
                let val = e.operand(o, RegTy::Pred);
                let all = e.first(&val, RegTy::Pred);
                Everywhere { all, none: e.b.ins().bxor_imm_u(all, 1) }
            }
        };
        match inst.op {
            Op::Int { op, a, b, .. } => {
                let (a, b) = (of(self, a), of(self, b));
                let (both, either) = if op == IntOp::And {
                    ((a.all, b.all), (a.none, b.none))
                } else {
                    ((a.none, b.none), (a.all, b.all))
                };
                let (both, either) = (self.b.ins().band(both.0, both.1), self.b.ins().bor(either.0, either.1));
                if op == IntOp::And {
                    Everywhere { all: both, none: either }
                } else {
                    Everywhere { all: either, none: both }
                }
            }
            Op::IntUn { a, .. } => {
                let Everywhere { all, none } = of(self, a);
                Everywhere { all: none, none: all }
            }
            Op::Mov { src, .. } => of(self, src),
            _ => {
                let no = self.b.ins().iconst(types::I8, 0);
                Everywhere { all: no, none: no }
            }
        }
    }

    fn bound_everywhere(&mut self, bound: &Bound, indices: &mut Indices) -> Everywhere {
        let Some((all, some, grows)) = self.bound_ends(bound, indices) else {
            let no = self.b.ins().iconst(types::I8, 0);
            return Everywhere { all: no, none: no };
        };
        let none = self.b.ins().bxor_imm_u(some, 1);
        Everywhere { all: self.b.ins().band(all, grows), none: self.b.ins().band(none, grows) }
    }

    /// Does a comparison hold in all lanes of a chunk, and in some? Both if the index has not wrapped, which the third says. None if it is
    /// no such comparison.
    fn bound_ends(&mut self, bound: &Bound, indices: &mut Indices) -> Option<(Value, Value, Value)> {
        let (a, b) = (self.operand(bound.a, bound.ty), self.operand(bound.b, bound.ty));
        let (index, v, swapped) = match (a, b) {
            (index @ (Val::Affine { .. } | Val::Wide { .. }), Val::Same(v)) => (index, v, false),
            (Val::Same(v), index @ (Val::Affine { .. } | Val::Wide { .. })) => (index, v, true),
            _ => return None,
        };
        let condition = |cmp| int::condition(cmp, bound.signed).unwrap_or(IntCC::Equal);
        let others = i64::from(self.plan.lanes() - 1);
        let key = match index {
            Val::Affine { base, stride } => (base, None, (stride, 1), [false, bound.signed]),
            Val::Wide { b, c, stride, k, signed } => (b, Some(c), (stride, k), [signed, bound.signed]),
            _ => return None,
        };
        let Index { low, high, grows } = *indices.entry(key).or_insert_with(|| {
            let (b, c, (stride, k), [extends_sign, _]) = key;
            let first = c.map_or(b, |c| self.wide_scalar(b, c, k, extends_sign));
            let distance = i64::from(stride) * k;
            let end = self.b.ins().iadd_imm_s(first, distance * others);
            let (low, high) = if distance > 0 { (first, end) } else { (end, first) };
            let grows = self.b.ins().icmp(condition(Cmp::Le), low, high);
            let whole = c.map(|_| self.stays_in_range(b, stride, extends_sign));
            Index { low, high, grows: whole.map_or(grows, |whole| self.b.ins().band(grows, whole)) }
        });
        if let Cmp::Eq | Cmp::Ne = bound.cmp {
            // An index that grows is equal to a number in one lane at most.
            let below = self.b.ins().icmp(condition(Cmp::Lt), v, low);
            let above = self.b.ins().icmp(condition(Cmp::Gt), v, high);
            let away = self.b.ins().bor(below, above);
            let yes = self.b.ins().iconst(types::I8, 1);
            let near = self.b.ins().bxor(away, yes);
            let no = self.b.ins().iconst(types::I8, 0);
            return Some(if bound.cmp == Cmp::Eq { (no, near, grows) } else { (away, yes, grows) });
        }
        let holds = |e: &mut Self, x| {
            let (x, y) = if swapped { (v, x) } else { (x, v) };
            e.b.ins().icmp(condition(bound.cmp), x, y)
        };
        // If it holds for the one, it does for all; if not for the other, for none.
        let less = matches!(bound.cmp, Cmp::Lt | Cmp::Le) != swapped;
        let (last, first) = if less { (high, low) } else { (low, high) };
        Some((holds(self, last), holds(self, first), grows))
    }
}
