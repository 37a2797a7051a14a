//! Faults with their addresses, preemption, resumption on other threads, and CTAs that are dropped half-way.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hostmem::{Mapping, Memfd, PAGE, Protection, Window};
use ptx::ir::{Round, Ty};
use ptx::launch::{Access, AccessError, Control, Exception, Launch, Step};
use ptx_jit::{Batch, Code, EngineKind, Grid};

const LO: u64 = 0x7_0000_0000;
const WINDOW: u64 = 64 * PAGE;
const MAPPED: u64 = 16 * PAGE;

/// A kernel of two parameters, read into `%rd0` and `%rd1`, with the thread's index in `%r0`.
fn lowered(body: &str) -> ptx::ir::Kernel {
    let text = format!(
        ".version 8.0\n.target sm_75\n.address_size 64\n.extern .func (.param .b64 r) malloc(.param .b64 n);\n\
         .visible .entry k(.param .u64 a, .param .u64 b) {{\n\
         .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .b16 %h<4>; .reg .pred %p<4>; .reg .f32 %f<8>;\n\
         ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; mov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"
    );
    ptx::Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None)).unwrap()
}

struct Machine {
    memory: Mapping,
    window: Arc<Window>,
    control: Arc<AtomicU32>,
}

impl Machine {
    /// Pages 0 to 16 are writable, 16 to 20 read-only, the rest is not mapped.
    fn new() -> Machine {
        let file = Memfd::create("engine", MAPPED).unwrap();
        let window = Window::reserve(WINDOW).unwrap();
        window.map(0, &file, 0, MAPPED, Protection::ReadWrite).unwrap();
        window.map(MAPPED, &file, 0, 4 * PAGE, Protection::Read).unwrap();
        Machine { memory: file.map().unwrap(), window: Arc::new(window), control: Arc::default() }
    }

    fn grid(&self, body: &str, block: u32, params: &[u64]) -> Arc<Grid> {
        self.grid_on(EngineKind::Jit, body, block, params)
    }

    fn grid_on(&self, engine: EngineKind, body: &str, block: u32, params: &[u64]) -> Arc<Grid> {
        let code = Code::compile(Arc::new(lowered(body)), [block, 1, 1], engine).unwrap();
        assert_eq!(code.is_machine_code(), engine == EngineKind::Jit, "{body}");
        let mut bytes: Vec<u8> = params.iter().flat_map(|p| p.to_le_bytes()).collect();
        bytes.resize(16, 0);
        Arc::new(Grid {
            code,
            launch: Launch::new([1, 1, 1], [block, 1, 1], bytes),
            window: Arc::clone(&self.window),
            window_lo: LO,
            control: Arc::clone(&self.control),
            checker: None,
            launcher: None,
        })
    }

    /// Word `index` of the memory.
    fn word(&self, index: usize) -> u32 {
        let mut word = [0; 4];
        self.memory.read(4 * index, &mut word);
        u32::from_le_bytes(word)
    }

    fn fault(&self, body: &str, address: u64) -> Step {
        Batch::new(self.grid(body, 64, &[address]), 0..1).resume()
    }
}

fn access(address: u64, access: Access, error: AccessError) -> Step {
    Step::Exception(Exception::Access { address, access, error })
}

/// Loads or stores consecutive words, one per thread.
const LOAD: &str = "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd0, %rd2; ld.global.u32 %r1, [%rd2];";
const STORE: &str = "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r0;";
/// The same, all threads one word.
const LOAD_ONE: &str = "ld.global.u32 %r1, [%rd0];";
const STORE_ONE: &str = "st.global.u32 [%rd0], %r0;";
/// A gather with a stride that no vector access has.
const LOAD_APART: &str = "mul.wide.u32 %rd2, %r0, 100; add.s64 %rd2, %rd0, %rd2; ld.global.u32 %r1, [%rd2];";
/// Some threads of each warp, the first of which is the sixth.
const LOAD_BY_SOME: &str = "and.b32 %r2, %r0, 29; setp.ne.u32 %p0, %r2, 5; @%p0 bra L; mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd0, %rd2; ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd2], %r1; L:";
const ADD: &str = "atom.global.add.u32 %r1, [%rd0], 1;";

#[test]
fn faults_name_the_address() {
    let m = Machine::new();
    let end = LO + MAPPED + 4 * PAGE;
    let cases = [
        (LOAD, end - 40, end, Access::Read, AccessError::Unmapped),
        (LOAD, end - 4, end, Access::Read, AccessError::Unmapped),
        (LOAD, end, end, Access::Read, AccessError::Unmapped),
        (LOAD_ONE, end + 8, end + 8, Access::Read, AccessError::Unmapped),
        (LOAD_BY_SOME, end, end + 20, Access::Read, AccessError::Unmapped),
        (LOAD_BY_SOME, end - 24, end + 4, Access::Read, AccessError::Unmapped),
        (LOAD_APART, end - 300, end, Access::Read, AccessError::Unmapped),
        (STORE, LO + MAPPED - 16, LO + MAPPED, Access::Write, AccessError::ReadOnly),
        (STORE_ONE, LO + MAPPED + 64, LO + MAPPED + 64, Access::Write, AccessError::ReadOnly),
        (ADD, LO + MAPPED + 64, LO + MAPPED + 64, Access::Atomic, AccessError::ReadOnly),
        (ADD, end + 64, end + 64, Access::Atomic, AccessError::Unmapped),
        (LOAD, LO + WINDOW - 64, LO + WINDOW - 64, Access::Read, AccessError::Unmapped),
        (LOAD, LO + WINDOW, LO + WINDOW, Access::Read, AccessError::OutOfWindow),
        (LOAD, LO - 8, LO - 8, Access::Read, AccessError::OutOfWindow),
        (LOAD_ONE, 0, 0, Access::Read, AccessError::OutOfWindow),
        (STORE_ONE, u64::MAX - 3, u64::MAX - 3, Access::Write, AccessError::OutOfWindow),
        (LOAD, LO + 2, LO + 2, Access::Read, AccessError::Misaligned),
        (STORE_ONE, LO + 6, LO + 6, Access::Write, AccessError::Misaligned),
        (ADD, LO + 1, LO + 1, Access::Atomic, AccessError::Misaligned),
    ];
    for (body, at, address, kind, error) in cases {
        assert_eq!(m.fault(body, at), access(address, kind, error), "{body} at {at:#x}");
    }
    assert_eq!(m.fault(STORE, LO), Step::Done, "the machine still works");
    assert_eq!(m.word(63), 63);
}

#[test]
fn shared_and_local_memory_are_bounded() {
    let m = Machine::new();
    for (body, error) in [
        ("mov.u32 %r1, 65536; ld.shared.u32 %r2, [%r1];", AccessError::Shared),
        ("shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, 65536; ld.shared.u32 %r2, [%r1];", AccessError::Shared),
        ("mov.u32 %r1, 65536; st.local.u32 [%r1], %r1;", AccessError::Local),
    ] {
        let Step::Exception(Exception::Access { error: got, address, .. }) = m.fault(body, LO) else {
            panic!("{body} ends well");
        };
        assert_eq!((got, address), (error, 65536), "{body}");
    }
}

/// Counts in memory while another word is zero.
const SPIN: &str = "LOOP: ld.volatile.global.u32 %r1, [%rd0]; add.u32 %r2, %r2, 1; setp.eq.u32 %p0, %r1, 0;\n\
                    @%p0 bra LOOP; st.global.u32 [%rd1], %r1;";
