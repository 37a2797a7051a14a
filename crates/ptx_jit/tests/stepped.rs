//! Arrays whose strides are parameters, as NumPy's are: what lanes access lies at a distance that is known when the kernel runs. Each kernel on
//! both engines, in chunks of all widths, run through and preempted.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/numbers.rs"]
mod numbers;
mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use numbers::Random;
use ptx::launch::{AccessError, Control, Exception, Launch};

const BASE: u64 = 0x20_0000_0000;
const BYTES: usize = 256 << 10;
/// Where arrays begin, of inputs and results: so far from each other, and from the ends, that strides of both signs fit.
const FROM: u64 = 64 << 10;
const TO: u64 = 192 << 10;

/// Blocks, and instructions put in front: the longer the code, the narrower the chunks.
const SHAPES: [([u32; 3], usize); 5] =
    [([128, 1, 1], 0), ([96, 1, 1], 600), ([32, 2, 2], 1100), ([100, 1, 1], 0), ([48, 2, 1], 2100)];

/// Strides of the input and the result, in bytes.
const STRIDES: [(i64, i64); 9] =
    [(4, 4), (4, -4), (-4, 4), (0, 4), (8, 4), (4, 12), (256, 4), (-36, 20), (4 + (1 << 32), 4)];

/// Runs a kernel of `body` with such strides, for so many elements, in two CTAs. In it `%rd0` and `%rd1` are where the arrays' first
/// elements are, `%rd2` and `%rd3` their strides, `%rd4` how many elements there are, `%rd5` the thread's number in the grid along x.
/// Gives the memory behind it; the engines' are the same, or fail alike.
fn run(body: &str, strides: (i64, i64), elements: u64, (block, padding): ([u32; 3], usize)) -> Option<Vec<u8>> {
    let pad = "add.u32 %r31, %r31, %r0;".repeat(padding);
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 s, .param .u64 t, .param .u64 n) {{\n\
         .reg .b64 %rd<32>; .reg .b32 %r<32>; .reg .pred %p<8>; .reg .f64 %d<4>; .shared .b32 z[256];\n\
         ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %rd2, [s]; ld.param.u64 %rd3, [t]; ld.param.u64 %rd4, [n];\n\
         mov.u32 %r0, %tid.x; cvt.u64.u32 %rd6, %r0; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mul.wide.u32 %rd7, %r1, %r2;\n\
         add.s64 %rd5, %rd6, %rd7;\n{pad}\n{body}\nEND: setp.eq.u32 %p7, %r31, 77777; @%p7 st.global.u32 [%rd1], %r31; ret;\n}}\n"
    );
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|e| panic!("{body}: {e}")));
    let params = [BASE + FROM, BASE + TO, strides.0 as u64, strides.1 as u64, elements];
    let params = params.iter().flat_map(|word| word.to_le_bytes()).collect();
    let launch = Arc::new(Launch { grid_id: 1, ..Launch::new([2, 1, 1], block, params) });
    let memory: Vec<u8> =
        (0..BYTES as u32 / 4).flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 5).to_le_bytes()).collect();
    let mut reference = memory.clone();
    let expected = testgen::interpret(&kernel, &launch, BASE, &mut reference);
    for control in [Control::RUN, Control::PREEMPT] {
        let mut machine = memory.clone();
        let result = support::run(&kernel, &launch, BASE, &mut machine, control);
        assert_eq!(
            result.map_err(place),
            expected.map_err(place),
            "{strides:?}, {block:?}, {padding} in front: {body}"
        );
        let same = machine.chunks(4).zip(reference.chunks(4)).position(|(a, b)| a != b);
        assert!(
            expected.is_err() || same.is_none(),
            "{strides:?}, {elements} elements, {block:?}, {padding} in front: word {same:?} differs: {body}"
        );
    }
    expected.is_ok().then_some(reference)
}

/// A failed access by where it was: the engines' windows are not equally large.
fn place(exception: Exception) -> Exception {
    match exception {
        Exception::Access { address, access, .. } => {
            Exception::Access { address, access, error: AccessError::Unmapped }
        }
        other => other,
    }
}

/// Runs it with all strides in all shapes, in some of which it must not fail.
fn check(body: &str) {
    let mut fine = 0;
    for strides in STRIDES {
        for shape in SHAPES {
            let result = run(body, strides, if strides.0 == strides.1 { 1 << 20 } else { 77 }, shape);
            fine += usize::from(result.is_some());
        }
    }
    assert!(fine > STRIDES.len() * SHAPES.len() / 2, "{fine} runs of {body}");
}

