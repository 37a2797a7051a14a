//! Kernels of a shape and a size: what compiling them costs must grow with their size and no faster.
//!
//! Each is valid, ends, and writes results that depend on nearly all of its instructions, so that engines can be compared
//! on it.

use std::fmt::Write;

/// What a kernel is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Loads, changes and stores, one after another.
    Accesses,
    /// Small ifs whose conditions differ between threads.
    Branches,
    /// Values that are all alive at once.
    Live,
    /// Multiply-adds, each of which needs the one before it.
    Chain,
    /// `brx.idx` with many targets.
    Switch,
    /// The body of a loop, many times, as nvcc unrolls it: addresses, loads, multiply-adds into some sums.
    Unrolled,
    /// Rotations and logic, as in hash functions.
    Hash,
    /// Barriers and shuffles between pieces of work.
    Joints,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 8] = [
        Shape::Accesses,
        Shape::Branches,
        Shape::Live,
        Shape::Chain,
        Shape::Switch,
        Shape::Unrolled,
        Shape::Hash,
        Shape::Joints,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Shape::Accesses => "accesses",
            Shape::Branches => "branches",
            Shape::Live => "live",
            Shape::Chain => "chain",
            Shape::Switch => "switch",
            Shape::Unrolled => "unrolled",
            Shape::Hash => "hash",
            Shape::Joints => "joints",
        }
    }

    /// A module with a kernel `k` of about so many instructions: `.param .u64` the address of [`BYTES`] of memory. For one
    /// CTA of at most 64 threads in x.
    #[must_use]
    pub fn text(self, instructions: usize) -> String {
        let body = match self {
            Shape::Accesses => accesses(instructions),
            Shape::Branches => branches(instructions),
            Shape::Live => live(instructions),
            Shape::Chain => chain(instructions),
            Shape::Switch => switch(instructions),
            Shape::Unrolled => unrolled(instructions),
            Shape::Hash => hash(instructions),
            Shape::Joints => joints(instructions),
        };
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) {{\n\
             .reg .b64 %rd<8>; .reg .b32 %r<16>; .reg .pred %p<8>; .reg .f32 %f<16>;\n\
             ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;\n\
             ld.global.u32 %r1, [%rd1];\n{body}st.global.u32 [%rd1], %r1;\nret;\n}}\n"
        )
    }
}

/// Bytes of memory that the kernels use.
pub const BYTES: usize = 1 << 16;

/// Offset of the row of 64 words that piece `i` uses.
fn row(i: usize) -> usize {
    256 * (i % 255 + 1)
}

fn repeat(pieces: usize, piece: impl Fn(&mut String, usize) -> std::fmt::Result) -> String {
    let mut text = String::new();
    for i in 0..pieces {
        // Writing to a string cannot fail.
        let _ = piece(&mut text, i);
    }
    text
}

fn accesses(instructions: usize) -> String {
    repeat(instructions / 3, |text, i| {
        let row = row(i);
        writeln!(text, "ld.global.u32 %r2, [%rd1+{row}]; xor.b32 %r2, %r2, {i}; st.global.u32 [%rd1+{row}], %r2;")
    })
}

fn branches(instructions: usize) -> String {
    repeat(instructions / 4, |text, i| {
        let bit = 1 << (i % 6);
        writeln!(
            text,
            "and.b32 %r2, %r1, {bit}; setp.eq.u32 %p0, %r2, 0; @%p0 bra L{i}; mad.lo.u32 %r1, %r1, 5, {i};\nL{i}:"
        )
    })
}

fn live(instructions: usize) -> String {
    let values = instructions / 3;
    let loads = repeat(values, |text, i| writeln!(text, "ld.global.u32 %v{i}, [%rd1+{}];", row(i)));
    let uses = repeat(values, |text, i| {
        let other = values - 1 - i;
        writeln!(text, "add.u32 %v{i}, %v{i}, %v{other}; mad.lo.u32 %r1, %r1, 3, %v{i};")
    });
    format!(".reg .b32 %v<{}>;\n{loads}{uses}", values + 1)
}

