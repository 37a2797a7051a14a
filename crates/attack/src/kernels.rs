//! Kernels in PTX, of any size and in every shape that is hard on a compiler.

use std::fmt::Write;

use clap::ValueEnum;
use testgen::shapes;

pub(crate) use testgen::shapes::BYTES;

/// What a large kernel consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Shape {
    /// Load, xor, store, over and over.
    Straight,
    /// Dependent multiply-adds.
    Chain,
    /// Values that are all alive at once.
    Live,
    /// Small ifs.
    Ifs,
    /// One branch with many targets.
    Table,
    /// Nested loops of one iteration.
    Nest,
    /// Functions that call each other, twice each.
    Calls,
}

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

fn kernel(functions: &str, registers: &str, body: &str) -> String {
    format!(
        "{HEAD}{functions}.visible .entry k(.param .u64 p)\n{{\n.reg .pred %q<4>;\n.reg .b32 %r<16>;\n.reg .b64 %a<4>;\n\
         {registers}ld.param.u64 %a0, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %a1, %r1, 4;\nadd.s64 %a0, %a0, %a1;\n\
         ld.global.u32 %r0, [%a0];\n{body}st.global.u32 [%a0], %r0;\nret;\n}}\n"
    )
}

/// A kernel `k` of about `size` instructions; `salt` makes its text unlike all others. Its parameter is the address of
/// [`BYTES`] of memory; for blocks of at most 64 threads.
pub(crate) fn large(shape: Shape, size: usize, salt: u32) -> String {
    let text = match shape {
        Shape::Straight => shapes::Shape::Accesses.text(size),
        Shape::Chain => shapes::Shape::Chain.text(size),
        Shape::Live => shapes::Shape::Live.text(size),
        Shape::Ifs => shapes::Shape::Branches.text(size),
        Shape::Table => shapes::Shape::Switch.text(size),
        Shape::Nest => nest(size),
        Shape::Calls => calls(size),
    };
    format!("{text}// {salt}\n")
}

/// Nested loops of one iteration.
fn nest(size: usize) -> String {
    let depth = size / 4;
    let mut body = String::new();
    for i in 0..depth {
        let _ = write!(body, "mov.u32 %n{i}, 0;\nL{i}:\n");
    }
    for i in (0..depth).rev() {
        let _ = write!(body, "add.u32 %n{i}, %n{i}, 1;\nsetp.lt.u32 %q0, %n{i}, 1;\n@%q0 bra L{i};\n");
    }
    kernel("", &format!(".reg .b32 %n<{depth}>;\n"), &body)
}

/// Functions that call the one before twice: inlined, 2^depth copies.
fn calls(size: usize) -> String {
    let depth = (size / 4).min(2000);
    let mut functions =
        ".func (.reg .b32 %o) f0(.reg .b32 %i)\n{\n.reg .b32 %x;\nadd.u32 %x, %i, 1;\nmov.u32 %o, %x;\nret;\n}\n"
            .to_owned();
    for i in 1..depth {
        let call = format!("{{ call (%x), f{}, (%x); }}\n", i - 1);
        let _ = write!(
            functions,
            ".func (.reg .b32 %o) f{i}(.reg .b32 %i)\n{{\n.reg .b32 %x;\nmov.u32 %x, %i;\n{call}{call}mov.u32 %o, %x;\nret;\n}}\n"
        );
    }
    let last = depth - 1;
    let body = format!("setp.eq.u32 %q0, %r0, 0x12345678;\n@!%q0 bra E;\n{{ call (%r0), f{last}, (%r0); }}\nE:\n");
    kernel(&functions, "", &body)
}

/// What the victim runs: 64 rounds of a hash for each element.
pub(crate) const HASH: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
.visible .entry hash(.param .u64 p, .param .u64 salt)\n{\n.reg .pred %q;\n.reg .b32 %r<8>;\n.reg .b64 %a<4>;\n\
ld.param.u64 %a0, [p];\nld.param.u32 %r5, [salt];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\n\
mad.lo.u32 %r1, %r2, %r3, %r1;\nmul.wide.u32 %a1, %r1, 4;\nadd.s64 %a0, %a0, %a1;\nld.global.u32 %r0, [%a0];\n\
mov.u32 %r4, 0;\nL:\nxor.b32 %r0, %r0, %r5;\nmad.lo.u32 %r0, %r0, 1664525, 1013904223;\nadd.u32 %r4, %r4, 1;\n\
setp.lt.u32 %q, %r4, 64;\n@%q bra L;\nst.global.u32 [%a0], %r0;\nret;\n}\n";

/// The same on the CPU.
pub(crate) fn hash(value: u32, salt: u32) -> u32 {
    (0..64).fold(value, |value, _| (value ^ salt).wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
}

/// Kernels that are small and mean no good.
pub(crate) const SMALL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
.visible .entry empty(.param .u64 p)\n{\nret;\n}\n\
.visible .entry endless(.param .u64 p)\n{\n.reg .b64 %a;\n.reg .b32 %r;\nld.param.u64 %a, [p];\n\
L:\nld.volatile.global.u32 %r, [%a];\nbra L;\n}\n\
.visible .entry stray(.param .u64 p)\n{\n.reg .b64 %a;\n.reg .b32 %r;\nld.param.u64 %a, [p];\n\
ld.global.u32 %r, [%a];\nst.global.u32 [%a], %r;\nret;\n}\n\
.visible .entry awaits(.param .u64 p)\n{\n.local .align 16 .b8 mine[60000];\n.reg .pred %q;\n.reg .b64 %a<4>;\n.reg .b32 %r<4>;\n\
ld.param.u64 %a0, [p];\nmov.u64 %a1, mine;\nmov.u32 %r1, %tid.x;\nst.local.u32 [%a1], %r1;\n\
L:\natom.global.add.u32 %r0, [%a0], 0;\nsetp.eq.u32 %q, %r0, 0;\n@%q bra L;\nld.local.u32 %r2, [%a1+256];\nst.global.u32 [%a0], %r2;\nret;\n}\n";
