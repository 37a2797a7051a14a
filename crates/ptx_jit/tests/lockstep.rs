//! Lanes of a warp that exchange values without a barrier, as programs from before Volta do: each pattern in both engines,
//! for blocks and lengths of code that make chunks of all widths.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/exchange.rs"]
mod exchange;
mod support;

use exchange::{SHAPES, check, input, run};

fn prefix_sums(words: &[u32]) -> Vec<u32> {
    words
        .iter()
        .scan(0_u32, |sum, w| {
            *sum += w;
            Some(*sum)
        })
        .collect()
}

#[test]
fn a_scan_in_shared_memory_without_barriers() {
    for order in ["", ".volatile"] {
        // Every lane has zeros below it: 32 words before each warp's part.
        let mut body = format!(
            "ld.global.u32 %r4, [%rd4]; and.b32 %r5, %r0, 992; shl.b32 %r5, %r5, 2; add.u32 %r2, %r2, %r5;\n\
             st{order}.shared.u32 [%r2], 0; add.u32 %r2, %r2, 128; st{order}.shared.u32 [%r2], %r4;\n"
        );
        for distance in [1, 2, 4, 8, 16] {
            body += &format!(
                "ld{order}.shared.u32 %r5, [%r2]; ld{order}.shared.u32 %r6, [%r2-{}];\n\
                 add.u32 %r5, %r5, %r6; st{order}.shared.u32 [%r2], %r5;\n",
                4 * distance
            );
        }
        check(&(body + "ld.shared.u32 %r5, [%r2]; st.global.u32 [%rd3], %r5;"), prefix_sums);
    }
}

#[test]
fn a_scan_in_a_loop_in_which_some_lanes_store() {
    let body = "ld.global.u32 %r4, [%rd4]; st.volatile.shared.u32 [%r2], %r4; mov.u32 %r5, 1;\n\
                LOOP: setp.lt.u32 %p0, %r1, %r5; @%p0 bra SKIP;\n\
                shl.b32 %r6, %r5, 2; sub.u32 %r6, %r2, %r6; ld.volatile.shared.u32 %r7, [%r6];\n\
                ld.volatile.shared.u32 %r8, [%r2]; add.u32 %r8, %r8, %r7; st.volatile.shared.u32 [%r2], %r8;\n\
                SKIP: shl.b32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, 32; @%p0 bra LOOP;\n\
                xor.b32 %r6, %r2, 124; ld.volatile.shared.u32 %r5, [%r6]; st.global.u32 [%rd3], %r5;";
    check(body, |words| prefix_sums(words).into_iter().rev().collect());
}

#[test]
fn the_last_warp_of_a_reduction() {
    for (load, store) in [("ld.shared", "st.shared"), ("ld.volatile.shared", "st.volatile.shared")] {
        let mut body =
            "ld.global.u32 %r4, [%rd4]; st.shared.u32 [%r2], %r4; st.shared.u32 [%r2+4096], %r4; bar.sync 0;\n\
                        mov.u32 %r9, 0; st.global.u32 [%rd3], %r9; setp.ge.u32 %p0, %r0, 32; @%p0 bra END;\n"
                .to_owned();
        for distance in [16, 8, 4, 2, 1] {
            body += &format!(
                "{load}.u32 %r5, [%r2]; {load}.u32 %r6, [%r2+{}]; add.u32 %r5, %r5, %r6; {store}.u32 [%r2], %r5;\n",
                4 * distance
            );
        }
        body += "ld.shared.u32 %r5, [s]; st.global.u32 [%rd3], %r5; END:";
        for (block, padding) in [([32, 1, 1], 600), ([128, 1, 1], 0), ([8, 8, 1], 2100), ([16, 16, 1], 1100)] {
            let threads: u32 = block.iter().product();
            // Lanes beyond the half add what they please, as on hardware: so do the words behind the first warp's.
            let mut all: Vec<u32> = (0..threads).map(input).collect();
            all.resize(64.max(all.len()), 0);
            for distance in [16, 8, 4, 2, 1] {
                let before = all.clone();
                (0..32).for_each(|i| all[i] = before[i] + before[i + distance]);
            }
            let got = run(&body, block, padding);
            assert_eq!(got[..32], [all[0]; 32], "block {block:?}, {padding} in front");
            assert!(got[32..].iter().all(|&w| w == 0));
        }
    }
}

