//! Barriers that nobody misses where a CTA's warps run in the right order.
//!
//! Machine code runs what lies between two barriers for one warp after another; what warps keep over a barrier goes through memory. A
//! barrier is there so that no thread does what stands behind it before all have done what stands before it. That matters where both
//! touch the same bytes, and one of them writes. Where warp `w` reads what warps before it in the row write afterwards, as in
//!
//! ```text
//! before = sums[t - apart]; barrier; sums[t] += before;
//! ```
//!
//! each warp may as well do both at once, if the last warp is the first to run. So barriers are left out where all threads come together,
//! both sides of them touch nothing but places in shared memory that are known for each warp, and the warps, all from the first on or all
//! from the last on, run in an order that keeps every two accesses that meet as they were. Threads of one warp keep their order anyway.

use std::collections::BTreeSet;
use std::sync::Arc;

use ptx::ir::{BarKind, Block, Inst, Kernel, Op, Operand, Order, Reg, SReg, Space, Term};
use ptx::launch::WARP;

use super::address::Addresses;
use super::classes::Shape;
use super::graph::{NodeId, targets};
use super::regset::RegSet;
use super::{PATIENCE, dead, dominators, operands};
use crate::run::barrier::BARRIERS;

/// Accesses between two barriers, each that is left; with more, the barrier stays.
const MAX_ACCESSES: usize = 64;
/// Times that a kernel is gone through to find out what all its threads do alike; if that is not known by then, barriers stay.
const MAX_ROUNDS: usize = 16;

/// The places of barriers that have been left out, as block and the instruction that came behind, where a CTA's last warp is the first to
/// run through what is around them.
pub(crate) type FromLast = BTreeSet<(usize, usize)>;

/// The kernel without the barriers that nobody misses, and where warps run in another order for that.
pub(crate) fn without_needless(kernel: Arc<Kernel>, block: [u32; 3]) -> (Arc<Kernel>, FromLast) {
    let insts = || kernel.blocks.iter().flat_map(|block| &block.insts);
    let joins = |inst: &Inst| matches!(inst.op, Op::Bar { .. });
    // What is printed shows in which order warps run. Barriers of other kinds are not for all threads, or are clusters'.
    let other =
        |inst: &Inst| matches!(inst.op, Op::Call { .. }) || matches!(inst.op, Op::Bar { .. }) && !is_for_all(inst);
    // Where loops come back to the beginning, not all threads are together there; no compiler writes that.
    let comes_back = || kernel.blocks.iter().any(|block| targets(&block.term).any(|to| to == 0));
    if !insts().any(joins) || insts().any(other) || comes_back() {
        return (kernel, FromLast::new());
    }
    let Some(apart) = apart(&kernel) else { return (kernel, FromLast::new()) };
    let shape = Shape { block, lanes: WARP };
    let places = Places { addresses: Addresses::new(&kernel, shape, None), shape };
    let mut search = Search { steps: PATIENCE, needless: Vec::new() };
    for (index, block) in kernel.blocks.iter().enumerate().filter(|&(index, _)| !apart[index]) {
        search.block(index, &block.insts, ends(&kernel, block), &places);
    }
    if search.needless.is_empty() {
        return (kernel, FromLast::new());
    }
    let mut kernel = (*kernel).clone();
    let mut from_last = FromLast::new();
    for (block, barriers) in search.needless {
        for (left_out, &(at, order)) in barriers.iter().enumerate() {
            if order == Orders::FROM_LAST {
                from_last.insert((block, at - left_out));
            }
        }
        let stays = |at: &usize| barriers.binary_search_by_key(at, |barrier| barrier.0).is_err();
        let insts = std::mem::take(&mut kernel.blocks[block].insts).into_iter().enumerate();
        kernel.blocks[block].insts = insts.filter(|(at, _)| stays(at)).map(|(_, inst)| inst).collect();
    }
    (Arc::new(kernel), from_last)
}

/// Orders in which the warps of a CTA may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Orders(u8);

impl Orders {
    const FROM_FIRST: Orders = Orders(1);
    const FROM_LAST: Orders = Orders(2);
    const ANY: Orders = Orders(3);
    const NONE: Orders = Orders(0);

