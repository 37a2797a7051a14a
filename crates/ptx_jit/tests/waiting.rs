//! Threads that wait for others, by every means there is: between lanes, warps and CTAs, on one worker, in both engines.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use hostmem::{Memfd, Protection, Window};
use ptx::launch::{Launch, Step};
use ptx_jit::{Batch, Code, EngineKind, Grid};

const LO: u64 = 0x7_0000_0000;
const BYTES: u64 = 64 << 10;
/// Turns of a CTA after which it counts as endless.
const MAX_RESUMES: usize = 2_000;

/// Runs CTAs in turn, as one worker does that begins a new one when another waits. Gives the first words of memory, `%rd0`.
fn run(engine: EngineKind, body: &str, block: u32, ctas: u32) -> Vec<u32> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
         .reg .b64 %rd<8>; .reg .b32 %r<16>; .reg .pred %p<8>; .shared .align 8 .b8 s[64];\n\
         ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x;\n{body}\nret;\n}}\n"
    );
    let program = ptx::Program::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{body}: {e}"));
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|e| panic!("{body}: {e}")));
    let file = Memfd::create("waiting", BYTES).unwrap();
    let memory = file.map().unwrap();
    let window = Window::reserve(BYTES).unwrap();
    window.map(0, &file, 0, BYTES, Protection::ReadWrite).unwrap();
    let code = Code::compile(kernel, [block, 1, 1], engine).unwrap();
    assert_eq!(code.is_machine_code(), engine == EngineKind::Jit, "{body}");
    let grid = Arc::new(Grid {
        code,
        launch: Launch::new([ctas, 1, 1], [block, 1, 1], LO.to_le_bytes().to_vec()),
        window: Arc::new(window),
        window_lo: LO,
        control: Arc::new(AtomicU32::new(0)),
        checker: None,
        launcher: None,
    });
    let mut waiting: Vec<Batch> = (0..u64::from(ctas)).map(|i| Batch::new(Arc::clone(&grid), i..i + 1)).collect();
    for _ in 0..MAX_RESUMES {
        waiting.retain_mut(|batch| match batch.resume() {
            Step::Preempted => true,
            Step::Done => false,
            Step::Exception(exception) => panic!("{engine:?}: {exception:?}: {body}"),
        });
        if waiting.is_empty() {
            let mut words = vec![0; 256];
            memory.read(0, &mut words);
            return words.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
        }
    }
    panic!("{engine:?}: {} of {ctas} CTAs do not end: {body}", waiting.len());
}

/// Ways to look at the word `[FLAG]` until it is not zero, in a loop with label `L`.
fn looks() -> Vec<String> {
    let atomic = |op: &str| format!("atom.{op} %r9, [FLAG], OPERAND; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;");
    let mut list: Vec<String> = [
        ("add.u32", "0"),
        ("or.b32", "0"),
        ("xor.b32", "0"),
        ("and.b32", "-1"),
        ("max.u32", "0"),
        ("max.s32", "0"),
        ("min.u32", "-1"),
        ("acquire.gpu.add.u32", "0"),
        ("acq_rel.gpu.or.b32", "0"),
    ]
    .map(|(op, operand)| atomic(op).replace("OPERAND", operand))
    .to_vec();
    list.extend(
        [
            "atom.cas.b32 %r9, [FLAG], 77, 78; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;",
            "atom.exch.b32 %r9, [FLAG], 0; setp.eq.u32 %p6, %r9, 0; @%p6 bra L; atom.exch.b32 %r9, [FLAG], 1;",
            "ld.volatile.u32 %r9, [FLAG]; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;",
            "ld.acquire.gpu.u32 %r9, [FLAG]; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;",
            "ld.relaxed.gpu.u32 %r9, [FLAG]; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;",
            "ld.u32 %r9, [FLAG]; membar.gl; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;",
            "membar.cta; ld.u32 %r9, [FLAG]; setp.ne.u32 %p6, %r9, 0; @!%p6 bra L;",
            "nanosleep.u32 20; ld.u32 %r9, [FLAG]; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;",
        ]
        .map(str::to_owned),
    );
    list.into_iter().map(|look| format!("L: {look}\n")).collect()
}

