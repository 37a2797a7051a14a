//! Clusters on machine code and on the interpreter: the same results, and those that the host computes.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hostmem::{Memfd, Protection, Window};
use ptx::launch::{AccessError, Control, Exception, Launch, Step};
use ptx_jit::compiler::Watch;
use ptx_jit::{Batch, Code, Form, Grid, Image};
use support::run;

const BASE: u64 = 0x20_0000_0000;

/// A launch of clusters.
#[derive(Clone, Copy)]
struct Shape {
    cluster: [u32; 3],
    clusters: [u32; 3],
    block: u32,
}

impl Shape {
    fn launch(&self) -> Arc<Launch> {
        Arc::new(Launch {
            grid_id: 1,
            cluster: self.cluster,
            ..Launch::new(
                [0, 1, 2].map(|i| self.cluster[i] * self.clusters[i]),
                [self.block, 1, 1],
                BASE.to_le_bytes().to_vec(),
            )
        })
    }

    fn ranks(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Linear index, cluster, place in it and rank of each CTA of the grid.
    fn ctas(&self) -> Vec<(u32, [u32; 3], [u32; 3], u32)> {
        let grid = [0, 1, 2].map(|i| self.cluster[i] * self.clusters[i]);
        let mut all = Vec::new();
        for (z, y) in (0..grid[2]).flat_map(|z| (0..grid[1]).map(move |y| (z, y))) {
            for x in 0..grid[0] {
                let at = [x, y, z];
                let cluster = [0, 1, 2].map(|i| at[i] / self.cluster[i]);
                let inside = [0, 1, 2].map(|i| at[i] % self.cluster[i]);
                let rank = inside[0] + self.cluster[0] * (inside[1] + self.cluster[1] * inside[2]);
                all.push(((z * grid[1] + y) * grid[0] + x, cluster, inside, rank));
            }
        }
        all
    }

    /// The linear index of the CTA with a rank in a cluster.
    fn index(&self, cluster: [u32; 3], rank: u32) -> u32 {
        self.ctas().into_iter().find(|cta| cta.1 == cluster && cta.3 == rank).unwrap().0
    }
}

/// Of all kinds: several dimensions, one CTA alone, warps that are not whole.
const SHAPES: [Shape; 6] = [
    Shape { cluster: [2, 1, 1], clusters: [3, 1, 1], block: 64 },
    Shape { cluster: [8, 1, 1], clusters: [1, 2, 1], block: 32 },
    Shape { cluster: [2, 2, 2], clusters: [2, 1, 2], block: 33 },
    Shape { cluster: [1, 1, 1], clusters: [2, 2, 1], block: 96 },
    Shape { cluster: [1, 3, 1], clusters: [2, 2, 1], block: 40 },
    Shape { cluster: [4, 1, 4], clusters: [1, 1, 1], block: 7 },
];

const HEAD: &str = ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 out) {\n\
    .reg .b64 %out, %g, %h, %w; .reg .b32 %t, %n, %rank, %ranks, %cta, %a, %b, %c, %d, %e, %i; .reg .pred %p, %q;\n\
    .shared .align 16 .b32 words[1024]; .shared .align 8 .b64 object;\n\
    ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %rank, %cluster_ctarank;\n\
    mov.u32 %ranks, %cluster_nctarank;\n\
    mov.u32 %a, %nctaid.y; mov.u32 %b, %ctaid.z; mov.u32 %c, %ctaid.y; mad.lo.u32 %a, %b, %a, %c;\n\
    mov.u32 %b, %nctaid.x; mov.u32 %c, %ctaid.x; mad.lo.u32 %cta, %a, %b, %c;\n";
/// Ends the kernel with `%d` of each thread at its place in the output.
const TAIL: &str =
    "mad.lo.u32 %a, %cta, %n, %t; mul.wide.u32 %w, %a, 4; add.u64 %w, %out, %w; st.global.u32 [%w], %d;\nret;\n}\n";
const SYNC: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n";

fn kernel(body: &str) -> Arc<ptx::ir::Kernel> {
    let text = format!("{HEAD}{body}{TAIL}");
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    Arc::new(program.lower(0, &|_| None).unwrap_or_else(|error| panic!("{error}\n{text}")))
}

/// What each thread of each CTA leaves, by linear index of the CTA: the same on both engines, and when they are stopped often.
fn results(body: &str, shape: Shape) -> Vec<Vec<u32>> {
    let (kernel, launch) = (kernel(body), shape.launch());
    let memory = vec![0; 64 << 10];
    for control in [Control::RUN, Control::PREEMPT] {
        let machine = &mut |k: &_, l: &_, base, bytes: &mut Vec<u8>| run(k, l, base, bytes, control);
        let outcome = testgen::compare(&kernel, &launch, BASE, &memory, machine, &mut testgen::interpret);
        assert_eq!(outcome, Ok(()), "{:?} x {:?}\n{body}", shape.cluster, shape.clusters);
    }
    let mut memory = memory;
    testgen::interpret(&kernel, &launch, BASE, &mut memory).unwrap();
    let words: Vec<u32> = memory.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    words.chunks(shape.block as usize).take(shape.ctas().len()).map(<[u32]>::to_vec).collect()
}

fn check(body: &str, want: impl Fn(Shape, (u32, [u32; 3], [u32; 3], u32), u32) -> u32) {
    for shape in SHAPES {
        let got = results(body, shape);
        for cta in shape.ctas() {
            for thread in 0..shape.block {
                let (got, want) = (got[cta.0 as usize][thread as usize], want(shape, cta, thread));
                assert_eq!(got, want, "thread {thread} of {cta:?}, {:?} x {:?}\n{body}", shape.cluster, shape.clusters);
            }
        }
    }
}

/// Where warps lie below each other, too.
#[test]
fn the_index_of_a_cluster_stays_that_of_all_its_warps() {
    let body = "mov.u32 %a, %tid.y; mad.lo.u32 %t, %a, %n, %t; mov.u32 %n, 128;\n\
                mov.u32 %d, %clusterid.x; mov.u32 %e, %ctaid.x; mad.lo.u32 %d, %d, 100, %e;";
    let (kernel, memory) = (kernel(body), vec![0; 64 << 10]);
    let mut launch = Arc::into_inner(Shape { cluster: [2, 1, 1], clusters: [3, 1, 1], block: 32 }.launch()).unwrap();
    launch.block = [32, 4, 1];
    let machine = &mut |k: &_, l: &_, base, bytes: &mut Vec<u8>| run(k, l, base, bytes, Control::RUN);
    let outcome = testgen::compare(&kernel, &Arc::new(launch), BASE, &memory, machine, &mut testgen::interpret);
    assert_eq!(outcome, Ok(()));
}

#[test]
fn registers_say_where_in_its_cluster_a_cta_is() {
    let packed = |name: &str| {
        format!(
            "mov.u32 %a, %{name}.x; mov.u32 %b, %{name}.y; mov.u32 %c, %{name}.z;\n\
             shl.b32 %b, %b, 8; shl.b32 %c, %c, 16; or.b32 %d, %a, %b; or.b32 %d, %d, %c;\n"
        )
    };
    let pack = |[x, y, z]: [u32; 3]| x | y << 8 | z << 16;
    check(&packed("clusterid"), |_, (_, cluster, _, _), _| pack(cluster));
    check(&packed("nclusterid"), |shape, _, _| pack(shape.clusters));
    check(&packed("cluster_ctaid"), |_, (_, _, inside, _), _| pack(inside));
    check(&packed("cluster_nctaid"), |shape, _, _| pack(shape.cluster));
    check("shl.b32 %d, %rank, 8; or.b32 %d, %d, %ranks;\n", |shape, cta, _| cta.3 << 8 | shape.ranks());
    check(
        "mov.pred %p, %is_explicit_cluster; selp.u32 %d, 5, 6, %p;\n",
        |shape, _, _| {
            if shape.ranks() > 1 { 5 } else { 6 }
        },
    );
}

/// Thread t of each CTA leaves 1000 cta + t; who reads takes another thread's of the next CTA.
const LEAVE: &str = "mad.lo.u32 %a, %cta, 1000, %t; shl.b32 %b, %t, 2; mov.u32 %c, words; add.u32 %c, %c, %b;\n\
    st.shared.u32 [%c], %a;\nbarrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n\
    add.u32 %e, %rank, 1; rem.u32 %e, %e, %ranks;\n";

fn left(shape: Shape, cta: (u32, [u32; 3], [u32; 3], u32), thread: u32) -> u32 {
    shape.index(cta.1, (cta.3 + 1) % shape.ranks()) * 1000 + thread
}

#[test]
fn shared_memory_of_other_ctas_is_read() {
    // By an address of the space, a variable's name in it, and a generic one of either kind.
    check(&format!("{LEAVE} mapa.shared::cluster.u32 %c, %c, %e; ld.shared::cluster.u32 %d, [%c];\n{SYNC}"), left);
    check(
        &format!(
            "{LEAVE} mapa.shared::cluster.u32 %c, words+4, %e; add.u32 %c, %c, %b; ld.shared::cluster.u32 %d, [%c+-4];\n{SYNC}"
        ),
        left,
    );
    check(
        &format!("{LEAVE} cvt.u64.u32 %g, %c; cvta.shared.u64 %g, %g; mapa.u64 %h, %g, %e; ld.u32 %d, [%h];\n{SYNC}"),
        left,
    );
    check(
        &format!(
            "{LEAVE} mapa.shared::cluster.u32 %c, %c, %e; cvt.u64.u32 %g, %c; cvta.shared::cluster.u64 %g, %g; ld.u32 %d, [%g];\n{SYNC}"
        ),
        left,
    );
    // One's own, by an address that is not mapped, and by one that is.
    check(&format!("{LEAVE} ld.shared::cluster.u32 %d, [%c];\n{SYNC}"), |_, cta, thread| cta.0 * 1000 + thread);
    check(
        &format!("{LEAVE} mapa.shared::cluster.u32 %c, %c, %rank; ld.shared::cluster.u32 %d, [%c];\n{SYNC}"),
        |_, cta, t| cta.0 * 1000 + t,
    );
}

#[test]
fn addresses_tell_whose_they_are() {
    check(
        &format!("{LEAVE} mapa.shared::cluster.u32 %c, %c, %e; getctarank.shared::cluster.u32 %d, %c;\n"),
        |s, cta, _| (cta.3 + 1) % s.ranks(),
    );
    let generic = "cvt.u64.u32 %g, %c; cvta.shared.u64 %g, %g;";
    check(&format!("{LEAVE} {generic} mapa.u64 %g, %g, %e; getctarank.u64 %d, %g;\n"), |s, cta, _| {
        (cta.3 + 1) % s.ranks()
    });
    check(&format!("{LEAVE} {generic} getctarank.u64 %d, %g;\n"), |_, cta, _| cta.3);
    check(&format!("{LEAVE} getctarank.shared::cluster.u32 %d, words;\n"), |_, cta, _| cta.3);
    // Own, another's, global: in a window of the cluster; in the CTA's own; in global memory.
    let all = "isspacep.shared::cluster %p, %h; selp.u32 %a, 1, 0, %p; isspacep.shared %p, %h; selp.u32 %b, 2, 0, %p;\n\
        isspacep.global %p, %h; selp.u32 %c, 4, 0, %p; or.b32 %d, %a, %b; or.b32 %d, %d, %c;\n";
    check(&format!("{LEAVE} {generic} mov.u64 %h, %g; {all}"), |_, _, _| 3);
    check(&format!("{LEAVE} {generic} mapa.u64 %h, %g, %e; {all}"), |_, _, _| 1);
    check(&format!("{LEAVE} mov.u64 %h, %out; {all}"), |_, _, _| 4);
}

#[test]
fn shared_memory_of_other_ctas_is_written_and_counted_in() {
    // Each thread stores to its place in the next CTA, and adds to a word of the first one; all see the sum.
    check(
        &format!(
            "{SYNC} add.u32 %e, %rank, 1; rem.u32 %e, %e, %ranks; shl.b32 %b, %t, 2; mov.u32 %c, words; add.u32 %c, %c, %b;\n\
             mapa.shared::cluster.u32 %c, %c, %e; mad.lo.u32 %a, %cta, 1000, %t; st.shared::cluster.u32 [%c], %a;\n\
             {SYNC} shl.b32 %b, %t, 2; mov.u32 %c, words; add.u32 %c, %c, %b; ld.shared.u32 %d, [%c];\n"
        ),
        |shape, cta, thread| shape.index(cta.1, (cta.3 + shape.ranks() - 1) % shape.ranks()) * 1000 + thread,
    );
    for add in [
        "atom.shared::cluster.add.u32 %a, [%c], %b;",
        "red.shared::cluster.add.u32 [%c], %b;",
        "cvt.u64.u32 %g, %c; cvta.shared.u64 %g, %g; atom.add.u32 %a, [%g], %b;",
    ] {
        check(
            &format!(
                "{SYNC} mapa.shared::cluster.u32 %c, words, 0; mad.lo.u32 %b, %rank, 64, %t; {add}\n\
                 {SYNC} ld.shared::cluster.u32 %d, [%c];\n{SYNC}"
            ),
            |shape, _, _| (0..shape.ranks()).flat_map(|r| (0..shape.block).map(move |t| r * 64 + t)).sum(),
        );
    }
}

/// Many phases: in each, one CTA passes on what it got; threads of a CTA come and go at different times.
#[test]
fn a_barrier_has_many_phases() {
    check(
        &format!(
            "shl.b32 %b, %t, 2; mov.u32 %c, words; add.u32 %c, %c, %b; mul.lo.u32 %d, %cta, 7; add.u32 %d, %d, %t;\n\
             add.u32 %e, %rank, 1; rem.u32 %e, %e, %ranks; mapa.shared::cluster.u32 %e, %c, %e; mov.u32 %i, 0;\n\
             LOOP: st.shared::cluster.u32 [%e], %d;\n{SYNC}ld.shared.u32 %d, [%c];\n\
             and.b32 %a, %t, 3; setp.ne.u32 %p, %a, %i; @%p bra ON; add.u32 %d, %d, 100;\n\
             ON: barrier.cluster.arrive; add.u32 %d, %d, 1; barrier.cluster.wait;\n\
             add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 5; @%p bra LOOP;\n"
        ),
        |shape, cta, thread| {
            let ranks = shape.ranks();
            let mut held: Vec<u32> = (0..ranks).map(|r| shape.index(cta.1, r) * 7 + thread).collect();
            for i in 0..5 {
                held.rotate_right(1);
                held.iter_mut().for_each(|d| *d += 1 + if thread & 3 == i { 100 } else { 0 });
            }
            held[cta.3 as usize]
        },
    );
}

/// Who has ended is not waited for: neither threads, before or after some have arrived, nor whole CTAs.
#[test]
fn the_ended_are_not_waited_for() {
    check(
        &format!(
            "mov.u32 %d, 1; mad.lo.u32 %a, %cta, %n, %t; mul.wide.u32 %w, %a, 4; add.u64 %w, %out, %w; st.global.u32 [%w], %d;\n\
             and.b32 %a, %t, 1; setp.eq.u32 %p, %a, 1; @%p exit;\n{}\
             barrier.cluster.arrive; setp.gt.u32 %p, %t, 3; @%p exit; barrier.cluster.wait;\n\
             setp.gt.u32 %p, %rank, 1; @%p exit;\n\
             barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %d, 2;\n",
            "barrier.cluster.arrive; barrier.cluster.wait;\n"
        ),
        |_, cta, thread| if thread & 1 == 0 && thread <= 3 && cta.3 <= 1 { 2 } else { 1 },
    );
}

/// What lies between arriving and waiting may depend on CTAs that have still to wait.
#[test]
fn who_has_arrived_goes_on() {
    check(
        &format!(
            "mov.u32 %c, words; setp.ne.u32 %q, %t, 0;\n{SYNC}\
             barrier.cluster.arrive;\n\
             @%q bra REST;\n\
             mapa.shared::cluster.u32 %c, words, 0; atom.shared::cluster.add.u32 %a, [%c], 1;\n\
             SPIN: ld.acquire.cluster.shared::cluster.u32 %b, [%c]; setp.lt.u32 %p, %b, %ranks; @%p bra SPIN;\n\
             REST: barrier.cluster.wait; mapa.shared::cluster.u32 %c, words, 0; ld.shared::cluster.u32 %d, [%c];\n{SYNC}"
        ),
        |shape, _, _| shape.ranks(),
    );
}

/// Other CTAs arrive at an mbarrier object of the first, which waits for them; and copies complete at another's.
#[test]
fn objects_of_other_ctas_are_arrived_at() {
    check(
        &format!(
            "setp.ne.u32 %q, %t, 0; @!%q mbarrier.init.shared.b64 [object], %ranks; fence.mbarrier_init.release.cluster;\n{SYNC}\
             mapa.shared::cluster.u32 %c, object, 0; @!%q mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%c];\n\
             mov.u32 %d, 7; setp.ne.u32 %q, %rank, 0; @%q bra DONE;\n\
             SPIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [object], 0; @!%p bra SPIN;\n\
             mov.u32 %d, 8;\n\
             DONE: {SYNC}"
        ),
        |_, cta, _| if cta.3 == 0 { 8 } else { 7 },
    );
    check(
        &format!(
            "mad.lo.u32 %a, %cta, 1000, %t; shl.b32 %b, %t, 2; mov.u32 %c, words; add.u32 %c, %c, %b; st.shared.u32 [%c], %a;\n\
             shl.b32 %i, %n, 2; add.u32 %i, %i, 15; and.b32 %i, %i, -16; setp.ne.u32 %q, %t, 0;\n\
             @!%q mbarrier.init.shared.b64 [object], 1;\n\
             @!%q mbarrier.arrive.expect_tx.shared.b64 _, [object], %i;\n{SYNC}\
             add.u32 %e, %rank, 1; rem.u32 %e, %e, %ranks; mapa.shared::cluster.u32 %a, words+2048, %e;\n\
             mapa.shared::cluster.u32 %b, object, %e;\n\
             @!%q cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%a], [words], %i, [%b];\n\
             SPIN: mbarrier.try_wait.parity.shared::cta.b64 %p, [object], 0; @!%p bra SPIN;\n\
             ld.shared.u32 %d, [%c+2048];\n{SYNC}"
        ),
        |shape, cta, thread| shape.index(cta.1, (cta.3 + shape.ranks() - 1) % shape.ranks()) * 1000 + thread,
    );
}

/// Beyond another CTA's memory, of a rank that there is not, and of a CTA that has ended.
#[test]
fn what_is_not_there_is_a_fault() {
    let shape = Shape { cluster: [2, 1, 1], clusters: [1, 1, 1], block: 32 };
    for access in [
        "mapa.shared::cluster.u32 %c, words, 1; ld.shared::cluster.u32 %d, [%c+65536];",
        "mapa.shared::cluster.u32 %c, words, 2; st.shared::cluster.u32 [%c], %t;",
        "mapa.shared::cluster.u32 %c, words, 17; ld.shared::cluster.u32 %d, [%c];",
        "mapa.shared::cluster.u32 %c, words, 200; atom.shared::cluster.add.u32 %d, [%c], %t;",
        "setp.eq.u32 %p, %rank, 1; @%p exit; barrier.cluster.arrive; barrier.cluster.wait;\n\
         mapa.shared::cluster.u32 %c, words, 1; ld.shared::cluster.u32 %d, [%c];",
    ] {
        let (kernel, launch) = (kernel(&format!("{SYNC}{access}\n")), shape.launch());
        let mut memory = vec![0; 64 << 10];
        let interpreted = testgen::interpret(&kernel, &launch, BASE, &mut memory.clone()).unwrap_err();
        let compiled = run(&kernel, &launch, BASE, &mut memory, Control::RUN).unwrap_err();
        assert_eq!(interpreted, compiled, "{access}");
        assert!(matches!(compiled, Exception::Access { error: AccessError::Shared, .. }), "{compiled:?}: {access}");
    }
}

/// The first CTA looks seldom for what the second one gives it after a while, and would fill every slice.
#[test]
fn slices_go_round() {
    /// Trips of a slice, of the first CTA's between two looks, and of the second one's in all.
    const TRIPS: [u64; 3] = [10_000, 20_000, 100_000];
    let [slice, seldom, all] = TRIPS;
    let count = |label: &str, trips: u64| {
        format!(
            "mov.u32 %i, 0; {label}: ld.global.u32 %a, [%w]; add.u32 %a, %a, 1; st.global.u32 [%w], %a;\n\
             add.u32 %i, %i, 1; setp.lt.u32 %p, %i, {trips}; @%p bra {label};\n"
        )
    };
    let body = format!(
        "mul.wide.u32 %w, %rank, 4; add.u64 %w, %out, %w; add.u64 %w, %w, 1024; mapa.shared::cluster.u32 %c, words, 0;\n\
         setp.ne.u32 %q, %rank, 0; @%q bra GIVE;\n\
         LOOK: {} ld.volatile.shared.u32 %d, [words]; setp.eq.u32 %p, %d, 0; @%p bra LOOK;\nbra DONE;\n\
         GIVE: {} mov.u32 %d, 1; st.shared::cluster.u32 [%c], %d;\nDONE: {SYNC}",
        count("L0", seldom),
        count("L1", all)
    );
    let shape = Shape { cluster: [2, 1, 1], clusters: [1, 1, 1], block: 1 };
    let (kernel, launch) = (kernel(&body), shape.launch());
    let file = Memfd::create("slices", 64 << 10).unwrap();
    let memory = file.map().unwrap();
    let window = Window::reserve(1 << 20).unwrap();
    window.map(0, &file, 0, 64 << 10, Protection::ReadWrite).unwrap();
    let image = Image::compile_in(kernel, launch.block, Form::default(), &Watch::unbounded()).unwrap();
    let control = Arc::new(AtomicU32::new(Control::RUN));
    let grid = Grid {
        code: Code::install(Image::from_bytes(&image.to_bytes()).unwrap()).unwrap(),
        launch: (*launch).clone(),
        window: Arc::new(window),
        window_lo: BASE,
        control: Arc::clone(&control),
        checker: None,
        launcher: None,
    };
    let mut batch = Batch::new(Arc::new(grid), 0..1);
    let over = AtomicBool::new(false);
    let step = std::thread::scope(|scope| {
        scope.spawn(|| {
            let trips = || {
                let mut words = [0; 8];
                memory.read(1024, &mut words);
                words.chunks(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap()))).sum::<u64>()
            };
            let mut begin = trips();
            while !over.load(Ordering::Acquire) {
                if control.load(Ordering::Acquire) == Control::RUN && trips() >= begin + slice {
                    begin = trips();
                    control.store(Control::PREEMPT, Ordering::Release);
                }
                std::thread::yield_now();
            }
        });
        let step = (0..1000).map(|_| batch.resume()).find(|step| {
            control.store(Control::RUN, Ordering::Release);
            *step != Step::Preempted
        });
        over.store(true, Ordering::Release);
        step
    });
    assert_eq!(step, Some(Step::Done), "the second CTA has had no whole slice");
}

