//! Accesses that machine code asks about together: random runs of loads, stores and arithmetic on addresses, in both engines; and what
//! happens where one of several must not be done.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/exchange.rs"]
mod exchange;
#[path = "support/numbers.rs"]
mod numbers;
mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use exchange::{SHAPES, check, run};
use numbers::Random;
use ptx::launch::{AccessError, Control, Exception, Launch};
use ptx_jit::Form;

/// In registers that are written once, as compilers do it: the thread, `%r14`; its word of the memory, `%in`, and of the results, `%out`; and
/// where its words of shared memory are, `%own`.
const PLACE: &str = ".reg .b64 %in; .reg .b64 %out; .reg .b64 %word; .reg .b32 %own;\n\
                     mov.u32 %r22, %tid.z; mov.u32 %r23, %ntid.y; mov.u32 %r24, %tid.y; mad.lo.u32 %r25, %r22, %r23, %r24;\n\
                     mov.u32 %r26, %ntid.x; mov.u32 %r27, %tid.x; mad.lo.u32 %r14, %r25, %r26, %r27;\n\
                     mul.wide.u32 %word, %r14, 4; add.s64 %in, %rd0, %word; add.s64 %out, %rd1, %word;\n\
                     shl.b32 %r28, %r14, 2; mov.u32 %r29, s; add.u32 %own, %r29, %r28;\n";

/// One instruction or a few. Addresses are registers `%a`, each written in one place, of indices, of which those in `%r5` to `%r7` change; what is
/// loaded adds up in `%r8`, and as floating-point numbers in `%r20`. Threads write what is their own.
fn step(random: &mut Random, addresses: &mut u32, one_warp: bool) -> String {
    let index = random.of(&["%r5", "%r6", "%r7"]);
    let address = format!("%a{}", random.below(*addresses));
    let new = *addresses;
    let offset = 4 * random.below(8);
    let own = 1024 * (1 + random.below(6));
    let load = |to: &str, what: String| format!("ld.{what}; mad.lo.u32 %r8, {to}, 3, %r8;");
    match random.below(if one_warp { 21 } else { 18 }) {
        18 => format!("mov.u32 %r30, {}; st.shared.u32 [s+{offset}], %r30;", random.below(300)),
        19 => {
            *addresses += 1;
            let word = random.of(&[
                "shared.u32 {}, [s+8]",
                "shared.u32 {}, [s]",
                "volatile.shared.u32 {}, [s+4]",
                "global.u32 {}, [%rd0+64]",
            ]);
            let index = format!("%c{new}");
            let load = word.replace("{}", &index);
            format!(
                "ld.{load}; and.b32 {index}, {index}, 511; mul.wide.u32 %b{new}, {index}, 4; add.s64 %a{new}, %rd0, %b{new};"
            )
        }
        20 => format!(
            "mov.u32 %r30, {}; st.global.u32 [%rd0+64], %r30; ld.global.u32 %r9, [{address}]; add.u32 %r8, %r8, %r9;",
            random.below(300)
        ),
        16 | 17 => {
            *addresses += 1;
            let index = format!("%c{new}");
            let made = random.of(&[
                "add.u32 {}, %r14, 9;",
                "shl.b32 {}, %r14, 1;",
                "mov.u32 {}, 300;",
                "add.u32 {}, %r8, 0; and.b32 {}, {}, 511;",
            ]);
            format!("{} mul.wide.u32 %b{new}, {index}, 4; add.s64 %a{new}, %rd0, %b{new};", made.replace("{}", &index))
        }
        0 => format!("and.b32 {index}, {index}, 2047; add.u32 {index}, {index}, {};", random.below(100)),
        1 => format!("add.u32 {index}, %r14, {};", random.below(100)),
        2 => format!("and.b32 {index}, %r8, 1023;"),
        3..=5 => {
            *addresses += 1;
            format!("mul.wide.{} %b{new}, {index}, 4; add.s64 %a{new}, %rd0, %b{new};", random.of(&["u32", "s32"]))
        }
        6 => {
            *addresses += 1;
            format!("add.s64 %a{new}, {}, {offset};", random.of(&["%in", "%rd0"]))
        }
        7 | 8 => load("%r9", format!("global.u32 %r9, [{address}+{offset}]")),
        9 => load("%r9", format!("shared.u32 %r9, [%own+{own}]")),
        10 => load("%r9", format!("shared.u32 %r9, [s+{offset}]")),
        11 => load("%r10", format!("global.v2.u32 {{%r9, %r10}}, [%rd0+{}]", 8 * random.below(4))),
        12 => format!(
            "ld.global.u32 %r9, [{address}]; cvt.rn.f32.u32 %r21, %r9; fma.rn.f32 %r20, %r21, %r2{}, %r20;",
            random.below(2)
        ),
        13 => format!("st.global.u32 [%out+{own}], %r8;"),
        14 => format!("st.shared.u32 [%own+{own}], %r8;"),
        _ => format!("st.global.f32 [%out+{own}], %r20;"),
    }
}