/// A way to look, for a flag of its own.
fn look(way: &str, label: &str, flag: &str) -> String {
    way.replace("L:", &format!("{label}:")).replace("bra L;", &format!("bra {label};")).replace("FLAG", flag)
}

/// Runs it in both engines.
fn both(body: &str, block: u32, ctas: u32) -> Vec<u32> {
    let [a, b] = [EngineKind::Interpreter, EngineKind::Jit].map(|engine| run(engine, body, block, ctas));
    assert_eq!(a, b, "{body}");
    a
}

#[test]
fn lanes_wait_for_lanes() {
    // Lane 0 for lane 1, and that for lane 2, which comes last in the text and stands in line behind two loops.
    for way in looks() {
        let body = format!(
            "setp.eq.u32 %p0, %r0, 0; @%p0 bra FIRST; setp.eq.u32 %p0, %r0, 1; @%p0 bra SECOND;\n\
             setp.eq.u32 %p0, %r0, 2; @%p0 bra THIRD; bra END;\n\
             FIRST: {} st.global.u32 [%rd0+8], 11; bra END;\n\
             SECOND: {} membar.gl; atom.exch.b32 %r9, [%rd0], 1; bra END;\n\
             THIRD: st.global.u32 [%rd0+12], 12; membar.gl; st.volatile.global.u32 [%rd0+4], 1;\n\
             END: atom.add.u32 %r9, [%rd0+16], 1;",
            look(&way, "A", "%rd0"),
            look(&way, "B", "%rd0+4"),
        );
        assert_eq!(both(&body, 32, 1)[..5], [1, 1, 11, 12, 32], "{way}");
    }
}

#[test]
fn warps_wait_for_warps() {
    // The first for the last, and the others for the first, by flags in shared and in global memory.
    for way in looks() {
        let body = format!(
            "mov.u32 %r3, s; cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd1, %rd1;\n\
             setp.ge.u32 %p0, %r0, 96; @%p0 bra LAST; setp.ge.u32 %p0, %r0, 32; @%p0 bra MIDDLE;\n\
             {} setp.ne.u32 %p0, %r0, 31; @%p0 bra END; st.volatile.global.u32 [%rd0], 1; bra END;\n\
             MIDDLE: {} bra END;\n\
             LAST: setp.eq.u32 %p0, %r0, 100; @%p0 st.volatile.shared.u32 [s], 1;\n\
             END: atom.add.u32 %r9, [%rd0+16], 1;",
            look(&way, "A", "%rd1"),
            look(&way, "B", "%rd0"),
        );
        assert_eq!(both(&body, 128, 1)[4], 128, "{way}");
    }
}

#[test]
fn ctas_wait_for_ctas() {
    // Each for the one that begins after it, more than any number of workers.
    for way in looks() {
        let body = format!(
            "mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1; add.u32 %r4, %r1, 1; setp.eq.u32 %p0, %r4, %r2;\n\
             @%p0 bra GO;\n{}\
             GO: bar.sync 0; setp.ne.u32 %p0, %r0, 0; @%p0 bra END; setp.eq.u32 %p0, %r1, 0; @%p0 bra END;\n\
             membar.gl; st.volatile.global.u32 [%rd1+60], 1;\n\
             END: atom.add.u32 %r9, [%rd0], 1;",
            look(&way, "A", "%rd1+64"),
        );
        assert_eq!(both(&body, 32, 4)[0], 32 * 4, "{way}");
    }
}

