//! Lanes that part: in loops that they leave one by one, at bounds, and where they run one after another from the start. Each kernel on both
//! engines, for blocks that make chunks of several widths, run through and preempted.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/blocks.rs"]
mod blocks;
mod support;

use blocks::{BYTES, THREADS, check, kernel, mixed};
use ptx_jit::compiler::Watch;
use ptx_jit::{Form, Image};

/// Each lane reads where its number in the warp, and what it has read, lead it.
#[test]
fn lanes_that_run_one_after_another_know_their_numbers() {
    let body = "mov.u32 %r1, %laneid; add.u32 %r2, %r1, 3; mov.u32 %r3, 0;\n\
                LOOP: mad.lo.u32 %r4, %r3, 37, %r1; and.b32 %r4, %r4, 1023; mul.wide.u32 %rd3, %r4, 4;\n\
                add.s64 %rd4, %rd0, %rd3; ld.global.nc.u32 %r5, [%rd4]; xor.b32 %r3, %r3, %r5; sub.u32 %r2, %r2, 1;\n\
                setp.ne.u32 %p0, %r2, 0; @%p0 bra LOOP; st.global.u32 [%rd1], %r3; st.global.u32 [%rd1+4], %r1;";
    let alone = Form { alone: true, ..Form::default() };
    let image = Image::compile_in(kernel(body), [THREADS, 1, 1], alone, &Watch::unbounded()).unwrap();
    assert_eq!(image.lanes(), Some(1));
    check(alone, body, &mixed);
    check(Form::default(), body, &mixed);
}

/// Products of 16 bits that lanes share, added to an index that they do not, in a register that is written once or several times.
#[test]
fn wide_products_of_halves() {
    for ty in ["u16", "s16"] {
        for (factor, again) in [("7", ""), ("%h2", "mov.u32 %r3, 4;"), ("0xffff", "mov.u32 %r3, %r4;")] {
            let body = format!(
                "ld.global.u16 %h1, [%rd0]; ld.global.u16 %h2, [%rd0+2]; mov.u32 %r3, %tid.x;\n\
                 mad.wide.{ty} %r4, %h1, {factor}, %r3; {again} add.u32 %r5, %r3, %r4;\n\
                 st.global.u32 [%rd1], %r4; st.global.u32 [%rd1+4], %r5;"
            );
            for words in [[0x7fff_8001, 3], [5, 9], [0x8000_ffff, 1]] {
                check(Form::default(), &body, &|i| words[i as usize % 2]);
            }
        }
    }
}

/// A loop of one block, that lanes leave after as many trips as a word of theirs says, and what they take along: numbers of all widths,
/// and what is the same for all of them inside.
#[test]
fn loops_are_left_with_what_there_was() {
    let trips =
        "mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd0, %rd3; ld.global.u32 %r1, [%rd4]; and.b32 %r1, %r1, 15;\n";
    let begin = "mov.u32 %r2, 0; mov.u64 %rd5, 0; mov.b16 %h0, 1; mov.f32 %f0, 0f3F800000; mov.u32 %r6, 0;\n\
                 mov.f64 %d0, 0d3FF0000000000000; setp.eq.u32 %p1, %r0, 3; mov.u32 %r5, %r0; mov.u32 %r8, 0; mov.u32 %r9, 5;\n";
    let work = "add.u32 %r2, %r2, 1; mad.lo.u32 %r5, %r5, 1103515245, 12345; cvt.u64.u32 %rd6, %r5; add.s64 %rd5, %rd5, %rd6;\n\
                cvt.u16.u32 %h1, %r5; xor.b16 %h0, %h0, %h1; fma.rn.f32 %f0, %f0, 0f3FC00000, 0f3F000000;\n\
                add.f64 %d0, %d0, %d0; xor.pred %p1, %p1, %p0; add.u32 %r6, %r6, 7; @%p1 add.u32 %r8, %r8, %r6;\n\
                st.global.u32 [%rd1+28], %r5; shl.b32 %r7, %r0, 2; mov.u32 %r10, s; add.u32 %r7, %r7, %r10; st.shared.u32 [%r7], %r2;\n\
                ld.global.u32 %r9, [%rd4]; add.u32 %r8, %r8, %r9;\n";
    let end = "cvt.u32.u16 %r3, %h0; selp.u32 %r4, 1, 0, %p1; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r8;\n\
               st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+4], %r3; st.global.u64 [%rd1+8], %rd5;\n\
               st.global.f32 [%rd1+16], %f0; st.global.f64 [%rd1+20], %d0;";
    let end = end.replace(
        "st.global.f64 [%rd1+20], %d0",
        "cvt.rn.f32.f64 %f1, %d0; st.global.f32 [%rd1+20], %f1; ld.shared.u32 %r7, [%r7]; st.global.u32 [%rd1+24], %r7",
    );
    for leave in [
        "setp.lt.u32 %p0, %r2, %r1; @%p0 bra LOOP;",
        "setp.ge.u32 %p0, %r2, %r1; @!%p0 bra LOOP;",
        "setp.ge.u32 %p0, %r2, %r1; @%p0 bra OUT; bra.uni LOOP; OUT:",
        "setp.lt.u32 %p0, %r2, %r1; @!%p0 bra OUT; bra.uni LOOP; OUT:",
    ] {
        let begin = format!("{begin} setp.ne.u32 %p0, %r1, 20;");
        check(Form::default(), &format!("{trips}{begin}LOOP: {work}{leave}{end}"), &mixed);
        // Some lanes never come to the loop.
        let some = "setp.gt.u32 %p2, %r1, 12; @%p2 bra END;\n";
        check(Form::default(), &format!("{trips}{some}{begin}LOOP: {work}{leave}{end}"), &mixed);
        // A loop around it.
        let outer = "add.u32 %r12, %r12, 1; setp.lt.u32 %p5, %r12, 3; @%p5 bra AGAIN;";
        check(
            Form::default(),
            &format!("{trips}mov.u32 %r12, 0; AGAIN: {begin}LOOP: {work}{leave}{end}{outer}"),
            &mixed,
        );
    }
}