#[test]
fn runs_of_accesses() {
    for seed in 0..40 {
        let mut random = Random(seed);
        // Then it writes what is read elsewhere, too.
        let one_warp = seed % 2 == 0;
        let mut body = PLACE.to_owned()
            + ".reg .b64 %a<200>; .reg .b64 %b<200>; .reg .b32 %c<200>;\n\
                        mov.u32 %r5, %r14; add.u32 %r6, %r14, 7; mov.u32 %r7, 11; mov.u32 %r8, 1; mov.u32 %r11, 0; mov.b32 %r20, 0x3f800000;\n\
                        mov.b32 %r21, %r20; mov.u64 %a0, %rd0; mov.u64 %a1, %in; st.shared.u32 [s], %r7; bar.sync 0;\n";
        let mut addresses = 2;
        for part in 0..1 + random.below(3) {
            let again = random.below(2) == 0;
            if again {
                writeln!(body, "mov.u32 %r11, 0; AGAIN{part}:").unwrap();
            }
            for _ in 0..4 + random.below(40) {
                writeln!(body, "{}", step(&mut random, &mut addresses, one_warp)).unwrap();
            }
            if again {
                writeln!(body, "add.u32 %r11, %r11, 1; setp.lt.u32 %p0, %r11, 3; @%p0 bra AGAIN{part};").unwrap();
            }
        }
        body += "add.u32 %r8, %r8, %r20; st.global.u32 [%out], %r8;";
        let fits = |&(block, _): &([u32; 3], usize)| !one_warp || block.iter().product::<u32>() == 32;
        for (block, padding) in SHAPES.into_iter().filter(fits) {
            run(&body, block, padding);
        }
    }
}

/// An address that is made of what has just been stored, where the load names its place and no register.
#[test]
fn an_index_that_is_stored_before() {
    let body = PLACE.to_owned()
        + ".reg .b64 %a; .reg .b64 %b; mov.u32 %r4, 5; st.shared.u32 [s], %r4; ld.shared.u32 %r5, [s];\n\
           mul.wide.u32 %b, %r5, 4; add.s64 %a, %rd0, %b; ld.global.u32 %r6, [%a]; st.global.u32 [%out], %r6;";
    for (block, padding) in SHAPES {
        let words = run(&body, block, padding);
        assert!(words.iter().all(|&word| word == exchange::input(5)));
    }
}

/// An address of each lane's own that is made of an index which changes among accesses that are asked about together.
#[test]
fn an_index_that_changes_on_the_way() {
    let body = PLACE.to_owned()
        + ".reg .b64 %a; .reg .b64 %b; ld.global.u32 %r4, [%in]; and.b32 %r5, %r4, 1023;\n\
           ld.global.u32 %r6, [%in]; mul.wide.u32 %b, %r5, 4; add.s64 %a, %rd0, %b; add.u32 %r5, %r5, 1;\n\
           ld.global.u32 %r7, [%in]; ld.global.u32 %r8, [%in+1024]; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8;\n\
           ld.global.u32 %r9, [%a]; add.u32 %r6, %r6, %r9; add.u32 %r6, %r6, %r5; st.global.u32 [%out], %r6;";
    for (block, padding) in SHAPES {
        run(&body, block, padding);
    }
}

#[test]
fn neighbours() {
    let body = PLACE.to_owned()
        + "ld.global.u32 %r4, [%in]; add.s64 %rd5, %in, 1024; ld.global.u32 %r5, [%rd5+-1024]; ld.global.u32 %r6, [%in];\n\
           add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6; st.global.u32 [%out], %r4;";
    check(&body, |words| words.iter().map(|word| 3 * word).collect());
}

const BASE: u64 = 0x20_0000_0000;

/// What a warp does that runs `body` over a page of words, each its own number, and the words then: `%rd0` is the page, `%rd1` a word for
/// each thread in it, and `%rd2` what `at` says.
fn of_a_warp(body: &str, at: u64) -> (Result<(), Exception>, Vec<u32>) {
    let text = format!(
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b) {{\n\
         .reg .b64 %rd<16>; .reg .b32 %r<32>;\n\
         ld.param.u64 %rd0, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4; add.s64 %rd1, %rd0, %rd3;\n\
         {body}\nret;\n}}\n"
    );
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap());
    let launch = Arc::new(Launch {
        grid_id: 1,
        ..Launch::new([1; 3], [32, 1, 1], [BASE, at].iter().flat_map(|a| a.to_le_bytes()).collect())
    });
    let mut bytes: Vec<u8> = (0..1024_u32).flat_map(u32::to_le_bytes).collect();
    let done = support::run(&kernel, &launch, BASE, &mut bytes, Control::RUN);
    (done, bytes.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect())
}

