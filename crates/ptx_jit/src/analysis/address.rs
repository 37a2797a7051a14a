//! What can be said of an address without running the kernel: what it points into, and what it is a sum of.
//!
//! An address is a number plus multiples of **symbols**: parameters, thread indices, and registers of which no more is
//! known. Registers that are written at one place, which every use comes behind, are looked through; a register that is
//! written at several places (an index that a loop counts up) is a symbol only where an address uses it directly, and what
//! is computed from it is a symbol again, which moves as it does, as long as nothing else in its sum is written anew.
//! Indices are taken not to wrap.

use std::collections::HashMap;
use std::rc::Rc;

use ptx::ir::{Address, Cmp, Inst, IntOp, Kernel, MulPart, Op, Operand, Reg, RegTy, SReg, Space, Term};
use ptx::launch::WARP;

use super::classes::{Class, Shape};
use super::graph::targets;
use super::{dominators, operands};

/// Terms that a sum may have; one with more is a symbol.
const MAX_TERMS: usize = 6;
/// Rounds over the kernel to find out where pointers come from; what is not known by then is unknown.
const MAX_ROUNDS: usize = 8;
/// Lists of the differences between lanes that are kept; beyond, only what all of them are multiples of is.
const MAX_SPREADS: usize = 128;
/// No pointer is below.
const LEAST_POINTER: u64 = 4096;
/// Multiples are not followed beyond.
const MAX_MULTIPLE: i64 = 1 << 40;

/// A part of memory that does not overlap others, but for those that say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    /// The CTA's shared memory.
    Shared,
    /// What a kernel parameter, by its offset, points into.
    Param(u32),
    /// The module's variables.
    Module,
    /// Anywhere in global memory.
    Global,
    /// Anywhere in global or shared memory.
    Anywhere,
    /// What is printed.
    Print,
    /// What surfaces show; no other instruction is taken to reach it.
    Surfaces,
}

impl Area {
    /// May the areas, two different ones, overlap?
    pub(super) fn overlaps(self, other: Area) -> bool {
        match (self, other) {
            (Area::Print | Area::Surfaces, _) | (_, Area::Print | Area::Surfaces) => false,
            (Area::Anywhere, _) | (_, Area::Anywhere) => true,
            (Area::Shared, _) | (_, Area::Shared) => false,
            (a, b) => a == Area::Global || b == Area::Global,
        }
    }
}

/// Where a value comes from, or, if it has fewer than 64 bits, what it is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Number,
    /// A number in the upper half, with nothing in the lower one: what it is added to becomes any pointer.
    Upper,
    Param(u32),
    Shared,
    Local,
    Unknown,
}

impl Origin {
    fn join(self, other: Origin) -> Origin {
        match (self, other) {
            (Origin::Number, x) | (x, Origin::Number) => x,
            (a, b) if a == b => a,
            _ => Origin::Unknown,
        }
    }
}

/// A value that is not looked into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Symbol {
    Tid(u8),
    Ctaid(u8),
    /// A parameter: offset and bytes.
    Param(u32, u32),
    Reg(u32),
}

/// `number + Σ factor * symbol`, symbols in order.
#[derive(Clone, PartialEq, Debug, Default)]
struct Sum {
    terms: Vec<(Symbol, i64)>,
    number: i64,
}

impl Sum {
    fn symbol(symbol: Symbol) -> Sum {
        Sum { terms: vec![(symbol, 1)], number: 0 }
    }

    fn number(number: i64) -> Sum {
        Sum { terms: Vec::new(), number }
    }

    /// `self + factor * other`, if it does not get too long.
    fn plus(&self, other: &Sum, factor: i64) -> Option<Sum> {
        let mut sum = self.clone();
        sum.number = sum.number.wrapping_add(other.number.wrapping_mul(factor));
        for &(symbol, by) in &other.terms {
            let by = by.wrapping_mul(factor);
            match sum.terms.binary_search_by_key(&symbol, |t| t.0) {
                Ok(at) => {
                    sum.terms[at].1 = sum.terms[at].1.wrapping_add(by);
                    if sum.terms[at].1 == 0 {
                        sum.terms.remove(at);
                    }
                }
                Err(at) if by != 0 => sum.terms.insert(at, (symbol, by)),
                Err(_) => {}
            }
        }
        (sum.terms.len() <= MAX_TERMS).then_some(sum)
    }

