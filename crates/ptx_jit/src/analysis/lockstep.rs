//! Where the lanes of a warp must wait for one another, so that they seem to run in lock step.
//!
//! On hardware the lanes of a warp that have not diverged execute one instruction after another together: what one stores,
//! the others load behind it, and not before. Machine code runs a chunk of lanes through a whole region before the next
//! chunk. Nobody can tell, as long as no access of a lane in one chunk touches what a lane in another one has written, or
//! writes what it has read, since all lanes were last together at the head of a region. Before an access that may do so
//! the region is **cut**: there a new one begins, and the scheduler runs the old one for all lanes first.
//!
//! What lanes have done since they were together is followed forwards through the kernel: for every area of memory
//! (`address`) the places read and written, as one sum of symbols with ranges of bytes, or, if there were different sums,
//! as anything in that area. Loops carry it around; where a symbol moves on the way, the places move with it. Barriers
//! and all operations that join lanes begin regions anyway.
//!
//! What is assumed, and why, is in `docs/decisions/009-lock-step.md`.

use std::collections::{BTreeSet, HashMap};

use ptx::ir::{AtomOp, Builtin, Inst, Kernel, Op, Reg, RegTy, Space, Term};
use ptx::launch::WARP;

use super::address::{self, Addresses, Area, Change, Form, Place, Threads};
use super::classes::{self, Class, Shape};
use super::graph::{self, Node, NodeId, targets};
use super::{dominators, liveness, operands};

/// Ranges of bytes kept apart; more are taken as one.
const MAX_RANGES: usize = 8;
/// All threads.
const EVERYONE: Threads = (0, i64::MAX / 2);
/// Visits of a block until what comes to it is taken to be anything.
const MAX_VISITS: u32 = 8;

/// Instructions before which regions are cut, by block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts(Vec<BTreeSet<usize>>);

impl Cuts {
    /// Does a region begin before this instruction?
    pub(crate) fn contains(&self, block: usize, inst: usize) -> bool {
        self.0.get(block).is_some_and(|list| list.contains(&inst))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(BTreeSet::len).sum()
    }
}

/// The cuts that the kernel needs when so many lanes run together as `shape` says.
pub(crate) fn cuts(kernel: &Kernel, shape: Shape) -> Cuts {
    if shape.threads().min(WARP) <= shape.lanes {
        return Cuts::default();
    }
    let warp = Shape { lanes: WARP, ..shape };
    // First without a look at addresses, which is enough for most kernels.
    let rough = Follow::new(kernel, Addresses::new(kernel, warp, None)).run();
    if rough.count() == 0 {
        return rough;
    }
    let Some(classes) = warp_classes(kernel, warp) else { return rough };
    Follow::new(kernel, Addresses::new(kernel, warp, Some(classes))).run()
}

/// How registers vary over the lanes of a warp.
fn warp_classes(kernel: &Kernel, shape: Shape) -> Option<Vec<Class>> {
    let nodes = graph::cut(kernel, &Cuts::default());
    let successors: Vec<Vec<NodeId>> = nodes.iter().map(Node::successors).collect();
    let ordering = graph::order(&successors)?;
    let live = liveness::liveness(kernel, &nodes, &ordering.nodes);
    let post = dominators::post_dominators(&successors);
    Some(classes::classify(kernel, &nodes, &ordering.nodes, &live, &post, shape, false).0)
}

/// What an access does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Read,
    Write,
    Update,
    /// An atomic whose result nobody asks for, of a kind whose order does not show.
    Reduce(AtomOp),
}

#[derive(Clone, Copy, Debug)]
struct Access {
    area: Area,
    place: Option<Place>,
    effect: Effect,
}

/// Places that lanes have accessed, and the lanes.
#[derive(Clone, PartialEq, Debug)]
struct Places {
    what: What,
    threads: Threads,
}