    fn without(self, other: Orders) -> Orders {
        Orders(self.0 & !other.0)
    }
}

/// Does nothing come behind the block?
fn ends(kernel: &Kernel, block: &Block) -> bool {
    let is_end = |block: &Block| block.insts.is_empty() && matches!(block.term, Term::Exit);
    match block.term {
        Term::Exit => true,
        Term::Bra(to) => is_end(&kernel.blocks[to.0 as usize]),
        _ => false,
    }
}

/// A barrier at which all threads wait for all others?
fn is_for_all(inst: &Inst) -> bool {
    let whole = matches!(inst.op, Op::Bar { kind: BarKind::Sync, count: None, id: Operand::Imm(id), .. } if id < BARRIERS as u64);
    whole && inst.guard.is_none()
}

/// What an access touches.
#[derive(Clone, PartialEq, Debug)]
enum Place {
    /// In shared memory, by warp: from where to where.
    Shared(Vec<(u32, u32)>),
    SharedSomewhere,
    Global,
    Anywhere,
}

#[derive(Clone, PartialEq, Debug)]
struct Access {
    place: Place,
    writes: bool,
}

impl Access {
    /// Of `orders`, those in which nobody can tell that warps do what is later before others have done this.
    fn orders(&self, later: &Access, orders: Orders) -> Orders {
        if !self.writes && !later.writes {
            return orders;
        }
        match (&self.place, &later.place) {
            (Place::Shared(first), Place::Shared(then)) => {
                let meet = |a: &(u32, u32), b: &(u32, u32)| a.0 < b.1 && b.0 < a.1;
                then.iter().enumerate().fold(orders, |mut orders, (warp, b)| {
                    if first[..warp].iter().any(|a| meet(a, b)) {
                        orders = orders.without(Orders::FROM_LAST);
                    }
                    if first[warp + 1..].iter().any(|a| meet(a, b)) {
                        orders = orders.without(Orders::FROM_FIRST);
                    }
                    orders
                })
            }
            (Place::Shared(_) | Place::SharedSomewhere, Place::Global)
            | (Place::Global, Place::Shared(_) | Place::SharedSomewhere) => orders,
            (Place::Shared(warps), _) | (_, Place::Shared(warps)) if warps.len() == 1 => orders,
            _ => Orders::NONE,
        }
    }
}

/// Tells what instructions access.
struct Places<'k> {
    addresses: Addresses<'k>,
    shape: Shape,
}

impl Places<'_> {
    /// What an instruction accesses that threads share; `None` if it does more than that.
    fn access(&self, inst: &Inst) -> Option<Option<Access>> {
        let (space, bytes, order, addr, writes) = match &inst.op {
            Op::Ld { space, ty, order, dsts, addr } => (*space, ty.bytes() * dsts.len() as u32, *order, *addr, false),
            Op::St { space, ty, order, srcs, addr } => (*space, ty.bytes() * srcs.len() as u32, *order, *addr, true),
            op => return dead::only_computes(op).then_some(None),
        };
        let place = match (space, order) {
            (Space::Param | Space::Const | Space::Local, _) => return Some(None),
            // Only threads of the CTA can see it, or of a cluster, which has barriers of another kind.
            (Space::Shared, Order::Weak | Order::Volatile) => self.shared(addr, bytes),
            (Space::Global, Order::Weak) => Place::Global,
            (Space::Generic, Order::Weak) => Place::Anywhere,
            _ => return None,
        };
        Some(Some(Access { place, writes }))
    }

    fn shared(&self, addr: ptx::ir::Address, bytes: u32) -> Place {
        let Some((number, by)) = self.addresses.of_thread(addr) else { return Place::SharedSomewhere };
        let [x, y, _] = self.shape.block;
        let address = |thread: u32| {
            let index = [thread % x, thread / x % y, thread / x / y];
            index.into_iter().zip(by).fold(number, |sum, (index, by)| sum.wrapping_add(index.wrapping_mul(by)))
        };
        let threads = self.shape.threads();
        let warp = |first: u32| {
            let all = (first..threads.min(first + WARP)).map(address);
            all.fold((u32::MAX, 0), |(low, high), at| (low.min(at), high.max(at.saturating_add(bytes))))
        };
        Place::Shared((0..threads).step_by(WARP as usize).map(warp).collect())
    }
}

