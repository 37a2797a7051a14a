//! Numbers that `.ftz` flushes, and where somebody sees that they are not.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/blocks.rs"]
mod blocks;
mod support;

use blocks::{check, mixed};
use ptx_jit::Form;

/// Subnormals, what borders on them, products and quotients that are subnormal, and what has no exponent at all.
fn word(i: u32) -> u32 {
    const WORDS: [u32; 18] = [
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x807f_ffff,
        0x0040_0000,
        0x0080_0000,
        0x8080_0000,
        0x0080_0001,
        0x0000_0000,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc1_2345,
        0xff81_2345,
        0x3f80_0000,
        0xbf00_0000,
        0x7f7f_ffff,
        0x2000_0000,
    ];
    if mixed(i) % 8 == 7 { mixed(i) } else { WORDS[mixed(i) as usize / 8 % WORDS.len()] }
}

/// `%rd4` is where the words of the thread begin: at multiples of 512 bytes there are others.
fn check_all(body: &str) {
    let body = format!("mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd0, %rd3;\n{body}");
    for form in [Form::default(), Form { alone: true, ..Form::default() }, Form { region: Some(5), alone: false }] {
        check(form, &body, &word);
    }
}

const LOADS: &str = "ld.global.f32 %f0, [%rd4]; ld.global.f32 %f1, [%rd4+512]; ld.global.f32 %f2, [%rd4+1024];\n\
                     setp.lt.u32 %p1, %r0, 19; setp.eq.u32 %p2, %r0, 3;\n";

/// What is loaded is read by operations that flush, and by others or none.
#[test]
fn loads_that_are_seen_are_not_flushed() {
    let sums = "add.ftz.f32 %f3, %f0, %f1; mul.ftz.f32 %f4, %f0, %f2; st.global.v2.f32 [%rd1], {%f3, %f4};";
    for seen in [
        "",
        "add.f32 %f5, %f0, %f1; st.global.f32 [%rd1+8], %f5;",
        "st.global.f32 [%rd1+8], %f0;",
        "@%p1 st.global.f32 [%rd1+8], %f0;",
        "mov.f32 %f5, %f0; st.global.f32 [%rd1+8], %f5;",
        "mov.f32 %f5, %f0; add.ftz.f32 %f5, %f5, %f1; st.global.f32 [%rd1+8], %f5;",
        "neg.f32 %f5, %f0; fma.rn.ftz.f32 %f6, %f5, %f1, %f2; st.global.f32 [%rd1+8], %f6;",
        "neg.f32 %f5, %f0; st.global.f32 [%rd1+8], %f5;",
        "abs.f32 %f5, %f0; min.f32 %f6, %f5, %f1; st.global.f32 [%rd1+8], %f6;",
        "selp.f32 %f5, %f0, %f1, %p1; st.global.f32 [%rd1+8], %f5;",
        "copysign.f32 %f5, %f1, %f0; st.global.f32 [%rd1+8], %f5;",
        "testp.subnormal.f32 %p3, %f0; selp.u32 %r1, 1, 2, %p3; st.global.u32 [%rd1+8], %r1;",
        "shfl.sync.bfly.b32 %f5, %f0, 0, 31, -1; st.global.f32 [%rd1+8], %f5;",
        "cvt.rn.ftz.f16.f32 %h0, %f0; st.global.b16 [%rd1+8], %h0; cvt.rzi.ftz.s32.f32 %r1, %f1; st.global.u32 [%rd1+12], %r1;",
        "cvt.ftz.f64.f32 %d0, %f0; st.global.f64 [%rd1+8], %d0; cvt.f64.f32 %d0, %f1; st.global.f64 [%rd1+16], %d0;",
        "red.global.add.f32 [%rd1+8], %f0;",
        "setp.gt.f32 %p3, %f0, %f1; selp.u32 %r1, 1, 2, %p3; st.global.u32 [%rd1+8], %r1;",
        "setp.gt.ftz.f32 %p3, %f0, %f1; selp.u32 %r1, 1, 2, %p3; st.global.u32 [%rd1+8], %r1;",
        "set.eq.ftz.f32.f32 %f5, %f0, %f1; st.global.f32 [%rd1+8], %f5;",
        "slct.ftz.f32.f32 %f5, %f0, %f1, %f2; st.global.f32 [%rd1+8], %f5;",
    ] {
        check_all(&format!("{LOADS}{sums}{seen}"));
    }
}

/// Registers that are loaded in some threads, together, in part, or from elsewhere.
#[test]
fn loads_of_all_kinds_are_flushed() {
    for load in [
        "mov.f32 %f0, 0f00000007; @%p1 ld.global.f32 %f0, [%rd4+2048];",
        "mov.f32 %f0, 0f3F800000; @!%p2 ld.global.f32 %f0, [%rd4+2048];",
        "@%p2 ld.global.f32 %f0, [%rd0+2048];",
        "@%p1 bra ON; ld.global.f32 %f0, [%rd4+2048]; ON:",
        "@%p1 bra ON; add.f32 %f0, %f1, %f2; ON:",
        "and.b64 %rd5, %rd4, -16; ld.global.v4.f32 {%f0, %f1, %f2, %f7}, [%rd5]; st.global.f32 [%rd1+16], %f7;",
        "and.b64 %rd5, %rd4, -16; @%p1 ld.global.v4.f32 {%f0, _, %f2, _}, [%rd5];",
        "ld.global.f32 %f0, [%rd0+64]; ld.global.u16 %f1, [%rd4];",
        "ld.param.b32 %f0, [a]; ld.global.s8 %f1, [%rd4];",
        "mov.u32 %r3, s; shl.b32 %r4, %r0, 2; add.u32 %r3, %r3, %r4; st.shared.f32 [%r3], %f0; ld.shared.f32 %f0, [%r3];",
        "mov.b64 %rd5, {%f0, %f1}; mov.b64 {%f2, %f0}, %rd5;",
        "shfl.sync.bfly.b32 %f0, %f1, 0, 31, -1;",
        "cvt.rn.f32.u32 %f0, %r0; cvt.f32.f16 %f1, %h0; ld.global.f64 %d0, [%rd0+8]; cvt.rn.f32.f64 %f2, %d0;",
        "ld.global.b16 %h1, [%rd4]; cvt.f32.bf16 %f0, %h1; cvt.f32.f16 %f1, %h1; cvt.rmi.f32.f32 %f2, %f2;",
    ] {
        check_all(&format!(
            "{LOADS}{load} add.ftz.f32 %f3, %f0, %f1; mul.ftz.f32 %f4, %f0, %f2; fma.rn.ftz.f32 %f5, %f4, %f0, 0f00000005;\n\
             max.ftz.f32 %f6, %f0, %f1; st.global.v4.f32 [%rd1], {{%f3, %f4, %f5, %f6}};"
        ));
    }
}