#[derive(Clone, PartialEq, Debug)]
enum What {
    None,
    /// At one sum of symbols, moved by any multiple of `period` since.
    At {
        form: Form,
        period: i64,
        ranges: Vec<(i64, i64)>,
    },
    Anywhere,
}

impl Places {
    const NONE: Places = Places { what: What::None, threads: (0, 0) };

    /// May lanes have accessed what others of `threads` access at `place`?
    fn meets(&self, addresses: &Addresses<'_>, place: Option<Place>, threads: Threads) -> bool {
        let alone = self.threads == threads && threads.1 - threads.0 <= 1;
        match (&self.what, place) {
            (What::None, _) => false,
            _ if alone => false,
            (What::At { form, period, ranges }, Some(place)) => {
                ranges.iter().any(|&range| addresses.meets((*form, *period, range), self.threads, place, threads))
            }
            _ => true,
        }
    }

    fn add(&mut self, other: &Places) {
        match (&mut self.what, &other.what) {
            (_, What::None) => return,
            (What::None, _) => {
                self.clone_from(other);
                return;
            }
            (What::Anywhere, _) => {}
            (What::At { form, period, ranges }, What::At { form: other_form, period: other_period, ranges: more })
                if form == other_form =>
            {
                // The places of both, each moved as either was.
                *period = address::gcd(*period, *other_period);
                ranges.extend_from_slice(more);
                ranges.sort_unstable();
                ranges.dedup();
                if ranges.len() > MAX_RANGES {
                    let low = ranges.iter().map(|r| r.0).min().unwrap_or(0);
                    let high = ranges.iter().map(|r| r.1).max().unwrap_or(0);
                    *ranges = vec![(low, high)];
                }
            }
            _ => self.what = What::Anywhere,
        }
        self.threads = (self.threads.0.min(other.threads.0), self.threads.1.max(other.threads.1));
    }

    fn note(&mut self, place: Option<Place>, threads: Threads) {
        let what = match place {
            None => What::Anywhere,
            Some(Place { form, bytes }) => What::At { form, period: 0, ranges: vec![bytes] },
        };
        self.add(&Places { what, threads });
    }

    /// `inst` writes register `r`.
    fn rewrite(&mut self, addresses: &Addresses<'_>, inst: &Inst, r: Reg) {
        let What::At { form, period, .. } = &mut self.what else { return };
        match addresses.change(*form, inst, r) {
            Change::None => {}
            Change::By(by) => *period = address::gcd(*period, by),
            Change::Unknown => self.what = What::Anywhere,
        }
    }

    /// Nothing is known of where it was.
    fn forget(&mut self) {
        if self.what != What::None {
            *self = Places { what: What::Anywhere, threads: EVERYONE };
        }
    }
}

/// What lanes have done in one area.
#[derive(Clone, PartialEq, Debug)]
struct Done {
    area: Area,
    reads: Places,
    writes: Places,
    /// All writes are reductions of this kind.
    reduces: Option<AtomOp>,
}

/// What lanes may have done since they were together.
#[derive(Clone, PartialEq, Debug, Default)]
struct Pending(Vec<Done>);

impl Pending {
    /// May the access show whether all lanes have done what is pending?
    fn shows(&self, addresses: &Addresses<'_>, access: &Access, threads: Threads) -> bool {
        self.0.iter().any(|done| {
            let place = if done.area == access.area {
                access.place
            } else if done.area.overlaps(access.area) {
                None
            } else {
                return false;
            };
            let writes = match access.effect {
                Effect::Reduce(op) if done.reduces == Some(op) => false,
                _ => done.writes.meets(addresses, place, threads),
            };
            writes || (access.effect != Effect::Read && done.reads.meets(addresses, place, threads))
        })
    }

    fn area(&mut self, area: Area) -> &mut Done {
        let at = match self.0.iter().position(|done| done.area == area) {
            Some(at) => at,
            None => {
                self.0.push(Done { area, reads: Places::NONE, writes: Places::NONE, reduces: None });
                self.0.len() - 1
            }
        };
        &mut self.0[at]
    }

