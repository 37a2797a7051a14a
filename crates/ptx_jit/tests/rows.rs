//! Grids of several rows of CTAs, along which a region goes on by itself: what threads are told of where they are, and stores of some
//! lanes. Each kernel on both engines, for blocks and grids of several shapes, run through and preempted.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Control, Launch};

/// GPU address of the memory.
const BASE: u64 = 0x7_0000_0000;
/// Bytes of it; what comes out begins behind the words that are read.
const BYTES: u32 = 256 << 10;
const OUT: u32 = 4096;

/// `body` finds the thread's index in the grid in `%r0`, the address of the memory in `%rd0` and that of what comes out in `%rd1`.
fn kernel(body: &str) -> Arc<Kernel> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
         .reg .b64 %rd<8>; .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .f32 %f<8>; .reg .pred %p<4>;\n\
         ld.param.u64 %rd0, [a]; add.s64 %rd1, %rd0, {OUT};\n\
         mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;\n\
         mov.u32 %r6, %ntid.z; mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z;\n\
         mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y;\n\
         mad.lo.u32 %r12, %r9, %r11, %r8; mad.lo.u32 %r12, %r12, %r10, %r7;\n\
         mad.lo.u32 %r12, %r12, %r6, %r3; mad.lo.u32 %r12, %r12, %r5, %r2; mad.lo.u32 %r0, %r12, %r4, %r1;\n\
         {body}\nret;\n}}\n"
    );
    let kernel = ptx::Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None));
    Arc::new(kernel.unwrap_or_else(|e| panic!("{e}\n{text}")))
}

/// A word of which most bits are set, or few, or such as look like chance.
fn word(i: u32) -> u32 {
    let mixed = i.wrapping_mul(0x9e37_79b9) ^ i << 13;
    match i % 5 {
        0 => !(1 << (mixed % 32)),
        1 => 0xf0 << (mixed % 32),
        2 => u32::MAX << (mixed % 33).min(31),
        3 => u32::MAX >> (mixed % 32),
        _ => mixed,
    }
}

fn launch(block: [u32; 3], grid: [u32; 3]) -> Arc<Launch> {
    Arc::new(Launch::new(grid, block, BASE.to_le_bytes().to_vec()))
}

fn check(body: &str, shapes: &[([u32; 3], [u32; 3])]) {
    let kernel = kernel(body);
    let memory: Vec<u8> = (0..BYTES / 4).flat_map(|i| word(i).to_le_bytes()).collect();
    for &(block, grid) in shapes {
        for control in [Control::RUN, Control::PREEMPT] {
            let launch = launch(block, grid);
            let machine = &mut |k: &Arc<Kernel>, l: &Arc<Launch>, base, bytes: &mut Vec<u8>| {
                support::run(k, l, base, bytes, control)
            };
            let outcome = testgen::compare(&kernel, &launch, BASE, &memory, machine, &mut testgen::interpret);
            assert_eq!(outcome, Ok(()), "{block:?} {grid:?}, control {control}: {body}");
        }
    }
}

/// Powers of two and others, whose warps lie below each other, side by side, or over the ends of rows.
const SHAPES: [([u32; 3], [u32; 3]); 20] = [
    ([32, 8, 1], [5, 3, 2]),
    ([32, 3, 2], [7, 2, 1]),
    ([32, 2, 4], [3, 2, 2]),
    ([32, 4, 3], [4, 2, 1]),
    ([64, 2, 2], [5, 2, 1]),
    ([64, 3, 1], [6, 1, 2]),
    ([128, 2, 1], [3, 3, 1]),
    ([16, 4, 4], [5, 2, 1]),
    ([8, 8, 8], [3, 2, 1]),
    ([4, 2, 16], [6, 2, 1]),
    ([96, 2, 2], [3, 2, 1]),
    ([48, 2, 1], [4, 3, 1]),
    ([24, 5, 2], [3, 2, 1]),
    ([256, 1, 1], [7, 1, 1]),
    ([32, 1, 1], [9, 4, 1]),
    ([1, 32, 4], [5, 2, 1]),
    ([33, 1, 1], [5, 2, 1]),
    ([40, 1, 1], [7, 1, 1]),
    ([100, 1, 1], [5, 1, 1]),
    ([32, 2, 1], [130, 1, 1]),
];