#[test]
fn locks_are_passed_on() {
    let critical =
        "ld.volatile.global.u32 %r5, [%rd0+8]; add.u32 %r5, %r5, 1; st.volatile.global.u32 [%rd0+8], %r5; membar.gl;";
    let cases = [
        // Taken and given back inside the loop, by the lane that got it.
        format!(
            "mov.u32 %r6, 0;\nL: atom.global.cas.b32 %r4, [%rd0], 0, 1; setp.ne.u32 %p0, %r4, 0; @%p0 bra NEXT;\n\
             {critical} mov.u32 %r6, 1; atom.global.exch.b32 %r4, [%rd0], 0;\nNEXT: setp.eq.u32 %p0, %r6, 0; @%p0 bra L;"
        ),
        // Taken by `or`, given back by a store, behind the loop.
        format!(
            "L: atom.global.or.b32 %r4, [%rd0], 1; setp.ne.u32 %p0, %r4, 0; @%p0 bra L;\n{critical}\n\
             st.volatile.global.u32 [%rd0], 0;"
        ),
        // A number for each, in the order of which they go.
        format!(
            "atom.global.add.u32 %r4, [%rd0], 1;\nL: ld.volatile.global.u32 %r6, [%rd0+4]; setp.ne.u32 %p0, %r6, %r4;\n\
             @%p0 bra L;\n{critical} add.u32 %r4, %r4, 1; st.volatile.global.u32 [%rd0+4], %r4;"
        ),
        // The number called by an atomic.
        format!(
            "atom.global.add.u32 %r4, [%rd0], 1;\nL: atom.global.add.u32 %r6, [%rd0+4], 0; setp.ne.u32 %p0, %r6, %r4;\n\
             @%p0 bra L;\n{critical} red.global.add.u32 [%rd0+4], 1;"
        ),
    ];
    for body in cases {
        assert_eq!(both(&body, 96, 3)[2], 96 * 3, "{body}");
    }
}

#[test]
fn a_grid_passes_values_through_a_ring() {
    // The first half of the CTAs take what the others make, one word at a time.
    let body = "setp.ne.u32 %p0, %r0, 0; @%p0 bra END; shr.u32 %r3, %r2, 1; mov.u32 %r4, 0; mov.u32 %r7, 0;\n\
                setp.ge.u32 %p1, %r1, %r3; @%p1 bra MAKER;\n\
                mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd0, %rd1;\n\
                TAKE: atom.global.exch.b32 %r5, [%rd1], 0; setp.eq.u32 %p0, %r5, 0; @%p0 bra TAKE;\n\
                add.u32 %r7, %r7, %r5; add.u32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, 20; @%p0 bra TAKE;\n\
                st.global.u32 [%rd1+64], %r7; bra END;\n\
                MAKER: sub.u32 %r6, %r1, %r3; mul.wide.u32 %rd1, %r6, 4; add.s64 %rd1, %rd0, %rd1;\n\
                MAKE: add.u32 %r8, %r4, 1;\n\
                PUT: atom.global.cas.b32 %r5, [%rd1], 0, %r8; setp.ne.u32 %p0, %r5, 0; @%p0 bra PUT;\n\
                add.u32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, 20; @%p0 bra MAKE;\nEND:";
    assert_eq!(both(body, 32, 16)[16..24], [210; 8]);
}

#[test]
fn waiting_by_a_word_of_ones_own() {
    // As compilers write it that keep every variable in memory: what the atomic gave decides what is stored, and that
    // whether the loop goes on.
    for (space, word) in [("shared", "s+8"), ("global", "%rd0+64")] {
        let body = format!(
            "setp.ne.u32 %p0, %r0, 0; @%p0 bra OTHERS;\n\
             L: atom.global.add.u32 %r9, [%rd0], 0; setp.eq.u32 %p1, %r9, 0; @%p1 bra ON; st.{space}.u32 [{word}], 1;\n\
             ON: ld.{space}.u32 %r8, [{word}]; setp.eq.u32 %p2, %r8, 0; @%p2 bra L; st.global.u32 [%rd0+4], 11; bra END;\n\
             OTHERS: atom.global.exch.b32 %r9, [%rd0], 1; END:"
        );
        assert_eq!(both(&body, 32, 1)[..2], [1, 11], "{space}");
    }
}

#[test]
fn waiting_by_a_plain_load_beside_an_operation_that_lanes_meet_at() {
    for meeting in
        ["vote.sync.any.pred %p3, %p1, 1;", "redux.sync.add.u32 %r8, %r9, 1;", "shfl.sync.idx.b32 %r8, %r9, 0, 31, 1;"]
    {
        let body = format!(
            "setp.ne.u32 %p0, %r0, 0; @%p0 bra OTHERS;\n\
             L: ld.global.u32 %r9, [%rd0]; setp.eq.u32 %p1, %r9, 0; {meeting} @%p1 bra L; st.global.u32 [%rd0+4], 11; bra END;\n\
             OTHERS: atom.global.exch.b32 %r9, [%rd0], 1; END:"
        );
        assert_eq!(both(&body, 32, 1)[..2], [1, 11], "{meeting}");
    }
}
