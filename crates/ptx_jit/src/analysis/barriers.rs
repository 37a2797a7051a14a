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

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ptx::ir::{Address, Block, Inst, Kernel, Op, Operand, Order, Reg, SReg, Space, Term};
use ptx::launch::WARP;

use super::address::Addresses;
use super::classes::Shape;
use super::graph::{NodeId, targets};
use super::regset::RegSet;
use super::{Between, PATIENCE, dead, dominators, operands};
use crate::run::barrier;

/// Most different accesses on both sides of a barrier that is left out.
const MAX_ACCESSES: usize = 64;
/// Times that a kernel is gone through to find out what all its threads do alike; if that is not known by then, barriers stay.
const MAX_ROUNDS: usize = 16;

/// A kernel, and where a CTA's last warp is the first to run.
pub(crate) struct Ordered {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) from_last: FromLast,
}

/// Instructions of blocks, by the block and the first of them: the one behind the last.
#[derive(Default)]
pub(crate) struct FromLast(BTreeMap<(usize, usize), usize>);

impl FromLast {
    /// Are some of these instructions of a block among them?
    pub(crate) fn contains_some(&self, block: usize, insts: &Range<usize>) -> bool {
        let before_end = self.0.range((block, 0)..(block, insts.end)).next_back();
        before_end.is_some_and(|(_, &end)| end > insts.start)
    }
}

/// The kernel without the barriers that nobody misses, for CTAs of `block` threads.
pub(crate) fn without_needless(kernel: Arc<Kernel>, block: [u32; 3]) -> Ordered {
    let mut all = Ordered { kernel, from_last: FromLast::default() };
    let insts = || all.kernel.blocks.iter().flat_map(|block| &block.insts);
    let joins = |inst: &Inst| matches!(inst.op, Op::Bar { .. });
    // What is printed shows in which order warps run. Barriers of other kinds are not for all threads, or are clusters'.
    let other = |inst: &Inst| matches!(inst.op, Op::Call { .. }) || joins(inst) && !is_for_all(inst);
    // Where loops come back to the beginning, not all threads are together there; no compiler writes that.
    let comes_back = || all.kernel.blocks.iter().any(|block| targets(&block.term).any(|to| to == 0));
    if !insts().any(joins) || insts().any(other) || comes_back() {
        return all;
    }
    let Some(apart) = apart(&all.kernel) else { return all };
    let places = Places::new(&all.kernel, block);
    let mut steps = PATIENCE;
    let mut found = Vec::new();
    for (index, block) in all.kernel.blocks.iter().enumerate().filter(|&(index, _)| !apart[index]) {
        let runs = runs(index, &block.insts, ends(&all.kernel, block), &places, &mut steps);
        if !runs.is_empty() {
            found.push((index, runs));
        }
    }
    if found.is_empty() {
        return all;
    }
    drop(places);
    let kernel = Arc::make_mut(&mut all.kernel);
    for (block, runs) in found {
        let left_out: Vec<usize> = runs.iter().flat_map(|run| run.left_out.iter().copied()).collect();
        let place = |at: usize| at - left_out.partition_point(|&out| out < at);
        for Run { insts, .. } in runs.iter().filter(|run| run.orders == Orders::FROM_LAST) {
            all.from_last.0.insert((block, place(insts.start)), place(insts.end));
        }
        let insts = std::mem::take(&mut kernel.blocks[block].insts).into_iter().enumerate();
        kernel.blocks[block].insts =
            insts.filter(|(at, _)| left_out.binary_search(at).is_err()).map(|(_, inst)| inst).collect();
    }
    all
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
    barrier::is_for_all(&inst.op) && inst.guard.is_none()
}

/// Bytes of shared memory, or outside it: addresses that fault.
type Bytes = Range<i32>;