/// Never ends, and looks at nothing.
const ENDLESS: &str = "LOOP: add.u32 %r2, %r2, 1; bra LOOP;";
/// The same, for some threads only.
const ENDLESS_APART: &str = "setp.lt.u32 %p0, %r0, 3; @!%p0 bra END; LOOP: add.u32 %r2, %r2, 1; bra LOOP; END:";

/// The same, in a loop that some threads of each warp begin anew by way of what lies before it.
const ENDLESS_DETOURS: &str = "mov.u32 %r7, %ctaid.y; and.b32 %r1, %r0, 1; mov.u32 %r2, 0; mov.u32 %r3, 0; SIDE: add.u32 %r2, %r2, 1;\n\
    JOIN: add.u32 %r3, %r3, 1; setp.eq.u32 %p1, %r7, 1; @%p1 bra END; xor.b32 %r1, %r1, 1; setp.ne.u32 %p0, %r1, 0;\n\
    @%p0 bra SIDE; bra.uni JOIN; END: setp.eq.u32 %p2, %r2, %r3; @%p2 trap;";

#[test]
fn endless_kernels_are_preempted_and_dropped() {
    let m = Machine::new();
    for body in [ENDLESS, ENDLESS_APART, ENDLESS_DETOURS] {
        m.control.store(Control::PREEMPT, Ordering::Relaxed);
        let mut cta = Batch::new(m.grid(body, 64, &[]), 0..1);
        for _ in 0..10 {
            assert_eq!(cta.resume(), Step::Preempted);
        }
        drop(cta);
        // While it runs.
        m.control.store(Control::RUN, Ordering::Relaxed);
        let mut cta = Batch::new(m.grid(body, 64, &[]), 0..1);
        let control = Arc::clone(&m.control);
        let runner = std::thread::spawn(move || (cta.resume(), cta));
        control.store(Control::PREEMPT, Ordering::Relaxed);
        assert_eq!(runner.join().unwrap().0, Step::Preempted);
        m.control.store(Control::RUN, Ordering::Relaxed);
    }
}

/// A thread may print 64 texts of 4 KiB, a block a thousand times that, without a loop of its own.
#[test]
fn calls_of_the_drivers_functions_give_the_worker_back() {
    let m = Machine::new();
    m.control.store(Control::PREEMPT, Ordering::Relaxed);
    let call = "{ .param .b64 n; .param .b64 r; st.param.b64 [n], 8; call (r), malloc, (n); ld.param.b64 %rd2, [r]; }";
    let mut cta = Batch::new(m.grid(call, 64, &[]), 0..1);
    let given_back = (0..1000).map(|_| cta.resume()).take_while(|step| *step == Step::Preempted).count();
    assert!((64..1000).contains(&given_back), "{given_back}");
}

#[test]
fn spinning_threads_give_the_worker_back() {
    let m = Machine::new();
    let mut cta = Batch::new(m.grid(SPIN, 64, &[LO, LO + 8]), 0..1);
    for _ in 0..4 {
        // A spin gives way by itself, and can go on on any thread.
        let (step, back) = std::thread::spawn(move || (cta.resume(), cta)).join().unwrap();
        assert_eq!(step, Step::Preempted);
        cta = back;
    }
    m.memory.write(0, &7_u32.to_le_bytes());
    let last = (0..100).map(|_| cta.resume()).find(|s| *s != Step::Preempted);
    assert_eq!(last, Some(Step::Done));
    let mut word = [0; 4];
    m.memory.read(8, &mut word);
    assert_eq!(u32::from_le_bytes(word), 7);
}

#[test]
fn threads_of_a_warp_pass_a_lock_on() {
    let m = Machine::new();
    let body = "LOOP: atom.global.cas.b32 %r1, [%rd0], 0, 1; setp.ne.u32 %p0, %r1, 0; @%p0 bra LOOP;\n\
                ld.volatile.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%rd1], %r2;\n\
                membar.gl; atom.global.exch.b32 %r1, [%rd0], 0;";
    let mut cta = Batch::new(m.grid(body, 96, &[LO, LO + 8]), 0..1);
    let last = (0..10_000).map(|_| cta.resume()).find(|s| *s != Step::Preempted);
    assert_eq!(last, Some(Step::Done));
    let mut word = [0; 4];
    m.memory.read(8, &mut word);
    assert_eq!(u32::from_le_bytes(word), 96);
}

#[test]
fn an_index_that_wraps_within_a_chunk_is_exact() {
    let m = Machine::new();
    for i in 0..64_u32 {
        m.memory.write(4 * i as usize, &(i + 100).to_le_bytes());
    }
    // Thread 0 has index 2^32 - 1 and does not load.
    let body = "sub.u32 %r1, %r0, 1; setp.eq.u32 %p0, %r0, 0; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd0, %rd2;\n\
                @%p0 bra END; ld.global.u32 %r2, [%rd2];\n\
                mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd1, %rd3; st.global.u32 [%rd3], %r2; END:";
    let mut cta = Batch::new(m.grid(body, 64, &[LO, LO + PAGE]), 0..1);
    assert_eq!(cta.resume(), Step::Done);
    for i in 1..64_u32 {
        let mut word = [0; 4];
        m.memory.read(PAGE as usize + 4 * i as usize, &mut word);
        assert_eq!(u32::from_le_bytes(word), i + 99);
    }
}

#[test]
fn bounds_hold_for_an_index_that_wraps_within_a_warp() {
    let m = Machine::new();
    // Around the ends of signed and of unsigned numbers, an index that decreases, and one that wraps more than once.
    let cases: [(&str, &str, Vec<usize>); 8] = [
        ("add.s32 %r1, %r0, 0x7ffffff0;", "lt.s32 %p0, %r1, 5", (16..64).collect()),
        ("add.s32 %r1, %r0, 0x7ffffff0;", "lt.u32 %p0, %r1, 0x80000005", (0..21).collect()),
        ("add.s32 %r1, %r0, 0xfffffff0;", "le.u32 %p0, %r1, 5", (16..22).collect()),
        ("add.s32 %r1, %r0, 0xfffffff0;", "lt.s32 %p0, %r1, 5", (0..21).collect()),
        ("sub.s32 %r1, 40, %r0;", "ge.s32 %p0, %r1, 3", (0..38).collect()),
        ("sub.s32 %r1, 40, %r0;", "lt.u32 %p0, 3, %r1", (0..37).chain(41..64).collect()),
        ("mul.lo.s32 %r1, %r0, 0x08000000;", "eq.s32 %p0, %r1, 0x10000000", vec![2, 34]),
        ("sub.s32 %r1, %r0, 9;", "eq.b32 %p0, %r1, 0", vec![9]),
    ];
    for (index, compare, expected) in cases {
        m.memory.fill(0, 4096, 0);
        let body = format!(
            "{index} setp.{compare}; @!%p0 bra END;\n\
             mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd0, %rd2; mov.u32 %r2, 1; st.global.u32 [%rd2], %r2; END:"
        );
        assert_eq!(Batch::new(m.grid(&body, 64, &[LO]), 0..1).resume(), Step::Done);
        let got: Vec<usize> = (0..64).filter(|&i| m.word(i) == 1).collect();
        assert_eq!(got, expected, "{index} {compare}");
    }
}