#[test]
fn a_sort_in_global_memory_without_barriers() {
    // Two bitonic sorts of 64 words each by one warp, in place, with `j += 32`: what CuPy's partition does.
    let body = "and.b32 %r4, %r0, 992; mul.wide.u32 %rd5, %r4, 8; add.s64 %rd5, %rd0, %rd5;\n\
                mov.u32 %r10, 2;\n\
                WHOLE: shr.u32 %r11, %r10, 1;\n\
                HALF: mov.u32 %r12, %r1;\n\
                STEP: neg.s32 %r13, %r11; and.b32 %r13, %r12, %r13; add.u32 %r13, %r13, %r12; add.u32 %r14, %r13, %r11;\n\
                mul.wide.u32 %rd6, %r13, 4; add.s64 %rd6, %rd5, %rd6; mul.wide.u32 %rd7, %r14, 4; add.s64 %rd7, %rd5, %rd7;\n\
                ld.global.u32 %r15, [%rd6]; ld.global.u32 %r16, [%rd7];\n\
                and.b32 %r17, %r13, %r10; setp.eq.u32 %p0, %r17, 0; setp.gt.u32 %p1, %r15, %r16; xor.pred %p2, %p0, %p1;\n\
                @%p2 bra KEEP; st.global.u32 [%rd6], %r16; st.global.u32 [%rd7], %r15;\n\
                KEEP: add.u32 %r12, %r12, 32; setp.lt.u32 %p0, %r12, 32; @%p0 bra STEP;\n\
                shr.u32 %r11, %r11, 1; setp.gt.u32 %p0, %r11, 0; @%p0 bra HALF;\n\
                shl.b32 %r10, %r10, 1; setp.le.u32 %p0, %r10, 64; @%p0 bra WHOLE;\n\
                and.b32 %r4, %r0, 31; mul.wide.u32 %rd6, %r4, 8; add.s64 %rd6, %rd5, %rd6; ld.global.u32 %r5, [%rd6];\n\
                ld.global.u32 %r6, [%rd6+4]; shl.b32 %r6, %r6, 16; or.b32 %r5, %r5, %r6; st.global.u32 [%rd3], %r5;";
    for (block, padding) in SHAPES {
        let threads: u32 = block.iter().product();
        let want: Vec<u32> = (0..threads / 32)
            .flat_map(|warp| {
                let mut words: Vec<u32> = (64 * warp..64 * warp + 64).map(input).collect();
                words.sort_unstable();
                words.chunks(2).map(|two| two[0] | two[1] << 16).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(run(body, block, padding), want, "block {block:?}, {padding} in front");
    }
}

#[test]
fn loads_come_before_later_stores_and_stores_keep_their_order() {
    let rotated = |words: &[u32]| (0..32).map(|i| words[(i + 1) % 32]).collect::<Vec<_>>();
    let neighbour = "xor.b32 %r4, %r1, %r0; add.u32 %r5, %r1, 1; and.b32 %r5, %r5, 31; or.b32 %r4, %r4, %r5;\n";
    // In place: all load before any stores.
    check(
        &format!(
            "{neighbour} shl.b32 %r4, %r4, 2; mov.u32 %r5, s; add.u32 %r4, %r4, %r5;\n\
             ld.global.u32 %r6, [%rd4]; st.shared.u32 [%r2], %r6; bar.warp.sync 0xffffffff;\n\
             ld.shared.u32 %r6, [%r4]; st.shared.u32 [%r2], %r6; bar.warp.sync 0xffffffff;\n\
             ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd3], %r6;"
        ),
        rotated,
    );
    // In global memory, through one pointer.
    check(
        &format!(
            "{neighbour} mul.wide.u32 %rd5, %r4, 4; add.s64 %rd5, %rd1, %rd5;\n\
             ld.global.u32 %r6, [%rd4]; st.global.u32 [%rd3], %r6; ld.global.u32 %r6, [%rd5]; st.global.u32 [%rd3], %r6;"
        ),
        rotated,
    );
    // The later of two stores stays, whichever lanes they are of.
    check(
        &format!(
            "{neighbour} shl.b32 %r4, %r4, 2; mov.u32 %r5, s; add.u32 %r4, %r4, %r5; ld.global.u32 %r6, [%rd4];\n\
             st.shared.u32 [%r2], 5; st.shared.u32 [%r4], %r6; bar.sync 0; ld.shared.u32 %r6, [%r2];\n\
             st.global.u32 [%rd3], %r6;"
        ),
        |words| (0..32).map(|i| words[(i + 31) % 32]).collect(),
    );
    // One word for all: the last lane's value is what each then finds.
    check(
        "and.b32 %r4, %r0, 992; mov.u32 %r5, s; add.u32 %r4, %r4, %r5; ld.global.u32 %r6, [%rd4];\n\
         st.volatile.shared.u32 [%r4], %r6; ld.volatile.shared.u32 %r6, [%r4]; st.global.u32 [%rd3], %r6;",
        |words| vec![words[31]; 32],
    );
}

#[test]
fn atomics_are_seen_by_the_atomics_behind_them() {
    // Through generic addresses, by exchange and by adding nothing.
    check(
        "cvt.u64.u32 %rd5, %r2; cvta.shared.u64 %rd5, %rd5; xor.b64 %rd6, %rd5, 4; ld.global.u32 %r6, [%rd4];\n\
         atom.exch.b32 %r7, [%rd5], %r6; atom.add.u32 %r7, [%rd6], 0; st.global.u32 [%rd3], %r7;",
        |words| (0..32).map(|i| words[i ^ 1]).collect(),
    );
    // All count, then all read the count.
    check(
        "and.b32 %r4, %r0, 992; mov.u32 %r5, s; add.u32 %r4, %r4, %r5; ld.global.u32 %r6, [%rd4];\n\
         red.shared.add.u32 [%r4], %r6; red.shared.add.u32 [%r4], %r6; atom.shared.add.u32 %r7, [%r4], 0;\n\
         st.global.u32 [%rd3], %r7;",
        |words| vec![2 * words.iter().sum::<u32>(); 32],
    );
}

#[test]
fn a_loop_carries_what_lanes_stored_around() {
    // Each trip moves the words on by one lane, 5 times; the store is of the trip before.
    let body = "ld.global.u32 %r6, [%rd4]; add.u32 %r5, %r1, 1; and.b32 %r5, %r5, 31; and.b32 %r4, %r0, 992;\n\
                or.b32 %r4, %r4, %r5; shl.b32 %r4, %r4, 2; mov.u32 %r5, s; add.u32 %r4, %r4, %r5; mov.u32 %r7, 0;\n\
                LOOP: ld.shared.u32 %r8, [%r4]; setp.ne.u32 %p0, %r7, 0; @%p0 mov.u32 %r6, %r8;\n\
                st.shared.u32 [%r2], %r6; add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, 5; @%p0 bra LOOP;\n\
                st.global.u32 [%rd3], %r6;";
    check(body, |words| (0..32).map(|i| words[(i + 5) % 32]).collect());
}

#[test]
fn lanes_that_leave_a_loop_wait_for_the_rest() {
    // The inner loop is cut, and lanes leave it after 1 to 3 trips; what counts the outer one is shared by all.
    let body = "mov.u32 %r9, 2; mul.wide.u32 %rd5, %r0, 4; add.s64 %rd5, %rd1, %rd5; mov.u32 %r8, 0; st.global.u32 [%rd5], %r8;\n\
                A: and.b32 %r10, %r1, 3;\n\
                B: ld.global.u32 %r8, [%rd5]; add.u32 %r8, %r8, 1; st.global.u32 [%rd5], %r8; sub.u32 %r10, %r10, 1;\n\
                setp.gt.s32 %p0, %r10, 0; @%p0 bra B;\n\
                sub.u32 %r9, %r9, 1; setp.gt.s32 %p1, %r9, 0; @%p1 bra A;";
    check(body, |_| (0..32).map(|lane| 2 * (lane % 4).max(1)).collect());
}