/// Three loads and two stores, of which the last load may be anywhere.
const FIVE: &str = "ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%rd1+128]; add.u32 %r3, %r1, %r2; st.global.u32 [%rd1+256], %r3;\n\
                    ld.global.u32 %r4, [%rd2]; add.u32 %r4, %r4, %r3; st.global.u32 [%rd1+384], %r4;";

#[test]
fn what_comes_before_an_access_that_must_not_be_is_done() {
    let (done, words) = of_a_warp(FIVE, BASE + 4000);
    assert_eq!(done, Ok(()));
    assert!((0..32).all(|i| words[i + 64] as usize == 2 * i + 32 && words[i + 96] as usize == 2 * i + 1032));
    for (at, error) in [
        (BASE + 4002, AccessError::Misaligned),
        (BASE - 4, AccessError::OutOfWindow),
        (BASE + 0x10_0000 + 4096, AccessError::OutOfWindow),
        (BASE + 4096, AccessError::Unmapped),
        (0, AccessError::OutOfWindow),
    ] {
        let (done, words) = of_a_warp(FIVE, at);
        let told = matches!(done, Err(Exception::Access { address, error: e, .. }) if (address, e) == (at, error));
        assert!(told, "{at:#x}: {done:?}");
        assert!((0..32).all(|i| words[i + 64] as usize == 2 * i + 32), "{at:#x}: what was stored before");
        assert!((0..32).all(|i| words[i + 96] as usize == i + 96), "{at:#x}: what would be stored behind");
    }
}

/// Where the array of elements begins, and the first index: around the ends of memory, and where indices wrap.
fn array(random: &mut Random, signed: bool, scale: i64, bytes: usize) -> (u64, u32) {
    let end = WORDS as i64 * 4 / scale;
    let (at, index) = match random.below(10) {
        // The end of all that there may be pages in.
        8 | 9 => (bytes as i64 + (1 << 20) - 4 * i64::from(random.below(6)) - scale * 5, i64::from(random.below(8))),
        0 => (0, end - i64::from(random.below(12))),
        1 => (-4 * i64::from(random.below(8)), i64::from(random.below(8))),
        2 => (i64::from(random.below(4)), i64::from(random.below(64))),
        // Memory is around the highest index, or the lowest one.
        3 | 4 => {
            let highest = if signed { i64::from(i32::MAX) } else { i64::from(u32::MAX) };
            (2048 - scale * highest, highest - i64::from(random.below(12)))
        }
        5 if signed => (2048 - scale * i64::from(i32::MIN), i64::from(i32::MIN) + i64::from(random.below(12)) - 6),
        _ => (0, i64::from(random.below(200))),
    };
    (BASE.wrapping_add_signed(at), index as u32)
}

/// Reads and writes of elements around an index, of an array in `%rd0`, with words of `%rd1` in between that are stored, and some that are
/// read at places which depend on what was read before.
fn elements(random: &mut Random, signed: bool, scale: i64, writes: bool) -> String {
    let ty = if signed { "s32" } else { "u32" };
    let (size, register) = random.of(&[(4, "%r9"), (8, "%rd9"), (4, "%f9")]);
    let kind = if register == "%f9" { "f32".to_owned() } else { format!("u{}", 8 * size) };
    let used = match register {
        "%r9" => "mad.lo.u32 %r8, %r9, 3, %r8;",
        "%rd9" => "cvt.u32.u64 %r9, %rd9; mad.lo.u32 %r8, %r9, 5, %r8;",
        _ => "fma.rn.f32 %f8, %f9, %f7, %f8;",
    };
    let mut text = String::new();
    let mut addresses = 0;
    for _ in 0..4 + random.below(16) {
        if random.below(6) == 0 {
            // Then the next one is too far to be asked about together with those before.
            text += &"mad.lo.u32 %r8, %r8, 3, %r0;\n".repeat(17);
        }
        let new = addresses;
        let element = format!("[%a{}+{}]", random.below(addresses.max(1)), size * (i64::from(random.below(4)) - 1));
        let step = match random.below(if writes { 9 } else { 7 }) {
            0..=2 => {
                addresses += 1;
                let from = if new > 0 && random.below(4) == 0 { format!("%c{}", new - 1) } else { "%r1".to_owned() };
                let by = [0, 1, 2, 3, 4, -1, 60, 300][random.below(8) as usize];
                format!("add.{ty} %c{new}, {from}, {by}; mul.wide.{ty} %b{new}, %c{new}, {scale}; add.s64 %a{new}, %rd0, %b{new};")
            }
            3..=5 if new > 0 => format!("ld.global.{kind} {register}, {element}; {used}"),
            6 => "and.b32 %r10, %r8, 511; mul.wide.u32 %rd10, %r10, 4; add.s64 %rd10, %rd2, %rd10; ld.global.u32 %r11, [%rd10];\n\
                  xor.b32 %r8, %r8, %r11;"
                .to_owned(),
            7 if new > 0 => format!("st.global.{kind} {element}, {register};"),
            _ => format!("st.global.u32 [%rd1+{}], %r8;", 4 * random.below(16)),
        };
        writeln!(text, "{step}").unwrap();
    }
    text
}