#[test]
fn a_batch_that_is_asked_to_stop_gives_back_what_has_not_begun() {
    let m = Machine::new();
    let body = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 3, %r1;\n\
                mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd0, %rd2; atom.global.add.u32 %r3, [%rd2], 1;";
    let mut grid = Arc::into_inner(m.grid(body, 32, &[LO])).unwrap();
    grid.launch.grid = [3, 4, 1];
    let grid = Arc::new(grid);
    m.control.store(Control::PREEMPT, Ordering::Relaxed);
    let mut batch = Batch::new(Arc::clone(&grid), 1..12);
    while batch.ended() < 3 {
        assert_eq!(batch.resume(), Step::Preempted);
    }
    let rest = batch.take_rest();
    assert_eq!(rest.end, 12);
    assert!(rest.start == 4 || rest.start == 5 && batch.is_under_way(), "{rest:?}");
    assert_eq!((0..10).map(|_| batch.resume()).find(|s| *s != Step::Preempted), Some(Step::Done));
    assert_eq!(batch.ended(), rest.start - 1);
    m.control.store(Control::RUN, Ordering::Relaxed);
    assert_eq!(Batch::new(grid, rest).resume(), Step::Done);
    let words: Vec<u32> = (0..13).map(|i| m.word(i)).collect();
    assert_eq!(words, [[0; 1].as_slice(), &[32; 11], &[0; 1]].concat());
}

/// One more in the word of the CTA, of 3 by 4; then as long as the word at `b` is the CTA's number, nothing else.
const COUNT: &str = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 3, %r1;\n\
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd0, %rd2; atom.global.add.u32 %r3, [%rd2], 1;\n\
    mov.u32 %r5, %ctaid.x; mov.u32 %r6, %clusterid.x; setp.ne.u32 %p0, %r5, %r6; @%p0 trap;\n\
    WAIT: ld.volatile.global.u32 %r4, [%rd1]; setp.eq.u32 %p0, %r4, %r1; @%p0 bra WAIT;";

#[test]
fn ctas_of_a_row_are_counted_one_by_one() {
    let m = Machine::new();
    let waited_for = 64;
    let mut grid = Arc::into_inner(m.grid(COUNT, 32, &[LO, LO + 4 * waited_for])).unwrap();
    grid.launch.grid = [3, 4, 1];
    let grid = Arc::new(grid);
    let tell = |cta: u32| m.memory.write(4 * waited_for as usize, &cta.to_le_bytes());
    // The last of a row, one in the middle, the first, and the last of all.
    for cta in [5, 7, 9, 11] {
        m.memory.fill(0, 64, 0);
        tell(cta);
        let mut batch = Batch::new(Arc::clone(&grid), 1..12);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while m.word(cta as usize) < 32 {
                    std::thread::yield_now();
                }
                m.control.store(Control::PREEMPT, Ordering::Relaxed);
            });
            assert_eq!(batch.resume(), Step::Preempted);
        });
        assert_eq!((batch.ended(), batch.is_under_way()), (u64::from(cta) - 1, true));
        let rest = batch.take_rest();
        assert_eq!(rest, u64::from(cta) + 1..12);
        m.control.store(Control::RUN, Ordering::Relaxed);
        tell(u32::MAX);
        assert_eq!(batch.resume(), Step::Done);
        assert_eq!(batch.ended(), u64::from(cta));
        assert_eq!(Batch::new(Arc::clone(&grid), rest).resume(), Step::Done);
        let words: Vec<u32> = (0..12).map(|i| m.word(i)).collect();
        assert_eq!(words, [[0; 1].as_slice(), &[32; 11]].concat());
    }
}

/// Warps side by side run CTA by CTA along a row, and those below them behind all of these. Whenever it is asked, a batch tells how many
/// CTAs have ended, and keeps those that have begun.
#[test]
fn warps_that_lie_below_others_run_by_turns() {
    let m = Machine::new();
    // A row's places, by CTA.
    let by_turns: [u32; 12] = [1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12];
    let by_twos = [1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12];
    let by_ctas = std::array::from_fn(|i| i as u32 + 1);
    for (block, order) in [
        ([32, 4, 1], by_turns),
        ([32, 2, 2], by_turns),
        ([8, 16, 1], by_turns),
        ([64, 2, 1], by_twos),
        ([128, 1, 1], by_ctas),
        ([48, 2, 1], by_ctas),
    ] {
        let warps = block.iter().product::<u32>().div_ceil(32);
        let grid = noting(&m, [3, 4, 1], block, "");
        let has_ended = |cta: &u64| (0..warps as usize).all(|warp| m.word(*cta as usize * 4 + warp) != 0);
        for stops in [false, true] {
            m.memory.fill(0, 8192, 0);
            m.control.store(if stops { Control::PREEMPT } else { Control::RUN }, Ordering::Relaxed);
            // The second CTA of a row is the first.
            let mut batch = Batch::new(Arc::clone(&grid), 1..12);
            let (mut steps, mut own) = (0, 11);
            while batch.resume() == Step::Preempted {
                steps += 1;
                assert!(batch.ended() <= (0..12).filter(has_ended).count() as u64, "{block:?}");
                if steps == 4 && stops {
                    // Others do what has not begun.
                    let rest = batch.take_rest();
                    own = rest.start - 1;
                    assert_eq!(batch.is_under_way(), batch.ended() < own, "{block:?} {rest:?}");
                    assert!((rest.start..12).all(|cta| m.word(cta as usize * 4) == 0), "{block:?} {rest:?}");
                    m.control.store(Control::RUN, Ordering::Relaxed);
                    assert_eq!(Batch::new(Arc::clone(&grid), rest).resume(), Step::Done);
                    m.control.store(Control::PREEMPT, Ordering::Relaxed);
                }
                assert!(steps < 100, "{block:?}");
            }
            assert_eq!((batch.ended(), batch.is_under_way()), (own, false), "{block:?}");
            // Each warp ran once.
            assert_eq!(m.word(1024), 11 * warps, "{block:?}");
            assert!((1..12).all(|cta| has_ended(&cta)) && !has_ended(&0), "{block:?}");
            assert_eq!(steps > 0, stops);
            if !stops && warps == 4 {
                // A row that is whole.
                let places: Vec<u32> = (12..24).map(|i| m.word(i) - 8).collect();
                assert_eq!(places, order, "{block:?}");
            }
        }
    }
}

/// A grid whose warps note when they run: at a place of their CTA's, of four words, as how many-th of all. Before
/// that they do what `first` says, which finds the CTA in `%r1` and the warp in `%r4`.
fn noting(m: &Machine, grid: [u32; 3], block: [u32; 3], first: &str) -> Arc<Grid> {
    let body = format!(
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 3, %r1;\n\
                mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.y; mov.u32 %r5, %tid.y; mad.lo.u32 %r3, %r3, %r4, %r5;\n\
                mov.u32 %r4, %ntid.x; mad.lo.u32 %r3, %r3, %r4, %r0; shr.u32 %r4, %r3, 5;\n\
                and.b32 %r3, %r3, 31; setp.ne.u32 %p0, %r3, 0; @%p0 bra END; {first}\n\
                mad.lo.u32 %r1, %r1, 4, %r4; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd0, %rd2;\n\
                mov.u32 %r5, %ctaid.x; mov.u32 %r6, %clusterid.x; setp.ne.u32 %p0, %r5, %r6; @%p0 trap;\n\
                atom.global.add.u32 %r3, [%rd1], 1; add.u32 %r3, %r3, 1; st.global.u32 [%rd2], %r3;\n\
                END:"
    );
    let mut noting = Arc::into_inner(m.grid(&body, 32, &[LO, LO + 4096])).unwrap();
    noting.code = Code::compile(Arc::new(lowered(&body)), block, EngineKind::Jit).unwrap();
    (noting.launch.grid, noting.launch.block) = (grid, block);
    Arc::new(noting)
}