/// Sums and what is loaded for the next trip go around a loop that threads leave one by one.
#[test]
fn loops_carry_what_is_flushed() {
    let begin = "mov.f32 %f3, 0f00000000; mov.f32 %f4, %f0; mov.f32 %f5, 0f80000003; and.b32 %r1, %r0, 7;\nLOOP: ";
    let end = "add.s64 %rd4, %rd4, 4; setp.ne.u32 %p3, %r1, 0; sub.u32 %r1, %r1, 1; @%p3 bra LOOP;\n\
               st.global.v2.f32 [%rd1], {%f3, %f4}; st.global.f32 [%rd1+8], %f5;";
    for trip in [
        "fma.rn.ftz.f32 %f3, %f0, %f1, %f3; fma.rn.ftz.f32 %f4, %f4, %f2, %f0;",
        "ld.global.f32 %f6, [%rd4]; add.ftz.f32 %f3, %f3, %f0; sub.ftz.f32 %f4, %f1, %f0; mov.f32 %f0, %f1; mov.f32 %f1, %f6;",
        "@%p1 ld.global.f32 %f0, [%rd4]; mul.ftz.f32 %f3, %f0, %f1; add.ftz.f32 %f5, %f5, %f0;",
        "add.f32 %f3, %f3, %f0; mul.ftz.f32 %f4, %f3, %f1;",
        "mul.ftz.f32 %f4, %f4, %f1; neg.f32 %f4, %f4; selp.f32 %f3, %f0, %f4, %p2;",
        "ld.volatile.global.f32 %f6, [%rd4]; mul.ftz.f32 %f3, %f6, %f2; max.f32 %f5, %f5, %f6;",
    ] {
        check_all(&format!("{LOADS}{begin}{trip}{end}"));
    }
}

/// Every operation that flushes, on what is loaded, on results of others, and on numbers that the text has.
#[test]
fn operations_on_what_is_flushed() {
    for op in [
        "add.ftz.f32 %f5, A, B",
        "sub.ftz.sat.f32 %f5, A, B",
        "mul.ftz.f32 %f5, A, B",
        "mul.rz.ftz.f32 %f5, A, B",
        "fma.rn.ftz.f32 %f5, A, B, A",
        "fma.rm.ftz.f32 %f5, A, B, B",
        "fma.rn.ftz.sat.f32 %f5, A, B, %f2",
        "min.ftz.f32 %f5, A, B",
        "max.ftz.f32 %f5, A, B",
        "max.ftz.NaN.f32 %f5, A, B",
        "div.rn.ftz.f32 %f5, A, B",
        "div.full.ftz.f32 %f5, A, B",
        "div.approx.ftz.f32 %f5, A, B",
        "abs.ftz.f32 %f5, A",
        "neg.ftz.f32 %f5, B",
        "sqrt.rn.ftz.f32 %f5, A",
        "sqrt.approx.ftz.f32 %f5, A",
        "rcp.rn.ftz.f32 %f5, A",
        "rcp.approx.ftz.f32 %f5, B",
        "rsqrt.approx.ftz.f32 %f5, A",
        "sin.approx.ftz.f32 %f5, A",
        "cos.approx.ftz.f32 %f5, B",
        "lg2.approx.ftz.f32 %f5, A",
        "ex2.approx.ftz.f32 %f5, A",
        "cvt.ftz.f32.f32 %f5, A",
        "cvt.rni.ftz.f32.f32 %f5, A",
        "cvt.rzi.ftz.s32.f32 %f5, A",
        "cvt.ftz.sat.f32.f32 %f5, A",
        "set.lt.ftz.f32.f32 %f5, A, B",
        "slct.ftz.f32.f32 %f5, %f1, %f2, A",
    ] {
        let made = "mul.ftz.f32 %f3, %f0, %f1; add.f32 %f4, %f1, %f2; neg.f32 %f7, %f4;";
        for (a, b) in [
            ("%f0", "%f1"),
            ("%f3", "%f0"),
            ("%f4", "%f3"),
            ("%f7", "%f4"),
            ("0f00000009", "%f3"),
            ("%f0", "0f00800000"),
        ] {
            if a.starts_with('0') && op.starts_with("cvt") {
                continue;
            }
            let op = op.replace('A', a).replace('B', b);
            let body = format!(
                "{made} {op}; st.global.f32 [%rd1], %f5; add.ftz.f32 %f6, %f5, %f3; st.global.f32 [%rd1+4], %f6;"
            );
            check(
                Form::default(),
                &format!("mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd0, %rd3;\n{LOADS}{body}"),
                &word,
            );
        }
    }
}