/// What an access touches.
#[derive(Clone, PartialEq, Debug)]
enum Place {
    /// In shared memory, by warp.
    Shared(Vec<Bytes>),
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
                let mut orders = orders;
                // From the first warp on, none may come to bytes that one behind it has not done with; from the last on, one before it.
                if earlier_meets(first.iter().rev(), then.iter().rev()) {
                    orders = orders.without(Orders::FROM_FIRST);
                }
                if earlier_meets(first.iter(), then.iter()) {
                    orders = orders.without(Orders::FROM_LAST);
                }
                orders
            }
            (Place::Shared(_) | Place::SharedSomewhere, Place::Global)
            | (Place::Global, Place::Shared(_) | Place::SharedSomewhere) => orders,
            _ => Orders::NONE,
        }
    }
}

/// Are bytes of `then` among those of `first` that stand before them?
fn earlier_meets<'a>(first: impl Iterator<Item = &'a Bytes>, then: impl Iterator<Item = &'a Bytes>) -> bool {
    let meet = |a: &Bytes, b: &Bytes| a.start < b.end && b.start < a.end;
    let mut earlier: Vec<&Bytes> = Vec::new();
    let mut all = 0..0;
    for (first, then) in first.zip(then) {
        if !earlier.is_empty() && meet(&all, then) && earlier.iter().any(|earlier| meet(earlier, then)) {
            return true;
        }
        all = if earlier.is_empty() { first.clone() } else { all.start.min(first.start)..all.end.max(first.end) };
        earlier.push(first);
    }
    false
}

/// Tells what instructions access.
struct Places<'k> {
    addresses: Addresses<'k>,
    /// By warp: from which to which number each index of its threads goes.
    warps: Vec<[(i64, i64); 3]>,
}

impl<'k> Places<'k> {
    fn new(kernel: &'k Kernel, block: [u32; 3]) -> Places<'k> {
        let shape = Shape { block, lanes: WARP };
        let [x, y, _] = block;
        let threads = shape.threads();
        let warp = |first: u32| {
            let mut ends = [(i64::MAX, 0); 3];
            for thread in first..threads.min(first + WARP) {
                for (ends, index) in ends.iter_mut().zip([thread % x, thread / x % y, thread / x / y]) {
                    *ends = (ends.0.min(index.into()), ends.1.max(index.into()));
                }
            }
            ends
        };
        let warps = (0..threads).step_by(WARP as usize).map(warp).collect();
        Places { addresses: Addresses::new(kernel, shape, None), warps }
    }

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
            (Space::Shared, Order::Weak | Order::Volatile) => self.shared(addr, bytes)?,
            (Space::Global, Order::Weak) => Place::Global,
            (Space::Generic, Order::Weak) => Place::Anywhere,
            _ => return None,
        };
        Some(Some(Access { place, writes }))
    }

    /// Bytes in shared memory, by warp; none if an address may wrap. There is no memory at such, but threads that are told by their
    /// addresses from others of their warp (`lockstep`) are not to be told wrong.
    fn shared(&self, addr: Address, bytes: u32) -> Option<Place> {
        let Some((number, by)) = self.addresses.of_thread(addr) else { return Some(Place::SharedSomewhere) };
        let warp = |ends: &[(i64, i64); 3]| {
            let (mut low, mut high) = (number, number.checked_add(bytes.into())?);
            for (&(first, last), by) in ends.iter().zip(by) {
                let (first, last) = (first.checked_mul(by)?, last.checked_mul(by)?);
                low = low.checked_add(first.min(last))?;
                high = high.checked_add(first.max(last))?;
            }
            Some(i32::try_from(low).ok()?..i32::try_from(high).ok()?)
        };
        self.warps.iter().map(warp).collect::<Option<_>>().map(Place::Shared)
    }
}

/// What stands between two barriers that stay, or from where the kernel begins, or to where it ends.
struct Run {
    insts: Range<usize>,
    accesses: Vec<Access>,
    /// Orders in which warps may run through it.
    orders: Orders,
    /// The barriers in it.
    left_out: Vec<usize>,
}

impl Run {
    fn new(insts: Range<usize>, accesses: Vec<Access>) -> Run {
        Run { insts, accesses, orders: Orders::ANY, left_out: Vec::new() }
    }