#[test]
fn long_rows_are_taken_by_parts_and_end_where_a_warp_fails() {
    let m = Machine::new();
    assert_eq!(Batch::new(noting(&m, [70, 1, 1], [32, 4, 1], ""), 0..70).resume(), Step::Done);
    for cta in 0..70_usize {
        // 64 at once.
        let (part, ctas) = (cta / 64 * 64, (70 - cta / 64 * 64).min(64));
        for warp in 0..4 {
            assert_eq!(m.word(cta * 4 + warp) as usize, part * 4 + warp * ctas + cta - part + 1, "{cta} {warp}");
        }
    }
    // The second warp of the third CTA of a row.
    m.memory.fill(0, 8192, 0);
    let fails = "mad.lo.u32 %r6, %r1, 4, %r4; setp.eq.u32 %p0, %r6, 9; @%p0 trap;";
    let mut batch = Batch::new(noting(&m, [3, 4, 1], [32, 4, 1], fails), 0..12);
    assert!(matches!(batch.resume(), Step::Exception(_)));
    assert_eq!(batch.ended(), 0);
    assert_eq!((0..48).filter(|&i| m.word(i) != 0).collect::<Vec<_>>(), [0, 1, 4, 5, 8]);
}

/// What was loaded stays what it was when the place is written before it is used.
#[test]
fn loads_are_not_used_behind_stores() {
    let m = Machine::new();
    let place = "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd1, %rd2; add.s64 %rd2, %rd0, %rd2;";
    let store = "mov.b32 %f3, 0f40400000; st.global.f32 [%rd2], %f3;";
    for (store, kept) in [(store, 3.0_f32), ("", 1.0)] {
        for engine in [EngineKind::Jit, EngineKind::Interpreter] {
            for i in 0..64 {
                m.memory.write(4 * i, &1.0_f32.to_le_bytes());
            }
            let body = format!(
                "{place} ld.global.f32 %f1, [%rd2]; {store} add.f32 %f2, %f1, 0f40000000; st.global.f32 [%rd3], %f2;"
            );
            let grid = m.grid_on(engine, &body, 64, &[LO, LO + 4096]);
            assert_eq!(Batch::new(grid, 0..1).resume(), Step::Done);
            let words = |from: usize| (from..from + 64).map(|i| f32::from_bits(m.word(i))).collect::<Vec<_>>();
            assert_eq!((words(0), words(1024)), (vec![kept; 64], vec![3.0; 64]), "{engine:?} {body}");
        }
    }
}

#[test]
fn ctas_before_one_that_fails_have_ended() {
    let m = Machine::new();
    let body = format!("{COUNT} setp.eq.u32 %p0, %r1, 7; @%p0 trap;");
    let mut grid = Arc::into_inner(m.grid(&body, 32, &[LO, LO + 256])).unwrap();
    grid.launch.grid = [3, 4, 1];
    m.memory.write(256, &u32::MAX.to_le_bytes());
    let mut batch = Batch::new(Arc::new(grid), 1..12);
    assert!(matches!(batch.resume(), Step::Exception(_)));
    assert_eq!(batch.ended(), 6);
    assert_eq!((0..12).map(|i| m.word(i)).collect::<Vec<_>>(), [[0; 1].as_slice(), &[32; 7], &[0; 4]].concat());
}

#[test]
fn a_cta_of_absurd_size_is_refused() {
    // Bytes of local memory per thread, threads, and whether that is within the limit.
    for (bytes, block, fine) in
        [(65_000, 1024, true), (66_000, 1024, false), (500_000, 1024, false), (500_000, 64, true)]
    {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() {{\n\
             .local .align 4 .b8 array[{bytes}]; .reg .b32 %r<2>;\n\
             mov.u32 %r0, array; mov.u32 %r1, %tid.x; st.local.u32 [%r0], %r1; ret;\n}}\n"
        );
        let kernel = ptx::Program::parse(text.as_bytes()).and_then(|p| p.lower(0, &|_| None));
        let kernel = Arc::new(kernel.unwrap());
        for engine in [EngineKind::Jit, EngineKind::Interpreter] {
            let code = Code::compile(Arc::clone(&kernel), [block, 1, 1], engine);
            assert_eq!(code.is_ok(), fine, "{bytes} bytes for each of {block} threads, {engine:?}: {:?}", code.err());
        }
    }
}

#[test]
fn registers_count_towards_the_size_of_a_cta() {
    let many = |count: usize| {
        let mut kernel = lowered("add.u32 %r1, %r0, 1;");
        kernel.regs.resize(count, ptx::ir::RegTy::B64);
        Code::compile(Arc::new(kernel), [1024, 1, 1], EngineKind::Interpreter)
    };
    assert!(many(1000).is_ok());
    assert!(many(10_000).is_err());
}

#[test]
fn directed_sums_of_products_are_exact() {
    let m = Machine::new();
    let body = "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd0, %rd2;\n\
                ld.global.f32 %f0, [%rd2]; ld.global.f32 %f1, [%rd2+4096]; ld.global.f32 %f2, [%rd2+8192];\n\
                fma.rm.f32 %f3, %f0, %f1, %f2; fma.rp.ftz.f32 %f4, %f0, %f1, %f2;\n\
                st.global.f32 [%rd2+12288], %f3; st.global.f32 [%rd2+16384], %f4;";
    let grid = m.grid(body, 1024, &[LO]);
    let special = [0.0, 1.0, 1.0 + f32::EPSILON, f32::from_bits(1), f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, 3e-20];
    let mut seed = 1_u32;
    let mut number = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let v = special.get(seed as usize >> 28).copied().unwrap_or(f32::from_bits(seed.rotate_left(9)));
        if seed >> 27 & 1 == 0 { v } else { -v }
    };
    for round in 0..40 {
        let triples: Vec<[f32; 3]> = (0..1024)
            .map(|i| {
                let (a, b, c) = (number(), number(), number());
                // Sums near zero, where the error of the rounded product is all that is left.
                [a, b, if i % 3 == 0 { -(a * b) } else { c }]
            })
            .collect();
        for (i, triple) in triples.iter().enumerate() {
            for (row, v) in triple.iter().enumerate() {
                m.memory.write(4096 * row + 4 * i, &v.to_le_bytes());
            }
        }
        assert_eq!(Batch::new(Arc::clone(&grid), 0..1).resume(), Step::Done);
        for (i, triple) in triples.iter().enumerate() {
            let [a, b, c] = triple.map(|v| u64::from(v.to_bits()));
            for (row, direction, ftz) in [(3, Round::Rm, false), (4, Round::Rp, true)] {
                let mut word = [0; 4];
                m.memory.read(4096 * row + 4 * i, &mut word);
                let want = ptx::math::float::fma(Ty::F32, direction, ftz, false, false, a, b, c);
                assert_eq!(Some(u64::from(u32::from_le_bytes(word))), want, "{round}: {triple:?} {direction:?}");
            }
        }
    }
}