/// Words of the memory.
const WORDS: usize = 1024;

/// Elements side by side of an array, whose indices are one number and others that are added to it: in one thread, also where some must not
/// be accessed, or indices wrap; and in many.
#[test]
fn elements_around_an_index() {
    let (mut done, mut failed) = (0, 0);
    for seed in 0..1_500 {
        let mut random = Random(seed);
        let (signed, threads) = (random.below(2) == 0, if random.below(4) == 0 { 40 } else { 1 });
        let scale = [4, 8, 8, 16][random.below(4) as usize];
        let bytes = if threads == 1 { 4 * WORDS } else { 20 * WORDS };
        let (array, index) = array(&mut random, signed, scale, bytes);
        let again = random.below(3) == 0;
        let body = elements(&mut random, signed, scale, threads == 1);
        let begin = if again { "mov.u32 %r12, 0; AGAIN:" } else { "" };
        let end = if again {
            "add.u32 %r1, %r1, 1; add.u32 %r12, %r12, 1; setp.lt.u32 %p0, %r12, 4; @%p0 bra AGAIN;"
        } else {
            ""
        };
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n\
             .visible .entry k(.param .u64 a, .param .u64 o, .param .u64 m, .param .u32 i) {{\n\
             .reg .b64 %rd<16>; .reg .b32 %r<16>; .reg .f32 %f<10>; .reg .b64 %a<24>; .reg .b64 %b<24>; .reg .b32 %c<24>; .reg .pred %p0;\n\
             ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [o]; ld.param.u64 %rd2, [m]; ld.param.u32 %r1, [i]; mov.u32 %r0, %tid.x;\n\
             mad.lo.u32 %r1, %r0, 2, %r1; mul.wide.u32 %rd3, %r0, 64; add.s64 %rd1, %rd1, %rd3; mov.u32 %r8, 7; mov.u32 %r9, 1;\n\
             mov.u64 %rd9, 3; mov.f32 %f7, 0f3F000000; mov.f32 %f8, 0f3F800000; mov.f32 %f9, %f7;\n\
             {begin}\n{body}{end}\nmov.b32 %r9, %f8; add.u32 %r8, %r8, %r9; st.global.u32 [%rd1+60], %r8; ret;\n}}\n"
        );
        let program = ptx::Program::parse(text.as_bytes()).unwrap();
        let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|e| panic!("{e}\n{text}")));
        // What many threads write is behind what they read.
        let out = if threads == 1 { BASE + 1024 } else { BASE + 16 * WORDS as u64 };
        let mut params: Vec<u8> = [array, out, BASE].iter().flat_map(|a| a.to_le_bytes()).collect();
        params.extend(index.to_le_bytes());
        let launch = Arc::new(Launch::new([1; 3], [threads, 1, 1], params));
        let memory: Vec<u8> = (0..bytes as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let mut expected = memory.clone();
        let expect = testgen::interpret(&kernel, &launch, BASE, &mut expected);
        for form in [Form::default(), Form { alone: true, ..Form::default() }] {
            let mut found = memory.clone();
            let end = support::run_in(form, &kernel, &launch, BASE, &mut found, Control::RUN);
            match (expect, end) {
                (Ok(()), Ok(())) => assert!(found == expected, "{form:?} {array:#x} {index:#x}\n{text}"),
                (Err(Exception::Access { address, .. }), Err(Exception::Access { address: told, error, .. })) => {
                    let there = (BASE..BASE + bytes as u64 + (1 << 20)).contains(&told);
                    let expected_error = if there { AccessError::Unmapped } else { AccessError::OutOfWindow };
                    assert!(error == AccessError::Misaligned || error == expected_error, "{told:#x} {error:?}\n{text}");
                    // Of pages that are not there a later one may be told, and in many threads another thread's.
                    let one = threads == 1 && error != AccessError::Unmapped;
                    assert!(
                        !one || address == told && found == expected,
                        "{form:?} {array:#x} {index:#x} {told:#x}\n{text}"
                    );
                }
                ends => panic!("{ends:x?}: {form:?} {array:#x} {index:#x}\n{text}"),
            }
        }
        *(if expect.is_ok() { &mut done } else { &mut failed }) += 1;
    }
    assert!(done > 300 && failed > 300, "{done} ran to their ends, {failed} did not");
}
