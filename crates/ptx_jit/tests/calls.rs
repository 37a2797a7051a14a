//! Calls of any depth and any number: the IR grows with the text, and both engines give the result.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fmt::Write;

use testgen::ptx_case::{Case, parse};

const HEAD: &str = ".version 8.5\n.target sm_75\n.address_size 64\n";

/// A kernel of 40 threads that stores what the function `first` makes of the thread's number.
fn kernel(first: &str, expect: impl Fn(u32) -> u32) -> String {
    let expected: Vec<String> = (0..40).map(|i| expect(i).to_string()).collect();
    format!(
        "// run: k grid=1 block=40\n// buffer out: u32 0*40\n// param: out\n// expect out: u32 {}
         .visible .entry k(.param .u64 out) {{
             .reg .b32 %r<4>; .reg .b64 %rd<4>;
             ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
             {{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1;
                call.uni (r), {first}, (a); ld.param.b32 %r2, [r]; }}
             st.global.u32 [%rd3], %r2; ret; }}\n",
        expected.join(" ")
    )
}

fn check(text: &str) -> Case {
    let case = parse(text).unwrap().remove(0);
    case.check(&mut testgen::interpret).unwrap();
    case.check(&mut |k, l, base, bytes| support::run(k, l, base, bytes, 0)).unwrap();
    case
}

fn size(case: &Case) -> usize {
    case.kernel.blocks.iter().map(|b| b.insts.len() + 1).sum()
}

#[test]
fn three_hundred_deep() {
    let mut text = HEAD.to_owned();
    text.push_str(".func (.param .b32 out) f0(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r1, [x]; st.param.b32 [out], %r1; ret; }\n");
    for i in 1..300 {
        // Every seventh hands its argument on through memory.
        let through = if i % 7 == 0 { "mov.u64 %rd1, a; st.local.b32 [%rd1], %r1;" } else { "st.param.b32 [a], %r1;" };
        writeln!(
            text,
            ".func (.param .b32 out) f{i}(.param .b32 x) {{ .reg .b32 %r<4>; .reg .b64 %rd<2>; ld.param.b32 %r1, [x];
               add.u32 %r1, %r1, {i};
               {{ .param .b32 a; .param .b32 r; {through} call.uni (r), f{}, (a); ld.param.b32 %r2, [r]; }}
               xor.b32 %r3, %r2, %r1; st.param.b32 [out], %r3; ret; }}",
            i - 1
        )
        .unwrap();
    }
    fn level(i: u32, x: u32) -> u32 {
        if i == 0 { x } else { level(i - 1, x.wrapping_add(i)) ^ x.wrapping_add(i) }
    }
    text.push_str(&kernel("f299", |x| level(299, x)));
    let case = check(&text);
    assert!(size(&case) < 300 * 40, "{}", size(&case));
}

#[test]
fn every_function_calls_the_next_twice() {
    const LEVELS: u32 = 10;
    let padding: String = (0..200).map(|i| format!("add.u32 %r4, %r4, {i}; ")).collect();
    let mut text = HEAD.to_owned();
    text.push_str(".func (.param .b32 out) f0(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r1, [x]; add.u32 %r1, %r1, 1; st.param.b32 [out], %r1; ret; }\n");
    for i in 1..LEVELS {
        let call = |from: &str, to: &str| {
            let callee = i - 1;
            format!(
                "{{ .param .b32 a; .param .b32 r; st.param.b32 [a], {from}; call.uni (r), f{callee}, (a); ld.param.b32 {to}, [r]; }}"
            )
        };
        // The lanes part on the way to the second call.
        writeln!(
            text,
            ".func (.param .b32 out) f{i}(.param .b32 x) {{ .reg .pred %p; .reg .b32 %r<6>; ld.param.b32 %r1, [x];
               mov.u32 %r4, 0; {padding} {} and.b32 %r5, %r2, {i}; setp.eq.u32 %p, %r5, 0; mov.u32 %r3, %r2; @%p bra END;
               {} END: add.u32 %r3, %r3, %r4; st.param.b32 [out], %r3; ret; }}",
            call("%r1", "%r2"),
            call("%r2", "%r3")
        )
        .unwrap();
    }
    fn level(i: u32, x: u32) -> u32 {
        if i == 0 {
            return x.wrapping_add(1);
        }
        let first = level(i - 1, x);
        let second = if first & i == 0 { first } else { level(i - 1, first) };
        second.wrapping_add((0..200).sum())
    }
    text.push_str(&kernel(&format!("f{}", LEVELS - 1), |x| level(LEVELS - 1, x)));
    let case = check(&text);
    assert!(size(&case) < LEVELS as usize * 400, "{}", size(&case));
}