/// What a thread may do with memory at `%rd2`: bytes of it, and the body, which leaves what it has read in `%rd4`.
const WRITES: [(i32, &str); 40] = [
    (1, "st.global.u8 [%rd2], %r1;"),
    (2, "st.global.u16 [%rd2], %h0;"),
    (4, "st.global.u32 [%rd2], %r1;"),
    (8, "st.global.u64 [%rd2], %rd5;"),
    (4, "st.global.f32 [%rd2], %f0;"),
    (4, "st.global.u32 [%rd2], 77;"),
    (8, "st.global.u64 [%rd2], 78;"),
    (4, "st.volatile.global.u32 [%rd2], %r1;"),
    (4, "st.u32 [%rd2], %r1;"),
    (8, "st.global.v2.u32 [%rd2], {%r1, %r0};"),
    (8, "st.global.v2.f32 [%rd2], {%f0, %f0};"),
    (16, "st.global.v4.u32 [%rd2], {%r1, %r0, %r1, %r0};"),
    (16, "st.global.v2.u64 [%rd2], {%rd5, %rd2};"),
    (4, "st.global.v2.u16 [%rd2], {%h0, %h0};"),
    (4, "st.global.v4.u8 [%rd2], {%r1, %r0, %r0, %r1};"),
    (2, "st.global.v2.u8 [%rd2], {%r1, %r0};"),
    (4, "@%p0 st.global.u32 [%rd2], %r1;"),
    (8, "@%p0 st.global.u64 [%rd2], %rd5;"),
    (4, "ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, %r1; st.global.u32 [%rd2], %r2; cvt.u64.u32 %rd4, %r2;"),
    (4, "ld.global.u32 %r2, [%rd2]; xor.b32 %r2, %r2, 5; st.global.u32 [%rd2], %r2;"),
    (8, "ld.global.u64 %rd4, [%rd2]; sub.s64 %rd4, %rd4, %rd5; st.global.u64 [%rd2], %rd4;"),
    (4, "atom.global.add.u32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.and.b32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.or.b32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.xor.b32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.min.s32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.max.u32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.exch.b32 %r2, [%rd2], %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.cas.b32 %r2, [%rd2], 0, %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.cas.b32 %r2, [%rd2], 9, %r1; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.inc.u32 %r2, [%rd2], 100; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.dec.u32 %r2, [%rd2], 100; cvt.u64.u32 %rd4, %r2;"),
    (4, "atom.global.add.f32 %f1, [%rd2], %f0; mov.b32 %r2, %f1; cvt.u64.u32 %rd4, %r2;"),
    (8, "atom.global.add.u64 %rd4, [%rd2], %rd5;"),
    (8, "atom.global.exch.b64 %rd4, [%rd2], %rd5;"),
    (8, "atom.global.cas.b64 %rd4, [%rd2], 0, %rd5;"),
    (8, "atom.global.max.s64 %rd4, [%rd2], %rd5;"),
    (4, "@%p0 atom.global.add.u32 %r2, [%rd2], %r1;"),
    (4, "red.global.add.u32 [%rd2], %r1;"),
    (4, "red.global.or.b32 [%rd2], %r1;"),
];

#[test]
fn sparse_pages_take_writes_and_keep_nothing() {
    /// Memory, sparse pages, memory, and results.
    const SPARSE: std::ops::Range<u64> = 2 * PAGE..3 * PAGE;
    const OUT: u64 = 12 * PAGE;
    const THREADS: u32 = 128;
    let run = |engine, body: &str, at: u64| {
        let m = Machine::new();
        m.window.map_sparse(SPARSE.start, SPARSE.end - SPARSE.start).unwrap();
        let pattern: Vec<u8> = (0..MAPPED as u32).map(|i| (i * 7 + i / 256) as u8).collect();
        m.memory.write(0, &pattern);
        let step = Batch::new(m.grid_on(engine, body, THREADS, &[at, LO + OUT]), 0..1).resume();
        assert_eq!(step, Step::Done, "{engine:?}: {body} at {at:#x}");
        let mut bytes = vec![0; MAPPED as usize];
        m.memory.read(0, &mut bytes);
        let hidden = SPARSE.start as usize..SPARSE.end as usize;
        assert!(bytes[hidden.clone()] == pattern[hidden], "{engine:?}: {body} wrote through a sparse page");
        assert!(bytes != pattern, "{engine:?}: {body} wrote nothing");
        bytes
    };
    for (bytes, op) in WRITES {
        // Consecutive, apart, all threads one place: where threads both read and write, that would be a race.
        let strides = if op.starts_with("ld") { &[bytes, 80, -80][..] } else { &[bytes, 80, -80, 0] };
        for &stride in strides {
            let body = format!(
                "mul.wide.s32 %rd2, %r0, {stride}; add.s64 %rd2, %rd0, %rd2; mul.lo.u32 %r1, %r0, 16777619;\n\
                 mul.wide.u32 %rd5, %r1, 40503; cvt.u16.u32 %h0, %r1; and.b32 %r3, %r0, 1; setp.eq.u32 %p0, %r3, 0;\n\
                 cvt.rn.f32.u32 %f0, %r0; mov.u64 %rd4, 0;\n{op}\n\
                 mul.wide.u32 %rd3, %r0, 8; add.s64 %rd3, %rd1, %rd3; st.global.u64 [%rd3], %rd4;"
            );
            // Backwards, the first are behind.
            let edges = if stride < 0 { [SPARSE.end, SPARSE.end + PAGE] } else { [SPARSE.start, SPARSE.end] };
            for edge in edges {
                for before in [1, 3] {
                    let distance = if stride < 0 { stride } else { bytes.max(stride) };
                    let at = (LO + edge).wrapping_add_signed(-i64::from(before * distance));
                    assert!(
                        run(EngineKind::Jit, &body, at) == run(EngineKind::Interpreter, &body, at),
                        "{op} with stride {stride}, {before} before {edge:#x}"
                    );
                }
            }
        }
    }
}

/// Loads a word for each thread, adds to it, stores it where it was, and its sum with the thread's index at `%rd1`.
const APART: &str = "ld.global.u32 %r2, [%rd2]; add.u32 %r2, %r2, %r0; st.global.u32 [%rd2], %r2; \
    mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd1, %rd3; st.global.u32 [%rd3], %r2;";

/// Runs a kernel of two warps on both engines, in a window of so many bytes with pages of the file mapped as `maps` says
/// (offset in the window, page of the file); true if it runs to its end and leaves the same.
fn same_in(window_bytes: u64, maps: &[(u64, u64)], body: &str, params: &[u64]) -> bool {
    let run = |engine| {
        let file = Memfd::create("engine", (maps.len() as u64) * PAGE).unwrap();
        let window = Window::reserve(window_bytes).unwrap();
        for &(offset, page) in maps {
            window.map(offset, &file, page * PAGE, PAGE, Protection::ReadWrite).unwrap();
        }
        let m = Machine { memory: file.map().unwrap(), window: Arc::new(window), control: Arc::default() };
        let bytes: Vec<u8> = (0..maps.len() as u32 * PAGE as u32).map(|i| (i * 13 + i / 256) as u8).collect();
        m.memory.write(0, &bytes);
        let step = Batch::new(m.grid_on(engine, body, 64, params), 0..1).resume();
        let mut after = vec![0; bytes.len()];
        m.memory.read(0, &mut after);
        assert!(after != bytes, "{engine:?}: {body} wrote nothing");
        (step, after)
    };
    let (machine, interpreter) = (run(EngineKind::Jit), run(EngineKind::Interpreter));
    machine == interpreter && machine.0 == Step::Done
}