/// A few instructions that some lanes do before they go on with the others, on either side of the branch, once and in a loop, and with
/// another such detour on the way: they change numbers of all widths, read and write where they alone may.
#[test]
fn some_lanes_make_a_detour() {
    let begin = "mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd0, %rd3; ld.global.u32 %r1, [%rd4]; mov.u32 %r2, 0; mov.u64 %rd5, 7;\n\
                 mov.b16 %h0, 1; mov.f32 %f0, 0f3F800000; mov.f64 %d0, 0d3FF0000000000000; setp.eq.u32 %p1, %r0, 3; mov.u32 %r6, 0;\n\
                 mov.u32 %r9, 5; mov.u32 %r10, s; shl.b32 %r7, %r0, 2; add.u32 %r7, %r7, %r10; st.shared.u32 [%r7], %r0;\n";
    // Lanes for which the word says no have no such place.
    let work = "and.b32 %r11, %r1, 255; mul.wide.u32 %rd6, %r11, 4; add.s64 %rd6, %rd0, %rd6; selp.b64 %rd7, %rd6, 0, %p0;\n\
                ld.global.u32 %r8, [%rd7]; ld.shared.u32 %r3, [%r7]; add.u32 %r3, %r3, %r8; st.shared.u32 [%r7], %r3;\n\
                st.global.u32 [%rd1+28], %r8; cvt.u64.u32 %rd6, %r8; add.s64 %rd5, %rd5, %rd6; cvt.u16.u32 %h1, %r8;\n\
                xor.b16 %h0, %h0, %h1; fma.rn.f32 %f0, %f0, 0f3FC00000, 0f3F000000; add.f64 %d0, %d0, %d0;\n\
                setp.gt.s32 %p1|%p3, %r8, 0; add.u32 %r9, %r9, %r8; @%p1 add.u32 %r9, %r9, 9; mov.u32 %r4, 1;\n";
    let end = "cvt.u32.u16 %r3, %h0; selp.u32 %r4, 1, 0, %p1; add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r9;\n\
               st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+4], %r3; st.global.u64 [%rd1+8], %rd5; st.global.f32 [%rd1+16], %f0;\n\
               cvt.rn.f32.f64 %f1, %d0; st.global.f32 [%rd1+20], %f1; ld.shared.u32 %r13, [%r7]; st.global.u32 [%rd1+24], %r13;";
    // Without what makes lanes wait for each other's stores on the way.
    let quiet = work.replace("ld.shared.u32 %r3, [%r7]; add.u32 %r3, %r3, %r8; st.shared.u32 [%r7], %r3;", "");
    let quiet = quiet.replace("st.global.u32 [%rd1+28], %r8;", "");
    let skips = [
        ("@!%p0 bra MET;", true),
        ("not.pred %p2, %p0; @%p2 bra MET;", true),
        ("@%p0 bra SIDE; bra.uni MET; SIDE:", true),
        // The side lies behind the end of all others.
        ("@%p0 bra SIDE;", false),
    ];
    let others = ["mad.lo.u32 %r9, %r2, 3, %r9;", "red.global.add.u32 [%rd0+512], 3;"];
    let ways = [&quiet, work].into_iter().zip(others).flat_map(|way| skips.map(|skip| (way, skip)));
    for ((work, other), (skip, between)) in ways {
        let asked = "shr.u32 %r12, %r1, %r6; and.b32 %r12, %r12, 1; setp.ne.u32 %p0, %r12, 0;\n";
        let (side, end, out) = match between {
            true => (work, end.to_owned(), String::new()),
            false => ("", format!("{end} bra.uni END;"), format!("SIDE: {work} bra.uni MET;")),
        };
        let once = format!("{begin}{asked}{skip} {side} MET: add.u32 %r2, %r2, %r9; {end} {out}");
        check(Form::default(), &once, &mixed);
        let other = format!("setp.lt.u32 %p4, %r12, 1; @%p4 bra NEXT; add.u32 %r2, %r2, %r6; {other} NEXT:");
        let looped = format!(
            "{begin}AGAIN: {asked}{skip} {side} MET: add.u32 %r2, %r2, %r9; {other}\n\
             add.u32 %r6, %r6, 1; setp.lt.u32 %p5, %r6, 9; @%p5 bra AGAIN; {end} {out}"
        );
        check(Form::default(), &looped, &mixed);
    }
}