/// As Numba computes addresses: loads, sums and stores of each type, alone and as vectors, for as many elements as there are.
#[test]
fn products_of_an_index_and_a_parameter() {
    let place = "setp.ge.s64 %p0, %rd5, %rd4; @%p0 bra END; mad.lo.s64 %rd8, %rd2, %rd5, %rd0; mad.lo.s64 %rd9, %rd5, %rd3, %rd1;\n";
    for (ty, op) in [
        ("u32", "add.u32 %r4, %r4, 3"),
        ("s8", "add.u32 %r4, %r4, 3"),
        ("u16", "xor.b32 %r4, %r4, 77"),
        ("f32", "add.f32 %r4, %r4, %r4"),
    ] {
        check(&format!("{place} ld.global.{ty} %r4, [%rd8]; {op}; st.{} [%rd9], %r4;", ty.replace('s', "u")));
    }
    check(&format!(
        "{place} ld.u32 %r4, [%rd8+4]; ld.global.u32 %r5, [%rd8+-4]; add.u32 %r4, %r4, %r5; st.global.u32 [%rd9+8], %r4;"
    ));
    check(&format!(
        "{place} and.b64 %rd8, %rd8, -16; ld.global.v2.u32 {{%r4, %r5}}, [%rd8]; add.u32 %r4, %r4, %r5; st.global.u32 [%rd9], %r4;"
    ));
    for strides in [(8, 8), (16, 8), (-8, 16), (0, 8), (24, 40)] {
        for shape in SHAPES {
            let wide = "ld.global.u64 %rd10, [%rd8]; add.s64 %rd10, %rd10, %rd5; st.global.u64 [%rd9], %rd10;";
            let two = "ld.global.v2.u32 {%r4, %r5}, [%rd8]; st.global.v2.u32 [%rd9], {%r5, %r4};";
            run(&format!("{place}{wide}"), strides, 200, shape).unwrap();
            run(&format!("{place}{two}"), strides, 200, shape).unwrap();
        }
    }
    // Vectors of four, and atomic operations, each on a word of its own.
    for strides in [(16, 16), (32, 16), (-16, 48)] {
        for shape in SHAPES {
            for access in [
                "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd8]; add.u32 %r4, %r4, %r7; st.global.v4.u32 [%rd9], {%r6, %r5, %r4, %r7};",
                "ld.global.v2.u64 {%rd10, %rd11}, [%rd8]; add.s64 %rd10, %rd10, %rd11; st.global.v2.u64 [%rd9], {%rd11, %rd10};",
                "ld.global.v4.u8 {%r4, %r5, %r6, %r7}, [%rd8]; st.global.v4.u8 [%rd9], {%r7, %r6, %r5, %r4};",
                "atom.global.add.u32 %r4, [%rd8], 5; st.global.u32 [%rd9], %r4;",
            ] {
                run(&format!("{place} {access}"), strides, 150, shape).unwrap();
            }
        }
    }
}