#[test]
fn an_index_may_wrap_inside_a_chunk() {
    // Places that no chunk begins at, and one that all do.
    for (wraps_at, stride) in [(27, 4), (27, 8), (1, 12), (37, 8), (62, 20), (32, 8)] {
        let all = stride << 32;
        // Where it would go on if it did not wrap there is memory, too.
        let (window, maps) = (all + PAGE, [(0, 0), (all - PAGE, 1), (2 * PAGE, 2), (all, 3)]);
        let body = |first: u64, sign: &str, product: &str| {
            let begin = (first - wraps_at) as u32;
            format!(
                "add.u32 %r1, %r0, {begin}; mul.wide.{sign}32 {product}, %r1, {stride}; add.s64 %rd2, %rd0, {product};\n{APART}"
            )
        };
        let out = LO + 2 * PAGE;
        // In a register of its own, and in one that is written again.
        for product in ["%rd6", "%rd2"] {
            let (unsigned, signed) = (body(1 << 32, "u", product), body(1 << 31, "s", product));
            assert!(same_in(window, &maps, &unsigned, &[LO, out]), "unsigned, at {wraps_at} by {stride}");
            let middle = LO + all / 2;
            assert!(same_in(window, &maps, &signed, &[middle, out]), "signed, at {wraps_at} by {stride}");
        }
    }
}

/// Threads from one to another are there; or those with a bit of their index set.
fn only(first: u32, last: u32, bit: u32) -> String {
    format!(
        "setp.lt.u32 %p0, %r0, {first}; setp.gt.u32 %p1, %r0, {last}; or.pred %p0, %p0, %p1; @%p0 bra END;\n\
         or.b32 %r3, %r0, {bit}; setp.ne.u32 %p0, %r3, %r0; @%p0 bra END;"
    )
}

#[test]
fn lanes_that_are_left_access_what_lies_side_by_side() {
    for (first, last, bit) in [(5, 20, 0), (0, 2, 0), (61, 63, 0), (9, 9, 0), (31, 32, 0), (3, 50, 4), (0, 63, 2)] {
        for (ty, regs, bytes) in [
            ("u8", "%h1", 1),
            ("s16", "%r2", 2),
            ("u32", "%r2", 4),
            ("u64", "%rd4", 8),
            ("v2.u32", "{%r2, %r4}", 8),
            ("v4.u32", "{%r2, %r4, %r5, %r6}", 16),
        ] {
            let (left, right) = (LO.wrapping_sub(first * bytes), LO + PAGE - (last + 1) * bytes);
            // What lanes that are not there would access lies outside the window; and nothing does.
            for (from, to) in [(left, LO + 2 * PAGE - (last + 1) * bytes), (right, LO + PAGE), (LO, LO + PAGE)] {
                for space in ["global.", ""] {
                    let body = format!(
                        "{} mul.wide.u32 %rd2, %r0, {bytes}; add.s64 %rd3, %rd1, %rd2; add.s64 %rd2, %rd0, %rd2;\n\
                         ld.{space}{ty} {regs}, [%rd2]; st.{space}{ty} [%rd3], {regs}; END:",
                        only(first as u32, last as u32, bit)
                    );
                    assert!(same_in(2 * PAGE, &[(0, 0), (PAGE, 1)], &body, &[from, to]), "{from:#x}: {body}");
                }
            }
        }
        // The first one of them that is outside is told.
        let m = Machine::new();
        let there = |lane: &u64| (first..=last).contains(lane) && lane & u64::from(bit) == u64::from(bit);
        for inside in [0, 1, 7] {
            let Some(lane) = (0..64).filter(there).nth(inside) else { continue };
            let end = LO + WINDOW;
            for (body, kind) in [(LOAD, Access::Read), (STORE, Access::Write)] {
                let body = format!("{} {body} END:", only(first as u32, last as u32, bit));
                m.window
                    .map(WINDOW - PAGE, &Memfd::create("end", PAGE).unwrap(), 0, PAGE, Protection::ReadWrite)
                    .unwrap();
                assert_eq!(m.fault(&body, end - 4 * lane), access(end, kind, AccessError::OutOfWindow), "{body}");
            }
        }
    }
}

#[test]
fn lanes_may_be_any_distance_apart() {
    const MIB: u64 = 1 << 20;
    for stride in [MIB - 4, MIB, MIB + 4, 2 * MIB, 16 * MIB] {
        // A page for each thread, and one for what they say.
        let mut maps: Vec<(u64, u64)> = (0..64).map(|n| (n * stride / PAGE * PAGE, n)).collect();
        let out = maps[63].0 + PAGE;
        maps.push((out, 64));
        let body = |by: &str| format!("mul.wide.s32 %rd2, %r0, {by}; add.s64 %rd2, %rd0, %rd2;\n{APART}");
        let window = out + PAGE;
        let forwards = body(&stride.to_string());
        assert!(same_in(window, &maps, &forwards, &[LO, LO + out]), "{stride} bytes");
        let backwards = body(&format!("-{stride}"));
        assert!(same_in(window, &maps, &backwards, &[LO + 63 * stride, LO + out]), "{stride} bytes, backwards");
    }
}

#[test]
fn what_cannot_be_written_stays_a_fault_beside_sparse_pages() {
    let m = Machine::new();
    m.window.map_sparse(MAPPED - PAGE, PAGE).unwrap();
    assert_eq!(m.fault(STORE, LO + MAPPED - 40), access(LO + MAPPED, Access::Write, AccessError::ReadOnly));
    m.window.unmap(MAPPED, PAGE).unwrap();
    assert_eq!(m.fault(STORE, LO + MAPPED - 40), access(LO + MAPPED, Access::Write, AccessError::Unmapped));
    assert_eq!(m.fault(LOAD, LO + MAPPED - 40), access(LO + MAPPED, Access::Read, AccessError::Unmapped));
    assert_eq!(m.fault(ADD, LO + MAPPED - 40), Step::Done);
}

/// Loads two operands of each thread, or of thread 0 (`same`), and stores what `op` makes of them, rounded down, up and towards zero.
fn directed(op: &str, ty: Ty, ftz: bool, same: bool) -> String {
    let (name, bytes, r) = if ty == Ty::F64 { ("f64", 8, "%rd") } else { ("f32", 4, "%f") };
    let ftz = if ftz { ".ftz" } else { "" };
    let source = if same { "%rd0" } else { "%rd2" };
    let operands = if matches!(op, "sqrt" | "rcp") { format!("{r}3") } else { format!("{r}3, {r}4") };
    let mut body = format!(
        "mul.wide.u32 %rd2, %r0, {bytes}; add.s64 %rd2, %rd0, %rd2;\n\
         ld.global.{name} {r}3, [{source}]; ld.global.{name} {r}4, [{source}+8192];\n"
    );
    for (row, round) in [(2, "rm"), (3, "rp"), (4, "rz")] {
        body += &format!("{op}.{round}{ftz}.{name} {r}5, {operands}; st.global.{name} [%rd2+{}], {r}5;\n", 8192 * row);
    }
    body
}