    fn times(&self, factor: i64) -> Option<Sum> {
        Sum::default().plus(self, factor)
    }
}

/// By how much the symbols of an address differ between two lanes of a warp.
#[derive(Clone, Debug)]
enum Spread {
    /// By so much for every lane between them.
    Stride(i64),
    /// By one of these numbers, in order.
    Known(Rc<[i64]>),
    /// By some multiple of this.
    Multiple(i64),
}

/// The symbols of an address: an index of [`Addresses::forms`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form(u32);

/// An address: its symbols, and the bytes that are accessed at that sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) form: Form,
    pub(super) bytes: (i64, i64),
}

/// Threads by their index x, from the first to before the last; which of a warp's lanes they are can be told where warps lie
/// in rows.
pub(super) type Threads = (i64, i64);

/// What the writing of a register does to an address that contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// It is not in there.
    None,
    /// Moves it by a multiple of this.
    By(i64),
    /// Nobody knows.
    Unknown,
}

/// What a register is computed from.
#[derive(Clone, Debug)]
struct Derived {
    /// The register that moves, and by which multiple of that this one does.
    root: (Reg, i64),
    /// Whatever else is in the sum: when one of these is written, nobody knows how far it moves.
    others: Vec<Reg>,
}

impl Derived {
    /// A sum with one register that is written at several places, if it is such a one.
    fn new(sum: &Sum, single: &[bool]) -> Option<Derived> {
        let mut roots = Vec::new();
        let mut others = Vec::new();
        for &(symbol, by) in &sum.terms {
            match symbol {
                Symbol::Reg(r) if single[r as usize] => others.push(Reg(r)),
                Symbol::Reg(r) => roots.push((Reg(r), by)),
                _ => {}
            }
        }
        match roots[..] {
            [root] => Some(Derived { root, others }),
            _ => None,
        }
    }
}

/// The addresses of a kernel.
#[derive(Debug)]
pub(super) struct Addresses<'k> {
    kernel: &'k Kernel,
    shape: Shape,
    /// Classes of registers over the lanes of a warp; none: nothing is known of them.
    classes: Option<Vec<Class>>,
    /// Registers written at one place, without a guard, that every use comes behind.
    single: Vec<bool>,
    sums: Vec<Option<Sum>>,
    /// Numbers of which the registers' values are multiples; 0 is a multiple of all.
    multiples: Vec<i64>,
    /// Registers that are a sum of one that moves and of others.
    derived: Vec<Option<Derived>>,
    /// Numbers of which all increments of the register are multiples, if it has some.
    steps: Vec<Option<i64>>,
    origins: Vec<Origin>,
    forms: Vec<(Vec<(Symbol, i64)>, Spread)>,
    ids: HashMap<Vec<(Symbol, i64)>, Form>,
    spreads: HashMap<[i64; 3], Rc<[i64]>>,
    /// Registers whose writing changes a form.
    watched: Vec<bool>,
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

fn product(a: i64, b: i64) -> i64 {
    match a.checked_mul(b) {
        Some(p) if p.unsigned_abs() <= MAX_MULTIPLE.unsigned_abs() => p,
        // A power of two of the true one.
        _ => 1 << a.trailing_zeros().saturating_add(b.trailing_zeros()).min(40),
    }
}

/// Has `period` (0: all numbers but 0 excluded) a multiple above `low` and below `high`?
fn multiple_between(period: i64, low: i64, high: i64) -> bool {
    if period == 0 {
        return low < 0 && 0 < high;
    }
    (high - 1).div_euclid(period) * period > low
}