/// As CuPy does, whose indices have 32 bits: in the upper halves of numbers that a loop counts on.
#[test]
fn upper_halves_that_are_counted_on() {
    let body = "setp.ge.s64 %p0, %rd5, %rd4; @%p0 bra END; mov.u32 %r3, %nctaid.x; mul.wide.u32 %rd10, %r3, %r2;\n\
                mul.lo.s64 %rd11, %rd2, %rd5; shl.b64 %rd11, %rd11, 32; mul.lo.s64 %rd12, %rd2, %rd10; shl.b64 %rd12, %rd12, 32;\n\
                mul.lo.s64 %rd13, %rd3, %rd5; shl.b64 %rd13, %rd13, 32; mul.lo.s64 %rd14, %rd3, %rd10; shl.b64 %rd14, %rd14, 32;\n\
                LOOP: shr.s64 %rd15, %rd11, 32; add.s64 %rd16, %rd0, %rd15; ld.global.u32 %r4, [%rd16]; add.u32 %r4, %r4, 5;\n\
                shr.s64 %rd17, %rd13, 32; add.s64 %rd18, %rd1, %rd17; st.global.u32 [%rd18], %r4;\n\
                add.s64 %rd11, %rd11, %rd12; add.s64 %rd13, %rd13, %rd14; add.s64 %rd5, %rd5, %rd10;\n\
                setp.lt.s64 %p1, %rd5, %rd4; @%p1 bra LOOP;";
    for strides in STRIDES {
        for shape in SHAPES {
            for elements in [77, 513] {
                run(body, strides, elements, shape);
            }
        }
    }
    // Sums of 32 bits that wrap within a chunk, and shifts of what has a lower half.
    let wraps = "mul.lo.s64 %rd11, %rd2, %rd5; shl.b64 %rd11, %rd11, 32; shl.b64 %rd12, %rd3, 32; add.s64 %rd11, %rd11, %rd12;\n\
                 shr.s64 %rd13, %rd11, 32; and.b64 %rd14, %rd13, 1020; add.s64 %rd14, %rd14, %rd0; ld.global.u32 %r4, [%rd14];\n\
                 mul.lo.s64 %rd15, %rd6, 8; add.s64 %rd15, %rd15, %rd1; st.global.u64 [%rd15], %rd13; st.global.u32 [%rd15+4096], %r4;\n\
                 mul.lo.s64 %rd16, %rd2, %rd5; shr.s64 %rd19, %rd16, 32; st.global.u64 [%rd15+8192], %rd19;\n\
                 add.s64 %rd17, %rd0, %rd13; sub.s64 %rd17, %rd17, %rd13; ld.global.u32 %r5, [%rd17]; st.global.u32 [%rd15+12288], %r5;";
    for strides in
        [(4, 0x7fff_fff0), (4, 0x7fff_ffff), (-4, -0x8000_0000), (0x1234_5678, 7), (0x7_0000_0004, 0xffff_fff0)]
    {
        for shape in SHAPES {
            run(wraps, strides, 1 << 20, shape).unwrap();
        }
    }
    // An address that leaves the array in the middle of a warp.
    let leaves = "shl.b64 %rd11, %rd2, 32; mul.lo.s64 %rd11, %rd11, %rd5; shr.s64 %rd11, %rd11, 32; add.s64 %rd11, %rd11, %rd0; ld.global.u32 %r4, [%rd11];";
    for stride in [4096, 1 << 24, -(1 << 20), 0x7fff_fffc, 2] {
        for shape in SHAPES {
            run(leaves, (stride, 4), 1 << 20, shape);
        }
    }
}

/// An index that some lanes of a chunk have not written, the first one among them, and what is made of it: numbers, addresses, what is
/// the same for a whole warp.
#[test]
fn an_index_that_not_all_have() {
    let store = "mad.lo.u32 %r10, %r1, %r2, %r0; mul.wide.u32 %rd20, %r10, 32; add.s64 %rd20, %rd20, %rd1;";
    let made = "cvt.u64.u32 %rd8, %r6; cvt.s64.s32 %rd9, %r6; shl.b64 %rd10, %rd9, 2; add.s64 %rd10, %rd10, %rd0; mad.lo.s64 %rd11, %rd8, %rd2, %rd0;\n\
                mul.lo.s64 %rd12, %rd8, %rd3; shr.u32 %r7, %r6, 5; div.u32 %r8, %r6, 64; setp.lt.u32 %p1, %r6, 64; selp.b32 %r9, 3, 4, %p1;";
    let end = "ld.global.u32 %r4, [%rd10]; ld.global.u32 %r5, [%rd11]; add.u32 %r7, %r7, %r8; add.u32 %r7, %r7, %r9;\n\
               st.global.u32 [%rd20], %r4; st.global.u32 [%rd20+4], %r5; st.global.u64 [%rd20+8], %rd12; st.global.u64 [%rd20+16], %rd8; st.global.u32 [%rd20+24], %r7;";
    for some in [
        "and.b32 %r3, %r0, 1; setp.eq.u32 %p0, %r3, 0;",
        "setp.lt.u32 %p0, %r0, 19;",
        "and.b32 %r3, %r0, 31; setp.ne.u32 %p0, %r3, 30;",
    ] {
        for index in ["@%p0 bra ON; mov.u32 %r6, %tid.x; ON:", "@!%p0 mov.u32 %r6, %tid.x;"] {
            for looks in ["", "@%p0 bra END;"] {
                for strides in [(4, 4), (8, -3)] {
                    for shape in SHAPES {
                        let body = format!("{store} {some} {index}\n{made} {looks} {end}");
                        run(&body, strides, 1 << 20, shape).unwrap();
                    }
                }
            }
        }
    }
}