#[test]
fn directed_rounding_is_that_of_the_soft_numbers() {
    use ptx::ir::{FloatOp, FloatUnOp, Precision};
    let m = Machine::new();
    let mut seed = 7_u64;
    let mut bits = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed ^ seed >> 29
    };
    let expect = |op: &str, ty: Ty, round: Round, ftz: bool, a: u64, b: u64| match op {
        "add" => ptx::math::float::binary(FloatOp::Add, ty, round, ftz, false, a, b),
        "sub" => ptx::math::float::binary(FloatOp::Sub, ty, round, ftz, false, a, b),
        "mul" => ptx::math::float::binary(FloatOp::Mul, ty, round, ftz, false, a, b),
        "div" => ptx::math::float::binary(FloatOp::Div(Precision::Ieee(round)), ty, round, ftz, false, a, b),
        "sqrt" => ptx::math::float::unary(FloatUnOp::Sqrt(Precision::Ieee(round)), ty, ftz, a),
        _ => ptx::math::float::unary(FloatUnOp::Rcp(Precision::Ieee(round)), ty, ftz, a),
    };
    let special = [0.0, 1.0, 1.0 + f64::EPSILON, 3.0, f64::from_bits(1), f64::MIN_POSITIVE, f64::MAX, f64::INFINITY];
    let special32 = [0.0, 1.0, 1.0 + f32::EPSILON, 3.0, f32::from_bits(1), f32::MIN_POSITIVE, f32::MAX, f32::INFINITY];
    for (ty, ftz, same) in [
        (Ty::F64, false, false),
        (Ty::F32, false, false),
        (Ty::F32, true, false),
        (Ty::F64, false, true),
        (Ty::F32, false, true),
    ] {
        let bytes = if ty == Ty::F64 { 8 } else { 4 };
        let mut number = || {
            let v = bits();
            let sign = v >> 63;
            match (ty, v >> 56 & 63) {
                (Ty::F64, i @ 0..8) => special[i as usize].to_bits() | sign << 63,
                (_, i @ 0..8) => u64::from(special32[i as usize].to_bits()) | sign << 31,
                // Few digits, for exact results; and magnitudes near each other's, or near the least.
                (Ty::F64, 8..20) => v & 0x800f_0000_0000_0000 | 0x3ff0 << 48,
                (Ty::F64, 20..32) => v & 0x803f_ffff_ffff_ffff | 0x3fc0 << 48,
                (Ty::F64, 32..44) => v & 0x807f_ffff_ffff_ffff,
                (Ty::F64, _) => v,
                (_, 8..20) => v & 0x807c_0000 | 0x3f80_0000,
                (_, 20..32) => v & 0x81ff_ffff | 0x3e00_0000,
                (_, 32..44) => v & 0x83ff_ffff,
                _ => v & 0xffff_ffff,
            }
        };
        for op in ["add", "sub", "mul", "div", "sqrt", "rcp"] {
            let threads = if same { 32 } else { 1024 };
            let grid = m.grid(&directed(op, ty, ftz, same), threads, &[LO]);
            for turn in 0..if same { 200 } else { 20 } {
                let pairs: Vec<[u64; 2]> = (0..threads).map(|_| [number(), number()]).collect();
                for (i, pair) in pairs.iter().enumerate() {
                    for (row, v) in pair.iter().enumerate() {
                        m.memory.write(8192 * row + bytes * i, &v.to_le_bytes()[..bytes]);
                    }
                }
                assert_eq!(Batch::new(Arc::clone(&grid), 0..1).resume(), Step::Done);
                for i in 0..pairs.len() {
                    let [a, b] = pairs[if same { 0 } else { i }];
                    for (row, round) in [(2, Round::Rm), (3, Round::Rp), (4, Round::Rz)] {
                        let mut word = [0; 8];
                        m.memory.read(8192 * row + bytes * i, &mut word[..bytes]);
                        let got = u64::from_le_bytes(word);
                        let want = expect(op, ty, round, ftz, a, b).unwrap();
                        assert_eq!(
                            got, want,
                            "{turn}: {op} {ty:?} {round:?} {ftz}: {a:#x} {b:#x}: {got:#x}, not {want:#x}"
                        );
                    }
                }
            }
        }
    }
}

/// Arrays that parameters point to, from around the beginning of memory to around its end, with indices before the array and behind it, in
/// lanes of their own and shared: what machine code does is what the interpreter does.
#[test]
fn arrays_begin_and_end_where_memory_does() {
    const PAGES: u64 = 3;
    let file = Memfd::create("engine", PAGES * PAGE).unwrap();
    let window = Window::reserve(PAGES * PAGE).unwrap();
    window.map(0, &file, 0, PAGES * PAGE, Protection::ReadWrite).unwrap();
    let m = Machine { memory: file.map().unwrap(), window: Arc::new(window), control: Arc::default() };
    let fresh: Vec<u8> = (0..PAGES as u32 * PAGE as u32).map(|i| (i * 13 + i / 256) as u8).collect();
    let out = LO + PAGE;
    let accesses = [
        (1, 1, "u8 %r2"),
        (2, 2, "u16 %h0"),
        (4, 4, "u32 %r2"),
        (8, 4, "u32 %r2"),
        (8, 8, "u64 %rd3"),
        (16, 16, "v2.u64 {%rd3, %rd4}"),
        (4, 8, "u64 %rd3"),
        (12, 4, "u32 %r2"),
    ];
    let mut faults = 0;
    for (scale, size, load) in accesses {
        let steady = "add.u32 %r4, %r1, %r0;";
        let shared = "mov.u32 %r4, %r1;";
        let mixed = "xor.b32 %r5, %r0, 21; add.u32 %r4, %r1, %r5;";
        let some = "xor.b32 %r5, %r0, 21; add.u32 %r4, %r1, %r5; setp.gt.u32 %p0, %r5, 40;";
        let parted = "xor.b32 %r5, %r0, 22; add.u32 %r4, %r1, %r5; setp.gt.u32 %p0, %r5, 40;";
        let indices = [steady, shared, mixed, some, parted].into_iter().flat_map(|index| [("u", index), ("s", index)]);
        for (sign, index) in indices {
            let guard = if index == some { "@%p0 " } else { "" };
            let [part, meet] = if index == parted { ["@%p0 bra ON;", "ON:"] } else { [""; 2] };
            // What threads write to is each one's own.
            let written = if load == "u32 %r2" && index != shared && index != parted {
                format!("{guard}st.global.u32 [%rd2], %r2; {guard}atom.global.add.u32 %r2, [%rd2], 3;")
            } else {
                String::new()
            };
            let body = format!(
                "cvt.u32.u64 %r1, %rd1; {index} mul.wide.{sign}32 %rd6, %r4, {scale}; add.s64 %rd2, %rd0, %rd6;\n\
                 mov.u32 %r2, 0; mov.u16 %h0, 0; mov.u64 %rd3, 0; mov.u64 %rd4, 0; {part}\n\
                 {guard}ld.global.{load}, [%rd2+{size}]; xor.b64 %rd4, %rd4, %rd3; cvt.u32.u16 %r3, %h0; add.u32 %r2, %r2, %r3;\n\
                 {guard}ld.global.{load}, [%rd2-{size}]; xor.b64 %rd4, %rd4, %rd3; cvt.u32.u16 %r3, %h0; add.u32 %r2, %r2, %r3;\n\
                 {meet} bar.sync 0; {written} bar.sync 0;\n\
                 mul.wide.u32 %rd5, %r0, 16; add.s64 %rd5, %rd5, {out}; st.global.u64 [%rd5], %rd4; st.global.u32 [%rd5+8], %r2;"
            );
            let engines = [EngineKind::Jit, EngineKind::Interpreter];
            let codes = engines.map(|engine| Arc::clone(&m.grid_on(engine, &body, 64, &[LO, 0]).code));
            let (size, end) = (size as u64, LO + PAGES * PAGE);
            let bases =
                [LO - size, LO, LO + 1, LO + size, LO + 2 * PAGE, end - 66 * scale, end - 65 * scale, end - size, end];
            for base in bases {
                for begin in [0_u32, 1, u32::MAX, 2_u32.wrapping_neg(), i32::MAX as u32, 1 << 31, (1 << 31) - 64] {
                    let run = |code: &Arc<Code>| {
                        m.memory.write(0, &fresh);
                        let params = [base, begin.into()].into_iter().flat_map(u64::to_le_bytes).collect();
                        let grid = m.grid_on(EngineKind::Interpreter, "", 64, &[]);
                        let launch = Launch { params, ..grid.launch.clone() };
                        let (code, window) = (Arc::clone(code), Arc::clone(&m.window));
                        let control = Arc::clone(&m.control);
                        let grid = Grid { code, launch, window, window_lo: LO, control, checker: None, launcher: None };
                        let step = Batch::new(Arc::new(grid), 0..1).resume();
                        let mut after = vec![0; fresh.len()];
                        m.memory.read(0, &mut after);
                        (step, (step == Step::Done).then_some(after))
                    };
                    let (machine, interpreter) = (run(&codes[0]), run(&codes[1]));
                    faults += u32::from(machine.0 != Step::Done);
                    assert!(
                        machine == interpreter,
                        "{:?}, {:?}: {base:#x} {begin:#x}\n{body}",
                        machine.0,
                        interpreter.0
                    );
                }
            }
        }
    }
    assert!(faults > 0);
}