    fn note(&mut self, access: &Access, threads: Threads) {
        let done = self.area(access.area);
        let first = done.writes.what == What::None;
        match access.effect {
            Effect::Read => done.reads.note(access.place, threads),
            Effect::Write => {
                done.writes.note(access.place, threads);
                done.reduces = None;
            }
            Effect::Update => {
                done.reads.note(access.place, threads);
                done.writes.note(access.place, threads);
                done.reduces = None;
            }
            Effect::Reduce(op) => {
                done.writes.note(access.place, threads);
                done.reduces = if first || done.reduces == Some(op) { Some(op) } else { None };
            }
        }
    }

    /// Adds what may be pending on another way to the same place.
    fn add(&mut self, other: &Pending) {
        for more in &other.0 {
            let done = self.area(more.area);
            done.reduces = match (&done.writes.what, &more.writes.what) {
                (What::None, _) => more.reduces,
                (_, What::None) => done.reduces,
                _ => done.reduces.filter(|_| done.reduces == more.reduces),
            };
            done.reads.add(&more.reads);
            done.writes.add(&more.writes);
        }
    }

    fn forget_places(&mut self) {
        for places in self.0.iter_mut().flat_map(|done| [&mut done.reads, &mut done.writes]) {
            places.forget();
        }
    }

    fn rewrite(&mut self, addresses: &Addresses<'_>, inst: &Inst, r: Reg) {
        for places in self.0.iter_mut().flat_map(|done| [&mut done.reads, &mut done.writes]) {
            places.rewrite(addresses, inst, r);
        }
    }
}

/// Follows what is pending through the blocks.
struct Follow<'k> {
    kernel: &'k Kernel,
    addresses: Addresses<'k>,
    /// By block: what the instructions access.
    accesses: Vec<Vec<(usize, Access)>>,
    /// Threads that may be in each block.
    threads: Vec<Threads>,
    cuts: Vec<BTreeSet<usize>>,
}

impl<'k> Follow<'k> {
    fn new(kernel: &'k Kernel, mut addresses: Addresses<'k>) -> Follow<'k> {
        let accesses = kernel.blocks.iter().map(|block| {
            let list = block.insts.iter().enumerate();
            list.flat_map(|(at, inst)| accesses(&inst.op, &mut addresses).map(move |a| (at, a))).collect()
        });
        let accesses = accesses.collect();
        let threads = threads(kernel, &addresses);
        Follow { kernel, addresses, accesses, threads, cuts: vec![BTreeSet::new(); kernel.blocks.len()] }
    }

    fn run(mut self) -> Cuts {
        let count = self.kernel.blocks.len();
        let mut entering: Vec<Option<Pending>> = vec![None; count];
        let mut visits = vec![0_u32; count];
        let mut work = BTreeSet::from([0]);
        entering[0] = Some(Pending::default());
        while let Some(block) = work.pop_first() {
            let Some(mut pending) = entering[block].clone() else { continue };
            self.block(block, &mut pending);
            let mut arrive = |to: usize| {
                let merged = match &entering[to] {
                    None => pending.clone(),
                    Some(before) => {
                        let mut merged = before.clone();
                        merged.add(&pending);
                        if visits[to] > MAX_VISITS {
                            merged.forget_places();
                        }
                        merged
                    }
                };
                if entering[to].as_ref() != Some(&merged) {
                    visits[to] += 1;
                    entering[to] = Some(merged);
                    work.insert(to);
                }
            };
            targets(&self.kernel.blocks[block].term).for_each(&mut arrive);
        }
        Cuts(self.cuts)
    }

    /// Goes through a block, with what is pending at its beginning and then at its end.
    fn block(&mut self, block: usize, pending: &mut Pending) {
        let mut accesses = std::mem::take(&mut self.accesses[block]);
        let threads = self.threads[block];
        let mut next = 0;
        // Nothing has been accessed in the block: a cut may as well be where it begins, where regions meet anyway.
        let mut untouched = true;
        for (at, inst) in self.kernel.blocks[block].insts.iter().enumerate() {
            if self.cuts[block].contains(&at) {
                pending.0.clear();
            }
            if graph::joins_lanes(&inst.op) {
                pending.0.clear();
                untouched = false;
            }
            let first = next;
            while accesses.get(next).is_some_and(|a| a.0 == at) {
                next += 1;
            }
            let here = &accesses[first..next];
            if here.iter().any(|(_, access)| pending.shows(&self.addresses, access, threads)) {
                self.cuts[block].insert(if untouched { 0 } else { at });
                pending.0.clear();
            }
            for (_, access) in here {
                pending.note(access, threads);
                untouched = false;
            }
            for r in operands::writes(&inst.op) {
                if self.addresses.is_watched(r) {
                    pending.rewrite(&self.addresses, inst, r);
                }
            }
        }
        std::mem::swap(&mut self.accesses[block], &mut accesses);
    }
}