/// Thread 0 makes `object` ready for one phase of so many bytes, and everybody knows.
fn expecting(bytes: u32) -> String {
    format!(
        "setp.eq.u32 %p, %t, 0; mov.u32 %e, object;\n@%p mbarrier.init.shared.b64 [%e], 1;\n\
         @%p mbarrier.arrive.expect_tx.shared.b64 %w, [%e], {bytes};\nfence.mbarrier_init.release.cluster;\n{SYNC}"
    )
}
const AWAIT: &str = "AWAIT: mbarrier.try_wait.parity.shared.b64 %q, [%e], 0; @!%q bra AWAIT;\n";

#[test]
fn one_copy_goes_to_all_ctas() {
    // All threads write the same source, of 16 words.
    let source = "add.u64 %g, %out, 0x8000; and.b32 %a, %t, 15; mul.lo.u32 %b, %a, 7; add.u32 %b, %b, 1;\n\
         mul.wide.u32 %h, %a, 4; add.u64 %h, %g, %h; st.global.u32 [%h], %b;\nbar.sync 0;\n";
    let copies = [
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%d], [%g], 64, [%e], %m;",
            "",
        ),
        (
            "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%d], [%h, {0}], [%e], %m;",
            // The map: its magic number, the base, tiled and of one dimension, words; 16 of them, in boxes of 16.
            "add.u64 %h, %g, 0x1000;\n",
        ),
    ];
    let map = texture::TensorMap {
        base: BASE + 0x8000,
        rank: 1,
        element: texture::TensorElement::U32,
        sizes: [16, 1, 1, 1, 1],
        strides: [0; 4],
        steps: [1; 5],
        swizzle: texture::Swizzle::None,
        nan_fill: false,
        region: texture::Region::Tiled([16, 1, 1, 1, 1]),
    };
    let words: Vec<u64> = map.encode().chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
    for (copy, before) in copies {
        let mut map = before.to_owned();
        if !before.is_empty() {
            for (at, word) in words.iter().enumerate() {
                writeln!(map, "mov.u64 %w, {word}; st.global.u64 [%h+{}], %w;", 8 * at).unwrap();
            }
        }
        // Only the first CTA copies, to all the others.
        let body = format!(
            "{source}{map}.reg .b16 %m; mov.u32 %a, 1; shl.b32 %a, %a, %ranks; sub.u32 %a, %a, 1; cvt.u16.u32 %m, %a;\n\
             .shared .align 128 .b32 tile[32]; mov.u32 %d, tile;\n{}\
             setp.eq.and.u32 %q, %rank, 0, %p;\n@%q {copy}\n{AWAIT}\
             and.b32 %a, %t, 15; shl.b32 %a, %a, 2; add.u32 %a, %a, %d; ld.shared.u32 %d, [%a];\n\
             mad.lo.u32 %d, %rank, 1000, %d;\n{SYNC}",
            expecting(64)
        );
        check(&body, |_, cta, thread| 7 * (thread % 16) + 1 + 1000 * cta.3);
    }
}