#[test]
fn threads_know_where_they_are() {
    // Each index has bits of its own.
    let body = "shl.b32 %r13, %r2, 8; or.b32 %r13, %r13, %r1; shl.b32 %r14, %r3, 16; or.b32 %r13, %r13, %r14;\n\
                mov.u32 %r15, %clusterid.x; shl.b32 %r15, %r15, 8; mad.lo.u32 %r15, %r8, 65536, %r15; add.u32 %r15, %r15, %r7;\n\
                mov.u32 %r16, %warpid; mov.u32 %r17, %laneid; mad.lo.u32 %r16, %r16, 64, %r17; mul.wide.u32 %rd2, %r0, 16;\n\
                add.s64 %rd2, %rd1, %rd2; st.global.v4.u32 [%rd2], {%r13, %r15, %r16, %r9};";
    check(body, &SHAPES);
    // The same without what tells the cluster.
    check(&body.replace("%clusterid.x", "%ctaid.z"), &SHAPES);
}

/// Neighbours of a place in an image, but at its edges, where some lanes do nothing.
#[test]
fn stencils_agree() {
    let body = "mad.lo.u32 %r13, %r7, %r4, %r1; mad.lo.u32 %r14, %r8, %r5, %r2; mul.lo.u32 %r15, %r10, %r4; mul.lo.u32 %r16, %r11, %r5;\n\
                sub.u32 %r17, %r15, 1; sub.u32 %r18, %r16, 1; setp.lt.s32 %p0, %r13, 1; setp.ge.s32 %p1, %r13, %r17;\n\
                setp.lt.s32 %p2, %r14, 1; setp.ge.s32 %p3, %r14, %r18; or.pred %p0, %p0, %p1; or.pred %p2, %p2, %p3;\n\
                or.pred %p0, %p0, %p2; @%p0 bra END; mad.lo.s32 %r19, %r14, %r15, %r13; mul.wide.s32 %rd2, %r19, 4;\n\
                add.s64 %rd3, %rd0, %rd2; mul.wide.s32 %rd4, %r15, 4; add.s64 %rd5, %rd3, %rd4; sub.s64 %rd6, %rd3, %rd4;\n\
                ld.global.u32 %r1, [%rd3]; ld.global.u32 %r2, [%rd3+-4]; ld.global.u32 %r3, [%rd3+4]; ld.global.u32 %r4, [%rd5];\n\
                ld.global.u32 %r5, [%rd6]; mad.lo.u32 %r1, %r1, 3, %r2; mad.lo.u32 %r1, %r1, 5, %r3; mad.lo.u32 %r1, %r1, 7, %r4;\n\
                mad.lo.u32 %r1, %r1, 9, %r5; add.s64 %rd7, %rd3, 131072; st.global.u32 [%rd7], %r1; END:";
    check(body, &SHAPES);
}

/// Elements of all sizes, in rows of lanes of which any may be missing.
#[test]
fn some_lanes_of_a_row_store() {
    let asked = "and.b32 %r13, %r0, 1023; shr.u32 %r14, %r13, 5; mul.wide.u32 %rd2, %r14, 4; add.s64 %rd2, %rd0, %rd2;\n\
                 ld.global.u32 %r15, [%rd2]; and.b32 %r14, %r0, 31; shr.u32 %r15, %r15, %r14; and.b32 %r15, %r15, 1;\n\
                 setp.ne.u32 %p0, %r15, 0; cvt.u64.u32 %rd4, %r0; mul.lo.s64 %rd4, %rd4, 1000003; cvt.u16.u32 %h0, %r0;\n";
    for (size, store) in [
        (1, "st.global.u8 [%rd3], %r0;"),
        (2, "st.global.u16 [%rd3], %h0;"),
        (4, "st.global.u32 [%rd3], %r0;"),
        (8, "st.global.u64 [%rd3], %rd4;"),
        (8, "st.global.v2.u32 [%rd3], {%r0, %r13};"),
        (16, "st.global.v2.u64 [%rd3], {%rd4, %rd2};"),
        (16, "st.global.v4.u32 [%rd3], {%r0, %r13, %r14, %r15};"),
    ] {
        let at = format!("mul.wide.u32 %rd3, %r0, {size}; add.s64 %rd3, %rd1, %rd3;");
        for way in [format!("@%p0 {store}"), format!("@!%p0 bra END; {store} END:")] {
            check(&format!("{asked}{at}{way}"), &SHAPES);
        }
    }
}