/// Such values kept over barriers and loops, handed from lane to lane, compared, changed by some lanes only, and computed on.
#[test]
fn what_grows_by_a_parameter_is_kept_and_used() {
    let values = "mul.lo.s64 %rd8, %rd2, %rd5; mad.lo.s64 %rd9, %rd3, %rd5, %rd8; sub.s64 %rd10, %rd9, %rd5; shl.b64 %rd11, %rd10, 32;\n\
                  shr.s64 %rd12, %rd11, 32; add.s64 %rd13, %rd12, %rd4; sub.s64 %rd14, %rd4, %rd8; mul.lo.s64 %rd15, %rd14, 24;\n";
    let mut store = String::from(
        "mad.lo.u32 %r10, %r1, %r2, %r0; mov.u32 %r11, %tid.y; mov.u32 %r12, %tid.z; mad.lo.u32 %r11, %r12, 2, %r11;\n\
                 mad.lo.u32 %r10, %r11, 64, %r10; mul.wide.u32 %rd20, %r10, 64; add.s64 %rd20, %rd20, %rd1;\n",
    );
    for (i, r) in (8..16).enumerate() {
        writeln!(store, "st.global.u64 [%rd20+{}], %rd{r};", 8 * i).unwrap();
    }
    let uses = [
        String::new(),
        "bar.sync 0; st.shared.u32 [z], %r0; bar.sync 0;".into(),
        "mov.b64 {%r4, %r5}, %rd8; shfl.sync.bfly.b32 %r4, %r4, 1, 31, -1; mov.b64 {%r6, %r7}, %rd13; shfl.sync.bfly.b32 %r6, %r6, 3, 31, -1;\n\
         mov.b64 %rd9, {%r4, %r6};"
            .into(),
        "setp.lt.s64 %p1, %rd8, %rd4; @%p1 add.s64 %rd8, %rd8, 1; selp.b64 %rd12, %rd13, %rd8, %p1;".into(),
        "and.b32 %r4, %r0, 3; setp.eq.u32 %p2, %r4, 1; @%p2 bra ON; add.s64 %rd8, %rd8, %rd3; add.s64 %rd13, %rd13, %rd3; ON: add.s64 %rd9, %rd13, %rd8;".into(),
        "mov.u32 %r4, 0; LOOP: add.s64 %rd8, %rd8, %rd3; add.s64 %rd11, %rd11, %rd11; add.s64 %rd13, %rd13, %rd2; add.u32 %r4, %r4, 1;\n\
         and.b32 %r5, %r0, 7; setp.lt.u32 %p3, %r4, %r5; @%p3 bra LOOP;"
            .into(),
        "mov.u32 %r4, 0; LOOP: add.s64 %rd8, %rd8, %rd3; bar.sync 0; add.s64 %rd13, %rd13, %rd2; add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 5; @%p3 bra LOOP;".into(),
        "cvt.u32.u64 %r4, %rd8; cvt.s64.s32 %rd9, %r4; cvt.rn.f64.s64 %d0, %rd13; cvt.rzi.s64.f64 %rd12, %d0; neg.s64 %rd10, %rd10; mul.hi.s64 %rd11, %rd8, %rd9;".into(),
        "match.any.sync.b64 %r4, %rd8, -1; cvt.u64.u32 %rd9, %r4; vote.sync.ballot.b32 %r5, %p5, -1; cvt.u64.u32 %rd10, %r5;".into(),
    ];
    for what in &uses {
        for strides in [(4, 4), (0, -1), (1 << 40, 3), (-7, i64::MAX)] {
            for shape in SHAPES {
                run(&format!("{values}{what}\n{store}"), strides, 1000, shape).unwrap();
            }
        }
    }
}

/// Indices of 64 bits against bounds of all kinds, some of which hold in part of a chunk.
#[test]
fn wide_indices_meet_bounds() {
    let store = "mad.lo.u32 %r10, %r1, %r2, %r0; mul.wide.u32 %rd20, %r10, 4; add.s64 %rd20, %rd20, %rd1; st.global.u32 [%rd20], %r4;";
    for cmp in ["lt.s64", "le.s64", "gt.s64", "ge.u64", "lt.u64", "eq.s64", "ne.s64"] {
        for index in [
            "mov.b64 %rd8, %rd5",
            "sub.s64 %rd8, %rd4, %rd5",
            "mul.lo.s64 %rd8, %rd5, -3",
            "add.u32 %r9, %r0, 0xffffffe0; cvt.u64.u32 %rd8, %r9",
            "add.u32 %r9, %r0, 0x7fffffe0; cvt.s64.s32 %rd8, %r9",
        ] {
            let body = format!(
                "{index}; mov.u32 %r4, 1; setp.{cmp} %p0, %rd8, %rd2; @%p0 bra ON; add.u32 %r4, %r4, 7; ON: setp.{cmp} %p1, %rd3, %rd8; @!%p1 bra TO; add.u32 %r4, %r4, 70; TO: {store}"
            );
            for strides in [(40, 40), (0, -33), (-1, i64::MIN), (0x7fff_fff0, 0xffff_fff0), (i64::MAX, 5)] {
                for shape in [SHAPES[0], SHAPES[3]] {
                    run(&body, strides, 70, shape).unwrap();
                }
            }
        }
    }
}