/// Registers that come over many barriers and are only stored: by lanes side by side, apart, anywhere, in pairs with a number, under
/// guards, and to where nothing is.
#[test]
fn what_comes_over_barriers_is_stored() {
    let begin = "mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd0, %rd3; ld.global.u32 %r1, [%rd4]; ld.global.u32 %r2, [%rd4+512];\n\
                 cvt.u64.u32 %rd5, %r1; mul.lo.s64 %rd5, %rd5, 1000003; cvt.rn.f32.u32 %f0, %r2; mov.u32 %r10, s; mov.u32 %r6, %r1;\n\
                 shl.b32 %r7, %r0, 2; add.u32 %r7, %r7, %r10; xor.b32 %r8, %r0, 1; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r10;\n\
                 setp.gt.s32 %p0, %r2, 0;\n";
    let step = "st.shared.u32 [%r7], %r6; bar.sync 0; ld.shared.u32 %r9, [%r8]; add.u32 %r6, %r6, %r9; bar.sync 0;\n"
        .repeat(8);
    let ends = [
        "st.global.u32 [%rd4+2048], %r1; st.global.f32 [%rd4+4096], %f0;",
        "st.global.u32 [%rd1], %r1; st.global.v2.u32 [%rd1+8], {%r2, 7}; st.global.u64 [%rd1+16], %rd5; st.global.u32 [%rd1+4], 9;",
        "and.b32 %r3, %r1, 15; mad.lo.u32 %r3, %r0, 16, %r3; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd6, %rd0, %rd6;\n\
         st.global.u32 [%rd6+8192], %r2; st.global.f32 [%rd6+4096], %f0;",
        "@%p0 st.global.u32 [%rd1], %r1; @!%p0 st.global.u64 [%rd1+8], %rd5; @%p0 bra SKIP; st.shared.u32 [%r7], %r2; SKIP:\n\
         ld.shared.u32 %r4, [%r7]; st.global.u32 [%rd1+20], %r4;",
        "and.b32 %r3, %r1, 7; setp.eq.u32 %p1, %r3, 1; selp.b64 %rd6, 64, 0, %p1; add.s64 %rd6, %rd1, %rd6; st.global.u32 [%rd6], %r2;\n\
         selp.b64 %rd7, 1, 0, %p1; add.s64 %rd7, %rd1, %rd7; st.global.u32 [%rd7+8], %r1;",
    ];
    for end in ends {
        check(Form::default(), &format!("{begin}{step}{end} st.global.u32 [%rd1+28], %r6;"), &mixed);
    }
}

/// Predicates made of bounds: two or three of them, in both orders, with indices that rise, fall and wrap.
#[test]
fn branches_by_bounds() {
    let indices = [
        "mov.u32 %r1, %r0;",
        "sub.u32 %r1, 50, %r0;",
        "add.u32 %r1, %r0, 2147483640;",
        "sub.u32 %r1, 9, %r0;",
        "mul.lo.u32 %r1, %r0, 3; sub.u32 %r1, %r1, 100;",
    ];
    let all = indices.iter().flat_map(|index| {
        ["lt.s32", "ge.s32", "le.u32", "gt.u32", "eq.s32", "ne.u32"].map(|compare| (*index, compare))
    });
    for (at, (index, compare)) in all.enumerate() {
        for bound in [1, 31, 60] {
            let first = format!("setp.{compare} %p1, %r1, %r2;");
            let second = ["setp.lt.s32 %p2, %r0, 5;", "setp.ge.u32 %p2, 37, %r0;", "setp.eq.u32 %p2, %r3, 9;"][at % 3];
            let made = [
                "mov.pred %p4, %p1;",
                "or.pred %p4, %p1, %p2;",
                "and.pred %p4, %p2, %p1;",
                "not.pred %p3, %p1; and.pred %p4, %p3, %p2;",
                "or.pred %p3, %p1, %p2; not.pred %p3, %p3; or.pred %p4, %p3, %p1;",
            ][(at + bound as usize) % 5];
            let not = if at % 2 == 0 { "" } else { "!" };
            // What is compared changes before the branch, or not.
            let later = if at % 5 == 4 { "mov.u32 %r2, 77;" } else { "" };
            // What is made is read again, or not.
            let again = if bound % 3 == 1 {
                "selp.u32 %r5, 1, 2, %p1; selp.u32 %r6, 4, 8, %p4; add.u32 %r5, %r5, %r6;"
            } else {
                ""
            };
            let body = format!(
                "{index} ld.global.u32 %r3, [%rd0]; mov.u32 %r2, {bound}; mov.u32 %r4, 1; mov.u32 %r5, 0;\n{first} {second} {made}\n\
                 {later} @{not}%p4 bra SKIP; mul.lo.u32 %r4, %r0, 5; ld.global.u32 %r7, [%rd1]; add.u32 %r4, %r4, %r7;\n\
                 SKIP: {again} add.u32 %r4, %r4, %r2; st.global.u32 [%rd1], %r4; st.global.u32 [%rd1+4], %r5;"
            );
            check(Form::default(), &body, &mixed);
        }
    }
}

