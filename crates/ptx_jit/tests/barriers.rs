//! Threads of a CTA that exchange values over barriers, some of which machine code leaves out where it runs warps in another order: random
//! kernels without races, in both engines, for blocks of all kinds.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/exchange.rs"]
mod exchange;
#[path = "support/numbers.rs"]
mod numbers;
mod support;

use std::fmt::Write as _;

use exchange::{SHAPES, check, input, run};
use numbers::Random;

/// The thread, `%r14`, and its word of shared memory, `%r18`, in registers that are written once, as compilers do it.
const PLACE: &str = "mov.u32 %r20, %tid.z; mov.u32 %r21, %ntid.y; mov.u32 %r22, %tid.y; mad.lo.u32 %r23, %r20, %r21, %r22;\n\
                     mov.u32 %r24, %ntid.x; mov.u32 %r25, %tid.x; mad.lo.u32 %r14, %r23, %r24, %r25;\n\
                     shl.b32 %r16, %r14, 2; mov.u32 %r17, s; add.u32 %r18, %r17, %r16;\n";

/// Arrays of a word for each of up to 256 threads, with as many words before and behind them: bytes from `%r18`, where the word of the first
/// array is of each thread's own, and from that array's beginning.
const ARRAYS: [u32; 2] = [1024, 4096];
/// Where the word of the last of 256 threads is.
const LAST: u32 = 1020;

/// What threads do between two barriers, which no order of them changes: of each array they read what they like, or write a word of
/// their own. What they read adds up in `%r4`.
fn phase(random: &mut Random) -> String {
    let mut text = String::new();
    if random.below(4) == 0 {
        return text;
    }
    for array in ARRAYS {
        let guard = random.of(&["", "@%p0 ", "@!%p0 ", "@%p1 "]);
        let apart = 4 * random.of(&[1, 2, 8, 16, 31, 32, 33, 64, 100]);
        let place = match random.below(9) {
            0 | 1 => format!("%r18+{}", array - apart),
            2 | 3 => format!("%r18+{}", array + apart),
            4 => format!("s+{}", array + 2 * apart),
            5 => format!("%r7+{}", array + LAST),
            6 => format!("%r8+{array}"),
            _ => format!("%r18+{array}"),
        };
        let read = format!("{guard}ld.shared.u32 %r5, [{place}]; {guard}mad.lo.u32 %r4, %r5, 3, %r4;\n");
        let own = random.of(&["%r18+{}", "%r7+{}"]);
        let own = own.replace("{}", &(array + if own.starts_with("%r7") { LAST } else { 0 }).to_string());
        let order = ["", ".volatile"][usize::from(random.below(6) == 0)];
        match random.below(5) {
            0 => {}
            1 | 2 => text += &read,
            3 => writeln!(text, "{guard}st{order}.shared.u32 [{own}], %r4;").unwrap(),
            _ => writeln!(
                text,
                "{guard}ld.shared.u32 %r6, [{own}]; {guard}add.u32 %r6, %r6, %r4; {guard}st.shared.u32 [{own}], %r6;"
            )
            .unwrap(),
        }
    }
    text
}