/// Looks for barriers that can be left out.
struct Search {
    steps: usize,
    /// By block: instructions, and an order in which warps run around them; the first one if they may.
    needless: Vec<(usize, Vec<(usize, Orders)>)>,
}

/// What threads may have done since all were together, and orders in which their warps may have.
struct Since {
    accesses: Vec<Access>,
    orders: Orders,
    /// Barriers that have been left out there.
    left_out: Vec<usize>,
}

impl Since {
    fn new(accesses: Vec<Access>) -> Since {
        Since { accesses, orders: Orders::ANY, left_out: Vec::new() }
    }
}

impl Search {
    /// Goes through a block, all of whose threads come together at each of its barriers, and after which, if it `ends` the kernel,
    /// nothing comes.
    fn block(&mut self, index: usize, insts: &[Inst], ends: bool, places: &Places<'_>) {
        let barriers: Vec<usize> = (0..insts.len()).filter(|&at| is_for_all(&insts[at])).collect();
        let mut needless = Vec::new();
        // Where the kernel begins all threads are together; elsewhere what they have done before is not known.
        let first = barriers.first().copied().unwrap_or(insts.len());
        let mut since = if index == 0 { accesses(&insts[..first], places).map(Since::new) } else { None };
        for (i, &at) in barriers.iter().enumerate() {
            let end = barriers.get(i + 1).copied();
            let known = end.is_some() || ends;
            let behind = if known { accesses(&insts[at + 1..end.unwrap_or(insts.len())], places) } else { None };
            let orders = match (&since, &behind) {
                (Some(since), Some(behind)) => self.orders(since, behind),
                _ => Orders::NONE,
            };
            match (&mut since, behind) {
                (Some(since), Some(behind)) if orders != Orders::NONE => {
                    since.accesses.extend(behind);
                    since.orders = orders;
                    since.left_out.push(at);
                }
                (_, behind) => keep(std::mem::replace(&mut since, behind.map(Since::new)), &mut needless),
            }
        }
        keep(since, &mut needless);
        if !needless.is_empty() {
            self.needless.push((index, needless));
        }
    }

    /// Orders of the warps in which nobody misses a barrier before `behind`.
    fn orders(&mut self, since: &Since, behind: &[Access]) -> Orders {
        let pairs = since.accesses.len() * behind.len();
        if since.accesses.len() + behind.len() > MAX_ACCESSES || self.steps < pairs {
            return Orders::NONE;
        }
        self.steps -= pairs;
        let both = since.accesses.iter().flat_map(|a| behind.iter().map(move |b| (a, b)));
        both.fold(since.orders, |orders, (a, b)| if orders == Orders::NONE { orders } else { a.orders(b, orders) })
    }
}

/// Notes the barriers that have been left out between two that have not.
fn keep(since: Option<Since>, needless: &mut Vec<(usize, Orders)>) {
    let Some(Since { orders, left_out, .. }) = since else { return };
    let order = if orders == Orders::FROM_LAST { orders } else { Orders::FROM_FIRST };
    needless.extend(left_out.into_iter().map(|at| (at, order)));
}

/// What instructions access, if that is all that they do.
fn accesses(insts: &[Inst], places: &Places<'_>) -> Option<Vec<Access>> {
    let mut found: Vec<Access> = Vec::new();
    for inst in insts {
        if let Some(access) = places.access(inst)? {
            if found.len() == MAX_ACCESSES {
                return None;
            }
            if !found.contains(&access) {
                found.push(access);
            }
        }
    }
    Some(found)
}