/// Addresses whose parts are made in other nodes, later than they are read, or of themselves.
#[test]
fn addresses_are_what_their_registers_hold() {
    let bodies = [
        // A scalar pointer of one node, and an offset that the grid shares of another.
        "mov.u32 %r1, %nctaid.x; mov.u32 %r7, 5; mul.wide.s32 %rd3, %r1, 4; add.s64 %rd4, %rd0, %rd3; setp.ge.u32 %p0, %r7, 9;\n\
         @%p0 bra END; cvt.u32.u64 %r2, %rd1; and.b32 %r3, %r2, 31; shr.u64 %rd7, %rd1, 34; cvt.u32.u64 %r4, %rd7;\n\
         ld.param.u32 %r5, [b+4]; mul.wide.s32 %rd5, %r5, 4; add.s64 %rd6, %rd4, %rd5; ld.global.u32 %r6, [%rd6];\n\
         st.global.u32 [%rd1], %r6;\nEND:",
        // The address of the trip before.
        "mov.u64 %rd7, 0; mov.u32 %r1, 0; mov.u32 %r6, 0;\n\
         LOOP: mul.wide.u32 %rd3, %r1, 4; setp.gt.u32 %p0, %r1, 0; @%p0 ld.global.u32 %r2, [%rd4]; add.u32 %r6, %r6, %r2;\n\
         add.s64 %rd4, %rd0, %rd3; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra LOOP; st.global.u32 [%rd1], %r6;",
        // Registers that are made of themselves begin as zero: there is no memory.
        "st.global.u32 [%rd1], %r0; setp.lt.u32 %p0, %r0, 99; @%p0 bra END; add.s64 %rd4, %rd4, 4; st.global.u32 [%rd4], %r0;\n\
         add.s64 %rd5, %rd6, 4; add.s64 %rd6, %rd5, 4; st.global.u32 [%rd5], %r0;\n\
         shl.b64 %rd7, %rd7, 0; st.global.u32 [%rd7], %r0;\nEND:",
    ];
    for body in bodies {
        assert!(same_in(PAGE, &[(0, 0)], body, &[LO, LO + 256]), "{body}");
    }
}

/// Predicates made of one another many times over.
#[test]
fn a_predicate_may_be_made_of_one_very_often() {
    for op in ["and", "or"] {
        let twice = format!("{op}.pred %p1, %p1, %p1;").repeat(64);
        for not in ["", "not.pred %p1, %p1; ".repeat(999).as_str()] {
            let body = format!(
                "setp.lt.u32 %p1, %r0, 40; {twice} {not} mov.u32 %r1, 1; @%p1 bra ON; mov.u32 %r1, 2;\n\
                 ON: mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;"
            );
            assert!(same_in(PAGE, &[(0, 0)], &body, &[LO, LO]), "{op}");
        }
    }
}

#[test]
fn lanes_shift_by_what_they_share() {
    for amount in [0_u32, 1, 7, 15, 16, 31, 32, 33, 63, 64, 256, u32::MAX] {
        let body = format!(
            "mov.u32 %r1, {amount}; mul.lo.u32 %r2, %r0, 0x9e3779b1; mul.wide.s32 %rd3, %r2, 0x7feb352d; cvt.u16.u32 %h0, %r2;\n\
             shl.b32 %r3, %r2, %r1; shr.u32 %r4, %r2, %r1; shr.s32 %r5, %r2, %r1;\n\
             shl.b64 %rd4, %rd3, %r1; shr.u64 %rd5, %rd3, %r1; shr.s64 %rd6, %rd3, %r1;\n\
             shl.b16 %h1, %h0, %r1; shr.u16 %h2, %h0, %r1; shr.s16 %h3, %h0, %r1;\n\
             mul.wide.u32 %rd2, %r0, 48; add.s64 %rd2, %rd1, %rd2; st.global.v2.u32 [%rd2], {{%r3, %r4}};\n\
             st.global.u32 [%rd2+8], %r5; st.global.v2.u64 [%rd2+16], {{%rd4, %rd5}}; st.global.u64 [%rd2+32], %rd6;\n\
             st.global.u16 [%rd2+12], %h1; st.global.u16 [%rd2+14], %h2; st.global.u16 [%rd2+40], %h3;"
        );
        assert!(same_in(PAGE, &[(0, 0)], &body, &[LO, LO]), "{amount}");
    }
}

/// Results that are stored are asked together whether one is a NaN; each that is has the bits that the interpreter's has.
#[test]
fn single_lanes_may_store_nans() {
    let stores = [
        (4, "st.global.f32 [%rd2], %f1;"),
        (8, "st.global.v2.f32 [%rd2], {%f1, %f2};"),
        (16, "st.global.v4.f32 [%rd2], {%f2, %f3, %f1, %f4};"),
        (4, "setp.lt.u32 %p1, %r0, 41; @%p1 st.global.f32 [%rd2], %f1;"),
        (4, "setp.ge.u32 %p1, %r0, 41; @%p1 bra END; st.global.f32 [%rd2], %f1; END:"),
        (4, "mov.b32 %r2, %f1; st.global.u32 [%rd2], %r2;"),
        (4, "mov.b32 %r2, %f1; @!%p0 mov.b32 %r2, %f2; st.global.u32 [%rd2], %r2;"),
        (4, "mov.b32 %r2, %f1; shfl.sync.bfly.b32 %r2, %r2, 3, 31, -1; st.global.u32 [%rd2], %r2;"),
    ];
    // In one lane, in every fourth, in all, in none.
    for (mask, value) in [(63, 0), (63, 5), (63, 31), (63, 40), (3, 2), (0, 0), (0, 1)] {
        for (bytes, store) in stores {
            let body = format!(
                "and.b32 %r1, %r0, {mask}; setp.eq.u32 %p0, %r1, {value}; selp.f32 %f0, 0f7F800000, 0f3F800000, %p0;\n\
                 sub.f32 %f1, %f0, %f0; add.f32 %f2, %f0, 0f40000000; mul.f32 %f3, %f0, %f2; fma.rn.f32 %f4, %f2, %f2, %f1;\n\
                 mul.wide.u32 %rd2, %r0, {bytes}; add.s64 %rd2, %rd1, %rd2; {store}"
            );
            assert!(same_in(PAGE, &[(0, 0)], &body, &[LO, LO]), "{mask} {value} {store}");
        }
    }
}