#[test]
fn warps_may_run_in_another_order_instead_of_waiting() {
    for seed in 0..20 {
        let mut random = Random(seed);
        // Some threads, and one; the thread's place from the array's end; a place that the engine cannot tell.
        let mut body = PLACE.to_owned()
            + "setp.lt.u32 %p0, %r14, 40; setp.eq.u32 %p1, %r14, 33; sub.u32 %r7, %r17, %r16; xor.b32 %r9, %r14, 1;\n\
               mad.lo.u32 %r8, %r9, 4, %r17; add.u32 %r4, %r14, 1; mov.u32 %r10, 0;\n";
        for array in ARRAYS {
            writeln!(body, "st.shared.u32 [%r18+{array}], %r14;").unwrap();
        }
        for part in 0..2 + random.below(3) {
            // Straight on; skipped by all or by none; several times; not for the last threads, which have ended.
            let kind = random.below(4);
            match kind {
                1 => write!(body, "setp.eq.u32 %p2, %r10, {}; @%p2 bra ON{part};", random.below(2)).unwrap(),
                2 => write!(body, "mov.u32 %r11, 0; ON{part}:").unwrap(),
                3 => write!(body, "setp.ge.u32 %p2, %r14, {}; @%p2 bra OUT;", 200 - 20 * part).unwrap(),
                _ => {}
            }
            for _ in 0..2 + random.below(5) {
                body += "bar.sync 0;\n";
                body += &phase(&mut random);
            }
            match kind {
                1 => writeln!(body, "ON{part}:").unwrap(),
                2 => writeln!(body, "bar.sync 0; add.u32 %r11, %r11, 1; setp.lt.u32 %p2, %r11, 3; @%p2 bra ON{part};")
                    .unwrap(),
                _ => {}
            }
        }
        body += "bar.sync 0;\n";
        for array in ARRAYS {
            writeln!(body, "ld.shared.u32 %r5, [%r18+{array}]; mad.lo.u32 %r4, %r5, 5, %r4;").unwrap();
        }
        body += "OUT: st.global.u32 [%rd3], %r4;";
        for (block, padding) in shapes() {
            run(&body, block, padding);
        }
    }
}

/// A barrier that nobody misses before one that stays, behind which warps run in the other order.
#[test]
fn barriers_one_behind_the_other() {
    let body = "st.shared.u32 [%r18+1024], %r14; membar.cta; bar.sync 0;\n\
                ld.shared.u32 %r4, [%r18+1020]; bar.sync 0; st.shared.u32 [%r18+1024], %r4; bar.sync 0; bar.sync 0;\n\
                ld.shared.u32 %r5, [%r18+1020]; add.u32 %r5, %r5, 7; st.shared.u32 [%r18+4096], %r5;\n\
                bar.sync 0; ld.shared.u32 %r6, [%r18+4092]; st.global.u32 [%rd3], %r6;";
    for (block, padding) in shapes() {
        run(&(PLACE.to_owned() + body), block, padding);
    }
}

/// Places of one warp whose sums wrap: in narrow chunks nothing but the barrier keeps them in order.
#[test]
fn addresses_that_wrap() {
    let sums = "add.u32 %r4, %r16, 0x7ffffff0; add.u32 %r5, %r4, 0x7ffffff0; add.u32 %r6, %r5, 0x24;\n\
                st.shared.u32 [%r16], %r14; bar.sync 0; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd3], %r7;";
    let products = "and.b32 %r4, %r14, 3; setp.eq.u32 %p0, %r4, 0; setp.eq.u32 %p1, %r14, 12; mul.lo.u32 %r5, %r14, 0x40000000;\n\
                    mov.u32 %r7, 5; @%p1 st.shared.u32 [%r5], %r14; bar.sync 0; @%p0 ld.shared.u32 %r7, [%r5]; st.global.u32 [%rd3], %r7;";
    for (block, padding) in shapes().chain([([20, 1, 1], 0), ([8, 16, 1], 0), ([32, 1, 1], 600), ([32, 1, 1], 1100)]) {
        for body in [sums, products] {
            run(&(PLACE.to_owned() + body), block, padding);
        }
    }
}

#[test]
fn warps_that_turn_their_words_round() {
    let body = "ld.global.u32 %r4, [%rd4]; st.shared.u32 [%r18], %r4; bar.sync 0;\n\
                xor.b32 %r5, %r14, 31; mad.lo.u32 %r6, %r5, 4, %r17; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd3], %r7;";
    check(&(PLACE.to_owned() + body), |words| words.iter().rev().copied().collect());
}

/// Blocks of all kinds, and instructions put in front.
fn shapes() -> impl Iterator<Item = ([u32; 3], usize)> {
    SHAPES.into_iter().chain([([256, 1, 1], 0), ([16, 16, 1], 0), ([200, 1, 1], 300)])
}

