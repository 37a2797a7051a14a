//! Kernels in which lanes of a warp exchange values, in both engines, and in chunks of all widths.
use std::sync::Arc;

use ptx::launch::{Control, Launch};

const BASE: u64 = 0x20_0000_0000;
const BYTES: usize = 64 << 10;
/// Where results are.
const OUT: usize = 32 << 10;

/// Blocks of whole warps, in rows of all kinds, and instructions put in front: the longer the code, the narrower the chunks,
/// down from 32 or 16 lanes (as registers allow) to 8 and 4.
pub(crate) const SHAPES: [([u32; 3], usize); 7] = [
    ([32, 1, 1], 0),
    ([96, 1, 1], 600),
    ([8, 4, 1], 0),
    ([16, 4, 2], 1100),
    ([48, 2, 1], 0),
    ([64, 2, 1], 0),
    ([32, 1, 1], 2100),
];

/// Runs a kernel on both engines over memory whose words are a simple sequence: `%rd0` is the memory, `%rd1` where
/// results go, one word per thread at `%rd3`; `%r0` is the thread and `%r1` its lane. Gives the results.
pub(crate) fn run(body: &str, block: [u32; 3], padding: usize) -> Vec<u32> {
    let pad = "add.u32 %r31, %r31, %r0;".repeat(padding);
    let [x, y, _] = block;
    let text = format!(
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b) {{\n\
         .reg .b64 %rd<16>; .reg .b32 %r<32>; .reg .pred %p<8>; .shared .align 8 .b8 s[8192]; .shared .align 8 .b8 z[8192];\n\
         ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b];\n\
         mov.u32 %r0, %tid.z; mov.u32 %r1, %tid.y; mad.lo.u32 %r0, %r0, {y}, %r1;\n\
         mov.u32 %r1, %tid.x; mad.lo.u32 %r0, %r0, {x}, %r1; and.b32 %r1, %r0, 31;\n\
         mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd1, %rd2; add.s64 %rd4, %rd0, %rd2;\n\
         shl.b32 %r2, %r0, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;\n{pad}\n{body}\n\
         setp.eq.u32 %p7, %r31, 77777; @%p7 st.global.u32 [%rd1+16384], %r31;\nret;\n}}\n"
    );
    let program = ptx::Program::parse(text.as_bytes()).unwrap();
    let kernel = Arc::new(program.lower(0, &|_| None).unwrap_or_else(|e| panic!("{body}: {e}")));
    let launch = Arc::new(Launch {
        grid_id: 1,
        ..Launch::new([1; 3], block, [BASE, BASE + OUT as u64].iter().flat_map(|a| a.to_le_bytes()).collect())
    });
    let memory: Vec<u8> = (0..BYTES as u32 / 4).flat_map(|i| input(i).to_le_bytes()).collect();
    let mut reference = memory.clone();
    testgen::interpret(&kernel, &launch, BASE, &mut reference).unwrap();
    for control in [Control::RUN, Control::PREEMPT] {
        let mut machine = memory.clone();
        crate::support::run(&kernel, &launch, BASE, &mut machine, control).unwrap();
        let words =
            |bytes: &[u8]| -> Vec<u32> { bytes.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect() };
        assert_eq!(words(&machine), words(&reference), "block {block:?}, {padding} instructions in front: {body}");
    }
    let threads: u32 = block.iter().product();
    let out = reference[OUT..].chunks(4).take(threads as usize);
    out.map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
}

/// Word `i` of the memory before.
pub(crate) fn input(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761) >> 7 & 0xffff
}

/// Checks a pattern whose result for a warp's words is `expect`, in all blocks and widths.
pub(crate) fn check(body: &str, expect: impl Fn(&[u32]) -> Vec<u32>) {
    for (block, padding) in SHAPES {
        let threads: u32 = block.iter().product();
        let all: Vec<u32> = (0..threads).map(input).collect();
        let want: Vec<u32> = all.chunks(32).flat_map(&expect).collect();
        assert_eq!(run(body, block, padding), want, "block {block:?}, {padding} in front: {body}");
    }
}
