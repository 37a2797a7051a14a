//! Fields, bytes and halfwords of words: as the interpreter has it, in vectors of lanes and in scalars.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use ptx::ir::Kernel;
use ptx::launch::{Control, Launch};

/// GPU address of the memory: for each thread three operands, then for each instruction its results.
const BASE: u64 = 0x7_0000_0000;
const THREADS: usize = 64;
const OPERANDS: usize = THREADS * 3;

/// Instructions on `a`, `b` and `c` into `r`; on `A` and `B` of 64 bits into `R`.
fn instructions() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for selectors in
        [0x3210, 0x7654, 0x5410, 0x7632, 0x0123, 0x4440, 0x6024, 0x1111, 0x8888, 0xfedc, 0x7b29, 0xffff_3715_u32]
    {
        all.push(format!("prmt.b32 r, a, b, {selectors}"));
    }
    for mode in ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] {
        all.push(format!("prmt.b32.{mode} r, a, b, 2"));
    }
    all.push("prmt.b32 r, a, b, c".into());
    for (pos, len) in
        [(0, 8), (7, 9), (24, 8), (31, 1), (0, 32), (5, 0), (20, 30), (32, 4), (40, 255), (0, 255), (260, 5)]
    {
        all.push(format!("bfi.b32 r, a, b, {pos}, {len}"));
        all.push(format!("bfi.b64 R, A, B, {pos}, {len}"));
        for ty in ["u32", "s32"] {
            all.push(format!("bfe.{ty} r, a, {pos}, {len}"));
        }
    }
    for ty in ["u32", "s32"] {
        all.extend([format!("bfe.{ty} r, a, b, c"), format!("bfe.{ty} r, b, c, 7"), format!("bfe.{ty} r, b, 30, c")]);
        all.push(format!("sad.{ty} r, a, b, c"));
        for other in ["u32", "s32"] {
            all.push(format!("dp4a.{ty}.{other} r, a, b, c"));
            all.push(format!("dp2a.lo.{ty}.{other} r, a, b, c"));
            all.push(format!("dp2a.hi.{ty}.{other} r, a, b, c"));
        }
    }
    for name in ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"] {
        for (to, from, with) in
            [("u32", "u32", "u32"), ("s32", "s32", "s32"), ("u32", "s32", "u32"), ("s32", "u32", "s32")]
        {
            for lanes in [2, 4] {
                for then in ["", ".sat", ".add"] {
                    all.push(format!("{name}{lanes}.{to}.{from}.{with}{then} r, a, b, c"));
                }
            }
        }
    }
    all
}

/// Each instruction once on operands of the thread, once on those of the first.
fn kernel(instructions: &[String]) -> Kernel {
    let mut text = String::from(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry fields(.param .u64 at) {\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n\
         ld.param.u64 %rd0, [at];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %rd1, %r0, 12;\nadd.u64 %rd1, %rd0, %rd1;\n\
         ld.global.b32 %r1, [%rd1];\nld.global.b32 %r2, [%rd1+4];\nld.global.b32 %r3, [%rd1+8];\n\
         ld.global.b32 %r4, [%rd0];\nld.global.b32 %r5, [%rd0+4];\nld.global.b32 %r6, [%rd0+8];\n\
         mov.b64 %rd4, {%r1, %r2};\nmov.b64 %rd5, {%r2, %r3};\nmov.b64 %rd6, {%r4, %r5};\nmov.b64 %rd7, {%r5, %r6};\n\
         mul.wide.u32 %rd2, %r0, 8;\nadd.u64 %rd2, %rd0, %rd2;\n",
    );
    let mut at = OPERANDS * 4;
    for instruction in instructions {
        for registers in [["%r1", "%r2", "%r3", "%rd4", "%rd5"], ["%r4", "%r5", "%r6", "%rd6", "%rd7"]] {
            let (name, operands) = instruction.split_once(' ').unwrap();
            let mut named = String::new();
            for letter in operands.chars() {
                match letter {
                    'a' => named += registers[0],
                    'b' => named += registers[1],
                    'c' => named += registers[2],
                    'A' => named += registers[3],
                    'B' => named += registers[4],
                    'r' => named += "%r7",
                    'R' => named += "%rd8",
                    other => named.push(other),
                }
            }
            let result = if operands.starts_with('R') { "b64 [%rd2+" } else { "b32 [%rd2+" };
            let from = if operands.starts_with('R') { "%rd8" } else { "%r7" };
            writeln!(text, "{name} {named};\nst.global.{result}{at}], {from};").unwrap();
            at += THREADS * 8;
        }
    }
    text += "ret;\n}\n";
    ptx::Program::parse(text.as_bytes()).and_then(|program| program.lower(0, &|_| None)).unwrap()
}

/// Signs, ends of ranges, positions and lengths inside and outside a word, and anything.
fn operands() -> Vec<u32> {
    let edges = [
        0,
        1,
        7,
        0x80,
        0x8000_0000,
        0x7fff_ffff,
        u32::MAX,
        0x8080_8080,
        0x7f80_ff01,
        31,
        32,
        33,
        255,
        0x102,
        64,
        0x7fff_8000,
    ];
    let mut state = 1_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..OPERANDS).map(|_| if next() % 3 == 0 { next() } else { edges[next() as usize % edges.len()] }).collect()
}

#[test]
fn fields_of_words_agree_with_the_interpreter() {
    let instructions = instructions();
    let kernel = Arc::new(kernel(&instructions));
    let launch = Arc::new(Launch::new([1, 1, 1], [THREADS as u32, 1, 1], BASE.to_le_bytes().to_vec()));
    let mut memory: Vec<u8> = operands().into_iter().flat_map(u32::to_le_bytes).collect();
    memory.resize((memory.len() + instructions.len() * 2 * THREADS * 8).next_multiple_of(4096), 0);
    for control in [Control::RUN, Control::PREEMPT] {
        let mut machine = memory.clone();
        support::run(&kernel, &launch, BASE, &mut machine, control).unwrap();
        let mut expected = memory.clone();
        testgen::interpret(&kernel, &launch, BASE, &mut expected).unwrap();
        for (at, (got, expected)) in machine.chunks(8).zip(expected.chunks(8)).enumerate().skip(OPERANDS / 2) {
            let (which, thread) = ((at - OPERANDS / 2) / THREADS, at % THREADS);
            let kind = if which % 2 == 0 { "of its own" } else { "of the first" };
            assert_eq!(got, expected, "{}, thread {thread}, operands {kind}", instructions[which / 2]);
        }
    }
}