/// Prefix sums, those of what comes behind, and the sum of all, by each thread's own loads.
#[test]
fn scans_and_trees_of_sums() {
    const DISTANCES: [i32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
    // Zeros around the words.
    let clear: String = (0..3072).step_by(128).map(|at| format!("st.shared.u32 [%r18+{at}], %r7;")).collect();
    let begin = format!(
        "{PLACE} mov.u32 %r7, 0; {clear} bar.sync 0; ld.global.u32 %r4, [%rd4]; st.shared.u32 [%r18+1024], %r4;\n"
    );
    let end = "bar.sync 0; ld.shared.u32 %r5, [%r18+1024]; st.global.u32 [%rd3], %r5;";
    let step = |by: i32| {
        format!(
            "bar.sync 0; ld.shared.u32 %r5, [%r18+{}]; bar.sync 0;\n\
             ld.shared.u32 %r6, [%r18+1024]; add.u32 %r6, %r6, %r5; st.shared.u32 [%r18+1024], %r6;\n",
            1024 + 4 * by
        )
    };
    let fold = |by: i32| {
        format!(
            "bar.sync 0; setp.lt.u32 %p0, %r14, {by}; @%p0 ld.shared.u32 %r5, [%r18+{}]; @%p0 ld.shared.u32 %r6, [%r18+1024];\n\
             @%p0 add.u32 %r6, %r6, %r5; @%p0 st.shared.u32 [%r18+1024], %r6;\n",
            1024 + 4 * by
        )
    };
    let upwards = begin.clone() + &DISTANCES.map(|by| step(-by)).concat() + end;
    let downwards = begin.clone() + &DISTANCES.map(step).concat() + end;
    let tree = begin + &DISTANCES.map(fold).into_iter().rev().collect::<String>() + end;
    for (block, padding) in shapes() {
        let words: Vec<u32> = (0..block.iter().product()).map(input).collect();
        let sum = |range: &[u32]| range.iter().sum::<u32>();
        let (up, down) = (run(&upwards, block, padding), run(&downwards, block, padding));
        assert!((0..words.len()).all(|i| up[i] == sum(&words[..=i]) && down[i] == sum(&words[i..])), "{block:?}");
        assert_eq!(run(&tree, block, padding)[0], sum(&words), "{block:?}");
    }
}

/// A prefix sum of more words than there are threads, part by part in a loop that counts the thread's index up: threads without a word in
/// the last part leave before, and the others' barriers do not wait for them.
#[test]
fn a_scan_part_by_part() {
    let step = |by: u32| {
        format!(
            "bar.sync 0; ld.shared.u32 %r5, [%r18+{}]; bar.sync 0;\n\
             ld.shared.u32 %r6, [%r18+1024]; add.u32 %r6, %r6, %r5; st.shared.u32 [%r18+1024], %r6;\n",
            1024 - 4 * by
        )
    };
    let steps = [1, 2, 4, 8, 16, 32, 64, 128].map(step).concat();
    for (block, padding) in shapes() {
        let threads: u32 = block.iter().product();
        // Words that are each the number of the part; whole parts, and one of which some threads have none.
        for words in [2 * threads, 2 * threads + threads / 3 + 1] {
            let body = format!(
                "{PLACE} mov.u32 %r2, 0; mov.u32 %r3, 1; mov.u32 %r19, 0;\n\
                 PART: st.shared.u32 [%r18], %r2; st.shared.u32 [%r18+1024], %r3;\n{steps}\
                 bar.sync 0; ld.shared.u32 %r5, [%r18+1024]; ld.shared.u32 %r6, [%r17+{}]; bar.sync 0;\n\
                 mad.lo.u32 %r19, %r19, 3, %r5; add.u32 %r3, %r3, 1; add.u32 %r14, %r14, {threads};\n\
                 setp.lt.u32 %p0, %r14, {words}; @%p0 bra PART; st.global.u32 [%rd3], %r19;",
                1024 + LAST
            );
            let sums = run(&body, block, padding);
            let whole = |thread: u32, part: u32| (thread + 1) * part;
            let expected = |thread: u32| {
                let two = 3 * whole(thread, 1) + whole(thread, 2);
                if thread + 2 * threads < words { 3 * two + whole(thread, 3) } else { two }
            };
            assert!((0..threads).all(|thread| sums[thread as usize] == expected(thread)), "{block:?}, {words} words");
        }
    }
}