/// Sums that become NaN, in loops and out of them, and what is stored of them.
#[test]
fn stored_sums_are_canonical() {
    // Quiet and signalling NaNs with marks of their own, infinities, numbers.
    let word =
        |i: u32| [0x7f80_0000, 0xff80_0000, 0x7fc1_2345, 0xff81_2345, 0x3f80_0000, mixed(i)][mixed(i) as usize % 6];
    let body = "mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd0, %rd3; mov.f32 %f0, 0f00000000; mov.u32 %r1, 0;\n\
                mov.f32 %f5, 0f3F800000; mov.f64 %d1, 0d0000000000000000;\n\
                LOOP: ld.global.f32 %f1, [%rd4]; ld.global.f32 %f2, [%rd4+512]; fma.rn.f32 %f0, %f1, %f2, %f0;\n\
                cvt.f64.f32 %d0, %f1; add.f64 %d1, %d1, %d0; mul.f32 %f5, %f5, %f2;\n\
                add.s64 %rd4, %rd4, 128; add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, %r2; @%p0 bra LOOP;\n\
                st.global.f32 [%rd1], %f0; add.f32 %f3, %f0, %f1; st.global.v2.f32 [%rd1+8], {%f5, %f3}; add.f64 %d2, %d1, %d0;\n\
                st.global.f64 [%rd1+16], %d2; st.global.f32 [%rd1+4], %f1; mul.f32 %f4, %f0, %f5; add.f32 %f4, %f4, %f4;\n\
                neg.f32 %f4, %f4; st.global.f32 [%rd1+24], %f4; mov.b32 %r3, %f0; st.global.u32 [%rd1+28], %r3;";
    for trips in ["mov.u32 %r2, 4;", "and.b32 %r2, %r0, 7;"] {
        let body = format!("{trips}{body}");
        check(Form::default(), &body, &word);
        check(Form { alone: true, ..Form::default() }, &body, &word);
    }
}

/// Some lanes of a chunk load what lies side by side, up to where memory ends: the others have nothing there.
#[test]
fn lanes_load_up_to_the_end_of_memory() {
    for (load, size) in [("u32 %r4", 4_u32), ("u8 %r4", 1), ("f64 %d0", 8)] {
        for count in [1_u32, 3, 17, 30, 40] {
            let at = BYTES - count * size;
            let body = format!(
                "mov.u32 %r4, 0; mov.f64 %d0, 0d0000000000000000; mul.wide.u32 %rd3, %r0, {size}; add.s64 %rd4, %rd0, %rd3;\n\
                 setp.ge.u32 %p0, %r0, {count}; @%p0 bra SKIP; ld.global.{load}, [%rd4+{at}];\n\
                 SKIP: st.global.u32 [%rd1], %r4; st.global.f64 [%rd1+8], %d0;"
            );
            check(Form::default(), &body, &mixed);
        }
    }
}

/// A comparison that gives two predicates, of which the one leads the way and the other is asked there, and later.
#[test]
fn both_predicates_of_a_bound_are_known() {
    for bound in [0, 1, 31, 60, 500] {
        for (index, order) in [("%r0, ", ""), ("", ", %r0")] {
            let body = format!(
                "mov.u32 %r2, {bound}; setp.lt.u32 %p0|%p1, {index}%r2{order}; @%p0 bra YES;\n\
                 selp.u32 %r3, 1, 2, %p1; bra.uni MET;\nYES: selp.u32 %r3, 3, 4, %p1;\n\
                 MET: selp.u32 %r4, 5, 6, %p1; st.global.u32 [%rd1], %r3; st.global.u32 [%rd1+4], %r4;"
            );
            check(Form::default(), &body, &mixed);
        }
    }
}