/// Blocks that some threads of a CTA may run without the others, which run others meanwhile that have barriers; none if there are
/// barriers in such blocks.
fn apart(kernel: &Kernel) -> Option<Vec<bool>> {
    let count = kernel.blocks.len();
    let successors: Vec<Vec<NodeId>> = kernel.blocks.iter().map(|block| targets(&block.term).collect()).collect();
    let post = dominators::post_dominators(&successors);
    let joins: Vec<bool> = kernel.blocks.iter().map(|block| block.insts.iter().any(is_for_all)).collect();
    let leads_to_barrier = leads_to(&joins, &successors);
    let mut varying = RegSet::default();
    let mut apart = vec![false; count];
    // By block, the search that has seen it last.
    let mut seen = vec![0; count];
    let mut steps = PATIENCE;
    for round in 0..MAX_ROUNDS {
        spread(kernel, &apart, &mut varying)?;
        let mut changed = false;
        for (branch, block) in kernel.blocks.iter().enumerate() {
            let by = match &block.term {
                Term::CondBra { p, .. } => p.reg,
                Term::BrIdx { index: Operand::Reg(r), .. } => *r,
                _ => continue,
            };
            // Who never comes to a barrier any more is not missed there.
            let mut sides: Vec<NodeId> = successors[branch].iter().copied().filter(|&s| leads_to_barrier[s]).collect();
            sides.sort_unstable();
            sides.dedup();
            if !varying.contains(by) || sides.len() < 2 {
                continue;
            }
            let stamp = round * count + branch + 1;
            while let Some(n) = sides.pop() {
                if Some(n) == post[branch] || std::mem::replace(&mut seen[n], stamp) == stamp {
                    continue;
                }
                steps = steps.checked_sub(1)?;
                if joins[n] {
                    return None;
                }
                changed |= !std::mem::replace(&mut apart[n], true);
                sides.extend(&successors[n]);
            }
        }
        if !changed {
            return Some(apart);
        }
    }
    None
}

/// The nodes from which one of `to` can be reached.
fn leads_to(to: &[bool], successors: &[Vec<NodeId>]) -> Vec<bool> {
    let predecessors = dominators::reversed(successors);
    let mut leads = vec![false; to.len()];
    let mut work: Vec<NodeId> = (0..to.len()).filter(|&n| to[n]).collect();
    while let Some(n) = work.pop() {
        if !std::mem::replace(&mut leads[n], true) {
            work.extend(&predecessors[n]);
        }
    }
    leads
}

/// Adds the registers that may differ between two threads of a CTA that have come the same way: those written in blocks that threads
/// run apart, and what is not computed from what all have. None if that takes too long.
fn spread(kernel: &Kernel, apart: &[bool], varying: &mut RegSet) -> Option<()> {
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for (block, apart) in kernel.blocks.iter().zip(apart) {
            for inst in &block.insts {
                let mut differs = *apart || inst.guard.is_some_and(|p| varying.contains(p.reg)) || !is_same(&inst.op);
                operands::reads(&inst.op, &mut |r: Reg| differs |= varying.contains(r));
                if differs {
                    for r in operands::writes(&inst.op) {
                        changed |= varying.insert(r);
                    }
                }
            }
        }
        if !changed {
            return Some(());
        }
    }
    None
}