/// The threads that may be in each block, as far as branches on their index tell.
fn threads(kernel: &Kernel, addresses: &Addresses<'_>) -> Vec<Threads> {
    let mut defined: HashMap<Reg, &Op> = HashMap::new();
    for inst in kernel.blocks.iter().flat_map(|block| &block.insts) {
        for r in operands::writes(&inst.op) {
            if kernel.regs[r.0 as usize] == RegTy::Pred && addresses.is_single(r) {
                defined.insert(r, &inst.op);
            }
        }
    }
    let mut found: Vec<Option<Threads>> = vec![None; kernel.blocks.len()];
    found[0] = Some(addresses.all_threads());
    let mut visits = vec![0; kernel.blocks.len()];
    let mut work = BTreeSet::from([0]);
    while let Some(block) = work.pop_first() {
        let Some(here) = found[block] else { continue };
        let term = &kernel.blocks[block].term;
        for (way, to) in targets(term).enumerate() {
            let mut there = here;
            if let Term::CondBra { p, .. } = term
                && let Some(comparison) = defined.get(&p.reg)
                && let Some((low, high)) = addresses.bound(comparison, (way == 0) != p.negate)
            {
                there = (there.0.max(low), there.1.min(high));
                if there.0 >= there.1 {
                    continue;
                }
            }
            let merged = found[to].map_or(there, |before| (before.0.min(there.0), before.1.max(there.1)));
            let merged = if visits[to] > MAX_VISITS { addresses.all_threads() } else { merged };
            if found[to] != Some(merged) {
                visits[to] += 1;
                found[to] = Some(merged);
                work.insert(to);
            }
        }
    }
    found.into_iter().map(|threads| threads.unwrap_or(EVERYONE)).collect()
}