    /// Orders in which nobody misses a barrier between this and what comes `behind`.
    fn orders(&self, behind: &[Access], warps: usize, steps: &mut usize) -> Orders {
        let takes = self.accesses.len() * behind.len() * warps;
        if self.accesses.len() + behind.len() > MAX_ACCESSES || *steps < takes {
            return Orders::NONE;
        }
        *steps -= takes;
        let both = self.accesses.iter().flat_map(|a| behind.iter().map(move |b| (a, b)));
        both.fold(self.orders, |orders, (a, b)| if orders == Orders::NONE { orders } else { a.orders(b, orders) })
    }
}

/// The parts of a block in which barriers can be left out. All threads come together at each barrier of it; if it `ends` the kernel,
/// nothing comes behind.
fn runs(index: usize, insts: &[Inst], ends: bool, places: &Places<'_>, steps: &mut usize) -> Vec<Run> {
    let barriers: Vec<usize> = (0..insts.len()).filter(|&at| is_for_all(&insts[at])).collect();
    let mut found = Vec::new();
    // Where the kernel begins all threads are together; elsewhere what they have done before is not known.
    let first = barriers.first().copied().unwrap_or(insts.len());
    let begin = if index == 0 { accesses(&insts[..first], places) } else { None };
    let mut run = begin.map(|accesses| Run::new(0..first, accesses));
    for (i, &at) in barriers.iter().enumerate() {
        let next = barriers.get(i + 1).copied();
        let end = next.unwrap_or(insts.len());
        let behind = if next.is_some() || ends { accesses(&insts[at + 1..end], places) } else { None };
        let orders = match (&run, &behind) {
            (Some(run), Some(behind)) => run.orders(behind, places.warps.len(), steps),
            _ => Orders::NONE,
        };
        match (&mut run, behind) {
            (Some(run), Some(behind)) if orders != Orders::NONE => {
                run.insts.end = end;
                run.orders = orders;
                run.left_out.push(at);
                for access in behind {
                    if !run.accesses.contains(&access) {
                        run.accesses.push(access);
                    }
                }
            }
            (_, behind) => {
                let next = behind.map(|accesses| Run::new(at + 1..end, accesses));
                found.extend(std::mem::replace(&mut run, next));
            }
        }
    }
    found.extend(run);
    found.retain(|run| !run.left_out.is_empty());
    found
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
    let mut between = Between::new(&successors);
    for _ in 0..MAX_ROUNDS {
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
            if varying.contains(by) && sides.len() > 1 {
                between.visit(&sides, post[branch], |n| {
                    changed |= !std::mem::replace(&mut apart[n], true);
                    (!joins[n]).then_some(())
                })?;
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

    /// How many barriers of the kernel stay, and through how many parts of it the last warp is the first to run.
    fn barriers(body: &str, block: [u32; 3]) -> (usize, usize) {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u32 n) {{\n\
             .reg .b64 %rd<4>; .reg .b32 %r<9>; .reg .pred %p<4>; .shared .align 16 .b8 s[8192];\n\
             ld.param.u64 %rd0, [a]; ld.param.u32 %r7, [n]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;\n\
             shl.b32 %r1, %r0, 2; mov.u32 %r8, s; add.u32 %r2, %r8, %r1; bar.sync 0;\n{body}\nret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
        let Ordered { kernel, from_last } = without_needless(kernel, block);
        let left = kernel.blocks.iter().flat_map(|block| &block.insts).filter(|inst| matches!(inst.op, Op::Bar { .. }));
        (left.count(), from_last.0.len())
    }

    #[test]
    fn barriers_stay_where_somebody_would_miss_them() {
        let read = "ld.shared.u32 %r3, [%r2+1020]; bar.sync 0;";
        let add = "ld.shared.u32 %r4, [%r2+1024]; add.u32 %r4, %r4, %r3; st.shared.u32 [%r2+1024], %r4;";
        let step = format!("{read} {add}");
        let cases: [(String, [(usize, usize); 2]); 26] = [
            // The first one, before which nothing is done. What stands behind it: with several warps, and with one.
            ("st.shared.u32 [%r2], %r0;".into(), [(0, 0); 2]),
            // A scan's step, from below and from above; two of them.
            (step.clone(), [(0, 1), (0, 0)]),
            (step.replace("1020", "1028"), [(0, 0), (0, 0)]),
            (format!("{step} bar.sync 0; {step}"), [(1, 2), (0, 0)]),
            (format!("{read} bar.sync 0; {add} bar.sync 0; {read}"), [(1, 1), (0, 0)]),
            // One's own word; a word of the same warp; what all read; what one writes.
            ("st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(0, 0); 2]),
            ("st.shared.u32 [s], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(0, 1), (0, 0)]),
            ("st.shared.u32 [s+128], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(1, 0), (0, 0)]),
            ("st.shared.u32 [%r2+4], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(), [(0, 0), (0, 0)]),
            ("st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2+4];".into(), [(0, 1), (0, 0)]),
            (
                "st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2+4]; ld.shared.u32 %r3, [%r2+-4];".into(),
                [(1, 0), (0, 0)],
            ),
            // Other arrays; a place that is not known; any order of bytes that differs by thread; a wide access.
            ("st.shared.u32 [%r2], %r0; bar.sync 0; st.shared.u32 [%r2+2048], %r0;".into(), [(0, 0); 2]),
            (
                "xor.b32 %r3, %r2, 4; st.shared.u32 [%r2], %r0; bar.sync 0; ld.shared.u32 %r3, [%r3];".into(),
                [(1, 0); 2],
            ),
            (
                "mov.u32 %r3, %laneid; st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r3, [%r2];".into(),
                [(1, 0); 2],
            ),
            ("ld.shared.u32 %r3, [%r2]; bar.sync 0; st.shared.v2.u32 [%r2], {%r0, %r0};".into(), [(0, 1), (0, 0)]),
            // Below the first word; sums that wrap; so often that accesses are counted once each.
            (
                "setp.ge.u32 %p0, %r0, 1; @%p0 ld.shared.u32 %r3, [%r1+-4]; bar.sync 0; @%p0 st.shared.u32 [%r1], %r3;"
                    .into(),
                [(0, 1), (0, 0)],
            ),
            (
                "add.u32 %r3, %r1, 0x7ffffff0; add.u32 %r4, %r3, 0x7ffffff0; add.u32 %r5, %r4, 0x24;\n\
                 st.shared.u32 [%r1], %r0; bar.sync 0; ld.shared.u32 %r6, [%r5];"
                    .into(),
                [(1, 0); 2],
            ),
            (format!("{} st.shared.u32 [%r2], %r0;", "st.shared.u32 [%r2], %r0; bar.sync 0;".repeat(99)), [(0, 0); 2]),
            // Global memory: its arrays may be one.
            ("ld.global.u32 %r3, [%rd1]; bar.sync 0; st.global.u32 [%rd1], %r0;".into(), [(1, 0), (1, 0)]),
            ("ld.global.u32 %r3, [%rd1]; bar.sync 0; st.shared.u32 [%r2], %r3;".into(), [(0, 0); 2]),
            // More than loads and stores of one's own; barriers of another kind anywhere.
            ("st.shared.u32 [%r2], %r0; bar.sync 0; atom.shared.add.u32 %r3, [%r2+2048], 1;".into(), [(1, 0); 2]),
            ("st.shared.u32 [%r2], %r0; bar.sync 0; membar.gl; ld.shared.u32 %r3, [%r2];".into(), [(1, 0); 2]),
            (format!("{step} bar.sync 1, 64;"), [(3, 0); 2]),
            // In a branch that all take or none; in one that threads part at; behind one from which some do not come back.
            (format!("setp.eq.u32 %p0, %r7, 3; @%p0 bra ON; bar.sync 0; {step} bar.sync 0; ON:"), [(2, 1), (2, 0)]),
            (format!("setp.eq.u32 %p0, %r0, 3; @%p0 bra ON; bar.sync 0; {step} bar.sync 0; ON:"), [(2, 1), (2, 0)]),
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