/// Has the operation the same result in all threads that give it the same?
fn is_same(op: &Op) -> bool {
    match op {
        Op::Ld { space, .. } => matches!(space, Space::Param | Space::Const),
        Op::Special { sreg, .. } => matches!(
            sreg,
            SReg::Ntid(_)
                | SReg::Ctaid(_)
                | SReg::Nctaid(_)
                | SReg::NWarpId
                | SReg::GridId
                | SReg::Env(_)
                | SReg::DynamicSmemSize
                | SReg::TotalSmemSize
                | SReg::ClusterId(_)
                | SReg::NClusterId(_)
                | SReg::ClusterCtaId(_)
                | SReg::ClusterNCtaId(_)
                | SReg::ClusterCtaRank
                | SReg::ClusterNCtaRank
                | SReg::IsExplicitCluster
        ),
        op => dead::only_computes(op),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many barriers of the kernel stay, and at how many places they were left out where the last warp runs first.
    fn barriers(body: &str, block: [u32; 3]) -> (usize, usize) {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 n) {{\n\
             .reg .b64 %rd<4>; .reg .b32 %r<9>; .reg .pred %p<4>; .shared .align 16 .b8 s[8192];\n\
             ld.param.u64 %rd0, [a]; ld.param.u32 %r7, [n]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;\n\
             shl.b32 %r1, %r0, 2; mov.u32 %r8, s; add.u32 %r2, %r8, %r1; bar.sync 0;\n{body}\nret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
        let (kernel, from_last) = without_needless(kernel, block);
        let left = kernel.blocks.iter().flat_map(|block| &block.insts).filter(|inst| matches!(inst.op, Op::Bar { .. }));
        (left.count(), from_last.len())
    }

    #[test]
    fn barriers_stay_where_somebody_would_miss_them() {
        let read = "ld.shared.u32 %r3, [%r2+1020]; bar.sync 0;";
        let add = "ld.shared.u32 %r4, [%r2+1024]; add.u32 %r4, %r4, %r3; st.shared.u32 [%r2+1024], %r4;";
        let step = format!("{read} {add}");
        let cases: [(String, [(usize, usize); 2]); 23] = [
            // The first one, before which nothing is done. What stands behind it: with several warps, and with one.
            ("st.shared.u32 [%r2], %r0;".into(), [(0, 0); 2]),
            // A scan's step, from below and from above; two of them.
            (step.clone(), [(0, 2), (0, 0)]),
            (step.replace("1020", "1028"), [(0, 0), (0, 0)]),
            (format!("{step} bar.sync 0; {step}"), [(1, 3), (0, 0)]),
            (format!("{read} bar.sync 0; {add} bar.sync 0; {read}"), [(1, 2), (0, 0)]),
            // One's own word; a word of the same warp; what all read; what one writes.
            ("st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(0, 0); 2]),
            ("st.shared.u32 [s], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(0, 2), (0, 0)]),
            ("st.shared.u32 [s+128], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(1, 0), (0, 0)]),
            ("st.shared.u32 [%r2+4], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(0, 0), (0, 0)]),
            ("st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2+4];".into(), [(0, 2), (0, 0)]),
            (
                "st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2+4]; ld.shared.u32 %r3, [%r2+-4];".into(),
                [(1, 0), (0, 0)],
            ),
            // Other arrays; a place that is not known; any order of bytes that differs by thread; a wide access.
            ("st.shared.u32 [%r2], %r0; bar.sync 0; st.shared.u32 [%r2+2048], %r0;".into(), [(0, 0); 2]),
            (
                "xor.b32 %r3, %r2, 4; st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r3];".into(),
                [(1, 0), (0, 0)],
            ),
            (
                "mov.u32 %r3, %laneid; st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(),
                [(1, 0), (0, 0)],
            ),
            ("ld.shared.u32 %r3, [%r2]; bar.sync 0; st.shared.v2.u32 [%r2], {%r0, %r0};".into(), [(0, 2), (0, 0)]),
            // Global memory: its arrays may be one.
            ("ld.global.u32 %r3, [%rd1]; bar.sync 0; st.global.u32 [%rd1], %r0;".into(), [(1, 0), (1, 0)]),
            ("ld.global.u32 %r3, [%rd1]; bar.sync 0; st.shared.u32 [%r2], %r3;".into(), [(0, 0); 2]),
            // More than loads and stores of one's own; barriers of another kind anywhere.
            ("st.shared.u32 [%r2], %r0; bar.sync 0; atom.shared.add.u32 %r3, [%r2+2048], 1;".into(), [(1, 0); 2]),
            ("st.shared.u32 [%r2], %r0; bar.sync 0; membar.gl; ld.shared.u32 %r3, [%r2];".into(), [(1, 0); 2]),
            (format!("{step} bar.sync 1, 64;"), [(3, 0); 2]),
            // In a branch that all take or none; in one that threads part at; behind one from which some do not come back.
            (format!("setp.eq.u32 %p0, %r7, 3; @%p0 bra ON; bar.sync 0; {step} bar.sync 0; ON:"), [(2, 2), (2, 0)]),
            (format!("setp.eq.u32 %p0, %r0, 3; @%p0 bra ON; bar.sync 0; {step} bar.sync 0; ON:"), [(2, 2), (2, 0)]),
            (format!("setp.eq.u32 %p0, %r0, 3; @%p0 bra ON; bar.sync 0; {step} ON: bar.sync 0;"), [(4, 0), (4, 0)]),
        ];
        let mut wrong = Vec::new();
        for (body, want) in cases {
            let got = [[128, 1, 1], [32, 1, 1]].map(|block| barriers(&body, block));
            if got != want {
                wrong.push(format!("{body}: {got:?}, not {want:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