fn chain(instructions: usize) -> String {
    let body = repeat(instructions, |text, i| writeln!(text, "fma.rn.f32 %f0, %f0, %f1, 0f3F{:06X};", i & 0xffff));
    format!("cvt.rn.f32.u32 %f0, %r1; mov.f32 %f1, 0f3F7FFFF0;\n{body}mov.b32 %r1, %f0;\n")
}

fn switch(instructions: usize) -> String {
    let targets = (instructions / 4).max(1);
    let names: Vec<String> = (0..targets).map(|i| format!("T{i}")).collect();
    let body = repeat(targets, |text, i| {
        writeln!(text, "T{i}: xor.b32 %r1, %r1, {i}; add.u32 %r1, %r1, {i}; mul.lo.u32 %r1, %r1, 7; bra.uni DONE;")
    });
    format!("rem.u32 %r2, %r1, {targets};\nts: .branchtargets {};\nbrx.idx %r2, ts;\n{body}DONE:\n", names.join(", "))
}

fn unrolled(instructions: usize) -> String {
    let body = repeat(instructions / 6, |text, i| {
        let (row, sum, factor) = (row(i), 2 + i % 8, 10 + i % 2);
        writeln!(
            text,
            "add.s32 %r3, %r2, {}; mul.wide.s32 %rd2, %r3, 4; add.s64 %rd3, %rd0, %rd2;\n\
             ld.global.f32 %f{factor}, [%rd3]; ld.global.f32 %f12, [%rd1+{row}];\n\
             fma.rn.f32 %f{sum}, %f{factor}, %f12, %f{sum};",
            64 + i % 4096
        )
    });
    let zero = repeat(8, |text, i| write!(text, "mov.f32 %f{}, 0f00000000; ", 2 + i));
    let sums = repeat(7, |text, i| write!(text, "add.f32 %f2, %f2, %f{}; ", 3 + i));
    format!(
        "{zero}\nand.b32 %r2, %r0, 31; mov.u32 %r4, 0;\nLOOP:\n{body}\nadd.u32 %r4, %r4, 1; add.u32 %r2, %r2, 1;\n\
         setp.lt.u32 %p0, %r4, 2; @%p0 bra LOOP;\n{sums}\nmov.b32 %r1, %f2;\n"
    )
}

fn hash(instructions: usize) -> String {
    let body = repeat(instructions / 5, |text, i| {
        let (a, b, c) = (2 + i % 6, 2 + (i + 1) % 6, 2 + (i + 4) % 6);
        writeln!(
            text,
            "shf.l.wrap.b32 %r10, %r{a}, %r{a}, {}; lop3.b32 %r11, %r{a}, %r{b}, %r{c}, 0xCA;\n\
             add.u32 %r12, %r10, %r11; xor.b32 %r13, %r12, {}; add.u32 %r{b}, %r13, %r{c};",
            i % 31 + 1,
            i.wrapping_mul(0x9e37_79b9) & 0xffff_ffff
        )
    });
    let begin = repeat(6, |text, i| write!(text, "mad.lo.u32 %r{}, %r1, {}, %r0; ", 2 + i, 2 * i + 1));
    let end = repeat(6, |text, i| write!(text, "xor.b32 %r1, %r1, %r{}; ", 2 + i));
    format!("{begin}\n{body}{end}\n")
}

fn joints(instructions: usize) -> String {
    let body = repeat(instructions / 6, |text, i| {
        let (word, turn) = (4 * (i % 64), 1 << (i % 5));
        writeln!(
            text,
            "st.shared.u32 [%r6], %r1; bar.sync 0; ld.shared.u32 %r3, [s+{word}]; bar.sync 0;\n\
             shfl.sync.bfly.b32 %r4, %r1, {turn}, 31, -1; mad.lo.u32 %r1, %r3, 3, %r4;"
        )
    });
    format!(".shared .align 4 .b8 s[256];\nmov.u32 %r5, s; shl.b32 %r6, %r0, 2; add.u32 %r6, %r5, %r6;\n{body}")
}