impl<'k> Addresses<'k> {
    pub(super) fn new(kernel: &'k Kernel, shape: Shape, classes: Option<Vec<Class>>) -> Addresses<'k> {
        let count = kernel.regs.len();
        let mut all = Addresses {
            kernel,
            shape,
            classes,
            single: singles(kernel),
            sums: vec![None; count],
            multiples: vec![1; count],
            derived: vec![None; count],
            steps: vec![None; count],
            origins: vec![Origin::Number; count],
            forms: Vec::new(),
            ids: HashMap::new(),
            spreads: HashMap::new(),
            watched: vec![false; count],
        };
        all.add_up();
        all.find_origins();
        all
    }

    /// Sums and multiples, in the order of the text.
    fn add_up(&mut self) {
        for inst in self.kernel.blocks.iter().flat_map(|block| &block.insts) {
            let [dst] = operands::writes(&inst.op)[..] else { continue };
            let at = dst.0 as usize;
            if !self.single[at] {
                continue;
            }
            self.multiples[at] = self.multiple_of(&inst.op);
            let Some(sum) = self.sum_of(&inst.op) else { continue };
            let moves = |&(symbol, _): &(Symbol, i64)| matches!(symbol, Symbol::Reg(r) if !self.single[r as usize]);
            if sum.terms.iter().any(moves) {
                self.derived[at] = Derived::new(&sum, &self.single);
            } else {
                self.sums[at] = Some(sum);
            }
        }
        for inst in self.kernel.blocks.iter().flat_map(|block| &block.insts) {
            if let Some((r, by)) = self.increment(inst) {
                let step = &mut self.steps[r.0 as usize];
                *step = Some(step.map_or(by, |step| gcd(step, by)));
            }
        }
    }

    /// The register that the instruction counts up or down, and a number of which the difference is a multiple.
    fn increment(&self, inst: &Inst) -> Option<(Reg, i64)> {
        let Op::Int { op, dst, a, b, sat: false, .. } = &inst.op else { return None };
        let by = match (op, a, b) {
            (IntOp::Add | IntOp::Sub, Operand::Reg(r), by) if r == dst => by,
            (IntOp::Add, by, Operand::Reg(r)) if r == dst => by,
            _ => return None,
        };
        (!self.single[dst.0 as usize]).then(|| (*dst, self.multiple(*by, self.kernel.regs[dst.0 as usize])))
    }

    fn multiple(&self, o: Operand, ty: RegTy) -> i64 {
        match o {
            Operand::Reg(r) => self.multiples[r.0 as usize],
            Operand::Imm(_) => product(number(o, ty), 1),
        }
    }

    fn multiple_of(&self, op: &Op) -> i64 {
        let of = |o: &Operand, dst: &Reg| self.multiple(*o, self.kernel.regs[dst.0 as usize]);
        match op {
            Op::Mov { dst, src: a, .. } => of(a, dst),
            Op::Cvt { dst_ty, src_ty, dst, a, .. } if !dst_ty.is_float() && !src_ty.is_float() => of(a, dst),
            Op::Special { sreg: SReg::Ntid(axis), .. } => self.side(*axis),
            Op::Int { op: IntOp::Add | IntOp::Sub, sat: false, dst, a, b, .. } => gcd(of(a, dst), of(b, dst)),
            Op::Int { op: IntOp::Shl, dst, a, b: Operand::Imm(n @ 0..32), .. } => product(of(a, dst), 1 << n),
            Op::Mul { part: MulPart::Lo | MulPart::Wide, dst, a, b, .. } => product(of(a, dst), of(b, dst)),
            Op::Mad { part: MulPart::Lo | MulPart::Wide, sat: false, dst, a, b, c, .. } => {
                gcd(product(of(a, dst), of(b, dst)), of(c, dst))
            }
            _ => 1,
        }
    }

    fn side(&self, axis: u8) -> i64 {
        self.shape.block.get(usize::from(axis)).map_or(1, |&side| side.into())
    }

    fn sum(&self, o: Operand, ty: RegTy) -> Sum {
        match o {
            Operand::Imm(_) => Sum::number(number(o, ty)),
            Operand::Reg(r) => self.sums[r.0 as usize].clone().unwrap_or_else(|| Sum::symbol(Symbol::Reg(r.0))),
        }
    }

    fn sum_of(&self, op: &Op) -> Option<Sum> {
        let kernel = self.kernel;
        let of = |o: &Operand, dst: &Reg| self.sum(*o, kernel.regs[dst.0 as usize]);
        let wide = |dst: &Reg| matches!(kernel.regs[dst.0 as usize], RegTy::B32 | RegTy::B64);
        let multiplied = |a: &Operand, b: &Operand, dst: &Reg| {
            let (a, b) = (of(a, dst), of(b, dst));
            match (&a.terms[..], &b.terms[..]) {
                (_, []) => a.times(b.number),
                ([], _) => b.times(a.number),
                _ => None,
            }
        };
        match op {
            Op::Mov { dst, src, .. } if wide(dst) => Some(of(src, dst)),
            Op::Cvt { dst_ty, src_ty, dst, a, sat: false, .. }
                if !dst_ty.is_float() && !src_ty.is_float() && src_ty.bits() >= 32 && dst_ty.bits() >= 32 =>
            {
                Some(of(a, dst))
            }
            Op::Cvta { dst, a, .. } => Some(of(a, dst)),
            Op::Special { dst, sreg, .. } if wide(dst) => match sreg {
                SReg::Tid(axis) if self.side(*axis) == 1 => Some(Sum::number(0)),
                SReg::Tid(axis) => Some(Sum::symbol(Symbol::Tid(*axis))),
                SReg::Ctaid(axis) => Some(Sum::symbol(Symbol::Ctaid(*axis))),
                SReg::Ntid(axis) => Some(Sum::number(self.side(*axis))),
                _ => None,
            },
            Op::Ld { space: Space::Param, ty, dsts, addr: Address { base: Operand::Imm(at), offset }, .. }
                if ty.bits() >= 32 && dsts.len() == 1 =>
            {
                Some(Sum::symbol(Symbol::Param(at.wrapping_add_signed(*offset) as u32, ty.bytes())))
            }
            Op::Int { op: IntOp::Add, sat: false, dst, a, b, .. } if wide(dst) => of(a, dst).plus(&of(b, dst), 1),
            Op::Int { op: IntOp::Sub, sat: false, dst, a, b, .. } if wide(dst) => of(a, dst).plus(&of(b, dst), -1),
            Op::Int { op: IntOp::Shl, dst, a, b: Operand::Imm(n @ 0..32), .. } if wide(dst) => of(a, dst).times(1 << n),
            Op::Mul { part: MulPart::Lo | MulPart::Wide, dst, a, b, .. } if wide(dst) => multiplied(a, b, dst),
            Op::Mad { part: MulPart::Lo | MulPart::Wide, sat: false, dst, a, b, c, .. } if wide(dst) => {
                multiplied(a, b, dst)?.plus(&of(c, dst), 1)
            }
            _ => None,
        }
    }

    fn find_origins(&mut self) {
        for round in 0.. {
            let mut changed = false;
            for inst in self.kernel.blocks.iter().flat_map(|block| &block.insts) {
                for r in operands::writes(&inst.op) {
                    let new = match self.kernel.regs[r.0 as usize] {
                        RegTy::Pred => Origin::Number,
                        ty => self.origins[r.0 as usize].join(self.origin_of(&inst.op, ty)),
                    };
                    changed |= std::mem::replace(&mut self.origins[r.0 as usize], new) != new;
                }
            }
            if !changed {
                return;
            }
            if round == MAX_ROUNDS {
                self.origins.fill(Origin::Unknown);
                return;
            }
        }
    }

    fn origin(&self, o: Operand) -> Origin {
        match o {
            Operand::Reg(r) => self.origins[r.0 as usize],
            Operand::Imm(_) => Origin::Number,
        }
    }

    /// Of a value of this type that the operation writes. Parts of pointers that come from memory are numbers; what is put
    /// together from them is not, as an upper half shows.
    fn origin_of(&self, op: &Op, ty: RegTy) -> Origin {
        let of = |o: &Operand| self.origin(*o);
        match op {
            Op::Ld { .. }
            | Op::Atom { .. }
            | Op::Match { .. }
            | Op::Call { .. }
            | Op::LdMatrix { .. }
            | Op::Image { .. }
                if ty != RegTy::B64 =>
            {
                Origin::Number
            }
            Op::Ld { space: Space::Param, addr: Address { base: Operand::Imm(at), offset }, .. } => {
                Origin::Param(at.wrapping_add_signed(*offset) as u32)
            }
            Op::Mov { src, .. } => of(src),
            Op::Int { op, a, b, .. } => match op {
                IntOp::Add | IntOp::Sub | IntOp::Or | IntOp::Xor => self.put_together(of(a), *a, *b),
                IntOp::And | IntOp::Rem if small(*a) || small(*b) => Origin::Number,
                IntOp::And | IntOp::Min | IntOp::Max => of(a).join(of(b)),
                IntOp::Shl => self.shifted(*a, *b, ty),
                IntOp::Shr if of(a) == Origin::Upper => Origin::Number,
                IntOp::Shr | IntOp::Div | IntOp::Rem => only_numbers(of(a), of(b)),
            },
            Op::Selp { a, b, .. } | Op::Slct { a, b, .. } => of(a).join(of(b)),
            Op::Mul { a, b, .. } => self.product(*a, *b),
            Op::Mad { a, b, c, .. } => self.put_together(self.product(*a, *b), *a, *c),
            Op::Cvt { a, .. } | Op::Shfl { a, .. } => of(a),
            Op::Special { .. } | Op::Mad24 { .. } => Origin::Number,
            Op::Cvta { space: Space::Shared, to_generic: true, .. } => Origin::Shared,
            Op::Cvta { space: Space::Local, to_generic: true, .. } => Origin::Local,
            _ if ty == RegTy::B64 => Origin::Unknown,
            _ => {
                let mut all = Origin::Number;
                operands::reads(op, &mut |r| all = all.join(self.origins[r.0 as usize]));
                all
            }
        }
    }

    /// Of a sum, whatever its kind, of `a`, which is of origin `left`, and `b`.
    fn put_together(&self, left: Origin, a: Operand, b: Operand) -> Origin {
        match (left, self.origin(b)) {
            (Origin::Upper, _) if upper(b) => Origin::Upper,
            (Origin::Number, Origin::Upper) if upper(a) => Origin::Upper,
            (Origin::Upper, _) | (_, Origin::Upper) => Origin::Unknown,
            (left, right) => left.join(right),
        }
    }

    fn shifted(&self, a: Operand, by: Operand, ty: RegTy) -> Origin {
        match (self.origin(a), by) {
            (Origin::Upper, _) => Origin::Upper,
            (Origin::Number, Operand::Imm(..32)) => Origin::Number,
            (Origin::Number, _) if ty != RegTy::B64 || matches!(a, Operand::Imm(_)) => Origin::Number,
            (Origin::Number, _) => Origin::Upper,
            _ => Origin::Unknown,
        }
    }

    fn product(&self, a: Operand, b: Operand) -> Origin {
        match (self.origin(a), self.origin(b)) {
            (Origin::Number, Origin::Number) if upper(a) || upper(b) => Origin::Upper,
            (Origin::Upper, Origin::Number) | (Origin::Number, Origin::Upper) => Origin::Upper,
            (a, b) => only_numbers(a, b),
        }
    }

    /// Threads of the kernel, where warps lie in rows; else it does not help to know which.
    pub(super) fn all_threads(&self) -> Threads {
        (0, if self.shape.rowed() { self.side(0) } else { i64::MAX / 2 })
    }

    /// The threads for which the comparison holds, or does not, if it is of their index with a number.
    pub(super) fn bound(&self, comparison: &Op, holds: bool) -> Option<Threads> {
        let Op::Setp { cmp, ty, a, b, combine: None, .. } = comparison else { return None };
        if !self.shape.rowed() || ty.bits() != 32 || ty.is_float() {
            return None;
        }
        let (a, b) = (self.sum(*a, RegTy::B32), self.sum(*b, RegTy::B32));
        let index = |sum: &Sum| sum.terms == [(Symbol::Tid(0), 1)] && sum.number == 0;
        let (cmp, number) = match (a.terms.is_empty(), b.terms.is_empty()) {
            (false, true) if index(&a) => (*cmp, b.number),
            (true, false) if index(&b) => (swapped(*cmp), a.number),
            _ => return None,
        };
        let number = if ty.is_signed() { number } else { i64::from(number as u32) };
        let (_, end) = self.all_threads();
        let (low, high) = match (cmp, holds) {
            (Cmp::Lt, true) | (Cmp::Ge, false) => (0, number),
            (Cmp::Le, true) | (Cmp::Gt, false) => (0, number + 1),
            (Cmp::Ge, true) | (Cmp::Lt, false) => (number, end),
            (Cmp::Gt, true) | (Cmp::Le, false) => (number + 1, end),
            (Cmp::Eq, true) | (Cmp::Ne, false) => (number, number + 1),
            _ => return None,
        };
        Some((low.max(0), high.min(end)))
    }

    /// Is the register written at one place only?
    pub(super) fn is_single(&self, r: Reg) -> bool {
        self.single[r.0 as usize]
    }

    /// The area that an access is in; none for what lanes do not share, or nobody writes.
    pub(super) fn area(&self, space: Space, addr: Address) -> Option<Area> {
        match (space, self.origin(addr.base)) {
            (Space::Const | Space::Param | Space::Local, _) | (Space::Generic, Origin::Local) => None,
            (Space::Shared, _) | (Space::Generic, Origin::Shared) => Some(Area::Shared),
            (_, Origin::Param(at)) => Some(Area::Param(at)),
            (_, Origin::Number) => Some(Area::Module),
            (Space::Generic, _) => Some(Area::Anywhere),
            (Space::Global, _) => Some(Area::Global),
        }
    }

    /// Where an access of `bytes` bytes is; none if the classes are not known yet.
    pub(super) fn place(&mut self, addr: Address, bytes: u32) -> Option<Place> {
        self.classes.as_ref()?;
        let sum = self.sum(addr.base, RegTy::B64);
        let low = sum.number.wrapping_add(addr.offset);
        let form = match self.ids.get(&sum.terms) {
            Some(&form) => form,
            None => {
                let form = Form(self.forms.len() as u32);
                let spread = self.spread(&sum.terms);
                self.watch(&sum.terms);
                self.forms.push((sum.terms.clone(), spread));
                self.ids.insert(sum.terms, form);
                form
            }
        };
        // Far from the ends of numbers, so that nothing overflows: addresses lie below.
        let low = low.clamp(-(1 << 56), 1 << 56);
        Some(Place { form, bytes: (low, low + i64::from(bytes)) })
    }

    /// An address that depends on nothing but the thread: a number, and what each of the thread's indices is multiplied by.
    pub(super) fn of_thread(&self, addr: Address) -> Option<(i64, [i64; 3])> {
        let sum = self.sum(addr.base, RegTy::B64);
        let mut by = [0; 3];
        for (symbol, factor) in sum.terms {
            let Symbol::Tid(axis) = symbol else { return None };
            *by.get_mut(usize::from(axis))? = factor;
        }
        Some((sum.number.checked_add(addr.offset)?, by))
    }

    fn watch(&mut self, terms: &[(Symbol, i64)]) {
        for &(symbol, _) in terms {
            if let Symbol::Reg(r) = symbol {
                self.watched[r as usize] = true;
                if let Some(derived) = &self.derived[r as usize] {
                    for r in derived.others.iter().chain([&derived.root.0]) {
                        self.watched[r.0 as usize] = true;
                    }
                }
            }
        }
    }

    fn spread(&mut self, terms: &[(Symbol, i64)]) -> Spread {
        let mut tid = [0_i64; 3];
        let (mut stride, mut unknown) = (0_i64, 0);
        for &(symbol, by) in terms {
            match symbol {
                Symbol::Param(..) | Symbol::Ctaid(_) => {}
                Symbol::Tid(axis) => tid[usize::from(axis.min(2))] += by,
                Symbol::Reg(r) => match self.classes.as_ref().map_or(Class::Varying, |c| c[r as usize]) {
                    Class::Same | Class::Unknown => {}
                    Class::Affine { stride: s } => stride = stride.wrapping_add(by.wrapping_mul(s.into())),
                    Class::Wide { stride: s, k, .. } => {
                        stride = stride.wrapping_add(by.wrapping_mul(k).wrapping_mul(s.into()));
                    }
                    Class::Linear | Class::Extended | Class::Varying => unknown = gcd(unknown, by),
                },
            }
        }
        let rowed = self.shape.rowed();
        if unknown != 0 || (stride != 0 && !rowed) {
            return Spread::Multiple(tid.into_iter().chain([stride]).fold(unknown, gcd).max(1));
        }
        if rowed {
            return Spread::Stride(tid[0].wrapping_add(stride).clamp(-(1 << 40), 1 << 40));
        }
        if let Some(known) = self.spreads.get(&tid) {
            return Spread::Known(Rc::clone(known));
        }
        if self.spreads.len() == MAX_SPREADS {
            return Spread::Multiple(tid.into_iter().fold(0, gcd).max(1));
        }
        let known: Rc<[i64]> = differences(self.shape, tid).into();
        self.spreads.insert(tid, Rc::clone(&known));
        Spread::Known(known)
    }

    /// May one lane's bytes at `form`, moved by any multiple of `period`, be those of another lane's `place`? The one lane
    /// is of a thread in `lanes`, the other in `others`.
    pub(super) fn meets(
        &self,
        (form, period, bytes): (Form, i64, (i64, i64)),
        lanes: Threads,
        place: Place,
        others: Threads,
    ) -> bool {
        if form != place.form {
            return true;
        }
        let (low, high) = (place.bytes.0 - bytes.1, place.bytes.1 - bytes.0);
        match &self.forms[form.0 as usize].1 {
            Spread::Stride(by) => {
                let furthest = i64::from(WARP - 1);
                let first = (lanes.0 - others.1 + 1).max(-furthest);
                let last = (lanes.1 - 1 - others.0).min(furthest);
                let mut apart = (first..=last).filter(|&lanes| lanes != 0).map(|lanes| lanes * by);
                apart.any(|by| multiple_between(period, low - by, high - by))
            }
            Spread::Known(list) => list.iter().any(|by| multiple_between(period, low - by, high - by)),
            Spread::Multiple(by) => multiple_between(gcd(*by, period), low, high),
        }
    }

    /// Does anybody ask what the writing of `r` changes?
    pub(super) fn is_watched(&self, r: Reg) -> bool {
        self.watched[r.0 as usize]
    }

    /// What `inst`, which writes `r`, does to the addresses of `form` that have been.
    pub(super) fn change(&self, form: Form, inst: &Inst, r: Reg) -> Change {
        let at = r.0 as usize;
        let increment = self.increment(inst).map(|(_, by)| by);
        let moved = if self.single[at] {
            let derived = self.derived[at].as_ref().map(|derived| derived.root);
            derived.and_then(|(root, by)| Some(product(by, self.steps[root.0 as usize]?)))
        } else {
            increment
        };
        let mut change = Change::None;
        for &(symbol, by) in &self.forms[form.0 as usize].0 {
            let Symbol::Reg(s) = symbol else { continue };
            if s == r.0 {
                change = match moved {
                    Some(moved) => Change::By(product(by, moved)),
                    None => return Change::Unknown,
                };
            } else if let Some(derived) = &self.derived[s as usize]
                && (derived.others.contains(&r) || increment.is_none() && derived.root.0 == r)
            {
                return Change::Unknown;
            }
        }
        change
    }
}

/// By register: is it written at one place at most, without a guard, and read only behind that?
fn singles(kernel: &Kernel) -> Vec<bool> {
    let mut single = vec![true; kernel.regs.len()];
    let mut written: Vec<Option<(usize, usize)>> = vec![None; kernel.regs.len()];
    for (block, list) in kernel.blocks.iter().enumerate() {
        for (at, inst) in list.insts.iter().enumerate() {
            for r in operands::writes(&inst.op) {
                // A guarded write may leave the old value.
                let first = written[r.0 as usize].replace((block, at)).is_none();
                single[r.0 as usize] &= first && inst.guard.is_none();
            }
        }
    }
    let successors: Vec<Vec<usize>> = kernel.blocks.iter().map(|block| targets(&block.term).collect()).collect();
    let tree = dominators::Tree::new(&dominators::dominators(&successors, 0));
    let mut read = |r: Reg, block: usize, at: usize| {
        if let Some((from, behind)) = written[r.0 as usize] {
            single[r.0 as usize] &= if from == block { behind < at } else { tree.dominates(from, block) };
        }
    };
    for (block, list) in kernel.blocks.iter().enumerate() {
        for (at, inst) in list.insts.iter().enumerate() {
            operands::inst_reads(inst, &mut |r| read(r, block, at));
        }
        match &list.term {
            Term::CondBra { p, .. } => read(p.reg, block, list.insts.len()),
            Term::BrIdx { index: Operand::Reg(r), .. } => read(*r, block, list.insts.len()),
            _ => {}
        }
    }
    single
}

/// A number that is no pointer, and of which a pointer cannot be made by what is masked with it.
fn small(o: Operand) -> bool {
    matches!(o, Operand::Imm(..LEAST_POINTER))
}

/// A number without a lower half.
fn upper(o: Operand) -> bool {
    matches!(o, Operand::Imm(v) if v as u32 == 0)
}

fn only_numbers(a: Origin, b: Origin) -> Origin {
    if (a, b) == (Origin::Number, Origin::Number) { Origin::Number } else { Origin::Unknown }
}

/// The comparison with its sides exchanged.
fn swapped(cmp: Cmp) -> Cmp {
    match cmp {
        Cmp::Lt => Cmp::Gt,
        Cmp::Le => Cmp::Ge,
        Cmp::Gt => Cmp::Lt,
        Cmp::Ge => Cmp::Le,
        other => other,
    }
}

/// An immediate as a signed number of a register's width.
fn number(o: Operand, ty: RegTy) -> i64 {
    match (o, ty) {
        (Operand::Imm(v), RegTy::B32) => i64::from(v as u32 as i32),
        (Operand::Imm(v), _) => v.cast_signed(),
        _ => 0,
    }
}

/// All differences of `by · thread index` between two lanes of a warp, in order.
fn differences(shape: Shape, by: [i64; 3]) -> Vec<i64> {
    let threads = shape.threads();
    let [x, y, _] = shape.block;
    let value = |t: u32| {
        let index = [t % x, t / x % y, t / x / y];
        index.into_iter().zip(by).fold(0_i64, |sum, (i, by)| sum.wrapping_add(by.wrapping_mul(i.into())))
    };
    let mut list = Vec::new();
    for first in (0..threads).step_by(WARP as usize) {
        let values: Vec<i64> = (first..threads.min(first + WARP)).map(value).collect();
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate() {
                if i != j {
                    list.push(a.wrapping_sub(*b).clamp(-(1 << 56), 1 << 56));
                }
            }
        }
        list.sort_unstable();
        list.dedup();
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_differences_are_few() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = program.lower(0, &|_| None).unwrap();
        let mut all = Addresses::new(&kernel, Shape { block: [3, 7, 9], lanes: WARP }, Some(Vec::new()));
        let mut spreads =
            (1..=2 * MAX_SPREADS as i64).map(|by| all.spread(&[(Symbol::Tid(0), 4), (Symbol::Tid(1), 12 * by)]));
        assert!(spreads.by_ref().take(MAX_SPREADS).all(|spread| matches!(spread, Spread::Known(_))));
        assert!(spreads.all(|spread| matches!(spread, Spread::Multiple(4))));
        assert!(matches!(all.spread(&[(Symbol::Tid(0), 4), (Symbol::Tid(1), 12)]), Spread::Known(_)));
    }
}