/// Sums, products and shifts at random of indices, parameters and what is made of them, in a loop and before it.
#[test]
fn what_is_computed_of_indices_and_parameters() {
    let mut store =
        String::from("mad.lo.u32 %r10, %r1, %r2, %r0; mul.wide.u32 %rd20, %r10, 64; add.s64 %rd20, %rd20, %rd1;\n");
    for (i, r) in (8..16).enumerate() {
        writeln!(store, "st.global.u64 [%rd20+{}], %rd{r};", 8 * i).unwrap();
    }
    for seed in 0..250 {
        let random = &mut Random(seed);
        let mut inst = |text: &mut String| {
            let dst = 8 + random.below(8);
            let mut source = || match random.below(6) {
                0 => "%rd5".to_owned(),
                // Indices that wrap in the middle of a warp.
                5 => format!("%rd{}", 16 + random.below(2)),
                1 => format!("%rd{}", 2 + random.below(3)),
                2 => "%rd6".to_owned(),
                _ => format!("%rd{}", 8 + random.below(8)),
            };
            let (a, b, c) = (source(), source(), source());
            let number = random.of(&["1", "4", "-3", "0", "12345678901", "32"]);
            match random.below(12) {
                0 | 1 => writeln!(text, "add.s64 %rd{dst}, {a}, {b};"),
                2 => writeln!(text, "sub.s64 %rd{dst}, {a}, {b};"),
                3 => writeln!(text, "mul.lo.s64 %rd{dst}, {a}, %rd{};", 2 + random.below(3)),
                4 => writeln!(text, "mul.lo.s64 %rd{dst}, {a}, {number};"),
                5 => writeln!(text, "mad.lo.s64 %rd{dst}, {a}, %rd{}, {c};", 2 + random.below(3)),
                6 => writeln!(text, "shl.b64 %rd{dst}, {a}, {};", random.of(&["32", "32", "3", "40"])),
                7 | 8 => writeln!(text, "shr.s64 %rd{dst}, {a}, {};", random.of(&["32", "32", "32", "5"])),
                9 => writeln!(
                    text,
                    "shl.b64 %rd{dst}, {a}, 32; shr.s64 %rd{dst}, %rd{dst}, 32; add.s64 %rd{dst}, %rd{dst}, {b};"
                ),
                10 => writeln!(text, "add.s64 %rd{dst}, {a}, {number};"),
                _ => writeln!(text, "mov.b64 %rd{dst}, {a};"),
            }
            .unwrap();
        };
        let mut text = String::from(
            "add.u32 %r8, %r0, 0xffffffe9; cvt.u64.u32 %rd16, %r8; add.u32 %r9, %r0, 0x7fffffe9; cvt.s64.s32 %rd17, %r9;\n",
        );
        (0..12).for_each(|_| inst(&mut text));
        text += "mov.u32 %r4, 0;\nLOOP:\n";
        (0..6).for_each(|_| inst(&mut text));
        let trips = random.of(&["and.b32 %r5, %r0, 3;", "mov.u32 %r5, 2;"]);
        let barrier = random.of(&["", "", "bar.sync 0;"]);
        let barrier = if trips.starts_with("and") { "" } else { barrier };
        write!(text, "{barrier} {trips} add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, %r5; @%p3 bra LOOP;\n{store}")
            .unwrap();
        let strides = random.of(&[(4, -4), (0x1_0000_0004, 8), (0x7fff_ffff, 1 << 32), (-1, 0x1234_5678_9abc_def0)]);
        let shape = SHAPES[random.below(5) as usize];
        run(&text, strides, 1000, ([shape.0[0], 1, 1], shape.1)).unwrap();
    }
}