#[test]
fn stores_tell_the_object_of_another_cta() {
    // To the CTA behind: its own rank, and what it adds to that of the one it comes from.
    let next = "add.u32 %a, %rank, 1; rem.u32 %a, %a, %ranks; mov.u32 %b, words; mapa.shared::cluster.u32 %b, %b, %a;\n\
         mapa.shared::cluster.u32 %c, %e, %a; add.u32 %i, %rank, 50;\n";
    let body = format!(
        "mov.u32 %a, words; st.shared.v4.u32 [%a], {{%rank, %rank, %rank, %rank}};\n{}{next}\
         @%p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%b], {{%i, %rank}}, [%c];\n\
         @%p red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%b+8], %i, [%c];\n\
         {AWAIT}and.b32 %a, %t, 3; shl.b32 %a, %a, 2; mov.u32 %b, words; add.u32 %a, %a, %b; ld.shared.u32 %d, [%a];\n{SYNC}",
        expecting(12)
    );
    check(&body, |shape, cta, thread| {
        let before = (cta.3 + shape.ranks() - 1) % shape.ranks();
        [before + 50, before, cta.3 + before + 50, cta.3][thread as usize % 4]
    });
}

#[test]
fn copies_combine_with_what_another_cta_has() {
    // Words 0 to 3 of the next CTA, and 4 in global memory.
    let body = format!(
        "mov.u32 %a, words; add.u32 %b, %rank, 7; st.shared.v4.u32 [%a], {{%rank, %rank, %rank, %rank}};\n\
         st.shared.v4.u32 [%a+16], {{%b, %b, %b, %b}};\n{}\
         add.u32 %a, %rank, 1; rem.u32 %a, %a, %ranks; mov.u32 %i, words; mapa.shared::cluster.u32 %b, %i, %a;\n\
         mapa.shared::cluster.u32 %c, %e, %a; add.u32 %i, %i, 16;\n\
         @%p cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%b], [%i], 16, [%c];\n\
         {AWAIT}and.b32 %a, %t, 7; shl.b32 %a, %a, 2; mov.u32 %b, words; add.u32 %a, %a, %b; ld.shared.u32 %d, [%a];\n{SYNC}",
        expecting(16)
    );
    check(&body, |shape, cta, thread| {
        let before = (cta.3 + shape.ranks() - 1) % shape.ranks();
        if thread % 8 < 4 { cta.3 + before + 7 } else { cta.3 + 7 }
    });
}