/// The accesses of an operation to memory that lanes share and that is not constant.
fn accesses(op: &Op, addresses: &mut Addresses<'_>) -> impl Iterator<Item = Access> + use<> {
    let mut list = Vec::new();
    let mut access = |space, addr, bytes, effect| {
        if let Some(area) = addresses.area(space, addr) {
            list.push(Access { area, place: addresses.place(addr, bytes), effect });
        }
    };
    match op {
        Op::Ld { space, ty, dsts, addr, .. } => access(*space, *addr, ty.bytes() * dsts.len() as u32, Effect::Read),
        Op::St { space, ty, srcs, addr, .. } => access(*space, *addr, ty.bytes() * srcs.len() as u32, Effect::Write),
        Op::Atom { op, space, ty, dst, addr, .. } => {
            let commutes =
                matches!(op, AtomOp::Add | AtomOp::Min | AtomOp::Max | AtomOp::And | AtomOp::Or | AtomOp::Xor);
            // Sums of floating-point numbers depend on the order.
            let effect = if dst.is_none() && commutes && !ty.is_float() { Effect::Reduce(*op) } else { Effect::Update };
            access(*space, *addr, ty.bytes(), effect);
        }
        Op::CpAsync { bytes, dst, src, .. } => {
            access(Space::Global, *src, (*bytes).into(), Effect::Read);
            access(Space::Shared, *dst, (*bytes).into(), Effect::Write);
        }
        Op::Transfer { .. } => list.push(Access { area: Area::Anywhere, place: None, effect: Effect::Update }),
        Op::Call { builtin: Builtin::Vprintf | Builtin::Launch | Builtin::Copy | Builtin::Fill, .. } => {
            list.push(Access { area: Area::Print, place: None, effect: Effect::Write });
        }
        // What textures show does not change while a kernel runs, or else it is not known when they see it.
        Op::Image { access, .. } if !access.is_texture() && !matches!(access, texture::Access::Query { .. }) => {
            let effect = if access.writes() { Effect::Update } else { Effect::Read };
            list.push(Access { area: Area::Surfaces, place: None, effect });
        }
        _ => {}
    }
    list.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(kernel: &Kernel, block: [u32; 3]) -> Vec<usize> {
        [4, 8, 16, 32].map(|lanes| cuts(kernel, Shape { block, lanes }).count()).to_vec()
    }

    /// What `bench engine` measures must not be cut.
    #[test]
    fn kernels_that_need_no_cut_get_none() {
        let text = include_bytes!("../../../sundial/kernels/engine.ptx");
        let program = ptx::Program::parse(text).unwrap();
        for (name, block) in [
            ("saxpy", [256, 1, 1]),
            ("matmul", [32, 32, 1]),
            ("matmul", [16, 16, 1]),
            ("black_scholes", [256, 1, 1]),
            ("nbody", [128, 1, 1]),
            ("reduction", [256, 1, 1]),
        ] {
            let kernel = program.lower(program.find_entry(name).unwrap(), &|_| None).unwrap();
            assert_eq!(count(&kernel, block), [0; 4], "{name}");
        }
    }

    fn kernel(body: &str) -> Kernel {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u32 n) {{\n\
             .reg .b64 %rd<12>; .reg .b32 %r<12>; .reg .pred %p<4>; .shared .align 16 .b8 s[8192];\n\
             ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u32 %r9, [n]; mov.u32 %r0, %tid.x;\n\
             mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r0;\n\
             shl.b32 %r10, %r0, 2; mov.u32 %r6, s; add.u32 %r5, %r10, %r6;\n{body}\nret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        program.lower(0, &|_| None).unwrap()
    }

    /// Bodies, and how often they are cut where a chunk has 8 lanes, in blocks of 256 threads and of 16 by 16.
    #[test]
    fn cuts_stand_where_lanes_could_tell() {
        /// A loop over the grid: `%rd3` points into `a`, `%rd4` into `b`.
        fn grid_stride(body: &str) -> String {
            format!(
                "mov.u32 %r11, %nctaid.x; mul.lo.u32 %r7, %r11, %r3;\n\
                 LOOP: mul.wide.s32 %rd2, %r4, 4; add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2; {body}\n\
                 add.s32 %r4, %r4, %r7; setp.lt.s32 %p0, %r4, %r9; @%p0 bra LOOP;"
            )
        }
        let tile = "mad.lo.u32 %r7, %r1, 64, %r5; ";
        let row = "mul.lo.u32 %r7, %r4, %r9; mul.wide.u32 %rd2, %r7, 4; add.s64 %rd3, %rd0, %rd2; ";
        let record = "mul.wide.u32 %rd2, %r4, 16; add.s64 %rd3, %rd0, %rd2; ";
        // A loop over shared memory, whose places move by a warp and by what the body makes of it in `%r8`.
        let walk = |body: &str| {
            format!(
                "LOOP: {body} mad.lo.u32 %r11, %r8, 4, %r6; ld.shared.u32 %r10, [%r11]; st.shared.u32 [%r11], %r10;\n\
                 add.u32 %r4, %r4, 32; setp.lt.u32 %p0, %r4, 999; @%p0 bra LOOP;"
            )
        };
        let halves = "cvt.u64.u32 %rd3, %r7; cvt.u64.u32 %rd4, %r8; shl.b64 %rd4, %rd4, 32; or.b64 %rd5, %rd3, %rd4;\n\
                      st.global.u32 [%rd5], 1; ld.global.u32 %r11, [%rd1];";
        let cases: [(String, [usize; 2]); 31] = [
            // One's own word, again and again; a neighbour's.
            ("st.shared.u32 [%r5], 1; ld.shared.u32 %r8, [%r5]; st.shared.u32 [%r5], %r8;".into(), [0, 2]),
            ("st.shared.u32 [%r5], 1; ld.shared.u32 %r8, [%r5+4];".into(), [1, 1]),
            ("ld.shared.u32 %r8, [%r5+4]; st.shared.u32 [%r5], %r8;".into(), [1, 1]),
            ("st.shared.u32 [%r5+4], 1; st.shared.u32 [%r5], 2;".into(), [1, 1]),
            // A neighbour in another warp, or none.
            ("st.shared.u32 [%r5], 1; ld.shared.u32 %r8, [%r5+128];".into(), [0, 0]),
            ("st.shared.u32 [%r5], 1; bar.sync 0; ld.shared.u32 %r8, [%r5+4];".into(), [0, 0]),
            // A lane that is not there; one alone.
            (
                "setp.ge.u32 %p0, %r0, 16; @%p0 bra END; ld.shared.u32 %r8, [%r5+64]; st.shared.u32 [%r5], %r8; END:"
                    .into(),
                [0, 0],
            ),
            (
                "setp.ne.s32 %p0, %r0, 5; @%p0 bra END; ld.shared.u32 %r8, [%r6+64]; st.shared.u32 [%r6+64], %r8; END:"
                    .into(),
                [0, 1],
            ),
            // Rows of a tile.
            (format!("{tile} st.shared.u32 [%r7], 1; ld.shared.u32 %r8, [%r7];"), [0, 0]),
            (format!("{tile} st.shared.u32 [%r7], 1; ld.shared.u32 %r8, [%r7+64];"), [1, 1]),
            // Loads alone; other arrays; other spaces; parameters.
            ("ld.global.u32 %r8, [%rd0]; ld.global.u32 %r8, [%rd1]; ld.shared.u32 %r8, [%r5];".into(), [0, 0]),
            ("ld.global.u32 %r8, [%rd0]; st.global.u32 [%rd1], %r8; ld.global.u32 %r8, [%rd0];".into(), [0, 0]),
            ("st.global.u32 [%rd1], %r9; ld.shared.u32 %r8, [%r5]; ld.param.u32 %r8, [n];".into(), [0, 0]),
            ("st.global.u32 [%rd1], %r9; ld.global.nc.u32 %r8, [%rd1];".into(), [0, 0]),
            // A pointer from memory may be any.
            ("ld.global.u64 %rd2, [%rd0]; st.global.u32 [%rd2], %r9; ld.global.u32 %r8, [%rd1];".into(), [2, 2]),
            // Loops: in place over the grid, the next element, a step that nobody knows.
            (grid_stride("ld.global.u32 %r8, [%rd3]; st.global.u32 [%rd3], %r8; st.global.u32 [%rd4], %r8;"), [0, 2]),
            (grid_stride("ld.global.u32 %r8, [%rd3+4]; st.global.u32 [%rd3], %r8;"), [2, 2]),
            (
                grid_stride("st.global.u32 [%rd3], %r9;").replace("mul.lo.u32 %r7, %r11, %r3", "mov.u32 %r7, %clock"),
                [1, 1],
            ),
            // Records with gaps, rows of unknown length, of which lanes may have the same.
            (
                format!("{record} st.global.u32 [%rd3], 1; st.global.u64 [%rd3+8], 2; ld.global.u32 %r8, [%rd3+4];"),
                [0, 0],
            ),
            (format!("{row} st.global.u32 [%rd3], 1; ld.global.u32 %r8, [%rd3];"), [1, 1]),
            // What is added to a counter stays as it is, is loaded anew, or is a second counter's.
            (walk("add.u32 %r8, %r4, %r9;"), [0, 2]),
            (walk("ld.global.u32 %r7, [%rd0]; add.s64 %rd0, %rd0, 4; add.u32 %r8, %r4, %r7;"), [1, 2]),
            (walk("add.u32 %r9, %r9, 1; shl.b32 %r7, %r9, 2; add.u32 %r8, %r4, %r7;"), [1, 2]),
            // A register that is not always written.
            (
                "setp.ne.s32 %p0, %r0, 5; @%p0 bra ON; mov.u32 %r7, %r10; ON: add.u32 %r8, %r7, %r6;\n\
                 st.shared.u32 [%r5], 1; ld.shared.u32 %r11, [%r8];"
                    .into(),
                [1, 1],
            ),
            // Pointers that lose their lowest bits, are put together from halves, kept or loaded; an index that is extended.
            (
                "shr.u64 %rd2, %rd0, 4; shl.b64 %rd2, %rd2, 4; st.global.u32 [%rd2], 1; ld.global.u32 %r8, [%rd0];".into(),
                [1, 1],
            ),
            (
                "and.b64 %rd2, %rd0, -16; st.global.u32 [%rd2], 1; ld.global.u32 %r8, [%rd1];".into(),
                [0, 0],
            ),
            (
                format!("cvt.u32.u64 %r7, %rd0; shr.u64 %rd2, %rd0, 32; cvt.u32.u64 %r8, %rd2; {halves}"),
                [1, 1],
            ),
            (format!("ld.global.v2.u32 {{%r7, %r8}}, [%rd0]; {halves}"), [2, 2]),
            (
                "cvt.u64.u32 %rd2, %r4; shl.b64 %rd4, %rd2, 32; add.s64 %rd5, %rd4, 4294967296; shr.s64 %rd6, %rd5, 30;\n\
                 add.s64 %rd3, %rd0, %rd6; st.global.u32 [%rd3], 1; ld.global.u32 %r8, [%rd1];"
                    .into(),
                [0, 0],
            ),
            // Sums do not depend on their order; what they come to does.
            ("red.shared.add.u32 [%r6], 1; red.shared.add.u32 [%r6], 2; red.shared.add.u32 [%r5], 2;".into(), [0, 0]),
            ("red.shared.add.u32 [%r6], 1; atom.shared.add.u32 %r8, [%r6], 0;".into(), [1, 1]),
        ];
        let mut wrong = Vec::new();
        for (body, want) in cases {
            let kernel = kernel(&body);
            let got = [[256, 1, 1], [16, 16, 1]].map(|block| cuts(&kernel, Shape { block, lanes: 8 }).count());
            if got != want {
                wrong.push(format!("{body}: {got:?}, not {want:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Straight lines, many ifs, many pointers: what were quadratic would take minutes.
    #[test]
    fn long_kernels_take_no_time() {
        let exchange = "st.shared.u32 [%r5], 1; ld.shared.u32 %r8, [%r5+4]; xor.b32 %r5, %r5, %r8;";
        let branch =
            |i| format!("setp.eq.u32 %p0, %r0, {i}; @%p0 bra L{i}; st.shared.u32 [%r5], 1; L{i}: add.u32 %r5, %r5, 4;");
        let pointer = "ld.global.u64 %rd2, [%rd0]; st.global.u32 [%rd2], 1; add.s64 %rd0, %rd0, 8;";
        for body in [exchange.repeat(30_000), (0..25_000).map(branch).collect(), pointer.repeat(30_000)] {
            let kernel = kernel(&body);
            assert!(cuts(&kernel, Shape { block: [256, 1, 1], lanes: 8 }).count() > 0);
        }
    }
}
